# %% [markdown]
# # Exercises 08: drafters
#
# A draft may come from anywhere: from the sequence itself, from counts, from the target's own lower layers, or from a
# drafter that has its own drafter. The target verifies them all in the same way. In this set you write such sources. The
# exercises are independent of one another.
#
# Fill in a function, run its cell, then run the check below it.

# %%
from collections import Counter

import torch

from minispec.verify import accept_probability, pick, residual
from minispec_course.check import check, hint, progress_table

# %% [markdown] exercise="08.ngram"
# ## 1. Look it up
#
# Code, quotations and summaries often repeat something from a few lines above. Prompt lookup (Saxena, 2023) exploits this:
# take the last tokens, find where they occurred before, and propose the tokens that followed. It needs no model and no
# training, and it costs almost nothing.
#
# Take the longest suffix of `text`, of at most `n_max` tokens, that also occurs **earlier**, so that at least one token
# follows it; the two may overlap, as 5 5 does with itself in 5 5 5. Among its earlier occurrences take the **latest**. The
# draft is what follows it, up to `k` tokens, or fewer if the sequence ends first.
#
# ```
# n_max = 3, k = 2
#
# text    1  2  3  7  2  3  8  9  1  2  3          the last three tokens, 1 2 3, also occur at the beginning
#                  ↑  ↑                            draft  7 2
# ```
#
# | | | |
# |---|---|---|
# | `text` | list of tokens | prompt and output, at least one token |
# | `n_max`, `k` | whole numbers ≥ 1 | the most tokens to match; the most tokens to draft |
# | returns | list of tokens | empty if not even the last token occurs earlier |

# %% [markdown] exercise="08.suffix_walk"
# ## 2. Walk down the counts
#
# Prompt lookup trusts a single occurrence, although there may be many. If all occurrences are counted, we know what
# *usually* follows and how certain that is, so the draft can be long when the sequence is predictable and short when it is
# not. This is the idea of suffix decoding (Oliaro et al., 2025, arXiv:2411.04975).
#
# 1. Find the longest suffix of the sequence that also occurs earlier, and call it the string $s$. (If there is none, draft
#    nothing.)
# 2. Consider all positions where $s\,x_1 \dots x_{i-1}$ is followed by a token, and count these tokens. $x_i$ is the most
#    frequent one; among equally frequent ones it is the one that was seen last.
# 3. Multiply: $P(x_1 \dots x_i) = P(x_1 \dots x_{i-1}) \cdot \dfrac{\text{count}(x_i)}{\text{number of these positions}}$
# 4. Stop before $P$ falls below `floor`, after `k` tokens, or when no token follows.
#
# The score $\sum_i P(x_1 \dots x_i)$ estimates how many of the draft tokens will be accepted, because token $i$ is
# accepted only if all tokens up to it are.
#
# | | | |
# |---|---|---|
# | `text` | list of tokens | prompt and output |
# | `k` | whole number ≥ 1 | the most tokens to draft |
# | `floor` | number in [0, 1] | how probable the whole draft must stay; a draft that is exactly as probable stays |
# | returns | `(drafted, score)` | a list of tokens, and a number; `([], 0)` if there is nothing to draft |
#
# (minispec keeps a table of where each token occurs, to avoid searching everything. Here a search is fine.)


# %% exercise="08.suffix_walk"
def suffix_walk(text: list[int], k: int, floor: float) -> tuple[list[int], float]:
    """The most frequent continuation of the longest known suffix, and how many of its tokens may be accepted."""
    ### BEGIN SOLUTION: where does a string occur so that a token follows? first for suffixes, then for longer strings

    def followers(string):
        n = len(string)
        return [text[end] for end in range(n, len(text)) if text[end - n : end] == string]

    lengths = [n for n in range(1, len(text)) if followers(text[-n:])]
    if not lengths:
        return [], 0.0
    string, drafted, p, score = text[-max(lengths) :], [], 1.0, 0.0
    while len(drafted) < k and (seen := followers(string)):
        counts = Counter(reversed(seen))  # latest first, and max keeps the first of equals
        commonest = max(counts, key=counts.get)
        p *= counts[commonest] / len(seen)
        if p < floor:
            break
        drafted.append(commonest)
        string = [*string, commonest]
        score += p
    return drafted, score
    ### END SOLUTION


# %% exercise="08.suffix_walk"
check("08.suffix_walk", suffix_walk)

# %% [markdown] exercise="08.early_exit"
# ## 3. Leave early
#
# Can the target draft for itself, without a second model? Run only its first $n$ layers and compute the logits there.
# Every layer adds to the residual stream, so the stream after layer $n$ lies in the same space as the finished one, and
# the target's own final norm and LM head can be applied to it:
#
# $$\text{logits} = W_\text{head} \cdot \text{RMSNorm}(x_n), \qquad
# \text{RMSNorm}(x) = w \odot \frac{x}{\sqrt{\operatorname{mean}(x^2) + \varepsilon}}$$
#
# Here $x_n$ is the stream of one token after $n$ layers, $w$ is `norm_weight`, and the mean is over its $d$ numbers.
#
# | | | |
# |---|---|---|
# | `streams` | tensor `[L+1, T, d]` | the residual stream of T tokens: first the embedding, then after each of L layers |
# | `n` | whole number, 1 ≤ n ≤ L | how many layers to run |
# | `norm_weight`, `eps` | tensor `[d]`, number ≥ 0 | of the final RMSNorm |
# | `head` | tensor `[V, d]` | the LM head |
# | returns | tensor `[T, V]` | the draft's logits after each token |


# %% exercise="08.early_exit"
def exit_logits(
    streams: torch.Tensor, n: int, norm_weight: torch.Tensor, eps: float, head: torch.Tensor
) -> torch.Tensor:
    """The logits that the target would have if it ended after n layers."""
    ### BEGIN SOLUTION: stream, norm, head
    x = streams[n]  # [T, d]
    size = torch.sqrt((x * x).mean(-1, keepdim=True) + eps)  # [T, 1]
    return (norm_weight * x / size) @ head.T
    ### END SOLUTION


# %% exercise="08.early_exit"
check("08.early_exit", exit_logits)

# %% [markdown] exercise="08.cascade_distribution"
# ## 4. A drafter for the drafter
#
# A middle-sized draft model is accepted often, but it is slow. So a tiny model guesses for it, and the middle model
# verifies the guess as a target would. The result becomes the draft token for the real target, which needs what it always
# needs: *the distribution this token was sampled from*.
#
# ```
# tiny   → guess →   middle accepts or replaces it   → draft, q →   target accepts or replaces it   → token
# ```
#
# Write the step of the middle model. A guess should be used whenever the rule allows it. The reported $q$ decides two
# things: exactness, because the output follows $p$ only if $q$ is the distribution that the draft token really follows,
# and speed, because it determines how often the target accepts.
#
# | | | |
# |---|---|---|
# | `middle`, `tiny` | tensors `[V]` | the distributions of the two models at this position |
# | `guess` | whole number | a token, sampled from `tiny` |
# | `random` | function | `random()` is a fresh number in [0, 1), to be compared or given to `pick` |
# | returns | `(draft, q)` | the token for the target, and the distribution it follows, over everything that may happen here: a tensor `[V]` |
#
# You may use minispec's `accept_probability(p, q, token)`, `residual(p, q)` and `pick(distribution, number)`. The check
# computes exactly what follows from your answer for a target with the distribution `p`: how often the guess survives, the
# distribution of the draft token, how often the target accepts it, and the distribution of the emitted token.
