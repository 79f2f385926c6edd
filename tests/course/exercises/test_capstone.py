"""The leaderboard of the capstone."""

import json

import pytest

from minispec_course import capstone as leaderboard

HEAD, OURS = (
    "def propose(draft, sequence, k):\n    return ",
    "from minispec_course.capstone import by_draft_model as propose\n",
)
DRAFTERS = {  # name → its file, and why it has no score
    "nothing": (f"{HEAD}[]", None),
    "model": (OURS, None),
    "lax": (f"{OURS}verify = lambda logits, q, drafted: drafted or [0]", "not exact"),
    "long": (f"{HEAD}[7] * 9", "4 tokens at most"),
    "empty": ("", "propose"),
}


@pytest.mark.slow
def test_the_leaderboard_asks_for_exactness_first_then_charges_for_every_pass(tmp_path, monkeypatch, run):
    monkeypatch.setenv("MINISPEC_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setattr(leaderboard, "PROMPTS", leaderboard.PROMPTS[:1])
    leaderboard.models.cache_clear()
    for name, (source, refused) in DRAFTERS.items():
        (tmp_path / f"{name}.py").write_text(source)
        code, _, told = run("capstone", tmp_path / f"{name}.py")
        assert code == (2 if refused else 0) and (refused or "") in told, name
    kept = json.loads((tmp_path / "leaderboard.json").read_text())
    assert kept.keys() == {"nothing", "model"} and kept["nothing"][0] == 1
    score, tokens, passes, draft_passes = kept["model"]
    assert 1 < score < tokens / passes and draft_passes > 3 * passes
