"""What rounding does: to logits, in passes of other shapes, and to weights on a grid."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from minispec.drafters.model import DraftModel
from minispec.generate import generate
from minispec.load.model import Model
from minispec.load.quantize import dequantize, quantize
from minispec.speculate import speculate

from ..formulas import quantized_bytes

# ---- logits ---------------------------------------------------------------------------------------------------------

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

    def logits(self, model: Model) -> list[float]:
        """What a model, perhaps in another dtype, gives the two tokens there after the common prefix."""
        found = decode_logits(model, [*model.encode(self.prompt), *self.plain[: self.position]])[-1]
        return [float(found[out[self.position]]) for out in (self.plain, self.speculative)]


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


# ---- weights --------------------------------------------------------------------------------------------------------

BITS = (2, 3, 4, 5, 6, 7, 8)
SCALES = ("tensor", "channel", 96, 32)  # a number: that many neighbouring inputs of a channel share a scale


def scale_name(scale: str | int) -> str:
    return f"one per group of {scale}" if isinstance(scale, int) else f"one per {scale}"


def round_trip(weight: Tensor, bits: int, scale: str | int) -> tuple[Tensor, Tensor]:
    """s · round(W / s) [out, in], and the scales: [1, 1], [out, 1] or [out, groups]."""
    rows = weight.reshape(1, -1) if scale == "tensor" else weight  # a tensor is one long channel
    integers, scales = quantize(rows, bits, scale if isinstance(scale, int) else None)
    return dequantize(integers, scales).view_as(weight), scales


@dataclass(frozen=True)
class Error:
    """How far a rounded matrix is from the real one."""

    largest: float  # max |W̃ − W|
    relative: float  # ‖W̃ − W‖ / ‖W‖
    bits_per_weight: float  # with 16-bit scales


def error_of(weight: Tensor, bits: int, scale: str | int) -> Error:
    rounded, scales = round_trip(weight, bits, scale)
    difference = (rounded - weight).double()
    relative = float(difference.norm() / weight.double().norm())
    stored = 8 * quantized_bytes(weight.numel(), bits, weight.numel() // scales.numel()) / weight.numel()
    return Error(float(difference.abs().max()), relative, stored)


@dataclass(frozen=True)
class Effect:
    """What rounding every linear layer does to a model that runs on a text."""

    perplexity: float
    overlap: float  # mean Σ min(p, q) with the unrounded model: its acceptance, if this one drafted


@torch.inference_mode()
def effects_of(model: Model, text: str, rounders: Mapping[str, Callable[[Tensor], Tensor]]) -> dict[str, Effect]:
    """What each way to round a matrix [out, in] does to the model: by the rounders' names."""
    ids = torch.tensor([model.encode(text)], device=model.device)

    def probs_of(rounder: Callable[[Tensor], Tensor]) -> Tensor:
        # The embedding stays as it is, also where the head is tied to it: a lookup reads one row a token.
        weights = {f"{name}.weight": rounder(weight).to(weight) for name, weight in matrices(model).items()}
        out = functional_call(model.transformer, weights, (ids,), tie_weights=False)
        return out.logits[0, :-1].double().softmax(-1)  # [n, V]

    def judge(q: Tensor) -> Effect:
        surprise = -q.gather(1, ids[0, 1:, None]).log().mean()
        return Effect(float(surprise.exp()), float(torch.minimum(p, q).sum(-1).mean()))

    p = probs_of(lambda weight: weight)
    return {name: judge(probs_of(rounder)) for name, rounder in rounders.items()}


def matrices(model: Model) -> dict[str, Tensor]:
    """The weights of the linear layers, by name."""
    modules = model.transformer.named_modules()
    return {name: module.weight.detach() for name, module in modules if isinstance(module, nn.Linear)}
