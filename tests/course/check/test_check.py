"""What a check tells whom: the three outcomes, answers that misbehave, hints, and texts that never change."""

from __future__ import annotations

import inspect
import random
import subprocess
import sys
import threading
import time
from importlib import import_module

import numpy as np
import pytest
import torch

from minispec_course.check import draw, hint, reference
from minispec_course.check.attempt import TimeUp, time_limit
from minispec_course.exercises import exercise
from minispec_course.exercises.exercise import Complaint, Exercise, distribution_of, probs, token, tokens
from minispec_course.exercises.show import differences, kind, same, show

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
    facts = dict(title="Twice", level="E", minutes=5, points=1, hints=("one", "two", "three"), seconds=0.5)
    made = exercise.exercise(
        "99.double",
        **facts,
        code="minispec.verify",
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


def test_right_where_it_is_right_and_a_mutant_elsewhere_is_still_that_mutant(doubling):
    def unchanged_where_it_is_long(x):
        return 2 * x if len(x) == 1 else x

    doubling.cases = [*doubling.cases, dict(x=probs(0.5, 0.25, 0.25)), dict(x=probs(0.1, 0.2, 0.3, 0.4))]
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


def half_done(x):
    if len(x) > 1:
        raise NotImplementedError
    return 2 * x


def test_trouble_gets_a_message_about_that(doubling):
    troubles = [
        (loops, "stopped after 0.5 seconds"),
        (swallows, "stopped after 0.5 seconds"),
        (raises, "raised IndexError"),
        (in_place, "changes its argument x"),
        (leaves, "raised SystemExit"),
        (half_done, "still raises NotImplementedError"),
        (lambda x: None, "nothing (None) where a tensor of shape (1,)"),
        (lambda x: (2 * x).repeat(2), "a tensor of shape (2,) where a tensor of shape (1,)"),
        (lambda x: "1.0", "a text where"),
        (lambda x: [2 * x, 0], "2 values where"),
        (lambda: 1, "raised TypeError"),
        (probs(1.0), "your function itself"),
    ]
    for answer, key in troubles:
        judgement = judge(doubling, answer)
        assert judgement.outcome == "wrong" and judgement.mutant is None, key
        assert key in " ".join(judgement.text.split())
        assert "minispec/" not in judgement.text and "Traceback" not in judgement.text, key


def test_an_error_names_the_learners_own_line(doubling):
    text = " ".join(judge(doubling, raises).text.split())
    assert f"in line {raises.__code__.co_firstlineno + 1} of its cell: return x[7]" in text


def test_the_sort_of_array_does_not_matter(doubling):
    for result in (np.array([1.0]), torch.tensor([1.0]), torch.tensor([1.0], requires_grad=True)):
        assert judge(doubling, lambda x, result=result: result if len(x) == 1 else 2 * x).outcome == "right"


def test_what_an_answer_prints_is_shown_after_the_verdict(doubling, capsys):
    check("99.double", lambda x: print("debug", len(x)) or 2 * x)
    said = capsys.readouterr().out
    assert said.startswith("99.double: right") and said.count("debug") == 1 and "debug 1" in said  # the first example
    wrong = judge(doubling, lambda x: print("of", len(x)) or (2 * x if len(x) == 1 else x)).text
    assert "    of 2\n" in wrong and "of 1" not in wrong  # the case that is shown
    draw("99.double", lambda x: print("debug") or 2 * x)
    assert capsys.readouterr().out.splitlines()[-2:] == ["    debug", "drawn: [2.0]"]


@pytest.mark.slow
def test_a_flood_of_prints_is_cut(doubling):
    def floods(x):
        for i in range(100_000):
            print(i)
        return 2 * x

    text = judge(doubling, floods).text
    assert "    19\n" in text and "    20\n" not in text and "lines more" in text and len(text) < 2000


def forgets_to_delete(x):
    doubled = 2 * x
    raise NotImplementedError("99.double")
    return doubled


def only_a_stub(x):
    """Words."""
    ...
    raise NotImplementedError("99.double")


def test_the_stubs_own_line_below_a_solution_is_named(doubling):
    judgement = judge(doubling, forgets_to_delete)
    assert judgement.outcome == "wrong" and "raise NotImplementedError" in judgement.text
    line = forgets_to_delete.__code__.co_firstlineno + 2
    assert f"in line {line} of its cell" in " ".join(judgement.text.split())
    assert judge(doubling, only_a_stub).outcome == "not attempted"


def test_an_answer_that_calls_what_is_asked_for_is_warned(capsys):
    from minispec import verify
    from minispec.verify import accept_probability, residual

    names = {"accept_probability": accept_probability, "residual": residual, "verify": verify, "reference": reference}
    borrowers = [
        "def accept(p, q, token): return accept_probability(p, q, token)",
        "def accept(p, q, token): return verify.accept_probability(p, q, token)",
        "def accept(p, q, token):\n    from minispec.verify import accept_probability as f\n    return f(p, q, token)",
        "def accept(p, q, token): return (lambda: accept_probability(p, q, token))()",
        'def accept(p, q, token): return reference("06.accept")(p, q, token)',
    ]
    own = [
        "def accept(p, q, token): return min(1.0, float(p[token] / q[token]))",
        "def accept_probability(p, q, token): return min(1.0, float(p[token] / q[token]))\n"
        "def accept(p, q, token): return accept_probability(p, q, token)",
    ]
    for source in borrowers + own:
        space = dict(names)
        exec(source, space)
        check("06.accept", space["accept"])
        said = " ".join(capsys.readouterr().out.split())
        assert said.startswith("06.accept: right") and ("minispec grade" in said) == (source in borrowers), source
    space = dict(names)
    exec(own[0].replace("accept(p", "my(p"), space)
    assert checking.borrowed(exercise.find("06.sampler"), space["my"]) is None


def test_an_interrupt_is_the_learners_own(doubling):
    def interrupted(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge(doubling, interrupted)


def test_the_time_limit_works_in_any_thread():
    caught = []

    def work():
        try:
            with time_limit(0.1):
                loops(None)
        except TimeUp:
            caught.append(True)
        with time_limit(30):
            caught.append(False)  # the next one starts afresh

    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    assert caught == [True, False] * 2


# ---- hints, pictures, references ------------------------------------------------------------------------------------


def test_hints_come_one_by_one_and_stay(doubling, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "progress.json"))
    counts = []
    for _ in range(4):
        hint("99.double")
        counts.append(len(capsys.readouterr().out.splitlines()))
    assert counts == [1, 2, 3, 3]


def test_hints_advance_where_nothing_can_be_kept(doubling, capsys):
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
    assert [bar.name for bar in figure.data] == ["target p", "draft q", "your residual", "emitted with it"]
    assert sum(figure.data[2].y) == pytest.approx(1)
    assert figure.data[3].y == figure.data[0].y and "equal to p" in figure.layout.title.text  # the consequence
    biased = draw("06.residual", lambda p, q: p)
    assert biased.data[3].y != biased.data[0].y and "off by up to 0.14" in biased.layout.title.text


@pytest.mark.slow
def test_plain_python_works_too():
    """No kernel, no notebook packages: a check is a function. And nbformat starts without its 38 grammars."""
    script = "from minispec_course.check import check, reference; check('06.accept', reference('06.accept'))"
    loaded = "import sys; assert not {'IPython', 'plotly', 'nbformat'} & set(sys.modules)"
    notebooks = "import minispec_course.build.cells; assert 'nbformat' in sys.modules and 'lark' not in sys.modules"
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
        with pytest.raises(Complaint, match="of its own"):
            distribution_of(lambda given, own=own: own() < 0.5)
    with pytest.raises(Complaint, match="NaN"):  # a result that equals nothing would seem another with every call
        distribution_of(lambda random: (1, (0.5, float("nan")) if random() < 0.5 else (0.5, 0.5)))


def test_a_draft_that_is_changed_is_named():
    """The draft tokens are made anew in every run, so comparing the arguments of the case would not show it."""

    def appends(p, q, drafted, random):
        answer = reference("06.sampler")(p, q, list(drafted), random)
        drafted.append(0)
        return answer

    judgement = checking.judge(exercise.find("06.sampler"), appends)
    assert judgement.outcome == "wrong" and "changes its argument drafted" in " ".join(judgement.text.split())


def test_tokens_are_whole_numbers():
    assert token(torch.tensor(3)) == token(np.int64(3)) == 3
    assert tokens(torch.tensor([1, 2])) == tokens([1, np.int64(2)]) == (1, 2)
    for wrong in (1.0, None, True, "1", torch.tensor(1.0), [1]):
        with pytest.raises(Complaint):
            token(wrong)
    with pytest.raises(Complaint):
        tokens(7)


def test_same_forgives_rounding_and_nothing_else():
    assert same(probs(0.1 + 0.2), probs(0.3)) and same([1, 2.0], (1.0, 2)) and same(float("nan"), float("nan"))
    assert same({(1,): 0.5}, {(1,): 0.5, (2,): 0.0})  # laws: an outcome without probability may be left out
    assert not same({"a": 1}, {"a": 1, "b": None})  # records: everything counts
    assert not same(probs(0.5), probs(0.5, 0.5)) and not same(1, None) and not same(True, 1) and not same("1", 1)


def test_show_is_short_and_repeatable():
    assert show(probs(0.1 + 0.2, -0.0)) == "[0.3, 0]"
    assert show({(0, 1): 0.5}) == "{(0, 1): 0.5}"
    assert "0x" not in show(object()) and "shape (7, 9)" in show(torch.zeros(7, 9))
    assert kind(np.zeros(3)) == kind(torch.zeros(3))


def test_differences_show_only_what_differs():
    lines = differences({(0,): 0.5, (1,): 0.5}, {(0,): 0.25, (1,): 0.5, (2,): 0.25})
    assert [line.split() for line in lines[1:]] == [["(0)", "0.5", "0.25"], ["(2)", "0", "0.25"]]
    assert len(differences({(i,): 0.01 for i in range(100)}, {})) < 15
    assert differences({"text": [1], "passes": 2}, {"text": [1], "passes": 3})[0].startswith("passes, expected: 2")


def test_two_large_tensors_are_not_called_the_same_thing_twice():
    a = torch.zeros(6, 16)
    b = a.clone()
    b[2, 3] = 1.0
    for lines in (differences(a, b), differences({"mask": a}, {"mask": b})):
        assert len(lines) == 1 and "1 of 96 numbers differ, most of all at [2, 3]" in lines[0]


def test_names_in_a_shown_case_are_arguments_or_explained():
    for id, one in exercise.everything().items():
        arguments = set(inspect.signature(one.reference).parameters)
        for case in one.cases:
            assert set(case) - arguments <= one.legend.keys(), id
    text = judge(exercise.find("05.loop"), lambda target, draft, prompt, k, count: [1] * count).text
    assert f"  # {exercise.find('05.loop').legend['wrong_positions']}" in text
