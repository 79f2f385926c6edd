"""The notebook builder: same source, same bytes; and nothing stale goes unnoticed."""

import shutil
from pathlib import Path

import nbformat
import pytest

from minispec_course.build import builder
from minispec_course.build.spoilers import uncovered
from minispec_course.stored import PICTURE, PLOTLY, WIDGET

ROOT = Path(__file__).resolve().parents[3]
LESSON = """\
# %% [markdown]
# # A lesson
# With **two** lines.

# %%
print("one")
print("two")

# %% tags=["nbval-ignore-output"]
import sys

print("three", file=sys.stderr)
6 * 7

# %%
print("twin")

# %%
print("twin")

# %% tags=["spoiler"]
print("the answer is 42")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A repository with one lesson, built."""
    root = tmp_path_factory.mktemp("course")
    source = root / "minispec_course/lessons/01_lesson.py"
    source.parent.mkdir(parents=True)
    source.write_text(LESSON, encoding="utf-8")
    assert [job.name for job in builder.build(root=root)] == ["01_lesson"]
    return root


@pytest.fixture
def repository(built, tmp_path):
    """A copy of it to spoil."""
    return shutil.copytree(built, tmp_path / "copy")


def source_of(root):
    return root / "minispec_course/lessons/01_lesson.py"


def notebook_of(root):
    return root / "notebooks/01_lesson.ipynb"


def test_outputs_counts_and_tags_are_kept_and_nothing_of_the_machine(built):
    notebook = nbformat.read(notebook_of(built), as_version=4)
    nbformat.validate(notebook)
    cells = builder.code_cells(notebook)
    assert [uncovered(cell).execution_count for cell in cells] == [1, 2, 3, 4, 5]
    assert [output.text for output in cells[0].outputs] == ["one\ntwo\n"]
    assert {output.output_type for output in cells[1].outputs} == {"stream", "execute_result"}
    assert [cell.metadata.get("tags", []) for cell in cells] == [[], ["nbval-ignore-output"], [], [], ["spoiler"]]
    assert "version" not in notebook.metadata["language_info"]
    assert all(cell.metadata.keys() <= {"tags", "minispec"} for cell in notebook.cells)  # no times of execution


def edited(change):
    """Change the stored notebook."""

    def spoil(root):
        notebook = nbformat.read(notebook_of(root), as_version=4)
        change(notebook)
        nbformat.write(notebook, notebook_of(root))

    return spoil


STALE = {
    "another version": lambda root: source_of(root).write_text(LESSON.replace("one", "uno"), encoding="utf-8"),
    "never built": lambda root: notebook_of(root).unlink(),
    "edited by hand": edited(lambda nb: nb.cells[2].update(source="print('one')")),
    "edited by hand, its metadata": edited(lambda nb: nb.metadata.update(widgets={})),
    "not run": edited(lambda nb: nb.cells[2].update(execution_count=7)),
    "shows the answer": edited(lambda nb: nb.cells[-1].update(uncovered(nb.cells[-1]))),
}


@pytest.mark.parametrize("how", STALE)
def test_check_finds_what_is_stale(repository, how):
    assert builder.check(root=repository) == []
    STALE[how](repository)
    [said] = builder.check(root=repository)
    assert how.split(",")[0] in said


@pytest.mark.slow
def test_a_lesson_that_fails_leaves_the_old_notebook(repository):
    old = notebook_of(repository).read_bytes()
    for cell, key in (("1 / 0", "ZeroDivisionError"), ("import sys\nsys.executable", "path of this machine")):
        source_of(repository).write_text(f"# %%\n{cell}\n", encoding="utf-8")
        with pytest.raises(ValueError, match=key):
            list(builder.build(root=repository))
        assert notebook_of(repository).read_bytes() == old
        assert [file.name for file in notebook_of(repository).parent.iterdir()] == ["01_lesson.ipynb"]


@pytest.mark.slow
def test_every_notebook_is_what_its_source_gives():
    assert builder.check() == [], "run: minispec build NAME"


def test_stored_lessons_have_outputs_to_compare_and_a_picture_for_every_widget():
    for file in (ROOT / "notebooks").glob("*.ipynb"):
        cells = [uncovered(cell) for cell in builder.code_cells(nbformat.read(file, as_version=4))]
        compared = [cell.outputs and "nbval-ignore-output" not in cell.metadata.get("tags", []) for cell in cells]
        assert sum(map(bool, compared)) >= 6, file
        for data in (output.get("data", {}) for cell in cells for output in cell.outputs):
            assert WIDGET not in data and PICTURE not in data and (PLOTLY not in data or "image/png" in data), file
