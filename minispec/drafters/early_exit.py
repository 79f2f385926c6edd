"""Early exit, or self-speculation: the target drafts for itself with some of its layers left out.

The residual stream is taken before it is finished: after the first n layers, or after a choice of layers that skips
some on the way. The target's own final norm and head turn it into a distribution. There is no second model to find, to
train or to keep in memory, and no cheap draft either: c ≈ the share of layers that remain, plus the head.

Norm and head get a stream they were not trained on, and acceptance is poor (small models most of all). The remedy is to
train the model for it, as LayerSkip does (Elhoushi et al., 2024, arXiv:2404.16710).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from ..load.handle import Model
from ..model import Transformer
from ..sampling import Sampling
from .model import DraftModel


class EarlyExit(DraftModel):
    """Draft with the first `layers` layers of the target, or with those named in a sequence; None: the first half.

    The draft keeps a cache of its own, although the target computes the same keys and values again when it verifies:
    a verify pass that went on from the draft's states would save that, at the price of a loop made for this drafter.
    """

    def __init__(self, target: Model, layers: int | Sequence[int] | None = None, sampling: Sampling | None = None):
        self.layers, total = choose_layers(target.config.num_layers, layers), target.config.num_layers
        view, name = View(target.transformer, self.layers), f"{target.name}, {len(self.layers)} of {total} layers"
        super().__init__(target.around(view, name), sampling)


class View(Transformer):
    """Some layers of a model between its embedding and its head. The very same modules: nothing is copied."""

    def __init__(self, whole: Transformer, layers: Sequence[int]):
        nn.Module.__init__(self)  # not Transformer's, which would make parameters
        self.config = replace(whole.config, num_layers=len(layers))
        self.embed_tokens, self.norm, self.lm_head = whole.embed_tokens, whole.norm, whole.lm_head
        self.layers = nn.ModuleList(whole.layers[index] for index in layers)
        self.register_buffer("head_ids", whole.head_ids)


def choose_layers(total: int, layers: int | Sequence[int] | None) -> list[int]:
    """Which of `total` layers to keep, in order, checked."""
    if layers is None:
        layers = max(1, total // 2)
    if isinstance(layers, int):
        if not 1 <= layers <= total:
            raise ValueError(f"layers={layers}: the target has {total} layers, so give a number from 1 to {total}")
        return list(range(layers))
    chosen = [int(index) for index in layers]
    if not chosen or chosen != sorted(set(chosen)) or not 0 <= chosen[0] <= chosen[-1] < total:
        raise ValueError(f"layers={chosen}: give different numbers from 0 to {total - 1}, in ascending order")
    return chosen
