"""Set 15, sampling that depends on the prefix: penalties at every position of a draft, a constraint along a draft."""

from __future__ import annotations

from .exercise import Complaint, exercise, tokens
from .show import is_number, kind, plain

# ---- 15.penalties ---------------------------------------------------------------------------------------------------


def penalties(logits, output, drafted, frequency, presence):
    return flawed_penalties(logits, output, drafted, frequency, presence)


def flawed_penalties(logits, output, drafted, frequency, presence, *, prefix=None, present=None, sign=-1, paid=None):
    """Penalised logits of a verify pass, with parts to exchange."""
    made = []
    for i, scores in enumerate(logits):
        seen = [*output, *drafted[:i]] if prefix is None else prefix(i)
        line = []
        for token, z in enumerate(scores):
            count = seen.count(token)
            there = (count > 0) if present is None else present(count)
            line.append(z + sign * (frequency * (count if paid is None else paid(count)) + presence * there))
        made.append(line)
    return made


def observe_penalties(answer, logits, output, drafted, frequency, presence):
    found = plain(answer(logits, output, drafted, frequency, presence))
    if not isinstance(found, (list, tuple)) or len(found) != len(logits):
        raise Complaint(f"return {len(logits)} lists of logits, one for each position; yours returns {kind(found)}.")
    for row, right in zip(found, logits, strict=True):
        if not isinstance(row, (list, tuple)) or len(row) != len(right) or not all(map(is_number, row)):
            raise Complaint(f"each position needs a list of {len(right)} numbers; one of yours is {kind(row)}.")
    return {f"position {i}": list(row) for i, row in enumerate(found)}


PENALTIES = exercise(
    "15.penalties",
    title="Penalties at every position of a draft",
    level="M",
    minutes=15,
    points=2,
    hints=(
        "Imagine plain decoding. When it samples the token after d1 and d2, which tokens are in the output?",
        "Logits number i were computed after the output and the first i draft tokens. Count in exactly these. The "
        "frequency penalty is multiplied by the count, the presence penalty is paid once.",
        "for i, scores in enumerate(logits): seen = output + drafted[:i]; z − frequency · seen.count(x) − presence · "
        "(x in seen) for every token x and its logit z.",
    ),
    code="minispec.processors.drafts.process",
    reference=penalties,
    observe=observe_penalties,
    cases=[
        dict(logits=[[1.0, 2.0, 3.0]], output=[], drafted=[], frequency=1.0, presence=0.5),
        dict(logits=[[1.0, 2.0, 3.0]], output=[1, 1, 2], drafted=[], frequency=1.0, presence=0.5),
        dict(logits=[[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], output=[], drafted=[2], frequency=1.0, presence=0.25),
        dict(logits=[[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]], output=[0], drafted=[0, 1], frequency=0.5, presence=2.0),
        dict(logits=[[0.0, 1.0, 2.0]] * 4, output=[1], drafted=[2, 2, 1], frequency=1.0, presence=0.0),
        dict(logits=[[0.0, 1.0, 2.0]] * 3, output=[0, 1], drafted=[0, 0], frequency=0.0, presence=1.0),
    ],
)


@PENALTIES.mutant
def one_prefix_for_all(logits, output, drafted, frequency, presence):
    """You count in the output as it was before the draft, at every position. Position i comes after i draft tokens,
    and plain decoding would have counted them: use output + drafted[:i]."""
    return flawed_penalties(logits, output, drafted, frequency, presence, prefix=lambda i: list(output))


@PENALTIES.mutant
def the_whole_draft_for_all(logits, output, drafted, frequency, presence):
    """You count the whole draft at every position. The first position comes before all draft tokens: it must not know
    what follows it. Use drafted[:i]."""
    return flawed_penalties(logits, output, drafted, frequency, presence, prefix=lambda i: [*output, *drafted])


@PENALTIES.mutant
def the_token_itself_too(logits, output, drafted, frequency, presence):
    """At position i you count the draft token d_i+1 as well. That is the token which position i judges: it would pay
    for itself. Use drafted[:i], not drafted[:i + 1]."""

    def prefix(i):
        return [*output, *drafted[: i + 1]]

    return flawed_penalties(logits, output, drafted, frequency, presence, prefix=prefix)


@PENALTIES.mutant
def the_draft_alone(logits, output, drafted, frequency, presence):
    """You count the draft tokens and forget the output before them. The prefix of position i is both."""
    return flawed_penalties(logits, output, drafted, frequency, presence, prefix=lambda i: list(drafted[:i]))


@PENALTIES.mutant
def presence_paid_every_time(logits, output, drafted, frequency, presence):
    """You subtract the presence penalty once for every time that a token occurs. It is paid once if the token occurs
    at all; what grows with the count is the frequency penalty."""
    return flawed_penalties(logits, output, drafted, frequency, presence, present=lambda count: count)


@PENALTIES.mutant
def presence_for_all(logits, output, drafted, frequency, presence):
    """You subtract the presence penalty from every token. To subtract one number from all logits changes no
    probability: only tokens that are in the prefix pay it."""
    return flawed_penalties(logits, output, drafted, frequency, presence, present=lambda count: True)


@PENALTIES.mutant
def a_reward(logits, output, drafted, frequency, presence):
    """You add the penalties. Then tokens that were emitted become likelier with every time: subtract."""
    return flawed_penalties(logits, output, drafted, frequency, presence, sign=1)


@PENALTIES.mutant
def frequency_paid_once(logits, output, drafted, frequency, presence):
    """You subtract the frequency penalty once from every token that occurs. It is multiplied by the count: a token that
    was emitted three times pays it three times."""
    return flawed_penalties(logits, output, drafted, frequency, presence, paid=lambda count: count > 0)


@PENALTIES.mutant
def one_token_behind(logits, output, drafted, frequency, presence):
    """At position i you count one draft token too few: the last token before it is missing. Use drafted[:i], which are
    i tokens."""

    def prefix(i):
        return [*output, *drafted[: max(0, i - 1)]]

    return flawed_penalties(logits, output, drafted, frequency, presence, prefix=prefix)


# ---- 15.constraint --------------------------------------------------------------------------------------------------


def constraint(step, state, drafted, accepted, token):
    return flawed_constraint(step, state, drafted, accepted, token)


def flawed_constraint(step, state, drafted, accepted, token, *, leaves=True, end=None, mask=None, order=sorted):
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
    found = answer(step, state, drafted, accepted, token)
    if not isinstance(found, (list, tuple)) or len(found) != 2:
        raise Complaint(f"return two things: the allowed tokens, and the new state; yours returns {kind(found)}.")
    allowed, new = found
    if not isinstance(allowed, (list, tuple)) or len(allowed) != len(drafted) + 1:
        raise Complaint(
            f"give one list of tokens for each of the {len(drafted) + 1} positions; yours is {kind(allowed)}."
        )
    masks = [list(tokens(mask, "the allowed tokens of a position")) for mask in allowed]
    return {"allowed": masks, "state": new}


CLOCK = {
    ("h", 1): "m",
    ("h", 2): "m",
    ("m", 0): "colon",
    ("m", 1): "colon",
    ("m", 2): "colon",
    ("colon", 3): "s",
    ("s", 0): "done",
    ("s", 1): "done",
    ("s", 2): "done",
}
LOOP = {("a", 0): "a", ("a", 1): "b", ("b", 1): "b", ("b", 2): "a"}

CONSTRAINT = exercise(
    "15.constraint",
    title="A constraint along a draft",
    level="M",
    minutes=20,
    points=2,
    hints=(
        "The state is a function of the prefix. Write down the prefix of every position first, then its state.",
        "Walk along the draft and keep the state of every position in a list. A token without a step leads nowhere: "
        "that position and all after it allow nothing. The cycle ends at the state of the accepted prefix, and then "
        "takes one step more.",
        "states = [state]; for d in drafted: states.append(step.get((states[-1], d))); allowed at a position: the "
        "tokens x with (its state, x) in step; new state: step.get((states[accepted], token)).",
    ),
    code="minispec.processors.constraint.Follower",
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


@CONSTRAINT.mutant
def not_rolled_back(step, state, drafted, accepted, token):
    """After the cycle you go on from the state at the end of the whole draft. The rejected tokens were never emitted:
    go on from the state after the accepted ones."""

    def end(states):
        return step.get((states[-1], token))

    return flawed_constraint(step, state, drafted, accepted, token, end=end)


@CONSTRAINT.mutant
def forgets_the_emitted_token(step, state, drafted, accepted, token):
    """Your new state is that of the accepted tokens. The cycle emits one token more, the correction or the bonus: take
    its step, too."""
    return flawed_constraint(step, state, drafted, accepted, token, end=lambda states: states[accepted])


@CONSTRAINT.mutant
def one_mask_for_all(step, state, drafted, accepted, token):
    """You give every position the mask of the first one. Position i has the state after i draft tokens."""
    return flawed_constraint(step, state, drafted, accepted, token, mask=lambda allowed: [allowed[0]] * len(allowed))


@CONSTRAINT.mutant
def stays_where_it_was(step, state, drafted, accepted, token):
    """When a draft token has no step you stay in the state before it, and go on. No allowed output begins with that
    prefix, so nothing is allowed after it."""
    return flawed_constraint(step, state, drafted, accepted, token, leaves=False)


@CONSTRAINT.mutant
def one_position_too_few(step, state, drafted, accepted, token):
    """Your last position has no mask. The verify pass emits a token after the last draft token as well (the bonus),
    and it has to fit, too."""
    return flawed_constraint(step, state, drafted, accepted, token, mask=lambda allowed: [*allowed[:-1], []])


@CONSTRAINT.mutant
def back_to_before_the_draft(step, state, drafted, accepted, token):
    """You take the last step from the state before the draft. The accepted tokens were emitted: go on from the state
    after them."""

    def end(states):
        return step.get((state, token))

    return flawed_constraint(step, state, drafted, accepted, token, end=end)


@CONSTRAINT.mutant
def one_draft_token_too_many(step, state, drafted, accepted, token):
    """You go on from the state after one draft token more than were accepted: the rejected one was never emitted.
    The state before the draft is number 0, so that after the accepted tokens is number `accepted`."""

    def end(states):
        return step.get((states[min(accepted + 1, len(drafted))], token))

    return flawed_constraint(step, state, drafted, accepted, token, end=end)


@CONSTRAINT.mutant
def one_draft_token_too_few(step, state, drafted, accepted, token):
    """You go on from the state before the last accepted token. That token was emitted: the state before the draft is
    number 0, so that after the accepted tokens is number `accepted`, not `accepted` − 1."""

    def end(states):
        return step.get((states[max(0, accepted - 1)], token))

    return flawed_constraint(step, state, drafted, accepted, token, end=end)


@CONSTRAINT.mutant
def not_sorted(step, state, drafted, accepted, token):
    """The allowed tokens of a position are the right ones, in the order in which `step` has them. Sort them."""
    return flawed_constraint(step, state, drafted, accepted, token, order=list)
