"""One request in an engine, its part in one step, and what a forward pass gave it. Data, and how to read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..drafters.base import Context
from ..generate import Output, prepare
from ..load.handle import Model
from ..sampling import Sampling, SamplingParams, emitting_positions, pick
from ..speculate import Completion
from ..trace import Cycle
from ..tree import Draft, only
from .scheduler import RUNNING, Request, Result, ScheduledRequest

NO_DRAFT = Draft([])


@dataclass(eq=False, kw_only=True)
class Job(Completion):
    """One request: what the scheduler (request), the drafter (context) and the caller (writer) know of it."""

    request: Request
    added: float = 0.0  # moments, in seconds
    first_token: float | None = None
    last_token: float | None = None
    output: Output | None = None  # once it has ended

    @classmethod
    def of(cls, target: Model, prompt, params: SamplingParams, k: int, priority: int = 0, index: int = 0, stream=None):
        """A request that is checked, but has no id yet."""
        prompts, batched = prepare(target, prompt, params)
        if batched:
            raise ValueError(f"prompt holds {len(prompts)} prompts: give them to `generate`, or add them one by one")
        if not isinstance(priority, int):
            raise ValueError(f"priority={priority!r}: give a whole number; smaller goes first")
        request = Request(None, prompts[0], params.max_new_tokens, priority, k)
        return cls(**vars(Completion.begin(target, prompts[0], params, index, stream)), request=request)

    def reveal(self) -> Context:
        """As in speculate.py, but the states stay until the drafter has answered: a call that fails is repeated."""
        unseen, context = self.unseen, self.context
        if len(unseen) == 1:  # those of the last pass, as nearly always: nothing to put together
            context.hidden = unseen[0]
        else:
            super().reveal()
            self.unseen = unseen
        return context

    def forget_states(self) -> None:
        self.context.hidden, self.unseen = {}, []


@dataclass(eq=False)
class Results:
    """What a forward pass gave several turns, their positions one after the other."""

    logits: Tensor  # [N, V]
    best: Tensor | None  # [N], the best tokens, or sampled ones in their place; −1: NaN or ∞; None: not looked for yet
    hidden: dict[int, Tensor]  # layer → [M, d], also at positions that need no logits
    tokens: list[int] | None = None  # `best`, once the host has looked at it
    wait: Callable[[], list[int]] | None = None  # for `best`, if it is on its way

    def move(self) -> None:
        """Into memory of its own: the next pass in a fixed shape will overwrite it."""
        self.logits, self.best = self.logits.clone(), self.best.clone()
        self.hidden = {n: states.clone() for n, states in self.hidden.items()}


class Turn:
    """A job's part in one step."""

    def __init__(self, plan: ScheduledRequest, job: Job):
        self.plan, self.job = plan, job
        self.draft, self.asked = NO_DRAFT, False  # asked: whether the drafter was
        self.count = 0  # tokens that the pass processed for it, scratch included
        self.results: Results | None = None  # of that pass
        self.row = self.share = 0  # in a pass of fixed shape; the nodes that the device gives its next draft
        self.at = self.states_at = 0  # where its logits (from the last certain token on) and its states begin there
        self.sampled = False  # its next token, in `results.best`
        self.states: dict[int, Tensor] = {}  # layer → those of its verified tokens [n, d]
        self.tokens: list[int] | None = None  # to be emitted
        self.cycle: Cycle | None = None  # what the verifier made of the draft; None: the request never drafts
        self.result: Result | None = None  # for the scheduler; None: something failed on the way

    @property
    def runs(self) -> bool:
        """Its request has neither failed nor been aborted since the step began."""
        return self.plan.request.status == RUNNING

    @property
    def branches(self) -> bool:
        return self.draft.parents is not None or self.draft.scratch is not None

    @property
    def decodes(self) -> bool:
        """It processes its last token and what was drafted after it: no prompt."""
        return self.plan.count == 1 and self.plan.emits

    @property
    def held(self) -> bool:
        """What it emits depends on its prefix, and not on the model's logits alone: the host has to look at them."""
        return self.job.context.processed

    @property
    def logits(self) -> Tensor:
        """[1 + drafts + scratch, V], from the last certain token on."""
        return self.results.logits[self.at : self.at + self.count - self.plan.count + 1]

    @property
    def wants_logprobs(self) -> bool:
        return self.job.writer.logprobs is not None

    def note_logprobs(self) -> None:
        """Of the tokens that it is about to emit, while the pass's logits are there."""
        if self.wants_logprobs:
            path, tokens = (self.cycle.path, self.cycle.tokens) if self.cycle else ([], self.tokens)
            self.job.writer.note(self.logits[emitting_positions(path)], tokens)

    def inputs(self) -> list[int]:
        """The tokens that the pass processes for it."""
        return self.plan.tokens + (self.draft.scratch.tokens if self.draft.scratch else [])

    def drafted(self, draft: Draft) -> None:
        self.draft, self.plan.request.draft_tokens = draft, draft.tokens
        if self.results:  # the pass has taken the draft from the device's memory
            self.count += len(draft.tokens)

    def ran(self, count: int, results: Results, at: int, states_at: int) -> None:
        self.count, self.results, self.at, self.states_at = count, results, at, states_at


# ---- results on the device ----------------------------------------------------------------------------------------


def passes(turns: Sequence[Turn]) -> list[Results]:
    """The passes that these turns were part of."""
    return list(dict.fromkeys(turn.results for turn in turns))


def flat(logits: Tensor, best: Tensor, hidden: dict[int, Tensor]) -> Results:
    """The results of B rows of T tokens, [B, T, …], as those of B·T positions."""
    return Results(logits.flatten(0, 1), best.flatten(), {n: states.flatten(0, 1) for n, states in hidden.items()})


def ran(turns: Sequence[Turn], counts, results: Results, logits: Sequence[int], states: Sequence[int]) -> None:
    """A pass has processed `counts` tokens of each turn. Its logits and hidden states hold so many lines for each, one
    turn after the other."""
    at = states_at = 0
    for turn, count, n, m in zip(turns, counts, logits, states, strict=True):
        turn.ran(count, results, at, states_at)
        at, states_at = at + n, states_at + m


def hand_out(hidden: dict[int, Tensor], turns: Sequence[Turn]) -> None:
    """To each turn the states of its verified tokens: the certain ones and the accepted path."""
    kept = []
    for turn in turns:
        count, path = turn.plan.count, turn.cycle.path if turn.cycle else []
        kept.append([*range(count), *(count + node for node in path)])
    index = [turn.states_at + i for turn, places in zip(turns, kept, strict=True) for i in places]
    counts, some = list(map(len, kept)), next(iter(hidden.values()))
    index = torch.tensor(index).to(some.device, non_blocking=True)
    for n, states in hidden.items():
        for turn, part in zip(turns, states.index_select(0, index).split(counts), strict=True):
            turn.states[n] = part


def chosen(places: list[int], of: Tensor) -> slice | Tensor:
    """An index of these places. A slice is a view; a tensor has to be sent to the device, but not to be waited for."""
    if places == list(range(places[0], places[0] + len(places))):
        return slice(places[0], places[0] + len(places))
    return torch.tensor(places).to(of.device, non_blocking=True)


def sample(logits: Tensor, samplings: Sequence[Sampling], u: Tensor) -> Tensor:
    """A token from each of logits [n, V], by its own Sampling and its random number u [n], without a look at any
    number; −1 where the logits contain NaN or ∞."""
    tokens = torch.empty(len(logits), dtype=torch.long, device=logits.device)
    for sampling in dict.fromkeys(samplings):
        rows = chosen([row for row, other in enumerate(samplings) if other == sampling], logits)
        tokens[rows] = pick(sampling.unchecked_probs(logits[rows]), u[rows])
    return torch.where(logits.amax(-1).isfinite(), tokens, -1)


def side_by_side(turns: Sequence[Turn]) -> Tensor:
    """The logits of turns of one pass at the last certain token and the drafts, [B, n + 1, V]. What follows a shorter
    draft is padding: any logits will do."""
    logits, longest = turns[0].results.logits, 1 + max(len(turn.draft.tokens) for turn in turns)
    first = torch.tensor([turn.at for turn in turns])
    places = (first[:, None] + torch.arange(longest)).clamp(max=len(logits) - 1)
    return logits[places.to(logits.device)]


def prune(draft: Draft, nodes: int) -> Draft:
    """The first `nodes` of a draft. Parents come before children, so what is left is a tree again; and which nodes go
    is known before any token is sampled, so the output keeps the target's distribution."""
    if len(draft.tokens) <= nodes:
        return draft
    return only(draft, [*range(nodes)])
