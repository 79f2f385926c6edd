# ruff: noqa: F811, F821
# Wrong answers to the exercises of set 07, as cells of a notebook. How they are used: __init__.py.


# %% 07.expected_tokens: alpha_times_k
def my_expected_tokens(alpha, k):
    return k * alpha


# %% 07.expected_tokens: alpha_times_k_plus_one
def my_expected_tokens(alpha, k):
    accepted = 0
    for _ in range(k):
        accepted += alpha
    return accepted + 1


# %% 07.expected_tokens: forgets_the_one
def my_expected_tokens(alpha, k):
    return sum(alpha**i for i in range(1, k + 1))


# %% 07.expected_tokens: k_in_the_exponent
def my_expected_tokens(alpha, k):
    return (1 - alpha**k) / (1 - alpha)


# %% 07.expected_tokens: endless_draft
def my_expected_tokens(alpha, k):
    return math.inf if alpha == 1 else 1 / (1 - alpha)


# %% 07.expected_tokens: all_or_nothing
def my_expected_tokens(alpha, k):
    everything = alpha**k
    return everything * (k + 1) + (1 - everything) * 1


# %% 07.expected_tokens: k_at_one
def my_expected_tokens(alpha, k):
    if alpha == 1:
        return k
    return (1 - alpha ** (k + 1)) / (1 - alpha)


# %% 07.position_acceptance: sums_the_betas
def tokens_by_position(betas):
    tokens = 1
    for beta in betas:
        tokens += beta
    return tokens


# %% 07.position_acceptance: forgets_the_one_by_position
def tokens_by_position(betas):
    tokens, reach = 0, 1
    for beta in betas:
        reach *= beta
        tokens += reach
    return tokens


# %% 07.position_acceptance: averages_first
def tokens_by_position(betas):
    alpha = sum(betas) / len(betas)
    return sum(alpha**i for i in range(len(betas) + 1))


# %% 07.position_acceptance: leaves_out_the_last
def tokens_by_position(betas):
    tokens, reach = 0, 1
    for beta in betas:
        tokens += reach
        reach *= beta
    return tokens


# %% 07.position_acceptance: only_full_cycles
def tokens_by_position(betas):
    product = 1
    for beta in betas:
        product *= beta
    return 1 + len(betas) * product


# %% 07.speedup: v_is_one
def speedup(alpha, k, c, v):
    return expected_tokens(alpha, k) / (1 + c * k)


# %% 07.speedup: drafting_once_a_cycle
def speedup(alpha, k, c, v):
    return expected_tokens(alpha, k) / (v + c)


# %% 07.speedup: drafting_is_free
def speedup(alpha, k, c, v):
    return expected_tokens(alpha, k) / v


# %% 07.speedup: verifies_token_by_token
def speedup(alpha, k, c, v):
    draft, verify = k * c, (k + 1) * v
    return expected_tokens(alpha, k) / (draft + verify)


# %% 07.speedup: forgets_the_extra_token
def speedup(alpha, k, c, v):
    accepted = sum(alpha**i for i in range(1, k + 1))
    return accepted / (k * c + v)


# %% 07.speedup: one_draft_too_many
def speedup(alpha, k, c, v):
    return expected_tokens(alpha, k) / (k * c + c + v)


# %% 07.speedup: upside_down
def speedup(alpha, k, c, v):
    return (k * c + v) / expected_tokens(alpha, k)


# %% 07.speedup: all_drafts_accepted
def speedup(alpha, k, c, v):
    return expected_tokens(1.0, k) / (k * c + v)


# %% 07.best_k: never_zero
def best_k(alpha, c, v):
    return max(range(1, len(v)), key=lambda k: expected_tokens(alpha, k) / (k * c + v[k]))


# %% 07.best_k: most_tokens
def best_k(alpha, c, v):
    return max(range(len(v)), key=lambda k: expected_tokens(alpha, k))


# %% 07.best_k: flat_v
def best_k(alpha, c, v):
    return max(range(len(v)), key=lambda k: expected_tokens(alpha, k) / (k * c + v[0]))


# %% 07.best_k: longest_that_gains
def best_k(alpha, c, v):
    best = 0
    for k in range(1, len(v)):
        if expected_tokens(alpha, k) > k * c + v[k]:
            best = k
    return best


# %% 07.best_k: first_peak
def best_k(alpha, c, v):
    def s(k):
        return expected_tokens(alpha, k) / (k * c + v[k])

    k = 0
    while k + 1 < len(v) and s(k + 1) > s(k):
        k += 1
    return k


# %% 07.best_k: drafts_once
def best_k(alpha, c, v):
    best, most = 0, 1.0
    for k in range(1, len(v)):
        s = expected_tokens(alpha, k) / (c + v[k])
        if s > most:
            best, most = k, s
    return best


# %% 07.best_k: v_of_one_less
def best_k(alpha, c, v):
    best, most = 0, 1.0
    for k, cost in enumerate(v[:-1], start=1):
        s = expected_tokens(alpha, k) / (k * c + cost)
        if s > most:
            best, most = k, s
    return best


# %% 07.when_it_pays: always_c
def break_even(k, c, v):
    return c


# %% 07.when_it_pays: one_half
def break_even(k, c, v):
    return 1 / 2


# %% 07.when_it_pays: forgets_v
def break_even(k, c, v):
    low, high = 0.0, 1.0
    for _ in range(40):
        alpha = (low + high) / 2
        if expected_tokens(alpha, k) / (k * c + 1) > 1:
            high = alpha
        else:
            low = alpha
    return low


# %% 07.when_it_pays: straight_line
def break_even(k, c, v):
    return c + (v - 1) / k


# %% 07.when_it_pays: drafts_once_a_cycle
def break_even(k, c, v):
    if c + v > k + 1:
        return math.inf
    low, high = 0.0, 1.0
    while high - low > 1e-8:
        alpha = (low + high) / 2
        low, high = (low, alpha) if expected_tokens(alpha, k) > c + v else (alpha, high)
    return high


# %% 07.when_it_pays: accepted_drafts_only
def break_even(k, c, v):
    cost = k * c + v
    if cost > k:
        return math.inf
    low, high = 0.0, 1.0
    for _ in range(50):
        alpha = (low + high) / 2
        if sum(alpha**i for i in range(1, k + 1)) < cost:
            low = alpha
        else:
            high = alpha
    return high


# %% 07.when_it_pays: endless_drafts
def break_even(k, c, v):
    cost = k * c + v
    return (cost - 1) / cost


# %% 07.when_it_pays: one_instead_of_never
def break_even(k, c, v):
    low, high = 0.0, 1.0
    for _ in range(40):
        alpha = (low + high) / 2
        if expected_tokens(alpha, k) < k * c + v:
            low = alpha
        else:
            high = alpha
    return high
