# %% [markdown]
# # 11 Speculation in a server
#
# *Time:* 45 minutes · *Before this:* [04 continuous batching](04_continuous_batching.ipynb), [07 how fast](07_how_fast.ipynb) · *Practice:* [exercises 11](../exercises/11_speculation_in_a_server.ipynb)
#
# In the lessons so far, speculative decoding (Leviathan et al., 2023, arXiv:2211.17192) had the machine to itself. In a
# server it shares the machine with a scheduler that counts tokens, with a cache that is cut into blocks, and with other
# requests that could use the same idle arithmetic. So this lesson asks how speculation fits into a continuous-batching
# engine, and at which load it stops paying.
#
# You will be able to
#
# - plan a forward pass with draft tokens in it, with one number per request;
# - say what lookahead slots are, and what happens to them after a rejection;
# - explain why a draft must never take a block away from another request;
# - predict at which batch size the gain is gone, and say under which conditions your number holds;
# - say how a server shortens drafts, or stops drafting, as its load grows.

# %%
import minispec as ms
from minispec import theory
from minispec.course import viz
from minispec.course.viz.recorder import endless
from minispec.serving.blocks import BlockPool
from minispec.serving.scheduler import Request, Result, Scheduler, draft_share

target = endless(ms.load("micro", device="cpu"))  # without end tokens, so that we decide how long an output gets
drafter = ms.drafters.Model(ms.load("micro-draft", device="cpu"))

# %% [markdown]
# ## Does the scheduler need a speculative mode?
#
# In lesson 04 the scheduler looked at one number per request: how many of its tokens still have to be processed before
# the next token is known. A new request has its whole prompt to process, and a request that is decoding has one token. A
# request with a draft of $k$ tokens has $1 + k$, because the target has to run on the last emitted token and on every
# draft token to verify them.
#
# $$\text{tokens to process} = \underbrace{\text{num\_tokens} + \text{draft tokens}}_{\text{num\_tokens\_with\_spec}} -
# \text{num\_computed\_tokens}$$
#
# Our code calls this number [`Request.behind`](../minispec/serving/request.py); the two names in the formula are vLLM's.

# %%
request = Request("A", prompt=[1] * 10, max_new_tokens=8)
print(
    f"just arrived:           {request.num_tokens_with_spec:2d} - {request.num_computed_tokens:2d} = {request.behind}"
)
request.tokens.append(7)
request.num_computed_tokens = 10
print(
    f"decoding:               {request.num_tokens_with_spec:2d} - {request.num_computed_tokens:2d} = {request.behind}"
)
request.draft_tokens = [5, 6, 5, 6]
print(
    f"with four draft tokens: {request.num_tokens_with_spec:2d} - {request.num_computed_tokens:2d} = {request.behind}"
)

# %% [markdown]
# So it needs none: prefill, decoding and verification are the same kind of work to the scheduler, and a draft only makes
# the number larger.
#
# ## Where do the draft tokens' keys and values go?
#
# A forward pass stores keys and values for every token it runs on, draft tokens included, so their slots in the cache have
# to exist before the pass begins. But our scheduler plans the step before the drafter has run, so it cannot know how many
# draft tokens there will be. It therefore reserves slots for as many as there could be, the **lookahead slots**.
#
# Two bounds say how many that is. A draft has at most $k$ tokens. And a pass emits one token more than it accepts, so an
# output that may still grow by $r$ tokens can use at most $r - 1$ draft tokens
# ([`Request.room`](../minispec/serving/request.py)).
#
# The next cell runs a scheduler without any model. It calls the last emitted token of a request *certain*, because this
# token is processed whatever the drafter proposes. Request A may still emit ten tokens, request B only two.

# %%
pool = BlockPool(num_blocks=16, block_size=4, enable_prefix_caching=False)
scheduler = Scheduler(pool, max_num_batched_tokens=32, lookahead=4)
a, b = Request("A", [1] * 6, max_new_tokens=11), Request("B", [1] * 5, max_new_tokens=3)
for new in (a, b):
    scheduler.add(new)
first = scheduler.schedule()  # both prompts
scheduler.update(first, {"A": Result([0]), "B": Result([0])})

plan = scheduler.schedule()
for part in plan.scheduled:
    id = part.request.id
    print(f"{id}: certain tokens {part.count}, lookahead slots {part.num_lookahead_tokens}, blocks {pool.table(id)}")

# %% [markdown]
# A has 7 tokens, which makes 11 with its 4 draft tokens, and these take three blocks of four slots. B may emit two more
# tokens, so it can use one draft token and gets one lookahead slot.
#
# ## What happens to the slots of rejected tokens?
#
# Suppose that A's drafter proposed four tokens, and that the target accepted the first of them and replaced the second.

# %%
a.draft_tokens, b.draft_tokens = [0, 9, 9, 9], []
print("A has", a.behind, "tokens to process")
record = scheduler.update(plan, {"A": Result([0, 0], accepted=1), "B": Result([0])})
for part in record.rows:
    print(f"{part.id}: {part.tokens} processed, {part.drafted} drafted, {part.accepted} accepted")
print(f"A: {a.num_tokens} tokens, {a.num_computed_tokens} in the cache, blocks {pool.table('A')}")
print(f"B: {b.num_tokens} tokens, {b.num_computed_tokens} in the cache, blocks {pool.table('B')}")

# %% [markdown]
# No key was erased. Instead, [`Scheduler.update`](../minispec/serving/scheduler.py) set A's `num_computed_tokens` to what
# is verified: the six tokens of the prompt, the certain token, and one accepted draft token.
# Then [`BlockPool.trim`](../minispec/serving/blocks.py) returned the block that holds none of these. Rejected keys in the
# remaining blocks stay where they are. They lie after the end of the sequence, attention never looks there, and the next
# pass overwrites them.
#
# So the **rewind** of lesson 05 (*rollback* in most papers) costs a subtraction here too. A tree of draft tokens needs one
# step more: the accepted path is first moved together, because its nodes need not lie in neighbouring slots.

# %% [markdown]
# ## Predict
#
# A request has 12 tokens in the cache, in three full blocks of 4 slots. It decodes with 4 draft tokens, and the
# target rejects the first one. How many blocks does the request hold *during* the pass? (After the pass it holds four,
# because the certain token was processed and needed a new block.)

# %% tags=["nbval-ignore-output"]
during = viz.predict("Blocks during the pass?", "blocks")
during

# %% [markdown]
# ## Run

# %% tags=["spoiler"]
pool = BlockPool(num_blocks=16, block_size=4, enable_prefix_caching=False)
pool.start("A", [1] * 12)
pool.commit("A", [1] * 12)
pool.allocate("A", total=12 + 1 + 4)  # the certain token, then the draft
blocks_during = len(pool.table("A"))
print("the pass fills slots", pool.slots("A", 12, 17))
pool.commit("A", [1] * 13)  # only the certain token is kept
pool.trim("A")
print("blocks after the pass:", len(pool.table("A")))

# %% [markdown]
# ## Reveal

# %% tags=["spoiler"]
during.reveal(blocks_during)

# %% [markdown]
# Blocks that hold no kept token go back to the pool as soon as the verdict is known.
#
# ## What if memory is short?
#
# In lesson 04 a request that needs a slot for its *certain* token could preempt another request. A draft token must not do
# that: preemption throws away finished work, and a draft token may turn out to be worth nothing. So
# [`Scheduler.schedule`](../minispec/serving/scheduler.py) hands out lookahead slots last, from the tokens and blocks that
# are left. If four slots do not fit, it tries three, then two, then one, then none.

# %%
for num_blocks in (6, 5, 4):
    pool = BlockPool(num_blocks, block_size=4, enable_prefix_caching=False)
    scheduler = Scheduler(pool, max_num_batched_tokens=32, lookahead=4)
    for name in "AB":
        scheduler.add(Request(name, [1] * 6, max_new_tokens=9))
    scheduler.update(scheduler.schedule(), {"A": Result([0]), "B": Result([0])})
    plan = scheduler.schedule()
    slots = {part.request.id: part.num_lookahead_tokens for part in plan.scheduled}
    print(f"{num_blocks} blocks: lookahead slots {slots}, preempted: {len(plan.preempted)}")

# %% [markdown]
# With four blocks, each request has one slot left in its own last block, so it drafts one token and no request is
# preempted. Memory pressure shortens the drafts before it costs anything else.
#
# Prefix caching needs a rule of the same kind. A full block gets a hash so that other requests can find and reuse it
# (lesson 03). It must get this hash after verification, in `commit`, and never before: otherwise another request could
# reuse a block with rejected tokens in it.

# %% [markdown]
# ## Does the engine still emit the same tokens?
#
# [`Engine.step`](../minispec/serving/engine.py) puts these parts together: schedule, draft, one forward pass over
# everything, verify, update. Requests with a draft, requests without one and chunks of prompts share the pass. We serve
# four prompts, greedily and in float32, so the outputs have to be equal token by token. First without a drafter:

# %%
prompts = ["Once upon a time", "One day, Tim and his dog", "Lily saw a big red ball.", "The old dog was tired. He"]


def serve(drafter=None, **options) -> tuple[list[list[int]], dict]:
    engine = ms.Engine(target, drafter, block_size=4, num_blocks=128, **options)
    ids = [engine.add(prompt, max_new_tokens=32) for prompt in prompts]
    outputs = engine.run()
    engine.check_integrity()
    return [outputs[id].tokens for id in ids], engine.metrics()


plain_outputs, plain = serve()
print("steps without speculation:", plain["totals"]["steps"])

# %% [markdown]
# ## Predict
#
# Now the same prompts with drafts of 4 tokens from the small model. Each request emits between one and five tokens per
# step, and the engine is done when the slowest of the four outputs is complete. How many steps will that be in all?

# %% tags=["nbval-ignore-output"]
fewer = viz.predict("Steps with speculation?", "steps")
fewer

# %% [markdown]
# ## Run

# %% tags=["spoiler"]
outputs, speculative = serve(drafter, k=4)
print("the same outputs:", outputs == plain_outputs)
print("all blocks returned:", speculative["blocks"]["used_blocks"] == 0)
for k in (1, 2, 8):
    print(f"k = {k}, the same outputs:", serve(drafter, k=k)[0] == plain_outputs)

# %% [markdown]
# ## Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
fewer.reveal(speculative["totals"]["steps"])
totals = speculative["totals"]
print(f"{totals['drafted']} tokens drafted, {totals['accepted']} accepted", end="; ")
print(f"the target ran on {totals['read']} tokens instead of {plain['totals']['read']}")

# %% [markdown]
# The engine needs fewer steps, and in exchange the target runs on more tokens. That exchange is what the rest of this
# lesson is about. It does not change what a request is given: each output follows the target's own distribution in any
# batch, up to floating-point rounding, which [lesson 14](14_is_it_really_exact.ipynb) measures.

# %% [markdown]
# ## The scheduler stepper
#
# The widget shows each step of a real engine in three moments: plan, verify, roll back. The last request arrives later than
# the others.

# %% tags=["nbval-ignore-output"]
viz.scheduler_steps(target, drafter)

# %% [markdown]
# Things to try
#
# - Find a step in which a request takes a block for its draft and returns it in the same step.
# - Look at a request in its last step. How many lookahead slots does it get, and why so few?
# - Choose *little memory*: which requests get no lookahead slots, and does any request lose a block to another one's draft?
# - Choose the setting in which 6 draft tokens are shared, and watch the drafts get longer when other requests are done.

# %% [markdown]
# ## Why does a full batch leave nothing for speculation?
#
# A decode pass reads all parameters of a dense model to process one token per request, so most of the GPU's arithmetic
# units wait for memory. Speculation uses that idle arithmetic, and so does batching: they compete for it. With $B$
# requests and $k$ draft tokens each, a pass processes $B\,(k + 1)$ tokens. Once these take longer to compute than the
# parameters take to read, every further token costs time. Lesson 07's $v$, the time of a verification pass in units of a
# plain pass, then exceeds 1:
#
# $$v(B, k) = \frac{t(B\,(k + 1) \text{ tokens})}{t(B \text{ tokens})}, \qquad
# t = \max\left(\frac{\text{bytes}}{\text{bandwidth}}, \frac{\text{FLOPs}}{\text{peak}}\right), \qquad
# S = \frac{E[N]}{k c + v}$$
#
# Here $E[N]$ is the expected number of tokens per cycle and $c$ the time of one draft step, again in units of a plain
# pass. The next cell evaluates [`theory.verify_cost`](../minispec/theory.py) for 8 billion bf16 parameters on an H200, with
# the bandwidth and the FLOP/s that we measured on it, and with $\alpha = 0.7$, $k = 4$, $c = 0.05$. The cache is left out
# for the moment.

# %%
print(
    f"ridge point: {theory.balance_point(theory.H200):.0f} FLOP per byte; in bf16 about as many tokens per pass are free"
)
for batch in (1, 16, 32, 64, 128, 256):
    v = theory.verify_cost(theory.H200, 8e9, k=4, batch=batch)
    print(f"batch {batch:3d}: {5 * batch:4d} tokens, v = {v:.2f}, speed-up {theory.speedup(0.7, 4, 0.05, v):.2f}")

# %% [markdown]
# Far beyond the ridge point $v = k + 1$, because five tokens then take five times as long as one. At that point even
# perfect drafts gain nothing, and rejected tokens are a loss.
#
# Shorter drafts stay useful up to larger batches. Here is the best $k$ for each batch size, and the speed-up it gives:


# %%
def best(batch: int, c: float, **shape) -> tuple[int, float]:
    """The best k for 8 billion parameters on an H200 at α = 0.7, and its speed-up."""

    def v(k: int) -> float:
        return theory.verify_cost(theory.H200, 8e9, k, batch, **shape)

    return theory.best_k(0.7, c, v, longest=8), theory.best_speedup(0.7, c, v, longest=8)


for batch in (1, 32, 64, 96, 128, 256):
    k, gain = best(batch, c=0.05)
    print(f"batch {batch:3d}: best k = {k}, speed-up {gain:.2f}")

# %% [markdown]
# ## Do long contexts bring the gain back?
#
# They do in part. Batching spreads the reading of the parameters over all requests, but each request has a cache of its
# own, and a verification pass reads that cache once for all $k + 1$ tokens of the request. The longer the contexts, the
# longer the pass stays memory-bound, so $v$ stays near 1 at larger batches (Chen et al., 2024, MagicDec,
# arXiv:2408.11049).
#
# This has two limits. The cache has to fit into memory, of which an H200 has 141 GB. And the draft model has a cache too,
# so $c$ does not stay what it was. We take a draft model of the shape of Llama-3.2-1B, whose cache takes 32 KiB per token
# against 128 KiB of the 8B target, and compute $c$ from the bytes and FLOPs of both.

# %%
large = dict(kv_bytes=theory.kv_bytes_per_token(32, 8, 128), attention_width=32 * 32 * 128)
small = dict(kv_bytes=theory.kv_bytes_per_token(16, 8, 64), attention_width=16 * 32 * 64)
print(f"cache per token: {large['kv_bytes'] / 1024:.0f} KiB and {small['kv_bytes'] / 1024:.0f} KiB")
print("batch  context    memory      c   v (k = 4)   best k   speed-up")
for batch, context in ((64, 0), (64, 1000), (64, 8000), (128, 0), (128, 1000), (128, 4000), (256, 8000)):
    memory = (2 * (8e9 + 1.24e9) + batch * context * (large["kv_bytes"] + small["kv_bytes"])) / 1e9
    draft_step = theory.pass_time(theory.H200, 1.24e9, batch, context=context, **small)
    c = draft_step / theory.pass_time(theory.H200, 8e9, batch, context=context, **large)
    v = theory.verify_cost(theory.H200, 8e9, 4, batch, context=context, **large)
    k, gain = best(batch, c, context=context, **large)
    found = f"{c:6.3f} {v:11.2f} {k:8d} {gain:10.2f}" if memory < 141 else "  does not fit"
    print(f"{batch:5d} {context:8,d} {memory:6.0f} GB {found}")

# %% [markdown]
# At batch 128 a context of 4,000 tokens brings $v$ back from 3.40 to 1.00, and the best speed-up rises from 1.12 to 1.50. It
# does not rise further because $c$ grows too, from 0.155 to 0.232: at long contexts the draft model spends its time on its
# cache, which is a quarter of the target's. At batch 64, where two draft tokens were nearly free anyway, the speed-up even
# falls, from 1.65 to 1.50. So a drafter for long contexts should have a small cache, a windowed cache, or none at all.

# %% [markdown]
# ## What do measurements say?
#
# The roofline bounds the time of each pass, but a ratio of two bounds is not a bound, so we have to measure.
# [`measure_batches`](../minispec/course/viz/batch_speedup.py) lets the engine serve full batches of `micro` on this machine,
# once plain and once with four draft tokens per request at every batch size. It takes a few seconds, and short runs on a
# busy machine are noisy.

# %% tags=["nbval-ignore-output"]
dots = viz.measure_batches(target, drafter, batches=(1, 4, 16, 32), k=4, new=16, repeat=1)
print(viz.batch_table(dots))

# %% [markdown]
# The column *formula* is $E[N]/(kc + v)$ with the $\alpha$, $c$ and $v$ of the same line. Compare it with the measured column
# first: if they agree, the formula accounts for the time. As for $v$, a CPU core has few FLOPs for each byte it can read, so
# it exceeds 1 already at batch 1. Whether it then rises smoothly depends on which matrix kernel the library
# picks for each shape, and in some of our runs it did not.
#
# For a GPU there is a recorded run of the same engine on an H200 (`minispec bench batch`, median and range of five
# rounds), after 500 tokens of context. The target has the shape of an 8B model, and the draft model consists of its first
# two layers and its LM head. The weights are random: one setting of the benchmark, ε, controls how well the two agree. So
# $\alpha$ is chosen here and says nothing about real draft models, while the times do not depend on what the weights are.

# %%
print(viz.batch_table(viz.BatchDot.recorded()))
for batch in (1, 32, 128):
    v = theory.verify_cost(theory.H200, 8.03e9, 4, batch, context=500, **large)
    print(f"batch {batch:3d}: v = {v:.2f} by the roofline")

# %% [markdown]
# What this run says, and what it does not:
#
# - At batch 128 the run still gains, 1.16 times, although the first table above said 0.77. The
#   conditions differ: 500 tokens of context instead of none, $c = 0.14$ instead of 0.05. And the measured $v$ is 1.90,
#   where the roofline with these 500 tokens expects 2.27. Real passes take longer than their bounds, and
#   here the plain pass exceeded its bound by more than the verification pass did, so the ratio came out smaller. The
#   five rounds at this size ranged from 0.63 to 1.18, though, so this line is the least certain of the table.
# - At batch 32 it is the other way round. The roofline says that verification is free, and measured $v$ is 1.23.
# - $c$ is 0.13 to 0.15 at every batch size. Counting bytes predicts about that, as the next cell shows.

# %%
layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336  # attention and MLP of Llama-3-8B
head = 4096 * 128256
print(f"two layers and the LM head: {(2 * layer + head) / (32 * layer + head):.3f} of the parameters that a pass reads")

# %% [markdown]
# So quote a crossover only together with its conditions (model, GPU, context, $k$, $\alpha$ and $c$), and measure it on your
# own system.
#
# ## Speed-up against batch size
#
# The lines are the roofline of the machine and the model you choose. The dots are the measurements above; those of the
# H200 appear where they belong.

# %% tags=["nbval-ignore-output"]
viz.batch_speedup(dots)

# %% [markdown]
# Things to try
#
# - Put the sliders where the H200 was measured: c at 0.14, and 256 cached tokens per request, the stop nearest to 500. How
#   near does the line come to its dots, and on which side of it do they lie?
# - Move α: does a better draft move the end of the gain to larger batches, or does it only raise the beginning?
# - Set k to 1 and see where the line meets that of the best k.
# - Raise the number of cached tokens, then choose Llama-2-7B, which keeps four times as much per token as Llama-3-8B. Why
#   does its gain last up to larger batches?
# - Store the parameters in int4: with fewer bytes to read, arithmetic becomes the limit at a smaller batch.

# %% [markdown]
# ## How does a server turn speculation down?
#
# Our engine has one rule for it: [`draft_share`](../minispec/serving/scheduler.py) divides `draft_budget` draft tokens
# equally among the requests that are decoding. A single request drafts $k$ tokens, and as the batch fills, drafts get shorter.
# When there are more requests than draft tokens, the first requests draft one token each and the others none.

# %%
print({sequences: draft_share(4, sequences, budget=64) for sequences in (1, 8, 16, 20, 32, 64, 65)})

# %% [markdown]
# Choose the budget from the tokens that a pass processes nearly for free on your machine, less those of a full batch.
# Whatever the rule looks at must be known *before* the draft tokens are sampled: the size of the batch, or how earlier
# drafts did. Then each output keeps the target's distribution. A rule that looks at sampled draft tokens and discards some
# of them would bias it.
#
# Here are twelve requests with a budget of 8 draft tokens for all of them:

# %%
engine = ms.Engine(target, drafter, k=4, draft_budget=8, block_size=4)
for i in range(12):
    engine.add(prompts[i % 4], max_new_tokens=4 + 2 * i)
engine.run()
drafted = [[part["drafted"] for part in step["rows"]] for step in engine.metrics()["steps"]]
print("never more than 8 draft tokens in a step:", all(sum(step) <= 8 for step in drafted))
print("at most one each while more than 8 run:  ", all(max(step) <= 1 for step in drafted if len(step) > 8))
print("and longer drafts as requests leave:     ", max(map(max, drafted)), "at the end")

# %% [markdown]
# ## In production
#
# **vLLM**'s scheduler counts as ours does: `num_tokens_with_spec` less `num_computed_tokens`, with the draft tokens in
# `spec_token_ids`. The order differs: vLLM drafts at the end of a step, so the next plan already knows the draft, while
# our engine drafts between plan and pass, which is easier to follow. In vLLM the tokens to verify are therefore ordinary
# new tokens, and `num_lookahead_tokens` reserves further slots for a drafter that keeps a cache of its own. The settings
# come as `speculative_config`, with a `method` (`ngram`, `draft_model`, `eagle3`, `medusa`, …) and
# `num_speculative_tokens`, our $k$; `num_speculative_tokens_per_batch_size` makes $k$ depend on the batch size. Its
# metrics count drafts, draft tokens, accepted tokens, and accepted tokens per position. Look at these before you believe
# any speed-up.
#
# **SGLang** sets `speculative_algorithm`, `speculative_num_steps`, `speculative_eagle_topk` and
# `speculative_num_draft_tokens`: the depth, the branching and the size of a draft tree. In **TensorRT-LLM** the draft length
# is the `max_draft_len` of its `speculative_config`.
#
# In all of them the question of this lesson stays with you. At low load speculation buys latency, and at full load it can
# cost throughput. So measure both ends, and let $k$ depend on the load if the two differ.

# %% [markdown]
# ## Check yourself
#
# <details><summary>A request has 40 tokens, 39 of them computed, and a draft of four. How many tokens does the next pass
# process for it, and what is in the cache if the second draft token is rejected?</summary>
#
# Five: the certain token and four draft tokens. Afterwards 41 tokens are verified and in the cache: the 39, the certain
# token and the one accepted draft token. The sequence has 42 tokens, because the correction (the token that replaced the
# rejected one) was emitted and has not been processed yet. The other three slots will be overwritten.
# </details>
#
# <details><summary>Why does our scheduler reserve slots before it knows the draft?</summary>
#
# The pass stores the draft tokens' keys and values, so their slots must exist when it runs, and how many tokens the drafter
# finds is known only after it has run. Slots that were reserved in vain are returned after the pass.
# </details>
#
# <details><summary>A batch is so large that the pass is compute-bound with and without draft tokens. What is v, and for
# which α does speculation gain?</summary>
#
# $v = k + 1$, because the time is proportional to the tokens. It gains for no α: $E[N] \le k + 1$, and drafting costs time
# as well.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Liu et al., 2024: *Optimizing speculative decoding for serving large language models using goodput*
#   ([arXiv:2406.14066](https://arxiv.org/abs/2406.14066)): draft lengths that follow the load.
# - Su, Giannoula, Pekhimenko, 2023: *The synergy of speculative decoding and batching in serving large language models*
#   ([arXiv:2310.18813](https://arxiv.org/abs/2310.18813)): the best draft length measured against batch size.
# - Chen et al., 2024: *MagicDec: breaking the latency-throughput tradeoff for long context generation with speculative
#   decoding* ([arXiv:2408.11049](https://arxiv.org/abs/2408.11049)): long contexts, where large batches still gain.
# - Miao et al., 2024: *SpecInfer: accelerating generative LLM serving with tree-based speculative inference and
#   verification* ([arXiv:2305.09781](https://arxiv.org/abs/2305.09781)): a serving system built around speculation.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - [Exercises 11](../exercises/11_speculation_in_a_server.ipynb): lookahead slots, rolling a block table back, one draft
#   length for a batch.
# - `minispec drill` asks `scheduler-integration`, `lookahead-slots`, `batch-effect`, `when-to-turn-off`, `win-or-hurt`,
#   `long-context-speculation`.
# - [12 Fewer bytes](12_fewer_bytes.ipynb): if reading memory is the bottleneck, read less of it.
