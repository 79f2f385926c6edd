# %% [markdown]
# # 15b The frontier
#
# *Time:* 80 minutes · *Before this:* [10 EAGLE, MTP and DFlash](10_eagle_and_dflash.ipynb), [11 speculation in a server](11_speculation_in_a_server.ipynb), [15 beyond the chain](15_beyond_the_chain.ipynb) · *Practice:* [exercises 15](../exercises/15_the_frontier.ipynb)
#
# This lesson moves **no number on the dashboard** of our small chatbot. It is about what the large ones are adding in 2026: one
# budget of draft tokens for all users, models whose layers keep a state instead of keys and values, models that read only some
# of their weights, and the drafters published since those of lesson 10. Statements about other engines are as of November 2026.
#
# You will be able to
#
# - divide one verification budget among many users, and say which ways of doing it bias the output;
# - rewind a recurrent state, and say what that costs;
# - say when a mixture of experts gains less from speculation than a dense model, and when more;
# - say what a drafter is given, and how often it waits for its own tokens.

# %%
from itertools import accumulate
from operator import mul

import torch

import minispec as ms
from minispec_course import formulas, viz
from minispec_course.check import mine, yours
from minispec_course.labs import frontier

# %% [markdown]
# ## One budget for everyone
#
# Four users are being served, and each has a draft of four tokens. A verify pass is nearly free only up to some number of
# tokens. Say that this one has room for seven draft tokens. One user copies code, where nearly everything is accepted, and
# another one wants a poem. Who gets the seven?
#
# For each draft token we have a **confidence**: an estimate of the probability that it is accepted, if all before it are. The
# token is worth something only if it **survives**, which means that it and all tokens before it in its draft are accepted. So
# its expected value is the product of the confidences up to and including its own.
#
# ### Yours: the budget
#
# `confidences[s][j]` belongs to draft token $j$ of sequence $s$. Return how many tokens of each draft are verified, at most
# `budget` in all, such that as many as possible survive on average. Only prefixes of drafts can be verified. Use the whole
# budget if there are enough draft tokens; between equally good ones the first sequence wins.


# %%
@yours("15.budget")
def slots(confidences: list[list[float]], budget: int) -> list[int]:
    """How many tokens of each draft to verify."""
    ### BEGIN SOLUTION: one slot at a time, to the token that is most likely to survive
    lengths = [0] * len(confidences)
    alive = [1.0] * len(confidences)  # the probability that all tokens taken so far are accepted
    for _ in range(budget):
        able = [s for s, row in enumerate(confidences) if lengths[s] < len(row)]
        if not able:
            break
        best = max(able, key=lambda s: alive[s] * confidences[s][lengths[s]])
        alive[best] *= confidences[best][lengths[best]]
        lengths[best] += 1
    return lengths
    ### END SOLUTION


# %%
users = {
    "copies code": [0.95, 0.9, 0.9, 0.85],
    "answers": [0.6, 0.5, 0.5, 0.4],
    "hesitates once": [0.9, 0.4, 0.9, 0.9],
    "writes a poem": [0.3, 0.3, 0.2, 0.2],
}
print("survival probability; * marks the seven tokens that are verified")
for (name, row), taken in zip(users.items(), slots(list(users.values()), 7), strict=True):
    print(f"{name:15}", *(f"{x:.2f}{'*' if i < taken else ' '}" for i, x in enumerate(accumulate(row, mul))))

# %% [markdown]
# Along a draft the survival probability only falls. So taking the largest values of all, one after the other, always takes
# prefixes, and no other seven are worth more.
#
# ## Which budget is exact?
#
# Where do confidences come from? Here are three candidates:
#
# 1. **What $q$ gave the sampled token**, $q(d)$. An unlikely draft token will probably be rejected, so leave it out.
# 2. **The peak of $q$**, $\max_x q(x)$, which is known before the token is sampled.
# 3. **The peak again, and the budget itself follows from it**: two draft tokens if the two largest survival probabilities add
#    up to more than 1.4, else none.
#
# Two sequences draft two tokens each from a vocabulary of two, and share a budget of two, divided by your function. We compute
# the exact joint distribution of what both emit first, and compare it with plain decoding. The models:

# %%
for s in (0, 1):
    print(f"sequence {s}: p {frontier.TARGETS[s].tolist()}, q of the first draft token {frontier.DRAFTS[s].tolist()}")
print(
    f"q of the second draft token, in both: {frontier.AFTER[0].tolist()} after token 0, {frontier.AFTER[1].tolist()} after 1"
)

# %% tags=["nbval-ignore-output"]
guess_fair = viz.predict("How many of the three keep the output exact?")
guess_fair


# %% tags=["spoiler"]
def of_the_token(q, d):
    return float(q[d])


def peak(q, d):
    return float(q.max())


# confidence(q, d) rates a draft token; budget(worth), with all confidences, says how many are verified; `slots` divides them
off = {
    "1. q of the sampled token": frontier.bias(of_the_token, lambda worth: 2, slots),
    "2. peak of q": frontier.bias(peak, lambda worth: 2, slots),
    "3. peak of q, two or none": frontier.bias(peak, lambda worth: 2 if frontier.best_two(worth) > 1.4 else 0, slots),
}
for name, distance in off.items():
    print(f"{name:27} {'exact' if distance < 1e-12 else f'off by {distance:.3f}'}")

# %% tags=["spoiler", "nbval-ignore-output"]
guess_fair.reveal(sum(distance < 1e-12 for distance in off.values()))

# %% [markdown]
# **Whether a token is verified must not depend on that token.** If unlikely tokens are left out after they were sampled, those
# that stay no longer follow the $q$ that the verifier divides by. The decision may depend on everything that was known before
# the token was sampled: its prefix, the other sequences, earlier steps.
#
# The second rule keeps to that. The peak at a second position does depend on the first token, but a token never ranks above
# those before it in its draft, so it can take a slot from another sequence and never from its own predecessor. The third rule
# breaks this quietly: the second token's peak moves the *total*, and with it whether the first token is verified. With
# confidences like the peak's, a fixed budget is safe, and so is one computed from earlier steps.
#
# One budget can gain only in the middle: an idle machine verifies everything anyway, and a full one nothing. SmartSpec (Liu et
# al., 2024, arXiv:2406.14066) chose lengths by what a batch can afford. vLLM has done your ranking on the GPU since the summer
# of 2026, and computes the size of the budget from *older* confidences, so that it need not wait for the GPU
# ([#47808](https://github.com/vllm-project/vllm/pull/47808)). That keeps it exact.
#
# ## A state that cannot be cut
#
# So far a rejection has been free: keys and values of rejected tokens lie after the end of the cache, so a shorter length
# removes them (lesson 02). But many new models are **hybrids** (Qwen3.5, Nemotron 3): most layers are recurrent (Mamba-2, gated
# DeltaNet), and a few are attention. A recurrent layer keeps one matrix per head, whatever the length:
#
# $$S_t = a\,S_{t-1} + v_t k_t^\top, \qquad y_t = S_t\, q_t$$
#
# (Mamba-2's form, with a constant $a$; Dao and Gu, 2024, arXiv:2405.21060). Here $k_t$, $v_t$ and $q_t$ are the token's key,
# value and query vectors, as in attention, not the $k$ and $q$ of drafting. The matrix never grows, which is why long
# contexts are cheap. But after a verify pass it contains the rejected tokens, and no length cuts them off. Solving
# for $S_{t-1}$ would divide by $a$ in every step and amplify the rounding error, and gated DeltaNet's update need not be
# invertible.
#
# ### Yours: rewind a state
#
# Keep **checkpoints**: copies of the state, `{position: state after so many tokens}`. Given `step(state, token)`, all
# processed `tokens`, and the `length` to go back to, return the state after the first `length` tokens, with as few steps as
# possible, and those of the given checkpoints that are still valid. One of them is always at or before `length`.


# %%
@yours("15.checkpoint")
def rewind_state(checkpoints: dict, step, tokens: list[int], length: int) -> tuple:
    """The state after the first `length` tokens, and the checkpoints that have seen no rejected token."""
    ### BEGIN SOLUTION: from which checkpoint can you go on? which tokens does it lack?
    start = max(at for at in checkpoints if at <= length)
    state = checkpoints[start]
    for token in tokens[start:length]:
        state = step(state, token)
    return state, {at: kept for at, kept in checkpoints.items() if at <= length}
    ### END SOLUTION


# %% [markdown]
# Here is a toy target of one such layer, with random weights, in the form that your loop of lesson 05 knows: `length`, `read`,
# `rewind`. The draft model is the same layer with some noise in its output.

# %%
loop = mine("05.loop")
V, D = 50, 16
table = torch.randn(4, V, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))  # k, v, q, LM head
noise = torch.randn(V, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
PROMPT = [3, 14, 15, 9, 2, 6]


class Recurrent:
    """One recurrent layer. every: it stores a checkpoint after so many tokens of a pass; None: only before the pass."""

    def __init__(self, every=1, blur=0.0):
        self.every, self.head = every, table[3] + blur * noise
        self.tokens, self.state, self.checkpoints = [], torch.zeros(D, D, dtype=torch.float64), {}
        self.passes = self.stored = self.again = 0
        self.read(PROMPT[:-1])

    @property
    def length(self):
        return len(self.tokens)

    def step(self, state, token):
        return 0.9 * state + torch.outer(table[1, token], table[0, token])

    def read(self, tokens):
        copies, logits = {self.length: self.state}, []
        for i, token in enumerate(tokens, 1):
            self.state = self.step(self.state, token)
            self.tokens.append(token)
            if self.every and i % self.every == 0:
                copies[self.length] = self.state
            logits.append(self.head @ self.state @ table[2, token])
        self.passes, self.stored = self.passes + 1, self.stored + len(copies.keys() - self.checkpoints.keys())
        self.checkpoints |= copies  # a server drops older ones
        return torch.stack(logits)  # [n, V]

    def rewind(self, length):
        def counted(state, token):
            self.again += 1
            return self.step(state, token)

        self.state, self.checkpoints = rewind_state(self.checkpoints, counted, self.tokens, length)
        del self.tokens[length:]


def plain(count):
    model, tokens = Recurrent(), [PROMPT[-1]]
    for _ in range(count):
        tokens.append(int(model.read(tokens[-1:])[0].argmax()))
    return tokens[1:]


right = plain(60)
for name, every in {"after every token": 1, "after every second token": 2, "before a pass only": None}.items():
    target = Recurrent(every)
    same = loop(target, Recurrent(blur=0.2), PROMPT, k=4, count=60) == right
    print(f"a checkpoint {name:24} {target.stored / target.passes:.1f} states written,", end=" ")
    print(f"{target.again / target.passes:.1f} tokens processed again per pass; same output: {same}")

# %% [markdown]
# In a deep model, tokens that are processed again go through all layers, unless their inputs were kept.
#
# Now forget the state: use a rewind that only shortens the list of tokens, as for a KV cache. In lesson 10 a forgotten shift
# changed nothing in the output.

# %% tags=["nbval-ignore-output"]
guess_wrong = viz.predict(
    "Without rewinding the state: how many of the 60 tokens come before the first wrong one?", "tokens"
)
guess_wrong


# %% tags=["spoiler"]
class Forgetful(Recurrent):
    def rewind(self, length):
        del self.tokens[length:]


wrong = loop(Forgetful(), Recurrent(blur=0.2), PROMPT, k=4, count=60)
first = next((i for i in range(60) if wrong[i] != right[i]), 60)
print(f"{first} right tokens, then the first wrong one; {sum(map(int.__eq__, wrong, right))} of 60 agree in all")

# %% tags=["spoiler", "nbval-ignore-output"]
guess_wrong.reveal(first)

# %% [markdown]
# A bug in what a drafter guesses costs only speed, as long as $q$ is what it sampled from. A bug in the target's state costs
# the output, and only a test that compares it with plain decoding finds it (lesson 14).
#
# A hybrid that tells stories is `micro-hybrid`: three gated DeltaNet layers and one of attention. Its
# [cache](../minispec/recurrent.py) keeps the state after every token of a verify pass, so `speculate` is exact as always:

# %%
hybrid, small = (ms.load(name, dtype=torch.float64) for name in ("micro-hybrid", "micro-draft"))
alone = ms.generate(hybrid, "Once upon a time", 60)
drafted = ms.speculate(hybrid, "Once upon a time", ms.drafters.Model(small), k=4, max_new_tokens=60)
states = drafted.trace.drafted_per_cycle + 1
print(f"{drafted.trace.tokens_per_cycle:.1f} tokens and {states:.1f} states of each recurrent layer per pass;", end=" ")
print(f"same tokens: {drafted.tokens == alone.tokens}\n{drafted.text.strip()}")

# %% [markdown]
# (The story repeats itself, which helps.) What do checkpoints cost at scale? In Qwen3.5-397B the recurrent states of one
# sequence take 90 MiB ([vLLM #54080](https://github.com/vllm-project/vllm/issues/54080); that is two bytes per number, and
# float32 doubles it). vLLM stores one copy per verified token:

# %%
for k, sequences in ((3, 1), (3, 64), (7, 64)):
    print(f"k = {k}, sequences: {sequences:2}, checkpoints: {90 * (k + 1) * sequences / 1024:5.2f} GiB")

# %% [markdown]
# So newer work goes the other way. ReplaySSM (Dao AI Lab and NVIDIA, [2026](https://dao-lab.ai/blog/2026/replayssm/)) stores
# the *inputs* of the last tokens, a few vectors each instead of a matrix, and rebuilds states from them. Its authors report
# 1.87 to 1.96 times the speed of plain decoding at serving batch sizes, where vLLM's speculation with snapshots was slower than plain. Trees
# need special kernels, because each sibling needs a state of its own.
#
# ## Only some of the weights
#
# In a **mixture of experts** (MoE) a router gives each token to a few of many MLPs (Shazeer et al., 2017, arXiv:1701.06538).
# So one token reads few weights. But verification is cheap because five tokens read the *same* weights as one (lesson 01),
# and here each token may use others. If every token chose $e$ of $E$ experts uniformly and independently, it would skip a
# given expert with probability $1 - e/E$, and a pass over $M$ tokens would touch $E\left(1 - (1 - e/E)^M\right)$ experts.
# (On text it is less: in Mixtral's middle layers consecutive tokens share at least one in 62 to 67 % of cases, where
# independent choices would give 46 %; Jiang et al., 2024, arXiv:2401.04088, table 5.)
#
# On the roofline of an H200, with a draft model of 250 million parameters, an acceptance of 0.7 and the best $k$ (0 means no
# drafting):

# %%
SHAPES = {  # parameters: `always` is read by every pass (attention, router, LM head), `expert` is one expert in all layers
    "dense, 7.1 B": dict(experts=1, per_token=1, always=1.47e9, expert=32 * 176.2e6),
    "Mixtral, 2 of 8": dict(experts=8, per_token=2, always=1.47e9, expert=32 * 176.2e6),
    "Qwen3-30B-A3B, 8 of 128": dict(experts=128, per_token=8, always=1.23e9, expert=48 * 4.72e6),
}
print(f"Mixtral: one token touches 2 of 8 experts, five touch {formulas.experts_touched(8, 2, 5):.1f}")
BATCHES = (1, 4, 16, 64, 256, 1024)
print(f"{'speed-up (best k) for a batch of':34}", *(f"{batch:9}" for batch in BATCHES))
for name, shape in SHAPES.items():
    best = [frontier.best_length(0.7, 0.25e9, batch, longest=64, **shape) for batch in BATCHES]
    print(f"{name:34}", *(f"{gain:5.2f} ({k:2})" for k, _, gain in best))

# %% [markdown]
# An MoE model gains *less* for one user or a few, because every draft token brings its own experts. In a larger batch the
# plain pass touches nearly all of them anyway, so verification is free again, and it gains *more* than the dense model:
# beside so many weights the same draft model costs little, and the pass becomes compute-bound later, because each token uses
# only a few of the weights. Huang et al. (2025, arXiv:2505.19645) measured both ends. So if speculation made an MoE model
# slower, ask for the batch size.
#
# ## The family tree
#
# Two questions place any drafter that uses the target's hidden states. *What is a run*, a forward pass of the drafter,
# *given?* And *how many runs have to wait for one another?* A position that is told the token before it guesses better, but
# it has to wait for that token.

# %%
viz.family_tree(k=4)

# %% [markdown]
# A dashed box is not in minispec; its entry is taken from the paper or the authors' page. (EAGLE-3.1 is in lesson 10.)
# DSpark's four steps are those of its small head. Hydra (Ankner et al., 2024, arXiv:2402.05109) chains Medusa's heads, and
# P-EAGLE (Hui et al., 2026, arXiv:2602.01469) runs EAGLE's layer on blanks.
#
# Why did blocks need a second generation? Suppose that the text continues with *New York* or with *Los Angeles*, equally likely.
# Blanks sampled independently of one another give *New Angeles* as often as *New York*. Two answers:
#
# - **DSpark** (Cheng et al., 2026, arXiv:2607.05147) fills the block in one run, as DFlash does. Then a tiny head goes along it,
#   and adds to the logits of each position a low-rank term for the token that was just chosen. A second head estimates
#   confidences for the budget above. [Lesson 08](08_drafters.ipynb) has its tokens per pass. For DeepSeek-V4-Flash its authors report 60 to
#   85 % more tokens per second per user than with MTP, at the same throughput.
# - **DFlash 2** (Inco AI, [August 2026](https://inco.ai/blog/dflash2/)) keeps 16 candidates at each position, scores all pairs
#   of neighbours at once, and follows the best path. Small convolutions mix neighbouring positions inside its layers. Its
#   authors measured Qwen3.5-4B on GSM8K: DFlash 4.99 tokens per pass, DSpark 5.69, DFlash 2 6.20.
#
# For `micro` all three use the weights of DFlash's block; the other two add a head of 0.2 million parameters each. Only
# DSpark can sample; the others take the likeliest tokens, so their $q$ is one-hot.

# %%
micro, block = ms.load("micro"), ms.drafters
OPENINGS = ["Once upon a time", "Lily found a", "The little dog", "One day, a boy named Tim", "In the garden"]
for name, drafter in {
    "DFlash": block.DFlash(micro, tree=False),
    "DSpark": block.DSpark(micro),
    "DFlash 2": block.DFlash2(micro, tree=False),
}.items():
    trace = ms.Trace.of(ms.speculate(micro, OPENINGS, drafter, 5, 60))
    print(f"{name:8} {trace.tokens_per_cycle:.2f} tokens per pass, {trace.drafted_per_cycle:.1f} drafted")

# %% [markdown]
# DSpark gets as far as DFlash 2 (their difference is noise) with 3.4 instead of 4.8 draft tokens, because it stops where it
# expects a rejection. Its decision uses everything before the token, but not the token. With SmolLM2 and a tree of 60 nodes
# the pairs help less ([2.77 tokens per pass instead of 2.62](../minispec/data/smollm2-dflash2/README.md)): such a tree holds
# many combinations anyway.
#
# Two ideas beside the tree:
#
# - **PARD** (An et al., 2025, arXiv:2504.18583) trains an ordinary small model to fill blanks. It needs no hidden states, so one
#   drafter serves a whole family of targets.
# - **Speculative speculative decoding** (Kumar et al., 2026, arXiv:2603.03251) is about waiting itself. While the target
#   verifies, the draft model, on its own GPU, guesses how the verification will end, and drafts for the likely outcomes.
#   Its authors report up to twice the speed of speculative decoding.
#
# How often can one guess the outcome? It is a pair: how many tokens are accepted, and which token follows. The likeliest are
# prepared; if the real one is not among them, the model drafts as usual.

# %%
draft = ms.load("micro-draft")
for outcomes in (1, 4, 16):
    ahead = ms.drafters.Ahead(ms.drafters.Model(draft), outcomes)
    ms.speculate(micro, OPENINGS, ahead, 4, 60)
    drafts = ahead.hits + ahead.misses
    print(f"prepared for {outcomes:2} outcomes: the draft that was needed was there {ahead.hits} of {drafts} times")

# %% [markdown]
# On one GPU, drafting and verifying compete. With SmolLM2 and with an 8B pair of random weights on an H200
# ([benchmark](../docs/benchmarks.md#drafting-while-the-target-verifies-on-h200)), the draft was there in 27 to 73 % of the
# cycles. But preparing for 4 or 16 outcomes takes about as long as a verify pass or longer, and slows the pass down by 49 to
# 173 %. So drafting ahead yields 0.63 to 0.82 times the tokens per second of drafting in turn, and even in the best case it
# would need a hit rate of 90 % to break even. Hence the second GPU in the paper.
#
# ## In production
#
# | here | vLLM | elsewhere |
# |---|---|---|
# | one budget | `enable_adaptive_verification` | SGLang: ragged verification by confidence |
# | recurrent states | a snapshot per verified token ($k + 1$); replay [proposed](https://github.com/vllm-project/vllm/pull/49887) | SGLang: `--enable-linear-replayssm-spec`; TensorRT-LLM: [replay](https://github.com/NVIDIA/TensorRT-LLM/pull/13453) for Mamba-2 |
# | DSpark | `"method": "dspark"` | SGLang: `--speculative-algorithm DSPARK`; llama.cpp, TensorRT-LLM |
# | DFlash 2 | `"method": "dflash"`, recognised from the checkpoint ([#52816](https://github.com/vllm-project/vllm/pull/52816)) | SGLang: `DFLASH`; [mistral.rs](https://github.com/EricLBuehler/mistral.rs/pull/2386) |
#
# Hybrids are a fresh source of bugs that corrupt the output. Even with an n-gram drafter, which has no state, vLLM corrupted
# a hybrid's output ([#39273](https://github.com/vllm-project/vllm/issues/39273)).

# %% [markdown]
# ## Check yourself
#
# <details><summary>May a server drop draft tokens whose $q(d)$ is below 0.1, to save verification?</summary>
#
# Not if they were sampled: which tokens are verified would depend on the tokens. It may stop drafting where the *peak* of
# $q$ is low, keep the unlikely token and stop after it, or drop what it likes if the draft is greedy.
# </details>
#
# <details><summary>A hybrid target, $k = 4$, and the third draft token is rejected. Which state does the next pass start
# from?</summary>
#
# From the state after the last token and two draft tokens: a stored copy, or the state from before the pass and three steps.
# The correction has not been processed yet.
# </details>
#
# <details><summary>One user, an MoE model with 8 of 128 experts. Would you speculate?</summary>
#
# Hardly, says the roofline: five tokens touch more than four times as many experts as one. But it leaves out fixed costs per
# pass and neighbours that share experts, so measure, with a short and cheap drafter (MTP, $k$ = 1 or 2). With tens of users,
# yes.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Cheng et al., 2026: *DSpark: confidence-scheduled speculative decoding with semi-autoregressive generation*
#   ([arXiv:2607.05147](https://arxiv.org/abs/2607.05147)): a block, a head along it, and the budget as a system.
# - Kumar, Dao, May, 2026: *Speculative speculative decoding* ([arXiv:2603.03251](https://arxiv.org/abs/2603.03251)): drafting
#   while the target verifies.
#
# All papers: [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - How many experts a verify pass reads, counted: [exercises 15](../exercises/15_the_frontier.ipynb).
# - Interview questions (`minispec drill`): `one-draft-budget`, `hybrid-rollback`, `experts-touched`, `moe-best-batch`,
#   `dspark`, `place-a-drafter`, `draft-while-verifying`, `state-checkpoints`.
# - [16 Beyond one GPU](16_beyond_one_gpu.ipynb): more than one device.
