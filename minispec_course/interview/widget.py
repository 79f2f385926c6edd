"""A dialogue in a notebook, by keyboard alone: Enter replies, Shift+Enter breaks the line, Tab walks to the buttons.

Colours are those of JupyterLab's theme, through its CSS variables.
"""

from collections.abc import Callable
from html import escape
from pathlib import Path

import anywidget
import ipywidgets
import traitlets

from .dialogue import OWN, Console, Flow
from .question import LEVELS, Question
from .session import SINKS, Mark, Said, Session, Talk
from .sheets import to_html

WIDE = ipywidgets.Layout(width="100%")
HERE = Path(__file__).parent
STYLE = f"<style>{(HERE / 'widget.css').read_text(encoding='utf-8')}</style>"


class Field(anywidget.AnyWidget):
    """A text area in which Enter submits: then `on_enter` is called with the text."""

    _esm = HERE / "field.js"
    value = traitlets.Unicode().tag(sync=True)
    disabled = traitlets.Bool(False).tag(sync=True)

    def __init__(self, on_enter: Callable[[str], None]) -> None:
        super().__init__()
        self._on_enter = on_enter
        self.on_msg(lambda _, content, __: self.enter(content))

    def enter(self, content: object) -> None:
        """What the browser sends with Enter; a field that is done with answers nothing."""
        if isinstance(content, dict) and isinstance(content.get("entered"), str) and not self.disabled:
            self._on_enter(content["entered"])


class Clock(anywidget.AnyWidget):
    """The time; and each time that `step` goes up, the field of the dialogue around it gets the keyboard."""

    _esm = HERE / "clock.js"
    used = traitlets.Float(0.0).tag(sync=True)  # seconds, when it was last told
    minutes = traitlets.Float(0.0).tag(sync=True)
    running = traitlets.Bool(False).tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)


class Page(Console):
    """What is said, as HTML. A new page keeps what was said since the last reply."""

    whole = True

    def __init__(self):
        self.parts: list[str] = []
        self.replied = 0

    def say(self, text: str = "", first: str = "", style: str = "") -> None:
        self.parts.append(f'<div class="drill-line {style}"><span>{escape(first)}</span><p>{escape(text)}</p></div>')

    def show(self, markdown: str) -> None:
        self.parts.append(f'<div class="drill-report">{to_html(markdown)}</div>')

    def new_page(self) -> None:
        self.parts, self.replied = self.parts[self.replied :], 0


class Sitting(ipywidgets.VBox):
    """A Session to type through. `session.results` holds what was answered so far."""

    def __init__(self, session: Session, flow: Callable[[Console, Session], Flow]) -> None:
        self.session, self.page = session, Page()
        self._flow = flow(self.page, session)
        self._text = ipywidgets.HTML(layout=WIDE)
        self._field, self._clock = Field(self.reply), Clock(minutes=session.minutes)
        names = {"reply": lambda: self.reply(self._field.value), "skip": lambda: self.reply("s")}
        self._buttons = [ipywidgets.Button(description=name) for name in (*names, "end")]
        for button, press in zip(self._buttons, (*names.values(), lambda: self.reply("q")), strict=True):
            button.on_click(lambda _, press=press: press())
        parts = [ipywidgets.HTML(STYLE), self._clock, self._text, self._field, ipywidgets.HBox(self._buttons)]
        super().__init__(parts)
        self.add_class("minispec-drill")
        next(self._flow)
        self._show()

    def reply(self, text: str) -> None:
        """A reply, as if it were typed. At the end of the dialogue everything is switched off."""
        self._field.value = ""
        self.page.replied = len(self.page.parts)
        if text.strip():
            self.page.say(text, style=OWN)
        try:
            self._flow.send(text)
        except StopIteration:
            for part in (self._field, *self._buttons):
                part.disabled = True
        self._show()
        self._clock.step += 1

    def _show(self) -> None:
        self._text.value = f'<div role="log">{"".join(self.page.parts)}</div>'
        self._clock.used, self._clock.running = 60 * self.session.elapsed, self.session.running


# The candidates of lesson 17, and of how many levels, from the lowest, each makes all points.
OURS = {"walk-me-through": {"Ada": 1, "Ben": 2, "Cleo": 3}}


class Grading(ipywidgets.VBox):
    """Grade answers before you see how we would: the rubric of one question, a tab for each candidate.

    `boxes["Ben"]` holds the checkboxes of one candidate; `compare()` prints your levels beside ours.
    """

    def __init__(self, question: Question) -> None:
        self.talk, self.ours = Talk(question), OURS[question.id]
        # Follow-ups were not asked, and whether an answer raises is not counted.
        self._lines = {i: box for i, box in enumerate(self.talk.rubric) if box.group in (*LEVELS, SINKS)}
        self.boxes: dict[str, list[ipywidgets.Checkbox]] = {}
        for name in self.ours:
            texts = [f"{box.group}: {box.shown}" for box in self._lines.values()]
            self.boxes[name] = [ipywidgets.Checkbox(description=text, indent=False, layout=WIDE) for text in texts]
        pages = [ipywidgets.VBox(boxes, layout=WIDE) for boxes in self.boxes.values()]
        super().__init__([ipywidgets.HTML(STYLE), ipywidgets.Tab(pages, titles=tuple(self.ours))])
        self.add_class("minispec-drill")

    def said(self, name: str) -> Said:
        """Your grading of one candidate."""
        ticked = zip(self._lines, self.boxes[name], strict=True)
        return Said(self.talk, {i: Mark() for i, box in ticked if box.value})

    def our_grading(self, name: str, also: str = "") -> Said:
        """Ours, had the candidate also said this."""
        levels = LEVELS[: self.ours[name]]
        return Said(self.talk, {i: Mark() for i, b in self._lines.items() if b.group in levels or b.text == also})

    def compare(self) -> None:
        """Print your grades beside ours; where you have graded a candidate, also the points that we see differently."""
        for name in self.ours:
            yours, ours = self.said(name), self.our_grading(name)
            made, said = ours.boxes(*LEVELS), yours.boxes(*LEVELS, SINKS)
            mine = f"{len(yours.boxes(*LEVELS))} points, {yours.level}" if said else "not graded"
            print(f"{name:5} you: {mine:20} we: {len(made)} points, {ours.level}")
            for point in [*made, *said] if said else ():
                if (point in made) != (point in said):
                    print(f"      {'we also heard' if point in made else 'we did not hear'}: {point}")
