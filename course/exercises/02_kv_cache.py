# %% [markdown]
# # Exercises 02: the KV cache
#
# Attention looks back at every token before it, so a model keeps what it needs of them: a key and a value in each layer.
# You compute what that costs, let one new token look back at it, and decide what tokens may see when a batch holds texts
# of different lengths. Each exercise stands alone.
#
# Fill in the function, run its cell, run the check below it. A check says *what* is wrong and shows the smallest case
# that proves it. `hint` helps in three steps.

# %%
import math

import torch

from minispec.course.classroom import check, draw, hint

# %% [markdown] exercise="02.kv_bytes"
# ## 1. The size of a cache
#
# How many rows fit on a GPU? After the weights, the cache decides, and interviewers like to ask for it. Most
# wrong answers are off by a factor that has a name.
#
# Each token leaves in each layer one key and one value per *key/value head*, of $D$ numbers each:
#
# $$\text{bytes} = \underbrace{2}_{K, V} \cdot \text{layers} \cdot H_{kv} \cdot D \cdot \frac{\text{bits}}{8} \cdot B
# \cdot L$$
#
# | | | |
# |---|---|---|
# | `layers` | whole number | |
# | `heads`, `kv_heads` | whole numbers | query heads $H$ and key/value heads $H_{kv}$; under grouped queries (GQA) $H_{kv} < H$ |
# | `head_dim` | whole number $D$ | |
# | `bits` | 32, 16 or 8 | of one number in the cache |
# | `batch`, `length` | whole numbers $B$, $L$ | rows, and tokens in each |
# | returns | number | the size in **GiB**, $2^{30}$ bytes |


# %% exercise="02.kv_bytes"
def kv_gib(layers: int, heads: int, kv_heads: int, head_dim: int, bits: int, batch: int, length: int) -> float:
    """The size of a KV cache, in GiB."""
    ### BEGIN SOLUTION: the bytes of one token first
    per_token = 2 * layers * kv_heads * head_dim * bits / 8  # a key and a value; query heads keep nothing
    return batch * length * per_token / 2**30
    ### END SOLUTION


# %% exercise="02.kv_bytes"
check("02.kv_bytes", kv_gib)

# %% [markdown] exercise="02.cached_attention"
# ## 2. One token looks back
#
# With a cache, decoding a token needs one row of attention instead of all of them. It is the *last row* of what full
# attention over the whole text would give, up to rounding: a cache saves work, it approximates nothing.
#
# For query head $h$ with $G = H / H_{kv}$ query heads to a key/value head, $g = \lfloor h / G \rfloor$ and
# $s = 0 \dots \text{length} - 1$:
#
# $$w_{h,s} = \operatorname{softmax}_s\left(\frac{q_h \cdot k_{g,s}}{\sqrt{D}}\right), \qquad
# o_h = \sum_s w_{h,s} \, v_{g,s}$$
#
# The cache has room for `S` tokens and the first `length` slots count. The new token's own key and value have just been
# written to the last of these, slot `length − 1`. Slots behind them hold whatever was there before, such as drafts that
# were rejected.
#
# | | | |
# |---|---|---|
# | `q` | tensor `[H, D]` | the new token's query, one for each query head |
# | `keys`, `values` | tensors `[Hkv, S, D]` | the cache of one layer of one row; leave it as it is |
# | `length` | whole number, 1 ≤ length ≤ S | slots that count |
# | returns | tensor `[H, D]` | |


# %% exercise="02.cached_attention"
def cached_attention(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, length: int) -> torch.Tensor:
    """Attention of one new token over the first `length` slots of a cache."""
    ### BEGIN SOLUTION: cut, group, score, softmax, sum
    (H, D), Hkv = q.shape, keys.shape[0]
    k, v = keys[:, :length], values[:, :length]  # [Hkv, n, D]
    grouped = q.reshape(Hkv, H // Hkv, D)  # the queries of a group share a key/value head
    scores = grouped @ k.transpose(1, 2) / math.sqrt(D)  # [Hkv, G, n]
    return (scores.softmax(-1) @ v).reshape(H, D)
    ### END SOLUTION


# %% exercise="02.cached_attention"
check("02.cached_attention", cached_attention)

# %% [markdown]
# Your function reads a text of six tokens, one by one, and every step is compared with the same row of full attention.
# The middle columns count scores: what this step needs with the cache, and what it would need without.

# %%
draw("02.cached_attention", cached_attention)

# %% [markdown] exercise="02.ragged"
# ## 3. Rows of different lengths
#
# A batch holds texts of different lengths, and speculation makes it worse: in every cycle each row keeps another number
# of drafts. Nothing is moved or padded. Each row has its length, and a mask says what counts.
#
# A pass brings `count` new tokens to every row. New token $t$ of row $b$ is written to slot $\text{lengths}_b + t$ and may
# see its row's past, the new tokens before it, and itself. Here for a row of length 2, a pass of 2, and another row that
# makes the batch 3 slots longer (`p` past, `n` new, `-` stale, `#` seen):
#
# ```
# slots      p p n n - - -
#   new 0    # # # . . . .
#   new 1    # # # # . . .
# ```
#
# $$\text{visible}_{b,t,s} = \big[\, s \text{ is not behind the slot of token } t \text{ of row } b \,\big], \qquad
# S = \max_b \text{lengths}_b + \text{count}$$
#
# | | | |
# |---|---|---|
# | `lengths` | tensor `[B]` of whole numbers ≥ 0 | tokens that each row holds before the pass |
# | `count` | whole number T ≥ 1 | new tokens a row; 1 in plain decoding, K + 1 when K drafts are verified |
# | returns | tensor `[B, T, S]` of True and False | True: seen |


# %% exercise="02.ragged"
def visible(lengths: torch.Tensor, count: int) -> torch.Tensor:
    """Which slots each new token of each row may see."""
    ### BEGIN SOLUTION: where is each new token, and where is each slot?
    own = lengths[:, None] + torch.arange(count)  # [B, T]: the slot of every new token
    slot = torch.arange(int(lengths.max()) + count)  # [S]
    return slot <= own[:, :, None]
    ### END SOLUTION


# %% exercise="02.ragged"
check("02.ragged", visible)

# %% [markdown]
# Look at your mask. In each row the seen part should be a staircase that begins behind the past and ends before the stale
# slots. To *rewind* a row is now to lower its length: nothing is erased, the mask does it.

# %%
draw("02.ragged", visible)
