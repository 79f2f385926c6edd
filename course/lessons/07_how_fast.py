# %% [markdown]
# # 07 How fast
#
# *Time:* 50 minutes · *Before this:* [06 rejection sampling](06_rejection_sampling.ipynb) · *Practice:* [exercises 07](../exercises/07_how_fast.ipynb)
#
# Speculative decoding leaves the distribution of the output unchanged, so the only thing it can gain is time. Three numbers
# decide how much: how often a draft token is accepted, what drafting costs, and what verifying costs. This lesson derives the
# speed-up from the three (Leviathan et al., 2023, arXiv:2211.17192), measures them on your machine, and compares the
# prediction with the clock.
#
# You will be able to
#
# - derive the expected number of tokens per cycle and the speed-up, on paper;
# - measure α, c and v on your machine, and choose the draft length k from them;
# - say when speculation loses, and which speed-up no draft of a given acceptance can exceed;
# - find out from a trace why a set-up is slow;
# - check a claim about speed before you repeat it, your own included.

# %%
import minispec as ms
from minispec import theory
from minispec.bench import measure, slower
from minispec.course import demo, viz

# %% [markdown]
# ## How many tokens does a cycle emit?
#
# A cycle drafts $k$ tokens (γ in Leviathan's paper) and verifies them in one forward pass of the target. Let $\alpha$ be the
# probability that a draft token is accepted, given that all draft tokens before it were accepted. The cycle ends with a
# correction at the first rejection, or with a bonus after all $k$ tokens. In both cases it emits one token more than it
# accepts.
#
# Call the number of emitted tokens $N$. At least $i$ draft tokens are accepted with probability $\alpha^i$, and the mean of a
# count is the sum of the probabilities that it is at least 1, at least 2, and so on. So
#
# $$E[N] = 1 + \alpha + \alpha^2 + \dots + \alpha^k = \frac{1 - \alpha^{k+1}}{1 - \alpha}$$
#
# [`expected_tokens`](../minispec/theory.py) computes this sum. The measured value is what vLLM calls the *mean
# acceptance length*.

# %% tags=["nbval-ignore-output"]
tokens_guess = viz.predict("k = 4, and each draft token is accepted with α = 0.7. How many tokens per cycle?", "tokens")
tokens_guess

# %% tags=["spoiler"]
for alpha in (0.4, 0.7, 0.9):
    print(f"α = {alpha}:", *(f"k = {k}: {theory.expected_tokens(alpha, k):.2f}  " for k in (1, 2, 4, 8, 16)))

# %% tags=["spoiler", "nbval-ignore-output"]
tokens_guess.reveal(theory.expected_tokens(0.7, 4))

# %% [markdown]
# Go through a line from left to right: each doubling of $k$ adds less than the one before. The reason is that draft token $i$
# adds $\alpha^i$ tokens on average, and this shrinks with $i$. However long the draft is, $E[N]$ stays below a **ceiling**:
#
# $$\lim_{k \to \infty} E[N] = \frac{1}{1 - \alpha}$$
#
# Every cycle takes at least one forward pass of the target. So this is also the ceiling of the speed-up, which only a
# draft that costs nothing could reach.

# %%
for alpha in (0.2, 0.5, 0.6, 0.8, 0.9):
    print(f"α = {alpha}: never more than {1 / (1 - alpha):.2f} times as fast")

# %% [markdown]
# ## What is the speed-up?
#
# Tokens per cycle are not yet time, because a cycle takes longer than a plain decoding step. We measure all times in
# units of one plain forward pass of the target, that is, a pass over a single token:
#
# | | time, in plain passes |
# |---|---|
# | drafting one token | $c = t_{draft} / t_{target}$ |
# | verifying all $k$ draft tokens in one pass | $v = t_{verify}(k + 1) / t_{target}(1)$ |
# | a cycle | $k c + v$ |
# | plain decoding of as many tokens as the cycle emits | $E[N]$ |
#
# $$S = \frac{E[N]}{k c + v}$$
#
# Many texts set $v = 1$, as if a pass over $k + 1$ tokens always took as long as a pass over one. Lesson 01 showed that
# it can take longer, so we keep $v$ in the formula. The next cell shows what difference it makes:

# %%
for v in (1.0, 1.3, 2.5):
    print(f"α = 0.7, k = 4, c = 0.1, v = {v}: {theory.speedup(0.7, 4, 0.1, v):.2f} times as fast")

# %% [markdown]
# The draft model and its acceptance are the same in all three lines. Only the cost of the verify pass changed, and that alone
# turned a gain into a loss.
#
# ## When does speculation pay?
#
# Speculation pays when $S > 1$. For $k = 1$ and $v = 1$ this can be solved by hand: $1 + \alpha > c + 1$, so speculation gains exactly when
# $\alpha > c$. For other $k$ and $v$, [`break_even`](../minispec/theory.py) finds the α at which $S = 1$ by bisection.

# %% tags=["nbval-ignore-output"]
even_guess = viz.predict("k = 4 and c = 0.1. Above which α does speculation gain, if verifying costs v = 1?")
even_guess

# %% tags=["spoiler"]
print(f"k = 1, c = 0.1: from α = {theory.break_even(1, 0.1):.2f} on")
for k, c, v in ((4, 0.1, 1.0), (4, 0.02, 1.0), (8, 0.1, 1.0), (4, 0.1, 2.9)):
    print(f"k = {k}, c = {c}, v = {v}: from α = {theory.break_even(k, c, v):.2f} on")

# %% tags=["spoiler", "nbval-ignore-output"]
even_guess.reveal(theory.break_even(4, 0.1))

# %% [markdown]
# So there is no single acceptance rate below which speculation "does not work". There is one for each combination of $k$, $c$ and
# $v$.
#
# ## Which draft length is best?
#
# One more draft token adds $\alpha^{k+1}$ tokens on average and costs $c$. It raises the speed-up as long as what it
# yields for its cost, $\alpha^{k+1} / c$, exceeds the current speed-up $E[N] / (k c + v)$. It is not enough that it
# yields more than plain decoding does. (This assumes that $v$ does not change with $k$.)
# [`best_k`](../minispec/theory.py) simply tries all lengths; 0 means that it is best not to speculate.

# %%
print("best k, and the speed-up there (v = 1)")
for alpha in (0.05, 0.3, 0.5, 0.7, 0.8, 0.9):
    best = [(c, theory.best_k(alpha, c), theory.best_speedup(alpha, c)) for c in (0.02, 0.1, 0.3)]
    print(f"α = {alpha:<5}", *(f"c = {c}: k = {k:2d}, {gain:.2f}×" for c, k, gain in best), sep="   ")

# %% [markdown]
# ## Measure the three numbers
#
# The formula needs α, c and v, so we measure them. In this run `micro` is the target, `micro-draft` is the draft model,
# and each cycle drafts four tokens. Its [`Trace`](../minispec/trace.py) records what was accepted, and how many seconds
# drafting and verifying took.

# %%
target = ms.load("micro", device="cpu")
draft = ms.load("micro-draft", device="cpu")
out = ms.speculate(target, "Once upon a time", ms.drafters.Model(draft), k=4, max_new_tokens=60, temperature=0)
plain = ms.generate(target, "Once upon a time", max_new_tokens=60, temperature=0)
print("same output as plain decoding:", out.tokens == plain.tokens)
print("fewer forward passes than tokens:", out.trace.target_passes < len(out.tokens))

# %% [markdown]
# Measuring **α** has a trap: two different rates are in use, and dashboards rarely say which one they show.
#
# - Accepted over *tested* estimates α. Draft tokens after a rejection are never tested, so they do not count here.
# - Accepted over *drafted* counts all draft tokens, so it is lower, and it falls with $k$ although the draft model is the same.
#   This is what vLLM logs as the acceptance rate.
#
# The formula needs the first, and our [`acceptance_rate`](../minispec/trace.py) is the first. Under the model of one α,
# the second follows from it:

# %%
for k in (2, 4, 8):
    accepted = theory.expected_tokens(0.8, k) - 1
    print(f"α = 0.8, k = {k}: {accepted / k:.2f} of all draft tokens are accepted")

# %% [markdown]
# **c** and **v** come from a clock. [`demo`](../minispec/course/demo.py) times plain and speculative runs in turn,
# takes medians, and divides by the time of one plain pass. Before you look, commit to a number.

# %% tags=["nbval-ignore-output"]
speedup_guess = viz.predict(
    "micro with micro-draft and k = 4 on your machine: how many times as fast as plain?", "times"
)
speedup_guess

# %% tags=["spoiler", "nbval-ignore-output"]
PROMPT, HOW = "One day, a little girl named Lily", dict(temperature=0.6, repeat=5, seconds=6)
here = demo.demo(target, ms.drafters.Model(draft), PROMPT, 48, 4, **HOW)
alpha, counted = here.out.trace.acceptance_rate, here.out.trace.tokens_per_cycle
print(f"α = {alpha:.2f}, c = {here.c:.2f}, v = {here.v:.2f}")
print(f"tokens per forward pass: {counted:.2f}, by the formula {theory.expected_tokens(alpha, 4):.2f}")
print(f"speed-up: predicted {here.predicted:.2f}, measured {here.measured:.2f}")
print("on", measure.machine()["cpu"])

# %% tags=["spoiler", "nbval-ignore-output"]
speedup_guess.reveal(here.measured)

# %% [markdown]
# ### You may have lost
#
# A measured speed-up below 1 is a likely result here, and the three numbers say why. The acceptance is fine for such a
# small draft model. But $c$ is large, because a model this small does not spend its time on reading weights. And $v$ is
# well above 1 on most CPUs, because a pass over five tokens uses other kernels than a pass over one. Both numbers stand
# in the denominator of $S$.
#
# The one thing that we can choose is $k$. With your own α and $c$, and with $v$ measured for every length, the formula
# says which $k$ is best on this machine. If it says 0, it expects a loss at every length. The rerun then takes $k = 1$,
# and a result below 1 is what the formula predicts.

# %% tags=["nbval-ignore-output"]
curve = measure.measure(target, quick=True)  # v for every k, on this machine
best = theory.best_k(alpha, here.c, curve.v, longest=12)
again = demo.demo(target, ms.drafters.Model(draft), PROMPT, 48, max(1, best), **HOW)
print(f"best k: {best}" + ("" if best else ", so do not speculate; k = 1 below"))
print(f"speed-up: predicted {again.predicted:.2f}, measured {again.measured:.2f}; at k = 4 it was {here.measured:.2f}")

# %% [markdown]
# On a quiet machine the predicted and the measured speed-up are close but not equal. The formula leaves out the sampler
# and the Python code between the passes, and it takes one α for all positions.
#
# Why is $c$ so large on a CPU? If only bytes mattered, the draft model would be far cheaper, because it reads about a
# tenth of what the target reads:

# %%
by_bytes = measure.weight_bytes(draft) / measure.weight_bytes(target)
print(f"c by bytes: {by_bytes:.2f}")

# %% [markdown]
# Models as small as these are not limited by bytes. Each layer costs a few calls whatever its width, and the draft
# model has two layers where the target has six, which is nearer to the measured $c$. On a GPU the same effect comes
# from kernel launches.
#
# ### A large model on a GPU
#
# For comparison, here is a recorded run on an H200 (`minispec bench speculate`). The target has the shape of an 8B
# model, its first two layers are the draft model, and a whole cycle is one CUDA graph, so that launches cost next to
# nothing. The weights are random, which changes neither the times nor the formula, so the acceptance says nothing about
# real models.

# %%
h200 = viz.Dot.recorded()
print(f"α = {h200.alpha:.2f}, c = {h200.c:.3f}, v = {h200.v:.2f}, k = {h200.k}")
print(f"predicted {h200.predicted:.2f}, measured {h200.measured:.2f}")

# %% [markdown]
# Here $v$ is nearly 1, as the simple formula assumes, because five tokens per pass are far below the ridge point of the
# machine (lesson 01).

# %% [markdown]
# ## The surface
#
# The widget shows the whole formula at once. On the left is the speed-up over α and $k$, with the line where nothing is
# gained and, for every α, the best $k$. On the right is a cut at the α of the slider. A filled mark is a measured
# speed-up, and the open mark beside it is its prediction, each with the c and v of its own run. If you choose a set-up,
# the sliders move there.

# %% tags=["nbval-ignore-output"]
sound = slower.cases()[slower.SOUND]
viz.surface([viz.Dot.of(here, "micro, here"), h200, viz.Dot.of(sound, "micro, recorded")], curve.v)

# %% [markdown]
# Three tasks:
#
# 1. Set c to 0.5 and α to 0.9, as for an INT8 copy of a bf16 target. Where is the best $k$, and what is it worth?
# 2. Choose *8b on H200* as the set-up. Would a longer draft have been faster there?
# 3. Raise v, first by the same amount for every $k$, then so that it grows with $k$. Which of the two changes the best $k$?
#
# The first task is a common idea: a quantised copy of the target is a tempting draft model, because it agrees with the
# target so often. The formula shows what that is worth, with c estimated from the bytes:

# %% tags=["spoiler"]
for bits, c in ((8, 8 / 16), (4, 4 / 16)):
    k, gain = theory.best_k(0.9, c), theory.best_speedup(0.9, c)
    print(f"INT{bits} copy of bf16: c = {c}, at α = 0.9 the best is k = {k} with {gain:.2f} times")

# %% [markdown]
# ## One α is a simplification
#
# The acceptance differs from position to position. [`acceptance_by_position`](../minispec/trace.py) measures $\beta_i$,
# the share of draft tokens accepted at position $i$ of the draft among the cycles that reached it. With these,
#
# $$E[N] = 1 + \sum_{i=1}^{k} \prod_{j \le i} \beta_j$$
#
# Here is a recorded run with sixteen draft tokens per cycle, together with the number of cycles that reached each position:

# %%
wide = max(slower.cases().values(), key=lambda run: run.k).trace
betas = wide.acceptance_by_position
reached = [sum(cycle.tested > i for cycle in wide.cycles) for i in range(len(betas))]
print("position:", *(f"{i:5d}" for i in range(1, 17)))
print("β:       ", *(f"{beta:5.2f}" for beta in betas))
print("cycles:  ", *(f"{count:5d}" for count in reached))

# %% [markdown]
# The acceptance rises along the draft. Does the draft model get better as it runs ahead? It does not: look at the
# number of cycles. All 96 reach position 1, but only 13 reach position 10, and those 13 are mostly cycles in which the
# text was easy to predict. This is **survivorship**: a late position is measured only in the cycles that got so far. A
# separate draft model has no reason to get worse with depth either, as long as everything before was accepted, because
# its input is then the same as the target's. With some other drafters the depth does matter: a Medusa head for a late
# position does not see the draft tokens before it (lesson 09), and EAGLE continues from features that it has predicted
# itself (lesson 10).
#
# So the acceptance is not one number. How much does the formula with a single α lose?

# %%
print(f"tokens per forward pass, counted: {wide.tokens_per_cycle:.2f}")
print(f"from the β of every position:     {theory.expected_tokens_by_position(betas):.2f}")
print(f"from one α = {wide.acceptance_rate:.2f}:               {theory.expected_tokens(wide.acceptance_rate, 16):.2f}")

# %% [markdown]
# The second line equals the first by construction, since the β are the same counts in another form. The third line is a
# model, and it is off. So when you predict the speed-up of another $k$ from a trace, use the β of each position.
#
# ## What does it cost?
#
# Speculation saves time, but it does not save arithmetic. The target computes $k + 1$ positions for every $E[N]$ tokens
# that are emitted:

# %%
for alpha in (0.4, 0.7, 0.9):
    tokens = theory.expected_tokens(alpha, 4)
    print(f"α = {alpha}: {5 / tokens:.1f} times the target's arithmetic per token, {1 - tokens / 5:.0%} discarded")

# %% [markdown]
# This additional arithmetic is free only while the arithmetic units are idle. In a large batch they are busy, and $v$ rises towards
# $k + 1$. The next cell shows what the roofline of lesson 01 predicts for an 8B model in bf16 on an H200. It counts the weights
# alone and keeps c at 0.1. In a real server the keys and values of long contexts are read as well, and c changes with the batch,
# so take it as a tendency; [lesson 11](11_speculation_in_a_server.ipynb) measures.

# %%
for batch in (1, 32, 64, 128, 256):
    v = {k: theory.verify_cost(theory.H200, 8e9, k, batch) for k in range(1, 17)}
    best = theory.best_k(0.7, 0.1, v.get, longest=16)
    print(f"batch {batch:3d}: v = {v[4]:.2f} for k = 4; at α = 0.7 and c = 0.1 the best k is {best}")

# %% [markdown]
# **Temperature** enters the formula through α alone. At a higher temperature the target's distribution is spread over
# more tokens, and a small draft model usually matches it less well. At temperature 0 the draft model only has to find
# the most likely token. Lesson 08 measures how α depends on both temperatures.

# %% [markdown]
# ## Why is it slower?
#
# Now use the formula in the other direction. Here are five set-ups, all of them real runs of the same pair of models,
# and all of them slower than plain decoding. Each has one of these faults:
#
# - **mismatched draft**: the draft model does not fit this target;
# - **k too large**: late draft tokens cost as much as early ones and are rarely accepted;
# - **launch overhead**: the draft model reads few bytes, but takes long to start;
# - **full batch**: a pass has no idle arithmetic left;
# - **wrong kernel**: the verify pass does more than read each weight once.
#
# You get the numbers of their traces and those of a sound run, and nothing else. Make your own diagnosis for each of
# them before you open the menu.

# %%
runs = slower.cases()
order = sorted((name for name in runs if name != slower.SOUND), key=lambda name: name[::-1])
print(slower.table([runs[slower.SOUND], *(runs[name] for name in order)], named=False))

# %% tags=["nbval-ignore-output"]
viz.diagnose(runs)

# %% [markdown]
# There is a method for such a table. Each fault moves one number away from the sound run. Set that number right, leave
# the others as they are, and predict again. If the predicted speed-up now exceeds 1, you have found the fault. This is
# all that [`suspects`](../minispec/course/viz/diagnose.py) does.
#
# The times in the table were recorded on one CPU core. The next cell runs one of the faults live, after the sound run.
# The times on your machine are different, but the same number is out of line.

# %% tags=["nbval-ignore-output"]
print(
    slower.table([slower.measure(name, target, draft, texts=2, repeat=2) for name in (slower.SOUND, "launch overhead")])
)

# %% [markdown]
# The command `minispec bench slower` runs all six. The code of each fault is a few lines in
# [`set_up`](../minispec/bench/slower.py), which you should look at only after you have your five diagnoses.

# %% [markdown]
# ## Check what you are told
#
# Guides for interviews are full of numbers, and you can now compute most of them. We did that for 59 claims of five guides:
# [the audit](../docs/audit.md) lists each claim with its computation and a verdict.

# %% [markdown]
# Here is one for you to compute. Which α does "2 times as fast" need at $c = 0.1$, with $v = 1$ and the best $k$?

# %% tags=["spoiler"]
needed = next(alpha / 100 for alpha in range(100) if theory.best_speedup(alpha / 100, 0.1) >= 2)
print(f"α = {needed:.2f}, with k = {theory.best_k(needed, 0.1)}")

# %% [markdown]
# ## In production
#
# | minispec | vLLM | elsewhere |
# |---|---|---|
# | $k$ | `num_speculative_tokens` | SGLang: `speculative_num_steps`; `speculative_num_draft_tokens` is one more in a chain |
# | accepted over drafted | *draft acceptance rate* in the log; in Prometheus two counters to divide | |
# | $E[N]$ | *mean acceptance length* | SGLang: *accept length* |
# | $\prod_{j \le i} \beta_j$ | *per-position acceptance rate*: relative to all cycles, not only to those that reached position $i$ | |
# | `k="auto"` | fixed, or by batch size: `num_speculative_tokens_per_batch_size` | by acceptance: `--speculative-adaptive` in SGLang |
# | the cycle as one CUDA graph | a CUDA graph of the target's pass, for *uniform decode* batches | SGLang: graphs for draft and verify |
#
# Mind the second line of this table: what vLLM logs as the acceptance rate is accepted over drafted, so it has to be
# converted before it goes into the formula. To compare systems, use tokens per forward pass of the target, which has
# only one definition.

# %% [markdown]
# ## Check yourself
#
# <details><summary>α = 0.5, k = 2, c = 0.1, v = 1. What is the speed-up?</summary>
#
# E[N] = 1 + 0.5 + 0.25 = 1.75 tokens, and the cycle takes 1.2 plain passes, so the speed-up is 1.46.
# </details>
#
# <details><summary>A vendor promises a speed-up of 4 for a draft model with 70 % acceptance. What do you ask?</summary>
#
# Ask which acceptance is meant. If it is α, the ceiling is 1/0.3 = 3.3, and the promise is impossible for a chain of draft tokens.
# If it is accepted over drafted, α is higher, and the promise may be true.
# </details>
#
# <details><summary>Acceptance and c are as expected, but v is twice what it was yesterday. What are two possible causes?</summary>
#
# The batch may be fuller, or the verify pass may run another kernel. The number of requests in the batch tells which.
# </details>

# %% tags=["spoiler"]
print(f"{theory.speedup(0.5, 2, 0.1):.2f}  {1 / (1 - 0.7):.1f}")

# %% [markdown]
# ## Read the papers
#
# - Leviathan, Kalman, Matias, 2023: *Fast inference from transformers via speculative decoding*
#   ([arXiv:2211.17192](https://arxiv.org/abs/2211.17192)): section 3 derives E[N] and the speed-up, with γ for our k.
# - Chen et al., 2023: *Accelerating large language model decoding with speculative sampling*
#   ([arXiv:2302.01318](https://arxiv.org/abs/2302.01318)): a measured example on a 70B model.
# - Liu et al., 2024: *Optimizing speculative decoding for serving large language models using goodput*
#   ([arXiv:2406.14066](https://arxiv.org/abs/2406.14066)): choosing the draft length in a server by load and
#   acceptance.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - Write the five functions yourself: [exercises 07](../exercises/07_how_fast.ipynb).
# - Interview questions (`minispec drill`): `expected-tokens`, `speedup-formula`, `choose-k`, `break-even`,
#   `what-sets-acceptance`, `weak-draft`, `verify-cost`, `total-flops`, `ceiling-of-alpha`, `which-acceptance`,
#   `acceptance-by-position`, `adaptive-length`, `short-and-long-outputs`, `published-speedups`.
# - [The audit](../docs/audit.md) has all claims on one page.
# - [08 Drafters](08_drafters.ipynb): where α and c come from.
