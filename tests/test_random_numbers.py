"""The random numbers of a sequence: the same bits everywhere, uniform, and independent of its neighbours'.

Power. Each χ² test counts N pairs in a GRID × GRID table and fails below p = 1e-4. Where a part ε of the pairs repeats
its first number, the noncentrality is N ε² (GRID − 1): for N = 400,000 and ε = 0.01 it is 600, and the statistic, with
255 degrees of freedom, is above its limit of 347 in more than 99.9 of 100 runs. The last χ² test does just that.
"""

import pytest
import torch
from scipy import stats

from minispec.sampling import GOLDEN, Coins, mixed, signed, uniform, uniforms

PAIRS, GRID, P_VALUE = 400_000, 16, 1e-4


def splitmix64(state: int) -> int:
    """The published algorithm, in whole numbers of any size."""
    z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def test_the_bits_are_those_of_splitmix64():
    states = [0, 1, -1, 2**63 - 1, -(2**63), 12345678901234567, *(n * GOLDEN for n in range(1, 200))]
    bits = mixed(torch.tensor([signed(state) for state in states]))
    assert bits.tolist() == [signed(splitmix64(state % 2**64)) for state in states]


@pytest.mark.parametrize("seed", [0, 7, -3, 2**63 - 1])
def test_number_n_is_a_hash_of_the_seed_and_n(seed):
    coins, start = Coins(seed), splitmix64(seed % 2**64)
    expected = [splitmix64((start + n * GOLDEN) % 2**64) // 2**11 / 2**53 for n in range(1, 41)]
    assert uniforms([coins], 30)[0].tolist() == expected[:30]
    assert uniforms([coins], 10)[0].tolist() == expected[30:]


def neighbours(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """PAIRS numbers, and those beside them: what a sequence, a seed or a request would have in common."""
    n = torch.arange(PAIRS)
    states = mixed(n)  # of the seeds 0, 1, 2, …
    if name == "numbers of one sequence":
        u = uniform(Coins(1).state + GOLDEN * (1 + n))
        return u[:-1], u[1:]
    if name == "seeds that follow each other":
        u = uniform(states + GOLDEN)
        return u[:-1], u[1:]
    if name == "seeds that differ in their highest bit":
        return uniform(states + GOLDEN), uniform(mixed(n ^ -(2**63)) + GOLDEN)
    return uniform(states + GOLDEN), uniform(states + signed(2 * GOLDEN))  # the first two numbers of every seed


NEIGHBOURS = (
    "numbers of one sequence",
    "seeds that follow each other",
    "seeds that differ in their highest bit",
    "first and second",
)


def p_value(a: torch.Tensor, b: torch.Tensor) -> float:
    cells = (a * GRID).long() * GRID + (b * GRID).long()
    return stats.chisquare(torch.bincount(cells, minlength=GRID**2)).pvalue


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_pairs_are_uniform_in_the_square(name):
    """So each number is uniform, and none tells anything about its neighbour."""
    a, b = neighbours(name)
    assert p_value(a, b) > P_VALUE
    fine = (a * 2**20).frac(), (b * 2**20).frac()  # the bits below the first twenty
    assert p_value(*fine) > P_VALUE


def test_the_test_sees_a_correlation_of_one_per_cent():
    a, b = neighbours("first and second")
    copied = torch.arange(len(a)) % 100 == 0
    assert p_value(a, torch.where(copied, a, b)) < P_VALUE


def test_sequences_of_a_batch_do_not_overlap():
    """Two states that were a few steps of GOLDEN apart would give the same numbers, shifted."""
    states = mixed(torch.arange(3_000))
    inverse = signed(pow(GOLDEN % 2**64, -1, 2**64))
    steps = ((states[:, None] - states) * inverse).abs()  # how many numbers apart they are
    steps.fill_diagonal_(2**62)
    assert int(steps.min()) > 2**32
