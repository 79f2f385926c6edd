# ruff: noqa: F811, F821
# Wrong answers to the exercises of set 17, as cells of a notebook. How they are used: __init__.py.


# %% 17.ragged_sampler: counts_past_a_rejection
def ragged_sampler(p, q, draft, lengths, u):
    B, k = draft.shape
    n, out = [], []
    for b in range(B):
        hits = [i for i in range(int(lengths[b])) if u[b, i] < p[b, i, draft[b, i]] / q[b, i, draft[b, i]]]
        n.append(len(hits))
        rest = p[b, len(hits)]
        if len(hits) < lengths[b]:
            rest = torch.relu(rest - q[b, len(hits)])
            rest = rest / rest.sum()
        out.append(rest)
    return torch.tensor(n), torch.stack(out)


# %% 17.ragged_sampler: replaces_from_p
def ragged_sampler(p, q, draft, lengths, u):
    B, k = draft.shape
    n = torch.zeros(B, dtype=torch.long)
    for b in range(B):
        while n[b] < lengths[b]:
            i = int(n[b])
            x = draft[b, i]
            if u[b, i] * q[b, i, x] >= p[b, i, x]:
                break
            n[b] += 1
    return n, torch.stack([p[b, n[b]] for b in range(B)])


# %% 17.ragged_sampler: residual_not_normalised
def ragged_sampler(p, q, draft, lengths, u):
    B, k = draft.shape
    n, out = [], []
    for b in range(B):
        i = 0
        while i < lengths[b] and u[b, i] < p[b, i, draft[b, i]] / q[b, i, draft[b, i]]:
            i += 1
        n.append(i)
        out.append(torch.relu(p[b, i] - q[b, i]) if i < lengths[b] else p[b, i])
    return torch.tensor(n), torch.stack(out)


# %% 17.block_allocator: writes_into_shared_blocks
def block_allocator(num_blocks, block_size, operations):
    refs, tables, size = [0 for _ in range(num_blocks)], {}, {}
    for op in operations:
        if op[0] == "append":
            tables.setdefault(op[1], [])
            size.setdefault(op[1], 0)
            if size[op[1]] == len(tables[op[1]]) * block_size:
                tables[op[1]].append(refs.index(0))
                refs[tables[op[1]][-1]] += 1
            size[op[1]] += 1
        elif op[0] == "fork":
            tables[op[2]] = tables[op[1]][:]
            size[op[2]] = size[op[1]]
            for b in tables[op[2]]:
                refs[b] += 1
        else:
            for b in tables[op[1]]:
                refs[b] -= 1
            del tables[op[1]], size[op[1]]
    return tables, refs, []


# %% 17.block_allocator: keeps_the_old_reference
def block_allocator(num_blocks, block_size, operations):
    refs, tables, size, copies = [0 for _ in range(num_blocks)], {}, {}, []
    for op in operations:
        name = op[1]
        if op[0] == "append":
            t = tables.setdefault(name, [])
            s = size.get(name, 0)
            if s % block_size == 0:
                t.append(refs.index(0))
                refs[t[-1]] = 1
            elif refs[t[-1]] >= 2:
                new = refs.index(0)
                refs[new] = 1
                copies += [(t[-1], new)]
                t[-1] = new
            size[name] = s + 1
        elif op[0] == "fork":
            tables[op[2]], size[op[2]] = tables[name][:], size[name]
            for b in tables[name]:
                refs[b] += 1
        else:
            for b in tables.pop(name):
                refs[b] -= 1
            size.pop(name)
    return tables, refs, copies


# %% 17.block_allocator: frees_shared_blocks
def block_allocator(num_blocks, block_size, operations):
    refs, tables, size, copies = [0 for _ in range(num_blocks)], {}, {}, []
    for op in operations:
        name = op[1]
        if op[0] == "append":
            t = tables.setdefault(name, [])
            s = size.get(name, 0)
            if s % block_size == 0:
                t.append(refs.index(0))
                refs[t[-1]] = 1
            elif refs[t[-1]] >= 2:
                new, old = refs.index(0), t[-1]
                refs[new], refs[old] = 1, refs[old] - 1
                copies += [(old, new)]
                t[-1] = new
            size[name] = s + 1
        elif op[0] == "fork":
            tables[op[2]], size[op[2]] = tables[name][:], size[name]
            for b in tables[name]:
                refs[b] += 1
        else:
            for b in tables.pop(name):
                refs[b] = 0
            size.pop(name)
    return tables, refs, copies


# %% 17.tree_mask: sees_everything_before
def tree_mask(parents, cached, accepted):
    n = len(parents)
    rows, columns = torch.arange(n)[:, None] + cached, torch.arange(cached + n)[None]
    return columns <= rows, [(cached + a, cached + i) for i, a in enumerate(accepted) if a != i]


# %% 17.tree_mask: only_the_parent
def tree_mask(parents, cached, accepted):
    n = len(parents)
    mask = torch.cat([torch.ones(n, cached, dtype=torch.bool), torch.eye(n, dtype=torch.bool)], dim=1)
    for i, parent in enumerate(parents):
        if parent != -1:
            mask[i, cached + parent] = True
    return mask, [(cached + a, cached + i) for i, a in enumerate(accepted) if a != i]


# %% 17.tree_mask: forgets_the_cache
def tree_mask(parents, cached, accepted):
    n = len(parents)
    mask = torch.zeros(n, cached + n, dtype=torch.bool)
    for i in range(n):
        j = i
        while j != -1:
            mask[i, cached + j] = True
            j = parents[j]
    return mask, [(cached + a, cached + i) for i, a in enumerate(accepted) if a != i]


# %% 17.online_softmax: no_rescaling
def online_softmax(scores, values, block):
    m, total, out, steps = -math.inf, 0.0, 0.0, []
    for i in range(0, len(scores), block):
        m = max(m, scores[i : i + block].max().item())
        w = (scores[i : i + block] - m).exp()
        total += w.sum().item()
        out = out + w @ values[i : i + block]
        steps.append((m, total))
    return out / total, steps


# %% 17.online_softmax: rescales_only_the_sum
def online_softmax(scores, values, block):
    m, total, out, steps = -math.inf, 0.0, 0.0, []
    for i in range(0, len(scores), block):
        new = max(m, scores[i : i + block].max().item())
        w = (scores[i : i + block] - new).exp()
        total = total * math.exp(m - new) + w.sum().item()
        out = out + w @ values[i : i + block]
        m = new
        steps.append((m, total))
    return out / total, steps


# %% 17.online_softmax: no_maximum
def online_softmax(scores, values, block):
    total, out, steps = 0.0, 0.0, []
    for i in range(0, len(scores), block):
        w = scores[i : i + block].exp()
        total += w.sum().item()
        out = out + w @ values[i : i + block]
        steps.append((0.0, total))
    return out / total, steps


# %% 17.token_budget: prompts_first
def token_budget(running, waiting, budget, max_num_seqs):
    plan = []
    for name, prompt in waiting[: max(0, max_num_seqs - len(running))]:
        n = min(prompt, budget)
        if n:
            plan.append((name, n))
            budget -= n
    for i, (name, k) in enumerate(running):
        if budget:
            n = 1 + max(0, min(k, budget - 1 - (len(running) - i - 1)))
            plan.append((name, n))
            budget -= n
    return plan


# %% 17.token_budget: draft_tokens_are_free
def token_budget(running, waiting, budget, max_num_seqs):
    plan = [(name, 1) for name, _ in running]
    budget -= len(running)
    for name, prompt in waiting[: max(0, max_num_seqs - len(running))]:
        if budget > 0:
            plan.append((name, min(budget, prompt)))
            budget -= min(budget, prompt)
    return plan


# %% 17.token_budget: whole_prompts_only
def token_budget(running, waiting, budget, max_num_seqs):
    plan = []
    for i, (name, k) in enumerate(running):
        n = 1 + min(k, max(0, budget - (len(running) - i)))
        plan.append((name, n))
        budget -= n
    for name, prompt in waiting[: max(0, max_num_seqs - len(running))]:
        if prompt > budget:
            break
        plan.append((name, prompt))
        budget -= prompt
    return plan


# %% 17.ngram_proposer: oldest_match
def ngram_proposer(tokens, n, k):
    drafts = []
    for end in range(1, len(tokens) + 1):
        draft = []
        if end >= n:
            for s in range(end - n):
                if tokens[s : s + n] == tokens[end - n : end]:
                    draft = tokens[s + n : min(s + n + k, end)]
                    break
        drafts.append(draft)
    return drafts


# %% 17.ngram_proposer: finds_itself
def ngram_proposer(tokens, n, k):
    table, drafts = {}, []
    for end in range(1, len(tokens) + 1):
        table[tuple(tokens[max(0, end - n) : end])] = end
        start = table[tuple(tokens[max(0, end - n) : end])]
        drafts.append(tokens[start : min(start + k, end)])
    return drafts


# %% 17.ngram_proposer: looks_ahead
def ngram_proposer(tokens, n, k):
    table, drafts = {}, []
    for end in range(1, len(tokens) + 1):
        gram = tuple(tokens[max(0, end - n) : end])
        drafts.append(tokens[table[gram] : table[gram] + k] if gram in table else [])
        if len(gram) == n:
            table[gram] = end
    return drafts


# %% 17.stop_strings: sends_the_stop_string
def stop_strings(pieces, stops):
    emitted, text = [], ""
    for piece in pieces:
        text += piece
        hits = sorted((text.find(s), s) for s in stops if s in text)
        if hits:
            return emitted + [text[: hits[0][0] + len(hits[0][1])]], True
        n = max([i for s in stops for i in range(1, len(s)) if text.endswith(s[:i])], default=0)
        emitted.append(text[: len(text) - n])
        text = text[len(text) - n :]
    return emitted + [text], False


# %% 17.stop_strings: loses_what_is_held
def stop_strings(pieces, stops):
    emitted, text = [], ""
    for piece in pieces:
        text += piece
        hits = [text.find(s) for s in stops if s in text]
        if hits:
            return emitted + [text[: min(hits)]], True
        n = max([i for s in stops for i in range(1, len(s)) if text.endswith(s[:i])], default=0)
        emitted.append(text[: len(text) - n])
        text = text[len(text) - n :]
    return emitted, False


# %% 17.stop_strings: only_within_a_piece
def stop_strings(pieces, stops):
    emitted = []
    for piece in pieces:
        hits = [piece.find(s) for s in stops if s in piece]
        if hits:
            return emitted + [piece[: min(hits)]], True
        emitted.append(piece)
    return emitted + [""], False


# %% 17.shifted_eagle: unshifted_token
def shifted_eagle(hidden, tokens, embed):
    n = len(tokens) - 2
    return torch.cat([hidden[:n], embed[tokens[:n]]], dim=1), tokens[2:]


# %% 17.shifted_eagle: label_is_the_input
def shifted_eagle(hidden, tokens, embed):
    n = len(tokens) - 2
    return torch.cat([hidden[:n], embed[tokens[1 : n + 1]]], dim=1), tokens[1 : n + 1]


# %% 17.shifted_eagle: sees_the_answer
def shifted_eagle(hidden, tokens, embed):
    n = len(tokens) - 2
    return torch.cat([hidden[:n], embed[tokens[2:]]], dim=1), tokens[2:]


# %% 17.kv_size: keys_only
def kv_size(layers, kv_heads, head_dim, latent, rope, bits, group, tokens):
    per_layer = latent + rope or kv_heads * head_dim
    return tokens * layers * (per_layer * bits / 8 + (2 * math.ceil(per_layer / group) if bits < 16 else 0))


# %% 17.kv_size: no_scales
def kv_size(layers, kv_heads, head_dim, latent, rope, bits, group, tokens):
    per_layer = latent + rope if latent else 2 * kv_heads * head_dim
    return tokens * layers * per_layer * bits / 8


# %% 17.kv_size: latent_twice
def kv_size(layers, kv_heads, head_dim, latent, rope, bits, group, tokens):
    per_layer = 2 * (latent + rope if latent else kv_heads * head_dim)
    return tokens * layers * (per_layer * bits / 8 + (2 * math.ceil(per_layer / group) if bits < 16 else 0))


# %% 17.top_p: sorts_everything
def top_p(p, limit, start, topk):
    values, ids = topk(p, len(p))
    out, total = torch.zeros_like(p), 0.0
    for value, i in zip(values, ids, strict=True):
        if total >= limit:
            break
        out[i] = value
        total += float(value)
    return out / out.sum()


# %% 17.top_p: never_doubles
def top_p(p, limit, start, topk):
    values, ids = topk(p, min(start, len(p)))
    out, total = torch.zeros_like(p), 0.0
    for value, i in zip(values, ids, strict=True):
        if total >= limit:
            break
        out[i] = value
        total += float(value)
    return out / out.sum()


# %% 17.top_p: not_normalised
def top_p(p, limit, start, topk):
    k = min(start, len(p))
    values, ids = topk(p, k)
    while values.sum() < limit and k < len(p):
        k = min(len(p), k * 2)
        values, ids = topk(p, k)
    out = torch.zeros_like(p)
    stays = values.cumsum(0) - values < limit
    out[ids[stays]] = values[stays]
    return out
