"""The memory of a server, slot by slot: one run per request beside blocks and tables, while requests come and go."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from html import escape

from minispec.serving.blocks import BlockPool

from ..labs.memory import ContiguousPool
from .panel import Panel, choice, player, switch
from .recorder import Ask, DryEngine, Frame, counted, example_asks, letter, watch
from .style import PALETTE

SLOT, LINE, GAP, ROW = 12, 18, 7, 32  # width and height of a slot, between two lines, and slots in a line
DARK_TEXT = {"#56b4e9", "#e69f00", "#cc79a7"}  # colours that white letters would not be read on
LONGEST, ANNOUNCED = "longest", "announced"
BLOCK_SIZES = (4, 8, 16)


class AnnouncedPool(ContiguousPool):
    """One run per request, as long as it says it might become: runs of different lengths, and gaps between them."""

    def __init__(self, num_blocks: int, block_size: int, asks: Sequence[Ask]):
        super().__init__(num_blocks, block_size, min(max(ask.announced for ask in asks), num_blocks * block_size))
        self.asks = asks

    def start(self, request: Hashable, tokens: Sequence[int] = (), hashes: list[bytes] | None = None) -> int | None:
        return super().start(request, tokens, reserve=self.asks[request].announced)


# ---- the picture -----------------------------------------------------------------------------------------------------


def memory_map_html(frames: Mapping[str, Frame], request: int | None = None) -> str:
    """One map beside the other, under their titles. Solid slots hold a token, pale ones are reserved and empty.

    The blocks of `request` are framed, and its table stands below. A click on a block chooses its request.
    """
    if not frames:
        raise ValueError("frames is empty: give at least one, under its title")
    columns = "".join(_column(title, frame, request) for title, frame in frames.items())
    style = "display:flex;flex-wrap:wrap;gap:12px 24px;padding-right:12px;line-height:1.4"
    return f'<div style="{style};color:var(--jp-ui-font-color1,inherit)">{columns}</div>{_legend()}'


def _column(title: str, frame: Frame, request: int | None) -> str:
    stats = frame.stats
    waiting = " ".join(letter(id) for id in frame.waiting) or "none"
    head = (
        f'<div style="display:flex;justify-content:space-between;align-items:baseline"><b>{escape(title)}</b>'
        f'<span><b style="font-size:1.25em">{stats.waste_fraction:.0%}</b> of slots in use empty</span></div>'
    )
    free = stats.free_blocks * frame.block_size
    own = (
        f", widest gap {frame.widest_gap}" if frame.contiguous else f" · {counted(stats.shared_blocks, 'block')} shared"
    )
    said = f"running {len(frame.holdings)} · waiting {waiting} · {free} free{own}"
    foot = f'<div style="min-height:2.8em">{said}</div>'  # two lines: the map keeps its height while it plays
    foot += f'<div style="min-height:4.2em">{escape(table_in_words(frame, request))}</div>'
    return f'<div style="flex:1 1 320px;max-width:520px">{head}{_svg(title, frame, request)}{foot}</div>'


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


def _svg(title: str, frame: Frame, request: int | None) -> str:
    lines = -(-frame.num_blocks * frame.block_size // ROW)
    width, height = ROW * SLOT + 2, lines * (LINE + GAP)
    drawn = _runs(frame) if frame.contiguous else _blocks(frame)
    drawn += _frames(frame, request)
    label = escape(f"Memory map, {in_words(title, frame)}")
    return (
        f'<svg role="group" aria-label="{label}" viewBox="-1 -2 {width} {height}" '
        f'style="width:100%;display:block;margin:4px 0">{drawn}</svg>'
    )


def _blocks(frame: Frame) -> str:
    """Paged: every block for itself, wherever it lies."""
    owners, size, parts = frame.owners(), frame.block_size, []
    filled: dict[int, int] = {}
    for holding in frame.holdings.values():
        for i, block in enumerate(holding.blocks):
            tokens = max(0, min(size, holding.tokens - i * size))
            filled[block] = max(filled.get(block, 0), tokens)
    for block in range(frame.num_blocks):
        x, y = _place(block * size)
        ids = owners.get(block, [])
        if not ids:
            what = "free, but cached" if block in frame.cached else "free"
            parts.append(_box(x, y, size, f"block {block}: {what}", dashed=block in frame.cached))
            continue
        who = ", ".join(map(letter, ids))
        for i, id in enumerate(ids):  # a stripe for everybody who has it
            stripe = y + i * LINE / len(ids)
            parts.append(_fill(x, stripe, size, filled[block], id, LINE / len(ids)))
        parts.append(_box(x, y, size, f"block {block}: {who}, {filled[block]} of {size} slots", heavy=len(ids) > 1))
        parts.append(_label(x, y, f"×{len(ids)}" if len(ids) > 1 else letter(ids[0]), ids[0], filled[block]))
    return "".join(parts)


def _runs(frame: Frame) -> str:
    """Contiguous: a request's blocks lie side by side, so they are one piece, cut where a line ends."""
    total, size, parts = frame.num_blocks * frame.block_size, frame.block_size, []
    for start in range(0, total, ROW):
        parts.append(_box(*_place(start), min(ROW, total - start), "free"))
    for id, holding in frame.holdings.items():
        first, end = holding.blocks[0] * size, (holding.blocks[-1] + 1) * size
        start = first
        while start < end:
            stop = min(end, (start // ROW + 1) * ROW)
            x, y = _place(start)
            full = max(0, min(stop, first + holding.tokens) - start)
            parts.append(_fill(x, y, stop - start, full, id, LINE))
            title = f"request {letter(id)}: {holding.tokens} tokens in {end - first} slots"
            parts.append(_box(x, y, stop - start, title))
            parts.append(_label(x, y, letter(id), id, full))
            start = stop
    return "".join(parts)


def _frames(frame: Frame, request: int | None) -> str:
    """What a click chooses, over every block in use; and a thick line around the blocks of the chosen request."""
    parts, size = [], frame.block_size
    line = "var(--jp-ui-font-color0,#111)"
    for id, holding in frame.holdings.items():
        slots = [block * size + i for block in holding.blocks for i in range(size)]
        start = 0
        for i in range(1, len(slots) + 1):
            whole = size > 1 and i % size == 0
            if i < len(slots) and slots[i] == slots[i - 1] + 1 and slots[i] % ROW and not whole:
                continue
            x, y = _place(slots[start])
            look = f"fill:transparent;stroke:{line if id == request else 'none'};stroke-width:2.4;cursor:pointer"
            parts.append(
                f'<rect x="{x + 1}" y="{y}" width="{(i - start) * SLOT - 2}" height="{LINE}" rx="2" style="{look}" '
                f"data-choose='{{\"request\": {id}}}'><title>request {letter(id)}</title></rect>"
            )
            start = i
    return "".join(parts)


def _place(slot: int) -> tuple[int, int]:
    return slot % ROW * SLOT, slot // ROW * (LINE + GAP)


def colour(id: int) -> str:
    return PALETTE[id % len(PALETTE)]


def _fill(x: float, y: float, slots: int, full: int, id: int, height: float) -> str:
    pale = f'<rect x="{x}" y="{y:g}" width="{slots * SLOT}" height="{height:g}" fill="{colour(id)}" opacity=".25"/>'
    solid = f'<rect x="{x}" y="{y:g}" width="{full * SLOT}" height="{height:g}" fill="{colour(id)}"/>'
    return pale + solid


def _box(x: float, y: float, slots: int, title: str, heavy: bool = False, dashed: bool = False) -> str:
    line = "var(--jp-ui-font-color0,#888)" if heavy else "var(--jp-border-color1,#999)"
    style = f"fill:transparent;stroke:{line};stroke-width:{2 if heavy else 0.8}"
    style += ";stroke-dasharray:3 2.4;stroke:var(--jp-ui-font-color2,#888)" if dashed else ""
    inset = 0.9  # so that neighbours can be told apart
    return (
        f'<rect x="{x + inset}" y="{y}" width="{slots * SLOT - 2 * inset}" height="{LINE}" rx="2" style="{style}">'
        f"<title>{escape(title)}</title></rect>"
    )


def _label(x: float, y: float, text: str, id: int, full: int) -> str:
    page, ink = "var(--jp-layout-color0,#fff)", "var(--jp-ui-font-color1,#888)"
    plate = ""
    if text.startswith("×"):  # letters on stripes need a ground of their own
        width = 5 + 8 * len(text)
        plate = f'<rect x="{x + 2}" y="{y + 3}" width="{width}" height="{LINE - 6}" rx="2" style="fill:{page}"/>'
    elif full > 1:  # else they stand on a pale slot
        ink = "#111" if colour(id) in DARK_TEXT else "#fff"
    style = f"fill:{ink};font:600 12px sans-serif;pointer-events:none"
    return f'{plate}<text x="{x + 4}" y="{y + LINE - 5}" style="{style}">{escape(text)}</text>'


def _legend() -> str:
    def chip(style: str, text: str) -> str:
        box = "display:inline-block;width:26px;height:12px;margin-right:6px;vertical-align:-1px;box-sizing:border-box"
        return f'<span style="margin-right:18px;white-space:nowrap"><span style="{box};{style}"></span>{text}</span>'

    first = colour(0)
    chips = (
        chip(f"background:{first}", "holds a token")
        + chip(f"background:color-mix(in srgb,{first} 25%,transparent)", "reserved, empty")
        + chip("border:2px solid var(--jp-ui-font-color0,#888)", "shared: ×2, ×3 … tables")
        + chip("border:1px dashed var(--jp-ui-font-color2,#888)", "free, still found by its hash")
    )
    return f'<div style="margin-top:8px;color:var(--jp-ui-font-color2,inherit)">{chips}</div>'


def in_words(title: str, frame: Frame) -> str:
    stats = frame.stats
    slots = stats.used_blocks * frame.block_size
    said = (
        f"{title}: {len(frame.holdings)} running, {len(frame.waiting)} waiting; {stats.waste} of {slots} slots in "
        f"use are empty ({stats.waste_fraction:.0%})"
    )
    if stats.shared_blocks:
        shared = counted(stats.shared_blocks, "block")
        said += f"; {shared} shared, so {stats.tokens} tokens need {stats.tokens_stored} slots"
    return said + "."


# ---- the widget ------------------------------------------------------------------------------------------------------


def memory_map(
    asks: Sequence[Ask] | None = None, slots: int = 320, longest: int = 96, block_sizes: Sequence[int] = BLOCK_SIZES
) -> Panel:
    """The same requests in the same memory, contiguous on the left, paged on the right, step by step.

    The scheduler and the pools are minispec's own; only the model is left out, since it has no say in who gets which
    block. `slots` is the size of each memory, `longest` what a contiguous server reserves that knows nothing better.
    """
    asks = example_asks(longest=longest) if asks is None else list(asks)
    for size in block_sizes:
        if ROW % size or slots % size:
            raise ValueError(f"block_sizes holds {size}: give divisors of {ROW} and of slots={slots}")
    pools = {LONGEST: lambda: ContiguousPool(slots, 1, longest), ANNOUNCED: lambda: AnnouncedPool(slots, 1, asks)}
    left = {reserve: watch(DryEngine(pool()), asks) for reserve, pool in pools.items()}
    right = {
        (size, shared): watch(DryEngine(BlockPool(slots // size, size, enable_prefix_caching=shared)), asks)
        for size in block_sizes
        for shared in (True, False)
    }
    last = max(map(len, [*left.values(), *right.values()])) - 1

    def said(title: str, run: Sequence[Frame], step: int, reserve: str) -> str:
        frame = run[min(step, len(run) - 1)]
        words = in_words(title, frame) + _events(frame, step) + _blocked(frame, asks, reserve, longest)
        served = f" All {len(asks)} were served in {len(run)} steps." if step >= len(run) - 1 else ""
        return words + served

    def draw(step: int, reserve: str, block: int, share: bool, request: int) -> tuple[str, str]:
        runs = {"Contiguous": left[reserve], f"Paged, blocks of {block}": right[block, share]}
        frames = {title: run[min(step, len(run) - 1)] for title, run in runs.items()}
        words = [f"Step {step} of {last}.", *(said(title, run, step, reserve) for title, run in runs.items())]
        chosen = None if request < 0 else request
        words += [table_in_words(frame, chosen) for frame in frames.values() if chosen is not None]
        return memory_map_html(frames, chosen), " ".join(words)

    def most_said() -> str:
        """The longest that each part of the sentence becomes."""
        lefts = [said("Contiguous", run, step, reserve) for reserve, run in left.items() for step in range(last + 1)]
        rights = [said("Paged, blocks of 16", run, step, LONGEST) for run in right.values() for step in range(last + 1)]
        tables = [
            max((table_in_words(frame, id) for run in runs for frame in run for id in frame.holdings), key=len)
            for runs in (left.values(), right.values())
        ]
        return " ".join([f"Step {last} of {last}.", max(lefts, key=len), max(rights, key=len), *tables])

    play, step = player("step", last, interval=500)
    crowd = [len(frame.holdings) for frame in right[block_sizes[0], True]]
    step.value = crowd.index(max(crowd))  # begin where there is most to see
    menu = {"the longest possible text": LONGEST, "what each request announces": ANNOUNCED}
    controls = {
        "step": step,
        "play": play,
        "reserve": choice("contiguous reserves", menu),
        "block": choice("block size", list(block_sizes)),
        "share": switch("share equal beginnings", True),
        "request": choice("table of", {"no request": -1} | {letter(id): id for id in range(len(asks))}),
    }
    return Panel(draw, controls, longest=most_said())


def _events(frame: Frame, step: int) -> str:
    if frame.record is None or frame.record.step != step:
        return ""  # this one was done before
    happened = {"came in": frame.record.admitted, "pushed out": frame.record.preempted, "done": frame.record.finished}
    said = [f"{' '.join(map(letter, ids))} {what}" for what, ids in happened.items() if ids]
    return f" ({'; '.join(said)}.)" if said else ""


def _blocked(frame: Frame, asks: Sequence[Ask], reserve: str, longest: int) -> str:
    """External fragmentation, where it happens: enough memory in sum, and no gap that is wide enough."""
    if not frame.contiguous or not frame.waiting:
        return ""
    need = longest if reserve == LONGEST else asks[frame.waiting[0]].announced
    free = frame.stats.free_blocks * frame.block_size
    if free < need or frame.widest_gap >= need:
        return ""
    who = letter(frame.waiting[0])
    return f" {who} needs {need} slots in a row; {free} are free, but the widest gap is {frame.widest_gap}."
