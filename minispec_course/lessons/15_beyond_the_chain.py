# %% [markdown]
# # 15 Beyond the chain
#
# *Time:* 70 minutes · *Before this:* [06 rejection sampling](06_rejection_sampling.ipynb), [14 is it really exact](14_is_it_really_exact.ipynb) · *Practice:* [exercises 15](../exercises/15_the_frontier.ipynb)
#
# Three requests have come in for our chatbot. Its user wants more speed from the same drafts. The only small model that we
# may use has a different tokenizer. And a program now reads some of the answers, so those have to be valid JSON. How far can
# the sampler of lesson 06 be stretched before it breaks? The number on the dashboard is **ms per token**;
# what moves it here is tokens per forward pass.
#
# You will be able to
#
# - write block verification, and say when it accepts more than the rule of lesson 06;
# - say how a model with a different vocabulary can draft, and what that costs;
# - follow a constraint along a draft, and tell which shortcuts bias the output.

# %%
from random import Random

import torch

import minispec as ms
from minispec import drafters, exact
from minispec.verify import pick, residual
from minispec_course import viz
from minispec_course.check import mine, yours
from minispec_course.labs.pairs import course_pair
from minispec_course.labs.verifiers import claim

# %% [markdown]
# ## More tokens from the same drafts
#
# Take a vocabulary of A and B, and models that ignore the context. The target gives B two thirds, and the draft model gives
# it one third. The draft is A, B.
#
# For A the ratio $p/q$ is one half, so the sampler of lesson 06 rejects it half of the time. For B the ratio is two. But the
# draft *as a whole* is exactly as likely under the target as under the draft model, because $\frac12 \cdot 2 = 1$. So why
# reject it at all?

# %%
p_ab = torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)
q_ab = p_ab.flip(0)
P, Q = p_ab.expand(3, -1), q_ab.expand(2, -1)  # the distributions of a cycle with two draft tokens: [3, V] and [2, V]


def draft_and_judge(rule):
    """The exact distribution of what a cycle emits: two tokens sampled from q, then judged by the rule."""

    def cycle(random):
        return tuple(rule(P, Q, [pick(q_ab, random()), pick(q_ab, random())], random))

    return exact.exact_distribution(cycle)


def accepted(outputs):
    return sum((len(tokens) - 1) * probability for tokens, probability in outputs.items())


token_by_token = mine("06.sampler")  # yours, if it was right
print(f"token by token: {accepted(draft_and_judge(token_by_token)):.2f} of 2 draft tokens accepted per cycle")

# %% [markdown]
# **Block verification** (Sun et al., 2025, arXiv:2403.10444) judges prefixes instead of tokens. A prefix of $i$ draft tokens
# has the weight
#
# $$w_0 = 1, \qquad w_{i+1} = \min\left(1,\; w_i\, \frac{p_i(d_i)}{q_i(d_i)}\right),$$
#
# and is kept with probability $w_i$, averaged over what may be drafted after it: A has the weight ½, so over the drafts A, A
# and A, B together it is kept half of the time. Token by token it is kept with probability $\prod_j \min(1, p_j/q_j)$, which
# is never larger: there, a deficit can never be made up later.

# %% tags=["nbval-ignore-output"]
guess_block = viz.predict("How many of the 2 draft tokens does block verification accept per cycle?", "tokens")
guess_block

# %% [markdown]
# ### Yours: block verification
#
# Try the longest prefix first, then shorter ones, and stop at the first yes. Accepting a longer prefix keeps every shorter one
# too. So when we come to prefix $i$, part of its $w_i$ is used up: the next prefix has the weight $\min(1, w_i\,p_i/q_i)$, so
# longer ones are kept with probability $\sum_x q_i(x) \min(1, w_i\,p_i(x)/q_i(x)) = \sum_x \min(q_i(x), w_i\,p_i(x))$. What is
# left of $w_i$ is $R_i$, and we get here with probability $1 - (w_i - R_i)$. Dividing gives $h_i$, the probability of a yes
# if no longer prefix got one. With $q_k = 0$, because nothing is drafted after the last token:
#
# $$R_i = \sum_x \left[w_i\, p_i(x) - q_i(x)\right]_+, \qquad h_i = \frac{R_i}{R_i + 1 - w_i}$$
#
# (Positions count from 0: $p_i$ and $q_i$ come after $i$ draft tokens, and $d_i$ is drafted from $q_i$. In the example the
# draft A, B has the weights $w$ = 1, ½, 1, so $h_2$ = 1: B makes up for A. The draft A, A has $w$ = 1, ½, ¼, so $h_2$ = ¼ and
# $h_1$ = 0.)
#
# 1. For $i = k, \dots, 1$: if `random() < h_i`, the first $i$ tokens are accepted. (If $R_i + 1 - w_i = 0$, then $h_i = 1$.)
# 2. If there was no yes, nothing is accepted: $i = 0$.
# 3. Emit one token more, sampled from $\mathrm{norm}([w_i\, p_i - q_i]_+)$. `residual(w * p, q)` computes that.
#
# Use each `random()` once, in a comparison or in `pick(probs, random())`.


# %%
@yours("15.block")
def verify_block(p: torch.Tensor, q: torch.Tensor, drafted: list[int], random) -> list[int]:
    """The tokens that a cycle emits: p [k + 1, V], q [k, V], k draft tokens."""
    ### BEGIN SOLUTION: the weights of all prefixes; then the longest prefix that gets a yes; then one token more
    k = len(drafted)
    q = torch.cat([q, torch.zeros_like(p[:1])])  # [k + 1, V]
    w = [1.0]
    for i, d in enumerate(drafted):
        w.append(min(1.0, w[i] * float(p[i, d] / q[i, d])))
    kept = 0
    for i in range(k, 0, -1):
        rest = float((w[i] * p[i] - q[i]).clamp(min=0).sum())
        below = rest + (1 - w[i])
        if random() < (rest / below if below > 0 else 1.0):
            kept = i
            break
    return [*drafted[:kept], pick(residual(w[kept] * p[kept], q[kept]), random())]
    ### END SOLUTION


# %% tags=["spoiler"]
target_emits = exact.joint_distribution(lambda tokens: {(0,): 1 / 3, (1,): 2 / 3}, 3)
for name, rule in (("token by token", token_by_token), ("block", verify_block)):
    outputs = draft_and_judge(rule)
    print(f"{name:14} accepts {accepted(outputs):.2f} of 2 draft tokens per cycle")
    claim(
        f"{name}, three emitted tokens", exact.joint_distribution(lambda _, outputs=outputs: outputs, 3), target_emits
    )

# %% tags=["spoiler", "nbval-ignore-output"]
guess_block.reveal(accepted(draft_and_judge(verify_block)))

# %% [markdown]
# Both are exact, and block verification accepts a tenth more draft tokens. Does every draft gain?

# %% tags=["spoiler"]
for draft in ([0, 0], [0, 1], [1, 0], [1, 1]):
    means = [
        accepted(exact.exact_distribution(lambda random, rule=rule, draft=draft: tuple(rule(P, Q, draft, random))))
        for rule in (token_by_token, verify_block)
    ]
    print(f"draft {''.join('AB'[d] for d in draft)}: token by token {means[0]:.2f}, block {means[1]:.2f}")

# %% [markdown]
# A, B is now always kept. In exchange A, A is kept less often: over all continuations A may be kept only half of the time,
# and A, B has used up most of that. Only on average is it never worse.
#
# How much of that is left with real models? We let `micro` and its draft model generate, and judge each draft many times by either
# rule.

# %%
target = ms.load("micro", device="cpu", dtype=torch.float64)
draft_model = ms.load("micro-draft", device="cpu", dtype=torch.float64)


@torch.inference_mode()
def probs_of(model, tokens, last=1):
    return model.transformer(torch.tensor([tokens])).logits[0, -last:].softmax(-1)  # [last, V], without a cache


def cycles(prompt, random, k=4, count=14):
    """(p, q, drafted) of consecutive cycles at temperature 1."""
    tokens, found = target.encode(prompt), []
    for _ in range(count):
        drafted, q = [], []
        for _ in range(k):
            q.append(probs_of(draft_model, tokens + drafted)[0])
            drafted.append(pick(q[-1], random()))
        found.append((probs_of(target, tokens + drafted, k + 1), torch.stack(q), drafted))
        tokens = tokens + verify_block(*found[-1], random)
    return found


prompts = (
    "One day, a girl named Lily",
    "Once upon a time there was a dog",
    "Tom and his mom went to",
    "The little bird was",
)
random, lengths = Random(0).random, {}
same_drafts = [cycle for prompt in prompts for cycle in cycles(prompt, random)]
print(f"{len(same_drafts)} drafts")
for name, rule in (("token by token", token_by_token), ("block", verify_block)):
    random = Random(1).random  # the same numbers for both rules
    runs = [len(rule(*cycle, random)) for cycle in same_drafts for _ in range(40)]
    lengths[name] = sum(runs) / len(runs)
    print(f"{name:14} {lengths[name]:.2f} tokens per pass")
print(f"block over token by token: {lengths['block'] / lengths['token by token']:.2f}")

# %% [markdown]
# A gain, for a few lines of code and no further pass. How large it is, 56 drafts cannot tell: six seeds gave 3 to 12 %. On
# half of Spec-Bench at temperature 1, SmolLM2 with its draft model gains a factor of 1.040 ± 0.001 in expected tokens per pass
# ([recorded](../docs/results/rules_arm.json)). The paper
# reports 5 to 8 % in wall-clock time. In minispec this is `rule="block"`. It needs *sampled* chains whose $q$ was stored.
# Where nothing was sampled, no ratio exceeds 1, and the two rules are the same.
#
# Why is the last token sampled from $[w\,p - q]_+$? It has to fill up what longer prefixes leave open, and no deficit is carried
# to the next cycle ([`block`](../minispec/verify.py) has the proof).
#
# ## A draft model with a different vocabulary
#
# Verification compares $p(d)$ and $q(d)$ for the *same* token. So must both models share a tokenizer? No (Timor et al., 2025,
# arXiv:2502.05202). Let the draft model sample only tokens whose text the target has as well, and renormalise *before* it
# samples. Then $q$ is a distribution over the target's vocabulary, and the token was really sampled from it. Lesson 06 asks
# for nothing more. All other tokens of the target are still emitted, as corrections and bonuses.
#
# What it costs is acceptance, which can never exceed the probability that $p$ gives to the shared tokens. But what a draft
# model was trained on can matter more. `micro`, trained on children's stories, shares 1,883 tokens with SmolLM2. On eight
# stories 49 % of its tested draft tokens were accepted, against 31 % for SmolLM2's *own* draft model; on seven questions and
# tasks it was 15 against 51 % ([recorded](../docs/results/vocabulary_arm.json), a small sample). You write this draft token
# in [exercises 15](../exercises/15_the_frontier.ipynb); `drafters.Model(draft, translate=True)` runs it.
#
# <details><summary>Go deeper: the draft model's context</summary>
#
# The draft model also has to *process* the target's output: as text, tokenized again. A new piece can change the split of
# what comes before it, so [`Shared`](../minispec/drafters/translate.py) tokenizes in every cycle and keeps the draft model's
# cache as far as the tokens are still the same. Two traps: the same text has different names (*do* after a space is `Ġdo` in
# one tokenizer and `▁do` in another), and half of a UTF-8 character has no text to tokenize.
# </details>
#
# ## An answer that a program can read
#
# Temperature and top-p look at one position. Other rules look at everything before it:
#
# | option | the logit of token $x$ |
# |---|---|
# | `frequency_penalty` | falls each time $x$ appears in the output |
# | `repetition_penalty` | falls, once, if $x$ is in the prompt or in the output (divided by the penalty if positive, multiplied if negative) |
# | `choices`, `regex`, `json_schema`: a **constraint** (structured output) | is $-\infty$ where no allowed output begins with the output so far and $x$ |
#
# Plain decoding meets one prefix after the other. A verify pass meets $k + 1$ at once: position $i$ comes after the output
# *and* the first $i$ draft tokens. So each position needs its own counts, and its own mask.
#
# A constraint is compiled to an automaton over tokens. In a state, a token leads to another state, or it is forbidden. This
# one accepts *abc*, *ac*, *ba*, *bbd* and *c*, each followed by the end:

# %%
words = ["abc.", "ac.", "ba.", "bbd.", "c."]  # the token "." is the end
step = {(word[:i], "abcd.".index(word[i])): word[: i + 1] for word in words for i in range(len(word))}
print({f"{state!r} + {'abcd.'[x]}": after for (state, x), after in step.items() if state in ("", "b")})

# %% [markdown]
# ### Yours: a constraint along a draft
#
# `step[state, token]` is the next state; a pair that is missing is forbidden. Return what is allowed at each of the $k + 1$
# positions, as sorted lists of tokens. And return the state after the cycle, in which the first `accepted` draft tokens were
# accepted and `token` was emitted after them (None if `token` is forbidden there). These two do not affect the masks.
#
# The drafter may not know of the constraint. After a forbidden draft token nothing is allowed: it will be rejected, so these
# positions are never used.


# %%
@yours("15.constraint")
def constraint(
    step: dict[tuple[str, int], str], state: str, drafted: list[int], accepted: int, token: int
) -> tuple[list[list[int]], str | None]:
    """The tokens that a constraint allows at every position of a draft, and its state after the cycle."""
    ### BEGIN SOLUTION: which state belongs to each position? from which of them does the cycle go on?
    along = [state]
    for d in drafted:
        along.append(step.get((along[-1], d)))  # None has no steps, so it stays None
    allowed = [sorted(x for before, x in step if before == here) for here in along]
    return allowed, step.get((along[accepted], token))
    ### END SOLUTION


# %%
allowed, after = constraint(step, "", drafted=[1, 1, 0], accepted=2, token=3)  # b b a was drafted, b b d is emitted
for prefix, tokens in zip(("", "b", "bb", "bba"), allowed, strict=True):
    print(f"after {prefix!r:6} allowed: {' '.join('abcd.'[x] for x in tokens) or 'nothing'}")
print("state after the cycle:", after)

# %% [markdown]
# The state after a cycle is a function of the tokens that were *emitted*. An engine whose automaton has followed the draft
# has to roll it back, like a cache.
#
# A reasoning model is constrained only after a closing tag such as `</think>`. The tag may be inside an accepted draft, and
# an engine that asks once per pass whether the reasoning is over gets the rest of that draft wrong: in vLLM, 75 to 100 % of
# one setup's JSON outputs were corrupt until [#44993](https://github.com/vllm-project/vllm/pull/44993). But where a constraint
# begins is a function of the prefix as well. Here the first full stop is the tag:

# %%
asked = dict(choices=[" The end.", " They were happy."], constrain_after=".", max_new_tokens=60)
out = ms.speculate(target, "Once upon a time", drafters.Model(draft_model), 8, **asked)
made = out.trace.cycles[-2]
print(
    " ".join(repr(target.spell(x)) for x in made.drafted),
    f"  {len(made.path)} accepted, then {target.spell(made.token)!r}",
)
print(f"…{out.text[-30:]}")

# %% [markdown]
# The full stop and two tokens of the answer were accepted in one draft.
#
# ## Which shortcuts are exact?
#
# Now put the masks into a cycle. Two toy models ignore the context, and your function gives the masks. Three shortcuts
# suggest themselves:
#
# - **draft not masked:** only the target follows the constraint;
# - **forbidden tokens cut:** the draft is not masked, and it ends before the first sampled token that is forbidden, which
#   would be rejected anyway;
# - **q from before the mask:** the draft is masked, and the unmasked distribution is reported as $q$.

# %%
p_raw = torch.tensor([0.34, 0.26, 0.2, 0.12, 0.08], dtype=torch.float64)
q_raw = torch.tensor([0.22, 0.34, 0.12, 0.24, 0.08], dtype=torch.float64)


def masked(probs, tokens):  # where nothing is allowed, nothing will be used
    keep = torch.tensor([float(x in tokens) for x in range(5)], dtype=torch.float64)
    return probs * keep / (probs * keep).sum() if tokens else probs


def cycle(state, random, mask_draft=True, cut=False, honest=True):
    """One cycle with a draft of two tokens, and a switch for each shortcut."""
    drafted, q = [], []
    for _ in range(2):
        [*_, tokens], _ = constraint(step, state, drafted, 0, 0)  # only the masks: the two zeros do not matter
        sampled_from = masked(q_raw, tokens) if mask_draft else q_raw
        drafted.append(pick(sampled_from, random()))
        q.append(sampled_from if honest else q_raw)
    allowed, _ = constraint(step, state, drafted, 0, 0)
    if cut:
        drafted = drafted[: next((i for i, d in enumerate(drafted) if d not in allowed[i]), 2)]
    p = torch.stack([masked(p_raw, tokens) for tokens in allowed[: len(drafted) + 1]])
    return tuple(token_by_token(p, torch.stack(q)[: len(drafted)], drafted, random))


def outputs_of(**shortcut):
    """The exact distribution of what a cycle emits, for every output so far."""
    return lambda output: exact.exact_distribution(
        lambda random: cycle("".join("abcd."[x] for x in output), random, **shortcut)
    )


# %% tags=["nbval-ignore-output"]
guess_exact = viz.predict("How many of the three shortcuts keep the output exact?")
guess_exact

# %% tags=["spoiler"]
shortcuts = {
    "no shortcut": {},
    "draft not masked": dict(mask_draft=False),
    "forbidden tokens cut": dict(mask_draft=False, cut=True),
    "q from before the mask": dict(honest=False),
}


def plain(output):
    [tokens], _ = constraint(step, "".join("abcd."[x] for x in output), [], 0, 0)
    return {(x,): float(px) for x, px in enumerate(masked(p_raw, tokens)) if px > 0}


right, biases = exact.joint_distribution(plain, 2), {}
for name, shortcut in shortcuts.items():
    emits = outputs_of(**shortcut)
    biases[name] = exact.total_variation(exact.joint_distribution(emits, 2), right)
    verdict = "exact " if biases[name] < 1e-12 else f"off by {biases[name]:.3f}"
    print(f"{name:23} {verdict:12} {1 + accepted(emits(())):.2f} tokens per cycle")

# %% tags=["spoiler", "nbval-ignore-output"]
guess_exact.reveal(sum(bias < 1e-12 for name, bias in biases.items() if name != "no shortcut"))

# %% [markdown]
# - **Masking the draft is for speed, not for exactness.** A draft model that does not know of the constraint proposes what is
#   forbidden, and each such token is rejected.
# - **Cutting is biased, and hard to see.** The forbidden token would have been rejected, and its replacement would have come
#   from the *residual*. Without it the next token comes from $p$. Tokens that were not sampled (n-grams, argmax drafts) may be
#   cut, because chance did not choose them.
# - **A wrong q is wrong for every token.** The draft model gives 0.68 to the allowed first tokens, so the reported $q$ is 0.68
#   of the true one, and too many draft tokens pass.
#
# The rule for penalties is the same: process each position by its own prefix, or the output is biased
# ([`process`](../minispec/processors/drafts.py)). And "exact" means as plain decoding *with the same masks*; masking token by
# token does not sample from the model's distribution conditioned on a valid output (Park et al., 2024, arXiv:2405.21047).
#
# <details><summary>Go deeper: real grammars, and what engines do</summary>
#
# A regular expression or a JSON schema is about text, and a token is several characters, so one word has many spellings, which
# all have to be allowed. Schemas can be recursive, so a finite automaton is not enough: XGrammar (Dong et al., 2024,
# arXiv:2411.15100) compiles a pushdown automaton, and llguidance, which minispec uses
# ([`Guided`](../minispec/processors/constraint.py)), runs an Earley parser. Masks need the draft
# tokens on the CPU in every cycle.
#
# Penalties in a verify pass were ignored by vLLM until late 2025 ([#18902](https://github.com/vllm-project/vllm/issues/18902),
# fixed in [#19482](https://github.com/vllm-project/vllm/pull/19482)). SGLang counts one token per cycle
# ([#33643](https://github.com/sgl-project/sglang/pull/33643) proposes a fix). vLLM's scheduler cuts what a grammar forbids
# ([#14702](https://github.com/vllm-project/vllm/pull/14702)), which is harmless as long as drafts are argmax.
# </details>
#
# <details><summary>Go deeper: whose log-probabilities does a client get?</summary>
#
# *Raw* ones (vLLM's name, and its default) are the model's own, before any processing. *Processed* ones belong to the
# distribution that the token was sampled from; reinforcement learning divides by these. Both are the *target's*: an accepted
# token came from $q$ and a correction from the residual, but over all that can happen in a cycle each token is emitted with
# probability $p(x)$. So a client sees the same numbers as with plain decoding.
# </details>
#
# ## On the dashboard
#
# The chatbot adopts block verification. One sampled answer, on your device:

# %% tags=["nbval-ignore-output"]
fast, fast_draft = course_pair(ms.device())
for _ in range(2):  # the first run warms up
    out = ms.speculate(
        fast, "One day, a girl named Lily", drafters.Model(fast_draft), 4, 60, temperature=0.8, seed=0, rule="block"
    )
print(f"{out.trace.tokens_per_cycle:.2f} tokens per forward pass")
viz.dashboard("15", ms_per_token=1e3 * out.seconds / len(out.tokens))

# %% [markdown]
# ## In production
#
# | here | vLLM | elsewhere |
# |---|---|---|
# | block verification | `"rejection_sample_method": "block"` | SGLang: [proposed](https://github.com/sgl-project/sglang/pull/36516) |
# | a different vocabulary | `use_heterogeneous_vocab` ([#38174](https://github.com/vllm-project/vllm/pull/38174), 2026) | transformers: `assistant_tokenizer` |
# | a constraint | `structured_outputs` | SGLang: `json_schema`, `regex` |
# | a constraint after the reasoning | `--reasoning-parser` | SGLang: the same |
#
# Both servers draft greedily by default, and then block verification changes nothing. If you switch on sampled drafts, check
# what your version does with a draft token that the grammar forbids.
#
# Before you look at the speed-up of such a feature, ask three questions. Is the reported $q$ what was sampled from? Does any
# decision about a token (keep, cut, verify) depend on the token itself? What happens to the drafter's state after a rejection?

# %% [markdown]
# ## Check yourself
#
# <details><summary>When do block verification and the rule of lesson 06 accept the same?</summary>
#
# With one draft token; where every token before the last has a ratio $p/q$ of at least 1, so that there is no deficit to
# make up; and where nothing was sampled.
# </details>
#
# <details><summary>A colleague maps draft ids to target ids by text and reports the draft model's softmax, without
# renormalising it over the shared tokens. What goes wrong?</summary>
#
# The reported $q$ is too small on every shared token, so too many draft tokens are accepted, and the output leans to what the
# draft model prefers. It is the bug *q from before the mask*.
# </details>
#
# <details><summary>The output must match a pattern of four digits with a colon in the middle. The output is "1" and the
# draft is "2:", "30", "am", of which the first two are accepted. What happens to "am", and in which state is the automaton afterwards?</summary>
#
# After "12:30" only the end is allowed, so "am" is rejected, and the correction is the end. The state is the one of
# "12:30" and the end; a matcher that has followed "am" is rolled back.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Sun et al., 2025: *Block verification accelerates speculative decoding*
#   ([arXiv:2403.10444](https://arxiv.org/abs/2403.10444)): the rule, and a proof that for one chain and one cycle no other
#   accepts more from the same information.
# - Timor et al., 2025: *Accelerating LLM inference with lossless speculative decoding algorithms for heterogeneous vocabularies*
#   ([arXiv:2502.05202](https://arxiv.org/abs/2502.05202)): three ways to use a draft model with a different vocabulary; ours is the
#   token-level intersection.
# - Dong et al., 2024: *XGrammar: flexible and efficient structured generation engine for large language models*
#   ([arXiv:2411.15100](https://arxiv.org/abs/2411.15100)): masks for context-free grammars at every step.
#
# All papers: [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - A token from a different vocabulary, a constraint after the reasoning: [exercises 15](../exercises/15_the_frontier.ipynb). A
#   penalty along a draft, to be repaired: [exercises 14](../exercises/14_is_it_really_exact.ipynb).
# - Interview questions (`minispec drill`): `block-verification`, `other-vocabulary`, `penalties-under-speculation`,
#   `constraints-on-drafts`, `constraint-after-reasoning`, `logprobs-under-speculation`.
# - [15b The frontier](15b_the_frontier.ipynb): one budget for many users, experts, recurrent states, and the newest drafters.
