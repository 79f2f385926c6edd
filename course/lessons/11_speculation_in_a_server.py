# %% [markdown]
# # 11 Speculation in a server
#
# *Time:* 80 minutes · *Before this:* [04 continuous batching](04_continuous_batching.ipynb), [07 how fast](07_how_fast.ipynb) · *Practice:* [exercises 11](../exercises/11_speculation_in_a_server.ipynb)
#
# In the lessons so far, speculative decoding (Leviathan et al., 2023, arXiv:2211.17192) had the machine to itself. In a
# server it shares the machine with a scheduler that counts tokens, with a cache that is cut into blocks, and with other
# requests that could use the same idle arithmetic. So this lesson asks how speculation fits into a continuous-batching
# engine, and at which load it stops paying.
#
# You will be able to
#
# - plan a forward pass with draft tokens in it;
# - say what lookahead slots are, and what happens to them after a rejection;
# - say what a draft may cost other requests when memory is short, in our engine and in vLLM;
# - predict at which batch size the gain is gone, and say under which conditions your number holds;
# - say how a server shortens drafts, or stops drafting, as its load grows;
# - define TTFT, TPOT, ITL and goodput, and say what a stream in bursts does to each of them;
# - say why latencies rise before a server is full, and what must happen when a client goes away.

# %%
import minispec as ms
from minispec import theory
from minispec.controller import Controller
from minispec.drafters import Draft
from minispec.serving.blocks import BlockPool
from minispec.serving.scheduler import Scheduler
from minispec_course import viz
from minispec_course.labs.batching import endless

target = endless(ms.load("micro", device="cpu"))  # without end tokens, so that we decide how long an output gets
drafter = ms.drafters.Model(ms.load("micro-draft", device="cpu"))  # on the CPU: steps and blocks are counted, not timed

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
# The names in the formula are vLLM's, whose scheduler uses this number. vLLM drafts at the end of a step, so when it plans
# the next one it knows how many draft tokens there are. Our code calls the number
# [`Sequence.behind`](../minispec/sequence.py).

# %%
request = ms.Sequence("A", [1] * 10, max_new_tokens=8)
print(
    f"just arrived:           {request.num_tokens_with_spec:2d} - {request.num_computed_tokens:2d} = {request.behind}"
)
request.tokens.append(7)
request.num_computed_tokens = 10
print(
    f"decoding:               {request.num_tokens_with_spec:2d} - {request.num_computed_tokens:2d} = {request.behind}"
)
request.draft = Draft([5, 6, 5, 6])
print(
    f"with four draft tokens: {request.num_tokens_with_spec:2d} - {request.num_computed_tokens:2d} = {request.behind}"
)

# %% [markdown]
# So vLLM's scheduler needs none: prefill, decoding and verification are the same kind of work to it, and a draft only makes
# the number larger. Ours needs one addition, because it plans before the draft exists.
#
# ## Where do the draft tokens' keys and values go?
#
# A forward pass stores keys and values for every token it runs on, draft tokens included, so their slots in the cache have
# to exist before the pass begins. Our engine plans a step first and drafts afterwards, which is easier to follow. When it
# plans, it cannot know how many draft tokens there will be. So its plan has two parts: the tokens that are certain, and
# slots reserved for as many draft tokens as there could be, the **lookahead slots**.
#
# The picture follows one request through a step, as the scheduler and the block pool really keep it. Look at block 2: it
# is taken for draft tokens that may be rejected, and it goes back when they are.

# %%
viz.engine_step(prompt=6, k=4, accepted=1, block_size=4)

# %% [markdown]
# Two bounds say how many slots there are. A draft has at most $k$ tokens. And a pass emits one token more than it accepts, so an
# output that may still grow by $r$ tokens can use at most $r - 1$ draft tokens
# ([`Sequence.room`](../minispec/sequence.py)).
#
# The next cell runs a scheduler without any model. It calls the last emitted token of a request *certain*, because this
# token is processed whatever the drafter proposes. Request A may still emit ten tokens, request B only two.

# %%
pool = BlockPool(num_blocks=16, block_size=4, enable_prefix_caching=False)
scheduler = Scheduler(pool, max_num_batched_tokens=32, lookahead=4)
a, b = ms.Sequence("A", [1] * 6, max_new_tokens=11), ms.Sequence("B", [1] * 5, max_new_tokens=3)
for new in (a, b):
    scheduler.add(new)
first = scheduler.schedule()  # both prompts
for turn in first.turns:
    turn.emit([0])
scheduler.update(first)

plan = scheduler.schedule()
for turn in plan.turns:
    id, slots = turn.sequence.id, turn.num_lookahead_tokens
    print(f"{id}: certain tokens {turn.count}, lookahead slots {slots}, blocks {pool.table(id)}")

# %% [markdown]
# A has 7 tokens, which makes 11 with its 4 draft tokens, and these take three blocks of four slots. B may emit two more
# tokens, so it can use one draft token and gets one lookahead slot.
#
# ## What happens to the slots of rejected tokens?
#
# Suppose that A's drafter proposed four tokens, and that the target accepted the first of them and replaced the second.

# %%
a.draft = Draft([0, 9, 9, 9])
print("A has", a.behind, "tokens to process")
turn_a, turn_b = plan.turns
turn_a.emit([0, 0], accepted=1)
turn_b.emit([0])
record = scheduler.update(plan)
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
#
# This holds for keys and values. A recurrent layer (Mamba, gated delta net; hybrid models have both kinds) keeps one state
# per sequence, and after a pass that state contains the rejected tokens, too. So an engine stores a checkpoint, the state
# after each of the $k + 1$ positions, and goes on from the right one, which costs memory per request; or it keeps the state
# before the draft and computes the accepted tokens again. A tree fits such layers badly: attention masks out siblings,
# but siblings need states of their own.

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
# In our engine, blocks that hold no kept token go back to the pool as soon as the verdict is known. vLLM leaves them with
# the request, which usually needs them for its next tokens.
#
# ## What if memory is short?
#
# In lesson 04 a request that needs a slot for its *certain* token could preempt another request. Should a draft token be
# able to do that? Preemption throws away finished work, and a draft token may turn out to be worth nothing. So our
# [`Scheduler.schedule`](../minispec/serving/scheduler.py) hands out lookahead slots last, from the tokens and blocks that
# are left. If four slots do not fit, it tries three, then two, then one, then none: memory pressure shortens the drafts
# before it costs anything else. vLLM decides otherwise. There the draft tokens are part of the one number above and are
# allocated like any other tokens, so a draft can cause a preemption when memory is short.
#
# Prefix caching needs a rule in every engine. A full block gets a hash so that other requests can find and reuse it
# (lesson 03). It must get this hash for verified tokens only, in our engine in `commit`. Otherwise the hash would name
# draft tokens. After a rejection the next pass overwrites their slots, and a request that finds the old hash would get
# the keys and values of other tokens.

# %% [markdown]
# ## Does the engine still emit the same tokens?
#
# [`Engine.step`](../minispec/serving/engine.py) puts these parts together: schedule, draft, one forward pass over
# everything, verify, update. Requests with a draft, requests without one and chunks of prompts share the pass. We serve
# four prompts, greedily and in float32. The outputs should then be equal token by token, unless two logits are within
# rounding of each other. First without a drafter:

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
# pass. [`roofline_at`](../minispec_course/labs/passes.py) evaluates the formula for Llama-3-8B in bf16 on an H200,
# with the bandwidth and the FLOP/s that we measured on it. They put the ridge point at 188 FLOP per byte, which in bf16 is
# about 188 tokens per pass (lesson 01). We take $\alpha = 0.7$ and $c = 0.05$, and leave out the cache for the moment. The
# last two columns show the best draft length for each batch size, and what it gains.
#
# At which batch size is the gain gone? There $S = 1$, so $v = E[N] - kc$. While the plain pass is memory-bound and the
# verification pass is not, $v$ is the number of tokens over 188, so $B\,(k + 1) = 188\,(E[N] - kc)$.

# %%
print("batch   tokens      v   speed-up (k = 4)   best k   speed-up")
for batch in (1, 32, 64, 128, 256):
    at = viz.roofline_at(batch, k=4, alpha=0.7, c=0.05)
    print(f"{batch:5d} {5 * batch:8d} {at.v:6.2f} {at.speedup:18.2f} {at.best_k:8d} {at.best_speedup:10.2f}")
for k in (4, 1):
    v = theory.expected_tokens(0.7, k) - k * 0.05
    print(f"k = {k}: the gain is gone at v = {v:.2f}, batch {v * theory.free_tokens(theory.H200) / (k + 1):.0f}")

# %% [markdown]
# With four draft tokens the gain is gone at batch 97, and with one at batch 155: shorter drafts stay useful up to larger
# batches. As soon as the plain pass itself is compute-bound, from 188 requests on, $v = k + 1$, because five tokens then
# take five times as long as one. At that point even perfect drafts gain nothing. Long contexts help: each request's cache
# is read once for all of its draft tokens, so attention costs the same with and without a draft, and it is a growing share
# of the pass (*Go deeper* below).

# %% [markdown]
# ## What do measurements say?
#
# The roofline bounds the time of each pass, but a ratio of two bounds is not a bound, so we have to measure. There is a
# recorded run of our engine on an H200 (`python -m benchmarks batch`, greedy, median and range of five rounds), with four draft
# tokens per request after 500 tokens of context. The target has the shape of an 8B model. The draft model consists of its
# first two layers and its LM head, about an eighth of the parameters that a pass of the target reads.
#
# The weights are random, and one setting of the benchmark, ε, controls how well the two models agree. So $\alpha$ says
# nothing about real draft models, while the times depend on the shapes and hardly on the values of the weights. $\alpha$ is
# counted, and $c$ and $v$ are timed in the same run: $c$ is the time of drafting per draft token, and $v$ the rest of a
# cycle, both over the time of a plain step. The column *formula* is $E[N]/(kc + v)$ with the values of its line.

# %%
recorded = viz.BatchDot.recorded()
print(viz.batch_table(recorded))
print("formula at α = 0.72:", {dot.batch: round(theory.speedup(0.72, 4, dot.c, dot.v), 2) for dot in recorded})
print("v by the roofline:  ", {batch: round(viz.roofline_at(batch, context=500).v, 2) for batch in (1, 32, 128)})

# %% [markdown]
# What this run says, and what it does not:
#
# - **Do not read the measured column as the effect of the batch size.** $\alpha$ falls from 0.85 to 0.72 down the table,
#   because a batch of $n$ serves the first $n$ prompts of a fixed list, and the first few happen to be easy to predict.
#   The line *formula at α = 0.72* shows the effect of the load alone: 1.83 at batch 1, 1.63 at batch 32, 1.18 at batch
#   128. So most of the fall up to batch 32 is the prompts, and the fall after it is the load.
# - **At batch 128 the run still gains**, 1.16 times, where the first table above said 0.77. The reason is $v$: 1.90
#   measured, 3.40 in that table. More than half of the difference is the context, with which the roofline gives 2.54. The
#   rest is not to our credit: our plain step takes 2.4 times its bound at this size, and overhead that both steps share
#   makes $v$ smaller. On an engine whose plain step is nearer its bound, the same drafts could lose here. (The larger $c$,
#   0.14 instead of 0.05, works against the gain.) Of the five rounds at this size at least one was far slower (0.63; the
#   median is 1.16), while the rounds without speculation were steady. We do not know why, so this line is the least certain.
# - **At batch 32 it is the other way round.** The roofline says that verification is free, and measured $v$ is 1.23.
#
# So quote a crossover only together with its conditions (model, GPU, context, $k$, $\alpha$ and $c$), and measure it on your
# own system.
#
# ## Speed-up against batch size
#
# The lines are the roofline of the machine and the model you choose. The dots are the measurements of the H200 above, where
# they belong.

# %% tags=["nbval-ignore-output"]
viz.batch_speedup()

# %% [markdown]
# Things to try
#
# - Put the sliders where the H200 was measured: c at 0.14, and 256 cached tokens per request, the stop nearest to 500. How
#   near does the line come to its dots, and on which side of it do they lie?
# - Raise the number of cached tokens, then choose Llama-2-7B, which keeps four times as much per token as Llama-3-8B. Why
#   does its gain last up to larger batches?

# %% [markdown]
# ## How does a server turn speculation down?
#
# Our engine measures what a step takes and how much of a draft is accepted, and chooses the size $n$ of the drafts, none
# included, with the most tokens per second for its $B$ requests ([`Controller`](../minispec/controller.py)):
#
# $$\frac{B\,(1 + \text{gain}(n))}{\text{seconds}(B, n)}$$
#
# Let us tell one what to go by: an acceptance of 0.8 at every position, passes that are free up to 188 tokens and
# compute-bound from there, and a draft token that costs 5 % of a pass. How far does it draft?

# %%
controller = Controller(range(1, 5))
controller.accept = [0.8] * 4
batches = (1, 16, 32, 64, 96, 128, 192, 256)
controller.seconds = {n: {B: max(1, B * (1 + n) / 188) + 0.05 * n for B in batches} for n in range(5)}
print({B: controller.choose(range(B))[0] for B in batches})

# %% [markdown]
# Drafts get shorter as the batch fills, and where a plain pass alone keeps the arithmetic busy there are none.
#
# Why measure? A pass has a number of tokens that are nearly free on your machine, and every request of the batch takes one
# of them for its certain token. What is left is for drafts: by the roofline, with 188 free tokens and 128 requests, 60
# draft tokens. Take that as a start only. In the run above a step that verified 20 tokens, five for each
# of four requests, already took 1.17 times as long as a plain one over four (two requests and 10 tokens: 1.04), probably
# because 20 tokens no longer fit into one tile of 16 (lesson 13). So the engine times its steps, and goes by these
# times.
#
# Which rules keep the target's distribution? If draft tokens are sampled, a draft may be cut for any reason that does not
# depend on the tokens cut off: the size of the batch, memory, earlier acceptance, even the draft tokens before the cut.
# But a sampled token must not be dropped because of its own value, or of what was sampled after it, since the tokens that
# remain would no longer follow $q$. With a one-hot $q$ (n-gram lookup, a tree of the most probable tokens) any choice is
# allowed.

# %% [markdown]
# ## Go deeper: do long contexts bring the gain back?
#
# *10 more minutes.* They do in part. Batching spreads the reading of the parameters over all requests, but each request has
# a cache of its own, and a verification pass reads that cache once for all $k + 1$ tokens of the request. So attention,
# which is memory-bound, takes as long with a draft as without (Chen et al., 2024, MagicDec, arXiv:2408.11049). The products
# with the parameters gain nothing by that. They are other kernels, before and after attention, and if they are
# compute-bound, their time does not overlap with the reading of the cache. So each part has a bound of its own, and the two
# add up:
#
# $$t = \max\left(\frac{\text{parameters' bytes}}{\text{bandwidth}}, \frac{\text{products' FLOPs}}{\text{peak}}\right) +
# \max\left(\frac{\text{cache's bytes}}{\text{bandwidth}}, \frac{\text{attention's FLOPs}}{\text{peak}}\right)$$
#
# The longer the contexts, the smaller the share of the products, and the nearer $v$ is to 1. This has two limits. The cache
# has to fit into memory, of which an H200 has 141 GB. And the draft model has a cache too, so $c$ does not stay what it was.
# We take a draft model of the shape of Llama-3.2-1B, whose cache takes 32 KiB per token against 128 KiB of the 8B target.
# Without a given $c$, `roofline_at` computes it from the bounds of both models' passes; `context` is the number of cached
# tokens per request.

# %%
print("batch  context    memory       c   v (k = 4)   best k   speed-up")
for batch, context in ((64, 0), (64, 8000), (128, 0), (128, 4000), (256, 8000)):
    at = viz.roofline_at(batch, context=context, k=4, alpha=0.7)
    found = f"{at.c:7.2f} {at.v:11.2f} {at.best_k:8d} {at.best_speedup:10.2f}"
    print(f"{batch:5d} {context:8,d} {at.gigabytes:6.0f} GB", found if at.gigabytes < 141 else "  does not fit")

# %% [markdown]
# At batch 128 a context of 4,000 tokens brings $v$ from 3.40 to 1.44, and the best speed-up from 1.11 to 1.32. It does not
# rise further because the products stay compute-bound, and because $c$ grows too, from 0.16 to 0.23: at long contexts the
# draft model spends its time on its cache, which is a quarter of the target's. At batch 64, where two draft tokens were
# nearly free anyway, the speed-up even falls, from 1.62 to 1.49. So a drafter for long contexts should have a small cache, a
# windowed cache, or none at all.

# %% [markdown]
# ## Go deeper: the recorded run
#
# <details><summary>Why is the measured v at batch 128 below the roofline's?</summary>
#
# With 500 tokens of context the roofline expects 2.54, and 1.90 was measured. Real steps take longer than their bounds. At
# this size the plain step, the denominator, took 2.42 times its bound and the verification step 1.81 times, which lowers
# the ratio.
# </details>
#
# <details><summary>What does the agreement of the columns "formula" and "measured" prove?</summary>
#
# $c$ and $v$ come from the same run, so it proves only that nothing is missing in the accounting, and that one $\alpha$ for
# all positions is good enough. At batch 1 it is not: the run emitted 4.0 tokens per cycle, where $\alpha = 0.85$ at every
# position gives 3.7, so the formula is 7 % low.
# </details>

# %% [markdown]
# # Second half: requests arrive over time
#
# So far all requests were there at once, and we counted tokens per second. The users of a server arrive one by one, whether
# or not the server is busy, and each of them notices only how long *they* wait. So the second half of this lesson (30
# minutes) asks what users notice, how it grows with the load, and what speculation changes about it.
#
# ## What does a user notice?
#
# An answer is streamed: every step that emits tokens of a request sends them as one event. From the moments at which the
# events arrive, serving benchmarks compute four numbers. The definitions are those of vLLM's own benchmark, and
# [`latencies`](../minispec_course/labs/load.py) computes them:
#
# - **TTFT**, time to first token: from sending the request to the first event. It contains the queue and the prefill.
# - **ITL**, inter-token latency: the gaps between two events of one answer.
# - **TPOT**, time per output token: of one answer, the time from the first event to the last, divided by the tokens after
#   the first.
# - **E2EL**, end-to-end latency: from sending the request to the last event.
#
# Other tools use the name ITL for something else. SGLang's benchmark divides a gap by the tokens that came with it, and
# NVIDIA's AIPerf calls ITL what is TPOT here (the gaps are its *inter-chunk latency*). With speculation these differ by the
# tokens per event, so name the tool with the number.
#
# Without speculation an event brings one token, and TPOT is the mean ITL. With speculation it brings several. Take an
# answer of 25 tokens whose first event comes after 100 ms. Plain decoding sends a token every 20 ms. Speculation sends three
# tokens every 50 ms, because a step with drafting and verification takes longer.

# %%
from minispec_course.labs.load import Answer, arrivals, latencies, summary

one_by_one = Answer(sent=0.0, arrivals=[0.1 + 0.02 * i for i in range(25)], tokens=25)
in_bursts = Answer(sent=0.0, arrivals=[0.1 + 0.05 * i for i in range(9)], tokens=25)  # 1 token, then 3 with each event
print("events:", len(one_by_one.arrivals), "and", len(in_bursts.arrivals))

# %% [markdown]
# ## Predict
#
# What is the TPOT of the answer that comes in bursts?

# %% tags=["nbval-ignore-output"]
burst_tpot = viz.predict("TPOT of the answer in bursts?", "ms")
burst_tpot

# %% [markdown]
# ## Run

# %% tags=["spoiler"]
print("               TTFT   TPOT   longest ITL   E2EL, in ms")
for name, log in (("one by one", one_by_one), ("in bursts", in_bursts)):
    found = {key: value for key, value in latencies(log).items() if key != "itl"}
    milliseconds = {key: 1000 * value for key, value in found.items()} | {"itl": 1000 * max(latencies(log)["itl"])}
    print("{:12} {ttft:6.0f} {tpot:6.1f} {itl:13.0f} {e2el:6.0f}".format(name, **milliseconds))

# %% [markdown]
# ## Reveal

# %% tags=["spoiler"]
burst_tpot.reveal(round(1000 * latencies(in_bursts)["tpot"], 1))

# %% [markdown]
# Speculation made the answer complete earlier, and the user waits *longer* between two events. TPOT says the first and ITL
# the second, so quote both. A reader of a chat notices little of 50 ms. A client that acts on every token may need a bound on
# ITL.
#
# Percentiles say for how many requests a number holds: the **p99** of TPOT is the value that all but one request in a hundred stay below. A service promises something like "TTFT below 200 ms and TPOT below 18
# ms" (its service-level objective, SLO), and **goodput** counts the requests per second that got both, as vLLM's benchmark
# does. (The word has other meanings: DistServe, Zhong et al., 2024, means the highest rate per GPU at which a given share of
# requests meets the targets, and papers on speculation sometimes mean accepted tokens per second.) Throughput and goodput
# differ where it matters, when a server is busy:

# %%
queued = Answer(sent=0.0, arrivals=[0.55 + 0.05 * i for i in range(9)], tokens=25)  # it waited in the queue
load = summary([one_by_one, in_bursts, queued], seconds=1.0, targets={"ttft": 0.2, "tpot": 0.018})
print(f"throughput {load['requests_per_second']:.0f} requests/s, goodput {load['goodput']:.0f}")

# %% [markdown]
# ## Why do latencies rise before a server is full?
#
# A benchmark that sends the next request when the last one is answered can never overload a server, because it slows down
# with it. Real users do not. So `python -m benchmarks serve` sends requests at random moments with a given mean rate (a Poisson
# process), which is called an open loop. Random arrivals come in clusters, and a cluster has to queue even if the server is
# fast enough on average.
#
# The smallest model of this is a server that serves one request at a time in a fixed time. If it is busy for a share
# $\rho$ of the time, a request waits for $\frac{\rho}{2\,(1 - \rho)}$ service times on average (the M/D/1 queue). A simulation:

# %%
print("load   waits for, in service times: simulated   formula")
for load in (0.5, 0.8, 0.9, 0.95):
    free, waits = 0.0, []
    for moment in arrivals(100_000, load, burstiness=1.0, seed=0):  # one service time is 1
        start = max(moment, free)
        waits.append(start - moment)
        free = start + 1.0
    print(f"{load:4.2f} {sum(waits) / len(waits):38.1f}  {load / (2 * (1 - load)):9.1f}")

# %% [markdown]
# At half load a request waits for half a service time, at 95 % for about ten. So the rate that a server can *just* sustain
# is not a rate to plan with, and a faster step pays twice: each request is shorter, and the load
# $\rho$ at the same rate is lower. A fixed service time is the best case. Answers differ in length, and with a service time
# of standard deviation $\sigma$ and mean $\mu$ the wait is $1 + \sigma^2/\mu^2$ times as long (Pollaczek and Khinchine), twice
# as long if lengths are exponentially distributed.
#
# A continuous-batching server serves many requests at once, which softens the queue and moves the waiting into the steps:
# with more tokens in a pass, prompts above all, a step takes longer. How many requests are there follows from Little's law,
#
# $$\text{requests in the server} = \text{rate} \times \text{mean time in the server},$$
#
# which holds for every system whose load is steady, waiting requests included. While nothing waits, it is the batch. If
# speculation shortens the time that a request spends in the server, then **at the same rate the batch is smaller**, too.
#
# Speculation also has a price where there is nothing to draft. A draft model processes every prompt too, which lengthens
# TTFT, and its parameters and its cache take memory from the pool. With 32 KiB per token beside the target's 128 KiB a fifth
# fewer tokens fit, so the queue and preemption begin earlier. An EAGLE head or an MTP module costs about one layer of
# each, and n-gram lookup neither.

# %% [markdown]
# ## The control room
#
# The widget serves 24 requests with a real engine on this machine. Each setting runs the load anew, which takes a few
# seconds. Every fourth prompt is long, and `max_chunk` says how many tokens of it one step may process. The clock is that of
# the engine's own steps; arrivals are scheduled on it, so nothing waits for them in vain. The batch is averaged over time, as
# in Little's law, and of so few requests the slowest is shown instead of a p99. If many requests still have no token when
# the last one arrives, the rate is above what the engine sustains: the queue grows as long as requests come, and every
# latency depends on how long you measure.
#
# Bottom right is what we recorded on an H200 with `python -m benchmarks serve --sweep`: short runs, a few seconds for each rate.
# [docs/benchmarks.md](../docs/benchmarks.md) has all percentiles.
#
# These runs also show where tails come from. In [the first recording](../docs/results/serve_h200_without_warm_up.json), at
# 8 requests per second with EAGLE, the median TTFT was 9.1 ms and the p99 367 ms, although at this rate hardly anything
# waits. There were two causes. Our engine captured the launches of a batch shape only when it first met it (lesson 13), and
# the requests of that moment waited; drafts make more shapes. And for the prompts torch had chosen cuDNN's attention, which
# made a plan for every prompt length that it had not seen before, [65 ms each](../docs/results/attention_plans_h200.json). Now `minispec serve` goes through the
# shapes before it listens ([`warm_up`](../minispec/serving/warm_up.py)), and prompts use a kernel that needs no plan. At the
# same load the median is 4.8 ms and the p99 12 ms. At 48 requests per second a p99 of 201 ms is left, so some shape is
# still met for the first time. If your p99 is many times the median at low load, look for what happens only once.

# %% tags=["nbval-ignore-output"]
viz.control_room(target, drafter)

# %% [markdown]
# Things to try
#
# - Raise the rate with speculation off. Which grows first, TTFT or TPOT, and what does the queue do meanwhile? From which
#   rate on is there no steady state?
# - Set `max_num_seqs` to 1 and then to 16 at a high rate: who pays for the short queue?
# - Compare `max_chunk` 16 and 256. Whose ITL suffers from long prompts in one piece, and what do short pieces cost the long
#   prompts themselves?
# - Up to which rate does speculation pay for TPOT?

# %% [markdown]
# <details><summary>Up to which rate does speculation pay for TPOT, and why can it pay although full batches lose
# throughput?</summary>
#
# The number is that of your machine. (It may pay at every rate you try, or, on a busy CPU, at none.) The first half of this lesson compared batches of *equal size* and found a size from which on drafts cost throughput.
# A rate leads to some batch size. At the rate that leads to exactly that crossover size, both servers have equal batches and
# are equally fast, so this is where TPOT crosses, too. Below it Little's law helps: requests leave earlier, so the batch is
# smaller, and in a smaller batch drafts gain more. Above it the effect is reversed, the queue grows sooner, and TTFT
# shows it first. Throughput is quoted for a *full* batch, which may be far above the crossover, while a server that is run
# for latency may never reach it. The slowest requests belong to the moments with the fullest batch, so the tail crosses
# somewhat earlier than the mean.
# </details>

# %% [markdown]
# ## What if the client goes away?
#
# Closing a browser tab is an everyday end of a long answer. A server that goes on generating for it wastes its steps,
# and worse, its blocks. [`Service`](../minispec/server/service.py) therefore aborts a request as soon as its connection is
# closed. The engine does that between two steps: what was computed for the request is dropped, and its blocks go
# back to the pool.

# %%
engine = ms.Engine(target, drafter, block_size=4, num_blocks=64, k=4)
gone, stays = (engine.add(prompt, max_new_tokens=32) for prompt in prompts[:2])
for _ in range(3):
    engine.step()
held = len(engine.pool.table(gone))
before = engine.pool.num_free
engine.abort(gone)
print("all of its blocks are back:", engine.pool.num_free - before == held > 0)
served = engine.run()
print({"gone": served[gone].finish_reason, "stays": served[stays].finish_reason})
print("the other output is what it would have been:", served[stays].tokens == plain_outputs[1])

# %% [markdown]
# The same holds for whatever else a server must not do: wait for a slow reader, let the queue grow without end, or take a
# request down together with another one. A full queue answers with status 429 and *Retry-After*, and while the server is
# shutting down it answers with 503, so that a load balancer goes elsewhere.
#
# ## `minispec serve`
#
# All of this is a command. It speaks OpenAI's API, so the tools of the trade work with it:
#
# ```sh
# pip install -c constraints.txt -e ".[serve]"
# minispec serve --model smollm2 --drafter eagle                     # http://127.0.0.1:8000/v1; it stays in this terminal
# # in a second terminal:
# curl http://127.0.0.1:8000/v1/completions -H "Content-Type: application/json" \
#      -d '{"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 32, "stream": true}'
# curl http://127.0.0.1:8000/metrics                                 # vLLM's names: queue, batch, TTFT, accepted tokens
# python -m benchmarks serve --rate 1 2 4 8 --ttft-target 500 --tpot-target 100   # milliseconds
# python -m benchmarks serve --sweep micro micro:model --rate 5 20 80      # starts both servers itself
# ```
#
# ```python
# from openai import OpenAI
# client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
# for part in client.chat.completions.create(model="smollm2", stream=True,
#                                            messages=[{"role": "user", "content": "Why is decoding slow?"}]):
#     print(part.choices[0].delta.content or "", end="")
# ```
#
# `python -m benchmarks serve --url …` measures any server that speaks this API. [Serving](../docs/serving.md) says how to go on
# to vLLM or SGLang with the same speculation, and what changes there.

# %% [markdown]
# ## In production
#
# **vLLM**'s scheduler has the draft tokens in `spec_token_ids`. It knows them when it plans a step, and
# `num_lookahead_tokens` reserves further slots for a drafter that keeps a cache of its own. The settings come as
# `speculative_config`, with a `method` (`ngram`, `draft_model`, `eagle3`, `medusa`, …) and `num_speculative_tokens`, our $k$.
# `num_speculative_tokens_per_batch_size` is a table of $k$ by batch size. `enable_adaptive_verification` profiles the cost
# of a step at start-up and chooses from it how many draft tokens are verified in all (lesson 15). Its metrics count drafts,
# draft tokens, accepted tokens, and accepted tokens per position. Look at these before you believe any speed-up.
#
# With **asynchronous scheduling** the host plans step $n + 1$ while step $n$ runs, before it knows what step $n$ accepts. It
# plans as if everything were accepted, reserves slots for that, and sends placeholders instead of tokens. The true tokens and
# lengths stay on the device, and when the result arrives, the host corrects `num_computed_tokens`.
#
# **Rollouts** of reinforcement learning are a load of their own. A batch begins full and ends with a few long answers, so
# drafts pay most at the end, where the time is lost. Meanwhile every update moves the policy away from the drafter, and
# acceptance falls unless the drafter is trained along or drafts from earlier rollouts.
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
# - Zhong et al., 2024: *DistServe: disaggregating prefill and decoding for goodput-optimized large language model serving*
#   ([arXiv:2401.09670](https://arxiv.org/abs/2401.09670)): goodput under targets for TTFT and TPOT.
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
#   length for a batch; latencies of a stream in bursts, goodput, an admission rule, abort and give back.
# - `minispec drill` asks `scheduler-integration`, `lookahead-slots`, `batch-effect`, `when-to-turn-off`, `win-or-hurt`,
#   `long-context-speculation`, `hybrid-rollback`, `async-scheduling`, `speculation-in-rl`.
# - [12 Fewer bytes](12_fewer_bytes.ipynb): if reading memory is the bottleneck, read less of it.
