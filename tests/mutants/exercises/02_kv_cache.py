# ruff: noqa: F811, F821
# Wrong answers to the exercises of set 02, as cells of a notebook. How they are used: __init__.py.


# %% 02.kv_bytes: query_heads
def kv_gib(layers, heads, kv_heads, head_dim, bits, batch, length):
    hidden = heads * head_dim
    return 2 * layers * hidden * (bits // 8) * batch * length / 1024**3


# %% 02.kv_bytes: keys_only
def kv_gib(layers, heads, kv_heads, head_dim, bits, batch, length):
    return layers * kv_heads * head_dim * (bits // 8) * batch * length / 1024**3


# %% 02.kv_bytes: bits_for_bytes
def kv_gib(layers, heads, kv_heads, head_dim, bits, batch, length):
    return 2 * layers * kv_heads * head_dim * bits * batch * length / 1024**3


# %% 02.kv_bytes: decimal_gigabytes
def kv_gib(layers, heads, kv_heads, head_dim, bits, batch, length):
    return 2 * layers * kv_heads * head_dim * (bits // 8) * batch * length / 1e9


# %% 02.kv_bytes: one_row
def kv_gib(layers, heads, kv_heads, head_dim, bits, batch, length):
    return 2 * layers * kv_heads * head_dim * (bits // 8) * length / 1024**3


# %% 02.kv_bytes: one_layer
def kv_gib(layers, heads, kv_heads, head_dim, bits, batch, length):
    return 2 * kv_heads * head_dim * (bits // 8) * length * batch / 1024**3


# %% 02.cached_attention: attends_to_stale_slots
def cached_attention(q, keys, values, length):
    groups = q.shape[0] // keys.shape[0]
    k, v = keys.repeat_interleave(groups, 0), values.repeat_interleave(groups, 0)
    scores = (k @ q[:, :, None])[..., 0] / q.shape[1] ** 0.5
    return (scores.softmax(-1)[:, None] @ v)[:, 0]


# %% 02.cached_attention: hides_with_zero
def cached_attention(q, keys, values, length):
    groups = q.shape[0] // keys.shape[0]
    keys = keys.clone()
    keys[:, length:] = 0
    k, v = keys.repeat_interleave(groups, 0), values.repeat_interleave(groups, 0)
    scores = (k @ q[:, :, None])[..., 0] / q.shape[1] ** 0.5
    return (scores.softmax(-1)[:, None] @ v)[:, 0]


# %% 02.cached_attention: hides_after_the_softmax
def cached_attention(q, keys, values, length):
    groups = q.shape[0] // keys.shape[0]
    k, v = keys.repeat_interleave(groups, 0), values.repeat_interleave(groups, 0)
    weights = ((k @ q[:, :, None])[..., 0] / q.shape[1] ** 0.5).softmax(-1)
    weights[:, length:] = 0
    return (weights[:, None] @ v)[:, 0]


# %% 02.cached_attention: misses_itself
def cached_attention(q, keys, values, length):
    groups = q.shape[0] // keys.shape[0]
    past = slice(0, length - 1)
    k, v = keys[:, past].repeat_interleave(groups, 0), values[:, past].repeat_interleave(groups, 0)
    return torch.nn.functional.scaled_dot_product_attention(q[:, None], k, v)[:, 0]


# %% 02.cached_attention: divides_by_d
def cached_attention(q, keys, values, length):
    out = []
    groups = q.shape[0] // keys.shape[0]
    for h in range(q.shape[0]):
        k, v = keys[h // groups, :length], values[h // groups, :length]
        out.append(torch.softmax(k @ q[h] / len(q[h]), 0) @ v)
    return torch.stack(out)


# %% 02.cached_attention: no_scale
def cached_attention(q, keys, values, length):
    out = []
    groups = q.shape[0] // keys.shape[0]
    for h in range(q.shape[0]):
        k, v = keys[h // groups, :length], values[h // groups, :length]
        out.append(torch.softmax(k @ q[h], 0) @ v)
    return torch.stack(out)


# %% 02.cached_attention: heads_in_turn
def cached_attention(q, keys, values, length):
    groups = q.shape[0] // keys.shape[0]
    k, v = keys[:, :length].repeat(groups, 1, 1), values[:, :length].repeat(groups, 1, 1)
    return torch.nn.functional.scaled_dot_product_attention(q[:, None], k, v)[:, 0]


# %% 02.cached_attention: one_kv_head_for_all
def cached_attention(q, keys, values, length):
    k, v = keys[0, :length], values[0, :length]
    return torch.softmax(q @ k.T / math.sqrt(q.shape[1]), dim=-1) @ v


# %% 02.cached_attention: softmax_over_heads
def cached_attention(q, keys, values, length):
    groups = q.shape[0] // keys.shape[0]
    k, v = keys[:, :length].repeat_interleave(groups, 0), values[:, :length].repeat_interleave(groups, 0)
    scores = (q[:, None] @ k.transpose(1, 2)) / math.sqrt(q.shape[1])
    return (torch.softmax(scores, dim=0) @ v)[:, 0]


# %% 02.ragged: new_tokens_blind_to_themselves
def visible(lengths, count):
    mask = torch.zeros(len(lengths), count, int(lengths.max()) + count, dtype=torch.bool)
    for b, length in enumerate(lengths.tolist()):
        for t in range(count):
            mask[b, t, : length + t] = True
    return mask


# %% 02.ragged: sees_one_ahead
def visible(lengths, count):
    mask = torch.zeros(len(lengths), count, int(lengths.max()) + count, dtype=torch.bool)
    for b, length in enumerate(lengths.tolist()):
        for t in range(count):
            mask[b, t, : length + t + 2] = True
    return mask


# %% 02.ragged: new_tokens_see_all_new
def visible(lengths, count):
    mask = torch.zeros(len(lengths), count, int(lengths.max()) + count, dtype=torch.bool)
    for b, length in enumerate(lengths.tolist()):
        mask[b, :, : length + count] = True
    return mask


# %% 02.ragged: only_the_past
def visible(lengths, count):
    mask = torch.zeros(len(lengths), count, int(lengths.max()) + count, dtype=torch.bool)
    for b, length in enumerate(lengths.tolist()):
        mask[b, :, :length] = True
    return mask


# %% 02.ragged: longest_row_for_all
def visible(lengths, count):
    size = int(lengths.max()) + count
    causal = torch.ones(size, size, dtype=torch.bool).tril()
    return causal[-count:].expand(len(lengths), count, size)


# %% 02.ragged: new_tokens_at_the_end
def visible(lengths, count):
    longest = int(lengths.max())
    past = torch.arange(longest) < lengths[:, None]  # [B, longest]
    past = past[:, None].expand(-1, count, -1)
    new = torch.ones(count, count, dtype=torch.bool).tril().expand(len(lengths), -1, -1)
    return torch.cat([past, new], dim=-1)


# %% 02.ragged: true_means_hidden
def visible(lengths, count):
    own = lengths.view(-1, 1, 1) + torch.arange(count).view(1, -1, 1)
    return torch.arange(int(lengths.max()) + count) > own
