# %% [markdown]
# # Exercises 02: the KV cache
#
# Attention needs a key and a value for every earlier token in every layer, so a model keeps them in a KV cache. Here you
# compute what that costs, let one new token attend to the cache, and decide what each token may see when the sequences of a
# batch have different lengths. The exercises are independent of one another.
#
# Fill in the function, run its cell, then run the check below it. A check says *what* is wrong and shows the smallest
# case that proves it. If you are stuck, `hint` helps in three steps.

# %%
import math

import torch

from minispec_course.check import check, draw, hint, progress_table

# %% [markdown] exercise="02.kv_bytes"
# ## 1. The size of a cache
#
# How many sequences fit on a GPU? Once the weights are loaded, that depends on the size of the KV cache, and interviewers
# like to ask for it. Most wrong answers are off by a factor that has a name.
#
# In each layer, each token leaves one key and one value per *key/value head*, of $D$ numbers each. For $B$ sequences of $L$
# tokens:
#
# $$\text{bytes} = \underbrace{2}_{\text{key, value}} \cdot \text{layers} \cdot H_{kv} \cdot D \cdot \frac{\text{bits}}{8}
# \cdot B \cdot L$$
#
# | | | |
# |---|---|---|
# | `layers` | whole number | |
# | `heads`, `kv_heads` | whole numbers | query heads $H$ and key/value heads $H_{kv}$; under grouped-query attention (GQA) $H_{kv} < H$ |
# | `head_dim` | whole number $D$ | |
# | `bits` | 32, 16 or 8 | bits of one number in the cache |
# | `batch`, `length` | whole numbers $B$, $L$ | sequences, and tokens in each |
# | returns | number | the size in **GiB**, $2^{30}$ bytes |

# %% [markdown] exercise="02.cached_attention"
# ## 2. One token attends to the cache
#
# With a cache, decoding a token needs only that token's attention. The result is the *last row* of what full attention over
# the whole sequence would give, up to rounding: the cache saves work without approximating anything.
#
# There are $H$ query heads, and $G = H / H_{kv}$ of them share each key/value head. Query head $h$ therefore uses
# key/value head $g = \lfloor h / G \rfloor$. With $s = 0 \dots \text{length} - 1$:
#
# $$w_{h,s} = \operatorname{softmax}_s\left(\frac{q_h \cdot k_{g,s}}{\sqrt{D}}\right), \qquad
# o_h = \sum_s w_{h,s} \, v_{g,s}$$
#
# The cache has room for `S` tokens, and only its first `length` slots count. The new token's own key and value have just
# been stored in the last of those, slot `length − 1`. Later slots may hold anything, such as rejected draft tokens.
#
# | | | |
# |---|---|---|
# | `q` | tensor `[H, D]` | the new token's query, one for each query head |
# | `keys`, `values` | tensors `[Hkv, S, D]` | the cache of one layer of one sequence; do not change it |
# | `length` | whole number, 1 ≤ length ≤ S | slots that count |
# | returns | tensor `[H, D]` | |

# %% [markdown] exercise="02.rewind"
# ## 3. Take back what was rejected
#
# A verify pass has put k draft tokens of every sequence into the caches. Each sequence accepts some of them, and the caches
# have to forget the rest. Forgetting means lowering a length: nothing is erased.
#
# | | | |
# |---|---|---|
# | `lengths` | tensor `[B]` of whole numbers | tokens in each cache after the pass, including the whole draft; do not change it |
# | `k` | whole number | draft tokens per sequence |
# | `accepted` | list of B whole numbers, 0 to k | how many of them each sequence accepts |
# | returns | tensor `[B]` | the new lengths |

# %% [markdown] exercise="02.ragged"
# ## 4. Sequences of different lengths
#
# A batch holds sequences of different lengths, and speculation makes them differ more, because in every cycle each sequence
# keeps a different number of draft tokens. Still, nothing has to be moved or padded: each sequence has its own length, and
# a mask says which slots count.
#
# A forward pass adds `count` new tokens to every sequence. New token $t$ of sequence $b$ is stored in slot
# $\text{lengths}_b + t$. It may see the past of its sequence, the new tokens before it, and itself. Here is the mask of a
# sequence of length 2 in a pass of 2 new tokens; another sequence makes the batch 3 slots longer (`p` past, `n` new, `-`
# stale, `#` seen):
#
# ```
# slots      p p n n - - -
#   new 0    # # # . . . .
#   new 1    # # # # . . .
# ```
#
# $$\text{visible}_{b,t,s} = \big[\, s \le \text{slot of token } t \text{ of sequence } b \,\big], \qquad
# S = \max_b \text{lengths}_b + \text{count}$$
#
# | | | |
# |---|---|---|
# | `lengths` | tensor `[B]` of whole numbers ≥ 0 | tokens that each sequence holds before the pass |
# | `count` | whole number T ≥ 1 | new tokens per sequence: 1 in plain decoding, $k + 1$ when $k$ draft tokens are verified |
# | returns | tensor `[B, T, S]` of True and False | True: seen |


# %% exercise="02.ragged"
def visible(lengths: torch.Tensor, count: int) -> torch.Tensor:
    """Which slots each new token of each sequence may see."""
    ### BEGIN SOLUTION: where is each new token, and where is each slot?
    own = lengths[:, None] + torch.arange(count)  # [B, T]: the slot of every new token
    slot = torch.arange(int(lengths.max()) + count)  # [S]
    return slot <= own[:, :, None]
    ### END SOLUTION


# %% exercise="02.ragged"
check("02.ragged", visible)

# %% [markdown]
# Look at the mask that your function makes. For each sequence the seen part should be a staircase that begins right after
# the past and ends before the stale slots. To *rewind* a sequence you now just lower its length: nothing is erased, because
# the mask hides it.

# %%
draw("02.ragged", visible)
