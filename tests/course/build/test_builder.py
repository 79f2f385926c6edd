"""The notebook builder: same source, same bytes; and nothing stale goes unnoticed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from minispec_course.build import builder
from minispec_course.build.spoilers import uncovered

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
    source = root / "course/lessons/01_lesson.py"
    source.parent.mkdir(parents=True)
    source.write_text(LESSON, encoding="utf-8")
    assert [job.name for job in builder.build(root=root)] == ["01_lesson"]
    return root


@pytest.fixture
def repository(built, tmp_path):
    """A copy of it to spoil."""
    return shutil.copytree(built, tmp_path / "copy")


def source_of(root):
    return root / "course/lessons/01_lesson.py"


def notebook_of(root):
    return root / "notebooks/01_lesson.ipynb"


@pytest.mark.slow
def test_the_same_source_gives_the_same_bytes(built, repository):
    notebook_of(repository).unlink()
    list(builder.build(root=repository))
    assert notebook_of(repository).read_bytes() == notebook_of(built).read_bytes()


def test_outputs_counts_and_tags_are_kept_and_nothing_of_the_machine(built):
    notebook = nbformat.read(notebook_of(built), as_version=4)
    nbformat.validate(notebook)
    cells = builder.code_cells(notebook)
    assert [uncovered(cell).execution_count for cell in cells] == [1, 2, 3, 4, 5]
    assert [output.text for output in cells[0].outputs] == ["one\ntwo\n"]
    assert {output.output_type for output in cells[1].outputs} == {"stream", "execute_result"}
    assert [cell.metadata.get("tags", []) for cell in cells] == [[], ["nbval-ignore-output"], [], [], ["spoiler"]]
    assert notebook.metadata.keys() == {"kernelspec", "language_info", "minispec"}
    assert "version" not in notebook.metadata["language_info"]
    assert all(cell.metadata.keys() <= {"tags", "minispec"} for cell in notebook.cells)  # no times of execution


def test_an_answer_is_covered_and_can_be_uncovered(built):
    *others, answer = builder.code_cells(nbformat.read(notebook_of(built), as_version=4))
    assert (answer.outputs, answer.execution_count) == ([], None)
    assert [output.text for output in uncovered(answer).outputs] == ["the answer is 42\n"]
    assert all(cell.outputs and uncovered(cell) is cell for cell in others)
    answer.outputs = [nbformat.v4.new_output("stream", text="run by the reader\n")]
    assert uncovered(answer) is answer


@pytest.mark.slow
def test_the_reader_is_told_what_to_do_first(built, repository):
    def cells() -> list:
        return nbformat.read(notebook_of(repository), as_version=4).cells

    assert cells()[0].source.startswith("# A lesson") and "Shift + Enter" in cells()[1].source
    assert "commit" not in cells()[1].source  # nothing is to be predicted
    asking = LESSON.replace('print("one")', 'from minispec_course import viz\nguess = viz.predict("?")\nprint("one")')
    source_of(repository).write_text(asking, encoding="utf-8")
    list(builder.build(root=repository))
    assert "commit" in cells()[1].source and builder.check(root=repository) == []


@pytest.mark.slow
def test_nbval_compares_what_is_covered(repository):
    """In a process of its own, with the conftest.py of the repository: green as built, red where the answer differs."""
    shutil.copy(ROOT / "conftest.py", repository / "conftest.py")
    run = [sys.executable, "-m", "pytest", "--nbval", "-q", "-p", "no:cacheprovider", "notebooks"]
    for text, code in (("the answer is 42\n", 0), ("the answer is 41\n", 1)):
        notebook = nbformat.read(notebook_of(repository), as_version=4)
        notebook.cells[-1].metadata.minispec.covered.outputs[0].text = text
        nbformat.write(notebook, notebook_of(repository))
        assert subprocess.run(run, cwd=repository, capture_output=True).returncode == code


def test_cell_ids_come_from_the_text_of_the_cells(built, repository):
    [before], [after] = builder.jobs(root=built), builder.jobs(root=repository)
    source_of(repository).write_text("# %%\nprint(0)\n\n" + LESSON, encoding="utf-8")
    ids = [cell.id for cell in builder.compose(before).cells]
    assert len(set(ids)) == len(ids)  # twins too
    assert [cell.id for cell in builder.compose(after).cells][1:] == ids  # a cell more in front moves no other id


def edited(change):
    """Change the stored notebook."""

    def spoil(root):
        notebook = nbformat.read(notebook_of(root), as_version=4)
        change(notebook)
        nbformat.write(notebook, notebook_of(root))

    return spoil


def test_check_finds_what_is_stale(built, tmp_path):
    spoiled = [
        (lambda root: source_of(root).write_text(LESSON.replace("one", "uno"), encoding="utf-8"), "another version"),
        (lambda root: source_of(root).write_text(LESSON + "\n", encoding="utf-8"), "another version"),
        (lambda root: notebook_of(root).unlink(), "never built"),
        (edited(lambda nb: nb.cells[2].update(source="print('one')")), "edited by hand"),
        (edited(lambda nb: nb.cells.pop()), "edited by hand"),
        (edited(lambda nb: nb.cells[3].metadata.clear()), "edited by hand"),
        (edited(lambda nb: nb.metadata.update(widgets={})), "edited by hand"),
        (edited(lambda nb: nb.cells[2].update(execution_count=7)), "not run"),
        (edited(lambda nb: nb.cells[-1].update(uncovered(nb.cells[-1]))), "shows the answer"),
        (lambda root: shutil.copy(notebook_of(root), root / "notebooks/02_other.ipynb"), "02_other.ipynb has no"),
    ]
    assert builder.check(root=built) == []
    for number, (spoil, complaint) in enumerate(spoiled):
        root = shutil.copytree(built, tmp_path / str(number))
        spoil(root)
        [said] = builder.check(root=root)
        assert complaint in said


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
def test_widgets_leave_no_trace(repository):
    source_of(repository).write_text("# %%\nimport ipywidgets\n\nipywidgets.IntSlider(3)\n", encoding="utf-8")
    list(builder.build(root=repository))
    notebook = nbformat.read(notebook_of(repository), as_version=4)
    assert "widgets" not in notebook.metadata
    assert builder.code_cells(notebook)[0].outputs == []


def test_names_choose_lessons(repository):
    source_of(repository).with_name("02_next.py").write_text("# %%\n", encoding="utf-8")
    assert [job.name for job in builder.jobs(root=repository)] == ["01_lesson", "02_next"]
    assert [job.name for job in builder.jobs(["02"], root=repository)] == ["02_next"]
    assert [job.name for job in builder.jobs(["01_lesson"], root=repository)] == ["01_lesson"]
    with pytest.raises(ValueError, match=r"03.*01_lesson, 02_next"):
        builder.jobs(["01", "03"], root=repository)
    with pytest.raises(ValueError, match="clone"):
        builder.jobs(root=repository / "notebooks")
