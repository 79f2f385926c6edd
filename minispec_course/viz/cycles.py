"""The draft–verify cycle in pictures: a stepper through a run, the run as two lanes in time, and where the time goes.

Everything shown comes from a real run (labs/cycles.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from minispec.generate import Output
from minispec.load.handle import Model
from minispec.trace import Cycle

from ..labs.cycles import (
    DISCARDED,
    PARTS,
    Clock,
    CycleParts,
    Step,
    chips,
    distributions_along,
    plain_step,
    recorded_clock,
    steps,
)
from ..labs.presets import duration
from .drawing import INK, SOFT, Canvas, Drawing, shorten, text_width, visible
from .panel import Panel, choice, player
from .style import GREY, KINDS, PALETTE

# A sign and a border for each kind, for eyes and printers that see no colour.
SIGNS = {"accepted": "✓", "corrected": "→", "bonus": "+", DISCARDED: "✗", "drafted": "?"}
BORDERS = {"accepted": "", "corrected": "6 2", "bonus": "3 2", DISCARDED: "1 2", "drafted": "1 0"}
COLOURS = {**KINDS, DISCARDED: GREY, "drafted": GREY}
P_COLOUR, Q_COLOUR = PALETTE[0], PALETTE[5]
BARS = 6  # tokens of a distribution that have a bar, besides those that were drafted and emitted
LEFT, RIGHT, LINE = 14, 746, 25
LANE, SPAN = 128, 500  # where the lanes of time begin, and how long they are

# ---- where the time of a cycle goes ----------------------------------------------------------------------------------


def cycle_over_steps(runs: Sequence[CycleParts] = ()) -> Drawing:
    """One cycle as a bar of its parts, above the plain steps that emit as many tokens; without runs, one of an H200.

    The unit is a plain decoding step of the same machine, so bars of different machines have one axis.
    """
    runs = list(runs) or [CycleParts.recorded()]
    left, scale = 20, 590 / max(max(run.tokens, run.cycle / run.plain) for run in runs)
    c = Canvas(height=40 + 156 * len(runs))
    c.text(14, 24, "One cycle, and the plain decoding steps that emit as many tokens", 14, bold=True)
    for y, run in zip(range(50, 50 + 156 * len(runs), 156), runs, strict=True):
        steps = {part: getattr(run, part) / run.plain * scale for part in PARTS.values()}
        c.text(left, y, f"{run.name}, k = {run.k}: k·c = {run.k} · {run.draft / run.k / run.plain:.2f}", 13)
        for i in range(run.k):
            one = steps["draft"] / run.k
            c.rect(left + i * one, y + 8, one, 30, Q_COLOUR, INK, 0.85, 1, thick=0.6, title=f"draft token {i + 1}")
        x, v = left + steps["draft"], f"verify, v = {run.verify / run.plain:.2f}"
        c.box(x, y + 8, steps["verify"], 30, v, P_COLOUR, 0.35, 13, line=P_COLOUR)
        x += steps["verify"]
        for part, colour in (("sample", KINDS["accepted"]), ("host", GREY)):
            told = f"{part}: {1e3 * getattr(run, part):.3g} ms"
            c.rect(x, y + 8, steps[part], 30, colour, None, 0.6, 0, title=told)
            x += steps[part]
        c.text(x + 8, y + 28, duration(run.cycle), 13, bold=True)
        c.text(left, y + 62, f"plain steps for E[N] = {run.tokens:.2f} tokens", 13)
        x = left
        for i in range(int(run.tokens) + 1):
            wide = min(1.0, run.tokens - i) * scale
            c.box(x, y + 70, wide, 30, "1" if wide == scale else "", P_COLOUR, 0.35, 13, line=P_COLOUR)
            x += wide
        c.text(x + 8, y + 90, f"{duration(run.tokens * run.plain)}: {run.speedup:.2f} ×", 13, bold=True)
    c.key(left, c.height - 14, [(Q_COLOUR, "drafting one token"), (P_COLOUR, "a pass of the target")])
    c.key(330, c.height - 14, [(KINDS["accepted"], "sampling"), (GREY, "host")])
    said = " ".join(
        f"{run.name}: a cycle of {run.k} draft passes and one verify pass takes {duration(run.cycle)} and emits "
        f"{run.tokens:.2f} tokens, for which plain decoding takes {duration(run.tokens * run.plain)}: "
        f"{run.speedup:.2f} times as fast."
        for run in runs
    )
    return c.drawing(said)


# ---- a run as data: its stages, its tokens by kind, its clock --------------------------------------------------------


# ---- the stepper -----------------------------------------------------------------------------------------------------


class CyclePicture:
    """One run with its distributions and its clock; `at` draws one step of it.

    What is yet to come keeps its room from the beginning, so the picture has one height at every step.
    """

    def __init__(
        self, output: Output, p: Tensor, q: Tensor, decode: Callable | None, prompt: str, clock: Clock
    ) -> None:
        self.trace, self.p, self.q, self.clock = output.trace, p, q, clock
        self.show = lambda token: visible(decode([token]) if decode else str(token))
        self.longest = max(len(cycle.drafted) for cycle in self.trace.cycles)
        self.prompt = prompt if text_width(prompt) < 330 else "…" + prompt[-40:]
        self.tokens = [chip for cycle in self.trace.cycles for chip in chips(cycle, "rewind")]
        self.total = sum(sum(clock.times(cycle)) for cycle in self.trace.cycles)

    def at(self, now: Step, place: int = 0) -> tuple[str, str]:
        """`place` chooses whose distributions are shown: those of the cycle's 1st, 2nd, … token, or with 0 of the one
        that the target chose itself."""
        cycle = self.trace.cycles[now.cycle]
        place = min(place, len(cycle.drafted) + 1)  # a shorter cycle than the one the position was chosen in
        c = Canvas(height=0)
        top = self._sentence(c, now)
        c.height = top + 482
        self._this_cycle(c, cycle, now, top + 8)
        self._in_time(c, cycle, now, top + 60)
        self._whole_run(c, now, top + 152)
        self._caches(c, cycle, now, top + 228)
        self._distributions(c, cycle, now, place, top + 228)
        words = self._told(cycle, now)
        return c.svg(words), words

    def _sentence(self, c: Canvas, now: Step) -> float:
        """The counts, and the output so far after its prompt. Where it would end, once it is complete."""
        finished = now.cycle + (now.stage == "rewind")  # a pass counts together with what it emitted
        per_pass = f"{now.emitted / finished:.2f}" if finished else "–"
        counts = f"generated {now.emitted} · passes of the target {now.passes} · tokens per pass {per_pass}"
        c.text(LEFT, 24, f"cycle {now.cycle + 1} of {len(self.trace.cycles)} · {now.stage}", 15, bold=True)
        c.text(RIGHT, 24, counts, 12.5, "end").text(LEFT, 64, self.prompt, 13, bold=True)
        fresh = now.emitted - (self.trace.cycles[now.cycle].kept if now.stage == "rewind" else 0)
        x, y = LEFT + 1.08 * text_width(self.prompt, 13) + 6, 64
        for i, (token, kind) in enumerate(self.tokens):
            wide = self._wide(token, kind)
            x, y = (LEFT, y + LINE) if x + wide > RIGHT else (x, y)
            if i < now.emitted:
                self._chip(c, x, y - 15, token, kind, 0.30 if i >= fresh else 0.10)
            x += wide + 3
        return y + LINE

    def _wide(self, token: int, kind: str) -> float:
        return text_width(f"{SIGNS[kind]} {self.show(token)}", 12.5) + 9

    def _chip(self, c: Canvas, x: float, y: float, token: int, kind: str, shade: float = 0.25) -> None:
        wide, thick = self._wide(token, kind), 2.5 if kind == "corrected" else 1.5
        c.rect(x, y, wide, 20, COLOURS[kind], COLOURS[kind], shade, 4, BORDERS[kind], thick, kind)
        c.text(x + 4, y + 14.5, f"{SIGNS[kind]} {self.show(token)}", 12.5)
        if kind == DISCARDED:
            c.line(x + 14, y + 10, x + wide - 4, y + 10, INK, 1)

    def _this_cycle(self, c: Canvas, cycle: Cycle, now: Step, y: float) -> None:
        c.text(LEFT, y + 14.5, "this cycle", 13, bold=True)
        x = LANE
        for token, kind in chips(cycle, now.stage):
            self._chip(c, x, y, token, kind)
            x += self._wide(token, kind) + 4
        kinds = ("drafted", "accepted", DISCARDED, "corrected", "bonus")
        c.text(RIGHT, y + 36, "   ".join(f"{SIGNS[kind]} {kind}" for kind in kinds), 12, "end", colour=SOFT)

    def _in_time(self, c: Canvas, cycle: Cycle, now: Step, y: float) -> None:
        """This cycle's passes, and below them the plain steps that give as many tokens, on one scale."""
        plain, (draft, verify, rest) = self.clock.plain, self.clock.times(cycle)
        longest = max(sum(self.clock.times(one)) for one in self.trace.cycles)
        scale, drafted, ran = SPAN / max((self.longest + 1) * plain, longest), len(cycle.drafted), now.stage != "draft"
        c.text(LEFT, y + 15, "speculative", 13, bold=True)
        for i in range(drafted):
            wide = draft / drafted * scale
            c.rect(LANE + i * wide, y, wide, 22, Q_COLOUR, INK, 0.85, 1, thick=0.7, title=f"draft pass {i + 1}")
        x, wide, said = LANE + draft * scale, verify * scale, f"1 pass over {drafted + 1}" if ran else "…"
        look = dict(line=P_COLOUR, round=1, dash="" if ran else "3 3")
        c.box(x, y, wide, 22, said if wide > 60 else "", P_COLOUR if ran else None, 0.35, 12, **look)
        c.rect(x + wide, y, rest * scale, 22, GREY if ran else None, None, 0.6, 0)
        elapsed = draft + (verify + rest if ran else 0)
        c.text(RIGHT, y + 15, duration(elapsed), 12.5, "end")
        c.text(LEFT, y + 45, "plain", 13, bold=True)
        for i, token in enumerate(cycle.tokens):
            done, wide = (i + 1) * plain <= elapsed * 1.0001, plain * scale
            look = dict(line=P_COLOUR, round=1, dash="" if done else "3 3")
            word = self.show(token) if wide > 12 else ""
            c.box(LANE + i * wide, y + 30, wide, 22, word, P_COLOUR if done else None, 0.35, 12, **look)
        c.text(RIGHT, y + 45, duration(len(cycle.tokens) * plain), 12.5, "end")
        c.text(LEFT, y + 70, f"this cycle, to scale: {self.clock.name}", 12, colour=SOFT)

    def _whole_run(self, c: Canvas, now: Step, y: float) -> None:
        """The race so far: what both ways have generated by now, and how long they take in all."""
        at, plain = self.clock.at(self.trace, now), self.clock.plain
        scale = SPAN / max(self.total, len(self.tokens) * plain)
        c.text(LEFT, y + 11, "whole run", 13, bold=True)
        x = LANE
        for i, cycle in enumerate(self.trace.cycles[: now.cycle + 1]):
            draft, verify, rest = (seconds * scale for seconds in self.clock.times(cycle))
            c.rect(x, y, draft, 14, Q_COLOUR, None, round=0)
            if i < now.cycle or now.stage != "draft":
                c.rect(x + draft, y, verify, 14, P_COLOUR, None, 0.75, 0)
            x += draft + verify + rest
        c.rect(LANE, y, self.total * scale, 14, None, dash="2 3", round=0)
        done = min(len(self.tokens), int(at / plain * 1.0001))
        for i in range(done):
            c.rect(LANE + i * plain * scale + 0.5, y + 20, max(0.5, plain * scale - 1), 14, P_COLOUR, None, 0.75, 0)
        c.rect(LANE, y + 20, len(self.tokens) * plain * scale, 14, None, dash="2 3", round=0)
        c.line(LANE + at * scale, y - 4, LANE + at * scale, y + 40, INK)
        c.text(RIGHT, y + 12, f"{now.emitted} tokens", 12.5, "end")
        c.text(RIGHT, y + 32, f"{done} tokens, plain", 12.5, "end")
        in_all = f"{duration(self.total)} and {duration(len(self.tokens) * plain)}"
        c.text(LEFT, y + 54, f"after {duration(at)} · in all {in_all}", 12, colour=SOFT)

    def _caches(self, c: Canvas, cycle: Cycle, now: Step, y: float) -> None:
        """Both caches: how many tokens from before the cycle, and after them a slot for each token it processes."""
        before, wide = cycle.committed - 1, min(50, 216 / (self.longest + 1))
        c.text(LEFT, y + 10, "tokens in the cache", 13, bold=True)
        for top, name, held in ((y + 24, "target", now.target_cache), (y + 56, "draft", now.draft_cache)):
            c.text(LEFT, top + 15, f"{name} {held}", 12.5)
            c.box(86, top, 50, 22, f"{min(held, before)} old", GREY, 0.3, 12)
            words = ["last", *map(self.show, cycle.drafted)]
            if name == "draft":
                words = words[: max(1, len(cycle.drafted))]  # the draft model never processes its own last token
            for j, word in enumerate(words):
                filled = before + j < held
                look = dict(line=GREY, dash="" if filled else "2 2")
                fill, word = GREY if filled else None, word if wide > 30 else ""
                c.box(140 + j * wide, top, wide - 3, 22, word, fill, 0.3, 11.5, **look)
        c.paragraph(LEFT, y + 104, "Filled: keys and values are in the cache. Dotted: not there, or rewound.", 330, 12)

    def _distributions(self, c: Canvas, cycle: Cycle, now: Step, place: int, y: float) -> None:
        """p and q at one position of the cycle: the likeliest tokens, and those that were drafted and emitted there."""
        left, judged = 396, now.stage != "draft"
        # Before anything is judged, what the first draft token was chosen from.
        i = place - 1 if place else cycle.accepted if judged else 0
        start = sum(one.kept for one in self.trace.cycles[: now.cycle])
        guess = cycle.drafted[i] if i < len(cycle.drafted) else None
        reason = ": nothing is drafted here" if guess is None and not judged else ""
        reason = ": after the end of the output" if start + i >= len(self.p) else reason
        reason = ": after a rejected token: p and q are of no use" if i > cycle.accepted else reason
        c.text(left, y + 10, f"{ordinal(i + 1)} position{reason}", 13, bold=True)
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
        for n, token in enumerate(sorted(tokens, key=lambda token: -float((p if judged else q)[token]))):
            top = y + 22 + n * 26
            c.text(left + 66, top + 13, shorten(self.show(token), 64, 12.5), 12.5, "end")
            shares = [(top, float(p[token]), P_COLOUR, "p")] if judged else []
            shares += [(top + 11, float(q[token]), Q_COLOUR, "q")] if guess is not None else []
            for at, share, colour, name in shares:
                c.rect(left + 74, at, 130 * share, 9, colour, None, round=1, title=f"{name} = {share:.2f}")
                c.text(left + 78 + 130 * share, at + 8.5, f"{share:.2f}", 10.5)
            marks = [sign for sign, marked in (("drafted", guess), ("emitted", chosen)) if marked == token]
            c.text(RIGHT, top + 13, ", ".join(marks), 11.5, "end", colour=SOFT)
        key = [(P_COLOUR, "p, target" if judged else "p: not yet known"), (Q_COLOUR, "q, draft model")]
        c.key(left, y + 244, key, 12)

    def _told(self, cycle: Cycle, now: Step) -> str:
        name = lambda token: f"“{self.show(token)}”"  # noqa: E731
        k, at = len(cycle.drafted), self.clock.at(self.trace, now)
        held = (
            f"The target's cache holds {now.target_cache} tokens, the draft's {now.draft_cache}. After {duration(at)}"
        )
        held += f" plain decoding would have {min(len(self.tokens), int(at / self.clock.plain))}."
        begin = f"Cycle {now.cycle + 1} of {len(self.trace.cycles)}, {now.stage}: "
        if now.stage == "draft":
            proposed = ", ".join(map(name, cycle.drafted)) or "there is no room"
            return f"{begin}the draft model proposes {k} tokens: {proposed}. {held}"
        if now.stage == "verify":
            last = f"a bonus, {name(cycle.token)}" if cycle.bonus else f"the correction {name(cycle.token)}"
            said = f"one forward pass of the target over {k + 1} tokens accepts {cycle.accepted} of {k}"
            return f"{begin}{said}, and adds {last}. {held}"
        ended = " The output ended inside this cycle." if cycle.kept < cycle.accepted + 1 else ""
        said = (
            f"{k - cycle.accepted} rejected tokens leave the target's cache; {cycle.kept} were emitted, {now.emitted}"
        )
        return f"{begin}{said} in all.{ended} {held}"


def ordinal(i: int) -> str:
    return f"{i}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(i % 10 if i // 10 % 10 != 1 else 0, 'th') }"


def cycle_stepper(target: Model, draft: Model, prompt, output: Output, temperature: float = 0.0) -> Panel:
    """Play, or step with the arrow keys, through a run of `speculate(target, prompt, drafters.Model(draft), …)`.

    `temperature` is the run's. A greedy distribution has all its mass on one token, so at temperature 0 the
    picture shows those of temperature 1: the largest bar wins.
    """
    if output.trace is None or not output.trace.cycles:
        raise ValueError("output has no cycles to step through: give what speculate returned")
    p, q = distributions_along(target, draft, prompt, output, temperature or 1.0)
    longest, walk = max(len(cycle.drafted) for cycle in output.trace.cycles), steps(output.trace)
    decode = target.decode if target.tokenizer else None
    asked = prompt if isinstance(prompt, str) else decode(list(prompt)) if decode else " ".join(map(str, prompt))
    here = Clock("this run, timed here", plain_step(target, prompt, max(2, len(output.tokens)), dict(ignore_eos=True)))
    clocks = {"recorded on an H200": recorded_clock(), "this run": here}

    def draw(step: int, token: int, clock: Clock) -> tuple[str, str]:
        return CyclePicture(output, p, q, decode, asked, clock).at(walk[step], token)

    looked_at = {"the target's own": 0} | {ordinal(i): i for i in range(1, longest + 2)}
    menus = {"token": choice("p and q of token", looked_at), "clock": choice("times", clocks)}
    return Panel(draw, player("step", len(walk) - 1, interval=900) | menus)


def two_lanes(output: Output, decode: Callable[[list[int]], str], clock: Clock | None = None, tokens=14) -> Drawing:
    """Plain against speculative decoding of the same tokens, in wall-clock time: the first `tokens` of a real run.

    Which tokens were accepted is the run's; how long a pass takes is the clock's (without one: recorded on an H200).
    """
    clock, cycles, count = clock or recorded_clock(), [], 0
    for cycle in output.trace.cycles:
        if count and count + cycle.kept > tokens:
            break
        cycles, count = [*cycles, cycle], count + cycle.kept
    took, plainly = sum(sum(clock.times(cycle)) for cycle in cycles), count * clock.plain
    scale, passes = 720 / max(plainly, took), sum(len(cycle.drafted) for cycle in cycles)
    c = Canvas(height=270)
    c.text(14, 24, f"The same {count} tokens, in time ({clock.name})", 14, bold=True)
    c.text(20, 56, f"plain: {count} passes of the target, {duration(plainly)}", 13, bold=True)
    title = f"speculative: {len(cycles)} passes of the target and {passes} of the draft model, {duration(took)}"
    c.text(20, 136, title, 13, bold=True)
    step, words = clock.plain * scale, [visible(decode([token])) for cycle in cycles for token in cycle.tokens]
    for i, word in enumerate(words):
        c.box(20 + i * step, 64, step, 30, word, P_COLOUR, 0.3, 11, line=P_COLOUR)
    x = 20
    for cycle in cycles:
        draft, verify, rest = (seconds * scale for seconds in clock.times(cycle))
        for i in range(len(cycle.drafted)):
            one = draft / len(cycle.drafted)
            c.rect(x + i * one, 144, one, 30, Q_COLOUR, INK, 0.85, 1, thick=0.6)
        c.rect(x + draft, 144, verify, 30, P_COLOUR, P_COLOUR, 0.3, 2)
        size, end = (draft + verify + rest - 4) / max(1, len(cycle.tokens)), x + draft + verify + rest
        c.line(end, 144, end, 190, SOFT, 1, "2 2")  # what the pass gave appears when it ends
        for i, (token, kind) in enumerate(zip(cycle.tokens, cycle.kinds, strict=True)):
            word = SIGNS[kind] + visible(decode([token]))
            word = word if text_width(word, 11) < size else SIGNS[kind]
            c.box(x + 3 + i * size, 180, size - 2, 24, word, COLOURS[kind], 0.25, 11, line=COLOURS[kind])
        x = end
    names = {"accepted": "✓ accepted", "corrected": "→ correction", "bonus": "+ bonus"}
    passes_key = [(Q_COLOUR, "a draft pass"), (P_COLOUR, "a pass of the target")]
    c.key(20, 232, [*passes_key, *((KINDS[kind], name) for kind, name in names.items())], 12)
    note = f"The tokens are this run's, the times of the passes are recorded. Here: {plainly / took:.2f} times as fast."
    c.text(20, 256, note, 12, colour=SOFT)
    return c.drawing(
        f"Two lanes in time, {clock.name}: plain decoding takes {count} passes and {duration(plainly)} for {count} "
        f"tokens; speculative decoding takes {len(cycles)} target passes, {passes} draft passes and {duration(took)}: "
        f"{plainly / took:.2f} times as fast."
    )
