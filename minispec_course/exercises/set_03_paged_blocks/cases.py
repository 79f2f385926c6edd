"""Set 03, paged blocks: finding a slot, taking blocks, copy-on-write, the prefix that is already in memory."""

from minispec.serving.blocks import block_hash

from ..exercise import exercise
from ..fresh import Draw, fresh
from ..returned import items, pair, several, whole_numbers


# ---- 03.slot --------------------------------------------------------------------------------------------------------
def slots(table, block_size, start, stop):
    return [table[p // block_size] * block_size + p % block_size for p in range(start, stop)]


def observe_slots(answer, table, block_size, start, stop):
    return whole_numbers(answer(table, block_size, start, stop), "the result")


SLOTS = exercise(
    "03.slot",
    reference=slots,
    observe=observe_slots,
    cases=[
        dict(table=[3, 1], block_size=2, start=0, stop=1),
        dict(table=[3, 1], block_size=2, start=1, stop=2),
        dict(table=[3, 1, 4], block_size=2, start=0, stop=4),
        dict(table=[5, 0, 2, 7], block_size=4, start=6, stop=6),
        dict(table=[5, 0, 2, 7], block_size=4, start=3, stop=10),
        dict(table=[2, 6, 1, 0, 4], block_size=3, start=5, stop=11),
    ],
)


@SLOTS.wrong_solutions
class _:
    def block_from_the_remainder(table, block_size, start, stop):
        """You have quotient and remainder the wrong way round. p // block_size is the index into the table, and p %
        block_size the offset in that block: neighbouring tokens should be neighbours in a block."""
        return [table[p % block_size] * block_size + p // block_size for p in range(start, stop)]

    def block_number_as_slot(table, block_size, start, stop):
        """You add the offset to the number of the block. Block b begins at slot b · block_size, and without that factor
        two blocks overlap. Multiply the block number by block_size."""
        return [table[p // block_size] + p % block_size for p in range(start, stop)]

    def counts_from_start(table, block_size, start, stop):
        """You count the positions from start, as if the sequence began with this pass. Positions count from the
        beginning of the whole sequence, and so do the entries of the table. Let p run from start to stop − 1."""
        return slots(table, block_size, 0, stop - start)

    def one_slot_too_many(table, block_size, start, stop):
        """You include position stop. The range ends before it, like every range in Python, because the next pass begins
        at stop, so use range(start, stop)."""
        return slots(table, block_size, start, stop + 1)

    def block_of_the_first(table, block_size, start, stop):
        """You look up the block of the first position and count on from its slot. At the end of that block you run into
        the next one in memory, which may belong to another request. Look up the table for each position."""
        first = slots(table, block_size, start, start + 1)[0]
        return list(range(first, first + stop - start))


def blocks(draw: Draw, count: int, pool: int) -> list[int]:
    """Different block numbers. Block 0 is among them more often than chance would have it: it is as good as any."""
    found = draw.sample(range(pool), count)
    if found and 0 not in found and draw.chance(0.6):
        found[draw.randrange(count)] = 0
    return found


def slot_case(draw: Draw, block_size: int) -> dict:
    count = draw.whole(1, 2 + draw.size)
    start = draw.randrange(count * block_size)
    table, stop = blocks(draw, count, 10), draw.whole(start, min(count * block_size, start + 8))
    return dict(table=table, block_size=block_size, start=start, stop=stop)


@fresh("03.slot", "several blocks")
def _(draw):
    return draw.until(
        lambda: slot_case(draw, draw.whole(2, 3 + draw.size)),
        lambda case: case["start"] // case["block_size"] < (case["stop"] - 1) // case["block_size"],
    )


fresh("03.slot", "inside a block, or nothing", lambda draw: slot_case(draw, draw.whole(2, 6)), weight=0.5)
fresh("03.slot", "blocks of one slot", lambda draw: slot_case(draw, 1), weight=0.5, count=5)


# ---- 03.grow --------------------------------------------------------------------------------------------------------
def grow(table, free, block_size, tokens):
    missing = ceil_div(tokens, block_size) - len(table)
    if missing > len(free):
        return False
    table += [free.pop() for _ in range(missing)]
    return True


def observe_grow(answer, table, free, block_size, tokens):
    table, free = list(table), list(free)  # theirs to change
    room = answer(table, free, block_size, tokens)
    return {"is there room": room if room is None else bool(room), "table": table, "free, sorted": sorted(free)}


GROW = exercise(
    "03.grow",
    reference=grow,
    observe=observe_grow,
    cases=[
        dict(table=[], free=[2, 1, 0], block_size=2, tokens=1),
        dict(table=[2], free=[1, 0], block_size=2, tokens=2),
        dict(table=[2], free=[], block_size=2, tokens=3),
        dict(table=[2], free=[1, 0], block_size=2, tokens=3),
        dict(table=[4, 6], free=[7, 0], block_size=4, tokens=16),
        dict(table=[4, 6], free=[7, 0], block_size=4, tokens=17),
        dict(table=[], free=[5, 3, 8, 0, 2], block_size=3, tokens=10),
    ],
)


@GROW.wrong_solutions
class _:
    def one_block_too_many(table, free, block_size, tokens):
        """Where the tokens fill their blocks exactly, you count one block too many: n // block_size + 1 is not the same
        as ⌈n / block_size⌉. Round up with -(-n // block_size)."""
        return grow(table, free, block_size, tokens // block_size * block_size + 1)

    def rounds_down(table, free, block_size, tokens):
        """You round down, so the tokens of a last block that is not full have no slot. Round up: -(-n // size)."""
        return grow(table, free, block_size, tokens // block_size * block_size)

    def ignores_the_table(table, free, block_size, tokens):
        """You take blocks for all tokens, although the table has some. `tokens` counts from the first token of the
        request, so take only the blocks that are missing."""
        return grow(table, free, block_size, tokens + len(table) * block_size)

    def takes_what_there_is(table, free, block_size, tokens):
        """When too few blocks are free, you take what there is. The request cannot run with them, and now no other
        request can use them either. Check before you take anything, and return False."""
        enough = grow(table, free, block_size, min(tokens, (len(table) + len(free)) * block_size))
        return enough and len(table) * block_size >= tokens

    def takes_from_the_front(table, free, block_size, tokens):
        """You take free blocks from the front of the list. Any free block would do, but so that tables can be compared,
        take the last one first, with free.pop()."""
        free.reverse()
        return grow(table, free, block_size, tokens)


def growing(draw: Draw, short: int) -> dict:
    """`short`: how many blocks more are missing than are free."""
    block_size, held = draw.whole(1, 2 + draw.size), draw.whole(0, 2 + draw.size)
    fresh = draw.whole(max(1, short), 2 + draw.size)
    numbers = blocks(draw, held + max(0, fresh - short), held + fresh + 6)
    tokens = (held + fresh) * block_size - draw.randrange(block_size)
    return dict(table=numbers[:held], free=numbers[held:], block_size=block_size, tokens=tokens)


fresh("03.grow", "enough blocks are free", lambda draw: growing(draw, -draw.whole(0, 3)))
fresh("03.grow", "too few are free", lambda draw: growing(draw, draw.whole(1, 2)))


# ---- 03.allocator ---------------------------------------------------------------------------------------------------
def allocator(table, free, block_size, length, drafts, accepted):
    during, after = ceil_div(length + 1 + drafts, block_size), ceil_div(length + 1 + accepted, block_size)
    fresh = during - len(table)
    if fresh > len(free):
        return None
    table = table + [free.pop() for _ in range(fresh)]
    return table, table[:after], free + table[after:]


def flawed_allocator(
    table, free, block_size, length, drafts, accepted, *, total=None, fresh=None, keep=None, grabs=False, leaks=False
):
    """The allocator with a switch for each way to get it wrong."""
    total = length + 1 + drafts if total is None else total
    fresh = max(0, ceil_div(total, block_size) - len(table)) if fresh is None else fresh
    if fresh > len(free):
        if not grabs:
            return None
        fresh = len(free)
    free = list(free)
    during = [*table, *(free.pop() for _ in range(fresh))]
    keep = ceil_div(length + 1 + accepted, block_size) if keep is None else keep
    return during, during[:keep], free if leaks else free + during[keep:]


def ceil_div(tokens, block_size):
    return -(-tokens // block_size)


def observe_allocator(answer, table, free, block_size, length, drafts, accepted):
    found = answer(list(table), list(free), block_size, length, drafts, accepted)  # theirs to change
    if found is None:
        return {"is there room": "no"}
    names = "the table during the pass", "the table after it", "the list of free blocks"
    found = several(found, 3, f"{', '.join(names)}, or None")
    during, after, left = map(whole_numbers, found, names)
    return {"is there room": "yes", "table during the pass": during, "table after it": after, "free": sorted(left)}


def memory_map(answer) -> str:
    """One request through six passes: what its blocks hold during each pass, and what it keeps after it."""
    size, table, free, length, drafts = 4, [5], [1, 6, 2, 7, 0, 4, 3], 3, 4
    lines = ["# kept   + stored, then rejected   . empty        (blocks of 4 slots, 4 draft tokens per pass)", ""]
    for number, accepted in enumerate((4, 0, 2, 1, 4, 0), start=1):
        found = answer(list(table), list(free), size, length, drafts, accepted)
        if found is None:
            return "\n".join([*lines, f"pass {number}: no room"])
        during, table, free = found
        length += 1 + accepted
        marks = ("#" * length + "+" * (drafts - accepted)).ljust(len(during) * size, ".")
        drawn = [f"{b}:{marks[i * size : (i + 1) * size]}" for i, b in enumerate(during)]
        lines.append(f"pass {number}  accepts {accepted}  {' '.join(drawn)}")
        lines.append(f"        then keeps {' '.join(map(str, table))}; free {' '.join(map(str, sorted(free)))}")
    return "\n".join(lines)


ALLOCATOR = exercise(
    "03.allocator",
    reference=allocator,
    observe=observe_allocator,
    picture=memory_map,
    cases=[
        dict(table=[], free=[2, 1, 0], block_size=2, length=0, drafts=0, accepted=0),
        dict(table=[2], free=[1, 0], block_size=2, length=1, drafts=0, accepted=0),
        dict(table=[2], free=[1, 0], block_size=2, length=2, drafts=0, accepted=0),
        dict(table=[2], free=[1, 0], block_size=2, length=1, drafts=2, accepted=2),
        dict(table=[2], free=[1, 0], block_size=2, length=1, drafts=2, accepted=0),
        dict(table=[5], free=[1, 3, 0], block_size=4, length=3, drafts=4, accepted=1),
        dict(table=[5], free=[3], block_size=4, length=4, drafts=4, accepted=3),
        dict(table=[5], free=[3], block_size=4, length=4, drafts=3, accepted=3),
        dict(table=[4, 6], free=[7, 0, 2], block_size=4, length=7, drafts=8, accepted=1),
        dict(table=[4, 6], free=[], block_size=4, length=6, drafts=1, accepted=0),
    ],
)


@ALLOCATOR.wrong_solutions
class _:
    def no_lookahead(table, free, block_size, length, drafts, accepted):
        """You make room for the last token only. The pass also stores keys and values for every draft token, before it
        is known which of them are accepted. Make room for length + 1 + drafts tokens."""
        return flawed_allocator(table, free, block_size, length, drafts, accepted, total=length + 1)

    def forgets_the_last_token(table, free, block_size, length, drafts, accepted):
        """You forget the last token of the output. It was emitted but not processed, so it has no slot yet. The pass
        stores 1 + drafts tokens and keeps 1 + accepted: both counts need 1 more."""
        keep = ceil_div(length + accepted, block_size)
        return flawed_allocator(table, free, block_size, length, drafts, accepted, total=length + drafts, keep=keep)

    def one_block_too_many(table, free, block_size, length, drafts, accepted):
        """Where the tokens fill their blocks exactly, you count one block too many: n // block_size + 1 is not the same
        as ⌈n / block_size⌉. Round up with -(-n // block_size)."""
        fresh = max(0, (length + 1 + drafts) // block_size + 1 - len(table))
        keep = (length + 1 + accepted) // block_size + 1
        return flawed_allocator(table, free, block_size, length, drafts, accepted, fresh=fresh, keep=keep)

    def ignores_the_room_left(table, free, block_size, length, drafts, accepted):
        """You take new blocks for all tokens of the pass. The last block of the table may still have empty slots, so
        fill those first: take only as many blocks as are missing from the table."""
        fresh = ceil_div(1 + drafts, block_size)
        return flawed_allocator(table, free, block_size, length, drafts, accepted, fresh=fresh)

    def takes_what_there_is(table, free, block_size, length, drafts, accepted):
        """When too few blocks are free, you take what there is. The pass cannot run with them, and now no other request
        can use them either. Return None and leave everything as it was."""
        return flawed_allocator(table, free, block_size, length, drafts, accepted, grabs=True)

    def only_what_is_accepted(table, free, block_size, length, drafts, accepted):
        """You make room for the accepted draft tokens only. Which ones those are is known only after the pass; while it
        runs, every draft token needs a slot. Make room for length + 1 + drafts tokens."""
        return flawed_allocator(table, free, block_size, length, drafts, accepted, total=length + 1 + accepted)

    def one_list_for_both(table, free, block_size, length, drafts, accepted):
        """You return one list both as the table during the pass and as the table after it. When you cut the second, the
        first is cut as well, because both are the same list. Copy one of them: list(table), or a slice."""
        found = flawed_allocator(table, free, block_size, length, drafts, accepted)
        return found and (found[1], found[1], found[2])

    def never_gives_back(table, free, block_size, length, drafts, accepted):
        """You keep the blocks of draft tokens that were rejected. They hold nothing that is needed, and other requests
        are waiting for them. After the pass, cut the table to the blocks of length + 1 + accepted tokens."""
        return flawed_allocator(table, free, block_size, length, drafts, accepted, keep=len(table) + len(free))

    def loses_blocks(table, free, block_size, length, drafts, accepted):
        """You cut the table, but the blocks that you cut off do not return to the free list. No request has them now,
        so the pool shrinks with every rejection until nothing is left. Append what you cut off to free."""
        return flawed_allocator(table, free, block_size, length, drafts, accepted, leaks=True)

    def takes_from_the_front(table, free, block_size, length, drafts, accepted):
        """You take free blocks from the front of the list. Any free block would do, but so that tables can be compared,
        take the last one first, with free.pop()."""
        return flawed_allocator(table, free[::-1], block_size, length, drafts, accepted)


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


fresh("03.allocator", "blocks are taken", pass_case, where=lambda case: 0 < fresh_blocks(case) <= len(case["free"]))


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


fresh("03.allocator", "nothing is needed", pass_case, where=lambda case: fresh_blocks(case) == 0, weight=0.5)


# ---- 03.copy_on_write -----------------------------------------------------------------------------------------------
def copy_on_write(
    table, refcount, block_size, length, *, full=True, shared=lambda count: count > 1, left=-1, counted=1
):
    """The same with parts to exchange: whether a full block is noticed, when one is shared, both counts after it."""
    table, refcount = list(table), list(refcount)
    if full and length % block_size == 0:
        table.append(refcount.index(0))
        refcount[table[-1]] = counted
        return table, refcount, []
    source = table[-1]
    if not shared(refcount[source]):
        return table, refcount, []
    table[-1] = refcount.index(0)
    refcount[source] = max(0, refcount[source] + left)
    refcount[table[-1]] = counted
    return table, refcount, [(source, table[-1])]


def observe_copies(answer, table, refcount, block_size, length):
    found = answer(list(table), list(refcount), block_size, length)
    table, refcount, copies = several(found, 3, "the table, the counts and the copies")
    copies = [pair(copy, "source and destination of a copy") for copy in items(copies, "the copies", " of pairs")]
    return {
        "table": whole_numbers(table, "the table"),
        "refcount": whole_numbers(refcount, "refcount"),
        "copies": [whole_numbers(copy, "a copy") for copy in copies],
    }


COPY_ON_WRITE = exercise(
    "03.copy_on_write",
    reference=copy_on_write,
    observe=observe_copies,
    cases=[
        dict(table=[0], refcount=[1, 0], block_size=2, length=1),
        dict(table=[0], refcount=[1, 0], block_size=2, length=2),
        dict(table=[0], refcount=[2, 0], block_size=2, length=1),
        dict(table=[0], refcount=[2, 0], block_size=2, length=2),
        dict(table=[2, 0], refcount=[2, 0, 2, 0], block_size=2, length=3),
        dict(table=[1, 3], refcount=[0, 3, 0, 1, 0], block_size=4, length=6),
        dict(table=[4, 1, 3], refcount=[1, 3, 0, 3, 3, 0, 0], block_size=4, length=9),
        dict(table=[4, 1], refcount=[1, 3, 0, 1, 2, 0], block_size=4, length=8),
    ],
)


@COPY_ON_WRITE.wrong_solutions
class _:
    def writes_in_place(table, refcount, block_size, length):
        """You store the token in a shared block. The other requests that have this block in their tables would see your
        token as theirs. Copy the block first when its reference count is above 1."""
        return copy_on_write(table, refcount, block_size, length, shared=lambda count: False)

    def always_copies(table, refcount, block_size, length):
        """You copy a block that no other request has. With a reference count of 1 no one else is affected, so store
        the token in place."""
        return copy_on_write(table, refcount, block_size, length, shared=lambda count: True)

    def copies_a_full_block(table, refcount, block_size, length):
        """You copy a shared block although it is full. The tokens of a full block never change here, so it can stay
        shared. Append a new block for the new token instead."""
        return copy_on_write(table, refcount, block_size, length, full=length % block_size or refcount[table[-1]] == 1)

    def source_still_counted(table, refcount, block_size, length):
        """You leave the reference count of the old block as it was, although it is in one table fewer. It will never
        reach 0 again, so the block is lost: lower the count by 1."""
        return copy_on_write(table, refcount, block_size, length, left=0)

    def source_freed(table, refcount, block_size, length):
        """You set the reference count of the old block to 0, as if only this request had used it. The block is still in
        other tables, so lower the count by 1 only."""
        return copy_on_write(table, refcount, block_size, length, left=-max(refcount))

    def new_block_not_counted(table, refcount, block_size, length):
        """Your new block keeps a reference count of 0, which means free, so the next request would be given the same
        block. Set the count of the new block to 1."""
        return copy_on_write(table, refcount, block_size, length, counted=0)


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


fresh("03.copy_on_write", "the last block is full", lambda draw: counted(draw, full=True, shared=draw.chance(0.5)))
fresh("03.copy_on_write", "room in a block of its own", lambda draw: counted(draw, full=False, shared=False))
fresh("03.copy_on_write", "room in a shared block", lambda draw: counted(draw, full=False, shared=True))


# ---- 03.prefix_hash -------------------------------------------------------------------------------------------------
def prefix_blocks(prompt, block_size, block_of, *, parent_of=lambda parent: parent, least=1, start=None, gaps=False):
    """The same with parts to exchange: the parent that is hashed, tokens left to compute, where a block's tokens begin,
    and whether a missing block is passed over."""
    found, parent = [], b""
    for end in range(block_size, len(prompt) + 1 - least, block_size):
        parent = block_hash(parent_of(parent), prompt[end - block_size if start is None else start : end])
        if parent in block_of:
            found.append(block_of[parent])
        elif not gaps:
            break
    return found


def index_of(stored, evicted, block_size):
    """hash → block for the full blocks of these sequences, numbered in order, without those that were evicted."""
    block_of, number = {}, 0
    for text in stored:
        parent = b""
        for end in range(block_size, len(text) + 1, block_size):
            parent = block_hash(parent, text[end - block_size : end])
            if parent not in block_of:
                block_of[parent], number = number, number + 1
    return {name: block for name, block in block_of.items() if block not in evicted}


def observe_prefix(answer, stored, evicted, prompt, block_size):
    return whole_numbers(answer(prompt, block_size, index_of(stored, evicted, block_size)), "the result")


PREFIX_HASH = exercise(
    "03.prefix_hash",
    legend={
        "stored": "prompts whose full blocks are in memory, numbered from 0",
        "evicted": "blocks that have since been reused",
    },
    reference=prefix_blocks,
    observe=observe_prefix,
    cases=[
        dict(stored=[[1, 2]], evicted=[], prompt=[1, 2, 3], block_size=2),
        dict(stored=[[1, 2]], evicted=[], prompt=[1, 2], block_size=2),
        dict(stored=[[1, 2]], evicted=[], prompt=[2, 1, 3], block_size=2),
        dict(stored=[[1, 2], [3, 4]], evicted=[], prompt=[1, 2, 3, 4, 5], block_size=2),
        dict(stored=[[1, 2, 3, 4]], evicted=[], prompt=[1, 2, 3, 4, 5, 6], block_size=2),
        dict(stored=[[1, 2, 3, 4]], evicted=[], prompt=[1, 2, 3, 4], block_size=2),
        dict(stored=[[1, 2, 3, 4, 5, 6]], evicted=[1], prompt=[1, 2, 3, 4, 5, 6, 7], block_size=2),
        dict(stored=[[7, 7, 7, 7, 7, 7, 7]], evicted=[], prompt=[7, 7, 7, 7, 7, 7, 7], block_size=3),
        dict(stored=[[1, 2, 3, 4, 5], [1, 2, 3, 9]], evicted=[], prompt=[1, 2, 3, 9, 9, 9, 9, 9], block_size=2),
    ],
)


@PREFIX_HASH.wrong_solutions
class _:
    def without_the_parent(prompt, block_size, block_of):
        """You hash each block by its own tokens alone. Keys and values depend on everything before them, so the same
        tokens after a different beginning are a different block. Pass the previous block's hash as parent."""
        return prefix_blocks(prompt, block_size, block_of, parent_of=lambda parent: b"")

    def the_whole_prompt(prompt, block_size, block_of):
        """You reuse the whole prompt if it ends with a full block. Then no token is left to compute, but the first new
        token's distribution comes from the pass over the last prompt token. Leave at least one token."""
        return prefix_blocks(prompt, block_size, block_of, least=0)

    def goes_on_after_a_miss(prompt, block_size, block_of):
        """You continue past a missing block. Later blocks may still be in memory, but a reused prefix must not have
        gaps. Stop at the first hash that is not registered."""
        return prefix_blocks(prompt, block_size, block_of, gaps=True)

    def whole_prefix_in_one_hash(prompt, block_size, block_of):
        """You hash the whole prefix at once. That hash is as unique as the chained one, but the pool uses the chained
        one, so only the first block is ever found; and you hash the beginning again for every block. Pass the previous
        block's hash as parent."""
        return prefix_blocks(prompt, block_size, block_of, parent_of=lambda parent: b"", start=0)

    def one_block_short(prompt, block_size, block_of):
        """You always leave the last full block out. One token must remain to be computed, not one block. The last full
        block counts if at least one prompt token comes after it."""
        return prefix_blocks(prompt[: len(prompt) // block_size * block_size], block_size, block_of)


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
    def gap(case):
        return bool(case["evicted"]) and len(found(case)) < (len(case["prompt"]) - 1) // case["block_size"]

    return draw.until(lambda: prompt_case(draw), gap)


@fresh("03.prefix_hash", "the same tokens after another beginning")
def _(draw):
    """The blocks of the prompt are all in memory, but in another order."""
    block_size, count = draw.whole(1, 3), draw.whole(2, 3)
    parts = [[draw.whole(1, 3) for _ in range(block_size)] for _ in range(count)]
    prompt = [token for part in parts for token in part] + [draw.whole(1, 3)]
    stored = [list(part) for part in parts] + [[token for part in reversed(parts) for token in part]]
    draw.shuffle(stored)
    return dict(stored=stored, evicted=[], prompt=prompt, block_size=block_size)
