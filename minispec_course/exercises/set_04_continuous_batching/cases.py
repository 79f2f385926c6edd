"""Set 04, continuous batching: what static batches waste, the plan of a step, and preemption."""

from ..exercise import Complaint, exercise
from ..fresh import Draw, fresh
from ..returned import items, pair, whole_numbers
from ..set_03_paged_blocks.cases import ceil_div


# ---- 04.static_waste ------------------------------------------------------------------------------------------------
def static_steps(lengths, seats):
    return sum(max(lengths[i : i + seats]) for i in range(0, len(lengths), seats))


def continuous_steps(lengths, seats, pause=0):
    """Every request goes to the seat that is free first. `pause`: steps for which it stays empty in between."""
    free_at = [0] * seats
    for length in lengths:
        seat = free_at.index(min(free_at))
        free_at[seat] += length + pause * (free_at[seat] > 0)
    return max(free_at)


def batching_steps(lengths, seats):
    return static_steps(lengths, seats), continuous_steps(lengths, seats)


def observe_steps(answer, lengths, seats):
    both = pair(answer(lengths, seats), "the static steps and the continuous ones")
    static, continuous = whole_numbers(both, "the result")
    return {"static": static, "continuous": continuous}


STATIC_WASTE = exercise(
    "04.static_waste",
    reference=batching_steps,
    observe=observe_steps,
    cases=[
        dict(lengths=[3, 1], seats=2),
        dict(lengths=[3, 1, 2], seats=2),
        dict(lengths=[2, 3], seats=1),
        dict(lengths=[1, 4, 4, 1], seats=2),
        dict(lengths=[6, 2, 2, 2, 5], seats=2),
        dict(lengths=[2, 2, 2, 9, 1, 1, 1], seats=3),
    ],
)


@STATIC_WASTE.wrong_solutions
class _:
    def rows_never_idle(lengths, seats):
        """Your continuous time is the total work divided by the number of seats, as if none were ever idle. At the end
        some are idle, because a request cannot be split. Keep track of each seat separately."""
        return static_steps(lengths, seats), ceil_div(sum(lengths), seats)

    def lower_bound(lengths, seats):
        """Your continuous time is a lower bound: the longest output, or the total work divided by the seats. Requests
        in order of arrival may need more, if a long one starts late. Keep track of each seat separately."""
        return static_steps(lengths, seats), max(max(lengths), ceil_div(sum(lengths), seats))

    def sorts_by_length(lengths, seats):
        """You sort the requests by length first. That makes better batches, but a server does not know the lengths in
        advance. Serve the requests in the order of the list."""
        return batching_steps(sorted(lengths, reverse=True), seats)

    def next_row_in_turn(lengths, seats):
        """Your continuous version deals the requests out to the seats in turn. A seat that is busy with a long request
        then gets another one while a different seat is free. Give each request to the seat that is free first."""
        return static_steps(lengths, seats), max(sum(lengths[i::seats]) for i in range(seats))

    def waits_for_the_batch(lengths, seats):
        """Your continuous time is the static one, because a new request waits until the whole batch has finished.
        Continuous batching gives a free seat to the next request immediately, so compute when each seat becomes
        free."""
        return static_steps(lengths, seats), static_steps(lengths, seats)

    def a_step_between(lengths, seats):
        """Your seats stay empty for one step between two requests. A finished request leaves after its last step, and
        the next one starts in the following step. Remove the pause."""
        return static_steps(lengths, seats), continuous_steps(lengths, seats, pause=1)


def requests(draw: Draw, least: int = 1) -> list[int]:
    return [draw.whole(1, 3 + 2 * draw.size) for _ in range(draw.whole(least, 3 + 2 * draw.size))]


@fresh("04.static_waste", "several batches")
def _(draw):
    return draw.until(
        lambda: dict(lengths=requests(draw, 3), seats=draw.whole(2, 4)),
        lambda case: len(case["lengths"]) > case["seats"] and len({*batching_steps(**case), max(case["lengths"])}) > 1,
    )


@fresh("04.static_waste", "one seat, or one for each request", weight=0.5)
def _(draw):
    lengths = requests(draw)
    return dict(lengths=lengths, seats=draw.choice([1, len(lengths), len(lengths) + draw.whole(1, 3)]))


# ---- 04.token_budget ------------------------------------------------------------------------------------------------
def plan_step(behind, running, seats, budget, max_chunk, *, decoding=None, charged=True, whole=False, overtakes=False):
    """The plan, with a switch for each way to get it wrong."""
    count, left = [0] * len(behind), budget
    for i in range(running if decoding is None else decoding):
        if behind[i] == 1:
            count[i], left = 1, left - charged
    for i in range(len(behind)):
        if count[i] or (i >= running and i >= seats):
            continue
        chunk = min(behind[i], left, max_chunk)
        if whole and chunk < behind[i]:
            if overtakes:
                continue
            break
        if chunk <= 0:
            break
        count[i], left = chunk, left - chunk
    return count


def observe_plan(answer, behind, running, seats, budget, max_chunk):
    plan = whole_numbers(answer(behind, running, seats, budget, max_chunk), "the plan")
    if len(plan) != len(behind):
        raise Complaint(f"the plan should have a number for each of the {len(behind)} requests; it has {len(plan)}.")
    return plan


def timeline(answer) -> str:
    """Some requests under the learner's plans, step by step, until the last prompt is processed."""
    behind, running, seats, budget, max_chunk, names = [1, 1, 9, 7, 12, 2], 2, 5, 8, 6, "abcdef"
    lines = [f"budget {budget}, chunks of at most {max_chunk}, {seats} seats"]
    lines += ["d one decode token   p one prompt token", ""]
    for step in range(1, 9):
        plan = observe_plan(answer, list(behind), running, seats, budget, max_chunk)
        told = [f"{name}:{'d' if b == 1 else 'p' * n}" for name, b, n in zip(names, behind, plan, strict=True) if n > 0]
        lines.append(f"step {step}  {sum(plan)} of {budget}   {'  '.join(told)}")
        running = max([running, *(i + 1 for i, n in enumerate(plan) if n > 0)])
        behind = [max(1, b - max(0, n)) for b, n in zip(behind, plan, strict=True)]  # a finished prompt emits a token
        if running >= seats and set(behind[:seats]) == {1}:
            lines.append(f"        all admitted prompts are processed; {names[seats]} still waits for a seat")
            break
    return "\n".join(lines)


TOKEN_BUDGET = exercise(
    "04.token_budget",
    reference=plan_step,
    observe=observe_plan,
    picture=timeline,
    cases=[
        dict(behind=[5], running=0, seats=2, budget=4, max_chunk=4),
        dict(behind=[5, 1], running=2, seats=2, budget=4, max_chunk=4),
        dict(behind=[3, 3], running=0, seats=1, budget=8, max_chunk=8),
        dict(behind=[3, 1], running=1, seats=2, budget=2, max_chunk=4),
        dict(behind=[6, 6], running=1, seats=2, budget=8, max_chunk=3),
        dict(behind=[1, 1, 9, 2], running=2, seats=4, budget=6, max_chunk=6),
        dict(behind=[7, 1, 1, 4, 1], running=3, seats=4, budget=12, max_chunk=6),
        dict(behind=[1, 12, 1, 5, 2, 3], running=3, seats=5, budget=16, max_chunk=8),
        dict(behind=[1, 1, 1, 6], running=3, seats=3, budget=8, max_chunk=8),
    ],
)


@TOKEN_BUDGET.wrong_solutions
class _:
    def first_come_first_served(behind, running, seats, budget, max_chunk):
        """You serve all requests in order of arrival, so a long prompt uses up the budget before the decoding requests
        after it get their token. Their outputs stall. Give one token to each decoding request first, then go through
        the prompts."""
        return plan_step(behind, running, seats, budget, max_chunk, decoding=0)

    def new_ones_decode(behind, running, seats, budget, max_chunk):
        """You treat a waiting request with one uncomputed token as decoding. It is new, so it comes in round 3, after
        the prompts of running requests. Only the first `running` requests can decode."""
        return plan_step(behind, running, seats, budget, max_chunk, decoding=min(seats, len(behind)))

    def whole_prompts_only(behind, running, seats, budget, max_chunk):
        """You process a prompt as a whole or not at all. A prompt longer than what is left would wait a long time, or
        forever, while the rest of the budget goes unused. Give it the largest chunk that fits."""
        return plan_step(behind, running, seats, budget, max_chunk, whole=True)

    def shorter_ones_overtake(behind, running, seats, budget, max_chunk):
        """You pass over a prompt that does not fit and serve shorter ones that arrived after it. A long prompt could
        wait forever that way. Go through the prompts in order, and give each a chunk that fits."""
        return plan_step(behind, running, seats, budget, max_chunk, whole=True, overtakes=True)

    def decodes_cost_nothing(behind, running, seats, budget, max_chunk):
        """You give the whole budget to the prompts, as if decode tokens cost nothing. All tokens of a forward pass
        share one budget, so subtract one for each decoding request before you hand out the chunks."""
        return plan_step(behind, running, seats, budget, max_chunk, charged=False)

    def no_limit_for_chunks(behind, running, seats, budget, max_chunk):
        """You ignore max_chunk. One long prompt then takes the whole rest of the step, and later prompts wait although
        each could have had a chunk. Limit every chunk to max_chunk as well."""
        return plan_step(behind, running, seats, budget, max_chunk=budget)

    def no_limit_for_seats(behind, running, seats, budget, max_chunk):
        """You admit more requests than may run. At most `seats` requests run at a time, including those that are
        running now. So request i may take part only if i < seats."""
        return plan_step(behind, running, len(behind), budget, max_chunk)

    def seats_for_newcomers(behind, running, seats, budget, max_chunk):
        """You admit `seats` new requests on top of those that run. The running ones occupy seats as well, so only seats
        − running are free."""
        return plan_step(behind, running, seats + running, budget, max_chunk)


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


@fresh("04.token_budget", "new requests and free seats")
def _(draw):
    return draw.until(lambda: step_case(draw), lambda case: case["running"] < min(case["seats"], len(case["behind"])))


@fresh("04.token_budget", "budget or seats run out")
def _(draw):
    def scarce(case):
        wanted = sum(min(b, case["max_chunk"]) for b in case["behind"][: case["seats"]])
        return wanted > case["budget"] or len(case["behind"]) > case["seats"]

    return draw.until(lambda: step_case(draw), scarce)


@fresh("04.token_budget", "chunks of limited length", weight=0.5)
def _(draw):
    return draw.until(lambda: step_case(draw), lambda case: max(case["behind"]) > case["max_chunk"] < case["budget"])


# ---- 04.preemption --------------------------------------------------------------------------------------------------
def make_room(
    prompt, output, free, block_size, *, victim=lambda running, i: running[-1], again=None, returns=True, grows=None
):
    """One decoding step for all requests, with parts to exchange."""
    tokens = [p + o for p, o in zip(prompt, output, strict=True)]
    blocks = [ceil_div(n - 1, block_size) for n in tokens]  # the last token has no slot yet
    grows = grows or (lambda n: n % block_size == 1 or block_size == 1)
    running, pushed = list(range(len(tokens))), []
    for i in range(len(tokens)):
        need = int(grows(tokens[i]))
        while i in running and need > free:
            out = victim(running, i)
            running.remove(out)
            pushed.append((out, again(prompt[out], output[out]) if again else tokens[out]))
            free += blocks[out] if returns else 0
        if i in running:
            free -= need
            blocks[i] += need
    return running, pushed


def observe_room(answer, prompt, output, free, block_size):
    running, pushed = pair(answer(prompt, output, free, block_size), "the running requests and the preempted ones")
    pushed = items(pushed, "the preempted requests", " of pairs, which may be empty")
    parts = [whole_numbers(pair(one, "request and tokens"), "each preempted request") for one in pushed]
    return {"runs": sorted(whole_numbers(running, "the running requests")), "preempted": parts}


PREEMPTION = exercise(
    "04.preemption",
    reference=make_room,
    observe=observe_room,
    cases=[
        dict(prompt=[2], output=[1], free=1, block_size=2),
        dict(prompt=[2, 2], output=[1, 1], free=1, block_size=2),
        dict(prompt=[3, 3], output=[2, 1], free=0, block_size=4),
        dict(prompt=[3, 2, 6], output=[2, 1, 2], free=0, block_size=4),
        dict(prompt=[8, 2, 3], output=[5, 2, 2], free=0, block_size=4),
        dict(prompt=[4, 4, 4, 1], output=[5, 1, 1, 2], free=0, block_size=4),
        dict(prompt=[3, 6, 9, 2], output=[2, 3, 4, 1], free=1, block_size=4),
        dict(prompt=[4, 3, 2], output=[3, 5, 1], free=2, block_size=3),
    ],
)


@PREEMPTION.wrong_solutions
class _:
    def first_gives_way(prompt, output, free, block_size):
        """You preempt the first request in the order. It has waited longest and progressed furthest, and if even the
        first can be preempted, two requests may preempt each other forever. Preempt the last one, so that the first
        always continues."""
        return make_room(prompt, output, free, block_size, victim=lambda running, i: running[0])

    def asker_gives_way(prompt, output, free, block_size):
        """In your version the request that finds no block gives way itself, so requests that arrived later continue.
        Preempt the last request in the order. The asking request gives way only if it is the last."""
        return make_room(prompt, output, free, block_size, victim=lambda running, i: i)

    def never_itself(prompt, output, free, block_size):
        """In your version the request that asks never gives way itself: if it is the last one running, an earlier one
        is preempted for it. Preempt the last running request, even if that is the one asking."""
        return make_room(prompt, output, free, block_size, victim=lambda running, i: running[-1 - (running[-1] == i)])

    def computes_the_prompt_again(prompt, output, free, block_size):
        """You count only the prompt. The keys and values of the generated tokens were in the lost blocks as well, so
        prompt and output are both processed again, in one prefill. (No token is sampled anew.)"""
        return make_room(prompt, output, free, block_size, again=lambda p, o: p)

    def leaves_out_the_last_token(prompt, output, free, block_size):
        """You count the tokens that had a slot. The last token has none yet, but it also has to be processed before the
        next one is known. Count all of prompt + output."""
        return make_room(prompt, output, free, block_size, again=lambda p, o: p + o - 1)

    def blocks_are_lost(prompt, output, free, block_size):
        """You preempt a request, but its blocks do not become free, so one request after another has to go. Add its
        blocks to the free ones, and check again."""
        return make_room(prompt, output, free, block_size, returns=False)

    def fills_up_one_token_early(prompt, output, free, block_size):
        """You take a block when all n tokens of the request fill its blocks exactly. The last of those tokens is the
        one that gets its slot now, and it still fits. A new block is needed when n − 1 is a multiple of block_size."""
        return make_room(prompt, output, free, block_size, grows=lambda n: n % block_size == 0)


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


fresh("04.preemption", "there is room", crowd, where=lambda case: not preempted(case), weight=0.5)
fresh("04.preemption", "somebody gives way", crowd, where=lambda case: bool(preempted(case)))


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
