# %% [markdown]
# # Exercises 18: the capstone
#
# In the capstone you build speculative decoding (Leviathan et al., 2023, arXiv:2211.17192) on your own: a sampler, a drafter,
# a loop, and one decoder that joins the three. The parts are graded separately, so a mistake in one does not spoil the
# next. The last exercise joins *your* parts. It is judged by the exact distribution of its output and of the number of
# forward passes. At the end your decoder runs on a real model, with a drafter that you tune.
#
# If a function is given `random`, call `random()` for a fresh random number in [0, 1). You may compare it,
# `random() < 0.3`, or sample a token with it, `pick(probs, random())`. Do nothing else with it, because the check follows
# every branch that these two uses can take.
#
# A model has a cache and three ways to use it:
#
# | | |
# |---|---|
# | `model.read(tokens)` | a forward pass over these tokens, after those in the cache; returns logits `[len(tokens), V]` |
# | `model.length` | how many tokens the cache holds |
# | `model.rewind(length)` | discards everything after the first `length` tokens; a cache only shrinks, so a `length` above `model.length` is an error |

# %%
import torch

from minispec.verify import pick
from minispec_course.check import check, hint, mine, progress_table

accept, residual = mine("06.accept"), mine("06.residual")  # what you wrote in lesson 06, once it is right; else ours

# %% [markdown] exercise="18.sampler"
# ## 1. Your sampler
#
# One forward pass of the target gave logits $\ell_0, \dots, \ell_k$ at $k + 1$ positions. Turn them into distributions, then
# accept or reject the $k$ draft tokens $d_0, \dots, d_{k-1}$.
#
# $$p_i = \mathrm{softmax}(\ell_i / T), \qquad T = 0: \text{ all probability on the most likely token}$$
#
# Accept $d_i$ with probability $\min(1, p_i(d_i)/q_i(d_i))$. At the first rejection emit one token from
# $\mathrm{norm}([p_i - q_i]_+)$ and stop. If there is no rejection, emit a bonus token from $p_k$. Your own
# `accept(p, q, token)` and `residual(p, q)` from lesson 06 are available.
#
# | | | |
# |---|---|---|
# | `logits` | tensor `[k+1, V]` | `logits[i]` belongs to the position of draft token $i$, the last one to the bonus |
# | `q` | tensor `[k, V]` | the distributions that the draft tokens were sampled from; None if k = 0 |
# | `drafted` | list of k tokens | |
# | `temperature` | number ≥ 0 | of the target; $q$ includes the drafter's own |
# | returns | list of tokens | the accepted draft tokens and one more |


# %% exercise="18.sampler"
def verify(logits: torch.Tensor, q: torch.Tensor | None, drafted: list[int], temperature: float, random) -> list[int]:
    """All tokens that one cycle emits."""
    ### BEGIN SOLUTION: distributions first; then acceptance, the residual, the bonus
    if temperature == 0:
        p = torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
    else:
        p = torch.softmax(logits / temperature, dim=-1)
    for i, d in enumerate(drafted):
        if not random() < accept(p[i], q[i], d):
            return [*drafted[:i], pick(residual(p[i], q[i]), random())]
    return [*drafted, pick(p[-1], random())]
    ### END SOLUTION


# %% exercise="18.sampler"
check("18.sampler", verify)

# %% [markdown] exercise="18.drafter"
# ## 2. Your drafter
#
# A small model drafts token by token, with its own cache. The cache holds the sequence except for its last token or its
# last two. So run the model on what is missing, sample a token, run the model on that token, and so on. That takes **k
# forward passes** for k draft tokens, because what follows the last one is not needed.
#
# Return the distribution that each draft token was really sampled from, including temperature, because the sampler needs
# it.
#
# | | | |
# |---|---|---|
# | `model` | | the draft model |
# | `text` | list of tokens | the sequence so far, prompt and output |
# | `k` | whole number ≥ 0 | how many to draft |
# | `temperature` | number ≥ 0 | 0 is greedy: then $q$ is one-hot |
# | returns | `(drafted, q)` | a list of k tokens, and their distributions, a tensor `[k, V]`; None for $q$ if k = 0 |


# %% exercise="18.drafter"
def propose(model, text: list[int], k: int, temperature: float, random) -> tuple[list[int], torch.Tensor | None]:
    """Draft k tokens, and the distribution that each was sampled from."""
    ### BEGIN SOLUTION: which tokens are not in the cache yet? which distribution did the token come from?
    drafted: list[int] = []
    distributions = []
    while len(drafted) < k:
        logits = model.read((text + drafted)[model.length :])[-1]
        if temperature == 0:
            probs = torch.zeros_like(logits)
            probs[logits.argmax()] = 1.0
        else:
            probs = torch.softmax(logits / temperature, dim=-1)
        distributions.append(probs)
        drafted.append(pick(probs, random()))
    return drafted, torch.stack(distributions) if distributions else None
    ### END SOLUTION


# %% exercise="18.drafter"
check("18.drafter", propose)

# %% [markdown] exercise="18.loop"
# ## 3. Your loop
#
# The loop drafts, verifies in one forward pass, appends what was emitted and rewinds both caches, until there are `count` new
# tokens or the target has emitted `end`. Drafter and sampler are given as two functions, so the loop does not handle
# distributions or temperatures:
#
# | | |
# |---|---|
# | `propose(draft, text, k)` | returns `(drafted, q)`; k may be 0 |
# | `verify(logits, q, drafted)` | returns the tokens that the cycle emits |
#
# Both caches hold the prompt except its last token. Draft no more than can be used: a cycle emits up to one token more than
# it drafts, so near the end fewer than `k` are enough. Look for `end` among *all* tokens of a cycle. It is the last token
# of the output, and what the same cycle emitted after it is discarded.
#
# | | | |
# |---|---|---|
# | `target`, `draft` | models | |
# | `prompt` | list of tokens | at least one |
# | `k`, `count` | whole numbers ≥ 1 | longest draft; how many new tokens, at most |
# | `end` | token | ends the output |
# | returns | list of tokens | the new ones only; with `end`, if it came |


# %% exercise="18.loop"
def loop(target, draft, propose, verify, prompt: list[int], k: int, count: int, end: int) -> list[int]:
    """Speculative decoding around any drafter and any sampler."""
    ### BEGIN SOLUTION: how many draft tokens? one pass; is it over? what may each cache keep?
    new: list[int] = []
    while len(new) < count:
        drafted, q = propose(draft, prompt + new, min(k, count - len(new) - 1))
        for token in verify(target.read([(prompt + new)[-1], *drafted]), q, drafted):
            new.append(token)
            if token == end:
                return new
        kept = len(prompt) + len(new) - 1  # no model has processed the last token yet
        target.rewind(kept)
        draft.rewind(min(kept, draft.length))
    return new
    ### END SOLUTION


# %% exercise="18.loop"
check("18.loop", loop)

# %% [markdown] exercise="18.whole"
# ## 4. All of it
#
# Join your `propose`, your `verify` and your `loop`. If one of the parts is still wrong, its own check explains it better
# than this one.
#
# The output has to follow the target's distribution at this temperature *exactly*, in as few forward passes as the draft
# allows. The check computes the distribution of whole outputs, and of the passes they took, on small models.
#
# | | | |
# |---|---|---|
# | `target`, `draft`, `prompt`, `k`, `count`, `end` | as above | |
# | `temperature` | number ≥ 0 | of both |
# | `random` | function | for both |
# | returns | list of tokens | the new ones |


# %% exercise="18.whole"
def speculate(target, draft, prompt: list[int], k: int, count: int, end: int, temperature: float, random) -> list[int]:
    """Lossless speculative decoding, out of your own parts."""
    ### BEGIN SOLUTION: your loop, with your drafter and your sampler in it

    def drafts(model, text, k):
        return propose(model, text, k, temperature, random)

    def emitted(logits, q, drafted):
        return verify(logits, q, drafted, temperature, random)

    return loop(target, draft, drafts, emitted, prompt, k, count, end)
    ### END SOLUTION


# %% exercise="18.whole"
check("18.whole", speculate)

# %% [markdown]
# ## The leaderboard
#
# Your decoder is exact, so the choice of drafter is a question of speed alone. Write a drafter in its own file:
#
# ```python
# def propose(draft, sequence, k):
#     """Up to k draft tokens after a sequence. `draft` is a small model with a cache; use it, or do not."""
#     return []
# ```
#
# and run `minispec capstone FILE.py`. Your own loop of exercise 3 and your verdict of lesson 05 drive it over four prompts.
# It counts only if the output equals plain decoding token for token, in float64. The score is tokens per forward pass of
# the target, where each pass of the draft model costs its share of the target's parameters. Our draft model at $k = 4$
# reaches 2.41. Which prompts are worth a lookup, and when is a draft token not worth its pass?
