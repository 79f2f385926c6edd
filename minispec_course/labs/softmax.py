"""The online softmax, tile by tile, and the attention of a real model to run it on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minispec.cache import KVCache
from minispec.load.handle import Model


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
