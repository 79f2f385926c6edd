"""Run an answer on one case: within its time, with the same random numbers on every run, and watched.

What it prints is kept, to be shown beside the verdict. What goes wrong comes back as a `Trouble`, in words for its
author. An answer's time is the processor time that it used, or a part of the time on the wall clock if that is more: a
busy machine is not a slow answer, and a loop that sleeps ends too.
"""

import io
import linecache
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from copy import deepcopy
from time import monotonic, thread_time
from typing import Any

import numpy as np
import torch

from ..exercises.exercise import Complaint, Exercise
from ..exercises.show import same
from .diagnosis import Trouble, agree

MOST_PRINTED = 10_000  # characters of one case
SLACK = 4  # an answer is given so many times its seconds by the wall clock
DEEPEST = 20  # lists in lists of what an answer returns; honest: 4
POLL = 0.2  # seconds between two looks at an answer's clock


def observe(exercise: Exercise, answer: Callable, case: dict[str, Any], end: float, seed: int = 0) -> Any:
    """What an answer does with a case, or a Trouble."""
    given = deepcopy(case)
    seen = run(lambda: exercise.observe(answer, **given), answer, end - answer.spent(), exercise.seconds, seed)
    changed = getattr(answer, "changed", ())  # of an answer in another process: what it did to its copies
    for name in case:  # whatever else went wrong may well come from this
        if not same(case[name], given[name]) or any(given[name] is argument for argument in changed):
            text = f"Your function changes its argument {name}, which belongs to the caller. "
            return Trouble(text + "Work on a copy, or write the result into something new.", sort=f"changes {name}")
    with suppress(Exception):
        return deepcopy(seen)  # a later call may write into the same buffer
    return seen


def unsteady(exercise, answer, drawn, got, end) -> Trouble | None:
    """Ask some cases a second time, with other random numbers in every library: the result should be the same."""
    for i in sorted({0, len(exercise.cases) - 1, len(drawn) - 1}):
        if isinstance(got[i], Trouble) or not same(got[i], deepcopy(got[i])):  # an object that equals nothing
            continue
        again = observe(exercise, answer, drawn[i].case, end, seed=1)
        if getattr(again, "sort", "") == "TimeUp":
            return None  # a slow machine, which says nothing about the answer
        if not agree(got[i], again):
            text = (
                "Your function gives a different result when called again with the same arguments. Either it uses its "
            )
            text += "own random numbers, or it keeps something between calls: a global, or a default argument."
            return Trouble(text)
    return None


class Printed(io.StringIO):
    """What an answer prints, up to a limit: a loop may print for ever."""

    def write(self, text: str) -> int:
        return super().write(text[: max(0, MOST_PRINTED - self.tell())])


class Stopwatch:
    """The seconds that an answer has had since now."""

    def __init__(self):
        self.wall, self.processor = monotonic(), thread_time()

    def __call__(self, elsewhere: float = 0.0) -> float:
        """elsewhere: processor time of another process, in its service."""
        return max(elsewhere + thread_time() - self.processor, (monotonic() - self.wall) / SLACK)


class Watched:
    """An answer with its clock. `printed` has what it printed, a text for each time that it was run."""

    def __init__(self, answer: Callable):
        self.answer, self.printed, self.precise = answer, [], True
        self.spent = getattr(answer, "spent", None) or Stopwatch()  # one in another process knows better

    def __getattr__(self, name: str):
        return getattr(self.answer, name)

    def __call__(self, *args, **named):
        """Notes whether what comes is precise enough to be compared, and goes no deeper into lists than they may go."""
        level = [value := self.answer(*args, **named)]
        for _ in range(DEEPEST):
            self.precise = self.precise and not any(str(getattr(x, "dtype", "")).endswith("float16") for x in level)
            parts = [x.values() if isinstance(x, dict) else x for x in level if isinstance(x, (list, tuple, dict))]
            level = list({id(x): x for part in parts for x in part}.values())
            if not level:
                return value
        raise Complaint(f"your function returns lists that are nested more than {DEEPEST} deep.")


def run(program: Callable, answer: Watched, seconds: float, allowed: float | None = None, seed: int = 0) -> Any:
    """Run code that calls an answer: within its time, quietly, with the same random numbers on every run."""
    printed = Printed()
    try:
        with time_limit(max(seconds, 0.001), answer.spent), redirect_stdout(printed), repeatable(seed):
            return program()
    except TimeUp:
        text = f"Your function was stopped after {allowed or seconds:g} seconds. Is there a loop that never ends?"
        return Trouble(text, sort="TimeUp")
    except NotImplementedError as error:
        return Trouble(f"Part of your function still raises NotImplementedError{where(error, answer)}.", is_stub=True)
    except Complaint as complaint:
        return Trouble(sentence(str(complaint)), sort=str(complaint))
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())[:300]
        text = f"Your function raised {type(error).__name__}{': ' * bool(said)}{said}{where(error, answer)}."
        return Trouble(text, sort=type(error).__name__)
    finally:
        answer.printed.append(printed.getvalue())


def sentence(text: str) -> str:
    """With a capital letter, unless it begins with a name of the code: all_reduce, rewind(5), q."""
    first = text.split(" ")[0]
    return text if (len(first) == 1 and first != "a") or not first.isalpha() else text[:1].upper() + text[1:]


def where(error: BaseException, answer: Callable) -> str:
    """The last line of the learner's own code that an error came through."""
    if hasattr(error, "where"):  # it happened in another process, which told us
        return error.where
    file, line, frame = getattr(getattr(answer, "__code__", None), "co_filename", None), None, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == file:
            line = frame.tb_lineno
        frame = frame.tb_next
    if line is None:
        return ""
    source = linecache.getline(file, line).strip()
    return f", in line {line} of its cell" + f": {source}" * bool(source)


@contextmanager
def repeatable(seed: int = 0):
    """An answer with random numbers of its own gets the same ones every time, and other code is not affected."""
    state, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would also look for GPUs, which takes longer
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)
        torch.random.set_rng_state(torch_state)


# ---- a time limit for code that somebody else wrote -----------------------------------------------------------------
class TimeUp(BaseException):
    """Raised inside code that ran too long. No Exception, so that an `except Exception` does not swallow it."""


@contextmanager
def time_limit(seconds: float, clock: Callable[[], float]) -> Iterator[None]:
    """Stop the code inside after so many seconds by this clock. It takes a signal: on Windows, or in a thread, nothing
    is stopped, and the button of the notebook has to do."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    end = clock() + seconds

    def ring(number, frame):
        if clock() >= end:
            raise TimeUp
        signal.setitimer(signal.ITIMER_REAL, POLL)

    handler = signal.signal(signal.SIGALRM, ring)
    timer = signal.setitimer(signal.ITIMER_REAL, min(seconds, POLL))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)  # somebody else's, as pytest's own limit
