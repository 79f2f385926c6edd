"""Daily practice: choices whose wrong options are known mistakes, numbers that are new, and what is kept of it."""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta, timezone

import pytest
from interview_checks import Script
from mutants.patching import rewrite

from minispec_course.exercises.exercise import find
from minispec_course.interview import daily, load, practice, terminal
from minispec_course.interview.arithmetic import worked
from minispec_course.interview.drill import Computed, Said, Session, Talk
from minispec_course.interview.practice import (
    ASKED,
    FORMULAS,
    Choice,
    Chosen,
    Fresh,
    Record,
    choice,
    fresh_number,
    overview,
    practise,
)
from minispec_course.interview.schedule import Schedule
from minispec_course.interview.stated import judge

BANK = load()


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setenv("COLUMNS", "80")


def check_choices() -> None:
    """One right option, computed by the reference; each wrong one has the diagnosis of a mistake that computes it."""
    prompts = set()
    for seed in range(40):
        item = practice.choice(random.Random(seed))
        prompts.add(item.prompt)
        assert len(set(item.options)) == len(item.options) == 4
        assert [i for i, why in enumerate(item.why) if not why] == [item.right]
        known = {mutant.diagnosis for id in ASKED for mutant in find(id).mutants.values()}
        assert {why for why in item.why if why} <= known
        values = [float(option.replace(",", "")) for option in item.options]
        for value in values[: item.right] + values[item.right + 1 :]:
            assert abs(value / values[item.right] - 1) > 0.02
    assert len(prompts) > 30


def test_choices_are_known_mistakes_with_fresh_numbers():
    check_choices()
    assert choice(random.Random(3)) == choice(random.Random(3))


def test_the_right_option_is_what_the_formula_says():
    for seed in range(60):
        item = choice(random.Random(seed))
        if item.prompt.startswith("k = "):
            k, alpha = int(item.prompt[4]), float(item.prompt.split("probability ")[1].split(". ")[0])
            assert float(item.options[item.right]) == pytest.approx(sum(alpha**i for i in range(k + 1)), rel=0.01)


def test_the_check_sees_a_wrong_option_that_is_called_right(monkeypatch):
    rewrite(monkeypatch, practice, "choice", '[why for _, why in found].index("")', "0")
    with pytest.raises(AssertionError):
        check_choices()


def test_fresh_numbers_are_computed_and_new():
    for topic, *_ in FORMULAS:
        assert topic in {question.topic for question in BANK.values()}
    dice = random.Random(0)
    items = [fresh_number(dice) for _ in range(60)]
    assert len({item.number.name for item in items}) > 40
    for item in items:
        assert item.number.matches(item.number.computed) and not item.number.matches(1.1 * item.number.computed + 1)
        assert "{" not in item.number.name and worked(item.number).count("=") <= 1 and item.key is None


def test_ten_minutes_give_ten_items():
    for seed in range(10):
        session = practise(BANK, seed, Schedule(None))
        assert session.minutes == 10 and len(session.items) >= 10
        assert sum(item.minutes for item in session.items) <= 10
        assert {type(item) for item in session.items} == {Choice, Fresh}
        assert all(len(item.asks[0].split()) <= 45 for item in session.items)


def test_what_is_due_comes_first():
    noon = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
    schedule = Schedule(None, now=lambda: noon)
    question = BANK["kv-size"]
    key = f"{question.id}: {question.numbers[0].expression}"
    schedule.review(key, practice.Rating.Again)
    schedule.now = lambda: noon + timedelta(days=30)
    first, *rest = practise(BANK, 0, schedule).items
    assert first.key == key and len(rest) >= 9


def test_a_wrong_choice_is_answered_with_its_diagnosis():
    item = choice(random.Random(1))
    wrong = (item.right + 1) % 4
    script = Script("z", "abcd"[wrong])
    session = Session([item], 10, Schedule(None))
    terminal.drill(session, script.console, BANK)
    assert " ".join(item.why[wrong].split()) in script.words and "Give a letter" in script.words
    assert "0 of 1 right" in script.words and "Streak: 1 day." in script.words and max(map(len, script.lines)) <= 80


def test_the_streak_counts_days_in_a_row(tmp_path):
    today = [date(2026, 3, 1)]
    record = Record(tmp_path / "daily.json", today=lambda: today[0])
    assert record.streak == 0
    right = Chosen(choice(random.Random(0)), 0)
    for day in (1, 2, 3):
        today[0] = date(2026, 3, day)
        record.note([right])
    assert record.streak == 3
    today[0] = date(2026, 3, 4)
    assert record.streak == 3  # today is still open
    today[0] = date(2026, 3, 6)
    assert record.streak == 0
    again = Record(tmp_path / "daily.json", today=lambda: date(2026, 3, 3))
    assert again.streak == 3 and again.topics == record.topics


def test_readiness_says_what_is_missing(tmp_path):
    record = Record(tmp_path / "daily.json")
    question = BANK["kv-size"]
    record.note([Said(Talk(question), frozenset(range(len(question.L4) + len(question.L5))))])
    found = record.readiness(BANK)
    assert [found[level][0] for level in ("L4", "L5", "L6")] == [1, 1, 0]
    assert question.topic not in found["L4"][2] and len(found["L6"][2]) == 3
    record.reach("expected-tokens", 3)
    assert Record(tmp_path / "daily.json").readiness(BANK)["L6"][0] == 1
    lines = "\n".join(overview(record, Schedule(None), BANK))
    assert f"L4: 2 of {len(BANK)}" in lines


def test_weakest_topics_are_drawn(tmp_path):
    record = Record(tmp_path / "daily.json")
    item = fresh_number(random.Random(0))
    record.note([Computed(item, judge(item.number, text)) for text in (str(item.number.computed), "", "-1", "-1")])
    [line] = [line for line in overview(record, Schedule(None), BANK) if item.topic in line and "of 4" in line]
    assert line.count("█") == 5 and line.count("░") == 15


@pytest.mark.parametrize("text", ["", "[]", '{"days": ["x"]}', '{"topics": {"a": 3}}'])
def test_a_record_that_makes_no_sense_is_left_alone(tmp_path, text):
    (tmp_path / "daily.json").write_text(text)
    record = Record(tmp_path / "daily.json")
    record.note([Chosen(choice(random.Random(0)), 0)])
    assert (tmp_path / "daily.json").read_text() == text


def test_in_a_notebook_a_button_starts_it(tmp_path):
    widget = daily(seed=2)
    assert widget.sitting is None
    widget.begin()
    sitting = widget.sitting
    for item in sitting.session.items:
        sitting._field.value = item.right if isinstance(item, Choice) else str(item.number.computed)
        sitting._next.click()
        assert sitting.session.results[-1].right
        sitting._next.click()
    assert "Streak: 1 day" in sitting._body.children[0].value and (tmp_path / "daily.json").exists()


def test_enter_submits_a_number():
    from minispec_course.interview.widget import Sitting

    item = fresh_number(random.Random(0))
    sitting = Sitting(Session([item], 10, Schedule(None)))
    sitting._field.enter({"entered": str(item.number.computed)})
    assert sitting.session.results[0].right and sitting._next.description == "next"


def test_enter_submits_an_answer_once():
    from minispec_course.interview.widget import Sitting

    talk = next(Talk(question) for question in BANK.values() if question.follow_ups)
    sitting = Sitting(Session([talk], 10, Schedule(None)))
    field, step = sitting._field, sitting._focus.step
    for content in ({"entered": "two\nlines"}, {"entered": "again"}, {"entered": 3}, "nonsense"):
        field.enter(content)
    assert sitting._texts == ["two\nlines"] and sitting._field is not field and sitting._focus.step == step + 1
