"""How much of the memory for keys and values holds nothing: paged blocks beside one contiguous run per request.

No model is needed, only the scheduler and the two pools: requests of random lengths are served one token a step, as an
engine would, and every tenth step the pools are asked which of the slots they gave away hold a token. A contiguous
pool reserves the longest possible text for everybody, because nobody knows how long a text will become.
"""

from collections.abc import Hashable
from random import Random

from minispec.sequence import Sequence
from minispec.serving.blocks import BlockPool, Table
from minispec.serving.scheduler import Scheduler, StaticScheduler, StepRecord

EVERY = 10  # steps between two looks at the pool: counting all its slots takes longer than a step


class ContiguousPool(BlockPool):
    """The way before paging: every request reserves one run of blocks for the longest text it could become.

    Same surface, same tables, so that everything else works with it unchanged; nothing is shared, and nothing given
    back before the end. `start` may reserve less than `max_length`: runs of different sizes then leave gaps too small
    for the next (external fragmentation), beside the slots that never fill (internal).
    """

    def __init__(self, num_blocks: int, block_size: int = 16, max_length: int = 1024):
        super().__init__(num_blocks, block_size, enable_prefix_caching=False)
        if not isinstance(max_length, int) or not 1 <= max_length <= num_blocks * block_size:
            raise ValueError(f"max_length={max_length!r}: give a whole number from 1 to {num_blocks * block_size}")
        self.max_length = max_length

    @property
    def max_tokens(self) -> int:
        return self.max_length

    def start(
        self,
        request: Hashable,
        tokens: list[int] = (),
        hashes: list[bytes] | None = None,
        *,
        reserve: int | None = None,
    ) -> int | None:
        self._refuse_twice(request)
        run = self.blocks_for(max(len(tokens), self.max_length if reserve is None else reserve))
        gap = 0  # free blocks in a row, up to and including this one
        for block in range(self.num_blocks):
            gap = gap + 1 if self.refcount[block] == 0 else 0
            if gap == run:  # the first gap that is wide enough
                blocks = list(range(block - run + 1, block + 1))
                for taken in blocks:
                    del self.free_blocks[taken]
                    self.refcount[taken] = 1
                self.tables[request] = Table(blocks, 0, len(tokens))
                return 0
        return None

    def allocate(self, request: Hashable, total: int) -> bool:
        table = self._table(request)
        if total > len(table.blocks) * self.block_size:
            return False
        table.reserved = max(table.reserved, total)
        return True

    def _kept_blocks(self, table: Table) -> int:
        return len(table.blocks)


class DryEngine:
    """An engine's scheduler and pool without a model: every token is 0. Which request runs when, and which block holds
    what, does not depend on the tokens."""

    def __init__(
        self, pool: BlockPool, max_num_seqs=32, max_num_batched_tokens=512, policy="continuous", max_chunk=None
    ):
        kind = {"continuous": Scheduler, "static": StaticScheduler}[policy]
        self.pool, self.scheduler = pool, kind(pool, max_num_seqs, max_num_batched_tokens, max_chunk=max_chunk)

    def add(self, prompt: list[int], max_new_tokens: int, *, request_id: Hashable) -> None:
        self.scheduler.add(Sequence(request_id, list(prompt), max_new_tokens=max_new_tokens))

    def step(self) -> StepRecord:
        step = self.scheduler.schedule()
        for turn in step.turns:
            turn.emit([0] * turn.emits)
        return self.scheduler.update(step)


def workload(count: int = 256, low: int = 100, high: int = 1024, seed: int = 0) -> list[tuple[int, int]]:
    """(tokens of the prompt, tokens to write), both uniform from low to high."""
    random = Random(seed)
    return [(random.randint(low, high), random.randint(low, high)) for _ in range(count)]


def serve(pool: BlockPool, requests: list[tuple[int, int]]) -> dict:
    """Serve them all, and say what the pool looked like meanwhile."""
    engine = DryEngine(pool, max_num_seqs=256, max_num_batched_tokens=2048)
    for id, (prompt, new) in enumerate(requests):
        engine.add([0] * prompt, new, request_id=id)
    looks, records = [], []
    while engine.scheduler.ids:
        records.append(engine.step())
        if records[-1].step % EVERY == 0:
            looks.append(pool.stats())
    held, waste = sum(look.tokens_stored for look in looks), sum(look.waste for look in looks)
    read = sum(row.tokens for record in records for row in record.rows)
    return {
        "waste": waste / (held + waste),  # of the slots in use
        "memory_holding_tokens": held / (len(looks) * pool.num_blocks * pool.block_size),
        "mean_running": sum(record.running for record in records) / len(records),
        "most_running": max(record.running for record in records),
        "steps": len(records),
        "preemptions": sum(len(record.preempted) for record in records),
        "tokens_read": read,
        "tokens_recomputed": read - sum(prompt + new - 1 for prompt, new in requests),
    }
