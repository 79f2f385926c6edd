"""Sequence: a request from its prompt to its output. `generate`, `speculate`, an engine and the drafters share it.

Tokens are stored once. Everything else about them is a length:

    tokens    [ prompt …………………… | output ……………………… ]  and after them, in one verify pass, `draft`
                prompt_length ──┘
              [ num_computed_tokens …………………… )            in an engine: those whose keys and values are in the pool

The last token is not processed yet: it opens the next pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .output import Output, Writer
from .params import SamplingParams
from .sampling import Coins, Sampling
from .trace import Trace
from .tree import Draft

if TYPE_CHECKING:
    from .load.model import Model
    from .processors.prefix import Processors

next_id = itertools.count().__next__  # one for every sequence of this process: drafters may be shared
NO_DRAFT, GREEDY = Draft([]), Sampling()


@dataclass(eq=False)
class Sequence:
    id: Hashable  # no other living sequence of this process has it: a drafter, which engines may share, files under it
    tokens: list[int]  # prompt and everything emitted so far; the last one has not been processed by any model yet
    sampling: Sampling = GREEDY
    coins: Coins | None = None  # its random numbers; None: it needs none
    unseen: list[dict[int, Tensor]] = field(default_factory=list)  # target's states for its next draft, [n, d]
    max_new_tokens: int = 64
    noise: int | None = None  # where its noise begins, under rule="coupled"; None: another rule
    processors: Processors | None = None  # what its sampling does to logits, by the prefix; None: nothing
    writer: Writer | None = None  # its text and what stops it; None: `max_new_tokens` alone does
    prompt_length: int = -1  # as many tokens as it begins with
    max_nodes: int | None = None  # how many nodes its draft may have: an engine cuts off the rest (None: any number)
    draft: Draft = field(default_factory=lambda: NO_DRAFT)  # of the pass that is under way
    finish_reason: str | None = None  # "length" or "stop"; from an engine also "abort" and "error"
    error: Exception | None = None
    trace: Trace = field(default_factory=Trace)
    # In an engine:
    request_id: Hashable = None  # the caller's name for it, and the pool's; None: `id`
    k: int | None = None  # how deep its drafts may be, 0: no drafts (None: a scheduler alone fills in its own)
    opening: bool = False  # as in `speculate`: its prompt's last token opens a cycle, and so does every other token
    status: str = "waiting"  # scheduler.py has the others
    preemptions: int = 0
    num_computed_tokens: int = 0  # their keys and values are verified and in the pool
    seen: int = 0  # of so many the drafter has been shown the target's hidden states, which are there, too
    block_hashes: list[bytes] = field(default_factory=list)  # computed once, however long it waits for blocks
    added_at: float = 0.0  # times, in seconds
    first_token_at: float | None = None
    last_token_at: float | None = None

    def __post_init__(self):
        if self.prompt_length < 0:
            self.prompt_length = len(self.tokens)
        if self.request_id is None:
            self.request_id = self.id
        assert 0 <= self.prompt_length <= len(self.tokens) and self.num_computed_tokens <= len(self.tokens)

    @classmethod
    def of(cls, model: Model, prompt, params: SamplingParams, index: int = 0, stream=None, rule="token", **options):
        """What `params` ask of a model for this prompt, as number `index` of a batch."""
        processors, writer = params.processors(model, prompt), Writer(model, params, len(prompt), stream)
        coins = params.coins(index)
        shared = dict(max_new_tokens=params.max_new_tokens, processors=processors, writer=writer)
        shared |= dict(noise=coins.state if rule == "coupled" else None)
        return cls(next_id(), list(prompt), params.sampling, coins, **shared, **options)

    # ---- lengths ---------------------------------------------------------------------------------------------------

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_tokens_with_spec(self) -> int:
        return len(self.tokens) + len(self.draft.tokens)

    @property
    def behind(self) -> int:
        """Tokens to be processed before the next one is known, drafts included."""
        return self.num_tokens_with_spec - self.num_computed_tokens

    @property
    def room(self) -> int:
        """A cycle emits at most one token more than it drafts, so a deeper draft than this could not be used."""
        return self.prompt_length + self.max_new_tokens - len(self.tokens) - 1

    def allowed_nodes(self, most: int) -> int:
        """`most`, or fewer where the verify pass has less room left."""
        return most if self.max_nodes is None else min(most, self.max_nodes)

    # ---- what its tokens are sampled from --------------------------------------------------------------------------

    @property
    def needs_processing(self) -> bool:
        """Whether what comes next is sampled from other logits than the model's."""
        return self.processors is not None and self.processors.active(len(self.tokens))

    @property
    def has_noise(self) -> bool:
        """Whether its tokens are those that its noise chooses (sampling.coupled)."""
        return self.noise is not None and not self.sampling.greedy

    @property
    def wants_logprobs(self) -> bool:
        return self.writer is not None and self.writer.logprobs is not None

    # ---- what is emitted -------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        return self.finish_reason is not None

    def emit(self, tokens: list[int], logits: Tensor | None = None) -> int:
        """Append tokens, up to the one that ends the output: how many that are. `logits` [n, V] are what they were
        emitted from, where log-probabilities are wanted."""
        if tokens and self.wants_logprobs:
            del self.writer.logprobs[len(self.tokens) - self.prompt_length :]  # of a call that was interrupted
            self.writer.note(logits, tokens)
        longest = self.prompt_length + self.max_new_tokens
        for kept, token in enumerate(tokens, start=1):
            self.tokens.append(token)
            full = len(self.tokens) >= longest
            if self.writer is not None and self.writer.write(self.tokens, full):
                self.finish_reason = "stop"
                return kept
            if full:
                self.finish_reason = "length"
                return kept
        return len(tokens)

    def end(self, reason: str, error: Exception | None = None) -> None:
        """Stop here, because somebody else says so. What is not streamed by now never will be."""
        ended, self.finish_reason, self.error = self.ended, reason, error
        if self.writer is not None:
            self.writer.stream = None
            if not ended:  # else the text is there, cut where it has to be
                self.writer.finish(self.tokens)

    def result(self, seconds: float, trace: bool = True) -> Output:
        writer, tokens = self.writer, self.output
        logprobs = writer.logprobs and writer.logprobs[: len(tokens)]  # those after a cycle's end were not kept
        ended = self.finish_reason, self.trace if trace else None, writer.stop_reason, self.error
        return Output(tokens, writer.text, self.prompt_length, seconds, *ended, logprobs)

    # ---- what a drafter is shown of the target ---------------------------------------------------------------------

    def remember(self, states: dict[int, Tensor]) -> None:
        """Keep the target's hidden states [n, d] until the drafter is asked again. (Memory in blocks keeps them.)"""
        if states:
            self.unseen.append(states)

    def shown(self) -> None:
        """The drafter has seen all that there is."""
        self.unseen, self.seen = [], len(self.tokens) - 1

    @property
    def hidden(self) -> dict[int, Tensor]:
        """Layer → all states that the drafter has not seen [n, d]."""
        if len(self.unseen) > 1:
            self.unseen = [{n: torch.cat([states[n] for states in self.unseen]) for n in self.unseen[0]}]
        return self.unseen[0] if self.unseen else {}
