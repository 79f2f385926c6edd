# %% [markdown]
# # Exercises 13: near the limit
#
# A decoding step on a GPU is fast when it reads no byte twice, when nothing waits between two kernels, and when every part
# of the device has work. The exercises: count the bytes, judge a kernel by them, merge the splits of flash decoding, and
# write a step that survives being captured in a CUDA graph. No exercise needs a GPU, and each stands alone.

# %%
import torch

from minispec_course.check import check, hint, progress_table

# %% [markdown] exercise="13.pass_bytes"
# ## 1. The bytes of a pass
#
# The least time of a memory-bound forward pass is its bytes divided by the bandwidth. So everything begins with a count: which
# bytes does a pass read from memory?
#
# The model is a Llama: in each layer q, k, v and o, and a SwiGLU with gate, up and down; after the last layer the LM head.
# Leave out the norms, which are small, and the embedding table, in which a token looks up a single row.
#
# | | | |
# |---|---|---|
# | `layers`, `hidden`, `intermediate` | whole numbers | the MLP's matrices have `hidden` × `intermediate` parameters |
# | `heads`, `kv_heads`, `head_dim` | whole numbers | several query heads share a key/value head |
# | `vocab` | whole number | rows of the LM head's matrix |
# | `tokens` | whole number | new tokens in this pass |
# | `context` | whole number | cached tokens that attention reads |
# | `size` | number | bytes per parameter, and per number in the cache |
# | returns | number | bytes read by one pass, for one sequence |

# %% [markdown] exercise="13.roofline"
# ## 2. A kernel on the roofline
#
# A profiler gives the time of every kernel. Whether that is good depends on what the kernel had to do. The roofline
# (Williams et al., 2009) says how long it takes at best, with reading and computing at the same time:
#
# $$t_\text{best} = \max\left(\frac{\text{bytes}}{\text{bandwidth}}, \frac{\text{FLOPs}}{\text{peak}}\right)$$
#
# | | | |
# |---|---|---|
# | `read`, `flops` | numbers | what the kernel reads and computes |
# | `seconds` | number | how long it took |
# | `bandwidth`, `peak` | numbers | bytes/s and FLOP/s of the machine |
# | returns | `(intensity, bound, share)` | FLOP per byte; `"memory"`, `"compute"` or `"latency"`; $t_\text{best}$ / `seconds` |
#
# Call a kernel bound by `"latency"` when its share is below one half: it waits for something that the roofline does not
# model, such as its own start and end, or too few bytes in flight. Otherwise it is bound by whatever takes longer, and by
# memory if both are equal.


# %% exercise="13.roofline"
def place(read: float, flops: float, seconds: float, bandwidth: float, peak: float) -> tuple[float, str, float]:
    """Where a kernel lies: its intensity, what bounds it, and the share of the best possible that it reached."""
    ### BEGIN SOLUTION: two times, the larger one counts
    reading, computing = read / bandwidth, flops / peak
    share = max(reading, computing) / seconds
    if share < 0.5:
        bound = "latency"
    elif reading >= computing:
        bound = "memory"
    else:
        bound = "compute"
    return flops / read, bound, share
    ### END SOLUTION


# %% exercise="13.roofline"
check("13.roofline", place)

# %% [markdown] exercise="13.merge_splits"
# ## 3. The split-K combine
#
# Flash decoding cuts the cached tokens into splits and lets one program process each. Every split ends with the state of the
# online softmax over its own scores $s$ and values $v$: the largest score $m$, the sum $\ell = \sum e^{s - m}$, and
# $o = \sum e^{s - m} v$. A second kernel merges the states. The result is the attention over all splits:
#
# $$\frac{\sum_i w_i\, o_i}{\sum_i w_i\, \ell_i}, \qquad w_i = e^{m_i - \max_j m_j}$$
#
# | | | |
# |---|---|---|
# | `m`, `ell` | tensors `[S]` | of every split, float64 |
# | `o` | tensor `[S, D]` | not divided by anything yet |
# | returns | tensor `[D]` | attention over all splits |
#
# A sequence may be shorter than the grid of programs. Then some splits had no slots: they have `ell` = 0 and `m` = −10³⁰,
# and their `o` was never written, so it can hold anything, even NaN. At least one split has slots.

# %% [markdown] exercise="13.captured"
# ## 4. What breaks inside a captured graph
#
# While a CUDA graph is captured, Python runs *once* and the kernels it launches are recorded. Afterwards the kernels are
# replayed without Python: the same kernels, in the same order, on the same addresses. So a number that Python knew at
# capture time is frozen, and Python cannot use a number that only the device knows.
#
# `gpu` is a small stand-in for such a device. Write one decoding step for it: process the last token of the sequence, choose
# the next one, append it. Your function is called once, then its kernels are replayed several times, and each replay must
# append one token.
#
# | | |
# |---|---|
# | `gpu.count` | how many tokens the sequence has, on the device; `gpu.count - 1` is computed there as well |
# | `gpu.token(position)` | the token at a position |
# | `gpu.next(token, position)` | the model's choice after processing `token` at `position` |
# | `gpu.write(position, token)` | puts a token at a position |
# | `gpu.advance()` | adds 1 to `gpu.count` |
# | `gpu.look(number)` | waits for the device and returns the number as it is now, as `.item()` does |
# | `count` | how many tokens the sequence has when you are called, a Python number |
#
# Positions begin at 0. Nothing is returned.
