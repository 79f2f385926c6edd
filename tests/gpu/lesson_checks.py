"""Run every lesson from top to bottom on this machine's device.

    python tests/gpu/lesson_checks.py                    all lessons, one process each
    python tests/gpu/lesson_checks.py 00 07 --limit 90   some of them; longer than so many seconds counts as a failure

No Jupyter is needed, and no jupytext: code cells are executed one after the other in one namespace. Needed are IPython,
ipywidgets, anywidget, plotly and what they import (pure Python: unzip the wheels into a folder on PYTHONPATH).
Prints a line per lesson: seconds, the slowest cell, warnings, and the error if there was one.
"""

import argparse
import linecache
import os
import subprocess
import sys
import time
import traceback
import warnings
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LESSONS = sorted((ROOT / "minispec_course/lessons").glob("[!_]*.py"))
NEEDS = {"12": "numba", "15": "llguidance", "17": "jupytext"}  # lessons that need more: skipped where it is missing


def code_cells(source: str) -> list[str]:
    """The code cells of a file in jupytext's percent format."""
    cells: list[tuple[str, list[str]]] = []
    for line in source.splitlines():
        if line.startswith("# %%"):
            cells.append((line, []))
        elif cells:
            cells[-1][1].append(line)
    return ["\n".join(lines) for head, lines in cells if "[markdown]" not in head and any(map(str.strip, lines))]


def run(file: Path) -> None:
    """One lesson, in this process: the last line says how long it took."""
    os.chdir(ROOT / "notebooks")
    sys.path.insert(0, str(ROOT))
    warnings.simplefilter("default")
    began, slowest, space = time.perf_counter(), (0.0, ""), {"__name__": "__main__"}
    import minispec_course as course

    course.PACKAGES = ()  # the course's other packages build and grade notebooks: not needed here
    import minispec as ms

    for number, cell in enumerate(code_cells(file.read_text(encoding="utf-8")), start=1):
        start, name = time.perf_counter(), f"<{file.stem}, code cell {number}>"
        linecache.cache[name] = len(cell), None, cell.splitlines(True), name  # Triton reads a kernel's source
        try:
            exec(compile(cell, name, "exec"), space)
        except Exception:
            sys.exit(f"cell {number}: {traceback.format_exc(limit=-4)}")
        slowest = max(slowest, (time.perf_counter() - start, f"cell {number}: {cell.strip().splitlines()[0][:60]}"))
    print(f"\n{time.perf_counter() - began:.1f} s, device {ms.device()}; slowest {slowest[0]:.1f} s, {slowest[1]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lessons", nargs="*", help="numbers, such as 00 07 (default: all)")
    parser.add_argument("--limit", type=float, default=90, help="seconds that a lesson may take (default: 90)")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        run(args.one)
        return 0
    failed = 0
    for file in LESSONS:
        number = file.stem.split("_")[0]
        if number not in (args.lessons or [number]):
            continue
        if number in NEEDS and find_spec(NEEDS[number]) is None:
            print(f"{file.stem}: skipped, needs {NEEDS[number]}")
            continue
        done = subprocess.run([sys.executable, __file__, "--one", str(file)], capture_output=True, text=True)
        said = done.stdout.strip().rpartition("\n")[2]
        wrong = done.returncode != 0 or float(said.split(" s,")[0]) > args.limit
        warned = "".join(f"\n    {line}" for line in done.stderr.splitlines() if "Warning: " in line)
        print(f"{file.stem}: {'FAILED ' * wrong}{said}{done.stderr[-2000:] if done.returncode else warned}", flush=True)
        failed += wrong
    return failed


if __name__ == "__main__":
    sys.exit(main())
