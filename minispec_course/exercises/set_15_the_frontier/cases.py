"""Set 15, the frontier: block verification, a draft model of another vocabulary, one budget for a batch, constraints
along a draft and after a tag, recurrent states rewound and kept by slot, how many experts a verify pass reads, a draft
that was prepared during the verification, what random prompts inflate, and where confidence may cut a draft."""

from itertools import accumulate
from math import log
from operator import mul

import torch

from minispec.verify import accept_probability, pick, residual

from ..exercise import Complaint, distribution_of, exercise, probs, rows
from ..fresh import Draw, fresh
from ..returned import items, number, pair, several, tensor, token, tokens, whole_numbers
from ..set_06_rejection_sampling.cases import emitted_runs


# ---- 15.block -------------------------------------------------------------------------------------------------------
def verify_block(p, q, drafted, random, *, cap=True, weighted=True, coin=None, longest=True):
    """Block verification with parts to exchange."""
    k = len(drafted)
    q = torch.cat([q, torch.zeros_like(p[:1])])
    w = [torch.ones((), dtype=p.dtype)]
    for i, d in enumerate(drafted):
        grown = w[-1] * p[i, d] / q[i, d]
        w.append(grown.clamp(max=1) if cap else grown)
    rest = [(w[i] * p[i] - q[i]).clamp(min=0).sum() for i in range(k + 1)]
    h = [rest[i] / (rest[i] + 1 - w[i]) if rest[i] + 1 - w[i] > 0 else torch.ones(()) for i in range(k + 1)]
    h = h if coin is None else [coin(w[i], h[i]) for i in range(k + 1)]
    if longest:
        a = next((i for i in range(k, 0, -1) if random() < float(h[i])), 0)
    else:
        a = next((i for i in range(k) if not random() < float(h[i + 1])), k)
    return [*drafted[:a], pick(residual(w[a] * p[a] if weighted else p[a], q[a]), random())]


BLOCK = exercise(
    "15.block",
    seconds=30.0,
    reference=verify_block,
    observe=emitted_runs,
    cases=[
        dict(p=rows([0.3, 0.7]), q=torch.zeros(0, 2, dtype=torch.float64)),
        dict(p=rows([0.5, 0.5], [0.2, 0.8]), q=rows([0.75, 0.25])),
        dict(p=rows([0.25, 0.75], [0.75, 0.25], [0.5, 0.5]), q=rows([0.75, 0.25], [0.25, 0.75])),
        dict(p=rows([0.6, 0.4], [0.3, 0.7], [0.9, 0.1]), q=rows([0.25, 0.75], [0.5, 0.5])),
        dict(p=rows([0.5, 0.3, 0.2], [0.5, 0.4, 0.1], [0.2, 0.2, 0.6]), q=rows([0.2, 0.2, 0.6], [0.1, 0.05, 0.85])),
    ],
)


@BLOCK.wrong_solutions
class _:
    def token_by_token(p, q, drafted, random):
        """You accept token by token. That is lossless, but a prefix is kept less often than it could be: a surplus of
        the target at a later token cannot make up for a deficit at an earlier one. Use the joint weight of the
        prefix."""
        for i, d in enumerate(drafted):
            if not random() < accept_probability(p[i], q[i], d):
                return [*drafted[:i], pick(residual(p[i], q[i]), random())]
        return [*drafted, pick(p[-1], random())]

    def weight_as_coin(p, q, drafted, random):
        """You stop at a prefix with probability w. But the longer prefixes were tested before it, and accepting them
        keeps this prefix as well, so it is kept too often. Use h, which adds only what w still lacks."""
        return verify_block(p, q, drafted, random, coin=lambda w, h: w)

    def unweighted_residual(p, q, drafted, random):
        """You sample the last token from the residual of p and q. The prefix was kept with weight w only, so the part
        of the target that is left is [w·p − q]₊."""
        return verify_block(p, q, drafted, random, weighted=False)

    def weight_above_one(p, q, drafted, random):
        """Your weights can exceed 1, because you do not cut the product at 1 after every token. w is the probability
        that a prefix is kept: a surplus cannot be saved for later tokens."""
        return verify_block(p, q, drafted, random, cap=False)


def cycle(draw: Draw, k: int, n: int, **how) -> dict:
    return dict(p=draw.rows(k + 1, n, **how), q=draw.rows(k, n, positive=True))


fresh("15.block", "one draft token", lambda draw: cycle(draw, 1, draw.whole(2, 3)), count=4)
fresh(
    "15.block", "two draft tokens", lambda draw: cycle(draw, 2, 2 + (draw.size > 3), positive=True), weight=2, count=5
)
fresh("15.block", "three draft tokens", lambda draw: cycle(draw, 3, 2), count=4)


@fresh("15.block", "p and q are equal at some positions", weight=0.5, count=2)
def _(draw):
    """There w stays what it was, and R + 1 − w may be 0."""
    case = cycle(draw, 2, 2, positive=True)
    equal = draw.choice([[1], [0, 1]])
    case["p"][equal] = case["q"][equal]
    return case


# ---- 15.shared ------------------------------------------------------------------------------------------------------
def draft_shared(probs, own, theirs, random, *, renormalise=True, translate=True):
    shared = torch.tensor([piece in theirs for piece in own])
    kept = probs * shared
    sampled_from = kept / kept.sum()
    d = pick(sampled_from, random())
    q = torch.zeros(len(theirs), dtype=probs.dtype)
    for id, piece in enumerate(own):
        if shared[id]:
            q[theirs.index(piece)] = (sampled_from if renormalise else probs)[id]
    return (theirs.index(own[d]) if translate else d), q


def shared_drafts(answer, probs, own, theirs):
    """The exact distribution of (token, reported q)."""

    def draft(random):
        sampled, q = pair(answer(probs, own, theirs, random), "the token and q")
        return token(sampled), tuple(tensor(q, "q, a probability for every target token,", (len(theirs),)).tolist())

    return distribution_of(draft)


SHARED = exercise(
    "15.shared",
    reference=draft_shared,
    observe=shared_drafts,
    cases=[
        dict(probs=probs(0.5, 0.5), own=["a", "b"], theirs=["b", "a"]),
        dict(probs=probs(0.5, 0.25, 0.25), own=["a", "b", "c"], theirs=["c", "a"]),
        dict(probs=probs(0.2, 0.3, 0.5), own=["x", "b", "a"], theirs=["a", "b", "c"]),
        dict(probs=probs(0.6, 0.4), own=["un", "do"], theirs=["undo", "do", "un", "done"]),
    ],
)


@SHARED.wrong_solutions
class _:
    def not_renormalised(probs, own, theirs, random):
        """The q that you report does not sum to 1: it still has the probabilities from before the other tokens were
        left out. The token was sampled from the renormalised distribution, so that is q."""
        return draft_shared(probs, own, theirs, random, renormalise=False)

    def in_the_drafts_ids(probs, own, theirs, random):
        """You return the draft model's id of the token. The target would verify a different token, the one with this id
        in its own vocabulary."""
        return draft_shared(probs, own, theirs, random, translate=False)

    def told_one_hot(probs, own, theirs, random):
        """You report q as if nothing had been sampled, with everything on one token. The verifier would then subtract
        too much: report the whole distribution that the token came from."""
        sampled, q = draft_shared(probs, own, theirs, random)
        return sampled, torch.zeros_like(q).index_fill(0, torch.tensor(sampled), 1.0)

    def token_zero_is_nothing(probs, own, theirs, random):
        """You leave out the target's token 0, because 0 counts as false. Test whether a string is in the target's
        vocabulary, not whether its id is truthy."""
        without = [f"not {piece}" if theirs.index(piece) == 0 else piece for piece in theirs]
        return draft_shared(probs, own, without, random)


def vocabularies(draw: Draw, *, subset: bool = False) -> dict:
    """Two vocabularies with some pieces in common, of which the draft model can say one at least. Pieces that differ in
    a space or a capital letter only are different ones."""
    pieces = draw.sample(["a", "b", " a", "A", "un", "do", "the", " the", "The", "ing", "Ing", " b"], 4 + draw.size)
    own = draw.sample(pieces, draw.whole(2, min(5, len(pieces))))
    theirs = draw.sample(pieces, draw.whole(2, len(pieces)))
    if subset:
        theirs = draw.sample(pieces, len(pieces))
    if not set(own) & set(theirs):
        theirs[0] = own[0]
    return dict(probs=draw.probs(len(own), positive=True), own=own, theirs=theirs)


@fresh("15.shared", "some tokens are shared", weight=2, count=8)
def _(draw):
    return draw.until(lambda: vocabularies(draw), lambda case: not set(case["own"]) <= set(case["theirs"]))


fresh("15.shared", "all are shared, at other ids", lambda draw: vocabularies(draw, subset=True), count=6)


# ---- 15.budget ------------------------------------------------------------------------------------------------------
def survival(confidences):
    """The probability of each draft token that it and all before it in its draft are accepted."""
    return list(accumulate(confidences, mul))


def best_lengths(worth, budget):
    """Slot by slot to the sequence whose next one is worth most, the first of equals. Along a draft survival never
    rises, so these are the `budget` largest values of all, and a token is never taken without those before it."""
    lengths = [0] * len(worth)
    for _ in range(min(budget, sum(map(len, worth)))):
        able = [s for s, row in enumerate(worth) if lengths[s] < len(row)]
        lengths[max(able, key=lambda s: worth[s][lengths[s]])] += 1
    return lengths


def slots(confidences, budget):
    return best_lengths([survival(row) for row in confidences], budget)


BUDGET = exercise(
    "15.budget",
    reference=slots,
    observe=lambda answer, confidences, budget: whole_numbers(answer(confidences, budget), "the lengths"),
    cases=[
        dict(confidences=[[0.9, 0.8]], budget=1),
        dict(confidences=[[0.5, 0.5], [0.75]], budget=0),
        dict(confidences=[[0.5, 0.75], [0.9, 0.9]], budget=2),
        dict(confidences=[[0.5, 1.0], [0.75, 0.25]], budget=2),
        dict(confidences=[[0.25, 0.95], [0.8, 0.6, 0.5], []], budget=3),
        dict(confidences=[[0.9, 0.2, 0.9], [0.7, 0.9, 0.9], [0.3, 0.9]], budget=5),
        dict(confidences=[[0.5], [0.25]], budget=9),
    ],
)


@BUDGET.wrong_solutions
class _:
    def equal_shares(confidences, budget):
        """You give every sequence the same share. A sequence whose drafts fail then takes tokens from one whose drafts
        pass: compare the survival probabilities."""
        return [min(len(row), budget // max(1, len(confidences))) for row in confidences]

    def confidence_alone(confidences, budget):
        """You compare the confidences of the next slots and ignore what comes before them. A sure token after an unsure
        one survives only if the unsure one does: multiply."""
        return best_lengths(confidences, budget)

    def confidences_sorted(confidences, budget):
        """You sort all tokens by their own confidence. A sure token after an unsure one survives only if the unsure one
        does: multiply along each draft first, then sort."""
        ranked = sorted((-x, s) for s, row in enumerate(confidences) for x in row)
        return [sum(s == of for _, of in ranked[:budget]) for s in range(len(confidences))]

    def last_of_equals(confidences, budget):
        """Between equally good slots you do not choose the first sequence. It should win with every slot that is as
        good as the others' best, however many it has."""
        return best_lengths([survival(row) for row in confidences][::-1], budget)[::-1]

    def without_the_token_itself(confidences, budget):
        """You rate a slot by the tokens before it and leave out its own confidence. The token is accepted only if it
        passes itself: multiply up to and including it."""
        return best_lengths([[1.0, *survival(row)][: len(row)] for row in confidences], budget)


def batch(draw: Draw, budget=None) -> dict:
    rows = [[draw.whole(1, 19) / 20 for _ in range(draw.whole(0, 1 + draw.size))] for _ in range(draw.whole(1, 4))]
    most = sum(map(len, rows))
    return dict(confidences=rows, budget=draw.whole(0, most) if budget is None else budget(most))


def clear(case: dict) -> bool:
    """No two slots are almost equally good where the budget ends: there rounding would decide."""
    values = []
    for row in case["confidences"]:
        product = 1.0
        for confidence in row:
            product *= confidence
            values.append(product)
    values.sort(reverse=True)
    end = case["budget"]
    return not 0 < end < len(values) or values[end - 1] > values[end] * (1 + 5e-7)


fresh("15.budget", "fewer slots than draft tokens", lambda draw: draw.until(lambda: batch(draw), clear), weight=2)


@fresh("15.budget", "a sure token after an unsure one")
def _(draw):
    def fits(case):
        rows = [row for row in case["confidences"] if len(row) > 1]
        return clear(case) and any(row[0] < row[1] for row in rows) and sum(slots(**case)) > 1

    return draw.until(lambda: batch(draw), fits)


@fresh("15.budget", "slots that are equally good")
def _(draw):
    """Their products are exact. Whoever adds logarithms has them equal, too, or the case is not taken."""
    values = [1.0, 0.75, 0.5, 0.375, 0.25]

    def make():
        count, longest = draw.whole(2, 4), 1 + draw.size
        rows = [[draw.choice(values) for _ in range(draw.whole(0, longest))] for _ in range(count)]
        return dict(confidences=rows, budget=draw.whole(1, max(1, sum(map(len, rows)))))

    def fits(case):
        by_logs = [list(accumulate(map(log, row))) for row in case["confidences"]]
        single = [torch.tensor(row).log().cumsum(0).tolist() for row in case["confidences"]]
        return best_lengths(by_logs, case["budget"]) == slots(**case) == best_lengths(single, case["budget"])

    return draw.until(make, fits)


@fresh("15.budget", "slots that are nearly equally good", weight=0.5, count=6)
def _(draw):
    def make():
        base, tail = draw.whole(1, 9) / 10, [draw.whole(1, 9) / 10 for _ in range(draw.whole(0, 2))]
        rows = [[base + draw.whole(-99, 99) / 1e6, *tail] for _ in range(draw.whole(2, 3))]
        return dict(confidences=rows, budget=draw.whole(1, sum(map(len, rows))))

    return draw.until(make, clear)


@fresh("15.budget", "no slots, or more than there are draft tokens", weight=0.5, count=6)
def _(draw):
    return batch(draw, lambda most: draw.choice([0, most + draw.whole(0, 5)]))


@fresh("15.budget", "tokens that hardly ever survive", weight=0.5, count=4)
def _(draw):
    """With enough slots they are verified too, even where the product is too small for a float."""
    rows = [[draw.choice([1e-200, 1e-180])] * draw.whole(1, 3) for _ in range(draw.whole(1, 2))]
    return dict(confidences=[[0.5], *rows, [1e-200] * 2], budget=3 + sum(map(len, rows)) + draw.whole(0, 2))


# ---- 15.constraint --------------------------------------------------------------------------------------------------
def constraint(step, state, drafted, accepted, token, *, leaves=True, end=None, mask=None, order=sorted):
    """What an automaton allows along a draft, and its state after the cycle, with parts to exchange."""
    states = [state]
    for d in drafted:
        here = states[-1]
        there = None if here is None else step.get((here, d))
        states.append(here if there is None and not leaves else there)
    allowed = [order(x for s, x in step if s == here) if here is not None else [] for here in states]
    kept = states[accepted] if end is None else end(states)
    return allowed if mask is None else mask(allowed), step.get((kept, token)) if end is None else kept


def observe_constraint(answer, step, state, drafted, accepted, token):
    allowed, new = pair(answer(step, state, drafted, accepted, token), "the allowed tokens, and the new state")
    allowed = items(allowed, "the allowed tokens", f" of {len(drafted) + 1} lists, one for each position")
    return {"allowed": [list(tokens(mask, "the allowed tokens of a position")) for mask in allowed], "state": new}


CLOCK = {("h", 1): "m", ("h", 2): "m", ("colon", 3): "s"}
CLOCK |= {(state, digit): after for state, after in (("m", "colon"), ("s", "done")) for digit in (0, 1, 2)}
LOOP = {("a", 0): "a", ("a", 1): "b", ("b", 1): "b", ("b", 2): "a"}


CONSTRAINT = exercise(
    "15.constraint",
    reference=constraint,
    observe=observe_constraint,
    cases=[
        dict(step=LOOP, state="a", drafted=[], accepted=0, token=1),
        dict(step=LOOP, state="a", drafted=[0, 1], accepted=2, token=2),
        dict(step=LOOP, state="a", drafted=[1, 2], accepted=0, token=0),
        dict(step=LOOP, state="b", drafted=[2, 1, 1], accepted=1, token=0),
        dict(step=CLOCK, state="h", drafted=[1, 3, 0], accepted=1, token=2),
        dict(step=CLOCK, state="m", drafted=[2, 3, 1], accepted=3, token=9),
        dict(step=CLOCK, state="h", drafted=[0, 1], accepted=0, token=2),
        dict(step=LOOP, state="b", drafted=[0, 1], accepted=0, token=2),
    ],
)


@CONSTRAINT.wrong_solutions
class _:
    def not_rolled_back(step, state, drafted, accepted, token):
        """After the cycle you continue from the state at the end of the whole draft. The rejected tokens were never
        emitted: continue from the state after the accepted ones."""
        return constraint(step, state, drafted, accepted, token, end=lambda states: step.get((states[-1], token)))

    def forgets_the_emitted_token(step, state, drafted, accepted, token):
        """Your new state is that of the accepted tokens. The cycle emits one more token, the correction or the bonus:
        take its step as well."""
        return constraint(step, state, drafted, accepted, token, end=lambda states: states[accepted])

    def one_mask_for_all(step, state, drafted, accepted, token):
        """You give every position the mask of the first one. Position i has the state after i draft tokens."""
        return constraint(step, state, drafted, accepted, token, mask=lambda allowed: [allowed[0]] * len(allowed))

    def stays_where_it_was(step, state, drafted, accepted, token):
        """When a draft token has no step, you stay in the state before it and continue. No allowed output begins with
        that prefix, so nothing is allowed after it."""
        return constraint(step, state, drafted, accepted, token, leaves=False)

    def one_draft_token_too_few(step, state, drafted, accepted, token):
        """You continue from the state before the last accepted token. That token was emitted. The state before the
        draft is number 0, so the one after the accepted tokens is number `accepted`, not `accepted` − 1."""
        last = max(0, accepted - 1)
        return constraint(step, state, drafted, accepted, token, end=lambda states: step.get((states[last], token)))

    def not_sorted(step, state, drafted, accepted, token):
        """The allowed tokens of a position are the right ones, in the order in which `step` has them. Sort them."""
        return constraint(step, state, drafted, accepted, token, order=list)


def automaton(draw: Draw) -> tuple[dict, list[str], list[int]]:
    """A random automaton over some tokens, its pairs in no order. Every state goes on, and none with any token."""
    states = draw.sample(["", *"abcdefg"], draw.whole(2, 2 + draw.size))  # "" is a name as good as others
    vocabulary = draw.sample(range(draw.choice([4, 30])), 4)
    pairs = [(state, token) for state in states for token in draw.sample(vocabulary, draw.whole(1, 3))]
    draw.shuffle(pairs)
    return {pair: draw.choice(states) for pair in pairs}, states, vocabulary


def with_an_end(draw: Draw) -> tuple[dict, list[str], list[int]]:
    """One in which a state has no steps: whatever is allowed ends there."""
    step, states, vocabulary = automaton(draw)
    for edge in draw.sample(sorted(step), draw.whole(1, len(step))):
        step[edge] = "end"
    return step, states, vocabulary


def walk(draw: Draw, step: dict, vocabulary: list[int], state: str, n: int, valid: bool = True) -> list[int]:
    """n draft tokens from a state; valid ones as far as it goes on, or with one that has no step."""
    drafted, wrong = [], None if valid else draw.randrange(n)
    for i in range(n):
        known = [token for s, token in step if s == state]
        others = [token for token in vocabulary if token not in known]
        token = draw.choice(others if i == wrong else known or vocabulary)
        drafted.append(token)
        state = step.get((state, token), state)
    return drafted


def constrained(draw: Draw, n: int, accepted: int | None = None, *, valid=True, known=True, made=automaton) -> dict:
    """A draft of n tokens. accepted: as many as fit, at most. known: the emitted token has a step."""
    step, states, vocabulary = made(draw)
    state = draw.choice(states)
    drafted = walk(draw, step, vocabulary, state, n, valid)
    path = [state]
    for x in drafted:
        path.append(step.get((path[-1], x)))
    fits = next((i for i, at in enumerate(path) if at is None), len(path)) - 1
    accepted = draw.whole(0, fits) if accepted is None else min(accepted, fits)
    steps = [token for s, token in step if s == path[accepted]]
    token = draw.choice((steps if known else []) or [t for t in vocabulary if t not in steps])
    return dict(step=step, state=state, drafted=drafted, accepted=accepted, token=token)


fresh("15.constraint", "no draft", lambda draw: constrained(draw, 0), weight=0.5)


@fresh("15.constraint", "all accepted")
def _(draw):
    n = draw.whole(1, 1 + draw.size)
    return constrained(draw, n, accepted=n)


fresh("15.constraint", "some rejected", lambda draw: constrained(draw, draw.whole(1, 2 + draw.size)), weight=2)


@fresh("15.constraint", "a draft that leaves the automaton")
def _(draw):
    return constrained(draw, draw.whole(1, 2 + draw.size), valid=False)


@fresh("15.constraint", "an emitted token that has no step", weight=0.5, count=6)
def _(draw):
    return constrained(draw, draw.whole(0, 1 + draw.size), known=False)


@fresh("15.constraint", "a state with no steps", weight=0.5, count=6)
def _(draw):
    return constrained(draw, draw.whole(1, 2 + draw.size), made=with_an_end)


# ---- 15.boundary ----------------------------------------------------------------------------------------------------
def after_the_tag(texts, tag):
    _, there, rest = "".join(texts).partition(tag)
    return rest if there else None


def after_its_token(texts, tag, skip=0):
    ends = [n for n in range(len(texts) + 1) if tag in "".join(texts[:n])]
    return "".join(texts[ends[0] + skip :]) if ends and len(texts) >= ends[0] + skip else None


def boundary(pieces, tag, answers, prompt, output, drafted, *, answer=after_the_tag, early=False):
    """What is allowed along a draft; answer(texts, tag) is the answer so far, None as long as there is none."""
    allowed, text = [], [pieces[x] for x in (*output, *drafted)]
    for i in range(len(output), len(text) + 1):
        now, then = answer(text[:i], tag), [answer([*text[:i], piece], tag) for piece in pieces]
        ends = early if now is None else now in answers
        fits = [x for x, a in enumerate(then) if x and (a is None or any(whole.startswith(a) for whole in answers))]
        allowed.append([0] * ends + fits)
    return allowed


MARKS = dict(pieces=["", "a", "b", "<", ">", ">b", "b>a"], tag="<>")


BOUNDARY = exercise(
    "15.boundary",
    reference=boundary,
    observe=lambda answer, **case: [list(tokens(mask)) for mask in items(answer(*case.values()), "the result")],
    cases=[
        dict(**MARKS, answers=["a"], prompt=[1], output=[], drafted=[]),
        dict(**MARKS, answers=["a"], prompt=[1], output=[3, 4], drafted=[1]),
        dict(**MARKS, answers=["ba", "a"], prompt=[3, 4], output=[], drafted=[1, 3]),
        dict(**MARKS, answers=["aa", "b"], prompt=[2], output=[3], drafted=[4, 1, 1]),
        dict(**MARKS, answers=["ba", "a"], prompt=[2], output=[1], drafted=[3, 5, 1]),
        dict(**MARKS, answers=["a<>b", "ba"], prompt=[2], output=[3, 4, 1], drafted=[3, 4, 2]),
    ],
)


@BOUNDARY.wrong_solutions
class _:
    def asked_once_per_pass(pieces, tag, answers, prompt, output, drafted):
        """You look for the tag in the output alone. Where the draft holds it, the positions after it belong to the
        answer: look in the output and the draft tokens before each position."""
        found = tag in "".join(pieces[x] for x in output)
        answer = after_the_tag if found else lambda texts, tag: None
        return boundary(pieces, tag, answers, prompt, output, drafted, answer=answer)

    def a_tag_in_the_prompt(pieces, tag, answers, prompt, output, drafted):
        """You look for the tag in the prompt as well. Earlier turns contain closing tags: only the output counts."""
        return boundary(pieces, tag, answers, [], [*prompt, *output], drafted)

    def the_rest_of_a_token_is_free(*case):
        """Your answer begins with the first token after the tag. But a token can hold the end of the tag and more, and
        that is part of the answer: compare texts, not tokens."""
        return boundary(*case, answer=after_its_token)

    def one_token_late(*case):
        """You leave out the first token after the tag. It may then be anything, and the answer begins once more after
        it: engines have emitted JSON that began with {{ for this reason."""
        return boundary(*case, answer=lambda texts, tag: after_its_token(texts, tag, skip=1))

    def ends_while_it_reasons(*case):
        """You allow the end before the tag. Such an output has no answer, and looks as if it were complete."""
        return boundary(*case, early=True)

    def the_last_tag(*case):
        """You look for the last tag. An answer may hold the same characters: the first tag ends the reasoning."""
        return boundary(*case, answer=lambda texts, tag: [None, *"".join(texts).split(tag)[1:]][-1])


def reasoned(draw: Draw, where: int) -> dict:
    """Tokens that may come about, cut into output and draft; the tag is in the output (2), in the draft (1), or not."""

    def make():
        others = draw.sample(["a", "b", ">", ">a", ">b", "b>a", "<a", "ab", "<>", "<>b"], draw.whole(3, 4 + draw.size))
        answers = draw.sample(["a", "b", "ab", "ba", "aa", "b<", "a<>b"], draw.whole(1, 3))
        case = dict(pieces=["", "<", *others], tag=draw.choice(["<>", ">", "b>"]), answers=answers, prompt=[1])
        made, n = [], draw.whole(1, 3 + draw.size)
        while len(made) < n:
            made.append(draw.choice([x for x in boundary(**case, output=made, drafted=[])[0] if x] or [1]))
        n = draw.whole(0, n - 1)
        return case | dict(output=made[:n], drafted=made[n:])

    def fits(case):
        whole = [case["pieces"][x] for x in case["output"] + case["drafted"][:-1]]
        return sum(case["tag"] in "".join(text) for text in (whole, whole[: len(case["output"])])) == where

    return draw.until(make, fits)


fresh("15.boundary", "reasoning goes on", lambda draw: reasoned(draw, 0))
fresh("15.boundary", "the answer has begun", lambda draw: reasoned(draw, 2))
fresh("15.boundary", "the tag is in the draft", lambda draw: reasoned(draw, 1), weight=2)


# ---- 15.checkpoint --------------------------------------------------------------------------------------------------
def rewind_state(checkpoints, step, tokens, length, *, start=None, end=0, skip=0, keep=lambda at, length: at <= length):
    """The state after the first `length` tokens, and the checkpoints that are still true, with parts to exchange."""
    start = max(at for at in checkpoints if at <= length) if start is None else start(checkpoints)
    state = checkpoints[start]
    for again in tokens[start + skip : length + end]:
        state = step(state, again)
    return state, {at: kept for at, kept in checkpoints.items() if keep(at, length)}


def observe_checkpoint(answer, checkpoints, tokens, length):
    steps = []

    def step(state, token):
        steps.append(token)
        return 10 * state + token

    state, kept = pair(answer(dict(checkpoints), step, list(tokens), length), "the state, and the checkpoints")
    if not isinstance(kept, dict):
        raise Complaint("the checkpoints should be a dict, as they came.")
    return {"state": number(state, "the state"), "checkpoints": sorted(kept), "processed again": steps}


CHECKPOINT = exercise(
    "15.checkpoint",
    legend={"step": "step(state, token) = 10 · state + token, so that a state shows its tokens as digits"},
    reference=rewind_state,
    observe=observe_checkpoint,
    cases=[
        dict(checkpoints={0: 0}, tokens=[3], length=1),
        dict(checkpoints={0: 0, 1: 3}, tokens=[3, 1], length=1),
        dict(checkpoints={0: 0, 1: 3, 2: 31}, tokens=[3, 1, 4], length=1),
        dict(checkpoints={0: 0, 2: 31}, tokens=[3, 1, 4, 1], length=1),
        dict(checkpoints={1: 3, 3: 314}, tokens=[3, 1, 4, 1, 5], length=4),
        dict(checkpoints={1: 3, 4: 3141}, tokens=[3, 1, 4, 1, 5], length=3),
    ],
)


@CHECKPOINT.wrong_solutions
class _:
    def the_newest(checkpoints, step, tokens, length):
        """You start from the newest checkpoint of all. It may be later than `length`, and then it has seen rejected
        tokens: take the newest one at or before `length`."""
        return rewind_state(checkpoints, step, tokens, length, start=max)

    def not_processed_again(checkpoints, step, tokens, length):
        """You return the checkpoint as it is. The accepted tokens after it are missing: let `step` process them
        again."""
        return rewind_state(checkpoints, step, tokens, length, skip=len(tokens))

    def one_token_too_many(checkpoints, step, tokens, length):
        """You process one token too many, the first rejected one. The first `length` tokens are tokens[:length]."""
        return rewind_state(checkpoints, step, tokens, length, end=1)

    def all_are_kept(checkpoints, step, tokens, length):
        """The state is right, but you keep checkpoints after `length`. They have seen rejected tokens, and a later
        rewind would start from them."""
        return rewind_state(checkpoints, step, tokens, length, keep=lambda at, length: True)

    def from_the_first(checkpoints, step, tokens, length):
        """The state is right, but you reprocess more tokens than you need: start from the newest checkpoint at or
        before `length`, not from the first."""
        return rewind_state(checkpoints, step, tokens, length, start=min)


def stored(draw: Draw, fits) -> dict:
    """A run of tokens with states kept at some positions, of which one is not after the length."""

    def make():
        tokens = [draw.whole(1, 9) for _ in range(draw.whole(1, 3 + draw.size))]
        places = sorted(draw.sample(range(len(tokens) + 1), draw.whole(1, min(4, len(tokens) + 1))))
        states = {at: int("0" + "".join(map(str, tokens[:at]))) for at in places}
        return dict(checkpoints=states, tokens=tokens, length=draw.whole(places[0], len(tokens)))

    return draw.until(make, fits)


@fresh("15.checkpoint", "tokens to process again", weight=2)
def _(draw):
    return stored(draw, lambda case: case["length"] not in case["checkpoints"])


@fresh("15.checkpoint", "a checkpoint exactly there")
def _(draw):
    return stored(draw, lambda case: case["length"] in case["checkpoints"])


@fresh("15.checkpoint", "checkpoints of rejected tokens")
def _(draw):
    return stored(draw, lambda case: max(case["checkpoints"]) > case["length"])


# ---- 15.states ------------------------------------------------------------------------------------------------------
def states_of_pass(kept, turns, step, blank, *, begin=None, mine=lambda row, slot: slot, first=1, stays=False):
    """The states that the slots hold after a pass, with parts to exchange."""
    after = dict(kept)
    for row, (slot, length, new) in enumerate(turns):
        before = kept.get(mine(row, slot), {})
        state = begin(before, length, blank) if begin else before[length] if length else blank
        after[slot] = dict(before) if stays else {}
        for i, x in enumerate(new):
            state = step(state, x)
            after[slot][length + i + first] = state
    return after


def observe_states(answer, kept, turns):
    found = answer({slot: dict(states) for slot, states in kept.items()}, turns, lambda s, x: 10 * s + x, 0)
    if not isinstance(found, dict) or not all(isinstance(states, dict) for states in found.values()):
        raise Complaint("return a dict with a dict of states for every slot, as `kept` is one.")
    return {
        slot: sorted((n, number(s, "a state")) for n, s in states.items()) for slot, states in sorted(found.items())
    }


STATES = exercise(
    "15.states",
    legend={"step": "step(state, token) = 10 · state + token, so that a state shows its tokens as digits; blank is 0"},
    reference=states_of_pass,
    observe=observe_states,
    cases=[
        dict(kept={}, turns=[(0, 0, [3])]),
        dict(kept={0: {1: 3}}, turns=[(0, 1, [1, 4])]),
        dict(kept={0: {2: 31, 3: 314, 4: 3141}}, turns=[(0, 3, [2, 7])]),
        dict(kept={1: {2: 27, 3: 271}}, turns=[(1, 0, [5, 9])]),
        dict(kept={0: {1: 8}, 2: {1: 6, 2: 62}, 4: {1: 7}}, turns=[(2, 1, [4]), (0, 1, [5, 5])]),
    ],
)


@STATES.wrong_solutions
class _:
    def the_newest_state(kept, turns, step, blank):
        """You go on from the newest state of the slot. It has seen rejected tokens: take the one at `length`."""
        return states_of_pass(kept, turns, step, blank, begin=lambda b, n, blank: b[max(b)] if n else blank)

    def of_the_last_request(kept, turns, step, blank):
        """A request that begins (length 0) goes on from what another one has left in its slot: begin with `blank`."""
        return states_of_pass(kept, turns, step, blank, begin=lambda b, n, blank: b.get(n, b[max(b)] if b else blank))

    def by_row(kept, turns, step, blank):
        """You look up the states by the row of the batch. Rows change from pass to pass: a request keeps its slot."""
        return states_of_pass(kept, turns, step, blank, mine=lambda row, slot: row, begin=lambda b, n, k: b.get(n, k))

    def one_too_early(kept, turns, step, blank):
        """You file a state one position too early: the state after the first new token is that at length + 1."""
        return states_of_pass(kept, turns, step, blank, first=0)

    def rejected_ones_stay(kept, turns, step, blank):
        """Old states of the slot stay, those after rejected tokens among them: keep those of this pass alone."""
        return states_of_pass(kept, turns, step, blank, stays=True)


@fresh("15.states", "requests that go on, and new ones", weight=2)
def _(draw):
    kept, turns = {}, []
    for slot in draw.sample(range(9), draw.whole(1, 2 + draw.size)):
        tokens = [draw.whole(1, 9) for _ in range(draw.whole(2, 5))]
        kept[slot] = {n: int("".join(map(str, tokens[:n]))) for n in range(draw.whole(1, len(tokens)), len(tokens) + 1)}
        length = draw.choice([0, *kept[slot]])
        turns.append((slot, length, [draw.whole(1, 9) for _ in range(draw.whole(1, 3))]))
    return dict(kept=kept, turns=draw.sample(turns, draw.whole(1, len(turns))))


# ---- 15.experts -----------------------------------------------------------------------------------------------------
def chosen_by(scores, per_token, largest=True) -> set[int]:
    """The experts of one token: those with the largest router logits."""
    return set(sorted(range(len(scores)), key=lambda e: scores[e], reverse=largest)[:per_token])


def experts(logits, per_token, always, expert, *, expected=None, count=None, price=None):
    """Experts touched by a pass, expected and counted, and its cost v, with parts to exchange."""
    E, M = len(logits[0]), len(logits)
    choices = [chosen_by(scores, per_token) for scores in logits]
    touched = len(set().union(*choices)) if count is None else count(choices)
    mean = E * (1 - (1 - per_token / E) ** M) if expected is None else expected(E, M)
    if price is not None:
        return mean, touched, price(mean, touched)
    return mean, touched, (always + touched * expert) / (always + per_token * expert)


def observe_experts(answer, logits, per_token, always, expert):
    names = "expected", "counted", "v"
    found = several(answer(logits, per_token, always, expert), 3, "the numbers expected, counted and v")
    return {name: float(number(x, name)) for name, x in zip(names, found, strict=True)}


APART = [[0.1, 0.9, 0.2, 0.4], [0.8, 0.3, 0.7, 0.5], [0.6, 0.2, 0.1, 0.9]]


ALIKE = [[2.0, 0.5, -1.0, 1.0], [1.5, 0.0, -0.5, 1.0], [3.0, -2.0, 0.5, 1.0]]


EXPERTS = exercise(
    "15.experts",
    reference=experts,
    observe=observe_experts,
    cases=[
        dict(logits=[[1.0, 2.0]], per_token=1, always=1.0, expert=1.0),
        dict(logits=[[1.0, 2.0], [2.0, 1.0]], per_token=1, always=2.0, expert=1.0),
        dict(logits=[[1.0, 2.0, 0.0], [0.0, 3.0, 1.0]], per_token=1, always=1.0, expert=2.0),
        dict(logits=APART, per_token=2, always=4.0, expert=1.0),
        dict(logits=ALIKE, per_token=2, always=1.0, expert=1.0),
        dict(
            logits=[[3.0, 2.0, 1.0, 0.0, -1.0, -2.0], [-2.0, 2.0, 1.0, 0.0, -1.0, 3.0]],
            per_token=3,
            always=2.0,
            expert=0.5,
        ),
        dict(logits=[[0.5, 1.5, -0.5]] * 4, per_token=3, always=1.0, expert=1.0),
    ],
)


@EXPERTS.wrong_solutions
class _:
    def every_choice_counts(logits, per_token, always, expert):
        """You add up the choices of all tokens, so an expert that two tokens chose counts twice. The pass reads its
        weights once and uses them for both: count the different experts, the size of the union."""
        return experts(logits, per_token, always, expert, count=lambda choices: sum(map(len, choices)))

    def no_overlap_expected(logits, per_token, always, expert):
        """Your expectation is k experts for each of the M tokens, as if no two tokens ever chose the same one. All
        tokens skip a given expert with probability (1 − k/E)^M."""
        return experts(logits, per_token, always, expert, expected=lambda E, M: min(E, M * per_token))

    def with_replacement(logits, per_token, always, expert):
        """Your expectation lets a token choose the same expert twice: (1 − 1/E)^(k·M). The k choices of one token
        differ, so it skips a given expert with probability 1 − k/E."""
        return experts(
            logits, per_token, always, expert, expected=lambda E, M: E * (1 - (1 - 1 / E) ** (per_token * M))
        )

    def v_of_the_expectation(logits, per_token, always, expert):
        """Your v uses the expected number of experts. This pass reads the experts that its tokens really chose: use the
        number that you counted."""
        one = always + per_token * expert
        return experts(logits, per_token, always, expert, price=lambda mean, touched: (always + mean * expert) / one)

    def forgets_what_all_read(logits, per_token, always, expert):
        """Your v is just the ratio of the numbers of experts. Both passes also read `always`: attention, LM head and
        whatever else every token needs."""
        return experts(logits, per_token, always, expert, price=lambda mean, touched: touched / per_token)


def routing(draw: Draw, experts: int, per_token: int, tokens: int, alike: bool = False) -> dict:
    """Router logits without ties; `alike`: all tokens have the same favourites, in various orders."""
    favourites = draw.sample(range(experts), per_token)
    logits = []
    for _ in range(tokens):
        scores = [x / 4 for x in draw.sample(range(-2 * experts, 2 * experts), experts)]
        if alike:
            scores = [z + experts * (e in favourites) for e, z in enumerate(scores)]
        logits.append(scores)
    return dict(logits=logits, per_token=per_token, always=draw.whole(1, 8) / 2, expert=draw.whole(1, 8) / 4)


@fresh("15.experts", "one token", weight=0.5)
def _(draw):
    experts = draw.whole(2, 2 + draw.size)
    return routing(draw, experts, draw.whole(1, experts), 1)


@fresh("15.experts", "several tokens", weight=2)
def _(draw):
    experts = draw.whole(3, 3 + 2 * draw.size)
    return routing(draw, experts, draw.whole(1, max(1, experts // 2)), draw.whole(2, 2 + draw.size))


@fresh("15.experts", "tokens that agree")
def _(draw):
    experts = draw.whole(3, 3 + draw.size)
    return routing(draw, experts, draw.whole(1, experts - 1), draw.whole(2, 2 + draw.size), alike=True)


@fresh("15.experts", "more tokens than experts", weight=0.5)
def _(draw):
    experts = draw.whole(2, 2 + draw.size)
    return routing(draw, experts, draw.whole(1, experts), experts + draw.whole(1, 3))


@fresh("15.experts", "logits far apart", weight=0.5)
def _(draw):
    """Softmax in float32 would make most of them zero, and then equal."""
    experts = draw.whole(4, 4 + draw.size)
    case = routing(draw, experts, draw.whole(2, experts - 1), draw.whole(2, 2 + draw.size))
    return case | dict(logits=[[400 * z for z in scores] for scores in case["logits"]])


# ---- 15.ahead -------------------------------------------------------------------------------------------------------
def next_draft(
    text,
    drafted,
    accepted,
    token,
    prepared,
    draft,
    *,
    fits=lambda one, outcome: one[:2] == outcome,
    choose=None,
    q=None,
):
    """The next draft and its q, with parts to exchange."""
    found = [one for one in prepared if fits(one, (accepted, token))]
    if not found:
        return draft([*text, *drafted[:accepted], token])
    one = choose(found) if choose else found[0]
    return one[2], q(prepared) if q else one[3]


def observe_next(answer, text, drafted, accepted, token, prepared):
    asked = []

    def draft(context):
        asked.append(list(context))
        return [sum(context) % 4, len(context) % 4], rows([0.25] * 4, [0.25] * 4)

    made = [(*one[:3], rows(*one[3])) for one in prepared]
    chosen, q = pair(answer(list(text), list(drafted), accepted, token, made, draft), "the tokens, and their q")
    return {"tokens": list(tokens(chosen)), "q": tensor(q, "q").tolist(), "drafted after": asked}


ONE, OTHER = [[0.5, 0.25, 0.25, 0.0]], [[0.125, 0.125, 0.25, 0.5]]


AHEAD = exercise(
    "15.ahead",
    legend={"prepared": "each is a, t, its tokens and their q, one list for each token"},
    reference=next_draft,
    observe=observe_next,
    cases=[
        dict(text=[1], drafted=[2], accepted=1, token=3, prepared=[(1, 3, [0], ONE)]),
        dict(text=[1], drafted=[2], accepted=0, token=3, prepared=[]),
        dict(text=[1, 2], drafted=[0, 3], accepted=1, token=2, prepared=[(0, 2, [0], ONE), (1, 2, [3], OTHER)]),
        dict(text=[1, 2], drafted=[0, 3], accepted=1, token=1, prepared=[(2, 1, [0], ONE), (1, 2, [3], OTHER)]),
        dict(text=[3], drafted=[1, 2], accepted=2, token=0, prepared=[(2, 0, [1], ONE), (2, 0, [0], ONE)]),
        dict(text=[3], drafted=[1, 2], accepted=2, token=0, prepared=[(2, 3, [0], OTHER), (2, 0, [2], ONE)]),
    ],
)


@AHEAD.wrong_solutions
class _:
    def for_another_token(*case):
        """You look at how many tokens were accepted, but not at the token after them. The prepared draft then follows
        another text: its memory is wrong, and it is hardly ever accepted."""
        return next_draft(*case, fits=lambda one, outcome: one[0] == outcome[0])

    def for_another_length(*case):
        """You look at the emitted token alone. The same token after more or fewer accepted ones is another text."""
        return next_draft(*case, fits=lambda one, outcome: one[1] == outcome[1])

    def q_of_another_outcome(*case):
        """The tokens are right, but q is that of the first outcome that was prepared. q has to be what these tokens
        were sampled from: with another one, the output no longer follows the target."""
        return next_draft(*case, q=lambda prepared: prepared[0][3])

    def the_likelier_one(*case):
        """Two drafts were prepared for this outcome, and you take the likelier one. A draft that is chosen for its
        tokens was not sampled from q any more: fix beforehand which one counts, the first."""
        return next_draft(*case, choose=lambda found: max(found, key=lambda one: float(one[3][0][one[2][0]])))

    def drafts_again(text, drafted, accepted, token, prepared, draft):
        """You draft although a draft is there. The output is exact, and the time that was to be saved is spent."""
        return next_draft(text, drafted, accepted, token, [], draft)

    def after_the_rejected(text, drafted, accepted, *case):
        """On a miss you draft after the whole old draft. The rejected tokens are not part of the text."""
        return next_draft([*text, *drafted], [], accepted, *case)


def outcomes(draw: Draw, hit: bool, twice: bool = False) -> dict:
    """A verification, and what was prepared for its likeliest outcomes."""
    drafted, accepted = [draw.randrange(4) for _ in range(draw.whole(1, 1 + draw.size))], 0
    accepted, token = draw.whole(0, len(drafted)), draw.randrange(4)
    others = [(a, t) for a in range(len(drafted) + 1) for t in range(4) if (a, t) != (accepted, token)]
    chosen = draw.sample(others, draw.whole(1, 3)) + [(accepted, token)] * (hit + twice)
    draw.shuffle(chosen)
    made = [(*one, [draw.randrange(4)], draw.choice([ONE, OTHER])) for one in chosen]
    return dict(text=[draw.randrange(4)], drafted=drafted, accepted=accepted, token=token, prepared=made)


fresh("15.ahead", "prepared for", lambda draw: outcomes(draw, True), weight=2)
fresh("15.ahead", "not prepared for", lambda draw: outcomes(draw, False))
fresh("15.ahead", "prepared for twice", lambda draw: outcomes(draw, True, True))


# ---- 15.inflated ----------------------------------------------------------------------------------------------------
def inflated(log, *, tested=lambda n, a: min(a + 1, n), emitted=lambda a: a + 1, pool=None, flip=False):
    """α of real and of random prompts, and by how much the latter inflate the tokens per pass; parts to exchange."""
    found = {}
    for kind in ("real", "random"):
        cycles = [(n, a) for which, n, a in log if which == kind]
        if pool is None:
            alpha = sum(a for _, a in cycles) / sum(tested(n, a) for n, a in cycles)
        else:
            alpha = pool([a / tested(n, a) for n, a in cycles if n])
        found[kind] = alpha, sum(emitted(a) for _, a in cycles) / len(cycles)
    (real, per_pass), (random, other) = found["real"], found["random"]
    return real, random, per_pass / other if flip else other / per_pass


def observe_inflated(answer, log):
    names = "α, real", "α, random", "ratio"
    found = several(answer(list(log)), 3, "α of real prompts, α of random ones, and the ratio")
    return {name: float(number(x, name)) for name, x in zip(names, found, strict=True)}


INFLATED = exercise(
    "15.inflated",
    reference=inflated,
    observe=observe_inflated,
    cases=[
        dict(log=[("real", 1, 1), ("random", 1, 1)]),
        dict(log=[("real", 4, 1), ("random", 4, 4)]),
        dict(log=[("real", 4, 0), ("real", 2, 2), ("random", 4, 3), ("random", 4, 4)]),
        dict(log=[("random", 3, 1), ("real", 3, 2), ("real", 0, 0), ("random", 3, 3), ("real", 5, 1)]),
    ],
)


@INFLATED.wrong_solutions
class _:
    def of_all_drafted(log):
        """You divide by all drafted tokens. Those after the first rejection were never tested."""
        return inflated(log, tested=lambda n, a: n)

    def always_a_rejection(log):
        """You count a rejection in every cycle. A draft that was accepted whole met none: it tested n tokens."""
        return inflated(log, tested=lambda n, a: a + 1)

    def without_the_bonus(log):
        """α is right. But a pass emits one token more than it accepts, the correction or the bonus."""
        return inflated(log, emitted=lambda a: a)

    def mean_of_the_cycles(log):
        """You average over cycles, so one with a single draft token weighs as much as one with eight: divide the
        sums."""
        return inflated(log, pool=lambda rates: sum(rates) / len(rates))

    def the_other_way_round(log):
        """Your ratio is upside down: how many times the tokens per pass of real prompts do random ones show?"""
        return inflated(log, flip=True)


@fresh("15.inflated", "a log")
def _(draw):
    log = [("real", 2, 1), ("random", 2, 1)]  # of each at least one that tested a token, and accepted it
    for _ in range(draw.whole(0, 2 + 2 * draw.size)):
        n = draw.whole(0, 5)
        log.append((draw.choice(["real", "random"]), n, draw.whole(0, n)))
    draw.shuffle(log)
    return dict(log=log)


# ---- 15.confidence --------------------------------------------------------------------------------------------------
def draft_sure(q, sure, last, threshold, random, *, chained=True, combine=mul, own=0, late=0):
    """Sample all, then cut: a cut that looks only at tokens before a position may be made at any time."""
    path = [last]
    for q_j in q:
        path.append(pick(q_j[path[-1] if chained else last], random()))
    sure = [float(sure_j[a]) for sure_j, a in zip(sure, path[own:], strict=False)]
    n = sum(chance >= threshold for chance in accumulate(sure, combine))
    return path[1 : 1 + n + late * (n < len(q))]


CONFIDENCE = exercise(
    "15.confidence",
    reference=draft_sure,
    observe=lambda answer, q, sure, last, threshold: distribution_of(
        lambda random: tokens(answer(q, sure, last, threshold, random), "the draft")
    ),
    cases=[
        dict(q=[rows([0.5, 0.5], [0.25, 0.75])], sure=[probs(0.5, 0.5)], last=1, threshold=0.5),
        dict(q=[rows([0.2, 0.8], [0.7, 0.3])] * 2, sure=[probs(0.9, 0.1), probs(0.3, 0.7)], last=0, threshold=0.5),
        dict(q=[rows([0.2, 0.8], [0.7, 0.3])] * 3, sure=[probs(0.6, 0.4)] * 3, last=0, threshold=0.3),
        dict(q=[rows([0.1, 0.9], [0.6, 0.4])] * 2, sure=[probs(0.4, 0.6), probs(0.8, 0.6)], last=0, threshold=0.5),
    ],
)


@CONFIDENCE.wrong_solutions
class _:
    def peeks(q, sure, last, threshold, random):
        """You look up the confidence of the token that you have just sampled, and leave it out if it is unsure. Then it
        is proposed less often than q says, and the output follows another distribution. Decide before you sample, with
        the token before."""
        return draft_sure(q, sure, last, threshold, random, own=1)

    def taken_back(q, sure, last, threshold, random):
        """You take back a token because the next position is unsure. Then such a token is proposed less often than q
        says, and the output follows another distribution. What is sampled stays: the cut comes after it."""
        return draft_sure(q, sure, last, threshold, random, late=-1)

    def one_by_one(q, sure, last, threshold, random):
        """You compare each confidence alone with the threshold. Each of them is for the case that all tokens before are
        accepted, so the chance that a token is used at all is the product up to it."""
        return draft_sure(q, sure, last, threshold, random, combine=min)

    def in_parallel(q, sure, last, threshold, random):
        """You sample every token as if it followed `last`, as a block drafter does that knows nothing of its own
        choices. The row of q belongs to the token that was drafted before."""
        return draft_sure(q, sure, last, threshold, random, chained=False)

    def one_too_many(q, sure, last, threshold, random):
        """You stop after the token whose chance is below the threshold. It should not be drafted at all."""
        return draft_sure(q, sure, last, threshold, random, late=1)


def heads(draw: Draw, k: int, n: int, **how) -> dict:
    """No product of these confidences is as large as one of these thresholds."""
    sure = [probs(*(draw.choice([0.4, 0.5, 0.6, 0.8]) for _ in range(n))) for _ in range(k)]
    q, thresholds = [draw.rows(n, n, **how) for _ in range(k)], [0.11, 0.17, 0.23, 0.31, 0.45]
    return dict(q=q, sure=sure, last=draw.whole(0, n - 1), threshold=draw.choice(thresholds))


fresh("15.confidence", "one draft token", lambda draw: heads(draw, 1, draw.whole(2, 3)))
fresh("15.confidence", "several draft tokens", lambda draw: heads(draw, draw.whole(2, 3), 2, positive=True), weight=2)
fresh("15.confidence", "the chain never stops", lambda draw: heads(draw, 2, draw.whole(2, 3)) | dict(threshold=0.0))
