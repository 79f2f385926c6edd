"""What an engine measures: of every step where its time went, of every request how long it waited for what."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass

from ..trace import Cycle
from .scheduler import StepRecord

PARTS = ("scheduling", "drafting", "pass", "sampling")  # of a step's time


class Clock:
    """Divides a step's time among its parts."""

    def __init__(self):
        self.seconds, self.last = dict.fromkeys(PARTS, 0.0), time.perf_counter()

    def lap(self, part: str) -> None:
        now = time.perf_counter()
        self.seconds[part] += now - self.last
        self.last = now


@dataclass
class StepMetrics(StepRecord):
    """The scheduler's record of a step, and what the engine adds to it."""

    read: int  # tokens in the pass, scratch included
    emitted: int
    drafted: int
    accepted: int
    seconds: dict[str, float]  # PARTS


@dataclass
class RequestMetrics:
    """One request that has ended. Times in seconds; None: it did not come so far."""

    id: Hashable
    finish: str
    prompt_tokens: int
    tokens: int
    tokens_read: int  # by the target; beyond prompt and text: refused drafts, and what a preemption made it read again
    drafted: int
    accepted: int
    preemptions: int
    waited: float | None  # from `add` to the first step it was part of
    time_to_first_token: float | None  # from `add`
    time_per_output_token: float | None  # after the first one
    seconds: float  # from `add` to the end
    goodput: float  # tokens of the output per second of that


class Metrics:
    """The last `history` steps and requests, and the sums of all."""

    def __init__(self, history: int):
        self.steps: deque[StepMetrics] = deque(maxlen=history)
        self.requests: deque[RequestMetrics] = deque(maxlen=history)
        self.totals: Counter[str] = Counter(
            steps=0, requests=0, tokens=0, read=0, emitted=0, drafted=0, accepted=0, preemptions=0
        )
        self.finished: Counter[str] = Counter()  # by reason
        self.seconds: Counter[str] = Counter(dict.fromkeys(PARTS, 0.0))

    def add_step(
        self, record: StepRecord, read: int, cycles: Sequence[Cycle], seconds: dict[str, float]
    ) -> StepMetrics:
        step = StepMetrics(
            **vars(record),
            read=read,
            emitted=sum(cycle.kept for cycle in cycles),
            drafted=sum(len(cycle.drafted) for cycle in cycles),
            accepted=sum(cycle.accepted for cycle in cycles),
            seconds=seconds,
        )
        self.steps.append(step)
        self.totals["steps"] += 1
        self.totals["preemptions"] += len(step.preempted)
        for name in ("read", "emitted", "drafted", "accepted"):
            self.totals[name] += getattr(step, name)
        self.seconds.update(seconds)
        return step

    def add_request(self, request: RequestMetrics) -> None:
        self.requests.append(request)
        self.totals["requests"] += 1
        self.totals["tokens"] += request.tokens
        self.finished[request.finish] += 1

    def to_dict(self) -> dict:
        """Plain data: it goes to JSON as it is."""
        return {
            "totals": {**self.totals, "finished": dict(self.finished), "seconds": dict(self.seconds)},
            "steps": [asdict(step) for step in self.steps],
            "requests": [asdict(request) for request in self.requests],
        }
