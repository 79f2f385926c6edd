# %% [markdown]
# # 16 Beyond one GPU
#
# *Time:* 50 minutes · *Before this:* [07 how fast](07_how_fast.ipynb), [12 fewer bytes](12_fewer_bytes.ipynb) · *Practice:* [exercises 16](../exercises/16_beyond_one_gpu.ipynb)
#
# Some models do not fit into the memory of one GPU, and others fit but are too slow on it. In both cases the model is split
# over several GPUs, and then the parts have to exchange data. This lesson asks where a model can be split, what each kind of
# split costs, and which one to choose.
#
# You will be able to
#
# - split a linear layer in two ways, and say which of them needs an all-reduce;
# - count the all-reduces of a tensor-parallel model, and say why eight GPUs are not eight times as fast;
# - compute the bubble of a pipeline, and say which latency a pipeline improves and which it does not;
# - say what experts on different GPUs have to send each other, and which of them sets the time;
# - hand a model over to vLLM or SGLang.

# %%
import torch

import minispec as ms
from minispec.parallel import experts, handover, pipeline, scaling
from minispec_course import viz

# %% [markdown]
# ## Why split a model at all?
#
# In bf16 a parameter takes two bytes, and the cache of lesson 02 and the activations of a forward pass need room as well.
# [`gpus_to_hold`](../minispec/parallel/scaling.py) computes how many H200 GPUs with 141 GB a model needs if a tenth of the
# memory is kept free, rounded up to a power of two, because the heads have to divide evenly among the GPUs. (By memory alone,
# seven would hold the largest.) The last column is the time to read the parameters of a decode pass once, at the 4.2 TB/s that
# we measured on one H200. So it is for one request with a short context.

# %%
for shape in (scaling.LLAMA_8B, scaling.LLAMA_70B, scaling.LLAMA_405B):
    alone = 1e3 * scaling.parallel_pass_time(shape, ranks=1)
    print(f"{shape.name:15} {2 * shape.parameters / 1e9:4.0f} GB, GPUs needed: {scaling.gpus_to_hold(shape)}", end=", ")
    print(f"one token in {alone:5.1f} ms if one GPU could hold it")

# %% [markdown]
# So there are two reasons to split a model: memory and speed. A decode pass of a dense model reads every parameter except
# the embedding matrix, of which it reads one row per token. (That is why the 8B model takes 3.6 ms here, and not the 3.8 ms
# that all 16 GB would take.) If each of eight GPUs holds an eighth of the parameters, each reads an eighth of the bytes, and
# all of them read at the same time.

# %% [markdown]
# ## Tensor parallelism: how do you split one layer?
#
# A linear layer computes $y = x W^T$, and there are two ways to divide it among **ranks**, the processes that hold one GPU
# each. The picture has both, one after the other, as in the MLP of a transformer: the first matrix is cut by outputs, the
# second by inputs. Look at what crosses between the colours: nothing, until the partial sums on the right are added.

# %%
viz.parallel_products(ranks=2)

# %% [markdown]
# Now the same in numbers. Our ranks are elements of a list here, and nothing is distributed yet.

# %%
generator = torch.Generator().manual_seed(0)
x = torch.randn(3, 8, generator=generator)  # [T, d]
W = torch.randn(12, 8, generator=generator)  # [N, d], as torch stores it
whole = x @ W.T  # [T, N]

# %% [markdown]
# **By outputs.** Every rank computes some of the outputs. (Megatron, Shoeybi et al., 2019, arXiv:1909.08053, calls it *column
# parallel*, after the columns of $W^T$.) Each rank needs all of $x$, and no rank needs anything from another.

# %%
shards = W.chunk(2, dim=0)  # [N / 2, d] each
parts = [x @ shard.T for shard in shards]  # [T, N / 2] each: some of the outputs, and these are complete
print("shapes:", [tuple(part.shape) for part in parts])
print("side by side they are the whole result:", torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-5))

# %% [markdown]
# **By inputs.** Every rank multiplies some of the inputs (*row parallel*). Now each rank has a result of the full shape, but
# none of them is right, because each holds only some of the terms of every sum.

# %%
shards = W.chunk(2, dim=1)  # [N, d / 2] each
pieces = x.chunk(2, dim=1)  # [T, d / 2] each
parts = [piece @ shard.T for piece, shard in zip(pieces, shards, strict=True)]  # [T, N] each
print("shapes:", [tuple(part.shape) for part in parts])
print("one alone is the whole result:", torch.allclose(parts[0], whole, atol=1e-5))
print("their sum is the whole result:", torch.allclose(sum(parts), whole, atol=1e-5))

# %% [markdown]
# An operation that sums a tensor over all ranks and leaves the sum on every rank is called an **all-reduce**. It is the price
# of the second split. Operations like this one, in which all ranks take part, are called *collective*; another is the
# *gather*, which puts the parts of a tensor together.
#
# The shapes show how to pay it once for two layers. The first split *leaves* its result divided among the ranks, and the
# second split *needs* its input divided among the ranks. So if one follows the other, nothing has to be exchanged in
# between, as long as the operation between them works on each number alone, as an activation function does, or on each
# head alone, as attention does. You will build this pair in the exercises.
#
# Cut the pair yourself, among one to eight ranks, and play its stages. With more ranks, what does each of them read, and
# what does it send?

# %% tags=["nbval-ignore-output"]
viz.cut_products()

# %% [markdown]
# A transformer layer therefore needs two all-reduces, one after attention and one after the MLP.
# [`parallelize`](../minispec/parallel/tensor.py) splits all of its matrices this way:
#
# | by outputs, no communication | by inputs, then an all-reduce |
# |---|---|
# | q, k, v: whole heads for every rank | o |
# | gate, up | down |

# %%
sent = 2 * 80 * (2 * 7 / 8) * 8192 * 2  # in each all-reduce, a rank of a ring sends 2 · 7/8 of the values
print("all-reduces in one decode pass of a model with 80 layers, whatever the batch:", 2 * 80)
print(f"each of 8 ranks of a ring sends {sent / 1e6:.1f} MB in them (batch 1, hidden states of 8,192 in bf16)")

# %% [markdown]
# (The embedding and the output head are split as well, by vocabulary. That adds one all-reduce and one gather of the logits per
# pass, which these two numbers leave out.)
#
# The cache is divided too: a rank keeps the keys and values of its own heads. But it can be divided into at most as many
# parts as there are key/value heads. With 8 of those and 16 ranks, every head is on two ranks, so further ranks no longer
# make the cache per rank smaller. (*Context parallelism* goes on from there: it divides the cache by positions, and merges the
# parts of attention with the correction of lesson 12.)

# %% [markdown]
# ## Predict
#
# Llama 3.1 70B has 80 layers and hidden states of 8,192 numbers. It runs on the eight H200 of one **node**, which is one
# machine; they are connected by **NVLink**, which is much faster than the network between nodes. There is one request, and
# each GPU reads an eighth of the parameters.
#
# A collective operation consists of steps, in each of which every rank sends a message to another one. Assume that a message
# takes 3 µs to arrive, however short it is, and that an all-reduce among eight ranks takes three steps, $\log_2 8$. (Real
# algorithms differ. A ring takes fourteen steps and sends few bytes. The one-shot kernels of servers take a single step, plus
# synchronisation, and send more. NVLink switches can even add up on the way. So measure it on your machine.)
#
# Compared with one GPU (if it were large enough), how many times as fast is a decode pass? You need two numbers from above,
# the 33.1 ms and the number of all-reduces.

# %% tags=["nbval-ignore-output"]
eight = viz.predict("Eight GPUs are how many times as fast?", "times")
eight

# %% [markdown]
# ## Run
#
# [`scaling`](../minispec/parallel/scaling.py) combines the formulas of `theory`. Its assumptions are listed at the top of the
# file. From 16 GPUs on the all-reduces also cross the network between nodes, where we assume 6 µs per step and 50 GB/s per
# GPU.

# %% tags=["spoiler"]
print("GPUs   speed-up   share of the time spent on communication")
alone = scaling.parallel_pass_time(scaling.LLAMA_70B, ranks=1)
for ranks in (1, 2, 4, 8, 16, 32, 64):
    one_pass = scaling.parallel_pass_time(scaling.LLAMA_70B, ranks)
    print(f"{ranks:4d} {alone / one_pass:10.2f} {1 - alone / ranks / one_pass:14.0%}")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler"]
eight.reveal(round(alone / scaling.parallel_pass_time(scaling.LLAMA_70B, ranks=8), 1))

# %% [markdown]
# At batch 1 the bytes of an all-reduce are few, and the number of all-reduces is what costs time: each of them waits for a
# message to arrive and for the slowest rank. Between two nodes that wait is longer still. So tensor parallelism usually stays
# inside a node, and it helps a small model least, because there is less reading to save per all-reduce:

# %% tags=["spoiler"]
for shape in (scaling.LLAMA_8B, scaling.LLAMA_70B, scaling.LLAMA_405B):
    one, *more = (scaling.parallel_pass_time(shape, ranks) for ranks in (1, 2, 8, 32))
    gains = {ranks: round(one / time, 1) for ranks, time in zip((2, 8, 32), more, strict=True)}
    print(f"{shape.name:15} speed-up by GPUs: {gains}")

# %% [markdown]
# **What does it mean for speculation?** Remember lesson 07: with $k$ draft tokens per cycle, of which each is accepted with
# probability $\alpha$, the speed-up is $E[N] / (k c + v)$. Here $c$ is the cost of a draft step and $v$ that of a verification
# pass, both in plain decode passes of the target. At batch 1 a verification pass over $k + 1$ tokens reads the same parameters
# and needs the same number of all-reduces as a plain one, so $v$ stays near 1. But the draft model is small, and small models
# gain little from many ranks. So $c$ rises with the ranks, and the speed-up falls:

# %% tags=["spoiler"]
expected = (1 - 0.7**5) / (1 - 0.7)  # E[N]
print("k = 4, α = 0.7, a 1B draft model on all ranks\nGPUs   draft step      c      v   speed-up")
for ranks in (1, 2, 4, 8, 16):
    plain = scaling.parallel_pass_time(scaling.LLAMA_70B, ranks)
    draft = scaling.parallel_pass_time(scaling.LLAMA_1B, ranks)
    c, v = draft / plain, scaling.parallel_pass_time(scaling.LLAMA_70B, ranks, tokens=5) / plain
    print(f"{ranks:4d} {1e3 * draft:9.2f} ms {c:6.3f} {v:6.3f} {expected / (4 * c + v):10.2f}")

# %% [markdown]
# By these formulas the draft model alone would be fastest on four ranks. At eight the difference is small, and at 16 it is
# not.

# %% [markdown]
# ## Pipeline parallelism: what if layers stay whole?
#
# The other way is to give the first half of the layers to one rank and the second half to another. Only the hidden states
# travel, once from each **stage** to the next, and that is so little that slow links between nodes are good enough. The
# problem is idle time: while the second rank works on a batch, the first has nothing to do, unless there is another batch for
# it. So the batch is cut into $m$ **micro-batches** that follow one another (Huang et al., 2019, GPipe, arXiv:1811.06965).
# Take one batch that finds all $t$ stages empty and leaves them empty, as in a training step or a single prefill. It takes
# $m + t - 1$ turns, and each stage works in $m$ of them. The idle share is called the **bubble**:
#
# $$\text{bubble} = \frac{t - 1}{m + t - 1}$$

# %%
for stages in (2, 4, 8):
    line = [f"{(stages - 1) / (m + stages - 1):4.0%}" for m in (1, 2, 4, 8, 16, 32)]
    print(f"{stages} stages, idle with 1, 2, 4, 8, 16, 32 micro-batches:", *line)

# %% [markdown]
# A busy server does not drain its pipeline in this way. It keeps about $t$ batches of different requests in flight, one per
# stage, so its stages stay busy, and what remains idle comes from too few requests or from batches that take different times.
#
# In decoding, the next token of a request cannot start before its last token has been through all layers. So a pipeline
# does not reduce the time per output token of a single request; it adds memory, and it serves more requests at a time.
# Prefill is different, because a long prompt that is processed in chunks can fill the stages with its own chunks, so a
# pipeline can shorten the time to the first token.
#
# Here is a real pipeline. [`pipeline.run`](../minispec/parallel/pipeline.py) starts two processes, each of which computes half
# of `micro`'s layers for four micro-batches, on the CPU, since few readers have two GPUs. The logits have to be those of
# the whole model.

# %%
target = ms.load("micro", device="cpu")
tokens = torch.randint(target.config.vocab_size, (4, 16), generator=torch.Generator().manual_seed(0))
logits = pipeline.run("micro", tokens, ranks=2, microbatches=4)
with torch.inference_mode():
    expected = target.transformer(tokens, target.transformer.new_cache(4, 16)).logits
print("same logits:", torch.allclose(logits, expected, atol=1e-3))

# %% [markdown]
# Two things make it a pipeline: rank 1 waits for rank 0 with each micro-batch, and the two ranks work at the same time, on
# different ones.
#
# ## Expert parallelism: what if the tokens travel?
#
# A mixture of experts has many MLPs per layer, and a router that sends each token to one or a few of them (to one, in our toy
# below). All experts have to be in memory, but a token uses only its own. So the experts are spread over the ranks, and now
# the *tokens* travel: to the rank of their expert, and back (Lepikhin et al., 2021, GShard, arXiv:2006.16668). Both exchanges
# are **all-to-alls**, in which every rank sends something to every other, so a layer needs two of them.

# %%
layer = experts.random_mixture(experts=2)
x = torch.randn(64, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
y, sent = experts.run(layer, x, ranks=2)
print("same result as on one device:", torch.allclose(y, layer(x)))
for rank, counts in enumerate(sent):
    print(f"rank {rank} had {sum(counts)} tokens and sent {counts} to ranks 0 and 1")
traffic = 2 * 2 * 4096 * 2 * 7 / 8  # there and back, experts, values, bytes per value, share of the other ranks
print(f"2 experts per token, width 4,096, bf16, 8 ranks: {traffic:,.0f} bytes per token and layer, there and back")

# %% [markdown]
# (The last line assumes even routing: 7/8 of a token's experts are then on other ranks.)
#
# The router decides at run time where each token goes. If one expert is popular, its rank is busy and all the others wait for
# it. So large models train or bias their routers to balance the load, and servers keep copies of popular experts.
#
# Experts also need large batches to be efficient. With 8 of 256 experts per token, a batch of 64 gives each expert two tokens
# on average, so reading its parameters serves only two of them.
#
# For speculation that matters at small batches. At batch 1 the $k + 1$ tokens of a verification pass choose different
# experts, so the pass reads more experts than a plain one, and $v$, its cost in plain passes, exceeds 1 although it is
# memory-bound. In a batch of some hundred requests nearly all experts are read anyway, and the effect is gone. If tokens chose
# their experts independently:

# %%
print("tokens per expert:", {batch: batch * 8 / 256 for batch in (1, 64, 1024)})
for batch in (1, 8, 64, 256):
    plain, verify = (256 * (1 - (1 - 8 / 256) ** tokens) for tokens in (batch, 5 * batch))
    print(f"batch {batch:3d}: experts read in a plain pass {plain:3.0f}, with k = 4 {verify:3.0f}")

# %% [markdown]
# Neighbouring tokens of one sequence share experts more often than chance, so measure it on your model.
#
# ## Which split should you choose?
#
# | | splits | communication | time per token of one request | limited by |
# |---|---|---|---|---|
# | tensor | every layer | two all-reduces per layer | falls | latency of the all-reduces, number of KV heads |
# | pipeline | between layers | one message per stage | does not fall | unequal or too few batches |
# | expert | the MLPs of a mixture | two all-to-alls per layer | falls somewhat | the most popular expert |
# | context | the cache, by positions | partial attention outputs, per layer | falls for long contexts | merging the parts, which short contexts do not repay |
# | data (replicas) | nothing | none | does not fall | memory for every replica |
#
# Often the last line is the best. If a model fits into one GPU with enough room for the caches of its requests, eight replicas
# serve eight times as many requests as one, without any communication. The time per token stays that of one GPU.

# %% [markdown]
# ## The hand-over
#
# minispec is made for understanding, so on many GPUs and under load use an engine that was built for it. What you have learned
# keeps its meaning and changes its name, and [the dictionary](../docs/handover.md) has both names. `minispec handover` prints
# the command to start such an engine. In Python, for a model on four GPUs with a small draft model (`drafter="model"`). Engines
# rename their options from time to time, so the line above each command says in which sources the names were checked.

# %%
order = handover.Order(
    drafter="model", model="meta-llama/Llama-3.1-70B-Instruct", draft="meta-llama/Llama-3.2-1B-Instruct", ranks=4
)
print(f"# option names as in {handover.READ['vllm']}\n{handover.vllm(order)}\n")
print(f"# option names as in {handover.READ['sglang']}\n{handover.sglang(order)}")

# %% [markdown]
# The commands sum up the course: a target, a draft model, $k$, how the draft is sampled, and over how many ranks. Both have
# $k = 4$, the default of `Order`. SGLang's `--speculative-num-draft-tokens` counts the token before the draft as well, so it
# is $k + 1 = 5$, the tokens of a verification pass. Its `--speculative-eagle-topk 1` asks for a chain instead of a tree, although our drafter is
# not EAGLE. `probabilistic` and `--speculative-use-rejection-sampling` ask for the rule of lesson 06, with draft tokens that
# are sampled from $q$; both engines draft greedily otherwise.

# %% [markdown]
# ## In production
#
# **vLLM** has `--tensor-parallel-size`, `--pipeline-parallel-size`, `--data-parallel-size`, and `--enable-expert-parallel` to
# spread experts over the ranks. Where there are fewer key/value heads than ranks, it copies them, and
# `--decode-context-parallel-size` divides the cache by positions instead. A draft model whose passes are mostly all-reduces
# can be faster on fewer ranks than its target. There is an option for that, `draft_tensor_parallel_size`, but for a separate
# draft model vLLM refuses any value but the target's size
# ([0.15](https://docs.vllm.ai/en/v0.15.0/api/vllm/v1/spec_decode/draft_model/), and later versions that we looked at).
# **SGLang** calls the splits `--tp-size`, `--pp-size`, `--dp-size` and `--ep-size`. **PyTorch** has the first two ways to split
# a layer as `ColwiseParallel` and `RowwiseParallel`.
#
# A common order of decisions: quantise first, because half the bytes may need half the GPUs. Then use tensor parallelism
# inside a node, with no more ranks than memory and the latency target require. Add pipeline stages between nodes if one node cannot hold the model.
# Whatever load remains goes to replicas.

# %% [markdown]
# ## Check yourself
#
# <details><summary>Somebody splits the first matrix of an MLP by inputs and the second by outputs. What is wrong with that
# order?</summary>
#
# The first split ends in incomplete sums. The activation of a sum is not the sum of the activations, so an all-reduce is
# needed before the activation. And the second split leaves its result divided among the ranks, so it has to be gathered. That
# is two collective operations instead of one.
# </details>
#
# <details><summary>One batch is cut into twelve micro-batches, for a pipeline of four stages. What share of the time is a stage idle, and how
# much faster does one single request decode than on one GPU?</summary>
#
# Each stage is idle for $3/15$, a fifth of the time. A single request does not decode faster at all, and sending makes it a
# little slower.
# </details>
#
# <details><summary>A model has 8 key/value heads. You go from 8 ranks to 16. What happens to the cache of each rank, and what
# still gets smaller?</summary>
#
# The cache per rank stays as it is: with this split a head cannot be divided, so each of the 8 heads is now on two ranks. The
# parameters per rank still halve.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Shoeybi et al., 2019: *Megatron-LM: training multi-billion parameter language models using model parallelism*
#   ([arXiv:1909.08053](https://arxiv.org/abs/1909.08053)): the two cuts and their all-reduces.
# - Huang et al., 2019: *GPipe: efficient training of giant neural networks using pipeline parallelism*
#   ([arXiv:1811.06965](https://arxiv.org/abs/1811.06965)): micro-batches and the bubble.
# - Lepikhin et al., 2021: *GShard: scaling giant models with conditional computation and automatic sharding*
#   ([arXiv:2006.16668](https://arxiv.org/abs/2006.16668)): experts on many devices.
# - Pope et al., 2023: *Efficiently scaling transformer inference*
#   ([arXiv:2211.05102](https://arxiv.org/abs/2211.05102)): which cut for which latency, computed and measured.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - [Exercises 16](../exercises/16_beyond_one_gpu.ipynb): columns, then rows; the cache of one rank.
# - `minispec drill` asks `tensor-parallelism`, `pipeline-parallelism`, `expert-parallelism`, `which-parallelism`.
# - [17 Interview day](17_interview_day.ipynb): explain all of it aloud.
# - [Appendix: scaling laws](appendix_scaling_laws.ipynb): how large a model should be for its training compute.
