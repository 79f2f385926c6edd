"""The public names, which minispec/__init__.py takes from here when the first of them is used."""
# ruff: noqa: F401

from .cache import KVCache
from .generate import generate
from .load.folder import default_device as device
from .load.load import load
from .load.model import Model
from .load.registry import models
from .model import Config, Transformer
from .output import Output
from .params import SamplingParams
from .sampling import Sampling
from .sequence import Sequence
from .serving.engine import Engine
from .speculate import speculate
from .trace import Cycle, Trace
