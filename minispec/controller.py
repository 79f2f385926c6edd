"""Who drafts how far: the sizes of drafts that promise the most tokens per second, from what was measured.

A step serves B sequences. If m of them draft, each up to size n (tokens of a chain, nodes of a tree), the step is
expected to emit B + gain(n) · Σ gᵢ tokens, where the sum is over those m. Chosen are n and m, none among them, with the
most tokens per second.

    gain(n)         accepted tokens of a draft of size n, on average over all sequences
    gᵢ              how sequence i compares with that: what was accepted of its own drafts over what was expected.
                    Of any m sequences those with the highest gᵢ draft
    seconds(B, n)   of a whole step in which all of B sequences draft up to size n: draft, pass, host, everything.
                    If m of them do, it takes as long as one with as many tokens, B + m · n, in which all draft

**Exact.** The choice depends on cycles and times of the past alone, which are known before the next draft is made. A
rule that looked at sampled tokens, and cut off those that it believed in least, would leave others than q promises, and
bias the output.

**What is not tried is not known.** A size is tried again for TRIAL steps as soon as that costs, as far as is known,
less than ε of the time since the last trial. So all trials together cost ε at most, and what has looked worse waits
longer.

**A change costs time, too** (a cycle that was launched ahead is dropped, a draft cache has to catch up). Steps that
another choice would have shortened add up to what is lost so far; the choice changes when that exceeds what a change
costs, as one buys at last what one has rented for as much.
"""

import warnings
from bisect import bisect
from collections import deque
from collections.abc import Hashable, Sequence
from itertools import accumulate
from operator import mul
from statistics import median

PRIOR = 0.7  # the chance of each draft token, before anything is known
FEW = 0.1  # accepted of the smallest drafts: a drafter with less is of no use
LATELY = 50  # steps with a size, for its time
ENOUGH = 8  # drafts before a size is judged by what they came to
TRIAL = 4  # steps that a trial takes: the first of them may still pay for the change
EPSILON = 0.01  # of the time: what all trials together may cost
CHANGES = 5  # lately, for what a change costs


def at(seen: dict[int, float], x: float) -> float:
    """As seen, in order, or on the straight line between the nearest ones."""
    counts = list(seen)
    i = bisect(counts, x)
    if i in (0, len(counts)):
        return seen[counts[max(0, i - 1)]]
    a, b = counts[i - 1 : i + 1]
    return seen[a] + (seen[b] - seen[a]) * (x - a) / (b - a)


def expected(accept: Sequence[float]) -> float:
    """Tokens of a chain that are accepted on average: β₁ + β₁β₂ + …"""
    return sum(accumulate(accept, mul))


class Controller:
    """Choose each sequence's next draft among `sizes`, or none.

    With `depth` drafts are trees, at most so deep. Without, a draft is the beginning of every larger one, so it shows
    what smaller ones would have come to. `padded`: a pass takes as long as if all drafts were as large as the largest,
    so all get the same. A choice holds for `hold` steps. `memory`: so much of what a step has shown counts in the next.
    """

    def __init__(self, sizes: Sequence[int], depth: int | None = None, *, hold=1, padded=False, memory=0.99):
        self.sizes, self.chains, self.memory = sorted({0, *sizes}), depth is None, memory
        self.hold, self.padded = hold, padded
        self.accept = [PRIOR] * (self.sizes[-1] if depth is None else depth)  # βᵢ: of those tested at each position
        self.gain = {n: expected(self.accept[:n]) for n in self.sizes}
        self.drafts = dict.fromkeys(self.sizes, 0)  # how many of each size there were
        self.counts: dict[int, tuple[float, int]] = {}  # how many count for βᵢ, or for a tree's gain, and at which step
        self.own: dict[Hashable, float] = {}  # gᵢ
        self.seconds: dict[int, dict[int, float]] = {n: {} for n in self.sizes}  # size → B → seconds
        self.lately: dict[tuple[int, int], deque[float]] = {}  # of the last steps: their median is above
        self.changes = deque([0.0] * CHANGES, maxlen=CHANGES)  # by how much a step after a change took longer
        self.clock = self.last_trial = 0.0  # seconds of all steps
        self.tried = dict.fromkeys(self.sizes, 0.0)  # when each size was chosen
        self.steps = self.until = self.since = 0  # until which one the plan holds, and at which it was made
        self.plan: dict[Hashable, int] = {}  # what was chosen
        self.usual: dict[Hashable, int] = {}  # the same without trials …
        self.lost = 0.0  # … and the seconds that it has cost by now, compared with the best
        self.last: tuple | None = None  # sequences and size of the step before
        self.only: int | None = None  # the one size, while an engine is warmed up
        self.told = False

    # ---- what is expected ------------------------------------------------------------------------------------------

    def seconds_of(self, n: int, B: float) -> float:
        """Of a step with drafts of size n: as measured with so many sequences, else so many times as long as one
        without drafts as it was with the nearest numbers. Sizes without a time lie between those that have one."""
        plain, drafting, counts = self.seconds[0], self.seconds[n], list(self.seconds[n])
        if not counts:
            return at({size: self.seconds_of(size, B) for size in self.sizes if self.seconds[size]}, n)
        i = bisect(counts, B)
        nearest = counts[max(0, i - 1) : i + 1]
        return at(plain, B) * at({b: drafting[b] / at(plain, b) for b in nearest}, B)

    def step(self, B: int, n: int, m: int, own: float) -> tuple[float, float]:
        """Tokens and seconds of a step of B sequences, of which m draft up to size n, whose gᵢ come to `own`."""
        return B + self.gain[n] * own, self.seconds_of(n, (B + n * m) / (1 + n))

    def known(self, n: int) -> bool:
        """Whether a size was tried enough to be judged."""
        return bool(self.seconds[n]) and (n == 0 or self.chains or self.drafts[n] >= ENOUGH)

    def gains(self) -> dict[int, float]:
        """gain(n) of each size. A tree of a size that was not tried may gain as much as a larger one: so it is tried,
        if that would be best."""
        if self.chains:
            return {n: expected(self.accept[:n]) for n in self.sizes}
        gains, most = {}, self.gain[self.sizes[-1]]
        for n in reversed(self.sizes):
            gains[n] = most = self.gain[n] if self.known(n) else most
        return dict(sorted(gains.items())) | {0: 0.0}

    # ---- the choice ------------------------------------------------------------------------------------------------

    def choose(self, ids: Sequence[Hashable], most: int | None = None) -> list[int]:
        """The size that the next draft of each sequence may have, so that all together have at most so many nodes."""
        self.steps += 1
        if self.steps > self.until or any(id not in self.plan for id in ids):
            self.most = self.sizes[-1] if most is None else max(0, most // len(ids))  # for each
            self._renew(ids, self.steps)
        return [self.plan[id] for id in ids]

    def rests(self, ids: Sequence[Hashable]) -> bool:
        """Whether nobody drafts in this step either, as was chosen before: the host's shortest way through it."""
        if self.steps >= self.until or any(self.plan.values()) or not self.plan.keys() >= set(ids):
            return False
        self.steps += 1
        return True

    def stays(self) -> bool:
        """Whether the next step drafts as this one, so that it can be launched before this one has ended. If the choice
        ends with this step, the next one is made now."""
        if self.steps < self.until:
            return True
        before = self.plan
        self._renew(list(before), self.steps + 1)
        return self.plan == before

    def _renew(self, ids: Sequence[Hashable], step: int) -> None:
        """The choice that holds from this step on."""
        self.gain = self.gains()
        sizes, hold = self._choose(ids, step)
        self.plan, self.until, self.since = dict(zip(ids, sizes, strict=True)), step + hold - 1, step
        self.tried.update(dict.fromkeys(sizes, self.clock))

    def _choose(self, ids: Sequence[Hashable], step: int) -> tuple[list[int], int]:
        """Sizes, and for how many steps. At first the largest, since it tells the most, and none at all."""
        B, few, largest = len(ids), min(self.hold, TRIAL), max(n for n in self.sizes if n <= self.most)
        first = [n for n in (largest, 0) if not self.known(n)] if self.only is None else [self.only]
        if first:
            return first[:1] * B, few
        own, change = [self.own.get(id, 1.0) for id in ids], max(0.0, median(self.changes))
        best, rate = self.fastest(own)
        before = max(self.usual.values(), default=0)
        now = [self.usual.get(id, before) for id in ids]
        drafting = [g for g, n in zip(own, now, strict=True) if n]
        tokens, seconds = self.step(B, max(now), len(drafting), sum(drafting))
        self.lost += (step - self.since) * (seconds - tokens / rate)
        hold = self.hold
        if self.lost >= change or now == best or max(now) > largest:
            hold = self.hold if now == best else few  # what is new has to prove itself
            now, self.lost = best, 0.0
        self.usual = dict(zip(ids, now, strict=True))
        if (trial := self.trial(own, now, rate, few, change)) is not None:
            return [trial] * B, few
        smallest = self.sizes[1]
        if not self.told and not any(now) and self.gain[smallest] < FEW:
            self.told = True
            warnings.warn(
                f"of drafts of size {smallest} {self.gain[smallest]:.0%} are accepted, so there is hardly any drafting "
                "from now on: is this drafter made for this model, and for such texts?",
                stacklevel=2,
            )
        return now, hold

    def trial(self, own: list[float], now: list[int], rate: float, steps: int, change: float) -> int | None:
        """A size whose trial costs less than ε of the time since the last one, or None. Each has its share of ε, so
        that the worse it looks, the longer it waits."""
        B, cost = len(own), {}
        for n in self.sizes:
            if n <= self.most and now != [n] * B:
                tokens, seconds = self.step(B, n, B, sum(own))
                cost[n] = steps * max(0.0, seconds - tokens / rate) + 2 * change
        share, since = EPSILON / len(self.sizes), self.clock - self.last_trial
        n = max(cost, key=lambda n: share * (self.clock - self.tried[n]) - cost[n], default=None)
        if n is None or cost[n] >= EPSILON * since:
            return None
        self.last_trial = self.clock
        return n

    def fastest(self, own: list[float]) -> tuple[list[int], float]:
        """The sizes with the highest speed, for sequences with these gᵢ, and that speed."""
        B = len(own)
        order = sorted(range(B), key=lambda i: -own[i])
        together = list(accumulate((own[i] for i in order), initial=0.0))  # Σ gᵢ of the first m
        ways = [(n, m) for n in self.sizes[1:] if n <= self.most for m in ([B] if self.padded else range(1, B + 1))]
        steps = {(n, m): self.step(B, n, m, together[m]) for n, m in [(0, 0), *ways]}
        speeds = {way: tokens / seconds for way, (tokens, seconds) in steps.items()}
        size, drafting = max(speeds, key=speeds.get)
        chosen = set(order[:drafting])
        return [size if i in chosen else 0 for i in range(B)], speeds[size, drafting]

    # ---- what came of it -------------------------------------------------------------------------------------------

    def learn(self, id: Hashable, size: int, accepted: int) -> None:
        """A sequence was allowed a draft of this size, and so many of its tokens were accepted."""
        if size == 0:
            return
        own = self.own.get(id, 1.0)
        self.own[id] = own + 0.05 * (accepted / max(self.gain[size], FEW) - own)
        if self.chains:
            for i in range(min(accepted + 1, size)):
                self.accept[i] += self.weight(i) * ((i < accepted) - self.accept[i])
        else:
            self.gain[size] += self.weight(size) * (accepted - self.gain[size])
        self.drafts[size] += 1

    def weight(self, key: int) -> float:
        """Of the next number in an average. What was learnt before fades step by step, so a few drafts after a long
        pause say more than all before it."""
        count, step = self.counts.get(key, (0.0, 0))
        count = 1 + max(min(count, ENOUGH), count * self.memory ** (self.steps - step))
        self.counts[key] = count, self.steps
        return 1 / (1 + count)

    def time(self, ids: Sequence[Hashable], sizes: Sequence[int], seconds: float) -> None:
        """A step of these sequences with drafts of these sizes took so long."""
        # The first step of all is cold. In an engine, one with another choice or somebody new pays for the change.
        this, last, n, B = (tuple(ids), sizes[0]), self.last, sizes[0], len(sizes)
        self.last, self.clock = this, self.clock + seconds
        if not min(sizes) == max(sizes) in self.seconds:
            return
        known = B in self.seconds[n]
        if this == last if self.hold > 1 else self.steps > 1:
            lately = self.lately.setdefault((n, B), deque(maxlen=LATELY))
            lately.append(seconds)
            # Where a step is launched ahead of the host, long and short ones alternate: the shortest would say little.
            self.seconds[n][B] = median(lately)
            if not known:
                self.seconds[n] = dict(sorted(self.seconds[n].items()))
        elif known and last and last[0] == this[0]:
            self.changes.append(seconds - self.seconds[n][B])
            self.lately[n, B] = deque(maxlen=LATELY)  # times change, too: the host of a GPU may have two speeds

    def to_dict(self) -> dict:
        """What it goes by, as plain data: for each size the tokens accepted of a draft, lately, and the seconds of a
        step by the number of sequences. And the largest size that it allows now."""
        said = lambda n: {"accepted": self.gain[n], "drafts": self.drafts[n], "seconds": self.seconds[n]}  # noqa: E731
        return {"sizes": {n: said(n) for n in self.sizes}, "size": self.size}

    @property
    def size(self) -> int:
        """The largest that it allows now."""
        return max(self.plan.values(), default=0)

    @property
    def drafts_lately(self) -> bool:
        """Whether anybody drafts as a rule, or nothing is known yet."""
        return not self.usual or any(self.usual.values())

    def forget(self, id: Hashable) -> None:
        """The sequence has ended."""
        self.own.pop(id, None)
        self.plan.pop(id, None)
