"""Several ranks are one model: the same logits, the same texts, a share of the memory; and nobody waits for the dead.

A group of processes takes seconds to start, so that one group finds out many facts (parallel_checks.py), and the tests
look at them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import parallel_checks as checks
import pytest
import torch

import minispec as ms
from minispec import theory
from minispec.load.folder import save_folder
from minispec.parallel import experts, pipeline
from minispec.parallel import tensor as parallel

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.nightly)])
def group(request):
    """How many ranks, and what each of them found out."""
    return request.param, parallel.launch(checks.facts_of_a_rank, request.param, patience=60)


# ---------------------------------------------------------------- tensor parallelism


def test_logits_are_those_of_one_process(group):
    _, found = group
    for facts in found:
        assert set(facts["differences"]) == set(checks.KINDS)
        assert max(facts["differences"].values()) < 1e-5


def test_texts_are_those_of_one_process(group):
    _, found = group
    for facts in found:
        assert facts["texts"]["shared"] == facts["texts"]["whole"]
    text = found[0]["texts"]["whole"]
    assert text["speculative"] == text["greedy"] == text["n-grams"] == text["medusa"] != text["sampled"]
    assert 0 < text["accepted"] < 1  # drafts were kept and thrown away


def test_every_rank_holds_its_share_of_keys_and_values(group):
    ranks, found = group
    per_token = theory.kv_bytes_per_token(layers=2, kv_heads=4, head_dim=8, bytes_per_value=8)
    for facts in found:
        whole, share = facts["memory"]
        assert whole == theory.kv_bytes(batch=2, length=10, per_token=per_token)
        assert share == whole / ranks


def test_every_rank_holds_its_share_of_the_weights(group):
    ranks, found = group
    embedding, norms = 64 * 32, 5 * 32  # everywhere the same; a tied head is cut all the same
    for facts in found:
        whole, share = facts["sizes"]["llama"]
        assert share == (whole - embedding - norms) / ranks + embedding + norms
        whole, share = facts["sizes"]["tied"]
        assert share == (whole - embedding - norms) / ranks + embedding + norms + embedding / ranks


def test_ranks_that_disagree_are_told(group):
    _, found = group
    assert all("give all of them the same prompt, a seed" in facts["refusals"][0] for facts in found)


def test_a_number_of_ranks_that_does_not_fit_is_refused_with_those_that_do(group):
    _, found = group
    assert all("start 1" in facts["refusals"][1] and "num_kv_heads=3" in facts["refusals"][1] for facts in found)


def test_the_logits_test_can_fail(group):
    _, found = group
    for facts in found:
        assert all(difference > 1e-2 for difference in facts["mutants"].values()), facts["mutants"]


def test_pytorchs_own_machinery_cuts_the_same_way(group):
    ranks, found = group
    if ranks == 2:
        assert max(facts["dtensor"] for facts in found) < 1e-5


def test_fitting_ranks():
    micro = ms.load("micro", device="cpu").config
    assert parallel.fitting_ranks(micro) == [1, 2]
    assert parallel.fitting_ranks(checks.random_model(**checks.FOUR_HEADS).config) == [1, 2, 4]


# ---------------------------------------------------------------- the dead


@pytest.mark.nightly
@pytest.mark.parametrize(("how", "patience"), [("killed", 60), ("silent", 10)])
def test_a_rank_that_dies_ends_the_run_with_a_message(how, patience, tmp_path):
    with pytest.raises(RuntimeError, match="rank . of 2 died, the others were ended") as told:
        parallel.launch(checks.somebody_dies, 2, how, str(tmp_path / "diary"), patience=patience)
    assert not (tmp_path / "diary").exists()  # nobody waited until it woke up
    if how == "killed":  # noticed by its death, not by its silence
        assert "rank 1" in str(told.value) and "SIGKILL" in str(told.value)


def torchrun(*arguments: object, ranks: int = 2, **options):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=120, env=environment, **options
    )


def test_the_command_writes_what_one_process_writes():
    options = "--model micro --draft micro-draft --tokens 20 --temperature 0.8 --seed 3".split()
    done = torchrun("-m", "minispec.parallel.tensor", *options, "--prompt", "One day")
    assert done.returncode == 0, done.stderr
    target, draft = (ms.load(name, device="cpu") for name in ("micro", "micro-draft"))
    alone = ms.speculate(target, "One day", ms.drafters.Model(draft), 4, 20, temperature=0.8, seed=3)
    assert done.stdout.startswith(f"One day{alone.text}\n")
    assert "2304 bytes" in done.stdout  # half of 2 · 6 layers · 2 heads · 48 · 4


@pytest.mark.nightly
def test_the_command_ends_when_a_rank_dies():
    done = torchrun(HERE / "parallel_checks.py")
    assert done.returncode != 0 and "SIGKILL" in done.stderr  # torchrun's word; rank 0 may not live to say its own


def test_a_rank_that_loses_the_others_says_so(capsys, monkeypatch):
    def lost():
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(parallel, "join", lost)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert parallel.main([]) == 1
    assert "rank 0 of 2 gives up, another rank died" in capsys.readouterr().err


def test_without_torchrun_the_command_says_how(capsys, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit):
        parallel.main([])
    assert "torchrun" in capsys.readouterr().err


# ---------------------------------------------------------------- the demonstrations


def test_the_pipeline_computes_what_one_process_does(tmp_path, make_model):
    whole = make_model(num_layers=3)
    save_folder(whole, tmp_path, bits=None)
    tokens = torch.arange(5 * 7).view(5, 7) % 64
    logits, timeline = pipeline.run(tmp_path, tokens, ranks=2, microbatches=3, dtype=torch.float64)
    assert (logits - whole.transformer(tokens).logits).abs().max() < 1e-5
    computed = {(e["rank"], e["what"]): e for e in timeline if e["what"].startswith("compute")}
    assert set(computed) == {(rank, f"compute {n}") for rank in (0, 1) for n in range(3)}
    assert all(0 <= e["start"] <= e["end"] for e in timeline)
    for n in range(3):  # nobody starts before the stage before is done
        assert computed[0, f"compute {n}"]["end"] <= computed[1, f"compute {n}"]["start"]


def test_stages_share_all_layers():
    for ranks in (1, 2, 3, 5):
        assert [i for rank in range(ranks) for i in pipeline.stage_layers(5, rank, ranks)] == list(range(5))
    with pytest.raises(ValueError, match="1 to 5 stages"):
        pipeline.stage_layers(5, 0, 6)


def test_experts_on_ranks_compute_what_one_process_does(group):
    _, found = group
    assert max(difference for difference, _ in (facts["experts"] for facts in found)) < 1e-12
    assert all(travelled > 0 for _, travelled in (facts["experts"] for facts in found))


def test_two_experts_and_their_timeline():
    weights = experts.Mixture.random(2)
    x = torch.randn(20, 64, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    y, sent, timeline = experts.run(weights, x)
    assert torch.allclose(y, experts.mixture(weights, x), rtol=0, atol=1e-12)
    expert, _ = weights.route(x)
    assert [sum(column) for column in zip(*sent, strict=True)] == torch.bincount(expert, minlength=2).tolist()
    assert all(count > 0 for row in sent for count in row)  # tokens did travel, in both directions
    for rank in (0, 1):
        mine = [e for e in timeline if e["rank"] == rank]
        assert [e["what"].split(",")[0] for e in mine] == ["route", "dispatch", "expert", "return"]
        assert all(before["end"] <= after["start"] for before, after in pairwise(mine))
