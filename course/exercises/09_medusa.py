# %% [markdown]
# # Exercises 09: Medusa
#
# Extra heads on the target guess several tokens ahead, none of them very surely. So several candidates of each are tried
# at once, as a tree, in one pass. You write all parts of that: the heads, the mask that makes a tree out of a pass, the
# rule that accepts, the shape of the tree, and the price of a rule that is faster and not exact. Each exercise stands
# alone.
#
# A tree is a list `parents`: node i guesses the token after node `parents[i]`, and −1 is the root, the last committed
# token. Parents come before their children.

# %%
import math

import torch
import torch.nn.functional as F

from minispec.course.classroom import check, draw, hint
from minispec.verify import accept_probability, pick, residual

# %% [markdown] exercise="09.medusa_head"
# ## 1. Heads that look ahead
#
# The target has read the token at place $t$. Its LM head makes of the last state $h$ the law of place $t + 1$. Head $k$
# reads the **same** $h$ and guesses further ahead:
#
# $$z_k = h + \text{SiLU}(W_k h + b_k), \qquad \text{logits}_k = W_\text{LM}[\text{head\_ids}]\; z_k, \qquad
# \text{head } k \text{ speaks of place } t + 1 + k$$
#
# To be cheap, the heads score only some tokens: those in `head_ids`, whose rows they borrow from the LM head.
#
# | | | |
# |---|---|---|
# | `h`, `t` | tensor `[d]`, whole number | the target's last (normed) state, and the place of the token it belongs to |
# | `weight`, `bias` | tensors `[K, d, d]`, `[K, d]` | $W_k$ and $b_k$ of heads 1 … K |
# | `lm_head` | tensor `[V, d]` | one row a token |
# | `head_ids` | tensor `[v]` | the tokens that the heads know, ascending |
# | returns | `(logits, tokens, places)` | logits `[K, v]`; for each head its likeliest token, as the target numbers tokens; and the place that it guesses |


# %% exercise="09.medusa_head"
def medusa_guesses(
    h: torch.Tensor,
    t: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    lm_head: torch.Tensor,
    head_ids: torch.Tensor,
) -> tuple[torch.Tensor, list[int], list[int]]:
    """What every head says: its logits, its best token, and the place that it speaks of."""
    ### BEGIN SOLUTION: all heads read the same h
    z = h + F.silu(weight @ h + bias)  # [K, d]
    logits = z @ lm_head[head_ids].T  # [K, v]
    tokens = head_ids[logits.argmax(-1)]
    places = [t + 1 + k for k in range(1, len(weight) + 1)]
    return logits, tokens.tolist(), places
    ### END SOLUTION


# %% exercise="09.medusa_head"
check("09.medusa_head", medusa_guesses)

# %% [markdown] exercise="09.tree_mask"
# ## 2. A tree in one pass
#
# The verify pass reads the last committed token and all nodes side by side, `[last, node 0, node 1, …]`, after `prefix`
# tokens that are in the cache. What makes a tree of that row are the mask and the positions: each node must see exactly
# the text that it would continue, and believe to stand where it would stand.
#
# ```
# last ── 0 ── 2          node 2 sees the prefix, last, 0 and itself; not 1
#     └── 1               0 and 1 are rivals for one place, and share a position
# ```
#
# | | | |
# |---|---|---|
# | `parents` | list of n whole numbers | −1 ≤ parents[i] < i |
# | `prefix` | whole number ≥ 0 | tokens in the cache, at positions 0 … prefix − 1 |
# | returns | `(mask, positions)` | a bool tensor `[n+1, prefix+n+1]`, True where the token of that row sees that column; and n + 1 positions |
#
# Columns are the tokens of the cache, then those of the pass, in its order.


# %% exercise="09.tree_mask"
def tree_mask(parents: list[int], prefix: int) -> tuple[torch.Tensor, list[int]]:
    """What each token of the verify pass sees, and where it stands."""
    ### BEGIN SOLUTION: a node sees what its parent sees, and itself
    size = 1 + len(parents)
    mask = torch.zeros(size, prefix + size, dtype=torch.bool)
    mask[0, : prefix + 1] = True
    positions = [prefix]
    for row, parent in enumerate(parents, start=1):
        mask[row] = mask[parent + 1]
        mask[row, prefix + row] = True
        positions.append(positions[parent + 1] + 1)
    return mask, positions
    ### END SOLUTION


# %% exercise="09.tree_mask"
check("09.tree_mask", tree_mask)

# %% [markdown]
# Your mask of a larger tree. p is the prefix, L the last token, the digits are nodes; the names are indented by depth.

# %%
draw("09.tree_mask", tree_mask)

# %% [markdown] exercise="09.tree_verify"
# ## 3. Several guesses for one place
#
# Siblings are rivals for the same place, and the target has one law for it. To accept "any that fits" is not exact, and
# neither is to judge each of them by $p$. The rule that is: whatever a rejected sibling leaves uncovered is the target of
# the next one.
#
# $$r_0 = p; \qquad \text{accept sibling } i \text{ with } \min\left(1, \frac{r_i(d_i)}{q_i(d_i)}\right); \qquad
# r_{i+1} = \mathrm{norm}([r_i - q_i]_+)$$
#
# If all are rejected, draw from the last $r$. With one sibling this is the rejection sampler of lesson 06.
#
# | | | |
# |---|---|---|
# | `p` | tensor `[V]` | the target's law at this place |
# | `q` | tensor `[m, V]` | row i: the law that sibling i was drawn from, given its elder siblings |
# | `siblings` | list of m ≥ 1 tokens | in the order in which they were drawn |
# | `random` | function | `random()` is a fresh number in [0, 1), to be compared or given to `pick` |
# | returns | `(which, token)` | the number of the accepted sibling and its token, or None and another token |
#
# You may use `accept_probability(p, q, token)`, `residual(p, q)` and `pick(law, number)` of minispec. The check draws
# `count` siblings from the law `draft`: independently, or all different, or (nothing is drawn then: each q is one-hot) it
# takes the likeliest ones. It computes the exact law of all that comes out.


# %% exercise="09.tree_verify"
def verify_siblings(p: torch.Tensor, q: torch.Tensor, siblings: list[int], random) -> tuple[int | None, int]:
    """Which of several guesses for one place is accepted, and the token that is emitted there."""
    ### BEGIN SOLUTION: what is still owed after each rejection?
    owed = p
    for number, (q_i, guess) in enumerate(zip(q, siblings, strict=True)):
        if random() < accept_probability(owed, q_i, guess):
            return number, guess
        owed = residual(owed, q_i)
    return None, pick(owed, random())
    ### END SOLUTION


# %% exercise="09.tree_verify"
check("09.tree_verify", verify_siblings)

# %% [markdown] exercise="09.tree_tokens"
# ## 4. The best shape of a tree
#
# The verify pass has room for so many nodes. Which candidates of which heads should they be? It is measured beforehand, on
# held-out text, how often candidate $i$ of head $k$ is right, given that everything before it was: $a_k(i)$.
#
# A node is a tuple: (1,) is the second candidate of head 1, (1, 0) the best candidate of head 2 behind it. It is accepted
# when all on its way are right, and adds a token then:
#
# $$E[N] = 1 + \sum_{\text{nodes}} \prod_{k=1}^{\text{depth}} a_k(i_k)$$
#
# Choose the `budget` nodes with the largest $E[N]$. They have to be a tree: no node without its parent.
#
# | | | |
# |---|---|---|
# | `accuracies` | list of K lists | `accuracies[k][i]` for head k + 1; all between 0 and 1 |
# | `budget` | whole number ≥ 1 | how many nodes; the root, which is no draft, is not counted |
# | returns | `(nodes, tokens)` | a list of tuples, in any order, and E[N] of that tree |
#
# There are no ties to break in the check.


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
# Your tree of eight nodes, for three heads. Behind each node: how often it is accepted.

# %%
draw("09.tree_tokens", best_shape)

# %% [markdown] exercise="09.typical"
# ## 5. What typical acceptance costs
#
# Medusa's own rule does not ask which law a draft came from. A draft passes when it is *likely enough* to the target, and
# the less decided the target is, the less is enough:
#
# $$d \text{ passes} \iff p(d) > \min\left(\varepsilon,\; \delta\, e^{-H(p)}\right), \qquad H(p) = -\sum_x p(x) \ln p(x)$$
#
# A draft that passes is emitted as it is. A draft that does not is replaced by a token drawn from $p$. Longer runs come
# out, and another law. Which one? The draft is drawn from $q$; compute the law of the emitted token, and its distance from
# $p$ (the total variation):
#
# $$\text{distance} = \frac{1}{2} \sum_x |\text{law}(x) - p(x)|$$
#
# | | | |
# |---|---|---|
# | `p`, `q` | tensors `[V]` | the target's law, which may hold zeros; the law of the draft |
# | `epsilon`, `delta` | numbers in (0, 1] | ε and δ |
# | returns | `(law, distance)` | a tensor `[V]` that sums to 1, and a number |


# %% exercise="09.typical"
def typical_distribution(p: torch.Tensor, q: torch.Tensor, epsilon: float, delta: float) -> tuple[torch.Tensor, float]:
    """The law of a token under typical acceptance, and how far it is from the target's."""
    ### BEGIN SOLUTION: which tokens pass? in which two ways can a token come out?
    possible = p[p > 0]
    entropy = -(possible * possible.log()).sum()
    passes = p > min(epsilon, delta * math.exp(-entropy))
    refused = q[~passes].sum()
    law = torch.where(passes, q, 0.0) + refused * p
    return law, float((law - p).abs().sum()) / 2
    ### END SOLUTION


# %% exercise="09.typical"
check("09.typical", typical_distribution)
