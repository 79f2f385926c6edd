# %% [markdown]
# # 03 Paged blocks
#
# *Time:* 45 minutes · *Before this:* [02 KV cache](02_kv_cache.ipynb) · *Practice:* [exercises 03](../exercises/03_paged_blocks.ipynb)
#
# Our chatbot becomes popular, so it no longer has one user but many. Each of them needs a KV cache, and all caches
# share one memory. The number on the dashboard that this lesson moves is **users that fit**. It decides what a token
# costs: the weights are read once per forward pass for all users in it, so twice as many users make each token almost
# half as expensive.
#
# Most of that memory can be empty without anyone noticing. You will find out where it goes, and write the two
# functions with which a server gets it back.
#
# You will be able to
#
# - tell internal from external fragmentation;
# - find any token of any user in memory with a block table;
# - say how many more users paging serves, and what it still wastes;
# - explain how users share the blocks of a common beginning.

# %%
from random import Random

import torch

import minispec as ms
from minispec.serving.blocks import block_hash
from minispec_course import viz
from minispec_course.check import mine, yours

# %% [markdown]
# ## One reservation per user
#
# As in lesson 02, a **slot** is the memory for the keys and values of one token. Suppose that 4 GiB of GPU memory are
# left for the KV caches of an 8B model. How many slots is that? Lesson 02's function knows; it returns GiB.

# %%
kv_gib = mine("02.kv_bytes")  # the function that you wrote, or ours
GIB_PER_SLOT = kv_gib(layers=32, heads=32, kv_heads=8, head_dim=128, bits=16, batch=1, length=1)
SLOTS = round(4 / GIB_PER_SLOT)
print(f"{GIB_PER_SLOT * 2**20:.0f} KiB per slot, {SLOTS:,} slots")

# %% [markdown]
# The obvious plan is to give each user one contiguous piece. How long an output becomes is known only when it ends, so
# the server reserves as much as the longest chat that it allows. With a limit of 2,048 tokens, 16 users fit.
#
# Prompts and outputs have 100 to 1,024 tokens each here, and all lengths are equally likely. 256 users wait, and
# whenever one of them finishes the next one takes the reservation.

# %% tags=["nbval-ignore-output"]
empty_guess = viz.predict("What share of the reserved slots holds no token, on average over the run?", "%")
empty_guess

# %% tags=["spoiler"]
random, held, filled = Random(0), 0, 0
for _ in range(256):
    prompt, output = random.randint(100, 1024), random.randint(100, 1024)
    held += 2048 * output  # slots times steps: a user stays for one step per output token
    filled += sum(range(prompt, prompt + output))  # and has one token more in each
contiguous_empty = 1 - filled / held
print(f"{contiguous_empty:.0%} of the reserved slots are empty")

# %% tags=["spoiler", "nbval-ignore-output"]
empty_guess.reveal(round(100 * contiguous_empty))

# %% [markdown]
# More than half of the memory is reserved for tokens that are not there. Some of these slots will be filled later, most never
# will: **internal fragmentation**, waste inside a reservation. When Kwon et al. (2023, arXiv:2309.06180) looked at the serving
# systems of their time, 20.4 to 38.2 % of the KV cache memory held tokens.
#
# What if every user announced the exact length and got just that? Here is a memory of 12 slots. Four users have three
# slots each, then the first and the third leave.

# %%
memory = "AAABBBCCCDDD".replace("A", ".").replace("C", ".")
print(memory, "·", memory.count("."), "slots are free · room for four in a row:", "...." in memory)

# %% [markdown]
# Six slots are free, and a user who needs four cannot have them. This is **external fragmentation**, waste between the
# reservations. Moving all reservations together would help, but it would copy gigabytes while users wait.
#
# ## Blocks and tables
#
# Operating systems solved the same problem with pages. For the KV cache the idea is called **PagedAttention** (Kwon et
# al., 2023): cut the memory into small **blocks** of equal size, and hand them out one at a time, wherever they are
# free. Each user has a **block table**, the list of their blocks in order. Any free block serves any user, so external
# fragmentation is gone. And a user takes a block only when the last one is full, so nothing is reserved.
#
# ### Yours: the allocator
#
# `table` and `free` are lists of block numbers. `tokens` is how many tokens the user has in total, counting those
# already stored. Make sure the table has room for all of them: take blocks one by one from the **end** of `free` and append each
# to `table`, changing both lists in place. Then return True. If too few blocks are free, take none and return False.


# %%
@yours("03.grow")
def grow(table: list[int], free: list[int], block_size: int, tokens: int) -> bool:
    """Take blocks until the table has room for all tokens. Without enough of them, take none."""
    ### BEGIN SOLUTION: how many blocks do so many tokens need? how many are missing? are they there?
    missing = -(-tokens // block_size) - len(table)  # -(-a // b) is a / b, rounded up
    if missing > len(free):
        return False
    for _ in range(missing):
        table.append(free.pop())
    return True
    ### END SOLUTION


# %% [markdown]
# Lily and Tom share a memory of 12 blocks with 4 slots each. Some blocks have been used and returned before, so the
# free list is in no particular order.

# %%
target = ms.load("micro", device="cpu", dtype=torch.float64)
prompts = {
    "Lily": target.encode("Lily has a secret. She has a pink cat named Mimi. Lily said"),
    "Tom": target.encode("Tom sat in the garden with his dog. He wanted to play. Tom said"),
}
free, tables = [9, 2, 7, 4, 11, 0, 5, 1, 8, 3, 6, 10], {"Lily": [], "Tom": []}
for name, tokens in prompts.items():
    grow(tables[name], free, 4, len(tokens))
    print(f"{name}: {len(tokens)} tokens in blocks {tables[name]}")

# %% [markdown]
# In the figure, the upper rows are what each user sees: positions from 0, block after block. The lower part is the
# memory. Each arrow is one table entry.

# %%
viz.block_arrows({name: (tables[name], len(prompts[name])) for name in prompts}, num_blocks=12, block_size=4)

# %% [markdown]
# ### Yours: from position to slot
#
# Block $b$ consists of the slots $b \cdot s$ to $b \cdot s + s - 1$, where $s$ is the block size. Where is the token at
# position $p$? Return the slots of positions `start` to `stop` − 1.


# %%
@yours("03.slot")
def slots(table: list[int], block_size: int, start: int, stop: int) -> list[int]:
    """Where the tokens at positions start … stop − 1 are in memory."""
    ### BEGIN SOLUTION: for each position: which block of the table, and how far into it?
    found = []
    for position in range(start, stop):
        which, offset = divmod(position, block_size)
        found.append(table[which] * block_size + offset)
    return found
    ### END SOLUTION


# %% [markdown]
# $$\text{slot}(p) = \text{table}\left[\lfloor p / s \rfloor\right] \cdot s + p \bmod s$$
#
# Now real keys and values go into this memory. `prefill` computes those of a prompt and stores them in the slots that
# you found, for all tokens but the last, which the first decode step processes. For simplicity, `continue_from` copies
# the blocks of a table into an ordinary cache and generates there. A real kernel follows the table inside attention and
# stores each new token in its block.

# %%
c = target.config
memory = torch.zeros(2, c.num_layers, c.num_kv_heads, 12 * 4, c.head_dim, dtype=torch.float64)  # keys, and values


@torch.inference_mode()
def prefill(tokens: list[int], table: list[int]) -> None:
    cache = target.transformer.new_cache(capacity=64)  # keys and values [L, 1, Hkv, S, D]
    target.transformer(torch.tensor([tokens[:-1]]), cache)
    at = slots(table, 4, 0, len(tokens) - 1)
    memory[:, :, :, at] = torch.stack([cache.keys, cache.values])[:, :, 0, :, : len(at)]


@torch.inference_mode()
def continue_from(tokens: list[int], table: list[int], count: int = 12) -> list[int]:
    cache = target.transformer.new_cache(capacity=64)
    at = slots(table, 4, 0, len(tokens) - 1)
    cache.keys[:, 0, :, : len(at)], cache.values[:, 0, :, : len(at)] = memory[:, :, :, at]
    cache.advance(len(at))
    output = tokens[-1:]
    for _ in range(count):
        output.append(int(target.transformer(torch.tensor([output[-1:]]), cache).logits[0, -1].argmax()))
    return output[1:]


for name, tokens in prompts.items():
    prefill(tokens, tables[name])
for name, tokens in prompts.items():
    output = continue_from(tokens, tables[name])
    expected = ms.generate(target, tokens, max_new_tokens=12, temperature=0).tokens
    print(f"{name} said{target.decode(output)} · as with a cache of their own: {output == expected}")

# %% [markdown]
# Both users get the tokens that a cache of their own would have given. In minispec this is
# [`BlockPool`](../minispec/serving/blocks.py) for the tables and [`PagedKVCache`](../minispec/serving/paged.py) for the
# tensors.
#
# Suppose that one entry of Tom's table is wrong, and is Lily's:

# %%
wrong = list(tables["Tom"])
wrong[2] = tables["Lily"][2]
print(f"Tom said{target.decode(continue_from(prompts['Tom'], wrong))}")

# %% [markdown]
# Nothing crashes. Tom's dog is gone, and he speaks of a cat, which was Lily's secret. **A wrong table shows one user's
# tokens to another**, and the output is fluent. That is why minispec's tests recount after every step which block is in
# which tables ([`check_integrity`](../minispec/serving/blocks.py)).
#
# ## How many users fit now?
#
# Back to the server with its 256 users. The loop below serves them with your allocator. Each step has three phases:
# admit users while `grow` finds room for their prompts, give every running user one more token, and let go of those who
# have finished. With `reserve=2048` each user takes a whole reservation at the start, so that 16 fit, as before.


# %%
class User:
    def __init__(self, prompt: int, output: int):
        self.table, self.tokens, self.end = [], prompt, prompt + output


def serve(reserve: int = 0, size: int = 16) -> tuple[float, float, list[int]]:
    """Users that run on average, the share of their slots that is empty, and the tokens of everyone who lost them."""
    random = Random(0)
    waiting = [User(random.randint(100, 1024), random.randint(100, 1024)) for _ in range(256)]
    free, running, lost = list(range(SLOTS // size)), [], []
    steps, users, held, filled = 0, 0, 0, 0  # the last three are sums over all steps
    while waiting or running:
        # admit
        while waiting and grow(waiting[0].table, free, size, max(reserve, waiting[0].tokens)):
            running.append(waiting.pop(0))

        # grow: every running user gets a token
        for user in list(running):
            while user in running and not grow(user.table, free, size, user.tokens + 1):
                newest = running.pop()  # memory is full: the newest user goes back to the queue
                free += newest.table
                newest.table = []
                waiting.insert(0, newest)
                lost.append(newest.tokens)
            if user in running:
                user.tokens += 1
        steps += 1
        users += len(running)
        held += size * sum(len(user.table) for user in running)
        filled += sum(user.tokens for user in running)

        # finish
        for user in list(running):
            if user.tokens == user.end:
                running.remove(user)
                free += user.table
    return users / steps, 1 - filled / held, lost


# %% [markdown]
# Now nothing is reserved, and blocks have 16 slots.

# %% tags=["nbval-ignore-output"]
users_guess = viz.predict("How many users run at a time if nothing is reserved, on average?", "users")
users_guess

# %% tags=["spoiler"]
runs = {"reserve 2,048 slots": serve(reserve=2048), "reserve nothing": serve()}
for name, (at_a_time, empty, lost) in runs.items():
    again = f"{len(lost):3} preemptions, {sum(lost):7,} tokens computed again"
    print(f"{name:20} {at_a_time:4.1f} users, {empty:5.1%} of their slots empty, {again}")
users = runs["reserve nothing"][0]

# %% tags=["spoiler", "nbval-ignore-output"]
users_guess.reveal(round(users))

# %% [markdown]
# Twice as many users run in the same memory. If you divided 16 by the share that is filled, you expected a few more.
# They do run while memory is full, but at the end the queue is empty, and the average falls. (That is also why
# the first line says 15.1 and not 16.) Paging does not make attention any faster; following the table even costs a
# little. What it buys is room.
#
# The price is in the last columns. Since nothing is reserved, memory can run out while chats grow, and then one of them
# is **preempted**: it loses its blocks and is computed again later. Here it is the newest user; lesson 04 explains why.
# In the second line, as many tokens are recomputed as all 256 prompts contain together, and our loop does not charge
# for that. A server that admits users only while some 5 % of the blocks stay free preempts far
# fewer of them, and serves almost as many.
#
# What is still empty is the end of each user's last block, $e = (s - 1)/2$ slots on average. For users with about $L$
# tokens that is a share of $e / (L + e)$, so large blocks waste more. Blocks of one slot waste nothing, but their tables
# are long. 16 is vLLM's usual choice. The post that launched vLLM speaks of under 4 % waste, which is true for chats like ours
# and false for short ones. SGLang uses blocks of one token where the attention kernel allows it.
#
# ## Prefix caching
#
# Every chat of a product begins with the same instructions, so the first blocks of all users hold the same keys and
# values. With tables, sharing is easy: two users list the same block, and a **reference count** per block says in how
# many tables it is. This is **prefix caching**.
#
# How does a new user find such blocks? Every full block is registered under a hash of its tokens *and of the hash
# before it*, because keys and values depend on everything before them.

# %%
first, other = block_hash(b"", [1, 2, 3, 4]), block_hash(b"", [9, 2, 3, 4])
print("same tokens, same beginning:   ", block_hash(first, [7, 7, 7, 7]) == block_hash(first, [7, 7, 7, 7]))
print("same tokens, another beginning:", block_hash(first, [7, 7, 7, 7]) == block_hash(other, [7, 7, 7, 7]))

# %% [markdown]
# The engine below serves eight prompts with a common beginning, two at a time. When one finishes, its blocks are free.

# %% tags=["nbval-ignore-output"]
found_guess = viz.predict("How many of the eight find the beginning in memory, instead of computing it?", "users")
found_guess

# %% tags=["spoiler"]
beginning = "One day, a little girl named Lily went to the park with her mother and her small dog. "
endings = ("The dog", "Lily saw", "Her mother", "It was", "They", "Then", "She", "A boy")
outputs = []
for caching in (False, True):
    engine = ms.Engine(target, num_blocks=128, block_size=4, max_num_seqs=2, enable_prefix_caching=caching)
    ids = [engine.add(beginning + ending, max_new_tokens=8) for ending in endings]
    results = engine.run()
    outputs.append([results[id].tokens for id in ids])
    totals, blocks = engine.metrics()["totals"], engine.metrics()["blocks"]
    found = f"{blocks['prefix_hits']} users found {blocks['prefix_tokens']} tokens"
    print(f"prefix caching {'on' if caching else 'off':>3}: {totals['read']} tokens computed; {found}")
print("the same outputs:", outputs[0] == outputs[1])

# %% tags=["spoiler", "nbval-ignore-output"]
found_guess.reveal(blocks["prefix_hits"])

# %% [markdown]
# The first two started together, before any block was registered. All others found the beginning, although the users
# who had computed it were gone: a block that no user holds keeps its hash until its memory is needed. It is free and
# cached at the same time, and the one unused for longest is overwritten first (**LRU eviction**). Only full blocks are
# shared.
#
# <details><summary>Go deeper: copy on write, and a side channel</summary>
#
# **Copy on write.** Suppose that you want two outputs for one prompt. The second user gets a copy of the table, and no
# block is copied. But the last block is half full, and both users are about to store their own next token in the same
# slot. So a user who is about to change a block with a reference count above 1 first gets a copy of it. In [exercises
# 03](../exercises/03_paged_blocks.ipynb) you write it. vLLM's V1 engine avoids the case: its samples are separate
# requests that share only full blocks.
#
# **A side channel.** The response time reveals whether someone else has sent the same beginning before. vLLM therefore
# lets a request bring a `cache_salt`, which goes into the first hash, so that only requests with the same salt share.
# </details>
#
# ## Play: the memory map
#
# Both kinds of memory side by side, with minispec's own scheduler and pools. Solid slots hold a token, pale ones are
# empty. Press play, or use the arrow keys.

# %% tags=["nbval-ignore-output"]
viz.memory_map()

# %% [markdown]
# Let *contiguous reserve what each request announces*, and step until a request waits although enough slots are free in
# total: the sentence below the map says when. Then compare block sizes 4 and 16 at one step. How much is empty, and how
# many tokens are shared?
#
# <details><summary>Answer</summary>
#
# D waits: enough slots are free, but no gap is wide enough. Large blocks leave several times as much empty and share
# less: one block of 16 tokens at step 15, where small blocks share five blocks of four.
# </details>
#
# ## The dashboard

# %% tags=["nbval-ignore-output", "spoiler"]
viz.dashboard("03", users=round(users), users_note="simulated: an 8B model in 4 GiB")

# %% [markdown]
# ## In production
#
# | here | vLLM | elsewhere |
# |---|---|---|
# | block, block size | `block_size`, 16 by default on most GPUs | SGLang: page, `--page-size` |
# | memory for blocks | what `gpu_memory_utilization` allows, minus weights and working memory | |
# | longest chat | `max_model_len`; nothing is reserved for it | |
# | prefix caching | `enable_prefix_caching`, chained hashes | SGLang: a radix tree (RadixAttention) |
# | following the table | inside the attention kernel, `block_table` | FlashInfer: page indices |
#
# ## Check yourself
#
# <details><summary>Which kind of fragmentation does paging remove, and which does it only reduce?</summary>
#
# External fragmentation is gone, because every free block fits. Internal fragmentation shrinks to the last block of
# each user, $(s - 1)/2$ slots on average.
# </details>
#
# <details><summary>Blocks have 16 slots, and two prompts share their first 100 tokens. How many tokens can the second user
# share?</summary>
#
# 96, which are six full blocks. The other four tokens are in a block that continues differently for each user.
# </details>
#
# <details><summary>A prompt of exactly 32 tokens is sent twice, with blocks of 16. Why does the second user share only 16
# tokens?</summary>
#
# The distribution of the first new token comes from the pass over the last prompt token, so at least one token has to
# be computed. Blocks are shared as a whole, so the whole last block is computed again.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Kwon et al., 2023: *Efficient memory management for large language model serving with PagedAttention*
#   ([arXiv:2309.06180](https://arxiv.org/abs/2309.06180)): block tables, sharing and copy on write.
# - vLLM team, 2023: *vLLM: easy, fast, and cheap LLM serving with PagedAttention* ([blog, June
#   2023](https://blog.vllm.ai/2023/06/20/vllm.html)): the launch post, where the figure of 4 % comes from.
# - Zheng et al., 2024: *SGLang: efficient execution of structured language model programs*
#   ([arXiv:2312.07104](https://arxiv.org/abs/2312.07104)): prefix caching organised as a radix tree.
#
# All papers: [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - [Exercises 03](../exercises/03_paged_blocks.ipynb): slots for draft tokens, copy on write, match a prefix.
# - Interview questions (`minispec drill`): `fragmentation`, `paged-attention`, `block-waste`, `copy-on-write`,
#   `prefix-caching`.
# - [04 Continuous batching](04_continuous_batching.ipynb): now that many users fit, which of them run in the next pass?
