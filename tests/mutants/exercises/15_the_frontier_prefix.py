# ruff: noqa: F811, F821
# Wrong answers to the exercises of set 15 on prefixes, as cells of a notebook. How they are used: __init__.py.


# %% 15.penalties: one_prefix_for_all
def penalties(logits, output, drafted, frequency, presence):
    counts = {}
    for token in output:
        counts[token] = counts.get(token, 0) + 1
    return [
        [z - frequency * counts.get(x, 0) - presence * (x in counts) for x, z in enumerate(row)] for row in logits
    ]


# %% 15.penalties: the_token_itself_too
def penalties(logits, output, drafted, frequency, presence):
    made, sequence = [], list(output)
    for i, row in enumerate(logits):
        sequence += drafted[i : i + 1]
        made.append([z - frequency * sequence.count(x) - presence * (x in sequence) for x, z in enumerate(row)])
    return made


# %% 15.penalties: presence_paid_every_time
def penalties(logits, output, drafted, frequency, presence):
    made = [list(row) for row in logits]
    for i in range(len(made)):
        for token in output + drafted[:i]:
            made[i][token] -= frequency + presence
    return made


# %% 15.penalties: the_draft_alone
def penalties(logits, output, drafted, frequency, presence):
    made = []
    for i, row in enumerate(logits):
        new = drafted[:i]
        made.append([z - frequency * new.count(x) - (presence if x in new else 0) for x, z in enumerate(row)])
    return made


# %% 15.constraint: not_rolled_back
def constraint(step, state, drafted, accepted, token):
    allowed = []
    for d in [*drafted, token]:
        allowed.append(sorted(x for s, x in step if s == state) if state is not None else [])
        state = step.get((state, d))
    return allowed, state


# %% 15.constraint: forgets_the_emitted_token
def constraint(step, state, drafted, accepted, token):
    states = [state]
    for d in drafted:
        states.append(step.get((states[-1], d)))
    return [sorted(x for s, x in step if s == here) for here in states], states[accepted]


# %% 15.constraint: one_mask_for_all
def constraint(step, state, drafted, accepted, token):
    mask = sorted(x for s, x in step if s == state)
    for d in drafted[:accepted]:
        state = step[state, d]
    return [mask for _ in range(len(drafted) + 1)], step.get((state, token))


# %% 15.constraint: stays_where_it_was
def constraint(step, state, drafted, accepted, token):
    states = [state]
    for d in drafted:
        states.append(step.get((states[-1], d), states[-1]))
    return [sorted(x for s, x in step if s == here) for here in states], step.get((states[accepted], token))
