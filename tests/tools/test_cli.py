"""The command line, called in this process: what it prints, and how it ends."""

import argparse
import io
import os

import pytest

import minispec as ms
from minispec.load import fetch, registry
from minispec_tools import cli
from minispec_tools.cli import course

# ---------------------------------------------------------------- errors


def test_a_bug_is_one_line_and_keeps_its_traceback_for_those_who_ask(run, monkeypatch):
    monkeypatch.setattr(ms, "load", lambda *_, **__: 1 / 0)
    monkeypatch.delenv("MINISPEC_DEBUG", raising=False)
    code, _, err = run("demo")
    assert code == 1 and err.count("\n") == 1 and "ZeroDivisionError" in err and "MINISPEC_DEBUG=1" in err
    monkeypatch.setenv("MINISPEC_DEBUG", "1")
    code, _, err = run("demo")
    assert code == 1 and "Traceback" in err and "test_cli.py" in err


def test_a_terminal_without_greek_letters_is_no_reason_to_fail(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setattr(registry, "models", lambda: "α = 0.7")
    assert cli.main(["models"]) == 0
    stream.flush()
    assert stream.buffer.getvalue().decode() == "? = 0.7\n"


# ---------------------------------------------------------------- models


def test_models_get_fetches_what_is_not_in_the_package(run, monkeypatch):
    asked = []
    monkeypatch.setattr(fetch, "fetch", lambda name, heads: asked.append(name) or f"cache/{name}")
    for name in ("smollm2", "owner/model"):
        code, out, _ = run("models", "get", name)
        assert (code, out) == (0, f"cache/{name}\n")
    code, _, err = run("models", "get", "nonsense")
    assert code == 2 and "smollm2" in err  # names the known ones
    assert asked == ["smollm2", "owner/model"]


# ---------------------------------------------------------------- lab


@pytest.fixture
def launched(monkeypatch, tmp_path):
    """Options that JupyterLab would be started with, in a clone that has the first notebook."""
    labapp = pytest.importorskip("jupyterlab.labapp")
    options = []
    monkeypatch.setattr(labapp.LabApp, "launch_instance", options.extend)
    monkeypatch.setattr(course, "ROOT", tmp_path)
    monkeypatch.setenv("MINISPEC_LAB", "")  # which the command sets
    (tmp_path / "notebooks").mkdir()
    (tmp_path / course.START).touch()
    return options


@pytest.mark.slow
def test_lab_opens_the_first_notebook(run, launched, tmp_path):
    assert run("lab", "--port", 9000)[0] == 0
    assert {f"--ServerApp.root_dir={tmp_path}", "--ServerApp.port=9000"} <= set(launched)
    assert f"--LabApp.default_url=/lab/tree/mine/{course.START}" in launched
    assert (tmp_path / "mine" / course.START).is_file()  # a copy: what is run and saved leaves the clone as it is
    assert os.environ["MINISPEC_LAB"] == "1"


def test_lab_as_root_and_without_a_browser(run, launched, monkeypatch):
    for user, argv, browser, allowed, printed in (
        (0, ["lab"], True, True, False),
        (1000, ["lab"], False, False, True),
        (1000, ["lab", "--no-browser"], True, False, True),
    ):
        monkeypatch.setattr("os.geteuid", lambda user=user: user, raising=False)
        monkeypatch.setattr(course, "has_browser", lambda browser=browser: browser)
        launched.clear()
        run(*argv)
        assert ("--allow-root" in launched, "--no-browser" in launched) == (allowed, printed), argv


# ---------------------------------------------------------------- options


def every_command(parser=None, path=()):
    """(words of the command, its parser), for all commands and those below them."""
    parser = parser or cli.parser()
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for name, sub in [item for action in below for item in action.choices.items()]:
        yield from every_command(sub, (*path, name))
    yield path, parser


def test_the_same_option_is_the_same_everywhere():
    """One name for one thing, and one check of its value; no number is left unchecked."""
    kinds = {}
    for path, parser in every_command():
        for action in parser._actions:
            for option in action.option_strings:
                kinds.setdefault(option, {})[path] = action.type
                assert action.type not in (int, float), (path, option)
    assert {path[0] for path in kinds["--target"]} == {"demo"}  # --model's other name, where heads are meant
    for option in "--model --draft --device --seed --tokens --temperature --prompt --json --out".split():
        assert len(set(kinds[option].values())) == 1, option
    assert {("demo",), ("measure",), ("serve",)} <= kinds["--device"].keys()


@pytest.mark.parametrize(("words", "named"), [("demo --temp 1", "--temp"), ("demo --k x", "--k='x'")])
def test_options_are_spelled_out_and_misuse_says_where_the_help_is(run, words, named):
    code, _, err = run(*words.split())
    assert code == 2 and named in err and "--help" in err and err.count("\n") == 1


@pytest.mark.slow
def test_demo_takes_heads_of_ones_own(run, tiny_folder, tmp_path):
    target = ms.load(tiny_folder, device="cpu")
    ms.drafters.MedusaHeads(target, 2).save(target, tmp_path)
    options = ["--target", tiny_folder, "--tokens", "8", "--device", "cpu"]
    code, out, err = run("demo", "--drafter", "medusa", "--heads", tmp_path, *options)
    assert code == 0 and out, err
    code, _, err = run("demo", "--drafter", "ngram", "--heads", tmp_path, *options)
    assert code == 2 and "heads=" in err
