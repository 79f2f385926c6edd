"""Set 10, EAGLE and DFlash: which feature goes with which token, what a block sees, and a tree that grows."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ....drafters.growth import grow
from ....tree import path_to
from ..exercise import Complaint, exercise, pair
from ..show import kind, show
from .e02 import numbers
from .e03 import numbers as whole_numbers

# ---- 10.features ----------------------------------------------------------------------------------------------------


def eagle_entries(streams, text, fc, eps):
    return flawed_entries(streams, text, fc, eps)


def normed(x, eps):
    return F.rms_norm(x, x.shape[-1:], eps=eps)


def flawed_entries(streams, text, fc, eps, *, fuse=None, tokens=None, ahead=2, features=lambda g: g):
    """The entries of EAGLE's cache, with parts to exchange."""
    joined = torch.cat([normed(h, eps) for h in streams], -1) if fuse is None else fuse(streams)  # [T, 3d]
    count = streams.shape[1]
    return features(joined @ fc.T), text[1:] if tokens is None else tokens, [t + ahead for t in range(count)]


def observe_entries(answer, streams, text, fc, eps):
    found = answer(streams, text, fc, eps)
    if not isinstance(found, (list, tuple)) or len(found) != 3:
        raise Complaint(f"return three things, features, tokens and places; yours returns {kind(found)}.")
    features, tokens, places = found
    if not isinstance(features, Tensor) or features.dim() != 2:
        raise Complaint(f"the features should be a tensor [T, d]; yours is {kind(features)}.")
    tokens, places = (x.tolist() if isinstance(x, Tensor) else x for x in (tokens, places))
    return {
        "features": features,
        "tokens": whole_numbers(tokens, "the tokens"),
        "places": whole_numbers(places, "the places"),
    }


def entries_case(count, d, seed, eps=0.0):
    """Streams of which the later are much louder, as in a real model."""
    loudness = torch.tensor([1.0, 4.0, 30.0], dtype=torch.float64)[:, None, None]
    text = [(seed + 7 * i) % 50 for i in range(count + 1)]
    return dict(
        streams=numbers(3, count, d, seed=seed) * loudness, text=text, fc=numbers(d, 3 * d, seed=seed + 1), eps=eps
    )


FEATURES = exercise(
    "10.features",
    title="Which feature goes with which token",
    level="M",
    minutes=25,
    points=3,
    hints=(
        "Write down the text with its places. At place t the target has read x_t and knows what may follow, but not "
        "which token was drawn. Which token tells the drafter that?",
        "Entry t is the feature of place t beside the token x_{t+1}, which was drawn from the target's law there. So "
        "the tokens are the text without its first. Knowing x_{t+1}, the entry speaks of the place after it.",
        "normed = [h / sqrt(mean(h², over d) + eps) for each of the three streams]; g = cat(normed, −1) @ fc.T is "
        "[T, d]; tokens = text[1:]; places = [t + 2 for t in range(T)].",
    ),
    code="minispec.drafters.EagleHead.fuse",
    reference=eagle_entries,
    observe=observe_entries,
    cases=[
        entries_case(1, 2, seed=81),
        entries_case(2, 2, seed=84),
        entries_case(3, 4, seed=87),
        entries_case(4, 4, seed=90, eps=0.5),
    ],
)


@FEATURES.mutant
def token_of_the_same_place(streams, text, fc, eps):
    """You put feature t beside token x_t. The feature has read that token already, it adds nothing. What the feature
    cannot know is which token was drawn after it: x_{t+1} goes with feature t."""
    return flawed_entries(streams, text, fc, eps, tokens=text[:-1])


@FEATURES.mutant
def shifts_the_features(streams, text, fc, eps):
    """You have shifted the features as well as the tokens, or instead of them: feature t − 1 stands in entry t. The
    features stay in their places, tokens move one to the left."""
    return flawed_entries(streams, text, fc, eps, features=lambda g: g.roll(1, 0))


@FEATURES.mutant
def speaks_of_the_next(streams, text, fc, eps):
    """Your entry t speaks of place t + 1. That token it is given: x_{t+1}. It speaks of the one after, t + 2."""
    return flawed_entries(streams, text, fc, eps, ahead=1)


@FEATURES.mutant
def streams_as_they_are(streams, text, fc, eps):
    """You do not norm the streams. The high one is many times louder than the low one and drowns it: norm each, over
    its own d numbers."""
    return flawed_entries(streams, text, fc, eps, fuse=lambda streams: torch.cat(list(streams), -1))


@FEATURES.mutant
def norms_all_together(streams, text, fc, eps):
    """You join the streams and norm them together. The loudest then sets the size of all, and the others stay faint.
    Norm each by itself, then join."""
    return flawed_entries(streams, text, fc, eps, fuse=lambda streams: normed(torch.cat(list(streams), -1), eps))


@FEATURES.mutant
def adds_the_streams(streams, text, fc, eps):
    """You add the streams up before fc. Side by side, fc can treat each in its own way: [low; mid; high] has 3d
    numbers, and fc a column for each."""

    def summed(streams):
        return sum(normed(h, eps) for h in streams).repeat(1, 3)

    return flawed_entries(streams, text, fc, eps, fuse=summed)


@FEATURES.mutant
def high_stream_first(streams, text, fc, eps):
    """Your streams are in the wrong order. fc was trained on [low; mid; high], in the order in which they are given."""
    return flawed_entries(streams.flip(0), text, fc, eps)


@FEATURES.mutant
def interleaved(streams, text, fc, eps):
    """You mix the streams number by number (stack, then flatten), or flatten the wrong dimensions. fc expects all of
    the low stream first, then all of the middle one: join them with cat along the last dimension."""
    return flawed_entries(streams, text, fc, eps, fuse=lambda streams: normed(streams, eps).permute(1, 2, 0).flatten(1))


# ---- 10.block_mask --------------------------------------------------------------------------------------------------


def block_mask(anchors, length, block):
    return flawed_block(anchors, length, block)


def flawed_block(anchors, length, block, *, context=lambda t, n: t < n, within=lambda i, j: True, others=False,
                 places=lambda a, n, j: n + j):  # fmt: skip
    """The mask with parts to exchange: which places of the context, which of its own block, other blocks, positions."""
    rows = [(a, n, j) for a, n in enumerate(anchors) for j in range(block)]
    mask = torch.zeros(len(rows), length + len(rows), dtype=torch.bool)
    for i, (a, n, j) in enumerate(rows):
        for t in range(length):
            mask[i, t] = context(t, n)
        for k, (b, _, other) in enumerate(rows):
            mask[i, length + k] = within(j, other) if a == b else others
    return mask, [places(a, n, j) for a, n, j in rows]


def observe_block(answer, anchors, length, block):
    mask, places = pair(answer(anchors, length, block), "the mask and the positions")
    count = len(anchors) * block
    if not isinstance(mask, Tensor) or tuple(mask.shape) != (count, length + count):
        raise Complaint(f"the mask should be a tensor of shape {(count, length + count)}; yours is {kind(mask)}.")
    places = places.tolist() if isinstance(places, Tensor) else places
    seen = {
        f"block {i // block}, place {i % block} sees": "".join("#" if x else "." for x in row)
        for i, row in enumerate(mask.tolist())
    }
    return {**seen, "positions": whole_numbers(places, "the positions")}


def draw_block(answer) -> str:
    """The learner's mask of three blocks over a text of eight tokens."""
    anchors, length, block = [2, 5, 7], 8, 3
    seen = observe_block(answer, list(anchors), length, block)
    lines = ["# seen   . not seen        c context   L last token   _ blank", ""]
    lines.append(f"{'':20}{'c' * length}  {' '.join(['L' + '_' * (block - 1)] * len(anchors))}   position")
    for i in range(len(anchors) * block):
        row = seen[f"block {i // block}, place {i % block} sees"]
        parts = [row[length + b * block : length + (b + 1) * block] for b in range(len(anchors))]
        lines.append(
            f"block {i // block}, place {i % block:<4} {row[:length]}  {' '.join(parts)}   {seen['positions'][i]}"
        )
    return "\n".join(lines)


BLOCK_MASK = exercise(
    "10.block_mask",
    title="What a block sees",
    level="M",
    minutes=25,
    points=3,
    hints=(
        "Take a single block first, anchors = [2], block = 3. It fills in the blanks after the text's token 2: which "
        "states of the target exist when it does, and which positions do its three places have?",
        "The target has read places 0 … n − 1 when x_n has just been drawn, so the context is t < n, strictly. Inside "
        "the block everything sees everything: it is filled in at once, there is no before and after. Other blocks "
        "belong to other moments.",
        "Row i belongs to block i // block. Context part: arange(length) < anchors[i // block]. Block part: True where "
        "j // block == i // block. Positions: anchors[i // block] + i % block.",
    ),
    code="minispec.drafters.DFlash",
    reference=block_mask,
    observe=observe_block,
    picture=draw_block,
    cases=[
        dict(anchors=[1], length=1, block=2),
        dict(anchors=[2], length=4, block=2),
        dict(anchors=[2], length=3, block=3),
        dict(anchors=[1, 3], length=4, block=2),
        dict(anchors=[4, 2, 5], length=6, block=3),
    ],
)


@BLOCK_MASK.mutant
def causal_block(anchors, length, block):
    """Inside a block you allow only a look back. That is how a model writes that goes token by token. Here all blanks
    are filled in at once: each place of a block sees all of it."""
    return flawed_block(anchors, length, block, within=lambda i, j: j <= i)


@BLOCK_MASK.mutant
def sees_the_anchor_state(anchors, length, block):
    """Your block sees the target's state at the anchor itself. The target has not read that token yet when it drafts:
    the state there holds the target's own opinion on the first blank. In training that is cheating, in use it does not
    exist. t < n, strictly."""
    return flawed_block(anchors, length, block, context=lambda t, n: t <= n)


@BLOCK_MASK.mutant
def sees_the_whole_text(anchors, length, block):
    """Your blocks see all of the context, also what comes after their anchor: the very tokens that they are to
    guess."""
    return flawed_block(anchors, length, block, context=lambda t, n: True)


@BLOCK_MASK.mutant
def one_place_short(anchors, length, block):
    """Your context ends one place too early. The target has read everything before the anchor, place n − 1 included."""
    return flawed_block(anchors, length, block, context=lambda t, n: t < n - 1)


@BLOCK_MASK.mutant
def blocks_see_each_other(anchors, length, block):
    """Your blocks see one another. They lie side by side only to share a pass: each drafts at another moment of the
    text, and another block's last token may be what this one is to guess."""
    return flawed_block(anchors, length, block, others=True)


@BLOCK_MASK.mutant
def blanks_see_the_last_token_only(anchors, length, block):
    """Your places see the last token and themselves, but no other blank. The blanks work together: what one of them
    makes up its mind to, the others can see in the next layer."""
    return flawed_block(anchors, length, block, within=lambda i, j: j in (0, i))


@BLOCK_MASK.mutant
def blind_block(anchors, length, block):
    """Your places do not see themselves. A place sees its whole block, itself included."""
    return flawed_block(anchors, length, block, within=lambda i, j: i != j)


@BLOCK_MASK.mutant
def no_context(anchors, length, block):
    """Your blocks see no context. The target's states are all that they know of the text: t < n is True for every place
    of the block."""
    return flawed_block(anchors, length, block, context=lambda t, n: False)


@BLOCK_MASK.mutant
def positions_behind_the_text(anchors, length, block):
    """Your positions go on behind the text, as the slots do. A block stands where it would be written: its last token
    is token n of the text, so its places are n, n + 1, …, whatever lies beside it."""
    return flawed_block(anchors, length, block, places=lambda a, n, j: length + a * block + j)


@BLOCK_MASK.mutant
def blanks_start_at_the_anchor(anchors, length, block):
    """Your positions are one too low: the first blank gets the anchor's place. The block begins with the last token
    itself, at place n, and the first blank is n + 1."""
    return flawed_block(anchors, length, block, places=lambda a, n, j: n + j - 1)


# ---- 10.dynamic_tree ------------------------------------------------------------------------------------------------


def grow_tree(expand, depth, width, budget):
    def scored(children):
        return [(token, math.log(p)) for token, p in children]

    def pass_over(tree, nodes):
        return list(map(scored, expand([tuple(tree.tokens[i] for i in path_to(tree.parents, node)) for node in nodes])))

    [first] = expand([()])
    tree, _ = grow(scored(first), pass_over, depth, width, budget)
    return [tuple(tree.tokens[i] for i in path_to(tree.parents, node)) for node in range(len(tree.tokens))]


def flawed_tree(expand, depth, width, budget, *, rank=None, keep=None, expanded=None, levels=None):
    """The growing tree with parts to exchange: what nodes are ranked by, how many are expanded, which are kept."""
    rank = rank or (lambda above, p: above * p)
    score, newest, expanded = {(): 1.0}, [()], width if expanded is None else expanded
    for _ in range(depth if levels is None else levels):
        chosen = sorted(newest, key=lambda path: -score[path])[:expanded]
        newest = []
        if not chosen:
            break
        for path, children in zip(chosen, expand(chosen), strict=True):
            for token, p in children:
                newest.append((*path, token))
                score[newest[-1]] = rank(score[path], p)
    del score[()]
    keep = keep or (lambda score: sorted(score, key=lambda path: -score[path])[:budget])
    return keep(score)


def observe_tree(answer, first, after, depth, width, budget):
    """The kept paths, and what the draft was asked for, pass by pass."""
    passes = []

    def expand(paths):
        if not isinstance(paths, (list, tuple)) or not all(isinstance(path, (list, tuple)) for path in paths):
            raise Complaint(f"expand takes a list of paths, as in expand([(2, 0), (1,)]); it got {show(paths)}.")
        if len(passes) > 20:
            raise Complaint("your tree was stopped after 20 passes of the draft: it grows without end.")
        passes.append([tuple(int(x) for x in path) for path in paths])
        laws = [after[path[-1]] if path else first for path in passes[-1]]
        return [[(x, float(law[x])) for x in law.argsort(descending=True)[:width].tolist()] for law in laws]

    kept = answer(expand, depth, width, budget)
    if not isinstance(kept, (list, tuple, set)):
        raise Complaint(f"return a list of paths; yours is {kind(kept)}.")
    return {
        "expanded, pass by pass": [sorted(paths, key=by_depth) for paths in passes],
        "kept": sorted((tuple(whole_numbers(path, "every path")) for path in kept), key=by_depth),
    }


def by_depth(path):
    return len(path), path


def draw_tree(answer) -> str:
    """The learner's tree of eight nodes, with the joint probability of each."""
    first, after = DRAFT
    found = observe_tree(answer, first, after, depth=4, width=2, budget=8)
    lines = ["joint probability under the draft, of every node that is kept", "", "the last token"]
    for path in sorted(found["kept"]):
        joint = 1.0
        for above, token in zip((None, *path), path, strict=False):
            joint *= float((first if above is None else after[above])[token])
        lines.append(f"{'    ' * len(path)}{path[-1] if path else '-'}   {joint:.3f}")
    return "\n".join(
        [*lines, f"{len(found['kept'])} nodes, {len(found['expanded, pass by pass'])} passes of the draft"]
    )


DRAFT = (
    torch.tensor([0.51, 0.32, 0.17], dtype=torch.float64),
    torch.tensor([[0.11, 0.68, 0.21], [0.83, 0.04, 0.13], [0.35, 0.27, 0.38]], dtype=torch.float64),
)


def tree_case(first, after, depth, width, budget):
    first, after = (torch.tensor(x, dtype=torch.float64) for x in (first, after))
    return dict(first=first, after=after, depth=depth, width=width, budget=budget)


DYNAMIC_TREE = exercise(
    "10.dynamic_tree",
    title="A tree that grows where it is likely",
    level="H",
    minutes=40,
    points=4,
    hints=(
        "Keep a dictionary from path to joint probability, and the list of paths of the newest depth. What does one "
        "pass of the draft add to both?",
        "First pass: expand([()]). Then, depth − 1 times: of the newest depth take the `width` paths with the largest "
        "joint probability, expand them in one call, and enter their children: joint of the parent times own "
        "probability. In the end all paths of the dictionary compete.",
        "joint = {(): 1}; newest = [()]; for each of depth rounds: chosen = the width best of newest; for path, "
        "children in zip(chosen, expand(chosen)): for token, p in children: joint[(*path, token)] = joint[path] * p. "
        "In the end the budget best of joint, without ().",
    ),
    code="minispec.drafters.growth.grow",
    reference=grow_tree,
    observe=observe_tree,
    picture=draw_tree,
    cases=[
        tree_case([0.6, 0.4], [[0.7, 0.3], [0.2, 0.8]], depth=1, width=2, budget=1),
        tree_case([0.6, 0.4], [[0.7, 0.3], [0.05, 0.95]], depth=2, width=1, budget=2),
        tree_case([0.6, 0.4], [[0.7, 0.3], [0.05, 0.95]], depth=2, width=2, budget=3),
        tree_case([0.51, 0.32, 0.17], DRAFT[1].tolist(), depth=3, width=2, budget=5),
        tree_case(
            [0.37, 0.33, 0.3], [[0.5, 0.28, 0.22], [0.9, 0.04, 0.06], [0.6, 0.1, 0.3]], depth=3, width=2, budget=4
        ),
        tree_case(
            [0.37, 0.33, 0.3], [[0.5, 0.28, 0.22], [0.9, 0.04, 0.06], [0.6, 0.1, 0.3]], depth=4, width=3, budget=9
        ),
    ],
)


@DYNAMIC_TREE.mutant
def own_probability(expand, depth, width, budget):
    """You rank nodes by their own probability. A likely token behind an unlikely one is hardly ever reached: multiply
    along the path."""
    return flawed_tree(expand, depth, width, budget, rank=lambda above, p: p)


@DYNAMIC_TREE.mutant
def sums_probabilities(expand, depth, width, budget):
    """You add probabilities along the path. Then a path gains with every token, and long ones always win. Multiply them
    (or add their logarithms)."""
    return flawed_tree(expand, depth, width, budget, rank=lambda above, p: above + p)


@DYNAMIC_TREE.mutant
def expands_everything(expand, depth, width, budget):
    """You expand every node of a depth. The tree then grows width-fold with each depth, and with it the draft's pass:
    only the `width` likeliest of the newest depth go on."""
    return flawed_tree(expand, depth, width, budget, expanded=10**6)


@DYNAMIC_TREE.mutant
def expands_one(expand, depth, width, budget):
    """You expand only the likeliest node of each depth. One pass of the draft can read several: expand `width` of
    them."""
    return flawed_tree(expand, depth, width, budget, expanded=1)


@DYNAMIC_TREE.mutant
def keeps_everything_grown(expand, depth, width, budget):
    """You keep all that has grown. The target's pass has room for `budget` nodes: in the end keep the likeliest."""
    return flawed_tree(expand, depth, width, budget, keep=list)


@DYNAMIC_TREE.mutant
def keeps_the_first(expand, depth, width, budget):
    """You keep the first nodes that have grown, level by level. A child of a likely node can be likelier than an uncle:
    all nodes of all depths compete in the end."""
    return flawed_tree(expand, depth, width, budget, keep=lambda score: list(score)[:budget])


@DYNAMIC_TREE.mutant
def keeps_leaves(expand, depth, width, budget):
    """You keep nodes of the deepest level only. Without the nodes on the way to them they are no tree, and most drafts
    are accepted near the root."""

    def leaves(score):
        deepest = max(map(len, score))
        return sorted((path for path in score if len(path) == deepest), key=lambda path: -score[path])[:budget]

    return flawed_tree(expand, depth, width, budget, keep=leaves)


@DYNAMIC_TREE.mutant
def one_depth_short(expand, depth, width, budget):
    """Your tree is one level too low. `depth` is how many passes the draft makes: the first one reads the root."""
    return flawed_tree(expand, depth, width, budget, levels=max(1, depth - 1)) if depth > 1 else []


@DYNAMIC_TREE.mutant
def one_pass_too_many(expand, depth, width, budget):
    """You expand once more than there are depths. The nodes of the last depth are not expanded: the pass over the root
    gives depth 1, so `depth` passes give them all."""
    return flawed_tree(expand, depth, width, budget, levels=depth + 1)


@DYNAMIC_TREE.mutant
def one_call_for_each(expand, depth, width, budget):
    """You call expand for each node. The result is right, but each call is a pass of the draft, and passes are what
    drafting costs: give it all chosen nodes of a depth at once."""

    def one_by_one(paths):
        return [expand([path])[0] for path in paths]

    return flawed_tree(one_by_one, depth, width, budget)
