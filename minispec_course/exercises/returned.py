"""What an answer returned, as the check wants it: in whatever form it came, where its meaning is plain.

A tensor may come as an array or as lists, a list as a tuple, a tensor, an array or an iterator, a number as any of
these with one element. What is something else raises a Complaint that says what was wanted.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from .exercise import Complaint
from .show import as_tensor, is_number, kind, plain, show

MOST_ELEMENTS = 10**6  # of an iterator


def whole_number(value, what: str = "the token") -> int:
    """A whole number that an answer returned, in whatever form; a Complaint if it is none."""
    value = plain(value.reshape(()) if isinstance(value, (Tensor, np.ndarray)) and value.shape == (1,) else value)
    if not is_number(value) or value % 1 != 0:
        found = show(value) if is_number(value) else kind(value)
        raise Complaint(f"{what} should be a whole number; yours is {found}.")
    return int(value)


token = whole_number  # which a token is


def elements(value) -> list | None:
    """What a list, a tuple, an iterator or the first dimension of a tensor or array holds; None: it is none of them."""
    value = plain(value)
    if isinstance(value, (range, Iterator)):
        return list(islice(value, MOST_ELEMENTS))
    return value.tolist() if isinstance(value, Tensor) else list(value) if isinstance(value, (list, tuple)) else None


def items(value, what: str, noun: str = "") -> list:
    """The same for a list of anything."""
    if (found := elements(value)) is None:
        raise Complaint(f"{what} should be a list{noun}; yours is {kind(value)}.")
    return found


def whole_numbers(value, what: str, noun: str = " of whole numbers") -> list[int]:
    """The same for a list of whole numbers."""
    return [whole_number(x, f"every element of {what}") for x in items(value, what, noun)]


def tokens(value, what: str = "the result") -> tuple[int, ...]:
    """The same for a list of tokens."""
    return tuple(whole_numbers(value, what, " of tokens"))


def number(value, what: str = "the result"):
    """The same for a number."""
    value = plain(value)
    if not is_number(value):
        raise Complaint(f"{what} should be a number; yours is {kind(value)}.")
    return value


def flag(value, what: str) -> bool:
    """The same for True or False."""
    value = plain(value)
    if not isinstance(value, bool):
        raise Complaint(f"{what} should be True or False; yours is {kind(value)}.")
    return value


def several(value, count: int, what: str) -> tuple:
    """The same for so many things."""
    found = elements(value)
    if found is None or len(found) != count:
        raise Complaint(f"return {('two', 'three', 'four')[count - 2]} things, {what}; yours returns {kind(value)}.")
    return tuple(found)


def pair(value, what: str) -> tuple:
    return several(value, 2, what)


def tensor(value, what: str, shape: Sequence[int] | None = None) -> Tensor:
    """The same for a tensor, of this shape where one is given. Lists and arrays of numbers are taken for it."""
    found = as_tensor(elements(value) if isinstance(value, Iterator) else value)
    wanted = "" if shape is None else f" of shape {tuple(shape)}"
    if not isinstance(found, Tensor) or (shape is not None and tuple(found.shape) != tuple(shape)):
        raise Complaint(f"{what} should be a tensor{wanted}; yours is {kind(value)}.")
    return found


def mask_of(value, shape: tuple[int, ...]) -> Tensor:
    """The same for a mask: a tensor of True and False of this shape."""
    mask = tensor(value, "the mask", shape)
    if mask.dtype != torch.bool:
        raise Complaint(f"the mask should hold True and False (torch.bool); yours holds numbers, {mask.dtype}.")
    return mask
