"""Drafters racing over the same output, on two clocks: passes of the target, and seconds. From real runs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from html import escape

from minispec.drafters import Drafter
from minispec.generate import Output
from minispec.load.handle import Model
from minispec.measure import interleaved_times
from minispec_course.labs.race import PLAIN, lap

from . import light as go
from .panel import Panel, choice, player
from .style import GREY, KINDS, PALETTE, TEMPLATE

CLOCKS = {"passes of the target": "passes", "measured time": "seconds"}
COLOURS = {**KINDS, "plain": GREY}


@dataclass(frozen=True)
class Runner:
    """One run: for each token of the text how it came about, and when it was there on either clock."""

    name: str
    kinds: tuple[str, ...]  # accepted, corrected, bonus; plain where nothing was drafted
    passes: tuple[int, ...]
    seconds: tuple[float, ...]

    @classmethod
    def of(cls, name: str, out: Output) -> Runner:
        """From a trace; without one it is plain decoding, every pass of which takes about as long as the next."""
        n = len(out.tokens)
        if out.trace is None:
            every = range(1, n + 1)
            return cls(name, ("plain",) * n, tuple(every), tuple(out.seconds * i / n for i in every))
        took = [c.draft_seconds + c.verify_seconds + c.sample_seconds for c in out.trace.cycles]
        now = out.seconds - sum(took)  # before the first cycle: the prompt
        kinds, passes, seconds = [], [], []
        for number, (cycle, own) in enumerate(zip(out.trace.cycles, took, strict=True), start=1):
            now += own
            kinds += cycle.kinds
            passes += [number] * cycle.kept
            seconds += [now] * cycle.kept
        return cls(name, tuple(kinds), tuple(passes), tuple(seconds))

    def written(self, clock: str, now: float) -> int:
        """Tokens that are there at this time."""
        return bisect_right(getattr(self, clock), now)

    def finish(self, clock: str) -> float:
        return getattr(self, clock)[-1]


@dataclass(frozen=True)
class Race:
    target: str
    k: int
    pieces: dict[str, tuple[str, ...]]  # kind of text → the text of each token, as plain decoding wrote it
    runners: dict[str, dict[str, Runner]]  # kind of text → drafter → its run

    @property
    def steps(self) -> int:
        """How long the picture of a race is: as many steps as its slowest runner took passes."""
        return max(runner.finish("passes") for of_it in self.runners.values() for runner in of_it.values())

    def winners(self, kind: str, clock: str) -> list[str]:
        """Who was first, among those that draft; several if they were equally fast."""
        finish = {name: runner.finish(clock) for name, runner in self.runners[kind].items() if name != PLAIN}
        return [name for name, when in finish.items() if when == min(finish.values())]

    def gain(self, kind: str, name: str, clock: str) -> float:
        """Plain decoding's finish over this one's: tokens per pass, or speed-up."""
        return self.runners[kind][PLAIN].finish(clock) / self.runners[kind][name].finish(clock)


def run_race(
    target: Model,
    drafters: Mapping[str, Drafter],
    prompts: Mapping[str, object],
    k: int = 4,
    new_tokens: int = 48,
    repeat: int = 3,
) -> Race:
    """Let plain decoding and every drafter write after each prompt, greedily and in turns; keep the median run of each.

    `prompts` has one prompt, as `generate` takes it, for each kind of text.
    """
    if not prompts or not drafters:
        raise ValueError(f"prompts={dict(prompts)!r}, drafters={list(drafters)}: give at least one of each")
    if PLAIN in drafters:
        raise ValueError(f"drafters has one called {PLAIN!r}, which is the race's name for decoding without: rename it")
    pieces, runners = {}, {}
    for kind, prompt in prompts.items():
        laps: dict[str, list[list[Output]]] = {name: [] for name in (PLAIN, *drafters)}
        calls = {
            name: partial(lap, outs, target, drafters.get(name), [prompt], k, new_tokens, temperature=0.0, seed=0)
            for name, outs in laps.items()
        }
        warmup = 0 if runners else 1  # whatever is slow once was slow over the first text
        interleaved_times(calls, repeat, warmup, target.device)
        timed = {
            name: sorted((outs[0] for outs in rounds[warmup:]), key=lambda out: out.seconds)
            for name, rounds in laps.items()
        }
        kept = {name: outs[len(outs) // 2] for name, outs in timed.items()}
        pieces[kind] = tuple(target.decode([t]) if target.tokenizer else str(t) for t in kept[PLAIN].tokens)
        runners[kind] = {name: Runner.of(name, out) for name, out in kept.items()}
    return Race(target.name, k, pieces, runners)


def drafter_race_html(race: Race, kind: str, clock: str = "passes", step: int | None = None) -> tuple[str, str]:
    """The lanes at a step of the race, and the same in words. None: at the end.

    A step is a pass of the target, or an equal share of the time that the slowest takes.
    """
    _check(race, kind, clock)
    step = race.steps if step is None else step
    if not 0 <= step <= race.steps:
        raise ValueError(f"step={step}: give a number from 0 to {race.steps}")
    runners, pieces = race.runners[kind], race.pieces[kind]
    last = max(runner.finish(clock) for runner in runners.values())
    now = min(step, last) if clock == "passes" else last * step / race.steps
    lanes = "".join(_lane(runner, pieces, clock, now, race.winners(kind, clock)) for runner in runners.values())
    legend = " ".join(
        f'<span><span style="display:inline-block;width:11px;height:11px;border-radius:2px;background:{colour}"></span>'
        f" {name}</span>"
        for name, colour in COLOURS.items()
    )
    counts = {name: runner.written(clock, now) for name, runner in runners.items()}
    there = ", ".join(f"{name} {count}" for name, count in counts.items())
    words = f"After {_when(clock, now)}, tokens emitted of {len(pieces)}: {there}."
    first = race.winners(kind, clock)
    best = _when(clock, runners[first[0]].finish(clock))
    if counts[first[0]] == len(runners[first[0]].kinds):
        words += f" First at the end: {' and '.join(first)}, after {best}."
    return (
        f'<div role="img" aria-label="{escape(words)}" style="color:var(--jp-ui-font-color1);font-size:13px;'
        'line-height:1.4;padding-right:14px">'
        f'<div style="display:flex;gap:16px;flex-wrap:wrap;margin:4px 0 8px">{legend}'
        f'<span style="margin-left:auto;font-variant-numeric:tabular-nums">{_when(clock, now)}</span></div>'
        f"{lanes}</div>",
        words,
    )


def _lane(runner: Runner, pieces: tuple[str, ...], clock: str, now: float, winners: list[str]) -> str:
    """A name, a cell for every token (a gap before each pass of the target), and how far it is."""
    done = runner.written(clock, now)
    cells, before = [], 0
    for i, (kind, number) in enumerate(zip(runner.kinds, runner.passes, strict=True)):
        colour = COLOURS[kind] if i < done else "color-mix(in srgb, var(--jp-ui-font-color1) 9%, transparent)"
        gap = 3 if number != before and i else 0
        title = escape(pieces[i]) if i < len(pieces) else ""
        cells.append(
            f'<span title="{title}" style="flex:1;height:16px;border-radius:2px;margin-left:{gap}px;'
            f'background:{colour}"></span>'
        )
        before = number
    ended = done == len(runner.kinds)
    state = f"{_when(clock, runner.finish(clock))}" if ended else f"{done} tokens"
    mark = " ★" if ended and runner.name in winners else ""
    return (
        '<div style="display:grid;grid-template-columns:110px minmax(0,1fr) 96px;gap:10px;align-items:center;'
        'margin:3px 0">'
        f'<span style="text-align:right;font-weight:{600 if mark else 400}">{escape(runner.name)}</span>'
        f'<span style="display:flex;gap:1px">{"".join(cells)}</span>'
        f'<span style="font-variant-numeric:tabular-nums;white-space:nowrap">{state}{mark}</span></div>'
    )


def drafter_race_figure(race: Race, clock: str = "passes") -> go.Figure:
    """The end of every race: tokens per pass, or the speed-up over plain decoding, by kind of text."""
    _check(race, next(iter(race.runners)), clock)
    kinds = list(race.runners)
    names = [name for name in race.runners[kinds[0]] if name != PLAIN]
    what = "tokens per pass of the target" if clock == "passes" else "speed-up over plain decoding"
    figure = go.Figure(layout=dict(template=TEMPLATE))
    for i, name in enumerate(names):
        gains = [race.gain(kind, name, clock) for kind in kinds]
        figure.add_bar(
            x=kinds,
            y=gains,
            name=name,
            text=[
                f"{gain:.1f}" + ("★" if name in race.winners(kind, clock) else "")
                for gain, kind in zip(gains, kinds, strict=True)
            ],
            textposition="outside",
            cliponaxis=False,
            textfont=dict(size=11),
            marker=dict(color=PALETTE[i % len(PALETTE)], pattern=dict(shape="/" if i >= len(PALETTE) else "")),
            hovertemplate=f"{escape(name)}<br>%{{x}}: %{{y:.2f}}<extra></extra>",
        )
    figure.add_hline(y=1, line=dict(color=GREY, dash="dash", width=1))
    figure.update_layout(
        title=f"{what}, by kind of text (dashed: plain; ★ the best)",
        yaxis_title=what,
        barmode="group",
        legend=dict(orientation="h", y=-0.12),
    )
    return figure


def drafter_race(race: Race) -> Panel:
    """Play the race: choose the text and the clock."""
    play, place = player("clock", race.steps, interval=400)
    place.value = race.steps // 4
    controls = {
        "step": place,
        "play": play,
        "kind": choice("text", list(race.runners)),
        "clock": choice("count", CLOCKS),
    }
    return Panel(lambda step, kind, clock: drafter_race_html(race, kind, clock, step), controls)


def _when(clock: str, now: float) -> str:
    return f"{now} {'pass' if now == 1 else 'passes'}" if clock == "passes" else f"{1000 * now:.0f} ms"


def _check(race: Race, kind: str, clock: str) -> None:
    if kind not in race.runners:
        raise ValueError(f"kind={kind!r} was not raced over: give one of {', '.join(race.runners)}")
    if clock not in CLOCKS.values():
        raise ValueError(f"clock={clock!r}: give one of {', '.join(CLOCKS.values())}")
