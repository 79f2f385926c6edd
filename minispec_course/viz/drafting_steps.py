"""Which hidden state meets which token: EAGLE step by step, MTP alike, and DFlash filling a block at once.

The tokens are those that real drafters proposed; the arrows are how each of them is built.
"""

from collections.abc import Mapping, Sequence

from minispec.drafters import Drafter
from minispec.load.model import Model
from minispec.speculate import speculate

from .drawing import SOFT, Canvas, say
from .panel import Panel, choice, player
from .style import GREY, KINDS, PALETTE

STATE, OWN, TOKEN, BLANK = PALETTE[4], PALETTE[5], KINDS["accepted"], GREY
SHOWN = 3  # tokens of the prompt that are shown, with their features
BLOCK, STEPS = "DFlash", "EAGLE"


def first_draft(target: Model, drafter: Drafter, prompt, k: int) -> list[int]:
    """The chain that a drafter proposes first after a prompt: of a tree, the path through the first children."""
    cycle = speculate(target, prompt, drafter, k, k + 2, temperature=0, ignore_eos=True).trace.cycles[0]
    if cycle.parents is None:
        return cycle.drafted
    path, at = [], -1
    while at in cycle.parents:
        at = cycle.parents.index(at)
        path.append(cycle.drafted[at])
    return path


class _Board:
    """Columns, one per token: those that the target has emitted, then those that are proposed."""

    def __init__(self, words: Sequence[str], drafted: Sequence[str]) -> None:
        self.words, self.drafted, self.n = list(words)[-SHOWN:], list(drafted), min(SHOWN, len(words))
        self.wide = 640 / (self.n + len(self.drafted))
        self.c = Canvas(height=330)

    def at(self, i: float) -> float:
        return 100 + (i + 0.5) * self.wide

    def box(self, i: int, y: float, words: str, colour: str, shade: float = 0.3, fill: bool = True, **look) -> None:
        left, (tall, size) = self.at(i) - self.wide / 2 + 3, (34, 10.5) if y == GIVEN else (30, 12)
        self.c.box(left, y, self.wide - 6, tall, words, colour if fill else None, shade, size, line=colour, **look)


TOKENS, STATES, GIVEN, PREDICTS = 82, 150, 222, 284  # where the rows of the board begin


def drafting_steps_svg(way: str, words: Sequence[str], drafted: Sequence[str], step: int) -> tuple[str, str]:
    """`words` are the last tokens that the target has emitted, `drafted` what is proposed after them. As SVG, in words.

    Step 0 shows what the target left; EAGLE then has a step per draft token, DFlash a single one.
    """
    b, last = _Board(words, drafted), len(drafted) if way == STEPS else 1
    b.c.text(14, 24, f"{way}: step {step} of {last}", 15, bold=True)
    for y, name in ((67, "position"), (103, "token"), (171, "state"), (243, "given"), (301, "predicts")):
        b.c.text(14, y, name, 13, bold=True)
    for i in range(b.n + len(drafted)):
        place = i - b.n + 2  # the target has processed position t, and t + 1 was just emitted
        b.c.text(b.at(i), 66, f"t{place:+d}" if place else "t", 12, "middle", colour=SOFT)
    for i, word in enumerate(b.words):
        b.box(i, TOKENS, word, TOKEN)
        if i < b.n - 1:  # the last token was emitted, but the target has not processed it
            b.box(i, STATES, f"g{_low(i - b.n + 2)}", STATE, 0.4)
            b.c.arrow(b.at(i), 113, b.at(i), 148)
    if way != STEPS or step < 2:
        b.c.text(b.at(b.n - 1), 170, "not yet", 11.5, "middle", colour=SOFT)
    told = (_eagle if way == STEPS else _dflash)(b, step)
    return b.c.svg(told), told


def _eagle(b: _Board, step: int) -> str:
    """Each step pairs a state with the token after it; from the second on, the state is the drafter's own output."""
    given = [b.words[-1], *b.drafted]
    for s in range(1, step + 1):
        i, new = b.n - 2 + s, s == step  # the column of the given token
        state, colour = (f"g{_low(0)}", STATE) if s == 1 else (f"f{_low(s - 2)}", OWN)
        b.box(i, GIVEN, f"{state}, {given[s - 1]}", colour, 0.45 if new else 0.2, thick=2 if new else 1)
        if s > 1:  # the output of the step before, where the target's feature is missing
            b.box(i - 1, STATES, state, OWN)
            b.c.arrow(b.at(i - 1) + 6, 221, b.at(i - 1) + 6, 182, OWN, 2)
        b.c.arrow(b.at(i - 1) + 20, 181, b.at(i) - 8, 220, colour, 2)
        b.c.arrow(b.at(i), 257, b.at(i + 1) - b.wide * 0.2, 284, TOKEN, 2)
        b.box(i + 1, PREDICTS, given[s], TOKEN, 0.35 if new else 0.15)
        if not new:  # it is the next step's token
            b.box(i + 1, TOKENS, given[s], TOKEN, 0.12, dash="3 2")
    if step == 0:
        return f"The target has left features up to the position before the last token {given[0]}."
    own = f"f{_low(step - 2)}, its own output of step {step - 1}, in place of g{_low(step - 1)},"
    state = "the target's own feature" if step == 1 else own
    return (
        f"EAGLE, step {step} of {len(b.drafted)}: {state} meets the token after it, {given[step - 1]}, and predicts "
        f"{given[step]}. One run of the layer per token, one after another."
    )


def _dflash(b: _Board, step: int) -> str:
    """The last token and blanks go in together; every blank gets its token in the same run."""
    b.box(b.n - 1, GIVEN, b.words[-1], TOKEN)
    for i in range(len(b.drafted)):
        b.box(b.n + i, GIVEN, "blank", BLANK, fill=False, dash="2 2")
    left, right = b.at(b.n - 1) - b.wide / 2, b.at(b.n + len(b.drafted) - 1) + b.wide / 2
    b.c.rect(left, 214, right - left, 50, None, OWN, thick=2, round=6)
    for i in range(b.n - 1):
        b.c.arrow(b.at(i), 181, left - 3, 232, STATE, 1.5)
    for i, word in enumerate(b.drafted):
        b.c.arrow(b.at(b.n + i), 265, b.at(b.n + i), 283, TOKEN, 2)
        b.box(b.n + i, PREDICTS, word, TOKEN, 0.35)
    return (
        f"DFlash, one step: the last token and {len(b.drafted)} blanks attend to one another and to the context's "
        f"features, and all blanks are filled in one run: {', '.join(b.drafted)}."
    )


def _low(i: int) -> str:
    """The position t + i as an index below the line."""
    return "ₜ" + "".join({"-": "₋", "+": "₊"}.get(c) or chr(0x2080 + int(c)) for c in f"{i:+d}" if i)


def drafting_steps(target: Model, prompt: str, drafters: Mapping[str, Drafter], k: int = 5) -> Panel:
    """Step through the first draft of each drafter; those named DFlash fill a block, all others step as EAGLE does."""
    show = say(target)
    words = [show(token) for token in target.encode(prompt)[-SHOWN:]]
    drafts = {name: [show(token) for token in first_draft(target, one, prompt, k)] for name, one in drafters.items()}

    def draw(step: int, drafter: str) -> tuple[str, str]:
        way = BLOCK if BLOCK in drafter else STEPS
        most = len(drafts[drafter]) if way == STEPS else 1
        return drafting_steps_svg(way, words, drafts[drafter], min(step, most))

    return Panel(draw, {"drafter": choice("drafter", list(drafters))} | player("step", k, 1200, 3))
