# %% [markdown]
# # Exercises 10: EAGLE and DFlash
#
# EAGLE and DFlash draft from the target's hidden states instead of its tokens alone. EAGLE drafts token by token and
# grows a tree; DFlash fills a whole block of blanks in one forward pass. Most mistakes in such drafters are off by one
# position: which state belongs to which token, and which position may attend to which. The exercises are independent of
# one another.
#
# Fill in a function, run its cell, then run the check below it.

# %%
import torch

from minispec_course.check import check, draw, hint, progress_table

# %% [markdown] exercise="10.features"
# ## 1. Which feature goes with which token
#
# At every position $t$ that the target has processed, EAGLE-3 (Li et al., 2025, arXiv:2503.01840) takes three of its
# residual streams, from a low, a middle and a high layer, and fuses them into one feature. Streams tend to grow with
# the depth of the layer, so each is normalised first (as in EAGLE-3.1; EAGLE-3 itself uses them raw):
#
# $$g_t = \text{fc}\,\bigl[\,\widehat{h}^{\text{low}}_t;\; \widehat{h}^{\text{mid}}_t;\; \widehat{h}^{\text{high}}_t\bigr],
# \qquad \widehat{h} = \frac{h}{\sqrt{\operatorname{mean}(h^2) + \varepsilon}}$$
#
# The feature $g_t$ knows which tokens the target considers likely next, but not which of them was *sampled*. So entry
# $t$ of the drafter's input is $g_t$ together with the token that came **after** it, and the entry predicts the token
# after that.
#
# ```
# position     0     1     2     3
# tokens      x0    x1    x2    x3        x3 was just sampled: the target has not processed it
# features    g0    g1    g2
# entries     (g0, x1)    (g1, x2)    (g2, x3)
# ```
#
# | | | |
# |---|---|---|
# | `streams` | tensor `[3, T, d]` | low, middle and high stream at the T positions that the target has processed |
# | `text` | list of T + 1 tokens | the target has not processed the last one |
# | `fc`, `eps` | tensor `[d, 3d]`, number ≥ 0 | $\text{fc}\,x$ is the matrix times x; ε of the norm |
# | returns | `(features, tokens, positions)` | for entries 0 … T − 1: a tensor `[T, d]`, the token paired with each, and the position that each entry predicts |

# %% [markdown] exercise="10.block_mask"
# ## 2. What a block attends to
#
# DFlash (Chen et al., 2026, arXiv:2602.06036) drafts from a position $n$, the *anchor*: token $x_n$ is known, but the
# target has not processed it. The input is a block, `[x_n, blank, blank, …]`, at positions $n, n+1, \dots$, and all
# blanks are filled at once. The target's states of earlier positions are the *context*.
#
# - Each position of a block attends to the context strictly **before** its anchor: the target's states at $t < n$.
# - Each position attends to **all** of its own block, in both directions.
#
# In training, many anchors of one sequence share a forward pass: their blocks are placed side by side, and no block attends
# to another.
#
# ```
# anchors [1, 3], block 2        context     block 0    block 1
# block 0, both positions        # . . .       # #        . .
# block 1, both positions        # # # .       . .        # #
# ```
#
# | | | |
# |---|---|---|
# | `anchors` | list of A whole numbers | the position n of each block, 0 ≤ n ≤ `length`, in any order; two blocks may have the same anchor, and even then do not attend to each other |
# | `length` | whole number | positions of the context: 0 … length − 1 |
# | `block` | whole number B ≥ 2 | positions of a block: the last token and B − 1 blanks |
# | returns | `(mask, positions)` | a bool tensor `[A·B, length + A·B]`, True where a row attends to a column; the columns are the context, then all blocks; and A · B position ids |

# %% [markdown] exercise="10.dynamic_tree"
# ## 3. A tree that grows where it is likely
#
# A tree of fixed shape spends as many nodes on an obvious continuation as on a doubtful one. EAGLE-2 (Li et al., 2024,
# arXiv:2406.16858) uses the draft's own probabilities instead: the tree grows deep where the draft model is certain and
# wide where it is not. The value of a node is the probability that its whole path is right, its **joint** probability, the
# product along the path.
#
# 1. In the first pass, expand the root with `expand([()])`. Its children are depth 1.
# 2. In each further pass expand the `width` nodes of the newest depth with the largest joint probability, all in **one
#    call**. Their children are the next depth. After `depth` passes the tree has `depth` levels.
# 3. Among all nodes of all depths, keep the `budget` with the largest joint probability.
#
# A child's joint probability is never larger than its parent's, so the kept nodes form a tree.
#
# | | | |
# |---|---|---|
# | `expand` | function | `expand(paths)` is one forward pass of the draft: for each path (a tuple of tokens, `()` is the root) the list of its children, as pairs (token, probability), at most `width` |
# | `depth`, `width`, `budget` | whole numbers ≥ 1 | passes; nodes to expand in each; nodes to keep |
# | returns | list of paths | the kept nodes, in any order; each is the tuple of tokens that leads to it, its own included |
#
# In the cases of the check the draft is a toy: `first` is its distribution of the first token, and `after[x]` its
# distribution after token x. There are no ties to break.


# %% exercise="10.dynamic_tree"
def grow_tree(expand, depth: int, width: int, budget: int) -> list[tuple[int, ...]]:
    """The most probable nodes of a tree that grows along its most probable branches."""
    ### BEGIN SOLUTION: one pass per depth; at the end all nodes compete
    joint = {(): 1.0}
    newest = [()]
    for _ in range(depth):
        chosen = sorted(newest, key=joint.get, reverse=True)[:width]
        newest = []
        for path, children in zip(chosen, expand(chosen), strict=True):
            for token, probability in children:
                child = (*path, token)
                joint[child] = joint[path] * probability
                newest.append(child)
    joint.pop(())
    return sorted(joint, key=joint.get, reverse=True)[:budget]
    ### END SOLUTION


# %% exercise="10.dynamic_tree"
check("10.dynamic_tree", grow_tree)

# %% [markdown]
# Here is your tree of eight nodes. The number after each token is the joint probability of its path.

# %%
draw("10.dynamic_tree", grow_tree)
