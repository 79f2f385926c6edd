# %% [markdown]
# # Exercises 07: how fast
#
# A few short functions answer most questions of the kind "how much faster is it?": how many tokens a cycle emits, what it
# costs, how many tokens to draft, and when not to speculate at all. Each exercise stands alone.
#
# Throughout, $k$ is the number of draft tokens per cycle (γ in Leviathan's paper), and $\alpha$ is the probability that
# a draft token is accepted, given that all before it were. Times are measured in plain forward passes of the target:
# drafting one token costs $c$, and the forward pass that verifies all $k$ draft tokens costs $v$.

# %%
import math

from minispec.theory import expected_tokens
from minispec_course.check import check, hint, progress_table

# %% [markdown] exercise="07.expected_tokens"
# ## 1. The tokens of a cycle
#
# Draft tokens are accepted one after the other, up to the first rejection. Then one token of the target's own follows,
# a correction or the bonus. Let $N$ be the number of tokens that the cycle emits. It exceeds $i$ exactly when the first
# $i$ draft tokens are accepted, so
#
# $$E[N] = \sum_{i=0}^{k} \Pr[N > i] = 1 + \alpha + \dots + \alpha^k = \frac{1 - \alpha^{k+1}}{1 - \alpha}$$
#
# The quotient is undefined at α = 1, where every draft token is right. Your function should give the right value there as
# well.
#
# | | | |
# |---|---|---|
# | `alpha` | number in [0, 1] | both ends included |
# | `k` | whole number ≥ 0 | draft tokens per cycle; 0 is plain decoding |
# | returns | number ≥ 1 | $E[N]$ |
#
# (Please keep the name of the function. Later exercises use minispec's `expected_tokens(alpha, k)`, whatever you write
# here.)

# %% [markdown] exercise="07.position_acceptance"
# ## 2. Acceptance by position
#
# One α for all positions is a simplification: acceptance differs from position to position, and servers report it for each.
# Let $\beta_j$ be the probability that draft token $j$ is accepted, *given that all before it were*. Then
#
# $$E[N] = 1 + \sum_{i=1}^{k} \prod_{j=1}^{i} \beta_j$$
#
# | | | |
# |---|---|---|
# | `betas` | list of k numbers in [0, 1] | one per position, at least one |
# | returns | number ≥ 1 | $E[N]$ |


# %% exercise="07.position_acceptance"
def tokens_by_position(betas: list[float]) -> float:
    """How many tokens a cycle emits on average, from the acceptance of each position."""
    ### BEGIN SOLUTION: how likely is each draft token to be accepted together with all before it?
    kept = [math.prod(betas[:i]) for i in range(1, len(betas) + 1)]
    return 1 + sum(kept)
    ### END SOLUTION


# %% exercise="07.position_acceptance"
check("07.position_acceptance", tokens_by_position)

# %% [markdown] exercise="07.speedup"
# ## 3. The speed-up of a cycle
#
# More tokens per cycle do not help if the cycle takes too long. Plain decoding needs one forward pass, time 1, for each
# token. A cycle drafts $k$ tokens one after the other and then verifies all of them in a single pass:
#
# ```
# plain      1      1      1      …                 one token each
# cycle      c  c  c  c  |   v   |                  E[N] tokens
# ```
#
# $$S = \frac{E[N]}{k \cdot c + v}$$
#
# Many texts set $v = 1$. In our measurements it is close to 1 on a GPU at small batch sizes, and well above 1 on most
# CPUs and in large batches.
#
# | | | |
# |---|---|---|
# | `alpha`, `k` | as above, `k` ≥ 1 | |
# | `c` | number ≥ 0 | cost of drafting one token; a lookup costs almost nothing |
# | `v` | number > 0 | cost of the verify pass |
# | returns | number > 0 | $S$; speculation loses if it is below 1 |
#
# You may use minispec's own `expected_tokens(alpha, k)` for $E[N]$.

# %% [markdown] exercise="07.best_k"
# ## 4. How many to draft
#
# A draft that is too short misses tokens that would have been accepted, and one that is too long costs time for tokens
# that are discarded. On a real machine $v$ depends on $k$ as well, often in steps: a pass over 8 tokens may cost as
# much as one over 5, and a pass over 9 much more.
#
# $$k^* = \arg\max_{k \ge 0} \frac{E[N]}{k \cdot c + v_k}, \qquad S = 1 \text{ for } k = 0$$
#
# | | | |
# |---|---|---|
# | `alpha`, `c` | numbers | as above |
# | `v` | list of two or more numbers | `v[k]` is the cost of verifying k draft tokens; `v[0]` = 1; `len(v) - 1` is the longest draft allowed |
# | returns | whole number, 0 ≤ k ≤ len(v) − 1 | the best $k$; the smallest of equally good ones, so 0 if nothing *beats* plain decoding |
#
# You may use minispec's own `expected_tokens(alpha, k)` for $E[N]$.

# %% [markdown] exercise="07.when_it_pays"
# ## 5. Where it begins to pay
#
# You may hear that speculation needs an acceptance rate above one half. As a general rule that is wrong, because the answer
# depends on $k$, $c$ and $v$. Find the α at which a cycle is exactly as fast as plain decoding. Above it speculation wins;
# below it, it loses.
#
# $$1 + \alpha + \dots + \alpha^k = k \cdot c + v$$
#
# For $k = 1$ and $v = 1$ the answer is $\alpha = c$. For longer drafts there is no simple formula, but $E[N]$ grows with α,
# so you can find the solution by bisection: keep halving the interval that contains it.
#
# | | | |
# |---|---|---|
# | `k` | whole number ≥ 1 | draft tokens per cycle |
# | `c`, `v` | numbers, c ≥ 0 and v ≥ 1 | as above |
# | returns | number | the α, to six decimals; 1 if only α = 1 is enough, `math.inf` if the cycle costs more than even that yields |
#
# You may use minispec's own `expected_tokens(alpha, k)` for $E[N]$.


# %% exercise="07.when_it_pays"
def break_even(k: int, c: float, v: float) -> float:
    """The acceptance at which a cycle of k draft tokens is exactly as fast as plain decoding."""
    ### BEGIN SOLUTION: is there such an α at all? then halve the interval that contains it
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
# Try your function on an example from practice. If a draft model costs a tenth of the target, and verifying four draft
# tokens costs 1.3 plain passes, how good must it be? `break_even(4, 0.1, 1.3)`
