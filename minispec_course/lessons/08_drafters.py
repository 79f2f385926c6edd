# %% [markdown]
# # 08 Drafters
#
# *Time:* 60 minutes · *Before this:* [07 How fast](07_how_fast.ipynb) · *Practice:* [exercises 08](../exercises/08_drafters.ipynb)
#
# The chatbot's users want different things: one asks for a story, another for a small change in a long document. Your
# verifier of lesson 06 takes draft tokens from any source, as long as it is told the distribution $q$ that they were sampled
# from. So the question is **which drafter for which text**, and the dashboard shows the ms per token of the best one.
#
# Since the verifier fixes the output, drafters differ in how many tokens they get accepted per pass, and in what a draft
# token costs. You will write the cheapest drafter there is, and race it against six others.
#
# You will be able to
#
# - write prompt lookup from memory, and say on which text it wins;
# - say what each drafter computes and what limits it;
# - say what a drafter for the drafter improves, and what it cannot improve.

# %%
import json

import torch

import minispec as ms
from minispec import exact
from minispec.load.registry import BENCHMARKS
from minispec.verify import pick
from minispec_course import viz
from minispec_course.check import mine, yours
from minispec_course.labs import drafting
from minispec_course.labs.pairs import STORIES, course_pair, in_transformers, where

D = ms.drafters
target = ms.load("micro", device="cpu", dtype=torch.float64)
draft = ms.load("micro-draft", device="cpu", dtype=torch.float64)

# %% [markdown]
# ## Look it up
#
# Output often repeats what came before: a name, a line of code, a quotation. **Prompt lookup** (Saxena, 2023; vLLM calls it
# n-gram) needs no model at all. It takes the last few tokens, searches for an earlier occurrence of them, and proposes the
# tokens that followed it there.
#
# ### Yours: the lookup
#
# `text` is the list of all tokens so far. Try the last `n_max` tokens first, then fewer, down to one. Of several earlier
# occurrences take the latest, and return up to `k` tokens that follow it, or an empty list.


# %%
@yours("08.ngram")
def lookup(text: list[int], n_max: int, k: int) -> list[int]:
    """Up to k tokens that followed the latest earlier occurrence of the longest suffix."""
    ### BEGIN SOLUTION: the longest suffix first, and its occurrences from the latest to the earliest
    for n in range(min(n_max, len(text) - 1), 0, -1):
        for end in range(len(text) - 1, n - 1, -1):
            if text[end - n : end] == text[-n:]:
                return text[end : end + k]
    return []
    ### END SOLUTION


# %% [markdown]
# A drafter in minispec implements one method, [`propose`](../minispec/drafters/base.py). Yours does not sample: it could
# have proposed nothing else, so its $q$ is one-hot, and `Draft` lets you omit it.


# %%
class Yours(D.Drafter):
    def propose(self, sequences, k):
        return [D.Draft(lookup(list(sequence.tokens), 3, k)) for sequence in sequences]


for prompt in ("The red hen sat on the gate. The dog ran to the red", "Once upon a"):
    print(repr(prompt), "→", [target.decode([token]) for token in lookup(target.encode(prompt), 3, 4)])

# %% [markdown]
# In "Once upon a" no token occurs twice. Then there is no draft, and the cycle is a plain step. Here are three kinds of
# text. `micro` knows only stories, so the prompt for copying repeats a verse.

# %%
verse = "They said, \"Emma, you're a bird! You're a bird! You're a bird!\" Emma's friends were all excited. "
texts = {
    "free story": "Once upon a time, there was a king named Max.",
    "repetitive": "The first duck said hello. The second duck said hello. The third duck",
    "copying": 3 * verse + "They",
}

# %% tags=["nbval-ignore-output"]
guess_copy = viz.predict("Your drafter, k = 4: how many forward passes for 30 copied tokens? (Plain: 30.)", "passes")
guess_copy

# %% tags=["spoiler"]
counts = {}
for kind, prompt in texts.items():
    out = ms.speculate(target, prompt, Yours(), k=4, max_new_tokens=30)
    counts[kind] = out.trace.target_passes
    same = out.tokens == ms.generate(target, prompt, max_new_tokens=30).tokens
    print(f"{kind:<11} {counts[kind]:2d} forward passes, same tokens as plain decoding: {same}")

# %% tags=["spoiler", "nbval-ignore-output"]
guess_copy.reveal(counts["copying"])

# %% [markdown]
# Four draft tokens and the bonus make at most five tokens per pass, so 6 passes are the minimum, and your few lines come
# close to it. In the free story they find next to nothing.
#
# Hugging Face transformers has one as well, `prompt_lookup_num_tokens`. Does it need as many passes as yours?

# %% tags=["spoiler"]
theirs, copying = in_transformers(target), target.encode(texts["copying"])
with drafting.counted(theirs) as passes:
    ids = theirs.generate(torch.tensor([copying]), max_new_tokens=30, prompt_lookup_num_tokens=4, do_sample=False)
plain = ms.generate(target, copying, max_new_tokens=30)
print("same tokens:", ids[0, len(copying) :].tolist() == plain.tokens, " forward passes:", len(passes))

# %% [markdown]
# ## Seven drafters
#
# | drafter | where its tokens come from | what it reads per draft token |
# |---|---|---|
# | [`NGram`](../minispec/drafters/ngram.py): yours | the latest earlier occurrence | no weights |
# | [`Suffix`](../minispec/drafters/suffix.py) | the most frequent continuation, in this or earlier outputs | no weights |
# | [`DraftModel`](../minispec/drafters/model.py), in code `drafters.Model` | a small model | the small model |
# | [`EarlyExit`](../minispec/drafters/early_exit.py) | the target's first layers, then its LM head, which turns states into logits | those layers and the LM head |
# | [`Quantized`](../minispec/drafters/quantized.py) | the target in 4 or 8 bits | a quarter or half of a 16-bit target |
# | [`Cascade`](../minispec/drafters/cascade.py), *staged* below | a cheap drafter, verified by a small model | the small model, less often |
# | [`Lookahead`](../minispec/drafters/lookahead.py) | the target itself, in the verify pass | nothing, but every pass is wider |
#
# First all seven on four stories, greedily and in float64 (lessons 09 and 10 add trained heads):


# %%
def make_drafters(target, draft) -> dict:
    return {
        "yours": Yours(),
        "suffix": D.Suffix(),
        "small model": D.Model(draft),
        "early exit": D.EarlyExit(target),
        "int4 copy": D.Quantized(target, bits=4, group=32),
        "staged": D.Cascade(Yours(), draft),
        "lookahead": D.Lookahead(target),
    }


traces = drafting.compare(target, make_drafters(target, draft), STORIES["stories"][:4])

# %% [markdown]
# Why does yours emit only 1.36 tokens per pass with α = 0.62? α counts only drafted tokens, and in most cycles the lookup
# finds nothing, so compare lookups by tokens per pass. The int4 copy is right nine times out of ten, because rounding the
# weights seldom changes the most probable token. Early exit is wrong more often than not, because the LM head was trained
# on the state after all layers.
#
# ## The race
#
# What counts is time. The next cell runs all drafters in turn, for `micro` if your device is a CPU, for SmolLM2 if it is a
# GPU. A GPU computes in bfloat16, where rounding may decide between two nearly tied tokens (lesson 14), so we list the
# runs in which it did.

# %% tags=["nbval-ignore-output"]
timed, timed_draft = course_pair(ms.device())
print(f"{timed.name} on {where(timed.device)}")
prompts = {kind: [text] for kind, text in texts.items()}
race = drafting.race(timed, make_drafters(timed, timed_draft), prompts, k=4, new_tokens=30, repeat=3)
differ = [f"{name} ({kind})" for kind, rows in race["results"].items() for name in rows if not rows[name]["same_text"]]
print("runs whose tokens differ from plain decoding:", ", ".join(differ) or "none")
viz.drafter_speedups(race)

# %% tags=["nbval-ignore-output"]
winner = max(race["results"]["free story"].values(), key=lambda row: row["tokens_per_second"]["median"])
viz.dashboard("08", ms_per_token=1e3 / winner["tokens_per_second"]["median"])

# %% [markdown]
# On copying, a lookup beats every model, because its $c$ is nearly 0. On a CPU a wider pass is not free ($v > 1$), so a
# lookup that finds nothing useful even costs a little. The small model may win the free story although it lost in lesson
# 07, because this story is greedy and unusually easy: α = 0.92 (computed below). The int4 copy has no 4-bit kernel here, so
# its α is real and its speed is not.
#
# For a large model with proper kernels, we can estimate $c$ by counting the bytes that a pass reads. (Staged is missing: its
# $c$ depends on how often the lookup is right.)

# %%
print("stories, k = 4, v = 1")
for name, c in drafting.byte_costs(target, draft).items():
    tokens = traces[name].tokens_per_cycle
    print(f"{name:<12} c = {c:.2f}   {tokens:.2f} tokens per pass   speed-up {tokens / (4 * c + 1):.2f}")

# %% [markdown]
# - **Small model**: an optimistic estimate, because on a GPU a small model is limited by the latency of its layers more than
#   by its bytes.
# - **int4 copy**: $c$ is above a quarter, because every group of 32 parameters stores a scale. However long the draft, the
#   speed-up stays below $1/c$, the speed of serving the copy alone. If its output is good enough, do that.
# - **Early exit** runs 3 of the 6 layers and the LM head: expensive, and seldom right. LayerSkip (Elhoushi et al., 2024,
#   arXiv:2404.16710) trains the target for it.
# - **Lookahead**: $v = 1$ is a claim about an idle GPU, since its passes are six times as wide.
#
# ## A drafter for the drafter
#
# Staging puts your lookup in front of the small model (Spector and Ré, 2023, arXiv:2308.04623). The lookup guesses several
# tokens, the small model checks them in one pass, and what comes out is the draft for the target. `D.Cascade` does that for
# several guesses; you write the rule for one.
#
# ### Yours: one staged draft token
#
# `guess` was sampled from `tiny`. To the tiny drafter, the small model is a target like any other, with the distribution
# `middle`. Return the draft token, and the $q$ that the target has to be told. Your `accept_probability(p, q, token)` and
# `residual(p, q)` of lesson 06 are there, and `pick(distribution, random())` samples.

# %%
accept_probability, residual = mine("06.accept"), mine("06.residual")


@yours("08.cascade_distribution")
def cascade_draft(middle: torch.Tensor, tiny: torch.Tensor, guess: int, random) -> tuple[int, torch.Tensor]:
    """The token that the small model makes of a guess, and the distribution that this token follows."""
    ### BEGIN SOLUTION: the rule of lesson 06, with middle as the target; which distribution do emitted tokens follow?
    if random() < accept_probability(middle, tiny, guess):
        return guess, middle
    return pick(residual(middle, tiny), random()), middle
    ### END SOLUTION


# %% [markdown]
# Does the target accept more of these than of the small model's own draft tokens? Here is the exact distribution of your
# draft token if the tiny drafter always guesses token 3, and the $q$ that you report:

# %%
middle = torch.tensor([0.4, 0.4, 0.1, 0.1], dtype=torch.float64)
tiny = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
staged = exact.exact_distribution(lambda random: cascade_draft(middle, tiny, pick(tiny, random()), random)[0])
_, q = cascade_draft(middle, tiny, 3, lambda: 0.5)
print("small model:", middle.tolist(), " staged:", [round(staged[token], 3) for token in range(4)], " q:", q.tolist())

# %% [markdown]
# All three are the same, so α is the same. What staging can lower is the cost, the number of passes of the small model:

# %%
for kind in ("free story", "copying"):
    for name, drafter in (("small model", D.Model(draft)), ("staged", D.Cascade(Yours(), draft))):
        with drafting.counted(draft.transformer.layers[0]) as passes:
            trace = ms.speculate(target, texts[kind], drafter, k=4, max_new_tokens=30).trace
        drafted = sum(len(cycle.drafted) for cycle in trace.cycles)
        print(
            f"{kind:<11} {name:<12} α = {trace.acceptance_rate:.3f}, {len(passes) / drafted:.2f} passes per draft token"
        )

# %% [markdown]
# Fewer passes save time only if a pass is what costs. On a CPU staging may beat the small model on copying. On an H200, with SmolLM2 as
# the target, our staged drafter ran at 0.27 to 0.59 times the plain speed ([benchmarks](../docs/benchmarks.md)). There the
# small model drafts four tokens in one captured CUDA graph (one call replays all its launches; lesson 13), in little more
# than half a plain pass. The cascade launches each pass from Python and takes as long as 4 to 5. Staging pays when the middle
# model is expensive and a launch is not.
#
# ## Which text is accepted?
#
# The kind of text matters as much as the drafter. Spec-Bench (Xia et al., 2024, arXiv:2401.07851) has prompts of several
# tasks, MT-Bench for chat. First our SmolLM2, greedily, recorded on an H200: tokens per pass by task.

# %%
recorded = json.loads((BENCHMARKS / "acceptance.json").read_text(encoding="utf-8"))
tasks = ("math reasoning", "translation", "mt-bench", "summarization")
rows = {"small model, k = 4": "model:4", "n-gram, k = 10": "ngram:10", "EAGLE-3, tree of 60": "eagle"}
print(f"{'':20}", *(f"{task:>15}" for task in tasks))
for name, drafter in rows.items():
    rates = (recorded["results"][drafter]["groups"][task]["tokens_per_pass"] for task in tasks)
    print(f"{name:20}", *(f"{rate:15.2f}" for rate in rates))

# %% [markdown]
# A small model and an EAGLE-3 head do best on math and worst on summaries. The n-gram drafter needs something to repeat,
# which it finds in summaries and hardly in chat. The translation column is inflated: SmolLM2 often copies the German
# sentence or repeats itself, which helps the n-gram drafter most.
#
# Now a large target: Qwen3-8B, at temperature 1.

# %% tags=["nbval-ignore-output"]
guess_chat = viz.predict("EAGLE-3 on Qwen3-8B: 5.30 tokens per pass on GSM8K. And on MT-Bench?", "tokens per pass")
guess_chat

# %% tags=["spoiler"]
# DSpark (Cheng et al., 2026, arXiv:2607.05147), table 1: temperature 1
for text, of_drafter in drafting.QWEN3_8B.items():
    print(f"{text:17}", *(f"{name} {length:.2f}" for name, length in of_drafter.items()), sep="   ")

# %% tags=["spoiler", "nbval-ignore-output"]
guess_chat.reveal(drafting.QWEN3_8B["MT-Bench (chat)"]["EAGLE-3"])

# %% [markdown]
# From math to chat each drafter (lessons 10 and 15b) loses two fifths to half of its tokens per pass, and the best result on
# chat (3.72) is below the worst on math (5.30). So a speed-up quoted without its kind of text says little.
#
# ## Real prompts and random tokens
#
# Load generators often send random tokens, which need no data set. SPEED-Bench (Abramovich et al., 2026, arXiv:2604.09557)
# found that this overestimates throughput. Here are SmolLM2's tokens per pass after four real prompts and after four of
# random tokens (64 greedy tokens each), and along four outputs of 2,000 tokens, sampled at temperature 0.7. Four are few, so
# ignore small differences. The heads (lessons 09, 10 and 15b) draft trees of 60 tokens, except DSpark: its chain, which stops
# early, gets less accepted than DFlash's tree.

# %% tags=["nbval-ignore-output"]
viz.real_and_random(recorded)

# %% [markdown]
# After random tokens EAGLE and the lookups get more tokens accepted: at 1k EAGLE emits 4.3 tokens per pass instead of 3.1,
# the n-gram drafter 3.5 instead of 1.4. Medusa and DSpark get fewer at every length, DFlash 2 at all but the shortest, and the
# small model gains from 2k on. So a benchmark with random tokens says little about your traffic.
#
# With longer real prompts most drafters get fewer tokens accepted: EAGLE falls to 2.4 at 2k, and then stays near that. Along
# an output it rises from 2.8 to more than 5, probably because a target as small as SmolLM2 begins to repeat itself: the
# lookups gain as well.
#
# ## How to choose
#
# - **The output repeats its input** (editing, quoting): a lookup.
# - **Many requests resemble each other** (agents): suffix decoding (Oliaro et al., 2025, arXiv:2411.04975) with a memory of
#   earlier outputs, `D.Suffix(memory=10)`, which we have not measured.
# - **General text, and you may train**: heads on hidden states (lessons 09 and 10).
# - **General text, and a small model of the same family exists**: take it. Prefer few layers.
# - **A full batch**: draft less, or not at all (lesson 11b).
#
# Then measure α, $c$ and $v$ on your prompts, and let your `best_k` choose the draft length.
#
# ## In production
#
# vLLM's `speculative_config` has a `method`: `"ngram"` (with `prompt_lookup_max` and `prompt_lookup_min`), `"suffix"`,
# `"draft_model"`, `"medusa"`, `"eagle3"`, `"mtp"` and more. SGLang has `--speculative-algorithm` with `NGRAM`,
# `STANDALONE` (a small model) and `EAGLE3`. In transformers a small model is `assistant_model`,
# early exit `assistant_early_exit`.
#
# <details><summary>Go deeper: how does the target draft for itself in lookahead?</summary>
#
# It keeps guesses for the next few positions, at first arbitrary tokens (Fu et al., 2024, arXiv:2402.02057). Every pass also
# runs on them, and appends what the target predicts after each. A guess of four tokens goes into a pool of n-grams. When the
# last emitted token begins one of them, the rest is a draft. With 5 columns and 5 candidates a pass has up to 31 tokens
# instead of five.
# </details>
#
# <details><summary>Go deeper: can a draft model be trained for its target?</summary>
#
# Yes: by **distillation** on outputs that the target generated, so that $q$ moves towards $p$ where it matters (Zhou et al.,
# 2024, arXiv:2310.08461). `micro-draft` was [trained](../minispec/data/micro-draft/README.md) in this way.
# </details>
#
# ## Check yourself
#
# <details><summary>After an update of the draft model its acceptance rate doubles. Does the output change?</summary>
#
# No: greedy tokens stay the same, up to rounding, and sampled ones keep their distribution.
# </details>
#
# <details><summary>Why can a drafter with α = 0.6 beat one with α = 0.95?</summary>
#
# Its cost can be lower. A lookup has c ≈ 0, whereas an 8-bit copy of the target pays half a pass per draft token.
# </details>
#
# <details><summary>A load test with random tokens as prompts shows 5 tokens per pass. What will users see?</summary>
#
# You cannot tell: random tokens raise the acceptance of some drafters (EAGLE, lookups) and lower that of others. Replay real
# prompts.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Saxena, 2023: *Prompt lookup decoding* ([code](https://github.com/apoorvumang/prompt-lookup-decoding)): the shortest
#   drafter there is.
# - Oliaro et al., 2025: *SuffixDecoding: extreme speculative decoding for emerging AI applications*
#   ([arXiv:2411.04975](https://arxiv.org/abs/2411.04975)): drafts from a suffix tree over earlier outputs.
# - Spector, Ré, 2023: *Accelerating LLM inference with staged speculative decoding*
#   ([arXiv:2308.04623](https://arxiv.org/abs/2308.04623)): a drafter for the draft model.
#
# All papers: [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - A walk down the counts, and an early exit: [exercises 08](../exercises/08_drafters.ipynb).
# - Interview questions (`minispec drill`): `proposers`, `choose-draft-model`, `distillation`, `ngram`, `suffix-decoding`,
#   `early-exit`, `quantised-draft`, `staged-speculation`, `lookahead`, `reduced-vocabulary`, `draft-cache-memory`.
# - [09 Medusa](09_medusa.ipynb): additional heads on the target do the drafting.
