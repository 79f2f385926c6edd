# %% [markdown]
# # Exercises 12: fewer bytes
#
# Decoding is limited by memory bandwidth, so one way to make it faster is to move fewer bytes. The exercises are two ways
# to do so, weights in fewer bits and attention that never stores its scores, and a function that says how much of the
# saving turns into speed. Each exercise stands alone.

# %%
import torch

from minispec_course.check import check, draw, hint, progress_table

# %% [markdown] exercise="12.symmetric"
# ## 1. Symmetric quantisation
#
# Weights are stored as small integers, with one real number per group, its scale. Symmetric means that 0 stays 0 and that
# the integers reach equally far in both directions: with $b$ bits from $-(2^{b-1} - 1)$ to $2^{b-1} - 1$, which is ±127 for
# 8 bits and ±7 for 4.
#
# $$s = \frac{\max |w|}{2^{b-1} - 1}, \qquad w_\text{int} = \mathrm{round}(w / s), \qquad \tilde w = s \cdot w_\text{int}$$
#
# A group is `group` neighbouring weights in one row of the matrix. If `group` is as wide as the matrix, there is one scale
# per output channel. Smaller groups cost a few more scales, but an outlier then affects fewer weights.
#
# | | | |
# |---|---|---|
# | `weight` | tensor `[out, in]` | floats, all finite; of either sign |
# | `bits` | whole number from 2 to 8 | |
# | `group` | whole number | divides `in` |
# | returns | `(integers, scale, restored)` | tensors `[out, in]`, `[out, in / group]` and `[out, in]` |
#
# The integers may keep the dtype of `weight`; only their values are checked. A group of zeros gets the scale 1. In the
# check no quotient is halfway between two integers.

# %% [markdown] exercise="12.online_softmax"
# ## 2. The online softmax
#
# Attention seems to need the softmax of all scores before it can weight a single value. But FlashAttention (Dao et al.,
# 2022, arXiv:2205.14135) goes over the cache only once, tile by tile, and keeps three things about all scores $s$ and
# values $v$ so far: the largest score $m$, the sum $\ell = \sum e^{s - m}$, and the output before division,
# $o = \sum e^{s - m}\,v$.
#
# When a tile contains a larger score, the old terms were computed relative to the wrong maximum. One factor corrects them
# all:
#
# $$m' = \max(m, \max_j s_j), \qquad \ell' = e^{m - m'} \ell + \sum_j e^{s_j - m'}, \qquad
# o' = e^{m - m'} o + \sum_j e^{s_j - m'} v_j, \qquad \text{result} = o / \ell$$
#
# | | | |
# |---|---|---|
# | `tiles` | to loop over, once | `for scores, values in tiles`: tensors `[t]` and `[t, D]`, float64; at least one tile, each with t ≥ 1; scores may be of any size, all finite |
# | returns | tensor `[D]` | $\sum_j \mathrm{softmax}(s)_j\, v_j$ over all tiles |
#
# On-chip memory is small, so every tile comes in the *same buffer*: an earlier tile that you kept has been overwritten.

# %% [markdown] exercise="12.bytes_read"
# ## 3. As far as bytes shrink
#
# "INT4 is four times as fast" is true only if weights are all that is read and reading is all that takes time. Compute how
# many times as fast one decode pass, a forward pass with one token per sequence, becomes when its weights go from 16 bits
# to `bits` bits.
#
# $$t = \max\left(\frac{\text{bytes}}{\text{bandwidth}},\; \frac{2 \cdot \text{weights} \cdot \text{batch}}{\text{peak}}\right),
# \qquad \text{speed-up} = \frac{t_\text{before}}{t_\text{after}}$$
#
# Before, a weight takes 2 bytes. After, it takes `bits` / 8 bytes, and every `group` weights share a scale of 2 bytes. Both
# times the pass also reads the caches, `context` · `kv_bytes` bytes for each sequence. The caches and the arithmetic do not
# change.
#
# | | | |
# |---|---|---|
# | `weights`, `bits`, `group` | whole numbers ≥ 1 | how many weights; bits of each, afterwards, at most 8; weights that share a scale, at least 16 |
# | `batch`, `context`, `kv_bytes` | whole numbers, batch ≥ 1 | sequences; cached tokens of each, perhaps 0; bytes of one cached token |
# | `bandwidth`, `peak` | numbers > 0 | bytes per second; FLOP per second |
# | returns | number ≥ 1 | how many times as fast a pass becomes |


# %% exercise="12.bytes_read"
def quantisation_gain(
    weights: float, bits: int, group: int, batch: int, context: int, kv_bytes: float, bandwidth: float, peak: float
) -> float:
    """How many times as fast a decode pass becomes when its weights shrink from 16 bits."""
    ### BEGIN SOLUTION: all bytes of a pass, before and after; then the time of each
    caches = batch * context * kv_bytes
    computing = 2 * weights * batch / peak

    def seconds(bytes_each: float) -> float:
        return max((weights * bytes_each + caches) / bandwidth, computing)

    return seconds(2) / seconds(bits / 8 + 2 / group)
    ### END SOLUTION


# %% exercise="12.bytes_read"
check("12.bytes_read", quantisation_gain)

# %% [markdown]
# Where is "four times as fast" nearly true, and where does the gain vanish?

# %%
draw("12.bytes_read", quantisation_gain)
