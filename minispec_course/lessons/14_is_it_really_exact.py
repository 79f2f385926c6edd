# %% [markdown]
# # 14 Is it really exact?
#
# *Time:* 45 minutes · *Before this:* [05 Draft and verify](05_draft_and_verify.ipynb), [06 Rejection sampling](06_rejection_sampling.ipynb) · *Practice:* [exercises 14](../exercises/14_is_it_really_exact.ipynb), ten programs from the field to repair
#
# This lesson changes **no number on the dashboard**. It asks whether you were allowed to change them: do the sampler of
# lesson 06 and the loop of lesson 05, as you wrote them, still say what the target alone would have said?
#
# Lesson 06 proved the rule of speculative sampling (Leviathan et al., 2023, arXiv:2211.17192). A proof says nothing about
# code, and code runs in floating point. So here is *your* code on trial: first by computing everything that it can ever
# emit, then by statistics, then in bfloat16.
#
# You will be able to
#
# - compute the exact distribution of what a decoder emits, and say which bugs a test of single tokens cannot see;
# - say how many samples a χ² test needs to find a given bias, before you run it;
# - tell rounding from a bug when two greedy outputs differ.

# %%
from itertools import combinations

import numpy as np
import torch

import minispec as ms
from minispec import exact
from minispec.verify import accept_probability, pick, residual
from minispec_course import viz
from minispec_course.check import mine, yours
from minispec_course.exercises.fakes import ScriptedModel, continuation, whole_text, wrong_at
from minispec_course.labs import numerics, verifiers

sampler, loop = mine("06.sampler"), mine("05.loop")  # yours, if you wrote them

# %% [markdown]
# ## Compute instead of sampling
#
# A sampler makes few random decisions per cycle. If the vocabulary is small, we can follow all of them.
# [`exact_distribution`](../minispec/exact.py) runs your code itself, with a `random` that returns placeholders. A
# placeholder stands for all numbers of an interval, at first [0, 1). A comparison such as `random() < 0.4` splits the run in
# two: in one it stands for [0, 0.4), in the other for [0.4, 1). The lengths of the intervals at the end of a run, multiplied,
# are the probability of that run.
#
# Our toy has five tokens, and both models are tables: they map a context to a distribution, $p$ for the target and $q$ for
# the draft model. This is one cycle of your decoder on it:

# %%
target, draft = verifiers.TOY.target, verifiers.TOY.draft  # context → distribution [5]


def one_cycle(context, random, sampler=sampler, k=2):
    """Draft k tokens, then let a sampler decide: the emitted tokens."""
    drafted = []
    for _ in range(k):
        drafted.append(pick(draft((*context, *drafted)), random()))
    p = torch.stack([target((*context, *drafted[:i])) for i in range(k + 1)])  # [k + 1, V]
    q = torch.stack([draft((*context, *drafted[:i])) for i in range(k)])  # [k, V]
    return tuple(sampler(p, q, drafted, random))


outputs = exact.exact_distribution(lambda random: one_cycle((), random))
first = [sum(probability for output, probability in outputs.items() if output[0] == x) for x in range(5)]
print(len(outputs), "different outputs of one to three tokens")
print("first token:", [round(x, 6) for x in first])
print("target:     ", target(()).tolist())

# %% [markdown]
# The first token is exact. But a decoder emits sequences, and a bug may hide in how tokens depend on one another.
#
# ### Yours: cycle after cycle
#
# `cycle(context)` returns what one cycle may emit after a context, a dictionary from tuples of tokens to probabilities, like
# `outputs` above. Return the distribution of the first `n` tokens that the decoder emits. An output may be longer than that,
# and then it is cut. It may be shorter, and then another cycle follows, after a longer context.


# %%
@yours("14.joint")
def first_tokens(cycle, n: int, context: tuple = ()) -> dict[tuple, float]:
    """The distribution of the first n tokens when cycles follow one another."""
    ### BEGIN SOLUTION: for every output of a cycle, what is still missing? The function itself knows
    found = {}
    for output, probability in cycle(context).items():
        head = output[:n]
        rest = first_tokens(cycle, n - len(head), context + head) if len(head) < n else {(): 1.0}
        for later, p in rest.items():
            found[head + later] = found.get(head + later, 0.0) + probability * p
    return found
    ### END SOLUTION


# %%
def emitted_by(sampler, n=2):
    """The distribution of the first n tokens of a decoder with this sampler."""
    return first_tokens(lambda context: exact.exact_distribution(lambda u: one_cycle(context, u, sampler)), n)


wanted = first_tokens(
    lambda context: exact.plain_distribution(target, context), 2
)  # plain decoding: one token per cycle


def off(found, wanted=wanted) -> float:
    """Total variation distance: half the sum of the absolute differences."""
    return exact.total_variation(found, wanted)


print(
    f"two tokens of your decoder: {len(emitted_by(sampler))} outcomes, off by less than 1e-14: {off(emitted_by(sampler)) < 1e-14}"
)

# %% [markdown]
# That is a proof for this toy: *every* pair of tokens has exactly the target's probability.
#
# And the greedy loop? It has no random numbers, but its caches can go wrong, and that depends on which draft tokens are
# right. So follow all possibilities: scripted models whose next token depends on the whole cache, and a draft model that is
# wrong at every possible set of positions.

# %%
prompt, count, tried, failed = [3, 1, 4], 5, 0, 0
for k in (1, 2, 3):
    places = range(len(prompt), len(prompt) + count + k)
    for wrong in (set(chosen) for size in range(len(places) + 1) for chosen in combinations(places, size)):
        models = [ScriptedModel("model", rule, prompt[:-1], 99) for rule in (whole_text, wrong_at(wrong))]
        tried, failed = tried + 1, failed + (loop(*models, prompt, k, count) != continuation(prompt, count))
print(f"your loop: {tried} patterns of right and wrong draft tokens, {failed} wrong outputs")

# %% [markdown]
# ## Seventeen wrong verifiers
#
# Would the method have found a bug? Here are two right verifiers and seventeen with one bug each (testers call them
# *mutants*). $d$ is the draft token; what a name does not mention is done right.

# %%
errors = verifiers.verifier_errors(first_tokens)
print("\n".join(errors))

# %% [markdown]
# Go through the names and ask of each bug only whether it can touch the *first* token. Each verifier drafts two tokens per
# cycle, except the one with the wrong bonus, which drafts one, so that the bonus is the second token.

# %% tags=["nbval-ignore-output"]
unseen = viz.predict("How many of the 17 wrong verifiers have an exact distribution of the first token?", "verifiers")
unseen

# %% tags=["spoiler"]
print(f"{'off by':44s} one token  two tokens  tokens per cycle")
for name, (one, two, tokens) in errors.items():
    one, two = ("exact" if x < 1e-9 else f"{x:.4f}" for x in (one, two))
    print(f"{name:44s} {one:>9s}  {two:>10s}  {tokens:.4f}")

# %% tags=["spoiler", "nbval-ignore-output"]
unseen.reveal(sum(one < 1e-9 for name, (one, _, _) in errors.items() if name.startswith("wrong")))

# %% [markdown]
# Most of those whose first column says *exact* change only the joint distribution of two tokens, so **a test of single
# tokens is not enough**. One changes no distribution at all: it loses the bonus, and with it some speed, so count the tokens
# as well. And look at *accept always* and *goes on past a rejection*: no verifier emits more tokens per cycle, so a
# benchmark alone would call them the best.
#
# ## A bug from the field
#
# This bug has been [reported](https://github.com/jaymody/speculative-sampling/issues/3) more than
# [once](https://github.com/alibaba/rtp-llm/pull/1311): the drafter is greedy, and the output no longer follows the
# target. The unit test of the acceptance rule passes.


# %%
def reported(p, q, random):
    """One position: the emitted token, and whether it is the accepted draft token."""
    d = int(q.argmax())
    if random() < accept_probability(p, q, d):
        return d, True
    return pick(residual(p, q), random()), False


# %% [markdown]
# ### Yours: the repair
#
# The drafter has to stay greedy. Which $q$ belongs to a token that was not sampled?


# %%
@yours("14.argmax_draft")
def repaired(p: torch.Tensor, q: torch.Tensor, random) -> tuple[int, bool]:
    """One position: draft greedily, verify by rejection sampling. The emitted token must follow p."""
    ### BEGIN SOLUTION: with which probability is d proposed?
    d = int(q.argmax())
    certain = torch.zeros_like(q)
    certain[d] = 1.0
    if random() < accept_probability(p, certain, d):
        return d, True
    return pick(residual(p, certain), random()), False
    ### END SOLUTION


# %%
p, q = target(()), draft(())
for name, program in (("as reported", reported), ("repaired", repaired)):
    found = exact.exact_distribution(lambda random, program=program: program(p, q, random)[0])
    away = off(found, dict(enumerate(p.tolist())))
    print(
        f"{name:12} off by {away:.3f}, emits token {int(q.argmax())} with {found[int(q.argmax())]:.2f}, p says {p[q.argmax()]:.2f}"
    )

# %% [markdown]
# ## Your own bug
#
# Now plant one. Change the sampler below so that it is wrong in a way that you consider hard to notice, predict how far off
# it will be, and run the cell. As it stands, all tests of a cycle share one random number. Can you find a bug that is exact
# in the first column and nearly exact in the second? One that is exact in both, and slower?


# %% tags=["nbval-ignore-output"]
def my_bug(p, q, drafted, random):
    u = random()
    for i, d in enumerate(drafted):
        if not u < accept_probability(p[i], q[i], d):
            return [*drafted[:i], pick(residual(p[i], q[i]), random())]
    return [*drafted, pick(p[-1], random())]


for name, each in (("your sampler", sampler), ("your bug", my_bug)):
    one, two = (
        off(emitted_by(each, n), first_tokens(lambda c: exact.plain_distribution(target, c), n)) for n in (1, 2)
    )
    cycles = exact.exact_distribution(lambda random, each=each: one_cycle((), random, each))
    length = sum(len(run) * probability for run, probability in cycles.items())
    print(f"{name:12} one token off by {one:.4f}, two tokens by {two:.4f}, {length:.3f} tokens per cycle")

# %% [markdown]
# ## How many samples does a statistical test need?
#
# A GPU kernel cannot be run down every branch, so it has to be tested with samples. Such a test can err in two ways. Its
# **level** is the probability of an alarm although nothing is wrong; its **power** against a given bug is the probability of
# an alarm when that bug is there. Know the power before you trust a test that raises no alarm.
#
# The χ² test compares how often each token was seen in $n$ samples with how often it was expected, by the sum of (seen −
# expected)² / expected. If nothing is wrong, this statistic has the mean 4, the number of tokens minus 1, and exceeds 18.47
# once in 1,000 tests: that is level 0.001. Take a verifier that replaces a rejected token by the *most likely* token of the
# residual. (For your guess, the order of magnitude is enough.)


# %%
def likeliest(random):
    d = pick(q, random())
    return d if random() < accept_probability(p, q, d) else int(residual(p, q).argmax())


found = exact.exact_distribution(likeliest)
biased = torch.tensor([found.get(x, 0.0) for x in range(5)], dtype=torch.float64)
print("wanted: ", p.tolist())
print("emitted:", [round(x, 3) for x in biased.tolist()], f"  off by {exact.total_variation(biased, p):.3f}")

# %% tags=["nbval-ignore-output"]
samples_guess = viz.predict("How many samples until a χ² test (level 0.001) finds it 95 times in 100?", "samples")
samples_guess

# %% [markdown]
# Samples from another distribution $e$ shift the statistic by $λ = n \sum_x (e(x) - p(x))^2 / p(x)$; its mean is then
# $4 + λ$ and its variance $2(4 + 2λ)$. A normal variable is more than 1.645 standard deviations below its mean in 5 % of
# cases. So we look for the λ whose mean is 1.645 standard deviations above 18.47.


# %% tags=["spoiler"]
def samples_needed(emitted: torch.Tensor) -> int:
    shift = 0.0
    while 4 + shift - 1.645 * (2 * (4 + 2 * shift)) ** 0.5 < 18.47:
        shift += 0.01
    return 10 * round(shift / float(((emitted - p) ** 2 / p).sum()) / 10)


needed = samples_needed(biased)
for share in (1, 0.2):
    print(f"off by {0.05 * share:.2f}: {samples_needed(p + share * (biased - p)):,} samples")
for samples in (200, needed):
    expected = samples * p.numpy()  # [5]
    seen = np.random.default_rng(0).multinomial(samples, biased.numpy(), size=1000)  # [1000, 5]: a thousand tests
    alarms = (((seen - expected) ** 2 / expected).sum(axis=1) > 18.47).sum()
    print(f"{samples:5,} samples: an alarm in {alarms / 10:.0f} % of 1,000 tests of the wrong verifier")

# %% tags=["spoiler", "nbval-ignore-output"]
samples_guess.reveal(needed)

# %% [markdown]
# A fifth of the distance needs 25 times the samples. The last line has 98 % alarms where 95 % were asked for, because the
# normal approximation is cautious, by just under a tenth of the samples. With 200 samples the wrong verifier nearly
# always passes, so passing shows very little.
#
# ## And in floating point?
#
# So far we tested the sampler. Its $p$ comes from a forward pass, and sums of floating-point numbers depend on the order of
# their terms. A verify pass runs the target on $k + 1$ tokens, plain decoding on one: other shapes, other kernels, other
# orders. How large is the difference δ between their logits?

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
    print(f"{kind:9s} passes over five tokens and over one: δ = {numerics.block_difference(model, STORY):.2g}")

# %% [markdown]
# If each of the two best logits moves by at most δ, the gap between them changes by at most 2δ. In float64 and float32 that
# is far below a usual gap. In bfloat16, which keeps eight significant bits, two logits can be tied, and rounding
# decides. We look for a prompt where greedy outputs with and without speculation differ.

# %% tags=["nbval-ignore-output"]
PROMPTS = ("Once upon a time", "The little dog", "One day, a girl named Lily", "In the morning", "Tom and his mother")
for kind in models:
    tie = numerics.first_divergence(*models[kind], PROMPTS)
    if tie is None:
        print(f"{kind}: all {len(PROMPTS)} outputs agree")
        continue
    print(f"{kind}: {tie.prompt!r} diverges at token {tie.position}; logits of the two tokens there:")
    for each in ("bfloat16", "float32"):
        print(f"    {each:9s}", "  ".join(f"{x:.4f}" for x in tie.logits(models[each][0])))

# %% [markdown]
# Neither output is wrong. When a greedy output differs, look at the gap at the *first* difference, because after it the two
# runs have different contexts:
#
# - if the gap is at most about 2δ, rounding *can* explain it, but so can a small bug;
# - if it is clearly larger, suspect a bug.
#
# To decide, repeat it in float32 (on a GPU with TF32 off), where δ is about ten thousand times smaller.
#
# ## Why does a server at temperature 0 answer the same request differently?
#
# Shapes change without speculation as well: a server's batch changes at every step.

# %% tags=["nbval-ignore-output"]
others = [f"{prompt} there was a king who lived in a big house near the sea, and he had a dog." for prompt in PROMPTS]
for kind, (model, _) in models.items():
    ids, *neighbours = (model.encode(text)[:20] for text in (STORY, *others[:2]))
    alone = numerics.decode_logits(model, ids)
    one, other = (numerics.decode_logits(model, ids, [neighbour]) for neighbour in neighbours)
    print(f"{kind:9s} alone and in a batch of 2: {float((alone - one).abs().max()):.2g}", end=", ")
    print(f"in two different batches of 2: {float((one - other).abs().max()):.2g}")

# %% [markdown]
# Here the *size* of the batch changed the logits, and the content of the neighbours did not. In a server their lengths and
# the mix of prefill and decode also change shapes. So a request can give different bits at different loads although every
# kernel is deterministic (He, 2025, *Defeating nondeterminism in LLM inference*). **Batch-invariant** kernels remove this
# cause: they add up in an order that is fixed and not chosen per shape. For speculation to be bit-exact, the $k + 1$ tokens
# of one request in a verify pass must also get exactly the bits that they would get one at a time. With
# `MINISPEC_BATCH_INVARIANT=1` minispec's kernels do both. We ran SmolLM2 in bfloat16 on an H200, 32 prompts with 128 new
# tokens each, and counted the greedy outputs that equal plain decoding ([recorded](../docs/results/invariant_h200.json)):
#
# | | flag off | flag on |
# |---|---:|---:|
# | a batch of 32 | 28 | 32 |
# | a draft model with $k = 4$, one prompt at a time | 30 | 32 |
# | an engine that serves all 32: without, and with the draft model | 19, 19 | 32, 32 |
#
# The price is paid in longer contexts: with a prompt of 1,140 tokens, a single request fell from 925 to 747 tokens
# per second, because its keys are no longer split over many programs (lesson 13). For short prompts the two differed by
# less than 5 %.
#
# ## Which promise survives where?
#
# | | greedy: the same tokens as plain decoding | sampling: the same distribution |
# |---|---|---|
# | exact arithmetic | yes | yes |
# | float32 | yes, unless two logits tie to about six digits | yes, up to differences of that size in $p$ |
# | bfloat16 | at least until the first gap below 2δ | up to rounding: if every logit moves by at most δ, a probability changes by at most a factor of $e^{2δ}$ |
# | bfloat16, bit-identical verify and decode passes | yes | yes: both use the same rounded $p$ |
#
# Under sampling the *tokens* differ in general with and without speculation for the same seed, in any dtype, because random
# numbers are used in a different order. Only the distribution is the same.

# %% tags=["nbval-ignore-output"]
viz.dashboard("14")

# %% [markdown]
# ## In production
#
# vLLM's documentation calls the sampler lossless up to the numerics of the hardware, tests its `RejectionSampler` with
# samples against a known distribution, and does not guarantee stable log-probabilities. `VLLM_BATCH_INVARIANT=1` switches
# its batch-invariant kernels on.
#
# For a system of your own, test in this order: exact distributions of the sampler on a toy vocabulary; joint distributions of
# two tokens; token counts; a χ² test of the real kernel with a stated power; greedy outputs in float32; and in bfloat16 the
# logit gap at every first difference.
#
# <details><summary>Go deeper: three more bugs from the field</summary>
#
# *A random number used twice.* One path of vLLM used the same noise to sample the draft token and its replacement, until
# [#54282](https://github.com/vllm-project/vllm/pull/54282). *Two versions of q.* The draft token is sampled from
# probabilities in bfloat16, and the verifier uses a float32 softmax of the same logits
# ([DeepSpec #31](https://github.com/deepseek-ai/DeepSpec/issues/31)). *Another path for five queries.* A kernel can be
# invariant over requests and still differ between one query and five
# ([vLLM #54506](https://github.com/vllm-project/vllm/issues/54506)).
# </details>
#
# ## Check yourself
#
# <details><summary>A sampler passes a χ² test of single tokens with a million samples. Name two bugs that may still be in
# it.</summary>
#
# One acceptance number shared by all positions of a cycle, or draft tokens that are judged past a rejection: both change only
# the joint distribution.
# </details>
#
# <details><summary>With and without speculation, a greedy output in bfloat16 differs from token 40 on. What do you compute
# first?</summary>
#
# The gap between the logits of the two tokens at position 40, and δ for your model and dtype.
# </details>
#
# <details><summary>A server answers the same greedy request differently at noon and at night, although all kernels are
# deterministic. How is that possible?</summary>
#
# The batch has a different size at night, so sums are split differently, and a near-tie between two logits is decided the other
# way.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Leviathan, Kalman, Matias, 2023: section 2 and its appendix ([arXiv:2211.17192](https://arxiv.org/abs/2211.17192)): what exactly is promised, and under
#   which assumptions.
# - He, 2025: *Defeating nondeterminism in LLM inference* ([blog, September
#   2025](https://thinkingmachines.ai/blog/defeating-nondeterminism-in-llm-inference/)): batch invariance, with kernels to try.
#
# All papers: [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - Ten programs from the field: [exercises 14](../exercises/14_is_it_really_exact.ipynb).
# - Interview questions (`minispec drill`): `numerics-of-lossless`, `test-lossless`.
# - [15 Beyond the chain](15_beyond_the_chain.ipynb): other rules and vocabularies, checked by the same exact distributions.
