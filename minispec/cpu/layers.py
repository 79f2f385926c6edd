"""A forward pass through all layers for up to eight tokens, as one function that numba compiles and a team runs.

Six phases a layer: q, k and v; rotate and store k; attention; its output projection; gate and up; down. What is small
(the norm of eight tokens) every thread computes for itself rather than wait for another. model.py is the reference, and
the names are its names. Imported when it is first needed, like code.py.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit

from .code import (
    NEVER,
    ONE,
    ROWS,
    ZERO,
    clear,
    exp,
    first_chunk,
    floats_at,
    key1,
    key1_few,
    keys4,
    keys4_few,
    next_chunk,
    options,
    values4,
)
from .products import panel_product, prepare

# What a layer's row of the table of addresses holds: a weight's panels, its scales and its bias. 0 is a norm or a bias
# that the model does not have, or the scales of a weight that is float32.
FIELDS = (
    "input_layernorm q_proj q_scales q_bias k_proj k_scales k_bias v_proj v_scales v_bias q_norm k_norm "
    "o_proj o_scales o_bias post_attention_layernorm gate_proj gate_scales gate_bias up_proj up_scales up_bias "
    "down_proj down_scales down_bias"
).split()
LN1, WQ, SQ, BQ, WK, SK, BK, WV, SV, BV, QN, KN = range(12)
WO, SO, BO, LN2, WG, SG, BG, WU, SU, BU, WD, SD, BD = range(12, len(FIELDS))
# What a sequence's row holds: its first token in the pass, how many it has, the slot of the first of them, how many of
# its last slots `seen` is about (all before those are seen), and which row of the table of blocks is its own.
FIRST, COUNT, START, LAST, TABLE = range(5)
PHASES = 6  # of a layer
QUERIES = ROWS  # that a thread attends for at once


@njit(**options)
def normed(x, weight, eps, y):
    """RMSNorm of the tokens x [M, d], as the next product reads it: y [d, P]."""
    M, d = x.shape
    w = carray(floats_at(weight), d)
    for m in range(M):
        squares = ZERO
        for i in range(d):
            squares += x[m, i] * x[m, i]
        scale = ONE / np.sqrt(squares / np.float32(d) + eps)
        for i in range(d):
            y[i, m] = x[m, i] * scale * w[i]


@njit(**options)
def head_normed(x, weight, eps):
    """RMSNorm of one head x [D], in place."""
    if weight:
        w, squares = carray(floats_at(weight), x.size), ZERO
        for i in range(x.size):
            squares += x[i] * x[i]
        scale = ONE / np.sqrt(squares / np.float32(x.size) + eps)
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
def projected(M, K, N, panel, w, scales, bias, X, pieces, y):
    """y [M, 16]: 16 rows of x Wᵀ + b, for tokens at X [K, P] and a weight [N, K]."""
    panel_product(M, K, panel, w, scales, X, pieces, y.ctypes.data)
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
def attend(queries, keys, values, blocks, size, apart, S, D, seen, last, tokens, scale, scores, contexts, most, total):
    """softmax(q Kᵀ · scale) V for up to 16 queries, side by side in [D, 16], over the first S slots of these blocks of
    `size` slots: contexts [16, D]. Keys and values are addresses in block 0; blocks and slots are `apart` by so many
    bytes. Query j is that of token tokens[j], which attends to seen[token]."""
    few, block_bytes, row_bytes = tokens.size <= 8, apart[0], apart[1]
    q, y = queries.ctypes.data, scores.ctypes.data
    for block in range((S + size - 1) // size):
        k, s, end = keys + blocks[block] * block_bytes, block * size, min(S, block * size + size)
        while s + 4 <= end:  # four keys at a time
            if few:
                keys4_few(q, k, y, D, row_bytes)
            else:
                keys4(q, k, y, D, row_bytes)
            s, k, y = s + 4, k + 4 * row_bytes, y + 4 * 4 * ROWS
        while s < end:
            if few:
                key1_few(q, k, y, D, row_bytes)
            else:
                key1(q, k, y, D, row_bytes)
            s, k, y = s + 1, k + row_bytes, y + 4 * ROWS
    softmaxed(scores[:S], 8 if few else 16, seen, last, tokens, scale, most, total)
    for j in range(0, tokens.size, 4):  # four queries at a time, sixteen dimensions each
        for i in range(0, D, ROWS):
            clear(most.ctypes.data, 4 * ROWS)
            for block in range((S + size - 1) // size):
                v, y = values + blocks[block] * block_bytes + 4 * i, scores[block * size :].ctypes.data + 4 * j
                values4(v, y, most.ctypes.data, min(size, S - block * size), row_bytes)
            for query in range(j, min(j + 4, tokens.size)):
                over = ONE / total[query]
                for r in range(ROWS):
                    contexts[query, i + r] = most[ROWS * (query - j) + r] * over


@njit(**options)
def groups_of(queries):
    """How often a thread attends for so many queries."""
    return (queries + QUERIES - 1) // QUERIES


@njit(**options)
def swiglu(gate, up):
    """gate · σ(gate) · up, in place."""
    for i in range(gate.size):
        gate[i] = gate[i] / (ONE + exp(-gate[i])) * up[i]


@njit(**options)
def add_projected(counters, phase, step, K, w, scales, bias, X, x, copy, pieces, y):
    """A phase: the residual stream x [M, d] += X Wᵀ + b for X [K, P]; with an address, a copy of the sum, too."""
    M, d = x.shape
    panels, kept = (d + ROWS - 1) // ROWS, carray(floats_at(copy), (M, d))
    chunks, ready = (panels + step - 1) // step, False
    chunk = first_chunk(counters, phase, chunks)
    while chunk >= 0:
        if not ready:
            prepare(M, K, X, scales, pieces)
            ready = True
        for panel in range(chunk * step, min(panels, chunk * step + step)):
            projected(M, K, d, panel, w, scales, bias, X, pieces, y)
            for m in range(M):
                for r in range(min(ROWS, d - ROWS * panel)):
                    x[m, ROWS * panel + r] += y[ROWS * m + r]
                    if copy:
                        kept[m, ROWS * panel + r] = x[m, ROWS * panel + r]
        chunk = next_chunk(counters, phase, chunks)


vector, matrix, cube, memory = "f4[::1]", "f4[:, ::1]", "f4[:, :, ::1]", "f4[:, :, :, :, ::1]"
numbers, pairs, flags = "i8[::1]", "i8[:, ::1]", "b1[:, ::1]"
# Compiled for exactly these types: an argument of another type is refused, for to compile again takes seconds.
plan = numbers, pairs, numbers, numbers, vector
stream = matrix, cube, numbers, matrix, matrix
cached = pairs, numbers, flags, memory, memory, pairs, numbers
SIGNATURE = ", ".join([*plan, *stream, *cached, *[matrix] * 7, vector, matrix, pairs, "i4[::1]"])


@njit(f"void({SIGNATURE})", **options)
def run(
    counters,
    table,
    order,
    size,
    constants,  # which addresses, which layers, how many of everything
    x,
    hidden,
    wanted,  # [M, d] residual stream, in place; [n, M, d] copies of it after `wanted` layers, or −1
    cos,
    sin,  # [M, D]
    sequences,
    owner,
    seen,  # [B, 5], see FIRST; each token's sequence [M]; what it sees of the last slots [M, s]
    keys,
    values,
    blocks,
    strides,  # memory of five dimensions; the blocks of each sequence [·, W]; see below
    q,
    k,
    v,
    o,
    h,  # between phases: [M, N] as the products of x give them, [N, P] as the next product reads it
    given,  # [K, P]: what a layer without input_layernorm attends with in place of the normed x (EAGLE's first)
    xn,
    y,
    own,
    picked,
    pieces,  # this thread's own: [d, P], [2 · 8 · 16], [2 · D + 5 + S, 16], [2, 16], products.py
):
    M, d, H, Hkv, D, I, step = size[0], size[1], size[2], size[3], size[4], size[5], size[6]  # noqa: E741
    eps, scale = constants[0], constants[1]
    X, OUT, HIDDEN = xn.ctypes.data, o.ctypes.data, h.ctypes.data
    GIVEN, kg, PIECES = given.ctypes.data, given.shape[0], pieces.ctypes.data
    Q, K, V, COS, SIN = q.ctypes.data, k.ctypes.data, v.ctypes.data, cos.ctypes.data, sin.ctypes.data
    KEYS, VALUES = keys.ctypes.data, values.ctypes.data
    # A block has `slots` slots for D numbers each; so many of them lie between two layers, blocks, heads and slots.
    slots, per_layer, per_block, per_head, per_slot = strides[0], strides[1], strides[2], strides[3], strides[4]
    apart = 4 * D * per_block, 4 * D * per_slot  # bytes
    queries, contexts, scores = own[:D], carray(floats_at(own[D:].ctypes.data), (QUERIES, D)), own[2 * D + 5 :]
    most, total = carray(floats_at(own[2 * D :].ctypes.data), 4 * ROWS), own[2 * D + 4]
    heads, tokens = picked[0], picked[1]
    panels_q, panels_kv, panels_i = (H * D + ROWS - 1) // ROWS, (Hkv * D + ROWS - 1) // ROWS, (I + ROWS - 1) // ROWS
    kd, ko, ki, half = xn.shape[0], o.shape[0], h.shape[0], ROWS * M
    for n in range(order.size):
        layer, phase = table[order[n]], PHASES * n

        chunks, ready = (panels_q + 2 * panels_kv + step - 1) // step, False
        X1, k1 = (X, kd) if layer[LN1] else (GIVEN, kg)
        chunk = first_chunk(counters, phase, chunks)
        while chunk >= 0:
            if not ready:
                if layer[LN1]:
                    normed(x, layer[LN1], eps, xn)
                prepare(M, k1, X1, layer[SQ] | layer[SK] | layer[SV], PIECES)
                ready = True
            for panel in range(chunk * step, min(panels_q + 2 * panels_kv, chunk * step + step)):
                if panel < panels_q:
                    at, to, N, w, s, b = panel, q, H * D, layer[WQ], layer[SQ], layer[BQ]
                elif panel < panels_q + panels_kv:
                    at, to, N, w, s, b = panel - panels_q, k, Hkv * D, layer[WK], layer[SK], layer[BK]
                else:
                    at, to, N, w, s, b = panel - panels_q - panels_kv, v, Hkv * D, layer[WV], layer[SV], layer[BV]
                projected(M, k1, N, at, w, s, b, X1, PIECES, y)
                for m in range(M):
                    for r in range(min(ROWS, N - ROWS * at)):
                        to[m, ROWS * at + r] = y[ROWS * m + r]
            chunk = next_chunk(counters, phase, chunks)

        phase += 1
        chunks = M * Hkv
        chunk = first_chunk(counters, phase, chunks)
        while chunk >= 0:
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
            chunk = next_chunk(counters, phase, chunks)

        phase += 1
        chunks = 0
        for sequence in sequences:
            chunks += Hkv * groups_of(sequence[COUNT] * (H // Hkv))
        chunk = first_chunk(counters, phase, chunks)
        while chunk >= 0:
            sequence, left, sharing = 0, chunk, sequences[0, COUNT] * (H // Hkv)  # queries of a key/value head
            while left >= Hkv * groups_of(sharing):
                left, sequence = left - Hkv * groups_of(sharing), sequence + 1
                sharing = sequences[sequence, COUNT] * (H // Hkv)
            its, T = sequences[sequence], sequences[sequence, COUNT]
            of, first = left // groups_of(sharing), QUERIES * (left % groups_of(sharing))
            count = min(QUERIES, sharing - first)
            for i in range(count):
                query = first + i
                heads[i], tokens[i] = of * (H // Hkv) + query // T, its[FIRST] + query % T
                one, other = row(Q, tokens[i] * H + heads[i], D), contexts[i, :D]
                head_normed(one, layer[QN], eps)
                rotated(one, row(COS, tokens[i], D), row(SIN, tokens[i], D), other)
                for j in range(D):
                    queries[j, i] = other[j]
            before = 4 * D * (order[n] * per_layer + of * per_head)  # bytes
            attend(
                queries,
                KEYS + before,
                VALUES + before,
                blocks[its[TABLE]],
                slots,
                apart,
                its[START] + T,
                D,
                seen,
                its[LAST],
                tokens[:count],
                scale,
                scores,
                contexts,
                most,
                total,
            )
            for i in range(count):
                for j in range(D):
                    o[heads[i] * D + j, tokens[i]] = contexts[i, j]
            chunk = next_chunk(counters, phase, chunks)

        phase += 1
        add_projected(counters, phase, step, ko, layer[WO], layer[SO], layer[BO], OUT, x, 0, PIECES, y)

        phase += 1
        chunks, ready = (panels_i + step - 1) // step, False
        chunk = first_chunk(counters, phase, chunks)
        while chunk >= 0:
            if not ready:
                normed(x, layer[LN2], eps, xn)
                prepare(M, kd, X, layer[SG] | layer[SU], PIECES)
                ready = True
            for panel in range(chunk * step, min(panels_i, chunk * step + step)):
                projected(M, kd, I, panel, layer[WG], layer[SG], layer[BG], X, PIECES, y)
                projected(M, kd, I, panel, layer[WU], layer[SU], layer[BU], X, PIECES, y[half:])
                swiglu(y[:half], y[half : 2 * half])
                for r in range(min(ROWS, I - ROWS * panel)):
                    for m in range(M):
                        h[ROWS * panel + r, m] = y[ROWS * m + r]
            chunk = next_chunk(counters, phase, chunks)

        phase += 1
        copy = hidden.ctypes.data + 4 * M * d * wanted[n] if wanted[n] >= 0 else 0
        add_projected(counters, phase, step, ki, layer[WD], layer[SD], layer[BD], HIDDEN, x, copy, PIECES, y)
