"""Checks that a way of verifying drafts is lossless, each a function of one `Scheme`.

The tests run them on minispec's own scheme; test_mutants.py runs the same functions on schemes with one part broken and
expects them to fail. All laws are composed exactly in float64.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import exact_trees
import numpy as np
import torch
from torch import Tensor

from minispec import exact, verify
from minispec.tree import verify_mask

EXACT = 1e-12  # total variation that float64 may leave


@dataclass(frozen=True)
class Scheme:
    """The verifiers. A mutant is a Scheme with one of them replaced."""

    chain: Callable = verify.chain
    chain_batch: Callable = verify.chain_batch
    tree: Callable = verify.tree
    tree_batch: Callable = verify.tree_batch

    def chain_distribution(self, target, draft, gamma, context=(), *, propose=exact.propose_chain):
        return exact.chain_distribution(target, draft, gamma, context, propose=propose, verify=self.chain)

    def tree_distribution(self, target, draft, widths, context=(), *, propose):
        return exact_trees.tree_distribution(target, draft, widths, context, propose=propose, verify=self.tree)


# ---- material ------------------------------------------------------------------------------------------------------


def random_pairs(count: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Laws p, q over 2–12 tokens; every tenth is of each of these kinds."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        V = int(rng.integers(2, 13))
        p, q = rng.dirichlet(np.full(V, 0.7), 2)
        cut = int(rng.integers(1, V))
        spike = np.eye(V)[rng.integers(0, V, 2)]
        match i % 10:
            case 0 | 1:  # zeros here and there, at least one token left
                p, q = (law * np.maximum(rng.random(V) < 0.6, np.eye(V)[law.argmax()]) for law in (p, q))
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


def toy_model(V: int, seed: int, *, sparse: bool = False, sharpness: float = 1.0) -> Callable:
    """A context-dependent toy: the law of the next token is a fixed random function of all tokens so far."""

    def model(context) -> Tensor:
        rng = np.random.default_rng([seed, len(context), *context])
        law = np.exp(sharpness * rng.normal(size=V))
        if sparse:
            law *= np.maximum(rng.random(V) < 0.6, np.eye(V)[law.argmax()])
        return torch.tensor(law / law.sum())

    return cache(model)


def target_law(target, n: int) -> dict:
    return exact.joint_distribution(partial(exact.plain_distribution, target), n)


def assert_same(law, expected, what) -> None:
    distance = exact.total_variation(law, expected)
    assert distance <= EXACT, f"{what}: the emitted law is {distance:.3g} away from the target's"


# ---- ways of drafting ----------------------------------------------------------------------------------------------


def propose_greedy(draft, context, gamma, random):
    """A deterministic chain: nothing is drawn, so q is None."""
    drafted = ()
    for _ in range(gamma):
        drafted += (int(draft(context + drafted).argmax()),)
    return drafted, None


def propose_until_unsure(draft, context, gamma, random, *, least=0.55):
    """The honest stopping rule: whether to draw is decided before the draw, by the peak of q."""
    drafted, laws = (), []
    while len(drafted) < gamma and float((q := draft(context + drafted)).max()) >= least:
        drafted, laws = (*drafted, verify.pick(q, random())), [*laws, q]
    return drafted, torch.stack(laws) if laws else None


def propose_until_unlikely(draft, context, gamma, random, *, least=0.4):
    """Also honest: a drawn token of low probability ends the draft, but is kept."""
    drafted, laws = (), []
    while len(drafted) < gamma and not (drafted and float(laws[-1][drafted[-1]]) < least):
        laws.append(draft(context + drafted))
        drafted += (verify.pick(laws[-1], random()),)
    return drafted, torch.stack(laws)


def propose_cascade(draft, context, gamma, random, *, middle):
    """A middle model corrects the drafter, cycle by cycle; the target is told the middle model's law."""
    drafted = ()
    while len(drafted) < gamma:
        drafted += exact.chain_cycle(middle, draft, context + drafted, 1, random)
    drafted = drafted[:gamma]
    return drafted, torch.stack([middle(context + drafted[:i]) for i in range(gamma)])


def propose_best_tree(draft, context, widths, random):
    """The likeliest children, with q given as None instead of as one-hot laws."""
    tokens, parents, _ = exact_trees.propose_tree(draft, context, widths, random, siblings=exact.best)
    return tokens, parents, None


# ---- exact checks --------------------------------------------------------------------------------------------------


def check_residual(scheme: Scheme, pairs: int = 500) -> None:
    """A law comes out of the residual rule, whatever goes in; it gives nothing to tokens the draft covers."""
    for p, q in random_pairs(pairs):
        r = verify.residual(p, q)
        assert bool(torch.isfinite(r).all()), f"not finite for p={p.tolist()}, q={q.tolist()}"
        assert abs(float(r.sum()) - 1) <= EXACT and bool((r >= 0).all()), f"not a law: {r.tolist()}"
        assert exact.total_variation(p, q) == 0 or not bool(r[p <= q].any()), "mass on a token the draft covers"


def check_position(scheme: Scheme, pairs: int = 500) -> None:
    """One place of a chain: the emitted token follows p."""
    for p, q in random_pairs(pairs):
        assert_same(exact.emitted_distribution(p, q), p, f"p={p.tolist()}, q={q.tolist()}")


def check_siblings(scheme: Scheme, pairs: int = 500) -> None:
    """One node of a tree, for the three ways to draft its children."""
    for i, (p, q) in enumerate(random_pairs(pairs)):
        siblings = (exact.iid, exact.distinct, exact.best)[i % 3]
        m = 3 if len(p) <= 5 else 2
        assert_same(exact.emitted_distribution(p, q, m=m, siblings=siblings), p, f"{m} × {siblings.__name__}")


def check_cascade(scheme: Scheme, pairs: int = 500) -> None:
    """One place of a cascade, and the joint law of a cascade's cycles."""
    laws = [law for pair in random_pairs(pairs) for law in pair]
    for i, (p, q) in enumerate(random_pairs(pairs)):
        middle = next(law for law in laws[i:] + laws if len(law) == len(p))
        assert_same(exact.cascade_distribution(p, middle, q), p, "cascade, one place")
    target, middle, draft = (toy_model(2, seed) for seed in (1, 2, 3))
    propose = partial(propose_cascade, middle=middle)
    law = exact.joint_distribution(lambda c: scheme.chain_distribution(target, draft, 2, c, propose=propose), 3)
    assert_same(law, target_law(target, 3), "cascade, joint law")


def check_joint(scheme: Scheme, sizes=((3, 2, 3),), others=(propose_greedy,), sharpness: float = 1.0) -> None:
    """The first n tokens of repeated chain cycles (V, γ, n) follow the target's joint law, and so does one whole cycle
    that plain decoding continues: dense and sparse toys, drawn and deterministic drafts."""
    for V, gamma, n in sizes:
        for sparse in (False, True):
            target, draft = toy_model(V, 1, sparse=sparse), toy_model(V, 2, sparse=sparse, sharpness=sharpness)
            for propose in (exact.propose_chain, *others):
                cycle = partial(scheme.chain_distribution, target, draft, gamma, propose=propose)
                what = f"V={V}, γ={gamma}, {propose.__name__}"
                assert_same(exact.joint_distribution(cycle, n), target_law(target, n), f"{what}, {n} tokens")
                plain = partial(exact.plain_distribution, target)
                once = exact.joint_distribution(lambda c: plain(c) if c else cycle(c), gamma + 1)  # noqa: B023
                assert_same(once, target_law(target, gamma + 1), f"{what}, one cycle, then plain")


def check_count(scheme: Scheme, sizes=((3, 1), (3, 2))) -> None:
    """A cycle emits 1 + Σ_i Π_{j≤i} β_j tokens on average, β_j = P(accept j | all before accepted)."""
    for V, gamma in sizes:
        target, draft = toy_model(V, 1), toy_model(V, 2)
        law = scheme.chain_distribution(target, draft, gamma)
        assert abs(sum(law.values()) - 1) <= EXACT
        mean = sum(len(run) * probability for run, probability in law.items())
        reach, survivors = [], {(): 1.0}  # all i drafts so far accepted: Π min(p, q) along each context
        for _ in range(gamma):
            survivors = {
                (*text, x): weight * float(both)
                for text, weight in survivors.items()
                for x, both in enumerate(torch.minimum(target(text), draft(text)))
            }
            reach.append(sum(survivors.values()))
        betas = [now / before for before, now in zip([1.0, *reach], reach, strict=False)]
        expected = 1 + sum(np.cumprod(betas))
        assert abs(mean - expected) <= EXACT, f"V={V}, γ={gamma}: {mean:.6f} tokens a cycle instead of {expected:.6f}"


def check_tree(scheme: Scheme, sizes=((3, (2,), 1), (3, (3,), 1), (2, (2, 2), 2), (3, (2, 1), 2))) -> None:
    """The first n tokens of repeated tree cycles (V, widths, n) follow the target's joint law."""
    drafts = [partial(exact_trees.propose_tree, siblings=s) for s in (exact.iid, exact.distinct, exact.best)]
    for V, widths, n in sizes:
        target, draft = toy_model(V, 1), toy_model(V, 2)
        for propose in [*drafts, propose_best_tree]:
            law = exact.joint_distribution(partial(scheme.tree_distribution, target, draft, widths, propose=propose), n)
            assert_same(law, target_law(target, n), f"V={V}, widths={widths}, {n} tokens, {propose}")


def check_batch(scheme: Scheme, rows: int = 400) -> None:
    """All rows at once give what one row at a time gives on the same random numbers, ragged drafts included."""
    generator = torch.Generator().manual_seed(0)
    for V, gamma, sparse in [(2, 1, False), (8, 4, False), (8, 4, True), (5, 3, True)]:
        p, q = (_random_laws((rows, gamma + extra, V), generator, sparse) for extra in (1, 0))
        drafted = torch.multinomial(q.flatten(0, 1), 1, generator=generator).view(rows, gamma)
        lengths = torch.randint(0, gamma + 1, (rows,), generator=generator)
        u = torch.rand(rows, gamma + 1, generator=generator, dtype=torch.float64)
        u[::7], u[3::7] = 0.0, 1 - 2.0**-53  # the two ends of [0, 1)
        padding = (torch.arange(gamma) >= lengths[:, None])[..., None]  # of q: may be anything
        for told, long in [(q.masked_fill(padding, torch.nan), lengths), (None, lengths), (q, None), (None, None)]:
            accepted, token = scheme.chain_batch(p, told, drafted, long, u)
            for b in range(rows):
                k = gamma if long is None else int(long[b])
                one = scheme.chain(p[b, : k + 1], None if told is None else told[b, :k], drafted[b, :k], u[b, : k + 1])
                assert (int(accepted[b]), int(token[b])) == (one.accepted, one.token), f"row {b}, {k} drafts"
                assert float(p[b, one.accepted, one.token]) > 0, "emitted a token the target cannot say"


def check_tree_batch(scheme: Scheme, rows: int = 120) -> None:
    """All trees at once, node by node what one tree at a time gives on the same random numbers: any shape, siblings of
    the same token, ragged sizes, tokens that are certain and tokens that are impossible. Whatever pads a row counts for
    nothing."""
    generator, seen = torch.Generator().manual_seed(0), Counter()
    below = lambda most, *shape: torch.randint(0, most, shape, generator=generator)  # noqa: E731
    for V, n, sparse in [(2, 1, False), (3, 7, False), (8, 9, False), (8, 9, True), (4, 6, True), (5, 0, False)]:
        p = _random_laws((rows, n + 1, V), generator, sparse)
        p[::9] = torch.nn.functional.one_hot(below(V, len(p[::9]), n + 1), V).double()  # certain
        tokens, lengths = below(V, rows, n), below(n + 1, rows)
        parents = torch.stack([below(node + 1, rows) - 1 for node in range(n)], 1) if n else tokens
        above = torch.stack([ancestor_mask(row) for row in parents.tolist()])
        u = torch.rand(rows, n + 1, generator=generator, dtype=torch.float64)
        u[::7], u[3::7] = 0.0, 1 - 2.0**-40  # ends of [0, 1): what is left of 1 is not rounded as a residual is
        for long in (None, lengths):
            sizes = [n] * rows if long is None else long.tolist()
            accepted, token = scheme.tree_batch(p, tokens, parents, above, long, u)
            for b, size in enumerate(sizes):
                nodes = tokens[b, :size].tolist(), parents[b, :size].tolist()
                expected = scheme.tree(p[b, : size + 1], None, *nodes, u[b, : size + 1])
                path = accepted[b].nonzero().flatten().tolist()
                assert (path, int(token[b])) == (expected.path, expected.token), f"row {b}, {size} nodes"
                seen[len(expected.path)] += 1
                assert float(p[b, ([-1, *expected.path])[-1] + 1, expected.token]) > 0, "emitted what cannot be said"
    assert all(seen[length] > 5 for length in range(4)), f"accepted paths are too much alike: {seen}"
    _check_tree_batch_on_a_lattice(scheme)


def _check_tree_batch_on_a_lattice(scheme: Scheme) -> None:
    """The exact distribution of one tree's cycle. All that decides is a multiple of 1/24, so the midpoints of a lattice
    of random numbers, one for each cell, are every way it can turn out, each with the same probability."""
    laws = {(): (3, 4, 5), (1,): (6, 3, 3), (2,): (8, 1, 3), (1, 0): (2, 6, 4), (0,): (5, 5, 2)}  # twelfths
    target = lambda context: torch.tensor(laws[context], dtype=torch.float64) / 12  # noqa: E731
    tokens, parents, texts = [1, 2, 0], [-1, -1, 0], [(), (1,), (2,), (1, 0)]
    line = (torch.arange(24, dtype=torch.float64) + 0.5) / 24
    u = torch.cartesian_prod(*[line] * 4)  # [24⁴, 4]
    p = torch.stack([target(text) for text in texts])  # in 24ths: 8 pass the first node, 15 its sibling, 12 its child
    every = lambda x: torch.as_tensor(x).expand(len(u), *torch.as_tensor(x).shape)  # noqa: E731
    accepted, token = scheme.tree_batch(every(p), every(tokens), every(parents), every(ancestor_mask(parents)), None, u)
    code = accepted.long() @ torch.tensor([1, 2, 4]) * 3 + token  # one number for a path and its end
    cycle = {}
    for number, count in zip(*(part.tolist() for part in code.unique(return_counts=True)), strict=True):
        path = [node for node in range(3) if number // 3 >> node & 1]
        cycle[(*(tokens[node] for node in path), number % 3)] = count / len(u)
    plain = partial(exact.plain_distribution, target)
    joint = exact.joint_distribution(lambda context: plain(context) if context else cycle, 2)
    assert_same(joint, target_law(target, 2), "a batch of trees")


def ancestor_mask(parents: list[int]) -> Tensor:
    """[n, n], True where a node is another's ancestor, or that node itself."""
    return verify_mask(parents)[1:, 1:]


def _random_laws(shape, generator, sparse: bool) -> Tensor:
    laws = torch.rand(shape, generator=generator, dtype=torch.float64) ** 2
    if sparse:
        laws = laws * (torch.rand(shape, generator=generator) < 0.6)
        laws[..., 0] += (laws.sum(-1) == 0).double()
    return laws / laws.sum(-1, keepdim=True)


CHECKS = {name[6:]: check for name, check in list(globals().items()) if name.startswith("check_")}
