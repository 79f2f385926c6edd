"""What happened in the notebook before a check: cells that failed, and functions that no cell has defined yet.

A cell with a syntax error leaves the function as it was before, and a check would judge that one without a word. So the
kernel is asked to say how each cell ended that begins to define something. In a script there is nothing to watch.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable

DEFINED = re.compile(r"^(?:async +)?def +(\w+)", re.MULTILINE)  # also in a source that does not parse
ASKED = re.compile(r"""\b(?:check|draw)\(\s*["']([\w.]+)["']\s*,\s*(\w+)""")

failed: dict[str, str] = {}  # function → how the cell that defines it ended, when it was last run
_before: dict[str, object] = {}  # function → what it was before the cell that runs now


def shell():
    """IPython's, where this runs in a kernel; else None."""
    found = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return found if hasattr(found, "kernel") else None


def watch() -> None:
    """Begin to take notes, once."""
    kernel = shell()
    if kernel is None or getattr(kernel, "minispec_watches", False):
        return
    kernel.minispec_watches = True
    kernel.events.register("pre_run_cell", begins)
    kernel.events.register("post_run_cell", ended)
    if not kernel.custom_exceptions:  # whoever has an opinion of their own keeps it
        kernel.set_custom_exc((NameError,), explain)


def begins(info) -> None:
    _before.clear()
    _before.update((name, shell().user_ns.get(name)) for name in DEFINED.findall(info.raw_cell or ""))


def ended(result) -> None:
    """Note how the cell ended, for every function that it should have defined."""
    error = result.error_before_exec or result.error_in_exec
    for name in DEFINED.findall(result.info.raw_cell or ""):
        if error is not None and shell().user_ns.get(name) is _before.get(name):
            said = " ".join(str(getattr(error, "msg", error)).split())
            failed[name] = f"{type(error).__name__}: {said}"[:200]
        else:
            failed.pop(name, None)


def outdated(answer: Callable) -> str | None:
    """A note, if the cell of this function was run again since, and did not get as far as to define it."""
    name = getattr(answer, "__name__", None)
    if name not in failed or getattr(shell(), "user_ns", {}).get(name) is not answer:
        return None
    return (
        f"Note: this is about your earlier {name}. Its cell was run again and ended with {failed[name]}, so the new "
        "one was never defined. Repair that cell, run it, and check once more."
    )


def explain(kernel, kind, error: NameError, trace, tb_offset=None) -> None:
    """A check of a function that is not there: say what to do. Any other NameError is shown as always."""
    line, frame = "", trace
    while frame is not None:  # the last line of a cell
        if frame.tb_frame.f_globals is kernel.user_ns:
            line = linecache.getline(frame.tb_frame.f_code.co_filename, frame.tb_lineno)
        frame = frame.tb_next
    asked = ASKED.search(line)
    if asked and asked[2] == getattr(error, "name", None):
        words = not_there(*asked.groups())
        error._render_traceback_ = lambda: [words]
    kernel.showtraceback((kind, error, trace), tb_offset=tb_offset)


def not_there(id: str, name: str) -> str:
    if name in failed:
        return f"{id}: there is no {name} yet. Its cell ended with {failed[name]}. Repair that cell and run it first."
    return f"{id}: there is no {name} yet. Run the cell above that defines it (Shift + Enter), then this one again."
