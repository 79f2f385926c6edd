"""The live page in Chromium, opened from its folder as a visitor would: left alone, by keyboard, from a link."""

from __future__ import annotations

import pytest

from minispec_course.site import live

pytestmark = pytest.mark.browser
RESTS = "() => run?.cycles.length && !run.playing && run.chosen && !$('inside-body').hidden"
SPECULATIVE = (
    "[...document.querySelectorAll('#spec :is(.kept, .correction, .bonus, .big)')].map(one => one.textContent)"
)
PLAIN = "[...document.querySelectorAll('#plain .big')].map(one => one.textContent)"
PLACES = "['plain', 'spec', 'settings'].map(id => $(id).getBoundingClientRect().top)"
CHANGE_TWICE = """() => {  // k changes while the worker is at a cycle, and once more
    const asked = engine.ask.bind(engine), values = [5, 4];
    const change = () => { $('k').value = values.shift(); $('k').dispatchEvent(new Event('change')); };
    engine.ask = (what, ...rest) => {
        if (what === 'cycle' && values.length) queueMicrotask(change);
        return asked(what, ...rest);
    };
}"""


@pytest.fixture
def visit(open_reader, tmp_path):
    """Opens the page at an address."""
    file = live.build(tmp_path)
    return lambda address="", width=1280, **media: open_reader((width, 800), **media).open(file, address)


def test_it_plays_by_itself_and_both_lanes_say_the_same_whatever_run_came_before(visit, tmp_path):
    page = visit()
    page.wait_for_function("() => run?.playing")
    places = page.evaluate(PLACES)
    page.evaluate("window.spoken = 0; new MutationObserver(() => spoken++).observe($('said'), {childList: true})")
    page.locator("#speed").evaluate("node => { node.value = 'fast'; }")
    page.evaluate(CHANGE_TWICE)
    page.wait_for_function("() => runs === 3")
    page.get_by_role("link", name="how much is saved?").click()  # leads down the page, and begins no other run
    page.wait_for_function("() => runs === 3 && over(run) && !run.playing")
    page.evaluate("scrollTo({top: 0, behavior: 'instant'})")
    text, passes = page.evaluate(PLAIN), page.evaluate("run.cycles.length")
    assert text == page.evaluate(SPECULATIVE) and len(text) == 48
    assert page.locator("#plain .passes").inner_text() == str(len(text)) == page.locator("#spec .length").inner_text()
    assert page.locator("#spec .passes").inner_text() == str(passes) == str(page.locator("#spec .meter i").count())
    assert page.evaluate(PLACES) == places and page.evaluate("spoken") <= 2  # nothing moves or chatters
    assert sum(one.stat().st_size for one in tmp_path.iterdir()) < 10_000_000
    still = visit(reduced_motion="reduce")
    still.wait_for_function("() => run && !$('play').disabled")
    assert still.evaluate("!run.playing && run.cycles.length === 0")


def test_a_link_shows_what_its_sender_saw_and_keys_look_into_a_token(visit):
    page = visit("#prompt=One+day%2C+Tom&seed=3&temperature=0.9&k=3&drafter=draft-model&step=6")
    page.wait_for_function(RESTS)
    page.get_by_role("button", name="One step").click()
    page.wait_for_function("() => run.cycles.length === 7 && $('link').value.endsWith('step=7')")
    other = visit("#" + page.locator("#link").input_value().split("#")[1])
    other.wait_for_function(RESTS)
    assert other.evaluate(SPECULATIVE) == page.evaluate(SPECULATIVE) and other.evaluate("run.cycles.length") == 7
    page.locator("#spec button.token[tabindex='0']").press("End")
    while not page.evaluate("document.activeElement.matches('.rejected')"):
        page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.activeElement.ariaPressed === 'true'")
    for key, residuals in (("Home", 0), ("End", 1)):  # u = 0 keeps this guess, the largest u rejects it
        page.locator("#decision input").press(key)
        assert page.locator("#decision table:visible").count() == residuals


def test_a_wrong_sampler_is_seen_and_the_race_has_the_machines_times(visit):
    page = visit("#step=48&drafter=ngram")
    page.wait_for_function(RESTS)
    guessed = page.evaluate("run.cycles.map(({drafted}) => drafted.length > 0)")
    for kind, passes in (("w", True), ("t", False)):  # a pass without a guess is a plain one, and costs as much
        assert page.locator(f"#race-bars .track:nth-of-type(2) .{kind}").count() == guessed.count(passes) > 0
    page.locator("#wrong").check()
    page.locator("#exact-run").click()
    page.wait_for_selector("#exact-bars td .off")
    lasts = round(live.machines()[0]["target_ms"] * page.evaluate("run.plain.length"))
    assert f"{lasts} ms" in page.locator("#race-bars .track").first.inner_text()


@pytest.mark.parametrize(("width", "theme"), ((360, "light"), (768, "light"), (1600, "dark")))
def test_it_fits_every_width_and_axe_finds_nothing(open_reader, tmp_path, axe, width, theme):
    reader = open_reader((width, 800), color_scheme=theme)
    page = reader.open(live.build(tmp_path), "#step=4&temperature=0.8")
    page.wait_for_function(RESTS)
    page.evaluate("document.querySelectorAll('details').forEach(node => { node.open = true; })")
    page.add_style_tag(content="main > section { content-visibility: visible !important; }")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth") and reader.wrong == []
    assert axe is None or reader.violations(axe) == []
