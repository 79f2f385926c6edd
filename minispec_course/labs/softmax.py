"""The online softmax, tile by tile."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
