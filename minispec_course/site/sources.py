"""Where a name of the package is defined, and pages that show the source with an anchor on every line."""

import inspect
import pkgutil
import re
from functools import cache
from html import escape
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from ..build.builder import ROOT

PACKAGES = ("minispec", "minispec_course", "minispec_tools")


@cache
def files() -> tuple[str, ...]:
    """Every file that a page may show, as "minispec/verify.py"."""
    every = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    return tuple(sorted(file.relative_to(ROOT).as_posix() for file in every))


@cache
def lessons() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in (ROOT / "notebooks").glob("*.ipynb")))


@cache
def exercises() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in (ROOT / "solutions").glob("*.ipynb")))


def find(name: str) -> tuple[str, int] | None:
    """(file, line) of a function or a class: "minispec.theory.speedup", or with its module told apart by a colon."""
    try:
        thing = pkgutil.resolve_name(name)
        if inspect.ismodule(thing):  # "minispec.generate" is the function in the module of its name
            thing = getattr(thing, name.rpartition(".")[2], thing)
        thing = inspect.unwrap(thing)
        file = Path(inspect.getsourcefile(thing)).relative_to(ROOT).as_posix()
        return file, inspect.getsourcelines(thing)[1]
    except (ImportError, AttributeError, TypeError, ValueError, OSError):  # a constant, or nothing of ours
        return None


def link(place: tuple[str, int]) -> str:
    """What the pages link to; the extension turns it into an address relative to the page."""
    file, line = place
    return f"src:{file}#L{line}" if line > 1 else f"src:{file}"


def page_name(file: str) -> str:
    return f"source/{file.removesuffix('.py')}"


PAGE = Path(__file__).with_name("pages") / "source.html"


def page(file: str) -> str:
    """The source of a file as a page of its own: one element per line, whose id is L and its number."""
    text = (ROOT / file).read_text(encoding="utf-8")
    marked = highlight(text, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)).rstrip("\n").split("\n")
    lines = "\n".join(f'<span class="ms-line" id="L{n}"><i>{n}</i>{line}</span>' for n, line in enumerate(marked, 1))
    return PAGE.read_text(encoding="utf-8").format(file=escape(file), up="../" * (file.count("/") + 1), lines=lines)


def write_pages(out: Path) -> None:
    """A page for every file that the pages of the site link to."""
    shown = "\n".join(page.read_text(encoding="utf-8") for page in out.rglob("*.html"))
    linked = set(re.findall(r"source/[\w/]+(?=\.html)", shown))
    for file in (file for file in files() if page_name(file) in linked):
        target = out / f"{page_name(file)}.html"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page(file), encoding="utf-8")


LINK = re.compile(rf"\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?:\.\./|\./)*((?:{'|'.join(PACKAGES)})/[\w/.-]+?)(#[\w-]+)?\)")


def point_at_lines(text: str) -> str:
    """Links to files of the package, in Markdown → links to our pages, at the line of the function they name."""

    def replaced(match: re.Match) -> str:
        words, path, _ = match.groups()
        path = path.rstrip("/")
        if path not in files():
            inner = f"{path}/__init__.py"
            return f"[{words}](src:{inner})" if inner in files() else words
        name = re.fullmatch(r"`([\w.]+)(?:\(.*\))?`", words.strip())
        module = path.removesuffix(".py").replace("/", ".")
        place = name and (find(f"{module}:{name[1]}") or find(f"{module}:{name[1].split('.')[-1]}"))
        return f"[{words}]({link(place or (path, 1))})"

    return LINK.sub(replaced, text)
