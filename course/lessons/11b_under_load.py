# %% [markdown]
# # 11b Under load
#
# *Time:* 55 minutes · *Before this:* [11 speculation in a server](11_speculation_in_a_server.ipynb) · *Practice:* [exercises 11](../exercises/11_speculation_in_a_server.ipynb)
#
# So far all users were there at once. Real users arrive one by one, whether or not the server is busy, and each of them
# notices only how long *they* wait. This lesson moves **ms per token as a user sees it**, and adds the two numbers that a
# service is judged by: the time to the first token, and how many users per second get what they were promised.
#
# You will write these numbers, choose the draft length for a load, find out why a recorded server lost by speculating, and
# hand a cache from one machine to another.
#
# You will be able to
#
# - define TTFT, TPOT, ITL and goodput, and say what a stream in bursts does to each;
# - use Little's law to tell how full a server is;
# - choose $k$ for a load, and say when to switch speculation off;
# - say when it pays to run prefill on a machine of its own.

# %%
import torch

import minispec as ms
from minispec.controller import Controller
from minispec.serving.paged import PagedKVCache
from minispec_course import viz
from minispec_course.check import mine, yours
from minispec_course.labs.batching import endless
from minispec_course.labs.load import ALPHA, COMPUTE, DRAFT, READ, percentile, recorded_servers, run_shift, simulated
from minispec_course.labs.pairs import course_pair, where

expected_tokens = mine("07.expected_tokens")  # yours, if you wrote it

# %% [markdown]
# ## What a user notices
#
# An answer is streamed: every step that emits tokens of a request sends them as one event. With speculation an event brings
# several tokens. Three numbers follow from the moments at which events arrive, defined as in vLLM's benchmark:
#
# - **TTFT**, time to first token: from sending the request to the first event. It contains the queue and the prefill.
# - **TPOT**, time per output token: the time from the first event to the last, per token after the first.
# - **ITL**, inter-token latency: the gaps between neighbouring events.
#
# ### Yours: latencies
#
# `sent` is when the request was sent, and `log` a list of `(time, tokens)`, at least one event. Return TTFT, TPOT (None if
# there is a single token in all) and the list of ITLs.


# %%
@yours("11.latencies")
def latencies(sent: float, log: list[tuple[float, int]]) -> tuple[float, float | None, list[float]]:
    """TTFT, TPOT and ITL of one request."""
    ### BEGIN SOLUTION: which of the three counts tokens, and which counts events?
    moments, tokens = [time for time, _ in log], sum(brought for _, brought in log)
    spread = (moments[-1] - moments[0]) / (tokens - 1) if tokens > 1 else None
    return moments[0] - sent, spread, [moments[i + 1] - moments[i] for i in range(len(moments) - 1)]
    ### END SOLUTION


# %% [markdown]
# Two answers of 25 tokens begin after 100 ms. One gets a token every 20 ms. The other speculates: three tokens every 50 ms,
# because drafting and verifying take longer than a plain step. Which one feels faster?

# %%
one_by_one = [(0.1 + 0.02 * i, 1) for i in range(25)]
in_bursts = [(0.1, 1)] + [(0.15 + 0.05 * i, 3) for i in range(8)]
for name, log in (("one by one", one_by_one), ("in bursts", in_bursts)):
    ttft, tpot, itl = (latencies(0.0, log)[i] for i in range(3))
    print(f"{name:10} TTFT {1e3 * ttft:.0f} ms, TPOT {1e3 * tpot:.1f} ms, longest ITL {1e3 * max(itl):.0f} ms")

# %% [markdown]
# The answer in bursts is complete earlier, and it stands still for longer between two events. TPOT says the first and ITL the
# second, so quote both.
#
# A service promises something like "TTFT within 100 ms and TPOT within 5 ms" (its *service-level objective*, SLO).
# **Goodput** counts the requests per second that got both. A **percentile** says for how many requests a number holds: the
# p99 of TPOT is the value that all but one request in a hundred stay below.
#
# ### Yours: goodput
#
# `requests` is a list of `(ttft, tpot)`; `ttft` is None if the request failed, `tpot` is None if it had a single token. A
# latency equal to its target meets it. Return requests per second.


# %%
@yours("11.goodput")
def goodput(
    requests: list[tuple[float | None, float | None]], seconds: float, ttft_target: float, tpot_target: float
) -> float:
    """Requests per second that were served as promised."""
    ### BEGIN SOLUTION: what decides for a request that failed, and for one with a single token?
    served_well = 0
    for ttft, tpot in requests:
        soon = ttft is not None and ttft <= ttft_target
        served_well += soon and (tpot is None or tpot <= tpot_target)
    return served_well / seconds
    ### END SOLUTION


# %% [markdown]
# ## A server on paper
#
# To see what a load does, we simulate a server for an 8B model on an H200. A pass over $n$ tokens takes
# $\max(t_\text{read}, n \cdot t_\text{compute})$, the roofline of lesson 01; a draft step costs an eighth of a pass, and
# draft tokens are accepted with α = 0.6. Requests with prompts of 160 tokens arrive at random moments with a given mean
# rate. This is an *open loop*: users do not wait for each other, so clusters of them queue even if the server is fast
# enough on average. **These are formulas, not measurements.**


# %%
def under(rate: float, choose) -> dict:
    """A simulated load, by your latencies and your goodput. `choose(B)` is k for a batch of B."""
    answers = simulated(rate, choose)
    seen = [latencies(sent, log)[:2] for sent, log in answers]
    end = max(log[-1][0] for _, log in answers)
    stay = sum(log[-1][0] - sent for sent, log in answers) / len(answers)
    ttft, tpot = ([1e3 * one[i] for one in seen] for i in (0, 1))
    figures = dict(ttft99=percentile(ttft, 99), tpot50=percentile(tpot, 50), tpot99=percentile(tpot, 99))
    return figures | dict(users=len(answers) / end * stay, goodput=goodput(seen, end, 0.1, 0.005))


RATES = (8, 48, 96, 120, 144, 168, 192)
print("rate   TPOT p50   p99   TTFT p99   users in the server   goodput")
off = {rate: under(rate, lambda B: 0) for rate in RATES}
for rate, f in off.items():
    print("{:4} {tpot50:10.1f} {tpot99:5.1f} {ttft99:10.0f} {users:21.1f} {goodput:9.1f}".format(rate, **f))

# %% [markdown]
# The fifth column uses **Little's law**, which holds in every steady system:
#
# $$\text{users in the server} = \text{rate} \times \text{mean time in the server}$$
#
# Goodput follows the rate, and then it levels off: more and more users miss the 5 ms. Now the same with drafts of four
# tokens. Without drafts the goodput at 168 requests per second is 144.

# %% tags=["nbval-ignore-output"]
rate_guess = viz.predict("Goodput at 168 requests per second with k = 4?", "per second")
rate_guess

# %% tags=["spoiler"]
four = {rate: under(rate, lambda B: 4) for rate in RATES}
print("rate   TPOT p50   p99   TTFT p99   users in the server   goodput")
for rate, f in four.items():
    print("{:4} {tpot50:10.1f} {tpot99:5.1f} {ttft99:10.0f} {users:21.1f} {goodput:9.1f}".format(rate, **f))

# %% tags=["spoiler", "nbval-ignore-output"]
rate_guess.reveal(round(four[168]["goodput"]))

# %% [markdown]
# At low rates drafts help twice: each user is faster, so by Little's law fewer users are there at once, and in a smaller
# batch drafts are cheaper still. Past some rate the same loop runs backwards, and it runs away: the queue grows, TTFT jumps
# to hundreds of milliseconds, and most users miss their promise.
#
# ## Which k for which load?
#
# ### Yours: k for a batch
#
# Choose the $k$ with the most tokens per second for a batch of $B$ sequences, 0 included, the smallest if several are equal:
#
# $$\frac{\sum_i E[N](\alpha_i, k)}{k \cdot t_\text{draft} + \max\bigl(t_\text{read},\; B\,(k + 1) \cdot t_\text{compute}\bigr)}$$
#
# `alphas` has one acceptance rate per sequence, and `read`, `compute` (per token) and `draft` (one step of the whole batch)
# are seconds. `expected_tokens(alpha, k)` of lesson 07 is there.


# %%
@yours("11.batch_k")
def batch_k(alphas: list[float], longest: int, read: float, compute: float, draft: float) -> int:
    """The draft length with which a batch emits the most tokens per second."""
    ### BEGIN SOLUTION: tokens of all sequences over the seconds of a cycle, for every k
    speeds = []
    for k in range(longest + 1):
        tokens = sum(expected_tokens(alpha, k) for alpha in alphas)
        verify = max(read, len(alphas) * (k + 1) * compute)
        speeds.append(tokens / (k * draft + verify))
    return speeds.index(max(speeds))
    ### END SOLUTION


# %%
best = [batch_k([ALPHA] * B, 8, READ, COMPUTE, DRAFT) if B else 0 for B in range(513)]
print("the best k:", {B: best[B] for B in (1, 32, 64, 96, 128, 160, 192)})
chosen = {rate: under(rate, best.__getitem__) for rate in RATES}
ways = {"no drafts": off, "k = 4": four, "your k": chosen}
viz.under_load({name: {r: (f["tpot50"], f["goodput"]) for r, f in way.items()} for name, way in ways.items()})

# %% [markdown]
# Up to 168 requests per second your rule is at least as good as both. From some batch size on it says 0: **that is when to
# switch off**, and no threshold had to be set by hand. At the highest rate it still drafts too much, because it does not
# know about the prompts in the pass, which use up arithmetic as well. Keep that in mind for the diagnosis below.
#
# ## What a real server goes by
#
# A real server does not know $t_\text{read}$ or α. It measures. minispec's [`Controller`](../minispec/controller.py) keeps
# three things up to date: how long a whole step takes with $B$ sequences and drafts of size $n$, how many tokens a draft of
# size $n$ gains, and how each sequence compares with the others. Then it chooses $n$, and how many sequences $m$ draft:
#
# $$\frac{B + \text{gain}(n) \cdot \sum_{i \le m} g_i}{\text{seconds}(B, n, m)}$$
#
# That is your fraction with measured numbers: the draft, the pass, the host and everything else are in the seconds. Sequences
# whose drafts did well lately ($g_i$) draft first. A size that was not tried is not known, so the controller tries it now and
# then. Told your costs, it agrees with you:

# %%
controller = Controller(range(1, 9))
controller.accept = [ALPHA] * 8
batches = (1, 32, 64, 96, 128, 160, 192)
for n in range(9):
    controller.seconds[n] = {B: n * DRAFT + max(READ, B * (1 + n) * COMPUTE) for B in batches}
print({B: controller.choose(range(B))[0] for B in batches})

# %% [markdown]
# **It must not look at what it cuts off.** The choice depends on past cycles, not on the draft at hand. Would it not be clever
# to sample a draft token and drop it if the draft model itself gave it a low probability? Take two tokens with target
# probabilities $p$ and draft probabilities $q$, and compute exactly what is emitted:

# %%
p, q = torch.tensor([0.5, 0.5]), torch.tensor([0.7, 0.3])
kept = torch.tensor([True, False])  # a sampled token b is dropped, and the target samples by itself
residual = (p - q).clamp(min=0) / (p - q).clamp(min=0).sum()
accepted = q * kept * (p / q).clamp(max=1)
rejected = (q * kept).sum() - accepted.sum()
emitted = accepted + rejected * residual + (q * ~kept).sum() * p
print(f"target {p.tolist()}, emitted {[round(x, 2) for x in emitted.tolist()]}")

# %% [markdown]
# The output is biased towards what was kept. A draft may be cut for any reason that is known *before* the token is sampled:
# the batch, memory, past acceptance, the draft tokens before it.
#
# ## Diagnose a real one
#
# Here is a server that we recorded on an H200: the 8B shape, prompts of 158 tokens on average, with a draft model and $k$
# fixed at 4. It is **an earlier engine, without the controller**.

# %%
recorded = recorded_servers()
plain, drafting = recorded["8b"], recorded["8b:model"]
print("rate           TTFT p50    p99   TPOT p50    p99   goodput")
for rate in (8.0, 48.0, 96.0):
    for name, server in (("plain", plain), ("k = 4", drafting)):
        row = server[rate]
        times = [row[f"{key}_ms"][share] for key in ("ttft", "tpot") for share in ("p50", "p99")]
        print(
            f"{rate:4.0f} {name} {times[0]:12.0f} {times[1]:6.0f} {times[2]:10.1f} {times[3]:6.1f} {row['goodput']:9.1f}"
        )

# %% [markdown]
# At 8 requests per second the median TPOT gains 14 %, but its p99 and every TTFT are worse. At 48 speculation loses two
# thirds of the goodput (targets: 200 ms and 10 ms). Why? First, what a step cost and what it brought:

# %%
at = {name: server[48.0] for name, server in (("plain", plain), ("k = 4", drafting))}
step = {name: row["itl_ms"]["mean"] for name, row in at.items()}
users = {name: row["tokens_per_second"] * row["tpot_ms"]["mean"] / 1e3 for name, row in at.items()}
print(
    f"a step: {step['plain']:.1f} ms plain, {step['k = 4']:.1f} ms with drafts: {step['k = 4'] / step['plain']:.1f} times"
)
print(f"tokens per step and user: {at['k = 4']['acceptance_length']:.2f}")
print("users in the batch, by Little's law:", {name: round(n) for name, n in users.items()})
dot = next(dot for dot in viz.BatchDot.recorded() if dot.batch == 32)
print(f"lesson 07, a full batch of 32 without prompts: a cycle took {dot.k * dot.c + dot.v:.1f} plain steps")

# %% [markdown]
# 2.28 tokens for the time of 2.8 plain steps: that is the loss. But 25 users are no reason for it. In lesson 07's record a
# cycle for 32 users took fewer plain steps than 2.28, so drafts gained. What else is in these passes? Prompts: each step
# processes those that arrived during the step before. A pass of the plain server has about 70 tokens: 21 users, and a third
# of a prompt.

# %% tags=["nbval-ignore-output"]
pass_guess = viz.predict("And an average pass of the server with drafts?", "tokens")
pass_guess

# %% tags=["spoiler"]
for name, row in at.items():
    per_step = row["requests_per_second"] * step[name] / 1e3
    length = row["prompt_tokens"] / row["requests"]
    tokens = users[name] * (5 if name == "k = 4" else 1) + per_step * length
    print(f"{name}: {per_step:.2f} prompts of {length:.0f} tokens per step, {tokens:.0f} tokens per pass")

# %% tags=["spoiler", "nbval-ignore-output"]
pass_guess.reveal(round(tokens))

# %% [markdown]
# The ridge point is at 188 tokens. The plain server is far below it; the other one is beyond it in an *average* pass. Drafts
# make steps longer, longer steps collect more prompts, and prompts make the steps of everybody longer. The draft model has
# to process each prompt as well, so TTFT suffers first. The record does not show where the rest of the time went; for that
# you would profile a step.
#
# **What to do about it?** Draft less: since that recording our engine has got the controller, which goes by measured
# seconds. The sweep has not been recorded again, so we cannot say how much it gains. And the controller times steps
# without a prompt, so the prompts themselves stay in the way. That needs another remedy.
#
# ## Disaggregated prefill
#
# Prefill and decode are different kinds of work: a prompt is limited by arithmetic, a decode step by reading weights. In one
# batch they disturb each other. By the roofline, for a prompt of 4,000 tokens:

# %%
tokens, layers = 4000, 32
prefill, decode = tokens * COMPUTE, READ
print(f"a decode step {1e3 * decode:.1f} ms, the prefill {1e3 * prefill:.0f} ms: everybody's ITL, once per such prompt")
print(f"in chunks of 512 tokens: {-(-tokens // 512)} steps of {1e3 * 512 * COMPUTE:.0f} ms each")

# %% [markdown]
# Chunked prefill (lesson 04) spreads the pain. **Disaggregated prefill** (Zhong et al., 2024, arXiv:2401.09670) removes it:
# one group of GPUs only processes prompts, another only decodes, and the keys and values travel from the first to the
# second. Does the transfer cost too much?
#
# ### Yours: hand a cache over
#
# A prefill of `prefill` seconds runs through `layers` layers, each equally long. Each has `layer_bytes` of keys and values.
# They are sent over a link of `bandwidth` bytes per second as soon as the layer is computed, one layer after the other.
# Return how many bytes are sent, and how many seconds after the end of the prefill the last layer arrives.


# %%
@yours("11.kv_handover")
def kv_handover(layers: int, layer_bytes: int, prefill: float, bandwidth: float) -> tuple[int, float]:
    """Bytes of the cache, and how much later than the prefill it is complete on the other side."""
    ### BEGIN SOLUTION: layer i is sent while layer i + 1 is computed; which of the two is slower?
    compute, send = prefill / layers, layer_bytes / bandwidth
    there = compute + (layers - 1) * max(compute, send) + send
    return layers * layer_bytes, there - prefill
    ### END SOLUTION


# %%
layer_bytes = 2 * 8 * 128 * 2 * tokens  # keys and values, 8 heads of 128 numbers in bf16
for name, bandwidth in (("NVLink, 450 GB/s", 450e9), ("400 Gbit/s network", 50e9), ("25 Gbit/s network", 3.1e9)):
    size, added = kv_handover(layers, layer_bytes, prefill, bandwidth)
    print(f"{name:18} {size / 1e6:.0f} MB, {1e3 * added:6.2f} ms later")

# %% [markdown]
# Over a fast link nearly everything is hidden behind the prefill; over a slow one TTFT more than doubles. The hand-over itself is
# a copy of blocks. Here one cache plays the prefill worker and another one the decode worker, with other block
# numbers; the token that follows should be the same.

# %%
target = endless(ms.load("micro", device="cpu", dtype=torch.float64))
prompt = target.encode("One day, a girl named Lily found a map in the garden and")
worker, other = (PagedKVCache(target.config, 16, block_size=4, dtype=target.dtype) for _ in range(2))
here, there = [0, 1, 2, 3, 4, 5], [9, 3, 12, 7, 1, 14]
with torch.inference_mode():
    rows = worker.open([here], [0], [len(prompt)])
    first = int(target.transformer(torch.tensor([prompt]), rows).logits[0, -1].argmax())
    other.keys[:, there], other.values[:, there] = worker.keys[:, here], worker.values[:, here]  # the hand-over
    rows = other.open([there], [len(prompt)], [1])
    second = int(target.transformer(torch.tensor([[first]]), rows).logits[0, -1].argmax())
print("as on one machine:", [first, second] == ms.generate(target, prompt, 2).tokens)

# %% [markdown]
# It pays when prompts are long, the load is high, TPOT has a tight target and the link is fast. It does not pay for short
# prompts or a quiet server, where chunks are enough: you split your GPUs into two groups, and if the ratio of prefill to
# decode changes, one of them idles. With speculation something else travels: the draft model's cache, or the hidden states
# that a head needs (lesson 11), or the decode worker processes the prompt with the draft model itself.
#
# ## Your own load
#
# The widget serves 24 requests with a real engine on this machine; each change serves them anew. Every fourth prompt is long.
# Raise the rate: what grows first, TTFT or TPOT? Does speculation pay at any rate? What do short chunks do to the long
# prompts?

# %% tags=["nbval-ignore-output"]
quick, quick_draft = course_pair(ms.device())
drafter = ms.drafters.Model(quick_draft)
print(f"{quick.name} on {where(quick.device)}")
viz.control_room(quick, drafter)

# %% tags=["nbval-ignore-output"]
figures = run_shift(quick, None, rate=20, k=0).figures()
print(f"TTFT p50 {figures['ttft_ms']['p50']:.1f} ms, TPOT p50 {figures['tpot_ms']['p50']:.1f} ms")
viz.dashboard("11b", ms_per_token=figures["tpot_ms"]["p50"], tokens_per_second=figures["tokens_per_second"])

# %% [markdown]
# <details><summary>Go deeper: why latencies rise before a server is full</summary>
#
# The smallest model is a server for one request at a time with a fixed service time. If it is busy for a share $\rho$ of the
# time, a request waits for $\frac{\rho}{2\,(1 - \rho)}$ service times on average (M/D/1 queue): half of one at half load,
# nine and a half at 95 %. So the rate that a server can *just* sustain is not a rate to plan with, and a faster step
# pays twice. With service times of mean $\mu$ and standard deviation $\sigma$ the wait is $1 + \sigma^2/\mu^2$ times as long
# (Pollaczek and Khinchine).
# </details>
#
# <details><summary>Go deeper: do long contexts bring the gain back?</summary>
#
# In part. Each request's cache is read once for all $k + 1$ of its tokens, so attention costs the same with a draft as
# without, and with long contexts it is most of the pass (Chen et al., 2024, MagicDec, arXiv:2408.11049). The draft model's
# cache grows as well, so a drafter for long contexts should have a small or windowed one.
# </details>
#
# <details><summary>Go deeper: a tail that had nothing to do with load</summary>
#
# In [our first recording](../docs/results/serve_h200_without_warm_up.json) of a small model with EAGLE the median TTFT at 8
# requests per second was 9.1 ms and the p99 367 ms, although hardly anything waited. The engine captured the
# launches of a batch shape when it first met it, and torch planned its attention anew for every prompt length. After a
# warm-up the p99 was 12 ms. If your p99 is many times the median at low load, look for what happens only once.
# </details>

# %% [markdown]
# ## In production
#
# vLLM takes a table of $k$ by batch size (`num_speculative_tokens_per_batch_size`) or profiles the cost of a step and chooses
# how many draft tokens are verified (`enable_adaptive_verification`, lesson 15b). Prefill and decode workers are connected by a
# `kv_transfer_config` in vLLM and by `--disaggregation-mode` in SGLang.
#
# Tools differ in what they call ITL: SGLang's benchmark divides a gap by the tokens that came with it, and NVIDIA's AIPerf
# calls ITL what is TPOT here. Name the tool with the number. `python -m benchmarks serve --rate 1 4 16 --ttft-target 200
# --tpot-target 20` measures any server that speaks OpenAI's API.

# %% [markdown]
# ## Check yourself
#
# <details><summary>A server completes 20 requests per second, and each stays for 3 seconds. How many are there at once? What
# changes if speculation halves the time?</summary>
#
# 60 by Little's law, and 30 then. In the smaller batch each draft token is cheaper, so the gain grows.
# </details>
#
# <details><summary>A batch is so large that the pass is compute-bound with and without drafts. For which α does speculation
# gain?</summary>
#
# For none. The time is proportional to the tokens, $v = k + 1$, and $E[N] \le k + 1$; drafting costs time as well.
# </details>
#
# <details><summary>May a server shorten a draft because the draft model was unsure about the last token that it sampled?</summary>
#
# It may stop drafting *after* that token, and must verify it. Dropping the token because of its own value biases the output.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Zhong et al., 2024: *DistServe: disaggregating prefill and decoding for goodput-optimized large language model serving*
#   ([arXiv:2401.09670](https://arxiv.org/abs/2401.09670)): goodput, and why the two phases disturb each other.
# - Liu et al., 2024: *Optimizing speculative decoding for serving large language models using goodput*
#   ([arXiv:2406.14066](https://arxiv.org/abs/2406.14066)): draft lengths that follow the load.
# - Chen et al., 2024: *MagicDec: breaking the latency-throughput tradeoff for long context generation with speculative
#   decoding* ([arXiv:2408.11049](https://arxiv.org/abs/2408.11049)): long contexts, where large batches still gain.
#
# All papers: [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - [Exercises 11](../exercises/11_speculation_in_a_server.ipynb): an admission rule that keeps a target.
# - `minispec drill` asks `batch-effect`, `when-to-turn-off`, `win-or-hurt`, `streaming-and-tails`, `production-metrics`,
#   `k-as-a-knob`, `long-context-speculation`, `disaggregation-why`, `drafter-state-in-disaggregation`.
# - [12 Fewer bytes](12_fewer_bytes.ipynb): if reading memory is the bottleneck, read less of it.
