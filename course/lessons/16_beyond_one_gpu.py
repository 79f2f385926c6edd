# %% [markdown]
# # Beyond one GPU
#
# *Time:* 40 minutes · *Before this:* [12 fewer bytes](12_fewer_bytes.ipynb) · *Practice:* [exercises 16](../exercises/16_beyond_one_gpu.ipynb)
#
# Some models do not fit into one GPU. Some fit, and are too slow. Either way the model is cut, and then its parts have
# to talk. There are three places to cut. Each is good at something else.
#
# You will be able to
#
# - cut a linear layer in two ways, and say which cut needs a sum;
# - count the meetings of a tensor-parallel model, and say why eight GPUs are not eight times as fast;
# - compute the bubble of a pipeline, and say what a pipeline does not improve;
# - say what experts send each other, and who makes everybody wait;
# - hand over to a real engine.

# %%
import torch

import minispec as ms
from minispec import theory
from minispec.course import viz
from minispec.parallel import experts, handover, pipeline, scaling

# %% [markdown]
# ## Why cut at all
#
# In bf16 a weight takes two bytes. The cache of lesson 02 and room for the pass come on top.
# [`gpus_to_hold`](../minispec/parallel/scaling.py) asks how many H200 with 141 GB are needed if a tenth is kept free.

# %%
for shape in (scaling.LLAMA_8B, scaling.LLAMA_70B, scaling.LLAMA_405B):
    alone = 1e3 * theory.pass_time(theory.H200, shape.weights)
    print(f"{shape.name:15} {2 * shape.parameters / 1e9:4.0f} GB, GPUs needed: {scaling.gpus_to_hold(shape)}", end=", ")
    print(f"one token in {alone:5.1f} ms if one GPU could hold it")

# %% [markdown]
# So there are two reasons: room, and speed. A decode pass reads every weight. Give each of eight GPUs an eighth of the
# weights, and each reads an eighth of the bytes, all at the same time.

# %% [markdown]
# ## Tensor parallelism: cut every layer
#
# A linear layer is $y = x W^T$. There are two ways to share it. Our ranks are entries of a list here; nothing is
# distributed yet.

# %%
generator = torch.Generator().manual_seed(0)
x = torch.randn(3, 8, generator=generator)  # [T, d]
W = torch.randn(12, 8, generator=generator)  # [N, d], as torch stores it
whole = x @ W.T  # [T, N]

# %% [markdown]
# **By outputs.** Every rank computes some of the results. (Megatron's name is *column parallel*, after the columns of
# $W^T$.) Each needs all of $x$, and nobody needs anybody.

# %%
shards = W.chunk(2, dim=0)  # [N / 2, d] each
parts = [x @ shard.T for shard in shards]  # [T, N / 2] each: in pieces, and complete
print("shapes:", [tuple(part.shape) for part in parts])
print("side by side, the whole:", torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-5))

# %% [markdown]
# **By inputs.** Every rank multiplies some of the inputs. (*Row parallel*.) Now each has a result of the full shape, and
# each is wrong: they are summands.

# %%
shards = W.chunk(2, dim=1)  # [N, d / 2] each
pieces = x.chunk(2, dim=1)  # [T, d / 2] each
parts = [piece @ shard.T for piece, shard in zip(pieces, shards, strict=True)]  # [T, N] each
print("shapes:", [tuple(part.shape) for part in parts])
print("one alone is the whole:", torch.allclose(parts[0], whole, atol=1e-5))
print("the sum is the whole:  ", torch.allclose(sum(parts), whole, atol=1e-5))

# %% [markdown]
# The sum over all ranks, known to all ranks afterwards, is called an **all-reduce**. It is the price of this cut.
#
# Look at the shapes again. The first cut *leaves* its result in pieces. The second cut *wants* its input in pieces. Put
# one behind the other, and nobody has to talk in between. What stands between them must work on each number alone, as an
# activation does, or on each head alone, as attention does. You will build the pair in the exercises.
#
# So a transformer layer has two meetings, one after attention and one after the MLP.
# [`parallelize`](../minispec/parallel/tensor.py) cuts all of them:
#
# | by outputs, silent | by inputs, then a sum |
# |---|---|
# | q, k, v: whole heads for every rank | o |
# | gate, up | down |

# %%
print("all-reduces for one token of a model with 80 layers:", 2 * 80)
print(f"each rank of 8 sends {theory.tensor_parallel_bytes(layers=80, hidden=8192, ranks=8) / 1e6:.1f} MB for it")

# %% [markdown]
# The cache is cut, too: a rank keeps the keys and values of its own heads. But there are only as many pieces as there
# are key/value heads. With 8 of those and 16 ranks, every head is on two ranks, and more ranks no longer save memory.

# %% [markdown]
# ## Predict
#
# Llama 3.1 70B has 80 layers and hidden states of 8,192 numbers. Eight H200 on NVLink, one request. Each GPU reads an
# eighth of the weights. A step of a collective takes 3 µs before the first byte arrives, and an all-reduce among eight
# takes three such steps. How many times as fast as one GPU (were it large enough) is a decode pass?

# %% tags=["nbval-ignore-output"]
eight = viz.predict("Eight GPUs are how many times as fast?", "times")
eight

# %% [markdown]
# ## Run
#
# [`scaling`](../minispec/parallel/scaling.py) puts the formulas of `theory` together. Its assumptions stand at its top.

# %% tags=["spoiler"]
print("GPUs   speed-up   of the time, talking")
for ranks in (1, 2, 4, 8, 16, 32, 64):
    one_pass = scaling.parallel_pass_time(scaling.LLAMA_70B, ranks)
    talk = scaling.communication_time(scaling.LLAMA_70B, ranks) / one_pass
    print(f"{ranks:4d} {scaling.parallel_speedup(scaling.LLAMA_70B, ranks):10.2f} {talk:14.0%}")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler"]
eight.reveal(round(scaling.parallel_speedup(scaling.LLAMA_70B, 8), 1))

# %% [markdown]
# The bytes of an all-reduce are few. The number of all-reduces is what hurts: each waits for the slowest rank, and
# for a message to arrive. From one node to the next the wait is longer still. So tensor parallelism stays inside a node,
# and a small model is not cut at all:

# %%
for shape in (scaling.LLAMA_8B, scaling.LLAMA_70B, scaling.LLAMA_405B):
    gains = {ranks: round(scaling.parallel_speedup(shape, ranks), 1) for ranks in (2, 8, 32)}
    print(f"{shape.name:15} speed-up by GPUs: {gains}")

# %% [markdown]
# **And speculation?** It verifies $k + 1$ tokens in one pass, so it also needs one round of meetings instead of $k + 1$.
# That is in its favour. But the draft is a small model, and small models gain little from many ranks. So $c$ gets worse.

# %%
gains = {n: round(scaling.speculation_speedup(scaling.LLAMA_70B, n), 2) for n in (1, 2, 4, 8, 16)}
print("gain of speculation, K = 4, α = 0.7, a 1B draft, by GPUs:", gains)

# %% [markdown]
# ## Pipeline parallelism: cut between layers
#
# Give the first half of the layers to one rank, the second half to another. Only the residual stream travels, once per
# cut: little traffic, so this is the cut between nodes. But while the second rank works, the first has nothing to do.
# Unless there is another batch for it. Cut the batch into $m$ **micro-batches** and let them follow one another. Of
# $m + t - 1$ turns each of the $t$ stages works in $m$:
#
# $$\text{bubble} = \frac{t - 1}{m + t - 1}$$

# %%
for stages in (2, 4, 8):
    line = [f"{theory.pipeline_bubble(stages, m):4.0%}" for m in (1, 2, 4, 8, 16, 32)]
    print(f"{stages} stages, idle with 1, 2, 4, 8, 16, 32 micro-batches:", *line)

# %% [markdown]
# A single token still passes through all layers, one after the other. **A pipeline makes no request faster.** It makes
# room, and it serves many at a time.
#
# Here is a real one. [`pipeline.run`](../minispec/parallel/pipeline.py) starts two processes; each computes half of `micro`'s
# layers for four micro-batches. The logits must be those of the whole model.

# %%
target = ms.load("micro", device="cpu")
tokens = torch.randint(target.config.vocab_size, (4, 16), generator=torch.Generator().manual_seed(0))
logits, timeline = pipeline.run("micro", tokens, ranks=2, microbatches=4)
with torch.inference_mode():
    expected = target.transformer(tokens, target.transformer.new_cache(4, 16)).logits
print("layers of each rank:", [list(pipeline.stage_layers(target.config.num_layers, rank, 2)) for rank in range(2)])
print("same logits:", torch.allclose(logits, expected, atol=1e-3))
print("rank 1 began after rank 0 was done, for every micro-batch:", end=" ")
done = {(entry["rank"], entry["what"]): entry for entry in timeline}
print(all(done[1, f"compute {i}"]["start"] >= done[0, f"compute {i}"]["end"] for i in range(4)))

# %% [markdown]
# ## Expert parallelism: cut the MLP into many
#
# A mixture of experts has many MLPs in a layer, and a router that sends each token to a few of them. All have to be in
# memory. A token reads only its own. So the experts are spread over the ranks, and now the *tokens* travel: to the rank
# of their expert, and home again. Two **all-to-alls** a layer.

# %%
weights = experts.Mixture.random(experts=2)
x = torch.randn(64, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
y, sent, _ = experts.run(weights, x, ranks=2)
print("same result as on one device:", torch.allclose(y, experts.mixture(weights, x)))
for rank, counts in enumerate(sent):
    print(f"rank {rank} had {sum(counts)} tokens and sent {counts} to ranks 0 and 1")
traffic = theory.expert_parallel_bytes(tokens=1, hidden=4096, experts_per_token=2, ranks=8)
print(f"2 experts a token, width 4,096, 8 ranks: {traffic:,.0f} bytes sent per token and layer")

# %% [markdown]
# Who goes where only the router knows. If one expert is popular, its rank works and all others wait for it. So the
# routers of large models are trained, or nudged, to spread their load, and popular experts are copied.
#
# Experts also want large batches. With 8 of 256 experts for each token, a batch of 64 gives each expert two tokens on
# average. Its weights are read for two. Verifying drafts adds tokens, and so adds experts to read: here $v$ exceeds 1
# even while the pass is memory-bound.

# %%
print("tokens an expert:", {batch: batch * 8 / 256 for batch in (1, 64, 1024)})

# %% [markdown]
# ## Timelines
#
# The three cuts, recorded: two processes on two cores, the fastest of sixty tries each. On CPUs the
# operating system has its say, so compare shapes, not milliseconds. What crosses between processes there would
# cross NVLink or a network elsewhere.

# %% tags=["nbval-ignore-output"]
viz.parallel_timelines()

# %% [markdown]
# Things to try
#
# - *Tensor parallel*: count the meetings. Why is one rank's all-reduce long where the other's is short?
# - *Pipeline*: go from 1 micro-batch to 8. Compare the idle time with the formula's. It knows neither the cost of sending
#   nor that a small batch is computed less efficiently.
# - *Experts*: with one popular expert, what does the other rank do?

# %% [markdown]
# ## Which cut?
#
# | | cuts | talks | one request gets faster | limit |
# |---|---|---|---|---|
# | tensor | every layer | two all-reduces a layer | yes | latency of the meetings, number of KV heads |
# | pipeline | between layers | one message a stage | no | the bubble |
# | expert | the MLPs of a mixture | two all-to-alls a layer | somewhat | the most popular expert |
# | data (copies) | nothing | nothing | no | memory for every copy |
#
# Often the last line is the best. If a model fits into one GPU, eight copies serve eight times as many requests and
# never talk.

# %% [markdown]
# ## The hand-over
#
# minispec is for understanding. On many GPUs, under load, use an engine that was built for it. What you know keeps its
# meaning and changes its name: [the dictionary](../docs/handover.md) has both. `minispec handover` prints the command.
# In Python, for a model on four GPUs with a small draft:

# %%
order = handover.Order("model", "meta-llama/Llama-3.1-70B-Instruct", draft="meta-llama/Llama-3.2-1B-Instruct", ranks=4)
print(handover.vllm(order))
print()
print(handover.sglang(order))

# %% [markdown]
# Read it as a summary of the course: a target, a draft, $k$, how it samples, over how many ranks.

# %% [markdown]
# ## In production
#
# **vLLM**: `--tensor-parallel-size`, `--pipeline-parallel-size`, `--data-parallel-size`, and `--enable-expert-parallel`
# to spread experts over the ranks. Where there are fewer key/value heads than ranks it copies them. A draft may be cut
# less than its target (`draft_tensor_parallel_size`), for the reason above. **SGLang**: `--tp-size`, `--pp-size`,
# `--dp-size`, `--ep-size`. **PyTorch** itself knows our two cuts as `ColwiseParallel` and `RowwiseParallel`
# ([`dtensor_plan`](../minispec/parallel/tensor.py) is ours in these words).
#
# The usual order: quantise first, since half of the bytes may need half of the GPUs. Tensor parallelism inside a node,
# as little as memory and latency allow. Pipeline stages between nodes if one cannot hold the model. Copies for
# everything else.

# %% [markdown]
# ## Check yourself
#
# <details><summary>A layer is cut by inputs first and by outputs second. What is wrong with that order?</summary>
#
# The first cut ends in sums that are not complete. An activation of a summand is not a summand of the activation, so an
# all-reduce is needed at once; and the second cut leaves its result in pieces, so they have to be gathered. Two
# meetings instead of one.
# </details>
#
# <details><summary>Four pipeline stages, twelve micro-batches. How idle is a stage, and how much faster is one single
# request than on one GPU?</summary>
#
# $3/15$, a fifth of the time. The single request is not faster at all; sending makes it a little slower.
# </details>
#
# <details><summary>A model has 8 key/value heads. You go from 8 ranks to 16. What happens to the cache of each rank, and
# what still gets smaller?</summary>
#
# The cache per rank stays as it is: a head cannot be cut, so each of the 8 heads now lies on two ranks. The weights per
# rank still halve.
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
# - [17 Interview day](17_interview_day.ipynb): say it aloud.
# - [Appendix: scaling laws](appendix_scaling_laws.ipynb): how large a model should be for its training compute.
