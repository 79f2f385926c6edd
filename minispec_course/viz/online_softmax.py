"""The online softmax, tile by tile: what FlashAttention keeps of the tiles it has seen, on scores of a real model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minispec.cache import KVCache
from minispec.load.handle import Model

from .drawing import RULE, Axes, Canvas, ticks
from .panel import Panel, choice, player
from .style import GREY, PALETTE

TILES = (4, 8, 16)
LATER = "rgba(128,128,128,.35)"  # slots that are still to come


@dataclass(frozen=True)
class State:
    """All that one query remembers of the slots it has seen."""

    m: float  # the largest score
    ell: float  # Σ e^(s − m)
    o: Tensor  # Σ e^(s − m) · v, [D]
    shrink: float = 1.0  # what its ℓ and o of before this tile were multiplied by, e^(m before − m)

    @property
    def answer(self) -> Tensor:
        """softmax(s) v over what was seen, [D]."""
        return self.o / self.ell


def online_softmax(scores: Tensor, values: Tensor, tile: int) -> list[State]:
    """The state after each tile of scores [S] and values [S, D]. The last one's answer is softmax(scores) @ values."""
    if tile < 1:
        raise ValueError(f"tile={tile}: give at least one slot")
    if scores.ndim != 1 or values.ndim != 2 or len(values) != len(scores) or not len(scores):
        raise ValueError(
            f"scores is {list(scores.shape)}, values {list(values.shape)}: give [S] and [S, D], at least one slot"
        )
    m, ell, o = -torch.inf, 0.0, torch.zeros_like(values[0])
    states = []
    for s, v in zip(scores.split(tile), values.split(tile), strict=True):
        top = max(m, float(s.max()))
        shrink = float(torch.tensor(m - top, dtype=torch.float64).exp())  # 0 before the first tile
        weights = (s - top).exp()  # [tile], none above 1: no overflow
        m, ell, o = top, ell * shrink + float(weights.sum()), o * shrink + weights @ v
        states.append(State(m, ell, o, shrink))
    return states


def merge_states(states: list[State]) -> State:
    """One query's states over separate slots, put together: what `flash_decode` does with its splits."""
    top = max(state.m for state in states)
    weights = [float(torch.tensor(state.m - top, dtype=torch.float64).exp()) for state in states]
    pairs = list(zip(weights, states, strict=True))
    return State(top, sum(w * state.ell for w, state in pairs), sum(w * state.o for w, state in pairs))


@dataclass(frozen=True)
class Attention:
    """Queries of a text's last token, and the keys and values of all its tokens, at every layer."""

    pieces: list[str]  # the text of each token
    queries: Tensor  # [layers, H, D]
    keys: Tensor  # [layers, Hkv, S, D]
    values: Tensor  # [layers, Hkv, S, D]

    def scores(self, layer: int, head: int) -> tuple[Tensor, Tensor]:
        """q kᵀ / √D of one query head [S], and the values it weighs [S, D]."""
        layers, heads, dim = self.queries.shape
        if not (0 <= layer < layers and 0 <= head < heads):
            raise ValueError(f"layer={layer}, head={head}: there are {layers} layers of {heads} heads, counted from 0")
        shared = head * self.keys.shape[1] // heads  # the key/value head of this query head's group
        return self.keys[layer, shared] @ self.queries[layer, head] / dim**0.5, self.values[layer, shared]


class _Watched(KVCache):
    """A cache that keeps the last token's queries too."""

    def begin(self, count: int, mask: Tensor | None = None):
        slots, attend = super().begin(count, mask)
        self.queries: list[Tensor] = []

        def watch(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.queries.append(q[0, :, -1])  # [H, D]
            return attend(layer, q, k, v)

        return slots, watch


@torch.inference_mode()
def read_attention(model: Model, text: str | Sequence[int]) -> Attention:
    """Run a model on a text and keep what its last token attends with, in float64."""
    ids = model.encode(text)
    cache = _Watched(model.config, 1, len(ids), device=model.device, dtype=model.dtype)
    model.transformer(torch.tensor([ids], device=model.device), cache, last_only=True)
    keys, values = (x[:, 0].double().cpu() for x in (cache.keys, cache.values))  # [layers, Hkv, S, D]
    pieces = [model.decode([token]) if model.tokenizer else str(token) for token in ids]
    return Attention(pieces, torch.stack(cache.queries).double().cpu(), keys, values)


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
