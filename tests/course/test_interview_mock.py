"""The mock interview: what it asks, a state machine that survives anything, evidence, the debrief, both front-ends."""

from __future__ import annotations

import ast
import json
import random
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interview_checks import Script
from mutants.patching import rewrite

from minispec import exact, theory, verify
from minispec_course.check import exam
from minispec_course.interview import debrief, evidence, load, mock, mock_interview, mock_terminal
from minispec_course.interview.arithmetic import WORKED, arithmetic, worked
from minispec_course.interview.debrief import AXES, NONE, Debrief, report
from minispec_course.interview.derivations import DERIVATIONS, cycle_length, derivations_for, kv_size, losslessness
from minispec_course.interview.drill import SINKS, Box
from minispec_course.interview.evidence import Graded, graded, unshown
from minispec_course.interview.matcher import suggestions, supports
from minispec_course.interview.mock_interview import Interview, keep, unfinished
from minispec_course.interview.mock_widget import Desk
from minispec_course.interview.plain_markdown import to_html
from minispec_course.interview.question import LEVELS, Number
from minispec_course.interview.rounds import (
    CODE,
    FORMATS,
    GRADES,
    NOTHING,
    NUMBER,
    ROUNDS,
    Reply,
    Turn,
    grading,
    pools,
    probing,
)
from minispec_course.interview.schedule import Schedule
from minispec_course.interview.terminal import Console

BANK = load()
IRRELEVANT_TALK = (
    "I had a long breakfast this morning and the weather was rather nice.",
    "My team shipped a web shop last year and the customers were happy in the end.",
    "I would look at the numbers and then decide what is best for the team.",
    "That is a good question, because everything has advantages and disadvantages in the end.",
)
IRRELEVANT = IRRELEVANT_TALK[0]


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(exam, "FOLDER", tmp_path / "exams")
    monkeypatch.setattr(debrief, "FOLDER", tmp_path / "exams")


class Hands:
    """A clock that is moved by hand."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def interview(level="L5", format="concept", seed=0, now=None) -> Interview:
    return Interview(BANK, level, format, seed, now or Hands())


def answer(interview: Interview, says=lambda turn: "", ticks=lambda turn: {}, number=lambda turn: "") -> None:
    """One turn, whatever it is."""
    turn = interview.turn
    if turn.expects == GRADES:
        problem = interview.do("grade", ticks=ticks(turn))
    elif turn.expects == NUMBER:
        problem = interview.do("say", text=number(turn))
    elif turn.expects == CODE:
        problem = interview.do("code", outcome="right")
    elif turn.expects == NOTHING:
        problem = interview.do("begin")
    else:
        problem = interview.do("say", text=says(turn))
    assert problem == ""


def hold(interview: Interview, **how) -> Interview:
    while interview.turn is not None:
        answer(interview, **how)
    return interview


def by_the_book(turn) -> dict[int, str]:
    """Every point, in its own words."""
    return {i: box.text.rpartition(" → ")[2] for i, box in enumerate(turn.boxes) if box.group != SINKS}


def right(turn) -> str:
    return str(turn.number.computed)


# ---------------------------------------------------------------- what is asked


def kinds(interview: Interview) -> list[str]:
    return [turn.kind for _, turn, *_ in interview.transcript]


def test_a_concept_round_asks_follows_up_pushes_back_and_derives():
    for seed in range(10):
        held = hold(interview(seed=seed), number=right)
        asked = [BANK[turn.question] for _, turn, *_ in held.transcript if turn.kind == "ask"]
        assert [question.kind for question in asked[:2]] == ["concept", "debugging"] and len(asked) == 4
        assert asked[2].kind in ("estimation", "derivation") and asked[3].id in {
            d(random).id for d in derivations_for(held.level)
        }
        assert (
            kinds(held).count("push-back") == 6 and kinds(held).count("number") == 6 and kinds(held).count("grade") == 3
        )
        assert kinds(held)[0] == "open" and kinds(held)[-1] == "close" and "correction" not in kinds(held)


def test_a_design_round_fills_a_whiteboard_and_changes_a_requirement():
    for seed in range(12):
        held = hold(interview(format="design", seed=seed), number=right)
        whole, part = [BANK[turn.question] for _, turn, *_ in held.transcript if turn.kind == "ask"]
        assert whole.kind == part.kind == "design" and whole.case and not part.case and "change" in kinds(held)
        assert kinds(held).count("board") == len(whole.case.whiteboard) and kinds(held).count("number") == 3


def test_a_loop_is_all_four_rounds_each_with_its_own_clock():
    held = hold(interview(format="loop"))
    assert (
        list(dict.fromkeys(name for name, *_ in held.transcript))
        == list(FORMATS["loop"])
        == ["coding", *list(ROUNDS)[:2], "experience"]
    )
    assert report(held).count("## The") - report(held).count("### The") == 4 and "Committee" in report(held)


def test_the_level_decides_how_hard_it_pushes():
    assert kinds(hold(interview("L4"), number=right)).count("push-back") == 3
    assert kinds(hold(interview("L6"), number=right)).count("push-back") == 6


def test_the_seed_decides():
    def says(seed):
        return [turn.says for _, turn, *_ in hold(interview(seed=seed)).transcript]

    assert says(3) == says(3) and len({tuple(says(seed)) for seed in range(8)}) == 8


def test_every_question_can_be_asked():
    assert {q.id for name in ROUNDS for pool in pools(BANK, name) for q in pool} == set(BANK)


def test_what_comes_next_depends_on_what_was_said():
    question = BANK["expected-tokens"]
    deep = " ".join(point for _, point in question.points) + " 2.77 tokens"
    assert probing(question, "L6", deep) == "" and "time" in probing(question, "L6", "Hm.")
    assert "number" in probing(
        question, "L4", " ".join(question.L4 + question.L5).translate({ord(c): None for c in "0123456789"})
    )
    shallow = " ".join(question.L4) + " 2.77"
    assert probing(question, "L4", shallow) == "" != probing(question, "L6", shallow)
    asked = [kinds(hold(interview(seed=1), says=says)) for says in (lambda turn: "", lambda turn: deep_answer(turn))]
    assert asked[0].count("probe") > asked[1].count("probe")


def deep_answer(turn) -> str:
    """All that a rubric holds, first; then what it wants to hear on each objection."""
    if turn.question not in BANK:
        return "None."
    question = BANK[turn.question]
    replies = {follow_up.question: follow_up.short for follow_up in question.follow_ups}
    replies |= {push_back.says: push_back.reply for push_back in question.push_backs}
    points = [point for _, point in question.points] + list(question.raises)
    return replies.get(turn.says) or ". ".join(points) + ". 3 GB."


@pytest.mark.parametrize("second, mark", [("right", "✓"), ("wrong", "✗")])
def test_a_wrong_number_may_be_looked_at_again_and_what_was_shown_is_not_said(second, mark):
    held = interview(seed=2)
    while held.turn.expects != NUMBER:
        answer(held)
    number = held.turn.number
    wrong = str(17 * number.computed)
    held.do("say", text=wrong)
    assert held.turn.kind == "correction" and worked(number) not in held.turn.says
    held.do("say", text=str(number.computed) if second == "right" else wrong)
    if second == "wrong":
        assert held.turn.kind == "correction" and worked(number) in held.turn.says
        held.do("say", text=f"Ah, it is {number.computed}.")  # read from the screen
    assert Debrief(held, "concept").numbers()[0].startswith(f"- {mark} {number.name}")


def test_a_number_that_is_not_known_is_shown_and_counts():
    """Not asked for again, not "I could not read it", and one of those that were asked."""
    held = interview(seed=2)
    while held.turn.expects != NUMBER:
        answer(held)
    number = held.turn.number
    held.do("say", text="I don't know that one, sorry.")
    assert held.turn.kind == "correction" and held.turn.expects == NUMBER  # a rough value will do
    held.do("say", text="No, no idea.")
    assert held.turn.kind == "correction" and worked(number) in held.turn.says and held.turn.expects != NUMBER
    held.do("say", text="The division at the end.")
    debrief = Debrief(held, "concept")
    assert debrief.numbers()[0].startswith(f"- – {number.name}: you did not know")
    assert debrief.figures[0].unknown


def test_a_sentence_that_earned_a_point_is_not_held_against_another():
    turn = Turn("grade", "", GRADES, boxes=(Box("L4", "Drafts never change the output"), Box("L4", "Output is slower")))
    said, other = "Drafts never change the output.", "It is never slower."
    against = tuple(SimpleNamespace(opposite=i > 0, quote=quote) for i, quote in enumerate((said, said)))
    found = Graded(turn, {0: said}, {}, {}, matches=against)
    assert found.opposite() == {}
    against[1].quote = other
    assert found.opposite() == {1: other}  # said otherwise, and nothing given for it
    assert Graded(turn, {0: said}, {1: "slower"}, {}, matches=against).opposite() == {}
    against[1].quote = " …"
    assert found.opposite() == {}


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
        assert factor in (4, 8) and fits == pytest.approx((80 - weights) * 1e9 / (per_token * 1024)) and fits > 0


# ---------------------------------------------------------------- arithmetic


def test_what_is_written_out_gives_the_number():
    """Every number of the bank, through Python as a pocket calculator."""
    for number in (number for question in BANK.values() for number in question.numbers):
        text = arithmetic(number.expression)
        for sign, python in {"·": "*", "−": "-", "^": "**", ",": ""}.items():
            text = text.replace(sign, python)
        assert eval(text, {"__builtins__": {}}) == pytest.approx(number.computed, rel=0.02), number.expression
        assert not [name for name in WORKED if name in text]  # arithmetic, not a call


def test_the_example_of_the_drill():
    assert worked(Number("positions per token kept", "target_work(0.7, 4)", 1.8)) == "5 / 2.77 = 1.80"


# ---------------------------------------------------------------- the clock


def test_nothing_runs_before_somebody_begins():
    hands = Hands()
    held = interview(now=hands)
    hands.seconds = 5000.0
    assert held.used == 0 and not held.running
    held.do("begin")
    hands.seconds += 90
    assert held.used == 90 and held.running


def check_the_clock_stops() -> None:
    """While the clock is paused, and while one's own answer is graded."""
    hands = Hands()
    held = interview(now=hands)
    held.do("begin")
    hands.seconds = 60.0
    held.do("pause")
    hands.seconds = 600.0
    assert held.used == 60
    held.do("go on")
    hands.seconds = 630.0
    assert held.used == 90
    while held.turn.expects != GRADES:
        answer(held)
    hands.seconds = 2000.0
    assert held.used == 90 and held.do("go on")
    answer(held)
    hands.seconds = 2010.0
    assert held.used == 100


def test_the_clock_stops():
    check_the_clock_stops()


def test_nothing_new_is_begun_after_the_time_and_the_current_question_is_finished():
    hands = Hands()
    held = interview(now=hands)
    held.do("begin")
    hands.seconds = 46 * 60.0
    hold(held)
    assert kinds(held).count("ask") == 1 and kinds(held)[-2:] == ["grade", "close"] and "1 minute over" in report(held)


# ---------------------------------------------------------------- anything may come


ACTIONS = ["begin", "say", "grade", "code", "skip", "pause", "go on", "check", "", None, 3]
VALUES = st.one_of(st.none(), st.integers(), st.text(max_size=20), st.just("2.77"))
TICKS = st.one_of(VALUES, st.dictionaries(st.one_of(st.integers(-2, 40), st.text(max_size=3)), VALUES, max_size=4))
EVENTS = st.lists(st.tuples(st.sampled_from(ACTIONS), VALUES, TICKS, st.floats(0, 900)), max_size=60)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(EVENTS, st.sampled_from(list(FORMATS)), st.sampled_from(LEVELS), st.integers(0, 50))
def test_it_survives_whatever_comes_and_can_be_resumed_at_any_moment(events, format, level, seed):
    hands = Hands()
    held = interview(level, format, seed, hands)
    for action, text, ticks, seconds in events:
        before = len(held.transcript)
        problem = held.do(action, text=text, ticks=ticks, outcome=text)
        assert isinstance(problem, str) and len(held.transcript) <= before + 1
        assert not problem or len(held.transcript) == before
        used, running = held.used, held.running
        hands.seconds += seconds
        assert held.used == pytest.approx(used + seconds * running)
    again = Interview.from_json(BANK, held.to_json(), hands)
    assert (again.turn, again.transcript, again.round) == (held.turn, held.transcript, held.round)
    assert again.to_json() == held.to_json() and report(again) == report(held) and not again.running
    for _ in range(200):  # and it ends
        if held.ended:
            break
        held.do("begin" if held.turn.expects == NOTHING else "skip")
    assert held.ended and held.do("say", text="more") != "" and report(held).startswith("# Debrief")


def test_it_is_resumed_after_a_crash(tmp_path):
    held = interview(seed=4)
    for _ in range(4):
        answer(held, says=lambda turn: "Keys and values.")
        keep(held, tmp_path / "mock.json")
    again = unfinished(BANK, tmp_path / "mock.json")
    assert again.turn == held.turn and again.transcript == held.transcript and not again.running
    held.do("end")
    keep(held, tmp_path / "mock.json")
    assert unfinished(BANK, tmp_path / "mock.json") is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"level": "L5", "format": "concept", "seed": 1, "events": [1]}'])
def test_a_file_that_makes_no_sense_is_no_interview(tmp_path, text):
    (tmp_path / "mock.json").write_text(text)
    assert unfinished(BANK, tmp_path / "mock.json") is None
    with pytest.raises(ValueError, match="begin a new one"):
        Interview.from_json(BANK, text)


def test_a_changed_bank_is_noticed():
    held = hold(interview(seed=1))
    kept = json.loads(held.to_json())
    kept["events"] = [kept["events"][0], {"do": "grade", "used": 1.0}]
    with pytest.raises(ValueError, match="other questions"):
        Interview.from_json(BANK, json.dumps(kept))
    for version in (2, None):
        with pytest.raises(ValueError, match="another order.*begin a new one"):
            Interview.from_json(BANK, json.dumps({**json.loads(held.to_json()), "version": version}))
    for bad in (dict(level="L9"), dict(format="tea")):
        with pytest.raises(ValueError, match="give one of"):
            Interview(BANK, **bad)


# ---------------------------------------------------------------- the debrief


def section(text: str, *titles: str) -> str:
    """What stands below these headings."""
    found = [part.partition("\n") for part in re.split(r"^#+ ", text, flags=re.M)]
    return "".join(body for title, _, body in found if title in titles)


def all_concerns(held: Interview) -> str:
    return section(report(held), "Concerns", "Further concerns")


def signals(held: Interview) -> list[int]:
    return [Debrief(held, name).signal for name in dict.fromkeys(name for name, *_ in held.transcript)]


def check_irrelevant_words_earn_nothing() -> None:
    """One sentence that has nothing to do with anything, typed everywhere and quoted for everything."""
    for format in ("concept", "design", "experience"):
        held = hold(
            interview("L6", format, 5),
            says=lambda turn: IRRELEVANT,
            ticks=lambda turn: dict.fromkeys(by_the_book(turn), IRRELEVANT),
        )
        found = Debrief(held, format)
        assert found.signal == 0 and found._signal(True) < 2, format
        assert all(got == 0 for got, _ in found.counts().values())
        text = report(held)
        assert ("**No hire" in text) == found.is_enough != ("**Not enough evidence" in text) and IRRELEVANT in text


def test_irrelevant_words_earn_nothing():
    check_irrelevant_words_earn_nothing()


def check_words_that_were_not_said_earn_nothing() -> None:
    """Whoever copies the rubric into the quotes has shown none of it, and claimed none of it either."""
    for says in ("", IRRELEVANT):
        held = hold(interview("L6", seed=5), says=lambda turn, says=says: says, ticks=by_the_book)
        found = Debrief(held, "concept")
        assert found.signal == 0 == found._signal(True) and not any(g.shown or g.claimed for g in found.gradings)
        refused = section(report(held), "Not found in your answers")
        assert refused.count("\n- ") == sum(len(g.refused) for g in found.gradings) > 20
        assert "With the points that you claim" not in report(held)


def test_words_that_were_not_said_earn_nothing():
    check_words_that_were_not_said_earn_nothing()


@pytest.mark.slow
def test_no_irrelevant_sentence_raises_a_level():
    """Beside nothing, and beside an answer that reaches L4: quoted for all that is left, it changes nothing."""
    for question in BANK.values():
        turn = grading(question, [], [" ".join(question.L4), *IRRELEVANT_TALK])
        basics = {i: box.text for i, box in enumerate(turn.boxes) if box.group == "L4"}
        left = [i for i, box in enumerate(turn.boxes) if box.group in ("L5", "L6")]
        assert debrief.graded(turn, Reply(ticks=basics)).level() == 1
        for sentence in IRRELEVANT_TALK:
            alone = debrief.graded(
                turn, Reply(ticks=dict.fromkeys(range(len(turn.boxes) - len(question.sinks)), sentence))
            )
            beside = debrief.graded(turn, Reply(ticks=basics | dict.fromkeys(left, sentence)))
            assert alone.level() == 0 and beside.level() == 1, (question.id, sentence)


def basics(turn) -> dict[int, str]:
    return {i: box.text for i, box in enumerate(turn.boxes) if box.group == "L4"}


def check_the_headline_follows_from_the_table() -> None:
    """What is printed: the middle of the rows, the lower one of two, against the level of the round."""
    names = ("below L4", *LEVELS)
    for level in LEVELS:
        for format in ("concept", "coding", "experience"):
            for ticks in (by_the_book, basics, lambda turn: {}):
                held = hold(interview(level, format, seed=5), says=deep_answer, ticks=ticks, number=right)
                text = report(held)
                table = text.split("| question | level | evidence |\n|---|---|---|\n")[1].split("\n\n")[0]
                rows = sorted(names.index(line.split(" | ")[-2]) for line in table.splitlines())
                signal = rows[(len(rows) - 1) // 2]
                form = {1: "Strong hire", 0: "Hire", -1: "Lean no hire"}.get(signal - names.index(level), "No hire")
                form = "Strong hire" if signal > names.index(level) else form
                assert (
                    f"**{form} at " in text and f"The table signals {names[signal]}." in text and debrief.RULE in text
                )


@pytest.mark.slow
def test_the_headline_follows_from_the_table():
    check_the_headline_follows_from_the_table()


def test_the_axes_are_defined_and_have_no_level():
    held = hold(interview("L4", seed=5), says=deep_answer, ticks=basics)
    assert signals(held) == [1] and Debrief(held, "concept").counts()["basics"][0] == 9
    text = report(held)
    assert "basics 9 of 9, depth" in text and all(f"- {axis}: {AXES[axis]}" in text for axis in AXES)


def check_own_words() -> None:
    """Words in which the matcher does not find a point are a claim, whatever else they are about; and a part of a
    sentence is that sentence: it earns two lines in all."""
    points = (
        "Expects more data to keep helping, by a power law",
        "Says that training the draft model pays",
        "Says that the draft model is trained on a prompt",
        "Trains the draft model with more data",
    )
    data = "Training the draft model on a prompt pays, and with more data it pays again"
    costs = "It costs a few times the compute to train the draft model on a prompt"
    talk = "My cat likes the data and sleeps all day long"
    boxes = tuple(Box("L4", text) for text in points)
    turn = Turn("grade", "", GRADES, "x", boxes=boxes, heard=f"{data}. {costs}. {talk}.")
    for other in (costs, talk):
        assert evidence.graded(turn, Reply(ticks={0: other})).claimed == {0: other}, other
        assert 0 in unshown(turn, {0: other})
    parts = {
        1: data,
        2: "Training the draft model on a prompt pays",
        3: "the draft model on a prompt pays, and with more data",
    }
    assert all(supports(points[i], words) for i, words in parts.items())
    found = evidence.graded(turn, Reply(ticks=parts))
    assert set(found.shown) == {1, 2} and set(found.empty) == {3}


def test_own_words_are_a_claim_and_a_part_is_the_whole():
    check_own_words()


def check_a_small_sample_has_no_level() -> None:
    """A round that was broken off, and one that was skipped."""
    ended = interview("L6", seed=5)
    while ended.turn.expects != GRADES:
        answer(ended, says=deep_answer)
    answer(ended, ticks=by_the_book)
    ended.do("end")
    skipped = interview("L6", seed=5)
    while skipped.turn is not None:
        skipped.do("begin" if skipped.turn.expects == NOTHING else "skip")
    for held in (ended, skipped):
        assert "**Not enough evidence for a level at staff (L6).**" in report(held) and "ire at" not in report(held)
    assert "what there is reached L6" in report(ended)
    assert Debrief(hold(interview("L6", seed=5), says=deep_answer), "concept").is_enough


def test_a_small_sample_has_no_level():
    check_a_small_sample_has_no_level()


def check_the_opposite_is_a_concern() -> None:
    """Said the opposite, replied with something else, said what sinks: named, whatever was ticked."""
    held, weather = interview("L5", seed=41), "The weather was nice, and we talked about the garden all afternoon long."
    sink = ""
    while held.turn.expects != GRADES:
        question = BANK[held.turn.question] if held.turn.question else None
        sink = question.sinks[0] if question else ""
        false = f"I would never say that {question.L4[0].lower()}. {sink}." if question else ""
        replies = {"push-back": weather, "check": ""}  # whoever is asked how sure, and says nothing
        answer(held, says=lambda turn, replies=replies, false=false: replies.get(turn.kind, false))
    point = BANK[held.turn.question].L4[0]
    answer(held)
    hold(held)
    concerns = all_concerns(held)
    assert f"said the opposite? {point}" in concerns and f"may have said what sinks an answer: {sink}" in concerns
    assert "replied with something else? asked" in concerns and weather in concerns


def test_without_a_rubric_no_reply_is_called_something_else():
    """A probe holds few words; whoever stops before the rubric is not accused."""
    held = interview("L6", seed=5)
    held.do("begin")
    for text in (
        "It reads less.",
        "Because an output token keeps a slot of the batch for the whole step, with its cache.",
    ):
        held.do("say", text=text)
    held.do("end")
    assert "something else" not in report(held)


def test_the_opposite_and_something_else_are_concerns():
    check_the_opposite_is_a_concern()


def first_page(text: str) -> str:
    return text.split("## The concept round")[1].split("### The record")[0]


def check_the_first_page_is_one() -> None:
    """Three strengths and three concerns at most, no quote twice, and all of it on about one screen of 80 columns."""
    good = hold(interview("L6", seed=5), says=deep_answer, ticks=by_the_book, number=right)
    bad = hold(interview("L6", seed=5), says=lambda turn: f"{IRRELEVANT} {turn.question}", ticks=lambda turn: {})
    for held, strengths, concerns in ((good, 3, 0), (bad, 0, 3)):
        text = report(held)
        page = first_page(text)
        assert section(page, "Strengths").count("\n- “") + section(page, "Strengths").count(": “") == strengths
        listed = [line for line in section(page, "Concerns").splitlines() if line != f"- {NONE}"]
        assert len(list(filter(None, listed))) == concerns
        assert sum(map(len, map(Console(None, None).listed, page.splitlines()))) <= 50
    quotes = re.findall("“([^”]+)”$", section(report(good), "Strengths", "Further strengths"), re.M)
    assert len(quotes) == len(set(quotes)) > 10
    assert "### The record" in report(good) and "#### Further concerns" in report(bad)


def test_the_first_page_is_one():
    check_the_first_page_is_one()


def check_a_strength_is_plain() -> None:
    """Counted or not: what a reader could not find in the quote is listed as the candidate's own tick."""
    plain = "Rejected tokens roll back the grammar to its state before them"
    vague = "Then the masks of that request take time on the host, and the grammar has a state"
    boxes = (
        Box("L5", "Rolls back the state of the grammar for rejected tokens"),
        Box("L6", "Knows that masks for five positions cost time on the host in every step"),
    )
    turn = Turn("grade", "", GRADES, "grammar-and-penalties", boxes=boxes, heard=f"{plain}. {vague}.")
    found = graded(turn, Reply(ticks={0: plain, 1: vague}))
    assert set(found.shown) == {0, 1} and found.is_plain(0) and not found.is_plain(1)
    swapped = graded(turn, Reply(ticks={0: vague}))
    assert set(swapped.shown) == {0} and not swapped.is_plain(0)
    page = Debrief.__new__(Debrief)
    page.gradings, page.code = [found], []
    assert [each.quote for each in page.strengths()] == [plain] and [vague in line for line in page.weak()] == [True]


def test_a_strength_is_plain():
    check_a_strength_is_plain()


def check_a_long_quote_keeps_the_words_that_earn_the_point() -> None:
    start, end = "so the penalty counts and the state advance along the draft and so on " * 4, "and you roll them back"
    quoted = debrief.told("Mentions rolling back the state", f"{start}{end}", 100)
    assert end in quoted and "… " in quoted and len(quoted) < 150


def test_a_long_quote_keeps_the_words_that_earn_the_point():
    check_a_long_quote_keeps_the_words_that_earn_the_point()


def test_a_question_is_no_claim():
    """What a candidate asks back speaks for no point, unless the point is to ask."""
    asked = "Do you mean that the constraints apply to the target only, or to the draft as well?"
    said = "The constraints must apply to the target."
    [match] = suggestions(["Constraints must apply to the target"], asked)
    assert (
        not match.suggested
        and suggestions(["Constraints must apply to the target"], f"{asked} {said}")[0].quote == said
    )
    assert suggestions(["Asks which constraints apply to the target"], asked)[0].suggested
    assert not suggestions(["Looks at batch size"], "What is the batch size; and which drafter is it?")[0].suggested


def test_what_was_not_known_is_said_so_and_once():
    held = interview("L6", seed=5)
    while held.turn.expects != GRADES:
        answer(held, says=lambda turn: "Sorry, I don't know." if turn.kind == "push-back" else deep_answer(turn))
    asked = [box.text.rpartition(" → ")[0] for box in held.turn.boxes if box.group == "push-back"]
    hold(held)
    concerns = all_concerns(held)
    assert (
        f"not known (push-back): {debrief.short(asked[0])}" in concerns and "below L6 in 3 of 3 questions" in concerns
    )
    assert concerns.count(debrief.short(asked[0])) == 1


def first_number() -> Interview:
    held = interview(seed=2)
    while held.turn.expects != NUMBER:
        answer(held)
    return held


def check_what_cannot_be_read_is_not_wrong() -> None:
    for first, second, mark, count in (
        ("no idea", "{x}", "✓", (1, 1)),
        ("no idea", "still none", "–", (0, 1)),
        ("{y}", "{x}", "✓", (1, 1)),
        ("quite a few", "as I said", "–", (0, 0)),
        ("{y}", "", "✗", (0, 1)),
        ("{x} or {y}", "{x}", "✓", (1, 1)),
        ("so {x}", "", "✓", (1, 1)),
    ):
        held = first_number()
        number, values = held.turn.number, {"x": held.turn.number.computed, "y": 17 * held.turn.number.computed}
        held.do("say", text=first.format(**values))
        while held.turn.number is number:
            held.do("say", text=second.format(**values))
        held.do("end")
        found = Debrief(held, "concept")
        assert found.numbers()[0].startswith(f"- {mark} ") and found.counts()["numbers"] == count, (first, second)
        assert ("asked again" in found.numbers()[0]) == (mark == "✓" and not first.startswith("so"))
        said = first if first.startswith("so") else second or first
        assert mark == "–" or f"you said “{said.format(**values)}”" in found.numbers()[0]  # and no other number


def test_what_cannot_be_read_is_asked_again_and_a_right_reply_repairs_the_mark():
    check_what_cannot_be_read_is_not_wrong()


def check_a_keyword_sentence_earns_two_points() -> None:
    held = interview("L6", seed=5)
    while held.turn.expects != GRADES:
        answer(held, says=deep_answer)
    everything = " ".join(by_the_book(held.turn).values())  # one long sentence, quoted again and again
    answer(held, ticks=lambda turn: dict.fromkeys(by_the_book(turn), everything))
    [grading] = Debrief(held, "concept").gradings
    assert len(grading.shown) == 2 and grading.level() < 2


def test_a_sentence_earns_two_points():
    check_a_keyword_sentence_earns_two_points()


def test_who_says_it_all_is_hired():
    held = hold(interview("L6", seed=5), says=deep_answer, ticks=by_the_book, number=right)
    assert signals(held) == [3] and "**Hire at staff (L6).**" in report(held) and "✗" not in report(held)
    counts = Debrief(held, "concept").counts()
    assert list(counts) == list(AXES) and all(
        got == most for axis, (got, most) in counts.items() if axis != "communication"
    )
    below = hold(interview("L5", seed=5), says=deep_answer, ticks=by_the_book, number=right)
    assert "Strong hire at senior (L5)" in report(below)


def test_strengths_quote_the_candidate_and_concerns_name_what_was_not_said():
    held = interview("L5", seed=7)
    while held.turn.expects != GRADES:
        answer(held, says=lambda turn: f"In my own voice: {BANK[turn.question].L4[0]}")
    turn = held.turn
    quote = f"in my own voice: {turn.boxes[0].text}"
    answer(held, ticks=lambda turn: {0: quote, 1: "something else entirely"})
    hold(held)
    text = report(held)
    assert f"“{quote}”" in section(text, "Strengths")
    concerns, fuller = all_concerns(held), section(text, "A fuller answer would also hold")
    for box in turn.boxes[2:]:
        asked, _, point = box.text.rpartition(" → ")
        assert (debrief.short(asked or point) in concerns) == (box.group in ("follow-up", "push-back") or box.must)
        assert (debrief.short(point) in fuller) == (box.group in ("L4", "L5") and not box.must)
    assert "something else entirely" in section(text, "Not found in your answers")


def test_a_sinking_tell_costs_a_level():
    held = interview("L6", seed=5)
    while held.turn.expects != GRADES:
        answer(held, says=deep_answer)
    sinking = {i: "" for i, box in enumerate(held.turn.boxes) if box.group == SINKS}
    first = dict(list(sinking.items())[:1])
    levels = []
    for sunk in ({}, first):
        grading = debrief.graded(held.turn, mock_interview.Reply(ticks={**by_the_book(held.turn), **sunk}))
        levels.append(grading.level())
    assert levels == [3, 2]


# What each check is for: with this piece of the code changed, it fails.
WAITS = "if self.turn.expects in (NOTHING, GRADES):"
MUTANTS = [
    (evidence, "graded", "or supports(point, phrase)", "or True", check_irrelevant_words_earn_nothing),
    (evidence, "refusal", "not was_said(phrase, turn.heard)", "False", check_words_that_were_not_said_earn_nothing),
    (Debrief, "strengths", "and g.is_plain(i)", "", check_a_strength_is_plain),
    (Debrief, "lines", "strengths[:FIRST]", "strengths", check_the_first_page_is_one),
    (Debrief, "lines", "concerns[:FIRST]", "concerns", check_the_first_page_is_one),
    (evidence.Graded, "is_plain", "PLAIN)", "0)", check_a_strength_is_plain),
    (
        debrief,
        "told",
        "excerpt(line.rpartition(' → ')[2], quote, most)",
        "short(quote, most)",
        check_a_long_quote_keeps_the_words_that_earn_the_point,
    ),
    (evidence, "graded", "confirmed or supports(point, phrase)", "True", check_own_words),
    (evidence, "graded", "words in each or each in words", "words == each", check_own_words),
    (evidence, "graded", "] > most", "] > 99", check_a_keyword_sentence_earns_two_points),
    (Debrief, "_signal", "(len(levels) - 1) // 2", "-1", check_the_headline_follows_from_the_table),
    (Debrief, "concerns", "in g.opposite().items()", "in ()", check_the_opposite_is_a_concern),
    (Debrief, "concerns", "in g.suspected().items()", "in ()", check_the_opposite_is_a_concern),
    (Debrief, "concerns", "not self.is_about(turn, reply)", "False", check_the_opposite_is_a_concern),
    (Interview, "_take", WAITS, "if False:", check_the_clock_stops),
    (Interview, "_stop", "self._since = None", "pass", check_the_clock_stops),
]


@pytest.mark.parametrize(("owner", "name", "old", "new", "check"), MUTANTS)
def test_the_checks_see_what_they_are_for(owner, name, old, new, check, monkeypatch):
    rewrite(monkeypatch, owner, name, old, new)
    monkeypatch.setattr(debrief, "graded", evidence.graded)  # names that were imported
    with pytest.raises(AssertionError):
        check()


# ---------------------------------------------------------------- in a terminal


def replies(held: Interview, ticks: str) -> list[str]:
    """What to type for each turn, found by holding a twin."""
    twin = Interview(BANK, held.level, held.format, held.seed, Hands())
    typed = []
    while twin.turn is not None:
        turn = twin.turn
        typed.append({GRADES: ticks, NUMBER: "3", NOTHING: "", CODE: "s"}.get(turn.expects, "Memory is read."))
        if turn.expects == CODE:
            twin.do("skip")
        else:
            answer(twin, says=lambda turn: "Memory is read.", number=lambda turn: "3")
    return typed


@pytest.mark.parametrize("format", ["concept", "design", "coding", "experience"])
def test_in_a_terminal_of_80_columns(tmp_path, format):
    held = interview(format=format, seed=3)
    script = Script(*replies(held, ""))
    assert mock_terminal.hold(held, script.console, Schedule(None), tmp_path / "debrief.md", tmp_path) == 0
    assert held.ended and not script.replies and max(map(len, script.lines)) <= 80
    assert (tmp_path / "debrief.md").read_text(encoding="utf-8") == report(held)
    assert ("Debrief" in script.text and "of 45:00" in script.text) or "of 60:00" in script.text


def test_a_tick_asks_for_the_words_and_p_stops_the_clock(tmp_path):
    held, hands = interview(seed=3), Hands()
    held._now = hands
    typed = replies(held, "1")
    first = typed.index("1")
    typed[first + 1 : first + 1] = ["my very own words", "Memory is read."]
    typed[1:1] = ["p", ""]
    script = Script(*typed[: first + 5])
    mock_terminal.hold(held, script.console, Schedule(None), tmp_path / "debrief.md")
    assert "Which words of yours earn 1?" in script.words and "“Memory is read.”" in report(held)
    assert "I do not find these words in your answers" in script.words and "my very own words" not in report(held)
    assert [event["do"] for event in held.events[:4]] == ["begin", "pause", "go on", "say"]


def test_suggestions_are_confirmed_with_a_question_mark(tmp_path):
    held, schedule = interview(seed=3), Schedule(None)
    script = Script(
        "", *[" ".join(BANK[q].L4 + BANK[q].L5) for q in [first_question(3)]], *["Memory is read."] * 3, "?"
    )
    mock_terminal.hold(held, script.console, schedule, tmp_path / "debrief.md")
    gradings = [(turn, reply) for _, turn, reply, _ in held.transcript if turn.expects == GRADES]
    if not gradings:  # one probe or follow-up more or less
        pytest.fail("the script does not reach the rubric")
    assert len(gradings[0][1].ticks) >= 3 and set(schedule.cards) == {first_question(3)}


def check_a_table_is_printed_as_lines() -> None:
    """No cell is cut, no bar is left, and every line of a row stands below its first cell."""
    held = hold(interview("L6", seed=5), says=deep_answer, ticks=by_the_book, number=right)
    script = Script()
    mock_terminal._read_out(script.console, report(held).splitlines())
    assert max(map(len, script.lines)) <= 80 and "|" not in script.text and "question | level" not in script.text
    for asked, level, found in Debrief(held, "concept").rows():
        lines = script.text.split(debrief.short(asked, 40).rstrip("… "))[1].splitlines()
        assert f"  {LEVELS[level - 1]}: {found}" in lines


def test_a_table_is_printed_as_lines():
    check_a_table_is_printed_as_lines()


def test_the_check_of_tables_sees_what_it_is_for(monkeypatch):
    rewrite(monkeypatch, Console, "listed", 'line.startswith("| ")', "False")
    with pytest.raises((AssertionError, IndexError)):
        check_a_table_is_printed_as_lines()


def test_other_words_than_the_suggested_ones_can_be_quoted(tmp_path):
    question = BANK[first_question(3)]
    own = "I said this in words of my own, about the same thing."
    script = Script("", f"{' '.join(question.L4)} {own}", *["Memory is read."] * 3, "1! 2", own)
    held = interview(seed=3)
    mock_terminal.hold(held, script.console, None, tmp_path / "debrief.md")
    [ticks] = [reply.ticks for _, turn, reply, _ in held.transcript if turn.expects == GRADES]
    assert ticks[0] == own and ticks[1] != own and "Which words of yours earn 1?" in script.words


def first_question(seed: int, format: str = "concept") -> str:
    held = interview(format=format, seed=seed)
    held.do("begin")
    return held.turn.question


def test_a_debrief_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    script = Script("q")
    mock_terminal.hold(interview(), script.console, None, tmp_path / "file/debrief.md")
    assert "not kept" in script.words


# ---------------------------------------------------------------- in a notebook


def test_in_a_notebook_nothing_starts_by_itself(tmp_path):
    desk = mock(seed=3)
    assert desk.view["phase"] == "setup" and desk.interview is None and not desk.view["resumable"]
    desk.act({"do": "start", "level": "L6", "format": "design"})
    assert (desk.interview.level, desk.interview.format) == ("L6", "design")
    assert desk.view["says"].startswith("Hello") and not desk.view["running"] and desk.view["minutes"] == 60
    desk.act({"do": "begin"})
    assert desk.view["running"] and desk.view["expects"] == "words"


def test_a_desk_leads_to_a_debrief_in_html(tmp_path):
    desk = mock(seed=3)
    for content in (
        "nonsense",
        {},
        {"do": "start", "level": "L9"},
        {"do": "start", "level": "L5", "format": "concept"},
    ):
        desk.act(content)
    assert desk.interview.level == "L5"
    while desk.view["phase"] == "turn":
        expects = desk.view["expects"]
        if expects == GRADES:
            assert not desk.view["running"] and desk.view["spoken"]
            desk.act({"do": "grade", "ticks": {"0": "<b>my words</b> are here", "99": "no such box"}})
            assert "no box" in desk.view["note"]
            desk.act({"do": "grade", "ticks": {"0": "<b>my words</b> are here"}})
            assert "once more" in desk.view["note"] and "do not find" in desk.view["boxes"][0]["refused"]
            desk.act({"do": "grade", "ticks": {"0": "<b>my words</b> are here"}})
        else:
            desk.act({"do": "begin"} if expects == NOTHING else {"do": "say", "text": "Bytes."})
    assert "<table>" in desk.view["html"] and "<h2" in desk.view["html"] and "<b>my words" not in desk.view["html"]
    assert "|---" not in desk.view["html"] and (tmp_path / "exams/mock-1.md").exists()


def check_a_refused_quote_is_shown_at_once() -> None:
    """Beside its box, with all ticks as they were; other words are looked at anew, the same ones are left out."""
    desk = mock(seed=3)
    desk.act({"do": "start"})
    while desk.view["expects"] != GRADES:
        desk.act({"do": "begin"} if desk.view["expects"] == NOTHING else {"do": "say", "text": "Memory is read once."})
    turn = desk.interview.turn
    ticks = {"0": "Memory is read once", "1": "words that I never typed", "2": ""}
    desk.act({"do": "grade", "ticks": ticks})
    boxes = desk.view["boxes"]
    assert desk.interview.turn is turn and [box["ticked"] for box in boxes[:4]] == [True, True, True, False]
    assert [bool(box["refused"]) for box in boxes[:4]] == [False, True, True, False]
    assert boxes[1]["words"] == ticks["1"] and "grade once more" in desk.view["note"]
    desk.act({"do": "grade", "ticks": {**ticks, "1": "other words that I never typed"}})
    assert desk.interview.turn is turn  # other words, so it is said again
    desk.act({"do": "grade", "ticks": {**ticks, "1": "other words that I never typed"}})
    assert desk.interview.turn is not turn and not desk.view["note"]
    assert "other words that I never typed" in section(report(desk.interview), "Not found in your answers")


def test_a_refused_quote_is_shown_at_once():
    check_a_refused_quote_is_shown_at_once()


def test_the_check_of_refusals_sees_what_it_is_for(monkeypatch):
    rewrite(monkeypatch, Desk, "_refuse", "if why}", "if False}")
    with pytest.raises(AssertionError):
        check_a_refused_quote_is_shown_at_once()


def test_the_debrief_waits_for_nothing_slow(monkeypatch):
    """nbformat alone takes a second of a quiet core to load, and made the debrief miss a browser's patience."""
    desk = mock(seed=3)
    for name in ("minispec_course.check.exam", "jupytext", "nbformat", "nbconvert"):
        monkeypatch.setitem(sys.modules, name, None)
    for content in ({"do": "start"}, {"do": "begin"}, {"do": "say", "text": "a | b"}, {"do": "end"}):
        desk.act(content)
    assert "<h2>The concept round</h2>" in desk.view["html"]
    desk.act({"do": "again"})
    assert desk.view["phase"] == "setup" and not desk.view["resumable"]


@pytest.mark.parametrize(
    ("markdown", "html"),
    [
        ("# a <b>", "<h1>a &lt;b&gt;</h1>"),
        ("- **x** and `y|**z**`\n- [w](u.md)", "<ul><li><b>x</b> and <code>y|**z**</code></li><li>w</li></ul>"),
        (
            "| a | b |\n|---|---|\n| 1 | P(x \\| y) |",
            "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>P(x | y)</td></tr></tbody></table>",
        ),
        ("one\ntwo\n\nthree", "<p>one two</p>\n<p>three</p>"),
    ],
)
def test_markdown_becomes_html(markdown, html):
    assert to_html(markdown) == html


def test_an_interview_that_was_closed_is_offered_again(tmp_path):
    desk = mock(seed=3)
    for content in ({"do": "start"}, {"do": "begin"}, {"do": "say", "text": "Bytes."}):
        desk.act(content)
    again = mock()
    assert again.view["resumable"].startswith("L5 concept interview with seed 3, begun on ")
    again.act({"do": "resume"})
    assert again.interview.turn == desk.interview.turn and not again.view["running"]
    again.act({"do": "go on"})
    assert again.view["running"]


def test_code_is_checked_from_the_notebook(tmp_path, monkeypatch):
    desk = mock(format="coding", seed=1)
    desk.act({"do": "start"})
    desk.act({"do": "begin"})
    assert desk.view["expects"] == CODE and desk.notebook.exists() and str(desk.notebook.name) in desk.view["says"]
    desk.notebook.write_text("no notebook", encoding="utf-8")
    desk.act({"do": "check"})
    assert desk.interview.transcript[-1][2].outcome == "wrong" and desk.view["kind"] == "probe"
