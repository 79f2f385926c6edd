# %% [markdown]
# # 09 Medusa
#
# *Time:* 40 minutes · *Before this:* [08 Drafters](08_drafters.ipynb) · *Practice:* [exercises 09](../exercises/09_medusa.ipynb)
#
# So far a second model has guessed. Medusa asks the target itself: small heads on its last state guess the tokens after
# the next one. Far guesses are unsure, so several are tried at once, as a tree, and the tree is checked in one pass.
#
# You will be able to
#
# - say what head k computes, of which place it speaks, and what it costs;
# - train heads while the target stays frozen;
# - build the best tree from measured accuracies;
# - read a tree's attention mask, and show that it is right;
# - tell lossless acceptance of a tree from typical acceptance.

# %%
import torch

import minispec as ms
from minispec import exact, theory, tree, verify
from minispec.course import viz
from minispec.drafters import Medusa, MedusaHeads
from minispec.train.medusa import tell_stories, train_heads

target = ms.load("micro", device="cpu", dtype=torch.float64)

# %% [markdown]
# ## A head
#
# The target reads a token at place $t$ and ends up with a state $h$. The LM head makes of it the law of place $t + 1$.
# In $h$ there is more than the next word. Whoever is about to write "Once" has "upon a time" in mind already.
#
# Head $k$ reads the same $h$ and guesses $k$ places further:
#
# $$z_k = h + \text{SiLU}(W_k h + b_k), \qquad \text{logits}_k = W_2\, z_k, \qquad \text{head } k \to \text{place } t + 1 + k$$
#
# Some texts let head 1 predict $t + 1$. That place is taken: the LM head predicts it, exactly.
# [`MedusaHeads`](../minispec/drafters/medusa.py) borrows $W_2$ from the LM head. A new head has $W_k = 0$ and $b_k = 0$.


# %%
@torch.no_grad()
def state_after(tokens: list[int]) -> torch.Tensor:
    """What the LM head reads after the last of these tokens, [d]."""
    stream, _ = target.transformer.body(torch.tensor([tokens]))  # [1, T, d]
    return target.transformer.norm(stream[0, -1])


prompt = target.encode("One day, a girl named Lily")
h = state_after(prompt)
fresh = MedusaHeads(target, count=4)
print("state:", tuple(h.shape), "· logits of the heads:", tuple(fresh(h).shape))
print("a new head says what the LM head says:", torch.allclose(fresh(h)[0], target.transformer.lm_head(h)))
t = len(prompt) - 1
print(f"the state of place {t}: LM head → place {t + 1},", ", ".join(f"head {k} → {t + 1 + k}" for k in (1, 2, 3, 4)))

# %% [markdown]
# ## Predict
#
# The heads are said to add next to nothing. Take a 7B model, 4096 wide, with 32,000 tokens, and five heads, each with a
# $W_2$ of its own.

# %% tags=["nbval-ignore-output"]
weights_guess = viz.predict("How many weights do five full heads add to a 7B model?", "billion")
weights_guess

# %% [markdown]
# ## Run
#
# Each head has $d^2 + d$ weights of its own, and $V \cdot d$ for its $W_2$:
# [`medusa_parameters`](../minispec/theory.py).

# %% tags=["spoiler"]
full = theory.medusa_parameters(hidden=4096, vocab=32_000, heads=5)
shared = theory.medusa_parameters(hidden=4096, vocab=32_000, heads=5, shared_lm_head=True)
print(f"five full heads: {full / 1e9:.2f} billion")
print(f"one LM head for all: {shared / 1e9:.2f} billion")
print(f"share of W₂: {1 - shared / full:.0%}")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
weights_guess.reveal(full / 1e9)

# %% [markdown]
# A tenth of the model, unless the LM head is shared. And weights that are stored are also *read*, in every cycle. With a
# shared $W_2$ the matrix product is still done once per head. So the heads here score only the tokens that occur often:
# a **reduced vocabulary**, rows `head_ids` of the LM head. A token outside can never be proposed. It can still be
# written, by the target.

# %% [markdown]
# ## Train them
#
# The target tells some stories. At every place $t$ of them, head $k$ should have said what the target thought $k$ places
# later. So the loss is a cross-entropy to the target's own laws,
#
# $$\text{loss} = \sum_k 0.8^k \; \text{CE}\left(p_{t+k},\; \text{head } k \text{ at } t\right)$$
#
# and a far head counts less, since its guess is only worth something if all nearer ones were right. See
# [`heads_loss`](../minispec/train/medusa.py).
#
# A short training, here and now. The target is frozen: its states are computed once and kept.

# %% tags=["nbval-ignore-output"]
storyteller = ms.load("micro", device="cpu")
weights_before = [weight.clone() for weight in storyteller.transformer.parameters()]
corpus = tell_stories(storyteller, rows=48, max_new_tokens=128, temperatures=(0.0, 0.8))
mine, curve = train_heads(storyteller, corpus, steps=150, lr=6e-3, batch_tokens=512, head_vocab=512, warmup=20)
print("loss:", ", ".join(f"{point['loss']:.1f} at step {point['step']}" for point in curve))
for k, accuracy in enumerate(mine.accuracy, start=1):
    print(f"head {k}: best candidate right {accuracy[0]:.0%}, one of ten {sum(accuracy):.0%}")

# %%
after = storyteller.transformer.parameters()
print("stories:", len(corpus), "· heads:", mine.count, "· tokens they can propose:", len(mine.head_ids))
print("the loss fell:", curve[-1]["loss"] < curve[0]["loss"])
print("the target is what it was:", all(torch.equal(a, b) for a, b in zip(weights_before, after, strict=True)))

# %% [markdown]
# This is stage 1 of Medusa: the base model is frozen, so its output cannot change. Stage 2 trains the base along with the
# heads. The heads get better, and the base becomes another model. That needs care, and you can do without it.
#
# Heads that saw more stories come with `micro` ([how they were trained](../minispec/data/micro-medusa/README.md)). The
# rest of the lesson uses them. Do not compare the two tables: theirs is measured on hotter stories, which are harder to
# guess.

# %%
heads = MedusaHeads.load(target)
print(f"{heads.count} heads, {len(heads.head):,} tokens of {target.config.vocab_size:,}")
print("         candidate 1      2      3   any of 10")
for k, accuracy in enumerate(heads.accuracy, start=1):
    first, second, third = accuracy[:3]
    print(f"head {k}          {first:.2f}   {second:.2f}   {third:.2f}        {sum(accuracy):.2f}")

# %% [markdown]
# These are measured on stories that were held out: how often is candidate $i$ of head $k$ the token that came, **given
# that everything before it was right**? Call it $a_k(i)$.
#
# The best candidate is right less often than not. Several together look much better. But head 2 does not know which of
# head 1's candidates will be the one. It answers for all of them at once. That is Medusa's weakness, and lesson 10 is
# about it.

# %% [markdown]
# ## A tree of candidates
#
# A tree of guesses is a list of tokens and a list of parents. Node $i$ guesses the token after node `parents[i]`; −1 is
# the **root**, the last token of the text. Siblings are rivals for one place. In Medusa's tree a node is a **choice**:
# `(1, 0)` means the second candidate of head 1, then the best of head 2.

# %%
table = heads.candidates(state_after(prompt[:-1]))  # [K, 10]: the last token is there, but nobody has read it
small = tree.from_candidates(table, [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)])
print("parents:", small.parents)
print("depths: ", tree.depths(small.parents))
print("paths:  ", tree.paths(small.parents))

# %% [markdown]
# Which nodes are worth a place in the pass? A node is accepted if all on its path are right, and then it adds one token:
#
# $$E[N] = 1 + \sum_{\text{nodes}} \prod_{k=1}^{\text{depth}} a_k(i_k)$$
#
# A child is never likelier than its parent. So take the likeliest open node, again and again: this greedy choice is
# optimal. [`best_tree`](../minispec/tree.py) does it, [`expected_tokens`](../minispec/tree.py) computes the sum.

# %% [markdown]
# ## Predict
#
# A chain is the best candidate of each head: four nodes. A tree of 24 nodes makes the pass five times as wide.

# %%
chain = [(0,) * depth for depth in (1, 2, 3, 4)]
print(f"chain of 4: {tree.expected_tokens(heads.accuracy, chain):.2f} tokens a pass expected")

# %% tags=["nbval-ignore-output"]
tree_guess = viz.predict("And the best tree of 24 nodes?", "tokens a pass")
tree_guess

# %% [markdown]
# ## Run

# %% tags=["spoiler"]
print("nodes   expected   deepest   children of the root")
for nodes in (1, 4, 8, 16, 24, 32, 64):
    choices = tree.best_tree(heads.accuracy, nodes)
    tokens = tree.expected_tokens(heads.accuracy, choices)
    print(f"{nodes:5}   {tokens:8.2f}   {max(map(len, choices)):7}   {sum(len(choice) == 1 for choice in choices):8}")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
tree_guess.reveal(tree.expected_tokens(heads.accuracy, tree.best_tree(heads.accuracy, 24)))

# %% [markdown]
# The first nodes bring much, the later ones less and less. Four nodes as a tree beat four as a chain: where heads are
# unsure, width is worth more than depth. How many nodes are free depends on the machine, and on how many requests share
# it ([`free_tokens`](../minispec/theory.py)).

# %%
for batch in (1, 8, 32):
    print(
        f"H200, {batch:2} requests: {theory.free_tokens(theory.H200, batch=batch):5.0f} tokens a request before a pass slows"
    )

# %% [markdown]
# ## The mask
#
# The verify pass reads `[last token, node 0, node 1, …]` side by side. Two things make a tree of that row.
#
# - **The mask.** A node sees the text, its ancestors and itself. Never a sibling's branch.
# - **The positions.** A node stands at the root's position plus its depth. Rivals share a position.

# %%
mask = tree.verify_mask(small.parents)
places = tree.positions(small.parents, prefix_length=len(prompt) - 1)
print("position   sees")
for row, place in zip(mask.tolist(), places.tolist(), strict=True):
    print(f"{place:8}   {' '.join('#' if see else '.' for see in row)}")

# %% [markdown]
# Read row 6, the last one: it is node 5, of the path `0 → 2 → 5`, and its row has four marks: the last token and these
# three.
#
# Is that all? If so, the logits at each node must be those of a pass of its own, over the text and the node's path. Let
# us compare.


# %%
@torch.inference_mode()
def in_one_pass(mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Logits [n + 1, V] of the tree, read side by side after the cached text."""
    cache = target.transformer.new_cache(capacity=64)
    target.transformer(torch.tensor([prompt[:-1]]), cache)
    row = torch.tensor([[prompt[-1], *small.tokens]])
    return target.transformer(row, cache, mask=mask[None], positions=positions[None]).logits[0]


@torch.inference_mode()
def apart() -> torch.Tensor:
    """The same by a pass over the whole text for every node."""
    texts = [prompt] + [prompt + [small.tokens[i] for i in tree.path_to(small.parents, n)] for n in range(6)]
    return torch.stack([target.transformer(torch.tensor([text])).logits[0, -1] for text in texts])


expected = apart()
causal = torch.ones(7, 7).tril().bool()
queue = len(prompt) - 1 + torch.arange(7)
print("tree mask, tree positions:", torch.allclose(in_one_pass(mask, places), expected, atol=1e-9))
print("causal mask:              ", torch.allclose(in_one_pass(causal, places), expected, atol=1e-9))
print("positions in a queue:     ", torch.allclose(in_one_pass(mask, queue), expected, atol=1e-9))

# %% [markdown]
# One pass, seven continuations. It takes no CUDA kernel of its own: attention takes a mask, and this is a mask. A kernel
# that skips what is masked may be faster. It does not compute anything else.
#
# When a path has been accepted, its keys and values lie scattered among the nodes. They are moved together, and the cache
# is rewound behind them: [`gather`](../minispec/cache.py).

# %% [markdown]
# ## Which path is accepted
#
# Rivals for one place, one law $p$ of the target. When the first is rejected, it is known that the token is *not* what
# that one covered. The next is judged by what is left:
#
# $$r_0 = p, \qquad \text{accept } d_i \text{ with } \min\left(1, \frac{r_i(d_i)}{q_i(d_i)}\right), \qquad
# r_{i+1} = \text{norm}\left([r_i - q_i]_+\right)$$
#
# This is the **multi-candidate rule**, [`tree`](../minispec/verify.py). One sibling is lesson 06. The law of what comes
# out is computed here down every branch, for three ways to draft three siblings, and beside it for a rule that judges
# each sibling by $p$.

# %%
p, q = [0.4, 0.3, 0.2, 0.1], [0.1, 0.5, 0.2, 0.2]
print("distance from p      exact rule   each judged by p")
for name, siblings in (
    ("drawn independently", exact.iid),
    ("all different", exact.distinct),
    ("q's best", exact.best),
):
    right = exact.emitted_distribution(p, q, m=3, siblings=siblings)
    naive = exact.emitted_distribution(p, q, m=3, siblings=siblings, replace=lambda r, q_i: r)
    print(
        f"{name:21}{theory.total_variation(p, right.tolist()):10.3f}{theory.total_variation(p, naive.tolist()):19.3f}"
    )

# %% [markdown]
# Medusa draws nothing; its candidates are simply the best. Each $q_i$ is one-hot then, and the rule says: accept $d_i$
# with $r_i(d_i)$, else strike it out.
#
# "Take the longest path that fits" is exact when the target is greedy, because then one token fits. When it samples, the
# rule above is needed.

# %%
plain = ms.generate(target, prompt, max_new_tokens=48)
for name, drafter in (("chain of 4", Medusa(target, heads, tree="chain")), ("tree of 24", Medusa(target, heads))):
    out = ms.speculate(target, prompt, drafter, k=4, max_new_tokens=48)
    same, passes = out.tokens == plain.tokens, out.trace.target_passes
    print(f"{name}: same text {same}, {passes} passes for {len(out.tokens)} tokens")

# %% [markdown]
# ## Typical acceptance
#
# Medusa's authors propose another rule. A draft passes if it is *likely enough*, and the less decided the target is, the
# less is enough. $H$ is the entropy of $p$.
#
# $$p(d) > \min\left(\varepsilon,\; \delta\, e^{-H(p)}\right), \qquad \varepsilon = 0.09,\; \delta = 0.3$$
#
# The longest path that passes is kept: [`typical`](../minispec/verify.py). No random number is asked. So what law comes
# out? [`exact_distribution`](../minispec/exact.py) runs the rule for every way its random numbers can fall.


# %%
def distribution_of(rule, tokens: list[int]) -> list[float]:
    """The exact law of the token at one place, with these drafts for it."""
    everywhere = torch.tensor([p] * (1 + len(tokens)), dtype=torch.float64)
    parents = [-1] * len(tokens)
    found = exact.exact_distribution(
        lambda random: rule(everywhere, tokens, parents, [random() for _ in everywhere]).run(tokens)[0]
    )
    return [round(found.get(token, 0.0), 3) for token in range(4)]


def lossless(p, tokens, parents, random):
    return verify.tree(p, None, tokens, parents, random)


print("the target's law:        ", p)
for tokens in ([1, 2], [3], [2, 0]):
    print(f"drafts {tokens!s:7} lossless:", distribution_of(lossless, tokens))
    typical = distribution_of(verify.typical, tokens)
    print(f"               typical: {typical}  distance {theory.total_variation(p, typical):.1f}")

# %% [markdown]
# Lossless means: the drafts cannot be seen in the output. Under typical acceptance the draft *is* the output, whenever it
# passes. With this $p$ even a token of probability 0.1 does, and then it is written every time.
#
# At temperature 0 the law is one-hot, only the target's choice passes, and the two rules agree. When sampling, typical
# acceptance writes longer runs and another distribution. Whether the text is worse is a question of taste; that it is
# another one is a fact. `minispec` marks it: `Medusa(..., lossless=False)`.

# %%
greedy = ms.speculate(target, prompt, Medusa(target, heads, lossless=False), k=4, max_new_tokens=48)
print("greedy, typical: same text", greedy.tokens == plain.tokens)
print("marked in the trace:", not any(cycle.lossless for cycle in greedy.trace.cycles))

# %% tags=["nbval-ignore-output"]
for keep in (True, False):
    outs = ms.speculate(target, [prompt] * 8, Medusa(target, heads, lossless=keep), k=4, max_new_tokens=40,
                        temperature=1.0, seed=0)  # fmt: skip
    rate = sum(out.trace.tokens_per_cycle for out in outs) / len(outs)
    print(f"temperature 1, {'lossless' if keep else 'typical '}: {rate:.2f} tokens a pass")

# %% [markdown]
# ## Play: tree and mask
#
# Real cycles of `micro`, greedily. Green is the path that was accepted, orange the node you look at, the size of a dot how
# often such a node is accepted. Beside it the mask: a row for each token of the pass, with its position after the @.
# Hover over a node to see its path.

# %% tags=["nbval-ignore-output"]
viz.tree_viewer(storyteller, "One day, a girl named Lily", MedusaHeads.load(storyteller))

# %% [markdown]
# Try this:
#
# 1. Let *nodes* grow from 1 to 32. Watch the expected tokens. When does the tree get deeper, when only wider?
# 2. Choose a leaf with *look at*. Find its ancestors in its row of the mask. Which rows have the same marks but one?
# 3. Step through the passes. How often was the accepted path the top one, the chain of best candidates?

# %% [markdown]
# ## In production
#
# - **vLLM**: `"method": "medusa"` in `speculative_config`. It takes the best token of each head, so it verifies a chain.
# - The authors' code takes a static tree as `medusa_choices`, tuples as above; TensorRT-LLM's older backend did, too. The
#   authors call ε `posterior_threshold` and δ `posterior_alpha`.
# - **SGLang** verifies trees with a mask, for EAGLE: `--speculative-eagle-topk` is the width,
#   `--speculative-num-draft-tokens` the number of nodes, with the root. FlashInfer calls the argument `custom_mask`.
# - **MTP** (multi-token prediction, as in DeepSeek-V3) trains such modules together with the model, one after the other
#   instead of side by side, so that each knows what the one before it chose.
#
# Trees are for few requests at a time. With a full batch the pass has no free tokens left, and servers go back to chains,
# or to nothing. Lesson 11 measures that.

# %% [markdown]
# ## Check yourself
#
# <details><summary>The target has read place 20. Which place does head 3 speak of, and which head speaks of place 21?
# </summary>
#
# Place 24. Place 21 belongs to the LM head.
# </details>
#
# <details><summary>Parents −1, −1, 0, 0, 2. What does node 4 see, and with whom does it share its position?</summary>
#
# The text with the last token, and nodes 0, 2 and itself. Its depth is 3, and nobody else's is.
# </details>
#
# <details><summary>A colleague judges every sibling by p and takes the first that passes. Output looks fine. What is
# wrong, and how would you show it?</summary>
#
# A rejected sibling has used up part of p. Judged by p again, later siblings get too much. Compute the emitted law for a
# small p and q, as above: it is not p. Greedy tests will not show it.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Cai et al., 2024: *Medusa: simple LLM inference acceleration framework with multiple decoding heads*
#   ([arXiv:2401.10774](https://arxiv.org/abs/2401.10774)): heads, trees, and typical acceptance.
# - Miao et al., 2024: *SpecInfer: accelerating generative LLM serving with tree-based speculative inference and
#   verification* ([arXiv:2305.09781](https://arxiv.org/abs/2305.09781)): token trees and their verification in a
#   server.
# - Sun et al., 2023: *SpecTr: fast speculative decoding via optimal transport*
#   ([arXiv:2310.15141](https://arxiv.org/abs/2310.15141)): the theory of accepting one of several candidates.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - [Exercises 09](../exercises/09_medusa.ipynb): the heads, the mask, the rule, the best tree, the price of typical
#   acceptance.
# - `minispec drill` asks `medusa`, `medusa-cost`, `medusa-training`, `tree-attention`, `tree-verification`,
#   `tree-or-chain`, `typical-acceptance`, `two-models-or-heads`.
# - [10 EAGLE and DFlash](10_eagle_and_dflash.ipynb): drafters that know what they have just guessed, and one that does
#   not need to.
