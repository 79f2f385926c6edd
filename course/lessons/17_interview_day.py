# %% [markdown]
# # Interview day
#
# *Time:* 60 minutes · *Before this:* [10 EAGLE and DFlash](10_eagle_and_dflash.ipynb), [11 speculation in a server](11_speculation_in_a_server.ipynb), [16 beyond one GPU](16_beyond_one_gpu.ipynb) · *Practice:* `minispec drill` and `minispec mock`, as often as you like
#
# You know the material. Today you say it aloud, to somebody who asks back, with a clock running. That is a skill of its
# own, and it can be practised.
#
# You will be able to
#
# - say what separates an L4 answer from an L5 and an L6 answer to the same question;
# - grade your own answers against a rubric, honestly;
# - compute the numbers that come up, in your head, to the first digit;
# - sit a mock interview of 45 minutes and read its report.

# %%
from IPython.display import Markdown

import minispec as ms
from minispec import theory
from minispec.course import viz
from minispec.course.interview.cheatsheet import numbers_to_remember
from minispec.course.interview.drill import Figure, Said
from minispec.course.interview.grading import Grading
from minispec.course.interview.summary import lesson, with_unit

bank = ms.interview.load()

# %% [markdown]
# ## What is being judged
#
# Nobody counts facts. An interviewer listens for how far you can go on your own. Roughly:
#
# | | you are asked | the answer shows |
# |---|---|---|
# | **L4** | what | you can say what it is and name the parts |
# | **L5** | why and how | you can derive it, build it, and say what it costs |
# | **L6** | when, and what else | you can say where it stops working, with a number, and what you would do instead |
#
# Each level stands on the one below. An answer about scheduling at scale that gets the acceptance rule wrong is not an
# L6 answer. It is no answer.
#
# Every question of the bank has such a rubric. Here is one, the most frequent of all.

# %%
question = bank["walk-me-through"]
print(question.question)
for level in ms.interview.LEVELS:
    print(f"\n{level}")
    for point in question.level(level):
        print(f"  - {point}")

# %% [markdown]
# Two more lists belong to it: what makes an interviewer lean forward, and what ends the conversation in all but name.

# %%
for name, tells in (("raises", question.raises), ("sinks", question.sinks)):
    print(name)
    for tell in tells:
        print(f"  - {tell}")

# %% [markdown]
# ## Three answers
#
# Three candidates, one question. Read them slowly: you are the one who grades them.
#
# **Ada.** "Large models are slow because memory is slow. So you take a small model and a big one. The small one writes a
# few tokens ahead, and the big one looks at all of them in one go. What it agrees with stays. At the first token it does
# not like, it puts its own. So you get the big model's text in fewer of its passes. Medusa does it without a second
# model, I think."
#
# **Ben.** "Decoding one token reads every weight once and uses it for one multiplication, so the time is the time to
# read. Reading the weights for five tokens takes as long. That is the gap we use: a cheap drafter, a small model or a
# lookup in the text or heads on the target, writes $K$ tokens. The target reads them in a single pass and has its own
# law at each place. Draft $x$ stays with probability
# $\min(1, p(x)/q(x))$. At the first rejection I draw from what is left of $p$ above $q$, normalised, and stop. If all
# stay I draw one more. It is exact: a token comes out accepted with $\min(p, q)$, or as a replacement with
# $[p - q]_+$, and that adds up to $p$. If drafts are accepted with probability $\alpha$, a cycle writes
# $1 + \alpha + \dots + \alpha^K$ tokens."
#
# **Cleo** says what Ben says, and goes on. "So the speed-up is $E[N] / (K c + v)$. With $\alpha = 0.7$, $K = 4$ and a
# draft of a tenth of the cost, about two, while verifying is free. That ends when the batch is full: with eight billion
# weights on an H200 I would expect nothing at a hundred rows, so the server has to shorten drafts under load. After a
# rejection both caches go back to the last kept token. In a paged server that means lookahead slots before the pass and
# surplus blocks returned after it. I would watch acceptance by position. Drafters differ in two things, what they cost
# and how often they are right: n-grams cost nothing and are right where text repeats, a draft model is dear and general,
# Medusa is cheap and fades with depth, EAGLE sees the target's states and is right more often for little more."

# %% [markdown]
# ## Grade them
#
# Tick, for each candidate, the points of the rubric that you heard. A level is reached with two thirds of its points and on
# top of the levels below, and each line that sinks a candidate costs a level
# ([`Said`](../minispec/course/interview/drill.py) counts that way).

# %% tags=["nbval-ignore-output"]
grades = Grading(question)
grades

# %% [markdown]
# ## Compare
#
# Your grades, and how we would have graded. Where we disagree, read the answer again before you decide who is right.

# %% tags=["spoiler"]
grades.compare()

# %% [markdown]
# Ada is not wrong in a single word. Half a sentence about memory and one name saved her from two of the tells that sink.
# But she was asked to walk through it, and stopped at the door. Ben begins with the bottleneck: everything after that
# follows from it. Cleo adds a limit, a number and a plan.
#
# And had Ben closed with "so it approximates the large model"? One wrong word about the very point of the method:

# %%
ben = grades.our_grading("Ben")
approximate = [box.text for box in ben.item.rubric].index(question.sinks[0])
print("Ben, with that sentence:", Said(ben.item, ben.ticked | {approximate}).level)

# %% [markdown]
# ## Numbers to know
#
# A number in the right order of magnitude, derived on the spot, is worth a paragraph. You need few constants and the
# formulas of the course. All of these are computed now, from [`theory`](../minispec/theory.py).

# %%
print("The bottleneck")
print(f"  balance of an H200 in bf16: {theory.balance_point(theory.H200):.0f} FLOP per byte")
print(f"  8 B bf16 weights, one token: {1e3 * theory.pass_time(theory.H200, 8e9):.1f} ms at best")
print("The cache, per token")
print(f"  LLaMA-2-7B: {theory.kv_bytes_per_token(32, 32, 128) / 1024:.0f} KiB", end=", ")
print(f"LLaMA-2-70B with 8 KV heads: {theory.kv_bytes_per_token(80, 8, 128) / 1024:.0f} KiB")
print("Speculation")
for alpha in (0.4, 0.6, 0.7, 0.8):
    tokens, ceiling = theory.expected_tokens(alpha, 4), theory.token_ceiling(alpha)
    print(f"  α = {alpha}: {tokens:.2f} tokens a cycle at K = 4, ceiling {ceiling:.2f}", end=", ")
    print(f"best speed-up at c = 0.1: {theory.best_speedup(alpha, 0.1):.2f} with K = {theory.best_k(alpha, 0.1)}")
print("The server, α = 0.7, K = 4, c = 0.05, 8 B weights on an H200")
for rows in (1, 64, 128):
    print(f"  {rows:3d} rows: {theory.speedup(0.7, 4, 0.05, theory.verify_cost(theory.H200, 8e9, 4, rows)):.2f} ×")
print("Scale")
n, d = theory.compute_optimal(theory.training_flops(175e9, 300e9))
print(f"  GPT-3's compute, spent best: {n / 1e9:.0f} B parameters on {d / 1e12:.1f} T tokens")

# %% [markdown]
# ## Predict
#
# Without paper. LLaMA-2-70B has 80 layers and 8 KV heads of width 128, in bf16. How much cache do 32 requests of 4,096
# tokens need?

# %% tags=["nbval-ignore-output"]
gigabytes = viz.predict("Cache of 32 requests of 4,096 tokens?", "GiB")
gigabytes

# %% [markdown]
# ## Run
#
# Say it in steps, as you would at a whiteboard.

# %% tags=["spoiler"]
per_token = theory.kv_bytes_per_token(layers=80, kv_heads=8, head_dim=128)
print(f"a token:   2 · 80 · 8 · 128 · 2 bytes = {per_token:,.0f} bytes")
print(f"a request: · 4,096 = {per_token * 4096 / 2**30:.2f} GiB")
total = theory.kv_bytes(32, 4096, per_token) / 2**30
print(f"all:       · 32 = {total:.0f} GiB")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler"]
gigabytes.reveal(total)

# %% [markdown]
# The drill grades numbers by itself: within five percent, or as exactly as the text quotes it. These are the ones worth
# knowing by heart. They are also on the [cheat sheet](../docs/cheatsheet.md): one page, with the formulas, the drafters
# and what sinks a candidate. Print it, learn it, leave it at home.

# %%
for number in numbers_to_remember(bank)[:12]:
    print(f"{with_unit(number):>9}  {number.name}")

# %% [markdown]
# ## The drill
#
# Choose topics, levels and minutes, and start. You hear a question, you answer **aloud** (or type key words), then you
# see the rubric and tick what you really said. Numbers are graded for you. What went badly comes back soon, what went
# well comes back late. Your progress stays in a file on this machine. In a terminal it is `minispec drill`.

# %% tags=["nbval-ignore-output"]
ms.interview.drill(topics=["speed"], minutes=10)

# %% [markdown]
# Things to try
#
# - Speak first, look after. A rubric you have read makes every answer feel familiar.
# - Tick a point only if a stranger would have heard it. "I meant that" does not count.
# - Answer the follow-ups before you reveal anything: they are where levels are told apart.

# %% [markdown]
# ## The mock interview
#
# Two questions with follow-ups, one derivation with numbers drawn for you, one exercise to code: 45 minutes. At the end
# there is a report with points for each part and a reading list. The seed fixes what is asked, so two people can sit the
# same interview and compare. In a terminal it is `minispec mock`.

# %% tags=["nbval-ignore-output"]
ms.interview.mock(seed=14)

# %% [markdown]
# Better still, do it in pairs. One asks and ticks, the other talks. Then change places. Grading somebody else teaches
# you what your own answers sound like.
#
# ## How to answer
#
# **Bottleneck first.** Which resource is short: bytes, arithmetic, memory, or the link? Most questions of this course
# are answered by that one sentence, and the rest is working it out.
#
# **Then the mechanism,** in the order in which it happens. Draw one cycle, one block table, one step.
#
# **Then a number.** Say your assumptions, round boldly, get the first digit right.
#
# **Then the limit.** When does it stop helping? What would you measure? What would you do then?
#
# If you do not know, say what you would compute to find out. If the question is vague, ask which of two things is meant.
# Correct yourself aloud when you notice a slip. All three are good signs.

# %% [markdown]
# ## Where to look things up
#
# Every topic of the bank, with its lessons and its questions.

# %%
rows = ["| topic | lessons | questions |", "|---|---|---|"]
for topic in ms.interview.topics(bank):
    some = [question for question in bank.values() if question.topic == topic]
    names = [lesson(number) for number in sorted({question.lesson for question in some})]
    links = ", ".join(f"[{name}]({name.replace(' ', '_')}.ipynb)" for name in names)
    rows.append(f"| {topic} | {links} | {', '.join(f'`{question.id}`' for question in some)} |")
Markdown("\n".join(rows))

# %% [markdown]
# A number from the bank can be asked alone, and each is a formula you can run. For instance:

# %%
figure = Figure(bank["expected-tokens"].numbers[0], bank["expected-tokens"])
print(figure.asks[0])
print("computed by", figure.number.expression, "=", round(figure.number.computed, 2))
print("2.8 is", "right" if figure.number.matches(2.8) else "wrong", "and 3.5 is", end=" ")
print("right" if figure.number.matches(3.5) else "wrong")

# %% [markdown]
# ## In production
#
# Interviewers who run such systems ask about what hurt them. The same themes come up, whatever the stack is called:
# why a benchmark's speed-up vanished under load, what filled the memory, why the tail latency rose when the mean fell,
# how a change was rolled out and taken back. Read the metrics page of one real server before the day. vLLM's counts
# running and waiting requests, cache usage, preemptions, drafted tokens, and accepted ones by position. For each of these,
# know what you would do if it doubled overnight.

# %% [markdown]
# ## Check yourself
#
# <details><summary>You are asked how speculative decoding works. What is your first sentence?</summary>
#
# One about the bottleneck: a decode pass is limited by reading the weights, so a pass over several tokens costs about
# as much as a pass over one. The method follows from it.
# </details>
#
# <details><summary>You reach two thirds of the L4 points, one third of the L5 points and all L6 points. Which level is
# that?</summary>
#
# L4. A level counts on top of those below it.
# </details>
#
# <details><summary>The interviewer says: "We measured a speed-up of 2 at batch 1 and 0.8 in production." What do you
# ask?</summary>
#
# How many rows share a pass there, and how long their contexts are; that gives $v$. Then acceptance on production
# prompts and at the production temperature, which gives $E[N]$. Then what else changed: kernels, graphs, the memory that
# the drafter took from the batch.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Leviathan, Kalman, Matias, 2023: *Fast inference from transformers via speculative decoding*
#   ([arXiv:2211.17192](https://arxiv.org/abs/2211.17192)): the paper that is most often asked about; be able to derive
#   its section 3.
# - Kwon et al., 2023: *Efficient memory management for large language model serving with PagedAttention*
#   ([arXiv:2309.06180](https://arxiv.org/abs/2309.06180)): the second one.
# - Pope et al., 2023: *Efficiently scaling transformer inference*
#   ([arXiv:2211.05102](https://arxiv.org/abs/2211.05102)): the numbers behind most capacity questions.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - `minispec drill` asks `walk-me-through` and, of this lesson's own, `ten-times-cheaper`, `low-latency-chat`,
#   `capacity-plan`, `cost-per-million`, `explain-to-a-manager`.
# - `minispec mock`, once a day until the day. The [syllabus](../docs/syllabus.md) has a plan for a week.
# - The [glossary](../docs/glossary.md), for words that have slipped away, and the [cheat sheet](../docs/cheatsheet.md).
# - [Exercises 18](../exercises/18_capstone.ipynb): the capstone, if you want to build all of it once more, alone.
