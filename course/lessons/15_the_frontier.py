# %% [markdown]
# # 15 The frontier
#
# *Time:* 160 minutes · *Before this:* [06 rejection sampling](06_rejection_sampling.ipynb), [07 how fast](07_how_fast.ipynb), [08 drafters](08_drafters.ipynb), [09 medusa](09_medusa.ipynb), [10 EAGLE and DFlash](10_eagle_and_dflash.ipynb), [11 speculation in a server](11_speculation_in_a_server.ipynb), [14 is it really exact](14_is_it_really_exact.ipynb) · *Practice:* [exercises 15](../exercises/15_the_frontier.ipynb)
#
# The rejection sampler of lesson 06 (Leviathan et al., 2023, arXiv:2211.17192) is settled. What people ask today is what comes
# around it. Is token by token the best rule there is? Can a draft model with another tokenizer be used? Why did my penalties
# weaken under speculation, and whose log-probabilities do I get? Whose draft tokens should a full batch verify? When does a
# mixture of experts gain less than a dense model, and when more? And how do EAGLE-3.1, MTP, DSpark and the other names of the last
# years hang together? Each answer is a few lines of code, and what is emitted is checked by its exact distribution. What is said
# about other engines was looked up in November 2026.
#
# **Take two sittings.** The first three sections are about what may be sampled and accepted; the next three are about cost. A stop
# is marked between them. The questions do not build on one another, and the minutes are in the headings.
#
# You will be able to
#
# - derive block verification, and say when it accepts more than the rule of lesson 06;
# - use a draft model of another vocabulary, and say what the restriction costs;
# - say why sampling rules that look at the prefix need a prefix for every draft token, and what a log-probability is then;
# - divide one verification budget among the drafts of a batch without biasing the output;
# - say when a mixture of experts gains less from speculation than a dense model, and why it gains at all;
# - say of a drafter that uses the target's hidden states what it is given, and how many of its runs wait for one another.

# %%
from fractions import Fraction

import torch

from minispec import exact, verify
from minispec.sampling import pick
from minispec.verify import Verdict
from minispec_course import viz

# %% [markdown]
# ## Is token by token the best rule? (30 minutes)
#
# The rule of lesson 06 looks at one draft token at a time and stops at the first rejection. Take two positions, a vocabulary of
# two tokens, and models that ignore the context: the target gives token B two thirds of the probability, and the draft model
# gives it one third. Suppose that the draft is A, B. For A the ratio $p/q$ is one half, for B it is two. Token by token, A
# passes half of the time. But the *draft as a whole* is exactly as likely under the target as under the draft model, because
# $\frac{1}{2} \cdot 2 = 1$. So why reject it at all?
#
# **Block verification** (Sun et al., 2025, arXiv:2403.10444) accepts prefixes instead of tokens. With $p_i$ and $q_i$ the
# distributions that the $i$-th draft token $d_i$ is judged by, a prefix of $i$ tokens has the weight
#
# $$w_0 = 1, \qquad w_i = \min\left(1, w_{i-1} \frac{p_i(d_i)}{q_i(d_i)}\right),$$
#
# and the rule is built such that the first $i$ tokens are kept with probability exactly $w_i$, *averaged over what may be
# drafted after them*. Token by token it is $\prod_j \min(1, p_j/q_j)$, which is never larger, because
# $\min(1, w r) \ge w \min(1, r)$ for $w \le 1$.
#
# The rule asks about the longest prefix first. If it is refused, a shorter one gets what it still lacks. Take a prefix of weight
# $w$, with $p$ and $q$ for the position after it. Longer prefixes are kept with probability
# $\sum_x \min(w\,p(x), q(x)) = w - R$, and $R = \sum_x [w\,p(x) - q(x)]_+$ is missing. If no longer prefix was kept, the rule
# therefore stops here with probability
#
# $$h = \frac{R}{R + 1 - w}, \qquad \text{because} \quad (w - R) + (1 - w + R)\,h = w,$$
#
# and samples the next token from $\mathrm{norm}([w\,p - q]_+)$. After the whole draft nothing was drafted, so $q = 0$ there,
# $R = h = w$, and the bonus comes from $p$. The empty prefix has $w = 1$, so $h = 1$.


# %%
def block(p, q, draft, u):
    """p [k+1, V], q [k, V], k draft tokens and k + 1 random numbers in [0, 1)."""
    w = [1.0]
    for i, d in enumerate(draft):
        w.append(min(1.0, w[i] * float(p[i, d] / q[i, d])))
    for i in reversed(range(len(draft) + 1)):  # the longest prefix first
        missing = (w[i] * p[i] - (q[i] if i < len(draft) else 0)).clamp(min=0)
        R = float(missing.sum())
        below = R + (1 - w[i])
        if i == 0 or u[i - 1] < (R / below if below > 0 else 1):  # 0/0 where p = q: only rounding leads there
            return Verdict(list(range(i)), pick(missing / R if R > 0 else p[i], u[-1]))


# %% [markdown]
# One case by hand: after A, with $w = \frac{1}{2}$, let the draft model have $\frac{5}{6}, \frac{1}{6}$ for the next token.

# %%
w, p_next, q_next = Fraction(1, 2), (Fraction(1, 3), Fraction(2, 3)), (Fraction(5, 6), Fraction(1, 6))
R = sum(max(w * a - b, 0) for a, b in zip(p_next, q_next, strict=True))
h = R / (R + 1 - w)
print(f"h = {h}; A is kept with probability {w - R} + {1 - w + R} · {h} = {(w - R) + (1 - w + R) * h}")

# %% [markdown]
# ### Predict
#
# Back to the first example. Averaged over the drafts of two tokens, the rule of lesson 06 accepts 10/9 = 1.11 tokens per cycle.

# %% tags=["nbval-ignore-output"]
more = viz.predict("How many draft tokens per cycle does block verification accept?", "tokens")
more

# %% [markdown]
# ### Run

# %% tags=["spoiler"]
P_AB = torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)
Q_AB = P_AB.flip(0)
accepted = {}
plain = exact.joint_distribution(lambda context: {(0,): 1 / 3, (1,): 2 / 3}, 3)
for name, rule in (("token by token", verify.chain), ("block, above", block), ("block, library", verify.block)):
    cycle = exact.chain_distribution(lambda context: P_AB, lambda context: Q_AB, 2, verify=rule)
    accepted[name] = sum((len(run) - 1) * weight for run, weight in cycle.items())
    joint = exact.joint_distribution(lambda context, cycle=cycle: cycle, 3)
    exactly = "exact" if exact.total_variation(joint, plain) < 1e-12 else "biased"
    print(
        f"{name:15s} accepts {9 * accepted[name]:.0f}/9 tokens of a draft, emits {1 + accepted[name]:.3f} per pass; "
        f"three emitted tokens: {exactly}"
    )
print(f"more tokens per pass: a factor of {(1 + accepted['block, above']) / (1 + accepted['token by token']):.3f}")

# %% [markdown]
# ### Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
more.reveal(accepted["block, above"])

# %% tags=["spoiler"]
for draft in ((0, 0), (0, 1), (1, 0), (1, 1)):
    kept = {}
    for name, rule in (("token by token", verify.chain), ("block", block)):
        lengths = exact.exact_distribution(
            lambda random, draft=draft, rule=rule: (
                rule(P_AB.expand(3, -1), Q_AB.expand(2, -1), draft, [random() for _ in range(3)]).accepted
            )
        )
        kept[name] = sum(length * probability for length, probability in lengths.items())
    print(f"draft {'AB'[draft[0]]}, {'AB'[draft[1]]}: accepted", {name: round(mean, 2) for name, mean in kept.items()})

# %% [markdown]
# Both rules are lossless. On average block verification accepts a tenth more draft tokens, which makes a twentieth more emitted
# tokens per pass, because each pass emits one more in any case. But it does not gain with every draft. A, B is now always
# kept. In exchange A, A is kept less often: over all continuations A may be kept only half of the time, and A, B has used up
# most of that. Only the average is never worse.
#
# The next cycle starts from the target as it is: no debt is carried over, although this cycle accepted more of some drafts
# ([`block`](../minispec/verify.py) has the proof). In the library it is
# `rule="block"` in `ms.speculate` and `ms.Engine`. It needs *sampled* chains whose $q$ was stored: for greedy decoding, and for
# drafts that were not sampled, the two rules accept the same.
#
# On a real pair the tokens per pass rise about as much as here. SmolLM2 with its draft model, $k = 4$, temperature 1, half of
# Spec-Bench (240 prompts, 64 new tokens each): for the same drafts the expected tokens per forward pass rose by a factor of
# 1.0399 ± 0.0010 (one standard error, over prompts; float32; [recorded](../docs/results/rules_arm.json)).
# The paper reports 5 to 8 % in wall-clock time.

# %% [markdown]
# ## Can the draft model have another vocabulary? (15 minutes)
#
# Verification compares $p(d)$ and $q(d)$ for the *same* token, so it seems that draft model and target must share a tokenizer.
# They need not (Timor et al., 2025, arXiv:2502.05202). Let $V_\cap$ be the tokens that both vocabularies have: the same bytes, at
# whatever ids. If the draft model's distribution $m$ is restricted to $V_\cap$ and renormalised *before* a token is sampled,
#
# $$q(x) = \frac{m(x)\,[x \in V_\cap]}{m(V_\cap)},$$
#
# then $q$ is a distribution over the target's vocabulary, and the token was sampled from it. The sampler of lesson 06 asks for
# nothing more. Tokens outside $V_\cap$ are emitted too, but only as corrections and bonuses.
#
# ### Predict
#
# Here the draft model knows *un*, *do*, *ing* and *ly*, and the target *undo*, *do*, *ing*, *ly* and *the*.

# %%
own, m = ["un", "do", "ing", "ly"], torch.tensor([0.5, 0.3, 0.1, 0.1], dtype=torch.float64)
theirs, p_theirs = ["undo", "do", "ing", "ly", "the"], torch.tensor([0.3, 0.15, 0.25, 0.2, 0.1], dtype=torch.float64)
print("shared:", [piece for piece in own if piece in theirs])

# %% tags=["nbval-ignore-output"]
crossing = viz.predict("With which probability is a draft token accepted?")
crossing

# %% [markdown]
# ### Run

# %% tags=["spoiler"]
q_shared = torch.zeros(len(theirs), dtype=torch.float64)
for piece, probability in zip(own, m, strict=True):
    if piece in theirs:
        q_shared[theirs.index(piece)] = probability
kept_mass = float(q_shared.sum())
q_shared /= kept_mass
rate = float(torch.minimum(p_theirs, q_shared).sum())
emitted = exact.emitted_distribution(p_theirs, q_shared)
print("q:      ", {piece: round(float(x), 3) for piece, x in zip(theirs, q_shared, strict=True)})
print("emitted:", {piece: round(float(x), 3) for piece, x in zip(theirs, emitted, strict=True)})
print(f"m(shared) = {kept_mass:.2f}, p(shared) = {float(p_theirs[q_shared > 0].sum()):.2f}, acceptance = {rate:.2f}")

# %% [markdown]
# ### Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
crossing.reveal(rate)

# %% [markdown]
# The emitted distribution is $p$ again, *undo* and *the* included. The acceptance rate, $\sum \min(p, q)$ as ever, cannot exceed
# $p(V_\cap)$, because the target asks for other tokens the rest of the time.
#
# The other half of the work is the draft model's *context*. The target's tokens are turned into text, and the text into the draft
# model's tokens. Text does not split alike in both, and a new piece can change the split of what comes before it: in a draft model
# that has a token *undo*, the token *un* is gone once *do* comes after it. So [`Shared`](../minispec/drafters/translate.py)
# tokenizes the text again in every cycle and keeps the draft model's cache as far as the tokens are still the same. Three traps
# wait there:
#
# - Names of tokens are not their bytes: *do* with a space before it is `Ġdo` in one tokenizer and `▁do` in another one.
# - Special tokens stand for no text and have other names in each family. `Shared` leaves them out, so the end of an output is
#   never drafted; it comes as a correction or a bonus.
# - Half of a UTF-8 character has no text to tokenize. Its bytes go over one by one, where the draft model has such tokens.
#
# `ms.drafters.Model(draft, translate=True)` does all of this. With it `micro`, which was trained on children's stories and has
# 2,048 tokens, drafts for SmolLM2 with its 49,152: 1,883 tokens are shared. On eight beginnings of such stories (greedy, $k = 4$,
# 24 new tokens each) 49 % of its tested draft tokens were accepted, and 31 % of those of SmolLM2's own draft model. On seven
# questions and tasks it was 15 % and 51 %. The samples are small, but what a draft model was trained on mattered more than its
# tokenizer.

# %% [markdown]
# ## Sampling that depends on the prefix (40 minutes)
#
# Temperature and top-p look at the logits of one position and at nothing else. Other options look at the *prefix*, at all
# tokens before that position:
#
# | option | what it does to the logit $z(x)$ of token $x$ |
# |---|---|
# | `repetition_penalty` $r$ (transformers, vLLM) | $z/r$ if $z > 0$, else $z \cdot r$, if $x$ is in the prompt or in the output |
# | `frequency_penalty` $f$ (OpenAI, vLLM) | $z - f \cdot$ (how often $x$ is in the output) |
# | `presence_penalty` $s$ (OpenAI, vLLM) | $z - s$, if $x$ is in the output |
# | `bad_words`, `min_new_tokens` | $-\infty$ where $x$ would complete a bad word, or end the output too early |
# | `choices`, `regex`, `json_schema`: a **constraint** (structured output, guided decoding) | $-\infty$ where no allowed output begins with the prefix and $x$ |
#
# Plain decoding meets one prefix after the other. A verify pass meets $k + 1$ of them at once: position $i$ of a draft comes
# after the output *and* the first $i$ draft tokens. If an engine processes all positions with the prefix it had before the
# draft, the penalties are late by up to $k$ tokens, and a grammar is asked about a state that is long gone. If it then counts
# only the last token of each cycle, the penalties stay too weak for good. Engines have shipped every possible answer
# ([vLLM #6718](https://github.com/vllm-project/vllm/issues/6718) is the question in a user's words):
#
# | engine | penalties in a verify pass, November 2026 |
# |---|---|
# | vLLM | one prefix per position since late 2025 ([#19482](https://github.com/vllm-project/vllm/pull/19482)); before that they were ignored ([#18902](https://github.com/vllm-project/vllm/issues/18902)) |
# | SGLang | one prefix for the whole draft, and the last accepted token of a cycle is counted ([#22049](https://github.com/sgl-project/sglang/pull/22049), April 2026); reported: the others never are, so a `frequency_penalty` is divided by the tokens per cycle ([#33643](https://github.com/sgl-project/sglang/pull/33643), a fix proposed in August 2026) |
# | TensorRT-LLM, where drafter and target are one engine | ignored until [#17701](https://github.com/NVIDIA/TensorRT-LLM/pull/17701) (August 2026); now the server is started with `enable_penalty`, or refuses such requests |
#
# How much does it matter? We compute it, with the exact distributions of lesson 14, for drafts of two tokens in a toy with the
# tokens a, b, c, d and the end. The next cell prints what both models say about the first token. Later the same numbers are
# rotated to the right: by 1 for each a in the output, by 2 for each b, and so on. The penalty is a `frequency_penalty` of 1.
# The constraint allows *abc*, *ac*, *ba*, *bbd* and *c*, each followed by the end.

# %%
import minispec as ms
from minispec_course import viz
from minispec_course.labs import frontier

print("p:", frontier.P.tolist(), "  q:", frontier.Q.tolist())

# %% [markdown]
# ### Predict
#
# Three shortcuts suggest themselves.
#
# 1. With the penalty: judge both draft tokens by the prefix before the first.
# 2. With the constraint: end the draft before the first sampled token that is forbidden, because it would be rejected anyway.
# 3. With the constraint: mask the draft model, too, and report the $q$ from before the mask.

# %% tags=["nbval-ignore-output"]
worst = viz.predict("Which shortcut biases the distribution of two-token outputs most: 1, 2 or 3?")
worst

# %% [markdown]
# ### Run

# %% tags=["spoiler"]
prefix_errors = frontier.prefix_errors()
print(frontier.prefix_table(prefix_errors))

# %% [markdown]
# ### Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
shortcuts = [off for name, (off, _) in prefix_errors.items() if name.startswith("wrong")]
worst.reveal(1 + shortcuts.index(max(shortcuts)))

# %% [markdown]
# Three things are in this table.
#
# - **Where every position is processed by its own prefix, the output is exact**, whatever the draft model proposes. The verifier
#   needs no new rule: $p$ is the target's distribution after all processing, and $q$ the one that the draft token was really
#   sampled from. [`process`](../minispec/processors/drafts.py) is a dozen lines. (Exact means: as plain decoding with the same
#   masks. Masking token by token is not the model's distribution *given* a valid output; Park et al., 2024, arXiv:2405.21047.)
# - **Processing the draft, too, is not needed for exactness, but for speed.** A draft model that does not know of a constraint
#   proposes what it forbids, and each such token is rejected.
# - **All three shortcuts are biased**, and how much depends on how often they are wrong. Number 3 is wrong for every draft
#   token. The draft model gives 0.68 to the three allowed first tokens, so the reported $q$ is 0.68 of the true one, and too
#   many draft tokens pass: *b* nearly always instead of two times in three. Number 2 is wrong for the other 0.32 of the drafts,
#   and is hard to see: the forbidden token would have been rejected, and its replacement would have come from the residual.
#   Without it, the next token comes from $p$. Number 1 is wrong only about the second token, which repeats the first too often.
#
# For tokens that were not sampled (n-grams, argmax drafts, the top-k trees of EAGLE-2 and 3) number 2 is exact, because which token
# is proposed does not depend on chance. vLLM's scheduler leaves out what the grammar refuses
# ([#14702](https://github.com/vllm-project/vllm/pull/14702)), harmless with its argmax drafts
# ([#16899](https://github.com/vllm-project/vllm/pull/16899)). Its newer model runner can sample drafts
# ([#35461](https://github.com/vllm-project/vllm/pull/35461)): then check what your version does with a refused slot.
#
# ### An automaton over tokens
#
# A constraint answers one question: which tokens may come after this prefix? For a list of choices the answer fits into ten
# lines ([`OneOf`](../minispec/processors/constraint.py)), because the prefix itself is the state: keep the choices that begin
# with it, and look at their next token.

# %%
from minispec.processors.constraint import OneOf

letters, END = "abcd", 4
one_of = OneOf([(0, 1), (0, 2, 3), (0, 2)], size=5, ends=[END])  # ab, acd or ac, and then the end
for prefix in ((), (0,), (0, 2), (0, 2, 3)):
    *allowed, may_end = one_of.allowed(prefix).tolist()
    following = [letter for letter, ok in zip(letters, allowed, strict=True) if ok]
    text = "".join(letters[token] for token in prefix)
    print(f"after {text!r:6s} may follow {following}{', or the end' if may_end else ''}")

# %% [markdown]
# A regular expression or a JSON schema is about text. A token is several characters at once, so one word has many spellings, and
# all of them have to be allowed. minispec leaves that to llguidance, as vLLM and SGLang can: it follows the text with an automaton,
# character by character, and asks the whole vocabulary at once by walking a tree of its characters.
#
# In a verify pass every position has its own prefix and so its own mask. Take the pattern `\d\d:\d\d` after the output "1",
# and a draft of the three tokens "2:", "30" and "am". The third one leaves the automaton: it is rejected, and the end is
# emitted instead. Then the state has to be the one of "12:30", not of "12:30am", because it is a *function of the prefix*.
# [`Guided`](../minispec/processors/constraint.py) rolls the library's matcher back to the end of what the old and the new prefix
# have in common, and goes on from there.
#
# Masking the draft is for speed. A blind draft goes on as a story would, with a comma, a name or the end, and every forbidden
# token that it proposes is rejected. A masked draft proposes nothing that is forbidden. What it still loses are ordinary
# disagreements between $p$ and $q$.
#
# Where a grammar forces a *string*, such as the next key of a JSON object, it rarely forces a *token*, because the first
# characters of the string are tokens, too (in a tool-call schema none of 23 positions had a single choice,
# [vllm-metal #650](https://github.com/vllm-project/vllm-metal/pull/650)). But the usual tokens of that string are a good draft:
# often accepted, and exact because they are verified. *Jump-forward decoding* (SGLang, until it was
# [removed](https://github.com/sgl-project/sglang/pull/4032) in 2025) and llguidance's
# [*fast-forward tokens*](https://github.com/guidance-ai/llguidance/blob/main/docs/fast_forward.md) append them without
# verification. That is faster, and it changes the distribution over spellings.
#
# ### Whose log-probabilities?
#
# First: of which *distribution*? `logprobs_mode="raw_logprobs"` (vLLM's name, and the default) is the model's own, before any
# processing. `"processed_logprobs"` belongs to the distribution that the token was sampled from (or, if greedy, whose argmax it
# is). Under a constraint the two are far apart: the model may find a token unlikely that was one of the few allowed.

# %% tags=["nbval-ignore-output"]
small_target, small_draft = ms.load("micro", device="cpu"), ms.load("micro-draft", device="cpu")
for mode in ("raw_logprobs", "processed_logprobs"):
    out = ms.speculate(
        small_target,
        "The fox was",
        ms.drafters.Model(small_draft),
        choices=[" happy", " sad"],
        logprobs=0,
        logprobs_mode=mode,
        max_new_tokens=8,
        temperature=1.0,
        seed=0,
    )
    print(f"{mode:18s}", [(small_target.spell(one.token), round(one.logprob, 2)) for one in out.logprobs])

# %% [markdown]
# Second: of which *model*, now that two of them and a residual were at work? Of the target, always. An accepted token was sampled
# from $q$, and a correction from $\mathrm{norm}([p - q]_+)$, but over all that can happen in the cycle each token is emitted with
# probability $p(x)$. So a client sees the numbers of plain decoding. It is easily broken. In vLLM, until December 2025, the
# sampler changed the logits in place before the raw values were taken
# ([#30846](https://github.com/vllm-project/vllm/pull/30846)), and llama.cpp's server was reported in August 2026 to return 0.0 for
# every token ([#27972](https://github.com/ggml-org/llama.cpp/issues/27972)).
#
# Raw or processed: which may reinforcement learning *divide by*? Its importance ratio is the trainer's probability of a token over
# the one that it was sampled with, and that is the *processed* one. With raw values every ratio is wrong unless the temperature is 1 and
# nothing is penalised or cut off. At temperature 0.6 it was 2 where it should have been about 1
# ([TRL #4159](https://github.com/huggingface/trl/issues/4159)), so TRL ([#4163](https://github.com/huggingface/trl/pull/4163)) and verl
# ([#4755](https://github.com/verl-project/verl/pull/4755)) now ask vLLM for processed ones. Under top-p or top-k these are
# normalised over the tokens that were kept, and the trainer has to do the same
# ([TRL #6789](https://github.com/huggingface/trl/issues/6789)). Even then the ratio is only near 1, because sampler and trainer round
# differently. Speculation changes none of this.
#
# ### What is harder in production
#
# - JSON Schema is recursive. A regular expression cannot count brackets, so engines use pushdown automata (XGrammar; Dong
#   et al., 2024, arXiv:2411.15100) or llguidance, as minispec does for `json_schema`.
# - Masks need the *draft tokens on the CPU*, in every cycle. The copies out and back have to run beside the forward pass
#   ([SGLang #31488](https://github.com/sgl-project/sglang/pull/31488) shows the gaps).
# - A grammar that begins after the reasoning part may begin in the middle of a draft
#   ([vLLM #48197](https://github.com/vllm-project/vllm/issues/48197)).
# - Positions after a forbidden draft token have no state. A mask that forbids every token gives NaN after the softmax.
#
# In minispec, CUDA graphs know nothing of prefixes: such a request takes the eager path, or its drafts are verified on the CPU.

# %% [markdown]
# > **Stop here: end of the first sitting.** Exercises 1, 2, 4 and 5 of [set 15](../exercises/15_the_frontier.ipynb) belong to what
# > you have read. The second sitting starts below and needs no cell from above.

# %% [markdown]
# ## Whose draft tokens should a full batch verify? (20 minutes)
#
# In lesson 11 a full batch shortened every draft alike, because a verify pass is nearly free only up to some number of tokens. But
# sequences differ: one copies code and accepts nearly everything, another one writes a poem. A draft token is worth the
# probability that it *survives*, which means that it and all tokens before it in its draft are accepted. So give the budget to
# the tokens that are most likely to survive, whichever sequence they belong to. Along a draft this probability only falls, so
# the best tokens are always prefixes of their drafts, and picking the largest ones first is optimal
# ([`best_lengths`](../minispec/serving/budget.py)). SmartSpec (Liu et al., 2024, arXiv:2406.14066) chose lengths by what a batch
# can afford, and vLLM ranks tokens like this since the summer of 2026 (*adaptive verification*: first by the confidence head of
# DSpark drafters, [#47808](https://github.com/vllm-project/vllm/pull/47808), then for all draft models,
# [#52228](https://github.com/vllm-project/vllm/pull/52228)).

# %%
from minispec.serving.budget import best_lengths, expected_tokens, fastest, survival
from minispec_course import viz
from minispec_course.labs import frontier

confidences = {
    "copies code": [0.95, 0.9, 0.9, 0.85],
    "answers": [0.6, 0.5, 0.5, 0.4],
    "hesitates once": [0.9, 0.4, 0.9, 0.9],
    "writes a poem": [0.3, 0.3, 0.2, 0.2],
}
survivals = [survival(row) for row in confidences.values()]
print("probabilities to survive; * marks the seven draft tokens that a budget of seven takes")
for name, row, taken in zip(confidences, survivals, best_lengths(survivals, 7), strict=True):
    print(f"{name:15}", *(f"{x:.2f}{'*' if i < taken else ' '}" for i, x in enumerate(row)))

# %% [markdown]
# ### Predict
#
# How should a confidence be measured? An obvious choice is $q(d)$, what the draft model gave the token that it sampled: an
# unlikely draft token will probably be rejected, so leave it out. Another choice is the peak $\max_x q(x)$, which is known before
# the token is sampled. A third one uses peaks, too, and chooses the *budget* by them: two draft tokens if the best two are worth
# more than 1.4 tokens (the sum of their probabilities to survive), else none. In a toy with a vocabulary of two tokens, two
# sequences draft two tokens each and share the budget ([frontier.py](../minispec_course/labs/frontier.py)). We compare the exact joint
# distribution of what both emit first with plain decoding.

# %% tags=["nbval-ignore-output"]
fair = viz.predict("Of the three choices, how many keep the distribution exact?")
fair

# %% [markdown]
# ### Run

# %% tags=["spoiler"]
off = {
    "q of the sampled token, always two": frontier.bias(lambda q, d: float(q[d]), lambda drafts: 2),
    "peak of q, always two": frontier.bias(lambda q, d: float(q.max()), lambda drafts: 2),
    "peak of q, two or none by their worth": frontier.bias(
        lambda q, d: float(q.max()), lambda drafts: 2 if frontier.best_two(drafts) > 1.4 else 0
    ),
}
for name, distance in off.items():
    print(f"{name:38s} {'exact' if distance < 1e-12 else f'off by {distance:.3f}'}")

# %% [markdown]
# ### Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
fair.reveal(sum(distance < 1e-12 for distance in off.values()))

# %% [markdown]
# Whether a token is verified must not depend on that token. If unlikely tokens are left out *after* they were sampled, the tokens
# that stay no longer follow the $q$ that the verifier divides by. It may depend on everything that was known before the token was
# sampled: on its prefix, on the other sequences, and on which drafts passed in earlier steps (so confidences may be
# calibrated). Peaks with a fixed budget keep this rule. The peak of a *second* slot does depend on the first token, but a token
# never ranks above those before it in its draft. So it can take a slot from another sequence, and never from its own predecessor.
# The third choice breaks the rule unseen: there the second token's peak moves the *total*, so whether the first token is verified
# depends on what it is. Safe are a fixed budget, one computed from an earlier step, and stopping at the first slot that is not
# worth its price. In vLLM (links above) the estimate for draft models is made from the peak of $q$, and the budget from older
# confidences.
#
# What is it worth? Suppose that half of the sequences accept 90 % of their tested draft tokens and the others 30 %, and that a pass
# costs the same up to 64 tokens and grows in proportion after that.


# %%
def cost(tokens: int) -> float:
    return max(1.0, tokens / 64)


for batch in (2, 8, 32, 128):
    survivals = [survival([(0.9, 0.3)[i % 2]] * 4) for i in range(batch)]
    fixed = [expected_tokens(survivals, [k] * batch) / cost(batch * (k + 1)) for k in range(5)]
    gains = (x / fixed[0] for x in (fixed[4], max(fixed), fastest(survivals, cost)[1]))
    print(
        f"batch {batch:3}: k = 4 for all {next(gains):.2f}, best fixed k {next(gains):.2f}, one budget {next(gains):.2f}"
    )

# %% [markdown]
# The best set of $N$ draft tokens is worth at least as much as any other $N$, so one budget is never slower than the best fixed
# $k$, if the confidences are right. The gain is largest in the middle, at 32 sequences here: an idle machine verifies everything
# anyway, and a full one nothing. Two costs are not in this picture: tokens are cut *after* drafting, so that was paid for, and
# drafts of different lengths do not fit CUDA graphs captured for one length per request. That is why our engine chooses the
# size of all drafts beforehand, from earlier cycles (lesson 11).

# %% [markdown]
# ## When does a mixture of experts gain less from speculation? (30 minutes)
#
# A **mixture of experts** has many MLPs per layer, and a router that gives each token to a few of them (Shazeer et al.,
# 2017, arXiv:1701.06538). With $g = \mathrm{softmax}(R x)$ and $T$ the $a$ largest entries of $g$,
#
# $$y = \sum_{e \in T} \frac{g_e}{\sum_{f \in T} g_f} \cdot \mathrm{MLP}_e(x)$$
#
# ([experts](../minispec/experts.py); Mixtral renormalises the gates like this, OLMoE does not, and some families add a shared
# expert). Decoding one sequence reads only the experts of one token, which is the point of it. But the argument of lesson 07,
# that verification is nearly free, was that a forward pass over five tokens reads the same weights as a pass over one. Here each
# token may ask for other experts, so a verify pass reads their union. If every token chose $a$ of $E$ experts uniformly and
# independently, $M$ tokens would touch
#
# $$E \left(1 - (1 - a/E)^M\right)$$
#
# of them, because an expert is passed over by one token with probability $1 - a/E$.

# %%
import torch

import minispec as ms
from minispec import theory
from minispec_course import viz
from minispec_course.labs import frontier

# %% [markdown]
# ### Predict
#
# Mixtral has eight experts per layer and uses two per token.

# %% tags=["nbval-ignore-output"]
union = viz.predict(
    "How many of the 8 experts does a verify pass over 5 tokens touch, if tokens choose uniformly?", "experts"
)
union

# %% [markdown]
# ### Run

# %% tags=["spoiler"]
for name, experts, per_token in (("Mixtral, 2 of 8", 8, 2), ("Qwen3-30B-A3B, 8 of 128", 128, 8)):
    touched = [theory.experts_touched(experts, per_token, tokens) for tokens in (1, 2, 5, 9, 33)]
    print(f"{name:24s} experts touched by 1, 2, 5, 9, 33 tokens:", ", ".join(f"{x:.1f}" for x in touched))

# %% [markdown]
# ### Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
union.reveal(theory.experts_touched(8, 2, 5))

# %% [markdown]
# Five tokens touch three times as many experts as one token. The formula assumes that all experts are equally popular and that
# tokens choose independently, and text is not like that: neighbouring tokens have similar hidden states. So let us count. No
# trained mixture is small enough to come with this course, but there is a way to make one that we know already: replace each MLP
# of `micro` with sixteen copies of itself and a random router (*sparse upcycling*, Komatsuzaki et al., 2023, arXiv:2212.05055,
# before any training). The gates of a token sum to 1 and all experts agree, so the model emits exactly what `micro` emits, while
# its router works on the hidden states of real text.

# %%
micro, micro_draft = (ms.load(name, device="cpu", dtype=torch.float64) for name in ("micro", "micro-draft"))
mixture = frontier.upcycle(micro, experts=16, per_token=2)
PROMPT = "Once upon a time there was a little dog"
dense = ms.generate(micro, PROMPT, max_new_tokens=60)
sparse = ms.generate(mixture, PROMPT, max_new_tokens=60)
print("the same output as the dense model:", sparse.tokens == dense.tokens)

ids = micro.encode(PROMPT) + dense.tokens
for tokens in (1, 2, 5, 9):
    found, formula = frontier.touched_by(mixture, ids, tokens), theory.experts_touched(16, 2, tokens)
    print(f"passes over {tokens} tokens touch {found:5.2f} experts per layer; formula {formula:5.2f}")

# %% [markdown]
# The count stays below the formula, because some experts are popular. But this router is random, and cannot show what training
# does to neighbours. For Mixtral that was counted (Jiang et al., 2024, arXiv:2401.04088, table 5). Two tokens that choose uniformly and
# independently have an expert in common with probability 46 %. For consecutive tokens it is not far from that at the first and the
# last layer (45 to 54 %), but 62 to 67 % in the middle. So a verify pass of a trained mixture touches somewhat fewer experts than
# the formula says. Now inside a draft–verify loop, where rejected draft tokens ask for experts, too:

# %%
for k in (1, 2, 4, 8):
    out, counted = frontier.touched_while_speculating(mixture, PROMPT, ms.drafters.Model(micro_draft), k)
    print(
        f"k = {k}: {out.trace.tokens_per_cycle:.2f} tokens per pass, {counted:5.2f} experts per layer and pass, "
        f"the same output: {out.tokens == dense.tokens}"
    )

# %% [markdown]
# We computed in float64 so that no rounding flips an argmax. In bfloat16 a pass over $k + 1$ tokens adds up in another order than
# a pass over one, and near-ties flip; a flipped *router* choice then moves the logits by more than a rounding error. So greedy
# outputs that differ with speculation are a perennial report ([mlx-lm #1423](https://github.com/ml-explore/mlx-lm/issues/1423)).
# Lossless in distribution is not bitwise equal; lesson 14 takes the two apart. Batch-invariant kernels would have to cover one
# token against $k + 1$, too ([vLLM #54506](https://github.com/vllm-project/vllm/issues/54506)).
#
# ### What does that do to v, to the best k, and to a batch?
#
# We put the pass on the roofline of an H200: it reads every weight that it touches, and computes with $a$ experts for each token.
# The dense model is Mixtral with one expert per layer. The third model is *fine-grained*, as newer ones are: many small experts.
# All get a draft model of 250 million parameters. The best $k$ is searched from 0 (do not draft) to 64. Reading the KV cache is
# left out; it would pull $v$ towards 1.

# %%
SHAPES = {  # parameters: `always` is read by every pass (attention, router, LM head), `expert` is one expert in all layers
    "dense": dict(experts=1, per_token=1, always=1.47e9, expert=32 * 176.2e6),
    "Mixtral, 2 of 8": dict(experts=8, per_token=2, always=1.47e9, expert=32 * 176.2e6),
    "Qwen3-30B-A3B, 8 of 128": dict(experts=128, per_token=8, always=1.23e9, expert=48 * 4.72e6),
}
BATCHES, DRAFT = (1, 4, 16, 64, 256, 1024), 0.25e9
for alpha in (0.6, 0.7):
    print(f"α = {alpha}: speedup (best k) for a batch of", *(f"{batch:9d}" for batch in BATCHES))
    for name, shape in SHAPES.items():
        best = [frontier.best_length(alpha, DRAFT, batch, longest=64, **shape) for batch in BATCHES]
        print(f"   {name:32s}", *(f"{gain:5.2f} ({k:2d})" for k, _, gain in best))

c = {name: frontier.draft_cost(DRAFT, 16, **shape) for name, shape in SHAPES.items()}
print("\nc in a batch of 16:", "; ".join(f"{cost:.3f} ({name})" for name, cost in c.items()))
larger = DRAFT * c["dense"] / c["Mixtral, 2 of 8"]  # a draft model for Mixtral with the c of the dense model
same_c = frontier.best_length(0.7, larger, 16, **SHAPES["Mixtral, 2 of 8"])
print(f"Mixtral with the dense model's c, batch of 16, α = 0.7: {same_c[2]:.2f} ({same_c[0]})")

# %% [markdown]
# A mixture gains *less* in small batches. For a single sequence hardly anything is left, and for the fine-grained model also for a
# few sequences; at α = 0.6 the best is not to draft at all. In a larger batch the plain pass touches nearly all experts anyway, so
# $v$ goes back to 1 and verification is free, until arithmetic decides.
#
# Then it gains *more*, for two reasons. The first is no property of mixtures: the same draft model stands beside a pass that reads
# all experts, so its share $c$ is 0.005 instead of 0.035. With a draft model of the dense model's $c$, Mixtral gains 2.51 in a
# batch of 16, where the dense model gains 2.53. The second is: arithmetic decides later, because a mixture reads many weights and
# computes with few. The sparser it is, the larger are the batches that still gain. Huang et al. (2025, arXiv:2505.19645) found
# both ends by measuring. So when somebody reports that speculation made a mixture slower, ask for the batch size first.

# %% [markdown]
# ## How do the drafters hang together? (20 minutes)
#
# Lessons 09 and 10 built three drafters that use the target's hidden states: Medusa, EAGLE and DFlash. Each of them has relatives,
# and an interviewer may ask about any. Two questions tell them apart. *What is a run given?* And *how many runs have to wait for
# one another?* A position that is told the draft token before it guesses better, but it has to wait until that token is there.

# %%
from minispec_course.labs.drafting import tokens_per_pass
from minispec_course.labs.pairs import STORIES

viz.family_tree(k=4)

# %% [markdown]
# A dashed box is not in minispec, and its line is told from the paper. Hydra (Ankner et al., 2024, arXiv:2402.05109) chains
# Medusa's heads. P-EAGLE (Hui et al., 2026, arXiv:2602.01469) is *parallel drafting* with EAGLE's layer, where one learnt vector
# stands for every state that is not there yet. DSpark (Cheng et al., 2026, arXiv:2607.05147) comes with DeepSeek-V4 models and
# answers both questions at once: a block is computed in one run, as by DFlash, and then a head small enough to cost next to nothing
# goes along it and adds to the logits of each position what follows from the draft token before. A second head estimates the
# confidences of the section on budgets. All others are in the library.

# %% [markdown]
# ### The drafter that comes with the model
#
# EAGLE's layer is trained after the target. DeepSeek-V3 (DeepSeek-AI, 2024, arXiv:2412.19437) and Qwen3-Next train such a module
# *with* the model, as a second objective beside the next token: **multi-token prediction**, MTP. Its pair is that of EAGLE-1, the
# last state $h_t$ and the token $x_{t+1}$ that came next, but each half has an RMSNorm of its own before they are joined:
#
# $$f_t = \text{layer}\bigl(W\,[\,\text{norm}_e(\text{emb}(x_{t+1}));\; \text{norm}_h(h_t)\,]\bigr), \qquad
# q(x_{t+2}) = \text{softmax}\bigl(\text{head}(\text{norm}(f_t))\bigr)$$
#
# Embedding and LM head are the target's ([`MTPHead`](../minispec/drafters/mtp.py)). There is one such module, so for a second
# draft token it is *chained*: $f_t$ stands in for the state $h_{t+1}$ that only the target could compute. DeepSeek hands $f_t$ on
# as it is, Qwen3-Next hands on $\text{norm}(f_t)$, and there is a difference in training, too: DeepSeek-V3's module has learnt
# from true states alone, and Qwen3-Next's also from chains.
#
# ### Predict
#
# `micro` comes with an MTP module and with an EAGLE-3 head (the one of lesson 10, with a norm for each stream, as in EAGLE-3.1, and
# handing on its feature un-normed). Both are small, and both were trained on stories that it told. As chains of three draft tokens,
# on four beginnings of stories:

# %%
prompts = STORIES["stories"][:4]
chains = {"EAGLE-3": ms.drafters.Eagle(micro, tree=False), "MTP": ms.drafters.MTP(micro)}
eagle = tokens_per_pass(micro, chains["EAGLE-3"], prompts, k=3, new_tokens=60)
print(f"EAGLE-3: {eagle:.2f} tokens per forward pass")

# %% tags=["nbval-ignore-output"]
guess = viz.predict("And the MTP module, which reads one layer of the target instead of three?", "tokens per pass")
guess

# %% [markdown]
# ### Run

# %% tags=["spoiler"]
per_pass = {"EAGLE-3": eagle, "MTP": tokens_per_pass(micro, chains["MTP"], prompts, k=3, new_tokens=60)}
for name, drafter in chains.items():
    steps = "  ".join(f"{share:.2f}" for share in drafter.head.accuracy)
    print(f"{name:8s} {per_pass[name]:.2f} tokens per forward pass; right at step 1, 2, 3 of a draft: {steps}")

# %% [markdown]
# ### Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
guess.reveal(per_pass["MTP"])

# %% [markdown]
# The two drafters are close, although EAGLE-3 reads three layers and was trained on more than three times as many tokens
# ([micro-eagle](../minispec/data/micro-eagle/README.md), [micro-mtp](../minispec/data/micro-mtp/README.md)). So do not take the
# gap for a verdict on the two designs: with so little training it says more about the training. What the designs do share is the
# cost: one run of one layer per draft token in both, and each run waits for the one
# before. (The shares at step 1, 2 and 3 are measured on stories of all temperatures, where guessing is harder than in greedy
# output.)
#
# A module that was trained with its model starts from far more. DeepSeek-V3's report gives an acceptance rate between 85 and 90 %
# for the one token that it drafts. That is the reason why large models are served with MTP and $k$ of 1 to 3, and why the question
# "which drafter?" is often answered by the checkpoint. `ms.drafters.MTP(target)` is the drafter, `python -m recipes mtp` makes a
# module for a target that has none.

# %% [markdown]
# ## In production
#
# vLLM's newer model runner has block verification since the summer of 2026
# ([#46781](https://github.com/vllm-project/vllm/pull/46781)), and for SGLang it is proposed
# ([#36516](https://github.com/sgl-project/sglang/pull/36516), which quotes 2 to 6 % more throughput for vLLM). With argmax drafts,
# common in both, it changes nothing. But argmax drafts have a price of their own when the target samples: a draft token is
# accepted with probability $p(\arg\max q)$ instead of $\sum \min(p, q)$, which is less if the draft model is well calibrated.
# vLLM's recipe for DeepSeek-V4-Flash changed to sampled drafts in August 2026 and reports about 15 % more speed
# ([recipes #751](https://github.com/vllm-project/recipes/pull/751)). An earlier version in vLLM's backend for Ascend had two bugs that this
# lesson's tests would have shown: it accepted by a wrong condition, and it sampled the replacement from the residual of the other
# rule ([#7807](https://github.com/vllm-project/vllm-ascend/issues/7807)). Hugging Face transformers uses draft models of another
# vocabulary since release 4.46 (*universal assisted generation*, by way of text,
# [#33383](https://github.com/huggingface/transformers/pull/33383)), and since 4.50 with the token-level intersection, which allows
# speculative sampling.
#
# When you evaluate such a feature in your own system, ask three questions before you look at the speed-up: is the reported $q$
# the distribution that was sampled from, does any choice look at a token that it decides about, and what happens to the state of
# the drafter after a rejection?

# %% [markdown]
# ## Check yourself
#
# <details><summary>When do block verification and the rule of lesson 06 accept the same number of tokens?</summary>
#
# If there is one draft token; if every token before the last has a ratio $p/q$ of at least 1, so that no deficit is there to be
# made up for; and if nothing was sampled, because then no ratio exceeds 1. </details>
#
# <details><summary>A colleague maps draft ids to target ids by text, and reports the draft model's softmax without
# renormalising it over the shared tokens. What goes wrong?</summary>
#
# The reported $q$ is too small on every shared token, so too many draft tokens are accepted and the residual is too large. The
# output leans to what the draft model likes. It is the same bug as reporting $q$ before top-p.
# </details>
#
# <details><summary>May a server drop draft tokens whose $q(d)$ is below 0.1, to save verification?</summary>
#
# Not if they were sampled: which tokens are verified would depend on the tokens. It may stop drafting where the *peak* of $q$ is
# low, or keep the unlikely token and stop after it, or drop what it likes if the draft is greedy. </details>

# %% [markdown]
# ## Read the papers
#
# - Sun et al., 2025: *Block verification accelerates speculative decoding*
#   ([arXiv:2403.10444](https://arxiv.org/abs/2403.10444)): the rule, and a proof that for one chain and one cycle no other accepts
#   more from the same information.
# - Timor et al., 2025: *Accelerating LLM inference with lossless speculative decoding algorithms for heterogeneous vocabularies*
#   ([arXiv:2502.05202](https://arxiv.org/abs/2502.05202)): three ways to use a draft model of another vocabulary; ours is the
#   token-level intersection.
# - Dong et al., 2024: *XGrammar: flexible and efficient structured generation engine for large language models*
#   ([arXiv:2411.15100](https://arxiv.org/abs/2411.15100)): masks for context-free grammars, for every step.
# - Huang et al., 2025: *MoESD: unveil speculative decoding's potential for accelerating sparse MoE*
#   ([arXiv:2505.19645](https://arxiv.org/abs/2505.19645)): why a mixture gains at moderate batches, with measurements.
# - DeepSeek-AI, 2024: *DeepSeek-V3 technical report* ([arXiv:2412.19437](https://arxiv.org/abs/2412.19437)): section 2.2 on
#   multi-token prediction, and its acceptance rate as a drafter.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - `minispec drill` asks `block-verification`, `other-vocabulary`, `one-draft-budget`, `penalties-under-speculation`,
#   `constraints-on-drafts`, `logprobs-under-speculation`, `experts-touched`, `moe-best-batch`, `mtp-what`.
# - [Exercises 15](../exercises/15_the_frontier.ipynb), then [16 Beyond one GPU](16_beyond_one_gpu.ipynb).
