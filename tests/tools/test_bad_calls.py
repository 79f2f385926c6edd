"""Calls of the command line that cannot work end with one sentence, a fitting exit code and nothing written."""

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

# A call, and what its message has to name. {tiny}, {file}, … are made by `files`.
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
MODELS = [  # tests/load/ has more that is wrong with a folder
    ("demo --model {folder}", "config.json"),
    ("demo --model {weights_cut}", "damaged"),
    ("demo --model {tiny} --draft {weights_cut}", "damaged"),
    ("demo --chat --model {template_raises}", "no, thank you"),
    (f"demo --prompt '{BYTES}'", "UTF-8"),
    (f"demo --model '{BYTES}'", "UTF-8"),
    ("demo --model {tiny} --prompt ''", "no token"),
    ("demo --model {tiny} --tokens 100000", "length"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory, tiny_folder) -> dict[str, Path]:
    """Files and folders by the names that the calls give them."""
    home = tmp_path_factory.mktemp("files")
    names = "file no_notebook odd_roles odd_exercise folder submissions broken_zip".split()
    paths = {name: home / name for name in names} | {"tiny": tiny_folder}

    def notebook(file: Path, *metadata) -> None:
        cells = [nbformat.v4.new_code_cell("1", metadata={"minispec": own}) for own in metadata]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), file)

    paths["file"].write_text("some text\n")
    for name in ("no_notebook", "odd_roles", "odd_exercise"):
        paths[name] = home / f"{name}.ipynb"
    paths["no_notebook"].write_text("{")
    notebook(paths["odd_roles"], "a word", ["a", "list"], None, 5, {"role": ["check"]}, {"role": "other"})
    notebook(paths["odd_exercise"], {"role": "check", "exercise": ["06.residual"]})
    paths["folder"].mkdir()
    (paths["submissions"] / "alice").mkdir(parents=True)
    notebook(paths["submissions"] / "alice" / "06.ipynb")
    with zipfile.ZipFile(paths["broken_zip"], "w") as archive:
        archive.writestr("alice/06.ipynb", "{}" * 500, zipfile.ZIP_DEFLATED)
    data = bytearray(paths["broken_zip"].read_bytes())
    data[46] ^= 255
    paths["broken_zip"].write_bytes(data)

    template = {"chat_template": "{{ raise_exception('no, thank you') }}"}
    weights = (tiny_folder / "model.safetensors").read_bytes()
    for name, file, content in (
        ("weights_cut", "model.safetensors", weights[:-100]),
        ("template_raises", "tokenizer_config.json", json.dumps(template).encode()),
    ):
        paths[name] = home / name
        shutil.copytree(tiny_folder, paths[name])
        (paths[name] / file).unlink()
        (paths[name] / file).write_bytes(content)
    return paths


def listing(*folders: Path) -> dict[str, tuple[int, int]]:
    """Every file there, with its size and time."""
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


@pytest.mark.slow
@pytest.mark.parametrize(("call", "named"), NUMBERS + NAMES + PATHS + MODELS, ids=lambda text: text[:60])
def test_a_call_that_cannot_work_is_refused_in_a_sentence(run, files, tmp_path, monkeypatch, call, named):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINISPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MINISPEC_PROGRESS", "off")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.delenv("MINISPEC_DEBUG", raising=False)
    watched = [tmp_path, files["tiny"], files["folder"].parent, builder.ROOT / "exercises"]
    before = listing(*watched)
    code, _, err = run(*shlex.split(call.format(**files)))
    assert code == 2, err
    assert err.startswith("minispec: ") and err.endswith("\n") and err.count("\n") == 1, err
    assert "Traceback" not in err and named in err
    assert listing(*watched) == before, "something was written"


# ---------------------------------------------------------------- processes of their own


def start(*argv: str, **options) -> subprocess.Popen:
    """The command in a process that listens to Ctrl-C, even where this one runs in the background and does not."""
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
