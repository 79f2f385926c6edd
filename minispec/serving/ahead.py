"""Work for the next step, launched before the host has looked at this one.

    without a drafter    the pass over the next token of each request: it is on the device already (`Ahead`)
    with drafts that     a whole cycle, for greedy requests: the device finds out what was accepted, drafts after it and
    the device makes     runs the pass over these drafts (`NextCycle`; gpu/ahead.py is the device's part)

While that runs, the host looks at this step's tokens, hands them out and plans the next step. If the plan asks for what
was launched, the work is done already. Requests that have ended may be missing from the plan of a cycle. Anything else
drops the launch: it is as if it had not happened.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

from .blocks import BlockPool
from .request import Request
from .turn import Results, Turn, flat

HIDDEN_WINDOW = 512  # while the batch is too full to draft, the hidden states of so many tokens wait (or the prompt's)


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

    cycles: object  # gpu/ahead.py
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
        if depth < 1 or request not in self.drafted or turn.job.context.row not in self.cycles.many.held:
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


class RunsAhead:
    """What a Runner (runner.py) launches for the step to come."""

    def prepare_ahead(self) -> None:
        self.ahead: Ahead | None = None  # a pass under way for the next step
        self.next_cycle: NextCycle | None = None  # or a whole cycle
        self.adopted: NextCycle | None = None  # what was launched for this step, and serves it
        self.runs_ahead, self.cycles = self.drafter is None, None  # whether there may be any; of cycles
        self.launched = self.dropped = 0  # cycles
        if self.buckets and self.drafter and self.drafter.lossless and hasattr(self.drafter.recorded, "ahead"):
            self.runs_ahead, self.cycles = True, self.drafter.recorded.ahead(self.buckets)

    def release(self) -> None:
        """Give the memory back, and whatever knows of it."""
        self.cache = self.buckets = self.cycles = self.ahead = self.next_cycle = self.latest = None

    def may_run_ahead(self, turns: Sequence[Turn]) -> bool:
        """Whether the next tokens of all turns will be on the device without a look at anything: they come from one
        pass in a fixed shape, no token is forbidden, and what was drafted is on the device and accepted greedily."""
        if self.latest is None or not self.runs_ahead or (self.cycles and not (self.pending and self.cycles.fits())):
            return False
        if not all(turn.results is self.latest and turn.runs and not turn.held for turn in turns):
            return False
        return self.cycles is None or self._goes_on(turns)

    def _goes_on(self, turns: Sequence[Turn]) -> bool:
        """Whether the device can draft for all of them as the host would: each is drafted for now, or never will be."""
        drafts, plans = {turn.plan for turn in self.drafting}, [turn.plan for turn in turns]
        return all(turn.job.context.sampling.greedy for turn in turns) and all(
            plan in drafts or not plan.request.k or plan.request.room < 1 for plan in plans
        )

    def run_ahead(self, turns: Sequence[Turn]) -> None:
        """Launch what comes after this pass, before anybody has looked at this one's tokens."""
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
