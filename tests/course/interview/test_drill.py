"""The drill: what is asked when, what an answer is worth, what is kept; in a terminal, and as a widget."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from candidate import Script, said, ticks
from fsrs import Rating
from hypothesis import given, settings
from hypothesis import strategies as st

from minispec_course.interview import LEVELS, load
from minispec_course.interview.dialogue import drill, play
from minispec_course.interview.fresh import daily
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
    return tmp_path / "deep/drill.json"


# ---- what an answer is worth ----------------------------------------------------------------------------------------

EVERYTHING = (*LEVELS, "follow-up", "push-back", "raises")
RATED = [
    ((), "below L4", Rating.Again),
    (("L4",), "L4", Rating.Hard),
    (("L5", "L6"), "below L4", Rating.Again),  # a level stands on the one below it
    (("L4", "L6"), "L4", Rating.Hard),
    (("L4", "L5"), "L5", Rating.Hard),
    (LEVELS, "L6", Rating.Good),
    (EVERYTHING, "L6", Rating.Easy),
    ((*LEVELS, "follow-up", "raises"), "L6", Rating.Good),  # a push-back was not answered
    ((*EVERYTHING, SINKS), "L4", Rating.Hard),  # two sinking tells, two levels
    (("L4", SINKS), "below L4", Rating.Again),
]


@pytest.mark.parametrize(("groups", "level", "rating"), RATED)
def test_what_was_said_makes_a_level_and_a_rating(groups, level, rating):
    talk = Talk(KV)
    more = {i for i, box in enumerate(talk.rubric) if box.group == SINKS and box.text in KV.sinks[2:]}
    result = said(talk, ticks(talk, *groups) - more)
    assert (result.level, result.rating) == (level, rating)


def test_two_thirds_of_a_level_are_enough_but_not_without_a_must_have():
    talk = Talk(KV)
    for missing, level in ((1, "L6"), (2, "L5")):
        assert said(talk, ticks(talk, "L4", "L5") | ticks(talk, "L6", all_but=missing)).level == level
    must = {i for i, box in enumerate(talk.rubric) if box.must}
    assert must and said(talk, ticks(talk, *LEVELS) - must).reached < 3


def test_half_points_count_half_and_a_wrong_one_costs_once():
    talk = Talk(KV)
    halves = {i: Mark("half") for i in ticks(talk, "L4")}
    assert talk.reached(halves) == 0  # three halves are less than two
    assert talk.reached(halves | {min(halves): Mark("said")}) == 1
    basics, deep, sunk = ({i: Mark(quote="so") for i in ticks(talk, group)} for group in ("L4", "L5", SINKS))
    assert talk.reached(basics | {i: Mark("wrong") for i in deep}) == 1  # trying a deeper point costs no basic level
    assert talk.reached(basics | deep | sunk) == 1  # one sentence that is wrong several times costs once


BETTER = {"wrong": 0, "missed": 1, "half": 2, "said": 3}


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_a_better_mark_never_lowers_a_level(data):
    talk = Talk(BANK[data.draw(st.sampled_from(sorted(BANK)))])
    sampled = [st.sampled_from(list(BETTER)), st.sampled_from(["", "so", "thus"])]
    marks = {i: Mark(*map(data.draw, sampled)) for i, _ in enumerate(talk.rubric)}
    changed = data.draw(st.sampled_from(sorted(marks)))
    before, verdict = talk.reached(marks), data.draw(st.sampled_from(list(BETTER)))
    after = talk.reached({**marks, changed: Mark(verdict, marks[changed].quote)})
    gained = BETTER[verdict] - BETTER[marks[changed].verdict]
    if talk.rubric[changed].group == SINKS:  # here only not to have said it is good
        gained = (verdict == "missed") - (marks[changed].verdict == "missed")
    assert (after - before) * gained >= 0


def test_numbers_are_graded_with_tolerance_and_explained():
    [number] = [n for n in KV.numbers if n.value == 320 and n.unit == "KiB"]
    figure = Figure(number, KV)
    assert [Computed(figure, text).right for text in ("330 KiB", "340", "")] == [True, False, False]
    assert Computed(figure, "").solution[0] == "kv_bytes_per_token(80, 8, 128) / 1024 = 320 KiB"
    assert all(Computed(Figure(n), "").solution for question in BANK.values() for n in question.numbers)


def test_the_weakest_questions_are_named_for_another_round():
    talks = [Talk(BANK[id]) for id in ("kv-size", "gqa", "kv-rewind", "medusa")]
    session = Session([*talks, Figure(KV.numbers[0], KV)], 60)
    for talk, groups in zip(talks, (LEVELS, ("L4", "raises"), (), (*LEVELS, SINKS)), strict=True):
        session.ticked(ticks(talk, *groups))
    session.computed("1")
    first, *others = [question.id for question in weak(session)]
    assert first in ("kv-rewind", "medusa") and "kv-size" in others  # for its number


# ---- what is asked --------------------------------------------------------------------------------------------------


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


# ---- what is kept ---------------------------------------------------------------------------------------------------


def test_answers_are_kept_as_they_come_and_found_again(kept):
    session = start(BANK, ["kv-cache"], minutes=4, seed=0)
    session.ticked({0})
    assert list(json.loads(kept.read_text())["cards"]) == [session.items[0].key]
    again = Schedule(kept)
    assert again.seen(session.items[0].key) and not again.notice
    assert {file.name for file in kept.parent.iterdir()} <= {"drill.json", ".drill.json.lock"}  # no half-written file
    one, two = Schedule(kept), Schedule(kept)  # two notebooks at the same time lose nothing
    one.review("a", Rating.Good)
    two.review("b", Rating.Again)
    assert set(Schedule(kept).cards) == {"a", "b", session.items[0].key}


BROKEN = ["{", "", "null", '{"cards": 3}', '{"cards": {"a": {}}}', b"\xff\xfe"]
NO_CARDS = [{"state": 9}, {"stability": -1}, {"difficulty": float("nan")}, {"due": "soon"}, {"last_review": None}]


def test_a_broken_file_is_kept_aside(kept):
    Schedule(kept).review("a", Rating.Good)
    card = json.loads(kept.read_text())["cards"]["a"]
    for n, content in enumerate(BROKEN + [json.dumps({"cards": {"a": {**card, **wrong}}}) for wrong in NO_CARDS], 1):
        kept.write_bytes(content if isinstance(content, bytes) else content.encode())
        before = kept.read_bytes()
        aside = kept.with_name(f"drill.json.broken{f'-{n}' * (n > 1)}")  # the earlier ones stay
        assert Schedule(kept).cards == {} and aside.read_bytes() == before, content
        Schedule(kept).review("a", Rating.Good)
        assert Schedule(kept).seen("a") and not Schedule(kept).notice


@pytest.mark.parametrize(("progress", "noticed"), [("file/progress.json", True), ("off", False)])
def test_where_nothing_can_be_written_the_drill_goes_on(tmp_path, monkeypatch, progress, noticed):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINISPEC_PROGRESS", progress if progress == "off" else str(tmp_path / progress))
    session = start(BANK, minutes=8, seed=0)
    session.ticked(())
    assert bool(session.schedule.notice) == noticed and session.schedule.seen(session.items[0].key)


# ---- the dialogue ---------------------------------------------------------------------------------------------------


def test_a_question_is_followed_up_before_the_rubric_is_shown():
    texts = [f"answer {i}" for i in range(len(Talk(KV).asks))]
    typed = [line for text in texts for line in (text, "")]
    script = Script("", *typed, "99", "all of it", "1 2 3 4 5", "320 KiB", "lots", "17")
    session = Session([Talk(KV), *(Figure(number, KV) for number in KV.numbers[:2])], 9, Schedule(None))
    assert play(drill(script, session), script) == 0 and not script.replies
    shown = [script.words.index(text[:40]) for text in (*Talk(KV).asks, KV.spoken)]
    assert shown == sorted(shown)
    for point in (*KV.L4, *KV.L6, *KV.raises, *KV.sinks, KV.follow_ups[0].short, KV.push_backs[1].reply):
        assert point in script.words
    result, first, second = session.results
    assert set(result.marks) == {0, 1, 2, 3, 4} and result.level == "L5" and result.texts == tuple(texts)
    assert first.right and not second.right


@pytest.mark.parametrize(("end", "code"), [(EOFError(), 0), (KeyboardInterrupt(), 130), ("q", 0)])
def test_s_skips_and_what_was_answered_is_kept_whatever_ends_it(kept, end, code):
    script = Script("", "s", *[""] * len(Talk(KV).asks), "1 2", end)
    session = Session([Talk(BANK["medusa"]), Talk(KV), Talk(BANK["gqa"])], 20, Schedule(kept))
    assert play(drill(script, session), script) == code and session.place == 2
    assert list(json.loads(kept.read_text())["cards"]) == ["kv-size"]


@pytest.mark.parametrize(
    ("typed", "options"),
    [("\naloud\n" + "\n" * 20, "--topics kv-cache --levels L4 --minutes 8"), ("17\n" * 20, "--daily"), ("", "")],
)
def test_the_command_reads_from_a_pipe(run, monkeypatch, kept, typed, options):
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    code, _, err = run("drill", *options.split(), "--seed", "3")
    assert (code, err) == (0, "") and kept.exists() == ("kv-cache" in options)
