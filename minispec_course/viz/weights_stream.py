"""The picture that everything rests on: a pass streams all weights from memory past its tokens.

One token or two hundred, the bytes are the same; only the arithmetic grows, until it takes as long as the reading (the
ridge). Attention adds its own bytes: each sequence's cache, which no other sequence shares.
"""

from minispec import theory
from minispec.model import Config

from ..labs.presets import MACHINES, SHAPES, counted, duration, figures, si, weights_read, work
from .drawing import INK, SOFT, Canvas
from .panel import Panel, choice, player, stops
from .style import PALETTE

WEIGHTS, CACHE, BUSY = PALETTE[0], PALETTE[4], PALETTE[1]
WIDTH, SCALE = 400, 1.3
TILES, ACROSS = 60, 15  # the weights as so many tiles, and how many are side by side
MOMENTS = 12  # of one pass
TOKENS = (1, 2, 5, 10, 20, 50, 100, 188, 200, 300, 400)
CONTEXTS = (0, 1024, 4096, 16_384, 65_536)


def weights_stream_svg(config: Config, hardware: theory.Hardware, tokens=1, context=0, batch=1, step=MOMENTS):
    """One pass in bf16 after `step` of its 12 equal parts: as SVG, and in words."""
    flops, read = work(config, 2, batch, tokens, context)
    weights, rows, done = 2 * weights_read(config), tokens * batch, step / MOMENTS
    reading, computing = read / hardware.bandwidth, flops / hardware.flops
    seconds, c = max(reading, computing), Canvas(336, WIDTH, SCALE)

    c.text(14, 24, f"{si(weights, 'B')} of weights", 13, bold=True)
    tiles = [(14 + i % ACROSS * 11, 34 + i // ACROSS * 15, 9, 12) for i in range(TILES)]
    come = round(done * TILES * read / weights)  # the cache comes last
    c.cells(tiles[:come], WEIGHTS, 0.9).cells(tiles[come:], WEIGHTS, 0.15)
    c.arrow(182, 62, 206, 62)
    c.text(214, 24, f"shared by {counted(rows, 'token')}", 13, bold=True)
    size = min(20, (172 * 56 / rows) ** 0.5)
    across, shade = max(1, int(172 // size)), 0.9 if done else 0.2
    shown = range(min(rows, across * int(60 // size)))
    dots = [(216 + size * (i % across), 34 + size * (i // across), 0.8 * size, 0.8 * size) for i in shown]
    c.cells(dots, BUSY, shade)

    end = 1.5 * weights / hardware.bandwidth  # of the axis of time, which counts in readings of the weights
    while end < seconds * 1.02:
        end *= 2
    scale = (WIDTH - 28) / end
    stored = [(WEIGHTS, 0, weights / hardware.bandwidth), (CACHE, weights / hardware.bandwidth, reading)]
    for top, name, parts, mine in (
        (136, f"bytes read: {si(done * read, 'B')}", stored, reading),
        (194, f"arithmetic done: {si(done * flops, 'FLOP')}", [(BUSY, 0, computing)], computing),
    ):
        c.text(14, top, name, 13, bold=True)
        for colour, start, stop in parts:
            c.rect(14 + start * scale, top + 8, (stop - start) * scale, 24, colour, colour, 0.18)
            c.rect(14 + start * scale, top + 8, (min(done * mine, stop) - start) * scale, 24, colour, None)
        if mine < seconds * 0.999:
            c.rect(14 + mine * scale, top + 8, (seconds - mine) * scale, 24, dash="2 3")
    for i in range(4):
        x = 14 + (WIDTH - 28) * i / 3
        c.line(x, 240, x, 246, thick=1)
        c.text(x, 260, duration(end * i / 3) if i else "0", 12, ("start", "middle", "middle", "end")[i], colour=SOFT)
    c.line(14, 240, WIDTH - 14, 240, thick=1)
    c.line(14 + done * seconds * scale, 142, 14 + done * seconds * scale, 240, INK, 1.5)
    c.key(14, 288, [(WEIGHTS, "weights"), (CACHE, "KV cache"), (BUSY, "arithmetic"), ("", "waits")], 12)
    ridge = theory.balance_point(hardware)
    c.text(14, 318, f"{figures(flops / read)} FLOP per byte; the ridge is at {figures(ridge)}", 13, colour=SOFT)

    shared = f"{batch} sequences with {counted(tokens, 'token')} each" if batch > 1 else counted(tokens, "token")
    share, busy = min(reading, computing) / seconds, "the arithmetic is" if computing < reading else "the memory is"
    words = (
        f"A pass over {shared}{f' after {context:,} cached tokens' if context else ''} reads {si(read, 'B')} and does "
        f"{si(flops, 'FLOP')}: {figures(flops / read)} FLOP per byte; the ridge ({hardware.name}) is at "
        f"{figures(ridge)}. {'Memory' if computing < reading else 'Compute'}-bound: {busy} busy for {share:.1%} of "
        f"the pass. At best {duration(seconds)}."
    )
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
