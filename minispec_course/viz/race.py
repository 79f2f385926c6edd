"""Runs racing over the same output, on two clocks: passes of the target, and seconds. From real runs.

Drafters race against plain decoding, and decoding with a cache races against decoding without one.
"""

from __future__ import annotations

from ..labs.runners import CACHED, UNCACHED, Race
from .drawing import INK, RULE, Canvas, shorten, visible
from .panel import Panel, choice, player
from .style import GREY, KINDS, PALETTE

CLOCKS = {"passes of the target": "passes", "measured time": "seconds"}
COLOURS = {**KINDS, "plain": GREY, CACHED: PALETTE[0], UNCACHED: PALETTE[1]}
STEPS = 100  # of a race that counts seconds only


def lanes(race: Race, kind: str, clock: str, now: float) -> tuple[str, str]:
    """A lane for each runner, with a cell for every token and a gap before each pass, and the same in words."""
    runners, pieces, first = race.runners[kind], race.pieces[kind], race.winners(kind, clock)
    canvas, wide = Canvas(70 + 46 * len(runners)), 500
    kinds = dict.fromkeys(kind for runner in runners.values() for kind in runner.kinds)
    canvas.key(14, 24, [(COLOURS[kind], kind) for kind in kinds]).text(746, 24, _when(clock, now), 13, "end", True)
    for y, (name, runner) in zip(range(56, 56 + 46 * len(runners), 46), runners.items(), strict=True):
        done, total, gaps = runner.emitted(clock, now), len(runner.kinds), len(set(runner.passes)) - 1
        gap = min(3.0, 100 / max(1, gaps))
        cell, x = (wide - gap * gaps) / total, 130.0
        for i, (token_kind, number) in enumerate(zip(runner.kinds, runner.passes, strict=True)):
            x += gap if i and number != runner.passes[i - 1] else 0
            told = visible(pieces[i]) if i < len(pieces) else ""
            colour = COLOURS[token_kind] if i < done else RULE
            canvas.rect(x, y, cell - 0.7, 16, colour, None, 1 if i < done else 0.3, 1, title=told)
            x += cell
        won = done == total and name in first
        state = _when(clock, runner.finish(clock)) + " ★" * won if done == total else f"{done} of {total}"
        canvas.text(122, y + 13, shorten(name, 116), 13, "end", won).text(640, y + 13, state, 13, bold=won)
        said = "".join(pieces[:done]).replace("\n", " ")
        while said and 7 * len(said) > wide:  # the end of the output so far
            said = "…" + said[-int(wide / 7) + 1 :]
        canvas.text(130, y + 31, said, 12, colour=INK)
    counts = {name: runner.emitted(clock, now) for name, runner in runners.items()}
    there = ", ".join(f"{name} {count}" for name, count in counts.items())
    words = f"After {_when(clock, now)}, tokens emitted of {len(pieces)}: {there}."
    if counts[first[0]] == len(runners[first[0]].kinds):
        words += f" First at the end: {' and '.join(first)}, after {_when(clock, runners[first[0]].finish(clock))}."
    return canvas.svg(words), words


def _when(clock: str, now: float) -> str:
    return f"{now:g} {'pass' if now == 1 else 'passes'}" if clock == "passes" else f"{1000 * now:.0f} ms"


def drafter_race(race: Race) -> Panel:
    """Play the race: choose the text and the clock. A step is a pass of the target, or an equal share of the time that
    the slowest takes."""

    def draw(step: int, kind: str, clock: str) -> tuple[str, str]:
        last = max(runner.finish(clock) for runner in race.runners[kind].values())
        return lanes(race, kind, clock, min(step, last) if clock == "passes" else last * (step / race.steps))

    menus = {"kind": choice("text", list(race.runners)), "clock": choice("count", CLOCKS)}
    return Panel(draw, player("clock", race.steps, 400, race.steps // 4) | menus)


def cache_race(race: Race) -> Panel:
    """The race on a clock: play it, or move the slider, one hundredth of the slower way at a time."""
    last = max(runner.finish("seconds") for runner in race.runners[""].values())
    draw = lambda step: lanes(race, "", "seconds", last * (step / STEPS))  # noqa: E731
    return Panel(draw, player("time, %", STEPS, max(60, round(1e3 * last / STEPS))))
