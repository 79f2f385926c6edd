"""A field in which Enter submits and Shift+Enter breaks the line, and a widget that takes the keyboard to the field.

ipywidgets has neither: its Textarea keeps Enter for itself, and a message that asks a new field for the focus comes
before the field is on the page.
"""

from __future__ import annotations

from collections.abc import Callable

import anywidget
import traitlets

# JupyterLab takes the line break of Shift+Enter away from every text area in a notebook, so it is put in by hand.
BREAK = """
const breakLine = (event) => {
  const field = event.target;
  event.preventDefault();
  field.setRangeText("\\n", field.selectionStart, field.selectionEnd, "end");
};
"""
FIELD = (
    BREAK
    + """
function render({ model, el }) {
  const field = document.createElement("textarea");
  el.classList.add("minispec-field");
  el.dataset.lmSuppressShortcuts = "true";  // letters typed here are no commands of the notebook
  field.rows = model.get("rows");
  field.value = model.get("value");
  field.placeholder = model.get("placeholder");
  field.setAttribute("aria-label", "your answer");
  const shut = () => { field.disabled = model.get("disabled"); };
  const keep = () => { model.set("value", field.value); model.save_changes(); };
  field.onchange = keep;  // when it is left: sent letter by letter, a click could overtake it
  field.onkeydown = (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    if (event.shiftKey) return breakLine(event);
    event.preventDefault();
    keep();
    model.send({ entered: field.value });
  };
  model.on("change:disabled", shut);
  shut();
  el.append(field);
  return () => model.off("change:disabled", shut);
}
export default { render };
"""
)
LOOK = """
.minispec-field { width: 100% }
.minispec-field textarea { width: 100%; max-width: 62em; box-sizing: border-box; font: inherit; padding: 6px;
  color: var(--jp-ui-font-color1, inherit); background: var(--jp-layout-color1, transparent);
  border: 1px solid var(--jp-border-color1, #999) }
.minispec-field textarea:focus-visible { outline: 2px solid var(--jp-brand-color1, #1976d2) }
"""
FOCUS = """
function render({ model, el }) {
  let last = null;
  const follow = (left) => {
    const drill = el.closest(".minispec-drill");
    const field = drill?.querySelector("textarea:enabled, input:enabled");
    if (field && field !== last) {
      last = field;
      field.focus();
      drill.onkeydown = (event) => {
        if (event.key === "Enter" && event.target.type === "radio") drill.querySelector(".mod-primary").click();
      };
    } else if (left) setTimeout(() => follow(left - 1), 50);  // it is not on the page yet, or there is none
  };
  const step = () => follow(40);
  model.on("change:step", step);
  if (Date.now() / 1000 - model.get("made") < 10) step();  // a page that is loaded again must not jump
  return () => model.off("change:step", step);
}
export default { render };
"""


class Field(anywidget.AnyWidget):
    """A text area. `on_enter` is called when Enter was pressed in it, with `value` up to date."""

    _esm, _css = FIELD, LOOK
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


class Focus(anywidget.AnyWidget):
    """Shows nothing: each time `step` goes up, the first field of the drill around it gets the keyboard.

    Enter on a choice presses the button that leads on, as it does in a field."""

    _esm = FOCUS
    step = traitlets.Int(0).tag(sync=True)
    made = traitlets.Float(0.0).tag(sync=True)
