"""An engine's steps on a GPU: captured passes, drafts that stay on the device, and work launched before its step comes.

The requests that process no prompt, which is most of them in most steps, have a pass of fixed shape to themselves,
captured and started by one launch (passes.py). That saves far more than it costs to read the weights once more for the
others.

As long as the same requests go on decoding, the next pass need not wait for the host: the tokens are on the device
already, so the pass after this one is launched before the sync, and its own sync is in the next step. With a drafter
that holds for steps in which nobody drafts. Drafts that the device makes stay there, too: the pass over them is
launched right after, then the verdicts, and the whole next cycle after them (drafts.py, chains.py).
"""

import gc
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from ..drafters.base import Drafter
from ..load.model import Model
from ..require import warn_once
from ..sampling import NOT_FINITE
from ..sequence import Sequence
from ..serving.blocks import BlockPool
from ..serving.runner import Results, Runner, prune, ran
from ..serving.scheduler import Step, Turn
from ..trace import Cycle
from .drafts import Cycles, DraftsForMany, Launch
from .graph import Event
from .passes import rows_of


def decodes(turn: Turn) -> bool:
    """It processes its last token and what was drafted after it: no prompt."""
    return turn.count == 1 and turn.emits


@dataclass(eq=False)
class Ahead:
    """A pass that was launched before its step has come; of a cycle, after a draft of its own."""

    rows: list[Turn | None]  # whom it was launched for: their turns in the pass before; None: ended before that
    starts: dict[Sequence, int]  # where each goes on, once the host knows that
    drafted: set[Sequence] = field(default_factory=set)  # those that were drafted for in the pass before, and are now
    launch: Launch | None = None  # of the drafter; None: a plain pass
    moments: list[Event] | None = None  # when its draft began, its pass began, and ended
    results: Results | None = None  # None: it has failed on its way


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
            if drafter.captured is not None:
                drafter.captured.reserve(max_num_seqs, pool.max_tokens)
        self.pending = None  # drafts of this step that are on the device (drafts.py) …
        self.drafting: list[Turn] = []  # … and whose they are
        self.latest: Results | None = None  # of this step, in the memory that passes of fixed shape share
        self.moments: list[Event] | None = None  # when drafts began that were made here, their pass began, and ended
        self.ahead: Ahead | None = None  # what is under way: for the next step, and from `begin` to `forward` for this
        self.runs_ahead = True  # whether there may be any
        made_here = drafter and drafter.lossless and isinstance(drafter.captured, DraftsForMany)
        self.cycles = Cycles(drafter.captured, self.buckets, rule) if made_here else None  # None: only plain passes
        self.judged: set[Turn] = set()  # of this step, whose cycle ends on the device …
        self.verdicts: list[list[float]] | None = None  # … and what came of them, a line for each row …
        self.wait: Callable[[], list[list[float]]] | None = None  # … once it has arrived; None: the host finds out

    def new_cache(self):
        blocks = self.pool.num_blocks, self.pool.block_size
        self.buckets = self.target.capturer().memory(*blocks, *self.sizes, self.hidden_layers)
        return self.buckets.cache

    def begin(self, turns: list[Turn]) -> None:
        """What was launched for these turns is their draft and their pass; if it was launched for others, drop it."""
        self.latest = self.pending = self.verdicts = self.wait = self.moments = None
        self.judged = set()
        if self.ahead is None:
            return
        decoding = [turn for turn in turns if decodes(turn)]
        rows = self.rows_ahead(decoding)
        if rows is None:
            self.drop()
            return
        for turn, row in zip(decoding, rows, strict=True):
            turn.row = row
        if self.ahead.launch:
            for turn in decoding:
                turn.share = self.ahead.rows[turn.row].share
            self.drafting, self.moments = [turn for turn in decoding if turn.draft_length], self.ahead.moments
            self.pending = self.cycles.many.adopt([turn.sequence for turn in self.drafting], self.ahead.launch)
            for turn in self.drafting:
                turn.asked = True
                turn.sequence.shown()  # on the device

    def rows_ahead(self, turns: list[Turn]) -> list[int] | None:
        """The rows of these turns in the pass that was launched ahead; None: it was launched for others. Those that
        have ended since may be missing."""
        ahead = self.ahead
        if ahead.results is None or not turns:
            return None
        row_of = {turn.sequence: row for row, turn in enumerate(ahead.rows) if turn}
        rows = [row_of.get(turn.sequence) for turn in turns]
        starts = ahead.starts
        if None in rows or [turn.start for turn in turns] != [starts.get(turn.sequence) for turn in turns]:
            return None
        if not all(map(self.foreseen, turns, rows)) or (ahead.launch and not self.cycles.stands()):
            return None
        return rows

    def foreseen(self, turn: Turn, row: int) -> bool:
        """Whether the device has drafted what this turn asks for, if anything, with the blocks that it has now."""
        sequence, depth, nodes = turn.sequence, 0, 0
        if self.ahead.launch and sequence in self.ahead.drafted and sequence.id in self.cycles.many.held:
            most_nodes = self.cycles.most_nodes
            depth = max(0, min(sequence.k, sequence.room, len(most_nodes) - 1))
            nodes = min(most_nodes[depth], self.ahead.rows[row].share)
        blocks = self.pool.tables[sequence.request_id].blocks
        same_blocks = blocks == self.buckets.tables[row][: len(blocks)]
        return same_blocks and (turn.draft_length, turn.max_nodes) == (min(depth, nodes), nodes)

    def drop(self) -> None:
        """What is under way does not count."""
        self.ahead = None
        self.dropped += 1

    # ---- drafts ----------------------------------------------------------------------------------------------------

    def propose(self, turns: list[Turn]) -> None:
        """Drafts that the device makes and keeps: the pass takes them from there, and the host learns of them later."""
        many = self.drafter.captured
        if not (isinstance(many, DraftsForMany) and many.knows([turn.sequence for turn in turns])):
            super().propose(turns)
            return
        self.learn_drafts()  # after a fault each request is asked for alone: their drafts share one memory
        ready = [turn for turn in turns if many.ready(turn.sequence)]
        if ready:
            depths, self.moments = [turn.draft_length for turn in ready], [self.moment()]
            self.pending = many.begin([turn.sequence for turn in ready], max(depths), depths)
            self.drafting = ready
            for turn, row in zip(ready, self.pending.rows, strict=True):
                if row < 0:  # it is not drafted for, so there is nothing to learn from it
                    turn.share = 0

    def learn_drafts(self) -> None:
        """What the device has drafted, as the host's own."""
        if self.pending is not None:
            for turn, draft in zip(self.drafting, self.pending.drafts(self.wait is not None), strict=True):
                turn.sequence.draft = prune(draft, turn.max_nodes)
            self.pending = None

    # ---- the forward pass ------------------------------------------------------------------------------------------

    def forward(self, turns: list[Turn]) -> None:
        """One pass of fixed shape for the requests that decode, and one for the prompts. Nothing is waited for, and a
        pass that was launched ahead is not launched again."""
        decoding = [turn for turn in turns if decodes(turn)]
        ahead, self.ahead = self.ahead, None
        if decoding and self.fixed_pass(decoding, ahead):
            turns = [turn for turn in turns if not decodes(turn)]
        if turns and not self.prompt_pass(turns):
            super().forward(turns)

    def fixed_pass(self, turns: list[Turn], ahead: Ahead | None) -> bool:
        """A pass of fixed shape for requests that decode; False: there is none for so many tokens."""
        if last := self.latest:  # after a fault each runs alone, before the host has any: this one would overwrite it
            last.logits, last.best = last.logits.clone(), last.best.clone()
        if ahead:
            self.ran_in_bucket(turns, ahead.results, rows=[turn.row for turn in turns])
        elif self.on_device(turns):
            self.drafted_pass(turns)
        else:
            self.learn_drafts()
            rows = [turn.tokens for turn in turns]
            if not self.buckets.takes(rows):
                return False
            tables, drafts = self.tables(turns), [turn.sequence.draft for turn in turns]
            self.clock.lap("scheduling")
            sequences = [turn.sequence for turn in turns]
            results = self.buckets.read(rows, [turn.start for turn in turns], tables, drafts, sequences)
            self.ran_in_bucket(turns, results)
        return True

    def prompt_pass(self, turns: list[Turn]) -> bool:
        """The ragged pass over prompts in a fixed shape, if there is one. (Beside prompts there are no drafts, unless a
        request asks for far longer ones than its engine; the eager pass processes such a tree.)"""
        if any(turn.sequence.draft.branches for turn in turns):
            return False
        rows, starts, _, needed = self.layout(turns)
        self.clock.lap("scheduling")
        results = self.buckets.prompts.read(rows, starts, self.tables(turns), needed)
        if results is not None:
            ran(turns, results, needed)
        return results is not None

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
        starts, sequences = [turn.start for turn in turns], [turn.sequence for turn in turns]
        self.moments = [*self.moments[:1], self.moment()]
        self.ran_in_bucket(turns, self.buckets.read_drafted(lines, starts, tables, *where, sequences))
        self.moments.append(self.moment())

    def ran_in_bucket(self, turns: list[Turn], results: Results, rows=None) -> None:
        """A pass of fixed shape has run, with these turns in the first rows, or in `rows`."""
        T = self.buckets.shape[1]
        for turn, row in zip(turns, rows or range(len(turns)), strict=True):
            turn.row, turn.results, turn.at = row, results, row * T
            sequence, steps = turn.sequence, self.buckets.steps
            if steps and (T == 1 or steps.coupled) and not (sequence.sampling.greedy or sequence.needs_processing):
                turn.sampled = True
                sequence.coins.skip(0 if steps.coupled else 1)
        self.latest = results

    # ---- what it says ----------------------------------------------------------------------------------------------

    def synchronise(self, turns: list[Turn]) -> None:
        self.learn_drafts()
        if self.wait is not None:
            self.verdicts = self.wait()
        super().synchronise([turn for turn in turns if self.verdicts is None or turn not in self.judged])

    def verify(self, turns: list[Turn]) -> None:
        """What the device has judged is read from its report."""
        judged = set() if self.verdicts is None else self.judged.intersection(turns)
        for turn in judged:
            self.read_verdict(turn, self.verdicts[turn.row])
        for turn in judged:  # none of them has failed
            if not turn.sequence.sampling.greedy:
                turn.sequence.coins.skip(1 + len(turn.sequence.draft.tokens))
        super().verify([turn for turn in turns if turn not in judged])

    def moment(self) -> Event:
        return Event(self.target.device, timed=True).record()

    def parts(self) -> tuple[float, float, float]:
        """Of drafts that are made and verified here the device says when; the host would only know when it waited. What
        the step has left is the verdicts' and the host's own."""
        if self.moments is None or len(self.moments) < 3:
            return super().parts()
        drafted, verified = (b - a for a, b in pairwise(self.moments))
        return drafted, verified, max(0.0, sum(self.clock.seconds.values()) - drafted - verified)

    def read_verdict(self, turn: Turn, line: list[float]) -> None:
        n, token = len(line) // 3, int(line[-1])
        if token < 0:
            raise ValueError(NOT_FINITE)
        path, p, q = [node for node, accepted in enumerate(line[:n]) if accepted], line[n : 2 * n], line[2 * n : 3 * n]
        cycle = Cycle.of(turn.sequence.draft, path, token, p, q, len(turn.sequence.tokens))
        turn.cycle = cycle if turn.asked else None
        turn.news = cycle.tokens

    def keep(self, turns: list[Turn]) -> None:
        """Where the cycle has ended on the device, it has moved the paths."""
        super().keep([turn for turn in turns if turn not in self.judged])
        if self.judged and self.ahead is not None:
            for turn in self.ahead.rows:  # the host knows by now how the cycle before ended
                if turn and turn.runs and turn.news:
                    self.ahead.starts[turn.sequence] = turn.start + 1 + (turn.cycle.accepted if turn.cycle else 0)

    def gather(self, tables: list[list[int]], starts: list[int], paths: list[list[int]]) -> None:
        self.buckets.move(tables, starts, paths)

    def release(self) -> None:
        super().release()
        self.buckets = self.cycles = self.ahead = self.latest = self.pending = None
        self.wait = self.verdicts = None
        self.drafting, self.judged = [], set()
        gc.collect()  # captures are part of reference cycles: their memory would stay until somebody collects

    # ---- work for the next step ------------------------------------------------------------------------------------

    def run_ahead(self, step: Step, reserve: Callable[[Step], bool]) -> None:
        """End the cycle, and launch what comes after this pass, before the host has this one's tokens."""
        mine = [turn for turn in step.turns if turn.results is self.latest and turn.runs]
        if self.latest is None or not self.runs_ahead or not self.knows(mine):
            return
        goes_on = self.goes_on(mine, step.turns) and reserve(step)
        try:
            if self.pending is not None and (goes_on or not self.buckets.best_says_all):
                self.end_cycle(mine)
            if goes_on:
                self.launch_ahead(mine)
                self.launched += 1
        except Exception as error:  # it will be done again, for each alone or in the next step: then the error counts
            self.runs_ahead = False  # whatever it was, it is not to be met in every step
            warnings.warn(f"nothing is launched ahead any more, so steps take longer: {error!r}", stacklevel=2)

    def knows(self, turns: list[Turn]) -> bool:
        """Whether the device alone can tell what comes after this pass: no token is forbidden, and what was drafted is
        there. Who wants log-probabilities needs the logits, which the next pass would overwrite."""
        sequences = [turn.sequence for turn in turns]
        if any(s.needs_processing for s in sequences):
            warn_once("penalties, biases and constraints are applied by the host: steps wait for it, and take longer")
        if any(s.needs_processing or s.wants_logprobs for s in sequences):
            return False
        if self.pending is None:
            return True
        together = set(turns).issuperset(turn for turn in self.drafting if turn.runs)  # after a fault each runs alone
        return together and self.cycles is not None and self.cycles.fits()

    def goes_on(self, mine: list[Turn], turns: list[Turn]) -> bool:
        """Whether the next step is foreseen: the same requests, each drafting again, or none of them."""
        if len(mine) < len(turns) or rows_of(len(turns)) < self.buckets.shape[0]:
            return False  # where rows have ended, a smaller pass comes next
        if self.pending is None:  # if somebody drafts in the next step after all, what was launched is dropped
            return not any(turn.draft_length for turn in turns)
        drafting = {turn.sequence for turn in self.drafting}  # the others are never to be drafted for again
        return all(s in drafting or not s.k or s.room < 1 for s in (turn.sequence for turn in turns))

    def rows_and_tables(self, turns: list[Turn]) -> tuple[list[Turn | None], list[list[int]]]:
        """The turn in each row of this pass (None: ended), and the blocks of each."""
        rows: list[Turn | None] = [None] * self.buckets.count
        for turn in turns:
            rows[turn.row] = turn
        return rows, [self.pool.tables[turn.sequence.request_id].blocks if turn else [] for turn in rows]

    def end_cycle(self, turns: list[Turn]) -> None:
        """Verdicts, and whatever follows from them on the device."""
        if self.buckets.best_says_all:  # the host needs no more, and the next pass overwrites them
            self.latest.wait = self.buckets.fetch()
        try:
            self.cycles.end(self.rows_and_tables(turns)[1], self.pending.launch)
        finally:
            if self.cycles.moved:  # even if something else fails, `keep` must not move the paths again
                self.judged = set(turns)
        if not self.buckets.best_says_all:
            self.wait = self.cycles.fetch()

    def launch_ahead(self, turns: list[Turn]) -> None:
        rows, tables = self.rows_and_tables(turns)
        if self.pending is None:
            self.latest.wait = self.buckets.fetch()
            results = self.buckets.again(tables)
            self.ahead = Ahead(rows, {turn.sequence: turn.start + 1 for turn in turns}, results=results)
            return
        launch, drafted = self.pending.launch, {turn.sequence for turn in self.drafting}
        self.ahead = Ahead(rows, {}, drafted, launch, moments=[self.moment()])
        self.cycles.draft(launch)
        self.ahead.moments.append(self.moment())
        self.ahead.results = self.cycles.verify()
        self.ahead.moments.append(self.moment())
