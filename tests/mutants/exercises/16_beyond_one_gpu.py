# ruff: noqa: F811, F821
# Wrong answers to the exercises of set 16, as cells of a notebook. How they are used: __init__.py.


# %% 16.column_row: sums_at_home
def parallel_mlp(x, up, down, bias, ranks, all_reduce):
    total = bias
    for a, b in zip(up.chunk(ranks, dim=1), down.chunk(ranks, dim=0), strict=True):
        total = total + (x @ a).relu() @ b
    return total


# %% 16.column_row: bias_on_every_rank
def parallel_mlp(x, up, down, bias, ranks, all_reduce):
    parts = []
    for a, b in zip(up.chunk(ranks, dim=1), down.chunk(ranks, dim=0), strict=True):
        parts.append(torch.addmm(bias, (x @ a).clamp(min=0), b))
    return all_reduce(parts)


# %% 16.column_row: reduces_in_between
def parallel_mlp(x, up, down, bias, ranks, all_reduce):
    w = up.shape[1] // ranks
    hidden = []
    for r in range(ranks):
        h = torch.zeros(len(x), up.shape[1], dtype=x.dtype)
        h[:, r * w : (r + 1) * w] = x @ up[:, r * w : (r + 1) * w]
        hidden.append(h)
    h = all_reduce(hidden).relu()
    return all_reduce([h[:, r * w : (r + 1) * w] @ down[r * w : (r + 1) * w] for r in range(ranks)]) + bias


# %% 16.column_row: activation_at_the_end
def parallel_mlp(x, up, down, bias, ranks, all_reduce):
    parts = [(x @ a) @ b for a, b in zip(up.chunk(ranks, dim=1), down.chunk(ranks, dim=0), strict=True)]
    return bias + all_reduce(parts).relu()


# %% 16.column_row: one_gpu_does_it_all
def parallel_mlp(x, up, down, bias, ranks, all_reduce):
    everything = (x @ up).relu() @ down
    return all_reduce([everything / ranks for _ in range(ranks)]) + bias


# %% 16.kv_per_rank: the_whole_cache
def kv_per_rank(layers, heads, kv_heads, head_dim, bits, weight_bytes, ranks, memory):
    per_token = 2 * layers * kv_heads * head_dim * bits / 8
    return per_token, max(0, int((memory - weight_bytes / ranks) // per_token))


# %% 16.kv_per_rank: a_fraction_of_a_head
def kv_per_rank(layers, heads, kv_heads, head_dim, bits, weight_bytes, ranks, memory):
    per_token = 2 * layers * kv_heads * head_dim * bits / 8 / ranks
    return per_token, max(0, int((memory - weight_bytes / ranks) // per_token))


# %% 16.kv_per_rank: all_weights_on_a_rank
def kv_per_rank(layers, heads, kv_heads, head_dim, bits, weight_bytes, ranks, memory):
    per_token = 2 * layers * -(-kv_heads // ranks) * head_dim * bits // 8
    return per_token, max(0, int((memory - weight_bytes) // per_token))


# %% 16.kv_per_rank: memory_of_all_ranks
def kv_per_rank(layers, heads, kv_heads, head_dim, bits, weight_bytes, ranks, memory):
    per_token = 2 * layers * -(-kv_heads // ranks) * head_dim * bits // 8
    return per_token, max(0, int((memory * ranks - weight_bytes) // per_token))
