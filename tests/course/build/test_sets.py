"""From one source to two notebooks, and back to a fresh one; checks from the terminal."""

from __future__ import annotations

import shutil

import nbformat
import pytest

from minispec import cli
from minispec_course.build import builder, cells
from minispec_course.check import copies, terminal

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


def answer(root, source: str) -> None:
    """Fill the exercise in."""
    nb = read(root)
    nb.cells[3].source = source
    nbformat.write(nb, exercise_of(root))


RIGHT = "def accept(p, q, token):\n    return min(1.0, float(p[token] / q[token]))"
WRONG = "def accept(p, q, token):\n    return 1.0"


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


def test_check_finds_what_is_stale(repository):
    assert builder.check(root=repository) == []
    answer(repository, RIGHT)
    [said] = builder.check(root=repository)
    assert said.startswith(f"exercises/{NAME}") and "edited" in said
    copies.reset("06", root=repository)
    assert builder.check(root=repository) == []  # and the attempt beside it is nobody's business
    nb = read(repository)
    nb.cells[1].execution_count = 1
    nbformat.write(nb, exercise_of(repository))
    assert "outputs" in builder.check(root=repository)[0]


def test_building_never_overwrites_work(repository):
    answer(repository, RIGHT)
    list(builder.build(root=repository))
    kept = nbformat.read(repository / f"exercises/{NAME}.attempt-1.ipynb", as_version=4)
    assert kept.cells[3].source == RIGHT and cells.is_stub(read(repository).cells[3].source)
    list(builder.build(root=repository))  # nothing to keep this time
    assert len(list((repository / "exercises").iterdir())) == 2


# ---- reset ----------------------------------------------------------------------------------------------------------


def test_reset_restores_and_keeps_every_attempt(built, repository):
    for number, source in enumerate((RIGHT, WRONG), start=1):
        answer(repository, source)
        _, kept = copies.reset("06", root=repository)
        assert kept.name == f"{NAME}.attempt-{number}.ipynb"
        assert nbformat.read(kept, as_version=4).cells[3].source == source
        assert exercise_of(repository).read_bytes() == exercise_of(built).read_bytes()


def test_reset_of_what_is_new_or_gone_or_broken(built, repository):
    assert copies.reset(NAME, root=repository)[1] is None
    exercise_of(repository).unlink()
    assert copies.reset("06", root=repository)[1] is None
    exercise_of(repository).write_text("half a noteb", encoding="utf-8")
    assert copies.reset("06", root=repository)[1].read_text(encoding="utf-8") == "half a noteb"
    assert exercise_of(repository).read_bytes() == exercise_of(built).read_bytes()


# ---- the terminal ---------------------------------------------------------------------------------------------------


@pytest.fixture
def run(repository, monkeypatch, capsys):
    """run("check", "06") → exit code, stdout, stderr, in the small repository."""
    monkeypatch.setattr(builder, "ROOT", repository)
    monkeypatch.setattr(copies.reset, "__defaults__", (repository,))
    monkeypatch.setattr(terminal.locate, "__defaults__", (repository,))

    def call(*argv: str):
        return cli.main(argv), *capsys.readouterr()

    return call


@pytest.mark.slow
def test_check_from_the_terminal(run, repository):
    nb = read(repository)
    nb.cells[4].source = 'hint("06.accept")'
    nbformat.write(nb, exercise_of(repository))
    code, out, _ = run("check", "06")
    assert code == 1 and "06.accept  not attempted" in out and "0 of 1 points" in out
    answer(repository, WRONG)
    code, out, _ = run("check", str(exercise_of(repository)))
    assert code == 1 and "06.accept  wrong" in out and "accept every draft" in out
    answer(repository, RIGHT)
    code, out, _ = run("check", NAME)
    assert code == 0 and "06.accept  right" in out and "1 of 1 points" in out
    _, out, _ = run("progress")
    [line] = [line for line in out.splitlines() if line.startswith("06.accept")]
    assert "solved" in line and "2 attempts" in line and "hint" not in line  # running a hint cell asks for no hint


def test_reset_and_hint_from_the_terminal(run, repository):
    answer(repository, RIGHT)
    code, out, _ = run("reset", "06")
    assert code == 0 and "attempt-1" in out and "Reload Notebook from Disk" in out and "Revert" in out
    assert "not been changed" in run("reset", "06")[1]
    assert run("hint", "06.accept")[1].startswith("06.accept, hint 1 of 3")


def test_a_wrong_name_is_one_line_on_stderr(run, tmp_path):
    (tmp_path / "a.ipynb").write_text("{", encoding="utf-8")
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "b.ipynb")
    wrong = [
        ("check 19", "19"),
        ("check nowhere.ipynb", "no such file"),
        ("reset 19", "19"),
        ("hint 06.x", "06.residual"),
    ]
    wrong += [(f"check {tmp_path}/a.ipynb", "no notebook"), (f"check {tmp_path}/b.ipynb", "no check")]
    for line, key in wrong:
        code, out, err = run(*line.split())
        assert (code, out) == (2, "") and key in err and err.count("\n") == 1, line


def test_outputs_are_read_as_the_checks_mean_them():
    def said(text):
        return [{"output_type": "stream", "text": text}]

    error = {"output_type": "error", "ename": "NameError", "evalue": "name 'accept' is not defined"}
    assert terminal.result("06.accept", said("06.accept: right, in 6 cases.")).outcome == "right"
    assert terminal.result("06.accept", said("06.accept: not attempted yet.")).outcome == "not attempted"
    assert terminal.result("06.accept", said("06.residual: right")).outcome == "wrong"  # somebody else's check
    assert terminal.result("06.accept", []).outcome == "wrong"
    assert "NameError" in terminal.result("06.accept", [error]).text
