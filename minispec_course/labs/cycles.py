"""The draft–verify cycle as data: where its time goes, and the stages of a run with both caches and a clock.

Tokens and verdicts are a Trace's; the lengths of both caches follow from it by the rules of speculate.py. The
lengths of the passes in time are those of the run itself, or recorded on an H200.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from minispec.drafters import Drafter
from minispec.generate import generate
from minispec.load.handle import Model
from minispec.load.registry import BENCHMARKS
from minispec.speculate import speculate
from minispec.trace import Cycle, Trace

H200 = BENCHMARKS / "speculate.json"
PARTS = {"drafting, k times": "draft", "verify pass": "verify", "sampling": "sample", "host and rest": "host"}
STAGES, DISCARDED = ("draft", "verify", "rewind"), "discarded"


@dataclass(frozen=True)
class CycleParts:
    """Seconds of one cycle, by what they were spent on, and of one plain decoding step."""

    name: str
    k: int
    tokens: float  # emitted per cycle
    plain: float
    draft: float  # of the whole draft, k tokens
    verify: float
    sample: float
    host: float  # the rest of the cycle: Python, and waiting

    @property
    def cycle(self) -> float:
        return self.draft + self.verify + self.sample + self.host

    @property
    def speedup(self) -> float:
        """As many tokens by plain decoding, over the cycle."""
        return self.tokens * self.plain / self.cycle

    @classmethod
    def recorded(cls, file: Path = H200) -> CycleParts:
        """From the result of `python -m benchmarks speculate`, whose cycle is one launch, sampling included."""
        result = json.loads(Path(file).read_text(encoding="utf-8"))
        took, k = {name: timing["median"] for name, timing in result["seconds"].items()}, result["k"]
        draft, verify = k * took["draft, a token"], took["verify pass"]
        where = result["machine"]["gpus"][0]["name"].removeprefix("NVIDIA ")
        name = f"{where}, recorded {result['date']} ({result['shape']} shape)"
        host = max(0.0, took["whole cycle"] - draft - verify)
        return cls(name, k, result["tokens_per_cycle"], took["plain token"], draft, verify, 0.0, host)


def measure_cycle(
    target: Model, drafter: Drafter, prompt, k: int = 4, new_tokens: int = 48, repeat: int = 5, **options
) -> CycleParts:
    """Time cycles of real runs, here and now: the median of `repeat` of them, in turn with plain decoding.

    A cycle lasts from one call of `on_cycle` to the next, so the prompt is left out. Draft, verify and sampling come
    from the trace, and what they leave of the cycle is the host. `options` are those of `speculate`.
    """
    options = dict(ignore_eos=True) | options
    rows = []
    for turn in range(repeat + 1):
        stamps: list[float] = []
        note = lambda _, stamps=stamps: stamps.append(time.perf_counter())  # noqa: E731
        out = speculate(target, prompt, drafter, k, new_tokens, on_cycle=note, **options)
        step = plain_step(target, prompt, new_tokens, options)
        if turn and len(stamps) > 1:  # the first turn compiles and captures
            timed = out.trace.cycles[1:]
            parts = [fmean(getattr(c, f"{part}_seconds") for c in timed) for part in ("draft", "verify", "sample")]
            whole = (stamps[-1] - stamps[0]) / len(timed)
            rows.append((out.trace.tokens_per_cycle, step, *parts, max(0.0, whole - sum(parts))))
    if not rows:
        raise ValueError(f"new_tokens={new_tokens} took one cycle: ask for more, a cycle is timed from the one before")
    medians = (median(column) for column in zip(*rows, strict=True))
    return CycleParts(f"this machine, measured just now ({target.label})", k, *medians)


def plain_step(target: Model, prompt, new_tokens: int, options: dict) -> float:
    """Seconds of a plain decoding step: what a longer output takes more than one of a single token."""
    long, short = (generate(target, prompt, n, **options).seconds for n in (new_tokens, 1))
    return (long - short) / (new_tokens - 1)


def cycle_words(runs: Sequence[CycleParts]) -> str:
    """Where the time goes in words, two lines per machine."""
    lines = []
    for run in runs:
        shares = ", ".join(f"{label} {getattr(run, part) / run.cycle:.0%}" for label, part in PARTS.items())
        lines.append(f"{run.name}, k = {run.k}: {1e3 * run.cycle:.2f} ms per cycle ({shares})")
        lines.append(f"  {run.tokens:.2f} tokens per cycle, plain {1e3 * run.plain:.2f} ms each: {run.speedup:.2f} ×")
    return "\n".join(lines)


@dataclass(frozen=True)
class Step:
    """One stage of one cycle, as it stands when the stage is over."""

    cycle: int  # from 0
    stage: str  # one of STAGES
    target_cache: int  # tokens whose keys and values each model holds
    draft_cache: int
    emitted: int  # tokens so far
    passes: int  # of the target, so far


def steps(trace: Trace) -> list[Step]:
    """Every stage of a run of `drafters.Model`: its drafts are chains, and it has a cache of its own.

    With n tokens committed, the target enters a cycle holding n − 1. It processes the last one and k draft tokens, and
    keeps the last one and the accepted ones. The draft model processes the last one and k − 1 of its own, because what
    follows the k-th is not needed.
    """
    found, emitted, draft = [], 0, 0
    for i, cycle in enumerate(trace.cycles):
        if cycle.parents is not None:
            raise ValueError(f"trace: cycle {i} drafted a tree; the stepper shows chains: give a run of drafters.Model")
        n, k = cycle.committed, len(cycle.drafted)
        draft = n + k - 1 if k else draft  # no room for a draft, so none is made
        found.append(Step(i, "draft", n - 1, draft, emitted, i))
        found.append(Step(i, "verify", n + k, draft, emitted, i + 1))
        draft, emitted = min(draft, n + cycle.accepted), emitted + cycle.kept
        found.append(Step(i, "rewind", n + cycle.accepted, draft, emitted, i + 1))
    return found


def chips(cycle: Cycle, stage: str) -> list[tuple[int, str]]:
    """The tokens of a cycle with their kinds, as a stage knows them: drafted only, then judged, then what remains."""
    if stage == "draft":
        return [(token, "drafted") for token in cycle.drafted]
    emitted = list(zip(cycle.tokens, cycle.kinds, strict=True))
    if stage == "rewind":
        return emitted
    passed = min(cycle.accepted, cycle.kept)  # an end of the output discards what comes after it
    thrown = [(token, DISCARDED) for token in cycle.drafted[passed:]]
    return [*emitted[:passed], *thrown[:1], *emitted[passed:], *thrown[1:]]


@dataclass(frozen=True)
class Clock:
    """How long the passes of a run take: as recorded elsewhere (`parts`), or as they were timed in the run itself."""

    name: str
    plain: float  # seconds of a plain decoding step
    parts: CycleParts | None = None

    def times(self, cycle: Cycle) -> tuple[float, float, float]:
        """(the whole draft, the verify pass, the rest of the cycle) in seconds."""
        if self.parts is None:
            return cycle.draft_seconds, cycle.verify_seconds, cycle.sample_seconds
        whole = self.parts
        return whole.draft / whole.k * len(cycle.drafted), whole.verify, whole.cycle - whole.draft - whole.verify

    def at(self, trace: Trace, step: Step) -> float:
        """Seconds from the first cycle's begin to the end of this stage. Rewinding is a pointer: it takes no time."""
        done = sum(sum(self.times(cycle)) for cycle in trace.cycles[: step.cycle])
        draft, verify, rest = self.times(trace.cycles[step.cycle])
        return done + (draft if step.stage == "draft" else draft + verify + rest)


def recorded_clock() -> Clock:
    parts = CycleParts.recorded()
    return Clock(parts.name, parts.plain, parts)
