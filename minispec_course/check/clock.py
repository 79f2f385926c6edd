"""The clock of an exam: counts down in the browser, with nothing to run and nobody to ask."""

from __future__ import annotations

import anywidget
import traitlets


class Clock(anywidget.AnyWidget):
    """The time that is left until `deadline`, in seconds since 1970. It goes on without a kernel."""

    _esm = """
    function render({ model, el }) {
      const face = document.createElement("div");
      face.className = "minispec-clock";
      face.setAttribute("role", "timer");
      el.append(face);
      const tick = () => {
        const left = Math.round(model.get("deadline") - Date.now() / 1000);
        const shown = Math.abs(left);
        const minutes = Math.floor(shown / 60), seconds = String(shown % 60).padStart(2, "0");
        face.textContent = `${minutes}:${seconds} ` + (left >= 0 ? "left" : "over time");
        face.classList.toggle("late", left < 0);
      };
      tick();
      const timer = setInterval(tick, 1000);
      return () => clearInterval(timer);
    }
    export default { render };
    """
    _css = """
    .minispec-clock { font: 600 1.6em/1.5 var(--jp-code-font-family, monospace) }
    .minispec-clock { color: var(--jp-ui-font-color1, inherit) }
    .minispec-clock.late { color: #d55e00 }
    """
    deadline = traitlets.Float().tag(sync=True)
