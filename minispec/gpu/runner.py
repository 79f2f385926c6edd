"""An engine's steps on a GPU: captured passes, drafts that stay on the device, and work launched before its step comes.

The requests that process no prompt, which is most of them in most steps, have a pass of fixed shape to themselves,
captured and started by one launch (buckets.py). That saves far more than it costs to read the weights once more for the
others.

As long as the same requests go on decoding, the next pass need not wait for the host: the tokens are on the device
already, so the pass after this one is launched before the sync, and its own sync is in the next step. Drafts that the
device makes stay there, too: the pass over them is launched right after, and for greedy requests the whole next cycle
after it (engine_heads.py).
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

from ..drafters.base import Drafter
from ..load.handle import Model
from ..sequence import Sequence
from ..serving.blocks import BlockPool
from ..serving.runner import Results, Runner, prune, ran
from ..serving.scheduler import Step, Turn
from .engine_heads import Cycles, DraftsForMany, Launch


def decodes(turn: Turn) -> bool:
    """It processes its last token and what was drafted after it: no prompt."""
    return turn.count == 1 and turn.emits


@dataclass(eq=False)
class NextCycle:
    """A draft and the pass over it, launched before its step has come, for `rows` of the pass before."""

    cycles: Cycles
    launch: Launch  # of the drafter
    rows: list[Turn | None]  # their turns in the cycle before; None: ended before that
    results: Results
    drafted: set[Sequence]  # those that were drafted for in the cycle before, and are now
    starts: dict[Sequence, int] = field(default_factory=dict)  # where each goes on, once the host knows that

    def learn(self) -> None:
        """The host has judged the cycle before."""
        for turn in self.rows:
            if turn and turn.runs and turn.news:
                self.starts[turn.sequence] = turn.start + 1 + (turn.cycle.accepted if turn.cycle else 0)

    def serves(self, turns: list[Turn], pool: BlockPool) -> bool:
        """Whether these turns, in this order, are what it was launched for, or what is left of that."""
        if not turns or not self.cycles.stands(len(turns)):
            return False
        rows = {turn.sequence: (row, turn) for row, turn in enumerate(self.rows) if turn}
        for turn in turns:
            row, before = rows.get(turn.sequence, (None, None))
            if before is None or turn.start != self.starts.get(turn.sequence):
                return False
            if (turn.draft_length, turn.max_nodes) != self.draft_of(before):
                return False
            blocks = pool.tables[turn.sequence.request_id].blocks
            if blocks != self.cycles.buckets.tables[row][: len(blocks)]:
                return False
            turn.row, turn.share = row, before.share
        return True

    def draft_of(self, turn: Turn) -> tuple[int, int]:
        """How deep a draft the device has made after this turn, and of how many nodes at the most."""
        sequence = turn.sequence
        depth = min(sequence.k, sequence.room, len(self.cycles.most_nodes) - 1)
        if depth < 1 or sequence not in self.drafted or sequence.id not in self.cycles.many.held:
            return 0, 0
        nodes = min(self.cycles.most_nodes[depth], turn.share)
        return min(depth, nodes), nodes

    def drop(self, window: Callable[[Sequence], int]) -> None:
        """It does not count. The states that the drafter has not been given for good wait for its next draft."""
        for row, turn in enumerate(self.rows):
            start = turn and self.starts.get(turn.sequence)
            if start and turn.runs and turn.sequence.k and turn.sequence.num_computed_tokens == start:
                turn.sequence.remember(self.cycles.states(row, start - turn.start), window(turn.sequence))


class CapturedRunner(Runner):
    """The same steps by captured passes where there are any, and ahead of the host where it need not be asked."""

    def __init__(
        self, target: Model, drafter: Drafter | None, pool: BlockPool, rule: str, max_num_seqs: int, most_nodes: int
    ):
        most = most_nodes + drafter.scratch_slots if drafter else 0  # tokens beside the certain one
        self.sizes = max_num_seqs, most
        super().__init__(target, drafter, pool, rule)
        if drafter:
            drafter.capture()
        self.pending = None  # drafts of this step that are on the device (engine_heads.py) …
        self.drafting: list[Turn] = []  # … and whose they are
        self.latest: Results | None = None  # of this step, in the memory that passes of fixed shape share
        self.ahead: tuple[list, Results] | None = None  # a pass under way for the next step, by sequences and starts …
        self.next_cycle: NextCycle | None = None  # … or a whole cycle
        self.adopted: NextCycle | None = None  # what was launched for this step, and serves it
        self.runs_ahead, self.cycles = drafter is None, None  # whether there may be any; of cycles
        if drafter and drafter.lossless and isinstance(drafter.captured, DraftsForMany):
            self.runs_ahead, self.cycles = True, Cycles(drafter.captured, self.buckets)

    def new_cache(self):
        blocks = self.pool.num_blocks, self.pool.block_size
        self.buckets = self.target.capturer().serve(*blocks, *self.sizes, self.hidden_layers)
        return self.buckets.cache

    def begin(self, turns: list[Turn]) -> None:
        """What was launched for these turns is their draft and their pass; if it was launched for others, drop it."""
        self.latest = self.pending = None
        ahead, self.next_cycle, self.adopted = self.next_cycle, None, None
        if ahead is None:
            return
        decoding = [turn for turn in turns if decodes(turn)]
        if not ahead.serves(decoding, self.pool):
            ahead.drop(self.window)
            self.dropped += 1
            return
        self.adopted, self.drafting = ahead, [turn for turn in decoding if turn.draft_length]
        for turn in self.drafting:
            turn.asked = True
        self.pending = self.cycles.many.adopt([turn.sequence for turn in self.drafting], ahead.launch)

    # ---- drafts ----------------------------------------------------------------------------------------------------

    def propose(self, turns: list[Turn]) -> None:
        """Drafts that the device makes and keeps: the pass takes them from there, and the host learns of them later."""
        many = self.drafter.captured
        if not isinstance(many, DraftsForMany):
            super().propose(turns)
            return
        self.learn_drafts()  # after a fault each request is asked for alone: their drafts share one memory
        ready = [turn for turn in turns if many.ready(turn.sequence)]
        if ready:
            depths = [turn.draft_length for turn in ready]
            self.pending = many.begin([turn.sequence for turn in ready], max(depths), depths)
            self.drafting = ready

    def learn_drafts(self) -> None:
        """What the device has drafted, as the host's own."""
        if self.pending is not None:
            for turn, draft in zip(self.drafting, self.pending.drafts(), strict=True):
                turn.sequence.draft = prune(draft, turn.max_nodes)
            self.pending = None

    # ---- the forward pass ------------------------------------------------------------------------------------------

    def forward(self, turns: list[Turn]) -> None:
        """One pass of fixed shape for the requests that decode, and one for the prompts. Nothing is waited for, and a
        pass that was launched ahead is not launched again."""
        decoding = [turn for turn in turns if decodes(turn)]
        if decoding and self.fixed_pass(decoding):
            turns = [turn for turn in turns if not decodes(turn)]
        if turns and not self.prompt_pass(turns):
            super().forward(turns)

    def fixed_pass(self, turns: list[Turn]) -> bool:
        """A pass of fixed shape for requests that decode; False: there is none for so many tokens."""
        if last := self.latest:  # after a fault each runs alone, before the host has any: this one would overwrite it
            last.logits, last.best = last.logits.clone(), last.best.clone()
            last.hidden = {n: states.clone() for n, states in last.hidden.items()}
        ahead, cycle, self.ahead, self.adopted = self.ahead, self.adopted, None, None
        if cycle:
            self.ran_in_bucket(turns, cycle.results, 1 + cycle.launch.nodes, rows=[turn.row for turn in turns])
        elif ahead and ahead[0] == [(turn.sequence, turn.start) for turn in turns]:
            self.ran_in_bucket(turns, ahead[1], 1)
        elif self.on_device(turns):
            self.drafted_pass(turns)
        else:
            self.learn_drafts()
            rows = [turn.tokens for turn in turns]
            if not self.buckets.takes(rows):
                return False
            tables, drafts = self.tables(turns), [turn.sequence.draft for turn in turns]
            self.clock.lap("scheduling")
            self.buckets.read(rows, [turn.start for turn in turns], tables, drafts)
            results, T = Results(*self.buckets.flat()), self.buckets.shape[1]
            self.ran_in_bucket(turns, results, T)
        return True

    def prompt_pass(self, turns: list[Turn]) -> bool:
        """The ragged pass over prompts in a fixed shape, if there is one."""
        rows, starts, _, needed = self.layout(turns)
        self.clock.lap("scheduling")
        drafts = [turn.sequence.draft for turn in turns]
        result = self.buckets.prompts.read(rows, starts, self.tables(turns), needed, drafts)
        if result is not None:
            ran(turns, Results(*result), needed)
        return result is not None

    def on_device(self, turns: list[Turn]) -> bool:
        """Whether the drafts of these turns are on the device, if they have any, and fit a pass."""
        fits = self.pending is not None and self.pending.nodes <= self.buckets.k and len(turns) <= self.buckets.rows
        return fits and not any(turn.sequence.draft.tokens for turn in turns)

    def drafted_pass(self, turns: list[Turn]) -> None:
        """The same over drafts that are on the device."""
        tables, pending = self.tables(turns), self.pending
        row_of = dict(zip(self.drafting, pending.rows, strict=True))
        self.clock.lap("scheduling")
        lines = [(t.sequence.tokens[-1], row_of.get(t, -1), t.sequence.k, t.sequence.room, t.share) for t in turns]
        where = pending.memory, pending.nodes, pending.depth
        self.buckets.read_drafted(lines, [turn.start for turn in turns], tables, *where)
        self.ran_in_bucket(turns, Results(*self.buckets.flat()), 1 + pending.nodes)

    def ran_in_bucket(self, turns: list[Turn], results: Results, T: int, rows=None) -> None:
        """A pass of T tokens per row has run."""
        for turn, row in zip(turns, rows or range(len(turns)), strict=True):
            turn.row, turn.results = row, results
            turn.at = turn.states_at = row * T
        self.latest = results

    # ---- what it says ----------------------------------------------------------------------------------------------

    def synchronise(self, turns: list[Turn]) -> None:
        self.learn_drafts()
        super().synchronise(turns)

    def keep(self, turns: list[Turn]) -> None:
        """Where the next cycle is under way, the device has seen to paths and states."""
        if self.next_cycle:
            self.next_cycle.learn()
        else:
            super().keep(turns)

    def gather(self, tables: list[list[int]], starts: list[int], paths: list[list[int]]) -> None:
        self.buckets.move(tables, starts, paths)

    def release(self) -> None:
        super().release()
        self.buckets = self.cycles = self.ahead = self.next_cycle = self.latest = self.pending = self.adopted = None
        self.drafting = []

    # ---- work for the next step ------------------------------------------------------------------------------------

    def run_ahead(self, step: Step, reserve: Callable[[Step], bool]) -> None:
        """Launch what comes after this pass, before the host has this one's tokens."""
        turns = step.turns
        if not (self.may_run_ahead(turns) and reserve(step)):
            return
        try:
            self.sample(self.latest, turns)
            self.latest.wait = self.buckets.fetch()  # the next pass will overwrite what is on its way to the host
            if self.cycles:
                self.launch_cycle(turns)
            else:
                for_whom = [(turn.sequence, turn.start + 1) for turn in turns]
                self.buckets.again(self.tables(turns))
                self.ahead = for_whom, Results(*self.buckets.flat())
        except Exception as error:  # it will be done again, for each alone or in the next step: then the error counts
            self.runs_ahead = False  # whatever it was, it is not to be met in every step
            warnings.warn(f"nothing is launched ahead any more, so steps take longer: {error!r}", stacklevel=2)

    def may_run_ahead(self, turns: list[Turn]) -> bool:
        """Whether the next tokens of all turns will be on the device without a host sync: they come from one pass in a
        fixed shape, no token is forbidden, and what was drafted is on the device and accepted greedily. Who wants
        log-probabilities needs the logits, which the next pass would overwrite."""
        if self.latest is None or not self.runs_ahead or (self.cycles and not (self.pending and self.cycles.fits())):
            return False
        if not all(turn.results is self.latest and turn.runs and not turn.sequence.needs_processing for turn in turns):
            return False
        sequences = [turn.sequence for turn in turns]
        if any(s.wants_logprobs for s in sequences):
            return False
        if self.cycles is None:
            return True
        drafting = {turn.sequence for turn in self.drafting}  # the others are never to be drafted for again
        return all(s.sampling.greedy and (s in drafting or not s.k or s.room < 1) for s in sequences)

    def launch_cycle(self, turns: list[Turn]) -> None:
        rows: list[Turn | None] = [None] * (1 + max(turn.row for turn in turns))
        for turn in turns:
            rows[turn.row] = turn
        tables = [self.pool.tables[turn.sequence.request_id].blocks if turn else [] for turn in rows]
        launch, drafted = self.pending.launch, {turn.sequence for turn in self.drafting}
        results = Results(*self.cycles.launch(launch, tables))
        self.next_cycle = NextCycle(self.cycles, launch, rows, results, drafted)
        self.launched += 1
