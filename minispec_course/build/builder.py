"""Build the course's notebooks from their sources.

A lesson is written as a Python file in jupytext's percent format, where it reads and diffs like code, and is published
as an executed notebook. A set of exercises is written the same way and published twice: with stubs to fill in and no
outputs, and solved and executed (see cells.py). The way is one-way: source → notebook. The same source gives the same
notebook, whoever builds it and where: cell ids come from the text of the cells, and nothing of the machine is kept (no
time, no path, no version).
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from minispec.load.write import write_whole

from ..stored import LAB, WANTED
from . import cells as exercise_cells
from .spoilers import cover, is_spoiler, uncovered, without_outputs

ROOT = Path(__file__).resolve().parents[2]  # the clone this package is installed from
# Places that only the machine that built a notebook has. (A home of "/" would be found in every link.)
PLACES = [str(place) for place in (ROOT, Path.home(), sys.prefix) if len(str(place)) > 1]
MACHINE_PATHS = re.compile("|".join([*map(re.escape, PLACES), r"/tmp/\w"]))


PYTHON = {  # the metadata of a notebook that Jupyter opens without a question
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}


# Sources, the folder of notebooks made from them, and what they are; an exercise has stubs and is never run.
PRODUCTS = (
    ("minispec_course/lessons/[!_]*.py", "notebooks", "lesson"),
    ("minispec_course/exercises/set_*/page.py", "exercises", "exercise"),
    ("minispec_course/exercises/set_*/page.py", "solutions", "solution"),
)
ATTEMPT = re.compile(r"\.attempt-\d+$")  # what a learner made of an exercise, kept beside it: 06_name.attempt-1.ipynb
HOW_TO_READ = """> **How to read this.** Run the cells from the top, one by one, with **Shift + Enter**. Where a lesson
> asks for a number, type your guess and press *commit* before you run on: the cells that answer are stored without
> their output. Where a function's body is `...`, write it and run the cell. It is checked on the spot, and the cells
> after it use yours once it is right. Until then they use ours, so you can always run on."""


@dataclass(frozen=True)
class Job:
    """One notebook to be built."""

    source: Path
    target: Path
    label: str  # the source's path inside the repository, as it is kept in the notebook
    kind: str = "lesson"

    @property
    def name(self) -> str:
        return name_of(self.source)


def name_of(source: Path) -> str:
    """The notebook that a source makes: lessons/06_name.py and exercises/set_06_name/page.py both make 06_name."""
    return source.parent.name.removeprefix("set_") if source.name == "page.py" else source.stem


def jobs(names: Sequence[str] = (), root: Path = ROOT) -> list[Job]:
    """The notebooks to build: all of them, or those with these names ("00_start_here", or just "00")."""
    found = [
        Job(source, root / notebooks / f"{name_of(source)}.ipynb", source.relative_to(root).as_posix(), kind)
        for sources, notebooks, kind in PRODUCTS
        for source in sorted(root.glob(sources))
    ]
    if not found:
        raise ValueError(f"root={str(root)!r} has no sources of notebooks: build from a clone of the repository")
    chosen = [job for job in found if not names or any(job.name == n or job.name.split("_")[0] == n for n in names)]
    for name in names:
        if not any(name in (job.name, job.name.split("_")[0]) for job in chosen):
            known = ", ".join(dict.fromkeys(job.name for job in found))
            raise ValueError(f"name={name!r} is neither a lesson nor a set of exercises; there are {known}")
    return chosen


def compose(job: Job, whole: bool = False) -> NotebookNode:
    """The notebook of a source, before it is run: a function of the text. whole: a set with what lessons ask for."""
    text = job.source.read_text(encoding="utf-8")
    origin = {"source": job.label, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    if job.kind == "lesson":
        notebook = jupytext.reads(text, fmt="py:percent")
    else:
        notebook, asked = exercise_cells.read_set(job.source, whole)
        origin |= {"in_lessons": asked} if asked and not whole else {}
    notebook.metadata = nbformat.from_dict({**PYTHON, "minispec": origin})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    if job.kind == "lesson":
        if job.name == "00_start_here":
            notebook.cells.insert(1, nbformat.v4.new_markdown_cell(HOW_TO_READ))
        exercise_cells.fold(notebook)
    else:
        exercise_cells.dress(notebook, solved=job.kind == "solution")
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        if "role" in (own := cell.metadata.get("minispec", {})):
            cell.id = exercise_cells.cell_id(own["exercise"], own["role"])
            continue
        digest = hashlib.sha256(f"{job.name}\n{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
        seen[digest] = seen.get(digest, 0) + 1  # twins are told apart by their order
        cell.id = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
    return notebook


def execute(notebook: NotebookNode, job: Job, timeout: int = 300) -> None:
    """Run a notebook from top to bottom, in its own folder, and keep what it printed and drew."""
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=timeout,
        resources={"metadata": {"path": str(job.target.parent)}},
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
    )
    metadata = notebook.metadata.copy()
    try:
        # Draw for readers without a kernel, wait for nobody, and know no learner's progress.
        client.execute(env={**os.environ, WANTED: "1", LAB: "", "MINISPEC_PROGRESS": "off"})
    except CellExecutionError as error:
        raise ValueError(f"{job.label} does not run:\n{error}") from None
    notebook.metadata = metadata  # the kernel adds its own version
    for cell in code_cells(notebook):
        if found := MACHINE_PATHS.search(json.dumps(cell.outputs)):
            raise ValueError(f"{job.label}: this cell shows {found[0]!r}, a path of this machine:\n{cell.source}")


def build(names: Sequence[str] = (), root: Path = ROOT) -> Iterator[Job]:
    """Build notebooks, yielding each as it is done. A lesson that fails leaves its notebook as it was."""
    for job in jobs(names, root):
        job.target.parent.mkdir(parents=True, exist_ok=True)
        notebook = compose(job)
        if job.kind != "exercise":
            execute(notebook, job)
            illustrate(notebook, job)
            cover(notebook)
        write_whole(job.target, nbformat.writes(notebook) + "\n")
        yield job


def illustrate(notebook: NotebookNode, job: Job) -> None:
    """Pictures instead of widgets. A widget lives in its kernel: without one Jupyter would show an error there."""
    from .pictures import painter, store_pictures, what_it_draws  # which load all widgets

    before = nbformat.read(job.target, as_version=4) if job.target.is_file() else None
    if not any(what_it_draws(output) for cell in code_cells(notebook) for output in cell.outputs):
        store_pictures(notebook, before)
        return
    with painter() as draw:
        behind = store_pictures(notebook, before, draw)
    for source in behind:
        print(f"{job.label}: no Chromium here, so this cell has no new picture: {source}", file=sys.stderr)


def set_aside(file: Path) -> Path:
    """Move an exercise notebook out of the way, to a name beside it that is still free."""
    number = 1
    while (kept := file.with_name(f"{file.stem}.attempt-{number}.ipynb")).exists():
        number += 1
    os.replace(file, kept)
    return kept


def check(names: Sequence[str] = (), root: Path = ROOT) -> list[str]:
    """What is out of date, in words; an empty list when every notebook is what its source would give. Runs no cell."""
    return [complaint for job in jobs(names, root) if (complaint := stale(job))]


def stale(job: Job) -> str | None:
    """Why a notebook is not what its source would give; None if it is."""
    name = f"{job.target.parent.name}/{job.name}"
    if not job.target.is_file():
        return f"{name} was never built"
    try:
        wanted, there = compose(job), nbformat.read(job.target, as_version=4)
    except (ValueError, AttributeError, TypeError, LookupError, nbformat.ValidationError):
        return f"{name} is no notebook any more"
    if wanted.metadata.minispec != there.metadata.get("minispec"):
        return f"{name} was built from another version of {job.label}"
    if wanted.metadata != there.metadata or list(map(_written, wanted.cells)) != list(map(_written, there.cells)):
        return f"{name} is not what {job.label} and its texts give: they have changed, or it was edited by hand"
    if any(is_spoiler(cell) and cell.outputs for cell in code_cells(there)):
        return f"{name} shows the answer to a prediction: cells with that tag are covered"
    counts = [uncovered(cell).get("execution_count") for cell in code_cells(there)]
    if job.kind == "exercise":
        clean = not any(counts) and not any(cell.get("outputs") for cell in code_cells(there))
        return None if clean else f"{name} has outputs: an exercise is published without"
    if counts != list(range(1, len(counts) + 1)):
        return f"{name} was not run from top to bottom: its cells carry the numbers {counts}"
    return None


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _written(cell: NotebookNode) -> tuple:
    """What the author of a cell decides, as opposed to what running it adds."""
    return cell.id, cell.cell_type, cell.source, without_outputs(cell.metadata)
