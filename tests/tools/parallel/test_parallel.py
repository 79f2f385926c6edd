"""Several ranks are one model: the same logits, the same texts, a share of the memory; and nobody waits for the dead.

A group of processes takes seconds to start, so that one group finds out many facts (parallel_checks.py), and the tests
look at them.
"""

import os
import subprocess
import sys
from pathlib import Path

import parallel_checks as checks
import pytest

import minispec as ms
from minispec import theory
from minispec_tools.parallel import tensor as parallel

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.nightly)])
def group(request):
    """How many ranks, and what each of them found out."""
    return request.param, parallel.launch(checks.facts_of_a_rank, request.param, patience=60)


# ---------------------------------------------------------------- tensor parallelism


def test_outputs_are_those_of_one_process(group):
    _, found = group
    for facts in found:
        assert set(facts["differences"]) == set(checks.KINDS)
        assert max(facts["differences"].values()) < 1e-5
        assert facts["texts"]["shared"] == facts["texts"]["whole"]
    text = found[0]["texts"]["whole"]
    assert text["speculative"] == text["greedy"] == text["n-grams"] == text["medusa"] != text["sampled"]
    assert 0 < text["accepted"] < 1  # drafts were kept and thrown away


def test_every_rank_holds_its_share_of_the_memory(group):
    ranks, found = group
    per_token = theory.kv_bytes_per_token(layers=2, kv_heads=4, head_dim=8, bytes_per_value=8)
    embedding, norms = 64 * 32, 5 * 32  # everywhere the same; a tied head is cut all the same
    for facts in found:
        whole, share = facts["memory"]
        assert whole == theory.kv_bytes(batch=2, length=10, per_token=per_token)
        assert share == whole / ranks
        for kind, head in (("llama", 0), ("tied", embedding / ranks)):
            whole, share = facts["sizes"][kind]
            assert share == (whole - embedding - norms) / ranks + embedding + norms + head


def test_what_ranks_refuse(group):
    """Ranks that disagree, and a number of them that does not fit."""
    _, found = group
    for facts in found:
        disagree, misfit = facts["refusals"]
        assert "give all of them the same prompt, a seed" in disagree
        assert "start 1" in misfit and "num_kv_heads=3" in misfit


def test_fitting_ranks():
    micro = ms.load("micro", device="cpu").config
    assert parallel.fitting_ranks(micro) == [1, 2]
    assert parallel.fitting_ranks(checks.random_model(**checks.FOUR_HEADS).config) == [1, 2, 4]


# ---------------------------------------------------------------- the dead


@pytest.mark.nightly
def test_a_rank_that_dies_ends_the_run_with_a_message():
    """Noticed by its death, not by its silence."""
    with pytest.raises(RuntimeError, match="rank 1 of 2 died, the others were ended.*SIGKILL"):
        parallel.launch(checks.rank_one_dies, 2, patience=60)


@pytest.mark.nightly
def test_the_script_of_the_docs_generates_what_one_process_does(tmp_path):
    docs = (Path(__file__).parents[3] / "docs/package.md").read_text(encoding="utf-8")
    script = docs.partition("```python\n# torchrun")[2].partition("```")[0].partition("\n")[2]
    (tmp_path / "ranks.py").write_text(script + "print(out.tokens, flush=True)\n", encoding="utf-8")
    command = "-m torch.distributed.run --standalone --nproc-per-node 2".split()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, *command, tmp_path / "ranks.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    target, draft = (ms.load(name, device="cpu") for name in ("micro", "micro-draft"))
    alone = ms.speculate(target, "Once upon a time", ms.drafters.Model(draft), 4, seed=0)
    assert done.stdout.replace("\n", "") == 2 * str(alone.tokens)  # two processes write to one pipe
