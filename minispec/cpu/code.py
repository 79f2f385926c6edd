"""What numba compiles, its small parts: blocks of a product, chunks of work, and what numba has no word for.

products.py makes the product of panels of them, layers.py a forward pass through all layers, for up to eight tokens.

Imported when it is first needed, for numba takes most of a second. Nothing in here knows of torch: a weight is the
address of its panels (panels.py), activations are numpy arrays, and all is float32, but for weights that may be int8.

Threads. Every thread of a team calls the same function with the same arguments. The work is a row of phases, and a
phase a row of chunks that may be done in any order. A thread takes the next chunk of the current phase from a counter
that all share, and goes on to the next phase when all chunks of this one are done, whoever did them. So a thread that
the operating system keeps waiting holds up the others for the one chunk it has begun, and never for its share.
"""

from __future__ import annotations

import platform

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

ROWS = 16  # of W in a panel: as many float32 numbers are a cache line
HALF = 8  # of them are one register of AVX, two of NEON
AHEAD = 1024  # bytes: weights are asked for so far ahead of their use
STRETCH = 128  # of k, where a panel is read twice: 8 KB
# NEON multiplies by one element of a register, AVX by an element that is loaded into a whole register.
FROM_REGISTER = platform.machine().lower() in ("arm64", "aarch64")

f4, i4, i8 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
byte, lanes, quad = ir.IntType(8), ir.VectorType(f4, HALF), ir.VectorType(f4, 4)
octet = ir.VectorType(byte, HALF)
options = dict(nogil=True, fastmath={"contract", "reassoc", "nsz", "arcp"}, error_model="numpy", cache=True)


# ---- the block: one or two panels times M tokens -------------------------------------------------------------------


def make_block(M: int, halves: int = 2, kind: str = "panel", size: int = 4):
    """y [M, 16] = x [K, P]ᵀ w [K, 16]: one panel times M tokens; P is M rounded up to 4 or 8. With "more" y is added
    to, and P is 8. Attention has two more kinds, whose last argument is a distance in bytes: with "keys" the M
    tokens are rows of x, so far apart; with "values" it is the rows of w that are so far apart, P is 16, and y is
    added to.

    A weight is float32, or of size 1: int8, which becomes float32 in registers, once for all M tokens.

    Written in LLVM's own language, because the sums, 2 · M vectors of 8, must stay in registers whatever the compiler
    thinks of it. Each sum runs over k = 0, 1, 2, … whatever M is, so a token's result does not depend on its company.
    """
    P = {"values": 16, "more": 8}.get(kind, 4 if M <= 4 else 8)
    steps = {"panel": 2, "more": 2, "keys": 4, "values": 1}[kind]  # of k in a round of the loop: a divisor of K

    def emit(context, builder, signature, arguments):
        w, x, y, K, *apart = arguments
        b, module = builder, builder.module
        fma = cgutils.get_or_insert_function(module, ir.FunctionType(lanes, [lanes] * 3), f"llvm.fma.v{HALF}f32")
        prefetch_type = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), i4, i4, i4])
        prefetch = cgutils.get_or_insert_function(module, prefetch_type, "llvm.prefetch.p0")

        def pointer(kind, address, offset):
            return b.inttoptr(b.add(address, i8(offset)), kind.as_pointer())

        def everywhere(k, step, m):
            """x[k + step, m] in all lanes: an element of four that are loaded at once, or one number that is."""
            if kind == "keys":
                address, element = b.add(b.add(x, b.mul(k, i8(4))), b.mul(apart[0], i8(m))), step
            else:
                address, element = b.add(x, b.mul(b.add(k, i8(step)), i8(4 * P))), m
            if FROM_REGISTER:
                vector, element = b.load(pointer(quad, address, 16 * (element // 4)), align=4), element % 4
            else:
                one = b.load(pointer(f4, address, 4 * element), align=4)
                vector, element = b.insert_element(ir.Constant(quad, ir.Undefined), one, i4(0)), 0
            mask = ir.Constant(ir.VectorType(i4, HALF), [element] * HALF)
            return b.shuffle_vector(vector, ir.Constant(quad, ir.Undefined), mask)

        places = [pointer(lanes, y, 4 * (ROWS * m + HALF * half)) for half in range(halves) for m in range(M)]
        before, loop, after = b.block, b.append_basic_block("loop"), b.append_basic_block("after")
        zero = ir.Constant(lanes, [0.0] * HALF)
        so_far = [b.load(place, align=4) if kind in ("more", "values") else zero for place in places]
        b.branch(loop)
        b.position_at_end(loop)
        k = b.phi(i8)
        k.add_incoming(i8(0), before)
        sums = [b.phi(lanes) for _ in places]
        for total, start in zip(sums, so_far, strict=True):
            total.add_incoming(start, before)
        new = list(sums)
        for step in range(steps):
            tokens = [everywhere(k, step, m) for m in range(M)]
            line = b.add(w, b.mul(b.add(k, i8(step)), apart[0] if kind == "values" else i8(size * ROWS)))
            for half in range(halves):
                weights = b.load(pointer(lanes if size == 4 else octet, line, size * HALF * half), align=size)
                if size == 1:
                    weights = b.sitofp(b.sext(weights, ir.VectorType(i4, HALF)), lanes)
                for m in range(M):
                    n = half * M + m
                    new[n] = b.call(fma, [weights, tokens[m], new[n]])
            if kind in ("panel", "more") and step * size % 4 == 0:  # int8: two steps are half a cache line
                b.call(prefetch, [pointer(byte, line, AHEAD), i4(0), i4(3), i4(1)])  # to read, to keep, data
        following = b.add(k, i8(steps))
        k.add_incoming(following, loop)
        for total, next_total in zip(sums, new, strict=True):
            total.add_incoming(next_total, loop)
        b.cbranch(b.icmp_signed("<", following, K), loop, after)
        b.position_at_end(after)
        for total, place in zip(new, places, strict=True):
            b.store(total, place, align=4)
        return context.get_dummy_value()

    def block(typing, w, x, y, K):
        return types.void(*[types.int64] * 4), emit

    def spaced(typing, w, x, y, K, apart):
        return types.void(*[types.int64] * 5), emit

    return intrinsic(block if kind in ("panel", "more") else spaced)


def make_pointer(kind, numbers):
    """The address of such numbers, for carray."""

    def emit(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], kind.as_pointer())

    def pointer(typing, address):
        return types.CPointer(numbers)(types.int64), emit

    return intrinsic(pointer)


floats_at, integers_at = make_pointer(f4, types.float32), make_pointer(i4, types.int32)


key1, keys4 = make_block(1, 2, "keys"), make_block(4, 2, "keys")
key1_few, keys4_few = make_block(1, 1, "keys"), make_block(4, 1, "keys")
values4 = make_block(4, 2, "values")


@njit(**options)
def clear(y, n):
    y = carray(floats_at(y), n)
    for i in range(n):
        y[i] = ZERO


def make_rows(size: int):
    """The product of one panel, for weights of so many bytes."""
    block1, block2, block3, block4, block5, block6 = (make_block(M, size=size) for M in range(1, 7))
    more3, more4 = (make_block(M, kind="more", size=size) for M in (3, 4))  # seven do not fit into registers

    @njit(**options | dict(cache=False))  # kept as a part of what calls it
    def rows(M, K, w, x, y):
        """y [M, 16] = x [K, P]ᵀ times the panel at w."""
        if M == 1:
            block1(w, x, y, K)
        elif M == 2:
            block2(w, x, y, K)
        elif M == 3:
            block3(w, x, y, K)
        elif M == 4:
            block4(w, x, y, K)
        elif M == 5:
            block5(w, x, y, K)
        elif M == 6:
            block6(w, x, y, K)
        else:
            clear(y, ROWS * M)
            for k in range(0, K, STRETCH):  # the last tokens find the weights in the nearest cache
                W, X, length = w + size * ROWS * k, x + 4 * 8 * k, min(STRETCH, K - k)
                more4(W, X, y, length)
                if M == 7:
                    more3(W, X + 16, y + 4 * 4 * ROWS, length)
                else:
                    more4(W, X + 16, y + 4 * 4 * ROWS, length)

    return rows


# ---- small things that numba has no word for -----------------------------------------------------------------------


@intrinsic
def fetch_add(typing, address, n):
    """What a counter was before n was added, as one step that no other thread can divide."""

    def emit(context, builder, signature, arguments):
        return builder.atomic_rmw("add", builder.inttoptr(arguments[0], i8.as_pointer()), arguments[1], "acq_rel")

    return types.int64(types.int64, types.int64), emit


@intrinsic
def current(typing, address):
    """A counter that other threads change; what they wrote before they changed it is visible from here on."""

    def emit(context, builder, signature, arguments):
        return builder.load_atomic(builder.inttoptr(arguments[0], i8.as_pointer()), "acquire", 8)

    return types.int64(types.int64), emit


@intrinsic
def power_of_two(typing, n):
    """2ⁿ for a whole n from −126 to 127, given as float32."""

    def emit(context, builder, signature, arguments):
        bits = builder.shl(builder.add(builder.fptosi(arguments[0], i4), i4(127)), i4(23))
        return builder.bitcast(bits, f4)

    return types.float32(types.float32), emit


give_way = types.ExternalFunction("SwitchToThread" if platform.system() == "Windows" else "sched_yield", types.int32())
LOG2E, LN2_HIGH, LN2_LOW = np.float32(1.4426950408889634), np.float32(0.693359375), np.float32(-2.12194440e-4)
LOWEST, HIGHEST, MIDDLE, ONE, ZERO = (np.float32(c) for c in (-87, 87, 0.5, 1, 0))
C2, C3, C4, C5, C6, C7 = (np.float32(c) for c in (1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040))
NEVER = np.float32(-1e30)  # the score of a key that a token does not attend to


@njit(**options)
def exp(x):
    """eˣ = 2ⁿ eʳ with |r| ≤ ln 2 / 2, by eight terms of the series: a loop of these becomes vector instructions."""
    x = min(max(x, LOWEST), HIGHEST)
    n = np.floor(x * LOG2E + MIDDLE)
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    series = ONE + r * (ONE + r * (C2 + r * (C3 + r * (C4 + r * (C5 + r * (C6 + r * C7))))))
    return series * power_of_two(n)


# ---- chunks and phases ---------------------------------------------------------------------------------------------

LINE = 8  # counters of a phase lie on cache lines of their own: [next chunk, chunks done]
SPINS = 200  # looks at a counter before the processor is offered to somebody else


@njit(**options)
def first_chunk(counters, phase, chunks):
    """A chunk of a phase that no thread has taken yet. When none is left: −1, once all chunks are done."""
    chunk = fetch_add(counters.ctypes.data + 8 * LINE * 2 * phase, 1)
    if chunk < chunks:
        return chunk
    looks = 0
    while current(counters.ctypes.data + 8 * LINE * (2 * phase + 1)) < chunks:
        looks += 1
        if looks > SPINS:
            give_way()
    return -1


@njit(**options)
def next_chunk(counters, phase, chunks):
    """The same, after a chunk that this thread has just done."""
    fetch_add(counters.ctypes.data + 8 * LINE * (2 * phase + 1), 1)
    return first_chunk(counters, phase, chunks)
