# %% [markdown]
# # 17 Interview day
#
# *Time:* 50 minutes · *Before this:* [10 EAGLE and DFlash](10_eagle_and_dflash.ipynb), [11 speculation in a server](11_speculation_in_a_server.ipynb), [16 beyond one GPU](16_beyond_one_gpu.ipynb) · *Practice:* `minispec drill` (10 minutes each) and `minispec mock` (45 minutes), as often as you like; the 50 minutes include one drill and no mock interview
#
# You know the material, and now you explain it aloud, to somebody who asks follow-up questions, with a clock running. That is a
# skill of its own, and it improves with practice. So this lesson asks what an interviewer listens for, and lets you grade three
# answers before you give your own.
#
# You will be able to
#
# - say what separates an L4 answer from an L5 and an L6 answer to the same question;
# - grade your own answers against a rubric, honestly;
# - give a number to one significant figure in your head, and to five per cent with paper;
# - build an answer, whether the question is about speed or about correctness, and open a design, a coding and an experience
#   round;
# - sit a mock interview, for which you need 45 minutes more, and decide by its page what to repeat.

# %%
from IPython.display import Markdown

from minispec import theory
from minispec_course import interview, viz
from minispec_course.interview.mock_interview import ROUNDS
from minispec_course.interview.question import bars
from minispec_course.interview.widget import Grading

bank = interview.load()

# %% [markdown]
# ## What does an interviewer listen for?
#
# An interviewer tries to find out how far you can go on your own. We borrow the names L4, L5 and L6 for a mid-level, a senior
# and a staff engineer; companies number their levels differently.
#
# | | you are asked | the answer shows that |
# |---|---|---|
# | **L4**, mid-level | what | you can say what it is, name the parts, and name the bottleneck |
# | **L5**, senior | why and how | you can derive it, build it, and say what it costs |
# | **L6**, staff | when, and what else | you can decide: where it stops working, with a number, what you would choose, and what you would measure first |
#
# Each level rests on the one below it. An answer about scheduling at scale that gets the acceptance rule wrong is not an L6
# answer, because the interviewer cannot trust the rest of it. And no company decides a level by one question: it is decided over
# all interviews of the day, and by the scope of what you have done before. A rubric can only say what one answer showed.
#
# Every question of our bank has a rubric of this kind. Here is that of the most general question:

# %%
question = bank["walk-me-through"]
lines = [f"*{question.question}*"]
for level in interview.LEVELS:
    lines += ["", f"**{level}**", ""]
    for point in question.level(level):
        lines.append(f"- {point}" + " (must-have)" * (point in question.must_haves))
Markdown("\n".join(lines))

# %% [markdown]
# Two more lists belong to it. What *raises* an interviewer's opinion is not counted; it decides when somebody is between two
# levels. What *sinks* a candidate costs a level each. These are things said, not things left out: to an open question silence
# means little, so an interviewer asks, and only then is the silence an answer.

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
# **Ben.** "A decode step reads every weight from memory and does hardly any arithmetic with it, so it takes as long as the
# reading. A forward pass over five tokens reads the weights once too, so at small batches it takes about as long, and I can have
# several tokens checked for the price of one. At large batches it is compute-bound, and they are no longer free. A cheap
# drafter, say a small model, proposes $k$ tokens. The target runs on them in a single pass and gives its distribution $p$ at
# every position. Draft token $x$ is accepted with probability $\min(1, p(x)/q(x))$, where $q$ is the distribution it was sampled
# from. At the first rejection I sample from the residual, $p - q$ clipped at zero and normalised, and stop. If all are accepted,
# I sample one bonus token from $p$.
#
# "It is exact. A token is emitted as an accepted one with probability $\min(p, q)$. The chance of a rejection is just the mass
# that the residual is divided by, so the two cancel, and as a replacement it is emitted with $[p - q]_+$. These add up to $p$.
# If each draft token is accepted with probability $\alpha$, independently, which is an approximation because acceptance tends to
# fall with the position, a cycle emits $(1 - \alpha^{k+1})/(1 - \alpha)$ tokens on average. Divided by $k c + v$, the costs of
# drafting and verifying in plain decode steps, that is the speed-up."
#
# **Cleo** says what Ben says in his first paragraph, which takes her a minute. Then she stops, and a conversation begins.
#
# > **Cleo.** "That is one cycle, and the output has exactly the target's distribution. Shall I go into the proof, or into what
# > it gains?"
# >
# > **Interviewer.** "The proof, in two sentences."
# >
# > **Cleo.** "A token arrives by acceptance with probability $\min(p, q)$, and by replacement with $[p - q]_+$, because the
# > chance of rejecting equals the mass that the residual is divided by. Together that is $p$, at every position, given what was
# > emitted before."
# >
# > **Interviewer.** "And what does it gain?"
# >
# > **Cleo.** "If every draft token is accepted with the same $\alpha$, a cycle emits $(1 - \alpha^{k+1})/(1 - \alpha)$ tokens, and
# > the speed-up is that over $k c + v$: draft steps and verification, in plain decode steps. With $\alpha = 0.7$, $k = 4$ and
# > $c = 0.1$ that is 2.77 over 1.4, about two, as long as $v$ is one. Real acceptance usually falls with the position, so I would
# > put measured values in."
# >
# > **Interviewer.** "When is $v$ not one?"
# >
# > **Cleo.** "When the batch makes verification compute-bound. For eight billion parameters on an H200 and short contexts the
# > roofline says break-even at a batch of about ninety for this $k$. I would measure that crossing, shorten drafts below it and
# > switch them off above. For a batch API with short prompts that keeps its GPUs full I would not build it at all. Long contexts
# > are another matter, because then most of a pass is reading caches, which takes as long with drafts as without."
# >
# > **Interviewer.** "What has to change in the server?"
# >
# > **Cleo.** "After a rejection both caches count only up to the last accepted token, and the replacement enters with the next
# > pass. The scheduler reserves slots for the draft tokens before the pass. After it, it corrects the number of computed tokens,
# > and the slots of the rejected ones are overwritten later."
# >
# > **Interviewer.** "Which drafter would you take?"
# >
# > **Cleo.** "For code edits n-grams first: they cost almost nothing, and the output copies the input. For general chat EAGLE. It
# > runs one small layer per draft token, starting from the target's hidden states, and from the second step on from its own
# > predictions of them, plus the tokens drafted so far. So acceptance is high but falls with depth, and it pays with $k$ sequential
# > steps. Medusa's heads guess all positions at once, which is cheaper, but no head knows what the others chose. A tree on top
# > verifies several continuations in one pass. It accepts more and has more tokens to verify, so it loses first as the batch
# > grows."
# >
# > **Interviewer.** "Say we do it. What happens first?"
# >
# > **Cleo.** "Before we build anything, I replay production prompts at our temperature and look at acceptance by position. Then one
# > percent of the traffic, against a control group at the same load: time per token, median and tail. It has an owner and a switch,
# > and we write down beforehand which numbers would make us turn it off."

# %% [markdown]
# Ben speaks for about a minute and a half, which is as long as an answer should be before you stop and let the interviewer
# choose. Cleo never speaks for more than a minute at a time, and she is led to what the interviewer wants to know. Most L6
# points are earned like this: in answers to follow-up questions, half a minute each.
#
# ## Grade them
#
# For each candidate, tick the points of the rubric that you heard. The lengths of the answers give the levels away, so do not
# grade by level: for each point find the words that earn it, and tick it only then. This is how the ticks are counted:

# %%
print(bars(question))

# %% [markdown]
# So points of a higher level also count for the lower ones, because depth shows the basics, with two exceptions. A must-have
# point has to be made itself: whoever does not give the acceptance rule, or does not say that the method is exact, stays at L4.
# And depth alone is not L6, which also wants most of the L5 points. Each point that sinks costs a level, and whoever does not
# reach L4 is *below L4*. ([`reached`](../minispec_course/interview/question.py) counts this way for every question of the bank.)
# A real interviewer does not count like this. We do, because counting keeps you honest when you grade yourself.

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
# **Ada** names the bottleneck but concludes nothing from it: she does not say why checking five tokens costs no more than generating
# one. Her rule, keep what it "agrees with", is right for greedy decoding only, and we would ask "and with sampling?". We gave her
# "the output follows the large model's distribution" for "you get the large model's output", and you may well disagree: she is L4
# with or without it.
#
# **Ben** names the same bottleneck, and everything else follows from it: five tokens for one reading, and what ends that. He
# gives the rule with its residual and the bonus, a proof whose terms cancel, and both formulas. But he puts no number in, and
# nothing he says tells us what he would do on Monday. We did not give him the L6 point on drafters for "say a small model".
#
# **Cleo** adds a limit with its conditions and the decision that follows from it ("I would not build it at all"), a drafter for
# each kind of traffic, and the first measurement ("acceptance by position"). The point on drafters wants three of four; she
# compares all four.
# </details>
#
# Suppose that Ben had closed with "so it approximates the large model". That is a single wrong word, but it concerns the very
# point of the method:

# %% tags=["spoiler"]
print("Ben, with that sentence:", grades.our_grading("Ben", question.sinks[0]).level)

# %% [markdown]
# If the interviewer asks "exact bit for bit?", the precise answer is that the output *distribution* is exactly the target's, up
# to floating point (lesson 14). Saying so does not sink a candidate; calling the method an approximation does.
#
# ## Which numbers should you know?
#
# A number to one significant figure, derived on the spot, convinces more than a paragraph. For that you need few constants and
# the formulas of the course. These are the constants to know by heart, from data sheets; bandwidths between GPUs are per GPU and
# in one direction (data sheets add up both directions):

# %%
B200 = theory.Hardware("B200, bf16, data sheet", bandwidth=8e12, flops=2250e12)  # dense, as all of these
for gpu, gigabytes_of_memory in ((theory.H100, 80), (theory.H200_SHEET, 141), (B200, 180)):
    print(f"{gpu.name:27} {gigabytes_of_memory:3d} GB, {gpu.bandwidth / 1e12:.2f} TB/s", end=", ")
    print(f"{gpu.flops / 1e12:5,.0f} TFLOP/s: ridge point {theory.balance_point(gpu):.0f} FLOP per byte")
print()
for what, value in {
    "bytes per parameter": "2 in bf16, 1 in FP8: 70 B parameters are 140 GB or 70 GB",
    "FLOP per parameter and token": "2, in prefill and in decode",
    "NVLink": "450 GB/s (H100, H200), 900 GB/s (B200)",
    "PCIe 5.0 × 16": "64 GB/s",
    "network": "400 Gb/s per adapter, so 50 GB/s",
}.items():
    print(f"{what:28} {value}")
for name, layers in (("8B", 32), ("70B", 80)):
    kib = theory.kv_bytes_per_token(layers, kv_heads=8, head_dim=128) / 1024
    shape = f"{layers} layers, 8 KV heads of width 128"
    print(f"{f'cache of Llama 3.1 {name}':28} {kib:.0f} KiB per token ({shape})")

# %% [markdown]
# In a conversation quote the data sheet's ridge point, which is what the interviewer has in mind, and add that practice stays
# below it. On the H200 that we measured, these were the shares of the data sheet:

# %%
real, sheet = theory.H200, theory.H200_SHEET
ridge, promised = theory.balance_point(real), theory.balance_point(sheet)
print(f"bandwidth {real.bandwidth / sheet.bandwidth:.0%}, FLOP/s {real.flops / sheet.flops:.0%}", end=", ")
print(f"so the ridge point is {ridge:.0f} instead of {promised:.0f}")

# %% [markdown]
# Everything else you derive. Cover the right side and try, for eight billion parameters on an H100:

# %%
decode, prefill = theory.pass_time(theory.H100, 8e9), theory.pass_time(theory.H100, 8e9, tokens=1000)
free, room = theory.free_tokens(theory.H100), 80e9 - 2 * 8e9
fit = room / theory.kv_bytes(1, 4096, theory.kv_bytes_per_token(32, 8, 128))
for what, value in {
    "a decode pass at batch 1": f"{1e3 * decode:.1f} ms (16 GB / 3.35 TB/s)",
    "tokens per second at batch 1": f"{1 / decode:.0f} at most, without speculation",
    "prefill of 1,000 tokens": f"{1e3 * prefill:.0f} ms at best (2 · 8e9 · 1,000 FLOP / 989 TFLOP/s)",
    "batch from which it is compute-bound": f"{free:.0f}, and with four draft tokens each {free / 5:.0f}",
    "room for the cache": f"{room / 1e9:.0f} GB, for {fit:.0f} requests of 4,096 tokens at most",
}.items():
    print(f"{what:37} {value}")

# %% [markdown]
# **Speculation.** The next table is for $k = 4$ and a small batch ($v = 1$), with $c = 0.1$. The limit is that of the tokens per
# cycle for $k \to \infty$, $1/(1 - \alpha)$.

# %%
for alpha in (0.4, 0.6, 0.7, 0.8):
    tokens, limit = theory.expected_tokens(alpha, 4), theory.token_ceiling(alpha)
    speedup = theory.speedup(alpha, 4, 0.1)
    print(f"α = {alpha}: {tokens:.2f} tokens per cycle, limit {limit:.2f}, speed-up {speedup:.2f}")

# %% [markdown]
# **The server.** The same $\alpha = 0.7$, $k = 4$ and $c = 0.1$ at larger batches, where verification becomes compute-bound and
# $v$ rises: 8 B parameters on the H200 as measured, by the roofline. Without context, that is, when the caches are too short to
# matter, it is Cleo's break-even.

# %%
cache = dict(kv_bytes=theory.kv_bytes_per_token(32, 8, 128), attention_width=32 * 32 * 128)
for batch in (1, 64, 90, 128):
    for context in (0, 4096):
        v = theory.verify_cost(theory.H200, 8e9, 4, batch, context=context, **cache)
        print(f"batch {batch:3d}, {context:5,} tokens of context: v = {v:.2f}", end=", ")
        print(f"speed-up {theory.speedup(0.7, 4, 0.1, v):.2f}")

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
read = theory.pass_bytes(8e9, batch=32, context=4096, kv_bytes=per_token)
print(f"A decode pass then reads {read / theory.pass_bytes(8e9):.1f} times the bytes of the weights.")

# %% [markdown]
# The number is only half of the answer. The follow-up is "so what?", and here it is that the cache has become as large as the
# weights. Every decode step reads both, so it takes twice as long as the weights alone suggest, and a break-even that ignores the
# cache is too pessimistic, as the table above shows for long contexts.
#
# When you speak, one significant figure is enough, if you say how you got it. The drill is stricter, so use paper there: an
# answer counts if it is off by at most five per cent, or by no more than the rounding of the printed answer. Formulas, drafters
# and more numbers are on the [cheat sheet](../docs/cheatsheet.md). Print it, learn it, and leave it at home.
#
# ## How to build an answer
#
# Most questions are about **speed, memory or cost**. Then go in this order:
#
# 1. *The bottleneck.* Which resource is short: memory bandwidth, arithmetic, memory capacity, or the link between GPUs?
# 2. *The mechanism,* in the order in which it happens, with a sketch of one cycle, one block table or one step.
# 3. *A number.* State your assumptions, round boldly, and say what you rounded.
# 4. *The limit.* Say when it stops helping, how you would measure that, and what you would do then.
#
# Other questions are about **correctness**: is it exact, is this sampler right, may we drop these tokens? To begin these with
# memory bandwidth sounds rehearsed. Here the order is
#
# 1. *The claim,* in one sentence: what is equal to what, and in which sense.
# 2. *The reason,* in one line of algebra.
# 3. *The assumption* that is most easily broken, such as a $q$ that is not the distribution the token was sampled from.
# 4. *The test* that would find it, and what that test cannot see.
#
# Stop after a minute or a minute and a half, and offer two ways to go on. If you do not know something, say what you would
# compute to find out. If the question is vague, ask which of two things is meant. If you notice a slip, correct it aloud. All
# three are usually taken as good signs.
#
# ## The drill
#
# The next cell has chosen a topic and ten minutes for you; change them there if you like, run it, and press *begin*. You are
# shown a question and answer it **aloud**. Typing key words is possible and not needed: Enter submits, and Shift+Enter begins a
# new line. Then the rubric appears beside what you typed, and you tick what you really said. Numbers are checked for you, and
# a wrong one is answered with its formula. Questions that went badly come back soon, and those that went well come back late;
# your progress stays in a file on this machine.
#
# In a terminal the drill is `minispec drill`. For ten minutes a day there is the daily practice, `minispec drill --daily`:
# numbers only, those that are due and others that are new every time.

# %% tags=["nbval-ignore-output"]
interview.drill(topics=["speed"], minutes=10)

# %% [markdown]
# Things to try
#
# - Speak before you look, because once you have read a rubric, every answer feels familiar.
# - Tick a point only if a stranger would have heard it. What you meant to say does not count.
# - Answer the follow-ups before you reveal anything, because they are what separates the levels.

# %% [markdown]
# ## The other rounds
#
# So far everything was one kind of interview, about concepts. On the day there are usually several, and for senior and staff
# candidates the design and the talk about their own work often decide. These are the rounds that the mock interview knows, with
# their minutes:

# %%
for name, minutes in ROUNDS.items():
    print(f"{name:11} {minutes} minutes")

# %% [markdown]
# **Design.** You are given one sentence, such as "serve an 8B chat model to a million users", and a whiteboard. A skeleton that
# carries nearly every case:
#
# 1. *Ask* (five minutes): how many requests, how long are prompts and outputs, which targets for TTFT and TPOT, which hardware,
#    what may it cost?
# 2. *Size it:* bytes of the weights, bytes of cache per request, so requests per GPU; then the time of one decode step.
# 3. *Choose* parallelism and batch from these numbers, and say what they leave of the targets.
# 4. *Decide about the extras,* each with its reason: prefix caching, quantisation, chunked prefill, and speculation or not.
# 5. *Measure:* which three numbers are on the dashboard, and at which value somebody is woken up.
# 6. *Roll out,* and say how you roll back. Then name the weakest part of your design before the interviewer does.
#
# **Coding.** Repeat the task in your own words and ask about the edge cases. Write one small test with its expected value first,
# say each idea before you type it, and keep something that runs; cost and larger inputs come afterwards. The
# [ten functions of exercises 17](../exercises/17_interview_day.ipynb) are what the mock's coding round sets. The bank's questions
# of the topic `coding` are talked through beside them, without an editor.
#
# **Experience.** You are asked about your own work, for half an hour, in depth. Prepare two projects, each with the problem, a
# number before and after, the decision that was yours, what went wrong, and what you would do differently. Somebody who says
# "we" throughout will be asked who it was.
#
# ## The mock interview
#
# You have graded three candidates; now it is your turn. Choose a level and a round in the cell below. The interviewer asks, follows
# up and pushes back. A design begins with one sentence, and you say what you would ask; then you are given the requirements and
# work it out, and half-way one of them changes. A concept round ends with a derivation, a number at each step. In the coding round
# you are given a notebook with one function to write, and *check* runs its tests.
#
# Answer **aloud**, as you would on the day, and then type what you said in the form of notes. That makes it a rehearsal of structure
# and not of speech. For speech, hold at least one interview with a partner: one asks and ticks, the other talks, and then you
# swap. Alone, record yourself and grade the recording. Grading somebody else shows you what your own answers sound like.
#
# After each question the clock stops, and you see the rubric beside your own words. You grade yourself as you graded Ada, Ben
# and Cleo: find the words that earn a point, and tick it only then. No program here reads prose; only numbers and code are checked
# for you. At the end there is a page, which is also kept as `exams/mock-1.md`: what you ticked by level and topic, which topics to
# drill and what to read, and all your answers with the points that you made and missed. Read it again after a night's sleep.
#
# Nothing is timed until you press *begin*. Every interview asks something else; to compare with a friend, give both the same
# `seed`. In a terminal it is `minispec mock --format design --level L6`, and if you stop early with Ctrl-C, the page is kept too.

# %% tags=["nbval-ignore-output"]
interview.mock(level="L5", format="concept")  # add seed=14, and two people are asked the same

# %% [markdown]
# ## The last week
#
# The [syllabus](../docs/syllabus.md#an-interview-in-a-week) has a plan for a week in which you read the course. If you have
# read it and the interview is in a week:
#
# | days | do | and |
# |---|---|---|
# | 1, 2 | the fifteen questions below, aloud, until each takes a minute | the constants above |
# | 3 | the proof and the speed-up on an empty sheet of paper | `minispec drill --daily`, from now on every day |
# | 4 | `minispec mock --format design`, with pen and paper | two own projects in writing |
# | 5 | two functions of [exercises 17](../exercises/17_interview_day.ipynb), talking while you type | the topics that the page of your mock names |
# | 6 | one spoken interview with a partner, or recorded | three questions that you will ask them |
# | 7 | the [cheat sheet](../docs/cheatsheet.md), once | an early night |
#
# These are the questions to be able to answer in your sleep:

# %%
FIFTEEN = """decode-memory-bound kv-size paged-attention continuous-batching walk-me-through
verify-in-one-pass prove-lossless residual-not-p expected-tokens speedup-formula batch-effect
proposers eagle when-to-turn-off production-metrics""".split()
Markdown("\n".join(f"1. {bank[id].question} `{id}`" for id in FIFTEEN))

# %% [markdown]
# Any question can be looked up by the name after it. Answer first, then open the fold:

# %%
Markdown(interview.card(bank["prove-lossless"]))

# %% [markdown]
# And this is the whole bank: every topic with its lessons and its questions.

# %%
Markdown(f"<details><summary>{len(bank)} questions</summary>\n\n{interview.topics_table(bank)}\n\n</details>")

# %% [markdown]
# ## In production
#
# Interviewers who run such systems often ask about the problems they have had: why a benchmark's speed-up vanished under load,
# what filled the memory, why the tail latency rose when the mean fell, how a change was rolled out and taken back. So read the
# metrics page of one real server before the day, for example [vLLM's](https://docs.vllm.ai/en/stable/usage/metrics/). It counts
# running and waiting requests, cache usage, preemptions, draft tokens, and accepted tokens per position. For each of these, know
# what you would look at first if it doubled overnight while the traffic stayed the same.
#
# <details><summary>One of them, worked out: preemptions doubled</summary>
#
# A request is preempted when the block pool is empty, so look at the cache usage first. If it touches the ceiling, either the
# requests need more blocks or there are fewer of them. More: look at the output lengths, because a new prompt or model that
# writes longer answers holds its blocks for longer. Fewer: look at what was deployed, because a new drafter takes memory for its
# weights and its cache away from the pool, and a longer $k$ reserves more slots. If the usage is below the ceiling on average,
# plot its peaks instead. What to do at once: admit fewer requests at a time, because each preemption computes a prefill again.
# </details>

# %% [markdown]
# ## Check yourself
#
# <details><summary>You are asked how speculative decoding works. What is your first sentence?</summary>
#
# One about the bottleneck: at small batches a decode pass is limited by reading the weights from memory, so a forward pass over
# several tokens takes about as long as a pass over one. The rest of the method follows from that.
# </details>
#
# <details><summary>Your answer earns all L4 points, no L5 points and all L6 points. Which level is that?</summary>
#
# L4, where a must-have point is among the L5 points, as here: the acceptance rule was not given, and no remark about servers makes
# up for that. For a question without must-have points it is L5, because the L6 points count for L5 as well. It is never L6.
# </details>
#
# <details><summary>The interviewer says: "We measured a speed-up of 2 at batch 1 and 0.8 in production." What do you
# ask?</summary>
#
# First, what exactly was measured: time per token of a request or throughput, mean or tail, at the same load, and against which
# baseline? Then how many requests share a pass there and how long their contexts are, because that determines $v$. Then the
# acceptance on production prompts at the production temperature, which determines $E[N]$. Then what else changed: kernels, CUDA
# graphs, and the memory that the drafter took away from the batch. And do not end with questions: "I would plot the speed-up
# against the number of running requests, shorten $k$ as it falls, and switch drafting off beyond the crossing."
# </details>

# %% [markdown]
# ## Read the papers
#
# - Leviathan, Kalman, Matias, 2023: *Fast inference from transformers via speculative decoding*
#   ([arXiv:2211.17192](https://arxiv.org/abs/2211.17192)): the paper to know best; be able to derive its section 3, which is
#   the speed, and its appendix A.1, which is the proof.
# - Li et al., 2024: *EAGLE: speculative sampling requires rethinking feature uncertainty*
#   ([arXiv:2401.15077](https://arxiv.org/abs/2401.15077)): why the drafter is given hidden states and the sampled token, which
#   is what the follow-up on drafters is about.
# - Kwon et al., 2023: *Efficient memory management for large language model serving with PagedAttention*
#   ([arXiv:2309.06180](https://arxiv.org/abs/2309.06180)): the one to know next.
# - Pope et al., 2023: *Efficiently scaling transformer inference*
#   ([arXiv:2211.05102](https://arxiv.org/abs/2211.05102)): how most capacity questions are computed.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - `minispec drill` asks `walk-me-through` and, among those that belong to this lesson, `ten-times-cheaper`, `low-latency-chat`,
#   `capacity-plan`, `cost-per-million`, `explain-to-a-manager`.
# - `minispec mock`, every other day until the interview, and a different round each time.
# - The [glossary](../docs/glossary.md), for words that you have forgotten, and two sheets to print: the
#   [cheat sheet](../docs/cheatsheet.md) and the [system design sheet](../docs/design_sheet.md), the arithmetic of a serving budget
#   on one page. `minispec cards` makes all questions into cards.
# - [Exercises 18](../exercises/18_capstone.ipynb): the capstone, which has no lesson of its own. You build speculative
#   decoding once more, by yourself.
