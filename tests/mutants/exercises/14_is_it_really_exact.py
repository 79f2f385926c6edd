# ruff: noqa: F811, F821
# Wrong answers to the exercises of set 14. Each cell stands for a notebook's answer cell.


# %% 14.argmax_draft: samples_the_draft
def verify_greedy_draft(p, q, random):
    proposal = pick(q, random())
    passes = random() < accept_probability(p, q, proposal)
    return (proposal, True) if passes else (pick(residual(p, q), random()), False)


# %% 14.argmax_draft: residual_of_the_softmax
def verify_greedy_draft(p, q, random):
    _, best = q.max(0)
    best = int(best)
    if not random() < float(p[best]):
        return pick((p - q).clamp(min=0), random()), False
    return best, True


# %% 14.argmax_draft: test_of_the_softmax
def verify_greedy_draft(p, q, random):
    best = q.tolist().index(max(q.tolist()))
    if random() < min(1.0, float(p[best] / q[best])):
        return best, True
    others = torch.tensor([0.0 if x == best else float(p[x]) for x in range(len(p))], dtype=p.dtype)
    return pick(others, random()), False


# %% 14.two_precisions: sum_is_not_one
def verify_rounded_draft(p, logits, random):
    low = torch.softmax(logits.to(torch.bfloat16), 0).to(p.dtype)
    d = pick(low, random())
    return d if random() < accept_probability(p, low, d) else pick(residual(p, low), random())


# %% 14.two_precisions: precise_residual
def verify_rounded_draft(p, logits, random):
    low = torch.softmax(logits.to(torch.bfloat16), 0).to(p.dtype)
    low /= low.sum()
    d = pick(low, random())
    high = torch.softmax(logits, 0)
    return d if random() < accept_probability(p, low, d) else pick(residual(p, high), random())


# %% 14.two_precisions: precise_test
def verify_rounded_draft(p, logits, random):
    low = torch.softmax(logits.to(torch.bfloat16), 0).to(p.dtype)
    low /= low.sum()
    d = pick(low, random())
    high = torch.softmax(logits, 0)
    return d if random() < accept_probability(p, high, d) else pick(residual(p, low), random())


# %% 14.penalties: noted_after_the_step
def penalised_step(logits, draft, counts, penalty):
    best = (logits - penalty * counts).argmax(-1).tolist()
    n = 0
    while n < len(draft) and best[n] == draft[n]:
        n += 1
    emitted = best[: n + 1]
    return emitted, counts + torch.bincount(torch.tensor(emitted), minlength=len(counts))


# %% 14.penalties: one_noted_at_the_end
def penalised_step(logits, draft, counts, penalty):
    inside, out = counts.clone(), []
    for row, d in zip(logits, [*draft, None], strict=True):
        out.append(int((row - penalty * inside).argmax()))
        inside[out[-1]] += 1
        if out[-1] != d:
            break
    after = counts.clone()
    after[out[-1]] += 1
    return out, after


# %% 14.penalties: the_whole_draft_noted
def penalised_step(logits, draft, counts, penalty):
    inside, out = counts.clone(), []
    for row, d in zip(logits, [*draft, None], strict=True):
        out.append(int((row - penalty * inside).argmax()))
        inside[out[-1]] += 1
        if out[-1] != d:
            break
    after = counts.clone()
    for d in draft:
        after[d] += 1
    return out, after


# %% 14.eos: tokens_after_the_end
def finish(steps, eos, max_new_tokens):
    out = []
    for step in steps:
        for i, token in enumerate(step):
            out.append(token)
            if token in eos:
                return [*out, *step[i + 1 :]], "stop"
            if len(out) == max_new_tokens:
                return out, "length"
    return out, None


# %% 14.eos: the_limit_hides_the_end
def finish(steps, eos, max_new_tokens):
    flat = sum(steps, [])[:max_new_tokens]
    ends = [i for i, token in enumerate(flat) if token in eos]
    if ends and ends[0] + 1 < max_new_tokens:
        return flat[: ends[0] + 1], "stop"
    return flat, "length" if len(flat) == max_new_tokens else None


# %% 14.eos: the_end_is_lost
def finish(steps, eos, max_new_tokens):
    flat = sum(steps, [])[:max_new_tokens]
    ends = [i for i, token in enumerate(flat) if token in eos]
    if ends:
        return flat[: ends[0]], "stop"
    return flat, "length" if len(flat) == max_new_tokens else None


# %% 14.stop_string: inside_one_step_only
def until_stop(steps, stop):
    before, n = "", 0
    for step in steps:
        own = ""
        for piece in step:
            own, n = own + piece, n + 1
            if stop in own:
                return (before + own)[: (before + own).index(stop)], n
        before += own
    return before, n


# %% 14.stop_string: tokens_past_the_stop
def until_stop(steps, stop):
    text, n = "", 0
    for step in steps:
        text, n = text + "".join(step), n + len(step)
        head, found, _ = text.partition(stop)
        if found:
            return head, n
    return text, n


# %% 14.stop_string: stop_in_the_text
def until_stop(steps, stop):
    text, n = "", 0
    for piece in sum(steps, []):
        text, n = text + piece, n + 1
        head, found, _ = text.partition(stop)
        if found:
            return head + found, n
    return text, n


# %% 14.grammar: back_to_the_start
def constrained_step(grammar, state, logits, draft):
    here, out = state, []
    for row, d in zip(logits, [*draft, None], strict=True):
        scores = [float(row[x]) if to is not None else float("-inf") for x, to in enumerate(grammar[here])]
        out.append(scores.index(max(scores)))
        here = grammar[here][out[-1]]
        if out[-1] != d:
            break
    return out, state


# %% 14.grammar: one_token_behind
def constrained_step(grammar, state, logits, draft):
    here, out = state, []
    for row, d in zip(logits, [*draft, None], strict=True):
        scores = [float(row[x]) if to is not None else float("-inf") for x, to in enumerate(grammar[here])]
        out.append(scores.index(max(scores)))
        if out[-1] != d:
            break
        here = grammar[here][out[-1]]
    return out, here


# %% 14.grammar: where_the_draft_ends
def constrained_step(grammar, state, logits, draft):
    here, out = state, []
    for row, d in zip(logits, [*draft, None], strict=True):
        scores = [float(row[x]) if to is not None else float("-inf") for x, to in enumerate(grammar[here])]
        out.append(scores.index(max(scores)))
        here = grammar[here][out[-1]]
        if out[-1] != d:
            break
    end = state
    for d in draft:
        if grammar[end][d] is None:
            break
        end = grammar[end][d]
    return out, end


# %% 14.draft_cache: two_tokens_every_time
def first_passes(prompt, cycles):
    sequence, cached, found = list(prompt), 0, []
    for draft, emitted in cycles:
        found.append(sequence[cached:] if draft else [])
        sequence = sequence + emitted
        if draft:
            cached = max(len(sequence) - 2, 0)
    return found


# %% 14.draft_cache: rejected_ones_stay
def first_passes(prompt, cycles):
    sequence, cached, found = list(prompt), 0, []
    for draft, emitted in cycles:
        found.append(sequence[cached:] if draft else [])
        cached = len(sequence) + len(draft) - 1 if draft else cached
        sequence = sequence + emitted
    return found


# %% 14.draft_cache: an_empty_draft_processes
def first_passes(prompt, cycles):
    sequence, cached, found = list(prompt), 0, []
    for draft, emitted in cycles:
        found.append(sequence[cached:] if draft else [])
        sequence = sequence + emitted
        cached = len(sequence) - 1 - (0 < len(draft) < len(emitted))
    return found


# %% 14.draft_vocabulary: only_the_token
def to_target_ids(probs, d2t, vocab_size):
    q = torch.zeros(vocab_size, dtype=probs.dtype)
    for one, to in zip(probs, d2t, strict=True):
        q[to] = one
    i = int(probs.argmax())
    return i + int(d2t[i]), q


# %% 14.draft_vocabulary: only_q
def to_target_ids(probs, d2t, vocab_size):
    q = torch.zeros(vocab_size, dtype=probs.dtype)
    q.scatter_(0, d2t + torch.arange(len(d2t)), probs)
    return d2t[probs.argmax()].item(), q


# %% 14.draft_vocabulary: not_mapped_at_all
def to_target_ids(probs, d2t, vocab_size):
    padded = torch.cat([probs, torch.zeros(vocab_size - len(probs), dtype=probs.dtype)])
    return int(padded.argmax()), padded


# %% 14.acceptance_length: always_one_more
def mean_acceptance_length(cycles):
    lengths = [1 + accepted for _, accepted, _ in cycles]
    return sum(lengths) / len(lengths)


# %% 14.acceptance_length: drafting_cycles_only
def mean_acceptance_length(cycles):
    passes = [emitted for drafted, _, emitted in cycles if drafted > 0]
    return sum(passes) / len(passes) if passes else 1.0


# %% 14.acceptance_length: per_draft_token
def mean_acceptance_length(cycles):
    drafted, _, emitted = (sum(column) for column in zip(*cycles, strict=True))
    return emitted / max(drafted, 1)


# %% 14.acceptance_rate: a_rejection_in_every_cycle
def acceptance_rate(cycles):
    accepted = sum(a for _, a in cycles)
    return accepted / (accepted + len(cycles))


# %% 14.acceptance_rate: mean_of_the_cycles
def acceptance_rate(cycles):
    each = [1.0 if a == d else a / (a + 1) for d, a in cycles if d > 0]
    return sum(each) / len(each)


# %% 14.acceptance_rate: with_the_bonus
def acceptance_rate(cycles):
    drafted, accepted = (sum(column) for column in zip(*cycles, strict=True))
    return (accepted + len(cycles)) / (drafted + len(cycles))
