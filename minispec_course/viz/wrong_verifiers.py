"""The real verifier and the well-known ways to get it wrong, for the residual explorer and lesson 06.

A `Verifier` says how a cycle drafts and how it judges the draft tokens. Each wrong one is a small change of what
`verify` and `exact` do, so the distribution it gives can be composed exactly, like theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from minispec.exact import Model, propose_chain
from minispec.sampling import Sampling
from minispec.verify import Context, accept_probability, chain, one_hot, pick, residual

Judged = tuple[list[int], Context]  # indices of the accepted drafts, all tokens of the cycle
ONE, TWO, COUNT, NOTHING = "one position", "two positions", "the count", "nothing"


@dataclass(frozen=True)
class Verifier:
    name: str  # as a menu shows it
    why: str  # one sentence: what happens, and what follows from it
    bends: str  # the first of ONE, TWO, COUNT that notices; NOTHING: it is right
    judge: Callable[..., Judged]  # (p [γ+1, V], q [γ, V] or None, drafted, random) → Judged
    propose: Callable = propose_chain


def cycle(target: Model, draft: Model, context: Context, gamma: int, random, verifier: Verifier) -> tuple[str, Context]:
    """One cycle, as `exact.chain_cycle`: how its first token came about (accepted, corrected, bonus), and all."""
    drafted, q = verifier.propose(draft, context, gamma, random)
    p = torch.stack([target(context + drafted[:i]) for i in range(len(drafted) + 1)])  # [γ+1, V]
    path, tokens = verifier.judge(p, q, drafted, random)
    return "accepted" if 0 in path else "corrected" if drafted else "bonus", tokens


# ---- judging -------------------------------------------------------------------------------------------------------


def by_chain(p: Tensor, q: Tensor | None, drafted: Context, random, **rules) -> Judged:
    """minispec's own verifier, or the same with another rule plugged in."""
    verdict = chain(p, q, drafted, [random() for _ in p], **rules)
    return verdict.path, verdict.run(drafted)


def from_p(p: Tensor, q: Tensor) -> Tensor:
    return p


def from_q(p: Tensor, q: Tensor) -> Tensor:
    return q


def argmax_of_residual(p: Tensor, q: Tensor) -> Tensor:
    return one_hot(int(residual(p, q).argmax()), like=p)


def not_normalised(p: Tensor, q: Tensor) -> Tensor:
    """The search through running totals that end below 1 falls off the end, onto the last token."""
    uncovered = (p - q).clamp(min=0)
    uncovered[-1] += 1 - uncovered.sum()
    return uncovered


def always(p: Tensor, q: Tensor, token: int) -> float:
    return 1.0


def if_likelier(p: Tensor, q: Tensor, token: int) -> float:
    return float(p[token] >= q[token])


def upside_down(p: Tensor, q: Tensor, token: int) -> float:
    return float((q[token] / p[token]).clamp(max=1)) if p[token] > 0 else 1.0


def by_p_alone(p: Tensor, q: Tensor, token: int) -> float:
    return float(p[token])


def q_of_the_draft_only(p: Tensor, q: Tensor, drafted: Context, random) -> Judged:
    chosen = torch.tensor(drafted)[:, None]  # [γ, 1]
    return by_chain(p, torch.zeros_like(q).scatter_(1, chosen, q.gather(1, chosen)), drafted, random)


def p_one_too_far(p: Tensor, q: Tensor, drafted: Context, random) -> Judged:
    return by_chain(torch.cat([p[1:], p[-1:]]), q, drafted, random)


def past_a_rejection(p: Tensor, q: Tensor, drafted: Context, random) -> Judged:
    path, tokens = [], ()
    for i, d in enumerate(drafted):
        if random() < float(accept_probability(p[i], q[i], d)):
            path, tokens = [*path, i], (*tokens, d)
        else:
            tokens += (pick(residual(p[i], q[i]), random()),)  # and on to d_{i+1}, which was drafted after d_i
    return path, (*tokens, pick(p[-1], random()))


def one_number_for_all(p: Tensor, q: Tensor, drafted: Context, random) -> Judged:
    u, last = random(), random()
    verdict = chain(p, q, drafted, [u] * len(drafted) + [last])
    return verdict.path, verdict.run(drafted)


def bonus_one_too_early(p: Tensor, q: Tensor, drafted: Context, random) -> Judged:
    return by_chain(torch.cat([p[:-1], p[-2:-1]]), q, drafted, random)


def no_bonus(p: Tensor, q: Tensor, drafted: Context, random) -> Judged:
    path, tokens = by_chain(p, q, drafted, random)
    return path, tokens[: len(drafted)]  # as good as the whole if something was rejected


# ---- drafting, and what the verifier is told about it --------------------------------------------------------------


def greedy(draft: Model, context: Context, gamma: int, random) -> tuple[Context, None]:
    drafted = ()
    for _ in range(gamma):
        drafted += (int(draft(context + drafted).argmax()),)
    return drafted, None


def greedy_called_soft(draft: Model, context: Context, gamma: int, random) -> tuple[Context, Tensor]:
    drafted, _ = greedy(draft, context, gamma, random)
    return drafted, torch.stack([draft(context + drafted[:i]) for i in range(gamma)])


def q_before_top_p(draft: Model, context: Context, gamma: int, random, top_p: float = 0.7) -> tuple[Context, Tensor]:
    truncated = Sampling(temperature=1.0, top_p=top_p)
    drafted, _ = propose_chain(lambda text: truncated.probs(draft(text).log()), context, gamma, random)
    return drafted, torch.stack([draft(context + drafted[:i]) for i in range(gamma)])


def drop_unlikely(draft: Model, context: Context, gamma: int, random, least: float = 0.25) -> tuple:
    drafted, laws = (), []
    for _ in range(gamma):
        q = draft(context + drafted)
        d = pick(q, random())
        if float(q[d]) < least:
            break
        drafted, laws = (*drafted, d), [*laws, q]
    return drafted, torch.stack(laws) if laws else None


# ---- the menu ------------------------------------------------------------------------------------------------------

RIGHT = Verifier(
    "right: the real verifier",
    "Accept with probability min(1, p/q), resample from the residual, add the bonus token.",
    NOTHING,
    by_chain,
)

VERIFIERS = {
    verifier.name: verifier
    for verifier in (
        RIGHT,
        Verifier(
            "right: greedy draft, q one-hot",
            "The draft proposes its likeliest token d, and q is one-hot. Accept with p(d), resample from p without d.",
            NOTHING,
            by_chain,
            greedy,
        ),
        Verifier(
            "wrong: replace from p",
            "After a rejection it samples from p. Accepted tokens already cover min(p, q), which is counted twice.",
            ONE,
            partial(by_chain, replace=from_p),
        ),
        Verifier(
            "wrong: replace from q",
            "After a rejection it samples from q again, so tokens that q underestimates never get "
            "the probability they lack.",
            ONE,
            partial(by_chain, replace=from_q),
        ),
        Verifier(
            "wrong: residual not normalised",
            "It searches running totals of [p − q]₊ that end below 1, so what is missing goes to the last token.",
            ONE,
            partial(by_chain, replace=not_normalised),
        ),
        Verifier(
            "wrong: argmax of the residual, no sample",
            "It takes the likeliest token of the residual instead of sampling from it, so one token "
            "gets all of the residual.",
            ONE,
            partial(by_chain, replace=argmax_of_residual),
        ),
        Verifier(
            "wrong: residual subtracts only q(d), at d",
            "It keeps one number per draft token. That is enough to accept, but the residual needs q of every token.",
            ONE,
            q_of_the_draft_only,
        ),
        Verifier(
            "wrong: accept always",
            "It trusts the draft. No cycle can emit more tokens, but they follow q.",
            ONE,
            partial(by_chain, accept=always),
        ),
        Verifier(
            "wrong: accept if p(d) ≥ q(d)",
            "A threshold instead of a random test. A token that q overestimates even slightly is never accepted.",
            ONE,
            partial(by_chain, accept=if_likelier),
        ),
        Verifier(
            "wrong: accept with p(d)",
            "It forgets to divide by q(d), which is right only for a one-hot draft, where q(d) = 1.",
            ONE,
            partial(by_chain, accept=by_p_alone),
        ),
        Verifier(
            "wrong: accept with q/p",
            "The ratio is upside down: tokens that q underestimates are often rejected, and "
            "overestimated ones always accepted.",
            ONE,
            partial(by_chain, accept=upside_down),
        ),
        Verifier(
            "wrong: d judged by p of the next position",
            "It tests each draft token against the distribution of the position after it.",
            ONE,
            p_one_too_far,
        ),
        Verifier(
            "wrong: d sampled with top-p, q without it",
            "It samples with top-p 0.7 and reports q from before truncation, so the real q is higher "
            "than the reported one.",
            ONE,
            by_chain,
            q_before_top_p,
        ),
        Verifier(
            "wrong: d is an argmax, q a softmax",
            "It takes the likeliest token and reports the softmax, although that token was certain "
            "and not just likely.",
            ONE,
            by_chain,
            greedy_called_soft,
        ),
        Verifier(
            "wrong: d dropped untested if q(d) is small",
            "It drops a sampled token if q(d) < 0.25, so the others are selected and do not follow "
            "q. (Keep it and stop: exact.)",
            ONE,
            by_chain,
            drop_unlikely,
        ),
        Verifier(
            "wrong: goes on past a rejection",
            "It replaces a rejected token and tests the next one, which was drafted after the rejected one. "
            "The first token is right, but the next is conditioned on a token that is not in the output.",
            TWO,
            past_a_rejection,
        ),
        Verifier(
            "wrong: one acceptance number per cycle",
            "All tests of a cycle use the same number, so acceptances are correlated. It takes two "
            "draft tokens to see it.",
            TWO,
            one_number_for_all,
        ),
        Verifier(
            "wrong: bonus from the last draft token's p",
            "It samples the bonus from the last draft token's distribution. With k = 1 the bonus is the second token; "
            "with k = 2 it is the third, and this picture shows two.",
            TWO,
            bonus_one_too_early,
        ),
        Verifier(
            "wrong: no bonus",
            "It emits nothing after a fully accepted draft. The distribution is right, but each such "
            "cycle is one token short.",
            COUNT,
            no_bonus,
        ),
    )
}
