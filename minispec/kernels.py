"""The skinny product: y = x Wᵀ for the few tokens of a verify pass, on a CPU, reading every weight once.

A pass of M tokens is cheap only if it costs little more than a pass of one. Reading W from memory is the bulk of both,
so it should be read once, and whatever is read should meet all M tokens while it is at hand. General matrix libraries
are made for large M: some repack W at every call, which reads and writes it again. The product here keeps a block of
4 rows of W times up to 5 tokens, 20 running sums, in registers, and a row's second visit (M > 5) finds it in the cache.

`linear` is what the model calls. It takes torch's product unless this one is possible, worth its start-up, and was
faster when both were tried (`choose`). MINISPEC_LINEAR=torch or =numba decides by hand; auto is the default.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from functools import lru_cache, partial
from types import ModuleType

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

MOST_TOKENS = 8
ROWS = 4  # of W in a register block
# Loading numba takes about a second. Only a model that owns a matrix this large (64 MB: an LM head, or any layer of a
# large model) repays that; its smaller matrices then follow, down to those where the call itself is most of the work.
REPAYS_LOADING = 2**24
REPAYS_CALLING = 2**16

TRIES = 5  # of each product, in turn, when `choose` compares them
SCRATCH = 2**23  # weights to try on, 32 MB: as in a real pass, they are not in the cache when they are needed

_one_at_a_time = threading.RLock()  # not every threading layer of numba bears two callers
_forked = False


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b for x [..., K], weight [N, K], bias [N]: [..., N]."""
    M = math.prod(x.shape[:-1])
    if not 2 <= M <= MOST_TOKENS or not fits(x, weight) or product_for(weight.shape, M) == "torch":
        return F.linear(x, weight, bias)
    y = skinny(x.reshape(M, -1), weight).view(*x.shape[:-1], weight.shape[0])
    return y if bias is None else y + bias


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether `skinny` may compute this: float32 in the memory of the CPU, and nobody asks for gradients."""
    return (
        x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and weight.is_contiguous()
        and weight.shape[0] >= ROWS
        and not (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad))
        and not torch.compiler.is_compiling()
        and not _forked
    )


def product_for(shape: tuple[int, int], tokens: int) -> str:
    """Whose product to take for a weight [N, K] and so many tokens: "torch" or "numba"."""
    wish = os.environ.get("MINISPEC_LINEAR", "auto")
    if wish not in ("auto", "torch", "numba"):
        raise ValueError(f"MINISPEC_LINEAR={wish!r}: set it to torch, numba or auto")
    least = REPAYS_CALLING if _compile.cache_info().currsize else REPAYS_LOADING
    if wish == "torch" or (wish == "auto" and shape[0] * shape[1] < least) or compiled() is None:
        return "torch"
    return "numba" if wish == "numba" else choose(*shape, tokens, torch.get_num_threads())


# ---- the choice ----------------------------------------------------------------------------------------------------

_chosen: dict[tuple[int, int, int, int], str] = {}


def choose(N: int, K: int, tokens: int, threads: int, clock: Callable[[], float] = time.perf_counter) -> str:
    """The faster product for weights [N, K]: both are tried, once per shape, token count and thread count."""
    with _one_at_a_time:
        if (key := (N, K, tokens, threads)) not in _chosen:
            x, weights = torch.ones(tokens, K), _scratch()[: SCRATCH // K * K].view(-1, K)
            rows = max(ROWS, min(N, len(weights) // 2))  # of many rows a part will do
            products, times = {"torch": F.linear, "numba": skinny}, {"torch": [], "numba": []}
            for turn in range(2 * TRIES):
                name = ("torch", "numba")[turn % 2]
                first = turn * rows % (len(weights) - rows + 1)  # other weights every time: they come from memory
                start = clock()
                products[name](x, weights[first : first + rows])
                times[name].append(clock() - start)
            _chosen[key] = min(times, key=lambda name: min(times[name]))
        return _chosen[key]


@lru_cache(maxsize=1)
def _scratch() -> Tensor:
    return torch.full((SCRATCH,), 0.01)


# ---- the product ---------------------------------------------------------------------------------------------------


def skinny(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ for x [M, K] and weight [N, K] in float32: [M, N]. As many threads as torch uses."""
    y = torch.empty(x.shape[0], weight.shape[0])
    with _one_at_a_time:
        numba, product = compiled()
        numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
        product(weight.detach().numpy(), x.detach().contiguous().numpy(), y.numpy())
    return y


def compiled() -> tuple[ModuleType, Callable] | None:
    """numba and its product (w, x, y) → None; None where there is no numba."""
    with _one_at_a_time:
        if _compile.cache_info().currsize == 0:
            threads = torch.get_num_threads()
            if loaded := _compile():
                loaded[0].set_num_threads(1)  # starts numba's threads; where they are torch's too, it also counts them
                torch.set_num_threads(threads)  # … anew for torch
        return _compile()


@lru_cache(maxsize=1)
def _compile() -> tuple[ModuleType, Callable] | None:
    try:
        import numba
        from numba import njit, prange
    except ImportError:  # not there, or made for another numpy
        return None

    def product(w, x, y):
        """y [M, N] = x [M, K] w [N, K]ᵀ. The inner loops run along K, where a row of w and a token are contiguous."""
        N, K = w.shape
        M = x.shape[0]
        for block in prange((N + ROWS - 1) // ROWS):
            n = min(ROWS * block, N - ROWS)  # the last block may compute a row again rather than stop short
            w0, w1, w2, w3 = w[n], w[n + 1], w[n + 2], w[n + 3]
            m = 0
            if M == 5:  # a draft of four, the usual one, in one go
                x0, x1, x2, x3, x4 = x[0], x[1], x[2], x[3], x[4]
                a0 = a1 = a2 = a3 = a4 = b0 = b1 = b2 = b3 = b4 = np.float32(0)
                c0 = c1 = c2 = c3 = c4 = d0 = d1 = d2 = d3 = d4 = np.float32(0)
                for k in range(K):
                    a, b, c, d = w0[k], w1[k], w2[k], w3[k]
                    p, q, r, s, t = x0[k], x1[k], x2[k], x3[k], x4[k]
                    a0, b0, c0, d0 = a0 + a * p, b0 + b * p, c0 + c * p, d0 + d * p
                    a1, b1, c1, d1 = a1 + a * q, b1 + b * q, c1 + c * q, d1 + d * q
                    a2, b2, c2, d2 = a2 + a * r, b2 + b * r, c2 + c * r, d2 + d * r
                    a3, b3, c3, d3 = a3 + a * s, b3 + b * s, c3 + c * s, d3 + d * s
                    a4, b4, c4, d4 = a4 + a * t, b4 + b * t, c4 + c * t, d4 + d * t
                y[0, n], y[0, n + 1], y[0, n + 2], y[0, n + 3] = a0, b0, c0, d0
                y[1, n], y[1, n + 1], y[1, n + 2], y[1, n + 3] = a1, b1, c1, d1
                y[2, n], y[2, n + 1], y[2, n + 2], y[2, n + 3] = a2, b2, c2, d2
                y[3, n], y[3, n + 1], y[3, n + 2], y[3, n + 3] = a3, b3, c3, d3
                y[4, n], y[4, n + 1], y[4, n + 2], y[4, n + 3] = a4, b4, c4, d4
                m = 5
            while m + 4 <= M:  # four tokens at a time …
                x0, x1, x2, x3 = x[m], x[m + 1], x[m + 2], x[m + 3]
                a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = np.float32(0)
                c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = np.float32(0)
                for k in range(K):
                    a, b, c, d = w0[k], w1[k], w2[k], w3[k]
                    p, q, r, s = x0[k], x1[k], x2[k], x3[k]
                    a0, b0, c0, d0 = a0 + a * p, b0 + b * p, c0 + c * p, d0 + d * p
                    a1, b1, c1, d1 = a1 + a * q, b1 + b * q, c1 + c * q, d1 + d * q
                    a2, b2, c2, d2 = a2 + a * r, b2 + b * r, c2 + c * r, d2 + d * r
                    a3, b3, c3, d3 = a3 + a * s, b3 + b * s, c3 + c * s, d3 + d * s
                y[m, n], y[m, n + 1], y[m, n + 2], y[m, n + 3] = a0, b0, c0, d0
                y[m + 1, n], y[m + 1, n + 1], y[m + 1, n + 2], y[m + 1, n + 3] = a1, b1, c1, d1
                y[m + 2, n], y[m + 2, n + 1], y[m + 2, n + 2], y[m + 2, n + 3] = a2, b2, c2, d2
                y[m + 3, n], y[m + 3, n + 1], y[m + 3, n + 2], y[m + 3, n + 3] = a3, b3, c3, d3
                m += 4
            if m + 2 <= M:  # … then two …
                x0, x1 = x[m], x[m + 1]
                a0 = a1 = b0 = b1 = c0 = c1 = d0 = d1 = np.float32(0)
                for k in range(K):
                    a, b, c, d = w0[k], w1[k], w2[k], w3[k]
                    p, q = x0[k], x1[k]
                    a0, b0, c0, d0 = a0 + a * p, b0 + b * p, c0 + c * p, d0 + d * p
                    a1, b1, c1, d1 = a1 + a * q, b1 + b * q, c1 + c * q, d1 + d * q
                y[m, n], y[m, n + 1], y[m, n + 2], y[m, n + 3] = a0, b0, c0, d0
                y[m + 1, n], y[m + 1, n + 1], y[m + 1, n + 2], y[m + 1, n + 3] = a1, b1, c1, d1
                m += 2
            if m < M:  # … then one
                x0 = x[m]
                a0 = b0 = c0 = d0 = np.float32(0)
                for k in range(K):
                    p = x0[k]
                    a0, b0, c0, d0 = a0 + w0[k] * p, b0 + w1[k] * p, c0 + w2[k] * p, d0 + w3[k] * p
                y[m, n], y[m, n + 1], y[m, n + 2], y[m, n + 3] = a0, b0, c0, d0

    # fastmath: sums may be taken in any order, so the inner loops become vector instructions.
    compile_now = partial(njit, "(f4[:, ::1], f4[:, ::1], f4[:, ::1])", parallel=True, fastmath=True, nogil=True)
    try:
        return numba, compile_now(cache=True)(product)
    except RuntimeError:  # no folder to write to, neither the package's nor the user's: compile every time
        return numba, compile_now(cache=False)(product)


def _after_fork() -> None:
    """A child inherits the books of the threads but not the threads: numba would end it."""
    global _forked
    _forked = _compile.cache_info().currsize > 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
