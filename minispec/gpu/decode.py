"""Decoding near the hardware's limit: one launch generates a token, or a whole draft-verify cycle.

The sequence itself lives on the device, `text` [B, S], with `count` [B] tokens of it known; the last one is
unprocessed. A launch processes what is new, decides, appends and moves `count` on. The host learns one launch
later whether the sequence has ended: what was generated past its end is dropped, so the result is that of `generate`.

    plain         the target processes the last token; choose one more, append it
    speculative   the draft model runs k tokens ahead; the target processes [last, d₁ … d_k]; accept, append
    with heads    (heads.py) the draft is a tree, n tokens and their parents; the target processes it under its
                  ancestors' mask, and the accepted path's keys and values are moved together

The random numbers are the reference's: the host takes them from each sequence's own coins, in the reference's
order, and puts them where the next launches find them. After a cycle (a accepted of k, n = count) the target's cache
holds n − 1 tokens, the draft's too, or n − 2 if a = k, since it has never processed d_k. It always processes two tokens
next: the second is padding unless a = k, lands past the length and is overwritten, so one shape does for both.
"""

from collections import deque
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from ..params import SamplingParams
from ..sampling import COLDEST, NOT_FINITE, Coins, Sampling, finite, pad, truncate, uniforms
from ..trace import Cycle
from ..tree import Draft
from ..verify import at, chain_batch, tree_batch
from . import trees
from .graph import Arrival, Captured, Event, on_the_device
from .heads import DeviceDrafter
from .vocab import pick, softmax, whole
from .weights import FastTransformer, has_kernels


class DeviceSampling:
    """A Sampling whose numbers are on the device: what was captured with it serves every other with the same steps."""

    def __init__(self, sampling: Sampling, device: torch.device):
        self.greedy, self.steps = sampling.greedy, sampling.steps
        self.numbers = torch.zeros(4, dtype=torch.float64, device=device)
        self.set(sampling)

    def set(self, sampling: Sampling) -> None:
        self.numbers.copy_(torch.tensor([max(sampling.temperature, COLDEST), *sampling.cuts], dtype=torch.float64))

    def unchecked_probs(self, logits: Tensor) -> Tensor:
        temperature, top_k, top_p, min_p = self.numbers.unbind()  # without a dimension, so that scores keep their dtype
        if not any(self.steps):
            return softmax(logits, temperature)
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
        cuts = top_k.long()[None], top_p, min_p
        return truncate(scores / temperature, *(n if used else None for n, used in zip(cuts, self.steps, strict=True)))


def kind_of(sampling: Sampling | None) -> tuple | None:
    """What a capture depends on."""
    return sampling and (sampling.greedy, *sampling.steps)


class FastDecoder:
    """Plain decoding, one launch a token."""

    most = 1  # tokens that a launch adds at the most
    reported = 1  # numbers of a report, besides whether all was sound

    @on_the_device
    def __init__(self, target: FastTransformer, sampling: Sampling | None = None):
        self.target, device = target, target.device
        self.sampling = DeviceSampling(sampling or Sampling(), device)
        self.text = torch.zeros(target.batch, target.capacity + 1, dtype=torch.long, device=device)  # [B, S + 1]
        self.count = torch.ones(target.batch, dtype=torch.long, device=device)  # [B]
        self.sound = torch.ones((), dtype=torch.bool, device=device)  # no NaN so far
        # Random numbers of the next launches, [B, n], of which each takes `numbers`; and how many are taken.
        self.coins: list[Coins] = []
        self.random = torch.zeros(target.batch, target.capacity * self.numbers + 1, dtype=torch.float64, device=device)
        self.taken = torch.zeros(1, dtype=torch.long, device=device)
        self.report = torch.zeros(target.batch, self.reported + 1, dtype=torch.float64, device=device)
        self.arrivals = deque(Arrival(self.report, timed=True) for _ in range(4))  # used in turn
        self.under_way: deque[Arrival] = deque()  # reports that the host has not seen
        self.captured = Captured(self.step, self.state())
        self.bound = target.capacity + 1  # count at the most, as far as the host knows; nothing has started yet
        self.fetched: list[int] = []

    @property
    def numbers(self) -> int:
        """Random numbers that a launch takes for each sequence."""
        return 0 if self.sampling.greedy else 1

    def state(self) -> list[Tensor]:
        """What a launch changes, apart from memory past the lengths."""
        return [self.count, self.text, self.sound, self.taken, self.target.lengths]

    @on_the_device
    def start(self, prompts: Sequence[Sequence[int]], seed=None, sampling=None) -> None:
        """Begin anew, one prompt for each sequence: everything but its last token is processed now. `sampling` may
        have other numbers than the one before, but no other steps."""
        self._refuse_more_than(max(map(len, prompts)) + self.most - 1)
        if sampling is not None:
            self.sampling.set(sampling)
        self.coins = [SamplingParams(seed=seed).coins(i) for i in range(len(prompts) if self.numbers else 0)]
        tokens, counts = pad([list(prompt) for prompt in prompts], self.target.device)
        self.text[:, : tokens.shape[1]] = tokens
        self.count.copy_(counts)
        self.sound.fill_(True)
        self.read_prompts(tokens[:, :-1], counts - 1)
        self.fetched = [len(prompt) for prompt in prompts]
        self.bound = max(self.fetched)
        self.under_way.clear()

    def read_prompts(self, tokens: Tensor, counts: Tensor) -> None:
        self.target.prefill(tokens, counts)

    def launch(self, times: int = 1) -> None:
        """Write on. Nothing is waited for; refused where the longest possible result would not fit."""
        self._refuse_more_than(self.bound + times * self.most - 1)
        self.captured.prepare()  # what is done once belongs to no launch
        self.supply(times)
        for _ in range(times):
            self.once()
        self.bound += times * self.most

    def once(self) -> None:
        self.captured()

    def ask(self) -> None:
        """One launch, whose report `answer` waits for. The next one may be asked for before."""
        self.launch()
        self.arrivals[0].begin(self.report)
        self.under_way.append(self.arrivals[0])
        self.arrivals.rotate(1)

    @property
    def asked(self) -> int:
        """Launches that nobody has seen the answer of."""
        return len(self.under_way)

    def answer(self) -> list[list[int]]:
        """What the oldest launch that was asked for has added to each row."""
        rows = [[int(token)] for (token,) in self.next_report()]
        self.saw([1] * len(rows))
        return rows

    def next_report(self) -> list[list[float]]:
        arrival = self.under_way.popleft()
        arrival.there.wait()
        rows, self.moment = arrival.numbers.tolist(), arrival.there
        if not all(row[-1] for row in rows):
            raise ValueError(NOT_FINITE)
        return [row[:-1] for row in rows]

    def saw(self, new: Sequence[int]) -> None:
        """So many tokens are new in each row: what the host knows of the longest is that, and what is under way."""
        self.fetched = [before + more for before, more in zip(self.fetched, new, strict=True)]
        self.bound = max(self.fetched) + self.asked * self.most

    @on_the_device
    def supply(self, times: int) -> None:
        """Put the random numbers of so many launches where they find them."""
        if self.numbers:
            random = uniforms(self.coins, times * self.numbers)
            self.random[:, : random.shape[1]].copy_(random)
            self.taken.zero_()

    def _refuse_more_than(self, tokens: int) -> None:
        if tokens > self.target.capacity:
            raise ValueError(
                f"capacity={self.target.capacity}: this may need {tokens} slots per sequence; make the "
                "FastTransformer with more, or start again with a shorter prompt"
            )

    def step(self) -> None:
        logits = self.target.step(self.text.gather(1, self.count[:, None] - 1))  # [B, 1, V]
        token, sound = self.choose(logits[:, -1], self.take(self.numbers))
        self.sound &= sound
        self.append(token[:, None], torch.ones_like(self.count))
        self.tell(token[:, None])

    def choose(self, logits: Tensor, u: Tensor | None) -> tuple[Tensor, Tensor]:
        """The next token [B] of logits [B, V], and whether there was no NaN or ∞."""
        if u is None:
            return self.best(logits)
        p = self.sampling.unchecked_probs(logits)
        return self.inside(pick(p, u[:, 0])), whole(p)

    def best(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The best token of every row [..., V], and whether there was no NaN or ∞."""
        best = self.target.best_tokens(logits)
        return best.clamp(min=0), (best >= 0).all()

    def take(self, count: int) -> Tensor | None:
        """The next random numbers [B, count]; None if it is none."""
        if not count:
            return None
        u = self.random.index_select(1, self.taken + self.target.places[:count])
        self.taken += count
        return u

    def inside(self, tokens: Tensor) -> Tensor:
        """A distribution of NaN picks a token that does not exist, and embedding it would end a GPU's work for good."""
        return tokens.clamp(max=self.target.config.vocab_size - 1)

    def tell(self, *numbers: Tensor) -> None:
        """Put numbers [B, n] into the report, and whether all was sound."""
        parts = [*(part.double() for part in numbers), self.sound.double().expand(len(self.report), 1)]
        torch.cat(parts, 1, out=self.report)

    def append(self, tokens: Tensor, kept: Tensor) -> None:
        """Write tokens [B, m] behind the text; the first `kept` [B] count, the next launch overwrites the rest."""
        places = self.count[:, None] + self.target.places[: tokens.shape[1]]
        self.text.scatter_(1, places, tokens)
        self.count += kept


class Speculator(FastDecoder):
    """What all speculative decoding has in common: one launch is a cycle, reported and timed."""

    def __init__(self, target: FastTransformer, sampling: Sampling | None, line: int, chances: int):
        # A cycle is reported as a line of numbers, which `cycle` reads, and the probabilities of its nodes.
        # Marks between its parts time them.
        self.marks = [Event(target.device, timed=True, external=True).record() for _ in range(4)]
        self.parts = [1.0, 1.0, 1.0]  # how its time divides
        self.line, self.reported = line, line + chances
        super().__init__(target, sampling)
        self.began = deque(Event(target.device, timed=True) for _ in self.arrivals)  # of the last cycles, newest first

    def answer(self) -> list[Cycle]:
        """The oldest cycle that was asked for, of each row."""
        rows, cycles = self.next_report(), []
        if not self.asked:  # nothing is under way, so the marks are this cycle's
            self.parts = [b - a for a, b in pairwise(self.marks)]
        seconds = self.moment - self.began[self.asked]
        for row, numbers in enumerate(rows):
            cycle = self.cycle([int(number) for number in numbers[: self.line]], numbers[self.line :])
            cycle.committed = self.fetched[row]
            # A launch is measured as a whole, and divided into its parts as the newest one was.
            cycle.took(*(seconds * part / sum(self.parts) for part in self.parts))
            cycles.append(cycle)
        self.saw([cycle.kept for cycle in cycles])
        return cycles

    def once(self) -> None:
        self.began.rotate(1)
        self.began[0].record()
        self.captured()


class FastSpeculator(Speculator):
    """Speculative decoding, one launch a cycle: k drafts of another FastTransformer, verified and appended. It has the
    target's vocabulary and batch size, and memory for at least as many tokens."""

    @on_the_device
    def __init__(self, target: FastTransformer, draft: FastTransformer, k=4, sampling=None, draft_sampling=None):
        self.draft, self.k, self.most = draft, k, k + 1
        self.draft_sampling = draft_sampling or sampling or Sampling()  # for `numbers`
        # A line: the drafts, the token after them, how many were accepted. Chances: what target and draft gave each.
        super().__init__(target, sampling, line=k + 2, chances=2 * k)
        self.draft_sampling = DeviceSampling(draft_sampling, target.device) if draft_sampling else self.sampling

    @property
    def numbers(self) -> int:
        return (not self.draft_sampling.greedy) * self.k + (not self.sampling.greedy) * (self.k + 1)

    def state(self) -> list[Tensor]:
        return [*super().state(), self.draft.lengths]

    def read_prompts(self, tokens: Tensor, counts: Tensor) -> None:
        super().read_prompts(tokens, counts)
        self.draft.prefill(tokens, counts)

    def step(self) -> None:
        n = self.count.clone()  # [B]
        self.marks[0].record()
        drafted, q = self.propose(n)
        self.marks[1].record()
        last = self.text.gather(1, n[:, None] - 1)
        logits = self.target.step(torch.cat([last, drafted], 1))  # [B, k + 1, V]
        self.marks[2].record()
        u = self.take((not self.sampling.greedy) * (self.k + 1))
        accepted, token, chances, sound = self.judge(logits, drafted, q, u)
        self.sound &= sound
        run = torch.cat([drafted, token[:, None]], 1)
        self.append(run.scatter(1, accepted[:, None], token[:, None]), accepted + 1)
        self.target.lengths.copy_(n + accepted)
        self.draft.lengths.copy_(n + accepted.clamp(max=self.k - 1))  # it never read the k-th draft
        self.tell(torch.cat([run, accepted[:, None]], 1), chances)
        self.marks[3].record()

    def propose(self, n: Tensor) -> tuple[Tensor, list[Tensor]]:
        """k draft tokens [B, k] and the distributions they come from, k times [B, V] (none: the best tokens)."""
        read = self.draft.lengths.clone()
        u = self.take((not self.draft_sampling.greedy) * self.k)
        unread = self.text.gather(1, read[:, None] + self.target.places[:2])  # [B, 2], the second perhaps padding
        logits = self.draft.step(unread, last=n - read - 1)  # [B, V]
        self.draft.lengths.copy_(n)
        tokens, qs = [], []
        for i in range(self.k):
            token, q = self.sample(logits, None if u is None else u[:, i])
            tokens.append(token)
            qs += [] if q is None else [q]
            if i < self.k - 1:
                logits = self.draft.step(token[:, None])[:, -1]
        return torch.stack(tokens, 1), qs

    def sample(self, logits: Tensor, u: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The next draft token [B], and the distribution [B, V] it was sampled from. Without u it is the best token."""
        if u is None:
            return self.best(logits)[0], None
        q = self.draft_sampling.unchecked_probs(logits)
        return self.inside(pick(q, u)), q

    def judge(self, logits: Tensor, drafted: Tensor, qs: Sequence[Tensor], u: Tensor | None) -> tuple[Tensor, ...]:
        """How many drafts pass [B], the token after them [B], what target and draft gave each draft [B, 2k], and
        whether there was no NaN or ∞."""
        q = torch.stack(qs, 1) if qs else None  # [B, k, V]
        q_drafted = at(q, drafted) if qs else torch.ones_like(drafted)
        if u is None:
            best, sound = self.best(logits)  # [B, k + 1]
            p_drafted = best[:, :-1] == drafted
            accepted = p_drafted.long().cumprod(-1).sum(-1)
            token = best.gather(1, accepted[:, None])[:, 0]
        else:
            p = self.sampling.unchecked_probs(logits)  # [B, k + 1, V]
            p_drafted, sound = at(p[:, :-1], drafted), whole(p) if q is None else whole(p) & whole(q)
            accepted, token = chain_batch(p, q, drafted, None, u, pick=pick)
            token = self.inside(token)
        return accepted, token, torch.cat([p_drafted.double(), q_drafted.double()], 1), sound

    def cycle(self, line: list[int], chances: list[float]) -> Cycle:
        *drafted, token, accepted = line
        p, q = chances[: self.k], chances[self.k :]
        return Cycle.of(Draft(drafted), list(range(accepted)), token, p, q, 0)


class TreeSpeculator(Speculator):
    """Speculative decoding with trees of `drafter`, at most k deep."""

    @on_the_device
    def __init__(self, target: FastTransformer, drafter: DeviceDrafter, k: int, sampling=None):
        self.drafter, self.k, self.nodes, self.most = drafter, k, drafter.nodes, k + 1
        self.kernels = trees if has_kernels(target.device, target.dtype) else None
        steps = trees.laid_out, trees.walk
        self.laid_out, self.walk = steps if self.kernels else (trees.laid_out_torch, trees.walk_torch)
        # One line a cycle: tokens, parents and which of them were accepted, then the token after the path.
        super().__init__(target, sampling, line=3 * self.nodes + 1, chances=self.nodes)

    @property
    def numbers(self) -> int:
        return 0 if self.sampling.greedy else self.nodes + 1

    def state(self) -> list[Tensor]:
        return [*super().state(), *self.drafter.state()]

    def read_prompts(self, tokens: Tensor, counts: Tensor) -> None:
        hidden = self.target.prefill(tokens, counts, self.drafter.hidden_layers)
        self.drafter.start(self.text[:, 1 : tokens.shape[1] + 1], hidden, counts)

    def step(self) -> None:
        self.marks[0].record()
        tokens, parents = self.drafter.propose(self.text, self.count)  # [B, nodes] each
        self.marks[1].record()
        new, mask, offsets = self.laid_out(tokens, parents, self.text, self.count, self.k)
        logits, hidden = self.target.verify(new, mask, offsets, self.drafter.hidden_layers)
        self.marks[2].record()
        path, verified, run, added, line, chances = self.verdict(logits, tokens, parents, mask, offsets)
        if self.kernels:
            self.kernels.move(self.target.cache.keys, self.target.cache.values, path, self.count)
        else:
            self.target.cache.gather(path, self.count)
        self.commit(run, added, line, chances)
        self.drafter.settle(hidden, verified, run, added)
        self.marks[3].record()

    def verdict(self, logits: Tensor, tokens: Tensor, parents: Tensor, mask: Tensor, offsets: Tensor):
        """The accepted path [B, k] (unused places hold their own number), the same as slots of the pass, after the last
        token's [B, k + 1], its tokens and the one after them [B, k + 1], how many these are [B], and what the report
        says of it."""
        B, k = len(tokens), self.k
        if self.sampling.greedy:
            return self.walk(self.target.best_tokens(logits), tokens, parents, k, self.sound)
        above, depths = mask[:, 1:, 1:], offsets[:, 1:]
        accepted, token, chances, sound = self.judge(logits, tokens, parents, above, self.take(self.numbers))
        self.sound &= sound
        kept = accepted.sum(-1)
        # Where each accepted node goes: to its depth on the path. The others go to a column that nobody reads.
        place, node = torch.where(accepted, depths - 1, k), self.target.places[: self.nodes].repeat(B, 1)
        path = self.target.places[: k + 1].repeat(B, 1).scatter_(1, place, node)[:, :k]
        run = torch.zeros(B, k + 1, dtype=torch.long, device=path.device).scatter_(1, place, tokens)
        run.scatter_(1, kept[:, None], token[:, None])
        line = torch.cat([tokens, parents, accepted.long(), token[:, None]], 1)
        return path, F.pad(path + 1, (1, 0)), run, kept + 1, line, chances

    def commit(self, run: Tensor, added: Tensor, line: Tensor, chances: Tensor) -> None:
        """Append the first `added` [B] of run [B, k + 1] to the text, and report the cycle."""
        if self.kernels:
            to = self.text, self.count, self.target.lengths, self.report
            self.kernels.commit(run, added, line, chances, self.sound, *to)
        else:
            self.append(run, added)
            self.target.lengths.copy_(self.count - 1)  # the last token is unprocessed
            self.tell(line, chances)

    def judge(self, logits: Tensor, tokens: Tensor, parents: Tensor, above: Tensor, u: Tensor):
        """Which nodes are accepted [B, n], the token after them [B], what the target gave each node [B, n], and whether
        there was no NaN or ∞."""
        p = self.sampling.unchecked_probs(logits)
        accepted, token = tree_batch(p, tokens, parents, above, None, u, pick=pick)
        chances = p.flatten(1).gather(1, (parents + 1) * p.shape[-1] + tokens)
        return accepted, self.inside(token), chances.double(), finite(p)

    def cycle(self, line: list[int], chances: list[float]) -> Cycle:
        n, token = self.nodes, line[-1]
        tokens, parents, accepted = line[:n], line[n : 2 * n], line[2 * n : 3 * n]
        path = [node for node in range(n) if accepted[node]]
        return Cycle.of(Draft(tokens, None, parents), path, token, chances, None, 0)
