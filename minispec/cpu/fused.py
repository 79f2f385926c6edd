"""All layers of a model as one call of compiled code, for a pass of few tokens over a contiguous cache or over pages.

Thirty layers of a dozen torch calls each cost three to six milliseconds in Python alone, and as many occasions for two
threads to wait for each other. `fused` says whether a pass can be had in one call, and returns that call; model.py's
loop over the layers is the reference. Nothing is copied but the matrices (panels.py), so a change of the model, or a
hook on one of its parts, is noticed at the next pass.
"""

import weakref
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ..cache import Places
from . import int8, invariant, machine, trials
from .panels import GROUP, ROWS, filled, panels_of, pieces, side_by_side

MOST_TOKENS = 32  # in groups, one after the other; beyond that torch's products for prompts are as fast (int8: int8.py)
PATIENCE = 200  # passes of a model whose matrices are small, before the code is compiled for it; if it is, at once

Fused = Callable[..., tuple[Tensor, dict[int, Tensor]]]


def fused(transformer: nn.Module, cache, tokens: Tensor, required: bool = False) -> Fused | None:
    """What runs the layers of this pass at once: `Plan.run`, or None, and the layers have to be called one by one.
    Where a batch-invariant pass is asked for, one that is `required` (not a drafter's head) is refused without it."""
    if (
        "places" in vars(type(cache))  # a subclass may watch what its `begin` does
        and (hasattr(transformer, "layers") or "blocks" in vars(type(transformer)))  # … or change a head's layers
        and transformer.config.experts is None  # which matrices a pass reads is known only while it runs
        and transformer.config.delta is None
        and tokens.numel() <= most_tokens(transformer, tokens)
        and cache.keys.device.type == "cpu"
        and cache.keys.dtype == torch.float32
        and cache.keys.is_contiguous()  # not some rows of another cache
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
    ):
        plan = _plans.get(transformer)
        if plan is None:
            plan = _plans[transformer] = Plan()
        if plan.ready(transformer):
            return plan.run
    if required and invariant.wanted():
        invariant.refuse()
    return None


def most_tokens(transformer, tokens: Tensor) -> int:
    """Up to how many tokens the compiled pass is the faster one."""
    if tokens.numel() <= MOST_TOKENS:
        return MOST_TOKENS
    if invariant.wanted():
        return tokens.numel()
    return int8.MOST_TOKENS if isinstance(transformer.blocks[0][-1].down_proj, int8.Int8Linear) else MOST_TOKENS


_plans: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


class Plan:
    """Where everything is that a pass through a model needs, and what that was read off."""

    def __init__(self):
        self.passes, self.prepared, self.table, self.facts = 0, False, None, []

    def ready(self, transformer) -> bool:
        """Whether the pass can be had, now that it is asked for once more."""
        if not self.worth_it(transformer):
            return False
        if self.table is None or not self.holds():
            self.table = None
            self.make(transformer)
        return self.table is not None and not any(self.hooks)

    def worth_it(self, transformer) -> bool:
        if (decided := machine.decided()) is not None:
            return decided
        if not machine.is_loaded():
            c, self.passes = transformer.config, self.passes + 1
            large = c.hidden_size * max(c.vocab_size, c.intermediate_size) >= machine.REPAYS_LOADING
            if self.passes == 1:  # once: that looks into files
                self.prepared = machine.was_compiled()
            if not (large or self.prepared or self.passes >= PATIENCE):
                return False
        return machine.compiled() is not None

    def holds(self) -> bool:
        """Whether the model is still made of the same parts, and their numbers lie where they lay, unchanged."""
        return all(owner.get(name) is part for owner, name, part in self.parts) and self.facts == _facts(self.weights)

    def make(self, transformer) -> None:
        modules = list((transformer.layers if hasattr(transformer, "layers") else transformer).modules())
        # Asked at every pass, so by the very dictionaries: torch's public ways build lists, and know of no hooks.
        self.hooks = [hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]
        self.parts = [(m._modules, name, part) for m in modules for name, part in m._modules.items()]
        self.parts += [(m._parameters, name, part) for m in modules for name, part in m._parameters.items()]
        bytewise = [m for m in modules if isinstance(m, int8.Int8Linear)]
        self.parts += [(m._buffers, name, part) for m in bytewise for name, part in m._buffers.items()]
        self.weights = [weight for *_, weight in self.parts if isinstance(weight, Tensor)]
        # A layer is computed as its class in model.py says, so it must be of that class and not of a subclass. What
        # holds the layers (a list, or a head that names them in `blocks`) takes no part in the pass.
        ours = type(transformer.config).__module__, int8.__name__
        theirs = nn.ModuleList, nn.Identity, nn.RMSNorm
        usual = all(type(m).__module__ in ours or type(m) in theirs for m in modules[1:])
        there = all(w.device.type == "cpu" and w.is_contiguous() and not w.is_inference() for w in self.weights)
        kinds = {w.dtype for w in self.weights} <= {torch.float32, torch.int8}
        if not (usual and there and kinds) or transformer.config.head_dim % ROWS:
            return
        self.facts = _facts(self.weights)
        rows = [_addresses(*block) for block in transformer.blocks]
        if all(address is not None for row in rows for address in row):
            self.config, self.table = transformer.config, np.array(rows, dtype=np.int64)
            self.bytes, self.slots, self.threads = sum(w.nbytes for w in self.weights), 0, 0

    def run(self, x, cache, rope, mask, order, hidden_layers=(), given=None) -> tuple[Tensor, dict[int, Tensor]]:
        """The residual stream x [B, T, d] after the layers of `order`, and after each of `hidden_layers` of them. New
        keys and values are stored in the cache; its lengths stay as they are. A mask [B, T, S] with S > T is about the
        last S slots. `given` [B, T, K] is what EAGLE's first layer attends with."""
        (B, T, d), hidden = x.shape, {0: x} if 0 in hidden_layers else {}
        places, copies = cache.places(T, mask), sorted({n for n in hidden_layers if 0 < n <= len(order)})
        x, rope = x.reshape(B * T, d).clone(), [part.reshape(B * T, -1) for part in rope]
        kept, given = torch.empty(len(copies), B * T, d), None if given is None else given.reshape(B * T, -1)
        memory, at = stored(cache, places), 0
        for stretches in grouped(places.counts):
            part = slice(at, at := at + sum(count for *_, count in stretches))
            before = None if given is None else given[part]
            turned, batch = [r[part] for r in rope], layout(stretches, places)
            self.group(x[part], kept[:, part], turned, batch, memory, order, copies, before)
        return x.view(B, T, d), hidden | {n: kept[i].view(B, T, d) for i, n in enumerate(copies)}

    def group(self, x, kept, rope, batch, memory, order, copies, given) -> None:
        """Change x [M, d] into the residual stream after these layers; `kept` [n, M, d] after each of `copies`."""
        M, c, code = len(x), self.config, machine.compiled()
        threads, wanted = trials.threads_for(self.bytes), np.full(len(order), -1)
        for i, n in enumerate(copies):
            wanted[n - 1] = i
        step = 2 if threads > 1 else 2**40  # panels in a chunk
        size = M, c.hidden_size, c.num_heads, c.num_kv_heads, c.head_dim, c.intermediate_size, step
        with machine.team.alone:
            between, own = self.buffers(side_by_side(M), threads, memory[2].shape[1] * int(memory[3][0]))
            states = torch.empty(len(copies), M, c.hidden_size)
            columns = torch.zeros(0 if given is None else filled(given.shape[1]), side_by_side(M))  # [K, P]
            if given is not None:
                columns[: given.shape[1], :M] = given.T
            counters = np.zeros(16 * code.PHASES * len(order), np.int64)
            constants = np.array([c.norm_eps, c.head_dim**-0.5], dtype=np.float32)
            plan = counters, self.table, np.array(order, dtype=np.int64), np.array(size), constants
            stream = x.numpy(), states.numpy(), wanted, *(part.numpy() for part in rope)
            machine.team.run(code.run, (plan, stream, batch, memory, (*between, columns.numpy())), own)
        kept.copy_(states)

    def buffers(self, P: int, threads: int, slots: int) -> tuple[tuple, list[tuple]]:
        """Memory between the phases of a pass, and each thread's own: torch's, because it begins at a cache line."""
        if self.slots < slots or self.threads != threads:
            self.slots, self.threads, self.memory = -(-slots // 1024) * 1024, threads, {}  # in steps: sequences grow
        if P not in self.memory:
            c, make = self.config, lambda *shape: torch.zeros(*shape).numpy()
            heads, kv_heads = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
            qkv = make(P, heads), make(P, kv_heads), make(P, kv_heads)
            between = *qkv, make(filled(heads), P), make(filled(c.intermediate_size), P)
            lines, longest = 2 * c.head_dim + 5 + self.slots, max(heads, 2 * c.hidden_size, c.intermediate_size)
            normed = lambda: (make(filled(c.hidden_size), P), make(2 * GROUP * ROWS))  # noqa: E731
            attended = lambda: (make(lines, ROWS), np.zeros((2, ROWS), np.int64), pieces(longest))  # noqa: E731
            self.memory[P] = between, [((*normed(), *attended()),) for _ in range(threads)]
        return self.memory[P]


def stored(cache, places: Places) -> tuple[np.ndarray, ...]:
    """A cache as code.run takes it: keys, values, each sequence's blocks [B, W], and strides: slots of a block; vectors
    between two layers, blocks, heads and slots."""
    strides = [stride // cache.keys.shape[-1] for stride in (cache.keys.stride(0), *places.strides)]
    return cache.keys.numpy(), cache.values.numpy(), places.table.numpy(), np.array([places.size, *strides])


def grouped(counts: Sequence[int]) -> list[list[tuple[int, int, int]]]:
    """Tokens of sequences that bring so many, eight at a time: stretches (sequence, its tokens before, how many). What
    a group has stored is in the cache when the next one attends, so a sequence may be cut anywhere."""
    groups, room = [], 0  # tokens that the last group can still take
    for sequence, count in enumerate(counts):
        before = 0
        while before < count:
            if room == 0:
                groups.append([])
                room = GROUP
            taken = min(room, count - before)
            groups[-1].append((sequence, before, taken))
            before, room = before + taken, room - taken
    return groups


def layout(stretches: list[tuple[int, int, int]], places: Places) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sequences [B, 5] of a group as code.FIRST … TABLE say, which of them each token is of [M], and what each
    token sees of its sequence's last slots [M, s], those of a shorter sequence to the right."""
    rows, owner, parts = [], [], []
    for n, (sequence, before, count) in enumerate(stretches):
        mask = places.masks[sequence] if places.masks else None
        if mask is None:
            seen = np.tri(count, dtype=bool)
        else:  # [T, s]: without the columns of tokens that a later group will bring
            seen = mask.numpy()[before : before + count, : mask.shape[1] - places.counts[sequence] + before + count]
        rows.append((len(owner), count, places.lengths[sequence] + before, seen.shape[1], sequence))
        owner += [n] * count
        parts.append(seen)
    if len(parts) == 1:
        return np.array(rows), np.array(owner), np.ascontiguousarray(parts[0])
    together = np.zeros((len(owner), max(part.shape[1] for part in parts)), dtype=bool)
    for (first, count, _, last, _), part in zip(rows, parts, strict=True):
        together[first : first + count, together.shape[1] - last :] = part
    return np.array(rows), np.array(owner), together


def _facts(weights: list[Tensor]) -> list[tuple[int, int]]:
    return [(weight.data_ptr(), weight._version) for weight in weights]  # panels.version, for hundreds at every pass


def _addresses(input_layernorm, attention, post_attention_layernorm, mlp) -> list[int | None]:
    """A layer's row of the table, in the order of code.LN1 … BD; 0: there is none; None: there is no memory for it."""

    def product(linear) -> list[int | None]:
        panels = linear.panels if isinstance(linear, int8.Int8Linear) else panels_of(linear.weight)
        return [*(panels.addresses if panels else [None, 0]), 0 if linear.bias is None else linear.bias.data_ptr()]

    def norm(module) -> int:
        return module.weight.data_ptr() if hasattr(module, "weight") else 0

    a = attention
    qkv = [norm(input_layernorm), *product(a.q_proj), *product(a.k_proj), *product(a.v_proj)]
    attended = [norm(a.q_norm), norm(a.k_norm), *product(a.o_proj)]
    mixed = [norm(post_attention_layernorm), *product(mlp.gate_proj), *product(mlp.up_proj), *product(mlp.down_proj)]
    return qkv + attended + mixed
