"""Set 14, bugs from the field, second half: state that is not rolled back, numbers that are counted wrongly."""

from __future__ import annotations

import torch
from torch import Tensor

from .exercise import Complaint, exercise, law, pair, rows, token, tokens
from .show import is_number, kind, plain

# ---- 14.grammar -----------------------------------------------------------------------------------------------------


def grammar_step(grammar, state, logits, draft):
    return flawed_grammar(grammar, state, logits, draft)


def best_allowed(options, scores) -> int:
    """The most likely of the tokens that a state of the grammar allows."""
    return max((x for x, after in enumerate(options) if after is not None), key=lambda x: float(scores[x]))


def flawed_grammar(grammar, state, logits, draft, *, masks=lambda states: states, after=None):
    """One greedy step under a grammar, with the masks and the state at the end to exchange."""
    states = [state]  # before each position of the pass, as far as the draft is allowed
    for d in draft:
        if grammar[states[-1]][d] is None:
            break
        states.append(grammar[states[-1]][d])
    emitted = []
    for i, at in enumerate(masks(states)):
        emitted.append(best_allowed(grammar[at], logits[i]))
        if i == len(draft) or emitted[-1] != draft[i]:
            break
    if after is not None:
        return emitted, after(states, emitted)
    return emitted, grammar[states[len(emitted) - 1]][emitted[-1]]


def observe_grammar(answer, grammar, state, logits, draft):
    found = answer([list(options) for options in grammar], state, logits, list(draft))
    emitted, after = pair(found, "the emitted tokens and the state after them")
    emitted = list(tokens(emitted, "the first result"))
    return {"emitted": emitted, "state": None if after is None else token(after, "the state")}


# Two tokens that have to take turns; and brackets up to a depth of two, which 2 closes for good.
TURNS = [[1, None], [None, 0]]
DEPTH = [[1, None, 3], [2, 0, None], [None, 1, None], [None, None, 3]]

GRAMMAR = exercise(
    "14.grammar",
    title="A grammar that remembers rejected tokens",
    level="H",
    minutes=25,
    points=3,
    hints=(
        "Write the states down for a draft of three tokens of which one is accepted. Which state is the right one "
        "after the step, and in which one does the program leave the matcher?",
        "The states along the draft are needed for the masks. After the step only the emitted tokens count: go back "
        "to the state after the accepted ones, then advance by the correction or the bonus.",
        "states[len(emitted) − 1] is the state before the last emitted token. Return grammar[that state][emitted[-1]].",
    ),
    code="minispec.verify.greedy",
    reference=grammar_step,
    observe=observe_grammar,
    cases=[
        dict(grammar=TURNS, state=0, logits=rows([0.0, 1.0]), draft=[]),
        dict(grammar=TURNS, state=0, logits=rows([0.0, 1.0], [1.0, 0.0]), draft=[0]),
        dict(grammar=DEPTH, state=0, logits=rows([0.0, 1.0, 2.0], [1.0, 0.0, 0.0]), draft=[0]),
        dict(grammar=DEPTH, state=0, logits=rows([2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 1.0]), draft=[0, 0]),
        dict(grammar=DEPTH, state=1, logits=rows([2.0, 1.0, 0.0], [2.0, 1.0, 0.0]), draft=[2]),
        dict(grammar=DEPTH, state=0, logits=rows([2.0, 1.0, 0.0], [2.0, 1.0, 0.0], [0.0, 3.0, 1.0]), draft=[0, 0]),
    ],
)


@GRAMMAR.mutant
def grammar_as_reported(grammar, state, logits, draft):
    """Your matcher still stands where the draft led it, rejected tokens included, and is advanced from there. Either
    the token is not allowed in that state (None), or the next mask is made for a sequence that was never emitted."""
    return flawed_grammar(grammar, state, logits, draft, after=lambda states, emitted: grammar[states[-1]][emitted[-1]])


@GRAMMAR.mutant
def where_the_draft_ends(grammar, state, logits, draft):
    """Your state is the one after the draft, whatever was emitted. It has to be the one after the emitted tokens: the
    accepted ones, and the correction or the bonus."""
    return flawed_grammar(grammar, state, logits, draft, after=lambda states, emitted: states[-1])


@GRAMMAR.mutant
def back_to_the_start(grammar, state, logits, draft):
    """You roll the matcher back to where it was before the step. That forgets the tokens that were accepted, and the
    correction: advance it by what was emitted."""
    return flawed_grammar(grammar, state, logits, draft, after=lambda states, emitted: states[0])


@GRAMMAR.mutant
def one_token_behind(grammar, state, logits, draft):
    """You go back to the state after the accepted draft tokens and leave it there. One more token was emitted, the
    correction or the bonus: advance by it, too."""
    return flawed_grammar(grammar, state, logits, draft, after=lambda states, emitted: states[len(emitted) - 1])


@GRAMMAR.mutant
def one_mask_for_all(grammar, state, logits, draft):
    """You mask every position with the state from before the step. A position comes after the draft tokens before it,
    so each one needs the mask of its own state; only the state at the end is right now."""

    def after(states, emitted):
        at = states[0]
        for x in emitted:
            at = None if at is None else grammar[at][x]
        return at

    return flawed_grammar(grammar, state, logits, draft, masks=lambda states: states[:1] * len(states), after=after)


# ---- 14.draft_cache -------------------------------------------------------------------------------------------------


def draft_inputs(prompt, cycles):
    return flawed_inputs(prompt, cycles)


def flawed_inputs(
    prompt, cycles, *, cached=lambda before, draft, emitted: before + min(len(emitted), len(draft)) - 1, empty=True
):
    """What the draft model is run on first in each cycle; cached(…): how many tokens its cache holds after a cycle."""
    sequence, held, inputs = list(prompt), 0, []
    for draft, emitted in cycles:
        before = len(sequence)
        sequence += emitted
        if draft or not empty:
            inputs.append(sequence[held:before] if draft else [])
            held = max(0, cached(before, draft, emitted))
        else:
            inputs.append([])  # the draft model was not run
    return inputs


def observe_inputs(answer, prompt, cycles):
    found = answer(prompt, [(list(draft), list(emitted)) for draft, emitted in cycles])
    if not isinstance(found, (list, tuple)):
        raise Complaint(f"return a list with the tokens of each cycle; yours is {kind(found)}.")
    return [list(tokens(each, "each element of the result")) for each in found]


CACHE = exercise(
    "14.draft_cache",
    title="One token short after a full acceptance",
    level="M",
    minutes=20,
    points=3,
    hints=(
        "The last draft token is sampled from the draft model's last pass. In which pass is it processed?",
        "In none, if the cycle ends there. The cache holds the sequence from before the cycle and all draft tokens "
        "but the last. Rejected ones are dropped, so what stays is the sequence before plus the smaller of two "
        "numbers.",
        "Accepted are all emitted tokens but the last. Of them the draft model has processed at most all but its "
        "own last draft token: add the smaller of the two counts to the length before this cycle. An empty draft "
        "processed nothing, and the cache stays as it was.",
    ),
    code="minispec.drafters.Model.settle",
    reference=draft_inputs,
    observe=observe_inputs,
    cases=[
        dict(prompt=[1, 2], cycles=[([3], [4]), ([5], [6])]),
        dict(prompt=[1, 2], cycles=[([3], [3, 4]), ([5], [6])]),
        dict(prompt=[1], cycles=[([3, 4], [3, 4, 5]), ([6, 7], [6, 8])]),
        dict(prompt=[1], cycles=[([3, 4], [3, 5]), ([6, 7], [8])]),
        dict(prompt=[1, 2], cycles=[([], [3]), ([4], [4, 5]), ([6], [7])]),
        dict(prompt=[1, 2], cycles=[([3, 4], [3, 4, 5]), ([], [6]), ([7, 8], [7, 8, 9]), ([1], [2])]),
    ],
)


@CACHE.mutant
def inputs_as_reported(prompt, cycles):
    """Your program still takes it that all tokens but the newest are in the draft model's cache. After a cycle in
    which everything was accepted that is one too many, and the drafts after it are made with a gap in the context."""
    return flawed_inputs(prompt, cycles, cached=lambda before, draft, emitted: before + len(emitted) - 1, empty=False)


@CACHE.mutant
def two_tokens_every_time(prompt, cycles):
    """You run two tokens at the start of every cycle. That closes the gap after a full acceptance, but after a
    rejection the last accepted token is in the cache already, and is processed twice."""
    return flawed_inputs(prompt, cycles, cached=lambda before, draft, emitted: before + len(emitted) - 2)


@CACHE.mutant
def rejected_ones_stay(prompt, cycles):
    """You keep all draft tokens that were processed, rejected ones too. The draft model then continues a sequence that
    was never emitted: keep the accepted ones only."""
    return flawed_inputs(prompt, cycles, cached=lambda before, draft, emitted: before + len(draft) - 1)


@CACHE.mutant
def an_empty_draft_processes(prompt, cycles):
    """You treat a cycle without a draft like any other. The draft model was not run in it (dynamic k chose 0), so its
    cache holds what it held before, and the next draft has to catch up."""

    def cached(before, draft, emitted):
        return before + min(len(emitted), len(draft)) - 1 if draft else before + len(emitted) - 1

    return flawed_inputs(prompt, cycles, cached=cached, empty=False)


# ---- 14.draft_vocabulary --------------------------------------------------------------------------------------------


def in_target_ids(probs, d2t, vocab_size):
    return flawed_ids(probs, d2t, vocab_size)


def flawed_ids(probs, d2t, vocab_size, *, of_token=lambda ids, d2t: ids + d2t, of_q=lambda ids, d2t: ids + d2t):
    """The greedy draft token and q in the target's vocabulary; how each of them is mapped can be exchanged."""
    ids = torch.arange(len(probs))
    q = torch.zeros(vocab_size, dtype=probs.dtype)
    for one, to in zip(probs, of_q(ids, d2t).clamp(max=vocab_size - 1), strict=True):
        q[to] = one
    return int(of_token(ids, d2t)[probs.argmax()]), q


def observe_ids(answer, probs, d2t, vocab_size):
    drafted, q = pair(answer(probs, d2t, vocab_size), "the draft token and q")
    if not isinstance(q, Tensor) or tuple(q.shape) != (vocab_size,):
        raise Complaint(f"q should be a tensor of shape ({vocab_size},), one probability for each token of the target.")
    return {"token": token(drafted, "the draft token"), "q": [round(float(x), 6) for x in q]}


def whole(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


VOCABULARY = exercise(
    "14.draft_vocabulary",
    title="A table of offsets",
    level="M",
    minutes=15,
    points=2,
    hints=(
        "Look at the numbers of d2t in a small case. Could they be token ids of the target? Draft token 0 and draft "
        "token 1 cannot stand for the same one.",
        "EAGLE-3 checkpoints store how far a token has moved, not where it is: draft token i is token i + d2t[i] of "
        "the target. Map the draft token and every entry of q.",
        "The target id of draft id i is i + d2t[i]. Compute these ids once for all i, put probs at these ids of q, "
        " and take the id of the most likely draft token from the same list.",
    ),
    code="minispec.drafters.Eagle",
    reference=in_target_ids,
    observe=observe_ids,
    cases=[
        dict(probs=law(0.25, 0.75), d2t=whole(0, 1), vocab_size=4),
        dict(probs=law(0.75, 0.25), d2t=whole(1, 1), vocab_size=4),
        dict(probs=law(0.2, 0.5, 0.3), d2t=whole(0, 1, 3), vocab_size=6),
        dict(probs=law(0.2, 0.3, 0.5), d2t=whole(2, 2, 4), vocab_size=8),
        dict(probs=law(0.6, 0.4), d2t=whole(0, 0), vocab_size=3),
    ],
)


@VOCABULARY.mutant
def ids_as_reported(probs, d2t, vocab_size):
    """Your program still takes the numbers of d2t for token ids. Several draft tokens land on the same one, so q loses
    mass, and nearly every draft token is rejected; the output stays right, only the speed is gone."""
    return flawed_ids(probs, d2t, vocab_size, of_token=lambda ids, d2t: d2t, of_q=lambda ids, d2t: d2t)


@VOCABULARY.mutant
def only_the_token(probs, d2t, vocab_size):
    """Your draft token is mapped right, your q is not. The verifier looks up q(d) at the token's id in the target's
    vocabulary, and finds the probability of another one."""
    return flawed_ids(probs, d2t, vocab_size, of_q=lambda ids, d2t: d2t)


@VOCABULARY.mutant
def only_q(probs, d2t, vocab_size):
    """Your q is mapped right, but the draft token is not: it is still an entry of the table."""
    return flawed_ids(probs, d2t, vocab_size, of_token=lambda ids, d2t: d2t)


@VOCABULARY.mutant
def not_mapped_at_all(probs, d2t, vocab_size):
    """You use the draft model's own ids, as if its vocabulary were the first part of the target's. It holds the most
    frequent tokens, which are spread over all of it: add d2t."""
    return flawed_ids(probs, d2t, vocab_size, of_token=lambda ids, d2t: ids, of_q=lambda ids, d2t: ids)


@VOCABULARY.mutant
def one_too_far(probs, d2t, vocab_size):
    """Your ids are one too high. Draft token i is target token i + d2t[i], counted from 0."""
    late = dict.fromkeys(("of_token", "of_q"), lambda ids, d2t: ids + d2t + 1)
    return flawed_ids(probs, d2t, vocab_size, **late)


# ---- 14.acceptance_length -------------------------------------------------------------------------------------------


def acceptance_length(cycles):
    return sum(kept for _, _, kept in cycles) / len(cycles)


def number(answer, cycles):
    found = plain(answer([tuple(cycle) for cycle in cycles]))
    if not is_number(found):
        raise Complaint(f"return a number; yours is {kind(found)}.")
    return found


LENGTH = exercise(
    "14.acceptance_length",
    title="A mean acceptance length below one",
    level="E",
    minutes=10,
    points=1,
    hints=(
        "What should the number be if every draft token is rejected? How many tokens per forward pass does the user "
        "get then?",
        "Every verification emits one token of the target's own, the correction or the bonus. But the last cycle of a "
        "request may have emitted fewer tokens than accepted + 1. Which of the three numbers knows that?",
        "The tokens that reached the output, divided by the cycles: sum(emitted for _, _, emitted in cycles) / "
        "len(cycles).",
    ),
    code="minispec.trace.Trace.tokens_per_cycle",
    reference=acceptance_length,
    observe=number,
    cases=[
        dict(cycles=[(2, 0, 1)]),
        dict(cycles=[(3, 3, 4), (3, 1, 2)]),
        dict(cycles=[(3, 2, 3), (0, 0, 1)]),
        dict(cycles=[(4, 3, 4), (4, 4, 2)]),
        dict(cycles=[(5, 2, 3), (5, 0, 1), (0, 0, 1), (5, 5, 3)]),
    ],
)


@LENGTH.mutant
def length_as_reported(cycles):
    """Your metric still forgets the token that the target adds in every cycle. A run that accepts nothing emits 1
    token per forward pass, and you report 0."""
    return sum(accepted for _, accepted, _ in cycles) / len(cycles)


@LENGTH.mutant
def always_one_more(cycles):
    """You add 1 in every cycle. In the last cycle of a request EOS may stand inside the accepted tokens: what comes
    after it, the bonus included, is never emitted. Count what reached the output."""
    return 1 + sum(accepted for _, accepted, _ in cycles) / len(cycles)


@LENGTH.mutant
def drafting_cycles_only(cycles):
    """You leave out cycles without a draft. They were forward passes too, with one token each, and a mean without them
    promises a speed that the user never sees."""
    drafting = [cycle for cycle in cycles if cycle[0]] or cycles
    return acceptance_length(drafting)


@LENGTH.mutant
def per_draft_token(cycles):
    """You divide by the number of draft tokens. That is no length: divide by the number of cycles."""
    return sum(kept for _, _, kept in cycles) / max(1, sum(drafted for drafted, _, _ in cycles))


# ---- 14.acceptance_rate ---------------------------------------------------------------------------------------------


def acceptance_rate(cycles):
    return sum(accepted for _, accepted in cycles) / sum(min(accepted + 1, drafted) for drafted, accepted in cycles)


RATE = exercise(
    "14.acceptance_rate",
    title="A draft model that gets worse with k",
    level="M",
    minutes=15,
    points=2,
    hints=(
        "After a rejection the later draft tokens of the cycle are thrown away without a look. Are they evidence "
        "against the draft model?",
        "α is the probability that a draft token passes *given that it is tested*. Count the tested ones: the "
        "accepted ones, and the one that was rejected, if one was.",
        "A cycle tests one token more than it accepts, but never more than were drafted. Divide the accepted tokens"
        " of all cycles by the tested tokens of all cycles.",
    ),
    code="minispec.trace.Trace.acceptance_rate",
    reference=acceptance_rate,
    observe=number,
    cases=[
        dict(cycles=[(1, 1), (1, 0)]),
        dict(cycles=[(4, 1)]),
        dict(cycles=[(4, 4), (4, 1)]),
        dict(cycles=[(2, 2), (0, 0), (3, 1)]),
        dict(cycles=[(8, 3), (8, 0), (8, 8), (8, 1)]),
    ],
)


@RATE.mutant
def rate_as_reported(cycles):
    """Your rate still counts draft tokens that were never tested. It falls with k for the same draft model, so it is
    not the α of the formulas."""
    return sum(accepted for _, accepted in cycles) / sum(drafted for drafted, _ in cycles)


@RATE.mutant
def a_rejection_in_every_cycle(cycles):
    """You count accepted + 1 tests in every cycle. If the whole draft was accepted nothing was rejected: only as many
    were tested as were drafted."""
    return sum(accepted for _, accepted in cycles) / sum(accepted + 1 for _, accepted in cycles)


@RATE.mutant
def mean_of_the_cycles(cycles):
    """You average the rates of the cycles. A cycle with one test then counts as much as one with eight, and cycles
    that ended early are overrated. Add up first, divide once."""
    rates = [accepted / min(accepted + 1, drafted) for drafted, accepted in cycles if drafted]
    return sum(rates) / len(rates)


@RATE.mutant
def with_the_bonus(cycles):
    """You count the target's own token on both sides. It passes no test: leave it out of both sums."""
    return sum(accepted + 1 for _, accepted in cycles) / sum(drafted + 1 for drafted, _ in cycles)
