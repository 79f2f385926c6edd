"""Run every lesson from top to bottom on this machine's device, and say what its timing cells used.

    python tests/gpu/lesson_checks.py                    all lessons, one process each
    python tests/gpu/lesson_checks.py 00 07 --limit 90   some of them; longer than so many seconds counts as a failure

No Jupyter is needed, and no jupytext: code cells are executed one after the other in one namespace. Needed are IPython,
ipywidgets, anywidget, plotly and what they import (pure Python: unzip the wheels into a folder on PYTHONPATH).
Prints a line per lesson: seconds, the models that generated or were timed and the device of each, tokens per second
where some were generated, and the error if there was one. A timing lesson whose device is a GPU must have used it.
"""

from __future__ import annotations

import argparse
import json
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
LESSONS = sorted((ROOT / "course/lessons").glob("[!_]*.py"))
NEEDS = {"17": "jupytext"}  # lessons that need more: skipped where that is missing
TIMED = ("00", "01", "02", "04", "07", "08", "10", "11", "12", "13")  # these measure the learner's device


def code_cells(source: str) -> list[str]:
    """The code cells of a file in jupytext's percent format."""
    cells: list[tuple[str, list[str]]] = []
    for line in source.splitlines():
        if line.startswith("# %%"):
            cells.append((line, []))
        elif cells:
            cells[-1][1].append(line)
    return ["\n".join(lines) for head, lines in cells if "[markdown]" not in head and any(map(str.strip, lines))]


class Used:
    """What the models of a lesson were asked to do: watched where every output is made, and where passes are timed."""

    def __init__(self):
        self.found: dict[str, dict] = {}

    def note(self, model, tokens: int = 0, seconds: float = 0.0, speculative: bool = False) -> None:
        key = f"{model.name} {str(model.dtype).removeprefix('torch.')} on {model.device}"
        entry = self.found.setdefault(key, {"device": model.device.type, "plain": 0.0, "speculative": 0.0})
        if tokens > 8 and seconds:  # the best run: the first ones compile and record
            kind = "speculative" if speculative else "plain"
            entry[kind] = max(entry[kind], tokens / seconds)

    def watch(self) -> None:
        from minispec import measure
        from minispec.generate import Writer

        output, curve, times = Writer.output, measure.verify_curve, measure.interleaved_times

        def noted_output(writer, prompt_tokens, seconds, trace=None):
            self.note(writer.model, len(writer.tokens), seconds, trace is not None)
            return output(writer, prompt_tokens, seconds, trace)

        def noted_curve(model, *args, **options):
            self.note(model)
            return curve(model, *args, **options)

        def noted_times(calls, repeat=9, warmup=2, device="cpu", **options):
            kind = str(device).partition(":")[0]
            self.found.setdefault(f"a clock on {device}", {"device": kind, "plain": 0.0, "speculative": 0.0})
            return times(calls, repeat, warmup, device, **options)

        Writer.output, measure.verify_curve, measure.interleaved_times = noted_output, noted_curve, noted_times


def run(file: Path) -> dict:
    """One lesson, in this process."""
    os.chdir(ROOT / "notebooks")
    sys.path.insert(0, str(ROOT))
    warnings.simplefilter("default")
    began = time.perf_counter()
    from minispec_course import minispec_course as course

    course.PACKAGES = ()  # the course's other packages build and grade notebooks: not needed here
    import minispec as ms

    used, error, device = Used(), None, ms.device()
    used.watch()
    space: dict = {"__name__": "__main__"}
    cells = code_cells(file.read_text(encoding="utf-8"))
    slowest = (0.0, "")
    for number, cell in enumerate(cells, start=1):
        start = time.perf_counter()
        try:
            name = f"<{file.stem}, code cell {number}>"
            linecache.cache[name] = len(cell), None, cell.splitlines(True), name  # Triton reads a kernel's source
            exec(compile(cell, name, "exec"), space)
        except Exception:
            error = f"cell {number} of {len(cells)}: {traceback.format_exc(limit=-4)}"
            break
        slowest = max(slowest, (time.perf_counter() - start, f"cell {number}: {cell.strip().splitlines()[0][:60]}"))
    if error is None and file.stem[:2] in TIMED and device.type not in {use["device"] for use in used.found.values()}:
        error = f"nothing was timed on {device}"
    return {
        "seconds": time.perf_counter() - began,
        "device": str(device),
        "used": used.found,
        "slowest": slowest,
        "error": error,
    }


def line(name: str, result: dict) -> str:
    lines = [f"{name}: {result['seconds']:.1f} s, device {result['device']}"]
    lines[0] += f"; slowest {result['slowest'][0]:.1f} s, {result['slowest'][1]}"
    for model, use in result["used"].items():
        rates = [f"{kind} {use[kind]:,.0f} tokens/s" for kind in ("plain", "speculative") if use[kind]]
        lines.append(f"    {model}" + (f": {', '.join(rates)}" if rates else ""))
    return "\n".join([*lines, f"    ERROR {result['error']}"] if result["error"] else lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lessons", nargs="*", help="numbers, such as 00 07 (default: all)")
    parser.add_argument("--limit", type=float, default=90, help="seconds that a lesson may take (default: 90)")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="keep the results here as JSON, too")
    args = parser.parse_args()
    if args.one:
        result = run(args.one)
        print("\nRESULT" + json.dumps(result), flush=True)
        return 0
    chosen = [file for file in LESSONS if not args.lessons or file.stem.split("_")[0] in args.lessons]
    results, failed = {}, []
    for file in list(chosen):
        if (needed := NEEDS.get(file.stem[:2])) and find_spec(needed) is None:
            print(f"{file.stem}: skipped, it needs {needed}")
            chosen.remove(file)
            continue
        command = [sys.executable, __file__, "--one", str(file)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=4 * args.limit)
            found = done.stdout.rpartition("\nRESULT")[2]
            result = json.loads(found) if done.returncode == 0 else {"error": done.stderr[-2000:]}
            warned = [line for line in done.stderr.splitlines() if "Warning: " in line]
        except subprocess.TimeoutExpired:
            result, warned = {"error": f"not done after {4 * args.limit:.0f} s"}, []
        result = {"seconds": float("nan"), "device": "?", "used": {}, "slowest": (0, "")} | result
        if result["error"] is None and result["seconds"] > args.limit:
            result["error"] = f"took longer than {args.limit:.0f} s"
        results[file.stem] = result
        failed += [file.stem] if result["error"] else []
        print("\n".join([line(file.stem, result), *(f"    {w}" for w in dict.fromkeys(warned))]), flush=True)
    if args.out:
        args.out.write_text(json.dumps(results, indent=1))
    print(f"{len(chosen) - len(failed)} of {len(chosen)} lessons ran; failed: {' '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
