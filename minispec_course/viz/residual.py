"""The residual explorer: p and q, a verifier, and the exact distribution of what it emits, right or wrong.

Everything shown is composed by `verify` and `exact`: the emitted token at one position, the pair at two, the tokens per
cycle. The dots are cycles that were really sampled with the same verifier.
"""

import math
from functools import lru_cache
from pathlib import Path

import anywidget
import ipywidgets
import traitlets

from minispec import exact, verify

from ..labs.verifiers import NOTHING, PRESETS, VERIFIERS, Explored, Sampled, Verifier, explore, toy_place
from . import panel
from .drawing import INK, SOFT, Axes, Canvas, shorten
from .pictures import overlap
from .style import KINDS, PALETTE

FOLDER = Path(__file__).parent
ESM = (FOLDER / "distribution_editor.js").read_text(encoding="utf-8")
CSS = (FOLDER / "distribution_editor.css").read_text(encoding="utf-8")
TOO_MUCH, TOO_LITTLE = PALETTE[3], PALETTE[4]
FULL = 0.05  # a difference in probability that a cell shows at full strength


class DistributionEditor(anywidget.AnyWidget):
    """Two distributions as bars that can be dragged. A distribution always sums to one: when a bar moves, the others of
    its distribution give way in proportion. `value` is {"p": […], "q": […]}; `labels` names the tokens."""

    _esm, _css = ESM, CSS
    labels = traitlets.List(traitlets.Unicode()).tag(sync=True)
    value = traitlets.Dict().tag(sync=True)

    @traitlets.validate("value")
    def _as_distributions(self, proposal: dict) -> dict:
        both = proposal["value"]
        for name in ("p", "q"):
            one = both.get(name) or []
            known = len(one) == len(both["p"]) and all(math.isfinite(x) and x >= 0 for x in one) and any(one)
            if not known:
                raise ValueError(f"{name}={one!r}: give as many numbers ≥ 0 as there are tokens, not all of them 0")
        return {name: [x / sum(both[name]) for x in both[name]] for name in ("p", "q")}


def drag_overlap() -> panel.Panel:
    """p and q to be dragged, before there is a rule: what fits, what is missing, what is too many."""
    start = {"p": [0.5, 0.2, 0.3], "q": [0.25, 0.55, 0.2]}
    editor = DistributionEditor(labels=list("012"), value=start, layout=panel.WIDE)
    return panel.Panel(lambda probs: ((drawn := overlap(**probs)).svg, drawn.words), {"probs": editor})


# ---- what a verifier emits -------------------------------------------------------------------------------------------


def words(found: Explored, sampled: Sampled | None = None) -> str:
    def verdict(distance: float) -> str:
        away = f"{distance:.3f} away from the target's distribution"
        return "exactly the target's distribution" if distance < 1e-9 else away

    sentence = (
        f"Verifier “{found.verifier.name}”: a draft token is accepted with probability {found.accepted:.3f}; "
        f"1 − TV(p, q) = {1 - exact.total_variation(found.p, found.q):.3f}. "
        f"One position: {verdict(found.one_place)}. Two positions: {verdict(found.two_places)}. "
        f"Tokens per cycle: {found.tokens:.3f}, {found.right_tokens:.3f} with the real verifier."
    )
    if sampled:
        sentence += (
            f" After {sampled.cycles:,} cycles: {sampled.tokens / sampled.cycles:.3f} tokens each; "
            f"χ² against p gives a p-value of {sampled.p_value(found.p):.2g}."
        )
    return sentence


# ---- the picture -----------------------------------------------------------------------------------------------------


def residual_svg(found: Explored, sampled: Sampled | None = None) -> str:
    """Checks, why the verifier is right or wrong, and three charts: residual, emitted token, first two tokens."""
    canvas = Canvas(410)
    off = found.tokens - found.right_tokens
    count = True if abs(off) < 1e-9 else None if off > 0 or found.verifier.bends == NOTHING else False
    right = "the real verifier's" if count else f"the real verifier: {found.right_tokens:.3f}"
    beta = f"1 − TV(p, q) = {1 - exact.total_variation(found.p, found.q):.3f}"
    boxes = [("acceptance", f"{found.accepted:.3f}", beta, None)]
    for name, distance in (("one token", found.one_place), ("two tokens", found.two_places)):
        good = distance < 1e-9
        said = ("exact", "TV = 0") if good else (f"off by {distance:.3f}", "in total variation")
        boxes.append((f"emitted, {name}", *said, good))
    boxes.append((f"tokens per cycle, k={found.k}", f"{found.tokens:.3f}", right, count))
    if sampled:
        agrees, seen = sampled.p_value(found.p) >= 0.001, f"{sampled.tokens / sampled.cycles:.3f} tokens per cycle"
        boxes.append((f"{sampled.cycles:,} cycles sampled", f"χ² {'agrees' if agrees else 'objects'}", seen, agrees))
    for i, (title, number, note, good) in enumerate(boxes):
        x, colour = 14 + 148 * i, {None: SOFT, True: KINDS["accepted"], False: KINDS["corrected"]}[good]
        canvas.rect(x, 10, 4, 62, colour, None, round=0).rect(x + 4, 10, 136, 62, colour, None, 0.1, 0)
        canvas.text(x + 10, 26, title, 11.5).text(x + 10, 66, shorten(note, 128, 11), 11)
        canvas.text(x + 10, 48, {None: "", True: "✓ ", False: "✗ "}[good] + number, 16, bold=True)
    canvas.paragraph(14, 92, found.verifier.why, 730, 12.5, INK)
    _residual(canvas, found)
    _emitted(canvas, found, sampled)
    _joint(canvas, found)
    return canvas.svg(words(found, sampled))


def _bars(canvas: Canvas, left: float, found: Explored, highest: float, title: str, note: str) -> Axes:
    """A chart with a column for each token, at x = 0, 1, …"""
    labels, top = found.place.labels, next((one for one in (0.25, 0.5, 0.75) if highest <= 0.95 * one), 1.0)
    canvas.text(left - 30, 150, title, 13, bold=True).text(left - 30, 168, note, 11.5, colour=SOFT)
    ticks = dict(x_ticks=(), y_ticks=(0, top / 2, top))
    chart = Axes(canvas, (left, 190, 190, 170), (-0.5, len(labels) - 0.5), (0, top), **ticks)
    for i, label in enumerate(labels):
        canvas.text(chart.at(i, 0)[0], 376, label, 12, "middle")
    return chart


def _residual(canvas: Canvas, found: Explored) -> None:
    """The distribution of the correction: what is left of p above q, normalised to sum to one."""
    rest, reject = verify.residual(found.p, found.q), exact.total_variation(found.p, found.q)
    note = f"needed after a rejection: {reject:.3f}" if reject > 1e-12 else "p = q: never needed"
    chart = _bars(canvas, 44, found, float(rest.max()), "residual = norm([p − q]₊)", note)
    for y, name, probs in ((392, "p", found.p), (406, "q", found.q)):  # for a picture without its bars to drag
        canvas.text(36, y, name, 11.5, "end", colour=SOFT)
        for i, one in enumerate(probs.tolist()):
            canvas.text(chart.at(i, 0)[0], y, f"{one:.2f}", 11.5, "middle", colour=SOFT)
    for i, y in enumerate(rest.tolist()):
        chart.bar(i - 0.3, i + 0.3, y, KINDS["corrected"], f"{y:.3f}")
        at, up = chart.at(i, y)
        canvas.text(at, up - 5, f"{y:.2f}", 12, "middle")


def _emitted(canvas: Canvas, found: Explored, sampled: Sampled | None) -> None:
    """The emitted token, by how it came about, against p; and how often it was sampled."""
    highest = max(float(found.emitted.max()), float(found.p.max()))
    chart = _bars(canvas, 294, found, highest, "emitted token against p (lines)", "○ sampled" if sampled else "")
    kinds = {kind: part for kind, part in found.parts.items() if float(part.sum()) > 0}
    canvas.key(264 if not sampled else 330, 168, [(KINDS[kind], kind) for kind in kinds], 11.5)
    for i, p in enumerate(found.p.tolist()):
        floor = 0.0
        for kind, part in kinds.items():
            chart.bar(i - 0.3, i + 0.3, floor + float(part[i]), KINDS[kind], f"{kind} {float(part[i]):.3f}", low=floor)
            floor += float(part[i])
        chart.line((i - 0.42, i + 0.42), (p, p), INK, 2.5, title=f"p = {p:.3f}")
        if sampled:
            f = float(sampled.counts[i]) / sampled.cycles
            spread = 2 * (f * (1 - f) / sampled.cycles) ** 0.5
            chart.line((i, i), (max(f - spread, 0), f + spread), INK, 1.5)
            chart.dot(i, f, "white", f"sampled: {f:.3f}").dot(i, f, "#333333", f"sampled: {f:.3f}", "open circle")
        if abs(floor - p) > 5e-4:
            at, up = chart.at(i, max(floor, p))
            canvas.text(at, up - 8, f"{floor - p:+.2f}".replace("-", "−"), 12, "middle", True)


def _joint(canvas: Canvas, found: Explored) -> None:
    """Which pairs of tokens come too often, and which too seldom."""
    labels, both = found.place.labels, (found.joint, found.wanted)
    columns = sorted({second for some in both for (_, second), probability in some.items() if probability > 0})
    canvas.text(514, 150, "two tokens, emitted − wanted, %", 13, bold=True)
    canvas.key(514, 168, [(TOO_MUCH, "too often"), (TOO_LITTLE, "too seldom")], 11.5)
    canvas.text(514, 186, "first ↓ second →", 11.5)
    left, wide, tall = 566, 180 / len(columns), 170 / len(labels)
    for j, second in enumerate(columns):
        canvas.text(left + (j + 0.5) * wide, 376, labels[second], 12, "middle")
    for i, first in enumerate(labels):
        y = 190 + i * tall
        canvas.text(left - 6, y + tall / 2 + 4, first, 12, "end")
        for j, second in enumerate(columns):
            got, wanted = (some.get((i, second), 0.0) for some in both)
            off = got - wanted
            shade = 0.0 if abs(off) < 1e-9 else 0.12 + 0.78 * min(1.0, abs(off) / FULL)
            told = f"{first} {labels[second]}: emitted {got:.4f}, wanted {wanted:.4f}"
            fill = TOO_MUCH if off > 0 else TOO_LITTLE
            canvas.rect(left + j * wide, y, wide - 2, tall - 2, fill if shade else None, shade=shade, title=told)
            text = "" if abs(off) < 5e-4 else f"{100 * off:+.1f}".replace("-", "−")
            canvas.text(left + (j + 0.5) * wide - 1, y + tall / 2 + 4, text, 11.5 if wide > 36 else 10, "middle")


# ---- the widget ------------------------------------------------------------------------------------------------------


@lru_cache(200)
def _explored(p: tuple[float, ...], q: tuple[float, ...], verifier: Verifier, k: int) -> Explored:
    """As `explore`, once for each choice: following all branches takes longer than a menu may."""
    return explore(toy_place(p, q), verifier, k)


class ResidualExplorer(panel.Panel):
    """The picture with its controls. `explorer.found` holds the numbers, `explorer.sampled` what was sampled so far."""

    def __init__(self) -> None:
        self.found: Explored | None = None
        self.sampled: Sampled | None = None
        self._asked = self._shown = None
        where, who = panel.choice("p and q", list(PRESETS)), panel.choice("verifier", VERIFIERS)
        how_many = panel.choice("draft tokens k", (1, 2), 2)
        for control, width in ((where, "300px"), (who, "300px"), (how_many, "170px")):
            control.layout = ipywidgets.Layout(width=width)
        draws = panel.slider("cycles sampled", 0, 0, 5000, 100)
        play = ipywidgets.Play(min=0, max=5000, step=100, interval=500, description="sample cycles")
        ipywidgets.link((play, "value"), (draws, "value"))
        presets = {name: {"p": p, "q": q} for name, (p, q) in PRESETS.items()}
        editor = DistributionEditor(labels=list("abcde"), value=presets[where.value], layout=panel.WIDE)
        where.observe(lambda change: setattr(editor, "value", presets[change.new]), names="value")
        for control in (where, who, how_many, editor):
            control.observe(lambda _: setattr(draws, "value", 0), names="value")
        controls = {"place": where, "verifier": who, "k": how_many, "probs": editor, "play": play, "draws": draws}
        super().__init__(self._draw, controls)
        for p, q in PRESETS.values():
            _explored(tuple(p), tuple(q), who.value, how_many.value)

    def _draw(self, place: str, verifier: Verifier, k: int, probs: dict, draws: int) -> tuple[str, str]:
        asked = *(tuple(round(x, 12) for x in probs[name]) for name in "pq"), verifier, k
        if (asked, draws) == self._shown:  # one choice moved several controls
            return self.picture, self.words
        self._shown = asked, draws
        if asked != self._asked:
            self._asked, self.found, self.sampled = asked, _explored(*asked), None
        if self.sampled is None or draws < self.sampled.cycles:
            self.sampled = Sampled(self.found.place, verifier, k)
        shown = self.sampled.upto(draws) if draws else None
        return residual_svg(self.found, shown), words(self.found, shown)


def residual_explorer() -> ResidualExplorer:
    """Edit p and q, choose a verifier, and see what it emits."""
    return ResidualExplorer()
