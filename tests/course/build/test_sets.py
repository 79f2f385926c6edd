"""From one source to two notebooks, one with stubs and one with answers; and a set checked from the terminal."""

from __future__ import annotations

import nbformat
import pytest

from minispec import cli
from minispec_course.build import builder

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
        file = tmp_path / "course/exercises/06_set.py"
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
    cli.main(("progress",))
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("06.accept")]
    assert "solved" in line and "2 attempts" in line and "hint" not in line  # running a hint cell asks for no hint
