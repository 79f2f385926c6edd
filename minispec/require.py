"""What a caller may give: everything else is refused before any work, by its name, its value and what would do."""

import math
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from numbers import Integral, Real


def require(fits: bool, wanted: str, **given) -> None:
    if not fits:
        raise ValueError(f"{', '.join(f'{name}={value!r}' for name, value in given.items())}: give {wanted}")


def whole(value, least: float = -math.inf, most: float = math.inf) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and least <= value <= most


def real(value, least: float = -math.inf, most: float = math.inf) -> bool:
    """A finite number from `least` to `most`."""
    return isinstance(value, Real) and math.isfinite(value) and least <= value <= most


def require_each(fits: Callable[[float], bool], wanted: str) -> Callable[..., None]:
    def check(**given) -> None:
        for name, value in given.items():
            require(fits(value), wanted, **{name: value})

    return check


require_counts = require_each(lambda n: whole(n, 1), "a whole number ≥ 1")
require_whole = require_each(lambda n: whole(n, 0), "a whole number ≥ 0")
require_positive = require_each(lambda x: real(x) and x > 0, "a finite number > 0")
require_not_negative = require_each(lambda x: real(x, 0), "a finite number ≥ 0")
require_probabilities = require_each(lambda x: real(x, 0, 1), "a number from 0 to 1")


TOLD: set[str] = set()  # what this process was warned of


def warn_once(said: str) -> None:
    if said not in TOLD:
        TOLD.add(said)
        warnings.warn(said, stacklevel=3)


def require_packages(what: str, extra: str, *packages: str) -> None:
    """Before an import fails half-way through: which extra of pyproject.toml brings what is missing here."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise ValueError(
            f"{what} needs packages that are not installed here ({', '.join(missing)}): "
            f'run pip install -c constraints.txt -e ".[{extra}]"'
        )
