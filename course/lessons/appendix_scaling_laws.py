# %% [markdown]
# # Appendix: scaling laws
#
# *Time:* 15 minutes · *Before this:* [01 why decoding is slow](01_why_decoding_is_slow.ipynb) · *Practice:* [exercises of the appendix](../exercises/appendix_scaling_laws.ipynb)
#
# This course is about serving a model that somebody has already trained. This appendix asks why the model has the size it
# has. A fixed training budget can be spent on more parameters or on more tokens, and the best split follows from one
# formula and one experimental result.
#
# You will be able to
#
# - derive how large a model should be for its training compute, and check what others claim;
# - say why models are often trained far beyond that optimum.

# %%
from minispec import theory
from minispec_course import viz

# %% [markdown]
# ## How large should a model be?
#
# We need to know what training costs, and which split of that cost gives the lowest loss. Training costs about 6 FLOP per
# parameter and token: 2 in the forward pass, 4 in the backward pass. (One FLOP is one addition or one multiplication.
# Attention over the context is left out.)
#
# $$C = 6 N D$$
#
# Here $C$ is the training compute in FLOP, $N$ the number of parameters and $D$ the number of training tokens. (These are the
# letters of the papers. This $N$ has nothing to do with the $E[N]$ of the lessons on speculation.) For a fixed $C$, a larger
# model leaves compute for fewer tokens. The *Chinchilla* experiments (Hoffmann et al., 2022, arXiv:2203.15556) estimated in
# three ways which split gives the lowest loss. They found that $N$ and $D$ should grow by almost the same factor when $C$
# grows, and the model that their authors then trained to test this, Chinchilla, has 20 tokens per parameter. If both grow
# equally their ratio stays what it is, so we use $D = 20 N$ for every budget. It follows that $C = 120 N^2$, so
#
# $$N = \sqrt{C / 120} \approx 0.091 \sqrt{C}, \qquad D = 20 N$$
#
# [`compute_optimal`](../minispec/theory.py) computes both. How far can you trust the 20? It is a rule of thumb, because it
# depends on the data and on the method. Chinchilla was trained with the budget of an earlier model, Gopher, which the paper
# counts as 5.76e23 FLOP. For that budget its first estimate gives 67 billion parameters and its third 40 billion, and these
# differ by a factor of three in tokens per parameter:

# %%
n, d = theory.compute_optimal(1.0)  # C = 1, so these are the factors of √C
print(f"N = {n:.4f} · √C, D = {d:.3f} · √C")
for parameters in (67e9, 40e9):
    tokens = 5.76e23 / (6 * parameters)
    print(f"Gopher's budget, {parameters / 1e9:.0f} B parameters: {tokens / parameters:.0f} tokens per parameter")

# %% [markdown]
# Near the optimum the loss changes slowly, so the exact ratio matters less than this looks.

# %% [markdown]
# ## Predict
#
# GPT-3 has 175 billion parameters and was trained on 300 billion tokens. By this rule, how large would the best model for
# the same compute have been?

# %% tags=["nbval-ignore-output"]
gpt3 = viz.predict("Best size for GPT-3's compute?", "billion parameters")
gpt3

# %% [markdown]
# ## Run

# %% tags=["spoiler"]
for name, parameters, seen in (("GPT-3", 175e9, 300e9), ("Gopher", 280e9, 300e9)):
    flops = theory.training_flops(parameters, seen)
    n, d = theory.compute_optimal(flops)
    print(f"{name:7} {flops:.2e} FLOP: best {n / 1e9:.0f} B on {d / 1e12:.1f} T tokens", end=", ")
    print(f"it had {seen / parameters:.1f} tokens per parameter")

# %% [markdown]
# ## Reveal

# %% tags=["spoiler"]
best, _ = theory.compute_optimal(theory.training_flops(175e9, 300e9))
gpt3.reveal(round(best / 1e9))

# %% [markdown]
# With this arithmetic you can check what you read, and an interviewer may ask you to. Two claims are common enough to be worth
# it; we found them in a study guide ([our audit](../docs/audit.md) calls it E). The first is that the best $N$ is
# $0.05 \sqrt{C}$ *and* that there are 20 tokens per parameter. With $C = 6 N D$ both cannot be true, because the first one
# implies another ratio:

# %%
ratio = 1 / (6 * 0.05**2)
print(f"N = 0.05 · √C means D/N = {ratio:.0f} tokens per parameter")
print(f"check: {theory.compute_optimal(1.0, tokens_per_parameter=ratio)[0]:.3f} · √C")

# %% [markdown]
# (That ratio alone would not be absurd, because the paper's third estimate is near it. The contradiction is in claiming both.)
#
# The second claim is that 70 B parameters on 1.4 T tokens are the best use of GPT-3's compute and of Gopher's. For Gopher it
# holds by the rule, because that is how Chinchilla was made. ($6 N D$ is an approximation: it gives Gopher an eighth less than
# the paper counts, and Chinchilla 2 % more.) For GPT-3 it does not hold, because GPT-3 had little more than half of that
# budget:

# %%
n, d = theory.compute_optimal(5.76e23)
print(f"Gopher's budget as the paper counts it: best {n / 1e9:.0f} B on {d / 1e12:.1f} T tokens")
for name, parameters, seen in (("Gopher", 280e9, 300e9), ("Chinchilla", 70e9, 1.4e12), ("GPT-3", 175e9, 300e9)):
    flops = theory.training_flops(parameters, seen)
    print(f"{name:10} 6ND = {flops:.2e} FLOP, {flops / 5.76e23:.0%} of that budget")

# %% [markdown]
# ## How flat is the optimum?
#
# The rule gives one size for each budget. What would a smaller or a larger model lose? A formula that was fitted to the
# runs of the Chinchilla paper answers it, $L = E + A / N^{\alpha} + B / D^{\beta}$ (Besiroglu et al., 2024,
# arXiv:2404.10102). For a fixed compute a larger model sees fewer tokens, so the loss over the size $N$ is a bowl. The
# next cell evaluates it for GPT-3's compute, in nats per token above the floor $E$. Change `flops` and look again.


# %%
def excess(parameters: float, tokens: float) -> float:
    """Loss above its floor, by the fit."""
    return 482.01 / parameters**0.3478 + 2085.43 / tokens**0.3658


def best_size(flops: float) -> float:
    """The bottom of the bowl: try sizes from 10 million to 10 trillion parameters, 1 % apart."""
    return min((1e7 * 1.01**i for i in range(1390)), key=lambda n: excess(n, flops / (6 * n)))


flops = theory.training_flops(175e9, 300e9)  # GPT-3's
best, rule = best_size(flops), theory.compute_optimal(flops)[0]
for size in (best / 4, best / 2, best, 2 * best, rule, 175e9):
    lost = excess(size, flops / (6 * size)) - excess(best, flops / (6 * best))
    print(f"{size / 1e9:6.1f} B on {flops / (6 * size) / 1e12:5.2f} T tokens: {lost:.3f} nats above the best")
llama = theory.training_flops(8e9, 15e12)
print(f"Llama-3-8B's compute would train {best_size(llama) / 1e9:.0f} B parameters at best")
print(f"ten times the compute: a model {best_size(10 * flops) / best:.1f} times as large")

# %% [markdown]
# The bowl is flat around its minimum: half or twice the best size loses a few thousandths of a nat. GPT-3 lies to the right
# of it, with more parameters and fewer tokens than the best, and lost three times as much. Llama-3-8B lies far to the left:
# its makers used compute that would have trained a model ten times as large.
#
# They had a reason. Training is paid once, while serving is paid for every token, roughly in proportion to the parameters
# that a token uses, plus its share of the cache. The rule of 20 gets the lowest loss out of the first bill and ignores the
# second, and all lessons of this course are about the second.

# %% [markdown]
# ## In production
#
# A model card usually gives the parameters and the training tokens. Their ratio suggests which cost its makers had in mind. A
# ratio near 20 tokens per parameter makes the best of the training compute. A ratio far above it means that more training was
# paid to reach the same quality with fewer parameters, which are cheaper to serve. Open models that are widely served today are
# mostly of the second kind.

# %%
for name, parameters, seen in (("Chinchilla", 70e9, 1.4e12), ("Llama-3-8B", 8e9, 15e12)):
    print(f"{name:11} {seen / parameters:6,.0f} tokens per parameter")

# %% [markdown]
# ## Check yourself
#
# <details><summary>You want a compute-optimal model with twice as many parameters. How much more compute does it
# need?</summary>
#
# Four times as much, because $C = 120 N^2$: it has twice the parameters and is trained on twice the tokens.
# </details>
#
# <details><summary>Where does the 6 in C = 6ND come from?</summary>
#
# A forward pass needs one multiplication and one addition per parameter and token, so 2 FLOP. The backward pass computes
# two products of the same size, one for the gradient of the weights and one for that of the activations: 4 more.
# </details>
#
# <details><summary>Why train an 8B model on 15 trillion tokens?</summary>
#
# Because every token it serves later costs time and money, roughly in proportion to its parameters. A small model that is
# trained longer than the rule of 20 says can reach the quality of a larger one and be cheaper over its life, although it uses
# the training compute less well.
# </details>

# %% [markdown]
# ## Read the papers
#
# - Hoffmann et al., 2022: *Training compute-optimal large language models*
#   ([arXiv:2203.15556](https://arxiv.org/abs/2203.15556)): three ways to estimate the optimum, and the 70B model that
#   tested it.
# - Kaplan et al., 2020: *Scaling laws for neural language models*
#   ([arXiv:2001.08361](https://arxiv.org/abs/2001.08361)): the earlier exponents, which led to larger models on fewer
#   tokens.
#
# All papers of the course are in [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - [Exercises of the appendix](../exercises/appendix_scaling_laws.ipynb): compute the optimum yourself.
# - `minispec drill` asks `compute-optimal`, `train-past-optimal`.
# - Back to the course: [16 beyond one GPU](16_beyond_one_gpu.ipynb).
