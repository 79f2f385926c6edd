# %% [markdown]
# # 13 Near the limit
#
# *Time:* 60 minutes · *Before this:* [01 Why decoding is slow](01_why_decoding_is_slow.ipynb), [07 How fast](07_how_fast.ipynb), [12 Fewer bytes](12_fewer_bytes.ipynb) · *Practice:* [exercises 13](../exercises/13_near_the_limit.ipynb)
#
# Lesson 01 found how long a token takes at best: the bytes that it reads, divided by the bandwidth. Straightforward code on
# a fast GPU needs several times as long, although it reads hardly more. This lesson finds out where the time goes, and takes
# it back in five steps: a CUDA graph, fused kernels, a matrix product made for one token, attention that uses the whole GPU,
# and finally a whole draft–verify cycle as one launch.
#
# *Go deeper* near the end, in which you read a matrix product in Triton, is optional and not included in the time above.
#
# You will be able to
#
# - tell launch overhead from memory traffic by counting kernels;
# - say what a CUDA graph changes, and what may not happen inside one;
# - explain split-K in flash decoding (the exercises merge its splits);
# - say what has to live on the device before a whole speculative cycle fits into one launch;
# - check a share of the bandwidth before you repeat it;
# - (with *Go deeper*) read a skinny matrix product in Triton.

# %%
from __future__ import annotations  # Triton may be missing, and with it the types in a signature

import json
import os

import torch
import torch.nn.functional as F

# Before Triton is imported: without a GPU its interpreter runs kernels on the CPU.
on_gpu = torch.cuda.is_available() and os.environ.get("MINISPEC_DEVICE", "cuda").startswith("cuda")
os.environ["TRITON_INTERPRET"] = "0" if on_gpu else "1"

import minispec as ms
from minispec import measure
from minispec.gpu import attention, products
from minispec.gpu.attention import jit, tl, triton
from minispec.gpu.decode import FastSpeculator
from minispec.gpu.fused import FastTransformer
from minispec.load.registry import BENCHMARKS
from minispec_course import viz
from minispec_course.labs import ladder

# %% [markdown]
# ## How far is it to the limit?
#
# Here is the question in numbers. The same model, of the shape of Llama-3-8B in bf16, was timed on an H200 in five ways:
# by the loop of this course with one launch per token (`launch`), by the call of `generate` around that loop
# (`fast.generate`), by our eager reference (`generate`), and by the `transformers` library, eager and with a static cache and
# `torch.compile`. All of them read the same weights; all but `launch` also process the prompt, and that time is divided among
# the tokens that they generate. The bandwidth is that of long reads in the same run, timed by the host's clock. It is a *lower
# bound* of what the memory can do, so all shares in this lesson are upper bounds.

# %%
decode = json.loads((BENCHMARKS / "decode.json").read_text(encoding="utf-8"))
print(
    f"{decode['weight_bytes'] / 1e9:.1f} GB of weights per token, {decode['machine']['gpus'][0]['name']}, "
    f"{decode['bandwidth']['median'] / 1e12:.2f} TB/s, {decode['new_tokens']} tokens after {decode['context']}, "
    f"{decode['date']}"
)
for name, row in decode["results"].items():
    milliseconds = 1e3 * row["seconds_per_token"]["median"]
    print(f"{name:<20} {milliseconds:6.2f} ms per token   {row['fraction_of_bandwidth']:4.0%} of the bandwidth")

# %% [markdown]
# (A **static cache** has memory for the longest sequence from the start, so its shapes never change. All 8 billion parameters
# are 16.1 GB in bf16, but of the embedding table a token reads one vector.) The slowest leaves four fifths of the bandwidth
# unused. And yet lesson 01 was not wrong: decoding *is* memory-bound, once everything else is out of the way. Getting it out
# of the way is what this lesson is about.
#
# ### Where you are
#
# The next cell says which machine the timings of this lesson come from. On a CPU the model is `micro`; on a GPU it is
# SmolLM2, and `micro` where SmolLM2 cannot be had. Beside your own timings you always see recorded ones, made by
# `python -m benchmarks limit`; the data say which machine they come from.
#
# Some words that the rest needs. A **kernel** is a function that runs on the GPU. The **device** is the GPU, the **host** the
# CPU whose Python asks for kernels; one such request is a **launch**. A launched kernel runs as many copies of the same code,
# its **programs** (thread blocks, in CUDA), side by side, each on its own part of the data. A GPU consists of
# **multiprocessors** (132 on an H200). A program runs on one of them, and each has **matrix units** that multiply small
# matrices.

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
    attention.unavailable(device)
    or (
        "on the GPU"
        if device == "cuda"
        else "run by Triton's interpreter in two checks, replaced by torch where we time"
    ),
)

# %%
recorded = ladder.recorded()
gpu = measure.where(recorded["machine"])
print(f"{gpu}, recorded {recorded['date']}, {recorded['bandwidth']['median'] / 1e12:.2f} TB/s measured in that run")
for model, climbed in recorded["models"].items():
    weights, read = climbed["weight_bytes"] / 1e6, climbed["bytes_per_token"] / 1e6
    print(f"{model}: a token reads {weights:,.0f} MB of weights and {read - weights:,.0f} MB of cache")

# %% [markdown]
# ## Start: eager, or how long it takes to ask
#
# In **eager** mode Python calls an operator of torch, torch chooses a kernel, and the driver puts it into a queue, from which
# the GPU takes it. The driver's call alone costs the host some microseconds, and Python and torch's choice come on top,
# whatever the kernel does. The GPU works through its queue meanwhile. So as long as kernels take longer than launches, the
# queue is never empty and the launches are hidden. What if they are shorter?
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


for launch in (6, 25):
    for duration in (2, 10, 50):
        total = finished([duration] * 600, launch)
        print(
            f"600 kernels of {duration:2d} µs, {launch:2d} µs per launch: {total / 1e3:5.1f} ms, "
            f"the GPU works {600 * duration / total:4.0%} of it"
        )

# %% [markdown]
# As long as the kernels are shorter than a launch, it does not matter how fast they are: 600 launches take 3.6 ms at 6 µs each,
# and 15 ms at 25. This is **overhead-bound** decoding, the third kind in lesson 01 beside memory-bound and compute-bound.
#
# ## Predict
#
# How many kernels does one token take? A Llama-style layer does this, for a token's vector $x$:
#
# | step | what it computes | matrices |
# |---|---|---|
# | **RMSNorm** | $x \odot g \,/\, \mathrm{rms}(x)$: divide by the root of the mean square, multiply by a learned gain $g$ | |
# | q, k, v | three products with the normed $x$ | q, k, v |
# | **RoPE** | rotates pairs of numbers in q and k by angles proportional to the position | |
# | cache, attention | k and v go into the cache; softmax of q with all cached keys, times the values (lesson 02) | |
# | output, residual sum | one product, added to $x$ | o |
# | RMSNorm | as above | |
# | **SwiGLU**, residual sum | $\mathrm{down}(\mathrm{silu}(\mathrm{gate}\,x) \odot \mathrm{up}\,x)$ with $\mathrm{silu}(z) = z \cdot \mathrm{sigmoid}(z)$, added to $x$ | gate, up, down |
#
# Many of these are several kernels. (On a CPU there are no kernels; there we count torch's innermost operators. They are
# somewhat more, because a norm, which is one kernel on a GPU, is several of them. The number of layers is printed above.)

# %% tags=["nbval-ignore-output"]
asked = "kernels" if device == "cuda" else "operators"
guess_kernels = viz.predict(f"How many {asked} does one token of this model launch, in eager mode?", asked)
guess_kernels

# %% [markdown]
# ## Run
#
# [`count_kernels`](../minispec_course/labs/ladder.py) runs one token under torch's profiler and counts what the device ran;
# on a CPU, torch's operators.

# %% tags=["spoiler", "nbval-ignore-output"]
prompt = target.encode("Once upon a time there was a little duck who") * 4
eager = ladder.ways(target, None, prompt, k=1, room=len(prompt) + 64)[ladder.EAGER]
eager.launch()  # what is compiled once
count, _ = ladder.count_kernels(eager.launch, device)
layers = target.config.num_layers
print(f"{layers} layers: {count} {asked}, {count / layers:.0f} per layer, with those outside the layers")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
guess_kernels.reveal(count)

# %% [markdown]
# A few dozen per layer add up. Here is the same on the recorded H200, beside the time of lesson 01 at the bandwidth that was
# measured in that run:

# %%
for model, climbed in recorded["models"].items():
    row = climbed["steps"][ladder.EAGER]
    launches, milliseconds = row["launches_per_token"], 1e3 * row["seconds_per_token"]["median"]
    print(
        f"{model}: {launches:,.0f} launches in {milliseconds:.0f} ms, {1e3 * milliseconds / launches:.0f} µs each; "
        f"reading takes {1e3 * climbed['predicted_seconds']:.3g} ms"
    )

# %% [markdown]
# The host sets the pace: launches × what the host needs for each. The first factor comes from the number of layers (30 in
# SmolLM2, 32 in the 8B shape) and hardly from the size of the model. That is why a small model on a fast GPU is the worst
# case: no host launches hundreds of kernels in the 0.08 ms that reading takes. The second is mostly Python and torch.
#
# This `eager` takes 34 ms, and the `generate` at the top took 14. It is the very code that the graph of Step 1 captures, with
# fixed shapes and masks over all slots of the memory, so it shows what the graph alone changes; without a graph one would not
# run it.

# %% [markdown]
# ## Step 1: one launch for all of them
#
# If Python only asks for the same kernels every time, it can ask once. A **CUDA graph** captures the launches of a piece of
# code and replays them by a single call. Nothing about the kernels changes: the same ones run, in the same order, on the
# same addresses.
#
# ```python
# graph = torch.cuda.CUDAGraph()
# with torch.cuda.graph(graph):
#     decoder.step()  # nothing runs: the launches are noted
# graph.replay()  # all of them, by one call; again and again
# ```
#
# In minispec this is the class [`Captured`](../minispec/gpu/capture.py).
#
# The price is in the words *the same*. Between capture and replay
#
# - no shape may change, so memory is allocated for the longest sequence, and prompts are padded to a few sizes;
# - no address may change, so results are written into tensors that already exist;
# - no number may travel to Python. `.item()` and `if token == eos` stop the capture with an error. A Python counter is worse:
#   it is captured as the number that it was, and every replay uses it again, without a word. So the sequence, its length and
#   the random numbers live on the device ([`FastDecoder`](../minispec/gpu/decode.py)), and the host looks afterwards.
#
# The silent one is what breaks code in practice, and the fourth exercise of this set is about it. Two more things to know.
# What is captured must have run before, because on their first call kernels are compiled and chosen (`Captured` does the work
# twice, then puts the state back). And only a Python `if` cannot be captured: graphs have had
# [conditional nodes](https://developer.nvidia.com/blog/dynamic-control-flow-in-cuda-graphs-with-conditional-nodes/) since
# CUDA 12.4, whose condition is computed on the device, and recent versions of PyTorch
# [capture `torch.cond`](https://github.com/pytorch/pytorch/pull/168912) as such nodes. We do not use them.

# %% [markdown]
# A CPU has no such queue, but it has the same problem: Python needs a few microseconds per operator. Its answer is not a
# graph but a compiler. In minispec a forward pass of few tokens on a CPU is *one* compiled function
# ([`fused`](../minispec/cpu/fused.py)). We come back to it when we time all steps.

# %% [markdown]
# ## Step 2: fewer kernels
#
# With a graph the device no longer waits for the host. But each kernel still starts, reads its input from memory, writes its
# output, and ends, and between two of them the memory is idle. A product with a large matrix is worth that. A norm of a few
# thousand numbers is not. So the small steps are **fused**, in two ways. The first needs no product of our own: what lies
# between two products of the layer becomes one kernel (residual sum with norm, RoPE with the write to the cache, SwiGLU). Only
# attention keeps its many small kernels until Step 4. That is the step `fused` in the tables. The second comes with the next
# step: a product that we write ourselves can take its small neighbours along, and then they have no kernel at all.
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
# That was float64. In bf16 the two sides round differently, so logits are close and not equal (lesson 14).
#
# How many kernels are left? The recorded run has counted them.

# %%
for model, climbed in recorded["models"].items():
    counts = ", ".join(
        f"{step} {climbed['steps'][step]['kernels_per_token']:,.0f}"
        for step in (ladder.GRAPH, ladder.FUSED, ladder.SKINNY, ladder.SPLIT)
    )
    print(f"{model}: kernels per token: {counts}")

# %% [markdown]
# After `split-K` there are seven per layer: four products (q, k, v are joined into one matrix, and so are gate and up), RoPE
# with the write to the cache, attention, and its merge. The few others are the embedding, a first and a last norm, the LM
# head, the choice of the token, and the small sums and copies that keep the sequence and its length on the device.

# %% [markdown]
# ## Step 3: a product for one token
#
# For one token, $y = x W^\top$ is a read of $W$ with two FLOPs per parameter. Matrix libraries are made for large matrices on
# both sides, and such a **skinny** product is not what they are best at. So we write one: each program owns a few rows of the
# matrix $W$, reads them once, and writes as many numbers of $y$. *Go deeper* shows the kernel. A
# large product comes close to the bandwidth. A small one starts and ends while nothing else uses the memory, because kernels
# run one after the other, and that fixed cost of a few microseconds remains for each. (Hopper's *programmatic dependent
# launch* lets a kernel begin before the one before it has ended. We do not use it.)

# %% [markdown]
# ## Step 4: attention for the whole GPU
#
# The products read the weights; attention reads the cache. Its programs come from the heads: the query heads of a group share
# the keys and values they read, so a sequence gives as many programs as there are key/value heads. For Llama-3-8B these
# are 8, on 132 multiprocessors. The rest would wait while 8 of them go through thousands of tokens.
#
# **Flash decoding** (Dao et al., 2023) therefore splits the *cached tokens*: a program takes one head and one split of the
# context and ends with its own state of the online softmax, $m$, $\ell$ and $o$ (lesson 12), with $o$ not divided by $\ell$
# yet. A second, tiny kernel merges the splits, $\sum w\,o / \sum w\,\ell$ with $w = e^{m - \max m}$. In a matrix product the
# same cut along the dimension that is summed over is called **split-K**, and the name is used for attention, too.
#
# How many splits? Enough that every multiprocessor has a program, with the 8 key/value heads of Llama-3-8B:

# %%
for slots in (500, 8192, 32_000):
    splits = attention.choose_splits(8, slots, 64, 132)
    print(f"the package takes {splits:2d} splits, {8 * splits:3d} programs, for a memory of {slots:6,} tokens")

# %% [markdown]
# (A program processes its tokens 64 at a time, a **tile**. [`choose_splits`](../minispec/gpu/attention.py) aims at several
# programs per multiprocessor, with a tile each at least.)
#
# How does this go together with a graph, in which no shape may change? The number of splits is that of the *memory*, so of the
# longest sequence that fits, and it is captured with the launch. Each program reads the current length on the device and
# takes its part of the tiles that are filled. If there are fewer tiles than splits, some programs have none. They write
# $\ell = 0$, and the merge leaves them out; the third exercise of this set is about that.
#
# In the tables below, the step `split-K` does three things at once. Before it, attention was two products of torch with
# scaling, mask and softmax between them, over all slots of the memory. Now there are splits, about six kernels per layer fewer,
# and fewer bytes, because only filled slots are read. The last is worth little here, because most of the bytes are weights. The
# data do not separate the other two.

# %% [markdown]
# Splitting changes the order of additions and nothing else:

# %% tags=["nbval-ignore-output"]
generator = torch.Generator().manual_seed(0)
q, k, v = (
    torch.randn(1, heads, slots, 16, generator=generator).to(device) for heads, slots in ((4, 1), (2, 100), (2, 100))
)
lengths = torch.tensor([99], device=device)  # before the new token
whole = attention.flash_decode_torch(q, k, v, lengths)
if triton is None or attention.unavailable(device):
    print("our kernel does not run here; its reference version in torch does")
else:
    parts = [attention.flash_decode(q, k, v, lengths, splits=s, tiling=attention.Tiling(tile=16)) for s in (1, 4)]
    apart = ", ".join(f"{float((part - whole).abs().max()):.0e}" for part in parts)
    print(f"with 1 and 4 splits, the largest difference from the reference version in torch, in {q.dtype}: {apart}")

# %% [markdown]
# ## Step 5: a whole cycle in one launch
#
# Plain decoding is now one launch per token, and it reads every weight once. Fewer bytes are not possible with one token per
# pass. To go beyond that, a pass has to emit more than one token, and that is what speculation is for. But a draft–verify
# cycle as in lesson 05 asks the host several times: which token did the draft model choose, how many were accepted, how far to
# rewind? Each question stops the device.
#
# [`FastSpeculator`](../minispec/gpu/decode.py) puts all of it on the device: $k$ passes of the draft model, the verify pass,
# the acceptance rule and the rewind are one captured launch. This is what its method `step` had to give up:
#
# - The accepted number is a tensor. With $n$ tokens before the cycle, the rewind is `lengths.copy_(n + accepted)`: slots after
#   it are overwritten later.
# - All $k + 1$ positions are always computed, and a `scatter` puts the emitted token after the accepted ones.
# - The draft model always processes two tokens first, because it has not seen the last draft token if all were accepted.
#   The second one is padding otherwise. One shape serves both cases.
# - Random numbers are taken in advance from the generator of each sequence, so the result is that of the slow loop.
#
# Without a GPU the same code runs without a graph. So you can check anywhere that it generates what `generate` does:

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
# The next cells time eager decoding and the five steps in turn ([`climb`](../minispec_course/labs/ladder.py), about ten seconds). The
# share counts the bytes of *one* pass per token, so a cycle, which emits several tokens per pass, may exceed 100 %.

# %% tags=["nbval-ignore-output"]
bandwidth = measure.read_bandwidth(device, seconds=1.5).median
read = ladder.bytes_per_token(target, len(prompt))
print(f"{bandwidth / 1e9:,.0f} GB/s, {read / 1e6:,.1f} MB per token: {1e3 * read / bandwidth:.2f} ms at best")

# %% [markdown]
# ## Predict
#
# The last cell printed how long a token takes at best, and you know how many launches it takes.

# %% tags=["nbval-ignore-output"]
guess_eager = viz.predict("Which share of this machine's read bandwidth does eager decoding reach?", "%")
guess_eager

# %% [markdown]
# ## Run


# %% tags=["spoiler", "nbval-ignore-output"]
def cycle_in_words(climbed, plain):
    """What a cycle emits and costs, beside the step `plain`."""
    tokens, steps = climbed["cycle"]["tokens_per_cycle"], climbed["steps"]
    one, cycle = (steps[step]["seconds_per_token"]["median"] for step in (plain, ladder.CYCLE))
    return (
        f"a cycle of k = {climbed['cycle']['k']}: {tokens:.1f} tokens in {1e3 * cycle * tokens:.2f} ms, "
        f"so {cycle * tokens / one:.1f} plain steps, {one / cycle:.1f} times as fast"
    )


mine = ladder.climb(target, draft, prompt, bandwidth, repeat=3, launches=4, counted=device == "cuda")
if device == "cpu":  # nothing is captured, and torch does our kernels' work: the steps between do not exist here
    rate = measure.plain_speed(target, prompt, new_tokens=32, repeat=3, seconds=2).median
    share = mine["bytes_per_token"] * rate / bandwidth
    function = {"seconds_per_token": {"median": 1 / rate}, "fraction_of_bandwidth": share}
    there = {step: mine["steps"][step] for step in (ladder.EAGER, ladder.CYCLE)}
    mine["steps"] = there | {"one function": function}
print(f"{here}: {bandwidth / 1e9:,.0f} GB/s, {mine['bytes_per_token'] / 1e6:,.1f} MB per token")
print(ladder.table(mine))
layers = (draft.config.num_layers, target.config.num_layers)
print(cycle_in_words(mine, ladder.EAGER if device == "cpu" else ladder.SPLIT) + "; layers of draft and target:", layers)

# %% [markdown]
# ## Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
guess_eager.reveal(100 * mine["steps"][ladder.EAGER]["fraction_of_bandwidth"])

# %% [markdown]
# *Saved* is what a step takes off the time of the line above it, and on a GPU `cycle, eager` is the cycle without a graph. On
# a CPU nothing is captured and torch stands in for our kernels, so three lines are left. *One function* is the step that
# counts there. A cycle gains little on a CPU, or loses, although it emits several tokens: four passes of the draft model run
# more layers than a plain step, and a verify pass of five tokens comes on top.
#
# The next cell has what was recorded, after about 1,000 tokens. The 8B shape has random weights there, and its draft model is
# its own first layers. How often its draft tokens are accepted was set by construction and is no property of a trained pair;
# the times are.

# %%
for model, climbed in recorded["models"].items():
    print(
        f"\n{model}, {climbed['weights']} weights: {1e3 * climbed['predicted_seconds']:.3g} ms at the bandwidth of {gpu}"
    )
    print(ladder.table(climbed))
    print(cycle_in_words(climbed, ladder.SPLIT))
other = decode["results"]["generate"]["seconds_per_token"]["median"]
graph = recorded["models"]["8b"]["steps"][ladder.GRAPH]["seconds_per_token"]["median"]
print(f"\n8b, against generate (the table at the top, {1e3 * other:.2f} ms) the graph saves {1 - graph / other:.0%}")

# %% [markdown]
# What was each step worth? The graph takes away most, 90 % of SmolLM2's time and 81 % of the 8B shape's. But that is from our
# slow `eager`; from `generate`, in another run with another context, it is 53 %. A gain over "eager" says little unless one
# knows which. Fusion follows. Our own product saves least: it mostly takes its neighbours along.
#
# A cycle costs 1.6 plain steps with SmolLM2 and 1.5 in the 8B shape: about one for the verify pass, the rest for drafting and
# deciding. Its gain is the number of tokens that it emits, divided by this cost. SmolLM2's trained draft model gives 3.8
# tokens, so 2.4 times the speed; the 1.8 of the 8B shape depends on an acceptance that was chosen.
#
# And how far is it to the limit? The share is of a bandwidth that one long read reached by the host's clock, launch and
# waiting included, so it flatters us. Compare times, and give the bandwidth with every share. What is left is mostly the fixed
# cost of each product. So the next step is to let the reads of the next matrix begin before the current product has ended: with
# programmatic dependent launch, or with a **megakernel** (Spector et al., 2025), the whole pass as one persistent kernel.

# %% [markdown]
# ## Go deeper (optional, 15 minutes)
#
# ### A skinny product in Triton
#
# In **Triton** a kernel is a Python function that describes *one program*; the grid, in brackets before the arguments, says
# how many of them run. Here a program owns `ROWS` rows of the matrix $W$ and goes along them in strips of `WIDE` numbers; such
# a piece of `ROWS` × `WIDE` numbers is a **tile**. To read it:
#
# - `tl.program_id(0)` is the number of this program, all that tells one from another. It decides which rows of the matrix are
#   its own.
# - `x`, `w`, `y` are addresses. `w + row · width + k` are the addresses of a whole tile, and `tl.load` fetches all of them.
#   As in torch, `row[:, None]` and `k[None, :]` make a column and a line, which together make a tile.
# - `mask` leaves out what lies beyond the matrix, and `other=0.0` stands there instead: 100 rows of 200 numbers, say, make
#   7 programs of 16 rows and 4 strips of 64.
# - `y.dtype.element_ty` is the type of the numbers that the address `y` points to.
# - `tl.constexpr` are numbers that the compiler knows, one version of the kernel for each; `-(-n // rows)` rounds up.


# %%
@jit
def skinny_kernel(x, w, y, n, width, ROWS: tl.constexpr, WIDE: tl.constexpr):
    """ROWS numbers of y = x Wᵀ for one token: x [width], W [n, width], y [n]."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)  # which rows of the matrix are ours
    inside = row < n
    total = tl.zeros([ROWS, WIDE], tl.float32)
    for start in range(0, width, WIDE):  # one strip after the other
        k = start + tl.arange(0, WIDE)
        there = k < width
        strip = tl.load(w + row[:, None] * width + k[None, :], mask=inside[:, None] & there[None, :], other=0.0)
        numbers = tl.load(x + k, mask=there, other=0.0)
        total += strip.to(tl.float32) * numbers.to(tl.float32)[None, :]
    tl.store(y + row, tl.sum(total, 1).to(y.dtype.element_ty), mask=inside)


def skinny(x, w, rows=16, wide=64):
    """y = x Wᵀ, one program per `rows` rows of the matrix."""
    assert w.is_contiguous()  # the addresses count on it
    n, width = w.shape
    y = torch.empty(n, dtype=x.dtype, device=x.device)
    skinny_kernel[(-(-n // rows),)](x, w, y, n, width, ROWS=rows, WIDE=wide)
    return y


# %% [markdown]
# Read it once more with bytes in mind. Each number of $W$ is loaded by exactly one program, once. $x$ is loaded by all of them,
# but it is small and stays in the cache. Products are kept in float32, number by number, and summed up once at the end: a sum
# over a tile is a sum across threads, and one in every strip would make them wait for each other instead of for memory. The
# masks are for sizes that the tile does not divide.
#
# If there is no GPU, Triton's interpreter runs the programs with numpy, one after the other: right, and slow. (Triton
# itself is installed with minispec on Linux, ARM included. On macOS and Windows it is missing; then the next cell says so and
# does the same in torch, and so did the one with attention.)

# %% tags=["nbval-ignore-output"]
x = torch.randn(200, generator=generator).to(device)
w = torch.randn(100, 200, generator=generator).to(device)
if triton is None:
    y, how = torch.stack([(row * x).sum() for row in w]), "without Triton: one number of y after the other"
else:
    y, how = skinny(x, w), "by our kernel"
close = torch.allclose(y, F.linear(x, w), rtol=1e-4, atol=1e-4)
assert close
print(f"{how}, as torch's own product: {close}")

# %% [markdown]
# The kernel of the package, [`products.skinny`](../minispec/gpu/products.py), does the same with matrix units (they take 16
# tokens at least, so one token is padded), with the fused steps, and with reads of the next strips under way while the current
# one is multiplied. All times of this lesson are of that kernel. Its tile is a choice: wide strips have more bytes under way and
# need fewer rounds, high tiles mean fewer programs, and a multiprocessor without a program reads nothing. Tiles are measured,
# not derived: [`default_tiles`](../minispec/gpu/products.py) has what was best for each shape.

# %% [markdown]
# ## In production
#
# vLLM captures CUDA graphs at start-up for a list of batch sizes (`cudagraph_capture_sizes` in its compilation config) and pads
# each batch to the next one; `--enforce-eager` turns this off. Its graphs can be *piecewise*, with attention left out so that
# it may have changing shapes, or *full*. SGLang has `--cuda-graph-max-bs-decode` and `--cuda-graph-backend-decode=disabled`
# (until 2026 `--cuda-graph-max-bs` and `--disable-cuda-graph`, which still work). In plain PyTorch
# `torch.compile(mode="reduce-overhead")` fuses the small steps and captures graphs, which is what `transformers` does with a
# static cache. Attention comes from FlashAttention, FlashInfer or Triton, all with splits over the keys. A draft and its
# verification are usually several graphs, because their shapes differ: a verification has $1 + k$ tokens per request, a step
# of the draft model mostly one. The host launches them one after the other and can plan the next step meanwhile.

# %% [markdown]
# ## Check yourself
#
# <details><summary>A profile shows 700 kernels per token, of 2 µs on average, and between two kernels the device is idle
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
# <details><summary>Why does split-K help attention at batch size 1 and hardly at batch size 64, with contexts of similar
# length?</summary>
#
# Programs come from sequences × key/value heads × splits. At batch size 64 with 8 key/value heads there are 512 programs
# without any split, enough for 132 multiprocessors. At batch size 1 there are 8. (One very long context among short ones
# leaves its 8 programs running alone at the end, so there splits help at any batch size.)
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
# - On a GPU, `python -m benchmarks limit` makes the recorded data of this lesson anew, on your own machine.
# - Next lesson: [14 Is it really exact?](14_is_it_really_exact.ipynb).
