# %% [markdown]
# # 04 Continuous batching
#
# *Time:* 55 minutes · *Before this:* [03 Paged blocks](03_paged_blocks.ipynb) · *Practice:* [exercises 04](../exercises/04_continuous_batching.ipynb)
#
# Many users fit into memory now. The number on the dashboard that this lesson moves is **tokens per second**, of all
# users together. One forward pass can serve many of them, and the weights are read only once for all (lesson 01). So a
# server should keep its passes full. But requests arrive at any moment and finish at any moment, so before every pass
# something has to decide who takes part. That is the scheduler, and you will write it.
#
# You will be able to
#
# - say what a static batch wastes, and when continuous batching gains nothing;
# - plan a step: decodes first, then prompts in chunks, within a token budget;
# - explain what chunked prefill trades, and what happens when memory runs out.

# %%
import time
from statistics import median

import torch

import minispec as ms
from minispec.serving.paged import PagedKVCache
from minispec_course import viz
from minispec_course.check import draw, mine, yours
from minispec_course.labs import presets
from minispec_course.labs.pairs import course_pair, where

target = ms.load("micro", device="cpu")  # schedules are the same on every machine, so we count with a small model

# %% [markdown]
# ## What does a static batch waste?
#
# Twelve requests wait, and a batch has four **seats** (batch positions). Most outputs are short and a few are long.
# **Static batching** takes four requests, runs until the longest of them has finished, and then takes the next four. A
# **step** is one forward pass, in which every request of the batch gets one token.

# %%
lengths = [6, 48, 5, 10, 22, 4, 8, 30, 5, 12, 7, 3]
viz.static_holes(lengths, seats=4)

# %% [markdown]
# Each gap is a finished request waiting for the slowest one. In a batch with output lengths $L$ the share of the gaps
# is $1 - \text{mean}(L) / \max(L)$.
#
# **Continuous batching** gives a free seat to the next request in the very next step. The requests come in the same
# order, and there are still four seats. Static batching took 90 steps.

# %% tags=["nbval-ignore-output"]
steps_guess = viz.predict("How many steps does continuous batching take?", "steps")
steps_guess

# %% [markdown]
# ### Yours: both counts
#
# `lengths` are the outputs in order of arrival. Return the steps of static and of continuous batching. For the second,
# note for each seat when it becomes free.


# %%
@yours("04.static_waste")
def batching_steps(lengths: list[int], seats: int) -> tuple[int, int]:
    """How many steps static and continuous batching take for these outputs."""
    ### BEGIN SOLUTION: static: the longest of each group; continuous: the seat that is free first
    static = sum(max(lengths[first : first + seats]) for first in range(0, len(lengths), seats))
    free_at = [0] * seats
    for length in lengths:
        seat = free_at.index(min(free_at))
        free_at[seat] += length
    return static, max(free_at)
    ### END SOLUTION


# %% tags=["spoiler"]
static, continuous = batching_steps(lengths, 4)
print(f"static {static} steps, continuous {continuous}")
print("no order can beat", max(max(lengths), -(-sum(lengths) // 4)))  # -(-a // b) is a / b, rounded up

# %% tags=["spoiler", "nbval-ignore-output"]
steps_guess.reveal(continuous)

# %% [markdown]
# No schedule can do better: the longest output alone takes so many steps. Does continuous batching always gain?

# %%
mixes = {
    "equal lengths": [20] * 16,
    "between 10 and 30": [10, 14, 18, 22, 26, 30, 12, 16] * 2,
    "a few long ones": [4, 5, 6, 60, 4, 5, 6, 7] * 2,
}
for name, mix in mixes.items():
    static, continuous = batching_steps(mix, 4)
    print(f"{name:18} static {static:3} steps, continuous {continuous:3}, ratio {static / continuous:.1f}")

# %% [markdown]
# If all outputs are equally long and all requests are there from the start, a static batch has no gaps. Real lengths
# differ, and no one knows them in advance.
#
# ## The plan of a step
#
# The idea is to make the *step* the unit of scheduling instead of the request. It is called **iteration-level
# scheduling** (Yu et al., 2022, Orca); *continuous batching* is the name that stuck. Before every pass the scheduler
# asks one thing about each request: how many of its tokens are not in the cache yet?
#
# - A request that has just arrived lacks its whole prompt. Its next pass is a **prefill**.
# - A request that is decoding lacks one token, the one it emitted last.
#
# To the scheduler the two differ only in the amount, and both may share a pass. It has a **token budget** per step
# (`max_num_batched_tokens` in vLLM) and a number of seats (`max_num_seqs`), and gives the
# budget out in this order:
#
# 1. to requests that run and decode, one token each;
# 2. to requests that run and are still in their prompt, in order of arrival;
# 3. to new requests, in order of arrival, while there is a free seat.
#
# In rounds 2 and 3 a request gets as large a **chunk** of its prompt as possible: what it lacks, what is left of the
# budget, or `max_chunk`, whichever is least.
#
# ### Yours: one scheduler step
#
# `behind` says for each request, in order of arrival, how many tokens it lacks. The first `running` of them run, the
# others wait, and at most `seats` may run. A *running* request that lacks exactly one token counts as decoding, even if
# that token is the end of its prompt; a waiting one never does. The budget is at least `seats`. Return how many tokens
# of each request the next pass processes, 0 for those that do not take part.


# %%
@yours("04.token_budget")
def plan_step(behind: list[int], running: int, seats: int, budget: int, max_chunk: int) -> list[int]:
    """How many tokens of each request the next forward pass processes."""
    ### BEGIN SOLUTION: three rounds, one budget
    plan = [0] * len(behind)
    for request in range(running):
        if behind[request] == 1:
            plan[request], budget = 1, budget - 1
    for request in range(min(seats, len(behind))):  # running requests come first in the list, then new ones
        if plan[request] == 0:
            plan[request] = min(behind[request], budget, max_chunk)
            budget -= plan[request]
    return plan
    ### END SOLUTION


# %% [markdown]
# Six requests under your plan: a and b decode from the beginning, the others arrive with prompts. Is
# there a step in which a or b gets no token?

# %%
draw("04.token_budget", plan_step)

# %% [markdown]
# ## A server of your own
#
# In every step of the server below, your plan says who takes part, your allocator of lesson 03 finds
# the memory, and one forward pass processes the tokens of all requests, laid end to end. `cache.open` tells attention
# where each request's keys and values are, so that no request attends to another one. If a pass reaches the last token
# of a request, its logits give the next one.

# %%
grow = mine("03.grow")


class Request:
    def __init__(self, prompt: list[int], new: int, arrival: int = 0):
        self.tokens, self.end, self.arrival = list(prompt), len(prompt) + new, arrival
        self.computed, self.table = 0, []  # tokens in the cache, and the blocks that hold them


@torch.inference_mode()
def serve(model, requests: list[Request], seats: int, budget: int = 512, max_chunk: int = 512) -> list:
    """Serve all requests. Returns what each step did: [(request, tokens processed, tokens lacking), …], seconds."""
    cache = PagedKVCache(model.config, num_blocks=256, block_size=16, device=model.device, dtype=model.dtype)
    free, active, steps = list(range(256)), [], []
    while active or any(r.arrival >= len(steps) for r in requests):
        active += [r for r in requests if r.arrival == len(steps)]
        start, behind = time.perf_counter(), [len(r.tokens) - r.computed for r in active]
        counts = plan_step(behind, sum(r.computed > 0 for r in active), seats, budget, max_chunk)
        turns = [(r, n) for r, n in zip(active, counts, strict=True) if n]
        for r, n in turns:
            grow(r.table, free, 16, r.computed + n)  # always True in this large memory; a full one comes further down
        rows = cache.open([r.table for r, _ in turns], [r.computed for r, _ in turns], [n for _, n in turns])
        tokens = [token for r, n in turns for token in r.tokens[r.computed : r.computed + n]]
        best = model.transformer(torch.tensor([tokens], device=model.device), rows).logits[0].argmax(-1).tolist()
        done, last = [(requests.index(r), n, len(r.tokens) - r.computed) for r, n in turns], -1
        for r, n in turns:
            last, r.computed = last + n, r.computed + n
            if r.computed == len(r.tokens):
                r.tokens.append(best[last])
            if len(r.tokens) == r.end:  # finished: its seat and its blocks are free for the next step
                active.remove(r)
                free += r.table
        steps.append((done, time.perf_counter() - start))
    return steps


# %% [markdown]
# Four requests, three seats, and a budget of 12 tokens:

# %%
story = target.encode("The old dog was tired. He went to the park and lay down under a big tree.")
requests = [Request(story[:3], 3), Request(story[:20], 2), Request(story[:2], 4), Request(story[:5], 2)]
for number, (turns, _) in enumerate(serve(target, requests, seats=3, budget=12)):
    shares = ", ".join(f"{'ABCD'[i]} {n} of {behind}" for i, n, behind in turns)
    print(f"step {number}, {sum(n for _, n, _ in turns):2} of 12 tokens: {shares}")
alone = [
    ms.generate(target, story[:n], r.end - n, temperature=0).tokens
    for r, n in zip(requests, (3, 20, 2, 5), strict=True)
]
print("as without the others:", [r.tokens[-len(output) :] == output for r, output in zip(requests, alone, strict=True)])

# %% [markdown]
# "B 9 of 20" means that B lacks 20 tokens and 9 of them are processed in this step. B's prompt uses up the budget
# twice, so C waits although a seat is free. In step 2 all three seats are taken, so now D waits although budget is
# left. Then A and B finish, and D joins while C is in the middle of its output. Every output is what the request would
# have got alone.
#
# ## Tokens per second
#
# How much does that gain? We time your server on your device with 16 requests: one at a time, and in continuous batches
# of eight. (The first run on a CPU compiles its pass, and says so.)

# %% tags=["nbval-ignore-output"]
timed = course_pair(ms.device())[0]
print(f"{timed.name} on {where(timed.device)}")

# %% tags=["nbval-ignore-output"]
rate_guess = viz.predict("Continuous batches of eight: how many times the tokens per second of one at a time?", "times")
rate_guess


# %% tags=["spoiler", "nbval-ignore-output"]
def tokens_per_second(seats: int, new=(4, 40, 5, 8, 6, 24, 4, 5) * 2) -> tuple[float, int]:
    """The median rate of three runs after one to warm up, and the requests in each step of a run."""
    prompt, rates = timed.encode("Once upon a time"), []
    for _ in range(4):
        steps = serve(timed, [Request(prompt, n) for n in new], seats)
        rates.append(sum(new) / sum(seconds for _, seconds in steps))
    return median(rates[1:]), [len(turns) for turns, _ in steps]


rates = {}
for name, seats in {"one at a time": 1, "continuous batches": 8}.items():
    rates[name], in_step = tokens_per_second(seats)
    each = 1000 * sum(in_step) / len(in_step) / rates[name]
    print(f"{name:20} {rates[name]:6.0f} tokens/s, {len(in_step):3} steps, {each:.1f} ms per step")
print("requests in each step of the last run:", *in_step)
one, many = rates["one at a time"], rates["continuous batches"]

# %% tags=["spoiler", "nbval-ignore-output"]
rate_guess.reveal(round(many / one, 1))

# %% [markdown]
# Neither eight times nor one. A step with more requests takes longer: on a CPU clearly, on a large GPU hardly, until
# arithmetic limits the pass instead of bandwidth (lesson 01). And the seats are not always full, as the last line
# shows: once the queue is empty the batch drains, down to a single user. So there are fewer steps, but not eight times
# fewer, and each takes longer.
#
# Throughput is not the speed of a single user, though. Each user now gets a token per *longer* step. Batching makes
# tokens cheaper; speculation, from the next lesson on, makes a single user's tokens come faster.
#
# ## Why are long prompts cut into chunks?
#
# A pass ends for all of its tokens at the same time. Suppose that three users are decoding when a fourth one sends a
# long prompt. Processed in one go, that prompt makes one very long pass, and three outputs stall until it ends.

# %% tags=["nbval-ignore-output"]
long_prompt = timed.encode("The old dog was tired. " * 24)
print(f"a usual step processes 3 tokens; the long prompt has {len(long_prompt)}")
stall_guess = viz.predict("How many times as long as a usual step is the step with the long prompt?", "times")
stall_guess


# %% tags=["spoiler", "nbval-ignore-output"]
def with_a_long_prompt(max_chunk: int) -> tuple[list[int], list[float]]:
    """Tokens and milliseconds of every step; the long prompt comes before the fifth."""
    short = timed.encode("Once upon a time")
    requests = [Request(short, 24), Request(short, 24), Request(short, 24), Request(long_prompt, 4, arrival=4)]
    steps = serve(timed, requests, seats=4, max_chunk=max_chunk)
    return [sum(n for _, n, _ in turns) for turns, _ in steps], [1000 * seconds for _, seconds in steps]


for name, max_chunk in (("in one go", 512), ("chunks of 12", 12)):
    runs = [with_a_long_prompt(max_chunk) for _ in range(6)][1:]
    of_step = [median(times) for times in zip(*(times for _, times in runs), strict=True)]  # over five runs
    usual, longest = median(of_step[1:4]), max(of_step[1:])
    print(f"{name:13} tokens per step:", *runs[0][0])
    print(f"{'':13} a usual step {usual:.1f} ms, the longest {longest:.1f} ms")
    if max_chunk == 512:
        stall = longest / usual

# %% tags=["spoiler", "nbval-ignore-output"]
stall_guess.reveal(round(stall, 1))

# %% [markdown]
# Where the long pass is limited by arithmetic, as on a CPU, chunks make the stall much shorter. On a large GPU this
# prompt costs little more than a single token. There the stall becomes visible once a prompt is well past the ridge
# point: hundreds of tokens for a large model, thousands for one as small as ours, where launches dominate.
#
# The new user pays, because the prompt takes several passes and its first token comes later. So **chunked prefill**
# (Agrawal et al., 2023, arXiv:2308.16369) trades the *time to first token* (TTFT) of one user for a steady *inter-token
# latency* (ITL, the gap between two tokens; its average is lesson 01's TPOT where a pass emits one token) of the others. **Disaggregated prefill**
# (lesson 01) goes further: no prompt delays a decode pass, but keys and values have to travel between machines.
#
# ## What happens when memory runs out?
#
# minispec's scheduler admits a request if there are blocks for its prompt, and reserves nothing for its output. So a
# running request may find no free block for its next token. Then the **last** request in the order of arrival gives
# way: it loses all its blocks and returns to the queue. Later its prompt and the tokens generated so far are processed
# like one long prompt. This is **preemption by recomputation**. One prefill pass recomputes what took one decode pass
# per token. Here are three requests in a large and in a small memory.

# %%
outputs = []
for num_blocks in (64, 8):
    engine = ms.Engine(target, num_blocks=num_blocks, block_size=4, max_num_seqs=4, enable_prefix_caching=False)
    ids = [engine.add("Once upon a time", length) for length in (20, 14, 9)]
    results = engine.run()
    outputs.append([results[id].tokens for id in ids])
    steps, totals = engine.metrics()["steps"], engine.metrics()["totals"]
    lost = sum(len(step["preempted"]) for step in steps)
    print(f"{num_blocks:2} blocks: {totals['steps']} steps, {totals['read']} tokens processed, {lost} preemptions")
print("the same outputs:", outputs[0] == outputs[1])

# %% [markdown]
# 24 tokens were computed twice. The user sees only a pause.
#
# Does every request finish? A request is never preempted for one that arrived later. So the first one keeps its blocks
# and finishes (one that would not fit into memory alone is refused on arrival), then another is first, and so on. If
# *any* request could take the blocks of any other, two requests that do not fit together could preempt each other
# forever.
#
# ## Optional: the batching chart
#
# Ten minutes more: ten requests under minispec's own scheduler, static batching above and continuous below. Set *one
# row per* to *seat* to see the gaps, and *engine* to *little memory* to find a request that is preempted. What does its
# bar do when it comes back?

# %% tags=["nbval-ignore-output"]
viz.gantt()

# %% [markdown]
# <details><summary>Answer</summary>
#
# It starts with a prefill again, over the prompt and all tokens generated so far, and then goes on decoding.
# </details>
#
# ## The dashboard
#
# Eight users share each pass, so more arithmetic is used than in lesson 01. (On a GPU the launches of this simple
# server can hide that.)

# %% tags=["nbval-ignore-output", "spoiler"]
peak = viz.measure_here(tokens=(1, 32), seconds=3, device=timed.device).hardware.flops  # as in lesson 01
busy = many * 2 * presets.weights_read(timed.config) / peak
viz.dashboard("04", tokens_per_second=many, busy=busy, users=8)

# %% [markdown]
# ## In production
#
# | here | vLLM | elsewhere |
# |---|---|---|
# | `seats` | `max_num_seqs` | SGLang: `max_running_requests` |
# | `budget` | `max_num_batched_tokens` | closest in SGLang: `chunked_prefill_size`, for the prompt tokens of a pass |
# | `max_chunk` | close to `long_prefill_token_threshold` | |
# | decodes first | goes through running requests in the order of admission | SGLang: a chunk shares a pass with decodes only with `--enable-mixed-chunk` |
# | preemption | recomputation; counted in the metrics | SGLang: *retract* |
# | continuous batching | | TensorRT-LLM: *in-flight batching* |
#
# Many preemptions? Admit fewer requests, or give the pool more memory.
#
# <details><summary>Go deeper: the same tokens, selective batching</summary>
#
# The number of tokens in a pass may change which kernel runs and in which order it adds, so logits need not agree to
# the last bit. In float32 the differences were too small to change a token here; in bfloat16 a near tie may fall the
# other way. [Lesson 14](14_is_it_really_exact.ipynb) measures that.
#
# Orca batched linear layers over all tokens and ran attention for each request separately, because requests have
# different lengths (*selective batching*). Today's kernels take a ragged batch with block tables, which is what
# `cache.open` prepares.
# </details>
#
# ## Check yourself
#
# <details><summary>Outputs of 100, 20, 40 and 40 tokens run in one static batch. What share of the seats is empty, over
# all steps?</summary>
#
# Half of them, because the mean length is 50 and the longest is 100.
# </details>
#
# <details><summary>A request with a prompt of 10 tokens is preempted after it has generated 50. How many passes over how
# many tokens does it need before its 51st token?</summary>
#
# One pass over 60 tokens, if the budget allows it: prompt and output are processed like a prompt, and the logits of the
# last token give the next one. With prefix caching it is often less, since some of its blocks may still be cached.
# </details>
#
# <details><summary>The budget is 2,048 tokens, 40 requests decode, and a prompt of 3,000 tokens arrives. What do the
# next passes look like?</summary>
#
# The next pass has 40 decode tokens and a chunk of 2,008, the one after it 40 decode tokens and the remaining 992.
# After that pass the new request emits its first token.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Yu et al., 2022: *Orca: a distributed serving system for transformer-based generative models* ([OSDI
#   2022](https://www.usenix.org/conference/osdi22/presentation/yu)): iteration-level scheduling, before there were block
#   tables.
# - Kwon et al., 2023: *Efficient memory management for large language model serving with PagedAttention*
#   ([arXiv:2309.06180](https://arxiv.org/abs/2309.06180)): preemption, and what paging adds to it.
# - Agrawal et al., 2023: *SARATHI: efficient LLM inference by piggybacking decodes with chunked prefills*
#   ([arXiv:2308.16369](https://arxiv.org/abs/2308.16369)): where chunked prefill comes from.
# - Agrawal et al., 2024: *Taming throughput-latency tradeoff in LLM inference with Sarathi-Serve*
#   ([arXiv:2403.02310](https://arxiv.org/abs/2403.02310)): chunked prefill in a server, and what it does to latency.
#
# All papers: [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - [Exercises 04](../exercises/04_continuous_batching.ipynb): which request gives way.
# - Interview questions (`minispec drill`): `continuous-batching`, `preemption`, `chunked-prefill`.
# - [05 Draft and verify](05_draft_and_verify.ipynb): back to a single impatient user, and fewer forward passes for
#   them.
