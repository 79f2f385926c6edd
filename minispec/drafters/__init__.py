"""Drafters: one proposer per file, one protocol (base.py), the same verifier for all."""

from .base import Context, Draft, Drafter, Scratch
from .by_name import DRAFTERS, by_name, shipped_draft
from .cascade import Cascade
from .dflash import DFlash, DFlashHead
from .eagle import Eagle, EagleHead
from .early_exit import EarlyExit
from .lookahead import Lookahead
from .medusa import Medusa, MedusaHeads
from .model import DraftModel
from .mtp import MTP, MTPHead
from .ngram import NGram
from .quantized import Quantized
from .suffix import Suffix

Model = DraftModel  # what users type: ms.drafters.Model(draft)

__all__ = [
    "DRAFTERS",
    "MTP",
    "Cascade",
    "Context",
    "DFlash",
    "DFlashHead",
    "Draft",
    "DraftModel",
    "Drafter",
    "Eagle",
    "EagleHead",
    "EarlyExit",
    "Lookahead",
    "MTPHead",
    "Medusa",
    "MedusaHeads",
    "Model",
    "NGram",
    "Quantized",
    "Scratch",
    "Suffix",
    "by_name",
    "shipped_draft",
]
