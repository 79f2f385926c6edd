# ruff: noqa: F811, F821
# Wrong answers to the exercises of set 10, as cells of a notebook. How they are used: __init__.py.


# %% 10.features: token_of_the_same_place
def eagle_entries(streams, text, fc, eps):
    x = streams * torch.rsqrt((streams**2).mean(-1, keepdim=True) + eps)
    g = torch.cat([x[0], x[1], x[2]], -1) @ fc.T
    return g, text[: len(g)], [t + 2 for t in range(len(g))]


# %% 10.features: shifts_the_features
def eagle_entries(streams, text, fc, eps):
    x = streams * torch.rsqrt((streams**2).mean(-1, keepdim=True) + eps)
    g = torch.cat([x[0], x[1], x[2]], -1) @ fc.T
    return torch.cat([g[-1:], g[:-1]]), text[1:], [t + 2 for t in range(len(g))]


# %% 10.features: speaks_of_the_next
def eagle_entries(streams, text, fc, eps):
    x = streams * torch.rsqrt((streams**2).mean(-1, keepdim=True) + eps)
    g = torch.cat([x[0], x[1], x[2]], -1) @ fc.T
    return g, text[1:], list(range(1, len(text)))


# %% 10.features: streams_as_they_are
def eagle_entries(streams, text, fc, eps):
    g = torch.cat([streams[0], streams[1], streams[2]], -1) @ fc.T
    return g, text[1:], [t + 2 for t in range(len(g))]


# %% 10.features: norms_all_together
def eagle_entries(streams, text, fc, eps):
    x = torch.cat([streams[0], streams[1], streams[2]], -1)
    x = x * torch.rsqrt((x**2).mean(-1, keepdim=True) + eps)
    return x @ fc.T, text[1:], [t + 2 for t in range(len(x))]


# %% 10.features: adds_the_streams
def eagle_entries(streams, text, fc, eps):
    x = (streams * torch.rsqrt((streams**2).mean(-1, keepdim=True) + eps)).sum(0)
    g = sum(x @ part.T for part in fc.chunk(3, dim=1))
    return g, text[1:], [t + 2 for t in range(len(g))]


# %% 10.features: high_stream_first
def eagle_entries(streams, text, fc, eps):
    x = streams * torch.rsqrt((streams**2).mean(-1, keepdim=True) + eps)
    g = torch.cat([x[2], x[1], x[0]], -1) @ fc.T
    return g, text[1:], [t + 2 for t in range(len(g))]


# %% 10.features: interleaved
def eagle_entries(streams, text, fc, eps):
    x = streams * torch.rsqrt((streams**2).mean(-1, keepdim=True) + eps)
    g = torch.stack([x[0], x[1], x[2]], -1).flatten(1) @ fc.T
    return g, text[1:], [t + 2 for t in range(len(g))]


# %% 10.block_mask: causal_block
def block_mask(anchors, length, block):
    context = torch.zeros(len(anchors) * block, length, dtype=torch.bool)
    for i in range(len(context)):
        context[i, : anchors[i // block]] = True
    own = torch.block_diag(*[torch.ones(block, block).tril()] * len(anchors)).bool()
    return torch.cat([context, own], 1), [n + j for n in anchors for j in range(block)]


# %% 10.block_mask: sees_the_anchor_state
def block_mask(anchors, length, block):
    context = torch.zeros(len(anchors) * block, length, dtype=torch.bool)
    for i in range(len(context)):
        context[i, : anchors[i // block] + 1] = True
    own = torch.block_diag(*[torch.ones(block, block)] * len(anchors)).bool()
    return torch.cat([context, own], 1), [n + j for n in anchors for j in range(block)]


# %% 10.block_mask: sees_the_whole_text
def block_mask(anchors, length, block):
    context = torch.ones(len(anchors) * block, length, dtype=torch.bool)
    own = torch.block_diag(*[torch.ones(block, block)] * len(anchors)).bool()
    return torch.cat([context, own], 1), [n + j for n in anchors for j in range(block)]


# %% 10.block_mask: one_place_short
def block_mask(anchors, length, block):
    context = torch.zeros(len(anchors) * block, length, dtype=torch.bool)
    for i in range(len(context)):
        context[i, : anchors[i // block] - 1] = True
    own = torch.block_diag(*[torch.ones(block, block)] * len(anchors)).bool()
    return torch.cat([context, own], 1), [n + j for n in anchors for j in range(block)]


# %% 10.block_mask: blocks_see_each_other
def block_mask(anchors, length, block):
    rows = len(anchors) * block
    mask = torch.ones(rows, length + rows, dtype=torch.bool)
    for i in range(rows):
        mask[i, anchors[i // block] : length] = False
    return mask, [n + j for n in anchors for j in range(block)]


# %% 10.block_mask: blanks_see_the_last_token_only
def block_mask(anchors, length, block):
    context = torch.zeros(len(anchors) * block, length, dtype=torch.bool)
    for i in range(len(context)):
        context[i, : anchors[i // block]] = True
    one = torch.eye(block)
    one[:, 0] = 1
    own = torch.block_diag(*[one] * len(anchors)).bool()
    return torch.cat([context, own], 1), [n + j for n in anchors for j in range(block)]


# %% 10.block_mask: blind_block
def block_mask(anchors, length, block):
    context = torch.zeros(len(anchors) * block, length, dtype=torch.bool)
    for i in range(len(context)):
        context[i, : anchors[i // block]] = True
    own = torch.block_diag(*[1 - torch.eye(block)] * len(anchors)).bool()
    return torch.cat([context, own], 1), [n + j for n in anchors for j in range(block)]


# %% 10.block_mask: no_context
def block_mask(anchors, length, block):
    context = torch.zeros(len(anchors) * block, length, dtype=torch.bool)
    own = torch.block_diag(*[torch.ones(block, block)] * len(anchors)).bool()
    return torch.cat([context, own], 1), [n + j for n in anchors for j in range(block)]


# %% 10.block_mask: positions_behind_the_text
def block_mask(anchors, length, block):
    rows = torch.arange(len(anchors) * block)
    context = torch.arange(length)[None] < torch.tensor(anchors)[rows // block][:, None]
    own = rows[:, None] // block == rows // block
    return torch.cat([context, own], 1), length + rows


# %% 10.block_mask: blanks_start_at_the_anchor
def block_mask(anchors, length, block):
    rows = torch.arange(len(anchors) * block)
    context = torch.arange(length)[None] < torch.tensor(anchors)[rows // block][:, None]
    own = rows[:, None] // block == rows // block
    return torch.cat([context, own], 1), torch.tensor(anchors)[rows // block] + rows % block - 1


# %% 10.dynamic_tree: own_probability
def grow_tree(expand, depth, width, budget):
    nodes, level = [], [(1.0, ())]
    for _ in range(depth):
        level = sorted(level, reverse=True)[:width]
        children = expand([path for _, path in level])
        level = [(float(p), (*path, x)) for (_, path), kids in zip(level, children, strict=True) for x, p in kids]
        nodes += level
    return [path for _, path in sorted(nodes, reverse=True)[:budget]]


# %% 10.dynamic_tree: sums_probabilities
def grow_tree(expand, depth, width, budget):
    nodes, level = [], [(0.0, ())]
    for _ in range(depth):
        level = sorted(level, reverse=True)[:width]
        children = expand([path for _, path in level])
        level = [(s + float(p), (*path, x)) for (s, path), kids in zip(level, children, strict=True) for x, p in kids]
        nodes += level
    return [path for _, path in sorted(nodes, reverse=True)[:budget]]


# %% 10.dynamic_tree: expands_everything
def grow_tree(expand, depth, width, budget):
    nodes, level = [], [(1.0, ())]
    for _ in range(depth):
        children = expand([path for _, path in level])
        level = [(s * float(p), (*path, x)) for (s, path), kids in zip(level, children, strict=True) for x, p in kids]
        nodes += level
    return [path for _, path in sorted(nodes, reverse=True)[:budget]]


# %% 10.dynamic_tree: expands_one
def grow_tree(expand, depth, width, budget):
    nodes, best = [], (1.0, ())
    for _ in range(depth):
        [kids] = expand([best[1]])
        level = [(best[0] * float(p), (*best[1], x)) for x, p in kids]
        nodes += level
        best = max(level)
    return [path for _, path in sorted(nodes, reverse=True)[:budget]]


# %% 10.dynamic_tree: keeps_everything_grown
def grow_tree(expand, depth, width, budget):
    nodes, level = [], [(1.0, ())]
    for _ in range(depth):
        level = sorted(level, reverse=True)[:width]
        children = expand([path for _, path in level])
        level = [(s * float(p), (*path, x)) for (s, path), kids in zip(level, children, strict=True) for x, p in kids]
        nodes += level
    return [path for _, path in nodes]


# %% 10.dynamic_tree: keeps_the_first
def grow_tree(expand, depth, width, budget):
    nodes, level = [], [(1.0, ())]
    for _ in range(depth):
        level = sorted(level, reverse=True)[:width]
        children = expand([path for _, path in level])
        level = [(s * float(p), (*path, x)) for (s, path), kids in zip(level, children, strict=True) for x, p in kids]
        nodes += level
    return [path for _, path in nodes[:budget]]


# %% 10.dynamic_tree: keeps_leaves
def grow_tree(expand, depth, width, budget):
    level = [(1.0, ())]
    for _ in range(depth):
        level = sorted(level, reverse=True)[:width]
        children = expand([path for _, path in level])
        level = [(s * float(p), (*path, x)) for (s, path), kids in zip(level, children, strict=True) for x, p in kids]
    return [path for _, path in sorted(level, reverse=True)[:budget]]


# %% 10.dynamic_tree: one_depth_short
def grow_tree(expand, depth, width, budget):
    nodes, level = [], [(1.0, ())]
    for _ in range(1, depth):
        level = sorted(level, reverse=True)[:width]
        children = expand([path for _, path in level])
        level = [(s * float(p), (*path, x)) for (s, path), kids in zip(level, children, strict=True) for x, p in kids]
        nodes += level
    return [path for _, path in sorted(nodes, reverse=True)[:budget]]


# %% 10.dynamic_tree: one_pass_too_many
def grow_tree(expand, depth, width, budget):
    nodes, level = [], [(1.0, ())]
    for _ in range(depth + 1):
        level = sorted(level, reverse=True)[:width]
        children = expand([path for _, path in level])
        level = [(s * float(p), (*path, x)) for (s, path), kids in zip(level, children, strict=True) for x, p in kids]
        nodes += level
    return [path for _, path in sorted(nodes, reverse=True)[:budget]]


# %% 10.dynamic_tree: one_call_for_each
def grow_tree(expand, depth, width, budget):
    nodes, level = [], [(1.0, ())]
    for _ in range(depth):
        level = sorted(level, reverse=True)[:width]
        level = [(s * float(p), (*path, x)) for s, path in level for x, p in expand([path])[0]]
        nodes += level
    return [path for _, path in sorted(nodes, reverse=True)[:budget]]
