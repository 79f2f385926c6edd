"""Why a measured speed-up lies off the line of the roofline: which of k, α, c and v moves it most."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ... import theory


def why_they_differ(dots: Mapping[str, Sequence], cost: Callable[[int], float], alpha: float, k: int, c: float) -> str:
    """Dots against the line, at the largest batch that was measured. `cost(batch)` is the line's v.

    The line has the sliders' α and c and the roofline's v. A dot has its own. Putting a dot's numbers into the line one
    at a time says what each of them alone would change.
    """
    said = ""
    for where, some in dots.items():
        if not some:
            continue
        dot = max(some, key=lambda one: one.batch)
        v = cost(dot.batch)
        line = theory.speedup(alpha, k, c, v)
        alone = {
            f"α = {dot.alpha:.2f} and not {alpha:.2f}": theory.speedup(dot.alpha, k, c, v),
            f"c = {dot.c:.2f} and not {c:.2f}": theory.speedup(alpha, k, dot.c, v),
            f"v = {dot.v:.2f} and not the roofline's {v:.2f}": theory.speedup(alpha, k, c, dot.v),
        }
        if dot.k != k:
            alone[f"k = {dot.k} and not {k}"] = theory.speedup(alpha, dot.k, c, v)
        most = max(alone, key=lambda name: abs(alone[name] - line))
        said += f" Measured {where}, batch {dot.batch}: {dot.measured:.2f} × where the line has {line:.2f} ×"
        if abs(alone[most] - line) > 0.02:
            said += f", mostly because it has {most}, which alone would give {alone[most]:.2f} ×"
        said += "."
    return said
