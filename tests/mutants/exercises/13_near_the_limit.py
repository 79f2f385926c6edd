# ruff: noqa: F811, F821
# Wrong answers to the exercises of set 13, as cells of a notebook. How they are used: __init__.py.


# %% 13.pass_bytes: weights_for_every_token
def pass_bytes(layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, tokens, context, size):
    qo, kv = hidden * heads * head_dim, hidden * kv_heads * head_dim
    parameters = layers * (qo + kv + kv + qo + hidden * intermediate * 3) + vocab * hidden
    cache = context * layers * kv_heads * head_dim * 2
    return tokens * parameters * size + cache * size


# %% 13.pass_bytes: cache_of_all_heads
def pass_bytes(layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, tokens, context, size):
    total = vocab * hidden
    for _ in range(layers):
        total += 2 * hidden * head_dim * (heads + kv_heads) + 3 * hidden * intermediate
        total += 2 * heads * head_dim * context
    return total * size


# %% 13.pass_bytes: forgets_the_lm_head
def pass_bytes(layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, tokens, context, size):
    total = 0
    for _ in range(layers):
        total += 2 * hidden * head_dim * (heads + kv_heads) + 3 * hidden * intermediate
        total += 2 * kv_heads * head_dim * context
    return total * size


# %% 13.pass_bytes: wide_k_and_v
def pass_bytes(layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, tokens, context, size):
    width = heads * head_dim
    weights = layers * (4 * hidden * width + 3 * hidden * intermediate) + vocab * hidden
    return (weights + 2 * layers * kv_heads * head_dim * context) * size


# %% 13.roofline: adds_the_times
def place(read, flops, seconds, bandwidth, peak):
    reading, computing = read / bandwidth, flops / peak
    share = (reading + computing) / seconds
    bound = "memory" if reading >= computing else "compute"
    return flops / read, "latency" if share < 0.5 else bound, share


# %% 13.roofline: never_latency
def place(read, flops, seconds, bandwidth, peak):
    ridge = peak / bandwidth
    intensity = flops / read
    attainable = min(peak, intensity * bandwidth)
    return intensity, "memory" if intensity <= ridge else "compute", flops / seconds / attainable


# %% 13.roofline: always_the_bandwidth
def place(read, flops, seconds, bandwidth, peak):
    share = (read / seconds) / bandwidth
    if share < 0.5:
        return flops / read, "latency", share
    return flops / read, "memory" if flops / read <= peak / bandwidth else "compute", share


# %% 13.roofline: share_upside_down
def place(read, flops, seconds, bandwidth, peak):
    best = max(read / bandwidth, flops / peak)
    share = seconds / best
    if share < 0.5:
        return flops / read, "latency", share
    return flops / read, "memory" if best == read / bandwidth else "compute", share


# %% 13.merge_splits: averages_the_splits
def merge_splits(m, ell, o):
    parts = [o[i] / ell[i] for i in range(len(ell)) if ell[i] > 0]
    return sum(parts) / len(parts)


# %% 13.merge_splits: ignores_the_maxima
def merge_splits(m, ell, o):
    o = o[ell > 0]
    return o.sum(0) / ell.sum()


# %% 13.merge_splits: no_common_maximum
def merge_splits(m, ell, o):
    top = bottom = 0
    for a, b, c in zip(m, ell, o, strict=True):
        if b > 0:
            top = top + a.exp() * c
            bottom = bottom + a.exp() * b
    return top / bottom


# %% 13.merge_splits: reads_the_empty_split
def merge_splits(m, ell, o):
    w = torch.exp(m - m.max())
    return torch.einsum("s,sd->d", w, o) / torch.dot(w, ell)


# %% 13.merge_splits: weighs_only_o
def merge_splits(m, ell, o):
    m, o = m[ell > 0], o[ell > 0]
    return torch.exp(m - m.max()) @ o / ell.sum()


# %% 13.captured: uses_the_host_s_count
def captured_step(gpu, count):
    last = gpu.token(count - 1)
    new = gpu.next(last, count - 1)
    gpu.write(count, new)
    gpu.advance(1)


# %% 13.captured: looks_at_the_count
def captured_step(gpu, count):
    count = gpu.look(gpu.count)
    new = gpu.next(gpu.token(count - 1), count - 1)
    gpu.write(count, new)
    gpu.advance()


# %% 13.captured: never_advances
def captured_step(gpu, count):
    new = gpu.next(gpu.token(gpu.count - 1), gpu.count - 1)
    gpu.write(gpu.count, new)


# %% 13.captured: advances_first
def captured_step(gpu, count):
    new = gpu.next(gpu.token(gpu.count - 1), gpu.count - 1)
    gpu.advance()
    gpu.write(gpu.count, new)
