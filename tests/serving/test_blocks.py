"""The block pool: tables, prefix caching and eviction, one at a time and in any order."""

from random import Random

import pytest
from hypothesis import stateful
from hypothesis import strategies as st
from slot_memory import Memory, chance, random_tokens, run_machine

from minispec.serving.blocks import BlockPool

# ---------------------------------------------------------------- prefix caching


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


@pytest.mark.parametrize("first, second", ["ab", "ba"])
def test_a_block_that_two_requests_computed_is_found_while_either_is_there(first, second):
    """The copy of the one that ends first is a free block like any other; the one in use is found, and cached later."""
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


def test_the_least_recently_used_block_is_evicted_first():
    pool = BlockPool(4, 1)
    memory = Memory(pool)
    for request, token in (("a", 1), ("b", 2), ("c", 3), ("d", 4)):
        memory.fill(request, [token])
    for request in "bacd":
        pool.free(request)
    memory.fill("a again", [1, 9])  # uses 1 and evicts 2, the longest unused
    assert [bool(pool.match_prefix([token, 0])) for token in (1, 2, 3, 4)] == [True, False, True, True]
    pool.free("a again")  # now 3 and 4 are older than 1
    memory.fill("e", [5, 6])
    assert [bool(pool.match_prefix([token, 0])) for token in (1, 3, 4)] == [True, False, False]
    assert pool.stats().evictions == 3


def test_the_end_of_a_prefix_is_evicted_before_its_beginning():
    pool = BlockPool(3, 2)
    memory = Memory(pool)
    memory.fill("a", [1, 2, 3, 4, 5, 6])
    pool.free("a")
    memory.fill("b", [7, 8])
    assert len(pool.match_prefix([1, 2, 3, 4, 5, 6, 0])) == 2


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


# ---------------------------------------------------------------- in any order


class PoolMachine(stateful.RuleBasedStateMachine):
    """Requests start, grow with drafts that are partly rejected, and end, in any order."""

    @stateful.initialize(
        num_blocks=st.sampled_from([3, 8, 16, 32]),
        block_size=st.sampled_from([1, 2, 3, 4]),
        caching=st.sampled_from([True, True, False]),
    )
    def make(self, num_blocks, block_size, caching):
        self.pool = BlockPool(num_blocks, block_size, caching)
        self.memory, self.running, self.ended, self.ids = Memory(self.pool), {}, [[]], 0
        for seed in range(2):
            self.start(random=Random(seed))

    @stateful.rule(random=chance)
    def start(self, random):
        self.ids += 1
        request, pool = self.ids, self.pool
        tokens = random.choice([*self.ended, *self.running.values()]) + random_tokens(random, 0, 9)
        in_use = sum(pool.refcount[block] > 0 for block in pool.match_prefix(tokens))
        fits = pool.blocks_for(len(tokens)) - in_use <= pool.num_free
        cached = pool.start(request, tokens)
        assert (cached is not None) == fits
        if cached is not None:
            assert cached < max(1, len(tokens)), "a prefix hit must leave a token to compute"
            assert self.memory.read(request, cached) == tokens[:cached]
            self.memory.write(request, cached, tokens[cached:])
            kept = random.choice((len(tokens), random.randint(cached, len(tokens))))
            pool.commit(request, tokens, kept)
            pool.trim(request)
            self.running[request] = tokens[:kept]

    @stateful.precondition(lambda self: self.running)
    @stateful.rule(random=chance)
    def step(self, random):
        """A pass over half of the requests."""
        for request in random.sample(list(self.running), k=(len(self.running) + 1) // 2):
            self.append(request, random)

    def append(self, request, random):
        pool, sequence = self.pool, self.running[request]
        tokens, draft = random_tokens(random, 1, 3), random_tokens(random, 0, 6)
        whole = sequence + tokens + draft
        for total in (len(sequence) + len(tokens), len(whole)):  # certain tokens first, then the lookahead slots
            if not pool.allocate(request, total):
                assert pool.blocks_for(total) - len(pool.table(request)) > pool.num_free
                self.end(request)  # or nothing would happen any more
                return
        self.memory.write(request, len(sequence), whole[len(sequence) :])
        self.running[request] = whole[: len(sequence) + len(tokens) + random.randint(0, len(draft))]
        pool.commit(request, whole, len(self.running[request]))
        pool.trim(request)

    @stateful.precondition(lambda self: self.running)
    @stateful.rule(random=chance)
    def free(self, random):
        self.end(random.choice(list(self.running)))

    def end(self, request):
        self.pool.free(request)
        self.ended = [*self.ended, self.running.pop(request)][-8:]

    @stateful.precondition(lambda self: self.pool.cached_blocks)
    @stateful.rule(random=chance)
    def evict(self, random):
        """A request with tokens of its own takes many of the free blocks, and ends before it commits any."""
        tokens = [7] * random.randint(1, min(12, self.pool.num_free * self.pool.block_size))
        self.pool.start("another", tokens)
        self.memory.write("another", 0, tokens)
        self.pool.free("another")

    @stateful.invariant()
    def bookkeeping_is_right(self):
        if not hasattr(self, "pool"):
            return
        self.pool.check_integrity()
        for request, tokens in self.running.items():
            assert self.memory.read(request, len(tokens)) == tokens, f"request {request} reads other tokens"
            assert len(self.pool.table(request)) == self.pool.blocks_for(len(tokens)), "surplus blocks were kept"
        for ended in self.ended:
            for tokens in (ended, [*ended, 0]):
                found = self.pool.match_prefix(tokens)
                assert len(found) * self.pool.block_size < max(1, len(tokens))
                assert self.memory.read_blocks(found) == tokens[: len(found) * self.pool.block_size]
        stats = self.pool.stats()
        assert stats.tokens == sum(map(len, self.running.values())) >= stats.tokens_stored
        assert 0 <= stats.waste <= (self.pool.block_size - 1) * len(self.running)

    def teardown(self):
        if hasattr(self, "pool"):
            for request in self.running:
                self.pool.free(request)
            self.pool.check_integrity()
            assert self.pool.num_used == 0 and not any(self.pool.refcount)


@pytest.mark.slow
def test_in_any_order_every_request_reads_its_own_tokens():
    run_machine(PoolMachine, examples=100, steps=50)
