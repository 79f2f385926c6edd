# ruff: noqa: F811, F821
# Wrong answers to the exercise of set 15 on mixtures of experts, as cells of a notebook. How they are used: __init__.py.


# %% 15.experts: every_choice_counts
def experts(logits, per_token, always, expert):
    E, counted = len(logits[0]), 0
    for row in logits:
        counted += len(torch.tensor(row).topk(per_token).indices)
    v = (always + counted * expert) / (always + per_token * expert)
    return E - E * (1 - per_token / E) ** len(logits), counted, v


# %% 15.experts: only_what_all_chose
def experts(logits, per_token, always, expert):
    E = len(logits[0])
    common = set(range(E))
    for row in logits:
        common &= set(torch.tensor(row).topk(per_token).indices.tolist())
    v = (always + len(common) * expert) / (always + per_token * expert)
    return E * (1 - (1 - per_token / E) ** len(logits)), len(common), v


# %% 15.experts: the_smallest_logits
def experts(logits, per_token, always, expert):
    E = len(logits[0])
    union = {e for row in logits for e in sorted(range(E), key=row.__getitem__)[:per_token]}
    v = (always + len(union) * expert) / (always + per_token * expert)
    return E * (1 - (1 - per_token / E) ** len(logits)), len(union), v


# %% 15.experts: one_expert_per_token
def experts(logits, per_token, always, expert):
    E = len(logits[0])
    counted = len({row.index(max(row)) for row in logits})
    v = (always + counted * expert) / (always + per_token * expert)
    return E * (1 - (1 - per_token / E) ** len(logits)), counted, v


# %% 15.experts: no_overlap_expected
def experts(logits, per_token, always, expert):
    E = len(logits[0])
    union = set(torch.tensor(logits).topk(per_token).indices.flatten().tolist())
    v = (always + len(union) * expert) / (always + per_token * expert)
    return min(len(logits) * per_token, E), len(union), v


# %% 15.experts: with_replacement
def experts(logits, per_token, always, expert):
    E = len(logits[0])
    union = set(torch.tensor(logits).topk(per_token).indices.flatten().tolist())
    missed = 1.0
    for _ in range(len(logits) * per_token):
        missed *= 1 - 1 / E
    return E * (1 - missed), len(union), (always + len(union) * expert) / (always + per_token * expert)


# %% 15.experts: v_of_the_expectation
def experts(logits, per_token, always, expert):
    E = len(logits[0])
    union = set(torch.tensor(logits).topk(per_token).indices.flatten().tolist())
    mean = E * (1 - (1 - per_token / E) ** len(logits))
    return mean, len(union), (always + mean * expert) / (always + per_token * expert)


# %% 15.experts: forgets_what_all_read
def experts(logits, per_token, always, expert):
    E = len(logits[0])
    union = set(torch.tensor(logits).topk(per_token).indices.flatten().tolist())
    return E * (1 - (1 - per_token / E) ** len(logits)), len(union), len(union) / per_token


# %% 15.experts: against_the_whole_model
def experts(logits, per_token, always, expert):
    E = len(logits[0])
    union = set(torch.tensor(logits).topk(per_token).indices.flatten().tolist())
    v = (always + len(union) * expert) / (always + E * expert)
    return E * (1 - (1 - per_token / E) ** len(logits)), len(union), v
