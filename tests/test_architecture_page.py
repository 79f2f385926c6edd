"""docs/architecture.md does what it says: its code runs, its table is what the engine does, its drafter is exact."""

import re
from pathlib import Path

import pytest
import torch

import minispec as ms

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


def run(*blocks: str) -> dict:
    names: dict = {"ms": ms}
    for block in blocks:
        exec(block, names)
    return names


def as_words(row) -> str:
    """A request's part of a step as the table says it, without the words."""
    return f"{row.phase}, {row.tokens}" + (f", {row.accepted} of {row.drafted}" if row.drafted else "")


def in_table(cell: str) -> str:
    if not cell:
        return ""
    phase, *counts = cell.split(", ")
    first, *rest = [re.findall(r"\d+", count) for count in counts]
    return ", ".join([phase, first[0], *(" of ".join(pair) for pair in rest)])


def test_the_table_is_what_the_engine_does():
    records = run(BLOCKS[0])["records"]
    lines = re.findall(r"^\| (\d+) \| (.*?) ?\| (.*?) \| (\d+) \|$", PAGE, flags=re.MULTILINE)
    assert [int(step) for step, *_ in lines] == [record.step for record in records]
    for record, (_, *cells, blocks) in zip(records, lines, strict=True):
        parts = {row.id: as_words(row) for row in record.rows}
        assert [in_table(cell) for cell in cells] == [parts.get(0, ""), parts.get(1, "")]
        assert record.used_blocks == int(blocks)
    assert sum(record.emitted for record in records) == 20


@pytest.mark.slow
def test_the_drafter_of_the_page_is_exact_and_of_use():
    drafter = run(BLOCKS[1])["Frequent"]()
    target, prompt = ms.load("micro", dtype=torch.float64), "the cat and the dog and the cat and"
    plain = ms.generate(target, prompt, max_new_tokens=32)
    out = ms.speculate(target, prompt, drafter, k=4, max_new_tokens=32)
    assert out.tokens == plain.tokens and out.trace.tokens_per_cycle > 1
    engine = ms.Engine(target, drafter, num_blocks=16, k=4)
    assert engine.generate([prompt], ms.SamplingParams(max_new_tokens=32), progress=False)[0].tokens == plain.tokens
    run(*BLOCKS[1:])
