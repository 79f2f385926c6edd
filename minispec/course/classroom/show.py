"""Compare what an answer did with what was expected, and put both into words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

TOLERANCE = 1e-6
MOST_LINES = 8  # of a law or record, in a message


def plain(value: Any) -> Any:
    """Arrays as tensors, and a tensor with one number as that number: which of them it is, is a matter of taste."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = torch.as_tensor(value)
    return value.item() if isinstance(value, Tensor) and value.dim() == 0 else value


def same(a: Any, b: Any) -> bool:
    """Equal, up to rounding. A list and a tuple may be equal, and so may 1 and 1.0; two NaN are."""
    a, b = plain(a), plain(b)
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        close = dict(rtol=0.0, atol=TOLERANCE, equal_nan=True)
        return a.shape == b.shape and torch.allclose(a.detach().double(), b.detach().double(), **close)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        if is_distribution(a) and is_distribution(b):  # an outcome that is missing has probability 0
            return all(same(a.get(key, 0.0), b.get(key, 0.0)) for key in a.keys() | b.keys())
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if is_number(a) and is_number(b):
        return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=0.0, abs_tol=TOLERANCE)
    return type(a) is type(b) and not isinstance(a, Tensor) and bool(a == b)


def is_distribution(value: dict) -> bool:
    return not any(isinstance(key, str) for key in value)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def kind(value: Any) -> str:
    """What sort of thing a value is, shape included."""
    value = plain(value)
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if value is None:
        return "nothing (None)"
    if is_number(value):
        return "a number"
    if isinstance(value, (list, tuple)):
        return f"{len(value)} values"
    return {str: "a text", bool: "True or False"}.get(type(value), f"an object of type {type(value).__name__}")


def show(value: Any) -> str:
    """A value in a few characters, the same on every run."""
    value = plain(value)
    if isinstance(value, Tensor):
        return show(value.tolist()) if math.prod(max(n, 1) for n in value.shape) <= 48 else kind(value)
    if isinstance(value, float):
        return f"{value + 0.0:.4g}" if value else "0"  # no −0
    if isinstance(value, (list, tuple)):
        opening, closing = "[]" if isinstance(value, list) else "()"
        return opening + ", ".join(map(show, value)) + closing
    if isinstance(value, dict):
        return "{" + ", ".join(f"{show(key)}: {show(item)}" for key, item in value.items()) + "}"
    return str(value) if value is None or isinstance(value, (bool, int, str)) else kind(value)


def differences(expected: Any, got: Any) -> list[str]:
    """Lines that set what was expected beside what came: all of it, or of a distribution or record what differs."""
    if not (isinstance(expected, dict) and isinstance(got, dict)):
        return [f"expected: {show(expected)}", f"got:      {show(got)}"]
    keys = [*expected, *(key for key in got if key not in expected)]
    if is_distribution(expected):
        keys = [key for key in sorted(keys, key=repr) if not same(expected.get(key, 0.0), got.get(key, 0.0))]
        table = [(show(key), show(expected.get(key, 0.0)), show(got.get(key, 0.0))) for key in keys]
        width = max(len("outcome"), *(len(row[0]) for row in table[:MOST_LINES]))
        lines = [f"{'outcome':{width}}  expected  got", *(f"{k:{width}}  {e:8}  {g}" for k, e, g in table)]
    else:
        keys = [key for key in keys if not same(expected.get(key), got.get(key))]
        shown = [(key, *(show(side[key]) if key in side else "nothing" for side in (expected, got))) for key in keys]
        lines = [line for key, e, g in shown for line in (f"{key}, expected: {e}", f"{' ' * len(key)}  got:      {g}")]
    more = len(lines) - MOST_LINES - 1
    return lines[: MOST_LINES + 1] + [f"… and {more} lines more"] * (more > 0)
