# %% [markdown]
# # Exercises 09: Medusa
#
# Medusa (Cai et al., 2024, arXiv:2401.10774) puts extra heads on the target that predict several tokens ahead. None of them
# is very certain, so several candidates of each are verified together, as a tree, in one forward pass. This set covers all
# parts of that: the heads, the mask that turns a pass into a tree, the acceptance rule, the shape of the tree, and the bias
# of a rule that accepts more but is not exact. The exercises are independent of one another.
#
# A tree is a list `parents`: node i is a candidate for the token after node `parents[i]`, and −1 is the root, the last
# committed token. Parents come before their children.

# %%
import math

import torch
import torch.nn.functional as F

from minispec.verify import accept_probability, pick, residual
from minispec_course.check import check, draw, hint, progress_table

# %% [markdown] exercise="09.medusa_head"
# ## 1. Heads that look ahead
#
# The target has processed the token at position $t$. Its LM head turns the last state $h$ into the distribution of
# position $t + 1$. Head $k$ is given the **same** $h$ and predicts further ahead:
#
# $$z_k = h + \text{SiLU}(W_k h + b_k), \qquad \text{logits}_k = W_\text{LM}[\text{head\_ids}]\; z_k, \qquad
# \text{head } k \text{ predicts position } t + 1 + k$$
#
# To be cheap, the heads score only the tokens in `head_ids`, and borrow their rows from the LM head matrix. With a small
# vocabulary, `head_ids` may list all tokens.
#
# | | | |
# |---|---|---|
# | `h`, `t` | tensor `[d]`, whole number | the target's last (normalised) state, and the position of the token it belongs to |
# | `weight`, `bias` | tensors `[K, d, d]`, `[K, d]` | $W_k$ and $b_k$ of all heads, head 1 first |
# | `lm_head` | tensor `[V, d]` | a matrix with one row per token |
# | `head_ids` | tensor `[v]` | the tokens that the heads score, ascending |
# | returns | `(logits, tokens, positions)` | logits `[K, v]`; for each head its most probable token, as an id of the target's vocabulary; and the position that it predicts |


# %% exercise="09.medusa_head"
def medusa_guesses(
    h: torch.Tensor, t: int, weight: torch.Tensor, bias: torch.Tensor, lm_head: torch.Tensor, head_ids: torch.Tensor
) -> tuple[torch.Tensor, list[int], list[int]]:
    """What every head predicts: its logits, its best token, and the position of that token."""
    ### BEGIN SOLUTION: all heads are given the same h
    z = h + F.silu(weight @ h + bias)  # [K, d]
    logits = z @ lm_head[head_ids].T  # [K, v]
    tokens = head_ids[logits.argmax(-1)]
    positions = [t + 1 + k for k in range(1, len(weight) + 1)]
    return logits, tokens.tolist(), positions
    ### END SOLUTION


# %% exercise="09.medusa_head"
check("09.medusa_head", medusa_guesses)

# %% [markdown] exercise="09.tree_mask"
# ## 2. A tree in one pass
#
# The verify pass processes the last committed token and all nodes as one sequence, `[last, node 0, node 1, …]`, after
# `prefix` tokens that are in the cache. The mask and the position ids turn this sequence into a tree: each node must attend
# to exactly the tokens that it would continue, and have the position it would have in that sequence.
#
# ```
# last ── 0 ── 2          node 2 attends to the prefix, last, 0 and itself; not to 1
#     └── 1               0 and 1 are alternatives for one position, and share it
# ```
#
# | | | |
# |---|---|---|
# | `parents` | list of n ≥ 1 whole numbers | −1 ≤ parents[i] < i |
# | `prefix` | whole number ≥ 0 | tokens in the cache, at positions 0 … prefix − 1 |
# | returns | `(mask, positions)` | a bool tensor `[n+1, prefix+n+1]`, True where the token of that row attends to the token of that column; and n + 1 positions |
#
# The columns of the mask are the tokens of the cache, followed by those of the pass in their order.

# %% [markdown] exercise="09.tree_verify"
# ## 3. Several candidates for one position
#
# Siblings are candidates for the same position, and the target has one distribution $p$ there. Accepting any sibling that
# fits is not exact, and neither is testing each of them against $p$. The exact rule (Miao et al., 2024, arXiv:2305.09781)
# tests the next sibling against what a rejected one leaves, the residual:
#
# $$r_0 = p; \qquad \text{accept sibling } i \text{ with probability } \min\left(1, \frac{r_i(d_i)}{q_i(d_i)}\right); \qquad
# r_{i+1} = \mathrm{norm}([r_i - q_i]_+)$$
#
# Here $d_i$ is sibling $i$ and $q_i$ the distribution it was sampled from. If all siblings are rejected, sample from
# the last $r$. With one sibling this is the rejection sampler of lesson 06.
#
# | | | |
# |---|---|---|
# | `p` | tensor `[V]` | the target's distribution at this position |
# | `q` | tensor `[m, V]` | `q[i]` is the distribution that sibling i was sampled from, given the siblings before it |
# | `siblings` | list of m ≥ 1 tokens | in the order in which they were sampled |
# | `random` | function | `random()` is a fresh number in [0, 1), to be compared or given to `pick` |
# | returns | `(which, token)` | the number of the accepted sibling and its token, or None and another token |
#
# You may use minispec's `accept_probability(p, q, token)`, `residual(p, q)` and `pick(distribution, number)`. The check
# chooses `count` siblings from the distribution `draft`: sampled independently, sampled without replacement, or the most
# probable ones (nothing is sampled then, and each q is one-hot). It computes the exact distribution of the outcome.

# %% [markdown] exercise="09.tree_tokens"
# ## 4. The best shape of a tree
#
# The verify pass has room for a limited number of nodes. Which candidates of which heads should they be? Measurements on
# held-out sequences say how often candidate $i$ of head $k$ is right, given that everything before it was. Call this
# accuracy $a_k(i)$.
#
# A node is a tuple: (1,) is the second candidate of head 1, and (1, 0) the best candidate of head 2 after it. A node is
# accepted if every node on its path is right, and then adds one token. So the expected number of tokens per cycle is
#
# $$E[N] = 1 + \sum_{\text{nodes}} \prod_{k=1}^{\text{depth}} a_k(i_k)$$
#
# where $i_k$ is the candidate of head $k$ on the path. Choose the `budget` nodes with the largest $E[N]$. They have to
# form a tree, so no node may be chosen without its parent.
#
# | | | |
# |---|---|---|
# | `accuracies` | list of K lists | `accuracies[k][i]` for head k + 1; all between 0 and 1, the likeliest candidate first |
# | `budget` | whole number ≥ 1 | how many nodes; the root is not a draft token and does not count |
# | returns | `(nodes, tokens)` | a list of tuples, in any order, and E[N] of that tree |
#
# If the heads have fewer nodes than `budget`, take all of them. There are no ties to break in the check.


# %% exercise="09.tree_tokens"
def best_shape(accuracies: list[list[float]], budget: int) -> tuple[list[tuple[int, ...]], float]:
    """The tree with the most expected tokens, and how many these are."""
    ### BEGIN SOLUTION: how often is a node accepted? can a child be worth more than its parent?
    open_nodes = {(i,): accuracy for i, accuracy in enumerate(accuracies[0])}  # node → how often it is accepted
    nodes, tokens = [], 1.0
    while open_nodes and len(nodes) < budget:
        node = max(open_nodes, key=open_nodes.get)
        reach = open_nodes.pop(node)
        nodes.append(node)
        tokens += reach
        if len(node) < len(accuracies):
            for i, accuracy in enumerate(accuracies[len(node)]):
                open_nodes[(*node, i)] = reach * accuracy
    return nodes, tokens
    ### END SOLUTION


# %% exercise="09.tree_tokens"
check("09.tree_tokens", best_shape)

# %% [markdown]
# Here is your tree of eight nodes for three heads. The number after each node says how often it is accepted.

# %%
draw("09.tree_tokens", best_shape)

# %% [markdown] exercise="09.typical"
# ## 5. What typical acceptance costs
#
# Medusa's own acceptance rule does not use the distribution that a draft token came from. A draft token $d$ passes if the
# target gives it *enough* probability, where the bar is lower the higher the entropy $H(p)$ of the target's distribution:
#
# $$d \text{ passes} \iff p(d) > \min\left(\varepsilon,\; \delta\, e^{-H(p)}\right), \qquad H(p) = -\sum_x p(x) \ln p(x)$$
#
# A draft token that passes is emitted as it is. One that does not is replaced by a token sampled from $p$. More draft
# tokens are accepted this way, but the emitted token no longer follows $p$. The draft token is sampled from $q$; compute
# the distribution $e$ of the emitted token, and its total variation distance from $p$:
#
# $$\text{distance} = \frac{1}{2} \sum_x |e(x) - p(x)|$$
#
# | | | |
# |---|---|---|
# | `p`, `q` | tensors `[V]` | the target's distribution, which may contain zeros; the draft's distribution |
# | `epsilon`, `delta` | numbers in (0, 1] | ε and δ |
# | returns | `(emitted, distance)` | a tensor `[V]` that sums to 1, and a number |


# %% exercise="09.typical"
def typical_distribution(p: torch.Tensor, q: torch.Tensor, epsilon: float, delta: float) -> tuple[torch.Tensor, float]:
    """The distribution of a token under typical acceptance, and how far it is from the target's."""
    ### BEGIN SOLUTION: which tokens pass? in which two ways can a token be emitted?
    possible = p[p > 0]
    entropy = -(possible * possible.log()).sum()
    passes = p > min(epsilon, delta * math.exp(-entropy))
    refused = q[~passes].sum()
    emitted = torch.where(passes, q, 0.0) + refused * p
    return emitted, float((emitted - p).abs().sum()) / 2
    ### END SOLUTION


# %% exercise="09.typical"
check("09.typical", typical_distribution)
