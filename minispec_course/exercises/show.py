"""Compare what an answer did with what was expected, and put both into words."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

DOUBLE, SINGLE = (2e-7, 1e-6), (1e-5, 1e-5)  # how far off what float64 or float32 gave may be: relative, absolute
MOST_ELEMENTS = 48  # of a tensor, in a message
MOST_LINES = 8  # of a distribution or record, in a message


def plain(value: Any) -> Any:
    """Arrays as tensors, and a tensor with one number as that number: which of them it is, is a matter of taste."""
    value = as_tensor(value) if isinstance(value, (np.ndarray, np.generic)) else value
    return value.item() if isinstance(value, Tensor) and value.dim() == 0 else value


def as_tensor(value: Any) -> Any:
    """Arrays, and lists of numbers or of tensors, as the tensor that they spell out. Anything else stays what it is."""
    try:
        return value if isinstance(value, Tensor) else torch.as_tensor(np.array(value))
    except (TypeError, ValueError, RuntimeError, OverflowError):  # texts, rows of different lengths, huge numbers
        return value


def same(wanted: Any, came: Any, least: float = 0.0) -> bool:
    """Equal, up to the rounding of what came, or up to `least` if that is more. A list may stand for a tuple or a
    tensor and 1 for 1.0; two NaN are equal."""
    wanted, came = plain(wanted), plain(came)
    if isinstance(wanted, Tensor) or isinstance(came, Tensor):
        a, b = as_tensor(wanted), as_tensor(came)
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            return False
        if a.shape != b.shape:
            return a.numel() == 0 and b.shape == (0,)  # an empty list knows of one dimension
        if (a.dtype == torch.bool) != (b.dtype == torch.bool):
            return False  # a mask of ones and zeros is no mask: it selects by number
        if not a.is_floating_point() and not b.is_floating_point():
            return bool((a == b).all())
        a, b = a.detach().double(), b.detach().double()
        relative, absolute = SINGLE if bool(((b.float() == b) | b.isnan()).all()) else DOUBLE
        return torch.allclose(b, a, rtol=max(least, relative), atol=max(least, absolute), equal_nan=True)
    if isinstance(wanted, (list, tuple)) and isinstance(came, (list, tuple)):
        return len(wanted) == len(came) and all(same(a, b, least) for a, b in zip(wanted, came, strict=True))
    if isinstance(wanted, dict) and isinstance(came, dict):
        if is_distribution(wanted) and is_distribution(came):  # an outcome that is missing has probability 0
            came = aligned(wanted, came, least)
            return all(same(wanted.get(key, 0.0), came.get(key, 0.0), least) for key in wanted.keys() | came.keys())
        return wanted.keys() == came.keys() and all(same(wanted[key], came[key], least) for key in wanted)
    if is_number(wanted) and is_number(came):
        if (isinstance(wanted, int) and isinstance(came, int)) or wanted == came:
            return wanted == came
        relative, absolute = SINGLE if abs(came) < 2.0**127 and float(np.float32(came)) == came else DOUBLE
        close = math.isclose(wanted, came, rel_tol=max(least, relative), abs_tol=max(least, absolute))
        return close or (math.isnan(wanted) and math.isnan(came))
    return type(wanted) is type(came) and bool(wanted == came)


def aligned(wanted: dict, came: dict, least: float = 0.0) -> dict:
    """A distribution whose outcomes bear the names of those that are wanted: a number in them may be rounded."""
    found: dict = {}
    for key, p in came.items():
        if key not in wanted and holds_fraction(key):
            key = next((other for other in wanted if same(other, key, least)), key)
        found[key] = found[key] + p if key in found else p
    return found


def holds_fraction(outcome: Any) -> bool:
    return any(map(holds_fraction, outcome)) if isinstance(outcome, tuple) else isinstance(outcome, float)


def is_distribution(value: dict) -> bool:
    return not any(isinstance(key, str) for key in value)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def kind(value: Any) -> str:
    """What sort of thing a value is, shape included."""
    value = plain(value)
    if isinstance(value, Tensor):
        holds = " of True and False" if value.dtype == torch.bool else ""
        return f"a tensor of shape {tuple(value.shape)}{holds}"
    if value is None:
        return "nothing (None)"
    if is_number(value):
        return "a number"
    if isinstance(value, (list, tuple)):
        return f"{len(value)} values"
    return {str: "a text", bool: "True or False"}.get(type(value), f"an object of type {type(value).__name__}")


def show(value: Any, digits: int = 4) -> str:
    """A value in a few characters, the same on every run."""
    value = plain(value)
    if isinstance(value, Tensor):
        few = math.prod(max(n, 1) for n in value.shape) <= MOST_ELEMENTS  # (2**40, 0) has no elements, but 2**40 lists
        return show(value.tolist(), digits) if few else kind(value)
    if isinstance(value, float):
        return f"{value + 0.0:.{digits}g}" if value else "0"  # no −0
    if isinstance(value, (list, tuple)):
        opening, closing = "[]" if isinstance(value, list) else "()"
        return opening + ", ".join(show(x, digits) for x in value) + closing
    if isinstance(value, dict):
        return "{" + ", ".join(f"{show(key)}: {show(item, digits)}" for key, item in value.items()) + "}"
    return str(value) if value is None or isinstance(value, (bool, int, str)) else kind(value)


def paste(value: Any) -> str:
    """A value as code that makes it, to be tried in a cell."""
    if isinstance(value, Tensor):
        dtype = "" if value.dtype in (torch.float32, torch.int64, torch.bool) else f", dtype={value.dtype}"
        if not value.numel():
            return f"torch.zeros({', '.join(map(str, value.shape))}{dtype})"
        return f"torch.tensor({shortest(value)}{dtype})"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(paste, value)) + "," * (isinstance(value, tuple) and len(value) == 1)
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    return repr(value)


def shortest(value: Tensor) -> str:
    """The numbers of a tensor, with as few digits as give these numbers again: 0.1, not 0.10000000149."""
    if value.dtype == torch.float32:
        text = [f"{x:.9g}" for x in value.flatten().tolist()]
        short = [f"{x:.6g}" for x in value.flatten().tolist()]
        same_again = [torch.tensor(float(s)) == torch.tensor(float(t)) for s, t in zip(short, text, strict=True)]
        flat = [float(s if again else t) for s, t, again in zip(short, text, same_again, strict=True)]
        return nested(flat, list(value.shape))
    return str(value.tolist()).replace("inf", "float('inf')").replace("nan", "float('nan')")


def nested(flat: list, shape: list[int]) -> str:
    if not shape:
        return str(flat[0])
    step = len(flat) // shape[0]
    return "[" + ", ".join(nested(flat[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])) + "]"


def beside(expected: Any, got: Any) -> tuple[str, str]:
    """Both values, with as many digits as it takes to see that they differ."""
    for digits in (4, 6, 9, 12, 17):
        pair = show(expected, digits), show(got, digits)
        if pair[0] != pair[1]:
            return pair
    return (kind(expected), kind(got)) if kind(expected) != kind(got) else pair


def largest_difference(expected: Any, got: Any) -> list[str]:
    """Where two tensors of one shape differ most."""
    expected, got = plain(expected), plain(got)
    if not (isinstance(expected, Tensor) and isinstance(got, Tensor) and expected.shape == got.shape):
        return []
    if expected.numel() < 4:
        return []
    gap = (expected.detach().double() - got.detach().double()).abs()
    gap = torch.where(gap.isnan(), torch.inf, gap)
    index = [int(i) for i in np.unravel_index(int(gap.argmax()), tuple(gap.shape))]
    e, g = beside(expected[tuple(index)], got[tuple(index)])
    count = int((gap > DOUBLE[1]).sum())
    return [f"{count} of {gap.numel()} numbers differ, most of all at {index}: expected {e}, got {g}"]


def differences(expected: Any, got: Any) -> list[str]:
    """Lines that set what was expected beside what came: all of it, or of a distribution or record what differs."""
    if not (isinstance(expected, dict) and isinstance(got, dict)):
        e, g = beside(expected, got)
        where = largest_difference(expected, got)
        return where if e == g and where else [f"expected: {e}", f"got:      {g}", *where]
    got = aligned(expected, got) if is_distribution(expected) else got
    keys = [*expected, *(key for key in got if key not in expected)]
    if is_distribution(expected):
        keys = [key for key in sorted(keys, key=repr) if not same(expected.get(key, 0.0), got.get(key, 0.0))]
        table = [(show(key), *beside(expected.get(key, 0.0), got.get(key, 0.0))) for key in keys]
        width = max(len("outcome"), *(len(row[0]) for row in table[:MOST_LINES]))
        lines = [f"{'outcome':{width}}  expected  got", *(f"{k:{width}}  {e:8}  {g}" for k, e, g in table)]
    else:
        lines = []
        for key in (key for key in keys if not same(expected.get(key), got.get(key))):
            both = key in expected and key in got
            e, g = beside(expected[key], got[key]) if both else (show_or_nothing(side, key) for side in (expected, got))
            where = largest_difference(expected.get(key), got.get(key))
            if e == g and where:  # two large tensors: only where they differ says anything
                lines.append(f"{key}: {where[0]}")
                continue
            lines += [f"{key}, expected: {e}", f"{' ' * len(key)}  got:      {g}"]
            lines += [f"{' ' * len(key)}  {line}" for line in where]
    more = len(lines) - MOST_LINES - 1
    return lines[: MOST_LINES + 1] + [f"… and {more} more lines"] * (more > 0)


def show_or_nothing(side: dict, key: Any) -> str:
    return show(side[key]) if key in side else "nothing"
