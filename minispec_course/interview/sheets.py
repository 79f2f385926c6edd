"""Two pages to print, made from templates beside this file: cheatsheet.md and design_sheet.md.

python -m minispec_course.interview.sheets                            writes docs/cheatsheet.md and docs/design_sheet.md
python -m minispec_course.interview.sheets design_sheet sheet.html    one of them, to print on a sheet of A4

In a template {{speedup(0.7, 4, 0.1) : .2f}} is a number computed by theory.py. {{formula: speedup}} is the first
paragraph of a docstring there; {{spoken: id}} and {{sinks: id}} quote a question of the bank, and {{remember: all}} is
the table of its numbers to know by heart. Lines `NAME = expression` before a line --- abbreviate.
"""

import re
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from markdown_it import MarkdownIt

from minispec.load.write import write_whole

from .expressions import evaluate
from .question import Number, Question
from .questions import FOLDER, ROOT, load
from .session import formula

SIZES = {"cheatsheet": 6.6, "design_sheet": 8.4}  # of the letters in points, so that each fits one sheet
PRINT = """@page { size: A4; margin: 9mm } body { font: SIZEpt/1.15 sans-serif; margin: 0 } p { margin: 2pt 0 }
table { border-collapse: collapse; width: 100% } td, th { border: .3pt solid #999; padding: 0 2pt; text-align: left }
h1 { font-size: 11pt; margin: 0 } td strong { white-space: nowrap } h2 { font-size: 1.25em; margin: 3pt 0 1pt }
a { color: inherit; text-decoration: none }"""
MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")


def to_html(markdown: str) -> str:
    return MARKDOWN.render(markdown)


def cells_of(number: Number) -> tuple[str, str]:
    """Name and computed value, to as many digits as the bank quotes, with the unit at the value."""
    decimals = len(repr(number.value).partition(".")[2]) if isinstance(number.value, float) else 0
    name = number.name.removeprefix("the ").removesuffix(f", in {number.unit}")
    return name, f"**{number.computed:.{decimals}f}{number.unit and f' {number.unit}'}**"


def remember(bank: dict[str, Question]) -> str:
    """The numbers marked in the bank, each expression once, in two columns."""
    marked = {number.expression: number for q in bank.values() for number in q.numbers if number.remember}
    cells = [cells_of(number) for number in marked.values()]
    half = (len(cells) + 1) // 2
    rows = [(*a, *b) for a, b in zip_longest(cells[:half], cells[half:], fillvalue=("", ""))]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def page(name: str, bank: dict[str, Question] | None = None) -> str:
    """A template with everything filled in."""
    if name not in SIZES:
        raise ValueError(f"name={name!r}: give one of {', '.join(SIZES)}")
    bank, text = load() if bank is None else bank, (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    head, _, body = text.rpartition("---\n# ")
    short = dict(line.split(" = ") for line in head.splitlines())
    quotes = {
        "formula": lambda of: formula(of).replace("|", "\\|"),
        "spoken": lambda of: bank[of].spoken,
        "sinks": lambda of: bank[of].sinks[0],
        "remember": lambda of: remember(bank),
    }

    def fill(found: re.Match) -> str:
        kind, _, of = found[1].partition(": ")
        if kind in quotes:
            return quotes[kind](of)
        expression, _, form = found[1].rpartition(" : ")
        for abbreviated in reversed(short):  # a later one may use an earlier one
            expression = re.sub(rf"\b{abbreviated}\b", f"({short[abbreviated]})", expression)
        return format(evaluate(expression), form)

    return re.sub(r"\{\{(.+?)\}\}", fill, f"# {body}" if head else text)


def to_print(name: str) -> str:
    text = page(name)
    title, style = text.partition("\n")[0].lstrip("# "), PRINT.replace("SIZE", str(SIZES[name]))
    return f"<!doctype html><meta charset='utf-8'><title>{title}</title><style>{style}</style>{to_html(text)}"


def main(argv: Sequence[str]) -> None:
    made = {ROOT / f"docs/{name}.md": name for name in SIZES} if not argv else {Path(argv[1]): argv[0]}
    for file, name in made.items():
        write_whole(file, to_print(name) if file.suffix == ".html" else page(name))
        print(f"wrote {file}")


if __name__ == "__main__":
    main(sys.argv[1:])
