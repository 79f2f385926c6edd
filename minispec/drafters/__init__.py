"""Drafters: one proposer per file, one protocol (base.py), the same verifier for all. As users type them:
ms.drafters.NGram(); on the command line they have names (names.py). A file is imported when its drafter is first used.
"""

import sys

from ..lazy import Lazy

FILES = {
    "base": ["Drafter", "Draft", "Scratch"],
    "ngram": ["NGram"],
    "suffix": ["Suffix"],
    "model": ["DraftModel"],
    "early_exit": ["EarlyExit"],
    "quantized": ["Quantized"],
    "cascade": ["Cascade"],
    "lookahead": ["Lookahead"],
    "medusa": ["Medusa", "MedusaHeads"],
    "eagle": ["Eagle", "EagleHead"],
    "mtp": ["MTP", "MTPHead"],
    "dflash": ["DFlash", "DFlashHead"],
    "dflash2": ["DFlash2", "DFlash2Head"],
    "dspark": ["DSpark", "DSparkHead"],
    "ahead": ["Ahead"],
    "synthetic": ["Synthetic"],
    "translate": ["same_tokens"],
    "names": ["DRAFTERS", "HEADED", "by_name", "name_of", "shipped_draft"],
}
HOMES = {name: f".{file}" for file, names in FILES.items() for name in names}
HOMES["Model"] = ".model:DraftModel"
sys.modules[__name__].__class__ = Lazy
