"""The reference: every module's functions and classes with what their docstrings say, and links to their lines."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from ..build.builder import ROOT
from .questions import plain
from .sources import files, link

LARGEST = 30  # modules on a page
HIDDEN = ("minispec_course/site/", "minispec_course/check/", "minispec_course/interview/")


def modules() -> list[str]:
    """The files that the reference shows: all but the course's own machinery, and empty ones."""
    return [
        file for file in files() if not file.startswith(HIDDEN) and not file.endswith(("__init__.py", "__main__.py"))
    ]


def pages(most: int | None = None) -> dict[str, str]:
    """Name of a page → its Markdown: one page per folder of the package, the root's modules on pages of their own."""
    groups: dict[str, list[str]] = {}
    for file in modules():
        inside = Path(file).relative_to("minispec")
        groups.setdefault("core" if len(inside.parts) == 1 else "-".join(inside.parts[:-1]), []).append(file)
    groups = dict(list(groups.items())[:most])
    made, cut = {}, {}
    for name, members in groups.items():
        title = "The core" if name == "core" else f"`{name.replace('-', '/')}/`"
        for at in range(0, len(members), LARGEST):  # a page stays light
            part = members[at : at + LARGEST]
            page = name if at == 0 else f"{name}-{at // LARGEST + 1}"
            span = f", {Path(part[0]).stem} to {Path(part[-1]).stem}" if len(members) > LARGEST else ""
            made[page] = f"# {title}{span}\n\n" + "\n\n".join(map(module_text, part))
            cut[page] = name, part
    rows = [
        f"| [{'core' if name == 'core' else name.replace('-', '/') + '/'}]({page}.md) | "
        + ", ".join(f"[{Path(file).stem}]({link((file, 1))})" for file in members)
        + " |"
        for page, (name, members) in cut.items()
    ]
    made["index"] = "\n".join(
        [
            "# The package",
            "",
            "What each module says about itself, made from the docstrings. A name leads to its line in the source.",
            "",
            "| part | modules |",
            "|---|---|",
            *rows,
            "",
            "```{toctree}",
            ":hidden:",
            *made,
            "```",
        ]
    )
    return made


def module_text(file: str) -> str:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    dotted = file.removesuffix(".py").replace("/", ".")
    parts = [f"## [`{dotted}`]({link((file, 1))})", docstring(tree)]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            parts.append(entry(file, node))
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            parts.append(entry(file, node))
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_") and ast.get_docstring(inner):
                    parts.append(entry(file, inner, f"{node.name}."))
    return "\n\n".join(filter(None, parts))


def entry(file: str, node: ast.FunctionDef | ast.ClassDef, inside: str = "") -> str:
    """A function or a class: its signature, where it is, what it says."""
    if isinstance(node, ast.FunctionDef):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        shown = f"{inside}{node.name}({ast.unparse(node.args)}){returns}"
    else:
        bases = ", ".join(map(ast.unparse, node.bases))
        shown = f"class {node.name}" + (f"({bases})" if bases else "")
    title = f"### [`{inside}{node.name}`]({link((file, node.lineno))})"
    return "\n\n".join(filter(None, [title, f"```python\n{shown}\n```", docstring(node)]))


def docstring(node: ast.AST) -> str:
    """A docstring as Markdown: what is indented stays as it is typed, in the rest only `code` is marked up."""
    said = ast.get_docstring(node) or ""
    made = []
    for paragraph in said.split("\n\n"):
        if paragraph.startswith("    "):
            made.append(f"```text\n{paragraph}\n```")
        elif paragraph.lstrip().startswith(("- ", "* ")):
            made.append("\n".join("- " + plain(line) for line in paragraph.lstrip("-* ").split("\n- ")))
        else:
            made.append(stressed(plain(paragraph)))
    return "\n\n".join(filter(None, made))


def stressed(text: str) -> str:
    """*words* and **words** of a docstring are meant as such; every other star is a star."""
    text = re.sub(r"\\\*\\\*([A-Za-z][^*\\]*)\\\*\\\*", r"**\1**", text)
    return re.sub(r"(?<![\w*])\\\*([A-Za-z][^*\\]*[\w.])\\\*(?![\w*])", r"*\1*", text)
