"""Choosing the draft length while running: the k that promises the most tokens per second, from what was measured.

The choice looks at acceptances and times of earlier cycles alone, which are known before the next token is sampled, so
the output still follows the target's distribution. A rule that looked at the sampled tokens would bias it.
"""

import math
from collections.abc import Sequence

import numpy as np

from ..trace import Cycle


class AdaptiveLength:
    """Maximise E[N](k) / (k · t_draft + t_verify(k + 1)) over k, with running averages of all three."""

    def __init__(self, longest: int = 8, memory: float = 0.97, explore_every: int = 24):
        self.longest, self.memory, self.explore_every = longest, memory, explore_every
        self.accept = [0.7] * longest  # β_i: acceptance at each position, given the ones before
        self.tested = [0] * longest  # how many drafts at each position that knows of
        self.draft_seconds: dict[int, float] = {}  # k → seconds, as seen
        self.verify_seconds: dict[int, float] = {}  # k → seconds of the target's pass
        self.cycles = 0

    def choose(self) -> int:
        """The next draft length; now and then an untried or long unseen one, plain decoding (0) included."""
        tries = [k for k in (min(4, self.longest), 0, 1, self.longest) if k not in self.verify_seconds]
        if tries:
            return tries[0]
        best = max(range(self.longest + 1), key=self.speed)
        if self.cycles % self.explore_every == 0:
            if untried := [k for k in range(self.longest + 1) if k not in self.verify_seconds]:
                return min(untried, key=lambda k: abs(k - best))  # so far a guess between its neighbours
            longer = best == 0 or (best < self.longest and (self.cycles // self.explore_every) % 2)
            return best + 1 if longer else best - 1  # the neighbours may have become better
        return best

    def speed(self, k: int) -> float:
        """Predicted tokens per second with drafts of length k."""
        tokens = 1 + sum(math.prod(self.accept[:i]) for i in range(1, k + 1))
        return tokens / (at(self.draft_seconds | {0: 0.0}, k) + at(self.verify_seconds, k))

    def learn(self, k: int, cycles: Sequence[Cycle]) -> None:
        """One pass is over, with one cycle per sequence."""
        self.cycles += 1
        for cycle in cycles:
            for i in range(min(cycle.tested, self.longest)):
                self.tested[i] += 1
                weight = max(1 - self.memory, 1 / (2 + self.tested[i]))  # first a plain average, then a running one
                self.accept[i] += weight * ((i < cycle.accepted) - self.accept[i])
        if self.cycles == 1:
            return  # the draft model processed the prompt and everything was cold: no time to go by
        draft_seconds, verify_seconds = cycles[0].draft_seconds, cycles[0].verify_seconds
        for seen, seconds in ((self.draft_seconds, draft_seconds), (self.verify_seconds, verify_seconds)):
            seen[k] = seconds + 0.9 * (seen.get(k, seconds) - seconds)


def at(seen: dict[int, float], k: int) -> float:
    """Seconds at k: as seen, or on the straight line between the nearest seen lengths."""
    return float(np.interp(k, *zip(*sorted(seen.items()), strict=True)))
