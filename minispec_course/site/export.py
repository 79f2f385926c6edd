"""The widgets of the lessons as files of the site, and the HTML that stands for each in its page."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from html import escape
from multiprocessing import get_context
from pathlib import Path

from minispec import theory
from minispec.load.write import write_whole

from ..labs import places, presets
from ..viz.panel import Panel
from ..viz.residual import CSS, ESM
from ..viz.roofline import PROMPT
from . import grid, panels

COMPUTED = {  # widget → the controls that the page computes with; the grid has the others
    "surface": ("alpha", "c", "v", "cost"),
    "roofline": ("tokens", "batch", "context", "model", "stored"),
}
SERVES = "control_room"  # each of its pictures serves a load in real time, and its sentence recalls the one before
RESIDUAL = "residual_explorer"
VERIFIERS = (  # of wrong_verifiers.VERIFIERS, those whose emitted distribution is one line
    "right: the real verifier",
    "wrong: replace from p",
    "wrong: replace from q",
    "wrong: argmax of the residual, no sample",
    "wrong: accept always",
    "wrong: accept if p(d) ≥ q(d)",
)


Made = dict[str, dict[str, dict]]  # lesson → id of a cell → its widget


def export(
    lessons: Sequence[str], work: Path, fresh: bool = False, jobs: int = 2, say: Callable[[str], object] = print
) -> tuple[Made, dict[str, str]]:
    """Every widget of these lessons, and what could not be made: "lesson, viz.name" → why.

    What was computed before, from the same code, is read from `work`. One widget that fails stops no other; its page
    keeps the picture of the notebook.
    """
    work.mkdir(parents=True, exist_ok=True)
    files = {lesson: work / f"{lesson}.{panels.fingerprint(lesson, grid.BUDGETS, COMPUTED)}.json" for lesson in lessons}
    made: Made = {lesson: json.loads(file.read_text("utf-8")) for lesson, file in files.items() if file.is_file()}
    made = {} if fresh else made
    missing = [lesson for lesson in lessons if lesson not in made and panels.widget_cells(lesson)]
    failed: dict[str, str] = {}
    if missing:
        with ProcessPoolExecutor(min(jobs, len(missing)), get_context("spawn")) as pool:
            tasks = {pool.submit(compute, lesson, files[lesson]): lesson for lesson in missing}
            for done, task in enumerate(as_completed(tasks), start=1):
                lesson = tasks[task]
                try:
                    made[lesson], wrong = task.result()
                except Exception as error:  # a process that was killed takes the others with it: each is named
                    wrong = {lesson: f"{type(error).__name__}: {error}"}
                failed |= wrong
                say(f"widgets of {lesson} ({done} of {len(missing)})" + (": failed" if wrong else ""))
    return {lesson: made[lesson] for lesson in lessons if lesson in made}, failed


def compute(lesson: str, file: Path) -> tuple[dict[str, dict], dict[str, str]]:
    """Draw the pictures of a lesson's widgets and keep them; and what went wrong, in which case nothing is kept."""
    import torch

    torch.set_num_threads(1)
    # The residual explorer is computed in the page alone: its stand-in needs no panel.
    cells = {cell: panels.name_of(statements) for cell, statements in panels.widget_cells(lesson).items()}
    found = {cell: {"name": name} for cell, name in cells.items() if name == RESIDUAL}
    failed = {}
    known: dict = {"__name__": "__lesson__"}
    for cell, name in cells.items():
        if cell in found:
            continue
        try:
            panel = panels.panel(lesson, cell, known)
            if panel is not None:
                found[cell] = {"name": name} | widget(panel, name)
        except Exception as error:
            failed[f"{lesson}, viz.{name}"] = f"{type(error).__name__}: {error}"
    if not failed:
        for old in file.parent.glob(f"{lesson}.*.json"):
            old.unlink()
        write_whole(file, json.dumps(found, ensure_ascii=False))
    return found, failed


def widget(panel: Panel, name: str) -> dict:
    live = COMPUTED.get(name, ())
    if name == SERVES:
        before, draw = inspect.getclosurevars(panel.draw).nonlocals["before"], panel.draw
        panel.draw = lambda **values: before.clear() or draw(**values)
    made = grid.exported(panel, live, 8 if name == SERVES else None)
    if live:
        made |= {"live": name, "meta": machines(panel) if name == "roofline" else {}}
    return made


def machines(panel: Panel) -> dict:
    """What the page's formulas need to know of machines and models."""
    hardware = inspect.getclosurevars(panel.draw).nonlocals["machines"]  # with the machine of the lesson's own passes
    models = {
        name: {
            "weights": presets.weights_read(shape),
            "width": shape.num_layers * shape.num_heads * shape.head_dim,
            "cached": theory.kv_bytes_per_token(shape.num_layers, shape.num_kv_heads, shape.head_dim, 1),
        }
        for name, shape in presets.SHAPES.items()
    }
    return {
        "machines": [{"flops": one.flops, "bandwidth": one.bandwidth} for one in hardware],
        "models": models,
        "stored": {f"{size:g}": name for name, size in presets.STORED.items()},
        "prompt": PROMPT,
    }


# ---------------------------------------------------------------- what the pages hold


def stand_in(lesson: str, cell: str, made: dict, still: str = "") -> str:
    """The HTML of a widget before its script runs: controls will come, the first picture and its sentence are there."""
    key = f"{lesson.split('_')[0]}-{cell}"
    if made["name"] == RESIDUAL:
        return residual()
    facts = {"knobs": made["knobs"], "values": made["values"], "live": made.get("live"), "meta": made.get("meta")}
    kind, words = "html" if made["html"] else "figure", made["words"]
    height = f' style="min-height:{made["height"]}px"' if made["height"] else ""
    count = made["pictures"]
    note = "Computed in the page." if made.get("live") else f"One of {count} pictures that were computed ahead."
    label = escape(words or made.get("alt") or "a picture")
    return (
        f'<div class="ms-widget" data-key="{key}" data-kind="{kind}">{facts_of(facts)}<div class="ms-controls"></div>'
        f'<div class="ms-picture" tabindex="0" role="img" aria-label="{label}"{height}>{made["html"] or still}'
        f'</div><p class="ms-words" role="status" aria-live="polite">{escape(words)}</p>'
        + (f'<p class="ms-note">{note}</p>' if count > 1 or made.get("live") else "")
        + "</div>"
    )


def facts_of(facts: dict) -> str:
    text = json.dumps(facts, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    return f'<script type="application/json">{text}</script>'


def residual() -> str:
    presets = {name: {"p": p, "q": q} for name, (p, q) in places.PRESETS.items()}
    facts = {"presets": presets, "labels": list("abcde"), "verifiers": VERIFIERS}
    return (
        f'<div class="ms-widget ms-residual">{facts_of(facts)}<div class="ms-controls"></div>'
        '<div class="ms-picture" tabindex="0" role="img" aria-label="p, q and the residual"></div>'
        '<p class="ms-words" role="status" aria-live="polite"></p><p class="ms-note">Computed in the page, for one '
        "position and six verifiers; the notebook has all of them, samples cycles, and has two real models.</p></div>"
    )


def write_pictures(found: dict[str, dict[str, dict]], static: Path) -> None:
    """The pictures as scripts, since a page of a folder may load those."""
    folder = static / "widgets"
    folder.mkdir(parents=True, exist_ok=True)
    for lesson, cells in found.items():
        for cell, made in cells.items():
            if "data" in made:
                key = f"{lesson.split('_')[0]}-{cell}"
                (folder / f"{key}.js").write_text(f'minispecData("{key}","{made["data"]}")\n', encoding="utf-8")


def write_files(found: dict[str, dict[str, dict]], static: Path) -> None:
    """The pictures, plotly once for all pages, and the editor of the residual explorer, which is the notebook's own."""
    import plotly

    write_pictures(found, static)
    script = Path(plotly.__file__).parent / "package_data/plotly.min.js"
    (static / "plotly.min.js").write_bytes(script.read_bytes())
    inner = ESM.replace("export default { render };", "return { render };")
    style = f'document.head.append(Object.assign(document.createElement("style"), {{textContent: {json.dumps(CSS)}}}));'
    (static / "editor.js").write_text(
        f"{style}\nwindow.MinispecEditor = (() => {{\n{inner}\n}})();\n", encoding="utf-8"
    )
