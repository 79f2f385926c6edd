"""Fresh cases of set 15, sampling that depends on the prefix: c15.py imports them."""

from __future__ import annotations

from .fresh import Draw, fresh

# ---- 15.penalties ---------------------------------------------------------------------------------------------------


def logits_case(draw: Draw, output: int, drafted: int, frequency: float | None = None, presence=None) -> dict:
    size = draw.whole(2, 2 + draw.size)
    rows = [[draw.whole(-8, 8) / 4 for _ in range(size)] for _ in range(drafted + 1)]
    sizes = [draw.whole(1, 8) / 4 if given is None else given for given in (frequency, presence)]
    output, drafted = ([draw.randrange(size) for _ in range(n)] for n in (output, drafted))
    return dict(logits=rows, output=output, drafted=drafted, frequency=sizes[0], presence=sizes[1])


@fresh("15.penalties", "no draft", weight=0.5)
def _(draw):
    return logits_case(draw, draw.whole(0, 2 + 2 * draw.size), 0)


@fresh("15.penalties", "a draft after some output", weight=2)
def _(draw):
    return logits_case(draw, draw.whole(1, 2 + 2 * draw.size), draw.whole(1, 1 + draw.size))


@fresh("15.penalties", "a draft right after the prompt")
def _(draw):
    return logits_case(draw, 0, draw.whole(1, 2 + draw.size))


@fresh("15.penalties", "one of the two penalties alone", weight=0.5)
def _(draw):
    alone = draw.choice([dict(frequency=0.0), dict(presence=0.0)])
    return logits_case(draw, draw.whole(1, 2 + draw.size), draw.whole(1, 2 + draw.size), **alone)


@fresh("15.penalties", "penalties below zero, which are rewards", weight=0.5, count=5)
def _(draw):
    sizes = dict(frequency=-draw.whole(1, 4) / 4, presence=draw.choice([-1, 1]) * draw.whole(1, 4) / 4)
    return logits_case(draw, draw.whole(0, 2 + draw.size), draw.whole(1, 1 + draw.size), **sizes)


# ---- 15.constraint --------------------------------------------------------------------------------------------------


def automaton(draw: Draw) -> tuple[dict, list[str], list[int]]:
    """A random automaton over some tokens, its pairs in no order. Every state goes on, and none with any token."""
    states = draw.sample(["", *"abcdefg"], draw.whole(2, 2 + draw.size))  # "" is a name as good as others
    vocabulary = draw.sample(range(draw.choice([4, 30])), 4)
    pairs = [(state, token) for state in states for token in draw.sample(vocabulary, draw.whole(1, 3))]
    draw.shuffle(pairs)
    return {pair: draw.choice(states) for pair in pairs}, states, vocabulary


def with_an_end(draw: Draw) -> tuple[dict, list[str], list[int]]:
    """One in which a state has no steps: whatever is allowed ends there."""
    step, states, vocabulary = automaton(draw)
    for pair in draw.sample(sorted(step), draw.whole(1, len(step))):
        step[pair] = "end"
    return step, states, vocabulary


def walk(draw: Draw, step: dict, vocabulary: list[int], state: str, n: int, valid: bool = True) -> list[int]:
    """n draft tokens from a state; valid ones as far as it goes on, or with one that has no step."""
    drafted, wrong = [], None if valid else draw.randrange(n)
    for i in range(n):
        known = [token for s, token in step if s == state]
        others = [token for token in vocabulary if token not in known]
        token = draw.choice(others if i == wrong else known or vocabulary)
        drafted.append(token)
        state = step.get((state, token), state)
    return drafted


def constrained(draw: Draw, n: int, accepted: int | None = None, *, valid=True, known=True, made=automaton) -> dict:
    """A draft of n tokens. accepted: as many as fit, at most. known: the emitted token has a step."""
    step, states, vocabulary = made(draw)
    state = draw.choice(states)
    drafted = walk(draw, step, vocabulary, state, n, valid)
    path = [state]
    for token in drafted:
        path.append(step.get((path[-1], token)))
    fits = next((i for i, at in enumerate(path) if at is None), len(path)) - 1
    accepted = draw.whole(0, fits) if accepted is None else min(accepted, fits)
    steps = [token for s, token in step if s == path[accepted]]
    token = draw.choice((steps if known else []) or [t for t in vocabulary if t not in steps])
    return dict(step=step, state=state, drafted=drafted, accepted=accepted, token=token)


@fresh("15.constraint", "no draft", weight=0.5)
def _(draw):
    return constrained(draw, 0)


@fresh("15.constraint", "all accepted")
def _(draw):
    n = draw.whole(1, 1 + draw.size)
    return constrained(draw, n, accepted=n)


@fresh("15.constraint", "some rejected", weight=2)
def _(draw):
    return constrained(draw, draw.whole(1, 2 + draw.size))


@fresh("15.constraint", "a draft that leaves the automaton")
def _(draw):
    return constrained(draw, draw.whole(1, 2 + draw.size), valid=False)


@fresh("15.constraint", "an emitted token that has no step", weight=0.5, count=6)
def _(draw):
    return constrained(draw, draw.whole(0, 1 + draw.size), known=False)


@fresh("15.constraint", "a state with no steps", weight=0.5, count=6)
def _(draw):
    return constrained(draw, draw.whole(1, 2 + draw.size), made=with_an_end)
