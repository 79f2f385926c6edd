"""The audit: every claim is covered, every verdict is computed, and the page says what the computation says."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from minispec_course.interview import audit, wording
from minispec_course.interview.audit import DEPENDS, FAILS, HOLDS, UNKNOWN, Claim, Figure

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = {claim.id: claim for claim in audit.claims()}
COVERAGE = yaml.safe_load((audit.FILE.parent / "coverage.yaml").read_text(encoding="utf-8"))
CHECKABLE = {"claim", "formula", "table", "example", "pseudocode"}


def test_every_claim_of_the_guides_is_audited():
    items = {item: entry for guide in COVERAGE.values() for item, entry in guide.items()}
    audited = {item for claim in CLAIMS.values() for item in claim.items}
    nothing = {item for _, _, some in audit.topics().values() for item in some}
    assert not (audited | nothing) - set(items) and not audited & nothing
    assert {item for item, entry in items.items() if entry["kind"] in CHECKABLE} <= audited | nothing
    assert {item for item, entry in items.items() if "wrong there" in entry["label"]} - audited <= {
        "C.10.medusa"  # an attribution, no claim of its own
    }
    assert len(CLAIMS) == sum(len(some) for _, some, _ in audit.topics().values())  # ids are used once


def test_verdicts_follow_from_the_figures():
    def claim(*figures, given=None):
        return Claim("x", "tokens", "", "", ("A10",), figures, given)

    good, bad, shown = Figure("a", "1 + 1", 2.05), Figure("b", "1 + 1", 2.2), Figure("c", "1 + 1")
    inside, outside = Figure("d", "2", (1, 2)), Figure("e", "2", (2.5, 3))
    assert claim(good, shown).verdict == claim(inside).verdict == HOLDS
    assert claim(bad, outside, shown).verdict == FAILS and claim(good, bad).verdict == DEPENDS
    assert claim(given=UNKNOWN).verdict == UNKNOWN and shown.agrees is None
    assert Figure("f", "0", 0).agrees and not Figure("g", "0.001", 0).agrees


@pytest.mark.parametrize(
    ("id", "verdict", "number"),
    [
        ("example-of-tokens", FAILS, 2.77),
        ("weak-draft-tokens", DEPENDS, 1.65),
        ("worked-example", FAILS, 4),
        ("quantised-draft", DEPENDS, 1.38),
        ("work", FAILS, 1.8),
        ("compute-optimal", FAILS, 0.0913),
        ("gpt3-budget", DEPENDS, 51.23),
        ("draft-cache", FAILS, 1.6),
        ("paging-waste", DEPENDS, 0.0698),
        ("kv-formula", DEPENDS, 512),
        ("heads-are-small", DEPENDS, 0.11),
        ("mini-prefill", FAILS, 5),
        ("formula-of-tokens", HOLDS, 2.31),
        ("accept-rule", HOLDS, 0),
        ("bonus", HOLDS, 5),
        ("threshold", DEPENDS, 0.287),
        ("llama-pair", HOLDS, 0.1),
        ("fragmentation", HOLDS, 0.75),
    ],
)
def test_known_verdicts(id, verdict, number):
    assert CLAIMS[id].verdict == verdict
    assert CLAIMS[id].numbers[0].value == pytest.approx(number, rel=0.01, abs=1e-9)


def test_sound_rules_are_exact_and_wrong_ones_are_not():
    for name in ("sound_rule", "greedy_draft", "other_temperature", "tree_of_residuals"):
        assert audit.compute(name) == pytest.approx(0, abs=1e-9), name
    for name in (
        "inconsistent_temperature",
        "replacement_from_target",
        "accepted_tokens",
        "residual_of_one_number",
        "replacement_without_offset",
        "prompt_never_advanced",
        "tree_of_naive_siblings",
        "typical_acceptance",
    ):
        assert audit.compute(name) > 0.02, name
    used = {figure.compute for claim in CLAIMS.values() for figure in claim.numbers}
    assert set(audit.CHECKS) <= used


def test_the_page_is_up_to_date():
    committed = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    assert committed == audit.page(), "run python -m minispec_course.interview.audit"


def test_the_page_shows_every_claim_and_its_figures(tmp_path):
    text = audit.page()
    for claim in CLAIMS.values():
        assert claim.right in text and claim.guides
    assert "**2.77** (claimed: 2.4)" in text and sum(audit.counts().values()) == len(CLAIMS)
    columns = [line.replace("\\|", "").count("|") for line in text.splitlines() if line.startswith("|")]
    assert set(columns) == {6}
    audit.main([str(tmp_path / "audit.md")])
    assert (tmp_path / "audit.md").read_text(encoding="utf-8") == text


def test_no_eight_words_in_a_row_are_a_guides():
    ours = [audit.FILE, Path(audit.__file__), ROOT / "docs" / "audit.md", ROOT / "course/lessons/07_how_fast.py"]
    for file in ours:
        assert wording.shared(file.read_text(encoding="utf-8")) == [], file.name


def test_mistakes_are_refused():
    with pytest.raises(ValueError, match="topic='luck'.*tokens"):
        audit.table("luck")
    with pytest.raises(ValueError, match="odd: give a claimed number"):
        audit._claim({"id": "odd", "claim": "", "right": "", "items": ["A10"]}, "tokens")
    with pytest.raises(ValueError, match="verdict='maybe'"):
        audit._claim({"id": "odd", "claim": "", "right": "", "items": ["A10"], "verdict": "maybe"}, "tokens")
