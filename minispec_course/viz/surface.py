"""The speed-up surface: S = E[N] / (k·c + v) over α and k, the best k for every α, and dots that were measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from plotly.colors import sample_colorscale

from minispec import theory
from minispec.load.registry import BENCHMARKS
from minispec.measure import where
from minispec_course import formulas
from minispec_tools.demo import Result

from .drawing import SOFT, Axes, Canvas
from .panel import Panel, choice, slider
from .style import PALETTE

LONGEST = 16
KS = range(1, LONGEST + 1)
ALPHAS = [i / 50 for i in range(50)]  # 0 … 0.98
SPEEDS = (0.1, 16)  # of the cut
# Blue where speculation loses, orange where it gains, grey at 1, where it is worth nothing: by log₄ of the speed-up.
COLOURS = sample_colorscale([[0, "#1f83c4"], [0.5, "#9aa3ad"], [1, "#d9641c"]], [i / 24 for i in range(25)])
MAP, CUT = (54, 66, 290, 270), (478, 66, 268, 270)


@dataclass(frozen=True)
class Dot:
    """A run: what was measured on the way, and the speed-up that came out."""

    name: str
    alpha: float
    k: int
    c: float
    v: float
    measured: float

    @property
    def predicted(self) -> float:
        return theory.speedup(self.alpha, self.k, self.c, self.v)

    @classmethod
    def of(cls, run: Result) -> Dot:
        """From `demo.demo`, which measures here and now."""
        name = f"{run.model} on {where(run.machine)}"
        return cls(name, run.out.trace.acceptance_rate, run.k, run.c, run.v, run.measured)

    @classmethod
    def recorded(cls) -> Dot:
        """From the result of `minispec bench speculate` that ships."""
        result = json.loads((BENCHMARKS / "speculate.json").read_text(encoding="utf-8"))
        where = result["machine"]["gpus"][0]["name"].removeprefix("NVIDIA ")
        numbers = (result[key] for key in ("acceptance", "k", "c", "v", "speedup"))
        return cls(f"{where}, recorded {result['date']} ({result['shape']} shape)", *numbers)


def verify_cost(v: float, grows: bool) -> Callable[[int], float]:
    """v(k): the same for every k, or a straight line from 1 through v at k = 4."""
    return lambda k: max(1.0, 1 + (v - 1) * k / 4) if grows else v


EXPECTED = np.array([[theory.expected_tokens(a, k) for k in KS] for a in ALPHAS])  # E[N], [α, k]


def shade(gain):
    """The number of a speed-up's colour, or of many: a quarter is the bluest, 1 is grey, 4 is the most orange."""
    return np.rint(24 * np.clip(0.5 + np.log2(gain) / 4, 0, 1)).astype(int)


def surface_svg(alpha=0.7, c=0.1, v: float | Callable[[int], float] = 1.0, dot: Dot | None = None, words="") -> str:
    """Left: the speed-up over k and α at this c and v, where it is 1, and the best k. Right: the cut at `alpha`.

    v is one number, or a function of k. Where things stand does not depend on the controls,
    so that the web page can move them by itself: the elements with a `data-part`.
    """
    cost = v if callable(v) else lambda k: v
    paid = [cost(k) for k in KS]
    grid = EXPECTED / (c * np.arange(1, LONGEST + 1) + paid)  # theory.speedup, [α, k]
    edge = [(k, a) for k, a in ((k, theory.break_even(k, c, cost(k))) for k in KS) if a <= 1]
    best = [(int(row.argmax()) + 1, a) for row, a in zip(grid, ALPHAS, strict=True) if row.max() > 1]  # theory.best_k
    cut, k = [theory.speedup(alpha, k, c, cost(k)) for k in KS], theory.best_k(alpha, c, cost, LONGEST)
    canvas, around = Canvas(476, cut=404), (0.5, LONGEST + 0.5)
    with canvas.group('data-part="title"'):
        canvas.text(10, 24, f"Speed-up at c = {c:.2f} and v = {cost(4):.2f} for k = 4", 15)
    names = dict(x="k, draft tokens per cycle", x_ticks=(1, 4, 8, 12, 16))
    chart = Axes(canvas, MAP, around, (0, 1), title="colour: speed-up", y="acceptance α", **names)
    wide, tall = MAP[2] / LONGEST, MAP[3] / 50
    numbers = shade(grid)  # [α, k]
    for number, colour in enumerate(COLOURS):
        some = np.argwhere(numbers == number).tolist()
        boxes = [(MAP[0] + j * wide, MAP[1] + MAP[3] - (i + 1) * tall, wide, tall) for i, j in some]
        canvas.cells(boxes, colour, extra=f'data-part="cells {number}"')
        canvas.rect(354, MAP[1] + MAP[3] * (1 - (number + 1) / 25), 12, MAP[3] / 25 + 0.5, colour, None, round=0)
    for share, gain in ((0, "¼"), (0.25, "½"), (0.5, "1"), (0.75, "2"), (1, "4")):
        canvas.text(372, MAP[1] + MAP[3] * (1 - share) + 4, gain, 12, colour=SOFT)
    for part, points, look in (
        ("edge", edge, ("#ffffff", 2, "2 3")),
        ("best", best, ("#000000", 2)),
        ("cut", [(1, alpha), (LONGEST, alpha)], ("#000000", 1, "7 5")),
    ):
        with canvas.group(f'data-part="{part}"'):
            chart.line(*(zip(*points, strict=True) if points else ([], [])), *look)
    right = dict(title="slice at α: ★ best k; no gain, no ★", y="speed-up", y_ticks=(0.125, 0.25, 0.5, 1, 2, 4, 8, 16))
    chart2 = Axes(canvas, CUT, around, SPEEDS, "y", **right, **names).level(1)
    with canvas.group('data-part="curve"'):
        chart2.line(KS, cut, PALETTE[0])
    with canvas.group('data-part="star"'):
        chart2.dot(k or 1, cut[k - 1] if k else SPEEDS[0], PALETTE[5], symbol="star", r=9 if k else 0.1)
    canvas.key(54, 402, [("dash", SOFT, "no gain, no loss (white)"), ("line", "#000000", "best k")])
    canvas.key(478, 402, [("dash", "#000000", "the slice, as on the map")])
    if dot:
        chart2.dot(dot.k, dot.predicted, PALETTE[1], f"predicted {dot.predicted:.2f}", "open circle", 6)
        chart2.dot(dot.k, dot.measured, PALETTE[1], f"measured {dot.measured:.2f}", r=6)
        canvas.text(54, 428, dot.name, 12.5)
        canvas.key(478, 428, [("circle", PALETTE[1], "measured"), ("open circle", PALETTE[1], "predicted")])
    return canvas.svg(words)


def surface(dots: Sequence[Dot | Result | dict] = ()) -> Panel:
    """Sliders for α, c and v. Choosing a dot puts them where it was measured; the first one is chosen."""
    dots = [Dot(**dot) if isinstance(dot, dict) else dot if isinstance(dot, Dot) else Dot.of(dot) for dot in dots]
    costs = {"grows with k": "grows", "the same for every k": "same"}
    controls = {
        "alpha": slider("α", 0.7, 0.0, 0.98, 0.02),
        "c": slider("c", 0.1, 0.0, 1.0, 0.01),
        "v": slider("v", 1.0, 1.0, 5.0, 0.05),
        "cost": choice("verify cost", costs),
        "dot": choice("set-up", {"by hand": ""} | {dot.name: dot for dot in dots}),
    }

    def draw(alpha: float, c: float, v: float, cost: str, dot: Dot | str) -> tuple[str, str]:
        paid = verify_cost(v, cost == "grows")
        k, gain = theory.best_k(alpha, c, paid, LONGEST), theory.best_speedup(alpha, c, paid, LONGEST)
        words = f"At α = {alpha:.2f} and c = {c:.2f} "
        words += f"the best k is {k}: {gain:.2f} times as fast as plain decoding. " if k else ""
        words += "" if k else "no draft length gains anything: k = 0. "
        ceiling = min(formulas.token_ceiling(alpha), 1 / c if c else np.inf)
        words += f"No k could do better than {ceiling:.2f}, the lower of the two ceilings 1/(1 − α) and 1/c."
        if dot:
            words += f" Marked: {dot.name}, k = {dot.k}: predicted {dot.predicted:.2f}, measured {dot.measured:.2f}."
        return surface_svg(alpha, c, paid, dot or None, words), words

    panel = Panel(draw, controls, measured=[asdict(dot) for dot in dots])

    def move(dot: Dot | str) -> None:
        for name in ("alpha", "c", "v") if dot else ():
            controls[name].value = getattr(dot, name)

    panel.lead("dot", move)
    controls["dot"].index = min(len(dots), 1)
    return panel
