"""Fresh cases of set 11, second half: c11.py imports them, because cases are looked for by the number of a set."""

from __future__ import annotations

from string import ascii_uppercase

from .e11_load import flawed_admission
from .fresh import Draw, fresh

# ---- 11.latencies ---------------------------------------------------------------------------------------------------


def stream(draw: Draw, tokens: list[int], *, together: float = 0.0) -> dict:
    """A request whose events bring so many tokens; each may arrive at the same moment as the one before it."""
    sent = draw.whole(0, 12) / 4
    time, log = sent + draw.whole(1, 8) / 4, []
    for brought in tokens:
        if log and not draw.chance(together):
            time += draw.whole(1, 8) / 4
        log.append((time, brought))
    return dict(sent=sent, log=log)


@fresh("11.latencies", "one token per event")
def _(draw):
    return stream(draw, [1] * draw.whole(2, 2 + 2 * draw.size))


@fresh("11.latencies", "bursts", weight=2)
def _(draw):
    def some():
        return [draw.whole(1, 1 + draw.size) for _ in range(draw.whole(2, 2 + draw.size))]

    return stream(draw, draw.until(some, lambda tokens: max(tokens) > 1))


@fresh("11.latencies", "a single event", count=8)
def _(draw):
    return stream(draw, [draw.choice([1, 1, draw.whole(2, 5)])])


@fresh("11.latencies", "events at the same moment", weight=0.5, count=6)
def _(draw):
    return stream(draw, [draw.whole(1, 3) for _ in range(draw.whole(2, 3 + draw.size))], together=0.7)


# ---- 11.goodput -----------------------------------------------------------------------------------------------------


def load(draw: Draw, kinds: str, count: int | None = None) -> dict:
    """Requests of these kinds: good, slow to the first token, slow after it, late in both, failed, no wait at all,
    one token, at a target."""
    ttft, tpot = draw.whole(4, 30), draw.whole(3, 12)  # targets, in twentieths of a second

    def below(target):
        return draw.whole(1, target - 1) / 20

    def above(target):
        return draw.whole(target + 1, 3 * target) / 20

    def made(kind):
        return {
            "g": (below(ttft), below(tpot)),
            "t": (above(ttft), below(tpot)),
            "p": (below(ttft), above(tpot)),
            "b": (above(ttft), above(tpot)),
            "f": (None, None),
            "0": (0.0, draw.choice([0.0, below(tpot), above(tpot)])),  # a time like any other: None alone means none
            "1": (draw.choice([below, above])(ttft), None),
            "=": draw.choice(
                [
                    (ttft / 20, below(tpot)),
                    (below(ttft), tpot / 20),
                    (ttft / 20, tpot / 20),
                    (ttft / 20, None),
                    (ttft / 20, above(tpot)),
                    (above(ttft), tpot / 20),
                ]
            ),
        }[kind]

    requests = [made(draw.choice(kinds)) for _ in range(draw.whole(1, 2 + 2 * draw.size) if count is None else count)]
    return dict(requests=requests, seconds=float(draw.whole(1, 12)), ttft_target=ttft / 20, tpot_target=tpot / 20)


@fresh("11.goodput", "both targets", weight=2)
def _(draw):
    return load(draw, "ggtpb")


@fresh("11.goodput", "failed ones and single tokens", weight=2)
def _(draw):
    return load(draw, "ff11gt")


@fresh("11.goodput", "exactly at a target")
def _(draw):
    return load(draw, "===gf")


@fresh("11.goodput", "no wait at all", weight=0.5, count=4)
def _(draw):
    return load(draw, "00f1")


@fresh("11.goodput", "nothing to count", weight=0.5, count=6)
def _(draw):
    kinds, count = draw.choice([("g", 0), ("f", draw.whole(1, 3)), ("tpbf", draw.whole(1, 4))])
    return load(draw, kinds, count)


# ---- 11.admission ---------------------------------------------------------------------------------------------------


def queue(draw: Draw, fits, *, running: int | None = None, blocks: str = "many", target: str = "any") -> dict:
    """A queue, of which `fits(admitted, case)` says whether it is of the kind that is wanted.

    blocks: "many", or "few": not enough for all. target: "any"; "generous": always met; "equal": met exactly by some
    batch, in numbers that division does not round."""

    def make():
        most = draw.whole(2, 3 + 2 * draw.size)
        waiting = [draw.whole(1, 5) for _ in range(draw.whole(1, 2 + draw.size))]
        time, seconds = draw.whole(2, 8), []
        for _ in range(most):  # a larger batch never takes less time
            seconds.append(time / 4)
            time += draw.whole(0, 4)
        per_step = float(draw.choice([1, 2, 4] if target == "equal" else [1, 1, 1.5, 2, 2.5, 3]))
        tpots = [step / per_step for step in seconds]
        limit = {"any": draw.whole(2, 30) / 8, "generous": 2 * max(tpots), "equal": draw.choice(tpots)}[target]
        free = sum(waiting) + draw.whole(0, 5) if blocks == "many" else draw.whole(0, sum(waiting) - 1)
        at = draw.whole(0, most) if running is None else running
        return dict(
            waiting=waiting, running=at, free_blocks=free, seconds=seconds, tokens_per_step=per_step, target=limit
        )

    def wanted(case):
        tpots = [step / case["tokens_per_step"] for step in case["seconds"]]
        clear = target == "equal" or all(abs(tpot - case["target"]) > 1e-6 for tpot in tpots)
        return clear and fits(flawed_admission(*case.values()), case)

    return draw.until(make, wanted)


@fresh("11.admission", "the target decides", weight=2)
def _(draw):
    return queue(draw, lambda admitted, case: admitted < len(case["waiting"]) and case["running"] > 0)


@fresh("11.admission", "the blocks decide", weight=2)
def _(draw):
    def fits(admitted, case):
        return case["running"] + admitted < len(case["seconds"])

    return queue(draw, fits, blocks="few", target="generous")


@fresh("11.admission", "an idle server")
def _(draw):
    return queue(draw, lambda admitted, case: True, running=0, blocks=draw.choice(["many", "many", "few"]))


@fresh("11.admission", "exactly at the target")
def _(draw):
    def fits(admitted, case):
        batch = case["running"] + admitted  # the last one that was admitted met it exactly
        return admitted > 0 and case["seconds"][batch - 1] == case["target"] * case["tokens_per_step"] and batch > 1

    return queue(draw, fits, target="equal")


@fresh("11.admission", "a full batch, or an empty queue", weight=0.5)
def _(draw):
    case = queue(
        draw, lambda admitted, case: case["running"] + len(case["waiting"]) > len(case["seconds"]), target="generous"
    )
    return {**case, "waiting": []} if draw.chance(0.2) else case


# ---- 11.abort -------------------------------------------------------------------------------------------------------


def server(draw: Draw, where: str, shared: float = 0.0) -> dict:
    """Requests in the queue and in the batch. The one to abort is in the queue, in the batch, or nowhere.

    shared: how likely a running request begins with blocks of another one."""
    names = draw.sample(ascii_uppercase[:9], 8)
    id, others = names[0], names[1:]
    waiting = others[: draw.whole(0, min(3, draw.size))]
    batch = others[3 : 3 + draw.whole(int(shared > 0), min(3, 1 + draw.size))]
    if where == "queue":
        waiting.insert(draw.whole(0, len(waiting)), id)
    if where == "batch":
        batch.insert(draw.whole(0, len(batch)), id)
    pool = draw.sample(range(40), 40)
    size = sum(1 + draw.size for _ in batch) + draw.whole(1, 2)
    pool, tables = [block for block in pool if block < size], {}
    for name in batch:
        prefix = []
        if tables and draw.chance(shared):
            other = draw.choice(list(tables.values()))
            prefix = other[: draw.whole(1, len(other))]
        tables[name] = prefix + [pool.pop() for _ in range(draw.whole(int(not prefix), 1 + draw.size))]
    refcount = [sum(block in table for table in tables.values()) for block in range(size)]
    return dict(id=id, waiting=waiting, tables=tables, refcount=refcount)


@fresh("11.abort", "it runs, with blocks of its own")
def _(draw):
    return server(draw, "batch")


@fresh("11.abort", "it waits")
def _(draw):
    return server(draw, "queue", draw.choice([0.0, 0.5]))


@fresh("11.abort", "it shares a prefix", weight=2)
def _(draw):
    def fits(case):
        return any(case["refcount"][block] > 1 for block in case["tables"][case["id"]])

    return draw.until(lambda: server(draw, "batch", 0.8), fits)


@fresh("11.abort", "it has ended already", weight=0.5, count=6)
def _(draw):
    return server(draw, "nowhere", draw.choice([0.0, 0.5]))
