# %% [markdown]
# # 07 How fast
#
# *Time:* 55 minutes · *Before this:* [06 Rejection sampling](06_rejection_sampling.ipynb) · *Practice:* [exercises 07](../exercises/07_how_fast.ipynb)
#
# In lesson 00 some drafts paid and others lost time. Speculation never changes the distribution of the output, so all it
# can change is **ms per token**. Three numbers decide by how much: acceptance, and what drafting and verifying cost.
#
# You will write the formula that joins them (Leviathan et al., 2023, arXiv:2211.17192) and compare it with the clock of
# your own machine. Then you run it in reverse, to find out why five set-ups are slow. *Optional* sections are not
# included in the time above.
#
# You will be able to
#
# - derive the speed-up on paper, and name its two ceilings;
# - choose the draft length from measured numbers;
# - say from a trace why a set-up is slow (optional).

# %%
import minispec as ms
from minispec_course import viz
from minispec_course.check import draw, yours
from minispec_course.labs import slower
from minispec_course.labs.pairs import course_pair, where
from minispec_tools import demo, why

runs = slower.cases()  # recorded, for the optional sections

# %% [markdown]
# ## How many tokens does a cycle emit?
#
# Let $\alpha$ be the probability that a draft token is accepted, given that all those before it were. For now we take
# it to be the same for every draft token. (It is the average of lesson 06's overlap.) Suppose that drafting is free, so
# we draft 100 tokens.

# %% tags=["nbval-ignore-output"]
tokens_guess = viz.predict(
    "Each of 100 draft tokens is accepted with α = 0.8. How many tokens does a cycle emit on average?", "tokens"
)
tokens_guess

# %% [markdown]
# ### Yours: the expected number of tokens
#
# The first rejection ends the cycle. So draft token $i$ is emitted only if it and all before it are accepted, which has
# probability $\alpha^i$. One more token always follows, the correction or the bonus. The mean number of emitted tokens is
#
# $$E[N] = 1 + \alpha + \alpha^2 + \dots + \alpha^k = \frac{1 - \alpha^{k+1}}{1 - \alpha}$$
#
# The quotient needs α < 1. Your function must also be right at α = 0 and α = 1.


# %%
@yours("07.expected_tokens")
def expected_tokens(alpha: float, k: int) -> float:
    """The mean number of tokens that a cycle with k draft tokens emits."""
    ### BEGIN SOLUTION: the sum of the powers of α, or its closed form with α = 1 as a special case
    return sum(alpha**i for i in range(k + 1))
    ### END SOLUTION


# %% tags=["spoiler"]
print(f"α = 0.8, k = 100: {expected_tokens(0.8, 100):.2f} tokens per cycle")
for alpha in (0.4, 0.7, 0.9):
    print(f"α = {alpha}:", *(f"k = {k}: {expected_tokens(alpha, k):.2f}" for k in (1, 2, 4, 8, 16)), sep="   ")

# %% tags=["spoiler", "nbval-ignore-output"]
tokens_guess.reveal(expected_tokens(0.8, 100))

# %% [markdown]
# However long the draft is, $E[N]$ stays below $1/(1 - \alpha)$. Since a cycle takes at least one forward pass of the
# target, this is a **ceiling of the speed-up** as well: a chain (one draft sequence per cycle; trees come later) with α
# = 0.8 is never more than 5 times as fast as plain decoding.
#
# ## What does a cycle cost?
#
# Our unit of time is one plain pass of the target, that is, over a single token:
#
# | | time, in plain passes |
# |---|---|
# | drafting one token | $c = t_{draft} / t_{target}$ |
# | verifying $k$ draft tokens in one pass | $v = t_{verify}(k + 1) / t_{target}(1) \ge 1$ |
# | a cycle | $k c + v$ |
# | plain decoding of as many tokens | $E[N]$ |
#
# Here is a recorded cycle on an H200, above the plain steps that it replaces. The model has the shape of an 8B model and
# random weights; acceptance was set by hand, times measured. The speed-up is the length of the lower bar divided by
# that of the upper one. The formula leaves out the grey end.

# %%
viz.cycle_over_steps()

# %% [markdown]
# ### Yours: the speed-up
#
# Use your `expected_tokens`.


# %%
@yours("07.speedup")
def speedup(alpha: float, k: int, c: float, v: float) -> float:
    """How many times as fast as plain decoding."""
    ### BEGIN SOLUTION: the lower bar over the upper bar
    return expected_tokens(alpha, k) / (k * c + v)
    ### END SOLUTION


# %% tags=["nbval-ignore-output"]
draw("07.speedup", speedup)

# %% [markdown]
# Every curve has a best $k$, and the lowest falls below 1. Many texts set $v = 1$, as if a pass
# over five tokens always took as long as a pass over one. See what $v$ alone can do:

# %%
for v in (1.0, 1.3, 2.5):
    print(f"α = 0.7, k = 4, c = 0.1, v = {v}: {speedup(0.7, 4, 0.1, v):.2f} times as fast")
for c in (0.5, 0.25):
    print(f"every draft token accepted, k = 100, c = {c}: {speedup(1.0, 100, c, 1.0):.2f} times as fast")

# %% [markdown]
# A $v$ of 2.5 turns the gain into a loss. The last two lines show the second ceiling, $1/c$. It is why an INT8 copy of
# a 16-bit target is a poor draft model: it agrees with the target nearly always, but reads half the bytes, so
# $c \approx 0.5$ and the speed-up stays below 2.
#
# ## Which draft length?
#
# Draft another token as long as $\alpha^{k+1}/c$, what it adds per unit of cost, exceeds the speed-up you already have.
# That is the rule for a $v$ that does not depend on $k$. In general it does, often in steps, so it is safer to try all
# lengths. (For $k = 1$ and $v = 1$ drafting pays if α exceeds $c$.)
#
# ### Yours: the best k
#
# `v[k]` is what verifying $k$ draft tokens costs, for $k$ from 0 to the longest draft. Return the $k$ with the greatest
# speed-up, and 0 if none beats plain decoding. Of equals return the smallest.


# %%
@yours("07.best_k")
def best_k(alpha: float, c: float, v: list[float]) -> int:
    """The best number of draft tokens; 0 means that it is best not to speculate."""
    ### BEGIN SOLUTION: start from plain decoding, whose speed-up is 1, and try every length
    best, most = 0, 1.0
    for k in range(1, len(v)):
        if speedup(alpha, k, c, v[k]) > most:
            best, most = k, speedup(alpha, k, c, v[k])
    return best
    ### END SOLUTION


# %%
for alpha in (0.05, 0.3, 0.5, 0.7, 0.9):
    best = {c: best_k(alpha, c, [1.0] * 33) for c in (0.02, 0.1, 0.3)}
    print(f"α = {alpha:<5}", *(f"c = {c}: best k = {k:2d}" for c, k in best.items()), sep="   ")

# %% [markdown]
# ## Your machine
#
# Measure the three numbers on your device: `micro` with `micro-draft` on a CPU, SmolLM2 with its draft model on a GPU.
# [`demo`](../minispec_tools/demo.py) generates 48 tokens, plain and with $k = 4$ in turn, and takes medians over five
# rounds.

# %% tags=["nbval-ignore-output"]
PROMPT = "One day, a little girl named Lily"
target, draft = course_pair(ms.device())
here = demo.demo(target, ms.drafters.Model(draft), PROMPT, tokens=48, k=4, temperature=0.6, repeat=5)
trace = here.out.trace
alpha, tested = trace.acceptance_rate, sum(cycle.tested for cycle in trace.cycles)
print(f"{target.name} and {draft.name} on {where(target.device)}")
error = (alpha * (1 - alpha) / tested) ** 0.5
print(f"α = {alpha:.2f} ± {error:.2f} (one standard error), c = {here.c:.2f}, v = {here.v:.2f}")
print(f"speed-up: predicted {speedup(alpha, 4, here.c, here.v):.2f}, measured {here.measured:.2f}")

# %% [markdown]
# If the result is below 1, your three numbers say why. For models as small as these $c$ is large, because their time
# does not go into reading weights, but on a CPU into Python and calls, on a GPU into kernel launches. On a GPU $v$ is
# near 1. On a CPU it lies above 1, because even a few tokens cost arithmetic (low ridge point, lesson 01). The formula
# leaves out sampling and Python between passes, which plain decoding pays for as well, so the clock may show a
# smaller or a larger gain.
#
# What would you change? Your `best_k` knows, if we take $v$ as a straight line from 1 through the value at $k = 4$.

# %% tags=["nbval-ignore-output"]
line = [max(1.0, 1 + (here.v - 1) * k / 4) for k in range(13)]
best = best_k(alpha, here.c, line)
k = max(1, best)
again = demo.demo(target, ms.drafters.Model(draft), PROMPT, tokens=48, k=k, temperature=0.6, repeat=5)
print(f"best k = {best}" + ("" if best else ", so speculation should lose"))
print(f"rerun with k = {k}: predicted {speedup(alpha, k, here.c, line[k]):.2f}, measured {again.measured:.2f}")
print(f"the rerun's numbers: α = {again.out.trace.acceptance_rate:.2f}, c = {again.c:.2f}, v = {again.v:.2f}")

# %% tags=["nbval-ignore-output"]
gains = {"plain decoding": 1.0, "k = 4": here.measured, f"k = {k}": again.measured}
fastest = max(gains, key=gains.get)
print("fastest:", fastest)
viz.dashboard("07", ms_per_token=1e3 * here.plain.median / gains[fastest])

# %% [markdown]
# If the rerun misses its prediction, compare the numbers. Short drafts are accepted whole more often, so more draft
# passes process two tokens (lesson 05), and $c$ can rise.
#
# On the left the widget shows the speed-up over α and $k$; on the right, a slice at the slider's α. The filled mark is
# what you measured, the open one the prediction. $v$ starts as the straight line from above. Choose *H200* in the
# menu, the recorded run. Then raise $v$, first growing with $k$, then by the same amount for every $k$. Where does each
# move the best $k$?

# %% tags=["nbval-ignore-output"]
viz.surface([here, viz.Dot.recorded()])

# %% [markdown]
# <details><summary>Answer</summary>
#
# A cost that grows with $k$ makes the best $k$ smaller. One that is the same for every $k$ makes it larger, because a
# longer draft spreads it over more tokens.
# </details>
#
# ## Two acceptance rates
#
# A draft token is *tested* if all those before it were accepted. Accepted over tested estimates α, and the formula
# needs it. Accepted over *drafted* also counts the draft tokens after a rejection. It is lower, it falls with $k$, and
# it is what vLLM logs.

# %%
for k in (2, 4, 8):
    print(f"α = 0.8, k = {k}: {(expected_tokens(0.8, k) - 1) / k:.2f} of all draft tokens are accepted")

# %% [markdown]
# If you have only the second rate $r$, then $E[N] = 1 + k r$ at this $k$. For another $k$, find the α that gives this
# $E[N]$.
#
# ## One α is a simplification (optional, 10 minutes)
#
# Here is a recorded run with sixteen draft tokens per cycle.

# %% tags=["nbval-ignore-output"]
position_guess = viz.predict(
    "Position 1 of the draft: 0.67 accepted. At position 10, what fraction of the tested tokens is accepted?"
)
position_guess

# %% tags=["spoiler"]
wide = runs["k too large"].trace
rates = wide.acceptance_by_position
print("position:", *(f"{i:5d}" for i in range(1, 17)))
print("accepted:", *(f"{rate:5.2f}" for rate in rates))
print("cycles:  ", *(f"{sum(cycle.tested > i for cycle in wide.cycles):5d}" for i in range(16)))

# %% tags=["spoiler", "nbval-ignore-output"]
position_guess.reveal(rates[9])

# %% [markdown]
# The acceptance rises along the draft, with noise. All 96 cycles reach position 1, but only 13 reach position 10, and
# those are the ones in which the text was easy to predict. This is **survivorship**. Story by story, twelve cycles
# each:

# %% tags=["spoiler"]
stories = [wide.cycles[i : i + 12] for i in range(0, 96, 12)]
print("tokens per pass:", *(f"{sum(cycle.accepted + 1 for cycle in story) / 12:.2f}" for story in stories))
print(f"all together {wide.tokens_per_cycle:.2f}, by one α {expected_tokens(wide.acceptance_rate, 16):.2f}")

# %% [markdown]
# Three stories are easy and five are not. One α predicts too much, because easy stretches supply most of the tested
# tokens. So when you predict another $k$ from a trace, use the rate of each position:
# $E[N] = 1 + \alpha_1 + \alpha_1\alpha_2 + \dots$
#
# ## A full machine
#
# Speculation does not save arithmetic: the target computes $k + 1$ positions for every $E[N]$ tokens. That is free only
# while arithmetic units are idle. Here is the 8B shape on the H200, again with
# random weights and acceptance set by hand, $k = 4$, after 500 tokens of context.

# %% tags=["nbval-ignore-output"]
batch_guess = viz.predict("1.66 times as fast with 32 users in the batch. And with 128?", "times")
batch_guess

# %% tags=["spoiler"]
recorded = {dot.batch: dot for dot in viz.BatchDot.recorded()}
for batch in (32, 64, 128):
    dot, roofline = recorded[batch], viz.roofline_at(batch, context=500, k=4)
    said = f"α = {dot.alpha:.2f}, v = {dot.v:.2f} (roofline {roofline.v:.2f})"
    print(f"batch {batch:3d}: {said}, measured {dot.measured:.2f} times as fast")

# %% tags=["spoiler", "nbval-ignore-output"]
batch_guess.reveal(recorded[128].measured)

# %% [markdown]
# $v$ grows with the batch, and the gain shrinks: at batch 128 a gain of 16 % is left. The roofline's $v$ is too low at 32,
# where real kernels slow down before the ridge. It is too high at 128, where the plain pass does not reach the full
# bandwidth either, which makes $v$ smaller. (This roofline counts the reading of caches, which takes equally long in
# both passes. So its $v$ is smaller than lesson 01's.)
#
# ## Why is it slower? (optional, 15 minutes)
#
# Now run the formula in reverse. Five set-ups of `micro` and `micro-draft`, recorded on one core of another CPU, are
# slower than plain decoding. Each has one fault, which shows in one of α, $k$, $c$ and $v$:
#
# - **mismatched draft**: the draft model does not fit this target;
# - **k too large**: late draft tokens cost as much as early ones and are rarely reached;
# - **launch overhead**: every layer has a fixed cost (on a GPU, its launches), and the draft model has many thin ones;
# - **full batch**: a pass has no idle arithmetic left;
# - **wrong kernel**: the verify pass runs on a kernel that is slow for several tokens.
#
# *valid* is the same pair without a fault. *c by bytes* is what fraction of the target's bytes the draft model reads.
# The measured $c$ is larger, because calls and layers have fixed costs. *Measured* is by the clock, with sampling and
# Python on both sides: time per token plain, divided by speculative, each the median over eight stories.

# %%
print(slower.table(runs))
print(f"a plain pass took {1e3 * runs['sound'].one_pass:.1f} ms in the valid run")

# %% [markdown]
# On a CPU your own $c$ for this pair is probably larger. These passes ran layer by layer in torch. Today a pass is
# one compiled function and takes a fraction of the time, while sampling and Python cost as much as before: **a
# faster target makes the same drafter relatively expensive.**
#
# To test a suspicion, replace that one number with its value from the valid run, and predict again. If this lifts the
# prediction above 1, you have found it. `cure` does it with your `speedup`; try your own suspects.


# %%
def cure(number: int, **right) -> float:
    """The predicted speed-up of a set-up, with some of its numbers put right."""
    run = runs[slower.unnamed_order(runs)[number - 1]]
    return speedup(**{"alpha": run.alpha, "k": run.k, "c": run.c, "v": run.v} | right)


print(f"set-up 3: {cure(3):.2f}; with c = 0.29: {cure(3, c=0.29):.2f}; with v = 1.39: {cure(3, v=1.39):.2f}")

# %% tags=["nbval-ignore-output"]
viz.diagnose(runs)

# %% [markdown]
# In set-up 3 it is $v$. Two faults raise $v$, and the batch tells them apart. [`minispec why`](../docs/why.md) reads such
# numbers from a server's log:

# %%
third = runs[slower.unnamed_order(runs)[2]]
costs = dict(c=third.c, v=third.v, measured=third.measured, batch=third.rows)
print(why.report(why.diagnose(k=third.k, alpha=third.alpha, **costs)))

# %% [markdown]
# In set-up 2 prediction and clock differ most. Its α is higher than the others' only by survivorship:

# %%
second = runs[slower.unnamed_order(runs)[1]]
tokens = {"by one α": expected_tokens(second.alpha, second.k), "counted": second.tokens_per_pass}
for name, emitted in (tokens | {"in the median story": second.median_tokens}).items():
    print(f"{emitted:.2f} tokens per cycle {name:20} predicted {emitted / (second.k * second.c + second.v):.2f}")
print(f"measured {second.measured:.2f}; a step of plain decoding takes {second.plain / second.one_pass:.2f} passes")

# %% [markdown]
# One α explains a part. The clock shows the median story, and easy stories lift the mean. The rest goes the other way: plain
# decoding pays for sampling and Python after every token, a cycle only once.
#
# ## In production
#
# | here | vLLM | elsewhere |
# |---|---|---|
# | accepted over drafted | *draft acceptance rate* in the log | |
# | $E[N]$ | *mean acceptance length* | SGLang: *accept length* |
# | $\alpha_1 \cdots \alpha_i$ | *per-position acceptance rate*, relative to all cycles | |
# | `k="auto"`: minispec chooses k by what it measures | fixed, or `num_speculative_tokens_per_batch_size` | SGLang: `--speculative-adaptive` |
#
# To compare systems, use tokens per second at equal load: tokens per pass leave out $c$ and $v$.
#
# ## Check yourself
#
# <details><summary>α = 0.5, k = 2, c = 0.1, v = 1. What is the speed-up?</summary>
#
# E[N] = 1 + 0.5 + 0.25 = 1.75 tokens, and the cycle takes 1.2 plain passes, so the speed-up is 1.46.
# </details>
#
# <details><summary>A vendor promises a speed-up of 4 for a draft model with 70 % acceptance. What do you ask?</summary>
#
# Which acceptance is it? If it is α, the ceiling is 1/0.3 = 3.33, so a chain cannot do it. If it is accepted over
# drafted, E[N] = 1 + 0.7 k, and up to k = 4 a cycle emits at most 3.8 tokens. Ask for c and v, batch size, temperature
# and text.
# </details>
#
# <details><summary>v is twice what it was yesterday. Name two possible causes.</summary>
#
# The batch may be fuller, or the verify pass may run another kernel.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Leviathan, Kalman, Matias, 2023: *Fast inference from transformers via speculative decoding*
#   ([arXiv:2211.17192](https://arxiv.org/abs/2211.17192)): section 3 derives E[N] and the speed-up, with γ for our k.
# - Chen et al., 2023: *Accelerating large language model decoding with speculative sampling*
#   ([arXiv:2302.01318](https://arxiv.org/abs/2302.01318)): a measured example on a 70B model.
# - Liu et al., 2024: *Optimizing speculative decoding for serving large language models using goodput*
#   ([arXiv:2406.14066](https://arxiv.org/abs/2406.14066)): choosing the draft length in a server by load and acceptance.
#
# All papers: [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - Acceptance by position, and where speculation begins to pay: [exercises 07](../exercises/07_how_fast.ipynb).
# - Interview questions (`minispec drill`): `expected-tokens`, `speedup-formula`, `choose-k`, `break-even`,
#   `what-sets-acceptance`, `weak-draft`, `verify-cost`, `total-flops`, `ceiling-of-alpha`, `which-acceptance`,
#   `acceptance-by-position`, `adaptive-length`, `short-and-long-outputs`, `published-speedups`.
# - [08 Drafters](08_drafters.ipynb): where α and c come from.
