# %% [markdown]
# # 00 Start here
#
# *Time:* 30 minutes · *Before this:* some Python and PyTorch · *Practice:* guess before you run; [exercises 01](../exercises/01_why_decoding_is_slow.ipynb) follow the next lesson
#
# A language model generates one token at a time, and each token costs one forward pass through the whole model. This
# course is about needing fewer of these passes and making each of them cheaper. Speculative decoding, its main subject,
# needs fewer: a greedy output stays the same, and a sampled one keeps its distribution. (Quantisation, lesson 12, makes
# a pass cheaper and changes the output a little.)
#
# You will be able to
#
# - generate a story with a small model, and repeat it token for token;
# - count the forward passes that an output costs, and time one on your own machine;
# - state the fact on which speculative decoding rests;
# - watch a small model guess and a larger one check its guesses;
# - choose your way through the course.
#
# If the first cell fails, the package is not installed yet: the [README](../README.md) says how.

# %%
import torch

import minispec as ms
from minispec import measure, theory
from minispec_course import viz
from minispec_course.labs.pairs import course_pair, where

# %% [markdown]
# ## The device you measure
#
# This course measures time on your own machine, and always on one device: your GPU if there is one, else the CPU. The
# environment variable `MINISPEC_DEVICE` (`cpu`, `cuda`, `cuda:1`) overrides that.

# %% tags=["nbval-ignore-output"]
device = ms.device()
print(f"what is timed runs on {device}: {where(device)}")

# %% [markdown]
# What is *counted* does not need a fast machine, and should be the same for every reader. So cells that count tokens and
# passes, or compare two outputs token by token, run a small model on the CPU, also where there is a GPU. If you have
# one, [the page for GPU owners](../docs/gpu.md) says what to expect of it.

# %% [markdown]
# ## A model that tells stories
#
# We need a model that runs on any laptop, so one is part of the package. `micro` was trained on simple stories and on
# nothing else, and it loads in about a second.

# %%
target = ms.load("micro", device="cpu")
print(f"{target.config.num_layers} layers, {target.num_parameters / 1e6:.1f} million parameters")
print(f"a vocabulary of {target.config.vocab_size} tokens")

# %% [markdown]
# We call it the **target model**, or target for short: the model whose output we want. Give it the beginning of a
# story.

# %% tags=["nbval-ignore-output"]
story = ms.generate(target, "Once upon a time", max_new_tokens=80, temperature=0.8, seed=0)
print("Once upon a time" + story.text)

# %% [markdown]
# At each step the model computes a probability for every token of its vocabulary. With a temperature above 0, the next
# token is *sampled* from this distribution. The seed fixes the random numbers, so the same seed gives the same story
# and another seed gives a different one:

# %%
same = ms.generate(target, "Once upon a time", max_new_tokens=80, temperature=0.8, seed=0)
other = ms.generate(target, "Once upon a time", max_new_tokens=80, temperature=0.8, seed=1)
print("the same seed, same tokens:", same.tokens == story.tokens)
print("another seed, same tokens:", other.tokens == story.tokens)

# %% [markdown]
# Change `seed=1` in this cell to another number and run it again. Add `print(other.text)` to see the story.

# %% [markdown]
# ## What goes in and what comes out
#
# A model sees neither letters nor words. It sees **tokens**, which are numbers that stand for pieces of text. This is
# how the prompt looks to the model:

# %%
prompt = target.encode("Once upon a time")
for token in prompt:
    print(f"{token:5d}  {target.decode([token])!r}")

# %% [markdown]
# ## One forward pass, one token
#
# How many forward passes does an output take, and how many tokens go through the model in each? A forward hook, which
# PyTorch calls after every pass, can count them. This time the temperature is 0, so the model always takes the token
# with the highest probability. That is called **greedy decoding**.

# %%
passes = []


def note(transformer, inputs, output):
    passes.append(inputs[0].shape[1])  # tokens come as [B, T]: B sequences of T tokens


hook = target.transformer.register_forward_hook(note)
greedy = ms.generate(target, "Once upon a time", max_new_tokens=40, temperature=0)
hook.remove()

print("tokens generated:", len(greedy.tokens))
print("forward passes:", len(passes))
print("tokens processed in each pass:", *passes)

# %% [markdown]
# The first pass processes the whole prompt, and this phase is called **prefill**. Every later pass processes a single
# token, the one that was generated last, and gives the distribution of the next one. This second phase is called
# **decode**. It need not process the earlier tokens again, because the model has kept what it needs of them in its
# **KV cache** (lesson 02).
#
# Decode cannot run ahead, because the second new token depends on the first and the third depends on the second. So
# forty tokens take forty passes, one after the other. The loop is short enough to read now:
# [`token_by_token`](../minispec/generate.py) yields one token per turn, and `decode` stops it when the output ends.

# %% [markdown]
# ## Predict
#
# A pass over five tokens does five times the arithmetic of a pass over one token. How many times as long does it take?
# Type your guess and commit to it before you go on, because a guess you have committed to is one you learn from.

# %% tags=["nbval-ignore-output"]
guess = viz.predict("A pass over 5 tokens takes how many times as long as a pass over 1?", "times")
guess

# %% [markdown]
# ## Run
#
# The model for timing is `micro` again if your device is a CPU. On a GPU, where `micro` would be nothing but overhead, it
# is the larger [SmolLM2](https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct).
# ([`course_pair`](../minispec_course/labs/pairs.py) loads it together with a draft model, which we need later.)
# [`verify_curve`](../minispec/measure.py) runs the two passes in alternation and takes the median of each,
# because a single timing says little on a machine that also does other things.

# %% tags=["spoiler", "nbval-ignore-output"]
timed, timed_draft = course_pair(device)
one, five = measure.verify_curve(timed, tokens=(1, 5), repeat=51)
print(f"{timed.name} on {where(device)}")
print(f"a pass over 1 token:  {one.time.median * 1000:.2f} ms")
print(f"a pass over 5 tokens: {five.time.median * 1000:.2f} ms")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
guess.reveal(five.ratio)
print(f"a token alone costs {one.time.median * 1000:.2f} ms")
print(f"one of five costs   {five.time.median * 1000 / 5:.2f} ms")

# %% [markdown]
# For comparison, the same ratio as we recorded it on a data-centre GPU, with a model of 8 billion parameters:

# %% tags=["spoiler"]
[h200] = viz.recorded_curves()
print(f"{h200.what}: {next(point.ratio for point in h200.curve if point.tokens == 5):.2f}")

# %% [markdown]
# If your ratio is well below five, the five tokens have shared something: a pass has costs that it pays once, however
# many tokens it processes. The largest is usually reading, because every weight has to travel from memory to the
# arithmetic units once per pass. On top of it comes a fixed overhead, such as starting the operations of the pass. For
# models as small as these two the overhead can be a large part; for a large model it is nearly all reading. (If your
# ratio is near five, run the two cells again, because another program may have disturbed them. If it stays there,
# arithmetic already limits your machine at five tokens; lesson 01 measures where that begins.)
#
# Take a large dense model (one that uses all of its weights for every token) in bf16 (two bytes per parameter), on a GPU
# that serves one request with a short context. There, reading the weights is nearly the whole cost of a decode pass,
# and more than a hundred tokens could share it; lesson 01 computes how many. Speculative decoding rests on this fact:
# **while reading the weights is the cost, a pass over a few tokens takes hardly longer than a pass over one.**
# [Lesson 01](01_why_decoding_is_slow.ipynb) has a picture of it: the weights on their way past 1, 5 and 200 tokens.

# %% [markdown]
# ## What a cheap extra token is good for
#
# How could decode profit from that, when it never *knows* the next five tokens? Something cheaper than the target could
# **guess** them. If we run the target on the prompt and the guess together, a single forward pass checks the whole
# guess. The reason is that the model's output at every position scores the token *after* that position. So the scores
# (the **logits**) at the last prompt token give the target's own choice for the first new token, which we compare with
# the first guessed one. The logits at the first guessed token give its choice for the second, and so on. Those at the
# last guessed token give one choice more, for the token after the guess. (To stay short, the function below uses no
# cache and processes the prompt again.)


# %%
def check(guess: list[int]) -> list[int]:
    """The tokens that one pass gives: the guess as far as it is right, then one choice of the target's own."""
    logits = target.transformer(torch.tensor([prompt + guess])).logits[0]  # [T, V]: V scores at each of T positions
    own = logits[len(prompt) - 1 :].argmax(-1).tolist()  # after the prompt, and after each guessed token
    right = 0
    while right < len(guess) and guess[right] == own[right]:
        right += 1
    return own[: right + 1]


# %% [markdown]
# Try it first with a perfect guess: the forty tokens that took forty passes above.

# %%
kept = check(greedy.tokens)
print(f"{len(kept) - 1} of {len(greedy.tokens)} right, then one more: {len(kept)} tokens from one pass")

# %% [markdown]
# Now try a guess whose eleventh token is wrong.

# %%
spoiled = list(greedy.tokens)
spoiled[10] = (spoiled[10] + 1) % target.config.vocab_size
kept = check(spoiled)
print(f"{len(kept) - 1} of {len(spoiled)} right, then a correction: {len(kept)} tokens from one pass")
print("the target's own output:", kept == greedy.tokens[: len(kept)])

# %% [markdown]
# This is **speculative decoding** (Leviathan et al., 2023, arXiv:2211.17192; Chen et al., 2023, arXiv:2302.01318). A
# cheap **drafter** guesses a few tokens, the **draft**. The target processes all of them in one pass and keeps those
# that it agrees with, which are called **accepted**. It replaces the first wrong token by its own choice, the
# **correction**, and discards everything after it. If no draft token is wrong, the pass gives one token more for free,
# the **bonus token**. A bad guess therefore costs some time, but it does not change the output.
#
# Here the target was greedy, but the method works with sampling as well, and then the promise is that the output
# follows exactly the target's distribution; lesson 06 proves this. Both statements hold in exact arithmetic. Real
# hardware rounds, and lesson 14 shows what rounding can change.
#
# How much is there to gain? Take drafts of four tokens. One pass of the target then gives at least one token (the
# correction) and at most five (all four and the bonus token). Suppose that each draft token is accepted with
# probability α, whatever came before it. Then a pass gives this many tokens on average:

# %%
for alpha in (0.2, 0.4, 0.6, 0.8):
    print(f"α = {alpha}: {theory.expected_tokens(alpha, k=4):.2f} tokens per forward pass of the target")

# %% [markdown]
# Plain autoregressive decoding gives exactly one token per pass. So for drafts of four tokens these numbers are also
# the largest possible speed-up, which you would get if drafting cost nothing and a pass over five tokens took no longer
# than a pass over one. What you really get depends on three quantities: the acceptance probability α, what the drafter
# costs, and the ratio that you measured above. Lesson 07 turns them into a prediction and checks it.

# %% [markdown]
# ## Watch it run
#
# `micro-draft` has about a tenth of the parameters of `micro`. Below, it drafts four tokens and `micro` verifies them
# in one forward pass, and this is repeated until the output is complete. One such iteration of drafting and verifying
# is called a **cycle** in this course, and the number of draft tokens per cycle is called $k$. Both loops are greedy,
# so they should give the same output.

# %%
draft = ms.load("micro-draft", device="cpu")
question = "One day, a girl named Lily"
speculative = ms.speculate(target, question, ms.drafters.Model(draft), k=4, max_new_tokens=40, temperature=0)
plain = ms.generate(target, question, max_new_tokens=40, temperature=0)
print(f"the draft model has {draft.num_parameters / target.num_parameters:.0%} of the target's parameters")
print("forward passes of the target, plain decoding:", len(plain.tokens))

# %% tags=["nbval-ignore-output"]
print("forward passes of the target, with a draft:", speculative.trace.target_passes)
print("the same output:", speculative.tokens == plain.tokens)
viz.cycle_stepper(target, question, speculative)

# %% [markdown]
# Press play and watch the marks. A token marked ✓ was drafted and accepted, → is a correction, ✗ was discarded, and + is
# a bonus token, after a draft of which every token was accepted. *Your task:* find a cycle in which nothing was
# accepted, and say how many tokens it still gave. Lesson 05 takes this loop apart.
#
# The two lanes below are a race in time. A cycle is four small passes and one large one; plain decoding takes a large pass
# for every token. It is a simulation: the tokens are those of this run, but the lengths of the passes were recorded on a
# large GPU with a model of 8 billion parameters, where reading the weights decides. You can choose the times of this run
# instead.
#
# The ratio of the two numbers of passes is not yet a speed-up: the drafter ran up to four small passes per cycle, which
# are not counted here, a pass over five tokens takes longer than a pass over one, and we have not looked at the clock.
# Lesson 07 counts all of it. But we can look at the clock already, on your device and with the models that belong to it:

# %% tags=["nbval-ignore-output"]
fixed = dict(max_new_tokens=40, temperature=0, ignore_eos=True)  # every run generates as many tokens
ways = {
    "plain": lambda: ms.generate(timed, question, **fixed),
    "with drafts of 4": lambda: ms.speculate(timed, question, ms.drafters.Model(timed_draft), k=4, **fixed),
}
for way, time in measure.interleaved_times(ways, repeat=5, device=device).items():
    print(f"{timed.name}, {way}: {time.rate(40).median:.0f} tokens per second")

# %% [markdown]
# If the second number is the smaller one, nothing is broken. It happens where a pass of the small model takes nearly as
# long as one of the target, which is common with models this small on a CPU, and lesson 07 finds the cause in numbers.

# %% [markdown]
# ## Where the course goes
#
# | | lesson | afterwards you can |
# |---|---|---|
# | 00 | **start here** | say why a guess helps |
# | 01 | [why decoding is slow](01_why_decoding_is_slow.ipynb) | tell whether memory or arithmetic limits a forward pass, for a model and a machine |
# | 02 | [kv cache](02_kv_cache.ipynb) | say what the cache saves, compute its size, rewind it |
# | 03 | [paged blocks](03_paged_blocks.ipynb) | keep the caches of many requests in one memory and waste little of it |
# | 04 | [continuous batching](04_continuous_batching.ipynb) | schedule requests that arrive and finish at every step |
# | 05 | [draft and verify](05_draft_and_verify.ipynb) | write the loop you saw above, cache included |
# | 06 | [rejection sampling](06_rejection_sampling.ipynb) | write the sampler, and prove that it keeps the target's distribution |
# | 07 | [how fast](07_how_fast.ipynb) | predict the speed-up, choose the draft length, say when speculation does not pay |
# | 08 | [drafters](08_drafters.ipynb) | choose among seven ways to draft |
# | 09 | [medusa](09_medusa.ipynb) | train extra heads and verify a tree of draft tokens |
# | 10 | [eagle and dflash](10_eagle_and_dflash.ipynb) | draft from the target's own hidden states |
# | 11 | [speculation in a server](11_speculation_in_a_server.ipynb) | combine speculation with paging and batching, and see how a large batch uses up the gain |
# | 12 | [fewer bytes](12_fewer_bytes.ipynb) | quantise weights, compute attention tile by tile |
# | 13 | [near the limit](13_near_the_limit.ipynb) | say where a GPU's time goes, and bring decoding close to its bandwidth |
# | 14 | [is it really exact?](14_is_it_really_exact.ipynb) | test a sampler, and tell rounding from a bug |
# | 15 | [the frontier](15_the_frontier.ipynb) | verify blocks, draft across vocabularies, share one budget in a batch |
# | 16 | [beyond one gpu](16_beyond_one_gpu.ipynb) | split a model over several devices |
# | 17 | [interview day](17_interview_day.ipynb) | explain all of it to somebody who asks back |
# | | appendix: [scaling laws](appendix_scaling_laws.ipynb) | say how large a model should be for its training compute |
#
# If you meet a word that you do not know, look it up in the [glossary](../docs/glossary.md). The
# [syllabus](../docs/syllabus.md) has a picture of which lesson needs which.

# %% [markdown]
# ## Choose a path
#
# **On your own.** Take the lessons in order, one per sitting, and commit to every prediction before you run the next
# cell.
#
# **With an interview in a week.** Start with 01, 02 and 05. Then take 06, and write its proof on paper once without
# looking.
#
# **With a class.** The course fills six weeks with two sessions per week, of which some take two lessons together. Its
# homework checks itself.
#
# All three paths are planned day by day in the [syllabus](../docs/syllabus.md).

# %% [markdown]
# ## In production
#
# Speculative decoding is part of the servers you may have used. In vLLM it is switched on with `speculative_config`, in
# SGLang with `--speculative-algorithm`, and in TensorRT-LLM again with a `speculative_config`. Hugging Face
# transformers calls it assisted generation: `generate(…, assistant_model=draft)`. The names prefill and decode are used
# nearly everywhere; TensorRT-LLM says context phase and generation phase.

# %% [markdown]
# ## Check yourself
#
# <details><summary>An output of 200 tokens follows a prompt of 50 tokens. How many forward passes does plain
# autoregressive decoding take?</summary>
#
# It takes 200. The first pass processes the whole prompt and gives the first new token, and each later pass gives one
# more.
# </details>
#
# <details><summary>Why is a pass over five tokens not five times as slow as a pass over one?</summary>
#
# Part of its cost does not depend on the number of tokens. In a large dense model that is reading the weights, once per
# pass and for all of its tokens; in a tiny model it is also overhead, such as the start of each operation.
# </details>
#
# <details><summary>A drafter guesses four tokens. The first two are right and the third is wrong. The fourth happens to be
# what the target prefers at that position of the guess. How many tokens does the pass give?</summary>
#
# It gives three: two accepted tokens and the correction. The fourth token was judged as the continuation of a wrong
# third token, so it has to be discarded.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Leviathan, Kalman, Matias, 2023: *Fast inference from transformers via speculative decoding*
#   ([arXiv:2211.17192](https://arxiv.org/abs/2211.17192)): the idea of this lesson in full; sections 1 and 2 can be
#   read now. What we call k is γ in this paper.
# - Chen et al., 2023: *Accelerating large language model decoding with speculative sampling*
#   ([arXiv:2302.01318](https://arxiv.org/abs/2302.01318)): the same sampler, found independently and tried on a 70B
#   model.
# - Stern, Shazeer, Uszkoreit, 2018: *Blockwise parallel decoding for deep autoregressive models*
#   ([arXiv:1811.03115](https://arxiv.org/abs/1811.03115)): the greedy ancestor of the idea.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - [01 Why decoding is slow](01_why_decoding_is_slow.ipynb): where the time of a forward pass goes, on your machine and
#   on others.
# - In a terminal, `minispec demo` shows the same loop generating a story, with the speed-up predicted and measured.
