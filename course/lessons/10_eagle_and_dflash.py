# %% [markdown]
# # 10 EAGLE and DFlash
#
# *Time:* 50 minutes · *Before this:* [09 Medusa](09_medusa.ipynb) · *Practice:* [exercises 10](../exercises/10_eagle_and_dflash.ipynb)
#
# Medusa's heads predict several positions side by side, and none of them knows which token another one chose. So the
# second token of a draft may not fit the first. What can a drafter that uses the target's hidden states do about it? This
# lesson shows two answers. **EAGLE** removes the weakness: it drafts token by token, and every step is given the token
# that the step before has chosen. **DFlash** only softens it, and is faster in exchange: it drafts a whole block in one
# forward pass. The positions of the block share their computation, but none is told which token another one chose.
#
# You will be able to
#
# - say which hidden state EAGLE pairs with which token, and which position the pair predicts;
# - explain why EAGLE-3 is trained on its own outputs, and what changed from EAGLE to EAGLE-2 and EAGLE-3;
# - grow a draft tree from the draft's own probabilities;
# - say what DFlash is given, what its block attends to, and (with *Go deeper*) how anchors and a mask train many blocks;
# - interpret acceptance by position, and say what training adds.

# %%
import torch

import minispec as ms
from minispec import tree
from minispec.drafters.dflash import load_head
from minispec.trace import Trace
from minispec_course import viz
from minispec_course.labs import drafting
from minispec_course.labs.pairs import STORIES, course_pair, where

D = ms.drafters
target = ms.load("micro", device="cpu", dtype=torch.float64)  # exact enough to compare token by token, on any machine
prompt = target.encode("One day, a girl named Lily")
plain = ms.generate(target, prompt, max_new_tokens=60)
story = prompt + plain.tokens  # the prompt and what the target generates after it

# %% [markdown]
# ## Four drafters
#
# All four drafters of this lesson use hidden states of the target. They differ in which states they get and in how many
# runs they need, one after another, for $k$ draft tokens. A run that is given the draft token before it has to wait for
# the run that drafts it. Only DFlash does not wait.
#
# | drafter | given | runs for $k$ draft tokens |
# |---|---|---|
# | EAGLE-1 | the state before the LM head, and the token after it | $k$ runs of one layer, one after another |
# | EAGLE-3 | states of a low, a middle and a high layer, and the token after them | $k$ runs of one layer, one after another |
# | MTP | the last hidden state and the token after it; trained with the model | $k$ runs of one layer, one after another |
# | DFlash | states of several layers, the last token and blanks | one run of a few layers, all positions together |

# %% [markdown]
# ## What does EAGLE start from?
#
# A separate draft model has to work out from the tokens alone what the sequence is about. The target has already done
# that work: at every position it has processed, each of its layers has left a residual stream, a vector of $d$ numbers
# that leads from the token to a prediction of the next one. EAGLE uses these vectors, which it calls **features**.
#
# The first EAGLE (Li et al., 2024, arXiv:2401.15077) takes one feature per position, the state just before the LM head.
# EAGLE-3 (Li et al., 2025, arXiv:2503.01840) takes three residual streams, from a low, a middle and a high layer, joins
# them and multiplies with a trained matrix called $\text{fc}$. EAGLE-3.1 normalises each stream first, and that is the form
# used here:
#
# $$g_t = \text{fc}\,\bigl[\,\widehat{h}^{\text{low}}_t;\; \widehat{h}^{\text{mid}}_t;\; \widehat{h}^{\text{high}}_t\bigr]$$
#
# The hat stands for RMSNorm: each stream is scaled so that the root mean square (RMS) of its numbers is 1
# ([`fuse`](../minispec/drafters/eagle.py)); *Go deeper* says why the hats came. How different are the sizes of the
# streams?

# %%
head = D.EagleHead.load(target)
streams = drafting.streams_of(target, head, story)  # layer → [1, T, d]
sizes = {layer: float(stream.square().mean().sqrt()) for layer, stream in streams.items()}
print("streams after layers:", list(head.hidden_layers), "of", target.config.num_layers)
print("RMS of the last over that of the first:", round(sizes[6] / sizes[2]))
print("one feature per position:", tuple(head.fuse([streams[n] for n in head.hidden_layers]).shape))  # [1, T, d]

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
# How do a token and a feature enter one layer? With $e$ for the embedding of $x_{t+1}$ and $r_t$ for the residual stream
# after attention:
#
# $$r_t = g_t + \text{attention}\bigl([\,\widehat{e};\; \widehat{g}_t\,]\bigr), \qquad f_t = r_t + \text{MLP}(\widehat{r}_t)$$
#
# Attention computes queries, keys and values from both vectors joined, $2d$ numbers. The rest is an ordinary decoder layer
# of width $d$ whose residual stream begins as $g_t$. (The heads that ship with minispec have one product more: a projection
# of $\widehat{e}$ is added to $r_t$. Other engines do not compute it, so a head for them is trained without.)
#
# The layer attends to all earlier entries, so it has a KV cache of its own, of one layer, which a server has to store and
# to rewind. "head" means an LM head. minispec borrows the target's, as the first EAGLE does, together with the embedding;
# published EAGLE-3 heads usually have an LM head of their own for a reduced vocabulary.

# %% [markdown]
# ## Predict
#
# Suppose that an implementation forgets the shift and gives the same trained layer the pairs $(g_t, x_t)$. Nothing
# crashes, since all shapes are right. With the shift, the layer's most probable token, its first guess, is the story's
# token at position $t + 2$ about half of the time.

# %% tags=["nbval-ignore-output"]
question = "Without the shift: at how many of 100 positions t is the layer's first guess the story's token at t + 2?"
shift_guess = viz.predict(question, "of 100")
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
# could compute. EAGLE uses its own output $f_t$ instead, and so does every further step:
#
# ```
#           is given                                  predicts
# step 1    g2, from the target      and x3           x4
# step 2    f2, output of step 1     and draft x4     x5
# step 3    f3, output of step 2     and draft x5     x6
# ```
#
# After verification the entries that were made from $f$ are thrown away. For the accepted tokens the target's true
# features exist by then, and the entries are made again from those.
#
# **The difficulty.** A layer that was trained on the target's features alone meets its own features for the first time
# when it drafts, and its accuracy falls from step to step.
#
# **EAGLE's answer.** The first EAGLE is trained mainly to reproduce the target's next feature, so that $f_t$ can replace
# $g_{t+1}$, and noise is added to its inputs so that it tolerates its own errors.
#
# **EAGLE-3's answer.** It drops this feature loss, because it restricts what the layer can learn, and **unrolls** the
# draft in training instead. From every position $t$ of a training sequence it makes the steps of the picture, each on the
# output of the step before, and every step is compared with the distribution of the target by cross-entropy (CE):
#
# $$\text{loss} = \sum_{j \ge 1} 0.8^{j-1} \; \text{CE}\left(p_{t+j},\; \text{step } j \text{ from } t\right)$$
#
# As in lesson 09, $p_s$ is the distribution that the target computes at position $s$ for the token after it; the weights
# 0.8 are those of our trainer. The authors call this **training-time test**, because the layer is trained in the
# conditions in which it will be used ([`unroll`](../recipes/eagle.py)).
#
# How fast does the accuracy fall with the step? The first line is measured on the story above, over five steps. The
# second line is measured on held-out stories, over the three steps for which this layer was trained. In both cases a
# later step is given the story's true tokens and the layer's own features.

# %%
here = drafting.step_accuracy(target, head, story, len(prompt), steps=5)
print("here:     ", "  ".join(f"{a:.2f}" for a in here))
print("held out: ", "  ".join(f"{a:.2f}" for a in head.accuracy))

# %% [markdown]
# The accuracy falls with the step. Whether it falls faster after the third step, where training never went, one story
# cannot tell: with fewer than 60 positions each number of the first line has a standard error of 0.06 to 0.07, about as
# much as the differences in question.

# %% [markdown]
# ## A tree that grows where the draft is likely
#
# Medusa's tree has the same shape in every cycle, because its shape is chosen before. EAGLE-2 (Li et al., 2024,
# arXiv:2406.16858) observes that the draft's own probabilities predict quite well which tokens will be accepted, and
# lets the tree follow them. Where the draft is certain the tree grows deep, where it is not it grows wide. The value of
# a node is the probability of its whole path, the product from the root.
#
# 1. Expand the root: its most probable children are depth 1.
# 2. Of the newest depth, expand the few most probable nodes (the width of the tree), all in one pass of the layer. Repeat
#    until the tree is $k$ deep.
# 3. Of all nodes of all depths, keep the most probable ones, as many as the verification pass may have (`nodes`).
#
# For example, let the draft give token A probability 0.7 and token B 0.3. After A it is rather certain and gives 0.9 to a
# second A; after B it gives 0.5 to each. The path A A then has 0.63 and is worth more than B alone, while B A and B B have 0.15
# each. So the tree follows A in depth first ([`grow`](../minispec/drafters/growth.py)).
#
# With the trained layer, trees of 16 nodes take different shapes from cycle to cycle:

# %%
out = ms.speculate(target, prompt, D.Eagle(target, head, nodes=16), k=5, max_new_tokens=60)
shapes = [tuple(tree.depths(cycle.parents).count(depth) for depth in range(1, 6)) for cycle in out.trace.cycles[:-1]]
print("same tokens as plain decoding:", out.tokens == plain.tokens)
print("nodes at depth 1 to 5, in the tree with most nodes at depth 1:  ", max(shapes))
print("nodes at depth 1 to 5, in the tree with fewest nodes at depth 1:", min(shapes))

# %% [markdown]
# The tree consists of the most probable tokens; nothing is sampled. So every $q$ is one-hot, and the multi-candidate
# rule of lesson 09 keeps the output exact at any temperature.

# %% [markdown]
# ## DFlash: a block of blanks
#
# EAGLE needs five runs of its layer, one after another, to draft five tokens. DFlash (Chen et al., 2026,
# arXiv:2602.06036) runs a few layers once. Its input is the last token followed by blanks (mask tokens in the paper),
# which are copies of one trained vector,
#
# ```
# [x_n, blank, blank, blank, blank, blank]        at positions n, n + 1, …
# ```
#
# and its output is a distribution for every blank at once. What it knows of the sequence is the last token and the
# **context**. The context is one fused feature per position before $n$, made from the target's residual streams as in
# EAGLE. Each layer of DFlash computes keys and values from these features, and the block attends to them as if they were
# earlier tokens. Inside the block attention is bidirectional: every position attends to every other. A masked diffusion
# model fills blanks in the same way over several rounds, some of them in each; DFlash has one round. The next cell
# counts what a draft of five tokens takes.

# %%
blocks = load_head(target)
print("positions in a block:", blocks.block, "· streams:", list(blocks.hidden_layers))
for name, drafter, layer, layers in (
    ("EAGLE", D.Eagle(target, head, tree=False), head.self_attn, 1),
    ("DFlash", D.DFlash(target, blocks, tree=False), blocks.layers[0].self_attn, len(blocks.layers)),
):
    with drafting.counted(layer) as passes:
        trace = ms.speculate(target, prompt, drafter, k=5, max_new_tokens=60).trace
    print(f"{name}: {len(passes) / trace.target_passes:.0f} × {layers} layer runs per cycle")

# %% [markdown]
# The paper takes the most probable token of every blank and verifies the resulting **chain**, as vLLM does. Since one
# pass yields a whole distribution for every blank, a **tree** costs the drafter no further pass. The value of a path is
# the product of its blanks' probabilities. Like Medusa's, this product ignores that the tokens depend on one another.
# minispec's `D.DFlash` drafts such a tree by default, and the chain with `tree=False`.
#
# In training, blocks begin at random positions of a sequence, the **anchors**. *Go deeper* below shows the mask that
# keeps them apart.

# %% [markdown]
# ## Play: which state meets which token?
#
# Step through the first draft of both. The tokens are what the two really propose after this prompt. In EAGLE's first step
# a feature of the target, $g$, meets the token after it; from the second step on the layer's own output replaces it
# ($f_1$ is the output of step 1). DFlash has one step: choose it and compare what its last blank can know with what
# EAGLE's last step is given.

# %% tags=["nbval-ignore-output"]
chains = {"EAGLE": D.Eagle(target, tree=False), "DFlash": D.DFlash(target, tree=False)}
viz.drafting_steps(target, "One day, a girl named Lily", chains, k=5)

# %% [markdown]
# ## What does training add?
#
# In minispec none of the three starts from random weights. A new Medusa head repeats the LM head. EAGLE's layer starts as a
# smaller copy of the target's last layer, and DFlash's two layers are copies of its first and last with half of the MLP
# neurons. Before training hardly any of their draft tokens is accepted, because the copied parts were made for a different
# input or for a different position. Training changes that in minutes, because the three have to learn only how to use
# states that already contain the language.

# %%
trained = {
    "Medusa": D.Medusa(target, tree="chain"),
    "EAGLE": D.Eagle(target, head, tree=False),
    "DFlash": D.DFlash(target, blocks, tree=False),
}
prompts = STORIES["stories"][:4]
print("chains, greedy, tokens per forward pass of the target")
for name, drafter in trained.items():
    print(f"{name:7} {drafting.tokens_per_pass(target, drafter, prompts):.2f}")

# %% [markdown]
# (Medusa's chain is one token shorter, because it has four heads.)
#
# Published heads are trained far longer, on the target's answers to hundreds of thousands of prompts. So do not take the
# order of the drafters here as a result about the methods. On `micro`, after minutes of training, EAGLE's chain accepts
# more tokens than DFlash's; the DFlash paper, with full training and longer blocks, reports higher speed-ups than EAGLE-3.
# In the curves below, look at how acceptance changes with the position rather than at its height.
#
# And what does a draft cost? EAGLE reads the LM head at each of its five steps, Medusa and DFlash read it once per draft.
# With the vocabulary of Llama-3-8B it has about twice the parameters of EAGLE's layer, so for EAGLE a reduced vocabulary
# saves most. *Go deeper* counts the parameters of all three.
#
# `smollm2` has heads that were trained on a GPU, also for minutes. Try `minispec demo --model smollm2 --drafter eagle`,
# and see [the benchmarks](../docs/benchmarks.md) for the tokens per forward pass with them, by kind of prompt.

# %% [markdown]
# ## Play: acceptance by position
#
# Every drafter drafts five deep on the same prompts, except Medusa, which has four heads. They run on your device, for
# `micro` on a CPU and for SmolLM2 on a GPU, each with the heads that were trained for it. A line shows how often a draft
# token is accepted at a position, given that all before it were; small marks are positions that few cycles reached. A
# click on a name in the legend hides its line, a double click hides all others.
#
# One effect can mislead you here. Only cycles whose earlier tokens were all accepted reach a late position, and those
# are the predictable passages. So a curve can stay flat or even rise with the position, although the drafter gets no
# better (survivorship), and the size of the marks shows when that may be the case.

# %% tags=["nbval-ignore-output"]
quick, quick_draft = course_pair(ms.device())
print(f"{quick.name} on {where(quick.device)}")
drafters = {
    "small model": D.Model(quick_draft),
    "Medusa tree": D.Medusa(quick, nodes=24),
    "EAGLE chain": D.Eagle(quick, tree=False),
    "EAGLE tree": D.Eagle(quick, nodes=24),
    "DFlash chain": D.DFlash(quick, tree=False),
    "DFlash tree": D.DFlash(quick, nodes=24),
}
traces = {
    name: Trace.of(ms.speculate(quick, STORIES["stories"], drafter, k=5, max_new_tokens=32))
    for name, drafter in drafters.items()
}
for name, trace in traces.items():
    print(f"{name:12} {trace.tokens_per_cycle:.2f} tokens per pass, {trace.drafted_per_cycle:4.1f} drafted for them")
viz.acceptance_by_position(traces)

# %% [markdown]
# Two questions to answer with it:
#
# 1. Compare the DFlash chain with the EAGLE chain. Which curve falls faster with the position, and why?
# 2. Compare EAGLE's chain with its tree, then DFlash's. What does a tree add at position 1, and how many more tokens does
#    the target have to process for it?

# %% [markdown]
# ## What does the clock say?
#
# More tokens per forward pass are worth their price only if the draft is cheap and the wider pass is cheap, too. So here
# are the same drafters on the clock, greedily on one prompt, as a speed-up over plain decoding on your device.

# %% tags=["nbval-ignore-output"]
timed_race = drafting.race(quick, drafters, {"story": ["One day, a girl named Lily"]}, k=5, new_tokens=32, repeat=3)
viz.drafter_speedups(timed_race)

# %% [markdown]
# Compare the trees with their chains. On a CPU a pass over 24 nodes costs several plain passes, so a tree usually loses
# against its chain although it accepts more. On a GPU, where the pass is below the ridge point, the nodes are nearly free.

# %% [markdown]
# ## Go deeper: how is a block trained?
#
# *10 more minutes.* A training sequence is cut at random positions, the **anchors**. At each anchor a block begins, as if the drafter
# stood there. One forward pass of the target serves all blocks of a sequence, and the blocks lie side by side in one
# pass of the drafter. A mask keeps them apart:
#
# - a position attends to the context strictly **before** its anchor;
# - a position attends to all of its **own** block, and to no other block.
#
# Why strictly before? When DFlash drafts, $x_n$ has just been sampled and the target has not processed it, so its state
# does not exist yet. In training it does exist, and a block that could attend to it would learn to rely on what it will
# not have.
#
# Here is the mask for a sequence of eight tokens with anchors at positions 2 and 5 and blocks of three positions:
#
# ```
#               context             block at 2   block at 5
#               0 1 2 3 4 5 6 7     2 3 4        5 6 7
# position 2    # # . . . . . .     # # #        . . .
# position 3    # # . . . . . .     # # #        . . .
# position 4    # # . . . . . .     # # #        . . .
# position 5    # # # # # . . .     . . .        # # #
# position 6    # # # # # . . .     . . .        # # #
# position 7    # # # # # . . .     . . .        # # #
# ```
#
# [`read_blocks`](../recipes/dflash.py) builds this mask for training. If it is right, a change of the tokens after
# an anchor must not reach its block. We change tokens 21 to 23 of the story and look which blocks change. And a block must
# get the same logits as from the drafter itself, which has no state of the anchor's token.

# %%
anchors = [10, 20, 40]
before = drafting.blocks_together(target, blocks, story, anchors)  # [3 blocks, blanks, V]
after = drafting.blocks_together(target, blocks, [*story[:21], 7, 7, 7, *story[24:]], anchors)
for anchor, a, b in zip(anchors, before, after, strict=True):
    print(f"block at {anchor}: changed {not torch.allclose(a, b)}")
alone = drafting.block_alone(target, blocks, story, anchor=20)  # [blanks, V]
print("block at 20: same logits as in drafting", torch.allclose(before[1], alone))

# %% [markdown]
# The block at anchor 20 is not affected by a change of the tokens it has to predict. If it were, training would teach
# it to copy the answer. This first test does not cover the word *strictly*: the state of token 20 depends on tokens 0 to
# 20, none of which we changed, so a mask that showed this state to its block would pass. The last line covers it.
#
# In the loss the $j$-th blank has the weight $e^{-(j-1)/\tau}$, where $\tau$ is half the block, 3 for these blocks of 6. The
# first blanks count most, as they did for Medusa and EAGLE, because a wrong token makes all later ones worthless.

# %% [markdown]
# ## Go deeper: parameters and training
#
# *5 more minutes.* How large are the three drafters, and how long were they trained? The next cell counts the parameters
# that each adds, with the small model of lesson 05 for comparison, and how much training each has had: steps times tokens
# per step, from the cards of [micro-draft](../minispec/data/micro-draft/README.md),
# [micro-medusa](../minispec/data/micro-medusa/README.md), [micro-eagle](../minispec/data/micro-eagle/README.md) and
# [micro-dflash](../minispec/data/micro-dflash/README.md).

# %%
draft = ms.load("micro-draft", device="cpu", dtype=torch.float64)
for name, module, taught, steps in (
    ("small model", draft.transformer, 8000 * 32_000, "5 passes in sequence"),
    ("Medusa", D.MedusaHeads.load(target), 1500 * 1500, "4 matrices at once"),
    ("EAGLE", head, 800 * 512, "5 × 1 layer in sequence"),
    ("DFlash", blocks, 800 * 512, "1 × 2 layers"),
):
    share = sum(weight.numel() for weight in module.parameters()) / target.num_parameters
    print(f"{name:12} {share:4.0%} of the target; trained on {taught / 1e6:5.1f} million tokens; a draft is {steps}")
small = drafting.tokens_per_pass(target, D.Model(draft), prompts)
print(f"the small model, a chain of 5: {small:.2f} tokens per forward pass")

# %% [markdown]
# `micro` has six layers, so one more layer is a large part of it. In a model of 32 or 80 layers EAGLE's one layer is a
# few percent. The LM head is left out, since all three borrow the target's here. The small model had to learn the
# language from scratch, which is why it needed so many more tokens.

# %% [markdown]
# ## Go deeper: norms
#
# <details><summary>Why are the streams normalised before they are fused?</summary>
#
# EAGLE-3 as published feeds the raw streams to $\text{fc}$, which can learn a constant factor for each. Normalising each
# stream first came with [EAGLE-3.1](https://vllm.ai/blog/2026-05-26-eagle-3-1) (`fc_norm` in vLLM). The norm spares
# $\text{fc}$ the factor, and keeps its input in a fixed range where the sizes vary from token to token. As published it
# has a trained gain per number; in the heads that ship here all gains are 1.
#
# EAGLE-3.1 can also normalise what goes back into the layer, $\widehat{f}_t$ in place of $f_t$ (`norm_output`), for the same
# reason: each further step adds to the stream. The heads that ship here hand on $f_t$, and those that
# `python -m recipes eagle --form eagle3.1` trains hand on $\widehat{f}_t$.
# </details>

# %% [markdown]
# ## Go deeper: multi-token prediction
#
# <details><summary>MTP: a drafter that comes with the model</summary>
#
# EAGLE's layer is trained after the target, on its outputs. DeepSeek-V3 (DeepSeek-AI, 2024, arXiv:2412.19437) trains
# such a layer together with the model, as **multi-token prediction**. Its module takes the same pair as EAGLE, the hidden
# state of a position and the embedding of the next token, normalises both, joins them and applies one transformer block.
# According to the report this extra objective improves the model itself, and afterwards the module serves as a drafter
# that needs no further training. The report gives an acceptance rate between 85 and 90 % for its one additional token.
# Used for more than one token, such a module is applied to its own output like EAGLE's layer, and the acceptance falls
# with the step.
# </details>

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
# - **Large batches** favour chains, since a tree makes the pass wide (lesson 11).
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
