"""Compare what an answer did with what was expected, and put both into words."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

TOLERANCE = 1e-6
RELATIVE = 1e-9  # of large numbers, whose last digits depend on the order of the operations
MOST_ELEMENTS = 48  # of a tensor, in a message
MOST_LINES = 8  # of a distribution or record, in a message


def plain(value: Any) -> Any:
    """Arrays as tensors, and a tensor with one number as that number: which of them it is, is a matter of taste."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = torch.as_tensor(value)
    return value.item() if isinstance(value, Tensor) and value.dim() == 0 else value


def same(a: Any, b: Any) -> bool:
    """Equal, up to rounding. A list and a tuple may be equal, and so may 1 and 1.0; two NaN are."""
    a, b = plain(a), plain(b)
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if (a.dtype == torch.bool) != (b.dtype == torch.bool):
            return False  # a mask of ones and zeros is no mask: it selects by number
        close = dict(rtol=RELATIVE, atol=TOLERANCE, equal_nan=True)
        return a.shape == b.shape and torch.allclose(a.detach().double(), b.detach().double(), **close)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        if is_distribution(a) and is_distribution(b):  # an outcome that is missing has probability 0
            return all(same(a.get(key, 0.0), b.get(key, 0.0)) for key in a.keys() | b.keys())
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if is_number(a) and is_number(b):
        return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=RELATIVE, abs_tol=TOLERANCE)
    return type(a) is type(b) and not isinstance(a, Tensor) and bool(a == b)


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
    count = int((gap > TOLERANCE).sum())
    return [f"{count} of {gap.numel()} numbers differ, most of all at {index}: expected {e}, got {g}"]


def differences(expected: Any, got: Any) -> list[str]:
    """Lines that set what was expected beside what came: all of it, or of a distribution or record what differs."""
    if not (isinstance(expected, dict) and isinstance(got, dict)):
        e, g = beside(expected, got)
        where = largest_difference(expected, got)
        return where if e == g and where else [f"expected: {e}", f"got:      {g}", *where]
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
    return lines[: MOST_LINES + 1] + [f"… and {more} lines more"] * (more > 0)


def show_or_nothing(side: dict, key: Any) -> str:
    return show(side[key]) if key in side else "nothing"
