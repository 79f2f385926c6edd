"""Batch invariance on the CPU: the same bits for a token, whatever else is in the pass. MINISPEC_BATCH_INVARIANT=1.

The sums of our compiled product and of the compiled pass run along K in one order, one accumulator per output, for one
token as for eight: how many tokens there are decides how many accumulators there are, and never the order in one of
them. So the compiled pass is invariant by itself, for one sequence and for a batch, contiguous or paged: it takes eight
tokens at a time (test_invariant.py compares bits). torch's products, which take over where they are faster, are not.
With the flag nothing takes over, and a pass that has no compiled form is refused. That costs the speed of prompts and
of large batches.
"""

from __future__ import annotations

import os


def wanted() -> bool:
    return os.environ.get("MINISPEC_BATCH_INVARIANT", "0") not in ("", "0")


def refuse() -> None:
    raise ValueError(
        "MINISPEC_BATCH_INVARIANT=1: this pass has no batch-invariant form. It needs a dense model in float32 on a CPU "
        "with numba, a cache, and no gradients; unset it to compute as usual"
    )
