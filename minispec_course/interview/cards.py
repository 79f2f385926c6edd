"""The bank as cards to print and cut: eight on a sheet of A4, the questions in front, their answers on the back.

    minispec cards cards.html --topics speed kv-cache      then print it on both sides, turned over the long edge

A back page is mirrored from left to right, so that each answer is on the back of its question.
"""

from collections.abc import Mapping, Sequence
from html import escape

from .question import Question
from .questions import FOLDER, topics
from .sheets import MARKDOWN, TEMPLATES, cells_of

NUMBERS = 2  # on a card


def numbers(question: Question) -> list[tuple[str, str]]:
    """Those to know by heart."""
    cells = [cells_of(number) for number in question.numbers if number.remember][:NUMBERS]
    return [(name, MARKDOWN.renderInline(value)) for name, value in cells]


def page(bank: Mapping[str, Question], wanted: Sequence[str] = ()) -> str:
    """All cards, or those of some topics, as one HTML file."""
    if unknown := [topic for topic in wanted if topic not in topics(dict(bank))]:
        raise ValueError(f"topics={unknown[0]!r}: give some of {', '.join(topics(dict(bank)))}")
    chosen = [question for question in bank.values() if not wanted or question.topic in wanted]
    tools = {"style": (FOLDER / "cards.css").read_text(encoding="utf-8"), "numbers": numbers, "escape": escape}
    return TEMPLATES.get_template("cards.html").render(questions=chosen, **tools) + "\n"
