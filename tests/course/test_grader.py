"""The grader: what crosses, what is read, what is released, and a whole class with the expected mark for everyone.

What a submission cannot do to it: test_attacks.py.
"""

from __future__ import annotations

import csv
import json
import math
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from graders import HONEST, ROOT, answers_in, cell_of, judge_file, judge_source, notebook, set_file, solutions
from hypothesis import given
from hypothesis import strategies as st
from mutants.exercises import WRONG_ANSWERS

from minispec_course.check import check, classreport, collect, release, variants
from minispec_course.check.bridge import use
from minispec_course.check.check import NOT_ATTEMPTED, RIGHT, WRONG, Wrong, judge
from minispec_course.check.grade import Options, Task, course, grade_one, tasks_of, without_magic
from minispec_course.check.gradebook import Result, mistakes, summary, write_csv
from minispec_course.check.journal import Journal
from minispec_course.check.pupil import plain
from minispec_course.check.sandbox import NAMESPACES, RLIMITS, WORKER, Limits, Nursery, allowed
from minispec_course.check.submission import read, read_folder
from minispec_course.exercises.exercise import Number, everything, find
from minispec_course.exercises.fakes import Device, ScriptedModel, whole_text

EXERCISES = everything()
SECRET = b"a long text that only the teacher of these tests knows"


# ---- plain data -----------------------------------------------------------------------------------------------------

VALUES = [
    None,
    True,
    0,
    -7,
    2**62,
    0.1,
    math.inf,
    "x",
    "π",
    [],
    [1, [2.0, None]],
    (1, (2,)),
    {1, 2},
    {"a": 1, (1, 2): [3]},
    b"\0\xff",
    torch.arange(6).reshape(2, 3),
    torch.tensor(0.5),
    torch.zeros(0, 3),
    torch.tensor([True, False]),
    torch.tensor([1.5, math.nan], dtype=torch.bfloat16),
    np.arange(4.0),
    np.float32(0.25),
    np.int64(3),
    np.bool_(True),
]


def alike(a, b) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, (torch.Tensor, np.ndarray, np.generic)):
        bits = lambda x: torch.as_tensor(x).contiguous().reshape(-1).view(torch.uint8).tolist()  # noqa: E731
        return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    return a == b


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_plain_data_crosses_unchanged(value):
    assert alike(plain.decode(json.loads(json.dumps(plain.encode(value)))), value)


def test_an_object_crosses_as_the_name_of_its_type():
    class Sly:
        def __eq__(self, other):
            return True

    came = plain.decode(plain.encode(Sly()))
    assert type(came).__name__ == "Sly" and came != 7 and not hasattr(came, "__index__")


BYTES = {"array": "AAAA", "dtype": "uint8", "numpy": False}
MALFORMED = [
    2**63,
    {},
    {"what": 1},
    {"tuple": 7},
    {"set": [[]]},
    {"dict": [[1]]},
    {"dict": [[[], 1]]},
    {"bytes": "?"},
    {"remote": 0},
    {"tuple": [], "set": []},
    BYTES,
    {**BYTES, "shape": [4]},
    {**BYTES, "shape": [-3]},
    {**BYTES, "shape": [True, 3]},
    {**BYTES, "array": "", "shape": [0] * 99},
    {**BYTES, "shape": [3], "dtype": "object"},
    {**BYTES, "shape": 3},
    {**BYTES, "shape": [3], "more": 1},
]


@pytest.mark.parametrize("message", MALFORMED, ids=str)
def test_what_is_no_plain_data_is_refused(message):
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
    for id, exercise in EXERCISES.items():
        around = course(id.split(".")[0])
        offered = allowed(exercise, around)
        assert exercise.code not in offered and id not in offered
        assert exercise.reference not in offered.values(), id
        assert {*around.shelf, *around.references} - offered.keys() <= {exercise.code, id}
        assert around.functions.keys() == {other for other in EXERCISES if other.split(".")[0] == id.split(".")[0]}


# ---- what is read, and what is written ------------------------------------------------------------------------------


def test_a_folder_of_files_and_folders_is_read(tmp_path):
    (tmp_path / "bob/week 6/.ipynb_checkpoints").mkdir(parents=True)
    (tmp_path / "alice.ipynb").write_text(json.dumps(notebook("06", {"06.accept": HONEST})))
    (tmp_path / "bob/week 6/renamed.ipynb").write_text(json.dumps(notebook("05", solutions("05"))))
    (tmp_path / "bob/week 6/.ipynb_checkpoints/renamed.ipynb").write_text(json.dumps(notebook("05", {})))
    (tmp_path / "notes.txt").write_text("")
    alice, bob = read_folder(tmp_path)
    assert alice.student == "alice" and alice.answers["06.accept"] == HONEST
    assert bob.answers == solutions("05") and not bob.problems and not bob.remarks
    tasks = tasks_of([alice, bob], [], Options())
    assert {task.id.split(".")[0] for task in tasks} == {"05", "06"}
    assert [t.problem is None for t in tasks if t.student == "bob"] == [
        t.id[:2] == "05" for t in tasks if t.student == "bob"
    ]


def test_identical_copies_of_a_cell_are_one_answer(tmp_path):
    book = notebook("06", {"06.accept": HONEST})
    book["cells"].append(dict(cell_of(book, "06.accept")))
    (tmp_path / "a.ipynb").write_text(json.dumps(book))
    assert read("a", [tmp_path / "a.ipynb"]).answers["06.accept"] == HONEST


def test_magic_is_taken_out_only_where_python_fails():
    assert without_magic("%%time\n" + HONEST) == "\n" + HONEST
    fine = 'x = """\n%d\n"""\n'
    assert without_magic(fine) == fine


def result(student: str, id: str, points: int, mutant: str | None = None) -> Result:
    outcome = RIGHT if points else WRONG
    return Result(student, id, outcome, points, find(id).points, f"{id}: {outcome}", mutant, 0.5, NAMESPACES)


CLASS = [
    result("ann", "06.accept", 1),
    result("ann", "06.residual", 0, "p_itself"),
    result("bob", "06.accept", 0, "always"),
    result("bob", "06.residual", 0, "p_itself"),
]


def test_the_csv_is_one_row_a_student_and_the_same_every_time(tmp_path):
    write_csv(tmp_path / "a.csv", CLASS)
    write_csv(tmp_path / "b.csv", CLASS)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    with (tmp_path / "a.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(r["student"], r["06.accept"], r["total"], r["possible"]) for r in rows] == [
        ("ann", "1", "1", "3"),
        ("bob", "0", "0", "3"),
    ]


def test_the_report_names_the_commonest_mistake_and_needs_no_network(tmp_path):
    assert mistakes(CLASS)[0] == (("06.residual", "p_itself"), 2) and "06.residual p_itself" in summary(CLASS)
    page = classreport.write(tmp_path, CLASS).read_text(encoding="utf-8")
    assert "p itself" in page and "<script src" not in page and 'src="http' not in page
    assert len(list(tmp_path.glob("student-*.html"))) == 2


def test_a_journal_outlives_its_last_line(tmp_path):
    task = Task("ann", "06.accept", (HONEST,))
    Journal(tmp_path / "j", Options()).add(task, CLASS[0])
    with (tmp_path / "j").open("a") as stream:
        stream.write('{"key": "cut of')
    again = Journal(tmp_path / "j", Options())
    assert again.known == {again.key(task): CLASS[0]}
    again.add(replace(task, student="bob"), CLASS[2])
    assert len(Journal(tmp_path / "j", Options()).known) == 2
    for other in (replace(task, answers=("x",)), replace(task, seed=1), replace(task, problem="x")):
        assert again.key(other) != again.key(task)


# ---- variants, out and in -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("id", variants.VARIANTS)
def test_a_variant_wants_its_own_answer_and_names_every_mistake(id):
    for seed in (1, 2, 3):
        exercise = variants.graded(id, seed, "ann", SECRET)
        assert len(exercise.cases) > len(find(id).cases)
        assert judge(exercise, exercise.reference).outcome == RIGHT
        for name, mutant in exercise.mutants.items():
            judgement = judge(exercise, mutant.function)
            assert (judgement.outcome, judgement.mutant) == (WRONG, name)


def test_seeds_and_students_have_their_own_parameters():
    own = [variants.parameters("01.intensity", seed, s) for seed in (1, 2) for s in (None, "ann", "bob")]
    assert len({p["system"] for p in own}) == len(own)
    assert own[1] == variants.parameters("01.intensity", 1, "ann")


def test_the_published_answer_fails_a_variant_and_the_check_says_why(monkeypatch, capsys):
    monkeypatch.setenv("MINISPEC_PROGRESS", "off")
    exercise = find("07.speedup")
    with pytest.raises(Wrong, match="published"):
        check("07.speedup", exercise.reference, overhead=0.25)
    check("07.speedup", lambda alpha, k, c, v: exercise.reference(alpha, k, c, v + 0.25), overhead=0.25)
    assert "right" in capsys.readouterr().out
    with pytest.raises(ValueError, match="it takes overhead"):
        check("07.speedup", exercise.reference, system=3)
    with pytest.raises(ValueError, match="has no variants"):
        check("06.accept", exercise.reference, system=3)


def test_a_release_holds_no_solution_no_seed_and_each_student_s_numbers(tmp_path):
    files = release.release(["02", "07"], tmp_path / "out", seed=7, students=["ann", "bob"])
    assert [f"{f.parent.name}/{f.name[:2]}" for f in files] == ["ann/02", "ann/07", "bob/02", "bob/07"]
    ann, bob = (json.loads(files[i].read_text(encoding="utf-8")) for i in (1, 3))
    for student, book in (("ann", ann), ("bob", bob)):
        overhead = variants.parameters("07.speedup", 7, student)["overhead"]
        assert f"overhead={overhead})" in "".join(cell_of(book, "07.speedup", "check")["source"])
        assert f"also spends {overhead}" in json.dumps(book)
        assert "NotImplementedError" in answers_in(book)["07.speedup"]
        nbformat.validate(nbformat.from_dict(book))
    assert ann != bob
    with pytest.raises(ValueError, match="exists already"):
        release.release(["02"], tmp_path / "out", seed=7, students=["ann"])
    for names, options in (
        ([], {}),
        (["00"], {}),
        (["02"], {"students": ["ann"]}),
        (["02"], {"students": ["../x"], "seed": 1}),
    ):
        with pytest.raises(ValueError):
            release.release(names, tmp_path / "no", **options)


def test_checks_can_be_withheld(tmp_path):
    [file] = release.release(["06"], tmp_path, checks=False)
    text = file.read_text(encoding="utf-8")
    assert "check(" not in text and 'hint(\\"06' not in text and "draw(" not in text and '"hints"' not in text
    assert answers_in(json.loads(text)).keys() == solutions("06").keys()


def test_what_was_handed_in_is_sorted_by_student(tmp_path):
    book = json.dumps(notebook("06", {"06.accept": HONEST}))
    names = [
        "ann/06.ipynb",
        "Bob Ng_12_assignsubmission_file_/x.ipynb",
        "cid_99_1234_06.ipynb",
        "06_rejection_sampling.ipynb",
    ]
    for name in names:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(book)
    (tmp_path / "in/ann/link.ipynb").symlink_to(set_file("06", "solutions"))
    written, left_out = collect.collect(tmp_path / "in", tmp_path / "out")
    assert sorted(file.parent.name for file in written) == ["Bob Ng #12", "ann", "cid #99"] and len(left_out) == 2
    assert [s.student for s in read_folder(tmp_path / "out")] == ["Bob Ng #12", "ann", "cid #99"]


# ---- through the sandbox --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nursery():
    with Nursery() as nursery:
        yield nursery


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG_ANSWERS[::11], ids=lambda wrong: f"{wrong.exercise}-{wrong.mutant}")
def test_a_wrong_answer_gets_the_words_of_its_own_check(nursery, wrong, monkeypatch):
    monkeypatch.setenv("MINISPEC_TRIAL", "micro")
    before = (
        [s for id, s in solutions(wrong.exercise[:2]).items() if id != wrong.exercise]
        if find(wrong.exercise).joins
        else []
    )
    found = grade_one(nursery, Task("ann", wrong.exercise, (*before, wrong.source)))
    assert (found.outcome, found.points, found.mutant) == (WRONG, 0, wrong.mutant)
    assert find(wrong.exercise).mutants[wrong.mutant].diagnosis.split(".")[0][:60] in " ".join(found.text.split())


@pytest.mark.slow
@pytest.mark.parametrize("number", ["05", "06", "10", "12", "13", "16", "18"])
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
    "loops instead of tensors": (
        "06.residual",
        """
def my_residual(p, q):
    uncovered = []
    for i in range(len(p)):
        uncovered.append(max(0.0, p[i].item() - q[i].item()))
    total = sum(uncovered)
    if total == 0:
        return p
    return torch.tensor([x / total for x in uncovered])
""",
    ),
    "numpy, and a warning": (
        "06.residual",
        """
import warnings
import numpy as np
print("converting to numpy")
warnings.warn("slow")
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
from functools import lru_cache
def ratio(a, b): return a / b
@lru_cache
def unused(): ...
class Coin:
    def __call__(self, p, q, token): return torch.clamp(ratio(p, q)[token], max=1)
accept = Coin()
""",
    ),
    "numpy's own numbers": (
        "05.rewind",
        """
import numpy as np
def rewind(n, k, accepted):
    return np.int64(n + accepted), torch.tensor(min(n + accepted, n + k - 1))
""",
    ),
    "a sampler with bisect and no pick": (
        "06.one_hot",
        """
def verify_one_hot(p, token, random):
    u, total = random(), 0.0
    for y, mass in enumerate(p.tolist()):
        total += mass
        if total > u:
            return y == token, y
    return len(p) - 1 == token, len(p) - 1
""",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST_OTHERWISE)
def test_an_honest_answer_written_otherwise_gets_full_marks(nursery, name):
    id, source = HONEST_OTHERWISE[name]
    found = judge_source(nursery, source, id)
    assert (found.outcome, found.points) == (RIGHT, found.possible), found.text


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
        for source in (
            "def accept(p, q, token):\n    import os\n    os.fork()",
            "def accept(p, q, token):\n    return bytearray(2**35)",
        ):
            assert judge_source(plain_limits, source).points == 0


@pytest.mark.slow
def test_a_variant_is_graded_with_the_parameters_of_its_seed(nursery):
    overhead = variants.parameters("07.speedup", 5, "ann")["overhead"]
    right = f"def speedup(alpha, k, c, v):\n    return expected_tokens(alpha, k) / (k * c + v + {overhead})"
    ann = Task("ann", "07.speedup", (right,), seed=5, own=True)
    assert grade_one(nursery, ann).points == find("07.speedup").points
    assert grade_one(nursery, replace(ann, student="bob")).points == 0
    published = grade_one(nursery, replace(ann, answers=(solutions("07")["07.speedup"],)))
    assert (published.points, published.mutant) == (0, "as_published")


# ---- a class --------------------------------------------------------------------------------------------------------

ATTACKS = [
    "import os\nos._exit(0)",
    "from minispec.verify import accept_probability as accept",
    "class Any:\n    __eq__ = lambda s, o: True\ndef accept(p, q, token):\n    return Any()",
    "def accept(p, q, token):\n    return bytearray(20 * 2**30)",
    "def accept(p, q, token):\n    import os\n    os.fork()",
    "raise SystemExit",
    "def accept(p, q, token):\n    while True: pass",
]


def make_class(folder: Path, size: int) -> dict[str, dict[str, tuple[int, str | None]]]:
    """Submissions of two answers each; student → exercise → the expected points and mistake."""
    wrong = {id: [w for w in WRONG_ANSWERS if w.exercise == id] for id in ("06.accept", "06.residual")}
    right, shuffled = solutions("06"), random.Random(0)
    expected, endless = {}, True
    for i in range(size):
        student, answers, marks = f"student {i:03}", {}, {id: (0, None) for id in right}
        for id, flaws in wrong.items():
            kind = shuffled.random()
            if kind < 0.5:
                answers[id], marks[id] = right[id], (find(id).points, None)
            elif kind < 0.85 or (id == "06.residual" and kind < 0.95):
                flaw = shuffled.choice(flaws)
                answers[id], marks[id] = flaw.source, (0, flaw.mutant)
            elif id == "06.accept":
                attack = shuffled.choice(ATTACKS[:-1])
                answers[id] = ATTACKS[-1] if endless else attack
                endless = False  # waiting for one answer that never ends is enough
        book = notebook("06", answers)
        book["cells"] = [
            c for c in book["cells"] if c["metadata"].get("minispec", {}).get("exercise") in (None, *answers)
        ]
        (folder / f"{student}.ipynb").write_text(json.dumps(book), encoding="utf-8")
        expected[student] = marks
    (folder / "student 007.ipynb").write_bytes(b"{broken")
    expected["student 007"] = {id: (0, None) for id in right}
    return expected


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


@pytest.mark.slow
def test_a_class_gets_every_mark_right_across_an_interruption(tmp_path):
    size, early = 36, 45  # students with five exercises each, and the answers that are graded before the interruption
    (tmp_path / "in").mkdir()
    expected = make_class(tmp_path / "in", size)
    options = [
        "--all-or-nothing",
        "--sets",
        "06",
        "--workers",
        "2",
        "--seconds",
        "4",
        "--out",
        "grades.csv",
        "--html",
        "report",
    ]
    command = [
        sys.executable,
        "-c",
        "import sys; from minispec.cli import main; sys.exit(main())",
        "grade",
        "in",
        *options,
    ]
    journal = tmp_path / "grades.journal.jsonl"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}

    def lines() -> int:
        return len(journal.read_text().splitlines()) if journal.exists() else 0

    # A job in the background of a shell ignores Ctrl-C, and its children would too.
    listen = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    first = subprocess.Popen(
        command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=listen
    )
    while lines() < early and first.poll() is None:
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGINT)  # as a terminal does it: to the whole group
    _, said = first.communicate(timeout=60)
    assert first.returncode == 130 and "goes on from there" in said and "Traceback" not in said
    kept = journal.read_bytes()
    assert early <= lines() < 5 * size and not (tmp_path / "grades.csv").exists()

    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "s per submission" in done.stdout and f"{size} students" in done.stdout
    assert journal.read_bytes().startswith(kept) and lines() == 5 * size  # nothing lost, nothing graded twice
    with (tmp_path / "grades.csv").open(newline="") as stream:
        points = {row["student"]: row for row in csv.DictReader(stream)}
    with (tmp_path / "grades.details.csv").open(newline="") as stream:
        found = {(row["student"], row["exercise"]): row["mistake"] or None for row in csv.DictReader(stream)}
    for student, marks in expected.items():
        for id, (wanted, mistake) in marks.items():
            assert (int(points[student][id]), found[student, id]) == (wanted, mistake), (student, id)
    assert (tmp_path / "report/index.html").exists() and len(list((tmp_path / "report").glob("student-*"))) == size
    again = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert again.returncode == 0 and lines() == 5 * size


# ---- nbgrader -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nbgrader_s_own_pipeline_takes_our_sources(tmp_path):
    pytest.importorskip("nbgrader")
    [source] = release.nbgrader_sources(["05"], tmp_path)
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
    assert text.count("raise NotImplementedError") == 3

    book = nbformat.read(released, as_version=4)
    answers = solutions("05") | {"05.rewind": "def rewind(n, k, accepted):\n    return n, n\n"}
    for cell in book.cells:
        own = cell.metadata.get("minispec", {})
        if own.get("role") == "answer" and own["exercise"] != "05.loop":  # which is not attempted
            cell.source = answers[own["exercise"]]
    handed_in = tmp_path / "submitted/ann" / name
    handed_in.mkdir(parents=True)
    nbformat.write(book, handed_in / released.name)
    shutil.rmtree(tmp_path / "release")
    nbgrader("autograde", name, "--create")

    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{tmp_path / 'gradebook.db'}") as gradebook:
        grades = gradebook.find_submission_notebook(name, name, "ann").grades
        scores = {grade.name: grade.auto_score for grade in grades if grade.name.endswith("-check")}
    assert scores == {"05-greedy_verify-check": 1.0, "05-rewind-check": 0.0, "05-loop-check": 0.0}
