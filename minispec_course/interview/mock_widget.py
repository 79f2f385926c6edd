"""The mock interview in a notebook: choose, begin, type; Enter submits, Shift+Enter breaks the line, focus follows.

Showing it starts nothing: the clock runs from the moment its reader presses begin. All that is decided is decided by
mock_interview.Interview; this shows its turn and hands over what was typed.
"""

from __future__ import annotations

from pathlib import Path

import anywidget
import traitlets

from .coding import check_file, is_untouched, write_notebook
from .debrief import graded, keep_report, rating, report
from .drill import SINKS
from .evidence import refusal, suggest, unshown
from .field import BREAK
from .mock_interview import Interview, claim, keep, start_mock, unfinished
from .plain_markdown import to_html
from .practice import Record
from .question import LEVELS
from .rounds import CODE, FORMATS, GRADES, ROUNDS, UNTOUCHED
from .schedule import Schedule, place
from .terminal import TITLES, shortest

AGAIN = "Quote other words where it says so below, or grade once more to leave it so."
SHOWN = 6  # of the last things that were said
SCRIPT = (
    BREAK
    + """
function render({ model, el }) {
  el.classList.add("minispec-mock");
  el.dataset.lmSuppressShortcuts = "true";  // letters typed here are no commands of the notebook
  let timer = null, acting = false;
  const make = (tag, name, text) => {
    const node = document.createElement(tag);
    if (name) node.className = name;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const act = (what) => { acting = true; model.send(what); };
  const button = (text, what, main) => {
    const node = make("button", main ? "main" : "", text);
    node.type = "button";
    node.onclick = () => act(typeof what === "function" ? what() : what);
    return node;
  };
  const choice = (label, values, chosen) => {
    const box = make("select"), wrap = make("label", "", label + " ");
    for (const [value, text] of values) {
      const option = make("option", "", text);
      option.value = value; option.selected = value === chosen;
      box.append(option);
    }
    wrap.append(box);
    return [wrap, box];
  };
  const face = (view) => {
    const clock = make("div", "clock"), start = Date.now();
    clock.setAttribute("role", "timer");
    const two = (n) => String(Math.floor(n)).padStart(2, "0");
    const tick = () => {
      const used = view.used + (view.running ? (Date.now() - start) / 1000 : 0);
      const state = view.running ? "" : " · stopped";
      clock.textContent = `${two(used / 60)}:${two(used % 60)} of ${view.minutes}:00${state}`;
      clock.classList.toggle("late", used > 60 * view.minutes);
    };
    tick();
    clearInterval(timer);
    if (view.running) timer = setInterval(tick, 500);
    return clock;
  };
  const setup = (view) => {
    const [level, levels] = choice("level", view.levels, view.level);
    const [format, formats] = choice("format", view.formats, view.format);
    const row = make("div", "row");
    const first = button("start", () => ({ do: "start", level: levels.value, format: formats.value }), true);
    row.append(level, format, first);
    if (view.resumable) row.append(button(`resume the ${view.resumable}`, { do: "resume" }));
    return [[make("p", "", "Choose, then start. Nothing is timed before you press begin."), row], first];
  };
  const grading = (view) => {
    const list = make("div", "rubric"), rows = [];
    let group = null;
    if (view.heard.length) {
      const own = make("div", "own");
      own.append(make("b", "", "You said"), ...view.heard.map((text) => make("p", "", text)));
      list.append(own);
    }
    if (view.spoken) list.append(make("p", "spoken", "One good answer: " + view.spoken));
    for (const [i, box] of view.boxes.entries()) {
      if (box.group !== group) { group = box.group; list.append(make("h4", "", group)); }
      const row = make("div", "point"), label = make("label"), tick = make("input"), words = make("textarea", "words");
      tick.type = "checkbox"; words.rows = 2; words.value = box.words; tick.checked = box.ticked;
      words.placeholder = "your words that earn it"; words.hidden = !box.ticked || box.believed;
      words.setAttribute("aria-label", "your words for: " + box.text);
      label.append(tick, make("span", "", box.shown ?? box.text));
      row.append(label);
      if (box.suggested) {
        row.classList.add(box.firm ? "suggested" : "perhaps");
        const why = box.firm ? `suggested: “${box.quote}”` : `perhaps: “${box.quote}” (${box.reason})`;
        row.append(make("div", "why", why));
      }
      row.append(words);
      if (box.refused || box.doubted) {
        const why = make("p", "note", box.refused || box.doubted);
        why.setAttribute("role", "alert");
        row.append(why);
      }
      tick.onchange = () => {
        words.hidden = !tick.checked || box.believed;
        if (!words.hidden && !(words.value && box.firm)) words.focus();  // weak ones are looked at again
      };
      words.onkeydown = (event) => {
        if (event.key !== "Enter" || event.isComposing) return;
        event.preventDefault();
        (rows[i + 1]?.tick ?? send).focus();
      };
      rows.push({ tick, words, box });
      list.append(row);
    }
    const ticks = () => Object.fromEntries(rows.map((row, i) => [i, row]).filter(([, row]) => row.tick.checked)
      .map(([i, row]) => [i, row.words.value]));
    const send = button("grade", () => ({ do: "grade", ticks: ticks() }), true);
    const confirm = make("button", "", "tick the suggestions");
    confirm.type = "button";
    confirm.onclick = () => rows.filter((row) => row.box.firm).forEach((row) => {
      row.tick.checked = true;
      row.tick.onchange();
    });
    const bar = make("div", "row");
    bar.append(confirm, send, button("skip", { do: "skip" }), button("end", { do: "end" }));
    const refused = rows.find((row) => row.box.refused || row.box.doubted);
    return [[list, bar], refused ? refused.words : rows.length ? rows[0].tick : send];
  };
  const answering = (view) => {
    const bar = make("div", "row"), parts = [];
    let target;
    if (view.shows) parts.push(make("pre", "shows", view.shows));
    if (view.expects !== "nothing") {
      const code = view.expects === "code";
      target = make("textarea");
      target.rows = view.expects === "number" ? 1 : code ? 2 : 4;
      target.placeholder = view.expects === "number" ? "a number, or a sum such as 2*80*8*128"
        : code ? "say what you try; it submits nothing" : "type your answer";
      target.setAttribute("aria-label", "your answer");
      const say = () => ({ do: "say", text: target.value });
      target.onkeydown = (event) => {
        if (event.key !== "Enter" || event.isComposing) return;
        if (event.shiftKey) return breakLine(event);
        event.preventDefault();
        act(say());
      };
      parts.push(target);
      bar.append(button(code ? "say (Enter)" : "answer (Enter)", say, !code));
      if (code) bar.append(button(view.kind === "untouched" ? "submit anyway" : "check", { do: "check" }, true));
    } else {
      target = button(view.kind === "close" ? "debrief" : "begin", { do: "begin" }, true);
      bar.append(target);
    }
    if (view.expects !== "nothing") bar.append(button("skip", { do: "skip" }));
    if (view.running) bar.append(button("stop the clock", { do: "pause" }));
    else if (view.expects !== "nothing") bar.append(button("start the clock", { do: "go on" }));
    bar.append(button("end", { do: "end" }));
    return [[...parts, bar], target];
  };
  const draw = () => {
    const view = model.get("view");
    clearInterval(timer);
    let nodes = [], target = null;
    if (view.phase === "setup") [nodes, target] = setup(view);
    else if (view.phase === "report") {
      const page = make("div", "report");
      page.tabIndex = -1;
      page.innerHTML = view.html;
      [nodes, target] = [[page, button("another interview", { do: "again" })], page];
    } else {
      const log = make("div", "log");
      for (const [who, text] of view.log) log.append(make("p", who, text));
      const says = make("p", "says", view.says);
      says.setAttribute("role", "status");
      const [rest, first] = view.expects === "grades" ? grading(view) : answering(view);
      nodes = [face(view), log, says, ...rest];
      target = first;
    }
    if (view.note) { const note = make("p", "note", view.note); note.setAttribute("role", "alert"); nodes.push(note); }
    el.replaceChildren(...nodes);
    if (acting) target?.focus();  // never on first sight: a notebook that is run must not jump
  };
  model.on("change:view", draw);
  draw();
  return () => { clearInterval(timer); model.off("change:view", draw); };
}
export default { render };
"""
)
LOOK = """
.minispec-mock { color: var(--jp-ui-font-color1, inherit); border-left: 3px solid var(--jp-brand-color1, #1976d2);
  padding: 4px 14px; line-height: 1.5; max-width: 62em; font-family: var(--jp-ui-font-family, sans-serif) }
.minispec-mock .clock { font: 600 1.2em var(--jp-code-font-family, monospace) }
.minispec-mock .clock.late { color: var(--jp-warn-color1, #d55e00) }
.minispec-mock .says { font-size: 1.15em; font-weight: 600 }
.minispec-mock .log p { margin: 2px 0; color: var(--jp-ui-font-color2, inherit) }
.minispec-mock .log .you { padding-left: 2em }
.minispec-mock .row { display: flex; gap: 8px; flex-wrap: wrap; align-items: center; margin: 6px 0 }
.minispec-mock textarea, .minispec-mock .words { width: 100%; box-sizing: border-box; font: inherit; padding: 6px;
  color: var(--jp-ui-font-color1, inherit); background: var(--jp-layout-color1, transparent);
  border: 1px solid var(--jp-border-color1, #999) }
.minispec-mock select { color: var(--jp-ui-font-color1, inherit); background: var(--jp-layout-color2, transparent);
  border: 1px solid var(--jp-border-color1, #999); padding: 3px; font: inherit }
.minispec-mock button { font: inherit; padding: 3px 12px; border: 1px solid var(--jp-border-color1, #999);
  color: var(--jp-ui-font-color1, inherit); background: var(--jp-layout-color2, transparent); cursor: pointer }
.minispec-mock button.main { background: #1565c0; border-color: #1565c0; color: #fff }
.minispec-mock :focus-visible { outline: 2px solid var(--jp-brand-color1, #1976d2); outline-offset: 1px }
.minispec-mock .point label { display: flex; gap: 8px; align-items: baseline }
.minispec-mock .point { padding: 2px 4px } .minispec-mock h4 { margin: 8px 0 2px }
.minispec-mock .point.suggested { background: var(--jp-layout-color2, transparent) }
.minispec-mock .why { padding-left: 1.8em; font-size: .92em; color: var(--jp-ui-font-color2, inherit) }
.minispec-mock .own { border-left: 2px solid var(--jp-border-color1, #999); padding: 0 10px }
.minispec-mock .own p { margin: 2px 0 }
.minispec-mock .spoken { background: var(--jp-layout-color2, transparent); padding: 6px 10px }
.minispec-mock .report table { border-collapse: collapse }
.minispec-mock .report td, .minispec-mock .report th { border: 1px solid var(--jp-border-color1, #999) }
.minispec-mock .report td, .minispec-mock .report th { padding: 2px 8px; text-align: left }
.minispec-mock .report code { color: inherit; background: var(--jp-layout-color2, transparent) }
.minispec-mock .report:focus { outline: none }
.minispec-mock .shows { white-space: pre-wrap; font: .95em var(--jp-code-font-family, monospace);
  background: var(--jp-layout-color2, transparent); padding: 6px 10px }
.minispec-mock .note { color: var(--jp-error-color1, #d32f2f) }
"""


class Desk(anywidget.AnyWidget):
    """The interview as one sees it. `act({"do": "start", …})` is what the browser sends; tests send the same."""

    _esm, _css = SCRIPT, LOOK
    view = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        bank,
        level: str = "L5",
        format: str = "concept",
        seed: int | None = None,
        schedule: Schedule | None = None,
        folder: Path | None = None,
    ):
        start_mock(bank, level, format, 0)  # complains now, if it has to
        super().__init__()
        self.bank, self.level, self.format, self.seed, self.folder = bank, level, format, seed, folder
        self.schedule = Schedule(place()) if schedule is None else schedule
        self.interview: Interview | None = None
        self._old = unfinished(bank)
        self._ticks: dict[int, str] = {}  # of a rubric with quotes that were refused
        self._refused: dict[int, str] = {}  # box → why
        self._doubted: dict[int, str] = {}  # box → why its words show nothing by themselves
        self.on_msg(lambda _, content, __: self.act(content))
        self._show()

    def act(self, content: dict) -> None:
        """Something was pressed or typed."""
        content = content if isinstance(content, dict) else {}
        action, note = content.get("do"), ""
        if action == "again" and self.interview is not None and self.interview.ended:
            self.interview = self._old = None
        elif self.interview is None:
            note = self._start(action, content)
        elif action == "check" and self.interview.turn and self.interview.turn.expects == CODE:
            note = self._check()
        else:
            given = {name: content[name] for name in ("text", "ticks") if name in content}
            note = self._refuse(given.get("ticks")) if action == "grade" else ""
            if not note:
                note = self.interview.do(action, **given)
                self._ticks, self._refused, self._doubted = {}, {}, {}
                self._remember(action, note)
        if self.interview is not None:
            keep(self.interview)
        self._show(note)

    def _refuse(self, ticks: object) -> str:
        """Says once which words are not in the answers, and which do not show their line by themselves. Whoever grades
        with the same words again leaves out the former and keeps the latter as claims."""
        reply, turn, said = (
            self.interview.read("grade", {"ticks": ticks}),
            self.interview.turn,
            self.interview.transcript,
        )
        if isinstance(reply, str):
            return ""
        quotes = [match.quote or None for match in suggest(turn, said)]
        found = {i: refusal(turn, i, words, said) for i, words in reply.ticks.items() if words != quotes[i]}
        self._refused = {i: why for i, why in found.items() if why}
        self._doubted = unshown(turn, reply.ticks, said)
        new = [i for i in {**self._refused, **self._doubted} if self._ticks.get(i) != reply.ticks[i]]
        self._ticks = dict(reply.ticks)
        return AGAIN * bool(new)

    @property
    def notebook(self) -> Path | None:
        return Path(self.interview.notebook) if self.interview and self.interview.notebook else None

    def _check(self) -> str:
        """Run the notebook, unless there is nothing in it to run and that is new."""
        turn = self.interview.turn
        if turn.kind != UNTOUCHED and is_untouched(self.notebook, turn.exercise):
            return self.interview.do("code", outcome=UNTOUCHED)
        outcome, text = check_file(self.notebook, turn.exercise)
        self.interview.do("code", outcome=outcome, text=text[:2000])
        return "" if outcome == "right" else text[:2000]

    def _start(self, action: object, content: dict) -> str:
        if action == "resume" and self._old is not None:
            if not claim(self._old.file):
                return f"The {self._old.named}, is still open elsewhere."
            self.interview = self._old
        elif action == "start":
            level, format = content.get("level", self.level), content.get("format", self.format)
            try:
                self.interview = start_mock(self.bank, level, format, self.seed)
            except (ValueError, TypeError) as error:
                return str(error)
        return ""

    def _remember(self, action: object, note: str) -> None:
        """A graded conversation comes back in the drill."""
        if action == "grade" and not note:
            _, turn, reply, _ = self.interview.transcript[-1]
            if turn.question:
                found = graded(turn, reply, self.interview.transcript)
                self.schedule.review(turn.question, rating(found))
                Record().reach(turn.question, found.level())

    def _show(self, note: str = "") -> None:
        interview = self.interview
        if interview is None:
            formats = [(name, f"{name}, {sum(ROUNDS[r] for r in rounds)} minutes") for name, rounds in FORMATS.items()]
            self.view = dict(
                phase="setup",
                levels=[(name, name) for name in LEVELS],
                formats=formats,
                note=note,
                level=self.level,
                format=self.format,
                resumable=self._old and self._old.named,
            )
            return
        if interview.turn is None:
            try:
                kept = f"Kept as {shortest(keep_report(interview, interview.out and Path(interview.out)))}."
            except OSError as error:
                kept = f"The debrief is not kept: {error}."
            self.view = dict(phase="report", html=to_html(f"{report(interview)}\n{kept}\n"), note=note)
            return
        turn, says = interview.turn, interview.turn.says
        if turn.expects == CODE:
            if self.notebook is None:
                interview.notebook = str(write_notebook(turn.exercise, interview.seed, self.folder).absolute())
                keep(interview)
            if turn.kind != UNTOUCHED:
                says += f" Open {shortest(self.notebook)}, fill in the function, save it, then press check."
        log = [(who, text) for _, t, r, _ in interview.transcript for who, text in (("they", t.says), ("you", r.text))]
        log = [line for line in log if line[1]][-SHOWN:]
        matches = suggest(turn, interview.transcript)
        boxes = [
            dict(
                text=box.text,
                shown=box.shown,
                group=TITLES.get(box.group, box.group),
                believed=box.group == SINKS,
                suggested=match.suggested,
                firm=match.firm,
                reason=match.reason,
                quote=(quote := match.quote if match.suggested else ""),
                words=self._ticks.get(i, quote),
                ticked=i in self._ticks,
                refused=self._refused.get(i, ""),
                doubted=self._doubted.get(i, ""),
            )
            for i, (box, match) in enumerate(zip(turn.boxes, matches, strict=True))
        ]
        spoken = self.bank[turn.question].spoken if turn.expects == GRADES and turn.question else ""
        self.view = dict(
            phase="turn",
            kind=turn.kind,
            says=says,
            expects=turn.expects,
            boxes=boxes,
            spoken=spoken,
            shows=turn.shows,
            heard=turn.heard.splitlines(),
            log=[] if turn.expects == GRADES else log,
            note=note,
            used=interview.used,
            running=interview.running,
            minutes=interview.minutes,
        )
