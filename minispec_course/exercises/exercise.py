"""What an exercise is, apart from its text: the right answer, inputs that tell right from wrong, known wrong answers.

A set of exercises is one folder, named after its notebook: set_06_rejection_sampling makes 06_rejection_sampling.ipynb.
Its page.py is the source of the notebook, its texts.yaml has titles, levels and hints, and its cases.py says of each

    ACCEPT = exercise("06.accept", reference=accept, cases=[dict(p=probs(0.25, 0.75), q=probs(0.5, 0.5), token=0), …])

    @ACCEPT.wrong_solutions
    class _:
        def always(p, q, token):
            '''You accept every draft token. …'''
            return 1.0

    fresh("06.accept", "proposed too often", lambda draw: drafted(draw, lambda p, q: 0 < p < q))

A case names the arguments, in order; cases are listed smallest first, because the first one that fails is shown.
Fresh cases, which are not in any notebook, come from generators (fresh.py). The docstring of a wrong solution (here and
in the checks: a mutant) is what a learner reads whose function behaves like it: second person, what is wrong, why.

What is compared is what `observe(answer, **case)` returns. By default that is what the answer returns for the case.
Where the answer uses random numbers, observe composes the exact distribution of its results (`distribution_of`); where
it drives models, observe lets it drive scripted ones and returns what they saw. A dict with tuples as keys is a
distribution and is shown as a table; a dict with words as keys is a record, of which only the differing entries are
shown."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minispec.exact import Undecided, exact_distribution

from . import facts
from .facts import LEVELS, Facts

MOST_RUNS = 500  # of one program, down the branches of its random numbers; ours need 131 at most


class Complaint(Exception):
    """Words for the learner, from code that watches an answer at work: shown as they are."""


@dataclass(frozen=True)
class Mutant:
    name: str
    function: Callable
    diagnosis: str


@dataclass
class Exercise(Facts):
    reference: Callable
    cases: Sequence[dict[str, Any]]
    observe: Callable = lambda answer, **case: answer(*case.values())
    legend: dict[str, str] = field(default_factory=dict)  # what a name in a shown case means, if it is no argument
    picture: Callable | None = None  # answer → a figure or a text: what the learner's own function does
    seconds: float = 10.0  # for all of the learner's code in one check
    joins: bool = False  # its answer calls the learner's own answers to earlier exercises: the capstone
    trial: Callable | None = None  # () → (answer → None, or a Complaint): a last test, after all cases, with no mutants
    mutants: dict[str, Mutant] = field(default_factory=dict)
    seen: dict[str, list] = field(default_factory=dict, repr=False)  # what each mutant does with the cases, once known

    def wrong_solutions(self, group: type) -> type:
        """Register the functions of a class as known wrong answers."""
        for function in vars(group).values():
            if callable(function):
                self.mutant(function)
        return group

    def mutant(self, function: Callable) -> Callable:
        """Register a known wrong answer. Its name names it, its docstring is the diagnosis."""
        diagnosis = " ".join(function.__doc__.split())
        self.mutants[function.__name__] = Mutant(function.__name__, function, diagnosis)
        return function


REGISTRY: dict[str, Exercise] = {}


def exercise(id: str, **parts) -> Exercise:
    """Define an exercise. Its facts are written in texts.yaml; its wrong solutions follow."""
    made = REGISTRY[id] = Exercise(**vars(facts.find(id)), **parts)
    if made.level not in LEVELS:
        raise ValueError(f"level={made.level!r} of {id}: give one of {', '.join(LEVELS)}")
    if len(made.hints) != 3:
        raise ValueError(f"hints of {id}: there are {len(made.hints)}, give three")
    return made


def modules(number: str = "") -> list[str]:
    """The module of the set with this number, or those of all sets, in the order of the course."""
    return [f"{__package__}.{folder.name}.cases" for folder in facts.sets(number)]


def find(id: str) -> Exercise:
    """The exercise with this id."""
    if id not in REGISTRY:
        for module in modules(f"{facts.find(id).id.split('.')[0]}_"):
            import_module(module)
    return REGISTRY[id]


def everything() -> dict[str, Exercise]:
    """All exercises, in the order of the course."""
    for module in modules():
        import_module(module)
    return {id: REGISTRY[id] for id in sorted(REGISTRY, key=lambda id: id.split(".")[0])}


# ---- for the files of exercises -------------------------------------------------------------------------------------


def probs(*probabilities: float) -> Tensor:
    """A distribution [V]."""
    return torch.tensor(probabilities, dtype=torch.float64)


def rows(*distributions: Sequence[float]) -> Tensor:
    """Several distributions [n, V]."""
    return torch.tensor(distributions, dtype=torch.float64)


def decimals(*shape: int, seed: int) -> Tensor:
    """Numbers with one decimal, easy to read in a message."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-20, 21, shape, generator=generator).double() / 10


class Number:
    """A random number as a learner may use it: compare it from either side, but never look at it."""

    def __init__(self, number: Undecided):
        self.number = number

    def __lt__(self, x) -> bool:
        return self.refuse() if getattr(x, "ndim", 0) else self.number < x

    def __gt__(self, x) -> bool:
        return not self < x

    __le__, __ge__ = __lt__, __gt__  # a number that equals x has probability 0

    def refuse(self, *_):
        raise Complaint("random() gives a number that may only be compared, as in random() < 0.3, or given to pick.")

    __float__ = __int__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = refuse


def distribution_of(program: Callable) -> dict:
    """The exact distribution of what program(random) returns, which is run down every branch of its random numbers."""
    before = torch.random.get_rng_state(), random.getstate(), np.random.get_state()[1:3]
    runs = 0

    def once(world):
        nonlocal runs
        runs += 1
        if runs > MOST_RUNS:
            raise Complaint(
                f"your function was stopped after {MOST_RUNS} different outcomes of its random numbers, and there are "
                "more. Does it ask for random numbers that it does not need?"
            )
        return program(lambda: Number(world()))

    found = exact_distribution(once)
    after = np.random.get_state()[1:3]  # its numbers, and how many of them are used
    own = not torch.equal(before[0], torch.random.get_rng_state()) or before[1] != random.getstate()
    if own or before[2][1] != after[1] or not np.array_equal(before[2][0], after[0]):
        raise Complaint("your function uses its own random numbers. Use the random() that it is given, and pick.")
    if any(map(holds_nan, found)):  # which equals nothing, not even itself
        raise Complaint("what your function returns contains NaN. Does it divide by a sum that can be 0?")
    return found


def holds_nan(outcome: Any) -> bool:
    return any(map(holds_nan, outcome)) if isinstance(outcome, tuple) else outcome != outcome


def lend(answer: Callable, name: str, value: list) -> tuple[list, Callable[[], None]]:
    """A copy of an argument for one call, and a function that complains if the call has changed it."""
    given = list(value)

    def give_back() -> None:
        changed = getattr(answer, "changed", ())  # of an answer in another process: what it did to its copies
        if given != list(value) or any(given is argument for argument in changed):
            raise Complaint(f"your function changes its argument {name}, which belongs to the caller. Work on a copy.")

    return given, give_back
