"""How large a model should be for its compute: the bowls of equal compute, their minima, and where some models lie.

For a fixed compute C a larger model sees fewer tokens, so the loss over the size N is a bowl. Its minimum slides to
larger models as C grows. The rule of r tokens per parameter is one point on each bowl: N = √(C / 6r), D = r·N.
"""

import math
from dataclasses import dataclass

from minispec import theory

from ..labs.presets import figures
from .drawing import RULE, SOFT, Axes, Canvas
from .panel import Panel, slider
from .style import PALETTE

SIZES = (10**7.5, 10**12.5)  # parameters shown
LOSSES = (0.04, 4.0)  # the loss above E, in nats per token
BUDGETS = tuple(10.0**power for power in range(19, 27))  # of the faint bowls
# L(N, D) = E + A / N^a + B / D^b as Besiroglu et al. (2024, arXiv:2404.10102) fitted it to Chinchilla's runs.
E, A, B, POWER_N, POWER_D = 1.8172, 482.01, 2085.43, 0.3478, 0.3658


@dataclass(frozen=True)
class Trained:
    """A model that exists: parameters, and tokens it was trained on, as its makers say."""

    name: str
    parameters: float
    tokens: float


KNOWN = (
    Trained("GPT-3", 175e9, 300e9),
    Trained("Gopher", 280e9, 300e9),
    Trained("Chinchilla", 70e9, 1.4e12),
    Trained("Llama-3-8B", 8.0e9, 15e12),
)


def short(x: float) -> str:
    """51.2 B, 1.02 T: as such numbers are quoted."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if x >= 0.9995 * size:
            return f"{figures(x / size)} {unit}"
    return figures(x)


def excess(parameters: float, tokens: float) -> float:
    """Loss above the floor E, in nats per token, of a model of this size after that many tokens: by the fit."""
    return A / parameters**POWER_N + B / tokens**POWER_D


def lowest(flops: float) -> tuple[float, float]:
    """The minimum of a bowl, (N, D): where the derivative of excess(N, C / 6N) is 0."""
    n = (POWER_N * A / (POWER_D * B)) ** (1 / (POWER_N + POWER_D)) * (flops / 6) ** (POWER_D / (POWER_N + POWER_D))
    return n, flops / 6 / n


def bowl(flops: float, count: int = 61) -> tuple[list[float], list[float]]:
    """Sizes and losses of all models of this compute that the axes have room for."""
    sizes = [SIZES[0] * (SIZES[1] / SIZES[0]) ** (i / (count - 1)) for i in range(count)]
    points = [(n, excess(n, flops / 6 / n)) for n in sizes if excess(n, flops / 6 / n) <= LOSSES[1]]
    return [n for n, _ in points], [height for _, height in points]


def compute_optimal_svg(flops: float, tokens_per_parameter: float = 20, words="") -> str:
    """Loss against size: the bowl of this compute among those of other budgets, its minimum, the rule's choice."""
    n, d = theory.compute_optimal(flops, tokens_per_parameter)
    canvas = Canvas(510)
    canvas.text(10, 24, f"{_power(flops)} FLOP: {short(n)} parameters on {short(d)} tokens", 15)
    names = dict(x="parameters N", y=f"loss above {E:.2f}, nats per token", y_ticks=[0.05, 0.1, 0.2, 0.5, 1, 2])
    chart = Axes(canvas, (66, 96, 680, 360), SIZES, LOSSES, "xy", x_ticks=(), **names)
    for power in range(8, 13):
        canvas.text(chart.at(10**power, 1)[0], 471, short(10**power), 12, "middle", colour=SOFT)
    for budget in BUDGETS:
        chart.line(*bowl(budget), RULE, 1)
        x, y = chart.at(lowest(budget)[0], excess(*lowest(budget)))
        canvas.text(x, y + 18, _power(budget).removeprefix("1.00·"), 12, "middle", colour=SOFT)
    valley = [(lowest(budget)[0], excess(*lowest(budget))) for budget in BUDGETS]
    chart.line(*zip(*valley, strict=True), SOFT, 2, "6 4").line(*bowl(flops), PALETTE[0], 4)
    spots = ((0, -9, "middle"), (0, 18, "middle"), (9, 5, "start"), (0, 18, "middle"))  # where no name meets another
    for model, (right, down, side) in zip(KNOWN, spots, strict=True):
        told = f"{model.name}: {short(model.parameters)} parameters, {short(model.tokens)} tokens"
        chart.dot(model.parameters, excess(model.parameters, model.tokens), PALETTE[1], told)
        x, y = chart.at(model.parameters, excess(model.parameters, model.tokens))
        canvas.text(x + right, y + down, model.name, 12, side)
    best = lowest(flops)
    chart.dot(best[0], excess(*best), PALETTE[0], f"{short(best[0])} parameters", "open circle", 7)
    chart.dot(n, excess(n, d), PALETTE[5], f"{short(n)} parameters, {short(d)} tokens", "star", 9)
    rule = ("star", PALETTE[5], f"{tokens_per_parameter:g} tokens per parameter")
    key = [("line", PALETTE[0], "all models of this compute"), ("open circle", PALETTE[0], "their minimum"), rule]
    canvas.key(14, 50, [*key, ("dash", SOFT, "the minima"), ("circle", PALETTE[1], "trained so")])
    return canvas.svg(words)


def _power(x: float) -> str:
    """3.16·10²³, as one says it."""
    power = math.floor(math.log10(x) + 1e-9)
    return f"{x / 10**power:.2f}·10" + "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(power))


def in_words(flops: float, tokens_per_parameter: float) -> str:
    n, d = theory.compute_optimal(flops, tokens_per_parameter)
    ratio, best = f"{tokens_per_parameter:g} tokens per parameter", lowest(flops)
    said = f"{_power(flops)} FLOP at {ratio}: {short(n)} parameters on {short(d)} tokens. The bowl's minimum is at "
    return said + f"{short(best[0])}; the rule's choice loses {excess(n, d) - excess(*best):.3f} nats to it."


def compute_optimal() -> Panel:
    """A slider for the compute, and one for the tokens per parameter."""

    def draw(power: float, ratio: int) -> tuple[str, str]:
        words = in_words(10**power, ratio)
        return compute_optimal_svg(10**power, ratio, words), words

    controls = {
        "power": slider("FLOP, 10 to the", 23.5, 19.0, 26.0, 0.05),
        "ratio": slider("tokens per parameter", 20, 1, 200),
    }
    return Panel(draw, controls)
