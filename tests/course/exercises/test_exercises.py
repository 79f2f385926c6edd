"""Every exercise: the reference passes, named mistakes are named at the first try, the notebooks keep their promises.

A set that is added to minispec_course/exercises is tested here without a line more.
"""

from __future__ import annotations  # cells that run here inherit it: a stub may name what its set does not import

import io
import os
import subprocess
import sys
import xml.etree.ElementTree as xml
from contextlib import redirect_stdout
from keyword import iskeyword
from pathlib import Path
from pkgutil import resolve_name

import nbformat
import pytest
from exercise_notebooks import ROOT, SOURCES, answers, cells_of, composed, filled, function_in
from stored_answers import ANSWERS, WRONG_ANSWERS

from minispec_course.build import builder, cells
from minispec_course.build.cells import in_lessons
from minispec_course.check.check import RIGHT, WRONG, judge
from minispec_course.exercises.exercise import everything, find

EXERCISES = everything()
each_set = pytest.mark.parametrize("number", SOURCES)


def exercises_of(number: str) -> list:
    return [exercise for id, exercise in EXERCISES.items() if id.split(".")[0] == number]


# ---- the definitions ------------------------------------------------------------------------------------------------


def test_the_definitions_are_complete():
    for exercise in EXERCISES.values():
        assert 5 <= exercise.minutes <= 40 and exercise.points >= 1, exercise.id
        assert len(set(exercise.hints)) == 3, exercise.id
        diagnoses = {mutant.diagnosis for mutant in exercise.mutants.values()}
        assert len(diagnoses) == len(exercise.mutants) >= 3, exercise.id
        resolve_name(exercise.code)  # "minispec.drafters.Model.settle": a method of a class of a module


def test_finding_an_exercise_imports_its_set_alone():
    code = "import sys; from minispec_course.exercises.exercise import find; find('01.ridge');"
    code += "print(*(name for name in sys.modules if '.exercises.set_' in name))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    module = "minispec_course.exercises.set_01_why_decoding_is_slow"
    assert ran.stdout.split() == [module, f"{module}.cases"]


@pytest.mark.slow
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.nightly)])
@each_set
def test_the_reference_is_right_and_every_wrong_solution_is_named(number: str, every: bool):
    """By day one wrong solution of each exercise, another one of each."""
    odd = []
    for i, exercise in enumerate(exercises_of(number)):
        judgement = judge(exercise, exercise.reference)
        if judgement.outcome != RIGHT:
            odd.append(f"{exercise.id}, reference: {judgement.text}")
        for name, mutant in list(exercise.mutants.items())[slice(None) if every else slice(i % 3, i % 3 + 1)]:
            judgement = judge(exercise, mutant.function)
            if (judgement.outcome, judgement.mutant) != (WRONG, name):
                odd.append(f"{exercise.id}, {name}: {judgement.outcome}, {judgement.mutant}")
    assert not odd, "\n".join(odd)


def test_a_wrong_answer_gets_its_own_diagnosis():
    """The first stored one of every set; by night all of them are judged, below."""
    for wrong in {wrong.exercise.split(".")[0]: wrong for wrong in reversed(WRONG_ANSWERS)}.values():
        judgement = judge(find(wrong.exercise), function_in(wrong.source, wrong.exercise))
        assert (judgement.outcome, judgement.mutant) == (WRONG, wrong.diagnosis), wrong.exercise


@pytest.mark.nightly
@each_set
def test_stored_wrong_answers_are_caught_and_right_ones_accepted(number: str):
    """The name of another mistake than the stored one would be a wrong diagnosis; none at all is allowed, except where
    the answer was written for a mistake that we name."""
    odd = []
    for answer in (answer for answer in ANSWERS if answer.exercise.split(".")[0] == number):
        judgement = judge(find(answer.exercise), function_in(answer.source, answer.exercise))
        allowed = [answer.diagnosis] if answer.named and answer.diagnosis else [None, answer.diagnosis]
        if judgement.outcome != (RIGHT if answer.right else WRONG) or judgement.mutant not in allowed:
            odd.append(f"{answer.exercise} ({answer.what}): {judgement.outcome}, {judgement.mutant}")
    assert not odd, "\n".join(odd)


def test_every_exercise_has_stored_answers():
    asked = in_lessons(ROOT / "minispec_course/lessons").keys()  # people write these in a lesson
    assert everything().keys() - {answer.exercise for answer in ANSWERS} <= asked
    assert sum(not answer.right for answer in ANSWERS) > 1800 and sum(answer.right for answer in ANSWERS) > 340


# ---- the notebooks --------------------------------------------------------------------------------------------------


def test_a_set_holds_the_exercises_that_are_defined():
    for number in SOURCES:
        ids = [exercise.id for exercise in exercises_of(number)]
        for kind in ("exercise", "solution"):
            nb = composed(number, kind)
            nbformat.validate(nb)
            for role in ("answer", "hint", "check"):
                assert sorted(cells_of(nb, role)) == sorted(ids), f"{role} cells of {kind} {number}"


def solution_lines(source: str) -> set[str]:
    """The lines of a source that no learner may see: those of the answers, without what a broken program shows."""
    found = [cells.both_programs(region) for region in cells.REGION.finditer(source)]
    shown = {line.strip() for _, broken in found for line in broken.splitlines()}
    return {line.strip() for answer, _ in found for line in answer.splitlines()} - shown - {""}


def test_a_solution_is_its_exercise_notebook_with_the_answers():
    """So nbval, which runs the solutions, has run what a learner with right answers runs."""
    for number in SOURCES:
        unsolved, solution = (builder.code_cells(composed(number, kind)) for kind in ("exercise", "solution"))
        for stub, cell in zip(unsolved, solution, strict=True):
            assert stub.metadata.get("tags") == cell.metadata.get("tags")
            assert stub.source == cell.source or stub.metadata.get("minispec", {}).get("role") == "answer"


def test_the_exercises_carry_no_solution():
    for number, source in SOURCES.items():
        text, nb = "\n".join(c.source for c in cells.read_set(source)[0].cells), composed(number)
        secret = solution_lines(text) - {line.strip() for line in cells.REGION.sub("", text).splitlines()}
        secret = {line for line in secret if not iskeyword(line)}  # "continue" gives nothing away
        assert len(secret) >= len(cells_of(nb, "answer"))
        published = "\n".join(cell.source for cell in nb.cells)  # hints, in the metadata, may come close
        assert not [line for line in secret if line in published] and "SOLUTION" not in published


@pytest.mark.slow
@each_set
def test_stubs_are_not_attempted_and_solutions_are_right(number: str):
    """The stubs run here, in one namespace as in a kernel; the solutions carry what nbval compares."""
    names = {"__name__": "__main__"}
    for cell in builder.code_cells(composed(number)):
        with redirect_stdout(io.StringIO()) as out:
            exec(compile(cell.source, cell.id, "exec"), names)
        if (own := cell.metadata.get("minispec", {})).get("role") == "check":
            assert out.getvalue().startswith(f"{own['exercise']}: not attempted")
    stored = nbformat.read(builder.ROOT / f"solutions/{builder.name_of(SOURCES[number])}.ipynb", as_version=4)
    for id, cell in cells_of(stored, "check").items():
        kept = "".join(output.text for output in cell.outputs if output.output_type == "stream")
        assert kept.startswith(f"{id}: right") and "nbval-ignore-output" not in cell.metadata.get("tags", [])


def test_nbgrader_can_read_the_cells():
    allowed = {"grade", "solution", "locked", "task", "grade_id", "schema_version", "points"}
    for number in SOURCES:
        nb, ids = composed(number), set()
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
    """Run pytest --nbval: the cells of each notebook that failed, such as {"right": set()}."""
    report = folder / "report.xml"
    env = {**os.environ, "MINISPEC_PROGRESS": "off", "MINISPEC_STRICT": "0", **environment}
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "--nbval-cell-timeout=120", "-q"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={folder}", f"--junit-xml={report}"]
    subprocess.run([*command, *map(str, notebooks)], cwd=folder, env=env, capture_output=True, text=True)
    failed: dict[str, set[str]] = {}
    for case in xml.parse(report).iter("testcase"):
        name = next(file.stem for file in notebooks if file.stem in case.get("classname"))
        failed.setdefault(name, set()).update([case.get("name")] * (case.find("failure") is not None))
    assert failed.keys() == {file.stem for file in notebooks}, "nbval ran no cell"
    return failed


def saved(nb: nbformat.NotebookNode, file: Path) -> Path:
    nbformat.write(nb, file)
    return file


@pytest.mark.slow
@pytest.mark.parametrize("number", ["06", pytest.param("18", marks=pytest.mark.nightly)])
def test_nbval_is_green_for_unsolved_and_red_for_wrong(number: str, tmp_path: Path):
    """An exercise notebook with one wrong answer: its check fails, and no other exercise. A set that draws a figure,
    where the others are unsolved, and the one whose answers call each other, where they are right."""
    solved = answers(number)
    wrong = [wrong for wrong in WRONG_ANSWERS if wrong.exercise in solved][-1]
    others = solved if find(wrong.exercise).joins else {}
    mutant = saved(filled(number, {**others, wrong.exercise: wrong.source}), tmp_path / "mutant.ipynb")
    assert len(nbval(tmp_path, mutant)["mutant"]) == 1


@pytest.mark.nightly
def test_under_strict_an_untouched_notebook_is_red(tmp_path: Path):
    """The teacher's way: red where nothing was handed in, once for each exercise."""
    failed = nbval(tmp_path, saved(composed("01"), tmp_path / "untouched.ipynb"), MINISPEC_STRICT="1")
    assert len(failed["untouched"]) == len(exercises_of("01"))
