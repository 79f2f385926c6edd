"""Lesson 15's family tree: drafters that use the target's hidden states, what each is given, and how many runs of it
have to wait for one another.

Where minispec has the drafter, both are looked up in the code: which layers it asks the target for, and how often its
trained module runs while k tokens are drafted. Hydra, DSpark and P-EAGLE are not in here: told from their papers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from minispec.drafters import MTP, Context, DFlash, Drafter, Eagle, Medusa, MedusaHeads
from minispec.drafters.eagle import Eagle1Head
from minispec.load.handle import Model
from minispec.sampling import Sampling
from minispec.speculate import speculate
from minispec.trace import Trace
from recipes import dflash, mtp
from recipes.eagle import FORMS, new_head


@dataclass(frozen=True)
class Member:
    name: str
    year: int
    line: str  # which branch it is on
    given: str  # what a run is given
    new: str  # what changed
    runs: Callable[[int], int]  # of the trained module for k draft tokens, one after another
    sees_the_draft: bool  # whether a position knows which token was drafted before it
    make: Callable[[Model], Drafter] | None = None  # an untrained one, drafting a chain; None: not in minispec


def _medusa(target: Model) -> Drafter:
    return Medusa(target, MedusaHeads(target, 8), tree="chain")


def _eagle1(target: Model, tree: bool = False) -> Drafter:
    head = Eagle1Head(target, replace(target.config, num_layers=1)).requires_grad_(False)
    return Eagle(target, head, tree, width=2, nodes=8)


def _eagle3(target: Model, form: str = "eagle3") -> Drafter:
    everything = torch.arange(target.config.vocab_size)
    return Eagle(target, new_head(target, everything, form=FORMS[form]).requires_grad_(False), tree=False)


_eagle31 = partial(_eagle3, form="eagle3.1")


def _mtp(target: Model) -> Drafter:
    return MTP(target, mtp.new_head(target).requires_grad_(False))


def _dflash(target: Model) -> Drafter:
    everything, depth = torch.arange(target.config.vocab_size), target.config.num_layers
    shape = dict(layers=[0, depth - 1], mlp=64, hidden_layers=sorted({depth // 3, 2 * depth // 3, depth}), block=8)
    return DFlash(target, dflash.head_from(target.transformer, everything, **shape).to(target.dtype), tree=False)


LINES = ("heads side by side", "one layer, token by token", "the same, trained with the model", "a block in one run")
SIDE, CHAIN, TRAINED, BLOCK = LINES
_MANY = dict(runs=lambda k: k, sees_the_draft=True)  # one run after another
_ONE = dict(runs=lambda k: 1, sees_the_draft=False)  # all positions in one run
_HEAD = dict(runs=lambda k: 1, sees_the_draft=True)
_GROWS, _OWN = "a tree that grows where the draft is sure", "one decoder layer, run on its own output"
FAMILY = (
    Member("Medusa", 2024, SIDE, "last state", "a head for each position", **_ONE, make=_medusa),
    Member("Hydra", 2024, SIDE, "last state, draft tokens before", "heads one after another", **_MANY),
    Member("EAGLE-1", 2024, CHAIN, "last state, next token", _OWN, **_MANY, make=_eagle1),
    Member("EAGLE-2", 2024, CHAIN, "as EAGLE-1", _GROWS, **_MANY, make=partial(_eagle1, tree=True)),
    Member("EAGLE-3", 2025, CHAIN, "three states, next token", "trained on its own drafts", **_MANY, make=_eagle3),
    Member("EAGLE-3.1", 2026, CHAIN, "as EAGLE-3, each normed", "hands on a normed feature", **_MANY, make=_eagle31),
    Member("MTP", 2024, TRAINED, "last state, next token", "a norm for each half", **_MANY, make=_mtp),
    Member("DFlash", 2026, BLOCK, "several states, blanks", "blanks are filled together", **_ONE, make=_dflash),
    Member("DSpark", 2026, BLOCK, "as DFlash, then the token before", "a small head goes along the block", **_HEAD),
    Member("P-EAGLE", 2026, BLOCK, "EAGLE-3's states, blanks", "one learnt state for all blanks", **_ONE),
)


@torch.no_grad()
def count_runs(target: Model, drafter: Drafter, tokens: Sequence[int], k: int) -> int:
    """How often the drafter's trained module runs while it drafts k tokens after these."""
    streams = target.transformer(torch.tensor([list(tokens[:-1])]), hidden_layers=drafter.hidden_layers).hidden
    hidden = {layer: stream[0] for layer, stream in streams.items()}
    module, calls = getattr(drafter, "head", None) or drafter.heads, []
    hook = module.register_forward_hook(lambda *_: calls.append(1))
    try:
        (draft,) = drafter.propose([Context(0, list(tokens), Sampling(), torch.Generator(), hidden)], k)
    finally:
        hook.remove()
    assert len(draft.tokens) >= k, f"{type(drafter).__name__} drafted {len(draft.tokens)} tokens, not {k}"
    return len(calls)


def family_table(target: Model, tokens: Sequence[int], k: int = 4) -> str:
    """The family, a line each: layers of the target that are read, and runs for k tokens, counted where we can."""
    lines = [f"{'':10}{'year':6}{'layers read':14}{f'runs for {k} tokens':20}knows the draft token before it"]
    for one in FAMILY:
        layers, runs = "(paper)", f"{one.runs(k)} (paper)"
        if one.make:
            drafter = one.make(target)
            layers = ", ".join(map(str, drafter.hidden_layers))
            runs = f"{count_runs(target, drafter, tokens, k)} (counted)"
        lines.append(f"{one.name:10}{one.year:<6}{layers:14}{runs:20}{'yes' if one.sees_the_draft else 'no'}")
    return "\n".join(lines)


def tokens_per_pass(target: Model, drafter: Drafter, prompts: Sequence[str], k: int, count: int = 60) -> float:
    """Tokens per forward pass of the target, greedy, over some prompts: what a chain of k is worth."""
    outputs = [speculate(target, prompt, drafter, k, count) for prompt in prompts]
    return Trace.of(outputs).tokens_per_cycle
