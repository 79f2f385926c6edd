"""Batch invariance: the same bits for a token, whatever else is in the pass. MINISPEC_BATCH_INVARIANT=1.

A sum of rounded numbers depends on the order in which it is taken, and fast kernels choose that order by the number of
tokens. With the flag one order serves them all: one request alone or in a batch, one token or a verify pass of five, a
prompt whole or in chunks. So greedy outputs with a chain of drafts are plain decoding's, bit for bit, in any dtype.

CPU   The sums of our compiled product and of the compiled pass run along K in one order, one accumulator per output,
      for one token as for eight: how many tokens there are decides how many accumulators there are, and never the order
      in one of them. The compiled pass takes eight tokens at a time; nothing of torch's takes over where it is faster.
GPU   Every product goes through the skinny kernel with 16 tokens to a program (gpu/gemm.py); attention has one
      number of query rows to a program and never splits the slots (gpu/attention.py). An output's sum then runs along
      strips and tiles of one size, from the first to the last.

Both cost the speed of prompts and of large batches, and on a GPU that of long contexts. A tree of drafts is another
matter: its accepted tokens lie in other slots than plain decoding's, so their keys are added up in another order.

A pass that has no such form is refused. Set the flag before an engine is made: what it has captured stays as it is.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import local
from typing import NoReturn

_here = local()


def wanted() -> bool:
    return os.environ.get("MINISPEC_BATCH_INVARIANT", "0") not in ("", "0") and not getattr(_here, "waived", False)


@contextmanager
def waived() -> Iterator[None]:
    """For a pass of a drafter's in this thread. Drafts decide how long a greedy output takes, and never what it is."""
    _here.waived = True
    try:
        yield
    finally:
        _here.waived = False


def refuse() -> NoReturn:
    raise ValueError(
        "MINISPEC_BATCH_INVARIANT=1: this pass has no batch-invariant form. It needs a dense model, in float32 on a "
        "CPU with numba, a cache and no gradients, or in bfloat16, float16 or float32 on a GPU with Triton, without "
        "penalties, biases or constraints; unset it to compute as usual"
    )
