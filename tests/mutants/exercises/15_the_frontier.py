# ruff: noqa: F811, F821
# Wrong answers to the exercises of set 15, as cells of a notebook. How they are used: __init__.py.


# %% 15.block: token_by_token
def verify_block(p, q, drafted, random):
    out = []
    for i, d in enumerate(drafted):
        if random() < min(1.0, float(p[i, d] / q[i, d])):
            out.append(d)
        else:
            return [*out, pick(residual(p[i], q[i]), random())]
    return [*out, pick(p[len(drafted)], random())]


# %% 15.block: weight_as_coin
def verify_block(p, q, drafted, random):
    told = torch.cat([q, torch.zeros(1, p.shape[1], dtype=p.dtype)])
    w = [1.0]
    for i, d in enumerate(drafted):
        w.append(min(1.0, w[-1] * float(p[i, d] / told[i, d])))
    a = len(drafted)
    while a > 0 and not random() < w[a]:
        a -= 1
    return drafted[:a] + [pick(residual(w[a] * p[a], told[a]), random())]


# %% 15.block: unweighted_residual
def verify_block(p, q, drafted, random):
    told = torch.cat([q, torch.zeros(1, p.shape[1], dtype=p.dtype)])
    w = [1.0]
    for i, d in enumerate(drafted):
        w.append(min(1.0, w[-1] * float(p[i, d] / told[i, d])))
    a = len(drafted)
    while a > 0:
        left = float((w[a] * p[a] - told[a]).clamp(min=0).sum())
        if random() < (left / (left + 1 - w[a]) if left + 1 - w[a] > 0 else 1.0):
            break
        a -= 1
    return drafted[:a] + [pick(residual(p[a], told[a]), random())]


# %% 15.shared: not_renormalised
def draft_shared(probs, own, theirs, random):
    kept = torch.tensor([float(x) if piece in theirs else 0.0 for x, piece in zip(probs, own)], dtype=probs.dtype)
    d = pick(kept / kept.sum(), random())
    q = torch.zeros(len(theirs), dtype=probs.dtype)
    for x, piece in zip(kept, own):
        if piece in theirs:
            q[theirs.index(piece)] = x
    return theirs.index(own[d]), q


# %% 15.shared: in_the_drafts_ids
def draft_shared(probs, own, theirs, random):
    kept = torch.tensor([float(x) if piece in theirs else 0.0 for x, piece in zip(probs, own)], dtype=probs.dtype)
    kept = kept / kept.sum()
    q = torch.zeros(len(theirs), dtype=probs.dtype)
    for x, piece in zip(kept, own):
        if piece in theirs:
            q[theirs.index(piece)] = x
    return pick(kept, random()), q


# %% 15.shared: told_one_hot
def draft_shared(probs, own, theirs, random):
    shared = [i for i, piece in enumerate(own) if piece in theirs]
    kept = probs[shared] / probs[shared].sum()
    token = theirs.index(own[shared[pick(kept, random())]])
    q = torch.zeros(len(theirs), dtype=probs.dtype)
    q[token] = 1.0
    return token, q


# %% 15.budget: equal_shares
def slots(confidences, budget):
    share = budget // len(confidences) if confidences else 0
    return [share if len(row) > share else len(row) for row in confidences]


# %% 15.budget: confidence_alone
def slots(confidences, budget):
    lengths = [0 for _ in confidences]
    for _ in range(budget):
        open_ones = [s for s, row in enumerate(confidences) if lengths[s] < len(row)]
        if not open_ones:
            break
        lengths[max(open_ones, key=lambda s: confidences[s][lengths[s]])] += 1
    return lengths


# %% 15.budget: longest_first
def slots(confidences, budget):
    lengths = [0 for _ in confidences]
    by_first = sorted(range(len(confidences)), key=lambda s: confidences[s][0] if confidences[s] else 0.0, reverse=True)
    for s in by_first:
        lengths[s] = min(budget, len(confidences[s]))
        budget -= lengths[s]
    return lengths
