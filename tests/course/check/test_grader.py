"""The grader: what crosses between two processes, what is written, and a class with the expected mark for everyone.

What a submission cannot do to it: test_attacks.py, test_sandbox.py and test_submission.py.
"""

from __future__ import annotations

import csv
import json
import math
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from graders import HONEST, ROOT, answers_in, judge_file, judge_source, notebook, set_file, solutions
from hypothesis import given
from hypothesis import strategies as st
from mutants.exercises import WRONG_ANSWERS

from minispec.cli import main
from minispec_course.check import grade as grading
from minispec_course.check.attempt import OutOfPatience
from minispec_course.check.check import NOT_ATTEMPTED, RIGHT, WRONG
from minispec_course.check.grade import Journal, Options, Task, chosen, course, grade, grade_one, read_secret
from minispec_course.check.pupil import plain
from minispec_course.check.release import nbgrader_sources, student_copies
from minispec_course.check.report import UNGRADED, Result, mistakes, summary, write_csv, write_pages
from minispec_course.check.sandbox import NAMESPACES, RLIMITS, WORKER, Limits, Nursery, allowed, use
from minispec_course.exercises.exercise import Number, everything, find
from minispec_course.exercises.fakes import Device, ScriptedModel, whole_text

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
    assert "NOT GRADED" in summary(CLASS) and "NOT GRADED" not in summary(CLASS[:3])


def test_no_name_becomes_a_formula_wherever_a_spreadsheet_splits(tmp_path):
    names = ["=1+1", "+1", "-1", "@SUM(1)", "a;=HYPERLINK(1)", "a\t=1", "a,=1", "a|=1", ";;-1", '"=1', "a\n=1", "a\r=1"]
    for name in names:
        write_csv(tmp_path / "x.csv", [Result(name, "06.accept", RIGHT, 1, 1, "")])
        for separator in ",;\t|":
            with (tmp_path / "x.csv").open(newline="", encoding="utf-8") as stream:
                cells = [cell for row in csv.reader(stream, delimiter=separator) for cell in row]
            assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))], (name, separator)


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
    changes = dict(answers=("x",), problem="x", secret=b"x" * 32, partial=True, student="bob", id="06.residual")
    assert len({journal.key(replace(task, **{name: value})) for name, value in changes.items()}) == len(changes)
    for bad in ({"points": 9}, {"points": "1"}, {"outcome": UNGRADED}, {"more": 1}):
        (tmp_path / "j").write_text(json.dumps({"key": journal.key(task), **asdict(CLASS[0]), **bad}) + "\n")
        assert Journal(tmp_path / "j", limits).find(task) is None, bad
    (tmp_path / "j").write_text(json.dumps({"key": journal.key(task), **asdict(CLASS[2])}) + "\n")
    assert Journal(tmp_path / "j", limits).find(task) is None  # somebody else's


def test_the_secret_is_long_random_kept_and_nobody_else_s_to_read(tmp_path):
    one, other = read_secret(tmp_path / "a/x.secret"), read_secret(tmp_path / "y.secret")
    assert len(one) == 64 and one != other and read_secret(tmp_path / "a/x.secret") == one
    assert (tmp_path / "a/x.secret").stat().st_mode & 0o077 == 0
    (tmp_path / "short").write_text("12345")
    with pytest.raises(ValueError, match="delete the file"):
        read_secret(tmp_path / "short")
    assert "s" * 32 not in repr(Task("ann", "06.accept", (), secret=b"s" * 32)) + repr(Options(secret=b"s" * 32))


def test_who_is_judged_again_is_who_was_named():
    tasks = [Task(s, id, ()) for s in ("ann", "bob") for id in ("06.accept", "06.residual")]
    assert chosen(tasks, ()) == set() and chosen(tasks, ("ann",)) == {*tasks[:2]}
    assert chosen(tasks, ("06.accept",)) == {tasks[0], tasks[2]} and chosen(tasks, ("bob", "06.accept")) == {tasks[2]}
    with pytest.raises(ValueError, match="neither a student"):
        chosen(tasks, ("eve",))


def test_a_release_holds_no_solution(tmp_path):
    [file] = student_copies(["07"], tmp_path / "out")
    answers = answers_in(json.loads(file.read_text(encoding="utf-8")))
    assert answers.keys() == solutions("07").keys() and all("NotImplementedError" in a for a in answers.values())
    with pytest.raises(ValueError, match="exists already"):
        student_copies(["07"], tmp_path / "out")
    for names in ([], ["00"]):
        with pytest.raises(ValueError, match="names"):
            student_copies(names, tmp_path / "no")
    [file] = student_copies(["06"], tmp_path / "exam", checks=False)
    text = file.read_text(encoding="utf-8")
    assert "check(" not in text and 'hint(\\"06' not in text and "draw(" not in text and '"hints"' not in text
    assert answers_in(json.loads(text)).keys() == solutions("06").keys()


# ---- through the sandbox --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nursery():
    with Nursery() as nursery:
        yield nursery


@pytest.mark.slow
def test_a_wrong_answer_gets_the_words_of_its_own_check(nursery, monkeypatch):
    monkeypatch.setenv("MINISPEC_TRIAL", "micro")
    for wrong in WRONG_ANSWERS[::37]:
        others = [s for id, s in solutions(wrong.exercise[:2]).items() if id != wrong.exercise]
        answers = (*(others if find(wrong.exercise).joins else ()), wrong.source)
        found = grade_one(nursery, Task("ann", wrong.exercise, answers))
        assert (found.outcome, found.points, found.mutant) == (WRONG, 0, wrong.mutant)
        assert find(wrong.exercise).mutants[wrong.mutant].diagnosis.split(".")[0][:60] in " ".join(found.text.split())


@pytest.mark.slow
@pytest.mark.parametrize("number", ["05", "06", "12", "13", "16", "18"])
def test_solutions_get_full_marks(nursery, number, monkeypatch):
    """The sets whose answers drive models or devices, draw random numbers, read tiles, call wires, or each other."""
    monkeypatch.setenv("MINISPEC_TRIAL", "micro")
    for found in judge_file(nursery, set_file(number, "solutions"), list(solutions(number))).values():
        assert (found.outcome, found.points) == (RIGHT, found.possible), found.text


@pytest.mark.slow
def test_stubs_are_not_attempted_and_arguments_not_to_be_changed(nursery):
    for found in judge_file(nursery, set_file("05"), list(solutions("05"))).values():
        assert (found.outcome, found.points) == (NOT_ATTEMPTED, 0)
    source = "def my_residual(p, q):\n    p -= q\n    p.clamp_(min=0)\n    return p / p.sum() if p.any() else q"
    assert "changes its argument p" in judge_source(nursery, source, "06.residual").text
    source = "def sampler(p, q, drafted, random):\n    return [int(torch.rand(()) * 2)]"
    assert "random numbers of its own" in " ".join(judge_source(nursery, source, "06.sampler").text.split())


HONEST_OTHERWISE = {
    "numpy, and a warning": (
        "06.residual",
        """
import warnings
import numpy as np
print("converting to numpy")
def my_residual(p, q):
    warnings.warn("slow")
    left = np.maximum(p.numpy() - q.numpy(), 0)
    print(left)
    return left / left.sum() if left.sum() > 0 else np.array(p)
""",
    ),
    "magic, annotations and helpers": (
        "06.accept",
        """%%time
def ratio(a, b): return a / b
class Coin:
    def __call__(self, p, q, token): return torch.clamp(ratio(p, q)[token], max=1)
accept = Coin()
""",
    ),
    "numbers of numpy and torch": (
        "05.rewind",
        """
import numpy as np
def rewind(n, k, accepted):
    return np.int64(n + accepted), torch.tensor(min(n + accepted, n + k - 1))
""",
    ),
}


@pytest.mark.slow
def test_an_honest_answer_written_otherwise_gets_full_marks(nursery):
    for name, (id, source) in HONEST_OTHERWISE.items():
        found = judge_source(nursery, source, id)
        assert (found.outcome, found.points) == (RIGHT, found.possible), (name, found.text)


@pytest.mark.slow
def test_marks_are_the_same_without_namespaces_and_the_report_says_so():
    with pytest.raises(ValueError, match="require_sandbox"):
        Nursery(Limits(), require_sandbox=True, most=RLIMITS)
    try:
        plain_limits = Nursery(most=RLIMITS)
    except ValueError as error:
        assert os.getuid() == 0 and "ordinary user" in str(error)  # a Python that only root can read
        return
    with plain_limits:
        assert RLIMITS in plain_limits.level
        found = judge_source(plain_limits, HONEST)
        assert (found.points, found.level) == (1, plain_limits.level)


# ---- processes that end ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_worker_ends_quietly_when_the_grader_is_gone():
    """An interrupted grader has not read the worker's last answer, so the worker finds its connection reset."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-s", str(WORKER), str(theirs.fileno())]
    worker = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True)
    theirs.close()
    with open(os.devnull) as link, open(os.devnull) as leash:
        socket.send_fds(ours, [json.dumps({"level": RLIMITS}).encode()], [link.fileno(), leash.fileno()])
    assert select.select([ours], [], [], 60)[0]
    ours.close()
    _, said = worker.communicate(timeout=60)
    assert (worker.returncode, said) == (0, "")


def grade_or_end(nursery, task: Task) -> Result:
    """A grader with a weakness: an answer that says so ends its process, always or the first time."""
    [source] = task.answers
    if "END ALWAYS" in source:
        os._exit(1)
    if "END ONCE" in source and not (mark := Path(source.split("'")[1])).exists():
        mark.touch()
        os._exit(1)
    return grade_one(nursery, task)


@pytest.mark.slow
def test_a_worker_that_ends_costs_nobody_a_point(tmp_path):
    """One that always brings it down, one that does once; the others get their marks."""
    sources = [HONEST, "# END ALWAYS", f"# END ONCE '{tmp_path / 'mark'}'\n{HONEST}", HONEST]
    tasks = [Task(f"s{i}", "06.accept", (source,)) for i, source in enumerate(sources)]
    found = {task.student: result for task, result in grading.judged(tasks, Options(), grade_or_end)}
    assert {name: result.points for name, result in found.items()} == {"s0": 1, "s1": 0, "s2": 1, "s3": 1}
    assert found["s1"].outcome == UNGRADED and "process ended" in found["s1"].text


def test_a_failure_of_the_grader_and_a_busy_machine_are_no_verdicts(monkeypatch):
    for name in ("Nursery", "make_unreadable", "limit_memory"):  # this process is no worker
        monkeypatch.setattr(grading, name, lambda *args, **named: nullcontext())
    tasks, said = ["bug", "busy"], []

    class Link:
        send = staticmethod(said.append)

        def recv(self) -> str:
            if not tasks:
                raise EOFError
            return tasks.pop(0)

    def fails(nursery, task: str) -> None:
        raise {"bug": ValueError("a bug of the grader's"), "busy": OutOfPatience()}[task]

    grading.serve(Link(), Options(), "", fails)
    assert [kind for kind, _ in said] == ["failed"] * 2 and "a bug" in said[0][1] and "busy" in said[1][1]


def test_what_was_not_graded_stands_in_no_journal_and_the_exit_says_so(tmp_path, monkeypatch, capsys):
    (tmp_path / "in").mkdir()
    for name in ("ann", "bob"):
        (tmp_path / f"in/{name}.ipynb").write_text(json.dumps(notebook("06", {"06.accept": HONEST})))

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

ATTACKS = [
    "def accept(p, q, token):\n    while True: pass",
    "import os\nos._exit(0)",
    "from minispec.verify import accept_probability as accept",
    "def accept(p, q, token):\n    return bytearray(20 * 2**30)",
    "raise SystemExit",
]


def make_class(folder: Path, size: int) -> dict[str, dict[str, tuple[int, str | None]]]:
    """Submissions of two answers each; student → exercise → the expected points and mistake."""
    wrong = {id: [w for w in WRONG_ANSWERS if w.exercise == id] for id in ("06.accept", "06.residual")}
    right, shuffled, attacks = solutions("06"), random.Random(0), iter(ATTACKS)
    expected = {}
    for i in range(size):
        student, answers, marks = f"student {i:03}", {}, {id: (0, None) for id in right}
        for id, flaws in wrong.items():
            kind = shuffled.random()
            if kind < 0.5:
                answers[id], marks[id] = right[id], (find(id).points, None)
            elif kind < 0.8 or id == "06.residual":
                flaw = shuffled.choice(flaws)
                answers[id], marks[id] = flaw.source, (0, flaw.mutant)
            else:
                answers[id] = next(attacks, "raise SystemExit")
        book = notebook("06", answers)
        ours = [c["metadata"].get("minispec", {}).get("exercise") in (None, *answers) for c in book["cells"]]
        book["cells"] = [cell for cell, kept in zip(book["cells"], ours, strict=True) if kept]
        (folder / f"{student}.ipynb").write_text(json.dumps(book), encoding="utf-8")
        expected[student] = marks
    (folder / "student 007.ipynb").write_bytes(b"{broken")
    expected["student 007"] = {id: (0, None) for id in right}
    return expected


@pytest.mark.slow
def test_a_class_gets_every_mark_right_across_an_interruption(tmp_path):
    size, early = 12, 15  # students with five exercises each, and the answers that are graded before the interruption
    (tmp_path / "in").mkdir()
    expected = make_class(tmp_path / "in", size)
    options = "grade in --all-or-nothing --sets 06 --workers 2 --seconds 4 --out grades.csv --html report".split()
    command = [sys.executable, "-c", "import sys; from minispec.cli import main; sys.exit(main())", *options]
    journal = tmp_path / "grades.journal.jsonl"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}

    def lines() -> int:
        return len(journal.read_text().splitlines()) if journal.exists() else 0

    def listen() -> None:  # a job in the background of a shell ignores Ctrl-C, and its children would too
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    how = dict(cwd=tmp_path, env=env, text=True)
    first = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=listen, **how)
    while lines() < early and first.poll() is None:
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGINT)  # as a terminal does it: to the whole group
    _, said = first.communicate(timeout=60)
    assert first.returncode == 130 and "goes on from there" in said and "Traceback" not in said
    kept = journal.read_bytes()
    assert early <= lines() < 5 * size and not (tmp_path / "grades.csv").exists()

    done = subprocess.run(command, capture_output=True, **how)
    assert done.returncode == 0, done.stderr
    assert f"{size} students" in done.stdout
    assert journal.read_bytes().startswith(kept) and lines() == 5 * size  # nothing lost, nothing graded twice
    with (tmp_path / "grades.csv").open(newline="") as stream:
        points = {row["student"]: row for row in csv.DictReader(stream)}
    found = {(entry["student"], entry["id"]): entry["mutant"] for entry in map(json.loads, journal.open())}
    for student, marks in expected.items():
        for id, (wanted, mistake) in marks.items():
            assert (int(points[student][id]), found[student, id]) == (wanted, mistake), (student, id)
    assert (tmp_path / "report/index.html").exists() and len(list((tmp_path / "report").glob("student-*"))) == size


MISTAKES = {
    "alice": {},
    "bob": {"06.residual": "p_itself"},
    "carol": {"06.residual": "p_itself", "06.top_p": "reports_q_before_top_p"},
    "dan": {"06.sampler": "without_bonus"},
}


@pytest.mark.slow
def test_the_sample_report_of_the_docs_is_today_s(tmp_path):
    """Except for the seconds and the level of the sandbox, which are those of a machine."""
    wrong = {(answer.exercise, answer.mutant): answer.source for answer in WRONG_ANSWERS}
    for student, own in MISTAKES.items():
        answers = solutions("06") | {id: wrong[id, name] for id, name in own.items()}
        (tmp_path / "in" / student).mkdir(parents=True)
        (tmp_path / "in" / student / "06.ipynb").write_text(json.dumps(notebook("06", answers)))
    options = Options(secret=b"the sample of docs/teaching.md")
    results = grade(tmp_path / "in", tmp_path / "grades.csv", ["06"], options)
    written = (tmp_path / "grades.csv").read_text(encoding="utf-8")

    def of_any_machine(text: str) -> str:
        return re.sub(r"sandbox: .*", "sandbox: …", re.sub(r"[\d.…]+ s per", "… s per", text)).strip()

    page = (ROOT / "docs/teaching.md").read_text(encoding="utf-8")
    said, table = re.findall(r"(?:prints|writes `grades\.csv`):\n\n```\n(.*?)```\n", page, re.DOTALL)
    assert of_any_machine(said) == of_any_machine(summary(results))
    assert table.splitlines() == written.splitlines()


# ---- nbgrader -------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.slow
def test_nbgrader_s_own_pipeline_takes_our_sources(tmp_path):
    pytest.importorskip("nbgrader")
    [source] = nbgrader_sources(["05"], tmp_path)
    name = source.stem

    def nbgrader(*command: str) -> None:
        paths = {k: str(tmp_path / k) for k in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")}
        env = {**os.environ, **paths, "MINISPEC_PROGRESS": "off", "OMP_NUM_THREADS": "1"}
        env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])  # it calls alembic by name
        command = [sys.executable, "-m", "nbgrader", *command, f"--course-dir={tmp_path}"]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]

    nbgrader("generate_assignment", name, "--create")
    released = tmp_path / "release" / name / f"{name}.ipynb"
    text = released.read_text(encoding="utf-8")
    assert "SOLUTION" not in text and "HIDDEN" not in text and "MINISPEC_STRICT" not in text
    book = nbformat.read(released, as_version=4)
    answers = solutions("05") | {"05.rewind": "def rewind(n, k, accepted):\n    return n, n\n"}
    for cell in book.cells:
        own = cell.metadata.get("minispec", {})
        if own.get("role") == "answer" and own["exercise"] != "05.loop":  # which is not attempted
            cell.source = answers[own["exercise"]]
    handed_in = tmp_path / "submitted/ann" / name
    handed_in.mkdir(parents=True)
    nbformat.write(book, handed_in / released.name)
    nbgrader("autograde", name, "--create")

    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{tmp_path / 'gradebook.db'}") as gradebook:
        grades = gradebook.find_submission_notebook(name, name, "ann").grades
        scores = {grade.name: grade.auto_score for grade in grades if grade.name.endswith("-check")}
    assert scores == {"05-greedy_verify-check": 1.0, "05-rewind-check": 0.0, "05-loop-check": 0.0}
