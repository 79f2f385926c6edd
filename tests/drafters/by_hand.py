"""What heads compute, straight from the definitions: one position at a time, no cache, no batch, no mask; and what a
drafter is given."""

from collections.abc import Callable

import torch
from torch import Tensor

import minispec as ms
from minispec.cache import KVCache
from minispec.model import rope_at, rotate
from minispec.sampling import Coins
from minispec.sequence import Sequence
from minispec.tree import path_to


def sequence(
    tokens: list[int], target: ms.Model | None = None, layers=(), *, id=0, since=0, sampling=None, seed=0
) -> Sequence:
    """With the target's states after these layers, of the tokens from `since` on without the last: those that were
    processed since the drafter was last asked."""
    hidden = {}
    if layers and len(tokens) > 1:
        with torch.no_grad():
            states = target.transformer.body(torch.tensor([tokens[:-1]]), hidden_layers=layers)[1]
        hidden = {n: h[0, since:] for n, h in states.items()}
    return Sequence(id, list(tokens), sampling or ms.Sampling(), Coins(seed), [hidden])


def rms(x: Tensor, gain: Tensor | float = 1.0, eps: float = 1e-5) -> Tensor:
    return gain * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def turn(c, x: Tensor, position: int) -> Tensor:
    """RoPE: x [H, D] at a position. Rotations are the model's, which test_model.py compares with transformers'."""
    return rotate(x[None, :, None], *rope_at(c, torch.tensor([[position]]), x.dtype))[0, :, 0]


class Attention:
    """Each new entry attends to all before it and to itself; keys and values are plain lists."""

    def __init__(self, c, weight: Callable[[str], Tensor]):
        self.c, self.weight, self.keys, self.values = c, weight, [], []  # weight("q") is that of q_proj, …

    def __call__(self, x: Tensor) -> Tensor:
        c, position, out = self.c, len(self.keys), []
        q, k, v = ((self.weight(n) @ x).view(-1, c.head_dim) for n in "qkv")
        self.keys.append(turn(c, k, position))
        self.values.append(v)
        for h, query in enumerate(turn(c, q, position)):
            kv = h // (c.num_heads // c.num_kv_heads)
            share = torch.stack([key[kv] @ query for key in self.keys]) / c.head_dim**0.5
            out.append(share.softmax(0) @ torch.stack([value[kv] for value in self.values]))
        return self.weight("o") @ torch.cat(out)


def head_logits(head, streams: list[Tensor], text: list[int], follow: list[int]) -> Tensor:
    """EAGLE's logits after a sequence and after each token that follows it [1 + len(follow), v], with a cache.

    `streams` [1, T, d] are those of the sequence without its last token."""
    cache, found = KVCache(head.config, 1, len(text) + len(follow), dtype=head.dtype), []
    feature, read = head.fuse(streams), text[1:]
    for token in [*follow, None]:
        slots, attend = cache.begin(len(read))
        feature = head(torch.tensor([read]), feature, head.rope(slots), attend)[:, -1:]
        cache.advance(len(read))
        found.append(head.logits(feature)[0, 0])
        read = [token]
    return torch.stack(found)


def of_module(attn) -> Callable[[str], Tensor]:
    return lambda name: getattr(attn, f"{name}_proj").weight


def paths(draft) -> list[tuple[int, ...]]:
    """Every node of a draft, as the tokens that lead to it."""
    parents = range(-1, len(draft.tokens) - 1) if draft.parents is None else draft.parents
    return [tuple(draft.tokens[i] for i in path_to(parents, node)) for node in range(len(draft.tokens))]


@torch.inference_mode()
def blank_logits(drafter, sequences) -> torch.Tensor:
    """What DFlash scores every blank with, [b, B − 1, v]."""
    return drafter.states(sequences) @ drafter.head_rows.T
