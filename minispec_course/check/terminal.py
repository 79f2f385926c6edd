"""Check an exercise notebook from the terminal: run it in a kernel of its own, and collect what its checks said."""

import asyncio
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from ..build.cells import own_metadata
from ..exercises.facts import find
from . import progress
from .copies import folder_of_exercises
from .progress import NOT_ATTEMPTED, RIGHT, WRONG

ROOT = Path(__file__).resolve().parents[2]
CELL_SECONDS = 120


@dataclass(frozen=True)
class Result:
    id: str
    outcome: str
    text: str  # what the check said


def locate(name: str, root: Path = ROOT) -> Path:
    """A file, or the set with this number or name: "06", "06_rejection_sampling"."""
    if (file := Path(name)).suffix == ".ipynb":
        if file.is_file():
            return file
        raise ValueError(f"name={name!r}: there is no such file")
    every = sorted(folder_of_exercises(root).glob("*.ipynb"))
    found = [f for f in every if "." not in f.stem and name in (f.stem, f.stem.split("_")[0])]  # no .attempt-1, no .new
    if not found:
        raise ValueError(f"name={name!r} is not a set of exercises: give a notebook, or a number such as 06")
    return found[0]


def check_notebook(file: Path) -> list[Result]:
    """Run a notebook from top to bottom, past every error, and return what each of its checks said."""
    try:
        notebook = nbformat.read(file, as_version=4)
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"{file} is not a notebook: {' '.join(str(error).split())[:200]}") from None
    roles = [own_metadata(cell) for cell in notebook.cells]
    checks = [
        (find(str(own.get("exercise"))).id, cell)  # refuses what is no exercise before anything is run
        for own, cell in zip(roles, notebook.cells, strict=True)
        if own.get("role") == "check" and cell.cell_type == "code"
    ]
    solved = {id for id, entry in progress.read().items() if entry["solved"]}
    asked = own_metadata(notebook).get("in_lessons", [])  # which the lessons have checked
    known = [Result(id, RIGHT if id in solved else NOT_ATTEMPTED, f"{id}: its lesson asks for it") for id in asked]
    if not checks and known:
        return known
    if not checks:
        raise ValueError(f"{file} contains no checks: give a notebook from the folder exercises")
    for own, cell in zip(roles, notebook.cells, strict=True):
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            if own.get("role") == "hint":
                cell.source = ""  # to run a notebook is not to ask for hints
    kernel, there = AsyncKernelManager(kernel_name="python3"), {"metadata": {"path": str(file.resolve().parent)}}
    client = NotebookClient(notebook, km=kernel, timeout=CELL_SECONDS, allow_errors=True, resources=there)
    try:
        execute(client, env={**os.environ, "MINISPEC_STRICT": "0"}, stderr=subprocess.DEVNULL)  # its own chatter
    except CellTimeoutError:
        raise ValueError(f"{file}: a cell took more than {CELL_SECONDS} s; is there a loop that never ends?") from None
    except (DeadKernelError, CellExecutionError) as error:
        raise ValueError(f"{file}: its kernel died ({' '.join(str(error).split())[:200]})") from None
    return [*known, *(result(id, cell.outputs) for id, cell in checks)]


def execute(client: NotebookClient, **kernel) -> None:
    """client.execute(), except for signals: nbclient would end the kernel under the cell that waits for it, and fail.
    Here Ctrl-C is a KeyboardInterrupt, and the kernel ends at once. In a notebook, signals are the notebook's."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        loop, signals = asyncio.SelectorEventLoop(), []
    else:
        return client.execute(**kernel)
    listen = loop.add_signal_handler
    loop.add_signal_handler = lambda number, *_: listen(number, lambda: [signals.append(number), running.cancel()])

    async def run() -> None:
        try:
            await client.async_execute(**kernel)
        finally:
            await client.km.shutdown_kernel(now=True)
            others = [task for task in asyncio.all_tasks() if task is not running and task.cancel()]
            await asyncio.gather(*others, return_exceptions=True)

    running = loop.create_task(run())
    try:
        loop.run_until_complete(running)
    except BaseException:
        if signals:
            raise KeyboardInterrupt from None
        raise
    finally:
        loop.close()


def result(id: str, outputs: Sequence[dict]) -> Result:
    """What the outputs of a check cell say."""
    for output in outputs:
        if output["output_type"] == "error":
            is_ours = output["ename"] in ("Wrong", "NotAttempted")
            return Result(id, WRONG, output["evalue"] if is_ours else f"{id}: {output['ename']}: {output['evalue']}")
    text = "".join(output.get("text", "") for output in outputs).strip()
    outcome = next((o for o in (RIGHT, NOT_ATTEMPTED) if text.startswith(f"{id}: {o}")), WRONG)
    return Result(id, outcome, text if outcome != WRONG else f"{id}: its check cell does not check it")


def table(results: Sequence[Result]) -> str:
    """One line an exercise and the points; below, what is wrong."""
    width = max(len(r.id) for r in results)
    points = {r.id: find(r.id).points for r in results}
    lines = [
        f"{r.id:{width}}  {r.outcome:13}  {points[r.id] * (r.outcome == RIGHT)} of {points[r.id]}" for r in results
    ]
    reached = sum(points[r.id] for r in results if r.outcome == RIGHT)
    lines.append(f"{'all':{width}}  {'':13}  {reached} of {sum(points.values())} points")
    return "\n\n".join(["\n".join(lines), *(r.text for r in results if r.outcome == WRONG)])
