# %% [markdown]
# # 13 Near the limit
#
# *Time:* 65 minutes · *Before this:* [01 Why decoding is slow](01_why_decoding_is_slow.ipynb), [07 How fast](07_how_fast.ipynb), [12 Fewer bytes](12_fewer_bytes.ipynb) · *Practice:* [exercises 13](../exercises/13_near_the_limit.ipynb)
#
# Our chatbot has moved to a large GPU, and its one user still waits: a pass takes several times as long as its bytes need
# to arrive from **HBM**, the GPU's memory. This lesson finds the missing time and takes it back. In lesson 01 the dashboard
# showed how **busy** the arithmetic is, which one user cannot fill. What decoding can fill is the memory, so here *busy* is
# the time that the bytes need at full bandwidth, divided by the time that the pass takes.
#
# You will be able to
#
# - count the bytes of a pass, and say how busy the memory is;
# - tell launch overhead from memory traffic;
# - write a step that survives **CUDA graph capture**;
# - explain split-K in attention, and merge its splits.

# %%
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import minispec as ms
from minispec import measure
from minispec_course import viz
from minispec_course.check import yours
from minispec_course.labs import ladder
from minispec_course.labs.pairs import course_pair, where

torch.set_grad_enabled(False)  # nothing is trained here
micro = ms.load("micro", device="cpu", dtype=torch.float64)
prompt = micro.encode("Once upon a time")
plain = ms.generate(micro, prompt, 24).tokens

# %% [markdown]
# ## What has to be read
#
# A memory-bound forward pass takes at least its bytes divided by the bandwidth. So count them.
#
# ### Yours: the bytes of a pass
#
# The model is a Llama. Each layer has the matrices q and o (`hidden` × `heads` · `head_dim`), k and v (`hidden` × `kv_heads` ·
# `head_dim`), and an MLP with gate, up and down (`hidden` × `intermediate`; between them is **SwiGLU**, silu(gate) · up). After
# the last layer comes the LM head (`hidden` × `vocab`).
# `kv_heads` key/value heads of `head_dim` numbers are shared by the `heads` query heads. The pass has `tokens` new tokens
# and attends to `context` cached ones. Leave out what is small: norms, activations, the new tokens' own keys and values, and
# the embedding table, of which a token reads one row. A parameter has `size` bytes, and so has a number in the cache. (One
# argument is not needed.)


# %%
@yours("13.pass_bytes")
def pass_bytes(
    layers: int,
    hidden: int,
    intermediate: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    vocab: int,
    tokens: int,
    context: int,
    size: float,
) -> float:
    """Bytes that one forward pass of one sequence reads: every weight once, and the cache."""
    ### BEGIN SOLUTION: one line per kind of matrix, then the cache
    attention = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim  # q and o, k and v
    mlp = 3 * hidden * intermediate  # gate, up, down
    weights = layers * (attention + mlp) + vocab * hidden
    cache = 2 * layers * kv_heads * head_dim * context
    return size * (weights + cache)
    ### END SOLUTION


# %% [markdown]
# Lesson 01 counts with 4.2 TB/s for an H200. Here we divide by the fastest large read that we have timed there, attention
# over a gigabyte of keys and values ([the record](../minispec/data/benchmarks/attention.json)): it is faster, so every
# percentage below is smaller.

# %%
shape = dict(layers=32, hidden=4096, intermediate=14_336, heads=32, kv_heads=8, head_dim=128, vocab=128_256)
llama = pass_bytes(**shape, tokens=1, context=500, size=2)  # Llama-3-8B in bf16
bandwidth = ladder.largest_read()  # bytes/s
print(f"{llama / 1e9:.1f} GB per token at {bandwidth / 1e12:.2f} TB/s: {1e3 * llama / bandwidth:.2f} ms at best")
print(f"(The data sheet promises 4.8 TB/s; our bandwidth is {bandwidth / 4.8e12:.0%} of that.)")

# %% [markdown]
# Suppose that the chatbot calls `generate` of Hugging Face transformers. `nvidia-smi` may show a high utilisation: it
# reports how often *any* kernel was running, not how fast it read.

# %% tags=["nbval-ignore-output"]
guess_busy = viz.predict("transformers decodes with the 8B model on an H200. How busy is the memory?", "%")
guess_busy

# %% tags=["spoiler"]
timed = ladder.recorded("decode")["results"]
names = {
    "transformers eager": "transformers",
    "transformers static": "transformers, static cache, compiled",
    "generate": "minispec, the readable loop",
    "fast.generate": "minispec, after this lesson",
    "launch": "the same, without the prompt's pass",
}
busy = {name: llama / bandwidth / timed[name]["seconds_per_token"]["median"] for name in names}
for name, words in names.items():
    milliseconds = 1e3 * timed[name]["seconds_per_token"]["median"]
    print(f"{words:37s} {milliseconds:5.1f} ms per token, memory busy {busy[name]:4.0%}")

# %% tags=["spoiler", "nbval-ignore-output"]
guess_busy.reveal(100 * busy["transformers eager"])

# %% [markdown]
# All read the same weights, random ones in the shape of Llama-3-8B. (All times but the last include the prompt's pass, spread
# over 32 tokens.) Lesson 01 was right that decoding is memory-bound, *once
# everything else is out of the way*. What else is there?
#
# ## What a launch costs
#
# A function that runs on the GPU is a **kernel**. The GPU is called the *device*, and the CPU whose Python asks for
# kernels is the *host*. One request is a **kernel launch**: Python calls torch, torch chooses a kernel, the driver puts it
# into a queue. That takes microseconds, however little the kernel does. A kernel starts when it has been launched *and*
# the one before it has ended:


# %%
def timeline(durations, launch, launches):
    """When each kernel begins and ends, if the host needs `launch` µs for each of its launches."""
    spans, end = [], 0.0
    for number, duration in enumerate(durations):
        begin = max(end, min(number + 1, launches) * launch)
        end = begin + duration
        spans.append((begin, end))
    return launches, spans


lanes = {f"kernels of {each} µs": timeline([each] * 12, 6, launches=12) for each in (8, 2)}
lanes["kernels of 2 µs, one launch"] = timeline([2] * 12, 6, launches=1)
viz.launch_lanes(6, lanes)

# %% [markdown]
# Long kernels hide the launches. If kernels are shorter than a launch, as in the middle of the picture, the host sets the
# pace: the pass is *overhead-bound*, as lesson 01 called it. Is decoding overhead-bound? That depends on the number of kernels. In each of
# 32 layers a token needs two norms, the matrix products, RoPE, two writes to the cache, attention, SwiGLU and two residual
# sums (a block's output is added to its input). Each of these is a kernel or several.

# %% tags=["nbval-ignore-output"]
guess_kernels = viz.predict("How many kernels does the 8B model launch for one token, in plain PyTorch?", "kernels")
guess_kernels

# %% tags=["spoiler"]
steps = {name: of["steps"] for name, of in ladder.recorded()["models"].items()}
for name, of in steps.items():
    row = of["eager"]
    launches, milliseconds = row["launches_per_token"], 1e3 * row["seconds_per_token"]["median"]
    print(f"{name}: {launches:,.0f} launches in {milliseconds:.0f} ms, {1e3 * milliseconds / launches:.0f} µs each")

# %% tags=["spoiler", "nbval-ignore-output"]
guess_kernels.reveal(steps["8b"]["eager"]["launches_per_token"])

# %% [markdown]
# About a thousand launches, and most of the time goes to Python and torch. The number follows from the layers, not from
# the width: SmolLM2, with a sixtieth of the parameters, has almost as many. A small model on a fast GPU is the worst
# case.
#
# What a launch costs depends on the host and on the code. This host was slow, and not steady from one model to the next;
# 5 to 10 µs is more usual. (The readable loop above is other code, timed in another run.)
#
# ## Step 1: one launch for all
#
# If Python always asks for the same kernels, it can ask once, as at the bottom of the picture. **CUDA graph capture**
# records the launches of a piece of code, and a single call replays them:
#
# ```python
# step()            # once or twice before: what is compiled or allocated at first use must not be captured
# graph = torch.cuda.CUDAGraph()
# with torch.cuda.graph(graph):
#     step()        # Python runs once; the launches are recorded
# graph.replay()    # the same kernels on the same addresses, again and again
# ```
#
# The price is in the words *the same*:
#
# - **Fixed shapes.** The cache is allocated for the longest sequence, and prompts are padded to a few sizes.
#   `x[mask]` is out, because its shape depends on the data; use `torch.where`.
# - **In-place buffers.** Addresses are recorded, so results are written into tensors that stay where they are.
# - **No host reads.** `.item()`, or an `if` on a tensor, would wait for kernels that have not run: an error. A Python
#   number is worse: every replay silently uses it as it was.
#
# ### Yours: a step that can be captured
#
# `gpu` holds a sequence whose last token has not been processed. Write one decoding step: process that token, choose
# the next, append it. Your function is called *once*, for the capture; every replay must append one token. Positions begin
# at 0.
#
# | | |
# |---|---|
# | `gpu.count` | number of tokens, a tensor on the device (`gpu.count - 1` stays on the device too) |
# | `gpu.token(position)` | the token at a position |
# | `gpu.next(token, position)` | the model's choice after processing `token` at `position` |
# | `gpu.write(position, token)` | puts a token at a position |
# | `gpu.advance(n=1)` | adds n to `gpu.count` |
# | `count` | number of tokens when you are called, a Python number |


# %%
@yours("13.captured")
def captured_step(gpu, count: int) -> None:
    """One decoding step that can be captured once and replayed."""
    ### BEGIN SOLUTION: every number that changes from step to step lives on the device
    position = gpu.count - 1
    last = gpu.token(position)
    token = gpu.next(last, position)
    gpu.write(gpu.count, token)
    gpu.advance(1)
    ### END SOLUTION


# %% [markdown]
# Now decode with a real model. No GPU is needed if we capture ourselves: torch lets us watch every operator that it
# runs. This tape records each one with its arguments, and replays them into the same memory, without your Python.


# %%
class Tape(TorchDispatchMode):
    """A CUDA graph for torch's operators, on any device."""

    def __init__(self):
        super().__init__()
        self.recorded = []

    def __torch_dispatch__(self, operator, types, args=(), options=None):
        if operator is torch.ops.aten._local_scalar_dense.default:  # what .item() calls
            raise RuntimeError("the host reads a number from the device during the capture")
        result = operator(*args, **(options or {}))
        self.recorded.append((operator, args, options or {}, result))
        return result

    def replay(self):
        for operator, args, options, result in self.recorded:
            again = operator(*args, **options)
            if isinstance(again, torch.Tensor) and again.data_ptr() != result.data_ptr():
                result.copy_(again)  # to the address that the next operator reads


def decode(step, model, prompt, tokens):
    """Capture a step once, replay it for each token."""
    gpu, tape = ladder.OnDevice(model, prompt), Tape()
    with tape:
        step(gpu, len(prompt))
    gpu.text[len(prompt) :], gpu.count[:] = 0, len(prompt)  # a capture on a GPU runs nothing, so take it back
    for _ in range(tokens):
        tape.replay()
    return gpu.text[len(prompt) : len(prompt) + tokens].tolist(), len(tape.recorded)


tokens, operators = decode(captured_step, micro, prompt, 24)
print(f"{operators} operators captured once, replayed 24 times; as generate: {tokens == plain}")
print(micro.decode(tokens))

# %% [markdown]
# Two mistakes: a Python number, and a host read.


# %%
def python_count(gpu, count):
    gpu.write(count, gpu.next(gpu.token(count - 1), count - 1))
    gpu.advance()


def host_read(gpu, count):
    python_count(gpu, int(gpu.count))


print("Python number:", decode(python_count, micro, prompt, 24)[0])
try:
    decode(host_read, micro, prompt, 24)
except RuntimeError as error:
    print("host read:    ", error)

# %% [markdown]
# The second is found at once. The first raises no error: every replay writes the same token into the same slot, and
# the slots after it keep their zeros. In minispec the capture is [`Captured`](../minispec/gpu/graph.py), and your step
# [`FastDecoder.step`](../minispec/gpu/decode.py).
#
# ## Steps 2 and 3: fewer kernels
#
# With a graph the device no longer waits for the host. But between two kernels the memory is idle, so the next aim is fewer
# of them.
#
# - **Fused** kernels (step 2): what lies between two matrix products becomes one kernel, for example the residual sum with
#   the norm, or RoPE with the write to the cache.
# - **A product for one token** (step 3): for one token a **GEMM** (general matrix–matrix product) is a **GEMV**
#   (matrix–vector product). Libraries are tuned for large GEMMs. Our [skinny GEMM](../minispec/gpu/gemm.py) reads each
#   weight once and computes norm, SwiGLU and residual sum on the way, which then have no kernels of their own.
#
# <details><summary>Go deeper: how can a product take a norm along?</summary>
#
# RMSNorm divides by one number per token, so the division can come last:
# $\mathrm{norm}(x) W^\top = (x \odot g) W^\top / \mathrm{rms}(x)$. The product that makes $x$ also stores the sum of squares
# of its part, and the next product adds these sums up.
# </details>
#
# ## Step 4: attention for every SM
#
# The matrix products read the weights; attention reads the cache. So far torch has computed it, in eight kernels per
# layer: scale, scores, mask, softmax, weighted sum and conversions. Step 4 replaces them with two of ours. Why not by
# one?
#
# Our kernels are in Triton. There a kernel consists of many **programs** (thread blocks, in CUDA), each of which runs on
# one **SM** (streaming multiprocessor). An H200 has 132 of them. Attention in one kernel has a program per key/value head.
# With one user and 8 such heads, 124 SMs have nothing to do while 8 go through thousands of cached tokens.
#
# **Flash decoding** (Dao et al., 2023) also splits the *cached tokens*. Each program takes one head and one split, and ends
# with the state of your online softmax from lesson 12, over its own scores $s$ and values $v$: the maximum $m$, the sum
# $\ell = \sum e^{s - m}$, and $o = \sum e^{s - m} v$. A second, tiny kernel merges the states. This is called **split-K**,
# after the dimension K of a GEMM, which is summed over.
#
# ### Yours: the merge of splits
#
# `m` and `ell` are tensors `[S]`, `o` is `[S, D]`. Return the attention over all splits, `[D]`. Each split is relative to
# a maximum of its own. By what must you multiply its $\ell$ and its $o$, so that all are relative to the largest?
#
# In a captured launch the number of splits is fixed, so a short sequence leaves some splits without tokens. They have
# `ell` = 0 and `m` = −10³⁰, and their `o` was never written: it can hold anything, NaN included.


# %%
@yours("13.merge_splits")
def merge_splits(m: torch.Tensor, ell: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    """The attention over all splits from the online softmax of each."""
    ### BEGIN SOLUTION: mask what was never written, because 0 · NaN is NaN; the shapes stay fixed
    w = torch.exp(m - m.max())  # [S], 0 for a split without tokens
    o = torch.where(ell[:, None] > 0, o, 0.0)
    return (w @ o) / (w @ ell)
    ### END SOLUTION


# %% [markdown]
# One head, a thousand cached tokens, more and more splits; beside your merge, the plain average of the splits' outputs.


# %%
def states(scores, values, splits):
    """(m, ell, o) of each split; one without tokens leaves its o unwritten."""
    m, ell = torch.full((splits,), -1e30).double(), torch.zeros(splits).double()
    o = torch.full((splits, values.shape[1]), torch.nan).double()
    for i, (s, v) in enumerate(zip(scores.tensor_split(splits), values.tensor_split(splits), strict=True)):
        if len(s):
            m[i] = s.max()
            weights = (s - m[i]).exp()
            ell[i], o[i] = weights.sum(), weights @ v
    return m, ell, o


generator = torch.Generator().manual_seed(0)
query, keys, values = (torch.randn(n, 64, generator=generator).double() for n in (1, 1000, 1000))
scores = (keys @ query[0]) / 2  # attention divides by √64 = 8; these differ more, so a wrong merge shows
for length, splits in ((1000, 1), (1000, 8), (1000, 32), (5, 32)):
    whole = scores[:length].softmax(0) @ values[:length]
    m, ell, o = states(scores[:length], values[:length], splits)
    average = (o / ell[:, None])[ell > 0].mean(0)
    right, wrong = ((x - whole).abs().max() for x in (merge_splits(m, ell, o), average))
    print(f"{length:4d} tokens, {splits:2d} splits: exact {bool(right < 1e-12)}, an average is off by {wrong:.2f}")

# %% [markdown]
# Splitting only changes the order of the additions. How many splits? Enough for a few programs per SM, but at most 32,
# because a single program merges them, and each with at least 64 tokens when the cache is full. So splits pay for one user
# with a long context; a batch of 16 has a program for nearly every SM without them.

# %% [markdown]
# ## Step 5: a whole cycle in one launch
#
# With one token per pass the 8B model has little left to save, so let a launch speculate and emit several. The loop of
# lesson 05 goes back to the host three times per cycle: which token was drafted, how many were accepted, how far to rewind?
# [`FastSpeculator`](../minispec/gpu/decode.py) captures all of it, by the rules of step 1:
#
# - The number of accepted tokens is a tensor, and to rewind is `lengths.copy_(n + accepted)`.
# - All $k + 1$ positions are always computed; rejected ones are overwritten later.
# - The draft model always processes two tokens first: after a full acceptance it has missed one, else the second is padding.

# %% [markdown]
# ## How near is it now?
#
# After step 4 the 8B model keeps the H200's memory 80 % busy. SmolLM2, with 135 million parameters, runs on the same
# kernels. Its pass reads about a fiftieth of the bytes.

# %% tags=["nbval-ignore-output"]
guess_small = viz.predict("SmolLM2 after step 4, one launch per token: how busy is the memory?", "%")
guess_small

# %% tags=["spoiler"]
models = ladder.recorded()["models"]
reading = {name: of["bytes_per_token"] / bandwidth for name, of in models.items()}  # seconds
plain_steps = ("eager", "graph", "fused", "skinny", "split-K")
shares = {
    f"{name} on an H200": {step: reading[name] / of[step]["seconds_per_token"]["median"] for step in plain_steps}
    for name, of in steps.items()
}
viz.busy_bars(shares)

# %% tags=["spoiler", "nbval-ignore-output"]
guess_small.reveal(100 * shares["smollm2 on an H200"]["split-K"])

# %% [markdown]
# (*eager* is the code before step 1, and each step builds on the one before.) On this slow host the graph gains most;
# then every removed kernel counts. Why do the models end so far apart? Take away the time of reading, and divide the rest
# by the kernels:

# %% tags=["spoiler"]
for name, of in steps.items():
    for step in plain_steps[1:]:
        seconds, kernels = of[step]["seconds_per_token"]["median"], of[step]["kernels_per_token"]
        rest = 1e6 * (seconds - reading[name]) / kernels
        print(f"{name:8} {step:8} {1e3 * seconds:.2f} ms, {kernels:5,.0f} kernels, {rest:.1f} µs each besides reading")

# %% [markdown]
# Two different models, and the same 2.4 to 3.5 µs per kernel, more as the kernels get fewer and do more. A pass takes
# about
#
# $$t = \frac{\text{bytes}}{\text{bandwidth}} + 3\,\mu\text{s} \cdot \text{kernels}.$$
#
# The second term is what a kernel costs on top of reading its bytes: it starts, waits for the first of them, and ends. In
# the 8B model that is a fifth of the time, in SmolLM2 nearly all. It also explains step 4: with a thousand cached tokens,
# as here, six kernels fewer per layer are nearly all of its gain. To go further, the reads of the next kernel have to begin
# before the current one ends: *programmatic dependent launch* does that, and a **megakernel** (Spector et al., 2025) makes
# the whole pass one kernel.
#
# The other way is more tokens per launch. (SmolLM2's pair is trained. How often the random 8B model accepts was set by
# construction, so only the cost of its cycle is a finding.)

# %% tags=["spoiler"]
for name, of in models.items():
    one, cycle = (of["steps"][step]["seconds_per_token"]["median"] for step in ("split-K", "cycle"))
    emitted = of["cycle"]["tokens_per_cycle"]
    print(f"{name:8} a cycle emits {emitted:.1f} tokens, costs {cycle * emitted / one:.1f} plain steps:", end=" ")
    print(f"{1e3 * cycle:.2f} ms per token, {one / cycle:.1f} times as fast")

# %% [markdown]
# ## The dashboard
#
# On a GPU this cell runs the steps with SmolLM2. A CPU has the same problem: Python needs microseconds per operator.
# There minispec compiles the pass into [one function](../minispec/cpu/fused.py), which plays the part of the graph. (If it
# comes out below *eager*, something else kept the machine busy: run the cell again.)

# %% tags=["nbval-ignore-output"]
device = ms.device()
bot, bot_draft = course_pair(device)
text = bot.encode("Once upon a time there was a little duck who") * 4
here = measure.read_bandwidth(device, seconds=1.5).median
if device.type == "cuda":
    found = ladder.climb(bot, bot_draft, text, here, repeat=3, launches=4)
    times = {step: found["steps"][step]["seconds_per_token"]["median"] for step in plain_steps}
else:
    eager = ladder.ways(bot, None, text, k=1, room=len(text) + 64)["eager"].launch
    rate = measure.plain_speed(bot, text, new_tokens=32, repeat=3, seconds=2).median
    times = {"eager": measure.median_time(eager).median, "one function": 1 / rate}
need = ladder.bytes_per_token(bot, len(text)) / here
viz.busy_bars({f"{bot.name} on {where(device)}": {step: need / seconds for step, seconds in times.items()}})

# %% tags=["nbval-ignore-output"]
best = min(times.values())
viz.dashboard("13", ms_per_token=1e3 * best, busy=need / best, busy_note="the memory")

# %% [markdown]
# ## In production
#
# vLLM captures graphs at start-up for a list of batch sizes (`cudagraph_capture_sizes`) and pads each batch to the next one;
# `--enforce-eager` turns this off. SGLang has `--cuda-graph-max-bs-decode`. In plain PyTorch,
# `torch.compile(mode="reduce-overhead")` fuses the small steps and captures graphs.
#
# For your own code, first look at a timeline: **Nsight Systems**, or `torch.profiler`. Gaps between short kernels are launch
# overhead. If there are none, open a kernel in **Nsight Compute**, which shows its HBM throughput and its **occupancy**
# (the fraction of an SM's thread slots in use).
#
# ## Check yourself
#
# <details><summary>A profile shows 700 kernels per token, of 2 µs on average, with gaps of 5 µs between them. What do you
# do first, and what can it gain at most?</summary>
#
# Capture a CUDA graph. A token takes about 700 · 7 µs = 4.9 ms, of which 1.4 ms are kernels, so it gains at most a factor
# of 3.5. Then go for fewer kernels.
# </details>
#
# <details><summary>A captured step generates the first token correctly and then repeats it for ever. Why?</summary>
#
# The position that it reads from was a Python number when the graph was captured, so every replay continues the same token.
# It has to be a tensor which the step itself increments.
# </details>
#
# <details><summary>Why does split-K hardly help attention at batch size 64?</summary>
#
# Without splits there is a program per sequence and key/value head: 64 · 8 = 512, enough for 132 SMs.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Dao, Haziza, Massa, Sizov, 2023: *Flash-Decoding for long-context inference*
#   ([blog](https://crfm.stanford.edu/2023/10/12/flashdecoding.html)): splits over the keys, with measurements.
# - Tillet, Kung, Cox, 2019: *Triton: an intermediate language and compiler for tiled neural network computations*
#   ([MAPL 2019](https://doi.org/10.1145/3315508.3329973)): why a kernel is written for a tile and not for a thread.
# - Spector et al., 2025: *Look ma, no bubbles! Designing a low-latency megakernel for Llama-1B*
#   ([blog](https://hazyresearch.stanford.edu/blog/2025-05-27-no-bubbles)): what comes after the steps of this lesson.
#
# All papers: [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - Practice: [exercises 13](../exercises/13_near_the_limit.ipynb), where you place single kernels on the roofline.
# - Interview questions (`minispec drill`): `cuda-graphs`, `far-from-the-roofline`, `split-k`. A whole
#   round: `minispec drill --topics kernels-and-profiling`.
# - On a GPU, `minispec bench limit` records this data anew.
# - [14 Is it really exact?](14_is_it_really_exact.ipynb): what splits and fused kernels do to the last bits.
