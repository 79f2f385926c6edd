# %% [markdown]
# # Speculation in a server
#
# *Time:* 40 minutes · *Before this:* [04 continuous batching](04_continuous_batching.ipynb), [07 how fast](07_how_fast.ipynb) · *Practice:* [exercises 11](../exercises/11_speculation_in_a_server.ipynb)
#
# So far speculation had the machine to itself. In a server it meets a scheduler that counts tokens, a memory cut into
# blocks, and a batch that wants the same idle arithmetic. Does it fit in? And when is it no longer worth it?
#
# You will be able to
#
# - plan a pass with drafts in it, with one number per request;
# - say what lookahead slots are, and what becomes of them after a rejection;
# - explain why drafts must never cost anybody else a block;
# - predict at which batch size the gain is gone, from two numbers of the hardware;
# - say how a server turns speculation down by itself.

# %%
from dataclasses import replace

import minispec as ms
from minispec import theory
from minispec.course import viz
from minispec.course.viz import presets, recorder
from minispec.serving.blocks import BlockPool
from minispec.serving.scheduler import Request, Result, Scheduler, draft_share

target = recorder.endless(ms.load("micro", device="cpu"))  # without end tokens: we say how long a text becomes
drafter = ms.drafters.Model(ms.load("micro-draft", device="cpu"))

# %% [markdown]
# ## Drafts are tokens to read, nothing else
#
# In lesson 04 the scheduler saw each request as one number: how many tokens it is behind. That number does not ask why.
# A prompt makes a request behind by many tokens, plain decoding by one. A draft of $k$ makes it behind by $1 + k$.
#
# $$\text{behind} = \underbrace{\text{num\_tokens} + \text{drafts}}_{\text{num\_tokens\_with\_spec}} -
# \text{num\_computed\_tokens}$$
#
# That is all of [`Request.behind`](../minispec/serving/request.py). There is no speculative mode.

# %%
request = Request("A", prompt=[1] * 10, max_new_tokens=8)
print(f"a newcomer:        {request.num_tokens_with_spec:2d} - {request.num_computed_tokens:2d} = {request.behind}")
request.tokens.append(7)
request.num_computed_tokens = 10
print(f"it decodes:        {request.num_tokens_with_spec:2d} - {request.num_computed_tokens:2d} = {request.behind}")
request.draft_tokens = [5, 6, 5, 6]
print(f"with four drafts:  {request.num_tokens_with_spec:2d} - {request.num_computed_tokens:2d} = {request.behind}")

# %% [markdown]
# ## Slots before drafts
#
# A pass writes keys and values for everything it reads, drafts too. So their slots have to exist before the pass. But
# when the scheduler plans, nobody has drafted yet. It reserves for the most there can be: **lookahead slots**.
#
# How many can there be? At most $k$. And not more than can be used: a pass emits one token more than it accepts, so a
# text that may grow by $r$ tokens has use for $r - 1$ drafts. [`Request.room`](../minispec/serving/request.py) is that bound.
#
# Here is a scheduler without a model. A has ten tokens to go, B only two.

# %%
pool = BlockPool(num_blocks=16, block_size=4, enable_prefix_caching=False)
scheduler = Scheduler(pool, max_num_batched_tokens=32, lookahead=4)
a, b = Request("A", [1] * 6, max_new_tokens=11), Request("B", [1] * 5, max_new_tokens=3)
for new in (a, b):
    scheduler.add(new)
first = scheduler.schedule()  # both prompts
scheduler.update(first, {"A": Result([0]), "B": Result([0])})

plan = scheduler.schedule()
for row in plan.scheduled:
    id = row.request.id
    print(f"{id}: certain tokens {row.count}, lookahead slots {row.num_lookahead_tokens}, table {pool.table(id)}")

# %% [markdown]
# A has 7 tokens. With 4 drafts that makes 11, and three blocks of four. B may write two more tokens, so it gets one
# lookahead slot.
#
# ## The way back
#
# Now the pass has run. A's drafter proposed four tokens. Say the target accepts one of them, and corrects the second.

# %%
a.draft_tokens, b.draft_tokens = [0, 9, 9, 9], []
print("A is behind by", a.behind)
record = scheduler.update(plan, {"A": Result([0, 0], accepted=1), "B": Result([0])})
for row in record.rows:
    print(f"{row.id}: {row.tokens} read, {row.drafted} drafted, {row.accepted} accepted")
print(f"A: {a.num_tokens} tokens, {a.num_computed_tokens} in the cache, table {pool.table('A')}")
print(f"B: {b.num_tokens} tokens, {b.num_computed_tokens} in the cache, table {pool.table('B')}")

# %% [markdown]
# Nothing was erased. [`update`](../minispec/serving/scheduler.py) did two things. It set A's count of computed tokens to what is
# verified: the six that were there, the certain one, and one draft. And [`BlockPool.trim`](../minispec/serving/blocks.py) gave
# back the block that holds none of these. Refused keys in the blocks that stay are not touched. They lie behind the end
# of the text, and the next pass writes over them.
#
# So the **rollback** of lesson 05 costs a subtraction here, too. (For a tree of drafts there is one thing more: the
# accepted path is first moved together, since its nodes need not be neighbours.)

# %% [markdown]
# ## Predict
#
# Blocks of 4. A request has 12 tokens in the cache, in three full blocks. It decodes with 4 drafts, and the target
# refuses the first one. How many blocks does its table have *during* the pass? (Afterwards it has four: the certain
# token was read, and opened a new one.)

# %% tags=["nbval-ignore-output"]
during = viz.predict("Blocks during the pass?", "blocks")
during

# %% [markdown]
# ## Run

# %% tags=["spoiler"]
pool = BlockPool(num_blocks=16, block_size=4, enable_prefix_caching=False)
pool.start("A", [1] * 12)
pool.commit("A", [1] * 12)
pool.allocate("A", total=12 + 1 + 4)  # the certain token, then the drafts
blocks_during = len(pool.table("A"))
print("writes into slots", pool.slots("A", 12, 17))
pool.commit("A", [1] * 13)  # only the certain token is kept
pool.trim("A")
print("blocks afterwards:", len(pool.table("A")))

# %% [markdown]
# ## Reveal

# %% tags=["spoiler"]
during.reveal(blocks_during)

# %% [markdown]
# ## Guesses come last
#
# What if memory is short? A request that needs a slot for its *certain* token may push somebody out (lesson 04). A guess
# may not. [`Scheduler.schedule`](../minispec/serving/scheduler.py) hands out lookahead slots last of all, from what is left of
# tokens and blocks. If four do not fit it tries three, then two, then one, then none.

# %%
for num_blocks in (6, 5, 4):
    pool = BlockPool(num_blocks, block_size=4, enable_prefix_caching=False)
    scheduler = Scheduler(pool, max_num_batched_tokens=32, lookahead=4)
    for name in "AB":
        scheduler.add(Request(name, [1] * 6, max_new_tokens=9))
    scheduler.update(scheduler.schedule(), {"A": Result([0]), "B": Result([0])})
    plan = scheduler.schedule()
    slots = {row.request.id: row.num_lookahead_tokens for row in plan.scheduled}
    print(f"{num_blocks} blocks: lookahead slots {slots}, pushed out: {len(plan.preempted)}")

# %% [markdown]
# With four blocks each has one slot left in its own last block, and drafts just that far. Nobody is pushed out. That is
# the right order: a draft is a hope, a certain token is a promise.
#
# One more rule of this kind. A full block gets a hash, and others may share it (lesson 03). When? After `commit`, never
# before: a refused draft must not be found by somebody else.

# %% [markdown]
# ## The engine, with and without drafts
#
# [`Engine.step`](../minispec/serving/engine.py) puts it together: schedule, draft, one pass over everything, judge, update. Rows
# with drafts, rows without and chunks of prompts share the pass. Four stories, greedy. The texts must be equal, token by
# token. How many steps are saved is another matter.

# %%
prompts = ["Once upon a time", "One day, Tim and his dog", "Lily saw a big red ball.", "The old dog was tired. He"]


def serve(drafter=None, **options) -> tuple[list[list[int]], dict]:
    engine = ms.Engine(target, drafter, block_size=4, num_blocks=128, **options)
    ids = [engine.add(prompt, max_new_tokens=32) for prompt in prompts]
    outputs = engine.run()
    engine.check_integrity()
    return [outputs[id].tokens for id in ids], engine.metrics()


plain_texts, plain = serve()
print("steps without drafts:", plain["totals"]["steps"])

# %% [markdown]
# ## Predict
#
# The same with drafts of 4 from the small model. A step now emits more than one token a row, but a step ends for
# everybody together, and the slowest text sets the number of steps. How many?

# %% tags=["nbval-ignore-output"]
fewer = viz.predict("Steps with drafts?", "steps")
fewer

# %% [markdown]
# ## Run

# %% tags=["spoiler"]
texts, with_drafts = serve(drafter, k=4)
print("the same texts:", texts == plain_texts)
print("all blocks back:", with_drafts["blocks"]["used_blocks"] == 0)
for k in (1, 2, 8):
    print(f"K = {k}, the same texts:", serve(drafter, k=k)[0] == plain_texts)

# %% [markdown]
# ## Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
fewer.reveal(with_drafts["totals"]["steps"])
totals = with_drafts["totals"]
print(f"{totals['drafted']} drafted, {totals['accepted']} accepted; tokens read: {totals['read']}", end=" ")
print(f"instead of {plain['totals']['read']}")

# %% [markdown]
# Fewer steps, more tokens read. That is the trade, and it is exact: the law of every text is the target's own, in any
# batch. (Near-ties of two logits are the one exception in floating point: lesson 06.)

# %% [markdown]
# ## The scheduler stepper
#
# Each step in three moments: plan, verify, roll back. A real engine was watched. The last request comes later.

# %% tags=["nbval-ignore-output"]
viz.scheduler_steps(target, drafter)

# %% [markdown]
# Things to try
#
# - Find a step in which a request takes a block for its drafts and gives it back in the same step.
# - Look at a request in its last step. How many lookahead slots does it get, and why so few?
# - Choose *little memory*. Who gets no lookahead slots? Does anybody lose blocks to somebody's guess?
# - Choose *all drafts share 6 tokens* and watch the drafts grow again when others are done.

# %% [markdown]
# ## Why a full batch has no use for drafts
#
# Speculation lives on arithmetic that would be idle. A decode pass reads all weights for one token a row, and the
# multipliers wait. But batching lives on the same idleness. With $B$ rows and $k$ drafts the pass has $B (k + 1)$
# tokens, and once that exceeds what the machine can multiply while it reads, every further token takes time.
#
# $$v(B, k) = \frac{t(B\,(k + 1) \text{ tokens})}{t(B \text{ tokens})}, \qquad
# t = \max\left(\frac{\text{bytes}}{\text{bandwidth}}, \frac{\text{FLOPs}}{\text{peak}}\right), \qquad
# S = \frac{E[N]}{k c + v}$$
#
# [`theory.verify_cost`](../minispec/theory.py), for 8 billion weights on an H200 with $\alpha = 0.7$, $k = 4$,
# $c = 0.05$:

# %%
print(f"the balance: {theory.balance_point(theory.H200):.0f} FLOP per byte, so about as many tokens a pass are free")
for rows in (1, 16, 32, 64, 128, 256):
    v = theory.verify_cost(theory.H200, 8e9, k=4, batch=rows)
    print(f"{rows:4d} rows: {5 * rows:5d} tokens, v = {v:.2f}, speed-up {theory.speedup(0.7, 4, 0.05, v):.2f}")

# %% [markdown]
# Far beyond the balance $v = k + 1$: five tokens cost five times as much as one. Then not even perfect drafts gain
# anything, and refused ones are pure loss. A full batch has already bought what speculation wanted to buy.
#
# Shorter drafts last longer. The best $k$ of each batch, and what it gains:


# %%
def best(rows: int, **shape) -> str:
    def v(k: int) -> float:
        return theory.verify_cost(theory.H200, 8e9, k, rows, **shape)

    return f"K = {theory.best_k(0.7, 0.05, v, longest=8)}, speed-up {theory.best_speedup(0.7, 0.05, v, longest=8):.2f}"


for rows in (1, 32, 64, 96, 128, 256):
    print(f"{rows:4d} rows: {best(rows)}")

# %% [markdown]
# One thing brings the gain back: a long context. Every row's cache is read once for all $k + 1$ tokens, and it is not
# shared between rows. So with long texts the pass stays memory-bound at any batch.

# %%
cache = dict(kv_bytes=theory.kv_bytes_per_token(32, 8, 128), attention_width=32 * 32 * 128)
for context in (0, 1000, 8000):
    print(f"64 rows with {context:5,} tokens each: {best(64, context=context, **cache)}")
    print(f"256 rows with {context:4,} tokens each: {best(256, context=context, **cache)}")

# %% [markdown]
# ## Measured
#
# The roofline is a bound. What does it look like here? [`measure_batches`](../minispec/course/viz/batch_speedup.py) lets the
# engine serve full batches of `micro`, once plain and once with four drafts a row, however many rows there are. It takes
# a few seconds. Short runs on a busy machine are noisy.


# %% tags=["nbval-ignore-output"]
def show(dots):
    print("rows      α      c      v   formula   measured")
    for dot in dots:
        print(f"{dot.batch:4d} {dot.alpha:6.2f} {dot.c:6.2f} {dot.v:6.2f} {dot.predicted:9.2f} {dot.measured:10.2f}")


dots = viz.measure_batches(target, drafter, batches=(1, 4, 16, 32), k=4, new=16, repeat=1)
show(dots)

# %% [markdown]
# A CPU has far less arithmetic for each byte it reads than a GPU. So the fall that a GPU sees at a hundred rows, you see
# at a few.
#
# And a GPU? A recorded run of the same engine on an H200 (`minispec bench batch`): the shape of an 8B model, its first two
# layers as the draft, four drafts a row, 500 tokens before.

# %%
show(viz.BatchDot.recorded())

# %% [markdown]
# $v$ does what the roofline says: near one for a few rows, then it rises. And $c$ is what the bytes say:

# %%
config = presets.SHAPES["Llama-3-8B"]
whole, part = (presets.weights_read(replace(config, num_layers=n)) for n in (config.num_layers, 2))
print(f"two layers and the head are {part / whole:.3f} of the target's weights")

# %% [markdown]
# The acceptance of one row is the luck of one text. That of many rows is what the draft is worth.
#
# ## Speed-up against batch size
#
# The lines are the roofline of the machine and the model you choose. The dots are the measurements above; those of the H200
# are shown where they belong.

# %% tags=["nbval-ignore-output"]
viz.batch_speedup(dots)

# %% [markdown]
# Things to try
#
# - Put the sliders where the H200 was measured: c at 0.14, and 256 cached tokens a row, the stop nearest to 500. How near
#   does the line come to its dots? The right side says what is left.
# - Move α. Does a better draft push the end of the gain to larger batches, or does it only raise the start?
# - Set K to 1. Where does the line meet that of the best K?
# - Raise the cached tokens a row. Then choose Llama-2-7B, which keeps four times as much per token as Llama-3-8B. Why
#   does it like speculation better?
# - Store the weights in int4. Fewer bytes to hide the arithmetic behind: the knee comes sooner.

# %% [markdown]
# ## Let the engine decide
#
# The engine's rule is one line: [`draft_share`](../minispec/serving/scheduler.py) divides `draft_budget` draft tokens
# equally among all requests that decode. Alone, a request drafts as deep as it likes. As the batch fills, drafts get
# smaller. When there are more requests than draft tokens, the first ones draft one token each and the others none.

# %%
print({sequences: draft_share(4, sequences, budget=64) for sequences in (1, 8, 16, 20, 32, 64, 65)})

# %% [markdown]
# Choose the budget from the ridge point of your machine. Whatever such a rule looks at, it must be known *before* the
# tokens are sampled: how full the batch is, how past drafts did. Then the output keeps the target's distribution. A rule
# that looks at sampled tokens and drops some of them would bias it.
#
# Twelve requests, and a budget of 8 for all drafts. The drafts of each step:

# %%
engine = ms.Engine(target, drafter, k=4, draft_budget=8, block_size=4)
for i in range(12):
    engine.add(prompts[i % 4], max_new_tokens=4 + 2 * i)
engine.run()
drafted = [[row["drafted"] for row in step["rows"]] for step in engine.metrics()["steps"]]
print("never more than 8 draft tokens in a step:", all(sum(step) <= 8 for step in drafted))
print("one each while more than 8 requests run: ", all(max(step) <= 1 for step in drafted if len(step) > 8))
print("and drafts get longer as requests leave: ", max(map(max, drafted)), "at the end")

# %% [markdown]
# ## In production
#
# **vLLM**'s scheduler counts as ours does: `num_tokens_with_spec` less `num_computed_tokens`, and drafts travel as
# `spec_token_ids`. Its plan already knows the drafts, because they were made at the end of the step before; ours drafts
# between plan and pass, which is easier to follow. So there the drafts to verify are simply new tokens, and
# `num_lookahead_tokens` are further slots, for a drafter that keeps a cache of its own. Settings come as
# `speculative_config`, with a `method` (`ngram`, `draft_model`, `eagle3`, `medusa`, …) and `num_speculative_tokens`, our
# $k$; `num_speculative_tokens_per_batch_size` is a table of $k$ by batch size. Its metrics count drafts, drafted and
# accepted tokens, and accepted ones by position: watch these before you trust any speed-up.
#
# **SGLang** sets `speculative_algorithm`, `speculative_num_steps`, `speculative_eagle_topk` and
# `speculative_num_draft_tokens`: depth, branching and size of a tree. **TensorRT-LLM** has a `speculative_config` with a
# `max_draft_len`.
#
# All of them leave you with the question of this lesson. Under light load speculation buys latency. Under full load it
# costs throughput, and somebody has to turn it down. If the server does not do it by itself, do it by load.

# %% [markdown]
# ## Check yourself
#
# <details><summary>A request has 40 tokens, 39 of them computed, and four drafts. How many tokens is it behind, and
# where do they go if the second draft is refused?</summary>
#
# Five: the certain one and four drafts. Then 41 tokens are verified and in the cache: 39, the certain one and one draft.
# The text has 42, since the correction was emitted and not yet read. The other three slots are written over.
# </details>
#
# <details><summary>Why does the scheduler reserve slots before it knows the drafts?</summary>
#
# The pass writes their keys and values, so the slots must be there when it runs, and how many tokens a drafter finds is
# known only when it has drafted. Reserving too many costs nothing that is not returned after the pass.
# </details>
#
# <details><summary>A batch is so large that the pass is bound by arithmetic with and without drafts. What is v, and for
# which α does speculation gain?</summary>
#
# $v = k + 1$. For none: $E[N] \le k + 1$, and drafting has a price as well.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Liu et al., 2024: *Optimizing speculative decoding for serving large language models using goodput*
#   ([arXiv:2406.14066](https://arxiv.org/abs/2406.14066)): draft lengths that follow the load.
# - Su, Giannoula, Pekhimenko, 2023: *The synergy of speculative decoding and batching in serving large language models*
#   ([arXiv:2310.18813](https://arxiv.org/abs/2310.18813)): the best draft length measured against batch size.
# - Chen et al., 2024: *MagicDec: breaking the latency-throughput tradeoff for long context generation with speculative
#   decoding* ([arXiv:2408.11049](https://arxiv.org/abs/2408.11049)): the other regime: long contexts, where large
#   batches still gain.
# - Miao et al., 2024: *SpecInfer: accelerating generative LLM serving with tree-based speculative inference and
#   verification* ([arXiv:2305.09781](https://arxiv.org/abs/2305.09781)): a serving system built around speculation.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - [Exercises 11](../exercises/11_speculation_in_a_server.ipynb): lookahead slots, the way back, one draft length for a
#   batch.
# - `minispec drill` asks `scheduler-integration`, `lookahead-slots`, `batch-effect`, `when-to-turn-off`, `win-or-hurt`,
#   `long-context-speculation`.
# - [12 Fewer bytes](12_fewer_bytes.ipynb): if reading is the bottleneck, read less.
