"""The drill and the mock in a notebook. Enter submits an answer, Tab walks, Space ticks, Enter presses a button.

Every step takes the keyboard along: to the field, to the first box of the rubric, or to the one button that leads on
and never goes away. Colours are those of JupyterLab's theme, through its CSS variables.
"""

import time
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path

import anywidget
import ipywidgets
import traitlets

from .coding import Code
from .mock_interview import Interview, keep, report
from .question import LEVELS, Question
from .session import SINKS, Box, Computed, Said, Session, Talk, summary
from .sheets import to_html
from .terminal import TITLES, when

WIDE = ipywidgets.Layout(width="100%")
HERE = Path(__file__).parent
STYLE = f"<style>{(HERE / 'widget.css').read_text(encoding='utf-8')}</style>"


class Field(anywidget.AnyWidget):
    """A text area in which Enter submits: then `on_enter` is called, with `value` up to date."""

    _esm = HERE / "field.js"
    value = traitlets.Unicode().tag(sync=True)
    placeholder = traitlets.Unicode().tag(sync=True)
    rows = traitlets.Int(3).tag(sync=True)
    disabled = traitlets.Bool(False).tag(sync=True)

    def __init__(self, on_enter: Callable[[], None], placeholder: str = "", rows: int = 3) -> None:
        super().__init__(placeholder=placeholder, rows=rows)
        self._on_enter = on_enter
        self.on_msg(lambda _, content, __: self.enter(content))

    def enter(self, content: object) -> None:
        """What the browser sends with Enter; a field that is done with answers nothing."""
        if isinstance(content, dict) and isinstance(content.get("entered"), str) and not self.disabled:
            self.value = content["entered"]
            self._on_enter()


class Clock(anywidget.AnyWidget):
    """The time; and each time that `step` goes up, the first field of the drill around it gets the keyboard."""

    _esm = HERE / "clock.js"
    used = traitlets.Float(0.0).tag(sync=True)  # seconds, when it was last told
    minutes = traitlets.Float(0.0).tag(sync=True)
    running = traitlets.Bool(True).tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    made = traitlets.Float(0.0).tag(sync=True)


def html(text: str, name: str = "", status: bool = False) -> ipywidgets.HTML:
    """A paragraph of plain text; one with `status` is read aloud by screen readers when it appears."""
    role = ' role="status"' if status else ""
    return ipywidgets.HTML(f'<div class="{name}"{role}>{escape(text)}</div>', layout=WIDE)


def button(name: str, then: Callable[[], None], tooltip: str = "", main: bool = False) -> ipywidgets.Button:
    made = ipywidgets.Button(description=name, tooltip=tooltip, button_style="primary" if main else "")
    made.on_click(lambda _: then())
    return made


def tick_list(rubric: Iterable[Box]) -> tuple[list[ipywidgets.Checkbox], list[ipywidgets.Widget]]:
    """A box for every line of a rubric; and the same with a heading for each group."""
    boxes, parts, group = [], [], None
    for box in rubric:
        if box.group != group:
            group = box.group
            parts.append(ipywidgets.HTML(f"<b>{escape(TITLES.get(group, group))}</b>"))
        boxes.append(ipywidgets.Checkbox(description=box.shown, indent=False, layout=WIDE))
        parts.append(boxes[-1])
    return boxes, parts


class Sitting(ipywidgets.VBox):
    """A Session to click or type through. `session.results` holds what was answered so far."""

    def __init__(self, session: Session, out: Path | None = None) -> None:
        self.session, self.out = session, out
        self._head, self._body = ipywidgets.HTML(layout=WIDE), ipywidgets.VBox(layout=WIDE)
        self._next = button("answered", lambda: self._do_next(), main=True)
        self._skip = button("skip", self.skip, "neither right nor wrong: it comes again")
        self._end = button("end", self.end, "what you have answered is kept")
        self._texts: list[str] = []
        self._field: ipywidgets.Widget | None = None
        self._boxes: list[ipywidgets.Checkbox] = []
        self._clock = Clock(made=time.time(), minutes=session.minutes)
        buttons = ipywidgets.HBox([self._next, self._skip, self._end])
        super().__init__([ipywidgets.HTML(STYLE), self._head, self._clock, self._body, buttons])
        self.add_class("minispec-drill")
        self.ask()

    # ---- the steps: each shows something, and says what the button does then

    def _show(self, name: str, then, *parts: ipywidgets.Widget, skip: bool = True) -> None:
        self._body.children = parts
        self._next.description, self._do_next, self._next.disabled = name, then, False
        self._skip.disabled = not skip
        self._clock.used, self._clock.running = 60 * self.session.elapsed, self.session.running
        self._clock.step += 1

    def ask(self) -> None:
        """The current item begins; at the end, the summary."""
        item, session = self.session.current, self.session
        if item is None:
            return self.end()
        session.start_clock()
        notice = f" · {session.schedule.notice}" if session.schedule and session.schedule.notice else ""
        head = f"{session.place + 1} of {len(session.items)} · {item.topic}{notice}"
        self._head.value = f'<div class="drill-head">{escape(head)}</div>'
        self._texts = []
        if isinstance(item, Code):
            return self._ask_code()
        return self._ask_aloud() if isinstance(item, Talk) else self._ask_number()

    def _ask_aloud(self) -> None:
        """The question, then its follow-ups, one at a time."""
        asked = self.session.current.asks[len(self._texts)]
        self._field = Field(self._answered, "answer aloud, or type: Enter submits, Shift+Enter breaks the line")
        self._show("answered", self._answered, html(asked, "drill-ask", status=True), self._field)

    def _answered(self) -> None:
        self._field.disabled = True  # a second Enter comes too late
        self._texts.append(self._field.value)
        more = len(self._texts) < len(self.session.current.asks)
        self._ask_aloud() if more else self._reveal()

    def _reveal(self) -> None:
        """The rubric beside one's own words: a box for everything that could have been said."""
        if isinstance(self.session, Interview):
            self.session.stop_clock()
        item = self.session.current
        said = zip(["", *(f"{asked} " for asked in item.asks[1:])], self._texts, strict=True)
        own = [html(f"{asked}You wrote: {text}", "drill-own") for asked, text in said if text.strip()]
        spoken = [html(f"In short: {item.question.spoken}", "drill-short", status=True)] if item.question else []
        self._boxes, parts = tick_list(item.rubric)
        self._show("grade", self._grade, html(item.asks[0], "drill-ask"), *own, *spoken, *parts)

    def _grade(self) -> None:
        said = self.session.ticked({i for i, box in enumerate(self._boxes) if box.value}, self._texts)
        kind = ""
        if isinstance(said, Said):
            kind = {len(said.item.levels): "drill-right", 0: "drill-wrong"}.get(said.reached, "")
        for box in self._boxes:
            box.disabled = True
        result = html(f"{said.level}.{when(self.session, said)}", kind, status=True)
        self._show("next", self.ask, *self._body.children, result, skip=False)

    def _ask_code(self, said: str = "") -> None:
        item = self.session.current
        parts = [html(item.task, "drill-ask", status=not said), html(said, "drill-own", status=True)]
        go_on = button("go on to the questions", self._ask_aloud)
        self._show("check", self._check, *parts[: 1 + bool(said)], go_on)

    def _check(self) -> None:
        said = self.session.current.check()
        self._ask_aloud() if self.session.current.outcome == "right" else self._ask_code(said)

    def _ask_number(self, again: str = "") -> None:
        item = self.session.current
        self._field = Field(self._compute, "a number, or a sum such as 2*80*8*128", rows=1)
        asks = [html(item.asks[0], "drill-ask", status=not again), *([html(again, status=True)] if again else [])]
        self._show("answered", self._compute, *asks, self._field)

    def _compute(self) -> None:
        if not self.session.can_read(self._field.value):
            return self._ask_number("That is no number. Give only the number, or a sum; nothing if you do not know.")
        result: Computed = self.session.computed(self._field.value)
        lines = "".join(f"<div><code>{escape(line)}</code></div>" for line in result.solution)
        verdict = html(result.verdict, "drill-right" if result.right else "drill-wrong", status=True)
        self._field.disabled = True
        parts = [*self._body.children, verdict, ipywidgets.HTML(lines, layout=WIDE)]
        self._show("next", self.ask, *parts, skip=False)
        self._next.focus()

    # ---- the other two buttons

    def skip(self) -> None:
        self.session.skip()
        self.ask()

    def end(self) -> None:
        """The summary; of an interview, the page that is kept."""
        self._head.value = ""
        self.session.stop_clock()
        text = "\n".join(summary(self.session))
        if isinstance(self.session, Interview):
            text = report(self.session)
            try:
                text += f"\nKept as {keep(self.session, self.out)}.\n"
            except OSError as error:
                text += f"\nThis page is not kept: {error}.\n"
        page = ipywidgets.HTML(f'<div role="status" class="drill-report">{to_html(text)}</div>', layout=WIDE)
        self._show("done", lambda: None, page, skip=False)
        self._next.disabled = self._end.disabled = True


class Begin(ipywidgets.VBox):
    """A button: nothing is asked and no clock runs before it. `begin()` presses it, `sitting` is what follows."""

    def __init__(self, make: Callable[[], Session], says: str, out: Path | None = None) -> None:
        self._make, self._out, self.sitting = make, out, None
        super().__init__([html(says), button("begin", self.begin, main=True)])

    def begin(self) -> None:
        self.sitting = Sitting(self._make(), self._out)
        self.children = [self.sitting]


# The candidates of lesson 17, and of how many levels, from the lowest, each makes all points.
OURS = {"walk-me-through": {"Ada": 1, "Ben": 2, "Cleo": 3}}


class Grading(ipywidgets.VBox):
    """Grade answers before you see how we would: the rubric of one question, a tab for each candidate.

    `boxes["Ben"]` holds the checkboxes of one candidate; `compare()` prints your levels beside ours.
    """

    def __init__(self, question: Question) -> None:
        self.talk, self.ours = Talk(question), OURS[question.id]
        # Follow-ups were not asked, and whether an answer raises is not counted.
        self._places = [i for i, box in enumerate(self.talk.rubric) if box.group in (*LEVELS, SINKS)]
        self.boxes: dict[str, list[ipywidgets.Checkbox]] = {}
        pages = []
        for name in self.ours:
            self.boxes[name], parts = tick_list(self.talk.rubric[i] for i in self._places)
            pages.append(ipywidgets.VBox(parts, layout=WIDE))
        super().__init__([ipywidgets.HTML(STYLE), ipywidgets.Tab(pages, titles=tuple(self.ours))])
        self.add_class("minispec-drill")

    def said(self, name: str) -> Said:
        """Your grading of one candidate."""
        return self.talk.said(i for i, box in zip(self._places, self.boxes[name], strict=True) if box.value)

    def our_grading(self, name: str, also: str = "") -> Said:
        """Ours, had the candidate also said this."""
        levels, rubric = LEVELS[: self.ours[name]], enumerate(self.talk.rubric)
        return self.talk.said(i for i, box in rubric if box.group in levels or box.text == also)

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
