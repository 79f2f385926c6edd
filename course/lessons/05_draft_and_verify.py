# %% [markdown]
# # 05 Draft and verify
#
# *Time:* 35 minutes · *Before this:* [02 KV cache](02_kv_cache.ipynb) · *Practice:* [exercises 05](../exercises/05_draft_and_verify.ipynb)
#
# A cheap model guesses, the target checks the whole guess in one pass. This is the heart of the course. The idea fits in
# a sentence; the bookkeeping is where people go wrong, so most of this lesson is bookkeeping.
#
# You will be able to
#
# - say what every row of a verify pass means;
# - write the greedy loop: draft, verify, rewind;
# - explain why the bonus costs nothing, and what forgetting it costs;
# - recognise a loop that forgot to rewind, though its text looks fine.

# %%
import torch

import minispec as ms
from minispec import drafters, theory
from minispec.course import viz

# %% [markdown]
# ## Two models
#
# They read and write the same tokens. That is the one thing a draft must have in common with its target.
# Everything here is computed in float64, so that rounding cannot decide anything.

# %%
target = ms.load("micro", device="cpu", dtype=torch.float64)
draft = ms.load("micro-draft", device="cpu", dtype=torch.float64)
for name, model in (("target", target), ("draft", draft)):
    print(f"{name:6s} {model.config.num_layers} layers, {model.num_parameters / 1e6:.1f} million weights")
print("same vocabulary:", target.config.vocab_size == draft.config.vocab_size)
print("the target is larger by a factor of", round(target.num_parameters / draft.num_parameters, 1))

# %% [markdown]
# A prompt, and what the target writes alone. This is the text that we want, token for token.

# %%
PROMPT = "One day, a girl named Lily"
prompt = target.encode(PROMPT)
plain = ms.generate(target, prompt, max_new_tokens=60)
print("tokens, and so passes:", len(plain.tokens))

# %% [markdown]
# ## Draft
#
# The draft writes four tokens, greedily. For now it has no cache and reads the whole text again for each of them:
# slow, and impossible to get wrong.


# %%
def propose(text: list[int], k: int, model=draft) -> list[int]:
    """k tokens that the draft would write next."""
    guess: list[int] = []
    for _ in range(k):
        logits = model.transformer(torch.tensor([text + guess])).logits[0, -1]  # [V]
        guess.append(int(logits.argmax()))
    return guess


guess = propose(prompt, k=4)
print([target.decode([token]) for token in guess])

# %% [markdown]
# ## Verify
#
# The target has read the prompt except its last token. Between cycles this will always be so: **its cache holds every
# token but the last**, because the last one was just written and nobody has read it yet.
#
# Now it reads the last token and the four guesses in one pass.

# %%
cache = target.transformer.new_cache(capacity=256)
target.transformer(torch.tensor([prompt[:-1]]), cache)
before = int(cache.lengths[0])
logits = target.transformer(torch.tensor([[prompt[-1], *guess]]), cache).logits[0]  # [k + 1, V]
print("tokens in the prompt:", len(prompt))
print("tokens in the cache, before and after the pass:", before, int(cache.lengths[0]))
print("rows of logits:", len(logits))

# %% [markdown]
# Five tokens went in, five rows came out. Row $i$ is what the target would write *after* the $i$-th token of the pass.
# So each row judges the guess that comes next in the input: **the row above a guess is its judge.**

# %%
own = logits.argmax(-1).tolist()
print(f"{'the pass reads':16s}{'the target would write':24s}{'the draft guessed'}")
for read, choice, guessed in zip([prompt[-1], *guess], own, [*guess, None], strict=True):
    shown = "(nothing)" if guessed is None else repr(target.decode([guessed]))
    print(f"{target.decode([read])!r:16s}{target.decode([choice])!r:24s}{shown}")

# %% [markdown]
# Go down the table until the two columns differ. Everything above is **accepted**. In the row where they differ the
# target's own token is the **correction**. What lies below is worthless: those rows follow a token that nobody wrote.
#
# $$a = \max\{\,i : d_1 = y_1, \dots, d_i = y_i\,\}, \qquad \text{emit } d_1 \dots d_a,\; y_{a+1}$$
#
# with $d_i$ the $i$-th guess and $y_i$ the target's choice in its place. Agreement is a run of ones, so a cumulative
# product counts it.


# %%
def agreed(guess: list[int], own: list[int]) -> int:
    """How many guesses hold, up to the first that does not."""
    same = torch.tensor(guess) == torch.tensor(own[: len(guess)])
    return int(same.long().cumprod(0).sum())


a = agreed(guess, own)
print(f"{a} accepted, then one of the target's own: {a + 1} tokens from one pass")
print("as plain decoding wrote them:", [*guess[:a], own[a]] == plain.tokens[: a + 1])

# %% [markdown]
# `minispec` does the same for every kind of draft and for sampling too: [`chain`](../minispec/verify.py). At
# temperature 0 its rule comes down to the comparison above; lesson 06 has the rest.

# %% [markdown]
# ## Rewind
#
# The pass wrote keys and values for all five tokens into the cache. Some of these tokens are not part of the text.

# %%
text = [*prompt, *guess[:a], own[a]]
print("tokens in the text:", len(text))
print("tokens in the cache:", int(cache.lengths[0]))
print("of these, in the text and read:", len(text) - 1)

# %% [markdown]
# Forgetting is cheap. A cache is memory plus a length, and [`rewind`](../minispec/cache.py) changes the length.
# The numbers stay where they are; the next pass writes over them.

# %%
keys_before = cache.keys.clone()
cache.rewind(len(text) - 1)
print("tokens in the cache:", int(cache.lengths[0]))
print("numbers that changed:", int((cache.keys != keys_before).sum()))

# %% [markdown]
# ## The loop
#
# Draft, verify, write, rewind; again. `bonus` and `too_many` are there for mistakes that we shall make on purpose.


# %%
@torch.inference_mode()
def write(k: int, count: int = 60, *, model=draft, bonus: bool = True, too_many: int = 0) -> tuple[list[int], int]:
    """`count` new tokens after the prompt, and the passes of the target that they took."""
    text, passes = list(prompt), 0
    cache = target.transformer.new_cache(capacity=2048)
    target.transformer(torch.tensor([prompt[:-1]]), cache)
    while len(text) < len(prompt) + count:
        guess = propose(text, k, model)
        own = target.transformer(torch.tensor([[text[-1], *guess]]), cache).logits[0].argmax(-1).tolist()
        passes += 1
        a = agreed(guess, own)
        text += guess[:a]
        if a < k or bonus:
            text.append(own[a])
        true = len(text) - 1  # every token but the last
        cache.rewind(min(true + too_many, int(cache.lengths[0])))
    return text[len(prompt) : len(prompt) + count], passes


# %% [markdown]
# Sixty tokens cost plain decoding sixty passes. Each cycle guesses four. How many passes now?

# %% tags=["nbval-ignore-output"]
passes_guess = viz.predict("60 tokens, 4 guesses a cycle: how many passes of the target?", "passes")
passes_guess

# %% tags=["spoiler"]
tokens, passes = write(k=4)
print("passes:", passes)
print("tokens per pass:", round(len(tokens) / passes, 2))
print("the text of plain decoding:", tokens == plain.tokens)

# %% tags=["spoiler", "nbval-ignore-output"]
passes_guess.reveal(passes)

# %% [markdown]
# Not one token differs. That is no luck of this prompt or of four: whatever the draft says, only the target's choices
# get through. A longer guess needs fewer passes, but less and less so, and every guess has to be drafted.

# %%
for k in (1, 2, 4, 8):
    tokens, passes = write(k)
    print(f"k = {k}: {passes} passes, {k * passes} guesses, same text: {tokens == plain.tokens}")

# %% [markdown]
# ## The bonus
#
# Look at the table of the verify pass again. Its last row had no guess beside it. When all guesses are right, that row is
# the target's choice for the place behind them. It was computed anyway, with the same read of the weights.
# So it is written too, and called the **bonus**.
#
# Let the target draft for itself. Every guess is right then, and each cycle guesses four.

# %% tags=["nbval-ignore-output"]
bonus_guess = viz.predict("60 tokens, 4 guesses a cycle, all of them right: how many passes?", "passes")
bonus_guess

# %% tags=["spoiler"]
_, with_bonus = write(k=4, model=target)
_, without = write(k=4, model=target, bonus=False)
print("with the bonus:", with_bonus)
print("without it:", without)

# %% tags=["spoiler", "nbval-ignore-output"]
bonus_guess.reveal(with_bonus)

# %% [markdown]
# Five tokens a pass, not four. In general $a$ accepted drafts mean $a + 1$ tokens: the extra one is the correction or
# the bonus, so **no cycle is empty-handed**. If each guess is right with probability α, independently, the average is
#
# $$E[N] = 1 + \alpha + \dots + \alpha^k = \frac{1 - \alpha^{k+1}}{1 - \alpha}$$
#
# and a loop without a bonus loses its last term, $\alpha^k$. The text stays the same; only the count tells.

# %%
for alpha in (0.5, 0.8, 1.0):
    full = theory.expected_tokens(alpha, k=4)
    print(f"α = {alpha}: {full:.2f} tokens a pass, without the bonus {full - alpha**4:.2f}")

# %% [markdown]
# ## A loop that does not rewind
#
# Now the cache keeps every rejected guess. Nothing crashes, no shape is wrong. How far does the text stay the target's
# own?

# %% tags=["nbval-ignore-output"]
parting_guess = viz.predict(
    "Without rewind: how many of the 60 tokens are right before the text goes astray?", "tokens"
)
parting_guess

# %% tags=["spoiler"]
astray, _ = write(k=4, too_many=1000)
right = agreed(astray, plain.tokens)
print("right before it goes astray:", right)
print("the text of plain decoding:", astray == plain.tokens)

# %% tags=["spoiler", "nbval-ignore-output"]
parting_guess.reveal(right)
print("plain:    ", PROMPT + target.decode(plain.tokens))
print("no rewind:", PROMPT + target.decode(astray))

# %% [markdown]
# The target now looks back on guesses that it rejected itself, and every later token sits at a wrong position. A small
# model may babble; a large one often writes fluent text that is merely not its own. **Fluent is no evidence.**
# Compare with plain decoding, in float64, token for token; or count: after every cycle the cache must hold one token
# less than the text.
#
# The subtler version keeps one token too many. It is the commonest bug of all.

# %%
off_by_one, _ = write(k=4, too_many=1)
print("right before it goes astray:", agreed(off_by_one, plain.tokens))
print("the text of plain decoding:", off_by_one == plain.tokens)

# %% [markdown]
# ## The draft has a cache too
#
# Our draft read the whole text for every guess. A real one keeps a cache, reads only what it has not read, and is rewound
# as the target is: see [`DraftModel`](../minispec/drafters/model.py). The whole loop, with stop tokens, batches and a record
# of what happened, is [`speculate`](../minispec/speculate.py).

# %%
out = ms.speculate(target, prompt, drafters.Model(draft), k=4, max_new_tokens=60)
trace = out.trace
print("the text of plain decoding:", out.tokens == plain.tokens)
print("passes of the target:", trace.target_passes)
print("drafts accepted in each cycle:", *[cycle.accepted for cycle in trace.cycles])
print("share of the tested drafts that passed:", round(trace.acceptance_rate, 3))

# %% [markdown]
# A [`Cycle`](../minispec/trace.py) keeps what was drafted, what both models thought of it, and what came of it.

# %%
first = trace.cycles[0]
print("drafted: ", [target.decode([token]) for token in first.drafted])
print("written: ", [target.decode([token]) for token in first.tokens])
print("how each came about:", first.kinds)

# %% [markdown]
# ## Step through it
#
# Each cycle has three stages: **draft**, **verify**, **rewind**. Play it, or focus the slider and use the arrow keys.
# Signs and borders say the same as the colours: ✓ accepted, → corrected, + bonus, ✗ thrown away.
#
# The bars on the right are the two distributions behind a token, p of the target and q of the draft. Both models are
# greedy here, so each simply takes its longest bar.

# %% tags=["nbval-ignore-output"]
viz.cycle_stepper(target, draft, prompt, out)

# %% [markdown]
# Try this:
#
# 1. Go to a cycle in which nothing was accepted. Was the draft far off, or was the target's second choice nearly its
#    first?
# 2. Find a cycle that ends with a bonus. Which bars are missing, and why?
# 3. Watch the two cache lengths in the rewind stage. Mostly they are equal. When is the draft's one shorter?
#
# The third is worth a thought of its own. Here is the count.

# %%
from minispec.course.viz import cycles as stepper

ends = [step for step in stepper.steps(trace) if step.stage == "rewind"]
for bonus in (False, True):
    gaps = {e.target_cache - e.draft_cache for e, c in zip(ends, trace.cycles, strict=True) if c.bonus == bonus}
    print("bonus:     " if bonus else "correction:", "the draft's cache is shorter by", gaps)

# %% [markdown]
# Where everything was accepted, the draft has *proposed* its last token without ever *reading* it: nobody asked what
# comes next. In the following cycle it has two tokens to catch up on, that one and the bonus. It reads both in one pass.
# A loop that feeds it the bonus alone leaves a hole in its cache. The text stays right, since the target decides. But
# the draft has missed a word and guesses worse, and no comparison of texts will tell you.

# %% [markdown]
# ## In production
#
# | here | vLLM | elsewhere |
# |---|---|---|
# | `k` | `num_speculative_tokens` in `speculative_config` | SGLang: `--speculative-num-steps`; `--speculative-num-draft-tokens` is one more in a chain |
# | draft | `method` and `model` in `speculative_config`; the code says *proposer* | transformers: `assistant_model`, *assisted generation* |
# | verify | one step of the scheduler, then `RejectionSampler` | |
# | correction | *recovered token* | |
# | bonus | *bonus token* | |
# | rewind | `num_computed_tokens` goes back by the number rejected; slots are written over | transformers: `DynamicCache.crop` |
# | tokens per pass | *mean acceptance length*, in the metrics: the bonus is counted | *accept length* in SGLang |
#
# A server has many rows at once, and each accepts another number of drafts. So a cache keeps a length for every row, and
# rewinding is a subtraction on a vector. Lesson 11 puts this into a scheduler.
#
# In bfloat16 a pass over five tokens and five passes over one do not round alike. Where two tokens are nearly tied, the
# text of a greedy server may part from plain decoding there. That is rounding and no bug. Lesson 06 shows how to tell.

# %% [markdown]
# ## Check yourself
#
# <details><summary>Five tokens go into a verify pass. Which row judges the third guess, and which row gives the bonus?</summary>
#
# The input is the last token and four guesses. Counted from 1, the third row (after the second guess) judges the third
# guess. The fifth row, after the fourth guess, gives the bonus.
# </details>
#
# <details><summary>The text has 100 tokens. A cycle guesses four, two are accepted. How long are the text and both caches
# afterwards?</summary>
#
# Text: 103, two accepted and a correction. Both caches: 102, everything but the last token. The draft had read the last
# token and three of its guesses; the third guess was rejected, so that one goes.
# </details>
#
# <details><summary>Greedy output equals plain decoding exactly. Which of these bugs can still be there: no rewind of the
# target, no rewind of the draft, no bonus?</summary>
#
# The last two. The draft may say what it likes without changing a greedy text, and a missing bonus only costs passes. Both show
# in the count of tokens per pass, so measure that too.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Leviathan, Kalman, Matias, 2023: *Fast inference from transformers via speculative decoding*
#   ([arXiv:2211.17192](https://arxiv.org/abs/2211.17192)): section 2 is the loop of this lesson, for sampling targets.
# - Stern, Shazeer, Uszkoreit, 2018: *Blockwise parallel decoding for deep autoregressive models*
#   ([arXiv:1811.03115](https://arxiv.org/abs/1811.03115)): the greedy loop, five years earlier.
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
# - Write it yourself, the draft's cache included: [exercises 05](../exercises/05_draft_and_verify.ipynb).
# - Interview questions (`minispec drill`): `walk-me-through`, `verify-in-one-pass`, `what-happens-on-rejection`,
#   `bonus-token`, `kv-rewind`, `greedy-verification`, `why-not-in-parallel`, `review-the-pseudocode`,
#   `tokenizer-mismatch`.
# - [06 rejection sampling](06_rejection_sampling.ipynb): the same with dice. What may be kept when both models draw?
