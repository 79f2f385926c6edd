"""Old names of exact_distributions, for the tests that still use them."""

from exact_distributions import target_distribution as target_law
from exact_distributions import toy_model

__all__ = ["target_law", "toy_model"]
