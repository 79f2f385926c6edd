"""Diagrams of a cycle: a race in time, which logit judges which token, what the rule accepts, what a cycle replaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from minispec.exact import as_distribution
from minispec.generate import Output

from .cycle_parts import CycleParts
from .cycle_picture import COLOURS, P_COLOUR, Q_COLOUR, SIGNS
from .cycle_steps import Clock, recorded_clock
from .drawing import INK, SOFT, Canvas, Drawing, shorten, visible
from .presets import duration
from .style import GREY, KINDS


def two_lanes(
    output: Output, decode: Callable[[list[int]], str], clock: Clock | None = None, tokens: int = 14
) -> Drawing:
    """Plain against speculative decoding of the same tokens, in wall-clock time: the first `tokens` of a real run.

    Which tokens were accepted is the run's; how long a pass takes is the clock's (without one: recorded on an H200).
    """
    clock = clock or recorded_clock()
    cycles, count = [], 0
    for cycle in output.trace.cycles:
        if count and count + cycle.kept > tokens:
            break
        cycles, count = [*cycles, cycle], count + cycle.kept
    took = sum(sum(clock.times(cycle)) for cycle in cycles)
    left, wide = 20, 720
    scale = wide / max(count * clock.plain, took)
    c = Canvas(height=270)
    c.text(14, 24, f"The same {count} tokens, in time ({clock.name})", 14, bold=True)
    c.text(left, 56, f"plain: {count} passes of the target, {duration(count * clock.plain)}", 13, bold=True)
    words = [visible(decode([token])) for cycle in cycles for token in cycle.tokens]
    for i, word in enumerate(words):
        step = clock.plain * scale
        c.rect(left + i * step, 64, step, 30, P_COLOUR, P_COLOUR, 0.3, 2)
        c.text(left + (i + 0.5) * step, 84, shorten(word, step - 4, 11), 11, "middle")
    passes = sum(len(cycle.drafted) for cycle in cycles)
    title = f"speculative: {len(cycles)} passes of the target and {passes} of the draft model, {duration(took)}"
    c.text(left, 136, title, 13, bold=True)
    x = left
    for cycle in cycles:
        draft, verify, rest = (seconds * scale for seconds in clock.times(cycle))
        for i in range(len(cycle.drafted)):
            c.rect(
                x + i * draft / len(cycle.drafted),
                144,
                draft / len(cycle.drafted),
                30,
                Q_COLOUR,
                INK,
                0.85,
                1,
                thick=0.6,
            )
        c.rect(x + draft, 144, verify, 30, P_COLOUR, P_COLOUR, 0.3, 2)
        end = x + draft + verify + rest
        # What the pass gave appears when it ends.
        c.line(end, 144, end, 190, SOFT, 1, "2 2")
        for i, (token, kind) in enumerate(zip(cycle.tokens, cycle.kinds, strict=True)):
            size = (draft + verify + rest - 4) / max(1, len(cycle.tokens))
            c.rect(x + 3 + i * size, 180, size - 2, 24, COLOURS[kind], COLOURS[kind], 0.25, 3)
            c.text(
                x + 2 + (i + 0.5) * size,
                196,
                shorten(SIGNS[kind] + visible(decode([token])), size - 3, 11),
                11,
                "middle",
            )
        x = end
    c.key(
        left,
        232,
        [
            (Q_COLOUR, "a draft pass"),
            (P_COLOUR, "a pass of the target"),
            (KINDS["accepted"], "✓ accepted"),
            (KINDS["corrected"], "→ correction"),
            (KINDS["bonus"], "+ bonus"),
        ],
        12,
    )
    ratio = count * clock.plain / took
    note = f"The tokens are this run's, the times of the passes are recorded. Here: {ratio:.2f} times as fast."
    c.text(left, 256, note, 12, colour=SOFT)
    return c.drawing(
        f"Two lanes in time, {clock.name}: plain decoding takes {count} passes and {duration(count * clock.plain)} for "
        f"{count} tokens; speculative decoding takes {len(cycles)} target passes, {passes} draft passes and "
        f"{duration(took)}: {ratio:.2f} times as fast."
    )


def judge_arrows(last: str, drafted: Sequence[str], choices: Sequence[str]) -> Drawing:
    """A verify pass: tokens in, the target's choice at each position, and the draft token that each choice judges."""
    if len(choices) != len(drafted) + 1:
        raise ValueError(f"{len(drafted)} draft tokens have {len(drafted) + 1} choices; there are {len(choices)}")
    columns = len(drafted) + 2
    step = (746 - 122) / columns
    accepted = next((i for i, (d, y) in enumerate(zip(drafted, choices, strict=False)) if d != y), len(drafted))
    c = Canvas(height=278)
    c.text(14, 24, "One verify pass: the logits at a token judge the token after it", 14, bold=True)
    for y, words in ((66, "goes in"), (146, "the target"), (162, "would choose"), (232, "emitted")):
        c.text(14, y, words, 13, bold=True)
    at = lambda i: 122 + (i + 0.5) * step  # noqa: E731
    inputs = [last, *drafted]
    for i, word in enumerate(inputs):
        wrong = i > accepted
        colour = INK if i == 0 else GREY if wrong else KINDS["accepted"]
        c.box(
            at(i) - step / 2 + 4,
            46,
            step - 8,
            32,
            shorten(visible(word), step - 14, 13),
            None if i == 0 else colour,
            0.25,
            13,
            line=colour,
            dash="2 2" if wrong else "",
            thick=1.5,
        )
        c.text(at(i), 42, "last token" if i == 0 else f"d{i}", 11.5, "middle", colour=SOFT)
        c.arrow(at(i), 80, at(i), 126, SOFT, dash="" if i <= accepted else "2 3")
        used = i <= accepted
        kind = "accepted" if i < accepted else "bonus" if accepted == len(drafted) else "corrected"
        colour = KINDS[kind] if used else GREY
        word = shorten(visible(choices[i]), step - 14, 13)
        c.box(
            at(i) - step / 2 + 4,
            130,
            step - 8,
            32,
            word,
            colour if used else None,
            0.25,
            13,
            line=colour,
            dash="" if used else "2 2",
        )
        c.text(at(i), 178, f"y{i + 1}", 11.5, "middle", colour=SOFT)
        if i < len(drafted):  # the shift: this choice is compared with the next input
            sign = "✓" if i < accepted else "✗" if i == accepted else ""
            if sign:
                c.arrow(at(i) + step * 0.32, 128, at(i + 1) - step * 0.2, 82, KINDS[kind], 2)
                c.text(at(i) + step * 0.5 + 6, 116, sign, 15, "start", True)
        if used:
            c.arrow(at(i), 182, at(i + 1), 212, SOFT)
            c.box(
                at(i + 1) - step / 2 + 4,
                216,
                step - 8,
                26,
                shorten(visible(choices[i]), step - 14, 12.5),
                KINDS[kind],
                0.25,
            )
    note = "✓ equal: accepted.  ✗ different: the choice is emitted instead, and what is dotted is of no use."
    c.text(14, 268, note, 12, colour=SOFT)
    end = "the bonus" if accepted == len(drafted) else "the correction"
    return c.drawing(
        f"A verify pass over {len(inputs)} tokens. The choice at each token judges the draft token after it: "
        f"{accepted} of {len(drafted)} are equal and accepted; then {end} {visible(choices[accepted])} is emitted."
    )


def overlap(p, q, labels: Sequence[str] = ()) -> Drawing:
    """p and q as overlapping bars: what both have is accepted, what p has more of is the residual."""
    p, q = as_distribution("p", p), as_distribution("q", q)
    if p.shape != q.shape:
        raise ValueError(f"p has {len(p)} tokens and q has {len(q)}: give two distributions over the same tokens")
    names = list(labels) or [f"token {i}" for i in range(len(p))]
    both, more, less = torch.minimum(p, q), (p - q).clamp(min=0), (q - p).clamp(min=0)
    low, tall, step = 236, 180, 400 / len(p)
    top = float(torch.maximum(p, q).max())
    c = Canvas(height=276)
    c.line(44, low, 450, low)
    for i in range(len(p)):
        x, unit = 50 + i * step, tall / top
        wide = step * 0.72
        shared, extra, excess = float(both[i]) * unit, float(more[i]) * unit, float(less[i]) * unit
        c.rect(x, low - shared, wide, shared, KINDS["accepted"], KINDS["accepted"], 0.5, 0)
        c.rect(x, low - shared - extra, wide, extra, KINDS["corrected"], KINDS["corrected"], 0.5, 0)
        c.rect(x, low - shared - excess, wide, excess, GREY, GREY, 0.15, 0, "3 3")
        for value, name, colour in ((p[i], "p", P_COLOUR), (q[i], "q", Q_COLOUR)):
            y = low - float(value) * unit
            c.line(x - 6, y, x + wide + 6, y, colour, 3)
            below = value < torch.maximum(p[i], q[i])
            c.text(x + wide / 2, y + (14 if below else -5), f"{name} = {float(value):.2f}", 12, "middle")
        c.text(x + wide / 2, low + 18, names[i], 12.5, "middle")
    total, rest = float(both.sum()), float(more.sum())
    rows = [
        (
            KINDS["accepted"],
            f"accepted: min(p, q), in all {total:.2f}",
            "a draft token of q is kept with min(1, p / q)",
        ),
        (KINDS["corrected"], f"residual: p − q where positive, {rest:.2f}", "a rejection is replaced by one of these"),
        ("", f"rejected: q − p where positive, {float(less.sum()):.2f}", "drafted too often; the same total"),
    ]
    for i, (colour, head, tail) in enumerate(rows):
        y = 66 + i * 56
        c.key(464, y, [(colour, head)], 12)
        c.text(482, y + 18, tail, 11.5, colour=SOFT)
    c.text(14, 24, "Green and orange together are exactly p", 14, bold=True)
    return c.drawing(
        f"Bars of p and q over {len(p)} tokens. What both have, {total:.2f} in all, is accepted. Where p is larger, "
        f"{rest:.2f} in all, the residual adds the difference, and as much is rejected where q is larger. What is "
        "accepted and what is added make up p."
    )


def cycle_over_steps(parts: CycleParts | None = None) -> Drawing:
    """One cycle as a bar of its parts, above the plain steps that it replaces, on one scale of time."""
    parts = parts or CycleParts.recorded()
    left, wide = 20, 640
    scale = wide / max(parts.tokens * parts.plain, parts.cycle)
    c = Canvas(height=212)
    c.text(14, 24, f"One cycle and what it replaces ({parts.name}, k = {parts.k})", 14, bold=True)
    c.text(left, 54, "one cycle", 13, bold=True)
    one, x = parts.draft / parts.k * scale, left
    for _ in range(parts.k):
        c.rect(x, 62, one, 34, Q_COLOUR, INK, 0.85, 1, thick=0.6)
        x += one
    c.box(
        x,
        62,
        parts.verify * scale,
        34,
        f"verify, v = {parts.verify / parts.plain:.2f}",
        P_COLOUR,
        0.35,
        13,
        line=P_COLOUR,
    )
    x += parts.verify * scale
    c.rect(x, 62, (parts.sample + parts.host) * scale, 34, GREY, None, 0.6, 0)
    x += (parts.sample + parts.host) * scale
    c.text(x + 8, 84, duration(parts.cycle), 13, bold=True)
    c.text(left, 112, f"k · c = {parts.k} · {parts.draft / parts.k / parts.plain:.2f}", 12.5)
    c.text(left, 140, f"the plain steps that give as many tokens: E[N] = {parts.tokens:.2f}", 13, bold=True)
    whole, x = int(parts.tokens), left
    for i in range(whole + 1):
        share = 1 if i < whole else parts.tokens - whole
        c.rect(x, 148, parts.plain * scale * share, 34, P_COLOUR, P_COLOUR, 0.35, 1)
        if share == 1:
            c.text(x + parts.plain * scale / 2, 170, "1", 13, "middle")
        x += parts.plain * scale * share
    c.text(x + 8, 170, duration(parts.tokens * parts.plain), 13, bold=True)
    c.key(
        left, 204, [(Q_COLOUR, "drafting one token"), (P_COLOUR, "a pass of the target"), (GREY, "sampling, host")], 12
    )
    return c.drawing(
        f"{parts.name}: a cycle of {parts.k} draft passes and one verify pass takes {duration(parts.cycle)}. It emits "
        f"{parts.tokens:.2f} tokens, for which plain decoding takes {duration(parts.tokens * parts.plain)}: "
        f"{parts.speedup:.2f} times as fast."
    )
