"""A transformer in fixed shapes, so that a pass can be captured as a CUDA graph and replayed by one launch.

So memory is allocated once (graph.py says why), every pass may see all slots of it (a mask says which count), and
lengths live on the device. What remains is to read the weights as fast as memory allows:

    one matrix for q, k, v and one for gate, up      few long reads instead of many short ones
    x + δ, norm, RoPE, the write to memory, SwiGLU   a kernel between two products, or for few tokens taken along by
                                                     the products (gemm.py)
    attention that reads the filled slots alone      attention.py

The arithmetic is model.py's, line by line; the tests hold the two against each other.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cache import KVCache, causal_attention, per_query_head, visible_slots
from ..cpu import invariant
from ..model import Config, Layer, Transformer, rope_at, rotate
from . import attention as by_kernel
from . import gemm
from .attention import kernels_run as has_kernels
from .gemm import BY_KERNEL, BY_TORCH, rope_and_store, wide
from .graph import Captures, on_the_device
from .trees import best_of

PROMPTS = (16, 1024)  # sizes of captured prompts, from … to
Look = Callable[[Tensor, Tensor, Tensor], Tensor]  # q [B, H, T, D], all k and v [B, Hkv, S, D] → [B, H, T, D]
Rope = Callable[[Tensor, "Weights", Tensor, Tensor], Tensor]  # qkv, a layer's weights, its keys and values → queries
Memory = tuple[Sequence[Tensor], Sequence[Tensor]]  # keys and values of each layer, [B, Hkv, S, D]


# ---- how a pass looks back -----------------------------------------------------------------------------------------
# Called once a pass with the lengths [B] before it, the slots of its new tokens [B, T], and which of these attend to
# which [B, T, T] (None: to all up to themselves); the result, by every layer.


def two_products(lengths: Tensor, slots: Tensor, capacity: int, groups: int, mask: Tensor | None = None) -> Look:
    """Two batched products over all slots, with a mask: for few queries on a GPU faster than a kernel made for many."""
    hidden = ~per_query_head(visible_slots(slots, capacity, mask), groups)

    def look(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        B, H, T, D = q.shape
        scores = (q * D**-0.5).reshape(B, k.shape[1], -1, D) @ k.transpose(-1, -2)  # [B, Hkv, G·T, S]
        weights = scores.to(torch.promote_types(q.dtype, torch.float32)).masked_fill(hidden, -torch.inf).softmax(-1)
        return (weights.to(q.dtype) @ v).reshape(B, H, T, D)

    return look


def flash(lengths: Tensor, slots: Tensor, capacity: int, groups: int, mask: Tensor | None = None) -> Look:
    """A kernel that reads the filled slots alone, each once for all queries."""
    return lambda q, k, v: by_kernel.flash_decode(q, k, v, lengths, mask)


def best_attention(device: torch.device, dtype: torch.dtype):
    return flash if has_kernels(device, dtype) else two_products


# ---- the transformer -----------------------------------------------------------------------------------------------


class Weights(NamedTuple):
    """One layer, fused for reading."""

    attention_norm: Tensor
    qkv: tuple[Tensor, Tensor | None]  # [(H + 2·Hkv)·D, d], and its bias
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: tuple[Tensor, Tensor | None]
    mlp_norm: Tensor
    gate_up: tuple[Tensor, Tensor | None]  # [2·m, d]
    down: tuple[Tensor, Tensor | None]


def fuse(*linears: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """One matrix for all that read the same input. They become views of it: no weight is stored twice."""
    weight = as_one([linear.weight.data for linear in linears])
    if weight is None:
        weight = torch.cat([linear.weight for linear in linears])
        for linear, part in zip(linears, weight.split([linear.out_features for linear in linears]), strict=True):
            linear.weight.data = part
    return weight, None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])


def as_one(parts: Sequence[Tensor]) -> Tensor | None:
    """The matrix that these were cut from, one right below the other; None: they lie elsewhere."""
    first, end = parts[0], parts[0].storage_offset()
    for part in parts:
        alike = part.is_contiguous() and part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not alike or part.storage_offset() != end:
            return None
        end += part.numel()
    return first.as_strided((sum(map(len, parts)), first.shape[1]), first.stride())


def unfit(transformer: Transformer) -> str | None:
    """Why its passes cannot be fused and captured; None: they can."""
    if transformer.config.experts is not None:
        return "is a mixture of experts, and the fused GPU pass has one MLP per layer"
    if transformer.config.delta is not None:
        return "has recurrent layers, which no captured pass computes"
    own = "computes its products in its own way (cut up, quantised …), which fused weights would lose"
    return None if transformer.ordinary else own


def require_ordinary(transformer: Transformer, name: str = "transformer") -> None:
    if why := unfit(transformer):
        raise ValueError(f"{name} {why}: leave `fast` out, it decodes as usual then")


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def rope_and_store_torch(qkv, w: Weights, keys, values, rows, slots, cos, sin, c: Config):
    """RoPE, and k, v into memory: [B, T, (H + 2·Hkv)·D] → the queries."""
    heads = qkv.unflatten(-1, (-1, c.head_dim))
    q, k, v = heads.split([c.num_heads, c.num_kv_heads, c.num_kv_heads], 2)  # [B, T, heads, D]
    if w.q_norm is not None:
        q, k = norm(q, w.q_norm, c.norm_eps), norm(k, w.k_norm, c.norm_eps)
    # Two index tensors around a slice come out in front, hence [B, T, Hkv, D].
    keys[rows, :, slots] = rotate(k, cos, sin)
    values[rows, :, slots] = v
    return rotate(q, cos, sin).transpose(1, 2)  # [B, H, T, D]


def rope_table(config: Config, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """RoPE's cosines and sines at these positions [S], one line for each: [S, 1, D]."""
    cos, sin = rope_at(config, positions[None], dtype)  # [1, 1, S, D]
    return cos[0, 0, :, None].contiguous(), sin[0, 0, :, None].contiguous()


def rope_for(rows, slots, positions, cos, sin, c: Config, kernel: bool = False) -> Rope:
    """How qkv becomes queries, with k and v put into memory: by one kernel, or by torch (`rope_and_store_torch`). cos
    and sin [S, 1, D] are those of all positions."""
    if kernel:
        return lambda qkv, w, keys, values: rope_and_store(qkv, cos, sin, positions, keys, values, rows, slots)
    cos, sin = cos[positions], sin[positions]  # [B, T, 1, D]
    return lambda qkv, w, keys, values: rope_and_store_torch(qkv, w, keys, values, rows, slots, cos, sin, c)


def layer(product, w: Weights, h, x, rope, look, gain):
    """Four products, with RoPE, the write to memory and attention between the first two: the stream after the layer,
    also (half-)normed for what comes next. `product` is `skinny` or `wide`, which take the small steps along."""
    o = look(rope(product(h, *w.qkv))).transpose(1, 2).flatten(2)
    x, h = product(o, *w.out, residual=x, gain=w.mlp_norm)
    return product(product(h, *w.gate_up, swiglu=True), *w.down, residual=x, gain=gain)


def weights_of(layer: Layer) -> Weights:
    return weights(layer.input_layernorm, layer.self_attn, layer.post_attention_layernorm, layer.mlp)


def weights(attention_norm: nn.Module | None, attn: nn.Module, mlp_norm: nn.Module, mlp: nn.Module) -> Weights:
    """Of a layer's parts; EAGLE's first layer has no norm before its attention."""
    norms = attention_norm, attn.q_norm, attn.k_norm
    attention_gain, q_gain, k_gain = (getattr(norm, "weight", None) for norm in norms)
    qkv, gate_up = fuse(attn.q_proj, attn.k_proj, attn.v_proj), fuse(mlp.gate_proj, mlp.up_proj)
    out, down = ((linear.weight, linear.bias) for linear in (attn.o_proj, mlp.down_proj))
    return Weights(attention_gain, qkv, q_gain, k_gain, out, mlp_norm.weight, gate_up, down)


class Fused:
    """The weights of a Transformer, fused, and the way through its layers, whatever memory they write to.

    With `lean`, passes over few tokens on a GPU go through the products of gemm.py, which take small steps along.
    """

    @on_the_device
    def __init__(self, transformer: Transformer, *, lean: bool = False):
        require_ordinary(transformer)
        if invariant.wanted() and not lean:
            invariant.refuse()
        self.config, self.head_ids = transformer.config, transformer.head_ids
        self.device, self.dtype = transformer.device, transformer.dtype
        self.embedding, self.lm_head = transformer.embed_tokens.weight, transformer.lm_head.weight
        self.norm = transformer.norm.weight
        self.layers = [weights_of(layer) for layer in transformer.layers]
        self.skinny = gemm if lean else None
        self.kernels = lean and has_kernels(self.device, self.dtype)
        self.between = BY_KERNEL if self.kernels else BY_TORCH

    def number(self, positions: int) -> None:
        """What RoPE does at each of so many positions."""
        self.places = torch.arange(positions, device=self.device)
        self.cos, self.sin = rope_table(self.config, self.places, self.dtype)

    def through(
        self, tokens, positions, memory: Memory, rows, slots, look: Look, *, hidden_layers=(), prompt: bool = False
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """The layers: [B, T] → [B, T, d], and the streams asked for. New k, v go to keys[rows, :, slots] of memory.
        The products of a prompt are torch's."""
        eps = self.config.norm_eps
        x = F.embedding(tokens, self.embedding)  # [B, T, d]
        lean = (not prompt or invariant.wanted()) and self.is_lean(x)
        product = partial(self.skinny.skinny, eps=eps) if lean else partial(wide, eps=eps, between=self.between)
        hidden = {0: x} if 0 in hidden_layers else {}
        gains = [*(w.attention_norm for w in self.layers[1:]), self.norm]  # of the norms after each layer
        _, h = self.between.add_norm(x, None, self.layers[0].attention_norm, eps)
        by_kernel = self.kernels and self.layers[0].q_norm is None
        rope = rope_for(rows, slots, positions, self.cos, self.sin, self.config, by_kernel)
        for n, (w, gain, keys, values) in enumerate(zip(self.layers, gains, *memory, strict=True), start=1):
            rope_here, see = partial(rope, w=w, keys=keys, values=values), partial(look, k=keys, v=values)
            x, h = layer(product, w, h, x, rope_here, see, gain)
            if n in hidden_layers:
                hidden[n] = x
        return x, hidden

    def best_tokens(self, logits: Tensor) -> Tensor:
        """sampling.best_tokens, by a kernel where there is one."""
        if has_kernels(logits.device, logits.dtype):
            return best_of(logits)
        return torch.where(logits.amax(-1).isfinite(), logits.argmax(-1), -1)  # by torch alone: it may be captured

    def is_lean(self, x: Tensor) -> bool:
        return self.skinny is not None and self.skinny.fits(x, self.lm_head)

    def head(self, x: Tensor) -> Tensor:
        """[..., d] → logits [..., V]."""
        eps = self.config.norm_eps
        if self.is_lean(x):
            logits = self.skinny.skinny(self.between.add_norm(x, None, self.norm, eps)[1], self.lm_head)
        else:
            logits = F.linear(norm(x, self.norm, eps), self.lm_head)
        if self.head_ids is None:
            return logits
        everywhere = logits.new_full((*logits.shape[:-1], self.config.vocab_size), -torch.inf)
        return everywhere.index_copy_(-1, self.head_ids, logits)


class FastTransformer(Fused):
    """A fused Transformer with memory for `batch` rows of `capacity` slots.

    `attend` is one of the ways to look back above, or yours; None: the best there is. `lengths` [B] says how much of
    each row's memory counts: to rewind is to change it.
    """

    @on_the_device
    def __init__(self, transformer: Transformer, batch=1, capacity: int | None = None, *, lean=False, attend=None):
        super().__init__(transformer, lean=lean)
        self.attend = attend or best_attention(self.device, self.dtype)
        self.allocate(batch, capacity or self.config.max_length)

    @on_the_device
    def allocate(self, batch: int, capacity: int) -> None:
        """New memory, empty. Captures of the old one are void."""
        capacity = -(-capacity // 64) * 64  # kernels like round numbers
        self.cache = KVCache(self.config, batch, capacity, device=self.device, dtype=self.dtype)
        self.batch, self.capacity, self.lengths = batch, capacity, self.cache.lengths
        self.rows = torch.arange(batch, device=self.device)[:, None]  # [B, 1]
        self.number(capacity)
        # Short prompts are padded to a power of two, and captured by that and the layers whose states are asked for.
        self.prompt = torch.zeros(batch, min(PROMPTS[1], capacity), dtype=torch.long, device=self.device)
        self.states: dict[int, Tensor] = {}
        self.prompts = Captures(self._padded, self.prompt, self.lengths)

    @on_the_device
    def step(self, tokens: Tensor, last: Tensor | None = None) -> Tensor:
        """Read T new tokens a row, [B, T], remember all of them, and score what follows each: [B, T, V].

        `last` [B] asks for one place of every row: [B, V]. No host sync: that all fits is for the caller.
        """
        x, _ = self.body(tokens)
        return self.head(x if last is None else x[self.rows[:, 0], last])

    @on_the_device
    def verify(
        self, tokens: Tensor, mask: Tensor, offsets: Tensor, hidden_layers: Sequence[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """As `step`, for a tree: which of the tokens [B, T] attend to which [B, T, T], and how far after the past each
        is [B, T]. Also the residual streams after these many layers, [B, T, d]."""
        x, hidden = self.body(tokens, mask=mask, offsets=offsets, hidden_layers=hidden_layers)
        return self.head(x), hidden

    @on_the_device
    def prefill(self, tokens: Tensor, counts: Tensor, hidden_layers: Sequence[int] = ()) -> dict[int, Tensor]:
        """Forget everything and read a prompt a row: the first `counts` [B] of tokens [B, T], T = 0 included.

        Returns the residual streams after these many layers, [B, T, d].
        """
        B, T = tokens.shape
        if not T:
            self.lengths.zero_()
            return {n: self.embedding.new_zeros(B, 0, self.config.hidden_size) for n in hidden_layers}
        size = max(PROMPTS[0], 1 << (T - 1).bit_length())
        if size <= self.prompt.shape[1] and self.device.type == "cuda":
            return self.padded(size, tokens, counts, hidden_layers)
        self.lengths.zero_()
        _, hidden = self.body(tokens, prompt=True, hidden_layers=hidden_layers)
        self.lengths.copy_(counts)
        return hidden

    def padded(self, size: int, tokens: Tensor, counts: Tensor, hidden_layers: Sequence[int]) -> dict[int, Tensor]:
        """`prefill` of prompts of up to `size` tokens, by one launch."""
        T, shape = tokens.shape[1], (*self.prompt.shape, self.config.hidden_size)
        for n in set(hidden_layers) - self.states.keys():
            self.states[n] = torch.zeros(shape, dtype=self.dtype, device=self.device)
        self.prompt[:, T:size] = 0
        self.prompt[:, :T] = tokens
        self.prompts(size, *hidden_layers)
        self.lengths.copy_(counts)
        return {n: self.states[n][:, :T] for n in hidden_layers}

    def _padded(self, size: int, *hidden_layers: int) -> None:
        self.lengths.zero_()
        _, hidden = self.body(self.prompt[:, :size], prompt=True, hidden_layers=hidden_layers)
        for n, states in hidden.items():
            self.states[n][:, :size] = states

    def body(
        self, tokens: Tensor, *, prompt: bool = False, mask=None, offsets=None, hidden_layers: Sequence[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """The layers: [B, T] → [B, T, d]."""
        T, c = tokens.shape[1], self.config
        slots = self.lengths[:, None] + self.places[:T]  # [B, T]
        positions = slots if offsets is None else self.lengths[:, None] + offsets
        if prompt and not invariant.wanted():  # nothing is cached yet: causal, over the new tokens alone
            look = lambda q, k, v: causal_attention(q, k[:, :, :T], v[:, :, :T])  # noqa: E731
        else:
            look = self.attend(self.lengths, slots, self.capacity, c.num_heads // c.num_kv_heads, mask)
        memory, options = (self.cache.keys, self.cache.values), dict(hidden_layers=hidden_layers, prompt=prompt)
        x, hidden = self.through(tokens, positions, memory, self.rows, slots, look, **options)
        self.cache.advance(T)
        return x, hidden
