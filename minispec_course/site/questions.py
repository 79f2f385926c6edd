"""The question bank as pages: the question first, the answer covered, so that one can try before one looks."""

from __future__ import annotations

import re
from itertools import groupby

from .. import interview
from ..interview.question import LEVELS, Question
from .sources import find, lessons, link


def pages(most: int | None = None) -> dict[str, str]:
    """Name of a page → its Markdown. `most`: only the first so many topics."""
    bank = sorted(interview.load().values(), key=lambda question: question.file)
    made = {}
    rows = []
    topics = [(file, list(members)) for file, members in groupby(bank, key=lambda question: question.file)]
    for file, questions in topics[:most]:
        name = file.rsplit("/", 1)[-1].removesuffix(".yaml")
        title = name.partition("_")[2].replace("_", " ")
        made[name] = f"# Interview: {title}\n\n" + "\n".join(map(page_of, questions))
        rows.append(f"| [{title}]({name}.md) | {len(questions)} | {questions[0].question} |")
    made["index"] = "\n".join(
        [
            "# Interview questions",
            "",
            f"{len(bank)} questions with follow-ups. Say your answer aloud, then open it and compare it with what an",
            "interviewer ticks at each level. Every number is computed by the formulas of the package.",
            "`minispec drill` asks them in the terminal and brings back sooner what went badly.",
            *([] if most else ['<a href="../_static/cards.html">The same as cards to print</a>, eight on a sheet.']),
            "",
            "| topic | questions | the first of them |",
            "|---|---|---|",
            *rows,
            "",
            "```{toctree}",
            ":hidden:",
            *(name for name in made),
            "```",
        ]
    )
    return made


def page_of(question: Question) -> str:
    """One question: what is asked, and, covered, the spoken answer, the points by level, and how it goes on."""
    parts = [f"({question.id})=", f"## {plain(question.question)}", "", f"*{question.kind}, `{question.id}`*", ""]
    if question.case:
        parts += [f"{question.case.minutes} minutes. Given:", "", *bullets(question.case.requirements), ""]
    answer = [f"> {plain(question.spoken)}", ""]
    if question.case:
        answer += ["**On the whiteboard**", "", *bullets(question.case.whiteboard), ""]
        answer += ["**The interviewer changes half-way**", ""]
        answer += [f"- *{plain(one.says)}.* {plain(one.reply)}".rstrip() for one in question.case.changes] + [""]
    for level in LEVELS:
        answer += [f"**{level}**", "", *bullets(question.level(level)), ""]
    answer += ["**Raises the impression**", "", *bullets(question.raises), ""]
    answer += ["**Sinks it**", "", *bullets(question.sinks), ""]
    if question.push_backs:
        answer += ["**When the interviewer pushes back**", ""]
        answer += [f"- *{plain(one.says)}* {plain(one.reply)}" for one in question.push_backs] + [""]
    if question.follow_ups:
        answer += ["**Follow-ups**", ""]
        answer += [f"- *{plain(one.question)}* {plain(one.short)}" for one in question.follow_ups] + [""]
    place = find("minispec/__init__.py", question.function.removeprefix("minispec."))
    code = f"[`{question.function}`]({link(place)})" if place else f"`{question.function}`"
    answer += [f"In the code: {code}. The lesson: {lesson(question.lesson)}."]
    return "\n".join([*parts, ":::{dropdown-answer} the answer", *answer, ":::", ""])


def lesson(number: str) -> str:
    name = next(name for name in lessons() if name.split("_")[0] == number)
    return f"[{name.replace('_', ' ')}](../notebooks/{name}.ipynb)"


def bullets(points: tuple[str, ...]) -> list[str]:
    return [f"- {plain(point)}" for point in points]


def plain(text: str) -> str:
    """Text in which no character is Markdown's, but for `code`: formulas with *, _ and | stay as they are."""
    parts = " ".join(text.split()).split("`")
    return "`".join(part if n % 2 else re.sub(r"([\\*_\[\]<>$|{}#~])", r"\\\1", part) for n, part in enumerate(parts))
