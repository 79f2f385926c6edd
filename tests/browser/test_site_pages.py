"""The site in Chromium: a small one of two lessons is built, opened from its folder, and tried as a reader would.

Its widgets are of all kinds: drawings from a grid (03), a stored figure and one computed in the page (06).
"""

import os
import random
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from browsers import unpacked

from minispec_course.labs.verifiers import explore, toy_place
from minispec_course.site import sources, widgets
from minispec_course.site.build import WORK, build
from minispec_course.site.widgets import VERIFIERS
from minispec_course.viz.predict import _verdict
from minispec_course.viz.surface import Dot, surface

pytestmark = pytest.mark.browser
LESSONS = ("03", "06")
DESK, PHONE = (1280, 860), (390, 780)
MOST_BYTES = 1_500_000  # of a page before interaction


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A small site."""
    if find_spec("myst_nb") is None or find_spec("sphinx_book_theme") is None or find_spec("latex2mathml") is None:
        pytest.skip('needs the extra "site": pip install -c constraints.txt -e ".[site]"')
    built = build(tmp_path_factory.mktemp("site"), LESSONS, quiet=True)
    assert built.failed == {}
    return built.index.parent


@pytest.fixture
def reader(open_reader):
    return open_reader(DESK, "light")


@pytest.mark.parametrize(("size", "theme"), [(DESK, "light"), (DESK, "dark"), (PHONE, "light")])
def test_every_page_opens_from_its_folder(open_reader, site, size, theme):
    reader = open_reader(size, theme)
    others = {"source", "live.html"}  # the live page has tests of its own
    shown = [page for page in site.rglob("*.html") if others.isdisjoint(page.parts)]
    for file in (*sorted(shown), site / "source/minispec/verify.html"):
        page = reader.open(file)
        assert reader.bytes() < MOST_BYTES, file
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1"), f"{file} is too wide"
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        assert page.locator("h1").count() >= 1 and reader.wrong == [], file


def test_search_finds_lessons_first_and_says_where(reader, site):
    page = reader.open(site / "index.html")
    for words, lesson in (("rejection", "06_rejection"), ("block table", "03_paged")):
        page.goto(f"{(site / 'search.html').as_uri()}?q={words}")
        found = page.locator(".ms-found li")
        found.first.wait_for()
        assert lesson in found.first.locator("a").get_attribute("href")
        assert words.split()[0] in found.first.locator("mark").first.inner_text().lower()
    found.first.locator("a").click()
    page.wait_for_url("**/notebooks/03_paged_blocks.html*")


def test_a_case_is_worked_out_by_hand(reader, site):
    page = reader.open(site / "exercises/03_paged_blocks.html")
    form = page.locator("form.ms-hand").first
    asked, said = form.locator(".ms-ask"), form.locator("[role=status]")
    facts = form.evaluate("form => JSON.parse(form.querySelector('script').textContent)")
    case = next(one for one in facts["cases"] if one["wrong"])
    while asked.inner_text() != case["ask"]:
        form.get_by_role("button", name="another").click()
    answer, mistake = case["wrong"][0]
    for typed, words in ((answer, facts["mistakes"][mistake]), (case["right"], "Right")):
        form.locator("input").fill(str(typed))
        form.locator("input").press("Enter")
        assert words in said.inner_text()


@pytest.mark.nightly
def test_the_same_commit_gives_the_same_pages(site, tmp_path):
    """Another process, day, order of hashes and language: the same bytes."""
    elsewhere = os.environ | {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    command = [sys.executable, "-m", "minispec_course.site", "--fresh", "--out", str(tmp_path), *LESSONS]
    subprocess.run(command, env=elsewhere, check=True, capture_output=True)
    files = {file.relative_to(site) for file in site.rglob("*") if file.is_file()}
    assert files == {file.relative_to(tmp_path) for file in tmp_path.rglob("*") if file.is_file()}
    assert [file for file in files if (site / file).read_bytes() != (tmp_path / file).read_bytes()] == []


# ---------------------------------------------------------------- widgets

LEAST = """root => Math.min(...[...root.querySelectorAll('text')].filter(one => one.textContent.trim()).map((text) => {
    const {a, b} = text.getScreenCTM();
    return Math.hypot(a, b) * parseFloat(getComputedStyle(text).fontSize);
}))"""
SHOWS = "root => root.querySelector('.ms-picture').innerHTML + root.querySelector('.ms-words').textContent"


def ready(page, widget) -> None:
    widget.scroll_into_view_if_needed()
    page.wait_for_function("root => root.dataset.state === 'ready'", arg=widget.element_handle())


def moved(page, widget, act) -> tuple[str, str]:
    """What a widget shows before and after."""
    before, count = widget.evaluate(SHOWS), int(widget.get_attribute("data-drawn"))
    act()
    page.wait_for_function(
        "([root, count]) => Number(root.dataset.drawn) > count", arg=[widget.element_handle(), count]
    )
    return before, widget.evaluate(SHOWS)


def step(control) -> None:
    kind = control.evaluate("node => node.type")
    if kind == "range":
        control.press(control.evaluate("node => node.value === node.max ? 'ArrowLeft' : 'ArrowRight'"))
    elif kind == "select-one":
        control.select_option(index=control.locator("option").count() - 1)
    else:
        control.click()


def test_every_widget_follows_its_controls(reader, site):
    """One step of each slider, menu and box; then the picture is the one that Python drew for these values."""
    chosen = [name for name in sources.lessons() if name[:2] in LESSONS]
    kept, _ = widgets.export(chosen, WORK.with_name("site-widgets"))  # as the build left it
    data = {f"{lesson[:2]}-{cell}": made for lesson, cells in kept.items() for cell, made in cells.items()}
    tried = 0
    for file in sorted((site / "notebooks").glob("*.html")):
        page = reader.open(file)
        for widget in page.locator(".ms-widget").all():
            ready(page, widget)
            for control in widget.locator("input, select").all():
                before, after = moved(page, widget, lambda c=control: step(c))
                tried += before != after
            made = data.get(widget.get_attribute("data-key"))
            if made and not made.get("live"):
                at = 0
                for knob, i in zip(made["knobs"], widget.get_attribute("data-at").split(","), strict=True):
                    at = at * len(knob["shown"]) + int(i)
                _, words = unpacked(made["data"])[at]
                assert widget.locator(".ms-words").inner_text().split() == words.split()
    assert tried >= 4


def test_a_phone_shows_no_tiny_letters(open_reader, site):
    reader = open_reader(PHONE)
    for lesson in ("03_paged_blocks", "06_rejection_sampling"):
        page = reader.open(site / f"notebooks/{lesson}.html")
        for widget in page.locator(".ms-widget").filter(has=page.locator(".ms-controls > *")).all():
            ready(page, widget)
            assert widget.evaluate(LEAST) >= 10, widget.get_attribute("data-key")


def test_bars_are_dragged_and_moved_by_keys(reader, site):
    page = reader.open(site / "notebooks/06_rejection_sampling.html")
    widget = page.locator(".ms-residual")
    ready(page, widget)
    bar = widget.locator("[role=slider]").first
    box = bar.bounding_box()

    def drag() -> None:
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 30, steps=4)
        page.mouse.up()

    for act in (drag, lambda: bar.press("ArrowDown")):
        before, after = moved(page, widget, act)
        assert before != after
    assert "exactly the target's distribution" in widget.locator(".ms-words").inner_text()
    widget.locator("select").nth(1).select_option("wrong: accept always")  # the emitted token follows q
    assert "away from the target's" in widget.locator(".ms-words").inner_text()


def test_play_plays_and_stops(reader, site):
    page = reader.open(site / "notebooks/03_paged_blocks.html")
    widget = page.locator(".ms-widget").filter(has=page.locator(".ms-player")).first
    ready(page, widget)
    button = widget.get_by_role("button", name="play")
    before, after = moved(page, widget, button.click)
    assert before != after
    widget.get_by_role("button", name="stop").click()
    now = widget.evaluate(SHOWS)
    page.wait_for_timeout(1000)
    assert widget.evaluate(SHOWS) == now


def test_a_guess_is_committed_then_the_answer_opens(reader, site):
    page = reader.open(site / "notebooks/06_rejection_sampling.html")
    first, second = page.locator("form.ms-predict").all()[:2]
    answer = page.locator(f".ms-verdict[data-key='{first.get_attribute('data-key')}']")
    fold = page.locator("details").filter(has=answer)
    first.locator("input").fill("so many")
    first.locator("input").press("Enter")
    assert not fold.evaluate("node => node.open") and first.locator("input").is_enabled()
    first.locator("input").fill("1,5")
    first.locator("input").press("Enter")
    assert fold.evaluate("node => node.open") and not first.locator("input").is_enabled()
    assert "1.5" in fold.inner_text() and answer.inner_text()
    second.get_by_role("button", name="skip").click()
    assert not second.locator("input").is_enabled()


# ---------------------------------------------------------------- formulas of the page against Python's


def test_verdicts_of_the_page_are_pythons(reader, site):
    page, dice = reader.open(site / "index.html"), random.Random(0)
    page.wait_for_function("typeof MinispecFormulas !== 'undefined'")
    for n in range(24):
        p, q = (torch.tensor([dice.random() for _ in range(5)], dtype=torch.float64) for _ in range(2))
        x = {"p": (p / p.sum()).tolist(), "q": (q / q.sum()).tolist(), "verifier": VERIFIERS[n % len(VERIFIERS)]}
        found = explore(toy_place(x["p"], x["q"]), x["verifier"], k=1)
        accepted, corrected = page.evaluate("x => MinispecFormulas.emitted(x.p, x.q, x.verifier)", x)
        assert accepted == pytest.approx(found.parts["accepted"].tolist(), abs=1e-9), x
        assert corrected == pytest.approx(found.parts["corrected"].tolist(), abs=1e-9), x
        guess, answer = dice.choice([0, 3, -2, 1500]) * dice.random(), dice.choice([0, 1, 40, 2000]) * dice.random()
        assert page.evaluate("x => MinispecFormulas.verdict(...x)", [guess, answer]) == _verdict(guess, answer)


def test_the_computed_widgets_draw_what_python_draws(reader, site):
    """The picture of the start, patched by the page for other values, against the same function in Python."""
    page = reader.open(site / "index.html")
    page.wait_for_function("window.minispecLive")
    dice = random.Random(1)
    panel = surface([Dot.recorded()])
    for _ in range(6):
        values = dict(alpha=dice.randint(0, 49) / 50, c=dice.randint(0, 100) / 100)
        values |= {"v": 1 + dice.randint(0, 80) / 20, "cost": dice.choice(["same", "grows"])}
        drawn, words = panel.draw(**panel.values)
        code = "([picture, values]) => minispecLive.surface(picture, values)"
        got = page.evaluate(code, [{"html": drawn, "words": words}, values])
        drawn, words = panel.draw(**values, dot=panel.values["dot"])
        assert pieces(got["words"]) == pieces(words)
        # The whole drawing, to a tenth of a pixel, both as the browser writes it.
        written = "html => new DOMParser().parseFromString(html, 'text/html').body.innerHTML"
        assert pieces(page.evaluate(written, got["html"])) == pieces(page.evaluate(written, drawn)), values


def pieces(svg: str) -> list:
    """A drawing as words and numbers, which may differ by a rounding."""
    found = re.split(r"(\d[\d,]*\.?\d*(?:e[+-]\d+)?)", svg)
    return [pytest.approx(float(x.replace(",", "")), rel=0.006, abs=0.11) if i % 2 else x for i, x in enumerate(found)]


# ---------------------------------------------------------------- accessibility


@pytest.mark.nightly
@pytest.mark.parametrize("theme", ("light", "dark"))
def test_axe_finds_no_serious_violation(open_reader, site, axe, theme):
    if axe is None:
        pytest.skip("npm could not fetch axe-core")
    reader, found = open_reader(DESK, theme), []
    names = ("index", "notebooks/03_paged_blocks", "notebooks/06_rejection_sampling", "interview/index")
    for name in (*names, "docs/glossary", "source/minispec/verify"):
        page = reader.open(site / f"{name}.html")
        for widget in page.locator(".ms-widget").all():
            ready(page, widget)
        found += [f"{name}: {what}" for what in reader.violations(axe)]
    assert found == []
