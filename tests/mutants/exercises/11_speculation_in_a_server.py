# ruff: noqa: F811, F821
# Wrong answers to the exercises of set 11, as cells of a notebook. How they are used: __init__.py.


# %% 11.lookahead_slots: no_slot_for_the_last_token
def lookahead_slots(num_tokens, num_computed, k, max_tokens, block_size, num_blocks):
    drafts = min(k, max(max_tokens - num_tokens - 1, 0))
    cached = num_tokens - 1
    slots = cached - num_computed + drafts
    return slots, max(0, -(-(cached + drafts) // block_size) - num_blocks)


# %% 11.lookahead_slots: a_slot_for_the_bonus
def lookahead_slots(num_tokens, num_computed, k, max_tokens, block_size, num_blocks):
    drafts = min(k, max(max_tokens - num_tokens - 1, 0))
    end = num_tokens + drafts + 1
    return end - num_computed, max(0, (end + block_size - 1) // block_size - num_blocks)


# %% 11.lookahead_slots: drafts_beyond_the_end
def lookahead_slots(num_tokens, num_computed, k, max_tokens, block_size, num_blocks):
    with_spec = num_tokens + k
    return with_spec - num_computed, max(0, -(-with_spec // block_size) - num_blocks)


# %% 11.lookahead_slots: fills_up_to_the_end
def lookahead_slots(num_tokens, num_computed, k, max_tokens, block_size, num_blocks):
    with_spec = min(num_tokens + k, max_tokens)
    return with_spec - num_computed, max(0, -(-with_spec // block_size) - num_blocks)


# %% 11.lookahead_slots: rounds_up_too_far
def lookahead_slots(num_tokens, num_computed, k, max_tokens, block_size, num_blocks):
    drafts = min(k, max(max_tokens - num_tokens - 1, 0))
    wanted = (num_tokens + drafts) // block_size + 1
    return num_tokens + drafts - num_computed, wanted - num_blocks if wanted > num_blocks else 0


# %% 11.lookahead_slots: fewer_than_no_blocks
def lookahead_slots(num_tokens, num_computed, k, max_tokens, block_size, num_blocks):
    drafts = min(k, max(max_tokens - num_tokens - 1, 0))
    return num_tokens + drafts - num_computed, -(-(num_tokens + drafts) // block_size) - num_blocks


# %% 11.rollback: frees_what_others_read
def rollback(table, refcount, block_size, length):
    keep = -(-length // block_size)
    freed = table[keep:]
    for block in freed:
        refcount[block] -= 1
    return table[:keep], refcount, freed[::-1]


# %% 11.rollback: counts_to_zero
def rollback(table, refcount, block_size, length):
    freed = []
    while len(table) * block_size - length >= block_size:
        freed.append(table.pop())
        refcount[freed[-1]] = 0
    return table, refcount, freed


# %% 11.rollback: freed_to_nowhere
def rollback(table, refcount, block_size, length):
    keep = -(-length // block_size)
    for block in table[keep:]:
        refcount[block] -= 1
    return table[:keep], refcount, []


# %% 11.rollback: gives_away_a_partial_block
def rollback(table, refcount, block_size, length):
    freed = []
    for block in reversed(table[length // block_size :]):
        refcount[block] -= 1
        if not refcount[block]:
            freed.append(block)
    return table[: length // block_size], refcount, freed


# %% 11.rollback: from_the_front
def rollback(table, refcount, block_size, length):
    keep = -(-length // block_size)
    freed = []
    for block in table[keep:]:
        refcount[block] -= 1
        if refcount[block] == 0:
            freed.append(block)
    return table[:keep], refcount, freed


# %% 11.batch_k: as_if_alone
def batch_k(alphas, longest, read, compute, draft):
    best, most = 0, 0.0
    for k in range(longest + 1):
        speed = sum(expected_tokens(a, k) for a in alphas) / (k * draft + max(read, (k + 1) * compute))
        if speed > most:
            best, most = k, speed
    return best


# %% 11.batch_k: reads_then_computes
def batch_k(alphas, longest, read, compute, draft):
    best, most = 0, 0.0
    for k in range(longest + 1):
        speed = sum(expected_tokens(a, k) for a in alphas) / (k * draft + read + len(alphas) * (k + 1) * compute)
        if speed > most:
            best, most = k, speed
    return best


# %% 11.batch_k: average_alpha
def batch_k(alphas, longest, read, compute, draft):
    alpha = sum(alphas) / len(alphas)
    best, most = 0, 0.0
    for k in range(longest + 1):
        seconds = k * draft + max(read, len(alphas) * (k + 1) * compute)
        speed = len(alphas) * expected_tokens(alpha, k) / seconds
        if speed > most:
            best, most = k, speed
    return best


# %% 11.batch_k: always_drafts
def batch_k(alphas, longest, read, compute, draft):
    def speed(k):
        seconds = k * draft + max(read, len(alphas) * (k + 1) * compute)
        return sum(expected_tokens(a, k) for a in alphas) / seconds

    return max(range(1, longest + 1), key=speed)


# %% 11.batch_k: verification_is_free
def batch_k(alphas, longest, read, compute, draft):
    def speed(k):
        return sum(expected_tokens(a, k) for a in alphas) / (read + k * draft)

    return max(range(longest + 1), key=speed)
