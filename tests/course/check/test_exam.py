"""Exams: what is picked, what the notebook holds, how it is graded."""

from __future__ import annotations

import os

import nbformat
import pytest

from minispec_course.build import cells
from minispec_course.check import exam, progress, terminal
from minispec_course.exercises.exercise import everything, find

START = 1_800_000_000
RIGHT = "def accept_probability(p, q, token):\n    return min(1.0, float(p[token] / q[token]))"
WRONG = "def residual(p, q):\n    return p"


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """A progress file of one's own."""
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setattr(exam, "FOLDER", tmp_path / "exams")


def ids(chosen) -> list[str]:
    return [e.id for e in chosen]


# ---- choosing -------------------------------------------------------------------------------------------------------


def test_an_exam_fits_little_time_is_left_and_the_seed_decides():
    shortest = min(e.minutes for e in everything().values())
    for seed in range(40):
        chosen = exam.pick(45, seed, solved=())
        assert 45 - shortest < sum(e.minutes for e in chosen) <= 45
        assert ids(chosen) == [id for id in everything() if id in ids(chosen)]  # in the order of the course
        assert not any(e.joins for e in chosen)
    assert ids(exam.pick(60, 5, solved=())) == ids(exam.pick(60, 5, solved=()))
    assert {e.id.split(".")[0] for e in exam.pick(200, 1, topics=["05", "06_rejection_sampling"])} == {"05", "06"}
    assert {e.level for e in exam.pick(90, 1, level="H")} == {"H"}
    assert len({tuple(ids(exam.pick(60, seed, solved=()))) for seed in range(10)}) > 5


def test_what_is_not_solved_comes_first():
    unsolved = {"05.rewind", "06.accept", "06.residual"}  # 40 minutes in all
    for seed in range(20):
        chosen = set(ids(exam.pick(60, seed, solved=everything().keys() - unsolved)))
        assert unsolved < chosen  # and the time that is left is used
    progress.attempted("06.accept", "right")
    assert ids(exam.pick(15, 0, topics=["06.accept", "05.greedy_verify"])) == ["05.greedy_verify"]  # as the file says


NONE = [dict(minutes=3), dict(topics=["19"]), dict(level="X"), dict(topics=["06.accept"], level="H")]


@pytest.mark.parametrize("options", NONE)
def test_an_exam_of_no_exercise_is_refused(options):
    with pytest.raises(ValueError):
        exam.pick(**{"minutes": 45, "seed": 0, **options})


# ---- the notebook ---------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    """An exam with two exercises."""
    out = tmp_path / "mine.ipynb"
    return exam.start(30, 7, topics=["06.accept", "06.residual"], out=out, now=START)


def answer(file, id: str, source: str) -> None:
    nb = nbformat.read(file, as_version=4)
    [cell] = [c for c in nb.cells if c.id == cells.cell_id(id, "answer")]
    cell.source = source
    nbformat.write(nb, file)


def test_the_notebook_holds_the_exercises_and_no_hints(file):
    nb = nbformat.read(file, as_version=4)
    nbformat.validate(nb)
    roles = [cell.metadata.get("minispec", {}).get("role") for cell in nb.cells]
    assert [role for role in roles if role] == ["answer", "check"] * 2
    answers = [cell for cell in nb.cells if cell.metadata.get("minispec", {}).get("role") == "answer"]
    assert all("raise NotImplementedError" in cell.source for cell in answers)
    facts = dict(minutes=30, seed=7, exercises=["06.accept", "06.residual"], started=START)
    assert nb.metadata.minispec.exam == facts
    assert f"clock({START + 30 * 60})" in nb.cells[1].source
    with pytest.raises(ValueError, match="mine.ipynb"):
        exam.start(30, 7, out=file)  # an exam is fresh
    assert [exam.start(30, 7).name for _ in range(2)] == ["exam-1.ipynb", "exam-2.ipynb"]


@pytest.mark.slow
def test_of_every_set_each_exercise_can_be_taken_alone():
    """What a chapter defines before an exercise is all that its stub needs: the stub is reached and not tried."""
    for id in (id for id, e in everything().items() if not e.joins):
        names: dict = {}
        chapter = exam.chapter(id.split(".")[0], [id])
        for cell in chapter:
            if cell.cell_type == "code" and cell.metadata.get("minispec", {}).get("role") != "check":
                exec(cell.source, names)
        text = "\n".join(cell.source for cell in chapter)
        assert text.count("raise NotImplementedError") == 1 and f'check("{id}"' in text and "draw(" not in text


# ---- grading --------------------------------------------------------------------------------------------------------


def results(monkeypatch, *outcomes: tuple[str, str]) -> None:
    """What the checks say, without a kernel."""
    said = [terminal.Result(id, outcome, f"{id}: {outcome}, because") for id, outcome in outcomes]
    monkeypatch.setattr(terminal, "check_notebook", lambda file: said)


def test_the_report_adds_up_and_a_deleted_check_is_no_way_out(file, monkeypatch):
    accept, residual = find("06.accept"), find("06.residual")
    for minutes, outcomes in ((20, {accept.id: "right", residual.id: "wrong"}), (31, {accept.id: "right"})):
        results(monkeypatch, *outcomes.items())
        os.utime(file, (START + minutes * 60, START + minutes * 60))
        report, written = exam.grade(file)
        assert (report.reached, report.possible) == (accept.points, accept.points + residual.points)
        assert report.seconds == minutes * 60 and ("over time" in report.markdown()) == (minutes > 30)
        assert [r.outcome for r in report.results] == ["right", outcomes.get(residual.id, "not attempted")]
        assert written.name == "mine.report.md" and written.read_text(encoding="utf-8") == report.markdown()


@pytest.mark.slow
def test_the_command_line(run, tmp_path, monkeypatch):
    out = str(tmp_path / "cli.ipynb")
    assert run("exam", "25", "--seed", "3", "--topics", "06", "--out", out)[0] == 0
    chosen = nbformat.read(out, as_version=4).metadata.minispec.exam.exercises
    for outcome, code in (("right", 0), ("wrong", 1)):
        results(monkeypatch, *((id, outcome) for id in chosen))
        assert run("exam", "--grade", out)[0] == code
    for argv in (["exam"], ["exam", "45", "--grade", out], ["exam", "2"], ["exam", "--grade", "nowhere.ipynb"]):
        code, said, err = run(*argv)
        assert (code, said) == (2, "") and err.count("\n") == 1


@pytest.mark.slow
def test_an_exam_from_start_to_end(file):
    answer(file, "06.accept", RIGHT)
    answer(file, "06.residual", WRONG)
    report, _ = exam.grade(file)
    assert [r.outcome for r in report.results] == ["right", "wrong"]
    assert find("06.residual").mutants["p_itself"].diagnosis.split(".")[0] in report.markdown()
    assert progress.read()["06.accept"]["solved"]
