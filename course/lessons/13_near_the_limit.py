# %% [markdown]
# # 13 Near the limit
#
# *Time:* 75 minutes · *Before this:* [01 Why decoding is slow](01_why_decoding_is_slow.ipynb), [07 How fast](07_how_fast.ipynb), [12 Fewer bytes](12_fewer_bytes.ipynb) · *Practice:* [exercises 13](../exercises/13_near_the_limit.ipynb)
#
# Lesson 01 found how long a token takes at best: the bytes that it reads, divided by the bandwidth. Straightforward code on
# a fast GPU needs several times as long, although it reads no more. This lesson finds out where the time goes, and takes it
# back in five steps: a CUDA graph, fused kernels, a matrix product made for one token, attention that uses the whole GPU,
# and finally a whole draft–verify cycle as one launch.
#
# You will be able to
#
# - tell launch overhead from memory traffic in a profile, by counting kernels and gaps;
# - say what a CUDA graph changes, and what may not happen inside one;
# - read a skinny matrix product in Triton, and say what speaks for which tile;
# - explain split-K in flash decoding, and merge its splits;
# - say what has to live on the device before a whole speculative cycle fits into one launch.

# %%
from __future__ import annotations  # Triton may be missing, and with it the types in a signature

import json
import os

import torch
import torch.nn.functional as F

# Before Triton is imported: without a GPU it acts kernels out on the CPU.
on_gpu = torch.cuda.is_available() and os.environ.get("MINISPEC_DEVICE", "cuda").startswith("cuda")
os.environ["TRITON_INTERPRET"] = "0" if on_gpu else "1"

import minispec as ms
from minispec.bench import ladder, measure, tiles
from minispec.course import viz
from minispec.files.registry import BENCHMARKS
from minispec.gpu import attention, products
from minispec.gpu.attention import jit, tl, triton
from minispec.gpu.decode import FastSpeculator
from minispec.gpu.fused import FastTransformer

# %% [markdown]
# ## How far is it to the limit?
#
# Here is the question in numbers. The same model, of the shape of Llama-3-8B in bf16, was timed on an H200 in five ways:
# by the loop of this course with one launch per token, by the same in the whole of `generate`, by our eager reference, and
# by the `transformers` library, eager and with a static cache and `torch.compile`. All of them read the same weights.

# %%
decode = json.loads((BENCHMARKS / "decode.json").read_text(encoding="utf-8"))
print(f"{decode['weight_bytes'] / 1e9:.1f} GB of weights per token, {decode['machine']['gpus'][0]['name']}, "
      f"{decode['bandwidth']['median'] / 1e12:.2f} TB/s, {decode['date']}")  # fmt: skip
for name, row in decode["results"].items():
    milliseconds = 1e3 * row["seconds_per_token"]["median"]
    print(f"{name:<20} {milliseconds:6.2f} ms per token   {row['fraction_of_bandwidth']:4.0%} of the bandwidth")

# %% [markdown]
# (A **static cache** has memory for the longest sequence from the start, so its shapes never change.) The slowest leaves
# four fifths of the bandwidth unused. And yet lesson 01 was not wrong: decoding *is* memory-bound,
# once everything else is out of the way. Getting it out of the way is what this lesson is about.
#
# ### Where you are
#
# The next cell says which machine the timings of this lesson come from. On a CPU the model is `micro`; on a GPU it is
# SmolLM2, and `micro` where SmolLM2 cannot be had. Beside your own timings you always see recorded ones, made by
# `minispec bench limit`; the data say which machine they come from.
#
# Five words that the rest needs. A **kernel** is a function that runs on the GPU; the **device** is the GPU, the **host** the
# CPU whose Python asks for kernels. A GPU consists of **multiprocessors** (132 on an H200), which run the programs of a kernel
# side by side, and each has **matrix units** that multiply small matrices. A **twin** is our name for a function in plain torch
# that computes what a kernel does.

# %% tags=["nbval-ignore-output"]
device = ms.device().type
name = "micro"
if device == "cuda":
    try:
        ms.load("smollm2", device=device)
        name = "smollm2"
    except ValueError as error:
        print(f"SmolLM2 is not to be had ({error}), so micro is used")
target, draft = ms.load(name, device=device), ms.load(f"{name}-draft", device=device)
here = torch.cuda.get_device_name() if device == "cuda" else measure.place(measure.machine())
print(f"{target.label} in {target.dtype} on {here}, {target.config.num_layers} layers")
print(
    "kernels:",
    attention.unavailable(device) or ("on the GPU" if device == "cuda" else "acted out by Triton on the CPU"),
)

# %%
recorded = viz.stored_limit()
print("recorded on:", viz.machine_of(recorded))
for model, climbed in recorded["models"].items():
    weights, read = climbed["weight_bytes"] / 1e6, climbed["bytes_per_token"] / 1e6
    print(f"{model}: {weights:,.0f} MB of weights and {read - weights:,.0f} MB of cache per token")

# %% [markdown]
# ## Step 1: eager, or how long it takes to ask
#
# In **eager** mode Python calls an operator of torch, torch chooses a kernel, and the driver puts it into a queue, from which
# the GPU takes it. This is called a **launch**, and it costs the host some microseconds per kernel, whatever the kernel
# does. The GPU works through its queue meanwhile. So as long as kernels take longer than launches, the queue is never empty
# and the launches are hidden. What if they are shorter?
#
# Let kernel $i$ take $d_i$ and let the host need $\tau$ for each launch. A kernel starts when it has been launched *and* the
# one before it has ended:


# %%
def finished(durations, launch):
    """µs until the last kernel ends, if the host needs `launch` µs for each launch."""
    end = 0.0
    for number, duration in enumerate(durations):
        end = max(end, (number + 1) * launch) + duration
    return end


for duration in (2, 5, 10, 20):
    total = finished([duration] * 600, launch=6)
    print(f"600 kernels of {duration:2d} µs: {total / 1e3:5.1f} ms, the GPU works {600 * duration / total:4.0%} of it")

# %% [markdown]
# As long as the kernels are shorter than the 6 µs of a launch, it does not matter how fast they are: 600 launches take 3.6 ms.
# This is **overhead-bound** decoding, the third kind in lesson 01 beside memory-bound and compute-bound.
#
# ## Predict
#
# How many kernels does one token take? Think of one layer: two norms, seven matrices, RoPE, the write to the cache, attention,
# SwiGLU, two residual sums. Many of these are several kernels. (On a CPU there are no kernels; there we count torch's
# innermost operators, which are the same steps. The number of layers is printed above.)

# %% tags=["nbval-ignore-output"]
guess_kernels = viz.predict("How many kernels does one token of this model launch, in eager mode?", "kernels")
guess_kernels

# %% [markdown]
# ## Run
#
# [`record`](../minispec/bench/timeline.py) runs one token under torch's profiler and returns every kernel with its start and
# its duration; on a CPU, every operator. It takes some seconds.

# %% tags=["spoiler", "nbval-ignore-output"]
prompt = target.encode("Once upon a time there was a little duck who") * 4
live = viz.live_timelines(target, prompt)
eager = live.timelines[ladder.EAGER]
print(
    f"{target.config.num_layers} layers: {len(eager.kernels)} kernels, {len(eager.kernels) / target.config.num_layers:.0f} per layer"
)
print(f"they run for {eager.busy:,.0f} of {eager.span:,.0f} µs")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
guess_kernels.reveal(len(eager.kernels))

# %% [markdown]
# A few dozen per layer add up. On the recorded H200 a token of SmolLM2 takes 928 kernels and 23 ms, which is 25 µs per
# kernel, Python included, although the kernels themselves run for 2 ms only. Now multiply: kernels × launch is a time that
# hardly depends on the size of the model, only on its number of layers (30 here, 32 in the 8B shape). That is why a small
# model on a fast GPU is the worst case. SmolLM2 reads 0.29 GB per token, which that H200 does in 81 µs, and no host launches
# hundreds of kernels in 81 µs.

# %% [markdown]
# ## Step 2: one launch for all of them
#
# If Python only asks for the same kernels every time, it can ask once. A **CUDA graph** captures the launches of a piece of
# code and replays them by a single call. Nothing about the kernels changes: the same ones run, in the same order, on the
# same addresses. In minispec this is the class [`Recorded`](../minispec/gpu/record.py), 60 lines with their comments.
#
# The price is in the words *the same*. Between capture and replay
#
# - no shape may change, so memory is allocated for the longest sequence, and prompts are padded to a few sizes;
# - no address may change, so results are written into tensors that already exist;
# - no number may travel to Python. `.item()` and `if token == eos` stop the capture with an error. A Python counter is worse:
#   it is captured as the number that it was, and every replay uses it again, without a word. So the sequence, its length and
#   the random numbers live on the device ([`FastDecoder`](../minispec/gpu/decode.py)), and the host looks afterwards.
#
# The silent one is what breaks code in practice, and the fourth exercise of this set is about it.

# %% [markdown]
# ## Play: with and without a graph
#
# One token, kernel by kernel. The upper lane shows when the host launches, the lower one what the device runs. The step
# `graph` replays exactly the kernels of `eager`; `split-K` is where this lesson arrives at its fifth step.

# %% tags=["nbval-ignore-output"]
viz.kernel_timeline(live)

# %% [markdown]
# (The profiler slows the host down, so the gaps of `eager` are longer here than without it.) Two tasks:
#
# 1. Choose the recorded H200 (and your own machine, if it has a GPU). Show 500 µs of `eager` and move along the token. Which
#    colour fills most of the time, and with what in the upper lane do the kernels of the lower one begin?
# 2. Switch between `eager` and `graph`. The kernels stay as they are and the gaps close. Which kernels are now the reason
#    that the device is not reading weights? (On a CPU both steps are the same operators, run by the host itself.)

# %% [markdown]
# A CPU has no such queue, but it has the same problem: Python needs a few microseconds per operator. Its answer is not a
# graph but a compiler. In minispec a forward pass of few tokens on a CPU is *one* compiled function
# ([`fused`](../minispec/cpu/fused.py)). We come back to it when we time all steps.

# %% [markdown]
# ## Step 3: fewer kernels
#
# With a graph the device no longer waits for the host. But each kernel still starts, reads its input from memory, writes its
# output, and ends, and between two of them the memory is idle (the timeline shows for how long). A product with a large matrix is worth
# that. A norm of a few thousand numbers is not. So the small steps are **fused**, in two ways. The first needs no product of
# our own: everything between two of torch's products becomes one kernel (residual sum with norm, RoPE with the write to the
# cache, SwiGLU). That is the step `fused` in the tables. The second comes with the next step: a product that we write
# ourselves can take its small neighbours along, and then they have no kernel at all.
#
# Some of that is obvious: SwiGLU can be computed by the product that makes gate and up, and the residual sum by the product
# whose result is added. The norm is the interesting one, because it needs a sum over *all* of $x$ before anything can be
# divided. With the gain $g$, element by element,
#
# $$\mathrm{norm}(x)\, W^\top = \frac{x \odot g}{\mathrm{rms}(x)}\, W^\top = \frac{(x \odot g)\, W^\top}{\mathrm{rms}(x)}$$
#
# The division is by one number per token, so it can be done *after* the product. The product that makes $x$ also stores
# $x \odot g$ and the squares of its part of $x$; the next one sums these up and divides last. So the norm has no kernel of
# its own. [`half_norm`](../minispec/gpu/products.py) is the first half, and the second belongs to
# [`skinny_torch`](../minispec/gpu/products.py), which says in plain torch what our kernel does.

# %%
x, gain = torch.randn(1, 64, dtype=torch.float64), torch.rand(64, dtype=torch.float64) + 0.5
weight = torch.randn(96, 64, dtype=torch.float64)
plain = F.linear(F.rms_norm(x, (64,), gain, eps=1e-5), weight)
late = products.skinny_torch(products.half_norm(x, gain), weight, eps=1e-5)
print("the norm may divide last:", torch.allclose(plain, late, rtol=1e-12, atol=1e-12))

# %% [markdown]
# How many kernels are left? The recorded run has counted them.

# %%
for model, climbed in recorded["models"].items():
    counts = ", ".join(
        f"{step} {climbed['steps'][step]['kernels_per_token']:,.0f}"
        for step in (ladder.GRAPH, ladder.FUSED, ladder.SKINNY, ladder.SPLIT)
    )
    print(f"{model}: kernels per token: {counts}")

# %% [markdown]
# ## Step 4: a product for one token
#
# Most of the time that remains is in the products, four per layer once q, k, v and gate, up have been joined. For one token, $y = x W^\top$ is a
# read of $W$ with two FLOPs per parameter. Matrix libraries are made for large matrices on both sides, and such a **skinny**
# product is not what they are best at. So we write one. In **Triton** a kernel is a Python function that describes *one
# program*; the grid, in brackets before the arguments, says how many of them run. Here a program owns `ROWS` rows of the
# matrix $W$ and goes along them in strips of `WIDE` numbers; such a piece of `ROWS` × `WIDE` numbers is a **tile**. To read it:
#
# - `x`, `w`, `y` are addresses. `w + row · width + k` are the addresses of a whole tile, and `tl.load` fetches all of them.
# - `mask` leaves out what lies beyond the matrix: 100 rows of 200 numbers, say, make 7 programs of 16 rows and 4 strips of 64.
# - `tl.constexpr` are numbers that the compiler knows, one version of the kernel for each; `-(-n // rows)` rounds up.


# %%
@jit
def skinny_kernel(x, w, y, n, width, ROWS: tl.constexpr, WIDE: tl.constexpr):
    """ROWS numbers of y = x Wᵀ for one token: x [K], W [N, K], y [N]."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)  # which rows of the matrix are ours
    inside = row < n
    total = tl.zeros([ROWS], tl.float32)
    for start in range(0, width, WIDE):  # one strip after the other
        k = start + tl.arange(0, WIDE)
        there = k < width
        strip = tl.load(w + row[:, None] * width + k[None, :], mask=inside[:, None] & there[None, :], other=0.0)
        numbers = tl.load(x + k, mask=there, other=0.0)
        total += tl.sum(strip.to(tl.float32) * numbers.to(tl.float32)[None, :], 1)
    tl.store(y + row, total.to(y.dtype.element_ty), mask=inside)


def skinny(x, w, rows=16, wide=64):
    """y = x Wᵀ, one program per `rows` rows of the matrix."""
    n, width = w.shape
    y = torch.empty(n, dtype=x.dtype, device=x.device)
    skinny_kernel[(-(-n // rows),)](x, w, y, n, width, ROWS=rows, WIDE=wide)
    return y


# %% [markdown]
# Read it once more with bytes in mind. Each number of $W$ is loaded by exactly one program, once. $x$ is loaded by all of them,
# but it is small and stays in the cache. The sum is kept in float32. The masks are for sizes that the tile does not divide.
#
# If there is no GPU, Triton's interpreter acts the programs out with numpy, one after the other: right, and slow. (Triton
# itself is installed with minispec on Linux, ARM included. On macOS and Windows it is missing; then the next cell says so and
# does the same in torch, and so does the one with attention.)

# %% tags=["nbval-ignore-output"]
generator = torch.Generator().manual_seed(0)
x = torch.randn(200, generator=generator).to(device)
w = torch.randn(100, 200, generator=generator).to(device)
if triton is None:
    y, how = torch.stack([(row * x).sum() for row in w]), "without Triton: one number of y after the other"
else:
    y, how = skinny(x, w), "by our kernel"
close = torch.allclose(y, F.linear(x, w), rtol=1e-4, atol=1e-4)
print(f"{how}, as torch's own product: {close}")

# %% [markdown]
# ## Predict
#
# The kernel of the package, [`skinny`](../minispec/gpu/products.py), is this one with matrix units, the fused steps, and reads
# of the next strips under way while the current one is multiplied. Its tile is a choice. Take the output projection of
# Llama-3-8B, $W$ of 4096 × 4096, on an H200 with 132 multiprocessors.

# %% tags=["nbval-ignore-output"]
guess_idle = viz.predict(
    "With 128 rows of the matrix per program, how many of the 132 multiprocessors have nothing to do?", "of 132"
)
guess_idle

# %% [markdown]
# ## Run

# %% tags=["spoiler"]
for rows in (16, 32, 64, 128):
    programs = 4096 // rows
    print(
        f"{rows:3d} matrix rows per program: {programs:3d} programs, {max(0, 132 - programs):3d} multiprocessors without one"
    )
bf16, shared_memory = torch.bfloat16, 227 * 1024  # of an H200's multiprocessor, bytes
chosen = products.default_tiles(bf16, bf16, (4096, 4096), swiglu=False, shared=shared_memory)
print("the package takes", chosen)

# %% [markdown]
# ## Reveal

# %% tags=["spoiler"]
guess_idle.reveal(132 - 4096 // 128)

# %% [markdown]
# A multiprocessor without a program reads nothing. But the measurement below shows that this is only half of the story. On
# the recorded H200, 64 programs with strips of 256 read 2.69 TB/s, nearly as much as 256 programs (2.73 TB/s), although half
# of the multiprocessors had none. What counts is how many *bytes are under way* at once on the whole GPU, and a tall tile has
# more of them per program. At 32 programs that no longer makes up for the idle ones (1.96 TB/s). Short strips cost more than
# either: with 16 rows of the matrix, strips of 64 read 1.68 TB/s. [`default_tiles`](../minispec/gpu/products.py) is the
# compromise we measured. (Every call reads another copy of the matrix, so that none is found in a cache. A kernel this short,
# 12 µs, has no time to reach the full bandwidth; inside a whole pass its start overlaps with larger ones.)
#
# ## Play: bandwidth against tile size
#
# The dashed line is torch's own product, the dotted one the read bandwidth of that machine.

# %% tags=["nbval-ignore-output"]
measured = tiles.sweep_both(device, repeat=3) if device == "cuda" else None
viz.tile_sizes(measured)

# %% [markdown]
# Two tasks:
#
# 1. Go through the matrix rows per program and compare the three strips. With how few programs does even the widest strip
#    lose, and why does the narrowest hardly change? (It always has too few bytes under way.)
# 2. Choose the attention kernel, which is the subject of the next step, and find the number of splits from which on more
#    of them do not help.

# %% [markdown]
# ## Step 5: attention for the whole GPU
#
# The products read the weights; attention reads the cache. Its programs come from the heads: the query heads of a group share
# the keys and values they read, so a sequence gives as many programs as there are key/value heads. For Llama-3-8B these
# are 8, on 132 multiprocessors. The rest would wait while 8 of them go through thousands of tokens.
#
# **Flash decoding** (Dao et al., 2023) therefore splits the *cached tokens*: a program takes one head and one split of the
# context and ends with its own state of the online softmax, $m$, $\ell$ and $o$ (lesson 12). A second, tiny kernel merges the
# splits, $\sum w\,o / \sum w\,\ell$ with $w = e^{m - \max m}$. In a matrix product the same cut along the dimension that is
# summed over is called **split-K**, and the name is used for attention, too.
#
# In the tables the step `split-K` does two things at once. Before it, attention was two products of torch with scaling, mask
# and softmax between them, over all slots of the memory; now it is our kernel and the merge. So about six kernels per layer
# disappear as well. What the splits alone are worth shows in the widget above, where one split reads 290 GB/s and sixteen
# read 1,810.

# %%
for context in (500, 4000, 32_000):
    splits = attention.choose_splits(8, context, 64, 132)
    print(f"{context:6,} cached tokens: {splits:2d} splits, {8 * splits:3d} programs for 132 multiprocessors")

# %% [markdown]
# ([`choose_splits`](../minispec/gpu/attention.py) takes the number of programs without splits, the cached tokens, the tokens
# of a tile and the multiprocessors. It aims at a few programs per multiprocessor, with a tile of 64 tokens each at least.)
# Splitting changes the order of additions and nothing else:

# %% tags=["nbval-ignore-output"]
q, k, v = (
    torch.randn(1, heads, slots, 16, generator=generator).to(device) for heads, slots in ((4, 1), (2, 100), (2, 100))
)
lengths = torch.tensor([99], device=device)  # before the new token
whole = attention.flash_decode_torch(q, k, v, lengths)
if triton is None or attention.unavailable(device):
    print("our kernel does not run here; its twin in torch does")
else:
    parts = [attention.flash_decode(q, k, v, lengths, splits=s, tiling=attention.Tiling(tile=16)) for s in (1, 4)]
    print("1 and 4 splits agree with the twin:", all(torch.allclose(p, whole, rtol=1e-3, atol=1e-3) for p in parts))

# %% [markdown]
# ## Step 6: a whole cycle in one launch
#
# Plain decoding is now one launch per token, and it reads every weight once. That is the limit for one token per pass. To go
# beyond it, a pass has to emit more than one token, and that is what speculation is for. But a draft–verify cycle as in
# lesson 05 asks the host several times: which token did the draft model choose, how many were accepted, how far to rewind?
# Each question stops the device.
#
# [`FastSpeculator`](../minispec/gpu/decode.py) puts all of it on the device: $k$ passes of the draft model, the verify pass,
# the acceptance rule and the rewind are one recorded launch. Look at what `step` had to give up:
#
# - The accepted number is a tensor. The rewind is `lengths.copy_(n + accepted)`: slots after it are overwritten later.
# - All $k + 1$ positions are always computed, and a `scatter` puts the emitted token after the accepted ones.
# - The draft model always processes two tokens first, because it has not seen the last draft token if all were accepted.
#   The second one is padding otherwise. One shape serves both cases.
# - Random numbers are taken in advance from the generator of each sequence, so the result is that of the slow loop.
#
# Without a GPU the same code runs, unrecorded. So you can check anywhere that it generates what `generate` does:

# %%
plain = ms.generate(ms.load("micro", device="cpu"), "Once upon a time", 24)
big, small = (FastTransformer(ms.load(one, device="cpu").transformer, 1, 128) for one in ("micro", "micro-draft"))
cycles = FastSpeculator(big, small, k=4)
cycles.start([ms.load("micro", device="cpu").encode("Once upon a time")])
cycles.launch(12)
[tokens] = cycles.fetch()
assert len(tokens) >= 24
print("as generate:", tokens[:24] == plain.tokens)
print(f"{len(tokens)} tokens in 12 cycles, {len(tokens) / 12:.1f} tokens per cycle")

# %% [markdown]
# ## All steps, one after the other
#
# The next cells time eager decoding and the five steps in turn ([`climb`](../minispec/bench/ladder.py), about ten seconds). The
# share counts the bytes of *one* pass per token, so a cycle, which emits several tokens per pass, may exceed 100 %.

# %% tags=["nbval-ignore-output"]
bandwidth = measure.read_bandwidth(device, seconds=1.5).median
read = ladder.bytes_per_token(target, len(prompt))
print(f"{bandwidth / 1e9:,.0f} GB/s, {read / 1e6:,.1f} MB per token: {1e3 * read / bandwidth:.2f} ms at best")

# %% [markdown]
# ## Predict

# %% tags=["nbval-ignore-output"]
guess_eager = viz.predict("Which share of this machine's read bandwidth does eager decoding reach?", "%")
guess_eager

# %% [markdown]
# ## Run

# %% tags=["spoiler", "nbval-ignore-output"]
mine = ladder.climb(target, draft, prompt, bandwidth, repeat=3, launches=4, profile=device == "cuda")
print(f"{here}: {bandwidth / 1e9:,.0f} GB/s, {mine['bytes_per_token'] / 1e6:,.1f} MB per token")
print(viz.steps_table(mine))
if device == "cpu":
    rate = measure.plain_speed(target, prompt, new_tokens=8, repeat=3, seconds=2).median
    print(
        f"{'one function':<14}{1e3 / rate:>14.3f}{mine['bytes_per_token'] * rate / bandwidth:>18.1%}   (compiled, whole pass)"
    )

# %% [markdown]
# ## Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
guess_eager.reveal(100 * mine["steps"][ladder.EAGER]["fraction_of_bandwidth"])

# %% [markdown]
# The line `cycle, eager` is the cycle without a graph, for comparison. On a CPU the plain steps do the same work in the same
# way: nothing is recorded, and torch stands in for our kernels. There the last line is the step that counts. (And `micro` is small enough to stay partly in the cache of a CPU, so its share of the
# *memory* bandwidth is not the whole story.) Beside it, what was recorded, after about 1,000 tokens. The 8B shape has random
# weights there, and its draft model is its own first layers. How often its draft tokens are accepted was set by construction
# and is no property of a trained pair; the times are.

# %%
print("recorded on:", viz.machine_of(recorded))
for model, climbed in recorded["models"].items():
    cycle = f"{climbed['cycle']['tokens_per_cycle']:.1f} tokens per cycle of k = {climbed['cycle']['k']}"
    print(
        f"\n{model}, {climbed['weights']} weights, at best {1e3 * climbed['predicted_seconds']:.3g} ms per token, {cycle}"
    )
    print(viz.steps_table(climbed))

# %% tags=["nbval-ignore-output"]
runs = {f"{model}, {viz.machine_of(recorded)}": climbed for model, climbed in recorded["models"].items()}
viz.limit_steps_figure(runs | {f"{target.name}, this machine, now": mine})

# %% [markdown]
# ## What is left?
#
# On the recorded H200 the 8B shape went from 12 % of the bandwidth to 95 %, and with a cycle per launch beyond 100 %, because
# one reading of the weights then serves 2.6 tokens. (A cycle is 1.8 times as fast and not 2.6 times: a third of it is
# drafting and deciding.) Three warnings belong to such numbers.
#
# A share is only as good as what it is divided by. In this run the read bandwidth was measured as 3.64 TB/s, in the one at
# the top of this lesson as 3.99 TB/s, on the same kind of GPU; its data sheet says 4.8. They took 4.36 and 4.35 ms per token,
# so 95 % and 87 % are the same speed, and both are 72 % of the data sheet. Compare times, and give the bandwidth with every
# share.
#
# The first step depends on what is called eager. Here it is the very code that the graph captures, with fixed shapes and masks
# over all slots, launched kernel by kernel: 34 ms. The ordinary loop of `generate`, without masks, launches fewer kernels and
# takes 14 ms (the table at the top). A gain over "eager" says little unless one knows which.
#
# And a small model is another case. Without speculation SmolLM2 ends at 9 %: its 231 kernels run for about 0.8 of 0.9 ms, but
# most of them are so short that starting and ending is what takes the time. The matrices are too small to keep the memory
# busy. So a cycle per launch is worth more than for the 8B shape (2.4 times against 1.8), and the next step would be a **megakernel** (Spector et al., 2025): the whole pass as one persistent
# kernel, in which the reads of the next matrix begin before the current product has ended.

# %% [markdown]
# ## In production
#
# vLLM captures CUDA graphs at start-up for a list of batch sizes (`cudagraph_capture_sizes` in its compilation config) and pads
# each batch to the next one; `--enforce-eager` turns this off. Its graphs can be *piecewise*, with attention left out so that
# it may have changing shapes, or *full*. SGLang has `--disable-cuda-graph` and `--cuda-graph-max-bs`. In plain PyTorch
# `torch.compile(mode="reduce-overhead")` fuses the small steps and captures graphs, which is what `transformers` does with a
# static cache. Attention comes from FlashAttention, FlashInfer or Triton, all with splits over the keys. A draft and its
# verification are usually several graphs, with the host in between, because a server has other requests to schedule.

# %% [markdown]
# ## Check yourself
#
# <details><summary>A profile shows 700 kernels per token, a median kernel of 2 µs, and between two kernels the device is idle
# for 5 µs. What do you do first, and what can it gain at most?</summary>
#
# Capture a CUDA graph. A token takes about 700 · 7 = 4.9 ms, of which 1.4 ms are kernels, so the gain is at most 3.5 times.
# After that fewer kernels are the next step, because a kernel of 2 µs is mostly start and end.
# </details>
#
# <details><summary>A captured decoding step generates the first token correctly and then repeats it for ever. What is the
# likely cause?</summary>
#
# A Python number in the captured code: the position or the length was an `int` when the graph was captured, so each replay
# reads and writes the same slot. It has to be a tensor on the device which the step itself increments.
# </details>
#
# <details><summary>Why does split-K help attention at batch size 1 and hardly at batch size 64?</summary>
#
# Programs come from sequences × key/value heads × splits. At batch size 64 with 8 key/value heads there are 512 programs
# without any split, enough for 132 multiprocessors. At batch size 1 there are 8.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Williams, Waterman, Patterson, 2009: *Roofline: an insightful visual performance model for multicore architectures*
#   ([CACM 52(4)](https://doi.org/10.1145/1498765.1498785)): the limit that all of this is measured against.
# - Tillet, Kung, Cox, 2019: *Triton: an intermediate language and compiler for tiled neural network computations*
#   ([MAPL 2019](https://doi.org/10.1145/3315508.3329973)): why a kernel is written for a tile and not for a thread.
# - Dao, Haziza, Massa, Sizov, 2023: *Flash-Decoding for long-context inference*
#   ([blog](https://crfm.stanford.edu/2023/10/12/flashdecoding.html)): splits over the keys, with measurements.
# - Pope et al., 2023: *Efficiently scaling transformer inference*
#   ([arXiv:2211.05102](https://arxiv.org/abs/2211.05102)): the count of bytes on one chip and on many.
# - Spector et al., 2025: *Look ma, no bubbles! Designing a low-latency megakernel for Llama-1B*
#   ([blog](https://hazyresearch.stanford.edu/blog/2025-05-27-no-bubbles)): what comes after the steps of this lesson.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - Practice: [exercises 13](../exercises/13_near_the_limit.ipynb).
# - `minispec drill` asks `cuda-graphs`, `far-from-the-roofline`, `flash-attention`.
# - On a GPU, `minispec bench limit` makes the recorded data of this lesson anew, on your own machine.
# - Next lesson: [14 Is it really exact?](14_is_it_really_exact.ipynb).
