"""The picture of the cycle stepper: the sentence, this cycle's tokens, its passes in time, caches, and p and q.

What is yet to come keeps its room from the beginning, so the picture has one height from the first step to the last.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from minispec.generate import Output
from minispec.trace import Cycle

from .cycle_steps import THROWN, Clock, Step, chips, ordinal
from .drawing import INK, SOFT, Canvas, shorten, text_width, visible
from .presets import duration
from .style import GREY, KINDS, PALETTE

# A sign and a border for each kind, for eyes and printers that see no colour.
SIGNS = {"accepted": "✓", "corrected": "→", "bonus": "+", THROWN: "✗", "drafted": "?"}
BORDERS = {"accepted": "", "corrected": "6 2", "bonus": "3 2", THROWN: "1 2", "drafted": "1 0"}
COLOURS = {**KINDS, THROWN: GREY, "drafted": GREY}
P_COLOUR, Q_COLOUR = PALETTE[0], PALETTE[5]
BARS = 6  # tokens of a distribution that have a bar, besides those that were drafted and emitted
LEFT, RIGHT, LINE = 14, 746, 25
LANE, SPAN = 128, 500  # where the lanes of time begin, and how long they are


class CyclePicture:
    """One run with its distributions and its clock; `at` puts one step of it on paper."""

    def __init__(
        self, output: Output, p: Tensor, q: Tensor, decode: Callable[[list[int]], str] | None, prompt: str, clock: Clock
    ) -> None:
        self.output, self.trace, self.p, self.q, self.clock = output, output.trace, p, q, clock
        self.show = lambda token: visible(decode([token]) if decode else str(token))
        self.longest = max(len(cycle.drafted) for cycle in self.trace.cycles)
        self.prompt = prompt
        self.tokens = [chip for cycle in self.trace.cycles for chip in chips(cycle, "rewind")]
        self.corners, self.below = self._flow()

    def at(self, now: Step, place: int) -> tuple[str, str]:
        cycle = self.trace.cycles[now.cycle]
        if not 0 <= place <= len(cycle.drafted) + 1:
            place = len(cycle.drafted) + 1  # a shorter cycle than the one the position was chosen in
        top = self.below
        c = Canvas(height=top + 482)
        self._heading(c, now)
        self._sentence(c, now)
        self._this_cycle(c, cycle, now, top + 8)
        self._in_time(c, cycle, now, top + 60)
        self._whole_run(c, now, top + 152)
        self._caches(c, cycle, now, top + 228)
        self._distributions(c, cycle, now, place, top + 228)
        words = self._told(cycle, now)
        return c.svg(words), words

    # ------------------------------------------------------------ the sentence

    def _flow(self) -> tuple[list[tuple[float, float, float]], float]:
        """(x, y, width) of every token of the finished output, in lines after the prompt, and where they end."""
        x, y, corners = LEFT + 1.08 * text_width(self.prompt, 13) + 6, 64, []
        if x > RIGHT / 2:  # a long prompt has its end shown
            self.prompt = "…" + self.prompt[-40:]
            x = LEFT + 1.08 * text_width(self.prompt, 13) + 6
        for token, kind in self.tokens:
            width = text_width(f"{SIGNS[kind]} {self.show(token)}", 12.5) + 9
            if x + width > RIGHT:
                x, y = LEFT, y + LINE
            corners.append((x, y, width))
            x += width + 3
        return corners, y + LINE

    def _heading(self, c: Canvas, now: Step) -> None:
        finished = now.cycle + (now.stage == "rewind")  # a pass counts together with what it emitted
        per_pass = f"{now.written / finished:.2f}" if finished else "–"
        c.text(LEFT, 24, f"cycle {now.cycle + 1} of {len(self.trace.cycles)} · {now.stage}", 15, bold=True)
        counts = f"generated {now.written} · passes of the target {now.passes} · tokens per pass {per_pass}"
        c.text(RIGHT, 24, counts, 12.5, "end")

    def _sentence(self, c: Canvas, now: Step) -> None:
        c.text(LEFT, 64, self.prompt, 13, bold=True)
        fresh = now.written - (self.trace.cycles[now.cycle].kept if now.stage == "rewind" else 0)
        for i, ((token, kind), (x, y, width)) in enumerate(zip(self.tokens, self.corners, strict=True)):
            if i < now.written:
                self._chip(c, x, y - 15, width, token, kind, 0.30 if i >= fresh else 0.10)

    def _chip(self, c: Canvas, x, y, width, token: int, kind: str, shade: float = 0.25) -> None:
        thick = 2.5 if kind == "corrected" else 1.5
        c.rect(x, y, width, 20, COLOURS[kind], COLOURS[kind], shade, 4, BORDERS[kind], thick, kind)
        c.text(x + 4, y + 14.5, f"{SIGNS[kind]} {self.show(token)}", 12.5)
        if kind == THROWN:
            c.line(x + 14, y + 10, x + width - 4, y + 10, INK, 1)

    def _this_cycle(self, c: Canvas, cycle: Cycle, now: Step, y: float) -> None:
        c.text(LEFT, y + 14.5, "this cycle", 13, bold=True)
        x = LANE
        for token, kind in chips(cycle, now.stage):
            width = text_width(f"{SIGNS[kind]} {self.show(token)}", 12.5) + 9
            self._chip(c, x, y, width, token, kind)
            x += width + 4
        kinds = ("drafted", "accepted", THROWN, "corrected", "bonus")
        c.text(RIGHT, y - 2 + 38, "   ".join(f"{SIGNS[kind]} {kind}" for kind in kinds), 12, "end", colour=SOFT)

    # ------------------------------------------------------------ time

    def _in_time(self, c: Canvas, cycle: Cycle, now: Step, y: float) -> None:
        """This cycle's passes, and below them the plain steps that give as many tokens, on one scale."""
        plain, (draft, verify, rest) = self.clock.plain, self.clock.times(cycle)
        longest = max(sum(self.clock.times(one)) for one in self.trace.cycles)
        scale = SPAN / max((self.longest + 1) * plain, longest)
        c.text(LEFT, y + 15, "speculative", 13, bold=True)
        drafted = len(cycle.drafted)
        for i in range(drafted):
            wide = draft / drafted * scale
            c.rect(LANE + i * wide, y, wide, 22, Q_COLOUR, INK, 0.85, 1, thick=0.7, title=f"draft pass {i + 1}")
        x, ran = LANE + draft * scale, now.stage != "draft"
        c.rect(x, y, verify * scale, 22, P_COLOUR if ran else None, P_COLOUR, 0.35, 1, "" if ran else "3 3")
        c.rect(x + verify * scale, y, rest * scale, 22, GREY if ran else None, None, 0.6, 0)
        if verify * scale > 60:
            c.text(x + verify * scale / 2, y + 15.5, f"1 pass over {drafted + 1}" if ran else "…", 12, "middle")
        elapsed = draft + (verify + rest if ran else 0)
        c.text(RIGHT, y + 15, f"{duration(elapsed)}", 12.5, "end")
        y += 30
        c.text(LEFT, y + 15, "plain", 13, bold=True)
        for i, token in enumerate(cycle.tokens):
            done = (i + 1) * plain <= elapsed * 1.0001
            wide = plain * scale
            c.rect(LANE + i * wide, y, wide, 22, P_COLOUR if done else None, P_COLOUR, 0.35, 1, "" if done else "3 3")
            c.text(LANE + (i + 0.5) * wide, y + 15.5, shorten(self.show(token), wide - 4, 12), 12, "middle")
        c.text(RIGHT, y + 15, f"{duration(len(cycle.tokens) * plain)}", 12.5, "end")
        c.text(LEFT, y + 40, f"this cycle, to scale: {self.clock.name}", 12, colour=SOFT)

    def _whole_run(self, c: Canvas, now: Step, y: float) -> None:
        """The race so far: what both ways have generated by now, and how long they take in all."""
        at, plain = self.clock.at(self.trace, now), self.clock.plain
        total = sum(sum(self.clock.times(cycle)) for cycle in self.trace.cycles)
        scale = SPAN / max(total, len(self.tokens) * plain)
        c.text(LEFT, y + 11, "whole run", 13, bold=True)
        x = LANE
        for i, cycle in enumerate(self.trace.cycles):
            draft, verify, rest = (seconds * scale for seconds in self.clock.times(cycle))
            if i <= now.cycle:
                c.rect(x, y, draft, 14, Q_COLOUR, None, round=0)
            if i < now.cycle or (i == now.cycle and now.stage != "draft"):
                c.rect(x + draft, y, verify, 14, P_COLOUR, None, 0.75, 0)
            x += draft + verify + rest
        c.rect(LANE, y, total * scale, 14, None, dash="2 3", round=0)
        done = min(len(self.tokens), int(at / plain * 1.0001))
        for i in range(done):
            c.rect(LANE + i * plain * scale + 0.5, y + 20, max(0.5, plain * scale - 1), 14, P_COLOUR, None, 0.75, 0)
        c.rect(LANE, y + 20, len(self.tokens) * plain * scale, 14, None, dash="2 3", round=0)
        c.line(LANE + at * scale, y - 4, LANE + at * scale, y + 40, INK)
        c.text(RIGHT, y + 12, f"{now.written} tokens", 12.5, "end")
        c.text(RIGHT, y + 32, f"{done} tokens, plain", 12.5, "end")
        in_all = f"{duration(total)} and {duration(len(self.tokens) * plain)}"
        c.text(LEFT, y + 54, f"after {duration(at)} · in all {in_all}", 12, colour=SOFT)

    # ------------------------------------------------------------ caches, p and q

    def _caches(self, c: Canvas, cycle: Cycle, now: Step, y: float) -> None:
        """Both caches: how many tokens from before the cycle, and after them a slot for each token it processes."""
        before, wide = cycle.committed - 1, min(50, 216 / (self.longest + 1))
        c.text(LEFT, y + 10, "tokens in the cache", 13, bold=True)
        for i, (name, held) in enumerate((("target", now.target_cache), ("draft", now.draft_cache))):
            top = y + 24 + i * 32
            c.text(LEFT, top + 15, f"{name} {held}", 12.5)
            c.box(86, top, 50, 22, f"{min(held, before)} old", GREY, 0.3, 12)
            for j, text in enumerate(["last", *map(self.show, cycle.drafted)]):
                if name == "draft" and j >= max(1, len(cycle.drafted)):
                    continue  # the draft model never processes its own last token
                filled = before + j < held
                c.rect(
                    140 + j * wide, top, wide - 3, 22, GREY if filled else None, GREY, 0.3, dash="" if filled else "2 2"
                )
                if wide > 30:
                    colour = INK if filled else SOFT
                    c.text(
                        140 + j * wide + wide / 2 - 1.5,
                        top + 15,
                        shorten(text, wide - 8, 11.5),
                        11.5,
                        "middle",
                        colour=colour,
                    )
        c.paragraph(LEFT, y + 104, "Filled: keys and values are in the cache. Dotted: not there, or rewound.", 330, 12)

    def _distributions(self, c: Canvas, cycle: Cycle, now: Step, place: int, y: float) -> None:
        """p and q at one position of the cycle: the likeliest tokens, and those that were drafted and emitted there."""
        left, judged = 396, now.stage != "draft"
        i = cycle.accepted if place == 0 else place - 1  # counted from 0 inside the cycle
        if place == 0 and not judged:
            i = 0  # nothing is judged yet: what the first draft token was chosen from
        start = sum(one.kept for one in self.trace.cycles[: now.cycle])
        guess = cycle.drafted[i] if i < len(cycle.drafted) else None
        reason = "after a rejected token: p and q are of no use" if i > cycle.accepted else ""
        reason = reason or ("after the end of the output" if start + i >= len(self.p) else "")
        reason = reason or ("nothing is drafted here" if guess is None and not judged else "")
        c.text(left, y + 10, f"{ordinal(i + 1)} position{': ' + reason if reason else ''}", 13, bold=True)
        if reason:
            return
        verdict = "bonus" if guess is None else "" if not judged else "accepted" if i < cycle.accepted else "rejected"
        c.text(RIGHT, y + 10, verdict, 13, "end")
        chosen = cycle.tokens[i] if judged and i < len(cycle.tokens) else None
        p, q = self.p[start + i], self.q[start + i]
        # Before the pass p is not known; after the last draft token there is no q.
        score = q if not judged else p + q if guess is not None else p
        tokens = score.topk(min(BARS, len(score))).indices.tolist()
        tokens += [token for token in dict.fromkeys((guess, chosen)) if token is not None and token not in tokens]
        tokens.sort(key=lambda token: -float((p if judged else q)[token]))
        for n, token in enumerate(tokens):
            top = y + 22 + n * 26
            c.text(left + 66, top + 13, shorten(self.show(token), 64, 12.5), 12.5, "end")
            if judged:
                self._bar(c, left + 74, top, float(p[token]), P_COLOUR, "p")
            if guess is not None:
                self._bar(c, left + 74, top + 11, float(q[token]), Q_COLOUR, "q")
            marks = [sign for sign, marked in (("drafted", guess), ("emitted", chosen)) if marked == token]
            c.text(RIGHT, top + 13, ", ".join(marks), 11.5, "end", colour=SOFT)
        c.key(
            left, y + 244, [(P_COLOUR, "p, target" if judged else "p: not yet known"), (Q_COLOUR, "q, draft model")], 12
        )

    def _bar(self, c: Canvas, x: float, y: float, share: float, colour: str, name: str) -> None:
        c.rect(x, y, 130 * share, 9, colour, None, round=1, title=f"{name} = {share:.2f}")
        c.text(x + 130 * share + 4, y + 8.5, f"{share:.2f}", 10.5)

    def _told(self, cycle: Cycle, now: Step) -> str:
        name = lambda token: f"“{self.show(token)}”"  # noqa: E731
        k, accepted = len(cycle.drafted), cycle.accepted
        held = f"The target's cache holds {now.target_cache} tokens, the draft's {now.draft_cache}."
        at = self.clock.at(self.trace, now)
        held += f" After {duration(at)} plain decoding would have {min(len(self.tokens), int(at / self.clock.plain))}."
        begin = f"Cycle {now.cycle + 1} of {len(self.trace.cycles)}, {now.stage}: "
        if now.stage == "draft":
            proposed = ", ".join(map(name, cycle.drafted)) or "there is no room"
            return f"{begin}the draft model proposes {k} tokens: {proposed}. {held}"
        last = f"a bonus, {name(cycle.token)}" if cycle.bonus else f"the correction {name(cycle.token)}"
        if now.stage == "verify":
            said = f"one forward pass of the target over {k + 1} tokens accepts {accepted} of {k}"
            return f"{begin}{said}, and adds {last}. {held}"
        ended = " The output ended inside this cycle." if cycle.kept < accepted + 1 else ""
        return (
            f"{begin}{k - accepted} rejected tokens leave the target's cache; {cycle.kept} were emitted, {now.written} "
            f"in all.{ended} {held}"
        )
