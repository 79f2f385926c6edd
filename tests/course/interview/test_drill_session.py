"""The drill: what is asked when, what an answer is worth, what is kept; in a terminal, and as a widget."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from fsrs import Rating
from hypothesis import given, settings
from hypothesis import strategies as st
from interview_checks import Script, said, ticks

from minispec_course import interview
from minispec_course.interview import LEVELS, load
from minispec_course.interview.dialogue import drill, play
from minispec_course.interview.fresh import daily
from minispec_course.interview.pages import summary
from minispec_course.interview.schedule import Schedule
from minispec_course.interview.session import SINKS, Computed, Figure, Mark, Session, Talk, choose, start, weak

BANK = load()
KV = BANK["kv-size"]
DAY = timedelta(days=1)


class Clock:
    """A schedule's `now` that a test moves."""

    time = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "deep/progress.json"))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "deep/drill.json"


def test_levels_and_ratings():
    talk = Talk(KV)
    for groups, level, rating in (
        ((), "below L4", Rating.Again),
        (("L4",), "L4", Rating.Hard),
        (("L5", "L6"), "below L4", Rating.Again),  # a level stands on the one below it
        (("L4", "L6"), "L4", Rating.Hard),
        (("L4", "L5"), "L5", Rating.Hard),
        (LEVELS, "L6", Rating.Good),
        ((*LEVELS, "follow-up", "push-back", "raises"), "L6", Rating.Easy),
        ((*LEVELS, "follow-up", "raises"), "L6", Rating.Good),  # a push-back was not answered
        ((*LEVELS, "follow-up", "push-back", "raises", SINKS), "L4", Rating.Hard),  # two sinking tells, two levels
        (("L4", SINKS), "below L4", Rating.Again),
    ):
        more = {i for i, box in enumerate(talk.rubric) if box.group == SINKS and box.text in KV.sinks[2:]}
        result = said(talk, ticks(talk, *groups) - more)
        assert (result.level, result.rating) == (level, rating), groups
    for missing, level in ((1, "L6"), (2, "L5")):  # two thirds of a level are enough
        assert said(talk, ticks(talk, "L4", "L5") | ticks(talk, "L6", all_but=missing)).level == level
    must = {i for i, box in enumerate(talk.rubric) if box.must}
    assert must and said(talk, ticks(talk, *LEVELS) - must).reached < 3  # but not without a must-have
    halves = {i: Mark("half") for i in ticks(talk, "L4")}
    assert talk.reached(halves) == 0  # three halves are less than two
    assert talk.reached(halves | {min(halves): Mark("said")}) == 1
    basics, deep, sunk = ({i: Mark(quote="so") for i in ticks(talk, group)} for group in ("L4", "L5", SINKS))
    assert talk.reached(basics | {i: Mark("wrong") for i in deep}) == 1  # trying a deeper point costs no basic level
    assert talk.reached(basics | deep | sunk) == 1  # one sentence that is wrong several times costs once


BETTER = {"wrong": 0, "missed": 1, "half": 2, "said": 3}


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_better_mark_never_lowers_a_level(data):
    talk = Talk(BANK[data.draw(st.sampled_from(sorted(BANK)))])
    drawn = [st.sampled_from(list(BETTER)), st.sampled_from(["", "so", "thus"])]
    marks = {i: Mark(*map(data.draw, drawn)) for i, _ in enumerate(talk.rubric)}
    place = data.draw(st.sampled_from(sorted(marks)))
    before, verdict = talk.reached(marks), data.draw(st.sampled_from(list(BETTER)))
    after = talk.reached({**marks, place: Mark(verdict, marks[place].quote)})
    gained = BETTER[verdict] - BETTER[marks[place].verdict]
    if talk.rubric[place].group == SINKS:  # here only not to have said it is good
        gained = (verdict == "missed") - (marks[place].verdict == "missed")
    assert (after - before) * gained >= 0


def test_numbers_are_graded_with_tolerance_and_explained():
    [number] = [n for n in KV.numbers if n.value == 320 and n.unit == "KiB"]
    figure = Figure(number, KV)
    assert [Computed(figure, text).right for text in ("330 KiB", "340", "")] == [True, False, False]
    first, formula = Computed(figure, "").solution
    assert first == "kv_bytes_per_token(80, 8, 128) / 1024 = 320 KiB" and "2 (key and value)" in formula
    assert all(Computed(Figure(n), "").solution for question in BANK.values() for n in question.numbers)


def test_a_drill_fits_its_minutes_and_the_seed_decides():
    assert choose(BANK, Schedule(None), 20, 1) == choose(BANK, Schedule(None), 20, 1)
    assert choose(BANK, Schedule(None), 20, 1) != choose(BANK, Schedule(None), 20, 2)
    for seed in range(5):
        items = choose(BANK, Schedule(None), 20, seed)
        assert 16 < sum(item.minutes for item in items) <= 20
        assert len({item.key for item in items}) == len(items)
    assert len(choose(BANK, Schedule(None), 0.5, 0)) == 1  # something can always be asked
    everything = choose(BANK, Schedule(None), 10_000, 0)
    assert {item.key for item in everything if isinstance(item, Talk)} == set(BANK)
    for before, item in pairwise(everything):  # a new question brings a number along
        assert isinstance(item, Talk) or (isinstance(before, Talk) and before.question is item.question)
    items = choose(BANK, Schedule(None), 30, 0, ["paging", "batching"], ["L6", "L4"])
    assert {item.topic for item in items} == {"paging", "batching"}
    assert all(item.levels == ("L4", "L6") for item in items if isinstance(item, Talk))


def test_ten_minutes_a_day_are_numbers_those_that_are_due_first():
    schedule = Schedule(None, Clock())
    assert [item.key for item in daily(BANK, 0, schedule).items] == [None] * 10
    assert daily(BANK, 0, schedule).items == daily(BANK, 0, schedule).items != daily(BANK, 1, schedule).items
    due = [Figure(number, KV) for number in KV.numbers]
    for figure in due:
        schedule.review(figure.key, Rating.Again)
    schedule.now.time += 2 * DAY
    items = daily(BANK, 0, schedule).items
    assert set(items[:4]) <= set(due) and not set(items[4:]) & set(due) and len(set(items)) == 10


def test_due_questions_come_first_the_shakiest_before_the_others():
    schedule = Schedule(None, Clock())
    for key, rating in (("kv-size", Rating.Good), ("expected-tokens", Rating.Again), ("medusa", Rating.Easy)):
        schedule.review(key, rating)
    first = choose(BANK, schedule, 12, 0)
    assert not {"kv-size", "expected-tokens", "medusa"} & {item.key for item in first}  # none is due yet
    schedule.now.time += 3 * DAY
    keys = [item.key for item in choose(BANK, schedule, 12, 0)]
    assert keys[:2] == ["expected-tokens", "kv-size"] and "medusa" not in keys
    number = Figure(KV.numbers[0], KV)
    Session([number], 5, schedule).computed("17")  # a wrong number comes back by itself
    schedule.now.time += DAY
    assert number in choose(BANK, schedule, 12, 0)[:3]


def test_answers_are_kept_at_once_and_found_again(kept):
    session = start(BANK, ["kv-cache"], minutes=4, seed=0)
    session.ticked({0})
    assert list(json.loads(kept.read_text())["cards"]) == [session.items[0].key]
    again = Schedule(kept)
    assert again.seen(session.items[0].key) and not again.notice
    assert {file.name for file in kept.parent.iterdir()} <= {"drill.json", ".drill.json.lock"}  # no half-written file
    one, two = Schedule(kept), Schedule(kept)  # two notebooks at once lose nothing
    one.review("a", Rating.Good)
    two.review("b", Rating.Again)
    assert set(Schedule(kept).cards) == {"a", "b", session.items[0].key}


BROKEN = ["{", "", "[]", "null", '{"cards": 3}', '{"cards": {"a": 1}}', '{"cards": {"a": {}}}', b"\xff\xfe"]
WRONG = [{"state": 9}, {"state": 3}, {"stability": None}, {"stability": -1}, {"difficulty": float("nan")}]
WRONG += [{"due": "soon"}, {"due": "2030-01-03T00:00:00"}, {"last_review": None}]


def test_a_broken_file_is_kept_aside_and_said(kept):
    Schedule(kept).review("a", Rating.Good)
    card = json.loads(kept.read_text())["cards"]["a"]
    assert not Schedule(kept).notice
    for n, content in enumerate(BROKEN + [json.dumps({"cards": {"a": {**card, **wrong}}}) for wrong in WRONG], 1):
        kept.write_bytes(content if isinstance(content, bytes) else content.encode())
        before = kept.read_bytes()
        aside = kept.with_name(f"drill.json.broken{f'-{n}' * (n > 1)}")  # the earlier ones stay
        schedule = Schedule(kept)
        assert schedule.cards == {} and aside.name in schedule.notice and aside.read_bytes() == before, content
        schedule.review("a", Rating.Good)
        assert Schedule(kept).seen("a") and not Schedule(kept).notice


def test_where_nothing_can_be_written_the_drill_goes_on(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "file/progress.json"))
    session = start(BANK, minutes=8, seed=0)
    session.ticked(())
    assert "not kept" in session.schedule.notice and session.schedule.seen(session.items[0].key)
    monkeypatch.setenv("MINISPEC_PROGRESS", "off")
    session = start(BANK, minutes=4, seed=0)
    session.ticked(())
    assert session.schedule.file is None and not session.schedule.notice


def test_the_time_ends_a_drill_between_two_questions_and_never_in_one():
    seconds = [0.0]
    items = [Talk(BANK[id]) for id in ("kv-size", "medusa", "eagle")]
    session = Session(items, 5, clock=lambda: seconds[0])
    assert not session.running
    session.start_clock()
    session.ticked(())
    seconds[0] = 600
    assert session.current is items[1]  # it was asked in time
    session.stop_clock()
    seconds[0] = 6000
    assert session.elapsed == 10
    session.start_clock()
    session.ticked(())
    assert session.current is None and len(session.results) == 2 and session.elapsed == 10


def test_the_summary_names_levels_and_what_to_read():
    talks = [Talk(BANK[id]) for id in ("kv-size", "gqa", "kv-rewind", "medusa")]
    session = Session([*talks, Figure(KV.numbers[0], KV)], 60)
    for talk, groups in zip(talks, (LEVELS, ("L4", "raises"), (), (*LEVELS, SINKS)), strict=True):
        session.ticked(ticks(talk, *groups))
    session.computed("1")
    first, *others = [question.id for question in weak(session)]
    assert first in ("kv-rewind", "medusa") and "kv-size" in others  # for its number
    text = summary(session)
    assert "kv-size: L6" in text and "gqa: L4" in text and "kv-rewind: below L4" in text and "0 of 1 right" in text
    assert BANK["kv-rewind"].function in text


def test_a_question_is_followed_up_before_the_rubric_is_shown():
    texts = [f"answer {i}" for i in range(len(Talk(KV).asks))]
    typed = [line for text in texts for line in (text, "")]
    script = Script("", *typed, "99", "all of it", "1 2 3 4 5", "320 KiB", "lots", "17")
    session = Session([Talk(KV), *(Figure(number, KV) for number in KV.numbers[:2])], 9, Schedule(None))
    assert play(drill(script, session), script) == 0 and not script.replies
    places = [script.words.index(text[:40]) for text in (*Talk(KV).asks, KV.spoken)]
    assert places == sorted(places)
    for point in (*KV.L4, *KV.L6, *KV.raises, *KV.sinks, KV.follow_ups[0].short, KV.push_backs[1].reply):
        assert point in script.words
    result, first, second = session.results
    assert set(result.marks) == {0, 1, 2, 3, 4} and result.level == "L5" and result.texts == tuple(texts)
    assert first.right and not second.right and "right: 320 KiB" in script.words and "wrong: 2.5 MiB" in script.words


@pytest.mark.parametrize(("end", "code"), [(EOFError(), 0), (KeyboardInterrupt(), 130), ("q", 0)])
def test_s_skips_and_what_was_answered_is_kept_whatever_ends_it(kept, end, code):
    script = Script("", "s", *[""] * len(Talk(KV).asks), "1 2", end)
    session = Session([Talk(BANK["medusa"]), Talk(KV), Talk(BANK["gqa"])], 20, Schedule(kept))
    assert play(drill(script, session), script) == code and session.place == 2
    assert list(json.loads(kept.read_text())["cards"]) == ["kv-size"] and "kv-size: L4" in script.words


def test_the_command_reads_from_a_pipe(run, monkeypatch, kept):
    monkeypatch.setattr("sys.stdin", io.StringIO("\naloud\n" + "\n" * 20))
    code, out, err = run("drill", "--topics", "kv-cache", "--levels", "L4", "--minutes", "8", "--seed", "3")
    assert (code, err) == (0, "") and "Level reached" in out and "L5" not in out
    assert json.loads(kept.read_text())["cards"]
    monkeypatch.setattr("sys.stdin", io.StringIO("17\n" * 20))
    code, out, _ = run("drill", "--daily", "--seed", "0")
    assert code == 0 and "Numbers: " in out
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    code, out, _ = run("drill", "--seed", "0")
    assert code == 0 and "Nothing was answered" in out


def test_a_drill_in_a_notebook_is_the_same_dialogue(kept):
    kept.parent.mkdir()
    kept.write_text("{")
    sitting = interview.drill(topics=["kv-cache"], minutes=4, seed=3)
    assert "drill.json.broken" in sitting._text.value and not sitting._clock.running  # nothing starts by itself
    sitting._field.enter({"entered": ""})  # as the browser sends it
    [talk] = sitting.session.items
    assert sitting._clock.running and talk.asks[0] in sitting._text.value
    for _ in talk.asks:
        sitting._field.enter({"entered": "two times <layers>\nand heads"})
        sitting._field.enter(None)
    assert sitting._text.value.count("two times &lt;layers&gt;") == len(talk.asks)  # one's own words beside the rubric
    sitting._field.value = "1-3"
    sitting._buttons[0].click()
    [result] = sitting.session.results
    assert set(result.marks) == {0, 1, 2} and result.texts[0] == "two times <layers>\nand heads"
    assert f"{talk.key}: {result.level}" in sitting._text.value and sitting._field.disabled
    with pytest.raises(ValueError, match="cooking"):
        interview.drill(topics=["cooking"])
    numbers = interview.daily(seed=2)
    for text in ("", "no idea", "17", "s"):
        numbers.reply(text)
    assert len(numbers.session.results) == 1 and numbers.session.place == 2
    numbers._buttons[-1].click()
    assert "0 of 1 right" in numbers._text.value
