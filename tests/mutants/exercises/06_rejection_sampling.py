# ruff: noqa: F811, F821
# Wrong answers to the exercises of set 06, as cells of a notebook. How they are used: __init__.py.


# %% 06.accept: always
def accept(p, q, token):
    return torch.tensor(1.0)


# %% 06.accept: threshold
def accept(p, q, token):
    return 0 if q[token] > p[token] else 1


# %% 06.accept: upside_down
def accept(p, q, token):
    return (q / p)[token].clamp(max=1.0)


# %% 06.accept: ignores_q
def accept(p, q, token):
    return p[token].item()


# %% 06.accept: more_than_certain
def accept(p, q, token):
    return float(p[token]) / float(q[token])


# %% 06.residual: p_itself
def my_residual(p, q):
    return p / p.sum()


# %% 06.residual: q_itself
def my_residual(p, q):
    return q.clone()


# %% 06.residual: only_the_best
def my_residual(p, q):
    left = (p - q).clamp(min=0)
    return torch.nn.functional.one_hot(left.argmax(), len(p)).double()


# %% 06.residual: not_normalised
def my_residual(p, q):
    if torch.equal(p, q):
        return p
    return torch.maximum(p - q, torch.zeros_like(p))


# %% 06.residual: divides_by_zero
def my_residual(p, q):
    left = torch.relu(p - q)
    return left / left.sum(-1, keepdim=True)


# %% 06.residual: absolute_difference
def my_residual(p, q):
    gap = torch.abs(p - q)
    return p if gap.sum() == 0 else gap / gap.sum()


# %% 06.residual: upside_down_residual
def my_residual(p, q):
    left = (q - p).clamp(min=0)
    return left / left.sum() if left.sum() > 0 else p


# %% 06.sampler: accepts_everything
def sampler(p, q, drafted, random):
    return drafted + [pick(p[len(drafted)], random())]


# %% 06.sampler: resamples_from_p
def sampler(p, q, drafted, random):
    out = []
    for i, d in enumerate(drafted):
        if random() < p[i, d] / q[i, d]:
            out.append(d)
        else:
            out.append(pick(p[i], random()))
            return out
    out.append(pick(p[-1], random()))
    return out


# %% 06.sampler: resamples_from_q
def sampler(p, q, drafted, random):
    out = []
    for i, d in enumerate(drafted):
        if random() < p[i, d] / q[i, d]:
            out.append(d)
        else:
            return out + [pick(q[i], random())]
    return out + [pick(p[-1], random())]


# %% 06.sampler: takes_the_best_of_the_residual
def sampler(p, q, drafted, random):
    out = []
    for i, d in enumerate(drafted):
        if random() >= p[i, d] / q[i, d]:
            return out + [(p[i] - q[i]).argmax().item()]
        out.append(d)
    return out + [pick(p[-1], random())]


# %% 06.sampler: without_bonus
def sampler(p, q, drafted, random):
    out = []
    for i, d in enumerate(drafted):
        if p[i, d] / q[i, d] > random():
            out.append(d)
        else:
            out.append(pick(residual(p[i], q[i]), random()))
            break
    return out


# %% 06.sampler: goes_on_after_a_rejection
def sampler(p, q, drafted, random):
    out = []
    for i, d in enumerate(drafted):
        if random() < p[i, d] / q[i, d]:
            out.append(d)
        else:
            out.append(pick(residual(p[i], q[i]), random()))
    out.append(pick(p[-1], random()))
    return out


# %% 06.sampler: p_one_late
def sampler(p, q, drafted, random):
    for i in range(len(drafted)):
        mine = p[1:][i]
        if random() > accept_probability(mine, q[i], drafted[i]):
            return drafted[:i] + [pick(residual(mine, q[i]), random())]
    return drafted + [pick(p[-1], random())]


# %% 06.sampler: bonus_from_the_last_draft
def sampler(p, q, drafted, random):
    for i in range(len(drafted)):
        if random() > accept_probability(p[i], q[i], drafted[i]):
            return drafted[:i] + [pick(residual(p[i], q[i]), random())]
    return drafted + [pick(p[i] if drafted else p[0], random())]


# %% 06.sampler: one_number_for_all
def sampler(p, q, drafted, random):
    coin = random()
    accepted = 0
    while accepted < len(drafted) and coin < accept_probability(p[accepted], q[accepted], drafted[accepted]):
        accepted += 1
    law = p[-1] if accepted == len(drafted) else residual(p[accepted], q[accepted])
    return drafted[:accepted] + [pick(law, random())]


# %% 06.sampler: corrects_with_the_rejecting_number
def sampler(p, q, drafted, random):
    for i, d in enumerate(drafted):
        coin = random()
        if coin > p[i, d] / q[i, d]:
            return drafted[:i] + [pick(residual(p[i], q[i]), coin)]
    return drafted + [pick(p[-1], random())]


# %% 06.one_hot: trusts_the_draft
def verify_one_hot(p, token, random):
    return (True, token)


# %% 06.one_hot: accepts_the_favourite
def verify_one_hot(p, token, random):
    accepted = bool(p.argmax() == token)
    return accepted, token if accepted else pick(p, random())


# %% 06.one_hot: draws_again
def verify_one_hot(p, token, random):
    y = pick(p, random())
    if y == token:
        return True, token
    return False, pick(p, random())


# %% 06.one_hot: best_of_the_rest
def verify_one_hot(p, token, random):
    if random() < p[token]:
        return True, token
    others = [x for x in range(len(p)) if x != token]
    return False, max(others, key=lambda x: p[x])


# %% 06.one_hot: uniform_rest
def verify_one_hot(p, token, random):
    if pick(p, random()) == token:
        return True, token
    rest = torch.full_like(p, 1 / (len(p) - 1))
    rest[token] = 0
    return False, pick(rest, random())


# %% 06.top_p: reports_q_before_top_p
def draft_top_p(law, top_p, random):
    values, order = law.sort(descending=True)
    cut = values.cumsum(0) - values < top_p
    token = order[pick(values * cut, random())].item()
    return token, law


# %% 06.top_p: draws_before_top_p
def draft_top_p(law, top_p, random):
    values, order = law.sort(descending=True)
    cut = values.cumsum(0) - values < top_p
    q = torch.zeros_like(law)
    q[order] = values * cut
    return pick(law, random()), q / q.sum()


# %% 06.top_p: truncated_not_normalised
def draft_top_p(law, top_p, random):
    values, order = law.sort(descending=True)
    q = torch.zeros_like(law)
    q[order] = torch.where(values.cumsum(0) - values < top_p, values, 0.0)
    return pick(q, random()), q


# %% 06.top_p: cuts_one_token_too_early
def draft_top_p(law, top_p, random):
    q, mass = torch.zeros_like(law), 0.0
    for token in law.argsort(descending=True):
        mass += float(law[token])
        if mass > top_p + 1e-9 and q.any():
            break
        q[token] = law[token]
    q /= q.sum()
    return pick(q, random()), q


# %% 06.top_p: no_top_p_at_all
def draft_top_p(law, top_p, random):
    return pick(law, random()), law.clone()


# %% 06.top_p: reports_one_hot
def draft_top_p(law, top_p, random):
    order = law.argsort(descending=True)
    kept = order[law[order].cumsum(0) - law[order] < top_p]
    token = kept[pick(law[kept], random())].item()
    q = torch.zeros_like(law)
    q[token] = 1
    return token, q
