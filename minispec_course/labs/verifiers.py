"""The real verifier and the well-known ways to get it wrong: what each emits, exactly, for lessons 06 and 14."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from random import Random
from string import ascii_lowercase
from typing import NamedTuple

import torch
from torch import Tensor

from minispec import exact, theory, verify
from minispec.exact import Model, as_distribution, propose_chain, total_variation
from minispec.sampling import Sampling
from minispec.verify import Context, accept_probability, chain, one_hot, pick, residual

# ---- where a cycle begins -------------------------------------------------------------------------------------------

PRESETS = {
    "a fair draft": ([0.40, 0.25, 0.20, 0.10, 0.05], [0.20, 0.35, 0.15, 0.25, 0.05]),
    "a good draft": ([0.40, 0.25, 0.20, 0.10, 0.05], [0.36, 0.28, 0.18, 0.12, 0.06]),
    "a bad draft": ([0.60, 0.25, 0.10, 0.05, 0.00], [0.05, 0.10, 0.15, 0.30, 0.40]),
    "too sure of itself": ([0.40, 0.25, 0.20, 0.10, 0.05], [0.85, 0.10, 0.03, 0.01, 0.01]),
    "too timid": ([0.80, 0.10, 0.05, 0.03, 0.02], [0.20, 0.20, 0.20, 0.20, 0.20]),
    "nothing in common": ([0.50, 0.30, 0.20, 0.00, 0.00], [0.00, 0.00, 0.00, 0.60, 0.40]),
    "the target itself": ([0.40, 0.25, 0.20, 0.10, 0.05], [0.40, 0.25, 0.20, 0.10, 0.05]),
    "greedy target": ([0.00, 1.00, 0.00, 0.00, 0.00], [0.20, 0.45, 0.20, 0.10, 0.05]),
}


class Place(NamedTuple):
    """Where a cycle begins: what both models say there, and after any tokens that may follow."""

    target: exact.Model
    draft: exact.Model
    labels: str  # a letter for each token


def toy_place(p, q) -> Place:
    """A position with two distributions of your own.

    After token number n both are rotated by n + 1 tokens: the next token has another favourite, and the acceptance
    probability stays what it was.
    """
    p, q = exact.as_distribution("p", p), exact.as_distribution("q", q)

    def turned(probs: Tensor) -> exact.Model:
        return cache(lambda context: probs.roll(sum(x + 1 for x in context)))

    return Place(turned(p), turned(q), ascii_lowercase[: len(p)])


# ---- verifiers ------------------------------------------------------------------------------------------------------

Judged = tuple[list[int], Context]  # indices of the accepted drafts, all tokens of the cycle
ONE, TWO, COUNT, NOTHING = "one position", "two positions", "the count", "nothing"


@dataclass(frozen=True)
class Verifier:
    """How a cycle drafts and how it judges the draft tokens."""

    name: str  # as a menu shows it
    why: str  # what happens, and what follows from it
    bends: str  # the first of ONE, TWO, COUNT that notices; NOTHING: it is right
    judge: Callable[..., Judged]  # (p [k+1, V], q [k, V] or None, drafted, random) → Judged
    propose: Callable = propose_chain


VERIFIERS: dict[str, Verifier] = {}


def listed(name: str, bends: str = ONE, role: str = "judge") -> Callable:
    """Put a function into the menu: as the judge, as its rule to "accept" or to "replace" by, or as the drafter."""

    def add(function: Callable) -> Callable:
        judge = partial(by_chain, **{role: function}) if role in ("accept", "replace") else function
        drafter = role == "propose"
        parts = (by_chain, function) if drafter else (judge, propose_chain)
        VERIFIERS[name] = Verifier(name, " ".join(function.__doc__.split()), bends, *parts)
        return function

    return add


def cycle(target: Model, draft: Model, context: Context, k: int, random, verifier: Verifier) -> tuple[str, Context]:
    """One cycle, as `exact.chain_cycle`: how its first token came about (accepted, corrected, bonus), and all."""
    drafted, q = verifier.propose(draft, context, k, random)
    p = torch.stack([target(context + drafted[:i]) for i in range(len(drafted) + 1)])  # [k+1, V]
    path, tokens = verifier.judge(p, q, drafted, random)
    return "accepted" if 0 in path else "corrected" if drafted else "bonus", tokens


@listed("right: the real verifier", NOTHING)
def by_chain(p: Tensor, q: Tensor | None, drafted: Context, random, **rules) -> Judged:
    """Accept with probability min(1, p/q), resample from the residual, add the bonus token."""
    verdict = chain(p, q, drafted, [random() for _ in p], **rules)
    return verdict.path, verdict.run(drafted)


@listed("right: greedy draft, q one-hot", NOTHING, "propose")
def greedy(draft: Model, context: Context, k: int, random) -> tuple[Context, None]:
    """The draft proposes its likeliest token d, and q is one-hot. Accept with p(d), resample from p without d."""
    drafted = ()
    for _ in range(k):
        drafted += (int(draft(context + drafted).argmax()),)
    return drafted, None


# ---- what replaces a rejected token ----------------------------------------------------------------------------------


@listed("wrong: replace from p", ONE, "replace")
def from_p(p: Tensor, q: Tensor) -> Tensor:
    """After a rejection it samples from p. Accepted tokens already cover min(p, q), which is counted twice."""
    return p


@listed("wrong: replace from q", ONE, "replace")
def from_q(p: Tensor, q: Tensor) -> Tensor:
    """After a rejection it samples from q again, so tokens that q underestimates never get what they lack."""
    return q


@listed("wrong: residual not normalised", ONE, "replace")
def not_normalised(p: Tensor, q: Tensor) -> Tensor:
    """It searches running totals of [p − q]₊ that end below 1, so what is missing goes to the last token."""
    uncovered = (p - q).clamp(min=0)
    uncovered[-1] += 1 - uncovered.sum()
    return uncovered


@listed("wrong: argmax of the residual, no sample", ONE, "replace")
def argmax_of_residual(p: Tensor, q: Tensor) -> Tensor:
    """It takes the likeliest token of the residual instead of sampling from it, so one token gets all of it."""
    return one_hot(int(residual(p, q).argmax()), like=p)


@listed("wrong: residual subtracts only q(d), at d")
def q_of_the_draft_only(p: Tensor, q: Tensor, drafted: Context, random) -> Judged:
    """It keeps one number per draft token. That is enough to accept, but the residual needs q of every token."""
    chosen = torch.tensor(drafted)[:, None]  # [k, 1]
    return by_chain(p, torch.zeros_like(q).scatter_(1, chosen, q.gather(1, chosen)), drafted, random)


# ---- what is accepted ------------------------------------------------------------------------------------------------


@listed("wrong: accept always", ONE, "accept")
def always(p: Tensor, q: Tensor, token: int) -> float:
    """It trusts the draft. No cycle can emit more tokens, but they follow q."""
    return 1.0


@listed("wrong: accept if p(d) ≥ q(d)", ONE, "accept")
def if_likelier(p: Tensor, q: Tensor, token: int) -> float:
    """A threshold instead of a random test. A token that q overestimates even slightly is never accepted."""
    return float(p[token] >= q[token])


@listed("wrong: accept with p(d)", ONE, "accept")
def by_p_alone(p: Tensor, q: Tensor, token: int) -> float:
    """It forgets to divide by q(d), which is right only for a one-hot draft, where q(d) = 1."""
    return float(p[token])


@listed("wrong: accept with q/p", ONE, "accept")
def upside_down(p: Tensor, q: Tensor, token: int) -> float:
    """The ratio is upside down: tokens that q underestimates are often rejected, and overestimated ones always
    accepted."""
    return float((q[token] / p[token]).clamp(max=1)) if p[token] > 0 else 1.0


@listed("wrong: d judged by p of the next position")
def p_one_too_far(p: Tensor, q: Tensor, drafted: Context, random) -> Judged:
    """It tests each draft token against the distribution of the position after it."""
    return by_chain(torch.cat([p[1:], p[-1:]]), q, drafted, random)


# ---- what is drafted, and what the verifier is told about it ---------------------------------------------------------


def _told(draft: Model, context: Context, drafted: Context) -> Tensor:
    """The draft model's distribution at each of its tokens, [k, V]."""
    return torch.stack([draft(context + drafted[:i]) for i in range(len(drafted))])


@listed("wrong: d sampled with top-p, q without it", ONE, "propose")
def q_before_top_p(draft: Model, context: Context, k: int, random) -> tuple[Context, Tensor]:
    """It samples with top-p 0.7 and reports q from before truncation, so the real q is higher than the reported one."""
    truncated = Sampling(temperature=1.0, top_p=0.7)
    drafted, _ = propose_chain(lambda sequence: truncated.probs(draft(sequence).log()), context, k, random)
    return drafted, _told(draft, context, drafted)


@listed("wrong: d is an argmax, q a softmax", ONE, "propose")
def greedy_called_soft(draft: Model, context: Context, k: int, random) -> tuple[Context, Tensor]:
    """It takes the likeliest token and reports the softmax, although that token was certain and not just likely."""
    drafted, _ = greedy(draft, context, k, random)
    return drafted, _told(draft, context, drafted)


@listed("wrong: d dropped untested if q(d) is small", ONE, "propose")
def drop_unlikely(draft: Model, context: Context, k: int, random) -> tuple[Context, Tensor | None]:
    """It drops a sampled token if q(d) < 0.25, so the others are selected and do not follow q. (Keep it and stop:
    exact.)"""
    drafted = ()
    for _ in range(k):
        q = draft(context + drafted)
        d = pick(q, random())
        if float(q[d]) < 0.25:
            break
        drafted = (*drafted, d)
    return drafted, _told(draft, context, drafted) if drafted else None


# ---- what the cycle does ---------------------------------------------------------------------------------------------


@listed("wrong: goes on past a rejection", TWO)
def past_a_rejection(p: Tensor, q: Tensor, drafted: Context, random) -> Judged:
    """It replaces a rejected token and tests the next one, which was drafted after the rejected one. The first token is
    right, but the next is conditioned on a token that is not in the output."""
    path, tokens = [], ()
    for i, d in enumerate(drafted):
        if random() < float(accept_probability(p[i], q[i], d)):
            path, tokens = [*path, i], (*tokens, d)
        else:
            tokens += (pick(residual(p[i], q[i]), random()),)  # and on to d_{i+1}, which was drafted after d_i
    return path, (*tokens, pick(p[-1], random()))


@listed("wrong: one acceptance number per cycle", TWO)
def one_number_for_all(p: Tensor, q: Tensor, drafted: Context, random) -> Judged:
    """All tests of a cycle use the same number, so acceptances are correlated. It takes two draft tokens to see it."""
    u, last = random(), random()
    verdict = chain(p, q, drafted, [u] * len(drafted) + [last])
    return verdict.path, verdict.run(drafted)


@listed("wrong: bonus from the last draft token's p", TWO)
def bonus_one_too_early(p: Tensor, q: Tensor, drafted: Context, random) -> Judged:
    """It samples the bonus from the last draft token's distribution. With k = 1 the bonus is the second token; with
    k = 2 it is the third, and this picture shows two."""
    return by_chain(torch.cat([p[:-1], p[-2:-1]]), q, drafted, random)


@listed("wrong: no bonus", COUNT)
def no_bonus(p: Tensor, q: Tensor, drafted: Context, random) -> Judged:
    """It emits nothing after a fully accepted draft. The distribution is right, each such cycle one token short."""
    path, tokens = by_chain(p, q, drafted, random)
    return path, tokens[: len(drafted)]  # as good as the whole if something was rejected


RIGHT = VERIFIERS["right: the real verifier"]


# ---- what a verifier emits ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Explored:
    """The exact distributions that one verifier gives at one position."""

    place: Place
    verifier: Verifier
    p: Tensor  # [V]
    q: Tensor  # [V]
    parts: dict[str, Tensor]  # of the first token's distribution, by how it came about: accepted, corrected, bonus
    joint: dict[verify.Context, float]  # of the first two tokens
    wanted: dict[verify.Context, float]  # the target's own
    tokens: float  # per cycle
    right_tokens: float  # per cycle of the real verifier
    k: int  # draft tokens per cycle

    @property
    def emitted(self) -> Tensor:
        return sum(self.parts.values())

    @property
    def accepted(self) -> float:
        return float(self.parts["accepted"].sum())

    @property
    def one_place(self) -> float:
        """How far the emitted token is from p, in total variation."""
        return exact.total_variation(self.emitted, self.p)

    @property
    def two_places(self) -> float:
        return exact.total_variation(self.joint, self.wanted)


@torch.inference_mode()
def explore(place: Place, verifier: Verifier | str = RIGHT, k: int = 2, joint_of=exact.joint_distribution) -> Explored:
    """Compose the distributions that a verifier gives at a position, with k draft tokens per cycle: 1 or 2, because all
    their branches are followed."""
    verifier = VERIFIERS[verifier] if isinstance(verifier, str) else verifier
    p, q = place.target(()), place.draft(())
    parts = {kind: torch.zeros_like(p) for kind in ("accepted", "corrected", "bonus")}
    runs: Counter = Counter()
    begin = partial(cycle, place.target, place.draft, (), k, verifier=verifier)
    for (kind, tokens), probability in exact.exact_distribution(lambda random: begin(random)).items():
        parts[kind][tokens[0]] += probability
        runs[tokens] += probability

    def later(context: verify.Context) -> dict:  # of a later cycle only the first token is asked for: one draft will do
        again = lambda random: cycle(place.target, place.draft, context, 1, random, verifier)[1]  # noqa: E731
        return exact.exact_distribution(again) if context else runs

    joint = joint_of(later, 2)
    wanted = joint_of(partial(exact.plain_distribution, place.target), 2)
    per_cycle = sum(len(tokens) * probability for tokens, probability in runs.items())
    right = theory.expected_tokens(1 - exact.total_variation(p, q), k)  # α is the same at every position
    return Explored(place, verifier, p, q, parts, joint, wanted, per_cycle, right, k)


class Sampled:
    """Cycles sampled with a verifier, one after the other: the more are asked for, the more it has."""

    def __init__(self, place: Place, verifier: Verifier, k: int, seed: int = 0):
        self.begin = partial(cycle, place.target, place.draft, (), k, Random(seed).random, verifier)
        self.counts = torch.zeros(len(place.labels), dtype=torch.long)  # of the first token
        self.cycles = self.tokens = 0

    @torch.inference_mode()
    def upto(self, cycles: int) -> Sampled:
        for _ in range(cycles - self.cycles):
            _, tokens = self.begin()
            self.counts[tokens[0]] += 1
            self.tokens += len(tokens)
        self.cycles = max(cycles, self.cycles)
        return self

    def p_value(self, p: Tensor) -> float:
        """χ² of the first tokens against p."""
        return chi_square(self.counts.tolist(), p)


# ---- lesson 14: verifiers with one bug each --------------------------------------------------------------------------

TOY = toy_place(*PRESETS["a fair draft"])  # the p and q of lesson 06


def verifier_errors(joint: Callable = exact.joint_distribution) -> dict[str, tuple[float, float, float]]:
    """For each verifier: how far one token and two tokens are from the target (total variation), tokens per cycle."""
    errors = {}
    for name, verifier in VERIFIERS.items():
        found = explore(TOY, verifier, k=1 if "bonus from" in name else 2, joint_of=joint)
        errors[name] = (found.one_place, found.two_places, found.tokens)
    return errors


# ---- goodness of fit ------------------------------------------------------------------------------------------------


def claim(says: str, found, wanted) -> None:
    """Print whether a distribution is the one that a claim says it is, and how far it is from that one."""
    off = total_variation(found, wanted)
    print(f"{'holds' if off < 1e-12 else 'FAILS'}   {says:52s} TV = {off:.4f}")


def chi_square(counts: Sequence[int], probs) -> float:
    """How often counts that do follow the distribution would look at least this odd: the p-value of Pearson's χ² test.

    Tokens expected fewer than five times are counted together. A token of probability 0 gives 0.
    """
    probs, counts = as_distribution("probs", probs), torch.as_tensor(counts, dtype=torch.float64)
    if probs.shape != counts.shape:
        raise ValueError(
            f"counts has {len(counts)} entries and the distribution {len(probs)}: give one count per token"
        )
    expected = probs * counts.sum()
    if bool(counts[probs == 0].any()):
        return 0.0
    rare = expected < 5
    seen = torch.cat([counts[~rare], counts[rare].sum()[None]])
    wanted = torch.cat([expected[~rare], expected[rare].sum()[None]])
    if wanted[-1] < 5:  # too few to be a bin of their own
        seen, wanted = seen[:-1], wanted[:-1]
    if len(wanted) < 2:
        return 1.0  # nothing to compare yet
    statistic = ((seen - wanted) ** 2 / wanted).sum()
    degrees = torch.tensor(len(wanted) - 1, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees / 2, statistic / 2))


# ---- lesson 06: sampling through a greedy loop -----------------------------------------------------------------------


class SampledModel:
    """A model as lesson 05's loop knows it. `probs` gives the distributions after a list of tokens."""

    def __init__(self, probs, prompt, choose):
        self.tokens, self.probs, self.choose, self.passes = list(prompt[:-1]), probs, choose, 0

    @property
    def length(self) -> int:
        return len(self.tokens)

    def rewind(self, length: int) -> None:
        del self.tokens[length:]

    def read(self, tokens: list[int]) -> torch.Tensor:
        self.tokens, self.passes = self.tokens + tokens, self.passes + 1
        probs = self.probs(tuple(self.tokens))[-len(tokens) :]  # [n, V]
        chosen = self.choose(probs, tokens)
        logits = torch.zeros_like(probs)
        logits[range(len(chosen)), chosen] = 1
        return logits


def sampled_loop(loop, sampler, target_probs, draft_probs, prompt, k, count, random) -> tuple[list[int], int]:
    """`count` sampled tokens by lesson 05's greedy loop and lesson 06's sampler, and the number of verify passes."""
    q = []  # of the draft tokens of this cycle

    def propose(probs, tokens):
        q.append(probs[-1])
        return [*tokens[1:], pick(probs[-1], random())]

    def judge(p, tokens):
        emitted = sampler(p, torch.stack(q), tokens[1:], random)  # the target's input is the last token and the draft
        q.clear()
        return emitted

    target = SampledModel(target_probs, prompt, judge)
    return loop(target, SampledModel(draft_probs, prompt, propose), prompt, k, count), target.passes
