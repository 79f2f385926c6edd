# %% [markdown]
# # 06 Rejection sampling
#
# *Time:* 65 minutes, without the optional section · *Before this:* [05 Draft and verify](05_draft_and_verify.ipynb) · *Practice:* [exercises 06](../exercises/06_rejection_sampling.ipynb)
#
# So far our chatbot has answered greedily, and its user finds it dull. From now on it samples, at temperature 0.8. The
# number on the dashboard is still **ms per token**: this lesson carries drafting over to sampled output; whether that
# saves time is lesson 07.
#
# A greedy target has one right token at each position, so verifying meant comparing. A target that samples has no right
# token. Whatever we keep of a draft, the tokens that come out must have *exactly* the distribution that the target alone
# would give them. **Speculative sampling** (Leviathan et al., 2023, arXiv:2211.17192; Chen et al.,
# 2023, arXiv:2302.01318) does that, in a few lines which you will write and then plug into your loop.
#
# You will be able to
#
# - write the sampler from memory and prove in three lines that it is exact;
# - say what accepted tokens follow and what emitted tokens follow;
# - use a greedy drafter, and say which $q$ it has.

# %%
from functools import cache
from random import Random

import torch

import minispec as ms
from minispec import drafters, exact
from minispec.verify import pick
from minispec_course import viz
from minispec_course.check import mine, yours
from minispec_course.labs.pairs import course_pair
from minispec_course.labs.verifiers import claim, sampled_loop

# %% [markdown]
# ## Drag first
#
# Take a vocabulary of three tokens. At some position the target has the distribution $p$, and the draft model has $q$.
# Imagine a hundred draft tokens sampled from $q$, stacked up in three columns. We want a hundred emitted tokens with
# the heights of $p$, and to keep as many draft tokens as we can.
#
# Drag the bars, or focus one and use the arrow keys. Whatever you do, two of the three areas are always equal. Why?

# %% tags=["nbval-ignore-output"]
viz.drag_overlap()

# %% [markdown]
# Below both lines a draft token fits (green). Between $p$ and a higher $q$ there are too many (dashed); between $q$ and a
# higher $p$ some are missing (orange). The dashed and the orange area are equal, because both distributions sum to one.
#
# ## When to accept
#
# The draft model has sampled token $d$. In the column of $d$ there are $q(d)$ draft tokens and room for $p(d)$. If
# there is room for all, keep $d$. If not, keep just the fraction that fits, by a random choice.
#
# ### Yours: the acceptance probability
#
# `p` and `q` are tensors `[V]`, and `token` is the draft token, so `q[token]` is never 0.


# %%
@yours("06.accept")
def accept_probability(p: torch.Tensor, q: torch.Tensor, token: int) -> float:
    """The probability with which a draft token that was sampled from q is accepted."""
    ### BEGIN SOLUTION: what fraction of the draft tokens in this column fits under p?
    return min(1.0, float(p[token] / q[token]))
    ### END SOLUTION


# %%
p = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
q = torch.tensor([0.3, 0.2, 0.5], dtype=torch.float64)
for token in range(3):
    print(f"token {token} was drafted: accept with {accept_probability(p, q, token):.2f}")

# %% [markdown]
# So $d$ is accepted with probability $\min(1, p(d)/q(d))$: here tokens 0 and 1 always, and token 2 only now and then.

# %% tags=["nbval-ignore-output"]
guess_acceptance = viz.predict("Draft tokens are sampled from this q. What fraction of them is accepted?")
guess_acceptance

# %% [markdown]
# Try it with five thousand draft tokens. `pick(q, u)` samples from $q$ with a random number $u$ from [0, 1): it returns
# the first token at which the cumulative sum exceeds $u$.

# %% tags=["spoiler"]
random = Random(0).random
drafted = [pick(q, random()) for _ in range(5_000)]
accepted = [d for d in drafted if random() < accept_probability(p, q, d)]
overlap = float(torch.minimum(p, q).sum())
print(f"accepted: {len(accepted) / len(drafted):.2f} of all draft tokens, green area {overlap:.2f}")

# %% tags=["spoiler", "nbval-ignore-output"]
guess_acceptance.reveal(overlap)

# %% [markdown]
# It is the green area, the **overlap** $\sum_x \min(p(x), q(x))$: token $x$ is drafted and accepted with probability
# $q(x)\min(1, p(x)/q(x)) = \min(p(x), q(x))$. Leviathan et al. write it as $1 - D_{LK}$, and their $D_{LK}$ is the total
# variation distance, $\mathrm{TV}(p, q) = \frac12 \sum_x |p(x) - q(x)|$.
#
# ## After a rejection
#
# A rejected draft token leaves its position empty, and one token has to fill it, the **correction**. It
# must land where tokens are missing, in proportion to how many are missing there. That distribution is the
# **residual**: the orange part, scaled so that it sums to one. The papers write $\mathrm{norm}([p - q]_+)$, where
# $[x]_+ = \max(x, 0)$.
#
# ### Yours: the residual
#
# If $p$ and $q$ agree up to rounding, $p$ may exceed $q$ nowhere, and a token may still be rejected. Then return $p$
# instead of dividing by zero.


# %%
@yours("06.residual")
def residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """The distribution of the correction, [V]."""
    ### BEGIN SOLUTION: what p has more than q, scaled to sum to one
    missing = (p - q).clamp(min=0)
    total = missing.sum()
    return missing / total if total > 0 else p
    ### END SOLUTION


# %%
print("missing: ", [round(x, 3) for x in (p - q).clamp(min=0).tolist()])
print("residual:", [round(x, 3) for x in residual(p, q).tolist()])

# %% [markdown]
# The token that was just rejected has probability 0 here: it was proposed too often, so $p(d) < q(d)$.
#
# ## The sampler
#
# A cycle drafts $k$ tokens, and the verify pass gives $k + 1$ distributions: one for each draft token, and one for the
# position after the last.
#
# ### Yours: the sampler
#
# Go through the draft tokens in order. At the first rejection sample the correction and stop. If nothing is rejected,
# sample one more token from the last distribution, the **bonus**. Call `random()` afresh for every decision: a number
# that has just rejected a token is known to be large, so it must not choose the correction as well. Use each number
# only in a comparison such as `random() < x`, or as the second argument of `pick`: these are the decisions whose branches
# a proof further down can follow.


# %%
@yours("06.sampler")
def sampler(p: torch.Tensor, q: torch.Tensor, drafted: list[int], random) -> list[int]:
    """The tokens that a cycle emits: p [k + 1, V], q [k, V], k draft tokens."""
    ### BEGIN SOLUTION: accept one draft token after the other; the first rejection ends the cycle with a correction
    for i, d in enumerate(drafted):
        if not random() < accept_probability(p[i], q[i], d):
            return [*drafted[:i], pick(residual(p[i], q[i]), random())]  # the correction
    return [*drafted, pick(p[-1], random())]  # the bonus
    ### END SOLUTION


# %% [markdown]
# At temperature 0, $p$ is 1 for the most likely token, and your sampler is the greedy verdict of lesson 05. In minispec
# this function is [`verify.chain`](../minispec/verify.py).
#
# ## The proof
#
# Green and orange together end at $p$, in every column.

# %%
viz.overlap(p, q)

# %% [markdown]
# A token $x$ is emitted in one of two ways: it was drafted and accepted, or a draft token was rejected and $x$ was
# sampled from the residual.
#
# $$
# \begin{aligned}
# \Pr[\text{emit } x] &= q(x)\,\min\left(1, \tfrac{p(x)}{q(x)}\right) \;+\; \Pr[\text{reject}]\cdot\frac{[p - q]_+(x)}{\sum_y [p - q]_+(y)} \\
# &= \min(p, q)(x) \;+\; [p - q]_+(x) \\
# &= p(x)
# \end{aligned}
# $$
#
# The second line holds because the probability of a rejection is the dashed area, and the normaliser of the residual is
# the orange one. They are equal, so they cancel. (If $q(x) = 0$, $x$ is never drafted and the first term is 0; if
# $p = q$, nothing is rejected and the second is 0.) Nothing was assumed about $q$, except that $d$ was really sampled
# from it. The same three lines in numbers, with your functions:

# %%
chance = torch.tensor([accept_probability(p, q, x) for x in range(3)], dtype=torch.float64)
for line in (q * chance + (1 - overlap) * residual(p, q), torch.minimum(p, q) + (p - q).clamp(min=0), p):
    print([round(x, 6) for x in line.tolist()])

# %% [markdown]
# And for whole sequences? Whatever was emitted before, the next token is judged by the target's distribution *given those
# tokens*, or is a bonus sampled from it. So each token follows the target given the ones before it, and by induction the
# whole sequence does. Draft tokens after a rejection were sampled for a context that was discarded, so they are never
# looked at.
#
# ## Plug it into your loop
#
# Your loop of lesson 05 asks both models for one thing, the argmax of their logits. So we hand it models whose logits
# are 1 for a token that was *sampled*, and 0 elsewhere. The draft model samples from $q$. For the target, your sampler
# decides: if it accepts two of four draft tokens and corrects the third, the "target's argmax" is those two and the
# correction. Your greedy verdict accepts the two and stops at the third, since a correction is never the rejected token. [`sampled_loop`](../minispec_course/labs/verifiers.py) is this plumbing, in thirty lines.

# %%
loop = mine("05.loop")  # yours, if it was right


def run_loop(target_probs, draft_probs, prompt, k, count, random) -> tuple[list[int], int]:
    """`count` sampled tokens by your loop and your sampler, and the number of verify passes."""
    return sampled_loop(loop, sampler, target_probs, draft_probs, prompt, k, count, random)


# %% [markdown]
# Is it exact? With sampling we cannot compare two outputs token by token, but for two toy models we can compute the
# distribution of the output. [`exact_distribution`](../minispec/exact.py) runs a program down every branch of its random
# numbers and adds up the probabilities. Here the program is your loop with your sampler, and it emits three tokens.


# %%
def toy(probs):  # the next token depends on the whole sequence
    after = cache(lambda tokens: probs.roll(sum(tokens) + len(tokens)))
    return lambda tokens: torch.stack([after(tokens[: i + 1]) for i in range(len(tokens))])


yours_emits = exact.exact_distribution(
    lambda random: tuple(run_loop(toy(p), toy(q), [0], k=2, count=3, random=random)[0])
)
target_emits = exact.joint_distribution(  # the probability of any three tokens under p alone
    lambda tokens: exact.plain_distribution(lambda t: toy(p)((0, *t))[-1], tokens), 3
)
print("different outputs:", len(yours_emits))
claim("your loop and the target alone, three tokens", yours_emits, target_emits)

# %% [markdown]
# TV, the distance between the two distributions over all outputs, is 0. Now the real models, at temperature 0.8:

# %%
target = ms.load("micro", device="cpu", dtype=torch.float64)
draft = ms.load("micro-draft", device="cpu", dtype=torch.float64)


def probs_of(model, setting):
    @torch.inference_mode()
    def probs(tokens):
        return setting.probs(model.transformer(torch.tensor([tokens])).logits[0])  # [T, V], without a cache

    return probs


warm = ms.Sampling(temperature=0.8)
prompt = target.encode("One day, a girl named Lily")
tokens, passes = run_loop(probs_of(target, warm), probs_of(draft, warm), prompt, 4, 60, Random(0).random)
print(f"60 tokens in {passes} verify passes, {60 / passes:.1f} tokens per pass; plain decoding needs 60 passes:")
print(target.decode(tokens))

# %% [markdown]
# ## Claims you will read
#
# `emitted_distribution` computes the exact distribution of the emitted token, from your rules or from others.
#
# **"Accepted tokens follow the target."** Emitted tokens do. Accepted ones follow the green area, scaled to one, so a data
# set of accepted tokens is biased.

# %%
green = torch.minimum(p, q) / overlap
claim("accepted tokens follow p", green, p)
claim("accepted tokens follow q", green, q)
claim("emitted tokens follow p", exact.emitted_distribution(p, q, accept=accept_probability, replace=residual), p)

# %% [markdown]
# **"After a rejection, sample from the target."**

# %% tags=["nbval-ignore-output"]
guess_biased = viz.predict("p gives token 0 a probability of 0.6. Corrections from p: how often is token 0 emitted?")
guess_biased

# %% tags=["spoiler"]
biased = exact.emitted_distribution(p, q, accept=accept_probability, replace=lambda p, q: p)
print("emitted:", [round(x, 3) for x in biased.tolist()], " wanted:", p.tolist())
claim("corrections from p, and the emitted token follows p", biased, p)

# %% tags=["spoiler", "nbval-ignore-output"]
guess_biased.reveal(float(biased[0]))

# %% [markdown]
# Accepted tokens have filled the green part, and sampling from all of $p$ fills it a second time. The bug is easy to
# miss: a greedy test cannot see it, and the output is fluent.
#
# In the widget below, with the real verifier, make $q$ as bad as you can: acceptance falls, and the emitted
# distribution does not move. Then choose *replace from p* and press play. The sentence under the bars gives the p-value
# of a χ² test, the chance that tokens which do follow $p$ look at least this odd. When does it fall below 0.001 (we
# look many times, hence not 0.05)? With "a fair draft", with "a good draft"?

# %% tags=["nbval-ignore-output"]
viz.residual_explorer()

# %% [markdown]
# <details><summary>Answer</summary>
#
# After a few hundred cycles with "a fair draft", after a few thousand with a good one.
# </details>
#
# **"The draft model must sample."** A greedy drafter has a distribution as well: it proposes $d$ with certainty, so $q$
# is one-hot. Then $d$ is accepted with probability $p(d)$, and the residual is $p$ without $d$. What fails is drafting
# greedily while reporting the softmax as $q$.

# %%
one_hot = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)  # always token 2
rules = dict(accept=accept_probability, replace=residual)
claim("greedy draft, q one-hot", exact.emitted_distribution(p, one_hot, **rules), p)
claim("greedy draft, q from the softmax", exact.emitted_distribution(p, q, drawn_from=one_hot, **rules), p)

# %% [markdown]
# ## Must the settings match? (optional, 15 minutes)
#
# **"Temperature and top-p of both models must match."** Let the target sample at temperature 0.8 with top-p 0.9 (only
# the likeliest tokens that together hold 0.9 of the probability). The draft model tries the same setting, temperature 1.2,
# temperature 0.5 with top-k 5 (the five likeliest tokens), and greedy. Which settings keep the
# output exact?

# %% tags=["nbval-ignore-output"]
guess_settings = viz.predict("Greedy drafts: the mean overlap over the text in the next cell?", "%")
guess_settings

# %% tags=["spoiler"]
story = target.encode("Once upon a time there was a little dog who lived near the river. One day he saw a boat.")
with torch.inference_mode():
    target_logits, draft_logits = (model.transformer(torch.tensor([story])).logits[0] for model in (target, draft))
p_story = ms.Sampling(temperature=0.8, top_p=0.9).probs(target_logits)  # [T, V]
settings = {
    "as the target": ms.Sampling(temperature=0.8, top_p=0.9),
    "temperature 1.2": ms.Sampling(temperature=1.2),
    "temperature 0.5, top-k 5": ms.Sampling(temperature=0.5, top_k=5),
    "greedy": ms.Sampling(temperature=0),
}
for name, setting in settings.items():
    pairs = list(zip(p_story, setting.probs(draft_logits), strict=True))
    worst = max(exact.total_variation(exact.emitted_distribution(*pair, **rules), pair[0]) for pair in pairs)
    fits = sum(float(torch.minimum(*pair).sum()) for pair in pairs) / len(pairs)
    print(f"draft {name:25} overlap {fits:.2f}   exact at all {len(pairs)} positions: {worst < 1e-9}")

# %% tags=["spoiler", "nbval-ignore-output"]
guess_settings.reveal(round(100 * fits))  # the last one, greedy

# %% [markdown]
# No sampling setting has to match. The draft model's setting decides only how much is accepted. But $q$ must be the
# distribution that the draft token was *really* sampled from, and $p$ the one that plain decoding would sample from,
# both after truncation. If either is taken from before top-p, the output is biased:

# %%
p_before, p_after = (ms.Sampling(0.8, top_p=x).probs(target_logits[12]) for x in (1.0, 0.9))
q_before, q_after = (ms.Sampling(0.8, top_p=x).probs(draft_logits[12]) for x in (1.0, 0.5))
claim("both after top-p", exact.emitted_distribution(p_after, q_after), p_after)
claim("q before top-p, sampled after it", exact.emitted_distribution(p_after, q_before, drawn_from=q_after), p_after)
claim("p before top-p, where plain decoding truncates", exact.emitted_distribution(p_before, q_after), p_after)

# %% [markdown]
# ### The same in transformers
#
# The order in which plain decoding truncates is a convention: temperature, then top-k, then top-p. Here are the warpers
# of Hugging Face transformers beside our [`Sampling.probs`](../minispec/sampling.py), on the logits of the story.

# %%
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

warpers = LogitsProcessorList([TemperatureLogitsWarper(0.8), TopKLogitsWarper(50), TopPLogitsWarper(0.9)])
theirs = warpers(torch.tensor([story]), target_logits).softmax(-1)  # [T, V]
ours = ms.Sampling(temperature=0.8, top_k=50, top_p=0.9).probs(target_logits)
print("the same distribution at every position:", torch.allclose(theirs, ours, rtol=0, atol=1e-12))

# %% [markdown]
# ## On the dashboard
#
# One sampled answer each, with a cache and on your device, by `generate` and by [`speculate`](../minispec/speculate.py).

# %% tags=["nbval-ignore-output"]
fast, fast_draft = course_pair(ms.device())
prompt = "One day, a girl named Lily"
for _ in range(2):  # the first run warms up
    plain = ms.generate(fast, prompt, max_new_tokens=60, temperature=0.8)
    out = ms.speculate(fast, prompt, drafters.Model(fast_draft), k=4, max_new_tokens=60, temperature=0.8)
for name, way in (("plain", plain), ("with drafts", out)):
    print(f"{name}: {1e3 * way.seconds / len(way.tokens):.2f} ms per token")
viz.dashboard("06", ms_per_token=1e3 * out.seconds / len(out.tokens))

# %% [markdown]
# Fewer target passes, yet more milliseconds? On a CPU that is expected: `micro-draft` is slow for its size. Lesson 07
# says why, and when speculation pays.
#
# ## In production
#
# | here | vLLM | elsewhere |
# |---|---|---|
# | `sampler` | `RejectionSampler` | transformers: `_speculative_sampling` |
# | correction, bonus | *recovered token*, *bonus token* | SGLang says *bonus* for both |
# | one-hot $q$ | n-gram drafters, and draft models unless `draft_sample_method` is `"probabilistic"` | SGLang: the same default |
# | a rule that accepts more and changes the distribution | `"fly"` ([#53987](https://github.com/vllm-project/vllm/pull/53987)); `"standard"`, the default, and `"block"` are exact | SGLang: `speculative_accept_threshold_single` below 1; Medusa (lesson 09) |
#
# By default both servers accept with probability $p(d)$. A greedy draft usually overlaps less, but $q$ need not be stored
# ($k \times V$ numbers per request) and nothing has to be sampled ([details and commits](../docs/handover.md)).
#
# <details><summary>Go deeper: drafts of variable length</summary>
#
# A drafter may stop early for any reason, even because the token it has just sampled has a low $q(d)$. **Once sampled,
# a draft token must be verified unless an earlier one was rejected.** If unlikely tokens are dropped, the remaining
# ones were selected by their value, and no longer follow the $q$ that is reported.
# </details>
#
# ## Check yourself
#
# <details><summary>p = (0.5, 0.5), q = (0.9, 0.1). How often is a draft token accepted, and what replaces it?</summary>
#
# The overlap is 0.5 + 0.1 = 0.6. The positive part of p − q is (0, 0.4), so the correction is always token 1.
# </details>
#
# <details><summary>Where does the proof use that d was sampled from q?</summary>
#
# In the first term, where $q(x)$ in front is how often $x$ was proposed and $q(x)$ below is what was reported; and in
# Pr[reject], which equals the dashed area only then.
# </details>
#
# <details><summary>The draft model runs at temperature 0.3, the target at 1.0. Is the output exact, and what is the
# price?</summary>
#
# It is exact if the reported q is the one at 0.3. The price is acceptance: the draft model's favourite is often
# rejected.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Leviathan, Kalman, Matias, 2023: *Fast inference from transformers via speculative decoding*
#   ([arXiv:2211.17192](https://arxiv.org/abs/2211.17192)): the rule; appendix A.1 is the proof you have just done.
# - Chen et al., 2023: *Accelerating large language model decoding with speculative sampling*
#   ([arXiv:2302.01318](https://arxiv.org/abs/2302.01318)): the same theorem, with its own proof and a 70B target.
# - Sun et al., 2025: *Block verification accelerates speculative decoding*
#   ([arXiv:2403.10444](https://arxiv.org/abs/2403.10444)): a lossless rule that accepts on average at least as many
#   tokens per cycle.
#
# All papers: [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - Draft tokens that were not sampled, and the right $q$: [exercises 06](../exercises/06_rejection_sampling.ipynb).
# - Interview questions (`minispec drill`): `prove-lossless`, `exact-or-approximate`, `residual-not-p`,
#   `accepted-tokens-law`, `acceptance-is-overlap`, `greedy-draft`, `sampling-parameters`, `residual-edge-cases`,
#   `drop-unlikely-drafts`, `temperature-and-acceptance`.
# - [07 How fast](07_how_fast.ipynb): what a given acceptance is worth in seconds.
