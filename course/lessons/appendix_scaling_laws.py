# %% [markdown]
# # Appendix: scaling laws
#
# *Time:* 20 minutes · *Before this:* [01 why decoding is slow](01_why_decoding_is_slow.ipynb) · *Practice:* [exercises of the appendix](../exercises/appendix_scaling_laws.ipynb)
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
from minispec.course import viz

# %% [markdown]
# ## How large should a model be?
#
# Training costs about 6 FLOPs per parameter and token: 2 in the forward pass, 4 in the backward pass.
#
# $$C = 6 N D$$
#
# For a fixed $C$, a larger model sees fewer tokens. The *Chinchilla* experiments (Hoffmann et al., 2022,
# arXiv:2203.15556) found the lowest loss near 20 tokens per parameter, $D = 20 N$. Then $C = 120 N^2$, and
#
# $$N = \sqrt{C / 120} \approx 0.091 \sqrt{C}, \qquad D = 20 N$$
#
# This is [`compute_optimal`](../minispec/theory.py).

# %%
n, d = theory.compute_optimal(1.0)
print(f"N = {n:.4f} · √C, D = {d:.3f} · √C")
n, d = theory.compute_optimal(theory.training_flops(70e9, 1.4e12))
print(f"Chinchilla's own compute: {n / 1e9:.0f} B parameters on {d / 1e12:.1f} T tokens, which is what it is")

# %% [markdown]
# ## Predict
#
# GPT-3 has 175 billion parameters and saw 300 billion tokens. How large would the best model for that compute have been?

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
# Two claims of guide E ([the audit](../docs/audit.md) has all of them) do not survive this arithmetic.
#
# It gives the best $N$ as $0.05 \sqrt{C}$ *and* 20 tokens per parameter. These cannot both be: with $C = 6 N D$ the first
# one means another ratio.

# %%
ratio = 1 / (6 * 0.05**2)
print(f"N = 0.05 · √C means D/N = {ratio:.0f} tokens per parameter")
print(f"check: {theory.compute_optimal(1.0, tokens_per_parameter=ratio)[0]:.3f} · √C")

# %% [markdown]
# And it gives 70 B on 1.4 T as the best use of GPT-3's compute and of Gopher's, too. One answer cannot fit two budgets.
# It is Chinchilla's, and costs more than either:

# %%
for name, parameters, seen in (("GPT-3", 175e9, 300e9), ("Gopher", 280e9, 300e9), ("70 B on 1.4 T", 70e9, 1.4e12)):
    print(f"{name:14} {theory.training_flops(parameters, seen):.2e} FLOP")

# %% [markdown]
# ## The calculator

# %% tags=["nbval-ignore-output"]
viz.compute_optimal()

# %% [markdown]
# Things to try
#
# - Choose GPT-3, then Chinchilla. On which side of the dashed line do they lie?
# - Choose Llama-3-8B. It was trained far beyond its optimum. How large would the best model for its compute have been,
#   and what would each token of *that* cost to serve?
# - Compute ten times as much. By how much does the best model grow?
#
# The last but one is the answer to why small models are trained so long: training is paid once, serving is paid per
# token. Every lesson before this one was about the second bill. The rule of 20 only knows the first.

# %% [markdown]
# ## In production
#
# A model card usually gives the parameters and the training tokens. Their ratio tells you which bill its makers had in
# mind: near 20 tokens per parameter, training compute; far above it, the cost of serving. The second kind is what most
# servers run.

# %%
for name, parameters, seen in (("Chinchilla", 70e9, 1.4e12), ("Llama-3-8B", 8e9, 15e12)):
    print(f"{name:11} {seen / parameters:6,.0f} tokens per parameter")

# %% [markdown]
# ## Check yourself
#
# <details><summary>Ten times the compute. How do the best model and its data grow?</summary>
#
# Both by $\sqrt{10}$, about 3.2 times. Together that is ten.
# </details>
#
# <details><summary>Where does the 6 in C = 6ND come from?</summary>
#
# A forward pass needs one multiplication and one addition per parameter and token, so 2 FLOPs. The backward pass computes
# two products of the same size, one for the gradient of the weights and one for that of the activations: 4 more.
# </details>
#
# <details><summary>Why train an 8B model on 15 trillion tokens?</summary>
#
# Because every token it serves later costs time and money in proportion to its parameters. A small model that is trained
# longer than the rule of 20 says is cheaper over its life, although it uses the training compute less well.
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
# - `minispec drill` asks `compute-optimal`, `gpt3-compute`.
# - Back to the course: [16 beyond one GPU](16_beyond_one_gpu.ipynb).
