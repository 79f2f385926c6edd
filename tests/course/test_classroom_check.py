"""What a check tells whom: the three outcomes, answers that misbehave, hints, and texts that never change."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from importlib import import_module

import numpy as np
import pytest
import torch

from minispec.course.classroom import draw, exercise, hint, reference
from minispec.course.classroom.exercise import Complaint, Exercise, distribution_of, law, token, tokens
from minispec.course.classroom.guard import TimeUp, time_limit
from minispec.course.classroom.show import differences, kind, same, show

checking = import_module("minispec.course.classroom.check")  # the package's `check` is the function
check, judge, Wrong, NotAttempted = checking.check, checking.judge, checking.Wrong, checking.NotAttempted


@pytest.fixture(autouse=True)
def no_progress(monkeypatch):
    monkeypatch.setenv("MINISPEC_PROGRESS", "off")
    monkeypatch.delenv("MINISPEC_STRICT", raising=False)


@pytest.fixture
def doubling(monkeypatch) -> Exercise:
    """Exercise 99.double: twice a law, [V] → [V]."""
    monkeypatch.setattr(exercise, "REGISTRY", dict(exercise.REGISTRY))
    made = exercise.exercise(
        "99.double", title="Twice", level="E", minutes=5, points=1, hints=("one", "two", "three"),
        code="minispec.verify", seconds=0.5, reference=lambda x: 2 * x,
        cases=[dict(x=law(0.5)), dict(x=law(0.25, 0.75))],
        picture=lambda answer: f"drawn: {answer(law(1.0)).tolist()}",
    )  # fmt: skip

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


def test_right_prints(doubling, capsys):
    check("99.double", lambda x: x + x)
    assert capsys.readouterr().out == "99.double: right, in 2 cases. Compare with minispec.verify.\n"


def test_not_attempted_prints(doubling, capsys):
    check("99.double", stub)
    assert capsys.readouterr().out.startswith("99.double: not attempted")


def test_not_attempted_raises_under_strict(doubling, monkeypatch, capsys):
    monkeypatch.setenv("MINISPEC_STRICT", "1")
    with pytest.raises(NotAttempted, match="not attempted"):
        check("99.double", stub)
    check("99.double", lambda x: x + x)  # a right answer stays right
    assert "right" in capsys.readouterr().out


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


def test_right_where_it_is_right_and_a_mutant_elsewhere_is_still_that_mutant(doubling):
    def unchanged_where_it_is_long(x):
        return 2 * x if len(x) == 1 else x

    doubling.cases = [*doubling.cases, dict(x=law(0.5, 0.25, 0.25)), dict(x=law(0.1, 0.2, 0.3, 0.4))]
    assert judge(doubling, unchanged_where_it_is_long).mutant == "nothing"
    doubling.cases, doubling.seen = doubling.cases[:2], {}  # one case of two is no more than a coincidence
    assert judge(doubling, unchanged_where_it_is_long).mutant is None


def test_the_text_is_the_same_every_time(doubling):
    noisy = [judge(doubling, lambda x: x + torch.rand(1)).text for _ in range(2)]
    before = torch.random.get_rng_state()
    judge(doubling, lambda x: x + torch.rand(1))
    assert noisy[0] == noisy[1]
    assert torch.equal(before, torch.random.get_rng_state())  # and the learner's own random numbers go on


def test_an_unknown_exercise_is_named():
    with pytest.raises(ValueError, match=r"06\.nothing.*06\.residual"):
        check("06.nothing", stub)


# ---- answers that misbehave -----------------------------------------------------------------------------------------


def loops(x):
    while True:
        pass


def sleeps(x):
    time.sleep(60)


def swallows(x):
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            pass


def raises(x):
    return x[7]


def in_place(x):
    x *= 2
    return x


def in_place_and_raises(x):
    x.zero_()
    raise RuntimeError


def leaves(x):
    sys.exit(3)


def half_done(x):
    if len(x) > 1:
        raise NotImplementedError
    return 2 * x


@pytest.mark.parametrize(
    ("answer", "key"),
    [
        (loops, "stopped after 0.5 seconds"),
        (sleeps, "stopped after 0.5 seconds"),
        (swallows, "stopped after 0.5 seconds"),
        (raises, "raised IndexError"),
        (in_place, "changes its argument x"),
        (in_place_and_raises, "changes its argument x"),
        (leaves, "raised SystemExit"),
        (half_done, "still raises NotImplementedError"),
        (lambda x: None, "nothing (None) where a tensor of shape (1,)"),
        (lambda x: (2 * x).repeat(2), "a tensor of shape (2,) where a tensor of shape (1,)"),
        (lambda x: "1.0", "a text where"),
        (lambda x: [2 * x, 0], "2 values where"),
        (lambda: 1, "raised TypeError"),
        (law(1.0), "your function itself"),
    ],
)
def test_trouble_gets_a_message_about_that(doubling, answer, key):
    judgement = judge(doubling, answer)
    assert judgement.outcome == "wrong" and judgement.mutant is None
    assert key in " ".join(judgement.text.split())
    assert "minispec/" not in judgement.text and "Traceback" not in judgement.text


def test_an_error_names_the_learners_own_line(doubling):
    text = " ".join(judge(doubling, raises).text.split())
    assert f"in line {raises.__code__.co_firstlineno + 1} of its cell: return x[7]" in text


@pytest.mark.parametrize("result", [np.array([1.0]), torch.tensor([1.0]), torch.tensor([1.0], requires_grad=True)])
def test_the_sort_of_array_does_not_matter(doubling, result):
    assert judge(doubling, lambda x: result if len(x) == 1 else 2 * x).outcome == "right"


def test_what_an_answer_prints_is_not_shown(doubling, capsys):
    check("99.double", lambda x: print("debug") or 2 * x)
    assert "debug" not in capsys.readouterr().out


def test_an_interrupt_is_the_learners_own(doubling):
    def interrupted(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge(doubling, interrupted)


@pytest.mark.parametrize("in_main_thread", [True, False])
def test_the_time_limit_works_in_any_thread(in_main_thread):
    caught = []

    def work():
        try:
            with time_limit(0.1):
                loops(None)
        except TimeUp:
            caught.append(True)
        with time_limit(30):
            caught.append(False)  # the next one starts afresh

    if in_main_thread:
        work()
    else:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(20)
    assert caught == [True, False]


# ---- hints, pictures, references ------------------------------------------------------------------------------------


def test_hints_come_one_by_one_and_stay(doubling, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "progress.json"))
    counts = []
    for _ in range(4):
        hint("99.double")
        counts.append(len(capsys.readouterr().out.splitlines()))
    assert counts == [1, 2, 3, 3]


def test_hints_advance_where_nothing_can_be_kept(doubling, capsys, monkeypatch):
    monkeypatch.setattr("minispec.course.classroom.progress._hints_of_this_process", {})
    hint("99.double")
    hint("99.double")
    assert capsys.readouterr().out.splitlines()[-1] == "99.double, hint 2 of 3: two"


def test_draw_shows_what_the_answer_does(doubling, capsys):
    draw("99.double", lambda x: 3 * x)
    draw("99.double", stub)
    draw("99.double", raises)
    drawn, nothing, broken = capsys.readouterr().out.splitlines()
    assert drawn == "drawn: [3.0]" and "nothing to show yet" in nothing and "IndexError" in broken
    with pytest.raises(ValueError, match="no picture"):
        draw("06.accept", stub)


def test_the_residual_is_drawn_as_bars():
    figure = draw("06.residual", reference("06.residual"))
    assert [bar.name for bar in figure.data] == ["target p", "draft q", "your residual"]
    assert sum(figure.data[2].y) == pytest.approx(1)


def test_the_reference_is_our_own_answer(doubling):
    assert reference("99.double") is doubling.reference


@pytest.mark.slow
def test_plain_python_works_too():
    """No kernel, no notebook packages: a check is a function."""
    script = "from minispec.course.classroom import check, reference; check('06.accept', reference('06.accept'))"
    loaded = "import sys; assert not {'IPython', 'plotly', 'nbformat'} & set(sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", f"{script}\n{loaded}"], capture_output=True, text=True, check=True
    ).stdout
    assert out.startswith("06.accept: right")


# ---- the parts that sets are made of --------------------------------------------------------------------------------


def test_random_numbers_may_be_compared_from_either_side():
    def program(random):
        u = random()
        return u < 0.25, torch.tensor(0.5) >= u, u > torch.tensor(0.75)

    assert distribution_of(program) == {
        (True, True, False): 0.25, (False, True, False): 0.25, (False, False, False): 0.25, (False, False, True): 0.25,
    }  # fmt: skip


@pytest.mark.parametrize("use", [float, lambda u: u * 2, lambda u: 1 - u, lambda u: torch.tensor(0.5) + u])
def test_random_numbers_may_not_be_looked_at(use):
    with pytest.raises((Complaint, TypeError)):
        distribution_of(lambda random: use(random()))


@pytest.mark.parametrize("own", [lambda: torch.rand(1), random.random])
def test_random_numbers_of_ones_own_are_noticed(own):
    with pytest.raises(Complaint, match="of its own"):
        distribution_of(lambda given: own() < 0.5)


def test_tokens_are_whole_numbers():
    assert token(torch.tensor(3)) == token(np.int64(3)) == 3
    assert tokens(torch.tensor([1, 2])) == tokens([1, np.int64(2)]) == (1, 2)
    for wrong in (1.0, None, True, "1", torch.tensor(1.0), [1]):
        with pytest.raises(Complaint):
            token(wrong)
    with pytest.raises(Complaint):
        tokens(7)


def test_same_forgives_rounding_and_nothing_else():
    assert same(law(0.1 + 0.2), law(0.3)) and same([1, 2.0], (1.0, 2)) and same(float("nan"), float("nan"))
    assert same({(1,): 0.5}, {(1,): 0.5, (2,): 0.0})  # laws: an outcome without probability may be left out
    assert not same({"a": 1}, {"a": 1, "b": None})  # records: everything counts
    assert not same(law(0.5), law(0.5, 0.5)) and not same(1, None) and not same(True, 1) and not same("1", 1)


def test_show_is_short_and_repeatable():
    assert show(law(0.1 + 0.2, -0.0)) == "[0.3, 0]"
    assert show({(0, 1): 0.5}) == "{(0, 1): 0.5}"
    assert "0x" not in show(object()) and "shape (7, 9)" in show(torch.zeros(7, 9))
    assert kind(np.zeros(3)) == kind(torch.zeros(3))


def test_differences_show_only_what_differs():
    lines = differences({(0,): 0.5, (1,): 0.5}, {(0,): 0.25, (1,): 0.5, (2,): 0.25})
    assert [line.split() for line in lines[1:]] == [["(0)", "0.5", "0.25"], ["(2)", "0", "0.25"]]
    assert len(differences({(i,): 0.01 for i in range(100)}, {})) < 15
    assert differences({"text": [1], "passes": 2}, {"text": [1], "passes": 3})[0].startswith("passes, expected: 2")
