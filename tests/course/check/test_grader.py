"""The grader: what crosses between two processes, what is written, and a class with the expected mark for everyone.

What a submission cannot do to it: test_attacks.py, test_sandbox.py and test_submission.py.
"""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from exercise_notebooks import ROOT, answers, cells_of, composed, filled
from graders import HONEST, judge_source
from hypothesis import given
from hypothesis import strategies as st
from stored_answers import WRONG_ANSWERS

from minispec_course.check import grade as grading
from minispec_course.check.check import NOT_ATTEMPTED, RIGHT, WRONG
from minispec_course.check.grade import Journal, Options, Task, course, grade_one, read_secret, tasks_of
from minispec_course.check.pupil import plain
from minispec_course.check.report import UNGRADED, Result, mistakes, summary, write_csv, write_pages
from minispec_course.check.sandbox import NAMESPACES, Limits, Nursery, allowed, use
from minispec_course.check.submission import read_folder
from minispec_course.exercises.exercise import Number, everything, find
from minispec_course.exercises.fakes import Device, ScriptedModel, whole_text
from minispec_tools.cli import main

# ---- plain data -----------------------------------------------------------------------------------------------------


def alike(a, b) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, (torch.Tensor, np.ndarray, np.generic)):
        bits = [torch.as_tensor(x).contiguous().reshape(-1).view(torch.uint8).tolist() for x in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and bits[0] == bits[1]
    return a == b


def test_plain_data_crosses_unchanged_and_objects_as_the_name_of_their_type():
    whole = [None, True, 0, -7, 2**62, 0.1, math.inf, "π", [1, [2.0, None]], (1, (2,)), {1, 2}, {"a": 1, (1, 2): [3]}]
    tensors = [torch.arange(6).reshape(2, 3), torch.tensor(0.5), torch.zeros(0, 3), torch.tensor([True, False])]
    tensors += [torch.tensor([1.5, math.nan], dtype=torch.bfloat16)]
    for value in [*whole, *tensors, b"\0\xff", np.arange(4.0), np.float32(0.25), np.int64(3), np.bool_(True)]:
        assert alike(plain.decode(json.loads(json.dumps(plain.encode(value)))), value), value
    came = plain.decode(plain.encode(type("Sly", (), {"__eq__": lambda self, other: True})()))
    assert type(came).__name__ == "Sly" and came != 7


BYTES = {"array": "AAAA", "dtype": "uint8", "numpy": False}
MALFORMED = [2**63, {}, {"what": 1}, {"tuple": 7}, {"set": [[]]}, {"dict": [[1]]}, {"dict": [[[], 1]]}, {"bytes": "?"}]
MALFORMED += [{"remote": 0}, {"tuple": [], "set": []}, BYTES, {**BYTES, "shape": [3], "more": 1}]
MALFORMED += [{**BYTES, "shape": shape} for shape in ([4], [-3], [True, 3], 3)]
MALFORMED += [{**BYTES, "array": "", "shape": [0] * 99}, {**BYTES, "shape": [3], "dtype": "object"}]
MALFORMED += [plain.encode(torch.zeros(shape)) for shape in ((2**24, 0), (0, 2**40), (2**22, 3, 0))]  # no bytes at all


def test_what_is_no_plain_data_is_refused():
    for message in MALFORMED:
        with pytest.raises(plain.NoPlainData):
            plain.decode(message)


MARKS = "array dtype shape numpy tuple set dict bytes object remote kind x".split()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(MARKS), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(JSON)
def test_no_message_breaks_the_decoder(message):
    try:
        plain.decode(message)
    except plain.NoPlainData:
        pass


def test_of_an_object_that_stays_here_only_few_things_can_be_asked():
    model = ScriptedModel("target", whole_text, [1], most_passes=9)
    assert use(model, "length", []) == 1 and use(model, "read", [[2]]).shape == (1, 16)
    device = Device([3])
    assert use(device, "look", [use(use(device, "count", []), "subtract", [1])]) == 0
    for what, args in (("write", [0]), ("advance", []), ("_replay", []), ("_note", [len]), ([], [])):
        with pytest.raises(TypeError):
            use(device, what, args)
    for value in (model, device, device.count, Number(None), len, str):
        for what in ("say", "cache", "__class__", "__globals__", "passes", None, 7):
            with pytest.raises(TypeError):
                use(value, what, [])


def test_the_set_offers_all_of_its_own_cells_but_what_is_asked_for():
    exercises = everything()
    for id, exercise in exercises.items():
        around = course(id.split(".")[0])
        offered = allowed(exercise, around)
        assert exercise.code not in offered and id not in offered and exercise.reference not in offered.values(), id
        assert {*around.shelf, *around.references} - offered.keys() <= {exercise.code, id}
        assert around.functions.keys() == {other for other in exercises if other.split(".")[0] == id.split(".")[0]}


# ---- what is written ------------------------------------------------------------------------------------------------


def result(student: str, id: str, points: int, mutant: str | None = None) -> Result:
    outcome = RIGHT if points else WRONG
    return Result(student, id, outcome, points, find(id).points, f"{id}: {outcome}", mutant, 0.5, NAMESPACES)


CLASS = [
    result("ann #12", "06.accept", 1),
    result("ann #12", "06.residual", 0, "p_itself"),
    result("bob", "06.accept", 0, "always"),
    Result("bob", "06.residual", UNGRADED, 0, 2, "why"),
]


def test_the_csv_has_a_line_for_each_student_and_no_mark_where_the_grader_failed(tmp_path):
    write_csv(tmp_path / "a.csv", CLASS)
    lines = (tmp_path / "a.csv").read_text(encoding="utf-8").splitlines()
    assert lines == ["student,number,06.accept,06.residual,total,possible", "ann,12,1,0,1,3", "bob,,0,,0,3"]
    for name in ("=1+1", "@SUM(1)", "a;=HYPERLINK(1)", "a\t=1", '"=1', "a; =1", "＝1"):  # no name becomes a formula
        write_csv(tmp_path / "x.csv", [Result(name, "06.accept", RIGHT, 1, 1, "")])
        for separator in ",;\t":
            with (tmp_path / "x.csv").open(newline="", encoding="utf-8") as stream:
                cells = [cell for row in csv.reader(stream, delimiter=separator) for cell in row]
            assert not [cell for cell in cells if cell.strip().startswith(tuple("=+-@＝"))], (name, separator)
    assert "NOT GRADED" in summary(CLASS) and "NOT GRADED" not in summary(CLASS[:3])


def test_the_report_names_the_commonest_mistake_and_needs_no_network(tmp_path):
    results = [*CLASS, result("cid", "06.accept", 1), result("cid", "06.residual", 0, "p_itself")]
    assert mistakes(results)[0] == (("06.residual", "p_itself"), 2) and "06.residual p_itself" in summary(results)
    page = write_pages(tmp_path, results).read_text(encoding="utf-8")
    assert find("06.residual").mutants["p_itself"].diagnosis.split(".")[0] in page
    assert "<script" not in page and "src=" not in page
    assert len(list(tmp_path.glob("student-*.html"))) == 3


def test_a_journal_outlives_damage_and_forgets_what_has_changed(tmp_path):
    task, limits = Task("ann #12", "06.accept", (HONEST,)), Limits()
    Journal(tmp_path / "j", limits).add(task, CLASS[0])
    with (tmp_path / "j").open("a") as stream:
        stream.write('{"key": "cut of')
    journal = Journal(tmp_path / "j", limits)
    assert journal.find(task) == CLASS[0]
    journal.add(replace(task, student="bob"), CLASS[2])
    assert len(Journal(tmp_path / "j", limits).known) == 2
    changes = dict(answers=("x",), problem="x", secret=b"x" * 32, student="bob", id="06.residual")
    assert len({journal.key(replace(task, **{name: value})) for name, value in changes.items()}) == len(changes)


def test_the_secret_is_long_random_kept_and_nobody_else_s_to_read(tmp_path):
    one, other = read_secret(tmp_path / "a/x.secret"), read_secret(tmp_path / "y.secret")
    assert len(one) == 64 and one != other and read_secret(tmp_path / "a/x.secret") == one
    assert (tmp_path / "a/x.secret").stat().st_mode & 0o077 == 0
    (tmp_path / "short").write_text("12345")
    with pytest.raises(ValueError, match="delete the file"):
        read_secret(tmp_path / "short")
    assert "s" * 32 not in repr(Task("ann", "06.accept", (), secret=b"s" * 32))


def test_a_release_holds_no_solution(tmp_path):
    assert main(["release", "07", "--out", str(tmp_path)]) in (0, None)
    [file] = tmp_path.iterdir()
    released = cells_of(json.loads(file.read_text(encoding="utf-8")), "answer")
    assert released.keys() == answers("07").keys()
    assert all("NotImplementedError" in "".join(cell["source"]) for cell in released.values())
    for name in ("07", "99"):  # a file that is there, a set that is not
        assert main(["release", name, "--out", str(tmp_path)]) == 2


# ---- through the sandbox --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nursery():
    with Nursery() as nursery:
        yield nursery


def judge_book(nursery: Nursery, book: dict, folder: Path) -> list[Result]:
    """The results of a notebook that somebody handed in."""
    (folder / "ann.ipynb").write_text(json.dumps(book), encoding="utf-8")
    return [grade_one(nursery, task) for task in tasks_of(read_folder(folder), [])]


@pytest.mark.slow
def test_a_wrong_answer_gets_the_words_of_its_own_check(nursery):
    for wrong in WRONG_ANSWERS[::37]:
        others = [s for id, s in answers(wrong.exercise[:2]).items() if id != wrong.exercise]
        given = (*(others if find(wrong.exercise).joins else ()), wrong.source)
        found = grade_one(nursery, Task("ann", wrong.exercise, given))
        assert (found.outcome, found.mutant) == (WRONG, wrong.diagnosis) and found.points < found.possible
        assert find(wrong.exercise).mutants[wrong.diagnosis].diagnosis[:40] in " ".join(found.text.split())


@pytest.mark.slow
@pytest.mark.parametrize("number", ["05", "06", "12", "13", "16", "18"])
def test_solutions_get_full_marks(nursery, number, tmp_path):
    """The sets whose answers drive models or devices, draw random numbers, read tiles, call wires, or each other."""
    for found in judge_book(nursery, composed(number, "solution"), tmp_path):
        assert (found.outcome, found.points) == (RIGHT, found.possible), found.text


@pytest.mark.slow
def test_a_lesson_can_be_handed_in(nursery, tmp_path):
    """As a learner leaves it: one function right, one wrong, one not written. The decorator is none of the grader's."""
    book, right = composed("05", "lesson"), answers("05")
    loop, rewind = right["05.loop"], right["05.rewind"].replace("n + accepted", "n")
    cells = cells_of(book, "answer")
    cells["05.loop"]["source"] = f'@yours("05.loop")\n{loop}'
    cells["05.rewind"]["source"] = f'@yours("05.rewind")\n{rewind}'
    found = {result.id: result.outcome for result in judge_book(nursery, book, tmp_path)}
    assert found == {"05.greedy_verify": WRONG, "05.rewind": WRONG, "05.loop": RIGHT}


@pytest.mark.slow
def test_stubs_are_not_attempted_and_arguments_not_to_be_changed(nursery, tmp_path):
    for found in judge_book(nursery, composed("05"), tmp_path):
        assert (found.outcome, found.points) == (NOT_ATTEMPTED, 0)
    source = "def residual(p, q):\n    p -= q\n    p.clamp_(min=0)\n    return p / p.sum() if p.any() else q"
    assert "changes its argument p" in judge_source(nursery, source, "06.residual").text
    source = "def sampler(p, q, drafted, random):\n    return [int(torch.rand(()) * 2)]"
    assert "its own random numbers" in " ".join(judge_source(nursery, source, "06.sampler").text.split())


NUMPY_AND_A_WARNING = """
import warnings
import numpy as np
print("converting to numpy")
def residual(p, q):
    warnings.warn("slow")
    left = np.maximum(p.numpy() - q.numpy(), 0)
    print(left)
    return left / left.sum() if left.sum() > 0 else np.array(p)
"""
MAGIC_AND_HELPERS = """%%time
def ratio(a, b): return a / b
class Coin:
    def __call__(self, p, q, token): return torch.clamp(ratio(p, q)[token], max=1)
accept_probability = Coin()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("id", "source"), [("06.residual", NUMPY_AND_A_WARNING), ("06.accept", MAGIC_AND_HELPERS)])
def test_an_honest_answer_written_otherwise_gets_full_marks(nursery, id, source):
    found = judge_source(nursery, source, id)
    assert (found.outcome, found.points) == (RIGHT, found.possible), found.text


# ---- processes that end ---------------------------------------------------------------------------------------------


def grade_or_end(nursery, task: Task) -> Result:
    """A grader with weaknesses: one answer ends its process, another one finds a bug."""
    if "END" in task.answers[0]:
        os._exit(1)
    if "BUG" in task.answers[0]:
        raise ValueError("a bug of the grader's")
    return grade_one(nursery, task)


@pytest.mark.slow
def test_a_worker_that_ends_costs_nobody_a_point():
    sources = [HONEST, "# END", "# BUG", HONEST]
    tasks = [Task(f"s{i}", "06.accept", (source,)) for i, source in enumerate(sources)]
    found = {task.student: result for task, result in grading.judged(tasks, Options(), grade_or_end)}
    assert [found[f"s{i}"].outcome for i in range(4)] == [RIGHT, UNGRADED, UNGRADED, RIGHT]
    assert "process ended" in found["s1"].text and "a bug" in found["s2"].text


def test_no_more_workers_than_the_machine_has_processors(monkeypatch):
    class Fake:
        def __init__(self, *_):
            made.append(self)
            self.process, self.stop = threading.current_thread(), lambda: None

        def judge(self, task):
            time.sleep(0.05)

    made: list = []
    monkeypatch.setattr(grading, "Worker", Fake)
    tasks = [Task(f"s{i}", "06.accept", (HONEST,)) for i in range(4 * os.cpu_count())]
    assert len([*grading.judged(tasks, Options(workers=10**14), grade_one)]) == len(tasks)
    assert len(made) <= os.cpu_count()


def test_what_was_not_graded_stands_in_no_journal_and_the_exit_says_so(tmp_path, monkeypatch, capsys):
    (tmp_path / "in").mkdir()
    for name in ("ann", "bob"):
        (tmp_path / f"in/{name}.ipynb").write_text(json.dumps(filled("06", {"06.accept": HONEST})))

    def broken(tasks, options, grade_one):
        for task in tasks:
            wrong = Result(task.student, task.id, WRONG, 0, 1, "")
            yield task, grading.not_graded(task, "it was killed") if task.student == "bob" else wrong

    monkeypatch.setattr(grading, "judged", broken)
    line = ["grade", str(tmp_path / "in"), "--out", str(tmp_path / "g.csv"), "--sets", "06"]
    assert main(line) == 1 and "NOT GRADED" in capsys.readouterr().out
    journal = (tmp_path / "g.journal.jsonl").read_text()
    assert '"ann"' in journal and '"bob"' not in journal


# ---- a class --------------------------------------------------------------------------------------------------------

STOPPED, LEFT = "def accept_probability(p, q, token):\n    while True: pass", "import os\nos._exit(0)"
P_ITSELF, ALWAYS = "def residual(p, q):\n    return p", "def accept_probability(p, q, token):\n    return 1.0"
ACCEPT, RESIDUAL = "06.accept", "06.residual"
STUDENTS = {  # student → answers, and the mistakes that the grader names
    "ann": ({ACCEPT: HONEST, RESIDUAL: None}, {}),  # None: our solution
    "bob": ({ACCEPT: ALWAYS, RESIDUAL: P_ITSELF}, {ACCEPT: "always", RESIDUAL: "p_itself"}),
    "cid": ({ACCEPT: STOPPED, RESIDUAL: None}, {ACCEPT: None}),
    "dan": ({ACCEPT: LEFT, RESIDUAL: P_ITSELF}, {ACCEPT: None, RESIDUAL: "p_itself"}),
    "eve": ({}, {}),  # a file that is no notebook
}


def hand_in(folder: Path) -> None:
    for student, (handed, _) in STUDENTS.items():
        book = filled("06", {id: source or answers("06")[id] for id, source in handed.items()})
        ours = [cell["metadata"].get("minispec", {}).get("exercise") in (None, *handed) for cell in book["cells"]]
        book["cells"] = [cell for cell, kept in zip(book["cells"], ours, strict=True) if kept]
        (folder / f"{student}.ipynb").write_text(json.dumps(book) if handed else "{broken", encoding="utf-8")


@pytest.mark.slow
def test_a_class_gets_every_mark_right_across_an_interruption(tmp_path):
    size, early = len(STUDENTS), 6  # five exercises each, and the answers that are graded before the interruption
    (tmp_path / "in").mkdir()
    hand_in(tmp_path / "in")
    options = "grade in --sets 06 --workers 2 --seconds 4 --out grades.csv --html report".split()
    command = [sys.executable, "-c", "import sys; from minispec_tools.cli import main; sys.exit(main())", *options]
    journal = tmp_path / "grades.journal.jsonl"

    def lines() -> int:
        return len(journal.read_text().splitlines()) if journal.exists() else 0

    def listen() -> None:  # a job in the background of a shell ignores Ctrl-C, and its children would too
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    how = dict(cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}, text=True)
    first = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=listen, **how)
    while lines() < early and first.poll() is None:
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGINT)  # as a terminal does it: to the whole group
    _, said = first.communicate(timeout=60)
    assert first.returncode == 130 and "Traceback" not in said
    kept = journal.read_bytes()
    assert early <= lines() < 5 * size and not (tmp_path / "grades.csv").exists()

    command[command.index("--workers") + 1] = "1"  # each takes seconds to start
    done = subprocess.run(command, capture_output=True, **how)
    assert done.returncode == 0, done.stderr
    assert journal.read_bytes().startswith(kept) and lines() == 5 * size  # nothing lost, nothing graded twice
    with (tmp_path / "grades.csv").open(newline="") as stream:
        points = {row["student"]: row for row in csv.DictReader(stream)}
    found = {(entry["student"], entry["id"]): entry["mutant"] for entry in map(json.loads, journal.open())}
    for student, (handed, named) in STUDENTS.items():
        for id in answers("06"):
            is_right = float(points[student][id]) == find(id).points
            assert is_right == (id in handed and id not in named), (student, id)
            assert found[student, id] == named.get(id), (student, id)
    assert (tmp_path / "report/index.html").exists() and len(list((tmp_path / "report").glob("student-*"))) == size
