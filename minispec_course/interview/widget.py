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
from .session import Session
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
        presses = {"reply": lambda _: self.reply(self._field.value)}
        presses |= {"skip": lambda _: self.reply("s"), "end": lambda _: self.reply("q")}
        self._buttons = [ipywidgets.Button(description=name) for name in presses]
        for button in self._buttons:
            button.on_click(presses[button.description])
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
