# %% [markdown]
# # 11b Under load
#
# *Time:* 80 minutes · *Before this:* [11 speculation in a server](11_speculation_in_a_server.ipynb) · *Practice:* [exercises 11](../exercises/11_speculation_in_a_server.ipynb)
#
# Real users arrive one by one, whether or not the server is busy, and each notices only how long *they* wait. This lesson
# moves **ms per token as a user sees it**, and adds the two numbers that a service is judged by: the time to the first token,
# and how many users per second get what they were promised.
#
# You will be able to
#
# - define TTFT, TPOT, ITL and goodput, and say what a stream in bursts does to each;
# - use Little's law to tell how full a server is;
# - choose $k$ for a load, and say when to switch speculation off;
# - find out why a recorded server lost by speculating;
# - say when it pays to run prefill on a machine of its own.

# %%
import minispec as ms
from minispec_course import viz
from minispec_course.check import mine, yours
from minispec_course.labs.load import ALPHA, COMPUTE, DRAFT, READ, percentile, recorded_servers, run_shift, simulated
from minispec_course.labs.pairs import course_pair, where

expected_tokens = mine("07.expected_tokens")  # yours, if you wrote it
kv_handover = mine("11.kv_handover")  # ours, until you have written yours in exercises 11

# %% [markdown]
# ## What a user notices
#
# An answer is streamed: every step that emits tokens of a request sends them as one event. With speculation an event brings
# several tokens. Three numbers follow from the moments at which events arrive, defined as in vLLM's benchmark:
#
# - **TTFT**, time to first token: from sending the request to the first event. It contains the queue and the prefill.
# - **TPOT**, time per output token: the time from the first event to the last, divided by the number of all tokens minus one.
# - **ITL**, inter-token latency: the gaps between neighbouring events.
#
# ### Yours: latencies
#
# `sent` is when the request was sent, and `log` a list of `(time, tokens)`, at least one event. Return TTFT, TPOT (None if
# there is a single token in all; 0 if one event brings several) and the list of ITLs.


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
# Two answers of 25 tokens begin after 100 ms. One gets a token every 20 ms. The other speculates: three tokens every 50 ms.
# Which one feels faster?

# %%
one_by_one = [(0.1 + 0.02 * i, 1) for i in range(25)]
in_bursts = [(0.1, 1)] + [(0.15 + 0.05 * i, 3) for i in range(8)]
for name, log in (("one by one", one_by_one), ("in bursts", in_bursts)):
    ttft, tpot, itl = latencies(0.0, log)
    print(f"{name:10} TTFT {1e3 * ttft:.0f} ms, TPOT {1e3 * tpot:.1f} ms, longest ITL {1e3 * max(itl):.0f} ms")

# %% [markdown]
# The answer in bursts is complete earlier (TPOT), but each pause is longer (ITL). Quote both.
#
# A service promises something like "TTFT within 100 ms and TPOT within 5 ms" (its *service-level objective*, SLO).
# **Goodput** counts the requests per second for which both held. p50 is the median. The p99 of TPOT, its 99th **percentile**, is the value that
# 99 requests in 100 do not exceed.
#
# ### Yours: goodput
#
# `requests` is a list of `(ttft, tpot)`; `ttft` is None if the request failed, `tpot` is None if it had a single token. A
# latency equal to its target meets it. They were measured over `seconds`; return requests per second.


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
# $\max(t_\text{read}, n \cdot t_\text{compute})$, the roofline of lesson 01; a draft step costs
# $t_\text{draft} = t_\text{read}/8$, and draft tokens are accepted with α = 0.6. Reading the cache is left out. 600 requests with prompts of 160 tokens arrive at random
# moments at a given mean rate, and answers have 32 to 96 tokens. A pass takes at most 512 tokens, running requests first;
# a prompt that does not fit waits. This is an *open loop*: new requests arrive whether or not earlier ones have been
# answered, so clusters of them queue even if the server is fast enough on average. **These are formulas, not measurements.**


# %%
REQUESTS, PROMPT = 600, 160  # that are sent; tokens of each prompt


def under(rate: float, choose) -> dict:
    """A simulated load, by your latencies and your goodput. `choose(B)` is k for a batch of B."""
    answers = simulated(rate, choose, REQUESTS)
    seen = [latencies(sent, log)[:2] for sent, log in answers]
    stay = sum(log[-1][0] - sent for sent, log in answers) / len(answers)
    ttft, tpot = ([1e3 * one[i] for one in seen] for i in (0, 1))
    figures = dict(ttft99=percentile(ttft, 99), tpot50=percentile(tpot, 50), tpot99=percentile(tpot, 99))
    good = goodput(seen, len(answers) / rate, 0.1, 0.005)  # over the seconds in which requests arrive
    return figures | dict(users=rate * stay, goodput=good, share=100 * good / rate)


def show(figures: dict) -> None:
    print("rate   TPOT p50   p99   TTFT p99   users in the server   goodput   as promised, %")
    line = "{:4} {tpot50:10.1f} {tpot99:5.1f} {ttft99:10.0f} {users:21.1f} {goodput:9.1f} {share:16.0f}"
    for rate, f in figures.items():
        print(line.format(rate, **f))


print(f"t_read {1e3 * READ:.2f} ms, t_compute {1e6 * COMPUTE:.1f} µs per token, t_draft {1e3 * DRAFT:.2f} ms;", end=" ")
print(f"ridge point {READ / COMPUTE:.0f} tokens\n")
RATES = (8, 48, 96, 120, 144, 168, 192)
off = {rate: under(rate, lambda B: 0) for rate in RATES}
show(off)

# %% [markdown]
# The fifth column uses **Little's law**, which holds in every steady system:
#
# $$\text{users in the server} = \text{rate} \times \text{mean time in the server}$$
#
# Up to 144 requests per second practically everyone is served as promised. At 168 it is 97 %, and at 192 only 62 %: the
# others miss the 5 ms. Now the same with drafts of four tokens: without them the goodput at 168 is 162.7.

# %% tags=["nbval-ignore-output"]
rate_guess = viz.predict("Goodput of 600 requests at 168 per second with k = 4?", "per second")
rate_guess

# %% tags=["spoiler"]
four = {rate: under(rate, lambda B: 4) for rate in RATES}
show(four)
end = max(log[-1][0] for _, log in simulated(300, lambda B: 4, 3000))
print(f"\nif 300 requests per second arrive, k = 4 completes {3000 / end:.0f} per second")

# %% tags=["spoiler", "nbval-ignore-output"]
rate_guess.reveal(round(four[168]["goodput"]))

# %% [markdown]
# At low rates each user is faster, so by Little's law fewer are there at once; near the ridge point the smaller batch also
# makes drafts cheaper. The price is TTFT, whose p99 rises at every rate. Past some rate the same loop turns against you:
# draft tokens fill the pass, prompts wait for room in it, and most users do not get what they were promised.
#
# Past 143 requests per second this server cannot keep up: its queue grows for as long as requests arrive. So TTFT and goodput
# there depend on how many we send, and Little's law does not apply.
#
# ## Which k for which load?
#
# ### Yours: k for a batch
#
# Choose the $k$ with the most tokens per second for a batch of $B$ sequences: every $k$ from 0 to `longest`, both included,
# and the smallest if several are equal.
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
print("as promised with your k, %:", {rate: round(f["share"]) for rate, f in chosen.items()})
batches = []
simulated(192, lambda B: batches.append(B) or best[B])
print(f"at 192 per second: at most {max(batches)} users in a batch, k at least {min(best[B] for B in batches)}")


def with_prompt(B: int) -> int:  # the same rule, with the tokens of one prompt in every pass
    speeds = [expected_tokens(ALPHA, k) / (k * DRAFT + max(READ, (B * (k + 1) + PROMPT) * COMPUTE)) for k in range(9)]
    return speeds.index(max(speeds))


counted = {rate: under(rate, with_prompt) for rate in (168, 192)}
for name, way in (ways | {"with a prompt": counted}).items():
    print(f"goodput, {name:13}", {rate: round(way[rate]["goodput"]) for rate in counted})
viz.under_load({name: {r: (f["tpot50"], f["goodput"]) for r, f in way.items()} for name, way in ways.items()})

# %% [markdown]
# Up to 144 requests per second your rule has the lowest TPOT, and nearly everyone is served as promised. For a batch of 160
# it says 0, without a threshold set by hand: **that is when to switch off, if the pass holds nothing but decoding**. Here the
# batch never gets that large, so the rule drafts in every step. At 168 requests per second that costs goodput, although your
# rule still has the lower median TPOT, and at 192 it costs more than a third. The rule does not know about the prompts in the
# pass, which use up arithmetic as well: with one prompt of 160 tokens in its fraction it drafts less, and beats both.
#
# ## What a real server measures
#
# A real server does not know $t_\text{read}$ or α. minispec's [`Controller`](../minispec/controller.py) measures how many
# tokens a draft gains, and how long a step without a prompt takes under this load, for each batch size and draft length. So it
# has your fraction, its seconds including drafting, the pass and the host.
#
# **It must not look at what it cuts off.** A draft may be cut for any reason that is known *before* a token is sampled: the
# batch, memory, past acceptance. Dropping a token because its own probability is low biases sampled output.
#
# ## Diagnose a real one
#
# Here is a server that we recorded on an H200, after a warm-up: the 8B shape with random weights, 32 seats, at most 512
# tokens per pass, and a draft model with $k$ fixed at 4 whose acceptance was set by construction. It is **an earlier engine, without the controller** ([today's figures](../docs/benchmarks.md)). The targets are 200 ms and 10 ms.

# %%
recorded = recorded_servers()
servers = {"plain": recorded["8b"], "k = 4": recorded["8b:model"]}
print("rate          requests   completed/s   TTFT p50    p99   TPOT p50    p99   goodput   as promised, %")
for rate in (8.0, 48.0, 96.0):
    for name, server in servers.items():
        row = server[rate]
        done, good, (ttft, tpot) = row["requests_per_second"], row["goodput"], (row["ttft_ms"], row["tpot_ms"])
        print(f"{rate:4.0f} {name} {row['requests']:12} {done:13.1f} {ttft['p50']:10.0f} {ttft['p99']:6.0f}", end=" ")
        print(f"{tpot['p50']:10.1f} {tpot['p99']:6.1f} {good:9.1f} {100 * good / done:16.0f}")

# %% [markdown]
# The last answers end after the last arrival, so fewer requests are completed per second than were sent; we use the
# completed ones. At 8 requests per second the median TPOT falls from 4.7 to 4.0 ms, but its p99, nearly the slowest of 32
# requests, rises from 5.1 to 7.4 ms, and that of TTFT from 19 to 161 ms. At 96 both servers run
# out of seats, a limit that the server on paper does not have. At 48 speculation loses more than 60 % of the goodput. Why?
# First, what a step cost and what it brought:

# %%
step, users = {}, {}
for rate in (8.0, 48.0):
    for name, server in servers.items():
        row = server[rate]
        step[name, rate] = row["itl_ms"]["mean"]  # one event per step, so a step counts once per user
        users[name, rate] = row["tokens_per_second"] * row["tpot_ms"]["mean"] / 1e3  # Little: rate × time per token
    ratio = step["k = 4", rate] / step["plain", rate]
    print(
        f"{rate:.0f} per second: users see a step take {step['plain', rate]:.1f} ms,",
        f"with drafts {step['k = 4', rate]:.1f} ms:",
        end=" ",
    )
    print(f"{ratio:.2f} plain steps for {servers['k = 4'][rate]['acceptance_length']:.2f} tokens per user")
    length = row["prompt_tokens"] / row["requests"]
    print(
        "   users in the batch:",
        {name: round(users[name, rate]) for name in servers},
        f"prompts of {length:.0f} tokens",
    )
dot = next(dot for dot in viz.BatchDot.recorded() if dot.batch == 32)
cycle = f"a cycle with k = {dot.k} took {dot.k * dot.c + dot.v:.2f} plain steps"
print(f"lesson 07, the same models, a full batch of 32 without prompts: {cycle}")

# %% [markdown]
# At 48 a step brings 2.28 tokens for the time of 2.80 plain steps: that is the loss. But 25 users alone do not explain it. In
# lesson 07's record a cycle for 32 users took fewer plain steps than 2.28. What else is in these passes? Prompts: each step
# processes those that arrived during the step before. A plain pass has about 70 tokens: 21 users, and a third of a prompt.
# With drafts 25 users have up to five tokens each, and 38.6 prompts of 158 tokens come per second.

# %% tags=["nbval-ignore-output"]
pass_guess = viz.predict("And an average pass of the server with drafts?", "tokens")
pass_guess

# %% tags=["spoiler"]
paper = {}
for (name, rate), took in step.items():
    row, k = servers[name][rate], 4 if name == "k = 4" else 0
    prompts = row["requests_per_second"] * took / 1e3 * row["prompt_tokens"] / row["requests"]
    tokens = users[name, rate] * (k + 1) + prompts
    paper[name, rate] = 1e3 * (k * DRAFT + max(READ, tokens * COMPUTE))
    print(
        f"{rate:2.0f} per second, {name}: {tokens:3.0f} tokens per pass; roofline {paper[name, rate]:.1f} ms,", end=" "
    )
    print(f"recorded {took:.1f} ms")
for rate in (8.0, 48.0):
    ratios = [times["k = 4", rate] / times["plain", rate] for times in (paper, step)]
    print(
        f"{rate:2.0f} per second, plain steps per step with drafts: roofline {ratios[0]:.2f}, recorded {ratios[1]:.2f}"
    )

# %% tags=["spoiler", "nbval-ignore-output"]
pass_guess.reveal(round(tokens))

# %% [markdown]
# The ridge point is at 188 tokens. The plain server is far below it; the other one is beyond it in an *average* pass, if all
# drafts are full. Drafts make steps longer, longer steps collect more prompts, and prompts make everyone's steps longer.
#
# **That is a part of the answer.** By the roofline a step with drafts takes 1.89 plain steps; 2.80 were recorded. At 8
# requests per second, far below the ridge and almost without prompts, it is 1.50 against 2.45, so much of the cost is there
# before any load, and even a plain step at 48 takes twice its roofline. Work of the host in every step and the draft
# model's own pass over each prompt may be in it, but the record shows neither. Nor does it say why the tokens per step fall
# from 2.73 to 2.28. For that you would profile a step, or try another $k$, as [`minispec why`](../docs/why.md) suggests for
# these numbers.
#
# **What to do about it?** Draft less: since then our engine has gained the controller, which relies on measured times. In [a
# later sweep](../docs/benchmarks.md) drafts gain at 48 requests per second; that server also had more seats and larger
# passes. What a prompt adds to a pass is in none of its times, so prompts stay in the way: see *Disaggregated prefill*.
#
# ## Your own load
#
# The widget serves 24 requests with a real engine on this machine. Every fourth prompt is long. Raise the rate: what grows
# first, TTFT or TPOT? Does speculation pay at any rate? What do short chunks do to the long prompts?
#
# <details><summary>What to expect</summary>
#
# Once requests queue, TTFT grows and keeps growing; TPOT levels off once the batch is full. Speculation has its best chance
# at the lowest rate. On our CPU it does not pay at 20 per second: compare with the cell after the widget. Short chunks delay
# the first token of a long prompt and shorten the others' gaps.
# </details>

# %% tags=["nbval-ignore-output"]
quick, quick_draft = course_pair(ms.device())
drafter = ms.drafters.Model(quick_draft)
print(f"{quick.name} on {where(quick.device)}")
viz.control_room(quick, drafter)

# %% [markdown]
# For the dashboard, the plain engine at 20 requests per second. A user waits longer for a token than alone:

# %% tags=["nbval-ignore-output"]
figures = run_shift(quick, None, rate=20, k=0).figures()
print(f"TTFT p50 {figures['ttft_ms']['p50']:.1f} ms, TPOT p50 {figures['tpot_ms']['p50']:.1f} ms")
viz.dashboard("11b", ms_per_token=figures["tpot_ms"]["p50"])

# %% [markdown]
# ## Disaggregated prefill
#
# A prompt is limited by arithmetic, a decode step by reading weights. In one batch they disturb each other. Chunked prefill
# (lesson 04) spreads the pain. **Disaggregated prefill** (Patel et al., 2023, arXiv:2311.18677; Zhong et al., 2024,
# arXiv:2401.09670) removes it: one group of GPUs processes prompts, another decodes, and keys and values travel between
# them, layer by layer, while the next layer is computed. Does that cost too much? By the roofline, for a prompt of 4,000
# tokens (`kv_handover`, which you write in [exercises 11](../exercises/11_speculation_in_a_server.ipynb), gives the bytes
# sent and how long after the prefill the last layer arrives):

# %%
tokens, layers = 4000, 32
prefill, decode = tokens * COMPUTE, READ
print(f"a decode step {1e3 * decode:.1f} ms, the prefill {1e3 * prefill:.0f} ms: everyone's ITL, once per such prompt")
print(f"in chunks of 512 tokens: {-(-tokens // 512)} steps of {1e3 * 512 * COMPUTE:.0f} ms each")
layer_bytes = 2 * 8 * 128 * 2 * tokens  # keys and values, 8 heads of 128 numbers in bf16
for name, bandwidth in (("NVLink, 450 GB/s", 450e9), ("400 Gbit/s network", 50e9), ("25 Gbit/s network", 3.1e9)):
    size, added = kv_handover(layers, layer_bytes, prefill, bandwidth)
    print(f"handed over by {name:18} {size / 1e6:.0f} MB, complete {1e3 * added:6.2f} ms after the prefill")

# %% [markdown]
# Over a fast link nearly everything is hidden behind the prefill. Over a slow one TTFT more than doubles, or the user waits
# that long for the second token if the prefill worker streams the first.
#
# Disaggregation pays when prompts are long, the load is high, TPOT has a tight target and the link is fast. For short prompts
# or a quiet server chunks are enough. If the ratio of prefill to decode changes, one of the two groups idles. With
# speculation something else travels: the draft model's cache, or the hidden states that a head needs (lesson 11), or the
# decode worker processes the prompt with the draft model itself.

# %% [markdown]
# <details><summary>Go deeper: why latencies rise before a server is full</summary>
#
# The smallest model is a server for one request at a time with a fixed service time. If it is busy for a share $\rho$ of the
# time, a request waits for $\frac{\rho}{2\,(1 - \rho)}$ service times on average (M/D/1 queue): half a service time at half load,
# nine and a half at 95 %. So the rate that a server can *just* sustain is not a rate to plan with.
# </details>
#
# <details><summary>Go deeper: a tail that had nothing to do with load</summary>
#
# In [our first recording](../docs/results/serve_h200_without_warm_up.json) of a small model with EAGLE the median TTFT at 8
# requests per second was 9.1 ms and the p99 367 ms: the engine captured the launches of a batch shape when it first met it,
# and torch planned its attention anew for every prompt length. After a warm-up the p99 was 12 ms. If your p99 is many times
# the median at low load, look for what happens only once.
# </details>

# %% [markdown]
# ## In production
#
# vLLM takes a table of $k$ by batch size (`num_speculative_tokens_per_batch_size`) or profiles the cost of a step and
# chooses how many draft tokens are verified (`enable_adaptive_verification`, for most drafters; lesson 15b). Prefill and
# decode workers are connected by a `kv_transfer_config` in vLLM and by `--disaggregation-mode` in SGLang.
#
# Tools differ in what they call ITL: SGLang's benchmark divides a gap by the tokens that came with it, and NVIDIA's AIPerf
# uses "ITL" for our TPOT. Name the tool with the number. `minispec bench serve --rate 1 4 16 --ttft-target 200
# --tpot-target 20` measures any server that speaks OpenAI's API.

# %% [markdown]
# ## Check yourself
#
# <details><summary>A server completes 20 requests per second, and each stays for 3 seconds. How many are there at once? What
# changes if speculation halves the time?</summary>
#
# By Little's law, 60; then 30. If the larger batch was near the ridge point, the smaller one has more room for draft
# tokens.
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
# It may stop drafting *after* that token, and must verify it.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Zhong et al., 2024: *DistServe: disaggregating prefill and decoding for goodput-optimized large language model serving*
#   ([arXiv:2401.09670](https://arxiv.org/abs/2401.09670)): goodput, and why the two phases disturb each other.
# - Liu et al., 2024: *Optimizing speculative decoding for serving large language models using goodput*
#   ([arXiv:2406.14066](https://arxiv.org/abs/2406.14066)): draft lengths that follow the load (their
#   goodput counts accepted tokens).
# - Chen et al., 2024: *MagicDec: breaking the latency-throughput tradeoff for long context generation with speculative
#   decoding* ([arXiv:2408.11049](https://arxiv.org/abs/2408.11049)): a request's cache is read once
#   for all its $k + 1$ tokens, so with long contexts large batches still gain.
#
# All papers: [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - [Exercises 11](../exercises/11_speculation_in_a_server.ipynb): an admission rule that keeps a target.
# - `minispec drill` asks `batch-effect`, `when-to-turn-off`, `win-or-hurt`, `streaming-and-tails`, `production-metrics`,
#   `k-as-a-knob`, `long-context-speculation`, `disaggregation-why`, `drafter-state-in-disaggregation`,
#   `littles-law`, `lost-under-load`, `controller-and-prompts`, `prefill-to-decode-ratio`.
# - [12 Fewer bytes](12_fewer_bytes.ipynb): if reading memory is the bottleneck, read less of it.
