# %% [markdown]
# # 12 Fewer bytes
#
# *Time:* 50 minutes · *Before this:* [01 Why decoding is slow](01_why_decoding_is_slow.ipynb), [02 KV cache](02_kv_cache.ipynb), [06 Rejection sampling](06_rejection_sampling.ipynb) · *Practice:* [exercises 12](../exercises/12_fewer_bytes.ipynb)
#
# For our one impatient user, a forward pass takes as long as its bytes take to arrive from memory (HBM on a GPU).
# Speculation answers with fewer passes. This lesson lowers **ms per token** by another route: fewer bytes in each pass.
# Weights and the KV cache are stored in 8 or 4 bits, and attention never stores its matrix of scores.
#
# You will write symmetric quantisation and round a real model with it. Then you will write the online softmax and use it
# to attend to an 8-bit KV cache.
#
# You will be able to
#
# - quantise a matrix, and say what a scale per tensor, per channel or per group changes;
# - say what FP8, MXFP4 and NVFP4 store, and how many bits per parameter that is;
# - say how much faster fewer bytes make a pass, and when they do not;
# - explain why attention tile by tile is exact.

# %%
import torch

import minispec as ms
from minispec_course import formulas, viz
from minispec_course.check import yours
from minispec_course.labs import numerics
from minispec_course.labs.pairs import where

target = ms.load("micro", device="cpu")  # float32
W = numerics.matrices(target)["layers.2.self_attn.k_proj"]  # [96, 288], one row per output channel
print(
    "one of",
    len(numerics.matrices(target)),
    "matrices:",
    tuple(W.shape),
    "weights up to",
    round(float(W.abs().max()), 3),
)

# %% [markdown]
# ## A weight in 8 bits
#
# Symmetric quantisation replaces each weight by the nearest point of an evenly spaced grid with zero in the middle. With
# $b$ bits, and $s$ for the distance between two points,
#
# $$s = \frac{\max|w|}{2^{b-1} - 1}, \qquad w_\text{int} = \mathrm{round}(w / s), \qquad \tilde w = s \cdot w_\text{int}.$$
#
# What is stored: the integers (−127 to 127 for 8 bits, −7 to 7 for 4) and the **scale** $s$. A weight is off by at
# most half a step. The maximum is taken over all weights that share a scale: the whole tensor, a row of the matrix (an
# output **channel**), or a **group** of neighbours in a row.
#
# ### Yours: symmetric quantisation
#
# `weight` is `[out, in]`, and `group` divides `in`. Return the integers `[out, in]` (any dtype), the scales
# `[out, in / group]` and the restored weights $\tilde w$ `[out, in]`. A group of zeros gets the scale 1.


# %%
@yours("12.symmetric")
def symmetric(weight: torch.Tensor, bits: int, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights as integers with one scale per group, and the weights that these stand for."""
    ### BEGIN SOLUTION: reshape so that the last dimension is a group; then each formula is one line
    groups = weight.reshape(weight.shape[0], weight.shape[1] // group, group)
    scale = groups.abs().amax(-1) / (2 ** (bits - 1) - 1)  # [out, groups]
    scale[scale == 0] = 1.0
    integers = torch.round(groups / scale.unsqueeze(-1))
    restored = integers * scale.unsqueeze(-1)
    return integers.reshape(weight.shape), scale, restored.reshape(weight.shape)
    ### END SOLUTION


# %%
integers, scale, restored = symmetric(W, 4, 288)  # 4 bits, one scale per channel
quiet = int(W.abs().amax(1).argmin())  # the channel whose largest weight is the smallest
print("integers from", int(integers.min()), "to", int(integers.max()), "·", scale.numel(), "scales")
print(f"largest error: {((restored - W).abs() / scale).max():.2f} steps")
print(f"largest weight: {W.abs().max():.3f}, of the quietest channel: {W[quiet].abs().max():.3f}")

# %% [markdown]
# ## One scale for how many weights?
#
# One scale for the whole tensor would be simpler, but its largest weight, 0.428, then sets the step for every channel. Take
# the quietest channel, the one whose largest weight is the smallest, 0.101. With a scale of its own it uses all 15 values of
# a 4-bit grid.

# %% tags=["nbval-ignore-output"]
level_guess = viz.predict("How many of the 15 values does it use when the whole tensor shares one scale?", "values")
level_guess

# %% tags=["spoiler"]
whole, _, _ = symmetric(W.reshape(1, -1), 4, W.numel())  # the tensor as one long channel
levels = {name: len(x.view_as(W)[quiet].unique()) for name, x in (("tensor", whole), ("channel", integers))}
print("values in the quietest channel, one scale per", *(f"{name}: {n}  " for name, n in levels.items()))

# %% tags=["spoiler", "nbval-ignore-output"]
level_guess.reveal(levels["tensor"])

# %% [markdown]
# The fewer weights share a scale, the finer the step, and the more scales there are to store. The explorer opens with one
# scale per tensor: look at the grid under the quietest channel, then switch to one per channel.

# %% tags=["nbval-ignore-output", "spoiler"]
viz.quantisation(target, "layers.2.self_attn.k_proj")

# %% [markdown]
# ## FP8, MXFP4, NVFP4
#
# Tensor cores also compute on small *floating-point* numbers, whose grid is fine near zero and coarse far out. E4M3 means
# four bits of exponent and three of mantissa.
#
# | format | a value | a scale | bits per parameter |
# |---|---|---|---|
# | FP8 (Micikevicius et al., 2022, arXiv:2209.05433) | E4M3, up to ±448 | float, per tensor, channel or block | about 8 |
# | MXFP4 (OCP standard; Rouhani et al., 2023, arXiv:2310.10537) | E2M1, ±{0, ½, 1, 1½, 2, 3, 4, 6} | E8M0, a power of two, per block of 32 | 4.25 |
# | NVFP4 ([NVIDIA, 2025](https://developer.nvidia.com/blog/introducing-nvfp4-for-efficient-and-accurate-low-precision-inference/)) | E2M1 | E4M3 per block of 16, and one float per tensor | 4.5 |
#
# MXFP4 and NVFP4 store the same sixteen codes. They differ in the scale: a power of two can miss the best one by nearly a
# factor of two, while E4M3 lands close to it. The tensor cores of Ada and Hopper GPUs compute in FP8, those of Blackwell
# in FP4 as well. OpenAI's gpt-oss ships most of its weights in MXFP4.


# %%
def nearest(x: torch.Tensor) -> torch.Tensor:
    """The nearest E2M1 value."""
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    return grid[(x.abs()[..., None] - grid).abs().argmin(-1)] * x.sign()


def fp8(w: torch.Tensor) -> torch.Tensor:
    scale = w.abs().amax(1, keepdim=True) / 448
    return (w / scale).to(torch.float8_e4m3fn).float() * scale


def mxfp4(w: torch.Tensor) -> torch.Tensor:
    blocks = w.view(len(w), -1, 32)
    scale = 2.0 ** (
        blocks.abs().amax(-1, keepdim=True).log2().floor() - 2
    )  # 4 = 2² is the largest power of two in E2M1
    return (nearest(blocks / scale) * scale).view_as(w)


def nvfp4(w: torch.Tensor) -> torch.Tensor:
    blocks, whole = w.view(len(w), -1, 16), w.abs().max() / (6 * 448)
    scale = (blocks.abs().amax(-1, keepdim=True) / 6 / whole).to(torch.float8_e4m3fn).float() * whole
    return (nearest(blocks / scale) * scale).view_as(w)


# %% [markdown]
# ## What does rounding do to the model?
#
# We round all matrices of the layers and the LM head, run the model on a story, and compare it with the original by two
# measures: **perplexity**, $e$ to the mean of $-\log p$ of the story's tokens, and **acceptance**, $\sum_x \min(p, q)$ of
# lesson 06, how often the original would accept what the rounded model drafts.

# %%
story = (
    "Ben was a small bear with a big red hat. He lived with his mother in a warm house near the river. One morning, Ben "
    "could not find his hat. He looked under the bed and in the garden, but the hat was not there. "
    '"Do not be sad," said his mother. "Let us ask our friends." They went to the river and met a duck. '
    '"I saw a red hat on the hill," said the duck. Ben ran up the hill as fast as he could. There he found a little bird '
    'who was sleeping in his hat. Ben smiled. "You can keep it," he said. "It is a good house for you." The bird was very '
    "happy and sang a song for Ben."
)
# name: bits per parameter, and how to round a matrix; scales of INT and FP8 count as 16 bits, 288 is the usual width
forms = {
    "FP8, per channel": (8 + 16 / 288, fp8),
    "INT4, scale per tensor": (4, lambda w: symmetric(w.reshape(1, -1), 4, w.numel())[2].view_as(w)),
    "INT4, per channel": (4 + 16 / 288, lambda w: symmetric(w, 4, w.shape[1])[2]),
    "INT4, per group of 32": (4 + 16 / 32, lambda w: symmetric(w, 4, 32)[2]),
    "MXFP4": (4 + 8 / 32, mxfp4),
    "NVFP4": (4 + 8 / 16, nvfp4),
    "INT3, per group of 32": (3 + 16 / 32, lambda w: symmetric(w, 3, 32)[2]),
}
effects = numerics.effects_of(target, story, {"as it is": lambda w: w} | {name: f for name, (_, f) in forms.items()})
print("                         bits per parameter   perplexity   acceptance")
for name, effect in effects.items():
    bits = f"{forms[name][0]:.2f}" if name in forms else ""
    print(f"{name:24} {bits:>18} {effect.perplexity:12.1f} {effect.overlap:12.2f}")

# %% [markdown]
# - **The scale decides more than the format.** INT4 is worst with one scale per tensor. In small blocks, integers and floats
#   of 4 bits are close.
# - **Acceptance shows rounding more reliably than perplexity.** Perplexity looks at one token per position, and an error
#   can happen to raise that one: by perplexity 4-bit MXFP4 would beat FP8. Acceptance compares whole distributions. But on
#   one story a difference of 0.02 is too little to rank formats.
# - A quantised model is a different model. If you serve it, *it* is the target, and speculation is exact for it.
#
# This is rounding to the nearest point, on one story and a small model. Methods such as GPTQ (Frantar et al., 2023,
# arXiv:2210.17323) and AWQ (Lin et al., 2024, arXiv:2306.00978) lose less. Measure on your own task.
#
# ## How much faster?
#
# A 4-bit weight has a quarter of the bytes of a 16-bit one. Suppose that 80 % of the bytes that a pass reads are weights
# and the rest is the KV cache. The weights go to 4 bits, the cache stays.

# %% tags=["nbval-ignore-output"]
gain_guess = viz.predict("How many times as fast does the pass become?", "×")
gain_guess

# %% [markdown]
# If a fraction $f$ of the bytes becomes $r$ times smaller, a pass that is limited by bandwidth becomes
# $1 / (1 - f + f/r)$ times as fast: Amdahl's law for bytes. Here it is, then for an 8B model in NVFP4, by batch and
# context.

# %% tags=["spoiler"]
print(f"80 % weights, a quarter of the bytes: {formulas.fewer_bytes_speedup(0.8, 4):.2f} times as fast")
parameters, per_token = 2 * 8e9, 2 * 32 * 8 * 128 * 2  # bytes: of 8 B parameters, of keys and values in 32 layers
for batch, context in ((1, 1000), (8, 4000), (32, 8000)):
    share = parameters / (parameters + batch * context * per_token)
    gain = formulas.fewer_bytes_speedup(share, 16 / 4.5)
    print(f"batch {batch:>2}, context {context}: weights {share:4.0%} of the bytes, NVFP4 gains {gain:.2f}")

# %% tags=["spoiler", "nbval-ignore-output"]
gain_guess.reveal(formulas.fewer_bytes_speedup(0.8, 4))

# %% [markdown]
# Three conditions are hidden in such a number.
#
# 1. *Bytes are the limit.* In prefill or a very large batch arithmetic is the limit, and weight-only quantisation
#    (**W4A16**, 4-bit weights and 16-bit activations) does not reduce it. For that you need **W8A8** or **W4A4**, where
#    tensor cores compute in the small format and the activations are rounded too.
# 2. *Weights are most of the bytes.* Otherwise, quantise the cache.
# 3. *The kernel reads the small form* and unpacks it in registers. If it first writes 16-bit weights back to memory, a
#    4-bit parameter costs more than a 16-bit one.
#
# minispec has an int8 kernel for CPUs, so this measurement runs on the CPU, with forty million random parameters.

# %% tags=["nbval-ignore-output"]
full, small = viz.measure_both(viz.random_model("cpu"), tokens=(1, 2, 4, 8), seconds=3)
print(f"{where('cpu')}; in brackets: relative to a pass over one token")
for points in zip(full.curve, small.curve, strict=True):
    float32, int8 = (f"{1e3 * point.time.median:6.2f} ms ({point.ratio:.2f})" for point in points)
    print(f"{points[0].tokens} token{'s' * (points[0].tokens > 1):1}: float32 {float32}   int8 {int8}")

# %% [markdown]
# At one token int8 wins, though not by the full factor of four. And its ratio grows earlier: with fewer bytes the pass
# meets the ridge point at fewer tokens. So **a quantised target leaves less idle arithmetic for verification**, and a
# drafter that stays in 16 bits becomes relatively more expensive.
#
# ## The KV cache in 8 bits
#
# The same function works on keys and values, one scale per token and head. We round the cache of half the story, run the
# model on the other half, and compare its distributions with those after an unrounded cache.


# %%
@torch.inference_mode()
def with_rounded_cache(bits: int) -> torch.Tensor:
    ids = torch.tensor([target.encode(story)])
    cache, half = target.transformer.new_cache(capacity=ids.shape[1]), ids.shape[1] // 2
    target.transformer(ids[:, :half], cache)
    for part in (cache.keys[..., :half, :], cache.values[..., :half, :]):  # [layers, 1, kv heads, half, head_dim]
        if bits < 16:
            part.copy_(symmetric(part.reshape(-1, part.shape[-1]), bits, part.shape[-1])[2].view_as(part))
    return target.transformer(ids[:, half:], cache).logits[0].double().softmax(-1)


p = with_rounded_cache(16)
for bits in (8, 4, 3, 2):
    print(f"{bits} bits: acceptance {torch.minimum(p, with_rounded_cache(bits)).sum(-1).mean():.3f}")

# %% [markdown]
# Eight bits cost almost nothing here, halve the bytes that long contexts read, and let twice as many tokens fit.
#
# ## Bytes that need not exist
#
# Attention over $n$ tokens computes $n^2$ scores per head, and a straightforward implementation stores them. Take one layer
# with 32 heads, a prompt of 8192 tokens, and 16 bits per score.

# %%
n, heads, dim = 8192, 32, 128
print(
    f"scores: {heads * n * n * 2 / 2**30:.0f} GiB · keys and values: {2 * 8 * n * dim * 2 / 2**20:.0f} MiB (8 KV heads)"
)

# %% [markdown]
# They are stored, read for the softmax, stored again, and read for the product with the values. **FlashAttention** (Dao et
# al., 2022, arXiv:2205.14135) computes a tile of scores on the chip, uses it and discards it. The softmax seems to forbid
# that: it divides by a sum over *all* scores, and subtracts the largest of *all* scores so that $e^s$ does not overflow.
#
# The **online softmax** (Milakov and Gimelshein, 2018, arXiv:1805.02867) keeps three things of the scores seen so far: the
# largest score $m$, the sum $\ell = \sum e^{s - m}$, and the weighted values $o = \sum e^{s - m}\, v$. When a tile has a larger
# maximum $m'$, the old sums were computed relative to the wrong one, and one factor corrects both:
#
# $$\ell' = \ell\, e^{m - m'} + \sum_\text{tile} e^{s - m'}, \qquad o' = o\, e^{m - m'} + \sum_\text{tile} e^{s - m'} v.$$
#
# At the end $o / \ell$ is the output of attention. No step is an approximation.
#
# ### Yours: the online softmax
#
# `for scores, values in tiles` gives tensors `[t]` and `[t, D]`, once, in a buffer that the next tile overwrites. Return
# the attention output `[D]`.


# %%
@yours("12.online_softmax")
def online_softmax(tiles) -> torch.Tensor:
    """Attention of one query over a cache that is read once, tile by tile."""
    ### BEGIN SOLUTION: largest score, sum, output: how does each change when a tile arrives?
    largest, total, output = torch.tensor(-torch.inf), 0.0, 0.0
    for scores, values in tiles:
        before, largest = largest, torch.maximum(largest, scores.max())
        shrink = torch.exp(before - largest)  # 0 at the first tile
        weights = torch.exp(scores - largest)  # [t]
        total = total * shrink + weights.sum()
        output = output * shrink + weights @ values  # [D]
    return output / total
    ### END SOLUTION


# %% [markdown]
# Now both of your functions in one: a query attends to a cache that is stored in 8 bits. Each tile is unpacked when its
# turn comes, so neither the scores nor the unpacked cache ever exist as a whole. That is what a kernel for a quantised
# cache does.


# %%
def tiles_of(query, keys, values, size=16):
    """Keys and values as (integers, scales, restored); a tile is unpacked when it is read."""
    for start in range(0, len(keys[0]), size):
        part = slice(start, start + size)
        k, v = (integers[part] * scale[part] for integers, scale, _ in (keys, values))  # [size, D]
        yield k @ query / len(query) ** 0.5, v


g = torch.Generator().manual_seed(0)
query, keys, values = (torch.randn(*shape, generator=g).double() for shape in ((48,), (100, 48), (100, 48)))
stored = symmetric(keys, 8, 48), symmetric(values, 8, 48)
found = online_softmax(tiles_of(query, *stored))

same, before = ((k @ query / 48**0.5).softmax(0) @ v for k, v in ((stored[0][2], stored[1][2]), (keys, values)))
print("equal to the full softmax over the restored cache:", torch.allclose(found, same))
print(f"against the cache before rounding: {(found - before).norm() / before.norm():.1%} off")

# %% [markdown]
# The tiles cost nothing in accuracy; only the rounding does.
#
# FlashAttention saves the score matrix in prefill and training, not arithmetic: it is still $O(n^2)$. A decode step has one
# query and no such matrix. There the tiles of one sequence are spread over the SMs of the GPU and their states merged with
# the same factor (**flash-decoding**, lesson 13).
#
# ## The dashboard
#
# The chatbot keeps the faster one. (`micro` is so small that much of a pass is overhead, and its gain varies.)

# %% tags=["nbval-ignore-output"]
rounded = ms.load("micro", device="cpu", weights="int8")
speeds = {}
for name, model in (("float32", target), ("int8", rounded)):
    out = min((ms.generate(model, "Once upon a time", 48) for _ in range(4)), key=lambda out: out.seconds)
    speeds[name] = 1e3 * out.seconds / len(out.tokens)
print("on the CPU:", *(f"{name} {ms_per_token:.2f} ms per token  " for name, ms_per_token in speeds.items()))
viz.dashboard("12", ms_per_token=min(speeds.values()) if ms.device().type == "cpu" else None)

# %% [markdown]
# ## In production
#
# | here | vLLM |
# |---|---|
# | a quantised checkpoint | recognised by its config: `compressed-tensors`, `fp8`, `mxfp4`, `modelopt`, `awq`, `gptq` |
# | INT4 or FP8 weights, 16-bit arithmetic | Marlin kernels, which unpack in registers; also where a GPU lacks FP8 or FP4 tensor cores |
# | FP8 on the fly | `--quantization fp8` |
# | cache in 8 bits | `--kv-cache-dtype fp8` (E4M3 on NVIDIA), or `fp8_e5m2` |
#
# ## Check yourself
#
# <details><summary>One weight of a channel is ten times as large as the second largest. What happens to the others in 4
# bits, with one scale per channel?</summary>
#
# The step is a seventh of the outlier, which is larger than any other weight of the channel. A weight below half a step
# becomes zero, so most of them do. With groups the damage is confined to the outlier's group.
# </details>
#
# <details><summary>How many GB are 8 B parameters in NVFP4?</summary>
#
# 4.5 GB: 4 bits per value and 8 bits per block of 16 are 4.5 bits, plus what stays in higher precision.
# </details>
#
# <details><summary>The weights are in INT4, but prefill of long prompts is no faster. Is something broken?</summary>
#
# No. In prefill each weight is used for many tokens, so arithmetic is the limit, and weight-only quantisation does not
# reduce it.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Milakov, Gimelshein, 2018: *Online normalizer calculation for softmax*
#   ([arXiv:1805.02867](https://arxiv.org/abs/1805.02867)): the online softmax without the values.
# - Dao et al., 2022: *FlashAttention* ([arXiv:2205.14135](https://arxiv.org/abs/2205.14135)): tiles, and the count of bytes
#   that motivates them.
# - Rouhani et al., 2023: *Microscaling data formats for deep learning*
#   ([arXiv:2310.10537](https://arxiv.org/abs/2310.10537)): MXFP4 and its relatives.
# - Dettmers et al., 2022: *LLM.int8()* ([arXiv:2208.07339](https://arxiv.org/abs/2208.07339)): why outliers decide.
#
# All papers: [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - How much faster, by the roofline: [exercises 12](../exercises/12_fewer_bytes.ipynb).
# - Interview questions (`minispec drill`): `symmetric-quantisation`, `quantisation-speed`, `fp8-target`, `nvfp4-bytes`,
#   `fp4-formats`, `weight-only-or-w8a8`, `flash-attention`, `kv-quantisation`.
# - [13 Near the limit](13_near_the_limit.ipynb): reading the remaining bytes as fast as a GPU can.
