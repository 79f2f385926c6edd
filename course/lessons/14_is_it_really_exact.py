# %% [markdown]
# # Is it really exact?
#
# *Time:* 45 minutes · *Before this:* [06 rejection sampling](06_rejection_sampling.ipynb), [11 speculation in a server](11_speculation_in_a_server.ipynb) · *Practice:* [exercises 06](../exercises/06_rejection_sampling.ipynb), whose checks use the method of this lesson
#
# Lesson 06 proved that speculative sampling keeps the target's distribution. A proof says nothing about the code, and code
# runs in floating point. This lesson asks how you would find out whether an implementation keeps the promise: by computing
# its exact distribution, by a statistical test whose power you know, and by comparing logits when two outputs differ.
#
# You will be able to
#
# - compute the exact distribution of what a sampler emits, and say which bugs a test of single tokens cannot see;
# - say how many samples a χ² test needs to find a given bias, before you run it;
# - tell rounding from a bug when two greedy outputs differ;
# - say which promise survives in float32, in bfloat16, and in a batch with other requests.

# %%
import numpy as np
import torch

import minispec as ms
from minispec import exact, verify
from minispec.course import numerics, viz
from minispec.course.viz.goodness import chi_square, claim, draws_needed, first_token
from minispec.course.viz.places import PRESETS
from minispec.course.viz.residual import Drawn, explore
from minispec.course.viz.wrong_verifiers import VERIFIERS

# %% [markdown]
# ## Exact distributions
#
# A sampler makes few random decisions per cycle: one per draft token, and one for the token at the end. If the vocabulary is
# small, all ways these decisions can fall can be enumerated. [`exact_distribution`](../minispec/exact.py) does that: it runs
# the same code once for each branch of its random numbers and adds up the probabilities. The result has no sampling error,
# so it can be compared with the target's distribution to the last digit.

# %%
fair = viz.toy_place(*PRESETS["a fair draft"])
p, q = fair.target(()), fair.draft(())


def program(random):
    """One cycle with one draft token; only its first token is returned."""
    d = verify.pick(q, random())
    return d if random() < verify.accept_probability(p, q, d) else verify.pick(verify.residual(p, q), random())


found = exact.exact_distribution(program)
print("emitted:", [round(found[x], 6) for x in range(5)])
print("target: ", [round(x, 6) for x in p.tolist()])

# %% [markdown]
# ## Predict
#
# Below are nineteen verifiers: two right ones, and seventeen with one bug each (mutants, as testers say). For each of
# them three numbers are computed exactly: how far the distribution of one token is off, how far that of two tokens is off,
# and how many tokens are emitted per cycle.

# %% tags=["nbval-ignore-output"]
unseen = viz.predict("How many of the wrong verifiers have an exact distribution of the first token?", "verifiers")
unseen

# %% [markdown]
# ## Run

# %% tags=["spoiler"]
print(f"{'':36s} one token  two tokens  tokens per cycle")
exact_first = []
for name, verifier in VERIFIERS.items():
    found = explore(fair, verifier, gamma=1 if "bonus one" in name else 2)
    off = [f"{x:.4f}" if x > 1e-9 else "exact" for x in (found.one_place, found.two_places)]
    exact_first += [name] if name.startswith("wrong") and off[0] == "exact" else []
    print(f"{name:36s} {off[0]:>9s}  {off[1]:>10s}  {found.tokens:.4f}")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
unseen.reveal(len(exact_first))

# %% [markdown]
# Look at the last four lines of the table. Three bugs leave the first token exact and change only the joint distribution of
# two tokens. The last one changes no distribution at all: it loses the **bonus**, the token that the target's last position
# gives when every draft token is accepted. So a test of single tokens is not enough, and neither is a test of distributions
# alone: count the tokens too.
#
# And look at *accept always*: no verifier emits more tokens per cycle. A benchmark alone would call it the best.
#
# ## Pseudocode under test
#
# Two guides to this topic carry code. Each of these lines reproduces one of them. The toy models get a prompt of two tokens.

# %%
prompt = (1, 3)


def guide_c(offset: int):
    """Guide C's cycle: after a rejection, sample from the target's logits at `offset`. Returns the first token only."""

    def program(random):
        drafted, q = exact.propose_chain(fair.draft, prompt, 2, random)
        sequence = prompt + drafted
        after = [fair.target(sequence[: i + 1]) for i in range(len(sequence))]  # the distribution after token i
        p = torch.stack(after[len(prompt) - 1 :])
        verdict = verify.chain(p, q, drafted, [random() for _ in p])
        return drafted[0] if verdict.accepted else verify.pick(after[offset], random())

    return program


plain = exact.plain_distribution(fair.target, prompt)
real = exact.chain_distribution(fair.target, fair.draft, 2, prompt)
claim("real verifier", first_token(real), plain)
claim("replacement: the prompt's length is forgotten", first_token(exact.exact_distribution(guide_c(0))), plain)
claim("replacement: right position, but from p", first_token(exact.exact_distribution(guide_c(len(prompt) - 1))), plain)
kept_one = explore(fair, "wrong: only q(d) kept")
claim("only q(d) kept, though the residual needs all of q", kept_one.emitted, kept_one.p)

# %% [markdown]
# The last mistake is in the loop around the cycle: guide E never appends what was emitted to the prompt, so each cycle
# continues the same sequence. One token is right, two are not.

# %%
two = exact.joint_distribution(lambda context: exact.plain_distribution(fair.target, prompt + context), 2)
advancing = exact.joint_distribution(
    lambda context: exact.chain_distribution(fair.target, fair.draft, 1, prompt + context), 2
)
stuck = exact.joint_distribution(lambda context: exact.chain_distribution(fair.target, fair.draft, 1, prompt), 2)
claim("two tokens, the prompt advances", advancing, two)
claim("one token, the prompt does not advance", first_token(stuck), first_token(two))
claim("two tokens, the prompt does not advance", stuck, two)

short = explore(fair, "wrong: no bonus")
print(f"tokens per cycle: {explore(fair).tokens:.2f} with the bonus, {short.tokens:.2f} without (guides C and E)")

# %% [markdown]
# ## Bugs from the field
#
# The mutants above are ours. These two were found in systems that people use, and both can be computed the same way.
#
# **A random number used twice.** Sampling the draft token and sampling its replacement have to be independent. One path of
# vLLM used the same noise for both, until [#54282](https://github.com/vllm-project/vllm/pull/54282) gave the draft a stream
# of its own. With one random number per choice instead of a vector of noise, the same mistake looks like this:


# %%
def used_twice(random):
    u = random()
    d = verify.pick(q, u)
    return d if random() < verify.accept_probability(p, q, d) else verify.pick(verify.residual(p, q), u)


emitted = exact.exact_distribution(used_twice)
claim("one random number for draft and replacement", [emitted.get(x, 0.0) for x in range(5)], p)

# %% [markdown]
# **Two versions of q.** If the draft token is sampled from probabilities that were computed in bfloat16, while the verifier
# uses a float32 softmax of the same logits, then the reported $q$ is not the one that was used
# ([DeepSpec #31](https://github.com/deepseek-ai/DeepSpec/issues/31)). The bias is small, and it is there:

# %%
used = q.bfloat16().double() / q.bfloat16().double().sum()
claim("sampled from q in bfloat16, reported in float64", exact.emitted_distribution(p, q, drawn_from=used), p)

# %% [markdown]
# ## Tests with samples, and their power
#
# A kernel on a GPU cannot be run down every branch, so it has to be tested with samples. Then say beforehand how much the test
# can see. Take the bug *likeliest of the residual*, which always emits the most likely token of the residual. On our toy it is
# off by a total variation distance of 0.05.

# %%
bug = explore(fair, "wrong: likeliest of the residual")
print("wanted: ", [round(x, 3) for x in bug.p.tolist()])
print("emitted:", [round(x, 3) for x in bug.emitted.tolist()], f"  TV = {bug.one_place:.3f}")

# %% tags=["nbval-ignore-output"]
guess_draws = viz.predict("How many samples until a χ² test (level 0.001) sees this bug 95 times of 100?", "samples")
guess_draws

# %% [markdown]
# The statistic of $n$ samples is $\chi^2 = \sum_x (\text{seen} - n p(x))^2 / (n p(x))$. If the samples come from another
# distribution $e$, it is shifted by $n \sum_x (e(x) - p(x))^2/p(x)$, and that shift has to grow beyond what chance does.
# [`draws_needed`](../minispec/course/viz/goodness.py) solves for $n$.

# %% tags=["spoiler"]
needed = draws_needed(bug.p, bug.emitted, power=0.95, level=0.001)
print(f"TV 0.050: {needed:,} samples")
for part in (0.4, 0.2, 0.1):
    nearer = bug.p + part * (bug.emitted - bug.p)
    print(f"TV {0.05 * part:.3f}: {draws_needed(bug.p, nearer):,} samples")

# %% tags=["spoiler", "nbval-ignore-output"]
guess_draws.reveal(needed)

# %% [markdown]
# Half the distance needs four times the samples. Now sample, through the wrong verifier and through the right one.

# %%
for name in ("wrong: likeliest of the residual", "right: the real verifier"):
    run = Drawn(fair, VERIFIERS[name], gamma=1, seed=0)
    seen = {count: run.upto(count).p_value(p) < 0.001 for count in (200, 2 * needed)}
    print(f"{name:33s}", {f"{count:,} samples": "seen" if bug_seen else "not seen" for count, bug_seen in seen.items()})

# %% [markdown]
# And does the test have the power that was promised? A thousand repetitions, sampled straight from the biased distribution,
# and a thousand from the right one:

# %%
counts = np.random.default_rng(0).multinomial(needed, bug.emitted.numpy(), size=1000)
caught = sum(chi_square(seen, bug.p) < 0.001 for seen in counts) / 1000
counts = np.random.default_rng(1).multinomial(needed, bug.p.numpy(), size=1000)
alarms = sum(chi_square(seen, bug.p) < 0.001 for seen in counts)
print(f"bug seen in {caught:.0%} of the repetitions; at most 5 false alarms in 1000: {alarms <= 5}")

# %% [markdown]
# A test that passes on too few samples has shown nothing. Reading samples and finding them fluent is the weakest test of all.
#
# ## Three meanings of lossless
#
# | | what it says | where it ends |
# |---|---|---|
# | in theory | the emitted distribution is $p$ | nowhere, it is a theorem |
# | in the algorithm | this code does that: positions, $q$, random numbers | at the first bug of the table above |
# | in floating point | the $p$ of a verify pass is the $p$ of plain decoding | at the last bits |
#
# The third is about the forward pass, not about the sampler. Sums of floating-point numbers depend on their order, and the
# order depends on the shape of the computation. A verify pass runs the target on $k + 1$ tokens, plain autoregressive decoding
# on one, so the same logits are added up in another order.

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
    print(
        f"{kind:9s} passes over five tokens and over one: logits differ by {numerics.block_difference(model, STORY):.2g}"
    )

# %% [markdown]
# In float64 and float32 the difference is far below any gap between two tokens that matters, so greedy outputs agree, token
# for token.

# %%
PROMPTS = ("Once upon a time", "The little dog", "One day, a girl named Lily", "In the morning", "Tom and his mother")
for kind in ("float64", "float32"):
    outputs = [numerics.greedy_outputs(*models[kind], prompt) for prompt in PROMPTS]
    print(f"{kind}: {sum(plain == other for plain, other in outputs)} of {len(PROMPTS)} outputs are the same")

# %% [markdown]
# ## Ties in bfloat16
#
# bfloat16 keeps eight bits of a number. Between 8 and 16, where the largest logits are, neighbouring numbers are
# $2^{-4}$ apart, so two tokens can be *tied*. Which of them is the argmax depends on the last bit, and the last bit depends
# on the shape of the pass. We look for the first prompt where that happens. (It depends on the machine; on some, no prompt of
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
    for kind, (judge, _) in models.items():
        one, other = tie.logits(judge)
        print(f"  {kind:9s} logits {one:.4f} and {other:.4f}: gap {one - other:+.4f}")
    print(f"  neighbours in bfloat16 are {numerics.spacing(one, torch.bfloat16):.4f} apart there")

# %% [markdown]
# Where the outputs diverge, the two tokens are a step or two of bfloat16 apart, or none. Neither output is the wrong one, and
# nothing is pushed in one direction. So when a greedy output differs, look at the gap at the *first* difference
# ([`parting`](../minispec/bench/acceptance.py) computes it):
#
# - a gap of about one step of the dtype, and agreement in float32: rounding;
# - a large gap, or a difference in float32 too: a bug. Do not blame floating point for it.
#
# ## Batch composition
#
# Speculation is not the only thing that changes shapes. In a server the batch changes at every step, as requests come and go.
# Here one sequence is decoded alone, then beside another one, then beside a different one.

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
# The size of the batch changes the logits. The content of the other sequences does not: each is computed on its own, and with
# the same shapes the sums have the same order. So the same request gives different bits at different loads, although every
# kernel is deterministic. That is the usual reason why a server at temperature 0 does not repeat itself (He, 2025, *Defeating
# Nondeterminism in LLM Inference*).
#
# **Batch invariance** removes it. A batch-invariant kernel adds up in an order that does not depend on how many tokens are
# computed beside this one: a fixed tile size and a fixed split of every sum, chosen once and not per shape. It costs speed,
# because the best split for one token is not the best for a thousand. For speculation to be bit-exact, the verify pass over
# $k + 1$ tokens and the pass over one token have to agree too, which is a stronger demand than invariance over requests
# ([vLLM #54506](https://github.com/vllm-project/vllm/issues/54506) discusses it).
#
# Here is the idea in one line. Decode one sequence as a batch of eight copies of itself: whatever the load, the shape is that
# of a batch of eight.

# %%
model = models["float32"][0]
ids = model.encode(STORY)[:20]
neighbours = [model.encode(text) for text in NEIGHBOURS]
padded = numerics.decode_logits(model, ids, [ids] * 7)
full = numerics.decode_logits(model, ids, neighbours[:7])
print("a batch padded to 8 and a full batch of 8 give the same bits:", torch.equal(padded, full))

# %% [markdown]
# ## Which promise survives where
#
# | | greedy: the same tokens as plain decoding | sampling: the same distribution |
# |---|---|---|
# | exact arithmetic | yes | yes |
# | float32 | yes, unless two logits tie to about six digits | yes, up to differences of that size in $p$ |
# | bfloat16 | until the first tie | up to rounding of $p$; nothing systematic |
# | bfloat16, batch-invariant over requests | the same tokens at every load; speculation may still differ | as above, and repeatable |
# | bfloat16, verify and decode passes with equal bits | yes | yes, up to how $p$ itself is rounded |
# | any dtype, sampled with the same seed | no promise: random numbers are used in another order | yes |
#
# The last line is worth repeating: with a temperature, outputs differ for the same seed. The distribution is the same, the
# output is not.

# %% [markdown]
# ## In production
#
# vLLM's documentation separates the same three meanings, and promises losslessness up to the numerics of the hardware. Its
# `RejectionSampler` is tested with samples against a known distribution. `VLLM_BATCH_INVARIANT=1` switches its batch-invariant
# kernels on. transformers' maintainers give the same explanation as this lesson when assisted generation differs from greedy
# decoding ([#39421](https://github.com/huggingface/transformers/issues/39421)): a matrix product over five tokens is another
# kernel than one over a single token.
#
# What to test in a system of your own, in this order: exact distributions of the sampler on a toy vocabulary; token counts;
# joint distributions of two tokens; a χ² test of the real kernel with a stated power; greedy outputs in float32; and in
# bfloat16 the logit gap at every first difference.

# %% [markdown]
# ## Check yourself
#
# <details><summary>A colleague's sampler passes a χ² test of single tokens with a million samples. Name two bugs that may still
# be in it.</summary>
#
# One random number for all positions, or draft tokens judged past a rejection: both change only the joint distribution. And a
# missing bonus, which changes no distribution and costs tokens.
# </details>
#
# <details><summary>With and without speculation, a greedy output in bfloat16 differs from token 40 on. What do you compute
# first?</summary>
#
# The gap between the logits of the two tokens at position 40, in bfloat16 and in float32. About one step of bfloat16 and a
# clear winner in float32: rounding. A large gap: a bug.
# </details>
#
# <details><summary>A server answers the same greedy request differently at noon and at night. All kernels are deterministic. How
# is that possible?</summary>
#
# The batch has another size, so other kernels or other splits of the sums are chosen, and a tie is broken the other way.
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
# - Interview questions (`minispec drill`): `numerics-of-lossless`, `test-lossless`.
# - [16 Beyond one GPU](16_beyond_one_gpu.ipynb): sums that are split over devices are added up in yet another order.
