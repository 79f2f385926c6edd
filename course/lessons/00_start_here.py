# %% [markdown]
# # 00 Start here
#
# *Time:* 20 minutes · *Before this:* nothing, some Python helps · *Practice:* guess before you run; [exercises 01](../exercises/01_why_decoding_is_slow.ipynb) follow the next lesson
#
# A language model writes one token at a time. Each token costs one pass through the whole model.
# This course is about needing fewer passes, without changing what gets written.
#
# You will be able to
#
# - let a model write, and make it repeat itself word for word;
# - count the passes that a text costs, and time one on your own machine;
# - name the one fact that all fast decoding rests on;
# - watch a small model guess and a larger one check it;
# - choose your way through the course.

# %%
import torch

import minispec as ms
from minispec import theory
from minispec.bench import measure
from minispec.course import viz

# %% [markdown]
# ## A model that tells stories
#
# `micro` lives inside the package. It has read simple stories and nothing else, so it loads at once and runs on any
# laptop. We keep it on the CPU, so that your numbers can be compared with the ones printed here.

# %%
target = ms.load("micro", device="cpu")
print(f"{target.config.num_layers} layers, {target.num_parameters / 1e6:.1f} million weights")
print(f"{target.config.vocab_size} tokens to choose from")

# %% [markdown]
# We call it the **target**: the model whose text we want. Give it the beginning of a story.

# %% tags=["nbval-ignore-output"]
story = ms.generate(target, "Once upon a time", max_new_tokens=80, temperature=0.8, seed=0)
print("Once upon a time" + story.text)

# %% [markdown]
# With a temperature above 0 the model *draws* each token from a distribution. The seed fixes the draws: the same seed
# tells the same story, another seed another one. Change the seed above and see.

# %%
same = ms.generate(target, "Once upon a time", max_new_tokens=80, temperature=0.8, seed=0)
other = ms.generate(target, "Once upon a time", max_new_tokens=80, temperature=0.8, seed=1)
print("seed 0 again, same tokens:", same.tokens == story.tokens)
print("seed 1, same tokens:", other.tokens == story.tokens)

# %% [markdown]
# ## What it reads and writes
#
# A model sees neither letters nor words. It sees **tokens**: numbers that stand for pieces of text.

# %%
prompt = target.encode("Once upon a time")
for token in prompt:
    print(f"{token:5d}  {target.decode([token])!r}")

# %% [markdown]
# ## One pass, one token
#
# Now we listen at the door of the model. For every pass we note how many tokens went in.
# The temperature is 0 this time: the model always takes its favourite token. That is called **greedy**.

# %%
passes = []


def note(transformer, inputs, output):
    passes.append(inputs[0].shape[1])  # tokens come as [B, T]


listener = target.transformer.register_forward_hook(note)
greedy = ms.generate(target, "Once upon a time", max_new_tokens=40, temperature=0)
listener.remove()

print("tokens written:", len(greedy.tokens))
print("passes:", len(passes))
print("tokens read in each pass:", *passes)

# %% [markdown]
# The first pass reads the whole prompt. This is **prefill**.
# Every later pass reads one token, the one just written, and yields the next. This is **decode**.
#
# Decode cannot run ahead: the second new token depends on the first, the third on the second. Forty tokens are forty
# passes, one after the other. The loop is short enough to read now: the last lines of
# [`generate`](../minispec/generate.py).

# %% [markdown]
# ## Predict
#
# A pass over five tokens does five times the arithmetic of a pass over one. How many times as long does it take?
# Type your guess and commit to it before you go on. A guess you have committed to is one you learn from.

# %% tags=["nbval-ignore-output"]
guess = viz.predict("A pass over 5 tokens takes how many times as long as a pass over 1?", "times")
guess

# %% [markdown]
# ## Run
#
# [`verify_curve`](../minispec/bench/measure.py) times both passes in turns and takes medians. A single timing is an anecdote.

# %% tags=["spoiler", "nbval-ignore-output"]
one, five = measure.verify_curve(target, tokens=(1, 5), repeat=51)
print(f"a pass over 1 token:  {one.time.median * 1000:.2f} ms")
print(f"a pass over 5 tokens: {five.time.median * 1000:.2f} ms")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
guess.reveal(five.ratio)
print(f"a token alone costs {one.time.median * 1000:.2f} ms")
print(f"one of five costs   {five.time.median * 1000 / 5:.2f} ms")
print("on this machine:", measure.machine()["cpu"])

# %% [markdown]
# Why so little? A pass has costs that it pays once, however many tokens it reads. All weights must travel from memory
# to the arithmetic units. For a model as small as this one, the Python around the arithmetic counts as well. A single
# token pays for all of that alone; five share it.
#
# For a large model on a GPU the weights are nearly the whole bill, and more than a hundred tokens can share it. Lesson 01
# computes how many.

# %% [markdown]
# ## What cheap company is good for
#
# Decode seems unable to profit: it never *knows* five tokens ahead. But suppose that somebody **guessed** them.
# A pass over the guess says, at every place, what the target itself would have written there.
# So one pass checks the whole guess.


# %%
def check(guess: list[int]) -> tuple[int, int | None]:
    """How many tokens of a guess are right, and what belongs in place of the first wrong one."""
    logits = target.transformer(torch.tensor([prompt + guess])).logits[0]  # [T, V]
    own = logits[len(prompt) - 1 : -1].argmax(-1).tolist()  # the target's choice at each place
    for place, (guessed, chosen) in enumerate(zip(guess, own, strict=True)):
        if guessed != chosen:
            return place, chosen
    return len(guess), None


# %% [markdown]
# First a perfect guess: the forty tokens that just took forty passes.

# %%
right, correction = check(greedy.tokens)
print(f"{right} of {len(greedy.tokens)} right, in one pass")

# %% [markdown]
# Then a guess with a mistake in the eleventh place.

# %%
spoiled = list(greedy.tokens)
spoiled[10] = (spoiled[10] + 1) % target.config.vocab_size
right, correction = check(spoiled)
print(f"{right} right, then a correction: {right + 1} tokens from one pass")
print("the target's own text:", [*spoiled[:right], correction] == greedy.tokens[: right + 1])

# %% [markdown]
# This is **speculative decoding**. A cheap **draft** guesses a few tokens. The target reads them in one pass, keeps
# those it agrees with (**accepted**), replaces the first wrong one, and throws the rest away. A bad guess costs a little
# time. It never costs a word: the text is the target's own.
#
# Here the target was greedy. It works with sampling too, where the promise is subtler: the text follows exactly the
# target's distribution. Lesson 06 proves it.
#
# How much is there to win? Say each of four drafted tokens is right with probability α, whatever came before.

# %%
for alpha in (0.2, 0.4, 0.6, 0.8):
    print(f"α = {alpha}: {theory.expected_tokens(alpha, k=4):.2f} tokens per pass of the target")

# %% [markdown]
# Whether that makes you faster depends on what the draft costs and on the ratio you have just measured. Lesson 07
# turns the three numbers into a prediction, and checks it.

# %% [markdown]
# ## Watch it run
#
# `micro-draft` is a tenth of the size of `micro`. It guesses four tokens at a time.

# %%
draft = ms.load("micro-draft", device="cpu")
question = "One day, a girl named Lily"
fast = ms.speculate(target, question, ms.drafters.Model(draft), k=4, max_new_tokens=40)
slow = ms.generate(target, question, max_new_tokens=40)
print("passes of the target, plain:", len(slow.tokens))
print("fewer with a draft:", fast.trace.target_passes < len(slow.tokens))

# %% tags=["nbval-ignore-output"]
print("passes of the target, with a draft:", fast.trace.target_passes)
print("the same text:", fast.tokens == slow.tokens)
viz.cycle_stepper(target, draft, question, fast)

# %% [markdown]
# Press play. ✓ was guessed and accepted, → replaced a wrong guess, ✗ was thrown away, and + came on top where every guess
# was right. Lesson 05 takes this loop apart.

# %% [markdown]
# ## Where the course goes
#
# | | lesson | afterwards you can |
# |---|---|---|
# | 00 | **start here** | say why a guess helps |
# | 01 | [why decoding is slow](01_why_decoding_is_slow.ipynb) | tell whether memory or arithmetic is the limit, for any model and machine |
# | 02 | [kv cache](02_kv_cache.ipynb) | say what the cache saves, compute its size, rewind it |
# | 03 | [paged blocks](03_paged_blocks.ipynb) | keep many caches in one memory without wasting it |
# | 04 | [continuous batching](04_continuous_batching.ipynb) | schedule requests that come and go at every step |
# | 05 | [draft and verify](05_draft_and_verify.ipynb) | write the loop you saw above, cache included |
# | 06 | [rejection sampling](06_rejection_sampling.ipynb) | write the sampler, and prove that it keeps the target's distribution |
# | 07 | [how fast](07_how_fast.ipynb) | predict the speed-up, choose the draft length, say when not to bother |
# | 08 | [drafters](08_drafters.ipynb) | pick one of seven ways to guess |
# | 09 | [medusa](09_medusa.ipynb) | train extra heads and verify a tree of guesses |
# | 10 | [eagle and dflash](10_eagle_and_dflash.ipynb) | draft from the target's own hidden states |
# | 11 | [speculation in a server](11_speculation_in_a_server.ipynb) | fit speculation into paging and batching, and see a large batch eat the gain |
# | 12 | [fewer bytes](12_fewer_bytes.ipynb) | quantise weights, compute attention tile by tile |
# | 14 | [is it really exact?](14_is_it_really_exact.ipynb) | test a sampler, and tell rounding from a bug |
# | 16 | [beyond one gpu](16_beyond_one_gpu.ipynb) | split a model over several devices |
# | 17 | [interview day](17_interview_day.ipynb) | explain all of it to somebody who asks back |
# | | appendix: [scaling laws](appendix_scaling_laws.ipynb) | say how large a model should be for its training compute |
#
# A word you do not know is in the [glossary](../docs/glossary.md). Which lesson needs which is drawn in the
# [syllabus](../docs/syllabus.md).

# %% [markdown]
# ## Choose a path
#
# **On your own.** Take the lessons in order, one a sitting. Commit to every prediction before you run the next cell.
#
# **An interview in a week.** Start with 01, 02 and 05; then 06, on paper too.
#
# **A class.** Six weeks, two lessons a week, with homework that checks itself.
#
# All three are planned day by day in the [syllabus](../docs/syllabus.md).

# %% [markdown]
# ## In production
#
# All of this runs in the servers you may have used. In vLLM it is switched on with `speculative_config`, in SGLang with
# `--speculative-algorithm`, in TensorRT-LLM with a `speculative_config` too. Hugging Face transformers calls it assisted
# generation: `generate(…, assistant_model=draft)`. Prefill and decode are called so nearly everywhere; TensorRT-LLM says
# context phase and generation phase.

# %% [markdown]
# ## Check yourself
#
# <details><summary>A text of 200 tokens, after a prompt of 50: how many passes does plain decoding take?</summary>
#
# 200. The first pass reads the whole prompt and yields the first new token; each later pass yields one more.
# </details>
#
# <details><summary>Why is a pass over five tokens not five times as slow?</summary>
#
# Because part of its cost does not depend on the number of tokens. Above all, the weights are read from memory once.
# </details>
#
# <details><summary>A draft guesses four tokens. The first two are right, the third is wrong, the fourth is what the
# target would have written in that place of the guess. How many tokens does the pass yield?</summary>
#
# Three: two accepted ones and the correction. The fourth was judged as the continuation of a wrong third token, so it
# has to go.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Leviathan, Kalman, Matias, 2023: *Fast inference from transformers via speculative decoding*
#   ([arXiv:2211.17192](https://arxiv.org/abs/2211.17192)): the idea of this lesson in full; sections 1 and 2 can be
#   read now.
# - Stern, Shazeer, Uszkoreit, 2018: *Blockwise parallel decoding for deep autoregressive models*
#   ([arXiv:1811.03115](https://arxiv.org/abs/1811.03115)): how short the first version of the idea was.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - [01 Why decoding is slow](01_why_decoding_is_slow.ipynb): where the time of a pass goes, on your machine and on any
#   other.
# - In a terminal, `minispec demo` shows the same loop writing a story, with the speed-up predicted and measured.
