"""What an engine measures: of every step where its time went, of every request how long it waited for what."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field

# Of a step's time. "pass" ends when the next tokens are there. Of a pass that was launched ahead it is what the host
# had to wait for: the rest went by during the step before. Drafts that stay on the device are a part of it, too.
PARTS = ("scheduling", "drafting", "pass", "sampling")


class Clock:
    """Divides a step's time among its parts."""

    def __init__(self):
        self.seconds, self.last = dict.fromkeys(PARTS, 0.0), time.perf_counter()

    def lap(self, part: str) -> None:
        now = time.perf_counter()
        self.seconds[part] += now - self.last
        self.last = now


@dataclass
class RowRecord:
    """One request's row in a picture of the steps."""

    id: Hashable
    phase: str  # "prefill", "decode" or "verify"
    tokens: int  # processed by the pass, drafts included
    drafted: int
    accepted: int


@dataclass
class StepRecord:
    """One step as plain data. The scheduler fills in what it knows, an engine the rest."""

    step: int
    rows: list[RowRecord]
    admitted: list[Hashable]
    preempted: list[Hashable]
    finished: list[Hashable]  # since the record before
    running: int  # after the step, like the three that follow
    waiting: int
    used_blocks: int
    free_blocks: int
    read: int = 0  # tokens that the pass processed, scratch included
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # PARTS


@dataclass
class RequestMetrics:
    """One request that has ended. Times in seconds; None: it did not come so far."""

    id: Hashable
    finish: str
    prompt_tokens: int
    tokens: int
    tokens_read: int  # by the target; beyond prompt and output: rejected drafts, and what was recomputed
    drafted: int
    accepted: int
    preemptions: int
    waited: float | None  # from `add` to the first step it was part of
    time_to_first_token: float | None  # from `add`
    time_per_output_token: float | None  # after the first one
    seconds: float  # from `add` to the end
    goodput: float  # tokens of the output per second of that

    @classmethod
    def of(cls, job) -> RequestMetrics:
        out, cycles, first, several = job.output, job.trace.cycles, job.first_token, len(job.output.tokens) > 1
        return cls(
            id=job.request.id,
            finish=out.finish_reason,
            prompt_tokens=job.prompt_tokens,
            tokens=len(out.tokens),
            tokens_read=job.tokens_read,
            drafted=sum(len(cycle.drafted) for cycle in cycles),
            accepted=sum(cycle.accepted for cycle in cycles),
            preemptions=job.request.preemptions,
            waited=None if job.admitted is None else job.admitted - job.added,
            time_to_first_token=None if first is None else first - job.added,
            time_per_output_token=(job.last_token - first) / (len(out.tokens) - 1) if several else None,
            seconds=out.seconds,
            goodput=out.tokens_per_second,
        )


class Metrics:
    """The last `history` steps and requests, and the sums of all."""

    def __init__(self, history: int):
        self.steps: deque[StepRecord] = deque(maxlen=history)
        self.requests: deque[RequestMetrics] = deque(maxlen=history)
        sums = "steps requests tokens read emitted drafted accepted preemptions".split()
        self.totals: Counter[str] = Counter(dict.fromkeys(sums, 0))
        self.finished: Counter[str] = Counter()  # by reason
        self.seconds: Counter[str] = Counter(dict.fromkeys(PARTS, 0.0))

    def add_step(self, step: StepRecord, turns: Sequence, seconds: dict[str, float]) -> None:
        """Complete the scheduler's record by what the engine knows, and add it up."""
        step.seconds = seconds
        for turn in turns:
            step.read += turn.count
            if turn.result is not None:
                step.emitted += len(turn.result.tokens)
                step.drafted += len(turn.draft.tokens)
                step.accepted += turn.result.accepted
        self.steps.append(step)
        self.seconds.update(seconds)
        counts = {name: getattr(step, name) for name in ("read", "emitted", "drafted", "accepted")}
        self.totals.update(steps=1, preemptions=len(step.preempted), **counts)

    def add_request(self, request: RequestMetrics) -> None:
        self.requests.append(request)
        self.totals.update(requests=1, tokens=request.tokens)
        self.finished[request.finish] += 1

    def to_dict(self) -> dict:
        """Plain data: it goes to JSON as it is."""
        return {
            "totals": {**self.totals, "finished": dict(self.finished), "seconds": dict(self.seconds)},
            "steps": [asdict(step) for step in self.steps],
            "requests": [asdict(request) for request in self.requests],
        }
