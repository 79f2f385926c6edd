"""Runs over one output, timed: drafters against plain decoding, and passes with a cache against passes without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from minispec.drafters import Drafter
from minispec.generate import Output, generate
from minispec.load.handle import Model
from minispec.measure import interleaved_times
from minispec.speculate import speculate

PLAIN, CACHED, UNCACHED = "plain", "with a cache", "without"


@dataclass(frozen=True)
class Runner:
    passes: int  # of the target
    took: list[float]  # seconds of each pass, or of the whole run where its passes were not timed one by one

    def finish(self, clock: str) -> float:
        """What the whole run took, in "passes" or "seconds"."""
        return self.passes if clock == "passes" else sum(self.took)


@dataclass(frozen=True)
class Race:
    target: str
    pieces: dict[str, list[int]]  # kind of text → its tokens, as plain decoding emitted them
    runners: dict[str, dict[str, Runner]]  # kind of text → drafter → its run
    prompt_tokens: int = 0

    def gain(self, kind: str, name: str, clock: str) -> float:
        """Plain decoding's finish over this one's: tokens per pass, or speed-up."""
        return self.runners[kind][PLAIN].finish(clock) / self.runners[kind][name].finish(clock)


def run_race(
    target: Model, drafters: Mapping[str, Drafter], prompts: Mapping[str, object], k=4, new_tokens=48, repeat=3
) -> Race:
    """Let plain decoding and every drafter generate after each prompt, greedily and in turns; keep the median run of
    each. `prompts` has one prompt, as `generate` takes it, for each kind of text."""
    pieces, runners = {}, {}
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
        pieces[kind] = median[PLAIN].tokens
        runners[kind] = {
            name: Runner(out.trace.target_passes if out.trace else len(out.tokens), [out.seconds])
            for name, out in median.items()
        }
    return Race(target.name, pieces, runners)


@torch.inference_mode()
def measure_race(model: Model, prompt="Once upon a time", new_tokens: int = 64, repeat: int = 3, **options) -> Race:
    """Generate greedily, then time the pass before every token with a cache and without, in turns; the median of
    `repeat` counts. `options` are those of `measure.interleaved_times`."""
    output, start = generate(model, prompt, new_tokens).tokens, model.encode(prompt)
    ids = torch.tensor([start + output], device=model.device)  # [1, n]
    cache = model.transformer.new_cache(1, ids.shape[1])
    took: dict[str, list[float]] = {CACHED: [], UNCACHED: []}
    for n in range(len(start), len(start) + len(output)):  # tokens so far when the next one is generated
        held = int(cache.lengths[0])
        passes = {
            CACHED: lambda n=n, held=held: model.transformer(ids[:, held:n], cache, last_only=True),
            UNCACHED: lambda n=n: model.transformer(ids[:, :n], last_only=True),
        }
        rewind = lambda held=held: cache.rewind(held)  # noqa: E731
        times = interleaved_times(passes, repeat, 1 if held == 0 else 0, model.device, reset=rewind, **options)
        passes[CACHED]()  # this time it stays
        for name, seconds in took.items():
            seconds.append(times[name].median)
    runners = {name: Runner(len(output), seconds) for name, seconds in took.items()}
    return Race(model.name, {"": output}, {"": runners}, len(start))
