# %% [markdown]
# # Exercises 00: start here
#
# Speculative decoding rests on one comparison: a draft of a few tokens against the model's own choices.

# %%
from minispec_course.check import check, hint

# %% [markdown] exercise="00.matches"
# ## 1. How far a draft is right
#
# A draft was appended to a sequence, and one forward pass gave the model's choice for each of its positions, plus one more
# choice after it. Each choice holds only if everything before it is right.
#
# | | | |
# |---|---|---|
# | `draft` | list of k tokens | may be empty |
# | `choices` | list of k + 1 tokens | `choices[i]` is what the model would have generated in place of `draft[i]` |
# | returns | whole number | how many tokens at the beginning of the draft are right, 0 to k |
