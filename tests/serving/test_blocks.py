"""The block pool: tables, sharing, prefix reuse and eviction, one at a time and in any order."""

import pytest
from block_checks import CHECKS, Memory

from minispec.serving.blocks import BlockPool


@pytest.mark.parametrize("check", [pytest.param("pool", marks=pytest.mark.slow), "lru", "prefix end"])
def test_pool(check):
    CHECKS[check]()


# ---------------------------------------------------------------- sharing


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


def test_a_block_that_two_computed_is_found_as_long_as_either_is_there():
    """Whichever ends first: its copy is a free block like any other, the one in use is found, and cached in the end."""
    for first, second in ("ab", "ba"):
        pool = BlockPool(4, 4)
        for request in "ab":
            pool.start(request, range(5))
        for request in "ab":
            pool.commit(request, range(5))
        pool.free(first)
        pool.start("other", range(90, 98))  # takes all that is free
        assert pool.match_prefix(range(5)) == pool.table(second)[:1]
        pool.check_integrity()
        pool.free(second)
        assert len(pool.match_prefix(range(5))) == pool.stats().cached_blocks == 1
        pool.check_integrity()


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
    with pytest.raises(ValueError, match="length=3"):
        pool.commit("a", range(3))
    pool.check_integrity()
