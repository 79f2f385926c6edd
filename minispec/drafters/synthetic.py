"""Acceptance by decree, for load tests: how fast is a server whose drafter costs nothing and is right this often?
(vLLM: rejection_sample_method "synthetic".) Load, memory and verification are real; the output is noise."""

import warnings

from ..require import real, require
from ..sampling import uniforms
from ..sequence import Sequence
from .base import Draft, Drafter


class Synthetic(Drafter):
    """`ms.drafters.Synthetic(0.8)`: random draft tokens, each accepted with this probability if those before it were,
    whatever the target says. NOT LOSSLESS."""

    lossless = False

    def __init__(self, acceptance: float = 0.8):
        require(real(acceptance, 0, 1), "a probability", acceptance=acceptance)
        self.acceptance, self.ids = acceptance, []
        warnings.warn("drafters.Synthetic accepts random tokens: for load tests, outputs are noise", stacklevel=2)

    def __repr__(self) -> str:
        return f"Synthetic({self.acceptance}, not lossless)"

    def fit(self, target) -> None:
        self.ids = [id for id in range(target.config.vocab_size) if id not in target.end_tokens]

    def propose(self, sequences: list[Sequence], k: int) -> list[Draft]:
        drafts = []
        for u in uniforms([sequence.coins for sequence in sequences], 2 * k).tolist():
            tokens = [self.ids[int(x * len(self.ids))] for x in u[:k]]
            accepted = next((i for i, x in enumerate(u[k:]) if x >= self.acceptance), k)
            drafts.append(Draft(tokens, accepted=accepted))
        return drafts
