"""The picture that everything rests on: a pass streams all weights from memory past its tokens.

One token or two hundred, the bytes are the same; only the arithmetic grows, until it takes as long as the reading (the
ridge). Attention adds its own bytes: each sequence's cache, which no other sequence shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from minispec import theory
from minispec.model import Config

from . import presets
from .drawing import INK, SOFT, Canvas, Drawing
from .panel import Panel, choice, player
from .roofline import MACHINES
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
    def seconds(self) -> float:
        """Reading and computing go on side by side, so the longer one decides."""
        return max(self.reading, self.computing)


def one_pass(
    config: Config,
    hardware: theory.Hardware,
    tokens: int = 1,
    context: int = 0,
    batch: int = 1,
    bytes_per_weight: float = 2,
) -> Pass:
    flops, read = presets.work(config, bytes_per_weight, batch, tokens, context)
    weights = presets.weights_read(config) * bytes_per_weight
    return Pass(weights, read - weights, flops, read / hardware.bandwidth, flops / hardware.flops)


def weights_stream_svg(
    config: Config, hardware: theory.Hardware, tokens: int = 5, context: int = 0, batch: int = 1, moment: int = MOMENTS
) -> tuple[str, str]:
    """One pass in bf16 after `moment` of its 12 equal parts: as SVG, and in words."""
    it = one_pass(config, hardware, tokens, context, batch)
    done = moment / MOMENTS  # of the bytes and of the FLOPs alike: a weight can be used only once it has arrived
    c = Canvas(height=412)
    _memory(c, it, done)
    _units(c, hardware, tokens * batch, done)
    _meters(c, it, hardware, done)
    words = _told(it, hardware, tokens, context, batch)
    return c.svg(words), words


def weights_stream(config: str = "Llama-3-8B", hardware: theory.Hardware = theory.H200) -> Panel:
    """Choose how many tokens share a pass and how long their context is; play the pass."""
    shapes = {name: presets.SHAPES[name] for name in ("smollm2", "Llama-3.2-1B", "Llama-3-8B", "Llama-3-70B")}
    machines = {machine.name: machine for machine in dict.fromkeys((hardware, *MACHINES))}
    play, moment = player("moment of the pass", MOMENTS, interval=350)
    moment.value = MOMENTS
    controls = {
        "tokens": presets.stops("tokens in the pass, M", TOKENS, 5),
        "context": presets.stops("cached tokens per sequence", CONTEXTS, 0),
        "batch": presets.stops("batch size", (1, 8, 64), 1),
        "moment": moment,
        "play": play,
        "config": choice("model", shapes, shapes[config]),
        "hardware": choice("machine", machines, hardware),
    }
    return Panel(weights_stream_svg, controls)


def pass_rows(
    config: str = "Llama-3-8B",
    hardware: theory.Hardware = theory.H200,
    tokens: Sequence[int] = (1, 5, 200),
    contexts: Sequence[int] = (8192, 131_072),
) -> Drawing:
    """The same without controls: a few passes under each other, on one scale of time."""
    shape = presets.SHAPES[config]
    rows = [(m, 0, one_pass(shape, hardware, m)) for m in tokens]
    rows += [(tokens[0], n, one_pass(shape, hardware, tokens[0], n)) for n in contexts]
    longest = max(it.seconds for *_, it in rows)
    left, wide, tall = 170, 430, 52
    c = Canvas(height=58 + tall * len(rows) + 30)
    c.text(14, 24, f"One forward pass of {config} (bf16), batch size 1, at best: {_machine(hardware)}", 14, bold=True)
    for i, (m, n, it) in enumerate(rows):
        y = 48 + i * tall
        c.text(14, y + 13, f"{m} token{'s' if m > 1 else ''}", 13, bold=True)
        c.text(14, y + 29, f"context {n:,}" if n else "short context", 12, colour=SOFT)
        scale = wide / longest
        share = it.weight_bytes / (it.weight_bytes + it.cache_bytes)
        c.rect(left, y, it.reading * scale * share, 16, WEIGHTS)
        c.rect(left + it.reading * scale * share, y, it.reading * scale * (1 - share), 16, CACHE, line=None)
        c.rect(left, y + 19, it.computing * scale, 16, BUSY)
        if it.computing < it.reading:
            c.rect(left + it.computing * scale, y + 19, (it.reading - it.computing) * scale, 16, dash="2 3")
        x = left + it.seconds * scale + 8
        c.text(x, y + 13, f"{presets.si(it.weight_bytes + it.cache_bytes, 'B')} read", 12)
        c.text(x, y + 31, f"{presets.si(it.flops, 'FLOP')}: {presets.duration(it.seconds)}", 12)
    y = 48 + tall * len(rows) + 14
    c.key(
        14,
        y,
        [
            (WEIGHTS, "reading the weights"),
            (CACHE, "reading the KV cache"),
            (BUSY, "arithmetic"),
            ("", "arithmetic units wait"),
        ],
    )
    said = "; ".join(
        f"{m} token{'s' if m > 1 else ''}{f' after {n:,} cached ones' if n else ''}: "
        f"{presets.si(it.weight_bytes + it.cache_bytes, 'B')}, {presets.si(it.flops, 'FLOP')}, "
        f"{presets.duration(it.seconds)}"
        for m, n, it in rows
    )
    return c.drawing(f"Forward passes of {config} on {hardware.name}: {said}.")


# ---------------------------------------------------------------- the parts


def _memory(c: Canvas, it: Pass, read: float) -> None:
    """The memory, as tiles of equal size in bytes. What was read is filled; the cache comes last."""
    tile = it.weight_bytes / TILES
    cache = it.cache_bytes / tile
    shown = min(MOST_CACHE, round(cache))
    done = read * (TILES + cache)
    c.text(14, 24, "memory", 14, bold=True)
    c.text(14, 42, f"weights {presets.si(it.weight_bytes, 'B')}", 12.5)
    for i in range(TILES):
        c.rect(14 + i % 12 * 17, 50 + i // 12 * 17, 15, 15, WEIGHTS, WEIGHTS, 0.9 if i < done else 0.12, 2)
    c.text(
        14, 154, f"KV cache {presets.si(it.cache_bytes, 'B')}" if it.cache_bytes else "KV cache: hardly anything", 12.5
    )
    for i in range(shown):
        filled = TILES + cache * i / max(1, shown) < done
        c.rect(14 + i % 12 * 17, 162 + i // 12 * 17, 15, 15, CACHE, CACHE, 0.9 if filled else 0.15, 2)
    if cache > MOST_CACHE:
        c.text(14, 246, f"({cache / TILES:,.1f} times the weights, cut off here)", 12, colour=SOFT)


def _units(c: Canvas, hardware: theory.Hardware, rows: int, done: float) -> None:
    """The bus, and the tokens that each weight meets on its way."""
    c.text(288, 24, f"{presets.si(hardware.bandwidth, 'B/s')} →", 14, "middle", bold=True)
    moving = 0 < done < 1
    for i in range(4):
        c.rect(
            234 + i * 27 + (9 if moving else 0),
            86,
            15,
            15,
            WEIGHTS if moving else None,
            WEIGHTS,
            0.9,
            2,
            dash="" if moving else "2 2",
        )
    c.arrow(228, 112, 344, 112)
    c.text(286, 132, "each weight once", 12, "middle", colour=SOFT)
    c.text(360, 24, "arithmetic units", 14, bold=True)
    c.rect(356, 50, 390, 204, round=6)
    across = 40
    shown = min(rows, across * 20)
    cut = f" ({shown} shown)" if rows > shown else ""
    c.text(360, 42, f"each weight serves {rows:,} token{'s' if rows > 1 else ''}{cut}", 12.5)
    size = min(30, 372 / min(shown, across), 190 / ((shown - 1) // across + 1))
    per_row = max(1, int(372 // size))
    for i in range(shown):
        c.circle(
            368 + size * (i % per_row) + size / 2 - 4,
            58 + size * (i // per_row) + size / 2 - 2,
            size * 0.4,
            BUSY,
            BUSY,
            0.9 if moving or done == 1 else 0.15,
            1,
        )


def _meters(c: Canvas, it: Pass, hardware: theory.Hardware, done: float) -> None:
    """Bytes and FLOPs as bars on one axis of time, with the moment that the pass has reached."""
    left, wide, top = 150, 500, 284
    unit = it.weight_bytes / hardware.bandwidth  # the axis counts in readings of the weights
    most = next(n for n in (1.5, 3, 6, 12, 30, 60, 150, 300, 1000, 3000, 10_000, 1e9) if n * unit >= it.seconds * 1.02)
    scale = wide / (most * unit)
    weights = it.weight_bytes / hardware.bandwidth
    c.text(14, top + 16, "bytes read", 13, bold=True)
    c.rect(left, top, weights * scale, 22, WEIGHTS, WEIGHTS, 0.18)
    c.rect(left + weights * scale, top, (it.reading - weights) * scale, 22, CACHE, CACHE, 0.18)
    c.rect(left, top, min(done * it.reading, weights) * scale, 22, WEIGHTS, None)
    c.rect(left + weights * scale, top, max(0, done * it.reading - weights) * scale, 22, CACHE, None)
    c.text(14, top + 50, "FLOPs done", 13, bold=True)
    c.rect(left, top + 34, it.computing * scale, 22, BUSY, BUSY, 0.18)
    c.rect(left, top + 34, done * it.computing * scale, 22, BUSY, None)
    for y, mine in ((top, it.reading), (top + 34, it.computing)):
        if mine < it.seconds * 0.999:
            c.rect(left + mine * scale, y, (it.seconds - mine) * scale, 22, dash="2 3")
    for y, value in (
        (top, presets.si(done * (it.weight_bytes + it.cache_bytes), "B")),
        (top + 34, presets.si(done * it.flops, "FLOP")),
    ):
        c.text(746, y + 16, value, 12.5, "end")
    c.line(left, top + 66, left + wide, top + 66, thick=1)
    for i in range(4):
        x = left + wide * i / 3
        c.line(x, top + 62, x, top + 70, thick=1)
        c.text(x, top + 84, presets.duration(most * unit * i / 3) if i else "0", 12, "middle", colour=SOFT)
    now = left + done * it.seconds * scale
    c.line(now, top - 8, now, top + 66, INK, 1.5)
    c.key(left, top + 112, [(WEIGHTS, "weights"), (CACHE, "KV cache"), (BUSY, "arithmetic"), ("", "waits")])
    c.text(746, top + 112, f"ridge: {theory.balance_point(hardware):.0f} FLOP per byte", 12.5, "end")


def _machine(hardware: theory.Hardware) -> str:
    return hardware.name.replace(", bf16", "")


def _told(it: Pass, hardware: theory.Hardware, tokens: int, context: int, batch: int) -> str:
    read, ridge = it.weight_bytes + it.cache_bytes, theory.balance_point(hardware)
    shared = (
        f"{batch} sequences with {tokens} tokens each" if batch > 1 else f"{tokens} token{'s' if tokens > 1 else ''}"
    )
    intensity = it.flops / read
    if it.computing < it.reading:
        verdict = f"Memory-bound: the arithmetic units are busy for {it.computing / it.reading:.1%} of the pass."
    else:
        verdict = f"Compute-bound: memory is busy for {it.reading / it.computing:.1%} of the pass."
    return (
        f"A pass over {shared}{f' after {context:,} cached tokens' if context else ''} reads {presets.si(read, 'B')} "
        f"({it.cache_bytes / read:.0%} of it cache) and does {presets.si(it.flops, 'FLOP')}: "
        f"{presets.figures(intensity)} FLOP per byte where the ridge of {_machine(hardware)} lies at {ridge:.0f}. "
        f"{verdict} At best {presets.duration(it.seconds)}."
    )
