"""The site in Chromium: a small one of three lessons is built, opened from its folder, and tried as a reader would.

Its widgets are of all kinds: HTML from a grid (03, 07), a stored figure (06), computed in the page (06, 07).
"""

from __future__ import annotations

import os
import random
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from browsers import violations

from minispec import theory, verify
from minispec_course.labs import places, presets
from minispec_course.labs.explored import explore
from minispec_course.site.widgets import VERIFIERS
from minispec_course.viz.predict import _verdict
from minispec_course.viz.roofline import roofline
from minispec_course.viz.surface import Dot, surface

pytestmark = pytest.mark.browser
LESSONS = ("03", "06", "07")
SIZES = ((1280, 860), (390, 780))
MOST_BYTES = 1_500_000  # of a page before interaction
STATIC = Path(__file__).resolve().parents[2] / "minispec_course/site/static"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A small site, or the one in the folder that MINISPEC_SITE names."""
    if built := os.environ.get("MINISPEC_SITE"):
        return Path(built)
    if find_spec("myst_nb") is None or find_spec("sphinx_book_theme") is None or find_spec("latex2mathml") is None:
        pytest.skip('needs the extra "site": pip install -c constraints.txt -e ".[site]"')
    from minispec_course.site.build import build

    folder = tmp_path_factory.mktemp("beside") / "site"
    built = build(folder, LESSONS, quiet=True)
    assert built.failed == {}
    assert list(folder.parent.iterdir()) == [folder], "the build leaves something beside the site"
    return built.index.parent


class Reader:
    """A page in a browser, and what went wrong in it."""

    def __init__(self, browser, size: tuple[int, int] = SIZES[0], theme: str = "light"):
        """theme "": nothing is chosen yet, as on a first visit."""
        self.page = browser.new_page()
        self.page.set_viewport_size(dict(zip(("width", "height"), size, strict=True)))
        chosen = f"localStorage.mode = localStorage.theme = '{theme}'" if theme else "localStorage.clear()"
        self.page.add_init_script(chosen)
        self.page.set_default_timeout(60_000)
        self.errors: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda said: said.type != "error" or self.errors.append(said.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("requestfailed", lambda request: self.errors.append(f"{request.url}: {request.failure}"))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self, file: Path):
        self.asked.clear()
        self.page.goto(file.as_uri())
        return self.page

    @property
    def strangers(self) -> list[str]:
        return [url for url in self.asked if not url.startswith(("file:", "data:", "blob:"))]

    def bytes(self) -> int:
        """What was loaded from the folder."""
        asked = [url.removeprefix("file://").split("?")[0].split("#")[0] for url in self.asked]
        files = {Path(path) for path in asked if path.startswith("/")}
        return sum(file.stat().st_size for file in files)


@pytest.fixture
def reader(browser, site):
    reader = Reader(browser)
    yield reader
    reader.page.close()
    assert reader.errors == [] and reader.strangers == []


def pages(site: Path) -> list[Path]:
    """Every page, but of those that show a file of the package two."""
    shown = [page for page in site.rglob("*.html") if "source" not in page.parts]
    return [*sorted(shown), site / "source/minispec/verify.html", site / "source/minispec/serving/engine.html"]


@pytest.mark.parametrize("theme", ("light", "dark"))
@pytest.mark.parametrize("size", SIZES, ids=lambda size: str(size[0]))
def test_every_page_opens_from_its_folder(browser, site, size, theme):
    reader = Reader(browser, size, theme)
    for file in pages(site):
        page = reader.open(file)
        assert reader.bytes() < MOST_BYTES, file
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1"), f"{file} is too wide"
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        assert page.locator("h1").count() >= 1, file
        assert reader.strangers == [] and reader.errors == [], file
    reader.page.close()


def test_a_first_visit_takes_the_theme_of_the_machine(browser, site):
    reader = Reader(browser, theme="")
    for scheme in ("light", "dark"):
        reader.page.emulate_media(color_scheme=scheme)
        page = reader.open(site / "index.html")
        page.wait_for_function(f"document.documentElement.dataset.theme == '{scheme}'")
    assert reader.errors == []
    reader.page.close()


def test_links_inside_the_site_lead_somewhere(site):
    from html.parser import HTMLParser

    class Links(HTMLParser):
        def __init__(self):
            super().__init__()
            self.to, self.ids = [], set()

        def handle_starttag(self, tag, attributes):
            found = dict(attributes)
            self.ids |= {found["id"]} if found.get("id") else set()
            self.to += [found["href"]] if tag == "a" and found.get("href") else []

    read: dict[Path, Links] = {}
    for file in site.rglob("*.html"):
        read[file.resolve()] = links = Links()
        links.feed(file.read_text(encoding="utf-8"))
    count = 0
    for file, links in read.items():
        for address in links.to:
            if "://" in address or address.startswith(("mailto:", "#")):
                continue
            path, _, place = address.partition("#")
            there = (file.parent / path).resolve()
            assert there.exists(), (file, address)
            if "source" in there.parts and place:
                assert place in read[there].ids, (file, address)
                count += 1
    assert count > 100  # names that lead to their line


def test_the_first_paint_needs_no_script(browser, site):
    context = browser.browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site / "notebooks/03_paged_blocks.html").as_uri())
    assert page.locator(".ms-widget .ms-picture").first.inner_text().strip()
    page.goto((site / "notebooks/07_how_fast.html").as_uri())
    assert page.locator("math").count() > 20 and page.locator("math").first.is_visible()
    context.close()


# ---------------------------------------------------------------- widgets

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


def test_every_widget_follows_every_control(reader, site):
    from minispec_course.site import sources, widgets
    from minispec_course.site.build import WORK

    chosen = [name for name in sources.lessons() if name[:2] in LESSONS]
    kept, _ = widgets.export(chosen, WORK.with_name("site-widgets"))
    data = {f"{lesson[:2]}-{cell}": made for lesson, cells in kept.items() for cell, made in cells.items()}
    tried = 0
    for file in sorted((site / "notebooks").glob("*.html")):
        page = reader.open(file)
        for widget in page.locator(".ms-widget").all():
            ready(page, widget)
            changes = 0
            for slider in widget.locator("input[type=range]").all():
                at_end = slider.evaluate("node => node.value === node.max")
                slider.focus()
                key = "ArrowLeft" if at_end else "ArrowRight"
                before, after = moved(page, widget, lambda s=slider, key=key: s.press(key))
                changes += before != after
                box = slider.bounding_box()
                there = {"x": box["width"] * 0.5, "y": box["height"] / 2}
                slider.press("Home" if at_end else "End")
                page.wait_for_timeout(100)
                before, after = moved(page, widget, lambda s=slider, p=there: s.click(position=p))
                changes += before != after
            for menu in widget.locator("select").all():
                count = menu.locator("option").count()
                before, after = moved(page, widget, lambda m=menu, n=count: m.select_option(index=n - 1))
                changes += before != after
            for box in widget.locator("input[type=checkbox]").all():
                before, after = moved(page, widget, box.click)
                changes += before != after
            made = data.get(widget.get_attribute("data-key"))
            assert changes or not widget.locator("input, select").count(), widget.get_attribute("data-key")
            if made and not made.get("live"):  # what is shown is what Python drew for these values
                at = 0
                for knob, i in zip(made["knobs"], widget.get_attribute("data-at").split(","), strict=True):
                    at = at * len(knob["shown"]) + int(i)
                picture, words = widgets.unpacked(made["data"])[at]
                assert widget.locator(".ms-words").inner_text().split() == words.split()
                if isinstance(picture, str):
                    same = "([root, html]) => { const one = document.createElement('div'); one.innerHTML = html; "
                    same += "return root.querySelector('.ms-picture').innerHTML === one.innerHTML; }"
                    assert page.evaluate(same, [widget.element_handle(), picture])
            tried += changes
    assert tried >= 8


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
    page = reader.open(site / "notebooks/07_how_fast.html")
    first, second = page.locator("form.ms-predict").all()[:2]
    answer = page.locator(f".ms-verdict[data-key='{first.get_attribute('data-key')}']")
    fold = page.locator("details").filter(has=answer)
    assert not fold.evaluate("node => node.open")
    first.locator("input").fill("so many")
    first.locator("input").press("Enter")
    assert not fold.evaluate("node => node.open") and first.locator("input").is_enabled()
    first.locator("input").fill("1,5")
    first.locator("input").press("Enter")
    assert fold.evaluate("node => node.open") and not first.locator("input").is_enabled()
    assert "1.5" in fold.inner_text() and answer.inner_text() == _verdict(1.5, 2.77)
    second.get_by_role("button", name="skip").click()
    assert not second.locator("input").is_enabled()


# ---------------------------------------------------------------- formulas of the page against Python's


@pytest.fixture(scope="module")
def formulas(browser):
    page = browser.new_page()
    page.goto("about:blank")
    page.add_script_tag(content=(STATIC / "formulas.js").read_text(encoding="utf-8"))
    yield lambda code, argument=None: page.evaluate(f"x => {{ const F = MinispecFormulas; return {code}; }}", argument)
    page.close()


def test_formulas_are_pythons(formulas):
    import torch

    dice = random.Random(0)
    for n in range(60):
        alpha, c, v, k = dice.random(), dice.random(), 1 + 3 * dice.random(), dice.randint(1, 16)
        given = dict(alpha=alpha, c=c, v=v, k=k)
        assert formulas("F.speedup(x.alpha, x.k, x.c, x.v)", given) == pytest.approx(theory.speedup(alpha, k, c, v))
        assert formulas("F.best(x.alpha, x.c, () => x.v, 16)", given) == pytest.approx(
            [theory.best_speedup(alpha, c, v, 16), theory.best_k(alpha, c, v, 16)]
        )
        edge = formulas("F.breakEven(x.k, x.c, x.v)", given)  # JSON has no infinity, playwright does
        assert edge == pytest.approx(theory.break_even(k, c, v))
        p, q = (torch.tensor([dice.random() for _ in range(5)], dtype=torch.float64) for _ in range(2))
        p, q = p / p.sum(), q / q.sum()
        given = {"p": p.tolist(), "q": q.tolist()}
        assert formulas("F.acceptance(x.p, x.q)", given) == pytest.approx(theory.acceptance(p.tolist(), q.tolist()))
        assert formulas("F.residual(x.p, x.q)", given) == pytest.approx(verify.residual(p, q).tolist())
        verifier = VERIFIERS[n % len(VERIFIERS)]
        found = explore(places.toy_place(p.tolist(), q.tolist()), verifier, k=1)
        accepted, corrected = formulas("F.emitted(x.p, x.q, x.verifier)", given | {"verifier": verifier})
        assert accepted == pytest.approx(found.parts["accepted"].tolist(), abs=1e-9), verifier
        assert corrected == pytest.approx(found.parts["corrected"].tolist(), abs=1e-9), verifier
        guess, answer = dice.choice([0, 3, -2, 1500]) * dice.random(), dice.choice([0, 1, 40, 2000]) * dice.random()
        assert formulas("F.verdict(x[0], x[1])", [guess, answer]) == _verdict(guess, answer)
    for text, number in (("1,5", 1.5), ("1,500", 1500), ("2.77", 2.77), (" 12 % ", 12), ("-3", -3), ("1.2e3", 1200)):
        assert formulas("F.number(x)", text) == number
    assert formulas("Number.isNaN(F.number(x))", "many")


def test_the_computed_widgets_draw_what_python_draws(reader, site):
    """The picture of the start, patched by the page for other values, against the same function in Python."""
    from minispec_course.site.widgets import machines

    page = reader.open(site / "index.html")
    page.wait_for_function("window.minispecLive")
    dice = random.Random(1)
    for name, panel in (("surface", surface([Dot.recorded()])), ("roofline", roofline())):
        start, meta = panel.values, machines(panel) if name == "roofline" else {}
        for _ in range(12):
            if name == "surface":
                values = dict(alpha=dice.randint(0, 49) / 50, c=dice.randint(0, 100) / 100)
                values |= {"v": 1 + dice.randint(0, 80) / 20, "cost": dice.choice(["same", "grows"]), "dot": ""}
                base = start
            else:
                values = dict(tokens=dice.choice([1, 5, 64, 2048]), batch=dice.choice([1, 8, 256]))
                values |= dict(context=dice.choice([0, 4096, 131_072]), model=dice.choice(list(presets.SHAPES)))
                values |= dict(stored=dice.choice(list(presets.STORED.values())), machine=dice.randrange(4))
                base = start | {"machine": values["machine"]}
            drawn, words = panel.draw(**base)
            code = f"([picture, values, meta]) => minispecLive.{name}(picture, values, meta)"
            got = page.evaluate(code, [{"html": drawn, "words": words}, values, meta])
            drawn, words = panel.draw(**values)
            assert figures(got["words"]) == figures(words)
            # The whole drawing, to a tenth of a pixel, both as the browser writes it.
            written = "html => new DOMParser().parseFromString(html, 'text/html').body.innerHTML"
            assert pieces(page.evaluate(written, got["html"])) == pieces(page.evaluate(written, drawn)), (name, values)


def pieces(svg: str) -> list:
    """A drawing as words and numbers, which may differ by a rounding."""
    found = re.split(r"(\d[\d,]*\.?\d*(?:e[+-]\d+)?)", svg)
    return [pytest.approx(float(x.replace(",", "")), rel=0.006, abs=0.11) if i % 2 else x for i, x in enumerate(found)]


def figures(words: str) -> str:
    """The same sentence with each number in three figures, however it is written."""
    return re.sub(r"\d[\d,]*\.?\d*(e[+-]\d+)?", lambda found: f"{float(found[0].replace(',', '')):.3g}", words)


# ---------------------------------------------------------------- accessibility


@pytest.mark.parametrize("theme", ("light", "dark"))
def test_axe_finds_no_serious_violation(browser, site, axe, theme):
    if axe is None:
        pytest.skip("npm could not fetch axe-core")
    reader = Reader(browser, SIZES[0], theme)
    found = []
    names = ("index", "notebooks/03_paged_blocks", "notebooks/06_rejection_sampling", "notebooks/07_how_fast")
    for name in (*names, "interview/index", "docs/glossary", "source/minispec/verify"):
        page = reader.open(site / f"{name}.html")
        for widget in page.locator(".ms-widget").all():
            ready(page, widget)
        found += [f"{name}: {what}" for what in violations(page, axe)]
    reader.page.close()
    assert found == []
