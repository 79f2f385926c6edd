# %% [markdown]
# # 11 Speculation in a server
#
# *Time:* 45 minutes · *Before this:* [04 continuous batching](04_continuous_batching.ipynb), [07 how fast](07_how_fast.ipynb), [10 EAGLE](10_eagle_and_dflash.ipynb) · *Practice:* [exercises 11](../exercises/11_speculation_in_a_server.ipynb)
#
# So far speculative decoding had the machine to itself. Now the chatbot has many users: their caches are cut into blocks
# (lesson 03), and one forward pass serves all of them (lesson 04). The number on the dashboard that this lesson moves is
# **tokens per second with many users**, this time with drafts in the batch.
#
# Two questions are new. Where do the keys and values of a draft token go, before it is known whether it is accepted? And
# what happens to their blocks when it is not? You write both answers, then a server that speculates for several users
# on them.
#
# You will be able to
#
# - plan a forward pass with draft tokens in it, and say what lookahead slots are;
# - roll a block table back after a rejection without hurting requests that share its blocks;
# - say what prefix caching needs once a drafter builds on hidden states.

# %%
import time

import torch

import minispec as ms
from minispec.serving.paged import PagedKVCache, bytes_per_block
from minispec_course import viz
from minispec_course.check import mine, yours
from minispec_course.labs.batching import endless
from minispec_course.labs.pairs import STORIES, course_pair, where

greedy_verify = mine("05.greedy_verify")  # yours, if you wrote it
target = endless(ms.load("micro", device="cpu", dtype=torch.float64))  # endless: we decide how long an output gets
small = endless(ms.load("micro-draft", device="cpu"))

# %% [markdown]
# ## One number for the scheduler
#
# In lesson 04 the scheduler looked at one number per request: how many of its tokens have not been processed. A new request
# lacks its whole prompt, and one that is decoding lacks a single token. A draft of $k$ tokens makes that $1 + k$, because
# the target has to run on the last emitted token and on every draft token.
#
# $$\text{tokens to process} = \underbrace{\text{num\_tokens} + \text{draft tokens}}_{\text{num\_tokens\_with\_spec}} -
# \text{num\_computed\_tokens}$$
#
# The names are vLLM's. Prefill, decoding and verification are the same kind of work to a scheduler: there is no
# "speculative mode".
#
# ## Slots for tokens that do not exist yet
#
# A pass stores keys and values for every token it runs on, draft tokens included. So their slots in the cache must exist
# before the pass begins, and our engine reserves them even before the drafter has run. They are called **lookahead
# slots** (no relation to the drafter of lesson 08). The picture follows one request through a step. Look at block 2: it is taken for draft tokens, and it goes back
# when they are rejected.

# %%
viz.engine_step(prompt=6, k=4, accepted=1, block_size=4)

# %% [markdown]
# ### Yours: lookahead slots
#
# A request has `num_tokens` tokens, of which `num_computed` are in the cache. It may grow to `max_tokens`, prompt and output
# together, and its table has `num_blocks` blocks of `block_size` slots. Return how many slots the next pass fills in all
# (tokens that are not computed yet, plus a draft of up to `k`), and how many fresh blocks the table needs for that, 0 if it is
# long enough.
#
# Mind the end of an output: a pass emits one token more than it accepts, so a request that may still emit two tokens can use
# one draft token, not two. One that has reached `max_tokens` drafts nothing.


# %%
@yours("11.lookahead_slots")
def lookahead_slots(
    num_tokens: int, num_computed: int, k: int, max_tokens: int, block_size: int, num_blocks: int
) -> tuple[int, int]:
    """How many slots a pass with a draft fills, and how many blocks have to be allocated for it."""
    ### BEGIN SOLUTION: how many draft tokens can be used? what does the pass process? how far must the table reach?
    can_be_used = max(0, max_tokens - num_tokens - 1)  # one of the tokens that are left is the target's own
    with_spec = num_tokens + min(k, can_be_used)
    needed = -(-with_spec // block_size)
    return with_spec - num_computed, max(0, needed - num_blocks)
    ### END SOLUTION


# %% [markdown]
# A request with 7 tokens, 6 of them in the cache in two blocks of 4, drafts 4 tokens; then the same request two tokens
# before its end:

# %%
for room in (10, 2):
    slots, fresh = lookahead_slots(7, 6, k=4, max_tokens=7 + room, block_size=4, num_blocks=2)
    print(f"{room:2} tokens may still come: {slots} slots, fresh blocks: {fresh}")

# %% [markdown]
# ## The way back
#
# The target accepted one draft token of four. What has to be undone? No key is erased. The request's `num_computed` is set
# to what is verified, and blocks after that go back to the pool. Rejected keys in the last block that stays lie beyond
# the cached tokens, where attention does not look, and the next pass overwrites them. So **rollback** is the rewind of
# lesson 05: a subtraction, plus blocks to return.
#
# One thing is new: a block may be in several tables, because users share the blocks of a common prompt.
#
# ### Yours: rollback
#
# `refcount[b]` says how many tables hold block b. Keep the first `length` tokens (perhaps 0). Return the shorter table, the
# counts, and the blocks that no table holds any more, the last one first. You may change both lists in place.


# %%
@yours("11.rollback")
def rollback(
    table: list[int], refcount: list[int], block_size: int, length: int
) -> tuple[list[int], list[int], list[int]]:
    """Cut a table back to the first `length` tokens: it, the counts, and the blocks that are free now."""
    ### BEGIN SOLUTION: which blocks stay? what does each of the others lose, and when is it free?
    stays = -(-length // block_size)
    dropped = table[stays:][::-1]
    for block in dropped:
        refcount[block] -= 1
    return table[:stays], refcount, [block for block in dropped if refcount[block] == 0]
    ### END SOLUTION


# %% [markdown]
# Block 5 below is shared. Rolled back to 8 tokens, only the lookahead block is free; rolled back to none, as when a request
# ends, block 5 stays with its other owner:

# %%
for length in (8, 0):
    table, counts, freed = rollback([5, 1, 2], [0, 1, 1, 0, 0, 2], block_size=4, length=length)
    print(f"{length} tokens kept: table {table}, free again {freed}, owners of block 5: {counts[5]}")

# %% [markdown]
# ## Your server
#
# Here is a server with drafts, smaller than lesson 04's: no token budget, every prompt in one go, and a draft model without a
# cache. In every step your `lookahead_slots` says what to allocate, the small model drafts, one pass of the target runs on
# everything, your `greedy_verify` from lesson 05 judges each draft, and your `rollback` gives back what was reserved but not
# used. `known` is a prefix cache: it names each full block by all tokens up to its end. Unlike lesson 03's, it forgets a block
# when its last user leaves.


# %%
class Request:
    def __init__(self, prompt: list[int], new: int):
        self.tokens, self.end = list(prompt), len(prompt) + new
        self.computed, self.table = 0, []  # tokens in the cache, and the blocks that hold them


class Server:
    def __init__(self, num_blocks: int = 128, block_size: int = 4):
        self.cache = PagedKVCache(target.config, num_blocks, block_size, dtype=target.dtype)
        self.free, self.refcount, self.size = list(range(num_blocks)), [0] * num_blocks, block_size
        self.known = {}  # all tokens up to the end of a full block → that block

    def admit(self, r: Request) -> None:
        """Begin with the blocks that hold the beginning of its prompt. The last token is always processed."""
        for end in range(self.size, len(r.tokens), self.size):
            if (block := self.known.get(tuple(r.tokens[:end]))) is None:
                break
            r.table.append(block)
            self.refcount[block] += 1
            r.computed = end

    def trim(self, r: Request, length: int) -> None:
        r.table, self.refcount, freed = rollback(r.table, self.refcount, self.size, length)
        self.free += freed
        self.known = {tokens: block for tokens, block in self.known.items() if block not in freed}

    @torch.inference_mode()
    def step(self, requests: list[Request], k: int) -> None:
        drafts = []
        for r in requests:
            slots, fresh = lookahead_slots(len(r.tokens), r.computed, k, r.end, self.size, len(r.table))
            for _ in range(fresh):
                r.table.append(self.free.pop(0))
                self.refcount[r.table[-1]] = 1
            room = slots - (len(r.tokens) - r.computed)
            drafts.append(ms.generate(small, r.tokens, room).tokens if room else [])
        new = [r.tokens[r.computed :] + draft for r, draft in zip(requests, drafts, strict=True)]
        counts = [len(tokens) for tokens in new]
        rows = self.cache.open([r.table for r in requests], [r.computed for r in requests], counts)
        logits = (
            target.transformer(torch.tensor([[token for tokens in new for token in tokens]]), rows)
            .logits[0]
            .split(counts)
        )
        for r, draft, some in zip(requests, drafts, logits, strict=True):
            accepted, token = greedy_verify(some[-len(draft) - 1 :], draft)
            r.computed = len(r.tokens) + accepted  # the last token that is emitted is in no cache yet
            r.tokens += [*draft[:accepted], token]
            self.trim(r, r.computed if len(r.tokens) < r.end else 0)  # an output that is complete holds nothing
            for end in range(self.size, len(r.table) * self.size + 1, self.size):
                if end <= r.computed:
                    self.known[tuple(r.tokens[:end])] = r.table[end // self.size - 1]


# %% [markdown]
# Four users come, one per step. All of them begin with the same opening, and each output has 32 tokens. Without drafts:


# %%
def serve(texts: list[str], k: int, new: int = 32) -> tuple[list[list[int]], int, int]:
    """Outputs, steps, and how many prompt tokens were found in blocks of other users."""
    server, steps, found = Server(), 0, 0
    coming = [Request(target.encode(text), new) for text in texts]
    everyone, active = list(coming), []
    while coming or active:
        if coming:
            active.append(coming.pop(0))
            server.admit(active[-1])
            found += active[-1].computed
        server.step(active, k)
        steps, active = steps + 1, [r for r in active if len(r.tokens) < r.end]
    assert len(server.free) == len(server.refcount), "a block was lost"
    return [r.tokens[-new:] for r in everyone], steps, found


SYSTEM = "Once upon a time there was a girl named Lily. She had a dog and a cat, and they played in the garden. "
texts = [SYSTEM + ask for ask in ("One day", "The dog", "Then the cat", "Her mother")]
plain, steps, found = serve(texts, k=0)
alone = [ms.generate(target, text, 32).tokens for text in texts]
print(f"{steps} steps, {found} prompt tokens shared, outputs as if alone: {plain == alone}")

# %% [markdown]
# Now with drafts of four tokens. Each user gets between one and five tokens per step, and the server is done when the last
# of the four is complete.

# %% tags=["nbval-ignore-output"]
fewer = viz.predict("How many steps with drafts of four tokens?", "steps")
fewer

# %% tags=["spoiler"]
results = {k: serve(texts, k) for k in (4, 2)}
for k, (outputs, steps, found) in results.items():
    print(f"k = {k}: {steps} steps, {found} prompt tokens shared, the same outputs: {outputs == plain}")

# %% tags=["spoiler", "nbval-ignore-output"]
fewer.reveal(results[4][1])

# %% [markdown]
# Fewer than half the steps, the same tokens, and every block is back in the pool. That is a paged, continuously batched,
# speculating server in about fifty lines, and its memory management is yours.
#
# **Only verified tokens may be named.** `known` is filled after the verdict. If a block got its name before, it would name
# draft tokens. After a rejection the next pass overwrites those slots, and a user who finds the old name would get keys and
# values of other tokens: fluent and wrong, and only for users whose prompt happens to match.
#
# ## When memory is short
#
# In lesson 04 a request that needed a block could preempt another one. Should a draft token be able to do that? Preemption
# throws away finished work, and a draft token may be worth nothing. So our
# [`Scheduler`](../minispec/serving/scheduler.py) hands out lookahead slots last. If four do not fit, it tries three, then
# two, then one, then none: memory pressure shortens drafts before it costs anything else. vLLM treats draft tokens like
# any others, so there a draft can cause a preemption.
#
# ## Prefix caching with heads
#
# An EAGLE head (lesson 10) drafts from the target's hidden states, one per position. Now a user's prompt is found in the
# prefix cache. The target skips those positions, and that is the point of the cache. But then it computes **no hidden
# states** there either, and the head needs them.
#
# Our engine stores the states in the same slots as keys and values, so whoever shares a block shares its states. Below, the
# four users come one after another, once as it should be, and once in an engine that loses the states of every block it
# reuses.


# %%
def through_the_cache(lose_states: bool) -> tuple[list[list[int]], float]:
    """The outputs, and the tokens per forward pass of the users after the first."""
    engine = ms.Engine(target, ms.drafters.Eagle(target, tree=False), num_blocks=128, block_size=4, k=4)
    outs = []
    for text in texts:
        if lose_states:
            engine.runner.cache.states.zero_()
        outs += engine.generate([text], max_new_tokens=32, progress=False)
    cycles = [cycle for out in outs[1:] for cycle in out.trace.cycles]
    return [out.tokens for out in outs], sum(cycle.accepted + 1 for cycle in cycles) / len(cycles)


kept, lost = through_the_cache(False), through_the_cache(True)
print(f"tokens per pass: {kept[1]:.2f}; with lost states {lost[1]:.2f}; the same outputs: {kept[0] == lost[0]}")
layers = ms.drafters.Eagle(target).hidden_layers
print(f"bytes per block: {bytes_per_block(target, 4):,}; with the states of {len(layers)} layers", end=" ")
print(f"{bytes_per_block(target, 4, layers):,}")

# %% [markdown]
# As in lesson 10, no output tells you: only the tokens per pass fall, here by a tenth. The price of keeping the states is
# memory, and for a model as shallow as `micro` it is high: 75 % (an 8B model of 32 layers: about 19 %). vLLM pays differently.
# Its head has a KV cache of its own, which is cached with the same blocks. The head pairs the state at position $i$ with
# token $i + 1$, so for its first draft only the newest state is missing. To get it, vLLM drops the last block that matched
# and processes its tokens once more.
#
# ## The dashboard
#
# Does the server gain? minispec's own [`Engine`](../minispec/serving/engine.py) does the same as yours (on a GPU its passes are
# captured as CUDA graphs). We serve eight users on your device: plainly, with a fixed $k = 4$, and with $k$ left to the engine.

# %% tags=["nbval-ignore-output"]
quick, quick_draft = course_pair(ms.device())
quick = endless(quick)
print(f"{quick.name} on {where(quick.device)}")
gain_guess = viz.predict("Eight users, k = 4: how many times the tokens per second of the plain server?", "times")
gain_guess


# %% tags=["spoiler", "nbval-ignore-output"]
def tokens_per_second(engine) -> float:
    start = time.perf_counter()
    outs = engine.generate(STORIES["stories"], max_new_tokens=40, progress=False)
    return sum(len(out.tokens) for out in outs) / (time.perf_counter() - start)


engines = [ms.Engine(quick, num_blocks=256)]
engines += [ms.Engine(quick, ms.drafters.Model(quick_draft), num_blocks=256, **k) for k in ({"k": 4}, {})]
rounds = [[tokens_per_second(engine) for engine in engines] for _ in range(3)]  # in turn; the first round warms up
plainly, fixed, chosen = map(max, zip(*rounds, strict=True))
print(f"tokens per second: plain {plainly:.0f}, k = 4 {fixed:.0f}, k chosen by the engine {chosen:.0f}")

# %% tags=["spoiler", "nbval-ignore-output"]
gain_guess.reveal(round(fixed / plainly, 2))

# %% tags=["spoiler", "nbval-ignore-output"]
viz.dashboard("11", tokens_per_second=max(plainly, fixed, chosen), users=8)

# %% [markdown]
# In our runs on two CPU cores the fixed $k$ lost: eight users keep the arithmetic units busy, and draft tokens have to compete for
# them (lesson 07, *A full machine*). The steps saved did not pay for the longer ones. How a server notices, and when it
# should stop drafting, is the subject of the next lesson.
#
# <details><summary>Go deeper: trees, recurrent layers, and a client that goes away</summary>
#
# A **tree** of draft tokens needs one more step before the rollback: the accepted path is compacted, because its nodes
# need not lie in neighbouring slots.
#
# A **recurrent layer** (Mamba, gated delta net) has one state per sequence instead of a key per token. After a pass it
# contains the rejected tokens, and no subtraction takes them out. Engines keep a checkpoint of the state for each of the
# $k + 1$ positions, or recompute the accepted tokens from the state before the draft (lesson 15b).
#
# When a **client closes the connection**, the server aborts the request between two steps: that is a rollback to length 0.
# A server that forgets this keeps generating for no one, and its blocks are lost to everyone else. You can write this in
# [exercises 11](../exercises/11_speculation_in_a_server.ipynb).
# </details>

# %% [markdown]
# ## In production
#
# | here | vLLM |
# |---|---|
# | drafter, $k$ | `speculative_config`: `method`, `num_speculative_tokens` (SGLang: `speculative_algorithm`, `speculative_num_steps`) |
# | lookahead slots | draft tokens are known when a step is planned (`spec_token_ids`); `num_lookahead_tokens` are for the drafter |
# | surplus blocks after a rejection | stay with the request, which soon needs them |
#
# In the metrics, watch the accepted tokens per position.
#
# With **asynchronous scheduling** the host plans step $n + 1$ while step $n$ runs. It plans as if every draft token were
# accepted and corrects `num_computed_tokens` when the verdict arrives.
#
# Try the command: `minispec serve --model smollm2 --drafter eagle` speaks OpenAI's API. [Serving](../docs/serving.md) has its
# options.

# %% [markdown]
# ## Check yourself
#
# <details><summary>A request has 40 tokens, 39 of them computed, and a draft of four. How many tokens does the next pass
# process for it, and what is in the cache if the second draft token is rejected?</summary>
#
# Five: the last emitted token and four draft tokens. Afterwards 41 tokens are in the cache: the 39, the last emitted token and
# one accepted draft token. The sequence has 42 tokens, because the correction was emitted and has not been processed.
# </details>
#
# <details><summary>Why does our scheduler reserve slots before it knows the draft?</summary>
#
# The pass stores the draft tokens' keys and values, so their slots must exist when it runs. How many tokens the drafter
# proposes is known only after it has run. Slots that were reserved but not used go back after the
# pass.
# </details>
#
# <details><summary>Two users share the blocks of their prompt. One of them ends. What happens to its blocks?</summary>
#
# Each loses one from its count. Blocks of its own output reach 0 and are free; the shared ones stay with the other user.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Kwon et al., 2023: *Efficient memory management for large language model serving with PagedAttention*
#   ([arXiv:2309.06180](https://arxiv.org/abs/2309.06180)): block tables, sharing, and what a server loses without them.
# - Miao et al., 2024: *SpecInfer: accelerating generative LLM serving with tree-based speculative inference and
#   verification* ([arXiv:2305.09781](https://arxiv.org/abs/2305.09781)): a serving system built around speculation.
# - Su, Giannoula, Pekhimenko, 2023: *The synergy of speculative decoding and batching in serving large language models*
#   ([arXiv:2310.18813](https://arxiv.org/abs/2310.18813)): the best draft length measured against batch size.
#
# All papers: [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - [11b Under load](11b_under_load.ipynb): requests arrive over time, and speculation has to earn its place.
# - [Exercises 11](../exercises/11_speculation_in_a_server.ipynb): an admission rule, abort and give back.
# - `minispec drill` asks `scheduler-integration`, `lookahead-slots`, `prefix-hits-without-hidden-states`,
#   `hybrid-rollback`, `async-scheduling`.
