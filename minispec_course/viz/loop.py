"""The picture that the course hangs on: one cycle of speculative decoding as a film of ten seconds, from a real run.

On paper, and for readers who prefer no motion, it is the end of the cycle, which has all that happened in it.
"""

from contextlib import contextmanager

import torch

import minispec as ms
from minispec import drafters

from .drawing import INK, SOFT, Canvas, say
from .panel import Panel
from .style import GREY, KINDS, PALETTE

SECONDS, END = 10, 96  # END and all times below: percent of the film
DRAFT, VERIFY, VERDICT, CORRECT, REWIND = 0, 32, 46, 60, 76  # when each part begins
TARGET, DRAFTER = PALETTE[0], PALETTE[5]
LEFT, STEP, WIDE, TALL = 88, 61, 56, 28  # the first column, from one to the next, and a box
MOTION = (
    f".ms-loop{{animation:{SECONDS}s linear infinite both}}svg:hover .ms-loop{{animation-play-state:paused}}"
    "@media (prefers-reduced-motion:reduce),print{.ms-loop{animation:none}}"
)


class Film(Canvas):
    """A canvas whose parts come, go and move."""

    @contextmanager
    def shot(self, start: float, end: float = END, dx: float = 0, dy: float = 0, leaves: float = 0):
        """What is drawn inside is seen from start to end, first (dx, dy) away from where it belongs and goes."""
        name, leaves = f"ms-loop-{len(self.parts)}", leaves or start + 1
        away, here = f"opacity:1;transform:translate({dx}px,{dy}px)", "opacity:1;transform:none"
        frames = f"0%,{start}%{{opacity:0}}{start + 1}%,{leaves}%{{{away}}}{leaves + 4}%,{end}%{{{here}}}"
        self.add(f"<style>@keyframes {name}{{{frames}{end + 1}%,100%{{opacity:0}}}}</style>")
        with self.group(f'class="ms-loop" style="animation-name:{name}" opacity="{int(end == END)}"'):
            yield self


def loop_picture(prompt: str = "One day, a girl named Lily", k: int = 4) -> Panel:
    """The cycle of a run of micro with its draft model that accepts most, of those that reject two tokens at least."""
    target, draft = (ms.load(name, device="cpu", dtype=torch.float64) for name in ("micro", "micro-draft"))
    tokens = target.encode(prompt)
    run = ms.speculate(target, tokens, drafters.Model(draft), k=k, max_new_tokens=60)
    cycle = max((cycle for cycle in run.trace.cycles if cycle.accepted < k - 1), key=lambda cycle: cycle.accepted)
    accepted, before = cycle.accepted, cycle.committed
    last, token, *drafted = map(say(target), [[*tokens, *run.tokens][before - 1], cycle.token, *cycle.drafted])
    emitted, x = [*drafted[:accepted], token], [LEFT + i * STEP for i in range(k + 1)]

    c = Film(348, 400, 1.5).text(14, 24, "One cycle: draft, verify, correct, rewind", 14, bold=True)
    told = {
        DRAFT: f"Draft: the draft model proposes {k} tokens, in {k} short passes.",
        VERIFY: "Verify: the target processes all of them in one forward pass.",
        VERDICT: "Accept the draft tokens that the target would have chosen, up to the first mismatch.",
        CORRECT: f"Correct: there the target's own token is emitted. One pass, {accepted + 1} tokens.",
        REWIND: "Rewind: both caches drop what was rejected, and the next cycle begins.",
    }
    for (start, words), end in zip(told.items(), [*list(told)[1:], END], strict=True):
        with c.shot(start, end):
            c.paragraph(14, 46, words, 380, 12.5, INK)
    names = {99: "sequence", 142: "draft", 156: "model", 192: "target's", 206: "choice", 246: "target's", 260: "cache"}
    for y, name in (names | {280: "draft", 294: "cache"}).items():
        c.text(14, y, name, 12.5, bold=True)
    c.add(f"<style>{MOTION}</style>").box(x[0], 81, WIDE, TALL, last)
    with c.shot(VERIFY):
        c.rect(x[0] - 3, 177, (k + 1) * STEP - 1, TALL + 8, TARGET, TARGET, 0.12)
        c.text(x[0] + WIDE / 2, 199, "one pass", 12, "middle", colour=SOFT)
    for i, (word, column) in enumerate(zip(drafted, x[1:], strict=True)):
        right, verdict = i < accepted, VERDICT + 3 * min(i, accepted)
        kind = KINDS["accepted" if right else "corrected"]
        with c.shot(DRAFT + 6 * i + 4):
            c.box(column, 131, WIDE, TALL, word, DRAFTER, line=DRAFTER)
        with c.shot(verdict):
            c.rect(column, 131, WIDE, TALL, None, kind if i <= accepted else GREY, 1, 3, "" if right else "2 3", 2.5)
            c.text(column + WIDE / 2, 173, "✓" if right else "✗" if i == accepted else "", 14, "middle", True)
        if i <= accepted:  # the choice that judges it, and what is emitted
            with c.shot(VERIFY + 5):
                c.box(column, 181, WIDE, TALL, emitted[i], TARGET, line=TARGET)
            with c.shot(verdict + 2 if right else CORRECT, dy=50 if right else 100, leaves=0 if right else CORRECT + 4):
                c.box(column, 81, WIDE, TALL, emitted[i], kind, 0.3, line=kind, thick=2)
    for y, colour, processed in ((242, TARGET, k + 1), (276, DRAFTER, k)):
        for i, word in enumerate([last, *drafted][:processed]):
            c.rect(x[i], y, WIDE, 20, None, dash="2 3")
            with c.shot(VERIFY + 5 if processed > k else DRAFT + 6 * i + 1, END if i <= accepted else REWIND + 5):
                c.box(x[i], y, WIDE, 20, word, colour, 0.3, 12, line=colour)
        with c.shot(VERIFY + 5, dx=(processed - accepted - 1) * STEP, leaves=REWIND):
            c.line(x[accepted + 1] - 2.5, y - 5, x[accepted + 1] - 2.5, y + 25, INK, 3)
    note = f"A run of micro after “{prompt}”. Each cache also holds the {before - 1} tokens before these (not shown)."
    c.paragraph(14, 318, note, 380, 12)
    words = (
        f"One cycle: after {last} the draft model proposes {', '.join(drafted)}. One pass of the target accepts "
        f"{accepted} of them and emits {token} as the correction. Both caches go back to {before + accepted} tokens."
    )
    return Panel(lambda: (c.svg(words), words), {})
