# %% [markdown]
# # 02 The KV cache
#
# *Time:* 35 minutes · *Before this:* [01 Why decoding is slow](01_why_decoding_is_slow.ipynb) · *Practice:* [exercises 02](../exercises/02_kv_cache.ipynb)
#
# You will be able to
#
# - say what the cache keeps, why it may, and what work it saves: attention from O(n²) to O(n) a token, the linear layers
#   from O(n) to O(1);
# - compute its size for any model, with grouped queries or without;
# - rewind it, and show that a rewound cache is as good as a fresh one.

# %%
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

import minispec as ms
from minispec import theory
from minispec.course import viz
from minispec.course.viz import presets

target = ms.load("micro", device="cpu")
config = target.config
print(f"{config.num_layers} layers, {config.num_heads} query heads, {config.num_kv_heads} key/value heads "
      f"of {config.head_dim} numbers")  # fmt: skip

# %% [markdown]
# ## The same text, twice
#
# In each layer a token asks a question (its **query**) of everything before it. What answers are the **keys** and
# **values** of the earlier tokens. Those depend on earlier tokens alone, so they never change once they are computed.
#
# Here is the whole idea in one loop. Without a cache, every pass reads the text from its beginning. With one, it reads
# what the cache does not hold yet.


# %%
@torch.inference_mode()
def write(prompt: list[int], new: int, cache=None) -> list[int]:
    """Greedy decoding, with a cache or without."""
    tokens = list(prompt)
    for _ in range(new):
        unread = tokens if cache is None else tokens[int(cache.lengths[0]) :]
        logits = target.transformer(torch.tensor([unread]), cache, last_only=True).logits  # [1, 1, V]
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


prompt = target.encode("Once upon a time, a small bear found a red boat.")
with_cache = write(prompt, 40, target.transformer.new_cache())
without = write(prompt, 40)
print("the same 40 tokens:", with_cache == without)

# %% [markdown]
# The cache approximates nothing. It saves work, up to rounding in the last digits.

# %% [markdown]
# ## Why it may
#
# A token sees what is before it and nothing behind it. So we can change the end of a text, and the keys and values of
# its beginning stay what they were. Two texts that agree in their first 12 tokens:

# %%
one = torch.tensor([[*prompt[:12], 100, 200, 300]])
other = torch.tensor([[*prompt[:12], 400, 500, 600]])
caches = [target.transformer.new_cache(1, 15) for _ in range(2)]
for tokens, cache in zip((one, other), caches, strict=True):
    target.transformer(tokens, cache)
gap = (caches[0].keys - caches[1].keys).abs().amax(dim=(0, 1, 2, 4))  # [S]: over layers, rows, heads, dimensions
print("slots whose keys agree:", [slot for slot in range(15) if gap[slot] < 1e-4])

# %% [markdown]
# Queries are not kept. Each is asked once, by its own token, and then nobody needs it again.

# %% [markdown]
# ## Count the work
#
# A clock shows that a cache is faster. Counting shows why. This listener stands between the model and torch. It sees
# every matrix product and every attention that a real pass calls, and counts what they do.


# %%
class Counter(TorchFunctionMode):
    """Counts what torch is asked to do inside a `with` block."""

    def __init__(self):
        super().__init__()
        self.products, self.scores = 0, 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is F.linear:
            x, weight = args[:2]  # [B, T, in], [out, in]
            if weight is not target.transformer.lm_head.weight:  # which sees one token a pass, either way
                self.products += x.shape[1] * weight.numel()
        if function is F.scaled_dot_product_attention:
            T, S, mask = args[0].shape[2], args[1].shape[2], kwargs.get("attn_mask")
            pairs = T * S if mask is None else int((mask == 0).sum())  # it adds 0 where a pair counts, −∞ elsewhere
            if kwargs.get("is_causal"):
                pairs = T * (T + 1) // 2  # each token with itself and those before it
            self.scores += args[0].shape[0] * args[0].shape[1] * pairs
        return function(*args, **(kwargs or {}))

    def work(self) -> theory.Work:
        """In the units of theory.Work: tokens through the linear layers, and pairs a head and layer."""
        inside = sum(p.numel() for layer in target.transformer.layers for p in layer.parameters() if p.ndim == 2)
        return theory.Work(self.products // inside, self.scores // (config.num_layers * config.num_heads))


@torch.inference_mode()
def count_step(length: int, cached: bool) -> theory.Work:
    """The work of the one pass that writes the token after `length` others."""
    text = torch.arange(length)[None] % config.vocab_size
    cache = target.transformer.new_cache() if cached else None
    if cached:
        target.transformer(text[:, :-1], cache)  # what earlier steps have left behind
    with Counter() as counter:
        target.transformer(text[:, -1:] if cached else text, cache, last_only=True)
    return counter.work()


# %% [markdown]
# Now count the step that writes the next token, after 50, 100, 200 and 400 others. Every count is held against
# [`step_work`](../minispec/theory.py), the formula.

# %%
print("                with a cache              without")
print("tokens so far   linear   pairs   linear    pairs   as the formula says")
for length in (50, 100, 200, 400):
    kept, lost = count_step(length, cached=True), count_step(length, cached=False)
    agree = kept == theory.step_work(length, cached=True) and lost == theory.step_work(length, cached=False)
    print(f"{length:13d} {kept.linear:8d} {kept.pairs:7d} {lost.linear:8d} {lost.pairs:8d}   {agree}")

# %% [markdown]
# Read down the columns. The length doubles from line to line.
#
# - *linear*, the tokens that go through the linear layers: 1 with a cache, $n$ without. **O(1) instead of O(n).**
# - *pairs*, the scores of one head in one layer: $n$ with a cache, $n(n + 1)/2$ without. **O(n) instead of O(n²).**
#
# The first saving is the larger one at ordinary lengths, as lesson 01 has shown: that is where the FLOPs are. People who
# say "a cache makes attention linear" mention the smaller half.

# %% [markdown]
# ## Predict
#
# One step is one thing, a whole answer another. A prompt of 100 tokens, an answer of 100.

# %% tags=["nbval-ignore-output"]
saved = viz.predict("How many times as many tokens go through the linear layers without a cache?", "times")
saved

# %% [markdown]
# ## Run

# %% tags=["spoiler"]
story = target.encode("Once upon a time there was a bear. " * 20)[:100]
counts = {}
for name, cache in (("with", target.transformer.new_cache()), ("without", None)):
    with Counter() as counter:
        write(story, 100, cache)
    counts[name] = counter.work()
    formula = theory.decode_work(100, 100, cached=cache is not None)
    print(f"{name:8s} {counts[name].linear:6,} tokens, {counts[name].pairs:9,} pairs; formula {formula}")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler"]
saved.reveal(counts["without"].linear / counts["with"].linear)
once = theory.step_work(199, cached=False)
print("one single pass over 199 tokens:", once, "- the same as with the cache:", once == counts["with"])

# %% [markdown]
# With a cache, writing a text is as much work as reading it once. It is only cut into slices. That is the best one can
# ask for, and it still takes a hundred passes: **the cache makes each pass cheap, it does not make them fewer**. Fewer
# passes is what drafts are for.

# %% [markdown]
# ## Play: the race
#
# Now the clock. Each pass of `micro` is timed both ways, in turns, on your machine; the race replays these times.

# %% tags=["nbval-ignore-output"]
race = viz.measure_race(target, "Once upon a time, a small bear found a red boat.", new_tokens=64)
viz.cache_race(race)

# %% tags=["nbval-ignore-output"]
viz.cache_race_figure(race)

# %% [markdown]
# Two things to try:
#
# 1. Stop the race where the lane with the cache is done. How much of the text is there without a cache?
# 2. Look at the lines. Without a cache they rise with every token. With one they are nearly flat: a key more to look at
#    costs next to nothing. They do not start at zero, because a pass over one token still reads all weights.

# %% [markdown]
# ## What it weighs
#
# Nothing is free. Every token leaves in every layer one key and one value for each key/value head, of $D$ numbers each:
#
# $$\text{bytes per token} = 2 \cdot \text{layers} \cdot H_{kv} \cdot D \cdot \text{bytes per number}$$
#
# A real cache, and [`kv_bytes_per_token`](../minispec/theory.py) beside it:

# %%
cache = target.transformer.new_cache(batch=3, capacity=256)
allocated = cache.keys.nbytes + cache.values.nbytes
formula = theory.kv_bytes_per_token(config.num_layers, config.num_kv_heads, config.head_dim, bytes_per_value=4)
print("keys [layers, rows, kv heads, slots, D]:", list(cache.keys.shape))
print(f"{allocated:,} bytes for {3 * 256} tokens: {allocated // (3 * 256):,} each; formula {formula:,}")

# %% [markdown]
# ## Fewer heads to remember
#
# In the first transformers each query head had keys and values of its own: **MHA**, multi-head attention. But queries are
# not kept, so one can have many of them and few keys. In **GQA**, grouped queries, $G$ query heads share one key/value
# head. With a single one for all it is called **MQA**.
#
# LLaMA-2-7B has 32 query heads and as many key/value heads. It keeps 512 KiB a token in bf16. LLaMA-2-70B is ten times
# the model, with 64 query heads in 80 layers, but only 8 key/value heads.

# %% tags=["nbval-ignore-output"]
large = viz.predict("What does LLaMA-2-70B keep of a token?", "KiB")
large

# %% tags=["spoiler"]
print("                layers   query heads   kv heads    D   KiB a token   with all heads kept")
for name in ("micro", "smollm2", "Llama-2-7B", "Llama-3-8B", "Llama-2-70B"):
    c = presets.SHAPES[name]
    kept, full = (theory.kv_bytes_per_token(c.num_layers, h, c.head_dim) / 1024 for h in (c.num_kv_heads, c.num_heads))
    heads = f"{c.num_heads:13d} {c.num_kv_heads:10d} {c.head_dim:4d}"
    print(f"{name:14s} {c.num_layers:7d} {heads} {kept:13.2f} {full:21.2f}")

# %% tags=["spoiler"]
large.reveal(theory.kv_bytes_per_token(80, 8, 128) / 1024)

# %% [markdown]
# Guide A computes the size with the number of *query* heads. For LLaMA-2-7B that is right, for LLaMA-2-70B it is wrong by
# the last two columns' ratio. Always ask for `num_key_value_heads`.
#
# GQA saves memory and reading. It does not save FLOPs in the scores: each query head still scores every key.

# %% [markdown]
# ## Play: size it
#
# The thick line is the model as it is, the thin ones are the designs it did not choose. Where the thick line crosses the
# level of the weights, a pass reads more cache than weights.

# %% tags=["nbval-ignore-output"]
viz.cache_size()

# %% [markdown]
# Three things to try:
#
# 1. `Llama-2-7B`, 16 rows of 4,096 tokens. Compare with its weights. Then take `Llama-3-8B`: what did GQA buy?
# 2. Find out how many rows of 8,192 tokens fit beside `Llama-3-8B` on an 80 GB card. Then keep the cache in 8 bits.
# 3. One row of 131,072 tokens against 32 rows of 4,096. The cache counts tokens, not users.

# %% [markdown]
# ## When the cache outweighs the weights
#
# All of a row's cache is read in every pass, by that row alone. Weights serve every row, so a larger batch does not make
# this part cheaper. The two are equal at this many cached tokens in the whole batch:

# %%
llama = presets.SHAPES["Llama-3-8B"]
per_token = theory.kv_bytes_per_token(llama.num_layers, llama.num_kv_heads, llama.head_dim)
equal = theory.pass_bytes(presets.weights_read(llama)) / per_token
print(f"Llama-3-8B: {equal:,.0f} tokens; with 32 rows that is {equal / 32:,.0f} each")

# %% [markdown]
# ## Rewind
#
# A draft is read by the target, and some of it turns out wrong. Its keys and values are in the cache by then. They have
# to go, without touching what was before.
#
# [`KVCache.rewind`](../minispec/cache.py) does that. Slots past a row's length may hold anything: nobody looks at them,
# and the next pass writes over them.

# %% tags=["nbval-ignore-output"]
changed = viz.predict("A cache of 50 tokens forgets the last 20. How many bytes are written?", "bytes")
changed

# %% tags=["spoiler"]
text = target.encode("Once upon a time, a small bear found a red boat by the river and " * 4)
good, wrong, right = text[:30], [7] * 20, text[30:34]
read = lambda tokens, cache: target.transformer(torch.tensor([tokens]), cache).logits  # noqa: E731

rewound = target.transformer.new_cache(1, 64)
read(good, rewound)
read(wrong, rewound)  # a draft that nobody will accept
before = rewound.keys.clone()
rewound.rewind(len(good))
print("length:", int(rewound.lengths[0]))
print("keys untouched:", torch.equal(rewound.keys, before), "- slots behind the end still hold the wrong tokens")

# %% tags=["spoiler"]
changed.reveal(rewound.lengths.nbytes)

# %% [markdown]
# One whole number. And now the proof: a cache that has never seen the wrong tokens, and the same four tokens read after
# both.

# %%
fresh = target.transformer.new_cache(1, 64)
read(good, fresh)
same = torch.equal(read(right, rewound), read(right, fresh))
n = int(fresh.lengths[0])
kept = all(torch.equal(getattr(rewound, m)[..., :n, :], getattr(fresh, m)[..., :n, :]) for m in ("keys", "values"))
print("same length:", torch.equal(rewound.lengths, fresh.lengths))
print("same keys and values, bit for bit:", kept)
print("same logits, bit for bit:", same)

# %% [markdown]
# What if somebody forgets to rewind? The model goes on after a text that nobody wrote. Nothing crashes, and the words
# stay fluent. Only the law is another one.

# %%
careless = target.transformer.new_cache(1, 64)
read(good, careless)
read(wrong, careless)
fresh.rewind(len(good))  # it reads the four tokens once more
p, bent = (read(right, cache)[0, -1].softmax(-1) for cache in (fresh, careless))
print("the same law:", torch.allclose(p, bent, atol=0.01))

# %% [markdown]
# In a batch every row rewinds by its own amount. Lengths are one number a row, so nothing has to be moved.

# %%
batch = target.transformer.new_cache(batch=3, capacity=64)
target.transformer(torch.tensor([text[:40]] * 3), batch)
batch.rewind(torch.tensor([36, 40, 31]))
print("rows of", batch.lengths.tolist(), "tokens in one cache")

# %% [markdown]
# ## In production
#
# - In a model's `config.json` the number to look for is `num_key_value_heads`.
# - vLLM takes a share of the card (`--gpu-memory-utilization`), subtracts weights and working memory, and fills the rest
#   with cache. Its log then says how many tokens fit: the division you did above. SGLang's knob is
#   `--mem-fraction-static`.
# - `--kv-cache-dtype fp8_e4m3` halves a 16-bit cache in either of them.
# - Neither keeps a cache in one piece, as ours is here. They cut it into blocks: lesson 03.
# - A rewind is a number there as well: vLLM counts `num_computed_tokens` per request and lowers it by what was rejected.
# - DeepSeek's MLA goes further than GQA. It keeps one small vector per token and layer from which keys and values are
#   made again.

# %% [markdown]
# ## Check yourself
#
# <details><summary>Does a KV cache make attention O(1) per token?</summary>
#
# No. The new token still looks at every key: O(n). What becomes O(1) are the linear layers.
# </details>
#
# <details><summary>Why are queries not kept?</summary>
#
# A query is used by its own token in its own pass. No later token ever looks at it.
# </details>
#
# <details><summary>A layer keeps a running state, like a state-space model, instead of keys and values. Can you rewind
# it by changing a length?</summary>
#
# No. The state has mixed all tokens into one. Going back needs a copy from before, or reading again. A cache can be
# rewound because each token has its own slot.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Shazeer, 2019: *Fast transformer decoding: one write-head is all you need*
#   ([arXiv:1911.02150](https://arxiv.org/abs/1911.02150)): what the cache costs and why one key/value head was tried.
# - Ainslie et al., 2023: *GQA: training generalized multi-query transformer models from multi-head checkpoints*
#   ([arXiv:2305.13245](https://arxiv.org/abs/2305.13245)): how many key/value heads are enough.
# - DeepSeek-AI, 2024: *DeepSeek-V2: a strong, economical, and efficient mixture-of-experts language model*
#   ([arXiv:2405.04434](https://arxiv.org/abs/2405.04434)): a cache of compressed vectors instead of fewer heads.
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
