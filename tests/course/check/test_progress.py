"""Progress survives what happens to files: crashes, editors, two notebooks at once, a disk that cannot be written."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from minispec_course.check import progress
from minispec_course.exercises import facts
from minispec_course.exercises.exercise import everything, find

FRESH = {"solved": False, "attempts": 0, "hints": 0}


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "deep/progress.json"))
    return tmp_path / "deep/progress.json"


def test_attempts_are_counted_and_solved_stays_solved(file):
    for outcome in ("not attempted", "wrong", "right", "wrong"):
        progress.attempted("06.accept", outcome)
    assert progress.read() == {"06.accept": {"solved": True, "attempts": 3, "hints": 0}}
    assert {f.name for f in file.parent.iterdir()} <= {"progress.json", ".progress.json.lock"}  # no half-written file


def test_a_spoiled_file_is_no_reason_to_fail(file):
    file.parent.mkdir()
    entries = "3", '{"attempts": -1, "hints": "two", "solved": 1}'
    spoiled = "", "{", "null", "[1]", '"text"', '{"exercises": 3}', '{"exercises": [1, 2]}'
    for content in (*spoiled, *('{"exercises": {"06.accept": %s}}' % entry for entry in entries)):  # noqa: UP031
        file.write_text(content, encoding="utf-8")
        assert progress.read().get("06.accept", FRESH) == FRESH, content
        progress.attempted("06.accept", "right")
        assert progress.read()["06.accept"] == {"solved": True, "attempts": 1, "hints": 0}, content
    kept_aside = [aside.read_text(encoding="utf-8") for aside in file.parent.glob("*.broken*")]
    assert sorted(kept_aside) == sorted(content for content in spoiled if content)  # each of them
    kept = json.loads(file.read_text(encoding="utf-8"))
    kept["exercises"]["05.loop"] = "yes"
    file.write_text(json.dumps(kept), encoding="utf-8")
    progress.attempted("06.residual", "wrong")  # an edited entry keeps the others
    assert progress.read()["06.accept"]["solved"] and progress.read()["05.loop"] == FRESH


def test_where_nothing_can_be_written_nothing_is_said(tmp_path, monkeypatch, capsys):
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("MINISPEC_PROGRESS", str(blocked / "progress.json"))  # a file where a folder has to be
    progress.attempted("06.accept", "right")
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_two_processes_lose_nothing(file):
    script = (
        "import sys; from minispec_course.check import progress\n"
        "for _ in range(20): progress.attempted(sys.argv[1], 'wrong'), progress.attempted('06.sampler', 'wrong')"
    )
    running = [subprocess.Popen([sys.executable, "-c", script, id]) for id in ("06.accept", "06.residual")]
    assert [process.wait() for process in running] == [0, 0]
    counts = {id: entry["attempts"] for id, entry in progress.read().items()}
    assert counts == {"06.accept": 20, "06.residual": 20, "06.sampler": 40}


def test_where_the_file_is_and_that_running_solutions_is_not_solving(file, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.chdir(progress.SOLUTIONS)
        progress.attempted("06.accept", "right")
        assert not file.exists()
    monkeypatch.delenv("MINISPEC_PROGRESS")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert progress.place() == tmp_path / "minispec/progress.json"
    for nothing in ("off", "/dev/full"):  # which can be read without end
        monkeypatch.setenv("MINISPEC_PROGRESS", nothing)
        assert progress.place() is None and progress.read() == {}


def test_the_command_counts_what_is_solved_and_says_what_comes_next(file, run):
    progress.attempted("06.accept", "right")
    progress.attempted("06.residual", "wrong")
    progress.saw_hints("06.residual", 1)
    everyone = everything()
    own = [exercise for id, exercise in everyone.items() if id.startswith("06.")]
    code, out, _ = run("progress")
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert code == 0 and lines.keys() >= {id.split(".")[0] for id in everyone}
    counts = f"1/{len(own)}", f"{find('06.accept').points}/{sum(exercise.points for exercise in own)}"
    assert tuple(lines["06"].split()[-2:]) == counts and lines["next:"].split() == ["next:", "06.residual"]
    lines = {line.split()[0]: line for line in run("progress", "06")[1].splitlines() if line}
    assert lines.keys() == {exercise.id for exercise in own} | {"next:"}
    assert "solved" in lines["06.accept"] and "solved" not in lines["06.residual"]
    assert run("progress", "66")[0] == 2


def test_every_exercise_has_its_facts_in_the_same_order():
    assert [*facts.everything()] == [*everything()]
