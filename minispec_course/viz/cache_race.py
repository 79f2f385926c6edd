"""The same output generated twice, with a cache and without one: a race from real passes."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from html import escape
from itertools import accumulate

import torch

from minispec.generate import generate
from minispec.load.handle import Model
from minispec.measure import interleaved_times

from . import light as go
from .panel import Panel, player
from .style import PALETTE, TEMPLATE, swatch

WAYS = {"with a cache": PALETTE[0], "without": PALETTE[1]}
STEPS = 100


@dataclass(frozen=True)
class Race:
    """Seconds of the pass before each new token, both ways, and the text the tokens spell."""

    prompt: str
    prompt_tokens: int
    pieces: tuple[str, ...]  # text of each new token
    cached: tuple[float, ...]
    uncached: tuple[float, ...]

    @property
    def finish(self) -> tuple[float, float]:
        return sum(self.cached), sum(self.uncached)

    def written(self, seconds: float) -> tuple[int, int]:
        """How many tokens are there after so many seconds, with a cache and without."""
        return tuple(bisect_right(list(accumulate(way)), seconds) for way in (self.cached, self.uncached))


@torch.inference_mode()
def measure_race(model: Model, prompt="Once upon a time", new_tokens: int = 64, repeat: int = 3, **options) -> Race:
    """Write greedily, then time the pass before every token both ways, in turns; the median of `repeat` counts.

    `options` are those of `measure.interleaved_times`.
    """
    text = generate(model, prompt, new_tokens).tokens
    start = model.encode(prompt)
    ids = torch.tensor([start + text], device=model.device)  # [1, n]
    cache = model.transformer.new_cache(1, ids.shape[1])
    cached, uncached = [], []
    for n in range(len(start), len(start) + len(text)):  # tokens there are when the next one is written
        held = int(cache.lengths[0])
        passes = {
            "cached": lambda n=n, held=held: model.transformer(ids[:, held:n], cache, last_only=True),
            "uncached": lambda n=n: model.transformer(ids[:, :n], last_only=True),
        }
        rewind = lambda held=held: cache.rewind(held)  # noqa: E731
        times = interleaved_times(passes, repeat, 1 if held == 0 else 0, model.device, reset=rewind, **options)
        passes["cached"]()  # this time it stays
        cached.append(times["cached"].median)
        uncached.append(times["uncached"].median)
    pieces = tuple(model.decode([token]) if model.tokenizer else f" {token}" for token in text)
    said = prompt if isinstance(prompt, str) else "".join(f" {token}" for token in start)
    return Race(said, len(start), pieces, tuple(cached), tuple(uncached))


def cache_race_figure(race: Race) -> go.Figure:
    """Milliseconds of every pass against the tokens there are."""
    figure = go.Figure(layout=dict(template=TEMPLATE))
    xs = [race.prompt_tokens + i for i in range(len(race.pieces))]
    for (name, colour), times in zip(WAYS.items(), (race.cached, race.uncached), strict=True):
        ms = [1e3 * t for t in times]
        figure.add_trace(go.Scatter(x=xs, y=ms, name=name, mode="lines+markers", line=dict(color=colour)))
    figure.update_traces(marker=dict(size=4), hovertemplate="after %{x} tokens: %{y:.2f} ms")
    figure.update_layout(
        title="What the next token takes", xaxis_title="tokens there are", yaxis_title="ms", yaxis_rangemode="tozero"
    )
    return figure


def cache_race_html(race: Race, seconds: float) -> str:
    """Both lanes as they stand after so many seconds: the text so far, and how much of it is done."""
    lanes, total = [], len(race.pieces)
    for (name, colour), count, end in zip(WAYS.items(), race.written(seconds), race.finish, strict=True):
        state = f"done after {end:.2f} s" if count == total else f"{count} of {total} tokens"
        done, rest = (escape("".join(part)) for part in (race.pieces[:count], race.pieces[count:]))
        bar = (
            f'<div style="height:6px;background:var(--jp-border-color2);border-radius:3px;margin:4px 0">'
            f'<div style="height:6px;width:{100 * count / total:.1f}%;background:{colour};border-radius:3px"></div>'
            "</div>"
        )
        lanes.append(
            f'<div style="flex:1 1 320px;min-width:260px"><b>{swatch(colour)}{name}</b>'
            f'<span style="float:right">{state}</span>{bar}<i>{escape(race.prompt)}</i>'
            f'{done}<span style="visibility:hidden">{rest}</span></div>'  # the lane keeps its height
        )
    label = escape(_words(race, seconds), quote=True)
    return (
        f'<div role="img" aria-label="{label}" style="display:flex;flex-wrap:wrap;gap:28px;padding-right:14px;'
        f'line-height:1.5;color:var(--jp-ui-font-color1)">{"".join(lanes)}</div>'
    )


def _words(race: Race, seconds: float) -> str:
    quick, slow = race.written(seconds)
    return (
        f"After {seconds:.3f} s: {quick} tokens with a cache, {slow} without. "
        f"The whole text takes {race.finish[0]:.2f} s with, {race.finish[1]:.2f} s without."
    )


def cache_race(race: Race) -> Panel:
    """The race on a clock: play it, or move the slider, one hundredth of the slower way at a time."""
    if not isinstance(race, Race):
        raise ValueError(f"race={race!r}: give what measure_race returns")
    last = max(race.finish)
    play, place = player("time, %", STEPS, interval=max(60, round(1e3 * last / STEPS)))

    def draw(step: int):
        seconds = last * step / STEPS if step < STEPS else last + 1e-9  # the last token is in, whatever the rounding
        return cache_race_html(race, seconds), _words(race, min(seconds, last))

    return Panel(draw, {"step": place, "play": play})
