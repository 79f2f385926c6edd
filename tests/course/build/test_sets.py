"""From one source to two notebooks, and back to a fresh one; checks from the terminal."""

from __future__ import annotations

import shutil

import nbformat
import pytest

from minispec import cli
from minispec_course.build import builder
from minispec_course.check import terminal

SOURCE = '''\
# %% [markdown]
# # A set

# %%
import torch

from minispec_course.check import check, hint

# %% [markdown] exercise="06.accept"
# ## The coin
#
# Words.


# %% exercise="06.accept"
def accept(p, q, token):
    """A docstring that stays."""
    ### BEGIN SOLUTION: what to do
    ratio = p[token] / q[token]

    return min(1.0, float(ratio))
    ### END SOLUTION


# %% exercise="06.accept"
check("06.accept", accept)
'''
NAME = "06_set"


@pytest.fixture(scope="module", autouse=True)
def no_kernel():
    """Solutions are numbered as if they had been run: test_builder.py runs notebooks, these tests look at the cells."""

    def number(notebook, job):
        for count, cell in enumerate(builder.code_cells(notebook), start=1):
            cell.execution_count = count

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "execute", number)
        yield


@pytest.fixture(scope="module")
def built(no_kernel, tmp_path_factory):
    root = tmp_path_factory.mktemp("course")
    source = root / f"course/exercises/{NAME}.py"
    source.parent.mkdir(parents=True)
    source.write_text(SOURCE, encoding="utf-8")
    assert [job.kind for job in builder.build(root=root)] == ["exercise", "solution"]
    return root


@pytest.fixture
def repository(built, tmp_path, monkeypatch):
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "progress.json"))
    return shutil.copytree(built, tmp_path / "copy")


def exercise_of(root):
    return root / f"exercises/{NAME}.ipynb"


def read(root, folder="exercises"):
    return nbformat.read(root / folder / f"{NAME}.ipynb", as_version=4)


# ---- the builder ----------------------------------------------------------------------------------------------------


def test_the_learner_gets_a_stub_and_the_teacher_the_answer(built):
    stub, solved = read(built).cells[3].source, read(built, "solutions").cells[3].source
    assert stub.splitlines()[1:] == [
        '    """A docstring that stays."""',
        "    # what to do",
        '    raise NotImplementedError("06.accept")',
    ]
    assert "ratio = p[token] / q[token]\n\n    return min" in solved and "SOLUTION" not in solved


def test_cells_are_text_answer_hint_check_in_both(built):
    for folder in ("exercises", "solutions"):
        nb = read(built, folder)
        nbformat.validate(nb)
        roles = [cell.metadata.get("minispec", {}).get("role") for cell in nb.cells]
        assert roles == [None, None, None, "answer", "hint", "check"]
        assert nb.cells[2].source.splitlines()[2] == "*easy · 10 minutes · 1 point*"
        assert nb.cells[4].source.splitlines()[-1] == 'hint("06.accept")'  # no # to remove: it shows a button
    assert [cell.id for cell in read(built).cells] == [cell.id for cell in read(built, "solutions").cells]


def test_a_mistake_in_the_source_publishes_nothing(repository):
    before = exercise_of(repository).read_bytes()
    mistakes = [
        ("    ### END SOLUTION\n", "", "do not pair up"),
        ("    ### BEGIN SOLUTION: what to do\n", "", "do not pair up"),
        ('# %% exercise="06.accept"\ndef', "# %%\ndef", "do not pair up"),
        ('check("06.accept", accept)', 'check("06.residual", accept)', "neither"),
        ('exercise="06.accept"', 'exercise="06.nothing"', "06.nothing"),
    ]
    for old, new, key in mistakes:
        source = repository / f"course/exercises/{NAME}.py"
        source.write_text(SOURCE.replace(old, new), encoding="utf-8")
        with pytest.raises(ValueError, match=key):
            list(builder.build(root=repository))
        assert exercise_of(repository).read_bytes() == before


# ---- the terminal ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_check_from_the_terminal(repository, monkeypatch, capsys):
    monkeypatch.setattr(terminal.locate, "__defaults__", (repository,))
    said = {'raise NotImplementedError("06.accept")': "not attempted", "return 1.0": "wrong"}
    said["return min(1.0, float(p[token] / q[token]))"] = "right"
    for body, outcome in said.items():
        nb = read(repository)
        nb.cells[3].source = f"def accept(p, q, token):\n    {body}"
        nbformat.write(nb, exercise_of(repository))
        assert cli.main(("check", "06")) == (outcome != "right")
        assert f"06.accept  {outcome}" in capsys.readouterr().out
    cli.main(("progress",))
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("06.accept")]
    assert "solved" in line and "2 attempts" in line and "hint" not in line  # running a hint cell asks for no hint
