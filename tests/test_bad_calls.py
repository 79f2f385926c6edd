"""Calls of the command line that cannot work: each ends with one sentence, a fitting exit code and nothing written."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import nbformat
import pytest

from minispec_course.build import builder

LONG = "n" * 300
DIGITS = "12345678901234567890123"  # 23 of them
BYTES = "Once \udcff upon"  # how a shell's bytes arrive that are no UTF-8

# A call, and what its message has to name. {tiny}, {file}, … are made by `world`.
NUMBERS = [
    ("demo --tokens 0", "--tokens='0'"),
    ("demo --temperature -1", "--temperature='-1'"),
    (f"demo --seed {DIGITS}", "64 bits"),
    ("demo --k 0", "--k='0'"),
    ("demo --device cuda:99 --model {tiny}", "device='cuda:99'"),
    ("lab --port 70000", "65535"),
    ("exam 0", "MINUTES='0'"),
    ("drill --minutes -1", "--minutes"),
    ("grade {submissions} --out g.csv --seconds -1", "--seconds='-1'"),
    ("grade {submissions} --out g.csv --seconds 1e300", "at most 3600"),
]
NAMES = [
    ("nonsense", "nonsense"),
    ("demo --model nothing", "model='nothing'"),
    ("demo --model owner/name", "HF_HUB_OFFLINE"),
    ("demo --model {tiny} --drafter model", "--draft"),
    ("demo --model micro-medusa", "heads"),
    ("models get nonsense", "nonsense"),
    ("models get {folder}", "holds no model"),
    ("hint 99.nothing", "99.nothing"),
    ("check 99", "99"),
    ("build nonsense", "nonsense"),
    ("exam", "MINUTES"),
    ("drill --topics nonsense", "nonsense"),
    ("drill --levels L9", "L9"),
    ("release 99 --out new", "99"),
]
PATHS = [
    ("check nowhere.ipynb", "nowhere.ipynb"),
    ("check {no_notebook}", "is not a notebook"),
    ("check {odd_roles}", "contains no checks"),
    ("check {odd_exercise}", "is no exercise"),
    ("exam 45 --out notes.txt", ".ipynb"),
    ("exam 45 --out {file}/exam.ipynb", "where a folder is needed"),
    ("exam 45 --out nowhere/exam.ipynb", "make it first"),
    ("exam --grade nowhere.ipynb", "no such file"),
    ("mock --out {folder}", "is a folder"),
    ("drill --bank nowhere", "bank='nowhere'"),
    ("collect nowhere --out new", "nowhere"),
    ("collect {broken_zip} --out new", "zip"),
    ("collect {submissions} --out {file}", "a file is there where a folder is needed"),
    ("grade nowhere --out g.csv", "nowhere"),
    ("grade {folder} --out g.csv", "holds neither"),
    ("grade {submissions} --out {file}/g.csv", "where a folder is needed"),
    (f"grade {{submissions}} --out {LONG}.csv", "255"),
    ("grade {submissions} --out g.csv --html {file}", "where a folder is needed"),
    ("grade {submissions} --out h.csv --html h.csv", "ends in .csv"),
    ("demo --json {folder}", "is a folder"),
    ("measure --json nowhere/r.json", "make it first"),
]
MODELS = [  # {x} is a copy of a tiny model with something wrong
    ("demo --model {folder}", "config.json"),
    ("demo --model {config_cut}", "config.json"),
    ("demo --model {config_other}", "gpt2"),
    ("demo --model {tokenizer_none}", "no tokenizer"),
    ("demo --model {weights_cut}", "damaged"),
    ("demo --model {tiny} --draft {weights_cut}", "damaged"),
    ("demo --chat --model {template_raises}", "no, thank you"),
    (f"demo --prompt '{BYTES}'", "UTF-8"),
    (f"demo --model '{BYTES}'", "UTF-8"),
    ("demo --model {tiny} --prompt ''", "no token"),
    ("demo --model {tiny} --tokens 100000", "length"),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory, tiny_folder, make_model) -> dict[str, Path]:
    """Files and folders by the names that the calls give them."""
    from minispec.load.folder import save_folder

    home = tmp_path_factory.mktemp("world")
    places = {"tiny": tiny_folder, "tiny_int8": home / "tiny_int8"}
    save_folder(make_model(), places["tiny_int8"])

    def made(name: str, content: bytes = b"") -> None:
        places[name] = home / name
        places[name].write_bytes(content)

    def broken(name: str, file: str, content: bytes | None) -> None:
        """A copy of the tiny model in which one file has another content, or is missing."""
        places[name] = home / name
        shutil.copytree(tiny_folder, places[name])
        (places[name] / file).unlink(missing_ok=True)
        if content is not None:
            (places[name] / file).write_bytes(content)

    def notebook(name: str, *metadata) -> None:
        cells = [nbformat.v4.new_code_cell("1", metadata={"minispec": own}) for own in metadata]
        places[name] = home / f"{name}.ipynb"
        places[name].write_text(nbformat.writes(nbformat.v4.new_notebook(cells=cells)))

    made("file", b"some text\n")
    made("no_notebook.ipynb", b"{")
    places["no_notebook"] = places["no_notebook.ipynb"]
    notebook("odd_roles", "a word", ["a", "list"], None, 5, {"role": ["check"]}, {"role": "other"})
    notebook("odd_exercise", {"role": "check", "exercise": ["06.residual"]})
    (home / "folder").mkdir()
    places["folder"] = home / "folder"
    (home / "submissions/alice").mkdir(parents=True)
    places["submissions"] = home / "submissions"
    nbformat.write(nbformat.v4.new_notebook(), home / "submissions/alice/06.ipynb")
    with zipfile.ZipFile(home / "broken.zip", "w") as archive:
        archive.writestr("alice/06.ipynb", "{}" * 500, zipfile.ZIP_DEFLATED)
    data = bytearray((home / "broken.zip").read_bytes())
    data[46] ^= 255
    made("broken_zip", bytes(data))

    config, weights = json.loads((tiny_folder / "config.json").read_text()), tiny_folder / "model.safetensors"
    changed = lambda **values: json.dumps(config | values).encode()  # noqa: E731
    template = lambda source: json.dumps({"chat_template": source}).encode()  # noqa: E731
    broken("config_cut", "config.json", b'{"model_type": "lla')
    broken("config_other", "config.json", changed(model_type="gpt2"))
    broken("tokenizer_none", "tokenizer.json", None)
    broken("weights_cut", "model.safetensors", weights.read_bytes()[:-100])
    broken("template_raises", "tokenizer_config.json", template("{{ raise_exception('no, thank you') }}"))
    return places


def listing(*folders: Path) -> dict[str, tuple[int, int]]:
    """Every file and folder there, with its size and time."""
    found = [path for folder in folders for path in folder.rglob("*")]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("calls", [NUMBERS, NAMES, PATHS, MODELS], ids=("numbers", "names", "paths", "models"))
def test_calls_that_cannot_work(run, world, tmp_path, monkeypatch, calls):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINISPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MINISPEC_PROGRESS", "off")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.delenv("MINISPEC_DEBUG", raising=False)
    watched = [tmp_path, next(iter(world.values())).parent, world["folder"].parent, builder.ROOT / "exercises"]
    before = listing(*watched)
    for call, words in calls:
        code, _, err = run(*shlex.split(call.format(**world)))
        assert code == 2, f"{call}: {err}"
        assert err.startswith("minispec: ") and err.endswith("\n") and err.count("\n") == 1, f"{call}: {err}"
        assert "Traceback" not in err and words in err, f"{call}: {err}"
        after = {path: fact for path, fact in listing(*watched).items() if not path.endswith(".lock")}
        assert after == before, call


# ---------------------------------------------------------------- processes of their own


def start(*argv: str, **options) -> subprocess.Popen:
    """The command in a process that listens to Ctrl-C, also where this one runs in the background and does not."""
    listen = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    command = [sys.executable, "-m", "minispec_tools", *argv]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=listen, **options)


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error():
    """minispec models | head -0"""
    here, there = os.pipe()
    os.close(here)
    process = start("models", stdout=there)
    os.close(there)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (141, "")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a disk that is always full")
def test_output_that_does_not_fit_on_the_disk():
    with open("/dev/full", "w") as full:
        process = start("models", stdout=full)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 2 and err.startswith("minispec: the disk is full") and err.count("\n") == 1


@pytest.mark.slow
def test_control_c_during_the_imports():
    process = start("measure", stdout=subprocess.PIPE, env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"})
    for line in process.stderr:  # a line for every module as it is ready
        if line.rstrip().endswith("torch._utils_internal"):
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130 and out == ""
    assert [line for line in err.splitlines() if line and not line.startswith("import time:")] == []


@pytest.mark.slow
def test_control_c_while_a_notebook_is_checked(tmp_path):
    """Its kernel ends, and nothing is said about it."""
    wait = nbformat.v4.new_code_cell("import time\nopen('running', 'w').close()\ntime.sleep(300)")
    check = nbformat.v4.new_code_cell("1", metadata={"minispec": {"role": "check", "exercise": "06.accept"}})
    nbformat.write(nbformat.v4.new_notebook(cells=[wait, check]), tmp_path / "x.ipynb")
    process = start("check", str(tmp_path / "x.ipynb"), stdout=subprocess.PIPE)
    while not (tmp_path / "running").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err.strip()) == (130, "", "")
