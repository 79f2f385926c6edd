"""Every exercise: the reference passes, every mistake is named at the first try, and the notebooks keep their promises.

A set that is added to course/exercises is tested here without a line more; its wrong answers go to mutants/exercises.
"""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
import xml.etree.ElementTree as xml
from contextlib import redirect_stdout
from functools import cache
from itertools import combinations
from keyword import iskeyword
from pathlib import Path
from pkgutil import resolve_name

import nbformat
import pytest
from mutants.exercises import WRONG_ANSWERS, WrongAnswer

from minispec_course.build import builder, cells
from minispec_course.check.check import NOT_ATTEMPTED, RIGHT, WRONG, judge
from minispec_course.check.diagnosis import agree, outcome
from minispec_course.exercises.exercise import Exercise, everything, find
from minispec_course.exercises.fresh import trials

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "course/exercises").glob("[!_]*.py"))
EXERCISES = everything()
MUTANTS = [(id, name) for id, exercise in EXERCISES.items() for name in exercise.mutants]
FIRST = {wrong.exercise[:2]: wrong for wrong in reversed(WRONG_ANSWERS)}  # of every set: all of them are slow together

each_set = pytest.mark.parametrize("source", SOURCES, ids=lambda file: file.stem)
each_exercise = pytest.mark.parametrize("exercise", EXERCISES.values(), ids=lambda exercise: exercise.id)


@pytest.fixture(autouse=True)
def small_models(monkeypatch):
    """The capstone is tried on a real model: here on the one that is always there, and quick. Nothing is remembered."""
    monkeypatch.setenv("MINISPEC_TRIAL", "micro")
    monkeypatch.setenv("MINISPEC_PROGRESS", "off")


def notebook(folder: str, source: Path) -> nbformat.NotebookNode:
    return nbformat.read(ROOT / folder / f"{source.stem}.ipynb", as_version=4)


def cells_of(nb: nbformat.NotebookNode, role: str) -> dict[str, nbformat.NotebookNode]:
    """id of the exercise → its cell in this role."""
    own = [cell.metadata.get("minispec", {}) for cell in nb.cells]
    return {o["exercise"]: cell for o, cell in zip(own, nb.cells, strict=True) if o.get("role") == role}


@cache
def surroundings(set_number: str) -> dict:
    """What the plain code cells of a set define: imports, and our versions of earlier answers."""
    [source] = [source for source in SOURCES if source.stem.startswith(set_number)]
    names: dict = {}
    for cell in notebook("exercises", source).cells:
        if cell.cell_type == "code" and "minispec" not in cell.metadata and not cell.source.startswith("draw("):
            exec(cell.source, names)
    return names


def function_in(source: str, id: str):
    """The function that a cell defines."""
    names = dict(surroundings(id.split(".")[0]))
    if find(id).joins:  # it may call the answers before it, as in a notebook that is solved so far
        [solved] = [source for source in SOURCES if source.stem.startswith(id.split(".")[0])]
        for other, cell in cells_of(notebook("solutions", solved), "answer").items():
            if other != id:
                exec(cell.source, names)
    exec(source, names)
    [defined] = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    return names[defined]


# ---- the definitions ------------------------------------------------------------------------------------------------


def test_the_definitions_are_complete():
    for exercise in EXERCISES.values():
        assert 5 <= exercise.minutes <= 40 and exercise.points >= 1
        assert len(exercise.hints) == 3 and len(set(exercise.hints)) == 3
        assert len(exercise.mutants) >= 3
        assert len({mutant.diagnosis for mutant in exercise.mutants.values()}) == len(exercise.mutants)
        assert len({wrong.mutant for wrong in WRONG_ANSWERS if wrong.exercise == exercise.id}) >= 3
        resolve_name(exercise.code)  # "minispec.drafters.Model.settle": a method of a class of a module


@pytest.mark.parametrize(
    "exercise",
    [pytest.param(e, marks=() if id == FIRST[id[:2]].exercise else pytest.mark.slow) for id, e in EXERCISES.items()],
    ids=lambda exercise: exercise.id,
)
def test_the_reference_passes(exercise: Exercise):
    assert judge(exercise, exercise.reference).outcome == RIGHT


@pytest.mark.slow
@pytest.mark.parametrize(("id", "name"), MUTANTS)
def test_every_mutant_is_caught_and_named(id: str, name: str):
    judgement = judge(find(id), find(id).mutants[name].function)
    assert (judgement.outcome, judgement.mutant) == (WRONG, name)


@pytest.mark.slow
@each_exercise
def test_the_cases_tell_every_two_mutants_apart(exercise: Exercise):
    seen = {
        name: [outcome(exercise, mutant.function, trial.case) for trial in trials(exercise)]
        for name, mutant in exercise.mutants.items()
    }
    for a, b in combinations(seen, 2):
        assert not all(map(agree, seen[a], seen[b])), f"{a} and {b} do the same"


# ---- wrong answers, as learners write them --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [pytest.param(w, marks=() if w is FIRST[w.exercise[:2]] else pytest.mark.slow) for w in WRONG_ANSWERS],
    ids=lambda wrong: f"{wrong.exercise}-{wrong.mutant}",
)
def test_a_wrong_answer_gets_its_own_diagnosis(wrong: WrongAnswer):
    exercise = find(wrong.exercise)
    judgement = judge(exercise, function_in(wrong.source, wrong.exercise))
    assert (judgement.outcome, judgement.mutant) == (WRONG, wrong.mutant)
    assert exercise.mutants[wrong.mutant].diagnosis.split()[0] in judgement.text and "smallest case" in judgement.text


# ---- the notebooks --------------------------------------------------------------------------------------------------


def test_a_set_holds_the_exercises_that_are_defined():
    for source in SOURCES:
        ids = [id for id in EXERCISES if id.split(".")[0] == source.stem.split("_")[0]]
        for folder in ("exercises", "solutions"):
            nb = notebook(folder, source)
            nbformat.validate(nb)
            for role in ("answer", "hint", "check"):
                assert list(cells_of(nb, role)) == ids, f"{role} cells of {folder}/{source.stem}"


def test_no_solution_line_reaches_the_exercises():
    for source in SOURCES:
        text = source.read_text(encoding="utf-8")
        secret = set(cells.solution_lines(text)) - {line.strip() for line in cells.REGION.sub("", text).splitlines()}
        secret = {line for line in secret if not iskeyword(line)}  # "continue" gives nothing away
        assert len(secret) >= len(cells_of(notebook("exercises", source), "answer"))
        published = "\n".join(cell.source for cell in notebook("exercises", source).cells)
        assert not [
            line for line in secret if line in published
        ]  # a hint, in the metadata, may come as close as it likes
        assert "SOLUTION" not in published


def test_exercises_carry_no_outputs():
    for source in SOURCES:
        for cell in builder.code_cells(notebook("exercises", source)):
            assert not cell.outputs and cell.execution_count is None


def run_cells(nb: nbformat.NotebookNode) -> list[tuple[nbformat.NotebookNode, str]]:
    """Run the code cells in one namespace, as a kernel would: each with what it printed. An error ends the run."""
    names, printed = {"__name__": "__main__"}, []
    for cell in builder.code_cells(nb):
        with redirect_stdout(io.StringIO()) as out:
            exec(compile(cell.source, cell.id, "exec"), names)
        printed.append((cell, out.getvalue()))
    return printed


@pytest.mark.slow
@each_set
def test_a_solution_prints_what_it_carries(source: Path):
    """What nbval would compare, without a kernel: checks that say "right" in today's words, and printed drawings."""
    compared = 0
    for cell, printed in run_cells(notebook("solutions", source)):
        kept = "".join(output.text for output in cell.outputs if output.output_type == "stream")
        drawn = any(output.output_type == "display_data" for output in cell.outputs)  # outside Jupyter that is printed
        if not drawn and "nbval-ignore-output" not in cell.metadata.get("tags", []):
            assert printed == kept, cell.source
            compared += bool(kept)
        if (own := cell.metadata.get("minispec", {})).get("role") == "check":
            assert kept.startswith(f"{own['exercise']}: right")
    assert compared >= len(cells_of(notebook("solutions", source), "check"))


@each_set
def test_an_exercise_runs_before_anything_is_filled_in(source: Path):
    for cell, printed in run_cells(notebook("exercises", source)):
        if (own := cell.metadata.get("minispec", {})).get("role") == "check":
            assert printed.startswith(f"{own['exercise']}: not attempted")


@pytest.mark.slow
@each_set
def test_stubs_are_not_attempted_and_solutions_are_right(source: Path):
    for id, cell in cells_of(notebook("exercises", source), "answer").items():
        assert judge(find(id), function_in(cell.source, id)).outcome == NOT_ATTEMPTED
    for id, cell in cells_of(notebook("solutions", source), "answer").items():
        assert judge(find(id), function_in(cell.source, id)).outcome == RIGHT


def test_nbgrader_can_read_the_cells():
    allowed = {"grade", "solution", "locked", "task", "grade_id", "schema_version", "points"}
    for source in SOURCES:
        nb, ids = notebook("exercises", source), set()
        for role, is_check in (("answer", False), ("check", True)):
            for id, cell in cells_of(nb, role).items():
                theirs, ours = cell.metadata.nbgrader, cell.metadata.minispec
                assert theirs.keys() <= allowed and theirs.schema_version == 3
                assert (theirs.grade, theirs.locked, theirs.solution) == (is_check, is_check, not is_check)
                assert theirs.get("points") == (find(id).points if is_check else None)
                assert cell.metadata.get("editable", True) is not is_check
                if is_check:
                    assert {"level", "minutes", "hints", "links"} <= ours.keys()
                ids.add(theirs.grade_id)
        assert len(ids) == 2 * len(cells_of(nb, "check"))


# ---- nbval ----------------------------------------------------------------------------------------------------------


def nbval(folder: Path, *notebooks: Path, **environment: str) -> dict[str, set[str]]:
    """Run pytest --nbval: the outcomes of each notebook's cells, such as {"05_draft_and_verify": {"passed"}}."""
    report = folder / "report.xml"
    env = {**os.environ, "MINISPEC_PROGRESS": "off", "MINISPEC_STRICT": "0", **environment}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--nbval",
        "--nbval-current-env",
        "--nbval-cell-timeout=120",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        f"--rootdir={folder}",
        f"--junit-xml={report}",
    ]
    subprocess.run([*command, *map(str, notebooks)], cwd=folder, env=env, capture_output=True, text=True)
    outcomes: dict[str, set[str]] = {file.stem: set() for file in notebooks}
    for case in xml.parse(report).iter("testcase"):
        name = next(stem for stem in outcomes if stem in case.get("classname"))
        outcomes[name].add(f"failed {case.get('name')}" if case.find("failure") is not None else "passed")
    return outcomes


def filled(source: Path, answers: dict[str, str]) -> nbformat.NotebookNode:
    """An exercise notebook with these answers in it."""
    nb = notebook("exercises", source)
    for id, cell in cells_of(nb, "answer").items():
        cell.source = answers.get(id, cell.source)
    return nb


def saved(nb: nbformat.NotebookNode, file: Path) -> Path:
    nbformat.write(nb, file)
    return file


def failures(outcomes: set[str]) -> set[str]:
    assert outcomes, "nbval ran no cell"
    return outcomes - {"passed"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["06_rejection_sampling", "18_capstone"])
def test_nbval_is_green_for_right_and_unsolved_and_red_for_wrong(name: str, tmp_path: Path):
    """A set that draws a figure, and the one whose answers call each other; the others run without a kernel above.

    Right: an exercise notebook with the reference's answers, against the outputs of the solutions.
    """
    [source] = [source for source in SOURCES if source.stem == name]
    solution = notebook("solutions", source)
    answers = {id: cell.source for id, cell in cells_of(solution, "answer").items()}
    wrong = [wrong for wrong in WRONG_ANSWERS if wrong.exercise in answers][-1]
    right = filled(source, answers)
    for cell, solved in zip(builder.code_cells(right), builder.code_cells(solution), strict=True):
        assert (cell.source, cell.metadata.get("tags")) == (solved.source, solved.metadata.get("tags"))
        cell.outputs, cell.execution_count = solved.outputs, solved.execution_count
    outcomes = nbval(
        tmp_path,
        saved(right, tmp_path / "right.ipynb"),  # the same code and outputs as the solutions: these are green too
        saved(filled(source, {}), tmp_path / "unsolved.ipynb"),
        saved(filled(source, {**answers, wrong.exercise: wrong.source}), tmp_path / "mutant.ipynb"),
    )
    assert not failures(outcomes["right"])
    assert not failures(outcomes["unsolved"])
    assert len(failures(outcomes["mutant"])) == 1  # its check, and no other exercise


@pytest.mark.slow
def test_under_strict_an_untouched_notebook_is_red(tmp_path: Path):
    """The teacher's way: red where nothing was handed in, once for each exercise."""
    source = SOURCES[0]
    outcomes = nbval(tmp_path, saved(filled(source, {}), tmp_path / "untouched.ipynb"), MINISPEC_STRICT="1")
    assert len(failures(outcomes["untouched"])) == len(cells_of(notebook("exercises", source), "check"))
