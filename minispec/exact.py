"""Exact distributions of whole programs: what a draft/verify scheme emits, computed down every branch, not sampled.

`exact_distribution` runs a program that draws random numbers once for every way they can fall. So the distributions
here are those of the real `verify.chain`, not of a second implementation, and a wrong variant plugged in shows its own
distribution.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from .sampling import pick
from .verify import Context, accept_probability, chain, check_distribution, one_hot, residual

# ---- one position --------------------------------------------------------------------------------------------------
# How the m children of one node are drafted is a function (q, elder siblings) → distribution of the next one.


def iid(q: Tensor, drawn: Sequence[int]) -> Tensor:
    """Independent draws: duplicates happen, and count."""
    return q


def distinct(q: Tensor, drawn: Sequence[int]) -> Tensor:
    """Draws without replacement: q without the elder siblings, renormalised (all zero once q is used up)."""
    rest = q.clone()
    rest[list(drawn)] = 0.0
    return rest / rest.sum().clamp(min=torch.finfo(q.dtype).tiny)


def best(q: Tensor, drawn: Sequence[int]) -> Tensor:
    """Nothing is drawn: the children are the m likeliest tokens of q."""
    if len(drawn) == len(q):
        return torch.zeros_like(q)
    return one_hot(int(q.argsort(descending=True, stable=True)[len(drawn)]), like=q)


def emitted_distribution(
    p, q, *, drawn_from=None, m: int = 1, siblings=iid, accept=accept_probability, replace=residual
) -> Tensor:
    """The exact distribution [V] of the token emitted at one position, with m drafted children there (m = 1: a chain).

    `drawn_from` is the distribution drafts really come from, where that is not the q the verifier is told. Plug in
    other rules and watch the distribution move away from p.
    """
    p, q = as_distribution("p", p), as_distribution("q", q)
    drawn_from = q if drawn_from is None else as_distribution("drawn_from", drawn_from)

    def after(rejected: Context, r: Tensor) -> Tensor:  # the distribution, once these siblings were rejected
        source, told = siblings(drawn_from, rejected), siblings(q, rejected)
        if len(rejected) == m or not bool(source.any()):
            return r
        probs, uncovered = torch.zeros_like(p), replace(r, told)
        for d in source.nonzero().flatten().tolist():
            a = float(accept(r, told, d))
            probs[d] += source[d] * a
            if a < 1:
                probs += source[d] * (1 - a) * after((*rejected, d), uncovered)
        return probs

    return after((), p)


def cascade_distribution(p, middle, q, *, accept=accept_probability, replace=residual) -> Tensor:
    """The same where a middle model first corrects the drafter: its output is the draft, its distribution q."""
    corrected = emitted_distribution(middle, q, accept=accept, replace=replace)
    return emitted_distribution(p, middle, drawn_from=corrected, accept=accept, replace=replace)


def as_distribution(name: str, probs) -> Tensor:
    probs = probs if isinstance(probs, Tensor) else torch.as_tensor(probs, dtype=torch.float64)
    check_distribution(name, probs)
    return probs.double()


# ---- whole programs ------------------------------------------------------------------------------------------------


class Undecided:
    """A random number in [0, 1) that nobody has drawn. Asking whether it is below x splits the program's future."""

    def __init__(self, world: World):
        self.world, self.low, self.high = world, 0.0, 1.0

    def __lt__(self, x) -> bool:
        x = float(x)
        if not self.low < x < self.high:
            return x >= self.high  # earlier answers settle this one
        if self.world.decide():
            self.high = x
            return True
        self.low = x
        return False

    def __ge__(self, x) -> bool:
        return not self < x


class World:
    """One way everything can turn out: answers first as in `script`, then always yes, noting each no left untried."""

    def __init__(self, script: tuple[bool, ...]):
        self.script, self.answers, self.numbers, self.untried = script, (), [], []

    def __call__(self) -> Undecided:
        self.numbers.append(Undecided(self))
        return self.numbers[-1]

    def decide(self) -> bool:
        answer = True
        if len(self.answers) < len(self.script):
            answer = self.script[len(self.answers)]
        else:
            self.untried.append((*self.answers, False))
        self.answers += (answer,)
        return answer


def exact_distribution(program: Callable) -> dict:
    """The distribution of what program(random) returns, where random() gives a number in [0, 1): run it down every
    branch.

    The same program given `random.random` is a sampler. Numbers may only be compared, as in `random() < 0.3`.
    """
    probs, scripts = defaultdict(float), [()]
    while scripts:
        world = World(scripts.pop())
        outcome = program(world)
        probability = 1.0
        for number in world.numbers:
            probability *= number.high - number.low
        probs[outcome] += probability
        scripts += world.untried
    return dict(probs)


Model = Callable[[Context], Tensor]  # a toy: the distribution of the next token after a context, as tensor or list


def propose_chain(draft: Model, context: Context, gamma: int, random) -> tuple[Context, Tensor | None]:
    """Draw γ tokens one after the other: them, and the distributions they came from [γ, V]."""
    drafted, qs = (), []
    for _ in range(gamma):
        qs.append(draft(context + drafted))
        drafted += (pick(qs[-1], random()),)
    return drafted, torch.stack(qs) if qs else None


def chain_cycle(
    target: Model, draft: Model, context: Context, gamma: int, random, *, propose=propose_chain, verify=chain
) -> Context:
    """One cycle of speculative decoding on toy models: the tokens it emits."""
    drafted, q = propose(draft, context, gamma, random)
    p = torch.stack([target(context + drafted[:i]) for i in range(len(drafted) + 1)])  # [γ+1, V]
    return verify(p, q, drafted, [random() for _ in p]).run(drafted)


def chain_distribution(target: Model, draft: Model, gamma: int, context: Context = (), **parts) -> dict[Context, float]:
    """The joint distribution of all tokens one cycle emits. `parts`: another `verify` or `propose`."""
    return exact_distribution(partial(chain_cycle, _model(target), _model(draft), context, gamma, **parts))


def plain_distribution(target: Model, context: Context = ()) -> dict[Context, float]:
    """What plain decoding emits: one token."""
    probs = _model(target)(context).tolist()
    return {(x,): px for x, px in enumerate(probs) if px > 0}


def joint_distribution(cycle: Callable[[Context], dict], n: int, context: Context = ()) -> dict[Context, float]:
    """The distribution of the first n tokens when cycles, each with the probs cycle(context), follow one another."""
    done = [{(): 1.0}] + [defaultdict(float) for _ in range(n)]  # done[i]: after a cycle i tokens are out
    for written in range(n):
        for text, probability in done[written].items():
            for run, r in cycle(context + text).items():
                longer = (text + run)[:n]
                done[len(longer)][longer] += probability * r
    return dict(done[n])


def total_variation(a, b) -> float:
    """½ Σ |a − b|, of distributions as tensors or as dicts."""
    if isinstance(a, dict):
        return sum(abs(a.get(x, 0.0) - b.get(x, 0.0)) for x in a.keys() | b.keys()) / 2
    return float((torch.as_tensor(a) - torch.as_tensor(b)).abs().sum() / 2)


def _model(model: Model) -> Model:
    return cache(lambda context: as_distribution(f"the distribution after {context}", model(context)))
