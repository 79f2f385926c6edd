"""A picture of every widget, stored with the notebook: what a code host, a PDF and a reader without a kernel see.

A widget lives in its kernel. While a lesson is built, `Panel` adds to its output what it draws, under the type PICTURE;
here Chromium draws it with the script that draws it in JupyterLab (viz/picture_view.js), and the PNG takes the widget's
place. PNG because every reader shows it: JupyterLab an SVG only once the notebook is trusted, LaTeX none at all. It has
its own background, so it reads well on a dark page too, and its alternative text is the sentence the panel speaks.

The picture remembers what it was drawn from. As long as that is the same, no build draws it anew; without Chromium the
stored one stays.
"""

import base64
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import plotly
from nbformat import NotebookNode, from_dict

from ..stored import PICTURE, PLOTLY, WIDGET, stored_pictures
from ..viz.panel import CSS, ESM, PLOTLY_JS
from ..viz.style import GREY, TEXT

WIDTH, SCALE = 900, 1.5
# JupyterLab's light theme, as far as our pictures ask for it.
PAGE = """<!doctype html><meta charset="utf-8"><style>
:root { --jp-ui-font-color0: #000; --jp-ui-font-color1: #212121; --jp-ui-font-color2: #5a5a5a;
  --jp-layout-color0: #fff; --jp-border-color1: #bdbdbd; --jp-border-color2: #e0e0e0; --jp-brand-color1: #1565c0;
  --jp-ui-font-family: "DejaVu Sans", "Helvetica Neue", Arial, sans-serif; --jp-code-font-family: "DejaVu Sans Mono",
  Menlo, Consolas, monospace }
body { margin: 0; background: #fff; font: 13px/1.3 var(--jp-ui-font-family) }
#card { box-sizing: border-box; padding: 12px 16px; width: WIDTHpx }
</style><style>CSS</style><div id="card"></div>""".replace("WIDTH", str(WIDTH)).replace("CSS", CSS)
DRAW = """async ([panelScript, figureScript, state]) => {
    const card = document.getElementById("card");
    const address = script => URL.createObjectURL(new Blob([script], {type: "text/javascript"}));
    const load = async script => (await import(address(script))).default;
    const view = await load(panelScript);
    globalThis.minispecEnd?.();
    card.replaceChildren();
    globalThis.minispecEnd = view.render({el: card, model: {get: name => state[name], on() {}, send() {}}});
    while (card.dataset.drawn !== String(state.drawn)) await new Promise(requestAnimationFrame);
    if (state.figure.data) await (await load(figureScript))(card.querySelector(".picture"), state.figure, state.greys);
    await document.fonts.ready;
}"""
FIGURE_VIEW = (Path(__file__).parent / "figure_view.js").read_text(encoding="utf-8")
LIBRARY = """source => {
    const module = {exports: {}};
    new Function("module", source)(module);
    globalThis.minispecPlotly = module.exports;
}"""


def find_chromium() -> str | None:
    """The path of a Chromium that playwright can drive, if both are here."""
    if find_spec("playwright") is None:
        return None
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


Draw = Callable[[dict], tuple[bytes, int, int]]  # what to draw → a PNG, its width and height on the page


@contextmanager
def painter():
    """A function that makes a PNG, or None where there is no Chromium."""
    if (chromium := find_chromium()) is None:
        yield None
        return
    from playwright.sync_api import sync_playwright

    sandbox = not hasattr(os, "geteuid") or os.geteuid() != 0  # Chromium has none for root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--disable-gpu"], chromium_sandbox=sandbox)
        page = browser.new_page(viewport={"width": WIDTH, "height": 700}, device_scale_factor=SCALE)
        page.set_content(PAGE)
        page.evaluate(LIBRARY, PLOTLY_JS.read_text(encoding="utf-8"))
        number = 0

        def draw(drawn: dict) -> tuple[bytes, int, int]:
            nonlocal number
            number += 1
            page.evaluate(
                DRAW,
                [ESM, FIGURE_VIEW, {**drawn, "greys": [GREY, TEXT], "longest": "", "drawn": number, "busy": False}],
            )
            card = page.locator("#card")
            box = card.bounding_box()
            png = card.screenshot(animations="disabled", scale="css" if scale(drawn) == 1 else "device")
            return png, round(box["width"]), round(box["height"])

        yield draw
        browser.close()


def scale(drawn: dict) -> float:
    """Until the pointer enters a plotly figure, JupyterLab shows its picture pixel by pixel: no finer than it fits."""
    return SCALE if drawn["html"] else 1


def drawn_from(drawn: dict) -> str:
    """A fingerprint of everything that a picture depends on, less the browser."""
    text = json.dumps([drawn, ESM, FIGURE_VIEW, PAGE, scale(drawn), plotly.__version__], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def store_pictures(notebook: NotebookNode, before: NotebookNode | None = None, draw: Draw | None = None) -> list[str]:
    """Put pictures where widgets are, and beside plotly figures. `before` is the notebook as it was last stored.

    Returns the sources of cells whose picture is missing, or not that of this run, because nothing can draw here.
    """
    known = {kept["metadata"]["minispec"]["drawn_from"]: kept for _, kept in stored_pictures(before)}
    places = {place: kept for place, kept in stored_pictures(before)}
    behind = []
    for cell in notebook.cells:
        for number, output in enumerate(cell.get("outputs", ())):
            drawn = what_it_draws(output)
            if drawn is None:
                continue
            mark = drawn_from(drawn)
            if mark in known:
                stored = known[mark]
            elif draw is not None:
                stored = as_output(drawn, mark, *draw(drawn))
            else:
                behind.append(cell.source)
                words = {"data": {"text/plain": drawn["words"]}, "metadata": {}}
                stored = places.get((cell.id, cell.source, number)) or words
            kept = {kind: output.data[kind] for kind in (PLOTLY,) if kind in output.data}  # JupyterLab shows it itself
            words = {"text/plain"} & output.data.keys()  # where the live output has some: nbval compares kinds
            kept |= {kind: shown for kind, shown in stored["data"].items() if kind in {"image/png", *words}}
            output.data = kept
            output.metadata = from_dict(stored["metadata"])
        # What is still a view is a prediction or a drill, which is nothing without its kernel.
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
    return behind


def what_it_draws(output: dict) -> dict | None:
    """What an output would have us draw: {"figure", "html", "words"}. None if it is no picture of ours."""
    data = output.get("data", {})
    if PICTURE in data:
        return json.loads(json.dumps(data[PICTURE]))
    if PLOTLY in data and WIDGET not in data:
        figure = {key: data[PLOTLY][key] for key in ("data", "layout")}
        return json.loads(json.dumps({"figure": figure, "html": "", "words": figure_words(figure)}))
    return None


def figure_words(figure: dict) -> str:
    """A figure's own sentence (`meta`); without one, its title and its axes."""
    layout = figure["layout"]
    if "meta" in layout:
        return layout["meta"]
    titles = [layout.get(name, {}).get("title", {}).get("text", "") for name in ("yaxis", "xaxis")]
    title = layout.get("title", {}).get("text", "") or "A chart"
    return f"{title}: {' over '.join(filter(None, titles))}." if any(titles) else f"{title}."


def as_output(drawn: dict, mark: str, png: bytes, width: int, height: int) -> dict:
    size, own = {"width": width, "height": height}, {"drawn_from": mark}
    own |= {"measured": drawn["measured"]} if "measured" in drawn else {}
    return {
        "data": {"image/png": base64.b64encode(png).decode(), "text/plain": drawn["words"]},
        "metadata": {"image/png": {"alt": drawn["words"], **size}, "minispec": own},
    }
