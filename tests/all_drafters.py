"""Every drafter there is, made for a target and a smaller model of the same vocabulary."""

from collections.abc import Callable
from dataclasses import replace

import torch

import minispec as ms
from minispec_tools.train import mtp
from minispec_tools.train.eagle import new_head

D = ms.drafters
ALL: dict[str, Callable[[ms.Model, ms.Model], D.Drafter]] = {
    "model": lambda target, draft: D.Model(draft),
    "model, hotter": lambda target, draft: D.Model(draft, ms.Sampling(temperature=1.6)),
    "model, greedy": lambda target, draft: D.Model(draft, ms.Sampling(temperature=0.0)),
    "ngram": lambda target, draft: D.NGram(),
    "suffix": lambda target, draft: D.Suffix(),
    "early exit": lambda target, draft: D.EarlyExit(target, 1),
    "quantized, 8 bits": lambda target, draft: D.Quantized(target, bits=8),
    "quantized, 4 bits": lambda target, draft: D.Quantized(target, bits=4),
    "cascade": lambda target, draft: D.Cascade(D.NGram(), draft),
    "cascade of models": lambda target, draft: D.Cascade(D.Model(draft), D.Quantized(target, 4).draft),
    "lookahead": lambda target, draft: D.Lookahead(target),
    "medusa": lambda target, draft: D.Medusa(target, random_medusa(target), nodes=6),
    "medusa, chain": lambda target, draft: D.Medusa(target, random_medusa(target), tree="chain"),
    "eagle, tree": lambda target, draft: D.Eagle(target, random_eagle(target), width=3, nodes=8),
    "eagle, chain": lambda target, draft: D.Eagle(target, random_eagle(target), tree=False),
    "dflash": lambda target, draft: D.DFlash(target, random_dflash(target), tree=False),
    "mtp": lambda target, draft: D.MTP(target, random_mtp(target)),
    "mtp, tree": lambda target, draft: D.MTP(target, random_mtp(target), tree=True, width=3, nodes=8),
    "dflash, tree": lambda target, draft: D.DFlash(target, random_dflash(target), tree=True, nodes=8),
    "ahead": lambda target, draft: D.Ahead(D.Model(draft), 5),
    "dflash2": lambda target, draft: D.DFlash2(target, random_pairs(target), tree=False),
    "dflash2, tree": lambda target, draft: D.DFlash2(target, random_pairs(target), nodes=8),
    "dspark": lambda target, draft: D.DSpark(target, random_pairs(target, D.DSparkHead), confidence=0.6),
    "dspark, whole": lambda target, draft: D.DSpark(target, random_pairs(target, D.DSparkHead), confidence=0),
}


def random_pairs(target: ms.Model, kind=D.DFlash2Head, **options) -> D.DFlashHead:
    """The same, with additions."""
    return random_dflash(target, kind=kind, **dict(rank=8, neurons=12) | options)


def random_dflash(target: ms.Model, block: int = 4, seed: int = 0, kind=D.DFlashHead, **options) -> D.DFlashHead:
    """A block drafter of random weights that reads two depths of the target and proposes its first 64 tokens."""
    generator = torch.Generator().manual_seed(seed)
    head_ids = torch.arange(min(64, target.config.vocab_size))
    heads = kind(replace(target.config, num_layers=2), head_ids, (1, target.config.num_layers), block, **options)
    for name, weight in heads.named_parameters():
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.data = 1 + 0.2 * noise if "norm" in name else noise / weight.shape[-1] ** 0.5
    return heads.requires_grad_(False).eval().to(target.device, target.dtype)


def random_medusa(target: ms.Model, count: int = 3, seed: int = 0, **options) -> D.MedusaHeads:
    """Heads with random weights: right now and then."""
    heads = D.MedusaHeads(target, count, **options).requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for parameter in (heads.weight, heads.bias, *heads.more, *([] if heads.map is None else [heads.map])):
        parameter.copy_(torch.randn(parameter.shape, generator=generator) / target.config.hidden_size**0.5)
    return heads


def random_eagle(target: ms.Model, seed: int = 0, noise: float = 0.3, vocab: int = 48, **options) -> D.EagleHead:
    """A head with noise on every weight that proposes the target's first 48 tokens: right now and then."""
    head_ids = torch.arange(min(vocab, target.config.vocab_size))
    return shaken(new_head(target, head_ids, **options), seed, noise)


def random_mtp(target: ms.Model, seed: int = 0, noise: float = 0.3, **options) -> D.MTPHead:
    """A module with noise on every weight: right now and then."""
    return shaken(mtp.new_head(target, **options), seed, noise)


def shaken(head: torch.nn.Module, seed: int, noise: float) -> torch.nn.Module:
    head.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for weight in head.parameters():
        shift = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight += noise * shift.to(weight.device) / (weight.shape[-1] ** 0.5 if weight.ndim == 2 else 1)
    return head
