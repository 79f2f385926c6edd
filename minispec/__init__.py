"""minispec: fast LLM inference you can read, and the course that explains it.

    import minispec as ms
    target = ms.load("micro")
    out = ms.generate(target, "Once upon a time", max_new_tokens=64, temperature=0.8, seed=0)

What is in it, from the ground up, one idea a file. To begin with, read speculate and verify:

    model       a decoder-only transformer, with its cache as an explicit argument
    linear      the product x Wᵀ, by whatever computes it fastest here
    cache       keys and values, preallocated and rewindable
    experts     a mixture of experts, the MLP of a sparse model
    recurrent   layers with a state instead of keys and values, and how it is rewound
    sampling    from logits to a distribution, and from a distribution to a token
    processors/ penalties, biases and constraints: what depends on the prefix
    params      everything that a request may ask for
    output      what the caller gets: text as it becomes final, stop strings, log-probabilities
    sequence    a request from its prompt to its output: tokens stored once, everything else a length
    generate    plain decoding: one forward pass for every token
    tree        draft tokens as a tree: several guesses for one position
    trace       what happened in each draft-verify cycle
    verify      the rejection sampler: draft tokens in, tokens out that follow the target exactly
    speculate   the loop: propose, forward, judge, keep, finish
    controller  how far to draft, chosen while it runs
    drafters/   one drafter a file: base (the protocol), ngram, suffix, model, medusa, eagle, …
    serving/    many requests together: blocks, paged, scheduler, runner, engine

    exact       the exact distribution of what a draft/verify scheme emits
    theory      the formulas: expected tokens, speed-up, rooflines
    measure     honest timing: what this machine reads and computes, what a pass costs
    load/       models on disk: names, folders, formats
    cpu/        passes of few tokens near a CPU's limit, compiled by numba
    gpu/        the same passes near a GPU's limit, captured as CUDA graphs
    require     what a caller may give: everything else is refused in words
    api lazy    the public names, imported when the first of them is used
    data/       the models that ship, and stored results of benchmarks

Beside it: minispec_tools has the command line, the server, benchmarks and training; minispec_course what teaches.
"""

import sys
from typing import TYPE_CHECKING

from .lazy import Lazy

if TYPE_CHECKING:
    from .api import *

__version__ = "0.1.0"
__all__ = [
    "Config",
    "Cycle",
    "Engine",
    "KVCache",
    "Model",
    "Output",
    "Sampling",
    "SamplingParams",
    "Sequence",
    "Trace",
    "Transformer",
    "device",
    "drafters",
    "generate",
    "load",
    "models",
    "speculate",
]
HOMES = dict.fromkeys((name for name in __all__ if name != "drafters"), ".api")  # drafters is a module itself

sys.modules[__name__].__class__ = Lazy
