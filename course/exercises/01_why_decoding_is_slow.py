# %% [markdown]
# # Exercises 01: why decoding is slow
#
# A model that writes one token at a time reads all its weights for each of them, and its arithmetic units wait. You
# compute how much they wait, and how many drafted tokens fit into that time. Each exercise stands alone: the later ones
# use our version of the earlier.
#
# Fill in the function, run its cell, run the check below it. A check says *what* is wrong and shows the smallest case
# that proves it. Its numbers are often toys (a model of 1000 weights), so that you can follow them by hand.
#
# A FLOP is one multiplication or one addition. A *pass* takes `batch` rows with `tokens` tokens each through the model.
# Behind each row lies a cache of `context` tokens with `kv_bytes` bytes each (exercises 02 compute them).

# %%
import math

from minispec.course.classroom import check, draw, hint, reference

# %% [markdown] exercise="01.intensity"
# ## 1. FLOPs per byte
#
# Arithmetic intensity is what a pass does with a byte once it has arrived from memory. It is the one number that tells
# prefill from decoding, and every trick of this course raises it or lowers the bytes.
#
# With $N$ weights of $b$ bits, $B$ rows, $M$ tokens a row, $L$ tokens of context a row and $c$ bytes for each of those:
#
# $$I = \frac{\text{FLOPs}}{\text{bytes}} = \frac{2 \, N \, B \, M}{N \, b / 8 + B \, L \, c}$$
#
# Before you type it, make sure you can say why $M$ is missing below the line, and why $B$ is there only once. (Attention's
# own FLOPs are left out: with 8 B weights and 2000 tokens of context they are about 7 % of the others.)
#
# | | | |
# |---|---|---|
# | `weights` | number $N$ | |
# | `bits` | 16, 8 or 4 | of one weight |
# | `batch`, `tokens` | whole numbers $B$, $M$ ≥ 1 | rows, and tokens a row in this pass |
# | `context`, `kv_bytes` | numbers $L$, $c$ ≥ 0 | cached tokens a row, and the **bytes** of one of them |
# | returns | number | FLOPs per byte |


# %% exercise="01.intensity"
def intensity(weights: float, bits: int, batch: int, tokens: int, context: int, kv_bytes: float) -> float:
    """FLOPs per byte of a pass of `tokens` tokens in each of `batch` rows."""
    ### BEGIN SOLUTION: two lines for the two amounts, and their quotient
    flops = 2 * weights * batch * tokens  # multiply and add, for every weight and token
    read = weights * bits / 8 + batch * context * kv_bytes  # weights serve everybody, a cache serves its row
    return flops / read
    ### END SOLUTION


# %% exercise="01.intensity"
check("01.intensity", intensity)

# %% [markdown] exercise="01.roofline"
# ## 2. The roofline
#
# A machine has two speeds: how fast bytes arrive (`bandwidth`) and how fast it computes (`peak`). Both go on at the same
# time, so the slower one decides. This one line predicts most of what you measure in inference.
#
# $$t = \max\left(\frac{\text{bytes}}{\text{bandwidth}}, \frac{\text{FLOPs}}{\text{peak}}\right)$$
#
# | | | |
# |---|---|---|
# | `bytes_read`, `flops` | numbers > 0 | what the pass reads and computes |
# | `bandwidth`, `peak` | numbers > 0 | bytes/s and FLOP/s |
# | returns | `(seconds, limit)` | the time, and `"memory"` or `"compute"`: the side that it waits for (a tie is not asked) |


# %% exercise="01.roofline"
def roofline(bytes_read: float, flops: float, bandwidth: float, peak: float) -> tuple[float, str]:
    """The least time a pass can take, and what limits it."""
    ### BEGIN SOLUTION: one time for each side
    reading = bytes_read / bandwidth
    computing = flops / peak
    return (reading, "memory") if reading > computing else (computing, "compute")
    ### END SOLUTION


# %% exercise="01.roofline"
check("01.roofline", roofline)

# %% [markdown]
# Your function draws the roof it is named after. The slope is memory's, the flat part is the peak of the GPU. One token
# at a time, on the far left, uses half a percent of it.

# %%
draw("01.roofline", roofline)

# %% [markdown] exercise="01.ridge"
# ## 3. How many drafts are free
#
# On the slope a pass takes the same time whatever it computes. Speculative decoding lives on that: it puts K drafted
# tokens into the pass behind the last committed one, **K + 1 tokens a row**, and the target judges all of them in the time
# of one. How long may a draft be until the pass takes longer?
#
# The slope ends at the *ridge*, the intensity at which both times are equal. Intensity grows in proportion to $M$, so
#
# $$I_\text{ridge} = \frac{\text{peak}}{\text{bandwidth}}, \qquad M^* = \frac{I_\text{ridge}}{I(M = 1)}$$
#
# and up to $M^*$ tokens a row are free. Whole tokens only, and where even one token a row is too many, no draft is free.
#
# | | | |
# |---|---|---|
# | `weights`, `bits`, `batch`, `context`, `kv_bytes` | as in 1 | |
# | `bandwidth`, `peak` | as in 2 | |
# | returns | whole number K ≥ 0 | the longest draft a row that costs no time |
#
# You may use `our_intensity(weights, bits, batch, tokens, context, kv_bytes)`: our answer to 1.

# %%
our_intensity = reference("01.intensity")


# %% exercise="01.ridge"
def free_drafts(
    weights: float, bits: int, batch: int, context: int, kv_bytes: float, bandwidth: float, peak: float
) -> int:
    """The most drafts a row that can be verified in the time of one token."""
    ### BEGIN SOLUTION: how many tokens fit under the ridge, and how many of them are drafts?
    ridge = peak / bandwidth
    fit = math.floor(ridge / our_intensity(weights, bits, batch, 1, context, kv_bytes))
    return max(fit, 1) - 1  # one token is read in any case, free or not
    ### END SOLUTION


# %% exercise="01.ridge"
check("01.ridge", free_drafts)

# %% [markdown]
# Read the table by columns. Without context a larger batch eats up the free drafts, and at 128 rows none is left. With
# long contexts the caches outweigh the weights. They grow with the batch as the FLOPs do, so the free drafts level
# off: at 5 in the last column. (Attention's own FLOPs, left out here, would take about 12 % of that column away.)

# %%
draw("01.ridge", free_drafts)
