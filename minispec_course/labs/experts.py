"""Lesson 15's mixture of experts: a model that we know, cut into experts without changing what it computes.

`upcycle` replaces every MLP with E copies of itself and a random router (sparse upcycling, Komatsuzaki et al., 2023,
arXiv:2212.05055, before its training). The gates of a token sum to 1 and all experts agree, so the output stays that of
the dense model, token for token. Which experts a pass touches is nevertheless decided by the hidden states of real
text, and can be counted. A router that is random says nothing about what training does to neighbours; that was counted
for Mixtral (Jiang et al., 2024, arXiv:2401.04088, table 5).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

import torch

from minispec import theory
from minispec.drafters.base import Drafter
from minispec.experts import Experts, Mixture, counting
from minispec.load.handle import Model
from minispec.model import Linear
from minispec.speculate import speculate
from minispec.theory import H200, Hardware, expected_tokens, roofline_time


def upcycle(model: Model, experts: int, per_token: int, seed: int = 0) -> Model:
    """The same model as a mixture of experts: what it emits is unchanged, what it reads is not."""
    generator, config = torch.Generator().manual_seed(seed), model.config
    shape = Experts(experts, per_token, config.intermediate_size)
    transformer = copy.copy(model.transformer)  # a shallow copy: the attention is shared, the layers are our own
    transformer._modules = dict(transformer._modules)
    layers = []
    for layer in model.transformer.layers:
        sparse = copy.copy(layer)
        sparse._modules = dict(layer._modules)
        router = Linear(config.hidden_size, experts, bias=False).requires_grad_(False)
        noise = torch.randn(experts, config.hidden_size, generator=generator) / config.hidden_size**0.5
        router.weight.copy_(noise)
        sparse.mlp = Mixture(shape, router.to(model.device, model.dtype), [layer.mlp] * experts)
        layers.append(sparse)
    transformer.layers = torch.nn.ModuleList(layers)
    transformer.config = replace(config, experts=shape)
    return Model(
        f"{model.name}, {experts} experts", transformer, model.tokenizer, model.end_tokens, model.chat_template
    )


@torch.inference_mode()
def touched_by(model: Model, ids: Sequence[int], tokens: int) -> float:
    """How many experts of a layer passes over so many tokens touch, on average: counted along a text."""
    cache = model.transformer.new_cache(1, len(ids))
    with counting(model.transformer) as passes:
        for part in torch.tensor([ids[: len(ids) // tokens * tokens]]).split(tokens, dim=1):
            model.transformer(part, cache)
    return mean(len(layer) for one in passes for layer in one)


def touched_while_speculating(model: Model, prompt: str, drafter: Drafter, k: int, count: int = 60) -> tuple:
    """One greedy run: its output, and how many experts of a layer a verify pass touched on average."""
    with counting(model.transformer) as passes:
        out = speculate(model, prompt, drafter, k=k, max_new_tokens=count)  # the first pass is the prefill
    return out, mean(len(layer) for one in passes[1:] for layer in one)


def pass_seconds(
    tokens: int, experts: int, per_token: int, always: float, expert: float, hardware: Hardware = H200
) -> float:
    """A pass in bfloat16 on a roofline: it reads the weights that its tokens touch, and computes with those of each
    token. Short contexts: the KV cache is left out. A dense model is a mixture with one expert."""
    read = theory.weights_read(always, expert, experts, per_token, tokens)
    return roofline_time(2 * read, 2 * tokens * (always + per_token * expert), hardware)


def draft_cost(draft: float, batch: int = 1, hardware: Hardware = H200, **shape) -> float:
    """c: a pass of a dense draft model of so many parameters, over a plain pass of the target, for the same batch."""
    return pass_seconds(batch, 1, 1, draft / 2, draft / 2, hardware) / pass_seconds(batch, **shape, hardware=hardware)


def best_length(
    alpha: float, draft: float, batch: int = 1, longest: int = 64, hardware: Hardware = H200, **shape
) -> tuple[int, float, float]:
    """The best k for a batch, with a dense draft model of so many parameters: k, v there, and the speedup. k = 0: no
    draft is worth its time."""
    plain = pass_seconds(batch, **shape, hardware=hardware)
    c = draft_cost(draft, batch, hardware, **shape)

    def at(k: int) -> tuple[float, float]:
        v = pass_seconds(batch * (k + 1), **shape, hardware=hardware) / plain
        return expected_tokens(alpha, k) / (k * c + v), v

    k = max(range(longest + 1), key=lambda k: at(k)[0])
    return k, at(k)[1], at(k)[0]
