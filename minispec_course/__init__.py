"""What teaches: lessons, exercises and their checks, widgets, interview practice, the site.

lessons     the sources of notebooks/
exercises   a folder per set: the source of its notebook, answers and cases, titles and hints
build       from these sources to notebooks
check       is an answer right, and which mistake is it: in a notebook, in a terminal, for a class
viz         the widgets and pictures of the lessons
labs        the experiments of the lessons, and formulas.py
interview   questions, drills and mock interviews
site        the course as web pages
jupyterlab  how `minispec lab` sets JupyterLab up

All of it needs the packages of the extra "course".
"""

from importlib.util import find_spec

PACKAGES = ("jupyterlab", "ipywidgets", "anywidget", "plotly", "jupytext", "nbclient", "nbformat", "yaml", "fsrs")


def counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


class MissingExtra(ImportError, ValueError):
    """Packages of the extra are missing: an import that fails, and something that the user can fix in one command."""


def require_extra() -> None:
    """Say what to install before an import fails half-way through."""
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise MissingExtra(
            f"the course needs packages that are not installed here ({', '.join(missing)}): "
            'run make lab, or pip install -c constraints.txt -e ".[course]"'
        )
