"""The mock interview: what a round asks, its marks, its record and its debrief; alone, with a partner, with a judge."""

from __future__ import annotations

import io
import json
import random
import urllib.request
from itertools import product
from pathlib import Path

import pytest
from candidate import Script, said, ticks

from minispec_course import interview
from minispec_course.interview import LEVELS, load, mock_interview
from minispec_course.interview.coding import Code
from minispec_course.interview.dialogue import interviewer, mock, play, read_marks
from minispec_course.interview.judge import Judge
from minispec_course.interview.mock_interview import ROUNDS, Asked, Interview, name_of, records, trend
from minispec_course.interview.pages import debrief, sheet
from minispec_course.interview.schedule import Schedule
from minispec_course.interview.session import SINKS, VERDICTS, Figure, Mark, Said, sentences

BANK = load()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setattr(mock_interview, "FOLDER", tmp_path / "exams")
    return tmp_path / "exams"


@pytest.fixture
def no_code(monkeypatch) -> None:
    monkeypatch.setattr(Code, "task", "Please write this function.")
    monkeypatch.setattr(Code, "check", lambda self: setattr(self, "outcome", "right") or "right")


def hold(made: Interview, *replies) -> Script:
    """A mock interview in a terminal."""
    script = Script(*replies)
    script.code = play(mock(script, made), script)
    return script


def held(level: str = "L5", format: str = "concept", seed: int = 3, groups=LEVELS) -> Interview:
    """A whole interview: these groups of every rubric are marked as said, every number is answered with 17."""
    made = Interview(BANK, level, format, seed, Schedule(None), clock=lambda: 0.0)
    while made.current is not None:
        made.computed("17") if isinstance(made.current, Figure) else made.say("I measured it. Then I decided.")
    for place in made.to_mark:
        made.mark(place, {i: Mark("said", f"because {i}") for i in ticks(made.items[place], *groups)})
        made.settle(place)
    return made


# ---- what is asked --------------------------------------------------------------------------------------------------


def test_what_each_round_asks():
    kinds = {"concept": ["concept", "debugging", "estimation derivation"], "design": ["design", "design"]}
    kinds |= {"coding": ["coding"], "experience": ["behavioural", "debugging design"]}
    for level, (format, wanted), seed in product(LEVELS, kinds.items(), range(8)):
        items = Interview(BANK, level, format, seed).items
        talks = [item for item in items if isinstance(item, Asked)]
        assert all(talk.question.kind in some.split() for talk, some in zip(talks, wanted, strict=True))
        assert sum(isinstance(item, Code) for item in items) == (format == "coding")
        assert sum(isinstance(item, Figure) for item in items) >= 2 * (format == "concept")
    assert Interview(BANK, seed=1).items == Interview(BANK, seed=1).items != Interview(BANK, seed=2).items
    for wrong in (dict(level="L7"), dict(format="loop")):
        with pytest.raises(ValueError):
            Interview(BANK, **wrong)


@pytest.mark.parametrize("format", ROUNDS)
def test_two_rounds_in_a_row_repeat_no_question(format, no_code):
    before = set()
    for _ in range(4):
        made = Interview(BANK, "L5", format)
        names = {name_of(item) for item in made.items}
        assert not names & before
        made.keep()
        before = names


def test_a_fact_of_a_design_is_told_only_when_it_was_asked_for():
    made = Interview(BANK, "L5", "design", 3, Schedule(None))
    facts = made.items[0].facts
    menu = "? How fast is memory?|99|1 2|1|? Whose birthday is it?||? Its name?|? Memory?|I begin.".split("|")
    script = hold(made, "", *menu, "?1", "")  # words that are typed into the list of facts are not lost
    unknown = [(name, None) for name in ("Whose birthday is it?", "Its name?", "Memory?")]
    assert made.facts == [("How fast is memory?", 0), *unknown, ("1", 0)]
    assert made.texts[0] == ["I begin."] and made.items[0].question.case.changes[0].says in script.words
    before = script.words.partition("# Mock interview")[0]
    assert facts[0] in before and not any(fact in before for fact in facts[1:])


# ---- marks ----------------------------------------------------------------------------------------------------------


def test_marks_point_at_sentences():
    own = sentences(["It reads 16 GB; that is 3.8 ms.\nSo it waits.", "", "  No!  Never. "])
    assert own == ["It reads 16 GB;", "that is 3.8 ms.", "So it waits.", "No!", "Never."]
    assert read_marks("1=3 2~1", own, 9) == {0: Mark("said", own[2]), 1: Mark("half", own[0])}
    assert read_marks("3!2  4!", own, 9) == {2: Mark("wrong", own[1]), 3: Mark("wrong", "")}
    assert read_marks("9 = I said 7 things", own, 9) == {8: Mark("said", "I said 7 things")}
    assert read_marks("1-", own, 9) == {0: Mark("missed", "")}
    for text in ("1", "1=", "1~", "1=6", "1=0", "10=1", "0=1", "=1", "a=1", "1=3 2~6", "99999=1", "1 2"):
        assert read_marks(text, own, 9) is None, text


def test_a_claim_without_a_sentence_does_not_count():
    made = Interview(BANK, "L4", "experience", 3, Schedule(None))
    for _ in made.items[0].asks:
        made.say("")
    for quote, reached in ((" ", 0), ("aloud: it is memory-bound", 3)):
        made.mark(0, {i: Mark("said", quote) for i in ticks(made.items[0], *LEVELS)})
        assert made.settle(0).reached == reached
    made.mark(0, {0: Mark("wrong")})
    assert made.settle(0).level == "L5"


def test_the_round_is_the_middle_one_of_its_questions():
    made = held(groups=())
    for levels in product(range(4), repeat=3):  # a median never falls when one of its values rises
        for place, count in enumerate(levels):
            made.noted[place] = said(made.items[place], ticks(made.items[place], *LEVELS[:count]))
        assert made.reached == sorted(levels)[1]
    made.noted = {place: made.noted[place] for place in (0, 2)}
    assert made.reached == 3
    made.noted[0] = said(made.items[0], ())
    assert made.reached == 0


def test_the_debrief_has_the_points_of_the_next_level_and_the_topics_to_repeat():
    made = held(groups=("L4",))
    page = debrief(made, answers=False)
    needed = page.split("## What L5 would have needed")[1].split("\n##")[0]
    for talk in made.all(Said):
        question = talk.item.question
        assert all(point in needed for point in question.L5) and not any(point in needed for point in question.L6)
        assert question.topic in page.split("minispec drill --topics")[1].partition("`")[0]
    assert "I measured it." in debrief(made) and "I measured it." not in page
    best, sunk = held(level="L4"), held(groups=(*LEVELS, SINKS))
    gaps = debrief(sunk).split("## Gaps\n")[1]
    assert any(tell in gaps for talk in sunk.all(Said) for tell in talk.item.question.sinks)
    assert [made.reached, best.reached, sunk.reached] == [1, 3, 0] and len(trend()) == 3
    assert debrief(Interview(BANK))  # of nothing at all


# ---- the record -----------------------------------------------------------------------------------------------------


def state(made: Interview) -> dict:
    kept = made.record()
    return {name: kept[name] for name in ("items", "facts", "reached", "finished", "numbers")}


@pytest.mark.parametrize("format", ["concept", "design"])
def test_an_interruption_loses_nothing(format):
    marks = ["1=1 2~2", "3=my words", "", "1=1", "", "", "", ""]
    whole, probe, answers = *(Interview(BANK, "L5", format, 3, Schedule(None)) for _ in "ab"), []
    while probe.current is not None:  # what is typed from beginning to end
        answers += ["17"] if isinstance(probe.current, Figure) else ["It waits. I measure.", ""]
        probe.computed("17") if isinstance(probe.current, Figure) else probe.say("")
    typed = ["", *answers, *marks]
    hold(whole, *typed)
    assert whole.record()["finished"] and whole.marks[0][2].quote == "my words"
    for cut in range(2, len(answers) + 5, 3):
        made = Interview(BANK, "L5", format, 3, Schedule(None))
        assert hold(made, *typed[:cut], KeyboardInterrupt()).code == 130
        again = Interview.resume(made.file, BANK, Schedule(None))
        half = cut <= len(answers) and typed[cut - 1] == "It waits. I measure."  # before the empty line: it counts
        hold(again, "", *typed[cut + half :])
        assert state(again) == state(whole), (cut, typed[:cut])


def test_a_question_that_leaves_the_bank_leaves_the_round():
    made = held()
    gone = made.items[0].key
    again = Interview.resume(made.file, {id: question for id, question in BANK.items() if id != gone})
    assert len(again.items) == len(made.items) - 1 and again.results == made.results[1:] and debrief(again)
    again.keep()  # with the answers to the question that is gone: it may come back
    assert len(Interview.resume(made.file, BANK).results) == len(made.results)
    kept = json.loads(made.file.read_text())
    kept["items"][1]["marks"] = {"a line that has left the rubric": ["said", "so"]}
    made.file.write_text(json.dumps(kept))
    assert Interview.resume(made.file, BANK).results[1].reached == 0
    for content in ("{", "[]", "null", "{}", '{"begun": 3}', json.dumps({**kept, "items": 3})):
        made.file.with_name("mock-7.json").write_text(content)
        assert [file for file, _ in records()] == [made.file] and len(trend()) == 1


@pytest.mark.parametrize("format", ROUNDS)
def test_a_round_ends_whatever_is_typed(format, folder, no_code):
    made = Interview(BANK, "L6", format, 5, Schedule(None))
    assert hold(made, "", *["1", ""] * 60).code == 0 and len(made.results) == len(made.items)
    assert {file.name for file in folder.iterdir()} == {"mock-1.json", "mock-1.md"}
    dice = random.Random(0)
    pieces = [*"s ? 1=1 1= 1-3 99 17 -1 é\udcff 0x1 1e999 ?2".split(), "", "? x", "3~2 4!1", "a" * 200]
    for seed in range(8):
        made = Interview(BANK, dice.choice(LEVELS), format, seed, Schedule(None))
        typed = [dice.choice(pieces) for _ in range(dice.randrange(80))]
        assert hold(made, *typed, dice.choice(["q", EOFError()])).code == 0
        if made.file:
            assert state(Interview.resume(made.file, BANK))["items"] == made.record()["items"]


# ---- a partner, a judge, code ---------------------------------------------------------------------------------------


def test_a_partner_has_the_sheet_and_marks_what_the_candidate_said():
    made = Interview(BANK, "L6", "design", 4, Schedule(None))
    for item in made.items:
        assert all(part in sheet(made) for part in (*item.facts, *(box.text for box in item.rubric)))
    turns = sum(len(item.asks) for item in made.items)
    hold(made, "", *["I said so. And so.", ""] * turns, "q")  # q: the marks are the partner's
    assert not made.all(Said)
    script = Script("", "1=2 2!1", "", "", "")
    assert play(interviewer(script, Interview(BANK, "L6", "design", 4, Schedule(None))), script) == 0
    [(_, kept)] = records()
    assert kept["marked_by"] == "a partner" and kept["finished"]
    assert kept["items"][0]["marks"][made.items[0].rubric[0].text] == ["said", "And so."]


def test_the_commands(run, monkeypatch, tmp_path):
    assert run("mock", "--interviewer", "--seed", "3", "--out", tmp_path / "sheet.html")[0] == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("\nnotes\n\n\n\nq\n"))
    out = tmp_path / "mine.md"
    assert run("mock", "--format", "experience", "--level", "L4", "--seed", "3", "--out", out)[0] == 0
    assert "notes" in out.read_text(encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO("\n" * 20))
    assert run("mock", "--resume")[0] == 0 and records()[0][1]["finished"]
    for wrong in (["--resume"], ["--judge", "http://localhost:1/v1"], ["--out", tmp_path]):
        assert run("mock", *wrong)[0] == 2  # said before, and not after 45 minutes


def judged_by(monkeypatch, answer, *replies: str) -> tuple[Interview, list]:
    """A round whose marks a model proposes: `answer` says what it returns, or raises; and the requests it got."""
    seen = []

    def urlopen(request, timeout):
        seen.append(request)
        told = answer(json.loads(request.data))
        return io.StringIO(json.dumps({"choices": [{"message": {"content": told}}]}))

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    made = Interview(BANK, "L5", "experience", 3, Schedule(None))
    made.judge = Judge("http://127.0.0.1:9/v1", "grader")
    hold(made, "", *["It waits. I measure.", ""] * len(made.items[0].asks), "q", *replies, "", "q")
    return made, seen


def test_a_judge_may_quote_only_what_was_said_and_is_overruled(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    rubric = Interview(BANK, "L5", "experience", 3, Schedule(None)).items[0].rubric
    replies = [
        {"verdict": "said", "quote": "It  waits."},
        {"verdict": "said", "quote": "It never waits."},  # nobody said that
        {"verdict": "half", "quote": ""},
        {"verdict": "wrong", "quote": "I measure."},
        {"verdict": "brilliant", "quote": "It waits."},
        {"verdict": "said", "quote": None},
        {"verdict": "half", "quote": "waits. I measure."},
        {"verdict": "wrong", "quote": "It runs."},  # nor that: it costs nobody a level
    ]

    def answer(body):
        [i] = [i for i, box in enumerate(rubric) if box.text in body["messages"][0]["content"]]
        return json.dumps(replies[i]) if i < len(replies) else ["no JSON", "[]", '"x"', "{}"][i % 4]

    made, seen = judged_by(monkeypatch, answer, "3=2 4-")
    assert len(seen) == len(rubric) and {one.get_header("Authorization") for one in seen} == {"Bearer secret"}
    schema = json.loads(seen[0].data)["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["quote"]["enum"] == ["", "It waits.", "I measure."]
    assert schema["properties"]["verdict"]["enum"] == list(VERDICTS)
    kept = {i: (m.verdict, m.quote) for i, m in made.all(Said)[0].marks.items() if m.verdict != "missed"}
    assert kept == {0: ("said", "It waits."), 2: ("said", "I measure."), 6: ("half", "waits. I measure.")}


def test_a_judge_that_fails_leaves_the_marks_to_the_candidate(monkeypatch):
    def refuses(body):
        raise OSError("refused")

    def agrees_with_everything(body):  # with every point, and with every mistake
        return json.dumps({"verdict": "said", "quote": "It waits."})

    for answer in (refuses, agrees_with_everything):
        made, _ = judged_by(monkeypatch, answer, "1=1")
        assert made.all(Said)[0].marks == {0: Mark("said", "It waits.")}


@pytest.mark.slow
def test_code_is_checked_from_the_notebook_and_counts_only_when_it_is_right(tmp_path):
    code = Code("17.kv_size", folder=tmp_path)
    assert code.task and code.file.exists()  # the task writes the notebook
    code.check()
    assert code.outcome == "not attempted" and code.reached({0: Mark(), 1: Mark()}) == 0  # whatever one says about it
    code.file.unlink()
    code.check()
    assert code.outcome == "wrong"
    code.outcome = "right"
    assert [code.reached({i: Mark() for i in range(n)}) for n in range(3)] == [1, 2, 3]
    assert code.reached({0: Mark(), 1: Mark("wrong")}) == 1


def test_a_function_is_checked_until_it_is_right(monkeypatch):
    outcomes = iter(["wrong", "right"])
    monkeypatch.setattr(Code, "task", "Please write this function.")
    monkeypatch.setattr(Code, "check", lambda self: setattr(self, "outcome", next(outcomes)) or "a diagnosis")
    made = Interview(BANK, "L5", "coding", 1, Schedule(None))
    hold(made, "", "", "", "one", "", "two", "", "q", "1=1", "", "q")
    [result] = made.all(Said)
    assert result.level == "L5" and result.texts == ("one", "two")
    assert Interview.resume(made.file, BANK).items[0].outcome == "right"


def test_in_a_notebook_a_round_is_the_same_dialogue(folder):
    sitting = interview.mock(level="L4", format="experience", seed=3)
    made = sitting.session
    assert not made.running and not folder.exists()
    sitting.reply("")
    assert sitting._clock.running and sitting._clock.minutes == 45
    for _ in made.items[0].asks:
        sitting._field.enter({"entered": "my <words>. More."})
    sitting._buttons[-1].click()  # end: on to the marks
    assert not made.running and "my &lt;words&gt;." in sitting._text.value
    sitting.reply("1=1")
    sitting.reply("q")
    assert sitting._field.disabled and "my <words>. More." in (folder / "mock-1.md").read_text(encoding="utf-8")
    again = interview.mock(resume=True)
    assert again.session.texts == made.texts and again.session.marks == made.marks != {}
