# %% [markdown]
# # Exercises 06: rejection sampling
#
# A greedy target either accepts a draft token or does not. A target that samples accepts it with some probability, chosen
# so that the emitted tokens follow the target's distribution *exactly* (Leviathan et al., 2023, arXiv:2211.17192). You
# build that sampler from its parts. The checks do not estimate the distribution of your output from samples; they compute
# it, branch by branch. Each exercise stands alone.
#
# Throughout, `p` is the target's distribution, and `q` is the distribution that the draft token was really sampled from, both
# after temperature and truncation. A distribution is a tensor `[V]` of probabilities.
#
# If a function is given `random`, call `random()` for a fresh random number in [0, 1). You may compare it, as in
# `random() < 0.3`, or sample a token with it: `pick(probs, random())`. Do nothing else with it: the check follows every
# branch that a random number can open, and it can do so only for these two uses.

# %%
import torch

from minispec.verify import accept_probability, pick, residual
from minispec_course.check import check, hint, progress_table

# %% [markdown] exercise="06.accept"
# ## 1. The acceptance probability
#
# A draft token $d$ was sampled from $q$, although it should come from $p$. If $q$ gives it more probability than $p$ does,
# it is proposed too often. Accept it with a probability that removes exactly this excess.
#
# $$\Pr[\text{accept } d] = \min\left(1, \frac{p(d)}{q(d)}\right)$$
#
# | | | |
# |---|---|---|
# | `p`, `q` | tensors `[V]` | two distributions |
# | `token` | whole number | the draft token $d$; it was sampled, so $q(d) > 0$ |
# | returns | number in [0, 1] | a float, or a tensor that holds one |

# %% [markdown] exercise="06.residual"
# ## 2. The residual
#
# After a rejection the position still needs a token. It must be sampled from the part of $p$ that accepted draft tokens leave
# uncovered, so that the two ways of emitting a token add up to $p$. Sampling it from $p$ itself is a common mistake.
#
# $$r = \frac{[p - q]_+}{\sum_x [p(x) - q(x)]_+}, \qquad [x]_+ = \max(x, 0)$$
#
# The reason: accepted draft tokens contribute $q \cdot \min(1, p/q) = \min(p, q)$, and $p - \min(p, q) = [p - q]_+$.
#
# | | | |
# |---|---|---|
# | `p`, `q` | tensors `[V]` | two distributions |
# | returns | tensor `[V]` | a distribution, so it sums to 1. If $p$ exceeds $q$ nowhere (both agree up to rounding), return $p$ |

# %% [markdown] exercise="06.sampler"
# ## 3. The whole sampler
#
# This function takes the $k$ draft tokens of one cycle and returns the tokens that are emitted. Every lossless engine
# has such a function.
#
# For $i = 0 \dots k - 1$, accept $d_i$ with probability $\min(1, p_i(d_i)/q_i(d_i))$. At the first rejection emit the
# correction, one token sampled from $\mathrm{norm}([p_i - q_i]_+)$, and stop. If nothing was rejected, emit the bonus,
# sampled from $p_k$.
#
# | | | |
# |---|---|---|
# | `p` | tensor `[k + 1, V]` | `p[i]` is the target's distribution at position $i$; `p[-1]` is for the bonus |
# | `q` | tensor `[k, V]` | `q[i]` is the distribution that $d_i$ was sampled from |
# | `drafted` | list of k tokens | may be empty |
# | `random` | function | `random()` is a fresh number in [0, 1) |
# | returns | list of tokens | the accepted draft tokens and one more: 1 to k + 1 tokens |
#
# You may use minispec's `accept_probability(p, q, token)`, `residual(p, q)` and `pick(probs, number)`.

# %% [markdown]
# The check computed the exact distribution. To see your function at work, call it with real random numbers:
#
# ```python
# from random import random
#
# p, q = torch.tensor([[0.5, 0.5], [0.2, 0.8]]), torch.tensor([[0.75, 0.25]])
# [sampler(p, q, [pick(q[0], random())], random) for _ in range(10)]
# ```

# %% [markdown] exercise="06.one_hot"
# ## 4. A draft token that was not sampled
#
# A lookup in the prompt, or a draft model that decodes greedily, proposes one token and could have proposed no other, so
# $q$ is one-hot. Verification is just as lossless for such a draft token, and the rule is simpler than the general one.
#
# $$q(d) = 1: \qquad \Pr[\text{accept}] = p(d), \qquad r = p \text{ without } d \text{, renormalised}$$
#
# | | | |
# |---|---|---|
# | `p` | tensor `[V]` | the target's distribution; $p(d)$ may be 0 or 1 |
# | `token` | whole number | the draft token $d$ |
# | `random` | function | `random()` is a fresh number in [0, 1). You need to call it only once |
# | returns | `(accepted, emitted)` | True and $d$, or False and another token |


# %% exercise="06.one_hot"
def verify_one_hot(p: torch.Tensor, token: int, random) -> tuple[bool, int]:
    """Whether a draft token that was not sampled is accepted, and the emitted token."""
    ### BEGIN SOLUTION: what has probability p(d), and leaves p without d otherwise?
    wanted = pick(p, random())
    return wanted == token, wanted
    ### END SOLUTION


# %% exercise="06.one_hot"
check("06.one_hot", verify_one_hot)

# %% [markdown] exercise="06.top_p"
# ## 5. The distribution you really sampled from
#
# A draft token may be sampled in any way, with its own temperature and truncation. The output stays exact as long as
# the $q$ that is reported is the distribution that was used. Sample one token with top-p, and report the right $q$.
#
# Keep the smallest set $S$ of most likely tokens whose mass reaches `top_p` (the token that reaches it is the last one
# kept; a mass equal to `top_p` reaches it, and in such cases the check's sums are exact in floating point). Give the others
# 0, and renormalise:
#
# $$q(x) = \frac{m(x)\,[x \in S]}{\sum_{y \in S} m(y)}, \qquad \sum_{y \in S} m(y) \ge \text{top\_p}$$
#
# | | | |
# |---|---|---|
# | `probs` | tensor `[V]` | the draft model's distribution $m$ before truncation; no two tokens are equally likely |
# | `top_p` | number in (0, 1] | how much of the mass to keep, at least |
# | `random` | function | `random()` is a fresh number in [0, 1) |
# | returns | `(token, q)` | the sampled token, and the distribution that it was sampled from, a tensor `[V]` |


# %% exercise="06.top_p"
def draft_top_p(probs: torch.Tensor, top_p: float, random) -> tuple[int, torch.Tensor]:
    """Sample a draft token with top-p: the token, and the distribution that it really came from."""
    ### BEGIN SOLUTION: sort, keep, renormalise, sample
    likeliest_first = probs.argsort(descending=True)
    mass_before = probs[likeliest_first].cumsum(0) - probs[likeliest_first]
    kept = likeliest_first[mass_before < top_p]
    q = torch.zeros_like(probs)
    q[kept] = probs[kept] / probs[kept].sum()
    return pick(q, random()), q
    ### END SOLUTION


# %% exercise="06.top_p"
check("06.top_p", draft_top_p)
