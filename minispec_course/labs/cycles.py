"""The draft–verify cycle as data: where the time of a recorded one goes, and the stages of a run."""

from __future__ import annotations

import json
from dataclasses import dataclass

from minispec.load.registry import BENCHMARKS
from minispec.trace import Cycle, Trace

H200 = BENCHMARKS / "speculate.json"
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
    host: float  # the rest of the cycle: sampling, Python, and waiting

    @property
    def cycle(self) -> float:
        return self.draft + self.verify + self.host

    @property
    def speedup(self) -> float:
        """As many tokens by plain decoding, over the cycle."""
        return self.tokens * self.plain / self.cycle

    @classmethod
    def recorded(cls) -> CycleParts:
        """From the result of `minispec bench speculate`, whose cycle is one launch, sampling included."""
        result = json.loads(H200.read_text(encoding="utf-8"))
        took, k = {name: timing["median"] for name, timing in result["seconds"].items()}, result["k"]
        draft, verify = k * took["draft, a token"], took["verify pass"]
        where = result["machine"]["gpus"][0]["name"].removeprefix("NVIDIA ")
        name = f"{where}, recorded {result['date']} ({result['shape']} shape)"
        host = max(0.0, took["whole cycle"] - draft - verify)
        return cls(name, k, result["tokens_per_cycle"], took["plain token"], draft, verify, host)


@dataclass(frozen=True)
class Step:
    """One stage of one cycle, as it stands when the stage is over."""

    cycle: int  # from 0
    stage: str  # one of STAGES
    emitted: int  # tokens so far
    passes: int  # of the target, whose tokens are among them


def steps(trace: Trace) -> list[Step]:
    """Every stage of a run whose drafts are chains."""
    found, emitted = [], 0
    for i, cycle in enumerate(trace.cycles):
        if cycle.parents is not None:
            raise ValueError(f"trace: cycle {i} drafted a tree; the stepper shows chains: give a run of drafters.Model")
        found += [Step(i, "draft", emitted, i), Step(i, "verify", emitted, i)]
        emitted += cycle.kept
        found.append(Step(i, "rewind", emitted, i + 1))
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
