# %% [markdown]
# # Exercises 05: draft and verify
#
# You write the loop of speculative decoding for a greedy target: first the decision on one draft, then the bookkeeping of
# the two caches, then the loop around both. The exercises are independent: later ones use our version of earlier ones.
#
# Fill in the function, run its cell, and run the check below it. A check says *what* is wrong and shows the smallest case
# that proves it. (It calls your function many times and does not show what you print. To look inside, call the function
# yourself in a cell of your own.)

# %%
import torch

from minispec_course.check import check, hint, reference

# %% [markdown] exercise="05.greedy_verify"
# ## 1. The greedy decision
#
# The target has processed the last token of the sequence and $k$ draft tokens in a single forward pass. (Leviathan's paper
# writes γ for $k$.) Your function decides which draft tokens are accepted, and which token follows them.
#
# The logits are a tensor `[k + 1, V]`. Counted from 0, row $i$ of this tensor says what the target chooses *after* the
# $i$-th token of the input. So it judges draft token $i$ of the list:
#
# ```
# input             last    d[0]    d[1]    d[2]
# row of logits      0       1       2       3
# its argmax is    d[0]?   d[1]?   d[2]?   the bonus
# ```
#
# $$a = \text{number of draft tokens before the first } i \text{ with } d_i \ne \arg\max \ell_i, \qquad
# \text{token} = \arg\max \ell_a$$
#
# | | | |
# |---|---|---|
# | `logits` | tensor `[k + 1, V]` | one row of the tensor for each input token |
# | `drafted` | list of k tokens | may be empty |
# | returns | `(accepted, token)` | two whole numbers, 0 ≤ accepted ≤ k |

# %% [markdown] exercise="05.rewind"
# ## 2. Rewind both caches
#
# Rejected draft tokens leave keys and values in both caches, and later tokens must not attend to them. So after every cycle
# each cache is cut back to the tokens that are part of the sequence. An off-by-one error here is easy to miss, because the
# output stays fluent.
#
# When the cycle begins, the sequence has $n$ tokens, and both caches hold the first $n - 1$ of them. Then
#
# ```
# the draft model processes     last   d[0]   …   d[k-2]             and proposes d[0] … d[k-1]
# the target processes          last   d[0]   …   d[k-2]   d[k-1]    and yields k + 1 rows of logits
# ```
#
# and $a$ draft tokens are accepted, and one more token is emitted. How many tokens may each cache keep?
#
# | | | |
# |---|---|---|
# | `n` | whole number ≥ 1 | tokens of the sequence before the cycle |
# | `k`, `accepted` | whole numbers | k ≥ 1 and 0 ≤ accepted ≤ k |
# | returns | `(target, draft)` | the length of each cache after the cycle: all correct tokens that it has, and no others |

# %% [markdown] exercise="05.loop"
# ## 3. The loop
#
# Now put both together around two models. The output must be what the target would have generated on its own, in as few
# forward passes of the target as the draft allows.
#
# `target` and `draft` are models with a cache:
#
# | | |
# |---|---|
# | `model.read(tokens)` | processes them after what the cache holds; returns logits `[len(tokens), V]` |
# | `model.length` | how many tokens the cache holds |
# | `model.rewind(length)` | removes everything after the first `length` |
#
# Both have processed the prompt except its last token. In every cycle the draft model proposes exactly k tokens,
# greedily, in **k passes**; the target verifies them in **one pass**; both are rewound. Continue until there are
# `count` new tokens, and cut off what the last cycle emitted beyond that.
#
# One detail is easy to miss. After a cycle in which all k draft tokens were accepted, *two* tokens are missing from the
# draft model's cache: its own last draft token, which it never processed, and the bonus. One pass can process both.
#
# | | | |
# |---|---|---|
# | `prompt` | list of tokens | at least one |
# | `k`, `count` | whole numbers ≥ 1 | draft length; how many new tokens |
# | returns | list of `count` tokens | the new ones only |
#
# You may use `greedy_verify(logits, drafted)` and `rewind(n, k, accepted)`: the cell below has our answers to 1 and 2.
