"""From one source to two notebooks, one with stubs and one with answers; and a set checked from the terminal."""

import nbformat
import pytest

from minispec_course.build import builder, cells
from minispec_course.check import progress
from minispec_course.exercises.exercise import everything
from minispec_tools import cli

LESSONS = sorted((builder.ROOT / "minispec_course/lessons").glob("[!_]*.py"))
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


@pytest.fixture
def both(tmp_path):
    """Composes the notebooks of a source, {"exercise": …, "solution": …}, in a repository of its own."""

    def compose(source: str = SOURCE) -> dict[str, nbformat.NotebookNode]:
        file = tmp_path / "minispec_course/exercises/set_06_set/page.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source, encoding="utf-8")
        return {job.kind: builder.compose(job) for job in builder.jobs(root=tmp_path)}

    return compose


def test_the_learner_gets_a_stub_and_the_teacher_the_answer(both):
    stub, solved = (notebook.cells[3].source for notebook in both().values())
    assert stub.splitlines()[1:] == [
        '    """A docstring that stays."""',
        "    # what to do",
        '    raise NotImplementedError("06.accept")',
    ]
    assert "ratio = p[token] / q[token]\n\n    return min" in solved and "SOLUTION" not in solved


def test_cells_are_text_answer_hint_check_in_both(both):
    exercise, solution = both().values()
    for notebook in (exercise, solution):
        nbformat.validate(notebook)
        roles = [cell.metadata.get("minispec", {}).get("role") for cell in notebook.cells]
        assert roles == [None, None, None, "answer", "hint", "check"]
        assert notebook.cells[2].source.splitlines()[2] == "*easy · 10 minutes · 1 point*"
    assert [cell.id for cell in exercise.cells] == [cell.id for cell in solution.cells]


def test_a_mistake_in_the_source_publishes_nothing(both):
    mistakes = [
        ("    ### END SOLUTION\n", "", "do not pair up"),
        ('# %% exercise="06.accept"\ndef', "# %%\ndef", "do not pair up"),
        ('check("06.accept", accept)', 'check("06.residual", accept)', "neither"),
    ]
    for old, new, key in mistakes:
        with pytest.raises(ValueError, match=key):
            both(SOURCE.replace(old, new))


def test_what_a_lesson_asks_for_is_in_no_set_but_in_classes_and_exams(both, tmp_path, monkeypatch):
    text, answer = SOURCE.split('# %% exercise="06.accept"\n')[:2]
    lesson = tmp_path / "minispec_course/lessons/06_lesson.py"
    lesson.parent.mkdir(parents=True)
    lesson.write_text(f'# %%\n@yours("06.accept")\n{answer}', encoding="utf-8")
    made = both(text)
    assert {job.kind for job in builder.jobs(root=tmp_path)} == {"lesson", "exercise", "solution"}
    for kind in ("exercise", "solution"):  # a signpost
        assert not builder.code_cells(made[kind]) and "../notebooks/06_lesson.ipynb" in made[kind].cells[1].source
    asked = next(cell for cell in made["lesson"].cells if cell.metadata.get("minispec"))
    [job] = [job for job in builder.jobs(root=tmp_path) if job.kind == "exercise"]
    whole = builder.compose(job, whole=True)
    roles = [cell.metadata.get("minispec", {}).get("role") for cell in whole.cells]
    assert roles == [None, None, None, "answer", "hint", "check"] and whole.cells[3].id == asked.id
    assert whole.cells[3].source.endswith('NotImplementedError("06.accept")') and "yours" not in whole.cells[3].source

    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "progress.json"))
    nbformat.write(made["exercise"], file := tmp_path / "06_set.ipynb")
    assert cli.main(("check", str(file))) == 1
    progress.attempted("06.accept", "right")  # as `yours` does
    assert cli.main(("check", str(file))) == 0


def test_every_answer_stands_in_the_course_once():
    asked = [id for file in LESSONS for id in cells.YOURS.findall(file.read_text(encoding="utf-8"))]
    assert len(asked) == len(set(asked)) and set(asked) <= everything().keys()
    for file in (builder.ROOT / "minispec_course/exercises").glob("set_*/page.py"):
        text = file.read_text(encoding="utf-8")
        twice = [id for id in asked if f'# %% exercise="{id}"' in text]
        assert not twice, f"lessons ask for {twice}: leave only the text of these in {file.parent.name}"


@pytest.mark.slow
def test_check_from_the_terminal(both, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "progress.json"))
    said = {'raise NotImplementedError("06.accept")': "not attempted", "return 1.0": "wrong"}
    said["return min(1.0, float(p[token] / q[token]))"] = "right"
    notebook = both()["exercise"]
    for body, outcome in said.items():
        notebook.cells[3].source = f"def accept(p, q, token):\n    {body}"
        nbformat.write(notebook, tmp_path / "06_set.ipynb")
        assert cli.main(("check", str(tmp_path / "06_set.ipynb"))) == (outcome != "right")
        assert f"06.accept  {outcome}" in capsys.readouterr().out
    cli.main(("progress", "06"))
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("06.accept")]
    assert "solved" in line and "2 attempts" in line and "hint" not in line  # running a hint cell asks for no hint
