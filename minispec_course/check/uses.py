"""What an answer in another process may do with the objects that stay with the grader: a few things, each its own."""

from __future__ import annotations

import torch

from ..exercises.exercise import Number
from ..exercises.fakes import Device, Later

MOST_ELEMENTS, MOST_PAIRS = 10**6, 10**8  # of the arguments to something that stays here
KERNELS = {"token": 1, "next": 2, "write": 2, "advance": 1, "look": 1}  # of a Device, with the number of arguments


def use(value, what, args):
    """Do to an object what may be done to it."""
    if type(args) is not list or not modest(args):
        raise TypeError("these arguments are too large")
    if what == "call" and callable(value) and not isinstance(value, type) and len(args) == 2:
        positional, named = args
        return value(*positional, **named)
    if isinstance(value, Number):
        if what == "less" and len(args) == 1:
            return value < args[0]
        if what == "refuse":
            value.refuse()
    elif isinstance(value, Device):
        if what == "count" and not args:
            return value.count
        if len(args) == KERNELS.get(what):
            return getattr(value, what)(*args)
    elif isinstance(value, Later):
        if what == "add" and len(args) == 1:
            return value + args[0]
        if what == "subtract" and len(args) == 1:
            return value - args[0]
        if what == "refuse":
            bool(value)
    elif hasattr(value, "rewind"):
        if what in ("read", "rewind") and len(args) == 1:
            return getattr(value, what)(args[0])
        if what == "length":
            return value.length
    elif what == "next" and len(args) == 1:
        return next(tiles_of(value, fresh=args[0] is True), None)
    raise TypeError("this cannot be done with it")


def modest(args: list) -> bool:
    """Whether arguments are so small that nothing large can come of them, not even when every one meets every other."""
    parts, elements, pairs = list(args), 0, 1
    while parts:
        part = parts.pop()
        if isinstance(part, torch.Tensor):
            elements, pairs = elements + part.numel(), pairs * max(1, part.numel())
        elif isinstance(part, (list, tuple, set)):
            elements += len(part)
            parts += [inner for inner in part if isinstance(inner, (list, tuple, set, dict, torch.Tensor))]
        elif isinstance(part, dict):
            parts += [list(part.values())]
        if elements > MOST_ELEMENTS or pairs > MOST_PAIRS:
            return False
    return True


def tiles_of(value, fresh: bool):
    """The one walk over the tiles that is under way, or a new one."""
    if fresh or not hasattr(value, "walk"):
        value.walk = iter(value)
    return value.walk
