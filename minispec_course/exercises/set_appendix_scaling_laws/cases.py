"""Set appendix, scaling laws: how large a model should be for its training compute."""

import math

from minispec_course import formulas

from ..exercise import exercise
from ..fresh import fresh
from ..returned import number, pair


# ---- appendix.compute_optimal ---------------------------------------------------------------------------------------
def observe_optimal(answer, flops, tokens_per_parameter):
    parameters, tokens = pair(answer(flops, tokens_per_parameter), "the number of parameters and that of tokens")
    return {"parameters": number(parameters, "the first result"), "tokens": number(tokens, "the second result")}


OPTIMAL = exercise(
    "appendix.compute_optimal",
    reference=formulas.compute_optimal,
    observe=observe_optimal,
    cases=[
        dict(flops=120.0, tokens_per_parameter=20.0),
        dict(flops=480.0, tokens_per_parameter=20.0),
        dict(flops=600.0, tokens_per_parameter=100.0),
        dict(flops=3.15e23, tokens_per_parameter=20.0),
    ],
)


def with_constant(flops, ratio, constant):
    parameters = math.sqrt(flops / constant)
    return parameters, ratio * parameters


@OPTIMAL.wrong_solutions
class _:
    def forward_only(flops, tokens_per_parameter):
        """You use C = 2·N·D, which is the forward pass alone. The backward pass costs twice as much again, so training
        costs 6·N·D."""
        return with_constant(flops, tokens_per_parameter, 2 * tokens_per_parameter)

    def rule_of_thumb(flops, tokens_per_parameter):
        """You use N = 0.05·√C, a rule that is often quoted. It does not follow from C = 6·N·D and D = 20·N: these give
        √(1/120) ≈ 0.091."""
        return with_constant(flops, tokens_per_parameter, 400)

    def no_root(flops, tokens_per_parameter):
        """You leave out the square root. D contains N as well, so C = 6·r·N²: take the root."""
        parameters = flops / (6 * tokens_per_parameter)
        return parameters, tokens_per_parameter * parameters

    def always_twenty(flops, tokens_per_parameter):
        """You use 20 tokens per parameter whatever the argument says. A model that will be served a lot is trained on
        more: use tokens_per_parameter."""
        return formulas.compute_optimal(flops)

    def exchanged(flops, tokens_per_parameter):
        """You return the tokens first. Return the parameters first, then the tokens."""
        return formulas.compute_optimal(flops, tokens_per_parameter)[::-1]


@fresh("appendix.compute_optimal", "20 tokens per parameter")
def _(draw):
    return dict(flops=float(draw.whole(10, 9000)) * 10 ** draw.whole(0, 4 * draw.size), tokens_per_parameter=20.0)


@fresh("appendix.compute_optimal", "another ratio", weight=2)
def _(draw):
    ratio = draw.choice([1.0, 0.5, 5.0, 8.0, 37.0, 100.0, 1875.0])
    return dict(flops=float(draw.whole(10, 9000)) * 10 ** draw.whole(0, 4 * draw.size), tokens_per_parameter=ratio)
