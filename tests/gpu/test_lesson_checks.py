"""The script that runs the lessons on a GPU: it runs the cells that a notebook has, and sees what they used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jupytext
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import lesson_checks

GENERATES = """# %% [markdown]
# raise ValueError("no code")

# %% tags=["nbval-ignore-output"]
import minispec as ms

target = ms.load("micro", device="cpu")

# %%
out = ms.generate(target, "Once upon a time", max_new_tokens=12, ignore_eos=True)
"""


def result_of(folder: Path, source: str, name: str = "00_a.py") -> dict:
    (folder / name).write_text(source, encoding="utf-8")
    command = [sys.executable, lesson_checks.__file__, "--one", str(folder / name)]
    environment = os.environ | {"MINISPEC_DEVICE": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("\nRESULT")[2])


@pytest.mark.parametrize("file", lesson_checks.LESSONS, ids=lambda file: file.stem)
def test_the_cells_are_those_of_the_notebook(file):
    notebook = jupytext.read(file, fmt="py:percent")
    theirs = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.strip() for cell in lesson_checks.code_cells(file.read_text(encoding="utf-8"))] == theirs


@pytest.mark.slow
def test_it_sees_models_devices_and_rates(tmp_path):
    result = result_of(tmp_path, GENERATES)
    assert result["error"] is None and result["device"] == "cpu"
    [(model, use)] = result["used"].items()
    assert model == "micro float32 on cpu" and use["plain"] > 0 == use["speculative"]
    assert "tokens/s" in lesson_checks.line("00_a", result)


@pytest.mark.slow
def test_a_lesson_that_fails_and_one_that_times_nothing_are_told(tmp_path):
    result = result_of(tmp_path, '# %%\n1 + 1\n\n# %%\nraise ValueError("oh")\n')
    assert "cell 2 of 2" in result["error"] and "oh" in result["error"]
    assert "nothing was timed" in result_of(tmp_path, "# %%\n1 + 1\n")["error"]
    assert result_of(tmp_path, "# %%\n1 + 1\n", "03_b.py")["error"] is None  # it need not
