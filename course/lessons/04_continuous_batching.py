# %% [markdown]
# # Continuous batching
#
# *Time:* 35 minutes · *Before this:* [03 paged blocks](03_paged_blocks.ipynb) · *Practice:* [exercises 04](../exercises/04_continuous_batching.ipynb)
#
# A pass over eight requests costs little more than a pass over one: the weights are read once for all of them. So a
# server wants full batches. But requests come at any moment, and end at any moment. Who is in the next pass?
#
# You will be able to
#
# - say what a static batch wastes, and compute it;
# - explain scheduling step by step, and read a scheduler's plan;
# - say what the token budget is for, and what reading a prompt in chunks trades;
# - explain preemption by recomputation, and why everybody ends in spite of it.

# %%
import json
from pathlib import Path

import minispec as ms
from minispec import theory
from minispec.bench import batching
from minispec.course import viz
from minispec.course.viz import recorder
from minispec.serving.blocks import BlockPool
from minispec.serving.scheduler import Request, Result, Scheduler

target = recorder.endless(ms.load("micro", device="cpu"))  # without end tokens: we say how long a text becomes

# %% [markdown]
# ## A batch that waits for its slowest
#
# Twelve requests, four places in the batch. As in life, most answers are short and a few are long.

# %%
lengths = [6, 48, 5, 10, 22, 4, 8, 30, 5, 12, 7, 3]
print("tokens to write:", sum(lengths))

# %% [markdown]
# **Static batching** takes four, runs until the longest of them is done, then takes the next four. Whoever is done
# early leaves a place empty. In a batch of lengths $L_1 \dots L_B$ the empty part is
#
# $$1 - \frac{\text{mean}(L)}{\max(L)}$$

# %%
for first in (0, 4, 8):
    batch = lengths[first : first + 4]
    print(f"{batch!s:18} {max(batch):2d} steps, {theory.static_batch_idle(batch):.0%} of the places empty")

# %% [markdown]
# The engine can do that, for comparison.


# %%
def serve(policy: str) -> tuple[int, list[list[int]]]:
    """Steps taken, and the texts."""
    engine = ms.Engine(target, max_num_seqs=4, policy=policy, enable_prefix_caching=False)
    ids = [engine.add("Once upon a time", length) for length in lengths]
    outputs = engine.run()
    return engine.metrics()["totals"]["steps"], [outputs[id].tokens for id in ids]


static_steps, static_texts = serve("static")
print("static batching:", static_steps, "steps")

# %% [markdown]
# ## Predict
#
# **Continuous batching** fills a place as soon as it is free, at the very next step. The same requests, the same four
# places, in the same order. How many steps?

# %% tags=["nbval-ignore-output"]
fewer_steps = viz.predict("Steps with continuous batching?", "steps")
fewer_steps

# %% [markdown]
# ## Run

# %% tags=["spoiler"]
steps, texts = serve("continuous")
print("steps:", steps)
print("the same texts:", texts == static_texts)

# %% [markdown]
# ## Reveal

# %% tags=["spoiler"]
fewer_steps.reveal(steps)
print("no schedule can beat", max(max(lengths), -(-sum(lengths) // 4)))

# %% [markdown]
# There are two bounds. The longest text needs a step for each of its tokens, and four places yield at most four tokens
# a step. Here the schedule meets the larger of the two.
#
# Nobody's text has changed. Requests share a pass; they do not see one another.

# %% [markdown]
# ## Deciding before every pass
#
# The trick is to make the *step* the unit of decision, not the request. Before every pass the scheduler asks anew: who
# goes on, who joins, with how many tokens? This is **iteration-level scheduling**. Without the block tables of lesson
# 03 it would be hopeless, since memory comes and goes at every step, too.
#
# [`Scheduler.schedule`](../minispec/serving/scheduler.py) sees every request as one number: how many tokens it is **behind**.
#
# $$\text{behind} = \text{tokens of the text} - \text{tokens computed}$$
#
# A newcomer is behind by its whole prompt (prefill). Who decodes is behind by one. To the scheduler these are the same
# thing, in different amounts. Here is one without a model: we play the model, and every pass emits token 0.

# %%
scheduler = Scheduler(BlockPool(32, 4, enable_prefix_caching=False), max_num_seqs=3, max_num_batched_tokens=12)
for name, prompt, new in (("A", 3, 3), ("B", 20, 2), ("C", 2, 4), ("D", 5, 2)):
    scheduler.add(Request(name, [1] * prompt, new))

while scheduler.requests:
    plan = scheduler.schedule()
    reads = ", ".join(f"{row.request.id} {row.count} of {row.request.behind}" for row in plan.scheduled)
    record = scheduler.update(plan, {row.request.id: Result([0]) if row.emits else Result() for row in plan.scheduled})
    ended = f"   {' '.join(record.finished)} ended" if record.finished else ""
    print(f"step {plan.number}: {sum(row.count for row in plan.scheduled):2d} tokens: {reads}{ended}")

# %% [markdown]
# Read it line by line. A step reads at most 12 tokens: the **token budget**. Those who decode come first, with one token
# each. What is left goes to prompts already begun, then to newcomers, first come, first served. B's prompt of 20 does
# not fit, so it is read in **chunks**. D waits until a place is free, and joins in the middle of everybody's work.

# %% [markdown]
# ## Why a budget
#
# A pass is over when all of its tokens are through. If a long prompt is read in one go, everybody who decodes waits for
# that one long pass: their texts freeze. So the budget bounds the pass, and a prompt may be cut further by `max_chunk`.
#
# Three requests are decoding. Before the fifth step somebody comes with a long prompt.


# %%
def with_a_long_prompt(max_chunk: int | None) -> list[dict]:
    engine = ms.Engine(target, num_blocks=64, max_num_seqs=4, max_chunk=max_chunk)
    for _ in range(3):
        engine.add("Once upon a time", 16)
    for _ in range(4):
        engine.step()
    engine.add("The old dog was tired. " * 24, 4)
    engine.run()
    return engine.metrics()["steps"]


in_one_go, in_chunks = with_a_long_prompt(None), with_a_long_prompt(32)
print("in one go:  ", *(f"{step['read']:4d}" for step in in_one_go))
print("chunks of 32", *(f"{step['read']:4d}" for step in in_chunks))

# %% [markdown]
# Those are the tokens of each pass. And this is the longest time that the three had to wait for a token, here and now:

# %% tags=["nbval-ignore-output"]
for name, some in (("in one go", in_one_go), ("chunks of 32", in_chunks)):
    longest = max(sum(step["seconds"].values()) for step in some[1:])
    print(f"{name:13} longest step {1000 * longest:5.1f} ms")

# %% [markdown]
# The newcomer pays: its prompt takes six passes instead of one, so its own first token comes later. Chunks trade
# *time to first token* of one for a steady *time per token* of the others. They also fill the decode passes, which are
# far from the limit of the arithmetic, with useful work. Every chunk reads the keys of the ones before it again, so very
# small chunks are a bad bargain.

# %% [markdown]
# ## When memory runs out
#
# The scheduler admits a request if there are blocks for its prompt. It does not know how long the text will become, and
# reserves nothing: that was the point of paging. So it can happen that everybody has grown, and the next token of the
# first request finds no free block.
#
# Then somebody gives way: the **last** in the order (priority, arrival). It loses all its blocks, goes back to the
# queue, and later its text is read again from the start, as if it were a prompt. That is **preemption by
# recomputation**. It costs arithmetic and no memory, and a text is read much faster than it was written: in one pass.
#
# Three requests, and a pool of 8 blocks of 4.


# %%
def in_memory_of(num_blocks: int):
    engine = ms.Engine(target, num_blocks=num_blocks, block_size=4, max_num_seqs=4, enable_prefix_caching=False)
    ids = [engine.add("Once upon a time", length) for length in (20, 14, 9)]
    outputs = engine.run()
    return engine.metrics(), [outputs[id].tokens for id in ids]


roomy, roomy_texts = in_memory_of(64)
print("with 64 blocks:", roomy["totals"]["steps"], "steps,", roomy["totals"]["read"], "tokens read")

# %% [markdown]
# ## Predict
#
# With 8 blocks, how many tokens are read, all passes together?

# %% tags=["nbval-ignore-output"]
tokens_read = viz.predict("Tokens read with 8 blocks?", "tokens")
tokens_read

# %% [markdown]
# ## Run

# %% tags=["spoiler"]
tight, tight_texts = in_memory_of(8)
for step in tight["steps"]:
    if step["admitted"] or step["preempted"]:
        print(f"step {step['step']:2d}: admitted {step['admitted']}, preempted {step['preempted']}")
print("steps:", tight["totals"]["steps"])

# %% [markdown]
# ## Reveal

# %% tags=["spoiler"]
tokens_read.reveal(tight["totals"]["read"])
print("read again:", tight["totals"]["read"] - roomy["totals"]["read"])
print("the same texts:", tight_texts == roomy_texts)

# %% [markdown]
# The user notices a pause, never another word.
#
# Does everybody end? Nobody is ever pushed out by somebody behind it in the order. So the first in the order always
# goes on and ends; then there is another first. Push out a random one instead, and two requests can take turns at
# ruining each other for ever.

# %% [markdown]
# ## The batching chart
#
# Ten requests through a real engine, static above, continuous below. Some come later. What lies behind the chosen step
# is pale.

# %% tags=["nbval-ignore-output"]
viz.gantt(target)

# %% [markdown]
# Things to try
#
# - Choose *one line per place in the batch*: the holes of the static batch are what the formula above counts.
# - Take *little memory*. Who is preempted, and what does its bar do when it comes back?
# - Switch the axis to *time on this machine*. Are all steps equally long? Is the ratio of the times the ratio of the
#   steps?

# %% [markdown]
# ## How much faster, really
#
# [`bench.batching`](../minispec/bench/batching.py) serves the same requests three ways: `padded` is `generate` on
# batches, where finished rows are computed along; `static` and `continuous` are the engine. Rounds take turns, so that a
# busy machine disturbs all of them alike.

# %% tags=["nbval-ignore-output"]
prompts = [target.encode(text) for text in ("Once upon a time", "The old dog was tired.", "It was raining, and")]
work = batching.workload(prompts, count=20, longest=32)
here = batching.compare(target, work, batch=4, repeat=2)
print(batching.text(here))

# %% [markdown]
# How many steps each way takes does not depend on the machine. That part can be checked:

# %%
print({way: row["steps"] for way, row in here["results"].items()})

# %% [markdown]
# Compare two ratios: steps, and tokens per second. For a longer run of the same benchmark, recorded elsewhere:

# %% tags=["nbval-ignore-output"]
recorded = json.loads((Path(ms.__file__).parent / "data/benchmarks/batching.json").read_text())
for name, result in (("here", here), ("recorded", recorded)):
    old, new = (result["results"][way] for way in ("static", "continuous"))
    faster = new["tokens_per_second"]["median"] / old["tokens_per_second"]["median"]
    print(f"{name:9} {old['steps'] / new['steps']:.1f} times fewer steps, {faster:.1f} times the tokens per second")

# %% [markdown]
# If all steps took equally long, the two ratios would be one. But a full step is a longer step, on a CPU noticeably so:
# see the recorded run. (A short one like ours is noisy.) On a GPU, where reading the weights dominates, the ratios come
# closer.
#
# The table above shows the other side of it, too: with continuous batching the *first* token comes much sooner and
# *each next* one a little later, because the steps are fuller. Throughput and the speed of a single text are two
# different things. Batching buys the first. Speculation, from the next lesson on, buys the second.

# %% [markdown]
# ## In production
#
# The idea is from *Orca* (2022), as iteration-level scheduling. **vLLM** calls the places `max_num_seqs` and the budget
# `max_num_batched_tokens`; chunked prefill is on by default, `long_prefill_token_threshold` is close to our `max_chunk`,
# and `scheduling_policy` is `fcfs` or `priority`. Its scheduler, too, only knows tokens computed and tokens there are.
# Preempted requests are recomputed; an early version could also swap their blocks to the host's memory. Preemptions are
# counted in its metrics. If you see many, admit fewer requests or give the pool more memory.
#
# **SGLang** has `max_running_requests` and `chunked_prefill_size`, and says *retract* for preempt. **TensorRT-LLM** says
# *in-flight batching* and lets you choose: a scheduler that admits only what is certain to fit, or one that fills the
# memory and preempts.
#
# Some servers take the last step and let different machines read prompts and decode (*disaggregated prefill*). Then no
# prompt can ever hold up a decode pass, and the keys and values travel between the machines instead.

# %% [markdown]
# ## Check yourself
#
# <details><summary>Lengths 100, 20, 40 and 40 in one static batch. Which part of the places is empty?</summary>
#
# Half: the mean is 50, the longest 100.
# </details>
#
# <details><summary>All requests have the same prompt and the same length, and all are there at the start. What does
# continuous batching gain?</summary>
#
# Nothing. It gains where lengths differ and where requests arrive over time.
# </details>
#
# <details><summary>A request is preempted after writing 50 tokens to a prompt of 10. How many passes, and how many
# tokens, until it writes its 51st?</summary>
#
# One pass over 60 tokens, if the budget allows: prompt and text are read like a prompt, and the last position yields
# the next token. With shared prefixes it is often less, since some of its blocks may still be cached.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Yu et al., 2022: *Orca: a distributed serving system for transformer-based generative models* ([OSDI
#   2022](https://www.usenix.org/conference/osdi22/presentation/yu)): iteration-level scheduling, before there were
#   block tables.
# - Kwon et al., 2023: *Efficient memory management for large language model serving with PagedAttention*
#   ([arXiv:2309.06180](https://arxiv.org/abs/2309.06180)): preemption, and what paging adds to it.
# - Agrawal et al., 2024: *Taming throughput-latency tradeoff in LLM inference with Sarathi-Serve*
#   ([arXiv:2403.02310](https://arxiv.org/abs/2403.02310)): chunked prefill, and what it does to latency.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - [Exercises 04](../exercises/04_continuous_batching.ipynb): static against continuous, the plan of a step, who gives
#   way.
# - `minispec drill` asks `continuous-batching`, `preemption`, `chunked-prefill`.
# - [05 Draft and verify](05_draft_and_verify.ipynb): one request alone, and fewer passes for it.
