"""The bank as cards to print and cut: eight on a sheet of A4, the questions in front, their answers on the back.

    minispec cards cards.html --topics speed kv-cache      then print it on both sides, turned over the long edge

A back page is mirrored from left to right, so that each answer is on the back of its question.
"""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from .question import Question
from .questions import topics
from .sheets import MARKDOWN, cells_of

COLUMNS, ROWS = 2, 4
NUMBERS = 2  # on a card
STYLE = (Path(__file__).parent / "cards.css").read_text(encoding="utf-8")


def front(question: Question) -> str:
    size, label = " long" if len(question.question) > 180 else "", f"{question.topic} · {question.kind}"
    return f'<div class="card front{size}"><small>{label}</small><p>{escape(question.question)}</p></div>'


def back(question: Question) -> str:
    """The spoken answer, the numbers to remember, what raises and what sinks."""
    cells = [cells_of(number) for number in question.numbers if number.remember][:NUMBERS]
    numbers = "".join(f"<li>{escape(name)}: {MARKDOWN.renderInline(value)}</li>" for name, value in cells)
    parts = [
        f"<small>{question.topic} · {question.kind} · lesson {question.lesson}</small><p>{escape(question.spoken)}</p>",
        f"<ul>{numbers}</ul>" if numbers else "",
        f"<p><b>+</b> {escape(question.raises[0])}</p><p><b>−</b> {escape(question.sinks[0])}</p>",
    ]
    return f'<div class="card back">{"".join(parts)}</div>'


def sheets(questions: Sequence[Question]) -> list[str]:
    """Front, back, front, back, …: left and right are swapped on the back."""
    made, many = [], COLUMNS * ROWS
    for start in range(0, len(questions), many):
        here = [*questions[start : start + many], *[None] * many][:many]
        mirrored = [card for i in range(0, many, COLUMNS) for card in reversed(here[i : i + COLUMNS])]
        for cards, side in ((here, front), (mirrored, back)):
            filled = "".join('<div class="card"></div>' if card is None else side(card) for card in cards)
            made.append(f'<section class="sheet">{filled}</section>')
    return made


def page(bank: Mapping[str, Question], wanted: Sequence[str] = ()) -> str:
    """All cards, or those of some topics, as one HTML file."""
    for topic in wanted:
        if topic not in (known := topics(dict(bank))):
            raise ValueError(f"topics={topic!r}: give some of {', '.join(known)}")
    chosen = [question for question in bank.values() if not wanted or question.topic in wanted]
    head = f"<!doctype html><meta charset='utf-8'><title>Interview cards</title><style>{STYLE}</style>"
    return head + "\n".join(sheets(chosen)) + "\n"
