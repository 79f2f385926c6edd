"""Drafters against plain decoding, over the same output: passes of the target, and seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minispec.drafters import Drafter
from minispec.generate import Output, generate
from minispec.load.handle import Model
from minispec.measure import interleaved_times
from minispec.speculate import speculate

PLAIN = "plain"


@dataclass(frozen=True)
class Runner:
    passes: int  # of the target
    seconds: float

    def finish(self, clock: str) -> float:
        """What the run took, in "passes" or "seconds"."""
        return getattr(self, clock)


@dataclass(frozen=True)
class Race:
    target: str
    runners: dict[str, dict[str, Runner]]  # kind of text → drafter → its run

    def gain(self, kind: str, name: str, clock: str) -> float:
        """Plain decoding's finish over this one's: tokens per pass, or speed-up."""
        return self.runners[kind][PLAIN].finish(clock) / self.runners[kind][name].finish(clock)


def run_race(
    target: Model, drafters: Mapping[str, Drafter], prompts: Mapping[str, object], k=4, new_tokens=48, repeat=3
) -> Race:
    """Let plain decoding and every drafter generate after each prompt, greedily and in turns; keep the median run of
    each. `prompts` has one prompt, as `generate` takes it, for each kind of text."""
    runners: dict[str, dict[str, Runner]] = {}
    for kind, prompt in prompts.items():
        outs: dict[str, list[Output]] = {name: [] for name in (PLAIN, *drafters)}

        def run(name: str, prompt=prompt, outs=outs) -> None:
            drafter = drafters.get(name)
            plain = drafter is None
            out = generate(target, prompt, new_tokens) if plain else speculate(target, prompt, drafter, k, new_tokens)
            outs[name].append(out)

        warmup = 0 if runners else 1  # whatever is slow once was slow over the first text
        interleaved_times({name: lambda name=name: run(name) for name in outs}, repeat, warmup, target.device)
        median = {name: sorted(some[warmup:], key=lambda out: out.seconds)[repeat // 2] for name, some in outs.items()}
        runners[kind] = {
            name: Runner(out.trace.target_passes if out.trace else len(out.tokens), out.seconds)
            for name, out in median.items()
        }
    return Race(target.name, runners)
