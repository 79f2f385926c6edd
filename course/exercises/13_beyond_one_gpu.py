# %% [markdown]
# # Exercises 13: beyond one GPU
#
# A model that does not fit into one GPU is cut. You cut a layer so that its parts meet once, size the cache that is left
# to each part, and compute how large the model should have been in the first place. Each exercise stands alone, and none
# needs a GPU: ranks are lists here.

# %%
import math

import torch

from minispec.course.classroom import check, draw, hint

# %% [markdown] exercise="13.column_row"
# ## 1. Columns, then rows
#
# Megatron's way to share an MLP among $R$ ranks: the first matrix is cut by columns, the second by rows. Every rank
# computes its own columns of the hidden layer, applies the activation to them, and multiplies them with the rows that
# they meet. The results are added over the ranks, in **one** all-reduce:
#
# $$\mathrm{relu}(x A)\,B + b \;=\; \sum_{r} \mathrm{relu}(x A_r)\,B_r \;+\; b, \qquad
# A = [A_1 \mid \dots \mid A_R], \quad B = \begin{bmatrix} B_1 \\ \vdots \\ B_R \end{bmatrix}$$
#
# | | | |
# |---|---|---|
# | `x` | tensor `[T, d]` | every rank has it |
# | `up`, `down`, `bias` | tensors `[d, f]`, `[f, d]`, `[d]` | the whole weights: cut them |
# | `ranks` | whole number | divides d and f |
# | `all_reduce` | function | takes a list of tensors, one a rank; returns their sum, which all ranks then have |
# | returns | tensor `[T, d]` | what one GPU would compute |


# %% exercise="13.column_row"
def parallel_mlp(
    x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, bias: torch.Tensor, ranks: int, all_reduce
) -> torch.Tensor:
    """An MLP on several ranks, each with its part of the weights, and one all-reduce."""
    ### BEGIN SOLUTION: which columns and which rows belong to rank r? what does it add to the sum?
    width = up.shape[1] // ranks
    parts = []
    for r in range(ranks):
        mine = slice(r * width, (r + 1) * width)
        hidden = torch.relu(x @ up[:, mine])  # [T, f / R]
        parts.append(hidden @ down[mine])  # [T, d]
    return all_reduce(parts) + bias
    ### END SOLUTION


# %% exercise="13.column_row"
check("13.column_row", parallel_mlp)

# %% [markdown] exercise="13.kv_per_rank"
# ## 2. The cache of one rank
#
# Attention is cut by heads: each rank attends with its own query heads, in every layer, and keeps the keys and values
# that these need. Weights are cut evenly. How many bytes does one more token cost *each* rank, and how many tokens fit
# beside the weights?
#
# With more ranks than key/value heads there is a catch. A head cannot be cut; its query heads lie on several ranks, and
# each of them keeps a copy. So adding ranks stops making the cache smaller.
#
# | | | |
# |---|---|---|
# | `layers`, `heads`, `kv_heads`, `head_dim` | whole numbers | the model; query heads and key/value heads |
# | `bits` | whole number | of one number in the cache |
# | `weight_bytes` | number | of the whole model |
# | `ranks` | whole number | divides `kv_heads`, or is a multiple of it |
# | `memory` | number | bytes of one rank |
# | returns | `(per_token, tokens)` | bytes a token on one rank; how many tokens fit, a whole number ≥ 0 |


# %% exercise="13.kv_per_rank"
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


# %% exercise="13.kv_per_rank"
check("13.kv_per_rank", kv_per_rank)

# %% [markdown] exercise="13.compute_optimal"
# ## 3. How large a model should be
#
# Training costs $C = 6 N D$ FLOPs: 2 for the forward and 4 for the backward pass, for each of $N$ parameters and $D$
# tokens. The best use of a given $C$ is a model that is neither too large nor trained too long; experiments put it at
# about $r = 20$ tokens a parameter. Two equations, two unknowns:
#
# $$C = 6 N D, \qquad D = r N$$
#
# | | | |
# |---|---|---|
# | `flops` | number | $C$ |
# | `tokens_per_parameter` | number | $r$ |
# | returns | `(parameters, tokens)` | $N$ and $D$ |


# %% exercise="13.compute_optimal"
def compute_optimal(flops: float, tokens_per_parameter: float) -> tuple[float, float]:
    """Parameters and tokens that make the best use of so many FLOPs of training."""
    ### BEGIN SOLUTION: put the second equation into the first
    n_squared = flops / (6 * tokens_per_parameter)
    n = n_squared**0.5
    return n, tokens_per_parameter * n
    ### END SOLUTION


# %% exercise="13.compute_optimal"
check("13.compute_optimal", compute_optimal)

# %% [markdown]
# What should have been trained with the compute of some known models? One of them was trained far beyond its optimum, on
# purpose: why would anybody do that?

# %%
draw("13.compute_optimal", compute_optimal)
