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
#
# The part *Go deeper* near the end is optional, and the time above does not include it.

# %%
import minispec as ms
from minispec import theory
from minispec_course import demo, viz
from minispec_course.labs import slower
from minispec_course.labs.pairs import course_pair, where

# %% [markdown]
# ## How many tokens does a cycle emit?
#
# A cycle drafts $k$ tokens (γ in Leviathan's paper) and verifies them in one forward pass of the target. Let $\alpha$
# be the probability that a draft token is accepted, given that all draft tokens before it were accepted. We assume for
# now that it is the same for every draft token; a later section drops this. (At one position lesson 06 computed it as
# $\beta = \sum_x \min(p(x), q(x))$, and α is the average of this over the positions that are tested.) The cycle ends
# with a correction at the first rejection, or with a bonus after all $k$ tokens. In both cases it emits one token more
# than it accepts.
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
    line = "  ".join(f"k = {k}: {theory.expected_tokens(alpha, k):.2f}" for k in (1, 2, 4, 8, 16))
    print(f"α = {alpha}:  {line}  k → ∞: {theory.token_ceiling(alpha):.2f}")

# %% tags=["spoiler", "nbval-ignore-output"]
tokens_guess.reveal(theory.expected_tokens(0.7, 4))

# %% [markdown]
# Each further draft token adds less than the one before it: draft token $i$ adds $\alpha^i$ tokens on average, and this
# shrinks with $i$. (From column to column $k$ doubles, so many draft tokens are added at once. At α = 0.9 the steps
# therefore grow from left to right, while the gain per draft token falls.) However long the draft is, $E[N]$ stays below a
# **ceiling**, the last column:
#
# $$\lim_{k \to \infty} E[N] = \frac{1}{1 - \alpha}$$
#
# Every cycle takes at least one forward pass of the target. So this is also the ceiling of the speed-up, which only a
# draft that costs nothing could reach. At α = 0.7 that is 3.33 times as fast as plain decoding.

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
# The picture has all four, as recorded on an H200. The upper bar is one cycle, the lower bar the plain steps that it
# replaces. The speed-up is the length of the lower bar divided by that of the upper one.

# %%
viz.cycle_over_steps()

# %% [markdown]
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

# %%
print(f"k = 1, c = 0.1: from α = {theory.break_even(1, 0.1):.2f} on")
for k, c, v in ((4, 0.1, 1.0), (4, 0.02, 1.0), (8, 0.1, 1.0), (4, 0.1, 2.9)):
    print(f"k = {k}, c = {c}, v = {v}: from α = {theory.break_even(k, c, v):.2f} on")

# %% [markdown]
# So there is no single acceptance rate below which speculation "does not work". There is one for each combination of $k$, $c$ and
# $v$.
#
# ## Which draft length is best?
#
# One more draft token adds $\alpha^{k+1}$ tokens on average and costs $c$. If $v$ does not change with $k$, it raises the
# speed-up as long as what it yields for its cost, $\alpha^{k+1} / c$, exceeds the speed-up that you already have,
# $E[N] / (k c + v)$. (To exceed 1, the yield of plain decoding, is not enough.)
# [`best_k`](../minispec/theory.py) simply tries all lengths; 0 means that it is best not to speculate.

# %%
print("best k, and the speed-up there (v = 1)")
for alpha in (0.05, 0.3, 0.5, 0.7, 0.8, 0.9):
    best = {c: theory.best_k(alpha, c) for c in (0.02, 0.1, 0.3)}
    gains = {c: theory.speedup(alpha, k, c) if k else 1 for c, k in best.items()}
    print(f"α = {alpha:<5}", *(f"c = {c}: k = {best[c]:2d}, {gains[c]:.2f}×" for c in best), sep="   ")

# %% [markdown]
# ## Measure the three numbers
#
# The formula needs α, c and v, so we measure them on your device: with `micro` as the target and `micro-draft` as the
# draft model on a CPU, with SmolLM2 and its own draft model on a GPU (see lesson 00).

# %% tags=["nbval-ignore-output"]
target, draft = course_pair(ms.device())
print(f"{target.name} and {draft.name} on {where(target.device)}")

# %% [markdown]
# Measuring **α** has a trap: two different rates are in use, and dashboards rarely say which one they show.
#
# - Accepted over *tested* estimates α. Draft tokens after a rejection are never tested, so they do not count here.
# - Accepted over *drafted* counts all draft tokens, so it is lower, and it falls with $k$ although the draft model is the same.
#   This is what vLLM logs as the acceptance rate.
#
# The formula needs the first, and our [`acceptance_rate`](../minispec/trace.py) is the first. If α is the same at every
# position, the second follows from it:

# %%
for k in (2, 4, 8):
    accepted = theory.expected_tokens(0.8, k) - 1
    print(f"α = 0.8, k = {k}: {accepted / k:.2f} of all draft tokens are accepted")

# %% [markdown]
# On a dashboard one often has only the second, say $r$, and needs to go back. $E[N] = 1 + k r$ holds directly, and at this
# $k$ the speed-up needs nothing else. For another $k$, find the α for which $1 + \alpha + \dots + \alpha^k = 1 + k r$, by
# bisection: for $r = 0.59$ at $k = 4$ it is 0.8, as the second line above says.
#
# **c** and **v** come from a clock. [`demo`](../minispec_course/demo.py) generates 48 tokens at temperature 0.6, plain and
# with four draft tokens per cycle in turn, five rounds of each. It takes the medians of the times for drafting, verifying and
# one plain pass. Before you look, commit to a number.

# %% tags=["nbval-ignore-output"]
speedup_guess = viz.predict(
    f"{target.name} with {draft.name}, k = 4, 48 tokens at temperature 0.6, here: how many times as fast as plain?",
    "times",
)
speedup_guess

# %% tags=["spoiler", "nbval-ignore-output"]
PROMPT = "One day, a little girl named Lily"
here = demo.demo(target, ms.drafters.Model(draft), PROMPT, tokens=48, k=4, temperature=0.6, repeat=5)
alpha, counted = here.out.trace.acceptance_rate, here.out.trace.tokens_per_cycle
tested = sum(cycle.tested for cycle in here.out.trace.cycles)
error = (alpha * (1 - alpha) / tested) ** 0.5  # the standard error of a share of so many tokens
print(f"α = {alpha:.2f} ± {error:.2f} ({tested} draft tokens tested), c = {here.c:.2f}, v = {here.v:.2f}")
print(f"tokens per forward pass: {counted:.2f}, by the formula {theory.expected_tokens(alpha, 4):.2f}")
print(f"speed-up: predicted {here.predicted:.2f}, measured {here.measured:.2f}")

# %% tags=["spoiler", "nbval-ignore-output"]
speedup_guess.reveal(here.measured)

# %% [markdown]
# ### What the three numbers say
#
# The result can lie on either side of 1, and if it lies below, the three numbers say why. The acceptance is fine for such a
# small draft model. But $c$ may be large, because models this small do not spend their time on reading weights: on a CPU it
# goes into calls, on a GPU into starting kernels. And on a CPU $v$ may be well above 1, because most CPUs use other kernels
# for a pass over five tokens than for a pass over one, and their ridge point is low. On a GPU $v$ should be near 1.
#
# The predicted and the measured speed-up need not agree. The formula counts passes only, and it takes one α for all
# positions. The sampler and the Python code around the passes take time too. With models as small as these that is a
# considerable share where Python starts every pass, as on a CPU; on a GPU a whole cycle is one launch. So if the formula
# promises only a few per cent, the clock may well show a loss.
#
# ### A large model on a GPU
#
# For comparison, here is a recorded run on an H200 (`python -m benchmarks speculate`): batch 1, bfloat16, after 500 tokens of
# context. The target has the shape of an 8B model, its first two layers are the draft model, and a whole cycle is one CUDA
# graph, so that launches cost next to nothing. The weights are random and the acceptance was set by hand, so it says
# nothing about real models; the times and the formula do not depend on that.

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
# speed-up, of *this machine, just now* or of the *H200, recorded*, and the open mark beside it is its prediction.

# %% tags=["nbval-ignore-output"]
viz.surface([here, h200])

# %% [markdown]
# Two tasks:
#
# 1. Set c to 0.5 and α to 0.9, as for an INT8 copy of a bf16 target. Where is the best $k$, and what is it worth?
# 2. Go back to α = 0.7 and c = 0.1, and raise v, first by the same amount for every $k$, then so that it grows with $k$. In
#    which direction does each of them move the best $k$, and why?
#
# <details><summary>Answer to 2</summary>
#
# A cost that is the same for every $k$ makes the best $k$ larger (5 or 6, which are practically equal, instead of 4 at
# v = 2), because each cycle has to pay it once, and a longer draft spreads it over more tokens. A cost that grows with
# $k$ makes the best $k$ smaller (2, if v grows to 2 at $k = 4$), because every further draft token then costs more than
# $c$.
# </details>
#
# The first task is a common idea: a quantised copy of the target is a tempting draft model, because it agrees with the
# target so often. The formula shows what that is worth, with c estimated from the bytes:

# %% tags=["spoiler"]
for bits, c in ((8, 8 / 16), (4, 4 / 16)):
    k = theory.best_k(0.9, c)
    print(f"INT{bits} copy of bf16: c = {c}, at α = 0.9 the best k is {k}, with {theory.speedup(0.9, k, c):.2f} times")

# %% [markdown]
# The α of 0.9 is an assumption, the same for both copies. A higher one does not help much: even if every draft token were
# accepted, $S = (k + 1) / (k c + 1)$ would stay below $1/c$, which is 2 for INT8 and 4 for INT4. So there are two ceilings,
# $1/(1 - \alpha)$ from the acceptance and $1/c$ from the cost of drafting.
#
# ## One α is a simplification
#
# The acceptance differs from position to position. [`acceptance_by_position`](../minispec/trace.py) measures $\beta_i$,
# the share of draft tokens accepted at position $i$ of the draft among the cycles that reached it. With these,
#
# $$E[N] = 1 + \sum_{i=1}^{k} \prod_{j \le i} \beta_j$$
#
# Here is a recorded run with sixteen draft tokens per cycle, together with the number of cycles that reached each position:

# %%
runs = slower.cases()
wide = max(runs.values(), key=lambda run: run.k).trace  # the run with the longest drafts
betas = wide.acceptance_by_position
reached = [sum(cycle.tested > i for cycle in wide.cycles) for i in range(len(betas))]
print("position:", *(f"{i:5d}" for i in range(1, 17)))
print("β:       ", *(f"{beta:5.2f}" for beta in betas))
print("cycles:  ", *(f"{count:5d}" for count in reached))
print(f"tokens per forward pass, counted: {wide.tokens_per_cycle:.2f}")
print(f"from one α = {wide.acceptance_rate:.2f}:               {theory.expected_tokens(wide.acceptance_rate, 16):.2f}")

# %% [markdown]
# The acceptance rises along the draft. Does the draft model get better as it runs ahead? It does not: look at the
# number of cycles. All 96 reach position 1, but only 13 reach position 10, and those 13 are mostly cycles in which the
# text was easy to predict. This is **survivorship**: a late position is measured only in the cycles that got so far. (With
# the heads of lessons 09 and 10 the depth itself matters as well.)
#
# So the acceptance is not one number, and the formula with a single α is off, as the last two lines show. When you predict
# the speed-up of a smaller $k$ from a trace, use the β of each position. For a larger $k$ nothing was measured.
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
# This additional arithmetic is free only while the arithmetic units are idle. In a large batch they are busy, and $v$ rises
# towards $k + 1$. The roofline of lesson 01 says when. In bf16 a pass of a dense model over $n$ tokens takes as long as reading
# the weights if $n$ is below the ridge point $R$, and $n / R$ times as long beyond it. So with $B$ sequences in the batch
#
# $$v = \frac{\max(1, B(k + 1) / R)}{\max(1, B / R)}$$
#
# Here it is for an H200, with the peaks that we measured:

# %%
ridge = theory.H200.flops / theory.H200.bandwidth  # FLOP per byte, and in bf16 also tokens
print(f"{theory.H200.flops / 1e12:.0f} TFLOP/s, {theory.H200.bandwidth / 1e12} TB/s, R = {ridge:.0f}")
for batch in (1, 32, 64, 128, 256):
    print(f"batch {batch:3d}, k = 4: v = {max(1, batch * 5 / ridge) / max(1, batch / ridge):.2f}")

# %% [markdown]
# At α = 0.7 and c = 0.1, v = 2.5 already turned a gain into a loss. By this estimate, speculation with four draft tokens
# therefore stops paying between batch 64 and batch 128. The estimate counts the weights alone and keeps c fixed. In a real
# server the keys and values are read as well. With long contexts this keeps a pass limited by memory for longer, so there
# speculation pays up to larger batches. That passes do not reach the roofline and that c changes with the batch can move
# the limit either way; [lesson 11](11_speculation_in_a_server.ipynb) measures.
#
# **Temperature** enters the formula through α alone. It is usually highest at temperature 0, where the draft model only has
# to find the most likely token; lesson 08 measures this.

# %% [markdown]
# ## Why is it slower?
#
# Now use the formula in the other direction: speculation is slower than plain decoding, and you want to know why. Take
# the α, $k$, c and v of a sound run. Each fault shows mainly in one of the four. Set that one right, leave the others
# as they are, and predict again. If only one of them lifts the prediction above 1, that is where to look.
#
# Here is one example, a recorded pair of runs of `micro` and `micro-draft` on one CPU core:

# %%
sound, slow = runs["sound"], runs["full batch"]
for run in (sound, slow):
    print(f"{run.name}: batch {run.rows}, predicted {run.predicted:.2f}, measured {run.measured:.2f}")
    print(f"  α = {run.alpha:.2f}, k = {run.k}, c = {run.c:.2f}, v = {run.v:.2f}")
found = {"alpha": slow.alpha, "k": slow.k, "c": slow.c, "v": slow.v}
for name in found:
    print(f"with the {name} of the sound run: {theory.speedup(**found | {name: getattr(sound, name)}):.2f}")

# %% [markdown]
# α, $k$ and c are as good as in the sound run, and only with the v of the sound run would speculation pay. So the
# verify pass is too expensive. Two faults can do that, a pass that has no idle arithmetic left and a pass that runs a
# bad kernel. The batch of 64 sequences speaks for the first. The optional lab below has five such set-ups for you to
# diagnose.

# %% [markdown]
# ## Go deeper (optional, 30 minutes)
#
# ### Which k is best on this machine?
#
# With your own α and $c$ the formula says which $k$ is best here. For $v$ we take a straight line from 1 at $k = 0$ through
# the value measured at $k = 4$. If the best $k$ is 0, the formula expects a loss at every length; the rerun then takes
# $k = 1$ to check that.

# %% tags=["nbval-ignore-output"]
measured = here.out.trace.acceptance_rate
best = theory.best_k(measured, here.c, lambda k: max(1.0, 1 + (here.v - 1) * k / 4), longest=12)
again = demo.demo(target, ms.drafters.Model(draft), PROMPT, tokens=48, k=max(1, best), temperature=0.6, repeat=5)
print(f"best k: {best}" + ("" if best else ", so do not speculate; k = 1 below"))
print(f"speed-up: predicted {again.predicted:.2f}, measured {again.measured:.2f}; at k = 4 it was {here.measured:.2f}")

# %% [markdown]
# How large would $c$ be if only bytes mattered, and how large if only the number of layers mattered?

# %% tags=["nbval-ignore-output"]
print(f"share of the bytes:  {draft.num_parameters / target.num_parameters:.2f}")
print(f"share of the layers: {draft.config.num_layers / target.config.num_layers:.2f}")

# %% [markdown]
# Compare both with your $c$. Models as small as these are not limited by bytes: each layer costs a few calls whatever its
# width, and each draft token costs a sampling step besides (on a CPU also some Python code). On a GPU the same effect comes
# from its kernels, which start one after another even inside a graph.
#
# ### Check what you are told
#
# Guides for interviews are full of numbers, and you can now compute most of them. We did that for 59 claims of five guides:
# [the audit](../docs/audit.md) lists each claim with its computation and a verdict. Here is one for you to compute. Which α
# does "3 times as fast" need at $c = 0.1$, with $v = 1$ and the best $k$?

# %% tags=["spoiler"]
alphas = [percent / 100 for percent in range(1, 100)]
needed = next(alpha for alpha in alphas if theory.speedup(alpha, max(1, theory.best_k(alpha, 0.1)), 0.1) >= 3)
print(f"α = {needed:.2f}, with k = {theory.best_k(needed, 0.1)}")

# %% [markdown]
# ### Five slow set-ups
#
# Here are five recorded set-ups, all of them slower than plain decoding, and the sound run above them. The target is the
# same in all of them, and the draft model is another one where that is the fault. Each has one of these faults (one of them
# you have seen already):
#
# - **mismatched draft**: the draft model does not fit this target;
# - **k too large**: late draft tokens cost as much as early ones and are rarely reached (in the run with sixteen draft
#   tokens above, only 13 of 96 cycles got to position 10);
# - **launch overhead**: the draft model has many thin layers, so drafting a token takes nearly as long as a pass of the
#   target, although it reads far fewer bytes;
# - **full batch**: a pass has no idle arithmetic left;
# - **wrong kernel**: the verify pass does more than read each weight once.
#
# Make your own diagnosis for each of them before you open the menu. The menu tests yours by the method above
# ([`suspects`](../minispec_course/viz/diagnose.py)). In the table, *batch* is the number of sequences per forward pass, and
# *c by bytes* is the share of the target's bytes that the draft model reads.

# %%
print(slower.table(runs.values(), named=False))

# %% tags=["nbval-ignore-output"]
viz.diagnose(runs)

# %% [markdown]
# In one line the prediction and the clock are far apart, 0.81 against 0.60. Each set-up with a batch of 1 generates eight
# stories, one after the other. The prediction takes the α of all of them together, while the measured speed-up compares
# medians over the stories. With sixteen draft tokens the stories differ widely, and three that are easy
# to predict pull the average up.
#
# The command `python -m benchmarks slower` runs all six on your machine. The times differ there, and a fault may weigh less: where
# calls are cheap, even many thin layers may be fast enough. The code of each fault is a few lines in
# [`set_up`](../benchmarks/slower.py), which you should look at only after you have your five diagnoses.

# %% [markdown]
# ## In production
#
# | minispec | vLLM | elsewhere |
# |---|---|---|
# | $k$ | `num_speculative_tokens` | SGLang: `speculative_num_steps`; `speculative_num_draft_tokens` is one more in a chain |
# | accepted over drafted | *draft acceptance rate* in the log; in Prometheus two counters to divide | |
# | $E[N]$ | *mean acceptance length* | SGLang: *accept length* |
# | $\prod_{j \le i} \beta_j$ | *per-position acceptance rate*: relative to all cycles, not only to those that reached position $i$ | |
# | `k="auto"`: chosen while it runs, from the acceptance and the times | fixed, or by batch size: `num_speculative_tokens_per_batch_size` | by acceptance: `--speculative-adaptive` in SGLang |
# | the cycle as one CUDA graph | a CUDA graph of the target's pass, for *uniform decode* batches (all requests have equally many tokens in the pass) | SGLang: graphs for draft and verify |
#
# Mind the second line of this table: what vLLM logs as the acceptance rate is accepted over drafted, so convert it as above
# before it goes into the formula. To compare systems, use tokens per second at equal load. Tokens per forward
# pass of the target then tell where a difference comes from, but they ignore $c$ and $v$ and grow with $k$.

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
# Ask which acceptance is meant. If it is α, the ceiling is 1/0.3 = 3.33, and the promise is impossible for a chain of
# draft tokens. If it is accepted over drafted, then E[N] = 1 + 0.7 k, so ask for k. Up to k = 4 the promise is
# impossible, because a cycle emits at most 3.8 tokens. Beyond that it depends on c and v; at k = 8 and v = 1, c would
# have to be at most 0.081. Also ask for the batch size, the temperature, the kind of output, and what it was compared
# with.
# </details>
#
# <details><summary>Acceptance and c are as expected, but v is twice what it was yesterday. What are two possible causes?</summary>
#
# The batch may be fuller, or the verify pass may run another kernel. The number of requests in the batch tells which.
# </details>

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
