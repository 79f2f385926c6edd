"""What a verifier emits, exactly: one token, two tokens, tokens per cycle; and cycles sampled with it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from random import Random

import torch
from torch import Tensor

from minispec import exact, verify

from .goodness import chi_square
from .places import PRESETS, Place, toy_place
from .verifiers import RIGHT, VERIFIERS, Verifier, cycle


@dataclass(frozen=True)
class Explored:
    """The exact distributions that one verifier gives at one position."""

    place: Place
    verifier: Verifier
    p: Tensor  # [V]
    q: Tensor  # [V]
    parts: dict[str, Tensor]  # of the first token's distribution, by how it came about: accepted, corrected, bonus
    joint: dict[verify.Context, float]  # of the first two tokens
    wanted: dict[verify.Context, float]  # the target's own
    tokens: float  # per cycle
    right_tokens: float  # per cycle of the real verifier

    @property
    def emitted(self) -> Tensor:
        return sum(self.parts.values())

    @property
    def accepted(self) -> float:
        return float(self.parts["accepted"].sum())

    @property
    def one_place(self) -> float:
        """How far the emitted token is from p, in total variation."""
        return exact.total_variation(self.emitted, self.p)

    @property
    def two_places(self) -> float:
        return exact.total_variation(self.joint, self.wanted)


@torch.inference_mode()
def explore(place: Place, verifier: Verifier | str = RIGHT, k: int = 2) -> Explored:
    """Compose the distributions that a verifier gives at a position, with k draft tokens per cycle: 1 or 2, because all
    their branches are followed."""
    verifier = VERIFIERS[verifier] if isinstance(verifier, str) else verifier
    p, q = place.target(()), place.draft(())
    parts = {kind: torch.zeros_like(p) for kind in ("accepted", "corrected", "bonus")}
    runs: Counter = Counter()
    begin = partial(cycle, place.target, place.draft, (), k, verifier=verifier)
    for (kind, tokens), probability in exact.exact_distribution(lambda random: begin(random)).items():
        parts[kind][tokens[0]] += probability
        runs[tokens] += probability

    def later(context: verify.Context) -> dict:  # of a later cycle only the first token is asked for: one draft will do
        models = place.target, place.draft
        return (
            exact.exact_distribution(lambda random: cycle(*models, context, 1, random, verifier)[1])
            if context
            else runs
        )

    joint = exact.joint_distribution(later, 2)
    wanted = exact.joint_distribution(partial(exact.plain_distribution, place.target), 2)
    per_cycle = sum(len(tokens) * probability for tokens, probability in runs.items())
    return Explored(place, verifier, p, q, parts, joint, wanted, per_cycle, 1 + _reach(place, (), k))


def _reach(place: Place, context: verify.Context, drafts: int) -> float:
    """Σ_i Π_{j≤i} β_j: the draft tokens that a right verifier accepts, on average."""
    both = torch.minimum(place.target(context), place.draft(context))
    if drafts == 1:
        return float(both.sum())
    tokens = both.nonzero().flatten().tolist()
    return sum(float(both[x]) * (1 + _reach(place, (*context, x), drafts - 1)) for x in tokens)


class Sampled:
    """Cycles sampled with a verifier, one after the other: the more are asked for, the more it has."""

    def __init__(self, place: Place, verifier: Verifier, k: int, seed: int = 0):
        self.begin = partial(cycle, place.target, place.draft, (), k, Random(seed).random, verifier)
        self.counts = torch.zeros(len(place.labels), dtype=torch.long)  # of the first token
        self.cycles = self.tokens = 0

    @torch.inference_mode()
    def upto(self, cycles: int) -> Sampled:
        for _ in range(cycles - self.cycles):
            _, tokens = self.begin()
            self.counts[tokens[0]] += 1
            self.tokens += len(tokens)
        self.cycles = max(cycles, self.cycles)
        return self

    def p_value(self, p: Tensor) -> float:
        """χ² of the first tokens against p."""
        return chi_square(self.counts.tolist(), p)


# ---- lesson 14: verifiers with one bug each --------------------------------------------------------------------------

TOY = toy_place(*PRESETS["a fair draft"])  # the p and q of lesson 06


def verifier_errors() -> dict[str, tuple[float, float, float]]:
    """For each verifier: how far one token and two tokens are from the target (total variation), tokens per cycle."""
    errors = {}
    for name, verifier in VERIFIERS.items():
        found = explore(TOY, verifier, k=1 if "bonus from" in name else 2)
        errors[name] = (found.one_place, found.two_places, found.tokens)
    return errors


def verifier_table() -> str:
    lines = [f"{'':44s} one token  two tokens  tokens per cycle"]
    for name, (one, two, tokens) in verifier_errors().items():
        lines.append(f"{name:44s} {_shown(one):>9s}  {_shown(two):>10s}  {tokens:.4f}")
    return "\n".join(lines)


def _shown(off: float) -> str:
    return f"{off:.4f}" if off > 1e-9 else "exact"
