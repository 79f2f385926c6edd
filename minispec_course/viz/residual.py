"""The residual explorer: p and q, a verifier, and the exact distribution of what it emits, right or wrong.

Everything shown is composed by `verify` and `exact`: the emitted token at one position, the pair at two, the tokens per
cycle. The dots are cycles that were really sampled with the same verifier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

import ipywidgets
import torch
from torch import Tensor

from minispec import exact, verify

from . import panel
from .distribution_editor import DistributionEditor
from .goodness import chi_square
from .places import PRESETS, Place, toy_place
from .residual_picture import picture
from .wrong_verifiers import RIGHT, VERIFIERS, Verifier, cycle


@dataclass(frozen=True)
class Explored:
    """The exact distributions that one verifier gives at one position."""

    place: Place
    verifier: Verifier
    gamma: int
    p: Tensor  # [V]
    q: Tensor  # [V]
    parts: dict[str, Tensor]  # of the distribution of the first token, by how it came about: accepted, corrected, bonus
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
def explore(place: Place, verifier: Verifier | str = RIGHT, gamma: int = 2) -> Explored:
    """Compose the distributions that a verifier gives at a position, with `gamma` draft tokens per cycle (our k)."""
    verifier = named(verifier)
    if gamma not in (1, 2):
        raise ValueError(f"gamma={gamma!r}: give 1 or 2 draft tokens per cycle; all their branches are followed")
    p, q = place.target(()), place.draft(())
    parts = {kind: torch.zeros_like(p) for kind in ("accepted", "corrected", "bonus")}
    runs = Counter()

    def begin(random) -> tuple[str, verify.Context]:
        return cycle(place.target, place.draft, (), gamma, random, verifier)

    for (kind, tokens), probability in exact.exact_distribution(begin).items():
        parts[kind][tokens[0]] += probability
        runs[tokens] += probability

    def later(context: verify.Context) -> dict:  # of a later cycle only the first token is asked for: one draft will do
        if not context:
            return runs
        return exact.exact_distribution(
            lambda random: cycle(place.target, place.draft, context, 1, random, verifier)[1]
        )

    return Explored(
        place,
        verifier,
        gamma,
        p,
        q,
        parts,
        exact.joint_distribution(later, 2),
        exact.joint_distribution(partial(exact.plain_distribution, place.target), 2),
        sum(len(tokens) * probability for tokens, probability in runs.items()),
        1 + _reach(place, (), gamma),
    )


def _reach(place: Place, context: verify.Context, drafts: int) -> float:
    """Σ_i Π_{j≤i} β_j: the draft tokens that a right verifier accepts, on average."""
    both = torch.minimum(place.target(context), place.draft(context))
    if drafts == 1:
        return float(both.sum())
    return sum(
        float(both[x]) * (1 + _reach(place, (*context, x), drafts - 1)) for x in both.nonzero().flatten().tolist()
    )


def named(verifier: Verifier | str) -> Verifier:
    if isinstance(verifier, Verifier):
        return verifier
    if verifier not in VERIFIERS:
        raise ValueError(f"verifier={verifier!r} is unknown; there are {', '.join(VERIFIERS)}")
    return VERIFIERS[verifier]


class Drawn:
    """Cycles sampled with a verifier, one after the other: the more are asked for, the more it has."""

    def __init__(self, place: Place, verifier: Verifier, gamma: int, seed: int = 0):
        self.begin = partial(cycle, place.target, place.draft, (), gamma, Random(seed).random, verifier)
        self.counts = torch.zeros(len(place.labels), dtype=torch.long)  # of the first token
        self.cycles = self.tokens = 0

    @torch.inference_mode()
    def upto(self, cycles: int) -> Drawn:
        for _ in range(cycles - self.cycles):
            _, tokens = self.begin()
            self.counts[tokens[0]] += 1
            self.tokens += len(tokens)
        self.cycles = max(cycles, self.cycles)
        return self

    def p_value(self, p: Tensor) -> float:
        """χ² of the first tokens against p."""
        return chi_square(self.counts.tolist(), p)


def residual_html(
    place: Place, verifier: Verifier | str = RIGHT, gamma: int = 2, draws: int = 0, seed: int = 0
) -> tuple[str, str]:
    """The picture as HTML, and the same in words. `place` is toy_place(p, q) or one of real_places(…)."""
    found = explore(place, verifier, gamma)
    drawn = Drawn(place, found.verifier, gamma, seed).upto(draws) if draws else None
    return picture(found, drawn), words(found, drawn)


def words(found: Explored, drawn: Drawn | None = None) -> str:
    def verdict(distance: float) -> str:
        return (
            "exactly the target's distribution"
            if distance < 1e-9
            else f"{distance:.3f} away from the target's distribution"
        )

    sentence = (
        f"{found.verifier.name.capitalize()}. "
        f"A draft is accepted with probability {found.accepted:.3f}; 1 − TV(p, q) = "
        f"{1 - exact.total_variation(found.p, found.q):.3f}. "
        f"One position: {verdict(found.one_place)}. Two positions: {verdict(found.two_places)}. "
        f"Tokens per cycle: {found.tokens:.3f}, {found.right_tokens:.3f} with the real verifier."
    )
    if drawn:
        sentence += (
            f" After {drawn.cycles:,} cycles: {drawn.tokens / drawn.cycles:.3f} tokens each; "
            f"χ² against p gives a p-value of {drawn.p_value(found.p):.2g}."
        )
    return sentence


class ResidualExplorer(panel.Panel):
    """The picture with its controls. `explorer.found` holds the numbers, `explorer.drawn` what was sampled so far."""

    def __init__(self, places: Sequence[Place] = ()) -> None:
        every = {place.name: place for place in (*(toy_place(*laws, name) for name, laws in PRESETS.items()), *places)}
        first = next(iter(every.values()))
        self.found: Explored | None = None
        self.drawn: Drawn | None = None
        self._asked: tuple | None = None
        self._shown: tuple | None = None
        self._known: dict[tuple, Explored] = {}
        where = panel.choice("p and q", every)
        who = panel.choice("verifier", VERIFIERS)
        how_many = panel.choice("draft tokens k", {"1": 1, "2": 2}, 2)
        for control, width in ((where, "300px"), (who, "300px"), (how_many, "170px")):
            control.layout = ipywidgets.Layout(width=width)
        draws = panel.slider("cycles sampled", 0, 0, 5000, 100)
        play = ipywidgets.Play(min=0, max=5000, step=100, interval=500, description="sample cycles")
        ipywidgets.link((play, "value"), (draws, "value"))
        editor = DistributionEditor(labels=self._names(first), value=first.laws, layout=panel.WIDE)

        def move(change) -> None:
            editor.labels, editor.value = self._names(change.new), change.new.laws

        def start_anew(_change) -> None:
            draws.value = 0

        where.observe(move, names="value")
        for control in (where, who, how_many, editor):
            control.observe(start_anew, names="value")
        super().__init__(
            self._draw,
            {"place": where, "verifier": who, "gamma": how_many, "laws": editor, "play": play, "draws": draws},
        )
        for place in every.values():
            self._explore(place, who.value, how_many.value, place.laws)

    @staticmethod
    def _names(place: Place) -> list[str]:
        return [place.labels[token].strip() or repr(place.labels[token]) for token in place.shown]

    def _explore(self, place: Place, verifier: Verifier, gamma: int, laws: dict) -> Explored:
        """As `explore`, once for each choice: following all branches takes longer than a menu may."""
        asked = place.name, verifier.name, gamma, *(round(x, 12) for name in "pq" for x in laws[name])
        if asked not in self._known:
            if len(self._known) >= 200:  # a bar that was dragged for long
                self._known.clear()
            self._known[asked] = explore(place.edited(laws["p"], laws["q"]), verifier, gamma)
        return self._known[asked]

    def _draw(self, place: Place, verifier: Verifier, gamma: int, laws: dict, draws: int) -> tuple[str, str]:
        if len(laws["p"]) != len(place.shown):  # the position has changed, its distributions are about to follow
            return self.picture, self.words
        asked = place.name, verifier.name, gamma, tuple(laws["p"]), tuple(laws["q"])
        if (asked, draws) == self._shown:  # one choice may move several controls
            return self.picture, self.words
        self._shown = asked, draws
        if asked != self._asked:
            self._asked, self.found, self.drawn = asked, self._explore(place, verifier, gamma, laws), None
        if self.drawn is None or draws < self.drawn.cycles:
            self.drawn = Drawn(self.found.place, verifier, gamma)
        self.drawn.upto(draws)
        shown = self.drawn if draws else None
        return picture(self.found, shown), words(self.found, shown)


def residual_explorer(places: Sequence[Place] = ()) -> ResidualExplorer:
    """Edit p and q, choose a verifier, and see what it emits. `places` (of `real_places`) join the presets."""
    return ResidualExplorer(places)
