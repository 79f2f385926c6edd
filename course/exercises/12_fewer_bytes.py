# %% [markdown]
# # Exercises 12: fewer bytes
#
# Decoding waits for memory, so the plain way to make it faster is to read less. Two famous ways, in a few lines each:
# weights in fewer bits, and attention that never writes its scores down. And one honest function that says how much of
# it arrives. Each exercise stands alone.

# %%
import torch

from minispec.course.classroom import check, draw, hint

# %% [markdown] exercise="12.symmetric"
# ## 1. Symmetric quantisation
#
# Weights become small integers and one real number a group, its scale. Symmetric means that 0 stays 0 and that the
# integers go as far up as down: with $b$ bits from $-(2^{b-1} - 1)$ to $2^{b-1} - 1$, ±127 for 8 bits, ±7 for 4.
#
# $$s = \frac{\max |w|}{2^{b-1} - 1}, \qquad w_\text{int} = \mathrm{round}(w / s), \qquad \tilde w = s \cdot w_\text{int}$$
#
# A group is `group` neighbouring weights of one row. With `group` as wide as the row there is one scale an output
# channel; smaller groups cost a few more scales and keep an outlier from spoiling its neighbours.
#
# | | | |
# |---|---|---|
# | `weight` | tensor `[out, in]` | |
# | `bits` | whole number from 2 to 8 | |
# | `group` | whole number | divides `in` |
# | returns | `(integers, scale, restored)` | tensors `[out, in]`, `[out, in / group]` and `[out, in]` |
#
# Integers may keep the dtype of `weight`: their values count. A group of zeros gets the scale 1.


# %% exercise="12.symmetric"
def symmetric(weight: torch.Tensor, bits: int, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights as integers with a scale a group, and what is left of them."""
    ### BEGIN SOLUTION: a view with the groups in its last dimension makes all of it one line each
    groups = weight.reshape(weight.shape[0], weight.shape[1] // group, group)
    scale = groups.abs().amax(-1) / (2 ** (bits - 1) - 1)  # [out, groups]
    scale[scale == 0] = 1.0
    integers = torch.round(groups / scale.unsqueeze(-1))
    restored = integers * scale.unsqueeze(-1)
    return integers.reshape(weight.shape), scale, restored.reshape(weight.shape)
    ### END SOLUTION


# %% exercise="12.symmetric"
check("12.symmetric", symmetric)

# %% [markdown]
# One outlier: whom does it hurt, and how far do groups help?

# %%
draw("12.symmetric", symmetric)

# %% [markdown] exercise="12.online_softmax"
# ## 2. The online softmax
#
# FlashAttention's one idea. Attention needs the softmax of all scores before it can weigh a single value, or so it
# seems. In truth one walk over the cache is enough, tile by tile, if you remember three things of all that was read: the
# largest score $m$, the sum $\ell = \sum e^{s - m}$, and the output so far, not yet divided, $o = \sum e^{s - m}\,v$.
#
# When a tile brings a larger score, the old terms were relative to the wrong maximum; one factor mends them all:
#
# $$m' = \max(m, \max_j s_j), \qquad \ell' = e^{m - m'} \ell + \sum_j e^{s_j - m'}, \qquad
# o' = e^{m - m'} o + \sum_j e^{s_j - m'} v_j, \qquad \text{result} = o / \ell$$
#
# | | | |
# |---|---|---|
# | `tiles` | to loop over, once | `for scores, values in tiles`: tensors `[t]` and `[t, D]`, float64; the last tile may be shorter |
# | returns | tensor `[D]` | $\sum_j \mathrm{softmax}(s)_j\, v_j$ over all tiles |
#
# The memory is as small as on a GPU: every tile comes in the *same buffer*, so what you kept of an earlier one is gone.


# %% exercise="12.online_softmax"
def online_softmax(tiles) -> torch.Tensor:
    """Attention of one query over a cache that is read once, tile by tile."""
    ### BEGIN SOLUTION: largest score, sum, output: what becomes of them when a tile arrives?
    largest, total, output = torch.tensor(-torch.inf), 0.0, 0.0
    for scores, values in tiles:
        before, largest = largest, torch.maximum(largest, scores.max())
        shrink = torch.exp(before - largest)  # 0 at the first tile
        weights = torch.exp(scores - largest)  # [t]
        total = total * shrink + weights.sum()
        output = output * shrink + weights @ values  # [D]
    return output / total
    ### END SOLUTION


# %% exercise="12.online_softmax"
check("12.online_softmax", online_softmax)

# %% [markdown] exercise="12.bytes_read"
# ## 3. As far as bytes shrink
#
# "INT4 is four times faster": only where weights are all that is read, and reading is all that takes time. Compute what
# one pass of decoding (one token a row) really gains when weights of 16 bits get `bits` bits.
#
# $$t = \max\left(\frac{\text{bytes}}{\text{bandwidth}},\; \frac{2 \cdot \text{weights} \cdot \text{batch}}{\text{peak}}\right),
# \qquad \text{speed-up} = \frac{t_\text{before}}{t_\text{after}}$$
#
# Before: 2 bytes a weight. After: `bits` / 8 bytes a weight and a scale of 2 bytes for every `group` weights. Both times
# the caches are read as well, `context` · `kv_bytes` for each row, and they did not shrink. Nor did the arithmetic.
#
# | | | |
# |---|---|---|
# | `weights`, `bits`, `group` | numbers | how many weights; bits each, afterwards; weights a scale |
# | `batch`, `context`, `kv_bytes` | whole numbers | rows; tokens in the cache of each; bytes of one of these |
# | `bandwidth`, `peak` | numbers | bytes a second; FLOP a second |
# | returns | number ≥ 1 | how many times faster a pass is |


# %% exercise="12.bytes_read"
def quantisation_gain(
    weights: float, bits: int, group: int, batch: int, context: int, kv_bytes: float, bandwidth: float, peak: float
) -> float:
    """How much faster a decoding pass gets when its weights shrink from 16 bits."""
    ### BEGIN SOLUTION: all bytes of a pass, before and after; then the time of each
    caches = batch * context * kv_bytes
    computing = 2 * weights * batch / peak

    def seconds(bytes_a_weight: float) -> float:
        return max((weights * bytes_a_weight + caches) / bandwidth, computing)

    return seconds(2) / seconds(bits / 8 + 2 / group)
    ### END SOLUTION


# %% exercise="12.bytes_read"
check("12.bytes_read", quantisation_gain)

# %% [markdown]
# Where is "four times faster" nearly true, and where does it vanish?

# %%
draw("12.bytes_read", quantisation_gain)
