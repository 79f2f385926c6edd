"""The question bank: every number computed, every link followed, every word our own; and errors that name the place."""

from __future__ import annotations

import copy
import math
import re
from html import escape
from itertools import product
from pathlib import Path

import pytest
import yaml
from interview_statements import RIGHT, WRONG

from minispec import theory
from minispec.cli import main
from minispec_course.interview import (
    BankError,
    bank_file,
    cards,
    cheatsheet,
    design_sheet,
    evaluate,
    levels,
    load,
    matcher,
    problems,
    topics,
    wording,
)
from minispec_course.interview.expressions import literals, quantities
from minispec_course.interview.question import KINDS, LESSONS, LEVELS, Fact, Number, Question, unexplained
from minispec_course.interview.questions import FOLDER, resolve

ROOT = Path(__file__).resolve().parents[2]
BANK = load()
COVERAGE = yaml.safe_load((FOLDER / "coverage.yaml").read_text(encoding="utf-8"))
ITEMS = {item: entry for guide in COVERAGE.values() for item, entry in guide.items()}

GOOD = {
    "id": "my-question",
    "topic": "my-topic",
    "question": "How many tokens per cycle at α = 0.7 and k = 4?",
    "spoken": "I would say 2.77." + " Then I would go on." * 10,
    "L4": ["Quotes it", "Rounds it", "Names α"],
    "L5": ["Derives it", "Sums the tails", "Names the bonus"],
    "L6": ["Measures it", "Doubts it", "Says by position"],
    "raises": ["Checks the limits"],
    "sinks": ["Says α·k"],
    "push_backs": [
        {"says": "We measured 3.", "reply": "Clusters."},
        {"says": "And at k = 64?", "reply": "The ceiling."},
    ],
    "follow_ups": [{"question": "And k = 0?", "short": "One."}],
    "numbers": [{"name": "the tokens a cycle", "expression": "expected_tokens(0.7, 4)", "value": 2.77}],
    "lesson": "07",
    "function": "minispec.theory.expected_tokens",
}


def write(file: Path, *entries) -> Path:
    file.write_text(yaml.safe_dump(list(entries), allow_unicode=True), encoding="utf-8")
    return file


# ---------------------------------------------------------------- the bank that ships


def test_the_bank_is_large_and_reaches_every_lesson():
    assert len(BANK) >= 160
    by_lesson = {lesson: [q for q in BANK.values() if q.lesson == lesson] for lesson in LESSONS[1:]}
    assert all(len(questions) >= 2 for questions in by_lesson.values()), {k: len(v) for k, v in by_lesson.items()}
    assert len(topics(BANK)) >= 10 and levels() == ("L4", "L5", "L6")
    assert {q.kind for q in BANK.values()} == set(KINDS)
    for kind in KINDS:
        assert sum(q.kind == kind for q in BANK.values()) >= 4, kind


def test_every_number_is_what_its_expression_says():
    names = {name: value for name, value in vars(theory).items() if not name.startswith("_")}
    for number in (number for question in BANK.values() for number in question.numbers):
        computed = eval(number.expression, {"__builtins__": {}}, names)  # Python's own reading of it
        assert number.computed == computed
        assert abs(computed - number.value) <= number.within, (number.name, computed)
        # Half a unit of the last digit, unless the text rounds more: then still within five per cent.
        assert number.within <= 0.05 * abs(computed) or number.tolerance is None, number.name


def test_every_number_in_an_answer_has_a_reason_and_every_link_leads_somewhere():
    assert problems(list(BANK.values())) == []
    assert [question.id for question in BANK.values() if resolve(question.function) is None] == []


def test_a_number_in_the_list_is_in_the_text():
    """What a reader of the list is asked must be what the answer says."""
    for question in BANK.values():
        texts = [*question.answers(), *(follow_up.question for follow_up in question.follow_ups)]
        texts += [push_back.says for push_back in question.push_backs]
        said = {float(n.replace(",", "")) for text in texts for n in re.findall(r"\d(?:[\d,]*\d)?(?:\.\d+)?", text)}
        for number in question.numbers:
            assert number.value in said, number.name


def test_every_question_can_be_examined():
    for question in BANK.values():
        assert question.question[-1] in "?.", question.id
        points = [point for _, point in question.points]  # tick boxes
        assert len(points) == len(set(points)), question.id
        assert all(len(point) < 200 for point in points), question.id
        says = [push_back.says for push_back in question.push_backs]
        assert len(set(says)) == len(says) >= 2 and all(text[-1] in "?." for text in says), question.id
        assert all(20 <= len(push_back.reply.split()) <= 80 for push_back in question.push_backs), question.id


def test_every_level_has_three_or_four_points():
    shapes = {tuple(len(question.level(level)) for level in LEVELS) for question in BANK.values()}
    assert shapes <= set(product((3, 4), repeat=3))


def test_only_what_is_said_sinks_a_candidate():
    """Silence is not held against anybody before they were asked."""
    silent = re.compile(r"^(never|forgets|omits|knows (no|only)|does not|leaves out)", re.IGNORECASE)
    assert not [tell for question in BANK.values() for tell in question.sinks if silent.match(tell)]


def right_texts(question: Question) -> list[str]:
    """All that a careful answer may contain."""
    texts = [question.spoken, *(point for _, point in question.points), *question.raises]
    texts += [follow_up.short for follow_up in question.follow_ups]
    changes = question.case.changes if question.case else ()
    return texts + [each.reply for each in (*question.push_backs, *changes)]


def check_what_sinks_is_in_no_right_text() -> None:
    """A right answer is never taken for a mistake, and a mistake is taken for itself."""
    for question in BANK.values():
        for sink in question.sinks:
            assert matcher.find(sink, sink, matcher.SHARE_OF_SINK).suggested, (question.id, sink)
            for text in right_texts(question):
                assert not matcher.find(sink, text, matcher.SHARE_OF_SINK).suggested, (question.id, sink, text)
        rubric = [*(point for _, point in question.points), *question.sinks]  # as a debrief looks for it
        strict = range(len(question.points), len(rubric))
        for text in right_texts(question):
            found = matcher.match_boxes(rubric, [text] * len(rubric), strict)
            assert not [rubric[i] for i in strict if found[i].suggested], (question.id, text)


def test_what_sinks_is_in_no_right_text(monkeypatch):
    check_what_sinks_is_in_no_right_text()
    temperature = BANK["temperature-and-acceptance"]
    wrong = Question(**{**vars(temperature), "sinks": ("Higher temperature usually lowers acceptance",)})
    monkeypatch.setitem(BANK, temperature.id, wrong)
    with pytest.raises(AssertionError):
        check_what_sinks_is_in_no_right_text()


def test_every_question_names_likely_mistakes():
    few = {question.id: len(question.sinks) for question in BANK.values() if len(question.sinks) < 2}
    assert not few and sum(len(question.sinks) for question in BANK.values()) >= 3 * len(BANK)
    for question in BANK.values():
        assert len(set(question.sinks)) == len(question.sinks), question.id


def mistakes_in(id: str, said: str) -> list[str]:
    return [sink for sink in BANK[id].sinks if matcher.find(sink, said, matcher.SHARE_OF_SINK).suggested]


@pytest.mark.parametrize(
    ("id", "said"),
    [
        ("ngram", "I think n-gram drafting is only lossless under greedy decoding."),
        ("exact-or-approximate", "The draft model changes the output distribution a little."),
        ("temperature-and-acceptance", "The acceptance rate does not depend on temperature."),
        ("win-or-hurt", "In my view speculation always helps throughput."),
        ("kv-mechanics", "A KV cache also makes prefill faster."),
        ("paged-attention", "Paged attention makes the attention faster."),
    ],
)
def test_a_likely_mistake_is_found(id, said):
    assert mistakes_in(id, said)


def test_mistakes_are_found_in_other_words_and_right_answers_are_left_alone():
    """Seven wrong statements in ten, and of right ones in nearly the same words hardly any. A word that the matcher
    takes for filler ("always", "only", "more") cannot tell the two apart, so no mistake may hang on one."""
    wrong, right = (
        [mistakes_in(*map(str.strip, line.split("|"))) for line in lines.splitlines()] for lines in (WRONG, RIGHT)
    )
    assert min(len(wrong), len(right)) >= 50
    assert sum(map(bool, wrong)) >= 0.7 * len(wrong) and sum(map(bool, right)) <= 0.04 * len(right)


MEASURED = re.compile(r"measured|achieved", re.IGNORECASE)
ACHIEVED = re.compile(r"4\.2\s+TB/s|790\s+TFLOP/s")


def test_figures_that_were_measured_are_called_so():
    """Whoever knows the data sheet's 4.8 TB/s and 989 TFLOP/s is told that these are others."""
    for question in BANK.values():
        alone = [question.question, *(number.name for number in question.numbers)]  # each of these is asked alone
        assert not [text for text in alone if ACHIEVED.search(text) and not MEASURED.search(text)], question.id
        asked = [text for each in question.follow_ups for text in (each.question, each.short)]
        whole = " ".join([*alone, question.spoken, *asked])
        used = any(re.search(r"\bH200\b", number.expression) for number in question.numbers)
        assert MEASURED.search(whole) or not (used or ACHIEVED.search(whole)), question.id


KINDS_OF_FACTS = {
    "traffic": r"at a time|[Ll]oad\b|[Tt]raffic|requests",
    "latency": r"\bms\b|p95|within|speed",
    "hardware": r"H200|GB/s|hardware",
    "lengths": r"[Pp]rompts have|[Pp]rompts start",
    "model": r"parameters|models",
    "objective": r"objective",
}


def test_a_case_can_be_held():
    """A design of 35 minutes: facts to ask for, headings to fill in, numbers to produce, a change half-way."""
    for question in (question for question in BANK.values() if question.case):
        case = question.case
        assert question.kind == "design" and case.minutes == 35, question.id
        assert len(case.whiteboard) >= 5 and len(case.changes) >= 2 and len(question.numbers) >= 5, question.id
        known = [kind for kind, fact in KINDS_OF_FACTS.items() if any(re.search(fact, r) for r in case.requirements)]
        assert len(known) >= 5, (question.id, known)
        assert all(len(fact.split()) >= 5 and fact[-1] not in ".:" for fact in case.requirements), question.id
        assert all(20 <= len(change.reply.split()) <= 80 for change in case.changes), question.id


def test_a_change_may_be_a_text_alone():
    assert bank_file._change("Half of the memory").reply == ""
    assert bank_file._change({"says": "Half of the memory", "reply": "A smaller model."}).says == "Half of the memory"
    with pytest.raises(ValueError, match="reply"):
        bank_file._change({"says": "Half of the memory"})


def test_a_case_does_not_hand_over_its_answer():
    """The question leaves the facts to be asked for, a heading holds no point, and a change is no push-back."""
    for question in (question for question in BANK.values() if question.case):
        case, points = question.case, [point for _, point in question.points]
        assert not quantities(question.question), question.id
        for heading in case.whiteboard:
            assert not quantities(heading) and len(heading.split()) <= 5, heading
            assert not [point for point in points if matcher.find(point, heading).suggested], heading
        for change in case.changes:
            for push_back in question.push_backs:
                assert not matcher.find(push_back.says, change.says).suggested, change.says
                assert not matcher.find(change.says, push_back.says).suggested, change.says


def test_a_number_does_not_hand_over_one_that_is_asked_later():
    """In a case the numbers are asked in their order."""
    for question in (question for question in BANK.values() if question.case):
        for i, number in enumerate(question.numbers):
            for later in question.numbers[i + 1 :]:
                told = [value for value in quantities(number.name) if later.matches(value, relative=0.01)]
                given = literals(later.expression) | {v for r in question.case.requirements for v in quantities(r)}
                assert not set(told) - given, (number.name, later.name)


def test_numbers_can_be_asked_by_name():
    names = [(number.name, number.value) for q in BANK.values() for number in q.numbers]
    assert not [name for name, _ in names if "the same" in name]  # as what? the question stands alone
    values = {}
    for name, value in names:
        assert values.setdefault(name, value) == value, name  # one name, one number


# ---------------------------------------------------------------- the guides


def test_every_item_of_the_guides_has_its_questions():
    assert list(COVERAGE) == list("ABCDE")
    for item, entry in ITEMS.items():
        assert set(entry) == {"kind", "label", "ids"} and entry["ids"], item
        assert not set(entry["ids"]) - set(BANK), item


def test_sources_and_coverage_say_the_same():
    listed = {(id, item) for item, entry in ITEMS.items() for id in entry["ids"]}
    assert listed == {(q.id, item) for q in BANK.values() for item in q.source}


@pytest.mark.parametrize(
    ("guide", "kind", "count"),
    [
        ("A", "question", 2),
        ("A", "follow-up", 4),
        ("B", "question", 5),
        ("B", "rapid-fire", 6),
        ("B", "variant", 6),
        ("C", "question", 10),
        ("C", "variant", 7),
        ("D", "follow-up", 1),
        ("D", "variant", 3),
        ("E", "variant", 4),
    ],
)
def test_the_inventory_of_the_guides_is_complete(guide, kind, count):
    assert sum(entry["kind"] == kind for entry in COVERAGE[guide].values()) == count


def test_questions_beyond_the_guides():
    beyond = """kv-size gqa prefix-caching preemption chunked-prefill temperature-and-acceptance batch-effect
    tree-verification medusa-eagle-dflash quantised-draft when-to-turn-off production-metrics why-is-it-slower
    numerics-of-lossless ten-times-cheaper""".split()
    assert not set(beyond) - set(BANK)
    assert sum(not question.source for question in BANK.values()) >= 20


# What the guides get wrong, and the number or phrase that sets it right.
@pytest.mark.parametrize(
    ("id", "says"),
    [
        ("expected-tokens", "2.77"),
        ("residual-not-p", "0.58"),
        ("greedy-draft", "one-hot"),
        ("what-happens-on-rejection", "four"),
        ("ceiling-of-alpha", "1/(1 − α)"),
        ("verify-cost", "memory-bound"),
        ("kv-size", "320 KiB"),
        ("medusa", "t+1+k"),
        ("medusa-cost", "0.74 B"),
        ("compute-optimal", "0.091"),
        ("quantisation-speed", "2.5 ×"),
        ("accepted-tokens-law", "min(p, q)/β"),
        ("total-flops", "3.0 ×"),
        ("quantised-draft", "1.4 ×"),
        ("draft-cache-memory", "512 KiB"),
        ("break-even", "α > c"),
        ("train-past-optimal", "51 B"),
        ("sampling-parameters", "Not for exactness"),
        ("staged-speculation", "unchanged"),
        ("prefill-and-decode", "not because attention"),
        ("block-waste", "180"),
        ("published-speedups", "4 B"),
    ],
)
def test_wrong_claims_are_set_right(id, says):
    assert says in BANK[id].spoken


def test_no_eight_words_in_a_row_are_a_guides():
    for file in [
        *FOLDER.rglob("*.yaml"),
        *FOLDER.rglob("*.py"),
        ROOT / "docs" / "cheatsheet.md",
        ROOT / "docs" / "design_sheet.md",
    ]:
        assert wording.shared(file.read_text(encoding="utf-8")) == [], file.name


def test_borrowed_words_are_found_whatever_their_dress():
    title = "accelerating LARGE *language* model,\n decoding (with) speculative — sampling!"
    assert wording.shared(title) == []  # a title may be named
    assert len(wording.shared(title, allowed=())) == 1
    assert wording.shared(f"see {title} there", allowed=()) == wording.shared(title, allowed=())
    assert wording.shared(title.replace("model", "models"), allowed=()) == []
    assert len(wording.known()) > 5000


def test_hashes_are_packed_and_found_again(tmp_path, monkeypatch):
    text = "one two three four five six seven eight nine"
    (tmp_path / "hashes").write_bytes(wording.pack([text, text]))
    monkeypatch.setattr(wording, "HASHES", tmp_path / "hashes")
    assert len(wording.known()) == 2
    assert wording.shared("zero " + text, allowed=()) == [text[: -len(" nine")], text[len("one ") :]]
    assert wording.shared("One two three four five six seven") == []


# ---------------------------------------------------------------- expressions


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("expected_tokens(0.7, 4)", 2.7731),
        ("2 * 3 - -1 / 4", 6.25),
        ("2**10", 1024),
        ("H200.bandwidth", 4.2e12),
        ("compute_optimal(120)[0]", 1.0),
        ("step_work(10, cached=True).pairs", 10),
        ("acceptance([0.5, 0.5], [1, 0])", 0.5),
        ("speedup(0.7, 4, c=0.1)", theory.speedup(0.7, 4, 0.1)),
    ],
)
def test_expressions_compute(expression, value):
    assert evaluate(expression) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os')",
        "open('x')",
        "().__class__",
        "expected_tokens.__globals__",
        "H200.__class__",
        "H200.name",
        "lambda: 1",
        "[x for x in [1]]",
        "'a'",
        "math.pi",
        "theory",
        "print(1)",
        "1 if 1 else 2",
        "9**9**9**9",
        "[1] * 10",
        "compute_optimal(1)",
        "[1, 2]",
        "True",
        "expected_tokens",
        "expected_tokens(2, 4)",
        "1 / 0",
        "1 +",
        "expected_tokens(*[0.7, 4])",
        "expected_tokens(**H200)",
        "[1][5]",
        "(1, 2)[0:1]",
        "Hardware('a', 1, 1)",
        "",
        "sum([1])",
        "expected_tokens.__code__.co_argcount",
        "([1] * 3)[0]",
        "_count(1)",
        "expected_tokens(0.7)",
        "x := 1",
    ],
)
def test_anything_else_is_refused(expression):
    with pytest.raises(ValueError):
        evaluate(expression)


def test_an_answer_from_the_head_may_be_five_per_cent_off():
    number = Number("tokens a cycle", "expected_tokens(0.7, 4)", 2.77)
    assert number.matches(2.8) and number.matches(2.65) and not number.matches(2.4)
    assert Number("block", "wasted_slots(100)", 12).matches(12.4) and math.isclose(number.within, 0.005, rel_tol=1e-6)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2.77 tokens, 45 % lost", [2.77, 45]),
        ("1.98 × at K = 4", [1.98]),
        ("140 GB at 3.35 TB/s", [140, 3.35]),
        ("LLaMA-2-70B and 7B", []),
        ("51 B on 1.0 T", [51, 1.0]),
        ("14,950.5 or 64-fold", [14950.5, 64]),
        ("2–3×", [3]),
        ("five tokens, K + 1, 2·N, O(n²)", []),
        ("262 tokens/s in 42 ms", [262, 42]),
    ],
)
def test_numbers_that_need_a_reason(text, found):
    assert quantities(text) == found


def test_a_number_without_a_reason_is_reported():
    good = Question(**{**vars(BANK["expected-tokens"]), "spoken": "About 2.77, or 17 %."})
    assert unexplained(good) == [17]
    assert unexplained(Question(**{**vars(good), "facts": (Fact((17, 2.4), "so they say"),)})) == []
    assert "17" in problems([good])[0] and "expected-tokens" in problems([good])[0]
    lost = Question(**{**vars(BANK["expected-tokens"]), "function": "minispec.theory.expected_tokes"})
    assert "function" in problems([lost])[0]


# ---------------------------------------------------------------- a teacher's own files


def test_own_questions_join_the_bank(tmp_path):
    write(tmp_path / "mine.yaml", GOOD)
    write(tmp_path / "more.yml", {**GOOD, "id": "another"})
    bank = load(tmp_path)
    assert set(bank) - set(BANK) == {"my-question", "another"}
    assert topics(bank) == [*topics(BANK), "my-topic"]
    question = bank["my-question"]
    assert question.level("L5") == ("Derives it", "Sums the tails", "Names the bonus") and question.file.endswith(
        "mine.yaml"
    )
    assert question.kind == "concept" and question.source == () and problems([question]) == []
    assert set(load(tmp_path / "mine.yaml")) - set(BANK) == {"my-question"}
    with pytest.raises(ValueError, match="L7.*L4, L5, L6"):
        question.level("L7")


WITHOUT = object()


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("spoken", WITHOUT, "spoken: missing"),
        ("spoken", "Two words.", "spoken: 2 words; an answer that is spoken has 40 to 90"),
        ("push_backs", WITHOUT, "push_backs: missing"),
        ("push_backs", [{"says": "No.", "reply": "Yes."}], "push_backs: [{"),
        ("push_backs", [{"says": "No."}, {"says": "So?", "reply": "Yes."}], "push_backs[0].reply: missing"),
        ("L6", ["one", "two"], "L6: ['one', 'two'] should be a list with 3 to 4 entries"),
        ("L4", list("abcde"), "L4: ['a', 'b', 'c', 'd', 'e'] should be a list with 3 to 4 entries"),
        ("case", dict(minutes="35", requirements=["a"], whiteboard=["b"], changes=["c"]), "case.minutes: '35'"),
        ("L6", WITHOUT, "L6: missing"),
        ("must", ["L5.4"], "must: 'L5.4' is no point; the second one of L5 is L5.2"),
        ("must", ["L7.1"], "must: 'L7.1'"),
        ("must", "L5.1", "must: 'L5.1' should be a list"),
        ("id", "My Question", "id: 'My Question'"),
        ("topic", 3, "topic: 3"),
        ("L4", "one point", "L4: 'one point' should be a list"),
        ("L4", [], "L4: []"),
        ("L5", ["fine", 7, "too"], "L5[1]: 7 should be a text"),
        ("sinks", [""], "sinks[0]: ''"),
        ("lesson", 7, "lesson: 7 should be one of 00"),
        ("lesson", "99", "lesson: '99'"),
        ("kind", "riddle", "kind: 'riddle' should be one of concept"),
        ("function", "torch.nn", "function: 'torch.nn'"),
        ("levels", {}, "levels: unknown field"),
        ("follow_ups", [{"question": "And?"}], "follow_ups[0].short: missing"),
        ("follow_ups", ["And?"], "follow_ups[0]: 'And?' should be a mapping"),
        ("facts", [{"values": ["a"], "note": "b"}], "facts[0].values[0]: 'a' should be a number"),
        ("numbers", [{"name": "x", "expression": "1 + 1", "value": "two"}], "numbers[0].value: 'two'"),
        ("numbers", [{"name": "x", "expression": "1 + 1", "value": 3}], "numbers[0].value: 3, but 1 + 1 is 2"),
        ("numbers", [{"name": "x", "expression": "exec('1')", "value": 3}], "numbers[0].expression: "),
        ("numbers", [{"name": "x", "expression": "2", "value": 2, "unti": "×"}], "numbers[0].unti: unknown field"),
        ("numbers", [{"name": "x", "expression": "2", "value": 2, "remember": "yes"}], "numbers[0].remember: 'yes'"),
    ],
)
def test_a_mistake_is_named_by_file_entry_and_field(tmp_path, field, value, named):
    entry = copy.deepcopy(GOOD)
    entry[field] = value
    if value is WITHOUT:
        del entry[field]
    write(tmp_path / "mine.yaml", entry, {**GOOD, "id": "sound"})
    with pytest.raises(BankError) as caught:
        load(tmp_path)
    [line] = str(caught.value).splitlines()
    who = entry["id"] if field != "id" else value
    assert str(tmp_path / "mine.yaml") in line and f"entry {who}, {named}" in line


def test_all_mistakes_are_named_at_once(tmp_path):
    write(tmp_path / "a.yaml", {**GOOD, "L4": [], "lesson": "99"}, {"topic": "x"}, "only a text")
    (tmp_path / "b.yaml").write_text("- id: [", encoding="utf-8")
    with pytest.raises(BankError) as caught:
        load(tmp_path)
    text = str(caught.value)
    assert "my-question, L4" in text and "my-question, lesson" in text and "entry number 2, id: missing" in text
    assert "entry number 3" in text and "b.yaml: not valid YAML" in text


def test_an_id_is_used_once(tmp_path):
    write(tmp_path / "mine.yaml", GOOD, GOOD)
    with pytest.raises(BankError, match="my-question, id: already used in .*mine.yaml"):
        load(tmp_path)
    write(tmp_path / "mine.yaml", {**GOOD, "id": "walk-me-through"})
    with pytest.raises(BankError, match="walk-me-through, id: already used in .*04_draft_and_verify.yaml"):
        load(tmp_path)


@pytest.mark.parametrize("content", ["", "id: one", "- id: a\n  id: b\n", "just words", "- !!python/name:os.system\n"])
def test_files_that_are_no_list_of_questions(tmp_path, content):
    (tmp_path / "mine.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(BankError, match="mine.yaml"):
        load(tmp_path)


def test_a_field_given_twice_is_not_silently_overwritten(tmp_path):
    file = write(tmp_path / "mine.yaml", GOOD)
    file.write_text(file.read_text(encoding="utf-8") + "  spoken: again\n", encoding="utf-8")
    with pytest.raises(BankError, match="mine.yaml.*'spoken' is given twice"):
        load(tmp_path)


def test_a_folder_without_questions(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ValueError, match="bank=.*give a folder"):
            load(folder)


# ---------------------------------------------------------------- the cheat sheet, and what is installed


def test_the_cheat_sheet_is_up_to_date():
    committed = (ROOT / "docs" / "cheatsheet.md").read_text(encoding="utf-8")
    assert committed == cheatsheet.page(), "run python -m minispec_course.interview.cheatsheet"


def test_the_design_sheet_is_up_to_date_and_agrees_with_the_bank():
    committed = (ROOT / "docs" / "design_sheet.md").read_text(encoding="utf-8")
    assert committed == design_sheet.page(), "run python -m minispec_course.interview.design_sheet"
    rows = [row for _, rows in design_sheet.SECTIONS for row in rows]
    values = {row.name: row.value for row in rows}
    assert len(values) == len(rows) and all(0 < value < float("inf") for value in values.values())
    known = {number.name: number.computed for number in BANK["design-8b-node"].numbers}
    for name, same in (
        (
            "bytes of a step",
            "the bytes per step with 8 B bf16 parameters and 64 sequences of 2,000 tokens at 128 KiB each",
        ),
        ("time per token (TPOT), at best", "the least time per step with 8 B bf16 parameters and 64 sequences"),
        ("a prompt of 1,000 tokens", "the least time to process 1,000 tokens with 8 B bf16 parameters at a measured"),
    ):
        [number] = [value for key, value in known.items() if key.startswith(same)]
        assert values[name] == pytest.approx(number)
    v = [values[f"v at batch {batch}"] for batch in (1, 64, 128)]
    gains = [values[f"gain at batch {batch}, c = 0.05"] for batch in (1, 64, 128)]
    assert v == sorted(v) and v[0] == 1 and gains == sorted(gains, reverse=True)
    assert v[2] < evaluate("verify_cost(H200, 8e9, 4, 128)")  # the cache, which is read once, makes it milder


def test_cards_hold_every_question_and_its_answer():
    text = cards.page(BANK)
    for question in BANK.values():
        assert text.count(f"<p>{escape(question.question)}</p>") == text.count(f"<p>{escape(question.spoken)}</p>") == 1
    some = cards.page(BANK, ["speed"])
    chosen = [question for question in BANK.values() if question.topic == "speed"]
    assert some.count('class="card front') == some.count('class="card back') == len(chosen) < len(BANK)
    with pytest.raises(ValueError, match="give some of"):
        cards.page(BANK, ["tea"])


def test_cards_are_written_by_a_command(tmp_path, capsys):
    assert main(["cards", str(tmp_path / "mine.html"), "--topics", "speed", "kv-cache"]) == 0
    assert (tmp_path / "mine.html").read_text(encoding="utf-8").count("<section") % 2 == 0
    assert "mine.html" in capsys.readouterr().out


def test_the_cheat_sheet_is_one_page_and_its_names_exist():
    text = cheatsheet.page()
    assert len(text.splitlines()) <= 80 and len(text.split()) <= 1800
    assert [name for name, *_ in cheatsheet.VARIANTS] == [
        "n-gram",
        "suffix",
        "draft model",
        "early exit",
        "quantised",
        "cascade",
        "lookahead",
        "Medusa",
        "EAGLE",
        "DFlash",
    ]
    for _, drafter, id, *cells in cheatsheet.VARIANTS:
        assert resolve(f"minispec.drafters.{drafter}") and id in BANK and len(cells) == 5
    assert all(f"`{name}`" in text for name in cheatsheet.FORMULAS)
    assert "**2.77**" in text and "**320 KiB**" in text


def test_the_cheat_sheet_follows_the_bank(tmp_path):
    marked = {**GOOD["numbers"][0], "name": "the tokens of a teacher", "remember": True, "expression": "1 + 0.5 * 3"}
    about = {**marked, "value": 2.4, "tolerance": 0.2}  # the text rounds, the sheet computes
    write(tmp_path / "mine.yaml", {**GOOD, "spoken": "So I say 2.4. " * 12, "numbers": [about]})
    assert "| tokens of a teacher | **2.5** |" in cheatsheet.page(load(tmp_path))
    file = tmp_path / "sheet.md"
    cheatsheet.main([str(file)])
    assert file.read_text(encoding="utf-8") == cheatsheet.page()


def test_every_data_file_is_installed():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    patterns = re.findall(r'"course/(interview/[^"]+)"', text)
    installed = {file for pattern in patterns for file in FOLDER.parent.glob(pattern)}
    wanted = {file for file in FOLDER.rglob("*") if file.suffix in (".yaml", ".bin")}
    assert wanted == installed and len(wanted) > 10
