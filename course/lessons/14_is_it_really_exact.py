# %% [markdown]
# # 14 Is it really exact?
#
# *Time:* 50 minutes · *Before this:* [06 rejection sampling](06_rejection_sampling.ipynb), [11 speculation in a server](11_speculation_in_a_server.ipynb) · *Practice:* *Your own bug*, in the middle of this lesson; [exercises 14](../exercises/14_is_it_really_exact.ipynb), ten programs from the field to repair
#
# Lesson 06 proved that speculative sampling keeps the target's distribution (Leviathan et al., 2023, arXiv:2211.17192). A
# proof says nothing about the code, and code runs in floating point. So how would you find out whether an implementation
# keeps the promise? This lesson has three answers: compute its exact distribution, run a statistical test whose power you
# know, and compare logits when two outputs differ.
#
# You will be able to
#
# - compute the exact distribution of what a sampler emits, and say which bugs a test of single tokens cannot see;
# - say how many samples a χ² test needs to find a given bias, before you run it;
# - tell rounding from a bug when two greedy outputs differ;
# - say which promise survives in float32, in bfloat16, and in a batch with other requests.

# %%
import os

import numpy as np
import torch

import minispec as ms
from minispec import exact, verify
from minispec.cpu import machine
from minispec_course import viz
from minispec_course.labs import numerics, verifiers

# %% [markdown]
# ## Can we compute what a sampler emits, instead of sampling?
#
# A sampler makes few random decisions per cycle: one to sample each draft token, one to accept or reject it, and one for the
# token at the end. If the vocabulary is small, all combinations of these decisions can be enumerated.
# [`exact_distribution`](../minispec/exact.py) does that with the code under test itself:
#
# - It passes a `random` whose numbers are placeholders. A placeholder stands for all numbers of an interval, at first [0, 1).
# - A comparison such as `random() < 0.4` splits the run in two. In one run the answer is *yes*, and the placeholder now stands
#   for [0, 0.4); in the other it is *no*, and it stands for [0.4, 1). (`pick` samples a token with a few such comparisons,
#   with the running sums of the probabilities.)
# - The lengths of the intervals at the end of a run, multiplied, are the probability of that run. `exact_distribution` follows
#   every branch and adds up these probabilities for each result.
#
# Nothing is sampled, so there is no sampling error, and the result can be compared with the target's distribution to the last
# digits.
#
# Our toy vocabulary has five tokens. As in lesson 06, $p$ is the target's distribution and $q$ the draft model's.

# %%
p = torch.tensor([0.40, 0.25, 0.20, 0.10, 0.05], dtype=torch.float64)
q = torch.tensor([0.20, 0.35, 0.15, 0.25, 0.05], dtype=torch.float64)


def right(random):
    """One cycle with one draft token; only its first token is returned."""
    d = verify.pick(q, random())
    return d if random() < verify.accept_probability(p, q, d) else verify.pick(verify.residual(p, q), random())


def emitted(sampler) -> torch.Tensor:
    found = exact.exact_distribution(sampler)
    return torch.tensor([found.get(x, 0.0) for x in range(5)], dtype=torch.float64)


def off(sampler) -> float:
    """Total variation distance between what a sampler emits and p: half the sum of the absolute differences."""
    return float((emitted(sampler) - p).abs().sum() / 2)


print("emitted:", [round(x, 6) for x in emitted(right).tolist()])
print("target: ", p.tolist())
print("off by less than 1e-15:", off(right) < 1e-15)

# %% [markdown]
# ## Predict
#
# We now do this for nineteen verifiers: two right ones, and seventeen with one bug each (testers call them *mutants*). Here
# are their names; $d$ is the draft token, and what a name does not mention is done right.

# %%
errors = verifiers.verifier_errors()
print("\n".join(errors))

# %% [markdown]
# For each of them the table below will say how far the distribution of the first token is off, how far the joint distribution
# of the first two tokens is off, and how many tokens are emitted per cycle. Go through the names and ask of each bug only
# whether it can touch the *first* token.

# %% tags=["nbval-ignore-output"]
unseen = viz.predict("How many of the 17 wrong verifiers have an exact distribution of the first token?", "verifiers")
unseen

# %% [markdown]
# ## Run

# %% tags=["spoiler"]
print(verifiers.verifier_table())

# %% [markdown]
# ## Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
unseen.reveal(sum(one < 1e-9 for name, (one, _, _) in errors.items() if name.startswith("wrong")))

# %% [markdown]
# Look at the wrong verifiers whose first column says *exact*. Most of them change only the joint distribution of two tokens.
# One changes no distribution at all: it loses the **bonus**, the token that the target's last position gives when every draft
# token is accepted, and with it some speed. So a test of single tokens is not enough, and neither is a test of distributions
# alone: count the tokens too. (All verifiers had two draft tokens per cycle, except that the wrong bonus was computed with one,
# so that it falls on the second token.)
#
# The line *accept always* is a warning of another kind. No other verifier emits more tokens per cycle, so a benchmark
# alone would call it the best.
#
# ## Bugs from the field
#
# The mutants above are ours, but the following two bugs were found in real code.
#
# **A random number used twice.** Sampling the draft token and sampling its replacement have to be independent. One path of
# vLLM used the same noise for both, until [#54282](https://github.com/vllm-project/vllm/pull/54282) gave the draft a stream
# of its own. With one random number per choice instead of a vector of noise, the same mistake looks like this:


# %%
def used_twice(random):
    u = random()
    d = verify.pick(q, u)
    return d if random() < verify.accept_probability(p, q, d) else verify.pick(verify.residual(p, q), u)


print(f"off by {off(used_twice):.4f}")

# %% [markdown]
# **Two versions of q.** If the draft token is sampled from probabilities in bfloat16, while the verifier uses a float32
# softmax of the same logits, then the $q$ of the acceptance rule is not the one that was sampled from
# ([DeepSpec #31](https://github.com/deepseek-ai/DeepSpec/issues/31)). The bias is small, but it is there.
#
# ## Your own bug
#
# Now it is your turn to plant a bug, in five minutes. Change `mine` below so that it is wrong in a way you consider hard to
# notice (*two versions of q* is a good candidate), predict how far off it will be, and run the cell. As it stands it accepts
# with $p(d)$ instead of $\min(1, p(d)/q(d))$. It returns the token and whether that token is an accepted draft token, so that
# you see the acceptance rate too. A good second try: can you find a change that is off by nothing and accepts less?


# %% tags=["nbval-ignore-output"]
def mine(random):
    d = verify.pick(q, random())
    if random() < float(p[d]):
        return d, True
    return verify.pick(verify.residual(p, q), random()), False


accepted = exact.exact_distribution(lambda random: mine(random)[1])
print(f"the right rule: off by 0.0000, accepts {float(torch.minimum(p, q).sum()):.0%} of the draft tokens")
print(f"yours: off by {off(lambda random: mine(random)[0]):.4f}, accepts {accepted.get(True, 0):.0%}")

# %% [markdown]
# ## How many samples does a statistical test need?
#
# A GPU kernel cannot be run down every branch, so it has to be tested with samples. Such a test can err in two ways, and both
# have a name. Its **level** is the probability of a false alarm, an alarm although nothing is wrong. Its **power** against a
# given bug is the probability of an alarm when that bug is there. You choose the level, and you should know the power before
# you trust a test that raises no alarm.
#
# Take a verifier that always replaces by the most likely token of the residual instead of sampling from the residual. Its
# output is off by a total variation distance of 0.05.


# %%
def likeliest(random):
    d = verify.pick(q, random())
    return d if random() < verify.accept_probability(p, q, d) else int(verify.residual(p, q).argmax())


biased = emitted(likeliest)
print("wanted: ", p.tolist())
print("emitted:", [round(x, 3) for x in biased.tolist()], f"  off by {off(likeliest):.3f}")
print(f"Σ (e − p)²/p = {float(((biased - p) ** 2 / p).sum()):.5f}")

# %% [markdown]
# The χ² test compares how often each token $x$ was seen in $n$ samples with how often it was expected:
# $\chi^2 = \sum_x (\text{seen}(x) - n p(x))^2 / (n p(x))$. Its **p-value** is the probability that samples which do come from
# $p$ give a statistic at least this large, and the test raises an alarm if that is below the level. With five tokens and a
# level of 0.001 that means a statistic above 18.47; chance alone gives about 4, one less than there are tokens. If the
# samples really come from another distribution $e$, the statistic is larger by about $n \sum_x (e(x) - p(x))^2/p(x)$, and with
# enough samples this shift stands out from chance. The cell above printed the sum for our verifier.

# %% tags=["nbval-ignore-output"]
guess = viz.predict("How many samples does a χ² test of level 0.001 need for a power of 0.95 against it?", "samples")
guess

# %% [markdown]
# With a shift of λ the statistic has a mean of $4 + λ$ and a variance of $2 (4 + 2λ)$. Take it for normally distributed, and
# an alarm has a probability of 0.95 if the mean is 1.645 standard deviations above 18.47. The next cell looks for that λ and
# divides it by the shift per sample.


# %% tags=["spoiler"]
def samples_needed(emitted: torch.Tensor) -> int:
    shift = 0.0
    while 4 + shift - 1.645 * (2 * (4 + 2 * shift)) ** 0.5 < 18.47:
        shift += 0.01
    return round(shift / float(((emitted - p) ** 2 / p).sum()))


needed = samples_needed(biased)
print(f"off by 0.050: {needed:,} samples")
for share in (0.4, 0.2, 0.1):
    print(f"off by {0.05 * share:.3f}: {samples_needed(p + share * (biased - p)):,} samples")

# %% tags=["spoiler", "nbval-ignore-output"]
guess.reveal(needed)

# %% [markdown]
# Half the distance needs four times the samples. Does the test have the power that was promised? We repeat it a thousand
# times with counts from the biased distribution, and a thousand times with counts from the right one, where each alarm is a
# false one; first with 200 samples each, then with as many as needed.

# %% tags=["spoiler"]
for samples in (200, needed):
    expected = samples * p.numpy()  # [5]
    for name, probs, seed in (("biased", biased, 0), ("right", p, 1)):
        seen = np.random.default_rng(seed).multinomial(samples, probs.numpy(), size=1000)  # [1000, 5]
        statistic = ((seen - expected) ** 2 / expected).sum(axis=1)  # [1000]
        alarms = (statistic > 18.47).sum()  # a p-value below 0.001
        print(f"{samples:5,} samples, {name:6s} distribution: {alarms:3d} alarms in 1,000 tests")

# %% [markdown]
# With enough samples the biased distribution gives somewhat more alarms than promised, because the statistic is not quite
# normal and the estimate is on the safe side. The right distribution gives a false alarm or two, where
# the level lets us expect one in a thousand. With 200 samples the wrong verifier passes nearly every time, so passing has
# shown very little. Reading some outputs and finding them fluent is weaker still.
#
# ## Three meanings of lossless
#
# | | what it says | where it ends |
# |---|---|---|
# | in theory | the emitted distribution is $p$ | nowhere, it is a theorem |
# | in the algorithm | this code does that: positions, $q$, random numbers | at the first bug, as in the tables above |
# | in floating point | the $p$ of a verification pass is the $p$ of plain decoding | in the last bits |
#
# The third is about the forward pass, not about the sampler. Sums of floating-point numbers depend on the order of their
# terms, and that order depends on the shape of the computation. A verification pass runs the target on $k + 1$ tokens, and
# plain autoregressive decoding on one, so the same logits come from sums in different orders. How large is the difference?
# (We look on the CPU, so that every reader sees the same effect; a GPU adds in yet other orders.)

# %% tags=["nbval-ignore-output"]
STORY = (
    "Once upon a time there was a little dog who lived near the river. Every morning he ran to the water to look at the "
    "fish. One day he saw a small boat, and in the boat there was a cat."
)
models = {
    kind: [ms.load(name, device="cpu", dtype=getattr(torch, kind)) for name in ("micro", "micro-draft")]
    for kind in ("float64", "float32", "bfloat16")
}
for kind, (model, _) in models.items():
    found = numerics.block_difference(model, STORY)
    print(f"{kind:9s} passes over five tokens and over one: logits differ by up to δ = {found:.2g}")

# %% [markdown]
# Write δ for this largest difference. It tells when an argmax can change: if each of the two best logits moves by at most δ,
# the gap between them changes by at most 2δ. (δ is the largest difference that we saw on one text and not a bound, so read
# every "2δ" below as "about 2δ".) In float64 and float32 that is far less than the gap usually is, so greedy outputs with and
# without speculation should nearly always agree. For these five prompts, 30 tokens each, with `micro` on a CPU, they do:

# %%
PROMPTS = ("Once upon a time", "The little dog", "One day, a girl named Lily", "In the morning", "Tom and his mother")
for kind in ("float64", "float32"):
    agree = numerics.first_divergence(*models[kind], PROMPTS) is None
    print(f"{kind}: all {len(PROMPTS)} outputs of {numerics.COUNT} tokens agree: {agree}")

# %% [markdown]
# ## When does bfloat16 change a greedy output?
#
# bfloat16 keeps eight significant bits of a number. Between 8 and 16, where `micro`'s largest logits are, neighbouring numbers
# are $2^{-4}$ apart, so the two best tokens can have logits that are *tied* or one step apart. Which of them is the argmax
# then depends on rounding, and rounding depends on the shape of the pass. We look for the first prompt where that happens, and
# print the logits that plain decoding gives both tokens there. (It depends on the machine, and on some machines no prompt of
# this list will do.)

# %% tags=["nbval-ignore-output"]
MORE = (*PROMPTS, "There was a big tree", "It was a rainy day", "A boy found a ball", "The old man", "She wanted to")
model = models["bfloat16"][0]
tie = numerics.first_divergence(*models["bfloat16"], MORE)
if tie is None:
    print("on this machine the two outputs agree for every prompt of the list")
else:
    print(f"{tie.prompt!r}: the outputs diverge at token {tie.position}")
    print("common:     ", repr(tie.prompt + model.decode(tie.plain[: tie.position])))
    print("plain:      ", repr(model.decode(tie.plain[tie.position : tie.position + 8])))
    print("speculative:", repr(model.decode(tie.speculative[tie.position : tie.position + 8])))
    names = [f"{model.decode([token])!r} (id {token})" for token in tie.pair]
    for kind in ("bfloat16", "float32"):
        pair = tie.logits(models[kind][0])
        print(f"  {kind:9s}", ", ".join(f"{token}: {x:.4f}" for token, x in zip(names, pair, strict=True)))

# %% [markdown]
# In bfloat16 the two logits are tied or a step apart, and a verify pass rounds them differently. A tie goes
# to the lower token id, because `argmax` returns the first maximum; the shape of the pass decides whether there is a tie. So
# neither output is a bug, although float32 prefers one of the two tokens. When a greedy output differs, look at the gap at
# the *first* difference ([`parting`](../benchmarks/acceptance.py) computes it), and at δ for your model and dtype:
#
# - if the gap is at most 2δ or so, rounding *can* explain the difference, but so can a small bug;
# - if it is clearly larger, suspect a bug.
#
# To decide, repeat it in float32, where δ is thousands of times smaller. On a GPU make sure that TF32 is off, or the inputs
# of "float32" matrix products are rounded to ten bits after the leading one. (PyTorch's default for matrix products is off,
# `torch.backends.cuda.matmul.allow_tf32`, but many scripts switch it on.)
#
# ## Why does a server at temperature 0 not repeat itself?
#
# Speculation is not the only thing that changes shapes. In a server the batch changes at every step, as requests come and go.
# Here one sequence is decoded alone, then in a batch with another one, then in a batch with a different one.

# %% tags=["nbval-ignore-output"]
NEIGHBOURS = [
    (prompt + " there was a king who lived in a big house near the sea, and he had a dog.") for prompt in MORE
]
for kind, (model, _) in models.items():
    ids, *neighbours = (model.encode(text)[:20] for text in (STORY, *NEIGHBOURS[:2]))
    alone = numerics.decode_logits(model, ids)
    one, other = (numerics.decode_logits(model, ids, [neighbour]) for neighbour in neighbours)
    print(f"{kind:9s} alone and in a batch of 2: {float((alone - one).abs().max()):.2g}", end=", ")
    print(f"in two different batches of 2: {float((one - other).abs().max()):.2g}")

# %% [markdown]
# The size of the batch changes the logits. The content of the other sequences does not, because in this dense model each
# sequence is computed on its own, and with the same shapes the sums have the same order. (The others have the same length
# here. In a server their *lengths* can matter too, where an attention kernel chooses its splits by the longest sequence, and in
# a mixture of experts their tokens change how many tokens each expert computes.) So the same request can give different
# bits at different loads although every kernel is deterministic. That is the main reason why servers at temperature 0 do not
# repeat themselves (He, 2025, *Defeating nondeterminism in LLM inference*).
#
# **Batch invariance** removes this cause. A batch-invariant kernel adds up in an order that does not depend on which and how
# many other *requests* are in the batch: it uses a fixed tile size, and splits of a fixed size for every sum, chosen once and
# not per shape. It costs speed, because the best split for one token is not the best for a thousand.
#
# For speculation to be bit-exact, one thing more is needed: the $k + 1$ tokens of *one* request in a verification pass must
# get the bits that they would get one at a time. A kernel can be invariant over requests and still take another path for
# five queries than for one ([vLLM #54506](https://github.com/vllm-project/vllm/issues/54506) discusses it).
#
# The idea can be shown with padding. Decode one sequence as a batch of eight copies of itself: for any load of up to eight
# requests, the shape is then that of a batch of eight.

# %%
model = models["float32"][0]
ids = model.encode(STORY)[:20]
neighbours = [model.encode(text)[:20] for text in NEIGHBOURS[:7]]  # as long as ids, so the shapes are equal
padded = numerics.decode_logits(model, ids, [ids] * 7)
full = numerics.decode_logits(model, ids, neighbours)
print("a batch padded to 8 and a full batch of 8 give the same bits:", torch.equal(padded, full))

# %% [markdown]
# Padding fixes one shape. A kernel that is invariant by construction needs none: `MINISPEC_BATCH_INVARIANT=1` keeps minispec's
# compiled CPU pass for every number of tokens ([cpu/invariant](../minispec/cpu/invariant.py)). Its sums run along the
# inner dimension in one order, one accumulator per output, so only the *number* of accumulators depends on the number of
# tokens. Larger passes are cut into passes of at most eight tokens. Now the batch cannot change a bit, and neither can the
# number of draft tokens in a verify pass:

# %% tags=["nbval-ignore-output"]
crowd = [model.encode(text)[:20] for text in (NEIGHBOURS * 4)[:31]]
for flag in ("0", "1"):
    os.environ["MINISPEC_BATCH_INVARIANT"] = flag
    if flag == "1" and machine.compiled() is None:
        print("flag on: needs numba, which is not installed here")
        continue
    alone, batch = numerics.decode_logits(model, ids), numerics.decode_logits(model, ids, crowd)
    several = numerics.block_difference(model, STORY)
    print(
        f"flag {'on: ' if flag == '1' else 'off:'} alone and in a batch of 32 {float((alone - batch).abs().max()):.2g},",
        end=" ",
    )
    print(f"passes over five tokens and over one {several:.2g}")
os.environ["MINISPEC_BATCH_INVARIANT"] = "0"

# %% [markdown]
# On a GPU the flag does the same for minispec's kernels: every product takes 16 tokens to a program
# ([products](../minispec/gpu/products.py)), and attention goes along the slots in one run, with the same tiles for one query as
# for hundreds ([attention](../minispec/gpu/attention.py)). We ran SmolLM2 in bfloat16 on an H200, with 32 prompts and
# 128 new tokens each, and compared greedy outputs with those of plain decoding, one prompt at a time
# ([recorded](../docs/results/invariant_h200.json) by `tests/gpu/invariant_checks.py`):
#
# | | flag off | flag on |
# |---|---:|---:|
# | equal outputs: a batch of 32 | 28 | 32 |
# | a draft model with $k = 4$, one prompt at a time | 30 | 32 |
# | an engine that serves all 32 | 19 | 32 |
# | the engine with the draft model | 19 | 32 |
# | tokens per second: one short prompt | 1,184 | 1,241 |
# | one prompt of 1,140 tokens, its processing included | 925 | 747 |
# | an engine with 16 requests | 13,840 | 13,651 |
#
# So speculation in bfloat16 can be bit-exact, and for short contexts it costs next to nothing. A long context pays: its keys
# are read by one program per key/value head, where otherwise many share them (split K, lesson 13). And a *tree* of drafts is
# not covered. Its accepted tokens lie in other slots than plain decoding's, so their keys are added up in another order.

# %% [markdown]
# ## Which promise survives where?
#
# | | greedy: the same tokens as plain decoding | sampling: the same distribution |
# |---|---|---|
# | exact arithmetic | yes | yes |
# | float32 | yes, unless two logits tie to about six digits | yes, up to differences of that size in $p$ |
# | bfloat16 | at least until the first gap below 2δ | up to rounding of $p$ |
# | bfloat16, batch-invariant over requests | the same tokens at every load; speculation may still differ | up to rounding of $p$; repeatable with a seed per request |
# | bfloat16, verification and decode passes with equal bits | yes | yes: both use the same rounded $p$ |
#
# The table says nothing about *the same tokens* under sampling, and this surprises people most: with a temperature above 0,
# outputs with and without speculation in general differ for the same seed, in any dtype, because random numbers are used in
# another order.
# Both follow the same distribution, as far as the table says for their dtype.

# %% [markdown]
# ## In production
#
# vLLM's documentation separates three similar meanings. It calls the sampler lossless up to the numerics of the hardware, says
# that its implementation is tested for that (the `RejectionSampler` with samples against a known distribution), and does not
# guarantee that log-probabilities are stable from run to run. `VLLM_BATCH_INVARIANT=1` switches its batch-invariant
# kernels on. transformers' maintainers give the same explanation as this lesson when assisted generation differs from greedy
# decoding ([#39421](https://github.com/huggingface/transformers/issues/39421)): a matrix product over five tokens runs another
# kernel than one over a single token.
#
# For a system of your own, test in this order: exact distributions of the sampler on a toy vocabulary; token counts; joint
# distributions of two tokens; a χ² test of the real kernel with a stated power; greedy outputs in float32; and in bfloat16
# the logit gap at every first difference.

# %% [markdown]
# ## Check yourself
#
# <details><summary>A colleague's sampler passes a χ² test of single tokens with a million samples. Name two bugs that may still
# be in it.</summary>
#
# One acceptance number shared by all positions of a cycle (independent of the numbers that sample tokens), or draft tokens that
# are judged past a rejection: both change only the joint distribution. Another one is a missing bonus, which changes no
# distribution and costs speed.
# </details>
#
# <details><summary>With and without speculation, a greedy output in bfloat16 differs from token 40 on. What do you compute
# first?</summary>
#
# The gap between the logits of the two tokens at position 40, in both passes, and δ, the largest difference between logits of
# the two kinds of pass. Rounding can explain a gap of up to about 2δ, and a clearly larger one points to a bug. To decide,
# repeat it in float32, where δ is thousands of times smaller.
# </details>
#
# <details><summary>A server answers the same greedy request differently at noon and at night, although all kernels are
# deterministic. How is that possible?</summary>
#
# The batch has another size at night, so other kernels or other splits of the sums are chosen, and a near-tie between two
# logits is decided the other way.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Leviathan, Kalman, Matias, 2023: *Fast inference from transformers via speculative decoding*
#   ([arXiv:2211.17192](https://arxiv.org/abs/2211.17192)): what exactly is promised, and under which assumptions.
# - He, 2025: *Defeating nondeterminism in LLM inference* ([blog, September
#   2025](https://thinkingmachines.ai/blog/defeating-nondeterminism-in-llm-inference/)): batch invariance, with kernels
#   to try.
# - Sun et al., 2025: *Block verification accelerates speculative decoding*
#   ([arXiv:2403.10444](https://arxiv.org/abs/2403.10444)): another lossless rule, and a good test of your test.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - `minispec drill` asks `numerics-of-lossless`, `test-lossless`.
# - [15 The frontier](15_the_frontier.ipynb): other rules, vocabularies and sampling options, checked by the same exact
#   distributions. In [16 Beyond one GPU](16_beyond_one_gpu.ipynb) sums are split over devices, and added up in yet another
#   order.
