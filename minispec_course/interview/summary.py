"""What came out of a sitting, in words: what a number was, which level each topic reached, what to read next."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from minispec import theory

from .arithmetic import worked
from .cheatsheet import formula
from .drill import RAISES, SINKS, Computed, Said, Session
from .question import Number, Question
from .questions import topics

ROOT = Path(__file__).resolve().parents[2]
LINES = 6  # of a reading list: more is not read


def digits(value: float) -> str:
    """Three figures, never in powers of ten: 0.05, 2.77, 1,840."""
    shown = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:.10f}".rstrip("0").rstrip(".") if "e" in shown else shown


def with_unit(number: Number) -> str:
    return f"{digits(number.computed)} {number.unit}".rstrip()


def explained(number: Number) -> list[str]:
    """The arithmetic with its numbers put in, and the formulas of theory.py that it uses."""
    names = [node.id for node in ast.walk(ast.parse(number.expression.strip())) if isinstance(node, ast.Name)]
    known = [name for name in dict.fromkeys(names) if inspect.isfunction(getattr(theory, name))]
    return [worked(number), *(f"{name}: {formula(name)}" for name in known)]


def grade_of(result: Computed) -> str:
    """One line: right or wrong, and what it is."""
    given = "no number" if result.judged.value is None else digits(result.judged.value)
    return f"{'right' if result.right else 'wrong'}: {with_unit(result.item.number)} (you said {given})"


# ---- a whole sitting ------------------------------------------------------------------------------------------------


def topic_levels(session: Session) -> dict[str, str]:
    """Topic → the level that at least half of its questions reached."""
    by_topic: dict[str, list[Said]] = {}
    for said in session.all(Said):
        by_topic.setdefault(said.item.question.topic, []).append(said)
    ranked = {topic: sorted(saids, key=lambda said: said.reached) for topic, saids in by_topic.items()}
    return {topic: saids[(len(saids) - 1) // 2].level for topic, saids in ranked.items()}


def weak(session: Session) -> list[Question]:
    """The questions to read up on: sunk or short of the goal, or with a wrong number; the worst first."""
    short = [(r.reached, r.item.question) for r in session.all(Said) if r.reached < len(r.item.levels)]
    wrong = [(1, r.item.question) for r in session.all(Computed) if not r.right and r.item.question]
    ranked = sorted(short + wrong, key=lambda pair: pair[0])
    return list({question.id: question for _, question in ranked}.values())


def lesson(number: str) -> str:
    """ "02 kv cache", as its file is called."""
    for file in sorted((ROOT / "course/lessons").glob(f"{number}_*.py")):
        return file.stem.replace("_", " ")
    return number


def topics_table(bank: dict[str, Question]) -> str:
    """Every topic with its lessons and questions, as Markdown for a page beside the lessons."""
    lines = ["| topic | lessons | questions |", "|---|---|---|"]
    for topic in topics(bank):
        some = [question for question in bank.values() if question.topic == topic]
        names = [lesson(number) for number in sorted({question.lesson for question in some})]
        links = ", ".join(f"[{name}]({name.replace(' ', '_')}.ipynb)" for name in names)
        asked = "<br>".join(f"{question.question} `{question.id}`" for question in some)
        lines.append(f"| {topic} | {links} | {asked} |")
    return "\n".join(lines)


def card(question: Question) -> str:
    """One question as Markdown; an answer to say, the points that are ticked and the objections are folded away."""
    must, lines = question.must_haves, [f"**{question.question}**", "", "<details><summary>an answer</summary>", ""]
    lines += [question.spoken, ""]
    for level, point in question.points:
        lines.append(f"- {level}: {point}{' (must-have)' * (point in must)}")
    pushed = [f"- *{push_back.says}* {push_back.reply}" for push_back in question.push_backs]
    return "\n".join([*lines, "", "An interviewer may object:", "", *pushed, "", "</details>"])


def reading(session: Session) -> list[str]:
    """What to read next, a line for each lesson with the functions to look at."""
    by_lesson: dict[str, list[str]] = {}
    for question in weak(session):
        functions = by_lesson.setdefault(question.lesson, [])
        if question.function not in functions:
            functions.append(question.function)
    return [f"lesson {lesson(number)}: {', '.join(names)}" for number, names in by_lesson.items()][:LINES]


def count(n: int, thing: str) -> str:
    return f"{n} {thing}{'s' * (n != 1)}"


def summary(session: Session) -> list[str]:
    """The end of a drill, as lines of Markdown."""
    talks, figures = session.all(Said), session.all(Computed)
    if not session.results:
        return ["Nothing was answered, so nothing has changed."]
    asked = [count(len(talks), "question")] * bool(talks) + [count(len(figures), "number")] * bool(figures)
    choices = [r for r in session.results if not isinstance(r, (Said, Computed))]
    asked += [count(len(choices), "choice")] * bool(choices)
    lines = [f"{' and '.join(asked)} in {count(round(session.elapsed), 'minute')}.", ""]
    if talks:
        lines += ["Level reached:", "", *(f"- {topic}: {level}" for topic, level in topic_levels(session).items()), ""]
    if figures:
        lines += [f"Numbers: {sum(figure.right for figure in figures)} of {len(figures)} right.", ""]
    if choices:
        lines += [f"Choices: {sum(choice.right for choice in choices)} of {len(choices)} right.", ""]
    seen = [tell for said in talks for tell in said.boxes(RAISES)]
    sunk = [tell for said in talks for tell in said.boxes(SINKS)]
    for title, tells in (("What an interviewer liked:", seen), ("What sinks you:", sunk)):
        lines += [title, "", *(f"- {tell}" for tell in tells), ""] if tells else []
    if again := reading(session):
        lines += ["Read next:", "", *(f"- {line}" for line in again)]
    else:
        lines += ["Nothing to read up on: raise the level, or take another topic."]
    return lines
