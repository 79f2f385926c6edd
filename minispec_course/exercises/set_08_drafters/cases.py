"""Set 08, drafters: prompt lookup, a walk down the counts, an early exit, and a drafter for the drafter."""

from collections import Counter

import torch
import torch.nn.functional as F

from minispec.drafters.ngram import Text, matches
from minispec.drafters.suffix import walk
from minispec.verify import accept_probability, one_hot, pick, residual

from ..exercise import decimals, distribution_of, exercise, probs
from ..fresh import Draw, fresh
from ..returned import number, pair, tensor, token, tokens


# ---- 08.ngram -------------------------------------------------------------------------------------------------------
def longest_match(text, most):
    """Where the longest known suffix, of at most so many tokens, occurs: (text, position after it), latest last."""
    index = Text()
    index.update(text)
    found = matches([index], text, most) if text else []
    return found[0][1] if found else []


def lookup(text, n_max, k):
    found = longest_match(text, n_max)
    return text[found[-1][1] :][:k] if found else []


def places_after(text, n, last=None):
    """Where a token follows an earlier occurrence of the last n tokens, earliest first."""
    return [end for end in range(n, last or len(text)) if text[end - n : end] == text[-n:]]


def flawed_lookup(text, n_max, k, *, lengths=None, choose=lambda places, text, n: places[-1], last=None):
    """The lookup, with parts to exchange: which lengths are tried, which occurrence counts."""
    for n in lengths or range(min(n_max, len(text)), 0, -1):
        if places := places_after(text, n, last(n) if last else None):
            start = choose(places, text, n)
            return text[start : start + k]
    return []


NGRAM = exercise(
    "08.ngram",
    reference=lookup,
    observe=lambda answer, text, n_max, k: tokens(answer(text, n_max, k)),
    cases=[
        dict(text=[5], n_max=2, k=2),
        dict(text=[5, 6, 5], n_max=1, k=1),
        dict(text=[5, 6, 5], n_max=2, k=3),
        dict(text=[5, 6, 5, 7, 5], n_max=1, k=1),
        dict(text=[1, 2, 3, 9, 2, 4, 1, 2], n_max=2, k=2),
        dict(text=[4, 4, 4, 4], n_max=2, k=3),
        dict(text=[5, 6, 5, 6, 5, 7, 5], n_max=1, k=1),
        dict(text=[1, 2, 3, 7, 2, 3, 8, 9, 1, 2, 3], n_max=2, k=2),
        dict(text=[1, 2, 3, 7, 2, 3, 8, 9, 1, 2, 3], n_max=3, k=5),
    ],
)


@NGRAM.wrong_solutions
class _:
    def earliest_occurrence(text, n_max, k):
        """You take the earliest occurrence, but the latest one is the better guess: a sequence tends to return to its
        latest subject. Search from the end towards the beginning, and stop at the first match."""
        return flawed_lookup(text, n_max, k, choose=lambda places, text, n: places[0])

    def shortest_suffix_first(text, n_max, k):
        """You begin with the shortest suffix. A single token matches almost anywhere, whereas three tokens hardly ever
        match by chance. Try the longest suffix first, and shorten it only while nothing is found."""
        return flawed_lookup(text, n_max, k, lengths=range(1, min(n_max, len(text)) + 1))

    def only_the_longest(text, n_max, k):
        """You try n_max tokens only. If those never occurred before, a shorter suffix may have. Go down to a single
        token before you return an empty draft."""
        return flawed_lookup(text, n_max, k, lengths=[n_max] if n_max <= len(text) else [len(text)])

    def finds_itself(text, n_max, k):
        """You find the suffix itself at the end of the sequence, where no token follows. An occurrence counts only if a
        token comes after it, so let the search end one token earlier."""
        return []

    def drafts_the_match(text, n_max, k):
        """Your draft begins with the matching tokens, which the sequence ends with anyway. Start it one match length
        later, at the token that followed the occurrence."""
        return flawed_lookup(text, n_max, k, choose=lambda places, text, n: places[-1] - n)

    def without_overlap(text, n_max, k):
        """You skip occurrences that overlap the suffix, but they count. In 4 4 4 the first two tokens are an earlier
        occurrence of the last two, and what follows them is 4. Let the search run up to the last token."""
        return flawed_lookup(text, n_max, k, last=lambda n: len(text) - n + 1)

    def no_longest(text, n_max, k):
        """You match more than n_max tokens if you can. That is not a bad idea, but it was not asked for. Limit the
        suffix to n_max tokens, and among its occurrences take the latest."""
        return lookup(text, len(text), k)


def repeating(draw: Draw, least: int = 1) -> list[int]:
    """A sequence of few different tokens, so that much of it occurs more than once."""
    tokens = draw.choice([[0, 1], [0, 1, 2], [1, 12, 2], [1, 11, 111]])  # 1, 12 is not 11, 2
    return [draw.choice(tokens) for _ in range(draw.whole(least, 4 + 3 * draw.size))]


def lookup_case(draw: Draw) -> dict:
    return dict(text=repeating(draw), n_max=draw.whole(1, 1 + draw.size), k=draw.whole(1, 2 + draw.size))


@fresh("08.ngram", "longest suffix, latest occurrence", weight=2, count=15)
def _(draw):
    def has_a_choice(case):
        return any(len(places_after(case["text"], n)) > 1 for n in range(1, case["n_max"] + 1))

    return draw.until(lambda: lookup_case(draw), has_a_choice)


@fresh("08.ngram", "an occurrence that overlaps the suffix", weight=0.5, count=5)
def _(draw):
    """7 5 5 5: the suffix 5 5 occurs one position earlier, too."""
    run, *others = draw.sample(range(1, 9), 4)
    text = [*others[: draw.whole(0, 3)], *[run] * draw.whole(2, 3 + draw.size)]
    return dict(text=text, n_max=draw.whole(1, 4), k=draw.whole(1, 3))


@fresh("08.ngram", "tokens of several digits", weight=0.5, count=6)
def _(draw):
    """12 and then 3 is not 1 and then 23, whatever it looks like side by side."""
    a, b, c = draw.sample(range(1, 10), 3)
    before = [draw.whole(30, 40) for _ in range(draw.whole(0, 2))]
    text = [*before, a, 10 * b + c, draw.whole(30, 40), 10 * a + b, c]
    return dict(text=text, n_max=draw.whole(2, 4), k=draw.whole(1, 3))


@fresh("08.ngram", "fewer tokens follow than are wanted")
def _(draw):
    return draw.until(lambda: lookup_case(draw), lambda case: 0 < len(lookup(**case)) < case["k"])


@fresh("08.ngram", "nothing to find, or hardly any text", weight=0.5)
def _(draw):
    if draw.chance(0.5):
        return dict(text=repeating(draw)[: draw.whole(1, 3)], n_max=draw.whole(1, 5), k=draw.whole(1, 4))
    text = draw.sample(range(20), draw.whole(1, 6))
    return dict(text=text, n_max=draw.whole(1, 3), k=draw.whole(1, 3))


# ---- 08.suffix_walk -------------------------------------------------------------------------------------------------
def suffix_walk(text, k, floor):
    return walk(longest_match(text, len(text)), k, floor)


def flawed_walk(
    text, k, floor, *, longest=None, best=None, total=None, stop="before", joint=True, forget=False, score=sum
):
    """The walk, with parts to exchange."""
    lengths = [m for m in range(1, len(text)) if places_after(text, m)]
    if not lengths:
        return [], 0.0
    string, drafted, p, chances = text[-(longest or max(lengths)) :], [], 1.0, []
    while len(drafted) < k:
        n = len(string)
        places = [end for end in range(n, len(text)) if text[end - n : end] == string]
        if not places:
            break
        counts = Counter(text[place] for place in places)
        latest, first = ({text[place]: place for place in some} for some in (places, places[::-1]))
        choose = best or (lambda x, counts, latest, first: (counts[x], latest[x]))
        x = max(counts, key=lambda x: choose(x, counts, latest, first))
        at_end = text[len(text) - n :] == string
        chance = counts[x] / (len(places) + (at_end if total else 0))
        p = p * chance if joint else chance
        if p < floor and stop == "before":
            break
        drafted, string = [*drafted, x], [*string * (not forget), x]
        chances.append(p)
        if p < floor and stop == "after":
            break
    return drafted, score(chances)


def observe_walk(answer, text, k, floor):
    drafted, score = pair(answer(text, k, floor), "the drafted tokens and their score")
    return {"drafted": tokens(drafted, "the draft"), "score": float(number(score, "the score"))}


SUFFIX_WALK = exercise(
    "08.suffix_walk",
    reference=suffix_walk,
    observe=observe_walk,
    cases=[
        dict(text=[5, 6], k=2, floor=0.1),
        dict(text=[5, 6, 5], k=1, floor=0.1),
        dict(text=[5, 6, 5, 7, 5], k=1, floor=0.1),
        dict(text=[5, 6, 5, 6, 5, 7, 5], k=1, floor=0.1),
        dict(text=[1, 2, 3, 9, 2, 4, 1, 2], k=2, floor=0.1),
        dict(text=[1, 2, 1, 3, 1, 2, 4, 1, 2, 5, 1], k=2, floor=0.1),
        dict(text=[1, 2, 1, 3, 1, 2, 4, 1, 2, 5, 1], k=3, floor=0.3),
        dict(text=[8, 1, 2, 3, 8, 1, 2, 4, 8, 1, 2, 3, 7, 2, 4, 2, 4, 8, 1, 2], k=4, floor=0.5),
        dict(text=[3, 1, 7, 3, 1, 7, 3, 2, 7, 3, 1, 4, 3], k=4, floor=0.2),
    ],
)


@SUFFIX_WALK.wrong_solutions
class _:
    def walks_from_one_token(text, k, floor):
        """You start from the last token alone. The longest suffix that occurred before is more informative, so look for
        that one first and start from it."""
        return flawed_walk(text, k, floor, longest=1)

    def follows_the_latest(text, k, floor):
        """You follow the latest occurrence, which is what prompt lookup does. Here all occurrences are counted and the
        most frequent continuation wins; only among equally frequent ones does the latest decide."""
        return flawed_walk(text, k, floor, best=lambda x, counts, latest, first: latest[x])

    def smallest_of_equals(text, k, floor):
        """Among equally frequent tokens you take the one with the smallest number. A token's number says nothing about
        it; take the one that was seen last."""
        return flawed_walk(text, k, floor, best=lambda x, counts, latest, first: (counts[x], -x))

    def earliest_of_equals(text, k, floor):
        """Among equally frequent tokens you take the one that was seen first. Take the one seen last, because a
        sequence tends to return to its latest subject."""
        return flawed_walk(text, k, floor, best=lambda x, counts, latest, first: (counts[x], -first[x]))

    def counts_the_end(text, k, floor):
        """You divide by all occurrences of the string, including the one at the end of the sequence. Nothing has
        followed that one yet, so it says nothing about the next token. Divide by the number of occurrences that have a
        next token."""
        return flawed_walk(text, k, floor, total=True)

    def each_step_alone(text, k, floor):
        """You use the fraction of each step by itself. A draft token is accepted only if all before it are, so the
        fractions multiply. P(x₁ … x_i) is a product; compare that product with the floor, and add it to the score."""
        return flawed_walk(text, k, floor, joint=False)

    def forgets_the_string(text, k, floor):
        """After the first token you count only what follows the token just drafted. The whole string that led there
        still matters: append the token to the string, and search for the longer string."""
        return flawed_walk(text, k, floor, forget=True)

    def keeps_the_one_below(text, k, floor):
        """You notice that P has fallen below the floor only after you have drafted the token. That token is the
        improbable one: compare first, then append."""
        return flawed_walk(text, k, floor, stop="after")

    def last_chance_as_score(text, k, floor):
        """Your score is the probability that the whole draft is accepted. The score should be the expected number of
        accepted tokens: the sum of P(x₁ … x_i) over i, because token i is kept exactly when all tokens up to it are
        accepted."""
        return flawed_walk(text, k, floor, score=lambda chances: chances[-1] if chances else 0.0)


def walk_case(draw: Draw, floors: list[float]) -> dict:
    return dict(text=repeating(draw, 2), k=draw.whole(1, 1 + draw.size), floor=draw.choice(floors))


@fresh("08.suffix_walk", "the most frequent continuation", weight=2)
def _(draw):
    return draw.until(lambda: walk_case(draw, [0.03, 0.07]), lambda case: len(suffix_walk(**case)[0]) >= 2)


@fresh("08.suffix_walk", "equally frequent: the one seen last")
def _(draw):
    def tie(case):
        text = case["text"]
        longest = max((n for n in range(1, len(text)) if places_after(text, n)), default=0)
        after = [text[place] for place in places_after(text, longest)] if longest else []
        counts = sorted((after.count(x) for x in set(after)), reverse=True)
        return len(counts) > 1 and counts[0] == counts[1]

    return draw.until(lambda: walk_case(draw, [0.03, 0.07]), tie)


@fresh("08.suffix_walk", "the floor")
def _(draw):
    """Floors that are no simple fraction: no probability is equal to one of them, up to rounding."""

    def stopped(case):
        return len(suffix_walk(**case)[0]) < len(suffix_walk(case["text"], case["k"], 0.0)[0])

    return draw.until(lambda: walk_case(draw, [0.13, 0.23, 0.31, 0.37, 0.47, 0.57, 0.71, 0.97]), stopped)


@fresh("08.suffix_walk", "exactly at the floor", weight=0.5, count=6)
def _(draw):
    """P does not fall below the floor where it equals it. Only halves and quarters, which are exact."""

    def on_the_edge(case):
        whole = suffix_walk(case["text"], case["k"], 0.0)[1]
        drafted, above = suffix_walk(**case)[0], suffix_walk(case["text"], case["k"], case["floor"] + 1e-9)[0]
        return (64 * whole).is_integer() and drafted != above

    return draw.until(lambda: walk_case(draw, [0.25, 0.5, 1.0]), on_the_edge)


@fresh("08.suffix_walk", "nothing to draft", weight=0.5, count=6)
def _(draw):
    text = draw.choice([draw.sample(range(20), draw.whole(1, 6)), [3] * draw.whole(1, 5)])
    return dict(text=text, k=draw.whole(1, 4), floor=draw.choice([0.0, 0.13, 1.0]))


# ---- 08.early_exit --------------------------------------------------------------------------------------------------
def exit_logits(streams, n, norm_weight, eps, head):
    return F.rms_norm(streams[n], streams.shape[-1:], norm_weight, eps) @ head.T


def exit_case(layers, count, d, vocabulary, n, seed, eps=0.0):
    streams = decimals(layers + 1, count, d, seed=seed) * torch.arange(1, layers + 2)[:, None, None]
    weight = 1 + decimals(d, seed=seed + 1) / 4
    return dict(streams=streams, n=n, norm_weight=weight, eps=eps, head=decimals(vocabulary, d, seed=seed + 2))


EARLY_EXIT = exercise(
    "08.early_exit",
    reference=exit_logits,
    cases=[
        exit_case(2, 1, 2, 3, n=1, seed=40),
        exit_case(2, 1, 2, 3, n=2, seed=43),
        exit_case(3, 2, 4, 3, n=1, seed=46),
        exit_case(4, 3, 4, 6, n=2, seed=49, eps=0.5),
    ],
)


def exit_with(streams, n, norm_weight, eps, head, *, norm):
    return norm(streams[n], eps) * norm_weight @ head.T


def rms(x, eps):
    return F.rms_norm(x, x.shape[-1:], eps=eps)


@EARLY_EXIT.wrong_solutions
class _:
    def without_norm(streams, n, norm_weight, eps, head):
        """You leave out the final norm. The residual stream grows from layer to layer, and the LM head was trained on
        normalised states, so the argmax may survive but the distribution does not. Apply RMSNorm before the head."""
        return streams[n] @ head.T

    def norm_without_weight(streams, n, norm_weight, eps, head):
        """You normalise the stream but leave out norm_weight. Some dimensions matter more to the head than others;
        multiply by norm_weight after dividing."""
        return rms(streams[n], eps) @ head.T

    def layer_norm(streams, n, norm_weight, eps, head):
        """You subtract the mean, which is LayerNorm. RMSNorm leaves the mean alone and only divides by the root of the
        mean square."""
        return exit_with(streams, n, norm_weight, eps, head, norm=lambda x, eps: F.layer_norm(x, x.shape[-1:], eps=eps))

    def sum_of_squares(streams, n, norm_weight, eps, head):
        """You divide by the length of the vector, the root of the *sum* of squares. RMSNorm uses the mean instead, so
        that the entries come out around 1 for any d. Replace sum by mean."""
        return exit_with(
            streams, n, norm_weight, eps, head, norm=lambda x, eps: x / (x.pow(2).sum(-1, keepdim=True) + eps).sqrt()
        )

    def eps_outside(streams, n, norm_weight, eps, head):
        """You add eps to the root, but it belongs inside: √(mean + eps). With the usual small eps, the difference is
        invisible until a vector is very small as well."""
        return exit_with(
            streams, n, norm_weight, eps, head, norm=lambda x, eps: x / (x.pow(2).mean(-1, keepdim=True).sqrt() + eps)
        )

    def norm_over_tokens(streams, n, norm_weight, eps, head):
        """You also take the mean over the tokens. Normalise every token by itself, over its own d numbers (dim=-1,
        keepdim=True); otherwise its logits depend on which other tokens are in the pass."""
        return exit_with(streams, n, norm_weight, eps, head, norm=lambda x, eps: x / (x.pow(2).mean() + eps).sqrt())

    def one_layer_less(streams, n, norm_weight, eps, head):
        """You take the stream one layer too early. streams[0] is the embedding, before any layer, so after n layers the
        stream is streams[n]."""
        return exit_logits(streams, n - 1, norm_weight, eps, head)

    def finished_stream(streams, n, norm_weight, eps, head):
        """You use the finished stream. That gives the target's own logits, a perfect draft that saves nothing. Take the
        stream after layer n."""
        return exit_logits(streams, -1, norm_weight, eps, head)

    def probabilities(streams, n, norm_weight, eps, head):
        """You return probabilities, but logits are asked for. Temperature and truncation are applied later by the
        sampler, so leave the softmax out."""
        return exit_logits(streams, n, norm_weight, eps, head).softmax(-1)


def streams_case(draw: Draw, *, eps: float, layers: int, n: int) -> dict:
    tokens, d, vocabulary = draw.whole(1, 1 + draw.size), draw.whole(2, 3 + draw.size), draw.whole(2, 4 + draw.size)
    streams = draw.until(
        lambda: draw.decimals(layers + 1, tokens, d) * torch.arange(1, layers + 2)[:, None, None],
        lambda x: bool((x != 0).any(-1).all()),
    )
    weight, head = 1 + draw.decimals(d, most=0.5), draw.decimals(vocabulary, d)
    return dict(streams=streams, n=n, norm_weight=weight, eps=eps, head=head)


@fresh("08.early_exit", "any layer", weight=2)
def _(draw):
    layers = draw.whole(2, 4)
    return streams_case(draw, eps=0.0, layers=layers, n=draw.whole(1, layers - 1))


@fresh("08.early_exit", "an ε that matters")
def _(draw):
    layers = draw.whole(1, 4)
    return streams_case(draw, eps=draw.choice([0.1, 0.5, 2.0]), layers=layers, n=draw.whole(1, layers))


@fresh("08.early_exit", "all layers", weight=0.5, count=6)
def _(draw):
    layers = draw.whole(1, 4)
    return streams_case(draw, eps=0.0, layers=layers, n=layers)


# ---- 08.cascade_distribution ---------------------------------------------------------------------------------------
def cascade_draft(middle, tiny, guess, random, *, replace=residual):
    if random() < accept_probability(middle, tiny, guess):
        return guess, middle
    return pick(replace(middle, tiny), random()), middle


def observe_cascade(answer, p, middle, tiny):
    """What comes of the draft, in exact numbers: composed over the guess, the middle model's random numbers and the
    target's."""

    def place(random):
        guess = pick(tiny, random())
        draft, q = pair(answer(middle, tiny, guess, random), "the draft and q")
        draft = token(draft, "the draft")
        q = tensor(q, "q, a probability for every token,", p.shape).double()
        if random() < accept_probability(p, q, draft):
            return draft == guess, draft, True, draft
        return draft == guess, draft, False, pick(residual(p, q), random())

    outcomes = distribution_of(place)
    shares = lambda part, of: [sum(c for o, c in outcomes.items() if o[part] == x) for x in of]  # noqa: E731
    return {
        "P(the guess survives)": shares(0, [True])[0],
        "distribution of the draft token": shares(1, range(len(p))),
        "P(the target accepts)": shares(2, [True])[0],
        "distribution of the emitted token": shares(3, range(len(p))),
    }


CASCADE = exercise(
    "08.cascade_distribution",
    legend={"p": "the target's distribution, which has the last word"},
    reference=cascade_draft,
    observe=observe_cascade,
    cases=[
        dict(p=probs(0.5, 0.5), middle=probs(0.75, 0.25), tiny=probs(0.25, 0.75)),
        dict(p=probs(0.2, 0.8), middle=probs(0.5, 0.5), tiny=probs(0.75, 0.25)),
        dict(p=probs(0.5, 0.3, 0.2), middle=probs(0.3, 0.5, 0.2), tiny=probs(0.2, 0.2, 0.6)),
        dict(p=probs(0.1, 0.6, 0.3), middle=probs(0.2, 0.7, 0.1), tiny=probs(0.6, 0.3, 0.1)),
    ],
)


@CASCADE.wrong_solutions
class _:
    def residual_exchanged(middle, tiny, guess, random):
        """The two distributions are swapped in your residual. [tiny − middle]₊ is what the tiny model proposes too
        often, including the rejected guess. What is missing is [middle − tiny]₊: residual(middle, tiny)."""
        return cascade_draft(middle, tiny, guess, random, replace=lambda middle, tiny: residual(tiny, middle))

    def q_of_the_tiny_model(middle, tiny, guess, random):
        """You report the tiny model's distribution as q. The guess came from it, but the draft token did not, because
        the middle model replaced some guesses. With the wrong q the target's ratio p/q is wrong, and so is the
        distribution that it emits. Ask which distribution the output of a verifier follows."""
        return cascade_draft(middle, tiny, guess, random)[0], tiny

    def hands_the_guess_on(middle, tiny, guess, random):
        """You pass the guess on as it is, with the tiny model's distribution. That is exact, but the middle model has
        no influence, so the target accepts no more often than it would from the tiny model. Let the middle model verify
        the guess first."""
        return guess, tiny

    def guess_as_middle(middle, tiny, guess, random):
        """You pass the guess on and report the middle model's distribution. The guess was not sampled from that
        distribution. First accept or replace it with the middle model as the verifier."""
        return guess, middle

    def draws_a_new_one(middle, tiny, guess, random):
        """You sample from the middle model and never use the guess. The distribution is right, but nothing is gained:
        the guess survives only by coincidence, and the middle model has to generate every token itself. Accept the
        guess whenever the rule allows it."""
        return pick(middle, random()), middle

    def replaces_from_middle(middle, tiny, guess, random):
        """After a rejection you sample from the whole of `middle`. Tokens that the tiny model prefers then get a second
        chance, so the draft token does not follow `middle` and q is wrong. Sample from the residual of middle against
        tiny."""
        return cascade_draft(middle, tiny, guess, random, replace=lambda middle, tiny: middle)

    def q_of_the_branch(middle, tiny, guess, random):
        """You report the tiny model's distribution for an accepted guess and the residual for a replacement. Accepted
        guesses do not follow `tiny`, since the acceptance test has changed their distribution to min(middle, tiny),
        normalised. Over both branches together the draft token follows `middle`, and that is q."""
        draft, _ = cascade_draft(middle, tiny, guess, random)
        return draft, tiny if draft == guess else residual(middle, tiny)

    def tiny_or_middle(middle, tiny, guess, random):
        """You report the tiny model's distribution for an accepted guess and `middle` for a replacement. Accepted
        guesses do not follow `tiny`, since the acceptance test has removed some. q must not depend on the branch: over
        both together the draft token follows `middle`."""
        draft, _ = cascade_draft(middle, tiny, guess, random)
        return draft, tiny if draft == guess else middle

    def middle_or_residual(middle, tiny, guess, random):
        """You report `middle` for an accepted guess and the residual for a replacement. q must not depend on the
        branch: over both together the draft token follows `middle`, replacements included."""
        draft, _ = cascade_draft(middle, tiny, guess, random)
        return draft, middle if draft == guess else residual(middle, tiny)

    def one_hot_q(middle, tiny, guess, random):
        """You report a q with all of its probability on the draft token. That is exact for any draft token, sampled or
        not, but the target then accepts with probability p(d) instead of min(1, p/q), which is much less. Report the
        distribution that the draft token follows."""
        draft, _ = cascade_draft(middle, tiny, guess, random)
        return draft, one_hot(draft, like=middle)


def three(draw: Draw, n: int) -> dict:
    return dict(p=draw.probs(n), middle=draw.probs(n), tiny=draw.probs(n))


fresh("08.cascade_distribution", "in general", lambda draw: three(draw, 2 if draw.size < 2 else 3), weight=2, count=8)


@fresh("08.cascade_distribution", "all positive", count=8)
def _(draw):
    n = 2 if draw.size < 2 else 3
    return dict(p=draw.probs(n, positive=True), middle=draw.probs(n, positive=True), tiny=draw.probs(n, positive=True))


@fresh("08.cascade_distribution", "models that agree", weight=0.5, count=6)
def _(draw):
    case = three(draw, draw.whole(2, 3))
    return {**case, "tiny": case["middle"].clone()} if draw.chance(0.6) else {**case, "middle": case["p"].clone()}
