# %% [markdown]
# # 12 Fewer bytes
#
# *Time:* 45 minutes · *Before this:* [01 Why decoding is slow](01_why_decoding_is_slow.ipynb), [02 the KV cache](02_kv_cache.ipynb); for the numbers on acceptance also [06 rejection sampling](06_rejection_sampling.ipynb) · *Practice:* [exercises 12](../exercises/12_fewer_bytes.ipynb)
#
# Decoding at small batch sizes is limited by memory bandwidth: a forward pass takes as long as its bytes take to arrive.
# Speculation answers with fewer passes. This lesson asks how to move fewer bytes in each pass, and looks at two answers:
# parameters stored in 8 or 4 bits, and attention that never stores its matrix of scores.
#
# You will be able to
#
# - quantise a matrix, bound the error, and say what a scale per tensor, per channel or per group changes;
# - measure what quantisation does to perplexity and to acceptance;
# - say how much faster it makes a pass, and why INT8 is not simply twice as fast;
# - run the online softmax tile by tile and explain why it is exact;
# - say what FlashAttention saves, and what it does not save.

# %%
import torch
from torch.nn.functional import scaled_dot_product_attention

import minispec as ms
from minispec import measure, theory
from minispec.load.folder import default_dtype
from minispec.load.quantize import dequantize, quantize
from minispec_course import viz
from minispec_course.labs.pairs import where

target = ms.load("micro", device="cpu")  # errors are compared number by number, so in float32 on every machine
weights = {name: w for name, w in target.transformer.named_parameters() if name.endswith("proj.weight")}
print(len(weights), "matrices in the layers of", target.name)

# %% [markdown]
# ## How do you store a weight in 8 bits?
#
# Symmetric quantisation replaces each weight by the nearest point of an evenly spaced grid with zero in the middle. With
# $b$ bits, and $s$ for the distance between two points,
#
# $$s = \frac{\max|W|}{2^{b-1} - 1}, \qquad W_\text{int} = \mathrm{round}(W / s), \qquad \tilde W = s \cdot W_\text{int}.$$
#
# What is stored are the integers $W_\text{int}$ and the **scale** $s$. To use a weight, the kernel multiplies the two, which
# gives $\tilde W$. Because each weight was rounded to the nearest point, it is off by at most half a step:
# $|\tilde W - W| \le s/2$.

# %%
for bits in (8, 4):
    step = 1.27 / (2 ** (bits - 1) - 1)
    print(f"largest weight 1.27, {bits} bits: {2**bits - 1} values, step {step:.4f}, error ≤ {step / 2:.4f}")

# %% [markdown]
# [`quantize`](../minispec/load/quantize.py) implements these formulas with one scale for each row of the matrix, which is
# one output **channel**, or with one scale for each `group` of neighbouring weights in a row. We try it on a real matrix,
# the key projection of the third layer.

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
# One scale for the whole tensor would be simpler, but then the largest weight of the tensor sets the step for every
# channel. A 4-bit grid has 15 values, from −7 to 7 steps. Take the channel of this matrix whose largest weight is the
# smallest, and call it the quietest one. How much smaller is that weight than the largest of all?

# %%
quiet = int(W.abs().amax(1).argmin())
print(f"largest weight of all: {W.abs().max():.3f}, of the quietest channel: {W[quiet].abs().max():.3f}")

# %% [markdown]
# With one scale for the whole tensor, the step is a seventh of the first number. So the two numbers are all you need.

# %% tags=["nbval-ignore-output"]
guess_levels = viz.predict(
    "How many of the 15 values occur in the quietest channel, with one scale per tensor?", "values"
)
guess_levels

# %% [markdown]
# ## Run

# %% tags=["spoiler"]
whole, step = quantize(W.reshape(1, -1), bits=4)  # the tensor as one long channel, so there is one scale
whole = whole.view_as(W)
print("values in the quietest channel, one scale per tensor: ", len(whole[quiet].unique()))
print("values in the quietest channel, one scale per channel:", len(integers[quiet].unique()))

# %% [markdown]
# ## Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
guess_levels.reveal(len(whole[quiet].unique()))

# %% [markdown]
# A scale has to reach the largest weight that shares it. So the fewer weights share a scale, the finer the step can be, and
# groups take this further than channels. The price is that there are more scales to store. The next table counts both, with
# scales of 16 bits; the relative error is $\|\tilde W - W\| / \|W\|$.

# %%
print("scales               bits per parameter   relative error")
for kind in ("tensor", "channel", 96, 32):
    error = viz.error_of(W, bits=4, scale=kind)
    name = f"one per group of {kind}" if isinstance(kind, int) else f"one per {kind}"
    print(f"{name:<20} {error.bits_per_weight:>18.2f} {error.relative:>16.3f}")

# %% [markdown]
# ## What does rounding do to the model?
#
# The error of a matrix does not tell how much worse the model gets. So we quantise all 42 matrices of the layers and the output
# head (not the embedding), run the model on a story, and compare it with the original model in two ways:
#
# - **perplexity**, $e$ to the mean of $-\log p$ over the tokens of the story. A model that had to choose among 19 equally likely
#   tokens at every position would have a perplexity of 19;
# - **acceptance**, $\sum_x \min(p(x), q(x))$ averaged over positions: how often a token sampled from the quantised model's
#   distribution $q$ would be accepted by the original model with distribution $p$ (lesson 06).
#
# One line of the table is a check and not a result. `micro` is shipped in INT8 with a scale per channel, so its weights already
# lie on that grid, and quantising them to it once more must change nothing. The other 8-bit lines therefore say little about
# a model that is stored in 16 bits.

# %%
story = (
    "Ben was a small bear with a big red hat. He lived with his mother in a warm house near the river. One morning, Ben "
    "could not find his hat. He looked under the bed and in the garden, but the hat was not there. "
    '"Do not be sad," said his mother. "Let us ask our friends." They went to the river and met a duck. '
    '"I saw a red hat on the hill," said the duck. Ben ran up the hill as fast as he could. There he found a little bird '
    'who was sleeping in his hat. Ben smiled. "You can keep it," he said. "It is a good house for you." The bird was very '
    "happy and sang a song for Ben."
)
effects = viz.effects_of(target, story)
print(f"as it is: perplexity {effects[16, 'none'].perplexity:.1f}")
for scale in ("tensor", "channel", 32):
    for bits in (8, 4, 3):
        effect = effects[bits, scale]
        print(f"{scale!s:<8} {bits} bits: perplexity {effect.perplexity:5.1f}   acceptance {effect.overlap:.2f}")
best = min(effects[2, scale].perplexity for scale in ("tensor", "channel", 32))
print("2 bits: even the lowest perplexity is above 1,000:", best > 1000)

# %% [markdown]
# - Acceptance shows rounding earlier than perplexity does. In 4 bits with a scale per group of 32, perplexity is 4 % higher,
#   and acceptance is down to 0.88.
# - At 4 and 3 bits both depend strongly on the scales, and at 2 bits, where the grid has only the values −1, 0 and 1, the model
#   is useless.
# - Perplexity can even *fall* a little when weights are rounded. It looks at the probability of one token per position, and
#   an error can happen to raise that one. Acceptance compares the whole distributions, so every difference lowers it.
#
# This is one story, so do not read much into a few per cent of perplexity. But there is no fixed loss of quality per bit: it
# depends on the model, on the scales and on the task, and has to be measured. (Methods such as GPTQ, Frantar et al., 2023,
# arXiv:2210.17323, and AWQ, Lin et al., 2024, arXiv:2306.00978, lose less than rounding to the nearest value does.)

# %% [markdown]
# ## Play: the quantisation explorer
#
# On the left is one channel of a matrix with its grid, on the right the errors of the whole matrix.

# %% tags=["nbval-ignore-output"]
viz.quantisation(target)

# %% [markdown]
# Things to try
#
# 1. Choose 4 bits and one scale per tensor, look at the grid under the quietest channel, then switch to one per channel.
# 2. Find the matrix that suffers most from a shared scale.
# 3. `effects` above holds every number of bits from 2 to 8. Print the fewest that keep the acceptance above 0.9. Which scales
#    does that take, and how many bits per parameter is it with the scales counted?

# %% [markdown]
# ## Predict
#
# And what does it do to the speed? A 4-bit weight has a quarter of the bytes of a 16-bit one. In some server 80 % of the
# bytes that a decode pass reads are weights, and the rest is the cache of keys and values. The weights go to 4 bits and
# the cache stays as it is; ignore the scales here.

# %% tags=["nbval-ignore-output"]
guess_gain = viz.predict("How many times as fast does the pass become?", "×")
guess_gain

# %% [markdown]
# ## Run
#
# If a fraction $f$ of the bytes becomes $r$ times smaller, a pass that is limited by bandwidth becomes
# $1 / (1 - f + f/r)$ times as fast. That is Amdahl's law applied to bytes
# ([`fewer_bytes_speedup`](../minispec/theory.py)).

# %% tags=["spoiler"]
for share in (1.0, 0.8, 0.5):
    gains = ", ".join(f"INT{16 // r}: {theory.fewer_bytes_speedup(share, r):.2f}" for r in (2, 4))
    print(f"weights are {share:4.0%} of the bytes   {gains}")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
guess_gain.reveal(theory.fewer_bytes_speedup(0.8, 4))

# %% [markdown]
# How large is the share of the weights in practice? The next cell computes it for an 8B model with 8 key/value heads, by
# batch size and context, together with the gain of INT4 in groups of 64.

# %% tags=["spoiler"]
parameters, per_token = 2 * 8e9, 2 * 32 * 8 * 128 * 2  # bytes: of 8 B parameters, of keys and values in 32 layers
r = 16 / (4 + 16 / 64)  # bits per parameter before and after, one 16-bit scale per group of 64
for batch, context in ((1, 1000), (8, 4000), (32, 8000)):
    share = parameters / (parameters + batch * context * per_token)
    gain = theory.fewer_bytes_speedup(share, r)
    print(f"batch {batch:>2}, context {context}: weights {share:4.0%} of the bytes, INT4 gains {gain:.2f}")

# %% [markdown]
# Where the cache dominates, quantise the cache: keys and values in 8 bits halve its bytes, and twice as many tokens fit into
# the same memory. Where arithmetic is the limit, as in the matrix products of prefill or of a very large batch, fewer bytes of
# weights do not make a pass faster, and unpacking them can make it slower. What remains is the memory that they free: it
# holds more cache, so more requests fit.
#
# There is a second condition: the kernel really has to *read* the small form. If 8-bit integers are first expanded to 16-bit
# floats in memory, a parameter costs one byte to read the integer, two to store the float and two to read it again: five
# bytes instead of the two of a 16-bit weight.
#
# ## Does it show on the clock?
#
# minispec has such a kernel for CPUs: it reads matrices in int8 and multiplies in float32
# ([`int8`](../minispec/cpu/int8.py)). So this measurement runs on the CPU, also where there is a GPU. The model has
# forty million random parameters.

# %% tags=["nbval-ignore-output"]
full, small = viz.measure_both(viz.random_model("cpu"), seconds=4)
print(f"{where('cpu')}; in brackets: in passes over one token")
for points in zip(full.curve, small.curve, strict=True):
    float32, int8 = (f"{1e3 * point.time.median:6.2f} ms ({point.ratio:.2f})" for point in points)
    print(f"{points[0].tokens} tokens: float32 {float32}   int8 {int8}")
print(f"one token: int8 is {full.curve[0].time.median / small.curve[0].time.median:.1f} times as fast")

# %% [markdown]
# The table shows two things. At one token the int8 pass is faster, though hardly by the full factor of four, because the
# norms, attention and the start of each operation stay as they were. And its ratio grows earlier: with a quarter of the
# bytes it meets the ridge point at a quarter as many tokens. So a quantised target leaves less idle arithmetic for
# speculation, and its $v$ is higher although its passes are shorter.
#
# So "INT8 is twice as fast" is true under three conditions: the pass is limited by bandwidth, weights are nearly all that it
# reads, and the kernel unpacks the integers in registers. A quantised copy of the target can also serve as a *draft model*,
# but there it competes with small models that cost far less (lesson 08).

# %% [markdown]
# ## Which bytes does attention not need to move?
#
# The second half of this lesson is about bytes that need not exist. Attention over $n$ tokens computes $n^2$ scores per
# head. A straightforward implementation stores them in memory. For one layer with 32 heads of width 128, in 16 bits, that is

# %%
n, heads, dim = 8192, 32, 128
scores = n * n * 2
print(f"scores: {scores / 2**20:.0f} MiB per head, {heads * scores / 2**30:.0f} GiB per layer")
print(f"keys and values: {2 * n * dim * 2 / 2**20:.0f} MiB per head")

# %% [markdown]
# The scores are stored, read back for the softmax, stored again as attention weights, and read once more for the product with
# the values. Keys and values are small beside them. **FlashAttention** (Dao et al., 2022, arXiv:2205.14135) computes a tile
# of scores on the chip, uses it, and discards it, so that the scores never go to memory.
#
# The softmax seems to forbid that. It divides by a sum over *all* scores, and it subtracts the largest of *all* scores,
# because without that $e^s$ overflows (here in float32):

# %%
large = torch.tensor([100.0, 99.0])
print("e^s:        ", large.exp().tolist())
print("e^(s − max):", [round(x, 3) for x in (large - large.max()).exp().tolist()])

# %% [markdown]
# ## How can a softmax be computed in tiles?
#
# The **online softmax** (Milakov and Gimelshein, 2018, arXiv:1805.02867) goes over the scores once and keeps two numbers of
# all scores $s$ it has seen: the largest score $m$, and the sum $\ell = \sum e^{s - m}$. Attention needs a third thing, the
# weighted sum of values $o = \sum e^{s - m} v$, and FlashAttention keeps all three while it goes from tile to tile. When a
# new tile has a larger maximum $m'$, the old sums were computed relative to the wrong maximum. One factor corrects both of
# them:
#
# $$\ell' = \ell\, e^{m - m'} + \sum_\text{tile} e^{s - m'}, \qquad o' = o\, e^{m - m'} + \sum_\text{tile} e^{s - m'} v.$$
#
# At the end $o / \ell$ is the output of attention. No step is an approximation. In our Triton kernel this update is the
# function [`_fold`](../minispec/gpu/attention.py).
#
# Take the scores of one query with 96 cached tokens, and values of a head that is 48 wide.

# %%
generator = torch.Generator().manual_seed(0)
scores = 3 * torch.randn(96, generator=generator, dtype=torch.float64)
values = torch.randn(96, 48, generator=generator, dtype=torch.float64)
states = viz.online_softmax(scores, values, tile=16)
print("tile    m      rescale   ℓ")
for i, state in enumerate(states, start=1):
    print(f"{i:>3} {state.m:8.2f} {state.shrink:8.2f} {state.ell:8.2f}")
full = scores.softmax(0) @ values
print("equal to the full softmax:", torch.allclose(states[-1].answer, full, rtol=1e-12, atol=1e-12))

# %% [markdown]
# Before the first tile $m = -\infty$, so its factor is $e^{-\infty} = 0$, and there is nothing to rescale yet. A factor of 1 means
# that the tile had no new maximum. The head is 48 wide, so the state of a query is `2 + 48` numbers ($m$, $\ell$, and one per
# dimension of $o$), however long the sequence is.

# %% [markdown]
# ## Tiles on the clock
#
# Does it matter that the scores are not stored? The next cell computes the same causal attention twice on your device:
# once with the matrix of scores in memory, and once with PyTorch's fused kernel, which works tile by tile.

# %% tags=["nbval-ignore-output"]
device = ms.device()
kind = default_dtype(device)  # 16 bits on a GPU, float32 on a CPU
print(where(device))
for n in (1024, 4096) if device.type == "cuda" else (512, 1024):
    q, k, v = torch.randn(3, 1, 8, n, 64, generator=torch.Generator().manual_seed(0)).to(device, kind)  # [1, 8, n, 64]
    mask = torch.full((n, n), -torch.inf, device=device, dtype=kind).triu(1)
    ways = {
        "scores stored": lambda q=q, k=k, v=v, m=mask: (q @ k.transpose(-1, -2) / 8 + m).softmax(-1) @ v,
        "tile by tile": lambda q=q, k=k, v=v: scaled_dot_product_attention(q, k, v, is_causal=True),
    }
    times = measure.interleaved_times(ways, repeat=7, warmup=1, device=device)
    print(f"n = {n}:", *(f"{way} {1e3 * time.median:.3f} ms" for way, time in times.items()), sep="   ")

# %% [markdown]
# The fused kernel gains twice: no scores travel, and tiles above the diagonal are skipped. The gain grows with $n$, since
# the scores grow with its square.

# %% [markdown]
# ## And in decoding?
#
# A decode step has one query per head and sequence, so there is no $n \times n$ matrix to avoid. What counts here is to read
# keys and values once and to keep the whole GPU busy while doing so. At small batches that is hard: one sequence with 8
# key/value heads gives eight independent pieces of work, and a GPU such as the H200 has more than a hundred
# multiprocessors. So **flash-decoding** cuts the cache of each head into splits, processes all splits in parallel, and
# merges their states. (A large batch has enough pieces without splits.) Two states are merged with the same correction as two
# tiles: with $w = e^{m - \max m}$ for each split, the output is $\sum w\,o \,/ \sum w\,\ell$.

# %%
half = len(scores) // 2
left = viz.online_softmax(scores[:half], values[:half], tile=16)[-1]
right = viz.online_softmax(scores[half:], values[half:], tile=16)[-1]
merged = viz.merge_states([left, right])
print(f"m: {left.m:.2f} and {right.m:.2f} → {merged.m:.2f}")
print("equal to the full softmax:", torch.allclose(merged.answer, full, rtol=1e-12, atol=1e-12))

# %% [markdown]
# ## What both have in common
#
# | | quantisation of weights | FlashAttention |
# |---|---|---|
# | bytes saved | half or three quarters of the weights | the score matrix |
# | arithmetic | the same, plus unpacking | the same, $O(n^2)$, plus rescaling |
# | result | another model, to be evaluated | exact, up to the order of sums |
# | helps most | decoding with small batches | prefill and training, long contexts |
#
# Neither of them saves arithmetic, so both pay off where arithmetic was waiting for memory. The last line of the table names
# prefill, although we called prefill limited by arithmetic. Both are true: its matrix products are limited by arithmetic,
# but attention that stores its scores is limited by memory, and that is the part which FlashAttention removes.

# %% [markdown]
# ## In production
#
# vLLM recognises quantised checkpoints by their config (`compressed-tensors`, `awq`, `gptq`, `fp8`; `--quantization`
# names a method explicitly) and runs 4-bit weights through kernels such as Marlin, which unpack in registers. The option
# for the cache is `--kv-cache-dtype`. Among its values are `fp8_e4m3` (four bits of exponent and three of mantissa) and
# `fp8_e5m2` (five and two); plain `fp8` means e4m3 on NVIDIA GPUs. SGLang has `--quantization` and `--kv-cache-dtype` too, and
# the latter also takes `fp8_e4m3` and `fp8_e5m2`. Attention kernels come as *backends*: FlashAttention, FlashInfer, Triton.
# Splits over the keys are called split-KV or flash-decoding there too.

# %% [markdown]
# ## Check yourself
#
# <details><summary>One weight of a channel is ten times as large as the second largest. What happens to the others in 4
# bits, with one scale per channel?</summary>
#
# The step is a seventh of the outlier, which is larger than any other weight of the channel. A weight below half a step
# becomes zero, so most of them do. With groups the damage is confined to the outlier's group.
# </details>
#
# <details><summary>The weights are in INT4, but prefill of long prompts is no faster. Is something broken?</summary>
#
# No, that is to be expected. In prefill each weight is used for many tokens, so arithmetic is the limit, and weight-only
# quantisation does not reduce it. Faster prefill takes matrix units that compute in few bits, with the activations
# quantised too.
# </details>
#
# <details><summary>Why does FlashAttention multiply the old sums by e^(m − m′), and may it skip that when a tile has no new
# maximum?</summary>
#
# Because the old sums were computed relative to the old maximum. Without a new maximum the factor is 1, so it may be
# skipped.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Milakov, Gimelshein, 2018: *Online normalizer calculation for softmax*
#   ([arXiv:1805.02867](https://arxiv.org/abs/1805.02867)): the online softmax, in its original form without the values.
# - Dao et al., 2022: *FlashAttention: fast and memory-efficient exact attention with IO-awareness*
#   ([arXiv:2205.14135](https://arxiv.org/abs/2205.14135)): tiles, and the count of bytes that motivates them.
# - Dettmers et al., 2022: *LLM.int8(): 8-bit matrix multiplication for transformers at scale*
#   ([arXiv:2208.07339](https://arxiv.org/abs/2208.07339)): why a few input dimensions with very large activations are kept in
#   16 bits.
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
# - `minispec drill` asks `symmetric-quantisation`, `quantisation-speed`, `flash-attention`, `kv-quantisation`.
# - Next lesson: [13 Near the limit](13_near_the_limit.ipynb), on reading the remaining bytes as fast as a GPU can.
#   Where bytes travel between devices: [16 Beyond one GPU](16_beyond_one_gpu.ipynb).
