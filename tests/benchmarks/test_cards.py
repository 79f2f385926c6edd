"""docs/gpu.md says what theory.py computes and what was recorded, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import cards
from minispec import theory
from minispec_course.labs import presets

PAGE = (Path(__file__).resolve().parents[2] / "docs/gpu.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("part", ["computed", "measured"])
def test_the_page_has_the_tables_as_they_are_computed_now(part):
    [table] = re.findall(rf"<!-- {part} -->\n(.*?)\n<!-- end -->", PAGE, flags=re.DOTALL)
    assert table == getattr(cards, part)(), "put in what python -m benchmarks.cards prints"


def test_every_card_has_a_line_in_order_of_its_bandwidth():
    assert [card.name.split(",")[0] for card in cards.CARDS] == ["T4", "RTX 4090", "A100 80 GB SXM", "H100 SXM", "H200"]
    assert list(cards.CARDS) == sorted(cards.CARDS, key=lambda card: card.bandwidth)
    assert all("data sheet" in card.name for card in cards.CARDS)


def test_the_models_are_those_of_the_widgets():
    for config, name in ((cards.LLAMA, "Llama-3-8B"), (cards.SMOLLM2, "smollm2")):
        assert cards.weights(config) == presets.weights_read(presets.SHAPES[name])
        flops, read = presets.work(presets.SHAPES[name], 2, context=cards.CONTEXT)
        for card in cards.CARDS:
            assert cards.tokens_per_second(card, config) == pytest.approx(1 / theory.roofline_time(read, flops, card))


def test_at_the_crossover_nothing_is_gained():
    for card in cards.CARDS:
        batch = cards.crossover(card)
        v = batch * (cards.K + 1) / theory.free_tokens(card)  # the plain pass is memory-bound there, this one is not
        assert batch < theory.free_tokens(card) < batch * (cards.K + 1)
        assert theory.speedup(cards.ALPHA, cards.K, cards.C, v) == pytest.approx(1)


def test_what_the_page_says_of_smollm2_is_so():
    plain = cards.read("drafters")["results"]["free text"]["plain"]["tokens_per_second"]["median"]
    assert plain < cards.tokens_per_second(theory.H200_SHEET, cards.SMOLLM2) / 10
