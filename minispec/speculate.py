"""The draft/verify loop: one forward pass of the target checks a whole draft. One cycle, for every sequence of a batch:

    propose    the drafter guesses d₁ … d_k
    forward    the target processes [last token, d₁ … d_k]: k + 1 distributions for little more than the price of one
    judge      the verifier accepts a prefix and emits one token more: the correction, or the bonus
    keep       the cache rewinds past what was rejected
    finish     the drafter is told, and sequences that have ended leave

Between cycles the target's cache holds every token but the last, which opens the next pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .controller import LONGEST, Controller
from .drafters.base import Drafter, propose
from .generate import prepare
from .params import SamplingParams
from .recurrent import DEEPEST, NO_TREES
from .require import require, whole
from .sampling import emitting_positions, pad
from .trace import Clock, Cycle
from .tree import mask_and_offsets
from .verify import check_rule, judge

if TYPE_CHECKING:
    from .load.model import Model
    from .model import Pass
    from .output import Output
    from .sequence import Sequence


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
    the same tokens when greedy or coupled.

    `k` is the draft length, or "auto" to choose it from measured acceptance and times (the clock then decides how many
    random numbers are used, so a seed repeats a sampled run only if it is coupled). `rule`: sampled drafts are accepted
    "token" by token; chains also as a "block"; or "coupled", if they are what `generate` with that rule and seed emits.
    All are lossless. `on_cycle` is shown each Cycle as it ends. The other arguments are those of `generate`.
    `out.trace` tells what happened.
    """
    check_rule(rule)
    params = SamplingParams.of(params, max_new_tokens=max_new_tokens, **options)
    sequences, batched = prepare(model, prompt, params, stream, rule=rule)
    check_drafter(model, drafter)
    most = deepest(model)
    require(k == "auto" or whole(k, 1, most), f'a draft length from 1 to {most}, or "auto"', k=k)
    check_rule(rule, drafter)
    start = time.perf_counter()
    draft_and_verify(model, sequences, drafter, k, params, on_cycle, rule)
    seconds = time.perf_counter() - start
    outputs = [sequence.result(seconds) for sequence in sequences]
    return outputs if batched else outputs[0]


@torch.inference_mode()
def draft_and_verify(
    model: Model, sequences: list[Sequence], drafter: Drafter, k: int | str, params, on_cycle=None, rule: str = "token"
) -> None:
    """Cycle until every sequence has ended: captured where the model's device can do that for this drafter and rule."""
    captured = model.backend and model.backend.speculator(sequences, drafter, k, params, rule)
    if model.backend and captured is None:
        for sequence in sequences:
            sequence.opening = True  # its first cycle, too, begins with a draft
        model.backend.serve(sequences, drafter, k, rule, on_cycle)
        return
    with closing(captured or Loop(model, sequences, drafter, k, params, rule)) as loop:
        while loop.sequences:
            for sequence, news in zip(loop.sequences, loop.step(), strict=True):
                for cycle, logits in news:
                    if not sequence.ended:  # a captured loop may run past the end: such cycles do not count
                        cycle.kept = sequence.emit(cycle.tokens, logits)
                        sequence.trace.cycles.append(cycle)
                        if on_cycle:
                            on_cycle(cycle)
                sequence.writer.flush()
            loop.finish()


class Loop:
    """The cycle on any device, one verb after the other."""

    def __init__(self, model: Model, sequences: list[Sequence], drafter: Drafter, k: int | str, params, rule="token"):
        self.model, self.sequences, self.drafter, self.k, self.rule = model, list(sequences), drafter, k, rule
        self.controller = Controller(range(1, LONGEST + 1)) if k == "auto" else None
        nodes = drafter.max_tree_nodes(LONGEST if self.controller else k)
        self.prefill(params.max_new_tokens + nodes + drafter.scratch_slots)  # a pass holds more than it keeps

    def step(self) -> list[list[tuple[Cycle, Tensor | None]]]:
        """One cycle for every sequence (a captured loop may return several), with the logits that its tokens were
        emitted from, if these are wanted."""
        sequences, drafter = self.sequences, self.drafter
        size = self.controller.choose([sequence.id for sequence in sequences]) if self.controller else self.k
        depths = [min(size, sequence.room) for sequence in sequences]
        for sequence, depth in zip(sequences, depths, strict=True):
            sequence.max_nodes = drafter.max_tree_nodes(depth) if depth else 0
        clock = Clock("draft", "verify", "sample", device=self.model.device)
        self.drafts = propose(drafter, sequences, max(depths), self.model.config.vocab_size, depths)
        clock.lap("draft")
        self.logits, hidden = self.forward()
        drafter.while_verifying(sequences, self.drafts)  # launched is not finished: on a GPU that pass still runs
        clock.lap("verify")
        raw = self.logits.clone() if sequences[0].wants_logprobs else None  # before any token is forbidden
        self.cycles = self.judge()
        self.keep()
        clock.rest("sample")
        for cycle in self.cycles:
            cycle.took(**clock.seconds)
        if self.controller:
            self.learn(size, depths)
        verified = [emitting_positions(cycle.path) for cycle in self.cycles]  # the last token and the accepted drafts
        for i, sequence in enumerate(sequences):
            sequence.remember({n: states[i, verified[i]] for n, states in hidden.items()})
        return [[(cycle, None if raw is None else raw[i, verified[i]])] for i, cycle in enumerate(self.cycles)]

    def prefill(self, room: int) -> None:
        """Process every prompt but its last token, which opens the first verify pass."""
        prompts, drafter = [sequence.tokens[:-1] for sequence in self.sequences], self.drafter
        transformer = self.model.transformer
        self.cache = transformer.new_cache(len(prompts), max(map(len, prompts)) + 1 + room)
        if any(prompts):
            tokens, counts = pad(prompts, self.model.device)
            _, hidden = transformer.body(tokens, self.cache, counts=counts, hidden_layers=drafter.hidden_layers)
            for i, (sequence, prompt) in enumerate(zip(self.sequences, prompts, strict=True)):
                sequence.remember({n: states[i, : len(prompt)] for n, states in hidden.items()})

    def forward(self) -> Pass:
        """The target's one pass: [last token, drafts …, scratch …, padding …] of each sequence, node i in slot i+1."""
        device, drafts = self.model.device, self.drafts
        last = [sequence.tokens[-1] for sequence in self.sequences]
        tokens, _ = pad([[token, *draft.inputs] for token, draft in zip(last, drafts, strict=True)], device)  # [B, T]
        self.counts = torch.tensor([1 + len(draft.tokens) for draft in drafts], device=device)  # what may be kept
        options = dict(counts=self.counts, hidden_layers=self.drafter.hidden_layers)
        if any(draft.branches for draft in drafts):
            views = [mask_and_offsets(draft, tokens.shape[1]) for draft in drafts]
            mask, offsets = (torch.stack(part).to(device) for part in zip(*views, strict=True))
            options |= dict(mask=mask, positions=self.cache.lengths[:, None] + offsets)
        return self.model.transformer(tokens, self.cache, **options)

    def judge(self) -> list[Cycle]:
        return judge(self.logits, self.sequences, self.drafts, self.drafter.lossless, rule=self.rule)

    def keep(self) -> None:
        """Rewind to the last token and the accepted drafts; those of a tree are moved together first."""
        kept = torch.tensor([1 + cycle.accepted for cycle in self.cycles], device=self.model.device)
        start = self.cache.lengths - self.counts
        if any(draft.parents is not None for draft in self.drafts):
            longest = max(cycle.accepted for cycle in self.cycles)
            # The last token stays where it is, node i is in the i-th slot after it. Short paths are padded.
            path = [[*cycle.path, *range(cycle.accepted, longest)] for cycle in self.cycles]
            if path != [[*range(longest)]] * len(path):  # else they are where they belong
                self.cache.gather(torch.tensor(path, dtype=torch.long, device=start.device), start + 1)
        self.cache.rewind(start + kept)

    def learn(self, size: int, depths: list[int]) -> None:
        """Tell the controller what its choice came to."""
        for depth, cycle in zip(depths, self.cycles, strict=True):
            if size == depth:
                self.controller.learn(size, cycle.accepted)
        seconds = cycle.draft_seconds + cycle.verify_seconds + cycle.sample_seconds
        self.controller.time(range(len(depths)), depths, seconds)

    def finish(self) -> None:
        """Tell the drafter how its drafts ended; sequences that have ended leave the batch."""
        going = [i for i, sequence in enumerate(self.sequences) if not sequence.ended]
        for i in going:
            draft, cycle, end = self.drafts[i], self.cycles[i], 1 + len(self.drafts[i].tokens)
            scratch = self.logits[i, end : end + len(draft.scratch.tokens)] if draft.scratch else None
            self.drafter.settle(self.sequences[i].id, cycle.path, cycle.token, scratch)
        for sequence in self.sequences:
            if sequence.ended:
                self.drafter.forget(sequence.id)
        if 0 < len(going) < len(self.sequences):
            self.leave(going)
        self.sequences = [self.sequences[i] for i in going]

    def leave(self, going: list[int]) -> None:
        self.cache = self.cache.rows(going)

    def close(self) -> None:
        for sequence in self.sequences:  # none, unless something went wrong
            self.drafter.forget(sequence.id)


def deepest(model: Model) -> int:
    """How long a draft may be: a recurrent layer keeps so many states to come back to."""
    return min(model.config.max_length - 1, DEEPEST if model.config.delta else model.config.max_length)


def check_drafter(model: Model, drafter: Drafter) -> None:
    if not isinstance(drafter, Drafter):
        raise ValueError(f"drafter={drafter!r} is no Drafter: give one of ms.drafters, e.g. ms.drafters.Model(draft)")
    if model.config.delta and (drafter.tree or drafter.scratch_slots):
        raise ValueError(NO_TREES)
    drafter.fit(model)
