"""Numbers as people write them, and as we write them back."""

from __future__ import annotations

import math
import re

GROUPS = re.compile(r"\d{1,3}([ .,]\d{3})+")


def read_number(text: str, unit: str = "") -> float:
    """The number in a field: "1.5", "1,5", "1,234,567", "40 %". A ValueError says what to write instead.

    A comma is a decimal one where it can be nothing else. In "1,500" it can: then we ask.
    """
    written = re.sub(r"[\s\u00a0\u202f]+", " ", text).strip().replace("−", "-")
    if unit and written.endswith(unit):
        written = written.removesuffix(unit)
    written = written.strip(" %×").removeprefix("+")
    if not written:
        raise ValueError("Type a number first, or press skip.")
    sign, digits = ("-", written[1:].lstrip()) if written.startswith("-") else ("", written)
    marks = {mark for mark in ".," if mark in digits}
    if len(marks) == 2:  # the one that comes last is the decimal mark
        decimal = max(marks, key=digits.rindex)
        whole, _, rest = digits.rpartition(decimal)
        digits = f"{whole}.{rest}" if not GROUPS.fullmatch(whole) else f"{re.sub('[ .,]', '', whole)}.{rest}"
    elif re.fullmatch(r"[1-9]\d{0,2},\d{3}", digits):
        plain = digits.replace(",", "")
        point = f"{float(digits.replace(',', '.')):g}"
        raise ValueError(f"Is {digits} more than a thousand? Then write {plain}. If the comma is a point: {point}.")
    elif GROUPS.fullmatch(digits) and (digits.count(",") > 1 or digits.count(".") > 1 or " " in digits):
        digits = re.sub("[ .,]", "", digits)
    else:
        digits = digits.replace(",", ".")
    try:
        value = float(f"{sign}{digits}") if re.fullmatch(r"[\d.]+([eE][-+]?\d+)?", digits) else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"“{text.strip()[:30]}” is not a number: write one such as 2.5 or 1500.")
    return value


def number(x: float) -> str:
    """Three figures, never in powers of ten: 0.05, 2.77, 1,840."""
    if x == 0 or not math.isfinite(x):
        return f"{x:g}"
    return f"{round(x, 2 - math.floor(math.log10(abs(x)))):,.10f}".rstrip("0").rstrip(".")
