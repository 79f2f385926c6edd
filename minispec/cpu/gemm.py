"""What numba compiles: the product of panels, and a forward pass through all layers, for up to eight tokens.

Imported when it is first needed, for numba takes most of a second. Nothing in here knows of torch: a weight is the
address of its panels (panels.py), activations are numpy arrays, and all is float32, but for weights that may be int8.

Threads. Every thread of a team calls the same function with the same arguments. The work is a row of phases, and a
phase a row of chunks that may be done in any order. A thread takes the next chunk of the current phase from a counter
that all share, and goes on to the next phase when all chunks of this one are done, whoever did them. So a thread that
the operating system keeps waiting holds up the others for the one chunk it has begun, and never for its share.
"""

import platform
from collections.abc import Sequence

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .processor import has_dot_product

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


def pointer(b, kind, address, offset):
    return b.inttoptr(b.add(address, i8(offset)), kind.as_pointer())


def prefetch(b, address):
    """Ask for the weights that follow: to read, to keep, data."""
    kinds = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), i4, i4, i4])
    ask = cgutils.get_or_insert_function(b.module, kinds, "llvm.prefetch.p0")
    b.call(ask, [pointer(b, byte, address, AHEAD), i4(0), i4(3), i4(1)])


def loop(b, K, step: int, sums, body):
    """for k in range(0, K, step): sums = body(k, sums), with the sums in registers; what they are in the end."""
    before, inside, after = b.block, b.append_basic_block("loop"), b.append_basic_block("after")
    b.branch(inside)
    b.position_at_end(inside)
    k, totals = b.phi(i8), [b.phi(total.type) for total in sums]
    new = body(k, list(totals))
    following = b.add(k, i8(step))
    for total, first, then in zip([k, *totals], [i8(0), *sums], [following, *new], strict=True):
        total.add_incoming(first, before)
        total.add_incoming(then, inside)
    b.cbranch(b.icmp_signed("<", following, K), inside, after)
    b.position_at_end(after)
    return new


def make_block(counts: Sequence[int], kind: str, P: int = ROWS, halves: int = 2, size: int = 4):
    """block(M, w, x, y, K, apart), for M among `counts`: y [M, 16] of M tokens at x and a matrix at w [K, 16].

        panel     y += x [K, P]ᵀ w     a weight is float32, or of size 1: int8, which becomes float32 in registers, once
                                       for all M tokens
        values    y += x [K, P]ᵀ w     the rows of w are `apart` bytes apart
        keys      y = x [M, K] w       the rows of x are; with halves=1 only [M, 8] of it

    Written in LLVM's own language, because the sums, 2 · M vectors of 8, must stay in registers whatever the compiler
    thinks of it. Each sum runs over k = 0, 1, 2, … whatever M is, so a token's result does not depend on its company.
    """
    steps = {"panel": 2, "keys": 4, "values": 1}[kind]  # of k in a round of the loop: a divisor of K

    def emit_one(b, M, w, x, y, K, apart):
        vectors = ir.FunctionType(lanes, [lanes] * 3)
        fma = cgutils.get_or_insert_function(b.module, vectors, f"llvm.fma.v{HALF}f32")

        def everywhere(k, step, m):
            """x[k + step, m] in all lanes: an element of four that are loaded at once, or one number that is."""
            if kind == "keys":
                address, element = b.add(b.add(x, b.mul(k, i8(4))), b.mul(apart, i8(m))), step
            else:
                address, element = b.add(x, b.mul(b.add(k, i8(step)), i8(4 * P))), m
            if FROM_REGISTER:
                vector, element = b.load(pointer(b, quad, address, 16 * (element // 4)), align=4), element % 4
            else:
                one = b.load(pointer(b, f4, address, 4 * element), align=4)
                vector, element = b.insert_element(ir.Constant(quad, ir.Undefined), one, i4(0)), 0
            mask = ir.Constant(ir.VectorType(i4, HALF), [element] * HALF)
            return b.shuffle_vector(vector, ir.Constant(quad, ir.Undefined), mask)

        def step_along_k(k, new):
            for step in range(steps):
                tokens = [everywhere(k, step, m) for m in range(M)]
                line = b.add(w, b.mul(b.add(k, i8(step)), apart if kind == "values" else i8(size * ROWS)))
                for half in range(halves):
                    stored = pointer(b, lanes if size == 4 else octet, line, size * HALF * half)
                    weights = b.load(stored, align=size)
                    if size == 1:
                        weights = b.sitofp(b.sext(weights, ir.VectorType(i4, HALF)), lanes)
                    for m in range(M):
                        n = half * M + m
                        new[n] = b.call(fma, [weights, tokens[m], new[n]])
                if kind == "panel" and step * size % 4 == 0:  # int8: two steps are half a cache line
                    prefetch(b, line)
            return new

        places = [pointer(b, lanes, y, 4 * (ROWS * m + HALF * half)) for half in range(halves) for m in range(M)]
        zero = ir.Constant(lanes, [0.0] * HALF)
        so_far = [zero if kind == "keys" else b.load(place, align=4) for place in places]
        for total, place in zip(loop(b, K, steps, so_far, step_along_k), places, strict=True):
            b.store(total, place, align=4)

    def emit(context, b, signature, arguments):
        done = b.append_basic_block("done")
        cases = b.switch(arguments[0], done)
        for M in counts:
            one = b.append_basic_block(f"of_{M}")
            cases.add_case(i8(M), one)
            b.position_at_end(one)
            emit_one(b, M, *arguments[1:])
            b.branch(done)
        b.position_at_end(done)
        return context.get_dummy_value()

    def block(typing, M, w, x, y, K, apart):
        return types.void(*[types.int64] * 6), emit

    return intrinsic(block)


def make_pointer(kind, numbers):
    """The address of such numbers, for carray."""

    def emit(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], kind.as_pointer())

    def pointer(typing, address):
        return types.CPointer(numbers)(types.int64), emit

    return intrinsic(pointer)


floats_at, integers_at = make_pointer(f4, types.float32), make_pointer(i4, types.int32)


keys, keys_few, values = make_block((1, 4), "keys"), make_block((1, 4), "keys", halves=1), make_block((4,), "values")


@njit(**options)
def clear(y, n):
    y = carray(floats_at(y), n)
    for i in range(n):
        y[i] = ZERO


def make_rows(size: int):
    """The product of one panel, for weights of so many bytes."""
    block, wide = make_block(range(1, 5), "panel", 4, size=size), make_block(range(3, 7), "panel", 8, size=size)

    @njit(**options | dict(cache=False))  # kept as a part of what calls it
    def rows(M, K, w, x, y):
        """y [M, 16] = x [K, P]ᵀ times the panel at w; P is M rounded up to 4 or 8."""
        clear(y, ROWS * M)
        if M <= 4:
            block(M, w, x, y, K, 0)
            return
        # Seven do not fit into registers: then four at a time, and the last find the weights in the nearest cache.
        tokens, stretch = (M, K) if M <= 6 else (4, STRETCH)
        for k in range(0, K, stretch):
            for m in range(0, M, tokens):
                X, length = x + 4 * (8 * k + m), min(stretch, K - k)
                wide(min(tokens, M - m), w + size * ROWS * k, X, y + 4 * ROWS * m, length, 0)

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


@njit(**options | dict(cache=False))  # kept as a part of what calls it
def chunks_of(counters, phase, chunks):
    """Chunks of a phase that no other thread has taken, one after the other; ends when all of them are done."""
    taken, done = counters.ctypes.data + 8 * LINE * 2 * phase, counters.ctypes.data + 8 * LINE * (2 * phase + 1)
    chunk = fetch_add(taken, 1)
    while chunk < chunks:
        yield chunk
        fetch_add(done, 1)
        chunk = fetch_add(taken, 1)
    looks = 0
    while current(done) < chunks:
        looks += 1
        if looks > SPINS:
            give_way()


float_rows, byte_rows = make_rows(4), make_rows(1)

# ---- int8 weights and tokens in pieces -----------------------------------------------------------------------------
#
# To widen a byte to float32 takes a Neoverse-N1 core as long as to read a float32 from memory. The instruction SDOT
# needs no such thing: int8 times int8, four products at a time, added up in int32, exactly. So where it is there, the
# tokens become integers: x ≈ u · (65536 a + 256 b + c) with bytes a, b, c, and u such that the largest |x| of a token
# just fits. That loses at most u / 2 per number, about as much as float32 loses at the largest one; all that follows is
# exact until the three sums meet in y. 23 billion weights per second for one token, 5 for five, in place of 4.7.

DOTS = has_dot_product()
LARGEST, HIGH_BYTE, MIDDLE_BYTE = (np.float32(c) for c in (127 * 65536, 65536, 256))
HEAD = 4 * 112  # bytes before the pieces: u [8], eight more, and sums [6, 16] of int32


@njit(**options)
def in_pieces(M, K, x, pieces):
    """Tokens at x [K, P] as three bytes per number: words [4, K/4, 8], of which each holds one of the three bytes of
    four numbers, for two tokens side by side: a b c a b c."""
    x, unit = carray(floats_at(x), (K, 4 if M <= 4 else 8)), carray(floats_at(pieces), 8)
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
        b, kinds = builder, ir.FunctionType(four, [four, bytes16, bytes16])
        dot = cgutils.get_or_insert_function(b.module, kinds, "llvm.aarch64.neon.sdot.v4i32.v16i8")

        def step_along_k(k, new):
            line, column = b.add(w, b.mul(k, i8(16))), b.add(x, b.mul(k, i8(8)))
            loaded = [b.load(pointer(b, four, column, 16 * n), align=4) for n in range((V + 3) // 4)]
            same = [b.shuffle_vector(loaded[v // 4], loaded[v // 4], ir.Constant(four, [v % 4] * 4)) for v in range(V)]
            for quarter in range(4):
                weights = b.load(pointer(b, bytes16, line, 16 * quarter), align=1)
                for v in range(V):
                    n = quarter * V + v
                    new[n] = b.call(dot, [new[n], weights, b.bitcast(same[v], bytes16)])
            prefetch(b, line)
            return new

        for n, total in enumerate(loop(b, K, 4, [ir.Constant(four, [0] * 4)] * (4 * V), step_along_k)):
            b.store(total, pointer(b, four, y, 4 * (ROWS * (n % V) + 4 * (n // V))), align=4)
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
                y[m + n, r] = (a * HIGH_BYTE + b * MIDDLE_BYTE + c) * (unit[m + n] * scale[r])


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
def projected(M, K, N, panel, w, scales, bias, X, pieces, y):
    """y [M, 16]: 16 rows of x Wᵀ + b, for tokens at X [K, P] and a weight [N, K], float32, or int8 with scales."""
    if scales:
        int8_rows(M, K, w + ROWS * panel * K, scales + 4 * ROWS * panel, X, pieces, y.ctypes.data)
    else:
        float_rows(M, K, w + 4 * ROWS * panel * K, X, y.ctypes.data)
    if bias:
        b = carray(floats_at(bias), N)
        for m in range(M):
            for r in range(min(ROWS, N - ROWS * panel)):
                y[ROWS * m + r] += b[ROWS * panel + r]


@njit(**options)
def row(address, n, D):
    """Row n of a matrix [·, D] of float32 numbers: an array that nobody counts references to."""
    return carray(floats_at(address + 4 * n * D), D)


@njit(**options)
def sixteens(n):
    """Panels of so many rows of a weight; how often a thread attends for so many queries."""
    return (n + ROWS - 1) // ROWS


@njit(**options)
def products(counters, phase, step, M, K, X, weights, add, copy, pieces, y):
    """A phase: the tokens at X [K, P] times each of some weights, given as the addresses of panels, scales and bias, N,
    and where the result [M, N] goes. With `add` it is added to what is there; with an address, a copy of that, too."""
    panels, scaled, ready = 0, 0, False
    for _, scales, _, N, _ in weights:
        panels, scaled = panels + sixteens(N), scaled | scales
    chunks = (panels + step - 1) // step
    for chunk in chunks_of(counters, phase, chunks):
        if not ready:
            if DOTS and scaled:
                in_pieces(M, K, X, pieces)
            ready = True
        for panel in range(chunk * step, min(panels, chunk * step + step)):
            which, at = 0, panel
            while at >= sixteens(weights[which][3]):
                which, at = which + 1, at - sixteens(weights[which][3])
            w, scales, bias, N, to = weights[which]
            projected(M, K, N, at, w, scales, bias, X, pieces, y)
            for m in range(M):
                new, kept = row(to, m, N), row(copy, m, N)
                for r in range(min(ROWS, N - ROWS * at)):
                    new[ROWS * at + r] = y[ROWS * m + r] + (new[ROWS * at + r] if add else ZERO)
                    if copy:
                        kept[ROWS * at + r] = new[ROWS * at + r]


@njit("void(i8[::1], i8[::1], i8, i8, f4[:, ::1], f4[:, ::1], f4[::1], i4[::1])", **options)
def product(counters, size, w, scales, x, y, scratch, pieces):
    """y [M, N] = x [K, P]ᵀ Wᵀ, a phase of its own. size: M, N, K, panels per chunk."""
    M, N, K, step = size[0], size[1], size[2], size[3]
    weights = ((w, scales, 0, N, y.ctypes.data),)
    products(counters, 0, step, M, K, x.ctypes.data, weights, False, 0, pieces.ctypes.data, scratch)


# ---- the pass: six phases a layer ----------------------------------------------------------------------------------
#
# q, k and v; rotate and store k; attention; its output projection; gate and up; down. What is small (the norm of eight
# tokens) every thread computes for itself rather than wait for another. model.py is the reference for the names, too.

# What a layer's row of the table of addresses holds: norms, and for each product its weight's panels, their scales and
# the bias. 0 is a norm or a bias that the model does not have, or the scales of a weight that is float32.
LN1, WQ, SQ, BQ, WK, SK, BK, WV, SV, BV, QN, KN = range(12)
WO, SO, BO, LN2, WG, SG, BG, WU, SU, BU, WD, SD, BD = range(12, 25)
# What a sequence's row holds: its first token in the pass, how many it has, the slot of the first of them, how many of
# its last slots `seen` is about (all before those are seen), and which row of the table of blocks is its own.
FIRST, COUNT, START, LAST, TABLE = range(5)
PHASES = 6  # of a layer


@njit(**options)
def over_rms(x, eps):
    """What RMSNorm multiplies x [D] with: 1 / √(mean of x² + ε)."""
    squares = ZERO
    for i in range(x.size):
        squares += x[i] * x[i]
    return ONE / np.sqrt(squares / np.float32(x.size) + eps)


@njit(**options)
def normed(x, weight, eps, y):
    """RMSNorm of the tokens x [M, d], as the next product reads it: y [d, P]."""
    M, d = x.shape
    w = carray(floats_at(weight), d)
    for m in range(M):
        scale = over_rms(row(x.ctypes.data, m, d), eps)
        for i in range(d):
            y[i, m] = x[m, i] * scale * w[i]


@njit(**options)
def head_normed(x, weight, eps):
    """RMSNorm of one head x [D], in place."""
    if weight:
        w, scale = carray(floats_at(weight), x.size), over_rms(x, eps)
        for i in range(x.size):
            x[i] = x[i] * scale * w[i]


@njit(**options)
def rotated(x, cos, sin, y):
    """RoPE of one head x [D] at one position: y [D]."""
    half = x.size // 2
    for i in range(half):
        y[i] = x[i] * cos[i] - x[half + i] * sin[i]
    for i in range(half):
        y[half + i] = x[half + i] * cos[half + i] + x[i] * sin[half + i]


@njit(**options)
def softmaxed(scores, width, seen, last, tokens, scale, most, total):
    """exp(score − largest) of up to `width` queries side by side, scores [S, 16] in place, and their sums. Of the
    `last` slots only those that a query's token has `seen` count: whatever lies in the others has no part in it."""
    S, new, first = len(scores), len(scores) - last, seen.shape[1] - last
    for j in range(width):
        most[j], total[j] = NEVER, ZERO
    for j in range(tokens.size):
        for t in range(last):
            if not seen[tokens[j], first + t]:
                scores[new + t, j] = NEVER
    for s in range(S):
        for j in range(width):
            most[j] = max(most[j], scores[s, j])
    for s in range(S):
        for j in range(width):
            scores[s, j] = exp((scores[s, j] - most[j]) * scale)
    for j in range(tokens.size):
        for t in range(last):
            if not seen[tokens[j], first + t]:
                scores[new + t, j] = ZERO
    for s in range(S):
        for j in range(width):
            total[j] += scores[s, j]


@njit(**options)
def attend(queries, key, value, blocks, size, apart, S, D, seen, last, tokens, scale, scores, contexts, most, total):
    """softmax(q Kᵀ · scale) V for up to 16 queries, side by side in [D, 16], over the first S slots of these blocks of
    `size` slots: contexts [16, D]. Key and value are addresses in block 0; blocks and slots are `apart` by so many
    bytes. Query j is that of token tokens[j], which attends to seen[token]."""
    few, block_bytes, row_bytes = tokens.size <= 8, apart[0], apart[1]
    q, y = queries.ctypes.data, scores.ctypes.data
    for block in range((S + size - 1) // size):
        k, s, end = key + blocks[block] * block_bytes, block * size, min(S, block * size + size)
        while s < end:
            n = 4 if s + 4 <= end else 1  # keys at a time
            if few:
                keys_few(n, q, k, y, D, row_bytes)
            else:
                keys(n, q, k, y, D, row_bytes)
            s, k, y = s + n, k + n * row_bytes, y + 4 * ROWS * n
    softmaxed(scores[:S], 8 if few else 16, seen, last, tokens, scale, most, total)
    for j in range(0, tokens.size, 4):  # four queries at a time, sixteen dimensions each
        for i in range(0, D, ROWS):
            clear(most.ctypes.data, 4 * ROWS)
            for block in range((S + size - 1) // size):
                v, y = value + blocks[block] * block_bytes + 4 * i, scores[block * size :].ctypes.data + 4 * j
                values(4, v, y, most.ctypes.data, min(size, S - block * size), row_bytes)
            for query in range(j, min(j + 4, tokens.size)):
                over = ONE / total[query]
                for r in range(ROWS):
                    contexts[query, i + r] = most[ROWS * (query - j) + r] * over


@njit(**options)
def swiglu(gate, up):
    """gate · σ(gate) · up, in place."""
    for i in range(gate.size):
        gate[i] = gate[i] / (ONE + exp(-gate[i])) * up[i]


vector, matrix, cube, memory = "f4[::1]", "f4[:, ::1]", "f4[:, :, ::1]", "f4[:, :, :, :, ::1]"
numbers, pairs, flags, words = "i8[::1]", "i8[:, ::1]", "b1[:, ::1]", "i4[::1]"
# Compiled for exactly these types: an argument of another type is refused, for to compile again takes seconds.
arguments = {
    "plan": (numbers, pairs, numbers, numbers, vector),
    "stream": (matrix, cube, numbers, matrix, matrix),
    "batch": (pairs, numbers, flags),
    "cache": (memory, memory, pairs, numbers),
    "between": (matrix,) * 6,
    "mine": (matrix, vector, matrix, pairs, words),
}
tuples = ", ".join(f"Tuple(({', '.join(types)}))" for types in arguments.values())


@njit(f"void({tuples})", **options)
def run(plan, stream, batch, cache, between, mine):
    counters, table, order, size, constants = plan  # which addresses, which layers, how many of everything
    x, hidden, wanted, cos, sin = stream  # [M, d] in place; [n, M, d] copies after `wanted` layers, or −1; [M, D]
    sequences, owner, seen = batch  # [B, 5], see FIRST; each token's sequence [M]; what it sees of the last [M, s]
    keys, values, blocks, strides = cache  # memory of five dimensions; the blocks of each sequence [·, W]; see below
    # Between phases: [M, N] as the products of x give them, [N, P] as the next product reads it; and [K, P], what a
    # layer without input_layernorm attends with in place of the normed x (EAGLE's first).
    q, k, v, o, h, given = between
    xn, y, own, picked, pieces = mine  # this thread's: [d, P], [2 · 8 · 16], [2 · D + 5 + S, 16], [2, 16], panels.py
    M, d, H, Hkv, D, I, step = size[0], size[1], size[2], size[3], size[4], size[5], size[6]  # noqa: E741
    eps, scale = constants[0], constants[1]
    X, OUT, HIDDEN = xn.ctypes.data, o.ctypes.data, h.ctypes.data
    GIVEN, kg, PIECES = given.ctypes.data, given.shape[0], pieces.ctypes.data
    Q, K, V, COS, SIN = q.ctypes.data, k.ctypes.data, v.ctypes.data, cos.ctypes.data, sin.ctypes.data
    KEYS, VALUES = keys.ctypes.data, values.ctypes.data
    # A block has `slots` slots for D numbers each; so many of them lie between two layers, blocks, heads and slots.
    slots, per_layer, per_block, per_head, per_slot = strides[0], strides[1], strides[2], strides[3], strides[4]
    apart = 4 * D * per_block, 4 * D * per_slot  # bytes
    queries, contexts, scores = own[:D], carray(floats_at(own[D:].ctypes.data), (ROWS, D)), own[2 * D + 5 :]
    most, total = carray(floats_at(own[2 * D :].ctypes.data), 4 * ROWS), own[2 * D + 4]
    heads, tokens = picked[0], picked[1]
    panels_i = sixteens(I)
    kd, ko, ki, half = xn.shape[0], o.shape[0], h.shape[0], ROWS * M
    for n in range(order.size):
        layer, phase = table[order[n]], PHASES * n

        X1, k1 = (X, kd) if layer[LN1] else (GIVEN, kg)
        if layer[LN1]:
            normed(x, layer[LN1], eps, xn)
        of_q = layer[WQ], layer[SQ], layer[BQ], H * D, Q
        of_k = layer[WK], layer[SK], layer[BK], Hkv * D, K
        of_v = layer[WV], layer[SV], layer[BV], Hkv * D, V
        products(counters, phase, step, M, k1, X1, (of_q, of_k, of_v), False, 0, PIECES, y)

        phase += 1
        chunks = M * Hkv
        for chunk in chunks_of(counters, phase, chunks):
            m, head = chunk // Hkv, chunk % Hkv
            its = sequences[owner[m]]
            at = its[START] + m - its[FIRST]
            slot = blocks[its[TABLE], at // slots] * per_block + at % slots * per_slot
            slot += order[n] * per_layer + head * per_head
            one, new, its_value = row(K, m * Hkv + head, D), row(VALUES, slot, D), row(V, m * Hkv + head, D)
            head_normed(one, layer[KN], eps)
            rotated(one, row(COS, m, D), row(SIN, m, D), row(KEYS, slot, D))
            for i in range(D):
                new[i] = its_value[i]

        phase += 1
        chunks = np.int64(0)
        for sequence in sequences:
            chunks += Hkv * sixteens(sequence[COUNT] * (H // Hkv))
        for chunk in chunks_of(counters, phase, chunks):
            sequence, left, sharing = 0, chunk, sequences[0, COUNT] * (H // Hkv)  # queries of a key/value head
            while left >= Hkv * sixteens(sharing):
                left, sequence = left - Hkv * sixteens(sharing), sequence + 1
                sharing = sequences[sequence, COUNT] * (H // Hkv)
            its, T = sequences[sequence], sequences[sequence, COUNT]
            of, first = left // sixteens(sharing), ROWS * (left % sixteens(sharing))
            count = min(ROWS, sharing - first)
            for i in range(count):
                query = first + i
                heads[i], tokens[i] = of * (H // Hkv) + query // T, its[FIRST] + query % T
                one, other = row(Q, tokens[i] * H + heads[i], D), contexts[i, :D]
                head_normed(one, layer[QN], eps)
                rotated(one, row(COS, tokens[i], D), row(SIN, tokens[i], D), other)
                for j in range(D):
                    queries[j, i] = other[j]
            before = 4 * D * (order[n] * per_layer + of * per_head)  # bytes
            K1, V1, mine, S = KEYS + before, VALUES + before, blocks[its[TABLE]], its[START] + T
            last, asked = its[LAST], tokens[:count]
            attend(queries, K1, V1, mine, slots, apart, S, D, seen, last, asked, scale, scores, contexts, most, total)
            for i in range(count):
                for j in range(D):
                    o[heads[i] * D + j, tokens[i]] = contexts[i, j]

        phase += 1
        of_o = layer[WO], layer[SO], layer[BO], d, x.ctypes.data
        products(counters, phase, step, M, ko, OUT, (of_o,), True, 0, PIECES, y)

        phase += 1
        chunks, ready = (panels_i + step - 1) // step, False
        for chunk in chunks_of(counters, phase, chunks):
            if not ready:
                normed(x, layer[LN2], eps, xn)
                if DOTS and layer[SG] | layer[SU]:
                    in_pieces(M, kd, X, PIECES)
                ready = True
            for panel in range(chunk * step, min(panels_i, chunk * step + step)):
                projected(M, kd, I, panel, layer[WG], layer[SG], layer[BG], X, PIECES, y)
                projected(M, kd, I, panel, layer[WU], layer[SU], layer[BU], X, PIECES, y[half:])
                swiglu(y[:half], y[half : 2 * half])
                for r in range(min(ROWS, I - ROWS * panel)):
                    for m in range(M):
                        h[ROWS * panel + r, m] = y[ROWS * m + r]

        phase += 1
        copy = hidden.ctypes.data + 4 * M * d * wanted[n] if wanted[n] >= 0 else 0
        of_down = layer[WD], layer[SD], layer[BD], d, x.ctypes.data
        products(counters, phase, step, M, ki, HIDDEN, (of_down,), True, copy, PIECES, y)
