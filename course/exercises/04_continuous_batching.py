# %% [markdown]
# # Exercises 04: continuous batching
#
# Many requests share the passes of one model. Who is in the next pass, with how many tokens, and who has to leave when
# memory runs out: that is a scheduler, and it is all bookkeeping, without a tensor. You write its three decisions. Each
# exercise stands alone.
#
# Fill in the function, run its cell, run the check below it.

# %%
from minispec.course.classroom import check, draw, hint

# %% [markdown] exercise="04.static_waste"
# ## 1. Static against continuous
#
# A *static* batch is filled once and runs until its longest request has ended: the others have long been finished, but
# their rows are computed along, for nothing. With *continuous* batching a row that becomes free takes the next request
# in the very next step.
#
# Lengths 3, 1, 2 on two rows, a letter for each step of a request:
#
# ```
# static        aaa cc       5 steps           continuous    aaa      3 steps
#               b..                                          bcc
# ```
#
# All requests are there from the beginning and are served in the order of the list. A request of length L occupies a row
# for L steps.
#
# | | | |
# |---|---|---|
# | `lengths` | list of whole numbers ≥ 1 | steps that each request needs |
# | `rows` | whole number ≥ 1 | how many run side by side |
# | returns | `(static, continuous)` | steps until the last request has ended |


# %% exercise="04.static_waste"
def batching_steps(lengths: list[int], rows: int) -> tuple[int, int]:
    """How many steps it takes to serve all requests: in static batches, and with continuous batching."""
    ### BEGIN SOLUTION: one batch after the other; and for each request, which row is free first?
    batches = [lengths[first : first + rows] for first in range(0, len(lengths), rows)]
    static = sum(max(batch) for batch in batches)
    free_at = [0] * rows  # the step at which each row takes its next request
    for length in lengths:
        first_free = min(range(rows), key=lambda row: free_at[row])
        free_at[first_free] += length
    return static, max(free_at)
    ### END SOLUTION


# %% exercise="04.static_waste"
check("04.static_waste", batching_steps)

# %% [markdown] exercise="04.token_budget"
# ## 2. The plan of a step
#
# Every pass may read `budget` tokens: that is what keeps its time bounded. Everybody in it is some tokens *behind*: 1 if
# it decodes, many if it has a prompt to read. A prompt need not be read at once: it is read in chunks, beside the others'
# decoding, so that nobody's text stops because somebody else has come with a long question.
#
# The budget goes, in this order,
#
# 1. to those who **run and decode** (1 behind): one token each;
# 2. to those who **run and still read** their prompt, in order of arrival;
# 3. to **newcomers**, in order of arrival, while there are free seats.
#
# In rounds 2 and 3 each gets a chunk, as large as possible: at most what it is behind, at most what is left of the
# budget, at most `max_chunk`. Nobody is passed over for somebody behind it.
#
# | | | |
# |---|---|---|
# | `behind` | list of whole numbers ≥ 1 | for each request, in order of arrival: tokens it has yet to read |
# | `running` | whole number | the first so many of them run, the others wait |
# | `seats` | whole number ≥ running | at most so many run |
# | `budget`, `max_chunk` | whole numbers | tokens of the step, at least `seats`; tokens of one prompt, ≥ 1 |
# | returns | list of counts | tokens that each request reads in this step; 0 for those who do not take part |


# %% exercise="04.token_budget"
def plan_step(behind: list[int], running: int, seats: int, budget: int, max_chunk: int) -> list[int]:
    """How many tokens each request reads in the next pass."""
    ### BEGIN SOLUTION: three rounds, one budget
    plan = [0] * len(behind)
    for request in range(running):
        if behind[request] == 1:
            plan[request], budget = 1, budget - 1
    for request in range(min(seats, len(behind))):  # those who run come first in the list, then newcomers
        if plan[request] == 0:
            plan[request] = min(behind[request], budget, max_chunk)
            budget -= plan[request]
    return plan
    ### END SOLUTION


# %% exercise="04.token_budget"
check("04.token_budget", plan_step)

# %% [markdown]
# Six requests under your plan: a and b decode from the beginning, the others come with prompts. Do a and b ever stop?

# %%
draw("04.token_budget", plan_step)

# %% [markdown] exercise="04.preemption"
# ## 3. Who gives way
#
# Everybody decodes, texts grow, and at some step there is no free block for the next token. Nobody can be asked to stop
# growing, so somebody has to be pushed out (*preempted*): its blocks go to the others, and it is computed again later.
#
# The text of request i has prompt[i] + output[i] tokens. All but the last have a slot in its blocks; now the last one
# needs one. Go through the requests in order:
#
# - it has room in its last block: nothing to do;
# - it needs a fresh block and one is free: it takes it;
# - none is free: the **last request that still runs** is pushed out, and all its blocks are free. Look again, unless that
#   was the request itself.
#
# Why the last: then nobody is ever pushed out for one behind it, the first always goes on, and everybody ends some day.
#
# Who is pushed out loses all its keys and values. How many tokens does it have to read when it comes back, before the next
# one can be drawn?
#
# | | | |
# |---|---|---|
# | `prompt`, `output` | lists of whole numbers ≥ 1 | tokens of each request, first in the order first |
# | `free` | whole number ≥ 0 | blocks that nobody holds |
# | `block_size` | whole number ≥ 1 | slots of a block |
# | returns | `(running, pushed_out)` | the numbers of those who run in this step; a list of pairs (request, tokens to read when it comes back), in the order in which they were pushed out |
#
# Request i holds exactly the blocks that its tokens with slots need, and shares none. Any one request alone would fit.


# %% exercise="04.preemption"
def make_room(
    prompt: list[int], output: list[int], free: int, block_size: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """A slot for everybody's next token: who runs, and who was pushed out for it."""
    ### BEGIN SOLUTION: who needs a block? while there is none, the last one goes
    text = [p + o for p, o in zip(prompt, output, strict=True)]
    running, pushed_out = list(range(len(text))), []
    for request in range(len(text)):
        if request not in running or (text[request] - 1) % block_size != 0:
            continue
        while free == 0 and request in running:
            last = running.pop()
            free += -(-(text[last] - 1) // block_size)
            pushed_out.append((last, text[last]))
        if request in running:
            free -= 1
    return running, pushed_out
    ### END SOLUTION


# %% exercise="04.preemption"
check("04.preemption", make_room)
