# ruff: noqa: F811, F821
# Wrong answers to the exercises of set 08, as cells of a notebook. How they are used: __init__.py.


# %% 08.ngram: earliest_occurrence
def lookup(text, n_max, k):
    for n in range(min(n_max, len(text)), 0, -1):
        for i in range(len(text) - n):
            if text[i : i + n] == text[-n:]:
                return text[i + n : i + n + k]
    return []


# %% 08.ngram: shortest_suffix_first
def lookup(text, n_max, k):
    for n in range(1, n_max + 1):
        for i in range(len(text) - n - 1, -1, -1):
            if text[i : i + n] == text[-n:]:
                return text[i + n : i + n + k]
    return []


# %% 08.ngram: only_the_longest
def lookup(text, n_max, k):
    for i in range(len(text) - n_max - 1, -1, -1):
        if text[i : i + n_max] == text[-n_max:]:
            return text[i + n_max : i + n_max + k]
    return []


# %% 08.ngram: finds_itself
def lookup(text, n_max, k):
    for n in range(min(n_max, len(text)), 0, -1):
        for i in range(len(text) - n, -1, -1):
            if text[i : i + n] == text[-n:]:
                return text[i + n : i + n + k]
    return []


# %% 08.ngram: drafts_the_match
def lookup(text, n_max, k):
    for n in range(min(n_max, len(text)), 0, -1):
        for i in range(len(text) - n - 1, -1, -1):
            if text[i : i + n] == text[-n:]:
                return text[i : i + k]
    return []


# %% 08.ngram: without_overlap
def lookup(text, n_max, k):
    for n in range(min(n_max, len(text)), 0, -1):
        before, suffix = text[:-n], text[-n:]
        for i in range(len(before) - n, -1, -1):
            if before[i : i + n] == suffix:
                return text[i + n : i + n + k]
    return []


# %% 08.ngram: commonest_token
def lookup(text, n_max, k):
    for n in range(min(n_max, len(text)), 0, -1):
        ends = [i + n for i in range(len(text) - n) if text[i : i + n] == text[-n:]]
        if ends:
            nexts = [text[end] for end in ends]
            end = max(ends, key=lambda end: (nexts.count(text[end]), end))
            return text[end : end + k]
    return []


# %% 08.ngram: no_longest
def lookup(text, n_max, k):
    best, place = 0, None
    for end in range(1, len(text)):
        n = 0
        while n < end and text[end - 1 - n] == text[-1 - n]:
            n += 1
        if n >= max(best, 1):
            best, place = n, end
    return [] if place is None else text[place : place + k]


# %% 08.suffix_walk: walks_from_one_token
def suffix_walk(text, k, floor):
    string, out, p, score = text[-1:], [], 1.0, 0.0
    while len(out) < k:
        n = len(string)
        after = [text[i + n] for i in range(len(text) - n) if text[i : i + n] == string][::-1]
        if not after:
            break
        best = max(after, key=after.count)
        p *= after.count(best) / len(after)
        if p < floor:
            break
        out.append(best)
        string = [*string, best]
        score += p
    return out, score


# %% 08.suffix_walk: follows_the_latest
def suffix_walk(text, k, floor):
    m = 0
    while any(text[i : i + m + 1] == text[-m - 1 :] for i in range(len(text) - m - 1)):
        m += 1
    string, out, p, score = text[len(text) - m :], [], 1.0, 0.0
    while m and len(out) < k:
        n = len(string)
        after = [text[i + n] for i in range(len(text) - n) if text[i : i + n] == string]
        if not after:
            break
        p *= after.count(after[-1]) / len(after)
        if p < floor:
            break
        out.append(after[-1])
        string = string + after[-1:]
        score += p
    return out, score


# %% 08.suffix_walk: earliest_of_equals
def suffix_walk(text, k, floor):
    m = 0
    while any(text[i : i + m + 1] == text[-m - 1 :] for i in range(len(text) - m - 1)):
        m += 1
    string, out, p, score = text[len(text) - m :], [], 1.0, 0.0
    while m and len(out) < k:
        n = len(string)
        counts = Counter(text[i + n] for i in range(len(text) - n) if text[i : i + n] == string)
        if not counts:
            break
        best, count = counts.most_common(1)[0]
        p *= count / sum(counts.values())
        if p < floor:
            break
        out.append(best)
        string = [*string, best]
        score += p
    return out, score


# %% 08.suffix_walk: counts_the_end
def suffix_walk(text, k, floor):
    m = 0
    while any(text[i : i + m + 1] == text[-m - 1 :] for i in range(len(text) - m - 1)):
        m += 1
    string, out, p, score = text[len(text) - m :], [], 1.0, 0.0
    while m and len(out) < k:
        n = len(string)
        starts = [i for i in range(len(text) - n + 1) if text[i : i + n] == string]
        after = [text[i + n] for i in reversed(starts) if i + n < len(text)]
        if not after:
            break
        best = max(after, key=after.count)
        p *= after.count(best) / len(starts)
        if p < floor:
            break
        out.append(best)
        string = [*string, best]
        score += p
    return out, score


# %% 08.suffix_walk: each_step_alone
def suffix_walk(text, k, floor):
    m = 0
    while any(text[i : i + m + 1] == text[-m - 1 :] for i in range(len(text) - m - 1)):
        m += 1
    string, out, score = text[len(text) - m :], [], 0.0
    while m and len(out) < k:
        n = len(string)
        after = [text[i + n] for i in range(len(text) - n) if text[i : i + n] == string][::-1]
        if not after:
            break
        best = max(after, key=after.count)
        share = after.count(best) / len(after)
        if share < floor:
            break
        out.append(best)
        string = [*string, best]
        score += share
    return out, score


# %% 08.suffix_walk: forgets_the_string
def suffix_walk(text, k, floor):
    m = 0
    while any(text[i : i + m + 1] == text[-m - 1 :] for i in range(len(text) - m - 1)):
        m += 1
    string, out, p, score = text[len(text) - m :], [], 1.0, 0.0
    while m and len(out) < k:
        n = len(string)
        after = [text[i + n] for i in range(len(text) - n) if text[i : i + n] == string][::-1]
        if not after:
            break
        best = max(after, key=after.count)
        p *= after.count(best) / len(after)
        if p < floor:
            break
        out.append(best)
        string = [best]
        score += p
    return out, score


# %% 08.suffix_walk: keeps_the_one_below
def suffix_walk(text, k, floor):
    m = 0
    while any(text[i : i + m + 1] == text[-m - 1 :] for i in range(len(text) - m - 1)):
        m += 1
    string, out, p, score = text[len(text) - m :], [], 1.0, 0.0
    while m and len(out) < k and p >= floor:
        n = len(string)
        after = [text[i + n] for i in range(len(text) - n) if text[i : i + n] == string][::-1]
        if not after:
            break
        best = max(after, key=after.count)
        p *= after.count(best) / len(after)
        out.append(best)
        string = [*string, best]
        score += p
    return out, score


# %% 08.suffix_walk: no_floor
def suffix_walk(text, k, floor):
    m = 0
    while any(text[i : i + m + 1] == text[-m - 1 :] for i in range(len(text) - m - 1)):
        m += 1
    string, out, p, score = text[len(text) - m :], [], 1.0, 0.0
    while m and len(out) < k:
        n = len(string)
        after = [text[i + n] for i in range(len(text) - n) if text[i : i + n] == string][::-1]
        if not after:
            break
        best = max(after, key=after.count)
        p *= after.count(best) / len(after)
        out.append(best)
        string = [*string, best]
        score += p
    return out, score


# %% 08.suffix_walk: last_chance_as_score
def suffix_walk(text, k, floor):
    m = 0
    while any(text[i : i + m + 1] == text[-m - 1 :] for i in range(len(text) - m - 1)):
        m += 1
    string, out, p = text[len(text) - m :], [], 1.0
    while m and len(out) < k:
        n = len(string)
        after = [text[i + n] for i in range(len(text) - n) if text[i : i + n] == string][::-1]
        if not after:
            break
        best = max(after, key=after.count)
        if p * after.count(best) / len(after) < floor:
            break
        p *= after.count(best) / len(after)
        out.append(best)
        string = [*string, best]
    return out, p if out else 0


# %% 08.early_exit: without_norm
def exit_logits(streams, n, norm_weight, eps, head):
    return torch.einsum("td,vd->tv", streams[n], head)


# %% 08.early_exit: norm_without_weight
def exit_logits(streams, n, norm_weight, eps, head):
    x = streams[n]
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) @ head.T


# %% 08.early_exit: layer_norm
def exit_logits(streams, n, norm_weight, eps, head):
    x = streams[n] - streams[n].mean(-1, keepdim=True)
    return norm_weight * x / (x.var(-1, unbiased=False, keepdim=True) + eps).sqrt() @ head.T


# %% 08.early_exit: sum_of_squares
def exit_logits(streams, n, norm_weight, eps, head):
    x = streams[n]
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps) * norm_weight @ head.T


# %% 08.early_exit: eps_outside
def exit_logits(streams, n, norm_weight, eps, head):
    x = streams[n]
    rms = x.square().mean(-1, keepdim=True).sqrt()
    return norm_weight * x / (rms + eps) @ head.T


# %% 08.early_exit: norm_over_tokens
def exit_logits(streams, n, norm_weight, eps, head):
    x = streams[n]
    return norm_weight * x * torch.rsqrt(x.square().mean() + eps) @ head.T


# %% 08.early_exit: one_layer_less
def exit_logits(streams, n, norm_weight, eps, head):
    x = list(streams)[n - 1]
    return norm_weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) @ head.T


# %% 08.early_exit: finished_stream
def exit_logits(streams, n, norm_weight, eps, head):
    x = streams[-1]
    return norm_weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) @ head.T


# %% 08.early_exit: probabilities
def exit_logits(streams, n, norm_weight, eps, head):
    x = streams[n]
    logits = norm_weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) @ head.T
    return logits.exp() / logits.exp().sum(-1, keepdim=True)


# %% 08.cascade_distribution: q_of_the_tiny_model
def cascade_draft(middle, tiny, guess, random):
    if random() < middle[guess] / tiny[guess]:
        return guess, tiny
    return pick(residual(middle, tiny), random()), tiny


# %% 08.cascade_distribution: hands_the_guess_on
def cascade_draft(middle, tiny, guess, random):
    return guess, tiny.clone()


# %% 08.cascade_distribution: guess_as_middle
def cascade_draft(middle, tiny, guess, random):
    return guess, middle.clone()


# %% 08.cascade_distribution: draws_a_new_one
def cascade_draft(middle, tiny, guess, random):
    q = middle / middle.sum()
    return pick(q, random()), q


# %% 08.cascade_distribution: replaces_from_middle
def cascade_draft(middle, tiny, guess, random):
    if not random() < middle[guess] / tiny[guess]:
        guess = pick(middle, random())
    return guess, middle


# %% 08.cascade_distribution: q_of_the_branch
def cascade_draft(middle, tiny, guess, random):
    q = tiny
    if not random() < middle[guess] / tiny[guess]:
        q = (middle - tiny).clamp(min=0)
        q = q / q.sum()
        guess = pick(q, random())
    return guess, q


# %% 08.cascade_distribution: conditional_distribution
def cascade_draft(middle, tiny, guess, random):
    accepted = tiny * (middle / tiny).clamp(max=1)
    if random() < middle[guess] / tiny[guess]:
        return guess, accepted / accepted.sum()
    rejected = middle - accepted
    return pick(rejected, random()), rejected / rejected.sum()


# %% 08.cascade_distribution: one_hot_q
def cascade_draft(middle, tiny, guess, random):
    if not random() < middle[guess] / tiny[guess]:
        guess = pick(residual(middle, tiny), random())
    q = torch.zeros_like(middle)
    q[guess] = 1
    return guess, q


# %% 08.cascade_distribution: product_of_both
def cascade_draft(middle, tiny, guess, random):
    if not random() < middle[guess] / tiny[guess]:
        guess = pick(residual(middle, tiny), random())
    q = middle * tiny / (middle @ tiny)
    return guess, q
