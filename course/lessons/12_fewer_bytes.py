# %% [markdown]
# # Fewer bytes
#
# *Time:* 40 minutes · *Before this:* [01 Why decoding is slow](01_why_decoding_is_slow.ipynb) · *Practice:* [exercises 12](../exercises/12_fewer_bytes.ipynb)
#
# Decoding waits for memory. Speculation answers with fewer passes. This lesson answers with fewer bytes in each pass:
# weights of 8 or 4 bits, and attention that never writes its scores down.
#
# You will be able to
#
# - quantise a matrix, bound the error, and say what a scale per tensor, channel or group changes;
# - measure what it does to logits, perplexity and acceptance;
# - say how much faster it makes a pass, and why INT8 is not simply twice;
# - run the online softmax tile by tile and explain why it is exact;
# - say what FlashAttention saves, and what it does not.

# %%
import torch

import minispec as ms
from minispec import theory
from minispec.bench import measure
from minispec.course import viz
from minispec.files.quantize import dequantize, quantize
from minispec.gpu.attention import flash_decode_torch

target = ms.load("micro", device="cpu")
weights = {name: w for name, w in target.transformer.named_parameters() if name.endswith("proj.weight")}
print(len(weights), "matrices in the layers of", target.name)

# %% [markdown]
# ## The grid
#
# Symmetric quantisation lays a grid over the weights, with zero in the middle. With $b$ bits
#
# $$s = \frac{\max|W|}{2^{b-1} - 1}, \qquad W_\text{int} = \mathrm{round}(W / s), \qquad \tilde W = s \cdot W_\text{int}.$$
#
# The integers are stored, with the scale $s$. Using a weight means multiplying back. Rounding to the nearest point of the
# grid errs by at most half a step, $|\tilde W - W| \le s/2$.

# %%
for bits in (8, 4):
    step, error = theory.quantization_step(1.27, bits), theory.quantization_error(1.27, bits)
    print(f"largest weight 1.27, {bits} bits: {2**bits - 1} values, step {step:.4f}, error ≤ {error:.4f}")

# %% [markdown]
# [`quantize`](../minispec/files/quantize.py) is these formulas, with one scale for each row of the matrix (an output
# **channel**), or for each `group` of neighbours in a row. Here is a real matrix, its keys' projection in the third layer.

# %%
W = weights["layers.2.self_attn.k_proj.weight"].detach()  # [96, 288]
integers, scale = quantize(W, bits=4)
print("integers", list(integers.shape), "from", int(integers.min()), "to", int(integers.max()))
print("scales", list(scale.shape))
worst = ((dequantize(integers, scale) - W).abs() / scale).max()
print(f"largest error: {worst:.2f} steps")

# %% [markdown]
# ## Predict
#
# One scale for the whole tensor is simpler. Then the largest weight of all sets the step for everybody. A grid of 4 bits
# has 15 values. Take the *quietest* channel of this matrix, the one whose largest weight is the smallest.

# %% tags=["nbval-ignore-output"]
guess_levels = viz.predict(
    "How many of the 15 values can the quietest channel still use, with one scale per tensor?", "values"
)
guess_levels

# %% [markdown]
# ## Run

# %% tags=["spoiler"]
whole, step = quantize(W.reshape(1, -1), bits=4)  # a tensor as one long channel: one scale
whole = whole.view_as(W)
quiet = int(W.abs().amax(1).argmin())
print(f"largest weight of all {W.abs().max():.3f}, of channel {quiet} {W[quiet].abs().max():.3f}")
print("values it uses, one scale per tensor: ", len(whole[quiet].unique()))
print("values it uses, one scale per channel:", len(integers[quiet].unique()))

# %% [markdown]
# ## Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
guess_levels.reveal(len(whole[quiet].unique()))

# %% [markdown]
# A scale is a promise to reach the largest weight. The fewer weights share it, the finer the step. Groups take that
# further, and cost more scales. With 16-bit scales, in bits a weight and in error:

# %%
print("scales               bits a weight   relative error")
for kind in ("tensor", "channel", 96, 32):
    error = viz.error_of(W, bits=4, scale=kind)
    name = f"one per group of {kind}" if isinstance(kind, int) else f"one per {kind}"
    print(f"{name:<20} {error.bits_per_weight:>13.2f} {error.relative:>16.3f}")

# %% [markdown]
# ## What the model makes of it
#
# The error of a matrix is not yet the loss of a model. We round *every* linear layer, let the model read a story, and
# compare with the model as it was. Three measures:
#
# - **logits**: how far a score moves;
# - **perplexity**: how surprised the model is by the story;
# - **acceptance** $\sum \min(p, q)$: how often the rounded model, drafting, would be accepted by the original.

# %%
story = (
    "Ben was a small bear with a big red hat. He lived with his mother in a warm house near the river. One morning, Ben "
    "could not find his hat. He looked under the bed and behind the door, but the hat was not there. "
    '"Do not be sad," said his mother. "Let us ask our friends." They went to the river and met a duck. '
    '"I saw a red hat on the hill," said the duck. Ben ran up the hill as fast as he could. There he found a little bird '
    'who was sleeping in his hat. Ben smiled. "You can keep it," he said. "It is a good house for you." The bird was very '
    "happy and sang a song for Ben."
)
effects = viz.effects_of(target, story)
print(f"as it is: perplexity {effects[16, 'none'].perplexity:.1f}")
for scale in ("tensor", "channel", 32):
    for bits in (8, 5, 4, 3):
        effect = effects[bits, scale]
        print(f"{scale!s:<8} {bits} bits: perplexity {effect.perplexity:5.1f}   acceptance {effect.overlap:.2f}")
worst = min(effects[2, scale].perplexity for scale in ("tensor", "channel", 32))
print("2 bits: perplexity above 1,000:", worst > 1000)

# %% [markdown]
# Read it slowly.
#
# - Down to 5 bits little happens. At 4 and 3 the scales decide. At 2 bits the grid is −1, 0, 1, and the model is gone.
# - Perplexity may even *fall* a little when weights are rounded. It looks at one token in each place, so it can be lucky.
#   Acceptance looks at the whole law. There is no luck in it.
# - 8 bits with a scale per channel change nothing at all. Why? `micro` is *stored* like that. Its weights lie on this grid
#   already, and rounding what is round is free. Another grid of 8 bits, even a finer one, costs a little.
#
# Quality is not a fixed price per bit. It depends on the model, the scales and the task. Measure it.

# %% [markdown]
# ## Play: the quantisation explorer
#
# Above: one channel with its grid, and the errors of the whole matrix. Below: what rounding all matrices does to the
# model.

# %% tags=["nbval-ignore-output"]
viz.quantisation(target, story, effects)

# %% [markdown]
# Try this:
#
# 1. 4 bits, one scale per tensor. Look at the grid under the quietest channel, then switch to one per channel.
# 2. Find the matrix that suffers most from a shared scale.
# 3. Find the fewest bits that keep the acceptance above 0.9. Which scales does it take, and how many bits a weight is
#    that in truth?

# %% [markdown]
# ## Predict
#
# Now speed. A 4-bit weight is a quarter of a 16-bit weight. In some server 80 % of the bytes that a pass reads are
# weights, the rest is the cache of keys and values. The weights go to 4 bits, the cache stays.

# %% tags=["nbval-ignore-output"]
guess_gain = viz.predict("How many times as fast does the pass become?", "×")
guess_gain

# %% [markdown]
# ## Run
#
# If a fraction $f$ of the bytes shrinks $r$-fold, a memory-bound pass gains $1 / (1 - f + f/r)$:
# [`fewer_bytes_speedup`](../minispec/theory.py), Amdahl's law for bytes.

# %% tags=["spoiler"]
for share in (1.0, 0.8, 0.5):
    gains = ", ".join(f"INT{16 // r}: {theory.fewer_bytes_speedup(share, r):.2f}" for r in (2, 4))
    print(f"weights are {share:4.0%} of the bytes   {gains}")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
guess_gain.reveal(theory.fewer_bytes_speedup(0.8, 4))

# %% [markdown]
# How large is the share in practice? An 8 B model with 8 key/value heads, by batch and context:

# %%
per_token = theory.kv_bytes_per_token(layers=32, kv_heads=8, head_dim=128)
for batch, context in ((1, 1000), (8, 4000), (32, 8000)):
    every = theory.pass_bytes(8e9, batch=batch, context=context, kv_bytes=per_token)
    share = theory.pass_bytes(8e9) / every
    r = theory.pass_bytes(8e9) / theory.quantized_bytes(8e9, bits=4, group=64)
    gain = theory.fewer_bytes_speedup(share, r)
    print(f"batch {batch:>2}, context {context}: weights {share:4.0%} of the bytes, INT4 gains {gain:.2f}")

# %% [markdown]
# Where the cache dominates, quantise the cache: 8-bit keys and values halve its bytes, and twice as many requests fit.
# And where arithmetic is the limit (prefill, a large batch) fewer bytes of weights gain nothing.
#
# There is a second condition: the kernel must really *read* the small form. Expand the integers to floats first, and the
# pass moves more bytes than before. See what that costs on this machine.

# %% tags=["nbval-ignore-output"]
big = torch.randn(4096, 4096, generator=torch.Generator().manual_seed(0))
x = torch.randn(4096, generator=torch.Generator().manual_seed(1))
small, scales = quantize(big, bits=8)
times = measure.interleaved_times(
    {"float32": lambda: big @ x, "int8, expanded first": lambda: dequantize(small, scales) @ x}, 7
)
for name, time in times.items():
    print(f"{name:<21} {1000 * time.median:.1f} ms")

# %% [markdown]
# So "INT8 is twice as fast" needs three things: a pass that waits for memory, weights that are nearly all it reads, and a
# kernel that unpacks in registers. As a *draft* a quantised copy has a fourth problem. It competes with small models
# (lesson 08).

# %% [markdown]
# ## Attention without its matrix
#
# The other half of this lesson is about bytes that need not exist. Attention over $n$ tokens scores $n^2$ pairs. Written
# to memory, for one layer of a model with 32 heads of 128, in 16 bits:

# %%
n, heads, dim = 8192, 32, 128
scores = n * n * 2
print(f"scores: {scores / 2**20:.0f} MiB a head, {heads * scores / 2**30:.0f} GiB a layer")
print(f"keys and values: {2 * n * dim * 2 / 2**20:.0f} MiB a head")

# %% [markdown]
# The scores go out to memory, come back for the softmax, go out as weights, and come back for the product with the
# values. Keys and values are small beside them. **FlashAttention** keeps the scores of a tile on the chip, uses them, and
# forgets them.
#
# One thing stands in the way. The softmax divides by a sum over *all* scores, and subtracts the largest of *all*, for
# without that $e^s$ overflows:

# %%
large = torch.tensor([100.0, 99.0])
print("e^s:        ", large.exp().tolist())
print("e^(s − max):", [round(x, 3) for x in (large - large.max()).exp().tolist()])

# %% [markdown]
# ## The online softmax
#
# Walk over the tiles and remember three things of all that you have seen: the largest score $m$, the sum
# $\ell = \sum e^{s - m}$, and the weighted values $o = \sum e^{s - m} v$. A new tile may hold a new maximum $m'$. Then the
# old sums were taken against the wrong maximum. That is mended by one factor:
#
# $$\ell' = \ell\, e^{m - m'} + \sum_\text{tile} e^{s - m'}, \qquad o' = o\, e^{m - m'} + \sum_\text{tile} e^{s - m'} v.$$
#
# At the end $o / \ell$ is the answer. No step is an approximation. In the Triton kernel this is the function
# [`_fold`](../minispec/gpu/attention.py).
#
# We let `micro` read the story and take a head's real scores.

# %%
attention = viz.read_attention(target, story)
scores, values = attention.scores(layer=3, head=0)
states = viz.online_softmax(scores, values, tile=16)
print("tile    m      rescale   ℓ")
for i, state in enumerate(states, start=1):
    print(f"{i:>3} {state.m:8.2f} {state.shrink:8.2f} {state.ell:8.2f}")
full = scores.softmax(0) @ values
print("equal to the full softmax:", torch.allclose(states[-1].answer, full, rtol=1e-12, atol=1e-12))

# %% [markdown]
# The state is `2 + 48` numbers for a query, however long the text.
#
# The same for every head, against the kernel's twin in plain torch,
# [`flash_decode_torch`](../minispec/gpu/attention.py):

# %%
layer, length = 3, len(scores)
q, k, v = (x[layer][None] for x in (attention.queries[:, :, None], attention.keys, attention.values))
twin = flash_decode_torch(q, k, v, torch.tensor([length - 1]))[0, :, 0]  # [H, D]
ours = torch.stack(
    [viz.online_softmax(*attention.scores(layer, head), tile=16)[-1].answer for head in range(len(twin))]
)
print("heads:", len(twin))
print("largest difference below 1e-5:", bool((ours - twin).abs().max() < 1e-5))

# %% [markdown]
# ## Play: tile by tile
#
# Blue slots are behind us, orange is the tile at hand, grey is unread. The green line is the running maximum. Below, the
# weights as they would be if the text ended here; circles show where they must end.

# %% tags=["nbval-ignore-output"]
viz.online_softmax_tiles(target, story[:260])

# %% [markdown]
# Try this:
#
# 1. Step on until a new maximum appears. All blue bars below shrink by the same factor: that is the rescaling.
# 2. Go to the last tile. Every bar ends in its circle.
# 3. Change the tile size. The way differs, the end does not.

# %% [markdown]
# ## Decoding: splits
#
# Decode has one query, so there is no $n \times n$ matrix to avoid. What counts is to read keys and values once, with the
# whole GPU. So **flash-decoding** cuts the cache into splits, walks over all of them at once, and merges the states. Two
# states meet like two tiles: with $w = e^{m - \max m}$ the answer is $\sum w\,o \,/ \sum w\,\ell$.

# %%
half = length // 2
left = viz.online_softmax(scores[:half], values[:half], tile=16)[-1]
right = viz.online_softmax(scores[half:], values[half:], tile=16)[-1]
merged = viz.merge_states([left, right])
print(f"m: {left.m:.2f} and {right.m:.2f} → {merged.m:.2f}")
print("equal to the full softmax:", torch.allclose(merged.answer, full, rtol=1e-12, atol=1e-12))

# %% [markdown]
# ## What both have in common
#
# | | quantisation | FlashAttention |
# |---|---|---|
# | bytes that disappear | half or three quarters of the weights | the score matrix |
# | arithmetic | as before, and a little more | as before, $O(n^2)$, and a little more |
# | result | another model: measure it | exact, up to the order of sums |
# | helps most | decoding, small batch | prefill and training; long contexts |
#
# Neither saves arithmetic. Both pay where the arithmetic was waiting for memory.

# %% [markdown]
# ## In production
#
# vLLM loads quantised checkpoints by their config (`compressed-tensors`, `awq`, `gptq`, `fp8`; `--quantization` names one)
# and runs 4-bit weights through kernels such as Marlin, which unpack in registers. The cache has `--kv-cache-dtype fp8`.
# SGLang uses the same two option names, but wants to know which fp8: `fp8_e4m3` or `fp8_e5m2`. Attention kernels come as
# *backends*: FlashAttention, FlashInfer, Triton. What we call splits is known there as split-KV or flash-decoding.

# %% [markdown]
# ## Check yourself
#
# <details><summary>One weight of a channel is ten times as large as all the others. What happens to them in 4 bits?</summary>
#
# The step is a seventh of the outlier, more than the others' largest weight, so nearly all of them become zero. Groups
# confine the damage to the outlier's group.
# </details>
#
# <details><summary>INT4 weights, but prefill of long prompts is no faster. Is something broken?</summary>
#
# No. Each weight read serves many tokens there, so arithmetic is the limit, and that has not shrunk. It takes matrix units
# that compute in few bits, with activations quantised too.
# </details>
#
# <details><summary>Why does FlashAttention multiply old sums by e^(m − m′), and may it skip that when a tile has no new
# maximum?</summary>
#
# Because they were taken against the old maximum. Without a new maximum the factor is 1: nothing to do.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Milakov, Gimelshein, 2018: *Online normalizer calculation for softmax*
#   ([arXiv:1805.02867](https://arxiv.org/abs/1805.02867)): the online softmax in three pages.
# - Dao et al., 2022: *FlashAttention: fast and memory-efficient exact attention with IO-awareness*
#   ([arXiv:2205.14135](https://arxiv.org/abs/2205.14135)): tiles, and the count of bytes that motivates them.
# - Dettmers et al., 2022: *LLM.int8(): 8-bit matrix multiplication for transformers at scale*
#   ([arXiv:2208.07339](https://arxiv.org/abs/2208.07339)): why some channels must not share a scale.
# - Frantar et al., 2023: *GPTQ: accurate post-training quantization for generative pre-trained transformers*
#   ([arXiv:2210.17323](https://arxiv.org/abs/2210.17323)): better rounding than to the nearest value.
# - Lin et al., 2024: *AWQ: activation-aware weight quantization for LLM compression and acceleration*
#   ([arXiv:2306.00978](https://arxiv.org/abs/2306.00978)): scaling before rounding.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - Practice: [exercises 12](../exercises/12_fewer_bytes.ipynb).
# - `minispec drill`: `symmetric-quantisation`, `quantisation-speed`, `flash-attention`, `kv-quantisation`.
# - Next lesson: [14 Is it really exact?](14_is_it_really_exact.ipynb), on testing and numerics. Where bytes travel between
#   devices: [16 Beyond one GPU](16_beyond_one_gpu.ipynb).
