# %% [markdown]
# # 17 Interview day
#
# *Time:* 40 minutes · *Before this:* [10 EAGLE and DFlash](10_eagle_and_dflash.ipynb), [11 speculation in a server](11_speculation_in_a_server.ipynb), [16 beyond one GPU](16_beyond_one_gpu.ipynb) · *Practice:* `minispec drill` (10 minutes each) and `minispec mock` (45 minutes), as often as you like; the 40 minutes include one drill and no mock interview
#
# You know the material, and now you explain it aloud, to somebody who asks back, with a clock running. That is a skill of its
# own, and it improves with practice. So this lesson asks what an interviewer listens for, and lets you grade three answers
# before you give your own.
#
# You will be able to
#
# - say what separates an L4 answer from an L5 and an L6 answer to the same question;
# - grade your own answers against a rubric, honestly;
# - compute the numbers that come up: the first digit in your head, five per cent with paper;
# - sit a mock interview, for which you need 45 minutes more, and read its report.

# %%
from IPython.display import Markdown

import minispec as ms
from minispec import theory
from minispec.course import viz
from minispec.course.interview.grading import Grading
from minispec.course.interview.summary import numbers_table, topics_table

bank = ms.interview.load()

# %% [markdown]
# ## What does an interviewer listen for?
#
# An interviewer does not count facts, but tries to find out how far you can go on your own. We borrow the names L4, L5 and L6
# for a mid-level, a senior and a staff engineer; companies number their levels differently.
#
# | | you are asked | the answer shows that |
# |---|---|---|
# | **L4**, mid-level | what | you can say what it is and name the parts |
# | **L5**, senior | why and how | you can derive it, build it, and say what it costs |
# | **L6**, staff | when, and what else | you can say where it stops working, with a number, and what you would do instead |
#
# Each level rests on the one below it. An answer about scheduling at scale that gets the acceptance rule wrong is not an L6
# answer, because the interviewer cannot trust the rest of it.
#
# Every question of our bank has a rubric of this kind. Here is that of the most general question:

# %%
question = bank["walk-me-through"]
print(question.question)
for level in ms.interview.LEVELS:
    print(f"\n{level}")
    for point in question.level(level):
        print(f"  - {point}")

# %% [markdown]
# Two more lists belong to it: what raises an interviewer's opinion, and what lowers it sharply. We say that the latter *sinks*
# a candidate, and in our grading each such point costs a level.

# %%
for name, tells in (("raises", question.raises), ("sinks", question.sinks)):
    print(name)
    for tell in tells:
        print(f"  - {tell}")

# %% [markdown]
# ## Three answers
#
# Three candidates answer this question. Read their answers slowly, because you will grade them.
#
# **Ada.** "Large models are slow because they have to read all their weights from memory for every token. So you take a small
# model and a large one. The small one proposes a few tokens, and the large one checks all of them in one forward pass. Tokens
# it agrees with are kept, and the first one it disagrees with is replaced by its own. So you get the large model's output with
# fewer of its passes. Medusa does it without a second model, I think."
#
# **Ben.** "A decode step reads every weight from memory and uses it for one multiplication and one addition per sequence,
# so it takes as long as the reading. A forward pass over five tokens reads the weights once too, so at small batches it takes
# about as long. So I can have several tokens checked for the price of one. A cheap drafter, which can be a small model, an n-gram
# lookup or heads on the target, proposes $k$ tokens. The target runs on them in a single pass and gives its distribution
# $p$ at every position. Draft token $x$ is accepted with probability $\min(1, p(x)/q(x))$, where $q$ is the distribution
# it was sampled from. At the first rejection I sample from the residual, $p - q$ clipped at zero and normalised, and
# stop. If all are accepted, I sample one bonus token. It is exact: a token is emitted as an accepted one with probability
# $\min(p, q)$ or as a replacement with $[p - q]_+$, and these add up to $p$. If each draft token is accepted with
# probability $\alpha$, a cycle emits $1 + \alpha + \dots + \alpha^k$ tokens on average, which is $(1 - \alpha^{k+1})/(1 -
# \alpha)$."
#
# **Cleo** says what Ben says, and goes on. "So the speed-up is $E[N] / (k c + v)$, where $c$ is the cost of a draft step
# and $v$ that of verification, both in plain decode steps. With $\alpha = 0.7$, $k = 4$ and $c = 0.1$ that is about two,
# as long as $v$ is one. Once the batch makes verification compute-bound, $v$ rises. For eight billion parameters on an
# H200 and short contexts the roofline says break-even at a batch of about ninety for this $k$; I would measure that,
# and let the server shorten drafts under load. After a rejection both caches count only up to the last accepted token, and
# the replacement enters with the next pass. In a paged server the scheduler reserves slots for the draft tokens before the
# pass. After it, it corrects the number of computed tokens, and the slots of the rejected ones are overwritten later. I would
# monitor acceptance by position. Drafters differ in what they cost and how often they are right: n-grams cost almost nothing
# and work where the output copies the input, and a draft model is general but expensive. Medusa's heads guess all positions
# at once from the target's last hidden state. That is cheap, but no head knows which tokens the others chose, so they get
# worse with depth. EAGLE runs one small layer once per draft token, on the target's hidden states and the tokens drafted so
# far, so its tokens are accepted more often, and it pays with $k$ sequential steps."

# %% [markdown]
# ## Grade them
#
# For each candidate, tick the points of the rubric that you heard. The lengths of the answers give the levels away, so do not
# grade by level: for each point find the words that earn it, and tick it only then. A level is reached with two thirds as
# many points as it has, where points of higher levels count too, because depth shows the basics. L6 also wants half of all
# points, and each point that sinks a candidate costs a level ([`reached`](../minispec/course/interview/question.py) counts
# this way). A real interviewer does not count like this. We do, because
# counting keeps you honest when you grade yourself.

# %% tags=["nbval-ignore-output"]
grades = Grading(question)
grades

# %% [markdown]
# ## Compare
#
# The next cell shows your grades beside ours. Where they differ, read the answer again before you decide which is right.

# %% tags=["spoiler"]
grades.compare()

# %% [markdown]
# <details><summary>Why we graded them like this (open it after you have compared)</summary>
#
# Nothing that Ada says is wrong, and her first sentence and the name of one variant save her from two points that sink. But
# she was asked to walk through the method, and she gives neither the acceptance rule nor the reason why the check is cheap.
# Ben begins with the bottleneck, so everything after that follows from it. Cleo adds a formula with a number, a limit with its
# conditions, and what she would do about it.
# </details>
#
# Suppose that Ben had closed with "so it approximates the large model". That is a single wrong word, but it concerns the very
# point of the method:

# %% tags=["spoiler"]
print("Ben, with that sentence:", grades.level_with("Ben", question.sinks[0]))

# %% [markdown]
# If the interviewer asks back "exact bit for bit?", the precise answer is that the output *distribution* is exactly the
# target's, up to floating point (lesson 14). Saying so does not sink a candidate; calling the method an approximation does.
#
# ## Which numbers should you know?
#
# A number in the right order of magnitude, derived on the spot, convinces more than a paragraph. You need few constants and
# the formulas of the course. All of these are computed here, from [`theory`](../minispec/theory.py).
#
# **The bottleneck.** The H200 appears twice: with the bandwidth and FLOP/s that we measured, and with those of its data sheet.

# %%
data_sheet = theory.Hardware("H200, bf16, data sheet", bandwidth=4.8e12, flops=989e12)
for gpu in (theory.H200, data_sheet):
    print(f"{gpu.name:23} {gpu.bandwidth / 1e12:.1f} TB/s, {gpu.flops / 1e12:.0f} TFLOP/s", end=", ")
    print(f"ridge point {gpu.flops / gpu.bandwidth:.0f} FLOP per byte", end=", ")
    print(f"a decode pass that reads 8 B parameters: {1e3 * 2 * 8e9 / gpu.bandwidth:.1f} ms")

# %% [markdown]
# **Speculation.** The next table is for $k = 4$ and a small batch ($v = 1$), with $c = 0.1$. The limit is that of the tokens per
# cycle for $k \to \infty$, $1/(1 - \alpha)$.

# %%
for alpha in (0.4, 0.6, 0.7, 0.8):
    tokens, limit = theory.expected_tokens(alpha, 4), 1 / (1 - alpha)
    speedup = theory.speedup(alpha, 4, 0.1)
    print(f"α = {alpha}: {tokens:.2f} tokens per cycle, limit {limit:.2f}, speed-up {speedup:.2f}")

# %% [markdown]
# **The server.** The same $\alpha = 0.7$, $k = 4$ and $c = 0.1$ at larger batches, where verification becomes compute-bound and
# $v$ rises: 8 B parameters on the H200 as measured, by the roofline. Reading the cache is ignored, so this is for short
# contexts. It is Cleo's break-even.

# %%
for batch in (1, 64, 90, 128):
    v = theory.verify_cost(theory.H200, 8e9, 4, batch)
    print(f"batch {batch:3d}: v = {v:.2f}, speed-up {theory.speedup(0.7, 4, 0.1, v):.2f}")

# %% [markdown]
# ## Predict
#
# Do this one in your head: Llama 3.1 8B has 32 layers and 8 KV heads of width 128, in bf16. How much cache do 32 requests of
# 4,096 tokens need?

# %% tags=["nbval-ignore-output"]
gigabytes = viz.predict("Cache of 32 requests of 4,096 tokens?", "GiB")
gigabytes

# %% [markdown]
# ## Run
#
# Say it in steps, as you would at a whiteboard.

# %% tags=["spoiler"]
per_token = 2 * 32 * 8 * 128 * 2  # keys and values, layers, KV heads, width, bytes per value
print(f"per token:   2 · 32 · 8 · 128 · 2 bytes = {per_token:,.0f} bytes")
print(f"per request: · 4,096 = {per_token * 4096 / 2**30:.2f} GiB")
total = 32 * 4096 * per_token / 2**30
print(f"in all:      · 32 = {total:.0f} GiB")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler"]
gigabytes.reveal(total)

# %% [markdown]
# In a conversation the first digit is enough, if you say how you got it. The drill is stricter, so use paper there: an answer
# counts if it is off by at most five per cent, or by no more than the rounding of the printed answer. The numbers that the next
# cell prints are worth knowing by heart. They are also on the [cheat sheet](../docs/cheatsheet.md), one page with the formulas, the drafters and what sinks a
# candidate. Print it, learn it, and leave it at home.

# %%
print(numbers_table(bank, 12))

# %% [markdown]
# ## The drill
#
# Choose topics, levels and minutes, and start. You are shown a question and answer it **aloud** (or type key words). Then you
# see the rubric and tick what you really said; numbers are graded for you. Questions that went badly come back soon, and those
# that went well come back late. Your progress stays in a file on this machine. In a terminal the drill is `minispec drill`.

# %% tags=["nbval-ignore-output"]
ms.interview.drill(topics=["speed"], minutes=10)

# %% [markdown]
# Things to try
#
# - Speak before you look, because once you have read a rubric, every answer feels familiar.
# - Tick a point only if a stranger would have heard it. What you meant to say does not count.
# - Answer the follow-ups before you reveal anything, because they are what separates the levels.

# %% [markdown]
# ## The mock interview
#
# It has two questions with follow-ups, one derivation with random numbers, and one exercise to code, in 45 minutes. At the end
# there is a report with points for each part and a reading list. The seed fixes what is asked, so two people can sit the same
# interview and compare. In a terminal it is `minispec mock`. It is not part of the 40 minutes, so run this cell when you have 45
# minutes to yourself.

# %% tags=["nbval-ignore-output"]
ms.interview.mock(seed=14)

# %% [markdown]
# Better still, do it in pairs: one asks and ticks, the other talks, and then you swap. Grading somebody else shows you what
# your own answers sound like.
#
# ## How to build an answer
#
# **Start with the bottleneck.** Which resource is short: memory bandwidth, arithmetic, memory capacity, or the link between
# GPUs? Most questions of this course follow from that one sentence.
#
# **Then the mechanism,** in the order in which it happens, with a sketch of one cycle, one block table or one step.
#
# **Then a number.** State your assumptions, round boldly, and get the first digit right.
#
# **Then the limit.** Say when it stops helping, how you would measure that, and what you would do then.
#
# If you do not know something, say what you would compute to find out. If the question is vague, ask which of two things is
# meant. If you notice a slip, correct it aloud. All three are usually taken as good signs.

# %% [markdown]
# ## Where to look things up
#
# The table lists every topic of the bank with its lessons and its questions.

# %%
Markdown(topics_table(bank))

# %% [markdown]
# ## In production
#
# Interviewers who run such systems often ask about the problems they have had: why a benchmark's speed-up vanished under load,
# what filled the memory, why the tail latency rose when the mean fell, how a change was rolled out and taken back. So read the
# metrics page of one real server before the day. vLLM's counts running and waiting requests, cache usage, preemptions, draft
# tokens, and accepted tokens per position. For each of these, know what you would look at first if it doubled overnight while
# the traffic stayed the same.

# %% [markdown]
# ## Check yourself
#
# <details><summary>You are asked how speculative decoding works. What is your first sentence?</summary>
#
# One about the bottleneck: at small batches a decode pass is limited by reading the weights from memory, so a forward pass over
# several tokens takes about as long as a pass over one. The rest of the method follows from that.
# </details>
#
# <details><summary>Your answer makes two thirds of the L4 points, one third of the L5 points and all L6 points. Which level is
# that?</summary>
#
# It is L6, if these are at least half of all points: points of a higher level count for the lower ones as well, so the L6 points
# also reach L5. The L6 points alone would be L5 only.
# </details>
#
# <details><summary>The interviewer says: "We measured a speed-up of 2 at batch 1 and 0.8 in production." What do you
# ask?</summary>
#
# First, how many requests share a pass there and how long their contexts are, because that determines $v$. Then the acceptance
# on production prompts at the production temperature, which determines $E[N]$. Then what else changed: kernels, CUDA graphs,
# and the memory that the drafter took away from the batch.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Leviathan, Kalman, Matias, 2023: *Fast inference from transformers via speculative decoding*
#   ([arXiv:2211.17192](https://arxiv.org/abs/2211.17192)): the paper to know best; be able to derive its section 3.
# - Kwon et al., 2023: *Efficient memory management for large language model serving with PagedAttention*
#   ([arXiv:2309.06180](https://arxiv.org/abs/2309.06180)): the one to know next.
# - Pope et al., 2023: *Efficiently scaling transformer inference*
#   ([arXiv:2211.05102](https://arxiv.org/abs/2211.05102)): how most capacity questions are computed.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - `minispec drill` asks `walk-me-through` and, of this lesson's own, `ten-times-cheaper`, `low-latency-chat`,
#   `capacity-plan`, `cost-per-million`, `explain-to-a-manager`.
# - `minispec mock`, once per day until the interview. The [syllabus](../docs/syllabus.md) has a plan for a week.
# - The [glossary](../docs/glossary.md), for words that you have forgotten, and the [cheat sheet](../docs/cheatsheet.md).
# - [Exercises 18](../exercises/18_capstone.ipynb): the capstone, which has no lesson of its own. You build speculative
#   decoding once more, by yourself.
