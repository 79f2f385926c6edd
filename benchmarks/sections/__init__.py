"""What `python -m benchmarks report` says about each benchmark: measured, predicted, their ratio, and a picture.

Every prediction is one of theory.py's formulas, fed with what the same run measured (bandwidth, FLOP/s, c, v, α) or
with the workload itself. None of them was fitted.
"""

from __future__ import annotations

from . import drafting, load, passes, serving
from .base import Section, cell, table
from .cpu import cpu
from .limit import limit

__all__ = ["SECTIONS", "Section", "cell", "table"]

SECTIONS = {  # in the order of the course
    "decode": passes.decode,
    "verify": passes.verify,
    "cpu": cpu,
    "memory": serving.memory_use,
    "attention": passes.attention,
    "batching": serving.batching_section,
    "speculate": passes.speculate,
    "acceptance": drafting.acceptance,
    "drafters": drafting.drafters,
    "batch": serving.batch,
    "limit": limit,
    "serve": load.serve,
}
