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


# %% 11.latencies: tokens_as_parts
def latencies(sent, log):
    times = [time for time, _ in log]
    gaps = [b - a for a, b in zip(times, times[1:])]
    if sum(n for _, n in log) == 1:
        return times[0] - sent, None, gaps
    return times[0] - sent, sum(gaps) / len(gaps) if gaps else 0.0, gaps


# %% 11.latencies: waiting_in_tpot
def latencies(sent, log):
    tokens, gaps = 0, []
    for i, (time, n) in enumerate(log):
        tokens += n
        if i:
            gaps.append(time - log[i - 1][0])
    return log[0][0] - sent, (log[-1][0] - sent) / (tokens - 1) if tokens > 1 else None, gaps


# %% 11.latencies: first_token_counted
def latencies(sent, log):
    times, tokens = zip(*log)
    per_token = None if sum(tokens) == 1 else (times[-1] - times[0]) / sum(tokens)
    return times[0] - sent, per_token, [times[i + 1] - times[i] for i in range(len(times) - 1)]


# %% 11.latencies: itl_per_token
def latencies(sent, log):
    gaps, tokens = [], log[0][1]
    for (before, _), (after, n) in zip(log, log[1:]):
        gaps.append((after - before) / n)
        tokens += n
    return log[0][0] - sent, (log[-1][0] - log[0][0]) / (tokens - 1) if tokens != 1 else None, gaps


# %% 11.goodput: all_that_completed
def goodput(requests, seconds, ttft_target, tpot_target):
    return len([ttft for ttft, tpot in requests if ttft is not None]) / seconds


# %% 11.goodput: a_share
def goodput(requests, seconds, ttft_target, tpot_target):
    good = [r for r in requests if r[0] is not None and r[0] <= ttft_target and (r[1] is None or r[1] <= tpot_target)]
    return len(good) / len(requests)


# %% 11.goodput: a_single_token_misses
def goodput(requests, seconds, ttft_target, tpot_target):
    good = 0
    for ttft, tpot in requests:
        if ttft is not None and tpot is not None and ttft <= ttft_target and tpot <= tpot_target:
            good += 1
    return good / seconds


# %% 11.goodput: strictly_below
def goodput(requests, seconds, ttft_target, tpot_target):
    good = 0
    for ttft, tpot in requests:
        if ttft is None or ttft >= ttft_target or (tpot is not None and tpot >= tpot_target):
            continue
        good += 1
    return good / seconds


# %% 11.admission: whoever_fits_in_memory
def admission(waiting, running, free_blocks, seconds, tokens_per_step, target):
    admitted = 0
    while admitted < len(waiting) and running + admitted < len(seconds) and waiting[admitted] <= free_blocks:
        free_blocks -= waiting[admitted]
        admitted += 1
    return admitted


# %% 11.admission: a_step_for_a_token
def admission(waiting, running, free_blocks, seconds, tokens_per_step, target):
    admitted = 0
    for blocks in waiting:
        b = running + admitted + 1
        if b > len(seconds) or blocks > free_blocks or (b > 1 and seconds[b - 1] > target):
            return admitted
        admitted, free_blocks = b - running, free_blocks - blocks
    return admitted


# %% 11.admission: nobody_at_all
def admission(waiting, running, free_blocks, seconds, tokens_per_step, target):
    admitted = 0
    for blocks in waiting:
        b = running + admitted + 1
        if b > len(seconds) or seconds[b - 1] / tokens_per_step > target or blocks > free_blocks:
            break
        admitted += 1
        free_blocks -= blocks
    return admitted


# %% 11.admission: small_ones_overtake
def admission(waiting, running, free_blocks, seconds, tokens_per_step, target):
    batch = running
    for blocks in waiting:
        if batch < len(seconds) and blocks <= free_blocks:
            if batch == 0 or seconds[batch] / tokens_per_step <= target:
                batch += 1
                free_blocks -= blocks
    return batch - running


# %% 11.abort: stays_in_the_queue
def abort(id, waiting, tables, refcount):
    freed = []
    if id in tables:
        for block in reversed(tables.pop(id)):
            refcount[block] -= 1
            if not refcount[block]:
                freed.append(block)
    return waiting, tables, refcount, freed


# %% 11.abort: takes_a_shared_prefix_along
def abort(id, waiting, tables, refcount):
    waiting = [other for other in waiting if other != id]
    freed = tables.pop(id, [])[::-1]
    for block in freed:
        refcount[block] -= 1
    return waiting, tables, refcount, freed


# %% 11.abort: the_table_stays
def abort(id, waiting, tables, refcount):
    if id in waiting:
        waiting.remove(id)
        return waiting, tables, refcount, []
    freed = []
    for block in tables.get(id, [])[::-1]:
        refcount[block] -= 1
        if refcount[block] == 0:
            freed.append(block)
    return waiting, tables, refcount, freed
