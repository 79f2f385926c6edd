"""Counting instead of timing: what a model really multiplies and scores inside a `with` block.

    with CountWork(model) as counted:
        model.transformer(tokens)
    counted.flops, counted.work

A clock says that something is faster; a count says why, and it is the same on every machine.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from minispec import theory
from minispec.load.handle import Model


class CountWork(TorchFunctionMode):
    """Watches every linear layer (by forward hooks) and every attention (on its way to torch) of one model."""

    def __init__(self, model: Model):
        super().__init__()
        self.model, self.flops, self.products, self.scores = model, 0, 0, 0
        self._hooks: list = []

    def __enter__(self) -> CountWork:
        linears = [m for m in self.model.transformer.modules() if isinstance(m, torch.nn.Linear)]
        self._hooks = [linear.register_forward_hook(self._linear) for linear in linears]
        return super().__enter__()

    def __exit__(self, *error) -> None:
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*error)

    def _linear(self, linear, inputs, output) -> None:
        batch, tokens, _ = inputs[0].shape  # [B, T, d]
        products = linear.weight.numel() * batch * tokens
        self.flops += 2 * products  # a multiplication and an addition
        if linear is not self.model.transformer.lm_head:
            self.products += products

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is F.scaled_dot_product_attention:
            (B, H, T, _), S, mask = args[0].shape, args[1].shape[2], kwargs.get("attn_mask")
            pairs = T * S if mask is None else int((mask == 0).sum())  # it adds 0 where a pair counts, −∞ elsewhere
            if kwargs.get("is_causal"):
                pairs = T * (T + 1) // 2  # each token with itself and those before it
            self.scores += B * H * pairs
        return function(*args, **kwargs)

    @property
    def work(self) -> theory.Work:
        """Tokens through the linear layers of the blocks, and pairs that attention scored per head and layer.

        The LM head is left out: it sees one token per forward pass, with a cache or without.
        """
        layers, config = self.model.transformer.layers, self.model.config
        matrices = sum(p.numel() for layer in layers for p in layer.parameters() if p.ndim == 2)
        return theory.Work(self.products // matrices, self.scores // (config.num_layers * config.num_heads))
