# ruff: noqa: F811, F821
# Wrong answers to the exercises of set 05, as cells of a notebook. How they are used: __init__.py.


# %% 05.greedy_verify: counts_all_matches
def greedy_verify(logits, drafted):
    matches = logits[:-1].argmax(-1) == torch.tensor(drafted, dtype=torch.long)
    accepted = int(matches.sum())
    return accepted, int(logits[accepted].argmax())


# %% 05.greedy_verify: one_row_late
def greedy_verify(logits, drafted):
    accepted = 0
    for i, d in enumerate(drafted, start=1):
        if int(logits[i].argmax()) != d:
            break
        accepted += 1
    return accepted, int(logits[accepted].argmax())


# %% 05.greedy_verify: forgets_the_bonus
def greedy_verify(logits, drafted):
    for i, d in enumerate(drafted):
        best = int(logits[i].argmax())
        if best != d:
            return i, best
    return len(drafted), None


# %% 05.greedy_verify: emits_the_rejected_draft
def greedy_verify(logits, drafted):
    for i, d in enumerate(drafted):
        if int(logits[i].argmax()) != d:
            return i, d
    return len(drafted), int(logits[-1].argmax())


# %% 05.greedy_verify: always_the_last_row
def greedy_verify(logits, drafted):
    accepted = 0
    while accepted < len(drafted) and logits[accepted].argmax() == drafted[accepted]:
        accepted += 1
    return accepted, logits[-1].argmax()


# %% 05.rewind: keeps_everything
def rewind(n, k, accepted):
    target = n - 1 + k + 1
    draft = n - 1 + k
    return target, draft


# %% 05.rewind: draft_like_target
def rewind(n, k, accepted):
    kept = n - 1 + accepted + 1
    return kept, kept


# %% 05.rewind: counts_the_emitted_token
def rewind(n, k, accepted):
    tokens = n + accepted + 1
    return tokens, tokens if tokens < n + k else n + k - 1


# %% 05.rewind: forgets_the_last_token
def rewind(n, k, accepted):
    rejected = k - accepted
    return (n + k) - rejected - 1, (n + k - 1) - max(rejected, 1)


# %% 05.rewind: back_to_the_start
def rewind(n, k, accepted):
    return [n - 1] * 2


# %% 05.loop: target_not_rewound
def loop(target, draft, prompt, k, count):
    out = []
    while len(out) < count:
        text = prompt + out
        drafted = []
        for _ in range(k):
            drafted.append(draft.read((text + drafted)[draft.length :])[-1].argmax().item())
        a, token = our_verify(target.read(text[-1:] + drafted), drafted)
        out = out + drafted[:a] + [token]
        draft.rewind(our_rewind(len(text), k, a)[1])
    return out[:count]


# %% 05.loop: draft_not_rewound
def loop(target, draft, prompt, k, count):
    out, fresh = [], prompt[-1:]
    while len(out) < count:
        text = prompt + out
        drafted = []
        for _ in range(k):
            drafted.append(draft.read(fresh)[-1].argmax().item())
            fresh = drafted[-1:]
        a, token = our_verify(target.read(text[-1:] + drafted), drafted)
        fresh = [drafted[-1], token] if a == k else [token]
        out = out + drafted[:a] + [token]
        target.rewind(len(text) + a)
    return out[:count]


# %% 05.loop: draft_misses_its_last_token
def loop(target, draft, prompt, k, count):
    text = list(prompt)
    while len(text) < len(prompt) + count:
        n = len(text)
        drafted, x = [], text[-1]
        for _ in range(k):
            x = draft.read([x])[-1].argmax().item()
            drafted.append(x)
        a, token = our_verify(target.read([text[-1]] + drafted), drafted)
        text += drafted[:a] + [token]
        t, d = our_rewind(n, k, a)
        target.rewind(t)
        draft.rewind(min(d, draft.length))
    return text[len(prompt) :][:count]


# %% 05.loop: no_bonus
def loop(target, draft, prompt, k, count):
    text = list(prompt)
    while len(text) < len(prompt) + count:
        n, drafted = len(text), []
        for _ in range(k):
            drafted.append(int(draft.read((text + drafted)[draft.length :])[-1].argmax()))
        a, token = our_verify(target.read([text[-1]] + drafted), drafted)
        if a < k:
            text += drafted[:a] + [token]
        else:
            text += drafted
        target.rewind(len(text) - 1)
        draft.rewind(len(text) - 1)
    return text[len(prompt) :][:count]


# %% 05.loop: too_many_tokens
def loop(target, draft, prompt, k, count):
    text = list(prompt)
    while len(text) < len(prompt) + count:
        n, drafted = len(text), []
        for _ in range(k):
            drafted.append(int(draft.read((text + drafted)[draft.length :])[-1].argmax()))
        a, token = our_verify(target.read([text[-1]] + drafted), drafted)
        text += drafted[:a] + [token]
        t, d = our_rewind(n, k, a)
        target.rewind(t)
        draft.rewind(d)
    return text[len(prompt) :]


# %% 05.loop: one_draft_pass_too_many
def loop(target, draft, prompt, k, count):
    text = list(prompt)
    while len(text) < len(prompt) + count:
        n, drafted = len(text), []
        logits = draft.read(text[draft.length :])
        for _ in range(k):
            drafted.append(int(logits[-1].argmax()))
            logits = draft.read(drafted[-1:])
        a, token = our_verify(target.read([text[-1]] + drafted), drafted)
        text += drafted[:a] + [token]
        target.rewind(n + a)
        draft.rewind(n + a)
    return text[len(prompt) :][:count]


# %% 05.loop: returns_the_prompt_too
def loop(target, draft, prompt, k, count):
    text = list(prompt)
    while len(text) < len(prompt) + count:
        n, drafted = len(text), []
        for _ in range(k):
            drafted.append(int(draft.read((text + drafted)[draft.length :])[-1].argmax()))
        a, token = our_verify(target.read([text[-1]] + drafted), drafted)
        text += drafted[:a] + [token]
        t, d = our_rewind(n, k, a)
        target.rewind(t)
        draft.rewind(d)
    return text[: len(prompt) + count]
