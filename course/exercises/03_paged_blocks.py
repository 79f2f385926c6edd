# %% [markdown]
# # Exercises 03: paged blocks
#
# The memory for keys and values is cut into blocks of `block_size` slots, one slot a token. A request owns a *table*:
# the numbers of its blocks, in the order of its text. You write the bookkeeping around that table, the part of a server
# where an error of one is somebody else's text. There are no tensors here, only lists and counts. Each exercise stands
# alone.
#
# Fill in the function, run its cell, run the check below it.

# %%
from minispec.course.classroom import check, draw, hint
from minispec.serving.blocks import block_hash

# %% [markdown] exercise="03.slot"
# ## 1. From position to slot
#
# Every pass asks this first: the tokens at positions start … stop − 1 of a request, where in memory do their keys and
# values go? It is the page table of an operating system, in one line.
#
# Blocks of 4, table [5, 0]: block 5 is slots 20 … 23, block 0 is slots 0 … 3.
#
# ```
# position   0   1   2   3   4   5   6   7
# slot      20  21  22  23   0   1   2   3
# ```
#
# $$\text{slot}(p) = \text{table}\left[\left\lfloor p / s \right\rfloor\right] \cdot s + (p \bmod s), \qquad
# s = \text{block\_size}$$
#
# | | | |
# |---|---|---|
# | `table` | list of block numbers | long enough |
# | `block_size` | whole number ≥ 1 | slots of a block |
# | `start`, `stop` | whole numbers, start ≤ stop | positions in the text; `stop` itself is not asked for |
# | returns | list of stop − start slots | |


# %% exercise="03.slot"
def slots(table: list[int], block_size: int, start: int, stop: int) -> list[int]:
    """Where the tokens at positions start … stop − 1 are in memory."""
    ### BEGIN SOLUTION: for each position: which block of the table, and how far into it?
    places = []
    for position in range(start, stop):
        which, offset = divmod(position, block_size)
        places.append(table[which] * block_size + offset)
    return places
    ### END SOLUTION


# %% exercise="03.slot"
check("03.slot", slots)

# %% [markdown] exercise="03.allocator"
# ## 2. The blocks of a pass
#
# A request takes memory block by block, as it grows. With speculation it also takes some on approval: while a pass
# runs, every draft needs a slot (the *lookahead slots*), and afterwards only the accepted ones keep theirs.
#
# The request has `length` tokens in its blocks. The pass reads the last token of the text, which has no slot yet, and
# `drafts` drafted ones; `accepted` of these turn out right. So
#
# $$\text{blocks during} = \left\lceil \frac{\text{length} + 1 + \text{drafts}}{s} \right\rceil, \qquad
# \text{blocks after} = \left\lceil \frac{\text{length} + 1 + \text{accepted}}{s} \right\rceil$$
#
# (The token that the target emits at the end of the pass has no slot again: the next pass reads it.) Keep the blocks of
# the table that it has, and put fresh ones behind them. Take those from the **end** of `free`, one after the other. If
# there are too few, the answer is None: all or nothing.
#
# | | | |
# |---|---|---|
# | `table` | list of block numbers | ⌈length / s⌉ of them |
# | `free` | list of block numbers | blocks that nobody uses |
# | `block_size`, `length` | whole numbers | slots of a block; tokens in the table's blocks, ≥ 0 |
# | `drafts`, `accepted` | whole numbers | 0 ≤ accepted ≤ drafts |
# | returns | `(during, after, free)` or `None` | the table while the pass runs; the table after it; the free blocks after it, in any order |
#
# The lists are yours: you may change them.


# %% exercise="03.allocator"
def allocator(
    table: list[int], free: list[int], block_size: int, length: int, drafts: int, accepted: int
) -> tuple[list[int], list[int], list[int]] | None:
    """Take the blocks of one pass, and give back those that hold nothing true after it."""
    ### BEGIN SOLUTION: how many blocks are missing? are they there? which are still needed after the pass?
    blocks_during = -(-(length + 1 + drafts) // block_size)
    blocks_after = -(-(length + 1 + accepted) // block_size)
    if blocks_during - len(table) > len(free):
        return None
    during = list(table)
    while len(during) < blocks_during:
        during.append(free.pop())
    after, surplus = during[:blocks_after], during[blocks_after:]
    return during, after, free + surplus
    ### END SOLUTION


# %% exercise="03.allocator"
check("03.allocator", allocator)

# %% [markdown]
# Watch your allocator serve one request: each pass shows the blocks it ran with, then what was kept of them.

# %%
draw("03.allocator", allocator)

# %% [markdown] exercise="03.copy_on_write"
# ## 3. Copy on write
#
# Two requests with the same beginning can have the same blocks in their tables: nothing is copied when they part, and a
# count per block says in how many tables it is. That works until one of them writes.
#
# The request has `length` tokens and is about to write one more, at position `length`. Make its place safe:
#
# ```
# the last block is full                     a fresh block behind it          nothing to copy
# it has room, and is in this table only     write there                      nothing to copy
# it has room, and others have it too        a fresh block in its place       copy the old one into it
# ```
#
# A block with count 0 is free. Take the **free block with the lowest number**, and keep all counts true.
#
# | | | |
# |---|---|---|
# | `table` | list of block numbers | ⌈length / s⌉ of them, at least one |
# | `refcount` | list of counts | `refcount[b]` says in how many tables block b is; at least one is 0 |
# | `block_size`, `length` | whole numbers ≥ 1 | slots of a block; tokens in the table's blocks |
# | returns | `(table, refcount, copies)` | both as they are before the write; a list of `(source, destination)`, empty or with one pair |
#
# The lists are yours: you may change them.


# %% exercise="03.copy_on_write"
def copy_on_write(
    table: list[int], refcount: list[int], block_size: int, length: int
) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Make position `length` of a request writable, without anybody else noticing."""
    ### BEGIN SOLUTION: is the last block full? is it shared?
    last, fresh = table[-1], refcount.index(0)
    if length % block_size == 0:
        refcount[fresh] += 1
        return [*table, fresh], refcount, []
    if refcount[last] == 1:
        return table, refcount, []
    refcount[last] -= 1  # the others keep it
    refcount[fresh] += 1
    return [*table[:-1], fresh], refcount, [(last, fresh)]
    ### END SOLUTION


# %% exercise="03.copy_on_write"
check("03.copy_on_write", copy_on_write)

# %% [markdown] exercise="03.prefix_hash"
# ## 4. The prefix that is already there
#
# A thousand requests begin with the same instructions. Their keys and values need to be computed once, if a new request
# can find them: full blocks are entered in a dictionary under a name, and the name must stand for all that the block's
# keys and values depend on, which is every token up to its end.
#
# $$h_0 = \text{hash}(\text{empty},\; t_0 \dots t_{s-1}), \qquad
# h_i = \text{hash}(h_{i-1},\; t_{is} \dots t_{(i+1)s - 1})$$
#
# Return the blocks that hold the beginning of the prompt, in order, as far as they go without a hole. Never all of the
# prompt: the pass over its last token yields the law of the first new one, so **at least one token** stays to be
# computed.
#
# | | | |
# |---|---|---|
# | `prompt` | list of tokens | at least one |
# | `block_size` | whole number ≥ 1 | |
# | `block_of` | dictionary | name → block number, of the full blocks in memory |
# | returns | list of block numbers | may be empty |
#
# You may use `block_hash(parent, tokens)`: the name of a block with these tokens, behind the block named `parent`. The
# first block of a text has the parent `b""`. (In the cases of the check, `stored` are the texts in memory: their full
# blocks are numbered 0, 1, … as they come, a block that is there already is not stored again, and `evicted` ones are
# gone.)


# %% exercise="03.prefix_hash"
def prefix_blocks(prompt: list[int], block_size: int, block_of: dict[bytes, int]) -> list[int]:
    """The blocks in memory that hold the beginning of the prompt."""
    ### BEGIN SOLUTION: name block after block, each behind the one before, up to the first that is missing
    blocks: list[int] = []
    name = b""
    for first in range(0, len(prompt) - block_size, block_size):  # so that at least one token follows the block
        name = block_hash(name, prompt[first : first + block_size])
        if name not in block_of:
            return blocks
        blocks.append(block_of[name])
    return blocks
    ### END SOLUTION


# %% exercise="03.prefix_hash"
check("03.prefix_hash", prefix_blocks)
