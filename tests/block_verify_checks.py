"""Checks of block verification, each a function of the verifier: run on minispec's own, and on wrong ones to catch."""

from functools import partial

import distribution_checks
import numpy as np
import torch
from distribution_checks import EXACT, propose_greedy, propose_until_unsure, random_pairs, toy_model

from minispec import exact, verify


def mean_length(cycle: dict) -> float:
    """Tokens that a cycle emits on average: the accepted ones and one more."""
    return sum(len(run) * weight for run, weight in cycle.items())


def check_one_token(block=verify.block, pairs: int = 60) -> None:
    """k = 1: what a cycle emits first follows p, whatever p and q are."""
    for p, q in random_pairs(pairs):
        cycle = exact.chain_distribution(lambda c: p, lambda c: q, 1, verify=block)  # noqa: B023
        first = torch.zeros_like(p)
        for run, weight in cycle.items():
            first[run[0]] += weight
        distribution_checks.assert_same(first, p, f"p={p.tolist()}, q={q.tolist()}")


def check_cycles(block=verify.block) -> None:
    """The first n tokens of repeated cycles follow the target's joint distribution, and so does one cycle that plain
    decoding continues: nothing has to be remembered after a partial acceptance."""
    scheme = distribution_checks.Scheme(chain=block)
    sizes = (3, 2, 3), (2, 3, 3), (5, 1, 2)  # V, k, tokens that are compared
    distribution_checks.check_joint(scheme, sizes, (propose_greedy, propose_until_unsure), sharpness=1.5)


def check_length(block=verify.block, seeds: int = 9) -> None:
    """P(a prefix is kept) is Σ Πq·w exactly, never less than token by token, and more in the paper's example."""
    for seed in range(seeds):
        V, k = ((3, 3), (2, 4), (4, 2))[seed % 3]
        target, draft = toy_model(V, 2 * seed, sparse=seed % 2 == 1), toy_model(V, 2 * seed + 1)
        block_wise = mean_length(exact.chain_distribution(target, draft, k, verify=block))
        token_wise = mean_length(exact.chain_distribution(target, draft, k))
        assert block_wise >= token_wise - EXACT, f"seed {seed}: {block_wise} < {token_wise}"
        reached, expected = {(): (1.0, 1.0)}, 1.0  # prefix → (Πq, w)
        for _ in range(k):
            step = {}
            for prefix, (drafted, w) in reached.items():
                for x, (px, qx) in enumerate(zip(target(prefix).tolist(), draft(prefix).tolist(), strict=True)):
                    if qx > 0:
                        step[(*prefix, x)] = drafted * qx, min(1.0, w * px / qx)
            reached = step
            expected += sum(drafted * w for drafted, w in reached.values())
        assert abs(block_wise - expected) <= EXACT, f"seed {seed}: {block_wise} instead of {expected}"
    p = torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)
    means = [
        mean_length(exact.chain_distribution(lambda c: p, lambda c: p.flip(0), 2, verify=rule))
        for rule in (verify.chain, block)
    ]
    assert np.allclose(means, [1 + 10 / 9, 1 + 11 / 9], atol=EXACT), means


ALMOST_ONE = 1 - 2.0**-53  # the largest random number


def almost_equal(dtype: torch.dtype, count: int = 60):
    """(p [k+1, V], q [k, V], drafted [k]) whose p and q agree but for the last bit of some numbers."""
    generator = torch.Generator().manual_seed(0)
    for V, k in ((2, 1), (3, 2), (5, 4)) * (count // 3):
        p = distribution_checks._random_laws((k + 1, V), generator, sparse=False).to(dtype)
        step = torch.randint(-1, 2, (k, V), generator=generator).to(dtype)
        q = torch.where(step == 0, p[:k], torch.nextafter(p[:k], step.sign() * 2))
        yield p, q, torch.multinomial(p[:k], 1, generator=generator).flatten().tolist()


def check_rounding(block=verify.block) -> None:
    """Where p = q up to rounding, R and 1 − w are 0 or nearly: the verdict stays one that p allows. Above all if only
    the last draft token has p < q, by one bit: it may be rejected, and then all before it are kept."""
    for dtype in (torch.float32, torch.float64):
        for p, q, drafted in almost_equal(dtype):
            for u in (0.0, 0.5, ALMOST_ONE):
                path, token = block(p, q, drafted, [u] * len(p))
                assert token < p.shape[-1] and float(p[len(path), token]) > 0, (p, q, drafted, u)
        for k in (1, 2, 4):
            q = torch.full((k, 4), 0.25, dtype=dtype)
            p = torch.cat([q, q[:1]])
            p[k - 1, 2] = torch.nextafter(p[k - 1, 2], p.new_zeros(()))
            verdict = block(p, q, [2] * k, [ALMOST_ONE] * k + [0.6])
            assert (len(verdict.path), verdict.token) == (k - 1, 2), f"{dtype}, k={k}: {verdict}"


def check_batch(chain_batch=verify.chain_batch) -> None:
    batch = partial(chain_batch, rule="block")
    distribution_checks.check_batch(distribution_checks.Scheme(chain=verify.block, chain_batch=batch), rows=60)


CHECKS = {"one token": check_one_token, "cycles": check_cycles, "length": check_length, "rounding": check_rounding}
