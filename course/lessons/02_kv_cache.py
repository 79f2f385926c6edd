# %% [markdown]
# # 02 The KV cache
#
# *Time:* 50 minutes · *Before this:* [01 Why decoding is slow](01_why_decoding_is_slow.ipynb) · *Practice:* [exercises 02](../exercises/02_kv_cache.ipynb)
#
# In lesson 01 every decode step processed a single token, although attention needs all tokens before it. That works
# only because the model keeps something of each token it has processed. This lesson asks what is kept, why that is
# allowed, how much work it saves, how much memory it takes, and how part of it can be undone, which speculative
# decoding needs.
#
# You will be able to
#
# - say what the cache keeps, which work it saves, and when saved work is saved time;
# - compute its size for a model with multi-head or grouped-query attention;
# - rewind it, and show that a rewound cache is as good as a fresh one.

# %%
import torch

import minispec as ms
from minispec import theory
from minispec_course import viz
from minispec_course.labs import presets
from minispec_course.labs.counting import CountWork

target = ms.load("micro", device="cpu")  # what is counted or compared bit by bit stays here, also beside a GPU
config = target.config

# %% [markdown]
# ## The same output, twice
#
# In each layer every token has three vectors: a **query**, a **key** and a **value**. Attention compares the query of a
# token with the keys of all tokens up to and including itself, turns these scores into weights with a softmax, and
# averages the values with these weights. The keys and values of a token depend only on that token and on those before
# it, so they never change once they are computed. They are stored in a **KV cache**, and every later token can use
# them.
#
# The whole idea fits into one loop. Without a cache, every forward pass processes the sequence from its beginning. With
# a cache, it processes only the tokens that the cache does not hold yet.


# %%
@torch.inference_mode()
def greedy(prompt: list[int], new: int, cache=None) -> list[int]:
    """Greedy decoding of `new` tokens, with a cache or without."""
    tokens = list(prompt)
    for _ in range(new):
        todo = tokens if cache is None else tokens[int(cache.lengths[0]) :]
        # last_only: score the token after the last one only, [1, 1, V]
        logits = target.transformer(torch.tensor([todo]), cache, last_only=True).logits
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


prompt = target.encode("Once upon a time, a small bear found a red boat.")
with_cache = greedy(prompt, 40, target.transformer.new_cache())
without = greedy(prompt, 40)
print("the same 40 tokens:", with_cache == without)

# %% [markdown]
# The two loops compute the same thing, so the cache is no approximation. Only the order of some sums differs, which can
# change the last digits of a logit.

# %% [markdown]
# ## Why it is allowed
#
# How do we know that old keys and values stay valid when new tokens arrive? Attention is causal: a token sees what
# comes before it and nothing that comes after it. So if we change the end of a sequence, the keys and values of its
# beginning must stay as they were. Test this with two sequences that agree in their first 12 tokens. A **slot** is the
# memory in the cache for the keys and values of one token, so here the cache needs 15 of them:

# %%
one = torch.tensor([[*prompt[:12], 100, 200, 300]])
other = torch.tensor([[*prompt[:12], 400, 500, 600]])
first, second = (target.transformer.new_cache(batch=1, capacity=15) for _ in range(2))
target.transformer(one, first)
target.transformer(other, second)
both = [torch.stack((cache.keys, cache.values)) for cache in (first, second)]  # [2, layers, batch, heads, slots, D]
same = [slot for slot in range(15) if torch.allclose(both[0][..., slot, :], both[1][..., slot, :], atol=1e-4)]
print("slots whose keys and values agree:", same)

# %% [markdown]
# Queries need not be kept, because a query is used only in its own token's pass and no later token looks at it.

# %% [markdown]
# ## Count the work
#
# How much work does the cache save? Counts are the same on every machine, so we count first and come to the clock
# afterwards. [`CountWork`](../minispec_course/labs/counting.py) watches every linear layer and every attention of a real
# pass. We let it count the one step that gives the next token after $n$ others, and compare with the formula,
# [`step_work`](../minispec/theory.py).


# %%
@torch.inference_mode()
def count_step(length: int, cached: bool) -> theory.Work:
    """The work of the pass that gives the token after `length` others."""
    tokens = torch.arange(length)[None] % config.vocab_size  # [1, T]
    cache = target.transformer.new_cache() if cached else None
    if cached:
        target.transformer(tokens[:, :-1], cache)  # what earlier steps have left in the cache
    with CountWork(target) as counted:
        target.transformer(tokens[:, -1:] if cached else tokens, cache, last_only=True)
    return counted.work


print("                with a cache              without")
print("tokens so far   linear   pairs   linear    pairs   as the formula says")
for length in (50, 100, 200, 400):
    kept, lost = count_step(length, cached=True), count_step(length, cached=False)
    agree = kept == theory.step_work(length, cached=True) and lost == theory.step_work(length, cached=False)
    print(f"{length:13d} {kept.linear:8d} {kept.pairs:7d} {lost.linear:8d} {lost.pairs:8d}   {agree}")

# %% [markdown]
# The length doubles from line to line, so the growth can be read down the columns.
#
# - *linear* counts the tokens that go through the linear layers: 1 with a cache, $n$ without, so
#   **O(1) instead of O(n)**. (The output matrix is left out, because both ways it is applied to the last token only.)
# - *pairs* counts the attention scores of one head in one layer: $n$ with a cache, $n(n + 1)/2$ without, so
#   **O(n) instead of O(n²)**.
#
# The first saving is the larger one at ordinary lengths, because most FLOPs are in the linear layers, as lesson 01 has
# shown. An answer that mentions only attention ("a cache makes attention linear") misses it.

# %% [markdown]
# ## Predict
#
# So far we looked at a single step. Now take a whole request: a prompt of 100 tokens, then an output of 100 tokens. How
# much more goes through the linear layers without a cache, summed over all passes?

# %% tags=["nbval-ignore-output"]
saved = viz.predict("How many times as many tokens go through the linear layers without a cache?", "times")
saved

# %% [markdown]
# ## Run

# %% tags=["spoiler"]
story = target.encode("Once upon a time there was a bear. " * 20)[:100]
counts = {}
for name, cache in (("with", target.transformer.new_cache()), ("without", None)):
    with CountWork(target) as counted:
        greedy(story, 100, cache)
    counts[name] = counted.work
    formula = theory.decode_work(100, 100, cached=cache is not None)
    print(f"{name:8s} {counts[name].linear:6,} tokens, {counts[name].pairs:9,} pairs; formula {formula}")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler"]
saved.reveal(counts["without"].linear / counts["with"].linear)
once = theory.step_work(199, cached=False)
print("one single pass over 199 tokens:", once, "- the same as with the cache:", once == counts["with"])

# %% [markdown]
# With a cache, generating the output takes exactly as many FLOPs in the layers as one single pass over the 199 tokens
# that are processed. (The 200th is the last one generated, and it is never put in.) All repeated arithmetic is gone.
#
# But less arithmetic is not yet less time. By the roofline of lesson 01, a pass at batch size 1 on an H200 takes as
# long over 188 tokens as over one, because both read all weights once. So for a request as short as this one, the cache
# would save a large model on that GPU next to no time. Saved arithmetic becomes saved time once $n$ exceeds the ridge
# point (in bf16, where a token is one FLOP per byte), or once many sequences share a pass. Then the cache is
# indispensable: without it, every step is a whole prefill.
#
# And in any case there are still a hundred passes, one after the other, each of which reads all weights: **the cache
# makes the passes smaller, it does not make them fewer**. Making them fewer is what speculative decoding is for.

# %% [markdown]
# ## How large is it?
#
# The saving is paid for with memory. A layer computes attention several times side by side, in **heads**, and each token
# leaves one key and one value per key/value head. With $H_{kv}$ such heads of $D$ numbers, that is
#
# $$\text{bytes per token} = 2 \cdot \text{layers} \cdot H_{kv} \cdot D \cdot \text{bytes per number}$$
#
# Compare a real cache with the formula, [`kv_bytes_per_token`](../minispec/theory.py):

# %%
cache = target.transformer.new_cache(batch=3, capacity=256)
allocated = cache.keys.nbytes + cache.values.nbytes
formula = theory.kv_bytes_per_token(config.num_layers, config.num_kv_heads, config.head_dim, bytes_per_value=4)
print("keys [layers, batch, kv heads, slots, D]:", list(cache.keys.shape))
print(f"{allocated:,} bytes for {3 * 256} tokens: {allocated // (3 * 256):,} each; formula {formula:,}")

# %% [markdown]
# ## Fewer key/value heads
#
# In the first transformers every head had its own queries, keys and values. This is multi-head attention, **MHA**
# (Vaswani et al., 2017, arXiv:1706.03762). But only keys and values are cached, so one can save memory by having many
# query heads and few key/value heads. If a single key/value head serves all query heads, it is called multi-query
# attention, **MQA** (Shazeer, 2019, arXiv:1911.02150). If each group of query heads shares one, it is called
# grouped-query attention, **GQA** (Ainslie et al., 2023, arXiv:2305.13245).
#
# LLaMA-2-7B has 32 layers, 32 query heads of 128 numbers and as many key/value heads, so it keeps 512 KiB per token in
# bf16. LLaMA-2-70B has ten times as many parameters, in 80 layers with 64 query heads of 128 numbers, but only 8
# key/value heads.

# %% tags=["nbval-ignore-output"]
large = viz.predict("How much does LLaMA-2-70B keep per token?", "KiB")
large

# %% tags=["spoiler"]
print("in bf16         layers   query heads   kv heads    D   KiB per token   with a kv head per query head")
for name in ("micro", "smollm2", "Llama-2-7B", "Llama-3-8B", "Llama-2-70B"):
    c = presets.SHAPES[name]
    kept, full = (theory.kv_bytes_per_token(c.num_layers, h, c.head_dim) / 1024 for h in (c.num_kv_heads, c.num_heads))
    heads = f"{c.num_heads:13d} {c.num_kv_heads:10d} {c.head_dim:4d}"
    print(f"{name:14s} {c.num_layers:7d} {heads} {kept:15.2f} {full:31.2f}")

# %% tags=["spoiler"]
large.reveal(theory.kv_bytes_per_token(80, 8, 128) / 1024)

# %% [markdown]
# The larger model keeps less per token. Many texts compute the size with the number of *query* heads. For LLaMA-2-7B
# that is right, but for LLaMA-2-70B it is wrong by the ratio of the last two columns. So always look for
# `num_key_value_heads`.
#
# GQA saves memory and bytes to read, but it does not save FLOPs in the scores, because each query head still scores
# every key.

# %% [markdown]
# ## How many sequences fit?
#
# What the weights leave of a GPU's memory (HBM) is room for caches. So the size of a cache decides how many sequences can
# be served together. The next cell computes it for a GPU of 80 GB, with weights and caches in bf16.


# %%
def sequences_that_fit(name: str, length: int, memory: float = 80e9, bytes_per_value: float = 2) -> int:
    c = presets.SHAPES[name]
    per_token = theory.kv_bytes_per_token(c.num_layers, c.num_kv_heads, c.head_dim, bytes_per_value)
    room = memory - 2 * presets.weights(c)
    return max(0, int(room // (length * per_token)))


for name in ("Llama-2-7B", "Llama-3-8B", "Llama-3-70B"):
    fit = {length: sequences_that_fit(name, length) for length in (1024, 8192, 131_072)}
    print(f"{name:12}", ", ".join(f"{count:3} sequences of {length:,} tokens" for length, count in fit.items()))

# %% [markdown]
# Llama-3-8B is the larger model, and thanks to GQA nearly four times as many sequences fit beside it. The weights of the
# 70B model alone are too large for this GPU. Now change the cell: how many sequences of 8,192 tokens fit beside
# Llama-3-8B if the cache is kept in 8 bits, and what would Llama-2-7B have gained from 8 key/value heads?

# %% [markdown]
# ## When the cache outweighs the weights
#
# Why does this matter for speed, and not only for memory? Every decode pass reads the whole cache of a sequence for that
# sequence alone, while the weights serve all sequences of the batch. So a larger batch makes the weights cheaper per
# token, but not the cache. (Sequences with a common prefix are an exception: lesson 03 stores it once, and some kernels
# also read it once for all, such as cascade attention in FlashInfer.) Reading the cache takes as long as reading the
# weights when the whole batch has this many cached tokens:

# %%
llama = presets.SHAPES["Llama-3-8B"]
per_token = theory.kv_bytes_per_token(llama.num_layers, llama.num_kv_heads, llama.head_dim)
equal = 2 * presets.weights_read(llama) / per_token  # two bytes per parameter
print(f"Llama-3-8B in bf16: {equal:,.0f} tokens; at batch size 32 that is {equal / 32:,.0f} each")

# %% [markdown]
# ## Rewind
#
# When a target verifies a draft, some draft tokens turn out wrong. By then their keys and values are in the cache. Later
# tokens must not see them, and nothing before them may change. Taking them back is called **rewinding** the cache. (In
# transformers the method is `crop`. In vLLM it is part of the accounting of rejected tokens, see *In production*.)
#
# Take a cache that holds 50 tokens, of which the last 20 are rejected. What share of the bytes of its keys and values
# has to change?

# %% tags=["nbval-ignore-output"]
changed = viz.predict("20 of 50 tokens are rejected. What share of the keys' and values' bytes changes?", "%")
changed

# %% [markdown]
# Our function is [`KVCache.rewind`](../minispec/cache.py). Its argument is the new length, here 30.

# %% tags=["spoiler"]
tokens = target.encode("Once upon a time, a small bear found a red boat by the river and " * 4)
good, wrong, right = tokens[:30], [7] * 20, tokens[30:34]


def process(tokens: list[int], cache) -> torch.Tensor:
    return target.transformer(torch.tensor([tokens]), cache).logits  # [1, T, V]


rewound = target.transformer.new_cache(batch=1, capacity=64)
process(good, rewound)
process(wrong, rewound)  # a draft that will be rejected
before = torch.stack((rewound.keys, rewound.values))  # a copy, [2, layers, batch, kv heads, slots, D]
rewound.rewind(len(good))
after = torch.stack((rewound.keys, rewound.values))
print("length:", int(rewound.lengths[0]), "- one integer of", rewound.lengths.nbytes, "bytes")
print("keys and values as before:", torch.equal(after, before))

# %% tags=["spoiler"]
changed.reveal(100 * (after != before).float().mean().item())

# %% [markdown]
# Not one byte of them. The cache has a length for each sequence, and only this integer changes. In the picture it is the
# black pointer. Look at the cells to its right: they keep what they held, and nothing has to be erased.

# %%
viz.cache_grid(kept=7, rejected=4, new=2)

# %% [markdown]
# Attention ignores the slots past the length, so the old keys and values in them do no harm, and later tokens overwrite them one by one. To
# test whether that is enough, we take a fresh cache that has never held the wrong tokens, and process the same four
# tokens after both.

# %%
fresh = target.transformer.new_cache(batch=1, capacity=64)
process(good, fresh)
same = torch.equal(process(right, rewound), process(right, fresh))
n = int(fresh.lengths[0])  # keys and values are [layers, batch, kv heads, slots, D]
print("same length:", torch.equal(rewound.lengths, fresh.lengths))
print("same keys, bit for bit:", torch.equal(rewound.keys[:, :, :, :n], fresh.keys[:, :, :, :n]))
print("same values, bit for bit:", torch.equal(rewound.values[:, :, :, :n], fresh.values[:, :, :, :n]))
print("same logits, bit for bit:", same)

# %% [markdown]
# And what if a program forgets to rewind? Then the model continues a sequence that contains the rejected tokens.
# Nothing crashes, and no error is raised, but the distribution of the next token is that of another prompt.

# %%
careless = target.transformer.new_cache(batch=1, capacity=64)
process(good, careless)
process(wrong, careless)
fresh.rewind(len(good))  # so that it processes the four tokens once more
p, biased = (process(right, cache)[0, -1].softmax(-1) for cache in (fresh, careless))
print("the same distribution:", torch.allclose(p, biased, atol=0.01))

# %% [markdown]
# In a batch, each sequence may be rewound by a different amount, because each may have accepted a different number of
# draft tokens. `rewind` takes the new length of each. Here 4, 0 and 9 of 40 tokens are taken back, and nothing has to
# be moved.

# %%
batch = target.transformer.new_cache(batch=3, capacity=64)
target.transformer(torch.tensor([tokens[:40]] * 3), batch)
batch.rewind(torch.tensor([36, 40, 31]))
print("sequences of", batch.lengths.tolist(), "tokens in one cache")

# %% [markdown]
# ## In production
#
# - In a model's `config.json` the number to look for is `num_key_value_heads`.
# - vLLM takes a share of the card's memory (`--gpu-memory-utilization`), subtracts weights and working memory, and uses
#   the rest for the cache. It divides the rest by the bytes per token and logs how many tokens fit. In SGLang
#   `--mem-fraction-static` is the share for weights and cache together.
# - `--kv-cache-dtype fp8_e4m3` halves a 16-bit cache in both servers.
# - Neither keeps the cache of a sequence in one piece, as we do here. They cut it into blocks, which is the subject of
#   lesson 03.
# - A rewind is a change of a number there as well: vLLM counts `num_computed_tokens` per request and lowers it by the
#   number of rejected tokens.
# - DeepSeek's multi-head latent attention, **MLA** (DeepSeek-AI, 2024, arXiv:2405.04434), goes further than GQA. It keeps
#   512 + 64 numbers per token and layer, whatever the number of heads, where Llama-3-8B keeps 2 · 8 · 128 = 2,048. The
#   512 are a compressed form of keys and values, and the 64 carry the position. How decode works on the compressed form
#   without rebuilding keys and values is in the paper (*weight absorption*).

# %% [markdown]
# ## Check yourself
#
# <details><summary>Does a KV cache make attention O(1) per token?</summary>
#
# No. The new token still scores every key, which is O(n). What becomes O(1) per token is the work of the linear layers.
# </details>
#
# <details><summary>At batch size 1 on an H200 in bf16, from which length on does the cache begin to save Llama-3-8B
# time per token?</summary>
#
# By the roofline from about 188 tokens on, the ridge point. A pass over fewer tokens takes as long as a pass over one,
# because both have to read the weights. At twice that length a step without a cache takes twice as long. With 32 such
# requests in a batch it begins at about 6 tokens. (On a real GPU it begins more gradually, see lesson 01.)
# </details>
#
# <details><summary>A state-space layer, as in Mamba, keeps no keys and values but one running state, which every token
# updates. Can you rewind it by changing a length?</summary>
#
# No. The state mixes all tokens so far, so going back needs a copy from before, or processing the tokens again. A
# KV cache can be rewound because each token has a slot of its own.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Shazeer, 2019: *Fast transformer decoding: one write-head is all you need*
#   ([arXiv:1911.02150](https://arxiv.org/abs/1911.02150)): what the cache costs and why one key/value head was tried.
# - Ainslie et al., 2023: *GQA: training generalized multi-query transformer models from multi-head checkpoints*
#   ([arXiv:2305.13245](https://arxiv.org/abs/2305.13245)): how many key/value heads are enough.
# - DeepSeek-AI, 2024: *DeepSeek-V2: a strong, economical, and efficient mixture-of-experts language model*
#   ([arXiv:2405.04434](https://arxiv.org/abs/2405.04434)): a cache of compressed vectors instead of fewer heads, and
#   weight absorption.
# - Su et al., 2021: *RoFormer: enhanced transformer with rotary position embedding*
#   ([arXiv:2104.09864](https://arxiv.org/abs/2104.09864)): why a cached key belongs to one position.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - Practise: [exercises 02](../exercises/02_kv_cache.ipynb).
# - Be asked, with `minispec drill`: `kv-mechanics`, `kv-size`, `gqa`, `kv-versus-weights`.
# - Go on: [03 Paged blocks](03_paged_blocks.ipynb).
