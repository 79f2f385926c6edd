"""Fresh cases of set 14, bugs from the field."""

from __future__ import annotations

import torch

from .e14_field import sampled_from
from .e14_field_state import flawed_grammar
from .fresh import Draw, fresh

# ---- what is sampled ------------------------------------------------------------------------------------------------


def greedy_draft(draw: Draw, fits) -> dict:
    def make():
        q = draw.probs(positive=True, distinct=True)
        return dict(p=draw.probs(len(q)), q=q)

    return draw.until(make, lambda case: fits(float(case["p"][case["q"].argmax()]), float(case["q"].max())))


@fresh("14.argmax_draft", "the target likes it less", weight=2)
def _(draw):
    return greedy_draft(draw, lambda p, q: 0 < p < q)


@fresh("14.argmax_draft", "the target likes it more")
def _(draw):
    return greedy_draft(draw, lambda p, q: q < p < 1)


@fresh("14.argmax_draft", "never or always", weight=0.5, count=6)
def _(draw):
    n = draw.whole(2, 4)
    q = draw.probs(n, positive=True, distinct=True)
    p = torch.zeros(n).double()
    p[draw.choice([int(q.argmax()), draw.randrange(n)])] = 1.0
    return dict(p=p, q=q)


def rounded_draft(draw: Draw, fits) -> dict:
    def make():
        logits = draw.decimals(draw.whole(2, 2 + draw.size // 2)) + draw.whole(0, 9) / 100
        return dict(p=draw.probs(len(logits), positive=True), logits=logits)

    def wanted(case):
        sampled, precise = sampled_from(case["logits"]), case["logits"].softmax(0)
        off = float((sampled / sampled.sum() - precise).abs().max())
        return off > 1e-4 and fits(abs(float(sampled.sum()) - 1))

    return draw.until(make, wanted)


@fresh("14.two_precisions", "rounded probabilities", weight=2)
def _(draw):
    return rounded_draft(draw, lambda excess: True)


@fresh("14.two_precisions", "probabilities that do not sum to 1")
def _(draw):
    return rounded_draft(draw, lambda excess: excess > 1e-4)


# ---- what is penalised, where it ends -------------------------------------------------------------------------------


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


@fresh("14.penalties", "several tokens per step", weight=2)
def _(draw):
    return penalised(draw, 1.0, repeat=0.3)


@fresh("14.penalties", "the same token again and again", weight=2)
def _(draw):
    return penalised(draw, 1.0, repeat=1.0)


@fresh("14.penalties", "rejected draft tokens")
def _(draw):
    return penalised(draw, 0.6, repeat=0.5)


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


@fresh("14.eos", "the end inside a step", weight=2)
def _(draw):
    return outputs(draw, 0.3, "far")


@fresh("14.eos", "the limit inside a step")
def _(draw):
    return outputs(draw, 0.0, "near")


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


@fresh("14.stop_string", "no stop string", weight=0.5, count=6)
def _(draw):
    return text(draw, "!", 3)


# ---- state ----------------------------------------------------------------------------------------------------------


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
        emitted, _ = flawed_grammar(grammar, state, logits, draft)
        draft.append(emitted[-1] if len(emitted) == len(draft) + 1 and draw.chance(follow) else draw.randrange(n))
    return dict(grammar=grammar, state=state, logits=logits, draft=draft)


@fresh("14.grammar", "all accepted")
def _(draw):
    return parsed(draw, 1.0)


@fresh("14.grammar", "rejected on the way", weight=2)
def _(draw):
    return draw.until(lambda: parsed(draw, 0.6), lambda case: len(flawed_grammar(**case)[0]) <= len(case["draft"]))


def drafted(draw: Draw, full: float, empty: float = 0.0) -> dict:
    """Cycles of a request: accepted completely with probability `full`, without a draft with probability `empty`."""
    numbers = iter(range(10, 99))
    cycles = []
    for _ in range(draw.whole(2, 2 + draw.size)):
        draft = [] if draw.chance(empty) else [next(numbers) for _ in range(draw.whole(1, 1 + draw.size // 2))]
        passed = len(draft) if draw.chance(full) else draw.whole(0, max(0, len(draft) - 1))
        cycles.append((draft, [*draft[:passed], next(numbers)]))
    return dict(prompt=[next(numbers) for _ in range(draw.whole(1, 3))], cycles=cycles)


@fresh("14.draft_cache", "rejected draft tokens")
def _(draw):
    return drafted(draw, 0.0)


@fresh("14.draft_cache", "full acceptance", weight=2)
def _(draw):
    return drafted(draw, 0.7)


@fresh("14.draft_cache", "cycles without a draft")
def _(draw):
    return drafted(draw, 0.5, empty=0.4)


def shortlist(draw: Draw, first: int) -> dict:
    """A draft vocabulary: some ids of the target's, in order, beginning with `first`."""
    n = draw.whole(2, 3 + draw.size)
    vocab = n + draw.whole(2, 2 + 2 * draw.size) + first
    ids = sorted(draw.sample(range(first + 1, vocab - 1), n - 1))
    d2t = torch.tensor([first, *ids]) - torch.arange(n)
    return dict(probs=draw.probs(n, positive=True, distinct=True), d2t=d2t, vocab_size=vocab)


@fresh("14.draft_vocabulary", "frequent tokens, spread over the vocabulary", weight=2)
def _(draw):
    return shortlist(draw, 0)


@fresh("14.draft_vocabulary", "the first one has moved, too")
def _(draw):
    return shortlist(draw, draw.whole(1, 4))


# ---- numbers --------------------------------------------------------------------------------------------------------


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


@fresh("14.acceptance_length", "cycles in general")
def _(draw):
    return measured(draw)


@fresh("14.acceptance_length", "cycles without a draft")
def _(draw):
    return measured(draw, empty=0.4)


@fresh("14.acceptance_length", "the end of a request")
def _(draw):
    return measured(draw, ends=True)


def tested(draw: Draw, full: float) -> dict:
    cycles = []
    for _ in range(draw.whole(1, 2 + 2 * draw.size)):
        k = draw.whole(1, 2 + draw.size)
        cycles.append((k, k if draw.chance(full) else draw.whole(0, k - 1)))
    return dict(cycles=cycles)


@fresh("14.acceptance_rate", "rejections everywhere")
def _(draw):
    return tested(draw, 0.0)


@fresh("14.acceptance_rate", "some accepted completely", weight=2)
def _(draw):
    return tested(draw, 0.5)


@fresh("14.acceptance_rate", "cycles without a draft", weight=0.5, count=6)
def _(draw):
    case = tested(draw, 0.3)
    case["cycles"].insert(draw.randrange(len(case["cycles"]) + 1), (0, 0))
    return case
