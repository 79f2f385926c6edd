"""The report of a graded class: pages that need no network, one for the class and one for each student."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from textwrap import wrap

import plotly.graph_objects as go

from minispec.load.write import write_whole

from ..exercises.exercise import find
from ..viz.style import GREY, KINDS, TEMPLATE
from .check import RIGHT, WRONG
from .gradebook import UNGRADED, Result, by_student, mistakes, number, summary
from .variants import VARIANTS

MOST_BARS = 15
STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse } td, th { padding: .2em .6em; border-bottom: 1px solid #8884; text-align: left }
td.n { text-align: right } .right { color: #009e73 } .wrong { color: #d55e00 } .none { color: #7f8c9a }
pre { white-space: pre-wrap; border-left: 3px solid #8884; padding-left: 1em }
"""


def write(folder: Path, results: Sequence[Result]) -> Path:
    """index.html, and a page for each student beside it. Returns the index."""
    students = by_student(results)
    pages = {student: f"student-{i:03}.html" for i, student in enumerate(students, start=1)}
    for student, own in students.items():
        write_whole(folder / pages[student], page(student, student_body(student, own)))
    return write_whole(folder / "index.html", page("The class", class_body(students, pages, results)))


def page(title: str, body: str) -> str:
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return f"<!doctype html><html lang=en><head>{head}</head><body>{body}</body></html>\n"


def class_body(students: dict[str, list[Result]], pages: dict[str, str], results: Sequence[Result]) -> str:
    ids = list(dict.fromkeys(result.id for result in results))
    lines = [f"<h1>The class</h1><pre>{escape(summary(results))}</pre>"]
    if mistakes(results):
        lines.append(figure(results).to_html(full_html=False, include_plotlyjs=True, div_id="mistakes"))
    lines.append(f"<table><tr><th>student{''.join(f'<th>{id}' for id in ids)}<th>total</tr>")
    for student, own in students.items():
        marks = {result.id: f'<td class="n {shade(result)}">{mark(result)}' for result in own}
        total = sum(result.points for result in own)
        name = f'<a href="{pages[student]}">{escape(student)}</a>'
        lines.append(f'<tr><td>{name}{"".join(marks[id] for id in ids)}<td class="n">{number(total)}</tr>')
    return "\n".join([*lines, "</table>"])


def student_body(student: str, own: Sequence[Result]) -> str:
    reached, possible = sum(r.points for r in own), sum(r.possible for r in own)
    lines = [f"<h1>{escape(student)}: {number(reached)} of {possible} points</h1>"]
    for r in own:
        lines.append(f"<h2>{r.id} {escape(find(r.id).title)}</h2>")
        facts = f"{mark(r)} of {r.possible} points, {r.seconds:.1f} s, sandbox: {r.level or 'nothing ran'}"
        lines.append(f'<p><span class="{shade(r)}">{r.outcome}</span> · {facts}</p>')
        lines.append(f"<p>{escape(r.note)}</p>" * bool(r.note) + properties(r) + f"<pre>{escape(r.text)}</pre>")
    return "\n".join(lines)


def properties(result: Result) -> str:
    """What the answer has, and what it has not."""
    rows = [
        f'<tr><td class="{"right" if part["passed"] else "wrong"}">{"✓" if part["passed"] else "✗"}'
        f'<td>{escape(name)}<td class="n">{number(part["points"])}</tr>'
        for name, part in result.properties.items()
    ]
    return f"<table>{''.join(rows)}</table>" if rows else ""


def mark(result: Result) -> str:
    return "–" if result.outcome == UNGRADED else number(result.points)


def shade(result: Result) -> str:
    return {RIGHT: "right", WRONG: "wrong"}.get(result.outcome, "none")


def figure(results: Sequence[Result]) -> go.Figure:
    """The commonest misconceptions: how many students made each, and what it is."""
    found = mistakes(results)[:MOST_BARS][::-1]
    names = [f"{id} {name.replace('_', ' ')}" for (id, name), _ in found]
    said = ["<br>".join(wrap(escape(diagnosis(id, name)), 70)) for (id, name), _ in found]
    height = 140 + 28 * len(found)
    chart = go.Figure(layout=dict(template=TEMPLATE, title="The commonest misconceptions", height=height))
    chart.add_bar(
        y=names,
        x=[count for _, count in found],
        orientation="h",
        hovertext=said,
        hoverinfo="text",
        marker_color=KINDS["corrected"],
    )
    return chart.update_xaxes(title="students", dtick=1 if max(n for _, n in found) < 10 else None, color=GREY)


def diagnosis(id: str, name: str) -> str:
    mutant = find(id).mutants.get(name)
    return mutant.diagnosis if mutant else f"the published answer, handed in for a variant: {VARIANTS[id].words}"
