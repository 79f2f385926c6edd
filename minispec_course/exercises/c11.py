"""Fresh cases of set 11."""

from __future__ import annotations

from . import c11_load  # noqa: F401 — the second half of the set
from .e11 import blocks_for, speeds
from .fresh import Draw, fresh


def request(draw: Draw, *, room: int, decoding: bool = True) -> dict:
    """A request that may get so many more tokens."""
    num_tokens = draw.whole(1 if decoding else 2, 4 + 6 * draw.size)
    num_computed = num_tokens - 1 if decoding else draw.randrange(num_tokens)
    block_size = draw.whole(1, 3 + 3 * draw.size)
    num_blocks = max(0, blocks_for(num_computed, block_size) + draw.choice([0, 0, 0, 1, 3]))
    sizes = dict(max_tokens=num_tokens + room, block_size=block_size, num_blocks=num_blocks)
    return dict(num_tokens=num_tokens, num_computed=num_computed, k=draw.whole(0, 2 + 2 * draw.size), **sizes)


@fresh("11.lookahead_slots", "far from the end")
def _(draw):
    return request(draw, room=99)


@fresh("11.lookahead_slots", "near the end")
def _(draw):
    return request(draw, room=draw.whole(0, 4))


@fresh("11.lookahead_slots", "a prompt to process")
def _(draw):
    return request(draw, room=draw.choice([draw.whole(0, 3), 50]), decoding=False)


@fresh("11.lookahead_slots", "more blocks than it needs", weight=0.5, count=6)
def _(draw):
    case = request(draw, room=draw.whole(0, 20))
    return {**case, "num_blocks": case["num_tokens"] + draw.whole(2, 9)}


def shared_table(draw: Draw, shared: float) -> dict:
    block_size, held = draw.whole(1, 3 + draw.size), draw.whole(1, 2 + draw.size)
    pool = held + draw.whole(0, 3)
    table = draw.sample(range(pool), held)
    refcount = [draw.choice([0, 1, 2]) for _ in range(pool)]
    for block in table:
        refcount[block] = draw.whole(2, 3) if draw.chance(shared) else 1
    return dict(table=table, refcount=refcount, block_size=block_size, length=draw.whole(0, held * block_size))


@fresh("11.rollback", "blocks of its own")
def _(draw):
    return shared_table(draw, 0.0)


@fresh("11.rollback", "shared blocks")
def _(draw):
    return shared_table(draw, 0.6)


@fresh("11.rollback", "to the edge of a block")
def _(draw):
    case = shared_table(draw, 0.4)
    return {**case, "length": case["block_size"] * draw.whole(0, len(case["table"]))}


def clear(case: dict) -> bool:
    """No two draft lengths are almost equally fast: there rounding would decide."""
    best, second, *_ = sorted(speeds(**case), reverse=True)
    return best > second * (1 + 1e-6)


def batch_case(draw: Draw, fits) -> dict:
    def make():
        alphas = [
            draw.choice([0.0, 1.0, *(draw.whole(1, 19) / 20 for _ in range(6))])
            for _ in range(draw.whole(1, 1 + draw.size))
        ]
        costs = dict(read=float(draw.whole(5, 40)), compute=draw.whole(1, 16) / 4, draft=draw.whole(0, 12) / 4)
        return dict(alphas=alphas, longest=draw.whole(1, 3 + draw.size), **costs)

    def best(case):
        found = speeds(**case)
        return found.index(max(found))

    return draw.until(make, lambda case: clear(case) and fits(best(case), case))


@fresh("11.batch_k", "a best length in between", weight=2)
def _(draw):
    return batch_case(draw, lambda best, case: 0 < best < case["longest"] or case["longest"] == 1)


@fresh("11.batch_k", "better not to draft")
def _(draw):
    return batch_case(draw, lambda best, case: best == 0)


@fresh("11.batch_k", "sequences that differ much")
def _(draw):
    return batch_case(
        draw, lambda best, case: len(case["alphas"]) > 1 and max(case["alphas"]) > min(case["alphas"]) + 0.5
    )


@fresh("11.batch_k", "equally fast: the smallest", weight=0.5, count=5)
def _(draw):
    """Nothing is accepted, and a longer draft costs nothing."""
    longest = draw.whole(1, 4)
    return dict(alphas=[0.0] * draw.whole(1, 3), longest=longest, read=64.0, compute=1.0, draft=0.0)
