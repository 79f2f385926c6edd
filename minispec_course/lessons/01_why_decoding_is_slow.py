# %% [markdown]
# # 01 Why decoding is slow
#
# *Time:* 45 minutes · *Before this:* [00 Start here](00_start_here.ipynb) · *Practice:* [exercises 01](../exercises/01_why_decoding_is_slow.ipynb)
#
# Suppose the chatbot runs on a large GPU, which can do hundreds of trillions of operations per second. Even so, the answer
# trickles out. In lesson 00 five tokens took far less than five times as long as one, so the machine must be waiting for
# something. This lesson finds out what it is, and fills in the number on the dashboard that shows it: how much of the
# machine is **busy**.
#
# You will be able to
#
# - say what limits a forward pass, by dividing two numbers;
# - measure the bandwidth of your machine with one sum, and draw its roofline;
# - say when verifying a draft costs almost no extra time, and when that ends.

# %%
import statistics
import time

import torch

import minispec as ms
from minispec import measure, theory
from minispec_course import viz
from minispec_course.check import yours
from minispec_course.labs import presets
from minispec_course.labs.pairs import course_pair, where

# %% [markdown]
# ## One user on a large GPU
#
# Take an H200, a data-centre GPU. Its memory, called **HBM** (high-bandwidth memory), delivered 4.2 TB/s when we
# measured it. Its arithmetic is done by **tensor cores**, units for matrix products in each of its 132 **SMs**
# (streaming multiprocessors), and they did 790 TFLOP/s in bf16, a number format of 16 bits; a FLOP is one
# multiplication or one addition. Let it decode with a **dense** model of 8 billion parameters, two bytes each: one
# token per pass, for one user. Dense means that for each token every parameter takes part in one multiplication and one
# addition.

# %% tags=["nbval-ignore-output"]
used = viz.predict("What percentage of its arithmetic does the H200 use?", "%")
used

# %% tags=["spoiler"]
H200, N = theory.H200, 8e9
reading = 2 * N / H200.bandwidth  # each parameter is read once per pass, and has two bytes
computing = 2 * N / H200.flops  # each parameter costs one multiplication and one addition per token
print(f"reading {2 * N / 1e9:.0f} GB of weights takes   {1e3 * reading:.2f} ms")
print(f"computing {2 * N / 1e9:.0f} GFLOP takes         {1e3 * computing:.2f} ms")
used.reveal(round(100 * computing / reading, 2))

# %% [markdown]
# For more than 99 % of the time the tensor cores wait. All weights have to travel from HBM to the SMs once per pass,
# and with one token per pass each of them is used for a single multiplication and addition when it arrives. Such a pass
# is **memory-bound**, and a faster processor would not help it.
#
# ## How fast is your memory?
#
# A measurement is better than the data sheet. The sum of a large tensor reads every number once and
# computes next to nothing, so its time is the time of reading. We run it nine times, because a single timing says
# little.
#
# ### Yours: bandwidth from a sum
#
# `x` is a tensor, and `seconds` is the list of times that `x.sum()` took. Return the bytes read per second, using the
# median time. `x.numel()` and `x.element_size()` help, and so does `statistics.median`.


# %%
@yours("01.bandwidth")
def bandwidth(x: torch.Tensor, seconds: list[float]) -> float:
    """Bytes per second at which a sum of x reads its memory."""
    ### BEGIN SOLUTION: bytes of the tensor, divided by the median of the seconds
    return x.numel() * x.element_size() / statistics.median(seconds)
    ### END SOLUTION


# %% tags=["nbval-ignore-output"]
device = ms.device()
x = torch.ones(2**28 if "cuda" in str(device) else 2**26, device=device)  # far more than any cache holds
seconds = []
for _ in range(9):
    measure.synchronize(device)  # a GPU works ahead of Python: wait until it is idle before and after
    start = time.perf_counter()
    x.sum()
    measure.synchronize(device)
    seconds.append(time.perf_counter() - start)
print(f"{where(device)} reads {bandwidth(x, seconds) / 1e9:.1f} GB/s")

# %% [markdown]
# Divide the size of a model by this number, and you have the shortest time in which your machine can generate one token
# with it. The bot of lesson 00:

# %% tags=["nbval-ignore-output"]
bot, _ = course_pair(device)
size, [bot_pass] = measure.weight_bytes(bot), measure.verify_curve(bot, tokens=(1,), repeat=25)
print(f"{bot.name}: {size / 1e6:.0f} MB are read in {1e3 * size / bandwidth(x, seconds):.2f} ms at best")
print(f"a pass over one token takes {1e3 * bot_pass.time.median:.2f} ms")

# %% [markdown]
# The bot is small, so reading explains only a part of its pass. Most of the rest goes into starting operations, which
# does not depend on the number of tokens either. In a large model reading dominates.
#
# ## Work per byte
#
# How much work does a pass do with each byte that it waited for? This ratio is the **arithmetic intensity**. With $N$
# parameters of $b$ bits, a **batch** of $B$ sequences and $M$ tokens per sequence in this pass, the work is
# $2 \, N \, B \, M$ FLOPs (without attention's own arithmetic; see *Go deeper*). The weights are read once for all of
# these tokens, $N \, b / 8$ bytes. Attention also reads what the model keeps of the earlier tokens of a sequence, its
# **KV cache** (lesson 02 builds it): $L$ tokens of $c$ bytes each, which no other sequence shares.
#
# $$I = \frac{2 \, N \, B \, M}{N \, b / 8 + B \, L \, c}$$
#
# ### Yours: the intensity
#
# `weights` is $N$, `bits` $b$, `batch` $B$, `tokens` $M$, `context` $L$, and `kv_bytes` is $c$, the bytes of one cached
# token in all layers. Before you type it: why is $M$ not in the denominator, and why is $B$ in only one of its two
# terms?


# %%
@yours("01.intensity")
def intensity(weights: float, bits: int, batch: int, tokens: int, context: int, kv_bytes: float) -> float:
    """FLOPs per byte of a forward pass."""
    ### BEGIN SOLUTION: the FLOPs of all tokens, the bytes of the weights and of the caches
    flops = 2 * weights * batch * tokens
    bytes_read = weights * bits / 8 + batch * context * kv_bytes
    return flops / bytes_read
    ### END SOLUTION


# %%
KV_BYTES = 131_072  # of one token in the cache of Llama-3-8B, a model of this size; lesson 02 computes it
for name, batch, tokens, context in (
    ("decode, one user", 1, 1, 0),
    ("verify 4 draft tokens", 1, 5, 0),
    ("decode, 64 users", 64, 1, 0),
    ("the same after 8192 tokens", 64, 1, 8192),
    ("prefill of 2048 tokens", 1, 2048, 0),
):
    print(f"{name:27s} {intensity(8e9, 16, batch, tokens, context, KV_BYTES):7.1f} FLOP per byte")

# %% [markdown]
# Without a context the intensity in bf16 is the number of tokens in the pass: the size of the model cancels.
# As far as the weights go, that number is the whole difference between **prefill**, the pass over a whole prompt, and
# **decode**, the passes over one token per sequence.
#
# ## The roofline
#
# Reading and computing go on side by side, so the slower one decides how long the pass takes. This is the whole
# **roofline** model (Williams et al., 2009).
#
# ### Yours: the roofline
#
# Return the seconds of a pass, and which side sets them: `"memory"` or `"compute"`.


# %%
@yours("01.roofline")
def roofline(bytes_read: float, flops: float, bandwidth: float, peak: float) -> tuple[float, str]:
    """How long a pass takes at best, and what limits it."""
    ### BEGIN SOLUTION: the time of reading and the time of computing; the longer one decides
    reading, computing = bytes_read / bandwidth, flops / peak
    return max(reading, computing), "memory" if reading > computing else "compute"
    ### END SOLUTION


# %% [markdown]
# There is an intensity at which both take equally long: the peak divided by the bandwidth. It is called the **ridge
# point** (or ops:byte ratio), and it belongs to the machine, not to the model. Below it a pass is memory-bound, above
# it **compute-bound**.

# %%
for machine in (H200, theory.H200_SHEET, theory.H100, theory.A100, theory.NEOVERSE_N1):
    print(f"{machine.flops / machine.bandwidth:6.1f} FLOP per byte   {machine.name}")

# %% [markdown]
# If you quote a ridge point in an interview, say which one: the data sheet of an H200 gives 206, our measurements 188.
#
# ## Watch the weights go by
#
# The widget plays one pass: bytes read in blue, arithmetic done in orange, and idle time empty. (It counts 7.5 billion
# parameters and not 8, because a pass looks up single rows of the embedding table.) Try:
#
# 1. Raise $M$, the number of tokens, from 1 to 5. Does the pass take longer?
# 2. Find the $M$ at which the orange bar catches up with the blue one: it is the ridge.
# 3. Go back to one token, choose batch size 64 and raise the cached tokens. The 64 sequences share the weights, but each
#    of them brings a cache of its own.

# %% tags=["nbval-ignore-output"]
viz.weights_stream()

# %% [markdown]
# ## Your machine
#
# Now your own roof, and real passes below it. [`measure_here`](../minispec_course/labs/passes.py) measures your
# bandwidth, times a large matrix product (a **GEMM**, general matrix multiplication), and then passes of a model with
# random parameters, because its time depends on shapes and not on values: 40 million of them on a CPU, a billion on a
# GPU. The peak is the best rate that the GEMM or a pass reached.

# %% tags=["nbval-ignore-output"]
here = viz.measure_here(tokens=(1, 2, 4, 8, 16, 32), device=device)
ridge = here.hardware.flops / here.hardware.bandwidth
print(f"reads        {here.hardware.bandwidth / 1e9:,.1f} GB/s")
print(f"computes     {here.hardware.flops / 1e9:,.1f} GFLOP/s in {presets.name_of(here.bytes_per_weight)}")
print(f"ridge point  {ridge:.1f} FLOP per byte")

# %% [markdown]
# (Your ridge point can differ from the list above: a virtual machine shares its processor.)
#
# In lesson 00 four more tokens cost little. How far does that go? In bf16 the intensity is $M$; in float32, on
# a CPU, a parameter has four bytes, so it is $M/2$. Before you guess: at which $M$ does it reach your ridge?

# %% tags=["nbval-ignore-output"]
many = viz.predict("On your machine, a pass over 32 tokens takes how many times as long as a pass over 1?", "times")
many

# %% tags=["spoiler", "nbval-ignore-output"]
for point in here.curve:
    by_roofline = max(1, 2 * point.tokens / here.bytes_per_weight / ridge)
    print(f"M = {point.tokens:2d}: measured {point.ratio:4.1f} times as long, by the roofline {by_roofline:4.1f}")
many.reveal(here.curve[-1].ratio)

# %% tags=["spoiler", "nbval-ignore-output"]
viz.roof(roofline, here)

# %% [markdown]
# The lines are *your* function, the dots are passes that were timed. On the slope a pass over more tokens takes the
# same time, so its dot lies higher: the extra arithmetic is free. From the ridge on, every token costs. A CPU has a low
# ridge and reaches it after a few tokens. By the roofline a large GPU has room for more than a hundred. Real curves
# have no sharp corner. (A measured ratio can lie below the roofline's, because the pass over one token is itself slower
# than its roof.) Here is the H200 of the picture, with an 8B shape in bf16:

# %% tags=["spoiler"]
[h200] = viz.recorded_curves()
print({point.tokens: round(point.ratio, 2) for point in h200.curve if point.tokens in (1, 5, 8, 16, 24, 32)})

# %% [markdown]
# There 16 tokens take 1.04 times as long as one, and 32 take 1.19 times as long. Most passes stay below their roof. One
# reason is that each operation of a pass has to be started, a **kernel launch**, and that takes microseconds however
# little there is to do. A pass that takes much longer than reading and computing together is called **overhead-bound**;
# small models such as `micro` often are. Lesson 13 removes this cost.
#
# ## When is a draft free?
#
# Speculative decoding puts the last token and $k$ draft tokens into one pass. For one user the roofline says that these
# tokens cost nothing, up to the ridge. But a server has many users, and a batch uses the same idle arithmetic. Your
# roofline for the 8B model on the H200, with four draft tokens per user:


# %%
def t(batch: int, tokens: int) -> tuple[float, str]:
    return roofline(2 * N, 2 * N * batch * tokens, H200.bandwidth, H200.flops)


for batch in (1, 8, 32, 64, 128, 256):
    (five, limit), (one, _) = t(batch, 5), t(batch, 1)
    print(f"batch {batch:3d}: a pass over 5 tokens each takes {five / one:.2f} times as long, limited by {limit}")

# %% [markdown]
# At a small batch verification is as memory-bound as decode, and **that is why it is nearly free**. At batch 64 a pass
# must yield more than 1.7 tokens per user to pay, at batch 128 more than 3.4. Once plain decoding alone reaches the
# ridge, at a batch of 188, five tokens cost five times as much and yield at most five: drafting cannot pay. Batching
# and speculation spend the same idle arithmetic, and what one of them has used is gone for the other. (Long contexts
# change that, because the tokens of one sequence share the reading of its cache.)
#
# ## What can be done
#
# Decode spends its time reading. The remedies: let more tokens share each byte, read fewer bytes, or read them faster
# and without gaps. The KV cache comes first: it removes repeated work and leaves the reading.
#
# | remedy | what it changes | lesson |
# |---|---|---|
# | KV cache | no token is computed twice, so a pass is small | [02](02_kv_cache.ipynb) |
# | paging, continuous batching | more users share each reading of the weights | 03, 04 |
# | speculation | more tokens of one user share it | 05 to 11 |
# | quantisation | fewer bytes per parameter | 12 |
# | CUDA graphs | no launches between the readings | 13 |
# | several GPUs | more bandwidth | 16 |
#
# ## The dashboard
#
# How much of your machine's arithmetic does a one-token pass of the bot use? Lesson 04 raises it.

# %% tags=["nbval-ignore-output"]
flops = 2 * presets.weights_read(bot.config)
viz.dashboard("01", busy=flops / bot_pass.time.median / here.hardware.flops)

# %% [markdown]
# ## In production
#
# Servers report **TTFT** (time to first token: queue and prefill) separately from **TPOT** (time per output token),
# because arithmetic limits the first and bandwidth the second; lesson 11b takes both apart. Many mix pieces of prefill
# into decode passes, so that both resources are used (**chunked prefill**, Agrawal et al., 2023, arXiv:2308.16369), and
# some run prefill and decode on different GPUs (**disaggregated prefill**). A product with one or a few columns is a
# **GEMV** or a *skinny GEMM* there, and has kernels of its own.
#
# <details><summary>Go deeper: mixtures of experts, attention's own work</summary>
#
# In a **mixture of experts (MoE)** each token uses a few of many feed-forward blocks, so a pass over more tokens reads
# more weights. With 256 experts, of which a token uses 8, one token reads 8 of them; five independent tokens read
# 256 · (1 − (1 − 8/256)⁵) = 37.6. Verification is not free there at batch size 1. In a large batch nearly all experts
# are read anyway.
#
# Attention scores each pair of a token and one before it. In an 8B Llama that work equals the work in the weights only
# at prompts of tens of thousands of tokens, far beyond the ridge.
# </details>
#
# ## Check yourself
#
# <details><summary>A model is stored in int4 instead of bf16. Its decode pass is memory-bound before and after. What
# happens to its time, and to the number of tokens that take no longer than one?</summary>
#
# The time falls to about a quarter, if the kernel really reads a quarter of the bytes. The number of free tokens falls
# to a quarter as well, because the arithmetic of one token now hides behind fewer bytes.
# </details>
#
# <details><summary>Why does the intensity not depend on the size of the model?</summary>
#
# Twice as many parameters are twice as many bytes and twice as many FLOPs, so the ratio stays.
# </details>
#
# <details><summary>A prompt has 20 tokens. Is its prefill compute-bound on an H200?</summary>
#
# No. Its intensity in bf16 is 20 FLOP per byte, far below the ridge, so it takes about as long as one decode step.
# </details>
#
# ## Read the papers
#
# - Williams, Waterman, Patterson, 2009: *Roofline: an insightful visual performance model for multicore architectures*
#   ([CACM 52(4)](https://doi.org/10.1145/1498765.1498785)): the picture you have drawn, by its inventors.
# - Pope et al., 2023: *Efficiently scaling transformer inference*
#   ([arXiv:2211.05102](https://arxiv.org/abs/2211.05102)): the same accounting for models of 540B parameters.
# - Shazeer, 2019: *Fast transformer decoding: one write-head is all you need*
#   ([arXiv:1911.02150](https://arxiv.org/abs/1911.02150)): an early analysis of decoding as a problem of bandwidth.
#
# All papers: [the references](../docs/references.md).
#
# ## Next
#
# - How many draft tokens are free? [Exercises 01](../exercises/01_why_decoding_is_slow.ipynb).
# - Interview questions (`minispec drill`): `decode-memory-bound`, `prefill-and-decode`, `sequential-dependency`,
#   `bottlenecks-and-remedies`, `roofline-free-tokens`, `latency-metrics`.
# - [02 The KV cache](02_kv_cache.ipynb): why a pass may process one token at all.
