"""What a stored notebook holds instead of widgets, and the names under which those who make it agree."""

from collections.abc import Iterable

WIDGET = "application/vnd.jupyter.widget-view+json"
PLOTLY = "application/vnd.plotly.v1+json"
PICTURE = "application/vnd.minispec.picture+json"  # what a panel draws, for those who cannot run it
WANTED = "MINISPEC_PICTURES"  # set while notebooks are built: panels then say what they draw
LAB = "MINISPEC_LAB"  # set by `minispec lab`: somebody sits at the screen, and an answer can wait for the guess


def stored_pictures(notebook: dict | None) -> Iterable[tuple[tuple, dict]]:
    """Every picture that a notebook holds, by cell, source and number of the output."""
    for cell in notebook["cells"] if notebook else ():
        for number, output in enumerate(cell.get("outputs", ())):
            if "drawn_from" in output.get("metadata", {}).get("minispec", {}):
                yield (cell["id"], cell["source"], number), output
