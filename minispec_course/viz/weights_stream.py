"""The picture that everything rests on: a pass streams all weights from memory past its tokens.

One token or two hundred, the bytes are the same; only the arithmetic grows, until it takes as long as the reading (the
ridge). Attention adds its own bytes: each sequence's cache, which no other sequence shares.
"""

from typing import NamedTuple

from minispec import theory
from minispec.model import Config

from ..labs.presets import MACHINES, SHAPES, counted, duration, figures, si, weights_read, work
from .drawing import INK, SOFT, Canvas
from .panel import Panel, choice, player, stops
from .style import PALETTE

WEIGHTS, CACHE, BUSY = PALETTE[0], PALETTE[4], PALETTE[1]
TILES = 60  # the weights as so many tiles; a tile of the cache has as many bytes
MOST_CACHE = 48  # tiles of the cache that have room; more are counted in words
MOMENTS = 12  # of one pass
TOKENS = (1, 2, 5, 10, 20, 50, 100, 188, 200, 300, 400)
CONTEXTS = (0, 1024, 4096, 16_384, 65_536)


class Pass(NamedTuple):
    """What one forward pass reads and computes, at best."""

    weight_bytes: float
    cache_bytes: float
    flops: float
    reading: float  # seconds
    computing: float

    @property
    def bytes(self) -> float:
        return self.weight_bytes + self.cache_bytes

    @property
    def seconds(self) -> float:
        """Reading and computing go on side by side, so the longer one decides."""
        return max(self.reading, self.computing)


def one_pass(config: Config, hardware: theory.Hardware, tokens=1, context=0, batch=1, bytes_per_weight=2.0) -> Pass:
    flops, read = work(config, bytes_per_weight, batch, tokens, context)
    weights = weights_read(config) * bytes_per_weight
    return Pass(weights, read - weights, flops, read / hardware.bandwidth, flops / hardware.flops)


def weights_stream_svg(config: Config, hardware: theory.Hardware, tokens=5, context=0, batch=1, step=MOMENTS):
    """One pass in bf16 after `step` of its 12 equal parts: as SVG, and in words."""
    it = one_pass(config, hardware, tokens, context, batch)
    done = step / MOMENTS  # of the bytes and of the FLOPs alike: a weight can be used only once it has arrived
    c = Canvas(height=412)
    _memory(c, it, done)
    _units(c, hardware, tokens * batch, done)
    _meters(c, it, hardware, done)
    words = _told(it, hardware, tokens, context, batch)
    return c.svg(words), words


def weights_stream() -> Panel:
    """Choose how many tokens share a pass and how long their context is; play the pass."""
    shapes = {name: SHAPES[name] for name in ("smollm2", "Llama-3.2-1B", "Llama-3-8B", "Llama-3-70B")}
    controls = {
        "tokens": stops("tokens in the pass, M", TOKENS, 5),
        "context": stops("cached tokens per sequence", CONTEXTS, 0),
        "batch": stops("batch size", (1, 8, 64), 1),
        **player("moment of the pass", MOMENTS, 350, MOMENTS),
        "config": choice("model", shapes, SHAPES["Llama-3-8B"]),
        "hardware": choice("machine", {machine.name: machine for machine in MACHINES}),
    }
    return Panel(weights_stream_svg, controls)


# ---- the parts of the widget -----------------------------------------------------------------------------------------


def _memory(c: Canvas, it: Pass, read: float) -> None:
    """The memory, as tiles of equal size in bytes. What was read is filled; the cache comes last."""
    cache = it.cache_bytes / it.weight_bytes * TILES
    shown, done = min(MOST_CACHE, round(cache)), read * (TILES + cache)
    c.text(14, 24, "memory", 14, bold=True).text(14, 42, f"weights {si(it.weight_bytes, 'B')}", 12.5)
    kept = f"KV cache {si(it.cache_bytes, 'B')}" if it.cache_bytes else "KV cache: hardly anything"
    c.text(14, 154, kept, 12.5)
    for i in range(TILES):
        c.rect(14 + i % 12 * 17, 50 + i // 12 * 17, 15, 15, WEIGHTS, WEIGHTS, 0.9 if i < done else 0.12, 2)
    for i in range(shown):
        filled = TILES + cache * i / max(1, shown) < done
        c.rect(14 + i % 12 * 17, 162 + i // 12 * 17, 15, 15, CACHE, CACHE, 0.9 if filled else 0.15, 2)
    if cache > MOST_CACHE:
        c.text(14, 246, f"({cache / TILES:,.1f} times the weights, cut off here)", 12, colour=SOFT)


def _units(c: Canvas, hardware: theory.Hardware, rows: int, done: float) -> None:
    """The bus, and the tokens that each weight meets on its way."""
    moving, across = 0 < done < 1, 40
    c.text(288, 24, f"{si(hardware.bandwidth, 'B/s')} →", 14, "middle", bold=True)
    for i in range(4):
        x, fill, dash = 234 + i * 27 + 9 * moving, WEIGHTS if moving else None, "" if moving else "2 2"
        c.rect(x, 86, 15, 15, fill, WEIGHTS, 0.9, 2, dash)
    c.arrow(228, 112, 344, 112).text(286, 132, "each weight once", 12, "middle", colour=SOFT)
    c.text(360, 24, "arithmetic units", 14, bold=True).rect(356, 50, 390, 204, round=6)
    shown = min(rows, across * 20)
    cut = f" ({shown} shown)" if rows > shown else ""
    c.text(360, 42, f"each weight serves {counted(rows, 'token')}{cut}", 12.5)
    size = min(30, 372 / min(shown, across), 190 / ((shown - 1) // across + 1))
    per_row, shade = max(1, int(372 // size)), 0.9 if done else 0.15
    with c.group(f'opacity="{shade}"'):
        for i in range(shown):
            x, y = 364 + size * (i % per_row + 0.5), 56 + size * (i // per_row + 0.5)
            c.mark(x, y, "circle", BUSY, size * 0.4)


def _meters(c: Canvas, it: Pass, hardware: theory.Hardware, done: float) -> None:
    """Bytes and FLOPs as bars on one axis of time, with the moment that the pass has reached."""
    left, wide, top = 150, 500, 284
    weights = it.weight_bytes / hardware.bandwidth  # the axis counts in readings of the weights
    end = 1.5 * weights
    while end < it.seconds * 1.02:
        end *= 2
    scale = wide / end
    for y, name, parts, now in (
        (top, "bytes read", [(WEIGHTS, 0, weights), (CACHE, weights, it.reading)], si(done * it.bytes, "B")),
        (top + 34, "FLOPs done", [(BUSY, 0, it.computing)], si(done * it.flops, "FLOP")),
    ):
        c.text(14, y + 16, name, 13, bold=True).text(746, y + 16, now, 12.5, "end")
        mine = parts[-1][2]
        for colour, start, stop in parts:
            c.rect(left + start * scale, y, (stop - start) * scale, 22, colour, colour, 0.18)
            c.rect(left + start * scale, y, (min(done * mine, stop) - start) * scale, 22, colour, None)
        if mine < it.seconds * 0.999:
            c.rect(left + mine * scale, y, (it.seconds - mine) * scale, 22, dash="2 3")
    c.line(left, top + 66, left + wide, top + 66, thick=1)
    for i in range(4):
        x = left + wide * i / 3
        c.line(x, top + 62, x, top + 70, thick=1)
        c.text(x, top + 84, duration(end * i / 3) if i else "0", 12, "middle", colour=SOFT)
    now = left + done * it.seconds * scale
    c.line(now, top - 8, now, top + 66, INK, 1.5)
    c.key(left, top + 112, [(WEIGHTS, "weights"), (CACHE, "KV cache"), (BUSY, "arithmetic"), ("", "waits")])
    c.text(746, top + 112, f"ridge: {theory.balance_point(hardware):.0f} FLOP per byte", 12.5, "end")


def _told(it: Pass, hardware: theory.Hardware, tokens: int, context: int, batch: int) -> str:
    shared = f"{batch} sequences with {tokens} tokens each" if batch > 1 else counted(tokens, "token")
    if it.computing < it.reading:
        verdict = f"Memory-bound: the arithmetic units are busy for {it.computing / it.reading:.1%} of the pass."
    else:
        verdict = f"Compute-bound: memory is busy for {it.reading / it.computing:.1%} of the pass."
    return (
        f"A pass over {shared}{f' after {context:,} cached tokens' if context else ''} reads {si(it.bytes, 'B')} "
        f"({it.cache_bytes / it.bytes:.0%} of it cache) and does {si(it.flops, 'FLOP')}: "
        f"{figures(it.flops / it.bytes)} FLOP per byte where the ridge of {hardware.name} lies at "
        f"{theory.balance_point(hardware):.0f}. "
        f"{verdict} At best {duration(it.seconds)}."
    )
