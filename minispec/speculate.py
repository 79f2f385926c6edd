"""The draft/verify loop: one forward pass of the target checks a whole draft. One cycle, for every sequence of a batch:

    propose    the drafter guesses d₁ … d_k
    forward    the target processes [last token, d₁ … d_k]: k + 1 distributions for little more than the price of one
    judge      the verifier accepts a prefix and emits one token more: the correction, or the bonus
    keep       the cache rewinds past what was rejected
    finish     the tokens go to the caller, and the drafter is told

Between cycles the target's cache holds every token but the last, which opens the next pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .cache import KVCache
from .drafters.adaptive import AdaptiveLength
from .drafters.base import Context, Drafter, next_id
from .generate import Output, Writer, decode, pad, prepare
from .model import Pass
from .processors.drafts import without_impossible
from .sampling import SamplingParams, emitting_positions
from .trace import Cycle, Stopwatch, Trace
from .tree import Draft, cut, view
from .verify import NO_BLOCKS, RULES, Verdict, check_draft, check_q_shape, judge

if TYPE_CHECKING:
    from .load.handle import Model


@dataclass
class Completion:
    """One sequence being generated."""

    context: Context  # what the drafter sees
    writer: Writer  # what the caller gets
    prompt_tokens: int
    trace: Trace = field(default_factory=Trace)
    unseen: list[dict[int, Tensor]] = field(default_factory=list)  # hidden states that no drafter has been shown yet

    @classmethod
    def begin(cls, model: Model, ids: Sequence[int], params: SamplingParams, index: int = 0, stream=None) -> Completion:
        processors = params.processors(model, ids)
        context = Context(next_id(), list(ids), params.sampling, params.generator(index), processors=processors)
        return cls(context, Writer(model, params, stream, processors), len(ids))

    @property
    def ended(self) -> bool:
        return self.writer.finish_reason is not None

    @property
    def room(self) -> int:
        """A cycle emits at most one token more than it drafts, so a deeper draft than this could not be used."""
        return self.writer.limit - len(self.writer.tokens) - 1

    def write(self, cycle: Cycle) -> None:
        """Hand the cycle's tokens to the writer, up to the one that ends the sequence."""
        for kept, token in enumerate(cycle.tokens, start=1):
            self.context.tokens.append(token)
            if self.writer.write(token):
                cycle.kept = kept
                break
        self.trace.cycles.append(cycle)

    def remember(self, states: dict[int, Tensor], newest: int | None = None) -> None:
        """Keep the target's hidden states [n, d] until the drafter is asked again; `newest` of them are enough."""
        if states:
            self.unseen.append(states)
        while newest is not None and sum(len(next(iter(s.values()))) for s in self.unseen[1:]) >= newest:
            del self.unseen[0]

    def reveal(self) -> Context:
        """The context with all hidden states that the drafter has not seen, [n, d] for each layer it asks for."""
        layers = self.unseen[0] if self.unseen else {}
        self.context.hidden = {n: torch.cat([states[n] for states in self.unseen]) for n in layers}
        self.unseen = []
        return self.context


def speculate(
    model: Model,
    prompt,
    drafter: Drafter,
    k: int | str = 4,
    max_new_tokens: int | None = None,
    *,
    rule: str = "token",
    params: SamplingParams | None = None,
    stream: Callable[[str], None] | None = None,
    on_cycle: Callable[[Cycle], None] | None = None,
    **options,
) -> Output | list[Output]:
    """What `generate` generates, in fewer forward passes of the target: the same distribution, and in exact arithmetic
    the same tokens when greedy.

    `k` is the draft length, or "auto" to choose it from measured acceptance and times (the clock then decides how many
    random numbers are used, so a seed no longer repeats a sampled run). `rule`: sampled chains are accepted "token" by
    token or as a "block"; both are lossless. `on_cycle` is shown each Cycle as it ends. The other arguments are those
    of `generate`. `out.trace` tells what happened.
    """
    params = SamplingParams.of(params, max_new_tokens=max_new_tokens, **options)
    prompts, batched = prepare(model, prompt, params, stream)
    check(model, drafter, k)
    check_rule(rule, drafter)
    rows = [Completion.begin(model, ids, params, i, stream) for i, ids in enumerate(prompts)]
    start = time.perf_counter()
    for _ in cycles(model, rows, drafter, k, params, on_cycle, rule):
        pass
    seconds = time.perf_counter() - start
    outputs = [row.writer.output(row.prompt_tokens, seconds, row.trace) for row in rows]
    return outputs if batched else outputs[0]


@torch.inference_mode()
def cycles(
    model: Model, rows: list[Completion], drafter: Drafter, k: int | str, params, on_cycle=None, rule: str = "token"
) -> Iterator:
    """Cycle until every sequence has ended: captured where the model's device can do that for this drafter and rule."""
    captured = model.backend.speculator(rows, drafter, k, params) if model.backend and rule == "token" else None
    with closing(captured or Eager(model, rows, drafter, k, params, rule)) as backend:
        while rows:
            for row, news in zip(rows, backend.cycles(), strict=True):  # propose, forward, judge, keep
                for cycle in news:
                    row.write(cycle)
                    if on_cycle:
                        on_cycle(cycle)
                    if row.ended:  # what a device did past the end never happened
                        break
            rows = backend.finish()
            yield


class Eager:
    """The cycle on any device, one step after the other."""

    def __init__(
        self,
        model: Model,
        rows: list[Completion],
        drafter: Drafter,
        k: int | str,
        params: SamplingParams,
        rule: str = "token",
    ):
        self.model, self.rows, self.drafter, self.k, self.rule = model, rows, drafter, k, rule
        self.adaptive = AdaptiveLength() if k == "auto" else None
        spare = (self.adaptive.longest if self.adaptive else k) + drafter.extra_slots  # a pass holds more than it keeps
        self.prefill(params, spare)

    def prefill(self, params: SamplingParams, spare: int) -> None:
        self.cache = prefill(self.model, self.rows, params.max_new_tokens + spare, self.drafter)

    def forward(self) -> tuple[Tensor, dict[int, Tensor]]:
        return forward(self.model, self.cache, self.rows, self.drafts, self.drafter.hidden_layers)

    def judge(self, logits: Tensor):
        return judge(logits, [row.context for row in self.rows], self.drafts, self.drafter.lossless, rule=self.rule)

    def keep(self) -> None:
        keep(self.cache, self.drafts, self.verdicts)

    def leave(self, going: list[int]) -> None:
        self.cache = self.cache.rows(going)

    def cycles(self) -> list[list[Cycle]]:
        """One for every sequence."""
        rows, drafter, watch = self.rows, self.drafter, Stopwatch(self.model.device)
        k = min(self.adaptive.choose() if self.adaptive else self.k, max(row.room for row in rows))
        with watch("draft"):
            self.drafts = propose(drafter, rows, k)
        with watch("verify"):
            self.logits, hidden = self.forward()
        with watch("sample"):
            raw = self.logits.clone() if rows[0].writer.logprobs is not None else None  # before any token is forbidden
            self.verdicts, p, q = self.judge(self.logits)
            self.keep()
        news = []
        for i, (row, draft, verdict) in enumerate(zip(rows, self.drafts, self.verdicts, strict=True)):
            news.append(Cycle.of(draft, verdict, p[i], q and q[i], len(row.context.tokens), drafter.lossless))
            verified = emitting_positions(verdict.path)  # the last token and the accepted drafts
            if raw is not None:
                row.writer.note(raw[i, verified], news[-1].tokens)
            row.remember({n: states[i, verified] for n, states in hidden.items()}, drafter.hidden_window)
        watch.note(news)
        if self.adaptive:
            self.adaptive.learn(k, news)
        return [[cycle] for cycle in news]

    def finish(self) -> list[Completion]:
        """Tell the drafter how its drafts ended; sequences that have ended leave the batch. Returns the others."""
        going = [i for i, row in enumerate(self.rows) if not row.ended]
        for i in going:
            draft, verdict = self.drafts[i], self.verdicts[i]
            scratch = self.logits[i, -len(draft.scratch.tokens) :] if draft.scratch else None
            self.drafter.settle(self.rows[i].context.id, verdict.path, verdict.token, scratch)
        for row in self.rows:
            if row.ended:
                self.drafter.forget(row.context.id)
        if 0 < len(going) < len(self.rows):
            self.leave(going)
        self.rows = [self.rows[i] for i in going]
        return self.rows

    def close(self) -> None:
        for row in self.rows:  # none, unless something went wrong
            self.drafter.forget(row.context.id)


def stream(
    model: Model,
    prompt,
    max_new_tokens: int | None = None,
    *,
    drafter: Drafter | None = None,
    k: int | str = 4,
    params: SamplingParams | None = None,
    **options,
) -> Iterator[str]:
    """The text of `generate`, or with a drafter of `speculate`, piece by piece: `for piece in ms.stream(…)`. To stop
    the iteration is to stop generating."""
    params = SamplingParams.of(params, max_new_tokens=max_new_tokens, **options)
    prompts, batched = prepare(model, prompt, params)
    if batched or model.tokenizer is None:
        raise ValueError("stream needs one prompt, and a model with a tokenizer: there is no text to stream otherwise")
    if drafter is not None:
        check(model, drafter, k)
    return _pieces(model, prompts[0], drafter, k, params)


def _pieces(model: Model, ids: list[int], drafter: Drafter | None, k: int | str, params: SamplingParams):
    pieces: list[str] = []
    row = Completion.begin(model, ids, params, stream=pieces.append)
    for _ in cycles(model, [row], drafter, k, params) if drafter else decode(model, [ids], [row.writer], params):
        yield from pieces
        pieces.clear()


def check(model: Model, drafter: Drafter, k: int | str) -> None:
    """Before any work: can this drafter draft so far for this model?"""
    check_drafter(model, drafter)
    if k != "auto" and not (isinstance(k, int) and 1 <= k < model.config.max_length):
        raise ValueError(f'k={k!r}: give a draft length from 1 to {model.config.max_length - 1}, or "auto"')


def check_drafter(model: Model, drafter: Drafter) -> None:
    if not isinstance(drafter, Drafter):
        raise ValueError(f"drafter={drafter!r} is no Drafter: give one of ms.drafters, e.g. ms.drafters.Model(draft)")
    drafter.fit(model)


def check_rule(rule: str, drafter: Drafter | None) -> None:
    if rule not in RULES:
        raise ValueError(f"rule={rule!r}: give one of {', '.join(RULES)}")
    if rule == "block" and drafter is not None and not (drafter.lossless and drafter.max_tree_nodes(1) == 1):
        raise ValueError(NO_BLOCKS)


# ---- the steps of a cycle ------------------------------------------------------------------------------------------


def prefill(model: Model, rows: Sequence[Completion], room: int, drafter: Drafter) -> KVCache:
    """Process every prompt but its last token, which opens the first verify pass."""
    prompts = [row.context.tokens[:-1] for row in rows]
    cache = model.transformer.new_cache(len(rows), max(map(len, prompts)) + 1 + room)
    if any(prompts):
        tokens, counts = pad(prompts, model.device)
        _, hidden = model.transformer.body(tokens, cache, counts=counts, hidden_layers=drafter.hidden_layers)
        for i, row in enumerate(rows):
            row.remember({n: states[i, : len(prompts[i])] for n, states in hidden.items()}, drafter.hidden_window)
    return cache


def propose(drafter: Drafter, rows: Sequence[Completion], k: int, depths: Sequence[int] | None = None) -> list[Draft]:
    """One draft per sequence, none deeper than its depth (None: than it has room for)."""
    if k < 1:
        return [Draft([]) for _ in rows]
    drafts = drafter.propose([row.reveal() for row in rows], k)
    if len(drafts) != len(rows):
        raise ValueError(f"{drafter!r} made {len(drafts)} drafts for {len(rows)} sequences: return one for each")
    depths = [row.room for row in rows] if depths is None else depths
    drafts = [without_impossible(draft, row.context) for draft, row in zip(drafts, rows, strict=True)]
    return [cut(draft, depth) for draft, depth in zip(drafts, depths, strict=True)]


def forward(model: Model, cache: KVCache, rows: Sequence[Completion], drafts: Sequence[Draft], hidden_layers) -> Pass:
    """The target's one pass: [last token, drafts …, padding …, scratch …] of every sequence, node i in slot i + 1."""
    check_shapes(drafts, model.config.vocab_size)
    last = [row.context.tokens[-1] for row in rows]
    tokens, counts = pad([[t, *draft.tokens] for t, draft in zip(last, drafts, strict=True)], model.device)
    if all(draft.parents is None and draft.scratch is None for draft in drafts):
        return model.transformer(tokens, cache, counts=counts, hidden_layers=hidden_layers)
    scratch, _ = pad([draft.scratch.tokens[::-1] if draft.scratch else [] for draft in drafts], model.device)
    tokens = torch.cat([tokens, scratch.flip(1)], 1)  # reversed twice: padded at its beginning
    views = [view(draft, tokens.shape[1]) for draft in drafts]
    mask, offsets = (torch.stack(part).to(model.device) for part in zip(*views, strict=True))
    positions = cache.lengths[:, None] + offsets
    return model.transformer(tokens, cache, counts=counts, hidden_layers=hidden_layers, mask=mask, positions=positions)


def check_shapes(drafts: Sequence[Draft], V: int) -> None:
    """Refuse tokens and distributions that are none of the target's: a GPU would not survive embedding such a token."""
    for draft in drafts:
        check_q_shape(draft.probs, (len(draft.tokens), V))
        if not all(0 <= token < V for token in draft.tokens):
            check_draft(torch.tensor(draft.tokens), None, V)


def keep(cache: KVCache, drafts: Sequence[Draft], verdicts: Sequence[Verdict]) -> None:
    """Rewind to the last token and the accepted drafts; those of a tree are moved together first."""
    processed = torch.tensor([1 + len(draft.tokens) for draft in drafts], device=cache.lengths.device)
    kept = torch.tensor([1 + verdict.accepted for verdict in verdicts], device=cache.lengths.device)
    start = cache.lengths - processed
    if any(draft.parents is not None for draft in drafts):
        longest = max(verdict.accepted for verdict in verdicts)
        # The last token stays where it is, node i is in the i-th slot after it. Short paths are filled up at will.
        path = [[*verdict.path, *range(verdict.accepted, longest)] for verdict in verdicts]
        if path != [[*range(longest)]] * len(path):  # else they are where they belong
            cache.gather(torch.tensor(path, dtype=torch.long, device=start.device), start + 1)
    cache.rewind(start + kept)
