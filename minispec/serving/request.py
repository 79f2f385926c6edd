"""A request as the scheduler knows it, its part in one step, and what comes of it. Plain data."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

WAITING, RUNNING, PREEMPTED, FINISHED = "waiting", "running", "preempted", "finished"


@dataclass(eq=False)
class Request:
    """One sequence to be generated, and how far it is."""

    id: Hashable  # a number or a string, if records of it are to become JSON
    prompt: Sequence[int]
    max_new_tokens: int
    priority: int = 0  # smaller goes first; equals go in the order of arrival
    k: int | None = None  # how deep its drafts may be; None: what the scheduler says, 0: no drafts
    arrival: int = 0  # set by the scheduler
    status: str = WAITING
    finish: str | None = None  # "length", "stop", "abort", or what `finish` was told
    preemptions: int = 0
    num_computed_tokens: int = 0  # their keys and values are verified and in the pool
    draft_tokens: list[int] = field(default_factory=list)  # of this pass: the engine fills it, `update` empties it
    block_hashes: list[bytes] = field(default_factory=list)  # computed once, however long it waits for blocks

    def __post_init__(self):
        self.tokens = list(self.prompt)  # prompt and output

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_tokens_with_spec(self) -> int:
        return self.num_tokens + len(self.draft_tokens)

    @property
    def behind(self) -> int:
        """Tokens to be processed before the next one is known, drafts included."""
        return self.num_tokens_with_spec - self.num_computed_tokens

    @property
    def room(self) -> int:
        """A pass emits at most one token more than it drafts, so deeper drafts than this could not be used."""
        return len(self.prompt) + self.max_new_tokens - len(self.tokens) - 1


@dataclass(eq=False)
class ScheduledRequest:
    """One request's part of a step."""

    request: Request
    start: int  # the first position it processes
    count: int  # certain tokens: of the prompt, or the last one emitted
    prefill: bool  # more than one token to process, or just admitted
    draft_length: int = 0  # how deep its draft may be
    max_nodes: int = 0  # how many tokens its draft may have, side branches of a tree included
    share: int = 0  # the most that it could have been, if drafts of this depth had as many
    contested: int = 0  # draft tokens of the step, if those of all requests compete for them (budget.py)
    num_lookahead_tokens: int = 0  # slots after the certain tokens, for draft nodes and scratch tokens

    def __post_init__(self):
        # Whether the pass reaches the sequence's last token, and so yields the distribution of the next.
        self.emits = self.start + self.count == len(self.request.tokens)

    @property
    def tokens(self) -> list[int]:
        """What the pass processes, into slots start, start + 1, …"""
        return self.request.tokens[self.start : self.start + self.count] + self.request.draft_tokens


@dataclass(eq=False)
class Step:
    """What `schedule` planned."""

    number: int
    budget: int  # tokens that are left to be scheduled
    scheduled: list[ScheduledRequest] = field(default_factory=list)
    admitted: list[Hashable] = field(default_factory=list)
    preempted: list[Hashable] = field(default_factory=list)
    ahead: bool = False  # slots are reserved for the cycle after this one, too

    def add(self, request: Request, count: int, prefill: bool) -> None:
        self.scheduled.append(ScheduledRequest(request, request.num_computed_tokens, count, prefill))
        self.budget -= count


@dataclass
class Result:
    """What a pass gave one request."""

    tokens: Sequence[int] = ()  # the accepted drafts and the emitted token, up to the one that ends the output
    accepted: int = 0  # drafts that were accepted
    finish: str | None = None  # why the output ends here, e.g. "stop"; the scheduler itself counts max_new_tokens
