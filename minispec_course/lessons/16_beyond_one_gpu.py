# %% [markdown]
# # 16 Beyond one GPU
#
# *Time:* 45 minutes · *Before this:* [07 How fast](07_how_fast.ipynb), [12 Fewer bytes](12_fewer_bytes.ipynb) · *Practice:* [exercises 16](../exercises/16_beyond_one_gpu.ipynb)
#
# So far our chatbot has lived on one device. Now its model outgrows the GPU, and its users outgrow the machine. This
# lesson gives the dashboard **more than one device**, and asks which of its numbers that moves: ms per token of one user,
# tokens per second of all, or how many users fit.
#
# You will be able to
#
# - split an MLP with a single all-reduce, and say why eight GPUs are not eight times as fast;
# - say what tensor, pipeline, expert and data parallelism each send, and which number each improves;
# - explain data-parallel attention with expert parallelism.

# %%
import torch

import minispec as ms
from minispec_course import viz
from minispec_course.check import yours
from minispec_course.labs.ranks import PROMPTS, three_ways
from minispec_tools.parallel import scaling
from minispec_tools.parallel.tensor import launch

# %% [markdown]
# ## Too large, or too slow
#
# In bf16 a parameter takes two bytes, and an H200 has 141 GB of HBM. Here are the GPUs that hold three models, as a power
# of two and with a tenth of the memory kept free, and the time to read the weights at the 4.2 TB/s of lesson 01 (without
# the embedding table).

# %%
for size, shape in {"8B": scaling.LLAMA_8B, "70B": scaling.LLAMA_70B, "405B": scaling.LLAMA_405B}.items():
    alone, stored = 1e3 * scaling.parallel_pass_time(shape, ranks=1), 2 * scaling.parameters(shape)
    print(f"Llama 3.1 {size:5} {stored / 1e9:4.0f} GB, GPUs needed: {scaling.gpus_to_hold(shape)}", end=", ")
    print(f"one token in {alone:5.1f} ms on one GPU, if it fitted")

# %% [markdown]
# ## Cut one layer
#
# A process that drives one GPU is called a **rank**. Play the stages below, with two ranks and then with eight. At which
# stage does something cross from one colour to another?

# %% tags=["nbval-ignore-output"]
viz.cut_products()

# %% [markdown]
# The first matrix is cut by its outputs (Megatron, Shoeybi et al., 2019, arXiv:1909.08053, says **column-parallel**).
# Each rank needs all of $x$, and its outputs are complete. The second matrix is cut by its inputs (**row-parallel**).
# Each rank uses its own activations. Its result has the full shape but lacks the other ranks' terms, so the results are summed.
#
# An operation that leaves the sum over all ranks on each of them is an **all-reduce**. On NVIDIA GPUs it is usually done
# by **NCCL**, a library of such *collectives*.
#
# ### Yours: columns, then rows
#
# Return $\mathrm{relu}(x\,\text{up})\,\text{down} + \text{bias}$. `up` is `[d, f]`, `down` is `[f, d]`, and `ranks` divides
# $f$. `all_reduce` takes a list with one tensor per rank and returns their sum. A rank may use only its part of both
# matrices, and one all-reduce is enough.


# %%
@yours("16.column_row")
def parallel_mlp(
    x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, bias: torch.Tensor, ranks: int, all_reduce
) -> torch.Tensor:
    """An MLP on several ranks, each with its part of the matrices, and one all-reduce."""
    ### BEGIN SOLUTION: which columns and which rows belong to rank r? what does it add to the sum?
    width = up.shape[1] // ranks
    parts = []
    for r in range(ranks):
        mine = slice(r * width, (r + 1) * width)
        hidden = torch.relu(x @ up[:, mine])  # [T, f / R]
        parts.append(hidden @ down[mine])  # [T, d]
    return all_reduce(parts) + bias
    ### END SOLUTION


# %% [markdown]
# On a layer with Llama 70B's proportions, at a hundredth of its width:

# %%
generator = torch.Generator().manual_seed(0)
x, up, down, bias = (torch.randn(*s, generator=generator).double() for s in ((1, 80), (80, 280), (280, 80), (80,)))
whole = torch.relu(x @ up) @ down + bias
for ranks in (1, 2, 4, 8):
    summed = []
    y = parallel_mlp(x, up, down, bias, ranks, lambda parts: summed.append(parts) or sum(parts))  # noqa: B023
    weights = (up.numel() + down.numel()) // ranks
    print(f"ranks {ranks}: same result {torch.allclose(y, whole)}, weights per rank {weights:6,}", end=", ")
    print(f"all-reduces {len(summed)}, of {summed[0][0].numel()} numbers each")

# %% [markdown]
# With eight ranks each reads an eighth of the weights, and the all-reduce stays as large as it was. Attention is cut the
# same way: q, k and v by columns, so that each rank has whole heads, and o by rows. This is **tensor parallelism** (TP),
# with **two all-reduces per layer**.
#
# ## Eight GPUs
#
# Llama 3.1 70B has 80 layers. It runs on the eight H200s of one **node**, a machine whose GPUs are connected by **NVLink**.
# A message takes 3 µs to arrive there, however short it is, and an all-reduce among eight takes three such steps. There is
# one user.

# %% tags=["nbval-ignore-output"]
eight = viz.predict("A decode pass on eight GPUs is how many times as fast as on one?", "times")
eight

# %% tags=["spoiler"]
alone = scaling.parallel_pass_time(scaling.LLAMA_70B, ranks=1)
print("GPUs   ms per token   speed-up   share communicating")
for ranks in (1, 2, 4, 8, 16, 32):
    seconds = scaling.parallel_pass_time(scaling.LLAMA_70B, ranks)
    talking = scaling.communication_time(scaling.LLAMA_70B, ranks) / seconds
    print(f"{ranks:4} {1e3 * seconds:14.1f} {alone / seconds:10.1f} {talking:12.0%}")

# %% tags=["spoiler"]
eight.reveal(round(alone / scaling.parallel_pass_time(scaling.LLAMA_70B, ranks=8), 1))

# %% [markdown]
# The 160 all-reduces of a pass carry few bytes. Their *number* costs time, because each waits for a message and for the
# slowest rank. Sixteen GPUs save only a fifth of the time of eight, so for one user they hardly pay. And with a long
# prompt or a large batch the all-reduces do carry many bytes, while the network between nodes has a ninth of NVLink's
# bandwidth. So TP usually stays inside a node, and a small model gains less from it.
#
# A draft model is small. Split over the same ranks, its step shrinks less than the target's, so lesson 07's $c$ rises and
# speculation gains less.
#
# <details><summary>Go deeper: what these times assume</summary>
#
# [`scaling`](../minispec_tools/parallel/scaling.py) lists it all; the algorithm matters most. We count $\log_2 t$ steps for $t$
# ranks, as recursive doubling takes. A ring takes $2(t - 1)$, and the one-shot kernels of servers take one and send more.
# </details>
#
# ## Whole layers, whole models
#
# **Pipeline parallelism** (PP) gives the first half of the layers to one rank and the second half to the next. Only hidden
# states travel, once per stage, so slow links between nodes are good enough. But a user's next token cannot start before
# the previous one has passed through all the stages, so ms per token does not fall. And a stage is idle unless several
# batches follow one another.
#
# <details><summary>Go deeper: the bubble</summary>
#
# If the pipeline starts empty, runs $m$ micro-batches through $t$ stages and drains, it is idle for a fraction
# $(t-1)/(m+t-1)$ of the time, the **bubble** (Huang et al., 2019, arXiv:1811.06965). A server that always has $t$ equal
# batches in flight pays it only at the start.
# </details>
#
# **Data parallelism** (DP) splits nothing: every rank is a replica with its own users. If the model fits on one GPU, this is
# usually the best choice.
#
# Two CPU processes with one thread each show the difference. First one serves eight users alone. Then both are replicas
# with eight users each. Then both serve the same eight users by TP, with *gloo* in NCCL's place.

# %% tags=["nbval-ignore-output"]
ways = launch(three_ways, 2, 24, patience=120)  # each rank's outputs
rates = {}
for way in ways[0]:
    seconds = max(outs[way].seconds for outs in ways if way in outs)
    rates[way] = 24 * len(PROMPTS) * (2 if way == "replicas" else 1) / seconds
    print(f"{way:16} ms per token {1e3 * seconds / 24:5.1f}   tokens per second, all users {rates[way]:5.0f}")
print("the same tokens every way:", len({tuple(out.tokens) for outs in ways for out in outs.values()}) == 1)

# %% [markdown]
# With a core to itself a replica is about as fast as one rank alone: ms per token stays, tokens per second nearly double.
# (If yours do not, the two competed for cores.) TP is the only one that could lower ms per token, but `micro` is tiny: its
# 12 all-reduces between processes cost all that the cut saves, or more.
#
# ## What is left for the cache
#
# A rank also keeps only the keys and values of its own heads. That is why TP makes room for more users.
#
# ### Yours: the cache of one rank
#
# How many bytes does one more token take on *each* rank, and how many tokens fit beside the rank's share of the weights?
# Return both, the second as a whole number, or 0 if the weights do not fit. `bits` is the size of one number in the cache,
# `weight_bytes` is that of the whole model, and `memory` is that of one rank in bytes. `ranks` divides `kv_heads` or is a
# multiple of it. `heads`, the query heads, are not needed. A head cannot be cut: with more ranks than KV heads, several
# ranks keep a copy.


# %%
@yours("16.kv_per_rank")
def kv_per_rank(
    layers: int, heads: int, kv_heads: int, head_dim: int, bits: int, weight_bytes: float, ranks: int, memory: float
) -> tuple[float, int]:
    """Bytes that one token takes on each rank, and how many tokens fit beside the weights."""
    ### BEGIN SOLUTION: which heads are on a rank? what is left of its memory?
    heads_here = max(1, kv_heads // ranks)
    per_token = 2 * layers * heads_here * head_dim * bits / 8
    left = memory - weight_bytes / ranks
    return per_token, max(0, int(left // per_token))
    ### END SOLUTION


# %%
MEMORY = 0.9 * 141e9  # of a GPU, a tenth kept free
for ranks in (2, 4, 8, 16):
    per_token, tokens = kv_per_rank(80, 64, 8, 128, 16, 2 * scaling.parameters(scaling.LLAMA_70B), ranks, MEMORY)
    print(f"{ranks:2} GPUs: {per_token / 1024:3.0f} KiB per token per rank, {tokens // 4096:3} users of 4,096 tokens")

# %% [markdown]
# From 2 to 8 GPUs the number of users grows faster than that of GPUs, because the weights are stored only once. From 8 to 16
# it hardly grows: there are 8 KV heads, and the new ranks hold copies.
#
# ## Send the tokens
#
# A mixture of experts (MoE) has many MLPs per layer, and a router chooses a few for each token. **Expert parallelism** (EP)
# puts whole experts on ranks and sends the *tokens*: to the ranks of their experts (*dispatch*) and back (*combine*).
# Both are **all-to-alls**, in which every rank sends something different to every other (Lepikhin et al., 2021,
# arXiv:2006.16668).
#
# ### Yours: which token goes where
#
# `chosen` is a tensor `[n, k]`: the experts of each token. Rank 0 holds the first `experts / ranks` experts, rank 1 the
# next ones, and so on. For each rank return the list of tokens that it is sent, in order. A token whose experts share a
# rank travels once. And return the work of each rank: its pairs of token and expert.


# %%
@yours("16.dispatch")
def dispatch(chosen: torch.Tensor, experts: int, ranks: int) -> tuple[list[list[int]], list[int]]:
    """For each rank, the tokens that it is sent, and how many pairs of token and expert it computes."""
    ### BEGIN SOLUTION: on which rank is each chosen expert? [n, k]
    home = chosen // (experts // ranks)
    sent = [(home == r).any(dim=1).nonzero().flatten().tolist() for r in range(ranks)]
    return sent, [int((home == r).sum()) for r in range(ranks)]
    ### END SOLUTION


# %% [markdown]
# A decode step has 32 tokens. Each chooses 8 of 256 experts, on 8 ranks. The router is fair: every expert is equally
# likely.

# %% tags=["nbval-ignore-output"]
busiest = viz.predict("How much more work than the average does the busiest rank typically have?", "%")
busiest

# %% tags=["spoiler"]
generator = torch.Generator().manual_seed(0)


def excess(popular: float, tokens: int) -> list[float]:
    """By how many per cent the busiest rank exceeds the mean, over fifty steps: in pairs of token and expert, and in
    experts that it reads. Expert 0 is `popular` times as likely as the others."""
    chances, found = torch.ones(tokens, 256), []
    chances[:, 0] = popular
    for _ in range(50):
        chosen = chances.multinomial(8, generator=generator)
        _, work = dispatch(chosen, 256, 8)
        read = (chosen.unique() // 32).bincount(minlength=8).tolist()
        found.append([100 * (max(each) * 8 / sum(each) - 1) for each in (work, read)])
    return torch.tensor(found).mean(0).tolist()


fair, distinct = excess(1, 32)
print(f"fair router: {fair:.0f} % with 32 tokens, {excess(1, 1024)[0]:.0f} % with 1,024")
print(f"one expert 100 times as popular: {excess(100, 1024)[0]:.0f} % with 1,024 tokens")
print(f"fair router, 32 tokens, distinct experts in place of pairs: {distinct:.0f} %")

# %% tags=["spoiler", "nbval-ignore-output"]
busiest.reveal(round(fair))

# %% [markdown]
# The other ranks wait for the busiest. In a small batch chance alone makes one rank busier; a popular expert does so in a
# batch of any size. So models are trained to balance their experts, and servers keep copies of popular ones (`--enable-eplb`). EP needs
# large batches for a second reason: an expert's weights are read once for all tokens that come to it. (With 32 tokens this
# reading takes the time, so *distinct* experts count. Pairs count once the experts are compute-bound.)
#
# ## Attention by users, experts by rank
#
# DeepSeek-V3 (DeepSeek-AI, 2024, arXiv:2412.19437) has 671 B parameters, most of them in the 256 routed experts of
# each MoE layer. Its attention, **MLA**, caches one vector of 576 numbers per token and layer, shared by all heads. In your function that is
# *one* KV head, so TP over eight ranks keeps eight copies of the same cache.
#
# The way out is **data-parallel attention with expert parallelism**. Every rank holds a copy of the attention weights and
# serves its own users, whose cache exists once. At each MoE layer the tokens of *all* users are dispatched to the
# experts, so each expert sees the large batch that it needs.
#
# On eight H200s, with weights in FP8 (one byte each, 11 GB of them in attention) and the cache in bf16:

# %% tags=["nbval-ignore-output"]
by_users = viz.predict("How many times as many tokens fit into the caches with data-parallel attention?", "times")
by_users

# %% tags=["spoiler"]
mla = 61, 128, 1, 576 // 2, 16  # one vector of 576 in place of a key and a value of 288 each
projections = 7168 * (1536 + 576 + 128 * 128) + 1536 * 128 * 192 + 512 * 128 * 256  # of one layer's attention
attention, total = 61 * projections, 671e9
_, copied = kv_per_rank(*mla, total, 8, MEMORY)
own_weights = attention + (total - attention) / 8  # on each rank
_, own = kv_per_rank(*mla, own_weights, 1, MEMORY)
print(f"attention weights {attention / 1e9:.1f} GB of {total / 1e9:.0f} GB")
print(f"tensor parallel: {copied:,} tokens; data-parallel attention: 8 · {own:,} = {8 * own:,}")

# %% tags=["spoiler", "nbval-ignore-output"]
by_users.reveal(round(8 * own / copied, 1))

# %% [markdown]
# It is less than eight times, because of the copied weights. A second price: all ranks meet at every MoE layer.
# So a rank without users runs a dummy pass, and one long prefill delays everyone.
# That is one reason to prefill on separate GPUs ([disaggregation](11b_under_load.ipynb)).
#
# ## Which one?
#
# | | each rank has | sent | improves | limited by |
# |---|---|---|---|---|
# | tensor | a part of every layer | two all-reduces per layer | ms per token, users | latency of all-reduces, number of KV heads |
# | pipeline | some layers | one message per stage | tokens per second, users | unequal or too few batches |
# | data | everything | nothing | tokens per second, users | memory for each replica |
# | expert | some experts | two all-to-alls per MoE layer | all three, with large batches | the busiest rank, latency |
# | DP attention, EP | all attention, some experts | the same | tokens per second, users most of all | lockstep, copied weights |
#
# A common order: quantise first, because half the bytes may need half the GPUs. Use TP inside a node, with no more ranks
# than memory and latency require, and PP between nodes if one cannot hold the model. More load goes to replicas.
#
# ## The dashboard
#
# Two replicas move the chatbot's tokens per second. (A GPU's dashboard stays as it was.)

# %% tags=["nbval-ignore-output"]
viz.dashboard("16", tokens_per_second=rates["replicas"] if ms.device().type == "cpu" else None)

# %% [markdown]
# ## In production
#
# | here | vLLM | SGLang |
# |---|---|---|
# | TP, PP, DP | `--tensor-parallel-size`, `--pipeline-parallel-size`, `--data-parallel-size` | `--tp-size`, `--pp-size`, `--dp-size` |
# | EP | `--enable-expert-parallel` | `--ep-size` |
# | DP attention with EP | `--data-parallel-size 8 --enable-expert-parallel` | `--tp-size 8 --dp-size 8 --enable-dp-attention --ep-size 8` |
#
# With DP attention SGLang's `--tp-size` counts all GPUs, and dp divides them; in vLLM the two multiply.
#
# In vLLM, a small Llama drafts for a large one on four GPUs like this:
#
# ```sh
# vllm serve meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 4 \
#     --speculative-config '{"method": "draft_model", "model": "meta-llama/Llama-3.2-1B-Instruct",
#         "num_speculative_tokens": 4, "draft_sample_method": "probabilistic"}'
# ```
#
# `probabilistic` asks for draft tokens that are sampled from $q$, as in lesson 06. For a separate draft model vLLM insists on
# the target's TP size. [The dictionary](../docs/handover.md) has SGLang's options. The names
# follow the engines' sources; we did not run the engines.
#
# ## Check yourself
#
# <details><summary>Someone cuts the first matrix of an MLP by inputs and the second by outputs. What does it cost?</summary>
#
# The first cut ends in incomplete sums, which need an all-reduce before the activation, and the end needs a gather: two
# collectives instead of one.
# </details>
#
# <details><summary>A model has 8 KV heads. You go from 8 ranks to 16. What gets smaller on each rank?</summary>
#
# The weights halve. The cache per token stays, because every head is now on two ranks. (*Context parallelism* divides it by
# positions and merges the parts as in lesson 12.)
# </details>
#
# <details><summary>With data-parallel attention, why does a rank without users have to run a pass?</summary>
#
# It takes part in the all-to-alls: the other ranks' tokens need its experts.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Shoeybi et al., 2019: *Megatron-LM: training multi-billion parameter language models using model parallelism*
#   ([arXiv:1909.08053](https://arxiv.org/abs/1909.08053)): the two cuts and their all-reduces.
# - Lepikhin et al., 2021: *GShard: scaling giant models with conditional computation and automatic sharding*
#   ([arXiv:2006.16668](https://arxiv.org/abs/2006.16668)): experts on many devices.
# - DeepSeek-AI, 2024: *DeepSeek-V3 technical report* ([arXiv:2412.19437](https://arxiv.org/abs/2412.19437)): how it
#   is deployed.
#
# All papers: [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - On an empty page: [exercises 16](../exercises/16_beyond_one_gpu.ipynb).
# - `minispec drill`: `tensor-parallelism`, `pipeline-parallelism`, `expert-parallelism`,
#   `which-parallelism`, `dp-attention`, `nccl-in-the-profile`.
# - [17 Interview day](17_interview_day.ipynb), [Appendix: scaling laws](appendix_scaling_laws.ipynb)
