"""Lesson 15's family tree: drafters that use the target's hidden states, what each is given, and how many runs of it
have to wait for one another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Member:
    name: str
    year: int
    line: str  # which branch it is on
    given: str  # what a run is given
    new: str  # what changed
    runs: Callable[[int], int]  # of the trained module for k draft tokens, one after another
    sees_the_draft: bool  # whether a position knows which token was drafted before it
    ours: bool = True  # in minispec; else told from its paper


LINES = ("heads side by side", "one layer, token by token", "the same, trained with the model", "a block in one run")
SIDE, CHAIN, TRAINED, BLOCK = LINES
_MANY = dict(runs=lambda k: k, sees_the_draft=True)  # one run after another
_ONE = dict(runs=lambda k: 1, sees_the_draft=False)  # all positions in one run
_HEAD = dict(runs=lambda k: 1, sees_the_draft=True)
_GROWS, _OWN = "a tree that grows where the draft is sure", "one decoder layer, run on its own output"
FAMILY = (
    Member("Medusa", 2024, SIDE, "last state", "a head for each position", **_ONE),
    Member("Hydra", 2024, SIDE, "last state, draft tokens before", "heads one after another", **_MANY, ours=False),
    Member("EAGLE-1", 2024, CHAIN, "last state, next token", _OWN, **_MANY),
    Member("EAGLE-2", 2024, CHAIN, "as EAGLE-1", _GROWS, **_MANY),
    Member("EAGLE-3", 2025, CHAIN, "three states, next token", "trained on its own drafts", **_MANY),
    Member("EAGLE-3.1", 2026, CHAIN, "as EAGLE-3, each normed", "hands on a normed feature", **_MANY),
    Member("MTP", 2024, TRAINED, "last state, next token", "a norm for each half", **_MANY),
    Member("DFlash", 2026, BLOCK, "several states, blanks", "blanks are filled together", **_ONE),
    Member(
        "DSpark",
        2026,
        BLOCK,
        "as DFlash, then the token before",
        "a small head goes along the block",
        **_HEAD,
        ours=False,
    ),
    Member("P-EAGLE", 2026, BLOCK, "EAGLE-3's states, blanks", "one learnt state for all blanks", **_ONE, ours=False),
)
