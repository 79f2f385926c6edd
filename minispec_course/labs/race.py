"""What a race between drafters runs, once per round: the panels of lesson 08 and `python -m benchmarks drafters`."""

from __future__ import annotations

from collections.abc import Sequence

from minispec.drafters import Drafter
from minispec.generate import generate
from minispec.load.handle import Model
from minispec.speculate import speculate

PLAIN = "plain"  # the runner without a drafter


def lap(laps: list, target: Model, drafter: Drafter | None, prompts: Sequence, k: int | str, n: int, **options) -> None:
    """All prompts once; without a drafter, plainly. The outputs are appended to `laps`."""
    if drafter is None:
        laps.append([generate(target, prompt, n, **options) for prompt in prompts])
    else:
        laps.append([speculate(target, prompt, drafter, k, n, **options) for prompt in prompts])
