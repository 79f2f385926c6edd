"""Drafters: one proposer a file, one protocol (base.py), the same verifier for all."""

from .base import Context, Draft, Drafter, Scratch
from .cascade import Cascade
from .early_exit import EarlyExit
from .lookahead import Lookahead
from .model import Model
from .ngram import NGram
from .quantized import Quantized
from .suffix import Suffix

__all__ = [
    "Cascade",
    "Context",
    "Draft",
    "Drafter",
    "EarlyExit",
    "Lookahead",
    "Model",
    "NGram",
    "Quantized",
    "Scratch",
    "Suffix",
]
