"""Two pages to print, made from templates beside this file: cheatsheet.md and design_sheet.md.

python -m minispec_course.interview.sheets                            writes docs/cheatsheet.md and docs/design_sheet.md
python -m minispec_course.interview.sheets design_sheet sheet.html    one of them, to print on a sheet of A4

A template computes with formulas.py, quotes the docstrings of its formulas, and quotes the bank.
"""

import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt

from minispec.load.write import write_whole

from .expressions import NAMES
from .question import Number, Question
from .questions import FOLDER, ROOT, load
from .session import formula

SIZES = {"cheatsheet": 6.6, "design_sheet": 8.4}  # of the letters in points, so that each fits one sheet
PRINT = (FOLDER / "print.css").read_text(encoding="utf-8")
BLOCKS = {"trim_blocks": True, "lstrip_blocks": True}  # a line with a block alone leaves no line
TEMPLATES = Environment(loader=FileSystemLoader(FOLDER), undefined=StrictUndefined, **BLOCKS)
MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
to_html = MARKDOWN.render


def printable(markdown: str, size: float) -> str:
    """A page as HTML for A4, with letters of so many points."""
    title, style = markdown.partition("\n")[0].lstrip("# "), PRINT.replace("SIZE", str(size))
    return f"<!doctype html><meta charset='utf-8'><title>{title}</title><style>{style}</style>{to_html(markdown)}"


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
    bank = load() if bank is None else bank
    quotes = {
        "format": format,
        "formula": lambda of: formula(of).replace("|", "\\|"),
        "spoken": lambda of: bank[of].spoken,
        "sinks": lambda of: bank[of].sinks[0],
        "remember": lambda: remember(bank),
    }
    return TEMPLATES.get_template(f"{name}.md").render(NAMES | quotes) + "\n"


def main(argv: Sequence[str]) -> None:
    made = {ROOT / f"docs/{name}.md": name for name in SIZES} if not argv else {Path(argv[1]): argv[0]}
    for file, name in made.items():
        write_whole(file, printable(page(name), SIZES[name]) if file.suffix == ".html" else page(name))
        print(f"wrote {file}")


if __name__ == "__main__":
    main(sys.argv[1:])
