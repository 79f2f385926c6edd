"""The Markdown of our reports and sheets, as HTML: headings, lists, tables, paragraphs, **bold**, `code`.

A converter for all of Markdown takes seconds to load (nbconvert brings nbformat, which builds grammars when imported),
and a debrief should be there at once. Everything else is shown as it stands, HTML included.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape
from itertools import groupby

CELL = re.compile(r"(?<!\\)\|")  # a bar that is not escaped


def inline(text: str) -> str:
    """One line: code first, so that nothing inside it is taken for anything else. Links keep their words alone."""
    parts = re.split(r"`([^`]+)`", text)
    for i, part in enumerate(parts):
        part = escape(part, quote=False)
        if i % 2:
            parts[i] = f"<code>{part}</code>"
        else:
            part = re.sub(r"\[([^\[\]]+)\]\([^)]+\)", r"\1", part)
            parts[i] = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", part)
    return "".join(parts)


def to_html(markdown: str) -> str:
    kinds = groupby(markdown.splitlines(), key=_kind)
    return "\n".join(line for kind, lines in kinds for line in _block(kind, list(lines)))


def _kind(line: str) -> str:
    """Neighbouring lines of one kind make one block."""
    if not line.strip():
        return ""
    return line[0] if line[0] in "#|" else "-" if line.startswith("- ") else "p"


def _block(kind: str, lines: list[str]) -> Iterator[str]:
    if kind == "#":
        for line in lines:
            level = len(line) - len(line.lstrip("#"))
            yield f"<h{level}>{inline(line[level:].strip())}</h{level}>"
    elif kind == "-":
        yield f"<ul>{''.join(f'<li>{inline(line[2:])}</li>' for line in lines)}</ul>"
    elif kind == "|":
        head, _, *rows = lines
        yield f"<table><thead>{_row(head, 'th')}</thead><tbody>{_rows(rows)}</tbody></table>"
    elif kind == "p":
        yield f"<p>{inline(' '.join(lines))}</p>"


def _rows(lines: Iterable[str]) -> str:
    return "".join(_row(line, "td") for line in lines)


def _row(line: str, tag: str) -> str:
    cells = [cell.strip().replace(r"\|", "|") for cell in CELL.split(line.strip())[1:-1]]
    return f"<tr>{''.join(f'<{tag}>{inline(cell)}</{tag}>' for cell in cells)}</tr>"
