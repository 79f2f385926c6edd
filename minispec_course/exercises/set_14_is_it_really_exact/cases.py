"""Set 14, bugs from the field: programs broken as real systems were, to be repaired. What is sampled, what is
penalised, where an output ends, state that is not rolled back, numbers that are counted wrongly.

The first wrong solution of an exercise is the program as it was reported; the others are repairs that stop half way.
The last exercise is a tool of the lesson: what cycles emit that follow one another."""

import torch
from torch import Tensor

from minispec.verify import accept_probability, one_hot, pick, residual

from ..exercise import Complaint, distribution_of, exercise, probs, rows
from ..fresh import Draw, fresh
from ..returned import flag, items, number, pair, tensor, token, tokens


# ---- 14.argmax_draft ------------------------------------------------------------------------------------------------
def argmax_draft(p, q, random, *, draft=None, test=None, rest=None):
    """One position with a greedy draft; the q of the test and that of the residual can be exchanged."""
    d = int(q.argmax()) if draft is None else draft
    sure = one_hot(d, like=p)
    if random() < accept_probability(p, sure if test is None else test, d):
        return d, True
    return pick(residual(p, sure if rest is None else rest), random()), False


def verdicts(answer, p, q):
    """The exact distribution of (emitted token, accepted or not)."""

    def position(random):
        emitted, accepted = pair(answer(p, q, random), "the emitted token and whether the draft token was accepted")
        return token(emitted, "the emitted token"), "accepted" if flag(accepted, "the second result") else "rejected"

    return distribution_of(position)


ARGMAX = exercise(
    "14.argmax_draft",
    reference=argmax_draft,
    observe=verdicts,
    cases=[
        dict(p=probs(0.5, 0.5), q=probs(0.75, 0.25)),
        dict(p=probs(0.75, 0.25), q=probs(0.25, 0.75)),
        dict(p=probs(0.2, 0.3, 0.5), q=probs(0.5, 0.4, 0.1)),
        dict(p=probs(0.6, 0.3, 0.1), q=probs(0.4, 0.35, 0.25)),
        dict(p=probs(0.0, 0.25, 0.75), q=probs(0.5, 0.3, 0.2)),
    ],
)


@ARGMAX.wrong_solutions
class _:
    def argmax_as_reported(p, q, random):
        """Your program still emits the draft model's top token too often. With what probability is this draft token
        proposed, and is that the q that the two rules are given?"""
        return argmax_draft(p, q, random, test=q, rest=q)

    def samples_the_draft(p, q, random):
        """You sample the draft token from q. The emitted tokens follow p again, but this system's drafter is greedy and
        you may not replace it (that also changes how often draft tokens are accepted). Keep the argmax, and give the
        two rules the q that belongs to it."""
        return argmax_draft(p, q, random, draft=pick(q, random()), test=q, rest=q)

    def residual_of_the_softmax(p, q, random):
        """Your acceptance test now knows that the draft token was certain, but your residual still subtracts the
        softmax q. It takes probability from tokens that were never proposed. Both rules need the same q."""
        return argmax_draft(p, q, random, rest=q)

    def correction_from_p(p, q, random):
        """After a rejection you sample from p itself, so the rejected token gets a second chance and is emitted too
        often. Sample from the residual, with the q that belongs to a greedy draft."""
        return argmax_draft(p, q, random, rest=torch.zeros_like(p))

    def test_of_the_softmax(p, q, random):
        """Your residual is now right, but the acceptance test still divides by the softmax q(d). The token was proposed
        with probability 1, so it has to be accepted with probability p(d)."""
        return argmax_draft(p, q, random, test=q)


def greedy_draft(draw: Draw, fits) -> dict:
    def make():
        q = draw.probs(positive=True, distinct=True)
        return dict(p=draw.probs(len(q)), q=q)

    return draw.until(make, lambda case: fits(float(case["p"][case["q"].argmax()]), float(case["q"].max())))


fresh("14.argmax_draft", "the target likes it less", lambda draw: greedy_draft(draw, lambda p, q: 0 < p < q), weight=2)
fresh("14.argmax_draft", "the target likes it more", lambda draw: greedy_draft(draw, lambda p, q: q < p < 1))


@fresh("14.argmax_draft", "never or always", weight=0.5, count=6)
def _(draw):
    n = draw.whole(2, 4)
    q = draw.probs(n, positive=True, distinct=True)
    p = torch.zeros(n).double()
    p[draw.choice([int(q.argmax()), draw.randrange(n)])] = 1.0
    return dict(p=p, q=q)


# ---- 14.two_precisions ----------------------------------------------------------------------------------------------
def sampled_from(logits: Tensor) -> Tensor:
    """The probabilities that the draft model's own sampler uses: softmax in bfloat16, without a last division."""
    return logits.bfloat16().softmax(0).double()


def two_precisions(p, logits, random, *, test=None, rest=None):
    drawn = sampled_from(logits)
    right = drawn / drawn.sum()
    d = pick(drawn, random())
    if random() < accept_probability(p, right if test is None else test, d):
        return d
    return pick(residual(p, right if rest is None else rest), random())


def emitted_tokens(answer, p, logits):
    return distribution_of(lambda random: (token(answer(p, logits, random), "the emitted token"),))


PRECISIONS = exercise(
    "14.two_precisions",
    reference=two_precisions,
    observe=emitted_tokens,
    cases=[
        dict(p=probs(0.5, 0.5), logits=probs(0.3, -0.1)),
        dict(p=probs(0.25, 0.75), logits=probs(1.7, 0.3)),
        dict(p=probs(0.2, 0.3, 0.5), logits=probs(0.7, 1.3, -0.6)),
        dict(p=probs(0.6, 0.3, 0.1), logits=probs(0.1, 0.2, 1.9)),
    ],
)


@PRECISIONS.wrong_solutions
class _:
    def precisions_as_reported(p, logits, random):
        """Your output is still biased by a few thousandths. The draft token comes from one version of q and is judged
        by another: compare the two tensors, number by number."""
        other = logits.double().softmax(0)
        return two_precisions(p, logits, random, test=other, rest=other)

    def sum_is_not_one(p, logits, random):
        """You use the bfloat16 probabilities everywhere, and they do not sum to 1. pick divides by their sum, so the
        token is sampled from a different distribution from the one your two rules see. Normalise q before its first
        use."""
        drawn = sampled_from(logits)
        return two_precisions(p, logits, random, test=drawn, rest=drawn)

    def precise_residual(p, logits, random):
        """Your acceptance test uses the q that was sampled from, but your residual still uses the other version. What
        is emitted after a rejection has to make up for the same q."""
        return two_precisions(p, logits, random, rest=logits.double().softmax(0))

    def precise_test(p, logits, random):
        """Your residual uses the q that was sampled from, but your acceptance test still uses the other version."""
        return two_precisions(p, logits, random, test=logits.double().softmax(0))


def rounded_draft(draw: Draw, fits) -> dict:
    def make():
        logits = draw.decimals(draw.whole(2, 2 + draw.size // 2)) + draw.whole(0, 9) / 100
        return dict(p=draw.probs(len(logits), positive=True), logits=logits)

    def wanted(case):
        sampled, precise = sampled_from(case["logits"]), case["logits"].softmax(0)
        off = float((sampled / sampled.sum() - precise).abs().max())
        return off > 1e-4 and fits(abs(float(sampled.sum()) - 1))

    return draw.until(make, wanted)


fresh("14.two_precisions", "rounded probabilities", lambda draw: rounded_draft(draw, lambda excess: True), weight=2)


@fresh("14.two_precisions", "probabilities that do not sum to 1")
def _(draw):
    return rounded_draft(draw, lambda excess: excess > 1e-4)


# ---- 14.penalties ---------------------------------------------------------------------------------------------------
def penalised_step(logits, draft, counts, penalty, *, each=True, noted=lambda emitted, draft: emitted):
    """One greedy step under a frequency penalty. each: every position sees the tokens before it in the step."""
    before, emitted = counts.clone(), []
    seen = counts.clone()
    for i in range(len(draft) + 1):
        choice = int((logits[i] - penalty * seen).argmax())
        emitted.append(choice)
        if each:
            seen[choice] += 1
        if i == len(draft) or choice != draft[i]:
            break
    for one in noted(emitted, draft):
        before[one] += 1
    return emitted, before


def observe_penalties(answer, logits, draft, counts, penalty):
    emitted, after = pair(answer(logits, list(draft), counts, penalty), "the emitted tokens and the counts")
    after = tensor(after, "the counts, one for each token,", counts.shape)
    return {"emitted": list(tokens(emitted, "the first result")), "counts": after.double().tolist()}


def whole(*counts: int) -> Tensor:
    return torch.tensor(counts)


PENALTIES = exercise(
    "14.penalties",
    reference=penalised_step,
    observe=observe_penalties,
    cases=[
        dict(logits=rows([1.0, 0.0]), draft=[], counts=whole(0, 0), penalty=0.5),
        dict(logits=rows([1.0, 0.0], [0.0, 1.0]), draft=[0], counts=whole(0, 0), penalty=0.25),
        dict(logits=rows([1.0, 0.75], [1.0, 0.75]), draft=[0], counts=whole(0, 0), penalty=0.5),
        dict(logits=rows([1.0, 0.0], [1.0, 0.0], [1.0, 0.0]), draft=[0, 0], counts=whole(1, 0), penalty=0.25),
        dict(
            logits=rows([2.0, 1.5, 0.0], [2.0, 1.6, 0.0], [2.0, 1.5, 0.0]),
            draft=[0, 1],
            counts=whole(0, 1, 2),
            penalty=0.75,
        ),
        dict(logits=rows([0.0, 1.0], [1.0, 0.0]), draft=[0], counts=whole(0, 0), penalty=1.0),
    ],
)


@PENALTIES.wrong_solutions
class _:
    def penalties_as_reported(logits, draft, counts, penalty):
        """Your step still notes one token, however many it emits. The others are never penalised."""
        return penalised_step(logits, draft, counts, penalty, each=False, noted=lambda emitted, draft: emitted[-1:])

    def noted_after_the_step(logits, draft, counts, penalty):
        """You note all emitted tokens, but only when the step is over. Inside the step every position is still judged
        by the counts from before the step, so a draft that repeats a token passes. Update them after each token."""
        return penalised_step(logits, draft, counts, penalty, each=False)

    def the_whole_draft_noted(logits, draft, counts, penalty):
        """You note the draft tokens instead of the emitted ones. A rejected draft token is not part of the output, and
        the token that replaced it is: note what was emitted."""
        return penalised_step(logits, draft, counts, penalty, noted=lambda emitted, draft: draft)

    def the_last_is_missing(logits, draft, counts, penalty):
        """You forget to note the correction or the bonus. Every emitted token counts, including the last of a step."""
        return penalised_step(logits, draft, counts, penalty, noted=lambda emitted, draft: emitted[:-1])


def penalised(draw: Draw, follow: float, repeat: float = 0.0) -> dict:
    """Logits, and a draft that is what the target emits with probability `follow` at each position.

    repeat: how likely the next position has the logits of the one before, so that the penalty decides."""
    n, k = draw.whole(2, 2 + draw.size), draw.whole(0 if follow < 1 else 1, draw.size)
    penalty, counts = draw.choice([0.25, 0.5, 1.0]), [draw.whole(0, 2) for _ in range(n)]
    logits, seen, draft = [], list(counts), []
    for i in range(k + 1):
        near = logits and draw.chance(repeat)
        row = list(logits[-1]) if near else [draw.whole(-20, 20) / 10 for _ in range(n)]
        while len({round(row[x] - penalty * seen[x], 6) for x in range(n)}) < n:  # no ties
            row[draw.randrange(n)] += 0.01
        logits.append(row)
        best = max(range(n), key=lambda x: row[x] - penalty * seen[x])
        if i < k:
            draft.append(best if draw.chance(follow) else draw.randrange(n))
        seen[best] += 1
    return dict(logits=torch.tensor(logits).double(), draft=draft, counts=torch.tensor(counts), penalty=penalty)


fresh("14.penalties", "several tokens per step", lambda draw: penalised(draw, 1.0, repeat=0.3), weight=2)
fresh("14.penalties", "the same token again and again", lambda draw: penalised(draw, 1.0, repeat=1.0), weight=2)
fresh("14.penalties", "rejected draft tokens", lambda draw: penalised(draw, 0.6, repeat=0.5))


# ---- 14.eos ---------------------------------------------------------------------------------------------------------
def finish(steps, eos, max_new_tokens, *, kept=0, length_first=False, capped=True):
    """Token by token, as plain decoding. kept: tokens that stay after the end, −1 to lose the end itself."""
    output: list[int] = []
    for emitted in steps:
        for i, one in enumerate(emitted):
            output.append(one)
            full = capped and len(output) == max_new_tokens
            if full and length_first:
                return output, "length"
            if one in eos:
                if kept < 0:
                    return output[:-1], "stop"
                return output + (list(emitted[i + 1 :]) if kept else []), "stop"
            if full:
                return output, "length"
        if not capped and len(output) >= max_new_tokens:
            return output[:max_new_tokens], "length"
    return output, None


def observe_finish(answer, steps, eos, max_new_tokens):
    found = answer([list(step) for step in steps], list(eos), max_new_tokens)
    output, reason = pair(found, "the output and why it ended")
    if reason not in ("stop", "length", None):
        raise Complaint(f'the reason should be "stop", "length" or None; yours is {reason!r}.')
    return {"output": list(tokens(output, "the output")), "reason": str(reason)}


FINISH = exercise(
    "14.eos",
    reference=finish,
    observe=observe_finish,
    cases=[
        dict(steps=[[5], [9]], eos=[9], max_new_tokens=8),
        dict(steps=[[5, 9, 7]], eos=[9], max_new_tokens=8),
        dict(steps=[[5, 6, 7], [8, 4]], eos=[9], max_new_tokens=4),
        dict(steps=[[5, 6, 9, 7]], eos=[9], max_new_tokens=4),
        dict(steps=[[5, 6, 9, 7]], eos=[9], max_new_tokens=3),
        dict(steps=[[5, 6, 7, 9]], eos=[9], max_new_tokens=3),
        dict(steps=[[5, 6], [7]], eos=[9], max_new_tokens=8),
    ],
)


@FINISH.wrong_solutions
class _:
    def finish_as_reported(steps, eos, max_new_tokens):
        """Your program still looks only at the last token of a step and misses an earlier EOS."""
        output = []
        for emitted in steps:
            output = output + list(emitted)
            if len(output) >= max_new_tokens:
                return output[:max_new_tokens], "length"
            if output[-1] in eos:
                return output, "stop"
        return output, None

    def tokens_after_the_end(steps, eos, max_new_tokens):
        """You find an EOS anywhere in a step, but keep what was accepted after it. Cut the output there."""
        return finish(steps, eos, max_new_tokens, kept=1)

    def the_limit_hides_the_end(steps, eos, max_new_tokens):
        """You check the limit before you check for EOS. A token that is both the last one allowed and EOS ends the
        output with "stop" in plain decoding."""
        return finish(steps, eos, max_new_tokens, length_first=True)

    def the_end_beats_the_limit(steps, eos, max_new_tokens):
        """You count an EOS that comes after max_new_tokens, which plain decoding would never have reached."""
        return finish(steps, eos, max_new_tokens, capped=False)

    def the_end_is_lost(steps, eos, max_new_tokens):
        """You cut the output before EOS. Here EOS is part of the output, as in plain decoding: cut after it."""
        return finish(steps, eos, max_new_tokens, kept=-1)


def outputs(draw: Draw, ends: float, limit: str) -> dict:
    """Steps of several tokens; each token is an end with probability `ends`. limit: "far", "near" or "at the end"."""
    eos = draw.sample(range(90, 100), draw.whole(1, 2))
    steps = [
        [draw.choice(eos) if draw.chance(ends) else draw.whole(1, 9) for _ in range(draw.whole(1, 1 + draw.size))]
        for _ in range(draw.whole(1, 1 + draw.size))
    ]
    flat = [one for step in steps for one in step]
    first = next((i for i, one in enumerate(flat) if one in eos), len(flat) - 1)
    most = {"far": len(flat) + 5, "near": draw.whole(1, len(flat)), "at the end": first + 1, "before": max(1, first)}
    return dict(steps=steps, eos=eos, max_new_tokens=most[limit])


fresh("14.eos", "the end inside a step", lambda draw: outputs(draw, 0.3, "far"), weight=2)
fresh("14.eos", "the limit inside a step", lambda draw: outputs(draw, 0.0, "near"))


@fresh("14.eos", "both in one step", weight=2)
def _(draw):
    return outputs(draw, 0.3, draw.choice(["near", "at the end", "before"]))


@fresh("14.eos", "two kinds of end in one step", count=6)
def _(draw):
    """The one that comes first in the output ends it, wherever it stands in `eos`."""
    first, second = eos = draw.sample(range(90, 100), 2)
    between = [draw.whole(1, 9) for _ in range(draw.whole(0, 2))]
    step = [draw.whole(1, 9), second, *between, first, draw.whole(1, 9)]
    return dict(steps=[[draw.whole(1, 9)], step], eos=eos, max_new_tokens=len(between) + 9)


# ---- 14.stop_string -------------------------------------------------------------------------------------------------
def stop_string(steps, stop, *, text=lambda before, step: before + step, at=str.find, keep=None, include=False):
    """Token by token: text(before, step) is what is searched; keep(…) counts the tokens that stay."""
    everything: list[str] = []
    for step in steps:
        seen: list[str] = []
        for i, piece in enumerate(step):
            seen.append(piece)
            everything.append(piece)
            if stop in "".join(text(everything[: -len(seen)], seen)):
                n = len(everything) + (len(step) - i - 1 if keep == "step" else 0)
                joined = "".join(everything)
                return joined[: at(joined, stop) + len(stop) * include], n
    return "".join(everything), len(everything)


def observe_stop(answer, steps, stop):
    text, kept = pair(answer([list(step) for step in steps], stop), "the text and the number of tokens")
    if not isinstance(text, str):
        raise Complaint(f"the text should be a str; yours is {type(text).__name__}.")
    return {"text": text, "tokens": token(kept, "the number of tokens")}


STOP = exercise(
    "14.stop_string",
    reference=stop_string,
    observe=observe_stop,
    cases=[
        dict(steps=[["a"], ["b"]], stop="b"),
        dict(steps=[["a", "b", "c"]], stop="b"),
        dict(steps=[["a", "#"], ["#", "c"]], stop="##"),
        dict(steps=[["a", "#", "#", "c", "d", "e"]], stop="##"),
        dict(steps=[["a"], ["b", "c"]], stop="x"),
        dict(steps=[["ab", "c#"], ["#d", "e"], ["##"]], stop="##"),
        dict(steps=[["a", "#b", "c", "#b"]], stop="#b"),
    ],
)


@STOP.wrong_solutions
class _:
    def stop_as_reported(steps, stop):
        """Your program still looks only at the end of what has arrived. A stop string that was completed early in a
        long step has left the window by then."""
        arrived: list[str] = []
        for step in steps:
            arrived = arrived + list(step)
            if stop in "".join(arrived[-len(stop) :]):
                joined = "".join(arrived)
                return joined[: joined.index(stop)], len(arrived)
        return "".join(arrived), len(arrived)

    def inside_one_step_only(steps, stop):
        """You search each step by itself. A stop string that begins in one step and ends in the next is not found."""
        return stop_string(steps, stop, text=lambda before, step: step)

    def tokens_past_the_stop(steps, stop):
        """Your text is cut at the stop string, but you count all tokens of its step. The caller is charged for, and
        gets log-probabilities for, tokens up to the one that completes the stop string."""
        return stop_string(steps, stop, keep="step")

    def stop_in_the_text(steps, stop):
        """You leave the stop string in the text. It marks where the text ends and is not part of it."""
        return stop_string(steps, stop, include=True)


def text(draw: Draw, stop: str, longest: int) -> dict:
    """Pieces of one or two characters of a small alphabet, in steps."""
    pieces = ["".join(draw.choice("ab#") for _ in range(draw.choice([1, 1, 2]))) for _ in range(2 + 3 * draw.size)]
    steps = []
    while pieces:
        n = draw.whole(1, longest)
        steps, pieces = [*steps, pieces[:n]], pieces[n:]
    return dict(steps=steps, stop=stop)


def found(case: dict) -> bool:
    return case["stop"] in "".join(piece for step in case["steps"] for piece in step)


@fresh("14.stop_string", "early in a long step", weight=2)
def _(draw):
    return draw.until(lambda: text(draw, draw.choice(["#", "##", "b#"]), 2 + 2 * draw.size), found)


@fresh("14.stop_string", "early in a long token", count=6)
def _(draw):
    stop = draw.choice(["#", "##", "b#"])
    word = "".join(draw.choice("ab") for _ in range(draw.whole(0, 2))) + stop + "a" * draw.whole(2, 9)
    return dict(steps=[["a"] * draw.whole(0, 2) + [word], ["a"]], stop=stop)


@fresh("14.stop_string", "across two steps")
def _(draw):
    def fits(case):
        joined = ["".join(step) for step in case["steps"]]
        return found(case) and not any(case["stop"] in each for each in joined)

    return draw.until(lambda: text(draw, draw.choice(["##", "#a#", "b#"]), 2), fits)


fresh("14.stop_string", "no stop string", lambda draw: text(draw, "!", 3), weight=0.5, count=6)


# ---- 14.grammar -----------------------------------------------------------------------------------------------------
def best_allowed(options, scores) -> int:
    """The most likely of the tokens that a state of the grammar allows."""
    return max((x for x, after in enumerate(options) if after is not None), key=lambda x: float(scores[x]))


def grammar_step(grammar, state, logits, draft, *, masks=lambda states: states, after=None):
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


@GRAMMAR.wrong_solutions
class _:
    def grammar_as_reported(grammar, state, logits, draft):
        """Your matcher is still in the state that the draft led to, rejected tokens included, and advances from there.
        Either the token is not allowed in that state (None), or the next mask fits a sequence that was never
        emitted."""
        return grammar_step(
            grammar, state, logits, draft, after=lambda states, emitted: grammar[states[-1]][emitted[-1]]
        )

    def where_the_draft_ends(grammar, state, logits, draft):
        """Your state is the one after the draft, whatever was emitted. It has to be the one after the emitted tokens:
        the accepted ones, and the correction or the bonus."""
        return grammar_step(grammar, state, logits, draft, after=lambda states, emitted: states[-1])

    def back_to_the_start(grammar, state, logits, draft):
        """You roll the matcher back to where it was before the step. That forgets the tokens that were accepted, and
        the correction: advance it by what was emitted."""
        return grammar_step(grammar, state, logits, draft, after=lambda states, emitted: states[0])

    def one_token_behind(grammar, state, logits, draft):
        """You go back to the state after the accepted draft tokens and leave it there. One more token was emitted, the
        correction or the bonus: advance by that as well."""
        return grammar_step(grammar, state, logits, draft, after=lambda states, emitted: states[len(emitted) - 1])

    def one_mask_for_all(grammar, state, logits, draft):
        """You mask every position with the state from before the step. A position comes after the draft tokens before
        it, so each needs the mask of its own state. So far only the state at the end is right."""

        def after(states, emitted):
            at = states[0]
            for x in emitted:
                at = None if at is None else grammar[at][x]
            return at

        return grammar_step(grammar, state, logits, draft, masks=lambda states: states[:1] * len(states), after=after)


def parsed(draw: Draw, follow: float) -> dict:
    """A random automaton and a draft that the target follows with this probability at each position."""
    states, n, k = draw.whole(2, 2 + draw.size), draw.whole(2, 4), draw.whole(0 if follow < 1 else 1, draw.size)
    grammar = []
    for _ in range(states):
        allowed = draw.sample(range(n), draw.whole(1, n))
        grammar.append([draw.randrange(states) if x in allowed else None for x in range(n)])
    logits = torch.tensor([draw.sample(range(-20, 20), n) for _ in range(k + 1)]).double() / 10
    draft, state = [], draw.randrange(states)
    for _ in range(k):
        emitted, _ = grammar_step(grammar, state, logits, draft)
        draft.append(emitted[-1] if len(emitted) == len(draft) + 1 and draw.chance(follow) else draw.randrange(n))
    return dict(grammar=grammar, state=state, logits=logits, draft=draft)


fresh("14.grammar", "all accepted", lambda draw: parsed(draw, 1.0))


@fresh("14.grammar", "rejected on the way", weight=2)
def _(draw):
    return draw.until(lambda: parsed(draw, 0.6), lambda case: len(grammar_step(**case)[0]) <= len(case["draft"]))


# ---- 14.draft_cache -------------------------------------------------------------------------------------------------
def draft_inputs(
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
    return [list(tokens(each, "each element of the result")) for each in items(found, "the result", " of lists")]


CACHE = exercise(
    "14.draft_cache",
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


@CACHE.wrong_solutions
class _:
    def inputs_as_reported(prompt, cycles):
        """Your program still assumes that all tokens but the newest are in the draft model's cache. After a cycle in
        which everything was accepted, that is one too many, and later drafts have a gap in their context."""
        return draft_inputs(
            prompt, cycles, cached=lambda before, draft, emitted: before + len(emitted) - 1, empty=False
        )

    def two_tokens_every_time(prompt, cycles):
        """You run two tokens at the start of every cycle. That closes the gap after a full acceptance, but after a
        rejection the last accepted token is in the cache and is processed twice."""
        return draft_inputs(prompt, cycles, cached=lambda before, draft, emitted: before + len(emitted) - 2)

    def rejected_ones_stay(prompt, cycles):
        """You keep all draft tokens that were processed, even rejected ones. The draft model then continues a sequence
        that was never emitted: keep the accepted ones only."""
        return draft_inputs(prompt, cycles, cached=lambda before, draft, emitted: before + len(draft) - 1)

    def an_empty_draft_processes(prompt, cycles):
        """You treat a cycle without a draft like any other. The draft model was not run in it (dynamic k chose 0), so
        its cache holds what it held before, and the next draft has to catch up."""

        def cached(before, draft, emitted):
            return before + min(len(emitted), len(draft)) - 1 if draft else before + len(emitted) - 1

        return draft_inputs(prompt, cycles, cached=cached, empty=False)


def drafted(draw: Draw, full: float, empty: float = 0.0) -> dict:
    """Cycles of a request: accepted completely with probability `full`, without a draft with probability `empty`."""
    numbers = iter(range(10, 99))
    cycles = []
    for _ in range(draw.whole(2, 2 + draw.size)):
        draft = [] if draw.chance(empty) else [next(numbers) for _ in range(draw.whole(1, 1 + draw.size // 2))]
        passed = len(draft) if draw.chance(full) else draw.whole(0, max(0, len(draft) - 1))
        cycles.append((draft, [*draft[:passed], next(numbers)]))
    return dict(prompt=[next(numbers) for _ in range(draw.whole(1, 3))], cycles=cycles)


fresh("14.draft_cache", "rejected draft tokens", lambda draw: drafted(draw, 0.0))
fresh("14.draft_cache", "full acceptance", lambda draw: drafted(draw, 0.7), weight=2)
fresh("14.draft_cache", "cycles without a draft", lambda draw: drafted(draw, 0.5, empty=0.4))


# ---- 14.draft_vocabulary --------------------------------------------------------------------------------------------
def in_target_ids(probs, d2t, vocab_size, *, of_token=lambda ids, d2t: ids + d2t, of_q=lambda ids, d2t: ids + d2t):
    """The greedy draft token and q in the target's vocabulary; how each of them is mapped can be exchanged."""
    ids = torch.arange(len(probs))
    q = torch.zeros(vocab_size, dtype=probs.dtype)
    for one, to in zip(probs, of_q(ids, d2t).clamp(max=vocab_size - 1), strict=True):
        q[to] = one
    return int(of_token(ids, d2t)[probs.argmax()]), q


def observe_ids(answer, probs, d2t, vocab_size):
    drafted, q = pair(answer(probs, d2t, vocab_size), "the draft token and q")
    q = tensor(q, "q, a probability for each token of the target,", (vocab_size,))
    return {"token": token(drafted, "the draft token"), "q": q.tolist()}


VOCABULARY = exercise(
    "14.draft_vocabulary",
    reference=in_target_ids,
    observe=observe_ids,
    cases=[
        dict(probs=probs(0.25, 0.75), d2t=whole(0, 1), vocab_size=4),
        dict(probs=probs(0.75, 0.25), d2t=whole(1, 1), vocab_size=4),
        dict(probs=probs(0.2, 0.5, 0.3), d2t=whole(0, 1, 3), vocab_size=6),
        dict(probs=probs(0.2, 0.3, 0.5), d2t=whole(2, 2, 4), vocab_size=8),
        dict(probs=probs(0.6, 0.4), d2t=whole(0, 0), vocab_size=3),
    ],
)


@VOCABULARY.wrong_solutions
class _:
    def ids_as_reported(probs, d2t, vocab_size):
        """Your program still treats the numbers in d2t as token ids. Several draft tokens land on the same id, so q
        loses mass and nearly every draft token is rejected. The output stays right; only the speed is gone."""
        return in_target_ids(probs, d2t, vocab_size, of_token=lambda ids, d2t: d2t, of_q=lambda ids, d2t: d2t)

    def only_the_token(probs, d2t, vocab_size):
        """Your draft token is mapped correctly, but q is not. The verifier looks up q(d) at the token's id in the
        target's vocabulary and finds the probability of another token."""
        return in_target_ids(probs, d2t, vocab_size, of_q=lambda ids, d2t: d2t)

    def only_q(probs, d2t, vocab_size):
        """Your q is mapped correctly, but the draft token is not: it is still an entry of the table."""
        return in_target_ids(probs, d2t, vocab_size, of_token=lambda ids, d2t: d2t)

    def not_mapped_at_all(probs, d2t, vocab_size):
        """You use the draft model's own ids, as if its vocabulary were the first part of the target's. It holds the
        most frequent tokens, which are spread all over the target's vocabulary: add d2t."""
        return in_target_ids(probs, d2t, vocab_size, of_token=lambda ids, d2t: ids, of_q=lambda ids, d2t: ids)


def shortlist(draw: Draw, first: int) -> dict:
    """A draft vocabulary: some ids of the target's, in order, beginning with `first`."""
    n = draw.whole(2, 3 + draw.size)
    vocab = n + draw.whole(2, 2 + 2 * draw.size) + first
    ids = sorted(draw.sample(range(first + 1, vocab - 1), n - 1))
    d2t = torch.tensor([first, *ids]) - torch.arange(n)
    return dict(probs=draw.probs(n, positive=True, distinct=True), d2t=d2t, vocab_size=vocab)


fresh("14.draft_vocabulary", "frequent tokens, spread over the vocabulary", lambda draw: shortlist(draw, 0), weight=2)
fresh("14.draft_vocabulary", "the first one has moved, too", lambda draw: shortlist(draw, draw.whole(1, 4)))


# ---- 14.acceptance_length -------------------------------------------------------------------------------------------
def acceptance_length(cycles):
    return sum(kept for _, _, kept in cycles) / len(cycles)


def observe_cycles(answer, cycles):
    return number(answer([tuple(cycle) for cycle in cycles]))


LENGTH = exercise(
    "14.acceptance_length",
    reference=acceptance_length,
    observe=observe_cycles,
    cases=[
        dict(cycles=[(2, 0, 1)]),
        dict(cycles=[(3, 3, 4), (3, 1, 2)]),
        dict(cycles=[(3, 2, 3), (0, 0, 1)]),
        dict(cycles=[(4, 3, 4), (4, 4, 2)]),
        dict(cycles=[(5, 2, 3), (5, 0, 1), (0, 0, 1), (5, 5, 3)]),
    ],
)


@LENGTH.wrong_solutions
class _:
    def length_as_reported(cycles):
        """Your metric still forgets the token that the target adds in every cycle. A run that accepts nothing emits 1
        token per forward pass, and you report 0."""
        return sum(accepted for _, accepted, _ in cycles) / len(cycles)

    def always_one_more(cycles):
        """You add 1 in every cycle. In the last cycle of a request EOS may be among the accepted tokens: what comes
        after it, including the bonus, is never emitted. Count what reached the output."""
        return 1 + sum(accepted for _, accepted, _ in cycles) / len(cycles)

    def drafting_cycles_only(cycles):
        """You leave out cycles without a draft. They were also forward passes, with one token each, and a mean without
        them promises a speed that the user never sees."""
        drafting = [cycle for cycle in cycles if cycle[0]] or cycles
        return acceptance_length(drafting)

    def per_draft_token(cycles):
        """You divide by the number of draft tokens, which gives a rate, not a length: divide by the number of
        cycles."""
        return sum(kept for _, _, kept in cycles) / max(1, sum(drafted for drafted, _, _ in cycles))


def measured(draw: Draw, *, empty: float = 0.0, ends: bool = False) -> dict:
    """(drafted, accepted, emitted) of each cycle; the last one may have ended early."""
    cycles = []
    for _ in range(draw.whole(1, 2 + 2 * draw.size)):
        k = 0 if draw.chance(empty) else draw.whole(1, 2 + draw.size)
        accepted = draw.whole(0, k)
        cycles.append((k, accepted, accepted + 1))
    if ends:
        k = draw.whole(2, 3 + draw.size)
        accepted = draw.whole(1, k)
        cycles.append((k, accepted, draw.whole(1, accepted)))
    return dict(cycles=cycles)


fresh("14.acceptance_length", "cycles in general", lambda draw: measured(draw))
fresh("14.acceptance_length", "cycles without a draft", lambda draw: measured(draw, empty=0.4))
fresh("14.acceptance_length", "the end of a request", lambda draw: measured(draw, ends=True))


# ---- 14.acceptance_rate ---------------------------------------------------------------------------------------------
def acceptance_rate(cycles):
    return sum(accepted for _, accepted in cycles) / sum(min(accepted + 1, drafted) for drafted, accepted in cycles)


RATE = exercise(
    "14.acceptance_rate",
    reference=acceptance_rate,
    observe=observe_cycles,
    cases=[
        dict(cycles=[(1, 1), (1, 0)]),
        dict(cycles=[(4, 1)]),
        dict(cycles=[(4, 4), (4, 1)]),
        dict(cycles=[(2, 2), (0, 0), (3, 1)]),
        dict(cycles=[(8, 3), (8, 0), (8, 8), (8, 1)]),
    ],
)


@RATE.wrong_solutions
class _:
    def rate_as_reported(cycles):
        """Your rate still counts draft tokens that were never tested. It falls with k for the same draft model, so it
        is not the α of the formulas."""
        return sum(accepted for _, accepted in cycles) / sum(drafted for drafted, _ in cycles)

    def a_rejection_in_every_cycle(cycles):
        """You count accepted + 1 tests in every cycle. If the whole draft was accepted, nothing was rejected: only as
        many were tested as were drafted."""
        return sum(accepted for _, accepted in cycles) / sum(accepted + 1 for _, accepted in cycles)

    def mean_of_the_cycles(cycles):
        """You average the rates of the cycles. A cycle with one test then counts as much as one with eight, and cycles
        that ended early are overrated. Add up first, divide once."""
        rates = [accepted / min(accepted + 1, drafted) for drafted, accepted in cycles if drafted]
        return sum(rates) / len(rates)

    def with_the_bonus(cycles):
        """You count the target's own token on both sides. It is never tested: leave it out of both sums."""
        return sum(accepted + 1 for _, accepted in cycles) / sum(drafted + 1 for drafted, _ in cycles)


def tested(draw: Draw, full: float) -> dict:
    cycles = []
    for _ in range(draw.whole(1, 2 + 2 * draw.size)):
        k = draw.whole(1, 2 + draw.size)
        cycles.append((k, k if draw.chance(full) else draw.whole(0, k - 1)))
    return dict(cycles=cycles)


fresh("14.acceptance_rate", "rejections everywhere", lambda draw: tested(draw, 0.0))
fresh("14.acceptance_rate", "some accepted completely", lambda draw: tested(draw, 0.5), weight=2)


@fresh("14.acceptance_rate", "cycles without a draft", weight=0.5, count=6)
def _(draw):
    case = tested(draw, 0.3)
    case["cycles"].insert(draw.randrange(len(case["cycles"]) + 1), (0, 0))
    return case


# ---- 14.joint -------------------------------------------------------------------------------------------------------
def joint(cycle, n, context=(), *, cut=True, more=True, add=True, after=lambda context, output: context + output):
    """Cycle after cycle, with a switch for each way to get it wrong."""
    found = {}
    for output, probability in cycle(context).items():
        head, rest = output[:n] if cut else output, {(): 1.0}
        if more and len(head) < n:
            rest = joint(cycle, n - len(head), after(context, head), cut=cut, more=more, add=add, after=after)
        for later, p in rest.items():
            found[head + later] = found.get(head + later, 0.0) * add + probability * p
    return found


def observe_joint(answer, outputs, n):
    def cycle(context):
        context = tokens(context, "the context")
        return dict(outputs[(sum(context) + 2 * len(context)) % len(outputs)])

    if not isinstance(found := answer(cycle, n), dict):
        raise Complaint("return a dictionary from tuples of tokens to probabilities.")
    return {tokens(output, "a key of the result"): float(p) for output, p in found.items() if p}


JOINT = exercise(
    "14.joint",
    legend={"outputs": "of a cycle, and how likely each is; which of the tables holds depends on the whole context"},
    reference=joint,
    observe=observe_joint,
    cases=[
        dict(outputs=[{(0,): 0.5, (1,): 0.5}], n=1),
        dict(outputs=[{(0, 1): 0.75, (1, 0): 0.25}], n=1),
        dict(outputs=[{(0,): 0.5, (1, 1): 0.5}], n=2),
        dict(outputs=[{(0,): 0.5, (0, 1): 0.5}, {(1,): 1.0}], n=2),
        dict(outputs=[{(0,): 0.5, (1, 0): 0.5}, {(1,): 0.25, (0, 1, 1): 0.75}, {(0,): 1.0}], n=3),
    ],
)


@JOINT.wrong_solutions
class _:
    def one_cycle(cycle, n):
        """You look at one cycle only. An output shorter than n is followed by another cycle, after a longer context."""
        return joint(cycle, n, more=False)

    def longer_than_asked(cycle, n):
        """Some of your outputs have more than n tokens. Cut each to its first n tokens, and add up the probabilities of
        those that become equal."""
        return joint(cycle, n, cut=False)

    def context_forgotten(cycle, n):
        """Your next cycle begins after the newest output alone. The models condition on everything so far: the context
        that this cycle had, and then its output."""
        return joint(cycle, n, after=lambda context, output: output)

    def context_not_extended(cycle, n):
        """Your next cycle has the context of the one before. It begins after that context and the tokens emitted."""
        return joint(cycle, n, after=lambda context, output: context)

    def overwrites(cycle, n):
        """Different outputs can begin with the same n tokens, and you keep only the last. Add up their
        probabilities."""
        return joint(cycle, n, add=False)


@fresh("14.joint", "cycles in general")
def _(draw):
    def table():
        found = {tuple(draw.randrange(2) for _ in range(draw.whole(1, 3))) for _ in range(3)}
        return {output: part / 100 for output, part in zip(sorted(found), draw.parts(len(found), 100, 1), strict=True)}

    return dict(outputs=[table() for _ in range(draw.whole(2, 3))], n=draw.whole(1, 3 + draw.size // 3))
