"""Where a name of the package is defined, and pages that show the source with an anchor on every line."""

from __future__ import annotations

import ast
import re
from functools import cache
from html import escape
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from ..build.builder import ROOT

PACKAGES = ("minispec", "minispec_course")


@cache
def files() -> tuple[str, ...]:
    """Every file of the packages, as "minispec/verify.py"."""
    every = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    return tuple(sorted(file.relative_to(ROOT).as_posix() for file in every))


@cache
def definitions(file: str) -> dict[str, int]:
    """What a file defines → the line: functions, classes and their methods, constants of the module."""
    found: dict[str, int] = {}

    def walk(body: list[ast.stmt], inside: str = "") -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.setdefault(inside + node.name, node.lineno)
                if isinstance(node, ast.ClassDef):
                    walk(node.body, f"{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign) and not inside:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for name in (target.id for target in targets if isinstance(target, ast.Name)):
                    found.setdefault(name, node.lineno)

    walk(ast.parse((ROOT / file).read_text(encoding="utf-8")).body)
    return found


@cache
def exported(file: str) -> dict[str, tuple[str, str]]:
    """What a file takes over from others of the package: name → (file, name there)."""
    found = {}
    here = Path(file).parent
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.level:
            start = here.parents[node.level - 2] if node.level > 1 else here
        elif (node.module or "").split(".")[0] in PACKAGES:
            start = Path()
        else:
            continue
        base = start.joinpath(*(node.module or "").split(".")) if node.module else start
        for alias in node.names:
            if within := as_file(base / alias.name):
                found[alias.asname or alias.name] = (within, "")
            elif within := as_file(base):
                found[alias.asname or alias.name] = (within, alias.name)
    return found


@cache
def lessons() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in (ROOT / "notebooks").glob("*.ipynb")))


@cache
def exercises() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in (ROOT / "solutions").glob("*.ipynb")))


def as_file(path: Path) -> str | None:
    """The file of a module or of a package."""
    for name in (f"{path.as_posix()}.py", f"{path.as_posix()}/__init__.py"):
        if name in files():
            return name
    return None


def find(file: str, name: str, depth: int = 0) -> tuple[str, int] | None:
    """(file, line) of a dotted name as one types it in a file: through what it imports, then into classes."""
    if name in definitions(file):
        return file, definitions(file)[name]
    first, _, rest = name.partition(".")
    if depth > 6 or first not in exported(file):
        if depth <= 6 and (inner := as_file(Path(file).parent / first)) and file.endswith("__init__.py"):
            return find(inner, rest, depth + 1) if rest else (inner, 1)
        return None
    there, original = exported(file)[first]
    wanted = ".".join(filter(None, (original, rest)))
    if not wanted:
        return there, 1
    return find(there, wanted, depth + 1)


def link(place: tuple[str, int]) -> str:
    """What the pages link to; the extension turns it into an address relative to the page."""
    file, line = place
    return f"src:{file}#L{line}" if line > 1 else f"src:{file}"


def page_name(file: str) -> str:
    return f"source/{file.removesuffix('.py')}"


PAGE = """<!DOCTYPE html>
<html lang="en" data-theme="light"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{file}</title><script>
const mode = localStorage.getItem("mode") || "auto", dark = matchMedia("(prefers-color-scheme: dark)").matches;
document.documentElement.dataset.theme = mode === "dark" || (mode === "auto" && dark) ? "dark" : "light";
</script><link rel="stylesheet" href="{up}_static/pygments.css"><link rel="stylesheet" href="{up}_static/site.css">
</head><body class="ms-bare"><main><p><a href="{up}index.html">minispec</a> /
<a href="{up}api/index.html">the package</a></p><h1>{file}</h1>
<div class="highlight ms-source" role="region" aria-label="source" tabindex="0"><pre>
{lines}</pre></div></main></body></html>
"""


def page(file: str) -> str:
    """The source of a file as a page of its own: one element per line, whose id is L and its number."""
    text = (ROOT / file).read_text(encoding="utf-8")
    marked = highlight(text, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)).rstrip("\n").split("\n")
    lines = "\n".join(f'<span class="ms-line" id="L{n}"><i>{n}</i>{line}</span>' for n, line in enumerate(marked, 1))
    return PAGE.format(file=escape(file), up="../" * (file.count("/") + 1), lines=lines)


def write_pages(out: Path) -> None:
    for file in files():
        target = out / f"{page_name(file)}.html"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page(file), encoding="utf-8")


LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?:\.\./|\./)*(minispec(?:_course)?/[\w/.-]+?)(#[\w-]+)?\)")


def point_at_lines(text: str) -> str:
    """Links to files of the package, in Markdown → links to our pages, at the line of the function they name."""

    def replaced(match: re.Match) -> str:
        words, path, _ = match.groups()
        path = path.rstrip("/")
        if path not in files():
            inner = f"{path}/__init__.py"
            return f"[{words}](src:{inner})" if inner in files() else words
        name = re.fullmatch(r"`([\w.]+)(?:\(.*\))?`", words.strip())
        place = name and (find(path, name[1]) or find(path, name[1].split(".")[-1]))
        return f"[{words}]({link(place or (path, 1))})"

    return LINK.sub(replaced, text)
