"""Softmax and sampling over a whole vocabulary, by rows that are cut into pages.

torch gives a row of softmax to one SM, and takes a dozen launches to find where a running total passes a
number: for 128,256 tokens 33 and 38 µs on an H200, of which a speculative cycle needs ten. Here every page has a
program of its own, and a second kernel puts the pages together. Where there is no Triton, torch does the same.
"""

import torch
from torch import Tensor

from .. import sampling
from .attention import constexpr, jit, tl, triton, unavailable

WIDE = 1024  # numbers of a page: a vocabulary of 128,256 has 126


@jit
def _page_sums(scores, temperature, tops, sums, V, each, PAGE: constexpr):
    """The highest score x / T of a page, and Σ exp(x / T − highest)."""
    row, page, pages = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    i = page * PAGE + tl.arange(0, PAGE)
    x = tl.load(scores + row * V + i, mask=i < V, other=float("-inf")).to(tl.float32)
    x = x / tl.load(temperature + row // each).to(tl.float32)
    top = tl.max(x, 0)
    part = tl.sum(tl.exp(x - tl.where(top == float("-inf"), 0.0, top)), 0)  # a page may be forbidden altogether
    tl.store(tops + row * pages + page, top)
    tl.store(sums + row * pages + page, part)


@jit
def _normalise(scores, temperature, tops, sums, probs, V, each, PAGE: constexpr, PAGES: constexpr):
    """exp(x / T − highest) / Σ of one page, where highest and Σ are those of all pages."""
    row, page, pages = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    n = tl.arange(0, PAGES)
    top = tl.load(tops + row * pages + n, mask=n < pages, other=float("-inf"))
    part = tl.load(sums + row * pages + n, mask=n < pages, other=0.0)
    highest = tl.max(top, 0)
    total = tl.sum(part * tl.exp(top - highest), 0)
    i = page * PAGE + tl.arange(0, PAGE)
    x = tl.load(scores + row * V + i, mask=i < V, other=float("-inf")).to(tl.float32)
    x = x / tl.load(temperature + row // each).to(tl.float32)
    tl.store(probs + row * V + i, tl.exp(x - highest) / total, mask=i < V)


def softmax(scores: Tensor, temperature: Tensor) -> Tensor:
    """softmax(scores / temperature) of [..., V], in float32 at least. `temperature` is on the device: one number, or
    one [B] for each of scores [B, ...]. A row with NaN or ∞ is NaN from end to end."""
    *shape, V = scores.shape
    if unavailable(scores.device) is not None or scores.dtype == torch.float64:
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        apart = temperature.view(-1, *[1] * len(shape)) if temperature.ndim else temperature
        return (scores / apart.to(scores.dtype)).softmax(-1)
    rows, pages = scores.numel() // V, -(-V // WIDE)
    scores, each = scores.reshape(rows, V).contiguous(), rows // temperature.numel()
    tops, sums = torch.empty(2, rows, pages, dtype=torch.float32, device=scores.device)
    probs = torch.empty(rows, V, dtype=torch.float32, device=scores.device)
    with torch.cuda.device_of(scores):
        _page_sums[(rows, pages)](scores, temperature, tops, sums, V, each, PAGE=WIDE, num_warps=4)
        _normalise[(rows, pages)](
            scores, temperature, tops, sums, probs, V, each, PAGE=WIDE, PAGES=triton.next_power_of_2(pages), num_warps=4
        )
    return probs.view(*shape, V)


@jit
def _page_totals(probs, totals, V, PAGE: constexpr):
    row, page, pages = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    i = page * PAGE + tl.arange(0, PAGE)
    p = tl.load(probs + row * V + i, mask=i < V, other=0.0).to(tl.float64)
    tl.store(totals + row * pages + page, tl.sum(p, 0))


@jit
def _pick(probs, totals, u, tokens, V, pages, PAGE: constexpr, PAGES: constexpr):
    """The first token at which the running total passes u · Σ."""
    row, n, i = tl.program_id(0).to(tl.int64), tl.arange(0, PAGES), tl.arange(0, PAGE)
    sums = tl.load(totals + row * pages + n, mask=n < pages, other=0.0)
    goal = tl.load(u + row) * tl.sum(sums, 0)
    passed = (tl.cumsum(sums, 0) <= goal) & (n < pages)
    # Summed in another order, all may end a hair below the goal: then it is the last possible page, or token of it.
    page = tl.minimum(tl.sum(passed.to(tl.int32), 0), tl.max(tl.where(sums > 0, n, 0), 0))
    before = tl.sum(tl.where(n < page, sums, 0.0), 0)
    p = tl.load(probs + row * V + page * PAGE + i, mask=page * PAGE + i < V, other=0.0).to(tl.float64)
    place = tl.sum((tl.cumsum(p, 0) <= goal - before).to(tl.int32), 0)
    last = tl.max(tl.where(p > 0, i, 0), 0)
    tl.store(tokens + row, (page * PAGE + tl.minimum(place, last)).to(tl.int64))


def pick(probs: Tensor, u: Tensor) -> Tensor:
    """sampling.pick for distributions [B, V] and u [B]: a token [B] of each."""
    if unavailable(probs.device) is not None or probs.dtype == torch.float64:
        return sampling.pick(probs, u)
    (B, V), pages = probs.shape, -(-probs.shape[1] // WIDE)
    probs, u = probs.contiguous(), u.contiguous()
    totals = torch.empty(B, pages, dtype=torch.float64, device=probs.device)
    tokens = torch.empty(B, dtype=torch.long, device=probs.device)
    with torch.cuda.device_of(probs):
        _page_totals[(B, pages)](probs, totals, V, PAGE=WIDE, num_warps=4)
        _pick[(B,)](probs, totals, u, tokens, V, pages, PAGE=WIDE, PAGES=triton.next_power_of_2(pages), num_warps=4)
    return tokens


@jit
def _uniforms(states, out, count, stride, GOLDEN: constexpr, A: constexpr, B: constexpr, N: constexpr):
    """sampling.uniform(state + n · GOLDEN), n = 1, 2, … of one row: the same bits."""
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, N)
    x = tl.load(states + row * stride) + (i + 1).to(tl.int64) * GOLDEN
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * A
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * B
    x = x ^ ((x >> 31) & 0x1FFFFFFFF)
    u = ((x >> 11) & 0x1FFFFFFFFFFFFF).to(tl.float64) * (1.0 / 9007199254740992.0)
    tl.store(out + row * count + i, u, mask=i < count)


def uniforms(states: Tensor, count: int) -> Tensor:
    """The next `count` random numbers after these states [B], [B, count]: sampling.uniforms on the device."""
    if unavailable(states.device) is not None:
        return sampling.uniform(states[:, None] + torch.arange(1, count + 1, device=states.device) * sampling.GOLDEN)
    out = torch.empty(len(states), count, dtype=torch.float64, device=states.device)
    constants = dict(GOLDEN=sampling.GOLDEN, A=sampling.MIXERS[0], B=sampling.MIXERS[1])
    with torch.cuda.device_of(states):
        sizes = dict(N=max(16, triton.next_power_of_2(count)))
        _uniforms[(len(states),)](states, out, count, states.stride(0), **constants, **sizes, num_warps=1)
    return out


def whole(probs: Tensor) -> Tensor:
    """Whether there is no NaN in distributions [..., V]: where there is one, the row is NaN from end to end."""
    return probs[..., 0].isfinite().all()
