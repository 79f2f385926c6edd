"""Token trees on a GPU: growing them, laying out a verify pass over them, walking them, each step a kernel or two.

In torch these steps are dozens of launches over a few numbers. Each has its reference in plain torch, which says what
it computes: in growth.py, in the functions that end in _torch, KVCache.gather, TreeSpeculator.commit.

    likeliest_tokens           which tokens are the likeliest of each row of logits
    stream, enter              what EAGLE's head is given for every entry of its cache
    level, pruned              the next depth of B trees, and which nodes remain in the end (Growing: both, with masks)
    laid_out, walk, commit     the verify pass of a tree, its accepted path, and the end of the cycle
    move, best_of              the path's keys and values; the best token of every row of logits
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ..drafters import growth
from ..tree import ancestors
from .attention import constants, constexpr, jit, tl, triton, unavailable

MOST_CANDIDATES = 8192  # of a row, that one program holds
MOST_CHILDREN = 256  # of one level: every pair is compared
MOST_NODES = 2048  # of all levels of a tree, likewise


@jit
def _ahead(mine, other, i, j):
    """How many of the scores `other`, numbered j, are ahead of each of `mine`, numbered i. Of equals the first are."""
    equal = (other[None, :] == mine[:, None]) & (j[None, :] < i[:, None])
    return tl.sum(((other[None, :] > mine[:, None]) | equal).to(tl.int32), 1)


@jit
def _best_on_page(logits, values, places, tops, sums, V, PAGE: constexpr, COUNT: constexpr):
    """The COUNT highest of one page of a row of logits, best first, and what the page adds to Σ exp."""
    row, page, pages = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    i = tl.arange(0, PAGE)
    x = tl.load(logits + row * V + page * PAGE + i, mask=page * PAGE + i < V, other=float("-inf")).to(tl.float32)
    top = tl.max(x, 0)
    tl.store(tops + row * pages + page, top)
    tl.store(sums + row * pages + page, tl.sum(tl.exp(x - top), 0))
    first = (row * pages + page) * COUNT
    for n in tl.static_range(COUNT):
        place = tl.argmax(x, 0, tie_break_left=True)
        tl.store(values + first + n, tl.max(x, 0))
        tl.store(places + first + n, page * PAGE + place)
        x = tl.where(i == place, float("-inf"), x)


@jit
def _best_of_pages(
    values, places, tops, sums, ids, tokens, log_q, pages, v, COUNT: constexpr, PAGES: constexpr, ALL: constexpr
):
    """The COUNT highest of one row, from the highest of its pages: which tokens they are, and their log-probabilities.
    NaN may choose any token, but a token it is."""
    row, page, i = tl.program_id(0).to(tl.int64), tl.arange(0, PAGES), tl.arange(0, ALL)
    top = tl.load(tops + row * pages + page, mask=page < pages, other=float("-inf"))
    part = tl.load(sums + row * pages + page, mask=page < pages, other=0.0)
    highest = tl.max(top, 0)
    log_sum = highest + tl.log(tl.sum(part * tl.exp(top - highest), 0))
    every = pages * COUNT
    x = tl.load(values + row * every + i, mask=i < every, other=float("-inf"))
    for n in tl.static_range(COUNT):
        best = tl.argmax(x, 0, tie_break_left=True)
        place = tl.load(places + row * every + tl.minimum(best, every - 1))
        tl.store(tokens + row * COUNT + n, tl.load(ids + tl.minimum(place, v - 1)))
        tl.store(log_q + row * COUNT + n, tl.max(x, 0) - log_sum)
        x = tl.where(i == best, float("-inf"), x)


def likeliest_tokens(logits: Tensor, ids: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` likeliest of the tokens ids [v] by logits [..., v], and their log-probabilities: [..., count] each,
    best first."""
    *shape, v = logits.shape
    if count > 16 or logits.dtype == torch.float64 or unavailable(logits.device) is not None:
        return growth.likeliest_tokens(logits, ids, count)
    page = 512
    while -(-v // page) * count > MOST_CANDIDATES:
        page *= 2
    logits, pages = logits.reshape(-1, v).contiguous(), -(-v // page)
    new = lambda *shape, dtype=torch.float32: torch.empty(*shape, dtype=dtype, device=logits.device)  # noqa: E731
    parts = (
        new(len(logits), pages * count),
        new(len(logits), pages * count, dtype=torch.int32),
        *new(2, len(logits), pages),
    )
    log_q, tokens = new(*shape, count), new(*shape, count, dtype=torch.long)
    with torch.cuda.device_of(logits):
        _best_on_page[(len(logits), pages)](logits, *parts, v, PAGE=page, COUNT=count, num_warps=4)
        sizes = dict(COUNT=count, PAGES=triton.next_power_of_2(pages), ALL=triton.next_power_of_2(pages * count))
        _best_of_pages[(len(logits),)](*parts, ids, tokens, log_q, pages, v, **sizes, num_warps=1)
    return tokens, log_q


def at_places(states: Tensor, places: Tensor) -> Tensor:
    """states [B, T, d] at places [B, m]: [B, m, d]."""
    return states.take_along_dim(places[..., None], 1)


# ---- the reference versions ----


def stream_torch(states: Tensor, slots: Tensor, out: Tensor, eps: float) -> None:
    """The target's states [B, T, d] at slots [B, m], normed without a gain, to `out` [B, m, d]."""
    out.copy_(F.rms_norm(at_places(states, slots).to(out.dtype), out.shape[-1:], eps=eps))


def enter_torch(
    tokens: Tensor,  # [B, w]
    embedding: Tensor,  # [V, d]
    features: Tensor,  # [B, n, d]
    parents: Tensor | None,  # [B, w], which of the n comes before each token (None: n = w, its own)
    gains: tuple[Tensor, Tensor],  # [d] each, of the norms of token and feature
    eps: float,
) -> tuple[Tensor, Tensor]:
    """[norm(embedded token); norm(g)] [B, w, 2d], and g [B, w, d]."""
    g = features if parents is None else at_places(features, parents)
    e, (token_gain, feature_gain) = F.embedding(tokens, embedding).to(g.dtype), gains
    normed = (F.rms_norm(x, x.shape[-1:], gain, eps) for x, gain in ((e, token_gain), (g, feature_gain)))
    return torch.cat([*normed], -1), g


# ---- the kernels ----


@jit
def _normed(x, d, eps):
    """x / √(mean x² + eps), of d numbers; those after them are zero."""
    return x / tl.sqrt_rn(tl.sum(x * x, 0) / d + eps)


@jit
def _stream(states, slots, out, d, eps, states_row, states_slot, slots_row, out_row, out_slot, WIDTH: constexpr):
    """One token of one sequence."""
    b, i, at = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.arange(0, WIDTH)
    slot = tl.load(slots + b * slots_row + i).to(tl.int64)
    x = tl.load(states + b * states_row + slot * states_slot + at, mask=at < d, other=0.0).to(tl.float32)
    tl.store(out + b * out_row + i * out_slot + at, _normed(x, d, eps).to(out.dtype.element_ty), mask=at < d)


@jit
def _enter(tokens, embedding, features, parents, gain, g_gain, both, g, w, n, d, eps, WIDTH: constexpr):
    """One token of one sequence."""
    b, i, at = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.arange(0, WIDTH)
    entry, inside = b * w + i, at < d
    parent = i
    if parents is not None:
        parent = tl.load(parents + entry)
    token = tl.load(tokens + entry)
    e = tl.load(embedding + token * d + at, mask=inside, other=0.0).to(both.dtype.element_ty)  # rounded, as in torch
    feature = tl.load(features + (b * n + parent) * d + at, mask=inside, other=0.0)
    if parents is not None:
        tl.store(g + entry * d + at, feature, mask=inside)
    e = _normed(e.to(tl.float32), d, eps) * tl.load(gain + at, mask=inside, other=0.0).to(tl.float32)
    f = _normed(feature.to(tl.float32), d, eps) * tl.load(g_gain + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(both + entry * 2 * d + at, e.to(both.dtype.element_ty), mask=inside)
    tl.store(both + entry * 2 * d + d + at, f.to(both.dtype.element_ty), mask=inside)


# ---- calling them ----


def stream(states: Tensor, slots: Tensor, out: Tensor, eps: float) -> None:
    """As `stream_torch`."""
    B, m, d = out.shape
    with torch.cuda.device_of(states):
        apart = *states.stride()[:2], slots.stride(0), *out.stride()[:2]
        _stream[(B, m)](states, slots, out, d, eps, *apart, WIDTH=triton.next_power_of_2(d), num_warps=4)


def enter(tokens, embedding, features, parents, gains: tuple[Tensor, Tensor], eps: float) -> tuple[Tensor, Tensor]:
    """As `enter_torch`."""
    (B, w), d, features = tokens.shape, features.shape[-1], features.contiguous()
    both, tokens = features.new_empty(B, w, 2 * d), tokens.contiguous()
    g = features if parents is None else features.new_empty(B, w, d)
    with torch.cuda.device_of(features):
        given = tokens, embedding, features, None if parents is None else parents.contiguous(), *gains, both, g
        _enter[(B, w)](*given, w, features.shape[1], d, eps, WIDTH=triton.next_power_of_2(d), num_warps=4)
    return both, g


@lru_cache
def roots(count: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Scores and numbers of so many roots [B, 1], and what they attend to [B, 1, 0]: on the device once and for all."""
    score, number = torch.zeros(count, 1, device=device), torch.full((count, 1), -1, device=device)
    return score, number, torch.zeros(count, 1, 0, dtype=torch.bool, device=device)


class Growing:
    """Trees of B sequences that grow depth by depth, of the `most` likeliest nodes: growth.grow_tensors, for a drafter
    whose every depth is a pass, and which needs to know what each node attends to."""

    def __init__(self, ids: Tensor, width: int, most: int, kernels: bool):
        self.ids, self.width, self.most = ids, width, most  # ids [v]: which tokens the logits are those of
        steps = (likeliest_tokens, level, pruned) if kernels else (growth.likeliest_tokens, level_torch, growth.pruned)
        self.likeliest, self.level, self.pruned = steps
        self.nodes, self.grown = [], 0  # of every depth: tokens, scores and parents, [B, n] each; how many they are

    def add(self, logits: Tensor, fresh: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """From logits [B, w, v] after the w nodes that were expanded last to the next ones: tokens [B, width], which
        of the w each follows [B, width], and what they attend to [B, width, E].

        With `fresh` [B] there is only the root: the last of the first fresh[b] rows, at least the first one."""
        row = 0
        if fresh is not None:  # the root is certain: its score is log 1
            row = (fresh - 1).clamp(min=0)[:, None]  # [B, 1]
            logits = at_places(logits, row)
            self.score, self.number, self.sees = roots(len(row), row.device)
        tokens, log_q = self.likeliest(logits, self.ids, self.width)  # [B, w, m]
        sizes = self.grown, self.width, self.most
        new, chosen = self.level(tokens, log_q, self.score, self.number, *sizes, self.sees)
        tokens, self.score, self.number, child_of, self.sees = chosen
        self.nodes.append(new)
        self.grown += new[0].shape[1]
        return tokens, row + child_of, self.sees

    def prune(self, budgets: Tensor | None = None, depths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """growth.pruned: tokens and parents [B, n]."""
        return self.pruned(self.nodes, self.most, budgets, depths)


@jit
def _counting(scores, node, within):
    """Scores of nodes; −∞ for those that do not count, and for NaN, which would be behind nobody."""
    score = tl.load(scores + node, mask=node < within, other=float("-inf"))
    return tl.where(score == score, score, float("-inf"))


@jit
def _prune(tensors, out_tokens, out_parents, n, most, trees, levels, budget_stride, depth_stride, size):
    """One tree of n nodes: those with fewer than `most` ahead of them, in order."""
    tokens, scores, parents, budgets, depths, ends, numbers = tensors
    tree, i, count = tl.program_id(0).to(tl.int64), tl.arange(0, size.N), tl.minimum(most, n)
    first, within, own = tree * n, n, n
    if depths is not None:  # all are taken so deep, as if none went deeper, and then each is cut to its own depth
        every = tl.arange(0, size.TREES)
        deepest = tl.max(tl.load(depths + every * depth_stride, mask=every < trees, other=0), 0)
        within = tl.load(ends + tl.minimum(deepest, levels)).to(tl.int32)
        own = tl.load(ends + tl.minimum(tl.load(depths + tree * depth_stride), levels)).to(tl.int32)
    mine = _counting(scores + first, i, within)
    ahead = tl.zeros([size.N], tl.int32)
    for start in tl.range(0, n, size.CHUNK):
        j = start + tl.arange(0, size.CHUNK)
        other = _counting(scores + first, j, within)
        ahead += _ahead(mine, other, i, j)
    kept = (i < own) & (i < n) & (ahead < most)
    if budgets is not None:
        kept = kept & (ahead < tl.load(budgets + tree * budget_stride)) & (mine > float("-inf"))
    place = tl.cumsum(kept.to(tl.int32), 0) - 1
    tl.store(numbers + first + i, place, mask=i < n)
    tl.debug_barrier()
    parent = tl.load(parents + first + i, mask=kept, other=-1)  # a kept node's parent is kept, too
    parent = tl.load(numbers + first + parent, mask=parent >= 0, other=-1).to(tl.int64)
    tl.store(out_tokens + tree * count + place, tl.load(tokens + first + i, mask=kept, other=0), mask=kept)
    tl.store(out_parents + tree * count + place, parent, mask=kept)
    rest = tl.arange(0, size.MOST)
    unused = (rest >= tl.sum(kept.to(tl.int32), 0)) & (rest < count)
    tl.store(out_tokens + tree * count + rest, tl.full([size.MOST], -1, tl.int64), mask=unused)
    tl.store(out_parents + tree * count + rest, tl.full([size.MOST], -1, tl.int64), mask=unused)


def pruned(nodes, most: int, budgets: Tensor | None = None, depths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """growth.pruned, by one kernel: a program compares all nodes of a tree with each other."""
    ends = growth.level_ends(nodes)
    if ends[-1] > MOST_NODES or nodes[0][1].dtype != torch.float32:
        return growth.pruned(nodes, most, budgets, depths)
    tokens, scores, parents = (torch.cat(parts, 1) for parts in zip(*nodes, strict=True))
    (B, n), count = tokens.shape, min(most, tokens.shape[1])
    out = tokens.new_empty(B, count), tokens.new_empty(B, count)
    size = max(16, triton.next_power_of_2(n))
    limits = budgets, depths, None if depths is None else growth.numbers(ends, tokens.device)
    with torch.cuda.device_of(tokens):
        tensors = tokens, scores, parents, *limits, tokens.new_empty(B, n, dtype=torch.int32)
        apart = (0 if limit is None else limit.stride(0) for limit in limits[:2])
        sizes = dict(TREES=triton.next_power_of_2(B), MOST=triton.next_power_of_2(count))
        sizes |= dict(N=size, CHUNK=max(16, min(size, 8192 // size)))
        _prune[(B,)](tensors, *out, n, most, B, len(ends) - 1, *apart, constants(**sizes), num_warps=4)
    return out


@jit
def _laid_out(tokens, parents, text, count, line, mask, offsets, n, text_row, DEPTH: constexpr, N: constexpr):
    """One tree behind its root, the last token of the text: all nodes attend to it, and to their ancestors."""
    tree, i, j = tl.program_id(0).to(tl.int64), tl.arange(0, N), tl.arange(0, N)
    node, size = i - 1, n + 1
    up, depth = tl.where((node >= 0) & (node < n), node, -1), tl.zeros([N], tl.int64)
    seen = (j == 0)[None, :] & (i >= 0)[:, None]
    for _ in tl.static_range(DEPTH):
        seen = seen | ((j[None, :] == (up + 1)[:, None]) & (up >= 0)[:, None])
        depth += (up >= 0).to(tl.int64)
        up = tl.load(parents + tree * n + up, mask=up >= 0, other=-1)
    inside = (i < size)[:, None] & (j < size)[None, :]
    tl.store(mask + tree * size * size + i[:, None] * size + j[None, :], seen.to(tl.uint8), mask=inside)
    tl.store(offsets + tree * size + i, depth, mask=i < size)
    token = tl.load(tokens + tree * n + node, mask=(node >= 0) & (node < n), other=0)
    last = tl.load(text + tree * text_row + tl.load(count + tree) - 1)
    tl.store(line + tree * size + i, tl.where(i == 0, last, token), mask=i < size)


def laid_out(tokens: Tensor, parents: Tensor, text: Tensor, count: Tensor, depth: int) -> tuple[Tensor, Tensor, Tensor]:
    """The verify pass of trees [B, n] after the `count` [B] tokens of text [B, S]: its tokens [B, n + 1], who attends
    to whom [B, n + 1, n + 1], and how far after the past each is [B, n + 1]."""
    (B, n), parents = parents.shape, parents.contiguous()
    mask = torch.empty(B, n + 1, n + 1, dtype=torch.bool, device=parents.device)
    line, offsets = torch.empty(2, B, n + 1, dtype=torch.long, device=parents.device)
    with torch.cuda.device_of(parents):
        given, out = (tokens.contiguous(), parents, text, count), (line, mask.view(torch.uint8), offsets)
        size = max(16, triton.next_power_of_2(n + 1))
        _laid_out[(B,)](*given, *out, n, text.stride(0), DEPTH=depth, N=size, num_warps=4)
    return line, mask, offsets


def laid_out_torch(tokens: Tensor, parents: Tensor, text: Tensor, count: Tensor, depth: int):
    """The same in plain torch."""
    above = ancestors(parents, depth)
    mask = F.pad(above, (1, 0, 1, 0))
    mask[:, :, 0] = True  # the last token comes before the tree, and every node attends to it
    last = text.gather(1, count[:, None] - 1)
    return torch.cat([last, tokens], 1), mask, F.pad(above.sum(-1), (1, 0))


@jit
def _child(below, log_q, score, i, w, m, below_node):
    """Children i of w nodes, m each: which node's each is, its token, and its score, −∞ where there is none."""
    node, there = i // m, i < w * m
    at = node * below_node + i % m
    own = tl.load(log_q + at, mask=there, other=float("-inf")) + tl.load(score + node, mask=there, other=0.0)
    own = tl.where(own == own, own, float("-inf"))  # NaN would be behind nobody
    return node, tl.load(below + at, mask=there, other=0), own


@jit(do_not_specialize=["grown", "entries"])
def _level(tensors, nodes, chosen, grown, entries, numbers, size):
    """One tree: the `most` likeliest children of w nodes are noted, and the `width` likeliest are expanded next."""
    below, log_q, score, number, sees = tensors
    tokens, scores, parents = nodes
    next_tokens, next_score, next_number, child_of, next_sees = chosen
    w, m, below_tree, below_node, most, width = numbers
    tree, i, j = tl.program_id(0).to(tl.int64), tl.arange(0, size.CHILDREN), tl.arange(0, size.CHILDREN)
    below, log_q, score = below + tree * below_tree, log_q + tree * below_tree, score + tree * w
    node, token, mine = _child(below, log_q, score, i, w, m, below_node)
    _, _, other = _child(below, log_q, score, j, w, m, below_node)
    ahead = _ahead(mine, other, i, j)
    noted, kept = (ahead < most) & (i < w * m), (ahead < width) & (i < w * m)
    at = tl.cumsum(noted.to(tl.int32), 0) - 1
    tl.store(tokens + tree * most + at, token, mask=noted)
    tl.store(scores + tree * most + at, mine, mask=noted)
    tl.store(parents + tree * most + at, tl.load(number + tree * w + node, mask=noted, other=0), mask=noted)
    place = tree * width + tl.cumsum(kept.to(tl.int32), 0) - 1
    tl.store(next_tokens + place, token, mask=kept)
    tl.store(next_score + place, mine, mask=kept)
    tl.store(next_number + place, (grown + at).to(tl.int64), mask=kept)
    tl.store(child_of + place, node.to(tl.int64), mask=kept)
    if sees is not None:  # each attends to what its parent attends to, and to itself
        tl.debug_barrier()
        r, entry = tl.arange(0, size.ROWS), tl.arange(0, size.ENTRIES)
        real, old = (r < width)[:, None], (entry < entries)[None, :]
        parent = tl.load(child_of + tree * width + r, mask=r < width, other=0)
        seen = tl.load(sees + (tree * w + parent)[:, None] * entries + entry[None, :], mask=real & old, other=0)
        seen = tl.where(old, seen, (entry[None, :] - entries == r[:, None]).to(seen.dtype))
        at = (tree * width + r)[:, None] * (entries + width) + entry[None, :]
        tl.store(next_sees + at, seen, mask=real & (entry < entries + width)[None, :])


def level(below: Tensor, log_q: Tensor, score: Tensor, number: Tensor, grown: int, width: int, most: int, sees=None):
    """growth.level, by a kernel if the children are few. With what the w nodes attend to, `sees` [B, w, E], also what
    those attend to that are expanded next [B, width, E + width]."""
    (B, w), (m, children) = score.shape, (log_q.shape[2], score.shape[1] * log_q.shape[2])
    if children > MOST_CHILDREN:
        more = (growth.level, ()) if sees is None else (level_torch, (sees,))
        return more[0](below, log_q, score, number, grown, width, most, *more[1])
    most = min(most, children)
    width, log_q, below = min(width, most), log_q.contiguous(), below.contiguous()
    strides = log_q.stride(0), log_q.stride(1) if log_q.shape[1] > 1 else 0
    new = lambda *shape, dtype=torch.long: torch.empty(*shape, dtype=dtype, device=log_q.device)  # noqa: E731
    nodes = new(B, most), new(B, most, dtype=torch.float32), new(B, most)
    chosen = new(B, width), new(B, width, dtype=torch.float32), new(B, width), new(B, width)
    entries = 0 if sees is None else sees.shape[2]
    next_sees = None if sees is None else new(B, width, entries + width, dtype=torch.bool)
    with torch.cuda.device_of(log_q):
        seen, see = (None if mask is None else mask.view(torch.uint8) for mask in (sees, next_sees))
        tensors, found = (below, log_q, score.contiguous(), number.contiguous(), seen), (*chosen, see)
        sizes = dict(CHILDREN=max(16, triton.next_power_of_2(children)), ROWS=triton.next_power_of_2(width))
        size = constants(**sizes, ENTRIES=triton.next_power_of_2(entries + width))
        _level[(B,)](tensors, nodes, found, grown, entries, (w, m, *strides, most, width), size, num_warps=4)
    return nodes, chosen if sees is None else (*chosen, next_sees)


def level_torch(below, log_q, score, number, grown: int, width: int, most: int, sees: Tensor):
    """The same in plain torch."""
    nodes, (tokens, *rest, child_of) = growth.level(below, log_q, score, number, grown, width, most)
    (B, w), itself = tokens.shape, torch.eye(tokens.shape[1], dtype=torch.bool, device=tokens.device)
    return nodes, (tokens, *rest, child_of, torch.cat([at_places(sees, child_of), itself.expand(B, w, w)], 2))


@jit
def _walk(best, tokens, parents, sound, path, verified, run, added, line, given, n, DEPTH: constexpr, N: constexpr):
    """The way down from the root along the target's best tokens."""
    tree, i = tl.program_id(0).to(tl.int64), tl.arange(0, N)
    there, size, wide = i < n, n + 1, 3 * n + 1
    token = tl.load(tokens + tree * n + i, mask=there, other=-2)
    parent = tl.load(parents + tree * n + i, mask=there, other=-2)
    wanted = tl.load(best + tree * size + parent + 1, mask=there, other=-3)
    hit = (token == wanted) & there
    passed = tl.zeros([N], tl.int32)
    last, count = -1, 0
    tl.store(verified + tree * (DEPTH + 1), tree * 0)  # the last token of the text is there in any case
    for depth in tl.static_range(DEPTH):
        node = tl.min(tl.where(hit & (parent == last), i, N), 0)
        found = node < N
        place = tl.where(found, node, depth).to(tl.int64)
        tl.store(path + tree * DEPTH + depth, place)
        tl.store(verified + tree * (DEPTH + 1) + depth + 1, place + 1)
        drafted = tl.sum(tl.where(i == node, token, 0), 0)
        tl.store(run + tree * (DEPTH + 1) + depth, drafted)
        passed += ((i == node) & found).to(tl.int32)
        count += found.to(tl.int32)
        last = tl.where(found, node, last)
        hit = hit & found  # nothing below a node that was not found
    after = tl.maximum(tl.load(best + tree * size + last + 1), 0)  # −1: NaN, which `sound` reports
    tl.store(run + tree * (DEPTH + 1) + DEPTH, after)
    tl.debug_barrier()
    tl.store(run + tree * (DEPTH + 1) + count, after)
    tl.store(added + tree, (count + 1).to(tl.int64))
    tl.store(given + tree * n + i, (token == wanted).to(tl.float64), mask=there)
    # What the log says of it: tokens, parents, which were accepted, and the token after them.
    tl.store(line + tree * wide + i, token, mask=there)
    tl.store(line + tree * wide + n + i, parent, mask=there)
    tl.store(line + tree * wide + 2 * n + i, passed.to(tl.int64), mask=there)
    tl.store(line + tree * wide + 3 * n, after)
    worst = tl.min(tl.load(best + tree * size + i, mask=i < size, other=0), 0)
    tl.store(sound, (worst * 0).to(tl.uint8), mask=worst < 0)


def walk(best: Tensor, tokens: Tensor, parents: Tensor, depth: int, sound: Tensor):
    """Greedy verification of B trees: path [B, depth] (unused places hold their own number), the same as slots of the
    pass [B, depth + 1], run [B, depth + 1] (the accepted tokens and the one after them), how many these are [B], what
    the log says [B, 3n + 1], and for every node whether it is the target's best [B, n]. `sound` becomes False where a
    best token is −1: NaN."""
    B, n = tokens.shape
    new = lambda *shape, dtype=torch.long: torch.empty(*shape, dtype=dtype, device=best.device)  # noqa: E731
    path, run = new(B, depth), (new(B, depth + 1), new(B, depth + 1))
    out = path, *run, new(B), new(B, 3 * n + 1), new(B, n, dtype=torch.float64)
    with torch.cuda.device_of(best):
        given = best.contiguous(), tokens.contiguous(), parents.contiguous(), sound.view(torch.uint8)
        _walk[(B,)](*given, *out, n, DEPTH=depth, N=max(16, triton.next_power_of_2(n + 1)), num_warps=1)
    return out


def walk_torch(best: Tensor, tokens: Tensor, parents: Tensor, depth: int, sound: Tensor):
    """The same in plain torch."""
    n = tokens.shape[1]
    given, node = tokens == best.gather(1, parents + 1), torch.arange(n, device=best.device)
    last, found, steps = torch.full_like(best[:, 0], -1), torch.ones_like(given[:, 0]), []
    for _ in range(depth):
        below = given & (parents == last[:, None]) & found[:, None]  # nothing below a node that was not found
        found = below.any(1)
        first = torch.where(below, node, n - 1).amin(1)
        last = torch.where(found, first, last)
        steps.append((found, first))
    found, nodes = (torch.stack(part, 1) for part in zip(*steps, strict=True))  # [B, depth]
    kept, after = found.sum(1), best.gather(1, last[:, None] + 1).clamp(min=0)  # −1: NaN, which `sound` reports
    run = torch.cat([torch.where(found, tokens.gather(1, nodes), 0), after], 1).scatter(1, kept[:, None], after)
    accepted = ((nodes[..., None] == node) & found[..., None]).any(1)
    path = torch.where(found, nodes, torch.arange(depth, device=best.device))
    sound &= (best >= 0).all()
    line = torch.cat([tokens, parents, accepted.long(), after], 1)
    return path, F.pad(path + 1, (1, 0)), run, kept + 1, line, given.double()


@jit
def _commit(
    run, added, line, chances, sound, text, count, lengths, report, new, wide, text_row, NEW: constexpr, WIDE: constexpr
):
    """One sequence: its text and lengths, and the report."""
    b, i, j, nodes = tl.program_id(0).to(tl.int64), tl.arange(0, NEW), tl.arange(0, WIDE), wide // 3
    before = tl.load(count + b)
    token = tl.load(run + b * new + i, mask=i < new, other=0)
    tl.store(text + b * text_row + before + i, token, mask=i < new)
    after = before + tl.load(added + b)
    tl.debug_barrier()  # all have read the count
    tl.store(count + b, after)
    tl.store(lengths + b, after - 1)  # the last token is unprocessed
    said = tl.load(line + b * wide + j, mask=j < wide, other=0)
    chance = tl.load(chances + b * nodes + j, mask=j < nodes, other=0.0)
    to = report + b * (wide + nodes + 1)
    tl.store(to + j, said.to(tl.float64), mask=j < wide)
    tl.store(to + wide + j, chance, mask=j < nodes)
    tl.store(to + wide + nodes, tl.load(sound).to(tl.float64))


def commit(run, added, line, chances, sound, text, count, lengths, report) -> None:
    """The end of a cycle: the first `added` [B] of run [B, m] are appended to the text, and the line [B, 3n + 1] and
    the chances [B, n] of its nodes are reported. As TreeSpeculator.commit."""
    (B, new), wide = run.shape, line.shape[1]
    with torch.cuda.device_of(run):
        given, out = (run, added, line, chances, sound.view(torch.uint8)), (text, count, lengths, report)
        sizes = dict(NEW=triton.next_power_of_2(new), WIDE=triton.next_power_of_2(wide))
        _commit[(B,)](*given, *out, new, wide, text.stride(0), **sizes, num_warps=1)


@jit
def _move(
    keys, values, path, start, layer, heads, slots, DEPTH: constexpr, D: constexpr, P: constexpr, WIDTH: constexpr
):
    """One head of one layer: positions start + path become start, start + 1, …"""
    b, which = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    p, d = tl.arange(0, P), tl.arange(0, WIDTH)
    used = (p < DEPTH)[:, None] & (d < D)[None, :]
    first = tl.load(start + b)
    source = first + tl.load(path + b * DEPTH + p, mask=p < DEPTH, other=0)
    at = which // heads * layer + (b * heads + which % heads) * slots * D
    a = at + source[:, None] * D + d[None, :]
    z = at + (first + p)[:, None] * D + d[None, :]
    k = tl.load(keys + a, mask=used, other=0.0)
    v = tl.load(values + a, mask=used, other=0.0)
    tl.debug_barrier()  # all is read before anything is stored
    tl.store(keys + z, k, mask=used)
    tl.store(values + z, v, mask=used)


def move(keys: Tensor, values: Tensor, path: Tensor, start: Tensor) -> None:
    """KVCache.gather over keys and values [L, B, Hkv, S, D], each layer contiguous: path [B, n], start [B]."""
    (L, B, heads, slots, D), depth = keys.shape, path.shape[1]
    with torch.cuda.device_of(keys):
        given, numbers = (keys, values, path.contiguous(), start), (keys.stride(0), heads, slots)
        sizes = dict(DEPTH=depth, D=D, P=triton.next_power_of_2(depth), WIDTH=triton.next_power_of_2(D))
        _move[(B, L * heads)](*given, *numbers, **sizes, num_warps=1)


@jit
def _best_page(logits, values, places, V, PAGE: constexpr):
    row, page, pages = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    i = page * PAGE + tl.arange(0, PAGE)
    x = tl.load(logits + row * V + i, mask=i < V, other=float("-inf")).to(tl.float32)
    x = tl.where(x == x, x, float("inf"))  # NaN is as bad as ∞
    tl.store(values + row * pages + page, tl.max(x, 0))
    tl.store(places + row * pages + page, page * PAGE + tl.argmax(x, 0, tie_break_left=True))


@jit
def _best_row(values, places, best, pages, PAGES: constexpr):
    row, page = tl.program_id(0).to(tl.int64), tl.arange(0, PAGES)
    x = tl.load(values + row * pages + page, mask=page < pages, other=float("-inf"))
    top = tl.max(x, 0)
    place = tl.load(places + row * pages + tl.argmax(x, 0, tie_break_left=True))
    finite = (top > float("-inf")) & (top < float("inf"))
    tl.store(best + row, tl.where(finite, place, -1).to(tl.int64))


def best_of(logits: Tensor) -> Tensor:
    """sampling.best_tokens of logits [..., V]: the best token of every row, or −1 where they contain NaN or ∞."""
    *shape, V = logits.shape
    flat, page = logits.reshape(-1, V), 2048
    rows, pages = len(flat), -(-V // page)
    values = torch.empty(rows, pages, dtype=torch.float32, device=logits.device)
    places = torch.empty(rows, pages, dtype=torch.int32, device=logits.device)
    best = torch.empty(rows, dtype=torch.long, device=logits.device)
    with torch.cuda.device_of(logits):
        _best_page[(rows, pages)](flat, values, places, V, PAGE=page, num_warps=4)
        _best_row[(rows,)](values, places, best, pages, PAGES=max(2, triton.next_power_of_2(pages)), num_warps=1)
    return best.view(shape)
