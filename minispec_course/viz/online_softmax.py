"""The online softmax, tile by tile: what FlashAttention keeps of the tiles it has seen, on scores of a real model."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from minispec.load.handle import Model

from ..labs.softmax import Attention, State, online_softmax, read_attention
from .drawing import RULE, Axes, Canvas, ticks
from .panel import Panel, choice, player
from .style import GREY, PALETTE

TILES = (4, 8, 16)
LATER = "rgba(128,128,128,.35)"  # slots that are still to come


def online_softmax_svg(attention: Attention, layer: int = 0, head: int = 0, tile: int = 8, seen: int | None = None):
    """The scores and the weights after `seen` tiles (None: all), as SVG, and the same in words."""
    scores, values = attention.scores(layer, head)
    states = online_softmax(scores, values, tile)
    seen = len(states) if seen is None else seen
    state, end, start = states[seen - 1], min(seen * tile, len(scores)), (seen - 1) * tile
    final = scores.softmax(0)  # [S]
    weights = ((scores[:end] - state.m).exp() / state.ell).tolist()  # [end]: the softmax if the sequence ended here
    s, full, far = scores.tolist(), final.tolist(), (-0.7, len(scores) - 0.3)
    names = [f"{i}: {piece!r}" for i, piece in enumerate(attention.pieces)]

    canvas, most = Canvas(490), max(*full, *weights)
    shrunk = f"m = {state.m:.2f}, ℓ = {state.ell:.2f}, old ℓ and o × {state.shrink:.2f}"
    canvas.text(10, 24, f"tile {seen} of {len(states)}: {shrunk}", 15)
    low, high = min(0.0, *s), max(1e-9, *s)
    room, title = 0.05 * (high - low), "scores s = q·k/√D, and the running maximum m"
    above = Axes(canvas, (66, 70, 680, 150), far, (low - room, high + room), title=title, y="score", x_ticks=())
    title, slots = "weights e^(s − m)/ℓ so far; ○ the full softmax", "slot of the cache (dotted: tiles)"
    labels = dict(title=title, x=slots, y="weight", x_ticks=ticks(0, len(scores) - 1, 12))
    below = Axes(canvas, (66, 272, 680, 150), far, (0, 1.06 * most), **labels)
    for edge in range(0, len(scores), tile):
        for chart in (above, below):
            chart.line((edge - 0.5, edge - 0.5), chart.ys, RULE, 1, "1 3")
    for i, (name, score) in enumerate(zip(names, s, strict=True)):
        colour = PALETTE[0] if i < start else PALETTE[1] if i < end else LATER
        above.bar(i - 0.42, i + 0.42, score, colour, f"{name}, score {score:.2f}")
        if i < end:
            below.bar(i - 0.42, i + 0.42, weights[i], colour, f"{name}, weight so far {weights[i]:.3f}")
        below.dot(i, full[i], GREY, f"{name}, full softmax {full[i]:.3f}", "open circle", 3)
    edges = [min(i * tile, len(scores)) - 0.5 for i in range(seen + 1)]
    above.steps(edges, [*(one.m for one in states[:seen]), states[seen - 1].m], PALETTE[2], 3)
    said = _words(states, seen, final @ values)
    return canvas.svg(said), said


def _words(states: list[State], seen: int, full: Tensor) -> str:
    state = states[seen - 1]
    if seen == 1:
        said = f"The first tile sets m = {state.m:.2f}; there is nothing to rescale."
    elif state.shrink < 1:
        said = (
            f"The tile holds a new maximum, so m rises from {states[seen - 2].m:.2f} to {state.m:.2f} "
            f"and everything summed so far is multiplied by {state.shrink:.3f}."
        )
    else:
        said = f"No score of this tile exceeds m = {state.m:.2f}: nothing is rescaled, the tile is added."
    off = float((state.answer - full).norm() / full.norm())
    end = f"the answer o/ℓ is {off:.1%} away from the full softmax's"
    end = end if off > 1e-9 else "o/ℓ is the full softmax's answer"
    return f"Tile {seen} of {len(states)}. {said} ℓ is now {state.ell:.2f}, and {end}."


def online_softmax_tiles(model: Model, text: str | Sequence[int]) -> Panel:
    """Step through the tiles of any head of a model that has processed a text."""
    attention = read_attention(model, text)
    layers, heads, _ = attention.queries.shape
    most = -(-len(attention.pieces) // min(TILES))
    choose = lambda label, count, value: choice(label, {str(n + 1): n for n in range(count)}, value)  # noqa: E731
    menus = {"layer": choose("layer", layers, layers // 2), "head": choose("head", heads, 0)}
    controls = player("tiles before this one", most - 1, 1200, 1) | {"tile": choice("slots per tile", TILES, TILES[1])}

    def draw(step: int, tile: int, layer: int, head: int) -> tuple[str, str]:
        tiles = -(-len(attention.pieces) // tile)  # larger tiles are fewer: then the last one stays
        return online_softmax_svg(attention, layer, head, tile, min(step + 1, tiles))

    return Panel(draw, controls | menus)
