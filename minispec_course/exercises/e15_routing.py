"""Set 15, mixtures of experts: how many experts a verify pass reads, expected and counted, and what that costs."""

from __future__ import annotations

from .exercise import Complaint, exercise
from .show import is_number, kind, plain

# ---- 15.experts -----------------------------------------------------------------------------------------------------


def experts(logits, per_token, always, expert):
    return flawed_experts(logits, per_token, always, expert)


def chosen_by(scores, per_token, largest=True) -> set[int]:
    """The experts of one token: those with the largest router logits."""
    return set(sorted(range(len(scores)), key=lambda e: scores[e], reverse=largest)[:per_token])


def flawed_experts(logits, per_token, always, expert, *, expected=None, choose=None, count=None, price=None):
    """Experts touched by a pass, expected and counted, and its cost v, with parts to exchange."""
    E, M = len(logits[0]), len(logits)
    choices = [(choose or chosen_by)(scores, per_token) for scores in logits]
    touched = len(set().union(*choices)) if count is None else count(choices)
    mean = E * (1 - (1 - per_token / E) ** M) if expected is None else expected(E, M)
    if price is not None:
        return mean, touched, price(mean, touched)
    return mean, touched, (always + touched * expert) / (always + per_token * expert)


def observe_experts(answer, logits, per_token, always, expert):
    found = plain(answer(logits, per_token, always, expert))
    if not isinstance(found, (list, tuple)) or len(found) != 3:
        raise Complaint(f"return three numbers: expected, counted, v; yours returns {kind(found)}.")
    if not all(map(is_number, found)):
        raise Complaint("return three numbers: expected, counted, v; one of yours is no finite number.")
    return dict(zip(("expected", "counted", "v"), map(float, found), strict=True))


APART = [[0.1, 0.9, 0.2, 0.4], [0.8, 0.3, 0.7, 0.5], [0.6, 0.2, 0.1, 0.9]]
ALIKE = [[2.0, 0.5, -1.0, 1.0], [1.5, 0.0, -0.5, 1.0], [3.0, -2.0, 0.5, 1.0]]

EXPERTS = exercise(
    "15.experts",
    title="How many experts does a verify pass read?",
    level="M",
    minutes=15,
    points=2,
    hints=(
        "An expert is read once, however many tokens of the pass chose it. Which set has to be counted?",
        "Counted: the union of all tokens' choices, each of which is the per_token experts with the largest logits. "
        "Expected: one token passes over a given expert with probability 1 − k/E, and the tokens choose independently. "
        "For v, compare what this pass reads with what a pass over one token reads.",
        "An expert stays untouched by all M tokens with probability (1 − k/E)^M. For the count collect the numbers of "
        "the k best experts of each token in one set. Both passes of v read `always`; beside it this one reads the "
        "counted experts, and a pass over one token k of them.",
    ),
    code="minispec.theory.experts_touched",
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


@EXPERTS.mutant
def every_choice_counts(logits, per_token, always, expert):
    """You add up the choices of all tokens, so an expert that two tokens chose counts twice. The pass reads its weights
    once and uses them for both: count the different experts, the size of the union."""
    return flawed_experts(logits, per_token, always, expert, count=lambda choices: sum(map(len, choices)))


@EXPERTS.mutant
def only_what_all_chose(logits, per_token, always, expert):
    """You count the experts that every token chose. A pass reads an expert as soon as one token needs it: take the
    union, not the intersection."""
    return flawed_experts(
        logits, per_token, always, expert, count=lambda choices: len(set.intersection(*map(set, choices)))
    )


@EXPERTS.mutant
def the_smallest_logits(logits, per_token, always, expert):
    """You choose the experts with the smallest router logits. A token goes to the experts with the largest ones."""
    return flawed_experts(
        logits, per_token, always, expert, choose=lambda scores, k: chosen_by(scores, k, largest=False)
    )


@EXPERTS.mutant
def one_expert_per_token(logits, per_token, always, expert):
    """You take one expert per token when you count. Each token uses `per_token` of them."""
    return flawed_experts(logits, per_token, always, expert, choose=lambda scores, k: chosen_by(scores, 1))


@EXPERTS.mutant
def the_last_token_alone(logits, per_token, always, expert):
    """You count the experts of one token only. The pass processes all tokens at once, so it reads the experts of all
    of them."""
    return flawed_experts(logits, per_token, always, expert, count=lambda choices: len(choices[-1]))


@EXPERTS.mutant
def no_overlap_expected(logits, per_token, always, expert):
    """Your expectation is k experts for each of the M tokens, as if no two tokens ever chose the same one. An expert is
    passed over by all tokens with probability (1 − k/E)^M."""
    return flawed_experts(logits, per_token, always, expert, expected=lambda E, M: min(E, M * per_token))


@EXPERTS.mutant
def with_replacement(logits, per_token, always, expert):
    """Your expectation lets a token choose the same expert twice: (1 − 1/E)^(k·M). The k choices of one token differ,
    so it passes over a given expert with probability 1 − k/E."""
    return flawed_experts(
        logits, per_token, always, expert, expected=lambda E, M: E * (1 - (1 - 1 / E) ** (per_token * M))
    )


@EXPERTS.mutant
def a_share_of_the_experts(logits, per_token, always, expert):
    """Your expectation is the share of the experts that are touched. Their number is E times as large."""
    return flawed_experts(logits, per_token, always, expert, expected=lambda E, M: 1 - (1 - per_token / E) ** M)


@EXPERTS.mutant
def v_of_the_expectation(logits, per_token, always, expert):
    """Your v uses the expected number of experts. This pass reads the ones that its tokens really chose: use the
    number that you counted."""
    return flawed_experts(
        logits,
        per_token,
        always,
        expert,
        price=lambda mean, touched: (always + mean * expert) / (always + per_token * expert),
    )


@EXPERTS.mutant
def forgets_what_all_read(logits, per_token, always, expert):
    """Your v is the ratio of the numbers of experts alone. Both passes also read `always`: attention, LM head and
    whatever else every token needs."""
    return flawed_experts(logits, per_token, always, expert, price=lambda mean, touched: touched / per_token)


@EXPERTS.mutant
def against_the_whole_model(logits, per_token, always, expert):
    """Your v divides by the bytes of the whole model. Plain decoding does not read all experts: compare with a pass
    over one token, which reads `per_token` of them."""
    return flawed_experts(
        logits,
        per_token,
        always,
        expert,
        price=lambda mean, touched: (always + touched * expert) / (always + len(logits[0]) * expert),
    )
