# %% [markdown]
# # Exercises 04: continuous batching
#
# Many requests share the forward passes of one model. A scheduler decides which of them take part in the next pass, with
# how many tokens each, and which one has to give way when memory runs out. All of this is bookkeeping without a single
# tensor. The exercises are these decisions, and each stands alone.
#
# Fill in the function, run its cell, and run the check below it.

# %%
from minispec_course.check import check, hint, progress_table

# %% [markdown] exercise="04.static_waste"
# ## 1. Static against continuous
#
# How many steps does each way of batching take? A *static* batch is filled once and runs until its longest request has
# finished; a request that finishes earlier leaves its seat in the batch empty until then. With *continuous* batching, a
# seat that becomes free goes to the next request in the very next step.
#
# For example, take outputs of 3, 1 and 2 tokens and a batch with two seats, with one letter for each step of a request:
#
# ```
# static        aaa cc       5 steps           continuous    aaa      3 steps
#               b..                                          bcc
# ```
#
# All requests are there from the start and are served in the order of the list. A request of length L occupies a seat for L
# steps.
#
# | | | |
# |---|---|---|
# | `lengths` | list of whole numbers ≥ 1, at least one | steps that each request needs |
# | `seats` | whole number ≥ 1 | how many requests run side by side |
# | returns | `(static, continuous)` | steps until the last request has finished |

# %% [markdown] exercise="04.token_budget"
# ## 2. The plan of a step
#
# A forward pass processes at most `budget` tokens, which bounds its time. Each request has some tokens that are not
# computed yet: one if it is decoding, many if it has a prompt to process. A prompt need not be processed in one go. It is
# cut into chunks that share passes with the requests that are decoding, so that no output stalls because another request
# has arrived with a long prompt.
#
# The budget is handed out in this order:
#
# 1. to requests that **run and decode** (one uncomputed token), one token each;
# 2. to requests that **run and are still in their prompt**, in order of arrival;
# 3. to **new requests**, in order of arrival, while there are free seats in the batch.
#
# In rounds 2 and 3 each request gets a chunk that is as large as possible: at most its uncomputed tokens, at most what
# is left of the budget, and at most `max_chunk`. No request is passed over in favour of one that arrived later.
#
# | | | |
# |---|---|---|
# | `behind` | list of whole numbers ≥ 1 | for each request, in order of arrival: its uncomputed tokens |
# | `running` | whole number | this many of them, the first ones, are running; the others wait |
# | `seats` | whole number ≥ running | the most that may run (vLLM: `max_num_seqs`) |
# | `budget`, `max_chunk` | whole numbers | tokens of the step (vLLM: `max_num_batched_tokens`), at least `seats`; tokens of one prompt, ≥ 1 |
# | returns | list of counts | tokens of each request in this step; 0 for a request that does not take part |

# %% [markdown] exercise="04.preemption"
# ## 3. Which request gives way
#
# All requests decode and grow, and at some step there is no free block for the next token. Then a running request is
# *preempted*: its blocks go to the others, and it is computed again later.
#
# Request i has prompt[i] + output[i] tokens. All but the last have a slot in its blocks, and now the last one needs a slot
# as well. Go through the requests in order:
#
# - if it has room in its last block, there is nothing to do;
# - if it needs a new block and one is free, it takes that block;
# - if it needs a new block and none is free, the **last request that still runs** is preempted, and all its blocks become
#   free. Check again, unless that was the request itself.
#
# Preempting the last one means that no request is ever preempted for a later one. So the first request always continues,
# and eventually every request that fits into the pool by itself finishes.
#
# A preempted request loses all its keys and values. How many tokens have to be processed when it comes back, before its next
# token can be sampled?
#
# | | | |
# |---|---|---|
# | `prompt`, `output` | lists of whole numbers ≥ 1 | tokens of each request, in order |
# | `free` | whole number ≥ 0 | blocks that no request holds |
# | `block_size` | whole number ≥ 1 | slots of a block |
# | returns | `(running, preempted)` | the numbers of the requests that run in this step; a list of pairs (request, tokens to process when it comes back), in the order in which they were preempted |
#
# Request i holds exactly the blocks that its tokens with slots need, and shares none. Any single request would fit into
# memory by itself.


# %% exercise="04.preemption"
def make_room(
    prompt: list[int], output: list[int], free: int, block_size: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """A slot for the last token of every request: which requests run, and which were preempted for it."""
    ### BEGIN SOLUTION: which request needs a block? while there is none, the last one goes
    tokens = [p + o for p, o in zip(prompt, output, strict=True)]
    running, preempted = list(range(len(tokens))), []
    for request in range(len(tokens)):
        if request not in running or (tokens[request] - 1) % block_size != 0:
            continue
        while free == 0 and request in running:
            last = running.pop()
            free += -(-(tokens[last] - 1) // block_size)
            preempted.append((last, tokens[last]))
        if request in running:
            free -= 1
    return running, preempted
    ### END SOLUTION


# %% exercise="04.preemption"
check("04.preemption", make_room)
