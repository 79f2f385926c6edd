# %% [markdown]
# # 09 Medusa and trees
#
# *Time:* 50 minutes · *Before this:* [08 Drafters](08_drafters.ipynb) · *Practice:* [exercises 09](../exercises/09_medusa.ipynb)
#
# A draft model has to run, token after token, before the target can verify anything. Could
# the target guess ahead by itself? **Medusa** (Cai et al., 2024, arXiv:2401.10774) adds small heads to it that predict
# further tokens from a hidden state that it has computed anyway. Such guesses are uncertain, so Medusa makes several for each
# position and verifies them as a **tree**, in one forward pass. The number that this lesson moves is **tokens per
# forward pass**. You will write the attention mask and the acceptance rule for a tree, and then decode with them.
#
# You will be able to
#
# - say what each head predicts, what it costs and how it is trained;
# - write the attention mask of a tree, and show that it is right;
# - state a lossless acceptance rule for several candidates, and name a rule that looks right and is not.

# %%
from random import Random
from statistics import median

import torch
import torch.nn.functional as F

import minispec as ms
from minispec import exact, tree
from minispec.drafters import Medusa, MedusaHeads
from minispec.verify import pick
from minispec_course import viz
from minispec_course.check import draw, mine, yours
from minispec_tools.train.medusa import tell_stories, train_heads

target = ms.load("micro", device="cpu", dtype=torch.float64)  # tokens are compared, so rounding must not matter
prompt = target.encode("One day, a girl named Lily")

# %% [markdown]
# ## Heads that look ahead
#
# The target processes the token at position $t$. Its last layer leaves a vector of $d$ numbers, and after the final
# norm this is the **hidden state** $h$. The **LM head**, a matrix with a row for every token of the vocabulary, turns
# $h$ into logits for position $t + 1$. But $h$ says more than the next token: after "Once", "upon a time" is likely to
# follow. Medusa head $j$ is given the same $h$ and predicts $j$ positions further ahead:
#
# $$z_j = h + \text{SiLU}(W_1^{(j)} h + b^{(j)}), \qquad \text{logits}_j = W_2\, z_j, \qquad
# \text{head } j \text{ predicts position } t + 1 + j$$
#
# So head 1 predicts $t + 2$, because the LM head already predicts $t + 1$. In the paper every head has a $W_2$ of its
# own, as large as the LM head; minispec's heads share it. That matters (the paper uses five heads, minispec four):

# %%
d, V = 4096, 32_000  # a 7B model
own, shared = 5 * (d * d + d + V * d), 5 * (d * d + d)
print(
    f"five heads of a 7B model: {own / 1e9:.2f} billion parameters, {shared / 1e9:.2f} billion if they share the LM head"
)

# %% [markdown]
# Each head is trained to predict what the target itself will say there, because that is what the target will accept. So
# the target generates stories, and the loss compares head $j$ at position $t$ with the target's own distribution $j$
# positions later. The loss is summed over the four heads, with less weight for later ones, $0.8^j$. The target is
# frozen, so its states are computed once, and training takes seconds:

# %% tags=["nbval-ignore-output"]
storyteller = ms.load("micro", device="cpu")
# about half of the stories are greedy; the heads score the 512 most frequent tokens (see *Reduced vocabulary* below)
corpus = tell_stories(storyteller, rows=24, max_new_tokens=96, temperatures=(0.0, 0.8))
trained, curve = train_heads(storyteller, corpus, steps=60, lr=6e-3, batch_tokens=256, head_vocab=512, warmup=10)
print("loss:", " → ".join(f"{point['loss']:.1f}" for point in curve))

# %% [markdown]
# A frozen target is the paper's *Medusa-1*. *Medusa-2* trains the target as well, which makes it a different model. From
# here on we use heads with [more training](../minispec/data/micro-medusa/README.md). How good are they?

# %%
heads = MedusaHeads.load(target)
for j, accuracy in enumerate(heads.accuracy, start=1):
    print(f"head {j}: best candidate right {accuracy[0]:.0%}, second {accuracy[1]:.0%}, one of ten {sum(accuracy):.0%}")

# %% [markdown]
# The best candidate is right in less than a third of the cases, but one of the ten best is right in more than half.
# That is the reason for trees.
#
# ## A tree of candidates
#
# A tree is two lists. Node $i$ holds the draft token `tokens[i]`, a candidate for what follows node `parents[i]`. The
# parent −1 is the **root**, the last emitted token. Siblings are alternatives for one position.
#
# The heads fill a fixed shape, in which `(1, 0)` is the second candidate of head 1, followed by the best candidate of
# head 2. All heads use the newest hidden state, that of the token before the root. So head 2 does not know which
# candidate of head 1 comes before it, and has one prediction for all of them. EAGLE in lesson 10 removes this weakness.

# %%
with torch.inference_mode():
    stream, _ = target.transformer.body(torch.tensor([prompt[:-1]]))  # [1, T, d], before the final norm
    candidates = heads.candidates(target.transformer.norm(stream[0, -1]))  # [4 heads, 10 candidates]
small = tree.from_candidates(candidates, [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)])
print("tokens: ", [target.decode([token]) for token in small.tokens])
print("parents:", small.parents)

# %% [markdown]
# Nodes 2 and 4 hold the same token, because head 2 cannot tell their parents apart.
#
# ## One pass for a tree
#
# The verify pass is given `[last token, node 0, node 1, …]` in one row. To a causal model this is one long sequence. Two
# changes make it a tree (Miao et al., 2024, arXiv:2305.09781):
#
# - **The mask.** A node attends to the sequence so far, to its ancestors and to itself, but never to another branch.
# - **The position ids.** A node has the position of the root plus its depth, so siblings share a position.
#
# Take any node of the picture, walk up to the root, and check that exactly these columns are filled in its row.

# %%
viz.tree_and_mask(small.tokens, small.parents, target.decode, prompt)

# %% [markdown]
# ### Yours: from parents to a mask
#
# `prefix` tokens are in the cache; the last token is at position `prefix`. Rows of the mask are the tokens of the pass,
# the last token and then the nodes. Columns are the prefix, the last token and the nodes. Return the mask, a bool
# tensor `[n + 1, prefix + n + 1]`, and the list of the $n + 1$ positions. Parents come before their children.


# %%
@yours("09.tree_mask")
def tree_mask(parents: list[int], prefix: int) -> tuple[torch.Tensor, list[int]]:
    """Which tokens each token of the verify pass attends to, and the position of each."""
    ### BEGIN SOLUTION: a node attends to what its parent attends to, and to itself
    n = len(parents)
    mask = torch.zeros(n + 1, prefix + n + 1, dtype=torch.bool)
    mask[0, : prefix + 1] = True  # the last token: the prefix and itself
    positions = [prefix]
    for node, parent in enumerate(parents):
        mask[node + 1] = mask[parent + 1]  # row 0, the last token, is the parent −1
        mask[node + 1, prefix + 1 + node] = True
        positions.append(positions[parent + 1] + 1)
    return mask, positions
    ### END SOLUTION


# %%
draw("09.tree_mask", tree_mask)

# %% [markdown]
# If a mask is right, the logits at a node are those of a separate pass over the prompt and the path to that node. Your
# mask competes with two mistakes: an ordinary causal mask, and positions that just keep counting.

# %% tags=["nbval-ignore-output"]
wrong_guess = viz.predict("A causal mask: how many of the six nodes get wrong logits?", "nodes")
wrong_guess


# %% tags=["spoiler"]
@torch.inference_mode()
def in_one_pass(mask, positions) -> torch.Tensor:
    """Logits [n + 1, V] of the last token and all nodes, in one pass after the cached prompt."""
    cache = target.transformer.new_cache(capacity=64)
    target.transformer(torch.tensor([prompt[:-1]]), cache)
    tokens, positions = torch.tensor([[prompt[-1], *small.tokens]]), torch.tensor([list(positions)])
    return target.transformer(tokens, cache, mask=torch.as_tensor(mask), positions=positions).logits[0]


@torch.inference_mode()
def along_the_path(node: int) -> torch.Tensor:
    """The same for one node, by a pass of its own."""
    path = [small.tokens[i] for i in tree.path_to(small.parents, node)]
    return target.transformer(torch.tensor([prompt + path])).logits[0, -1]


expected = torch.stack([along_the_path(node) for node in range(6)])
mask, positions = tree_mask(small.parents, len(prompt) - 1)
causal = torch.ones(7, len(prompt) + 6).tril(len(prompt) - 1).bool()
wrong = {}
for name, a_mask, places in (
    ("your mask", mask, positions),
    ("causal mask", causal, positions),
    ("consecutive positions", mask, range(len(prompt) - 1, len(prompt) + 6)),
):
    errors = (in_one_pass(a_mask, places)[1:] - expected).abs().amax(-1)  # of every node
    wrong[name] = int((errors > 1e-9).sum())
    print(f"{name:21} {wrong[name]} of 6 nodes have wrong logits")

# %% tags=["spoiler", "nbval-ignore-output"]
wrong_guess.reveal(wrong["causal mask"])

# %% [markdown]
# With your mask, one pass gives the logits of six separate ones. With the causal mask only node 0 is right, because
# nothing but its parent precedes it. None of these passes crashes.
#
# ## Which path is accepted?
#
# For a greedy target it is simple: at each node follow the child that equals the target's choice, while there is one.
# And when the target samples? Siblings compete for one position, where the target has one distribution $p$. A tempting
# shortcut: test each of them by the rule of lesson 06 against $p$, and take the first that passes; if none does, sample
# from $p$. Let $p = (0.4, 0.3, 0.2, 0.1)$, and let three siblings be sampled independently from $q = (0.1, 0.5, 0.2,
# 0.2)$.

# %% tags=["nbval-ignore-output"]
shortcut_guess = viz.predict("Token 1 should come out in 30 % of the cases. How often does the shortcut emit it?", "%")
shortcut_guess

# %% [markdown]
# ### Yours: the verdict on siblings
#
# After a rejection the token must come from the *residual* (lesson 06), which takes the role of $p$ for the next
# sibling. With $d_i$ for sibling $i$, $q_i$ for the distribution that it was sampled from, and $r_i$ for what is still wanted:
#
# $$r_0 = p, \qquad \text{accept } d_i \text{ with probability } \min\left(1, \frac{r_i(d_i)}{q_i(d_i)}\right), \qquad
# r_{i+1} = \text{norm}\left([r_i - q_i]_+\right)$$
#
# If all siblings are rejected, sample from the last $r$. `q` is `[n, V]`, and row $i$ is $q_i$. Return the index of the
# accepted sibling, counting from 0, and its token, or None and the sampled token. Your `accept_probability(p, q,
# token)`, `residual(p, q)` and `pick(distribution, random())` are there. Call `random()` anew for every decision.

# %%
accept_probability, residual = mine("06.accept"), mine("06.residual")


@yours("09.tree_verify")
def verify_siblings(p: torch.Tensor, q: torch.Tensor, siblings: list[int], random) -> tuple[int | None, int]:
    """Which of several candidates for one position is accepted, and the token that is emitted there."""
    ### BEGIN SOLUTION: which distribution is left after each rejection?
    r = p
    for number, (q_i, guess) in enumerate(zip(q, siblings, strict=True)):
        if random() < accept_probability(r, q_i, guess):
            return number, guess
        r = residual(r, q_i)
    return None, pick(r, random())
    ### END SOLUTION


# %% [markdown]
# What is $q_i$? If siblings are sampled independently, it is $q$ for each. If they are sampled without repeats, it is
# $q$ without the earlier ones, renormalised. If they are the top candidates, as in Medusa, nothing is sampled and each
# $q_i$ is one-hot. The next cell follows every outcome of the random numbers, as lesson 06 did, and adds up what is
# emitted.


# %% tags=["spoiler"]
def shortcut(p, q, siblings, random):
    for number, guess in enumerate(siblings):
        if random() < accept_probability(p, q[number], guess):
            return number, guess
    return None, pick(p, random())


def emitted(rule, next_q) -> list[float]:
    """The exact distribution of the token that a rule emits, with three siblings."""
    p, q = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.1, 0.5, 0.2, 0.2]]).double()

    def cycle(random) -> int:
        siblings, rows = [], []
        for _ in range(3):
            rows.append(next_q(q, siblings))
            siblings.append(pick(rows[-1], random()))
        return rule(p, torch.stack(rows), siblings, random)[1]

    found = exact.exact_distribution(cycle)
    return [round(float(found.get(token, 0.0)), 3) for token in range(4)]


ways = {"independent": exact.iid, "without repeats": exact.distinct, "the top three": exact.best}
for name, next_q in ways.items():
    print(f"{name:16} yours {emitted(verify_siblings, next_q)}   shortcut {emitted(shortcut, next_q)}")

# %% tags=["spoiler", "nbval-ignore-output"]
shortcut_guess.reveal(100 * emitted(shortcut, exact.iid)[1])

# %% [markdown]
# Your rule gives exactly $p$ in all three cases, the shortcut in none. A greedy test would not show it, because
# with a one-hot $p$ both rules agree.
#
# ## Decode with a tree
#
# Now your mask and your verdict decode. A cycle fills the tree, verifies it in one pass, and walks down from the root:
# your verdict chooses among the children of a node until it takes none. Then the keys and values of the accepted path
# are moved next to each other in the cache (`gather`), and the rest is cut off.


# %%
@torch.inference_mode()
def decode(shape: list[tuple], temperature: float = 0.0, count: int = 48) -> tuple[list[int], float]:
    """New tokens by your functions, and how many of them a forward pass emits."""
    model, random, sequence, passes = target.transformer, Random(0).random, list(prompt), 0
    cache = model.new_cache(capacity=256)
    state = model.norm(model.body(torch.tensor([prompt[:-1]]), cache)[0][0, -1])  # of the token before the root
    while len(sequence) < len(prompt) + count:
        length, (tokens, parents) = len(sequence) - 1, tree.from_candidates(heads.candidates(state), shape)
        mask, positions = tree_mask(parents, length)
        row, positions = torch.tensor([[sequence[-1], *tokens]]), torch.tensor([list(positions)])
        stream, _ = model.body(row, cache, mask=torch.as_tensor(mask), positions=positions)
        logits, below, path, passes = model.head(stream)[0], tree.children(parents), [-1], passes + 1
        while True:
            p = logits[path[-1] + 1]
            p = (p / temperature).softmax(-1) if temperature else F.one_hot(p.argmax(), len(p)).double()
            siblings = [tokens[node] for node in below[path[-1]]]
            if not siblings:  # a leaf: the bonus
                which, token = None, pick(p, random())
            else:
                q = F.one_hot(torch.tensor(siblings), len(p)).double()  # top candidates: nothing was sampled
                which, token = verify_siblings(p, q, siblings, random)
            sequence.append(token)
            if which is None:
                break
            path.append(below[path[-1]][which])
        cache.gather(torch.tensor([[node + 1 for node in path]]), torch.tensor([length]))
        cache.rewind(length + len(path))
        state = model.norm(stream[0, path[-1] + 1])
    return sequence[len(prompt) : len(prompt) + count], count / passes


# %% [markdown]
# Which nodes should a tree have? A node is accepted if every node on its path is right, so it adds about the product of
# the accuracies along its path. [`best_tree`](../minispec/tree.py) takes the nodes with the largest products. First a
# chain of four for comparison, the best candidate of every head:

# %%
plain = ms.generate(target, prompt, max_new_tokens=48).tokens
output, per_pass = decode([(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)])
print(f"chain of 4: {per_pass:.2f} tokens per forward pass, as plain decoding: {output == plain}")

# %% tags=["nbval-ignore-output"]
tree_guess = viz.predict("And a tree of 24 nodes, six times as many draft tokens?", "tokens per forward pass")
tree_guess

# %% tags=["spoiler"]
rates = {}
for nodes in (4, 8, 24, 64):
    shape = tree.best_tree(heads.accuracy, nodes)
    output, rates[nodes] = decode(shape)
    expected = tree.expected_tokens(heads.accuracy, shape)
    print(
        f"tree of {nodes:2}: {rates[nodes]:.2f} tokens per pass, {expected:.2f} expected; as plain: {output == plain}"
    )
print(f"tree of 64 at temperature 1: {decode(shape, temperature=1.0)[1]:.2f} tokens per pass")

# %% tags=["spoiler", "nbval-ignore-output"]
tree_guess.reveal(round(rates[24], 2))

# %% [markdown]
# See the expected column: the first 4 nodes raise it from 1 to 1.57, the last 40 only from 1.93 to 2.08. The measured
# column is one prompt and scatters around it. Sampling is harder to predict than greedy decoding, and the same verdict
# keeps it exact.
#
# And the time? The dashboard keeps the fastest of the three.

# %% tags=["nbval-ignore-output", "spoiler"]
timed = ms.load("micro")  # on your device, in its own precision
own_heads = MedusaHeads.load(timed)
drafters = {"chain of 4": Medusa(timed, own_heads, tree="chain"), "tree of 24": Medusa(timed, own_heads, nodes=24)}
seconds = {"plain": [ms.generate(timed, prompt, 64).seconds for _ in range(6)]}
for name, drafter in drafters.items():
    seconds[name] = [ms.speculate(timed, prompt, drafter, k=4, max_new_tokens=64).seconds for _ in range(6)]
ms_per_token = {name: 1000 * median(of_runs[1:]) / 64 for name, of_runs in seconds.items()}
for name, time in ms_per_token.items():
    print(f"{name:11} {time:.2f} ms per token")

# %% tags=["nbval-ignore-output", "spoiler"]
viz.dashboard("09", ms_per_token=min(ms_per_token.values()))

# %% [markdown]
# On a CPU the tree usually loses to plain decoding although it needs about half the passes: 25 tokens are far past
# its ridge point (lesson 01). The chain may lose as well, because a pass over five tokens costs more there than over one
# ($v$ of lesson 07). On a GPU with one user they cost nearly the same. With many users no arithmetic is idle, so servers
# use chains there, or no speculation at all (lesson 11b).
#
# ## Play: tree and mask
#
# Greedy cycles: the accepted path is green, and the size of a dot shows how often such a node is accepted. Let
# *nodes* grow from 1 to 32: when does the tree get deeper, and when only wider? Then find a leaf's ancestors in its row
# of the mask.

# %% tags=["nbval-ignore-output"]
viz.tree_viewer(storyteller, "One day, a girl named Lily", MedusaHeads.load(storyteller))

# %% [markdown]
# <details><summary>Go deeper: typical acceptance, which is not lossless</summary>
#
# The Medusa paper also proposes to accept a draft token $d$ if the target gives it *enough* probability, and the higher
# the entropy $H(p)$, the less is enough:
#
# $$p(d) > \min\left(\varepsilon,\; \delta\, e^{-H(p)}\right), \qquad \varepsilon = 0.09,\; \delta = 0.3$$
#
# The longest path of passing tokens is kept. No random number is used, so a draft token that passes is emitted
# *every* time, whether the target gives it 10 % or 80 %: the output depends on the draft. At temperature 0 both rules
# agree, so greedy tests do not reveal it. In minispec it is `Medusa(..., lossless=False)`. You compute its bias in
# [exercises 09](../exercises/09_medusa.ipynb).
# </details>
#
# <details><summary>Go deeper: reduced vocabularies, kernels, other rules for siblings</summary>
#
# **Reduced vocabulary.** Heads that share the LM head still read it once per cycle. They may score only frequent
# tokens, `head_ids`, and read only these rows. A token outside the list is never proposed, but the target can still
# emit it.
#
# **Kernels.** Most paged-attention kernels support only causal masks; FlashInfer's accept a `custom_mask`.
#
# **Siblings.** For independent siblings your rule is SpecInfer's. Sampling without repeats came later (Jeon et al.,
# 2024, arXiv:2402.14160). For top candidates it amounts to sampling one token from $p$ and following the child that
# equals it.
# </details>
#
# ## In production
#
# | here | elsewhere |
# |---|---|
# | Medusa heads | vLLM: `"method": "medusa"`, which verifies a chain of each head's best token |
# | shape of the tree | the authors' code: `medusa_choices`, tuples as above |
# | trees | SGLang, for EAGLE: `--speculative-eagle-topk` is the width, `--speculative-num-draft-tokens` the nodes and the root |
#
# ## Check yourself
#
# <details><summary>The target has processed position 20. Which position does head 3 predict, and what predicts position
# 21?</summary>
#
# Head 3 predicts position 24, and the LM head predicts position 21.
# </details>
#
# <details><summary>The parents are −1, −1, 0, 0, 2. What does node 4 attend to, and which node shares its position?</summary>
#
# It attends to the sequence up to and including the last token, and to nodes 0, 2 and 4. Its depth is 3, and no other
# node has that depth.
# </details>
#
# <details><summary>A colleague tests every sibling against p and takes the first that passes. How do you show that it is
# wrong?</summary>
#
# Compute the distribution of the emitted token for a small p and q, down every branch of the random numbers, and
# compare it with p.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Cai et al., 2024: *Medusa: simple LLM inference acceleration framework with multiple decoding heads*
#   ([arXiv:2401.10774](https://arxiv.org/abs/2401.10774)): heads, trees, and typical acceptance.
# - Miao et al., 2024: *SpecInfer: accelerating generative LLM serving with tree-based speculative inference and
#   verification* ([arXiv:2305.09781](https://arxiv.org/abs/2305.09781)): token trees and their verification in a server.
# - Sun et al., 2023: *SpecTr: fast speculative decoding via optimal transport*
#   ([arXiv:2310.15141](https://arxiv.org/abs/2310.15141)): the theory of accepting one of several candidates.
#
# All papers: [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - [Exercises 09](../exercises/09_medusa.ipynb): the heads, the best shape of a tree, and the bias of typical
#   acceptance.
# - Interview questions (`minispec drill`): `medusa`, `medusa-cost`, `medusa-training`, `tree-attention`,
#   `tree-verification`, `tree-or-chain`, `typical-acceptance`.
# - [10 EAGLE and DFlash](10_eagle_and_dflash.ipynb): a drafter whose tokens depend on one another, and one that drafts
#   a whole block at once.
