"""Set 10, EAGLE and DFlash: which feature goes with which token, what a block attends to, and a tree that grows."""

import math

import torch
import torch.nn.functional as F

from minispec.drafters.growth import grow
from minispec.tree import path_to

from ..exercise import Complaint, decimals, exercise
from ..fresh import Draw, fresh
from ..returned import elements, items, mask_of, pair, several, tensor, whole_numbers


# ---- 10.features ----------------------------------------------------------------------------------------------------
def normed(x, eps):
    return F.rms_norm(x, x.shape[-1:], eps=eps)


def eagle_entries(streams, text, fc, eps, *, fuse=None, tokens=None, ahead=2, features=lambda g: g):
    """The entries of EAGLE's cache, with parts to exchange."""
    joined = torch.cat([normed(h, eps) for h in streams], -1) if fuse is None else fuse(streams)  # [T, 3d]
    count = streams.shape[1]
    return features(joined @ fc.T), text[1:] if tokens is None else tokens, [t + ahead for t in range(count)]


def observe_entries(answer, streams, text, fc, eps):
    found = answer(streams, text, fc, eps)
    features, tokens, places = several(found, 3, "features, tokens and positions")
    return {
        "features": tensor(features, "the features"),
        "tokens": whole_numbers(tokens, "the tokens"),
        "positions": whole_numbers(places, "the positions"),
    }


def entries_case(count, d, seed, eps=0.0):
    """Streams of which the later ones are much larger, as in a real model."""
    loudness = torch.tensor([1.0, 4.0, 30.0], dtype=torch.float64)[:, None, None]
    text = [(seed + 7 * i) % 50 for i in range(count + 1)]
    return dict(
        streams=decimals(3, count, d, seed=seed) * loudness, text=text, fc=decimals(d, 3 * d, seed=seed + 1), eps=eps
    )


FEATURES = exercise(
    "10.features",
    reference=eagle_entries,
    observe=observe_entries,
    cases=[
        entries_case(1, 2, seed=81),
        entries_case(2, 2, seed=84),
        entries_case(3, 4, seed=87),
        entries_case(4, 4, seed=90, eps=0.5),
    ],
)


@FEATURES.wrong_solutions
class _:
    def token_of_the_same_place(streams, text, fc, eps):
        """You pair feature t with token x_t. The target has processed that token, so it adds nothing. What the feature
        cannot know is which token was sampled next: pair feature t with x_{t+1}."""
        return eagle_entries(streams, text, fc, eps, tokens=text[:-1])

    def no_shift_at_all(streams, text, fc, eps):
        """You have forgotten the shift. Entry t holds x_t, which the target has processed, and predicts t + 1, as the
        target's own LM head does. Pair feature t with the token after it, x_{t+1}; the pair predicts t + 2."""
        return eagle_entries(streams, text, fc, eps, tokens=text[:-1], ahead=1)

    def shifts_the_features(streams, text, fc, eps):
        """You have shifted the features as well as the tokens, or instead of them, so that entry t contains feature t −
        1. Leave the features where they are, and take the tokens from text[1:]."""
        return eagle_entries(streams, text, fc, eps, features=lambda g: g.roll(1, 0))

    def speaks_of_the_next(streams, text, fc, eps):
        """Your entry t predicts position t + 1. But the entry is given that token, x_{t+1}. It predicts t + 2."""
        return eagle_entries(streams, text, fc, eps, ahead=1)

    def streams_as_they_are(streams, text, fc, eps):
        """You do not normalise the streams. The high one is many times larger than the low one and dominates the
        product. Normalise each stream over its own d numbers. (EAGLE-3 as published feeds raw streams to fc; the norm
        asked for here is that of EAGLE-3.1.)"""
        return eagle_entries(streams, text, fc, eps, fuse=lambda streams: torch.cat(list(streams), -1))

    def norms_all_together(streams, text, fc, eps):
        """You join the streams and normalise them together. The largest stream then sets the scale for all, and the
        others stay small. Normalise each one by itself, then join them."""
        return eagle_entries(streams, text, fc, eps, fuse=lambda streams: normed(torch.cat(list(streams), -1), eps))

    def interleaved(streams, text, fc, eps):
        """You mix the streams number by number (stack, then flatten), or flatten the wrong dimensions. fc expects all
        of the low stream first, then all of the middle one. Join them with torch.cat along the last dimension."""
        return eagle_entries(
            streams, text, fc, eps, fuse=lambda streams: normed(streams, eps).permute(1, 2, 0).flatten(1)
        )


def random_entries(draw: Draw, count: int, eps: float) -> dict:
    d, loudness = draw.whole(2, 2 + draw.size), torch.tensor([1.0, 4.0, 30.0]).double()[:, None, None]
    streams = draw.until(lambda: draw.decimals(3, count, d), lambda x: bool((x != 0).any(-1).all())) * loudness
    text = [draw.randrange(50) for _ in range(count + 1)]
    return dict(streams=streams, text=text, fc=draw.decimals(d, 3 * d), eps=eps)


fresh(
    "10.features", "several positions", lambda draw: random_entries(draw, draw.whole(2, 2 + draw.size), 0.0), weight=2
)
fresh("10.features", "one position", lambda draw: random_entries(draw, 1, 0.0), weight=0.5, count=6)


@fresh("10.features", "an ε that matters")
def _(draw):
    return random_entries(draw, draw.whole(1, 4), draw.choice([0.1, 0.5, 3.0]))


# ---- 10.block_mask --------------------------------------------------------------------------------------------------
def block_mask(
    anchors, length, block, *, context=lambda t, n: t < n, causal=False, others=False, places=lambda a, n, j: n + j
):
    """The mask with parts to exchange: the context, the own block, other blocks, position ids."""
    rows = [(a, n, j) for a, n in enumerate(anchors) for j in range(block)]
    mask = torch.zeros(len(rows), length + len(rows), dtype=torch.bool)
    for i, (a, n, j) in enumerate(rows):
        for t in range(length):
            mask[i, t] = context(t, n)
        for k, (b, _, other) in enumerate(rows):
            mask[i, length + k] = (other <= j or not causal) if a == b else others
    return mask, [places(a, n, j) for a, n, j in rows]


def observe_block(answer, anchors, length, block):
    mask, places = pair(answer(anchors, length, block), "the mask and the positions")
    count = len(anchors) * block
    mask = mask_of(mask, (count, length + count))
    seen = {
        f"block {i // block}, position {i % block} attends to": "".join("#" if x else "." for x in row)
        for i, row in enumerate(mask.tolist())
    }
    return {**seen, "positions": whole_numbers(places, "the positions")}


BLOCK_MASK = exercise(
    "10.block_mask",
    reference=block_mask,
    observe=observe_block,
    cases=[
        dict(anchors=[1], length=1, block=2),
        dict(anchors=[2], length=4, block=2),
        dict(anchors=[2], length=3, block=3),
        dict(anchors=[1, 3], length=4, block=2),
        dict(anchors=[4, 2, 5], length=6, block=3),
    ],
)


@BLOCK_MASK.wrong_solutions
class _:
    def causal_block(anchors, length, block):
        """Inside a block you allow attention to earlier positions only. That is right for a model that generates token
        by token. Here all blanks are filled at once, so every position attends to all of its block."""
        return block_mask(anchors, length, block, causal=True)

    def sees_the_anchor_state(anchors, length, block):
        """Your block attends to the target's state at the anchor itself. When the drafter runs, the target has not
        processed that token yet, so this state does not exist. In training it contains the target's own prediction of
        the first blank. Use t < n, strictly."""
        return block_mask(anchors, length, block, context=lambda t, n: t <= n)

    def sees_the_whole_text(anchors, length, block):
        """Your blocks attend to the whole context, including what comes after their anchor: the very tokens that they
        have to predict. Cut the context at t < n."""
        return block_mask(anchors, length, block, context=lambda t, n: True)

    def one_place_short(anchors, length, block):
        """Your context ends one position too early. The target has processed everything before the anchor: t < n."""
        return block_mask(anchors, length, block, context=lambda t, n: t < n - 1)

    def blocks_see_each_other(anchors, length, block):
        """Your blocks attend to one another. They lie side by side only to share a pass. Each drafts from a different
        position, and the first token of another block may be what this one has to predict. Compare block numbers."""
        return block_mask(anchors, length, block, others=True)

    def positions_behind_the_text(anchors, length, block):
        """Your position ids continue after the sequence, as the slots do. A block's positions are those its tokens
        would have: it begins with token n, so they are n, n + 1, …, whatever slots it occupies."""
        return block_mask(anchors, length, block, places=lambda a, n, j: length + a * block + j)


def anchors_case(draw: Draw, count: int) -> dict:
    length = draw.whole(max(1, count - 1), 3 + draw.size + count)
    return dict(anchors=draw.sample(range(length + 1), count), length=length, block=draw.whole(2, 3 + draw.size // 2))


fresh("10.block_mask", "one block", lambda draw: anchors_case(draw, 1))
fresh("10.block_mask", "several blocks", lambda draw: anchors_case(draw, draw.whole(2, 3)), weight=2)


@fresh("10.block_mask", "the same anchor twice", weight=0.5, count=5)
def _(draw):
    case = anchors_case(draw, draw.whole(1, 2))
    return {**case, "anchors": [*case["anchors"], case["anchors"][0]]}


@fresh("10.block_mask", "an anchor at the beginning or at the end", weight=0.5, count=6)
def _(draw):
    case = anchors_case(draw, draw.whole(1, 2))
    edge = draw.choice([0, case["length"]])
    return {**case, "anchors": [edge, *(a for a in case["anchors"][1:] if a != edge)]}


# ---- 10.dynamic_tree ------------------------------------------------------------------------------------------------
def grow_tree(expand, depth, width, budget):
    def scored(children):
        return [(token, math.log(p)) for token, p in children]

    def pass_over(tree, nodes):
        return list(map(scored, expand([tuple(tree.tokens[i] for i in path_to(tree.parents, node)) for node in nodes])))

    [first] = expand([()])
    tree = grow(scored(first), pass_over, depth, width, budget)
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
        if None in (paths := [elements(path) for path in elements(paths) or [None]]):
            raise Complaint("expand takes a list of paths, as in expand([(2, 0), (1,)]); it got something else.")
        if len(passes) > 20:
            raise Complaint("your tree was stopped after 20 passes of the draft: it grows without end.")
        passes.append([tuple(int(x) for x in path) for path in paths])
        each = [after[path[-1]] if path else first for path in passes[-1]]
        return [[(x, float(probs[x])) for x in probs.argsort(descending=True)[:width].tolist()] for probs in each]

    kept = answer(expand, depth, width, budget)
    kept = list(kept) if isinstance(kept, (set, dict)) else items(kept, "the result", " of paths")
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
    legend={"first": "the drafter's distribution after the root", "after": "the one after each token"},
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


@DYNAMIC_TREE.wrong_solutions
class _:
    def own_probability(expand, depth, width, budget):
        """You rank nodes by their own probability. After an unlikely node they are rarely reached: multiply along the
        path."""
        return flawed_tree(expand, depth, width, budget, rank=lambda above, p: p)

    def sums_probabilities(expand, depth, width, budget):
        """You add probabilities along the path, so long paths always win. Multiply them, or add their logarithms."""
        return flawed_tree(expand, depth, width, budget, rank=lambda above, p: above + p)

    def expands_everything(expand, depth, width, budget):
        """You expand every node of a depth. The tree then grows by a factor of `width` with each depth, and so does the
        draft's pass. Expand only the `width` most probable nodes of the newest depth."""
        return flawed_tree(expand, depth, width, budget, expanded=10**6)

    def keeps_everything_grown(expand, depth, width, budget):
        """You keep everything that has grown. The pass has room for `budget` nodes: keep the most probable ones."""
        return flawed_tree(expand, depth, width, budget, keep=list)

    def one_depth_short(expand, depth, width, budget):
        """Your tree is one level too shallow. `depth` is the number of draft passes; the first expands the root."""
        return flawed_tree(expand, depth, width, budget, levels=max(1, depth - 1)) if depth > 1 else []

    def one_pass_too_many(expand, depth, width, budget):
        """You expand once too often. The pass over the root gives depth 1, so `depth` passes give all depths, and the
        nodes of the last depth are not expanded."""
        return flawed_tree(expand, depth, width, budget, levels=depth + 1)

    def one_call_for_each(expand, depth, width, budget):
        """You call expand for each node. The result is right, but each call is a pass of the draft, and passes are what
        drafting costs. Give all chosen nodes of a depth to one call."""

        def one_by_one(paths):
            return [expand([path])[0] for path in paths]

        return flawed_tree(one_by_one, depth, width, budget)


def is_clear(joint: list[float], count: int) -> bool:
    """Whether the `count` largest are well above the others."""
    joint = sorted(joint, reverse=True)
    return count >= len(joint) or joint[count - 1] - joint[count] > 1e-6


def no_ties(first: list[float], after: list[list[float]], depth: int, width: int, budget: int) -> bool:
    """Whether every choice on the way is clear: which children, which nodes to expand, which to keep."""
    newest, everything, clear = [((), 1.0)], [], True
    for _ in range(depth):
        clear = clear and is_clear([p for _, p in newest], width)
        chosen, newest = sorted(newest, key=lambda node: -node[1])[:width], []
        for path, above in chosen:
            probs = after[path[-1]] if path else first
            clear = clear and is_clear(probs, width)
            best = sorted(range(len(probs)), key=lambda x: -probs[x])[:width]
            newest += [((*path, x), above * probs[x]) for x in best]
        everything += [p for _, p in newest]
    return clear and budget <= len(everything) and is_clear(everything, budget)


def growing_case(draw: Draw, depth: int, width: int, tokens: int) -> dict:
    def make():
        first, *after = ([x / 100 for x in draw.parts(tokens, 100, least=4)] for _ in range(tokens + 1))
        return dict(first=first, after=after, depth=depth, width=width, budget=draw.whole(1, 4 + 2 * draw.size))

    case = draw.until(make, lambda case: no_ties(**case))
    return {**case, **{name: torch.tensor(case[name], dtype=torch.float64) for name in ("first", "after")}}


fresh("10.dynamic_tree", "width two", lambda draw: growing_case(draw, draw.whole(2, 3), 2, draw.whole(2, 3)), weight=2)
fresh("10.dynamic_tree", "other widths", lambda draw: growing_case(draw, draw.whole(2, 3), draw.choice([1, 3]), 3))


@fresh("10.dynamic_tree", "one pass", weight=0.5, count=6)
def _(draw):
    return growing_case(draw, 1, draw.whole(1, 3), draw.whole(3, 4))


fresh("10.dynamic_tree", "deep", lambda draw: growing_case(draw, 4, 2, 2), weight=0.5, count=6)
