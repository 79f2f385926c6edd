# %% [markdown]
# # How fast
#
# *Time:* 40 minutes · *Before this:* [06 rejection sampling](06_rejection_sampling.ipynb) · *Practice:* [exercises 07](../exercises/07_how_fast.ipynb)
#
# Speculation changes no text, so all it can offer is time. Three numbers decide how much: how often a draft is accepted,
# what drafting costs, and what verifying costs. This lesson measures them, predicts the speed-up, and checks the
# prediction with a clock.
#
# You will be able to
#
# - derive the expected tokens of a cycle and the speed-up, on paper;
# - measure α, c and v on your machine, and choose K from them;
# - say when speculation loses, and what no draft can exceed;
# - find out from a trace why a set-up is slow;
# - check a claim about speed before you repeat it, your own included.

# %%
import minispec as ms
from minispec import theory
from minispec.bench import measure, slower
from minispec.course import demo, viz

# %% [markdown]
# ## Tokens a cycle
#
# A cycle drafts $K$ tokens. Say each is accepted with probability $\alpha$, given that all before it were. The cycle ends
# at the first rejection, with a correction, or after all $K$, with a bonus. So it emits one token more than it accepts.
#
# Call that number $N$. At least $i$ drafts pass with probability $\alpha^i$. Summing these tails gives the mean:
#
# $$E[N] = 1 + \alpha + \alpha^2 + \dots + \alpha^K = \frac{1 - \alpha^{K+1}}{1 - \alpha}$$
#
# [`expected_tokens`](../minispec/theory.py) is this sum.

# %% tags=["nbval-ignore-output"]
tokens_guess = viz.predict("Each of 4 drafts passes with α = 0.7. How many tokens does a cycle emit?", "tokens")
tokens_guess

# %% tags=["spoiler"]
for alpha in (0.4, 0.7, 0.9):
    print(f"α = {alpha}:", *(f"K = {k}: {theory.expected_tokens(alpha, k):.2f}  " for k in (1, 2, 4, 8, 16)))

# %% tags=["spoiler", "nbval-ignore-output"]
tokens_guess.reveal(theory.expected_tokens(0.7, 4))

# %% [markdown]
# Read a row from left to right: doubling $K$ buys less every time. Draft $i$ adds $\alpha^i$ tokens, and that shrinks.
# However long the draft, $E[N]$ stays below a **ceiling**:
#
# $$\lim_{K \to \infty} E[N] = \frac{1}{1 - \alpha}$$
#
# A cycle takes at least one pass of the target. So this is also the ceiling of the speed-up, for a draft that costs nothing.

# %%
for alpha in (0.2, 0.5, 0.6, 0.8, 0.9):
    print(f"α = {alpha}: never more than {theory.token_ceiling(alpha):.2f} times as fast")

# %% [markdown]
# ## The speed-up
#
# Now the time. Count it in plain passes of the target:
#
# | | plain passes |
# |---|---|
# | drafting one token | $c = t_{draft} / t_{target}$ |
# | verifying all $K$ in one pass | $v = t_{verify}(K + 1) / t_{target}(1)$ |
# | a cycle | $K c + v$ |
# | what the cycle emits, had it been written plainly | $E[N]$ |
#
# $$S = \frac{E[N]}{K c + v}$$
#
# Textbooks set $v = 1$. Keep it: you have seen in lesson 01 that it is not always 1, and it will matter below.

# %%
for v in (1.0, 1.3, 2.5):
    print(f"α = 0.7, K = 4, c = 0.1, v = {v}: {theory.speedup(0.7, 4, 0.1, v):.2f} times as fast")

# %% [markdown]
# Same draft, same acceptance. Only the price of the verify pass changed, and the gain became a loss.
#
# ## When does it pay?
#
# Set $S = 1$. For $K = 1$ and $v = 1$ the answer needs no computer: $1 + \alpha > c + 1$, so it gains exactly when
# $\alpha > c$. For other $K$ and $v$ [`break_even`](../minispec/theory.py) finds the α by halving an interval.

# %% tags=["nbval-ignore-output"]
even_guess = viz.predict("K = 4 and c = 0.1. Above which α does speculation gain, if verifying costs v = 1?")
even_guess

# %% tags=["spoiler"]
print(f"K = 1, c = 0.1: from α = {theory.break_even(1, 0.1):.2f} on")
for k, c, v in ((4, 0.1, 1.0), (4, 0.02, 1.0), (8, 0.1, 1.0), (4, 0.1, 2.9)):
    print(f"K = {k}, c = {c}, v = {v}: from α = {theory.break_even(k, c, v):.2f} on")

# %% tags=["spoiler", "nbval-ignore-output"]
even_guess.reveal(theory.break_even(4, 0.1))

# %% [markdown]
# There is no acceptance "below which it does not work". There is one for each $K$, $c$ and $v$.
#
# ## Choose K
#
# One more draft token adds $\alpha^{K+1}$ tokens and costs $c$ plain passes. That raises the speed-up as long as
# $\alpha^{K+1} / c$, what the additional draft token yields for its cost, exceeds the current speed-up $E[N] / (K c + v)$.
# [`best_k`](../minispec/theory.py) simply tries all lengths; 0 means: do not speculate.

# %%
print("best K, and the speed-up there (v = 1)")
for alpha in (0.05, 0.3, 0.5, 0.7, 0.8, 0.9):
    row = [f"c = {c}: K = {theory.best_k(alpha, c):2d}, {theory.best_speedup(alpha, c):.2f}×" for c in (0.02, 0.1, 0.3)]
    print(f"α = {alpha:<5}", *row, sep="   ")

# %% [markdown]
# ## Measure the three numbers
#
# Predictions are cheap. Here is a real run: `micro` writes, `micro-draft` drafts, four tokens a cycle. Its
# [`Trace`](../minispec/trace.py) counts what was accepted, and notes the seconds of drafting and of verifying.

# %%
target = ms.load("micro", device="cpu")
draft = ms.load("micro-draft", device="cpu")
out = ms.speculate(target, "Once upon a time", ms.drafters.Model(draft), k=4, max_new_tokens=60, temperature=0)
plain = ms.generate(target, "Once upon a time", max_new_tokens=60, temperature=0)
print("same text as plain decoding:", out.tokens == plain.tokens)
print("fewer passes than tokens:", out.trace.target_passes < len(out.tokens))

# %% [markdown]
# **α** has a trap. Two rates are in use, and dashboards seldom say which one they show:
#
# - accepted over *tested*: drafts after a rejection are never looked at, so they do not count. This is α;
# - accepted over *drafted*: all of them count. It is lower, and falls with $K$ though the draft is the same.
#
# The formula wants the first. [`acceptance_rate`](../minispec/trace.py) is the first.

# %%
for k in (2, 4, 8):
    print(f"α = 0.8, K = {k}: {theory.accepted_fraction(0.8, k):.2f} of all drafts end up in the text")

# %% [markdown]
# **c** and **v** come from a clock. [`demo`](../minispec/course/demo.py) times plain and speculative runs in turn, takes medians, and
# divides by the time of one plain pass. The last two columns are the point of this lesson.

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
# A measured speed-up below 1 is a likely result here, and it is no accident. Look at the three numbers. α is fine for such a
# small draft model. But $c$ is large, because the time of a model this small is not spent on reading weights, and $v$ is well
# above 1 on most CPUs, because a pass over five tokens takes other kernels than a pass over one. Both stand in the denominator.
#
# What can be chosen is $k$. With your own α and $c$, and with $v$ measured for every length, the formula says which $k$ is best
# on this machine. If it says 0, the formula expects no length to gain. The rerun then takes $k = 1$, and a result below 1 is
# what it predicts.

# %% tags=["nbval-ignore-output"]
curve = measure.measure(target, quick=True)  # v for every k, on this machine
best = theory.best_k(alpha, here.c, curve.v, longest=12)
again = demo.demo(target, ms.drafters.Model(draft), PROMPT, 48, max(1, best), **HOW)
print(f"best k: {best}" + ("" if best else ", so do not speculate; k = 1 below"))
print(f"speed-up: predicted {again.predicted:.2f}, measured {again.measured:.2f}; at k = 4 it was {here.measured:.2f}")

# %% [markdown]
# On a quiet machine the predicted and the measured speed-up are close, not equal. The formula knows nothing of the sampler and
# of the Python between the passes, and it takes one α for all positions.
#
# By bytes the draft should be far cheaper than it is. A draft reads about a tenth of what the target reads:

# %%
by_bytes = theory.draft_cost(measure.weight_bytes(draft), measure.weight_bytes(target))
print(f"c by bytes: {by_bytes:.2f}")

# %% [markdown]
# Models as small as these are not limited by bytes. Each layer costs a few calls, whatever its width; the draft has two
# layers and the target six, and that is nearer to the measured $c$. On a GPU such calls are kernel launches.
#
# ### A machine for the job
#
# Now a recorded run on an H200: a target with the shape of an 8B model, its first two layers as the draft, and a whole
# cycle as one launch (`minispec bench speculate`). The weights are random, which matters neither to the clock nor to the
# formula.

# %%
h200 = viz.Dot.recorded()
print(f"α = {h200.alpha:.2f}, c = {h200.c:.3f}, v = {h200.v:.2f}, K = {h200.k}")
print(f"predicted {h200.predicted:.2f}, measured {h200.measured:.2f}")

# %% [markdown]
# There $v$ is one, as the textbook has it: five tokens a pass are far from the machine's balance.

# %% [markdown]
# ## The surface
#
# The whole formula at once. Left: the speed-up over α and $K$, with the line where nothing is gained and, for every α, the
# best $K$. Right: a cut at the α of the slider. A filled mark was measured, the open one beside it is its
# prediction, both with the c and v of their own run: choose a set-up to put the sliders there.

# %% tags=["nbval-ignore-output"]
sound = slower.cases()[slower.SOUND]
viz.surface([viz.Dot.of(here, "micro, here"), h200, viz.Dot.of(sound, "micro, recorded")], curve.v)

# %% [markdown]
# Try this:
#
# 1. Set c to 0.5, an INT8 copy of a bf16 target, and α to 0.9. Where is the best K, and what is it worth?
# 2. Choose *8b on H200* as the set-up. Would a longer draft have paid?
# 3. Raise v, first the same for every K, then growing with K. Which of the two moves the best K?
#
# A quantised copy makes a tempting draft, because it agrees so well. The formula is not tempted:

# %%
for bits, c in ((8, theory.draft_cost(1, 2)), (4, theory.draft_cost(0.5, 2))):
    k, gain = theory.best_k(0.9, c), theory.best_speedup(0.9, c)
    print(f"INT{bits} copy of bf16: c = {c}, at α = 0.9 the best is K = {k} with {gain:.2f} times")

# %% [markdown]
# ## One α is a simplification
#
# A draft gets worse as it runs ahead of the text. And easy stretches stay easy, so runs are longer than coin flips would give.
# [`acceptance_by_position`](../minispec/trace.py) measures the chance $\beta_i$ of place $i$, given that it was reached:
#
# $$E[N] = 1 + \sum_{i=1}^{K} \prod_{j \le i} \beta_j$$

# %%
wide = slower.cases()["K too large"].trace  # recorded, sixteen drafts a cycle
betas = wide.acceptance_by_position
print("β by place:", *(f"{beta:.2f}" for beta in betas[:6]), "…")
print(f"tokens a pass, counted:      {wide.tokens_per_cycle:.2f}")
print(f"from the β of every place:   {theory.expected_tokens_by_position(betas):.2f}")
print(f"from one α = {wide.acceptance_rate:.2f}:           {theory.expected_tokens(wide.acceptance_rate, 16):.2f}")

# %% [markdown]
# The second line is an identity: the β of every place are the same counts in another order. The third is a model. Use the β
# when you predict another $K$.
#
# ## What it costs
#
# Speculation saves time, not work. The target computes $K + 1$ places for every $E[N]$ tokens it keeps.

# %%
for alpha in (0.4, 0.7, 0.9):
    work, lost = theory.target_work(alpha, 4), theory.wasted_work(alpha, 4)
    print(f"α = {alpha}: {work:.1f} times the target's arithmetic a token, {lost:.0%} of it thrown away")

# %% [markdown]
# That is free while arithmetic is idle. In a full batch it is not idle, and $v$ rises towards $K + 1$:

# %%
for batch in (1, 32, 64, 128, 256):
    v = {k: theory.verify_cost(theory.H200, 8e9, k, batch) for k in range(1, 17)}
    best = theory.best_k(0.7, 0.1, v.get, longest=16)
    print(f"batch {batch:3d}: v = {v[4]:.2f} for K = 4; at α = 0.7 and c = 0.1 the best K is {best}")

# %% [markdown]
# **Temperature** enters through α alone. A hotter target spreads its law, and a small draft follows less well; a greedy target
# needs only its favourite guessed. How α moves with both temperatures is measured in lesson 08.

# %% [markdown]
# ## Why is it slower?
#
# Five set-ups, all real runs of the same pair, all slower than plain decoding. One has each of these faults:
#
# - **mismatched draft**: it does not draft for this target;
# - **K too large**: late drafts cost as much as early ones and seldom count;
# - **launch overhead**: the draft reads little, but takes long to start;
# - **full batch**: a pass has no idle arithmetic left;
# - **wrong kernel**: the verify pass does more than read each weight once.
#
# You get the numbers of their traces and those of a sound run, nothing else. Decide before you choose.

# %%
runs = slower.cases()
order = sorted((name for name in runs if name != slower.SOUND), key=lambda name: name[::-1])
print(slower.table([runs[slower.SOUND], *(runs[name] for name in order)], named=False))

# %% tags=["nbval-ignore-output"]
viz.diagnose(runs)

# %% [markdown]
# How to read such a table: a fault moves one number. Put that number right, leave the others, and predict again. If the
# prediction passes 1, you have found it. [`suspects`](../minispec/course/viz/diagnose.py) does nothing else.
#
# The times were recorded on one CPU core. Here is one of the faults live, after the sound run: other times on your
# machine, the same number out of line.

# %% tags=["nbval-ignore-output"]
print(
    slower.table([slower.measure(name, target, draft, texts=2, repeat=2) for name in (slower.SOUND, "launch overhead")])
)

# %% [markdown]
# `minispec bench slower` runs all six. The code of each fault is a few lines in
# [`set_up`](../minispec/bench/slower.py): read it once you have your five diagnoses.

# %% [markdown]
# ## Check what you are told
#
# Guides for interviews are full of numbers, and you can now compute most of them. We did that for 59 claims of five guides:
# [the audit](../docs/audit.md) has each of them with its computation and a verdict.

# %% [markdown]
# Here is one to compute yourself. What α does "2 times as fast" need at $c = 0.1$, with the best $K$?

# %%
needed = next(alpha / 100 for alpha in range(100) if theory.best_speedup(alpha / 100, 0.1) >= 2)
print(f"α = {needed:.2f}, with K = {theory.best_k(needed, 0.1)}")

# %% [markdown]
# ## In production
#
# | minispec | vLLM | elsewhere |
# |---|---|---|
# | $K$ | `num_speculative_tokens` | SGLang: `speculative_num_steps`; `speculative_num_draft_tokens` is $K + 1$ in a chain |
# | accepted over drafted | *draft acceptance rate* in the log; in Prometheus two counters to divide | |
# | $E[N]$ | *mean acceptance length* | SGLang: *accept length* |
# | $\prod_{j \le i} \beta_j$ | *per-position acceptance rate*: not given that place $i$ was reached | |
# | `k="auto"` | fixed, or by batch size: `num_speculative_tokens_per_batch_size` | by acceptance: `--speculative-adaptive` in SGLang |
# | the cycle as one launch | a CUDA graph of the target's pass, for *uniform decode* batches | SGLang: graphs for draft and verify |
#
# Note the second row. What vLLM logs as acceptance rate is accepted over drafted; convert it before you use the formula.
# Compare systems by tokens per target pass: it has one definition.

# %% [markdown]
# ## Check yourself
#
# <details><summary>α = 0.5, K = 2, c = 0.1, v = 1. What is the speed-up?</summary>
#
# E[N] = 1 + 0.5 + 0.25 = 1.75, the cycle takes 1.2 passes, so 1.46.
# </details>
#
# <details><summary>A vendor promises 4 times for a draft with 70 % acceptance. What do you ask?</summary>
#
# Which acceptance. If it is α, the ceiling is 1/0.3 = 3.3 and the promise is impossible for a chain. If it is accepted over
# drafted, α is higher and it may be true.
# </details>
#
# <details><summary>Acceptance is as expected, c is as expected, and v is twice what it was yesterday. Two causes?</summary>
#
# The batch is fuller, or the verify pass takes another kernel. The number of rows tells which.
# </details>

# %%
print(f"{theory.speedup(0.5, 2, 0.1):.2f}  {theory.token_ceiling(0.7):.1f}")

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
# - The audit on one page: [docs/audit.md](../docs/audit.md).
# - [08 drafters](08_drafters.ipynb): where α and c come from.
