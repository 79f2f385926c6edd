"""Timelines of several ranks at work: tensor, pipeline and expert parallelism, from runs that really happened.

They were recorded once: every rank a process with one thread, and the fastest of sixty runs, disturbed least. What
crosses between processes of one machine here crosses NVLink or a network elsewhere, so the shape is to be looked at,
not the milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minispec import theory
from minispec.load.registry import DATA

from .drawing import INK, RULE, Axes, Canvas
from .panel import Panel, choice, slider

STORED = DATA / "traces" / "parallel.json"
COMPUTE, TALK, WAIT = "compute", "communicate", "wait"
COLOURS = {COMPUTE: "#0072b2", TALK: "#e69f00", WAIT: RULE}
RANKS = 2


@dataclass(frozen=True)
class Recording:
    """One run: `entries` say which rank did what, and from when to when, in seconds from its start."""

    name: str
    cut: str  # "tensor", "pipeline" or "experts"
    ranks: int
    about: str  # what was computed
    entries: list[dict]
    microbatches: int = 1

    @property
    def seconds(self) -> float:
        return max(entry["end"] for entry in self.entries)

    def share(self, kind: str, rank: int | None = None) -> float:
        """The part of the run that a rank, or all of them on average, spent like that."""
        spent = sum(e["end"] - e["start"] for e in self.entries if kind_of(e) == kind and rank in (None, e["rank"]))
        return spent / self.seconds / (self.ranks if rank is None else 1)

    @property
    def idle(self) -> float:
        """Share of the time in which a rank did not compute, on average: waiting, communicating, not begun, done."""
        return 1 - self.share(COMPUTE)

    def at(self, seconds: float) -> dict[int, str]:
        """What each rank is doing at that moment."""
        doing = {rank: "nothing" for rank in range(self.ranks)}
        return doing | {e["rank"]: e["what"] for e in self.entries if e["start"] <= seconds < e["end"]}


def kind_of(entry: dict) -> str:
    first = entry["what"].split()[0].strip(",")
    return {"wait": WAIT, "all-reduce": TALK, "gather": TALK, "dispatch": TALK, "return": TALK}.get(first, COMPUTE)


def stored_timelines(file: Path = STORED) -> list[Recording]:
    """What was recorded once, on two cores of a server."""
    return [Recording(**run) for run in json.loads(Path(file).read_text(encoding="utf-8"))["runs"]]


# ---- the picture -----------------------------------------------------------------------------------------------------


def parallel_timelines_svg(run: Recording, now: float, words: str = "") -> str:
    """One line per rank, time in milliseconds; `now`, in seconds, is marked."""
    canvas = Canvas(150 + 50 * run.ranks)
    canvas.text(14, 24, f"{run.name}: {run.about}", 14, bold=True)
    rank = lambda y: f"rank {y - 0.5:.0f}"  # noqa: E731
    ends = dict(xs=(0, 1e3 * run.seconds * 1.01), ys=(run.ranks, 0), y_ticks=[i + 0.5 for i in range(run.ranks)])
    chart = Axes(canvas, (70, 50, 676, 50 * run.ranks), **ends, x="ms", y_name=rank)
    for entry in run.entries:
        kind, start, end = kind_of(entry), 1e3 * entry["start"], 1e3 * entry["end"]
        (x, y), (right, _) = chart.at(start, entry["rank"]), chart.at(end, entry["rank"])
        told = f"rank {entry['rank']}: {entry['what']}, {end - start:.3f} ms from {start:.3f}"
        shade, dash = (0.4, "") if kind == WAIT else (1.0, "3 2" if kind == TALK else "")
        canvas.rect(x, y + 8, right - x, 34, COLOURS[kind], INK if dash else None, shade, 0, dash, 0.7, told)
        if run.cut == "pipeline" and kind == COMPUTE and right - x > 16:
            canvas.text((x + right) / 2, y + 30, entry["what"].split()[-1], 12, "middle", colour="white")
    x, _ = chart.at(1e3 * now, 0)
    canvas.line(x, 44, x, 50 + 50 * run.ranks, INK, 2, "2 3")
    canvas.key(70, 132 + 50 * run.ranks, [(colour, kind) for kind, colour in COLOURS.items()])
    return canvas.svg(words)


def in_words(run: Recording, now: float) -> str:
    doing = ", ".join(f"rank {rank}: {what}" for rank, what in run.at(now).items())
    busy = " and ".join(f"{run.share(COMPUTE, rank):.0%}" for rank in range(run.ranks))
    said = f"At {1e3 * now:.2f} of {1e3 * run.seconds:.2f} ms: {doing}. The ranks compute {busy} of the time"
    if run.cut == "pipeline":
        bubble = theory.pipeline_bubble(run.ranks, run.microbatches)
        return said + f"; idle are {run.idle:.0%} on average, and the formula's bubble is {bubble:.0%}."
    count = sum(kind_of(entry) == TALK for entry in run.entries) // run.ranks
    return said + f" and meet in {count} collective calls."


def parallel_timelines(runs: Sequence[Recording] | None = None) -> Panel:
    """Choose a way to cut a model and walk through its run. Without `runs`, those that come with the package."""
    by_name = {run.name: run for run in (stored_timelines() if runs is None else runs)}

    def draw(moment: int, cut: str) -> tuple[str, str]:
        run, now = by_name[cut], moment / 100 * by_name[cut].seconds
        words = in_words(run, now)
        return parallel_timelines_svg(run, now, words), words

    return Panel(draw, {"moment": slider("moment, %", 40, 0, 99), "cut": choice("cut", list(by_name))})
