"""Drafters: one proposer per file, one protocol (base.py), the same verifier for all. As users type them:
ms.drafters.NGram()."""
# ruff: noqa: F401

from .base import Draft, Drafter, Scratch
from .by_name import DRAFTERS, by_name, shipped_draft
from .cascade import Cascade
from .dflash import DFlash, DFlashHead
from .eagle import Eagle, EagleHead
from .early_exit import EarlyExit
from .lookahead import Lookahead
from .medusa import Medusa, MedusaHeads
from .model import DraftModel
from .model import DraftModel as Model
from .mtp import MTP, MTPHead
from .ngram import NGram
from .quantized import Quantized
from .suffix import Suffix
