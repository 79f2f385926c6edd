# %% [markdown]
# # 05 Draft and verify
#
# *Time:* 45 minutes · *Before this:* [02 KV cache](02_kv_cache.ipynb) · *Practice:* [exercises 05](../exercises/05_draft_and_verify.ipynb)
#
# Decoding needs one forward pass of the model for every token, and lesson 01 showed that such a pass spends most of its
# time reading weights. **Speculative decoding** (Leviathan et al., 2023, arXiv:2211.17192; independently Chen et al.,
# 2023, arXiv:2302.01318; the name is from Xia et al., 2023, arXiv:2203.16487) makes one pass serve several tokens: a
# cheap **draft model** proposes the next $k$ tokens, and the large **target** model checks all of them in a single
# forward pass. The idea fits in a sentence, but the bookkeeping of positions and caches is where implementations go
# wrong, so most of this lesson is about bookkeeping.
#
# You will be able to
#
# - say what the logits at each position of a verify pass mean;
# - write the greedy loop: draft, verify, rewind;
# - explain what the bonus token costs, and what forgetting it costs;
# - recognise a loop whose cache is wrong by one token, although its output is fluent.

# %%
import torch

import minispec as ms
from minispec import drafters, theory
from minispec_course import viz
from minispec_course.labs import cycles as stepper

# %% [markdown]
# ## Two models
#
# We need a target and a draft model. The two share one vocabulary here, so that a token id means the same to both. Two
# vocabularies of equal size would not be enough: the loop would run without an error and accept almost nothing. So the
# cell compares them entry by entry. A shared vocabulary is the usual case and the simple one; there are methods for
# different vocabularies as well (Timor et al., 2025, arXiv:2502.05202). Everything is computed in float64 on
# the CPU, also where there is a GPU, because there rounding errors are far smaller than any gap between two tokens that we
# will meet.

# %%
target = ms.load("micro", device="cpu", dtype=torch.float64)
draft = ms.load("micro-draft", device="cpu", dtype=torch.float64)
for name, model in (("target", target), ("draft", draft)):
    print(f"{name:6s} {model.config.num_layers} layers, {model.num_parameters / 1e6:.1f} million parameters")
print("same vocabulary:", target.tokenizer.get_vocab() == draft.tokenizer.get_vocab())  # each token and its id
print("the target is larger by a factor of", round(target.num_parameters / draft.num_parameters, 1))

# %% [markdown]
# The goal is to generate what the target generates on its own, token for token, in fewer forward passes. So we first need
# that output, from plain autoregressive decoding ("plain" from here on). Decoding is greedy in this lesson: the most likely
# token is always taken.

# %%
PROMPT = "One day, a girl named Lily"
prompt = target.encode(PROMPT)
plain = ms.generate(target, prompt, max_new_tokens=60)
print("tokens, and so forward passes:", len(plain.tokens), "(the first of them is the prefill)")

# %% [markdown]
# ## Draft
#
# The draft model proposes $k = 4$ tokens, greedily and one after the other. (Leviathan's paper writes γ for our $k$.) To keep
# this first version simple, it has no cache and runs on the whole sequence for each of them. That is slow, but hard to get
# wrong.


# %%
def propose(sequence: list[int], k: int, model=draft) -> list[int]:
    """The next k tokens, if it were up to the draft model."""
    drafted: list[int] = []
    for _ in range(k):
        logits = model.transformer(torch.tensor([sequence + drafted])).logits[0, -1]  # [V]
        drafted.append(int(logits.argmax()))
    return drafted


drafted = propose(prompt, k=4)
print([target.decode([token]) for token in drafted])

# %% [markdown]
# ## Verify
#
# How can one pass check four tokens? A causal transformer gives logits at every position of its input, and each of them
# depends only on the tokens up to that position. So if the draft tokens are part of the input, one pass tells for each of
# them what the target would have chosen instead, provided that all draft tokens before it are right.
#
# One convention makes the bookkeeping easy. After a verify pass the sequence ends with a token that was just emitted and
# that no pass has processed yet, so **the cache holds every token but the last**. To make the first cycle look like all
# later ones, we hold back the last token of the prompt: the prefill processes the prompt without it. The verify pass then
# runs on the last token and the four draft tokens.

# %%
cache = target.transformer.new_cache(capacity=256)
target.transformer(torch.tensor([prompt[:-1]]), cache)
before = int(cache.lengths[0])
logits = target.transformer(torch.tensor([[prompt[-1], *drafted]]), cache).logits[0]  # [k + 1, V]
print("tokens in the prompt:", len(prompt))
print("tokens in the cache, before and after the pass:", before, int(cache.lengths[0]))
print("positions that have logits:", len(logits))

# %% [markdown]
# Five tokens went in, and logits for five positions came out. The logits at an input token say what the target would choose
# *after* that token, at the position of the next one. So **a draft token is judged by the logits one position before it**.
# In the picture, follow a slanted arrow from a choice up to the draft token that it judges: it always goes one column to
# the right.

# %%
choices = logits.argmax(-1).tolist()
last, *proposed = (target.decode([token]) for token in [prompt[-1], *drafted])
viz.judge_arrows(last, proposed, [target.decode([token]) for token in choices])

# %% [markdown]
# The same as a table:

# %%
print(f"{'input token':16s}{'the target would choose':24s}{'the draft model proposed'}")
for token, choice, proposed in zip([prompt[-1], *drafted], choices, [*drafted, None], strict=True):
    shown = "(nothing)" if proposed is None else repr(target.decode([proposed]))
    print(f"{target.decode([token])!r:16s}{target.decode([choice])!r:24s}{shown}")

# %% [markdown]
# Go down the table until the last two columns differ. Every draft token above that line is **accepted**. In the line where
# they differ, the target's own choice is emitted instead; this token is called the **correction** (vLLM says *recovered
# token*). All lines below are useless, because they were computed after a draft token that is not part of the output.
#
# $$a = \max\{\,i : 0 \le i \le k,\; d_1 = y_1, \dots, d_i = y_i\,\}, \qquad \text{emit } d_1 \dots d_a,\; y_{a+1}$$
#
# Here $d_i$ is the $i$-th draft token, and $y_i$ is the target's choice after $d_1 \dots d_{i-1}$, at the position of
# $d_i$. (Python counts from 0, so $d_i$ is `drafted[i - 1]`, $y_i$ is `choices[i - 1]`, and the last emitted token,
# $y_{a+1}$, is `choices[a]`.)
#
# If already the first two differ, $a = 0$. If we write 1 for every match and 0 for every mismatch, the cumulative product
# is 1 up to the first mismatch and 0 from there on, so its sum is $a$.


# %%
def matching(drafted: list[int], choices: list[int]) -> int:
    """How many draft tokens are right, up to the first that is not."""
    same = torch.tensor(drafted) == torch.tensor(choices[: len(drafted)])
    return int(same.long().cumprod(0).sum())


a = matching(drafted, choices)
print(f"{a} accepted, then one of the target's own: {a + 1} tokens from one forward pass")
print("the same as plain decoding:", [*drafted[:a], choices[a]] == plain.tokens[: a + 1])

# %% [markdown]
# In minispec this step is [`chain`](../minispec/verify.py), which also covers sampling. At temperature 0 its rule reduces to
# the comparison above, as lesson 06 shows.

# %% [markdown]
# ## Rewind
#
# The verify pass has put keys and values of all five tokens into the cache, but some of these tokens were rejected. Later
# tokens must not attend to them, so the cache has to be cut back.

# %%
sequence = [*prompt, *drafted[:a], choices[a]]
print("tokens in the sequence:", len(sequence))
print("tokens in the cache:", int(cache.lengths[0]))
print("tokens that the cache should hold:", len(sequence) - 1)

# %% [markdown]
# We call this step **rewind** (transformers says *crop*, other systems *roll back*). It is cheap: a cache is a piece of
# memory and a length, and [`rewind`](../minispec/cache.py) only changes the length. The keys and values of the rejected
# tokens stay in memory until the next pass overwrites them.

# %%
keys_before = cache.keys.clone()
cache.rewind(len(sequence) - 1)
print("tokens in the cache:", int(cache.lengths[0]))
print("entries of the cache that changed:", int((cache.keys != keys_before).sum()))

# %% [markdown]
# ## The loop
#
# One round of draft, verify and rewind is a **cycle** (papers say *iteration* or *decoding step*). The loop repeats cycles
# until there are enough tokens. Its arguments `bonus` and `surplus` are switches for two mistakes that we are going to make
# on purpose.


# %%
@torch.inference_mode()
def decode(k: int, count: int = 60, *, model=draft, bonus: bool = True, surplus: int = 0) -> tuple[list[int], int]:
    """`count` new tokens after the prompt, and how many verify passes they took."""
    sequence, passes = list(prompt), 0
    cache = target.transformer.new_cache(capacity=2048)
    target.transformer(torch.tensor([prompt[:-1]]), cache)  # the prefill, not counted in `passes`
    while len(sequence) < len(prompt) + count:
        drafted = propose(sequence, k, model)
        choices = target.transformer(torch.tensor([[sequence[-1], *drafted]]), cache).logits[0].argmax(-1).tolist()
        passes += 1
        a = matching(drafted, choices)
        sequence += drafted[:a]
        if a < k or bonus:
            sequence.append(choices[a])
        right_length = len(sequence) - 1  # every token but the last
        cache.rewind(min(right_length + surplus, int(cache.lengths[0])))
    return sequence[len(prompt) : len(prompt) + count], passes


# %% [markdown]
# Plain decoding needs sixty forward passes for sixty tokens, and the first of them is the prefill. Our loop needs a prefill
# too, and then one verify pass per cycle, with four draft tokens each. How many verify passes are there?

# %% tags=["nbval-ignore-output"]
passes_guess = viz.predict("60 tokens, 4 draft tokens per cycle: how many verify passes?", "passes")
passes_guess

# %% tags=["spoiler"]
tokens, passes = decode(k=4)
print(f"{passes} verify passes and one prefill, against {len(plain.tokens)} passes of plain decoding")
print("tokens per verify pass:", round(len(tokens) / passes, 2))
print("the same as plain decoding:", tokens == plain.tokens)

# %% tags=["spoiler", "nbval-ignore-output"]
passes_guess.reveal(passes)

# %% [markdown]
# Not one token differs, and in exact arithmetic this does not depend on the prompt or on $k$: whatever the draft model
# proposes, only tokens that the target would have chosen are emitted. (What bfloat16 changes is said at the end.) A bad
# draft costs time, never correctness. A longer draft saves passes, but each additional draft token saves less than the one
# before it, and all of them have to be drafted:

# %% tags=["spoiler"]
for k in (1, 2, 4, 8):
    tokens, passes = decode(k)
    print(f"k = {k}: {passes} verify passes, {k * passes} draft tokens, same output: {tokens == plain.tokens}")

# %% [markdown]
# ## The bonus token
#
# Look at the table of the verify pass again. Its last line had no draft token beside it. If all draft tokens are
# accepted, this line holds the target's choice for the position after them. This choice is emitted too, and is called the
# **bonus**.
#
# What does it cost? To judge four draft tokens, the logits at the last token and at the first three draft tokens are
# enough. The fourth draft token is part of the input for two reasons: if it is accepted, its keys and values have to be in
# the cache, and its logits give the bonus. So the bonus costs one more position in the same forward pass. While
# reading the weights dominates the time of a pass, this is next to nothing. In a full batch it is not, because there each
# additional position costs time (lesson 11).
#
# To see what it is worth, let the target draft for itself. Then every draft token is right, and each cycle drafts four.

# %% tags=["nbval-ignore-output"]
bonus_guess = viz.predict("60 tokens, 4 draft tokens per cycle, all of them right: how many verify passes?", "passes")
bonus_guess

# %% tags=["spoiler"]
_, with_bonus = decode(k=4, model=target)
_, without = decode(k=4, model=target, bonus=False)
print("with the bonus:", with_bonus)
print("without it:", without)

# %% tags=["spoiler", "nbval-ignore-output"]
bonus_guess.reveal(with_bonus)

# %% [markdown]
# A cycle in which $a$ draft tokens are accepted emits $a + 1$ tokens: the additional one is the correction or the bonus. So
# even a cycle in which nothing is accepted emits one token, and the loop never makes less progress per pass than plain
# decoding. If each draft token is accepted with probability α, independently of the others, the mean number of tokens $N$ per
# cycle is
#
# $$E[N] = 1 + \alpha + \dots + \alpha^k = \frac{1 - \alpha^{k+1}}{1 - \alpha}$$
#
# (Lesson 07 derives this.) A loop that forgets the bonus loses the last term, $\alpha^k$. Its output is still right, so only
# the count of tokens per pass reveals the bug.

# %%
for alpha in (0.5, 0.8, 0.9):
    full = theory.expected_tokens(alpha, k=4)
    print(f"α = {alpha}: {full:.2f} tokens per pass, without the bonus {full - alpha**4:.2f}")

# %% [markdown]
# ## A cache that is wrong by one token
#
# The rewind is the other half of the bookkeeping. Suppose that the cache is always left one token too long. After the
# first rejection it then keeps that rejected draft token for good, and everything after it sits one position too far to
# the right. Nothing crashes, and no shape is wrong.
#
# The tokens of the first cycle are still right, because its pass ran on a cache without a fault: one accepted token and the
# correction, as we saw above. How many tokens are right in all, before the first wrong one?

# %% tags=["nbval-ignore-output"]
diverge_guess = viz.predict("The first 2 tokens are right. How many in all, before the first wrong one?", "tokens")
diverge_guess

# %% tags=["spoiler"]
off_by_one, _ = decode(k=4, surplus=1)
right = matching(off_by_one, plain.tokens)
print("tokens that are right at first:", right)
print("the same as plain decoding:", off_by_one == plain.tokens)

# %% tags=["spoiler", "nbval-ignore-output"]
diverge_guess.reveal(right)
print("plain:     ", PROMPT + target.decode(plain.tokens))
print("off by one:", PROMPT + target.decode(off_by_one))

# %% [markdown]
# The second story is fluent, and repetitions like those at its end are common for small models anyway. A reader who
# does not know the first one has no reason to doubt it, although the target on its own would never have told it. So
# **fluent output is no evidence of a correct loop**. Compare with plain decoding, in float64, token for token; or
# assert after every cycle that the cache holds exactly one token less than the sequence.
#
# With larger errors the damage becomes visible, at least with a small model. Without any rewind at all:

# %% tags=["spoiler"]
no_rewind, _ = decode(k=4, surplus=1000)
print("no rewind:", PROMPT + target.decode(no_rewind))

# %% [markdown]
# ## The draft model has a cache too
#
# Our draft model ran on the whole sequence for every draft token. A real one keeps a cache, processes only the tokens
# that are not in it yet, and is rewound like the target: see [`DraftModel`](../minispec/drafters/model.py). The
# complete loop, with stop tokens, batches and a record of what happened, is [`speculate`](../minispec/speculate.py).

# %% tags=["spoiler"]
out = ms.speculate(target, prompt, drafters.Model(draft), k=4, max_new_tokens=60)
trace = out.trace
print("the same as plain decoding:", out.tokens == plain.tokens)
print("verify passes:", trace.target_passes)
print("draft tokens accepted in each cycle:", *[cycle.accepted for cycle in trace.cycles])
print("accepted share of the draft tokens that were tested:", round(trace.acceptance_rate, 3))

# %% [markdown]
# A [`Cycle`](../minispec/trace.py) records which tokens were drafted, which probabilities both models gave them, and what was
# emitted.

# %%
first = trace.cycles[0]
print("drafted:", [target.decode([token]) for token in first.drafted])
print("emitted:", [target.decode([token]) for token in first.tokens])
print("how each came about:", first.kinds)

# %% [markdown]
# ## Step through it
#
# The widget shows every cycle in three stages: **draft**, **verify**, **rewind**. Press play, or focus the slider and use the
# arrow keys. Signs and borders say the same as the colours: ✓ accepted, → corrected, + bonus, ✗ rejected.
#
# Below the tokens of the cycle are the two caches: filled slots hold keys and values, dotted ones are empty or rewound.

# %% tags=["nbval-ignore-output"]
viz.cycle_stepper(target, prompt, out, caches=True)

# %% [markdown]
# Compare the lengths of the two caches in the rewind stage. In which cycles do they differ, and by how much? Here is what
# occurs, over all cycles:

# %% tags=["spoiler"]
rewinds = [step for step in stepper.steps(trace) if step.stage == "rewind"]  # one per cycle
ended = [
    (cycle.kinds[-1], step.target_cache - step.draft_cache) for cycle, step in zip(trace.cycles, rewinds, strict=True)
]
for last, shorter in sorted(set(ended)):
    print(f"last token {last}: the draft model's cache is shorter by {shorter}")

# %% [markdown]
# If all draft tokens were accepted, the draft model has *proposed* the last of them but has never *processed* it, because no
# further proposal was needed. In the next cycle it therefore has two tokens to process, that one and the bonus, and can do so
# in one pass. A loop that feeds it the bonus alone leaves a hole in its cache. The output stays right, because the target
# decides. But the draft model is missing a token of its context, so it proposes worse tokens, and no comparison of outputs
# will show that. Only the acceptance rate does.

# %% [markdown]
# ## In production
#
# | here | vLLM | elsewhere |
# |---|---|---|
# | `k` | `num_speculative_tokens` in `speculative_config` | SGLang: `--speculative-num-steps`; `--speculative-num-draft-tokens` is one more in a chain |
# | draft model | `method` and `model` in `speculative_config`; the code says *proposer* | transformers: `assistant_model`, *assisted generation* |
# | verify | one step of the scheduler, then `RejectionSampler` | |
# | correction | *recovered token* | |
# | bonus | *bonus token* | |
# | rewind | `num_computed_tokens` goes back by the number rejected; their slots are overwritten | transformers: `DynamicCache.crop` |
# | tokens per verify pass | *mean acceptance length*, in the metrics: the correction or bonus is counted | *accept length* in SGLang |
#
# A server runs many sequences at once, and each of them accepts a different number of draft tokens. So its cache keeps
# a length for every sequence, and rewinding subtracts a vector. Lesson 11 puts this into a scheduler.
#
# In bfloat16, one pass over five tokens and five passes over one token usually round differently, because other kernels
# run or they add in another order. Where two tokens are nearly tied, the output of a greedy server can therefore
# diverge from plain decoding. That is rounding and not a bug in the loop. [Lesson 14](14_is_it_really_exact.ipynb)
# shows how to tell the two apart.

# %% [markdown]
# ## Check yourself
#
# <details><summary>Five tokens go into a verify pass. Which logits judge the third draft token, and which ones give the
# bonus?</summary>
#
# The input is the last token and four draft tokens. The logits at the third of these tokens, which is the second
# draft token, judge the third draft token. The logits at the fifth, which is the fourth draft token, give the bonus.
# </details>
#
# <details><summary>The sequence has 100 tokens. A cycle drafts four tokens and accepts two. How long are the sequence and both
# caches afterwards?</summary>
#
# The sequence has 103 tokens: two accepted ones and a correction were added. Both caches hold 102, everything but the last
# token. The draft model had processed the last token and three of its own draft tokens; the third was rejected, so it is
# removed.
# </details>
#
# <details><summary>The greedy output equals plain decoding exactly. Which of these bugs can still be there: no rewind of the
# target, no rewind of the draft model, no bonus?</summary>
#
# The last two can, in any test. What the draft model proposes cannot change a greedy output, and a missing bonus only costs
# passes. Both bugs lower the number of tokens per forward pass, so measure that too.
#
# The first can hide only in a test that is too easy: no draft token was rejected, or the output ended before the first
# wrong token. So compare long outputs, and make sure that draft tokens were rejected in them.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Leviathan, Kalman, Matias, 2023: *Fast inference from transformers via speculative decoding*
#   ([arXiv:2211.17192](https://arxiv.org/abs/2211.17192)): section 2 is the loop of this lesson, for sampling targets.
# - Chen et al., 2023: *Accelerating large language model decoding with speculative sampling*
#   ([arXiv:2302.01318](https://arxiv.org/abs/2302.01318)): the same loop, found independently and tried on a 70B target.
# - Stern, Shazeer, Uszkoreit, 2018: *Blockwise parallel decoding for deep autoregressive models*
#   ([arXiv:1811.03115](https://arxiv.org/abs/1811.03115)): the greedy loop, with additional heads of the target in
#   place of a draft model.
# - Timor et al., 2025: *Accelerating LLM inference with lossless speculative decoding algorithms for heterogeneous
#   vocabularies* ([arXiv:2502.05202](https://arxiv.org/abs/2502.05202)): what to do if the draft model has another
#   vocabulary.
# - Xia et al., 2024: *Unlocking efficiency in large language model inference: a comprehensive survey of speculative
#   decoding* ([arXiv:2401.07851](https://arxiv.org/abs/2401.07851)): a map of everything that followed.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - Write it yourself, the draft model's cache included: [exercises 05](../exercises/05_draft_and_verify.ipynb).
# - Interview questions (`minispec drill`): `walk-me-through`, `verify-in-one-pass`, `what-happens-on-rejection`,
#   `bonus-token`, `kv-rewind`, `greedy-verification`, `why-not-in-parallel`, `review-the-pseudocode`,
#   `tokenizer-mismatch`.
# - [06 Rejection sampling](06_rejection_sampling.ipynb): which draft tokens may be kept when both models sample?
