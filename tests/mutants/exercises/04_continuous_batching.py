# ruff: noqa: F811
# Wrong answers to the exercises of set 04, as cells of a notebook. How they are used: __init__.py.


# %% 04.static_waste: one_batch_for_all
def batching_steps(lengths, rows):
    free_at = [0] * rows
    for length in lengths:
        free_at.sort()
        free_at[0] += length
    return max(lengths), max(free_at)


# %% 04.static_waste: rows_never_idle
def batching_steps(lengths, rows):
    static = 0
    for i in range(0, len(lengths), rows):
        static += max(lengths[i : i + rows])
    return static, -(-sum(lengths) // rows)


# %% 04.static_waste: sorts_by_length
def batching_steps(lengths, rows):
    lengths = sorted(lengths)[::-1]
    free_at = [0] * rows
    for length in lengths:
        free_at.sort()
        free_at[0] += length
    return sum(lengths[::rows]), max(free_at)


# %% 04.static_waste: next_row_in_turn
def batching_steps(lengths, rows):
    static, total = 0, [0] * rows
    for i, length in enumerate(lengths):
        total[i % rows] += length
        if i % rows == 0:
            static += max(lengths[i : i + rows])
    return static, max(total)


# %% 04.static_waste: waits_for_the_batch
def batching_steps(lengths, rows):
    steps = sum(max(lengths[i : i + rows]) for i in range(0, len(lengths), rows))
    return steps, steps


# %% 04.static_waste: a_step_between
def batching_steps(lengths, rows):
    static = sum(max(lengths[i : i + rows]) for i in range(0, len(lengths), rows))
    free_at = [-1] * rows
    for length in lengths:
        free_at.sort()
        free_at[0] += length + 1
    return static, max(free_at)


# %% 04.static_waste: counts_row_steps
def batching_steps(lengths, rows):
    free_at = [0] * rows
    for length in lengths:
        free_at.sort()
        free_at[0] += length
    return sum(lengths), free_at.pop() if rows == 1 else max(free_at)


# %% 04.token_budget: first_come_first_served
def plan_step(behind, running, seats, budget, max_chunk):
    plan = []
    for i, n in enumerate(behind):
        plan.append(min(n, budget, max_chunk) if i < max(running, seats) else 0)
        budget -= plan[-1]
    return plan


# %% 04.token_budget: whole_prompts_only
def plan_step(behind, running, seats, budget, max_chunk):
    plan = [1 if i < running and n == 1 else 0 for i, n in enumerate(behind)]
    left = budget - sum(plan)
    for i in range(min(seats, len(behind))):
        if plan[i] == 1:
            continue
        if behind[i] > min(left, max_chunk):
            return plan
        plan[i] = behind[i]
        left -= behind[i]
    return plan


# %% 04.token_budget: shorter_ones_overtake
def plan_step(behind, running, seats, budget, max_chunk):
    plan = [1 if i < running and n == 1 else 0 for i, n in enumerate(behind)]
    left = budget - sum(plan)
    for i in range(min(seats, len(behind))):
        if plan[i] == 0 and behind[i] <= min(left, max_chunk):
            plan[i] = behind[i]
            left -= behind[i]
    return plan


# %% 04.token_budget: decodes_cost_nothing
def plan_step(behind, running, seats, budget, max_chunk):
    plan = []
    for i, n in enumerate(behind[:seats]):
        if i < running and n == 1:
            plan.append(1)
        else:
            plan.append(min(n, budget, max_chunk))
            budget -= plan[-1]
    return plan + [0] * (len(behind) - len(plan))


# %% 04.token_budget: no_limit_for_chunks
def plan_step(behind, running, seats, budget, max_chunk):
    plan = [int(i < running and n == 1) for i, n in enumerate(behind)]
    for i in range(min(len(behind), seats)):
        if not plan[i]:
            plan[i] = min(behind[i], budget - sum(plan))
    return plan


# %% 04.token_budget: no_limit_for_seats
def plan_step(behind, running, seats, budget, max_chunk):
    plan = [int(i < running and n == 1) for i, n in enumerate(behind)]
    for i in range(len(behind)):
        if not plan[i]:
            plan[i] = min(behind[i], max_chunk, budget - sum(plan))
    return plan


# %% 04.token_budget: one_prompt_a_step
def plan_step(behind, running, seats, budget, max_chunk):
    plan = [int(i < running and n == 1) for i, n in enumerate(behind)]
    for i in range(min(len(behind), seats)):
        if not plan[i]:
            plan[i] = min(behind[i], max_chunk, budget - sum(plan))
            break
    return plan


# %% 04.token_budget: every_prompt_its_chunk
def plan_step(behind, running, seats, budget, max_chunk):
    return [min(n, max_chunk) if i < seats else 0 for i, n in enumerate(behind)]


# %% 04.token_budget: seats_for_newcomers
def plan_step(behind, running, seats, budget, max_chunk):
    plan, let_in = [int(i < running and n == 1) for i, n in enumerate(behind)], 0
    for i, n in enumerate(behind):
        if plan[i] or let_in == seats:
            continue
        plan[i] = min(n, max_chunk, budget - sum(plan))
        let_in += i >= running
    return plan


# %% 04.preemption: first_gives_way
def make_room(prompt, output, free, block_size):
    running, out = list(range(len(prompt))), []
    held = [-(-(p + o - 1) // block_size) for p, o in zip(prompt, output, strict=True)]
    for i in range(len(prompt)):
        if i not in running or held[i] * block_size >= prompt[i] + output[i]:
            continue
        while not free:
            victim = running.pop(0)
            out.append((victim, prompt[victim] + output[victim]))
            free += held[victim]
            if victim == i:
                break
        else:
            free -= 1
            held[i] += 1
    return running, out


# %% 04.preemption: largest_gives_way
def make_room(prompt, output, free, block_size):
    running, out = list(range(len(prompt))), []
    held = [-(-(p + o - 1) // block_size) for p, o in zip(prompt, output, strict=True)]
    for i in range(len(prompt)):
        if i not in running or held[i] * block_size >= prompt[i] + output[i]:
            continue
        while not free:
            most = max(held[j] for j in running)
            victim = [j for j in running if held[j] == most][-1]
            running.remove(victim)
            out.append((victim, prompt[victim] + output[victim]))
            free += held[victim]
            if victim == i:
                break
        else:
            free -= 1
            held[i] += 1
    return running, out


# %% 04.preemption: asker_gives_way
def make_room(prompt, output, free, block_size):
    running, out = [], []
    for i, (p, o) in enumerate(zip(prompt, output, strict=True)):
        full = (p + o - 1) % block_size == 0
        if full and free == 0:
            out.append((i, p + o))
            free += (p + o - 1) // block_size
            continue
        free -= full
        running.append(i)
    return running, out


# %% 04.preemption: computes_the_prompt_again
def make_room(prompt, output, free, block_size):
    running, out = list(range(len(prompt))), []
    for i in range(len(prompt)):
        if i in running and (prompt[i] + output[i] - 1) % block_size == 0:
            while free == 0 and i in running:
                victim = running.pop()
                free += -(-(prompt[victim] + output[victim] - 1) // block_size)
                out.append((victim, prompt[victim]))
            free -= i in running
    return running, out


# %% 04.preemption: computes_the_output_again
def make_room(prompt, output, free, block_size):
    running, out = list(range(len(prompt))), []
    for i in range(len(prompt)):
        if i in running and (prompt[i] + output[i] - 1) % block_size == 0:
            while free == 0 and i in running:
                victim = running.pop()
                free += -(-(prompt[victim] + output[victim] - 1) // block_size)
                out.append((victim, output[victim]))
            free -= i in running
    return running, out


# %% 04.preemption: leaves_out_the_last_token
def make_room(prompt, output, free, block_size):
    stored = [p + o - 1 for p, o in zip(prompt, output, strict=True)]
    running, out = list(range(len(prompt))), []
    for i in range(len(prompt)):
        if i in running and stored[i] % block_size == 0:
            while free == 0 and i in running:
                victim = running.pop()
                free += -(-stored[victim] // block_size)
                out.append((victim, stored[victim]))
            free -= i in running
    return running, out


# %% 04.preemption: blocks_are_lost
def make_room(prompt, output, free, block_size):
    running, out = list(range(len(prompt))), []
    for i in range(len(prompt)):
        if i in running and (prompt[i] + output[i] - 1) % block_size == 0:
            while free == 0 and i in running:
                victim = running.pop()
                out.append((victim, prompt[victim] + output[victim]))
            free -= i in running
    return running, out


# %% 04.preemption: everybody_takes_a_block
def make_room(prompt, output, free, block_size):
    running, out = list(range(len(prompt))), []
    for i in range(len(prompt)):
        while free == 0 and i in running:
            victim = running.pop()
            free += -(-(prompt[victim] + output[victim] - 1) // block_size)
            out.append((victim, prompt[victim] + output[victim]))
        free -= i in running
    return running, out


# %% 04.preemption: fills_up_one_token_early
def make_room(prompt, output, free, block_size):
    running, out = list(range(len(prompt))), []
    for i in range(len(prompt)):
        if i in running and (prompt[i] + output[i]) % block_size == 0:
            while free == 0 and i in running:
                victim = running.pop()
                free += -(-(prompt[victim] + output[victim] - 1) // block_size)
                out.append((victim, prompt[victim] + output[victim]))
            free -= i in running
    return running, out


# %% 04.preemption: all_wait
def make_room(prompt, output, free, block_size):
    running = []
    for i in range(len(prompt)):
        if (prompt[i] + output[i] - 1) % block_size == 0:
            if free == 0:
                continue
            free -= 1
        running.append(i)
    return running, []
