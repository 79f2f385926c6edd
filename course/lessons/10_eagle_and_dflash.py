# %% [markdown]
# # 10 EAGLE and DFlash
#
# *Time:* 40 minutes · *Before this:* [09 Medusa](09_medusa.ipynb) · *Practice:* [exercises 10](../exercises/10_eagle_and_dflash.ipynb)
#
# Medusa's heads read the target's last state and guess side by side. None of them knows what the others chose. Two
# drafters do better on the same source, the target's hidden states. EAGLE writes token after token, and each guess knows
# the one before. DFlash fills in a whole block at once, and lets all places of the block look at each other.
#
# You will be able to
#
# - say which feature goes with which token, and of which place an entry speaks;
# - explain why EAGLE is trained on its own mistakes;
# - grow a tree where it is likely;
# - draw DFlash's block mask, and say what an anchor is;
# - read acceptance by position, and say what training buys.

# %%
import math

import torch
import torch.nn.functional as F

import minispec as ms
from minispec import tree
from minispec.bench.prompts import STORIES
from minispec.course import viz
from minispec.drafters import growth
from minispec.drafters.dflash import load_head
from minispec.train import dflash as block_training
from minispec.train.eagle import new_head, unroll

D = ms.drafters
target = ms.load("micro", device="cpu", dtype=torch.float64)
prompt = target.encode("One day, a girl named Lily")
plain = ms.generate(target, prompt, max_new_tokens=60)
text = prompt + plain.tokens  # the target's own words, to look at

# %% [markdown]
# ## What the target knows
#
# While it reads, the target builds up a residual stream at every place: layer by layer, from the token to a guess of the
# next one. A draft model begins with nothing but tokens. EAGLE begins with these streams.
#
# It takes three, from a low, a middle and a high layer, and fuses them into one **feature**:
#
# $$g_t = \text{fc}\,\bigl[\,\widehat{h}^{\text{low}}_t;\; \widehat{h}^{\text{mid}}_t;\; \widehat{h}^{\text{high}}_t\bigr]$$
#
# The hat means: brought to size one. Here is why.

# %%
head = D.EagleHead.load(target)
with torch.no_grad():
    _, streams = target.transformer.body(torch.tensor([text]), hidden_layers=head.hidden_layers)
sizes = {layers: float(stream.square().mean().sqrt()) for layers, stream in streams.items()}
print("streams after layers:", list(head.hidden_layers), "of", target.config.num_layers)
print("the last is larger than the first by a factor of", round(sizes[6] / sizes[2]))

# %% [markdown]
# Unnormed, `fc` would hear the high one best, whatever it says. In deeper models the factor is far larger.
# [`fuse`](../minispec/drafters/eagle.py) is the formula:

# %%
with torch.no_grad():
    normed = [F.rms_norm(streams[n], (288,), eps=target.config.norm_eps) for n in head.hidden_layers]
    by_hand = torch.cat(normed, -1) @ head.fc.weight.T  # [1, T, 3d] → [1, T, d]
    g = head.fuse([streams[n] for n in head.hidden_layers])
print("three streams", tuple(torch.cat(normed, -1).shape), "become one feature", tuple(g.shape))
print("the formula:", torch.allclose(by_hand, g))

# %% [markdown]
# ## Shift by one
#
# $g_t$ knows what the target *expects* at place $t + 1$. It cannot know which token was then *drawn*. If the target
# hesitated between "dog" and "cat", the text goes on differently, and the feature is the same. So each feature is paired
# with the token that came after it:
#
# ```
# place        0     1     2     3
# text        x0    x1    x2    x3        x3 was just drawn: the target has not read it
# features    g0    g1    g2
# entries     (g0, x1)    (g1, x2)    (g2, x3)
# predicts        x2          x3          x4
# ```
#
# One decoder layer reads the entries and says what follows:
#
# $$f_t = \text{layer}\bigl(x_{t+1},\, g_t\bigr), \qquad q(x_{t+2}) = \text{softmax}\bigl(\text{head}(\text{norm}(f_t))\bigr)$$

# %% [markdown]
# ## Predict
#
# Feed the same trained layer without the shift, $(g_t, x_t)$. Nothing crashes, the shapes are right. With the shift,
# more than half of its first guesses in this text are right.

# %% tags=["nbval-ignore-output"]
shift_guess = viz.predict("Without the shift: in how many places of 100 is its first guess right?", "places")
shift_guess

# %% [markdown]
# ## Run


# %% tags=["spoiler"]
@torch.no_grad()
def right(shift: int, steps: int = 1) -> list[float]:
    """How often step 1, 2, … of a draft from every place is the token that the target wrote."""
    tokens = torch.tensor([text]).roll(1 - shift, 1)  # unroll pairs feature t with token t + 1 of what it is given
    found = []
    for j, f in enumerate(unroll(head, tokens, [streams[n] for n in head.hidden_layers], steps)):
        starts = torch.arange(len(prompt), len(text) - steps - 1)
        guess = head.head_ids[head.logits(f)[0, starts].argmax(-1)]
        found.append(float((guess == torch.tensor(text)[starts + 2 + j]).double().mean()))
    return found


with_shift, without = right(shift=1)[0], right(shift=0)[0]
print(f"with the shift: {with_shift:.2f}")
print(f"without:        {without:.2f}")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
shift_guess.reveal(100 * without)

# %% [markdown]
# Off by one is the commonest mistake in such drafters. The text stays right, since the target decides. Only the acceptance
# tells.

# %% [markdown]
# ## Drafting on its own features
#
# The first guess has the target's feature. The second needs $g_{t+1}$, and that only the target could compute. EAGLE lets
# its own output $f_t$ stand in for it. And so on: each step reads the token just guessed and the feature just made.
#
# A layer that was trained on true features alone would be lost at step two. So training **unrolls** the draft: from every
# place of the text at once, a few steps along the text, each on the features of the step before.
#
# $$\text{loss} = \sum_{j \ge 0} 0.8^j \; \text{CE}\left(p_{t+1+j},\; \text{step } j \text{ from } t\right)$$
#
# EAGLE-3 calls it **training-time test**: train as you will be tested. In [`unroll`](../minispec/train/eagle.py), the
# draft that starts at $t$ sees the true entries up to $t$ and its own steps since, and nothing of any other draft. Is
# that what it will see when it drafts? Compare with the real drafter.

# %%
place = len(prompt) + 10
drafter = D.Eagle(target, head, tree=False)
context = D.Context(
    0, text[: place + 2], ms.Sampling(), torch.Generator(), {n: h[0, : place + 1] for n, h in streams.items()}
)
[drafted] = drafter.propose([context], k=5)
row = text[: place + 2] + drafted.tokens  # the draft, written down as a text
with torch.no_grad():
    own = [streams[n][:, : place + 1] for n in head.hidden_layers]
    padded = [torch.nn.functional.pad(h, (0, 0, 0, len(row) - place - 1)) for h in own]
    steps = [head.logits(f)[0, place] for f in unroll(head, torch.tensor([row]), padded, 5)]
print("five steps of training guess:", [int(head.head_ids[step.argmax()]) for step in steps] == drafted.tokens)

# %% [markdown]
# How fast does it fade? First five steps on this text, then the steps it was trained for, on stories that were held out
# (sampled ones among them, which nobody can guess so well).

# %%
print("here:     ", "  ".join(f"{a:.2f}" for a in right(shift=1, steps=5)))
print("held out: ", "  ".join(f"{a:.2f}" for a in head.accuracy))

# %% [markdown]
# ## A tree that grows where it is likely
#
# Medusa's tree has one shape for every pass. EAGLE knows its own probabilities, so its tree can grow: deep where the draft
# is sure, wide where it is not. The worth of a node is the probability of its whole path, the product from the root.
#
# 1. Expand the root: its likeliest children are depth 1.
# 2. Of the newest depth, expand the `width` most probable nodes, all in one pass of the head. Again, `k` depths in all.
# 3. Of all nodes keep the best, `nodes` of them.
#
# [`grow`](../minispec/drafters/growth.py) is this, for any draft. A toy that only knows two tokens, and is surer after 0 than
# after 1:

# %%
after = {None: (0.7, 0.3), 0: (0.9, 0.1), 1: (0.5, 0.5)}
children = lambda token: [(x, math.log(p)) for x, p in enumerate(after[token])]  # noqa: E731
grown, _ = growth.grow(
    children(None), lambda t, nodes: [children(t.tokens[n]) for n in nodes], depth=3, width=2, budget=6
)
for node in range(len(grown.tokens)):
    path = [grown.tokens[n] for n in tree.path_to(grown.parents, node)]
    joint = math.prod(after[before][x] for before, x in zip([None, *path], path, strict=False))
    print(f"{joint:.3f}  {path}")

# %% [markdown]
# On real text, trees of equally many nodes have other shapes from pass to pass.

# %%
out = ms.speculate(target, prompt, D.Eagle(target, head, nodes=16), k=5, max_new_tokens=60)
shapes = [tuple(tree.depths(cycle.parents).count(depth) for depth in range(1, 6)) for cycle in out.trace.cycles[:-1]]
print("same text as plain decoding:", out.tokens == plain.tokens)
print("passes:", out.trace.target_passes, "· different shapes:", len(set(shapes)) > 3)
print("nodes at depth 1 to 5, the widest and the deepest:", max(shapes), min(shapes))

# %% [markdown]
# Nothing is drawn here: the tree holds the best guesses. So every $q$ is one-hot, and the multi-candidate rule of lesson
# 09 keeps the output exact at any temperature.

# %% [markdown]
# ## DFlash: a block of blanks
#
# EAGLE drafts five deep in five passes of its layer. DFlash needs one. It reads
#
# ```
# [x_n, blank, blank, blank, blank, blank]        at the places n, n + 1, …
# ```
#
# and puts a token on every blank at once. Beside the block stand the target's fused streams of all places before $n$, the
# **context**: keys and values in each of its layers. Within the block everybody sees everybody, ahead and behind. That is
# the trick of diffusion models, in one step.

# %%
blocks = load_head(target)
print(
    "places of a block:", blocks.block, "· layers:", len(blocks.layers), "· reads streams:", list(blocks.hidden_layers)
)


def passes_for(drafter, layer) -> float:
    """Passes of the drafter's own layer, for each pass of the target."""
    count = []
    listener = layer.register_forward_hook(lambda *_: count.append(1))
    trace = ms.speculate(target, prompt, drafter, k=5, max_new_tokens=60).trace
    listener.remove()
    return len(count) / trace.target_passes


print("EAGLE, passes of its layer a cycle:", round(passes_for(D.Eagle(target, head), head.self_attn)))
print(
    "DFlash:                            ",
    round(passes_for(D.DFlash(target, blocks, tree=False), blocks.layers[0].self_attn)),
)

# %% [markdown]
# ## Anchors
#
# In training a row of text is cut at random places, the **anchors**. From each a block goes out. One reading of the row by
# the target serves them all, and the blocks lie side by side in one pass. Two rules make the mask:
#
# - a place sees the context strictly **before** its anchor;
# - a place sees all of its **own** block and nothing of the others.
#
# The anchor's own state is not among what it sees. When DFlash drafts, $x_n$ was just drawn and the target has not read
# it.

# %%
anchors, length, B = [2, 5], 7, 3
print("            context          block 0   block 1")
for number, anchor in enumerate(anchors):
    for j in range(B):
        seen = ["#" if place < anchor else "." for place in range(length)]
        own = [" ".join("#" if number == other else "." for _ in range(B)) for other in range(len(anchors))]
        print(f"place {anchor + j:2}    {' '.join(seen)}    {'     '.join(own)}")

# %% [markdown]
# [`read_blocks`](../minispec/train/dflash.py) builds this mask for training. If it is right, a block in a crowd says what
# the drafter says when it stands at that place alone.


# %%
@torch.no_grad()
def in_training(tokens: list[int], anchors: list[int]) -> torch.Tensor:
    """Logits of the blanks of every anchor's block, [A, B − 1, v], all in one pass."""
    row = torch.tensor([tokens])
    _, hidden = target.transformer.body(row, hidden_layers=blocks.hidden_layers)
    states = block_training.read_blocks(blocks, target.transformer, row, hidden, torch.tensor([anchors]))[0, :, 1:]
    return states @ blocks.head_rows(target.transformer).T


def alone(anchor: int) -> torch.Tensor:
    """The same from the drafter, which knows the text up to the anchor and no further."""
    with torch.no_grad():
        _, hidden = target.transformer.body(torch.tensor([text[:anchor]]), hidden_layers=blocks.hidden_layers)
    context = D.Context(0, text[: anchor + 1], ms.Sampling(), torch.Generator(), {n: h[0] for n, h in hidden.items()})
    return D.DFlash(target, blocks).score([context])[0]


crowd = in_training(text, [10, 20, 40])
print("as when alone:", [torch.allclose(crowd[i], alone(n)) for i, n in enumerate((10, 20, 40))])
changed = [*text[:21], 7, 7, 7, *text[24:]]
print("blocks that a change of places 21 to 23 touches:",
      [n for i, n in enumerate((10, 20, 40)) if not torch.allclose(in_training(changed, [10, 20, 40])[i], crowd[i])])  # fmt: skip

# %% [markdown]
# The block at 20 did not notice that its own future changed. If it had, training would have taught it to copy the answer.
#
# A wrong token makes everything behind it worthless. So in the loss the j-th blank weighs $e^{-(j-1)/\gamma_0}$: the near
# blanks count most, as they did for Medusa and EAGLE.
#
# One pass gives every blank a whole law, not only a best token. So a tree costs the drafter nothing more: `D.DFlash` sends
# the likeliest combinations to the target together, unless you ask for the chain of best tokens (`tree=False`).

# %% [markdown]
# ## What training buys
#
# None of the three starts from noise. Medusa's new heads repeat the LM head; EAGLE's layer and DFlash's layers are copies
# of the target's own. Let them draft before and after their training.

# %% tags=["nbval-ignore-output"]
training_guess = viz.predict("Untrained EAGLE, a chain of 5: how many tokens a pass?", "tokens")
training_guess

# %% tags=["spoiler"]
everything = torch.arange(target.config.vocab_size)
with torch.no_grad():
    raw = {
        "Medusa": D.Medusa(target, D.MedusaHeads(target, 4), tree="chain"),
        "EAGLE": D.Eagle(target, new_head(target, everything, mlp=512), tree=False),
        "DFlash": D.DFlash(target, block_training.head_from(target.transformer, everything, layers=[0, 5], mlp=384,
                                                            hidden_layers=[2, 4, 6], block=6).double(), tree=False),
    }  # fmt: skip
trained = {
    "Medusa": D.Medusa(target, tree="chain"),
    "EAGLE": D.Eagle(target, head, tree=False),
    "DFlash": D.DFlash(target, blocks, tree=False),
}


def tokens_a_pass(drafter) -> float:
    outs = ms.speculate(target, STORIES["stories"][:4], drafter, k=5, max_new_tokens=32)
    cycles = [cycle for out in outs for cycle in out.trace.cycles]
    return sum(cycle.accepted + 1 for cycle in cycles) / len(cycles)


before = {name: tokens_a_pass(drafter) for name, drafter in raw.items()}
print("chains, greedy, tokens a pass")
for name, drafter in trained.items():
    print(f"{name:7} untrained {before[name]:.2f}   trained {tokens_a_pass(drafter):.2f}")

# %% tags=["spoiler", "nbval-ignore-output"]
training_guess.reveal(before["EAGLE"])

# %% [markdown]
# And what it costs to ask them. All three borrow the embedding and the LM head. What they add, beside the small model of
# lesson 05:

# %%
draft = ms.load("micro-draft", device="cpu", dtype=torch.float64)
own_weights = lambda module: sum(weight.numel() for weight in module.parameters())  # noqa: E731
for name, count, asked in (
    ("small model", draft.num_parameters, "5 passes, one after the other"),
    ("Medusa", own_weights(D.MedusaHeads.load(target)), "one product"),
    ("EAGLE", own_weights(head), "5 passes"),
    ("DFlash", own_weights(blocks), "1 pass"),
):
    print(f"{name:12} {count / 1e6:.2f} million weights, {count / target.num_parameters:.0%} of the target; {asked}")

# %% [markdown]
# `micro` is so small that one of its layers is a large part of it. In a model of 32 or 80 layers EAGLE's one layer is a
# few percent.
#
# One thing more before you compare them with the small model: how long each was taught. Steps times tokens a step, from
# the cards of [micro-draft](../minispec/data/micro-draft/README.md), [micro-medusa](../minispec/data/micro-medusa/README.md),
# [micro-eagle](../minispec/data/micro-eagle/README.md) and [micro-dflash](../minispec/data/micro-dflash/README.md).

# %%
taught = {"small model": 8000 * 32_000, "Medusa": 1500 * 1500, "EAGLE": 800 * 512, "DFlash": 800 * 512}
for name, tokens in taught.items():
    print(f"{name:12} learnt from {tokens / 1e6:5.1f} million tokens")
print(f"the small model, a chain of 5: {tokens_a_pass(D.Model(draft)):.2f} tokens a pass")

# %% [markdown]
# The small model had to learn the language. The others had to learn what to make of states that know it already. That is
# why minutes on a CPU bring them so far. Published heads learn for days on GPUs, from the target's own answers to hundreds
# of thousands of prompts, and accept more than a small model does. What you see below is the shape of things, not their
# height.
#
# `smollm2` has heads that learnt on a GPU, if only for minutes: see `minispec demo --model smollm2 --drafter eagle`, and
# [the benchmarks](../docs/benchmarks.md) for what a pass is worth with them, by kind of text.

# %% [markdown]
# ## Play: acceptance by position
#
# Every drafter, drafting five deep, on the same prompts. Left: the chance that a draft is accepted at a place, given that
# all before it were; small marks are places that few cycles came to. Right: what a pass is worth, and how many tokens were
# drafted for it.

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
# 1. Bring out the DFlash chain and the EAGLE chain in turn. Which line falls faster with the place, and why that one?
# 2. Compare EAGLE's chain and its tree, then DFlash's. What does a tree add at place 1, and how many more tokens are read
#    for it?
# 3. Go to temperature 1. A tree and a block take the best guess, the small model and EAGLE's chain draw theirs. Who loses
#    most?
# 4. Change the text. Is the order of the drafters the same?

# %% [markdown]
# ## In production
#
# - **EAGLE-3** is the usual choice of servers. vLLM: `"method": "eagle3"` with the head as `model`; the streams are its
#   *auxiliary hidden states*. SGLang: `--speculative-algorithm EAGLE3`, `--speculative-num-steps` (depth),
#   `--speculative-eagle-topk` (width), `--speculative-num-draft-tokens` (nodes). A reduced vocabulary comes with a table
#   called `d2t`, draft to target, for our `head_ids`.
# - **DFlash**: `"method": "dflash"` in vLLM, `--speculative-algorithm DFLASH` in SGLang. Five blanks cost no more passes
#   than two, so its blocks are longer.
# - **Training** is a tool of its own: *speculators* for vLLM, *SpecForge* for SGLang.
# - **Chains rule** where many requests share the GPU: a tree is a wide pass, and lesson 11 shows what that costs.
#
# A head belongs to one target. When the target is fine-tuned, the head still works, exactly, and accepts less. Nothing
# breaks, so watch the acceptance.

# %% [markdown]
# ## Check yourself
#
# <details><summary>The target has read places 0 to 30, token 31 was just drawn. Which feature and token make EAGLE's
# newest entry, and which place does it speak of?</summary>
#
# Feature 30 and token 31. It predicts place 32.
# </details>
#
# <details><summary>Why does DFlash tend to fall off faster with the place than EAGLE?</summary>
#
# Its blanks are filled in at once. The third cannot know which token the second will get, only which ones are likely. EAGLE
# reads its own second token before it chooses the third. DFlash buys one pass instead of five with that.
# </details>
#
# <details><summary>A head reaches 0.8 at step 1 and 0.2 at step 2. What went wrong in its training?</summary>
#
# It was probably trained on true features alone. At step 2 it meets its own output for the first time. Unroll the draft in
# training.
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
