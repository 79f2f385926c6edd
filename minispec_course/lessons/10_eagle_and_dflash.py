# %% [markdown]
# # 10 EAGLE, MTP and DFlash
#
# *Time:* 65 minutes · *Before this:* [05 Draft and verify](05_draft_and_verify.ipynb), [09 Medusa](09_medusa.ipynb) · *Practice:* [exercises 10](../exercises/10_eagle_and_dflash.ipynb)
#
# This lesson moves **tokens per forward pass**; on a GPU, ms per token follows. Medusa's heads guess several positions
# side by side, and none of them knows which token another one chose. **EAGLE** drafts token by token, and every step is
# told what the step before has chosen: one decoder layer that runs again and again. **MTP** is such a layer that ships with
# the model. **DFlash**, a block-diffusion drafter, fills a block in one run.
#
# You will write the two pieces that people get wrong: which state is paired with which token, and what a block may attend
# to. Your loop from lesson 05 will draft with both.
#
# You will be able to
#
# - say which hidden state EAGLE pairs with which token, and which position the pair predicts;
# - explain attention drift, and what EAGLE 3.1 changes;
# - write the mask with which DFlash trains on many blocks.

# %%
import torch

import minispec as ms
from minispec import drafters as D
from minispec.trace import Trace
from minispec_course import viz
from minispec_course.check import mine, yours
from minispec_course.labs import drafting
from minispec_course.labs.pairs import STORIES, course_pair, where

torch.set_grad_enabled(False)  # nothing is trained here
loop = mine("05.loop")  # yours, if you wrote it
target = ms.load("micro", device="cpu", dtype=torch.float64)
PROMPT = "One day, a girl named Lily"
prompt = target.encode(PROMPT)
plain = ms.generate(target, prompt, max_new_tokens=60)
story = prompt + plain.tokens

# %% [markdown]
# ## What the target already knows
#
# A separate draft model works out from the tokens alone what the sequence is about. The target has done that work: at
# every position, after each layer there is a vector of $d$ numbers: the embedding plus what the layers so far have added
# (the *residual stream*). EAGLE (Li et al., 2024, arXiv:2401.15077) drafts from such vectors, which it calls
# **features**.
#
# EAGLE-3 (Li et al., 2025, arXiv:2503.01840) takes three streams per position, from a low, a middle and a high layer, and
# multiplies them by one trained matrix, $\text{fc}$. Late streams are larger than early ones, so the head that ships
# with minispec normalises each of them first. The hat is RMSNorm: $\widehat h = h / \sqrt{\operatorname{mean}(h^2) + \varepsilon}$.
#
# $$g_t = \text{fc}\,\bigl[\,\widehat{h}^{\text{low}}_t;\; \widehat{h}^{\text{mid}}_t;\; \widehat{h}^{\text{high}}_t\bigr]$$

# %%
head = D.EagleHead.load(target)
# as in lesson 05, this target runs on all tokens of a prompt but the last, so a dummy 0 goes to the end
streams = drafting.Target(target, [*story, 0], head.hidden_layers).streams  # [3, T, d], of every token of the story
low, _, high = streams.square().mean(-1).sqrt().mean(-1)
print("streams after layers", list(head.hidden_layers), "of", target.config.num_layers, "·", tuple(streams.shape))
print(f"the high stream is {high / low:.1f} times as large as the low one")

# %% [markdown]
# ## Which token belongs to which feature?
#
# The feature $g_t$ knows which tokens are likely at position $t + 1$. It cannot know which of them was chosen: if the
# target hesitated between "dog" and "cat", the feature is the same in both cases, but the continuations differ. So EAGLE
# pairs each feature with the token that came *after* it:
#
# ```
# position     0     1     2     3
# tokens      x0    x1    x2    x3        x3 was just chosen: the target has not processed it
# features    g0    g1    g2
# entries     (g0, x1)    (g1, x2)    (g2, x3)
# ```
#
# One decoder layer attends over these entries. Its output at an entry, $f_t$, goes through a norm and the LM head.
#
# ### Yours: the entries
#
# `streams` is a tensor `[3, T, d]` of the positions that the target has processed, `text` a list of T + 1 tokens, `fc` a
# matrix `[d, 3d]` and `eps` the ε of the norm. Return the features `[T, d]`, the token that is paired with each, and the
# position whose token each entry predicts.


# %%
@yours("10.features")
def eagle_entries(
    streams: torch.Tensor, text: list[int], fc: torch.Tensor, eps: float
) -> tuple[torch.Tensor, list[int], list[int]]:
    """The input of EAGLE's layer: a feature and a token for each entry, and the position that it predicts."""
    ### BEGIN SOLUTION: normalise each stream, join them, fc; then, which token can feature t not know?
    size = torch.sqrt(streams.square().mean(-1, keepdim=True) + eps)  # [3, T, 1]
    low, middle, high = streams / size
    features = torch.cat([low, middle, high], dim=-1) @ fc.T  # [T, d]
    return features, text[1:], [t + 2 for t in range(len(features))]
    ### END SOLUTION


# %% [markdown]
# ## Draft with it
#
# For the first draft token the target's feature is there. The second step would need $g_{t+1}$, which only the target
# could compute, so EAGLE takes the layer's own output $f_t$ in its place, and so on. The class below does that on your
# entries, and has what your loop asks of a draft model: `length`, `read`, `rewind`.


# %%
class Eagle:
    """EAGLE's chain of draft tokens. It has no cache: every step runs the layer over all entries."""

    def __init__(self, target, prompt, entries=eagle_entries):
        self.target, self.tokens, self.entries = target, prompt[:-1], entries
        self.own, self.runs = [], 0  # the layer's outputs f in this draft; how often it ran

    @property
    def length(self):
        return len(self.tokens)

    def read(self, tokens):
        self.tokens = self.tokens + tokens
        # the target has processed n positions, so there are n features, and the last of them is paired with token n
        n = self.target.length
        g, after, _ = self.entries(self.target.streams, self.tokens[: n + 1], head.fc.weight, head.config.norm_eps)
        f = drafting.run_layer(head, torch.cat([g, *self.own]), [*after, *self.tokens[n + 1 :]])  # [entries, d]
        self.own.append(f[-1:])
        self.runs += 1
        return drafting.everywhere(head, head.logits(f[-1:]))  # [1, V]

    def rewind(self, length):
        self.tokens, self.own = self.tokens[:length], []  # accepted tokens get true features in the next cycle


def decode(make, layers, k=4):
    """60 tokens by your loop of lesson 05: verify passes, runs of the drafter, and whether the output is right."""
    large = drafting.Target(target, prompt, layers)
    drafter = make(large, prompt)
    tokens = loop(large, drafter, prompt, k, 60)
    return large.passes, drafter.runs, tokens == plain.tokens


passes, runs, same = decode(Eagle, head.hidden_layers)
print(f"{passes} verify passes, {60 / passes:.2f} tokens per pass; the layer ran {runs} times; same output: {same}")

# %% [markdown]
# Now suppose that you had forgotten the shift and paired $g_t$ with $x_t$. Nothing crashes. With the shift it took 31
# passes; without any drafter it takes 60.


# %% tags=["nbval-ignore-output"]
shift_guess = viz.predict("Without the shift: how many verify passes for the 60 tokens?", "passes")
shift_guess


# %% tags=["spoiler"]
def not_shifted(streams, text, fc, eps):
    features, _, positions = eagle_entries(streams, text, fc, eps)
    return features, text[:-1], positions


passes, runs, same = decode(lambda *given: Eagle(*given, entries=not_shifted), head.hidden_layers)
print(f"{passes} verify passes, {60 / passes:.2f} tokens per pass; same output: {same}")

# %% tags=["spoiler", "nbval-ignore-output"]
shift_guess.reveal(passes)

# %% [markdown]
# The drafter is useless, and no test of the output can reveal it, because the target verifies every token. **Only the
# acceptance tells.** So compare a drafter's accuracy in your engine with the one that its training reported.
#
# Step through EAGLE; come back for DFlash later:

# %% tags=["nbval-ignore-output"]
viz.drafting_steps(target, PROMPT, {"EAGLE": D.Eagle(target, tree=False), "DFlash": D.DFlash(target, tree=False)}, k=5)

# %% [markdown]
# ## Training for the second step
#
# A layer that was trained on the target's features alone meets its own features for the first time when it drafts. The
# first EAGLE is therefore trained to reproduce the target's next feature. EAGLE-3 drops that loss, because it restricts
# what the layer can learn, and **unrolls** the draft in training instead: from every position it makes several steps,
# each on the output of the step before. The authors call this **training-time test**.
#
# ## Attention drift
#
# Does the layer then behave the same at every step? At step 4 of a draft in our story, about forty entries hold the
# target's features and three the layer's own.

# %% tags=["nbval-ignore-output"]
drift_guess = viz.predict("At step 4, what fraction of the attention goes to the draft's own three entries?", "%")
drift_guess


# %% tags=["spoiler"]
def watch_draft(n, steps=8):
    """A draft after n tokens, fed with the story's own: at each step the size of f, and where the attention goes."""
    g, after, _ = eagle_entries(streams[:, :n], story[: n + 1], head.fc.weight, head.config.norm_eps)
    own, found = [], []
    for j in range(steps):
        weights = []
        f = drafting.run_layer(head, torch.cat([g, *own]), [*after, *story[n + 1 : n + 1 + j]], weights)
        own.append(f[-1:])
        found.append(
            [f[-1].square().mean().sqrt(), *(weights[0][part].sum() for part in (0, slice(-3, None), slice(n, None)))]
        )
    return torch.tensor(found)


drift = torch.stack([watch_draft(n) for n in range(20, 60, 2)]).mean(0)  # [steps, 4], over twenty drafts
print("step   size of f   attention to: the first entry   the newest three   the draft's own")
for step, (size, first, newest, to_own) in enumerate(drift.tolist(), 1):
    print(f"{step:4} {size:11.1f} {first:31.1%} {newest:18.0%} {to_own:17.0%}")

# %% tags=["spoiler", "nbval-ignore-output"]
drift_guess.reveal(float(100 * drift[3, 3]))

# %% [markdown]
# Each step adds to the residual stream and hands the sum on, so $f$ grows at every step. The attention moves once: from
# step 2 on, 37 to 50 % goes to the draft's own entries. Recency explains part of it: step 1 also prefers its newest
# entries. In this small head it then stays there; in published EAGLE-3 and MTP heads it keeps moving. This **attention drift**
# (Eldenk et al., 2026, arXiv:2605.09992) shifts attention from the prompt, above all from its first token (the *attention
# sink*), to the tokens that the drafter has just proposed. Such a drafter degrades sharply under an unfamiliar chat template
# or a long context.
#
# **EAGLE 3.1** ([EAGLE, vLLM and TorchSpec teams, May 2026](https://vllm.ai/blog/2026-05-26-eagle-3-1)) makes two changes:
#
# - each of the three streams has a norm before $\text{fc}$, so that the high one does not dominate (`fc_norm` in a
#   checkpoint's settings);
# - the *normed* output goes into the next step, $\widehat{f}_t$ in place of $f_t$, so that it does not grow (`norm_output`).
#
# Our head has only the first, which is why you could watch $f$ grow. The drift paper reports acceptance lengths up to 2
# times as long under changed templates, and 1.10 times on standard benchmarks.
#
# ## MTP: a layer that ships with the model
#
# DeepSeek-V3 (DeepSeek-AI, 2024, arXiv:2412.19437) trains such a layer together with the model, as **multi-token
# prediction** (MTP). It takes your pair, with the last hidden state as the feature. The report says that this objective
# improves the model itself, and gives an acceptance rate of 85 to 90 % for the one token it drafts. Longer drafts apply
# the layer to its own output, as in EAGLE.

# %% [markdown]
# ## DFlash: a block of blanks
#
# EAGLE and MTP need $k$ runs for $k$ draft tokens. DFlash (Chen et al., 2026, arXiv:2602.06036) needs one. Its input is a
# block, the last token $x_n$ and blanks at positions $n + 1$, $n + 2$, …, and its output is a distribution for every
# blank at once: *block diffusion* with a single denoising step. All blanks are the same vector: minispec trains it,
# published heads take the embedding of a mask token.
#
# Each of its few layers also has keys and values of the **context**, one feature of the target per position before $n$,
# fused from several layers as EAGLE's is. Inside the block attention is bidirectional: every position attends to the
# whole block.

# %% [markdown]
# ### Yours: what a block attends to
#
# In training, blocks begin at many random positions of a sequence, the **anchors**, and lie side by side in one pass of the
# drafter. A mask keeps them from copying the answers. It has a row for every position of every block, and with anchors 2
# and 5 these columns:
#
# ```
# context 0 1 2 3 4 5 6 …  |  x2 _ _  |  x5 _ _
# ```
#
# `anchors` says where the blocks begin, `length` how many context positions there are, `block` how many positions a block
# has. Return a boolean mask `[rows, length + rows]`, True where a position may attend, and the position of each row in the
# sequence.
#
# At the moment of drafting $x_n$ has just been chosen: which features of the target exist?


# %%
@yours("10.block_mask")
def block_mask(anchors: list[int], length: int, block: int) -> tuple[torch.Tensor, list[int]]:
    """What every position of every block attends to, and where it stands in the sequence."""
    ### BEGIN SOLUTION: for each row, two conditions: one on the context, one on the block's number
    number = torch.arange(len(anchors) * block) // block  # which block a row belongs to
    before = torch.arange(length) < torch.tensor(anchors)[number][:, None]  # strictly before its anchor
    own = number[:, None] == number
    return torch.cat([before, own], dim=1), [n + j for n in anchors for j in range(block)]
    ### END SOLUTION


# %% [markdown]
# For *drafting*, your mask is asked for a single block whose anchor is the newest token.


# %%
blocks = D.DFlashHead.load(target)


class DFlash:
    """A block per cycle: the first `read` fills all blanks, and the next ones hand out what is there."""

    def __init__(self, target, prompt):
        self.target, self.tokens, self.filled, self.runs = target, prompt[:-1], [], 0

    @property
    def length(self):
        return len(self.tokens)

    def read(self, tokens):
        self.tokens = self.tokens + tokens
        if not self.filled:
            n = self.target.length
            mask, positions = block_mask([n], n, blocks.block)
            [rows] = drafting.fill_blanks(target, blocks, self.target.streams, self.tokens[n:], mask, positions)
            self.filled, self.runs = list(rows), self.runs + 1
        return self.filled.pop(0)[None]

    def rewind(self, length):
        self.tokens, self.filled = self.tokens[:length], []


# %% [markdown]
# The third blank is filled without knowing what went into the second. EAGLE took 31 verify passes and 124 runs of its
# layer.

# %% tags=["nbval-ignore-output"]
block_guess = viz.predict("DFlash drafts the same four tokens per cycle in one run: how many verify passes?", "passes")
block_guess

# %% tags=["spoiler"]
passes, runs, same = decode(DFlash, blocks.hidden_layers)
print(f"{passes} verify passes, {60 / passes:.2f} tokens per pass; {runs} runs of the drafter; same output: {same}")

# %% tags=["spoiler", "nbval-ignore-output"]
block_guess.reveal(passes)

# %% [markdown]
# A few verify passes more, and far fewer runs. Which is faster depends on what a run costs beside a pass of the target.
#
# ## Tokens per pass, side by side
#
# Now minispec's own versions, with the caches that we left out, on your device. A chain has $k = 5$ draft tokens (Medusa,
# with four heads, has 4), a tree up to 24; the last cycles before the token limit draft fewer. EAGLE-2 (Li et al., 2024,
# arXiv:2406.16858) grows its tree by the draft's own probabilities: deep where the layer is certain, wide where it is
# not. For DFlash a tree needs no further run, because one run scores every blank.

# %% tags=["nbval-ignore-output"]
quick, quick_draft = course_pair(ms.device())
print(f"{quick.name} on {where(quick.device)}")
drafters = {
    "small model": D.Model(quick_draft),
    "Medusa": D.Medusa(quick, tree="chain"),
    "EAGLE": D.Eagle(quick, tree=False),
    "DFlash": D.DFlash(quick, tree=False),
    "EAGLE tree": D.Eagle(quick, nodes=24),
    "DFlash tree": D.DFlash(quick, nodes=24),
}
run = {name: ms.speculate(quick, STORIES["stories"], each, 5, 32) for name, each in drafters.items()}
traces = {name: Trace.of(outs) for name, outs in run.items()}
for name, trace in traces.items():
    print(f"{name:12} {trace.tokens_per_cycle:.2f} tokens per pass from {trace.drafted_per_cycle:4.1f} draft tokens")

# %% tags=["nbval-ignore-output"]
viz.acceptance_by_position({name: trace for name, trace in traces.items() if "tree" not in name})

# %% [markdown]
# From position 1 to 3 EAGLE, which is told each token, falls a little, and DFlash, which is not, by about half. Read no
# more into the slopes: a small marker stands for few cycles, and Medusa's rise is survivorship: only easy cycles get that
# far. The small model, `micro-draft`, learnt from `micro`'s own outputs, and only EAGLE's tree beats it. The heights say
# little about the methods: these heads were trained for minutes, and the DFlash paper reports higher speed-ups than
# EAGLE-3.
#
# ## The dashboard
#
# The chatbot keeps the faster of plain decoding and EAGLE's chain. On a CPU EAGLE loses in spite of its tokens per pass:
# `micro` has only six layers, so a run of EAGLE's layer costs a large part of a plain pass, a cycle needs four, and a
# pass of five tokens costs more than a pass of one. Beside a target of 32 layers the same layer is cheap.

# %% tags=["nbval-ignore-output"]
outs = [ms.generate(quick, PROMPT, 64), ms.speculate(quick, PROMPT, drafters["EAGLE"], 4, 64)]
plainly, with_eagle = (1e3 * out.seconds / len(out.tokens) for out in outs)
print(f"ms per token: plain {plainly:.2f}, EAGLE {with_eagle:.2f}")
viz.dashboard("10", ms_per_token=min(plainly, with_eagle))

# %% [markdown]
# ## In production
#
# | here | vLLM | SGLang |
# |---|---|---|
# | EAGLE-3, EAGLE 3.1 | `"method": "eagle3"`; streams: *auxiliary hidden states* | `--speculative-algorithm EAGLE3` |
# | MTP | `"method": "mtp"`, for models that ship with it | `NEXTN` |
# | DFlash | `"method": "dflash"`, chains | `DFLASH` |
# | training a head | *speculators* | *SpecForge* |
#
# If the target is fine-tuned, the old head's drafts are accepted less often, so monitor the acceptance rate.
#
# <details><summary>Go deeper: what is inside EAGLE's layer</summary>
#
# With $e$ for the embedding of $x_{t+1}$: $r_t = g_t + \text{attention}([\,\widehat{e};\, \widehat{g}_t\,])$ and
# $f_t = r_t + \text{MLP}(\widehat{r}_t)$. Queries, keys and values are computed from $2d$ numbers; the rest is an ordinary
# decoder layer. Published EAGLE-3 heads usually score a reduced vocabulary, with a table `d2t` from draft to target ids,
# because reading the LM head is most of what a draft costs.
# </details>
#
# ## Check yourself
#
# <details><summary>The target has processed positions 0 to 30, and token 31 was just chosen. Which feature and which token
# make EAGLE's newest entry, and which position does it predict?</summary>
#
# Feature 30 and token 31 make the newest entry, and it predicts position 32.
# </details>
#
# <details><summary>Why must a block attend to the context strictly before its anchor?</summary>
#
# When DFlash drafts, the target has not processed $x_n$, so its feature does not exist yet. In training it does, and it
# holds the target's own prediction of the first blank. A block that sees it learns to rely on what it will not have.
# </details>
#
# <details><summary>A head is right most of the time at step 1, and hardly ever at step 2. What went
# wrong?</summary>
#
# First rule out that your engine feeds back the wrong state. Otherwise, the head was probably trained on the target's
# features alone: unroll the draft in training.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Li et al., 2024: *EAGLE* ([arXiv:2401.15077](https://arxiv.org/abs/2401.15077)): drafting hidden states, and why the
#   chosen token must be fed back.
# - Li et al., 2025: *EAGLE-3* ([arXiv:2503.01840](https://arxiv.org/abs/2503.01840)): features of several layers, and
#   training on the drafter's own outputs.
# - Eldenk et al., 2026: *Attention drift* ([arXiv:2605.09992](https://arxiv.org/abs/2605.09992)): why drafts go wrong at
#   depth.
# - Chen, Liang, Liu, 2026: *DFlash* ([arXiv:2602.06036](https://arxiv.org/abs/2602.06036)): a whole block in one pass.
#
# All papers: [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - A tree that grows where the draft is likely, from scratch: [exercises 10](../exercises/10_eagle_and_dflash.ipynb).
# - Interview questions (`minispec drill`): `eagle`, `training-time-test`, `dflash`, `medusa-eagle-dflash`,
#   `mtp-what`, `mtp-speed`, `attention-drift`, `shifted-eagle`.
# - [11 Speculation in a server](11_speculation_in_a_server.ipynb): all of this for many requests at once.
