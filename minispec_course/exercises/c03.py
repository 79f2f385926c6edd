"""Fresh cases of set 03."""

from __future__ import annotations

from .e03 import ceil_div, index_of, prefix_blocks
from .fresh import Draw, fresh


def blocks(draw: Draw, count: int, pool: int) -> list[int]:
    """Different block numbers. Block 0 is among them more often than chance would have it: it is as good as any."""
    found = draw.sample(range(pool), count)
    if found and 0 not in found and draw.chance(0.6):
        found[draw.randrange(count)] = 0
    return found


def slot_case(draw: Draw, block_size: int) -> dict:
    count = draw.whole(1, 2 + draw.size)
    start = draw.randrange(count * block_size)
    return dict(
        table=blocks(draw, count, 10),
        block_size=block_size,
        start=start,
        stop=draw.whole(start, min(count * block_size, start + 8)),
    )


@fresh("03.slot", "several blocks")
def _(draw):
    return draw.until(
        lambda: slot_case(draw, draw.whole(2, 3 + draw.size)),
        lambda case: case["start"] // case["block_size"] < (case["stop"] - 1) // case["block_size"],
    )


@fresh("03.slot", "inside a block, or nothing", weight=0.5)
def _(draw):
    return slot_case(draw, draw.whole(2, 6))


@fresh("03.slot", "blocks of one slot", weight=0.5, count=5)
def _(draw):
    return slot_case(draw, 1)


def pass_case(draw: Draw) -> dict:
    block_size, length = draw.whole(1, 2 + draw.size), draw.whole(0, 2 + 3 * draw.size)
    drafts = draw.whole(0, 2 + 2 * draw.size)
    held, spare = ceil_div(length, block_size), draw.whole(0, 4 + draw.size)
    numbers = blocks(draw, held + spare, held + spare + 3)
    accepted = draw.whole(0, drafts)
    sizes = dict(block_size=block_size, length=length, drafts=drafts, accepted=accepted)
    return dict(table=numbers[:held], free=numbers[held:], **sizes)


def fresh_blocks(case: dict) -> int:
    return ceil_div(case["length"] + 1 + case["drafts"], case["block_size"]) - len(case["table"])


@fresh("03.allocator", "blocks are taken")
def _(draw):
    return draw.until(lambda: pass_case(draw), lambda case: 0 < fresh_blocks(case) <= len(case["free"]))


@fresh("03.allocator", "blocks are given back")
def _(draw):
    def some_return(case):
        kept = ceil_div(case["length"] + 1 + case["accepted"], case["block_size"])
        during = len(case["table"]) + fresh_blocks(case)
        return fresh_blocks(case) <= len(case["free"]) and kept < during

    return draw.until(lambda: pass_case(draw), some_return)


@fresh("03.allocator", "just room enough, or just too little")
def _(draw):
    return draw.until(lambda: pass_case(draw), lambda case: fresh_blocks(case) - len(case["free"]) in (0, 1))


@fresh("03.allocator", "nothing is needed", weight=0.5)
def _(draw):
    return draw.until(lambda: pass_case(draw), lambda case: fresh_blocks(case) == 0)


def counted(draw: Draw, *, full: bool, shared: bool) -> dict:
    block_size = draw.whole(1 if full else 2, 3 + draw.size)
    before = draw.whole(1 if full else 0, 1 + draw.size)
    length = before * block_size + (0 if full else draw.whole(1, block_size - 1))
    held, pool = ceil_div(length, block_size), ceil_div(length, block_size) + draw.whole(1, 4)
    table = blocks(draw, held, pool)
    refcount = [draw.choice([0, 0, 1, 2]) for _ in range(pool)]
    for block in table:
        refcount[block] = draw.whole(1, 3)
    refcount[table[-1]] = draw.whole(2, 4) if shared else 1
    refcount[draw.choice([b for b in range(pool) if b not in table])] = 0
    return dict(table=table, refcount=refcount, block_size=block_size, length=length)


@fresh("03.copy_on_write", "the last block is full")
def _(draw):
    return counted(draw, full=True, shared=draw.chance(0.5))


@fresh("03.copy_on_write", "room in a block of its own")
def _(draw):
    return counted(draw, full=False, shared=False)


@fresh("03.copy_on_write", "room in a shared block")
def _(draw):
    return counted(draw, full=False, shared=True)


def prompt_case(draw: Draw) -> dict:
    """Sequences in memory that begin like the prompt, for a while; few different tokens, so that blocks look alike."""
    block_size = draw.whole(1, 1 + draw.size)
    prompt = [draw.whole(1, 2 + draw.size // 3) for _ in range(draw.whole(1, block_size * (2 + draw.size)))]
    stored = []
    for _ in range(draw.whole(1, 3)):
        same = draw.choice([len(prompt), draw.randrange(len(prompt) + 1)])
        stored.append(prompt[:same] + [draw.whole(1, 3) for _ in range(draw.whole(0, 2 * block_size))])
    evicted = [block for block in range(6) if draw.chance(0.15)]
    return dict(stored=stored, evicted=evicted, prompt=prompt, block_size=block_size)


def found(case: dict) -> list[int]:
    block_of = index_of(case["stored"], case["evicted"], case["block_size"])
    return prefix_blocks(case["prompt"], case["block_size"], block_of)


@fresh("03.prefix_hash", "a chain of blocks")
def _(draw):
    return draw.until(lambda: prompt_case(draw), lambda case: len(found(case)) >= 2 + draw.size // 3)


@fresh("03.prefix_hash", "the prompt ends with a block")
def _(draw):
    def to_the_end(case):
        return (
            len(case["prompt"]) % case["block_size"] == 0
            and len(found(case)) + 1 == len(case["prompt"]) // case["block_size"] >= 1
        )

    return draw.until(lambda: prompt_case(draw), to_the_end)


@fresh("03.prefix_hash", "a block is missing")
def _(draw):
    def hole(case):
        return bool(case["evicted"]) and len(found(case)) < (len(case["prompt"]) - 1) // case["block_size"]

    return draw.until(lambda: prompt_case(draw), hole)


@fresh("03.prefix_hash", "the same tokens after another beginning")
def _(draw):
    """The blocks of the prompt are all in memory, but in another order."""
    block_size, count = draw.whole(1, 3), draw.whole(2, 3)
    parts = [[draw.whole(1, 3) for _ in range(block_size)] for _ in range(count)]
    prompt = [token for part in parts for token in part] + [draw.whole(1, 3)]
    stored = [list(part) for part in parts] + [[token for part in reversed(parts) for token in part]]
    draw.shuffle(stored)
    return dict(stored=stored, evicted=[], prompt=prompt, block_size=block_size)
