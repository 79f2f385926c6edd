# ruff: noqa: F811, F821
# Wrong answers to the exercises of the appendix, as cells of a notebook. How they are used: __init__.py.


# %% appendix.compute_optimal: forward_only
def compute_optimal(flops, tokens_per_parameter):
    n = math.sqrt(flops / (2 * tokens_per_parameter))
    return n, flops / (2 * n)


# %% appendix.compute_optimal: rule_of_thumb
def compute_optimal(flops, tokens_per_parameter):
    n = 0.05 * flops**0.5
    return n, tokens_per_parameter * n


# %% appendix.compute_optimal: always_twenty
def compute_optimal(flops, tokens_per_parameter):
    n = math.sqrt(flops / 120)
    return n, 20 * n


# %% appendix.compute_optimal: no_root
def compute_optimal(flops, tokens_per_parameter):
    n = flops / 6 / tokens_per_parameter
    return n, n * tokens_per_parameter
