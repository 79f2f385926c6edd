"""Early exit, or self-speculation: the target drafts for itself with some of its layers left out.

The target's own final norm and head turn an unfinished residual stream into a distribution. There is no second model
to find, to train or to keep in memory, and no cheap draft either: c ≈ the share of layers that remain, plus the head.
Norm and head were not trained on such a stream, and acceptance is poor, unless the model is trained for it, as in
LayerSkip (Elhoushi et al., 2024, arXiv:2404.16710).
"""

from dataclasses import replace

from torch import nn

from ..load.model import Model
from ..model import Transformer
from ..require import require, whole
from ..sampling import Sampling
from .model import DraftModel


class EarlyExit(DraftModel):
    """Draft with the first `layers` layers of the target; None: the first half. It keeps a cache of its own, although
    the target computes the same keys and values again when it verifies."""

    def __init__(self, target: Model, layers: int | None = None, sampling: Sampling | None = None):
        total = target.config.num_layers
        layers = max(1, total // 2) if layers is None else layers
        require(whole(layers, 1, total), f"how many of the target's {total} layers to keep", layers=layers)
        view, name = View(target.transformer, layers), f"{target.name}, {layers} of {total} layers"
        super().__init__(target.around(view, name), sampling)


class View(Transformer):
    """The first layers of a model between its embedding and its head. The very same modules: nothing is copied."""

    def __init__(self, whole: Transformer, layers: int):
        nn.Module.__init__(self)  # not Transformer's, which would make parameters
        self.config = replace(whole.config, num_layers=layers)
        self.embed_tokens, self.norm, self.lm_head = whole.embed_tokens, whole.norm, whole.lm_head
        self.layers = whole.layers[:layers]
        self.register_buffer("head_ids", whole.head_ids)
