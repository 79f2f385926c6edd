"""On a busy machine an honest answer is not stopped: what counts is the time that it had, not the clock on the wall."""

from __future__ import annotations

import os
from time import monotonic, sleep, thread_time

import pytest
import torch

from minispec_course.check import grade
from minispec_course.check.attempt import OutOfPatience, TimeUp, time_limit
from minispec_course.check.sandbox import Limits, Nursery


def spin(seconds: float) -> None:
    end = monotonic() + seconds
    while monotonic() < end:
        pass


def outcome(seconds: float, *how, program=lambda: spin(0.6)) -> str:
    try:
        with time_limit(seconds, *how):
            program()
    except BaseException as error:
        return type(error).__name__
    return "done"


def slow_clock() -> float:
    return monotonic() / 1000  # of a process that gets a thousandth of a processor


@pytest.mark.slow
def test_a_clock_that_hardly_moves_stops_nothing():
    assert outcome(0.3) == TimeUp.__name__
    assert outcome(0.3, slow_clock) == "done"
    assert outcome(0.3, slow_clock, 0.3) == OutOfPatience.__name__
    assert outcome(0.3, lambda: 2 * monotonic(), 60.0) == TimeUp.__name__


@pytest.fixture(scope="module")
def nursery():
    with Nursery(Limits(seconds=2.0)) as made:
        yield made


def pupil_of(nursery, body: str):
    source = f"import time\ndef accept(p, q, token):\n    {body}"
    exercise = grade.everything()["06.accept"]
    return nursery.pupil(exercise, grade.course("06"), [source])


def call(answer, seconds: float = 2.0) -> tuple[str, float]:
    start = answer.spent()
    found = outcome(seconds, answer.spent, program=lambda: answer(torch.ones(1), torch.ones(1), 0))
    return found, answer.spent() - start


needs_linux = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="other systems go by the wall clock")


@pytest.mark.slow
@needs_linux
def test_work_counts_and_so_does_sleep(nursery):
    loop = "while time.process_time() < 1.0: pass"
    with pupil_of(nursery, loop) as answer:
        found, took = call(answer)
        assert found == "done" and 0.5 < took < 2.0
    with pupil_of(nursery, "time.sleep(30)") as answer:
        assert call(answer, 0.8)[0] == TimeUp.__name__
    with pupil_of(nursery, "while True: pass") as answer:
        assert call(answer, 0.8)[0] == TimeUp.__name__


@pytest.mark.slow
@needs_linux
def test_a_wait_of_the_graders_own_costs_the_answer_nothing(nursery):
    """The grader was kept from running for a while: the answer was done long before."""
    with pupil_of(nursery, "return 1.0") as answer:
        start = answer.spent() - thread_time()
        sleep(1.5)
        assert answer.spent() - thread_time() - start < 0.2
