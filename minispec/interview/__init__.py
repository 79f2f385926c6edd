"""Interview practice: a bank of questions with levels, and a cheat sheet made from it. Loaded when first asked for."""

from .expressions import evaluate
from .questions import LEVELS, BankError, FollowUp, Number, Question, levels, load, problems, topics

__all__ = [
    "LEVELS",
    "BankError",
    "FollowUp",
    "Number",
    "Question",
    "evaluate",
    "levels",
    "load",
    "problems",
    "topics",
]
