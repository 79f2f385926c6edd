"""The memory of a server, slot by slot: one run per request beside blocks and tables, while requests come and go."""

from collections.abc import Hashable, Iterator, Mapping, Sequence

from minispec.serving.blocks import BlockPool

from ..labs.batching import Ask, DryEngine, Frame, example_asks, letter, watch
from ..labs.memory import ContiguousPool
from ..labs.presets import counted
from .drawing import CARD, INK, RULE, SOFT, Canvas
from .panel import Panel, choice, player, switch
from .style import PALETTE

SLOT, LINE, ROW = 11, 24, 32  # width of a slot, height of a line, and slots in a line
LONGEST, ANNOUNCED = "longest", "announced"
BLOCK_SIZES = (4, 8, 16)
SLOTS, MAX_LENGTH = 320, 96  # of each memory; what a contiguous server reserves that knows nothing better


class AnnouncedPool(ContiguousPool):
    """One run per request, as long as it says it might become: runs of different lengths, and gaps between them."""

    def __init__(self, num_blocks: int, block_size: int, asks: Sequence[Ask]):
        super().__init__(num_blocks, block_size, min(max(ask.announced for ask in asks), num_blocks * block_size))
        self.asks = asks

    def start(self, request: Hashable, tokens: Sequence[int] = (), hashes: list[bytes] | None = None) -> int | None:
        return super().start(request, tokens, reserve=self.asks[request].announced)


def colour(id: int) -> str:
    return PALETTE[id % len(PALETTE)]


def pieces(frame: Frame, id: int) -> Iterator[tuple[int, int, int]]:
    """A request's memory as (first slot, slots, slots that hold a token), cut where a block or a line ends."""
    holding, size = frame.holdings[id], frame.block_size
    start = 0
    slots = [block * size + i for block in holding.blocks for i in range(size)]
    for i in range(1, len(slots) + 1):
        beside = i < len(slots) and slots[i] == slots[i - 1] + 1 and slots[i] % ROW
        if not beside or (size > 1 and i % size == 0):
            yield slots[start], i - start, max(0, min(i, holding.tokens) - start)
            start = i


def memory_map_svg(frames: Mapping[str, Frame], request: int | None = None, words: str = "") -> str:
    """One map beside the other, under their titles. Solid slots hold a token, pale ones are reserved and empty.

    The blocks of `request` are framed, and its table stands below. A click on a block chooses its request.
    """
    lines = max(-(-frame.num_blocks * frame.block_size // ROW) for frame in frames.values())
    canvas = Canvas(186 + LINE * lines, cut=380)
    for left, (title, frame) in zip((14, 392), frames.items(), strict=False):
        stats, free = frame.stats, frame.stats.free_blocks * frame.block_size
        shared = f" · {counted(stats.shared_blocks, 'block')} shared"
        own = f", widest gap {frame.widest_gap}" if frame.contiguous else shared
        waiting = " ".join(letter(id) for id in frame.waiting) or "none"
        canvas.text(left, 24, title, 13, bold=True)
        canvas.text(left + 352, 24, f"{stats.waste_fraction:.0%} of allocated slots empty", 13, "end")
        canvas.text(left, 42, f"running {len(frame.holdings)} · waiting {waiting} · {free} free{own}", 12)
        _slots(canvas, frame, request, left, 54)
        canvas.paragraph(left, 74 + LINE * lines, table_in_words(frame, request), 350, 12, INK)
    y = canvas.height - 14
    canvas.key(14, y, [(colour(0), "holds a token")], 12)
    canvas.rect(140, y - 10, 12, 12, colour(0), colour(0), 0.25).text(158, y, "reserved, empty", 12)
    canvas.key(392, y, [("dash", SOFT, "free, found by its hash")], 12).text(610, y, "×2 …: shared", 12)
    return canvas.svg(words)


def _slots(canvas: Canvas, frame: Frame, request: int | None, left: float, top: float) -> None:
    owners, size = frame.owners(), frame.block_size

    def at(slot: int) -> tuple[float, float]:
        return left + slot % ROW * SLOT, top + slot // ROW * LINE

    step = ROW if frame.contiguous else size
    for slot in range(0, frame.num_blocks * size, step):  # the memory itself
        cached = not frame.contiguous and slot // size in frame.cached and slot // size not in owners
        told = "free" if slot // size not in owners else ""
        canvas.rect(
            *at(slot),
            step * SLOT - 1,
            LINE - 5,
            None,
            SOFT if cached else RULE,
            dash="3 2" if cached else "",
            title=told,
        )
    for id in frame.holdings:
        for slot, count, full in pieces(frame, id):
            sharers = [id] if frame.contiguous else owners[slot // size]
            x, y = at(slot)
            tall = (LINE - 5) / len(sharers)
            y += sharers.index(id) * tall  # a stripe for every request that has it
            told = f"request {letter(id)}: {full} of {count} slots"
            with canvas.choice("request", id, told, -1):
                canvas.rect(x, y, count * SLOT - 1, tall, colour(id), None, 0.25, 1)
                canvas.rect(x, y, full * SLOT - 1, tall, colour(id), None, 0.6, 1)
                if id == request:
                    canvas.rect(x, at(slot)[1], count * SLOT - 1, LINE - 5, None, INK, thick=2.4)
                if len(sharers) > 1 and id == sharers[-1]:
                    canvas.rect(x + 2, at(slot)[1] + 3, 21, LINE - 11, CARD, None)
                    canvas.text(x + 4, at(slot)[1] + 14, f"×{len(sharers)}", 12, bold=True)
                elif len(sharers) == 1:
                    canvas.text(x + 3, y + 14, letter(id), 12, bold=True)


def table_in_words(frame: Frame, request: int | None, shown: int = 10) -> str:
    """Where a request's tokens are: its block table, or the piece it has."""
    if request is None:
        return ""
    if request not in frame.holdings:
        return f"{letter(request)} {'waits' if request in frame.waiting else 'is not here'}."
    holding, size = frame.holdings[request], frame.block_size
    blocks, tokens = holding.blocks, f"{letter(request)}: {counted(holding.tokens, 'token')}"
    if frame.contiguous:
        return f"{tokens} in slots {blocks[0] * size} to {(blocks[-1] + 1) * size - 1}, side by side."
    table = ", ".join(map(str, blocks[:shown])) + (", …" if len(blocks) > shown else "")
    last = holding.tokens - 1
    slot = blocks[last // size] * size + last % size
    found = f"entry {last // size}, block {blocks[last // size]}, slot {slot}"
    return f"{tokens}, block table [{table}]. Position {last}: {found}."


def in_words(title: str, frame: Frame) -> str:
    stats = frame.stats
    said = f"{title}: {len(frame.holdings)} running, {len(frame.waiting)} waiting; {stats.waste} of "
    said += f"{stats.used_blocks * frame.block_size} allocated slots are empty ({stats.waste_fraction:.0%})"
    if stats.shared_blocks:
        shared = counted(stats.shared_blocks, "block")
        said += f"; {shared} shared, so {stats.tokens} tokens need {stats.tokens_stored} slots"
    return said + "."


def most_running(run: Sequence[Frame]) -> int:
    return max(range(len(run)), key=lambda step: len(run[step].holdings))


def memory_map() -> Panel:
    """The same requests in the same memory, contiguous on the left, paged on the right, step by step.

    The scheduler and the pools are minispec's own; only the model is left out, since it has no say in which request
    gets which block.
    """
    asks = example_asks(longest=MAX_LENGTH)
    pools = {LONGEST: ContiguousPool(SLOTS, 1, MAX_LENGTH), ANNOUNCED: AnnouncedPool(SLOTS, 1, asks)}
    left = {reserve: watch(DryEngine(pool), asks) for reserve, pool in pools.items()}
    right = {
        (size, shared): watch(DryEngine(BlockPool(SLOTS // size, size, enable_prefix_caching=shared)), asks)
        for size in BLOCK_SIZES
        for shared in (True, False)
    }
    last = max(map(len, [*left.values(), *right.values()])) - 1

    def said(title: str, run: Sequence[Frame], step: int, reserve: str) -> str:
        frame = run[min(step, len(run) - 1)]
        words = in_words(title, frame) + _events(frame, step) + _blocked(frame, asks, reserve)
        return words + (f" All {len(asks)} were served in {len(run)} steps." if step >= len(run) - 1 else "")

    def draw(step: int, reserve: str, block: int, share: bool, request: int) -> tuple[str, str]:
        runs = {"Contiguous": left[reserve], f"Paged, blocks of {block}": right[block, share]}
        frames = {title: run[min(step, len(run) - 1)] for title, run in runs.items()}
        chosen = None if request < 0 else request
        parts = [f"Step {step} of {last}.", *(said(title, run, step, reserve) for title, run in runs.items())]
        words = " ".join([*parts, *(table_in_words(frame, chosen) for frame in frames.values())]).strip()
        return memory_map_svg(frames, chosen, words), words

    def most_said() -> str:
        """The longest that each part of the sentence becomes."""
        lefts = [said("Contiguous", run, step, reserve) for reserve, run in left.items() for step in range(last + 1)]
        rights = [said("Paged, blocks of 16", run, step, LONGEST) for run in right.values() for step in range(last + 1)]
        tables = [
            max((table_in_words(frame, id) for run in runs for frame in run for id in frame.holdings), key=len)
            for runs in (left.values(), right.values())
        ]
        return " ".join([f"Step {last} of {last}.", max(lefts, key=len), max(rights, key=len), *tables])

    menu = {"the longest possible output": LONGEST, "what each request announces": ANNOUNCED}
    controls = {
        **player("step", last, 500, most_running(right[BLOCK_SIZES[0], True])),  # begin where there is most to see
        "reserve": choice("contiguous reserves", menu),
        "block": choice("block size", list(BLOCK_SIZES)),
        "share": switch("enable_prefix_caching", True),
        "request": choice("table of", {"no request": -1} | {letter(id): id for id in range(len(asks))}),
    }
    return Panel(draw, controls, longest=most_said())


def _events(frame: Frame, step: int) -> str:
    if frame.record is None or frame.record.step != step:
        return ""  # this one was done before
    happened = {what: getattr(frame.record, what) for what in ("admitted", "preempted", "finished")}
    said = [f"{what} {', '.join(map(letter, ids))}" for what, ids in happened.items() if ids]
    return f" Just now: {'; '.join(said)}." if said else ""


def _blocked(frame: Frame, asks: Sequence[Ask], reserve: str) -> str:
    """External fragmentation, where it happens: enough memory in sum, and no gap that is wide enough."""
    if not frame.contiguous or not frame.waiting:
        return ""
    need = MAX_LENGTH if reserve == LONGEST else asks[frame.waiting[0]].announced
    free = frame.stats.free_blocks * frame.block_size
    if free < need or frame.widest_gap >= need:
        return ""
    who = letter(frame.waiting[0])
    return f" {who} needs {need} slots in a row; {free} are free, but the widest gap is {frame.widest_gap}."
