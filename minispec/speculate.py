"""The draft/verify loop: one pass of the target checks a whole draft, and what comes out is exactly the target's.

One cycle, for every row of the batch:

    the drafter proposes d₁ … d_k            a cheap guess
    the target reads [last token, d₁ … d_k]  one pass: k + 1 laws for little more than the price of one
    the verifier accepts a prefix            and emits one token more: the correction, or the bonus
    both caches forget what was rejected

Between cycles the target's cache holds every token but the last, which opens the next pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import tree as trees
from . import verify
from .cache import KVCache
from .drafters.base import Context, Draft, Drafter, laws, stack, uniforms
from .generate import Output, Writer, pad, prepare
from .sampling import Sampling, generator_for, likeliest
from .trace import AdaptiveLength, Cycle, Trace

if TYPE_CHECKING:
    from .files.handle import Model


@dataclass
class Row:
    """One sequence being written."""

    context: Context  # what the drafter sees
    writer: Writer  # what the caller gets
    prompt_tokens: int
    trace: Trace = field(default_factory=Trace)

    @property
    def room(self) -> int:
        """A cycle emits at most one token more than it drafts, so more drafts than this could not be used."""
        return self.writer.limit - len(self.writer.tokens) - 1


@torch.inference_mode()
def speculate(
    model: Model,
    prompt,
    drafter: Drafter,
    k: int | str = 4,
    max_new_tokens: int = 64,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int | None = None,
    stop: str | Sequence[str] = (),
    stream: Callable[[str], None] | None = None,
    on_cycle: Callable[[Cycle], None] | None = None,
) -> Output | list[Output]:
    """What `generate` writes, in fewer passes of the target: the same tokens when greedy, the same law when sampling.

    `k` is the draft length, or "auto" to choose it from measured acceptance and times (the clock then decides how many
    random numbers are used, so a seed no longer repeats a sampled run). `on_cycle` is shown each Cycle as it ends. The
    other arguments are those of `generate`. `out.trace` tells what happened; where a GPU runs each cycle as one launch
    (fast.py) its cycles have no times.
    """
    sampling = Sampling(temperature, top_k, top_p, min_p)
    prompts, batched = prepare(model, prompt, max_new_tokens)
    check(model, drafter, k, stream is not None and batched)
    if model.backend and not batched and model.backend.takes(drafter, k):
        return model.backend.speculate(prompts[0], drafter, k, max_new_tokens, sampling, seed, stop, stream, on_cycle)
    start = time.perf_counter()
    generator = generator_for(model.device, seed)
    everyone = [
        Row(Context(i, list(ids), sampling, generator), Writer(model, max_new_tokens, stop, stream), len(ids))
        for i, ids in enumerate(prompts)
    ]
    adaptive = AdaptiveLength() if k == "auto" else None
    spare = (adaptive.longest if adaptive else k) + drafter.extra_slots  # a pass reads more than it keeps
    rows, cache = everyone, prefill(model, everyone, max_new_tokens + spare, drafter.hidden_layers)
    try:
        while rows:
            wanted = min(adaptive.choose() if adaptive else k, max(row.room for row in rows))
            times = [time.perf_counter()]
            drafts = propose(drafter, rows, wanted)
            times.append(time.perf_counter())
            logits, hidden = read(model, cache, rows, drafts, drafter.hidden_layers)
            times.append(time.perf_counter())
            verdicts, cycles = judge(logits, rows, drafts, drafter.lossless)
            keep(cache, drafts, verdicts)
            times.append(time.perf_counter())
            seconds = [after - before for before, after in pairwise(times)]
            for i, (row, draft, verdict, cycle) in enumerate(zip(rows, drafts, verdicts, cycles, strict=True)):
                cycle.draft_seconds, cycle.verify_seconds, cycle.sample_seconds = seconds
                write(row, cycle)
                states = {n: state[i, [0, *(node + 1 for node in verdict.path)]] for n, state in hidden.items()}
                row.context.hidden = states if wanted else joined(row.context.hidden, states)
                if on_cycle:
                    on_cycle(cycle)
                if row.writer.finish is None:
                    scratch = logits[i, -len(draft.scratch.tokens) :] if draft.scratch else None
                    drafter.settle(row.context.row, verdict.path, verdict.token, scratch)
            if adaptive:
                adaptive.learn(wanted, cycles)
            alive = [i for i, row in enumerate(rows) if row.writer.finish is None]
            if len(alive) < len(rows):  # finished rows leave the batch
                finished, rows = [row for row in rows if row.writer.finish], [rows[i] for i in alive]
                cache = cache.rows(alive) if alive else cache
                for row in finished:
                    drafter.forget(row.context.row)
    finally:
        for row in rows:  # none, unless something went wrong
            drafter.forget(row.context.row)
    seconds = time.perf_counter() - start
    outputs = [row.writer.output(row.prompt_tokens, seconds, row.trace) for row in everyone]
    return outputs if batched else outputs[0]


def check(model: Model, drafter: Drafter, k: int | str, streams_a_batch: bool) -> None:
    """Refuse what cannot work before any work is done."""
    longest = model.config.max_length
    if k != "auto" and not (isinstance(k, int) and 1 <= k < longest):
        raise ValueError(f'k={k!r}: give a draft length from 1 to {longest - 1}, or "auto"')
    check_drafter(model, drafter)
    if streams_a_batch:
        raise ValueError("stream works for one prompt, not for a batch: call speculate once per prompt")


def check_drafter(model: Model, drafter: Drafter) -> None:
    if not isinstance(drafter, Drafter):
        raise ValueError(f"drafter={drafter!r} is no Drafter: give one of ms.drafters, e.g. ms.drafters.Model(draft)")
    if drafter.vocab_size not in (None, model.config.vocab_size):
        raise ValueError(
            f"drafter speaks {drafter.vocab_size} tokens and the target {model.config.vocab_size}: "
            "they need the same tokenizer, so choose a draft of the target's family"
        )


def prefill(model: Model, rows: Sequence[Row], room: int, hidden_layers: Sequence[int]) -> KVCache:
    """Read every prompt but its last token, which opens the first verify pass."""
    prompts = [row.context.tokens[:-1] for row in rows]
    cache = model.transformer.new_cache(len(rows), max(map(len, prompts)) + 1 + room)
    if any(prompts):
        tokens, counts = pad(prompts, model.device)
        _, hidden = model.transformer.body(tokens, cache, counts=counts, hidden_layers=hidden_layers)
        for i, row in enumerate(rows):
            row.context.hidden = {n: state[i, : len(prompts[i])] for n, state in hidden.items()}
    return cache


def joined(earlier: dict[int, Tensor], states: dict[int, Tensor]) -> dict[int, Tensor]:
    """Hidden states that the drafter was not asked about yet, and the newest behind them."""
    return {n: torch.cat([earlier[n], state]) if n in earlier else state for n, state in states.items()}


def propose(drafter: Drafter, rows: Sequence[Row], k: int, depths: Sequence[int] | None = None) -> list[Draft]:
    """One draft per row, none deeper than the row's depth (None: than it has room for)."""
    if k < 1:
        return [Draft([]) for _ in rows]
    drafts = drafter.propose([row.context for row in rows], k)
    if len(drafts) != len(rows):
        raise ValueError(f"{drafter!r} made {len(drafts)} drafts for {len(rows)} rows: propose returns one for each")
    depths = [row.room for row in rows] if depths is None else depths
    return [cut(draft, depth) for draft, depth in zip(drafts, depths, strict=True)]


def cut(draft: Draft, depth: int) -> Draft:
    """Leave out what lies too deep. How deep does not depend on what was drawn, so the law stays the target's."""
    if len(draft.tokens) <= depth:
        return draft
    keep = [i for i, level in enumerate(trees.depths(parents_of(draft))) if level <= depth]
    place = {-1: -1} | {old: new for new, old in enumerate(keep)}
    return Draft(
        [draft.tokens[i] for i in keep],
        None if draft.probs is None else draft.probs[keep],
        None if draft.parents is None else [place[draft.parents[i]] for i in keep],
        draft.scratch,
    )


def read(model: Model, cache: KVCache, rows: Sequence[Row], drafts: Sequence[Draft], hidden_layers: Sequence[int]):
    """The target's one pass: [last token, drafts …, scratch …] of every row → logits [B, T, V] and hidden states.

    Scratch tokens sit at the end of the pass, after the padding, so that node i is always in place i + 1.
    """
    check_shapes(drafts, model.config.vocab_size)
    tokens, counts = pad([[row.context.tokens[-1], *draft.tokens] for row, draft in zip(rows, drafts, strict=True)],
                         model.device)  # fmt: skip
    if all(draft.parents is None and draft.scratch is None for draft in drafts):
        out = model.transformer(tokens, cache, counts=counts, hidden_layers=hidden_layers)
        return out.logits, out.hidden
    width, extra = tokens.shape[1], max(len(d.scratch.tokens) if d.scratch else 0 for d in drafts)
    tokens = torch.nn.functional.pad(tokens, (0, extra))
    for i, draft in enumerate(drafts):
        if draft.scratch:
            scratch = torch.tensor(draft.scratch.tokens, device=tokens.device)
            tokens[i, -len(scratch) :] = scratch
    views = [view(draft, width + extra) for draft in drafts]
    mask, offsets = (torch.stack(part).to(model.device) for part in zip(*views, strict=True))
    out = model.transformer(tokens, cache, counts=counts, hidden_layers=hidden_layers, mask=mask,
                            positions=cache.lengths[:, None] + offsets)  # fmt: skip
    return out.logits, out.hidden


def check_shapes(drafts: Sequence[Draft], V: int) -> None:
    """Refuse tokens and laws that are none of the target's: a GPU would not survive the embedding of such a token."""
    for draft in drafts:
        if draft.probs is not None and draft.probs.shape != (needed := (len(draft.tokens), V)):
            raise ValueError(f"probs of shape {tuple(draft.probs.shape)} for a draft of {len(draft.tokens)} tokens: "
                             f"give one law over the target's vocabulary for each token, {needed}")  # fmt: skip
        if not all(0 <= token < V for token in draft.tokens):
            verify.check_draft(torch.tensor(draft.tokens), None, V)


def view(draft: Draft, size: int) -> tuple[Tensor, Tensor]:
    """Who sees whom [T, T], and how far behind the last token everyone is [T], in a row of T = size tokens:
    [last token, drafts …, padding …, scratch …]."""
    mask, offsets = torch.eye(size, dtype=torch.bool), torch.zeros(size, dtype=torch.long)  # padding sees itself
    parents = parents_of(draft)
    n = len(parents) + 1
    mask[:n, :n] = trees.verify_mask(parents)
    offsets[:n] = torch.tensor([0, *trees.depths(parents)])
    if draft.scratch:
        s = len(draft.scratch.tokens)
        mask[-s:, -s:] = draft.scratch.mask
        mask[-s:, 0] = True  # the last committed token is text like the rest
        offsets[-s:] = torch.tensor(draft.scratch.offsets)
    return mask, offsets


def judge(
    logits: Tensor, rows: Sequence[Row], drafts: Sequence[Draft], lossless: bool = True
) -> tuple[list[verify.Verdict], list[Cycle]]:
    """Turn logits into laws, test the drafts against them, and note what happened."""
    contexts = [row.context for row in rows]
    chains = lossless and all(draft.parents is None for draft in drafts)
    if chains and all(c.sampling.greedy and draft.probs is None for c, draft in zip(contexts, drafts, strict=True)):
        # Nothing is drawn: the best tokens are all there is to know, and the rest is done without the device.
        best = likeliest(logits[:, : 1 + max(len(draft.tokens) for draft in drafts)])  # [B, n + 1]
        verdicts = [verify.greedy(tokens, draft.tokens) for tokens, draft in zip(best, drafts, strict=True)]
        given = [[float(a == b) for a, b in zip(draft.tokens, tokens, strict=False)]
                 for tokens, draft in zip(best, drafts, strict=True)]  # fmt: skip
        return verdicts, describe(given, None, rows, drafts, verdicts, lossless)
    drafted, lengths = pad([draft.tokens for draft in drafts], logits.device)  # [B, n], [B]
    p = laws(logits[:, : drafted.shape[1] + 1], [context.sampling for context in contexts])  # [B, n + 1, V]
    q = stack(drafts, p)  # [B, n, V], or None
    ragged = len({len(draft.tokens) for draft in drafts}) > 1
    verify.check_draft(drafted, q, p.shape[-1], lengths if ragged else None)
    u = uniforms(contexts, [len(draft.tokens) + 1 for draft in drafts]).to(p.device)  # [B, n + 1]
    if chains:
        accepted, tokens = verify.chain_batch(p, q, drafted, lengths, u)
        pairs = zip(accepted.tolist(), tokens.tolist(), strict=True)
        verdicts = [verify.Verdict(list(range(count)), token) for count, token in pairs]
    else:
        verdicts = []
        for i, draft in enumerate(drafts):
            n = len(draft.tokens)
            law, parents, random = p[i, : n + 1], parents_of(draft), u[i, : n + 1]
            if lossless:
                verdicts.append(verify.tree(law, draft.probs, draft.tokens, parents, random))
            else:
                verdicts.append(verify.typical(law, draft.tokens, parents, random))
    p_drafted = verify.at(in_place(p, drafts), drafted).tolist()  # [B, n]
    q_drafted = verify.at(q, drafted).tolist() if q is not None else None
    return verdicts, describe(p_drafted, q_drafted, rows, drafts, verdicts, lossless)


def parents_of(draft: Draft) -> list[int]:
    return list(range(-1, len(draft.tokens) - 1)) if draft.parents is None else draft.parents


def keep(cache: KVCache, drafts: Sequence[Draft], verdicts: Sequence[verify.Verdict]) -> None:
    """Rewind to the last token and the accepted drafts; those of a tree are moved together first."""
    read = torch.tensor([1 + len(draft.tokens) for draft in drafts], device=cache.lengths.device)
    kept = torch.tensor([1 + verdict.accepted for verdict in verdicts], device=cache.lengths.device)
    start = cache.lengths - read
    if any(draft.parents is not None for draft in drafts):
        longest = max(verdict.accepted for verdict in verdicts)
        # The last token stays where it is, node i is in the i-th slot after it. Short paths are filled up at will.
        path = [[*verdict.path, *range(verdict.accepted, longest)] for verdict in verdicts]
        cache.gather(torch.tensor(path, dtype=torch.long, device=start.device).view(len(path), longest), start + 1)
    cache.rewind(start + kept)


def in_place(p: Tensor, drafts: Sequence[Draft]) -> Tensor:
    """The law that judges each draft, [B, n, V]: the one after the draft before it, or after its parent in a tree."""
    if all(draft.parents is None for draft in drafts):
        return p[:, :-1]
    n = p.shape[1] - 1
    place = [[parent + 1 for parent in parents_of(d)] + [0] * (n - len(d.tokens)) for d in drafts]
    rows = torch.arange(len(drafts), device=p.device)[:, None]
    return p[rows, torch.tensor(place, dtype=torch.long, device=p.device)]


def describe(p_drafted, q_drafted, rows, drafts, verdicts, lossless: bool) -> list[Cycle]:
    """The cycles of one pass, with what both sides gave each drafted token, [B, n] (no q: nothing was drawn)."""
    cycles = []
    for i, (row, draft, verdict) in enumerate(zip(rows, drafts, verdicts, strict=True)):
        n = len(draft.tokens)
        end = verdict.path[-1] if verdict.path else -1
        cycles.append(
            Cycle(
                drafted=draft.tokens,
                parents=draft.parents,
                p=p_drafted[i][:n],
                q=q_drafted[i][:n] if q_drafted else [1.0] * n,
                path=verdict.path,
                token=verdict.token,
                bonus=end not in parents_of(draft),  # nothing was drafted after the last accepted token
                kept=verdict.accepted + 1,
                committed=len(row.context.tokens),
                lossless=lossless,
            )
        )
    return cycles


def write(row: Row, cycle: Cycle) -> None:
    """Hand the cycle's tokens to the writer, up to the one that ends the text."""
    for kept, token in enumerate(cycle.tokens, start=1):
        row.context.tokens.append(token)
        if row.writer.write(token):
            cycle.kept = kept
            break
    row.trace.cycles.append(cycle)
