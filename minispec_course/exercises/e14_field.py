"""Set 14, bugs from the field: programs broken as real systems were, to be repaired. First half: what is sampled, what
is penalised, where an output ends.

The first mutant of each exercise is the program as it was reported; the others are repairs that stop half way."""

from __future__ import annotations

import torch
from torch import Tensor

from minispec.verify import accept_probability, one_hot, pick, residual

from .exercise import Complaint, distribution_of, exercise, law, pair, rows, token, tokens

# ---- 14.argmax_draft ------------------------------------------------------------------------------------------------


def argmax_draft(p, q, random):
    return flawed_argmax(p, q, random)


def flawed_argmax(p, q, random, *, draft=None, test=None, rest=None):
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
        if type(accepted).__name__ not in ("bool", "bool_"):
            raise Complaint(f"the second result should be True or False; yours is {type(accepted).__name__}.")
        return token(emitted, "the emitted token"), "accepted" if accepted else "rejected"

    return distribution_of(position)


ARGMAX = exercise(
    "14.argmax_draft",
    title="A greedy draft, a sampled output",
    level="M",
    minutes=15,
    points=2,
    hints=(
        "The rule min(1, p/q) removes an excess: it assumes that token d was proposed with probability q(d). With "
        "which probability does this program propose its draft token?",
        "argmax proposes the same token every time, with probability 1. So the q that belongs to it is not the "
        "softmax of the draft model: it is 1 at d and 0 elsewhere, in the test and in the residual.",
        "After d = int(q.argmax()) write q = torch.zeros_like(q); q[d] = 1.0 (into a new tensor, q belongs to the "
        "caller), and leave the rest as it is.",
    ),
    code="minispec.verify.chain",
    reference=argmax_draft,
    observe=verdicts,
    cases=[
        dict(p=law(0.5, 0.5), q=law(0.75, 0.25)),
        dict(p=law(0.75, 0.25), q=law(0.25, 0.75)),
        dict(p=law(0.2, 0.3, 0.5), q=law(0.5, 0.4, 0.1)),
        dict(p=law(0.6, 0.3, 0.1), q=law(0.4, 0.35, 0.25)),
        dict(p=law(0.0, 0.25, 0.75), q=law(0.5, 0.3, 0.2)),
    ],
)


@ARGMAX.mutant
def argmax_as_reported(p, q, random):
    """Your program still emits the draft model's favourite too often. Ask with which probability this draft token is
    proposed, and whether that is the q that the two rules are told."""
    return flawed_argmax(p, q, random, test=q, rest=q)


@ARGMAX.mutant
def samples_the_draft(p, q, random):
    """You sample the draft token from q. The emitted tokens follow p again, but the drafter of this system is greedy,
    and another one is not yours to give it (it also changes how often draft tokens are accepted). Keep the argmax, and
    tell the two rules the q that belongs to it."""
    return flawed_argmax(p, q, random, draft=pick(q, random()), test=q, rest=q)


@ARGMAX.mutant
def residual_of_the_softmax(p, q, random):
    """Your acceptance test knows now that the draft token was certain, but your residual still subtracts the softmax
    q. It takes probability from tokens that were never proposed. Both rules need the same q."""
    return flawed_argmax(p, q, random, rest=q)


@ARGMAX.mutant
def test_of_the_softmax(p, q, random):
    """Your residual is right now, but the acceptance test still divides by the softmax q(d). The token was proposed
    with probability 1, so it has to be accepted with probability p(d)."""
    return flawed_argmax(p, q, random, test=q)


# ---- 14.two_precisions ----------------------------------------------------------------------------------------------


def two_precisions(p, logits, random):
    return flawed_precisions(p, logits, random)


def sampled_from(logits: Tensor) -> Tensor:
    """The probabilities that the draft model's own sampler uses: softmax in bfloat16, without a last division."""
    return logits.bfloat16().softmax(0).double()


def flawed_precisions(p, logits, random, *, test=None, rest=None):
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
    title="Two versions of q",
    level="M",
    minutes=20,
    points=2,
    hints=(
        "Print the distribution that the draft token is sampled from beside the one that the rules use. Are they "
        "equal? Do both of them sum to 1?",
        "Sample and verify with one tensor. Which of the two it is does not matter for the output. If you keep the "
        "bfloat16 one, remember that its sum is not exactly 1, and that pick divides by the sum.",
        "One tensor for all three uses: the bfloat16 softmax, turned back into float64 and divided by its sum, goes"
        " to pick, to accept_probability and to residual. Or all three get the softmax of the float64 logits.",
    ),
    code="minispec.sampling.Sampling.probs",
    reference=two_precisions,
    observe=emitted_tokens,
    cases=[
        dict(p=law(0.5, 0.5), logits=law(0.3, -0.1)),
        dict(p=law(0.25, 0.75), logits=law(1.7, 0.3)),
        dict(p=law(0.2, 0.3, 0.5), logits=law(0.7, 1.3, -0.6)),
        dict(p=law(0.6, 0.3, 0.1), logits=law(0.1, 0.2, 1.9)),
    ],
)


@PRECISIONS.mutant
def precisions_as_reported(p, logits, random):
    """Your output is still biased by a few thousandths. The draft token comes from one version of q and is judged by
    another: compare the two tensors, number by number."""
    other = logits.double().softmax(0)
    return flawed_precisions(p, logits, random, test=other, rest=other)


@PRECISIONS.mutant
def sum_is_not_one(p, logits, random):
    """You use the bfloat16 probabilities everywhere, and they do not sum to 1. pick divides by their sum, so the token
    is sampled from another distribution than the one your two rules see. Normalise q once, before its first use."""
    drawn = sampled_from(logits)
    return flawed_precisions(p, logits, random, test=drawn, rest=drawn)


@PRECISIONS.mutant
def precise_residual(p, logits, random):
    """Your acceptance test uses the q that was sampled from, your residual still the other version. What is emitted
    after a rejection has to make up for the same q."""
    return flawed_precisions(p, logits, random, rest=logits.double().softmax(0))


@PRECISIONS.mutant
def precise_test(p, logits, random):
    """Your residual uses the q that was sampled from, your acceptance test still the other version."""
    return flawed_precisions(p, logits, random, test=logits.double().softmax(0))


# ---- 14.penalties ---------------------------------------------------------------------------------------------------


def penalised_step(logits, draft, counts, penalty):
    return flawed_penalties(logits, draft, counts, penalty)


def flawed_penalties(logits, draft, counts, penalty, *, each=True, noted=lambda emitted, draft: emitted):
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
    if not isinstance(after, Tensor) or after.shape != counts.shape:
        raise Complaint(f"the counts should be a tensor of shape {tuple(counts.shape)}, one for each token.")
    return {"emitted": list(tokens(emitted, "the first result")), "counts": [round(float(x), 6) for x in after]}


def whole(*counts: int) -> Tensor:
    return torch.tensor(counts)


PENALTIES = exercise(
    "14.penalties",
    title="A penalty that gets weaker with a better draft",
    level="M",
    minutes=20,
    points=3,
    hints=(
        "Plain decoding updates the counts after each token. How often does this program update them when a step "
        "emits four tokens?",
        "Two things depend on the counts: what the next step is told, and what the later positions of the same step "
        "are told. A position comes after all tokens that this step has emitted before it.",
        "Inside the loop, directly after the choice: emitted.append(choice); counts[choice] += 1. Nothing is left to "
        "do after the loop. (Work on a copy of counts.)",
    ),
    code="minispec.verify.greedy",
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


@PENALTIES.mutant
def penalties_as_reported(logits, draft, counts, penalty):
    """Your step still notes one token, however many it emits. With a mean acceptance length of 3 two thirds of all
    tokens are never penalised."""
    return flawed_penalties(logits, draft, counts, penalty, each=False, noted=lambda emitted, draft: emitted[-1:])


@PENALTIES.mutant
def noted_after_the_step(logits, draft, counts, penalty):
    """You note all emitted tokens, but only when the step is over. Inside the step every position is still judged by
    the counts from before it, so a draft that repeats a token passes. Each position has to see the tokens before
    it."""
    return flawed_penalties(logits, draft, counts, penalty, each=False)


@PENALTIES.mutant
def one_noted_at_the_end(logits, draft, counts, penalty):
    """Inside the step you penalise right, but what you return has only the last token noted. The next step starts from
    these counts: return those that your loop has built up."""
    return flawed_penalties(logits, draft, counts, penalty, noted=lambda emitted, draft: emitted[-1:])


@PENALTIES.mutant
def the_whole_draft_noted(logits, draft, counts, penalty):
    """You note the draft tokens instead of the emitted ones. A rejected draft token is not part of the output, and the
    token that replaced it is: note what was emitted."""
    return flawed_penalties(logits, draft, counts, penalty, noted=lambda emitted, draft: draft)


@PENALTIES.mutant
def the_last_is_missing(logits, draft, counts, penalty):
    """You note the accepted draft tokens and forget the correction or the bonus. Every emitted token counts, the last
    one of a step too."""
    return flawed_penalties(logits, draft, counts, penalty, noted=lambda emitted, draft: emitted[:-1])


# ---- 14.eos ---------------------------------------------------------------------------------------------------------


def finish(steps, eos, max_new_tokens):
    return flawed_finish(steps, eos, max_new_tokens)


def flawed_finish(steps, eos, max_new_tokens, *, kept=0, length_first=False, capped=True):
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
    title="The end in the middle of a step",
    level="E",
    minutes=15,
    points=2,
    hints=(
        "What would plain decoding return, which looks at every single token when it is emitted? Take a step of three "
        "tokens whose second one is EOS.",
        "A step can hold tokens after EOS, and it can cross the limit. Whichever of the two comes first ends the "
        'output; if EOS is exactly the last token allowed, plain decoding says "stop".',
        "Two nested loops, over the steps and over the tokens of a step. After each token that was added ask two "
        'questions, in this order: is it an end token ("stop"), is the output as long as allowed ("length")? If the'
        " steps run out first, the reason is None.",
    ),
    code="minispec.generate.Writer.write",
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


@FINISH.mutant
def finish_as_reported(steps, eos, max_new_tokens):
    """Your program still looks only at the last token of a step. An EOS before it is passed over, and the request goes
    on."""
    output = []
    for emitted in steps:
        output = output + list(emitted)
        if len(output) >= max_new_tokens:
            return output[:max_new_tokens], "length"
        if output[-1] in eos:
            return output, "stop"
    return output, None


@FINISH.mutant
def tokens_after_the_end(steps, eos, max_new_tokens):
    """You find an EOS anywhere in a step, but what was accepted after it stays in the output. Cut it there."""
    return flawed_finish(steps, eos, max_new_tokens, kept=1)


@FINISH.mutant
def the_limit_hides_the_end(steps, eos, max_new_tokens):
    """You ask for the limit before you ask for EOS. A token that is both the last one allowed and EOS ends the output
    with "stop" in plain decoding."""
    return flawed_finish(steps, eos, max_new_tokens, length_first=True)


@FINISH.mutant
def the_end_beats_the_limit(steps, eos, max_new_tokens):
    """You let an EOS count that comes after max_new_tokens. Plain decoding would never have got there: the limit was
    reached before."""
    return flawed_finish(steps, eos, max_new_tokens, capped=False)


@FINISH.mutant
def the_end_is_lost(steps, eos, max_new_tokens):
    """You cut the output before EOS. Here EOS is part of the output, as in plain decoding: cut after it."""
    return flawed_finish(steps, eos, max_new_tokens, kept=-1)


# ---- 14.stop_string -------------------------------------------------------------------------------------------------


def stop_string(steps, stop):
    return flawed_stop(steps, stop)


def flawed_stop(steps, stop, *, text=lambda before, step: before + step, at=str.find, keep=None, include=False):
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
    title="A stop string inside a step",
    level="M",
    minutes=20,
    points=3,
    hints=(
        "The window of the last len(stop) tokens is enough when one token arrives at a time, because a match then "
        "ends in the last token. Where can a match end if five tokens arrive at once?",
        "Search after every token instead of after every step, in the text of all tokens so far: a match may begin in "
        "an earlier step. The token that completes the match is the last one that is kept.",
        "Add the pieces one at a time, whatever step they came in, and look for the stop string in everything "
        "joined so far. At the first match cut the text in front of it; the count is that of the pieces added until"
        " then.",
    ),
    code="minispec.generate.Writer.write",
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


@STOP.mutant
def stop_as_reported(steps, stop):
    """Your program still looks only at the end of what has arrived. A stop string that was completed early in a long
    step has left the window by then."""
    arrived: list[str] = []
    for step in steps:
        arrived = arrived + list(step)
        if stop in "".join(arrived[-len(stop) :]):
            joined = "".join(arrived)
            return joined[: joined.index(stop)], len(arrived)
    return "".join(arrived), len(arrived)


@STOP.mutant
def inside_one_step_only(steps, stop):
    """You search each step by itself. A stop string that begins in one step and ends in the next, in the correction
    say, is never found."""
    return flawed_stop(steps, stop, text=lambda before, step: step)


@STOP.mutant
def tokens_past_the_stop(steps, stop):
    """Your text is cut at the stop string, but you count all tokens of its step. What the caller is charged for, and
    gets log-probabilities for, ends with the token that completes the stop string."""
    return flawed_stop(steps, stop, keep="step")


@STOP.mutant
def stop_in_the_text(steps, stop):
    """You leave the stop string in the text. It says where the text ends and is not part of it."""
    return flawed_stop(steps, stop, include=True)
