"""What a check tells whom: the three outcomes, answers that misbehave, hints, and texts that never change."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from importlib import import_module

import pytest
import torch

from minispec_course.check import draw, hint, hints, progress
from minispec_course.check.attempt import TimeUp, time_limit
from minispec_course.exercises import exercise
from minispec_course.exercises.exercise import Complaint, Exercise, distribution_of, probs
from minispec_course.exercises.facts import Facts, everything
from minispec_course.exercises.show import same

checking = import_module("minispec_course.check.check")  # the package's `check` is the function
check, judge, Wrong, NotAttempted = checking.check, checking.judge, checking.Wrong, checking.NotAttempted


@pytest.fixture(autouse=True)
def no_progress(monkeypatch):
    monkeypatch.setenv("MINISPEC_PROGRESS", "off")
    monkeypatch.delenv("MINISPEC_STRICT", raising=False)


@pytest.fixture
def doubling(monkeypatch) -> Exercise:
    """Exercise 99.double: twice a distribution, [V] → [V]."""
    monkeypatch.setattr(exercise, "REGISTRY", dict(exercise.REGISTRY))
    facts = Facts("99.double", "Twice", "E", 5, 1, "minispec.verify", "", ["one", "two", "three"])
    monkeypatch.setitem(everything(), "99.double", facts)
    made = exercise.exercise(
        "99.double",
        seconds=0.5,
        reference=lambda x: 2 * x,
        cases=[dict(x=probs(0.5)), dict(x=probs(0.25, 0.75))],
        picture=lambda answer: f"drawn: {answer(probs(1.0)).tolist()}",
    )

    @made.mutant
    def squares(x):
        """You square it."""
        return x * x

    @made.mutant
    def nothing(x):
        """You return
        it unchanged."""
        return x

    return made


# ---- the three outcomes ---------------------------------------------------------------------------------------------


def stub(x):
    raise NotImplementedError("99.double")


def test_right_and_not_attempted_are_printed_and_strict_raises(doubling, monkeypatch, capsys):
    check("99.double", lambda x: x + x)
    said = capsys.readouterr().out
    assert said.startswith("99.double: right, in 2 examples.") and "minispec.verify" in said
    check("99.double", stub)
    assert capsys.readouterr().out.startswith("99.double: not attempted")
    monkeypatch.setenv("MINISPEC_STRICT", "1")
    with pytest.raises(NotAttempted, match="not attempted"):
        check("99.double", stub)
    check("99.double", lambda x: x + x)  # a right answer stays right


def test_wrong_raises_with_diagnosis_and_smallest_case(doubling, capsys):
    with pytest.raises(Wrong) as error:
        check("99.double", lambda x: x)
    text = str(error.value)
    assert "You return it unchanged." in text and "x = torch.tensor([0.5], dtype=torch.float64)" in text
    assert "expected: [1]" in text and "got:      [0.5]" in text
    assert error.value._render_traceback_() == text.splitlines()  # what a notebook shows instead of a traceback
    assert capsys.readouterr().out == ""


def test_the_mutant_must_explain_every_failure(doubling):
    def like_squares_once(x):
        return x * x if len(x) == 1 else 3 * x

    assert judge(doubling, lambda x: x**2).mutant == "squares"
    assert judge(doubling, like_squares_once).mutant is None


def test_the_text_is_the_same_every_time(doubling):
    noisy = [judge(doubling, lambda x: x + torch.rand(1)).text for _ in range(2)]
    before = torch.random.get_rng_state()
    judge(doubling, lambda x: x + torch.rand(1))
    assert noisy[0] == noisy[1]
    assert torch.equal(before, torch.random.get_rng_state())  # and the learner's own random numbers go on


# ---- answers that misbehave -----------------------------------------------------------------------------------------


def loops(x):
    while True:
        pass


def swallows(x):
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            pass


def raises(x):
    return x[7]


def in_place(x):
    x.zero_()
    raise RuntimeError


def leaves(x):
    sys.exit(3)


def bottomless(x):
    for _ in range(1000):
        x = [x]
    return x


def half_done(x):
    if len(x) > 1:
        raise NotImplementedError
    return 2 * x


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (loops, "stopped after 0.5 seconds"),
        (swallows, "stopped after 0.5 seconds"),
        (raises, f"in line {raises.__code__.co_firstlineno + 1} of its cell: return x[7]"),
        (in_place, "changes its argument x"),
        (leaves, "raised SystemExit"),
        (bottomless, "nested more than 20 deep"),
        (half_done, "still raises NotImplementedError"),
        (lambda x: None, "nothing (None) where a tensor of shape (1,)"),
        (lambda x: (2 * x).repeat(2), "a tensor of shape (2,) where a tensor of shape (1,)"),
        (lambda x: "1.0", "a text where"),
        (lambda x: [2 * x, 0], "2 values where"),
        (lambda: 1, "raised TypeError"),
        (probs(1.0), "your function itself"),
    ],
)
def test_an_answer_that_misbehaves_is_told_how(doubling, answer, words):
    judgement = judge(doubling, answer)
    assert judgement.outcome == "wrong" and judgement.mutant is None
    assert words in " ".join(judgement.text.split())
    assert "minispec/" not in judgement.text and "Traceback" not in judgement.text


def test_what_an_answer_prints_is_shown_once(doubling, capsys):
    check("99.double", lambda x: print("debug", len(x)) or 2 * x)
    said = capsys.readouterr().out
    assert said.count("debug") == 1 and "debug 1" in said  # the first example
    wrong = judge(doubling, lambda x: print("of", len(x)) or (2 * x if len(x) == 1 else x)).text
    assert "of 2" in wrong and "of 1" not in wrong  # the case that is shown


def test_an_answer_that_calls_what_is_asked_for_is_warned(capsys):
    from minispec.verify import accept_probability

    for source, warned in (("accept_probability(p, q, token)", True), ("min(1.0, float(p[token] / q[token]))", False)):
        space = {"accept_probability": accept_probability}
        exec(f"def accept(p, q, token): return {source}", space)
        check("06.accept", space["accept"])
        said = " ".join(capsys.readouterr().out.split())
        assert said.startswith("06.accept: right") and ("minispec grade" in said) == warned, source


def test_a_busy_machine_is_not_a_slow_answer():
    def stopped(clock) -> bool:
        try:
            with time_limit(0.3, clock):
                end = time.monotonic() + 0.9
                while time.monotonic() < end:
                    pass
        except TimeUp:
            return True
        return False

    assert stopped(time.monotonic)
    assert not stopped(lambda: time.monotonic() / 1000)  # of a process that gets a thousandth of a processor


# ---- hints, pictures, references ------------------------------------------------------------------------------------


def test_hints_come_one_by_one_printed_or_at_the_press_of_a_button(doubling, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "progress.json"))
    counts = []
    for _ in range(4):
        hint("99.double")
        counts.append(len(capsys.readouterr().out.splitlines()))
    assert counts == [1, 2, 3, 3]
    press, text = hints.button(exercise.find("06.accept")).children
    assert text.value == "" and "06.accept" not in progress.read()
    for count in (1, 2, 3):
        press.click()
        assert text.value.count("<p ") == count == progress.read()["06.accept"]["hints"]
    assert press.disabled


def test_draw_shows_what_the_answer_does(doubling, capsys):
    draw("99.double", lambda x: 3 * x)
    draw("99.double", stub)
    draw("99.double", raises)
    drawn, nothing, broken = capsys.readouterr().out.splitlines()
    assert drawn == "drawn: [3.0]" and "nothing to show yet" in nothing and "IndexError" in broken
    with pytest.raises(ValueError, match="no picture"):
        draw("06.accept", stub)


@pytest.mark.slow
def test_plain_python_works_too():
    """No kernel, no notebook packages: a check is a function. And nbformat starts without its 38 grammars."""
    script = "from minispec_course.check import check, reference; check('06.accept', reference('06.accept'))"
    loaded = "import sys; assert not {'IPython', 'plotly', 'nbformat'} & set(sys.modules)"
    notebooks = "import minispec_course.build.cells"
    out = subprocess.run(
        [sys.executable, "-c", f"{script}\n{loaded}\n{notebooks}"], capture_output=True, text=True, check=True
    ).stdout
    assert out.startswith("06.accept: right")


# ---- the parts that sets are made of --------------------------------------------------------------------------------


def test_random_numbers_may_be_compared_from_either_side_and_nothing_else():
    def program(random):
        u = random()
        return u < 0.25, torch.tensor(0.5) >= u, u > torch.tensor(0.75)

    outcomes = (True, True, False), (False, True, False), (False, False, False), (False, False, True)
    assert distribution_of(program) == dict.fromkeys(outcomes, 0.25)
    for use in (float, lambda u: u * 2, lambda u: 1 - u, lambda u: torch.tensor(0.5) + u):
        with pytest.raises((Complaint, TypeError)):
            distribution_of(lambda random, use=use: use(random()))
    for own in (lambda: torch.rand(1), random.random):
        with pytest.raises(Complaint, match="its own random numbers"):
            distribution_of(lambda given, own=own: own() < 0.5)
    with pytest.raises(Complaint, match="NaN"):  # a result that equals nothing would seem another with every call
        distribution_of(lambda random: (1, (0.5, float("nan")) if random() < 0.5 else (0.5, 0.5)))


def test_same_forgives_rounding_and_nothing_else():
    assert same(probs(0.1 + 0.2), probs(0.3)) and same([1, 2.0], (1.0, 2)) and same(float("nan"), float("nan"))
    assert same({(1,): 0.5}, {(1,): 0.5, (2,): 0.0})  # distributions: an outcome without probability may be left out
    assert not same({"a": 1}, {"a": 1, "b": None})  # records: everything counts
    assert not same(probs(0.5), probs(0.5, 0.5)) and not same(1, None) and not same(True, 1) and not same("1", 1)
