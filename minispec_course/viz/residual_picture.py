"""How the residual explorer looks: three checks, and three small pictures below them, as one piece of HTML."""

from __future__ import annotations

from collections import Counter
from html import escape

from minispec import exact, verify

from .style import KINDS, PALETTE, swatch
from .wrong_verifiers import NOTHING

TOO_MUCH, TOO_LITTLE = PALETTE[3], PALETTE[4]
FULL = 0.05  # a difference in probability that a cell shows at full strength
MOST_COLUMNS = 6
HEIGHT, LEFT, TOP = 150, 46, 20
CARD = "flex:1 1 235px; min-width:225px; max-width:420px"
SMALL = 'font-size="13"'


def picture(found, drawn=None) -> str:
    """The whole picture of an `Explored`, with the dots of a `Drawn`."""
    cards = (residual_card(found), emitted_card(found, drawn), joint_card(found))
    return (
        '<div class="minispec-residual" style="color:var(--jp-ui-font-color1); font-size:13px; line-height:1.45">'
        f"{checks(found, drawn)}"
        f'<div style="display:flex; flex-wrap:wrap; gap:8px 20px; margin-top:8px">{"".join(cards)}</div></div>'
    )


# ---- the checks ----------------------------------------------------------------------------------------------------


def checks(found, drawn) -> str:
    beta, tokens = 1 - exact.total_variation(found.p, found.q), found.tokens - found.right_tokens
    boxes = [
        _box("acceptance", f"{found.accepted:.3f}", f"1 − TV(p, q) = {beta:.3f}", None),
        _box("distribution of one token", *_distance(found.one_place), found.one_place < 1e-9),
        _box("distribution of two tokens", *_distance(found.two_places), found.two_places < 1e-9),
        _box(
            "tokens per cycle",
            f"{found.tokens:.3f}",
            "the real verifier's" if abs(tokens) < 1e-9 else f"the real verifier: {found.right_tokens:.3f}",
            True if abs(tokens) < 1e-9 else None if tokens > 0 or found.verifier.bends == NOTHING else False,
        ),
    ]
    if drawn:
        p_value = drawn.p_value(found.p)
        said = "χ² agrees" if p_value >= 0.001 else "χ² objects"
        seen = f"{drawn.tokens / drawn.cycles:.3f} tokens per cycle"
        boxes.append(_box(f"{drawn.cycles:,} cycles sampled", said, seen, p_value >= 0.001))
    why = f'<p style="margin:8px 0 0">{escape(found.verifier.why)}</p>'
    return f'<div style="display:flex; flex-wrap:wrap; gap:8px">{"".join(boxes)}</div>{why}'


def _distance(distance: float) -> tuple[str, str]:
    return ("exact", "TV = 0") if distance < 1e-9 else (f"off by {distance:.3f}", "in total variation")


def _box(title: str, number: str, note: str, good: bool | None) -> str:
    colour = {None: "var(--jp-border-color1)", True: KINDS["accepted"], False: KINDS["corrected"]}[good]
    mark = {None: "", True: "✓ ", False: "✗ "}[good]
    return (
        f'<div style="flex:1 1 130px; padding:5px 10px; border-left:5px solid {colour}; '
        f'background:color-mix(in srgb, {colour} 10%, transparent)">'
        f'<div style="font-size:12px">{escape(title)}</div>'
        f'<div style="font-size:17px; font-weight:600">{mark}{escape(number)}</div>'
        f'<div style="font-size:12px">{escape(note)}</div></div>'
    )


# ---- bars ----------------------------------------------------------------------------------------------------------


def residual_card(found) -> str:
    """The distribution of the correction: what is left of p above q, normalised to sum to one."""
    law, reject = verify.residual(found.p, found.q), exact.total_variation(found.p, found.q)
    shown, scale = list(found.place.shown), _scale(float(law.max()))
    bars = [_bar(i, 0, float(law[x]), scale, KINDS["corrected"], len(shown)) for i, x in enumerate(shown)]
    tops = [_number(i, float(law[x]), scale, f"{float(law[x]):.2f}", len(shown)) for i, x in enumerate(shown)]
    note = f"needed after a rejection: {reject:.3f}" if reject > 1e-12 else "p = q: never needed"
    values = ", ".join(f"{found.place.labels[x].strip()} {float(law[x]):.3f}" for x in shown)
    return _card("residual = norm([p − q]₊)", note, _axes(found, scale) + "".join(bars + tops), f"residual: {values}")


def emitted_card(found, drawn) -> str:
    """The emitted token, by how it came about, against p; and how often it was sampled."""
    shown = [*found.place.shown]
    n, scale = len(shown), _scale(max(float(found.emitted.max()), float(found.p.max())))
    marks = []
    for i, x in enumerate(shown):
        floor = 0.0
        for kind, part in found.parts.items():
            if part[x] > 0:
                marks.append(_bar(i, floor, floor + float(part[x]), scale, KINDS[kind], n))
                floor += float(part[x])
        left, width = _column(i, n)
        y = _y(float(found.p[x]), scale)
        marks.append(
            f'<line x1="{left - 4:.1f}" x2="{left + width + 4:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" '
            f'stroke-width="2.5"><title>p = {float(found.p[x]):.3f}</title></line>'
        )
        off = floor - float(found.p[x])
        top = max(floor, float(found.p[x]))
        if drawn:
            f = float(drawn.counts[x]) / drawn.cycles
            spread, middle = 2 * (max(f * (1 - f), 0) / drawn.cycles) ** 0.5, left + width / 2
            top = max(top, f + spread)
            y1, y2 = _y(f + spread, scale), _y(max(f - spread, 0), scale)
            marks.append(
                f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="{y1:.1f}" y2="{y2:.1f}" '
                f'stroke="currentColor" stroke-width="1.5"/><circle cx="{middle:.1f}" cy="{_y(f, scale):.1f}" r="4.5" '
                f'fill="var(--jp-layout-color0, white)" stroke="currentColor" stroke-width="1.5">'
                f"<title>sampled: {f:.3f}</title></circle>"
            )
        if abs(off) > 5e-4:
            marks.append(_number(i, top, scale, f"{off:+.2f}".replace("-", "−"), n, bold=True))
    keys = [f"{swatch(KINDS[kind])}{kind}" for kind, part in found.parts.items() if float(part.sum()) > 0]
    note = " &nbsp; ".join([*keys, "<b>—</b> p", *(["○ sampled"] if drawn else [])])
    values = ", ".join(f"{found.place.labels[x].strip()} {float(found.emitted[x]):.3f}" for x in shown)
    wanted = ", ".join(f"{float(found.p[x]):.3f}" for x in shown)
    label = f"distribution of the emitted token: {values}; wanted: {wanted}"
    return _card("emitted token against p", note, _axes(found, scale) + "".join(marks), label, escaped=False)


def _scale(peak: float) -> float:
    return next((scale for scale in (0.25, 0.5, 0.75) if peak <= 0.95 * scale), 1.0)


def _column(i: int, n: int) -> tuple[float, float]:
    """Left edge and width of the i-th of n bars."""
    step = (320 - LEFT) / n
    return LEFT + i * step + step * 0.2, step * 0.6


def _y(value: float, scale: float) -> float:
    return TOP + HEIGHT * (1 - value / scale)


def _bar(i: int, low: float, high: float, scale: float, colour: str, n: int) -> str:
    left, width = _column(i, n)
    top, bottom = _y(high, scale), _y(low, scale)
    return f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{bottom - top:.1f}" fill="{colour}"/>'


def _number(i: int, value: float, scale: float, text: str, n: int, bold: bool = False) -> str:
    left, width = _column(i, n)
    weight = ' font-weight="700"' if bold else ""
    x, y = left + width / 2, _y(value, scale) - 5
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" {SMALL}{weight}>{text}</text>'


def _axes(found, scale: float) -> str:
    shown, marks = found.place.shown, []
    for part in (0, 0.5, 1):
        y = _y(part * scale, scale)
        marks.append(f'<line x1="{LEFT}" x2="320" y1="{y}" y2="{y}" stroke="var(--jp-border-color2)"/>')
        marks.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end" {SMALL}>{part * scale:g}</text>')
    for i, x in enumerate(shown):
        left, width = _column(i, len(shown))
        marks.append(_token(left + width / 2, TOP + HEIGHT + 16, found.place.labels[x], int(width / 0.6 / 8.2)))
    return "".join(marks)


def _token(x: float, y: float, label: str, most: int = 7, anchor: str = "middle") -> str:
    label = label.strip() or repr(label)
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {SMALL} style="font-family:var(--jp-code-font-family)">'
        f"{escape(label if len(label) <= most else label[: most - 1] + '…')}</text>"
    )


def _card(title: str, note: str, marks: str, label: str, escaped: bool = True) -> str:
    return (
        f'<div style="{CARD}"><div style="font-weight:600">{escape(title)}</div>'
        f'<div style="color:var(--jp-ui-font-color2); font-size:12px">{escape(note) if escaped else note}</div>'
        f'<svg viewBox="0 0 324 {TOP + HEIGHT + 26}" role="img" aria-label="{escape(label)}" style="width:100%; '
        f'display:block; fill:currentColor; font-family:var(--jp-ui-font-family)">{marks}</svg></div>'
    )


# ---- the joint distribution ----------------------------------------------------------------------------------------


def joint_card(found) -> str:
    """Which pairs of tokens come too often, and which too seldom."""
    rows = [*found.place.shown]
    mass = Counter()
    for law in (found.joint, found.wanted):
        for (_, second), probability in law.items():
            mass[second] += probability
    ranked = sorted((x for x in mass if mass[x] > 0), key=lambda x: (-mass[x], x))
    columns = sorted(ranked) if len(ranked) <= MOST_COLUMNS else ranked[: MOST_COLUMNS - 1]
    groups = [(found.place.labels[x], {x}) for x in columns]
    if len(ranked) > MOST_COLUMNS:
        groups.append(("other", set(ranked) - set(columns)))
    left, step, tall = 62, (320 - 62) / len(groups), HEIGHT / len(rows)
    most = max(2, int(step / 8.2))
    marks = [_token(left + (j + 0.5) * step, TOP + HEIGHT + 16, label, most) for j, (label, _) in enumerate(groups)]
    for i, x in enumerate(rows):
        y = TOP + i * tall
        marks.append(_token(left - 6, y + tall / 2 + 4, found.place.labels[x], anchor="end"))
        for j, (label, seconds) in enumerate(groups):
            got, wanted = (sum(law.get((x, s), 0.0) for s in seconds) for law in (found.joint, found.wanted))
            off = got - wanted
            strength = 0 if abs(off) < 1e-9 else 12 + 78 * min(1.0, abs(off) / FULL)
            colour = f"color-mix(in srgb, {TOO_MUCH if off > 0 else TOO_LITTLE} {strength:.0f}%, transparent)"
            pair = f"{found.place.labels[x].strip()} {label.strip()}"
            text = "" if abs(off) < 5e-4 else f"{100 * off:+.1f}".replace("-", "−")
            marks.append(
                f'<rect x="{left + j * step:.1f}" y="{y:.1f}" width="{step - 2:.1f}" height="{tall - 2:.1f}" '
                f'stroke="var(--jp-border-color2)" style="fill:{colour}"><title>{escape(pair)}: emitted {got:.4f}, '
                f"wanted {wanted:.4f}</title></rect>"
                f'<text x="{left + (j + 0.5) * step - 1:.1f}" y="{y + tall / 2 + 4:.1f}" text-anchor="middle" '
                f'font-size="{12.5 if step > 36 else 10.5}" pointer-events="none">{text}</text>'
            )
    marks.append(f'<text x="4" y="{TOP - 7}" {SMALL}>first ↓ second →</text>')
    note = f"{swatch(TOO_MUCH)}too often &nbsp; {swatch(TOO_LITTLE)}too seldom (in %)"
    label = (
        f"pairs of tokens: the joint distribution is {found.two_places:.3f} away from the target's in total variation"
    )
    return _card("first two tokens, emitted − wanted", note, "".join(marks), label, escaped=False)
