"""The widgets of the lessons as files of the site: found, drawn ahead for a grid of their controls, packed, and placed.

Without running the lesson: only what a widget's cell needs is executed, in this process. A cell that ends in a call
such as `viz.surface(dots)` may be a widget. What it needs are the statements before it that define the names it uses,
and the names these use, and so on. Nothing is measured: a widget that shows a measurement (`Panel.measured`) is made
from the one that the notebook keeps, and where there is none, the page has the notebook's picture.

A picture is cut into pieces: a figure into the entries of its traces and of its layout, HTML before every opening tag.
Pictures of one widget share most of their pieces, so each piece is stored once, and a picture is a list of numbers.
"""

import ast
import base64
import contextlib
import gzip
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from html import escape
from itertools import product
from math import prod
from multiprocessing import get_context
from pathlib import Path

import ipywidgets
import nbformat

from minispec.load.write import write_whole

from .. import viz
from ..build.builder import ROOT
from ..build.spoilers import uncovered
from ..labs import verifiers
from ..stored import PLOTLY
from ..viz.panel import PLOTLY_JS, Panel
from ..viz.residual import CSS, ESM
from .sources import files

HIDDEN = tuple(f"minispec_course/{room}/" for room in ("site", "check", "interview", "exercises", "build"))

# ---- finding them ----------------------------------------------------------------------------------------------------


@cache
def notebook_of(lesson: str) -> nbformat.NotebookNode:
    return nbformat.read(ROOT / f"notebooks/{lesson}.ipynb", as_version=4)


def widget_cells(lesson: str) -> dict[str, list[ast.stmt]]:
    """Id of a cell that may end in a widget → the statements to run, of which the last is that expression."""
    before: list[ast.stmt] = []
    found = {}
    for cell in notebook_of(lesson).cells:
        if cell.cell_type != "code":
            continue
        body = ast.parse(cell.source).body
        if body and shows_widget(body[-1]) and not is_stored_whole(uncovered(cell)):
            found[cell.id] = slice_for(body[-1], before + body[:-1])
        before += body
    return found


def shows_widget(node: ast.stmt) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func).startswith("viz.")


def is_stored_whole(cell: nbformat.NotebookNode) -> bool:
    """Whether the notebook keeps all there is: a diagram, a figure's data, or HTML. Nothing has to run for these."""
    kept = {kind for output in cell.outputs for kind in output.get("data", {})}
    return bool(kept & {PLOTLY, "image/svg+xml", "text/html"})


def slice_for(last: ast.stmt, before: list[ast.stmt]) -> list[ast.stmt]:
    """The statements among `before` that `last` depends on, in order, then `last`."""
    needed, kept = used(last), [last]
    for node in reversed(before):
        if made(node) & needed:
            kept.insert(0, node)
            needed |= used(node)
    return kept


def used(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def made(node: ast.stmt) -> set[str]:
    """The names that a statement defines, or changes as in `table[key] = …` and `runs.append(…)`."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    for one in ast.walk(node):
        if isinstance(one, ast.Subscript | ast.Attribute) and isinstance(one.ctx, ast.Store):
            names |= {inner.id for inner in ast.walk(one.value) if isinstance(inner, ast.Name)}
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
        names |= {call.func.value.id} if call.func.attr in ("append", "extend", "update", "add") else set()
    return names


def code_of(statements: list[ast.stmt]) -> str:
    return "\n".join(map(ast.unparse, statements))


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    here = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)


def run(statements: list[ast.stmt], known: dict | None = None) -> object:
    """The value of the last expression. `known`: names and values, kept from one cell of a lesson to the next."""
    names = {"__name__": "__lesson__"} if known is None else known
    done = names.setdefault("__done__", set())
    with inside(ROOT / "notebooks"), contextlib.redirect_stdout(io.StringIO()):
        for node in statements[:-1]:
            if (text := ast.unparse(node)) not in done:  # the slices of a lesson's cells overlap
                exec(compile(ast.Module([node], []), "<lesson>", "exec"), names)
                done.add(text)
        return eval(compile(ast.Expression(statements[-1].value), "<lesson>", "eval"), names)


def name_of(statements: list[ast.stmt]) -> str:
    """The function of viz that makes the widget."""
    return ast.unparse(statements[-1].value.func).removeprefix("viz.")


def panel_of(lesson: str, cell: str, known: dict | None = None) -> Panel | None:
    """The panel that a cell shows, if what it shows is one. `known`: as in `run`."""
    value = run(widget_cells(lesson)[cell], known)
    return value if isinstance(value, Panel) else None


def fingerprint(lesson: str, *more: object) -> str:
    """Changes when a widget's code or any file of the package changes, but for the site's own."""
    digest = hashlib.sha256(json.dumps(more).encode())
    for file in files():
        if not file.startswith(HIDDEN):
            digest.update((ROOT / file).read_bytes())
    for cell, statements in widget_cells(lesson).items():
        digest.update(f"{code_of(statements)}{measured(lesson, cell)}".encode())
    return digest.hexdigest()[:16]


# ---- a grid of their values ------------------------------------------------------------------------------------------

MOST = 900  # pictures of a widget
LARGEST = 400_000  # bytes of its file, compressed
STILL = {"weights_stream": ("batch", "step"), "memory_map": ("request",)}  # controls that stay where they are


@dataclass
class Knob:
    """A control as the page shows it: its values by their number."""

    name: str
    label: str
    kind: str  # "range", "menu" or "check"
    values: list
    shown: list[str]
    start: int
    play: int = 0  # milliseconds per step, if it can play
    live: bool = False  # computed in the page: one picture serves all values

    def for_page(self) -> dict:
        return {key: getattr(self, key) for key in ("name", "label", "kind", "shown", "start", "play", "live")}


def knobs(panel: Panel) -> list[Knob]:
    """The controls that `draw` is told about, with all their values."""
    found = []
    plays = [control for control in panel.controls.values() if isinstance(control, ipywidgets.Play)]
    for name, control in panel._read().items():
        label = getattr(control, "description", "") or name
        if isinstance(control, ipywidgets.Checkbox | ipywidgets.ToggleButton):
            found.append(Knob(name, label, "check", [False, True], ["off", "on"], int(control.value)))
        elif hasattr(control, "_options_full"):
            kind = "range" if isinstance(control, ipywidgets.SelectionSlider) else "menu"
            shown, values = map(list, zip(*control._options_full, strict=True))
            found.append(Knob(name, label, kind, values, list(map(str, shown)), control.index or 0))
        elif isinstance(control, ipywidgets.IntSlider | ipywidgets.FloatSlider):
            count = round((control.max - control.min) / control.step) + 1
            whole = isinstance(control, ipywidgets.IntSlider)
            values = [control.min + i * control.step for i in range(count)]
            values = values if whole else [round(value, 10) for value in values]
            shown = [f"{value:,}" if whole else f"{value:.2f}" for value in values]
            start = min(range(count), key=lambda i: abs(values[i] - control.value))
            found.append(Knob(name, label, "range", values, shown, start))
            for play in plays:  # it moves the slider over the same steps
                found[-1].play = play.interval if whole and (play.min, play.max) == (control.min, control.max) else 0
        else:
            found.append(Knob(name, label, "fixed", [control.value], [""], 0))
    return found


def thinned(found: Sequence[Knob], most: int) -> list[list[int]]:
    """Which values of each control the grid has: all, or, while these are too many, fewer of the longest slider."""
    keep = [[knob.start] if knob.live else list(range(len(knob.values))) for knob in found]
    while prod(map(len, keep)) > most:
        sliders = [i for i, knob in enumerate(found) if knob.kind == "range" and len(keep[i]) > 3]
        others = [i for i in range(len(keep)) if len(keep[i]) > 1]
        at = max(sliders or others, key=lambda i: (len(keep[i]), i))  # the first control tells most
        keep[at] = evenly(len(found[at].values), len(keep[at]) * 4 // 5, found[at].start)
    return keep


def evenly(count: int, kept: int, start: int) -> list[int]:
    """`kept` of `count` positions: the one to start from, and the first and the last as far as there is room."""
    chosen = {round(i * (count - 1) / (kept - 1)) for i in range(kept)} if kept > 1 else set()
    if start not in chosen:
        others = [i for i in chosen if i not in (0, count - 1)] or chosen
        chosen -= {min(others, key=lambda i: abs(i - start))} if others else set()
        chosen.add(start)
    return sorted(chosen)


def measured(lesson: str, cell: str) -> object:
    """What a cell measured when its notebook was built."""
    outputs = next(one.outputs for one in notebook_of(lesson).cells if one.id == cell)
    kept = (one.get("metadata", {}).get("minispec", {}) for one in outputs)
    return next((own["measured"] for own in kept if "measured" in own), None)


# ---- drawing them ahead: pieces --------------------------------------------------------------------------------------


class Pieces:
    """Every piece once, in the order of first use."""

    def __init__(self) -> None:
        self.at: dict[str, int] = {}

    def number(self, piece: object) -> int:
        return self.at.setdefault(json.dumps(piece, ensure_ascii=False, separators=(",", ":")), len(self.at))

    def cut(self, picture: str | dict, words: str) -> dict:
        if isinstance(picture, str):
            return {"h": [self.number(piece) for piece in re.split(r"(?=<(?!/))", picture)], "w": words}
        traces = [{key: self.number(value) for key, value in trace.items()} for trace in picture["data"]]
        return {"d": traces, "l": {key: self.number(value) for key, value in picture["layout"].items()}, "w": words}


def packed(pictures: Sequence[tuple[str | dict, str]]) -> str:
    """Drawings, or figures as plotly.js takes them, as text for a script: gzip in base64."""
    pieces = Pieces()
    cut = [pieces.cut(picture, words) for picture, words in pictures]
    text = '{"pool":[' + ",".join(pieces.at) + '],"pictures":' + json.dumps(cut, ensure_ascii=False) + "}"
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def draw(panel: Panel, found: Sequence[Knob], chosen: Sequence[int]) -> tuple[str, str]:
    drawn = panel.draw(**{knob.name: knob.values[i] for knob, i in zip(found, chosen, strict=True)})
    return drawn if isinstance(drawn, tuple) else (drawn, "")


def draw_all(panel: Panel, found: Sequence[Knob], grid: Iterable[Sequence[int]]) -> list[tuple[str, str]]:
    """Every picture of a grid. A control may allow what another's value excludes, such as the 20th node of a tree of
    twelve: there the notebook's widget moves the control back, and the page keeps the picture before it."""
    pictures: list[tuple[str, str]] = []
    for chosen in grid:
        try:
            pictures.append(draw(panel, found, chosen))
        except (IndexError, KeyError, ValueError):
            if not pictures:
                raise
            pictures.append(pictures[-1])
    return pictures


def exported(panel: Panel, live: Sequence[str] = (), still: Sequence[str] = (), most: int = MOST) -> dict:
    """All that a page needs of a widget: its controls, and its pictures in the order of the grid, packed."""
    found = knobs(panel)
    for knob in found:
        knob.live = knob.name in live
        if knob.name in still:
            knob.values, knob.shown, knob.start = [knob.values[knob.start]], [knob.shown[knob.start]], 0
    while True:
        keep = thinned(found, most)
        pictures = draw_all(panel, found, product(*keep))
        data = packed(pictures)
        if len(data) * 3 // 4 <= LARGEST or most < 8:
            break
        most //= 2
    for knob, kept in zip(found, keep, strict=True):
        if not knob.live:
            knob.start = kept.index(knob.start)
            knob.values, knob.shown = [knob.values[i] for i in kept], [knob.shown[i] for i in kept]
    at = 0
    for knob in found:
        at = at * (1 if knob.live else len(knob.values)) + (0 if knob.live else knob.start)
    picture, words = pictures[at]
    return {
        "knobs": [knob.for_page() for knob in found],
        "values": [knob.values if knob.live else None for knob in found],
        "pictures": len(pictures),
        "data": data,
        "html": picture,
        "height": 0,
        "words": words,
    }


# ---- all of a lesson -------------------------------------------------------------------------------------------------

COMPUTED = {  # widget → the controls that the page computes with; the grid has the others
    "surface": ("alpha", "c", "v", "cost")
}
MEASURES = ("surface", "control_room")  # a load is served in real time, so no page can have more than a picture of it
RESIDUAL = "residual_explorer"
VERIFIERS = (  # of labs/verifiers.py, those whose emitted distribution is one line
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
    files = {lesson: work / f"{lesson}.{fingerprint(lesson, MOST, STILL, COMPUTED)}.json" for lesson in lessons}
    made: Made = {lesson: json.loads(file.read_text("utf-8")) for lesson, file in files.items() if file.is_file()}
    made = {} if fresh else made
    missing = [lesson for lesson in lessons if lesson not in made and widget_cells(lesson)]
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
    cells = {cell: name_of(statements) for cell, statements in widget_cells(lesson).items()}
    found = {cell: {"name": name} for cell, name in cells.items() if name == RESIDUAL}
    failed = {}
    known: dict = {"__name__": "__lesson__"}
    for cell, name in cells.items():
        if cell in found:
            continue
        try:
            if name in MEASURES:
                panel = getattr(viz, name)(kept) if (kept := measured(lesson, cell)) else None
            else:
                panel = panel_of(lesson, cell, known)
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
    made = exported(panel, live, STILL.get(name, ()))
    return made | ({"live": name} if live else {})


# ---- what the pages hold ---------------------------------------------------------------------------------------------


def stand_in(lesson: str, cell: str, made: dict, still: str = "") -> str:
    """The HTML of a widget before its script runs: controls will come, the first picture and its sentence are there."""
    key = f"{lesson.split('_')[0]}-{cell}"
    if made["name"] == RESIDUAL:
        return residual()
    facts = {"knobs": made["knobs"], "values": made["values"], "live": made.get("live")}
    kind, words = "html" if made["html"] else "figure", made["words"]
    height = f' style="min-height:{made["height"]}px"' if made["height"] else ""
    label = escape(words or made.get("alt") or "a picture")
    return (
        f'<div class="ms-widget" data-key="{key}" data-kind="{kind}">{facts_of(facts)}<div class="ms-controls"></div>'
        f'<div class="ms-picture" tabindex="0" role="img" aria-label="{label}"{height}>{made["html"] or still}'
        f'</div><p class="ms-words" role="status" aria-live="polite">{escape(words)}</p>'
        + ('<p class="ms-note">Computed in the page.</p>' if made.get("live") else "")
        + "</div>"
    )


def facts_of(facts: dict) -> str:
    text = json.dumps(facts, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    return f'<script type="application/json">{text}</script>'


def residual() -> str:
    presets = {name: {"p": p, "q": q} for name, (p, q) in verifiers.PRESETS.items()}
    facts = {"presets": presets, "labels": list("abcde"), "verifiers": VERIFIERS}
    return (
        f'<div class="ms-widget ms-residual">{facts_of(facts)}<div class="ms-controls"></div>'
        '<div class="ms-picture" tabindex="0" role="img" aria-label="p, q and the residual"></div>'
        '<p class="ms-words" role="status" aria-live="polite"></p><p class="ms-note">Computed in the page, for one '
        "position and six verifiers; the notebook has all of them, and samples cycles.</p></div>"
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
    write_pictures(found, static)
    (static / "plotly.min.js").write_bytes(PLOTLY_JS.read_bytes())
    inner = ESM.replace("export default { render };", "return { render };")
    style = f'document.head.append(Object.assign(document.createElement("style"), {{textContent: {json.dumps(CSS)}}}));'
    (static / "editor.js").write_text(
        f"{style}\nwindow.MinispecEditor = (() => {{\n{inner}\n}})();\n", encoding="utf-8"
    )
