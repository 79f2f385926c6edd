# %% [markdown]
# # 00 Start here
#
# *Time:* 40 minutes · *Before this:* some Python and PyTorch · *Practice:* in this lesson; [exercises 01](../exercises/01_why_decoding_is_slow.ipynb) follow the next one
#
# This course has one story. You run a chatbot on one machine. At first it has a single user, an impatient one; later it
# has many. Four numbers are on its dashboard: **milliseconds per token**, **tokens per second** for all users together,
# how much of the machine is **busy**, and how many **users** it serves at once. Every lesson is about one of these
# numbers and says which. This one takes the first reading, and for one kind of request it cuts the milliseconds to less
# than half.
#
# You will be able to
#
# - make a model generate more than twice as fast for one kind of request, and predict when the same trick does not pay;
# - say how one forward pass can check several tokens;
# - write the rule that decides how far a guess is right, and run a decoder on it.
#
# If you would rather watch before you read: `make site` builds a page, `site/live.html`, on which a small model guesses and
# a larger one checks, in your browser.
#
# If the first cell fails, the package is not installed yet: the [README](../README.md) says how.

# %%
import torch

import minispec as ms
from minispec import measure
from minispec.drafters import NGram
from minispec_course import viz
from minispec_course.check import yours
from minispec_course.labs.pairs import course_pair, where

# %% [markdown]
# ## The chatbot
#
# On a CPU the bot is `micro`, a small model trained on stories that comes with the package. On a GPU it is
# [SmolLM2](https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct), which is downloaded once. Timings use your
# GPU if there is one; the environment variable `MINISPEC_DEVICE` overrides that, and
# [the page for GPU owners](../docs/gpu.md) says what to expect.

# %% tags=["nbval-ignore-output"]
device = ms.device()
bot, _ = course_pair(device)
print(f"{bot.name}, {bot.num_parameters / 1e6:.1f} million parameters, on {where(device)}")

# %% [markdown]
# ## A win first
#
# A language model generates one **token** at a time, a piece of text such as `" bird"`, and each token costs one
# **forward pass**, a run through the whole model. That is *plain* decoding. Our user pastes a text that repeats itself,
# like a song with a chorus, and asks for more of it. So most of the answer is already in the question, and a cheap
# program can guess: it looks up where the last few tokens occurred before, and proposes the tokens that followed them.
# The model then checks up to four proposed tokens in a single pass.
#
# The next cell alternates between the two, five runs each. (`temperature=0` means that the model always takes its most
# likely token.)

# %% tags=["nbval-ignore-output"]
CHORUS = "They said, \"Emma, you're a bird! You're a bird! You're a bird!\" Emma's friends were all excited. "
fixed = dict(max_new_tokens=96, temperature=0, ignore_eos=True)  # ignore_eos: all 96, even if the model would stop


def compare(prompt: str, k: int = 4) -> tuple[dict, dict]:
    """Time plain decoding and drafts of up to k tokens on a prompt: the times, and an output of each."""
    ways = {
        "plain": lambda: ms.generate(bot, prompt, **fixed),
        "n-gram drafts": lambda: ms.speculate(bot, prompt, NGram(), k=k, **fixed),
    }
    times = measure.interleaved_times(ways, repeat=5, device=device)
    for name, time in times.items():
        low, middle, high = (1e3 * seconds / 96 for seconds in (time.low, time.median, time.high))
        print(f"{name:13s} {middle:.2f} ms per token, the median of five runs from {low:.2f} to {high:.2f}")
    print(f"{times['plain'].median / times['n-gram drafts'].median:.2f} times as fast")
    return times, {name: way() for name, way in ways.items()}


times, outputs = compare(3 * CHORUS + "They")
print("the same tokens:", outputs["plain"].tokens == outputs["n-gram drafts"].tokens)

# %% [markdown]
# Here both give the same text. (In low precision a pass over five tokens can round differently from five passes over
# one, which may change a token: lesson 14.) What differs is how many tokens each pass gives:

# %% tags=["nbval-ignore-output"]
viz.race(bot, outputs)

# %% [markdown]
# This is **speculative decoding**: something cheap proposes a **draft** of a few tokens, and the model, now called the
# **target**, checks all of them in one pass. Whatever writes the draft is the **drafter**. This one looks up the last n
# tokens, an **n-gram**, in the text so far; that is also called *prompt lookup*. It has no weights (learned parameters)
# at all, and real servers use it for code edits and summaries.
#
# ### Yours: another prompt
#
# Run the cell twice as it is, to see how much timings move by themselves. Then change the text. What makes the gain
# larger, and what makes it smaller?

# %% tags=["nbval-ignore-output"]
_, own = compare(2 * "The cat sat on the mat. The dog sat on the mat. " + "The")
viz.race(bot, own)

# %% [markdown]
# Look at what the drafts copy. Often it is the bot's own earlier sentences: the lookup searches everything so far,
# prompt and answer, so a model that repeats itself is easy to draft for.
#
# ## A new story
#
# Now the user asks for a new story, with the same drafts of up to four tokens, and then of up to eight. Before the bot
# answers, guess the gain with four. This course asks for a few: type a number and press *commit*. A guess that you
# have committed to is one you learn from, right or wrong.

# %% tags=["nbval-ignore-output"]
story_guess = viz.predict("A new story: drafts of up to 4 are how many times as fast as plain decoding?", "times")
story_guess

# %% tags=["spoiler", "nbval-ignore-output"]
STORY = "Once upon a time, there was a king named Max."
story_times, story = compare(STORY)
story_guess.reveal(story_times["plain"].median / story_times["n-gram drafts"].median)
print("\nand with drafts of up to eight tokens:")
_ = compare(STORY, k=8)

# %% tags=["spoiler", "nbval-ignore-output"]
cycles = story["n-gram drafts"].trace.cycles
proposed, accepted = sum(len(cycle.drafted) for cycle in cycles), sum(cycle.accepted for cycle in cycles)
empty = sum(not cycle.drafted for cycle in cycles)
print(f"{len(cycles)} passes, {empty} without a draft; {proposed} tokens drafted, {accepted} accepted")
viz.race(bot, story)

# %% [markdown]
# With little to copy the gain is gone: in many passes the lookup finds nothing, and most of what it does propose is
# wrong, which costs time to check. Drafts twice as long cost more and are no better, so they lose. Could we have known
# that before we ran it? How good must a draft be, and how long may it get? Keep this question. Lesson 07 turns it into
# a formula and checks the formula against the clock.
#
# ## How one pass checks a draft
#
# First, what does a pass compute? The model sees tokens as numbers. At *every* position of its input it gives a score
# for each token of its vocabulary, the **logits**, and they score the token that comes *next*.
#
# In the next part we count and compare instead of timing. Counts run on the CPU, so yours match ours. The numbers are
# in float64, so that rounding practically never decides a token.

# %%
target = ms.load("micro", device="cpu", dtype=torch.float64)
prompt = target.encode("Once upon a time")
print({token: target.decode([token]) for token in prompt})

# %% [markdown]
# Suppose that someone guesses how the story goes on. We append the guess to the prompt and run the model once. The
# logits at the last token of the prompt give the model's choice for the first new token, the logits at the first
# guessed token give its choice for the second, and so on.

# %%
draft = target.encode(", there was a big dog")
logits = target.transformer(torch.tensor([prompt + draft])).logits[0]  # [tokens, vocabulary]
choices = logits[len(prompt) - 1 :].argmax(-1).tolist()  # after the prompt, and after each guessed token
print("draft:  ", [target.decode([token]) for token in draft])
print("choices:", [target.decode([token]) for token in choices])

# %% [markdown]
# Each choice is what the model would have generated at that position, *provided that everything before it is right*. So
# go from the left, and stop at the first difference. The rest of the draft continues a token that is wrong, and the
# choices there mean nothing.
#
# ### Yours: how far is the draft right?
#
# From this lesson on you write the functions that matter. If yours is wrong, you are shown the smallest case that
# breaks it.
#
# `draft` is a list of tokens and may be empty. `choices` has one element more. Return how many tokens at the beginning
# of the draft are right.


# %%
@yours("00.matches")
def matches(draft: list[int], choices: list[int]) -> int:
    """How many tokens at the beginning of the draft are the model's own choices."""
    ### BEGIN SOLUTION: count from the left, up to the first difference
    right = 0
    while right < len(draft) and draft[right] == choices[right]:
        right += 1
    return right
    ### END SOLUTION


# %%
right = matches(draft, choices)
print(f"{right} of {len(draft)} draft tokens are right")
print("this pass gives:", [target.decode([token]) for token in choices[: right + 1]])

# %% [markdown]
# The pass gives one token more than the draft had right. Where the draft went wrong, the model's own choice replaces
# it: the **correction**. Where all of it is right, the last logits hold a token beyond the draft: the **bonus**.
#
# ## A decoder that runs on your function
#
# That is all it takes. A simple version of the drafter is a few lines, and the loop below it asks for a draft, checks
# it with your `matches`, and adds what the pass gives. (It runs the model on the whole sequence each time; lesson 02
# builds the cache that avoids this.)


# %%
def lookup(tokens: list[int], k: int = 4) -> list[int]:
    """Up to k tokens that followed the last two, where those two occurred before."""
    for i in reversed(range(len(tokens) - 2)):
        if tokens[i : i + 2] == tokens[-2:]:
            return tokens[i + 2 : i + 2 + k]
    return []


song = target.encode(3 * CHORUS + "They")
print("the lookup proposes:", [target.decode([token]) for token in lookup(song)])


# %%
@torch.inference_mode()
def decode(prompt: list[int], count: int) -> tuple[list[int], int]:
    """Speculative decoding: `count` new tokens, and how many forward passes they took."""
    tokens, passes = list(prompt), 0
    while len(tokens) < len(prompt) + count:
        draft = lookup(tokens)
        logits = target.transformer(torch.tensor([tokens + draft])).logits[0]
        choices = logits[len(tokens) - 1 :].argmax(-1).tolist()
        tokens += choices[: matches(draft, choices) + 1]
        passes += 1
    return tokens[len(prompt) :][:count], passes


tokens, passes = decode(song, 60)
plain = ms.generate(target, song, max_new_tokens=60, temperature=0)
print("the same tokens as plain decoding:", tokens == plain.tokens)
print(f"{len(plain.tokens)} passes plain, {passes} with drafts: {60 / passes:.1f} tokens per pass")

# %% [markdown]
# Apart from stopping at an end token, this is a complete speculative decoder for one user at temperature 0. It checks
# drafts as blockwise parallel decoding does (Stern et al., 2018, arXiv:1811.03115), and its lookup is known as prompt
# lookup decoding (Saxena, 2023). With sampling the check is different (Leviathan et al., 2023, arXiv:2211.17192), and
# lesson 06 proves that the output then follows exactly the target's distribution. Lesson 05 puts the cache in and
# adds a draft model, and by lesson 08 you own a fast one.
#
# ## What makes it fast
#
# Fewer passes help only if a pass over five tokens does not take five times as long as a pass over one. It does five
# times the arithmetic. What does the song's race imply about the time?

# %% tags=["nbval-ignore-output"]
five_guess = viz.predict("A pass over 5 tokens takes how many times as long as a pass over 1?", "times")
five_guess

# %% tags=["spoiler", "nbval-ignore-output"]
one, five = measure.verify_curve(bot, tokens=(1, 5), repeat=51)
print(f"1 token: {1e3 * one.time.median:.2f} ms, 5 tokens: {1e3 * five.time.median:.2f} ms")
five_guess.reveal(five.ratio)
per_pass = 96 / len(outputs["n-gram drafts"].trace.cycles)
gain = times["plain"].median / times["n-gram drafts"].median
print(f"the song: {per_pass:.1f} tokens per pass / {five.ratio:.2f} = {per_pass / five.ratio:.1f}, measured {gain:.1f}")

# %% [markdown]
# **A pass over five tokens takes far less than five times as long as a pass over one**, although it does five times the
# work. The machine must be busy with something that does not depend on the number of tokens. Lesson 01 finds out what.
# (Run the cell again if your ratio is near five: another program may have disturbed it.)
#
# The last line compares the measured gain with what the passes alone would give. It falls short of that, because both
# ways also pay for a first pass over the whole prompt, and the lookup and its loop take time.
#
# ## The dashboard
#
# Here is the first reading, with plain decoding for one user. It is what the next lessons have to beat, and your
# machine remembers the numbers from lesson to lesson.

# %% tags=["nbval-ignore-output"]
ms_per_token = 1e3 * times["plain"].median / 96
viz.dashboard("00", ms_per_token=ms_per_token, tokens_per_second=1e3 / ms_per_token, users=1)

# %% [markdown]
# ## Where the course goes
#
# | | lesson | you write |
# |---|---|---|
# | 01 | [why decoding is slow](01_why_decoding_is_slow.ipynb) | bandwidth, intensity, the roofline |
# | 02 | [the KV cache](02_kv_cache.ipynb) | attention over a cache, its size, its rewind |
# | 03 | [paged blocks](03_paged_blocks.ipynb) | memory for many users |
# | 04 | [continuous batching](04_continuous_batching.ipynb) | a scheduler step |
# | 05 | [draft and verify](05_draft_and_verify.ipynb) | the loop with two models |
# | 06 | [rejection sampling](06_rejection_sampling.ipynb) | the sampler, and why it is exact |
# | 07 | [how fast](07_how_fast.ipynb) | the speed-up, predicted |
# | 08 | [drafters](08_drafters.ipynb) | a drafter of your own, in a race |
# | 09 | [medusa and trees](09_medusa.ipynb) | a tree of drafts and its mask |
# | 10 | [EAGLE, MTP and DFlash](10_eagle_and_dflash.ipynb) | drafting from hidden states |
# | 11 | [speculation in a server](11_speculation_in_a_server.ipynb) | speculation, paging and batching together |
# | 11b | [under load](11b_under_load.ipynb) | latencies, goodput, the draft length for a load |
# | 12 | [fewer bytes](12_fewer_bytes.ipynb) | quantisation |
# | 13 | [near the limit](13_near_the_limit.ipynb) | a step close to the bandwidth of a GPU |
# | 14 | [is it really exact?](14_is_it_really_exact.ipynb) | a test that finds your own bug |
# | 15 | [beyond the chain](15_beyond_the_chain.ipynb) | block verification, constraints |
# | 15b | [the frontier](15b_the_frontier.ipynb) | one budget for all users, a state that can be rewound |
# | 16 | [beyond one GPU](16_beyond_one_gpu.ipynb) | a split model |
# | 17 | [interview day](17_interview_day.ipynb) | answers for someone who asks follow-up questions |
# | | appendix: [scaling laws](appendix_scaling_laws.ipynb) | |
#
# **On your own:** take them in order, one per sitting. **With an interview in a week:** 01, 02, 05 and 06 first, and
# write the proof of 06 on paper once. **With a class:** six weeks, two sessions a week. The
# [syllabus](../docs/syllabus.md) plans all three day by day, and the [glossary](../docs/glossary.md) explains every
# word.
#
# ## In production
#
# Servers have this built in. vLLM takes `speculative_config={"method": "ngram", …}`, SGLang `--speculative-algorithm
# NGRAM`, and transformers `generate(…, prompt_lookup_num_tokens=4)`, or `assistant_model=…` for a draft model. A server
# calls the pass over the prompt **prefill** and the passes after it **decode**. In a terminal, `minispec demo` shows a
# draft model at work on a story, with the speed-up predicted and measured.
#
# ## Check yourself
#
# <details><summary>An output of 200 tokens follows a prompt of 50 tokens. How many forward passes does plain decoding
# take?</summary>
#
# It takes 200. The first pass processes the whole prompt and gives the first new token, and each later pass gives one
# more.
# </details>
#
# <details><summary>A draft has four tokens. The first two are right, the third is wrong, and the fourth equals the
# model's choice at its position. How many tokens does the pass give?</summary>
#
# It gives three: two right ones and the correction. The fourth token was judged as the continuation of a wrong third
# one, so it is discarded.
# </details>
#
# <details><summary>Why does a lookup win on the song and not on a new story?</summary>
#
# In the song every pass has a draft, and nearly all of it is right, so a pass gives several tokens. In a new story the
# lookup often finds nothing, and what it finds is mostly wrong. So a pass gives little more than one token, and the
# time spent checking is wasted.
# </details>
#
# ## Read the papers
#
# - Leviathan, Kalman, Matias, 2023: *Fast inference from transformers via speculative decoding*
#   ([arXiv:2211.17192](https://arxiv.org/abs/2211.17192)): sections 1 and 2 can be read now.
# - Chen et al., 2023: *Accelerating large language model decoding with speculative sampling*
#   ([arXiv:2302.01318](https://arxiv.org/abs/2302.01318)): found independently, and tried on a 70B model.
# - Stern, Shazeer, Uszkoreit, 2018: *Blockwise parallel decoding for deep autoregressive models*
#   ([arXiv:1811.03115](https://arxiv.org/abs/1811.03115)): the greedy ancestor of the idea.
#
# All papers: [the references](../docs/references.md).
#
# ## Next
#
# - [01 Why decoding is slow](01_why_decoding_is_slow.ipynb): what the machine is busy with.
# - Interview question (`minispec drill`): `ngram`.
