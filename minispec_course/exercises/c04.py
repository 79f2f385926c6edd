"""Fresh cases of set 04."""

from __future__ import annotations

from .e03 import ceil_div
from .e04 import batching_steps, make_room
from .fresh import Draw, fresh


def requests(draw: Draw, least: int = 1) -> list[int]:
    return [draw.whole(1, 3 + 2 * draw.size) for _ in range(draw.whole(least, 3 + 2 * draw.size))]


@fresh("04.static_waste", "several batches")
def _(draw):
    def make():
        return dict(lengths=requests(draw, 3), slots=draw.whole(2, 4))

    return draw.until(
        make,
        lambda case: len(case["lengths"]) > case["slots"] and len({*batching_steps(**case), max(case["lengths"])}) > 1,
    )


@fresh("04.static_waste", "one slot, or one for each request", weight=0.5)
def _(draw):
    lengths = requests(draw)
    return dict(lengths=lengths, slots=draw.choice([1, len(lengths), len(lengths) + draw.whole(1, 3)]))


def step_case(draw: Draw) -> dict:
    seats = draw.whole(1, 2 + draw.size)
    running = draw.whole(0, seats)
    waiting = draw.whole(0 if running else 1, 1 + draw.size)
    behind = [1 if draw.chance(0.4) else draw.whole(2, 4 + 2 * draw.size) for _ in range(running + waiting)]
    budget, max_chunk = seats + draw.whole(0, 3 * draw.size), draw.whole(1, 3 + 2 * draw.size)
    return dict(behind=behind, running=running, seats=seats, budget=budget, max_chunk=max_chunk)


@fresh("04.token_budget", "decodes and prompts share the budget")
def _(draw):
    return draw.until(
        lambda: step_case(draw),
        lambda case: 1 in case["behind"][: case["running"]] and max(case["behind"][: case["running"]]) > 1,
    )


@fresh("04.token_budget", "new requests and free slots")
def _(draw):
    return draw.until(lambda: step_case(draw), lambda case: case["running"] < min(case["seats"], len(case["behind"])))


@fresh("04.token_budget", "budget or slots run out")
def _(draw):
    def scarce(case):
        wanted = sum(min(b, case["max_chunk"]) for b in case["behind"][: case["seats"]])
        return wanted > case["budget"] or len(case["behind"]) > case["seats"]

    return draw.until(lambda: step_case(draw), scarce)


@fresh("04.token_budget", "chunks of limited length", weight=0.5)
def _(draw):
    return draw.until(lambda: step_case(draw), lambda case: max(case["behind"]) > case["max_chunk"] < case["budget"])


def crowd(draw: Draw) -> dict:
    """Requests most of which need a block just now, and would fit into memory alone."""

    def make():
        block_size, count = draw.whole(1, 2 + draw.size), draw.whole(1, 2 + draw.size)
        prompt, output = [], []
        for _ in range(count):
            tokens = block_size * draw.whole(1, 4) + (1 if draw.chance(0.6) else draw.whole(1, block_size))
            prompt.append(draw.whole(1, tokens - 1))
            output.append(tokens - prompt[-1])
        return dict(prompt=prompt, output=output, free=draw.choice([0, 0, 1, 2]), block_size=block_size)

    def fits(case):
        tokens = [p + o for p, o in zip(case["prompt"], case["output"], strict=True)]
        held = sum(ceil_div(n - 1, case["block_size"]) for n in tokens)
        return min(tokens) >= 2 and all(ceil_div(n, case["block_size"]) <= held + case["free"] for n in tokens)

    return draw.until(make, fits)


def preempted(case: dict) -> list:
    return make_room(**case)[1]


@fresh("04.preemption", "there is room", weight=0.5)
def _(draw):
    return draw.until(lambda: crowd(draw), lambda case: not preempted(case))


@fresh("04.preemption", "somebody gives way")
def _(draw):
    return draw.until(lambda: crowd(draw), lambda case: bool(preempted(case)))


@fresh("04.preemption", "all blocks of a victim become free")
def _(draw):
    """One block fewer would make a difference: the last one, which may be partly filled, counts as well."""

    def every_block_counts(case):
        return giving_back(case, lambda blocks: blocks) != giving_back(case, lambda blocks: max(1, blocks - 1))

    draw.size = max(draw.size, 2)
    return draw.until(lambda: crowd(draw), every_block_counts)


def giving_back(case: dict, returned) -> list[int]:
    """Who gives way if a victim with so many blocks gives back so many."""
    size, free, out = case["block_size"], case["free"], []
    tokens = [p + o for p, o in zip(case["prompt"], case["output"], strict=True)]
    running = list(range(len(tokens)))
    for i, n in enumerate(tokens):
        while i in running and (n - 1) % size == 0 and free == 0:
            out.append(running.pop())
            free += returned(ceil_div(tokens[out[-1]] - 1, size))
        free -= i in running and (n - 1) % size == 0
    return out


@fresh("04.preemption", "the asking request itself gives way")
def _(draw):
    def last_of_all(case):
        gone = preempted(case)
        return bool(gone) and gone[-1][0] == len(make_room(**case)[0])

    return draw.until(lambda: crowd(draw), last_of_all)
