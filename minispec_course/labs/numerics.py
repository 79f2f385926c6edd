"""What rounding does to logits: the same sequence in passes of other shapes, alone and in a batch, in each dtype.

Sums of floating-point numbers depend on their order, and the order depends on the shape of the computation. So a verify
pass over five tokens, or a batch with other requests in it, gives logits that differ in their last bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minispec.drafters.model import DraftModel
from minispec.generate import generate
from minispec.load.handle import Model
from minispec.speculate import speculate

K, COUNT = 4, 30  # draft tokens per cycle, tokens per greedy output


@torch.inference_mode()
def block_difference(model: Model, text: str, size: int = 5) -> float:
    """The largest difference between the logits of passes over `size` tokens and of passes over one, cache and all."""
    ids = torch.tensor([model.encode(text)])  # [1, T]
    logits = []
    for step in (size, 1):
        cache = model.transformer.new_cache(1, ids.shape[1])
        logits.append(torch.cat([model.transformer(part, cache).logits for part in ids.split(step, dim=1)], 1))
    return float((logits[0] - logits[1]).abs().max())


@torch.inference_mode()
def decode_logits(model: Model, ids: Sequence[int], company: Sequence[Sequence[int]] = ()) -> Tensor:
    """The logits [T, V] of `ids`, decoded token by token in a batch with other sequences of at least that length."""
    batch = torch.tensor([list(sequence)[: len(ids)] for sequence in (ids, *company)])  # [B, T]
    cache = model.transformer.new_cache(*batch.shape)
    steps = [model.transformer(column, cache).logits[0] for column in batch.split(1, dim=1)]  # T times [1, V]
    return torch.cat(steps).double()


@dataclass(frozen=True)
class Divergence:
    """The first position at which greedy outputs of plain decoding and of speculation differ."""

    prompt: str
    position: int
    plain: list[int]
    speculative: list[int]

    @property
    def pair(self) -> tuple[int, int]:
        """The two tokens there."""
        return self.plain[self.position], self.speculative[self.position]

    def logits(self, model: Model) -> tuple[float, float]:
        """What a model, perhaps in another dtype, gives these two tokens after the common prefix."""
        found = decode_logits(model, [*model.encode(self.prompt), *self.plain[: self.position]])[-1]
        return float(found[self.pair[0]]), float(found[self.pair[1]])


def first_divergence(model: Model, draft: Model, prompts: Sequence[str]) -> Divergence | None:
    """The first prompt whose two greedy outputs differ; None where all agree."""
    for prompt in prompts:
        plain = generate(model, prompt, max_new_tokens=COUNT).tokens
        other = speculate(model, prompt, DraftModel(draft), k=K, max_new_tokens=COUNT).tokens
        if (position := first_difference(plain, other)) is not None:
            return Divergence(prompt, position, plain, other)
    return None


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first position at which two outputs differ; None: they agree, as far as both go."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
