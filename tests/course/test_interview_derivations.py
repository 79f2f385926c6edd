"""Derivations of a staff interview: what theory.py computes is what the verifiers do, and each has few, large steps."""

from __future__ import annotations

import ast
import random
import re

import pytest
import torch

from minispec import exact, theory, verify
from minispec_course.interview import derivations, load
from minispec_course.interview.arithmetic import worked
from minispec_course.interview.derivations import DERIVATIONS, derivations_for

BANK = load()
STAFF = derivations_for("L6")
SEEDS = range(20)


def values(derivation) -> list[float]:
    return [step.computed for step in derivation.steps]


def given(derivation) -> list[float]:
    return [float(n) for n in re.findall(r"(?<![\w.])\d+(?:\.\d+)?", derivation.given)]


def test_a_staff_interview_derives_something_else():
    assert derivations_for("L4") == derivations_for("L5") == DERIVATIONS
    assert len(STAFF) >= 5 and not set(STAFF) & set(DERIVATIONS)
    dice = random.Random(0)
    assert dice.choice(derivations_for("L6"))(dice).steps and dice.choice(DERIVATIONS)(dice).steps


@pytest.mark.parametrize("derive", STAFF)
def test_every_step_is_a_formula_of_theory(derive):
    assert len({derive(random.Random(seed)).given for seed in range(30)}) > 10  # nobody knows it by heart
    for seed in range(30):
        derivation = derive(random.Random(seed))
        assert derivation == derive(random.Random(seed)) and derivation.id in BANK
        assert 2 <= len(derivation.steps) <= 3 and derivation.given.endswith("?")  # few steps, and large ones
        names = {n.id for step in derivation.steps for n in ast.walk(ast.parse(step.expression)) if type(n) is ast.Name}
        assert names and all(hasattr(theory, name) for name in names)
        for step in derivation.steps:
            assert step.matches(step.computed) and not step.matches(1.1 * step.computed) and worked(step)
        told = f"{derivation.given} {derivation.begin}"
        assert "=" not in derivation.begin  # the idea, and not the formula
        assert not [step.name for step in derivation.steps if f" {step.computed:.3g} " in told]


def check_the_wrong_replacement() -> None:
    for seed in SEEDS:
        derivation = derivations.wrong_replacement(random.Random(seed))
        numbers = [float(n) for n in re.findall(r"= (\d\.\d+)", derivation.given)]
        p, q = (torch.tensor(each, dtype=torch.float64) for each in (numbers[::2], numbers[1::2]))
        biased = exact.emitted_distribution(p, q, replace=lambda p, q: p)
        assert values(derivation) == pytest.approx([float(p[0] - q[0]), exact.total_variation(biased, p)])


def test_the_wrong_replacement():
    check_the_wrong_replacement()


def test_mixed_traffic():
    for seed in SEEDS:
        derivation = derivations.mixed_traffic(random.Random(seed))
        k, high, low, c = given(derivation)
        chances = [a**i for a in (high, low) for i in range(1, int(k) + 1)]
        tokens, gain, share = values(derivation)
        assert tokens == pytest.approx(1 + sum(chances) / 2) and gain == pytest.approx(tokens / (1 + k * c))
        assert share == pytest.approx(100 * sum(chances) / (2 * k))
        tempting = theory.expected_tokens((high + low) / 2, int(k))
        assert not derivation.steps[0].matches(tempting)  # the mean acceptance gives another number


def test_room_for_a_drafter():
    for seed in SEEDS:
        derivation = derivations.room_for_a_drafter(random.Random(seed))
        target, layers, heads, size, memory, draft, draft_layers, draft_heads, draft_size = given(derivation)
        before = (memory - 2 * target) * 1e9 / (4 * layers * heads * size)
        both = 4 * layers * heads * size + 4 * draft_layers * draft_heads * draft_size
        after = (memory - 2 * target - 2 * draft) * 1e9 / both
        assert values(derivation) == pytest.approx([before, 100 * (1 - after / before)])


def test_the_best_length():
    for seed in SEEDS:
        derivation = derivations.best_length(random.Random(seed))
        alpha, c = given(derivation)
        gains = {k: sum(alpha**i for i in range(k + 1)) / (1 + k * c) for k in range(1, 40)}
        best = max(gains, key=gains.get)
        assert values(derivation) == pytest.approx([best, gains[best], gains[2 * best]])


def check_where_it_stops() -> None:
    for seed in SEEDS:
        derivation = derivations.where_it_stops(random.Random(seed))
        alpha, k, c = (
            float(re.search(rf"{name} = ([\d.]+\d)", derivation.given)[1])
            if name != "k"
            else int(re.search(r"k = (\d)", derivation.given)[1])
            for name in ("α", "k", "c")
        )

        def gain(batch: int, alpha=alpha, k=k, c=c) -> float:
            return theory.speedup(alpha, k, c, v=theory.verify_cost(theory.H200, 8e9, k, batch))

        limit, at_batch = values(derivation)
        assert gain(int(limit)) >= 1 >= gain(int(limit) + 1)
        batch = int(re.search(r"batch (\d+)", derivation.steps[1].name)[1])
        assert at_batch == pytest.approx(gain(batch)) and at_batch > 1 and batch < limit


def test_where_it_stops():
    check_where_it_stops()


def test_a_tree_against_a_chain():
    for seed in SEEDS:
        derivation = derivations.tree_against_chain(random.Random(seed))
        first, second, depth = given(derivation)
        parents, level = [], [-1]
        for _ in range(int(depth)):
            below = [len(parents) + i for i in range(2 * len(level))]
            parents += [parent for parent in level for _ in range(2)]
            level = below
        tree = theory.expected_tokens_of_tree(parents, [first, second] * (len(parents) // 2))
        chain = [sum(first**i for i in range(n + 1)) for n in (len(parents), int(depth))]
        assert values(derivation) == pytest.approx([tree, chain[0], tree / chain[1]])


def check_block_against_token() -> None:
    for seed in SEEDS:
        derivation = derivations.block_against_token(random.Random(seed))
        p_a, q_a = (float(n) for n in re.findall(r"= (\d\.\d+)", derivation.given))
        p, q = (torch.tensor([a, 1 - a], dtype=torch.float64) for a in (p_a, q_a))
        for rule, value in zip((verify.chain, verify.block), values(derivation), strict=True):
            cycle = exact.chain_distribution(lambda _, p=p: p, lambda _, q=q: q, 2, verify=rule)
            assert value == pytest.approx(sum(chance * (len(run) - 1) for run, chance in cycle.items()))
        token, block = values(derivation)
        assert block > token and not derivation.steps[1].matches(token)


def test_block_against_token():
    check_block_against_token()


def test_a_truncated_drafter():
    for seed in SEEDS:
        derivation = derivations.truncated_drafter(random.Random(seed))
        numbers = re.search(r"probabilities ([\d., ]+) at", derivation.given)[1]
        p = torch.tensor([float(n) for n in numbers.split(", ")], dtype=torch.float64)
        k = int(re.search(r"has (\d) tokens", derivation.given)[1])
        q = torch.where(torch.arange(4) < 2, p, 0) / p[:2].sum()
        tokens, likeliest = values(derivation)
        beta = float(torch.minimum(p, q).sum())
        assert tokens == pytest.approx(sum(beta**i for i in range(k + 1)))
        assert likeliest == pytest.approx(float(exact.emitted_distribution(p, p, drawn_from=q)[0]))


@pytest.mark.parametrize(
    ("name", "old", "new", "check"),
    [
        ("block_against_token", '"1" if ratio_a * ratio_b >= 1 else', '"1" if True else', check_block_against_token),
        ("where_it_stops", "/ {k + 1}", "/ {k}", check_where_it_stops),
        ("wrong_replacement", "{left} * {x}", "{left} * {y}", check_the_wrong_replacement),
    ],
)
def test_wrong_formulas_are_found(name, old, new, check, monkeypatch):
    from mutants.patching import rewrite

    rewrite(monkeypatch, derivations, name, old, new)
    with pytest.raises(AssertionError):
        check()
