# %% [markdown]
# # 03 Paged blocks
#
# *Time:* 50 minutes · *Before this:* [02 KV cache](02_kv_cache.ipynb) · *Practice:* [exercises 03](../exercises/03_paged_blocks.ipynb)
#
# A server keeps the KV caches of many requests in one memory. How many requests fit limits how many of them can share a
# forward pass, and while reading the weights is the cost, every further request in the pass makes a token cheaper. So
# this lesson asks where the memory goes, and how to waste little of it.
#
# You will be able to
#
# - tell internal from external fragmentation, with an example of each;
# - read a block table, and find any token of a request in memory;
# - compute what paging wastes, and say for which lengths "under 4 %" is true;
# - explain how requests share blocks by hash, and why a shared block is copied before it is changed.

# %%
import math

import torch

import minispec as ms
from minispec import theory
from minispec.serving.blocks import BlockPool, block_hash
from minispec.serving.paged import PagedKVCache
from minispec_course import viz
from minispec_course.labs import memory
from minispec_course.labs.memory import ContiguousPool

target = ms.load("micro", device="cpu")  # blocks are counted and bits compared, so on the CPU, also beside a GPU

# %% [markdown]
# ## What this lesson changes
#
# Both memories below have the same size and serve the same requests at the same moment. A colour is a request, and what
# is pale is reserved but empty. Look at how much is pale on the left, and at how many requests run on the right. The
# lesson goes from the left picture to the right one.

# %%
viz.memory_snapshot()

# %% [markdown]
# ## One contiguous piece per request
#
# The obvious way is to give every request one contiguous piece of memory. But how large should the piece be? How long
# an output becomes is known only when it ends, so a careful server reserves room for the longest sequence it allows.
# The part of the reservation that the sequence does not fill stays empty, and no other request can use it. This is
# **internal fragmentation**.
#
# As in lesson 02, a slot is the memory for the keys and values of one token. We measure waste as the share of the
# reserved slots that hold no token. If a sequence of $L$ tokens has a reservation of $R$ slots, then
#
# $$\text{waste} = \frac{R - L}{R} = 1 - \frac{L}{R}$$

# %%
for length in (2048, 1024, 512, 300):
    print(f"{length:5d} tokens in 2048 slots: {1 - length / 2048:.0%} empty")

# %% [markdown]
# ## Predict
#
# Now take a whole server. It has 32,768 slots and reserves 2,048 of them for each request. The prompts have 100 to
# 1,024 tokens and so do the outputs, with all lengths equally likely. 48 requests wait from the start. Once one of them
# is admitted, its prompt is stored within a few steps, and then it grows by one token per step. So a reservation is
# emptiest at its start.
#
# What share of the reserved slots holds no token, on average over the whole run?

# %% tags=["nbval-ignore-output"]
reserved_and_empty = viz.predict("What share of the reserved slots is empty?", "%")
reserved_and_empty

# %% [markdown]
# ## Run
#
# [`serve`](../minispec_course/labs/memory.py) needs no model. It lets the scheduler of lesson 04 serve the requests, and
# counts at every tenth step how many of the reserved slots hold a token.

# %% tags=["spoiler"]
requests = memory.workload(count=48)
# The pool counts its memory in blocks of 16 slots, 2,048 · 16 = 32,768 in all. What blocks are for comes below.
contiguous = memory.serve(ContiguousPool(num_blocks=2048, block_size=16, max_length=2048), requests)
final = sum(prompt + new for prompt, new in requests) / len(requests)
print(f"reserved and empty:      {contiguous['waste']:.1%}")
print(f"requests at a time:      {contiguous['most_running']} at most")
print(f"tokens when it finishes: {final:,.0f} of 2,048 on average")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler"]
reserved_and_empty.reveal(round(100 * contiguous["waste"]))

# %% [markdown]
# More than half of the reserved slots hold no token. Some of them are only not filled yet, because their sequence still
# grows. Most will never be filled: a finished sequence has 1,202 tokens on average (1,124 would be expected; these are
# only 48 samples), so about two fifths of a reservation stay empty to the end. (Kwon et al., whom we meet below, count
# the two kinds separately.) What this costs is not so much the memory as the batch size. A request that gets no memory
# has to wait, so fewer requests share each reading of the weights, and every token becomes more expensive.

# %% [markdown]
# ## Exact reservations do not solve it
#
# Suppose that every request announced how much it needs and got exactly that. Would this solve the problem? Here is a
# memory of 12 slots. Four requests take 3 slots each, and then the first and the third finish.

# %%
pool = ContiguousPool(num_blocks=12, block_size=1, max_length=12)
for name in "ABCD":
    pool.start(name, reserve=3)
pool.free("A")
pool.free("C")
print("slots in use:", {name: pool.table(name) for name in pool.tables})
print("free slots:", pool.num_free)
print("a request for 4 contiguous slots:", "refused" if pool.start("E", reserve=4) is None else "served")

# %% [markdown]
# Six slots are free, and yet a request for four is refused, because no gap is wide enough. This is **external
# fragmentation**: it lies between the reservations, while internal fragmentation lies inside them. If all reservations
# have the same size, there are no useless gaps, but then the waste inside is largest. One could move the requests
# together (compaction), but that would copy gigabytes while users wait.

# %% [markdown]
# ## Blocks and tables
#
# Operating systems had the same problem with the memory of processes, and they solved it with pages. The same idea for
# the KV cache is called PagedAttention (Kwon et al., 2023, arXiv:2309.06180). The memory is cut into small **blocks**
# of equal size, and blocks are handed out one at a time, wherever they lie. Each request has a **block table**, which
# lists its blocks in order. A request takes another block when its last one is full, and returns all of them when it
# ends.
#
# [`BlockPool`](../minispec/serving/blocks.py) keeps these tables. It needs three calls. `start` opens the table of a
# request and finds room for its prompt, `allocate` finds room for more tokens before a pass, and `commit` says after
# the pass which tokens the request now holds. Its argument is the whole list of tokens from the beginning, not only the
# new ones. (The pool needs them to recognise equal blocks; *Prefix caching* below says how.) Here B starts after A, and
# then A grows:

# %%
A, B = list(range(9)), [100, 101, 102]  # made-up tokens
pool = BlockPool(num_blocks=6, block_size=4)
pool.start("A", A[:6])  # a prompt of six tokens: two blocks
pool.start("B", B)
pool.commit("A", A[:6])
pool.commit("B", B)
pool.allocate("A", total=9)  # three more tokens: one more block
pool.commit("A", A)
for name in "AB":
    print(f"{name}: {pool.tables[name].length} tokens in blocks {pool.table(name)}")

# %% [markdown]
# The picture shows both sides of these tables. Above, each request counts its positions from 0, block after block. Below
# is the memory. An arrow is one entry of a table: follow position 8 of A to its block.

# %%
viz.block_arrows(pool)

# %% [markdown]
# The blocks of A are not neighbours, and they need not be, because the table finds every token with one lookup. With
# $s$ slots per block, the token at position $p$ is in
#
# $$\text{slot}(p) = \text{table}\left[\lfloor p / s \rfloor\right] \cdot s + p \bmod s$$
#
# [`BlockPool.slots`](../minispec/serving/blocks.py) computes it, and in the exercises you will write it yourself.

# %%
print("position:", *(f"{p:3d}" for p in range(9)))
print("slot:    ", *(f"{slot:3d}" for slot in pool.slots("A", 0, 9)))

# %% [markdown]
# External fragmentation is gone, because any free block serves any request. What remains is the empty end of each last
# block.
#
# Attention has to follow the table, too. [`PagedKVCache`](../minispec/serving/paged.py) holds the tensors, stores new
# keys and values in their slots and gathers the old ones from theirs. Before a pass, `open` tells it the block table of
# each sequence, how many tokens are cached, and how many are new. Does it compute the same as the contiguous cache of
# lesson 02? Here the same 11 tokens go through both, once contiguously and once in three scattered blocks:

# %%
tokens = torch.tensor([target.encode("The old dog was tired. He went to the")])
with torch.inference_mode():
    contiguous_cache = target.transformer.new_cache(batch=1, capacity=32)
    expected = target.transformer(tokens, contiguous_cache).logits
    paged_cache = PagedKVCache(target.config, num_blocks=8, block_size=4)
    one_pass = paged_cache.open(tables=[[5, 0, 7]], lengths=[0], counts=[tokens.shape[1]])
    found = target.transformer(tokens, one_pass).logits
print("tokens:", tokens.shape[1])
print("same logits:", torch.allclose(found, expected, atol=1e-3))
print("same next token:", bool(found[0, -1].argmax() == expected[0, -1].argmax()))

# %% [markdown]
# Paging does not make a single attention faster; following the table even costs a little. What it gives is room. Here
# are the same requests as above in the same memory, but in blocks of 16 slots:

# %% tags=["spoiler"]
paged = memory.serve(BlockPool(num_blocks=2048, block_size=16, enable_prefix_caching=False), requests)
print(f"{'':36}{'contiguous':>12}{'paged':>8}")
print(f"{'reserved and empty':36}{contiguous['waste']:>12.1%}{paged['waste']:>8.1%}")
print(f"{'requests running, on average':36}{contiguous['mean_running']:>12.1f}{paged['mean_running']:>8.1f}")
print(f"{'preemptions':36}{contiguous['preemptions']:>12}{paged['preemptions']:>8}")
print(f"{'forward passes until all are served':36}{contiguous['steps']:>12,}{paged['steps']:>8,}")

# %% [markdown]
# With paging about twice as many requests run at a time, so half as many passes serve them all. (A pass with more
# requests takes longer, so this is not a factor of two in time.) Paging has a price as well: because nothing is
# reserved, memory can run out while requests grow. Then one of them is **preempted**, that is, it loses its blocks and
# is computed again later; lesson 04 says how.

# %% [markdown]
# ## What paging wastes
#
# How much is the waste that remains? A sequence of $L$ tokens takes $\lceil L/s \rceil$ blocks and leaves
# $s \lceil L/s \rceil - L$ slots of the last one empty, which is anything from 0 to $s - 1$. Over sixteen consecutive
# lengths, every number of empty slots occurs once:

# %%
empty = [16 * math.ceil(length / 16) - length for length in range(100, 116)]
print("empty slots:", *empty)
print("on average: ", sum(empty) / len(empty))

# %% [markdown]
# So on average over any $s$ consecutive lengths, $e = (s - 1)/2$ slots stay empty, for short and for long sequences
# alike. We measure waste as before, as the share of the reserved slots that hold no token:
#
# $$\text{waste} = \frac{e}{L + e}, \qquad e = \frac{s - 1}{2}$$
#
# This is [`theory.block_waste`](../minispec/theory.py), an average over lengths around $L$. The post with which vLLM was
# launched in June 2023 says that paging wastes under 4 % in practice, and the figure is often quoted without a
# condition. For which lengths is it true?

# %% [markdown]
# ## Predict
#
# With blocks of 16 slots, from which length on is the average waste at most 4 %?

# %% tags=["nbval-ignore-output"]
long_enough = viz.predict("From which length on is the average waste at most 4 %?", "tokens")
long_enough

# %% [markdown]
# ## Run

# %% tags=["spoiler"]
for length in (20, 50, 100, 200, 500, 1000, 4000):
    print(f"L = {length:5,}: {theory.block_waste(length):6.2%} on average around it, at most {15 / (length + 15):6.2%}")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler"]
long_enough.reveal(next(length for length in range(1, 1000) if theory.block_waste(length) <= 0.04))

# %% [markdown]
# So "under 4 %" is a statement about lengths as much as about paging. A server of short chats wastes more, and one of
# long documents wastes next to nothing. (If you divide the empty slots by the *stored* tokens instead, you get a
# slightly larger number. Either is fine, as long as both sides of a comparison use the same one.)
#
# That length grows with the block size: $e/(L + e) = 0.04$ gives $L = 24 \, e$, which is proportional to $s - 1$. Why
# not take blocks of one slot, then? Tables and bookkeeping grow, and some attention kernels need larger blocks. It is
# possible, though: SGLang uses blocks of one token, unless the attention backend needs larger ones. Large blocks have
# another disadvantage besides waste, which the next section shows: they share less.

# %% [markdown]
# ## Prefix caching
#
# Many requests begin alike, with the same instructions, the same document or the same conversation so far. Their first
# blocks would hold the very same keys and values. Since requests find their blocks by a table, two of them can simply
# list the same block. A **reference count** per block says in how many tables it is. Reusing the blocks of an equal
# beginning is called **prefix caching**.
#
# How does a new request find such blocks? Each full block is registered under a hash of its tokens *and of the hash of
# the block before it*. The hash then stands for all tokens up to the end of the block. That is necessary, because keys
# and values depend on all tokens before them.

# %%
one = block_hash(b"", [1, 2, 3, 4])
after_one = block_hash(one, [7, 7, 7, 7])
print("same tokens, same beginning:   ", after_one == block_hash(block_hash(b"", [1, 2, 3, 4]), [7, 7, 7, 7]))
print("same tokens, another beginning:", after_one == block_hash(block_hash(b"", [9, 2, 3, 4]), [7, 7, 7, 7]))

# %% [markdown]
# [`match_prefix`](../minispec/serving/blocks.py) goes through a prompt block by block, up to the first hash that is not
# registered. It always leaves at least the last prompt token to be computed, even if every block is known. (Why? The
# last question of *Check yourself* comes back to it.)

# %%
instructions = list(range(10))
pool = BlockPool(num_blocks=12, block_size=4)
pool.start("A", [*instructions, 50, 51, 52])
pool.commit("A", [*instructions, 50, 51, 52])
known = pool.start("B", [*instructions, 60, 61, 62, 63])
pool.commit("B", [*instructions, 60, 61, 62, 63])
for name in "AB":
    print(name, pool.table(name))
print("tokens of B that need not be computed:", known)
print("tokens of both:", pool.stats().tokens, "· slots that hold them:", pool.stats().tokens_stored)

# %% [markdown]
# The instructions have 10 tokens, but only 8 of them are shared, because only **full** blocks are registered. Smaller
# blocks follow the common beginning more closely.
#
# Prefix caching saves memory, and it saves work. Below, the real engine serves eight prompts with a common beginning,
# first without and then with prefix caching. It processes fewer tokens and generates the same outputs.

# %%
beginning = "One day, a little girl named Lily went to the park with her mother and her small dog. "
prompts = [beginning + rest for rest in ("The dog", "Lily saw", "Her mother", "It was", "They", "Then", "She", "A boy")]
outputs = []
for caching in (False, True):
    engine = ms.Engine(target, num_blocks=128, block_size=4, max_num_seqs=2, enable_prefix_caching=caching)
    ids = [engine.add(prompt, max_new_tokens=8) for prompt in prompts]
    found = engine.run()
    outputs.append([found[id].tokens for id in ids])
    metrics = engine.metrics()
    processed, reused = metrics["totals"]["read"], metrics["blocks"]["prefix_tokens"]
    print(f"prefix caching {'on' if caching else 'off':>3}: {processed} tokens processed, {reused} found in the cache")
print("the same outputs:", outputs[0] == outputs[1])

# %% [markdown]
# Only two of the eight requests ran at a time. The first two started together, before any block was registered, so they
# shared nothing. Each of the other six found 20 tokens, in five full blocks, although the requests that had computed
# them were finished. A block that no request uses keeps its hash until its memory is needed for something else, so it
# is free and cached at the same time. When memory is needed, the block that has been unused for longest is overwritten
# first (**LRU eviction**).

# %% [markdown]
# ## Copy on write
#
# Sharing has one danger. Suppose you want two outputs for one prompt. The second request is forked from the first: it
# gets a table of its own with the same blocks, and nothing is copied.

# %%
pool = BlockPool(num_blocks=6, block_size=4)
prompt = [1, 2, 3, 4, 5, 6]
pool.start("A", prompt)
pool.commit("A", prompt)
pool.fork("A", "B")
print("A", pool.table("A"), " B", pool.table("B"), " reference counts", pool.refcount)

# %% [markdown]
# The second block is half full, and both requests are about to store their own seventh token in the same slot.
# Therefore a request that wants to change a shared block first gets a copy of it. This is **copy on write**. `allocate`
# returns the copies that the tensors must make before the pass, as pairs (from, to).

# %%
print("B needs its next slot, copies:", pool.allocate("B", total=7))
print("A", pool.table("A"), " B", pool.table("B"), " reference counts", pool.refcount)
print("A needs its next slot, copies:", pool.allocate("A", total=7))

# %% [markdown]
# B got a block of its own. After that, A was the only request with the old block and could change it in place. The full
# block before it stays shared, because its tokens are final. (Draft tokens are not final, so a block is registered only
# when all of its tokens are verified; lesson 11 comes back to that.) So a fork costs one copied block at most, however
# long the prompt is.
#
# If the copy is forgotten, B overwrites a token of A. Nothing crashes, but one user's output now depends on another
# user's tokens. That is why [`BlockPool.check_integrity`](../minispec/serving/blocks.py) recounts all references and blocks, and
# why the tests call it after every step.

# %% [markdown]
# ## Play: the memory map
#
# The map shows both kinds of memory side by side at every step. Scheduler and pools are the real ones. Only the model is
# left out: the tokens and lengths of all requests are fixed in advance. (A test compares the map with the real engine,
# step by step.) Press play, or use the arrow keys.

# %% tags=["nbval-ignore-output"]
viz.memory_map()

# %% [markdown]
# Two tasks:
#
# 1. Let *contiguous reserve what each request announces*, and step until a request waits although enough slots are free
#    in sum. The sentence below the map says when that happens.
# 2. Compare block sizes 4 and 16 at the same step: how much is wasted, and how many blocks are shared?

# %% [markdown]
# ## In production
#
# **vLLM** introduced paging to this field. Its `block_size` is 16 by default on most GPUs. `gpu_memory_utilization` is
# the share of the card that vLLM may use in all, and the pool gets what weights and working memory leave of it.
# `max_model_len` limits the length of a request, but nothing is reserved for it. Its pool is called `BlockPool` as well,
# and `enable_prefix_caching` uses chained hashes as we do here. In its V1 engine (as of August 2026, for models with
# ordinary attention layers) several samples of one prompt are separate requests that find each other's *full* blocks by
# hash. Each of them computes the half-full last block for itself, so no shared block is ever changed and no copy on
# write is needed. The version of the paper had it.
#
# **SGLang** keeps prefixes in a radix tree (RadixAttention; Zheng et al., 2024, arXiv:2312.07104). With pages of one
# token, its default where the attention backend allows it, it shares prefixes token by token (all but the last prompt
# token, which is always computed) and leaves no slots empty at the end.
#
# In both, the attention kernels take the table as an argument (`block_table` in FlashAttention, page indices in
# FlashInfer), so they need no separate gather, unlike our plain version.
#
# Prefix caching between customers has a side channel: the response time reveals whether somebody else has sent the same
# beginning before. vLLM therefore lets a request bring a `cache_salt`, which goes into the first hash, so that only
# requests with the same salt share blocks.

# %% [markdown]
# ## Check yourself
#
# <details><summary>Which kind of fragmentation does paging remove, and which does it only reduce?</summary>
#
# External fragmentation is gone, because every free block fits. Internal fragmentation shrinks to the last block of
# each request, $(s - 1)/2$ slots on average.
# </details>
#
# <details><summary>Blocks have 16 slots and two prompts have a common beginning of 100 tokens. How many tokens can the second
# request share?</summary>
#
# It can share 96, which are six full blocks. The other four tokens are in a block that continues differently in each
# request.
# </details>
#
# <details><summary>A prompt of exactly 32 tokens is sent twice, with blocks of 16. Why does the second request share
# 16 tokens and not 32?</summary>
#
# The distribution of the first new token comes from the pass over the last prompt token, so at least one token has to
# be computed. Blocks are shared as a whole, so the whole last block is computed again.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Kwon et al., 2023: *Efficient memory management for large language model serving with PagedAttention*
#   ([arXiv:2309.06180](https://arxiv.org/abs/2309.06180)): block tables, sharing and copy-on-write, with measurements
#   of the waste.
# - vLLM team, 2023: *vLLM: easy, fast, and cheap LLM serving with PagedAttention* ([blog, June
#   2023](https://blog.vllm.ai/2023/06/20/vllm.html)): the launch post, where the figure of 4 % comes from.
# - Zheng et al., 2024: *SGLang: efficient execution of structured language model programs*
#   ([arXiv:2312.07104](https://arxiv.org/abs/2312.07104)): prefix caching organised as a radix tree.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - [Exercises 03](../exercises/03_paged_blocks.ipynb): find a slot, allocate for a pass, copy on write, match a prefix.
# - `minispec drill` asks `fragmentation`, `paged-attention`, `block-waste`, `copy-on-write`, `prefix-caching`.
# - [04 Continuous batching](04_continuous_batching.ipynb): now that many requests fit, which of them run in the next
#   pass?
