"""lm-eval's own command line against `minispec serve`: with a drafter and without, its results are the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from server_checks import running, target

import minispec as ms

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'lm_eval[api]'")
pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[3]
WORDS = "run --model local-completions --tasks stories,continue --include_path tests/data/lm_eval --log_samples"


def found(drafter, folder: Path) -> dict[tuple[str, int], list]:
    """What it was answered, by task and question."""
    with running(drafter=drafter) as server:
        how = f"model=micro,base_url={server.url}/v1/completions,tokenizer=minispec/data/micro"
        how += ",tokenizer_backend=huggingface"
        command = [sys.executable, "-m", "lm_eval", *WORDS.split(), "--model_args", how, "--output_path", str(folder)]
        offline = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder)}
        subprocess.run(command, cwd=ROOT, env=offline, check=True, timeout=300)
        server.assert_all_free()
    files = [*folder.rglob("samples_*.jsonl")]
    rows = [(file.name, json.loads(line)) for file in files for line in file.read_text().splitlines()]
    return {(name.split("_")[1], row["doc_id"]): row["resps"] for name, row in rows}


def test_a_generate_and_a_multiple_choice_task(tmp_path):
    plain = found(None, tmp_path / "plain")
    assert plain == found(ms.drafters.Model(ms.load("micro-draft", dtype=target().dtype)), tmp_path / "drafted")
    choices = [answer for (task, _), answers in plain.items() for answer in answers if task == "stories"]
    outputs = [answer for (task, _), answers in plain.items() for answer in answers if task == "continue"]
    assert (len(choices), len(outputs)) == (32, 8)
    stories = [json.loads(line) for line in (ROOT / "tests/data/lm_eval/stories.jsonl").read_text().splitlines()]
    for i, story in enumerate(stories):
        assert plain["continue", i][0][0] == ms.generate(target(), story["story"], 24, stop=["."]).text
