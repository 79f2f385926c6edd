# ruff: noqa: F811, F821
# Wrong answers to the exercises of set 01, as cells of a notebook. How they are used: __init__.py.


# %% 01.intensity: one_flop_per_weight
def intensity(weights, bits, batch, tokens, context, kv_bytes):
    flops = weights * batch * tokens
    return flops / (weights * (bits / 8) + batch * context * kv_bytes)


# %% 01.intensity: bits_as_bytes
def intensity(weights, bits, batch, tokens, context, kv_bytes):
    flops = 2 * weights * batch * tokens
    return flops / (weights * bits + batch * context * kv_bytes)


# %% 01.intensity: weights_read_for_every_token
def intensity(weights, bits, batch, tokens, context, kv_bytes):
    flops = read = 0
    for _ in range(batch):
        read += context * kv_bytes
        for _ in range(tokens):
            flops += 2 * weights
            read += weights * bits / 8
    return flops / read


# %% 01.intensity: weights_read_for_every_row
def intensity(weights, bits, batch, tokens, context, kv_bytes):
    row_flops = 2 * weights * tokens
    row_bytes = weights * bits / 8 + context * kv_bytes
    return (batch * row_flops) / (batch * row_bytes)


# %% 01.intensity: forgets_the_cache
def intensity(weights, bits, batch, tokens, context, kv_bytes):
    return 2 * batch * tokens / (bits / 8)


# %% 01.intensity: one_cache_for_all_rows
def intensity(weights, bits, batch, tokens, context, kv_bytes):
    weight_bytes = weights * bits / 8
    cache_bytes = context * kv_bytes
    return 2 * weights * (batch * tokens) / (weight_bytes + cache_bytes)


# %% 01.intensity: cache_read_for_every_token
def intensity(weights, bits, batch, tokens, context, kv_bytes):
    positions = batch * tokens
    return 2 * weights * positions / (weights * bits / 8 + positions * context * kv_bytes)


# %% 01.intensity: bytes_per_flop
def intensity(weights, bits, batch, tokens, context, kv_bytes):
    read = weights * bits / 8 + batch * context * kv_bytes
    return read / (2 * weights * batch * tokens)


# %% 01.roofline: adds_both
def roofline(bytes_read, flops, bandwidth, peak):
    reading = bytes_read / bandwidth
    computing = flops / peak
    return reading + computing, "compute" if computing > reading else "memory"


# %% 01.roofline: who_finishes_first
def roofline(bytes_read, flops, bandwidth, peak):
    return min((bytes_read / bandwidth, "memory"), (flops / peak, "compute"))


# %% 01.roofline: names_the_idle_side
def roofline(bytes_read, flops, bandwidth, peak):
    reading = bytes_read / bandwidth
    computing = flops / peak
    if computing < reading:
        return reading, "compute"
    return computing, "memory"


# %% 01.roofline: compares_amounts
def roofline(bytes_read, flops, bandwidth, peak):
    limit = "compute" if flops >= bytes_read else "memory"
    return max(bytes_read / bandwidth, flops / peak), limit


# %% 01.roofline: always_memory
def roofline(bytes_read, flops, bandwidth, peak):
    return bytes_read / bandwidth, "memory"


# %% 01.roofline: exchanges_the_rates
def roofline(bytes_read, flops, bandwidth, peak):
    reading, computing = bytes_read / peak, flops / bandwidth
    return [max(reading, computing), "memory" if reading > computing else "compute"]


# %% 01.ridge: counts_the_last_token
def free_drafts(weights, bits, batch, context, kv_bytes, bandwidth, peak):
    return int(peak / bandwidth / our_intensity(weights, bits, batch, 1, context, kv_bytes))


# %% 01.ridge: forgets_the_batch
def free_drafts(weights, bits, batch, context, kv_bytes, bandwidth, peak):
    bytes_read = weights * bits / 8 + context * kv_bytes
    seconds = bytes_read / bandwidth
    return max(0, int(seconds * peak / (2 * weights)) - 1)


# %% 01.ridge: without_the_cache
def free_drafts(weights, bits, batch, context, kv_bytes, bandwidth, peak):
    tokens = peak / bandwidth * (bits / 8) / (2 * batch)
    return max(0, math.floor(tokens - 1))


# %% 01.ridge: rounds_up
def free_drafts(weights, bits, batch, context, kv_bytes, bandwidth, peak):
    m = peak / bandwidth / our_intensity(weights, bits, batch, 1, context, kv_bytes)
    return math.ceil(max(1, m)) - 1


# %% 01.ridge: fewer_than_none
def free_drafts(weights, bits, batch, context, kv_bytes, bandwidth, peak):
    drafts = 0
    while our_intensity(weights, bits, batch, drafts + 1, context, kv_bytes) <= peak / bandwidth:
        drafts += 1
    return drafts - 1


# %% 01.ridge: always_bf16
def free_drafts(weights, bits, batch, context, kv_bytes, bandwidth, peak):
    read = 2 * weights + batch * context * kv_bytes
    m = peak / bandwidth * read / (2 * weights * batch)
    return max(0, int(m) - 1)
