"""What an engine measures: of every step where its time went, of every request how long it waited for what."""

from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import asdict, dataclass, field

from ..output import Output
from ..sequence import Sequence

# Of a step's time. "pass" ends when the next tokens are there. Of a pass that was launched ahead it is what the host
# had to wait for: the rest went by during the step before. Drafts that stay on the device are a part of it, too.
PARTS = ("scheduling", "drafting", "pass", "sampling")


@dataclass
class RowRecord:
    """One request's row in a picture of the steps."""

    id: Hashable
    phase: str  # "prefill", "decode" or "verify"
    tokens: int  # processed by the pass, drafts and scratch included
    emitted: int
    drafted: int
    accepted: int


@dataclass
class StepRecord:
    """One step as plain data."""

    step: int
    rows: list[RowRecord]
    admitted: list[Hashable]
    preempted: list[Hashable]
    finished: list[Hashable]  # since the record before
    running: int  # after the step, like the three that follow
    waiting: int
    used_blocks: int
    free_blocks: int
    read: int = 0  # tokens that the pass processed: the sum of all rows, like the three that follow
    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # PARTS; an engine fills them in

    def __post_init__(self):
        for row in self.rows:
            self.read += row.tokens
            self.emitted += row.emitted
            self.drafted += row.drafted
            self.accepted += row.accepted


class Metrics:
    """The last `history` steps and requests, and the sums of all."""

    def __init__(self, history: int):
        self.steps: deque[StepRecord] = deque(maxlen=history)
        self.requests: deque[dict] = deque(maxlen=history)
        sums = "steps requests tokens read emitted drafted accepted preemptions".split()
        self.totals: Counter[str] = Counter(dict.fromkeys(sums, 0))
        self.finished: Counter[str] = Counter()  # by reason
        self.seconds: Counter[str] = Counter(dict.fromkeys(PARTS, 0.0))

    def add_step(self, step: StepRecord) -> None:
        self.steps.append(step)
        self.seconds.update(step.seconds)
        counts = {name: getattr(step, name) for name in ("read", "emitted", "drafted", "accepted")}
        self.totals.update(steps=1, preemptions=len(step.preempted), **counts)

    def add_request(self, sequence: Sequence, output: Output) -> None:
        """One that has ended. Times in seconds, since it was added; None: it did not come so far."""
        tokens, first, cycles = len(output.tokens), sequence.first_token_at, sequence.trace.cycles
        figures = {
            "id": sequence.request_id,
            "finish": output.finish_reason,
            "prompt_tokens": output.prompt_tokens,
            "tokens": tokens,
            "preemptions": sequence.preemptions,
            "drafted": sum(len(cycle.drafted) for cycle in cycles),
            "accepted": sum(cycle.accepted for cycle in cycles),
            "time_to_first_token": None if first is None else first - sequence.added_at,
            "time_per_output_token": (sequence.last_token_at - first) / (tokens - 1) if first and tokens > 1 else None,
            "seconds": output.seconds,
        }
        self.requests.append(figures)
        self.totals.update(requests=1, tokens=tokens)
        self.finished[output.finish_reason] += 1

    def to_dict(self) -> dict:
        """Plain data: it goes to JSON as it is."""
        return {
            "totals": {**self.totals, "finished": dict(self.finished), "seconds": dict(self.seconds)},
            "steps": [asdict(step) for step in self.steps],
            "requests": list(self.requests),
        }
