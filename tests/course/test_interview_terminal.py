"""The drill in a terminal: with replies from a list, from a pipe, and from a pseudo-terminal of 80 columns."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path

import pytest
import yaml
from interview_checks import Script
from mutants.patching import rewrite

from minispec_course.interview import load, mock, mock_terminal, start, terminal
from minispec_course.interview.drill import Figure, Session, Talk
from minispec_course.interview.evidence import suggest, unshown
from minispec_course.interview.matcher import lacks
from minispec_course.interview.mock_interview import Interview
from minispec_course.interview.mock_widget import Desk
from minispec_course.interview.rounds import GRADES, NOTHING
from minispec_course.interview.schedule import Schedule
from minispec_course.interview.terminal import read_ticks

BANK = load()
KV = BANK["kv-size"]
COMMAND = "import sys; from minispec.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "drill.json"


@pytest.mark.parametrize(
    ("text", "ticked"),
    [
        ("", set()),
        ("1 3", {0, 2}),
        ("1,2, 5", {0, 1, 4}),
        ("2-4", {1, 2, 3}),
        ("1 9", None),
        ("0", None),
        ("one", None),
        ("4-2", None),
        ("1-999999999999", None),
        ("-1", None),
    ],
)
def test_ticks(text, ticked):
    assert read_ticks(text, 5) == ticked


def test_a_question_is_followed_up_before_the_rubric_is_shown():
    script = Script("my answer", "its size", "", "FP8", "", "1 2 3 4 5")
    session = Session([Talk(KV)], 4, Schedule(None))
    assert terminal.drill(session, script.console) == 0
    places = [script.words.index(text[:40]) for text in (*Talk(KV).asks, KV.spoken)]
    assert places == sorted(places)
    for point in (*KV.L4, *KV.L6, *KV.raises, *KV.sinks, KV.follow_ups[0].short, KV.push_backs[1].reply):
        assert point in script.words
    [said] = session.results
    assert said.ticked == {0, 1, 2, 3, 4} and said.level == "L5" and said.texts == ("my answer", "its size", "FP8")
    assert "kv-cache: L5" in script.text and KV.function in script.words
    assert max(map(len, script.lines)) <= 80


def test_a_number_is_graded_and_explained():
    figures = [Figure(number, KV) for number in KV.numbers[:2]]
    script = Script("320 KiB", "lots", "17")
    terminal.drill(Session(figures, 4, Schedule(None)), script.console)
    assert "right: 320 KiB" in script.text and "wrong: 2.5 MiB (you said 17)" in script.text
    assert "2 · 80 · 8 · 128 · 2 / 1,024 = 320 KiB" in script.text and "1 of 2 right" in script.text
    assert script.words.count("I could not read a number in that. Please give only the number. A sum such as") == 1


def test_wrong_ticks_are_asked_again():
    script = Script(*[""] * len(Talk(KV).asks), "99", "all of it", "1")
    session = Session([Talk(KV)], 4, Schedule(None))
    terminal.drill(session, script.console)
    assert session.results[0].ticked == {0} and script.text.count("Give numbers from 1 to") == 2


def test_s_skips_and_q_ends():
    script = Script("s", "", "s", "q")
    session = Session([Talk(BANK[id]) for id in ("kv-size", "gqa", "medusa")], 20, Schedule(None))
    assert terminal.drill(session, script.console) == 0
    assert session.place == 2 and not session.results and "Nothing was answered" in script.text


@pytest.mark.parametrize("end", [EOFError(), KeyboardInterrupt()])
def test_what_was_answered_is_kept_whatever_happens(kept, end):
    script = Script(*[""] * len(Talk(KV).asks), "1 2", end)
    session = Session([Talk(KV), Talk(BANK["gqa"])], 20, Schedule(kept))
    assert terminal.drill(session, script.console) == (130 if isinstance(end, KeyboardInterrupt) else 0)
    assert list(json.loads(kept.read_text())["cards"]) == ["kv-size"]
    assert "1 question in" in script.text and "kv-cache: L4" in script.text


@pytest.mark.slow
def test_every_question_and_number_fits_80_columns():
    script = Script()
    for question in BANK.values():
        session = Session([Talk(question), *(Figure(n, question) for n in question.numbers)], 1000, Schedule(None))
        script.replies = [""] * (len(question.follow_ups) + len(question.push_backs) + 2 + len(question.numbers))
        terminal.drill(session, script.console)
        assert session.current is None
    assert max(map(len, script.lines)) <= 80 and len(script.lines) > 3000


@pytest.mark.parametrize(("columns", "widest"), [(40, 40), (200, 80)])
def test_a_narrow_terminal_is_kept_to_and_a_wide_one_not_filled(monkeypatch, columns, widest):
    monkeypatch.setenv("COLUMNS", str(columns))
    script = Script(*[""] * len(Talk(KV).asks), "1")
    terminal.drill(Session([Talk(KV)], 4, Schedule(None)), script.console)
    assert widest - 5 < max(map(len, script.lines)) <= widest


def test_a_broken_file_is_said(kept):
    kept.write_text("{")
    script = Script("q")
    terminal.drill(start(BANK, minutes=4, seed=0), script.console)
    assert "kept as drill.json.broken" in script.words


# ---------------------------------------------------------------- a tick whose words do not show its line


OWN, TALK = "The cache holds keys and values of each layer.", "My cat sleeps in the sun all day long."


def at_the_rubric(desk: bool = False):
    """An interview or a desk in front of the first rubric of its seed, and a line that nothing suggests."""
    held = mock(seed=3) if desk else Interview(BANK, "L5", "concept", 3, lambda: 0.0)
    if desk:
        held.act({"do": "start"})
    while (interview := held.interview if desk else held).turn.expects != GRADES:
        interview.do("begin" if interview.turn.expects == NOTHING else "say", text=f"{OWN} {TALK}")
    bare = [i for i, match in enumerate(suggest(interview.turn, interview.transcript)) if not match.suggested]
    return held, next(i for i in bare if i in unshown(interview.turn, {i: TALK}, interview.transcript))


def typed_at_the_rubric(*replies: str) -> tuple[dict[int, str], Script, int]:
    held, box = at_the_rubric()
    turn, script = held.turn, Script(str(box + 1), *replies)
    with contextlib.suppress(terminal.Quit):
        mock_terminal._grade(script.console, held, None)
    [ticks] = [reply.ticks for _, asked, reply, _ in held.transcript if asked is turn]
    assert max(map(len, script.lines)) <= 80 and not script.replies
    return ticks, script, box


def check_a_claim_is_said_at_once() -> None:
    """With the terms that lack; Enter keeps it, other words replace it, and words that were not said leave it out."""
    ticks, script, box = typed_at_the_rubric(TALK, "")
    assert ticks == {box: TALK} and "a claim" in script.words
    held, _ = at_the_rubric()
    point = held.turn.boxes[box].text
    assert any(word in script.words.split("not found:")[-1] for word in lacks(point, TALK)[:2])
    ticks, script, _ = typed_at_the_rubric(TALK, point, "")
    assert ticks == {} and "leave it out" in script.words  # the rubric's own words were never typed
    ticks, *_ = typed_at_the_rubric(TALK)  # the input ends at the second question
    assert ticks == {box: TALK}
    ticks, *_ = typed_at_the_rubric("2", "")  # the second sentence of what was typed
    assert ticks == {box: TALK}


def test_a_claim_is_said_at_once():
    check_a_claim_is_said_at_once()


def check_a_claim_is_said_at_once_in_a_notebook() -> None:
    desk, box = at_the_rubric(desk=True)
    turn = desk.interview.turn
    desk.act({"do": "grade", "ticks": {str(box): TALK}})
    assert desk.interview.turn is turn and desk.view["note"] and desk.view["boxes"][box]["doubted"]
    assert desk.view["boxes"][box]["ticked"] and not desk.view["boxes"][box]["refused"]
    desk.act({"do": "grade", "ticks": {str(box): TALK, str(box + 1): "words that were never typed"}})
    assert desk.interview.turn is turn  # something new
    desk.act({"do": "grade", "ticks": {str(box): TALK}})
    assert desk.interview.turn is not turn and not desk.view["note"]  # nothing new: kept as a claim


def test_a_claim_is_said_at_once_in_a_notebook():
    check_a_claim_is_said_at_once_in_a_notebook()


@pytest.mark.parametrize(
    ("owner", "name", "old", "new", "check"),
    [
        (mock_terminal, "_until_shown", "if not problem:\n            return", "return", check_a_claim_is_said_at_once),
        (mock_terminal, "_grade", "    except Quit:\n", "    except KeyError:\n", check_a_claim_is_said_at_once),
        (Desk, "_refuse", "unshown(turn, reply.ticks, said)", "{}", check_a_claim_is_said_at_once_in_a_notebook),
        (Desk, "_refuse", "self._ticks.get(i) != reply.ticks[i]", "True", check_a_claim_is_said_at_once_in_a_notebook),
    ],
)
def test_the_checks_of_claims_see_what_they_are_for(owner, name, old, new, check, monkeypatch):
    rewrite(monkeypatch, owner, name, old, new)
    with pytest.raises((AssertionError, ValueError)):
        check()


# ---------------------------------------------------------------- the command


def test_replies_from_a_pipe(run, monkeypatch, kept):
    monkeypatch.setattr("sys.stdin", io.StringIO("aloud\n" + "\n" * 20))
    code, out, err = run("drill", "--topics", "kv-cache", "--levels", "L4", "--minutes", "8", "--seed", "3")
    assert (code, err) == (0, "") and "Level reached" in out and "L5" not in out.split("Readiness")[0]
    assert json.loads(kept.read_text())["cards"]


def test_no_input_at_all(run, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    code, out, _ = run("drill", "--seed", "0")
    assert code == 0 and "Nothing was answered" in out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--topics", "cooking"], "topics='cooking'"),
        (["--levels", "L9"], "levels='L9'"),
        (["--minutes", "0"], "--minutes='0'"),
        (["--bank", "/nowhere"], "bank='/nowhere'"),
    ],
)
def test_a_users_mistake_is_one_line(run, options, says):
    code, out, err = run("drill", *options)
    assert (code, out) == (2, "") and says in err and err.count("\n") == 1


def teachers_question(folder: Path, **changes) -> None:
    entry = {
        "id": "my-question",
        "topic": "my-topic",
        "question": "Which colour is the bike shed?",
        "spoken": "Green. " * 40,
        "L4": ["Says green"] * 3,
        "L5": ["Says why"] * 3,
        "L6": ["Does not care"] * 3,
        "raises": ["Paints it"],
        "sinks": ["Red"],
        "push_backs": [{"says": "It is red.", "reply": "Paint it."}] * 2,
        "lesson": "07",
        "function": "minispec.theory.speedup",
        **changes,
    }
    (folder / "mine.yaml").write_text(yaml.safe_dump([entry]), encoding="utf-8")


def test_a_teachers_questions_are_asked(run, monkeypatch, tmp_path):
    (tmp_path / "bank").mkdir()
    teachers_question(tmp_path / "bank")
    monkeypatch.setattr("sys.stdin", io.StringIO("green\nno\nno\n1 2 4 5\n"))
    code, out, _ = run("drill", "--bank", tmp_path / "bank", "--topics", "my-topic")
    assert code == 0 and "Which colour is the bike shed?" in out and "- my-topic: L5" in out


def test_a_mistake_in_a_teachers_file_is_named(run, tmp_path):
    teachers_question(tmp_path, L5="no list", lesson="99")
    for command in ("drill", "mock"):
        code, out, err = run(command, "--bank", tmp_path)
        assert (code, out) == (2, "")
        assert "mine.yaml: entry my-question, L5: " in err and "mine.yaml: entry my-question, lesson: '99'" in err


# ---------------------------------------------------------------- a real terminal


@pytest.mark.slow
def test_a_real_terminal_of_80_columns_and_ctrl_c(kept, monkeypatch):
    pexpect = pytest.importorskip("pexpect")
    monkeypatch.delenv("COLUMNS")
    options = ["-c", COMMAND, "drill", "--topics", "kv-cache", "--seed", "3", "--minutes", "60"]
    child = pexpect.spawn(sys.executable, options, dimensions=(24, 80), encoding="utf-8", timeout=120)
    child.logfile_read = screen = io.StringIO()
    asked = 0
    while child.expect(["What did you say\\?.*?> ", "> "]):
        asked += 1
        child.sendline("it keeps keys and values")
    child.sendline("1 2")
    child.expect("It comes back in")
    child.expect("> ")
    for _ in range(20):  # in the middle of the second item; one that comes just before Python waits for a key is lost
        child.sendintr()
        if child.expect([pexpect.EOF, pexpect.TIMEOUT], timeout=5) == 0:
            break
    child.close()
    assert child.exitstatus == 130 and asked >= 2
    text = screen.getvalue()
    assert "Follow-up: " in text and "- kv-cache: " in text and "Traceback" not in text
    assert max(len(line.rstrip("\r")) for line in text.split("\n")) <= 80
    assert len(json.loads(kept.read_text())["cards"]) == 1
