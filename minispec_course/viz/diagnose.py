"""Why is it slower? The numbers of a run, a menu of faults, and what the numbers say about the one you picked.

A diagnosis is a claim about one number. To test it, put that number alone right and predict again: if speculation
then pays, the claim explains the loss. `suspects` does this for every fault, so the widget's verdicts are computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from minispec import theory

from ..labs.slower import FAULTS, SOUND, Case, cases, unnamed_order
from .panel import Panel, choice, slider
from .style import GREY, KINDS, PALETTE, TEXT, swatch

PARTS = {"draft": PALETTE[5], "verify": PALETTE[0], "sample": PALETTE[3]}
CURES = {
    "mismatched draft": "Check that the draft is the target's own: same tokenizer, same training, weights in order.",
    "k too large": "Draft fewer tokens, or let k follow the measured acceptance.",
    "launch overhead": "Take a draft of fewer and wider layers, or start it as one CUDA graph.",
    "full batch": "Draft less when the batch is full, and nothing at all once arithmetic is the limit.",
    "wrong kernel": "Use a product for few tokens that reads every weight once.",
}


class Suspect(NamedTuple):
    """One fault held against the numbers."""

    guilty: bool
    mended: float  # the predicted speed-up with this one number put right
    why: str


def suspects(case: Case, sound: Case) -> dict[str, Suspect]:
    """Every fault, tried on a case: put the number it is about right, and predict again."""
    alpha, k, c, v = case.alpha, case.k, case.c, case.v
    one_row = theory.speedup(alpha, k, c, sound.v)
    slope = (v - 1) / k  # v(k) as a straight line through what was measured
    best = max(theory.best_k(alpha, c, lambda n: 1 + slope * n), 1)
    shorter = theory.speedup(alpha, best, c, 1 + slope * best)
    mended = {
        "mismatched draft": theory.speedup(max(alpha, sound.alpha), k, c, v),
        "k too large": shorter,
        "launch overhead": theory.speedup(alpha, k, min(c, sound.c), v),
        "full batch": one_row,
        "wrong kernel": one_row,
    }
    expensive = v > 1.25 * sound.v and k <= sound.k  # a longer pass may cost more; one of the same length may not
    evidence = {
        "mismatched draft": (alpha < 0.7 * sound.alpha, f"α is {alpha:.2f}; the sound draft has {sound.alpha:.2f}"),
        "k too large": (
            k > 2 * best and shorter > 1.1,
            f"{k} draft tokens per pass yield {case.tokens_per_pass:.2f} tokens; at this α and c the best k is {best}",
        ),
        "launch overhead": (
            c > 1.5 * sound.c,
            f"drafting a token costs c = {c:.2f}; the sound draft costs {sound.c:.2f}, "
            f"and this one reads {case.bytes_ratio:.0%} of the target's bytes",
        ),
        "full batch": (
            expensive and case.rows > 1,
            f"v is {v:.2f} at batch {case.rows}; in the sound run, at batch 1, it is {sound.v:.2f}",
        ),
        "wrong kernel": (
            expensive and case.rows == 1,
            f"v is {v:.2f} for {k + 1} tokens at batch {case.rows}; "
            f"the sound kernel needs {sound.v:.2f} for {sound.k + 1} tokens of one sequence",
        ),
    }
    return {name: Suspect(guilty, mended[name], why) for name, (guilty, why) in evidence.items()}


def verdict(case: Case, sound: Case, picked: str | None) -> str:
    """What the numbers say about a diagnosis, in words."""
    if picked is None:
        return "Which number is out of line? Pick the fault that explains it."
    suspect = suspects(case, sound)[picked]
    now = f"{case.predicted:.2f}"
    if suspect.guilty:
        said = f"Yes, {picked}: {suspect.why}. With that number alone put right the prediction rises from {now} to "
        return f"{said}{suspect.mended:.2f}. {CURES[picked]}"
    if picked == "wrong kernel" and case.rows > 1:
        return f"No: {suspect.why}. A batch of {case.rows} leaves no arithmetic idle, whatever the kernel."
    if picked == "full batch" and case.rows == 1:
        return f"No: a single sequence does not make a full batch. (v is {v(case)}, the sound run's {v(sound)}.)"
    gain = suspect.mended - case.predicted
    effect = (
        f"Putting that right takes {now} to {suspect.mended:.2f}" if gain > 0.005 else "That number is as it should be"
    )
    return f"No: {suspect.why}. {effect}; another number is further out of line."


def v(case: Case) -> str:
    return f"{case.v:.2f} for {case.k + 1} tokens"


def diagnose_html(case: Case, sound: Case, picked: str | None = None, title: str = "this run") -> str:
    """The numbers of a run beside the sound one's, where a cycle's time goes, and the verdict on a diagnosis."""
    if picked not in (None, *FAULTS):
        raise ValueError(f"picked={picked!r}: give one of {', '.join(FAULTS)}, or None")
    cell = 'style="padding:2px 14px;text-align:right;border-bottom:1px solid var(--jp-border-color2)"'
    left = cell.replace("right", "left")
    rows = []
    for (name, value), reference in zip(case.numbers().items(), sound.numbers().values(), strict=True):
        shown = [f"{x:d}" if isinstance(x, int) else f"{x:.2f}" for x in (value, reference)]
        rows.append(f"<tr><td {left}>{escape(name)}</td><td {cell}><b>{shown[0]}</b></td><td {cell}>{shown[1]}</td>")
    head = f"<tr><th {left}></th><th {cell}>{escape(title)}</th><th {cell}>a sound run</th></tr>"
    table = f'<table style="border-collapse:collapse;color:var(--jp-ui-font-color1)">{head}{"".join(rows)}</table>'
    return (
        f'<div style="display:flex;flex-wrap:wrap;gap:24px;align-items:flex-start">{table}'
        f'<div style="flex:1;min-width:300px">{_bars(case, sound, title)}{_note(case, sound, picked)}</div></div>'
    )


def _bars(case: Case, sound: Case, title: str) -> str:
    """Time of a cycle by part, in plain passes, and the tokens that came out: it pays if these reach further."""
    runs = [(title, case), ("a sound run", sound)]
    spent = {name: {part: _mean(run, part) for part in PARTS} for name, run in runs}
    longest = max([*(sum(parts.values()) for parts in spent.values()), *(run.tokens_per_pass for _, run in runs)])
    lines = []
    for name, run in runs:
        pieces = "".join(
            f'<span title="{part}: {share:.2f} passes" style="background:{PARTS[part]};height:16px;'
            f'width:{100 * share / longest:.2f}%"></span>'
            for part, share in spent[name].items()
        )
        tokens = f"width:{100 * run.tokens_per_pass / longest:.2f}%;height:6px;background:{KINDS['accepted']}"
        cost = sum(spent[name].values())
        lines.append(
            f'<div style="margin:8px 0"><div style="font-size:12px">{escape(name)}: a cycle takes as long as '
            f"{cost:.2f} plain passes and yields {run.tokens_per_pass:.2f} tokens</div>"
            f'<div style="display:flex">{pieces}</div>'
            f'<div style="{tokens}"></div></div>'
        )
    legend = " ".join(
        f"{swatch(colour)}{part}" for part, colour in {**PARTS, "tokens that came out": KINDS["accepted"]}.items()
    )
    told = escape(
        "; ".join(f"{name}: " + ", ".join(f"{p} {x:.2f}" for p, x in spent[name].items()) for name, _ in runs)
    )
    label = f'role="img" aria-label="Time of a cycle in plain passes. {escape(told)}"'
    below = f'<div style="font-size:12px;color:var(--jp-ui-font-color2,{TEXT})">{legend}</div>'
    return f'<div {label} style="color:var(--jp-ui-font-color1)">{"".join(lines)}{below}</div>'


def _mean(case: Case, part: str) -> float:
    return case.trace.seconds(part) / len(case.trace.cycles) / case.one_pass


def _note(case: Case, sound: Case, picked: str | None) -> str:
    guilty = picked is not None and suspects(case, sound)[picked].guilty
    colour = GREY if picked is None else KINDS["accepted"] if guilty else KINDS["corrected"]
    mark = "" if picked is None else "✓ " if guilty else "✗ "
    return (
        f'<div style="border-left:4px solid {colour};padding:8px 12px;margin-top:14px;line-height:1.5;'
        f'background:color-mix(in srgb, {colour} 12%, transparent);color:var(--jp-ui-font-color1)">'
        f"{mark}{escape(verdict(case, sound, picked))}</div>"
    )


def diagnose(runs: Mapping[str, Case] | None = None, order: Sequence[str] = ()) -> Panel:
    """The debugging lab. `runs` as `slower.cases()` gives them, or live ones from `slower.measure`, the sound one too.

    The set-ups are numbered in `order`; without one, in an order that gives nothing away.
    """
    runs = cases() if runs is None else runs
    if SOUND not in runs or len(runs) < 2:
        raise ValueError(f"runs={list(runs)}: give the {SOUND!r} run to compare with, and one with a fault at least")
    order = list(order) or unnamed_order(runs)
    controls = {
        "number": slider("set-up", 1, 1, len(order)),
        "picked": choice("diagnosis", {"…": ""} | {name: name for name in FAULTS}),
    }

    def draw(number: int, picked: str) -> tuple[str, str]:
        case = runs[order[number - 1]]
        pays = "faster" if case.measured > 1 else "slower"
        words = f"Set-up {number} is {pays} than plain decoding: predicted {case.predicted:.2f}, measured "
        return diagnose_html(case, runs[SOUND], picked or None, f"set-up {number}"), f"{words}{case.measured:.2f}."

    panel = Panel(draw, controls)
    controls["number"].observe(lambda _: setattr(controls["picked"], "value", ""), names="value")  # a new patient
    return panel
