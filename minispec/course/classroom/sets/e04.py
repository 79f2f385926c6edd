"""Set 04, continuous batching: what static batches waste, the plan of a step, who gives way when blocks run out."""

from __future__ import annotations

from ..exercise import Complaint, exercise, pair
from .e03 import ceil_div, numbers

# ---- 04.static_waste ------------------------------------------------------------------------------------------------


def static_steps(lengths, rows):
    return sum(max(lengths[i : i + rows]) for i in range(0, len(lengths), rows))


def continuous_steps(lengths, rows, pause=0):
    """Every request goes to the row that is free first. `pause`: steps that a row stands still between two of them."""
    free_at = [0] * rows
    for length in lengths:
        row = free_at.index(min(free_at))
        free_at[row] += length + pause * (free_at[row] > 0)
    return max(free_at)


def batching_steps(lengths, rows):
    return static_steps(lengths, rows), continuous_steps(lengths, rows)


def observe_steps(answer, lengths, rows):
    static, continuous = numbers(pair(answer(lengths, rows), "the static steps and the continuous ones"), "the result")
    return {"static": static, "continuous": continuous}


STATIC_WASTE = exercise(
    "04.static_waste",
    title="Static against continuous",
    level="M",
    minutes=20,
    points=2,
    hints=(
        "Draw the rows as lines and time as columns. In a static batch, when does the first request of the next batch "
        "begin? With continuous batching, when does a waiting one begin?",
        "Static: requests go in groups of `rows`, a group takes as long as its longest, and groups follow one another. "
        "Continuous: keep for every row the step at which it is free; the next request takes the row that is free "
        "first.",
        "Static is the sum of max(group). Continuous: free_at = [0] * rows; for each length in order, the smallest "
        "entry of free_at grows by that length; in the end take max(free_at).",
    ),
    code="minispec.serving.scheduler.StaticScheduler",
    reference=batching_steps,
    observe=observe_steps,
    cases=[
        dict(lengths=[3, 1], rows=2),
        dict(lengths=[3, 1, 2], rows=2),
        dict(lengths=[2, 3], rows=1),
        dict(lengths=[1, 4, 4, 1], rows=2),
        dict(lengths=[6, 2, 2, 2, 5], rows=2),
        dict(lengths=[2, 2, 2, 9, 1, 1, 1], rows=3),
    ],
)


@STATIC_WASTE.mutant
def one_batch_for_all(lengths, rows):
    """Your static time is that of the longest request alone, as if all fitted into one batch. There are `rows` rows:
    the requests go in groups of so many, one group after the other."""
    return max(lengths), continuous_steps(lengths, rows)


@STATIC_WASTE.mutant
def rows_never_idle(lengths, rows):
    """Your continuous time is the work divided by the rows, as if no row were ever idle. At the end some are: a request
    cannot be cut in two, and the last ones run while other rows have nothing to do. Follow the rows one by one."""
    return static_steps(lengths, rows), ceil_div(sum(lengths), rows)


@STATIC_WASTE.mutant
def sorts_by_length(lengths, rows):
    """You sort the requests by length first. That makes better batches, but nobody knows the lengths beforehand, and
    requests are served as they come."""
    return batching_steps(sorted(lengths, reverse=True), rows)


@STATIC_WASTE.mutant
def next_row_in_turn(lengths, rows):
    """In your continuous version the requests are dealt out to the rows in turn. A row that is busy with a long one
    then gets its next as well, while another is free: take the row that is free first."""
    return static_steps(lengths, rows), max(sum(lengths[i::rows]) for i in range(rows))


@STATIC_WASTE.mutant
def waits_for_the_batch(lengths, rows):
    """Your continuous time is the static one: a new request waits until all rows are done. That is what continuous
    batching is not: a row that is free takes the next request at once."""
    return static_steps(lengths, rows), static_steps(lengths, rows)


@STATIC_WASTE.mutant
def a_step_between(lengths, rows):
    """Your rows stand still for one step between two requests. The finished one leaves after its step, and the next one
    is there when the following step begins."""
    return static_steps(lengths, rows), continuous_steps(lengths, rows, pause=1)


@STATIC_WASTE.mutant
def counts_row_steps(lengths, rows):
    """Your static time adds up all requests, one after the other. The rows of a batch run side by side: a step serves
    all of them, and a batch takes as many steps as its longest request."""
    return sum(lengths), continuous_steps(lengths, rows)


# ---- 04.token_budget ------------------------------------------------------------------------------------------------


def plan_step(behind, running, seats, budget, max_chunk):
    return flawed_plan(behind, running, seats, budget, max_chunk)


def flawed_plan(behind, running, seats, budget, max_chunk, *, decodes_first=True, charged=True, whole=False,
                overtakes=False, prompts=None):  # fmt: skip
    """The plan, with a switch for each way to get it wrong."""
    count, left, begun = [0] * len(behind), budget, 0
    if decodes_first:
        for i in range(running):
            if behind[i] == 1:
                count[i] = 1
                left -= charged
    for i in range(len(behind)):
        if count[i] or (i >= running and i >= seats):
            continue
        chunk = min(behind[i], left, max_chunk)
        if whole and chunk < behind[i]:
            if overtakes:
                continue
            break
        if chunk <= 0 or begun == prompts:
            break
        count[i], left, begun = chunk, left - chunk, begun + 1
    return count


def observe_plan(answer, behind, running, seats, budget, max_chunk):
    plan = numbers(answer(behind, running, seats, budget, max_chunk), "the plan")
    if len(plan) != len(behind):
        raise Complaint(f"the plan should have a number for each of the {len(behind)} requests; it has {len(plan)}.")
    return plan


def timeline(answer) -> str:
    """Some requests through the learner's plans, step by step, until the last prompt is read."""
    behind, running, seats, budget, max_chunk, names = [1, 1, 9, 7, 12, 2], 2, 5, 8, 6, "abcdef"
    lines = [
        f"budget {budget}, chunks of at most {max_chunk}, {seats} seats",
        "d decodes   p reads a piece of its prompt",
        "",
    ]
    for step in range(1, 9):
        plan = observe_plan(answer, list(behind), running, seats, budget, max_chunk)
        told = [f"{name}:{'d' if b == 1 else 'p' * n}" for name, b, n in zip(names, behind, plan, strict=True) if n > 0]
        lines.append(f"step {step}  {sum(plan)} of {budget}   {'  '.join(told)}")
        running = max([running, *(i + 1 for i, n in enumerate(plan) if n > 0)])
        behind = [max(1, b - max(0, n)) for b, n in zip(behind, plan, strict=True)]  # who is done with it emits a token
        if running >= seats and set(behind[:seats]) == {1}:
            lines.append(f"        all prompts are read; {names[seats]} waits for a seat")
            break
    return "\n".join(lines)


TOKEN_BUDGET = exercise(
    "04.token_budget",
    title="The plan of a step",
    level="M",
    minutes=30,
    points=3,
    hints=(
        "Three rounds over the list: who decodes, who is in the middle of a prompt, who is let in. What is left of the "
        "budget goes from each round to the next.",
        "A chunk is min(what is still to be read, what is left of the budget, max_chunk). Take it off the budget. In "
        "the third round stop when there is no seat or no budget left: the requests are in order, so request i needs "
        "i < seats.",
        "First: plan[i] = 1 for i < running with behind[i] == 1, each costs 1. Then, for i from 0 up to "
        "min(len(behind), seats): where plan[i] is still 0, plan[i] = min(behind[i], left, max_chunk) and left -= "
        "plan[i]. Running ones come before waiting ones by themselves.",
    ),
    code="minispec.serving.scheduler.Scheduler.schedule",
    reference=plan_step,
    observe=observe_plan,
    picture=timeline,
    cases=[
        dict(behind=[5], running=0, seats=2, budget=4, max_chunk=4),
        dict(behind=[5, 1], running=2, seats=2, budget=4, max_chunk=4),
        dict(behind=[3, 3], running=0, seats=1, budget=8, max_chunk=8),
        dict(behind=[6, 6], running=1, seats=2, budget=8, max_chunk=3),
        dict(behind=[1, 1, 9, 2], running=2, seats=4, budget=6, max_chunk=6),
        dict(behind=[7, 1, 1, 4, 1], running=3, seats=4, budget=12, max_chunk=6),
        dict(behind=[1, 12, 1, 5, 2, 3], running=3, seats=5, budget=16, max_chunk=8),
        dict(behind=[1, 1, 1, 6], running=3, seats=3, budget=8, max_chunk=8),
    ],
)


@TOKEN_BUDGET.mutant
def first_come_first_served(behind, running, seats, budget, max_chunk):
    """You serve everybody in order of arrival, and a long prompt eats the budget before the decoding ones behind it get
    their token. Their readers then see the text stop. One token for each that decodes comes first."""
    return flawed_plan(behind, running, seats, budget, max_chunk, decodes_first=False)


@TOKEN_BUDGET.mutant
def whole_prompts_only(behind, running, seats, budget, max_chunk):
    """You read a prompt whole or not at all. One that is longer than what is left would wait for long, or for ever, and
    the rest of the budget goes unused: read a piece of it, as large as fits."""
    return flawed_plan(behind, running, seats, budget, max_chunk, whole=True)


@TOKEN_BUDGET.mutant
def shorter_ones_overtake(behind, running, seats, budget, max_chunk):
    """You pass over a prompt that does not fit and serve shorter ones behind it. A long prompt could wait for ever that
    way. Read a piece of it, in order."""
    return flawed_plan(behind, running, seats, budget, max_chunk, whole=True, overtakes=True)


@TOKEN_BUDGET.mutant
def decodes_cost_nothing(behind, running, seats, budget, max_chunk):
    """You give the whole budget to the prompts, as if decoding tokens cost nothing. All tokens of a pass share one
    budget: take one off for each that decodes."""
    return flawed_plan(behind, running, seats, budget, max_chunk, charged=False)


@TOKEN_BUDGET.mutant
def no_limit_for_chunks(behind, running, seats, budget, max_chunk):
    """You ignore max_chunk. One long prompt then takes the whole rest of the step, and those behind it wait although
    there is room for a piece of each."""
    return flawed_plan(behind, running, seats, budget, max_chunk=budget)


@TOKEN_BUDGET.mutant
def no_limit_for_seats(behind, running, seats, budget, max_chunk):
    """You let in more requests than there are seats. At most `seats` run at a time, those that run already included."""
    return flawed_plan(behind, running, len(behind), budget, max_chunk)


@TOKEN_BUDGET.mutant
def one_prompt_a_step(behind, running, seats, budget, max_chunk):
    """You read of one prompt only. While budget and seats are left, the next prompt gets a piece as well."""
    return flawed_plan(behind, running, seats, budget, max_chunk, prompts=1)


@TOKEN_BUDGET.mutant
def every_prompt_its_chunk(behind, running, seats, budget, max_chunk):
    """You give every prompt a chunk, whatever is left of the budget, and the step becomes larger than it may. The
    budget limits the sum over all requests."""
    plan = plan_step(behind, running, seats, budget, max_chunk)
    return [min(b, max_chunk) if i < seats else n for i, (b, n) in enumerate(zip(behind, plan, strict=True))]


@TOKEN_BUDGET.mutant
def seats_for_newcomers(behind, running, seats, budget, max_chunk):
    """You let in as many new requests as there are seats, on top of those that run. Those sit somewhere too: free are
    seats − running."""
    return flawed_plan(behind, running, seats + running, budget, max_chunk)


# ---- 04.preemption --------------------------------------------------------------------------------------------------


def make_room(prompt, output, free, block_size):
    return flawed_room(prompt, output, free, block_size)


def flawed_room(prompt, output, free, block_size, *, victim=lambda running, i, blocks: running[-1], again=None,
                returns=True, grows=None):  # fmt: skip
    """One decoding step for everybody, with parts to exchange."""
    tokens = [p + o for p, o in zip(prompt, output, strict=True)]
    blocks = [ceil_div(n - 1, block_size) for n in tokens]  # the last token has no slot yet
    grows = grows or (lambda n: n % block_size == 1 or block_size == 1)
    running, pushed = list(range(len(tokens))), []
    for i in range(len(tokens)):
        need = int(grows(tokens[i]))
        while i in running and need > free:
            out = victim(running, i, blocks)
            running.remove(out)
            pushed.append((out, again(prompt[out], output[out]) if again else tokens[out]))
            free += blocks[out] if returns else 0
        if i in running:
            free -= need
            blocks[i] += need
    return running, pushed


def observe_room(answer, prompt, output, free, block_size):
    running, pushed = pair(answer(prompt, output, free, block_size), "who runs and who was pushed out")
    if not isinstance(pushed, (list, tuple)):
        raise Complaint("those who were pushed out should be a list of pairs, which may be empty.")
    parts = [numbers(pair(one, "request and tokens"), "everybody who was pushed out") for one in pushed]
    return {"runs": sorted(numbers(running, "those who run")), "pushed out": parts}


PREEMPTION = exercise(
    "04.preemption",
    title="Who gives way",
    level="H",
    minutes=35,
    points=3,
    hints=(
        "First find out who needs a block at all. The text of a request has n tokens, n − 1 of them have a slot: when "
        "does the n-th not fit into the blocks it has?",
        "When n − 1 is a multiple of block_size. Then one free block is taken, if there is one. If not, the last "
        "request that still runs goes, its ⌈(n − 1) / block_size⌉ blocks become free, and you look again: unless "
        "it was the one that asked.",
        "for i in order, if i still runs and needs a block: while free == 0: out = running.pop(); free += its blocks; "
        "note (out, prompt + output of it); if out == i: stop. Else free -= 1 at the end. All of its text is read "
        "again: prompt[out] + output[out] tokens.",
    ),
    code="minispec.serving.scheduler.Scheduler._decode",
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


@PREEMPTION.mutant
def first_gives_way(prompt, output, free, block_size):
    """You push out the first in the order. It has waited longest and is furthest, and if the first can be pushed out,
    two requests may push each other out for ever. The last gives way; so the first always goes on."""
    return flawed_room(prompt, output, free, block_size, victim=lambda running, i, blocks: running[0])


@PREEMPTION.mutant
def largest_gives_way(prompt, output, free, block_size):
    """You push out the one with the most blocks. That frees most, and wastes most: all of it is computed again. And
    nobody could be sure ever to finish. The last in the order gives way, whatever it holds."""
    return flawed_room(
        prompt, output, free, block_size, victim=lambda running, i, blocks: max(running, key=lambda j: (blocks[j], j))
    )


@PREEMPTION.mutant
def asker_gives_way(prompt, output, free, block_size):
    """The one that finds no block gives way itself. Those behind it go on then, although they came later: it is the
    last in the order that gives way, and only if that is the asker, the asker."""
    return flawed_room(prompt, output, free, block_size, victim=lambda running, i, blocks: i)


@PREEMPTION.mutant
def computes_the_prompt_again(prompt, output, free, block_size):
    """You read only the prompt again. The tokens that were written since were in the lost blocks as well: the whole
    text, prompt and output, is read again (in one prefill, and no token of it is drawn anew)."""
    return flawed_room(prompt, output, free, block_size, again=lambda p, o: p)


@PREEMPTION.mutant
def computes_the_output_again(prompt, output, free, block_size):
    """You read only the output again. The prompt's keys and values were in the lost blocks as well: the whole text is
    read again."""
    return flawed_room(prompt, output, free, block_size, again=lambda p, o: o)


@PREEMPTION.mutant
def leaves_out_the_last_token(prompt, output, free, block_size):
    """You count what had a slot. The last token of the text has none yet, and has to be read to know the next: all of
    prompt + output."""
    return flawed_room(prompt, output, free, block_size, again=lambda p, o: p + o - 1)


@PREEMPTION.mutant
def blocks_are_lost(prompt, output, free, block_size):
    """You push somebody out, but the blocks it held do not become free, so that one after the other has to go. Add them
    to the free ones, and look again."""
    return flawed_room(prompt, output, free, block_size, returns=False)


@PREEMPTION.mutant
def everybody_takes_a_block(prompt, output, free, block_size):
    """Everybody takes a block in your version. A token takes a slot, and most have one left in their last block. A
    fresh block is needed only when the n − 1 tokens that have slots fill their blocks exactly."""
    return flawed_room(prompt, output, free, block_size, grows=lambda n: True)


@PREEMPTION.mutant
def fills_up_one_token_early(prompt, output, free, block_size):
    """You take a block when the text of n tokens fills its blocks exactly. The last of these tokens is the one that now
    gets its slot, and it still fits. A block is missing when n − 1 is a multiple of block_size."""
    return flawed_room(prompt, output, free, block_size, grows=lambda n: n % block_size == 0)


@PREEMPTION.mutant
def all_wait(prompt, output, free, block_size):
    """Nobody is pushed out: the one without a block just waits. If all wait for a block, all wait for ever, since those
    who could finish are the ones that wait. Somebody has to give its blocks back: the last in the order."""
    running, pushed = [], []
    for i, (p, o) in enumerate(zip(prompt, output, strict=True)):
        need = int((p + o - 1) % block_size == 0)
        if need <= free:
            free -= need
            running.append(i)
    return running, pushed
