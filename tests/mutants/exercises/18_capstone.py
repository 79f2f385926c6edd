# ruff: noqa: F811, F821
# Wrong answers to the exercises of set 18, as cells of a notebook. How they are used: __init__.py.


# %% 18.sampler: zero_is_one
def verify(logits, q, drafted, temperature, random):
    p = (logits / (temperature if temperature > 0 else 1)).softmax(-1)
    for i, d in enumerate(drafted):
        if not random() < float(p[i, d] / q[i, d]):
            r = (p[i] - q[i]).clamp(min=0)
            return drafted[:i] + [pick(r, random())]
    return drafted + [pick(p[-1], random())]


# %% 18.sampler: corrects_from_p
def verify(logits, q, drafted, temperature, random):
    V = logits.shape[-1]
    p = (logits / temperature).softmax(-1) if temperature else torch.eye(V, dtype=logits.dtype)[logits.argmax(-1)]
    for i, d in enumerate(drafted):
        if not random() < float(p[i, d] / q[i, d]):
            return drafted[:i] + [pick(p[i], random())]
    return drafted + [pick(p[-1], random())]


# %% 18.sampler: no_bonus
def verify(logits, q, drafted, temperature, random):
    V = logits.shape[-1]
    p = (logits / temperature).softmax(-1) if temperature else torch.eye(V, dtype=logits.dtype)[logits.argmax(-1)]
    if not drafted:
        return [pick(p[0], random())]
    for i, d in enumerate(drafted):
        if not random() < float(p[i, d] / q[i, d]):
            return drafted[:i] + [pick((p[i] - q[i]).clamp(min=0), random())]
    return drafted


# %% 18.drafter: only_the_last_token
def propose(model, text, k, temperature, random):
    drafted, laws, last = [], [], text[-1]
    for _ in range(k):
        logits = model.read([last])[-1]
        q = (logits / temperature).softmax(-1) if temperature else (logits == logits.max()).double()
        last = pick(q, random())
        drafted.append(last)
        laws.append(q)
    return drafted, torch.stack(laws) if k else None


# %% 18.drafter: reports_another_law
def propose(model, text, k, temperature, random):
    drafted, laws, unread = [], [], text[model.length :]
    for _ in range(k):
        logits = model.read(unread)[-1]
        laws.append(logits.softmax(-1))
        if temperature == 0:
            drafted.append(int(logits.argmax()))
        else:
            drafted.append(pick((logits / temperature).softmax(-1), random()))
        unread = drafted[-1:]
    return drafted, torch.stack(laws) if k else None


# %% 18.drafter: one_pass_for_all
def propose(model, text, k, temperature, random):
    if k == 0:
        return [], None
    logits = model.read(text[model.length :])[-1]
    q = (logits / temperature).softmax(-1) if temperature else (logits == logits.max()).double()
    return [pick(q, random()) for _ in range(k)], torch.stack([q] * k)


# %% 18.loop: looks_at_the_last_token_only
def loop(target, draft, propose, verify, prompt, k, count, end):
    text = prompt[:]
    while len(text) < len(prompt) + count:
        n = min(k, len(prompt) + count - len(text) - 1)
        drafted, q = propose(draft, text, n)
        text = text + verify(target.read(text[-1:] + drafted), q, drafted)
        if text[-1] == end:
            break
        target.rewind(len(text) - 1)
        draft.rewind(min(draft.length, len(text) - 1))
    return text[len(prompt) :]


# %% 18.loop: drafts_in_vain
def loop(target, draft, propose, verify, prompt, k, count, end):
    text = prompt[:]
    while len(text) < len(prompt) + count:
        drafted, q = propose(draft, text, k)
        for token in verify(target.read(text[-1:] + drafted), q, drafted):
            text.append(token)
            if token == end or len(text) == len(prompt) + count:
                return text[len(prompt) :]
        target.rewind(len(text) - 1)
        draft.rewind(min(draft.length, len(text) - 1))


# %% 18.loop: draft_keeps_rejected_drafts
def loop(target, draft, propose, verify, prompt, k, count, end):
    new = []
    while len(new) < count:
        text = prompt + new
        drafted, q = propose(draft, text, min(k, count - len(new) - 1))
        for token in verify(target.read(text[-1:] + drafted), q, drafted):
            new.append(token)
            if token == end:
                return new
        target.rewind(len(prompt + new) - 1)
    return new


# %% 18.loop: drops_the_end
def loop(target, draft, propose, verify, prompt, k, count, end):
    new = []
    while len(new) < count:
        text = prompt + new
        drafted, q = propose(draft, text, min(k, count - len(new) - 1))
        for token in verify(target.read(text[-1:] + drafted), q, drafted):
            if token == end:
                return new
            new.append(token)
        target.rewind(len(prompt + new) - 1)
        draft.rewind(min(draft.length, len(prompt + new) - 1))
    return new


# %% 18.whole: models_exchanged
def speculate(target, draft, prompt, k, count, end, temperature, random):
    return loop(
        draft,
        target,
        lambda model, text, k: propose(model, text, k, temperature, random),
        lambda logits, q, drafted: verify(logits, q, drafted, temperature, random),
        prompt, k, count, end,
    )


# %% 18.whole: greedy_draft
def speculate(target, draft, prompt, k, count, end, temperature, random):
    return loop(
        target,
        draft,
        lambda model, text, k: propose(model, text, k, 0, random),
        lambda logits, q, drafted: verify(logits, q, drafted, temperature, random),
        prompt, k, count, end,
    )


# %% 18.whole: forgets_q
def speculate(target, draft, prompt, k, count, end, temperature, random):
    def my_verify(logits, q, drafted):
        q = torch.zeros(len(drafted), logits.shape[1], dtype=logits.dtype)
        q[range(len(drafted)), drafted] = 1
        return verify(logits, q, drafted, temperature, random)

    def my_propose(model, text, k):
        return propose(model, text, k, temperature, random)

    return loop(target, draft, my_propose, my_verify, prompt, k, count, end)


# %% 18.whole: target_at_one
def speculate(target, draft, prompt, k, count, end, temperature, random):
    def my_verify(logits, q, drafted):
        return verify(logits, q, drafted, 1.0, random)

    def my_propose(model, text, k):
        return propose(model, text, k, temperature, random)

    return loop(target, draft, my_propose, my_verify, prompt, k, count, end)
