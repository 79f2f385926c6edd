"""A candidate for the interview tests, who replies from a list; and what a bank can get wrong beyond its form."""

from __future__ import annotations

import ast
import pkgutil
import re
from collections.abc import Iterable

from minispec_course.interview.dialogue import Console
from minispec_course.interview.question import Question
from minispec_course.interview.session import Mark, Said, Talk


class Script(Console):
    """A console that replies from a list and remembers what it was told; an exception in the list is raised."""

    def __init__(self, *replies):
        super().__init__(self.next_reply, (lines := []).append)
        self.replies, self.lines = list(replies), lines

    def next_reply(self, prompt: str) -> str:
        if not self.replies:
            raise EOFError
        reply = self.replies.pop(0)
        if not isinstance(reply, str):
            raise reply
        return reply

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.lines).split())


def ticks(talk: Talk, *groups: str, all_but: int = 0) -> set[int]:
    """The boxes of these groups; of each group all but the last so many."""
    found = set()
    for group in groups:
        places = [i for i, box in enumerate(talk.rubric) if box.group == group]
        found |= set(places[: len(places) - all_but])
    return found


def said(talk: Talk, boxes: Iterable[int]) -> Said:
    return Said(talk, {i: Mark() for i in boxes})


# ---- names that lead nowhere, and numbers in an answer that are neither computed, nor given, nor a fact with a note

QUANTITY = re.compile(
    r"(?<![\w.-])(\d[\d,]*(?:\.\d+)?)"
    r"(\s?(?:%|×|-fold|KiB|MiB|GiB|KB|MB|GB|TB|ms\b|µs|TFLOP|GFLOP|tokens/s)| [BTM]\b)?"
)


def problems(questions: Iterable[Question]) -> list[str]:
    found = []
    for question in questions:
        try:
            pkgutil.resolve_name(question.function)
        except (ImportError, AttributeError):
            found.append(f"{question.id}: {question.function} is not in the package")
        found += [f"{question.id}: {value:g} is in the answer without a reason" for value in unexplained(question)]
    return found


def unexplained(question: Question) -> list[float]:
    case, pushed = question.case, question.push_backs
    asked = [question.question, *(each.question for each in question.follow_ups), *(each.says for each in pushed)]
    told = [question.spoken, *question.L4, *question.L5, *question.L6, *question.raises, *question.sinks]
    told += [*(each.short for each in question.follow_ups), *(each.reply for each in pushed)]
    if case:
        asked += [*case.requirements, *(each.says for each in case.changes)]
        told += [*case.whiteboard, *(each.reply for each in case.changes)]
    known = {value for text in asked for value in quantities(text)}
    known |= {value for fact in question.facts for value in fact.values}
    for number in question.numbers:
        nodes = ast.walk(ast.parse(number.expression.strip(), mode="eval"))
        known |= {float(number.value), *(float(node.value) for node in nodes if isinstance(node, ast.Constant))}
    values = {value for text in told for value in quantities(text)}
    return sorted(value for value in values if value not in known and value / 100 not in known)


def quantities(text: str) -> list[float]:
    """The numbers in a text that need a reason: decimals, percentages, factors, and those with a unit."""
    found = [(number.replace(",", ""), unit) for number, unit in QUANTITY.findall(text)]
    return [float(number) for number, unit in found if unit or "." in number]
