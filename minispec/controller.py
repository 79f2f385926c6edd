"""How far to draft: the size of drafts that promises the most tokens per second, from what was measured.

A step serves B sequences, all of which may draft up to size n (tokens of a chain, nodes of a tree; 0: nobody drafts).
Chosen is the n with the most tokens per second:

    speed(n) = B · (1 + gain(n)) / seconds(B, n)

    gain(n)         accepted tokens of a draft of size n, on average over all sequences
    seconds(B, n)   of a whole such step: draft, pass, host, everything

(All get the same size, since a pass takes as long as its largest draft allows, and since a time that was measured is
better than one that was put together. A drafter may draft less for one sequence: n-grams that find nothing do.)

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
from collections.abc import Collection, Hashable, Sequence
from itertools import accumulate
from operator import mul
from statistics import fmean, median

LONGEST = 8  # draft with k="auto", and chain of an engine
PRIOR = 0.7  # the chance of each draft token, before anything is known
FEW = 0.1  # accepted of the smallest drafts: a drafter with less is of no use
LATELY = 50  # steps with a size, for its time
ENOUGH = 8  # drafts before a size is judged by what they came to
TRIAL = 4  # steps that a trial takes: the first of them may still pay for the change
EPSILON = 0.01  # of the time: what all trials together may cost
CHANGES = 6  # lately, for what one costs: to drafts, which have to catch up, and back again


def at(seen: dict[int, float], x: float) -> float:
    """As seen, in order, or on the straight line between the nearest ones."""
    counts = list(seen)
    i = bisect(counts, x)
    if i in (0, len(counts)):
        return seen[counts[max(0, i - 1)]]
    a, b = counts[i - 1 : i + 1]
    return seen[a] + (seen[b] - seen[a]) * (x - a) / (b - a)


def rounded(B: int) -> int:
    """To a power of two or halfway between: passes are padded to such numbers, so their times are one time."""
    power = 1 << (B - 1).bit_length()
    return power * 3 // 4 if power * 3 // 4 >= B else power


def expected(accept: Sequence[float]) -> float:
    """Tokens of a chain that are accepted on average: β₁ + β₁β₂ + …"""
    return sum(accumulate(accept, mul))


class Controller:
    """Choose the size of everybody's next draft among `sizes`, or 0.

    With `depth` drafts are trees, at most so deep. Without, a draft is the beginning of every larger one, so it shows
    what smaller ones would have come to. A choice holds for `hold` steps. `memory`: so much of what a step has shown
    counts in the next.
    """

    def __init__(self, sizes: Sequence[int], depth: int | None = None, *, hold: int = 1, memory: float = 0.99):
        self.sizes, self.chains = sorted({0, *sizes}), depth is None
        self.hold, self.memory = hold, memory
        self.accept = [PRIOR] * (self.sizes[-1] if depth is None else depth)  # βᵢ: of those tested at each position
        self.gain = {n: expected(self.accept[:n]) for n in self.sizes}
        self.drafts = dict.fromkeys(self.sizes, 0)  # how many of each size there were
        self.counts: dict[int, tuple[float, int]] = {}  # how many count for βᵢ, or for a tree's gain, and at which step
        self.seconds: dict[int, dict[int, float]] = {n: {} for n in self.sizes}  # size → B → seconds
        self.lately: dict[tuple[int, int], deque[float]] = {}  # of the last steps: their median is above
        self.changes = deque([0.0] * CHANGES, maxlen=CHANGES)  # by how much a step after a change took longer
        self.clock = self.last_trial = 0.0  # seconds of all steps
        self.tried = dict.fromkeys(self.sizes, 0.0)  # when each size was chosen
        self.steps = self.until = self.since = 0  # until which one the choice holds, and at which it was made
        self.size, self.ids = 0, set()  # what was chosen, and for whom
        self.usual: int | None = None  # the same without trials …
        self.lost = 0.0  # … and the seconds that it has cost by now, compared with the best
        self.last: tuple | None = None  # sequences and size of the step before
        self.only: int | None = None  # the one size, while an engine is warmed up
        self.told = False

    # ---- what is expected ------------------------------------------------------------------------------------------

    def seconds_of(self, n: int, B: int) -> float:
        """Of a step with drafts of size n: as measured with so many sequences, else so many times as long as one
        without drafts as it was with the nearest numbers. Sizes without a time lie between those that have one."""
        plain, drafting, counts = self.seconds[0], self.seconds[n], list(self.seconds[n])
        if not counts:
            return at({size: self.seconds_of(size, B) for size in self.sizes if self.seconds[size]}, n)
        i = bisect(counts, B)
        nearest = counts[max(0, i - 1) : i + 1]
        return at(plain, B) * at({b: drafting[b] / at(plain, b) for b in nearest}, B)

    def speed(self, n: int, B: int) -> float:
        """Tokens per second of steps with drafts of size n."""
        return B * (1 + self.gain[n]) / self.seconds_of(n, B)

    def known(self, n: int) -> bool:
        """Whether a size was tried enough to be judged."""
        return bool(self.seconds[n]) and (n == 0 or self.chains or self.drafts[n] >= ENOUGH)

    def gains(self) -> dict[int, float]:
        """gain(n) of each size. A tree of a size that was not tried may gain as much as a larger one, and one that was
        not tried lately gains no less than a smaller one, which is a part of it: so it is tried, if it may be best."""
        if self.chains:
            return {n: expected(self.accept[:n]) for n in self.sizes}
        gains, most = {0: 0.0}, 0.0
        for n in self.sizes[1:]:
            like = next((m for m in self.sizes if m >= n and self.known(m)), self.sizes[-1])
            gains[n] = most = max(most, self.gain[like])
        return gains

    # ---- the choice ------------------------------------------------------------------------------------------------

    def choose(self, ids: Sequence[Hashable], most: int | None = None) -> int:
        """The size that the next draft of these sequences may have, so that all together have at most so many nodes."""
        self.steps += 1
        if self.steps > self.until or not self.ids.issuperset(ids):
            self.most = self.sizes[-1] if most is None else max(0, most // len(ids))  # for each
            self._renew(ids, self.steps)
        return self.size

    def rests(self, ids: Sequence[Hashable]) -> bool:
        """Whether nobody drafts in this step either, as was chosen before: the host's shortest way through it."""
        if self.steps >= self.until or self.size or not self.ids.issuperset(ids):
            return False
        self.steps += 1
        return True

    def stays(self) -> bool:
        """Whether the next step drafts as this one, so that it can be launched before this one has ended. If the choice
        ends with this step, the next one is made now."""
        if self.steps < self.until:
            return True
        before = self.size
        self._renew(self.ids, self.steps + 1)
        return self.size == before

    def _renew(self, ids: Collection[Hashable], step: int) -> None:
        """The choice that holds from this step on."""
        self.gain = self.gains()
        self.size, hold = self._choose(rounded(len(ids)), step)
        self.ids, self.until, self.since = set(ids), step + hold - 1, step
        self.tried[self.size] = self.clock

    def _choose(self, B: int, step: int) -> tuple[int, int]:
        """A size, and for how many steps. At first the largest, since it tells the most, and none at all."""
        few, sizes = min(self.hold, TRIAL), [n for n in self.sizes if n <= self.most]
        first = [n for n in (sizes[-1], 0) if not self.known(n)] if self.only is None else [self.only]
        if first:
            return first[0], few
        speeds = {n: self.speed(n, B) for n in sizes}
        best, change = max(speeds, key=speeds.get), max(0.0, fmean(self.changes))
        now = best if self.usual is None else min(self.usual, sizes[-1])
        self.lost += (step - self.since) * self.seconds_of(now, B) * (1 - speeds[now] / speeds[best])
        hold = self.hold
        if self.lost >= change or now == best:
            hold = self.hold if now == best else few  # what is new has to prove itself
            now, self.lost = best, 0.0
        self.usual = now
        if (trial := self.trial(B, speeds, few, change)) is not None:
            return trial, few
        smallest = self.sizes[1]
        if not self.told and not now and self.gain[smallest] < FEW:
            self.told = True
            warnings.warn(
                f"drafts of size {smallest} gain only {self.gain[smallest]:.2f} tokens on average, so there is hardly "
                "any drafting from now on: is this drafter made for this model, and for such texts?",
                stacklevel=2,
            )
        return now, hold

    def trial(self, B: int, speeds: dict[int, float], steps: int, change: float) -> int | None:
        """A size whose trial costs less than ε of the time since the last one, or None. Each has its share of ε, so
        that the worse it looks, the longer it waits."""
        best, share, since = max(speeds.values()), EPSILON / len(self.sizes), self.clock - self.last_trial
        cost = {
            n: steps * self.seconds_of(n, B) * (1 - speed / best) + 2 * change
            for n, speed in speeds.items()
            if n != self.usual
        }
        n = max(cost, key=lambda n: share * (self.clock - self.tried[n]) - cost[n], default=None)
        if n is None or cost[n] >= EPSILON * since:
            return None
        self.last_trial = self.clock
        return n

    # ---- what came of it -------------------------------------------------------------------------------------------

    def learn(self, size: int, accepted: int) -> None:
        """A sequence was allowed a draft of this size, and so many of its tokens were accepted."""
        if size == 0:
            return
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
        # The first step of all is cold, and one with another choice pays for the change. But what others cost who come
        # and go, and drafts that have to catch up with a prompt's step, belongs to the time of a size under this load.
        this, last, n, B = (tuple(ids), sizes[0]), self.last, sizes[0], rounded(len(sizes))
        self.last, self.clock = this, self.clock + seconds
        if not min(sizes) == max(sizes) in self.seconds:
            return
        known = B in self.seconds[n]
        if last and n == last[1] if self.hold > 1 else self.steps > 1:
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
        step by the number of sequences, rounded. And the largest size that it allows now."""
        said = lambda n: {"accepted": self.gain[n], "drafts": self.drafts[n], "seconds": self.seconds[n]}  # noqa: E731
        return {"sizes": {n: said(n) for n in self.sizes}, "size": self.size}

    @property
    def drafts_lately(self) -> bool:
        """Whether anybody drafts as a rule, or nothing is known yet."""
        return self.usual is None or self.usual > 0

    def forget(self, id: Hashable) -> None:
        """The sequence has ended."""
        self.ids.discard(id)
