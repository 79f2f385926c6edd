"""Acceptance by decree, for load tests: how fast is a server whose drafter is right this often, whoever that will be?

A draft costs nothing and means nothing, yet its verification costs what any does: so the load, the memory and the
times are those of a drafter with this acceptance and no cost. Benchmarks of random prompts need it most, since what
a drafter is worth on random tokens says nothing about real ones. (vLLM has it as rejection_sample_method "synthetic".)
"""

import warnings

from ..require import real, require
from ..sampling import uniforms
from ..sequence import Sequence
from .base import Draft, Drafter


class Synthetic(Drafter):
    """Draft random tokens, and accept each with probability `acceptance` if those before it were, whatever the target
    says: `ms.drafters.Synthetic(0.8)`. NOT LOSSLESS: the output is noise. For load tests alone."""

    lossless = False

    def __init__(self, acceptance: float = 0.8):
        require(real(acceptance, 0, 1), "a probability", acceptance=acceptance)
        self.acceptance, self.ids = acceptance, []
        said = f"drafters.Synthetic({acceptance}) accepts random tokens: for load tests, the outputs are noise"
        warnings.warn(said, stacklevel=2)

    def __repr__(self) -> str:
        return f"Synthetic({self.acceptance}, not lossless)"

    def fit(self, target) -> None:
        self.ids = [id for id in range(target.config.vocab_size) if id not in target.end_tokens]

    def propose(self, sequences: list[Sequence], k: int) -> list[Draft]:
        drafts = []
        for u in uniforms([sequence.generator for sequence in sequences], 2 * k).tolist():
            tokens = [self.ids[int(x * len(self.ids))] for x in u[:k]]
            accepted = next((i for i, x in enumerate(u[k:]) if x >= self.acceptance), k)
            drafts.append(Draft(tokens, accepted=accepted))
        return drafts
