"""The question bank: every number computed, every name followed, errors that say where; sheets and cards."""

from __future__ import annotations

import ast
import copy
import math
import pkgutil
import random
import re
from collections.abc import Iterable
from html import escape
from pathlib import Path

import pytest
import yaml

from minispec import theory, verify
from minispec_course import formulas
from minispec_course.interview import BankError, cards, fresh, load, sheets, topics
from minispec_course.interview.expressions import evaluate, readings
from minispec_course.interview.question import Number, Question
from minispec_course.interview.questions import FOLDER, read_file, read_yaml
from minispec_tools.cli import main

ROOT = Path(__file__).resolve().parents[3]
BANK = {question.id: question for file in sorted((FOLDER / "bank").glob("*.yaml")) for question in read_file(file)}
GOOD = {**read_yaml(FOLDER / "bank/06_speed.yaml")[0], "id": "my-question", "topic": "my-topic"}


def write(file: Path, *entries) -> Path:
    file.write_text(yaml.safe_dump(list(entries), allow_unicode=True), encoding="utf-8")
    return file


def test_every_number_is_what_its_expression_says():
    names = {name: value for name, value in vars(formulas).items() if not name.startswith("_")}
    for number in (number for question in BANK.values() for number in question.numbers):
        computed = eval(number.expression, {"__builtins__": {}}, names)  # Python's own reading of it
        assert number.computed == computed
        assert abs(computed - number.value) <= number.within, (number.name, computed)
        # Half a unit of the last digit, unless the text rounds more: then still within five per cent.
        assert number.within <= 0.05 * abs(computed) or number.tolerance is None, number.name


# ---- every number has a reason --------------------------------------------------------------------------------------

# Numbers that need a reason: decimals, percentages, factors, and those with a unit.
QUANTITY = re.compile(
    r"(?<![\w.-])(\d[\d,]*(?:\.\d+)?)"
    r"(\s?(?:%|×|-fold|KiB|MiB|GiB|KB|MB|GB|TB|ms\b|µs|TFLOP|GFLOP|tokens/s)| [BTM]\b)?"
)


def quantities(texts: Iterable[str]) -> set[float]:
    found = [(number.replace(",", ""), unit) for text in texts for number, unit in QUANTITY.findall(text)]
    return {float(number) for number, unit in found if unit or "." in number}


def unexplained(question: Question) -> list[float]:
    """The numbers in an answer that are neither computed, nor given in the question, nor a fact with a note."""
    case, pushed = question.case, question.push_backs
    asked = [question.question, *(each.question for each in question.follow_ups), *(each.says for each in pushed)]
    told = [question.spoken, *question.L4, *question.L5, *question.L6, *question.raises, *question.sinks]
    told += [*(each.short for each in question.follow_ups), *(each.reply for each in pushed)]
    if case:
        asked += [*case.requirements, *(each.says for each in case.changes)]
        told += [*case.whiteboard, *(each.reply for each in case.changes)]
    known = quantities(asked) | {value for fact in question.facts for value in fact.values}
    for number in question.numbers:
        nodes = ast.walk(ast.parse(number.expression.strip(), mode="eval"))
        known |= {float(number.value), *(float(node.value) for node in nodes if isinstance(node, ast.Constant))}
    return sorted(value for value in quantities(told) if value not in known and value / 100 not in known)


def test_every_number_in_an_answer_has_a_reason():
    assert {id: found for id, question in BANK.items() if (found := unexplained(question))} == {}


def test_every_function_that_a_question_names_is_in_the_package():
    for question in BANK.values():
        pkgutil.resolve_name(question.function)


def all_values(entry: dict) -> list[dict]:
    dice = random.Random(0)
    return entry.get("cases") or [fresh._values(entry, dice) for _ in range(20)]


def test_every_template_computes_a_number_for_every_parameter():
    templates = fresh.templates()
    for entry in templates["numbers"]:
        assert entry["topic"] in topics(BANK), entry["name"]
    for entry in templates["derivations"]:
        assert entry["question"] in BANK, entry["name"]
    steps = [(entry, entry) for entry in templates["numbers"]]
    steps += [(entry, step) for entry in templates["derivations"] for step in entry["steps"]]
    for entry, step in steps:
        for values in all_values(entry):
            number = fresh._number(step, values)
            assert 0 < number.value < math.inf and "{" not in number.name + number.expression, number


def derivation(name: str) -> list[tuple[dict, list[float]]]:
    """Every case of a derivation, with the values of its steps."""
    [entry] = [entry for entry in fresh.templates()["derivations"] if entry["name"] == name]
    return [(v, [fresh._number(step, v).value for step in entry["steps"]]) for v in all_values(entry)]


def test_derivations_are_what_the_verifiers_do():
    import torch

    for given, (_, accepted, rejected, residual, emitted, wrong) in derivation("losslessness"):
        p, q = (torch.tensor([given[f"{name}{token}"] for token in "abc"], dtype=torch.float64) for name in "pq")
        assert p.sum() == pytest.approx(1) and q.sum() == pytest.approx(1)
        assert accepted + rejected == pytest.approx(1) and emitted == pytest.approx(given["pa"])
        assert residual == pytest.approx(float(verify.residual(p, q)[0])) and abs(wrong / emitted - 1) > 0.05
    for given, (last, _) in derivation("where speculation stops paying"):
        v = theory.verify_cost(theory.H200, 8e9, k=given["k"], batch=round(last))
        assert theory.speedup(given["alpha"], given["k"], given["c"], v=v) == pytest.approx(1, abs=0.02)
    for given, (by_token, by_block) in derivation("block verification"):
        p, q = given["p"], given["q"]
        ratios = {"a": min(1, p / q), "b": (1 - p) / (1 - q)}
        kept = {"aa": 1, "ab": ratios["b"], "ba": min(1, ratios["b"] * p / q), "bb": ratios["b"] ** 2}
        chance = {"a": q, "b": 1 - q}
        both = sum(chance[x] * chance[y] * kept[x + y] for x, y in kept)
        assert by_block == pytest.approx((q + 1 - p) + both) and by_block > 1.02 * by_token


def test_expressions_compute_and_anything_else_is_refused():
    for expression, value in {
        "expected_tokens(0.7, 4)": 2.7731,
        "2 * 3 - -1 / 4": 6.25,
        "H200.bandwidth": 4.2e12,
        "compute_optimal(120)[0]": 1.0,
        "decode_work(10, 1, cached=True).linear": 10,
        "acceptance([0.5, 0.5], [1, 0])": 0.5,
    }.items():
        assert evaluate(expression) == pytest.approx(value, rel=1e-12), expression
    refused = """__import__('os')|().__class__|expected_tokens.__globals__|H200.name|lambda: 1|[x for x in [1]]|'a'
    theory|print(1)|1 if 1 else 2|9**9**9**9|[1] * 10|[1, 2]|True|expected_tokens|expected_tokens(2, 4)|1 / 0|1 +|[1][5]
    sum([1])|expected_tokens(*[0.7, 4])|expected_tokens(**H200)|Hardware('a', 1, 1)||_count(1)|x := 1"""
    for expression in re.split(r"\||\n", refused):
        with pytest.raises(ValueError):
            evaluate(expression)


TYPED = [
    (2.77, "", ["2.77", "2,77", "about 2.77", "≈ 2.8", "2.77 tokens per cycle"], ["2.4", "27.7"]),
    (1000, "", ["1,000", "2*500", "2 x 500", "1e3", "10^3", "1 thousand"], ["100", "1e4"]),
    (1e9, "", ["1e9", "1 billion", "1,000,000,000", "10**9"], ["1e8"]),
    (5.2, "×", ["5.2×", "5.2 x", "5.2", "about 5.2 ×"], ["5.9×"]),
    (12, "GB", ["12 GB", "12", "12,000 MB", "0.012 TB", "12 GiB"], ["12 MB"]),
    (320, "KiB", ["320 KiB", "2*80*8*128*2/1024", "2 · 80 · 8 · 128 · 2 / 1024"], ["320 GB"]),
    (3, "ms", ["3 ms", "0.003 s", "3000 µs"], ["3 s", "4 ms"]),
    (0.45, "", ["45 %", "0.45", "(1 − 0.1) / 2"], ["45"]),
    (45, "%", ["45 %", "45", "0.45"], ["0.45 %"]),
]


@pytest.mark.parametrize(("value", "unit", "right", "wrong"), TYPED)
def test_a_number_is_understood_as_people_type_it(value, unit, right, wrong):
    number = Number("a number", repr(value), value, 0.0, unit=unit)
    assert {text for text in right if not number.is_stated_by(text)} == set()
    assert {text for text in wrong if number.is_stated_by(text)} == set()
    assert all(readings(text, unit) for text in (*right, *wrong))


def test_what_is_no_number_or_more_than_one_is_asked_again():
    for text in ("x", "no idea", "1/0", "9**9**9**9", "3 ms or 4 ms", "", "between 2 and 3", "__import__('os')"):
        assert readings(text, "ms") == [], text


def test_own_questions_join_the_bank(tmp_path):
    write(tmp_path / "mine.yaml", GOOD)
    write(tmp_path / "more.yml", {**GOOD, "id": "another"})
    bank = load(tmp_path)
    assert set(bank) - set(BANK) == {"my-question", "another"} and topics(bank) == [*topics(BANK), "my-topic"]
    question = bank["my-question"]
    assert question.level("L5") == tuple(GOOD["L5"]) and question.file.endswith("mine.yaml")
    assert set(load(tmp_path / "mine.yaml")) - set(BANK) == {"my-question"}
    with pytest.raises(ValueError, match="L7.*L4, L5, L6"):
        question.level("L7")


def test_a_mistake_is_named_by_file_entry_and_field(tmp_path):
    number = {"name": "x", "expression": "1 + 1", "value": 2}
    case = dict(minutes="35", requirements=["a"], whiteboard=["b"], changes=[{"says": "c", "reply": "d"}])
    for field, value, named in (
        ("spoken", None, "spoken"),
        ("spoken", "Two words.", "spoken: 2 words"),
        ("push_backs", [{"says": "No."}, {"says": "So?", "reply": "Yes."}], "push_backs[0]"),
        ("L6", ["one", "two"], "L6"),
        ("L5", ["fine", 7, "too"], "L5[1]"),
        ("case", case, "case.minutes"),
        ("must", ["L5.4"], "must: L5.4"),
        ("must", ["L7.1"], "must[0]"),
        ("sinks", [""], "sinks[0]"),
        ("lesson", "99", "lesson"),
        ("function", "torch.nn", "function"),
        ("levels", {}, "'levels' was unexpected"),
        ("follow_ups", ["And?"], "follow_ups[0]"),
        ("numbers", [{**number, "value": 3}], "numbers[0].value: 3, but 1 + 1 is 2"),
        ("numbers", [{**number, "expression": "exec('1')"}], "numbers[0].expression"),
        ("numbers", [{**number, "unti": "×"}], "'unti' was unexpected"),
    ):
        entry = {**copy.deepcopy(GOOD), field: value}
        if value is None:
            del entry[field]
        write(tmp_path / "mine.yaml", entry, {**GOOD, "id": "sound"})
        with pytest.raises(BankError) as caught:
            load(tmp_path)
        assert len(str(caught.value).splitlines()) == 1, caught.value
        assert f"{tmp_path / 'mine.yaml'}: entry my-question, " in str(caught.value) and named in str(caught.value)


def test_the_sheets_are_up_to_date_and_follow_the_bank(tmp_path):
    for name in sheets.SIZES:
        committed = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
        assert committed == sheets.page(name), "run python -m minispec_course.interview.sheets"
    marked = {**GOOD["numbers"][0], "name": "the tokens of a teacher", "remember": True, "expression": "1 + 0.5 * 3"}
    about = {**marked, "value": 2.4, "tolerance": 0.2}  # the text rounds, the sheet computes
    write(tmp_path / "mine.yaml", {**GOOD, "spoken": "So I say 2.4. " * 12, "numbers": [about]})
    assert "| tokens of a teacher | **2.5** |" in sheets.page("cheatsheet", load(tmp_path / "mine.yaml"))


def test_cards_hold_every_question_and_its_answer(tmp_path):
    text = cards.page(BANK)
    for question in BANK.values():
        assert text.count(f"<p>{escape(question.question)}</p>") == text.count(f"<p>{escape(question.spoken)}</p>") == 1
    assert main(["cards", str(tmp_path / "mine.html"), "--topics", "speed"]) == 0
    some = (tmp_path / "mine.html").read_text(encoding="utf-8")
    chosen = [question for question in BANK.values() if question.topic == "speed"]
    assert some.count('class="card front') == some.count('class="card back') == len(chosen) < len(BANK)
    with pytest.raises(ValueError, match="give some of"):
        cards.page(BANK, ["tea"])
