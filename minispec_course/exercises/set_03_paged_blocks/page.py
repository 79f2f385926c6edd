# %% [markdown]
# # Exercises 03: paged blocks
#
# The memory for keys and values is cut into blocks of `block_size` slots, and each slot holds one token. A request has a
# *block table*, which lists the numbers of its blocks in the order of its tokens. Here you write the bookkeeping around
# that table. In this part of a server, an off-by-one error shows one user another user's tokens. There are no tensors, only
# lists and counts, and the exercises are independent of one another.
#
# Fill in the function, run its cell, then run the check below it.

# %%
from minispec.serving.blocks import block_hash
from minispec_course.check import check, draw, hint, progress_table

# %% [markdown] exercise="03.slot"
# ## 1. From position to slot
#
# Before every forward pass a server has to know where in memory the keys and values of a request's tokens go. The block
# table answers that, just as an operating system's page table does for addresses. Compute the slots of the tokens at
# positions start … stop − 1.
#
# In the example, blocks have 4 slots and the table is [5, 0]. Block 5 consists of the slots 20 … 23, and block 0 of the
# slots 0 … 3:
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
# | `start`, `stop` | whole numbers, start ≤ stop | positions in the sequence; `stop` itself is excluded |
# | returns | list of stop − start slots | |

# %% [markdown] exercise="03.grow"
# ## 2. Take blocks as a request grows
#
# `table` and `free` are lists of block numbers. Make room for `tokens` tokens in total, counted from the first token of the
# request: take blocks one by one from the **end** of `free`, and append each to `table`, changing both lists in place. The result is
# True; if too few blocks are free, take none, and the result is False.

# %% [markdown] exercise="03.allocator"
# ## 3. The blocks of a pass
#
# A request takes memory block by block as it grows. With speculation it also takes some just for the duration of a pass:
# while the pass runs, every draft token needs a slot (vLLM calls these *lookahead slots*), and afterwards only the accepted
# tokens keep theirs.
#
# The request has `length` tokens in its blocks. The pass processes the last token of the output, which has no slot yet, and
# `drafts` draft tokens, of which `accepted` turn out right. With $s$ = `block_size`, it needs this many blocks:
#
# $$\text{blocks during} = \left\lceil \frac{\text{length} + 1 + \text{drafts}}{s} \right\rceil, \qquad
# \text{blocks after} = \left\lceil \frac{\text{length} + 1 + \text{accepted}}{s} \right\rceil$$
#
# (The token that the target emits at the end of the pass has no slot yet, because only the next pass processes it.) Keep
# the blocks that are in the table and append new ones, taken from the **end** of `free` one after the other. If there are
# too few, take none: the answer is None.
#
# | | | |
# |---|---|---|
# | `table` | list of block numbers | ⌈length / s⌉ of them |
# | `free` | list of block numbers | blocks that no request uses |
# | `block_size`, `length` | whole numbers | slots of a block; tokens in the table's blocks, ≥ 0 |
# | `drafts`, `accepted` | whole numbers | 0 ≤ accepted ≤ drafts |
# | returns | `(during, after, free)` or `None` | the table while the pass runs; the table after it; the free blocks after it, in any order |
#
# You may change the lists that you are given.


# %% exercise="03.allocator"
def allocator(
    table: list[int], free: list[int], block_size: int, length: int, drafts: int, accepted: int
) -> tuple[list[int], list[int], list[int]] | None:
    """Take the blocks of one pass, and give back those that hold no accepted token after it."""
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
# Watch your allocator serve one request. For each pass you see the blocks it ran with, then the ones that were kept.

# %%
draw("03.allocator", allocator)

# %% [markdown] exercise="03.copy_on_write"
# ## 4. Copy on write
#
# Two requests with the same beginning can have the same blocks in their tables. Nothing is copied for that; a reference
# count per block says how many tables contain it. This works until one of the requests has to store a new token in a block
# that the other one also uses.
#
# The request has `length` tokens and is about to store one more, at position `length`. Make sure that it can do so
# without changing what other requests see. There are three situations:
#
# ```
# the last block is full                       append a new block               nothing to copy
# it has room, and is in this table only       store the token there            nothing to copy
# it has room, and is in other tables as well  put a new block in its place     copy the old one into it
# ```
#
# A block with reference count 0 is free. Take the **free block with the lowest number**, and keep all counts correct.
#
# | | | |
# |---|---|---|
# | `table` | list of block numbers | ⌈`length` / `block_size`⌉ of them, at least one |
# | `refcount` | list of counts | `refcount[b]` says how many tables contain block b; at least one is 0 |
# | `block_size`, `length` | whole numbers ≥ 1 | slots of a block; tokens in the table's blocks |
# | returns | `(table, refcount, copies)` | table and counts, ready for the new token; a list of `(source, destination)`, empty or with one pair |
#
# You may change the lists that you are given.


# %% exercise="03.copy_on_write"
def copy_on_write(
    table: list[int], refcount: list[int], block_size: int, length: int
) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Make room for position `length` of a request, without changing what other requests see."""
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
# ## 5. The prefix that is already in memory
#
# If a thousand requests begin with the same instructions, the keys and values of those tokens need to be computed only
# once, provided that a new request can find them. So full blocks are registered in a dictionary under a hash. The hash must
# cover everything that the block's keys and values depend on: every token up to the end of the block. So the hash $h_i$ of
# block $i$ covers its own tokens and the hash of the block before it:
#
# $$h_0 = \text{hash}(\text{empty},\; t_0 \dots t_{s-1}), \qquad
# h_i = \text{hash}(h_{i-1},\; t_{is} \dots t_{(i+1)s - 1})$$
#
# Return the blocks that hold the beginning of the prompt, in order, up to the first one that is not registered. Never
# return all of the prompt: the distribution of the first new token comes from the pass over the last prompt token, so
# **at least one token** has to be computed.
#
# | | | |
# |---|---|---|
# | `prompt` | list of tokens | at least one |
# | `block_size` | whole number ≥ 1 | |
# | `block_of` | dictionary | hash → block number, of the full blocks in memory |
# | returns | list of block numbers | may be empty |
#
# You may use `block_hash(parent, tokens)`, the hash of a block with these tokens that follows the block with the hash
# `parent`. The first block of a sequence has the parent `b""`. (In the cases of the check, `stored` lists the sequences in
# memory. Their full blocks are numbered 0, 1, … in order, a block that is there is not stored again, and the blocks in
# `evicted` are no longer in memory.)


# %% exercise="03.prefix_hash"
def prefix_blocks(prompt: list[int], block_size: int, block_of: dict[bytes, int]) -> list[int]:
    """The blocks in memory that hold the beginning of the prompt."""
    ### BEGIN SOLUTION: hash block after block, each with the hash of the one before, up to the first that is missing
    blocks: list[int] = []
    key = b""
    for first in range(0, len(prompt) - block_size, block_size):  # so that at least one token follows the block
        key = block_hash(key, prompt[first : first + block_size])
        if key not in block_of:
            return blocks
        blocks.append(block_of[key])
    return blocks
    ### END SOLUTION


# %% exercise="03.prefix_hash"
check("03.prefix_hash", prefix_blocks)
