# %% [markdown]
# # 09 Medusa
#
# *Time:* 50 minutes · *Before this:* [08 Drafters](08_drafters.ipynb) · *Practice:* [exercises 09](../exercises/09_medusa.ipynb)
#
# Does a drafter need a model of its own? Medusa (Cai et al., 2024, arXiv:2401.10774) does without: it adds small heads to
# the target, and each head uses the target's last hidden state to predict a token further ahead. A guess about a later
# token is uncertain, so Medusa proposes several candidates for each position, arranges them in a **tree**, and lets the
# target verify the whole tree in one forward pass. This lesson builds the heads, the tree, its attention mask and its
# acceptance rule.
#
# You will be able to
#
# - say what head j computes, which position it predicts, and what it costs;
# - train the heads while the target stays frozen;
# - build the best tree of a given size from measured accuracies;
# - read the attention mask of a tree, and show that it is right;
# - state the lossless acceptance rule of a tree, and tell it from typical acceptance, which is not lossless.

# %%
import torch

import minispec as ms
from minispec import exact, theory, tree
from minispec.drafters import Medusa, MedusaHeads
from minispec_course import viz
from minispec_course.labs import drafting
from recipes.medusa import tell_stories, train_heads

target = ms.load("micro", device="cpu", dtype=torch.float64)  # outputs are compared, so exactly, and on the CPU

# %% [markdown]
# ## What does a head predict?
#
# The target processes the token at position $t$, and the last layer leaves a residual stream of $d$ numbers. After the
# final norm this is the hidden state $h$, which the LM head turns into the distribution of the token at position $t + 1$.
# But $h$ contains more than the next token. After "Once", a model that tells stories can already tell that "upon a time"
# will follow.
#
# Medusa head $j$ is given the same $h$ and predicts $j$ positions further ahead than the LM head (the letter $k$ stays
# the length of a draft):
#
# $$z_j = h + \text{SiLU}(W_1^{(j)} h + b^{(j)}), \qquad \text{logits}_j = W_2\, z_j, \qquad
# \text{head } j \text{ predicts position } t + 1 + j$$
#
# Some explanations let head 1 predict position $t + 1$. That would be useless, because the LM head already predicts
# this position, and exactly. $W_2$ is a matrix like the LM head. In the paper every head has its own; minispec's
# [`MedusaHeads`](../minispec/drafters/medusa.py) share the LM head of the target. A new head has $W_1^{(j)} = 0$ and
# $b^{(j)} = 0$, so that $z_j = h$ and the head repeats the LM head's prediction.


# %%
@torch.no_grad()
def state_after(tokens: list[int]) -> torch.Tensor:
    """The state that the LM head is given after the last of these tokens, [d]."""
    stream, _ = target.transformer.body(torch.tensor([tokens]))  # [1, T, d]
    return target.transformer.norm(stream[0, -1])


prompt = target.encode("One day, a girl named Lily")
h = state_after(prompt)
fresh = MedusaHeads(target, count=4)
print("state:", tuple(h.shape), "· logits of the heads:", tuple(fresh(h).shape))
t = len(prompt) - 1
print(f"from the state of position {t}: LM head → {t + 1},", ", ".join(f"head {j} → {t + 1 + j}" for j in (1, 2, 3, 4)))

# %% [markdown]
# ## Predict
#
# Medusa's heads are often said to add almost nothing to the model. Check it for a 7B model with a hidden size of 4,096, a
# vocabulary of 32,000 tokens, and five heads with a $W_2$ of their own.

# %% tags=["nbval-ignore-output"]
parameters_guess = viz.predict("How many parameters do five full heads add to a 7B model?", "billion")
parameters_guess

# %% [markdown]
# ## Run
#
# Each head has $d^2 + d$ parameters for $W_1$ and $b$, and $V \cdot d$ for its $W_2$, where $V$ is the size of the
# vocabulary.

# %% tags=["spoiler"]
d, V, heads = 4096, 32_000, 5
full, shared = heads * (d * d + d + V * d), heads * (d * d + d)
print(f"five full heads: {full / 1e9:.2f} billion")
print(f"one LM head for all: {shared / 1e9:.2f} billion")
print(f"share of W₂: {1 - shared / full:.0%}")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler", "nbval-ignore-output"]
parameters_guess.reveal(full / 1e9)

# %% [markdown]
# Five full heads are about a tenth of the model, and most of that is $W_2$. Heads that share the LM head save this memory.
# They also save four of five reads, because one read of the matrix serves all five heads; one read per cycle remains,
# besides the one of the verification pass.
#
# That read can be made smaller by a **reduced vocabulary**: the heads score only frequent tokens, listed in `head_ids`,
# and use only these rows of the LM head matrix. A token outside the list can never be proposed, but the target can still
# emit it, so the output stays exact. It pays for large vocabularies: with 128,000 tokens and a hidden size of 4,096 the
# LM head takes 1 GB in bf16. The heads that ship with `micro` score all of its 2,048 tokens; those that you train below score
# 512.

# %% [markdown]
# ## How are the heads trained?
#
# Head $j$ should predict what the target itself will predict $j$ positions later, because that is what the target will
# accept. So the target generates some stories. Let $p_s$ be the distribution that it computes at position $s$ for the token
# after it. At every position $t$ the loss compares head $j$ with $p_{t+j}$ by cross-entropy (CE):
#
# $$\text{loss} = \sum_j 0.8^j \; \text{CE}\left(p_{t+j},\; \text{head } j \text{ at } t\right)$$
#
# A later head gets less weight, since its token counts only if all earlier ones were accepted. The paper has the same
# weights, but compares with the tokens of its training data; we compare with the target's whole distribution, which says
# more per position ([`heads_loss`](../recipes/medusa.py)).
#
# Here is a short training run. The target is frozen, so its states are computed once and kept.

# %% tags=["nbval-ignore-output"]
storyteller = ms.load("micro", device="cpu")
corpus = tell_stories(storyteller, rows=48, max_new_tokens=128, temperatures=(0.0, 0.8))
mine, curve = train_heads(storyteller, corpus, steps=150, lr=6e-3, batch_tokens=512, head_vocab=512, warmup=20)
weights = sum(0.8**j for j in (1, 2, 3, 4))
print("loss per head:", ", ".join(f"{point['loss'] / weights:.1f} at step {point['step']}" for point in curve))
for j, accuracy in enumerate(mine.accuracy, start=1):
    print(f"head {j}: best candidate right {accuracy[0]:.0%}, one of ten {sum(accuracy):.0%}")

# %% [markdown]
# The printed loss is divided by the sum of the weights, so it is a mean over the four heads, in nats. A later head can look
# as good as an earlier one, because each is scored only at positions where every head before it had the right token among
# its ten candidates, and those are the more predictable passages.
#
# Training heads on a frozen base model is the paper's **Medusa-1**. The target's distributions cannot change, and neither
# can the output, *if* the acceptance rule is lossless (*Go deeper* below shows one that is not). **Medusa-2** trains the
# base model together with the heads. The heads get better, but the base model becomes a different model, whose quality
# has to be evaluated again.
#
# The rest of the lesson uses heads that were trained on more stories ([how](../minispec/data/micro-medusa/README.md)).
# Their accuracies cannot be compared with those above: they were measured on stories sampled at higher temperatures,
# which are harder to predict.

# %%
heads = MedusaHeads.load(target)
print(f"{heads.count} heads, {len(heads.head):,} tokens of {target.config.vocab_size:,}")
print("         candidate 1      2      3   any of 10")
for j, accuracy in enumerate(heads.accuracy, start=1):
    first, second, third = accuracy[:3]
    print(f"head {j}          {first:.2f}   {second:.2f}   {third:.2f}        {sum(accuracy):.2f}")

# %% [markdown]
# The table was measured on held-out stories that the target had generated at several temperatures. An entry $a_j(i)$ says
# how often candidate $i$ of head $j$ is the token that the target generated there, again only at positions where each
# head before $j$ had the right token among its ten candidates. Elsewhere no node of depth $j$ could be accepted.
#
# The best candidate of a head is right in less than a third of the cases, but one of its ten best candidates is right in
# more than half. That is the reason for trees. Medusa also has a weakness: head 2 does not know which candidate of head 1
# will be accepted, so it makes one prediction for all of them. EAGLE in lesson 10 removes this weakness.

# %% [markdown]
# ## A tree of candidates
#
# A tree of draft tokens is stored as a list of tokens and a list of parents. Node $i$ is a candidate for the token that
# follows node `parents[i]`. The parent −1 stands for the **root**, the last emitted token. Siblings are alternatives for
# one position. In Medusa's tree a node is named by a **choice** of candidates, counted from 0 in code and from 1 in
# tables: `(1, 0)` means the second candidate of head 1, followed by the best candidate of head 2.
#
# Which hidden state do the heads get? When a cycle begins, the last token has been emitted but not processed. So the
# newest hidden state belongs to the position before it. From that state the LM head has already predicted the last
# token, which is the root, and head 1 predicts the token after it, the first draft token. In the next cell the newest
# state is therefore that of `prompt[:-1]`.

# %%
candidates = heads.candidates(state_after(prompt[:-1]))  # [4 heads, 10 candidates]
small = tree.from_candidates(candidates, [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)])
print("parents:", small.parents)

# %% [markdown]
# Which nodes should a tree of given size have? A node is accepted if every node on its path is right, and it then adds
# one token. We estimate the probability of that by the product of the accuracies along its path. It is an estimate,
# because $a_j(i)$ is one number for all contexts, and the product treats the heads as independent. With $i_j$ for the
# candidate of head $j$ on that path, and $E[N]$ for the expected number of tokens per cycle,
#
# $$E[N] \approx 1 + \sum_{\text{nodes}} \prod_{j=1}^{\text{depth}} a_j(i_j)$$
#
# The 1 is the token that the target adds in any case, the correction or the bonus. A child is never more probable than
# its parent. So it is optimal to add, again and again, the most probable node whose parent is already in the tree. This
# is [`best_tree`](../minispec/tree.py), and [`expected_tokens`](../minispec/tree.py) computes the sum.

# %% [markdown]
# ## Predict
#
# A chain takes the best candidate of each head, which makes four nodes. A tree of 24 nodes makes the forward pass five
# times as wide, 25 tokens instead of 5. How many tokens per forward pass does it bring in all, the target's own token
# included?

# %%
chain = [(0,) * depth for depth in (1, 2, 3, 4)]
print(f"chain of 4: {tree.expected_tokens(heads.accuracy, chain):.2f} tokens per forward pass expected")

# %% tags=["nbval-ignore-output"]
tree_guess = viz.predict("How many with the best tree of 24 nodes?", "tokens per forward pass")
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
# The first nodes bring much, and each further one less. With these heads even four nodes are better spent on a tree
# than on a chain. Head 1 is so uncertain that its second candidate (0.12) is worth more than the second token of the
# chain (0.31 · 0.25 = 0.08).
#
# More nodes are free only while the pass is memory-bound, and that depends on how many requests share it. With parameters in
# bf16, no KV cache, and the compute and bandwidth that we measured on an H200 (lesson 01), a pass is memory-bound up to
# 188 tokens. One request with a tree of 24 nodes has 25, eight have 200, and 32 have 800.

# %% [markdown]
# ## How can one pass verify a tree?
#
# The verify pass is given the last token and all nodes, `[last token, node 0, node 1, …]`, in one sequence. To a causal
# model this is one long continuation. Two changes make it a tree (Miao et al., 2024, arXiv:2305.09781):
#
# - **The attention mask.** A node attends to the sequence so far, to its ancestors and to itself, but never to another
#   branch.
# - **The position ids.** A node has the position of the root plus its depth, so siblings have the same position.
#
# Here are the tree from above and its mask side by side. A line of the mask is a node. Take any node, walk up to the root
# in the tree, and check that exactly these columns are filled in its line.

# %%
viz.tree_and_mask(small.tokens, small.parents, target.decode)

# %% [markdown]
# The same in numbers, with the position of each node:

# %%
mask = tree.verify_mask(small.parents)
positions = tree.positions(small.parents, prefix_length=len(prompt) - 1)
print("position   attends to")
for row, position in zip(mask.tolist(), positions.tolist(), strict=True):
    print(f"{position:8}   {' '.join('#' if seen else '.' for seen in row)}")

# %% [markdown]
# Rows and columns are the seven tokens of this pass, the last token and then nodes 0 to 5. The cached tokens before them
# are not shown, because each of the seven attends to all of them. Look at the last row of this mask. It belongs to node 5
# with the path `0 → 2 → 5`, so it has four marks: the last token and these three nodes.
#
# How can we be sure that the mask is right? If it is, the logits at a node must equal those of a separate forward pass
# over the prompt followed by that node's path ([`branch_logits`](../minispec_course/labs/drafting.py)). The next cell
# compares both. It also tries two plausible mistakes, a causal mask and position ids that count slots.


# %%
@torch.inference_mode()
def in_one_pass(mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Logits [n + 1, V] of the last token and all nodes, in one pass after the cached prompt."""
    cache = target.transformer.new_cache(capacity=64)
    target.transformer(torch.tensor([prompt[:-1]]), cache)
    tokens = torch.tensor([[prompt[-1], *small.tokens]])
    return target.transformer(tokens, cache, mask=mask[None], positions=positions[None]).logits[0]


expected = drafting.branch_logits(target, prompt, small)  # [n + 1, V], one pass per branch
causal = torch.ones(7, 7).tril().bool()
by_slot = len(prompt) - 1 + torch.arange(7)
print("tree mask, tree positions:", torch.allclose(in_one_pass(mask, positions), expected, atol=1e-9))
print("causal mask:              ", torch.allclose(in_one_pass(causal, positions), expected, atol=1e-9))
print("positions count slots:    ", torch.allclose(in_one_pass(mask, by_slot), expected, atol=1e-9))

# %% [markdown]
# One pass gives the same logits as seven separate ones. PyTorch's attention accepts any mask, so nothing else was needed
# here. In a server it is not that simple: most fast paged-attention kernels know causal masks only, and a tree needs a
# variant that takes a mask of its own.
#
# After a path has been accepted, its keys and values lie between those of rejected nodes. They are moved into consecutive
# slots ([`gather`](../minispec/cache.py)), and the cache is rewound (cropped) after them.

# %% [markdown]
# ## Which path is accepted?
#
# Siblings compete for one position, and the target has one distribution $p$ there. Suppose that the first sibling is
# rejected. By lesson 06 the token must then come from the residual. So the residual takes the role of $p$ for the second
# sibling, and so on. With $d_i$ for sibling $i$, counted from 0, $q_i$ for the distribution it was sampled from, and $r_i$ for
# the distribution that is still to be sampled from,
#
# $$r_0 = p, \qquad \text{accept } d_i \text{ with probability } \min\left(1, \frac{r_i(d_i)}{q_i(d_i)}\right), \qquad
# r_{i+1} = \text{norm}\left([r_i - q_i]_+\right)$$
#
# What is $q_i$? If the siblings are sampled independently from $q$, it is $q$ for each. If they are sampled without
# repeats, it is $q$ with the earlier siblings removed, renormalised. If they are the top candidates, nothing is sampled,
# and each $q_i$ is one-hot.
#
# If all siblings are rejected, the token is sampled from the last $r$. For independent siblings this is the
# multi-candidate rule of SpecInfer (Miao et al., 2024). Sampling without repeats came later (Jeon et al., 2024,
# arXiv:2402.14160), and SpecTr (Sun et al., 2023, arXiv:2310.15141) treats the same problem as optimal transport. In
# minispec the rule is [`verify.tree`](../minispec/verify.py), and with one sibling it is the sampler of lesson 06.
#
# The next cell computes the distribution of the emitted token exactly, for these three ways to choose three siblings, and
# compares it with a tempting shortcut that tests every sibling against $p$.


# %%
def keep(r, q_i):
    return r  # the shortcut: after a rejection r stays p, instead of norm([r − q_i]₊)


p, q = [0.4, 0.3, 0.2, 0.1], [0.1, 0.5, 0.2, 0.2]
print("total variation from p     multi-candidate rule   each tested against p")
for name, siblings in (
    ("sampled independently", exact.iid),
    ("sampled without repeats", exact.distinct),
    ("the top three of q", exact.best),
):
    right = exact.emitted_distribution(p, q, m=3, siblings=siblings)
    naive = exact.emitted_distribution(p, q, m=3, siblings=siblings, replace=keep)
    distances = [theory.total_variation(p, emitted.tolist()) for emitted in (right, naive)]
    print(f"{name:26} {distances[0]:20.3f} {distances[1]:23.3f}")

# %% [markdown]
# The rule gives exactly $p$ in all three cases, the shortcut in none.
#
# Medusa does not sample its candidates: it takes the most probable ones. Each $q_i$ is then one-hot, and the rule becomes
# simple. Accept $d_i$ with probability $r_i(d_i)$; otherwise set its probability to zero and renormalise.
#
# There is an equivalent way to say this: sample one token from $p$ at each node and follow the child that equals it, as
# long as there is one. So "take the longest path that agrees" is exact if "agrees" means "equals the token sampled from
# $p$ at that node", which for a greedy target is the most probable token. It is not exact if every plausible token counts
# as agreeing. That is what *typical acceptance* does, which the Medusa paper proposes too; it is faster and not lossless
# (*Go deeper* below).
#
# Here are greedy runs of a chain and of a tree:

# %%
plain = ms.generate(target, prompt, max_new_tokens=48)
for name, drafter in (
    ("chain of 4", Medusa(target, heads, tree="chain")),
    ("tree of 24", Medusa(target, heads, nodes=24)),
):
    out = ms.speculate(target, prompt, drafter, k=4, max_new_tokens=48)
    same, passes = out.tokens == plain.tokens, out.trace.target_passes
    print(f"{name}: same tokens {same}, {48 / passes:.2f} tokens per forward pass")

# %% [markdown]
# For the chain we expected 1.41 tokens per forward pass, and the run has 1.66; for the tree 1.93, and the run has 1.92.
# They need not agree: the table averages over stories at several temperatures, of which greedy ones are the easiest to
# predict, and this is one greedy story of 48 tokens.

# %% [markdown]
# ## Play: tree and mask
#
# These are real greedy cycles of `micro`. The accepted path is green, the node you look at is orange, and the size of a
# dot shows how often such a node is accepted. Beside it is the mask, with one row for each token of the pass and its
# position after the @. Hover over a node to see its path.

# %% tags=["nbval-ignore-output"]
viz.tree_viewer(storyteller, "One day, a girl named Lily", MedusaHeads.load(storyteller))

# %% [markdown]
# Try this:
#
# 1. Let *nodes* grow from 1 to 32 and watch the expected tokens. When does the tree get deeper, and when only wider?
# 2. Choose a leaf with *look at*, and find its ancestors in its row of the mask. Which rows of the mask differ from it by
#    one mark only?
# 3. Step through the passes. How often was the accepted path the top one, the chain of best candidates?

# %% [markdown]
# ## Go deeper: typical acceptance
#
# *10 more minutes.* Can a tree be accepted more generously? The authors of Medusa also propose **typical acceptance**. A draft token $d$
# passes if the target gives it enough probability, and the higher the entropy $H(p)$ of the target's distribution, the
# less is enough:
#
# $$p(d) > \min\left(\varepsilon,\; \delta\, e^{-H(p)}\right), \qquad \varepsilon = 0.09,\; \delta = 0.3$$
#
# The longest path of passing tokens is kept, the first one of equally long ones ([`typical`](../minispec/verify.py)). After
# it, or if no token passes, one token is sampled from the target's $p$ at that node. (The authors' code takes the most
# probable token there.) No random number is used to accept or refuse a draft token. Which distribution does the emitted
# token have? [`at_one_position`](../minispec_course/labs/drafting.py) computes it exactly for both rules, by following every
# outcome of their random numbers. The target's $p$ is the one from above, and the draft tokens are given.

# %%
print("target's distribution:   ", p)
for tokens in ([1, 2], [3], [2, 0]):
    for rule in ("lossless", "typical"):
        emitted = drafting.at_one_position(p, tokens, lossless=rule == "lossless")
        print(f"draft tokens {tokens!s:7} {rule:8}", [round(x, 3) for x in emitted])

# %% [markdown]
# Lossless means that the draft leaves no trace in the distribution of the output. Under typical acceptance, a draft token
# that passes *is* the output. With this $p$ even a token of probability 0.1 passes, and it is then emitted every time.
#
# At temperature 0 the target's distribution is one-hot, only its own choice passes, and the two rules agree. So greedy
# tests do not reveal the difference. At higher temperatures typical acceptance accepts longer runs and changes the
# distribution. Whether the outputs are worse is a question for an evaluation of the product; that they are no longer
# samples of the target is a fact. For that reason it has to be asked for: `Medusa(..., lossless=False)`, and every
# trace says so.

# %% tags=["nbval-ignore-output"]
for lossless in (True, False):
    drafter = Medusa(target, heads, nodes=24, lossless=lossless)
    outs = ms.speculate(target, [prompt] * 8, drafter, k=4, max_new_tokens=40, temperature=1.0, seed=0)
    rate = sum(out.trace.tokens_per_cycle for out in outs) / len(outs)
    print(f"temperature 1, {'lossless' if lossless else 'typical '}: {rate:.2f} tokens per forward pass")

# %% [markdown]
# Sampling at temperature 1 is harder to predict than the greedy run, so the first line is lower than the tree's 1.92. The
# gain of the second line over the first is bought with a different distribution. A comparison of drafters should
# therefore say which acceptance rule it used.

# %% [markdown]
# ## In production
#
# - **vLLM** has `"method": "medusa"` in `speculative_config`. It takes the best token of each head and verifies a chain.
# - **The authors' code** takes a static tree as `medusa_choices`, a list of tuples as above. It calls ε
#   `posterior_threshold` and δ `posterior_alpha`.
# - **SGLang** verifies trees for EAGLE: `--speculative-eagle-topk` is the width and `--speculative-num-draft-tokens` the
#   number of nodes, the root included. FlashInfer's attention kernels take the tree mask as `custom_mask`.
# - **Multi-token prediction** (MTP), as in DeepSeek-V3, trains such modules together with the model. They run in sequence
#   instead of side by side, so that each is given the token chosen before it (lesson 10).
#
# Trees suit small batches only, because in a large batch a pass has no free tokens left, and servers use chains or
# switch speculation off. Lesson 11 measures what the width of a pass costs, with chains of four; a tree is wider still.

# %% [markdown]
# ## Check yourself
#
# <details><summary>The target has processed position 20. Which position does head 3 predict, and which head predicts
# position 21?</summary>
#
# Head 3 predicts position 24, and position 21 is predicted by the LM head.
# </details>
#
# <details><summary>The parents are −1, −1, 0, 0, 2. What does node 4 attend to, and which node shares its position?</summary>
#
# It attends to the sequence up to and including the last token, and to nodes 0, 2 and 4. Its depth is 3, and no other
# node has that depth, so no node shares its position.
# </details>
#
# <details><summary>A colleague tests every sibling against p and takes the first that passes. The output looks fine. What is
# wrong, and how would you show it?</summary>
#
# After a rejection the token has to come from the residual, so the next sibling must be tested against the residual.
# Tested against p again, a later sibling is accepted with the wrong probability: too often if the siblings were sampled
# independently, too seldom if they are the top candidates. And a token that was rejected can come back when all siblings
# fail and p is sampled once more. Compute the distribution of the emitted token for a small p and q, as above, and
# compare it with p. A greedy test cannot show the difference.
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
# - [Exercises 09](../exercises/09_medusa.ipynb): the heads, the mask, the acceptance rule, the best tree, and what typical
#   acceptance changes.
# - `minispec drill` asks `medusa`, `medusa-cost`, `medusa-training`, `tree-attention`, `tree-verification`,
#   `tree-or-chain`, `typical-acceptance`.
# - [10 EAGLE and DFlash](10_eagle_and_dflash.ipynb): a drafter whose tokens depend on one another, and one that drafts a
#   whole block at once.
