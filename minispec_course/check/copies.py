"""Where you write: copies of the notebooks in the folder mine/, which git ignores.

`minispec lab` opens these. What you run and save stays yours, and the clone stays clean. When the course changes, a
copy that is as we made it is renewed; one that you have changed stays, and the new version is laid beside it.

A widget lives in its kernel, so a saved notebook cannot hold it: `keep_pictures` puts there what it showed last.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import nbformat
from ipykernel.ipkernel import IPythonKernel
from nbformat.sign import NotebookNotary

from minispec.load.write import write_whole

from ..build import builder
from ..build.builder import ATTEMPT, ROOT, Job
from ..stored import PLOTLY, WIDGET, forget, kept, stored_pictures, text_output

MINE = "mine"
FOLDERS = ("notebooks", "exercises")
MADE = ".made.json"  # in mine/: "exercises/06_….ipynb" → the fingerprint of what we wrote there
# Links to what has no copy lead out of one folder more.
OUTWARD = re.compile(rf"(\]\(|href=\"|src=\")\.\./(?!(?:{'|'.join(FOLDERS)})/)")
REPR = re.compile(r"\w+\(.*\)|<.*>", re.DOTALL)  # what Python says of a widget
FROZEN = "*A picture from when this lesson was written. Run this cell to move it.*"


def copied(text: str) -> str:
    """A stored notebook as its copy begins. What is no notebook is copied as it is."""
    try:
        notebook = nbformat.reads(text, as_version=4)
    except Exception:
        return text
    if "language_info" in notebook.metadata:  # all of it, as the kernel tells it: else to open a copy is to change it
        notebook.metadata.language_info = nbformat.from_dict(IPythonKernel.language_info)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = OUTWARD.sub(r"\1../../", cell.source)
        if any(PLOTLY not in picture.data for _, picture in stored_pictures({"cells": [cell]})):
            cell.outputs.append(nbformat.from_dict(text_output(markdown=FROZEN)))
    return nbformat.writes(notebook) + "\n"


def lay_out(root: Path = ROOT) -> list[str]:
    """Make or renew all copies. What you may want to know is returned, in words."""
    forget()
    mine, said = root / MINE, []
    made = _read(mine / MADE)
    for folder in FOLDERS:
        for file in sorted((root / folder).glob("*.ipynb")):
            if ATTEMPT.search(file.stem):
                continue
            text, name = copied(file.read_text(encoding="utf-8")), f"{folder}/{file.name}"
            if _is_ours(mine / name, made.get(name), _mark(text)):
                _write(mine, name, text, made)
            elif made.get(name) != _mark(text) and made.get(beside := f"{name[:-6]}.new.ipynb") != _mark(text):
                keep = not _is_ours(mine / beside, made.get(beside))
                _write(mine, beside, text, made, keep)  # once: you may read it and throw it away
                said.append(f"{name} has changed in the course; yours is kept, the new one is {MINE}/{beside}")
    write_whole(mine / MADE, json.dumps(made, indent=1, sort_keys=True) + "\n")
    return said


def _is_ours(file: Path, *marks: str | None) -> bool:
    """Whether there is nothing of yours in a file: it is not there, or one of these fingerprints is its own."""
    return not file.exists() or _mark(file.read_bytes()) in marks


def _write(mine: Path, name: str, text: str, made: dict[str, str], keep: bool = False) -> Path | None:
    if made.get(name) == _mark(text) and (mine / name).exists() and not keep:
        return None
    kept = _renew(mine / name, text, keep)
    made[name] = _mark(text)
    with suppress(Exception):  # ours, so JupyterLab may show all of it; else it shows what is safe without
        NotebookNotary().sign(nbformat.reads(text, as_version=4))
    return kept


def _renew(file: Path, text: str, keep: bool) -> Path | None:
    """Write first, then rename: on a full disk everything stays. Returns where what was there is kept."""
    fresh = write_whole(file.with_name(f".{file.name}"), text)
    kept = builder.set_aside(file) if keep else None
    os.replace(fresh, file)
    return kept


def _mark(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()[:16]


def _read(file: Path) -> dict[str, str]:
    try:
        made = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return made if isinstance(made, dict) else {}


def folder_of_exercises(root: Path = ROOT) -> Path:
    """Where a learner's answers are: in the copies, if there are any."""
    mine = root / MINE / "exercises"
    return mine if any(mine.glob("*.ipynb")) else root / "exercises"


def reset(name: str, root: Path = ROOT) -> tuple[Job, Path | None]:
    """Make a set of exercises new again, where its reader works on it. What differs is kept: says where, if so."""
    job = next((job for job in builder.jobs([name], root) if job.kind == "exercise"), None)
    if job is None:
        raise ValueError(f"name={name!r} has no exercises")
    text, folder = nbformat.writes(builder.compose(job)) + "\n", folder_of_exercises(root)
    is_copy = folder != root / "exercises"
    if is_copy:
        job, text = replace(job, target=folder / job.target.name), copied(text)
    keep = job.target.is_file() and job.target.read_bytes() != text.encode()
    if not is_copy:
        return job, _renew(job.target, text, keep)
    made = _read(root / MINE / MADE)
    kept = _write(root / MINE, f"exercises/{job.target.name}", text, made, keep)
    write_whole(root / MINE / MADE, json.dumps(made, indent=1, sort_keys=True) + "\n")
    return job, kept


# ---------------------------------------------------------------- what is saved
def keep_pictures(model: dict, **_rest) -> None:
    """Jupyter's pre_save_hook: a view of a widget becomes what the widget said of itself (stored.keep), or nothing."""
    notebook = model.get("content")
    if model.get("type") != "notebook" or not isinstance(notebook, dict):
        return
    notebook.get("metadata", {}).pop("widgets", None)
    for cell in notebook.get("cells", ()):
        if cell.get("outputs"):
            cell["outputs"] = list(without_views(cell["outputs"]))


def without_views(outputs: Sequence[dict]) -> Iterator[dict]:
    for output in outputs:
        data = output.get("data", {})
        if WIDGET not in data:
            yield output
        elif (instead := kept(data[WIDGET].get("model_id"))) is not None:
            yield from without_views(instead)
        elif (says := "".join(data.get("text/plain", ""))) and not REPR.fullmatch(says):
            yield text_output(plain=says)
