# %% [markdown]
# # Exercises 05: draft and verify
#
# You write the loop of speculative decoding, for a greedy target: first the verdict on one draft, then the bookkeeping
# of two caches, then the loop around both. Each exercise stands alone: the later ones use our version of the earlier.
#
# Fill in the function, run its cell, run the check below it. A check says *what* is wrong and shows the smallest case
# that proves it. (It calls your function many times, and what you print meanwhile is not shown: to look inside, call
# the function yourself in a cell of your own.)

# %%
import torch

from minispec.course.classroom import check, draw, hint, reference

# %% [markdown] exercise="05.greedy_verify"
# ## 1. The greedy verdict
#
# The target has read the last committed token and γ drafted ones in a single pass. This function decides how many of
# them survive, and which token follows: it is all that stands between a guess and the output.
#
# With rows counted from 0, row $i$ of the logits is what the target says *after* reading the $i$-th token of the pass.
# So it judges draft $i$ of the list:
#
# ```
# the pass reads    last    d[0]    d[1]    d[2]
# row                0       1       2       3
# its argmax is    d[0]?   d[1]?   d[2]?   the bonus
# ```
#
# $$a = \text{number of drafts before the first } i \text{ with } d_i \ne \arg\max \ell_i, \qquad
# \text{token} = \arg\max \ell_a$$
#
# | | | |
# |---|---|---|
# | `logits` | tensor `[γ+1, V]` | one row for each token of the pass |
# | `drafted` | list of γ tokens | may be empty |
# | returns | `(accepted, token)` | two whole numbers, 0 ≤ accepted ≤ γ |


# %% exercise="05.greedy_verify"
def greedy_verify(logits: torch.Tensor, drafted: list[int]) -> tuple[int, int]:
    """How many drafts the target agrees with, and its own token after them: the correction, or the bonus."""
    ### BEGIN SOLUTION: compare each draft with the target's choice in its place, up to the first mismatch
    best = logits.argmax(-1).tolist()
    accepted = 0
    for guess, choice in zip(drafted, best, strict=False):
        if guess != choice:
            break
        accepted += 1
    return accepted, best[accepted]
    ### END SOLUTION


# %% exercise="05.greedy_verify"
check("05.greedy_verify", greedy_verify)

# %% [markdown] exercise="05.rewind"
# ## 2. Rewind both caches
#
# Rejected drafts leave traces: both models have keys and values of tokens that nobody wrote. After every cycle each
# cache is cut back to what is true, and an error of one token here is the commonest bug of all.
#
# When the cycle begins, the text has $n$ tokens, and both caches hold the first $n - 1$ of them. Then
#
# ```
# the draft reads     last   d1   …   d_{γ-1}           and proposes d1 … d_γ
# the target reads    last   d1   …   d_{γ-1}   d_γ     and yields γ + 1 rows
# ```
#
# and $a$ drafts are accepted, and one more token is emitted. How long may each cache stay?
#
# | | | |
# |---|---|---|
# | `n` | whole number ≥ 1 | tokens of the text before the cycle |
# | `gamma`, `accepted` | whole numbers | γ ≥ 1 and 0 ≤ a ≤ γ |
# | returns | `(target, draft)` | the length of each cache after the cycle: as long as is still true, no longer |


# %% exercise="05.rewind"
def rewind(n: int, gamma: int, accepted: int) -> tuple[int, int]:
    """The lengths that the target's and the draft's cache are cut back to."""
    ### BEGIN SOLUTION: which tokens has each model read, and which of them are still in the text?
    still_true = n + accepted  # the old text, its last token now read, and the accepted drafts
    draft_has_read = (n - 1) + gamma  # its own last draft it has proposed, but never read
    return still_true, min(still_true, draft_has_read)
    ### END SOLUTION


# %% exercise="05.rewind"
check("05.rewind", rewind)

# %% [markdown] exercise="05.loop"
# ## 3. The loop
#
# Now both together, around two models. The output must be what the target would have written alone, in as few passes
# as the draft deserves.
#
# `target` and `draft` are models with a cache:
#
# | | |
# |---|---|
# | `model.read(tokens)` | reads them behind what the cache holds; returns logits `[len(tokens), V]` |
# | `model.length` | how many tokens the cache holds |
# | `model.rewind(length)` | forgets everything after the first `length` |
#
# Both have read the prompt except its last token. In every cycle the draft proposes exactly γ tokens, greedily, in
# **γ passes**; the target verifies them in **one pass**; both are rewound. Keep going until there are `count` new tokens,
# and cut what the last cycle wrote beyond that.
#
# One thing is easy to miss. When all γ drafts were accepted, the draft is *two* tokens behind: its own last draft, which
# it never read, and the bonus. One pass can read both.
#
# | | | |
# |---|---|---|
# | `prompt` | list of tokens | at least one |
# | `gamma`, `count` | whole numbers ≥ 1 | draft length; how many new tokens |
# | returns | list of `count` tokens | the new ones only |
#
# You may use `our_verify(logits, drafted)` and `our_rewind(n, gamma, accepted)`: our answers to 1 and 2.

# %%
our_verify, our_rewind = reference("05.greedy_verify"), reference("05.rewind")


# %% exercise="05.loop"
def loop(target, draft, prompt: list[int], gamma: int, count: int) -> list[int]:
    """Speculative decoding with a greedy target: `count` new tokens after the prompt."""
    ### BEGIN SOLUTION: until there are enough tokens: draft γ, verify in one pass, add what was won, rewind both
    text = list(prompt)
    while len(text) < len(prompt) + count:
        n = len(text)
        drafted: list[int] = []
        while len(drafted) < gamma:
            unread = (text + drafted)[draft.length :]  # one token; two after a cycle that accepted everything
            drafted.append(int(draft.read(unread)[-1].argmax()))
        accepted, token = our_verify(target.read([text[-1], *drafted]), drafted)
        text += [*drafted[:accepted], token]
        target_length, draft_length = our_rewind(n, gamma, accepted)
        target.rewind(target_length)
        draft.rewind(draft_length)
    return text[len(prompt) : len(prompt) + count]
    ### END SOLUTION


# %% exercise="05.loop"
check("05.loop", loop)

# %% [markdown]
# What did your target see? Each line is one pass: how many tokens its cache held before it, and what it read. The first
# token of a line is the last one of the text; the others are drafts.

# %%
draw("05.loop", loop)
