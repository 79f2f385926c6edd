"""What a stored notebook holds instead of widgets, and the names under which those who make it agree.

A widget lives in its kernel, and no notebook file knows what it shows there. So in the lab each of our widgets keeps,
in a file beside the learner's progress, outputs that say the same without a kernel. When JupyterLab saves, these take
the place of the widget's view (check/copies.py).
"""

import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from minispec.load.write import write_whole

WIDGET = "application/vnd.jupyter.widget-view+json"
PLOTLY = "application/vnd.plotly.v1+json"
PICTURE = "application/vnd.minispec.picture+json"  # what a panel draws, for those who cannot run it
WANTED = "MINISPEC_PICTURES"  # set while notebooks are built: panels then say what they draw
LAB = "MINISPEC_LAB"  # set by `minispec lab`: somebody sits at the screen, and an answer can wait for the guess


def keep(widget, *outputs: dict) -> None:
    """What a saved notebook shows in place of this widget, as long as it looks as it does now."""
    if os.environ.get(LAB) and (folder := _folder()):
        with suppress(OSError):
            write_whole(folder / f"{widget.model_id}.json", json.dumps(outputs))


def kept(model_id: str) -> list[dict] | None:
    """The outputs that stand for a widget; None if it told of none."""
    with suppress(OSError, ValueError):
        return json.loads((_folder() / f"{model_id}.json").read_text(encoding="utf-8")) if _folder() else None


def forget() -> None:
    """What widgets showed long ago: their notebooks have been saved since, or never will be."""
    with suppress(OSError):
        for file in _folder().glob("*.json") if _folder() else ():
            if file.stat().st_mtime < time.time() - 30 * 86400:
                file.unlink()


def _folder() -> Path | None:
    from .check.progress import place

    return (file := place()) and file.with_name("shown")


def text_output(**data: str) -> dict:
    """An output of a cell: text_output(html=…, plain=…)."""
    shown = {f"text/{kind}": text for kind, text in data.items()}
    return {"output_type": "display_data", "data": shown, "metadata": {}}


def stored_pictures(notebook: dict | None) -> Iterable[tuple[tuple, dict]]:
    """Every picture that a notebook holds, by cell, source and number of the output."""
    for cell in notebook["cells"] if notebook else ():
        for number, output in enumerate(cell.get("outputs", ())):
            if "drawn_from" in output.get("metadata", {}).get("minispec", {}):
                yield (cell["id"], cell["source"], number), output
