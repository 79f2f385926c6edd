"""What notebooks need and engines do not: widgets, exercises and their grader, interview practice, the demo.

`pip install .` brings what an engine needs, and the demo runs on that. The rest of this folder needs the packages of
the extra "course".
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
