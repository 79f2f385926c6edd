# %% [markdown]
# # 17 Interview day
#
# *Time:* 50 minutes · *Before this:* [06 Rejection sampling](06_rejection_sampling.ipynb), [10 EAGLE, MTP and DFlash](10_eagle_and_dflash.ipynb), [16 Beyond one GPU](16_beyond_one_gpu.ipynb) · *Practice:* [exercises 17](../exercises/17_interview_day.ipynb)
#
# The chatbot is built. Today you explain it, to someone who asks follow-up questions. First you grade candidates. Then
# comes the coding round, and a clock runs.
#
# You will be able to
#
# - say what separates an L4 answer from an L5 and an L6 answer to the same question;
# - write two functions of a coding round against the clock;
# - derive a number aloud, and say what follows from it.

# %%
import time

import torch
from IPython.display import Markdown

from minispec import theory
from minispec_course import interview, viz
from minispec_course.check import mine, yours
from minispec_course.interview.dialogue import read_ticks
from minispec_course.interview.question import RULE
from minispec_course.interview.session import Mark, Said, Talk

# %% [markdown]
# ## What does an interviewer listen for?
#
# How far you can go on your own.
#
# | | you are asked | the answer shows that you can |
# |---|---|---|
# | **L4**, mid-level | what | say what it is, name its parts and the bottleneck |
# | **L5**, senior | why and how | derive it, build it, and say what it costs |
# | **L6**, staff | when, and what else | decide: where it stops working, with a number, and what to measure first |
#
# Here is the rubric of the most general question:

# %%
talk = Talk(interview.load()["walk-me-through"])
lines = [f"*{talk.question.question}*"]
for level in interview.LEVELS:
    lines += ["", f"**{level}**", ""]
    lines += [f"- `{i}` {box.shown}" for i, box in enumerate(talk.rubric, 1) if box.group == level]
Markdown("\n".join(lines))

# %% [markdown]
# Leaving something out counts against you only if you miss it when asked. A wrong statement counts at once: "it is
# approximate" costs a level.
#
# ## Three answers
#
# Suppose Ada and Ben were asked the same follow-ups as Cleo and had nothing to add.
#
# **Ada.** "Large models are slow because they read all their weights from memory for every token. So you take a small model
# and a large one. The small one proposes a few tokens, and the large one checks them in one forward pass. Tokens it agrees
# with are kept, and the first one it disagrees with is replaced by its own. So you get the large model's output with fewer of
# its passes. Medusa does it without a second model, I think."
#
# **Ben.** "A decode step reads every weight from memory and does hardly any arithmetic with it, so it takes as long as the
# reading. A pass over five tokens reads the weights once as well, so at small batches I can have several tokens checked for
# the price of one. At large batches it is compute-bound, and they are no longer free. A cheap drafter, say a small model,
# proposes $k$ tokens. The target runs on them in a single pass and gives its distribution $p$ at every position.
# Draft token $x$ is accepted with probability $\min(1, p(x)/q(x))$, where $q$ is the distribution it was sampled from. At the
# first rejection I sample from the residual, $p - q$ clipped at zero and normalised, and stop. If all are accepted, I sample
# one bonus token from $p$.
#
# "It is exact. A token is emitted as an accepted one with probability $\min(p, q)$. The chance of a rejection is just the mass
# that the residual is divided by, so the two cancel, and as a replacement it is emitted with $[p - q]_+$. These add up to $p$.
# If each draft token is accepted with probability $\alpha$, independently, which is an approximation, a cycle emits
# $(1 - \alpha^{k+1})/(1 - \alpha)$ tokens on average. Divided by $k c + v$, the costs of drafting and verifying in plain decode
# steps, that is the speed-up."
#
# **Cleo** says what Ben says in his first paragraph. Then she stops, and a conversation begins.
#
# **Cleo.** "That is one cycle, and the output has exactly the target's distribution. Shall I go into the proof, or into what it
# gains?"
#
# **Interviewer.** "The proof, in one sentence."
#
# **Cleo.** "A token arrives by acceptance with probability $\min(p, q)$ and by replacement with $[p - q]_+$, because the chance
# of rejecting equals the mass that the residual is divided by, and together that is $p$."
#
# **Interviewer.** "And what does it gain?"
#
# **Cleo.** "With one $\alpha$ for all draft tokens, $(1 - \alpha^{k+1})/(1 - \alpha)$ tokens per cycle, for $k c + v$ plain steps. At
# $\alpha = 0.7$, $k = 4$, $c = 0.1$ that is 2.77 over 1.4, about two, while $v$ is one. Real acceptance changes with the prompt
# and the position, so I would put measured values in."
#
# **Interviewer.** "When is $v$ not one?"
#
# **Cleo.** "When the batch makes verification compute-bound. With those values, a dense 8B model on an H200 and short
# contexts, the roofline at measured speeds says break-even at a batch of about ninety. I would measure that crossing, shorten drafts below it and switch them off
# above. For a batch API with short prompts that keeps its GPUs full I would not build it at all. Long contexts are
# different: most of a pass is then reading caches, which takes as long with drafts as without."
#
# **Interviewer.** "What has to change in the server?"
#
# **Cleo.** "After a rejection both caches count only up to the last accepted token. The scheduler reserves slots for the draft
# tokens before the pass, and corrects the number of computed tokens after it."
#
# **Interviewer.** "Which drafter would you take?"
#
# **Cleo.** "For code edits n-grams: they cost almost nothing, and the output copies the input. For general chat EAGLE, one small
# layer per draft token on the target's hidden states. Its acceptance is high, but falls with depth, where it runs on its own
# states. Medusa's heads guess all positions at once, which is cheaper, but no head knows what the others chose. A tree
# accepts more and has more tokens to verify, so it loses first as the batch grows."
#
# **Interviewer.** "Say we do it. What happens first?"
#
# **Cleo.** "I replay production prompts at our temperature and look at acceptance by position. Then one percent of the traffic
# against a control group: time per token, median and tail. There is a switch, and we write down beforehand which numbers
# would make us use it."
#
# ## Grade them
#
# Start with Ben; grade the other two if you have time. Find the words that earn a point, and write its number down only
# then. This is how points are counted:

# %%
Markdown(f"> {RULE}")

# %% tags=["nbval-ignore-output"]
heard = {"Ada": "", "Ben": "", "Cleo": ""}  # yours: the numbers of the points that each has made, such as "1 2 5-7"

# %% [markdown]
# Compare with our grades. Where they differ, read the answer again.

# %% tags=["spoiler"]
ours = {"Ada": ["L4"], "Ben": ["L4", "L5"], "Cleo": ["L4", "L5", "L6"]}  # each makes all points of these levels


def graded(*groups: str, ticked: str = "", wrong: str = "") -> Said:
    made = [i for i, box in enumerate(talk.rubric) if box.group in groups or box.text == wrong]
    return Said(talk, {i: Mark() for i in (*made, *(read_ticks(ticked, len(talk.rubric)) or ()))})


for name, numbers in heard.items():
    we, you = graded(*ours[name]), graded(ticked=numbers)
    print(f"{name:5} you: {you.level if numbers else 'not graded':10} we: {we.level}")
    for i in sorted(you.marks.keys() ^ we.marks.keys()) if numbers else ():
        print(f"      {'we also' if i in we.marks else 'we did not'} hear {i + 1}: {talk.rubric[i].text}")
sunk = graded(*ours["Ben"], wrong=talk.question.sinks[0])
print("Ben, had he closed with 'so it approximates the large model':", sunk.level)

# %% [markdown]
# <details><summary>Why we graded them like this</summary>
#
# **Ada** names the bottleneck but draws no conclusion from it, and her rule is right for greedy decoding only. We ticked
# "follows the large model's distribution" for "you get the large model's output". You may disagree: she is L4 either way.
# **Ben** derives everything from the bottleneck, but gives no number and no decision. **Cleo** adds a limit with its
# conditions, the decision that follows, a drafter for each kind of traffic, and the first measurement.
# </details>
#
# Cleo stops after a minute and is led to what the interviewer wants to know. Most L6 points are earned like that.
#
# ## The coding round
#
# Repeat the task in your own words, ask about edge cases, say each idea before you type it, and keep something that runs.
# You have 25 minutes for two functions, from here.

# %% tags=["nbval-ignore-output"]
begun = time.monotonic()


def clock() -> None:
    print(f"{(time.monotonic() - begun) / 60:.0f} of 25 minutes")


# %% [markdown]
# ### Yours: the size of a cache
#
# How many bytes does a KV cache of `tokens` tokens take? With grouped queries a token leaves a key and a value for each of
# `kv_heads` heads in every layer. With MLA (`latent` above 0) it leaves one vector of `latent` numbers and `rope` more for the
# position. A number has `bits` bits. Below 16 bits, the numbers that a token leaves in a layer are quantised in groups of
# `group`, each with a scale of 2 bytes; the last group may be shorter.


# %%
@yours("17.kv_size")
def kv_size(
    layers: int, kv_heads: int, head_dim: int, latent: int, rope: int, bits: int, group: int, tokens: int
) -> float:
    """Bytes of a KV cache."""
    ### BEGIN SOLUTION: how many values does a token leave in a layer? how many scales?
    values = latent + rope if latent else 2 * kv_heads * head_dim
    scales = -(-values // group) if bits < 16 else 0  # rounded up
    return tokens * layers * (values * bits / 8 + 2 * scales)
    ### END SOLUTION


# %% [markdown]
# ### Yours: a rejection sampler for a batch
#
# Your sampler of lesson 06 judges one sequence. A server has a batch, with drafts of different `lengths`, padded to $k$ with
# valid token ids and distributions that mean nothing. Decide for all at once, without a loop: how many draft tokens of each sequence are accepted, and from which distribution does its
# next token come? Draft token $x$ at position $i$ is accepted if $u_i < p_i(x)/q_i(x)$.
#
# `p` is `[B, k + 1, V]`, `q` is `[B, k, V]`, `draft` and `u` are `[B, k]`, `lengths` is `[B]`. Return the counts `[B]` and the
# distributions `[B, V]`: the residual after a rejection, otherwise $p$ at position `lengths`.


# %%
@yours("17.ragged_sampler")
def ragged_sampler(
    p: torch.Tensor, q: torch.Tensor, draft: torch.Tensor, lengths: torch.Tensor, u: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """How many draft tokens of each sequence are accepted, and the distribution of its next token."""
    ### BEGIN SOLUTION: which positions are accepted? which of these count? what comes next?
    rows, k = torch.arange(len(p)), draft.shape[1]
    ratio = (p[:, :k] / q).gather(2, draft[..., None])[..., 0]  # [B, k]
    accepted = (u < ratio) & (torch.arange(k) < lengths[:, None])
    n = accepted.long().cumprod(dim=1).sum(dim=1)  # [B]
    at_n = p[rows, n]
    left = (at_n - q[rows, n.clamp(max=k - 1)]).clamp(min=0)
    left = left / left.sum(dim=-1, keepdim=True)
    return n, torch.where((n < lengths)[:, None], left, at_n)
    ### END SOLUTION


# %% tags=["nbval-ignore-output"]
clock()

# %% [markdown]
# "How would you test it?" is the first follow-up. One call to your function handles 20,000 sequences with the $p$ and $q$ of lesson 06,
# and we count their first emitted tokens:

# %%
B, k, generator = 20_000, 3, torch.Generator().manual_seed(0)
p = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).expand(B, k + 1, 3)
q = torch.tensor([0.3, 0.2, 0.5], dtype=torch.float64).expand(B, k, 3)
draft = q.reshape(-1, 3).multinomial(1, generator=generator).view(B, k)
lengths = torch.randint(0, k + 1, (B,), generator=generator)
u = torch.rand(B, k, generator=generator, dtype=torch.float64)
counts, following = ragged_sampler(p, q, draft, lengths, u)
first = torch.where(counts > 0, draft[:, 0], following.multinomial(1, generator=generator)[:, 0])
shares = [f"{share:.2f}" for share in (first.bincount() / B).tolist()]
print(f"first emitted token of {B:,} sequences:", *shares, " wanted:", *p[0, 0].tolist())

# %% [markdown]
# "Why without a loop?" is the second. Here are 500 of them, first one by one with your sampler from lesson 06,
# then in one call:

# %% tags=["nbval-ignore-output"]
one_by_one, rows = mine("06.sampler"), range(500)
start = time.perf_counter()
for b in rows:
    one_by_one(
        p[b, : lengths[b] + 1], q[b, : lengths[b]], draft[b, : lengths[b]].tolist(), iter(u[b].tolist() * 9).__next__
    )
looped = time.perf_counter() - start
start = time.perf_counter()
ragged_sampler(p[:500], q[:500], draft[:500], lengths[:500], u[:500])
print(f"500 sequences: {1e3 * looped:.0f} ms in a loop, {1e3 * (time.perf_counter() - start):.1f} ms in one call")

# %% [markdown]
# On a GPU the loop is worse still: every `if` on a probability is a host sync. There are eight more like these in
# [exercises 17](../exercises/17_interview_day.ipynb).
#
# ## A number, derived aloud
#
# A number to one significant figure, derived on the spot, convinces more than a paragraph. These constants are enough:

# %%
B200 = theory.Hardware("B200, bf16, data sheet", bandwidth=8e12, flops=2250e12)
for gpu, gigabytes in ((theory.H100, 80), (theory.H200_SHEET, 141), (B200, 180)):
    print(
        f"{gpu.name:27} {gigabytes:3} GB, {gpu.bandwidth / 1e12:.2f} TB/s, {gpu.flops / 1e12:5,.0f} TFLOP/s", end=", "
    )
    print(f"ridge point {theory.balance_point(gpu):.0f} FLOP per byte")
print("TFLOP/s are dense: half of the sheet's number with sparsity. 2 FLOPs per parameter per token")
print("NVLink 450 GB/s each way (H100, H200), 900 (B200): the sheets add both directions. Network 50 GB/s per GPU")

# %% [markdown]
# An 8B model (32 layers, 8 KV heads of width 128, bf16) decodes for 32 users at once, with 4,096 tokens of context each. The
# batch is far below the ridge point (in bf16 a token does one FLOP per byte of weights, so 32 against 206). Compare its
# step with that of a single user who has just said hello. (The cell also checks Cleo.)

# %% tags=["nbval-ignore-output"]
slower = viz.predict("How many times as long does the step for 32 users take?", "times")
slower

# %% tags=["spoiler"]
cache = kv_size(32, 8, 128, 0, 0, 16, 32, tokens=32 * 4096)
weights = 2 * 8e9
print(f"cache {cache / 1e9:.0f} GB, weights {weights / 1e9:.0f} GB: {(weights + cache) / weights:.1f} times the bytes")
for context in (0, 4096):
    shape = dict(context=context, kv_bytes=theory.kv_bytes_per_token(32, 8, 128), attention_width=32 * 32 * 128)
    v = {batch: theory.verify_cost(theory.H200, 8e9, 4, batch, **shape) for batch in (1, 90)}
    gains = {f"batch {batch}": f"{theory.speedup(0.7, 4, 0.1, each):.2f}" for batch, each in v.items()}
    print(f"speed-up at α = 0.7, k = 4, c = 0.1 with {context:,} tokens of context: {gains}")
for gpu in (theory.H200, theory.H200_SHEET):
    gains = (theory.speedup(0.7, 4, 0.1, theory.verify_cost(gpu, 8e9, 4, batch)) for batch in range(1, 500))
    print(f"{gpu.name}: break-even at a batch of {1 + sum(gain >= 1 for gain in gains)}")
print(f"Cleo's cycle: {theory.expected_tokens(0.7, 4):.2f} tokens for {4 * 0.1 + 1:.1f} steps")

# %% tags=["spoiler"]
slower.reveal(round((weights + cache) / weights, 1))

# %% [markdown]
# The other half of the answer is "so what?". The caches have become as large as the weights, and reading
# them takes as long with drafts as without. So Cleo's break-even holds for short contexts only, as she said. With the
# speeds of the data sheet it is 98.
#
# ## Build an answer
#
# | the question is about | in this order |
# |---|---|
# | speed, memory, cost | the bottleneck, the mechanism, a number with its assumptions, the limit |
# | correctness | the claim, the reason in one line of algebra, the assumption that breaks most easily, the test |
# | design | ask for load and latency targets; size weights, cache and one step; choose parallelism and batch; decide about caching, quantisation, speculation; measure, roll out, name the weakest part |
# | your own work | the problem, a number before and after, the decision that was yours, what went wrong |
#
# For the last row you can use this chatbot. Your own numbers:

# %% tags=["nbval-ignore-output"]
viz.dashboard("17")

# %% [markdown]
# ## In production
#
# Read the metrics page of a real server, such as [vLLM's](https://docs.vllm.ai/en/stable/usage/metrics/), and know for each
# metric what you would look at first if it doubled overnight.
#
# ## Check yourself
#
# <details><summary>"How does speculative decoding work?" Your first sentence?</summary>
#
# At small batches a decode pass is limited by reading the weights, so several tokens take about as long as one.
# </details>
#
# <details><summary>Your answer earns all L4 points, no L5 points and all L6 points. Which level is that?</summary>
#
# L4: the acceptance rule, a must-have, was not given.
# </details>
#
# <details><summary>"We measured a speed-up of 2 at batch 1 and 0.8 in production." What do you ask?</summary>
#
# What was measured, and against which baseline. How many requests share a pass, and how long are their contexts ($v$)? What is
# the acceptance on production prompts? Then propose: plot the speed-up against the number of running requests, and switch
# speculation off beyond break-even.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Leviathan, Kalman, Matias, 2023: *Fast inference from transformers via speculative decoding*
#   ([arXiv:2211.17192](https://arxiv.org/abs/2211.17192)): the one to know best, section 3 and appendix A.1 by heart.
# - Kwon et al., 2023: *Efficient memory management for large language model serving with PagedAttention*
#   ([arXiv:2309.06180](https://arxiv.org/abs/2309.06180)): the one to know next.
# - Pope et al., 2023: *Efficiently scaling transformer inference*
#   ([arXiv:2211.05102](https://arxiv.org/abs/2211.05102)): how most capacity questions are computed.
#
# All papers: [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - Answer aloud: `minispec drill` for ten minutes a day, `minispec mock` for a whole round. Afterwards you mark it by the
#   same rule, each point with the sentence that makes it; with `--interviewer` a partner has the sheet and marks. A plan
#   for the last week: [syllabus](../docs/syllabus.md#an-interview-in-a-week).
# - To print: the [cheat sheet](../docs/cheatsheet.md) and the [system design sheet](../docs/design_sheet.md).
# - [Exercises 18](../exercises/18_capstone.ipynb): the capstone, speculative decoding by yourself.
