"""Recurrent layers beside attention: the gated delta rule, and the checkpoints to which its state is rewound.

A hybrid model (Qwen3-Next, Qwen3.5) has attention in every fourth layer, say. The others are linear attention, here
Gated DeltaNet (Yang et al., 2024, arXiv:2412.06464): instead of the keys and values of all tokens, a head keeps one
matrix S [K, D] of fixed size, which holds values under keys. Each token has two gates, 0 < α, β < 1:

    S ← α S                       forget a part of everything
    S ← S + k ⊗ β (v − Sᵀk)       what is held under k moves towards v (the delta rule)
    o = Sᵀ q                      look up

A KV cache is rewound by lowering one number, because rejected tokens lie in slots of their own. In S they are summed
into everything else, so S has to be kept from before they came. `States` keeps a checkpoint after every token of a
verify pass, and the next pass goes on from the checkpoint at the cache's length, which is still the one number to
change. No other state is ever used: not that after a rejected token, nor that of another request.

Shapes: B sequences, T new tokens, H heads of size K for keys and D for values (keys may have fewer heads), C = channels
of q, k and v together, w = tokens that the convolution combines.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHUNK = 64  # tokens of a prompt that are processed side by side
DEEPEST = 32  # draft: a pass of more than 1 + DEEPEST tokens is a prompt's, and keeps only its last state

NO_TREES = "this model has recurrent layers, whose state follows one chain of tokens: take a drafter that makes chains"


@dataclass(frozen=True)
class DeltaRule:
    """Which layers are recurrent, and their shape: a part of a model's Config."""

    layers: tuple[int, ...]
    key_heads: int
    value_heads: int
    key_dim: int  # K
    value_dim: int  # D
    conv_size: int = 4  # w


class State(NamedTuple):
    """What a layer remembers of a sequence."""

    window: Tensor  # [w − 1, C], the last inputs of the convolution
    memory: Tensor  # [H, K, D], S


def delta_rule(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """The formula, token by token: q, k [B, H, T, K], v [B, H, T, D], gates [B, H, T] and the state before, S
    [B, H, K, D] → o [B, H, T, D] and the state after every token [B, T, H, K, D]."""
    outputs, states, alpha = [], [], log_alpha.exp()
    for t in range(q.shape[2]):
        now = slice(t, t + 1)
        S = alpha[..., now, None] * S
        S = S + k[..., now, :].mT @ (beta[..., now, None] * (v[..., now, :] - k[..., now, :] @ S))
        outputs.append(q[..., now, :] @ S)
        states.append(S)
    return torch.cat(outputs, 2), torch.stack(states, 1)


def delta_rule_in_chunks(q, k, v, log_alpha, beta, S) -> tuple[Tensor, Tensor]:
    """The same for a long prompt, a chunk at a time, and the state after the last token alone [B, 1, H, K, D].

    With A_t = Σ log α up to token t of a chunk, unrolling the formula gives S_t = e^{A_t} S + Σ_{s ≤ t} e^{A_t − A_s}
    k_s ⊗ u_s, where u_t = β_t (v_t − e^{A_t} Sᵀk_t − Σ_{s < t} e^{A_t − A_s} (k_t · k_s) u_s): a triangular system.
    """
    outputs = []
    for chunk in zip(*(x.split(CHUNK, 2) for x in (q, k, v, log_alpha, beta)), strict=True):
        q, k, v, log_alpha, beta = chunk
        A, beta = log_alpha.cumsum(-1)[..., None], beta[..., None]  # [B, H, n, 1]
        future = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
        decay = (A - A.mT).masked_fill(future, -torch.inf).exp()  # [B, H, n, n], from token s to token t
        before = (beta * decay * (k @ k.mT)).tril(-1)
        u = torch.linalg.solve_triangular(before, beta * (v - A.exp() * (k @ S)), upper=False, unitriangular=True)
        outputs.append(A.exp() * (q @ S) + (decay * (q @ k.mT)) @ u)
        S = A[..., -1:, :].exp() * S + (decay[..., -1:, :].mT * k).mT @ u
    return torch.cat(outputs, 2), S[:, None]


class GatedDeltaNet(nn.Module):
    """The layer around the rule: a short convolution over the inputs, gates, and a gated norm of the output."""

    def __init__(self, hidden_size: int, shape: DeltaRule, norm_eps: float, linear: type[nn.Linear] = nn.Linear):
        super().__init__()
        self.shape, self.keys = shape, shape.key_heads * shape.key_dim
        values, channels = shape.value_heads * shape.value_dim, 2 * self.keys + shape.value_heads * shape.value_dim
        self.in_proj_qkv = linear(hidden_size, channels, bias=False)
        self.in_proj_z = linear(hidden_size, values, bias=False)
        self.in_proj_a = linear(hidden_size, shape.value_heads, bias=False)
        self.in_proj_b = linear(hidden_size, shape.value_heads, bias=False)
        self.conv1d = nn.Conv1d(channels, channels, shape.conv_size, groups=channels, bias=False)
        self.A_log = nn.Parameter(torch.linspace(1, 16, shape.value_heads).log())
        self.dt_bias = nn.Parameter(torch.ones(shape.value_heads))
        self.norm = nn.RMSNorm(shape.value_dim, norm_eps)
        self.out_proj = linear(values, hidden_size, bias=False)

    def forward(self, x: Tensor, rope, recall: Callable) -> Tensor:
        beta = self.in_proj_b(x).sigmoid()  # [B, T, H]
        log_alpha = -self.A_log.exp() * F.softplus(self.in_proj_a(x) + self.dt_bias)
        o = recall(self, self.in_proj_qkv(x), log_alpha, beta)  # from where the sequences are: [B, T, H, D]
        gate = F.silu(self.in_proj_z(x)).view(o.shape)
        return self.out_proj((self.norm(o) * gate).flatten(2))

    def blank(self, like: Tensor) -> State:
        """What is remembered of no token."""
        s = self.shape
        window = like.new_zeros(s.conv_size - 1, 2 * self.keys + s.value_heads * s.value_dim)
        return State(window, like.new_zeros(s.value_heads, s.key_dim, s.value_dim))

    def run(self, past: State, qkv: Tensor, log_alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """New inputs of the convolution [B, T, C] and gates [B, T, H], after the past of B sequences: outputs
        [B, T, H, D], all inputs [B, w − 1 + T, C], and the states after every token, or after the last one."""
        s, T = self.shape, qkv.shape[1]
        inputs = torch.cat([past.window, qkv], 1)
        mixed = F.silu(F.conv1d(inputs.mT, self.conv1d.weight, groups=inputs.shape[-1])).mT  # [B, T, C]
        q, k, v = mixed.split([self.keys, self.keys, s.value_heads * s.value_dim], -1)
        q, k = (x.unflatten(-1, (s.key_heads, s.key_dim)) for x in (q, k))
        q, k = (x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for x in (q, k))
        q, k = (x.repeat_interleave(s.value_heads // s.key_heads, 2) for x in (q * s.key_dim**-0.5, k))
        v = v.unflatten(-1, (s.value_heads, s.value_dim))
        exact = torch.promote_types(qkv.dtype, torch.float32)  # S is a long sum, whatever the model computes in
        q, k, v, log_alpha, beta = (x.transpose(1, 2).to(exact) for x in (q, k, v, log_alpha, beta))
        rule = delta_rule if T <= 1 + DEEPEST else delta_rule_in_chunks
        o, states = rule(q, k, v, log_alpha, beta, past.memory.to(exact))
        return o.transpose(1, 2).to(qkv.dtype), inputs, states


class States:
    """Checkpoints: of each layer and sequence the state after so many tokens. (The exercise 15.checkpoint has fewer of
    them, and processes tokens again; 15.states is `recall` without tensors.)"""

    def __init__(self, shape: DeltaRule):
        self.shape, self.reach = shape, 0  # how many positions before a pass stay, for those that rewind several
        self.kept: dict[tuple[int, Hashable], dict[int, State]] = {}

    def recall(self, names: Sequence, lengths: list[int], counts: list[int], at: int, layer, *inputs) -> Tensor:
        """Run layer number `at` over new tokens of these sequences, each from its checkpoint at its length."""
        before = [self.kept.get((at, name), {}) for name in names]
        past = [self.checkpoint(*of, layer.blank(inputs[0])) for of in zip(before, lengths, strict=True)]
        T, real = inputs[0].shape[1], torch.tensor(counts, device=inputs[0].device)
        padding = torch.arange(T, device=real.device) >= real[:, None]  # [B, T]
        qkv, *gates = inputs
        gates = [gate.masked_fill(padding[..., None], 0) for gate in gates]  # α = 1 and β = 0 change no state
        o, seen, states = layer.run(State(*map(torch.stack, zip(*past, strict=True))), qkv, *gates)
        for row, (name, length, count) in enumerate(zip(names, lengths, counts, strict=True)):
            kept = {n: state for n, state in before[row].items() if length - self.reach <= n <= length}
            for n in range(1, count + 1) if T <= 1 + DEEPEST else [count]:
                window = seen[row, n : n + self.shape.conv_size - 1]
                window = window if T <= 1 + DEEPEST else window.clone()  # a view keeps the inputs of the whole prompt
                kept[length + n] = State(window, states[row, min(n, states.shape[1]) - 1])
            self.kept[at, name] = kept
        return o

    def checkpoint(self, kept: dict[int, State], length: int, blank: State) -> State:
        """The state after so many tokens; after none it is blank, whatever another request has left here."""
        if length and length not in kept:
            there = f"the states kept are those after {sorted(kept)} tokens"
            raise ValueError(f"length={length}: {there}; rewind to one of them, or process the sequence from its start")
        return kept[length] if length else blank

    def adopt(self, name: Hashable, others: "States", theirs: Hashable) -> None:
        """A sequence that had its states elsewhere goes on here."""
        self.kept |= {(at, name): kept for (at, of), kept in others.kept.items() if of == theirs}

    def rows(self, keep: Sequence[int]) -> "States":
        """Those of the chosen rows of a batch, in that order: the others leave."""
        chosen = States(self.shape)
        for row, before in enumerate(keep):
            chosen.adopt(row, self, before)
        return chosen

    def forget_others(self, names: set) -> None:
        self.kept = {key: kept for key, kept in self.kept.items() if key[1] in names}


def beside(attend: Callable, config, cache, slots: Tensor, counts: Tensor | None, mask: Tensor | None) -> Callable:
    """How each layer of a pass gets at what came before: `attend` for those with keys and values, and the States of
    the cache (None: of a sequence that begins here) for the others."""
    if mask is not None or any(mask is not None for mask in getattr(cache, "masks", ())):
        raise ValueError(NO_TREES)
    B, T = slots.shape
    counts = [T] * B if counts is None else counts.tolist()
    if (recall := getattr(cache, "recall", None)) is None:  # pages have their own: their sequences lie end to end
        states = States(config.delta) if cache is None else cache.states
        recall = partial(states.recall, range(B), slots[:, 0].tolist(), counts)
    recurrent = config.delta.layers
    place = {layer: n for n, layer in enumerate(n for n in range(config.num_layers) if n not in recurrent)}
    return lambda at, *given: recall(at, *given) if at in recurrent else attend(place[at], *given)
