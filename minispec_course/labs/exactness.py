"""Two tables of exact distributions for lesson 14: verifiers with one bug each, and the pseudocode of two guides.

Nothing is sampled here: every branch of the random numbers is followed, so 0 means equal to the last digits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from minispec import exact, verify

from .explored import explore
from .goodness import first_token
from .places import PRESETS, toy_place
from .verifiers import VERIFIERS

TOY = toy_place(*PRESETS["a fair draft"])  # the p and q of lesson 06
PROMPT = (1, 3)


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


def pseudocode_errors() -> dict[str, float]:
    """How far the distribution of two guides' pseudocode is from the target's, by what it does (total variation)."""
    target, draft = TOY.target, TOY.draft

    def after_rejection(offset: int) -> Callable:
        """Guide C's cycle: after a rejection, sample from the target's logits at `offset`. First token only."""

        def program(random):
            drafted, q = exact.propose_chain(draft, PROMPT, 2, random)
            sequence = PROMPT + drafted
            after = [target(sequence[: i + 1]) for i in range(len(sequence))]  # the distribution after token i
            p = torch.stack(after[len(PROMPT) - 1 :])
            verdict = verify.chain(p, q, drafted, [random() for _ in p])
            return drafted[0] if verdict.accepted else verify.pick(after[offset], random())

        return program

    def one_token(found: dict) -> float:
        return exact.total_variation(first_token(found), exact.plain_distribution(target, PROMPT))

    def two_tokens(advances: bool) -> float:
        """Guide E's loop never appends what was emitted, so every cycle continues the prompt."""
        plain = exact.joint_distribution(lambda context: exact.plain_distribution(target, PROMPT + context), 2)
        found = exact.joint_distribution(
            lambda context: exact.chain_distribution(target, draft, 1, PROMPT + context if advances else PROMPT), 2
        )
        return exact.total_variation(found, plain)

    return {
        "our verifier, one token": one_token(exact.chain_distribution(target, draft, 2, PROMPT)),
        "our verifier, two tokens": two_tokens(advances=True),
        "replacement from p, the prompt's length forgotten": one_token(exact.exact_distribution(after_rejection(0))),
        "replacement from p, at the right position": one_token(
            exact.exact_distribution(after_rejection(len(PROMPT) - 1))
        ),
        "only q(d) kept, not the whole distribution": explore(
            TOY, "wrong: residual subtracts only q(d), at d"
        ).one_place,
        "prompt never advanced, one token": one_token(exact.chain_distribution(target, draft, 1, PROMPT)),
        "prompt never advanced, two tokens": two_tokens(advances=False),
    }


def pseudocode_table() -> str:
    return "\n".join(f"{says:50s} {_shown(off)}" for says, off in pseudocode_errors().items())


def _shown(off: float) -> str:
    return f"{off:.4f}" if off > 1e-9 else "exact"
