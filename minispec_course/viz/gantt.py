"""Which request runs when: static beside continuous batching of the same requests, from the steps of a real engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, groupby, product

from minispec.load.handle import Model
from minispec.serving.blocks import BlockPool
from minispec.serving.engine import Engine

from .axes import ticks
from .drawing import INK, SOFT, Canvas, text_width
from .panel import Panel, choice, player
from .recorder import Ask, DryEngine, Frame, counted, endless, letter, watch

WAITING, PREFILL, DECODE, PREEMPTED = "waiting", "prefill", "decode", "preempted"
# Colour, and a pattern for eyes that see no colours.
LOOKS = {
    WAITING: ("rgba(128,128,128,.28)", ""),
    PREFILL: ("#e69f00", ""),
    DECODE: ("#0072b2", ""),
    PREEMPTED: ("#d55e00", "url(#minispec-preempted)"),
}
HATCH = (
    '<defs><pattern id="minispec-preempted" width="7" height="7" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="2" height="7" fill="white"/></pattern></defs>'
)
LINE, LEFT = 22, 78  # a line's height, and where the charts begin
REQUESTS, PLACES, STEPS, SECONDS = "requests", "places", "steps", "seconds"
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
    def tokens_read(self) -> int:
        return sum(row.tokens for frame in self.frames for row in frame.record.rows)


def record(target: Model, asks: Sequence[Ask], batch: int, policy: str, **options) -> Run:
    """Serve the requests with an engine, `batch` at a time. The texts get the lengths that were asked for."""
    options = dict(enable_prefix_caching=False, max_num_batched_tokens=max(512, batch)) | options
    engine = Engine(endless(target), max_num_seqs=batch, policy=policy, **options)
    if target.device.type == "cuda":  # passes are recorded when their shape first comes: not in the steps that we show
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
    tokens: int  # that it read meanwhile


def bars(run: Run) -> list[Bar]:
    """What every request did, one bar for each phase. A slot is taken from admission to the end, the lowest first."""
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


def gantt_svg(runs: Mapping[str, Run], rows: str = REQUESTS, axis: str = STEPS, now: int | None = None) -> str:
    """One chart under the other, over one axis. What comes after step `now` is pale.

    `rows`: one line per request, or one per slot in the batch. `axis`: steps, or the seconds that they took here.
    """
    for name, value, known in (("rows", rows, (REQUESTS, PLACES)), ("axis", axis, (STEPS, SECONDS))):
        if value not in known:
            raise ValueError(f"{name}={value!r}: give {known[0]!r} or {known[1]!r}")
    if not runs:
        raise ValueError("runs is empty: give at least one, under its name")
    times = [run.clock if axis == SECONDS else list(range(len(run.frames) + 1)) for run in runs.values()]
    lines = [len(run.asks) if rows == REQUESTS else run.batch for run in runs.values()]
    canvas = Canvas(90 + sum(LINE * n + 48 for n in lines))
    scale = (canvas.width - LEFT - 20) / (max(time[-1] for time in times) * 1.01)
    canvas.parts.append(HATCH)
    for i, (phase, (colour, pattern)) in enumerate(LOOKS.items()):  # the legend
        for fill in filter(None, (colour, pattern)):
            canvas.rect(LEFT + 110 * i, 13, 14, 14, fill, None, round=0)
        canvas.text(LEFT + 20 + 110 * i, 25, phase)
    marks = ticks(0, (canvas.width - LEFT - 20) / scale, 9)
    top = 40
    for (name, run), time, count in zip(runs.items(), times, lines, strict=True):
        top, shown = top + 34, len(run.frames) if now is None else min(now, len(run.frames))
        canvas.parts.append('<g class="run">')
        canvas.text(LEFT, top - 10, f"{name}:", 14, bold=True)
        canvas.text(LEFT + 14 + 1.05 * text_width(name, 14), top - 10, _total(run, axis), 14)
        for mark in marks:
            canvas.line(LEFT + mark * scale, top, LEFT + mark * scale, top + LINE * count, thick=0.5)
        for line in range(count):
            label = letter(line) if rows == REQUESTS else str(line + 1)
            canvas.text(LEFT - 8, top + LINE * (line + 0.5) + 4.5, label, 12.5, "end")
        canvas.text(10, top + LINE * count / 2 + 4, "request" if rows == REQUESTS else "slot", 12.5)
        for bar, pale in [(b, p) for p in (False, True) for b in _cut(bars(run), shown, p)]:
            if rows == REQUESTS or bar.place is not None:
                at = LEFT + time[bar.start] * scale, top + LINE * (bar.id if rows == REQUESTS else bar.place) + 2
                _draw(canvas, bar, pale, *at, (time[bar.stop] - time[bar.start]) * scale, rows == PLACES)
        if now is not None:
            x = LEFT + time[shown] * scale
            canvas.line(x, top - 4, x, top + LINE * count, SOFT, 1.5, "2 3")
        canvas.parts.append("</g>")
        top += LINE * count + 14
    for mark in marks:
        canvas.text(LEFT + mark * scale, top + 4, f"{mark:g}", 11.5, "middle", colour=SOFT)
    title = "steps" if axis == STEPS else "seconds on this machine"
    canvas.text((LEFT + canvas.width) / 2, top + 26, title, 13, "middle")
    return canvas.svg("which request runs when, one chart under the other")


def _cut(all_bars: Sequence[Bar], now: int, after: bool) -> Iterator[Bar]:
    """The parts of the bars before, or after, step `now`."""
    for bar in all_bars:
        start, stop = (max(bar.start, now), bar.stop) if after else (bar.start, min(bar.stop, now))
        if start < stop:
            yield Bar(bar.id, bar.phase, start, stop, bar.place, bar.tokens)


def _draw(canvas: Canvas, bar: Bar, pale: bool, x: float, y: float, width: float, by_place: bool) -> None:
    colour, pattern = LOOKS[bar.phase]
    told = f"request {letter(bar.id)}: {bar.phase}, steps {bar.start} to {bar.stop - 1}, {bar.tokens} tokens processed"
    shade = 0.25 if pale else 1.0
    canvas.rect(x, y, width, LINE - 4, colour, None, shade, round=0, title=told)
    if pattern:
        canvas.rect(x, y, width, LINE - 4, pattern, None, shade, round=0, title=told)
    if by_place and bar.phase == DECODE and width > 12:
        canvas.text(x + 4, y + LINE - 8.5, letter(bar.id), 12, colour=INK if pale else "white")


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
            again = run.tokens_read - least_read(run.asks)
            text += f", {counted(run.preemptions, 'preemption')}, {again} tokens computed again"
        said.append(text + ".")
    return " ".join(said)


def least_read(asks: Sequence[Ask]) -> int:
    """Tokens that must be read at least: all of every text but its last token."""
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

    The little memory holds the longest text one and a half times; in chunks, a step reads at most four tokens of a
    prompt.
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
        return gantt_svg(runs, rows, axis, step), in_words(runs, axis, step)

    record(target, asks[:1], 1, POLICIES[0], num_blocks=longest)  # warms up: the first pass of a process is a slow one
    first = recorded(next(iter(engines)), batches[0])
    play, step = player("step", most_steps(asks, batches, engines.values()), interval=800)
    step.value = len(first[POLICIES[1]].frames) // 2  # something to see on both sides of it
    controls = {
        "step": step,
        "play": play,
        "engine": choice("engine", list(engines)),
        "batch": choice("slots in the batch", list(batches)),
        "rows": choice("one line per", {"request": REQUESTS, "slot in the batch": PLACES}),
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
