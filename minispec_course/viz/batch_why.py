"""What a measured speed-up may be compared with: the line at the dot's own α and c, if it is of the same machine."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence

from minispec import theory


def compared(dots: Mapping[str, Sequence], cost: Callable[[int, int], float], same: Container[str] = ()) -> str:
    """In words, the largest batch of each run. `cost(k, batch)` is the line's v, `same` names the runs whose machine
    and model are those of the line.

    There a dot is held against the roofline with the dot's own k, α and c, so that only v differs. Elsewhere the line
    says nothing about it, and it is held against the formula with its own v.
    """
    said = ""
    for where, some in dots.items():
        if not some:
            continue
        dot = max(some, key=lambda one: one.batch)
        said += f" Measured {where}, batch {dot.batch}: {dot.measured:.2f} ×"
        if where in same:
            v = cost(dot.k, dot.batch)
            gain = theory.speedup(dot.alpha, dot.k, dot.c, v)
            said += f", with v = {dot.v:.2f}; its own α = {dot.alpha:.2f} and c = {dot.c:.2f} with the roofline's "
            said += f"v = {v:.2f} would give {gain:.2f} ×."
        else:
            said += f", and {dot.predicted:.2f} × by the formula with its own α = {dot.alpha:.2f}, c = {dot.c:.2f} and "
            said += f"v = {dot.v:.2f}. The line is that of another machine and model."
    return said
