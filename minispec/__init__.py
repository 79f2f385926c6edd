"""minispec: fast LLM inference you can read, and the course that explains it.

import minispec as ms
target = ms.load("micro")
out = ms.generate(target, "Once upon a time", max_new_tokens=64, temperature=0.8, seed=0)
"""

from importlib import import_module

from . import drafters
from .cache import KVCache
from .engine import Engine
from .fast import load
from .generate import Output, generate
from .model import Config, Transformer
from .registry import models
from .sampling import Sampling
from .speculate import speculate
from .trace import Cycle, Trace
from .weights import Model

__version__ = "0.1.0"
__all__ = [
    "Config",
    "Cycle",
    "Engine",
    "KVCache",
    "Model",
    "Output",
    "Sampling",
    "Trace",
    "Transformer",
    "drafters",
    "generate",
    "load",
    "models",
    "speculate",
]

LAZY = ("viz", "classroom", "interview")  # these need packages that the core does without


def __getattr__(name: str):
    if name in LAZY:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
