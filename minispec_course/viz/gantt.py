"""Which request runs when: static beside continuous batching of the same requests, by minispec's own scheduler."""

from collections.abc import Mapping, Sequence
from functools import cache

from ..labs.batching import (
    DECODE,
    POLICIES,
    PREEMPTED,
    PREFILL,
    WAITING,
    Bar,
    Run,
    bars,
    few_long_asks,
    least_processed,
    letter,
    record,
)
from ..labs.presets import counted
from .drawing import INK, SOFT, Axes, Canvas
from .panel import Panel, choice, player

COLOURS = {WAITING: "rgba(128,128,128,.28)", PREFILL: "#e69f00", DECODE: "#0072b2", PREEMPTED: "#d55e00"}
LINE, LEFT = 22, 78  # a line's height, and where the charts begin
REQUESTS, SEATS = "requests", "seats"


# ---- the picture -----------------------------------------------------------------------------------------------------


def gantt_svg(runs: Mapping[str, Run], rows: str, now: int, words: str) -> str:
    """One chart under the other, over one axis. What comes after step `now` is pale.

    `rows`: one row per request, or one per seat of the batch.
    """
    lines = [len(run.asks) if rows == REQUESTS else run.batch for run in runs.values()]
    canvas, top = Canvas(60 + sum(LINE * n + 84 for n in lines)), 40
    end = max(len(run.frames) for run in runs.values()) * 1.01
    canvas.key(LEFT, 26, [(colour, phase) for phase, colour in COLOURS.items()])
    for (name, run), count in zip(runs.items(), lines, strict=True):
        shown, top = min(now, len(run.frames)), top + 34
        label = lambda y: letter(int(y)) if rows == REQUESTS else str(int(y) + 1)  # noqa: E731
        names = dict(title=f"{name}: {_total(run)}", x="steps")
        ticks = dict(y_ticks=[n + 0.5 for n in range(count)], y_name=label, y="request" if rows == REQUESTS else "seat")
        chart = Axes(canvas, (LEFT, top, 666, LINE * count), (0, end), (count, 0), **names, **ticks)
        for bar in bars(run):
            line = bar.id if rows == REQUESTS else bar.place
            if line is None:
                continue
            past, to_come = (bar.start, min(bar.stop, shown), 1.0), (max(bar.start, shown), bar.stop, 0.25)
            for start, stop, shade in (past, to_come):
                if start < stop:
                    _draw(chart, bar, line, start, stop, shade, rows == SEATS)
        x, _ = chart.at(shown, 0)
        canvas.line(x, top - 4, x, top + LINE * count, SOFT, 1.5, "2 3")
        top += LINE * count + 50
    return canvas.svg(words)


def _draw(chart: Axes, bar: Bar, line: int, start: float, stop: float, shade: float, named: bool) -> None:
    (x, y), (end, _), canvas = chart.at(start, line), chart.at(stop, line), chart.canvas
    told = f"request {letter(bar.id)}: {bar.phase}, steps {bar.start} to {bar.stop - 1}, {bar.tokens} tokens processed"
    canvas.rect(x, y + 2, end - x, LINE - 4, COLOURS[bar.phase], None, shade, round=0, title=told)
    if bar.phase == PREEMPTED:  # crossed out, for eyes that see no colours
        canvas.line(x, y + LINE - 2, end, y + 2, "white", 2)
    if named and bar.phase == DECODE and end - x > 12:
        canvas.text(x + 4, y + LINE - 6.5, letter(bar.id), 12, colour=INK if shade < 1 else "white")


def _total(run: Run) -> str:
    return f"{len(run.frames)} steps, mean latency {sum(run.latencies) / len(run.asks):.1f} steps"


def in_words(runs: Mapping[str, Run], now: int) -> str:
    """The sentence under the chart."""
    said = []
    for name, run in runs.items():
        done = sum(end <= now for end in run.ends.values())
        text = f"{name.capitalize()}: {done} of {len(run.asks)} done after step {now}; in total {_total(run)}"
        if run.preemptions:
            again = run.tokens_processed - least_processed(run.asks)
            text += f", {counted(run.preemptions, 'preemption')}, {again} tokens computed again"
        said.append(text + ".")
    return " ".join(said)


# ---- the widget ------------------------------------------------------------------------------------------------------


def gantt(batches: Sequence[int] = (4, 2, 8)) -> Panel:
    """Static and continuous batching of the same requests, with a choice of engines.

    The little memory holds the longest sequence one and a half times; in chunks, a step processes at most four tokens
    of a prompt.
    """
    asks = few_long_asks()
    longest = max(len(ask.prompt) + ask.new for ask in asks)
    engines = {
        "plenty of memory": dict(num_blocks=sum(len(ask.prompt) + ask.new for ask in asks)),
        "little memory": dict(num_blocks=-(-longest * 3 // 8)),
        "prompts in chunks of 4": dict(num_blocks=sum(len(ask.prompt) + ask.new for ask in asks), max_chunk=4),
    }

    @cache
    def recorded(engine: str, batch: int) -> dict[str, Run]:
        return {policy: record(asks, batch, policy, **engines[engine]) for policy in POLICIES}

    def draw(step: int, engine: str, batch: int, rows: str) -> tuple[str, str]:
        runs = recorded(engine, batch)
        words = in_words(runs, step)
        return gantt_svg(runs, rows, step, words), words

    first = recorded(next(iter(engines)), batches[0])
    middle = len(first[POLICIES[1]].frames) // 2  # something to see on both sides of it
    most = max(len(run.frames) for engine in engines for batch in batches for run in recorded(engine, batch).values())
    controls = {
        **player("step", most, 800, middle),
        "engine": choice("engine", list(engines)),
        "batch": choice("max_num_seqs", list(batches)),
        "rows": choice("one row per", {"request": REQUESTS, "seat": SEATS}),
    }
    return Panel(draw, controls)
