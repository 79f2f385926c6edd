# %% [markdown]
# # Exercises, appendix: scaling laws
#
# Training compute can be spent on a larger model or on more tokens. You compute the split that the Chinchilla experiments
# (Hoffmann et al., 2022, arXiv:2203.15556) found best, and compare it with real models.

# %%
import math

from minispec_course.check import check, hint, progress_table

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
