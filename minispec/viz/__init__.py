"""Figures and widgets, drawn from traces and results, never from made-up numbers. Loaded when first asked for.

`name_figure` functions return a plotly figure and need no notebook; their widgets put controls on the same function.
"""

from .panel import Panel
from .predict import Prediction, predict
from .temperature import acceptance_by_temperature

__all__ = ["Panel", "Prediction", "acceptance_by_temperature", "predict"]
