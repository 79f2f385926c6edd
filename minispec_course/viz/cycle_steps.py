"""What the cycle stepper shows, as data: the stages of a run, its tokens by kind, and the clock."""

from __future__ import annotations

from dataclasses import dataclass

from minispec.trace import Cycle, Trace

from .cycle_parts import CycleParts

STAGES = ("draft", "verify", "rewind")
THROWN = "discarded"


@dataclass(frozen=True)
class Step:
    """One stage of one cycle, as it stands when the stage is over."""

    cycle: int  # from 0
    stage: str  # one of STAGES
    target_cache: int  # tokens whose keys and values each model holds
    draft_cache: int
    written: int  # tokens put out so far
    passes: int  # of the target, so far


def steps(trace: Trace) -> list[Step]:
    """Every stage of a run of `drafters.Model`: its drafts are chains, and it has a cache of its own.

    With n tokens committed, the target enters a cycle holding n − 1. It processes the last one and k draft tokens, and
    keeps the last one and the accepted ones. The draft model processes the last one and k − 1 of its own, because what
    follows the k-th is not needed.
    """
    found, written, draft = [], 0, 0
    for i, cycle in enumerate(trace.cycles):
        if cycle.parents is not None:
            raise ValueError(f"trace: cycle {i} drafted a tree; the stepper shows chains: give a run of drafters.Model")
        n, k = cycle.committed, len(cycle.drafted)
        draft = n + k - 1 if k else draft  # no room for a draft, so none is made
        found.append(Step(i, "draft", n - 1, draft, written, i))
        found.append(Step(i, "verify", n + k, draft, written, i + 1))
        draft, written = min(draft, n + cycle.accepted), written + cycle.kept
        found.append(Step(i, "rewind", n + cycle.accepted, draft, written, i + 1))
    return found


def chips(cycle: Cycle, stage: str) -> list[tuple[int, str]]:
    """The tokens of a cycle with their kinds, as a stage knows them: drafted only, then judged, then what remains."""
    if stage == "draft":
        return [(token, "drafted") for token in cycle.drafted]
    put_out = list(zip(cycle.tokens, cycle.kinds, strict=True))
    if stage == "rewind":
        return put_out
    passed = min(cycle.accepted, cycle.kept)  # an end of the output discards what comes after it
    thrown = [(token, THROWN) for token in cycle.drafted[passed:]]
    return [*put_out[:passed], *thrown[:1], *put_out[passed:], *thrown[1:]]


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
        return (
            self.parts.draft / self.parts.k * len(cycle.drafted),
            self.parts.verify,
            self.parts.cycle - (self.parts.draft + self.parts.verify),
        )

    def at(self, trace: Trace, step: Step) -> float:
        """Seconds from the first cycle's begin to the end of this stage. Rewinding is a pointer: it takes no time."""
        done = sum(sum(self.times(cycle)) for cycle in trace.cycles[: step.cycle])
        draft, verify, rest = self.times(trace.cycles[step.cycle])
        return done + (draft if step.stage == "draft" else draft + verify + rest)


def recorded_clock() -> Clock:
    parts = CycleParts.recorded()
    return Clock(parts.name, parts.plain, parts)


def ordinal(i: int) -> str:
    return f"{i}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(i % 10 if i // 10 % 10 != 1 else 0, 'th') }"
