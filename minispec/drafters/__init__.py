"""Drafters: one proposer a file, one protocol (base.py), the same verifier for all."""

from .base import Context, Draft, Drafter, Scratch
from .cascade import Cascade
from .dflash import DFlash, DFlashHead
from .eagle import Eagle, EagleHead
from .early_exit import EarlyExit
from .lookahead import Lookahead
from .medusa import Medusa, MedusaHeads
from .model import Model
from .ngram import NGram
from .quantized import Quantized
from .suffix import Suffix

__all__ = [
    "Cascade",
    "Context",
    "DFlash",
    "DFlashHead",
    "Draft",
    "Drafter",
    "Eagle",
    "EagleHead",
    "EarlyExit",
    "Lookahead",
    "Medusa",
    "MedusaHeads",
    "Model",
    "NGram",
    "Quantized",
    "Scratch",
    "Suffix",
]
