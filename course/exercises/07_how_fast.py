# %% [markdown]
# # Exercises 07: how fast
#
# Five short functions answer every "how much faster?" of an interview: how many tokens a cycle yields, what it costs,
# how many to draft, and when to leave it. Each exercise stands alone.
#
# Throughout, $K$ is the number of drafts a cycle and $\alpha$ the chance that a draft is accepted, given that all before
# it were. Times are relative to one plain pass of the target: drafting one token costs $c$, and the pass that verifies
# all $K$ drafts costs $v$.

# %%
import math

from minispec.course.classroom import check, draw, hint
from minispec.theory import expected_tokens

# %% [markdown] exercise="07.expected_tokens"
# ## 1. The tokens of a cycle
#
# Drafts are accepted one after the other, up to the first rejection; then one token of the target's own follows, a
# correction or the bonus. $N$ is the number of tokens that come out. It exceeds $i$ exactly when the first $i$ drafts
# are accepted, so
#
# $$E[N] = \sum_{i=0}^{K} \Pr[N > i] = 1 + \alpha + \dots + \alpha^K = \frac{1 - \alpha^{K+1}}{1 - \alpha}$$
#
# The quotient has a hole. Your function has none: α = 1 is a draft that is always right.
#
# | | | |
# |---|---|---|
# | `alpha` | number in [0, 1] | both ends included |
# | `k` | whole number ≥ 0 | drafts a cycle; 0 is plain decoding |
# | returns | number ≥ 1 | $E[N]$ |
#
# (Name yours as the cell does. Later exercises use `expected_tokens(alpha, k)` of minispec, whatever you write here.)


# %% exercise="07.expected_tokens"
def my_expected_tokens(alpha: float, k: int) -> float:
    """How many tokens a cycle emits on average."""
    ### BEGIN SOLUTION: mind α = 1
    if alpha == 1:
        return k + 1
    return (1 - alpha ** (k + 1)) / (1 - alpha)
    ### END SOLUTION


# %% exercise="07.expected_tokens"
check("07.expected_tokens", my_expected_tokens)

# %% [markdown] exercise="07.position_acceptance"
# ## 2. Acceptance by position
#
# One α for all positions is a simplification. A real draft gets worse the further it runs ahead, and servers report the
# acceptance of each position. $\beta_j$ is the chance that draft $j$ is accepted *given that all before it were*.
#
# $$E[N] = 1 + \sum_{i=1}^{K} \prod_{j=1}^{i} \beta_j$$
#
# | | | |
# |---|---|---|
# | `betas` | list of K numbers in [0, 1] | one a position, at least one |
# | returns | number ≥ 1 | $E[N]$ |


# %% exercise="07.position_acceptance"
def tokens_by_position(betas: list[float]) -> float:
    """How many tokens a cycle emits on average, from the acceptance of each position."""
    ### BEGIN SOLUTION: how likely is it to get so far?
    kept = [math.prod(betas[:i]) for i in range(1, len(betas) + 1)]
    return 1 + sum(kept)
    ### END SOLUTION


# %% exercise="07.position_acceptance"
check("07.position_acceptance", tokens_by_position)

# %% [markdown] exercise="07.speedup"
# ## 3. The speed-up of a cycle
#
# Tokens are half of the truth, time is the other. Plain decoding needs one pass, time 1, for each token. A cycle drafts
# $K$ tokens one after the other, then verifies all of them in a single pass:
#
# ```
# plain      1      1      1      …                 one token each
# cycle      c  c  c  c  |   v   |                  E[N] tokens
# ```
#
# $$S = \frac{E[N]}{K \cdot c + v}$$
#
# The textbook has $v = 1$. Measured, it is somewhat more on a GPU, and a good deal more on a laptop or in a large batch.
#
# | | | |
# |---|---|---|
# | `alpha`, `k` | as above, `k` ≥ 1 | |
# | `c` | number ≥ 0 | cost of drafting one token; a lookup costs almost nothing |
# | `v` | number > 0 | cost of the verifying pass |
# | returns | number > 0 | $S$; below 1 speculation loses |
#
# You may use `expected_tokens(alpha, k)`.


# %% exercise="07.speedup"
def speedup(alpha: float, k: int, c: float, v: float) -> float:
    """How many times faster than plain decoding a cycle is."""
    ### BEGIN SOLUTION: plain time of what comes out, over the time of the cycle
    cycle = k * c + v
    return expected_tokens(alpha, k) / cycle
    ### END SOLUTION


# %% exercise="07.speedup"
check("07.speedup", speedup)

# %% [markdown]
# Draw yours. Where is the top of each line, and which line never rises above 1 by much?

# %%
draw("07.speedup", speedup)

# %% [markdown] exercise="07.best_k"
# ## 4. How many to draft
#
# Too few drafts leave tokens on the table, too many are drafted in vain. And on a real machine $v$ depends on $K$, often
# in steps: a pass over 8 tokens may cost as much as one over 5, and one over 9 much more.
#
# $$K^* = \arg\max_{K \ge 0} \frac{E[N]}{K \cdot c + v_K}, \qquad S = 1 \text{ for } K = 0$$
#
# | | | |
# |---|---|---|
# | `alpha`, `c` | numbers | as above |
# | `v` | list of numbers | `v[k]` is the cost of verifying k drafts; `v[0]` = 1; `len(v) - 1` is the longest draft allowed |
# | returns | whole number, 0 ≤ K ≤ len(v) − 1 | the best $K$; of equally good ones the smallest, so 0 if nothing *beats* plain decoding |
#
# You may use `expected_tokens(alpha, k)`.


# %% exercise="07.best_k"
def best_k(alpha: float, c: float, v: list[float]) -> int:
    """The draft length with the greatest speed-up; 0 where it is best not to draft."""
    ### BEGIN SOLUTION: try them all
    speedups = [1.0]
    for k in range(1, len(v)):
        speedups.append(expected_tokens(alpha, k) / (k * c + v[k]))
    return speedups.index(max(speedups))
    ### END SOLUTION


# %% exercise="07.best_k"
check("07.best_k", best_k)

# %% [markdown] exercise="07.when_it_pays"
# ## 5. Where it begins to pay
#
# "Speculation needs an acceptance above one half": you will hear it, and it is wrong. Find the α at which a cycle is
# exactly as fast as plain decoding. Above it speculation gains, below it loses.
#
# $$1 + \alpha + \dots + \alpha^K = K \cdot c + v$$
#
# For $K = 1$ and $v = 1$ you can read the answer off: it gains exactly when $\alpha > c$. For longer drafts there is no
# formula worth knowing, but $E[N]$ grows with α, so an interval that holds the answer can be halved again and again.
#
# | | | |
# |---|---|---|
# | `k` | whole number ≥ 1 | drafts a cycle |
# | `c`, `v` | numbers, c ≥ 0 and v ≥ 1 | as above |
# | returns | number | the α, to six decimals; `math.inf` if the cycle costs more than even α = 1 yields |
#
# You may use `expected_tokens(alpha, k)`.


# %% exercise="07.when_it_pays"
def break_even(k: int, c: float, v: float) -> float:
    """The acceptance at which a cycle of k drafts is exactly as fast as plain decoding."""
    ### BEGIN SOLUTION: is there such an α at all? then halve the interval that holds it
    if k * c + v > k + 1:
        return math.inf
    loses, gains = 0.0, 1.0
    while gains - loses > 1e-9:
        alpha = (loses + gains) / 2
        if expected_tokens(alpha, k) < k * c + v:
            loses = alpha
        else:
            gains = alpha
    return gains
    ### END SOLUTION


# %% exercise="07.when_it_pays"
check("07.when_it_pays", break_even)

# %% [markdown]
# Try yours on what you know of your own machine. How good must a draft be that costs a tenth of the target, if verifying
# four drafts costs 1.3 passes? `break_even(4, 0.1, 1.3)`
