"""Every lesson, opened in JupyterLab and run from top to bottom in a real browser.

With MINISPEC_SCREENSHOTS=docs/images the pictures go there, for the README; otherwise to the test's own folder.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LESSONS = sorted(file.name for file in (ROOT / "notebooks").glob("*.ipynb"))
SHOW = {"00_start_here.ipynb": "## Predict"}  # what is worth a picture; otherwise the top


@pytest.mark.browser
@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_runs_in_the_browser(lab, name, tmp_path):
    lab.open(name)
    cells = lab.run_all()
    pictures = Path(os.environ.get("MINISPEC_SCREENSHOTS", tmp_path))
    if name in SHOW:
        lab.show(SHOW[name])
    picture = pictures / f"{name.split('_', 1)[1].removesuffix('.ipynb')}.png"
    lab.page.screenshot(path=picture)
    assert picture.stat().st_size > 10_000
    assert not [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert lab.page.locator(".jp-Dialog, .Toastify__toast").count() == 0  # nothing stands in the learner's way
