"""Set 15, first part: block verification, a draft model of another vocabulary, one budget for a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from minispec.serving.budget import best_lengths, survival
from minispec.verify import accept_probability, block, pick, residual

from .e06 import emitted_runs
from .e11 import counts
from .exercise import Complaint, distribution_of, exercise, law, pair, rows, token

# ---- 15.block -------------------------------------------------------------------------------------------------------


def verify_block(p, q, drafted, random):
    return list(block(p, q, drafted, [random() for _ in p]).run(drafted))


def flawed_block(p, q, drafted, random, *, cap=True, weighted=True, coin=None, longest=True):
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
    title="Block verification",
    level="H",
    minutes=35,
    points=4,
    hints=(
        "First compute the weights w for all prefixes, with no random number. Then walk from the longest prefix to the "
        "shortest, with one random number for each, and stop at the first yes.",
        "After the last draft token nothing was drafted, so q is zero there: with zeros at the end of q the "
        "formula for h gives h_k = w_k, and the token after a full acceptance comes from p, as it should. If no "
        "prefix gets a yes, a = 0.",
        "With w as in the text, the answer for the prefix of length i is yes with h = R / (R + 1 − w_i), where R "
        "sums the positive part of w_i · p − q of its next position; for the whole draft h is w itself. The longest"
        " prefix with a yes wins, and the next token comes from the residual with w_a · p in place of p.",
    ),
    code="minispec.verify.block",
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


@BLOCK.mutant
def token_by_token(p, q, drafted, random):
    """You accept token by token. That is lossless, but a prefix is kept less often than it could be: a surplus of the
    target at a later token cannot make up for a deficit at an earlier one. Use the joint weight of the prefix."""
    for i, d in enumerate(drafted):
        if not random() < accept_probability(p[i], q[i], d):
            return [*drafted[:i], pick(residual(p[i], q[i]), random())]
    return [*drafted, pick(p[-1], random())]


@BLOCK.mutant
def weight_as_coin(p, q, drafted, random):
    """You stop at a prefix with probability w. But the longer prefixes were asked before it, and their acceptance
    counts for this prefix too, so it is kept too often. Use h, which is what is missing to w."""
    return flawed_block(p, q, drafted, random, coin=lambda w, h: w)


@BLOCK.mutant
def unweighted_residual(p, q, drafted, random):
    """You sample the last token from the residual of p and q. The prefix was kept with weight w only, so the part of
    the target that is left is [w·p − q]₊."""
    return flawed_block(p, q, drafted, random, weighted=False)


@BLOCK.mutant
def stops_at_the_first_no(p, q, drafted, random):
    """You walk from the shortest prefix and stop at the first no. A longer prefix can be accepted although a shorter
    one was refused: begin with the longest."""
    return flawed_block(p, q, drafted, random, longest=False)


@BLOCK.mutant
def weight_above_one(p, q, drafted, random):
    """Your weights can exceed 1, because you do not cut the product at 1 after every token. w is the probability that a
    prefix is kept: a surplus cannot be saved for later tokens."""
    return flawed_block(p, q, drafted, random, cap=False)


# ---- 15.shared ------------------------------------------------------------------------------------------------------


def draft_shared(probs, own, theirs, random):
    return flawed_shared(probs, own, theirs, random)


def flawed_shared(probs, own, theirs, random, *, renormalise=True, translate=True, told=None):
    shared = torch.tensor([piece in theirs for piece in own])
    kept = probs * shared
    sampled_from = kept / kept.sum()
    d = pick(sampled_from, random())
    q = torch.zeros(len(theirs), dtype=probs.dtype)
    for id, piece in enumerate(own):
        if shared[id]:
            q[theirs.index(piece)] = (sampled_from if renormalise else probs)[id]
    return (theirs.index(own[d]) if translate else d), q if told is None else told(q)


def shared_drafts(answer, probs, own, theirs):
    """The exact distribution of (token, reported q)."""

    def draft(random):
        sampled, q = pair(answer(probs, own, theirs, random), "the token and q")
        if not isinstance(q, Tensor) or q.shape != (len(theirs),):
            raise Complaint(f"q should be a tensor of shape ({len(theirs)},): a probability for every target token.")
        return token(sampled), tuple(round(x, 5) for x in q.tolist())

    return distribution_of(draft)


SHARED = exercise(
    "15.shared",
    title="A draft token from another vocabulary",
    level="M",
    minutes=20,
    points=2,
    hints=(
        "Which tokens can be proposed at all? What distribution is left if the draft model may choose only among them?",
        "Set the probability of tokens that the target does not have to 0, divide by the sum of the rest, and sample "
        "from that. Then put every probability, and the token, at the id that the target has for the same characters.",
        "Set the probabilities of unshared tokens to 0 and divide by the sum; sample from that. Each shared token "
        "carries its probability to the id at which the target lists the same characters, and the sampled token moves"
        " by the same table.",
    ),
    code="minispec.drafters.translate.Shared",
    reference=draft_shared,
    observe=shared_drafts,
    cases=[
        dict(probs=law(0.5, 0.5), own=["a", "b"], theirs=["b", "a"]),
        dict(probs=law(0.5, 0.25, 0.25), own=["a", "b", "c"], theirs=["c", "a"]),
        dict(probs=law(0.2, 0.3, 0.5), own=["x", "b", "a"], theirs=["a", "b", "c"]),
        dict(probs=law(0.6, 0.4), own=["un", "do"], theirs=["undo", "do", "un", "done"]),
    ],
)


@SHARED.mutant
def not_renormalised(probs, own, theirs, random):
    """The q that you report does not sum to 1: it still has the probabilities from before the other tokens were left
    out. The token was sampled from the renormalised distribution, so that is q."""
    return flawed_shared(probs, own, theirs, random, renormalise=False)


@SHARED.mutant
def in_the_drafts_ids(probs, own, theirs, random):
    """You return the draft model's id of the token. The target would verify another token, the one that has this id in
    its own vocabulary."""
    return flawed_shared(probs, own, theirs, random, translate=False)


@SHARED.mutant
def told_one_hot(probs, own, theirs, random):
    """You report q as if nothing had been sampled, with everything on one token. The verifier would then take away too
    much: report the whole distribution that the token came from."""
    sampled, q = flawed_shared(probs, own, theirs, random)
    return sampled, torch.zeros_like(q).index_fill(0, torch.tensor(sampled), 1.0)


@SHARED.mutant
def samples_first(probs, own, theirs, random):
    """You sample from all of the draft model's tokens, and if the target does not have the token you take the most
    likely shared one. So that token is sampled more often than your q says. Leave the others out before you sample."""
    _, q = flawed_shared(probs, own, theirs, lambda: 0.0)
    d = pick(probs, random())
    if own[d] in theirs:
        return theirs.index(own[d]), q
    return int(q.argmax()), q


@SHARED.mutant
def token_zero_is_nothing(probs, own, theirs, random):
    """You leave out the target's token 0, because 0 counts as false. Ask whether a text is in the target's vocabulary,
    not whether its id is true."""
    without = [f"not {piece}" if theirs.index(piece) == 0 else piece for piece in theirs]
    return flawed_shared(probs, own, without, random)


# ---- 15.budget ------------------------------------------------------------------------------------------------------


def slots(confidences, budget):
    return best_lengths([survival(row) for row in confidences], budget)


BUDGET = exercise(
    "15.budget",
    title="One budget for a whole batch",
    level="M",
    minutes=20,
    points=2,
    hints=(
        "What is one more draft token of a sequence worth? It counts only if everything before it in its draft is "
        "accepted as well.",
        "Multiply the confidences along each draft: that is the probability to survive, and it never rises. So the "
        "slots with the largest of these numbers are prefixes of their drafts by themselves.",
        "Repeat budget times: among the sequences that have a slot left, take the one whose next slot has the largest "
        "product of confidences up to and including it (the first of equals), and give it one more.",
    ),
    code="minispec.serving.budget.best_lengths",
    reference=slots,
    observe=lambda answer, confidences, budget: counts(answer(confidences, budget), "the lengths"),
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


@BUDGET.mutant
def equal_shares(confidences, budget):
    """You give every sequence the same share. A sequence whose drafts fail then takes tokens from one whose drafts
    pass: compare the probabilities to survive."""
    return [min(len(row), budget // max(1, len(confidences))) for row in confidences]


@BUDGET.mutant
def confidence_alone(confidences, budget):
    """You compare the confidences of the next slots, and forget what comes before them. A sure token after an unsure
    one survives only if the unsure one does: multiply."""
    return best_lengths(confidences, budget)


@BUDGET.mutant
def longest_first(confidences, budget):
    """You fill the sequences one after the other, the surest first, instead of asking after every slot which sequence
    deserves the next."""
    lengths = [0] * len(confidences)
    for s in sorted(range(len(confidences)), key=lambda s: -(confidences[s] or [0.0])[0]):
        lengths[s] = min(len(confidences[s]), budget - sum(lengths))
    return lengths


@BUDGET.mutant
def in_turns(confidences, budget):
    """You deal the slots out in turns, one for each sequence. The next slot belongs to the sequence whose next token is
    most likely to survive, and that may be the same one again."""
    return best_lengths([[1 / (depth + 1) for depth in range(len(row))] for row in confidences], budget)


@BUDGET.mutant
def last_of_equals(confidences, budget):
    """Between equally good slots you do not choose the first sequence. It should win with every slot that is as good as
    the others' best, however many it has already."""
    return best_lengths([survival(row) for row in confidences][::-1], budget)[::-1]


@BUDGET.mutant
def without_the_token_itself(confidences, budget):
    """You rate a slot by the tokens before it, and leave out its own confidence. The token is accepted only if it
    passes as well: multiply up to and including it."""
    return best_lengths([[1.0, *survival(row)][: len(row)] for row in confidences], budget)
