# %% [markdown]
# # 06 Rejection sampling
#
# *Time:* 45 minutes · *Before this:* [05 draft and verify](05_draft_and_verify.ipynb) · *Practice:* [exercises 06](../exercises/06_rejection_sampling.ipynb)
#
# In lesson 05 the target decoded greedily. It had one right token at each position, so verifying a draft token meant
# comparing it with that one. A target that samples has no single right token. Speculative sampling (Leviathan et al.,
# 2023, arXiv:2211.17192; Chen et al., 2023, arXiv:2302.01318) accepts a draft token with a certain probability instead,
# and replaces it otherwise, in such a way that what is emitted has exactly the target's distribution. This lesson
# builds that sampler and proves it.
#
# You will be able to
#
# - write the sampler in five lines, and prove that it changes nothing about the distribution;
# - build the residual, and say what accepted tokens follow and what emitted ones follow;
# - use any draft you like: greedy, at another temperature, truncated, as long as it reports the distribution it used;
# - say why the proof extends from one token to whole sequences.

# %%
from random import Random

import torch

import minispec as ms
from minispec import exact, verify
from minispec.course import viz
from minispec.course.viz.goodness import claim

# %% [markdown]
# ## Two distributions
#
# A vocabulary of three tokens is enough to see everything. At some position the target would sample the next token from its
# distribution $p$. The draft model has already sampled a token there, from its own distribution $q$.

# %%
p = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
q = torch.tensor([0.3, 0.2, 0.5], dtype=torch.float64)
print("target p:", p.tolist())
print("draft  q:", q.tolist())

# %% [markdown]
# Which of the draft model's tokens may we keep, so that what is emitted follows $p$ and not $q$? The rule has two parts. The
# first one says: accept the draft token $d$ with probability
#
# $$\min\left(1, \frac{p(d)}{q(d)}\right)$$
#
# If the draft model gives the token less probability than the target does, we always accept it. If it gives more, we accept
# it just often enough to remove the excess.

# %%
for token in range(3):
    print(f"token {token} was drafted: accept with {float(verify.accept_probability(p, q, token)):.2f}")

# %% [markdown]
# ## Predict
#
# Tokens 0 and 1 are always accepted, token 2 only now and then. How often is a draft token accepted overall?

# %% tags=["nbval-ignore-output"]
guess_acceptance = viz.predict("Draft tokens are sampled from q. Which share of them is accepted?")
guess_acceptance

# %% [markdown]
# ## Run
#
# Sample five thousand draft tokens from $q$, and apply the rule to each.

# %% tags=["spoiler"]
random = Random(0).random
drafted = [verify.pick(q, random()) for _ in range(5_000)]
accepted = [d for d in drafted if random() < verify.accept_probability(p, q, d)]
print(f"accepted: {len(accepted) / len(drafted):.2f} of all draft tokens")

# %% [markdown]
# ## Reveal
#
# The probability to draft $x$ and to accept it is $q(x)\min(1, p(x)/q(x)) = \min(p, q)(x)$. The sum over all tokens is the
# overlap of the two distributions. Since $|p - q| = p + q - 2\min(p, q)$, it is one minus their total variation distance:
#
# $$\beta = \sum_x \min(p(x), q(x)) = 1 - \mathrm{TV}(p, q)$$

# %% tags=["spoiler"]
beta = float(torch.minimum(p, q).sum())
print(f"Σ min(p, q)  = {beta:.2f}")
print(f"1 − TV(p, q) = {1 - exact.total_variation(p, q):.2f}")

# %% tags=["spoiler", "nbval-ignore-output"]
guess_acceptance.reveal(beta)

# %% [markdown]
# ## After a rejection
#
# A rejected draft token leaves its position empty. The second part of the rule fills it with a token that is sampled from
# the **residual**, the part of $p$ that the draft model left uncovered:
#
# $$r = \mathrm{norm}([p - q]_+), \qquad [x]_+ = \max(x, 0)$$

# %%
print("[p − q]₊ =", [round(x, 3) for x in (p - q).clamp(min=0).tolist()])
print("residual =", [round(x, 3) for x in verify.residual(p, q).tolist()])

# %% [markdown]
# Tokens 0 and 1 are drafted too rarely, so the residual consists of them. A rejected token has $p(d) < q(d)$ and therefore
# probability 0 in the residual: the token that was just rejected cannot come back at that position. The token sampled here
# is the **correction** (papers say *resampled*, vLLM says *recovered token*).
#
# ## The sampler in five lines
#
# A cycle drafts $k$ tokens, and lesson 05 showed what the target's forward pass then gives: $k + 1$ distributions, one
# for each draft token and one for the position after the last. The sampler goes through the draft tokens in order and
# stops at the first rejection. If nothing is rejected, the last distribution gives one more token, the **bonus**.


# %%
def sampler(p, q, drafted, u):  # p [k + 1, V], q [k, V], drafted: k tokens, u: k + 1 random numbers in [0, 1)
    for i, d in enumerate(drafted):
        if u[i] >= verify.accept_probability(p[i], q[i], d):
            return [*drafted[:i], verify.pick(verify.residual(p[i], q[i]), u[-1])]  # the correction
    return [*drafted, verify.pick(p[-1], u[-1])]  # the bonus


# %% [markdown]
# [`verify.chain`](../minispec/verify.py), which every engine of minispec uses, is these lines plus checks of its arguments.
# With the same random numbers both emit the same tokens:

# %%
same = 0
generator = torch.Generator().manual_seed(0)
for _ in range(500):
    some_p = torch.rand(4, 8, generator=generator, dtype=torch.float64).softmax(-1)  # [k + 1, V], k = 3
    some_q = torch.rand(3, 8, generator=generator, dtype=torch.float64).softmax(-1)  # [k, V]
    tokens = [verify.pick(row, random()) for row in some_q]
    u = [random() for _ in range(4)]
    same += sampler(some_p, some_q, tokens, u) == list(verify.chain(some_p, some_q, tokens, u).run(tokens))
print(f"the same tokens in {same} of 500 cycles")

# %% [markdown]
# ## The proof, in three lines
#
# A picture shows what has to be proved. Each bar reaches up to the larger of $p$ and $q$. The green part is what both
# have. The orange part is what the target has more of, the hatched part what the draft model has more of.

# %%
viz.overlap_figure(p, q)

# %% [markdown]
# A token $x$ is emitted in one of two ways: it was drafted and accepted, or something was rejected and $x$ was sampled
# from the residual. Accepting gives exactly the green part. So what is emitted is $p$ if the residual adds exactly the
# orange part.
#
# $$
# \begin{aligned}
# \Pr[\text{emit } x] &= q(x)\,\min\left(1, \tfrac{p(x)}{q(x)}\right) \;+\; \Pr[\text{reject}]\cdot\frac{[p - q]_+(x)}{\sum_y [p - q]_+(y)} \\
# &= \min(p, q)(x) \;+\; [p - q]_+(x) \\
# &= p(x)
# \end{aligned}
# $$
#
# The second line needs $\Pr[\text{reject}] = 1 - \sum\min(p, q) = \sum (p - \min(p, q)) = \sum [p - q]_+$. In the
# picture: the orange and the hatched area are equal, because both $p$ and $q$ sum to one. So the probability of a
# rejection is the normaliser of the residual, and the two cancel. Nothing was assumed about $q$, except that $d$ was
# really sampled from it.
#
# Here are the same three lines with the numbers of our example:

# %%
rejected = 1 - torch.minimum(p, q).sum()
coin = torch.stack([verify.accept_probability(p, q, x) for x in range(3)])
for line in (q * coin + rejected * verify.residual(p, q), torch.minimum(p, q) + (p - q).clamp(min=0), p):
    print([round(x, 6) for x in line.tolist()])

# %% [markdown]
# One example is a check of the algebra and no more. [`emitted_distribution`](../minispec/exact.py) computes the
# distribution of the emitted token for any $p$ and $q$, without sampling. Three hundred pairs, many of them with zeros:

# %%
generator = torch.Generator().manual_seed(0)
worst = 0.0
for _ in range(300):
    pair = torch.rand(2, 8, generator=generator, dtype=torch.float64)
    pair = pair * (torch.rand(2, 8, generator=generator) < 0.7)
    pair[:, 0] += 0.01  # at least one token is left
    one, other = pair / pair.sum(-1, keepdim=True)
    worst = max(worst, exact.total_variation(exact.emitted_distribution(one, other), one))
print("largest distance between the emitted distribution and p below 1e-12:", worst < 1e-12)

# %% [markdown]
# ## Claims you will read
#
# Several guides to this topic get parts of it wrong. Here each claim becomes a computation; `TV` is the total variation
# distance between what the claim says and what comes out.
#
# ### "Accepted tokens follow the target"
#
# It is the *emitted* token that follows $p$. Accepted ones follow $\min(p, q)/\beta$, because a token that the draft model
# never proposes can never be accepted.

# %%
overlap = torch.minimum(p, q) / torch.minimum(p, q).sum()
seen = torch.bincount(torch.tensor(accepted), minlength=3) / len(accepted)
print("accepted in the run:", [round(x, 2) for x in seen.tolist()])
claim("accepted tokens follow p", overlap, p)
claim("accepted tokens follow q", overlap, q)
claim("emitted tokens follow p", exact.emitted_distribution(p, q), p)

# %% [markdown]
# So a data set of accepted tokens only is a biased one. Note also that this is not the rejection sampling of textbooks, which
# samples from $q$ again and again until something is accepted. Here one rejection is settled at once, from the residual.
#
# ### "After a rejection, sample from the target"
#
# It sounds harmless, because $p$ is the distribution that we want after all. Commit to a number before you run it.

# %% tags=["nbval-ignore-output"]
guess_biased = viz.predict(
    "p gives token 0 a probability of 0.6. Replace from p instead of the residual: how often is it emitted?"
)
guess_biased


# %% tags=["spoiler"]
def from_p(p, q):
    return p


biased = exact.emitted_distribution(p, q, replace=from_p)
print("emitted:", [round(x, 3) for x in biased.tolist()], " wanted:", p.tolist())
claim("replace from p, and the emitted token follows p", biased, p)

# %% tags=["spoiler", "nbval-ignore-output"]
guess_biased.reveal(float(biased[0]))

# %% [markdown]
# The distribution is now $\min(p, q) + (1 - \beta)\,p$. Accepted tokens have already contributed $\min(p, q)$, and sampling
# from all of $p$ adds that part a second time, so tokens that the draft model prefers become too likely. The better the draft
# model, the smaller the damage. That is why this bug is easy to miss: with a good draft model it is small, a greedy test
# cannot see it, and the output stays fluent.
#
# ## The residual explorer
#
# Drag the bars of $p$ and $q$ (or focus one and use the arrow keys), choose a verifier, right or wrong, and let it sample.
# The last entries of the first menu are positions of a real run: `micro` with its draft model, top-k 3 on both sides.

# %% tags=["nbval-ignore-output"]
target = ms.load("micro", device="cpu", dtype=torch.float64)
draft = ms.load("micro-draft", device="cpu", dtype=torch.float64)
viz.residual_explorer(viz.real_places(target, draft, "Once upon a time", count=5))

# %% [markdown]
# Two tasks:
#
# 1. With the real verifier, make $q$ as bad as you can. The acceptance and the tokens per cycle fall, but the distribution of the
#    emitted token does not move at all.
# 2. Choose *replace from p* and press play. How many cycles does it take until the χ² test objects? Change to "a good draft"
#    and try again.
#
# The other wrong verifiers of the menu are taken apart in [lesson 14](14_is_it_really_exact.ipynb).

# %% [markdown]
# ## More than one token
#
# So far the proof covers one token, but a cycle emits several. At position $i$ the proof holds for $p_i$ and $q_i$,
# which are the distributions *given what was emitted before*. So the first token follows the target, the second follows
# the target given the first, and so on, by induction. Two conditions make the induction work. A draft token that comes
# after a rejected one must not be looked at, because it was sampled for a context that does not exist. And each
# position needs a fresh random number.
#
# With acceptance β at every position, the mean number of emitted tokens is $E[N] = (1 - \beta^{k+1})/(1 - \beta)$,
# which lesson 07 derives. Here it is for $k = 2$, once by the formula and once from the exact distribution of what a
# cycle emits:

# %%
cycle = exact.chain_distribution(lambda prefix: p, lambda prefix: q, 2)  # the same p and q after every prefix
print(f"E[N] = (1 − β³)/(1 − β) = {(1 - beta**3) / (1 - beta):.4f} at β = {beta:.2f}")
print(f"the real verifier:        {sum(len(run) * chance for run, chance in cycle.items()):.4f}")

# %% [markdown]
# ## Draft tokens that were not sampled
#
# ### "The draft model must sample: greedy drafting cannot be used"
#
# It can be used. A drafter that could have proposed nothing else has a distribution too: $q(d) = 1$. With it, the acceptance
# probability becomes $p(d)$, and the residual becomes $p$ without $d$, renormalised.

# %%
d = int(q.argmax())
certain = verify.one_hot(d, like=p)
print("draft:", d, " accept with:", float(verify.accept_probability(p, certain, d)))
print("residual:", [round(x, 3) for x in verify.residual(p, certain).tolist()])
claim("greedy draft, q one-hot", exact.emitted_distribution(p, certain), p)

# %% [markdown]
# What does fail is to draft greedily and to report the softmax as $q$. It says "this token was proposed with probability one
# half", while it was proposed always.

# %%
claim("greedy draft, q from the softmax", exact.emitted_distribution(p, q, drawn_from=certain), p)

# %% [markdown]
# This rule matters in practice. Prompt lookup (lesson 08) has no probabilities at all and rests on it. And vLLM and SGLang let
# their draft models propose greedily by default, also when the target samples, so their $q$ is one-hot as well: they accept
# with probability $p(d)$ and need not store the draft model's probabilities. Is that accepted more often than a sampled draft
# token? It depends on the two distributions, because a sampled one is accepted with $\sum\min(p, q)$ and a greedy one with
# $p(d)$:

# %%
for one, other in (([0.6, 0.4], [0.6, 0.4]), ([0.8, 0.2], [0.55, 0.45])):
    sampled = sum(map(min, one, other))
    print(f"p = {one}, q = {other}: sampled {sampled:.2f}, greedy {one[0]:.2f}")

# %% [markdown]
# ## Sampling parameters
#
# ### "Temperature and top-p must match"
#
# The proof requires less than that. $p$ is the distribution that plain autoregressive decoding would sample from, after
# the target's temperature and truncation. $q$ is the distribution the draft token was *really* sampled from, after
# whatever the drafter applied. The two may differ in any way.
#
# We take real distributions: both models run on the same story, one forward pass each.

# %%
STORY = (
    "Once upon a time there was a little dog who lived near the river. Every morning he ran to the water to look at the "
    "fish. One day he saw a small boat, and in the boat there was a cat."
)
tokens = torch.tensor([target.encode(STORY)])  # [1, T]
with torch.inference_mode():
    target_logits = target.transformer(tokens).logits[0]  # [T, V]
    draft_logits = draft.transformer(tokens).logits[0]
print(f"{tokens.shape[1]} positions, {target_logits.shape[-1]} tokens to choose from at each")

# %%
wanted = ms.Sampling(temperature=0.8, top_p=0.9).probs(target_logits)  # [T, V]
for how in (ms.Sampling(0.8, top_p=0.9), ms.Sampling(0.8), ms.Sampling(1.2), ms.Sampling(0.5, top_k=5), ms.Sampling(0)):
    used = how.probs(draft_logits)
    accept = torch.minimum(wanted, used).sum(-1).mean()
    off = max(exact.total_variation(exact.emitted_distribution(wanted[i], used[i]), wanted[i]) for i in (5, 15, 25))
    parameters = f"temperature {how.temperature:3}, top-k {how.top_k}, top-p {how.top_p:3}"
    print(f"draft: {parameters}: accepted {accept:.2f}, exact: {off < 1e-9}")

# %% [markdown]
# The output is exact in every line. The parameters decide only how much is accepted, so the drafter's may be tuned for
# acceptance alone; [`acceptance_by_temperature`](../minispec/course/viz/temperature.py) shows how it depends on both
# temperatures.
#
# ### What must be consistent
#
# $q$ has to be the distribution that was used, and $p$ the one that plain decoding uses. Two ways to get it wrong, at one real
# position. First: sample the draft token with top-p, and report $q$ from before top-p. Second: compare with $p$ from before
# top-p, where plain decoding would truncate.

# %%
i = 15
before, after = (ms.Sampling(0.8, top_p=t).probs(draft_logits[i]) for t in (1.0, 0.5))
claim("q after top-p, sampled after top-p", exact.emitted_distribution(wanted[i], after), wanted[i])
claim("q before top-p, sampled after it", exact.emitted_distribution(wanted[i], before, drawn_from=after), wanted[i])
raw = ms.Sampling(0.8).probs(target_logits[i])
claim("p before top-p, where plain decoding truncates", exact.emitted_distribution(raw, after), wanted[i])

# %% [markdown]
# In minispec one function turns logits into distributions, for both models and for plain decoding:
# [`Sampling.probs`](../minispec/sampling.py). So there is no second place where truncation could be forgotten.
#
# One more rule concerns drafts of variable length: **a draft token that was sampled has to be verified**. Stopping a
# draft early is allowed for any reason, also because the token just sampled had a low probability $q(d)$, as long as
# this token itself stays in the draft. Dropping it biases the output: the draft tokens that remain were selected by
# their value, so they no longer follow the $q$ that is reported.

# %% [markdown]
# ## In production
#
# | minispec | vLLM | elsewhere |
# |---|---|---|
# | `verify.chain_batch` | `RejectionSampler` (v1/sample) | transformers: `_speculative_sampling` |
# | the correction | *recovered token* | papers speak of *resampling* |
# | the bonus | *bonus token* | SGLang says *bonus* for a correction, too |
# | `q=None`, one-hot | no `draft_probs`: n-gram and greedy drafters | EAGLE in SGLang, by default: the target alone decides |
# | greedy target | compares with the argmax, no coin | the same |
# | a lossy rule, like `typical` | | SGLang: `speculative_accept_threshold_single` and `…_acc` below 1 |
#
# Production code takes all requests of a batch at once, and computes $p$ in float32 even where the model runs in
# bfloat16. vLLM samples the recovered token of every position in advance, and takes its random numbers in float64,
# because in float32 a number of exactly 0 is too common. Its documentation promises what you can now read precisely:
# lossless up to the numerics of the hardware.
#
# There are also rules that accept more tokens by changing the distribution, and they are used on purpose. Lesson 09 has one
# of them.

# %% [markdown]
# ## Check yourself
#
# <details><summary>p = (0.5, 0.5), q = (0.9, 0.1). How often is a draft token accepted, and what replaces it?</summary>
#
# It is accepted with probability Σ min(p, q) = 0.5 + 0.1 = 0.6. The positive part of p − q is (0, 0.4), so the correction is
# always token 1.
# </details>
#
# <details><summary>Where does the proof use that d was sampled from q?</summary>
#
# In the first term, $q(x)\min(1, p(x)/q(x))$: the first factor is how often $x$ was proposed, the one in the denominator is
# what was reported. They cancel only if they are the same.
# </details>
#
# <details><summary>The draft model runs at temperature 0.3, the target at 1.0. Is the output exact, and what is the
# price?</summary>
#
# Exact, if the q that is reported is the one at 0.3. The price is acceptance: the draft is more concentrated than the target,
# so its favourite token is often rejected and the others are hardly ever proposed.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Leviathan, Kalman, Matias, 2023: *Fast inference from transformers via speculative decoding*
#   ([arXiv:2211.17192](https://arxiv.org/abs/2211.17192)): the rule and its proof; appendix A.1 is the part that you
#   have just done.
# - Chen et al., 2023: *Accelerating large language model decoding with speculative sampling*
#   ([arXiv:2302.01318](https://arxiv.org/abs/2302.01318)): the same theorem, with its own proof and a 70B target.
# - Sun et al., 2023: *SpecTr: fast speculative decoding via optimal transport*
#   ([arXiv:2310.15141](https://arxiv.org/abs/2310.15141)): what the rule becomes with several candidates per position.
# - Sun et al., 2025: *Block verification accelerates speculative decoding*
#   ([arXiv:2403.10444](https://arxiv.org/abs/2403.10444)): a rule that accepts more often and is still lossless.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - Write the sampler from its parts: [exercises 06](../exercises/06_rejection_sampling.ipynb). The checks compute the exact
#   distribution of what your function emits.
# - Interview questions (`minispec drill`): `prove-lossless`, `exact-or-approximate`, `residual-not-p`, `acceptance-by-hand`,
#   `accepted-tokens-law`, `acceptance-is-overlap`, `greedy-draft`, `sampling-parameters`, `residual-edge-cases`,
#   `drop-unlikely-drafts`, `temperature-and-acceptance`.
# - [07 How fast](07_how_fast.ipynb): what a given acceptance is worth in seconds.
# - [14 Is it really exact?](14_is_it_really_exact.ipynb): how to test a sampler, and what floating point leaves of the proof.
