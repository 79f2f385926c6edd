# %% [markdown]
# # Appendix: scaling laws
#
# *Time:* 20 minutes · *Before this:* [01 Why decoding is slow](01_why_decoding_is_slow.ipynb) · *Practice:* [exercises of the appendix](../exercises/appendix_scaling_laws.ipynb)
#
# This course serves a model that someone else has trained. Why does that model have the size it has? A training budget can
# be spent on more parameters or on more tokens, and the best split follows from one formula and one experiment.
#
# You will be able to
#
# - compute how large a model should be for its training compute, and check what others claim;
# - say why models are often trained far beyond that optimum.

# %%
from minispec_course import formulas, viz
from minispec_course.check import yours

# %% [markdown]
# ## Too large or too small?
#
# GPT-3 has 175 billion parameters and was trained on 300 billion tokens. The same training compute could have paid for
# another model, larger on fewer tokens or smaller on more. Which one would have had the lowest loss?

# %% tags=["nbval-ignore-output"]
guess = viz.predict("The best size for GPT-3's training compute?", "billion parameters")
guess

# %% [markdown]
# ## One formula, one experiment
#
# Training costs about 6 FLOP per parameter and token: 2 in the forward pass, 4 in the backward pass. With $N$ parameters
# and $D$ training tokens, the compute is
#
# $$C = 6 N D.$$
#
# For a fixed $C$, a larger model leaves compute for fewer tokens. The *Chinchilla* experiments (Hoffmann et al., 2022,
# arXiv:2203.15556) looked for the split with the lowest loss. They found that $N$ and $D$ should grow by almost the same
# factor when $C$ grows, so the ratio $r = D / N$ stays about the same. Chinchilla, the model that they trained to test
# this, has $r = 20$ tokens per parameter.
#
# ### Yours: the best size
#
# Two equations, $C = 6 N D$ and $D = r N$, for two unknowns. `flops` is $C$ and `tokens_per_parameter` is $r$. Return $N$
# and $D$.


# %%
@yours("appendix.compute_optimal")
def compute_optimal(flops: float, tokens_per_parameter: float) -> tuple[float, float]:
    """Parameters and tokens that make the best use of so many FLOPs of training."""
    ### BEGIN SOLUTION: put the second equation into the first
    parameters = (flops / (6 * tokens_per_parameter)) ** 0.5
    return parameters, tokens_per_parameter * parameters
    ### END SOLUTION


# %% tags=["spoiler"]
gpt3 = formulas.training_flops(175e9, 300e9)
n, d = compute_optimal(gpt3, 20)
print(f"GPT-3, {gpt3:.2e} FLOP: best {n / 1e9:.0f} B parameters on {d / 1e12:.1f} T tokens")

# %% tags=["spoiler", "nbval-ignore-output"]
guess.reveal(round(n / 1e9))

# %% [markdown]
# By this rule GPT-3 was more than three times too large, and saw far too few tokens.
#
# ## Check what you read
#
# Two claims are common enough to be worth the arithmetic; we found both in a study guide ([our audit](../docs/audit.md)).
# The first: the best $N$ is $0.05\sqrt{C}$, *and* there are 20 tokens per parameter. With $C = 6 N D$ both
# cannot be true:

# %%
print(f"20 tokens per parameter give N = {compute_optimal(1.0, 20)[0]:.3f} · √C")  # C = 1: the factor of √C
print(f"N = 0.05 · √C means {1 / (6 * 0.05**2):.0f} tokens per parameter")

# %% [markdown]
# The second: 70 B parameters on 1.4 T tokens are the best use of GPT-3's compute *and* of Gopher's. Gopher is an earlier
# model with 280 billion parameters, whose training the paper counts as 5.76e23 FLOP.

# %% tags=["spoiler"]
n, d = compute_optimal(5.76e23, 20)
print(
    f"Gopher's budget: best {n / 1e9:.0f} B on {d / 1e12:.1f} T tokens; GPT-3 had {gpt3 / 5.76e23:.0%} of that budget"
)

# %% [markdown]
# For Gopher it holds, because Chinchilla was made for that budget. For GPT-3, with little more than half of it, it does not.
#
# ## How flat is the optimum?
#
# What would a smaller or a larger model lose? A formula fitted to the paper's runs answers it (Besiroglu et al., 2024,
# arXiv:2404.10102):
#
# $$L = E + A / N^{\alpha} + B / D^{\beta}.$$
#
# $E$ is the loss that no model gets below, the second term is the price of a finite model, the third that of finite data;
# $A$, $B$, $\alpha$ and $\beta$ are fitted. The loss is in **nats** per token, which means in natural logarithms: with 0.01
# nats more, the average token is 1 % less likely. For a fixed compute the loss over $N$ is a bowl. The next cell evaluates
# it for GPT-3's compute. Change `flops` and look again.


# %% tags=["spoiler"]
def excess(parameters: float, flops: float) -> float:
    """Loss above E, by the fit."""
    tokens = flops / (6 * parameters)
    return 482.01 / parameters**0.3478 + 2085.43 / tokens**0.3658


def best_size(flops: float) -> float:
    """The bottom of the bowl: try sizes from 10 million to 10 trillion parameters, 1 % apart."""
    return min((1e7 * 1.01**i for i in range(1390)), key=lambda n: excess(n, flops))


flops = gpt3  # if you change it, 175 B below is still GPT-3's size
best = best_size(flops)
for size in (best / 4, best / 2, best, 2 * best, 175e9):
    print(f"{size / 1e9:6.1f} B parameters: {excess(size, flops) - excess(best, flops):.3f} nats above the best")

# %% [markdown]
# The fit puts the bottom near the size that the rule of 20 gave. And the bowl is flat: half or twice the best size loses a
# few thousandths of a nat, and even GPT-3, far too large as it was, lost less than two hundredths. Compare that with
# Llama-3-8B, which was trained on 15 trillion tokens:

# %%
llama = formulas.training_flops(8e9, 15e12)
bottom = best_size(llama)
lost = excess(8e9, llama) - excess(bottom, llama)
print(f"Llama-3-8B had {15e12 / 8e9:,.0f} tokens per parameter; the same compute: {bottom / 1e9:.0f} B at best")
print(f"By the fit it gave up {lost:.3f} nats per token for that.")

# %% [markdown]
# With the same compute its makers could have trained a model ten times as large, and slightly better. They had a reason.
# Training is paid once, while serving is paid for every token, roughly in proportion to the parameters that a token uses. The
# rule of 20 gets the lowest loss out of the first bill and ignores the second: a tenth of the serving cost for a twentieth
# of a nat. This whole course is about the second bill.
#
# ## In production
#
# A model card usually gives the parameters and the training tokens. Divide the tokens by the parameters: a ratio far above 20
# says that the model was made to be served, as most open models are that are widely served today. (For a mixture of experts,
# divide by the parameters that a token uses, and take the 20 with a pinch of salt.)
#
# ## Check yourself
#
# <details><summary>You want a compute-optimal model with twice as many parameters. How much more compute does it
# need?</summary>
#
# Four times as much: twice the parameters, trained on twice the tokens.
# </details>
#
# <details><summary>Where does the 6 in C = 6ND come from?</summary>
#
# A forward pass needs one multiplication and one addition per parameter and token, so 2 FLOP. The backward pass computes two
# products of the same size, one for the gradient of the weights and one for that of the activations: 4 more. (Attention
# over the context is left out.)
# </details>
#
# <details><summary>How far can you trust the 20?</summary>
#
# It is a rule of thumb that depends on the data and on the method. For Gopher's budget the paper's first estimate gives 67
# billion parameters and its third 40 billion, which differ by almost a factor of three in tokens per parameter. Near the
# optimum the loss changes slowly, so that matters less than it seems.
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
# All papers: [the references](../docs/references.md).

# %% [markdown]
# ## Next
#
# - Interview questions (`minispec drill`): `compute-optimal`, `train-past-optimal`.
# - Back to the course: [16 Beyond one GPU](16_beyond_one_gpu.ipynb).
