"""Material for exact distributions, in float64: pairs p and q, toy models, ways of drafting, and cycles with trees.

Nothing is sampled here: `minispec.exact` follows every branch of the random numbers, through the real verifiers.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from minispec import exact, verify
from minispec.exact import Model, exact_distribution, iid
from minispec.sampling import pick
from minispec.tree import path_to, verify_mask
from minispec.verify import Context

EXACT = 1e-12  # total variation that float64 may leave


def assert_same(found, expected, what) -> None:
    distance = exact.total_variation(found, expected)
    assert distance <= EXACT, f"{what}: the emitted distribution is {distance:.3g} away from the target's"


# ---- distributions and toy models ----------------------------------------------------------------------------------


def random_pairs(count: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Distributions p, q over 2–12 tokens; every tenth is of each of these kinds."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        V = int(rng.integers(2, 13))
        p, q = rng.dirichlet(np.full(V, 0.7), 2)
        cut = int(rng.integers(1, V))
        spike = np.eye(V)[rng.integers(0, V, 2)]
        match i % 10:
            case 0 | 1:  # zeros here and there, at least one token left
                p, q = (probs * np.maximum(rng.random(V) < 0.6, np.eye(V)[probs.argmax()]) for probs in (p, q))
            case 2:  # disjoint supports
                p, q = p * (np.arange(V) < cut), q * (np.arange(V) >= cut)
            case 3:
                q = p
            case 4:
                q = p * (1 + 1e-9 * rng.random(V))  # a hair apart
            case 5:
                p = spike[0]
            case 6:
                q = spike[0]
            case 7:
                p, q = spike
            case 8:
                q = p**2  # a sharper draft, as from a lower temperature
        yield torch.tensor(p / p.sum()), torch.tensor(q / q.sum())


def random_distributions(shape: Sequence[int], generator: torch.Generator, sparse: bool = False) -> Tensor:
    """[..., V]; if sparse, tokens are impossible here and there."""
    probs = torch.rand(shape, generator=generator, dtype=torch.float64) ** 2
    if sparse:
        probs = probs * (torch.rand(shape, generator=generator) < 0.6)
        probs[..., 0] += (probs.sum(-1) == 0).double()
    return probs / probs.sum(-1, keepdim=True)


def toy_model(V: int, seed: int, *, sparse: bool = False, sharpness: float = 1.0) -> Model:
    """The distribution of the next token is a fixed random function of all tokens so far."""

    def model(context) -> Tensor:
        rng = np.random.default_rng([seed, len(context), *context])
        probs = np.exp(sharpness * rng.normal(size=V))
        if sparse:
            probs *= np.maximum(rng.random(V) < 0.6, np.eye(V)[probs.argmax()])
        return torch.tensor(probs / probs.sum())

    return cache(model)


def target_distribution(target: Model, n: int) -> dict[Context, float]:
    """The joint distribution of the first n tokens of plain decoding."""
    return exact.joint_distribution(partial(exact.plain_distribution, target), n)


def assert_cycles_follow(target: Model, cycle: Callable[[Context], dict], n: int, what) -> None:
    """The first n tokens of repeated cycles have the target's joint distribution."""
    assert_same(exact.joint_distribution(cycle, n), target_distribution(target, n), f"{what}, {n} tokens")


# ---- ways of drafting a chain: (draft model, context, k, random) → tokens, q ---------------------------------------


def propose_greedy(draft, context, k, random):
    """The likeliest tokens: nothing is sampled, so q is None."""
    drafted = ()
    for _ in range(k):
        drafted += (int(draft(context + drafted).argmax()),)
    return drafted, None


def propose_until_unsure(draft, context, k, random, *, least=0.55):
    """Stop where q has no clear favourite: that is decided before the token is sampled."""
    drafted, qs = (), []
    while len(drafted) < k and float((q := draft(context + drafted)).max()) >= least:
        drafted, qs = (*drafted, pick(q, random())), [*qs, q]
    return drafted, torch.stack(qs) if qs else None


def propose_until_unlikely(draft, context, k, random, *, least=0.4):
    """A sampled token of low probability ends the draft, but is kept."""
    drafted, qs = (), []
    while len(drafted) < k and not (drafted and float(qs[-1][drafted[-1]]) < least):
        qs.append(draft(context + drafted))
        drafted += (pick(qs[-1], random()),)
    return drafted, torch.stack(qs)


def propose_cascade(draft, context, k, random, *, middle):
    """A middle model corrects the draft, cycle by cycle; the target is told the middle model's distribution."""
    drafted = ()
    while len(drafted) < k:
        drafted += exact.chain_cycle(middle, draft, context + drafted, 1, random)
    drafted = drafted[:k]
    return drafted, torch.stack([middle(context + drafted[:i]) for i in range(k)])


# ---- trees ---------------------------------------------------------------------------------------------------------


def ancestor_mask(parents: list[int]) -> Tensor:
    """[n, n], True where a node is another's ancestor, or that node itself."""
    return verify_mask(parents)[1:, 1:]


def propose_tree(
    draft: Model, context: Context, widths: Sequence[int], random, *, siblings=iid
) -> tuple[list[int], list[int], Tensor]:
    """Draft widths[0] children of the root, widths[1] of each of these, …: tokens, parents and distributions [n, V]."""
    tokens, parents, qs = [], [], []
    level = [(-1, context)]
    for width in widths:
        above, level = level, []
        for parent, prefix in above:
            q, drawn = draft(prefix), ()
            while len(drawn) < width and bool((probs := siblings(q, drawn)).any()):
                drawn += (pick(probs, random()),)
                level.append((len(tokens), prefix + drawn[-1:]))
                tokens.append(drawn[-1])
                parents.append(parent)
                qs.append(probs)
    return tokens, parents, torch.stack(qs)


def propose_best_tree(draft, context, widths, random):
    """The likeliest children, with q given as None instead of as one-hot distributions."""
    tokens, parents, _ = propose_tree(draft, context, widths, random, siblings=exact.best)
    return tokens, parents, None


def tree_distribution(
    target: Model, draft: Model, widths, context: Context = (), *, propose=propose_tree, verify=verify.tree
) -> dict[Context, float]:
    """`exact.chain_distribution` with a token tree: of all tokens one cycle emits, over all trees it may draft."""

    def cycle(random) -> Context:
        tokens, parents, q = propose(draft, context, widths, random)
        prefixes = [context + tuple(tokens[i] for i in path_to(parents, node)) for node in range(-1, len(tokens))]
        p = torch.stack([target(prefix) for prefix in prefixes])  # [n+1, V]
        return verify(p, q, tokens, parents, [random() for _ in p]).run(tokens)

    return exact_distribution(cycle)
