# %% [markdown]
# # Paged blocks
#
# *Time:* 35 minutes · *Before this:* [02 KV cache](02_kv_cache.ipynb) · *Practice:* [exercises 03](../exercises/03_paged_blocks.ipynb)
#
# A server keeps the keys and values of many requests in one memory. How many requests fit decides how many share a
# pass, and that decides what a token costs. So the question of this lesson is a humble one: where does all the memory
# go?
#
# You will be able to
#
# - tell internal from external fragmentation, with an example of each;
# - read a block table, and find any token of a request in memory;
# - compute what paging wastes, and say for which lengths "under 4 %" is true;
# - explain how requests share blocks by hash, and why a writer copies first.

# %%
import torch

import minispec as ms
from minispec import theory
from minispec.bench import memory
from minispec.bench.memory import ContiguousPool
from minispec.cache import KVCache
from minispec.course import viz
from minispec.course.viz import recorder
from minispec.serving.blocks import BlockPool, block_hash
from minispec.serving.paged import PagedKVCache

target = ms.load("micro", device="cpu")

# %% [markdown]
# ## One run of memory per request
#
# The obvious way: every request gets one piece of memory in a row. But how long a piece? Nobody knows how long a text
# will become until it ends. To be safe, the server reserves for the longest text it allows. What a text does not
# fill is empty, and nobody else may have it. This is **internal fragmentation**.
#
# $$\text{waste} = 1 - \frac{L}{\text{reserved}}$$

# %%
for length in (2048, 1024, 512, 300):
    print(f"{length:5d} tokens in 2048 slots: {theory.contiguous_waste(length, 2048):.0%} empty")

# %% [markdown]
# ## Predict
#
# Now a whole server. It has 32,768 slots and reserves 2,048 of them for each request. Prompts have 100 to 1,024 tokens,
# answers too, all lengths equally likely. Texts grow while they run: a reservation is emptiest at its start.
#
# What part of the reserved memory holds nothing, on average over the whole run?

# %% tags=["nbval-ignore-output"]
reserved_and_empty = viz.predict("How much of the reserved memory is empty?", "%")
reserved_and_empty

# %% [markdown]
# ## Run
#
# [`serve`](../minispec/bench/memory.py) needs no model. It lets the scheduler of lesson 04 serve the requests, one token
# a step, and asks the pool every tenth step how many of its slots hold a token.

# %% tags=["spoiler"]
requests = memory.workload(count=48)
contiguous = memory.serve(ContiguousPool(2048, 16, max_length=2048), requests)
print(f"reserved and empty:     {contiguous['waste']:.1%}")
print(f"requests at a time:     {contiguous['most_running']} at most")
print(f"steps until all served: {contiguous['steps']:,}")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler"]
reserved_and_empty.reveal(round(100 * contiguous["waste"]))

# %% [markdown]
# More than half of a very expensive memory is kept free for texts that never come. The price is not the memory itself.
# It is the batch: whoever has no memory does not run, and the pass over the weights is shared by fewer.

# %% [markdown]
# ## Made to measure is no way out
#
# Suppose every request said how much it needs, and got exactly that. Here is a memory of 12 blocks (never mind the
# block size; think of 12 seats in a row). Four requests take 3 seats each. Then the first and the third leave.

# %%
pool = ContiguousPool(num_blocks=12, block_size=1, max_length=12)
for name in "ABCD":
    pool.start(name, reserve=3)
pool.free("A")
pool.free("C")
print("tables:", {name: pool.table(name) for name in pool.tables})
print("free blocks:", pool.num_free)
print("a request for 4 in a row:", "refused" if pool.start("E", reserve=4) is None else "served")

# %% [markdown]
# Six are free and four are refused: no gap is wide enough. This is **external fragmentation**. It lies between the
# reservations; internal fragmentation lies inside them. Equal reservations leave no odd gaps, but they waste most
# inside. Moving everybody together (compaction) would copy gigabytes while users wait.

# %% [markdown]
# ## Blocks and tables
#
# Operating systems met this problem long ago. Their answer is the page: cut memory into small equal **blocks**, hand
# them out one at a time, wherever they lie, and keep a **table** per request that says which block comes first, second,
# third. A request takes the next block when the last one is full. At its end it gives all of them back.

# %%
pool = BlockPool(num_blocks=6, block_size=4)
pool.start("A", tokens=range(6))
pool.start("B", tokens=range(100, 103))
pool.commit("A", list(range(6)))
pool.commit("B", list(range(100, 103)))
pool.allocate("A", total=9)  # A grows: three more tokens, so one more block
pool.commit("A", list(range(9)))
for name in "AB":
    print(f"{name}: {pool.tables[name].length} tokens in blocks {pool.table(name)}")

# %% [markdown]
# A's blocks are not neighbours, and nobody minds. The token at position $p$ is found by one lookup. With $s$ slots per
# block:
#
# $$\text{slot}(p) = \text{table}\left[\lfloor p / s \rfloor\right] \cdot s + p \bmod s$$
#
# [`BlockPool.slots`](../minispec/serving/blocks.py) computes it. You will write it yourself in the exercises.

# %%
print("position:", *(f"{p:3d}" for p in range(9)))
print("slot:    ", *(f"{slot:3d}" for slot in pool.slots("A", 0, 9)))

# %% [markdown]
# External fragmentation is gone: any free block fits anybody. All that is left is the end of each last block.
#
# The attention has to follow the table, too. [`PagedKVCache`](../minispec/serving/paged.py) holds the tensors, writes new keys
# to their slots and gathers the old ones from theirs. The same tokens through the contiguous cache of lesson 02 and
# through scattered blocks:

# %%
tokens = torch.tensor([target.encode("The old dog was tired. He went to the")])
with torch.inference_mode():
    plain = KVCache(target.config, batch=1, capacity=32)
    expected = target.transformer(tokens, plain).logits
    paged = PagedKVCache(target.config, num_blocks=8, block_size=4)
    one_pass = paged.open(tables=[[5, 0, 7, 2]], lengths=[0], counts=[tokens.shape[1]])
    found = target.transformer(tokens, one_pass).logits
print("tokens:", tokens.shape[1])
print("same logits:", torch.allclose(found, expected, atol=1e-3))
print("same next token:", bool(found[0, -1].argmax() == expected[0, -1].argmax()))

# %% [markdown]
# Paging does not make a single attention faster; the gather costs a little. It makes room. The same requests as
# above, the same memory, in blocks of 16:

# %%
paged = memory.serve(BlockPool(2048, 16, enable_prefix_caching=False), requests)
print(f"{'':24}{'contiguous':>12}{'paged':>8}")
print(f"{'in use and empty':24}{contiguous['waste']:>12.1%}{paged['waste']:>8.1%}")
print(f"{'requests at a time':24}{contiguous['most_running']:>12}{paged['most_running']:>8}")
print(f"{'steps until all served':24}{contiguous['steps']:>12,}{paged['steps']:>8,}")

# %% [markdown]
# ## What paging wastes
#
# A text of $L$ tokens leaves $-L \bmod s$ slots of its last block empty: anything from 0 to $s - 1$. Over sixteen
# lengths in a row, every remainder occurs once.

# %%
empty = [theory.wasted_slots(length, block=16) for length in range(100, 116)]
print("empty slots:", *empty)
print("on average: ", sum(empty) / len(empty))

# %% [markdown]
# So a request wastes $(s - 1)/2$ slots on average, whatever its length. Per token stored that is
#
# $$\frac{(s - 1)/2}{L}$$
#
# and this is [`theory.block_waste`](../minispec/theory.py). A guide that is often quoted says of paging: under 4 %
# waste. It does not say of which texts.

# %% [markdown]
# ## Predict
#
# Blocks of 16. From which length on is the average waste below 4 %?

# %% tags=["nbval-ignore-output"]
long_enough = viz.predict("Below 4 % from how many tokens on?", "tokens")
long_enough

# %% [markdown]
# ## Run

# %% tags=["spoiler"]
for length in (20, 50, 100, 200, 500, 1000, 4000):
    print(f"L = {length:5,}: {theory.block_waste(length):6.2%} on average, at most {15 / length:6.2%}")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler"]
first = next(length for length in range(1, 1000) if theory.block_waste(length) < 0.04)
long_enough.reveal(first)

# %% [markdown]
# "Under 4 %" is a statement about lengths, not about paging. A chat of short answers wastes more; long documents waste
# next to nothing. And it is a statement about the block size:

# %%
print("waste at L = 200:", {block: f"{theory.block_waste(200, block):.1%}" for block in (1, 8, 16, 32, 128)})

# %% [markdown]
# Why not blocks of one slot, then? Tables grow long, every lookup is a jump, and a GPU reads best in long rows. Large
# blocks also share less, as you are about to see.

# %% [markdown]
# ## Sharing
#
# Many requests begin alike: the same instructions, the same document, the same chat so far. Their first blocks would
# hold the very same numbers. With tables, two requests can simply point to the same block. A **reference count** per
# block says in how many tables it is.
#
# To be found, a full block gets a name: the hash of its tokens *and of the name of the block before it*. The name then
# stands for everything up to the block's end, and it must: keys and values depend on all tokens before them.

# %%
one = block_hash(b"", [1, 2, 3, 4])
after_one = block_hash(one, [7, 7, 7, 7])
print("same tokens, same beginning:   ", after_one == block_hash(block_hash(b"", [1, 2, 3, 4]), [7, 7, 7, 7]))
print("same tokens, another beginning:", after_one == block_hash(block_hash(b"", [9, 2, 3, 4]), [7, 7, 7, 7]))

# %% [markdown]
# [`match_prefix`](../minispec/serving/blocks.py) walks through a prompt block by block, until a name is unknown.

# %%
instructions = list(range(10))
pool = BlockPool(num_blocks=12, block_size=4)
pool.start("A", [*instructions, 50, 51, 52])
pool.commit("A", [*instructions, 50, 51, 52])
known = pool.start("B", [*instructions, 60, 61, 62, 63])
pool.commit("B", [*instructions, 60, 61, 62, 63])
for name in "AB":
    print(name, pool.table(name))
print("tokens of B that need no computing:", known)
print("tokens seen:", pool.stats().tokens, "· slots that hold them:", pool.stats().tokens_stored)

# %% [markdown]
# The instructions have 10 tokens and 8 are shared: only **full** blocks have a name. Smaller blocks share more exactly.
#
# Sharing saves memory, and it saves work. Below, the real engine serves eight prompts with a common beginning, once
# without and once with sharing. It reads fewer tokens and writes the same texts.

# %%
beginning = "One day, a little girl named Lily went to the park with her mother and her small dog. "
prompts = [beginning + rest for rest in ("The dog", "Lily saw", "Her mother", "It was", "They", "Then", "She", "A boy")]
texts = []
for share in (False, True):
    engine = ms.Engine(target, num_blocks=128, block_size=4, max_num_seqs=2, enable_prefix_caching=share)
    ids = [engine.add(prompt, max_new_tokens=8) for prompt in prompts]
    outputs = engine.run()
    texts.append([outputs[id].tokens for id in ids])
    print(f"sharing {'on' if share else 'off':>3}: {engine.metrics()['totals']['read']:4d} tokens read")
print("the same texts:", texts[0] == texts[1])

# %% [markdown]
# Only two of the eight ran at a time. The later ones found blocks whose owners had already left: a block that nobody
# uses keeps its name until its memory is needed. It is free and **cached** at once. The longest unused goes first.

# %% [markdown]
# ## Copy on write
#
# Sharing has one danger. Say you want two answers to one prompt. The second request forks from the first: a new table,
# the same blocks, nothing copied.

# %%
pool = BlockPool(num_blocks=6, block_size=4)
prompt = [1, 2, 3, 4, 5, 6]
pool.start("A", prompt)
pool.commit("A", prompt)
pool.fork("A", "B")
print("A", pool.table("A"), " B", pool.table("B"), " counts", pool.refcount)

# %% [markdown]
# The second block is half full. Both are about to write their own seventh token into the same slot. So before a write
# into a shared block the writer gets a copy of it: **copy on write**. `allocate` answers with the copies that the
# tensors must make before the pass, as pairs (from, to).

# %%
print("B wants to write, copies:", pool.allocate("B", total=7))
print("A", pool.table("A"), " B", pool.table("B"), " counts", pool.refcount)
print("A wants to write, copies:", pool.allocate("A", total=7))

# %% [markdown]
# B got a block of its own. Then A was alone with the old one and writes in place. The full block before it stays shared
# for good, because nothing is ever written into a full block. However long the prompt, a fork costs one block.
#
# Forget the copy, and B writes into A's text. Nothing crashes. A user reads half a sentence of somebody else. That is
# why [`check_pool`](../minispec/serving/integrity.py) recounts everything, and why the tests call it after every step.

# %%
pool.commit("B", [*prompt, 60])
pool.commit("A", [*prompt, 50])
pool.check_integrity()
print("the books balance:", pool.stats().used_blocks, "blocks used,", pool.stats().copies, "copied")

# %% [markdown]
# ## The memory map
#
# Both ways side by side, at every step. The requests, the scheduler and the pools are real; only the model is left
# out, since it has no say in who gets which block. Press play, or walk with the arrow keys.

# %% tags=["nbval-ignore-output"]
viz.memory_map()

# %% [markdown]
# Things to try
#
# - Let *contiguous reserve what each request announces*, and step until somebody waits although enough slots are free
#   in sum. The sentence below the map says when.
# - Switch sharing off. Find a step at which a request is pushed out of the paged memory. (Lesson 04 says what becomes
#   of it.)
# - Compare block sizes 4 and 16 at the same step: the waste, and how many blocks are shared.
#
# Is a map without a model honest? Here the real engine serves the same requests, watched from outside after every step.

# %%
asks = recorder.example_asks()
dry = recorder.watch(recorder.DryEngine(BlockPool(80, 4)), asks)
engine = ms.Engine(recorder.endless(target), num_blocks=80, block_size=4)
real = recorder.watch(engine, asks)
print("steps:", len(real))
print("the same tables after every step:", [frame.holdings for frame in real] == [frame.holdings for frame in dry])

# %% [markdown]
# ## In production
#
# **vLLM** brought paging to this field under the name *PagedAttention*. Its `block_size` is 16 by default on GPUs,
# `gpu_memory_utilization` says how much memory the pool may take, and `max_model_len` is our `max_length`. The pool is
# called `BlockPool` there, too, and sharing is *automatic prefix caching* (`enable_prefix_caching`), by chained hashes
# as here. Its block tables only ever grow at the end. Several samples of one prompt are requests that find each
# other's full blocks by hash, so the current version needs no copy on write; the first one had it.
#
# **SGLang** keeps prefixes in a radix tree (*RadixAttention*), by default with a `page_size` of one token: it shares to
# the last token, and wastes nothing at the end. Some attention backends need larger pages.
#
# **TensorRT-LLM** says `tokens_per_block`. Attention kernels take the table as an argument (`block_table` in
# FlashAttention, page indices in FlashInfer), so nobody gathers first as our plain version does.
#
# A cache that is shared between customers can be asked, by timing, what others have asked before. vLLM lets a request
# bring a `cache_salt`: it goes into the first hash, so only those with the same salt share.

# %% [markdown]
# ## Check yourself
#
# <details><summary>Which kind of fragmentation does paging remove, and which does it only shrink?</summary>
#
# External fragmentation is gone: every free block fits. Internal fragmentation shrinks to the last block of each
# request, $(s - 1)/2$ slots on average.
# </details>
#
# <details><summary>Blocks of 16, a common beginning of 100 tokens. How many of them can the second request share?
# </summary>
#
# 96: six full blocks. The other four sit in a block that goes on differently for everybody.
# </details>
#
# <details><summary>A prompt of exactly 32 tokens is asked twice, with blocks of 16. Why does the second request share
# 16 tokens and not 32?</summary>
#
# The pass over the last prompt token yields the law of the first new token. At least one token has to be computed, so
# the last block is read again.
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
# - [04 Continuous batching](04_continuous_batching.ipynb): now that many requests fit, who runs in the next pass?
