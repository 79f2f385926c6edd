"""One budget for all drafts: in a batch, the draft tokens of all sequences compete for the tokens of one verify pass.

A verify pass is nearly free up to some number of tokens, so a full batch cannot verify k draft tokens of everybody. An
equal share gives a token to a sequence whose drafts fail as readily as to one whose drafts pass. Here each draft token
has a probability to *survive*: that it and all before it in its draft are accepted. It is worth exactly that many
tokens on average, so the best set of N draft tokens has the largest sum of survival probabilities.

**Greedy is optimal.** The N largest probabilities of all have the largest sum, and the set is prefix-closed without
being told to: along a draft survival is a product of numbers ≤ 1, so it never rises, and of equal ones the earlier
goes first. A token is therefore never taken without those before it.

**The choice must not look at what it decides about.** Whether draft token j of a sequence is verified may depend on
tokens before it, on other sequences and on the past, but not on token j itself: if unlikely tokens were left out after
they were sampled, those that stay would no longer follow the q that the verifier divides by, and the output would lean
to what the draft model likes. So the confidence of slot j is the peak of q_j, known *before* the token is sampled, and
not q_j(d_j). Why the whole choice is then exact: picture it made one slot at a time. The most likely slot of all is
taken; only then is its token sampled and verified, and only then does the slot after it show its confidence. Each
step's decision uses what earlier steps have shown, and verification makes the next token of its sequence follow p
whatever came before. Sampling all drafts first and then taking the N best slots gives the same set, because a slot's
rank depends on nothing that comes after it in its draft, and the tokens of slots that were not taken are thrown away
unused. (Where nothing is sampled, as for greedy drafts, the token tells no more than the prefix, and any look is fair.)
"""

import heapq
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul

from ..tree import Draft, cut


def survival(confidences: Sequence[float]) -> list[float]:
    """The probability of each slot that it and all before it pass."""
    return list(accumulate((min(1.0, float(c)) for c in confidences), mul))


def best_lengths(survivals: Sequence[Sequence[float]], budget: int) -> list[int]:
    """How many tokens of each draft to verify, `budget` in all: those most likely to survive."""
    lengths = [0] * len(survivals)
    first = [(-probs[0], s) for s, probs in enumerate(survivals) if probs]
    heapq.heapify(first)
    for _ in range(budget):
        if not first:
            break
        _, s = heapq.heappop(first)
        lengths[s] += 1
        if lengths[s] < len(survivals[s]):
            heapq.heappush(first, (-survivals[s][lengths[s]], s))
    return lengths


def allocate(drafts: Sequence[Draft], confidences: Sequence[Sequence[float]], budget: int) -> list[Draft]:
    """The drafts of a step, cut to what is verified."""
    lengths = best_lengths([survival(row) for row in confidences], budget)
    return [cut(draft, n) for draft, n in zip(drafts, lengths, strict=True)]


# ---- what it is worth, in theory -------------------------------------------------------------------------------------


def expected_tokens(survivals: Sequence[Sequence[float]], lengths: Sequence[int]) -> float:
    """Tokens that a step emits on average: one for each sequence, and the draft tokens that survive."""
    return len(survivals) + sum(sum(probs[:n]) for probs, n in zip(survivals, lengths, strict=True))


def fastest(survivals: Sequence[Sequence[float]], cost: Callable[[int], float]) -> tuple[int, float]:
    """The budget with the most tokens per time, and these: cost(M) is the time of a step whose pass has M tokens.

    For planning, or from the confidences of an earlier step. From those of the drafts themselves it would be biased:
    the peak of a later slot depends on an earlier token, and would decide whether that one is verified."""
    most = sum(map(len, survivals))
    rates = []
    for budget in range(most + 1):
        lengths = best_lengths(survivals, budget)
        rates.append(expected_tokens(survivals, lengths) / cost(len(survivals) + sum(lengths)))
    best = max(range(most + 1), key=rates.__getitem__)
    return best, rates[best]
