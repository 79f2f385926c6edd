"""Why is it slower? The numbers of a run, a menu of faults, and what the numbers say about the one you picked.

A diagnosis is a claim about one number. To test it, put that number alone right and predict again: if speculation
then pays, the claim explains the loss. `suspects` does this for every fault, so the widget's verdicts are computed.
"""

from collections.abc import Mapping
from typing import NamedTuple

from minispec import theory

from ..labs.slower import FAULTS, SOUND, Case, cases, unnamed_order
from .drawing import INK, Canvas
from .panel import Panel, choice, slider
from .style import GREY, KINDS, PALETTE

PARTS = {"draft": PALETTE[5], "verify": PALETTE[0], "sample": PALETTE[3]}
CURES = {
    "mismatched draft": "Use the draft model that matches the target: same tokenizer, same training, layers in order.",
    "k too large": "Draft fewer tokens, or let k follow the measured acceptance.",
    "launch overhead": "Use a draft model with fewer, wider layers; on a GPU, launch it as one CUDA graph.",
    "full batch": "Draft less when the batch is full, and nothing at all once arithmetic is the limit.",
    "wrong kernel": "Use a GEMM made for few tokens, which reads every weight once.",
}


class Suspect(NamedTuple):
    """One fault held against the numbers."""

    guilty: bool
    fixed: float  # the predicted speed-up with this one number put right
    why: str


def suspects(case: Case, sound: Case) -> dict[str, Suspect]:
    """Every fault, tried on a case: put the number it is about right, and predict again."""
    alpha, k, c, v = case.alpha, case.k, case.c, case.v
    one_row = theory.speedup(alpha, k, c, sound.v)
    slope = (v - 1) / k  # v(k) as a straight line through what was measured
    best = max(theory.best_k(alpha, c, lambda n: 1 + slope * n), 1)
    shorter = theory.speedup(alpha, best, c, 1 + slope * best)
    fixed = {
        "mismatched draft": theory.speedup(max(alpha, sound.alpha), k, c, v),
        "k too large": shorter,
        "launch overhead": theory.speedup(alpha, k, min(c, sound.c), v),
        "full batch": one_row,
        "wrong kernel": one_row,
    }
    expensive = v > 1.25 * sound.v and k <= sound.k  # a longer pass may cost more; one of the same length may not
    evidence = {
        "mismatched draft": (alpha < 0.7 * sound.alpha, f"α is {alpha:.2f}; the valid run's is {sound.alpha:.2f}"),
        "k too large": (
            k > 2 * best and shorter > 1.1,
            f"{k} draft tokens per pass yield {case.tokens_per_pass:.2f} tokens; at this α and c the best k is {best}",
        ),
        "launch overhead": (
            c > 1.5 * sound.c,
            f"drafting a token costs c = {c:.2f}, in the valid run {sound.c:.2f}, "
            f"and this one reads {case.bytes_ratio:.0%} of the target's bytes",
        ),
        "full batch": (
            expensive and case.rows > 1,
            f"v is {v:.2f} at batch {case.rows}; in the valid run, at batch 1, it is {sound.v:.2f}",
        ),
        "wrong kernel": (
            expensive and case.rows == 1,
            f"v is {v:.2f} for {k + 1} tokens at batch {case.rows}; "
            f"the valid run needs {sound.v:.2f} for {sound.k + 1} tokens of one sequence",
        ),
    }
    return {name: Suspect(guilty, fixed[name], why) for name, (guilty, why) in evidence.items()}


def verdict(case: Case, sound: Case, picked: str | None) -> str:
    """What the numbers say about a diagnosis, in words."""
    if picked is None:
        return "Which number is out of line? Pick the fault that explains it."
    suspect = suspects(case, sound)[picked]
    now = f"{case.predicted:.2f}"
    if suspect.guilty:
        said = f"Yes, {picked}: {suspect.why}. With that number alone corrected, the prediction rises from {now} to "
        return f"{said}{suspect.fixed:.2f}. {CURES[picked]}"
    if picked == "wrong kernel" and case.rows > 1:
        return f"No: {suspect.why}. A batch of {case.rows} leaves no arithmetic idle, whatever the kernel."
    if picked == "full batch" and case.rows == 1:
        seen = [f"{one.v:.2f} for {one.k + 1} tokens" for one in (case, sound)]
        return f"No: a single sequence does not make a full batch. (v is {seen[0]}, the valid run's {seen[1]}.)"
    effect = "That number is as it should be"
    if suspect.fixed - case.predicted > 0.005:
        effect = f"Correcting it takes {now} to {suspect.fixed:.2f}"
    return f"No: {suspect.why}. {effect}; another number is further out of line."


def diagnose_svg(case: Case, sound: Case, picked: str | None = None, title: str = "this run", words: str = "") -> str:
    """The numbers of a run beside the valid run's, where a cycle's time goes, and the verdict on a diagnosis."""
    canvas, numbers = Canvas(330), list(zip(case.numbers().items(), sound.numbers().values(), strict=True))
    canvas.text(250, 26, title, 13, "end", bold=True).text(340, 26, "the valid run", 13, "end")
    for i, ((name, value), reference) in enumerate(numbers):
        y = 50 + 23 * i
        mine, theirs = (f"{x:d}" if isinstance(x, int) else f"{x:.2f}" for x in (value, reference))
        canvas.text(14, y, name).text(250, y, mine, 13, "end", bold=True).text(340, y, theirs, 13, "end")
        canvas.line(14, y + 7, 340, y + 7, thick=0.5)
    runs = {title: case, "the valid run": sound}
    spent = {name: {part: _steps(run, part) for part in PARTS} for name, run in runs.items()}
    longest = max([*(sum(parts.values()) for parts in spent.values()), *(run.median_tokens for run in runs.values())])
    for y, (name, run) in zip((30, 92), runs.items(), strict=True):
        cost, whose = sum(spent[name].values()), "(median story)" if run.rows == 1 else "per sequence"
        canvas.text(370, y, f"{name}: {cost:.2f} plain steps, {run.median_tokens:.2f} tokens {whose}", 12)
        x, scale = 370, 370 / longest
        for part, share in spent[name].items():
            canvas.rect(x, y + 8, share * scale, 16, PARTS[part], None, round=0, title=f"{part}: {share:.2f} steps")
            x += share * scale
        canvas.rect(370, y + 26, run.median_tokens * scale, 7, KINDS["accepted"], None, round=0)
    key = [(colour, part) for part, colour in PARTS.items()]
    canvas.key(370, 152, [*key, (KINDS["accepted"], "tokens emitted")], 12)
    guilty = picked is not None and suspects(case, sound)[picked].guilty
    colour = GREY if picked is None else KINDS["accepted"] if guilty else KINDS["corrected"]
    mark = "" if picked is None else "✓ " if guilty else "✗ "
    canvas.rect(370, 176, 376, 140, colour, None, 0.12).rect(370, 176, 4, 140, colour, None, round=0)
    canvas.paragraph(384, 198, mark + verdict(case, sound, picked), 350, 12.5, INK)
    return canvas.svg(words)


def _steps(case: Case, part: str) -> float:
    """The time of one part of a cycle in steps of plain decoding, which samples and schedules as well."""
    return case.trace.seconds(part) / len(case.trace.cycles) / (case.plain * case.rows)


def diagnose(runs: Mapping[str, Case] | None = None) -> Panel:
    """The debugging lab. `runs` as `slower.cases()` gives them, the valid one too. The set-ups are numbered in an order
    that gives nothing away."""
    runs = cases() if runs is None else runs
    order = unnamed_order(runs)
    controls = {
        "number": slider("set-up", 1, 1, len(order)),
        "picked": choice("diagnosis", {"…": ""} | {name: name for name in FAULTS}),
    }

    def draw(number: int, picked: str) -> tuple[str, str]:
        case = runs[order[number - 1]]
        pays = "faster" if case.measured > 1 else "slower"
        words = f"Set-up {number} is {pays} than plain decoding: predicted {case.predicted:.2f}, measured "
        words += f"{case.measured:.2f}."
        return diagnose_svg(case, runs[SOUND], picked or None, f"set-up {number}", words), words

    panel = Panel(draw, controls)
    controls["number"].observe(lambda _: setattr(controls["picked"], "value", ""), names="value")  # a new patient
    return panel
