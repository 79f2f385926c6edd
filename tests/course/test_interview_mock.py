"""The mock interview: what it asks, derivations that theory.py and the verifier agree with, and its report."""

from __future__ import annotations

import ast
import random

import nbformat
import pytest
import torch
from interview_checks import Script, ticks

from minispec import exact, theory, verify
from minispec.course.classroom import exam
from minispec.course.classroom.exercise import find
from minispec.course.interview import load, mock, start_mock, terminal
from minispec.course.interview.derivations import DERIVATIONS, cycle_length, kv_size, losslessness
from minispec.course.interview.drill import FOLLOW_UP, RAISES, SINKS, Computed, Figure, Task
from minispec.course.interview.mock_interview import CODING, Mock
from minispec.course.interview.schedule import Schedule

BANK = load()


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(exam, "FOLDER", tmp_path / "exams")


def interview(seed: int = 0, **options) -> Mock:
    return Mock(BANK, seed, Schedule(None), **options)


# ---------------------------------------------------------------- what is asked


def test_two_conversations_a_derivation_an_exercise():
    for seed in range(20):
        mock = interview(seed)
        one, two, *steps, task = mock.items
        assert one.question.topic != two.question.topic
        assert all(talk.question.kind == "concept" and talk.question.push_backs for talk in (one, two))
        assert len(steps) == 6 and all(isinstance(step, Figure) and step.key is None for step in steps)
        assert isinstance(task, Task) and find(task.exercise).minutes == task.minutes <= CODING
        assert mock.minutes == 45


def test_the_seed_decides():
    assert interview(3).items == interview(3).items
    assert len({interview(seed).derivation.name for seed in range(20)}) == len(DERIVATIONS)
    assert len({interview(seed).task.exercise for seed in range(20)}) > 3
    assert start_mock(BANK, 3, schedule=Schedule(None)).items == interview(3).items


# ---------------------------------------------------------------- derivations


@pytest.mark.parametrize("derive", DERIVATIONS)
def test_every_step_is_a_formula_of_theory(derive):
    given = {derive(random.Random(seed)).given for seed in range(30)}
    assert len(given) > 10  # nobody knows it by heart
    for seed in range(30):
        derivation = derive(random.Random(seed))
        assert derivation == derive(random.Random(seed)) and derivation.id in BANK
        names = {n.id for step in derivation.steps for n in ast.walk(ast.parse(step.expression)) if type(n) is ast.Name}
        assert names and all(hasattr(theory, name) for name in names)
        for step in derivation.steps:
            assert step.matches(step.computed) and not step.matches(1.1 * step.computed)


def distribution_of(derivation) -> tuple[list[float], list[float]]:
    call = next(s.expression for s in derivation.steps if s.expression.startswith("acceptance("))
    return ast.literal_eval(call.removeprefix("acceptance"))


def test_losslessness_is_what_the_verifier_does():
    for seed in range(20):
        derivation = losslessness(random.Random(seed))
        p, q = (torch.tensor(law, dtype=torch.float64) for law in distribution_of(derivation))
        accept_b, beta, rejected, residual_a, emitted_a, naive_a = (step.computed for step in derivation.steps)
        assert accept_b == pytest.approx(float(verify.accept_probability(p, q, 1)))
        assert beta == pytest.approx(float(torch.minimum(p, q).sum())) and rejected == pytest.approx(1 - beta)
        assert residual_a == pytest.approx(float(verify.residual(p, q)[0]))
        law = exact.chain_distribution(lambda context, p=p: p, lambda context, q=q: q, 1)
        assert emitted_a == pytest.approx(sum(chance for run, chance in law.items() if run[0] == 0))
        assert emitted_a == pytest.approx(float(p[0]))
        assert naive_a == pytest.approx(float(torch.minimum(p, q)[0] + rejected * p[0]))


def test_the_wrong_rule_is_never_taken_for_the_right_one():
    for seed in range(500):
        *_, emitted, naive = losslessness(random.Random(seed)).steps
        assert not emitted.matches(naive.computed), seed


def test_the_length_of_a_cycle_is_what_its_law_says():
    for seed in range(20):
        derivation = cycle_length(random.Random(seed))
        one, whole, tokens, ceiling, speedup, work = (step.computed for step in derivation.steps)
        alpha, k, c = ast.literal_eval(derivation.steps[4].expression.removeprefix("speedup"))
        law = [alpha**n * (1 - alpha) for n in range(k)] + [alpha**k]  # of the drafts accepted
        assert one == pytest.approx(law[0]) and whole == pytest.approx(law[-1])
        assert tokens == pytest.approx(sum((n + 1) * chance for n, chance in enumerate(law))) and tokens < ceiling
        assert speedup == pytest.approx(tokens / (1 + k * c)) and work == pytest.approx((k + 1) / tokens)
        assert f"α = {alpha}" in derivation.given and f"k = {k}" in derivation.given


def test_the_size_of_a_cache_is_what_the_cache_holds():
    for seed in range(20):
        derivation = kv_size(random.Random(seed))
        values, per_token, total, factor, weights, fits = (step.computed for step in derivation.steps)
        token = derivation.steps[1].expression.removesuffix(" / 1024").removeprefix("kv_bytes_per_token")
        layers, kv_heads, head_dim = ast.literal_eval(token)
        cache = torch.zeros(2, layers, 1, kv_heads, 1, head_dim, dtype=torch.bfloat16)
        assert values == 2 * kv_heads * head_dim and per_token * 1024 == cache.numel() * cache.element_size()
        batch, length, _ = derivation.steps[2].expression.removeprefix("kv_bytes(").split(", ", 2)
        assert total == int(batch) * int(length) * per_token / 2**20
        assert factor in (4, 8) and fits == pytest.approx((80 - weights) * 1e9 / (per_token * 1024) / 1e3) and fits > 0


# ---------------------------------------------------------------- the report


def test_a_report_names_tells_seen_and_missed_and_counts_points():
    seconds = [0.0]
    mock = interview(clock=lambda: seconds[0])
    one, two = mock.talks
    mock.ticked(ticks(one, "L4", "L5", "L6", RAISES), ["keys and values"])
    mock.ticked(ticks(two, "L4", "L5", SINKS))
    for i, figure in enumerate(mock.figures):
        mock.computed(str(figure.number.computed if i < 4 else 17 * figure.number.computed))
    seconds[0] = 50 * 60.0
    mock.coded("wrong", f"{mock.task.exercise}: wrong")
    sunk = max(0, 2 - len(two.question.sinks))
    assert list(mock.points.values()) == [3, sunk, 2, 0]
    report = mock.report()
    head, *_ = report.splitlines()
    assert f"{5 + sunk} of 12 points" in head and "50 minutes used of 45, **over time**" in report
    about_one, about_two = report.split("## ")[1:3]
    for tell in one.question.raises:
        assert tell in about_one.split("Tells seen")[1] and "Tells missed" not in about_one
    for tell in two.question.raises:
        assert tell in about_two.split("Tells missed")[1].split("Sinking tells")[0]
    for tell in two.question.sinks:
        assert tell in about_two.split("Sinking tells")[1]
    assert "> keys and values" in about_one and "**L6**" in about_one
    assert report.count("- ✓") == 4 and report.count("- ✗") == 2 and mock.figures[5].number.expression in report
    assert f"{mock.task.exercise}: wrong" in report and two.question.function in report.split("## Read next")[1]
    assert "--seed 0" in report


def test_what_was_not_reached_counts_nothing():
    mock = interview()
    mock.ticked(ticks(mock.talks[0], "L4", FOLLOW_UP))
    assert list(mock.points.values()) == [1, 0, 0, 0]
    assert "Not answered." in mock.report() and "Not tried." in mock.report() and mock.report().count("- ✗") == 6


def test_the_time_is_counted_and_not_enforced():
    seconds = [0.0]
    mock = interview(clock=lambda: seconds[0])
    seconds[0] = 4000.0
    mock.ticked(())
    assert mock.current is mock.talks[1]


def test_conversations_come_back_derivations_do_not():
    mock = interview()
    mock.ticked(())
    mock.ticked(())
    mock.computed("1")
    assert set(mock.schedule.cards) == {talk.key for talk in mock.talks}


def test_reports_do_not_overwrite_each_other(tmp_path):
    files = [interview().keep() for _ in range(2)]
    assert [file.name for file in files] == ["mock-1.md", "mock-2.md"] and files[0].parent == tmp_path / "exams"
    assert files[0].read_text(encoding="utf-8").startswith("# Mock interview: 0 of 12 points")


def test_without_the_repository_there_is_no_exercise(monkeypatch, tmp_path):
    monkeypatch.setattr("minispec.course.interview.mock_interview.ROOT", tmp_path)
    mock = interview()
    assert mock.task is None and len(mock.items) == 8 and "0 of 9 points" in mock.report()
    assert "Left out" in mock.report()


# ---------------------------------------------------------------- in a terminal


def test_a_mock_in_the_terminal_ends_with_a_report(tmp_path):
    mock = interview(folder=tmp_path)
    replies = [*[""] * len(mock.talks[0].asks), "1 2", "s"]
    replies += [str(figure.number.computed) for figure in mock.figures] + ["s"]
    script = Script(*replies)
    assert terminal.mock(mock, script.console, tmp_path / "report.md") == 0
    assert mock.current is None and all(result.right for result in mock.all(Computed))
    assert script.words.count(" ".join(mock.derivation.given.split())) == 2  # when it begins, and in the report
    assert "points" in script.text and (tmp_path / "report.md").read_text(encoding="utf-8") == mock.report()
    assert max(map(len, script.lines)) <= 80
    assert mock.notebook == tmp_path / "mock-1.ipynb" and mock.notebook.exists()


def test_ctrl_c_in_a_mock_still_reports(tmp_path):
    mock = interview()
    script = Script(*[""] * len(mock.talks[0].asks), "1 2", KeyboardInterrupt())
    assert terminal.mock(mock, script.console, tmp_path / "report.md") == 130
    assert "Level reached" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_a_report_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    script = Script("q")
    terminal.mock(interview(), script.console, tmp_path / "file/report.md")
    assert "not kept" in script.words


# ---------------------------------------------------------------- the exercise, and the notebook


@pytest.mark.slow
def test_the_exercise_is_checked(tmp_path):
    results = []
    for solved in (False, True):
        mock = interview(folder=tmp_path)
        mock.place = len(mock.items) - 1
        mock.task = mock.items[-1] = Task("06.accept", 10)
        file = mock.begin()
        notebook = nbformat.read(file, as_version=4)
        [cell] = [c for c in notebook.cells if c.metadata.get("minispec", {}).get("role") == "answer"]
        if solved:
            cell.source = "def accept(p, q, token):\n    return min(1.0, float(p[token] / q[token]))"
            nbformat.write(notebook, file)
        results.append((mock.check().outcome, list(mock.points.values())[-1], file.name))
    assert results == [("not attempted", 0, "mock-1.ipynb"), ("right", 3, "mock-2.ipynb")]


def test_a_notebook_that_was_spoiled_is_no_crash(tmp_path):
    mock = interview(folder=tmp_path)
    mock.place = len(mock.items) - 1
    mock.begin().write_text("no notebook", encoding="utf-8")
    assert mock.check().outcome == "wrong" and "no notebook" in mock.results[-1].text


def test_a_mock_in_a_notebook_ends_with_its_report(tmp_path):
    sitting = mock(seed=0)
    for talk in sitting.session.talks:
        for _ in talk.asks:
            sitting._next.click()
        sitting._next.click()  # grade
        sitting._next.click()  # next
    for figure in sitting.session.figures:
        sitting._field.value = str(figure.number.computed)
        sitting._next.click()
        sitting._next.click()
    assert "mock-1.ipynb" in sitting._body.children[0].value and sitting._next.description == "check"
    sitting._skip.click()
    assert "3 of 12 points" in sitting._body.children[0].value
    assert (tmp_path / "exams/mock-1.md").read_text(encoding="utf-8").startswith("# Mock interview: 3 of 12 points")
