"""minispec: fast LLM inference you can read, and the course that explains it.

    import minispec as ms
    target = ms.load("micro")
    out = ms.generate(target, "Once upon a time", max_new_tokens=64, temperature=0.8, seed=0)
"""

from .cache import KVCache
from .generate import Output, generate
from .model import Config, Transformer
from .models import load
from .sampling import Sampling
from .weights import Model

__version__ = "0.1.0"
__all__ = ["Config", "KVCache", "Model", "Output", "Sampling", "Transformer", "generate", "load"]
