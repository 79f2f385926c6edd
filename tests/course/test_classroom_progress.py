"""Progress survives what happens to files: crashes, editors, two notebooks at once, a disk that cannot be written."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from minispec_course.check import progress

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


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "null",
        "[1]",
        '"text"',
        '{"exercises": 3}',
        '{"exercises": {"06.accept": 3}}',
        '{"exercises": {"06.accept": {"attempts": -1, "hints": "two", "solved": 1}}}',
        '{"exercises": [1, 2]}',
    ],
)
def test_a_spoiled_file_is_no_reason_to_fail(file, content):
    file.parent.mkdir()
    file.write_text(content, encoding="utf-8")
    assert progress.read().get("06.accept", FRESH) == FRESH
    progress.attempted("06.accept", "right")
    assert progress.read()["06.accept"] == {"solved": True, "attempts": 1, "hints": 0}


def test_what_was_no_json_is_kept_aside(file):
    file.parent.mkdir()
    file.write_text('{"exercises": {"05.loop": {"solved": true,,', encoding="utf-8")
    progress.attempted("06.accept", "right")
    assert "05.loop" in file.with_name("progress.json.broken").read_text(encoding="utf-8")


def test_an_edited_entry_keeps_the_others(file):
    progress.attempted("06.accept", "right")
    kept = json.loads(file.read_text(encoding="utf-8"))
    kept["exercises"]["05.loop"] = "yes"
    file.write_text(json.dumps(kept), encoding="utf-8")
    progress.attempted("06.residual", "wrong")
    assert progress.read()["06.accept"]["solved"] and progress.read()["05.loop"] == FRESH


def test_a_crash_while_writing_leaves_the_old_file(file, monkeypatch):
    progress.attempted("06.accept", "right")
    old = file.read_bytes()

    def crash(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("minispec.load.write.os.replace", crash)  # the new content is beside it by now
    with pytest.raises(KeyboardInterrupt):
        progress.attempted("06.residual", "right")
    assert file.read_bytes() == old and {f.name for f in file.parent.iterdir()} <= {file.name, f".{file.name}.lock"}


def test_where_nothing_can_be_written_nothing_is_said(tmp_path, monkeypatch, capsys):
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("MINISPEC_PROGRESS", str(blocked / "progress.json"))  # a file where a folder has to be
    progress.attempted("06.accept", "right")
    assert progress.hinted("99.nowhere", 3) == 1
    assert progress.hinted("99.nowhere", 3) == 2  # hints advance all the same
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_two_processes_lose_nothing(file):
    script = (
        "import sys; from minispec_course.check import progress\n"
        "for _ in range(20): progress.attempted(sys.argv[1], 'wrong'), progress.attempted('06.sampler', 'wrong')"
    )
    running = [subprocess.Popen([sys.executable, "-c", script, id]) for id in ("06.accept", "06.residual")]
    assert [process.wait() for process in running] == [0, 0]
    assert {id: entry["attempts"] for id, entry in progress.read().items()} == {
        "06.accept": 20,
        "06.residual": 20,
        "06.sampler": 40,
    }


def test_where_the_file_is(monkeypatch, tmp_path):
    monkeypatch.delenv("MINISPEC_PROGRESS", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert progress.place() == tmp_path / "minispec/progress.json"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert progress.place() == tmp_path / ".local/state/minispec/progress.json"
    monkeypatch.setenv("MINISPEC_PROGRESS", "off")
    assert progress.place() is None and progress.read() == {}


def test_running_the_solutions_is_not_solving(file, monkeypatch):
    assert os.path.isdir(progress.SOLUTIONS)
    monkeypatch.chdir(progress.SOLUTIONS)
    progress.attempted("06.accept", "right")
    assert not file.exists()


def test_the_table_names_every_exercise_and_adds_up(file):
    progress.attempted("06.accept", "right")
    progress.attempted("05.loop", "wrong")
    progress.hinted("05.loop", 3)
    lines = {line.split()[0]: line for line in progress.table().splitlines() if line}
    assert "solved" in lines["06.accept"] and "1 attempt" in lines["06.accept"]
    assert "tried" in lines["05.loop"] and "1 hint" in lines["05.loop"]
    assert "05.rewind" in lines and progress.table().splitlines()[-1].startswith("1 of ")
