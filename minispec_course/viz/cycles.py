"""The draft–verify cycle in pictures: a stepper through a run, and where the time of a cycle goes.

Everything shown comes from a real run (labs/cycles.py).
"""

from collections.abc import Callable

from minispec.load.model import Model
from minispec.output import Output
from minispec.trace import Cycle

from ..labs.cycles import DISCARDED, CycleParts, Step, chips, steps
from ..labs.presets import counted, duration
from .drawing import INK, SOFT, Canvas, Drawing, say, text_width
from .panel import Panel, player
from .style import GREY, KINDS, PALETTE

# A sign and a border for each kind, for eyes and printers that see no colour.
SIGNS = {"accepted": "✓", "corrected": "→", "bonus": "+", DISCARDED: "✗", "drafted": "?"}
BORDERS = {"accepted": "", "corrected": "6 2", "bonus": "3 2", DISCARDED: "1 2", "drafted": "1 0"}
COLOURS = {**KINDS, DISCARDED: GREY, "drafted": GREY}
P_COLOUR, Q_COLOUR = PALETTE[0], PALETTE[5]
LEFT, RIGHT, LINE = 14, 386, 25

# ---- where the time of a cycle goes ----------------------------------------------------------------------------------


def cycle_over_steps() -> Drawing:
    """A recorded cycle as a bar of its parts, above the plain decoding steps that emit as many tokens."""
    run, left, y = CycleParts.recorded(), 20, 50
    scale = 590 / max(run.tokens, run.cycle / run.plain)
    c = Canvas(height=196)
    c.text(14, 24, "One cycle, and the plain decoding steps that emit as many tokens", 14, bold=True)
    draft, verify, host = (part / run.plain * scale for part in (run.draft, run.verify, run.host))
    c.text(left, y, f"{run.name}, k = {run.k}: k·c = {run.k} · {run.draft / run.k / run.plain:.2f}", 13)
    for i in range(run.k):
        one = draft / run.k
        c.rect(left + i * one, y + 8, one, 30, Q_COLOUR, INK, 0.85, 1, thick=0.6, title=f"draft token {i + 1}")
    v, x = f"verify, v = {run.verify / run.plain:.2f}", left + draft + verify
    c.box(left + draft, y + 8, verify, 30, v, P_COLOUR, 0.35, 13, line=P_COLOUR)
    c.rect(x, y + 8, host, 30, GREY, None, 0.6, 0, title=f"host: {1e3 * run.host:.3g} ms")
    c.text(x + host + 8, y + 28, duration(run.cycle), 13, bold=True)
    c.text(left, y + 62, f"plain steps for E[N] = {run.tokens:.2f} tokens", 13)
    x = left
    for i in range(int(run.tokens) + 1):
        wide = min(1.0, run.tokens - i) * scale
        c.box(x, y + 70, wide, 30, "1" if wide == scale else "", P_COLOUR, 0.35, 13, line=P_COLOUR)
        x += wide
    c.text(x + 8, y + 90, f"{duration(run.tokens * run.plain)}: {run.speedup:.2f} ×", 13, bold=True)
    key = [(Q_COLOUR, "drafting one token"), (P_COLOUR, "a pass of the target"), (GREY, "host: sampling, Python")]
    c.key(left, c.height - 14, key)
    return c.drawing(
        f"{run.name}: a cycle of {run.k} draft passes and one verify pass takes {duration(run.cycle)} and emits "
        f"{run.tokens:.2f} tokens, for which plain decoding takes {duration(run.tokens * run.plain)}: "
        f"{run.speedup:.2f} times as fast."
    )


# ---- the stepper -----------------------------------------------------------------------------------------------------


class CyclePicture:
    """One run; `at` draws one step of it.

    What is yet to come keeps its room from the beginning, so the picture has one height at every step.
    """

    def __init__(self, output: Output, show: Callable[[int], str], prompt: str) -> None:
        self.trace, self.show = output.trace, show
        self.prompt = prompt if text_width(prompt) < 330 else "…" + prompt[-36:]
        self.tokens = [chip for cycle in self.trace.cycles for chip in chips(cycle, "rewind")]

    def at(self, now: Step) -> tuple[str, str]:
        cycle, c = self.trace.cycles[now.cycle], Canvas(0, 400, 1.3)
        self._this_cycle(c, cycle, now, 68)
        c.height = self._sentence(c, now, 164)
        words = self._told(cycle, now)
        return c.svg(words), words

    def _sentence(self, c: Canvas, now: Step, y: float) -> float:
        """The counts, and the output so far after its prompt. Where it would end, once it is complete."""
        per_pass = f"{now.emitted / now.passes:.2f}" if now.passes else "–"
        counts = f"{now.emitted} tokens from {now.passes} passes of the target, {per_pass} per pass"
        c.text(LEFT, 24, f"cycle {now.cycle + 1} of {len(self.trace.cycles)} · {now.stage}", 15, bold=True)
        c.text(LEFT, 44, counts, 12.5).text(LEFT, y, self.prompt, 13, bold=True)
        fresh = now.emitted - (self.trace.cycles[now.cycle].kept if now.stage == "rewind" else 0)
        x, y = LEFT + 1.08 * text_width(self.prompt, 13) + 6, y
        for i, (token, kind) in enumerate(self.tokens):
            wide = self._wide(token, kind)
            x, y = (LEFT, y + LINE) if x + wide > RIGHT else (x, y)
            if i < now.emitted:
                self._chip(c, x, y - 15, token, kind, 0.30 if i >= fresh else 0.10)
            x += wide + 3
        return y + 20

    def _wide(self, token: int, kind: str) -> float:
        return text_width(f"{SIGNS[kind]} {self.show(token)}", 12.5) + 9

    def _chip(self, c: Canvas, x: float, y: float, token: int, kind: str, shade: float = 0.25) -> None:
        wide, thick = self._wide(token, kind), 2.5 if kind == "corrected" else 1.5
        c.rect(x, y, wide, 20, COLOURS[kind], COLOURS[kind], shade, 4, BORDERS[kind], thick, kind)
        c.text(x + 4, y + 14.5, f"{SIGNS[kind]} {self.show(token)}", 12.5)
        if kind == DISCARDED:
            c.line(x + 14, y + 10, x + wide - 4, y + 10, INK, 1)

    def _this_cycle(self, c: Canvas, cycle: Cycle, now: Step, y: float) -> None:
        c.text(LEFT, y + 4, "this cycle", 13, bold=True)
        x, y = LEFT, y + 14
        for token, kind in chips(cycle, now.stage):
            self._chip(c, x, y, token, kind)
            x += self._wide(token, kind) + 4
        kinds = ("drafted", "accepted", DISCARDED, "corrected", "bonus")
        c.text(LEFT, y + 46, "  ".join(f"{SIGNS[kind]} {kind}" for kind in kinds), 12, colour=SOFT)

    def _told(self, cycle: Cycle, now: Step) -> str:
        name = lambda token: f"“{self.show(token)}”"  # noqa: E731
        k, begin = len(cycle.drafted), f"Cycle {now.cycle + 1} of {len(self.trace.cycles)}, {now.stage}: "
        if now.stage == "draft":
            proposed = ", ".join(map(name, cycle.drafted)) or "there is no room"
            return f"{begin}the draft model proposes {k} tokens: {proposed}."
        if now.stage == "verify":
            last = f"a bonus, {name(cycle.token)}" if cycle.bonus else f"the correction {name(cycle.token)}"
            said = f"one forward pass of the target over {k + 1} tokens accepts {cycle.accepted} of {k}"
            return f"{begin}{said}, and adds {last}."
        ended = " The output ended inside this cycle." if cycle.kept < cycle.accepted + 1 else ""
        gone = counted(k - cycle.accepted, "rejected token")
        return f"{begin}the caches drop {gone}; {now.emitted} tokens have been emitted so far.{ended}"


def cycle_stepper(target: Model, prompt, output: Output) -> Panel:
    """Play, or step with the arrow keys, through a run of `speculate(target, prompt, drafters.Model(draft), …)`.

    It opens at a verdict in the middle of the run that accepts some tokens and corrects one.
    """
    if output.trace is None or not output.trace.cycles:
        raise ValueError("output has no cycles to step through: give what speculate returned")
    cycles, walk = output.trace.cycles, steps(output.trace)
    asked = prompt if isinstance(prompt, str) else target.decode(list(prompt)) if target.tokenizer else ""
    picture = CyclePicture(output, say(target), asked)
    mixed = [i for i, cycle in enumerate(cycles) if 0 < cycle.accepted < len(cycle.drafted) and i >= len(cycles) // 2]
    start = 3 * mixed[0] + 1 if mixed else len(walk) - 1  # three stages per cycle; the second is the verdict
    return Panel(lambda step: picture.at(walk[step]), player("step", len(walk) - 1, 900, start))
