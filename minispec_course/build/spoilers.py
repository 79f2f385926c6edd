"""Answers stay covered until the reader runs the cell.

A lesson asks for a prediction, then runs something, then reveals the answer. In its source the cells that answer carry
the tag "spoiler":

    # %% tags=["spoiler"]
    guess.reveal(theory.expected_tokens(0.7, 4))

The builder runs these cells like all others, then moves what they showed out of sight, into the cell's own metadata:
the stored notebook shows neither output nor number. There it is found by nbval (conftest.py at the root of the
repository uncovers what is to be compared), by the tests, and by whoever renders the page.
"""

from nbformat import NotebookNode, from_dict

SPOILER = "spoiler"
KEPT = "covered"  # in metadata.minispec: {"outputs": […], "execution_count": n}


def is_spoiler(cell: dict) -> bool:
    return SPOILER in cell["metadata"].get("tags", [])


def cover(notebook: NotebookNode) -> None:
    """Move the outputs of marked cells into their metadata."""
    for cell in notebook.cells:
        if cell.cell_type == "code" and is_spoiler(cell):
            kept = {"outputs": cell.outputs, "execution_count": cell.execution_count}
            cell.metadata["minispec"] = from_dict({KEPT: kept})
            cell.outputs, cell.execution_count = [], None


def uncovered(cell: dict) -> dict:
    """A cell with what it showed when it was built. What the reader's own run left there comes first."""
    kept = cell["metadata"].get("minispec", {}).get(KEPT)
    return cell if kept is None or cell.get("outputs") or cell.get("execution_count") else from_dict({**cell, **kept})


def without_outputs(metadata: dict) -> dict:
    """A cell's metadata as its author decides them."""
    own = {key: value for key, value in metadata.get("minispec", {}).items() if key != KEPT}
    rest = {key: value for key, value in metadata.items() if key != "minispec"}
    return {**rest, "minispec": own} if own else rest
