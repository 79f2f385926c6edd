# %% [markdown]
# # Exercises 11: speculation in a server
#
# In a server drafts cost more than time: they need slots before anybody knows whether they survive, their blocks have to
# come back when they do not, and a full batch leaves no idle arithmetic to verify them with. You write the three
# decisions. Each exercise stands alone.
#
# Keys and values live in blocks of `block_size` slots, one slot a token. A request has a table, the list of its blocks
# in order, and $n$ tokens need $\lceil n / \text{block\_size} \rceil$ of them.

# %%
from minispec.course.classroom import check, draw, hint
from minispec.theory import expected_tokens

# %% [markdown] exercise="11.lookahead_slots"
# ## 1. Lookahead slots
#
# The scheduler plans a pass before anything is drafted. It has to say how many slots the pass will write, drafts
# included, and how many blocks the table lacks for them. To vLLM a request is always just so many tokens behind:
# `num_tokens_with_spec − num_computed_tokens`, a prompt and a draft alike.
#
# ```
# token        1   …   num_computed   …   num_tokens   d1   …   d_k
#              in the cache           |   the pass reads these     |   and emits one token more
# ```
#
# A request may have `max_tokens` tokens in all. A pass emits at most one token more than it drafts, so near the end
# fewer than `k` drafts can be used, down to none: do not reserve slots for the others.
#
# | | | |
# |---|---|---|
# | `num_tokens` | whole number ≥ 1 | the text so far: prompt and output |
# | `num_computed` | whole number < `num_tokens` | how many of them are in the cache; all but one while decoding |
# | `k` | whole number ≥ 0 | drafts a pass, at most |
# | `max_tokens` | whole number ≥ `num_tokens` | how long the text may get |
# | `block_size`, `num_blocks` | whole numbers | slots a block; blocks that the table has, perhaps more than it needs |
# | returns | `(slots, blocks)` | slots that the pass writes; fresh blocks to allocate, 0 if the table is long enough |


# %% exercise="11.lookahead_slots"
def lookahead_slots(
    num_tokens: int, num_computed: int, k: int, max_tokens: int, block_size: int, num_blocks: int
) -> tuple[int, int]:
    """How many slots a pass with drafts writes, and how many blocks have to be allocated for it."""
    ### BEGIN SOLUTION: how many drafts can be used? what does the pass read then? how far does the table have to reach?
    can_be_used = max(0, max_tokens - num_tokens - 1)  # one of the places left is the target's own
    with_spec = num_tokens + min(k, can_be_used)
    needed = -(-with_spec // block_size)
    return with_spec - num_computed, max(0, needed - num_blocks)
    ### END SOLUTION


# %% exercise="11.lookahead_slots"
check("11.lookahead_slots", lookahead_slots)

# %% [markdown] exercise="11.rollback"
# ## 2. The way back
#
# The verdict is in and only the first `length` tokens are true. No key is erased: the table gets shorter, and blocks
# that hold nothing kept go back. But not every block is this request's alone. Two answers to one prompt share its
# blocks, and when one of them is rolled back into the prompt (a stop word found late, a beam that is dropped), the other
# one still reads them. `refcount[b]` says in how many tables block b is.
#
# | | | |
# |---|---|---|
# | `table` | list of block numbers | the request's blocks, in order |
# | `refcount` | list of counts | one for each block of the pool |
# | `block_size`, `length` | whole numbers | slots a block; tokens to keep, perhaps none |
# | returns | `(table, refcount, freed)` | the shorter table, all counts, and the blocks that nobody holds any more |
#
# Release blocks from the end of the table, so `freed` has the last one first. Both lists you get are yours to change.


# %% exercise="11.rollback"
def rollback(
    table: list[int], refcount: list[int], block_size: int, length: int
) -> tuple[list[int], list[int], list[int]]:
    """Cut a table back to the first `length` tokens: it, the counts, and the blocks that are free now."""
    ### BEGIN SOLUTION: which blocks stay? what does each of the others lose, and when is it free?
    stays = -(-length // block_size)
    dropped = table[stays:][::-1]
    for block in dropped:
        refcount[block] -= 1
    return table[:stays], refcount, [block for block in dropped if refcount[block] == 0]
    ### END SOLUTION


# %% exercise="11.rollback"
check("11.rollback", rollback)

# %% [markdown]
# Two requests share their first two blocks, and one of them goes back, further and further. Who is freed, and who is not?

# %%
draw("11.rollback", rollback)

# %% [markdown] exercise="11.batch_k"
# ## 3. One draft length for a batch
#
# All rows of a batch are verified in one pass, so they share one draft length. Choose the $k$ with the most tokens a
# second, 0 included. A simple cost model is enough to see why servers switch speculation off under load:
#
# $$\text{tokens}(k) = \sum_{i=1}^{B} E[N](\alpha_i, k) \qquad
# \text{seconds}(k) = k \cdot t_\text{draft} + \max\bigl(t_\text{read},\; B\,(k + 1) \cdot t_\text{compute}\bigr)$$
#
# Reading the weights takes equally long for one token and for hundreds; computing grows with every token. The slower of
# the two sets the time of the pass.
#
# | | | |
# |---|---|---|
# | `alphas` | list of B numbers in [0, 1] | one row each: how often its drafts are accepted |
# | `longest` | whole number ≥ 1 | the longest draft allowed |
# | `read` | seconds | to read the weights once, for all rows |
# | `compute` | seconds | for the arithmetic of one token of one row |
# | `draft` | seconds | for one step of the draft, all rows together; a draft of k takes k steps |
# | returns | whole number, 0 ≤ k ≤ longest | of equally fast ones the smallest |
#
# You may use `expected_tokens(alpha, k)` of minispec, the mean number of tokens a cycle emits.


# %% exercise="11.batch_k"
def batch_k(alphas: list[float], longest: int, read: float, compute: float, draft: float) -> int:
    """The draft length with which a batch writes the most tokens a second."""
    ### BEGIN SOLUTION: tokens of all rows over the seconds of a cycle, for every k
    speeds = []
    for k in range(longest + 1):
        tokens = sum(expected_tokens(alpha, k) for alpha in alphas)
        verify = max(read, len(alphas) * (k + 1) * compute)
        speeds.append(tokens / (k * draft + verify))
    return speeds.index(max(speeds))
    ### END SOLUTION


# %% exercise="11.batch_k"
check("11.batch_k", batch_k)

# %% [markdown]
# What does your choice make of a real GPU as its batch grows?

# %%
draw("11.batch_k", batch_k)
