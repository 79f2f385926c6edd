# %% [markdown]
# # 02 The KV cache
#
# *Time:* 50 minutes · *Before this:* [01 Why decoding is slow](01_why_decoding_is_slow.ipynb) · *Practice:* [exercises 02](../exercises/02_kv_cache.ipynb)
#
# The longer our user chats, the longer the text that the model has to take into account. If each new token meant
# running the model on the whole conversation again, **ms per token** would grow with every line. It hardly does,
# because the model keeps part of what it computed for every token. This lesson builds that memory, so that the number
# on the dashboard grows only slowly with the chat. It then asks what the memory costs, and how part of it is taken
# back.
#
# You will be able to
#
# - write attention over a cache, and generate with it;
# - compute the size of a cache, for multi-head and grouped-query attention;
# - rewind a cache, and say what it costs.

# %%
import math
from functools import partial

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import minispec as ms
from minispec import measure
from minispec.cache import causal_attention
from minispec.load.registry import locate
from minispec.model import rope_at
from minispec_course import viz
from minispec_course.check import yours
from minispec_course.labs import presets
from minispec_course.labs.pairs import course_pair

target = ms.load("micro", device="cpu")  # comparisons run on the CPU even if there is a GPU
model, config = target.transformer, target.config

# %% [markdown]
# ## Attention in one page
#
# A transformer is a stack of layers. Almost everything in a layer treats each token alone; **attention** is the one
# place where a token takes something from other tokens. For that, each token computes three vectors from its own state:
#
# - a **query** $q$: what is this token looking for?
# - a **key** $k$: what can it be found by?
# - a **value** $v$: what does it hand over when it is found?
#
# A token compares its query with the keys of all tokens up to and including itself. A softmax turns these scores into
# shares that sum to 1, and the result is the average of the values with these shares:
#
# $$o = \sum_s w_s \, v_s, \qquad w = \operatorname{softmax}_s\left(\frac{q \cdot k_s}{\sqrt{D}}\right)$$
#
# $D$ is the number of entries in each vector. A layer does this several times side by side with different vectors, in
# **heads**. Here is one head of the second layer of `micro`, on seven words. The code is the whole model: `rope_at`
# tells it the positions of the tokens (more below), and `attend` is called by each layer. In the comments, T is the
# number of tokens, H of query heads, Hkv of key/value heads, D of numbers per head, d of numbers in a token's state, V
# of the vocabulary.


# %%
@torch.inference_mode()
def run(tokens: list[int], attend) -> torch.Tensor:
    """The model on tokens from position 0; `attend(layer, q, k, v)` is its attention. Returns the last token's logits."""
    x = model.embed_tokens(torch.tensor([tokens]))  # [1, T, d]
    rope = rope_at(config, torch.arange(len(tokens))[None], model.dtype)
    for number, layer in enumerate(model.layers):
        x = layer(x, rope, partial(attend, number))
    return model.head(x[:, -1])[0]  # [V]


def watch(number, q, k, v):  # q [1, H, T, D], k and v [1, Hkv, T, D]
    if number == 1:  # the first layer is number 0
        scores = q[0, 0] @ k[0, 0].T / math.sqrt(q.shape[-1])  # [T, T], of the first head
        future = torch.ones_like(scores).triu(1).bool()
        shares.append(scores.masked_fill(future, -math.inf).softmax(-1))
    return causal_attention(q, k, v)


shares = []
words = target.encode("The cat saw a dog and the")
run(words, watch)
viz.attention_grid([target.decode([token]) for token in words], shares[0])

# %% [markdown]
# Read the last row: after "and the", this head looks back at the dog. There is nothing above the diagonal, because
# attention is **causal**: a token sees what comes before it and nothing that comes later.
#
# Now let an eighth word arrive. It adds one row and one column. Nothing in the old rows changes, since they cannot see
# the new word. And the new row needs only the *keys and values* of the old words, not their queries. So we keep each
# key and value when it is computed, in a **KV cache**, and every later pass processes the new token alone. This holds
# in every layer: an old token's state never depends on a later one, so its keys and values stay valid in all of them.
#
# ## Attention over a cache
#
# The cache of one layer is two tensors with room for `S` tokens. The memory for one token is a **slot**. Only the first
# `length` slots count, the new token's own included; those after them may hold anything. Most models also share keys
# and values between heads (why, we see below): with $H$ query heads and $H_{kv}$ key/value heads, query head $h$ uses
# key/value head $\lfloor h / G \rfloor$ with $G = H / H_{kv}$.
#
# ### Yours: one token attends to the cache
#
# `q` is `[H, D]`, `keys` and `values` are `[Hkv, S, D]`. Return the `[H, D]` results, by the formula above.


# %%
@yours("02.cached_attention")
def cached_attention(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, length: int) -> torch.Tensor:
    """Attention of one new token over the first `length` slots of a cache."""
    ### BEGIN SOLUTION: cut, group, score, softmax, sum
    H, D = q.shape
    keys, values = keys[:, :length], values[:, :length]
    grouped = q.view(len(keys), -1, D)  # [Hkv, G, D]: neighbouring query heads share a key/value head
    shares = (grouped @ keys.transpose(1, 2) / D**0.5).softmax(-1)  # [Hkv, G, length]
    return (shares @ values).reshape(H, D)
    ### END SOLUTION


# %% [markdown]
# ## A decode step that runs on it
#
# This is the whole step: put the token's key and value into the next slot of each layer, and attend with your function.
# (Here the prompt goes through it token by token as well; a real prefill takes it in one pass.)


# %%
class Cache:
    def __init__(self, slots: int):
        shape = (config.num_layers, config.num_kv_heads, slots, config.head_dim)
        self.keys, self.values = (torch.zeros(shape, dtype=model.dtype) for _ in range(2))
        self.length = 0


@torch.inference_mode()
def step(token: int, cache: Cache) -> torch.Tensor:
    """Process one token after those in the cache: logits [V] of the next."""
    position, cache.length = cache.length, cache.length + 1

    def attend(number, q, k, v):  # [1, H or Hkv, 1, D]
        cache.keys[number, :, position], cache.values[number, :, position] = k[0, :, 0], v[0, :, 0]
        return cached_attention(q[0, :, 0], cache.keys[number], cache.values[number], cache.length)[None, :, None]

    x = model.embed_tokens(torch.tensor([[token]]))
    rope = rope_at(config, torch.tensor([[position]]), model.dtype)
    for number, layer in enumerate(model.layers):
        x = layer(x, rope, partial(attend, number))
    return model.head(x)[0, 0]


prompt = target.encode("Once upon a time, a small bear found a red boat.")
cache, output = Cache(200), []
for token in prompt:
    logits = step(token, cache)
while len(output) < 40:
    output.append(int(logits.argmax()))
    logits = step(output[-1], cache)
print(target.decode(output))
print("the same as minispec:", output == ms.generate(target, prompt, max_new_tokens=40, temperature=0).tokens)

# %% [markdown]
# The cache is no approximation: both ways compute the same thing. What did it save? For the token after $n$ others, the
# linear layers process 1 token instead of $n+1$, and attention scores $n+1$ pairs instead of $(n+1)(n+2)/2$. The first
# saving is the larger one at ordinary lengths, and an answer that mentions only attention misses it.
#
# ## Does the step get slower?
#
# Your step after 50 tokens and after 400: the second has eight times as many keys to compare with.

# %% tags=["nbval-ignore-output"]
longer = viz.predict("With the cache, a step after 400 tokens takes how many times as long as after 50?", "times")
longer


# %% tags=["spoiler", "nbval-ignore-output"]
def with_cache(n: int) -> None:
    big.length = n  # what is in the slots does not matter for the time
    step(7, big)


def without_cache(n: int) -> None:
    run((prompt * 40)[: n + 1], lambda number, q, k, v: causal_attention(q, k, v))


big, lengths = Cache(512), (50, 100, 200, 400)
calls = {(way, n): lambda way=way, n=n: way(n) for way in (with_cache, without_cache) for n in lengths}
took = measure.interleaved_times(calls, repeat=5, warmup=1)
for n in lengths:
    cached, again = (1e3 * took[way, n].median for way in (with_cache, without_cache))
    print(f"after {n:3d} tokens: {cached:5.1f} ms with the cache, {again:6.1f} ms without")
longer.reveal(took[with_cache, 400].median / took[with_cache, 50].median)

# %% [markdown]
# Both columns run the same layers; only the cache differs. Here most of a step is the fixed cost of starting
# operations. (`minispec`'s own step, in lesson 00, starts fewer of them and is a few times as fast.) In a large model
# it is the reading of the weights. Either way a few hundred keys add little. Without a cache every step is a whole
# prefill.
#
# For one user of a large model and a very short chat, a pass over the whole text takes hardly longer than a pass over one token
# (lesson 01), so there the cache saves little. Beyond the ridge, or with many users in a batch, it is indispensable. And there
# is still one pass per token: **the cache makes passes smaller, not fewer**.
#
# ## Optional: transformers, the same weights
#
# This section and the next take ten minutes more. `micro` is a Llama, so `LlamaForCausalLM` of transformers can hold
# the same weights.

# %%
llama = LlamaForCausalLM(LlamaConfig.from_pretrained(locate("micro"))).eval()
theirs = {name if name.startswith("lm_head") else f"model.{name}": w for name, w in model.state_dict().items()}
llama.load_state_dict(theirs)
with torch.inference_mode():
    seen = llama(torch.tensor([prompt + output]), use_cache=True)
past = seen.past_key_values.layers[0]
print("the same logits:", torch.allclose(seen.logits[0, -1], logits, atol=1e-3))
print("the same keys in layer 0:", torch.allclose(past.keys[0], cache.keys[0, :, : cache.length], atol=1e-3))

# %% [markdown]
# ## Optional: a key belongs to its position
#
# Does "a red boat" leave the same keys wherever it stands? The model knows the order of words from **RoPE** (rotary
# position embedding, Su et al., 2021, arXiv:2104.09864): before a key is stored, it is rotated by an angle that grows
# with its position. The same three tokens at positions 0 to 2 and 5 to 7, in the first layer:

# %%
boat = torch.tensor([target.encode(" a red boat")])
here, there = (model.new_cache(capacity=16) for _ in range(2))
model(boat, here)
model(boat, there, positions=torch.arange(5, 8)[None])
one, other = (cache.keys[0, 0, :, :3] for cache in (here, there))  # [Hkv, 3, D]
print("the same keys:", torch.allclose(one, other))
print("the same norms of keys:", torch.allclose(one.norm(dim=-1), other.norm(dim=-1)))
print("the same values:", torch.allclose(here.values[0, 0, :, :3], there.values[0, 0, :, :3]))

# %% [markdown]
# Only the direction of the keys differs. A query is rotated by its own position, so their product depends on the
# *distance* of the two tokens. But this was the first layer. Now the same tokens at the same positions, after two
# different beginnings:

# %%
beginnings = [target.encode(" The cat saw"), target.encode("Tom lost")]  # three tokens each
caches = [model.new_cache(capacity=16) for _ in beginnings]
for beginning, used in zip(beginnings, caches, strict=True):
    model(torch.tensor([beginning + boat[0].tolist()]), used)
for layer in (0, 1):
    one, other = (torch.stack([used.keys, used.values])[:, layer, 0, :, 3:6] for used in caches)
    print(f'layer {layer}, the same keys and values of " a red boat":', torch.allclose(one, other, atol=1e-4))

# %% [markdown]
# From the second layer on, a token's key and value depend on everything before it. So a cached piece of text is right
# only after the same beginning: servers reuse caches for a common *prefix* (prefix caching, lesson 03), and if you
# delete tokens in the middle, everything after them must be recomputed.
#
# ## What does it cost?
#
# The saving is paid for in memory. In each layer a token leaves one key and one value per *key/value head*. Queries are
# not kept.
#
# ### Yours: the size of a cache
#
# Return the **GiB** ($2^{30}$ bytes) of `batch` sequences of `length` tokens each, in numbers of `bits` bits.


# %%
@yours("02.kv_bytes")
def kv_gib(layers: int, heads: int, kv_heads: int, head_dim: int, bits: int, batch: int, length: int) -> float:
    """The size of a KV cache, in GiB."""
    ### BEGIN SOLUTION: the bytes of one token first
    per_token = 2 * layers * kv_heads * head_dim * bits / 8  # a key and a value; query heads keep nothing
    return batch * length * per_token / 2**30
    ### END SOLUTION


# %% [markdown]
# The first transformers had as many key/value heads as query heads (multi-head attention, **MHA**). Llama 2 7B, with 7
# billion parameters, still does: 32 layers of 32 heads of 128 numbers, which keep 512 KiB per token in bf16. Llama 2
# 70B, with ten times the parameters, has 80 layers of 64 query heads of 128 numbers, but groups of 8 query heads share
# one key/value head (grouped-query attention, **GQA**, Ainslie et al., 2023, arXiv:2305.13245).

# %% tags=["nbval-ignore-output"]
large = viz.predict("How much does Llama 2 70B keep per token?", "KiB")
large

# %% tags=["spoiler"]
large.reveal(kv_gib(80, 64, 8, 128, 16, 1, 1) * 2**20)
for name in ("Llama-2-7B", "Llama-3-8B", "Llama-2-70B"):
    c = presets.SHAPES[name]
    kept = kv_gib(c.num_layers, c.num_heads, c.num_kv_heads, c.head_dim, 16, 1, 4096)
    room = (80e9 - 2 * presets.weights(c)) / 2**30  # of a GPU with 80 GB
    users = f"{int(room / kept)} users beside the weights" if room > 0 else "the weights alone are too large"
    print(f"{name:12s} {kept:5.2f} GiB for 4,096 tokens; in 80 GB: {users}")

# %% [markdown]
# The larger model keeps *less*. Sizes computed with the number of query heads are wrong by a factor of 8 here, so look
# for `num_key_value_heads` in a model's `config.json`. Divide the HBM that the weights leave free by this size, and you
# have the number of users that fit. Lesson 03 is about using that room well.
#
# ## Rewind
#
# A target that verifies a draft puts the keys and values of *all* draft tokens into its cache, including those that
# turn out to be wrong. Later tokens must not see these. Taking them back is called **rewinding** (transformers: `crop`;
# vLLM lowers `num_computed_tokens`). A cache holds 50 tokens, and the last 20 are rejected:

# %% tags=["nbval-ignore-output"]
changed = viz.predict("What percentage of the bytes of the keys and values has to change?", "%")
changed

# %% tags=["spoiler"]
held = model.new_cache(capacity=64)
model(torch.tensor([(prompt * 4)[:50]]), held)
before = torch.stack([held.keys, held.values])
held.rewind(30)
changed.reveal(100 * float((torch.stack([held.keys, held.values]) != before).float().mean()))
viz.cache_grid(kept=7, rejected=4, new=2)

# %% [markdown]
# Not one byte. A cache is memory and a length, the black pointer in the picture, and only the length moves. Attention
# ignores the slots past it, and later tokens overwrite them.
#
# ### Yours: the rewind of a batch
#
# In a batch each sequence accepts a different number of its $k$ draft tokens. `lengths` `[B]` counts what the caches
# hold after the pass, the whole draft included. The correction or bonus token is not in the cache yet: no pass has
# processed it. Return the new lengths.


# %%
@yours("02.rewind")
def rewind(lengths: torch.Tensor, k: int, accepted: list[int]) -> torch.Tensor:
    """The lengths [B] of the caches once the rejected draft tokens are taken back."""
    ### BEGIN SOLUTION: each sequence gives up the draft tokens that it rejected
    rejected = k - torch.tensor(accepted)
    return lengths - rejected
    ### END SOLUTION


# %% [markdown]
# Is changing the length really enough? Here a cache processes 30 good tokens and 20 wrong ones, is rewound by your
# function, and goes on with four right ones. A fresh cache has never seen the wrong ones.

# %%
story = target.encode("Once upon a time, a small bear found a red boat by the river and " * 4)
good, wrong, right = (torch.tensor([tokens]) for tokens in (story[:30], [7] * 20, story[30:34]))
rewound, fresh, careless = (model.new_cache(capacity=64) for _ in range(3))
for used in (rewound, fresh, careless):
    model(good, used)
for used in (rewound, careless):
    model(wrong, used)
before = rewound.keys.clone()
rewound.rewind(rewind(rewound.lengths, 20, [0]))
print("length:", int(rewound.lengths[0]), "- keys as before:", torch.equal(rewound.keys, before))
after, expected, forgot = (model(right, used).logits for used in (rewound, fresh, careless))
print("the same logits as a fresh cache, bit for bit:", torch.equal(after, expected))
print("the same without the rewind:", torch.allclose(forgot, expected, atol=0.1))

# %% [markdown]
# A program that forgets the rewind continues a sequence with the rejected tokens in it. Nothing crashes, and the text
# stays fluent: the distribution is simply that of another prompt.
#
# ## The dashboard
#
# The bot of lesson 00 again, after 50 and after 400 tokens. Lesson 00 counted the pass over the prompt as well. Here we
# subtract it and see the decode steps alone, so a smaller number is no gain.

# %% tags=["nbval-ignore-output"]
bot, _ = course_pair(device := ms.device())


def ms_per_token(context: int) -> float:
    """What 32 tokens more take, after a prompt of so many."""
    asked = (bot.encode("A small bear found a red boat. ") * 80)[:context]
    ways = {n: lambda n=n: ms.generate(bot, asked, n, temperature=0, ignore_eos=True) for n in (1, 33)}
    took = measure.interleaved_times(ways, repeat=5, device=device)
    return 1e3 * (took[33].median - took[1].median) / 32


short, long = ms_per_token(50), ms_per_token(400)
print(f"{bot.name}: {short:.2f} ms per token after 50 tokens, {long:.2f} after 400")
viz.dashboard("02", ms_per_token=long, ms_per_token_note="decode steps alone, after 400 tokens")

# %% [markdown]
# The second number is for eight times the context. If it is a little larger, it is because attention still reads every
# key.
#
# ## In production
#
# vLLM takes a fraction of the GPU's memory (`--gpu-memory-utilization`), subtracts weights and working memory, and uses
# the rest for the cache; it logs how many tokens fit. `--kv-cache-dtype fp8_e4m3` halves a 16-bit cache. Neither vLLM
# nor SGLang keeps the cache of a sequence in one piece: they cut it into blocks (lesson 03).
#
# <details><summary>Go deeper: when the cache outweighs the weights, and MLA</summary>
#
# Each decode pass reads the whole cache of a sequence for that sequence alone, while the weights serve the batch. So a
# larger batch makes the weights cheaper per token, but not the caches. In Llama-3-8B a pass reads as many bytes of
# cache as of weights at about 115 thousand cached tokens in the whole batch.
#
# Multi-query attention, **MQA** (Shazeer, 2019, arXiv:1911.02150), is GQA with a single key/value head. DeepSeek's
# multi-head latent attention, **MLA** (DeepSeek-AI, 2024, arXiv:2405.04434), keeps one compressed vector of 512 numbers
# and a positional part of 64 per token and layer, where Llama-3-8B keeps 2 · 8 · 128 = 2,048.
# </details>
#
# ## Check yourself
#
# <details><summary>Does a KV cache make attention O(1) per token?</summary>
#
# No. The new token still scores every key, which is O(n). What becomes O(1) per token is the work of the linear layers.
# </details>
#
# <details><summary>Why are queries not cached?</summary>
#
# A query is used once, in the pass of its own token. Later tokens bring queries of their own and look only at keys and
# values.
# </details>
#
# <details><summary>A state-space layer, as in Mamba, keeps no keys and values but one running state, which every token
# updates. Can you rewind it by changing a length?</summary>
#
# No. The state mixes all tokens so far, so going back needs a copy from before, or processing the tokens again. A
# KV cache can be rewound because each token has a slot of its own.
# </details>
#
# ## Read the papers
#
# - Vaswani et al., 2017: *Attention is all you need* ([arXiv:1706.03762](https://arxiv.org/abs/1706.03762)): section 3.2
#   is the page on attention.
# - Shazeer, 2019: *Fast transformer decoding: one write-head is all you need*
#   ([arXiv:1911.02150](https://arxiv.org/abs/1911.02150)): what the cache costs, and why one key/value head was tried.
# - Ainslie et al., 2023: *GQA: training generalized multi-query transformer models from multi-head checkpoints*
#   ([arXiv:2305.13245](https://arxiv.org/abs/2305.13245)): how many key/value heads are enough.
# - Su et al., 2021: *RoFormer: enhanced transformer with rotary position embedding*
#   ([arXiv:2104.09864](https://arxiv.org/abs/2104.09864)): why a cached key belongs to one position.
# - DeepSeek-AI, 2024: *DeepSeek-V2: a strong, economical, and efficient mixture-of-experts language model*
#   ([arXiv:2405.04434](https://arxiv.org/abs/2405.04434)): a cache of compressed vectors instead of fewer heads.
#
# All papers: [the references](../docs/references.md).
#
# ## Next
#
# - Sequences of different lengths in one mask: [exercises 02](../exercises/02_kv_cache.ipynb).
# - Interview questions (`minispec drill`): `kv-mechanics`, `kv-size`, `kv-versus-weights`.
# - [03 Paged blocks](03_paged_blocks.ipynb): many users, one memory.
