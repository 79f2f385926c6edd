"""What happened in a speculative run: one Cycle per sequence and target pass. The course draws its pictures from this.

A *cycle* is one draft-verify iteration (papers say iteration, or decoding step).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .tree import Draft


def synchronize(device) -> None:
    """Wait until the device has done what it was asked to."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


class Clock:
    """Divides time among parts: each ends with a lap. On a CUDA device that is when the work launched until then has
    ended. The device notes it itself (a CUDA event), so a lap waits for nothing, and `rest` does the sums."""

    def __init__(self, *parts: str, device="cpu"):
        self.seconds, self.device = dict.fromkeys(parts, 0.0), torch.device(device)
        self.began = self.last = time.perf_counter()
        self.laps = [("", self.event())] if self.device.type == "cuda" else None

    def event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def lap(self, part: str) -> None:
        if self.laps:
            self.laps.append((part, self.event()))
            return
        now = time.perf_counter()
        self.seconds[part] += now - self.last
        self.last = now

    def rest(self, part: str) -> None:
        """What the laps have left of the time until now. By now the host should have what the device made in them, so
        that nothing is waited for. What was launched after them may still run: its end counts in the next rest."""
        for (_, start), (lap, end) in pairwise(self.laps or ()):
            end.synchronize()
            self.seconds[lap] += start.elapsed_time(end) / 1e3
        self.seconds[part] += max(0.0, time.perf_counter() - self.began - sum(self.seconds.values()))


@dataclass
class Cycle:
    """One draft, one verification, one sequence."""

    drafted: list[int]  # tokens, in draft order
    parents: list[int] | None  # of a tree; None: a chain
    p: list[float]  # what the target gave each draft token, in its position
    q: list[float]  # what the drafter gave it (1 where it was not sampled at all)
    path: list[int]  # indices of the accepted ones
    token: int  # emitted after them: the correction, or the bonus
    bonus: bool  # nothing was drafted after the last accepted one: so no correction
    kept: int  # tokens of this cycle that are part of the output; fewer than accepted + 1 where the text ended
    committed: int  # tokens before the cycle, prompt included; the target's cache held one less
    lossless: bool = True  # False: judged by typical acceptance, which biases the target's distribution
    draft_seconds: float = 0.0  # the three of them are shared by the sequences of a batch
    verify_seconds: float = 0.0
    sample_seconds: float = 0.0

    @classmethod
    def of(cls, draft: Draft, path: list[int], token: int, p, q, committed: int, lossless: bool = True) -> Cycle:
        """What one sequence's draft came to. `p` and `q` may be padded at the end; q=None: nothing was sampled."""
        n, kept = len(draft.tokens), len(path) + 1
        q = [1.0] * n if q is None else q[:n]
        bonus = (path[-1] if path else -1) not in draft.node_parents  # nothing was drafted after that node
        return cls(draft.tokens, draft.parents, p[:n], q, path, token, bonus, kept, committed, lossless)

    def took(self, draft: float, verify: float, sample: float) -> None:
        self.draft_seconds, self.verify_seconds, self.sample_seconds = draft, verify, sample

    @property
    def accepted(self) -> int:
        return len(self.path)

    @property
    def tested(self) -> int:
        """Draft tokens up to the first rejection, that one included; of a tree, depths."""
        return self.accepted + (not self.bonus)

    @property
    def tokens(self) -> list[int]:
        """What the cycle emitted."""
        return [*(self.drafted[i] for i in self.path), self.token][: self.kept]

    @property
    def kinds(self) -> list[str]:
        """One of "accepted", "corrected", "bonus" for each token emitted."""
        return [*("accepted" for _ in self.path), "bonus" if self.bonus else "corrected"][: self.kept]


@dataclass
class Trace:
    cycles: list[Cycle] = field(default_factory=list)
    plain: int = 0  # passes for which no draft was asked, in an engine

    @classmethod
    def of(cls, outputs: Iterable) -> Trace:
        """The cycles of several outputs, all of them weighing the same. Plain decoding has none."""
        traces = [out.trace for out in outputs if out.trace]
        return cls([cycle for trace in traces for cycle in trace.cycles], sum(trace.plain for trace in traces))

    @property
    def target_passes(self) -> int:
        return len(self.cycles) + self.plain

    @property
    def tokens_per_cycle(self) -> float:
        """E[N], measured: accepted drafts plus one, also where the end of the output threw some of them away."""
        return 1 + sum(cycle.accepted for cycle in self.cycles) / max(1, self.target_passes)

    @property
    def drafted_per_cycle(self) -> float:
        return sum(len(cycle.drafted) for cycle in self.cycles) / max(1, self.target_passes)

    @property
    def acceptance_rate(self) -> float:
        """α, measured: of the drafts that were tested (up to the first rejection), how many passed."""
        return sum(cycle.accepted for cycle in self.cycles) / max(1, sum(cycle.tested for cycle in self.cycles))

    @property
    def acceptance_by_position(self) -> list[float]:
        """β_i, measured: P(draft i passes | those before it did). Chains only."""
        tests = range(max((cycle.tested for cycle in self.cycles), default=0))
        return [sum(c.accepted > i for c in self.cycles) / sum(c.tested > i for c in self.cycles) for i in tests]

    def seconds(self, part: str) -> float:
        """Total time of one part: "draft", "verify" or "sample"."""
        return sum(getattr(cycle, f"{part}_seconds") for cycle in self.cycles)

    def to_json(self) -> str:
        return json.dumps([asdict(cycle) for cycle in self.cycles])

    @classmethod
    def from_json(cls, text: str) -> Trace:
        return cls([Cycle(**cycle) for cycle in json.loads(text)])
