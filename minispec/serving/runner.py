"""What one step of an engine computes: drafts, a forward pass of the target over everything, and the verdicts.

A request without a draft is plain decoding: an empty draft, which is accepted, and a bonus token. So there is one path
for all, and speculation can be off for one request (k=0), for all (no drafter), or while the batch is full.

The host synchronises with the device once per step, for the next tokens. On a GPU, captured_runner.py captures passes
of fixed shape, and launches the next one before that.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from ..drafters.base import Drafter, propose
from ..load.model import Model
from ..sampling import NOT_FINITE, best_tokens, coupled, noise_of, pick, uniforms
from ..sequence import Sequence
from ..trace import Clock
from ..tree import Draft, mask_and_offsets, only
from ..verify import greedy_cycle, judge
from .blocks import BlockPool
from .metrics import PARTS
from .paged import PagedKVCache, split
from .scheduler import Step, Turn


@dataclass(eq=False)
class Results:
    """What a forward pass gave several turns, their positions one after the other."""

    logits: Tensor  # [N, V]
    best: Tensor | None  # [N], the best tokens, or sampled ones in their place; −1: NaN or ∞; None: not looked for yet
    tokens: list[int] | None = None  # `best`, once the host has them
    wait: Callable[[], list[int]] | None = None  # for `best`, if it is on its way


def passes(turns: list[Turn]) -> list[Results]:
    """The passes that these turns were part of."""
    return list(dict.fromkeys(turn.results for turn in turns))


def ran(turns: list[Turn], results: Results, logits: list[int]) -> None:
    """A pass has processed all tokens of these turns, one turn after the other. Its logits hold so many of each."""
    for turn, n, end in zip(turns, logits, accumulate(logits), strict=True):
        turn.results, turn.at = results, end - n


def logits_of(turn: Turn) -> Tensor:
    """[1 + drafts + scratch, V], from the last certain token on."""
    return turn.results.logits[turn.at : turn.at + turn.processed - turn.count + 1]


def chosen(places: list[int], of: Tensor) -> slice | Tensor:
    """An index of these places. A slice is a view; a tensor has to be sent to the device, but not to be waited for."""
    if places == list(range(places[0], places[0] + len(places))):
        return slice(places[0], places[0] + len(places))
    return torch.tensor(places).to(of.device, non_blocking=True)


def sample(logits: Tensor, sequences: list[Sequence]) -> Tensor:
    """A token for each sequence from its logits [n, V], by its own Sampling and random numbers, without a look at any
    number; −1 where the logits contain NaN or ∞."""
    tokens = torch.empty(len(logits), dtype=torch.long, device=logits.device)
    if has_noise := sequences[0].noise is not None:
        numbers = noise_of(sequences, device=logits.device)  # [n]
    else:
        u = uniforms([sequence.coins for sequence in sequences], 1)  # [n, 1]
        numbers = u.to(logits.device, non_blocking=True)[:, 0]
    samplings = [sequence.sampling for sequence in sequences]
    for sampling in dict.fromkeys(samplings):
        rows = chosen([row for row, other in enumerate(samplings) if other == sampling], logits)
        tokens[rows] = (coupled if has_noise else pick)(sampling.unchecked_probs(logits[rows]), numbers[rows])
    return torch.where(logits.amax(-1).isfinite(), tokens, -1)


def side_by_side(turns: list[Turn]) -> Tensor:
    """The logits of turns of one pass at the last certain token and the drafts, [B, n + 1, V]. What follows a shorter
    draft is padding: any logits will do."""
    logits, longest = turns[0].results.logits, 1 + max(len(turn.sequence.draft.tokens) for turn in turns)
    first = torch.tensor([turn.at for turn in turns])
    places = (first[:, None] + torch.arange(longest)).clamp(max=len(logits) - 1)
    return logits[places.to(logits.device)]


def prune(draft: Draft, nodes: int) -> Draft:
    """The first `nodes` of a draft. Parents come before children, so what is left is a tree again; and which nodes go
    is known before any token is sampled, so the output keeps the target's distribution."""
    return draft if len(draft.tokens) <= nodes else only(draft, [*range(nodes)])


class Runner:
    """Target, drafter and the memory of both, on any device."""

    buckets = None  # passes of fixed shape, where a device has any
    launched = dropped = 0  # cycles that a device began before their step had come, and those that did not serve it

    def __init__(self, target: Model, drafter: Drafter | None, pool: BlockPool, rule: str = "token"):
        self.target, self.drafter, self.pool, self.rule, self.clock = target, drafter, pool, rule, Clock(*PARTS)
        self.hidden_layers = tuple(drafter.hidden_layers) if drafter else ()
        self.cache = self.new_cache()

    def new_cache(self) -> PagedKVCache:
        memory = dict(hidden_layers=self.hidden_layers, device=self.target.device, dtype=self.target.dtype)
        return PagedKVCache(self.target.config, self.pool.num_blocks, self.pool.block_size, **memory)

    def begin(self, turns: list[Turn]) -> None:
        """A step begins. What a device has done for it already, it adopts here."""

    # ---- drafts ----------------------------------------------------------------------------------------------------

    def draft(self, turns: list[Turn]) -> None:
        """One call of the drafter for all, which is shown what the target has computed since its last; each draft is
        cut to the depth and to the nodes that its slots allow."""
        for turn in turns:
            turn.sequence.max_nodes = turn.max_nodes
        try:
            if self.hidden_layers:
                self.cache.show([turn.sequence for turn in turns], self.tables(turns))
            self.propose(turns)
        except Exception:
            for turn in turns:  # how far it came is unknown, so it starts afresh
                self.restart(turn.sequence)
            raise
        for turn in turns:
            turn.asked = True
            turn.sequence.shown()

    def propose(self, turns: list[Turn]) -> None:
        depths = [turn.draft_length for turn in turns]
        vocabulary = self.target.config.vocab_size
        drafts = propose(self.drafter, [turn.sequence for turn in turns], max(depths), vocabulary, depths)
        most, slots = max(len(d.scratch.tokens) if d.scratch else 0 for d in drafts), self.drafter.scratch_slots
        if most > slots:
            raise ValueError(f"{self.drafter!r} made a draft with {most} scratch tokens: scratch_slots={slots}")
        for turn, draft in zip(turns, drafts, strict=True):
            turn.sequence.draft = prune(draft, turn.max_nodes)

    def read_prompts(self, turns: list[Turn]) -> None:
        """The drafter may read the prompts that this pass completes."""
        self.drafter.read_prompts([turn.sequence for turn in turns])

    def restart(self, sequence: Sequence) -> None:
        """The drafter starts this request afresh; it has not ended, so nothing is to be learnt from it yet."""
        sequence.unseen, sequence.seen = [], 0
        if self.drafter:
            self.drafter.rewind(sequence.id, 0)

    # ---- the forward pass ------------------------------------------------------------------------------------------

    def forward(self, turns: list[Turn]) -> None:
        """[certain tokens …, drafts …, scratch …] of every request, end to end; logits only where they are needed."""
        transformer, device = self.target.transformer, self.target.device
        rows, starts, counts, needed = self.layout(turns)
        masks, positions = None, None
        if any(turn.sequence.draft.branches for turn in turns):  # after one certain token, as in any verify pass
            views = [
                mask_and_offsets(turn.sequence.draft, n) if turn.sequence.draft.branches else (None, torch.arange(n))
                for turn, n in zip(turns, counts, strict=True)
            ]
            masks = [mask for mask, _ in views]
            offsets = [start + offset for start, (_, offset) in zip(starts, views, strict=True)]
            positions = torch.cat(offsets)[None].to(device)  # [1, N]
        if self.cache.recurrent:
            self.cache.recurrent.forget_others({table.blocks[0] for table in self.pool.tables.values()})
        paged = self.cache.open(self.tables(turns), starts, counts, masks)
        tokens = torch.tensor([[token for row in rows for token in row]], device=device)  # [1, N]
        self.clock.lap("scheduling")  # where everybody's blocks are is bookkeeping too
        x, hidden = transformer.body(tokens, paged, positions=positions, hidden_layers=self.hidden_layers)
        self.cache.store(paged.slots, hidden)
        if sum(needed) < x.shape[1]:
            parts = zip(split(x, counts), counts, needed, strict=True)
            x = torch.cat([states[count - n :] for states, count, n in parts])[None]
        logits = transformer.head(x)[0]  # [Σ needed, V]
        ran(turns, Results(logits, None), needed)

    def layout(self, turns: list[Turn]) -> tuple[list[list[int]], list[int], list[int], list[int]]:
        """Of every turn its tokens, where they begin, how many they are, and at how many of them logits are needed.
        What follows a prompt's tokens is known already, and a chunk that does not reach the end needs none."""
        rows = [turn.tokens for turn in turns]
        needed = [len(row) - turn.count + 1 if turn.emits else 0 for turn, row in zip(turns, rows, strict=True)]
        return rows, [turn.start for turn in turns], list(map(len, rows)), needed

    def tables(self, turns: list[Turn]) -> list[list[int]]:
        return [self.pool.tables[turn.sequence.request_id].blocks for turn in turns]

    def while_verifying(self, turns: list[Turn]) -> None:
        """Drafters may use the time of the pass."""
        sequences = [turn.sequence for turn in turns]
        self.drafter.while_verifying(sequences, [sequence.draft for sequence in sequences])

    def run_ahead(self, step: Step, reserve: Callable[[Step], bool]) -> None:
        """A device may launch the next step's pass here, before the host waits, if its slots can be reserved."""

    # ---- what it says ----------------------------------------------------------------------------------------------

    def synchronise(self, turns: list[Turn]) -> None:
        """Wait for the next tokens of all requests that need no more than these: the greedy ones, drafts or not, and
        those that sample without a draft. It is the one host sync of a step without sampled drafts."""
        for results in passes(turns):
            if results.wait is None:
                self.sample(results, [turn for turn in turns if turn.results is results])
            if results.tokens is None:
                results.tokens = results.wait() if results.wait else results.best.tolist()

    def sample(self, results: Results, turns: list[Turn]) -> None:
        """On the device: the next token of each request that samples and has no draft, in the place of its best one."""
        if results.best is None:
            results.best = best_tokens(results.logits)
        plain = [t for t in turns if not (t.sampled or t.sequence.sampling.greedy or t.sequence.draft.tokens)]
        plain = [turn for turn in plain if not turn.sequence.needs_processing]
        if plain:
            sequences, at = [turn.sequence for turn in plain], chosen([turn.at for turn in plain], results.best)
            results.best[at] = sample(results.logits[at], sequences)
            results.tokens = None  # whatever the host has by now does not hold these
            for turn in plain:
                turn.sampled = True

    def verify(self, turns: list[Turn]) -> None:
        """Which tokens each request emits: at once where the best (or sampled) tokens say so, else by the verifier."""
        lossless, others = self.drafter is None or self.drafter.lossless, []
        for turn in turns:
            sequence, draft = turn.sequence, turn.sequence.draft
            if sequence.needs_processing or not (turn.sampled or sequence.sampling.greedy) or draft.probs is not None:
                others.append(turn)
                continue
            best = turn.results.tokens[turn.at : turn.at + len(draft.tokens) + 1]
            if -1 in best:
                raise ValueError(NOT_FINITE)
            if turn.asked:
                turn.cycle = greedy_cycle(best, draft, len(sequence.tokens), lossless)
            turn.news = turn.cycle.tokens if turn.cycle else best
        for results in passes(others):
            some = [turn for turn in others if turn.results is results]
            sequences = [turn.sequence for turn in some]
            drafts = [sequence.draft for sequence in sequences]
            cycles = judge(side_by_side(some), sequences, drafts, lossless, rule=self.rule)
            for turn, turn.cycle in zip(some, cycles, strict=True):
                turn.news = turn.cycle.tokens

    def parts(self) -> tuple[float, float, float]:
        """How long this step's drafts, pass and verdicts took."""
        seconds = self.clock.seconds
        return seconds["drafting"], seconds["pass"], seconds["sampling"]

    def keep(self, turns: list[Turn]) -> None:
        """The accepted path of a tree moves together, to the slots right after the certain token."""
        trees = [turn for turn in turns if turn.runs and turn.sequence.draft.parents is not None and turn.cycle.path]
        if trees:
            starts, paths = [turn.start + turn.count for turn in trees], [turn.cycle.path for turn in trees]
            self.gather(self.tables(trees), starts, paths)

    def gather(self, tables: list[list[int]], starts: list[int], paths: list[list[int]]) -> None:
        self.cache.gather(tables, starts, paths)

    def release(self) -> None:
        """Give the memory back, the drafter's too."""
        self.cache = None
        if self.drafter:
            self.drafter.release()
