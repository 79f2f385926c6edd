"""Wrong block pools and schedulers. Each function breaks one part by a monkeypatch."""

from __future__ import annotations

from pytest import MonkeyPatch

from minispec.serving import blocks, scheduler
from minispec.serving.blocks import BlockPool
from minispec.serving.scheduler import Scheduler, StaticScheduler

from .patching import Mutant, rewrite

# ---- the pool ------------------------------------------------------------------------------------------------------


def writes_into_shared_blocks(patch: MonkeyPatch) -> None:
    """Forgets copy-on-write: what a fork writes appears in its parent's text."""
    rewrite(
        patch, BlockPool, "allocate", "shared = partly and self.refcount[table.blocks[first]] > 1", "shared = False"
    )


def copy_is_not_reported(patch: MonkeyPatch) -> None:
    """Takes a new block for the copy but does not tell the tensors: the table points at somebody's old tokens."""
    rewrite(patch, BlockPool, "allocate", "copies.append((source, table.blocks[first]))", "pass")


def copied_block_keeps_a_reference(patch: MonkeyPatch) -> None:
    """Does not let go of the block it copied: it is never free again."""
    rewrite(patch, BlockPool, "allocate", "self._release(source)", "pass")


def frees_what_others_hold(patch: MonkeyPatch) -> None:
    """Puts a block on the free list with its first owner's end, whoever else still reads it."""
    rewrite(patch, BlockPool, "_release", "if self.refcount[block] == 0:", "if True:")


def fork_without_references(patch: MonkeyPatch) -> None:
    """Copies the table of a fork's parent and does not count it."""
    rewrite(patch, BlockPool, "fork", "self._share(block)", "pass")


def block_named_without_its_parent(patch: MonkeyPatch) -> None:
    """Hashes a block's own tokens only: keys and values also depend on everything before them."""
    right = blocks.block_hash
    patch.setattr(blocks, "block_hash", lambda parent, tokens: right(b"", tokens))


def colliding_hash(patch: MonkeyPatch) -> None:
    """Trusts a hash of sixteen values, as if two texts never met in one of them."""
    right = blocks.block_hash
    patch.setattr(blocks, "block_hash", lambda parent, tokens: bytes([right(parent, tokens)[0] % 16]))


def whole_prompt_from_the_cache(patch: MonkeyPatch) -> None:
    """Finds all of a prompt whose length is a multiple of the block: nothing is left to compute a law from."""
    rewrite(
        patch, BlockPool, "match_prefix", "range(0, len(tokens) - size, size)", "range(0, len(tokens) - size + 1, size)"
    )


def drafts_are_hashed(patch: MonkeyPatch) -> None:
    """Names blocks that only drafts have filled: right by luck for a chain, but a tree's nodes are not in place."""
    rewrite(patch, BlockPool, "commit", "length // size)", "min(table.reserved, len(tokens)) // size)")


def prompts_are_hashed_before_they_are_read(patch: MonkeyPatch) -> None:
    """Names a prompt's blocks when they are handed out: others find them while they are still empty."""

    def start(self, request, tokens=(), hashes=None):
        cached = right(self, request, tokens)
        if cached is not None:
            self.commit(request, tokens)
            self.tables[request].length = cached
            self.tables[request].hashes = self.tables[request].hashes[: cached // self.block_size]
        return cached

    right = BlockPool.start
    patch.setattr(BlockPool, "start", start)


def eviction_keeps_the_name(patch: MonkeyPatch) -> None:
    """Gives a cached block to somebody else and still finds the old tokens in it."""
    rewrite(patch, BlockPool, "_take", "self._forget_hash(block)", "pass")


def rewritten_block_keeps_its_name(patch: MonkeyPatch) -> None:
    """Rolls back into a hashed block, writes something else there, and lets others find it under the old name."""
    rewrite(patch, BlockPool, "allocate", "self._forget_hash(table.blocks[first])", "pass")


def newest_evicted_first(patch: MonkeyPatch) -> None:
    """Evicts what was used last: right, but the prefix that everybody wants is the first to go."""
    rewrite(patch, BlockPool, "_take", "popitem(last=False)", "popitem(last=True)")


def beginning_evicted_first(patch: MonkeyPatch) -> None:
    """Gives a text's first blocks back first, so that they are evicted first and the rest is found by nobody."""
    rewrite(patch, BlockPool, "_give_back", "table.blocks.pop()", "table.blocks.pop(keep)")


def surplus_is_kept(patch: MonkeyPatch) -> None:
    """Keeps the lookahead blocks after the pass: right, but speculation eats the memory."""
    rewrite(patch, BlockPool, "trim", "self._give_back(table, self._kept_blocks(table))", "pass")


def cached_blocks_counted_twice(patch: MonkeyPatch) -> None:
    """Forgets that the cached blocks a request reuses are no longer free for its other tokens."""
    rewrite(patch, BlockPool, "start", "fresh + sum(self.refcount[block] == 0 for block in blocks) >", "fresh >")


# ---- the scheduler -------------------------------------------------------------------------------------------------


def preempted_keeps_its_count(patch: MonkeyPatch) -> None:
    """Takes the blocks away, but believes that their tokens are still computed."""
    rewrite(
        patch,
        Scheduler,
        "_preempt",
        "sequence.num_computed_tokens = PREEMPTED, 0",
        "sequence.num_computed_tokens = PREEMPTED, sequence.num_computed_tokens",
    )


def oldest_preempted(patch: MonkeyPatch) -> None:
    """Pushes out the first instead of the last: who has waited longest starts again and again."""
    rewrite(patch, Scheduler, "_decode", "victim = self.running[-1]", "victim = self.running[0]")


def preempted_waits_at_the_end(patch: MonkeyPatch) -> None:
    """Sends whoever was pushed out to the end of the queue."""
    rewrite(
        patch, Scheduler, "_preempt", "insort(self.waiting, sequence, key=in_order)", "self.waiting.append(sequence)"
    )


def refused_drafts_count_as_computed(patch: MonkeyPatch) -> None:
    """Does not roll num_computed_tokens back to what is verified."""
    rewrite(patch, Scheduler, "update", "max(0, emitted - 1)", "drafted")


def emitted_token_counts_as_computed(patch: MonkeyPatch) -> None:
    """Believes that the emitted token was read in the pass that emitted it."""
    rewrite(patch, Scheduler, "update", "max(0, emitted - 1)", "emitted")


def ended_requests_keep_their_blocks(patch: MonkeyPatch) -> None:
    """Takes a request out of the batch and leaves its blocks behind."""
    rewrite(patch, Scheduler, "finish", "self.pool.free(sequence.request_id)", "pass")


def drafts_beyond_the_budget(patch: MonkeyPatch) -> None:
    """Plans drafts as if they cost no tokens."""
    rewrite(patch, Scheduler, "_speculate", "turn.share, left - scratch)", "turn.share)")


def first_requests_take_all(patch: MonkeyPatch) -> None:
    """Gives each request the largest tree it can have, while there is budget: the last ones never draft."""
    rewrite(patch, Scheduler, "_speculate", "draft_share(left, len(drafting), left, scratch)", "left")


def scratch_costs_nothing(patch: MonkeyPatch) -> None:
    """Counts a draft's nodes and not its scratch tokens."""
    rewrite(patch, Scheduler, "_speculate", "left -= nodes + scratch", "left -= nodes")


def waiting_request_is_hashed_again(patch: MonkeyPatch) -> None:
    """Forgets the hashes of a request that waits for blocks."""
    rewrite(patch, Scheduler, "_admit", ", hashes=sequence.block_hashes", "")


def guesses_before_prompts(patch: MonkeyPatch) -> None:
    """Serves drafts before those who wait: they take blocks and tokens that real work needs."""

    def admit(self, step):
        self._speculate(step)
        step.budget -= sum(row.num_lookahead_tokens for row in step.turns)
        right(self, step)

    right = Scheduler._admit
    patch.setattr(Scheduler, "_admit", admit)


def short_prompts_overtake(patch: MonkeyPatch) -> None:
    """Admits whoever fits: a long prompt may wait for ever."""

    def admit(self, step):
        right(self, step)
        for request in list(self.waiting):
            self.waiting.remove(request)
            self.waiting.insert(0, request)
            right(self, step)
        self.waiting.sort(key=scheduler.in_order)

    right = Scheduler._admit
    patch.setattr(Scheduler, "_admit", admit)


def one_too_many(patch: MonkeyPatch) -> None:
    """Looks at the number of places one request too late."""
    rewrite(patch, Scheduler, "_admit", "len(self.running) < self", "len(self.running) <= self")


def never_fitting_is_let_in(patch: MonkeyPatch) -> None:
    """Accepts a request that needs more blocks than there are, and finds out when it has all of them."""
    rewrite(patch, Scheduler, "check", "if longest > self.pool.max_tokens:", "if False:")


def static_batch_is_joined(patch: MonkeyPatch) -> None:
    """Calls continuous batching static."""
    patch.setattr(StaticScheduler, "_open", Scheduler._open)


# ---- who catches whom ----------------------------------------------------------------------------------------------


MUTANTS = {
    mutant.install.__name__: mutant
    for mutant in (
        Mutant(writes_into_shared_blocks, ("forks",)),
        Mutant(copy_is_not_reported, ("forks",)),
        Mutant(copied_block_keeps_a_reference, ("forks",)),
        Mutant(frees_what_others_hold, ("pool", "overtaking")),
        Mutant(fork_without_references, ("pool",)),
        Mutant(block_named_without_its_parent, ("pool", "scheduler")),
        Mutant(colliding_hash, ("pool", "scheduler")),
        Mutant(whole_prompt_from_the_cache, ("pool", "scheduler", "whole prompt")),
        Mutant(drafts_are_hashed, ("drafts",)),
        Mutant(prompts_are_hashed_before_they_are_read, ("scheduler",)),
        Mutant(eviction_keeps_the_name, ("pool", "scheduler", "lru")),
        Mutant(rewritten_block_keeps_its_name, ("rewritten",)),
        Mutant(newest_evicted_first, ("lru",)),
        Mutant(beginning_evicted_first, ("prefix end",)),
        Mutant(surplus_is_kept, ("pool", "drafts")),
        Mutant(cached_blocks_counted_twice, ("cached once",)),
        Mutant(preempted_keeps_its_count, ("scheduler", "two")),
        Mutant(oldest_preempted, ("scheduler", "two")),
        Mutant(preempted_waits_at_the_end, ("scheduler",)),
        Mutant(refused_drafts_count_as_computed, ("scheduler", "two")),
        Mutant(emitted_token_counts_as_computed, ("scheduler", "two", "overtaking")),
        Mutant(ended_requests_keep_their_blocks, ("scheduler", "overtaking")),
        Mutant(drafts_beyond_the_budget, ("scheduler",)),
        Mutant(first_requests_take_all, ("shares",)),
        Mutant(scratch_costs_nothing, ("shares",)),
        Mutant(waiting_request_is_hashed_again, ("hashed once",)),
        Mutant(guesses_before_prompts, ("guesses last",)),
        Mutant(short_prompts_overtake, ("scheduler", "overtaking")),
        Mutant(one_too_many, ("scheduler",)),
        Mutant(never_fitting_is_let_in, ("scheduler",)),
        Mutant(static_batch_is_joined, ("scheduler",)),
    )
}
