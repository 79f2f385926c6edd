"""Exact distributions of whole programs: what a draft/verify scheme emits, computed down every branch, not sampled.

`exact_distribution` runs a program that draws random numbers once for every way they can fall. So the distributions
here are those of the real `verify.chain` and `verify.tree`, not of a second implementation, and a wrong variant plugged
in shows its own distribution.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from .tree import path_to
from .verify import Context, as_distribution, chain, iid, pick, tree


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
    """The law of what program(random) returns, where random() gives a number in [0, 1): run it down every branch.

    The same program given `random.random` is a sampler. Numbers may only be compared, as in `random() < 0.3`.
    """
    law, scripts = defaultdict(float), [()]
    while scripts:
        world = World(scripts.pop())
        outcome = program(world)
        probability = 1.0
        for number in world.numbers:
            probability *= number.high - number.low
        law[outcome] += probability
        scripts += world.untried
    return dict(law)


Model = Callable[[Context], Tensor]  # a toy: the law of the next token after a context, as tensor or list


def propose_chain(draft: Model, context: Context, gamma: int, random) -> tuple[Context, Tensor | None]:
    """Draw γ tokens one after the other: them, and the laws they came from [γ, V]."""
    drafted, laws = (), []
    for _ in range(gamma):
        laws.append(draft(context + drafted))
        drafted += (pick(laws[-1], random()),)
    return drafted, torch.stack(laws) if laws else None


def chain_cycle(
    target: Model, draft: Model, context: Context, gamma: int, random, *, propose=propose_chain, verify=chain
) -> Context:
    """One cycle of speculative decoding on toy models: the tokens it emits."""
    drafted, q = propose(draft, context, gamma, random)
    p = torch.stack([target(context + drafted[:i]) for i in range(len(drafted) + 1)])  # [γ+1, V]
    return verify(p, q, drafted, [random() for _ in p]).run(drafted)


def propose_tree(
    draft: Model, context: Context, widths: Sequence[int], random, *, siblings=iid
) -> tuple[list[int], list[int], Tensor]:
    """Draft widths[0] children of the root, widths[1] of each of these, …: tokens, parents and laws [n, V]."""
    tokens, parents, laws = [], [], []
    level = [(-1, context)]
    for width in widths:
        above, level = level, []
        for parent, text in above:
            q, drawn = draft(text), ()
            while len(drawn) < width and bool((law := siblings(q, drawn)).any()):
                drawn += (pick(law, random()),)
                level.append((len(tokens), text + drawn[-1:]))
                tokens.append(drawn[-1])
                parents.append(parent)
                laws.append(law)
    return tokens, parents, torch.stack(laws)


def tree_cycle(
    target: Model, draft: Model, context: Context, widths: Sequence[int], random, *, propose=propose_tree, verify=tree
) -> Context:
    """The same with a token tree."""
    tokens, parents, q = propose(draft, context, widths, random)
    texts = [context + tuple(tokens[i] for i in path_to(parents, node)) for node in range(-1, len(tokens))]
    p = torch.stack([target(text) for text in texts])  # [n+1, V]
    return verify(p, q, tokens, parents, [random() for _ in p]).run(tokens)


def chain_distribution(target: Model, draft: Model, gamma: int, context: Context = (), **parts) -> dict[Context, float]:
    """The joint law of all tokens one cycle emits. `parts`: another `verify` or `propose` for `chain_cycle`."""
    return exact_distribution(partial(chain_cycle, _model(target), _model(draft), context, gamma, **parts))


def tree_distribution(target: Model, draft: Model, widths, context: Context = (), **parts) -> dict[Context, float]:
    """The same for `tree_cycle`, the expectation over drafted trees included."""
    return exact_distribution(partial(tree_cycle, _model(target), _model(draft), context, widths, **parts))


def plain_distribution(target: Model, context: Context = ()) -> dict[Context, float]:
    """What plain decoding emits: one token."""
    return {(x,): float(px) for x, px in enumerate(_model(target)(context)) if px > 0}


def joint_distribution(cycle: Callable[[Context], dict], n: int, context: Context = ()) -> dict[Context, float]:
    """The law of the first n tokens when cycles, each with the law cycle(context), follow one another."""
    done = [{(): 1.0}] + [defaultdict(float) for _ in range(n)]  # done[i]: after a cycle i tokens are out
    for written in range(n):
        for text, probability in done[written].items():
            for run, r in cycle(context + text).items():
                longer = (text + run)[:n]
                done[len(longer)][longer] += probability * r
    return dict(done[n])


def total_variation(a, b) -> float:
    """½ Σ |a − b|, of laws as tensors or as dicts."""
    if isinstance(a, dict):
        return sum(abs(a.get(x, 0.0) - b.get(x, 0.0)) for x in a.keys() | b.keys()) / 2
    return float((torch.as_tensor(a) - torch.as_tensor(b)).abs().sum() / 2)


def _model(model: Model) -> Model:
    return cache(lambda context: as_distribution(f"the law after {context}", model(context)))
