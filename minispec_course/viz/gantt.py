"""Which request runs when: static beside continuous batching of the same requests, from the steps of a real engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, groupby, product

from minispec.load.handle import Model
from minispec.serving.blocks import BlockPool
from minispec.serving.engine import Engine

from ..labs.batching import endless
from .drawing import INK, SOFT, Axes, Canvas
from .frames import Ask, DryEngine, Frame, letter, watch
from .panel import Panel, choice, player
from .presets import counted

WAITING, PREFILL, DECODE, PREEMPTED = "waiting", "prefill", "decode", "preempted"
COLOURS = {WAITING: "rgba(128,128,128,.28)", PREFILL: "#e69f00", DECODE: "#0072b2", PREEMPTED: "#d55e00"}
LINE, LEFT = 22, 78  # a line's height, and where the charts begin
REQUESTS, SLOTS, STEPS, SECONDS = "requests", "batch positions", "steps", "seconds"
POLICIES = ("static", "continuous")


@dataclass(frozen=True)
class Run:
    """Requests, and every step of the engine that served them `batch` at a time."""

    asks: Sequence[Ask]
    frames: Sequence[Frame]
    batch: int

    @property
    def clock(self) -> list[float]:
        """When each step began, in seconds, and when the last one ended."""
        return [0.0, *accumulate(frame.seconds or 0.0 for frame in self.frames)]

    @property
    def ends(self) -> dict[int, int]:
        """Request → the number of steps that had been taken when it ended."""
        return {id: step + 1 for step, frame in enumerate(self.frames) for id in frame.record.finished}

    @property
    def latencies(self) -> list[int]:
        """Steps from a request's arrival to its end."""
        return [self.ends[id] - ask.arrival for id, ask in enumerate(self.asks)]

    @property
    def seconds(self) -> list[float]:
        """The same in seconds."""
        return [self.clock[self.ends[id]] - self.clock[ask.arrival] for id, ask in enumerate(self.asks)]

    @property
    def preemptions(self) -> int:
        return sum(len(frame.record.preempted) for frame in self.frames)

    @property
    def tokens_processed(self) -> int:
        return sum(row.tokens for frame in self.frames for row in frame.record.rows)


def record(target: Model, asks: Sequence[Ask], batch: int, policy: str, **options) -> Run:
    """Serve the requests with an engine, `batch` at a time. The outputs get the lengths that were asked for."""
    options = dict(enable_prefix_caching=False, max_num_batched_tokens=max(512, batch)) | options
    engine = Engine(endless(target), max_num_seqs=batch, policy=policy, **options)
    if target.device.type == "cuda":  # passes are captured when their shape first comes: not in the steps that we show
        watch(engine, asks)
        engine.take()
    return Run(tuple(asks), watch(engine, asks), batch)


@dataclass(frozen=True)
class Bar:
    """A request in one phase, over steps start … stop − 1."""

    id: int
    phase: str
    start: int
    stop: int
    place: int | None  # in the batch; None: not in it
    tokens: int  # that it processed meanwhile


def bars(run: Run) -> list[Bar]:
    """What every request did, one bar for each phase. The lowest free batch position is taken."""
    found: list[Bar] = []
    places: dict[int, int] = {}
    moments: dict[int, list[tuple]] = {id: [] for id in range(len(run.asks))}  # (phase, place, step, tokens)
    pushed_out: set[int] = set()
    ended: set[int] = set()
    for step, frame in enumerate(run.frames):
        for id in frame.record.preempted:
            del places[id]
            pushed_out.add(id)
        for id in frame.record.admitted:
            places[id] = next(place for place in range(run.batch) if place not in places.values())
            pushed_out.discard(id)
        rows = {row.id: row for row in frame.record.rows}
        for id, ask in enumerate(run.asks):
            if ask.arrival > step or id in ended:
                continue
            if id in rows:
                phase = PREFILL if rows[id].phase == PREFILL else DECODE  # a verify pass decodes, too
            else:
                phase = PREEMPTED if id in pushed_out else WAITING
            moments[id].append((phase, places.get(id), step, rows[id].tokens if id in rows else 0))
        for id in frame.record.finished:
            ended.add(id)
            places.pop(id, None)
    for id, list_of in moments.items():
        for (phase, place), group in groupby(list_of, key=lambda moment: moment[:2]):
            group = list(group)
            found.append(Bar(id, phase, group[0][2], group[-1][2] + 1, place, sum(moment[3] for moment in group)))
    return found


# ---- the picture -----------------------------------------------------------------------------------------------------


def gantt_svg(
    runs: Mapping[str, Run], rows: str = REQUESTS, axis: str = STEPS, now: int | None = None, words=""
) -> str:
    """One chart under the other, over one axis. What comes after step `now` is pale.

    `rows`: one line per request, or one per batch position. `axis`: steps, or the seconds that they took here.
    """
    times = [run.clock if axis == SECONDS else list(range(len(run.frames) + 1)) for run in runs.values()]
    lines = [len(run.asks) if rows == REQUESTS else run.batch for run in runs.values()]
    canvas, top, end = Canvas(60 + sum(LINE * n + 84 for n in lines)), 40, max(time[-1] for time in times) * 1.01
    canvas.key(LEFT, 26, [(colour, phase) for phase, colour in COLOURS.items()])
    for (name, run), time, count in zip(runs.items(), times, lines, strict=True):
        shown, top = len(run.frames) if now is None else min(now, len(run.frames)), top + 34
        label = lambda y: letter(int(y)) if rows == REQUESTS else str(int(y) + 1)  # noqa: E731
        names = dict(title=f"{name}: {_total(run, axis)}", x="steps" if axis == STEPS else "seconds on this machine")
        ticks = dict(
            y_ticks=[n + 0.5 for n in range(count)], y_name=label, y="request" if rows == REQUESTS else "position"
        )
        chart = Axes(canvas, (LEFT, top, 666, LINE * count), (0, end), (count, 0), **names, **ticks)
        for bar in bars(run):
            line = bar.id if rows == REQUESTS else bar.place
            if line is None:
                continue
            for start, stop, pale in (
                (bar.start, min(bar.stop, shown), False),
                (max(bar.start, shown), bar.stop, True),
            ):
                if start < stop:
                    _draw(chart, bar, line, time[start], time[stop], 0.25 if pale else 1.0, rows == SLOTS)
        if now is not None:
            x, _ = chart.at(time[shown], 0)
            canvas.line(x, top - 4, x, top + LINE * count, SOFT, 1.5, "2 3")
        top += LINE * count + 50
    return canvas.svg(words or "which request runs when, one chart under the other")


def _draw(chart: Axes, bar: Bar, line: int, start: float, stop: float, shade: float, named: bool) -> None:
    (x, y), (end, _), canvas = chart.at(start, line), chart.at(stop, line), chart.canvas
    told = f"request {letter(bar.id)}: {bar.phase}, steps {bar.start} to {bar.stop - 1}, {bar.tokens} tokens processed"
    canvas.rect(x, y + 2, end - x, LINE - 4, COLOURS[bar.phase], None, shade, round=0, title=told)
    if bar.phase == PREEMPTED:  # crossed out, for eyes that see no colours
        canvas.line(x, y + LINE - 2, end, y + 2, "white", 2)
    if named and bar.phase == DECODE and end - x > 12:
        canvas.text(x + 4, y + LINE - 6.5, letter(bar.id), 12, colour=INK if shade < 1 else "white")


def _total(run: Run, axis: str) -> str:
    if axis == SECONDS:
        return f"{run.clock[-1]:.2f} s, mean latency {sum(run.seconds) / len(run.asks):.2f} s"
    return f"{len(run.frames)} steps, mean latency {sum(run.latencies) / len(run.asks):.1f} steps"


def in_words(runs: Mapping[str, Run], axis: str, now: int) -> str:
    """The sentence under the chart."""
    said = []
    for name, run in runs.items():
        done = sum(end <= now for end in run.ends.values())
        text = f"{name.capitalize()}: {done} of {len(run.asks)} done after step {now}; in all {_total(run, axis)}"
        if run.preemptions:
            again = run.tokens_processed - least_processed(run.asks)
            text += f", {counted(run.preemptions, 'preemption')}, {again} tokens computed again"
        said.append(text + ".")
    return " ".join(said)


def least_processed(asks: Sequence[Ask]) -> int:
    """Tokens that must be processed at least: all of every output but its last token."""
    return sum(len(ask.prompt) + ask.new - 1 for ask in asks)


# ---- the widget ------------------------------------------------------------------------------------------------------


NEW = (4, 26, 3, 9, 18, 5, 2, 12, 6, 3)  # a few long answers among many short ones


def few_long_asks(target: Model) -> list[Ask]:
    """Ten requests: six at once, then one every third step."""
    prompt = target.encode("Once upon a time there was a little dog.") if target.tokenizer else list(range(1, 13))
    arrivals = [0] * 6 + [3, 6, 9, 12]
    return [Ask((*prompt, 1 + i), new, arrival) for i, (new, arrival) in enumerate(zip(NEW, arrivals, strict=True))]


def gantt(target: Model, asks: Sequence[Ask] | None = None, batches: Sequence[int] = (4, 2, 8)) -> Panel:
    """Static and continuous batching of the same requests, with a choice of engines. Each runs when first chosen.

    The little memory holds the longest sequence one and a half times; in chunks, a step processes at most four tokens
    of a prompt.
    """
    asks = few_long_asks(target) if asks is None else list(asks)
    longest = max(len(ask.prompt) + ask.new for ask in asks)
    engines = {
        "plenty of memory": dict(num_blocks=sum(len(ask.prompt) + ask.new for ask in asks)),
        "little memory": dict(num_blocks=-(-longest * 3 // 8)),
        "prompts in chunks of 4": dict(num_blocks=sum(len(ask.prompt) + ask.new for ask in asks), max_chunk=4),
    }

    @cache
    def recorded(engine: str, batch: int) -> dict[str, Run]:
        return {policy: record(target, asks, batch, policy, block_size=4, **engines[engine]) for policy in POLICIES}

    def draw(step: int, engine: str, batch: int, rows: str, axis: str) -> tuple[str, str]:
        runs = recorded(engine, batch)
        words = in_words(runs, axis, step)
        return gantt_svg(runs, rows, axis, step, words), words

    record(target, asks[:1], 1, POLICIES[0], num_blocks=longest)  # warms up: the first pass of a process is a slow one
    first = recorded(next(iter(engines)), batches[0])
    middle = len(first[POLICIES[1]].frames) // 2  # something to see on both sides of it
    controls = {
        **player("step", most_steps(asks, batches, engines.values()), 800, middle),
        "engine": choice("engine", list(engines)),
        "batch": choice("max_num_seqs", list(batches)),
        "rows": choice("one line per", {"request": REQUESTS, "batch position": SLOTS}),
        "axis": choice("axis", {"steps": STEPS, "time on this machine": SECONDS}),
    }
    return Panel(draw, controls)


def most_steps(asks: Sequence[Ask], batches: Sequence[int], engines: Iterable[Mapping]) -> int:
    """How many steps the longest of all these runs takes. How many is settled without a model."""
    counts = []
    for options, batch, policy in product(engines, batches, POLICIES):
        pool = BlockPool(options["num_blocks"], 4, enable_prefix_caching=False)
        counts.append(len(watch(DryEngine(pool, batch, policy=policy, max_chunk=options.get("max_chunk")), asks)))
    return max(counts)
