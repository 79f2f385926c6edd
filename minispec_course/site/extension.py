"""What we add to Sphinx: MathML, glossary terms, links into the source, folded answers.

All of it works at build time, so that a page needs no script to be read.
"""

import re
from collections.abc import Iterator
from html import escape

from docutils import nodes

from . import content, sources

PROSE = (nodes.reference, nodes.literal, nodes.title, nodes.math, nodes.math_block, nodes.literal_block, nodes.raw)


def setup(app) -> dict:
    app.add_html_math_renderer("mathml", inline_renderers=(inline_math, None), block_renderers=(block_math, None))
    app.connect("doctree-resolved", point)
    app.connect("html-page-context", finish, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


# ---------------------------------------------------------------- formulas


def mathml(formula: str, display: str) -> str:
    from latex2mathml.converter import convert

    formula = re.sub(r"\\([bB]ig)g?([lr]?)\b", "", formula)  # the browser stretches by itself
    formula = formula.replace(r"\tfrac", r"\frac").replace(r"\dfrac", r"\frac")
    return convert(formula, display=display)


def inline_math(translator, node) -> None:
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def block_math(translator, node) -> None:
    made = mathml(node.astext(), "block")
    translator.body.append(f'<div class="ms-formula" tabindex="0" role="group" aria-label="formula">{made}</div>')
    raise nodes.SkipNode


# ---------------------------------------------------------------- links


def relative(app, page: str, target: str) -> str:
    """ "src:minispec/verify.py#L12" → the address of that line, as seen from a page."""
    file, _, line = target.removeprefix("src:").partition("#")
    return app.builder.get_relative_uri(page, sources.page_name(file)) + (f"#{line}" if line else "")


def point(app, doctree, page: str) -> None:
    """Links to lines of the source, and the first use of every glossary word."""
    if app.builder.format != "html":
        return
    for reference in list(doctree.findall(nodes.reference)):
        if reference.get("refuri", "").startswith("src:"):
            reference["refuri"] = relative(app, page, reference["refuri"])
            reference["classes"] = [*reference["classes"], "ms-to-source"]
    if page.startswith(("notebooks/", "docs/")) and page != "docs/glossary":
        explain_terms(app, doctree, page)


def explain_terms(app, doctree, page: str) -> None:
    seen: set[str] = set()
    glossary = app.builder.get_relative_uri(page, "docs/glossary")
    for text in list(doctree.findall(nodes.Text)):
        if any(isinstance(above, PROSE) for above in ancestors(text)) or not in_paragraph(text):
            continue
        pieces, at = [], 0
        for match in content.pattern().finditer(str(text)):
            place, meaning = content.glossary()[match[1].lower()]
            if place in seen:
                continue
            seen.add(place)
            html = f'<a class="ms-term" href="{glossary}#{place}" data-tip="{escape(meaning)}">{escape(match[0])}</a>'
            pieces += [nodes.Text(str(text)[at : match.start()]), nodes.raw("", html, format="html")]
            at = match.end()
        if pieces:
            text.parent.replace(text, [*pieces, nodes.Text(str(text)[at:])])


def ancestors(node: nodes.Node) -> Iterator[nodes.Node]:
    while node := node.parent:
        yield node


def in_paragraph(text: nodes.Text) -> bool:
    return any(isinstance(above, nodes.paragraph) for above in ancestors(text))


# ---------------------------------------------------------------- pages


def finish(app, page: str, template: str, context: dict, doctree) -> None:
    """A button that says how to run the lesson."""
    if page.startswith(("notebooks/", "solutions/", "exercises/")) and "body" in context:
        button = {
            "type": "link",
            "url": app.builder.get_relative_uri(page, "run"),
            "icon": "fas fa-rocket",
            "text": "Run it",
            "tooltip": "Run this notebook on your machine: make lab",
            "label": "run-button",
        }
        context.setdefault("header_buttons", []).insert(0, button)
