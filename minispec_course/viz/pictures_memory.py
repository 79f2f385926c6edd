"""Diagrams of memory: the cache and its rewind, block tables, the holes of a static batch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from minispec import theory
from minispec.serving.blocks import BlockPool

from ..labs.memory import ContiguousPool
from .drawing import INK, SOFT, Canvas, Drawing
from .recorder import DryEngine, Frame, example_asks, letter, watch
from .style import GREY, KINDS, PALETTE

HELD, WRONG, FRESH = PALETTE[0], KINDS["corrected"], KINDS["accepted"]


def cache_grid(kept: int = 7, rejected: int = 4, new: int = 2, slots: int = 14, layers: int = 3) -> Drawing:
    """A cache as a grid of layers and slots at three moments: after a verify pass, rewound, and two tokens later."""
    if kept + max(rejected, new) > slots or min(kept, rejected, new, layers) < 1:
        raise ValueError(f"kept={kept}, rejected={rejected}, new={new}: give at least 1 each, within slots={slots}")
    side, left, tall = 30, 176, 22
    c = Canvas(height=52 + 3 * (layers * tall + 58))
    c.text(14, 24, "A cache: one column per slot, one line per layer; each cell holds keys and values", 14, bold=True)
    moments = [
        (f"after the verify pass: {kept + rejected}", kept + rejected, 0),
        (f"after rewind({kept}): {kept}", kept, 0),
        (f"{new} tokens later: {kept + new}", kept + new, new),
    ]
    for i, (name, length, overwritten) in enumerate(moments):
        top = 62 + i * (layers * tall + 58)
        words, count = name.split(": ")
        c.text(14, top + 14, words, 13, bold=True)
        c.text(14, top + 34, f"length {count}", 13)
        for slot in range(slots):
            written = slot < kept + rejected
            kind = HELD if slot < kept else FRESH if slot < kept + overwritten else WRONG if written else None
            for layer in range(layers):
                past = slot >= length
                c.rect(
                    left + slot * side,
                    top + layer * tall,
                    side - 3,
                    tall - 3,
                    kind,
                    kind or GREY,
                    0.18 if past else 0.75,
                    2,
                    dash="2 2" if past else "",
                )
            c.text(left + slot * side + side / 2 - 1.5, top + layers * tall + 12, str(slot), 11, "middle", colour=SOFT)
        x = left + length * side - 1.5
        c.line(x, top - 8, x, top + layers * tall + 2, INK, 2.5)
        c.arrow(x, top - 18, x, top - 5, INK, 2)
        if i == 1:
            c.path(f"M {left + (kept + rejected) * side} {top - 14} H {x + 12}", SOFT, 1.5)
            c.arrow(x + 16, top - 14, x + 5, top - 14, SOFT)
    entries = [(HELD, "accepted"), (WRONG, "rejected draft tokens"), (FRESH, "new tokens, written over them")]
    c.key(14, 44 + 3 * (layers * tall + 58), [*entries, ("", "past the length: ignored")], 12)
    return c.drawing(
        f"A KV cache of {slots} slots. It holds {kept + rejected} tokens after a verify pass. Rewinding by {rejected} "
        f"moves only the length, to {kept}; no cell changes. The next {new} tokens overwrite {new} of the {rejected} "
        "old cells."
    )


def block_arrows(pool: BlockPool, requests: Sequence[Hashable] | None = None) -> Drawing:
    """Logical blocks of each request, above the physical blocks that its table names, with an arrow for each entry."""
    requests = list(pool.tables) if requests is None else list(requests)
    size, count = pool.block_size, pool.num_blocks
    cell = min(26, 700 / (count * size + count))
    wide = cell * size
    c = Canvas(height=296)
    c.text(14, 24, "What a request sees: its own positions, in order", 14, bold=True)
    c.text(14, 268, "What the memory holds: blocks, wherever they were free", 14, bold=True)
    total = sum(len(pool.table(name)) for name in requests)
    between = max(10.0, (700 - total * wide) / max(1, len(requests)))
    where = [16 + block * (732 / count) for block in range(count)]
    for block in range(count):
        c.rect(where[block], 190, wide, 34, None, dash="2 2")
        c.text(where[block] + wide / 2, 242, f"block {block}", 12, "middle", colour=SOFT)
    x, said = 40.0, []
    for n, name in enumerate(requests):
        table, length, colour = pool.table(name), pool.tables[name].length, PALETTE[n % len(PALETTE)]
        c.text(x, 54, f"{name}: table {list(table)}", 13, bold=True)
        for logical, block in enumerate(table):
            for i in range(size):
                position, held = logical * size + i, logical * size + i < length
                for left, top in ((x, 64), (where[block], 190)):
                    c.rect(
                        left + i * cell, top, cell, 34, colour if held else None, colour, 0.3, 1, "" if held else "2 2"
                    )
                    if held and cell > 14:
                        c.text(left + (i + 0.5) * cell, top + 22, str(position), 11.5, "middle")
            c.arrow(x + wide / 2, 102, where[block] + wide / 2, 187, colour, 2)
            x += wide + 4
        x += between - 4
        said.append(f"{name} has {length} tokens in blocks {', '.join(map(str, table))}")
    free = count - len({block for name in requests for block in pool.table(name)})
    return c.drawing(f"Block tables, {count} blocks of {size} slots: {'; '.join(said)}; {free} blocks are free.")


def static_holes(lengths: Sequence[int], slots: int = 4) -> Drawing:
    """A static batch after the other: a bar per request, and the slots that stay empty until the longest is done."""
    batches = [list(lengths[i : i + slots]) for i in range(0, len(lengths), slots)]
    steps = sum(max(batch) for batch in batches)
    left, tall = 76, 26
    scale = (746 - left) / steps
    c = Canvas(height=60 + slots * tall + 42)
    c.text(14, 24, f"Static batching: {len(lengths)} requests, {slots} slots, {steps} steps", 14, bold=True)
    start, said = 0, []
    for i in range(slots):
        c.text(14, 76 + i * tall, f"slot {i}", 12.5)
    for number, batch in enumerate(batches):
        longest, idle = max(batch), theory.static_batch_idle(batch)
        x, colour = left + start * scale, PALETTE[number % 3]
        c.text(x, 48, f"{idle:.0%} empty" if longest * scale > 60 else f"{idle:.0%}", 12.5, bold=True)
        for i, length in enumerate(batch):
            y = 60 + i * tall
            c.rect(x, y, length * scale - 1, tall - 4, colour, colour, 0.35, 2)
            if length * scale > 16:
                c.text(x + length * scale / 2, y + 15, str(length), 12, "middle")
            if length < longest:
                c.rect(x + length * scale, y, (longest - length) * scale - 1, tall - 4, None, dash="2 3")
        start += longest
        c.line(left + start * scale, 52, left + start * scale, 62 + slots * tall, INK, 1.5)
        said.append(f"{batch} takes {longest} steps and leaves {idle:.0%} empty")
    y = 60 + slots * tall + 8
    c.arrow(left, y + 6, 746, y + 6)
    c.text(left, y + 22, "steps (one forward pass each)", 12, colour=SOFT)
    c.key(
        left + 230, y + 22, [(PALETTE[0], "generates a token"), ("", "a hole: waits for the longest of its batch")], 12
    )
    whole = 1 - sum(lengths) / (slots * steps)
    return c.drawing(
        f"Static batching with {slots} slots: {'; '.join(said)}. In all {whole:.0%} of the slots stay empty."
    )


def memory_snapshot(slots: int = 320, longest: int = 96, block_size: int = 4) -> Drawing:
    """The same requests in the same memory, contiguous and paged, at the step where most of them run when paged."""
    asks = example_asks(longest=longest)
    contiguous = watch(DryEngine(ContiguousPool(slots, 1, longest)), asks)
    paged = watch(DryEngine(BlockPool(slots // block_size, block_size)), asks)
    step = max(range(len(paged)), key=lambda i: len(paged[i].holdings))
    c = Canvas(height=100 + slots // 32 * 22 + 24)
    c.text(14, 24, f"The same {len(asks)} requests and {slots} slots, at the same step ({step})", 14, bold=True)
    said = []
    for n, (name, frame) in enumerate(
        (("contiguous", contiguous[min(step, len(contiguous) - 1)]), ("paged", paged[step]))
    ):
        left = 14 + n * 378
        empty = f"{frame.stats.waste_fraction:.0%} of the slots in use are empty"
        c.text(left, 50, f"{name}: {len(frame.holdings)} running, {len(frame.waiting)} waiting", 13, bold=True)
        c.text(left, 68, empty, 12.5)
        _slots(c, frame, left, 80)
        said.append(f"{name}: {len(frame.holdings)} requests running, {len(frame.waiting)} waiting, {empty}")
    y = 100 + slots // 32 * 22 + 8
    c.key(14, y, [(PALETTE[0], "holds a token"), ("", "free")], 12)
    c.rect(190, y - 10, 12, 12, PALETTE[0], PALETTE[0], 0.15)
    c.text(208, y, "reserved, empty", 12)
    return c.drawing(f"Two memories of {slots} slots with the same requests. {'; '.join(said)}.")


def _slots(c: Canvas, frame: Frame, left: float, top: float, across: int = 32, wide: float = 11) -> None:
    """Every slot of a memory: whose it is by colour and letter, and whether it holds a token by its strength."""
    c.rect(left, top, across * wide, frame.num_blocks * frame.block_size / across * 22, None, dash="2 2")
    size = frame.block_size
    for id, holding in frame.holdings.items():
        colour = PALETTE[id % len(PALETTE)]
        slots = [block * size + i for block in holding.blocks for i in range(size)]
        start = 0
        for i in range(1, len(slots) + 1):  # a piece ends where memory, the line, or the tokens do, or a block is full
            ends = i == len(slots) or slots[i] != slots[i - 1] + 1 or slots[i] % across == 0 or i == holding.tokens
            if not ends and (size == 1 or i % size):
                continue
            x, y = left + slots[start] % across * wide, top + slots[start] // across * 22
            c.rect(
                x + 0.5, y + 1, (i - start) * wide - 1, 20, colour, None, 0.55 if start < holding.tokens else 0.15, 1
            )
            if start == 0 or (size > 1 and start % size == 0):
                c.text(x + 3, y + 15, letter(id), 11.5, bold=True)
            start = i
