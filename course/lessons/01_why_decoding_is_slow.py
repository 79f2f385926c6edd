# %% [markdown]
# # 01 Why decoding is slow
#
# *Time:* 35 minutes · *Before this:* [00 Start here](00_start_here.ipynb) · *Practice:* [exercises 01](../exercises/01_why_decoding_is_slow.ipynb)
#
# You will be able to
#
# - tell prefill from decode by one number, the arithmetic intensity;
# - draw the roofline of your own machine and place both on it;
# - say how long a pass takes at best, for any model on any machine;
# - say when verifying a draft is free, and what ends it.

# %%
import torch

import minispec as ms
from minispec import theory
from minispec.bench import measure
from minispec.course import viz
from minispec.course.viz import presets

target = ms.load("micro", device="cpu")
print(f"{target.num_parameters:,} weights, {measure.weight_bytes(target):,} bytes")

# %% [markdown]
# ## Two kinds of pass
#
# Writing a text takes two kinds of pass. Listen to the model again, and note how many tokens each pass reads.

# %%
passes = []
listener = target.transformer.register_forward_hook(lambda module, inputs, output: passes.append(inputs[0].shape[1]))
out = ms.generate(target, "Once upon a time there was a little fox who could not sleep.", max_new_tokens=12)
listener.remove()
print("tokens read in each pass:", *passes)

# %% [markdown]
# The first pass is **prefill**: the whole prompt at once. The others are **decode**: one token each.
#
# Both kinds use the same weights, all of them. What differs is how much is *done* with a weight once it is there.
# Every weight is multiplied and added once for each token that goes by. So a pass of $M$ tokens in each of $B$ rows
# through $N$ weights costs
#
# $$\text{FLOPs} = 2 \, N \, B \, M$$
#
# That is a claim about real passes, so we count in real passes. Each linear layer reports what it multiplies.

# %%
counted = 0


def count(linear, inputs, output):
    global counted
    rows, tokens, _ = inputs[0].shape  # [B, T, d]
    counted += 2 * linear.weight.numel() * rows * tokens


linears = [module for module in target.transformer.modules() if isinstance(module, torch.nn.Linear)]
listeners = [linear.register_forward_hook(count) for linear in linears]
for tokens in (1, 5, 64):
    counted = 0
    target.transformer(torch.zeros(1, tokens, dtype=torch.long))
    formula = theory.pass_flops(target.num_parameters, tokens=tokens)
    print(f"{tokens:3d} tokens: counted {counted:>13,} FLOP, formula {formula:>13,.0f}, ratio {counted / formula:.4f}")
for listener in listeners:
    listener.remove()

# %% [markdown]
# The missing trace are the norms: they have weights, but no matrix. (Attention adds FLOPs of its own. We come to those.)
#
# The bytes are simpler still. The weights are read once, whatever $M$ is.

# %% [markdown]
# ## Arithmetic intensity
#
# FLOPs divided by bytes: what a pass does with each byte it has waited for.
#
# $$I = \frac{2 \, N \, B \, M}{N \cdot \text{bytes per weight}} = \frac{2 \, B \, M}{\text{bytes per weight}}$$
#
# In bf16 a weight has two bytes, and the intensity is simply $B \cdot M$, the tokens in the pass. The size of the model
# has dropped out. The function is [`arithmetic_intensity`](../minispec/theory.py).

# %%
print("tokens in the pass   float32   bf16   int4")
for tokens in (1, 5, 64, 2048):
    row = [theory.arithmetic_intensity(tokens=tokens, bytes_per_weight=size) for size in (4, 2, 0.5)]
    print(f"{tokens:18d} {row[0]:9.1f} {row[1]:6.0f} {row[2]:6.0f}")

# %% [markdown]
# ## Predict
#
# A GPU reads from memory and computes at the same time. An H200 was measured at 4.2 TB/s of reading and 790 TFLOP/s of
# arithmetic in bf16. It decodes with an 8 B model, one row, one token a pass.

# %% tags=["nbval-ignore-output"]
used = viz.predict("Which share of its arithmetic does the H200 use?", "%")
used

# %% [markdown]
# ## Run
#
# Two times run side by side, and the longer one decides. That is the whole **roofline** model:
#
# $$t = \max\left(\frac{\text{bytes}}{\text{bandwidth}}, \frac{\text{FLOPs}}{\text{peak}}\right)$$

# %% tags=["spoiler"]
H200 = theory.H200
read, flops = theory.pass_bytes(8e9), theory.pass_flops(8e9)
print(f"reading {read / 1e9:.0f} GB takes      {1e3 * read / H200.bandwidth:.2f} ms")
print(f"computing {flops / 1e9:.0f} GFLOP takes {1e3 * flops / H200.flops:.2f} ms")
print(f"the pass takes           {1e3 * theory.roofline_time(read, flops, H200):.2f} ms at best")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler"]
used.reveal(round(100 * theory.attainable_flops(theory.arithmetic_intensity(), H200) / H200.flops, 2))

# %% [markdown]
# The arithmetic units wait almost all of the time. They do so in every decode pass of every large model with few rows:
# such a pass is **memory-bound**. Not because the model is sequential (it is, and that is another problem), and not
# because attention is slow. Each byte is used for one operation and the machine could do far more.
#
# How many more? At the **balance point** both times are equal: peak divided by bandwidth. It is a property of the machine
# alone.

# %%
for hardware in (theory.H200, theory.H100, theory.A100, theory.NEOVERSE_N1):
    print(f"{theory.balance_point(hardware):6.1f} FLOP per byte   {hardware.name}")

# %% [markdown]
# ## Your machine
#
# Two of these lines are data sheets, two are measurements. Now measure yours. [`measure_here`](../minispec/course/viz/timing.py)
# reads a large block of memory, multiplies large matrices, and times passes of a model with 40 million random weights.
# What a pass costs depends on shapes, not on what the weights say. It takes ten seconds or so.

# %% tags=["nbval-ignore-output"]
here = viz.measure_here()
print(f"reads     {presets.si(here.hardware.bandwidth, 'B/s')}")
print(f"computes  {presets.si(here.hardware.flops, 'FLOP/s')} in float32")
print(f"balance   {theory.balance_point(here.hardware):.1f} FLOP per byte")
print(f"so a pass in float32 should be memory-bound up to "
      f"{theory.free_tokens(here.hardware, bytes_per_weight=4):.0f} tokens")  # fmt: skip

# %% [markdown]
# ## Play: the roofline explorer
#
# The roof is the most a machine can do at each intensity. Left of the ridge it is a slope: memory decides, and every
# further FLOP per byte is a gift. Right of it the roof is flat. Rings show a decode pass and a prefill of 512 tokens,
# the dot is your own pass. With the model `40M` in float32 on this machine you also see the passes that were just timed.

# %% tags=["nbval-ignore-output"]
viz.roofline(here)

# %% [markdown]
# Three things to try:
#
# 1. Move *tokens a row* from 1 upwards on this machine. Do the timed passes bend where the roof does? They lie below it:
#    a roof is what could be reached, and no real pass reaches it.
# 2. Choose the H200, `Llama-3-8B` and bf16. How many rows does it take to get a decode pass to the ridge? Then store the
#    weights in int4: the same pass moves to the right, and fewer tokens are free.
# 3. At 64 rows, raise the cached tokens. Decode moves back to the left. Every row brings its own cache to read, and no
#    other row can use it.

# %% [markdown]
# ## Why prefill is compute-bound
#
# Guide A says that prefill is compute-bound because attention is quadratic in the length of the prompt. Check it.
#
# Attention scores every pair of a token and one before it, and sums as many values: $4 \cdot \text{pairs}$ FLOPs per layer
# for each dimension of its heads. The linear layers do $2 N$ per token. At which prompt length do the two meet, for
# Llama-3-8B?

# %% tags=["nbval-ignore-output"]
meet = viz.predict("From which prompt length on does attention outweigh the linear layers?", "tokens")
meet

# %% tags=["spoiler"]
llama = presets.SHAPES["Llama-3-8B"]
N, width = presets.weights_read(llama), llama.num_layers * llama.num_heads * llama.head_dim
print("prompt   linear TFLOP   attention TFLOP   share of attention   FLOP per byte of weights")
for length in (128, 512, 2048, 8192):
    linear = theory.pass_flops(N, tokens=length) / 1e12
    attention = 4 * width * theory.step_work(length, cached=False).pairs / 1e12
    share = attention / (linear + attention)
    intensity = theory.arithmetic_intensity(tokens=length)
    print(f"{length:6d} {linear:14.2f} {attention:17.3f} {share:20.1%} {intensity:26.0f}")

# %% tags=["spoiler"]
meet.reveal(round(N / width, -3))  # 2·N·L = 4·width·L²/2

# %% [markdown]
# Take the attention away entirely and the picture stays. Prefill is compute-bound because **each weight that is read
# serves $L$ tokens**. The intensity is $L$, and beyond the balance point of the machine arithmetic decides. A prompt
# shorter than that is memory-bound as well, quadratic attention or not.
#
# It also tells you what a first token costs. Time to first token is a matter of FLOPs, time per further token one of
# bytes.

# %%
first, later = (theory.pass_time(H200, N, tokens=tokens) for tokens in (2048, 1))
print(
    f"Llama-3-8B on an H200: {1e3 * first:.1f} ms for a prompt of 2048 tokens, {1e3 * later:.2f} ms a token after that"
)
print(f"a token of the prompt costs {later / (first / 2048):.0f} times less than a token of the answer")

# %% [markdown]
# ## Verification lies in between
#
# Speculative decoding puts a token and $K$ drafted ones into one pass: $M = K + 1$. Guide B calls that a small prefill,
# compute-bound. Where does it lie?

# %%
print("rows   FLOP per byte   bound by   t(5) / t(1)")
for rows in (1, 8, 32, 64, 128):
    intensity = theory.arithmetic_intensity(batch=rows, tokens=5)
    limit = "memory" if intensity < theory.balance_point(H200) else "compute"
    ratio = theory.pass_time(H200, N, batch=rows, tokens=5) / theory.pass_time(H200, N, batch=rows)
    print(f"{rows:4d} {intensity:15.0f} {limit:>10} {ratio:13.2f}")
print(f"the turn comes at {theory.balance_point(H200) / 5:.0f} rows")

# %% [markdown]
# With few rows it is as memory-bound as decode. **That is why it is free.** Were arithmetic the limit already, five tokens
# would cost five times as much as one, and nobody would bother to draft. With many rows arithmetic does become the limit,
# and the gain of speculation ends. [`free_tokens`](../minispec/theory.py) gives the edge: the tokens a row that fit under
# the ridge.

# %%
for rows in (1, 8, 32, 128):
    print(f"{rows:4d} rows: {theory.free_tokens(H200, batch=rows):6.1f} tokens a row are free on an H200")

# %% [markdown]
# One more turn. The weights are shared by all rows; a cache belongs to its row. With long contexts the caches outweigh
# the weights. The $M$ tokens of a row share the reading of its cache, so verification becomes free again.

# %%
kept = theory.kv_bytes_per_token(llama.num_layers, llama.num_kv_heads, llama.head_dim)
shape = dict(weights=N, batch=64, kv_bytes=kept, attention_width=width)
print("64 rows, Llama-3-8B, H200")
for context in (0, 1024, 4096, 8192):
    read = theory.pass_bytes(N, batch=64, context=context, kv_bytes=kept)
    one, five = (theory.pass_time(H200, tokens=tokens, context=context, **shape) for tokens in (1, 5))
    print(
        f"context {context:6d}: {read / 1e9:5.0f} GB read, {1e3 * one:5.1f} ms a pass, t(5) / t(1) = {five / one:.2f}"
    )

# %% [markdown]
# ## Predict, run, reveal: your own $t(5) / t(1)$
#
# On your machine the roofline promised so many free tokens. A real pass over five tokens, relative to one?

# %% tags=["nbval-ignore-output"]
five_for_one = viz.predict("40M in float32 on this machine: t(5) / t(1)?", "× a pass of one")
five_for_one

# %% tags=["spoiler", "nbval-ignore-output"]
at = {point.tokens: point for point in here.curve}
roof = theory.free_tokens(here.hardware, bytes_per_weight=here.bytes_per_weight)
print(f"1 token: {presets.duration(at[1].time.median)}, 5 tokens: {presets.duration(at[5].time.median)}")
print(f"the roofline says: {max(1, 5 / roof):.2f} ×")
five_for_one.reveal(at[5].ratio)

# %% [markdown]
# A CPU is a hard case. Its balance point is low, and its matrix library may be made for large products only: some
# rearrange all weights before they multiply, which is more reading. [`kernels`](../minispec/kernels.py) has a product that
# reads each weight once for all tokens, and the model takes it where it is faster. Small models pay a third price that
# the roofline does not know: starting each operation.

# %% tags=["nbval-ignore-output"]
[one] = measure.verify_curve(target, tokens=(1,), context=64, repeat=25)
least = theory.pass_time(here.hardware, target.num_parameters, bytes_per_weight=4)
print(f"micro, one token: {presets.duration(one.time.median)}; its weights alone: {presets.duration(least)}")

# %% [markdown]
# If your pass took much longer than its weights, it is **overhead-bound**: neither memory nor arithmetic, but Python and
# the start of some hundred small operations. (If it took less, the weights stayed in the CPU's cache.)

# %% [markdown]
# ## Play: memory-bound timing
#
# Lines are rooflines, dots are measurements, the dotted line is what each token would pay alone. The distance between
# the dotted line and the dots is what speculation can use.

# %% tags=["nbval-ignore-output"]
viz.timing(here)

# %% [markdown]
# Three things to try:
#
# 1. Compare the dots with the line of the same colour. Where do they leave it, and which way?
# 2. Choose `Llama-3-8B` in bf16 and find the $M$ at which the H200's line leaves 1. Double the batch: it moves by half.
# 3. Change the model and nothing else. The H200's line hardly moves: the size of a model sets the time, not the ratio.

# %% [markdown]
# ## What can be done about it
#
# The bottleneck sorts the remedies. Decode reads too much for what it does, so either read less or share the reading.
#
# | remedy | what it changes | where |
# |---|---|---|
# | KV cache | computes nothing twice | [02](02_kv_cache.ipynb) |
# | batching | more rows share a weight | 04 |
# | paged blocks | room for more rows | 03 |
# | speculation | more tokens of one row share a weight | 05 to 11 |
# | quantisation | fewer bytes per weight | 12 |
# | several GPUs | more bandwidth | 16 |
#
# Batching and speculation spend the same idle arithmetic. What one has used, the other cannot have.

# %% [markdown]
# ## In production
#
# - vLLM and SGLang report **TTFT** (time to first token: queue and prefill) and **TPOT** or **ITL** (time per output
#   token: decode) apart, because different resources limit them.
# - `max_num_batched_tokens` in vLLM caps the tokens $B \cdot M$ of a step. A long prompt is cut into pieces that ride along
#   with decode: **chunked prefill**. Compute-bound and memory-bound work share a pass. In SGLang `--chunked-prefill-size`
#   cuts the prompt, and with `--enable-mixed-chunk` its pieces share passes with decode.
# - Large services run prefill and decode on different machines: **disaggregated prefill** in vLLM, **PD disaggregation**
#   in SGLang.
# - Overhead is fought with CUDA graphs: a whole pass is one launch. `--enforce-eager` in vLLM turns them off, together
#   with `torch.compile`, and shows what both were worth.

# %% [markdown]
# ## Check yourself
#
# <details><summary>A model is stored in int4 instead of bf16. Its decode pass is memory-bound before and after. What
# happens to its time, its intensity, and the number of free tokens?</summary>
#
# The time falls to about a quarter, if the kernel really reads a quarter of the bytes. The intensity is four times as
# high. The free tokens are a quarter as many.
# </details>
#
# <details><summary>Why is the size of the model not in the arithmetic intensity?</summary>
#
# Twice the weights are twice the bytes and twice the FLOPs. The ratio is a matter of how many tokens share a weight, and
# of the bytes of one.
# </details>
#
# <details><summary>A prompt has 20 tokens. Is its prefill compute-bound on an H200?</summary>
#
# No. Its intensity in bf16 is 20, far below the balance point. It takes as long as decoding one token.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Williams, Waterman, Patterson, 2009: *Roofline: an insightful visual performance model for multicore architectures*
#   ([CACM 52(4)](https://doi.org/10.1145/1498765.1498785)): the picture you have drawn, explained by its inventors.
# - Pope et al., 2023: *Efficiently scaling transformer inference*
#   ([arXiv:2211.05102](https://arxiv.org/abs/2211.05102)): the same accounting for models of 540B parameters.
# - Shazeer, 2019: *Fast transformer decoding: one write-head is all you need*
#   ([arXiv:1911.02150](https://arxiv.org/abs/1911.02150)): the first analysis of decoding as a problem of bandwidth.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - Practise: [exercises 01](../exercises/01_why_decoding_is_slow.ipynb).
# - Be asked, with `minispec drill`: `decode-memory-bound`, `prefill-and-decode`, `sequential-dependency`,
#   `bottlenecks-and-remedies`, `roofline-free-tokens`, `latency-metrics`.
# - Go on: [02 KV cache](02_kv_cache.ipynb).
