# %% [markdown]
# # Exercises 16: beyond one GPU
#
# A model that does not fit on one GPU is split over several. You split an MLP so that one all-reduce is enough, compute how
# much cache each rank has to hold, and send tokens to their experts. Each exercise stands alone, and none needs a GPU: here
# the ranks are elements of a list.

# %%
import math

import torch

from minispec_course.check import check, hint

# %% [markdown] exercise="16.column_row"
# ## 1. Columns, then rows
#
# Megatron (Shoeybi et al., 2019, arXiv:1909.08053) divides an MLP among $R$ ranks by splitting the first matrix by columns
# and the second by rows. Every rank computes its own columns of the hidden layer, applies the activation to them, and
# multiplies them by the matching rows of the second matrix. The results are summed over the ranks in **one** all-reduce:
#
# $$\mathrm{relu}(x A)\,B + b \;=\; \sum_{r} \mathrm{relu}(x A_r)\,B_r \;+\; b, \qquad
# A = [A_1 \mid \dots \mid A_R], \quad B = \begin{bmatrix} B_1 \\ \vdots \\ B_R \end{bmatrix}$$
#
# | | | |
# |---|---|---|
# | `x` | tensor `[T, d]` | every rank has it |
# | `up`, `down`, `bias` | tensors `[d, f]`, `[f, d]`, `[d]` | the whole matrices: split them |
# | `ranks` | whole number | divides d and f |
# | `all_reduce` | function | takes a list of tensors, one per rank; returns their sum, which all ranks then have |
# | returns | tensor `[T, d]` | what one GPU would compute |

# %% [markdown] exercise="16.kv_per_rank"
# ## 2. The cache of one rank
#
# Tensor parallelism divides attention by heads. In every layer each rank computes its own query heads and keeps the keys
# and values that they need, and the weights are divided evenly. How many bytes does one more token cost on *each* rank, and
# how many tokens fit beside the weights?
#
# With more ranks than key/value heads there is a catch. A key/value head is not divided. Its query heads are then on
# several ranks, each of which keeps a copy, so more ranks no longer shrink the cache per rank.
#
# | | | |
# |---|---|---|
# | `layers`, `heads`, `kv_heads`, `head_dim` | whole numbers | the model; query heads and key/value heads |
# | `bits` | whole number | of one number in the cache |
# | `weight_bytes` | number | of the whole model |
# | `ranks` | whole number | divides `kv_heads`, or is a multiple of it |
# | `memory` | number | bytes of one rank |
# | returns | `(per_token, tokens)` | bytes per token on one rank; how many tokens fit, a whole number, 0 if not even the weights do |
