# %% [markdown]
# # Exercises, appendix: scaling laws
#
# Training compute can be spent on a larger model or on more tokens. You compute the split that the Chinchilla
# experiments (Hoffmann et al., 2022, arXiv:2203.15556) found best, and compare it with models that were really trained.

# %%
import math

from minispec_course.check import check, draw, hint, progress_table

# %% [markdown] exercise="appendix.compute_optimal"
# ## 1. How large a model should be
#
# Training costs $C = 6 N D$ FLOPs: 2 for the forward pass and 4 for the backward pass, for each of $N$ parameters and $D$
# tokens. For a given $C$ the loss is lowest for a model that is neither too large nor trained too long, and experiments put
# that at about $r = 20$ tokens per parameter. So there are two equations for two unknowns:
#
# $$C = 6 N D, \qquad D = r N$$
#
# | | | |
# |---|---|---|
# | `flops` | number | $C$ |
# | `tokens_per_parameter` | number | $r$ |
# | returns | `(parameters, tokens)` | $N$ and $D$ |


# %% exercise="appendix.compute_optimal"
def compute_optimal(flops: float, tokens_per_parameter: float) -> tuple[float, float]:
    """Parameters and tokens that make the best use of so many FLOPs of training."""
    ### BEGIN SOLUTION: put the second equation into the first
    n_squared = flops / (6 * tokens_per_parameter)
    n = n_squared**0.5
    return n, tokens_per_parameter * n
    ### END SOLUTION


# %% exercise="appendix.compute_optimal"
check("appendix.compute_optimal", compute_optimal)

# %% [markdown]
# By this rule, what would have been the best use of the compute of some known models? One of them was deliberately trained on
# far more tokens. Why would its makers do that?

# %%
draw("appendix.compute_optimal", compute_optimal)
