"""Run the tests of this folder that take a `device` on this machine's GPU. Works without pytest.

    make gpu                                                       # all of them
    PYTHONPATH=.:tests python3 tests/gpu/run.py                    # the same, by this Python
    PYTHONPATH=.:tests python3 tests/gpu/run.py test_passes        # those of this file; it may be several
    PYTHONPATH=.:tests python3 tests/gpu/run.py replay             # those with this word in their name
    TRITON_INTERPRET=1 PYTHONPATH=.:tests python3 tests/gpu/run.py --few kernel_tests    # the kernels on a CPU

These are the functions that pytest runs on a CPU, with all their parameters, and those of kernel_tests.py. Prints a
line for each, with its seconds; the exit code says whether all passed.
"""

import gc
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import torch

try:
    import pytest  # noqa: F401
except ImportError:  # a stand-in: marks are remembered, as pytest remembers them, and fixtures are of no use

    class Param(NamedTuple):
        values: tuple
        marks: object

    class Marks:
        def __getattr__(self, name: str) -> Callable:
            def mark(*args, **options):
                def marked(test: Callable) -> Callable:
                    test.pytestmark = [*getattr(test, "pytestmark", []), SimpleNamespace(name=name, args=args)]
                    return test

                return marked(args[0]) if len(args) == 1 and callable(args[0]) else marked

            return mark

    stand_in = ModuleType("pytest")
    stand_in.mark, stand_in.param = Marks(), lambda *values, marks=(): Param(values, marks)
    stand_in.fixture = lambda *args, **options: args[0] if args else lambda function: function
    sys.modules["pytest"] = stand_in


def cases(test: Callable) -> list[dict]:
    """Every combination of the arguments that its marks name."""
    every = [{}]
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            names, values = mark.args[0].split(", "), mark.args[1]
            rows = [row.values if hasattr(row, "marks") else row if len(names) > 1 else (row,) for row in values]
            every = [dict(zip(names, row, strict=True)) | some for some in every for row in rows]
    return every


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def runs_here(test: Callable) -> bool:
    return DEVICE == "cuda" or all(mark.name != "gpu" for mark in getattr(test, "pytestmark", []))


def tests(words: list[str]) -> Iterator[tuple[str, Callable, dict]]:
    files = ["kernel_tests", *sorted(path.stem for path in Path(__file__).parent.glob("test_*.py"))]
    for file in [file for file in files if file in words] or files:
        for name, test in vars(import_module(file)).items():
            asks = name.startswith("test_") and (file == "kernel_tests" or "device" in signature(test).parameters)
            for given in cases(test) if asks and runs_here(test) else []:
                values = ", ".join(str(value)[:24] for value in given.values())
                label = f"{file}::{name}" + f"[{values}]" * bool(values)
                if not words or any(word in label for word in words):
                    yield label, test, given


def main(words: list[str]) -> int:
    failed, began = [], time.perf_counter()
    print(torch.__version__, torch.cuda.get_device_name() if DEVICE == "cuda" else "no GPU", flush=True)
    for label, test, given in tests([word for word in words if word != "--few"]):
        start, error = time.perf_counter(), None
        try:
            test(**given | ({"device": DEVICE} if "device" in signature(test).parameters else {}))
        except Exception as caught:
            error = caught
            failed.append(label)
        print(f"{'FAILED' if error else 'ok':<7}{time.perf_counter() - start:6.1f} s  {label}", flush=True)
        if error:
            traceback.print_exception(error)
        del error
        gc.collect()
    print(f"{time.perf_counter() - began:.0f} s", *(f"\nFAILED {label}" for label in failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
