"""The block pool: tables, sharing, copy-on-write, prefix reuse and eviction, one at a time and in any order."""

from __future__ import annotations

import subprocess
import sys

import pytest
from block_checks import CHECKS, Memory, PoolMachine, run_machine

import minispec as ms
from minispec.serving.blocks import BlockPool, IntegrityError, block_hash


@pytest.mark.parametrize(
    "check",
    [pytest.param("pool", marks=pytest.mark.slow), "whole prompt", "lru", "prefix end", "cached once", "drafts"],
)
def test_pool(check):
    CHECKS[check]()


@pytest.mark.nightly
@pytest.mark.slow
def test_ten_thousand_steps_break_no_invariant():
    assert run_machine(PoolMachine, examples=260, shrink=True) >= 10_000


# ---------------------------------------------------------------- tables


def test_slots_follow_the_table():
    pool = BlockPool(6, 4)
    assert pool.start("a", range(4)) == 0 and pool.start("b", range(4)) == 0
    pool.commit("a", range(4))
    assert pool.allocate("a", 7) == []
    first, second = pool.table("a")
    assert second != first + 1  # b is in between, and it does not matter
    assert pool.slots("a", 2, 7) == [first * 4 + 2, first * 4 + 3, second * 4, second * 4 + 1, second * 4 + 2]
    with pytest.raises(ValueError, match="allocate"):
        pool.slots("a", 0, 8)


def test_surplus_blocks_are_given_back_after_the_pass():
    pool = BlockPool(8, 4)
    pool.start("a", range(4))
    pool.commit("a", range(4))
    pool.allocate("a", 4 + 1 + 9)  # one token and nine drafts
    assert pool.num_used == 4
    pool.commit("a", range(7))  # two of them were accepted
    pool.trim("a")
    assert pool.num_used == 2 and pool.slots("a", 0, 7)
    with pytest.raises(ValueError):
        pool.slots("a", 0, 8)  # the rest of the block has to be asked for again


def test_a_refusal_changes_nothing():
    pool = BlockPool(4, 4)
    memory = Memory(pool)
    memory.fill("a", list(range(9)))
    pool.fork("a", "b")
    before = pool.table("a"), pool.num_free
    assert pool.start("c", [9] * 5) is None and "c" not in pool.tables
    assert pool.allocate("a", 13) is None  # one block more, and a copy of the shared one
    assert (pool.table("a"), pool.num_free) == before
    assert pool.allocate("a", 12) is not None
    pool.check_integrity()


# ---------------------------------------------------------------- sharing


def test_a_fork_shares_until_somebody_writes():
    pool = BlockPool(6, 4)
    memory = Memory(pool)
    memory.fill("parent", [1, 2, 3, 4, 5, 6])
    assert pool.fork("parent", "child") == []
    assert pool.table("child") == pool.table("parent") and pool.num_used == 2
    copies = pool.allocate("child", 7)
    assert copies == [(pool.table("parent")[1], pool.table("child")[1])]  # only the block that is written
    memory.copy(copies)
    memory.write("child", 6, [7])
    assert pool.allocate("parent", 7) == []  # alone in its block again
    memory.write("parent", 6, [8])
    for request, last in (("parent", 8), ("child", 7)):
        pool.commit(request, [1, 2, 3, 4, 5, 6, last])
        assert memory.read(request, 7) == [1, 2, 3, 4, 5, 6, last]
    assert pool.stats().shared_blocks == 1 and pool.stats().copies == 1


def test_a_prefix_outlives_its_request_and_is_found_by_the_next():
    pool = BlockPool(8, 4)
    memory = Memory(pool)
    memory.fill("a", list(range(10)))
    pool.free("a")
    assert pool.num_used == 0 and pool.stats().cached_blocks == 2
    assert memory.fill("b", [*range(8), 77]) == 8
    assert memory.fill("c", [*range(4), 77, 78]) == 4
    stats = pool.stats()
    assert (stats.prefix_queries, stats.prefix_hits, stats.prefix_tokens) == (3, 2, 12)
    assert stats.shared_blocks == 1 and stats.tokens == 15 and stats.tokens_stored == 11 and stats.waste == 5


def test_equal_blocks_after_different_beginnings_are_different():
    pool = BlockPool(8, 2)
    Memory(pool).fill("a", [1, 1, 5, 5, 0])
    assert len(pool.match_prefix([1, 1, 5, 5, 0])) == 2
    assert pool.match_prefix([2, 2, 5, 5, 0]) == [] and pool.match_prefix([5, 5, 0]) == []
    assert block_hash(b"", [1, 2]) != block_hash(b"", [2, 1]) != block_hash(block_hash(b"", [2, 1]), [2, 1])


def test_a_block_rolled_back_into_is_no_longer_found():
    pool = BlockPool(4, 2)
    memory = Memory(pool)
    memory.fill("a", [1, 2, 3, 4])
    pool.trim("a", 3)
    assert len(pool.match_prefix([1, 2, 3, 4, 5])) == 2  # it still holds the 4
    pool.allocate("a", 4)
    assert len(pool.match_prefix([1, 2, 3, 4, 5])) == 1


# ---------------------------------------------------------------- the way before


# ---------------------------------------------------------------- mistakes


def test_misuse_is_refused():
    pool = BlockPool(4, 4)
    pool.start("a", range(4))
    with pytest.raises(ValueError, match="already"):
        pool.start("a", range(4))
    with pytest.raises(ValueError, match="'b'"):
        pool.free("b")
    with pytest.raises(ValueError, match="length=5"):
        pool.commit("a", range(5))  # no slot for the fifth
    pool.commit("a", range(4))
    with pytest.raises(ValueError, match="length=5"):
        pool.trim("a", 5)
    with pytest.raises(ValueError, match="length=3"):
        pool.commit("a", range(3))
    pool.check_integrity()


@pytest.mark.parametrize(
    ("break_it", "complaint"),
    [
        (lambda pool: pool.refcount.__setitem__(pool.table("a")[0], 2), "refcount"),
        (lambda pool: pool.free_blocks.update({pool.table("a")[0]: None}), "both free and used"),
        (lambda pool: pool.free_blocks.popitem(), "neither"),
        (lambda pool: pool.hash_of.popitem(), "disagree"),
        (lambda pool: pool.tables["a"].hashes.pop(), "hashes"),
        (lambda pool: setattr(pool.tables["a"], "reserved", 99), "too few"),
        (lambda pool: pool.cached_blocks.update({pool.free_blocks.popitem()[0]: None}), "cached"),
    ],
)
def test_integrity_is_really_checked(break_it, complaint):
    pool = BlockPool(6, 2)
    Memory(pool).fill("a", [1, 2, 3])
    pool.check_integrity()
    break_it(pool)
    with pytest.raises(IntegrityError, match=complaint):
        pool.check_integrity()


def test_bookkeeping_needs_no_torch():
    """Pool and scheduler, without the package around them, import nothing but the standard library."""
    code = (
        "import sys, types\n"
        f"sys.modules['minispec'] = package = types.ModuleType('minispec'); package.__path__ = {ms.__path__!r}\n"
        "import minispec.serving.scheduler\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
