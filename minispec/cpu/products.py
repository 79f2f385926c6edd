"""The product of panels, float32 or int8, for up to eight tokens. Imported when it is first needed, like code.py.

A byte has to become a float32 number before it can be multiplied with one, and on a Neoverse-N1 core that takes as long
as to read a float32 from memory: 4.7 billion weights per second from the cache, beside 4.8 that arrive as float32. The
instruction SDOT needs no such thing: int8 times int8, four products at a time, added up in int32, exactly. So where it
is there, the tokens become integers instead: x ≈ u · (65536 a + 256 b + c) with three bytes a, b and c, and u such that
the largest |x| of a token just fits. That loses at most u / 2 per number, about as much as float32 loses at the largest
one, and everything after it is exact until the three sums meet in y: 23 billion weights per second for one token, 5 for
five. Other processors widen the bytes to float32 in registers.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .code import AHEAD, ROWS, byte, first_chunk, floats_at, i4, i8, integers_at, make_rows, next_chunk, options
from .processor import has_dot_product

float_rows, byte_rows = make_rows(4), make_rows(1)

# ---- int8 weights and tokens in pieces -----------------------------------------------------------------------------

DOTS = has_dot_product()
LARGEST, HIGH, MIDDLE, ZERO = (np.float32(c) for c in (127 * 65536, 65536, 256, 0))
HEAD = 4 * 112  # bytes before the pieces: u [8], eight more, and sums [6, 16] of int32


@njit(**options)
def in_pieces(M, K, x, pieces):
    """Tokens at x [K, P] as three bytes per number: words [4, K/4, 8], of which each holds one of the three bytes of
    four numbers, for two tokens side by side: a b c a b c."""
    P = 4 if M <= 4 else 8
    x, unit = carray(floats_at(x), (K, P)), carray(floats_at(pieces), 8)
    words = carray(integers_at(pieces + HEAD), (4, K // 4, 8))
    for m in range(M):
        most = ZERO
        for k in range(K):
            most = max(most, abs(x[k, m]))
        unit[m] = most / LARGEST
        over = LARGEST / most if most > ZERO else ZERO
        for i in range(K // 4):
            a, b, c = np.int32(0), np.int32(0), np.int32(0)
            for j in range(4):
                whole = np.int32(np.rint(x[4 * i + j, m] * over))
                low = ((whole + 128) & 255) - 128
                whole = (whole - low) >> 8
                middle = ((whole + 128) & 255) - 128
                a |= np.int32((((whole - middle) >> 8) & 255) << (8 * j))
                b |= np.int32((middle & 255) << (8 * j))
                c |= np.int32((low & 255) << (8 * j))
            at = 3 * (m % 2)
            words[m // 2, i, at], words[m // 2, i, at + 1], words[m // 2, i, at + 2] = a, b, c


def make_dots(V: int):
    """y [V, 16] = Σ over K of a panel [K/4, 16, 4] times V columns of bytes [K/4, 8, 4], V ≤ 6, all in int32."""
    four, bytes16 = ir.VectorType(i4, 4), ir.VectorType(byte, 16)

    def emit(context, builder, signature, arguments):
        w, x, y, K = arguments
        b, module = builder, builder.module
        dot_type = ir.FunctionType(four, [four, bytes16, bytes16])
        dot = cgutils.get_or_insert_function(module, dot_type, "llvm.aarch64.neon.sdot.v4i32.v16i8")
        prefetch_type = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), i4, i4, i4])
        prefetch = cgutils.get_or_insert_function(module, prefetch_type, "llvm.prefetch.p0")

        def pointer(kind, address, offset):
            return b.inttoptr(b.add(address, i8(offset)), kind.as_pointer())

        before, loop, after = b.block, b.append_basic_block("loop"), b.append_basic_block("after")
        b.branch(loop)
        b.position_at_end(loop)
        k = b.phi(i8)
        k.add_incoming(i8(0), before)
        sums = [b.phi(four) for _ in range(4 * V)]
        for total in sums:
            total.add_incoming(ir.Constant(four, [0] * 4), before)
        new, line, column = list(sums), b.add(w, b.mul(k, i8(16))), b.add(x, b.mul(k, i8(8)))
        loaded = [b.load(pointer(four, column, 16 * n), align=4) for n in range((V + 3) // 4)]
        same = [b.shuffle_vector(loaded[v // 4], loaded[v // 4], ir.Constant(four, [v % 4] * 4)) for v in range(V)]
        for quarter in range(4):
            weights = b.load(pointer(bytes16, line, 16 * quarter), align=1)
            for v in range(V):
                n = quarter * V + v
                new[n] = b.call(dot, [new[n], weights, b.bitcast(same[v], bytes16)])
        b.call(prefetch, [pointer(byte, line, AHEAD), i4(0), i4(3), i4(1)])
        following = b.add(k, i8(4))
        k.add_incoming(following, loop)
        for total, next_total in zip(sums, new, strict=True):
            total.add_incoming(next_total, loop)
        b.cbranch(b.icmp_signed("<", following, K), loop, after)
        b.position_at_end(after)
        for n, total in enumerate(new):
            b.store(total, pointer(four, y, 4 * (ROWS * (n % V) + 4 * (n // V))), align=4)
        return context.get_dummy_value()

    def block(typing, w, x, y, K):
        return types.void(*[types.int64] * 4), emit

    return intrinsic(block)


dots3, dots6 = make_dots(3), make_dots(6)


@njit(**options)
def dot_rows(M, K, w, scales, x, pieces, y):
    """y [M, 16] = x [K, P]ᵀ times the panel of bytes at w, for tokens that are in pieces already."""
    unit, scale, y = carray(floats_at(pieces), 8), carray(floats_at(scales), ROWS), carray(floats_at(y), (M, ROWS))
    sums = carray(integers_at(pieces + 4 * 16), (6, ROWS))
    for m in range(0, M, 2):
        two = pieces + HEAD + 8 * K * (m // 2)
        if m + 1 < M:
            dots6(w, two, pieces + 4 * 16, K)
        else:
            dots3(w, two, pieces + 4 * 16, K)
        for n in range(min(2, M - m)):
            for r in range(ROWS):
                a, b, c = np.float32(sums[3 * n, r]), np.float32(sums[3 * n + 1, r]), np.float32(sums[3 * n + 2, r])
                y[m + n, r] = (a * HIGH + b * MIDDLE + c) * (unit[m + n] * scale[r])


@njit(**options)
def widened_rows(M, K, w, scales, x, pieces, y):
    """The same without SDOT: the bytes become float32 in registers. The scale comes last, once for each sum."""
    byte_rows(M, K, w, x, y)
    scale, sums = carray(floats_at(scales), ROWS), carray(floats_at(y), (M, ROWS))
    for m in range(M):
        for r in range(ROWS):
            sums[m, r] *= scale[r]


int8_rows = dot_rows if DOTS else widened_rows


# ---- either kind ---------------------------------------------------------------------------------------------------


@njit(**options)
def prepare(M, K, x, scales, pieces):
    """What has to be done with the tokens at x [K, P], once, before they meet weights with these scales."""
    if DOTS and scales:
        in_pieces(M, K, x, pieces)


@njit(**options)
def panel_product(M, K, panel, w, scales, x, pieces, y):
    """y [M, 16] = x [K, P]ᵀ times a panel of the weight at w: float32, or int8 with scales for its rows."""
    if scales:
        int8_rows(M, K, w + ROWS * panel * K, scales + 4 * ROWS * panel, x, pieces, y)
    else:
        float_rows(M, K, w + 4 * ROWS * panel * K, x, y)


@njit("void(i8[::1], i8[::1], i8, i8, f4[:, ::1], f4[:, ::1], f4[::1], i4[::1])", **options)
def product(counters, size, w, scales, x, y, scratch, pieces):
    """y [M, N] = x [K, P]ᵀ Wᵀ, a phase of its own. size: M, N, K, panels per chunk."""
    M, N, K, step = size[0], size[1], size[2], size[3]
    panels, ready = (N + ROWS - 1) // ROWS, False
    chunks = (panels + step - 1) // step
    chunk = first_chunk(counters, 0, chunks)
    while chunk >= 0:
        if not ready:
            prepare(M, K, x.ctypes.data, scales, pieces.ctypes.data)
            ready = True
        for panel in range(chunk * step, min(panels, chunk * step + step)):
            panel_product(M, K, panel, w, scales, x.ctypes.data, pieces.ctypes.data, scratch.ctypes.data)
            for m in range(M):
                for r in range(min(ROWS, N - ROWS * panel)):
                    y[m, ROWS * panel + r] = scratch[ROWS * m + r]
        chunk = next_chunk(counters, 0, chunks)
