# %% [markdown]
# # 08 Drafters
#
# *Time:* 50 minutes · *Before this:* [07 How fast](07_how_fast.ipynb) · *Practice:* [exercises 08](../exercises/08_drafters.ipynb)
#
# Where should the draft tokens come from? The rejection sampler of lesson 06 needs only the tokens and the distribution
# $q$ they were sampled from, so any source will do: a search in the prompt, a small model, the first layers of the
# target, a quantised copy of it, two drafters in sequence, or the target itself. In this lesson seven such drafters
# feed the same verifier. Since the verifier fixes the output, what is left to compare is how often the target accepts a
# drafter's tokens and what they cost: the time to produce them, how wide they make the verification pass, and memory.
#
# You will be able to
#
# - say what each drafter computes, what it costs, and on which prompts it wins;
# - show that no drafter can change the output, and say on which condition;
# - compute what a quantised copy of the target can gain as a drafter, and say why it is accepted so often;
# - say what staging two drafters improves, and what it cannot improve;
# - choose the temperature of the draft model.

# %%
import torch

import minispec as ms
from minispec.exact import emitted_distribution
from minispec_course import viz
from minispec_course.labs import drafting
from minispec_course.labs.pairs import STORIES, course_pair, where

D = ms.drafters

# %% [markdown]
# ## What is a drafter?
#
# A drafter implements one method, [`propose`](../minispec/drafters/base.py). It is given the tokens so far and returns
# a `Draft`: up to $k$ tokens, together with the distribution $q$ that each was sampled from. Many drafters do not
# sample: they look a token up, or take the most probable one. Such a drafter leaves $q$ out, because it is **one-hot**:
# all of its probability lies on the token that was proposed.
#
# The cheapest drafter needs no model. **Prompt lookup** (Saxena, 2023) takes the last few tokens, searches for an
# earlier occurrence of them, and proposes the tokens that followed it there. In minispec, as in vLLM, it is called
# [`NGram`](../minispec/drafters/ngram.py). Below it may draft up to four tokens for each of two prompts, with a small
# model for comparison. The tokens of `micro` are often shorter than words: " hen sat" is four of them. (Whatever is counted
# in this lesson is counted with `micro` on the CPU, so that your numbers are those of the page; the race is timed on your
# device.)

# %%
target = ms.load("micro", device="cpu")
draft = ms.load("micro-draft", device="cpu")

hen = "The red hen sat on the gate. The dog ran to the red"
print("n-gram:     ", repr(drafting.ask(target, D.NGram(), hen)))
print("small model:", repr(drafting.ask(target, D.Model(draft), "Once upon a")))
print("n-gram:     ", repr(drafting.ask(target, D.NGram(), "Once upon a")))

# %% [markdown]
# In the prompt "Once upon a" no token occurs twice, so the lookup finds nothing and proposes nothing. The cycle (one
# draft–verify iteration) is then an ordinary forward pass of the target over one token, and costs only the search more.
#
# Prompt lookup trusts a single earlier occurrence. **Suffix decoding** (Oliaro et al., 2025, arXiv:2411.04975) counts all
# of them: [`Suffix`](../minispec/drafters/suffix.py) indexes the tokens so far, follows the most frequent
# continuation of a matching suffix, and drafts further the more certain that continuation is. With a `memory` it also
# learns from finished requests. The next cell sends the same prompt twice to see what that is worth.

# %%
suffix = D.Suffix(memory=10)
for turn in ("first", "second"):
    out = ms.speculate(target, "Once upon a time", suffix, k=8, max_new_tokens=30)
    print(f"{turn} request: {out.trace.target_passes} forward passes for {len(out.tokens)} tokens")

# %% [markdown]
# An identical request is the extreme case. Agents that repeat a workflow, and users who ask for small changes of the same
# document, produce outputs that share long stretches, and those stretches are drafted in the same way.

# %% [markdown]
# ## Seven drafters, one verifier
#
# | drafter | where its tokens come from | what it reads from memory per draft token |
# |---|---|---|
# | [`NGram`](../minispec/drafters/ngram.py) | the latest earlier occurrence of the last tokens | no weights |
# | [`Suffix`](../minispec/drafters/suffix.py) | the most frequent continuation, in this or earlier outputs | no weights |
# | [`DraftModel`](../minispec/drafters/model.py), typed `drafters.Model` | a small model with the target's tokenizer | the small model |
# | [`EarlyExit`](../minispec/drafters/early_exit.py) | the target's first layers, then its final norm and LM head | those layers and the LM head |
# | [`Quantized`](../minispec/drafters/quantized.py) | the target itself in 8 or 4 bits | half or a quarter of a 16-bit target |
# | [`Cascade`](../minispec/drafters/cascade.py) | a cheap drafter, verified by a small model | the small model, but less often |
# | [`Lookahead`](../minispec/drafters/lookahead.py) | the target, in the pass that verifies | nothing extra, but every pass is wider |
#
# The small model is the drafter of the original paper (Leviathan et al., 2023, arXiv:2211.17192). It needs the target's
# tokenizer here; methods for different vocabularies exist (Timor et al., 2025, arXiv:2502.05202). Early exit (Elhoushi et
# al., 2024, arXiv:2404.16710), staging (Spector and Ré, 2023, arXiv:2308.04623) and lookahead (Fu et al., 2024,
# arXiv:2402.02057) have papers of their own. Lessons 09 and 10 add heads that are trained on the target's hidden states.
#
# How can the target draft for itself, as in lookahead? At the next few positions it keeps guesses, at first arbitrary
# tokens. Every forward pass of the target also runs on these guesses, and what the target predicts after a guess is
# appended to it. So a guess grows by one token per pass. As soon as it has four tokens (with our settings), it is stored
# in a pool as an n-gram, and its oldest token is dropped. If the last emitted token is the first token of an n-gram in
# the pool, the rest of that n-gram is a draft for the next cycle. Many of these guesses are poor, and the verifier
# rejects them like those of any other drafter.


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
print("prompt tokens:", {kind: len(target.encode(prompt)) for kind, prompt in texts.items()})

# %% [markdown]
# The three prompts differ in how predictable their continuation is. `micro` was trained on stories only, so the prompt
# for "copying" repeats a verse three times, after which the model keeps repeating it. Large models copy in the same way
# when they edit code, quote a source or fill in a form.

# %% [markdown]
# ## Can a drafter change the output?
#
# We test it with greedy decoding in float64, where rounding practically never decides between two tokens. Every drafter
# has to end up with exactly the tokens of plain autoregressive decoding. The table has one line for each of the seven,
# with the quantised copy in two widths. The last column is the acceptance rate in the sense of lesson 07, accepted over
# *tested* draft tokens (vLLM divides by the *drafted* ones, so its figure is never higher).
#
# Read the two quantised lines with care. `micro` itself is stored in 8 bits with one scale per channel, so its int8
# copy is the target, and its rate of 1.00 means nothing. The int4 line is the real case: rounding the weights changes
# the logits a little, which seldom changes the most probable token.

# %%
exact = {name: ms.load(name, device="cpu", dtype=torch.float64) for name in ("micro", "micro-draft")}
traces = drafting.compare(exact["micro"], make_drafters(exact["micro"], exact["micro-draft"]), texts["free story"])

# %% [markdown]
# All eight runs give the same tokens, and only the number of forward passes differs. How bad may a drafter be before that
# breaks? Here is one that proposes the same word for ever. It also shows how little code a new drafter needs.


# %%
class Parrot(D.Drafter):
    """Proposes one token, k times."""

    def __init__(self, token: int):
        self.token = token

    def propose(self, contexts, k):
        return [D.Draft([self.token] * k) for _ in contexts]


[word] = target.encode(" the")
plain = ms.generate(exact["micro"], texts["free story"], max_new_tokens=30)
run = ms.speculate(exact["micro"], texts["free story"], Parrot(word), k=4, max_new_tokens=30)
print("same tokens:", run.tokens == plain.tokens)
print("forward passes:", run.trace.target_passes, "for 30 tokens")
print("accepted draft tokens:", sum(cycle.accepted for cycle in run.trace.cycles))

# %% [markdown]
# A hopeless drafter costs time and changes nothing else. When the target samples, the distribution of the output is
# preserved rather than the tokens, by the theorem of lesson 06. That theorem has one condition: the reported $q$ must be
# the distribution that the draft token was really sampled from. Exactness never depends on how good $q$ is.

# %% [markdown]
# ## Predict
#
# Now let the n-gram drafter continue the copied verse for 30 tokens, with up to four draft tokens per cycle. Plain
# decoding takes 30 forward passes. A chain of four draft tokens emits at most five tokens per pass, so it needs at
# least 6.

# %% tags=["nbval-ignore-output"]
guess_copy = viz.predict("How many passes does the n-gram drafter need for 30 copied tokens?", "passes")
guess_copy

# %% [markdown]
# ## Run
#
# Count it with `micro`:

# %% tags=["spoiler"]
counts = {kind: ms.speculate(target, text, D.NGram(), k=4, max_new_tokens=30).trace for kind, text in texts.items()}
print("n-gram, forward passes for 30 tokens:")
for kind, trace in counts.items():
    print(f"  {kind:<11} {trace.target_passes}")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
guess_copy.reveal(counts["copying"].target_passes)

# %% [markdown]
# ## The drafter race
#
# Now all of them, on your device: `micro` on a CPU, SmolLM2 on a GPU. [`race`](../minispec_course/labs/drafting.py) runs
# all drafters on the three prompts, in turns, and keeps the median of three runs of each. First the forward passes of the
# target that each takes for the same 30 tokens:

# %% tags=["nbval-ignore-output"]
timed, timed_draft = course_pair(ms.device())
print(f"{timed.name} on {where(timed.device)}")
race = drafting.race(timed, make_drafters(timed, timed_draft), {kind: [text] for kind, text in texts.items()}, 4, 30, 3)
for kind, rows in race["results"].items():
    print(f"{kind}:", *(f"{name} {row['passes']}" for name, row in rows.items()), sep="  ")

# %% [markdown]
# How far up do the two lookups move from the free story to the copying task? The number of passes shows how well a drafter
# agrees with the target. The time also contains what the drafter itself spends, so the clock gives another order. Here is
# the speed-up over plain decoding (recorded ones of SmolLM2 on an H200 are in [benchmarks](../docs/benchmarks.md)):

# %% tags=["nbval-ignore-output"]
viz.drafter_speedups(race)

# %% [markdown]
# Compare both before you crown a winner. A small model on a CPU spends a large part of every pass in Python,
# which a recorded pass on a GPU does not. And our quantised copies compute in floating point on both, so their acceptance
# is real and their speed is not. For a large model with proper kernels we count bytes instead.

# %% [markdown]
# ## What does each drafter cost?
#
# A forward pass that is memory-bound takes about as long as reading its weights. So for the cost $c$ of lesson 07, the
# time of one draft token over the time of one target pass, we can use a ratio of bytes:
#
# $$c \approx \frac{\text{bytes for one draft token}}{\text{bytes for one pass of the target}}$$
#
# Treat it as an optimistic estimate. The pass of a large target comes close to the time its bytes take. The pass of a
# small model on a GPU is limited by the latency of its layers, which run one after another, more than by its bytes, so
# its real $c$ is higher than this ratio.

# %% [markdown]
# The problem of a quantised copy is its cost, not its acceptance. A cycle emits at most $k + 1$ tokens and takes
# $k c + 1$ plain passes, so for $c < 1$ the speed-up is below $1/c$ whatever α is, and INT8 ($c = 0.5$) can never reach 2. The
# copy also occupies memory of its own. While decoding is memory-bound, serving an INT4 model alone would be up to four times
# as fast, so speculation with it makes sense only if the output has to be that of the 16-bit model.
#
# The next cell puts all drafters side by side: $c$ by bytes for a target that is stored with 16 bits per parameter
# ([`draft_cost`](../minispec/theory.py)), the tokens per pass measured above on the free story, and the speed-up
# $E[N]/(kc + v)$ at $k = 4$ and $v = 1$.

# %%
print("free story, k = 4, v = 1")
for name, c in drafting.byte_costs(target, draft).items():
    tokens = traces[name].tokens_per_cycle
    print(f"{name:<12} c = {c:.2f}   {tokens:.2f} tokens per pass   speed-up {tokens / (4 * c + 1):.2f}")

# %% [markdown]
# Some remarks on this table:
#
# - **Small model.** Its 3.04 is optimistic, because its $c$ is.
# - **int8 copy.** With every single draft token accepted it still reaches only 1.66.
# - **int4 copy.** Its $c$ is 0.28 rather than a quarter, because every group of 32 parameters also stores a scale.
# - **Early exit** loses time. It runs three of the six layers and the LM head, so it is expensive, and it is accepted
#   seldom, because the final norm and the LM head were trained on the finished residual stream.
# - **Lookahead** has $c = 0$, but it makes every pass of the target wider, so $v = 1$ is a claim about the GPU and the
#   batch (see *Go deeper* below).
#
# Staging is missing, because its cost depends on how often the first stage is right. That is the next question.

# %% [markdown]
# ## What does staging improve?
#
# A **cascade** gives the drafter a drafter. The n-gram proposes tokens, the small model verifies and corrects them, and
# the result is the draft for the target. Does the target accept more of them?
#
# The theorem of lesson 06 answers it. What leaves the small model has exactly the small model's distribution, whatever
# the n-gram proposed. So $q$ is the small model's distribution, as it was without the n-gram. The acceptance
# probability $\sum \min(p, q)$ is therefore the same at every position, and so is its average α. What can change is how
# many forward passes the small model needs for a draft token. We count them with a forward hook.

# %%
for kind in ("free story", "copying"):
    small = exact["micro-draft"]
    for name, drafter in (("small model", D.Model(small)), ("staged", D.Cascade(D.NGram(), small))):
        with drafting.counted(small.transformer.layers[0]) as passes:
            trace = ms.speculate(exact["micro"], texts[kind], drafter, k=4, max_new_tokens=30).trace
        drafted = sum(len(cycle.drafted) for cycle in trace.cycles)
        rate = f"accepted/tested {trace.acceptance_rate:.3f}"
        print(f"{kind:<11} {name:<12} {rate}   small model's passes per draft token {len(passes) / drafted:.2f}")

# %% [markdown]
# The acceptance rate is the same. In a greedy run that is no surprise, since both drafters propose the same tokens. The
# cost falls a little in the free story and by more than half where the output is copied, because there the n-gram is
# often right.
#
# For sampling, an exact computation shows it. Take three distributions over four tokens: $p$ of the target, one of the
# small model in the middle, and a tiny drafter that always proposes token 3.
# [`emitted_distribution`](../minispec/exact.py) computes exactly what a verifier emits.

# %%
p, middle, tiny = [0.5, 0.2, 0.2, 0.1], [0.4, 0.4, 0.1, 0.1], [0.0, 0.0, 0.0, 1.0]
drafted = emitted_distribution(middle, tiny)  # the middle model verifies the tiny drafter
emitted = emitted_distribution(p, drafted)  # the target verifies the middle model
print("middle model emits:", [round(x, 3) for x in drafted.tolist()])
print("target emits:      ", [round(x, 3) for x in emitted.tolist()])
print("accepted by the target, staged:      ", round(sum(map(min, p, drafted.tolist())), 3))
print("accepted by the target, middle alone:", round(sum(map(min, p, middle)), 3))

# %% [markdown]
# The middle model emits its own distribution and the target emits $p$, although every guess of the tiny drafter is
# token 3. So staging lowers the cost of a draft token and leaves its acceptance alone. At a given $k$ the tokens per
# forward pass stay the same too. But with cheaper draft tokens the best $k$ can be larger, and with a larger $k$ the
# tokens per pass do rise. All this is worth much if the middle model is expensive, and little if its $c$ was small anyway.

# %% [markdown]
# ## Which temperature should the draft model have?
#
# The draft model has a temperature of its own, and it need not be that of the target: the output follows the target's
# distribution for any $q$, as long as $q$ is what was sampled from. Only the acceptance depends on it.
#
# So we let the target generate at each of three temperatures, run both models on what it generated, and compute
# $\sum \min(p, q)$ at every token, for several temperatures of the draft model.


# %%
@torch.inference_mode()
def acceptance(temperature: float, draft_temperatures) -> list[float]:
    """The mean overlap of p and q over all tokens that the target generates at `temperature`."""
    found = []
    for prompt in map(target.encode, STORIES["stories"]):
        out = ms.generate(target, prompt, max_new_tokens=32, temperature=temperature, seed=0)
        ids = torch.tensor([[*prompt, *out.tokens[:-1]]])
        logits = [model.transformer(ids).logits[0, len(prompt) - 1 :] for model in (target, draft)]  # [n, V] of either
        p = ms.Sampling(temperature).probs(logits[0])
        found.append(
            torch.stack([torch.minimum(p, ms.Sampling(T).probs(logits[1])).sum(-1) for T in draft_temperatures])
        )
    return torch.cat(found, dim=1).mean(dim=1).tolist()


theirs = (0.0, 0.5, 1.0, 1.5)
print("draft's temperature:", *(f"{T:5.1f}" for T in theirs))
for ours in (0.0, 0.5, 1.0):
    print(f"target at {ours:.1f}:      ", *(f"{x:5.2f}" for x in acceptance(ours, theirs)))

# %% [markdown]
# In each line the best draft temperature is at or near the target's own, so that is a good start. The left column is a
# greedy draft. With these two models it costs acceptance when the target samples at a high temperature, and it is what
# several servers do by default (see below). For exactness nothing has to match; a match is worth something for
# acceptance only.

# %% [markdown]
# ## How to choose
#
# - **The output repeats its input** (editing, quoting, retrieval): n-gram or suffix decoding. It needs no training, no
#   weights and almost no time.
# - **Many requests resemble each other**: suffix decoding with a memory.
# - **General prompts, and a small model of the same family exists**: take it. Prefer few layers, because of their
#   latency, and reserve memory for its KV cache.
# - **General prompts, and you may train**: heads on hidden states (lessons 09 and 10).
# - **Neither a small model nor training**: a 4-bit copy with real 4-bit kernels.
# - **The draft model is expensive**: put an n-gram in front of it.
# - **One request at a time on a large GPU**: lookahead is an option, since wide passes are cheap there.
#
# Then measure α, $c$ and $v$ on your own traffic, and let the formula of lesson 07 choose $k$.

# %% [markdown]
# ## Go deeper
#
# <details><summary>How can an early exit be made to pay?</summary>
#
# A small trained module between the exit layer and the final norm helps. LayerSkip (Elhoushi et al., 2024) trains the
# whole model so that its early layers predict well, and lets verification continue from the states of the exit layers,
# which our implementation ([`EarlyExit`](../minispec/drafters/early_exit.py)) computes a second time.
# </details>
#
# <details><summary>Why does the best acceptance fall as the target's temperature rises?</summary>
#
# It does so between 0 and 1.5 with these two models. The likely reason is that they differ more about unlikely tokens than
# about the most probable one, and a higher temperature gives the unlikely ones more weight. It is not that probability is
# spread out: at an infinite temperature both distributions would be uniform, and every draft token would be accepted.
# </details>
#
# <details><summary>How wide is a lookahead pass, and when is that free?</summary>
#
# The width depends on the settings, a window of $W$ columns, n-grams of length $N$ and $G$ candidates: a pass processes up
# to $1 + (W + G)(N - 1)$ tokens. Ours are small, $W = G = 5$ and $N = 4$, which makes 31 tokens where a chain of four
# makes five. With the compute and bandwidth that we measured on an H200 (lesson 01), parameters in bf16 and no KV cache, a
# pass is memory-bound up to 188 tokens in all. So 31 tokens can be free for one request. Sixteen requests at once would
# make $16 \cdot 31 = 496$ tokens, far above 188, and there lookahead is not free: each request's share of the 188 is about
# 12.
# </details>

# %% [markdown]
# ## In production
#
# vLLM takes a `speculative_config`. Its `method` is `"ngram"` (with `prompt_lookup_max` and `prompt_lookup_min`),
# `"suffix"`, `"draft_model"`, `"medusa"`, `"eagle3"`, `"mtp"` and a few more; `num_speculative_tokens` is our $k$.
# SGLang has `--speculative-algorithm` with `NGRAM`, `STANDALONE` (a small model) and `EAGLE3`.
# Hugging Face transformers calls the small model `assistant_model`, early exit `assistant_early_exit`, and prompt lookup
# `prompt_lookup_num_tokens`.
#
# By default vLLM and SGLang draft greedily, even if the request samples. That is exact, with a one-hot $q$: the target
# accepts a draft token $d$ with probability $p(d)$.
#
# vLLM has one rejection sampler for all of its proposers, as minispec does. transformers applies the rule of lesson 06 if
# the request samples and the candidates come with logits; otherwise it selects a token from $p$ at every position and
# keeps the candidates up to the first that differs. For a one-hot $q$ both are exact. A new drafter is a new proposer in
# vLLM and a new `CandidateGenerator` in transformers.

# %% [markdown]
# ## Check yourself
#
# <details><summary>After an update of the draft model its acceptance rate doubles. Does the output change?</summary>
#
# No. With greedy decoding the tokens are the same, up to rounding; with sampling their distribution is. Only the number
# of forward passes changes. (With sampling, a given seed may lead to other tokens of the same distribution, because the
# random numbers are used up differently.)
# </details>
#
# <details><summary>Why can a drafter with α = 0.6 beat one with α = 0.95?</summary>
#
# Its cost can be lower. The speed-up is E[N] / (k·c + v), where E[N] is the mean number of tokens per cycle. A lookup
# has c ≈ 0 and pays nothing for its draft tokens, whereas an 8-bit copy of the target pays half a forward pass for
# each.
# </details>
#
# <details><summary>In a cascade, which distribution does the target need for its acceptance test: that of the tiny drafter,
# or that of the middle model?</summary>
#
# That of the middle model, also for tokens that the tiny drafter proposed and the middle model accepted. All tokens that
# leave the middle model, accepted and corrected ones together, follow the middle model's distribution.
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
# - Practice: [exercises 08](../exercises/08_drafters.ipynb), in which you write four of these drafters.
# - `minispec drill`: `proposers`, `choose-draft-model`, `distillation`, `ngram`, `suffix-decoding`, `early-exit`,
#   `quantised-draft`, `staged-speculation`, `lookahead`, `reduced-vocabulary`, `draft-cache-memory`.
# - Next lesson: [09 Medusa](09_medusa.ipynb), where extra heads on the target do the drafting.
