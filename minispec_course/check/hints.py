"""Hints, one at a time: in a notebook a button, in a script printed text."""

import re
import shutil
import sys
from html import escape
from textwrap import fill

from ..exercises.facts import Facts, find
from . import progress

# The size of the notebook's own text, not of widgets, and its colours in either theme.
ASIDE = "max-width:52em;margin:2px 0 6px 4px;padding-left:12px;border-left:3px solid var(--jp-border-color1,#bdbdbd)"
STYLE = (
    "font-size:var(--jp-content-font-size1,14px);line-height:1.55;margin:0 0 8px 0;"
    "white-space:normal;overflow-wrap:normal;word-break:normal"
)


def hint(id: str) -> None:
    """Show a button for hints; where there are no buttons, print the hints seen so far and the next one."""
    exercise = find(id)
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if hasattr(shell, "kernel"):
        from IPython.display import display

        display(button(exercise))
        return
    count = most = len(exercise.hints)
    if progress.place() is not None:  # else there is no saying which have been seen, so all of them are shown
        count = min(most, progress.read().get(id, {}).get("hints", 0) + 1)
    progress.saw_hints(id, count)
    for number, text in enumerate(exercise.hints[:count], start=1):
        words = f"{id}, hint {number} of {most}: {text}"
        print(fill(words, min(100, shutil.get_terminal_size().columns), break_long_words=False, break_on_hyphens=False))


def button(exercise: Facts):
    """A button; every press shows one hint more, below those that are there. Each one seen is noted as progress."""
    import ipywidgets  # a check in a script does not need it

    # As wide as its words: a box would stretch it over the whole cell.
    press = ipywidgets.Button(layout=ipywidgets.Layout(width="auto", align_self="flex-start", margin="4px 0 4px 4px"))
    text = ipywidgets.HTML(layout=ipywidgets.Layout(width="100%"))
    box = ipywidgets.VBox([press, text])
    box.shown, most = 0, len(exercise.hints)

    def label() -> None:
        press.description = f"Hint {box.shown + 1} of {most}" if box.shown < most else "No more hints"
        press.disabled = box.shown == most
        press.tooltip = f"{press.description} for {exercise.id}"

    def more(_press=None) -> None:
        box.shown = min(most, box.shown + 1)
        progress.saw_hints(exercise.id, box.shown)
        shown = "".join(map(paragraph, range(1, box.shown + 1), exercise.hints))
        text.value = f'<div role="status" class="minispec-hints" style="{ASIDE}">{shown}</div>'
        label()

    press.on_click(more)
    label()
    box.add_class("minispec-hint")
    return box


def paragraph(number: int, hint: str) -> str:
    """A hint as HTML; `code` in it looks like code."""
    words = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(hint, quote=False))
    return f'<p style="{STYLE}"><b>{number}.</b> {words}</p>'
