"""Lay out what Sphinx reads: stored notebooks, docs and questions, with links that work there."""

import ast
import base64
import re
import shutil
from html import escape
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from ..build.builder import ROOT
from ..build.cells import own_metadata
from ..build.spoilers import is_spoiler, uncovered
from ..interview import cards, load
from ..stored import PLOTLY
from . import content, sets
from . import widgets as made_ahead
from .sources import exercises, lessons, point_at_lines

PICTURES = ("image/svg+xml", "image/png")
STATIC, OWN = (Path(__file__).with_name(name) for name in ("static", "pages"))
PAGES = tuple(
    "syllabus practice glossary cheatsheet design_sheet references package architecture audit benchmarks gpu "
    "bring_your_own handover serving why anywhere teaching troubleshooting".split()
)
SHORT = ("syllabus", "glossary")  # of a small build
MERMAID = re.compile(r"```mermaid\n(.*?)```", re.DOTALL)
NOTHING_RUNS = """> **How to read this.** Nothing runs on this page: it shows what the cells gave when it was built, and
> its widgets move.{asks}{writes} To run and change the code, [open the lesson on your machine](../run.md)."""
ASKS = " Where it asks for a number, commit your guess: the answer below opens then."
PRACTISE = """> **How to use this page.** Where there is a field, work out its cases by hand. Write the function on
> paper before you open our answer, or write it [on your machine](../run.md), where a check names your mistake."""
# What makes sense where cells run: whole sentences, and the one that says how to make the page that is here.
IN_THE_LAB = re.compile(
    r"(?:^|(?<=[.:)?][ \n]))(?=[A-Z(])[^.?!|#]*"
    r"\b(?:first cell fails|run its cell|[Rr]un the cell (?:twice|again)|check says)\b"
    r"[^.?!|]*(?:\.[\w./][^.?!|]*)*[.?!]\)?[ \n]?",
    re.MULTILINE,
)
MADE = "`make site` builds a page, `site/live.html`, on which", 'there is <a href="../live.html">a page</a> on which'
WRITES = " Where a function's body is `...`, say how you would write it before you open our answer below it."


def stage(folder: Path, widgets: dict[str, dict[str, dict]], names: tuple[str, ...] = ()) -> None:
    """Write everything into a folder. `widgets`: lesson → id of a cell → what `export` made of it.

    `names`: only these lessons and their exercises, without solutions and reference (for tests).
    """
    shutil.rmtree(folder, ignore_errors=True)
    chosen = names or lessons()
    for name in chosen:
        write_notebook("notebooks", name, folder, widgets.get(name, {}))
    sets = () if names else exercises()
    for name in [name for name in exercises() if name in chosen] if names else sets:
        write_notebook("exercises", name, folder)
    for name in sets:
        write_notebook("solutions", name, folder)
    for page in PAGES if not names else SHORT:
        text = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
        write(folder / f"docs/{page}.md", page_text(text, page))
    for beside in ("images", "results"):
        shutil.copytree(ROOT / "docs" / beside, folder / "docs" / beside)
    for name, text in content.question_pages(1 if names else None).items():
        write(folder / "interview" / f"{name}.md", text)
    shutil.copy(OWN / "run.md", folder)
    write(folder / "index.md", front_page(chosen, sets))
    shutil.copytree(STATIC, folder / "_static")
    if not names:
        write(folder / "_static/cards.html", cards.page(load()))
    made_ahead.write_files(widgets, folder / "_static")
    for made, place in (("_static-figures/widgets", "widgets"), ("_pictures", "pictures")):
        if (folder / made).is_dir():
            shutil.copytree(folder / made, folder / "_static" / place, dirs_exist_ok=True)
            shutil.rmtree(folder / made)
    shutil.rmtree(folder / "_static-figures", ignore_errors=True)


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


# ---- notebooks -------------------------------------------------------------------------------------------------------


def write_notebook(kind: str, name: str, folder: Path, widgets: dict[str, dict] | None = None) -> None:
    notebook = sets.read(name) if kind == "exercises" else nbformat.read(ROOT / kind / f"{name}.ipynb", as_version=4)
    notebook.cells = [cell for cell in notebook.cells if own_metadata(cell).get("role") != "hint"]
    asked = any("viz.predict(" in cell.source for cell in notebook.cells if cell.cell_type == "code")
    written = [cell for cell in notebook.cells if own_metadata(cell).get("role") == "answer"]
    for cell in written if kind == "notebooks" else ():
        cell.outputs = []  # that it is not written yet goes without saying
    note = PRACTISE if kind == "exercises" else NOTHING_RUNS.format(asks=ASKS * asked, writes=WRITES * bool(written))
    if kind != "solutions":
        notebook.cells = [cell for cell in notebook.cells if not cell.source.startswith("> **How to read this.**")]
        notebook.cells.insert(1, nbformat.v4.new_markdown_cell(note))
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = prose(cell.source)
            if kind == "solutions":
                cell.source = re.sub(r"\A# Exercises", "# Solutions", cell.source)
    notebook.cells = [shown(cell, name, widgets or {}, folder) for cell in notebook.cells]
    if kind == "notebooks":
        place_predictions(notebook, name)
    file = folder / kind / f"{name}.ipynb"
    file.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, file)


def prose(text: str) -> str:
    text = IN_THE_LAB.sub("", point_at_lines(text)).replace(*MADE)
    return text.replace("](../README.md#start)", "](../run.md)").replace("](../README.md", "](../index.md")


def shown(cell: NotebookNode, lesson: str, widgets: dict[str, dict], folder: Path) -> NotebookNode:
    """A cell as the page shows it: covered answers folded away, the stand-in of its widget as its output."""
    if cell.cell_type != "code":
        return cell
    if is_spoiler(cell):
        cell = uncovered(cell)
        cell.metadata["tags"] = [*cell.metadata.get("tags", []), "hide-output"]
    for output in cell.outputs:
        if PLOTLY in output.get("data", {}) and cell.id not in widgets:
            widgets = widgets | {cell.id: figure(lesson, cell.id, output, folder)}
    if cell.id in widgets:
        kept = [output for output in cell.outputs if output.output_type == "stream"]
        html = made_ahead.stand_in(lesson, cell.id, widgets[cell.id], still(cell, lesson, folder))
        cell.outputs = [*kept, html_output(html)]
    elif any(kind in output.get("data", {}) for output in cell.outputs for kind in PICTURES):
        cell.outputs = [drawn(output, cell, lesson, folder) for output in cell.outputs]
    cell.metadata.pop("minispec", None)
    return cell


def figure(lesson: str, cell: str, output: NotebookNode, folder: Path) -> dict:
    """A figure that the notebook keeps as data, as a widget without controls. Its axes say what the words would."""
    data, alt = output.data, output.metadata.get("image/png", {}).get("alt", "")
    made = dict(name="figure", knobs=[], values=[], pictures=1, html="", words="", alt=alt)
    made |= dict(data=made_ahead.packed([(data[PLOTLY], "")]), height=data[PLOTLY]["layout"].get("height", 400))
    made_ahead.write_pictures({lesson: {cell: made}}, folder / "_static-figures")
    return made


def still(cell: NotebookNode, lesson: str, folder: Path) -> str:
    """The picture that the notebook keeps for those who cannot run it, if it does."""
    return next((image(one, cell, lesson, folder) for one in cell.outputs if "image/png" in one.get("data", {})), "")


def image(output: NotebookNode, cell: NotebookNode, lesson: str, folder: Path) -> str:
    """A stored PNG as a file of the site, in its own size, with its sentence as the alternative."""
    name = f"{lesson.split('_')[0]}-{cell.id}.png"
    (folder / "_pictures").mkdir(parents=True, exist_ok=True)
    (folder / "_pictures" / name).write_bytes(base64.b64decode(output.data["image/png"]))
    size = output.get("metadata", {}).get("image/png", {})
    shape = "".join(f' {side}="{size[side]}"' for side in ("width", "height") if side in size)
    words = escape(size.get("alt") or output.data.get("text/plain", ""))
    return f'<img src="../_static/pictures/{name}" alt="{words}"{shape} loading="lazy">'


def drawn(output: NotebookNode, cell: NotebookNode, lesson: str, folder: Path) -> NotebookNode:
    """A diagram becomes a part of the page, and so takes the colours of its theme; a PNG brings its own background."""
    data = output.get("data", {})
    if "image/svg+xml" in data:
        return html_output(f'<div class="ms-drawing" tabindex="0">{data["image/svg+xml"]}</div>')
    if "image/png" in data:
        return html_output(f'<div class="ms-drawing">{image(output, cell, lesson, folder)}</div>')
    return output


def html_output(html: str) -> NotebookNode:
    return nbformat.v4.new_output("display_data", {"text/html": html})


# ---- predictions: a field for the guess; the answer opens once it is committed, or skipped ---------------------------


def place_predictions(notebook: NotebookNode, lesson: str) -> None:
    """Give every cell that asks a form, and mark the cells that answer it."""
    asked: dict[str, str] = {}  # variable → the form's id
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        for name, question, unit in questions(cell.source):
            asked[name] = f"{lesson.split('_')[0]}-{name}"
            cell.outputs = [*cell.outputs, form(asked[name], question, unit)]
        for name in re.findall(r"(\w+)\.reveal\(", cell.source):
            if name in asked:
                cell.outputs = [*cell.outputs, mark(asked[name])]


def questions(source: str) -> list[tuple[str, str, str]]:
    """(variable, question, unit) for every `name = viz.predict(…)`; a question that is computed is shown as typed."""
    found = []
    known: dict[str, str] = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        name, value = node.targets[0].id, node.value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            known[name] = value.value
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "viz.predict":
            texts = [text_of(argument, known) for argument in value.args]
            found.append((name, texts[0], texts[1] if len(texts) > 1 else ""))
    return found


def text_of(node: ast.expr, known: dict[str, str]) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name):
        return known.get(node.id, node.id)
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "the model" for part in node.values]
        return re.sub(r"\s+", " ", "".join(map(str, parts)))
    return ast.unparse(node)


def form(key: str, question: str, unit: str) -> NotebookNode:
    """The form works with the script; without it the answers below can be opened as well."""
    html = (
        f'<form class="ms-predict" data-key="{escape(key)}" data-unit="{escape(unit)}"><p id="q-{escape(key)}">'
        f"<strong>{escape(question)}</strong></p><div><label>my guess <input type='text' inputmode='decimal' size='9' "
        f'autocomplete="off" aria-describedby="q-{escape(key)}"></label> <span>{escape(unit)}</span> '
        '<button type="submit">commit</button> <button type="button" class="ms-skip">skip</button></div>'
        '<p role="status" aria-live="polite"></p></form>'
    )
    return nbformat.v4.new_output("display_data", {"text/html": html})


def mark(key: str) -> NotebookNode:
    html = f'<p class="ms-verdict" data-key="{escape(key)}" role="status" aria-live="polite"></p>'
    return nbformat.v4.new_output("display_data", {"text/html": html})


# ---- pages -----------------------------------------------------------------------------------------------------------


def page_text(text: str, page: str) -> str:
    """A page of docs/: links to lines, anchors for the glossary's words, and no mermaid, which needs the network."""
    text = prose(text)
    if page == "glossary":
        text = content.with_places(text)
    if page == "syllabus":  # its table says the same
        text = MERMAID.sub("", text)
    return MERMAID.sub(lambda block: f"```text\n{block[1]}```", text)


def front_page(chosen: tuple[str, ...], sets: tuple[str, ...]) -> str:
    """A cycle that plays, what the course is, its lessons, and the contents that the sidebar shows."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    opening = readme.split("\n\n")[1]

    def contents(caption: str, entries: list[str], *options: str) -> str:
        head = ["```{toctree}", f":caption: {caption}", ":maxdepth: 1", *options, ""]
        return "\n".join([*head, *entries, "```", ""]) if entries else ""

    trees = {
        "Exercises": [f"exercises/{name}" for name in sets],
        "Interviews": ["interview/index"],
        "Pages": ["run", *(f"docs/{page}" for page in (PAGES if sets else SHORT))],
        "Solutions": [f"solutions/{name}" for name in sets],
    }
    shown = contents("Lessons", [f"notebooks/{name}" for name in chosen])
    film = (ROOT / "docs/images/course_loop.svg").read_text(encoding="utf-8")
    page = (OWN / "index.md").read_text(encoding="utf-8")
    page = page.format(opening=opening, first=chosen[0], lessons=shown, film=film)
    return page + "\n".join(contents(caption, entries, ":hidden:") for caption, entries in trees.items())
