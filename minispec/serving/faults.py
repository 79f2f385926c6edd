"""When something raises in mid-step: it is tried again for each request alone, and only what fails even then ends.

The request that fails ends with finish_reason="error" and the exception in `Output.error`; the others are served as if
nothing had happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .job import Job, Turn
from .metrics import RequestMetrics

if TYPE_CHECKING:
    from .engine import Engine


def attempt(engine: Engine, work: Callable[[Sequence[Turn]], None], turns: Sequence[Turn]) -> None:
    """Do some work for all turns at once. If that fails, do it for each alone, and end the request that fails again."""
    if not turns:
        return
    try:
        work(turns)
    except Exception as error:
        if len(turns) == 1:
            fail(engine, turns[0].job, error)
        else:
            for turn in turns:
                attempt(engine, work, [turn])


def fail(engine: Engine, job: Job, error: Exception) -> None:
    if job.output is None:  # else its own callback aborted it, and raised after that
        engine.scheduler.finish(job.request.id, "error")
        close(engine, job, "error", error)


def close(engine: Engine, job: Job, reason: str, error: Exception | None = None) -> None:
    """The scheduler is done with the request: so are drafter and engine, and its output is there."""
    id, now = job.request.id, time.perf_counter()
    del engine.jobs[id]
    try:
        engine.runner.forget(job)
    except Exception as broken:
        reason, error = "error", error or broken
    if job.writer.finish_reason != reason:
        job.writer.end(reason)
    trace = job.trace if engine.drafter and job.speculates else None
    job.output = engine.outputs[id] = job.writer.output(job.prompt_tokens, now - job.added, trace)
    job.output.error = error
    job.forget_states()
    engine.measured.add_request(RequestMetrics.of(job))
