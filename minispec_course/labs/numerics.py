"""What rounding does to logits: the same sequence in passes of other shapes, alone and in a batch, in each dtype.

Sums of floating-point numbers depend on their order, and the order depends on the shape of the computation. So a verify
pass over five tokens, or a batch with other requests in it, gives logits that differ in their last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    def deciding(self, model: Model, draft: Model) -> dict[str, tuple[float, float]]:
        """The logits of these two tokens in the pass that chose each: of plain decoding, and of verification."""
        index = len(model.encode(self.prompt)) + self.position
        runs = {
            "plain": lambda: generate(model, self.prompt, max_new_tokens=COUNT),
            "verification": lambda: speculate(model, self.prompt, DraftModel(draft), k=K, max_new_tokens=COUNT),
        }
        found = {name: logits_at(model, index, run) for name, run in runs.items()}
        return {name: (float(x[self.pair[0]]), float(x[self.pair[1]])) for name, x in found.items()}


def logits_at(model: Model, index: int, run: Callable) -> Tensor:
    """The logits [V] from which run() chose the token at this index of the sequence: a forward hook keeps those of the
    last pass over the token before it."""
    found = []

    def keep(_, args, output) -> None:
        tokens, cache = args  # [1, T], already in the cache
        first = int(cache.lengths[0]) - tokens.shape[1]  # the index of tokens[0, 0]
        if first < index <= int(cache.lengths[0]):
            found.append(output.logits[0, index - 1 - int(cache.lengths[0])].double())

    hook = model.transformer.register_forward_hook(keep)
    try:
        run()
    finally:
        hook.remove()
    return found[-1]


def greedy_outputs(model: Model, draft: Model, prompt: str) -> tuple[list[int], list[int]]:
    """The greedy output of plain decoding and of speculation."""
    plain = generate(model, prompt, max_new_tokens=COUNT).tokens
    return plain, speculate(model, prompt, DraftModel(draft), k=K, max_new_tokens=COUNT).tokens


def first_divergence(model: Model, draft: Model, prompts: Sequence[str]) -> Divergence | None:
    """The first prompt whose two greedy outputs differ; None where all agree."""
    for prompt in prompts:
        plain, other = greedy_outputs(model, draft, prompt)
        if (position := first_difference(plain, other)) is not None:
            return Divergence(prompt, position, plain, other)
    return None


# ---- three comparisons of greedy outputs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Parted:
    """A greedy output that differs from another one: from which token on, and how close the choice was there."""

    prompt: str
    position: int
    gap: float  # between the two best logits after the common prefix, in the model of the first output


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first position at which two outputs differ; None: they agree, as far as both go."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)


def parted(model: Model, prompts: Sequence[str], ones: Sequence, others: Sequence) -> list[Parted]:
    """Those of the prompts whose two outputs differ."""
    found = []
    for prompt, one, other in zip(prompts, ones, others, strict=True):
        if (position := first_difference(one, other)) is not None:
            best = decode_logits(model, [*model.encode(prompt), *one[:position]])[-1].topk(2).values
            found.append(Parted(prompt, position, float(best[0] - best[1])))
    return found


def comparisons(model: Model, precise: Model, draft: Model, prompts: Sequence[str], company: Sequence[str]) -> dict:
    """Greedy outputs of a model against those of a more precise one, of speculation, and of a large batch: by name of
    the comparison, the prompts whose outputs differ. `company` fills the batch."""

    def tokens(outputs) -> list[list[int]]:
        return [out.tokens for out in outputs]

    plain, verified = zip(*(greedy_outputs(model, draft, prompt) for prompt in prompts), strict=True)
    runs = {
        "a more precise dtype": tokens(generate(precise, prompt, max_new_tokens=COUNT) for prompt in prompts),
        f"verify passes of {K + 1} tokens": verified,
        f"a batch of {len(prompts) + len(company)}": tokens(generate(model, [*prompts, *company], COUNT))[: len(plain)],
    }
    return {name: parted(model, prompts, plain, others) for name, others in runs.items()}
