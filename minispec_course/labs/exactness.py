"""Lesson 14's table of exact distributions: verifiers with one bug each.

Nothing is sampled here: every branch of the random numbers is followed, so 0 means equal to the last digits.
"""

from __future__ import annotations

from .explored import explore
from .places import PRESETS, toy_place
from .verifiers import VERIFIERS

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
