# %% [markdown]
# # Exercises 08: drafters
#
# A draft may come from anywhere: from the text itself, from counts, from the target's own lower layers, from a drafter
# that has a drafter. The target judges all of them alike. You write four of these sources. Each exercise stands alone.
#
# Fill in the function, run its cell, run the check below it.

# %%
from collections import Counter

import torch

from minispec.course.classroom import check, hint
from minispec.verify import accept_probability, pick, residual

# %% [markdown] exercise="08.ngram"
# ## 1. Look it up
#
# Code, quotations, summaries: much of what is written has been written a few lines above. So take the last tokens, find
# where they stood before, and guess that what followed then follows now. No model, no training, and hard to beat where it
# applies.
#
# Take the longest suffix of the text, of at most `n_max` tokens, that also occurs **earlier** (so that at least one token
# follows it); of its earlier occurrences the **latest**. The draft is what follows there, up to `k` tokens, fewer if the
# text ends first.
#
# ```
# n_max = 3, k = 2
#
# text    1  2  3  7  2  3  8  9  1  2  3          the last three tokens, 1 2 3, stand at the beginning, too
#                  ↑  ↑                            draft  7 2
# ```
#
# | | | |
# |---|---|---|
# | `text` | list of tokens | prompt and output, at least one |
# | `n_max`, `k` | whole numbers ≥ 1 | tokens to match at most; tokens to draft at most |
# | returns | list of tokens | empty if not even the last token occurs earlier |


# %% exercise="08.ngram"
def lookup(text: list[int], n_max: int, k: int) -> list[int]:
    """What followed the latest earlier occurrence of the longest known suffix."""
    ### BEGIN SOLUTION: longest suffix first, latest place first
    for n in range(min(n_max, len(text)), 0, -1):
        suffix = text[-n:]
        for place in reversed(range(n, len(text))):
            if text[place - n : place] == suffix:
                return text[place : place + k]
    return []
    ### END SOLUTION


# %% exercise="08.ngram"
check("08.ngram", lookup)

# %% [markdown] exercise="08.suffix_walk"
# ## 2. Walk down the counts
#
# Prompt lookup trusts a single occurrence. With all of them in view one can say what *usually* follows, and how surely: a
# draft can then be long where the text is predictable and short where it is not.
#
# 1. Find the longest suffix of the text that also occurs earlier: the string $s$. (If there is none, draft nothing.)
# 2. Of all places where $s\,x_1 \dots x_{i-1}$ is followed by a token, count which. $x_i$ is the commonest; of equals the
#    one that was seen last.
# 3. Multiply: $P(x_1 \dots x_i) = P(x_1 \dots x_{i-1}) \cdot \dfrac{\text{count}(x_i)}{\text{all such places}}$
# 4. Stop before $P$ falls below `floor`, after `k` tokens, or where nothing follows.
#
# The score $\sum_i P(x_1 \dots x_i)$ estimates how many of the drafted tokens will be accepted: token $i$ is, if all up
# to it are.
#
# | | | |
# |---|---|---|
# | `text` | list of tokens | prompt and output |
# | `k` | whole number ≥ 1 | tokens to draft at most |
# | `floor` | number in [0, 1] | how likely the whole draft must stay |
# | returns | `(drafted, score)` | a list of tokens, and a number; `([], 0)` if there is nothing to draft |
#
# (minispec keeps all strings of the text in a tree, so that a step costs no search. Here a search is fine.)


# %% exercise="08.suffix_walk"
def suffix_walk(text: list[int], k: int, floor: float) -> tuple[list[int], float]:
    """The commonest continuation of the longest known suffix, and how many of its tokens may be accepted."""
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
# A draft model without a draft model: run the first $n$ layers of the target, and read its opinion off right there. Every
# layer only adds to the residual stream, so the stream after layer $n$ is in the same space as the finished one, and the
# target's own final norm and LM head can read it.
#
# $$\text{logits} = W_\text{head} \cdot \text{RMSNorm}(x_n), \qquad
# \text{RMSNorm}(x) = w \odot \frac{x}{\sqrt{\operatorname{mean}(x^2) + \varepsilon}}$$
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
    """What the target would say if it ended after n layers."""
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
# A middle-sized draft model is good, but slow. So a tiny model guesses for it, and it verifies the guess just as a target
# would. What comes out is handed to the real target as its draft, and the target asks the question it always asks: *which
# law was this drawn from?*
#
# ```
# tiny   → guess →   middle accepts or replaces it   → draft, q →   target accepts or replaces it   → token
# ```
#
# Write the part in the middle. It must waste nothing: a guess is used whenever it can be. And q decides over exactness
# (only the law that the draft really follows makes the output follow $p$) and over speed (how often the target accepts).
#
# | | | |
# |---|---|---|
# | `middle`, `tiny` | tensors `[V]` | the laws of the two models at this place |
# | `guess` | whole number | a token, drawn from `tiny` |
# | `random` | function | `random()` is a fresh number in [0, 1), to be compared or given to `pick` |
# | returns | `(draft, q)` | the token for the target, and the law it follows, over all that may happen here: a tensor `[V]` |
#
# You may use `accept_probability(p, q, token)`, `residual(p, q)` and `pick(law, number)` of minispec. The check computes
# everything that follows from your answer, for a target with the law `p`: how often the guess survives, the law of the
# draft, how often the target accepts it, and the law of the token that it emits.


# %% exercise="08.cascade_distribution"
def cascade_draft(middle: torch.Tensor, tiny: torch.Tensor, guess: int, random) -> tuple[int, torch.Tensor]:
    """What the middle model makes of a guess, and the law of that."""
    ### BEGIN SOLUTION: the middle model is the target here, and the tiny one its draft
    kept = random() < accept_probability(middle, tiny, guess)
    draft = guess if kept else pick(residual(middle, tiny), random())
    return draft, middle
    ### END SOLUTION


# %% exercise="08.cascade_distribution"
check("08.cascade_distribution", cascade_draft)
