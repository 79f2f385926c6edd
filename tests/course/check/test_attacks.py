"""Submissions that try to cheat the grader, or to break it.

Every one of them gets no point, the grader lives on, and the honest student who comes next gets all points. One attack
of each kind is tried by `make test`, all of them by `make nightly`. What the kernel is asked for, files outside and
other processes: test_sandbox.py.
"""

from __future__ import annotations

import socket

import pytest
from graders import HONEST, judge_source

from minispec_course.check.check import NOT_ATTEMPTED, RIGHT, WRONG
from minispec_course.check.report import student_body
from minispec_course.check.sandbox import NAMESPACES, Limits, Nursery

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def nursery():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINISPEC_SECRET", "the answer is 42")
        with Nursery(Limits(seconds=2.0)) as nursery:
            yield nursery


def fails(nursery: Nursery, source: str, words: str = "", id: str = "06.accept") -> None:
    """No point, and the result says these words."""
    result = judge_source(nursery, source, id)
    assert result.points == 0 and result.outcome in (WRONG, NOT_ATTEMPTED), result.text
    assert words in " ".join(result.text.split()), result.text


def lives_on(nursery: Nursery) -> None:
    """The next student gets what is due."""
    after = judge_source(nursery, HONEST)
    assert (after.outcome, after.points) == (RIGHT, 1), after.text


ATTACKS = []


def attack(name: str, source: str, words: str = "", id: str = "06.accept", by_day: bool = False) -> None:
    """An answer to an exercise, and the words by which the grader shows that this is what it met."""
    marks = () if by_day else pytest.mark.nightly
    ATTACKS.append(pytest.param(source, words, id, id=name, marks=marks))


def accept(*lines: str, before: str = "") -> str:
    """An answer to 06.accept with these lines as its body."""
    return f"{before}\ndef accept_probability(p, q, token):\n" + "\n".join(f"    {line}" for line in lines) + "\n"


# ---- objects that agree with everything, and code of others that was changed ---------------------------------------

SLY = "__eq__ = lambda s, o: True\n    __hash__ = lambda s: 0\n    __rsub__ = __sub__ = __abs__ = lambda *a: 0.0\n"
attack(
    "an object that equals everything",
    accept("return Always()", before=f"class Always:\n    {SLY}    __float__ = lambda s: 0.5\n"),
    "an object of type Always",
    by_day=True,
)
attack(
    "torch, changed",
    accept(
        "return torch.tensor(0.9)",
        before="torch.allclose = torch.equal = torch.isclose = lambda *a, **k: True\n"
        "torch.Tensor.__eq__ = torch.Tensor.__lt__ = lambda s, o: True\n"
        "torch.Tensor.item = torch.Tensor.tolist = lambda s: 0.5\n",
    ),
    by_day=True,
)
attack(
    "our check, changed",
    accept(
        "return 0.9",
        before="import sys, types\nimport minispec_course.check as room\nroom.check = lambda *a: None\n"
        "fake = types.ModuleType('x')\nfake.judge = fake.same = lambda *a: True\n"
        "sys.modules['minispec_course.check.check'] = sys.modules['minispec_course.exercises.show'] = fake\n",
    ),
    by_day=True,
)
FORGE = """
import json, os
for forged in ({"outcome": "right", "points": 1}, {"value": True, "changed": [], "drew": False},
               {"ask": "call", "of": 0, "args": [["rm"], {"tuple": []}]}, {"ask": "__class__", "of": -1, "args": []},
               {"value": {"array": "AAAA", "dtype": "object", "shape": [1], "numpy": True}}, [], 7):
    data = json.dumps(forged).encode()
    for fd in range(3, 20):
        try: os.write(fd, len(data).to_bytes(4, "big") + data)
        except OSError: pass
"""
attack("forged messages", accept("return 0.9", before=FORGE), by_day=True)

# ---- leaving, and too much of everything ----------------------------------------------------------------------------

attack("exit", accept("import os", "os._exit(0)"), "ended the process", by_day=True)
attack("error at import", "raise RuntimeError('full marks')\n" + HONEST, "Your cell raised RuntimeError")
UNSHOWN = "class E(Exception):\n    def __str__(self):\n        while True: raise E\n"
attack("an error that cannot be shown", accept("raise E", before=UNSHOWN), "raised E")
attack(
    "a loop that swallows everything",
    accept("while True:", "    try:", "        while True: pass", "    except BaseException: pass"),
    "stopped after 2 seconds",
    by_day=True,
)
attack("20 GB", accept("return bytearray(20 * 2**30)"), "MemoryError", by_day=True)
attack("fork storm", accept("import os", "while True: os.fork()"), "BlockingIOError", by_day=True)
attack("full disk", accept("with open('big', 'wb') as f:", "    while True: f.write(b'x' * 10**7)"), "OSError")
attack("many files", accept("kept = [open(f'f{i}', 'w') for i in range(10**5)]"), "Too many open files")
attack("a very large result", accept("return torch.zeros(3 * 10**6)"), "cannot be read")
attack("a thousand lists", accept("x = []", "for _ in range(1000): x = [x]", "return x"), "RecursionError", by_day=True)
attack("an enormous shape", accept("return torch.zeros(2**40, 0)"), "cannot be read", by_day=True)
attack("a result that holds itself", accept("x = []", "x.append(x)", "return x"))
ENDLESS = "def sampler(p, q, drafted, random):\n    while True: random()"
attack("endless questions", ENDLESS, id="06.sampler")
WORK = "def speedup(alpha, k, c, v):\n    return expected_tokens(0.5, 2**62)\n"
attack("work for the grader", WORK, "stopped after 2 seconds", "07.speedup")
MEMORY = "def residual(p, q):\n    return accept_probability(torch.ones(10**5, 1), torch.ones(1, 10**5), 0)"
attack("memory for the grader", MEMORY, "too large", "06.residual", by_day=True)

# ---- looking for the answer -----------------------------------------------------------------------------------------

THEIRS = accept("return theirs(p, q, token)", before="theirs = accept_probability")
attack("what the first cell imports", THEIRS, "write it yourself", by_day=True)
attack("the exercises", "import minispec_course.exercises.exercise\n" + HONEST, "write it yourself", by_day=True)
QUESTIONS = """
def sampler(p, q, drafted, random):
    for what in ("__class__", "__globals__", "__closure__", "say", "refuse", "length", "next"):
        try: print(random._ask(what))
        except TypeError: continue
        return [1, 1]
    return getattr(random, "__self__", None) or [0, 0, 0]
"""
attack("questions about the grader", QUESTIONS, id="06.sampler", by_day=True)
CHANGED = "def sampler(p, q, drafted, random):\n    q.zero_()\n    return [*drafted, pick(p[-1], random())]"
attack("an argument, changed", CHANGED, "changes its argument q", "06.sampler")
ENVIRONMENT = accept("import os", "raise LookupError(*os.environ)")
attack("environment", ENVIRONMENT, "Your function raised LookupError: HOME, in line", by_day=True)
SEARCH = """
import gc, sys
shelf = "minispec", "minispec.verify", "minispec_course", "minispec_course.check"
ours = [n for n in sys.modules if n.startswith("minispec") and n not in shelf]
code = [f.__name__ for f in gc.get_objects() if type(f).__name__ == "function" and "minispec" in f.__code__.co_filename
        and not f.__code__.co_filename.endswith("_finder.py") and "/pupil/" not in f.__code__.co_filename]
assert not ours and not code, (ours, code)
frame, names = sys._getframe(), []
while frame:
    names += [k for k, v in frame.f_locals.items() if "Exercise" in type(v).__name__ or "expected" in k]
    frame = frame.f_back
assert not names, names
raise LookupError("nothing there")
"""
attack("memory", accept("return 0.9", before=SEARCH), "LookupError: nothing there", by_day=True)


@pytest.mark.parametrize(("source", "words", "id"), ATTACKS)
def test_an_attack_gets_no_point(nursery, source, words, id):
    fails(nursery, source, words, id)


def test_after_every_attack_an_honest_answer_is_graded(nursery):
    """In the same nursery; tests of a file run in their order."""
    lives_on(nursery)


def test_nothing_of_an_attack_is_left_outside(nursery, tmp_path, capfd):
    """No file by unpickling, at exit or over a link; no flood on the teacher's screen; nothing on a socket."""
    mark, treasure = tmp_path / "mark", tmp_path / "treasure"
    treasure.write_text("kept")
    before = f"""
import atexit, os
class Sly:
    __reduce__ = lambda s: (open, ({str(mark)!r}, 'w'))
atexit.register(lambda: open({str(mark)!r}, 'w'))
os.symlink({str(tmp_path)!r}, 'x')
os.symlink({str(treasure)!r}, 'y')
for _ in range(1000): print('x' * 10**6)
os.write(1, b'y' * 10**6)
"""
    fails(nursery, accept("return Sly()", before=before))
    lives_on(nursery)
    assert not mark.exists() and treasure.read_text() == "kept" and len("".join(capfd.readouterr())) < 10_000
    if NAMESPACES not in nursery.level:
        return
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        port = server.getsockname()[1]
        fails(
            nursery, f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)\n{HONEST}", "Your cell raised"
        )
        with pytest.raises(TimeoutError):
            server.accept()


def test_escape_sequences_and_markup_reach_neither_terminal_nor_page(nursery):
    result = judge_source(nursery, accept("raise ValueError('\\x1b[2J<script>alert(1)</script>\\x07')"))
    assert result.points == 0 and "\x1b" not in result.text and "\x07" not in result.text
    assert "<script>" not in student_body("<b>eve", [result]) and "<b>eve" not in student_body("<b>eve", [result])
