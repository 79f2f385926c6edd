# %% [markdown]
# # Rejection sampling
#
# *Time:* 40 minutes · *Before this:* [05 draft and verify](05_draft_and_verify.ipynb) · *Practice:* [exercises 06](../exercises/06_rejection_sampling.ipynb)
#
# A greedy target says yes or no. A sampling target has no single right token, so what could "accept" mean? It means a coin,
# weighted just so that the text keeps the target's own distribution, whatever the draft said. This lesson proves it in
# three lines, breaks it in seventeen ways, and shows how to notice.
#
# You will be able to
#
# - prove that nothing is lost, and say which assumption each known bug violates;
# - build the residual, and say what accepted tokens follow and what emitted ones follow;
# - use any draft you like: greedy, hotter, truncated, as long as it tells its true law;
# - test a sampler exactly, and say how many samples a statistical test would need;
# - tell rounding from a bug when two texts differ.

# %%
from random import Random

import numpy as np
import torch

import minispec as ms
from minispec import exact, theory, verify
from minispec.course import viz
from minispec.course.viz.goodness import chi_square, draws_needed
from minispec.course.viz.places import PRESETS
from minispec.course.viz.residual import Drawn, explore
from minispec.course.viz.wrong_verifiers import VERIFIERS

# %% [markdown]
# ## Two laws
#
# A vocabulary of three tokens is enough to see everything. The target wants to draw the next token from $p$. The draft
# has already drawn one, from $q$.

# %%
p = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
q = torch.tensor([0.3, 0.2, 0.5], dtype=torch.float64)
print("target p:", p.tolist())
print("draft  q:", q.tolist())

# %% [markdown]
# The rule has two parts. First a coin: accept the draft $d$ with probability
#
# $$\min\left(1, \frac{p(d)}{q(d)}\right)$$
#
# Where the draft is too modest, always. Where it is too eager, just often enough.

# %%
for token in range(3):
    print(f"token {token} was drafted: accept with {float(verify.accept_probability(p, q, token)):.2f}")

# %% [markdown]
# ## Predict
#
# Tokens 0 and 1 are always kept, token 2 only now and then. And over all drafts?

# %% tags=["nbval-ignore-output"]
guess_acceptance = viz.predict("Drafts come from q. Which share of them is accepted?")
guess_acceptance

# %% [markdown]
# ## Run
#
# [`chain`](../minispec/verify.py) is the verifier that all of minispec uses. It takes the laws of all places, one more
# than drafts; here one draft and, after it, a bonus that we ignore.

# %%
random = Random(0).random
both = torch.stack([p, p])  # [γ + 1, V]: the place of the draft, and the bonus
emitted, accepted = [], []
for _ in range(5_000):
    d = verify.pick(q, random())
    verdict = verify.chain(both, q[None], [d], [random(), random()])
    emitted.append(verdict.run([d])[0])
    accepted += [d] * verdict.accepted
print(f"accepted: {len(accepted) / len(emitted):.2f} of all drafts")

# %% [markdown]
# ## Reveal
#
# The chance to draft $x$ and keep it is $q(x)\min(1, p(x)/q(x)) = \min(p, q)(x)$. Sum over $x$: the overlap of the two laws.
# Since $|p - q| = p + q - 2\min(p, q)$, it is one minus their total variation distance.
#
# $$\beta = \sum_x \min(p(x), q(x)) = 1 - \mathrm{TV}(p, q)$$

# %%
print(f"Σ min(p, q)  = {theory.acceptance(p.tolist(), q.tolist()):.2f}")
print(f"1 − TV(p, q) = {1 - theory.total_variation(p.tolist(), q.tolist()):.2f}")

# %% tags=["nbval-ignore-output"]
guess_acceptance.reveal(theory.acceptance(p.tolist(), q.tolist()))

# %% [markdown]
# ## The token that is owed
#
# After a rejection the place is still empty. The second part of the rule fills it from what the draft left uncovered, the
# **residual**:
#
# $$r = \mathrm{norm}([p - q]_+), \qquad [x]_+ = \max(x, 0)$$

# %%
print("[p − q]₊ =", [round(x, 3) for x in (p - q).clamp(min=0).tolist()])
print("residual =", [round(x, 3) for x in verify.residual(p, q).tolist()])

# %% [markdown]
# Tokens 0 and 1 are drafted too seldom, so they share what is owed. A rejected token has $p(d) < q(d)$, hence probability 0
# in the residual: what was just rejected never comes back at that place.
#
# ## The proof, in three lines
#
# A token $x$ is emitted because it was drafted and accepted, or because something was rejected and $x$ drawn instead.
#
# $$
# \begin{aligned}
# \Pr[\text{emit } x] &= q(x)\,\min\left(1, \tfrac{p(x)}{q(x)}\right) \;+\; \Pr[\text{reject}]\cdot\frac{[p - q]_+(x)}{\sum_y [p - q]_+(y)} \\
# &= \min(p, q)(x) \;+\; [p - q]_+(x) \\
# &= p(x)
# \end{aligned}
# $$
#
# The second line needs $\Pr[\text{reject}] = 1 - \sum\min(p, q) = \sum (p - \min(p, q)) = \sum [p - q]_+$: the chance of a
# rejection *is* the normaliser, so they cancel. Nothing was asked of $q$, except that $d$ was really drawn from it.
#
# The same three lines with numbers:

# %%
rejected = 1 - torch.minimum(p, q).sum()
coin = torch.stack([verify.accept_probability(p, q, x) for x in range(3)])
for line in (q * coin + rejected * verify.residual(p, q), torch.minimum(p, q) + (p - q).clamp(min=0), p):
    print([round(x, 6) for x in line.tolist()])

# %% [markdown]
# One example proves nothing. [`emitted_distribution`](../minispec/exact.py) composes the law of the emitted token for any $p$ and
# $q$, without drawing anything. Three hundred pairs, many of them with zeros:

# %%
generator = torch.Generator().manual_seed(0)
worst = 0.0
for _ in range(300):
    pair = torch.rand(2, 8, generator=generator, dtype=torch.float64)
    pair = pair * (torch.rand(2, 8, generator=generator) < 0.7)
    pair[:, 0] += 0.01  # at least one token is left
    one, other = pair / pair.sum(-1, keepdim=True)
    worst = max(worst, exact.total_variation(exact.emitted_distribution(one, other), one))
print("largest distance between the emitted law and p below 1e-12:", worst < 1e-12)

# %% [markdown]
# ## Claims you will read
#
# Several guides to this topic get parts of it wrong. Each claim becomes a check here, and each of these checks fails.


# %%
def claim(says: str, law, wanted) -> None:
    """Print whether a law is what a claim says it is."""
    off = exact.total_variation(law, wanted)
    print(f"{'holds' if off < 1e-12 else 'FAILS'}   {says:52s} TV = {off:.4f}")


# %% [markdown]
# ### "Accepted tokens follow the target"
#
# Guide C says so. It is the *emitted* token that follows $p$. Accepted ones follow $\min(p, q)/\beta$: what the draft never
# proposes can never be accepted.

# %%
overlap = torch.minimum(p, q) / torch.minimum(p, q).sum()
seen = torch.bincount(torch.tensor(accepted), minlength=3) / len(accepted)
print("accepted in the run:", [round(x, 2) for x in seen.tolist()])
claim("accepted tokens follow p", overlap, p)
claim("accepted tokens follow q", overlap, q)
claim("emitted tokens follow p", exact.emitted_distribution(p, q), p)

# %% [markdown]
# So a data set of accepted tokens only is a biased one. And this is not the rejection sampling of textbooks, which draws
# from $q$ again until something passes. Here one rejection is settled at once, from the residual.
#
# ### "After a rejection, sample from the target"
#
# It sounds harmless: $p$ is the law we want, after all. Commit to a number first.

# %% tags=["nbval-ignore-output"]
guess_biased = viz.predict(
    "p gives token 0 a chance of 0.6. Replace from p instead of the residual: how often does it come?"
)
guess_biased


# %%
def from_p(p, q):
    return p


biased = exact.emitted_distribution(p, q, replace=from_p)
print("emitted:", [round(x, 3) for x in biased.tolist()], " wanted:", p.tolist())
claim("replace from p, and the emitted token follows p", biased, p)

# %% tags=["nbval-ignore-output"]
guess_biased.reveal(float(biased[0]))

# %% [markdown]
# The law is now $\min(p, q) + (1 - \beta)\,p$. The accepted path has already given out $\min(p, q)$, and drawing from all of
# $p$ pays that part twice. What the draft likes gains. The better the draft, the smaller the damage: good drafts hide this
# bug, greedy tests cannot see it, and the text stays fluent.
#
# ## The residual explorer
#
# Drag the bars of $p$ and $q$ (or focus one and use the arrow keys), choose a verifier, right or wrong, and let it draw.
# The last entries of the first menu are places of a real run: `micro` with its draft, top-k 3 on both sides.
#
# In the bars, green is what both laws share, orange what the draft leaves uncovered, hatched what it has too much of. Orange
# and hatched always have the same area: that is the line of the proof where the normaliser cancels.

# %% tags=["nbval-ignore-output"]
target = ms.load("micro", device="cpu", dtype=torch.float64)
draft = ms.load("micro-draft", device="cpu", dtype=torch.float64)
places = viz.real_places(target, draft, "Once upon a time", count=5)
viz.residual_explorer(places)

# %% [markdown]
# Things to try:
#
# 1. With the real verifier, make $q$ as bad as you can. Acceptance falls, tokens per cycle fall, the law of the emitted token
#    does not move at all.
# 2. *Replace from p*, then press play. How many cycles does it take until χ² objects? Change to "a good draft" and try again.
# 3. *One random number for all*: the law of one token is exact, the law of two is not. With one draft a cycle it is exact
#    again. Why?
# 4. *No bonus*: every law is exact. Only the count of tokens tells.
#
# The dots are cycles drawn through the verifier you chose. The bars are not estimated from them:
# [`exact_distribution`](../minispec/exact.py) runs the same code once for every way its random numbers can fall.

# %% [markdown]
# ## More than one token
#
# A cycle emits a run of tokens. At place $i$ the proof holds for $p_i$ and $q_i$, which are the laws *given what was emitted
# before*. So the first token follows the target; given it, the second; and so on, by induction. Two things must not happen on
# the way. A draft that was made after a rejected token must not be looked at. And each place needs a fresh random number.
#
# That is why a test of single tokens is not enough. The table composes three exact numbers for each verifier, with two drafts
# a cycle (one for the bonus row, where it shows): how far one token is off, how far two are, how many tokens a cycle gives.

# %%
fair = viz.toy_place(*PRESETS["a fair draft"])
print(f"{'':36s} one token  two tokens  tokens per cycle")
for name, verifier in VERIFIERS.items():
    found = explore(fair, verifier, gamma=1 if "row before" in name else 2)
    off = [f"{x:.4f}" if x > 1e-9 else "exact" for x in (found.one_place, found.two_places)]
    print(f"{name:36s} {off[0]:>9s}  {off[1]:>10s}  {found.tokens:.4f}")

# %% [markdown]
# Read the last four lines once more. Three bugs leave the first token exact and only bend the pairs. The last one bends no law
# at all: it loses the **bonus**, the token that the target's last row gives for nothing when all drafts pass.
#
# And look at *accept always*: no line has more tokens per cycle. A speed test alone would call it the best.
#
# With acceptance β at every place, as in this toy, the count is the formula of lesson 07.

# %%
beta = theory.acceptance(*PRESETS["a fair draft"])
print(f"E[N] = (1 − β³)/(1 − β) = {theory.expected_tokens(beta, k=2):.4f} at β = {beta:.2f}")
print(f"the real verifier:        {explore(fair).tokens:.4f}")

# %% [markdown]
# ## Drafts that were not drawn
#
# ### "The draft must sample: greedy drafts cannot be used"
#
# They can. A draft that could have said nothing else has a law too: $q(d) = 1$. Put it in. The coin becomes $p(d)$, the
# residual becomes $p$ without $d$, renormalised.

# %%
d = int(q.argmax())
certain = verify.one_hot(d, like=p)
print("draft:", d, " accept with:", float(verify.accept_probability(p, certain, d)))
print("residual:", [round(x, 3) for x in verify.residual(p, certain).tolist()])
claim("greedy draft, q one-hot", exact.emitted_distribution(p, certain), p)

# %% [markdown]
# What does fail is to draft greedily and hand over the softmax. The draft says "I took this token with probability one half",
# while it took it always.

# %%
claim("greedy draft, q from the softmax", exact.emitted_distribution(p, q, drawn_from=certain), p)

# %% [markdown]
# Lookups in the prompt (lesson 08) live on this rule. Which of the two drafts is accepted more often? That depends: drawn
# drafts get $\sum\min(p, q)$, greedy ones $p(d)$.

# %%
for one, other in (([0.6, 0.4], [0.6, 0.4]), ([0.8, 0.2], [0.5001, 0.4999])):
    greedy = [1.0, 0.0]
    print(f"p = {one}: drawn {theory.acceptance(one, other):.2f}, greedy {theory.acceptance(one, greedy):.2f}")

# %% [markdown]
# ## Sampling parameters
#
# ### "Temperature and top-p must match"
#
# Guide D asks for consistency, and many readers take it for equality. The proof asks for less: $p$ is the law that plain
# decoding would draw from, after the target's temperature and truncation. $q$ is the law the draft was *really* drawn from,
# after whatever the draft applied. They may differ as they like.
#
# We take real laws: both models read the same story, one pass each.

# %%
STORY = (
    "Once upon a time there was a little dog who lived near the river. Every morning he ran to the water to look at the "
    "fish. One day he saw a small boat, and in the boat there was a cat."
)
tokens = torch.tensor([target.encode(STORY)])  # [1, T]
with torch.inference_mode():
    target_logits = target.transformer(tokens).logits[0]  # [T, V]
    draft_logits = draft.transformer(tokens).logits[0]
print(f"{tokens.shape[1]} places, {target_logits.shape[-1]} tokens to choose from at each")

# %%
wanted = ms.Sampling(temperature=0.8, top_p=0.9).probs(target_logits)  # [T, V]
for how in (ms.Sampling(0.8, top_p=0.9), ms.Sampling(0.8), ms.Sampling(1.2), ms.Sampling(0.5, top_k=5), ms.Sampling(0)):
    used = how.probs(draft_logits)
    accept = torch.minimum(wanted, used).sum(-1).mean()
    off = max(exact.total_variation(exact.emitted_distribution(wanted[i], used[i]), wanted[i]) for i in (5, 15, 25))
    print(f"draft: temperature {how.temperature:3}, top-k {how.top_k}, top-p {how.top_p:3}: "
          f"accepted {accept:.2f}, exact: {off < 1e-9}")  # fmt: skip

# %% [markdown]
# Exact in every line. The parameters decide only how much is accepted. Matching is a good start, not a law: a draft may be
# tuned for acceptance alone, and [`acceptance_by_temperature`](../minispec/course/viz/temperature.py) draws the whole field.
#
# ### Consistency, though, is a must
#
# Two ways to get it wrong, on one real place. First: draw the draft with top-p, report $q$ from before. Second: compare with
# $p$ from before top-p, where plain decoding would truncate.

# %%
place = 15
before, after = (ms.Sampling(0.8, top_p=t).probs(draft_logits[place]) for t in (1.0, 0.5))
claim("q after top-p, drawn after top-p", exact.emitted_distribution(wanted[place], after), wanted[place])
claim(
    "q before top-p, drawn after it",
    exact.emitted_distribution(wanted[place], before, drawn_from=after),
    wanted[place],
)
raw = ms.Sampling(0.8).probs(target_logits[place])
claim("p before top-p, where plain decoding truncates", exact.emitted_distribution(raw, after), wanted[place])

# %% [markdown]
# One function makes laws of logits in minispec, for both models and for plain decoding:
# [`Sampling.probs`](../minispec/sampling.py). There is no second place where truncation could be forgotten.
#
# And one more rule of honesty: **decide before you draw**. To stop drafting because $q$ is flat is fine. To drop a token that
# was drawn, because it turned out unlikely, is not: what is left was selected, and no longer follows $q$. That was the line
# *unlikely drafts dropped* in the table.

# %% [markdown]
# ## Pseudocode under test
#
# Two of the guides carry code. Each of these lines is from one of them, composed exactly. The toy models get a prompt of two
# tokens.

# %%
prompt = (1, 3)
toy_target, toy_draft = fair.target, fair.draft


def guide_c(offset: int):
    """Guide C's cycle: replacement from the target's row `offset` + number of accepted tokens. First token only."""

    def program(random):
        drafted, q = exact.propose_chain(toy_draft, prompt, 2, random)
        text = prompt + drafted
        rows = [toy_target(text[: i + 1]) for i in range(len(text))]  # row i follows token i
        p = torch.stack(rows[len(prompt) - 1 :])
        verdict = verify.chain(p, q, drafted, [random() for _ in p])
        return drafted[0] if verdict.accepted else verify.pick(rows[offset], random())

    return program


def first_token(law: dict) -> dict:
    """The law of the first token of a run, as runs of one token."""
    total = {}
    for run, probability in law.items():
        run = run if isinstance(run, tuple) else (run,)
        total[run[:1]] = total.get(run[:1], 0.0) + probability
    return total


plain = exact.plain_distribution(toy_target, prompt)
real = exact.chain_distribution(toy_target, toy_draft, 2, prompt)
claim("real verifier", first_token(real), plain)
claim("row of the replacement: without the prompt", first_token(exact.exact_distribution(guide_c(offset=0))), plain)
claim(
    "row of the replacement: with it, but drawn from p",
    first_token(exact.exact_distribution(guide_c(len(prompt) - 1))),
    plain,
)
kept_one = explore(fair, "wrong: only q(d) kept")
claim("only q(d) kept, though the residual needs the row", kept_one.emitted, kept_one.p)

# %% [markdown]
# The last mistake is in the loop around the cycle: guide E never appends what was emitted to the prompt. Each cycle then
# continues the same text. One token is right, two are not.

# %%
two = exact.joint_distribution(lambda context: exact.plain_distribution(toy_target, prompt + context), 2)
advancing = exact.joint_distribution(
    lambda context: exact.chain_distribution(toy_target, toy_draft, 1, prompt + context), 2
)
stuck = exact.joint_distribution(lambda context: exact.chain_distribution(toy_target, toy_draft, 1, prompt), 2)
claim("two tokens, the prompt advances", advancing, two)
claim("one token, the prompt does not advance", first_token(stuck), first_token(two))
claim("two tokens, the prompt does not advance", stuck, two)

short = explore(fair, "wrong: no bonus")
print(f"tokens per cycle: {explore(fair).tokens:.2f} with the bonus, {short.tokens:.2f} without (guides C and E)")

# %% [markdown]
# ## How to test a sampler
#
# **Exactly, where you can.** Everything above did that. Give the sampler a small vocabulary, follow every branch, compare two
# laws. No seed, no threshold, no flaky test. `minispec`'s own tests do it for chains, trees and cascades.
#
# **With samples, where you must**, as with a kernel on a GPU. Then say how much the test can see. Take the bug *likeliest of the
# residual* on the fair draft: it is off by a total variation of 0.05.

# %%
bug = explore(fair, "wrong: likeliest of the residual")
print("wanted: ", [round(x, 3) for x in bug.p.tolist()])
print("emitted:", [round(x, 3) for x in bug.emitted.tolist()], f"  TV = {bug.one_place:.3f}")

# %% tags=["nbval-ignore-output"]
guess_draws = viz.predict("How many samples until a χ² test (level 0.001) sees this bug 95 times of 100?", "samples")
guess_draws

# %% [markdown]
# The statistic of $n$ samples is $\chi^2 = \sum_x (\text{seen} - n p(x))^2 / (n p(x))$. If they come from another law $e$, it is shifted by
# $n \sum_x (e(x) - p(x))^2/p(x)$, and that shift has to grow beyond what chance does.
# [`draws_needed`](../minispec/course/viz/goodness.py) solves for $n$.

# %%
needed = draws_needed(bug.p, bug.emitted, power=0.95, level=0.001)
print(f"TV 0.050: {needed:,} samples")
for part in (0.4, 0.2, 0.1):
    nearer = bug.p + part * (bug.emitted - bug.p)
    print(f"TV {0.05 * part:.3f}: {draws_needed(bug.p, nearer):,} samples")

# %% tags=["nbval-ignore-output"]
guess_draws.reveal(needed)

# %% [markdown]
# Half the distance, four times the samples. Now draw them, through the wrong verifier and through the right one.

# %%
for name in ("wrong: likeliest of the residual", "right: the real verifier"):
    run = Drawn(fair, VERIFIERS[name], gamma=1, seed=0)
    few = run.upto(200).p_value(fair.target(()))
    many = run.upto(2 * needed).p_value(fair.target(()))
    print(f"{name:33s} 200 samples: {'seen' if few < 0.001 else 'not seen':8s}  "
          f"{2 * needed:,}: {'seen' if many < 0.001 else 'not seen'}")  # fmt: skip

# %% [markdown]
# And does the test have the power that was promised? A thousand repetitions, drawn straight from the bent law.

# %%
counts = np.random.default_rng(0).multinomial(needed, bug.emitted.numpy(), size=1000)
caught = sum(chi_square(row, bug.p) < 0.001 for row in counts) / 1000
counts = np.random.default_rng(1).multinomial(needed, bug.p.numpy(), size=1000)
alarms = sum(chi_square(row, bug.p) < 0.001 for row in counts)
print(f"bug seen in {caught:.0%} of the repetitions; at most 5 false alarms in 1000: {alarms <= 5}")

# %% [markdown]
# A test that passes on too few samples has shown nothing. Nobody has ever seen a total variation of 0.05 by reading samples
# and finding them fluent.

# %% [markdown]
# ## Lossless in theory, in the algorithm, in floating point
#
# "Lossless" has three meanings, and each ends somewhere else.
#
# | | what it says | where it ends |
# |---|---|---|
# | in theory | the emitted law is $p$: the three lines | nowhere, it is a theorem |
# | in the algorithm | this code does that: rows, $q$, random numbers | at the first bug of the table above |
# | in floating point | the $p$ of a verify pass is the $p$ of plain decoding | at the last bits |
#
# The last one first, in numbers. The same tokens go through the target once as a block of five, and once one by one.


# %% tags=["nbval-ignore-output"]
@torch.inference_mode()
def block_against_singles(model, text: str = STORY) -> float:
    """The largest difference between the logits of passes over five tokens and of passes over one."""
    ids = torch.tensor([model.encode(text)])
    by_five, by_one = (model.transformer.new_cache(1, ids.shape[1]) for _ in range(2))
    blocks = [model.transformer(part, by_five).logits for part in ids.split(5, dim=1)]
    singles = [model.transformer(part, by_one).logits for part in ids.split(1, dim=1)]
    return float((torch.cat(blocks, 1) - torch.cat(singles, 1)).abs().max())


models = {
    kind: [ms.load(name, device="cpu", dtype=getattr(torch, kind)) for name in ("micro", "micro-draft")]
    for kind in ("float64", "float32", "bfloat16")
}
for kind, (model, _) in models.items():
    print(f"{kind:9s} logits differ by up to {block_against_singles(model):.2g}")

# %% [markdown]
# Other shapes are summed in another order, and rounding depends on the order. In float64 and float32 the difference is far
# below any gap between two tokens that matters. So greedy texts agree, token for token.

# %%
PROMPTS = ("Once upon a time", "The little dog", "One day, a girl named Lily", "In the morning", "Tom and his mother")


def two_texts(kind: str, prompt: str):
    """Greedy text of plain decoding and of speculation."""
    model, helper = models[kind]
    plain = ms.generate(model, prompt, max_new_tokens=30).tokens
    return plain, ms.speculate(model, prompt, ms.drafters.Model(helper), k=4, max_new_tokens=30).tokens


for kind in ("float64", "float32"):
    same = sum(a == b for a, b in (two_texts(kind, prompt) for prompt in PROMPTS))
    print(f"{kind}: {same} of {len(PROMPTS)} texts are the same")

# %% [markdown]
# bfloat16 keeps eight bits of a number: between 8 and 16, where the best logits are, neighbours are $2^{-4}$ apart. So two
# tokens can be *tied*. Which of them wins is a matter of the last bit, and the last bit depends on the shape of the pass. We look
# for the first prompt where that happens. (It depends on the machine; on some, no prompt of this list will do.)

# %% tags=["nbval-ignore-output"]
MORE = (*PROMPTS, "There was a big tree", "It was a rainy day", "A boy found a ball", "The old man", "She wanted to")
model = models["bfloat16"][0]
for start in MORE:
    plain_text, other_text = two_texts("bfloat16", start)
    if plain_text != other_text:
        where = next(i for i, pair in enumerate(zip(plain_text, other_text, strict=False)) if pair[0] != pair[1])
        pair = plain_text[where], other_text[where]
        print(f"{start!r}: the texts part at token {where}")
        print("both:        ", repr(start + model.decode(plain_text[:where])))
        print("plain:       ", repr(model.decode(plain_text[where : where + 8])))
        print("speculative: ", repr(model.decode(other_text[where : where + 8])))
        ids = torch.tensor([[*model.encode(start), *plain_text[:where]]])
        for kind, (judge, _) in models.items():
            with torch.inference_mode():
                best = judge.transformer(ids, last_only=True).logits[0, -1].double()
            gap = float(best[pair[0]] - best[pair[1]])
            print(f"  {kind:9s} logits {float(best[pair[0]]):.4f} and {float(best[pair[1]]):.4f}: gap {gap:+.4f}")
        top = float(best.abs().max())
        print(f"  two neighbours in bfloat16 near {top:.1f} are {2.0 ** (int(np.log2(top)) - 7):.4f} apart")
        break
else:
    print("on this machine the two texts agree for every prompt of the list")

# %% [markdown]
# Where the texts part, the two tokens are a step or two of bfloat16 apart, or none. Neither text is the wrong one: plain decoding at
# another batch size parts in the same places. Nothing is pushed in one direction, and no law is bent on purpose.
#
# So when a greedy text differs, ask for the gap at the *first* difference
# ([`parting`](../minispec/bench/acceptance.py) computes it):
#
# - a gap of about one step of the dtype, and agreement in float32: rounding;
# - a large gap, or a difference in float32 too: a bug. Do not blame floating point for it.
#
# And with a temperature, texts differ anyway for the same seed: random numbers are used in another order. Same law, not same
# text.

# %% [markdown]
# ## In production
#
# | minispec | vLLM | elsewhere |
# |---|---|---|
# | `verify.chain_batch` | `RejectionSampler` (v1/sample) | transformers: `_speculative_sampling` |
# | the correction | *recovered token* | papers speak of *resampling* |
# | the bonus | *bonus token* | SGLang says *bonus* for a correction, too |
# | `q=None`, one-hot | no `draft_probs`: n-gram and greedy drafts | EAGLE in SGLang, by default: the target alone decides |
# | greedy target | compares with the argmax, no coin | the same |
# | a lossy rule, like `typical` | | SGLang: `speculative_accept_threshold_single` and `…_acc` below 1 |
#
# Production code takes all rows at once, and computes $p$ in float32 even where the model runs in bfloat16. vLLM
# draws the recovered token of every place in advance, and its coins in float64, because in float32 a coin of exactly 0
# is too common. Its documentation promises what you can now read precisely: lossless up to the numerics of the hardware.
#
# Rules that accept more by bending the law exist and are used on purpose. Lesson 09 has one. They should say so.

# %% [markdown]
# ## Check yourself
#
# <details><summary>p = (0.5, 0.5), q = (0.9, 0.1). How often is a draft accepted, and what replaces it?</summary>
#
# Σ min = 0.5 + 0.1 = 0.6. [p − q]₊ = (0, 0.4), so always token 1.
# </details>
#
# <details><summary>A colleague's sampler passes a χ² test of single tokens with a million samples. Name two bugs that may still
# be in it.</summary>
#
# One random number for all places, or drafts judged past a rejection: both bend only the joint law. And a missing bonus, which
# bends nothing and costs tokens.
# </details>
#
# <details><summary>The draft runs at temperature 0.3, the target at 1.0. Is the output exact, and what is the price?</summary>
#
# Exact, if the q that is handed over is the one at 0.3. The price is acceptance: the draft is surer than the target, so its
# favourite is often rejected and the rest never proposed.
# </details>

# %% [markdown]
# ## Next
#
# - Write the sampler from its parts: [exercises 06](../exercises/06_rejection_sampling.ipynb). The checks compose its law.
# - Interview questions (`minispec drill`): `prove-lossless`, `exact-or-approximate`, `residual-not-p`, `acceptance-by-hand`,
#   `accepted-tokens-law`, `acceptance-is-overlap`, `greedy-draft`, `sampling-parameters`, `numerics-of-lossless`,
#   `residual-edge-cases`, `drop-unlikely-drafts`, `test-lossless`, `temperature-and-acceptance`.
# - [07 how fast](07_how_fast.ipynb): what a given acceptance is worth in seconds.
