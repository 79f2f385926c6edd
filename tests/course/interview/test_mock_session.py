"""The mock interview: what a round asks, its clock, the page that is kept; in a terminal and as a widget."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from interview_checks import Script, ticks

from minispec_course import interview
from minispec_course.interview import LEVELS, load, mock_interview, terminal
from minispec_course.interview.coding import Code, Coded
from minispec_course.interview.mock_interview import ROUNDS, Asked, Interview, keep, report
from minispec_course.interview.schedule import Schedule
from minispec_course.interview.session import Figure, Said

BANK = load()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(mock_interview, "FOLDER", tmp_path / "exams")
    return tmp_path / "exams"


def held(level: str = "L5", format: str = "concept", seed: int = 3, groups=LEVELS, reply: str = "17") -> Interview:
    """A whole interview: these groups of every rubric are ticked, and every number is answered with the reply."""
    made = Interview(BANK, level, format, seed, Schedule(None), clock=lambda: 0.0)
    while (item := made.current) is not None:
        if isinstance(item, Figure):
            made.computed(reply)
        else:
            made.ticked(ticks(item, *groups), [f"my reply {i}" for i, _ in enumerate(item.asks)])
    return made


def test_what_each_round_asks():
    for level in LEVELS:
        for format, kinds in (
            ("concept", [{"concept"}, {"debugging"}, {"estimation", "derivation"}]),
            ("design", [{"design"}, {"design"}]),
            ("coding", [{"coding"}]),
            ("experience", [{"behavioural"}, {"debugging", "design"}]),
        ):
            for seed in range(8):
                items = Interview(BANK, level, format, seed).items
                talks = [item for item in items if isinstance(item, Asked)]
                assert len(talks) == len(kinds)
                assert all(talk.question.kind in some for talk, some in zip(talks, kinds, strict=True))
                assert sum(isinstance(item, Code) for item in items) == (format == "coding")
                assert sum(isinstance(item, Figure) for item in items) >= 2 * (format == "concept")
    assert Interview(BANK, seed=1).items == Interview(BANK, seed=1).items != Interview(BANK, seed=2).items
    assert Interview(BANK).seed != Interview(BANK).seed or Interview(BANK).seed != Interview(BANK).seed
    for wrong in (dict(level="L7"), dict(format="loop")):
        with pytest.raises(ValueError, match="give one of"):
            Interview(BANK, **wrong)


def test_the_page_counts_ticks_and_names_what_to_drill():
    made = held(groups=("L4",))
    text = report(made)
    talks = made.all(Said)
    for said in talks:
        question = said.item.question
        assert (
            f"({question.topic}; L4 {len(question.L4)} of {len(question.L4)}, L5 0 of {len(question.L5)}, L6 0" in text
        )
        assert f"- L4: {question.L4[0]}" in text.replace(" (must-have)", "") and question.L6[0] in text
        assert question.topic in text.split("minispec drill --topics")[1].partition("`")[0]
        assert said.item.asks[1] in text and "> my reply 1" in text
    assert f"Numbers: 0 of {len(made.items) - len(talks)} right" in text and "wrong: " in text
    assert "minispec drill" not in report(held(level="L4", format="experience", groups=("L4", "L5")))
    assert "Nothing was answered" in report(Interview(BANK))
    assert [keep(made).name, keep(made).name] == ["mock-1.md", "mock-2.md"]


def test_every_round_is_held_in_80_columns(folder, monkeypatch):
    monkeypatch.setattr(Code, "task", "Please write this function.")
    monkeypatch.setattr(Code, "check", lambda self: setattr(self, "outcome", "right") or "right")
    for format in ROUNDS:
        made = Interview(BANK, "L6", format, 5, Schedule(None))
        script = Script()
        script.replies = ["", *["1"] * 60]
        assert terminal.mock(made, script.console) == 0
        assert made.current is None and max(map(len, script.lines)) <= 80 and not made.running
        assert len(made.results) == len(made.items) and "mock-" in script.words
    assert len(list(folder.iterdir())) == len(ROUNDS)


@pytest.mark.parametrize(("end", "code"), [(EOFError(), 0), (KeyboardInterrupt(), 130), ("q", 0)])
def test_what_was_answered_is_kept_whatever_ends_it(folder, end, code):
    made = Interview(BANK, "L5", "concept", 3, Schedule(None))
    script = Script("", *["my words"] * len(made.items[0].asks), "1 2", end)
    assert terminal.mock(made, script.console) == code
    text = (folder / "mock-1.md").read_text(encoding="utf-8")
    assert "> my words" in text and made.items[0].question.L4[1] in text
    nothing = Interview(BANK, "L5", "concept", 3, Schedule(None))
    terminal.mock(nothing, Script(end).console)
    assert len(list(folder.iterdir())) == 1


def test_the_command(run, monkeypatch, tmp_path):
    out = tmp_path / "mine.md"
    monkeypatch.setattr("sys.stdin", io.StringIO("\n" + "notes\n" * 4 + "1 2 3\n"))
    code, _, err = run("mock", "--format", "experience", "--level", "L4", "--seed", "3", "--out", out)
    assert (code, err) == (0, "") and "# Mock interview: L4 experience round" in out.read_text(encoding="utf-8")
    code, _, err = run("mock", "--out", tmp_path)  # said before, and not after 45 minutes
    assert code == 2 and "out" in err


@pytest.mark.slow
def test_code_is_checked_from_the_notebook(tmp_path):

    code = Code("17.kv_size", folder=tmp_path)
    assert "mock-1.ipynb" in code.task and code.file.exists()
    code.check()
    assert code.outcome == "not attempted"
    code.file.unlink()
    code.check()
    assert code.outcome == "wrong"  # gone, and said so
    assert code.said({0}).level == "Code wrong, 1 of 2 follow-ups"


def test_in_a_notebook_nothing_starts_by_itself_and_it_ends_with_a_page(folder):
    desk = interview.mock(level="L4", format="experience", seed=3)
    assert desk.sitting is None and "45 minutes" in desk.children[0].value and not Interview(BANK).running
    desk.children[-1].click()
    sitting = desk.sitting
    assert sitting.session.running and sitting._clock.running and sitting._clock.minutes == 45
    for _ in sitting.session.current.asks:
        sitting._field.enter({"entered": "my <words>"})
    assert not sitting.session.running and not sitting._clock.running  # while the rubric is ticked
    for box in sitting._boxes[:3]:
        box.value = True
    sitting._next.click()
    sitting._next.click()
    assert sitting.session.running
    sitting._end.click()
    page = sitting._body.children[0].value
    assert "<h1>" in page and "mock-1.md" in page and "my &lt;words&gt;" in page
    assert "my <words>" in (folder / "mock-1.md").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="give one of"):
        interview.mock(format="loop")


def test_a_function_is_checked_until_it_is_right(monkeypatch):
    outcomes = iter(["wrong", "right"] * 2)
    monkeypatch.setattr(Code, "task", "Please write this function.")
    monkeypatch.setattr(Code, "check", lambda self: setattr(self, "outcome", next(outcomes)) or "a <diagnosis>")
    made = Interview(BANK, "L5", "coding", 1, Schedule(None))
    terminal.mock(made, Script("", "", "", "one", "two", "1", "q").console)
    [coded] = made.all(Coded)
    assert coded.level == "Code right, 1 of 2 follow-ups" and coded.texts == ("one", "two")
    assert coded.item.exercise in report(made) and coded.item.asks[0] in report(made)

    desk = interview.mock(format="coding", seed=3)
    desk.begin()
    sitting = desk.sitting
    sitting._next.click()
    assert "a &lt;diagnosis&gt;" in sitting._body.children[1].value and sitting._next.description == "check"
    sitting._next.click()
    for _ in sitting.session.current.asks:
        sitting._field.enter({"entered": "it is O(n)"})
    sitting._next.click()
    assert sitting.session.results[0].level == "Code right, 0 of 2 follow-ups"
