# %% [markdown]
# # Exercises 06: rejection sampling
#
# A greedy target says yes or no to a draft. A sampling target flips a coin, and the coin must be such that what comes
# out follows the target's law *exactly*. You build that sampler from its parts, and the checks compute the law of your
# output, branch by branch, instead of guessing it from samples. Each exercise stands alone.
#
# Throughout, `p` is the target's law and `q` the law that the draft was really drawn from, both after temperature and
# truncation. A law is a tensor `[V]` of probabilities.
#
# Where a function gets `random`, call `random()` for a fresh random number in [0, 1). You may compare it,
# `random() < 0.3`, or draw a token with it: `pick(law, random())`. Compute nothing else with it: that is what lets the
# check follow every branch.

# %%
import torch

from minispec.course.classroom import check, draw, hint
from minispec.verify import accept_probability, pick, residual

# %% [markdown] exercise="06.accept"
# ## 1. The coin
#
# A draft $d$ came from $q$ where it should have come from $p$. Accept it with a probability that removes exactly the
# surplus, and nothing more.
#
# $$\Pr[\text{accept } d] = \min\left(1, \frac{p(d)}{q(d)}\right)$$
#
# | | | |
# |---|---|---|
# | `p`, `q` | tensors `[V]` | two laws |
# | `token` | whole number | the draft $d$; it was drawn, so $q(d) > 0$ |
# | returns | number in [0, 1] | a float, or a tensor that holds one |


# %% exercise="06.accept"
def accept(p: torch.Tensor, q: torch.Tensor, token: int) -> float:
    """The probability to accept a draft that was drawn from q, for a target that wants p."""
    ### BEGIN SOLUTION: one line
    return min(1.0, float(p[token] / q[token]))
    ### END SOLUTION


# %% exercise="06.accept"
check("06.accept", accept)

# %% [markdown] exercise="06.residual"
# ## 2. The residual
#
# After a rejection a token is still owed. It must come from what accepted drafts leave uncovered, so that both together
# give $p$: this is the line that most wrong implementations get wrong.
#
# $$r = \frac{[p - q]_+}{\sum_x [p(x) - q(x)]_+}, \qquad [x]_+ = \max(x, 0)$$
#
# Why: accepted drafts contribute $q \cdot \min(1, p/q) = \min(p, q)$, and $p - \min(p, q) = [p - q]_+$.
#
# | | | |
# |---|---|---|
# | `p`, `q` | tensors `[V]` | two laws |
# | returns | tensor `[V]` | a law: it sums to 1. Where $p = q$ nothing is ever rejected: return $p$ |


# %% exercise="06.residual"
def my_residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """The law of the token that replaces a rejected draft."""
    ### BEGIN SOLUTION: what is left of p above q, as a law
    uncovered = torch.clamp(p - q, min=0)
    total = uncovered.sum()
    return uncovered / total if total > 0 else p.clone()
    ### END SOLUTION


# %% exercise="06.residual"
check("06.residual", my_residual)

# %% [markdown]
# Look at yours. It should be empty wherever the draft's bar is the higher one.

# %%
draw("06.residual", my_residual)

# %% [markdown] exercise="06.sampler"
# ## 3. The whole sampler
#
# One cycle, from drafts to emitted tokens: a chain of coins that ends at the first rejection. This function is the heart
# of every engine that speculates.
#
# For $i = 0 \dots \gamma - 1$: accept $d_i$ with probability $\min(1, p_i(d_i)/q_i(d_i))$. At the first rejection emit one
# token from $\mathrm{norm}([p_i - q_i]_+)$ and stop. If nothing was rejected, emit one from $p_\gamma$, the bonus.
#
# | | | |
# |---|---|---|
# | `p` | tensor `[γ+1, V]` | row $i$ is the law of place $i$; the last row is for the bonus |
# | `q` | tensor `[γ, V]` | row $i$ is the law that $d_i$ was drawn from |
# | `drafted` | list of γ tokens | may be empty |
# | `random` | function | `random()` is a fresh number in [0, 1) |
# | returns | list of tokens | accepted drafts and one token more: 1 to γ + 1 |
#
# You may use `accept_probability(p, q, token)`, `residual(p, q)` and `pick(law, number)` of minispec.


# %% exercise="06.sampler"
def sampler(p: torch.Tensor, q: torch.Tensor, drafted: list[int], random) -> list[int]:
    """All tokens that one cycle emits."""
    ### BEGIN SOLUTION: two ways to end: with a correction, or with the bonus
    emitted: list[int] = []
    for p_i, q_i, d in zip(p, q, drafted, strict=False):
        if random() < accept_probability(p_i, q_i, d):
            emitted.append(d)
        else:
            return [*emitted, pick(residual(p_i, q_i), random())]
    return [*emitted, pick(p[-1], random())]
    ### END SOLUTION


# %% exercise="06.sampler"
check("06.sampler", sampler)

# %% [markdown]
# The check was exact. To see it happen, call your function with real random numbers:
#
# ```python
# from random import random
#
# p, q = torch.tensor([[0.5, 0.5], [0.2, 0.8]]), torch.tensor([[0.75, 0.25]])
# [sampler(p, q, [pick(q[0], random())], random) for _ in range(10)]
# ```

# %% [markdown] exercise="06.one_hot"
# ## 4. A draft that was not drawn
#
# A lookup in the prompt, or a draft model that takes its favourite, proposes one token and could have proposed no other:
# $q$ is one-hot. Such drafts are just as lossless, and the rule becomes simpler than the general one.
#
# $$q(d) = 1: \qquad \Pr[\text{accept}] = p(d), \qquad r = p \text{ without } d \text{, renormalised}$$
#
# | | | |
# |---|---|---|
# | `p` | tensor `[V]` | the target's law; $p(d)$ may be 0 or 1 |
# | `token` | whole number | the draft $d$ |
# | `random` | function | `random()` is a fresh number in [0, 1). You need to call it only once |
# | returns | `(accepted, emitted)` | True and $d$, or False and another token |


# %% exercise="06.one_hot"
def verify_one_hot(p: torch.Tensor, token: int, random) -> tuple[bool, int]:
    """Whether a draft that was not drawn is accepted, and the token in its place."""
    ### BEGIN SOLUTION: what has probability p(d), and leaves p without d otherwise?
    wanted = pick(p, random())
    return wanted == token, wanted
    ### END SOLUTION


# %% exercise="06.one_hot"
check("06.one_hot", verify_one_hot)

# %% [markdown] exercise="06.top_p"
# ## 5. The law you really drew from
#
# A draft may be sampled in any way you like, with its own temperature and truncation: exactness does not care, as long
# as the $q$ that is reported is the law that was used. Draw one token with top-p, and report the right $q$.
#
# Keep the smallest set of likeliest tokens whose mass reaches `top_p` (the token that reaches it is the last one kept),
# give the others 0, and renormalise:
#
# $$q(x) = \frac{\ell(x)\,[x \in S]}{\sum_{y \in S} \ell(y)}, \qquad \sum_{y \in S} \ell(y) \ge \text{top\_p}$$
#
# | | | |
# |---|---|---|
# | `law` | tensor `[V]` | what the draft model said, $\ell$; no two tokens are equally likely |
# | `top_p` | number in (0, 1] | how much of the mass to keep, at least |
# | `random` | function | `random()` is a fresh number in [0, 1) |
# | returns | `(token, q)` | the drawn token, and the law it was drawn from, a tensor `[V]` |


# %% exercise="06.top_p"
def draft_top_p(law: torch.Tensor, top_p: float, random) -> tuple[int, torch.Tensor]:
    """Draw a draft with top-p: the token, and the law that it really came from."""
    ### BEGIN SOLUTION: sort, keep, renormalise, draw
    likeliest_first = law.argsort(descending=True)
    mass_before = law[likeliest_first].cumsum(0) - law[likeliest_first]
    kept = likeliest_first[mass_before < top_p]
    q = torch.zeros_like(law)
    q[kept] = law[kept] / law[kept].sum()
    return pick(q, random()), q
    ### END SOLUTION


# %% exercise="06.top_p"
check("06.top_p", draft_top_p)
