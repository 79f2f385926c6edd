"""Set 11, speculation in a server: lookahead slots, rolling a block table back, one draft length for a batch; latencies
from a log with bursts, goodput, an admission rule that keeps a target, aborts, the hand-over of a cache."""

import math
from itertools import pairwise
from operator import le, lt
from string import ascii_uppercase

from minispec import theory

from ..exercise import Complaint, exercise
from ..fresh import Draw, fresh
from ..returned import items, number, pair, several, whole_number, whole_numbers
from ..show import kind, plain


def blocks_for(tokens, block_size):
    return -(-tokens // block_size)


# ---- 11.lookahead_slots ---------------------------------------------------------------------------------------------
def lookahead_slots(
    num_tokens, num_computed, k, max_tokens, block_size, num_blocks, *, most=None, extra=0, todo=None, round_up=None
):
    """Lookahead slots with a switch for each way to get them wrong."""
    drafts = max(0, min(k, max_tokens - num_tokens - 1 if most is None else most))
    slots = (num_tokens - num_computed if todo is None else todo) + drafts + extra
    return slots, max(0, (round_up or blocks_for)(num_computed + slots, block_size) - num_blocks)


def observe_lookahead(answer, **case):
    slots, blocks = pair(answer(*case.values()), "the slots of the pass and the blocks to allocate")
    return {"slots": whole_number(slots, "the slots"), "fresh blocks": whole_number(blocks, "the number of blocks")}


LOOKAHEAD = exercise(
    "11.lookahead_slots",
    reference=lookahead_slots,
    observe=observe_lookahead,
    cases=[
        dict(num_tokens=3, num_computed=2, k=0, max_tokens=20, block_size=4, num_blocks=1),
        dict(num_tokens=3, num_computed=2, k=1, max_tokens=20, block_size=4, num_blocks=1),
        dict(num_tokens=3, num_computed=2, k=4, max_tokens=20, block_size=4, num_blocks=1),
        dict(num_tokens=4, num_computed=3, k=4, max_tokens=20, block_size=4, num_blocks=1),
        dict(num_tokens=9, num_computed=8, k=4, max_tokens=12, block_size=4, num_blocks=2),
        dict(num_tokens=12, num_computed=11, k=4, max_tokens=13, block_size=4, num_blocks=3),
        dict(num_tokens=12, num_computed=11, k=4, max_tokens=12, block_size=4, num_blocks=3),
        dict(num_tokens=10, num_computed=0, k=3, max_tokens=40, block_size=4, num_blocks=0),
        dict(num_tokens=6, num_computed=5, k=1, max_tokens=40, block_size=4, num_blocks=4),
        dict(num_tokens=33, num_computed=32, k=15, max_tokens=99, block_size=16, num_blocks=2),
    ],
)


@LOOKAHEAD.wrong_solutions
class _:
    def no_slot_for_the_last_token(*case):
        """You make room for the draft tokens only. The last token of the sequence was emitted but not yet processed, so
        the pass also runs on it, before the draft tokens. Add one slot for it."""
        return lookahead_slots(*case, extra=-1)

    def a_slot_for_the_bonus(*case):
        """You reserve a slot for the token that the pass emits. No pass has processed that token yet: its key and value
        are stored by the next pass, where it is the last token of the sequence. Remove this slot."""
        return lookahead_slots(*case, extra=1)

    def drafts_beyond_the_end(*case):
        """You draft k tokens even if the sequence may not grow that far. A pass emits at most one token more than it
        drafts, so near max_tokens fewer are enough: try min(k, max_tokens − num_tokens − 1)."""
        return lookahead_slots(*case, most=case[2])

    def fills_up_to_the_end(*case):
        """You draft as many tokens as the sequence may still grow. One of these tokens is always the target's own, so
        one draft token fewer can be used: max_tokens − num_tokens − 1."""
        return lookahead_slots(*case, most=case[3] - case[0])

    def rounds_up_too_far(*case):
        """Where the tokens fill their blocks exactly, you count one block too many: n // block_size + 1 is not ⌈n /
        block_size⌉. Try -(-n // block_size)."""
        return lookahead_slots(*case, round_up=lambda tokens, size: tokens // size + 1)

    def fewer_than_no_blocks(*case):
        """Your number of blocks can be negative. After a pass with a longer draft the table may be longer than this
        pass needs, and then nothing has to be allocated: return 0."""
        slots, _ = lookahead_slots(*case)
        return slots, blocks_for(case[1] + slots, case[4]) - case[5]


def request(draw: Draw, *, room: int, decoding: bool = True) -> dict:
    """A request that may get so many more tokens."""
    num_tokens = draw.whole(1 if decoding else 2, 4 + 6 * draw.size)
    num_computed = num_tokens - 1 if decoding else draw.randrange(num_tokens)
    block_size = draw.whole(1, 3 + 3 * draw.size)
    num_blocks = max(0, blocks_for(num_computed, block_size) + draw.choice([0, 0, 0, 1, 3]))
    sizes = dict(max_tokens=num_tokens + room, block_size=block_size, num_blocks=num_blocks)
    return dict(num_tokens=num_tokens, num_computed=num_computed, k=draw.whole(0, 2 + 2 * draw.size), **sizes)


fresh("11.lookahead_slots", "far from the end", lambda draw: request(draw, room=99))
fresh("11.lookahead_slots", "near the end", lambda draw: request(draw, room=draw.whole(0, 4)))


@fresh("11.lookahead_slots", "a prompt to process")
def _(draw):
    return request(draw, room=draw.choice([draw.whole(0, 3), 50]), decoding=False)


@fresh("11.lookahead_slots", "more blocks than it needs", weight=0.5, count=6)
def _(draw):
    case = request(draw, room=draw.whole(0, 20))
    return {**case, "num_blocks": case["num_tokens"] + draw.whole(2, 9)}


# ---- 11.rollback ----------------------------------------------------------------------------------------------------
def rollback(table, refcount, block_size, length, *, keep=None, release=lambda n: n - 1, frees=lambda n: n == 0):
    """The rollback, with parts to exchange: blocks to keep, a count when its block goes, when a block is free."""
    table, refcount, freed = list(table), list(refcount), []
    keep = blocks_for(length, block_size) if keep is None else keep
    while len(table) > keep:
        block = table.pop()
        refcount[block] = release(refcount[block])
        if frees(refcount[block]):
            freed.append(block)
    return table, refcount, freed


def observe_rollback(answer, table, refcount, block_size, length):
    found = answer(list(table), list(refcount), block_size, length)  # theirs to change
    found = several(found, 3, "the table, the counts and the freed blocks")
    return {name: whole_numbers(part, name) for name, part in zip(("table", "refcount", "freed"), found, strict=True)}


ROLLBACK = exercise(
    "11.rollback",
    reference=rollback,
    observe=observe_rollback,
    cases=[
        dict(table=[0], refcount=[1, 0], block_size=2, length=1),
        dict(table=[0, 1], refcount=[1, 1], block_size=2, length=2),
        dict(table=[0, 1], refcount=[1, 1], block_size=2, length=3),
        dict(table=[0, 1], refcount=[2, 2], block_size=2, length=2),
        dict(table=[2, 0, 3], refcount=[1, 0, 1, 1], block_size=4, length=3),
        dict(table=[5, 1, 4, 2], refcount=[0, 3, 1, 0, 2, 3], block_size=4, length=5),
        dict(table=[3, 6, 0], refcount=[1, 0, 0, 2, 0, 0, 1], block_size=4, length=0),
    ],
)


@ROLLBACK.wrong_solutions
class _:
    def frees_what_others_read(table, refcount, block_size, length):
        """You put every block that you drop on the free list, even those that are still in other tables. The next
        request would overwrite them, and the other requests would attend to its tokens. Free a block only when its
        count has reached 0."""
        return rollback(table, refcount, block_size, length, frees=lambda n: True)

    def counts_to_zero(table, refcount, block_size, length):
        """You set the count of a dropped block to 0. The block left one table only, so lower its count by one; other
        tables may still hold it."""
        return rollback(table, refcount, block_size, length, release=lambda n: 0)

    def gives_away_a_partial_block(table, refcount, block_size, length):
        """You drop the last block although it is partly filled with tokens that are kept. Round up: ⌈length /
        block_size⌉ blocks stay."""
        return rollback(table, refcount, block_size, length, keep=length // block_size)

    def one_block_more(table, refcount, block_size, length):
        """If the kept tokens fill their last block exactly, you keep one block too many, which holds only rejected
        tokens. Keep ⌈length / block_size⌉ blocks; the next pass allocates what it needs."""
        return rollback(table, refcount, block_size, length, keep=length // block_size + 1)

    def from_the_front(table, refcount, block_size, length):
        """You release the blocks from the front. Release the last one first: free blocks are reused in this order, and
        a cached prefix is useful without its end but not without its beginning."""
        table, refcount, freed = rollback(table, refcount, block_size, length)
        return table, refcount, freed[::-1]


def shared_table(draw: Draw, shared: float) -> dict:
    block_size, held = draw.whole(1, 3 + draw.size), draw.whole(1, 2 + draw.size)
    pool = held + draw.whole(0, 3)
    table = draw.sample(range(pool), held)
    refcount = [draw.choice([0, 1, 2]) for _ in range(pool)]
    for block in table:
        refcount[block] = draw.whole(2, 3) if draw.chance(shared) else 1
    return dict(table=table, refcount=refcount, block_size=block_size, length=draw.whole(0, held * block_size))


fresh("11.rollback", "blocks of its own", lambda draw: shared_table(draw, 0.0))
fresh("11.rollback", "shared blocks", lambda draw: shared_table(draw, 0.6))


@fresh("11.rollback", "to the edge of a block")
def _(draw):
    case = shared_table(draw, 0.4)
    return {**case, "length": case["block_size"] * draw.whole(0, len(case["table"]))}


# ---- 11.batch_k -----------------------------------------------------------------------------------------------------
def speeds(alphas, longest, read, compute, draft, *, tokens=None, cycle=None):
    """Tokens a second for k = 0 … longest, with the tokens of a pass or its seconds exchanged by mutants."""
    tokens = tokens or (lambda k: sum(theory.expected_tokens(alpha, k) for alpha in alphas))
    cycle = cycle or (lambda k: k * draft + max(read, len(alphas) * (k + 1) * compute))
    return [tokens(k) / cycle(k) for k in range(longest + 1)]


def fastest(values):
    return max(range(len(values)), key=values.__getitem__)  # of equals the first


def batch_k(alphas, longest, read, compute, draft):
    return fastest(speeds(alphas, longest, read, compute, draft))


BATCH_K = exercise(
    "11.batch_k",
    reference=batch_k,
    observe=lambda answer, **case: whole_number(answer(*case.values()), "k"),
    cases=[
        dict(alphas=[0.5], longest=1, read=10.0, compute=1.0, draft=1.0),
        dict(alphas=[0.1], longest=1, read=10.0, compute=1.0, draft=2.0),
        dict(alphas=[0.8], longest=8, read=10.0, compute=1.0, draft=0.5),
        dict(alphas=[0.8], longest=8, read=10.0, compute=4.0, draft=0.5),
        dict(alphas=[0.8], longest=8, read=9.0, compute=3.0, draft=0.25),
        dict(alphas=[0.8] * 4, longest=8, read=10.0, compute=1.0, draft=0.5),
        dict(alphas=[0.8] * 16, longest=8, read=10.0, compute=1.0, draft=0.5),
        dict(alphas=[0.95, 0.15], longest=8, read=10.0, compute=0.5, draft=1.0),
        dict(alphas=[0.9, 0.9, 0.2, 0.1], longest=8, read=20.0, compute=0.5, draft=1.0),
        dict(alphas=[0.7] * 8, longest=6, read=40.0, compute=1.0, draft=0.5),
        dict(alphas=[0.8, 0.6, 0.4], longest=8, read=10.0, compute=0.2, draft=0.5),
    ],
)


@BATCH_K.wrong_solutions
class _:
    def as_if_alone(alphas, longest, read, compute, draft):
        """You compute the pass of one sequence. The pass processes k + 1 tokens of every sequence, and their arithmetic
        adds up, which is why a large batch leaves nothing for drafts. Multiply by the number of sequences."""
        return fastest(
            speeds(alphas, longest, read, compute, draft, cycle=lambda k: k * draft + max(read, (k + 1) * compute))
        )

    def verification_is_free(alphas, longest, read, compute, draft):
        """You assume that every pass takes as long as reading the weights. That holds while B · (k + 1) tokens are
        computed within that time. Beyond the ridge point every further token costs time: take the larger of the two
        times."""
        return fastest(speeds(alphas, longest, read, compute, draft, cycle=lambda k: k * draft + read))

    def reads_then_computes(alphas, longest, read, compute, draft):
        """You add the times for reading and for computing. They overlap, and the slower one sets the time: use max, not
        +."""
        rows = len(alphas)
        return fastest(
            speeds(alphas, longest, read, compute, draft, cycle=lambda k: k * draft + read + rows * (k + 1) * compute)
        )

    def average_alpha(alphas, longest, read, compute, draft):
        """You average α over the sequences first. E[N] is not linear in α: one sequence that accepts everything and one
        that accepts nothing give more tokens than two average ones. Compute E[N] for each and add them up."""
        mean = sum(alphas) / len(alphas)
        return fastest(speeds(alphas, longest, read, compute, draft, tokens=lambda k: theory.expected_tokens(mean, k)))

    def a_draft_step_for_every_row(alphas, longest, read, compute, draft):
        """You charge the draft time once per sequence. The draft model drafts for all sequences together: `draft` is
        one step of the whole batch, and a draft takes k of them."""
        return batch_k(alphas, longest, read, compute, draft * len(alphas))

    def always_drafts(alphas, longest, read, compute, draft):
        """You always draft. If the batch leaves no idle arithmetic, or the drafts are poor, plain decoding is fastest,
        so include k = 0 in the comparison."""
        return 1 + fastest(speeds(alphas, longest, read, compute, draft)[1:])


def clear(case: dict) -> bool:
    """No two draft lengths are almost equally fast: there rounding would decide."""
    best, second, *_ = sorted(speeds(**case), reverse=True)
    return best > second * (1 + 1e-5)


def batch_case(draw: Draw, fits) -> dict:
    def make():
        alphas = [
            draw.choice([0.0, 1.0, *(draw.whole(1, 19) / 20 for _ in range(6))])
            for _ in range(draw.whole(1, 1 + draw.size))
        ]
        costs = dict(read=float(draw.whole(5, 40)), compute=draw.whole(1, 16) / 4, draft=draw.whole(0, 12) / 4)
        return dict(alphas=alphas, longest=draw.whole(1, 3 + draw.size), **costs)

    def best(case):
        found = speeds(**case)
        return found.index(max(found))

    return draw.until(make, lambda case: clear(case) and fits(best(case), case))


@fresh("11.batch_k", "a best length in between", weight=2)
def _(draw):
    return batch_case(draw, lambda best, case: 0 < best < case["longest"] or case["longest"] == 1)


fresh("11.batch_k", "better not to draft", lambda draw: batch_case(draw, lambda best, case: best == 0))


@fresh("11.batch_k", "sequences that differ much")
def _(draw):
    return batch_case(
        draw, lambda best, case: len(case["alphas"]) > 1 and max(case["alphas"]) > min(case["alphas"]) + 0.5
    )


@fresh("11.batch_k", "equally fast: the smallest", weight=0.5, count=5)
def _(draw):
    """Nothing is accepted, and a longer draft costs nothing."""
    longest = draw.whole(1, 4)
    return dict(alphas=[0.0] * draw.whole(1, 3), longest=longest, read=64.0, compute=1.0, draft=0.0)


# ---- 11.latencies ---------------------------------------------------------------------------------------------------
def latencies(sent, log, *, ttft=None, tpot=None, gaps=None, single=None):
    """The latencies of one request, with parts to exchange."""
    times, tokens = [time for time, _ in log], sum(n for _, n in log)
    first, last = times[0], times[-1]
    itl = [after - before for before, after in pairwise(times)] if gaps is None else gaps(times)
    per_token = (last - first) / (tokens - 1) if tokens > 1 else single
    if tpot is not None and tokens > 1:
        per_token = tpot(first, last, tokens, len(times))
    return first - sent if ttft is None else ttft(first), per_token, itl


def observe_latencies(answer, sent, log):
    found = answer(sent, list(log))
    ttft, tpot, itl = several(found, 3, "TTFT, TPOT and the list of ITLs")
    itl = [number(x, "every ITL") for x in items(itl, "the ITLs")]
    return {"TTFT": plain(ttft), "TPOT": plain(tpot), "ITL": itl}


LATENCIES = exercise(
    "11.latencies",
    reference=latencies,
    observe=observe_latencies,
    cases=[
        dict(sent=0.0, log=[(0.5, 1)]),
        dict(sent=1.0, log=[(1.5, 1), (1.75, 1)]),
        dict(sent=0.0, log=[(1.0, 1), (2.0, 1), (4.0, 1)]),
        dict(sent=2.0, log=[(2.5, 1), (3.0, 4)]),
        dict(sent=2.0, log=[(3.0, 2), (4.0, 3), (4.5, 1)]),
        dict(sent=0.25, log=[(0.5, 3)]),
    ],
)


@LATENCIES.wrong_solutions
class _:
    def tokens_as_parts(sent, log):
        """You divide by the number of events, so your TPOT is the mean ITL. An event of a speculative step contains
        several tokens, and TPOT is per token: divide by the number of tokens minus one."""
        return latencies(sent, log, tpot=lambda first, last, tokens, parts: (last - first) / max(parts - 1, 1))

    def first_token_counted(sent, log):
        """Your TPOT divides by all tokens. The first one had arrived when TPOT's clock started, so one token fewer was
        generated in that time: tokens − 1."""
        return latencies(sent, log, tpot=lambda first, last, tokens, parts: (last - first) / tokens)

    def waiting_in_tpot(sent, log):
        """Your TPOT starts when the request was sent. Queue and prefill belong to TTFT; TPOT starts with the first
        event."""
        return latencies(sent, log, tpot=lambda first, last, tokens, parts: (last - sent) / (tokens - 1))

    def ttft_is_a_moment(sent, log):
        """Your TTFT is the time at which the first event came. A latency is a difference: subtract the time at which
        the request was sent."""
        return latencies(sent, log, ttft=lambda first: first)

    def itl_per_token(sent, log):
        """You divide each gap by the tokens that came after it. What a user notices is how long the output stalls, and
        it stalls for the whole gap, however much comes after it. ITL is per event; TPOT is per token."""
        itl = [(after - before) / n for (before, _), (after, n) in pairwise(log)]
        return latencies(sent, log, gaps=lambda times: itl)

    def itl_from_sending(sent, log):
        """Your ITLs begin with the wait for the first event. That one is TTFT; the first ITL is between the first and
        the second event."""

        def gaps(times):
            return [after - before for before, after in zip([sent, *times], times, strict=False)]

        return latencies(sent, log, gaps=gaps)

    def zero_for_a_single_token(sent, log):
        """You give a request with a single token a TPOT of 0. It has none, and a 0 would pull down every mean and
        percentile. Return None, which keeps it out of the statistics."""
        return latencies(sent, log, single=0.0)


def stream(draw: Draw, tokens: list[int], *, together: float = 0.0) -> dict:
    """A request whose events bring so many tokens; each may arrive at the same moment as the one before it."""
    sent = draw.whole(0, 12) / 4
    time, log = sent + draw.whole(1, 8) / 4, []
    for brought in tokens:
        if log and not draw.chance(together):
            time += draw.whole(1, 8) / 4
        log.append((time, brought))
    return dict(sent=sent, log=log)


fresh("11.latencies", "one token per event", lambda draw: stream(draw, [1] * draw.whole(2, 2 + 2 * draw.size)))


@fresh("11.latencies", "bursts", weight=2)
def _(draw):
    def some():
        return [draw.whole(1, 1 + draw.size) for _ in range(draw.whole(2, 2 + draw.size))]

    return stream(draw, draw.until(some, lambda tokens: max(tokens) > 1))


fresh("11.latencies", "a single event", lambda draw: stream(draw, [draw.choice([1, 1, draw.whole(2, 5)])]), count=8)


@fresh("11.latencies", "events at the same moment", weight=0.5, count=6)
def _(draw):
    return stream(draw, [draw.whole(1, 3) for _ in range(draw.whole(2, 3 + draw.size))], together=0.7)


# ---- 11.goodput -----------------------------------------------------------------------------------------------------
def goodput(requests, seconds, ttft_target, tpot_target, *, failed=False, single=True, ttft=True, tpot=True, met=le):
    """Goodput with a switch for each way to get it wrong."""
    good = 0
    for first, per_token in requests:
        if first is None:
            good += failed
        else:
            soon = not ttft or met(first, ttft_target)
            fast = not tpot or (single if per_token is None else met(per_token, tpot_target))
            good += soon and fast
    return good / seconds


GOODPUT = exercise(
    "11.goodput",
    reference=goodput,
    cases=[
        dict(requests=[(0.5, 0.1)], seconds=2.0, ttft_target=1.0, tpot_target=0.25),
        dict(requests=[(0.5, 0.5)], seconds=1.0, ttft_target=1.0, tpot_target=0.25),
        dict(requests=[(2.0, 0.1)], seconds=1.0, ttft_target=1.0, tpot_target=0.25),
        dict(requests=[(0.5, None)], seconds=1.0, ttft_target=1.0, tpot_target=0.25),
        dict(requests=[(None, None), (0.5, 0.1)], seconds=4.0, ttft_target=1.0, tpot_target=0.25),
        dict(requests=[(1.0, 0.25)], seconds=1.0, ttft_target=1.0, tpot_target=0.25),
        dict(
            requests=[(0.5, 0.1), (0.7, 0.3), (1.5, 0.2), (None, None), (0.2, None), (3.0, 0.6)],
            seconds=8.0,
            ttft_target=1.0,
            tpot_target=0.25,
        ),
    ],
)


@GOODPUT.wrong_solutions
class _:
    def all_that_completed(requests, seconds, ttft_target, tpot_target):
        """You count every completed request. That is throughput; goodput leaves out those that missed a target."""
        return goodput(requests, seconds, ttft_target, tpot_target, ttft=False, tpot=False)

    def one_target_is_enough(requests, seconds, ttft_target, tpot_target):
        """You count a request that met one of the two targets. Its user waited too long for the first token, or for the
        ones after it: both targets have to be met."""
        good = sum(
            first is not None and (first <= ttft_target or (per_token is not None and per_token <= tpot_target))
            for first, per_token in requests
        )
        return good / seconds

    def no_target_for_the_others(requests, seconds, ttft_target, tpot_target):
        """You look only at TTFT. Check TPOT as well, if there is one."""
        return goodput(requests, seconds, ttft_target, tpot_target, tpot=False)

    def a_single_token_misses(requests, seconds, ttft_target, tpot_target):
        """You count a request with a single token as one that missed its TPOT. It has no TPOT to miss, so its TTFT
        decides alone."""
        return goodput(requests, seconds, ttft_target, tpot_target, single=False)

    def failures_are_fast(requests, seconds, ttft_target, tpot_target):
        """You count requests that failed: None is not a short time. By your count, a server that refuses every request
        would have the best goodput."""
        return goodput(requests, seconds, ttft_target, tpot_target, failed=True)

    def a_share(requests, seconds, ttft_target, tpot_target):
        """You divide by the number of requests. That fraction (the SLO attainment) falls as the load grows, even if the
        server serves as many users well as before. Goodput is a rate: divide by the seconds."""
        return goodput(requests, seconds, ttft_target, tpot_target) * seconds / len(requests)

    def strictly_below(requests, seconds, ttft_target, tpot_target):
        """You require less than the target. A latency equal to the target meets it: use ≤."""
        return goodput(requests, seconds, ttft_target, tpot_target, met=lt)


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


fresh("11.goodput", "both targets", lambda draw: load(draw, "ggtpb"), weight=2)
fresh("11.goodput", "failed ones and single tokens", lambda draw: load(draw, "ff11gt"), weight=2)
fresh("11.goodput", "exactly at a target", lambda draw: load(draw, "===gf"))
fresh("11.goodput", "no wait at all", lambda draw: load(draw, "00f1"), weight=0.5, count=4)


@fresh("11.goodput", "nothing to count", weight=0.5, count=6)
def _(draw):
    kinds, count = draw.choice([("g", 0), ("f", draw.whole(1, 3)), ("tpbf", draw.whole(1, 4))])
    return load(draw, kinds, count)


# ---- 11.admission ---------------------------------------------------------------------------------------------------
def admission(
    waiting, running, free_blocks, seconds, tokens_per_step, target, *, idle=True, overtakes=False, late=0, met=le
):
    """How many requests to admit, with a switch for each way to get it wrong."""
    admitted = 0
    for needed in waiting:
        batch = running + admitted + 1
        tpot = seconds[min(max(batch - late, 1), len(seconds)) - 1] / tokens_per_step
        alone = idle and batch == 1
        if batch <= len(seconds) and needed <= free_blocks and (alone or met(tpot, target)):
            admitted, free_blocks = admitted + 1, free_blocks - needed
        elif not overtakes:
            break
    return admitted


def arrivals(*values) -> dict:
    names = "waiting", "running", "free_blocks", "seconds", "tokens_per_step", "target"
    return dict(zip(names, values, strict=True))


ADMISSION = exercise(
    "11.admission",
    reference=admission,
    observe=lambda answer, waiting, **case: whole_number(answer(list(waiting), *case.values()), "the result"),
    cases=[
        arrivals([], 0, 9, [1.0, 1.0], 1.0, 2.0),
        arrivals([1], 0, 9, [1.0, 1.0], 1.0, 2.0),
        arrivals([1], 0, 9, [3.0, 4.0], 1.0, 2.0),
        arrivals([1, 1, 1], 0, 9, [1.0, 2.0, 3.0, 4.0], 1.0, 2.0),
        arrivals([1, 1, 1], 2, 9, [1.0, 1.0, 1.5, 2.5, 3.0], 1.0, 2.0),
        arrivals([1, 1, 1], 1, 9, [2.0, 3.0, 4.0, 6.0], 2.0, 2.0),
        arrivals([1, 1, 1], 2, 9, [1.0, 1.0, 1.0, 1.0], 1.0, 2.0),
        arrivals([4, 4, 1], 1, 6, [1.0] * 8, 1.0, 2.0),
        arrivals([7, 1], 0, 6, [1.0] * 8, 1.0, 2.0),
        arrivals([2, 2, 2, 2], 1, 7, [1.0, 1.5, 2.5, 3.5, 4.5, 5.5], 2.0, 1.75),
    ],
)


@ADMISSION.wrong_solutions
class _:
    def whoever_fits_in_memory(*case):
        """You admit whatever has blocks. Every request that joins makes the steps of all others longer: compare the
        TPOT of the larger batch with the target."""
        return admission(*case[:-1], math.inf)

    def a_step_for_a_token(waiting, running, free_blocks, seconds, tokens_per_step, target):
        """You compare the time of a step with the target. With speculation a step gives each request several tokens, so
        its TPOT is seconds / tokens_per_step, and you may admit more."""
        return admission(waiting, running, free_blocks, seconds, 1.0, target)

    def nobody_at_all(*case):
        """If even a single request misses the target, you never admit any. An idle server helps no one: admit one."""
        return admission(*case, idle=False)

    def small_ones_overtake(*case):
        """You skip a request that does not fit and admit a smaller one after it. As long as small ones keep coming, the
        large one starves: stop at the first that has to wait."""
        return admission(*case, overtakes=True)

    def one_too_many(*case):
        """You look at the batch as it is before the request joins, and so admit one too many. Ask what a step takes
        with this request in it."""
        return admission(*case, late=1)

    def a_batch_without_end(waiting, running, free_blocks, seconds, tokens_per_step, target):
        """You admit more requests than max_num_seqs, the length of `seconds`. There is no measurement of such a batch:
        stop there."""
        return admission(waiting, running, free_blocks, seconds + seconds[-1:] * 99, tokens_per_step, target)

    def stays_below(*case):
        """You require a TPOT below the target. A TPOT equal to the target meets it: use ≤."""
        return admission(*case, met=lt)


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
        return arrivals(waiting, at, free, seconds, per_step, limit)

    def wanted(case):
        tpots = [step / case["tokens_per_step"] for step in case["seconds"]]
        clear = target == "equal" or all(abs(tpot - case["target"]) > 1e-6 for tpot in tpots)
        return clear and fits(admission(*case.values()), case)

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
def abort(id, waiting, tables, refcount, *, leaves=True, forgets=True, frees=lambda n: n == 0, order=-1):
    """An abort, with a switch for each way to get it wrong."""
    waiting, tables, refcount, freed = list(waiting), dict(tables), list(refcount), []
    if id in waiting and leaves:
        waiting.remove(id)
    for block in tables.get(id, [])[::order]:
        refcount[block] -= 1
        if frees(refcount[block]):
            freed.append(block)
    if forgets:
        tables.pop(id, None)
    return waiting, tables, refcount, freed


def observe_abort(answer, id, waiting, tables, refcount):
    found = answer(id, list(waiting), {key: list(blocks) for key, blocks in tables.items()}, list(refcount))
    waiting, tables, refcount, freed = several(found, 4, "waiting, tables, refcount and freed")
    if not isinstance(tables, dict):
        raise Complaint(f"tables should be a dict; yours is {kind(tables)}.")
    return {
        "waiting": items(waiting, "waiting"),
        "tables": " ".join(f"{key}:{whole_numbers(tables[key], 'a table')}" for key in sorted(tables, key=str)),
        "refcount": whole_numbers(refcount, "refcount"),
        "freed": whole_numbers(freed, "freed"),
    }


ABORT = exercise(
    "11.abort",
    reference=abort,
    observe=observe_abort,
    cases=[
        dict(id="A", waiting=[], tables={"A": [0]}, refcount=[1, 0]),
        dict(id="A", waiting=["A"], tables={}, refcount=[0, 0]),
        dict(id="A", waiting=["B"], tables={}, refcount=[0, 0]),
        dict(id="A", waiting=["B"], tables={"A": [1, 0], "B2": [2]}, refcount=[1, 1, 1]),
        dict(id="A", waiting=[], tables={"A": [0, 1], "B": [0, 2]}, refcount=[2, 1, 1]),
        dict(id="C", waiting=["B", "C", "D"], tables={"A": [0, 1]}, refcount=[1, 1]),
        dict(id="B", waiting=["C"], tables={"A": [3, 1, 4], "B": [3, 1, 0, 2]}, refcount=[1, 2, 1, 2, 1]),
    ],
)


@ABORT.wrong_solutions
class _:
    def stays_in_the_queue(*case):
        """You leave a waiting request in the queue. It will be admitted later and generate output that no one reads.
        Remove it from the queue as well."""
        return abort(*case, leaves=False)

    def the_table_stays(*case):
        """You return the blocks but keep the table. The next step would run the request again, in blocks that now
        belong to others. Remove the table."""
        return abort(*case, forgets=False)

    def takes_a_shared_prefix_along(*case):
        """You free blocks that another request still holds. They share a prefix; only blocks whose count has reached 0
        are free."""
        return abort(*case, frees=lambda n: True)

    def first_block_first(*case):
        """You free the first block first. Free blocks are reused in this order, and a cached prefix is useful without
        its end but not without its beginning: release the last block first."""
        return abort(*case, order=1)


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


fresh("11.abort", "it runs, with blocks of its own", lambda draw: server(draw, "batch"))
fresh("11.abort", "it waits", lambda draw: server(draw, "queue", draw.choice([0.0, 0.5])))


@fresh("11.abort", "it shares a prefix", weight=2)
def _(draw):
    def fits(case):
        return any(case["refcount"][block] > 1 for block in case["tables"][case["id"]])

    return draw.until(lambda: server(draw, "batch", 0.8), fits)


@fresh("11.abort", "it has ended already", weight=0.5, count=6)
def _(draw):
    return server(draw, "nowhere", draw.choice([0.0, 0.5]))


# ---- 11.kv_handover -------------------------------------------------------------------------------------------------
def kv_handover(layers, layer_bytes, prefill, bandwidth, *, count=None, late=None):
    """Bytes and lateness of a hand-over, with both to exchange."""
    compute, send = prefill / layers, layer_bytes / bandwidth
    added = compute + (layers - 1) * max(compute, send) + send - prefill
    return (layers * layer_bytes if count is None else count), (added if late is None else late(compute, send))


def observe_handover(answer, **case):
    sent, added = pair(answer(*case.values()), "the bytes and the seconds")
    return {"bytes": number(sent, "the number of bytes"), "seconds": number(added, "the seconds")}


HANDOVER = exercise(
    "11.kv_handover",
    reference=kv_handover,
    observe=observe_handover,
    cases=[
        dict(layers=1, layer_bytes=8, prefill=2.0, bandwidth=8.0),
        dict(layers=4, layer_bytes=8, prefill=4.0, bandwidth=16.0),
        dict(layers=4, layer_bytes=8, prefill=4.0, bandwidth=8.0),
        dict(layers=4, layer_bytes=8, prefill=4.0, bandwidth=4.0),
    ],
)


@HANDOVER.wrong_solutions
class _:
    def after_the_prefill(layers, layer_bytes, prefill, bandwidth):
        """You send everything after the prefill. A layer's keys and values are complete as soon as that layer is: send
        them while the next layer is computed."""
        return kv_handover(layers, layer_bytes, prefill, bandwidth, late=lambda compute, send: layers * send)

    def nothing_is_late(layers, layer_bytes, prefill, bandwidth):
        """You subtract the prefill from the time of all transfers. The link is idle until the first layer is computed,
        and the last layer is sent after the prefill, however fast the link is."""
        late = lambda compute, send: max(0.0, layers * (send - compute))  # noqa: E731
        return kv_handover(layers, layer_bytes, prefill, bandwidth, late=late)

    def one_layer(layers, layer_bytes, prefill, bandwidth):
        """You count the bytes of one layer. The decode worker needs the keys and values of all layers."""
        return kv_handover(layers, layer_bytes, prefill, bandwidth, count=layer_bytes)


@fresh("11.kv_handover", "any link")
def _(draw):
    sizes = dict(layers=draw.whole(1, 2 + 2 * draw.size), layer_bytes=8 * draw.whole(1, 4))
    return dict(**sizes, prefill=float(draw.whole(1, 16)), bandwidth=float(draw.choice([1, 2, 4, 8, 16, 32, 64])))
