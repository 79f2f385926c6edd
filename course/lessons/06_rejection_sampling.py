# %% [markdown]
# # 06 Rejection sampling
#
# *Time:* 50 minutes · *Before this:* [05 draft and verify](05_draft_and_verify.ipynb) · *Practice:* [exercises 06](../exercises/06_rejection_sampling.ipynb)
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
from minispec_course import viz
from minispec_course.labs.verifiers import claim

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
# If the draft model gives the token at most as much probability as the target does, we always accept it. If it gives more,
# we accept it just often enough to remove the excess.

# %%
for token in range(3):
    print(f"token {token} was drafted: accept with {float(verify.accept_probability(p, q, token)):.2f}")

# %% [markdown]
# ## Predict
#
# Tokens 0 and 1 are always accepted, token 2 only now and then. Which share of all draft tokens is accepted?

# %% tags=["nbval-ignore-output"]
guess_acceptance = viz.predict("Draft tokens are sampled from q. Which share of them is accepted?")
guess_acceptance

# %% [markdown]
# ## Run
#
# Sample five thousand draft tokens from $q$, and apply the rule to each. [`pick`](../minispec/sampling.py), here called
# as `verify.pick`, samples with a random number $u$ from [0, 1): it returns the first token at which the cumulative sum
# of the probabilities exceeds $u$.

# %% tags=["spoiler"]
random = Random(0).random
drafted = [verify.pick(q, random()) for _ in range(5_000)]
accepted = [d for d in drafted if random() < verify.accept_probability(p, q, d)]
print(f"accepted: {len(accepted) / len(drafted):.2f} of all draft tokens")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
beta = float(torch.minimum(p, q).sum())
guess_acceptance.reveal(beta)

# %% [markdown]
# The answer is the sum of $\min(p, q)$ over all tokens, because the probability to draft $x$ and to accept it is
# $q(x)\min(1, p(x)/q(x)) = \min(p, q)(x)$. This sum is the overlap of the two distributions, and it can also be
# expressed by their distance. The **total variation distance** is half the sum of the absolute differences,
# $\mathrm{TV}(p, q) = \frac12 \sum_x |p(x) - q(x)|$. For every token $|p - q| = p + q - 2\min(p, q)$, and $p$ and $q$
# both sum to one, so
#
# $$\beta = \sum_x \min(p(x), q(x)) = 1 - \mathrm{TV}(p, q)$$


# %% tags=["spoiler"]
def tv(p, q):
    return float((p - q).abs().sum() / 2)


print(f"Σ min(p, q)  = {beta:.2f}")
print(f"1 − TV(p, q) = {1 - tv(p, q):.2f}")

# %% [markdown]
# ## After a rejection
#
# A rejected draft token leaves its position empty. The second part of the rule fills it with a token that is sampled from
# the **residual**, the part of $p$ that the draft model left uncovered, scaled so that it sums to one:
#
# $$r(x) = \frac{[p - q]_+(x)}{\sum_y [p - q]_+(y)}, \qquad [p - q]_+(x) = \max(p(x) - q(x), 0)$$
#
# The papers write it $\mathrm{norm}([p - q]_+)$, and so do we from here on.

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
# It returns a verdict, and `run` turns the verdict into the emitted tokens. With the same random numbers both emit the
# same:

# %%
same = 0
generator = torch.Generator().manual_seed(0)
for _ in range(500):
    some_p = (3 * torch.randn(4, 8, generator=generator, dtype=torch.float64)).softmax(-1)  # [k + 1, V], k = 3
    some_q = (3 * torch.randn(3, 8, generator=generator, dtype=torch.float64)).softmax(-1)  # [k, V]
    tokens = [verify.pick(q_i, random()) for q_i in some_q]
    u = [random() for _ in range(4)]
    same += sampler(some_p, some_q, tokens, u) == list(verify.chain(some_p, some_q, tokens, u).run(tokens))
print(f"the same tokens in {same} of 500 cycles")

# %% [markdown]
# What becomes of the rule at temperature 0? Then $p$ is 1 for the target's most likely token and 0 for all others. A draft
# token is accepted with probability 1 if it is that token and with probability 0 otherwise, and the residual is $p$ again,
# so the correction is the target's most likely token. This is the comparison of lesson 05.

# %% [markdown]
# ## The proof, in three lines
#
# A picture shows what has to be proved. Each bar reaches up to the larger of $p$ and $q$, whose heights are the thick
# lines. The green part is what both have. The orange part is what the target has more of, the dotted part what the draft
# model has more of. Look at green and orange together: in every bar they end at $p$.

# %%
viz.overlap(p, q)

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
# picture: the orange and the dotted area are equal, because both $p$ and $q$ sum to one. So the probability of a
# rejection is the normaliser of the residual, and the two cancel. Nothing was assumed about $q$, except that $d$ was
# really sampled from it. If $p = q$, the normaliser is 0, but then nothing is ever rejected and no residual is needed.
# Code still has to guard against 0/0: if $p$ and $q$ agree up to rounding, $p(d)/q(d)$ may come out slightly below 1,
# so that $d$ may be rejected although no entry of $p - q$ is positive. Our [`residual`](../minispec/verify.py) returns
# $p$ then.
#
# Here are the same three lines with the numbers of our example:

# %%
rejected = 1 - torch.minimum(p, q).sum()
coin = torch.stack([verify.accept_probability(p, q, x) for x in range(3)])
for line in (q * coin + rejected * verify.residual(p, q), torch.minimum(p, q) + (p - q).clamp(min=0), p):
    print([round(x, 6) for x in line.tolist()])

# %% [markdown]
# ## Claims you will read
#
# Several guides to this topic get parts of it wrong. Here each claim becomes a computation:
# [`emitted_distribution`](../minispec/exact.py) computes the distribution of the emitted token for any $p$ and $q$, without
# sampling, and `TV` is the distance between what the claim says and what comes out. Two optional arguments vary the rule:
# `replace` says what to sample from after a rejection, in place of the residual, and `drawn_from` is the distribution that
# the draft token really comes from, if this is not the reported $q$.
#
# ### "Accepted tokens follow the target"
#
# It is the *emitted* token that follows $p$. Accepted ones follow $\min(p, q)/\beta$, because $x$ is drafted and accepted
# with probability $\min(p, q)(x)$, and β is the sum of these.

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
# from all of $p$ adds to that part a second time. Divide by $p(x)$: a token becomes too likely if the draft model covers
# more of it than the share β, that is, if $\min(1, q(x)/p(x)) > \beta$. Of token 0 it covers one half, of token 1 two
# thirds, and of token 2 all, so tokens 1 and 2 become too likely at the expense of token 0.
#
# The damage vanishes for a perfect draft model, which is never corrected, and for a useless one, whose tokens are all
# rejected, so that everything is sampled from $p$. It is largest in between. The bug is easy to miss, because with a good
# draft model it is small, a greedy test cannot see it, and the output stays fluent.
#
# ## The residual explorer
#
# Drag the bars of $p$ and $q$ (or focus one and use the arrow keys), choose a verifier, right or wrong, and let it sample.

# %% tags=["nbval-ignore-output"]
viz.residual_explorer()

# %% [markdown]
# Two tasks:
#
# 1. With the real verifier, make $q$ as bad as you can. The acceptance and the tokens per cycle fall, but the distribution of the
#    emitted token does not move at all.
# 2. Choose *replace from p* and press play. The sentence below the picture gives the p-value of a χ² test: how often tokens
#    that do follow $p$ would give counts at least as odd as these. After how many cycles does it fall below 0.001? Change to
#    "a good draft" and try again.
#
# (Looking again and again is a trap: even a right verifier falls below any bound sooner or later. Here you look at most
# 50 times, so this should happen in at most 5 % of all runs. Lesson 14 tests with one look.) The other wrong verifiers of
# the menu are taken apart in [lesson 14](14_is_it_really_exact.ipynb).

# %% [markdown]
# ## More than one token
#
# So far the proof covers one token, but a cycle emits several. What we want for sequences is: whatever was emitted before,
# the next token follows the target's distribution given it. At position $i$ the proof holds for $p_i$ and $q_i$, which are
# the distributions *given what was emitted before*. So the first token follows the target. The second token comes from the
# same cycle if the first was accepted, and from the next cycle if the first was a correction. In both cases the rule is
# applied to the target's distribution given the first token (or the second token is the bonus, which is sampled from that
# distribution directly), so the second token follows it; and so on, by induction.
#
# Two conditions make the induction work. A draft token that comes after a rejected one must not be looked at, because
# it was sampled for a context that does not exist. And each decision needs a random number of its own: sampling a draft
# token, accepting it, and sampling the correction or the bonus. The number that has just rejected a token must not be
# used again to replace it, because it is known to be large, and that would bias the correction.
#
# ## Draft tokens that were not sampled
#
# ### "The draft model must sample: greedy drafting cannot be used"
#
# It can be used. A drafter that could have proposed nothing else has a distribution too: $q(d) = 1$. With it, the acceptance
# probability becomes $p(d)$, and the residual becomes $p$ without $d$, renormalised.

# %%
d = int(q.argmax())
certain = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)  # the distribution of a drafter that always proposes d
print("draft:", d, " accept with:", float(verify.accept_probability(p, certain, d)))
print("residual:", [round(x, 3) for x in verify.residual(p, certain).tolist()])
claim("greedy draft, q one-hot", exact.emitted_distribution(p, certain), p)

# %% [markdown]
# What does fail is to draft greedily and to report the softmax as $q$. It says "this token was proposed with probability one
# half", while it was proposed always.

# %%
claim("greedy draft, q from the softmax", exact.emitted_distribution(p, q, drawn_from=certain), p)

# %% [markdown]
# This rule matters in practice. Prompt lookup (lesson 08) has no probabilities at all and rests on it. And vLLM
# (checked at commit `002e77c`) and SGLang (at `001067f`) let their draft models propose greedily by default, also when
# the target samples, so their $q$ is one-hot as well: in a chain they accept with probability $p(d)$, and they need not
# store the draft model's probabilities ([details](../docs/handover.md)). Is a greedy draft token accepted more often
# than a sampled one? It depends on the two distributions, because a sampled one is accepted with $\sum\min(p, q)$ and a
# greedy one with $p(d)$:

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
target = ms.load("micro", device="cpu", dtype=torch.float64)
draft = ms.load("micro-draft", device="cpu", dtype=torch.float64)
tokens = torch.tensor([target.encode(STORY)])  # [1, T]
with torch.inference_mode():
    target_logits = target.transformer(tokens).logits[0]  # [T, V]
    draft_logits = draft.transformer(tokens).logits[0]
print(f"{tokens.shape[1]} positions, {target_logits.shape[-1]} tokens to choose from at each")

# %% [markdown]
# The target samples at temperature 0.8 with top-p 0.9. The draft model tries four settings in turn. For each of them the next
# cell computes two things: the acceptance β, averaged over the positions, and the largest distance between what is emitted
# and $p$ over all positions.

# %%
p_story = ms.Sampling(temperature=0.8, top_p=0.9).probs(target_logits)  # [T, V]
settings = {
    "as the target": ms.Sampling(temperature=0.8, top_p=0.9),
    "temperature 1.2": ms.Sampling(temperature=1.2),
    "temperature 0.5, top-k 5": ms.Sampling(temperature=0.5, top_k=5),
    "greedy": ms.Sampling(temperature=0),
}
for name, setting in settings.items():
    q_story = setting.probs(draft_logits)  # [T, V]
    accepted_share = torch.minimum(p_story, q_story).sum(-1).mean()
    worst = max(tv(exact.emitted_distribution(p_i, q_i), p_i) for p_i, q_i in zip(p_story, q_story, strict=True))
    print(f"draft {name:25} accepted {accepted_share:.2f}   exact at all positions: {worst < 1e-9}")

# %% [markdown]
# The output is exact in every line. The parameters decide only how much is accepted, so the drafter's may be tuned for
# acceptance alone. Do not take these shares for the acceptance of a run, though: they are means over the positions of one
# story that the target did not generate, and elsewhere even their order may differ. What cannot differ is the last column.
#
# ### What must be consistent
#
# $q$ has to be the distribution that was used, and $p$ the one that plain decoding uses. There are two ways to get it
# wrong, and here they are at one position of the story. First: sample the draft token with top-p, and report $q$ from
# before top-p. Second: verify with $p$ from before top-p, where plain decoding would truncate. The target has top-p 0.9
# as above. The draft model has 0.5, so that truncation removes a lot and the error is plain to see.

# %%
p_before = ms.Sampling(temperature=0.8).probs(target_logits[15])
p_after = ms.Sampling(temperature=0.8, top_p=0.9).probs(target_logits[15])
q_before = ms.Sampling(temperature=0.8).probs(draft_logits[15])
q_after = ms.Sampling(temperature=0.8, top_p=0.5).probs(draft_logits[15])
claim("both after top-p", exact.emitted_distribution(p_after, q_after), p_after)
claim("q before top-p, sampled after it", exact.emitted_distribution(p_after, q_before, drawn_from=q_after), p_after)
claim("p before top-p, where plain decoding truncates", exact.emitted_distribution(p_before, q_after), p_after)

# %% [markdown]
# In minispec one function turns logits into distributions, for both models and for plain decoding:
# [`Sampling.probs`](../minispec/sampling.py). So there is no second place where truncation could be forgotten.
#
# One more rule concerns drafts of variable length: **a draft token that was sampled may stay unverified for one reason
# only, that one before it was rejected**. Stopping a draft early is allowed for any reason, also because the token just
# sampled had a low probability $q(d)$, as long as this token itself stays in the draft. Dropping it biases the output: the
# draft tokens that remain were selected by their value, so they no longer follow the $q$ that is reported.

# %% [markdown]
# ## In production
#
# | minispec | vLLM | elsewhere |
# |---|---|---|
# | `verify.chain_batch` | `RejectionSampler` (v1/sample) | transformers: `_speculative_sampling` |
# | the correction | *recovered token* | papers speak of *resampling* |
# | the bonus | *bonus token* | SGLang says *bonus* for a correction, too |
# | `q=None`, one-hot | no `draft_probs`: n-gram and greedy drafters | SGLang (EAGLE): accepts by the target's probability alone, unless rejection sampling is switched on |
# | greedy target | compares with the argmax, without a random number | the same |
# | a rule that changes the distribution (lesson 09) | | SGLang: `speculative_accept_threshold_single` and `…_acc` below 1 |
#
# Production code takes all requests of a batch at once, and computes $p$ in float32 even where the model runs in
# bfloat16. vLLM samples the recovered token of every position in advance. The random numbers of its acceptance test are
# float64, because in float32 a number of exactly 0 would be too common. Its documentation promises what you can now
# read precisely: lossless up to the numerics of the hardware.
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
#   ([arXiv:2403.10444](https://arxiv.org/abs/2403.10444)): a rule that accepts at least as many tokens
#   per cycle on average, and is still lossless.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - Write the sampler from its parts: [exercises 06](../exercises/06_rejection_sampling.ipynb). The checks compute the exact
#   distribution of what your function emits.
# - Interview questions (`minispec drill`): `prove-lossless`, `exact-or-approximate`, `residual-not-p`,
#   `accepted-tokens-law`, `acceptance-is-overlap`, `greedy-draft`, `sampling-parameters`, `residual-edge-cases`,
#   `drop-unlikely-drafts`, `temperature-and-acceptance`.
# - [07 How fast](07_how_fast.ipynb): what a given acceptance is worth in seconds.
# - [14 Is it really exact?](14_is_it_really_exact.ipynb): how to test a sampler, and what floating point leaves of the proof.
