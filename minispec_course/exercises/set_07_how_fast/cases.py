"""Set 07, how fast: the tokens of a cycle, its speed-up, the best draft length, and where speculation begins to pay."""

import math

from minispec import theory
from minispec_course import formulas

from ..exercise import Complaint, exercise
from ..fresh import Draw, fresh
from ..returned import number


# ---- 07.expected_tokens ---------------------------------------------------------------------------------------------
def observe_tokens(answer, alpha, k):
    try:
        found = number(answer(alpha, k))
    except ZeroDivisionError:
        if alpha != 1:
            raise
        found = math.nan
    if alpha == 1 and math.isnan(found):  # no mutant: whatever else is wrong with the answer is named first
        raise Complaint(
            "at α = 1 your quotient is 0 / 0. Every draft token is accepted, so a cycle emits as many tokens as it "
            "can. Return that number, or sum the series itself, which needs no special case."
        )
    return found


EXPECTED_TOKENS = exercise(
    "07.expected_tokens",
    reference=theory.expected_tokens,
    observe=observe_tokens,
    cases=[  # α = 1 last: an answer that fails there only has nothing else wrong
        dict(alpha=0.5, k=1),
        dict(alpha=0.0, k=2),
        dict(alpha=0.5, k=2),
        dict(alpha=0.4, k=0),
        dict(alpha=0.7, k=4),
        dict(alpha=0.95, k=8),
        dict(alpha=1.0, k=4),
    ],
)


@EXPECTED_TOKENS.wrong_solutions
class _:
    def alpha_times_k(alpha, k):
        """You take α · k draft tokens as accepted. The first rejection ends the cycle and the draft tokens after it are
        lost, and every cycle also emits one token of the target's own. Add up the probabilities that at least 1, 2, …
        tokens are emitted."""
        return alpha * k

    def alpha_times_k_plus_one(alpha, k):
        """You count the target's own token, but take α · k draft tokens as accepted. The first rejection ends the
        cycle, so draft token i counts only if it and all before it were right, which has probability α^i."""
        return alpha * k + 1

    def forgets_the_one(alpha, k):
        """You count only accepted draft tokens. Every cycle emits one more token, the correction after a rejection or
        the bonus if all were right, so even α = 0 gives one token per cycle. Add 1."""
        return theory.expected_tokens(alpha, k) - 1

    def k_in_the_exponent(alpha, k):
        """Your sum has k terms and needs k + 1: from i = 0, the token that is always emitted, to i = k, the bonus after
        k accepted draft tokens. The exponent in the quotient is k + 1."""
        return theory.expected_tokens(alpha, k - 1) if k else 0.0

    def endless_draft(alpha, k):
        """You compute 1 / (1 − α), the value for an infinitely long draft. With k draft tokens the sum has only k + 1
        terms and stays below that ceiling."""
        return formulas.token_ceiling(alpha)

    def k_at_one(alpha, k):
        """At α = 1 you return k. All k draft tokens are accepted there and the bonus is emitted as well, so return k +
        1."""
        return k if alpha == 1 else theory.expected_tokens(alpha, k)


def share(draw: Draw) -> float:
    return draw.choice([draw.whole(1, 19) / 20, draw.whole(1, 19) / 20, draw.whole(1, 19) / 20, 0.995, 0.9995, 0.003])


@fresh("07.expected_tokens", "0 < α < 1", weight=2)
def _(draw):
    return dict(alpha=share(draw), k=draw.whole(0, 2 + 2 * draw.size))


fresh(
    "07.expected_tokens", "α = 0", lambda draw: dict(alpha=0.0, k=draw.whole(0, 3 + 2 * draw.size)), weight=0.5, count=5
)
fresh("07.expected_tokens", "α = 1", lambda draw: dict(alpha=1.0, k=draw.whole(1, 3 + 2 * draw.size)), count=6)


# ---- 07.position_acceptance -----------------------------------------------------------------------------------------
BY_POSITION = exercise(
    "07.position_acceptance",
    reference=theory.expected_tokens_by_position,
    observe=lambda answer, betas: number(answer(betas)),
    cases=[
        dict(betas=[0.5]),
        dict(betas=[0.5, 0.5]),
        dict(betas=[0.2, 1.0]),
        dict(betas=[0.9, 0.7, 0.5]),
        dict(betas=[0.5, 0.7, 0.9]),
        dict(betas=[1.0, 0.0, 1.0, 0.8]),
    ],
)


@BY_POSITION.wrong_solutions
class _:
    def sums_the_betas(betas):
        """You add the β themselves, as if every cycle reached position i. β_i refers only to the cycles in which all
        draft tokens before it were accepted, so multiply it by the probability of getting there."""
        return 1 + sum(betas)

    def forgets_the_one_by_position(betas):
        """You count only accepted draft tokens. Every cycle also emits the correction or the bonus, so the sum begins
        with 1."""
        return theory.expected_tokens_by_position(betas) - 1

    def averages_first(betas):
        """You average the β and use the formula for one α. An early rejection costs more tokens than a late one, so it
        matters where the high values are. Multiply the β in their order and add up the products."""
        return theory.expected_tokens(sum(betas) / len(betas), len(betas))

    def leaves_out_the_last(betas):
        """Your sum ends one draft token early. The last term is the product of all β, for the cycles in which
        everything was accepted, and it belongs to the sum."""
        return theory.expected_tokens_by_position(betas[:-1])

    def only_full_cycles(betas):
        """You count draft tokens only in cycles where all are accepted. A cycle that ends early keeps the draft tokens
        before the rejection, so add one product for each position."""
        return 1 + len(betas) * math.prod(betas)


@fresh("07.position_acceptance", "any betas", weight=2)
def _(draw):
    return dict(betas=[share(draw) for _ in range(draw.whole(1, 2 + draw.size))])


@fresh("07.position_acceptance", "zeros and ones among them")
def _(draw):
    return dict(betas=[draw.choice([0.0, 1.0, share(draw)]) for _ in range(draw.whole(1, 3 + draw.size))])


# ---- 07.speedup -----------------------------------------------------------------------------------------------------
def curves(answer):
    """The learner's speed-up over k, a curve for each α, beside plain decoding."""
    import plotly.graph_objects as go

    from ...viz.style import GREY, PALETTE, TEMPLATE

    c, v, lengths = 0.1, 1.0, list(range(1, 13))
    figure = go.Figure(layout=dict(template=TEMPLATE, title="Your speed-up if drafting a token costs c = 0.1 (v = 1)"))
    for alpha, colour in zip((0.9, 0.8, 0.6, 0.3), PALETTE, strict=False):
        heights = [round(float(number(answer(alpha, k, c, v))), 4) for k in lengths]
        figure.add_scatter(name=f"α = {alpha}", x=lengths, y=heights, mode="lines+markers", line_color=colour)
    label = dict(annotation_text="plain decoding", annotation_position="bottom left")
    figure.add_hline(y=1, line_dash="dash", line_color=GREY, **label)
    return figure.update_layout(xaxis_title="k, draft tokens per cycle", yaxis_title="speed-up")


SPEEDUP = exercise(
    "07.speedup",
    reference=theory.speedup,
    observe=lambda answer, **case: number(answer(*case.values())),
    picture=curves,
    cases=[
        dict(alpha=0.0, k=1, c=0.0, v=1.0),
        dict(alpha=0.5, k=1, c=0.25, v=1.0),
        dict(alpha=0.5, k=1, c=0.0, v=1.5),
        dict(alpha=0.7, k=4, c=0.1, v=1.0),
        dict(alpha=0.7, k=4, c=0.1, v=2.5),
        dict(alpha=1.0, k=3, c=0.05, v=1.25),
    ],
)


@SPEEDUP.wrong_solutions
class _:
    def both_at_once(alpha, k, c, v):
        """You take the longer of drafting and verifying, as if they ran at the same time. The target can only verify
        what has been drafted, so one follows the other: add the two."""
        return theory.expected_tokens(alpha, k) / max(k * c, v)

    def v_is_one(alpha, k, c, v):
        """You assume that verification costs one plain pass (v = 1). A pass over k + 1 tokens can cost more, and the
        argument v says how much, so use it in the denominator."""
        return theory.speedup(alpha, k, c)

    def drafting_once_a_cycle(alpha, k, c, v):
        """You charge c once per cycle, but c is the cost of drafting one token, and k are drafted one after the other,
        so drafting costs k · c."""
        return theory.expected_tokens(alpha, k) / (c + v)

    def drafting_is_free(alpha, k, c, v):
        """You leave out the time for drafting, which is k tokens at c each. Add it to the cost of the cycle."""
        return theory.expected_tokens(alpha, k) / v

    def verifies_token_by_token(alpha, k, c, v):
        """You charge v for each of the k + 1 verified tokens. They are verified in a single forward pass, which is
        where the gain comes from, and v is the cost of that whole pass, so charge it once."""
        return theory.expected_tokens(alpha, k) / (k * c + (k + 1) * v)

    def forgets_the_extra_token(alpha, k, c, v):
        """You count only accepted draft tokens. The cycle also emits the target's own token, the correction or the
        bonus, so use all of E[N]."""
        return (theory.expected_tokens(alpha, k) - 1) / (k * c + v)

    def one_draft_too_many(alpha, k, c, v):
        """You charge k + 1 draft tokens, but the last token of the cycle is the target's own, so only k are drafted."""
        return theory.expected_tokens(alpha, k) / ((k + 1) * c + v)

    def upside_down(alpha, k, c, v):
        """Your quotient is upside down: it is the time per token relative to plain decoding. A speed-up is plain time
        divided by speculative time, and exceeds 1 if speculation gains."""
        return 1 / theory.speedup(alpha, k, c, v)


def costs(draw: Draw) -> dict:
    return dict(c=draw.whole(0, 12) / 20, v=draw.whole(10, 60) / 20)


@fresh("07.speedup", "0 < α < 1", weight=2)
def _(draw):
    return dict(alpha=share(draw), k=draw.whole(1, 2 + 2 * draw.size), **costs(draw))


@fresh("07.speedup", "α = 0 and α = 1", weight=0.5, count=6)
def _(draw):
    return dict(alpha=draw.choice([0.0, 1.0]), k=draw.whole(1, 8), **costs(draw))


# ---- 07.best_k ------------------------------------------------------------------------------------------------------
def best_k(alpha, c, v):
    return theory.best_k(alpha, c, lambda k: v[k], longest=len(v) - 1)


def gains(alpha, c, v):
    """The speed-up for k = 0 … longest."""
    return [1.0] + [theory.speedup(alpha, k, c, v[k]) for k in range(1, len(v))]


def argmax(values):
    return max(range(len(values)), key=values.__getitem__)


BEST_K = exercise(
    "07.best_k",
    reference=best_k,
    observe=lambda answer, **case: number(answer(*case.values())),
    cases=[
        dict(alpha=0.5, c=0.1, v=[1.0, 1.0]),
        dict(alpha=0.5, c=0.5, v=[1.0, 1.0]),
        dict(alpha=0.5, c=0.1, v=[1.0, 1.0, 2.0]),
        dict(alpha=0.6, c=0.1, v=[1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        dict(alpha=0.3, c=0.4, v=[1.0, 1.0, 1.1, 1.2, 1.3]),
        dict(alpha=0.9, c=0.02, v=[1.0, 1.0, 1.5, 1.5, 1.5, 1.5, 1.5, 3.0]),
        dict(alpha=0.8, c=0.1, v=[1.0, 1.05, 1.1, 1.15, 1.2, 1.6, 2.0, 2.4, 2.8]),
        dict(alpha=0.8, c=0.1, v=[1.0] * 12),
    ],
)


@BEST_K.wrong_solutions
class _:
    def never_zero(alpha, c, v):
        """You never answer 0. If no k has a speed-up above 1, plain decoding is best, and the answer is 0."""
        return 1 + argmax(gains(alpha, c, v)[1:])

    def most_tokens(alpha, c, v):
        """You take the longest draft, which gives the most tokens per cycle. But each further draft token adds less and
        costs as much as the first. Compare the speed-ups instead."""
        return len(v) - 1

    def flat_v(alpha, c, v):
        """You take v = 1 for every k. Verifying k draft tokens costs v[k], so look it up for each k that you try."""
        return best_k(alpha, c, [1.0] * len(v))

    def longest_that_gains(alpha, c, v):
        """You take the longest draft that still gains, where the gain may be nearly gone. The best k is the one with
        the largest speed-up."""
        return max((k for k, gain in enumerate(gains(alpha, c, v)) if gain > 1), default=0)

    def first_peak(alpha, c, v):
        """You stop at the first k that is no better than the one before. The cost of verification comes in steps, so
        the speed-up may fall and rise again, and every k has to be tried."""
        each = gains(alpha, c, v)
        return next((k for k in range(len(v) - 1) if each[k + 1] <= each[k]), len(v) - 1)

    def rule_for_a_constant_v(alpha, c, v):
        """You draft another token as long as α^(k+1)/c exceeds the speed-up so far. That rule takes v to be the same
        for every k. Here v may jump, so try all lengths."""
        each = gains(alpha, c, v)
        return next((k for k in range(len(v) - 1) if alpha ** (k + 1) <= c * each[k]), len(v) - 1)

    def v_of_one_less(alpha, c, v):
        """You look up v one entry too early. v[k] is the cost of verifying k draft tokens, and v[0] = 1 is for none, so
        no shift is needed."""
        return best_k(alpha, c, [1.0, *v[:-1]])


def clear(case: dict) -> bool:
    """No two draft lengths are almost equally good: there rounding would decide."""
    best, *rest = sorted(gains(**case), reverse=True)
    return not rest or best - rest[0] > 1e-4


def steps(draw: Draw, longest: int) -> list[float]:
    """What verification costs: it grows, often in steps, and sometimes falls a little."""
    v = [1.0]
    for _ in range(longest):
        v.append(max(0.5, round(v[-1] + draw.choice([0, 0, 0, 0.05, 0.1, 0.5, 1.0, -0.1]), 2)))
    return v


def length_case(draw: Draw, fits) -> dict:
    def make():
        v = steps(draw, draw.whole(1, 3 + 2 * draw.size))
        return dict(alpha=share(draw), c=draw.whole(0, 12) / 20, v=v)

    return draw.until(
        make, lambda case: clear(case) and fits(gains(**case).index(max(gains(**case))), len(case["v"]) - 1)
    )


@fresh("07.best_k", "a best length in between", weight=2)
def _(draw):
    return length_case(draw, lambda best, longest: 0 < best < longest or longest == 1)


fresh("07.best_k", "nothing gains", lambda draw: length_case(draw, lambda best, longest: best == 0))


@fresh("07.best_k", "the longest is the best", weight=0.5)
def _(draw):
    return length_case(draw, lambda best, longest: best == longest)


@fresh("07.best_k", "almost equally good", weight=0.5, count=8)
def _(draw):
    """The best is ahead by less than one percent: no reason to round."""

    def make():
        return dict(alpha=share(draw), c=draw.whole(0, 12) / 20, v=steps(draw, draw.whole(2, 4 + draw.size)))

    def close(case):
        best, second, *_ = sorted(gains(**case), reverse=True)
        return 1e-4 < best - second < 0.005

    return draw.until(make, close)


@fresh("07.best_k", "equally good", weight=0.5, count=6)
def _(draw):
    """Drafts that are never accepted and cost nothing are as good as none."""
    return dict(alpha=0.0, c=0.0, v=[1.0] * draw.whole(2, 6))


# ---- 07.when_it_pays ------------------------------------------------------------------------------------------------
def root(cost, k, tokens=theory.expected_tokens):
    """The α with tokens(α, k) = cost; infinite if not even α = 1 yields as many."""
    if tokens(1.0, k) < cost:
        return math.inf
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if tokens(middle, k) >= cost else (middle, high)
    return high


WHEN_IT_PAYS = exercise(
    "07.when_it_pays",
    reference=theory.break_even,
    observe=lambda answer, **case: number(answer(*case.values())),
    cases=[
        dict(k=1, c=0.1, v=1.0),
        dict(k=1, c=0.2, v=1.1),
        dict(k=2, c=0.1, v=1.0),
        dict(k=4, c=0.1, v=1.0),
        dict(k=4, c=0.02, v=1.5),
        dict(k=4, c=0.1, v=2.9),
        dict(k=1, c=0.5, v=1.8),
        dict(k=2, c=0.3, v=3.0),
    ],
)


@WHEN_IT_PAYS.wrong_solutions
class _:
    def always_c(k, c, v):
        """You answer c, which is right for k = 1 and v = 1, and only there: later draft tokens are accepted less often
        but cost as much, and a more expensive verification has to pay for itself as well. The equation to solve is E[N]
        = k·c + v."""
        return c

    def forgets_v(k, c, v):
        """You assume v = 1, but verification that costs more than a plain pass has to pay for itself first. Solve E[N]
        = k·c + v."""
        return theory.break_even(k, c)

    def drafts_once_a_cycle(k, c, v):
        """You charge c once per cycle, but k draft tokens cost k·c, which belongs on the right-hand side of the
        equation."""
        return root(c + v, k)

    def one_instead_of_never(k, c, v):
        """You answer 1 when not even α = 1 pays. At α = 1 the cycle emits k + 1 tokens. If it costs more than that, no
        acceptance is enough and the answer is math.inf."""
        return min(1.0, theory.break_even(k, c, v))


def cost_case(draw: Draw, fits) -> dict:
    def make():
        return dict(k=draw.whole(1, 2 + draw.size), c=draw.whole(0, 20) / 20, v=draw.whole(20, 60) / 20)

    return draw.until(make, lambda case: fits(case["k"] * case["c"] + case["v"], case["k"]))


@fresh("07.when_it_pays", "an α between 0 and 1", weight=2)
def _(draw):
    return cost_case(draw, lambda cost, k: 1.01 < cost < k + 0.99)


fresh("07.when_it_pays", "it never pays", lambda draw: cost_case(draw, lambda cost, k: cost > k + 1.01))


@fresh("07.when_it_pays", "only just, at α = 1", weight=0.5, count=5)
def _(draw):
    """The cycle costs exactly k + 1. In quarters, so that sums are exact."""
    k, c = draw.whole(1, 4), draw.choice([0.25, 0.5, 0.75, 1.0])
    return dict(k=k, c=c, v=k + 1 - k * c)


@fresh("07.when_it_pays", "drafting is free", weight=0.5, count=6)
def _(draw):
    return dict(k=draw.whole(1, 8), c=0.0, v=draw.choice([1.0, draw.whole(21, 39) / 20]))
