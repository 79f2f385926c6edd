"""Invariants as code: what must hold between two steps. Each check is the `check_integrity` of what it checks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .blocks import BlockPool
    from .engine import Engine
    from .scheduler import Scheduler


class IntegrityError(AssertionError):
    """The books do not balance: a bug, never a user's mistake."""


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise IntegrityError(otherwise)


def check_pool(pool: BlockPool) -> None:
    """Every block is counted once: in tables, cached or free; names and blocks agree; what is written is not shared."""
    entries = Counter(block for table in pool.tables.values() for block in table.blocks)
    for block, count in enumerate(pool.refcount):
        require(count == entries[block], f"block {block} is in {entries[block]} tables, its refcount says {count}")
    free, cached, used = set(pool.free_blocks), set(pool.cached_blocks), set(entries)
    require(not free & cached and not (free | cached) & used, "a block is both free and used, or free twice")
    require(free | cached | used == set(range(pool.num_blocks)), "a block is neither free nor used")
    named = {block: name for name, block in pool.block_of.items()}
    require(named == pool.hash_of and len(named) == len(pool.block_of), "the directions of the hash map disagree")
    require(cached <= named.keys() and not free & named.keys(), "cached must mean free and hashed")
    for request, table in pool.tables.items():
        name, hashed = f"request {request!r}", table.length // pool.block_size if pool.enable_prefix_caching else 0
        require(len(set(table.blocks)) == len(table.blocks), f"{name} has one block twice in its table")
        require(table.length <= table.reserved <= len(table.blocks) * pool.block_size, f"{name} has too few blocks")
        require(len(table.hashes) == hashed, f"{name} has {len(table.hashes)} hashes for {hashed} full blocks")
        for block, known in zip(table.blocks, table.hashes, strict=False):
            require(named.get(block, known) == known, f"{name} holds block {block} under another hash")
        for block in table.blocks[pool.blocks_for(table.length) :]:  # to be written in the coming pass
            alone = pool.refcount[block] == 1 and block not in named
            require(alone, f"{name} is about to write into block {block}, which others can see")


def check_scheduler(scheduler: Scheduler) -> None:
    """Every request is in one queue, in its order, and exactly the running ones hold blocks."""
    check_pool(scheduler.pool)
    waiting, running, most = scheduler.waiting, scheduler.running, scheduler.max_num_seqs
    require(len(running) <= most, f"{len(running)} requests run, at most {most} may")
    for queue in (waiting, running):
        require(queue == sorted(queue, key=lambda request: (request.priority, request.arrival)), "a queue is unordered")
    everybody = {request.id: request for request in waiting + running}
    require(everybody == scheduler.requests, "a request is in no queue, or in one after its end")
    require(len(everybody) == len(waiting) + len(running), "a request is in two queues")
    holders = scheduler.pool.tables
    require({request.id for request in running} == holders.keys(), "the requests with blocks are not those that run")
    for request in running:
        computed, kept = request.num_computed_tokens, holders[request.id].length
        require(computed == kept < request.num_tokens, f"request {request.id!r}: {computed} computed, {kept} kept")
    for request in waiting:
        require(request.num_computed_tokens == 0, f"request {request.id!r} waits, but not from its start")


def check_engine(engine: Engine) -> None:
    """Scheduler, drafter and caller are shown the same tokens of the same requests."""
    with engine.lock:
        check_scheduler(engine.scheduler)
        require(engine.jobs.keys() == engine.scheduler.requests.keys(), "scheduler and engine serve different requests")
        for id, job in engine.jobs.items():
            tokens, computed = job.request.tokens, job.request.num_computed_tokens
            require(tokens == job.context.tokens, f"request {id!r}: the drafter is shown other tokens")
            require(tokens[job.prompt_tokens :] == job.writer.tokens, f"request {id!r}: the caller gets other tokens")
            require(job.output is None and not job.ended, f"request {id!r} has ended, but runs")
            held = sum(len(next(iter(states.values()))) for states in job.unseen)
            require(held <= computed, f"request {id!r}: hidden states of {held} tokens, but {computed} are computed")
