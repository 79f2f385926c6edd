# %% [markdown]
# # 01 Why decoding is slow
#
# *Time:* 50 minutes · *Before this:* [00 Start here](00_start_here.ipynb) · *Practice:* [exercises 01](../exercises/01_why_decoding_is_slow.ipynb)
#
# An H200 can do hundreds of trillions of operations per second, and yet a model of 8 billion parameters in bf16
# generates at most a few hundred tokens per second on it for one user, without the tricks of this course. This lesson
# finds out what the GPU is waiting for. The answer decides which of the later techniques can help, and when.
#
# You will be able to
#
# - tell prefill from decode by one number, the arithmetic intensity;
# - find both phases on the roofline of your own machine;
# - say how long a forward pass of a dense model takes at best, on a given machine;
# - say when verifying a draft costs almost no extra time, and when that ends.

# %%
import os

import minispec as ms
from minispec import measure, theory
from minispec_course import viz
from minispec_course.labs import presets
from minispec_course.labs.pairs import where

# %% [markdown]
# ## Two kinds of forward pass
#
# Lesson 00 found two kinds of forward pass: **prefill**, which takes the whole prompt at once, and **decode**, which
# takes one token per sequence. Both use all of the weights. What differs is how much work is done with a weight once it
# has arrived from memory.
#
# In a linear layer each parameter is multiplied once and added once for every token. So let $N$ be the number of
# parameters, $B$ the **batch size** (how many sequences go through the model together) and $M$ the number of tokens
# that each sequence brings to the pass. Counting a multiplication and an addition as one FLOP each, the pass costs
#
# $$\text{FLOPs} = 2 \, N \, B \, M$$
#
# (Strictly, $N$ leaves out an input embedding that is stored separately, because a token only looks up one vector in
# it. Attention has FLOPs of its own, which do not involve weights; we come to those below.)
#
# And the bytes? A **dense** model uses the same weights for every token. So one pass reads each weight once, however
# many tokens it processes. (A mixture of experts does not; see *Go deeper* at the end.)

# %% [markdown]
# ## Arithmetic intensity
#
# How much work does a pass do with each byte that it has waited for? This ratio of FLOPs to bytes is called the
# **arithmetic intensity**:
#
# $$I = \frac{2 \, N \, B \, M}{N \cdot \text{bytes per parameter}} = \frac{2 \, B \, M}{\text{bytes per parameter}}$$
#
# In bf16 a parameter has two bytes, so the intensity is simply $B \cdot M$, the number of tokens in the pass. The size
# of the model has cancelled. The function is [`arithmetic_intensity`](../minispec/theory.py).

# %%
print("tokens in the pass   float32   bf16   int4     (FLOP per byte)")
for tokens in (1, 5, 64, 2048):
    row = [theory.arithmetic_intensity(tokens=tokens, bytes_per_weight=size) for size in (4, 2, 0.5)]
    print(f"{tokens:18d} {row[0]:9.1f} {row[1]:6.0f} {row[2]:6.0f}")

# %% [markdown]
# ## Predict
#
# A GPU reads from memory and computes at the same time. How fast it does both can be taken from the data sheet, or it
# can be measured with a large copy and a large matrix product, which gives less. Here are both for an H200 in bf16:

# %%
H200 = theory.H200
for gpu in (H200, theory.H200_SHEET):
    print(f"{gpu.bandwidth / 1e12:.1f} TB/s   {gpu.flops / 1e12:.0f} TFLOP/s   {gpu.name}")

# %% [markdown]
# Wherever this lesson says H200 without more, it uses the measured pair, 4.2 TB/s and 790 TFLOP/s. Now let this GPU
# decode with a model of 8 billion parameters in bf16, at batch size 1, one token per pass.

# %% tags=["nbval-ignore-output"]
used = viz.predict("Which share of its arithmetic does the H200 use?", "%")
used

# %% [markdown]
# ## Run
#
# Reading and computing go on side by side, so the slower of the two decides how long the pass takes. This is the whole
# **roofline** model (Williams et al., 2009):
#
# $$t = \max\left(\frac{\text{bytes}}{\text{bandwidth}}, \frac{\text{FLOPs}}{\text{peak}}\right)$$

# %% tags=["spoiler"]
read, flops = 8e9 * 2, theory.pass_flops(8e9)  # two bytes per parameter
seconds = theory.pass_time(H200, 8e9)  # the larger of the next two
print(f"reading {read / 1e9:.0f} GB takes      {1e3 * read / H200.bandwidth:.2f} ms")
print(f"computing {flops / 1e9:.0f} GFLOP takes {1e3 * flops / H200.flops:.2f} ms")
print(f"the pass takes           {1e3 * seconds:.2f} ms at best: {1 / seconds:.0f} tokens per second")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler"]
used.reveal(round(100 * flops / seconds / H200.flops, 2))

# %% [markdown]
# The arithmetic units wait nearly all of the time. The same holds for decoding with any large dense model at a small
# batch size, and such a pass is called **memory-bound**. The cause is that generation is sequential: a sequence brings
# a single token to each pass, because the next one is not known yet. So with few sequences each byte that is read
# serves very few operations.

# %% [markdown]
# ## The picture that this course rests on
#
# All weights stream from memory past the tokens of the pass, whether there is one of them or two hundred. The widget
# plays one pass: the blue meter counts the bytes that were read, the orange one the arithmetic that was done, and empty
# space is idle time. A tile of the memory is a sixtieth of the weights, a tile of the cache has as many bytes.
#
# Try three things. Raise $M$ from 1 to 5: the pass takes as long as before. Raise it to 200: now the orange bar is as long
# as the blue one, and from there on more tokens take more time. Then go back to one token, choose batch size 64 and raise
# the number of cached tokens: 64 sequences share the weights, but each of them brings its own KV cache, which can outweigh
# the weights.

# %% tags=["nbval-ignore-output"]
viz.weights_stream()

# %% [markdown]
# How many operations could a byte serve? There is an intensity at which reading and computing take equally long. It is the peak
# divided by the bandwidth, and it is called the **ridge point** (or ops:byte ratio; in our code `balance_point`). It
# depends on the machine and on the number format in which the machine computes, but not on the model. Below the ridge
# point a pass is memory-bound, above it **compute-bound**.

# %%
for hardware in (H200, theory.H200_SHEET, theory.H100, theory.A100, theory.NEOVERSE_N1):
    print(f"{theory.balance_point(hardware):6.1f} FLOP per byte   {hardware.name}")

# %% [markdown]
# If you quote a ridge point in an interview, say which of the two you quote: the data sheet of an H200 gives 206, our
# measurements give 188.

# %% [markdown]
# ## Your machine
#
# What is the ridge point of the machine you sit at? [`measure_here`](../minispec_course/labs/passes.py) reads a large
# block of memory on your device (the GPU if there is one, see lesson 00), multiplies large matrices, and times passes of
# a model with random parameters: 40 million of them in float32 on a CPU, 1.2 billion in 16 bits on a GPU with room for
# them. (Random ones will do, because the time of a pass depends on the shapes and not on the values.) It takes about ten
# seconds, and as long again if the package still has to compile its own matrix product, which is explained below.

# %% tags=["nbval-ignore-output"]
device = ms.device()
here = viz.measure_here(device=device)
ridge = theory.balance_point(here.hardware)
print(f"{where(device)}, {presets.name_of(here.bytes_per_weight)}")
print(f"reads        {here.hardware.bandwidth / 1e9:,.1f} GB/s")
print(f"computes     {here.hardware.flops / 1e9:,.1f} GFLOP/s")
print(f"ridge point  {ridge:.1f} FLOP per byte")

# %% [markdown]
# Let $t(M)$ be the time of a pass with $M$ tokens per sequence. How much longer does a pass over five tokens take on
# your machine than a pass over one? Work out first what the roofline says (in float32 a parameter has four bytes, so
# the intensity is $M / 2$; in 16 bits it is $M$), and then guess what the clock said.

# %% tags=["nbval-ignore-output"]
five_for_one = viz.predict(f"{here.model} on this machine: t(5) / t(1), measured?", "times")
five_for_one

# %% tags=["spoiler", "nbval-ignore-output"]
at = {point.tokens: point for point in here.curve}
free = theory.free_tokens(here.hardware, bytes_per_weight=here.bytes_per_weight)
print(f"1 token: {1e3 * at[1].time.median:.2f} ms, 5 tokens: {1e3 * at[5].time.median:.2f} ms")
print(f"the roofline says {max(1, 5 / free):.2f} times: memory-bound up to {free:.1f} tokens")
five_for_one.reveal(at[5].ratio)

# %% [markdown]
# If the clock came close to the roofline, that is not a matter of course. General matrix libraries are made for many
# tokens, and some rearrange all weights before they multiply, which is additional reading. So for few tokens the model
# uses a product of its own, which reads each weight once for all of them (on a CPU [`kernels`](../minispec/kernels.py),
# on a GPU [`products`](../minispec/gpu/products.py)).
#
# There is one more cost, which the roofline does not know: the start of each operation, and other work that does not
# depend on the number of tokens. This is **overhead**. A pass that takes much longer than both reading and computing is
# called **overhead-bound**, and passes of small models often are. (*Go deeper* at the end measures it for `micro`.) So
# in lesson 00 the five tokens of `micro` shared the reading and the overhead.

# %% [markdown]
# ## Play: the roofline explorer
#
# The roof is the most that a machine can do at each intensity. To the left of the ridge it is a slope, because memory
# decides. To the right it is flat, because arithmetic decides. The rings show a decode pass and a prefill of 512
# tokens, and the dot is the pass that you set. The passes that were timed lie below their roofs, each with its $M$ beside
# it: those of *this machine, measured just now*, and those of an H200 that we *recorded* with the shape of Llama-3-8B in
# bf16. Whichever machine you choose, the roofs of these two stay in the picture, dotted.

# %% tags=["nbval-ignore-output"]
viz.roofline(here)

# %% [markdown]
# Two tasks:
#
# 1. Choose the H200, `Llama-3-8B` and bf16. At which batch size does a decode pass reach the ridge? Then store the
#    weights in int4: the same pass moves to the right, because fewer bytes are read for the same work.
# 2. At batch size 64, raise the number of cached tokens. Decode moves back to the left, because attention reads
#    the stored keys and values of every sequence (its KV cache, lesson 02), and these serve that sequence alone.
#
# How far below its roof does a pass of your machine lie, at $M = 1$ and at the largest $M$? Compare with the H200.

# %% [markdown]
# ## Why prefill is compute-bound
#
# A widespread explanation says that prefill is compute-bound because attention is quadratic in the length of the
# prompt. Is that the reason?
#
# Without any attention at all, prefill would still be compute-bound, because **each weight that is read serves all $L$
# tokens of the prompt**. The intensity is $L$ in bf16, and once it exceeds the ridge point, arithmetic decides. That
# takes a few hundred tokens on the GPUs above. At such lengths attention is a small part of the work: in Llama-3-8B it
# reaches about an eighth at 8,192 tokens (*Go deeper* computes this). So attention cannot be the reason. And a prompt
# that is shorter than the ridge point is memory-bound, quadratic attention or not.
#
# So for a long prompt at batch size 1, prefill is a matter of FLOPs and each further token a matter of bytes. By the
# roofline a decode pass on an H200 takes as long as a pass over 188 tokens, and uses the time for one.

# %% [markdown]
# ## Verification lies in between
#
# Speculative decoding puts the last token and $k$ draft tokens into one pass, so $M = k + 1$. Is that a small prefill,
# and therefore compute-bound, as is sometimes said? Put it on the roofline, for $k = 4$ and growing batch sizes. The
# model is Llama-3-8B, whose input embedding of half a billion parameters does not count. The last column,
# [`free_tokens`](../minispec/theory.py), is the $M$ at which the pass reaches the ridge point.

# %%
llama = presets.SHAPES["Llama-3-8B"]
N, ridge = presets.weights_read(llama), theory.balance_point(H200)
print(f"N = {N / 1e9:.1f} billion parameters read per pass")
print("batch size   FLOP per byte   bound by   t(5) / t(1), roofline   M at the ridge")
for batch in (1, 8, 32, 64, 128):
    intensity = theory.arithmetic_intensity(batch=batch, tokens=5)
    limit = "memory" if intensity < ridge else "compute"
    ratio = theory.pass_time(H200, N, batch=batch, tokens=5) / theory.pass_time(H200, N, batch=batch)
    print(f"{batch:10d} {intensity:15.0f} {limit:>10} {ratio:23.2f} {theory.free_tokens(H200, batch):16.1f}")

# %% [markdown]
# At a small batch size verification is as memory-bound as decode, and **that is why it costs almost no extra time**. At
# batch size 1, 188 tokens take no longer than one by the roofline, and since the last token is in the pass anyway, 187
# of them can be draft tokens. As the batch grows, verification becomes compute-bound (from 38 sequences on for $k = 4$)
# and the gain of speculation shrinks. At batch size 128 not a single draft token is free. Beyond 188 sequences already
# the pass over one token is compute-bound. Then five tokens cost five times as much and give at most five tokens, so by
# the roofline drafting cannot pay.
#
# How close is that to a real GPU? Our engine, with the shape of Llama-3-8B in bf16 (and random weights) on an H200,
# after 500 tokens of context, measured $t(5)/t(1)$ = 1.04 at batch size 1, 1.23 at 32 and 1.90 at 128
# ([benchmarks](../docs/benchmarks.md)), where the roofline for this context gives 1.00, 1.00 and 2.54. So a real curve
# has no sharp corner, and it begins to rise earlier. (At 128 only the *ratio* is below that of the roofline. The pass
# over one token took more than twice its bound there, so what the other four add is a smaller share of it.)
#
# The table counts the weights only. When contexts are long, the KV caches outweigh the weights. Then verification becomes
# cheaper again at large batches, because the $M$ tokens of a sequence share the reading of its cache; *Go deeper* has the
# numbers. Whether speculation pays there depends on the drafter as well, which has a cost and usually a cache of its own
# (lesson 11).

# %% [markdown]
# ## What can be done about it
#
# Once the bottleneck is known, the techniques fall into order. Decode reads too many bytes for the work it does, so most
# of them either read fewer bytes or let more tokens share them.
#
# | technique | what it changes | lesson |
# |---|---|---|
# | KV cache | no token is computed twice | [02](02_kv_cache.ipynb) |
# | paged blocks | more sequences fit into memory | 03 |
# | continuous batching | more sequences share each reading of the weights | 04 |
# | speculation | more tokens of one sequence share it | 05 to 11 |
# | quantisation | fewer bytes per parameter | 12 |
# | several GPUs | more bandwidth | 16 |
#
# Batching and speculation use the same idle arithmetic, so what one of them has used is not there for the other.

# %% [markdown]
# ## Go deeper (optional)
#
# <details><summary>Are the weights of a mixture of experts read once per pass, too?</summary>
#
# Such a model has many alternative feed-forward layers (experts), and a router lets each token use only a few of them.
# A pass reads the experts that at least one of its tokens uses, so more tokens mean more bytes. With 256 experts per
# layer, of which every token uses 8, a pass over one token reads 8 of them. If the choices were independent and uniform,
# a pass over five would read 256 · (1 − (1 − 8/256)⁵) = 37.6. So verifying four draft tokens at batch size 1 can make such
# a model read up to nearly five times as many experts. If neighbouring tokens choose some of the same experts, the
# factor is smaller. At a large batch size nearly all experts are read anyway, and the effect disappears.
# </details>
#
# **How much of the work is attention?** It works on pairs of a token and a token before it (or itself), and a prompt of
# $L$ tokens has about $L^2/2$ of them. With heads of $D$ numbers, a pair costs $2 D$ FLOPs for the score and $2 D$ for
# the weighted sum, in each head of each layer. So it costs $4 W$ FLOPs in all, where $W = \text{layers} \cdot
# \text{heads} \cdot D$. The linear layers do $2 N$ FLOPs per token. So attention grows with the square of the prompt
# length and the linear layers in proportion to it. At which length are the two equal?

# %%
W = llama.num_layers * llama.num_heads * llama.head_dim
print(f"Llama-3-8B: N = {N / 1e9:.1f} billion, W = {W:,}")

# %% tags=["nbval-ignore-output"]
meet = viz.predict("From which prompt length on does attention outweigh the linear layers?", "tokens")
meet

# %% tags=["spoiler"]
print("prompt   linear TFLOP   attention TFLOP   share of attention   FLOP per byte of weights")
for length in (128, 512, 2048, 8192):
    linear = theory.pass_flops(N, tokens=length) / 1e12
    attention = 4 * W * (length * (length + 1) // 2) / 1e12
    share = attention / (linear + attention)
    intensity = theory.arithmetic_intensity(tokens=length)
    print(f"{length:6d} {linear:14.2f} {attention:17.3f} {share:20.1%} {intensity:26.0f}")

# %% tags=["spoiler"]
meet.reveal(round(N / W, -3))  # 2·N·L = 4·W·L²/2

# %% [markdown]
# So attention outweighs the linear layers only at lengths far beyond the ridge point, and prefill is compute-bound long
# before.
#
# **Long contexts.** How much does the KV cache change at batch size 64? A pass now reads the weights and the caches of
# all sequences. The products with the weights and attention to the caches are kernels one after the other, so
# [`pass_time`](../minispec/theory.py) bounds each of them by the roofline and adds the two:

# %%
kv_bytes = 128 * 1024  # per cached token of Llama-3-8B in bf16: lesson 02 computes it
shape = dict(weights=N, batch=64, kv_bytes=kv_bytes, attention_width=W)
print("batch size 64, Llama-3-8B, H200, by the roofline")
for context in (0, 1024, 4096, 8192):
    read = 2 * N + 64 * context * kv_bytes
    one, five = (theory.pass_time(H200, tokens=tokens, context=context, **shape) for tokens in (1, 5))
    times = f"{1e3 * one:4.1f} ms per pass, t(5) / t(1) = {five / one:.2f}"
    print(f"context {context:5d}: {read / 1e9:3.0f} GB read, {times}")

# %% [markdown]
# The products over five tokens per sequence are compute-bound in every line, but attention takes as long for five as for
# one, and the longer the context, the larger its share of the pass. So $t(5)/t(1)$ falls towards 1.
#
# **Overhead.** Here one pass of `micro` is timed on your device in two ways. In the first, Python starts one small
# operation after the other. In the second, the default, all layers are started at once: on a CPU as a single call of
# compiled code, on a GPU as a recorded **CUDA graph**. Both read the same weights and compute the same numbers.

# %% tags=["nbval-ignore-output"]
least = measure.weight_bytes(ms.load("micro", device=device)) / here.hardware.bandwidth
print(f"reading the weights:    {1e3 * least:.3f} ms")
for choice, how in (("torch", "operation by operation"), ("auto", "all layers at once")):
    os.environ["MINISPEC_LINEAR"] = choice  # CPU: PyTorch's own operations, or our compiled code if that is faster
    micro = ms.load("micro", device=device, fast=None if choice == "auto" else False)  # GPU: recorded, or not
    [one] = measure.verify_curve(micro, tokens=(1,), context=64, repeat=25)
    print(f"{how + ':':23} {1e3 * one.time.median:.3f} ms")

# %% [markdown]
# Most of the difference between the two passes is overhead, so operation by operation `micro` is overhead-bound. (A
# part of it is the matrix product, which differs as well, see *Your machine*.) Even the second pass takes longer than
# the reading. When we took it apart on a CPU, the compiled call took hardly longer than reading its weights, and most of
# the rest was work around it: Python looks up the embedding, prepares the call, and starts the last norm and the output
# matrix. On a GPU a graph still has to start its kernels one after another, and each of them has next to nothing to read.
# (If other programs use the machine, a pass of a few milliseconds also waits for a core. And if a pass took less time than
# the reading, the weights stayed in the processor's cache and were not read from memory at all.)

# %% [markdown]
# ## In production
#
# - Servers report **TTFT** (time to first token: waiting in the queue, then prefill) separately from the speed of
#   decode, because different resources limit the two.
# - For decode there are two metrics that are often confused. **TPOT** (time per output token) is an average over a
#   request: the time from the first to the last token, divided by the number of tokens after the first. **ITL**
#   (inter-token latency) is each single gap between two deliveries to the user. Under speculation one delivery may
#   carry several tokens, so TPOT falls while the gaps stay as long as a cycle of drafting and verifying.
# - A long prefill would hold up the decodes that wait for the same GPU. Many servers therefore mix pieces of prefill
#   into the passes of decode (**chunked prefill**, Agrawal et al., 2023, arXiv:2308.16369; lesson 04), and some run the
#   two on different GPUs (**disaggregated prefill** in vLLM, **PD disaggregation** in SGLang).
# - Overhead is reduced with CUDA graphs, which launch a recorded pass as a whole. `--enforce-eager` in vLLM turns them
#   off, together with `torch.compile`.

# %% [markdown]
# ## Check yourself
#
# <details><summary>A model is stored in int4 instead of bf16. Its decode pass has a short context and is memory-bound
# before and after. What happens to its time, to its intensity, and to the number of tokens that take no longer than one?</summary>
#
# The time falls to about a quarter, provided that the kernel really reads a quarter of the bytes. The intensity becomes
# four times as high, so a pass reaches the ridge point with a quarter as many tokens. (The products are still computed in
# bf16, so the ridge point stays.)
# </details>
#
# <details><summary>Why does the arithmetic intensity not depend on the size of the model?</summary>
#
# Twice as many parameters are twice as many bytes and twice as many FLOPs, so the ratio stays. It depends on how many
# tokens share a parameter and on how many bytes a parameter has.
# </details>
#
# <details><summary>A prompt has 20 tokens. Is its prefill compute-bound on an H200?</summary>
#
# No. Its intensity in bf16 is 20 FLOP per byte, far below the ridge point, so it takes about as long as decoding one
# token.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Williams, Waterman, Patterson, 2009: *Roofline: an insightful visual performance model for multicore architectures*
#   ([CACM 52(4)](https://doi.org/10.1145/1498765.1498785)): the picture you have drawn, explained by its inventors.
# - Pope et al., 2023: *Efficiently scaling transformer inference*
#   ([arXiv:2211.05102](https://arxiv.org/abs/2211.05102)): the same accounting for models of 540B parameters.
# - Shazeer, 2019: *Fast transformer decoding: one write-head is all you need*
#   ([arXiv:1911.02150](https://arxiv.org/abs/1911.02150)): an early analysis of decoding as a problem of bandwidth.
# - Chen et al., 2024: *MagicDec: breaking the latency-throughput tradeoff for long context generation with speculative
#   decoding* ([arXiv:2408.11049](https://arxiv.org/abs/2408.11049)): what long contexts do to speculation.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - Practise: [exercises 01](../exercises/01_why_decoding_is_slow.ipynb).
# - Be asked, with `minispec drill`: `decode-memory-bound`, `prefill-and-decode`, `sequential-dependency`,
#   `bottlenecks-and-remedies`, `roofline-free-tokens`, `latency-metrics`.
# - Go on: [02 KV cache](02_kv_cache.ipynb).
