"""Why is it slower? One valid set-up and five with a single fault each, recorded with their traces.

    mismatched draft    the layers of the draft were loaded in the wrong order
    k too large         sixteen draft tokens per cycle instead of three
    launch overhead     a draft of many thin layers: a third of the target's bytes, but every layer has to be started
    full batch          many sequences at once, so that a pass has no idle arithmetic left
    wrong kernel        the target's GEMM repacks its weights in every pass of more than one token

Lesson 07 shows the recorded numbers and lets the learner diagnose. `minispec bench slower` makes them anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from minispec import theory
from minispec.load.registry import DATA
from minispec.trace import Trace

RECORDED = DATA / "traces" / "slower.json"
SOUND = "sound"
FAULTS = ("mismatched draft", "k too large", "launch overhead", "full batch", "wrong kernel")


@dataclass(frozen=True)
class Case:
    """One set-up: its trace, and the times that a trace alone does not tell. Seconds."""

    name: str  # SOUND, or one of FAULTS
    k: int
    rows: int  # in the batch
    trace: Trace  # of up to eight rows; the seconds of a cycle are shared by all rows of its step
    one_pass: float  # a plain pass of as many rows
    plain: float  # plain decoding, a token of the median of eight stories, everything included
    speculative: float  # the same with drafts
    bytes_ratio: float  # what a token makes the draft read / what it makes the target read

    @property
    def alpha(self) -> float:
        return self.trace.acceptance_rate

    @property
    def tokens_per_pass(self) -> float:
        return self.trace.tokens_per_cycle

    @property
    def median_tokens(self) -> float:
        """Tokens per pass of the median story, to which `plain` and `speculative` belong; a batch has one time."""
        cycles, size = self.trace.cycles, len(self.trace.cycles) // 8 or 1 if self.rows == 1 else len(self.trace.cycles)
        return median(Trace(cycles[i : i + size]).tokens_per_cycle for i in range(0, len(cycles), size))

    @property
    def c(self) -> float:
        """t_draft / t_target."""
        return median(cycle.draft_seconds for cycle in self.trace.cycles) / self.k / self.one_pass

    @property
    def v(self) -> float:
        """t_verify(K + 1) / t_target(1), at this batch."""
        return median(cycle.verify_seconds for cycle in self.trace.cycles) / self.one_pass

    @property
    def predicted(self) -> float:
        return theory.speedup(self.alpha, self.k, self.c, self.v)

    @property
    def measured(self) -> float:
        return self.plain / self.speculative

    def numbers(self) -> dict[str, float]:
        """All that the learner gets to see."""
        return {
            "batch": self.rows,
            "k": self.k,
            "α": self.alpha,
            "tokens per pass": self.tokens_per_pass,
            "c": self.c,
            "c by bytes": self.bytes_ratio,
            "v": self.v,
            "predicted": self.predicted,
            "measured": self.measured,
        }

    def to_dict(self) -> dict:
        cycles = [asdict(cycle) for cycle in self.trace.cycles]
        for cycle in cycles:  # a few digits will do, and keep the file small
            cycle["p"], cycle["q"] = ([round(x, 3) for x in cycle[name]] for name in "pq")
            cycle |= {part: round(cycle[part], 6) for part in ("draft_seconds", "verify_seconds", "sample_seconds")}
        own = {field: getattr(self, field) for field in self.__dataclass_fields__}
        return own | {"trace": json.dumps(cycles, separators=(",", ":"))}  # in one line, as Trace.from_json reads it

    @classmethod
    def from_dict(cls, raw: dict) -> Case:
        return cls(**{**raw, "trace": Trace.from_json(raw["trace"])})


def cases(file: Path = RECORDED) -> dict[str, Case]:
    """The recorded cases, by name, the valid one first."""
    return {raw["name"]: Case.from_dict(raw) for raw in json.loads(file.read_text(encoding="utf-8"))["cases"]}


def unnamed_order(runs: Iterable[str]) -> list[str]:
    """The faults among these, in an order that gives nothing away."""
    return sorted((name for name in runs if name != SOUND), key=lambda name: name[::-1])


def table(runs: Mapping[str, Case]) -> str:
    """The numbers of all runs, a line each, without the names of the faults, which are for the learner to find."""
    lines = [" " * 8 + "".join(f"{name:>{max(6, len(name)) + 2}}" for name in runs[SOUND].numbers())]
    for i, fault in enumerate([SOUND, *unnamed_order(runs)]):
        numbers = runs[fault].numbers().items()
        cells = (f"{x:>{max(6, len(n)) + 2}{'.2f' if isinstance(x, float) else 'd'}}" for n, x in numbers)
        lines.append((f"set-up {i}" if i else "valid   ") + "".join(cells))
    return "\n".join(lines)
