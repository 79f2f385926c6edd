"""Submissions that try to cheat the grader, or to break it. One test each.

Every one of them is wrong, and gets no point; the grader lives on; and the honest student who comes next gets all
points (the fixture `sheltered` sees to that). `confined` attacks need what only namespaces prevent.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from graders import HONEST, ROOT, answers_in, cell_of, judge_file, judge_source, notebook

from minispec_course.check.check import NOT_ATTEMPTED, RIGHT, WRONG
from minispec_course.check.collect import collect
from minispec_course.check.gradebook import write_csv
from minispec_course.check.sandbox import NAMESPACES, Limits, Nursery
from minispec_course.exercises.exercise import find

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def nursery():
    os.environ["MINISPEC_SECRET"] = "the answer is 42"
    with Nursery(Limits(seconds=2.0)) as nursery:
        yield nursery
    del os.environ["MINISPEC_SECRET"]


@pytest.fixture
def sheltered(nursery: Nursery):
    """The grader, which must be whole when the attack is over: the next student gets what is due."""
    yield nursery
    after = judge_source(nursery, HONEST)
    assert (after.outcome, after.points) == (RIGHT, 1), after.text


@pytest.fixture
def confined(sheltered: Nursery):
    if NAMESPACES not in sheltered.level:
        pytest.skip("this machine has no namespaces")
    return sheltered


def fails(nursery: Nursery, source: str, id: str = "06.accept", words: str = "") -> str:
    """No point, and the result says these words."""
    result = judge_source(nursery, source, id)
    assert result.points == 0 and result.outcome in (WRONG, NOT_ATTEMPTED), result.text
    assert words in " ".join(result.text.split()), result.text
    return result.text


def accept(*lines: str, before: str = "") -> str:
    """An answer to 06.accept with these lines as its body."""
    return f"{before}\ndef accept(p, q, token):\n" + "\n".join(f"    {line}" for line in lines) + "\n"


# ---- objects that agree with everything -----------------------------------------------------------------------------


def test_attack_always_equal_object(sheltered):
    before = """
class Always:
    __eq__ = __le__ = __ge__ = lambda self, other: True
    __ne__ = __lt__ = __gt__ = lambda self, other: False
    __hash__ = lambda self: 0
    __float__ = lambda self: 0.5
    __sub__ = __rsub__ = __abs__ = lambda *a: 0.0
"""
    fails(sheltered, accept("return Always()", before=before), words="an object of type Always")


def test_attack_int_subclass(sheltered):
    before = (
        "class Sly(int):\n    __eq__ = lambda s, o: True\n    __hash__ = int.__hash__\n    __sub__ = lambda s, o: 0\n"
    )
    fails(sheltered, accept("return Sly(7)", before=before))
    fails(sheltered, before + "def rewind(n, k, accepted):\n    return Sly(7), Sly(8)", "05.rewind")


def test_attack_float_subclass(sheltered):
    before = "class Sly(float):\n    __eq__ = lambda s, o: True\n    __rsub__ = __sub__ = __abs__ = lambda *a: 0.0\n"
    fails(sheltered, accept("return Sly(0.9)", before=before))


def test_attack_str_subclass(sheltered):
    source = """
class Sly(str):
    __eq__ = lambda s, o: True
    __hash__ = lambda s: hash("memory")
def roofline(bytes_read, flops, bandwidth, peak):
    return max(bytes_read / bandwidth, flops / peak), Sly("both")
"""
    fails(sheltered, source, "01.roofline", 'should be the text "memory" or "compute"')


def test_attack_ndarray_subclass(sheltered):
    source = """
import numpy as np
class Sly(np.ndarray):
    __eq__ = lambda s, o: True
    __array_ufunc__ = lambda s, *a, **k: np.zeros(2)
def my_residual(p, q):
    return np.full(len(p), 0.3).view(Sly)
"""
    fails(sheltered, source, "06.residual")


def test_attack_tensor_subclass(sheltered):
    source = """
class Sly(torch.Tensor):
    @classmethod
    def __torch_function__(cls, f, t, args=(), kwargs=None):
        return True
def my_residual(p, q):
    return torch.full((len(p),), 0.3).as_subclass(Sly)
"""
    fails(sheltered, source, "06.residual")


def test_attack_containers_that_lie(sheltered):
    source = """
class Sly(list):
    __len__ = lambda s: 2
    __iter__ = lambda s: iter([0, 0])
    __eq__ = lambda s, o: True
def slots(table, block_size, start, stop):
    return Sly([9, 9, 9])
"""
    fails(sheltered, source, "03.slot")


def test_attack_object_that_unpickles_to_a_command(sheltered, tmp_path):
    mark = tmp_path / "mark"
    before = f"class Sly:\n    __reduce__ = lambda s: (open, ({str(mark)!r}, 'w'))\n"
    fails(sheltered, accept("return Sly()", before=before))
    assert not mark.exists()


# ---- other people's code, changed -----------------------------------------------------------------------------------


def test_attack_monkeypatched_torch(sheltered):
    before = """
torch.allclose = torch.equal = torch.isclose = lambda *a, **k: True
torch.Tensor.__eq__ = torch.Tensor.__lt__ = lambda s, o: True
torch.Tensor.item = torch.Tensor.tolist = lambda s: 0.5
"""
    fails(sheltered, accept("return torch.tensor(0.9)", before=before))


def test_attack_monkeypatched_numpy(sheltered):
    before = "import numpy as np\nnp.allclose = np.isclose = np.array_equal = lambda *a, **k: True\n"
    fails(sheltered, accept("return np.float64(0.9)", before=before))


def test_attack_monkeypatched_minispec(sheltered):
    before = """
import sys, types
import minispec_course.check as room
room.check = room.judge = lambda *a: None
fake = types.ModuleType("minispec_course.check.check")
fake.judge = fake.same = lambda *a: True
sys.modules["minispec_course.check.check"] = sys.modules["minispec_course.exercises.show"] = fake
"""
    fails(sheltered, accept("return 0.9", before=before))


def test_attack_monkeypatched_builtins(sheltered):
    before = """
import builtins, math
builtins.abs = builtins.len = lambda x: 0
builtins.isinstance = builtins.all = builtins.callable = lambda *a: True
math.isclose = lambda *a, **k: True
"""
    fails(sheltered, accept("return 0.9", before=before))


def test_attack_json_encoder_replaced(sheltered):
    before = 'import json\njson.dumps = lambda *a, **k: \'{"value": true, "outcome": "right", "points": 1}\'\n'
    fails(sheltered, accept("return 0.9", before=before))


def test_attack_ipython_transformer(sheltered):
    before = "ip = get_ipython()\nip.input_transformers_post.append(lambda lines: ['pass'])\n"
    fails(sheltered, accept("return 0.9", before=before), words="NameError")


# ---- leaving, and refusing to leave ---------------------------------------------------------------------------------


def test_attack_atexit(sheltered, tmp_path):
    mark = tmp_path / "mark"
    before = f"import atexit\natexit.register(lambda: open({str(mark)!r}, 'w'))\n"
    fails(sheltered, accept("return 0.9", before=before))
    assert not mark.exists()


def test_attack_signal_handlers_and_a_loop(sheltered):
    before = """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, lambda *a: None)
    except (OSError, ValueError):
        pass
"""
    fails(sheltered, accept("while True: pass", before=before), words="stopped after 2 seconds")


def test_attack_os_exit(sheltered):
    fails(sheltered, accept("import os", "os._exit(0)"), words="ended the process")
    fails(sheltered, "import os\nos._exit(0)", words="ended the process")


def test_attack_sys_exit(sheltered):
    fails(sheltered, accept("raise SystemExit(0)"), words="SystemExit")
    fails(sheltered, accept("raise KeyboardInterrupt"), words="KeyboardInterrupt")


def test_attack_segmentation_fault(sheltered):
    fails(sheltered, accept("import ctypes", "ctypes.string_at(0)"), words="ended the process")


def test_attack_exception_at_import(sheltered):
    fails(sheltered, "raise RuntimeError('full marks')\n" + HONEST, words="Your cell raised RuntimeError")


def test_attack_exception_that_cannot_be_shown(sheltered):
    before = "class E(Exception):\n    def __str__(self):\n        while True: raise E\n"
    fails(sheltered, accept("raise E", before=before), words="raised E")


def test_attack_exceptions_of_odd_kinds(sheltered):
    fails(sheltered, "raise ExceptionGroup('x', [ValueError()])")
    fails(sheltered, accept("raise UnicodeDecodeError('a', b'', 0, 1, 'b')"))
    fails(sheltered, accept("raise type('06.accept: right', (Exception,), {})('06.accept: right, in 6 cases')"))


def test_attack_no_python_at_all(sheltered):
    fails(sheltered, "def accept(p, q, token) return 1", words="SyntaxError")
    fails(sheltered, "\0" + HONEST)
    fails(sheltered, "(" * 5000)


# ---- too much of everything -----------------------------------------------------------------------------------------


def test_attack_infinite_loop(sheltered):
    fails(sheltered, accept("while True: pass"), words="stopped after 2 seconds")


def test_attack_infinite_loop_at_import(sheltered):
    fails(sheltered, "while True: pass\n" + HONEST, words="stopped after 2 seconds")


def test_attack_loop_that_swallows_everything(sheltered):
    lines = "while True:", "    try:", "        while True: pass", "    except BaseException: pass"
    fails(sheltered, accept(*lines), words="stopped after 2 seconds")


def test_attack_endless_call_into_c(sheltered):
    fails(sheltered, accept("return 10 ** 10 ** 9"))


def test_attack_sleep(sheltered):
    fails(sheltered, accept("import time", "time.sleep(1e6)"), words="stopped after 2 seconds")


def test_attack_recursion(sheltered):
    fails(sheltered, accept("return accept(p, q, token)"), words="RecursionError")
    fails(sheltered, accept("import sys", "sys.setrecursionlimit(10**9)", "return accept(p, q, token)"))


def test_attack_20_gb(sheltered):
    fails(sheltered, accept("return torch.ones(20 * 2**30, dtype=torch.uint8).sum()"))
    fails(sheltered, accept("return bytearray(20 * 2**30)"), words="MemoryError")


def test_attack_memory_in_small_pieces(sheltered):
    fails(sheltered, accept("kept = []", "while True: kept.append(bytearray(10**8))"))


def test_attack_fork_storm(sheltered):
    fails(sheltered, accept("import os", "while True: os.fork()"), words="BlockingIOError")


def test_attack_subprocess(sheltered):
    fails(sheltered, accept("import os, subprocess", "subprocess.run(['true'])", "return 0.9"))


def test_attack_thread_storm(sheltered):
    lines = "import threading, time", "while True: threading.Thread(target=time.sleep, args=(99,)).start()"
    fails(sheltered, accept(*lines), words="can't start new thread")


def test_attack_1_gb_print(sheltered, capfd):
    before = (
        "for _ in range(1000): print('x' * 10**6)\nimport os\nos.write(1, b'y' * 10**6)\nos.write(2, b'y' * 10**6)\n"
    )
    fails(sheltered, accept("return 0.9", before=before))
    assert len("".join(capfd.readouterr())) < 10_000


def test_attack_full_disk(sheltered):
    lines = "with open('big', 'wb') as f:", "    while True: f.write(b'x' * 10**7)"
    fails(sheltered, accept(*lines), words="OSError")


def test_attack_many_files(sheltered):
    fails(
        sheltered,
        accept("kept = [open(f'f{i}', 'w') for i in range(10**5)]", "return 0.9"),
        words="Too many open files",
    )


def test_attack_very_large_result(sheltered):
    fails(sheltered, accept("return torch.zeros(3 * 10**6)"), words="cannot be read")
    fails(sheltered, accept("return [0] * 10**6"))


def test_attack_very_deep_result(sheltered):
    fails(sheltered, accept("x = []", "for _ in range(10**5): x = [x]", "return x"))
    fails(sheltered, accept("x = []", "x.append(x)", "return x"))


def test_attack_very_large_number(sheltered):
    fails(sheltered, accept("return 10 ** 4000"))
    fails(sheltered, "def slots(table, block_size, start, stop):\n    return [10**4000] * 9", "03.slot")


# ---- talking to the grader ------------------------------------------------------------------------------------------


def test_attack_forged_messages(sheltered):
    """The channel is the student's to write to: all it can carry is a result."""
    before = """
import json, os
for forged in ({"outcome": "right", "points": 1}, {"value": True, "changed": [], "drew": False},
               {"ask": "call", "of": 0, "args": [["rm"], {"tuple": []}]}, {"ask": "__class__", "of": -1, "args": []},
               {"value": {"array": "AAAA", "dtype": "object", "shape": [1], "numpy": True}}, [], 7):
    data = json.dumps(forged).encode()
    for fd in range(3, 20):
        try:
            os.write(fd, len(data).to_bytes(4, "big") + data)
        except OSError:
            pass
"""
    fails(sheltered, accept("return 0.9", before=before))


def test_attack_noise_on_the_channel(sheltered):
    before = "import os\nfor fd in range(3, 20):\n    try: os.write(fd, os.urandom(4096))\n    except OSError: pass\n"
    fails(sheltered, accept("return 0.9", before=before))


def test_attack_hang_up(sheltered):
    fails(sheltered, accept("import os", "os.closerange(3, 99)"), words="ended the process")


def test_attack_questions_about_the_grader(sheltered):
    """Through an object that stays with the grader nothing else of the grader can be had."""
    source = """
def sampler(p, q, drafted, random):
    for what in ("__class__", "__globals__", "__closure__", "say", "refuse", "length", "next"):
        try:
            print(random._ask(what))
        except TypeError:
            continue
        return [1, 1]
    return getattr(random, "__self__", None) or [0, 0, 0]
"""
    fails(sheltered, source, "06.sampler")


def test_attack_argument_changed_and_restored(sheltered):
    """To draw drafts from p, and put q back before anybody looks, would make every draft acceptable."""
    source = """
def sampler(p, q, drafted, random):
    q.copy_(p[:-1])
    return [*drafted, pick(p[-1], random())]
"""
    fails(sheltered, source, "06.sampler", "changes its argument q")


def test_attack_endless_questions(sheltered):
    """They end with the time, or with the number of questions, whichever comes first on this machine."""
    fails(sheltered, "def sampler(p, q, drafted, random):\n    while True: random()", "06.sampler")


def test_attack_work_for_the_grader(sheltered):
    """What stays with the grader takes the grader's time and memory: both have an end."""
    speedup = "def speedup(alpha, k, c, v):\n    return expected_tokens(0.5, 2**62)\n"
    fails(sheltered, speedup, "07.speedup", "stopped after 2 seconds")
    fails(sheltered, "expected_tokens(0.5, 2**62)\n" + speedup, "07.speedup", "stopped after 2 seconds")
    for p, q in (("10**5, 1", "1, 10**5"), ("1, 3 * 10**5", "10**3, 1")):
        source = f"def my_residual(p, q):\n    return accept_probability(torch.ones({p}), torch.ones({q}), 0)"
        fails(sheltered, source, "06.residual", "too large")
    loop = "def loop(target, draft, prompt, k, count):\n    return target.read(list(range(10**5)) * 20)"
    fails(sheltered, loop, "05.loop")


# ---- looking for the answer -----------------------------------------------------------------------------------------


def test_attack_asked_for_function_imported(sheltered):
    fails(sheltered, "from minispec.verify import accept_probability as accept", words="write it yourself")
    fails(sheltered, "from minispec.verify import chain\n" + accept("return 0.9"), words="write it yourself")
    fails(
        sheltered,
        "import minispec\n" + accept("return minispec.verify.accept_probability(p, q, token)"),
        words="write it yourself",
    )


def test_attack_asked_for_function_from_the_first_cell(sheltered):
    """The set's own first cell imports it, for the exercises after this one."""
    fails(sheltered, accept("return accept_probability(p, q, token)"), words="write it yourself")
    fails(sheltered, "def my_residual(p, q):\n    return residual(p, q)", "06.residual", "write it yourself")


def test_attack_reference(sheltered):
    source = "from minispec_course.check import reference\n" + accept("return reference('06.accept')(p, q, token)")
    fails(sheltered, source, words="write it yourself")
    fails(
        sheltered,
        "def greedy_verify(logits, drafted):\n    return our_verify(logits, drafted)",
        "05.greedy_verify",
        "write it yourself",
    )


def test_attack_classroom_internals(sheltered):
    for module in (
        "minispec_course.exercises.set_06_rejection_sampling",
        "minispec_course.check.check",
        "minispec_course.exercises.exercise",
        "minispec.exact",
    ):
        fails(sheltered, f"import {module} as m\n" + accept("return 0.9"), words="write it yourself")


def test_attack_import_hooks_removed(confined):
    before = f"""
import sys, importlib.machinery as m
sys.meta_path[:] = [m.BuiltinImporter, m.FrozenImporter, m.PathFinder]
sys.path += [{str(ROOT)!r}, {str(ROOT / "minispec")!r}]
for name in [n for n in sys.modules if n.startswith("minispec")]:
    del sys.modules[name]
from minispec.verify import accept_probability
"""
    fails(confined, accept("return accept_probability(p, q, token)", before=before), words="ModuleNotFoundError")


def test_attack_solutions_read_by_path(confined):
    before = f"""
import json
for file in ({str(ROOT / "solutions/06_rejection_sampling.ipynb")!r}, {str(ROOT / "README.md")!r},
             {str(ROOT / "course/exercises/06_rejection_sampling.py")!r}, {__file__!r},
             {str(ROOT / "minispec/verify.py")!r}):
    with open(file) as stream:
        print(stream.read())
"""
    fails(confined, accept("return 0.9", before=before), words="FileNotFoundError")


def test_attack_search_of_all_files(confined):
    """Of the course's folder and of everybody's home there is at most the way to the Python that runs."""
    pythons = [at(prefix) for prefix in (sys.prefix, sys.base_prefix) for at in (os.path.abspath, os.path.realpath)]
    way = sorted({name for python in pythons for name in Path(python).parts} | {"student"})
    before = f"""
import os
places = [place for place in ({str(ROOT)!r}, "/home", "/root", "/tmp") if os.path.isdir(place)]
found = [name for place in places for name in os.listdir(place) if name not in {way!r}]
assert not found, found
found = [name for place in ("/", {str(ROOT.parent)!r}) if os.path.isdir(place) for name in os.listdir(place)]
assert "solutions" not in found and "mnt" not in found and "var" not in found, found
raise LookupError("nothing there")
"""
    fails(confined, accept("return 0.9", before=before), words="LookupError: nothing there")


def test_attack_search_of_memory(sheltered):
    """There is nothing of minispec in the process: not its modules, not its functions, not the expected results."""
    before = """
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
    fails(sheltered, accept("return 0.9", before=before), words="LookupError: nothing there")


def test_attack_parent_through_proc(confined):
    before = """
import os
pids = [n for n in os.listdir("/proc") if n.isdigit()] if os.path.isdir("/proc") and os.listdir("/proc") else ["1"]
assert pids == ["1"] and os.getpid() == 1, pids
open("/proc/0/mem") if os.getppid() else None
os.kill(os.getppid() or 4194304, 9)
"""
    fails(confined, accept("return 0.9", before=before), words="Your cell raised")


def test_attack_kill_everybody(confined):
    fails(confined, accept("import os", "os.kill(-1, 9)", "return 0.9"))
    fails(confined, accept("import os", "os.killpg(0, 9)", "return 0.9"))


def test_attack_environment(sheltered):
    before = "import os\nassert list(os.environ) == ['HOME'], os.environ\nraise LookupError('nothing there')\n"
    fails(sheltered, accept("return 0.9", before=before), words="LookupError: nothing there")


def test_attack_rights(confined):
    before = """
import ctypes, os
assert os.getuid() != 0 or open("/proc/self/uid_map").read().split()[1] != "0"
libc = ctypes.CDLL(None)
assert libc.mount(b"tmpfs", b"/home", b"tmpfs", 0, None) != 0
assert libc.umount2(b"/home/student", 2) != 0 and libc.chroot(b"/home/student") != 0
for limit in (6, 7, 9):
    import resource
    try:
        resource.setrlimit(limit, (10**6, 10**6 + 1))
    except (ValueError, OSError):
        continue
    assert limit != 6, "processes again"
raise LookupError("nothing gained")
"""
    fails(confined, accept("return 0.9", before=before), words="nothing gained")


# ---- getting out ----------------------------------------------------------------------------------------------------


def test_attack_write_outside(confined, tmp_path):
    mark = tmp_path / "mark"
    for place in (mark, ROOT / "grades.csv", Path("/tmp/grades.csv"), Path("/usr/lib/x"), Path("/x")):
        fails(confined, f"open({str(place)!r}, 'w').write('100')\n" + accept("return 0.9"), words="Your cell raised")
        assert not place.exists()


def test_attack_symlink_in_its_folder(sheltered, tmp_path):
    """Cleaning up after a student does not follow where the student points."""
    treasure = tmp_path / "treasure"
    treasure.write_text("kept")
    before = f"import os\nos.symlink({str(tmp_path)!r}, 'x')\nos.symlink({str(treasure)!r}, 'y')\n"
    fails(sheltered, accept("return 0.9", before=before))
    assert treasure.read_text() == "kept"


def test_attack_symlink_as_submission(sheltered, tmp_path):
    link = tmp_path / "06.ipynb"
    link.symlink_to(ROOT / "solutions/06_rejection_sampling.ipynb")
    assert not any(r.points for r in judge_file(sheltered, link).values())


def test_attack_network(confined):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        before = f"import socket\nsocket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 1).send(b'q?')\n"
        fails(confined, accept("return 0.9", before=before), words="Your cell raised")
        with pytest.raises(TimeoutError):
            server.accept()
    fails(confined, accept("import urllib.request as u", "return u.urlopen('http://example.com', timeout=2)"))


def test_attack_abstract_socket(confined):
    """Sockets without a file would reach across file systems, if the network were not the student's own."""
    name = f"\0minispec-attack-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        before = f"import socket\nsocket.socket(socket.AF_UNIX).connect({name!r})\n"
        fails(confined, accept("return 0.9", before=before), words="Your cell raised")


# ---- notebooks that are not what they seem --------------------------------------------------------------------------


def hand_in(nursery: Nursery, folder: Path, content: dict | bytes, ids=("06.accept",)) -> dict:
    file = folder / "somebody.ipynb"
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return judge_file(nursery, file, ids)


def points(results: dict) -> dict[str, int]:
    return {id: result.points for id, result in results.items()}


NOTHING = {"06.accept": 0}


def test_attack_deleted_cell(sheltered, tmp_path):
    book = notebook("06", {"06.accept": HONEST})
    book["cells"].remove(cell_of(book, "06.accept"))
    book["cells"].remove(cell_of(book, "06.accept", "check"))
    results = hand_in(sheltered, tmp_path, book)
    assert points(results) == NOTHING and "not handed in" in results["06.accept"].text


def test_attack_duplicated_cell(sheltered, tmp_path):
    book = notebook("06", {"06.accept": HONEST})
    book["cells"].append({**cell_of(book, "06.accept"), "source": accept("return 1.0")})
    results = hand_in(sheltered, tmp_path, book)
    assert points(results) == NOTHING and "2 cells claim to be the answer" in results["06.accept"].text


def test_attack_renamed_cell(sheltered, tmp_path):
    book = notebook("06", {"06.accept": HONEST})
    cell_of(book, "06.accept")["metadata"]["nbgrader"]["grade_id"] = "06-residual-answer"
    results = hand_in(sheltered, tmp_path, book, ("06.accept", "06.residual"))
    assert points(results) == {"06.accept": 0, "06.residual": 0} and "not handed in" in results["06.accept"].text


def test_attack_check_cell_rewritten(sheltered, tmp_path):
    book = notebook("06", {"06.accept": accept("return 1.0")})
    cell = cell_of(book, "06.accept", "check")
    cell["source"], cell["metadata"]["nbgrader"]["points"] = "print('06.accept: right, in 6 cases.')", 1000
    cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "06.accept: right, in 6 cases."}]
    assert points(hand_in(sheltered, tmp_path, book)) == NOTHING


def test_attack_nbval_skip(sheltered, tmp_path):
    book = notebook("06", {"06.accept": "# NBVAL_SKIP\n" + accept("return 1.0")})
    assert points(hand_in(sheltered, tmp_path, book)) == NOTHING


def test_attack_raises_exception_tag(sheltered, tmp_path):
    book = notebook("06", {"06.accept": accept("return 1.0")})
    for cell in book["cells"]:
        cell["metadata"]["tags"] = ["raises-exception", "nbval-raises-exception", "nbval-skip"]
    assert points(hand_in(sheltered, tmp_path, book)) == NOTHING


def test_attack_help_from_other_cells(sheltered, tmp_path):
    """A cell that comes from the course is the course's, whatever the notebook says in its place."""
    book = notebook("06", {"06.accept": accept("return accept_probability(p, q, token)")})
    book["cells"][1]["source"] = "accept_probability = lambda p, q, d: min(1.0, float(p[d] / q[d]))"
    assert points(hand_in(sheltered, tmp_path, book)) == NOTHING


def test_attack_metadata_bomb(sheltered, tmp_path):
    deep = json.dumps(notebook("06", {})).replace('"metadata":', '"metadata": {"a":' + '{"a":' * 10**5, 1).encode()
    assert "nested too deeply" in hand_in(sheltered, tmp_path, deep)["06.accept"].text
    wide = json.dumps({**notebook("06", {}), "bomb": [{}] * 10**6}).encode()
    assert "too many objects" in hand_in(sheltered, tmp_path, wide)["06.accept"].text
    assert "no JSON" in hand_in(sheltered, tmp_path, b'{"nbformat": ' + b"9" * 10**6)["06.accept"].text


def test_attack_metadata_of_odd_types(sheltered, tmp_path):
    for odd in (None, 7, [], "x", {"nbgrader": 7}, {"nbgrader": {"grade_id": ["06-accept-answer"]}}):
        book = notebook("06", {"06.accept": HONEST})
        cell_of(book, "06.accept")["metadata"] = odd
        assert points(hand_in(sheltered, tmp_path, book)) == NOTHING
    for cells in (None, 7, {}, [None, 7, "x", []]):
        assert points(hand_in(sheltered, tmp_path, {"nbformat": 4, "cells": cells})) == NOTHING


def test_attack_zip_bomb(sheltered, tmp_path):
    with zipfile.ZipFile(tmp_path / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mallory/06.ipynb", b"0" * 200 * 2**20)
        archive.writestr("../../outside/06.ipynb", b"{}")
        archive.writestr("alice/06.ipynb", json.dumps(notebook("06", {"06.accept": HONEST})))
    written, left_out = collect(tmp_path / "all.zip", tmp_path / "in")
    assert [file.parent.name for file in written] == ["alice"] and len(left_out) == 2
    assert judge_file(sheltered, written[0])["06.accept"].points == 1


def test_attack_invalid_utf8(sheltered, tmp_path):
    book = json.dumps(notebook("06", {"06.accept": HONEST})).encode()
    assert "no UTF-8" in hand_in(sheltered, tmp_path, book.replace(b"06", b"\xff\xfe", 1))["06.accept"].text
    lone = notebook("06", {"06.accept": HONEST + "# \ud800"})  # half of a surrogate pair, which JSON can spell
    assert hand_in(sheltered, tmp_path, lone)["06.accept"].outcome == WRONG


def test_attack_broken_json(sheltered, tmp_path):
    book = json.dumps(notebook("06", {"06.accept": HONEST})).encode()
    for broken in (book[:-500], b"", b"null", b"[]", b"full marks please"):
        assert points(hand_in(sheltered, tmp_path, broken)) == NOTHING


def test_attack_200_mb_notebook(sheltered, tmp_path):
    file = tmp_path / "somebody.ipynb"
    with file.open("wb") as stream:
        stream.truncate(200 * 2**20)
    assert "has 200 MiB" in judge_file(sheltered, file)["06.accept"].text


def test_attack_other_version(sheltered, tmp_path):
    book = notebook("06", {"06.accept": HONEST})
    old = {"nbformat": 3, "worksheets": [{"cells": book["cells"]}], "metadata": {}}
    assert "format 3" in hand_in(sheltered, tmp_path, old)["06.accept"].text
    for version in ("4", None, 5, 4.5, True):
        assert points(hand_in(sheltered, tmp_path, {**book, "nbformat": version})) == NOTHING


def test_attack_pipe_as_submission(sheltered, tmp_path):
    """Reading it would wait for ever."""
    os.mkfifo(tmp_path / "06.ipynb")
    done = []
    reader = threading.Thread(target=lambda: done.append(judge_file(sheltered, tmp_path / "06.ipynb")), daemon=True)
    reader.start()
    reader.join(10)
    assert done and points(done[0]) == NOTHING


# ---- the teacher's screen -------------------------------------------------------------------------------------------


def test_attack_escape_sequences_and_markup(sheltered):
    from minispec_course.check.classreport import student_body

    result = judge_source(sheltered, accept("raise ValueError('\\x1b[2J<script>alert(1)</script>\\x07')"))
    assert result.points == 0 and "\x1b" not in result.text and "\x07" not in result.text
    assert "<script>" not in student_body("<b>eve", [result]) and "<b>eve" not in student_body("<b>eve", [result])


def test_attack_formula_as_name(sheltered, tmp_path):
    from dataclasses import replace

    result = replace(judge_source(sheltered, accept("return 0.9")), student="=HYPERLINK(1)")
    write_csv(tmp_path / "grades.csv", [result])
    assert (tmp_path / "grades.csv").read_text().splitlines()[1].startswith("'=")


# ---- the suite itself -----------------------------------------------------------------------------------------------


def test_the_honest_answer_that_follows_every_attack_is_honest(nursery):
    assert judge_source(nursery, HONEST).points == find("06.accept").points
    assert answers_in(notebook("06", {"06.accept": HONEST}))["06.accept"] == HONEST
