"""Wrong int8 weights. Each function breaks one part by a monkeypatch."""

from __future__ import annotations

import torch
from pytest import MonkeyPatch

from minispec.cpu import fused, panels
from minispec.cpu.int8 import Int8Linear
from minispec.load import quantize

from .patching import Mutant, rewrite


def one_scale_per_panel(patch: MonkeyPatch) -> None:
    """Gives all sixteen rows of a panel the scale of the first."""
    rewrite(patch, panels.Panels, "__init__", "scale.float()", "scale.float()[torch.arange(self.N) // ROWS * ROWS]")


def last_rows_lost(patch: MonkeyPatch) -> None:
    """Packs whole panels only: the rows that fill no panel stay zero."""
    rewrite(patch, panels.Panels, "__init__", "if rest := self.N - whole * ROWS:", "if rest := 0:")


def first_group_again(patch: MonkeyPatch) -> None:
    """Multiplies the first eight tokens for every group of eight."""
    rewrite(patch, Int8Linear, "forward", "multiply(group, panels", "multiply(tokens[: len(group)], panels")


def bias_forgotten(patch: MonkeyPatch) -> None:
    """Leaves the bias out where the product is ours."""
    rewrite(patch, Int8Linear, "forward", "y if self.bias is None else y + self.bias", "y")


def gradients_cut(patch: MonkeyPatch) -> None:
    """Takes our product also where somebody asks for gradients."""
    rewrite(patch, Int8Linear, "_fits", "not (torch.is_grad_enabled() and x.requires_grad)", "True")


def weight_in_the_order_of_panels(patch: MonkeyPatch) -> None:
    """Expands the panels without turning them: columns and rows of sixteen are mixed up."""

    def weight(self):
        integers = self.integers[:, : self.in_features].reshape(-1, 16, self.in_features)
        return (integers * self.scale.view(-1, 16, 1)).flatten(0, 1)[: self.out_features]

    patch.setattr(Int8Linear, "weight", property(weight))


def embedding_rounded_too(patch: MonkeyPatch) -> None:
    """Rounds the embedding in place before a head that is tied to it is taken from it."""
    right = quantize.to_int8

    def to_int8(transformer):
        table = transformer.embed_tokens.weight
        with torch.no_grad():
            table.copy_(quantize.dequantize(*quantize.quantize(table)))
        return right(transformer)

    patch.setattr(quantize, "to_int8", to_int8)


def changed_scales_unnoticed(patch: MonkeyPatch) -> None:
    """Keeps the addresses of a pass although the scales lie elsewhere by now."""
    rewrite(patch, fused.Plan, "make", "if isinstance(m, int8.Int8Linear)]", "if False]")


MUTANTS = {
    "one scale per panel": Mutant(one_scale_per_panel, ("product", "layer", "model"), ("same_bits", "company")),
    "last rows lost": Mutant(last_rows_lost, ("product", "layer"), ("same_bits",)),
    "first group again": Mutant(first_group_again, ("layer", "fused_pass"), ("product", "mixed")),
    "bias forgotten": Mutant(bias_forgotten, ("layer",), ("product", "fused_pass")),
    "gradients cut": Mutant(gradients_cut, ("layer",), ("product", "fused_pass")),
    "weight in the order of panels": Mutant(weight_in_the_order_of_panels, ("layer", "model", "fused_pass")),
    "embedding rounded too": Mutant(embedding_rounded_too, ("model",), ("fused_pass", "company")),
    "changed scales unnoticed": Mutant(changed_scales_unnoticed, ("change",), ("fused_pass", "mixed")),
}
