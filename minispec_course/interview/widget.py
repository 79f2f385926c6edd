"""The drill in a notebook. Enter submits an answer, Tab walks, Space ticks, Enter or Space presses a button.

Every step takes the keyboard along: to the field, to the first box of the rubric, or to the one button that leads on
and never goes away. Colours are those of
JupyterLab's theme, through its CSS variables.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from html import escape

import ipywidgets

from .drill import MINUTES, Computed, Said, Session, Talk, choose, start
from .field import Field, Focus
from .practice import Choice, Chosen, Record, overview, practise
from .question import LEVELS, Question
from .questions import topics
from .schedule import Schedule, place
from .summary import explained, grade_of, summary
from .terminal import TITLES, when

WIDE = ipywidgets.Layout(width="100%")
STYLE = """<style>
.minispec-drill { color: var(--jp-ui-font-color1, inherit); border-left: 3px solid var(--jp-brand-color1, #1976d2) }
.minispec-drill { padding: 4px 12px; line-height: 1.5 }
.minispec-drill .widget-html-content { line-height: 1.5 }
.minispec-drill .drill-head { color: var(--jp-ui-font-color2, inherit) }
.minispec-drill .drill-ask { font-size: 1.15em; font-weight: 600; max-width: 50em }
.minispec-drill .drill-short { background: var(--jp-layout-color2, transparent); padding: 6px 10px; max-width: 55em }
.minispec-drill .drill-right { color: var(--jp-success-color1, #388e3c); font-weight: 600 }
.minispec-drill .drill-wrong { color: var(--jp-error-color1, #d32f2f); font-weight: 600 }
.minispec-drill code { color: inherit; background: var(--jp-layout-color2, transparent) }
.minispec-drill .widget-checkbox { height: auto }
.minispec-drill .widget-checkbox label { display: flex; align-items: baseline }
.minispec-drill .widget-checkbox label { white-space: normal; line-height: 1.4; padding: 2px 0; max-width: 55em }
.minispec-drill .widget-button:focus { outline: 2px solid var(--jp-brand-color1, #1976d2); outline-offset: 1px }
</style>"""


def html(text: str, name: str = "", status: bool = False) -> ipywidgets.HTML:
    """A paragraph of plain text; one with `status` is read aloud by screen readers when it appears."""
    role = ' role="status"' if status else ""
    return ipywidgets.HTML(f'<div class="{name}"{role}>{escape(text)}</div>', layout=WIDE)


def bullets(lines: Iterable[str]) -> ipywidgets.HTML:
    """Lines of Markdown, as plain as our summaries and reports write them."""
    parts = []
    for line in lines:
        text = escape(line.lstrip("#->` "))
        tag = {"#": "h3", "-": "li", ">": "blockquote"}.get(line[:1], "div")
        parts.append(f"<{tag}>{text}</{tag}>" if text else "")
    return ipywidgets.HTML(f'<div role="status">{"".join(parts)}</div>', layout=WIDE)


class Sitting(ipywidgets.VBox):
    """A Session to click or type through. `session.results` holds what was answered so far."""

    def __init__(self, session: Session, bank: dict[str, Question] | None = None) -> None:
        self.session, self.bank = session, bank
        self._head = ipywidgets.HTML(layout=WIDE)
        self._body = ipywidgets.VBox(layout=WIDE)
        self._next = ipywidgets.Button(description="answered", button_style="primary")
        self._skip = ipywidgets.Button(description="skip", tooltip="neither right nor wrong: it comes again")
        self._end = ipywidgets.Button(description="end", tooltip="what you have answered is kept")
        self._next.on_click(lambda _: self._do_next())
        self._skip.on_click(lambda _: self.skip())
        self._end.on_click(lambda _: self.end())
        self._texts: list[str] = []
        self._field: ipywidgets.Widget | None = None
        self._boxes: list[ipywidgets.Checkbox] = []
        self._focus = Focus(made=time.time())
        buttons = ipywidgets.HBox([self._next, self._skip, self._end])
        super().__init__([ipywidgets.HTML(STYLE), self._head, self._body, buttons, self._focus])
        self.add_class("minispec-drill")
        self.ask()

    # ---- the steps: each shows something, and says what the button does then

    def _show(self, button: str, then, *parts: ipywidgets.Widget, skip: bool = True) -> None:
        self._body.children = parts
        self._next.description, self._do_next, self._next.disabled = button, then, False
        self._skip.disabled = not skip
        self._focus.step += 1

    def ask(self) -> None:
        """The current item begins; at the end, the summary."""
        item, session = self.session.current, self.session
        if item is None:
            return self.end()
        subject = f" · {item.question.topic}" if item.question else ""
        head = f"{session.place + 1} of {len(session.items)}{subject}"
        notice = f" · {session.schedule.notice}" if session.schedule and session.schedule.notice else ""
        clock = f"{session.elapsed:.0f} of {session.minutes:g} minutes"
        self._head.value = f'<div class="drill-head">{escape(f"{head} · {clock}{notice}")}</div>'
        self._texts = []
        if isinstance(item, Talk):
            return self._ask_aloud()
        if isinstance(item, Choice):
            return self._ask_choice()
        return self._ask_number()

    def _ask_aloud(self) -> None:
        """The question, then its follow-ups, one at a time."""
        asked = self.session.current.asks
        number = len(self._texts)
        self._field = Field(self._answered, "answer aloud, or type: Enter submits, Shift+Enter breaks the line")
        self._show("answered", self._answered, html(asked[number], "drill-ask", status=True), self._field)

    def _answered(self) -> None:
        self._field.disabled = True  # a second Enter comes too late
        self._texts.append(self._field.value)
        more = len(self._texts) < len(self.session.current.asks)
        self._ask_aloud() if more else self._reveal()

    def _reveal(self) -> None:
        """The rubric: a box for everything that could have been said."""
        item, parts, group = self.session.current, [], None
        parts.append(html(item.asks[0], "drill-ask"))
        parts += [html(f"You wrote: {text}") for text in self._texts if text.strip()]
        parts.append(html(f"In short: {item.question.spoken}", "drill-short", status=True))
        self._boxes = []
        for box in item.rubric:
            if box.group != group:
                group = box.group
                parts.append(ipywidgets.HTML(f"<b>{escape(TITLES.get(group, group))}</b>"))
            self._boxes.append(ipywidgets.Checkbox(description=box.shown, indent=False, layout=WIDE))
            parts.append(self._boxes[-1])
        self._show("grade", self._grade, *parts)

    def _grade(self) -> None:
        said: Said = self.session.ticked({i for i, box in enumerate(self._boxes) if box.value}, self._texts)
        kind = "drill-right" if said.reached == len(said.item.levels) else "drill-wrong" if not said.reached else ""
        result = html(f"{said.level}.{when(self.session, said)}", kind, status=True)
        for box in self._boxes:
            box.disabled = True
        self._show("next", self.ask, *self._body.children, result, skip=False)

    def _ask_number(self, again: str = "") -> None:
        item = self.session.current
        self._field = Field(self._compute, "a number, or a sum such as 2*80*8*128", rows=1)
        asks = [html(item.asks[0], "drill-ask", status=not again), *([html(again, status=True)] if again else [])]
        self._show("answered", self._compute, *asks, self._field)

    def _ask_choice(self) -> None:
        item = self.session.current
        options = [(text, i) for i, text in enumerate(item.options)]
        self._field = ipywidgets.RadioButtons(options=options, value=None, layout=WIDE)
        self._show("answered", self._choose, html(item.prompt, "drill-ask", status=True), self._field)

    def _choose(self) -> None:
        chosen = self.session.note(Chosen(self.session.current, self._field.value))
        self._field.disabled = True
        item = chosen.item
        verdict = "right" if chosen.right else f"wrong: it is {item.options[item.right]}"
        why = "" if chosen.given is None else item.why[chosen.given]
        kind = "drill-right" if chosen.right else "drill-wrong"
        said = [html(verdict, kind, status=True), *([html(why)] if why else [])]
        self._show("next", self.ask, *self._body.children, *said, skip=False)
        self._next.focus()

    def _compute(self) -> None:
        if again := self.session.asks_again(self._field.value):
            return self._ask_number(again)
        result: Computed = self.session.computed(self._field.value)
        self._field.disabled = True
        kind = "drill-right" if result.right else "drill-wrong"
        lines = "".join(f"<div><code>{escape(line)}</code></div>" for line in explained(result.item.number))
        verdict = html(grade_of(result), kind, status=True)
        formula = ipywidgets.HTML(lines, layout=WIDE)
        self._show("next", self.ask, *self._body.children, verdict, formula, skip=False)
        self._next.focus()

    # ---- the other two buttons

    def skip(self) -> None:
        self.session.skip()
        self.ask()

    def end(self) -> None:
        """The summary."""
        self._head.value = ""
        lines = summary(self.session)
        if self.bank:
            record = Record()
            record.note(self.session.results)
            lines += ["", *overview(record, self.session.schedule, self.bank)]
        self._show("done", lambda: None, bullets(lines), skip=False)
        self._next.disabled = self._end.disabled = True


class Drill(ipywidgets.VBox):
    """First what to ask, then the sitting. `drill.begin()` starts it without a click; `drill.sitting` is it."""

    def __init__(
        self,
        bank: dict[str, Question],
        wanted: Sequence[str] = (),
        levels: Sequence[str] = LEVELS,
        minutes: float = MINUTES,
        seed: int | None = None,
    ):
        choose(bank, Schedule(None), minutes, 0, wanted, levels)  # complains now, if it has to
        self.bank, self.seed = bank, seed
        self.sitting: Sitting | None = None
        labelled = dict(style={"description_width": "auto"}, layout=ipywidgets.Layout(width="320px"))
        known = topics(bank)
        self._topics = ipywidgets.SelectMultiple(
            options=known, value=tuple(wanted), rows=min(len(known), 8), description="topics (none: all)", **labelled
        )
        self._levels = {
            level: ipywidgets.Checkbox(level in levels, description=level, indent=False, layout={"width": "auto"})
            for level in LEVELS
        }
        self._minutes = ipywidgets.BoundedFloatText(minutes, min=1, max=600, description="minutes", **labelled)
        button = ipywidgets.Button(description="start", button_style="primary")
        button.on_click(lambda _: self.begin())
        self._said = ipywidgets.HTML()
        row = ipywidgets.HBox([ipywidgets.Label("levels"), *self._levels.values()])
        super().__init__([self._topics, row, self._minutes, button, self._said])

    def begin(self) -> None:
        levels = [level for level, box in self._levels.items() if box.value]
        try:
            session = start(self.bank, self._topics.value, levels, self._minutes.value, self.seed, Schedule(place()))
        except ValueError as error:
            self._said.value = f'<span role="alert">{escape(str(error))}</span>'
            return
        self.sitting = Sitting(session, self.bank)
        self.children = [self.sitting]


class Daily(ipywidgets.VBox):
    """A button, then ten minutes of short items. `daily.begin()` presses it; `daily.sitting` is what follows."""

    def __init__(self, bank: dict[str, Question], seed: int | None = None) -> None:
        self.bank, self.seed = bank, seed
        self.sitting: Sitting | None = None
        button = ipywidgets.Button(description="begin", button_style="primary", tooltip="ten minutes from here on")
        button.on_click(lambda _: self.begin())
        super().__init__([button])

    def begin(self) -> None:
        self.sitting = Sitting(practise(self.bank, self.seed), self.bank)
        self.children = [self.sitting]
