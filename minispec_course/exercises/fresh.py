"""Fresh cases: made from a seed, so that no table of answers and no lucky choice of examples can pass.

Beside its examples an exercise has generators, one for each property that a right answer has:

    @fresh("06.residual", "p and q are equal")
    def _(draw):
        p = draw.probs()
        return dict(p=p, q=p.clone())

A generator makes one valid case; the exercise's own reference says what is right. Its argument is a seeded
`random.Random` with a few more methods and a `size`: the first cases of a property are small, later ones larger, and a
case that fails is looked for again at the smallest sizes before it is shown. The exercise's points are divided over its
properties by their `weight`. The seed of a check is public, that of the grader is the teacher's secret.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

PUBLIC = "check"  # the seed of every check in a notebook
LARGEST = 5


class Draw(Random):
    """Random parts of a case, with numbers that are short to read."""

    def __init__(self, seed: str, size: int):
        super().__init__(seed)
        self.size = size  # 1 is the smallest; generators need not look at it

    def whole(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return self.randint(low, max(low, high))

    def chance(self, p: float) -> bool:
        return self.random() < p

    def until(self, make: Callable[[], Any], fits: Callable[[Any], bool]) -> Any:
        """Try again and again until the case is of the kind that is wanted."""
        for _ in range(2000):
            if fits(found := make()):
                return found
        raise RuntimeError("no case of this kind was found in 2000 attempts")

    def parts(self, n: int, total: int, least: int = 0) -> list[int]:
        """n whole numbers ≥ least that add up to total."""
        cuts = sorted(self.randint(0, total - n * least) for _ in range(n - 1))
        return [b - a + least for a, b in zip([0, *cuts], [*cuts, total - n * least], strict=True)]

    def probs(self, n: int | None = None, *, positive: bool = False, distinct: bool = False) -> Tensor:
        """A distribution [n] in steps of 1/100: zeros are likely, unless all are to be positive."""
        n = n or self.whole(2, 2 + self.size)
        while True:
            found = self.parts(n, 100, least=int(positive))
            if not positive and n > 1 and self.chance(0.3):  # one more zero than chance would give
                a, b = self.sample(range(n), 2)
                found[a], found[b] = found[a] + found[b], 0
            if not distinct or len(set(found)) == n:
                return torch.tensor(found, dtype=torch.float64) / 100

    def rows(self, count: int, n: int, **how: bool) -> Tensor:
        """Several distributions [count, n]."""
        return torch.stack([self.probs(n, **how) for _ in range(count)]) if count else torch.zeros(0, n).double()

    def decimals(self, *shape: int, most: float = 2.0) -> Tensor:
        """Numbers with one decimal, between −most and most."""
        count, largest = torch.Size(shape).numel(), round(10 * most)
        found = [self.randint(-largest, largest) / 10 for _ in range(count)]
        return torch.tensor(found, dtype=torch.float64).view(shape)

    def quarters(self, *shape: int, most: float = 2.0) -> Tensor:
        """Numbers that float32 holds as they are, even with thousands added to them: nothing rounds."""
        return (4 * self.decimals(*shape, most=most)).round() / 4


@dataclass(frozen=True)
class Property:
    """Something that a right answer has, and the cases that show it."""

    name: str
    make: Callable[[Draw], dict[str, Any]]
    weight: float = 1.0  # its share of the points, relative to the other properties
    count: int = 10  # cases of a check


@dataclass(frozen=True)
class Trial:
    """One case; of which property, or none for an example."""

    case: dict[str, Any]
    property: str | None = None


PROPERTIES: dict[str, dict[str, Property]] = {}


def fresh(id: str, name: str, make: Callable[[Draw], dict] | None = None, *, where: Callable | None = None, **how):
    """Register a generator of cases for an exercise, or decorate one. The first property should be the plain rule.

    where: which of the cases that it makes are wanted, a function of the case."""
    if make is None:
        return lambda make: fresh(id, name, make, where=where, **how)
    chosen = make if where is None else lambda draw: draw.until(lambda: make(draw), where)
    PROPERTIES.setdefault(id, {})[name] = Property(name, chosen, **how)


def properties(id: str) -> dict[str, Property]:
    """The properties of an exercise by name, as its module registers them; none where no generators were written."""
    return PROPERTIES.get(id, {})


def draw_case(id: str, property: Property, secret: str, number: int, size: int) -> Trial:
    return Trial(property.make(Draw(f"{secret}/{id}/{property.name}/{number}", size)), property.name)


def trials(exercise, secret: str = PUBLIC) -> list[Trial]:
    """All cases of a judgement: the examples, then fresh ones of each property, which grow."""
    key = "trials", secret
    if key not in exercise.seen:
        drawn = [
            draw_case(exercise.id, property, secret, i, size=1 + i * LARGEST // property.count)
            for property in properties(exercise.id).values()
            for i in range(property.count)
        ]
        exercise.seen[key] = [*map(Trial, exercise.cases), *drawn]
    return exercise.seen[key]


def smaller_trials(exercise, name: str, secret: str) -> list[Trial]:
    """More cases of a property, small ones: among them a shorter counterexample may be found."""
    property = properties(exercise.id)[name]
    return [
        draw_case(exercise.id, property, f"{secret}/smaller", i, size=1 + i // property.count)
        for i in range(2 * property.count)
    ]
