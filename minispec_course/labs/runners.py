"""Runs over one output, timed token by token: drafters against plain decoding, and with a cache against without."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise

import torch

from minispec.drafters import Drafter
from minispec.generate import Output, generate
from minispec.load.handle import Model
from minispec.measure import interleaved_times

from .race import PLAIN, lap

CACHED, UNCACHED = "with a cache", "without"


@dataclass(frozen=True)
class Runner:
    """One run: for each token of the output how it came about, and when it was there on either clock."""

    name: str
    kinds: tuple[str, ...]  # accepted, corrected, bonus; plain where nothing was drafted
    passes: tuple[int, ...]
    seconds: tuple[float, ...]

    @classmethod
    def of(cls, name: str, out: Output) -> Runner:
        """From a trace; without one it is plain decoding, every pass of which takes about as long as the next."""
        n = len(out.tokens)
        if out.trace is None:
            return cls.plain(name, "plain", [out.seconds / n] * n)
        took = [c.draft_seconds + c.verify_seconds + c.sample_seconds for c in out.trace.cycles]
        now = out.seconds - sum(took)  # before the first cycle: the prompt
        kinds, passes, seconds = [], [], []
        for number, (cycle, own) in enumerate(zip(out.trace.cycles, took, strict=True), start=1):
            now += own
            kinds += cycle.kinds
            passes += [number] * cycle.kept
            seconds += [now] * cycle.kept
        return cls(name, tuple(kinds), tuple(passes), tuple(seconds))

    @classmethod
    def plain(cls, name: str, kind: str, took: list[float]) -> Runner:
        """A pass for every token, each with the seconds that it took."""
        return cls(name, (kind,) * len(took), tuple(range(1, len(took) + 1)), tuple(accumulate(took)))

    @property
    def took(self) -> list[float]:
        """Seconds from each token to the next."""
        return [after - before for before, after in pairwise((0.0, *self.seconds))]

    def emitted(self, clock: str, now: float) -> int:
        """Tokens that are there at this time."""
        return bisect_right(getattr(self, clock), now)

    def finish(self, clock: str) -> float:
        return getattr(self, clock)[-1]


@dataclass(frozen=True)
class Race:
    target: str
    pieces: dict[str, tuple[str, ...]]  # kind of text → the text of each token, as plain decoding wrote it
    runners: dict[str, dict[str, Runner]]  # kind of text → drafter → its run
    prompt_tokens: int = 0

    @property
    def steps(self) -> int:
        """How long the picture of a race is: as many steps as its slowest runner took passes."""
        return max(runner.finish("passes") for of_it in self.runners.values() for runner in of_it.values())

    def winners(self, kind: str, clock: str) -> list[str]:
        """Which was first, among those that draft; several if they were equally fast."""
        finish = {name: runner.finish(clock) for name, runner in self.runners[kind].items() if name != PLAIN}
        return [name for name, when in finish.items() if when == min(finish.values())]

    def gain(self, kind: str, name: str, clock: str) -> float:
        """Plain decoding's finish over this one's: tokens per pass, or speed-up."""
        return self.runners[kind][PLAIN].finish(clock) / self.runners[kind][name].finish(clock)


def run_race(
    target: Model, drafters: Mapping[str, Drafter], prompts: Mapping[str, object], k=4, new_tokens=48, repeat=3
) -> Race:
    """Let plain decoding and every drafter generate after each prompt, greedily and in turns; keep the median run of
    each. `prompts` has one prompt, as `generate` takes it, for each kind of text."""
    if not prompts or not drafters or PLAIN in drafters:
        known = f"prompts={dict(prompts)!r}, drafters={list(drafters)}"
        raise ValueError(f"{known}: give at least one of each, and call no drafter {PLAIN!r}")
    pieces, runners = {}, {}
    for kind, prompt in prompts.items():
        laps: dict[str, list[list[Output]]] = {name: [] for name in (PLAIN, *drafters)}
        calls = {
            name: partial(lap, outs, target, drafters.get(name), [prompt], k, new_tokens, temperature=0.0, seed=0)
            for name, outs in laps.items()
        }
        warmup = 0 if runners else 1  # whatever is slow once was slow over the first text
        interleaved_times(calls, repeat, warmup, target.device)
        kept = {}
        for name, rounds in laps.items():
            timed = sorted((outs[0] for outs in rounds[warmup:]), key=lambda out: out.seconds)
            kept[name] = timed[len(timed) // 2]
        pieces[kind] = _pieces(target, kept[PLAIN].tokens)
        runners[kind] = {name: Runner.of(name, out) for name, out in kept.items()}
    return Race(target.name, pieces, runners)


def _pieces(target: Model, tokens: list[int]) -> tuple[str, ...]:
    return tuple(target.decode([token]) if target.tokenizer else f" {token}" for token in tokens)


@torch.inference_mode()
def measure_race(model: Model, prompt="Once upon a time", new_tokens: int = 64, repeat: int = 3, **options) -> Race:
    """Generate greedily, then time the pass before every token with a cache and without, in turns; the median of
    `repeat` counts. `options` are those of `measure.interleaved_times`."""
    output, start = generate(model, prompt, new_tokens).tokens, model.encode(prompt)
    ids = torch.tensor([start + output], device=model.device)  # [1, n]
    cache = model.transformer.new_cache(1, ids.shape[1])
    took: dict[str, list[float]] = {CACHED: [], UNCACHED: []}
    for n in range(len(start), len(start) + len(output)):  # tokens there are when the next one is generated
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
    runners = {name: Runner.plain(name, name, seconds) for name, seconds in took.items()}
    return Race(model.name, {"": _pieces(model, output)}, {"": runners}, len(start))
