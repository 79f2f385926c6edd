# %% [markdown]
# # Exercises 11: speculation in a server
#
# In a server, draft tokens cost more than time. They need cache slots before it is known whether they are accepted, their
# blocks have to be returned when they are not, and a full batch leaves no idle arithmetic to verify them with. You write
# the three decisions that follow from this. Each exercise stands alone.
#
# Keys and values are stored in blocks of `block_size` slots, one slot per token. A request has a block table, the list of
# its blocks in order, and $n$ tokens need $\lceil n / \text{block\_size} \rceil$ blocks.

# %%
from minispec.course.classroom import check, draw, hint
from minispec.theory import expected_tokens

# %% [markdown] exercise="11.lookahead_slots"
# ## 1. Lookahead slots
#
# The scheduler plans a forward pass before anything is drafted. It has to say how many slots the pass will fill, those of
# the draft tokens included, and how many blocks the block table lacks for them. In vLLM's terms a request always has
# `num_tokens_with_spec − num_computed_tokens` tokens to process, whether they come from a prompt or from a draft.
#
# ```
# token        1   …   num_computed   …   num_tokens   d1   …   d_k
#              in the cache           |   the pass processes these |   and emits one token more
# ```
#
# A request may have `max_tokens` tokens in all. A pass emits at most one token more than it drafts, so near the end fewer
# than `k` draft tokens can be used, down to none. Do not reserve slots for the others.
#
# | | | |
# |---|---|---|
# | `num_tokens` | whole number ≥ 1 | the sequence so far: prompt and output |
# | `num_computed` | whole number < `num_tokens` | how many of them are in the cache; all but one while decoding |
# | `k` | whole number ≥ 0 | draft tokens per pass, at most |
# | `max_tokens` | whole number ≥ `num_tokens` | how long the sequence may get |
# | `block_size`, `num_blocks` | whole numbers | slots per block; blocks that the table has, perhaps more than it needs |
# | returns | `(slots, blocks)` | slots that the pass fills; fresh blocks to allocate, 0 if the table is long enough |


# %% exercise="11.lookahead_slots"
def lookahead_slots(
    num_tokens: int, num_computed: int, k: int, max_tokens: int, block_size: int, num_blocks: int
) -> tuple[int, int]:
    """How many slots a pass with a draft fills, and how many blocks have to be allocated for it."""
    ### BEGIN SOLUTION: how many draft tokens can be used? what does the pass process then? how far does the table have to reach?
    can_be_used = max(0, max_tokens - num_tokens - 1)  # one of the tokens that are left is the target's own
    with_spec = num_tokens + min(k, can_be_used)
    needed = -(-with_spec // block_size)
    return with_spec - num_computed, max(0, needed - num_blocks)
    ### END SOLUTION


# %% exercise="11.lookahead_slots"
check("11.lookahead_slots", lookahead_slots)

# %% [markdown] exercise="11.rollback"
# ## 2. The way back
#
# After verification only the first `length` tokens are kept. No key is erased: the table gets shorter, and blocks that hold
# no kept token are returned. But a block may belong to several requests. Two outputs of one prompt share its blocks, and
# when one of them is rolled back into the prompt (a stop string found late, a beam that is dropped), the other one still
# needs them. `refcount[b]` says in how many tables block b is.
#
# | | | |
# |---|---|---|
# | `table` | list of block numbers | the request's blocks, in order |
# | `refcount` | list of counts | one for each block of the pool |
# | `block_size`, `length` | whole numbers | slots per block; tokens to keep, perhaps none |
# | returns | `(table, refcount, freed)` | the shorter table, all counts, and the blocks that no table holds any more |
#
# Release blocks from the end of the table, so that `freed` has the last one first. You may change both lists in place.


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
# Two requests share their first two blocks, and one of them is rolled back further and further. Which blocks are freed, and
# which are not?

# %%
draw("11.rollback", rollback)

# %% [markdown] exercise="11.batch_k"
# ## 3. One draft length for a batch
#
# In this exercise all sequences of a batch share one draft length $k$. Choose the $k$ that gives the most tokens per second,
# 0 included. A simple cost model is enough to see why servers shorten drafts under load. With $B$ sequences, $\alpha_i$ the
# acceptance rate of sequence $i$ and $E[N]$ the expected tokens per cycle,
#
# $$\text{tokens}(k) = \sum_{i=1}^{B} E[N](\alpha_i, k) \qquad
# \text{seconds}(k) = k \cdot t_\text{draft} + \max\bigl(t_\text{read},\; B\,(k + 1) \cdot t_\text{compute}\bigr)$$
#
# Reading the weights takes equally long for one token and for hundreds, while the time for arithmetic grows with every token.
# The slower of the two sets the time of the pass.
#
# | | | |
# |---|---|---|
# | `alphas` | list of B numbers in [0, 1] | one per sequence: how often its draft tokens are accepted |
# | `longest` | whole number ≥ 1 | the longest draft allowed |
# | `read` | seconds | to read the weights once, for all sequences |
# | `compute` | seconds | for the arithmetic of one token of one sequence |
# | `draft` | seconds | for one draft step of all sequences together; a draft of k takes k steps |
# | returns | whole number, 0 ≤ k ≤ longest | the smallest one if several are equally fast |
#
# You may use `expected_tokens(alpha, k)` of minispec, the mean number of tokens that a cycle emits.


# %% exercise="11.batch_k"
def batch_k(alphas: list[float], longest: int, read: float, compute: float, draft: float) -> int:
    """The draft length with which a batch emits the most tokens per second."""
    ### BEGIN SOLUTION: tokens of all sequences over the seconds of a cycle, for every k
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
# What does your function choose for a real GPU as its batch grows?

# %%
draw("11.batch_k", batch_k)
