# %% [markdown]
# # Exercises 16: beyond one GPU
#
# A model that does not fit into one GPU is split over several. You split an MLP so that one all-reduce is enough, and you
# compute how much cache each rank has to hold. Each exercise stands alone, and none needs a GPU, because the ranks are
# elements of a list here.

# %%
import math

import torch

from minispec_course.check import check, hint, progress_table

# %% [markdown] exercise="16.column_row"
# ## 1. Columns, then rows
#
# Megatron (Shoeybi et al., 2019, arXiv:1909.08053) divides an MLP among $R$ ranks by splitting the first matrix by columns
# and the second by rows. Every rank computes its own columns of the hidden layer, applies the activation to them, and
# multiplies them with the matching rows of the second matrix. The results are summed over the ranks in **one** all-reduce:
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


# %% exercise="16.column_row"
def parallel_mlp(
    x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, bias: torch.Tensor, ranks: int, all_reduce
) -> torch.Tensor:
    """An MLP on several ranks, each with its part of the matrices, and one all-reduce."""
    ### BEGIN SOLUTION: which columns and which rows belong to rank r? what does it add to the sum?
    width = up.shape[1] // ranks
    parts = []
    for r in range(ranks):
        mine = slice(r * width, (r + 1) * width)
        hidden = torch.relu(x @ up[:, mine])  # [T, f / R]
        parts.append(hidden @ down[mine])  # [T, d]
    return all_reduce(parts) + bias
    ### END SOLUTION


# %% exercise="16.column_row"
check("16.column_row", parallel_mlp)

# %% [markdown] exercise="16.kv_per_rank"
# ## 2. The cache of one rank
#
# Tensor parallelism divides attention by heads. In every layer each rank computes its own query heads and keeps the keys and
# values that these need, and the weights are divided evenly. How many bytes does one more token cost on *each* rank, and
# how many tokens fit beside the weights?
#
# With more ranks than key/value heads there is a catch. A key/value head is not divided. Its query heads are then on several
# ranks, and each of these ranks keeps a copy of it, so more ranks no longer make the cache per rank smaller.
#
# | | | |
# |---|---|---|
# | `layers`, `heads`, `kv_heads`, `head_dim` | whole numbers | the model; query heads and key/value heads |
# | `bits` | whole number | of one number in the cache |
# | `weight_bytes` | number | of the whole model |
# | `ranks` | whole number | divides `kv_heads`, or is a multiple of it |
# | `memory` | number | bytes of one rank |
# | returns | `(per_token, tokens)` | bytes per token on one rank; how many tokens fit, a whole number, 0 if not even the weights do |


# %% exercise="16.kv_per_rank"
def kv_per_rank(
    layers: int, heads: int, kv_heads: int, head_dim: int, bits: int, weight_bytes: float, ranks: int, memory: float
) -> tuple[float, int]:
    """Bytes that one token takes on each rank, and how many tokens fit beside the weights."""
    ### BEGIN SOLUTION: which heads are on a rank? what is left of its memory?
    heads_here = math.ceil(kv_heads / ranks)
    per_token = 2 * layers * heads_here * head_dim * bits / 8
    left = memory - weight_bytes / ranks
    return per_token, max(0, int(left // per_token))
    ### END SOLUTION


# %% exercise="16.kv_per_rank"
check("16.kv_per_rank", kv_per_rank)
