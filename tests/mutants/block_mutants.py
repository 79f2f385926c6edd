"""Wrong block pools and schedulers, and the checks that catch each."""

from minispec.serving.blocks import BlockPool
from minispec.serving.scheduler import Scheduler

from .patching import Mutant, rewritten


def pool(*change: str) -> Mutant:
    return rewritten(BlockPool, *change)


def plan(*change: str) -> Mutant:
    return rewritten(Scheduler, *change)


KEPT = "range(0, len(tokens) - size, size)"
COUNT = "sequence.num_computed_tokens = PREEMPTED, 0"

MUTANTS = {  # method, what it says, what the mutant says, and who notices
    # Puts a block on the free list with its first owner's end, whoever else still reads it.
    "frees_what_others_hold": pool("_release", "if self.refcount[block] == 0:", "if True:", "pool", "overtaking"),
    # Finds all of a prompt whose length is a multiple of the block: nothing is left to compute a law from.
    "whole_prompt_from_the_cache": pool("match_prefix", KEPT, KEPT.replace("size, ", "size + 1, "), "pool"),
    # Names blocks that only drafts have filled: right by luck for a chain, but a tree's nodes are not in place.
    "drafts_are_hashed": pool("commit", "length // size)", "min(table.reserved, len(tokens)) // size)", "drafts"),
    # Gives a cached block to somebody else and still finds the old tokens in it.
    "eviction_keeps_the_name": pool("_take", "self._forget_hash(block)", "pass", "pool", "lru"),
    # Evicts what was used last: right, but the prefix that everybody wants is the first to go.
    "newest_evicted_first": pool("_take", "popitem(last=False)", "popitem(last=True)", "lru"),
    # Gives a text's first blocks back first, so that they are evicted first and the rest is found by nobody.
    "beginning_evicted_first": pool("_give_back", "table.blocks.pop()", "table.blocks.pop(keep)", "prefix end"),
    # Keeps the lookahead blocks after the pass: right, but speculation eats the memory.
    "surplus_is_kept": pool("trim", "self._give_back(table, self._kept_blocks(table))", "pass", "pool", "drafts"),
    # Forgets that the cached blocks a request reuses are no longer free for its other tokens.
    "cached_blocks_counted_twice": pool(
        "start", "fresh + sum(self.refcount[block] == 0 for block in blocks) >", "fresh >", "cached once"
    ),
    # Takes the blocks away, but believes that their tokens are still computed.
    "preempted_keeps_its_count": plan("_preempt", COUNT, COUNT[:-1] + "sequence.num_computed_tokens", "two"),
    # Pushes out the first instead of the last: who has waited longest starts again and again.
    "oldest_preempted": plan("_decode", "victim = self.running[-1]", "victim = self.running[0]", "scheduler", "two"),
    # Sends whoever was pushed out to the end of the queue.
    "preempted_waits_at_the_end": plan(
        "_preempt", "self.waiting.insert(0, sequence)", "self.waiting.append(sequence)", "overtaking"
    ),
    # Does not roll num_computed_tokens back to what is verified.
    "refused_drafts_count_as_computed": plan("update", "max(0, emitted - 1)", "drafted", "scheduler", "two"),
    # Believes that the emitted token was read in the pass that emitted it.
    "emitted_token_counts_as_computed": plan("update", "max(0, emitted - 1)", "emitted", "two", "overtaking"),
    # Takes a request out of the batch and leaves its blocks behind.
    "ended_requests_keep_their_blocks": plan("finish", "self.pool.free(sequence.request_id)", "pass", "overtaking"),
    # Plans drafts as if they cost no tokens.
    "drafts_beyond_the_budget": plan("_speculate", "turn.share, left - scratch)", "turn.share)", "scheduler"),
    # Gives each request the largest tree it can have, while there is budget: the last ones never draft.
    "first_requests_take_all": plan("_speculate", "draft_share(left, len(drafting), left, scratch)", "left", "shares"),
    # Counts a draft's nodes and not its scratch tokens.
    "scratch_costs_nothing": plan("_speculate", "left -= nodes + scratch", "left -= nodes", "shares"),
    # Forgets the hashes of a request that waits for blocks.
    "waiting_request_is_hashed_again": plan("_admit", ", hashes=sequence.block_hashes", "", "hashed once"),
    # Looks at the number of places one request too late.
    "one_too_many": plan("_admit", "len(self.running) < self", "len(self.running) <= self", "scheduler"),
    # Accepts a request that needs more blocks than there are, and finds out when it has all of them.
    "never_fitting_is_let_in": plan("check", "if longest > self.pool.max_tokens:", "if False:", "scheduler"),
}
