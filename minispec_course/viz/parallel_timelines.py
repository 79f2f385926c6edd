"""Timelines of several ranks at work: tensor, pipeline and expert parallelism, from runs that really happened.

    from minispec_course.viz.parallel_timelines import keep
    keep()                                             # records them anew: a minute on an idle machine

Every rank is a process with one thread. Each run is repeated, and the fastest is kept: it was disturbed least. What
crosses between processes of one machine here crosses NVLink or a network elsewhere, so the shape is to be looked at,
not the milliseconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from minispec import theory
from minispec.load.folder import load as load_whole
from minispec.load.registry import DATA
from minispec.load.write import write_whole
from minispec.measure import machine
from minispec.parallel.experts import Mixture, parallel_mixture
from minispec.parallel.pipeline import stage
from minispec.parallel.tensor import Timeline, launch, load

from .drawing import INK, RULE, Axes, Canvas
from .panel import Panel, choice, slider

STORED = DATA / "traces" / "parallel.json"
COMPUTE, TALK, WAIT = "compute", "communicate", "wait"
COLOURS = {COMPUTE: "#0072b2", TALK: "#e69f00", WAIT: RULE}
RANKS = 2


@dataclass(frozen=True)
class Recording:
    """One run: `entries` are those of `parallel.Timeline.merge`, in seconds from its start."""

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


# ---- recording -------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def tensor_rank(model: str, tokens: torch.Tensor, repeat: int) -> list[Timeline]:
    """Passes of a model cut into slices, on this rank. The wrapped collectives are timed; the rest is computing."""
    share, timelines = load(model, device="cpu").transformer, []
    share.embed_tokens._forward_pre_hooks.clear()  # `agree` asks before a pass whether all read the same
    originals = {"all-reduce": dist.all_reduce, "gather": dist.all_gather}
    for _ in range(repeat):
        timeline = Timeline()
        dist.barrier()
        last = [time.perf_counter()]

        def listening(name: str, timeline=timeline, last=last):
            def collective(*args, **kwargs):
                timeline.record("compute", last[0])
                start = time.perf_counter()
                result = originals[name](*args, **kwargs)
                timeline.record(name, start)
                last[0] = time.perf_counter()
                return result

            return collective

        dist.all_reduce, dist.all_gather = listening("all-reduce"), listening("gather")
        try:
            share(tokens, share.new_cache(len(tokens), tokens.shape[1]))
        finally:
            dist.all_reduce, dist.all_gather = originals.values()
        timelines.append(timeline)
    return timelines


def pipeline_rank(model: str, tokens: torch.Tensor, microbatches: int, repeat: int) -> list[Timeline]:
    transformer = load_whole(model, device="cpu").transformer
    return [stage(transformer, tokens, microbatches)[1] for _ in range(repeat)]


def expert_rank(weights: Mixture, x: torch.Tensor, repeat: int) -> list[Timeline]:
    mine = x.tensor_split(dist.get_world_size())[dist.get_rank()]
    return [parallel_mixture(weights, mine)[2] for _ in range(repeat)]


def with_favourite(weights: Mixture, x: torch.Tensor, share: float) -> Mixture:
    """The same experts after a router that sends `share` of the tokens x to the first one. Their feature 0 is 1."""
    lead = x @ (weights.router[0] - weights.router[1])  # [n]; the first expert gets those above 0
    router = weights.router.clone()
    router[0, 0] -= lead.quantile(1 - share)
    return Mixture(router, weights.up, weights.down)


def one_by_one(work: Sequence[tuple[Callable, tuple]]) -> list[list[Timeline]]:
    """What a rank does: all the work, and for each piece the timelines of its repetitions."""
    return [function(*arguments) for function, arguments in work]


def record_timelines(model: str = "micro", rows: int = 8, length: int = 64, repeat: int = 60) -> list[Recording]:
    """All runs of the widget, one after the other on the same two processes, which take seconds to start."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(load_whole(model, device="cpu").config.vocab_size, (rows, length), generator=generator)
    about = f"{model}, {rows} sequences of {length} tokens, one forward pass"
    runs = [Recording("tensor parallel", "tensor", RANKS, about, [])]
    work: list[tuple[Callable, tuple]] = [(tensor_rank, (model, tokens, repeat))]
    for m in (1, 2, 4, 8):
        runs.append(Recording(f"pipeline, {m} micro-batch{'es' if m > 1 else ''}", "pipeline", RANKS, about, [], m))
        work.append((pipeline_rank, (model, tokens, m, repeat)))
    weights = Mixture.random(RANKS, hidden=256, neurons=2048)
    x = torch.randn(1024, 256, generator=generator, dtype=torch.float64)
    x[:, 0] = 1.0  # a constant feature, so that a router can have a favourite
    for name, share in (("experts, even load", 0.5), ("experts, one popular", 0.85)):
        skewed = with_favourite(weights, x, share)
        said = f"{len(x):,} tokens, {(skewed.route(x)[0] == 0).float().mean():.0%} of them to the first expert"
        runs.append(Recording(name, "experts", RANKS, said, []))
        work.append((expert_rank, (skewed, x, repeat)))
    by_rank = launch(one_by_one, RANKS, work)
    return [replace(run, entries=_fastest(*timelines)) for run, *timelines in zip(runs, *by_rank, strict=True)]


def _fastest(*by_rank: Sequence[Timeline]) -> list[dict]:
    merged = [Timeline.merge(timelines) for timelines in zip(*by_rank, strict=True)]
    entries = min(merged, key=lambda entries: max(entry["end"] for entry in entries))
    return [entry | {key: round(entry[key], 7) for key in ("start", "end")} for entry in entries]


def keep(file: Path = STORED) -> None:
    """Record all runs, here and now, and store them."""
    lines = ",\n".join(json.dumps(asdict(run)) for run in record_timelines())
    write_whole(file, f'{{"machine": {json.dumps(machine())},\n"runs": [\n{lines}\n]}}\n')


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
