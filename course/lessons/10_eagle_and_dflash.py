# %% [markdown]
# # 10 EAGLE and DFlash
#
# *Time:* 50 minutes · *Before this:* [09 Medusa](09_medusa.ipynb) · *Practice:* [exercises 10](../exercises/10_eagle_and_dflash.ipynb)
#
# Medusa's heads predict several positions side by side, and none of them knows which token another one chose. So the
# second token of a draft may not fit the first. How can a drafter use the target's hidden states, as Medusa does, and
# still draft tokens that fit together? This lesson shows two ways. **EAGLE** drafts token by token: every step is given
# the token that the step before has chosen. **DFlash** drafts a whole block in one forward pass, in which the positions
# of the block attend to one another.
#
# You will be able to
#
# - say which hidden state EAGLE pairs with which token, and which position the pair predicts;
# - explain why EAGLE-3 is trained on its own outputs, and what changed from EAGLE to EAGLE-2 and EAGLE-3;
# - grow a draft tree from the draft's own probabilities;
# - sketch DFlash's block mask on paper, and say what an anchor is;
# - interpret acceptance by position, and say what training adds.

# %%
import math

import torch
import torch.nn.functional as F

import minispec as ms
from minispec import tree
from minispec.bench.prompts import STORIES
from minispec.course import drafting, viz
from minispec.drafters import growth
from minispec.drafters.dflash import load_head

D = ms.drafters
target = ms.load("micro", device="cpu", dtype=torch.float64)
prompt = target.encode("One day, a girl named Lily")
plain = ms.generate(target, prompt, max_new_tokens=60)
story = prompt + plain.tokens  # the prompt and what the target generates after it

# %% [markdown]
# ## What does EAGLE start from?
#
# A separate draft model has to work out from the tokens alone what the sequence is about. The target has already done
# that work: at every position it has processed, each of its layers has left a residual stream, a vector of $d$ numbers
# that leads from the token to a prediction of the next one. EAGLE uses these vectors, which it calls **features**.
#
# The first EAGLE (Li et al., 2024, arXiv:2401.15077) takes one feature per position, the state just before the LM head.
# EAGLE-3 (Li et al., 2025, arXiv:2503.01840) takes three residual streams, from a low, a middle and a high layer, joins
# them and multiplies with a trained matrix called $\text{fc}$:
#
# $$g_t = \text{fc}\,\bigl[\,\widehat{h}^{\text{low}}_t;\; \widehat{h}^{\text{mid}}_t;\; \widehat{h}^{\text{high}}_t\bigr]$$
#
# The hat stands for a normalisation of each stream to size one. EAGLE-3 as published has no hats: it feeds the raw
# streams to $\text{fc}$. Normalising each stream first came with [EAGLE-3.1](https://vllm.ai/blog/2026-05-26-eagle-3-1)
# (`fc_norm` in vLLM), and minispec does it too. The next cell shows why it matters.

# %%
head = D.EagleHead.load(target)
streams = drafting.streams_of(target, head, story)  # layer → [1, T, d]
sizes = {layer: float(stream.square().mean().sqrt()) for layer, stream in streams.items()}
print("streams after layers:", list(head.hidden_layers), "of", target.config.num_layers)
print("the last is larger than the first by a factor of", round(sizes[6] / sizes[2]))

# %% [markdown]
# Without the norm, the high layer would dominate the product with $\text{fc}$ by its size alone.
# [`fuse`](../minispec/drafters/eagle.py) computes the formula:

# %%
with torch.no_grad():
    normed = [F.rms_norm(streams[n], (288,), eps=target.config.norm_eps) for n in head.hidden_layers]
    by_hand = torch.cat(normed, -1) @ head.fc.weight.T  # [1, T, 3d] → [1, T, d]
    g = head.fuse([streams[n] for n in head.hidden_layers])
print("three streams", tuple(torch.cat(normed, -1).shape), "become one feature", tuple(g.shape))
print("fuse computes the formula:", torch.allclose(by_hand, g))

# %% [markdown]
# ## Which token belongs to which feature?
#
# The feature $g_t$ knows which tokens the target considers likely at position $t + 1$. It cannot know which of them was
# sampled. If the target hesitated between "dog" and "cat", the feature is the same in both cases, but the continuations
# differ. EAGLE removes this uncertainty by pairing each feature with the token that came *after* it:
#
# ```
# position     0     1     2     3
# tokens      x0    x1    x2    x3        x3 was just sampled: the target has not processed it
# features    g0    g1    g2
# entries     (g0, x1)    (g1, x2)    (g2, x3)
# predicts        x2          x3          x4
# ```
#
# One decoder layer processes the entries, and its output $f_t$ gives the draft's distribution $q$ for the token after
# $x_{t+1}$:
#
# $$f_t = \text{layer}\bigl(x_{t+1},\, g_t\bigr), \qquad q(x_{t+2}) = \text{softmax}\bigl(\text{head}(\text{norm}(f_t))\bigr)$$
#
# Here "head" means the target's LM head, which EAGLE borrows together with the embedding.

# %% [markdown]
# ## Predict
#
# Suppose that an implementation forgets the shift and gives the same trained layer the pairs $(g_t, x_t)$. Nothing
# crashes, since all shapes are right. With the shift, about half of the layer's first guesses in this story are right.

# %% tags=["nbval-ignore-output"]
shift_guess = viz.predict("Without the shift: at how many positions of 100 is its first guess right?", "positions")
shift_guess

# %% [markdown]
# ## Run

# %% tags=["spoiler"]
with_shift, without = (drafting.step_accuracy(target, head, story, len(prompt), shift=shift)[0] for shift in (1, 0))
print(f"with the shift: {with_shift:.2f}")
print(f"without:        {without:.2f}")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
shift_guess.reveal(100 * without)

# %% [markdown]
# This kind of bug is hard to notice, because the target verifies every token and the output stays correct; only the
# acceptance rate shows it. So a test of such a drafter has to compare its accuracy with the one measured in training.

# %% [markdown]
# ## What does the second step start from?
#
# For the first draft token the target's feature is there. The second step would need $g_{t+1}$, which only the target
# could compute. EAGLE uses its own output $f_t$ instead. Every further step is given the token just chosen and the
# feature just computed.
#
# A layer that was trained on the target's features alone meets its own features for the first time when it drafts, and
# its accuracy falls from step to step. The first EAGLE counters this by a second loss that makes $f_t$ similar to the
# target's true feature at position $t + 1$. EAGLE-3 drops this feature loss, because it restricts what the layer can learn, and **unrolls**
# the draft in training instead. From every position of a training sequence it drafts a few steps, each on the features
# of the step before:
#
# $$\text{loss} = \sum_{j \ge 0} 0.8^j \; \text{CE}\left(p_{t+1+j},\; \text{step } j \text{ from } t\right)$$
#
# As in lesson 09, CE is the cross-entropy, and $p_s$ is the distribution that the target computes at position $s$ for the
# token after it. The authors call it **training-time test**,
# because the layer is trained in the conditions in which it will be used. In [`unroll`](../minispec/train/eagle.py) the
# draft from position $t$ attends to the true entries up to $t$ and to its own later steps, and to no other draft. Is
# this what the drafter computes when it drafts? We let both guess five tokens from the same position.

# %%
drafted, unrolled = drafting.drafted_and_unrolled(target, head, story, position=len(prompt) + 10, k=5)
print("drafted and unrolled guesses agree:", drafted == unrolled)

# %% [markdown]
# How fast does the accuracy fall with the step? The first line is measured on the story above, over five steps. The
# second line is measured on held-out stories, over the three steps for which this layer was trained. In both cases a
# later step is given the story's true tokens and the layer's own features.

# %%
here = drafting.step_accuracy(target, head, story, len(prompt), steps=5)
print("here:     ", "  ".join(f"{a:.2f}" for a in here))
print("held out: ", "  ".join(f"{a:.2f}" for a in head.accuracy))

# %% [markdown]
# The accuracy falls with the step, and it falls most after the third step, where training never went. (The story is
# short, so differences of a few hundredths in the first line mean nothing.)

# %% [markdown]
# ## A tree that grows where the draft is likely
#
# Medusa's tree has the same shape in every cycle, because its shape is chosen before. EAGLE-2 (Li et al., 2024,
# arXiv:2406.16858) observes that the draft's own probabilities predict quite well which tokens will be accepted, and
# lets the tree follow them. Where the draft is certain the tree grows deep, where it is not it grows wide. The value of
# a node is the probability of its whole path, the product from the root.
#
# 1. Expand the root: its most probable children are depth 1.
# 2. Of the newest depth, expand the `width` most probable nodes, all in one pass of the layer. Repeat until the tree is `k`
#    deep.
# 3. Of all nodes of all depths, keep the `nodes` most probable ones.
#
# [`grow`](../minispec/drafters/growth.py) does this for any draft. A toy draft with two tokens, which is more certain
# after token 0 than after token 1, shows it:

# %%
after = {None: (0.7, 0.3), 0: (0.9, 0.1), 1: (0.5, 0.5)}  # the draft's distribution after each token


def children(token):
    return [(x, math.log(p)) for x, p in enumerate(after[token])]


def expand(grown, nodes):
    return [children(grown.tokens[node]) for node in nodes]


grown, _ = growth.grow(children(None), expand, depth=3, width=2, budget=6)
for node in range(len(grown.tokens)):
    path = [grown.tokens[n] for n in tree.path_to(grown.parents, node)]
    joint = math.prod(after[before][x] for before, x in zip([None, *path], path, strict=False))
    print(f"{joint:.3f}  {path}")

# %% [markdown]
# With the trained layer, trees of 16 nodes take different shapes from cycle to cycle:

# %%
out = ms.speculate(target, prompt, D.Eagle(target, head, nodes=16), k=5, max_new_tokens=60)
shapes = [tuple(tree.depths(cycle.parents).count(depth) for depth in range(1, 6)) for cycle in out.trace.cycles[:-1]]
print("same tokens as plain decoding:", out.tokens == plain.tokens)
print("forward passes:", out.trace.target_passes, "· more than three shapes:", len(set(shapes)) > 3)
print("nodes at depth 1 to 5, the widest and the deepest:", max(shapes), min(shapes))

# %% [markdown]
# The tree consists of the most probable tokens; nothing is sampled. So every $q$ is one-hot, and the multi-candidate
# rule of lesson 09 keeps the output exact at any temperature.

# %% [markdown]
# ## Multi-token prediction: a drafter that comes with the model
#
# EAGLE's layer is trained after the target, on its outputs. DeepSeek-V3 (DeepSeek-AI, 2024, arXiv:2412.19437) trains
# such a layer together with the model, as **multi-token prediction** (MTP). Its module takes the same pair as EAGLE,
# the hidden state of a position and the embedding of the next token, normalises both, joins them and applies one
# transformer block. According to the report this extra objective improves the model itself, and afterwards the module
# serves as a drafter that needs no further training. The report gives an acceptance rate between 85 and 90 % for its
# one additional token. Used for more than one token, such a module is applied to its own output like EAGLE's layer, and
# the acceptance falls with the step.

# %% [markdown]
# ## DFlash: a block of blanks
#
# EAGLE needs five passes of its layer, one after another, to draft five tokens. DFlash (Chen et al., 2026,
# arXiv:2602.06036) needs one. Its input is the last token followed by blanks, which are copies of one trained vector,
#
# ```
# [x_n, blank, blank, blank, blank, blank]        at positions n, n + 1, …
# ```
#
# and its output is a distribution for every blank at once. Besides the last token, all it knows of the sequence is the
# **context**: the target's fused residual streams of all positions before $n$, which serve as keys and values in each
# of its layers. Inside the block attention is bidirectional: every position attends to every other. This is the idea of
# masked diffusion models, applied in a single step.

# %%
blocks = load_head(target)
print("positions in a block:", blocks.block, "· layers:", len(blocks.layers), "· streams:", list(blocks.hidden_layers))
for name, drafter, layer in (
    ("EAGLE", D.Eagle(target, head, nodes=32), head.self_attn),
    ("DFlash", D.DFlash(target, blocks, tree=False), blocks.layers[0].self_attn),
):
    with drafting.counted(layer) as passes:
        trace = ms.speculate(target, prompt, drafter, k=5, max_new_tokens=60).trace
    print(f"{name}: its layer runs {len(passes) / trace.target_passes:.0f} times per cycle")

# %% [markdown]
# ## How is a block trained?
#
# A training sequence is cut at random positions, the **anchors**. At each anchor a block begins, as if the drafter
# stood there. One forward pass of the target serves all blocks of a sequence, and the blocks lie side by side in one
# pass of the drafter. A mask keeps them apart:
#
# - a position attends to the context strictly **before** its anchor;
# - a position attends to all of its **own** block, and to no other block.
#
# Why strictly before? When DFlash drafts, $x_n$ has just been sampled and the target has not processed it, so its state
# does not exist yet. In training it does exist, and a block that could attend to it would learn to rely on what it will
# not have.

# %%
anchors, length, B = [2, 5], 7, 3
print("             context          block 0   block 1")
for number, anchor in enumerate(anchors):
    for j in range(B):
        context = ["#" if position < anchor else "." for position in range(length)]
        own = [" ".join("#" if number == other else "." for _ in range(B)) for other in range(len(anchors))]
        print(f"position {anchor + j}   {' '.join(context)}    {'     '.join(own)}")

# %% [markdown]
# [`read_blocks`](../minispec/train/dflash.py) builds this mask for training. If it is right, a block among others gives
# the same logits as the drafter alone at that position. And a change of the tokens after an anchor must not reach its
# block.

# %%
together = drafting.blocks_together(target, blocks, story, [10, 20, 40])  # [3 blocks, blanks, V]
alone = [drafting.block_alone(target, blocks, story, anchor) for anchor in (10, 20, 40)]
print("the same as alone:", [torch.allclose(a, b) for a, b in zip(together, alone, strict=True)])
changed = drafting.blocks_together(target, blocks, [*story[:21], 7, 7, 7, *story[24:]], [10, 20, 40])
touched = [not torch.allclose(a, b) for a, b in zip(together, changed, strict=True)]
print(
    "anchors whose block a change of tokens 21 to 23 reaches:",
    [a for a, t in zip((10, 20, 40), touched, strict=True) if t],
)

# %% [markdown]
# The block at anchor 20 is not affected by a change of the tokens it has to predict. If it were, training would teach
# it to copy the answer.
#
# In the loss the $j$-th blank has the weight $e^{-(j-1)/\tau}$ with a constant $\tau$. The first blanks count most, as
# they did for Medusa and EAGLE, because a wrong token makes all later ones worthless.
#
# The paper takes the most probable token of every blank and verifies the resulting **chain**, as vLLM does. Since one
# pass yields a whole distribution for every blank, a **tree** of the most probable combinations costs the drafter no
# further pass. minispec's `D.DFlash` drafts such a tree by default, and the chain with `tree=False`.

# %% [markdown]
# ## What does training add?
#
# None of the three starts from random weights. A new Medusa head repeats the LM head, EAGLE's layer starts as a copy of
# the target's last layer, and DFlash's two layers as copies of its first and last. So how well do they draft before
# training?

# %% tags=["nbval-ignore-output"]
training_guess = viz.predict("Untrained EAGLE, a chain of 5: how many tokens per forward pass?", "tokens")
training_guess

# %% tags=["spoiler"]
trained = {
    "Medusa": D.Medusa(target, tree="chain"),
    "EAGLE": D.Eagle(target, head, tree=False),
    "DFlash": D.DFlash(target, blocks, tree=False),
}
prompts = STORIES["stories"][:4]
untrained = {name: drafting.tokens_per_pass(target, d, prompts) for name, d in drafting.untrained(target).items()}
print("chains, greedy, tokens per forward pass of the target")
for name, drafter in trained.items():
    after_training = drafting.tokens_per_pass(target, drafter, prompts)
    print(f"{name:7} untrained {untrained[name]:.2f}   trained {after_training:.2f}")

# %% tags=["spoiler", "nbval-ignore-output"]
training_guess.reveal(untrained["EAGLE"])

# %% [markdown]
# Before training hardly any draft token is accepted, because the copied parts were made for a different input or for a
# different position. Training changes that in minutes.
#
# And what does a draft cost with each of them? All three borrow the embedding and the LM head from the target. The next
# cell counts the parameters that each adds, and the passes for a draft of five tokens, with the small model of lesson
# 05 for comparison.

# %%
draft = ms.load("micro-draft", device="cpu", dtype=torch.float64)
for name, module, passes in (
    ("small model", draft.transformer, "5 passes, one after another"),
    ("Medusa", D.MedusaHeads.load(target), "1 matrix product"),
    ("EAGLE", head, "5 passes, one after another"),
    ("DFlash", blocks, "1 pass"),
):
    count = sum(weight.numel() for weight in module.parameters())
    print(
        f"{name:12} {count / 1e6:.2f} million parameters, {count / target.num_parameters:.0%} of the target; {passes}"
    )

# %% [markdown]
# `micro` has six layers, so one more layer is a large part of it. In a model of 32 or 80 layers EAGLE's one layer is a
# few percent.
#
# Before comparing them with the small model, look at how much training each has had. These are steps times tokens per
# step, from the cards of [micro-draft](../minispec/data/micro-draft/README.md),
# [micro-medusa](../minispec/data/micro-medusa/README.md), [micro-eagle](../minispec/data/micro-eagle/README.md) and
# [micro-dflash](../minispec/data/micro-dflash/README.md).

# %%
taught = {"small model": 8000 * 32_000, "Medusa": 1500 * 1500, "EAGLE": 800 * 512, "DFlash": 800 * 512}
for name, tokens in taught.items():
    print(f"{name:12} trained on {tokens / 1e6:5.1f} million tokens")
small = drafting.tokens_per_pass(target, D.Model(draft), prompts)
print(f"the small model, a chain of 5: {small:.2f} tokens per forward pass")

# %% [markdown]
# The small model had to learn the language from scratch. The other three had to learn only how to use states that already
# contain it, which is why minutes on a CPU bring them so far. Published heads are trained far longer, on the target's
# answers to hundreds of thousands of prompts.
#
# So do not take the order of the drafters here as a result about the methods. On `micro`, after minutes of training,
# EAGLE's chain accepts more tokens than DFlash's; the DFlash paper, with full training and longer blocks, reports
# higher speed-ups than EAGLE-3. In the curves below, look at how acceptance changes with the position rather than at its
# height.
#
# `smollm2` has heads that were trained on a GPU, also for minutes. Try `minispec demo --model smollm2 --drafter eagle`,
# and see [the benchmarks](../docs/benchmarks.md) for the tokens per forward pass with them, by kind of prompt.

# %% [markdown]
# ## Play: acceptance by position
#
# Every drafter drafts five deep on the same prompts. On the left is the probability that a draft token is accepted at a
# position, given that all before it were; small marks are positions that few cycles reached. On the right are the
# tokens per forward pass, and how many were drafted for them.
#
# One effect can mislead you here. Only cycles whose earlier tokens were all accepted reach a late position, and those
# are the predictable passages. So a curve can stay flat or even rise with the position, although the drafter gets no
# better (survivorship), and the size of the marks shows when that may be the case.

# %% tags=["nbval-ignore-output"]
quick = ms.load("micro", device="cpu")
drafters = {
    "small model": D.Model(ms.load("micro-draft", device="cpu")),
    "Medusa tree": D.Medusa(quick, nodes=24),
    "EAGLE chain": D.Eagle(quick, tree=False),
    "EAGLE tree": D.Eagle(quick, nodes=24),
    "DFlash chain": D.DFlash(quick, tree=False),
    "DFlash tree": D.DFlash(quick, nodes=24),
}
runs = viz.measure_positions(quick, drafters, STORIES, k=5, new_tokens=32)
viz.positions(runs)

# %% [markdown]
# Try this:
#
# 1. Bring out the DFlash chain and the EAGLE chain in turn. Which curve falls faster with the position, and why?
# 2. Compare EAGLE's chain with its tree, then DFlash's. What does a tree add at position 1, and how many more tokens does
#    the target have to process for it?
# 3. Set the temperature to 1, where the target samples. Trees and blocks propose the most probable tokens, whereas the
#    small model and EAGLE's chain sample theirs. Which of them loses most?
# 4. Change the kind of prompt. Is the order of the drafters the same?

# %% [markdown]
# ## In production
#
# - **EAGLE-3** in vLLM is `"method": "eagle3"` with the head as `model`; the streams are called *auxiliary hidden states*.
#   In SGLang it is `--speculative-algorithm EAGLE3`, with `--speculative-num-steps` (depth), `--speculative-eagle-topk`
#   (width) and `--speculative-num-draft-tokens` (nodes). A reduced vocabulary comes with a table `d2t`, draft to target,
#   for our `head_ids`.
# - **DFlash** is `"method": "dflash"` in vLLM and `--speculative-algorithm DFLASH` in SGLang. A longer block costs no more
#   passes, so published blocks are longer than ours.
# - **MTP** is `"method": "mtp"` in vLLM, for models that ship with such a module.
# - **Training** has tools of its own: *speculators* in the vLLM project, *SpecForge* in the SGLang project.
# - **Large batches** favour chains, since a tree makes the pass wide. Lesson 11 shows what that costs.
#
# A head belongs to one target. If the target is fine-tuned, an old head still gives exact output and is accepted less
# often. Nothing breaks, so the acceptance rate has to be monitored.

# %% [markdown]
# ## Check yourself
#
# <details><summary>The target has processed positions 0 to 30, and token 31 was just sampled. Which feature and which token
# make EAGLE's newest entry, and which position does it predict?</summary>
#
# Feature 30 and token 31 make the newest entry, and it predicts position 32.
# </details>
#
# <details><summary>Why does DFlash's acceptance tend to fall faster with the position than EAGLE's?</summary>
#
# Its blanks are filled at once. The third blank cannot know which token the second one gets, only which tokens are
# likely there. EAGLE is given its own second token before it chooses the third. In exchange DFlash needs one pass
# instead of five.
# </details>
#
# <details><summary>A head reaches an accuracy of 0.8 at step 1 and 0.2 at step 2. What went wrong in its training?</summary>
#
# It was probably trained on the target's features alone, so that at step 2 it meets its own features for the first time.
# The remedy is to unroll the draft in training.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Li et al., 2024: *EAGLE: speculative sampling requires rethinking feature uncertainty*
#   ([arXiv:2401.15077](https://arxiv.org/abs/2401.15077)): drafting hidden states, and why the sampled token must be
#   fed back.
# - Li et al., 2024: *EAGLE-2: faster inference of language models with dynamic draft trees*
#   ([arXiv:2406.16858](https://arxiv.org/abs/2406.16858)): trees that follow the draft model's confidence.
# - Li et al., 2025: *EAGLE-3: scaling up inference acceleration of large language models via training-time test*
#   ([arXiv:2503.01840](https://arxiv.org/abs/2503.01840)): features of several layers, and training on the drafter's
#   own outputs.
# - DeepSeek-AI, 2024: *DeepSeek-V3 technical report* ([arXiv:2412.19437](https://arxiv.org/abs/2412.19437)): a drafter
#   that is trained together with the model.
# - Chen, Liang, Liu, 2026: *DFlash: block diffusion for flash speculative decoding*
#   ([arXiv:2602.06036](https://arxiv.org/abs/2602.06036)): a whole block in one pass.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - [Exercises 10](../exercises/10_eagle_and_dflash.ipynb): entries and features, the block mask, a tree that grows.
# - `minispec drill` asks `eagle`, `training-time-test`, `dflash`, `medusa-eagle-dflash`.
# - [11 Speculation in a server](11_speculation_in_a_server.ipynb): all of this for many requests at once.
