"""Functions of a lesson that the learner writes, and that the cells after them use.

`@yours("05.greedy_verify")` above such a function checks it like the exercise with this id. The lesson goes on with the
learner's function if it is right, else with ours. `mine("05.greedy_verify")` gives a right one to later lessons.
"""

import dis
from collections.abc import Callable

from . import progress
from .check import NOT_ATTEMPTED, RIGHT, reference, tried
from .keep import kept, load


def yours(id: str) -> Callable[[Callable], Callable]:
    """Decorate a function that the learner writes: it stays theirs if it is right, else ours takes its place."""

    def decide(function: Callable) -> Callable:
        function.__globals__[function.__name__] = function  # it may call itself
        outcome, text = (NOT_ATTEMPTED, "") if is_empty(function) else tried(id, function)
        if outcome == RIGHT:
            function.exercise = id
            print(f"✓ {text}\n  From here on the course runs on yours{kept(id, function)}.")
            return function
        used = mine(id)
        whose = "ours" if used is reference(id) else "the right one that you wrote before"
        if outcome == NOT_ATTEMPTED:
            print(f"{id}: not written yet, so the lesson goes on with {whose}.")
        else:
            text = text.replace(f'hint("{id}")', "Hints and our answer are in the folded cell below.")
            print(f"{text}\n\nThe lesson goes on with {whose}.")
        return used

    return decide


def mine(id: str) -> Callable:
    """The learner's function, if it was right once; else ours."""
    function = reference(id)
    if source := progress.read().get(id, {}).get("source"):
        try:
            function = load(id, source)
        except Exception as error:
            print(f"{id}: what was kept of yours does not run ({type(error).__name__}: {error}), so ours is used.")
    function.exercise = id
    return function


def is_empty(function: Callable) -> bool:
    """Whether a body is only a docstring and `...` or `pass`."""
    code = [(i.opname, i.argval) for i in dis.get_instructions(function)]
    return code == [(i.opname, i.argval) for i in dis.get_instructions(lambda: None)]
