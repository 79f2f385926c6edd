"""A decoder-only transformer of the Llama family, in one file, with the cache as an explicit argument.

Covers Llama 1–3, Mistral (within its window), Qwen2 (bias on q, k, v) and Qwen3 (normed q and k), the mixtures of
experts Mixtral, Qwen2-MoE, Qwen3-MoE and OLMoE, and the hybrids of Qwen3.5, in which some layers have a recurrent state
in the place of attention (recurrent.py). Parameters carry the names of the Hugging Face checkpoints (Qwen's where they
differ), less the leading "model.", so that loading is copying.

Shapes: B sequences, T new tokens per sequence, S slots of the cache, V tokens of the vocabulary, d hidden size, H query
heads, Hkv key/value heads, G = H / Hkv query heads that share one key/value head, D dimensions of a head.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import RMSNorm

from .cache import KVCache, attention_of_pass
from .experts import Experts, Mixture
from .linear import SMALL, few_threads, linear
from .recurrent import DeltaRule, GatedDeltaNet, beside


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3.1's stretching of the slow RoPE frequencies to longer contexts."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_length: int


@dataclass(frozen=True)
class Config:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_length: int
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    tie_embeddings: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    qk_norm_whole: bool = False  # one norm over all heads together (OLMoE), instead of one for each
    experts: Experts | None = None  # a mixture of experts; None: a dense model
    delta: DeltaRule | None = None  # some layers are recurrent; None: all have attention
    out_gate: bool = False  # what attention gives is gated (Qwen3.5)
    rotary_dim: int | None = None  # so many dimensions of a head are rotated; None: all
    head_vocab: int | None = None  # a draft model may score a part of the vocabulary: see Transformer.head_ids

    @property
    def attention_layers(self) -> int:
        """How many layers have keys and values."""
        return sum(self.delta is None or n not in self.delta.layers for n in range(self.num_layers))


def at_once(module: nn.Module, cache, tokens: Tensor) -> Callable | None:
    """One compiled call in the place of a pass's loop over the layers, where a CPU has one for so many tokens."""
    if tokens.device.type != "cpu":
        return None
    from .cpu.fused import fused  # a GPU never asks for it

    return fused(module, cache, tokens, required=isinstance(module, Transformer))


class Pass(NamedTuple):
    """What one forward pass returns."""

    logits: Tensor  # [B, T, V], or [B, 1, V] with last_only
    hidden: dict[int, Tensor]  # n -> residual stream after n layers [B, T, d]


@lru_cache(maxsize=64)
def rope_frequencies(config: Config, device: torch.device | None = None) -> Tensor:
    """One frequency per pair of head dimensions, [D/2]."""
    size = config.rotary_dim or config.head_dim
    freq = config.rope_theta ** -(torch.arange(0, size, 2, device=device).float() / size)
    if (s := config.rope_scaling) is None:
        return freq
    turns = s.original_max_length * freq / (2 * math.pi)  # full turns within the original context
    # Fast pairs (many turns) stay, slow ones are stretched by `factor`, those between are blended.
    keep = ((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)).clamp(0, 1)
    return keep * freq + (1 - keep) * freq / s.factor


def rope_at(config: Config, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every pair's angle at these positions [B, T]: [B, 1, T, D] each."""
    angles = positions[:, None, :, None].float() * rope_frequencies(config, positions.device)  # [B, 1, T, D/2]
    return tuple(f(angles).to(dtype).repeat(1, 1, 1, 2) for f in (torch.cos, torch.sin))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE: rotate each pair (x_i, x_{i + D/2}) of x [B, H, T, D] by its position's angle."""
    if (size := cos.shape[-1]) < x.shape[-1]:
        return torch.cat([rotate(x[..., :size], cos, sin), x[..., size:]], -1)
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Linear(nn.Linear):
    """x Wᵀ + b, by the product that is fastest for this many tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class Attention(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.head_dim = c.head_dim
        self.q_proj = Linear(c.hidden_size, c.num_heads * c.head_dim, bias=c.qkv_bias)
        self.k_proj = Linear(c.hidden_size, c.num_kv_heads * c.head_dim, bias=c.qkv_bias)
        self.v_proj = Linear(c.hidden_size, c.num_kv_heads * c.head_dim, bias=c.qkv_bias)
        self.o_proj = Linear(c.num_heads * c.head_dim, c.hidden_size, bias=c.out_bias)
        self.gate = Linear(c.hidden_size, c.num_heads * c.head_dim, bias=False) if c.out_gate else None
        heads = (c.num_heads, c.num_kv_heads) if c.qk_norm_whole else (1, 1)  # that one norm looks at
        self.widths = [n * c.head_dim for n in heads]
        norms = (RMSNorm(width, c.norm_eps) if c.qk_norm else nn.Identity() for width in self.widths)
        self.q_norm, self.k_norm = norms

    def forward(self, x: Tensor, rope, attend) -> Tensor:
        B, T, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(B, T, -1, self.widths[0])).view(B, T, -1, self.head_dim)
        k = self.k_norm(self.k_proj(x).view(B, T, -1, self.widths[1])).view(B, T, -1, self.head_dim)
        q, k = q.transpose(1, 2), k.transpose(1, 2)  # [B, H, T, D], [B, Hkv, T, D]
        v = self.v_proj(x).view(B, T, -1, self.head_dim).transpose(1, 2)
        o = attend(rotate(q, *rope), rotate(k, *rope), v)  # over the cached tokens and the new ones: [B, H, T, D]
        o = o.transpose(1, 2).reshape(B, T, -1)
        return self.o_proj(o if self.gate is None else o * self.gate(x).sigmoid())


class MLP(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.gate_proj = Linear(c.hidden_size, c.intermediate_size, bias=c.mlp_bias)
        self.up_proj = Linear(c.hidden_size, c.intermediate_size, bias=c.mlp_bias)
        self.down_proj = Linear(c.intermediate_size, c.hidden_size, bias=c.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def mixture(c: Config) -> Mixture:
    """The mixture of experts that stands for the MLP of a sparse layer."""
    e = c.experts
    mlps = [MLP(replace(c, intermediate_size=e.size)) for _ in range(e.count)]
    router, shared = Linear(c.hidden_size, e.count, bias=False), ()
    if e.shared_size:
        shared = MLP(replace(c, intermediate_size=e.shared_size)), Linear(c.hidden_size, 1, bias=False)
    return Mixture(e, router, mlps, *shared)


class Layer(nn.Module):
    def __init__(self, c: Config, sparse: bool = False, recurrent: bool = False):
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size, c.norm_eps)
        self.self_attn = GatedDeltaNet(c.hidden_size, c.delta, c.norm_eps, Linear) if recurrent else Attention(c)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.norm_eps)
        self.mlp = mixture(c) if sparse else MLP(c)

    @property
    def parts(self) -> tuple[nn.Module, ...]:
        return self.input_layernorm, self.self_attn, self.post_attention_layernorm, self.mlp

    def forward(self, x: Tensor, rope, attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Transformer(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        # A bare nn.Embedding samples from a normal distribution. On the "meta" device, where a load builds the model,
        # that alone makes torch import its compiler, which takes over a second. A uniform distribution does not.
        table = torch.empty(config.vocab_size, config.hidden_size).uniform_(-1, 1)
        self.embed_tokens = nn.Embedding.from_pretrained(table, freeze=False)
        dense = config.experts.dense_layers if config.experts else range(config.num_layers)
        recurrent = config.delta.layers if config.delta else ()
        kinds = ((n not in dense, n in recurrent) for n in range(config.num_layers))
        self.layers = nn.ModuleList(Layer(config, *kind) for kind in kinds)
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.lm_head = Linear(config.hidden_size, config.head_vocab or config.vocab_size, bias=False)
        if config.tie_embeddings and config.head_vocab is None:
            self.lm_head.weight = self.embed_tokens.weight
        # A draft model with a reduced vocabulary scores only these tokens; all others get probability zero.
        self.register_buffer("head_ids", torch.arange(config.head_vocab) if config.head_vocab else None)

    @property
    def device(self) -> torch.device:
        return self.norm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.weight.dtype

    @cached_property
    def small(self) -> bool:
        return sum(weight.numel() for weight in self.parameters()) <= SMALL

    @property
    def ordinary(self) -> bool:
        """Whether its products are those of this file, one MLP per layer. A sharded or quantized model, a mixture of
        experts and a hybrid model must not be fused."""
        ours = all(type(part) is Linear for part in self.modules() if isinstance(part, nn.Linear))
        return ours and type(self).head is Transformer.head and not (self.config.experts or self.config.delta)

    @property
    def blocks(self) -> list[tuple[nn.Module, ...]]:
        """The parts of every layer, for `at_once`."""
        return [layer.parts for layer in self.layers]

    def new_cache(self, batch: int = 1, capacity: int | None = None) -> KVCache:
        return KVCache(self.config, batch, capacity, device=self.device, dtype=self.dtype)

    def forward(self, tokens: Tensor, cache: KVCache | None = None, *, last_only: bool = False, **options) -> Pass:
        """Process T new tokens per sequence, as `body` does, and score the token after each of them; with `last_only`
        the one after each sequence's last real token alone."""
        x, hidden = self.body(tokens, cache, **options)
        if last_only:
            counts = options.get("counts")
            last = x.shape[1] - 1 if counts is None else counts - 1
            x = x[torch.arange(x.shape[0], device=x.device), last][:, None]  # [B, 1, d]
        return Pass(self.head(x), hidden)

    @few_threads
    def body(
        self,
        tokens: Tensor,  # [B, T]; a sequence with fewer real tokens is padded at its end
        cache: KVCache | None = None,
        *,
        counts: Tensor | None = None,  # [B] real tokens per sequence; None: all T
        positions: Tensor | None = None,  # [B, T]; None: right after those in the cache
        mask: Tensor | None = None,  # [T, T] or [B, T, T], which new token attends to which; None: causal
        layers: int | Sequence[int] | None = None,  # the first n, or a choice of them, in order; None: all
        hidden_layers: Sequence[int] = (),  # also return the residual stream after these many layers
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """The layers without the head: the residual stream [B, T, d] at the end, and after each of `hidden_layers`.

        Padding changes nothing: its keys and values are stored past the sequence's length, where no token attends.
        """
        B, T = tokens.shape
        layers = self.config.num_layers if layers is None else layers
        order = range(layers) if isinstance(layers, int) else layers
        x = self.embed_tokens(tokens)  # [B, T, d]
        if run := at_once(self, cache, tokens):  # all layers as one function
            slots, _ = cache.reserve(T)
        elif cache is None:  # nothing is cached: training, and the textbook's O(n²) loop
            slots = torch.arange(T, device=tokens.device).expand(B, T)
            among_new = attention_of_pass(slots, T, mask, self.config.num_heads // self.config.num_kv_heads, self.dtype)
            attend = lambda layer, q, k, v: among_new(q, k, v)  # noqa: E731 (the other branch's twin)
        else:
            slots, attend = cache.begin(T, mask)  # [B, T], and how each layer stores its k, v and attends
        if self.config.delta:
            attend = beside(attend, self.config, cache, slots, counts, mask)
        rope = rope_at(self.config, slots if positions is None else positions, self.dtype)
        if run:
            x, hidden = run(x, cache, rope, mask, order, hidden_layers)
        else:
            hidden = {0: x} if 0 in hidden_layers else {}
            for n, index in enumerate(order, start=1):
                x = self.layers[index](x, rope, partial(attend, index))
                if n in hidden_layers:
                    hidden[n] = x
        if cache is not None:
            cache.advance(T if counts is None else counts)
        return x, hidden

    @few_threads
    def head(self, x: Tensor) -> Tensor:
        """Residual stream [..., d] → logits [..., V]."""
        logits = self.lm_head(self.norm(x))
        if self.head_ids is None:
            return logits
        everywhere = logits.new_full((*logits.shape[:-1], self.config.vocab_size), -math.inf)
        return everywhere.index_copy_(-1, self.head_ids, logits)
