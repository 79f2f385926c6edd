# %% [markdown]
# # Drafters
#
# *Time:* 40 minutes · *Before this:* [07 How fast](07_how_fast.ipynb) · *Practice:* [exercises 08](../exercises/08_drafters.ipynb)
#
# The verifier does not ask where a guess comes from. So anything may guess: a lookup table, a small model, half of the
# target, a rounded copy of it, two drafters on top of each other, or the target itself on the side. This lesson puts
# seven ways to guess behind one verifier and compares what is left to compare: how often they are right, and what they
# cost.
#
# You will be able to
#
# - say what each drafter reads, what it costs, and on which text it wins;
# - show that none of them can change the output;
# - explain why a quantised copy agrees so well and gains so little;
# - say what staging improves, and what it cannot;
# - choose the draft's temperature.

# %%
import torch

import minispec as ms
from minispec import theory
from minispec.bench import measure
from minispec.bench import temperature as by_temperature
from minispec.bench.prompts import STORIES
from minispec.course import viz
from minispec.exact import cascade_distribution, emitted_distribution
from minispec.sampling import Sampling

D = ms.drafters

# %% [markdown]
# ## What a drafter is
#
# One method matters: [`propose`](../minispec/drafters/base.py). It sees the tokens so far and returns a `Draft`: up to
# $k$ tokens, and the law each was drawn from. A drafter that draws nothing, but looks up or takes its favourite, leaves
# the law out: it is one-hot.
#
# The cheapest drafter has no model at all. [`NGram`](../minispec/drafters/ngram.py) looks for an earlier place where the
# last few tokens stood, and proposes what followed there. This is called **prompt lookup**.

# %%
target = ms.load("micro", device="cpu")
draft = ms.load("micro-draft", device="cpu")


def ask(drafter, text: str, k: int = 4) -> str:
    """What a drafter proposes after a text."""
    context = D.Context(0, target.encode(text), Sampling(0), torch.Generator())
    [proposal] = drafter.propose([context], k)
    return target.decode(proposal.tokens)


lookup = "The red hen sat on the gate. The dog ran to the red"
print("n-gram:     ", repr(ask(D.NGram(), lookup)))
print("small model:", repr(ask(D.Model(draft), "Once upon a")))
print("n-gram:     ", repr(ask(D.NGram(), "Once upon a")))

# %% [markdown]
# Nothing in "Once upon a" has occurred before, so the lookup has nothing to say. It then drafts nothing, and the cycle
# is a plain pass: no gain and no loss.
#
# [`Suffix`](../minispec/drafters/suffix.py) does the same with statistics. It keeps a trie of everything written, weighs
# *all* earlier occurrences of *every* matching suffix, and drafts far when it is sure. It can also learn from finished
# answers. Here it writes the same story twice.

# %%
suffix = D.Suffix(memory=10)
for turn in ("first", "second"):
    out = ms.speculate(target, "Once upon a time", suffix, k=8, max_new_tokens=30)
    print(f"{turn} time: {out.trace.target_passes} passes for {len(out.tokens)} tokens")

# %% [markdown]
# A server that is asked similar things all day lives from that.

# %% [markdown]
# ## Seven drafters, one verifier
#
# | drafter | who guesses | reads for one guess |
# |---|---|---|
# | [`NGram`](../minispec/drafters/ngram.py) | the text itself, its latest match | nothing |
# | [`Suffix`](../minispec/drafters/suffix.py) | the text, by frequency | nothing |
# | [`DraftModel`](../minispec/drafters/model.py), typed `drafters.Model` | a small model of the same tokenizer | its weights |
# | [`EarlyExit`](../minispec/drafters/early_exit.py) | the target's first layers, then its own head | those layers and the head |
# | [`Quantized`](../minispec/drafters/quantized.py) | the target in 8 or 4 bits | half or a quarter of the target |
# | [`Cascade`](../minispec/drafters/cascade.py) | a tiny drafter, corrected by the small model | the small model, but less often |
# | [`Lookahead`](../minispec/drafters/lookahead.py) | the target, while it verifies | nothing more, but each pass is wider |
#
# Lessons 09 and 10 add heads that are trained on the target's hidden states.


# %%
def make_drafters(target, draft) -> dict:
    return {
        "n-gram": D.NGram(),
        "suffix": D.Suffix(),
        "small model": D.Model(draft),
        "early exit": D.EarlyExit(target),
        "int8 copy": D.Quantized(target, bits=8),
        "int4 copy": D.Quantized(target, bits=4, group=32),
        "staged": D.Cascade(D.NGram(), draft),
        "lookahead": D.Lookahead(target),
    }


verse = "They said, \"Emma, you're a bird! You're a bird! You're a bird!\" Emma's friends were all excited. "
texts = {
    "free story": "Once upon a time, there was a king named Max.",
    "repetitive": "The first duck said hello. The second duck said hello. The third duck",
    "copying": 3 * verse + "They",
}
print({kind: len(target.encode(prompt)) for kind, prompt in texts.items()})

# %% [markdown]
# `micro` only continues stories, so "copying" is a verse that it goes on repeating once it has read it three times.
# Large models copy whenever they edit code, quote or summarise.

# %% [markdown]
# ## Exactness does not depend on the drafter
#
# Greedy first, in float64, where no rounding can tip a balance. Every drafter has to end up with the tokens that plain
# decoding writes.

# %%
exact = {name: ms.load(name, device="cpu", dtype=torch.float64) for name in ("micro", "micro-draft")}
plain = ms.generate(exact["micro"], texts["free story"], max_new_tokens=30)
runs = {}
print(f"{'':<12} same text   passes   drafted   accepted   α")
for name, drafter in make_drafters(exact["micro"], exact["micro-draft"]).items():
    run = ms.speculate(exact["micro"], texts["free story"], drafter, k=4, max_new_tokens=30)
    runs[name] = run.trace
    drafted = sum(len(cycle.drafted) for cycle in run.trace.cycles)
    accepted = sum(cycle.accepted for cycle in run.trace.cycles)
    same = run.tokens == plain.tokens
    passes, alpha = run.trace.target_passes, run.trace.acceptance_rate
    print(f"{name:<12} {same!s:<9} {passes:8} {drafted:9} {accepted:10}   {alpha:.2f}")

# %% [markdown]
# The text is the same eight times. Only the number of passes differs.
#
# How bad may a drafter be? Here is one that says the same word for ever. Writing a drafter is writing one method.


# %%
class Parrot(D.Drafter):
    """Proposes one token, k times."""

    def __init__(self, token: int):
        self.token = token

    def propose(self, contexts, k):
        return [D.Draft([self.token] * k) for _ in contexts]


[word] = target.encode(" the")
run = ms.speculate(exact["micro"], texts["free story"], Parrot(word), k=4, max_new_tokens=30)
print("same text:", run.tokens == plain.tokens)
print("passes:", run.trace.target_passes, "of 30")
print("accepted:", sum(cycle.accepted for cycle in run.trace.cycles))

# %% [markdown]
# A hopeless drafter costs time and nothing else. With sampling it is the law that stays, by the theorem of lesson 06.
# The one thing a drafter must not do is to misreport the law $q$ it drew from.

# %% [markdown]
# ## Predict
#
# Thirty tokens of the copied verse, four drafts a pass. Plain decoding takes 30 passes, and no chain of four can do it in
# fewer than 6.

# %% tags=["nbval-ignore-output"]
guess_copy = viz.predict("How many passes does the n-gram drafter need for 30 copied tokens?", "passes")
guess_copy

# %% [markdown]
# ## Run
#
# The same race over three kinds of text. [`run_race`](../minispec/course/viz/race.py) lets all of them write in turns and keeps
# the median run of each: its trace, with the seconds of every cycle.

# %% tags=["spoiler", "nbval-ignore-output"]
race = viz.run_race(target, make_drafters(target, draft), texts, k=4, new_tokens=30, repeat=3)
for kind in texts:
    passes, seconds = race.winners(kind, "passes"), race.winners(kind, "seconds")
    print(f"{kind:<11} fewest passes: {', '.join(passes)};  fastest here: {', '.join(seconds)}")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler"]
print("n-gram, passes for 30 tokens:")
for kind in texts:
    print(f"  {kind:<11} {race.runners[kind]['n-gram'].finish('passes')}")

# %% tags=["spoiler", "nbval-ignore-output"]
guess_copy.reveal(race.runners["copying"]["n-gram"].finish("passes"))

# %% [markdown]
# ## Play: the drafter race
#
# Each cell is a token, each gap a pass of the target. Press play, or focus the slider and use the arrow keys.

# %% tags=["nbval-ignore-output"]
viz.drafter_race(race)

# %% [markdown]
# Try this:
#
# 1. Count *passes* over the free story. The int8 copy wins. Now count *time*. Where is it?
# 2. Switch to copying. The two lookups were the last over the free story. Where are they now?
# 3. Compare the lanes of the small model and of staged, pass by pass. Where do they differ?

# %% tags=["nbval-ignore-output"]
viz.drafter_race_figure(race, "seconds")

# %% [markdown]
# Two clocks, two orders. Passes tell how well a drafter agrees with the target. Time also asks what it cost to agree.
# Times belong to this machine: on a CPU with a tiny model, Python itself is a large part of every pass. And our quantised
# copies compute in floats (their acceptance is real, their speed is not). So let us count what a large model on a GPU
# would feel: bytes.

# %% [markdown]
# ## What each costs
#
# A memory-bound pass takes as long as its weights take to be read. So
# $c = \text{bytes the draft reads per token} \,/\, \text{bytes the target reads}$,
# which is [`draft_cost`](../minispec/theory.py). We let the target be stored in 16 bits a weight.

# %%
N = measure.weight_bytes(target) / 4  # weights that a pass reads; float32 has 4 bytes
cost = {
    "n-gram": 0.0,
    "suffix": 0.0,
    "small model": theory.draft_cost(measure.weight_bytes(draft) / 4, N),
    "early exit": theory.draft_cost(measure.weight_bytes(D.EarlyExit(target).draft) / 4, N),
    "int8 copy": theory.draft_cost(theory.quantized_bytes(N, bits=8, group=288), 2 * N),
    "int4 copy": theory.draft_cost(theory.quantized_bytes(N, bits=4, group=32), 2 * N),
    "lookahead": 0.0,
}
print("free story, k = 4, v = 1")
for name, c in cost.items():
    tokens = runs[name].tokens_per_cycle
    gain = theory.cycle_speedup(tokens, 4, c)
    print(f"{name:<12} c = {c:.2f}   {tokens:.2f} tokens a pass   speed-up {gain:.2f}")

# %% [markdown]
# The copy that is right every time is far behind the small model. Acceptance is not its problem; cost is.
#
# (Right *every* time? `micro` is stored in 8 bits, one scale per channel. Its int8 copy is the very same model. Lesson 12
# looks at the grid.)
#
# For lookahead $c = 0$ hides something. It drafts in the target's own pass, which grows wider: a window of guesses, and
# the branches under test.

# %%
lookahead = D.Lookahead(target)
wide = 1 + lookahead.max_tree_nodes(k=4) + lookahead.scratch_slots
print(f"up to {wide} tokens a pass, instead of {1 + 4}")
print(f"free on an H200 up to {theory.free_tokens(theory.H200):.0f} tokens for one request")
print(f"with 16 requests up to {theory.free_tokens(theory.H200, batch=16):.0f} each")

# %% [markdown]
# ## Predict
#
# A quantised copy of a large model, INT8: $c = 0.5$. Say that 90 % of its guesses are accepted, and that you choose the
# best draft length.

# %% tags=["nbval-ignore-output"]
guess_int8 = viz.predict("What is the best speed-up with an INT8 copy as draft (α = 0.9, c = 0.5)?", "×")
guess_int8

# %% [markdown]
# ## Run

# %% tags=["spoiler"]
for name, c in (("INT8", 0.5), ("INT4", 0.25), ("a model of a tenth", 0.1)):
    k = theory.best_k(0.9, c)
    print(f"{name:<19} c = {c:<5} best K = {k}   speed-up {theory.best_speedup(0.9, c):.1f}")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
guess_int8.reveal(theory.best_speedup(0.9, 0.5))

# %% [markdown]
# The claim that a quantised copy makes decoding two or three times as fast is only near the truth for INT4. Even then one
# should ask: if the 4-bit model is good enough to be right nine times in ten, why not serve it alone?
#
# Early exit has the same trouble. Its cost is the share of the layers it keeps, plus the head.

# %%
print("layers   c      α      speed-up at k = 4")
for layers in (1, 3, 5):
    drafter = D.EarlyExit(exact["micro"], layers)
    trace = ms.speculate(exact["micro"], texts["free story"], drafter, k=4, max_new_tokens=30).trace
    c = theory.draft_cost(measure.weight_bytes(drafter.draft), measure.weight_bytes(exact["micro"]))
    gain = theory.cycle_speedup(trace.tokens_per_cycle, 4, c)
    print(f"{layers:<7} {c:.2f}   {trace.acceptance_rate:.2f}   {gain:.2f}")

# %% [markdown]
# Untrained, the head meets a residual stream it was not made for. Few layers are cheap and wrong; many are right and
# dear. A small trained exit ([`train_exit`](../minispec/drafters/early_exit.py)) moves the balance. Lessons 09 and 10
# train more than that.

# %% [markdown]
# ## Staging: the last stage sets α
#
# A cascade puts a drafter in front of the drafter. The n-gram guesses, the small model accepts and corrects, and *its*
# output goes to the target. By the same theorem that output follows the small model's law exactly. To the target
# nothing has changed: $q$ is the small model's law, and
# $\alpha = \sum \min(p, q)$ cannot know who guessed first.
#
# What changes is how many passes the small model needs for its draft. We count them.


# %%
def small_passes(drafter, kind: str) -> tuple[int, int, float]:
    """Passes of the small model, tokens it drafted, and the target's α."""
    count = []
    layer = exact["micro-draft"].transformer.layers[0]
    listener = layer.register_forward_hook(lambda *_: count.append(1))
    trace = ms.speculate(exact["micro"], texts[kind], drafter, k=4, max_new_tokens=30).trace
    listener.remove()
    return len(count), sum(len(cycle.drafted) for cycle in trace.cycles), trace.acceptance_rate


for kind in ("free story", "copying"):
    for name, drafter in (
        ("small model", D.Model(exact["micro-draft"])),
        ("staged", D.Cascade(D.NGram(), exact["micro-draft"])),
    ):
        passes, drafted, alpha = small_passes(drafter, kind)
        print(f"{kind:<11} {name:<12} α = {alpha:.3f}   {passes / drafted:.2f} small passes a draft")

# %% [markdown]
# The acceptance is the same to the last digit. The cost falls where the n-gram is any good.
# [`cascade_distribution`](../minispec/exact.py) says it without sampling: three laws over four tokens, composed exactly.

# %%
p, middle, tiny = [0.5, 0.2, 0.2, 0.1], [0.4, 0.4, 0.1, 0.1], [0.0, 0.0, 0.0, 1.0]
corrected = emitted_distribution(middle, tiny)  # the tiny drafter only ever says token 3
print("out of the middle model:", [round(x, 3) for x in corrected.tolist()])
print("out of the target:      ", [round(x, 3) for x in cascade_distribution(p, middle, tiny).tolist()])
print("α at the target:", round(theory.acceptance(p, middle), 3))

# %% [markdown]
# So staging pays where the middle model is dear. With $c = 0.2$ and an inner speed-up of 1.6, at α = 0.8
# ([`staged_cost`](../minispec/theory.py)):

# %%
for c in (0.2, theory.staged_cost(0.2, 1.6), 0.02, theory.staged_cost(0.02, 1.6)):
    print(f"c = {c:<7.4f} best speed-up {theory.best_speedup(0.8, c):.2f}")

# %% [markdown]
# ## Temperature
#
# A target at a low temperature is easy to guess: most of its law sits on one token. Hot, it surprises. The draft has a
# temperature of its own, and nobody says it must be the same: the output follows the target whatever $q$ is, as long as
# $q$ is what was drawn from.
#
# [`measure`](../minispec/bench/temperature.py) lets the target write at each of its temperatures and computes
# $\sum \min(p, q)$ exactly at every token, for every temperature of the draft.

# %% tags=["nbval-ignore-output"]
prompts = [target.encode(text) for text in STORIES["stories"]]
ours, theirs = (0.0, 0.5, 1.0, 1.5), (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
grid = by_temperature.measure(target, draft, prompts, ours, theirs, new_tokens=32)
viz.acceptance_by_temperature(grid)

# %%
best = [max(row) for row in grid["acceptance"]]
zero = grid["acceptance"][0]
print("greedy target: a greedy draft is the best:", zero.index(max(zero)) == 0)
print("the hotter the target, the lower the best acceptance:", best == sorted(best, reverse=True))

# %% [markdown]
# The rings sit at or near the target's own temperature. Start there: at the top the curves are flat. What must match
# for *exactness* is nothing at all. Matching is for *acceptance*.

# %% [markdown]
# ## How to choose
#
# - **The answer repeats its question** (editing, quoting, retrieval): n-gram or suffix. Free, no training, no memory.
# - **The same questions all day**: suffix, with a memory.
# - **General text, and a small model of the family exists**: take it. Few layers beat few parameters, because a small
#   pass costs its depth. Its cache needs room too.
# - **General text, and you may train**: heads on hidden states (lessons 09 and 10).
# - **Nothing else at hand**: a 4-bit copy with real 4-bit kernels, or early exit with a trained exit.
# - **The small model is itself dear**: put an n-gram in front of it.
# - **One user and an idle GPU**: lookahead.
#
# Then measure $\alpha$, $c$ and $v$ on your own text, and let lesson 07 choose $K$.

# %% [markdown]
# ## In production
#
# vLLM takes a `speculative_config`. Its `method` is `"ngram"` (with `prompt_lookup_max` and `prompt_lookup_min`),
# `"suffix"`, `"draft_model"`, `"medusa"`, `"eagle3"`, `"mtp"` and a few more; `num_speculative_tokens` is our $k$.
# SGLang has `--speculative-algorithm` with `NGRAM`, `STANDALONE` (a small model) and `EAGLE3`.
# Hugging Face transformers calls the small model `assistant_model`, early exit `assistant_early_exit`, and prompt lookup
# `prompt_lookup_num_tokens`. TensorRT-LLM had lookahead in its TensorRT backend, which current versions have dropped.
#
# vLLM and transformers have one verify path for all drafters, as here. A new one is a new proposer, or in transformers a
# new `CandidateGenerator`.

# %% [markdown]
# ## Check yourself
#
# <details><summary>A drafter's acceptance doubles after an update of the draft. Does the output change?</summary>
#
# No. With greedy decoding the tokens are the same, with sampling the law is. Only the number of passes changes. (With
# sampling, a given seed may lead to other tokens of that law: the random numbers are used up differently.)
# </details>
#
# <details><summary>Why can a drafter with α = 0.6 beat one with α = 0.95?</summary>
#
# By its cost. The speed-up is E[N] / (k·c + v). A lookup at c = 0 pays nothing for its guesses; a copy of the target in
# 8 bits pays half a pass for each.
# </details>
#
# <details><summary>In a cascade, which law does the target need for its acceptance test: that of the tiny drafter, or
# that of the middle model?</summary>
#
# The middle model's, also for tokens that the tiny drafter proposed and the middle accepted. What comes out of the middle
# model follows the middle model's law.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Saxena, 2023: *Prompt lookup decoding* ([code](https://github.com/apoorvumang/prompt-lookup-decoding)): the shortest
#   drafter there is.
# - Oliaro et al., 2025: *SuffixDecoding: extreme speculative decoding for emerging AI applications*
#   ([arXiv:2411.04975](https://arxiv.org/abs/2411.04975)): drafts from a suffix tree over earlier outputs.
# - Fu et al., 2024: *Break the sequential dependency of LLM inference using lookahead decoding*
#   ([arXiv:2402.02057](https://arxiv.org/abs/2402.02057)): n-grams from the target's own parallel guesses.
# - Elhoushi et al., 2024: *LayerSkip: enabling early exit inference and self-speculative decoding*
#   ([arXiv:2404.16710](https://arxiv.org/abs/2404.16710)): early exits that were trained for it.
# - Spector, Ré, 2023: *Accelerating LLM inference with staged speculative decoding*
#   ([arXiv:2308.04623](https://arxiv.org/abs/2308.04623)): a drafter for the draft model.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - Practice: [exercises 08](../exercises/08_drafters.ipynb).
# - `minispec drill`: `proposers`, `choose-draft-model`, `distillation`, `ngram`, `suffix-decoding`, `early-exit`,
#   `quantised-draft`, `staged-speculation`, `lookahead`, `reduced-vocabulary`, `draft-cache-memory`,
#   `draft-ten-times-faster`.
# - Next lesson: [09 Medusa](09_medusa.ipynb), where the target grows heads that guess.
