"""What heads compute, straight from the definitions: one position at a time, no cache, no batch, no mask."""

from collections.abc import Callable

import torch
from torch import Tensor

from minispec.cache import KVCache
from minispec.model import rope_at, rotate


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
    """EAGLE's logits after a text and after each token that follows it [1 + len(follow), v], step by step with a cache.
    `streams` [1, T, d] are those of the text without its last token."""
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


def layer_shapes(c, prefix: str, inputs: int, norms: tuple[str, ...], qk_norm: bool = False) -> dict[str, tuple]:
    """The tensors of a published layer, by their names."""
    d, q, kv, m = c.hidden_size, c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.intermediate_size
    shapes = {f"self_attn.{n}_proj": (size, inputs) for n, size in (("q", q), ("k", kv), ("v", kv))}
    shapes |= {"self_attn.o_proj": (d, q), "mlp.gate_proj": (m, d), "mlp.up_proj": (m, d), "mlp.down_proj": (d, m)}
    shapes |= dict.fromkeys(norms, (d,))
    shapes |= {"self_attn.q_norm": (c.head_dim,), "self_attn.k_norm": (c.head_dim,)} if qk_norm else {}
    return {f"{prefix}.{name}.weight": shape for name, shape in shapes.items()}


def layer_config(c, **more) -> dict:
    """config.json of a head with one layer of these shapes, as Hugging Face spells them."""
    heads = dict(num_attention_heads=c.num_heads, num_key_value_heads=c.num_kv_heads, head_dim=c.head_dim)
    sizes = dict(vocab_size=c.vocab_size, hidden_size=c.hidden_size, intermediate_size=c.intermediate_size)
    other = dict(model_type="llama", num_hidden_layers=1, rms_norm_eps=c.norm_eps, rope_theta=c.rope_theta)
    return other | sizes | heads | more


@torch.inference_mode()
def blank_logits(drafter, sequences) -> torch.Tensor:
    """What DFlash scores every blank with, [b, B − 1, v]."""
    return drafter.states(sequences) @ drafter.head_rows.T
