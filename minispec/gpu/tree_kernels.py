"""The bookkeeping of a token tree on a GPU, each step as one kernel of one small program for each tree.

In torch these steps are dozens of launches over a few numbers. Each has its twin in plain torch, where the words for
what it computes are: laid_out_torch, growth.level, walk_torch, KVCache.gather, TreeSpeculator.commit.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..drafters import growth
from ..tree import ancestors
from .attention import jit, tl, triton
from .select import select


@jit
def _laid_out(tokens, parents, text, count, line, mask, offsets, n, text_row, DEPTH: tl.constexpr, N: tl.constexpr):
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
        _laid_out[(B,)](
            tokens.contiguous(),
            parents,
            text,
            count,
            line,
            mask.view(torch.uint8),
            offsets,
            n,
            text.stride(0),
            DEPTH=depth,
            N=max(16, triton.next_power_of_2(n + 1)),
            num_warps=4,
        )
    return line, mask, offsets


def laid_out_torch(
    tokens: Tensor, parents: Tensor, text: Tensor, count: Tensor, depth: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The same in plain torch."""
    above = ancestors(parents, depth)
    mask = F.pad(above, (1, 0, 1, 0))
    mask[:, :, 0] = True  # the last token comes before the tree, and every node attends to it
    last = text.gather(1, count[:, None] - 1)
    return torch.cat([last, tokens], 1), mask, F.pad(above.sum(-1), (1, 0))


@jit
def _level(
    below,
    log_q,
    score,
    number,
    tokens,
    scores,
    parents,
    next_tokens,
    next_score,
    next_number,
    child_of,
    grown,
    w,
    m,
    below_tree,
    below_node,
    width,
    F: tl.constexpr,
):
    """The children of w nodes, m each: all of them are noted, and the `width` likeliest are to be expanded next."""
    tree, i, j = tl.program_id(0).to(tl.int64), tl.arange(0, F), tl.arange(0, F)
    node, candidate, there = i // m, i % m, i < w * m
    at = tree * below_tree + node * below_node + candidate
    token = tl.load(below + at, mask=there, other=0)
    mine = tl.load(score + tree * w + node, mask=there, other=0.0) + tl.load(log_q + at, mask=there, other=0.0)
    first = tree * w * m
    tl.store(tokens + first + i, token, mask=there)
    tl.store(scores + first + i, mine, mask=there)
    tl.store(parents + first + i, tl.load(number + tree * w + node, mask=there, other=0), mask=there)
    above = j // m
    other = tl.load(score + tree * w + above, mask=j < w * m, other=0.0)
    other += tl.load(log_q + tree * below_tree + above * below_node + j % m, mask=j < w * m, other=0.0)
    mine = tl.where(there & (mine == mine), mine, float("-inf"))  # NaN would be behind nobody
    other = tl.where((j < w * m) & (other == other), other, float("-inf"))
    equal = (other[None, :] == mine[:, None]) & (j[None, :] < i[:, None])
    ahead = tl.sum(((other[None, :] > mine[:, None]) | equal).to(tl.int32), 1)
    kept = (ahead < width) & there
    place = tree * width + tl.cumsum(kept.to(tl.int32), 0) - 1
    tl.store(next_tokens + place, token, mask=kept)
    tl.store(next_score + place, mine, mask=kept)
    tl.store(next_number + place, (grown + i).to(tl.int64), mask=kept)
    tl.store(child_of + place, node.to(tl.int64), mask=kept)


MOST_CHILDREN = 256  # of one level: every pair is compared


def level(below: Tensor, log_q: Tensor, score: Tensor, number: Tensor, grown: int, width: int, most: int):
    """growth.level. Nodes that can no longer be among the `most` stay, which changes nothing."""
    (B, w), (m, children) = score.shape, (log_q.shape[2], score.shape[1] * log_q.shape[2])
    if children > MOST_CHILDREN:
        return growth.level(below, log_q, score, number, grown, width, most, select)
    width = min(width, children)
    log_q, below = log_q.contiguous(), below.contiguous()
    strides = log_q.stride(0), log_q.stride(1) if log_q.shape[1] > 1 else 0
    new = lambda n, dtype=torch.long: torch.empty(B, n, dtype=dtype, device=log_q.device)  # noqa: E731
    nodes = new(children), new(children, torch.float32), new(children)
    chosen = new(width), new(width, torch.float32), new(width), new(width)
    with torch.cuda.device_of(log_q):
        _level[(B,)](
            below,
            log_q,
            score.contiguous(),
            number.contiguous(),
            *nodes,
            *chosen,
            grown,
            w,
            m,
            *strides,
            width,
            F=max(16, triton.next_power_of_2(children)),
            num_warps=4,
        )
    return nodes, chosen


@jit
def _walk(
    best, tokens, parents, sound, path, verified, run, added, line, given, n, DEPTH: tl.constexpr, N: tl.constexpr
):
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
    out = (
        new(B, depth),
        new(B, depth + 1),
        new(B, depth + 1),
        new(B),
        new(B, 3 * n + 1),
        new(B, n, dtype=torch.float64),
    )
    with torch.cuda.device_of(best):
        _walk[(B,)](
            best.contiguous(),
            tokens.contiguous(),
            parents.contiguous(),
            sound.view(torch.uint8),
            *out,
            n,
            DEPTH=depth,
            N=max(16, triton.next_power_of_2(n + 1)),
            num_warps=1,
        )
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
    run,
    added,
    line,
    chances,
    sound,
    cycles,
    text,
    count,
    lengths,
    log,
    chance_log,
    report,
    trees,
    new,
    wide,
    nodes,
    text_row,
    NEW: tl.constexpr,
    WIDE: tl.constexpr,
    NODES: tl.constexpr,
):
    """One sequence: its text and lengths, a line of the log, and the report."""
    b, i, j, node = tl.program_id(0).to(tl.int64), tl.arange(0, NEW), tl.arange(0, WIDE), tl.arange(0, NODES)
    before = tl.load(count + b)
    token = tl.load(run + b * new + i, mask=i < new, other=0)
    tl.store(text + b * text_row + before + i, token, mask=i < new)
    after = before + tl.load(added + b)
    tl.debug_barrier()  # all have read the count
    tl.store(count + b, after)
    tl.store(lengths + b, after - 1)  # the last token is unprocessed
    number = tl.load(cycles) * trees + b
    said = tl.load(line + b * wide + j, mask=j < wide, other=0)
    chance = tl.load(chances + b * nodes + node, mask=node < nodes, other=0.0)
    tl.store(log + number * wide + j, said, mask=j < wide)
    tl.store(chance_log + number * nodes + node, chance, mask=node < nodes)
    to = report + b * (wide + nodes + 1)
    tl.store(to + j, said.to(tl.float64), mask=j < wide)
    tl.store(to + wide + node, chance, mask=node < nodes)
    tl.store(to + wide + nodes, tl.load(sound).to(tl.float64))


def commit(run, added, line, chances, sound, cycles, text, count, lengths, log, chance_log, report) -> None:
    """The end of a cycle: the first `added` [B] of run [B, m] are appended to the text, and what was logged of it is
    noted. As TreeSpeculator.commit, but for the number of cycles."""
    (B, new), wide, nodes = run.shape, line.shape[1], chances.shape[1]
    with torch.cuda.device_of(run):
        _commit[(B,)](
            run,
            added,
            line,
            chances,
            sound.view(torch.uint8),
            cycles,
            text,
            count,
            lengths,
            log,
            chance_log,
            report,
            B,
            new,
            wide,
            nodes,
            text.stride(0),
            NEW=triton.next_power_of_2(new),
            WIDE=triton.next_power_of_2(wide),
            NODES=triton.next_power_of_2(nodes),
            num_warps=1,
        )


@jit
def _move(
    keys,
    values,
    path,
    start,
    row,
    head,
    slot,
    layer,
    heads,
    DEPTH: tl.constexpr,
    D: tl.constexpr,
    P: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """One head of one layer: positions start + path become start, start + 1, …"""
    b, which = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    p, d = tl.arange(0, P), tl.arange(0, WIDTH)
    used = (p < DEPTH)[:, None] & (d < D)[None, :]
    first = tl.load(start + b)
    source = first + tl.load(path + b * DEPTH + p, mask=p < DEPTH, other=0)
    at = which // heads * layer + b * row + which % heads * head
    a = at + source[:, None] * slot + d[None, :]
    z = at + (first + p)[:, None] * slot + d[None, :]
    k = tl.load(keys + a, mask=used, other=0.0)
    v = tl.load(values + a, mask=used, other=0.0)
    tl.debug_barrier()  # all is read before anything is stored
    tl.store(keys + z, k, mask=used)
    tl.store(values + z, v, mask=used)


def move(keys: Tensor, values: Tensor, path: Tensor, start: Tensor) -> None:
    """KVCache.gather over keys and values [L, B, Hkv, S, D]: path [B, n], start [B]."""
    L, B, heads, _, D = keys.shape
    layer, row, head, slot, _ = keys.stride()
    depth = path.shape[1]
    with torch.cuda.device_of(keys):
        _move[(B, L * heads)](
            keys,
            values,
            path.contiguous(),
            start,
            row,
            head,
            slot,
            layer,
            heads,
            DEPTH=depth,
            D=D,
            P=triton.next_power_of_2(depth),
            WIDTH=triton.next_power_of_2(D),
            num_warps=1,
        )


@jit
def _best_page(logits, values, places, V, PAGE: tl.constexpr):
    row, page, pages = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    i = page * PAGE + tl.arange(0, PAGE)
    x = tl.load(logits + row * V + i, mask=i < V, other=float("-inf")).to(tl.float32)
    x = tl.where(x == x, x, float("inf"))  # NaN is as bad as ∞
    tl.store(values + row * pages + page, tl.max(x, 0))
    tl.store(places + row * pages + page, page * PAGE + tl.argmax(x, 0, tie_break_left=True))


@jit
def _best_row(values, places, best, pages, PAGES: tl.constexpr):
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
