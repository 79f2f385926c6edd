"""The drill: what is asked when, what an answer is worth, what is kept. And the widget, driven without a browser."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path

import pytest
from fsrs import Rating
from interview_checks import ticks
from mutants.patching import rewrite

from minispec_course import interview
from minispec_course.interview import LEVELS, load, start, stated
from minispec_course.interview.arithmetic import worked
from minispec_course.interview.drill import (
    FOLLOW_UP,
    PUSH_BACK,
    RAISES,
    SINKS,
    Computed,
    Figure,
    Said,
    Session,
    Talk,
    choose,
)
from minispec_course.interview.question import Number
from minispec_course.interview.schedule import Schedule
from minispec_course.interview.stated import judge
from minispec_course.interview.summary import explained, reading, summary, topic_levels, weak
from minispec_course.interview.widget import Drill, Sitting

BANK = load()
KV = BANK["kv-size"]
DAY = timedelta(days=1)


class Clock:
    """A schedule's `now` that a test moves."""

    def __init__(self):
        self.time = datetime(2030, 1, 1, tzinfo=timezone.utc)

    def __call__(self) -> datetime:
        return self.time


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "deep/progress.json"))
    return tmp_path / "deep/drill.json"


# ---------------------------------------------------------------- what an answer is worth


@pytest.mark.parametrize(
    ("groups", "level", "rating"),
    [
        ((), "below L4", Rating.Again),
        (("L4",), "L4", Rating.Hard),
        (("L5",), "L5", Rating.Hard),  # depth shows the basics
        (("L6",), "L4", Rating.Hard),  # but it does not stand in for a must-have point
        (("L4", "L6"), "L4", Rating.Hard),
        (("L4", "L5"), "L5", Rating.Hard),
        (("L4", "L5", "L6"), "L6", Rating.Good),
        (("L4", "L5", "L6", FOLLOW_UP, PUSH_BACK, RAISES), "L6", Rating.Easy),
        (("L4", "L5", "L6", FOLLOW_UP, RAISES), "L6", Rating.Good),  # a push-back was not answered
        (("L4", "L5", "L6", RAISES), "L6", Rating.Good),
        (("L4", "L5", "L6", FOLLOW_UP, PUSH_BACK, RAISES, SINKS), "L4", Rating.Hard),  # two sinking tells, two levels
        (("L4", SINKS), "below L4", Rating.Again),
    ],
)
def test_levels_and_ratings(groups, level, rating):
    talk = Talk(KV)
    more = {i for i, box in enumerate(talk.rubric) if box.group == SINKS and box.text in KV.sinks[2:]}
    said = Said(talk, frozenset(ticks(talk, *groups) - more))
    assert (said.level, said.rating) == (level, rating)


def test_two_thirds_of_a_level_are_enough():
    talk = Talk(KV)
    assert len(KV.L6) == 3
    assert Said(talk, frozenset(ticks(talk, "L4", "L5") | ticks(talk, "L6", all_but=1))).level == "L6"
    assert Said(talk, frozenset(ticks(talk, "L4", "L5") | ticks(talk, "L6", all_but=2))).level == "L5"


def test_only_the_levels_asked_for_are_on_the_rubric():
    talk = Talk(KV, ("L5",))
    assert {box.group for box in talk.rubric} == {"L5", FOLLOW_UP, PUSH_BACK, RAISES, SINKS}
    assert Said(talk, frozenset(ticks(talk, "L5"))).rating == Rating.Good  # what is below is taken as known
    assert Said(talk, frozenset()).level == "below L5"
    assert talk.asks == [KV.question, *(f.question for f in KV.follow_ups), *(p.says for p in KV.push_backs)]


def test_a_box_knows_whether_it_was_ticked():
    talk = Talk(KV)
    said = Said(talk, frozenset(ticks(talk, RAISES)))
    assert said.boxes(RAISES) == list(KV.raises) and said.boxes(RAISES, ticked=False) == []
    assert said.boxes("L4", ticked=False) == list(KV.L4)


def figure_of(value: float, unit: str = "") -> Figure:
    return Figure(Number("a number", repr(value), value, 0.0, unit=unit))


def check_numbers_as_people_type_them() -> None:
    """The drill reads what the mock interview reads (stated.py)."""
    for value, unit, *texts in (
        (2.77, "", "2.77", "2,77", "about 2.77", "1 + 0.7 + 0.49 + 0.343 + 0.24 = 2.77", "2.77, I think"),
        (1000, "", "1,000", "1 000", "1000", "2*500", "1e3", "10^3", "10³ is 1000"),
        (1000.5, "", "1.000,5", "1,000.5"),
        (1e9, "", "1e9", "1e+9", "1 billion", "1,000,000,000", "10**9"),
        (5.2, "×", "about 5.2×", "5.2 x", "≈ 5.2"),
        (12, "GB", "12 GB", "12", "12,000 MB", "0.012 TB", "12 GiB"),
        (320, "KiB", "320 KiB", "2*80*8*128*2/1024"),
        (3, "ms", "3 ms", "0.003 s", "3 ms or 0.003 s", "0.003 s, or 3 ms", "3000 µs"),
        (-4, "", "−4", "minus 4"),
        (0.45, "", "45 %", "0.45"),
        (45, "%", "45 %", "45", "0.45"),
    ):
        for text in texts:
            session = Session([figure_of(value, unit)], 10)
            assert session.asks_again(text) == "" and session.computed(text).right, (value, text)
    for value, unit, *texts in (
        (1000, "", "1,00", "100", "1e4"),
        (12, "GB", "12 MB", "12 KiB"),
        (3, "ms", "3 s", "0.003 ms", "4 ms"),
        (320, "KiB", "320 GB"),
        (5.2, "×", "5.9×"),
    ):
        for text in texts:
            session = Session([figure_of(value, unit)], 10)
            assert session.asks_again(text) == "" and not session.computed(text).right, (value, text)
    for text in (
        "x",
        "no idea",
        "1/0",
        "9**9**9**9",
        "H200.bandwidth",
        "3 ms or 4 ms",
        "4 ms or 3 ms",
        "between 2 and 3",
    ):
        assert Session([figure_of(3, "ms")], 10).asks_again(text), text
    silent = Session([figure_of(3)], 10)
    assert silent.asks_again(" ") == "" and not silent.computed("").right  # no reply is an answer: not known


def test_numbers_as_people_type_them():
    check_numbers_as_people_type_them()


@pytest.mark.parametrize(
    ("owner", "name", "old", "new"),
    [
        (stated, "_digits", r'"[1-9]\d{0,2}(\.\d{3})+,"', '"never"'),
        (stated, "judge", "(same or not value.either)", "not value.either"),
        (stated.Value, "readings", "if kind != other or 0.9 < much / wanted < 1.1:", "if True:"),
        (Session, "computed", "judge(self.current.number, text)", "judge(self.current.number, text[:3])"),
        (Session, "asks_again", "if text.strip() else", "if False else"),
    ],
)
def test_the_check_of_numbers_sees_what_it_is_for(owner, name, old, new, monkeypatch):
    rewrite(monkeypatch, owner, name, old, new)
    monkeypatch.setattr(sys.modules["minispec_course.interview.drill"], "judge", stated.judge)
    with pytest.raises((AssertionError, ValueError)):
        check_numbers_as_people_type_them()


def test_in_a_notebook_a_number_that_cannot_be_read_is_asked_for_again():
    sitting = Sitting(Session([figure_of(3, "ms")], 10))
    sitting._field.value = "3 or 4, who knows"
    sitting._compute()
    assert sitting.session.results == [] and "final number" in sitting._body.children[1].value
    sitting._field.value = "3"
    sitting._compute()
    assert sitting.session.results[0].right


def test_numbers_are_graded_with_tolerance():
    [number] = [n for n in KV.numbers if n.value == 320 and n.unit == "KiB"]
    figure = Figure(number, KV)
    right = {text: Computed(figure, judge(number, text)).right for text in ("320", "330 KiB", "305", "340", "300", "")}
    assert right == {"320": True, "330 KiB": True, "305": True, "340": False, "300": False, "": False}
    assert [Computed(figure, judge(number, text)).rating for text in ("320", "")] == [Rating.Good, Rating.Again]


def test_the_formula_is_shown_with_its_numbers():
    [number] = [n for n in KV.numbers if n.value == 320 and n.unit == "KiB"]
    first, formula = explained(number)
    assert first == "2 · 80 · 8 · 128 · 2 / 1,024 = 320 KiB"  # arithmetic, not a call
    assert formula.startswith("kv_bytes_per_token: ") and "2 (key and value)" in formula
    for question in BANK.values():
        assert all(explained(number) for number in question.numbers)


# ---------------------------------------------------------------- what is asked


def test_a_drill_fits_its_minutes_and_the_seed_decides():
    assert choose(BANK, Schedule(None), 20, 1) == choose(BANK, Schedule(None), 20, 1)
    assert choose(BANK, Schedule(None), 20, 1) != choose(BANK, Schedule(None), 20, 2)
    for seed in range(5):
        items = choose(BANK, Schedule(None), 20, seed)
        assert 16 < sum(item.minutes for item in items) <= 20
        assert len({item.key for item in items}) == len(items)
    assert len(choose(BANK, Schedule(None), 0.5, 0)) == 1  # something can always be asked


def test_a_new_question_brings_a_number_along():
    items = choose(BANK, Schedule(None), 200, 0, ["speed"])
    for before, item in pairwise(items):
        if isinstance(item, Figure):
            assert isinstance(before, Talk) and before.question is item.question


def test_topics_and_levels_are_kept_to():
    items = choose(BANK, Schedule(None), 30, 0, ["paging", "batching"], ["L6", "L4"])
    assert {item.question.topic for item in items} == {"paging", "batching"}
    assert all(item.levels == ("L4", "L6") for item in items if isinstance(item, Talk))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (dict(wanted=["cooking"]), "topics='cooking'.*kv-cache"),
        (dict(levels=["L7"]), "levels='L7'.*L4, L5, L6"),
        (dict(levels=[]), "at least one"),
        (dict(minutes=0), "minutes=0"),
        (dict(minutes=True), "minutes=True"),
        (dict(minutes=float("nan")), "minutes=nan"),
        (dict(minutes="5"), "minutes='5'"),
    ],
)
def test_a_wrong_choice_is_named(options, says):
    with pytest.raises(ValueError, match=says):
        choose(BANK, Schedule(None), **{"minutes": 20, "seed": 0, **options})


# ---------------------------------------------------------------- when it comes back


def test_the_worse_the_answer_the_sooner_it_comes_back():
    clock = Clock()
    schedule = Schedule(None, clock)
    days = [(schedule.review(f"q{int(r)}", r) - clock()) / DAY for r in (Rating.Again, Rating.Good, Rating.Easy)]
    assert days == sorted(set(days)) and days[0] == 1
    for key, rating in (("weak", Rating.Again), ("strong", Rating.Good)):
        clock.time = datetime(2030, 1, 1, tzinfo=timezone.utc)
        waits = []
        for _ in range(4):
            waits.append((schedule.review(key, rating) - clock()) / DAY)
            clock.time = schedule.due(key)
        assert max(waits) <= 1 if key == "weak" else waits == sorted(waits) and waits[-1] > 30


def test_due_questions_come_first_the_shakiest_before_the_others():
    clock = Clock()
    schedule = Schedule(None, clock)
    schedule.review("kv-size", Rating.Good)
    schedule.review("expected-tokens", Rating.Again)
    schedule.review("medusa", Rating.Easy)
    first = choose(BANK, schedule, 12, 0)
    assert not {"kv-size", "expected-tokens", "medusa"} & {item.key for item in first}  # none is due yet
    clock.time += 3 * DAY
    keys = [item.key for item in choose(BANK, schedule, 12, 0)]
    assert keys[:2] == ["expected-tokens", "kv-size"] and "medusa" not in keys


def test_a_wrong_number_comes_back_by_itself():
    clock = Clock()
    schedule = Schedule(None, clock)
    session = Session([Figure(KV.numbers[0], KV)], 5, schedule)
    session.computed("17")
    clock.time += DAY
    first = choose(BANK, schedule, 8, 0)[0]
    assert isinstance(first, Figure) and first.number is KV.numbers[0]


def test_new_questions_of_weak_topics_come_sooner():
    schedule = Schedule(None, Clock())
    for question in [q for q in BANK.values() if q.topic == "scale"][:3]:
        schedule.review(question.id, Rating.Again)
    for question in [q for q in BANK.values() if q.topic == "design"][:3]:
        schedule.review(question.id, Rating.Easy)
    order = [item.question.topic for item in choose(BANK, schedule, 10_000, 3) if not schedule.seen(item.key)]
    assert order.index("scale") == 0 and order.index("design") > max(i for i, t in enumerate(order) if t == "speed")


def test_everything_is_asked_if_there_is_time():
    items = choose(BANK, Schedule(None), 10_000, 0)
    assert {i.key for i in items if isinstance(i, Talk)} == set(BANK)


# ---------------------------------------------------------------- the file


def test_answers_are_kept_at_once_and_found_again(kept):
    session = start(BANK, ["kv-cache"], minutes=4, seed=0)
    session.ticked({0})
    assert list(json.loads(kept.read_text())["cards"]) == [session.items[0].key]
    again = Schedule(kept)
    assert again.seen(session.items[0].key) and not again.notice
    assert {file.name for file in kept.parent.iterdir()} <= {"drill.json", ".drill.json.lock"}  # no half-written file


def test_two_notebooks_at_once_lose_nothing(kept):
    one, two = Schedule(kept), Schedule(kept)
    one.review("a", Rating.Good)
    two.review("b", Rating.Again)
    assert set(Schedule(kept).cards) == {"a", "b"}


CARD = {
    "card_id": 0,
    "state": 2,
    "step": None,
    "stability": 2.3,
    "difficulty": 2.1,
    "due": "2030-01-03T00:00:00+00:00",
    "last_review": "2030-01-01T00:00:00+00:00",
}


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "",
        "[]",
        "null",
        '{"cards": 3}',
        '{"cards": {"a": 1}}',
        '{"cards": {"a": {}}}',
        b"\xff\xfe",
        *(
            json.dumps({"cards": {"a": {**CARD, **wrong}}})
            for wrong in (
                {"state": 9},
                {"state": 3},
                {"stability": None},
                {"stability": -1},
                {"difficulty": float("nan")},
                {"due": "soon"},
                {"due": "2030-01-03T00:00:00"},
                {"last_review": None},
            )
        ),
    ],
)
def test_a_broken_file_is_kept_aside_and_said(kept, content):
    kept.parent.mkdir()
    content = content if isinstance(content, bytes) else content.encode()
    kept.write_bytes(content)
    schedule = Schedule(kept)
    assert schedule.cards == {} and "drill.json.broken" in schedule.notice
    assert kept.with_name("drill.json.broken").read_bytes() == content
    schedule.review("a", Rating.Good)
    assert Schedule(kept).seen("a") and not Schedule(kept).notice
    kept.write_bytes(content)
    assert "drill.json.broken-2" in Schedule(kept).notice  # the first one stays
    assert kept.with_name("drill.json.broken").read_bytes() == content


def test_a_good_file_is_left_alone(kept):
    kept.parent.mkdir()
    kept.write_text(json.dumps({"version": 1, "cards": {"a": CARD}}))
    assert Schedule(kept).cards["a"].stability == 2.3 and not list(kept.parent.glob("*.broken"))


def test_where_nothing_can_be_written_the_drill_goes_on(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "file/progress.json"))
    session = start(BANK, minutes=8, seed=0)
    session.ticked(())
    assert "not kept" in session.schedule.notice and session.schedule.seen(session.items[0].key)
    once = Schedule(None)
    once.review("a", Rating.Again)
    assert session.schedule.cards[session.items[0].key].stability == once.cards["a"].stability  # noted, and not twice
    monkeypatch.setenv("MINISPEC_PROGRESS", "off")
    session = start(BANK, minutes=4, seed=0)
    session.ticked(())
    assert session.schedule.file is None and not session.schedule.notice


# ---------------------------------------------------------------- a sitting and its summary


def test_the_time_ends_a_drill_between_two_questions_and_never_in_one():
    seconds = [0.0]
    items = [Talk(BANK[id]) for id in ("kv-size", "medusa", "eagle")]
    session = Session(items, 5, clock=lambda: seconds[0])
    session.ticked(())
    seconds[0] = 600
    assert session.current is items[1]  # it was asked in time
    session.ticked(())
    assert session.current is None and len(session.results) == 2 and session.times == [0, 10]


def test_what_is_skipped_is_not_held_against_anybody():
    session = start(BANK, minutes=8, seed=0)
    key = session.current.key
    session.skip()
    assert not session.results and not session.schedule.seen(key) and "Nothing was answered" in summary(session)[0]


def test_the_summary_names_levels_tells_and_what_to_read():
    talks = [Talk(BANK[id]) for id in ("kv-size", "gqa", "kv-rewind", "medusa")]
    session = Session([*talks, Figure(KV.numbers[0], KV)], 60)
    session.ticked(ticks(talks[0], "L4", "L5", "L6"))
    session.ticked(ticks(talks[1], "L4", RAISES))
    session.ticked(())
    session.ticked(ticks(talks[3], "L4", "L5", "L6", SINKS))
    session.computed("1")
    assert topic_levels(session) == {
        "kv-cache": "L4",
        "heads-and-trees": Said(talks[3], session.results[3].ticked).level,
    }
    first, *others = [question.id for question in weak(session)]
    assert first == "kv-rewind" and "kv-size" in others  # for its number
    text = "\n".join(summary(session))
    assert "4 questions and 1 number" in text and "- kv-cache: L4" in text and "0 of 1 right" in text
    assert BANK["gqa"].raises[0] in text and BANK["medusa"].sinks[0] in text
    assert BANK["kv-rewind"].function in text and any(line.startswith("lesson 05") for line in reading(session))
    perfect = Session([talks[0]], 60)
    perfect.ticked(ticks(talks[0], *LEVELS))
    assert weak(perfect) == [] and "Nothing to read up on" in "\n".join(summary(perfect))


# ---------------------------------------------------------------- in a notebook


def test_a_sitting_leads_from_question_to_rubric_to_summary():
    talk, number = Talk(KV), KV.numbers[0]
    sitting = Sitting(Session([talk, Figure(number, KV)], 20, Schedule(None)))
    sitting._field.value = "two times <layers>"
    for _ in talk.asks:
        assert sitting._next.description == "answered"
        sitting._next.click()
    assert len(sitting._boxes) == len(talk.rubric) and sitting._next.description == "grade"
    shown = "".join(
        part.value for part in sitting._body.children if hasattr(part, "value") and isinstance(part.value, str)
    )
    assert "two times &lt;layers&gt;" in shown
    for i in ticks(talk, "L4", "L5"):
        sitting._boxes[i].value = True
    sitting._next.click()
    [said] = sitting.session.results
    assert said.level == "L5" and said.texts == ("two times <layers>",) and all(box.disabled for box in sitting._boxes)
    sitting._next.click()
    sitting._field.value = str(number.computed)
    sitting._next.click()
    assert sitting.session.results[1].right and worked(number) in sitting._body.children[-1].value
    sitting._next.click()
    assert "kv-cache: L5" in sitting._body.children[0].value and sitting._next.disabled


def test_a_sitting_can_be_skipped_through_and_ended():
    sitting = Sitting(start(BANK, minutes=20, seed=0))
    sitting._skip.click()
    assert sitting.session.place == 1 and not sitting.session.results
    sitting._end.click()
    assert "Nothing was answered" in sitting._body.children[0].value


def test_the_choices_of_the_widget_reach_the_drill():
    drill = interview.drill(topics=["speed"], minutes=9, seed=0)
    assert isinstance(drill, Drill)
    drill._topics.value = ("paging",)
    drill._levels["L6"].value = False
    drill.begin()
    items = drill.sitting.session.items
    assert {item.question.topic for item in items} == {"paging"} and items[0].levels == ("L4", "L5")
    with pytest.raises(ValueError, match="cooking"):
        interview.drill(topics=["cooking"])


def test_a_drill_without_a_level_says_what_is_missing():
    drill = interview.drill()
    for box in drill._levels.values():
        box.value = False
    drill.begin()
    assert drill.sitting is None and "at least one" in drill._said.value


def test_a_broken_file_is_said_in_the_notebook(kept):
    kept.parent.mkdir()
    kept.write_text("{")
    drill = interview.drill(seed=0)
    drill.begin()
    assert "drill.json.broken" in drill.sitting._head.value


def test_the_name_of_the_drill_stays_a_function():
    import minispec_course.interview.drill  # noqa: F401  (the module of the same name)

    assert callable(interview.drill) and callable(interview.mock)


def test_a_question_without_follow_ups_can_be_drilled():
    session = Session([Talk(replace(KV, follow_ups=()))], 4)
    assert session.current.asks[0] == KV.question and session.ticked(()).level == "below L4"


@pytest.mark.slow
def test_the_core_does_not_know_the_interview():
    probe = (
        "import sys, minispec; print([n for n in sys.modules if n.startswith(('minispec_course.interview', 'fsrs'))])"
    )
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True).stdout.strip() == "[]"
