"""Figures and widgets, drawn from traces and results, never from made-up numbers. Loaded when first asked for."""

from .temperature import acceptance_by_temperature

__all__ = ["acceptance_by_temperature"]
