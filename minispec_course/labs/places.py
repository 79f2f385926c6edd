"""Where a cycle may begin: two distributions of your own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from torch import Tensor

from minispec import exact

PRESETS = {
    "a fair draft": ([0.40, 0.25, 0.20, 0.10, 0.05], [0.20, 0.35, 0.15, 0.25, 0.05]),
    "a good draft": ([0.40, 0.25, 0.20, 0.10, 0.05], [0.36, 0.28, 0.18, 0.12, 0.06]),
    "a bad draft": ([0.60, 0.25, 0.10, 0.05, 0.00], [0.05, 0.10, 0.15, 0.30, 0.40]),
    "too sure of itself": ([0.40, 0.25, 0.20, 0.10, 0.05], [0.85, 0.10, 0.03, 0.01, 0.01]),
    "too timid": ([0.80, 0.10, 0.05, 0.03, 0.02], [0.20, 0.20, 0.20, 0.20, 0.20]),
    "nothing in common": ([0.50, 0.30, 0.20, 0.00, 0.00], [0.00, 0.00, 0.00, 0.60, 0.40]),
    "the target itself": ([0.40, 0.25, 0.20, 0.10, 0.05], [0.40, 0.25, 0.20, 0.10, 0.05]),
    "greedy target": ([0.00, 1.00, 0.00, 0.00, 0.00], [0.20, 0.45, 0.20, 0.10, 0.05]),
}


@dataclass(frozen=True)
class Place:
    """Where a cycle begins: what both models say there, and after any tokens that may follow.

    After token number n both distributions are rotated by n + 1 tokens: the next token has another favourite, and the
    acceptance probability stays what it was.
    """

    name: str
    target: exact.Model
    draft: exact.Model
    labels: Sequence[str]  # of the whole vocabulary

    @property
    def shown(self) -> range:
        """The tokens that have a bar: all of them."""
        return range(len(self.labels))

    @property
    def probs(self) -> dict[str, list[float]]:
        """p and q, as the editor takes them."""
        return {"p": self.target(()).tolist(), "q": self.draft(()).tolist()}

    def edited(self, p: Sequence[float], q: Sequence[float]) -> Place:
        return toy_place(p, q, self.name, self.labels)


def toy_place(p, q, name: str = "p and q", labels: Sequence[str] = ()) -> Place:
    """A position with two distributions of your own."""
    p, q = exact.as_distribution("p", p), exact.as_distribution("q", q)
    if p.shape != q.shape or p.dim() != 1:
        raise ValueError(f"p has {len(p)} tokens and q {len(q)}: give both distributions over the same tokens")
    labels = list(labels) or [chr(ord("a") + i) for i in range(len(p))]

    def turned(probs: Tensor) -> exact.Model:
        return cache(lambda context: probs.roll(sum(x + 1 for x in context)))

    return Place(name, turned(p), turned(q), labels)
