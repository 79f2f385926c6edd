"""The core is light: importing minispec pulls in no notebook, no plots and no transformers."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("transformers", "plotly", "IPython", "ipywidgets", "anywidget", "jupyter", "notebook", "nbformat", "scipy")

PROBE = """
import sys, time
start = time.perf_counter()
import minispec
print(f"{time.perf_counter() - start:.2f}")
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_importing_minispec_imports_nothing_heavy():
    result = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    seconds, modules = result.stdout.splitlines()
    print(f"import minispec: {seconds} s, torch included")
    assert "torch" in modules.split()
    assert [name for name in modules.split() if name.startswith(HEAVY)] == []


def test_everything_public_is_there():
    import minispec as ms

    assert all(getattr(ms, name, None) is not None for name in ms.__all__)
    assert len(set(ms.__all__)) == len(ms.__all__) and ms.__version__
