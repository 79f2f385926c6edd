# %% [markdown]
# # 04 Continuous batching
#
# *Time:* 40 minutes · *Before this:* [03 paged blocks](03_paged_blocks.ipynb) · *Practice:* [exercises 04](../exercises/04_continuous_batching.ipynb)
#
# While contexts are short, a decode pass of a large model on a GPU costs little more for eight requests than for one,
# because the weights are read once for all of them (lesson 01); only the keys and values are read for each request
# separately. A server should therefore keep its batch full. But requests arrive at any moment and finish at any moment, so
# it has to be decided, again and again, which requests take part in the next pass. That is the job of the scheduler, and
# this lesson is about how it decides.
#
# You will be able to
#
# - say what a static batch wastes, and compute it;
# - explain iteration-level scheduling, and follow a scheduler's plan step by step;
# - say what the token budget is for, and what chunked prefill trades;
# - explain preemption by recomputation, and under which conditions every request still finishes.

# %%
import json
import os
from pathlib import Path
from statistics import median

import minispec as ms
from minispec.measure import place
from minispec.serving.blocks import BlockPool
from minispec.serving.scheduler import Request, Result, Scheduler
from minispec_course import viz
from minispec_course.labs import batching
from minispec_course.labs.pairs import course_pair, where

target = batching.endless(ms.load("micro", device="cpu"))  # without end tokens: we set the length of each output

# %% [markdown]
# A schedule is the same on every machine, so `micro` on the CPU is enough to count its steps. What is timed below runs on
# your own device, with the model that suits it (lesson 00):

# %% tags=["nbval-ignore-output"]
timed = batching.endless(course_pair(ms.device())[0])
print(f"{timed.name} on {where(timed.device)}")

# %% [markdown]
# ## What does a static batch waste?
#
# Suppose that twelve requests are waiting and that the batch has four slots. The outputs differ in length, as they do in
# practice: most are short and a few are long.

# %%
lengths = [6, 48, 5, 10, 22, 4, 8, 30, 5, 12, 7, 3]
print("tokens to generate:", sum(lengths))

# %% [markdown]
# **Static batching** takes four requests, runs until the longest of them has finished, and then takes the next four. A
# request that finishes early leaves its slot empty until the whole batch is done. A *step* is one
# forward pass over the batch, and in each step every slot yields one token or stays empty. Look at the dotted holes: each
# of them is as long as the difference to the longest request of its batch.

# %%
viz.static_holes(lengths, slots=4)

# %% [markdown]
# So the share of the holes follows from the lengths. With output lengths
# $L_1 \dots L_B$ in a batch of $B$ slots, the share of slots that stay empty, over all steps, is
#
# $$1 - \frac{\text{mean}(L)}{\max(L)}$$

# %%
for first in (0, 4, 8):
    batch = lengths[first : first + 4]
    empty = 1 - sum(batch) / len(batch) / max(batch)
    print(f"{batch!s:18} {max(batch):2d} steps, {empty:.0%} of the slots empty")

# %% [markdown]
# Our engine has this policy too, so that we can compare with it.


# %%
def serve(policy: str) -> tuple[int, list[list[int]]]:
    """Steps taken, and the tokens of every output."""
    engine = ms.Engine(target, max_num_seqs=4, policy=policy, enable_prefix_caching=False)
    ids = [engine.add("Once upon a time", length) for length in lengths]
    outputs = engine.run()
    return engine.metrics()["totals"]["steps"], [outputs[id].tokens for id in ids]


static_steps, static_outputs = serve("static")
print("static batching:", static_steps, "steps")

# %% [markdown]
# ## Predict
#
# **Continuous batching** gives a slot to the next waiting request as soon as it is free, that is, in the very next step.
# The requests are the same, in the same order, and there are still four slots. How many steps does it take now?

# %% tags=["nbval-ignore-output"]
fewer_steps = viz.predict("Steps with continuous batching?", "steps")
fewer_steps

# %% [markdown]
# ## Run

# %% tags=["spoiler"]
steps, outputs = serve("continuous")
print("steps:", steps)
print("the same outputs:", outputs == static_outputs)

# %% [markdown]
# ## Reveal

# %% tags=["spoiler"]
fewer_steps.reveal(steps)
print("no schedule can beat", max(max(lengths), -(-sum(lengths) // 4)))  # -(-a // b) is a / b, rounded up

# %% [markdown]
# Two bounds hold for every schedule, whatever its order. The longest output needs one step for each of its tokens, and
# four slots yield at most four tokens per step. Here the schedule meets the larger of the two bounds, so no other order
# could be faster.
#
# The tokens are the same as before, because the requests of a batch share the weights but do not attend to one another.
# The logits need not be the same to the last bit: on a CPU as on a GPU, the number of tokens in a pass may change which
# kernel runs and in which order it adds. In float32 the differences were too small to change a token in this run. In
# bfloat16 they are much larger, and where two tokens are nearly tied the other one may win.
# [Lesson 14](14_is_it_really_exact.ipynb) measures that effect.

# %% [markdown]
# ## How does the scheduler decide?
#
# The idea is to make the *step* the unit of scheduling instead of the request. Before every forward pass the scheduler
# decides anew which requests continue, which ones join, and with how many tokens each. This is **iteration-level
# scheduling** (Yu et al., 2022, Orca); *continuous batching* is the name that stuck. Orca did it with one contiguous
# reservation of cache memory per request. The block tables of lesson 03 (Kwon et al., 2023, arXiv:2309.06180) came a year
# later and made it far more effective, because memory can now be given out and taken back at every step, too, so more
# requests fit.
#
# [`Scheduler.schedule`](../minispec/serving/scheduler.py) needs one number per request: how many of its tokens are not in
# the cache yet, which our code calls `behind`.
#
# $$\text{uncomputed tokens} = \text{tokens of the request so far} - \text{tokens computed}$$
#
# For a request that has just arrived this is its whole prompt, so its next pass is a prefill. A sequence that is decoding
# has exactly one token whose keys and values are not in the cache yet. To the scheduler the two differ only in the amount.
#
# Here is a scheduler without a model. We stand in for the model: if a pass reaches the last token of a request
# (`emits`), its logits give a new token, and we say that it is token 0. `schedule` makes the plan of a step, and
# `update` tells the scheduler what came out of it.

# %%
scheduler = Scheduler(BlockPool(32, 4, enable_prefix_caching=False), max_num_seqs=3, max_num_batched_tokens=12)
for name, prompt, new in (("A", 3, 3), ("B", 20, 2), ("C", 2, 4), ("D", 5, 2)):
    scheduler.add(Request(name, [1] * prompt, new))

while scheduler.requests:
    plan = scheduler.schedule()
    shares = ", ".join(f"{entry.request.id} {entry.count} of {entry.request.behind}" for entry in plan.scheduled)
    results = {entry.request.id: Result([0] if entry.emits else []) for entry in plan.scheduled}
    record = scheduler.update(plan, results)
    ended = f"   {' '.join(record.finished)} finished" if record.finished else ""
    print(f"step {plan.number}: {sum(entry.count for entry in plan.scheduled):2d} tokens: {shares}{ended}")

# %% [markdown]
# Follow it line by line; "B 9 of 20" means that 9 of the 20 uncomputed tokens of B are processed in this step. Two limits
# hold for each step: at most 12 tokens, which is the **token budget** (`max_num_batched_tokens`), and at most three
# requests (`max_num_seqs`). Requests that are decoding come first, with one token each. What is left of the budget goes to
# prompts that are already under way, and then to new requests in order of arrival.
#
# The prompt of B has 20 tokens and does not fit into one step, so it is processed in **chunks**. In steps 0 and 1 it uses
# up the budget, so C waits although a slot is free. In step 2 all three slots are taken, so now D waits although there
# is budget left. A and B finish in that step, and in step 3 D joins while C is in the middle of its output.

# %% [markdown]
# ## Why is there a token budget?
#
# A forward pass ends for all of its tokens at the same time. If a long prompt is processed in one go, every request that
# is decoding has to wait for that long pass, and its user sees the output stall. The budget bounds the number
# of tokens in a pass, and with it most of its duration (not the part that attention to long contexts takes). `max_chunk`
# bounds how many of these tokens a single prompt may take.
#
# To see the effect, let three requests decode. Before the fifth step a fourth request arrives, with a long prompt.


# %%
def engine_with(model: ms.Model, max_chunk: int | None) -> ms.Engine:
    return ms.Engine(model, num_blocks=64, max_num_seqs=4, max_chunk=max_chunk, enable_prefix_caching=False)


def with_a_long_prompt(engine: ms.Engine) -> list[dict]:
    """The steps that these four requests take."""
    earlier = len(engine.metrics()["steps"])
    for _ in range(3):
        engine.add("Once upon a time", 16)
    for _ in range(4):
        engine.step()
    engine.add("The old dog was tired. " * 24, 4)
    engine.run()
    return engine.metrics()["steps"][earlier:]


in_one_go, in_chunks = (with_a_long_prompt(engine_with(target, most)) for most in (None, 32))
print("in one go:  ", *(f"{step['read']:4d}" for step in in_one_go))
print("chunks of 32", *(f"{step['read']:4d}" for step in in_chunks))

# %% [markdown]
# These are the tokens of each pass. The next cell repeats both runs on your device and prints the longest step, which is
# the longest time that the three decoding requests had to wait for a token. (The first step is left out, because in it
# the three prompts are processed and no request is decoding yet. So is a first run, in which a GPU records its passes.)

# %% tags=["nbval-ignore-output"]
for name, max_chunk in (("in one go", None), ("chunks of 32", 32)):
    engine = engine_with(timed, max_chunk)
    runs = [with_a_long_prompt(engine) for _ in range(6)][1:]
    longest = [1000 * max(sum(step["seconds"].values()) for step in steps[1:]) for steps in runs]
    print(f"{name:13} longest step {median(longest):.1f} ms, in five runs {min(longest):.1f} to {max(longest):.1f} ms")

# %% [markdown]
# How much the chunks help depends on the machine. Where the long pass is limited by arithmetic, as on a CPU, it takes far
# longer than a chunk. A large GPU processes a prompt this short in little more time than a chunk of it, because both are
# below its ridge point (lesson 01); there it takes prompts of thousands of tokens, or a large model, to stall a batch.

# %% [markdown]
# The new request pays for this, since its prompt takes six passes instead of one and its first token comes later. So
# **chunked prefill** (Sarathi, Agrawal et al., 2023, arXiv:2308.16369) trades the *time to first token* (TTFT) of one
# request for a steady *inter-token latency* (ITL) of the others. The second paper of the group, Sarathi-Serve (Agrawal et
# al., 2024, arXiv:2403.02310), made it the rule of a scheduler that never stalls requests that are decoding. There is a
# second benefit: a pass that only decodes leaves most of the arithmetic units idle, and a chunk gives them useful work. The
# price is that every chunk attends to the keys of all earlier chunks and so reads them from memory again, which makes very
# small chunks inefficient.

# %% [markdown]
# ## What happens when memory runs out?
#
# The scheduler admits a request if there are blocks for its prompt. It cannot know how long the output will become, and it
# reserves nothing for it, because reserving is what paging was meant to avoid. So it can happen that all running requests
# have grown and the next token of one of them finds no free block.
#
# Then one request has to give way: the **last** one in the order of priority and arrival. (A request may carry a
# priority, and a higher one goes first. All requests of this lesson have the same, so only the order of arrival counts
# here.) It loses all its blocks and returns to the queue. When it is admitted again, its prompt and the tokens it has
# generated so far are processed like one long prompt. This is **preemption by recomputation**. It costs arithmetic but
# no memory, and it is cheaper than it sounds: all those tokens are known by now, so one prefill pass recomputes what
# took one decode pass per token before.
#
# Three requests run in a pool of 8 blocks. A block has room for 4 tokens, so the pool has room for 32. First, for
# comparison, in a pool that is large enough:


# %%
def in_memory_of(num_blocks: int):
    engine = ms.Engine(target, num_blocks=num_blocks, block_size=4, max_num_seqs=4, enable_prefix_caching=False)
    ids = [engine.add("Once upon a time", length) for length in (20, 14, 9)]
    outputs = engine.run()
    return engine.metrics(), [outputs[id].tokens for id in ids]


roomy, roomy_outputs = in_memory_of(64)
print("with 64 blocks:", roomy["totals"]["steps"], "steps,", roomy["totals"]["read"], "tokens processed")

# %% [markdown]
# ## Predict
#
# With 64 blocks nothing is computed twice. Each prompt has 4 tokens, and a request of $n$ new tokens processes $4 + n - 1$,
# because its last token is emitted but never processed; for the three requests this makes 52.
#
# With 8 blocks some tokens are computed twice. All three requests are admitted in step 0, where each prompt fills one block.
# From step 1 on each request takes a new block every four steps. If there is none, the last request loses its blocks. A
# preempted request returns when there are blocks for all of its tokens, and a later one never overtakes it. How many tokens
# are processed in all passes together? Pen and paper give the exact number.

# %% tags=["nbval-ignore-output"]
tokens_processed = viz.predict("Tokens processed with 8 blocks?", "tokens")
tokens_processed

# %% [markdown]
# ## Run

# %% tags=["spoiler"]
tight, tight_outputs = in_memory_of(8)
for step in tight["steps"]:
    if step["admitted"] or step["preempted"]:
        print(f"step {step['step']:2d}: admitted {step['admitted']}, preempted {step['preempted']}")
print("steps:", tight["totals"]["steps"])

# %% [markdown]
# ## Reveal

# %% tags=["spoiler"]
tokens_processed.reveal(tight["totals"]["read"])
print("processed again:", tight["totals"]["read"] - roomy["totals"]["read"])
print("the same outputs:", tight_outputs == roomy_outputs)

# %% [markdown]
# In step 5 the third request is preempted, with 8 tokens in the cache, and in step 13 the second one, with 16. These 24 tokens
# are computed again, in one pass, when the first request has finished.
#
# The user of a preempted request sees a pause. The tokens that were already emitted are kept, so nothing that the user has
# seen changes. What comes after the pause is the same here; in bfloat16 the recomputed keys and values may differ in their
# last bits, with the consequences described above.
#
# Does every request finish? A request is never preempted for the sake of one that comes later in the order. So the first
# request in the order keeps its blocks and finishes, then another one is first, and by induction all of them finish. The
# argument has two conditions. Each request must fit into the pool alone, which the scheduler checks on arrival. And
# requests of higher priority must not keep arriving, because each of them goes to the front, and a request of low
# priority could then wait for ever; with equal priorities this cannot happen.
#
# The order itself matters, too. If a request that finds no free block could take those of any other request, two
# requests that do not fit into memory together could preempt each other in turn, and neither would finish.

# %% [markdown]
# ## The batching chart
#
# The chart shows ten requests on their way through a real engine, with static batching above and continuous batching
# below. Some of them arrive later. Everything after the chosen step is pale.

# %% tags=["nbval-ignore-output"]
viz.gantt(timed)

# %% [markdown]
# Three tasks:
#
# 1. Set *one line per* to *batch position*. The holes of the static batch are what the formula counts.
# 2. Set *engine* to *little memory* and find a request that is preempted. What does its bar do when it comes back?
# 3. Set *axis* to *time on this machine*. Do all steps take equally long? Is the ratio of the times the same as the ratio
#    of the steps?
#
# <details><summary>Answers to 2 and 3</summary>
#
# With continuous batching D, E and F are preempted. When such a request comes back, its bar begins with a prefill, a single
# step over its prompt and all tokens generated so far, and then it continues to decode where it had stopped.
#
# On a CPU steps with a prefill or with more requests take longer. With continuous batching the steps are fuller, so the
# time usually shrinks by a smaller factor than the number of steps. On a large GPU all steps of these few requests are
# below the ridge point, so they take nearly equally long, and the two ratios nearly agree.
# </details>

# %% [markdown]
# ## How much faster is it?
#
# Fewer steps do not have to mean less time by the same factor, so we measure.
# [`compare`](../minispec_course/labs/batching.py) serves the same requests in three ways. `padded` calls `generate` on
# whole batches, where a finished sequence still takes part in every pass until the batch ends; `static` and
# `continuous` are the two policies of the engine. The three ways take turns, so that other load on the machine disturbs
# all of them alike.

# %% tags=["nbval-ignore-output"]
os.environ["MINISPEC_LINEAR"] = "torch"  # on a CPU the same kernels for all three: `generate` has faster ones
prompts = [timed.encode(text) for text in ("Once upon a time", "The old dog was tired.", "It was raining, and")]
work = batching.workload(prompts, count=16, longest=24)
here = batching.compare(timed, work, batch=4, repeat=5)
print(batching.text(here))

# %% [markdown]
# *First token* is counted from the arrival of a request, its time in the queue included. All requests of this benchmark
# arrive at the start, so waiting for a slot dominates it. *Each next* is the mean time from one token of a request to the
# next.
#
# Does the time fall by the same factor as the number of steps? The next cell compares the two ratios, for the run above
# and for a longer run of the same benchmark that was recorded with `micro` on the CPU of another machine. Do not compare
# the milliseconds of the two runs, because the machines differ; only the ratios within one run mean something.

# %% tags=["nbval-ignore-output"]
recorded = json.loads((Path(ms.__file__).parent / "data/benchmarks/batching.json").read_text())
for name, run in (("this machine, just now", here), (f"recorded {recorded['date']}", recorded)):
    print(f"{name}: {run['target']}, {run['requests']} requests, {run['tokens']} tokens, {run['batch']} slots")
    print(f"  {place(run['machine'])}")
    static, continuous = (run["results"][policy] for policy in ("static", "continuous"))
    faster = continuous["tokens_per_second"]["median"] / static["tokens_per_second"]["median"]
    print(f"  {static['steps'] / continuous['steps']:.1f} times fewer steps, {faster:.1f} times the tokens per second")
    for policy, result in (("static", static), ("continuous", continuous)):
        seconds = run["tokens"] / result["tokens_per_second"]["median"]
        print(f"  {policy}: {1000 * seconds / result['steps']:.1f} ms per step")

# %% [markdown]
# If all steps took equally long, the two ratios would be equal. On a CPU they are not, because a step of continuous
# batching has fewer empty slots and takes longer: compare the times per step. On a GPU at a moderate batch size, where
# reading the weights dominates the time of a step, the two ratios come closer.
#
# The table above also shows what it costs. With continuous batching the *first* token of a request comes much sooner,
# because it waits less for a slot, but *each next* token tends to come later (on a CPU clearly so). The fuller steps are
# one reason, and there is a larger one, the stall that we met above. With the static policy all prompts of a batch are processed in its first
# step, when none of its requests is decoding yet. With continuous batching the prompt of each request that joins is
# processed in the same pass as the next tokens of the others, and they wait for it. (Most outputs of our run are only a
# few tokens long, so a large share of its steps has such a prompt. In the recorded run with its longer outputs the
# share is smaller.)
#
# So throughput and the speed of a single request are two different goals. Batching improves the first. Speculation, from
# the next lesson on, improves the second.

# %% [markdown]
# ## In production
#
# **vLLM** (its V1 scheduler, 2026) calls the slots `max_num_seqs` and the budget `max_num_batched_tokens`. Chunked
# prefill is on by default, `long_prefill_token_threshold` is close to our `max_chunk`, and `scheduling_policy` is `fcfs` or
# `priority`. Its scheduler works with the same two numbers as ours, the tokens of a request and the tokens computed. One
# rule differs: vLLM goes through its running requests in the order in which they were admitted, whether they decode or
# prefill, while ours puts decoding requests first. To admit a request it requires free blocks for the whole prompt, as we
# do; this can be switched off (`scheduler_reserve_full_isl`), and then the first chunk is enough. Preempted requests are
# recomputed; the earlier V0 engine could also swap their blocks to host memory. The metrics count preemptions. If you see
# many of them, admit fewer requests or give the pool more memory.
#
# **SGLang** has `max_running_requests` and `chunked_prefill_size`, and says *retract* for preempt. By default a chunk and
# the requests that are decoding do not share a pass there; `--enable-mixed-chunk` allows it. **TensorRT-LLM** says
# *in-flight batching* and lets you choose between a scheduler that admits only what is certain to fit and one that fills
# the memory and preempts.
#
# Some systems go one step further and run prefill and decode on different machines (*disaggregated prefill*). Then a prompt
# cannot delay a decode pass at all, but the keys and values have to travel from one machine to the other.

# %% [markdown]
# ## Check yourself
#
# <details><summary>Outputs of 100, 20, 40 and 40 tokens run in one static batch. Which share of the slots is empty,
# over all steps?</summary>
#
# Half of them, because the mean length is 50 and the longest is 100.
# </details>
#
# <details><summary>All requests have the same prompt length and the same output length, and all are there at the start.
# What does continuous batching gain?</summary>
#
# Nothing, because every batch ends for all of its requests at once. It gains where lengths differ and where requests
# arrive over time.
# </details>
#
# <details><summary>A request with a prompt of 10 tokens is preempted after it has generated 50. How many passes over how
# many tokens does it need before its 51st token?</summary>
#
# One pass over 60 tokens, if the budget allows it: prompt and output are processed like a prompt, and the logits of the
# last position give the next token. With prefix caching it is often less, since some of its blocks may still be cached.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Yu et al., 2022: *Orca: a distributed serving system for transformer-based generative models* ([OSDI
#   2022](https://www.usenix.org/conference/osdi22/presentation/yu)): iteration-level scheduling, before there were
#   block tables.
# - Kwon et al., 2023: *Efficient memory management for large language model serving with PagedAttention*
#   ([arXiv:2309.06180](https://arxiv.org/abs/2309.06180)): preemption, and what paging adds to it.
# - Agrawal et al., 2023: *SARATHI: efficient LLM inference by piggybacking decodes with chunked prefills*
#   ([arXiv:2308.16369](https://arxiv.org/abs/2308.16369)): where chunked prefill comes from, as a way to use idle
#   arithmetic.
# - Agrawal et al., 2024: *Taming throughput-latency tradeoff in LLM inference with Sarathi-Serve*
#   ([arXiv:2403.02310](https://arxiv.org/abs/2403.02310)): chunked prefill in a server, and what it does to latency.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - [Exercises 04](../exercises/04_continuous_batching.ipynb): static against continuous batching, the plan of a step, and
#   which request gives way.
# - `minispec drill` asks `continuous-batching`, `preemption`, `chunked-prefill`.
# - [05 Draft and verify](05_draft_and_verify.ipynb): a single request, and fewer forward passes for it.
