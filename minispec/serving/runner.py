"""What one step of an engine computes: drafts, a forward pass of the target over everything, and the verdicts.

A request without a draft is plain decoding: an empty draft, which is accepted, and a bonus token. So there is one path
for all, and speculation can be off for one request (k=0), for all (no drafter), or while the batch is full.

On a GPU the requests that process no prompt, which is most of them in most steps, have a pass of fixed shape to
themselves, captured and started by one launch (gpu/buckets.py). That saves far more than it costs to read the weights
once more for the others.

The host synchronises with the device once per step, for the next tokens. As long as the same requests go on decoding,
the next pass need not wait for that: the tokens are on the device already, so the pass after this one is launched
before the sync, and its own sync is in the next step. Drafts that the device makes stay there, too: the pass over them
is launched right after, and for greedy requests the whole next cycle after it (gpu/engine_heads.py).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..drafters.base import Context, Drafter
from ..generate import Output
from ..load.handle import Model
from ..sampling import NOT_FINITE, Sampling, best_tokens, emitting_positions, pick, uniforms
from ..speculate import Completion, check_shapes, propose
from ..trace import Cycle
from ..tree import Draft, only, view
from ..verify import greedy_draft, judge
from .blocks import BlockPool
from .metrics import PARTS, Clock
from .paged import PagedKVCache, split
from .scheduler import RUNNING, Request, Result, ScheduledRequest

HIDDEN_WINDOW = 512  # while the batch is too full to draft, the hidden states of so many tokens wait (or the prompt's)
NO_DRAFT = Draft([])


@dataclass(eq=False, kw_only=True)
class Job(Completion):
    """One request: what the scheduler (request), the drafter (context) and the caller (writer) know of it."""

    request: Request
    added: float = 0.0  # moments, in seconds
    first_token: float | None = None
    last_token: float | None = None
    output: Output | None = None  # once it has ended

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


# ---- launched before its step has come --------------------------------------------------------------------------


@dataclass(eq=False)
class Ahead:
    """A pass that was launched before its step has come."""

    requests: list[Request]
    starts: list[int]
    results: Results

    def serves(self, turns: Sequence[Turn]) -> bool:
        """Whether these turns are what it was launched for."""
        plans = [turn.plan for turn in turns]
        return [p.request for p in plans] == self.requests and [p.start for p in plans] == self.starts


@dataclass(eq=False)
class NextCycle:
    """A draft and the pass over it, launched before its step has come, for `rows` of the pass before."""

    cycles: object  # gpu/engine_heads.Cycles
    launch: object  # of the drafter
    rows: list[Turn | None]  # their turns in the cycle before; None: ended before that
    results: Results
    width: int  # tokens of a row
    drafted: set[Request]  # those that were drafted for in the cycle before, and are now
    starts: dict[Request, int] = field(default_factory=dict)  # where each goes on, once the host knows that

    def learn(self) -> None:
        """The host has judged the cycle before."""
        for turn in self.rows:
            if turn and turn.runs and (turn.cycle or turn.tokens):
                self.starts[turn.plan.request] = turn.plan.start + 1 + (turn.cycle.accepted if turn.cycle else 0)

    def serves(self, turns: Sequence[Turn], pool: BlockPool) -> bool:
        """Whether these turns, in this order, are what it was launched for, or what is left of that."""
        if not turns or not self.cycles.stands(len(turns)):
            return False
        rows = {turn.plan.request: (row, turn) for row, turn in enumerate(self.rows) if turn}
        for turn in turns:
            plan, request = turn.plan, turn.plan.request
            row, before = rows.get(request, (None, None))
            if before is None or plan.start != self.starts.get(request):
                return False
            if (plan.draft_length, plan.max_nodes) != self.draft_of(before):
                return False
            blocks = pool.tables[request.id].blocks
            if blocks != self.cycles.buckets.tables[row][: len(blocks)]:
                return False
            turn.row, turn.share = row, before.share
        return True

    def draft_of(self, turn: Turn) -> tuple[int, int]:
        """How deep a draft the device has made after this turn, and of how many nodes at the most."""
        request = turn.plan.request
        depth = min(request.k, request.room, len(self.cycles.most_nodes) - 1)
        if depth < 1 or request not in self.drafted or turn.job.context.id not in self.cycles.many.held:
            return 0, 0
        nodes = min(self.cycles.most_nodes[depth], turn.share)
        return min(depth, nodes), nodes

    def drop(self, window: int | None) -> None:
        """It does not count. The states that the drafter has not been given for good wait for its next draft."""
        for row, turn in enumerate(self.rows):
            start = turn and self.starts.get(turn.plan.request)
            if start and turn.runs and turn.plan.request.k and turn.plan.request.num_computed_tokens == start:
                states = self.cycles.states(row, start - turn.plan.start)
                turn.job.remember(states, window or max(turn.job.prompt_tokens, HIDDEN_WINDOW))


class Runner:
    """Target, drafter and the memory of both. `fast` passes (None: on a GPU) have fixed shapes, and are captured."""

    def __init__(
        self,
        target: Model,
        drafter: Drafter | None,
        pool: BlockPool,
        max_num_seqs: int,
        most_nodes: int,
        fast: bool | None,
        rule: str = "token",
    ):
        self.target, self.drafter, self.pool, self.clock, self.rule = target, drafter, pool, Clock(), rule
        self.hidden_layers = tuple(drafter.hidden_layers) if drafter else ()
        fast = (target.device.type == "cuda" and target.transformer.ordinary) if fast is None else fast
        if fast:
            most = most_nodes + drafter.scratch_slots if drafter else 0  # tokens beside the certain one
            sizes = pool.num_blocks, pool.block_size, max_num_seqs, most, self.hidden_layers
            self.cache, self.buckets = target.recorder().serve(*sizes)
        else:
            memory = dict(block_size=pool.block_size, device=target.device, dtype=target.dtype)
            self.cache, self.buckets = PagedKVCache(target.config, pool.num_blocks, **memory), None
        if drafter and self.buckets:
            drafter.record()
        self.pending = None  # drafts of this step that are on the device (gpu/engine_heads.py) …
        self.drafting: list[Turn] = []  # … and whose they are
        self.latest: Results | None = None  # of this step, in the memory that passes of fixed shape share
        self.ahead: Ahead | None = None  # a pass under way for the next step …
        self.next_cycle: NextCycle | None = None  # … or a whole cycle
        self.adopted: NextCycle | None = None  # what was launched for this step, and serves it
        self.runs_ahead, self.cycles = drafter is None, None  # whether there may be any; of cycles
        self.launched = self.dropped = 0  # cycles
        if self.buckets and drafter and drafter.lossless and hasattr(drafter.recorded, "ahead"):
            self.runs_ahead, self.cycles = True, drafter.recorded.ahead(self.buckets)

    def begin(self) -> Clock:
        """A step begins; its clock."""
        self.clock, self.latest, self.pending = Clock(), None, None
        return self.clock

    # ---- drafts ----------------------------------------------------------------------------------------------------

    def draft(self, turns: Sequence[Turn]) -> None:
        """One call of the drafter for all; each draft is cut to the depth and to the nodes that its slots allow."""
        for turn in turns:
            turn.job.context.max_nodes = turn.plan.max_nodes
        try:
            if self.buckets and hasattr(self.drafter.recorded, "begin"):
                self._begin_drafts(turns)
            else:
                self._propose(turns)
        except BaseException:
            for turn in turns:  # how far it came is unknown, so it starts afresh: that costs time and biases nothing
                self.restart(turn.job)
            raise
        for turn in turns:
            turn.asked = True
            turn.job.forget_states()  # the drafter has them now

    def _propose(self, turns: Sequence[Turn]) -> None:
        depths = [turn.plan.draft_length for turn in turns]
        drafts = propose(self.drafter, [turn.job for turn in turns], max(depths), depths)
        check_shapes(drafts, self.target.config.vocab_size)
        most, slots = max(len(d.scratch.tokens) if d.scratch else 0 for d in drafts), self.drafter.scratch_slots
        if most > slots:
            raise ValueError(f"{self.drafter!r} made a draft with {most} scratch tokens: scratch_slots={slots}")
        for turn, draft in zip(turns, drafts, strict=True):
            turn.drafted(prune(draft, turn.plan.max_nodes))

    def _begin_drafts(self, turns: Sequence[Turn]) -> None:
        """Drafts that the device makes and keeps: the pass takes them from there, and the host learns of them later."""
        self._learn_drafts()  # after a fault each request is asked for alone: their drafts share one memory
        contexts, many = [turn.job.reveal() for turn in turns], self.drafter.recorded
        ready = [turn for turn, context in zip(turns, contexts, strict=True) if many.ready(context)]
        if ready:
            depths = [turn.plan.draft_length for turn in ready]
            self.pending = many.begin([turn.job.context for turn in ready], max(depths), depths)
            self.drafting = ready

    def _learn_drafts(self) -> None:
        """What the device has drafted, as the host's own."""
        if self.pending is not None:
            for turn, draft in zip(self.drafting, self.pending.drafts(), strict=True):
                turn.drafted(prune(draft, turn.plan.max_nodes))
            self.pending = None

    def restart(self, job: Job) -> None:
        """The drafter starts this request afresh; it has not ended, so nothing is to be learnt from it yet."""
        if self.drafter:
            self.drafter.rewind(job.context.id, 0)

    # ---- the forward pass ------------------------------------------------------------------------------------------

    def forward(self, turns: Sequence[Turn]) -> None:
        """One pass over everything; or two, where there are fixed shapes for the requests that decode. Nothing is
        waited for, and a pass that was launched ahead is not launched again."""
        decoding = [turn for turn in turns if turn.decodes] if self.buckets else []
        if decoding and self._fixed_pass(decoding):
            turns = [turn for turn in turns if not turn.decodes]
        if turns:
            self._ragged_pass(turns)

    def _fixed_pass(self, turns: Sequence[Turn]) -> bool:
        """A pass of fixed shape for requests that decode; False: there is none for so many tokens."""
        if self.latest:  # after a fault each runs alone, one after the other, before any of them is looked at
            self.latest.move()
        ahead, cycle, self.ahead, self.adopted = self.ahead, self.adopted, None, None
        if cycle:
            self._ran_in_bucket(turns, [1] * len(turns), cycle.results, cycle.width, [turn.row for turn in turns])
        elif ahead and ahead.serves(turns):
            self._ran_in_bucket(turns, [1] * len(turns), ahead.results, 1)
        elif self._on_device(turns):
            self._drafted_pass(turns)
        else:
            self._learn_drafts()
            rows = [turn.inputs() for turn in turns]
            if not self.buckets.takes(rows):
                return False
            self._bucket_pass(turns, rows)
        return True

    def _ragged_pass(self, turns: Sequence[Turn]) -> None:
        """[certain tokens …, drafts …, scratch …] of every request, end to end; logits only where they are needed."""
        transformer, device = self.target.transformer, self.target.device
        rows = [turn.inputs() for turn in turns]
        starts, counts = [turn.plan.start for turn in turns], [len(row) for row in rows]
        # What follows a prompt's tokens is known already; a chunk that does not reach the end needs no logits.
        needed = [n - turn.plan.count + 1 if turn.plan.emits else 0 for turn, n in zip(turns, counts, strict=True)]
        tables, drafts = self._tables(turns), [turn.draft for turn in turns]
        if self.buckets:
            self.clock.lap("scheduling")
            if (result := self.buckets.prompts.read(rows, starts, tables, needed, drafts)) is not None:
                ran(turns, counts, Results(*result), needed, counts)  # the same in a fixed shape, if there is one
                return
        masks, positions = None, None
        if any(turn.branches for turn in turns):  # a drafting request has one certain token, as in any verify pass
            each = zip(turns, counts, strict=True)
            views = [view(turn.draft, n) if turn.branches else (None, torch.arange(n)) for turn, n in each]
            masks = [mask for mask, _ in views]
            offsets = [start + offset for start, (_, offset) in zip(starts, views, strict=True)]
            positions = torch.cat(offsets)[None].to(device)  # [1, N]
        paged = self.cache.open(tables, starts, counts, masks)
        tokens = torch.tensor([[token for row in rows for token in row]], device=device)  # [1, N]
        self.clock.lap("scheduling")  # where everybody's blocks are is bookkeeping too
        x, hidden = transformer.body(tokens, paged, positions=positions, hidden_layers=self.hidden_layers)
        if sum(needed) < x.shape[1]:
            parts = zip(split(x, counts), counts, needed, strict=True)
            x = torch.cat([states[count - n :] for states, count, n in parts])[None]
        logits = transformer.head(x)[0]  # [Σ needed, V]
        results = Results(logits, None, {n: states[0] for n, states in hidden.items()})
        ran(turns, counts, results, needed, counts)

    def _bucket_pass(self, turns: Sequence[Turn], rows: list[list[int]]) -> None:
        """A pass in a fixed shape, for requests that decode."""
        tables = self._tables(turns)
        self.clock.lap("scheduling")
        drafts = [turn.draft for turn in turns] if any(turn.branches for turn in turns) else None
        logits, best, hidden = self.buckets.read(rows, [turn.plan.start for turn in turns], tables, drafts)
        self._ran_in_bucket(turns, list(map(len, rows)), flat(logits, best, hidden), logits.shape[1])

    def _on_device(self, turns: Sequence[Turn]) -> bool:
        """Whether the drafts of these turns are on the device, if they have any, and fit a pass."""
        fits = self.pending is not None and self.pending.nodes <= self.buckets.k and len(turns) <= self.buckets.rows
        return fits and not any(turn.draft.tokens for turn in turns)

    def _drafted_pass(self, turns: Sequence[Turn]) -> None:
        """The same over drafts that are on the device."""
        tables, pending = self._tables(turns), self.pending
        row_of = dict(zip(self.drafting, pending.rows, strict=True))
        self.clock.lap("scheduling")
        last, starts = [turn.job.context.tokens[-1] for turn in turns], [turn.plan.start for turn in turns]
        drafted, where = [row_of.get(turn) for turn in turns], (pending.memory, pending.nodes, pending.depth)
        limits = [(turn.plan.request.k, turn.plan.request.room, turn.plan.share) for turn in turns]
        for turn in turns:
            turn.share = turn.plan.share
        results = self.buckets.read_drafted(last, starts, tables, drafted, *where, limits)
        self._ran_in_bucket(turns, [1] * len(turns), flat(*results), 1 + pending.nodes)

    def _ran_in_bucket(self, turns: Sequence[Turn], counts: Sequence[int], results: Results, T: int, rows=None) -> None:
        for turn, count, row in zip(turns, counts, rows or range(len(turns)), strict=True):
            turn.row = row
            turn.ran(count, results, row * T, row * T)
        self.latest = results

    # ---- what it says ----------------------------------------------------------------------------------------------

    def synchronise(self, turns: Sequence[Turn]) -> None:
        """Wait for the next tokens of all requests that need no more than these: the greedy ones, drafts or not, and
        those that sample without a draft. It is the one host sync of a step without sampled drafts."""
        self._learn_drafts()
        for results in passes(turns):
            if results.wait is None:
                self._sample(results, [turn for turn in turns if turn.results is results])
            if results.tokens is None:
                results.tokens = results.wait() if results.wait else results.best.tolist()

    def _sample(self, results: Results, turns: Sequence[Turn]) -> None:
        """On the device: the next token of each request that samples and has no draft, in the place of its best one."""
        if results.best is None:
            results.best = best_tokens(results.logits)
        plain = [turn for turn in turns if not (turn.job.context.sampling.greedy or turn.draft.tokens or turn.held)]
        plain = [turn for turn in plain if not turn.sampled]
        if plain:
            contexts, at = [turn.job.context for turn in plain], chosen([turn.at for turn in plain], results.best)
            u = uniforms([context.generator for context in contexts], 1).to(results.best.device, non_blocking=True)
            results.best[at] = sample(results.logits[at], [context.sampling for context in contexts], u[:, 0])
            for turn in plain:
                turn.sampled = True

    def judge(self, turns: Sequence[Turn]) -> None:
        """Which tokens each request emits: at once where the best (or sampled) tokens say so, else by the verifier."""
        lossless, others = self.drafter is None or self.drafter.lossless, []
        for turn in turns:
            context, draft = turn.job.context, turn.draft
            if turn.held or not (turn.sampled or context.sampling.greedy) or draft.probs is not None:
                others.append(turn)
                continue
            best = turn.results.tokens[turn.at : turn.at + len(draft.tokens) + 1]
            if -1 in best:
                raise ValueError(NOT_FINITE)
            if turn.job.request.k:
                verdict, p = greedy_draft(best, draft)
                turn.cycle = Cycle.of(draft, verdict, p, None, len(context.tokens), lossless)
            else:
                turn.tokens = best
        for results in passes(others):
            some = [turn for turn in others if turn.results is results]
            contexts, drafts = [turn.job.context for turn in some], [turn.draft for turn in some]
            verdicts, p, q = judge(side_by_side(some), contexts, drafts, lossless, rule=self.rule)
            for i, turn in enumerate(some):
                turn.cycle = Cycle.of(turn.draft, verdicts[i], p[i], q and q[i], len(contexts[i].tokens), lossless)

    def keep(self, turns: Sequence[Turn]) -> None:
        """The accepted path of a tree moves together, to the slots right after the certain token; and the drafter is to
        get its hidden states. Where the next cycle is under way, the device has seen to both."""
        if self.next_cycle:
            self.next_cycle.learn()
            return
        trees = [turn for turn in turns if turn.runs and turn.draft.parents is not None and turn.cycle.path]
        if trees:
            starts, paths = [turn.plan.start + turn.plan.count for turn in trees], [turn.cycle.path for turn in trees]
            (self.buckets.move if self.buckets else self.cache.gather)(self._tables(trees), starts, paths)
        for results in passes(turns) if self.hidden_layers else ():  # by one index for each layer
            some = [turn for turn in turns if turn.results is results and turn.runs and turn.job.request.k]
            if some:
                hand_out(results.hidden, some)

    def settle_all(self, turns: Sequence[Turn], fail: Callable[[Job, Exception], None]) -> None:
        """Each for itself: a callback may raise, or abort others."""
        for turn in turns:
            if turn.runs:
                try:
                    self.settle(turn)
                except Exception as error:
                    fail(turn.job, error)

    def settle(self, turn: Turn) -> None:
        """Hand out what the pass gave one request: to the caller, to the scheduler, and to the drafter."""
        job, cycle = turn.job, turn.cycle
        if turn.states:
            newest = self.drafter.hidden_window or max(job.prompt_tokens, HIDDEN_WINDOW)
            job.remember(turn.states, newest)
        if not turn.plan.emits:  # a chunk that does not reach the prompt's end
            turn.result = Result()
            return
        turn.note_logprobs()
        if cycle is None:
            job.context.tokens += turn.tokens
            job.writer.write(*turn.tokens)
        else:
            parts = self.clock.seconds
            cycle.draft_seconds, cycle.verify_seconds, cycle.sample_seconds = (parts[part] for part in PARTS[1:])
            before = len(job.context.tokens)
            job.write(cycle)
            turn.tokens = job.context.tokens[before:]
        job.last_token = time.perf_counter()
        job.first_token = job.first_token or job.last_token
        turn.result = Result(turn.tokens, cycle.accepted if cycle else 0, job.writer.finish_reason)
        if turn.asked and not job.ended:
            scratch = turn.draft.scratch and turn.logits[-len(turn.draft.scratch.tokens) :]
            self.drafter.settle(job.context.id, cycle.path, cycle.token, scratch)

    def _tables(self, turns: Sequence[Turn]) -> list[list[int]]:
        return [self.pool.tables[turn.plan.request.id].blocks for turn in turns]

    # ---- work for the next step ----------------------------------------------------------------------------------

    def release(self) -> None:
        """Give the memory back, and whatever knows of it."""
        self.cache = self.buckets = self.cycles = self.ahead = self.next_cycle = self.latest = None

    def may_run_ahead(self, turns: Sequence[Turn]) -> bool:
        """Whether the next tokens of all turns will be on the device without a host sync: they come from one pass in a
        fixed shape, no token is forbidden, and what was drafted is on the device and accepted greedily. Who wants
        log-probabilities needs the logits, which the next pass would overwrite."""
        if self.latest is None or not self.runs_ahead or (self.cycles and not (self.pending and self.cycles.fits())):
            return False
        if not all(turn.results is self.latest and turn.runs and not turn.held for turn in turns):
            return False
        return not any(turn.wants_logprobs for turn in turns) and (self.cycles is None or self._goes_on(turns))

    def _goes_on(self, turns: Sequence[Turn]) -> bool:
        """Whether the device can draft for all of them as the host would: each is drafted for now, or never will be."""
        drafts, plans = {turn.plan for turn in self.drafting}, [turn.plan for turn in turns]
        return all(turn.job.context.sampling.greedy for turn in turns) and all(
            plan in drafts or not plan.request.k or plan.request.room < 1 for plan in plans
        )

    def run_ahead(self, turns: Sequence[Turn]) -> None:
        """Launch what comes after this pass, before the host has seen this one's tokens."""
        try:
            self._sample(self.latest, turns)
            self.latest.wait = self.buckets.fetch()  # the next pass will overwrite what is on its way to the host
            if self.cycles:
                self._next_cycle(turns)
                return
            results = flat(*self.buckets.again(self._tables(turns)))
        except Exception as error:  # it will be done again, for each alone or in the next step: then the error counts
            self.runs_ahead = False  # whatever it was, it is not to be met in every step
            warnings.warn(f"nothing is launched ahead any more, so steps take longer: {error!r}", stacklevel=2)
            return
        plans = [turn.plan for turn in turns]
        self.ahead = Ahead([p.request for p in plans], [p.start + 1 for p in plans], results)

    def _next_cycle(self, turns: Sequence[Turn]) -> None:
        rows: list[Turn | None] = [None] * (1 + max(turn.row for turn in turns))
        for turn in turns:
            rows[turn.row] = turn
        blocks = self.pool.tables
        tables = [blocks[turn.plan.request.id].blocks if turn else [] for turn in rows]
        launch, drafted = self.pending.launch, {turn.plan.request for turn in self.drafting}
        results = Results(*self.cycles.launch(launch, tables))
        self.next_cycle = NextCycle(self.cycles, launch, rows, results, 1 + launch.nodes, drafted)
        self.launched += 1

    def adopt(self, turns: Sequence[Turn]) -> None:
        """What was launched for these turns is their draft and their pass; if it was launched for others, drop it."""
        ahead, self.next_cycle, self.adopted = self.next_cycle, None, None
        if ahead is None:
            return
        decoding = [turn for turn in turns if turn.decodes]
        if not ahead.serves(decoding, self.pool):
            ahead.drop(self.drafter.hidden_window)
            self.dropped += 1
            return
        self.adopted, self.drafting = ahead, [turn for turn in decoding if turn.plan.draft_length]
        for turn in self.drafting:
            turn.asked = True
        self.pending = self.cycles.many.adopt([turn.job.context for turn in self.drafting], ahead.launch)
