# %% [markdown]
# # 05 Draft and verify
#
# *Time:* 50 minutes · *Before this:* [02 KV cache](02_kv_cache.ipynb) · *Practice:* [exercises 05](../exercises/05_draft_and_verify.ipynb)
#
# Our chatbot has one impatient user, and the number at stake is **ms per token**. Decoding needs one forward pass of
# the model for every token, and lesson 01 showed that such a pass spends most of its time reading weights from memory.
# **Speculative decoding** (Leviathan et al., 2023, arXiv:2211.17192; independently Chen et al., 2023, arXiv:2302.01318)
# makes one pass serve several tokens: a cheap **draft model** proposes the next $k$ tokens, and the large **target**
# model checks all of them in a single forward pass. This lesson counts passes of the target; lesson 07 measures
# the time.
#
# Implementations go wrong in the bookkeeping of positions and caches, so that is what you will write here: the verdict
# on a draft, the rewind of two caches, and the loop around them. *Optional* sections are not included in the time above.
#
# You will be able to
#
# - say what the logits at each position of a verify pass mean;
# - write the greedy loop from memory: draft, verify, rewind;
# - recognise a loop whose cache is off by one, although its output is fluent.

# %%
import torch

import minispec as ms
from minispec import drafters
from minispec_course import viz
from minispec_course.check import draw, yours
from minispec_course.labs.drafting import counted
from minispec_course.labs.pairs import in_transformers

# %% [markdown]
# One cycle, from a real run of the two models of this lesson. Watch where `␣kind` comes from, and what happens to the
# caches at the end.

# %% tags=["nbval-ignore-output"]
viz.loop_picture()

# %% [markdown]
# ## Two models
#
# The target is about ten times as large as the draft model, and both use the same vocabulary, so a token id means the
# same to both. We compute in float64, so that rounding never decides a token.

# %%
target = ms.load("micro", device="cpu", dtype=torch.float64)
draft = ms.load("micro-draft", device="cpu", dtype=torch.float64)
for name, model in (("target", target), ("draft", draft)):
    print(f"{name:6s} {model.config.num_layers} layers, {model.num_parameters / 1e6:.1f} million parameters")
print("same vocabulary:", target.tokenizer.get_vocab() == draft.tokenizer.get_vocab())  # each token and its id

# %% [markdown]
# The goal is to generate what the target generates on its own, token for token, in fewer forward passes. So we
# first need that output, from plain autoregressive decoding ("plain" from here on). Decoding is greedy in this lesson: we
# always take the most likely token.

# %%
PROMPT = "One day, a girl named Lily"
prompt = target.encode(PROMPT)
plain = ms.generate(target, prompt, max_new_tokens=60)
print("tokens, and so forward passes:", len(plain.tokens))

# %% [markdown]
# The loop needs three things from a model with its KV cache: run the model on some tokens, know how many tokens the
# cache holds, and cut the cache back.
#
# One convention keeps the bookkeeping easy. The newest token of a sequence has been emitted, but no pass has processed it
# yet, so **the cache holds every token but the last**. To make the first cycle look like all later ones, the prefill
# leaves out the last token of the prompt.


# %%
class Cached:
    """A model with its KV cache, after the prefill of all tokens of the prompt but the last."""

    def __init__(self, model, prompt: list[int]):
        self.transformer, self.cache = model.transformer, model.transformer.new_cache(capacity=2048)
        self.length = 0  # how many tokens the cache holds
        self.passes = -1  # the prefill does not count
        self.read(prompt[:-1])

    @torch.inference_mode()
    def read(self, tokens: list[int]) -> torch.Tensor:
        """Run the model on tokens that come after those in the cache: logits [len(tokens), V]."""
        self.length, self.passes = self.length + len(tokens), self.passes + 1
        return self.transformer(torch.tensor([tokens]), self.cache).logits[0]

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens."""
        self.length = length
        self.cache.rewind(length)


# %% [markdown]
# ## Draft
#
# The draft model proposes $k = 4$ tokens (γ in Leviathan's paper), greedily and one after the other. Each proposal is
# the next input.

# %%
small, large = Cached(draft, prompt), Cached(target, prompt)
drafted, token = [], prompt[-1]
for _ in range(4):
    token = int(small.read([token])[-1].argmax())
    drafted.append(token)
print([target.decode([token]) for token in drafted])

# %% [markdown]
# ## Verify
#
# How can one pass check four tokens? A causal transformer gives logits at every position of its input, and each of them
# depends only on the tokens up to that position. So if the draft tokens are part of the input, one pass says for each of
# them what the target would have chosen instead, provided that all draft tokens before it are right.

# %%
logits = large.read([prompt[-1], *drafted])  # [k + 1, V]
print("tokens that went in:", 1 + len(drafted))
print("positions that have logits:", len(logits))

# %% [markdown]
# The logits at an input token say what the target would choose *after* that token. So **a draft token is judged by the
# logits one position before it**. In the picture below, follow a slanted arrow from a choice up to the draft token
# that it judges: it always goes one column to the right.

# %%
last, *proposed = (target.decode([token]) for token in [prompt[-1], *drafted])
viz.judge_arrows(last, proposed, [target.decode([token]) for token in logits.argmax(-1).tolist()])

# %% [markdown]
# Go from left to right until a draft token differs from the target's choice. Every draft token before it is **accepted**.
# At the first mismatch the target's own choice is emitted instead, the **correction** (*recovered token* in vLLM). The
# choices after it are useless, because they were computed after a token that is not part of the output. If nothing
# differs, the last logits give one more token, the **bonus**.
#
# ### Yours: the verdict
#
# `logits` is a tensor `[k + 1, V]`, and `drafted` is a list of $k$ tokens that may be empty. Return how many draft tokens
# are accepted, and the token that follows them: the correction or the bonus.


# %%
@yours("05.greedy_verify")
def greedy_verify(logits: torch.Tensor, drafted: list[int]) -> tuple[int, int]:
    """How many draft tokens the target agrees with, and its own token after them."""
    ### BEGIN SOLUTION: compare each draft token with the target's choice at its position, up to the first mismatch
    best = logits.argmax(-1).tolist()
    accepted = 0
    while accepted < len(drafted) and drafted[accepted] == best[accepted]:
        accepted += 1
    return accepted, best[accepted]
    ### END SOLUTION


# %%
accepted, token = greedy_verify(logits, drafted)
emitted = [*drafted[:accepted], token]
print(f"{accepted} accepted, then {target.decode([token])!r}: {len(emitted)} tokens from one forward pass")
print("the same as plain decoding:", emitted == plain.tokens[: len(emitted)])

# %% [markdown]
# In minispec this step is [`chain`](../minispec/verify.py), which covers sampling as well (lesson 06).
#
# ## Rewind
#
# The verify pass has put keys and values of all five input tokens into the target's cache, but some of these tokens were
# rejected. Later tokens must not attend to them. The draft model's cache has the same problem.

# %%
print("tokens in the sequence:", len(prompt) + len(emitted))
print("tokens in the caches: target", large.length, "and draft model", small.length)

# %% [markdown]
# So both caches are cut back. We call this **rewind** (transformers says *crop*, others say *roll back*). Each cache
# keeps the tokens that it has processed and that are part of the sequence.
#
# ### Yours: two lengths
#
# When a cycle begins, the sequence has $n$ tokens and both caches hold the first $n - 1$. Then
#
# ```
# the draft model processes     last   d[0]   …   d[k-2]             and proposes d[0] … d[k-1]
# the target processes          last   d[0]   …   d[k-2]   d[k-1]
# ```
#
# How many tokens may each cache keep when `accepted` of the $k$ draft tokens are accepted? One case differs from all
# others.


# %%
@yours("05.rewind")
def rewind(n: int, k: int, accepted: int) -> tuple[int, int]:
    """The lengths that the target's and the draft model's cache are cut back to."""
    ### BEGIN SOLUTION: which tokens has each model processed, and which of them are part of the sequence?
    right = n + accepted  # the old sequence, whose last token is now processed, and the accepted draft tokens
    draft_processed = (n - 1) + k  # it has proposed its last draft token, but never processed it
    return right, min(right, draft_processed)
    ### END SOLUTION


# %%
keys_before = large.cache.keys.clone()
for model, length in zip((large, small), rewind(len(prompt), len(drafted), accepted), strict=True):
    model.rewind(length)
print("tokens in the caches: target", large.length, "and draft model", small.length)
print("keys that changed:", int((large.cache.keys != keys_before).sum()))

# %% [markdown]
# A rewind is cheap because a cache is a piece of memory and a length, and only the length changes. The next pass
# overwrites what the rejected tokens left.
#
# ## The loop
#
# One round of draft, verify and rewind is a **cycle** (papers say *iteration* or *decoding step*). The loop repeats
# cycles until there are enough tokens.
#
# ### Yours: the loop
#
# `target` and `draft` are models with a cache, as above: `read(tokens)`, `length`, `rewind(length)`. In every cycle the
# draft model proposes exactly $k$ tokens in $k$ passes, the target verifies them in one pass, and both are rewound. Use
# your `greedy_verify` and your `rewind(n, k, accepted)`. Return `count` new tokens, and cut off what the last cycle
# emits beyond that.
#
# One detail is easy to miss. When all $k$ draft tokens were accepted, *two* tokens are missing in the draft model's cache:
# its own last draft token, which it proposed but never processed, and the bonus. One pass can process both.


# %%
@yours("05.loop")
def loop(target, draft, prompt: list[int], k: int, count: int) -> list[int]:
    """Speculative decoding with a greedy target: `count` new tokens after the prompt."""
    ### BEGIN SOLUTION: until there are enough tokens: draft k, verify in one pass, add what is emitted, rewind both
    sequence = list(prompt)
    while len(sequence) < len(prompt) + count:
        n = len(sequence)
        drafted: list[int] = []
        while len(drafted) < k:
            missing = (sequence + drafted)[draft.length :]  # one token; two after a cycle that accepted everything
            drafted.append(int(draft.read(missing)[-1].argmax()))
        accepted, token = greedy_verify(target.read([sequence[-1], *drafted]), drafted)
        sequence += [*drafted[:accepted], token]
        target_length, draft_length = rewind(n, k, accepted)
        target.rewind(target_length)
        draft.rewind(draft_length)
    return sequence[len(prompt) : len(prompt) + count]
    ### END SOLUTION


# %% [markdown]
# Here is your loop at work on two scripted models. Positions count from 0. Each line is one verify pass: how many
# tokens the target's cache held before it, then the last token and the draft.

# %%
draw("05.loop", loop)

# %% [markdown]
# ## Does a bad draft change the output?
#
# Now the real models, and beside our draft model a worse one, whose logits are random numbers.


# %%
class Random(Cached):
    """A draft model that guesses blindly."""

    def read(self, tokens: list[int]) -> torch.Tensor:
        return torch.rand(super().read(tokens).shape)


def decode(drafter, k: int = 4, verifier=None) -> tuple[list[int], int]:
    """60 new tokens by your loop, and how many verify passes they took."""
    verifier = verifier or Cached(target, prompt)
    return loop(verifier, drafter, prompt, k, count=60), verifier.passes


# %% tags=["nbval-ignore-output"]
random_guess = viz.predict(
    "Random draft tokens: how many of the 60 output tokens differ from plain decoding?", "tokens"
)
random_guess

# %% tags=["spoiler"]
torch.manual_seed(0)
for name, drafter in (("our draft model", Cached(draft, prompt)), ("random drafts", Random(draft, prompt))):
    tokens, passes = decode(drafter)
    different = sum(a != b for a, b in zip(tokens, plain.tokens, strict=True))
    print(f"{name:16s} {different} tokens differ, {passes} verify passes")

# %% tags=["spoiler", "nbval-ignore-output"]
random_guess.reveal(different)

# %% [markdown]
# Whatever the draft model proposes, only tokens that the target would have chosen are emitted. **A bad draft costs
# time, never correctness.** And because each cycle emits a token of the target's own, there are never more
# verify passes than output tokens.
#
# A longer draft saves passes, but each additional draft token saves less than the one before it, and all of them have to
# be drafted. The last line lets the target draft for itself, so that every draft token is right: each pass then emits
# four draft tokens and the bonus.

# %% tags=["spoiler"]
for k in (1, 2, 4, 8):
    tokens, passes = decode(Cached(draft, prompt), k)
    print(f"k = {k}: {passes} verify passes, {k * passes} draft tokens, same output: {tokens == plain.tokens}")
print("k = 4, every draft token right:", decode(Cached(target, prompt))[1], "verify passes")

# %% [markdown]
# The bonus costs one more position in a pass that runs anyway. A loop that forgets it still emits the right tokens, so
# only the count of tokens per pass reveals the bug.
#
# ## A cache that is off by one
#
# Suppose that the *target's* cache is left one token too long after every cycle. Nothing crashes; no shape is wrong.
# Your loop is the same; only the rewind below it is broken.


# %%
class OffByOne(Cached):
    """Keeps one token too many, and does not know it."""

    def rewind(self, length: int) -> None:
        self.length = length
        self.cache.rewind(min(length + 1, int(self.cache.lengths[0])))


# %% tags=["nbval-ignore-output"]
diverge_guess = viz.predict("How many tokens are right before the first wrong one?", "tokens")
diverge_guess

# %% tags=["spoiler"]
off_by_one, _ = decode(Cached(draft, prompt), verifier=OffByOne(target, prompt))
right = next(i for i in range(60) if off_by_one[i] != plain.tokens[i])
print("tokens that are right at first:", right)

# %% tags=["spoiler", "nbval-ignore-output"]
diverge_guess.reveal(right)
print("plain:     ", PROMPT + target.decode(plain.tokens))
print("off by one:", PROMPT + target.decode(off_by_one))

# %% [markdown]
# Only the first cycle is right, because only its pass ran on a cache without a fault. From then on a rejected token
# stays in the context for good. Yet the second story is fluent, and small models repeat themselves without a bug as
# well. **Fluent output is no evidence of a correct loop.** Compare with plain decoding token for token, in float64, or
# assert after every cycle that the target's cache holds one token fewer than the sequence.
#
# ## And the draft model's cache? (optional, 5 minutes)
#
# Now a larger fault in the *draft model's* cache: it is never rewound at all, while the target's is right. The output
# cannot change, as the random drafts have shown. Without the fault, your loop took 25 verify passes.


# %%
class NeverRewound(Cached):
    """Keeps every rejected token."""

    def rewind(self, length: int) -> None:
        self.length = length


# %% tags=["nbval-ignore-output"]
draft_guess = viz.predict("The draft model's cache is never rewound: how many verify passes?", "passes")
draft_guess

# %% tags=["spoiler"]
tokens, passes = decode(NeverRewound(draft, prompt))
print("never rewound:", passes, "verify passes, same output:", tokens == plain.tokens)
tokens, one_too_long = decode(OffByOne(draft, prompt))
print("off by one:   ", one_too_long, "verify passes, same output:", tokens == plain.tokens)

# %% tags=["spoiler", "nbval-ignore-output"]
draft_guess.reveal(passes)

# %% [markdown]
# The draft model attends to tokens that are not part of the sequence, so it proposes worse tokens. No comparison of
# outputs will ever show that: only the acceptance rate does. And a single token too many costs no pass at all on this
# prompt, so neither the output nor the number of passes gives it away. That takes an assertion about the cache's
# length.
#
# ## The same in minispec and transformers (optional, 10 minutes)
#
# [`speculate`](../minispec/speculate.py) is your loop with stop tokens, batches and a record of what happened, and
# [`DraftModel`](../minispec/drafters/model.py) holds the draft model's half.

# %% tags=["spoiler"]
out = ms.speculate(target, prompt, drafters.Model(draft), k=4, max_new_tokens=60)
print("the same as plain decoding:", out.tokens == plain.tokens)
print("verify passes:", out.trace.target_passes)
print("draft tokens accepted in each cycle:", *[cycle.accepted for cycle in out.trace.cycles])

# %% [markdown]
# Hugging Face transformers calls it *assisted generation*. With the same weights and the same $k$:

# %% tags=["spoiler"]
theirs, assistant = in_transformers(target), in_transformers(draft)
always_four = dict(num_assistant_tokens=4, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0)
assistant.generation_config.update(**always_four)
with counted(theirs) as passes:
    ids = theirs.generate(torch.tensor([prompt]), max_new_tokens=60, do_sample=False, assistant_model=assistant)
print("the same as plain decoding:", ids[0, len(prompt) :].tolist() == plain.tokens)
print("verify passes:", len(passes))

# %% [markdown]
# Step through ours: press play, or focus the slider and use the arrow keys. In which cycles will the draft model have two
# tokens to catch up on? Check your answer against the list above.

# %% tags=["nbval-ignore-output"]
viz.cycle_stepper(target, prompt, out)

# %% [markdown]
# ## In production
#
# | here | vLLM | elsewhere |
# |---|---|---|
# | `k` | `num_speculative_tokens` in `speculative_config` | SGLang: `--speculative-num-steps` |
# | draft model | the code says *proposer* | transformers: `assistant_model`, *assisted generation* |
# | rewind | `num_computed_tokens` goes back by the number rejected | transformers: `DynamicCache.crop` |
# | tokens per verify pass | *mean acceptance length*: the correction or bonus is counted | SGLang: *accept length* |
#
# <details><summary>Go deeper: many sequences, bfloat16, two vocabularies</summary>
#
# A server runs many sequences at once, and each of them accepts a different number of draft tokens. So its cache keeps
# a length for every sequence, and rewinding subtracts a vector. Lesson 11 puts this into a scheduler.
#
# In bfloat16, one pass over five tokens and five passes over one token usually round differently. Where two tokens are
# nearly tied, a greedy server can therefore diverge from plain decoding. [Lesson 14](14_is_it_really_exact.ipynb) shows
# how to tell rounding from a bug.
#
# Two vocabularies of equal size can differ: the loop would run without an error and accept almost
# nothing. That is why we compared them entry by entry. Lesson 15 has a method for different ones (Timor et al., 2025,
# arXiv:2502.05202).
# </details>
#
# ## Check yourself
#
# <details><summary>Five tokens go into a verify pass. Which logits judge the third draft token, and which ones give the
# bonus?</summary>
#
# The logits at the second draft token, which is the third token of the input, judge the third draft token. The logits at
# the fourth draft token give the bonus.
# </details>
#
# <details><summary>The sequence has 100 tokens. A cycle drafts four tokens and accepts two. How long are the sequence and both
# caches afterwards?</summary>
#
# The sequence has 103 tokens: two accepted ones and a correction were added. Both caches hold 102, everything but the last
# token. The draft model had processed three of its own draft tokens; the third was rejected, so it is removed.
# </details>
#
# <details><summary>The greedy output equals plain decoding exactly. Which of these bugs can still be there: no rewind of the
# target, no rewind of the draft model, no bonus?</summary>
#
# The last two can, in any test, and both lower the number of tokens per forward pass. The first can hide only in a test
# that is too easy: no draft token was rejected, or the output ended before the first wrong token.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Leviathan, Kalman, Matias, 2023: *Fast inference from transformers via speculative decoding*
#   ([arXiv:2211.17192](https://arxiv.org/abs/2211.17192)): section 2 is your loop, for sampling targets.
# - Chen et al., 2023: *Accelerating large language model decoding with speculative sampling*
#   ([arXiv:2302.01318](https://arxiv.org/abs/2302.01318)): the same loop, found independently and tried on a 70B target.
# - Stern, Shazeer, Uszkoreit, 2018: *Blockwise parallel decoding for deep autoregressive models*
#   ([arXiv:1811.03115](https://arxiv.org/abs/1811.03115)): the greedy loop, with additional heads of the target in
#   place of a draft model.
#
# All papers: [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - Once more from memory, in a few days: `minispec exam 65 --topics 05` (the number is minutes).
# - Interview questions (`minispec drill`): `walk-me-through`, `verify-in-one-pass`, `what-happens-on-rejection`,
#   `bonus-token`, `kv-rewind`, `greedy-verification`, `why-not-in-parallel`, `review-the-pseudocode`,
#   `other-vocabulary`.
# - [06 Rejection sampling](06_rejection_sampling.ipynb): which draft tokens may be kept when both models sample?
