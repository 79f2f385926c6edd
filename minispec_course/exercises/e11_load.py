"""Set 11, second half: latencies from a log with bursts, goodput, an admission rule that keeps a target, aborts."""

from __future__ import annotations

from itertools import pairwise

from .e11 import count, counts
from .exercise import Complaint, exercise
from .show import is_number, kind, plain

# ---- 11.latencies ---------------------------------------------------------------------------------------------------


def latencies(sent, log):
    return flawed_latencies(sent, log)


def flawed_latencies(sent, log, *, ttft=None, tpot=None, gaps=None, single=None):
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
    if not isinstance(found, (list, tuple)) or len(found) != 3:
        raise Complaint(f"return three things: TTFT, TPOT and the list of ITLs; yours returns {kind(found)}.")
    ttft, tpot, itl = map(plain, found)
    if not isinstance(itl, (list, tuple)) or not all(map(is_number, itl)):
        raise Complaint(f"the ITLs should be a list of numbers; yours is {kind(itl)}.")
    return {"TTFT": ttft, "TPOT": tpot, "ITL": list(itl)}


LATENCIES = exercise(
    "11.latencies",
    title="Latencies of a stream that comes in bursts",
    level="M",
    minutes=15,
    points=2,
    hints=(
        "Three of the numbers are differences of moments, and only one of them is divided by anything. Which of the "
        "three would change if a step's two tokens arrived as two events at the same moment?",
        "TTFT ends with the first event. ITL is between neighbouring events, however many tokens they bring. TPOT "
        "spreads the time after the first event over the tokens after the first one.",
        "Make one list of the times and one number, all tokens together. TTFT needs the first time, TPOT the first "
        "and the last and the number of tokens minus one, ITL all neighbouring pairs of times. Only a request with "
        "one token in all has no TPOT; one event with three tokens has a TPOT of 0.",
    ),
    code="benchmarks.serve.latencies",
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


@LATENCIES.mutant
def tokens_as_parts(sent, log):
    """You divide by the number of events, so your TPOT is the mean ITL. An event of a speculative step brings several
    tokens, and the user counts tokens: divide by the number of tokens minus one."""
    return flawed_latencies(sent, log, tpot=lambda first, last, tokens, parts: (last - first) / max(parts - 1, 1))


@LATENCIES.mutant
def first_token_counted(sent, log):
    """Your TPOT divides by all tokens. The first one was there when the clock of TPOT started, so one token fewer was
    generated in that time: tokens − 1."""
    return flawed_latencies(sent, log, tpot=lambda first, last, tokens, parts: (last - first) / tokens)


@LATENCIES.mutant
def waiting_in_tpot(sent, log):
    """Your TPOT starts when the request was sent. Queue and prefill are in TTFT already; TPOT starts with the first
    event."""
    return flawed_latencies(sent, log, tpot=lambda first, last, tokens, parts: (last - sent) / (tokens - 1))


@LATENCIES.mutant
def ttft_is_a_moment(sent, log):
    """Your TTFT is the moment at which the first event came. A latency is a difference: subtract the moment at which
    the request was sent."""
    return flawed_latencies(sent, log, ttft=lambda first: first)


@LATENCIES.mutant
def itl_per_token(sent, log):
    """You divide each gap by the tokens that came after it. What a user notices is how long the output stands still,
    and it stands still for the whole gap, however much comes after it. ITL is per event; TPOT is per token."""
    itl = [(after - before) / n for (before, _), (after, n) in pairwise(log)]
    return flawed_latencies(sent, log, gaps=lambda times: itl)


@LATENCIES.mutant
def itl_from_sending(sent, log):
    """Your ITLs begin with the wait for the first event. That one is TTFT; the first ITL is between the first and the
    second event."""

    def gaps(times):
        return [after - before for before, after in zip([sent, *times], times, strict=False)]

    return flawed_latencies(sent, log, gaps=gaps)


@LATENCIES.mutant
def zero_for_a_single_token(sent, log):
    """You give a request with a single token a TPOT of 0. It has none, and a 0 would pull every mean and percentile
    down: return None, and leave it out of the statistics."""
    return flawed_latencies(sent, log, single=0.0)


# ---- 11.goodput -----------------------------------------------------------------------------------------------------


def goodput(requests, seconds, ttft_target, tpot_target):
    return flawed_goodput(requests, seconds, ttft_target, tpot_target)


def flawed_goodput(
    requests,
    seconds,
    ttft_target,
    tpot_target,
    *,
    failed=False,
    single=True,
    ttft=True,
    tpot=True,
    met=lambda value, target: value <= target,
):
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
    title="Goodput",
    level="E",
    minutes=10,
    points=1,
    hints=(
        "Decide for each request by itself whether its user got what was promised. Then count, and divide by time.",
        "A request that failed met nothing. A request with one token has no TPOT that could be too long, so only its "
        "TTFT counts. Exactly the target is still within it.",
        "Three questions for each request: did it fail (its TTFT is None)? Is TTFT within the target? Is there a "
        "TPOT, and if so, is it within its target? Count those that get through, and divide by the seconds. Ask for "
        "None with `is None`, because 0 seconds is a time.",
    ),
    code="benchmarks.serve.meets",
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


@GOODPUT.mutant
def all_that_completed(requests, seconds, ttft_target, tpot_target):
    """You count every completed request. That is the throughput; goodput leaves out those that missed a target."""
    return flawed_goodput(requests, seconds, ttft_target, tpot_target, ttft=False, tpot=False)


@GOODPUT.mutant
def one_target_is_enough(requests, seconds, ttft_target, tpot_target):
    """You count a request that met one of the two targets. Its user waited too long for the first token, or for the
    ones after it: both targets have to be met."""
    good = sum(
        first is not None and (first <= ttft_target or (per_token is not None and per_token <= tpot_target))
        for first, per_token in requests
    )
    return good / seconds


@GOODPUT.mutant
def no_target_for_the_first_token(requests, seconds, ttft_target, tpot_target):
    """You look at TPOT alone. A request that waited in the queue for a minute and then ran fast has a good TPOT: check
    its TTFT, too."""
    return flawed_goodput(requests, seconds, ttft_target, tpot_target, ttft=False)


@GOODPUT.mutant
def no_target_for_the_others(requests, seconds, ttft_target, tpot_target):
    """You look at TTFT alone. Check TPOT, too, where there is one."""
    return flawed_goodput(requests, seconds, ttft_target, tpot_target, tpot=False)


@GOODPUT.mutant
def a_single_token_misses(requests, seconds, ttft_target, tpot_target):
    """You count a request with a single token as one that missed its TPOT. It has no TPOT to miss, so its TTFT decides
    alone."""
    return flawed_goodput(requests, seconds, ttft_target, tpot_target, single=False)


@GOODPUT.mutant
def failures_are_fast(requests, seconds, ttft_target, tpot_target):
    """You count requests that failed: None is not a short time. A server that refuses all of them would have the
    best goodput of all."""
    return flawed_goodput(requests, seconds, ttft_target, tpot_target, failed=True)


@GOODPUT.mutant
def a_share(requests, seconds, ttft_target, tpot_target):
    """You divide by the number of requests. That share (the SLO attainment) falls when more is asked of the server,
    even if it serves as many users well as before. Goodput is a rate: divide by the seconds."""
    return flawed_goodput(requests, seconds, ttft_target, tpot_target) * seconds / len(requests)


@GOODPUT.mutant
def strictly_below(requests, seconds, ttft_target, tpot_target):
    """You want less than the target. A latency equal to the target meets it: use ≤."""
    return flawed_goodput(requests, seconds, ttft_target, tpot_target, met=lambda value, target: value < target)


# ---- 11.admission ---------------------------------------------------------------------------------------------------


def admission(waiting, running, free_blocks, seconds, tokens_per_step, target):
    return flawed_admission(waiting, running, free_blocks, seconds, tokens_per_step, target)


def flawed_admission(
    waiting,
    running,
    free_blocks,
    seconds,
    tokens_per_step,
    target,
    *,
    blocks=True,
    beside=True,
    per_token=True,
    idle=True,
    overtakes=False,
    late=0,
    most=True,
    met=lambda value, most: value <= most,
):
    """How many requests to admit, with a switch for each way to get it wrong."""
    admitted = 0
    for needed in waiting:
        batch = (running if beside else 0) + admitted + 1
        tpot = seconds[min(max(batch - late, 1), len(seconds)) - 1] / (tokens_per_step if per_token else 1)
        alone = idle and running + admitted == 0
        fits = (not most or batch <= len(seconds)) and (alone or met(tpot, target))
        if blocks and needed > free_blocks:
            fits = False
        if fits:
            admitted, free_blocks = admitted + 1, free_blocks - needed
        elif not overtakes:
            break
    return admitted


ADMISSION = exercise(
    "11.admission",
    title="An admission rule that keeps a target",
    level="M",
    minutes=25,
    points=3,
    hints=(
        "Walk along the queue from its front and ask for each request: if this one joins, what does the batch look "
        "like then? Stop at the first one that has to wait.",
        "With b requests in the batch a step takes seconds[b − 1], and each request gets tokens_per_step tokens in it, "
        "so every TPOT is about their quotient. Blocks that one request takes are gone for the next.",
        "Three reasons to stop, and the first request that meets one ends the loop: the batch with it would be "
        "longer than `seconds`; it needs more blocks than are left; or TPOT with it is above the target and it "
        "would not be alone. Every request that is admitted uses up its blocks.",
    ),
    code="minispec.serving.scheduler.Scheduler.schedule",
    reference=admission,
    observe=lambda answer, waiting, **case: count(answer(list(waiting), *case.values()), "the number of requests"),
    cases=[
        dict(waiting=[], running=0, free_blocks=9, seconds=[1.0, 1.0], tokens_per_step=1.0, target=2.0),
        dict(waiting=[1], running=0, free_blocks=9, seconds=[1.0, 1.0], tokens_per_step=1.0, target=2.0),
        dict(waiting=[1], running=0, free_blocks=9, seconds=[3.0, 4.0], tokens_per_step=1.0, target=2.0),
        dict(
            waiting=[1, 1, 1], running=0, free_blocks=9, seconds=[1.0, 2.0, 3.0, 4.0], tokens_per_step=1.0, target=2.0
        ),
        dict(
            waiting=[1, 1, 1],
            running=2,
            free_blocks=9,
            seconds=[1.0, 1.0, 1.5, 2.5, 3.0],
            tokens_per_step=1.0,
            target=2.0,
        ),
        dict(
            waiting=[1, 1, 1], running=1, free_blocks=9, seconds=[2.0, 3.0, 4.0, 6.0], tokens_per_step=2.0, target=2.0
        ),
        dict(
            waiting=[1, 1, 1], running=2, free_blocks=9, seconds=[1.0, 1.0, 1.0, 1.0], tokens_per_step=1.0, target=2.0
        ),
        dict(waiting=[4, 4, 1], running=1, free_blocks=6, seconds=[1.0] * 8, tokens_per_step=1.0, target=2.0),
        dict(waiting=[7, 1], running=0, free_blocks=6, seconds=[1.0] * 8, tokens_per_step=1.0, target=2.0),
        dict(
            waiting=[2, 2, 2, 2],
            running=1,
            free_blocks=7,
            seconds=[1.0, 1.5, 2.5, 3.5, 4.5, 5.5],
            tokens_per_step=2.0,
            target=1.75,
        ),
    ],
)


@ADMISSION.mutant
def whoever_fits_in_memory(*case):
    """You admit whatever has blocks. Every request that joins makes the steps of all others longer: compare the TPOT
    of the larger batch with the target."""
    return flawed_admission(*case, met=lambda value, most: True)


@ADMISSION.mutant
def memory_is_endless(*case):
    """You do not look at the blocks. A request that is admitted without them has to wait inside the batch, or pushes
    another one out. Subtract what each admitted request takes, and stop where it does not suffice."""
    return flawed_admission(*case, blocks=False)


@ADMISSION.mutant
def as_if_nobody_ran(*case):
    """You count the requests that you admit and not those that run already. They share the steps: the batch is running
    + admitted + 1."""
    return flawed_admission(*case, beside=False)


@ADMISSION.mutant
def a_step_for_a_token(*case):
    """You compare the time of a step with the target. With speculation a step gives each request several tokens, so
    its TPOT is seconds / tokens_per_step, and you may admit more."""
    return flawed_admission(*case, per_token=False)


@ADMISSION.mutant
def nobody_at_all(*case):
    """If even a single request misses the target, you admit none, for ever. An idle server keeps no promise by
    staying idle: admit one."""
    return flawed_admission(*case, idle=False)


@ADMISSION.mutant
def small_ones_overtake(*case):
    """You skip a request that does not fit and admit a smaller one after it. As long as small ones keep coming, the
    large one starves: stop at the first that has to wait."""
    return flawed_admission(*case, overtakes=True)


@ADMISSION.mutant
def one_too_many(*case):
    """You look at the batch as it is before the request joins, and so admit one too many. Ask what a step takes with
    this request in it."""
    return flawed_admission(*case, late=1)


@ADMISSION.mutant
def a_batch_without_end(*case):
    """You admit more requests than max_num_seqs, the length of `seconds`. There is no measurement of such a
    batch: stop there."""
    return flawed_admission(*case, most=False)


@ADMISSION.mutant
def stays_below(*case):
    """You want a TPOT below the target. One that is equal to it meets it: use ≤."""
    return flawed_admission(*case, met=lambda value, most: value < most)


# ---- 11.abort -------------------------------------------------------------------------------------------------------


def abort(id, waiting, tables, refcount):
    return flawed_abort(id, waiting, tables, refcount)


def flawed_abort(
    id, waiting, tables, refcount, *, leaves=True, forgets=True, lowers=True, frees=lambda n: n == 0, order=-1
):
    """An abort, with a switch for each way to get it wrong."""
    waiting, tables, refcount, freed = list(waiting), dict(tables), list(refcount), []
    if id in waiting and leaves:
        waiting.remove(id)
    for block in tables.get(id, [])[::order]:
        refcount[block] -= lowers
        if frees(refcount[block]):
            freed.append(block)
    if forgets:
        tables.pop(id, None)
    return waiting, tables, refcount, freed


def observe_abort(answer, id, waiting, tables, refcount):
    found = answer(id, list(waiting), {key: list(blocks) for key, blocks in tables.items()}, list(refcount))
    if not isinstance(found, (list, tuple)) or len(found) != 4:
        raise Complaint(f"return four things: waiting, tables, refcount and freed; yours returns {kind(found)}.")
    waiting, tables, refcount, freed = found
    if not isinstance(waiting, (list, tuple)) or not isinstance(tables, dict):
        raise Complaint(f"waiting should be a list and tables a dict; yours are {kind(waiting)} and {kind(tables)}.")
    return {
        "waiting": list(waiting),
        "tables": " ".join(f"{key}:{list(tables[key])}" for key in sorted(tables)),
        "refcount": counts(refcount, "refcount"),
        "freed": counts(freed, "freed"),
    }


ABORT = exercise(
    "11.abort",
    title="Abort and give back",
    level="M",
    minutes=15,
    points=2,
    hints=(
        "A request is in one of three states when its client goes away: in the queue, in the batch, or nowhere, "
        "because it has just ended. What has to happen in each case?",
        "In the queue it holds no blocks, but it has to leave, or it will run in vain. In the batch its table goes, "
        "each of its blocks loses one count, and those that no other table holds are free.",
        "Look into the queue and into the tables, and a request that is in neither is no error. Take its table out of "
        "`tables` and go through it from the end: every count falls by one, and a block whose count is 0 then is "
        "free. Tables of other requests stay as they are.",
    ),
    code="minispec.serving.scheduler.Scheduler.finish",
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


@ABORT.mutant
def stays_in_the_queue(*case):
    """You leave a waiting request in the queue. It will be admitted later and generate an output without a reader.
    Remove it there, too."""
    return flawed_abort(*case, leaves=False)


@ABORT.mutant
def the_table_stays(*case):
    """You give the blocks back and keep the table. The next step would run the request again, in blocks that belong to
    others by then. Remove the table."""
    return flawed_abort(*case, forgets=False)


@ABORT.mutant
def blocks_are_lost(*case):
    """You remove the request and leave the counts as they were: its blocks can never be allocated again. With every
    client that goes away the pool gets smaller. Lower the count of each block."""
    return flawed_abort(*case, lowers=False)


@ABORT.mutant
def not_on_the_free_list(*case):
    """You lower the counts and report no block as free. Return those whose count has reached 0."""
    return flawed_abort(*case, frees=lambda n: False)


@ABORT.mutant
def takes_a_shared_prefix_along(*case):
    """You free blocks that another request still holds. They share a prefix; only blocks whose count has reached 0 are
    free."""
    return flawed_abort(*case, frees=lambda n: True)


@ABORT.mutant
def first_block_first(*case):
    """You free the first block first. Free blocks are reused in this order, and a cached prefix is useful without its
    end but not without its beginning: release the last block first."""
    return flawed_abort(*case, order=1)


@ABORT.mutant
def the_next_in_line(id, waiting, tables, refcount):
    """You remove the first request of the queue instead of the one that was aborted. Another request
    is lost: remove the id that was given."""
    return flawed_abort(id, waiting[1:] if id in waiting else waiting, tables, refcount, leaves=False)
