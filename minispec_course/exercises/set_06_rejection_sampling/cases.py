"""Set 06, rejection sampling: acceptance, the residual, the sampler, greedy draft tokens, and the right q."""

import torch

from minispec.verify import accept_probability, one_hot, pick, residual

from ..exercise import distribution_of, exercise, lend, probs, rows
from ..fresh import Draw, fresh
from ..returned import flag, pair, tensor, token, tokens

# ---- 06.accept ------------------------------------------------------------------------------------------------------
ACCEPT = exercise(
    "06.accept",
    reference=accept_probability,
    cases=[
        dict(p=probs(0.25, 0.75), q=probs(0.5, 0.5), token=0),
        dict(p=probs(0.25, 0.75), q=probs(0.5, 0.5), token=1),
        dict(p=probs(0.0, 1.0), q=probs(0.5, 0.5), token=0),
        dict(p=probs(0.2, 0.3, 0.5), q=probs(0.6, 0.3, 0.1), token=0),
        dict(p=probs(0.2, 0.3, 0.5), q=probs(0.6, 0.3, 0.1), token=1),
        dict(p=probs(0.2, 0.3, 0.5), q=probs(0.6, 0.3, 0.1), token=2),
    ],
)


@ACCEPT.wrong_solutions
class WrongAccept:
    def always(p, q, token):
        """You accept every draft token, so the emitted tokens follow the draft model's distribution q, and the target
        has no influence. The probability has to depend on p(d) and q(d)."""
        return 1.0

    def larger_instead_of_smaller(p, q, token):
        """You take the larger of 1 and p(d)/q(d), so your answer is never below 1 and nothing is ever rejected. The
        probability is the smaller of the two: min instead of max."""
        return max(1.0, float(p[token] / q[token]))

    def threshold(p, q, token):
        """You accept exactly when the target gives the token at least as much probability as the draft model does. With
        such a threshold a token with p(d) < q(d) is never accepted, but it should be accepted part of the time: with
        probability p(d)/q(d)."""
        return float(p[token] >= q[token])

    def upside_down(p, q, token):
        """Your ratio is upside down: you reject tokens that the draft model proposes too rarely and keep those that it
        proposes too often. It should be p(d) divided by q(d)."""
        return min(1.0, float(q[token] / p[token])) if p[token] > 0 else 1.0

    def ignores_q(p, q, token):
        """You accept with probability p(d), as if the draft model could have proposed nothing else. It sampled d with
        probability q(d), which makes d rarer by itself, so divide by q(d)."""
        return p[token]

    def more_than_certain(p, q, token):
        """Your answer exceeds 1, so it is not a probability. A token that the draft model proposes too rarely is always
        accepted, and the residual supplies the rest, so limit the ratio to 1."""
        return p[token] / q[token]


def two(draw: Draw, n: int | None = None) -> tuple:
    p = draw.probs(n)
    return p, draw.probs(len(p))


def drafted(draw: Draw, fits) -> dict:
    """p, q and a token that q can have given, with p(d) and q(d) as wanted."""

    def make():
        p, q = two(draw)
        return dict(p=p, q=q, token=draw.choice(q.nonzero().flatten().tolist()))

    return draw.until(make, lambda case: fits(float(case["p"][case["token"]]), float(case["q"][case["token"]])))


fresh("06.accept", "proposed too often", lambda draw: drafted(draw, lambda p, q: 0 < p < q))


@fresh("06.accept", "always accepted")
def _(draw):
    if draw.chance(0.3):
        p = draw.probs()
        return dict(p=p, q=p.clone(), token=draw.choice(p.nonzero().flatten().tolist()))
    return drafted(draw, lambda p, q: p > q)


fresh("06.accept", "impossible for the target", lambda draw: drafted(draw, lambda p, q: p == 0), weight=0.5, count=6)


@fresh("06.accept", "float32", weight=0.5, count=6)
def _(draw):
    case = drafted(draw, lambda p, q: 0 < p < q)
    return dict(p=case["p"].float(), q=case["q"].float(), token=case["token"])


@fresh("06.accept", "improbable tokens", weight=0.5, count=6)
def _(draw):
    """Both probabilities are tiny, and their ratio is not: nothing may be added to them, and nothing rounded."""
    larger = draw.chance(0.5)
    case = drafted(draw, lambda p, q: 0 < p != q and (p > q) == larger)
    tiny = 10.0 ** -draw.whole(3, 4)
    for name in ("p", "q"):
        probs = case[name] * tiny
        probs[0 if case["token"] else 1] += 1 - probs.sum()
        case[name] = probs
    return case


# ---- 06.residual ----------------------------------------------------------------------------------------------------
RESIDUAL = exercise(
    "06.residual",
    reference=residual,
    cases=[
        dict(p=probs(0.5, 0.5), q=probs(1.0, 0.0)),
        dict(p=probs(0.25, 0.75), q=probs(0.25, 0.75)),
        dict(p=probs(0.5, 0.5), q=probs(0.5, 0.5000000000000001)),
        dict(p=probs(0.5, 0.3, 0.2), q=probs(0.2, 0.2, 0.6)),
        dict(p=probs(0.1, 0.2, 0.3, 0.4), q=probs(0.4, 0.3, 0.2, 0.1)),
        dict(p=probs(0.0, 0.6, 0.4), q=probs(0.5, 0.5, 0.0)),
    ],
)


@RESIDUAL.wrong_solutions
class WrongResidual:
    def p_itself(p, q):
        """You sample the correction from p itself. Tokens that the draft model proposes have had their share through
        accepted draft tokens, and now they get a second one. Sample only from the part of p that q leaves uncovered: [p
        − q]₊."""
        return p

    def not_normalised(p, q):
        """Your residual does not sum to 1. [p − q]₊ is the missing part of p, but you can sample only from a
        distribution, so divide by the sum."""
        return (p - q).clamp(min=0)

    def divides_by_zero(p, q):
        """You divide by Σ[p − q]₊ without a check. If p = q, this sum is 0 and you get NaN, which may go unnoticed
        until much later. Return p itself in that case."""
        uncovered = (p - q).clamp(min=0)
        return uncovered / uncovered.sum()

    def asks_for_equality(p, q):
        """You return p only if p and q are equal. If they agree up to rounding, p may exceed q nowhere, and then you
        divide by 0. Check whether the sum Σ[p − q]₊ is 0."""
        return p if torch.equal(p, q) else WrongResidual.divides_by_zero(p, q)

    def absolute_difference(p, q):
        """You take |p − q|, so tokens that the draft model proposes too often also count as missing, although they are
        the ones that were just rejected. Keep only the positive part of p − q."""
        gap = (p - q).abs()
        return gap / gap.sum() if bool(gap.any()) else p

    def upside_down_residual(p, q):
        """Your difference is upside down: [q − p]₊ is what the draft model proposes too often. What it leaves uncovered
        is [p − q]₊."""
        return residual(q, p)


@fresh("06.residual", "p and q in general")
def _(draw):
    p, q = draw.until(lambda: two(draw), lambda both: not torch.equal(*both))
    return dict(p=p, q=q)


@fresh("06.residual", "p and q are equal")
def _(draw):
    p = draw.probs()
    return dict(p=p, q=p * draw.choice([1, 1 + 2**-52]))


@fresh("06.residual", "equal for some tokens")
def _(draw):
    """Two tokens exchange some probability; all others have the same under p and q."""
    p = draw.probs(draw.whole(3, 3 + draw.size), positive=True)
    a, b = draw.sample(range(len(p)), 2)
    q, moved = p.clone(), draw.whole(1, round(100 * float(p[a]))) / 100
    q[a], q[b] = round(float(p[a]) - moved, 2), round(float(p[b]) + moved, 2)
    return dict(p=p, q=q)


@fresh("06.residual", "almost equal", weight=0.5, count=6)
def _(draw):
    """However little they differ, the residual is where p is larger, and only there."""
    p = draw.probs(draw.whole(2, 3 + draw.size), positive=True)
    a, b = draw.sample(range(len(p)), 2)
    q, moved = p.clone(), draw.whole(1, 9) * 10.0 ** -draw.whole(3, 4)
    q[a], q[b] = q[a] - moved, q[b] + moved
    return dict(p=p, q=q)


@fresh("06.residual", "nothing in common", weight=0.5, count=6)
def _(draw):
    n, cut = draw.whole(2, 4 + draw.size), 1
    cut = draw.whole(1, n - 1)
    p, q = (torch.zeros(n).double() for _ in range(2))
    p[:cut], q[cut:] = draw.probs(cut, positive=True), draw.probs(n - cut, positive=True)
    return dict(p=p, q=q) if draw.chance(0.5) else dict(p=p.flip(0), q=q.flip(0))


# ---- 06.sampler -----------------------------------------------------------------------------------------------------
def sampler(p, q, drafted, random, *, coin=accept_probability, replace=residual, late=0, bonus=-1):
    """As the lesson prints it, random numbers in the same order; with parts to exchange."""
    for i, d in enumerate(drafted):
        if not random() < coin(p[i + late], q[i], d):
            return [*drafted[:i], pick(replace(p[i + late], q[i]), random())]
    return [*drafted, pick(p[bonus], random())]


def emitted_runs(answer, p, q):
    """The exact distribution of all tokens of a cycle, the draft model's own samples included."""

    def cycle(random):
        drafted = [pick(row, random()) for row in q]
        given, give_back = lend(answer, "drafted", drafted)
        emitted = tokens(answer(p, q, given, random))
        give_back()
        return emitted

    return distribution_of(cycle)


SAMPLER = exercise(
    "06.sampler",
    reference=sampler,
    observe=emitted_runs,
    cases=[
        dict(p=rows([0.5, 0.5], [0.2, 0.8]), q=rows([0.75, 0.25])),
        dict(p=rows([0.3, 0.7]), q=torch.zeros(0, 2, dtype=torch.float64)),
        dict(p=rows([0.6, 0.4], [0.3, 0.7], [0.9, 0.1]), q=rows([0.25, 0.75], [0.5, 0.5])),
        dict(p=rows([0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]), q=rows([0.2, 0.2, 0.6], [0.6, 0.1, 0.3])),
    ],
)


@SAMPLER.wrong_solutions
class _:
    def accepts_everything(p, q, drafted, random):
        """You never reject, so the drafted part of your output follows the draft model's distribution, not the
        target's. Accept token i with accept_probability(p[i], q[i], drafted[i])."""
        return sampler(p, q, drafted, random, coin=WrongAccept.always)

    def resamples_from_p(p, q, drafted, random):
        """After a rejection you sample from p. Tokens that the draft model proposes get a second share that way. Sample
        the correction from the residual, norm([p − q]₊)."""
        return sampler(p, q, drafted, random, replace=WrongResidual.p_itself)

    def without_bonus(p, q, drafted, random):
        """When all draft tokens are accepted you stop without the bonus. The distribution stays right, but you throw
        away a token that the target has computed, and a cycle without draft tokens would emit nothing at all. After the
        loop, sample one more token from p[-1]."""
        out = sampler(p, q, drafted, random)
        return out[:-1] if len(out) > len(drafted) else out

    def goes_on_after_a_rejection(p, q, drafted, random):
        """You replace a rejected draft token and continue with the next one. The target computed the next position's p
        after the rejected token, not after your correction, so it no longer applies. The correction has to be the last
        token."""
        out = []
        for i, d in enumerate(drafted):
            accepted = random() < accept_probability(p[i], q[i], d)
            out.append(d if accepted else pick(residual(p[i], q[i]), random()))
        return [*out, pick(p[-1], random())]

    def p_one_late(p, q, drafted, random):
        """You judge draft token i by p[i + 1], which is the distribution of the token after it. Its own distribution is
        p[i], which the target computed before it processed the draft token."""
        return sampler(p, q, drafted, random, late=1)

    def bonus_from_the_last_draft(p, q, drafted, random):
        """Your bonus is sampled from the distribution at the position of the last draft token. There is one more
        distribution than there are draft tokens, and that one is for the bonus: p[-1]."""
        return sampler(p, q, drafted, random, bonus=max(0, len(drafted) - 1))

    def one_number_for_all(p, q, drafted, random):
        """You decide all positions with one random number. A number that was small enough once is likely to be small
        enough again, so acceptances are no longer independent. Call random() anew for each decision."""
        u = random()
        return sampler(p, q, drafted, random, coin=lambda *of: float(u < accept_probability(*of)))

    def corrects_with_the_rejecting_number(p, q, drafted, random):
        """You sample the correction with the number that rejected the draft token. That number is known to be large, so
        tokens at the end of the vocabulary are favoured. Call random() once more for the correction."""
        for i, d in enumerate(drafted):
            u = random()
            if not u < accept_probability(p[i], q[i], d):
                return [*drafted[:i], pick(residual(p[i], q[i]), u)]
        return [*drafted, pick(p[-1], random())]


def cycle(draw: Draw, k: int, n: int) -> dict:
    return dict(p=draw.rows(k + 1, n), q=draw.rows(k, n))


fresh("06.sampler", "one draft token", lambda draw: cycle(draw, 1, draw.whole(2, 2 + draw.size // 2)), count=5)


@fresh("06.sampler", "several draft tokens", count=5)
def _(draw):
    return cycle(draw, 2 if draw.size < 5 else 3, 2 if draw.size in (1, 5) else 3)


@fresh("06.sampler", "the bonus", count=5)
def _(draw):
    """No draft, or one that is always accepted."""
    k, n = draw.whole(0, 2), draw.whole(2, 3)
    p = draw.rows(k + 1, n)
    return dict(p=p, q=p[:k].clone())


# ---- 06.one_hot -----------------------------------------------------------------------------------------------------
def verify_one_hot(p, token, random):
    y = pick(p, random())
    return y == token, y


def verdicts(answer, p, token):
    """The exact distribution of (accepted, emitted token)."""

    def place(random):
        accepted, emitted = pair(answer(p, token, random), "whether the draft token is accepted and the emitted token")
        accepted = "accepted" if flag(accepted, "the first of your two results") else "rejected"
        return accepted, as_token(emitted, "the emitted token")

    return distribution_of(place)


as_token = token  # below, `token` is the drafted one


ONE_HOT = exercise(
    "06.one_hot",
    reference=verify_one_hot,
    observe=verdicts,
    cases=[
        dict(p=probs(0.75, 0.25), token=0),
        dict(p=probs(0.75, 0.25), token=1),
        dict(p=probs(0.2, 0.3, 0.5), token=0),
        dict(p=probs(0.2, 0.3, 0.5), token=2),
        dict(p=probs(0.4, 0.6, 0.0), token=2),
        dict(p=probs(0.0, 1.0), token=1),
    ],
)


@ONE_HOT.wrong_solutions
class _:
    def trusts_the_draft(p, token, random):
        """You always accept, so the output is whatever the lookup found, however unlikely the target thinks it is.
        Accept it with probability p(d) only."""
        return True, token

    def accepts_the_favourite(p, token, random):
        """You accept exactly when the draft token is the target's most likely token, which is the greedy rule. When
        sampling, the target emits d with probability p(d), and every other token with its own probability."""
        if token == int(p.argmax()):
            return True, token
        return False, pick(p, random())

    def draws_again(p, token, random):
        """After a rejection you sample from the whole of p, which still contains the rejected draft token. It has had
        its chance, with probability p(d). Remove it and renormalise, or emit the same y that was compared with it."""
        if random() < p[token]:
            return True, token
        return False, pick(p, random())

    def best_of_the_rest(p, token, random):
        """After a rejection you take the most likely other token. Sample among the other tokens instead, in the
        proportions of p."""
        if random() < p[token]:
            return True, token
        rest = p.clone()
        rest[token] = -1.0
        return False, int(rest.argmax())

    def uniform_rest(p, token, random):
        """After a rejection all other tokens are equally likely in your version. Keep the proportions that p gives
        them."""
        if random() < p[token]:
            return True, token
        return False, pick(torch.ones_like(p) - one_hot(token, like=p), random())


@fresh("06.one_hot", "any token")
def _(draw):
    p = draw.probs()
    return dict(p=p, token=draw.randrange(len(p)))


@fresh("06.one_hot", "certain or impossible", weight=0.5, count=6)
def _(draw):
    p = torch.zeros(draw.whole(2, 5)).double()
    at = draw.randrange(len(p))
    p[at] = 1.0
    return dict(p=p, token=draw.choice([at, draw.randrange(len(p))]))


# ---- 06.top_p -------------------------------------------------------------------------------------------------------
def nucleus(probs, top_p):
    """The smallest set of likeliest tokens with at least top_p of the mass, renormalised."""
    ordered, order = probs.sort(descending=True)
    kept = order[ordered.cumsum(0) - ordered < top_p]  # those that find less than top_p before them
    q = torch.zeros_like(probs)
    q[kept] = probs[kept]
    return q / q.sum()


def draft_top_p(probs, top_p, random):
    q = nucleus(probs, top_p)
    return pick(q, random()), q


def drafts(answer, probs, top_p):
    """The exact distribution of (token, reported q)."""

    def draft(random):
        drawn, q = pair(answer(probs, top_p, random), "the token and q")
        return as_token(drawn), tuple(tensor(q, "q, a probability for every token,", probs.shape).tolist())

    return distribution_of(draft)


TOP_P = exercise(
    "06.top_p",
    reference=draft_top_p,
    observe=drafts,
    cases=[
        dict(probs=probs(0.75, 0.25), top_p=0.5),
        dict(probs=probs(0.75, 0.25), top_p=0.9),
        dict(probs=probs(0.2, 0.5, 0.3), top_p=0.6),
        dict(probs=probs(0.1, 0.4, 0.2, 0.3), top_p=0.85),
        dict(probs=probs(0.1, 0.2, 0.7), top_p=1.0),
    ],
)


@TOP_P.wrong_solutions
class _:
    def reports_q_before_top_p(probs, top_p, random):
        """You sample after top-p but report q as it was before. The sampled token was more likely than this q says, so
        it is accepted too often, and the residual subtracts probability for tokens that could not be sampled. Report
        the truncated and renormalised distribution."""
        return pick(nucleus(probs, top_p), random()), probs

    def draws_before_top_p(probs, top_p, random):
        """You report the truncated distribution but sample from the full one. Sooner or later a token is sampled that
        has q = 0, and p(d)/q(d) divides by zero. Sample from the distribution that you report."""
        return pick(probs, random()), nucleus(probs, top_p)

    def truncated_not_normalised(probs, top_p, random):
        """Your q does not sum to 1. The remaining tokens take over the mass of those that were removed, so divide by
        the sum."""
        kept = probs * (nucleus(probs, top_p) > 0)
        return pick(kept, random()), kept

    def cuts_one_token_too_early(probs, top_p, random):
        """You drop the token with which the sum reaches top_p. The set has to reach top_p, so that token is its last
        member (and the most likely token always stays)."""
        order = probs.argsort(descending=True)
        keep = probs[order].cumsum(0) <= top_p
        keep[0] = True
        q = torch.zeros_like(probs)
        q[order[keep]] = probs[order[keep]]
        q = q / q.sum()
        return pick(q, random()), q

    def no_top_p_at_all(probs, top_p, random):
        """Your draft token is sampled without regard to top_p. The output would be exact, but truncation was asked for:
        the set has to end where its mass reaches top_p."""
        return pick(probs, random()), probs


def nucleus_case(draw: Draw, fits) -> dict:
    """No two tokens are equally likely, and no sum of the likeliest equals top_p: there rounding would decide."""

    def make():
        probs = draw.probs(draw.whole(2, 3 + draw.size), positive=True, distinct=True)
        return dict(probs=probs, top_p=draw.whole(1, 99) / 100 + 0.005)

    def wanted(case):
        ordered = case["probs"].sort(descending=True).values.cumsum(0)
        return fits(int((ordered < case["top_p"]).sum()) + 1, len(ordered))

    return draw.until(make, wanted)


fresh("06.top_p", "some are cut off", lambda draw: nucleus_case(draw, lambda kept, n: 1 <= kept < n), weight=2)
fresh("06.top_p", "several are kept", lambda draw: nucleus_case(draw, lambda kept, n: kept >= 2))


@fresh("06.top_p", "the mass is exactly top_p", weight=0.5)
def _(draw):
    """In parts of 16 or 32, whose sums are exact: the set ends with the token that reaches top_p."""
    total, n = draw.choice([16, 32]), draw.whole(2, 4)
    parts = draw.until(lambda: draw.parts(n, total, least=1), lambda found: len(set(found)) == n)
    kept = sum(sorted(parts, reverse=True)[: draw.whole(1, n - 1)])
    return dict(probs=torch.tensor(parts, dtype=torch.float64) / total, top_p=kept / total)


fresh("06.top_p", "one token, or all", lambda draw: nucleus_case(draw, lambda kept, n: kept in (1, n)), weight=0.5)
