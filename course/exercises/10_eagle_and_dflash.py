# %% [markdown]
# # Exercises 10: EAGLE and DFlash
#
# Two drafters that read the target's mind instead of its text: its hidden states. EAGLE writes token by token on top of
# them and grows a tree; DFlash fills in a whole block of blanks at once. Both stand and fall with questions of *which
# place*: which state goes with which token, who may see what. Each exercise stands alone.
#
# Fill in the function, run its cell, run the check below it.

# %%
import torch

from minispec.course.classroom import check, draw, hint

# %% [markdown] exercise="10.features"
# ## 1. Which feature goes with which token
#
# At every place $t$ that the target has read, EAGLE takes three of its residual streams, from a low, a middle and a high
# layer, and fuses them to one feature. Streams grow by orders of magnitude from layer to layer, so each is normed first:
#
# $$g_t = \text{fc}\,\bigl[\,\widehat{h}^{\text{low}}_t;\; \widehat{h}^{\text{mid}}_t;\; \widehat{h}^{\text{high}}_t\bigr],
# \qquad \widehat{h} = \frac{h}{\sqrt{\operatorname{mean}(h^2) + \varepsilon}}$$
#
# $g_t$ knows what the target expects next. It cannot know which token was then *drawn*: the draft would hesitate between
# all of them. So entry $t$ of the drafter's input is $g_t$ together with the token that came **after** it, and what the
# entry predicts is the token after that.
#
# ```
# place        0     1     2     3
# text        x0    x1    x2    x3        x3 was just drawn: the target has not read it
# features    g0    g1    g2
# entries     (g0, x1)    (g1, x2)    (g2, x3)
# ```
#
# | | | |
# |---|---|---|
# | `streams` | tensor `[3, T, d]` | low, middle and high stream at the T places that the target has read |
# | `text` | list of T + 1 tokens | the last one has not been read |
# | `fc`, `eps` | tensor `[d, 3d]`, number ≥ 0 | $\text{fc}\,x$ is the matrix times x; ε of the norm |
# | returns | `(features, tokens, places)` | for entries 0 … T − 1: a tensor `[T, d]`, the token beside each, and the place of the token that each entry predicts |


# %% exercise="10.features"
def eagle_entries(
    streams: torch.Tensor, text: list[int], fc: torch.Tensor, eps: float
) -> tuple[torch.Tensor, list[int], list[int]]:
    """What EAGLE's layer reads: a feature and a token for each entry, and of which place the entry speaks."""
    ### BEGIN SOLUTION: norm each, join, fc; then, which token does feature t lack?
    size = torch.sqrt(streams.square().mean(-1, keepdim=True) + eps)  # [3, T, 1]
    low, middle, high = streams / size
    features = torch.cat([low, middle, high], dim=-1) @ fc.T  # [T, d]
    drawn_next = text[1:]
    return features, drawn_next, [t + 2 for t in range(len(features))]
    ### END SOLUTION


# %% exercise="10.features"
check("10.features", eagle_entries)

# %% [markdown] exercise="10.block_mask"
# ## 2. What a block sees
#
# DFlash drafts from a place $n$, the *anchor*: token $x_n$ is there, but the target has not read it. Its input is a block,
# `[x_n, blank, blank, …]`, at the places $n, n+1, \dots$, and beside it stand the target's states of earlier places, the
# *context*. All blanks are filled in at once.
#
# - Each place of a block sees the context strictly **before** its anchor: the target's states at $t < n$.
# - Each place sees **all** of its own block, ahead and behind.
#
# In training many anchors of one text share a pass: their blocks lie side by side, and no block sees another.
#
# ```
# anchors [1, 3], block 2        context     block 0    block 1
# block 0, its two places        # . . .       # #        . .
# block 1, its two places        # # # .       . .        # #
# ```
#
# | | | |
# |---|---|---|
# | `anchors` | list of A whole numbers | the place n of each block, in any order |
# | `length` | whole number | places of the context: 0 … length − 1 |
# | `block` | whole number B ≥ 2 | places of a block: the last token and B − 1 blanks |
# | returns | `(mask, positions)` | a bool tensor `[A·B, length + A·B]`, True where seen: columns are the context, then all blocks; and A · B positions |


# %% exercise="10.block_mask"
def block_mask(anchors: list[int], length: int, block: int) -> tuple[torch.Tensor, list[int]]:
    """What every place of every block sees, and where it stands in the text."""
    ### BEGIN SOLUTION: whose row is it? then two comparisons
    owner = torch.arange(len(anchors)).repeat_interleave(block)  # [A·B]
    anchor = torch.tensor(anchors)[owner]  # [A·B]
    before = torch.arange(length) < anchor[:, None]  # [A·B, length]
    own = owner == owner[:, None]  # [A·B, A·B]
    positions = [n + j for n in anchors for j in range(block)]
    return torch.cat([before, own], dim=1), positions
    ### END SOLUTION


# %% exercise="10.block_mask"
check("10.block_mask", block_mask)

# %% [markdown]
# Your mask of three blocks over a text of eight tokens.

# %%
draw("10.block_mask", block_mask)

# %% [markdown] exercise="10.dynamic_tree"
# ## 3. A tree that grows where it is likely
#
# A fixed tree spends as much on an obvious continuation as on a doubtful one. EAGLE's draft knows its own probabilities, so
# the tree can grow where it pays: deep where the draft is sure, wide where it is not. A node's worth is the chance that all
# of its path is right: its **joint** probability, the product along the path.
#
# 1. Pass 1: expand the root, `expand([()])`. Its children are depth 1.
# 2. In each further pass expand the `width` nodes of the newest depth with the largest joint probability, all in **one
#    call**. Their children are the next depth. After `depth` passes the tree has `depth` levels.
# 3. Of all nodes of all depths keep the `budget` with the largest joint probability.
#
# A child's joint probability is never above its parent's, so what is kept is a tree again.
#
# | | | |
# |---|---|---|
# | `expand` | function | `expand(paths)` is one pass of the draft: for each path (a tuple of tokens, `()` is the root) the list of its children, as pairs (token, probability), at most `width` |
# | `depth`, `width`, `budget` | whole numbers ≥ 1 | passes; nodes to expand in each; nodes to keep |
# | returns | list of paths | the kept nodes, in any order; each is the tuple of tokens that leads to it, its own included |
#
# In the cases of the check the draft is a toy: `first` is its law of the first token, `after[x]` its law after token x.
# There are no ties to break.


# %% exercise="10.dynamic_tree"
def grow_tree(expand, depth: int, width: int, budget: int) -> list[tuple[int, ...]]:
    """The likeliest nodes of a tree that grows along its likeliest branches."""
    ### BEGIN SOLUTION: a pass for each depth; in the end all nodes compete
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
# Your tree of eight nodes. Behind each token: the joint probability of its path.

# %%
draw("10.dynamic_tree", grow_tree)
