"""Set 06, rejection sampling: the coin, the residual, the sampler, drafts that were not drawn, and the right q."""

from __future__ import annotations

import torch
from torch import Tensor

from ....sampling import Sampling
from ....verify import accept_probability, chain, one_hot, pick, residual
from ..exercise import Complaint, distribution_of, exercise, law, pair, rows, token, tokens

# ---- 06.accept ------------------------------------------------------------------------------------------------------

ACCEPT = exercise(
    "06.accept",
    title="The coin",
    level="E",
    minutes=10,
    points=1,
    hints=(
        "Think of two tokens. The draft proposes one of them twice as often as the target wants it. What share of "
        "these proposals must survive?",
        "Half of them: the ratio of what the target wants to what the draft gives. And a token that is proposed "
        "too rarely is never refused.",
        "The ratio p[token] / q[token], but never more than 1.",
    ),
    code="minispec.verify.accept_probability",
    reference=accept_probability,
    cases=[
        dict(p=law(0.25, 0.75), q=law(0.5, 0.5), token=0),
        dict(p=law(0.25, 0.75), q=law(0.5, 0.5), token=1),
        dict(p=law(0.0, 1.0), q=law(0.5, 0.5), token=0),
        dict(p=law(0.2, 0.3, 0.5), q=law(0.6, 0.3, 0.1), token=0),
        dict(p=law(0.2, 0.3, 0.5), q=law(0.6, 0.3, 0.1), token=1),
        dict(p=law(0.2, 0.3, 0.5), q=law(0.6, 0.3, 0.1), token=2),
    ],
)


@ACCEPT.mutant
def always(p, q, token):
    """You accept every draft. What comes out then follows the draft's law q, and the target has no say."""
    return 1.0


@ACCEPT.mutant
def threshold(p, q, token):
    """You accept exactly when the target likes the token at least as much as the draft does. A threshold is no coin: a
    token with p(d) < q(d) would lose all of its accepted share instead of a part."""
    return float(p[token] >= q[token])


@ACCEPT.mutant
def upside_down(p, q, token):
    """Your ratio is upside down: you refuse what the draft proposes too rarely and keep what it proposes too often."""
    return min(1.0, float(q[token] / p[token])) if p[token] > 0 else 1.0


@ACCEPT.mutant
def ignores_q(p, q, token):
    """You accept with probability p(d), as if the draft could have said nothing else. It drew d with probability q(d),
    and that already thins the proposals out: divide by it."""
    return p[token]


@ACCEPT.mutant
def more_than_certain(p, q, token):
    """Your answer exceeds 1, and nothing is accepted more often than always. Where the draft proposes a token too
    rarely, the residual makes up for it."""
    return p[token] / q[token]


# ---- 06.residual ----------------------------------------------------------------------------------------------------


def bars(answer):
    """p, q and the learner's residual, side by side."""
    import plotly.graph_objects as go

    from ...viz.style import GREY, PALETTE, TEMPLATE

    p, q = law(0.35, 0.3, 0.15, 0.15, 0.05), law(0.1, 0.25, 0.4, 0.15, 0.1)
    found = answer(p.clone(), q.clone())
    if not isinstance(found, Tensor) or found.shape != p.shape:
        raise Complaint(f"a law over all {len(p)} tokens can be drawn, a tensor of shape {tuple(p.shape)}.")
    figure = go.Figure(layout=dict(template=TEMPLATE, barmode="group", title="What your residual gives to each token"))
    for name, values, colour in (
        ("target p", p, PALETTE[0]),
        ("draft q", q, GREY),
        ("your residual", found, PALETTE[1]),
    ):
        heights = [round(float(v), 4) for v in values]
        figure.add_bar(name=name, x=[f"token {i}" for i in range(len(p))], y=heights, marker_color=colour)
    return figure.update_layout(yaxis_title="probability")


RESIDUAL = exercise(
    "06.residual",
    title="The residual",
    level="M",
    minutes=15,
    points=2,
    hints=(
        "Draw p and q as bars over the tokens. Accepted drafts fill the part below both. Which part of p is still "
        "empty?",
        "The part of p that sticks out above q: max(p − q, 0) at every token. It does not sum to 1 yet. And what "
        "remains when p and q are the same?",
        "Clamp p − q at 0, then divide by its sum. Where that sum is 0 nothing sticks out, nothing is ever "
        "rejected, and p itself is a safe thing to return.",
    ),
    code="minispec.verify.residual",
    reference=residual,
    picture=bars,
    cases=[
        dict(p=law(0.5, 0.5), q=law(1.0, 0.0)),
        dict(p=law(0.25, 0.75), q=law(0.25, 0.75)),
        dict(p=law(0.5, 0.3, 0.2), q=law(0.2, 0.2, 0.6)),
        dict(p=law(0.1, 0.2, 0.3, 0.4), q=law(0.4, 0.3, 0.2, 0.1)),
        dict(p=law(0.0, 0.6, 0.4), q=law(0.5, 0.5, 0.0)),
    ],
)


@RESIDUAL.mutant
def p_itself(p, q):
    """Your residual is p itself. Tokens that the draft likes have already had their share through accepted drafts, and
    now they get a second one. Only what q leaves uncovered may be drawn here."""
    return p


@RESIDUAL.mutant
def q_itself(p, q):
    """Your residual is the draft's own law. The tokens that the draft neglects are the ones that lack probability, and
    they would never get it."""
    return q


@RESIDUAL.mutant
def only_the_best(p, q):
    """You put everything on the likeliest token of the residual. It is a law to draw from: every uncovered token needs
    its part."""
    return one_hot(int((p - q).argmax()), like=p)


@RESIDUAL.mutant
def not_normalised(p, q):
    """Your residual does not sum to 1: [p − q]₊ is what is missing, and a law is what to draw from. Divide by the
    sum."""
    return (p - q).clamp(min=0)


@RESIDUAL.mutant
def divides_by_zero(p, q):
    """You divide by Σ[p − q]₊ without looking. Where p = q it is 0, and NaN travels far before anybody notices."""
    uncovered = (p - q).clamp(min=0)
    return uncovered / uncovered.sum()


@RESIDUAL.mutant
def absolute_difference(p, q):
    """You take |p − q|. Tokens with too much of the draft count as missing too: they are the ones that were just
    rejected."""
    gap = (p - q).abs()
    return gap / gap.sum() if bool(gap.any()) else p


@RESIDUAL.mutant
def upside_down_residual(p, q):
    """Your difference is upside down: [q − p]₊ is what the draft gives too much of. What it leaves uncovered is [p −
    q]₊."""
    return residual(q, p)


# ---- 06.sampler -----------------------------------------------------------------------------------------------------


def sampler(p, q, drafted, random):
    return list(chain(p, q, drafted, [random() for _ in p]).run(drafted))


def emitted_runs(answer, p, q):
    """The exact law of all tokens of a cycle, the draft's own draws included."""

    def cycle(random):
        drafted = [pick(row, random()) for row in q]
        return tokens(answer(p, q, drafted, random))

    return distribution_of(cycle)


SAMPLER = exercise(
    "06.sampler",
    title="The whole sampler",
    level="M",
    minutes=25,
    points=3,
    hints=(
        "It is one loop over the drafts with two ways out: a rejection ends it early, or it runs to its end. "
        "Either way exactly one token follows the accepted ones.",
        "For draft i flip a fresh coin: random() < accept_probability(p[i], q[i], drafted[i]). Accepted: keep it "
        "and go on. Rejected: draw from the residual of that same place and return at once. After the loop: the "
        "bonus.",
        "In the loop, on rejection: return drafted[:i] followed by pick(residual(p[i], q[i]), random()). After it: "
        "all drafts followed by pick(p[-1], random()). Every random() is a new one.",
    ),
    code="minispec.verify.chain",
    reference=sampler,
    observe=emitted_runs,
    cases=[
        dict(p=rows([0.5, 0.5], [0.2, 0.8]), q=rows([0.75, 0.25])),
        dict(p=rows([0.3, 0.7]), q=torch.zeros(0, 2, dtype=torch.float64)),
        dict(p=rows([0.6, 0.4], [0.3, 0.7], [0.9, 0.1]), q=rows([0.25, 0.75], [0.5, 0.5])),
        dict(p=rows([0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]), q=rows([0.2, 0.2, 0.6], [0.6, 0.1, 0.3])),
    ],
)


def flawed(p, q, drafted, random, *, coin=accept_probability, replace=residual, late=0, bonus=-1):
    """The sampler with parts to exchange."""
    for i, d in enumerate(drafted):
        if not random() < coin(p[i + late], q[i], d):
            return [*drafted[:i], pick(replace(p[i + late], q[i]), random())]
    return [*drafted, pick(p[bonus], random())]


@SAMPLER.mutant
def accepts_everything(p, q, drafted, random):
    """You never reject: the drafted part of your output follows the draft's law, not the target's."""
    return flawed(p, q, drafted, random, coin=always)


@SAMPLER.mutant
def resamples_from_p(p, q, drafted, random):
    """After a rejection you draw from p. Tokens that the draft likes get a second share that way. Draw from the
    residual, norm([p − q]₊)."""
    return flawed(p, q, drafted, random, replace=p_itself)


@SAMPLER.mutant
def resamples_from_q(p, q, drafted, random):
    """After a rejection you ask the draft again. What it neglects stays neglected. Draw from the residual, norm([p −
    q]₊)."""
    return flawed(p, q, drafted, random, replace=q_itself)


@SAMPLER.mutant
def takes_the_best_of_the_residual(p, q, drafted, random):
    """After a rejection you take the likeliest token of the residual. It is a law: draw from it."""
    return flawed(p, q, drafted, random, replace=only_the_best)


@SAMPLER.mutant
def without_bonus(p, q, drafted, random):
    """When all drafts are accepted you stop without the bonus. No law bends, but a token that the target has already
    paid for is thrown away; and a cycle without drafts would emit nothing at all."""
    out = flawed(p, q, drafted, random)
    return out[:-1] if len(out) > len(drafted) else out


@SAMPLER.mutant
def goes_on_after_a_rejection(p, q, drafted, random):
    """You replace a rejected draft and go on with the next. The target computed p of the next place after the rejected
    draft, not after your replacement: everything behind it is void. Stop there."""
    out = []
    for i, d in enumerate(drafted):
        accepted = random() < accept_probability(p[i], q[i], d)
        out.append(d if accepted else pick(residual(p[i], q[i]), random()))
    return [*out, pick(p[-1], random())]


@SAMPLER.mutant
def p_one_late(p, q, drafted, random):
    """You judge draft i by p[i + 1], the law of the token after it. Its own law is p[i]: what the target expected
    before it read the draft."""
    return flawed(p, q, drafted, random, late=1)


@SAMPLER.mutant
def bonus_from_the_last_draft(p, q, drafted, random):
    """Your bonus comes from the law of the last draft's place. There is one row more than there are drafts, and it is
    for the bonus: p[-1]."""
    return flawed(p, q, drafted, random, bonus=max(0, len(drafted) - 1))


@SAMPLER.mutant
def one_number_for_all(p, q, drafted, random):
    """You decide all places with one random number. A number that was small enough once is likely to be small enough
    again, so acceptances come in clusters. Call random() for each decision."""
    u = random()
    for i, d in enumerate(drafted):
        if not u < accept_probability(p[i], q[i], d):
            return [*drafted[:i], pick(residual(p[i], q[i]), random())]
    return [*drafted, pick(p[-1], random())]


@SAMPLER.mutant
def corrects_with_the_rejecting_number(p, q, drafted, random):
    """You draw the correction with the number that rejected the draft. That number is known to be large, so late
    tokens are favoured. Call random() once more."""
    for i, d in enumerate(drafted):
        u = random()
        if not u < accept_probability(p[i], q[i], d):
            return [*drafted[:i], pick(residual(p[i], q[i]), u)]
    return [*drafted, pick(p[-1], random())]


# ---- 06.one_hot -----------------------------------------------------------------------------------------------------


def verify_one_hot(p, token, random):
    y = pick(p, random())
    return y == token, y


def verdicts(answer, p, token):
    """The exact law of (accepted, emitted token)."""

    def place(random):
        accepted, emitted = pair(answer(p, token, random), "whether the draft is accepted and the emitted token")
        if not isinstance(accepted, (bool, torch.Tensor)) and type(accepted).__name__ != "bool":
            raise Complaint(f"the first of your two results should be True or False; it is {type(accepted).__name__}.")
        return ("accepted" if accepted else "rejected", as_token(emitted, "the emitted token"))

    return distribution_of(place)


as_token = token  # below, `token` is the drafted one

ONE_HOT = exercise(
    "06.one_hot",
    title="A draft that was not drawn",
    level="M",
    minutes=15,
    points=2,
    hints=(
        "Put q = 1 at the drafted token and 0 elsewhere into the two rules you know. What is min(1, p/q) there? "
        "What is left of [p − q]₊?",
        "The draft is accepted with probability p(d), and the residual is p without d. Two random numbers do it. "
        "Can you see how one does?",
        "Draw y from p: y = pick(p, random()). It equals d with probability p(d), and given that it does not, it "
        "follows p without d. So y is the emitted token in both cases.",
    ),
    code="minispec.verify.chain",
    reference=verify_one_hot,
    observe=verdicts,
    cases=[
        dict(p=law(0.75, 0.25), token=0),
        dict(p=law(0.75, 0.25), token=1),
        dict(p=law(0.2, 0.3, 0.5), token=0),
        dict(p=law(0.2, 0.3, 0.5), token=2),
        dict(p=law(0.4, 0.6, 0.0), token=2),
        dict(p=law(0.0, 1.0), token=1),
    ],
)


@ONE_HOT.mutant
def trusts_the_draft(p, token, random):
    """You always accept. Then the output is whatever the lookup found, however unlikely the target thinks it is."""
    return True, token


@ONE_HOT.mutant
def accepts_the_favourite(p, token, random):
    """You accept exactly when the draft is the target's favourite. That is the greedy rule. A sampling target wants
    its favourite with probability p(d), not always, and others with theirs."""
    if token == int(p.argmax()):
        return True, token
    return False, pick(p, random())


@ONE_HOT.mutant
def draws_again(p, token, random):
    """After a rejection you draw from the whole of p, where the rejected draft is still in. It had its chance, with
    probability p(d): remove it, or emit the very y that was compared with it."""
    if random() < p[token]:
        return True, token
    return False, pick(p, random())


@ONE_HOT.mutant
def best_of_the_rest(p, token, random):
    """After a rejection you take the likeliest other token. Draw among the others, in the proportions of p."""
    if random() < p[token]:
        return True, token
    rest = p.clone()
    rest[token] = -1.0
    return False, int(rest.argmax())


@ONE_HOT.mutant
def uniform_rest(p, token, random):
    """After a rejection all other tokens are equally likely in your version. They keep the proportions that p gives
    them."""
    if random() < p[token]:
        return True, token
    return False, pick(torch.ones_like(p) - one_hot(token, like=p), random())


# ---- 06.top_p -------------------------------------------------------------------------------------------------------


def nucleus(law, top_p):
    """The smallest set of likeliest tokens with at least top_p of the mass, renormalised."""
    return Sampling(temperature=1.0, top_p=top_p).probs(law.log())


def draft_top_p(law, top_p, random):
    q = nucleus(law, top_p)
    return pick(q, random()), q


def drafts(answer, law, top_p):
    """The exact law of (token, reported q)."""

    def draft(random):
        drawn, q = pair(answer(law, top_p, random), "the token and q")
        if not isinstance(q, Tensor) or q.shape != law.shape:
            raise Complaint(f"q should be a tensor of shape {tuple(law.shape)}: a probability for every token.")
        return as_token(drawn), tuple(round(x, 5) for x in q.tolist())

    return distribution_of(draft)


TOP_P = exercise(
    "06.top_p",
    title="The law you really drew from",
    level="M",
    minutes=20,
    points=2,
    hints=(
        "The verifier divides by q(d). Which q makes that ratio right: the one the draft model computed, or the "
        "one its sampler used?",
        "Sort the tokens, likeliest first, and add up. Keep tokens until the sum has reached top_p, the one that "
        "reaches it included. Then the kept ones need to sum to 1.",
        "order = law.argsort(descending=True); before = law[order].cumsum(0) − law[order] is the mass in front of "
        "each token; keep those with before < top_p. Zero the others, divide by the sum, draw from that with pick, "
        "and return that same law.",
    ),
    code="minispec.sampling.Sampling.probs",
    reference=draft_top_p,
    observe=drafts,
    cases=[
        dict(law=law(0.75, 0.25), top_p=0.5),
        dict(law=law(0.75, 0.25), top_p=0.9),
        dict(law=law(0.2, 0.5, 0.3), top_p=0.6),
        dict(law=law(0.1, 0.4, 0.2, 0.3), top_p=0.85),
        dict(law=law(0.1, 0.2, 0.7), top_p=1.0),
    ],
)


@TOP_P.mutant
def reports_q_before_top_p(law, top_p, random):
    """You draw after top-p but report q as it was before. The drawn token was likelier than q says, so it is accepted
    too often, and the residual still charges for tokens that could not be drawn."""
    return pick(nucleus(law, top_p), random()), law


@TOP_P.mutant
def draws_before_top_p(law, top_p, random):
    """You report the truncated law but draw from the full one. Sooner or later a token is drawn that q calls
    impossible, and p(d)/q(d) divides by zero."""
    return pick(law, random()), nucleus(law, top_p)


@TOP_P.mutant
def truncated_not_normalised(law, top_p, random):
    """Your q does not sum to 1: the tokens that stay take over the mass of those that go. Divide by the sum."""
    kept = law * (nucleus(law, top_p) > 0)
    return pick(kept, random()), kept


@TOP_P.mutant
def cuts_one_token_too_early(law, top_p, random):
    """You drop the token that carries the sum over top_p. The set has to reach top_p, so that token is its last member
    (and the likeliest token always stays)."""
    order = law.argsort(descending=True)
    keep = law[order].cumsum(0) <= top_p
    keep[0] = True
    q = torch.zeros_like(law)
    q[order[keep]] = law[order[keep]]
    q = q / q.sum()
    return pick(q, random()), q


@TOP_P.mutant
def no_top_p_at_all(law, top_p, random):
    """Your draft ignores top_p. That is exact, but not what was asked: the set has to end where it reaches top_p."""
    return pick(law, random()), law


@TOP_P.mutant
def reports_one_hot(law, top_p, random):
    """You report a q that is certain of the drawn token. That is the q of a draft that was not drawn at all; this one
    was drawn, with probability q(d)."""
    d = pick(nucleus(law, top_p), random())
    return d, one_hot(d, like=law)
