# %% [markdown]
# # Exercises 01: why decoding is slow
#
# In every forward pass a model reads all its weights, even to generate a single token, and its arithmetic units wait. Here
# you compute how long they wait, and how many draft tokens fit into that time. The exercises are independent: later ones
# use our version of earlier ones.
#
# Fill in the function, run its cell, then run the check below it. A check says *what* is wrong and shows the smallest case
# that proves it. Its numbers are often tiny (a model of 1000 parameters), so that you can follow them by hand.
#
# One multiplication or addition is a FLOP. A forward pass (*pass* from here on) takes a batch of `batch` sequences through
# the model, with `tokens` tokens each. Each sequence has a KV cache with `context` earlier tokens, of `kv_bytes` bytes each
# (set 02 computes that number).

# %%
import math

import torch

from minispec_course.check import check, hint, progress_table, reference

# %% [markdown] exercise="01.bandwidth"
# ## 1. Bandwidth by a sum
#
# Summing a large tensor reads every number once and computes next to nothing, so its time is the time to read it.
#
# | | | |
# |---|---|---|
# | `x` | tensor | of any shape and type |
# | `seconds` | list of odd length | how long each run of `x.sum()` took |
# | returns | number | bytes per second, by the median of the times |

# %% [markdown] exercise="01.intensity"
# ## 2. FLOPs per byte
#
# How much work does a pass do with a byte once it has arrived from memory? This arithmetic intensity is the number that
# separates prefill from decode, and every technique in this course either raises it or reduces the bytes.
#
# With $N$ parameters of $b$ bits, batch size $B$, $M$ tokens per sequence in this pass, $L$ cached tokens per sequence
# and $c$ bytes for each of those:
#
# $$I = \frac{\text{FLOPs}}{\text{bytes}} = \frac{2 \, N \, B \, M}{N \, b / 8 + B \, L \, c}$$
#
# Before you type it, make sure you can say why $M$ does not appear in the denominator, and why $B$ appears there in
# only one of the two terms. (The model is dense, and attention's own FLOPs are left out: with 8 billion parameters and
# 2000 tokens of context they are about 7 % of the others.)
#
# | | | |
# |---|---|---|
# | `weights` | number $N$ | parameters of the model |
# | `bits` | 16, 8 or 4 | bits of one parameter |
# | `batch`, `tokens` | whole numbers $B$, $M$ ≥ 1 | sequences, and tokens per sequence in this pass |
# | `context`, `kv_bytes` | numbers $L$, $c$ ≥ 0 | cached tokens per sequence, and the **bytes** of one of them |
# | returns | number | FLOPs per byte |

# %% [markdown] exercise="01.roofline"
# ## 3. The roofline
#
# How long does a pass take at best? A machine has two speeds: how fast bytes arrive (`bandwidth`) and how fast it computes
# (`peak`). Both happen at the same time, so the slower one decides (Williams et al., 2009):
#
# $$t = \max\left(\frac{\text{bytes}}{\text{bandwidth}}, \frac{\text{FLOPs}}{\text{peak}}\right)$$
#
# | | | |
# |---|---|---|
# | `bytes_read`, `flops` | numbers > 0 | what the pass reads and computes |
# | `bandwidth`, `peak` | numbers > 0 | bytes/s and FLOP/s |
# | returns | `(seconds, limit)` | the time, and what the pass waits for: `"memory"` or `"compute"` (no case is a tie) |

# %% [markdown] exercise="01.ridge"
# ## 4. How many draft tokens are free
#
# Left of the ridge a pass takes the same time however much it computes, and speculative decoding exploits that. It puts $k$
# draft tokens into the pass together with the last token of the output, so there are **$k + 1$ tokens per sequence**, and
# the target judges all of them in the time of one. How long can a draft be before the pass takes longer?
#
# The *ridge point* is the intensity at which both times are equal. Intensity grows in proportion to $M$, so
#
# $$I_\text{ridge} = \frac{\text{peak}}{\text{bandwidth}}, \qquad M^* = \frac{I_\text{ridge}}{I(M = 1)}$$
#
# and up to $M^*$ tokens per sequence are free. Only whole tokens count, and if even one token per sequence is beyond the
# ridge point, no draft token is free. (In the check $M^*$ is never so close to a whole number that rounding decides.)
#
# | | | |
# |---|---|---|
# | `weights`, `bits`, `batch`, `context`, `kv_bytes` | as in 2 | |
# | `bandwidth`, `peak` | as in 3 | |
# | returns | whole number $k$ ≥ 0 | the longest draft per sequence that costs no time |
#
# You may use `our_intensity(weights, bits, batch, tokens, context, kv_bytes)`, our answer to 2.

# %%
our_intensity = reference("01.intensity")


# %% exercise="01.ridge"
def free_drafts(
    weights: float, bits: int, batch: int, context: int, kv_bytes: float, bandwidth: float, peak: float
) -> int:
    """The most draft tokens per sequence that can be verified in the time of one token."""
    ### BEGIN SOLUTION: how many tokens fit under the ridge, and how many of them are draft tokens?
    ridge = peak / bandwidth
    fit = math.floor(ridge / our_intensity(weights, bits, batch, 1, context, kv_bytes))
    return max(fit, 1) - 1  # the last token is in the pass in any case, free or not
    ### END SOLUTION


# %% exercise="01.ridge"
check("01.ridge", free_drafts)

# %% [markdown]
# Try an 8B model on an H200: `free_drafts(8e9, 16, batch, context, 131_072, 4.2e12, 790e12)` for batches from 1 to 128.
# Without context a larger batch uses up the free draft tokens. With 4000 tokens of context the KV caches outweigh the
# weights, and they grow with the batch just as the FLOPs do, so the number levels off.
