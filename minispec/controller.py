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

**What is not tried is not known.** A size that might be the best is tried. One that looked worse is tried again, the
later the worse it looked: texts change, and so do times.
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
    so all get the same. A choice holds for `hold` steps. `retry`: steps between two trials, and after which a size that
    looked as good as the best is tried again.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        depth: int | None = None,
        *,
        hold: int = 1,
        padded: bool = False,
        retry: int = 24,
        memory: float = 0.99,
    ):
        self.sizes, self.chains, self.memory = sorted({0, *sizes}), depth is None, memory
        self.hold, self.retry, self.padded = hold, retry, padded
        deepest = self.sizes[-1] if depth is None else depth
        self.accept, self.tested = [PRIOR] * deepest, [0] * deepest  # βᵢ: of those tested at each position of a chain
        self.gain = {n: expected(self.accept[:n]) for n in self.sizes}
        self.drafts = dict.fromkeys(self.sizes, 0)  # how many of each size there were
        self.own: dict[Hashable, float] = {}  # gᵢ
        self.seconds: dict[int, dict[int, float]] = {n: {} for n in self.sizes}  # size → B → seconds
        self.lately: dict[tuple[int, int], deque[float]] = {}  # of the last steps: their median is above
        self.steps, self.tried = 0, dict.fromkeys(self.sizes, 0)  # the last step with drafts of this size
        self.plan: dict[Hashable, int] = {}  # what was chosen, and until which step it holds
        self.until = self.last_trial = 0
        self.last: tuple | None = None  # sequences and size of the step before
        self.only: int | None = None  # the one size, while an engine is warmed up
        self.told = False

    # ---- what is expected ------------------------------------------------------------------------------------------

    def seconds_of(self, n: int, B: float) -> float:
        """Of a step with drafts of size n: as measured with so many sequences, else so many times as long as one
        without drafts as it was with the nearest numbers."""
        plain, drafting, counts = self.seconds[0], self.seconds[n], list(self.seconds[n])
        i = bisect(counts, B)
        nearest = counts[max(0, i - 1) : i + 1]
        return at(plain, B) * at({b: drafting[b] / at(plain, b) for b in nearest}, B)

    def speeds(self, B: int) -> list[float]:
        """Tokens per second, if all drafts have each size. Times that were not measured lie between those that were."""
        known = {n: self.seconds_of(n, B) for n in self.sizes if self.seconds[n]}
        return [B * (1 + gain) / at(known, n) for n, gain in self.gain.items()]

    def gains(self) -> dict[int, float]:
        """gain(n) of each size. A tree of a size that was not tried gains at most what a larger one does."""
        if self.chains:
            return {n: expected(self.accept[:n]) for n in self.sizes}
        gains, most = {}, float("inf")
        for n in reversed(self.sizes):
            most = min(most, self.gain[n]) if self.drafts[n] < ENOUGH else self.gain[n]
            gains[n] = most if n else 0.0
        return dict(sorted(gains.items()))

    # ---- the choice ------------------------------------------------------------------------------------------------

    def choose(self, ids: Sequence[Hashable], most: int | None = None) -> list[int]:
        """The size that the next draft of each sequence may have, so that all together have at most so many nodes."""
        self.steps += 1
        if self.steps > self.until or any(id not in self.plan for id in ids):
            self.most = self.sizes[-1] if most is None else max(0, most // len(ids))  # for each
            self._renew(ids, self.steps)
        return [self.plan[id] for id in ids]

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
        sizes, hold = self._choose(ids)
        self.plan, self.until = dict(zip(ids, sizes, strict=True)), step + hold - 1
        self.tried.update(dict.fromkeys(sizes, step))

    def _choose(self, ids: Sequence[Hashable]) -> tuple[list[int], int]:
        """Sizes, and for how many steps."""
        B = len(ids)
        self.gain = self.gains()
        if (trial := self.only if self.only is not None else self.trial(B)) is not None:
            return [trial] * B, min(self.hold, TRIAL)
        sizes = self.fastest([self.own.get(id, 1.0) for id in ids])
        smallest = self.sizes[1]
        if not self.told and not any(sizes) and self.gain[smallest] < FEW:
            self.told = True
            warnings.warn(
                f"of drafts of size {smallest} {self.gain[smallest]:.0%} are accepted, so there is hardly any drafting "
                "from now on: is this drafter made for this model, and for such texts?",
                stacklevel=2,
            )
        return sizes, self.hold

    def trial(self, B: int) -> int | None:
        """A size that is to be tried, or None. At first the largest, since it tells the most, and none at all; then
        whatever might be better than what was tried; and in the end, one at a time, what was not tried for long."""
        sizes = [n for n in self.sizes if n <= self.most]
        known = [bool(self.seconds[n]) and (n == 0 or self.chains or self.drafts[n] >= ENOUGH) for n in sizes]
        if not (known[-1] and known[0]):
            return 0 if known[-1] else sizes[-1]
        speeds = dict(zip(sizes, self.speeds(B), strict=False))
        best = max(speeds[n] for n, tried in zip(sizes, known, strict=True) if tried)
        if max(speeds.values()) > best:
            return max(sizes, key=speeds.get)
        # The worse a size looks, the longer it can wait.
        waited = {n: (self.steps - self.tried[n]) * (speeds[n] / best) ** 2 for n in sizes}
        longest = max(sizes, key=waited.get)
        if waited[longest] < self.retry or self.steps - self.last_trial < self.retry:
            return None
        self.last_trial = self.steps
        return longest

    def fastest(self, own: list[float]) -> list[int]:
        """The sizes with the highest speed, for sequences with these gᵢ."""
        B = len(own)
        order = sorted(range(B), key=lambda i: -own[i])
        tokens = list(accumulate(own[i] for i in order))  # Σ gᵢ of the first m
        best, size, drafting = B / at(self.seconds[0], B), 0, 0
        for n in self.sizes[1:]:
            if n <= self.most and self.seconds[n]:
                for m in [B] if self.padded else range(1, B + 1):
                    speed = (B + self.gain[n] * tokens[m - 1]) / self.seconds_of(n, (B + n * m) / (1 + n))
                    if speed > best:
                        best, size, drafting = speed, n, m
        chosen = set(order[:drafting])
        return [size if i in chosen else 0 for i in range(B)]

    # ---- what came of it -------------------------------------------------------------------------------------------

    def learn(self, id: Hashable, size: int, accepted: int) -> None:
        """A sequence was allowed a draft of this size, and so many of its tokens were accepted."""
        if size == 0:
            return
        own = self.own.get(id, 1.0)
        self.own[id] = own + 0.05 * (accepted / max(self.gain[size], FEW) - own)
        if self.chains:
            for i in range(min(accepted + 1, size)):
                self.tested[i] += 1
                self.accept[i] += self.weight(self.tested[i]) * ((i < accepted) - self.accept[i])
        else:
            self.gain[size] += self.weight(self.drafts[size]) * (accepted - self.gain[size])
        self.drafts[size] += 1

    def weight(self, count: int) -> float:
        """Of the next number in an average: first a plain one, then a running one."""
        return max(1 - self.memory, 1 / (2 + count))

    def time(self, ids: Sequence[Hashable], sizes: Sequence[int], seconds: float) -> None:
        """A step of these sequences with drafts of these sizes took so long."""
        # The first step of all is cold. In an engine, one with another choice or somebody new pays for the change.
        this = tuple(ids), sizes[0]
        steady, self.last = (this == self.last if self.hold > 1 else self.steps > 1), this
        if steady and min(sizes) == max(sizes) in self.seconds:
            n, B = sizes[0], len(sizes)
            lately = self.lately.setdefault((n, B), deque(maxlen=LATELY))
            lately.append(seconds)
            known = B in self.seconds[n]
            # Where a step is launched ahead of the host, long and short ones alternate: the shortest would say little.
            self.seconds[n][B] = median(lately)
            if not known:
                self.seconds[n] = dict(sorted(self.seconds[n].items()))

    def to_dict(self) -> dict:
        """What it goes by, as plain data: for each size the tokens accepted of a draft, lately, and the seconds of a
        step by the number of sequences. And the largest size that it allows now."""
        known = {
            n: {"accepted": self.gain[n], "drafts": self.drafts[n], "seconds": self.seconds[n]} for n in self.sizes
        }
        return {"sizes": known, "size": self.size}

    @property
    def size(self) -> int:
        """The largest that it allows now."""
        return max(self.plan.values(), default=0)

    def forget(self, id: Hashable) -> None:
        """The sequence has ended."""
        self.own.pop(id, None)
        self.plan.pop(id, None)
