"""Several ranks are one model: the same logits, the same outputs, a part of the memory each; a dead rank ends the run.

A group of processes takes seconds to start, so one group finds out many facts (`facts_of_a_rank`), and tests look at
them. What ranks run has to be importable: this file is imported in each of them.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tiny_models import random_model

import minispec as ms
from minispec_tools.parallel import tensor as parallel

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
PROMPT = [5, 9, 2, 41, 7]
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])
FOUR_HEADS = dict(num_heads=8, num_kv_heads=4, head_dim=8)  # so that four ranks can share them
KINDS = {
    "llama": {},
    "tied": dict(tie_embeddings=True),
    "qwen2": dict(qkv_bias=True),
    "qwen3": dict(qk_norm=True),
    "all biases": dict(qkv_bias=True, out_bias=True, mlp_bias=True),
    "fewer tokens": dict(head_vocab=32),
}


# ---------------------------------------------------------------- in each rank


def facts_of_a_rank() -> dict:
    facts = {"differences": {}, "sizes": {}}
    for kind, overrides in KINDS.items():
        whole = random_model(dtype=torch.float32, **FOUR_HEADS, **overrides)
        shard = parallel.parallelize(whole)
        facts["differences"][kind] = largest_difference(whole, shard)
        facts["sizes"][kind] = whole.num_parameters, shard.num_parameters

    target, draft = random_model(**FOUR_HEADS), random_model(num_layers=1, **FOUR_HEADS)  # float64: no close calls
    shards = parallel.parallelize(target), parallel.parallelize(draft)
    facts["outputs"] = {"whole": outputs(target, draft, target), "sharded": outputs(*shards, target)}
    caches = [model.transformer.new_cache(2, 10) for model in (target, shards[0])]
    facts["cache bytes"] = [cache.keys.nbytes + cache.values.nbytes for cache in caches]
    facts["refusals"] = {
        "without a seed": refusal(lambda: ms.generate(shards[0], PROMPT, 32, temperature=1.0)),
        "three heads": refusal(lambda: parallel.parallelize(random_model(num_heads=9, num_kv_heads=3))),
    }
    return facts


def largest_difference(whole: ms.Model, shard: ms.Model) -> float:
    """Of any logit, with a cache and without."""
    worst = 0.0
    for caches in ((None, None), (whole.transformer.new_cache(2, 12), shard.transformer.new_cache(2, 12))):
        with torch.inference_mode():
            for tokens in (TOKENS, TOKENS[:, :1]):
                want, got = (m.transformer(tokens, c).logits for m, c in zip((whole, shard), caches, strict=True))
                worst = max(worst, float((got - want).nan_to_num(0, 0, 0).abs().max()))
    return worst


def outputs(target: ms.Model, draft: ms.Model, whole: ms.Model) -> dict:
    """Everything that the ranks should generate as one process does."""
    drafter, sampled = ms.drafters.Model(draft), dict(temperature=0.9, seed=11)
    medusa = ms.drafters.Medusa(target, ms.drafters.MedusaHeads(whole), nodes=6)
    speculative = ms.speculate(target, PROMPT, drafter, 4, 16)
    return {
        "greedy": ms.generate(target, PROMPT, 16).tokens,
        "sampled": ms.generate(target, PROMPT, 16, **sampled).tokens,
        "batch": [out.tokens for out in ms.generate(target, [PROMPT, PROMPT[:2]], 8, **sampled)],
        "speculative": speculative.tokens,
        "speculative, sampled": ms.speculate(target, PROMPT, drafter, 3, 16, **sampled).tokens,
        "n-grams": ms.speculate(target, PROMPT, ms.drafters.NGram(), 4, 16).tokens,
        "medusa": ms.speculate(target, PROMPT, medusa, 4, 16).tokens,
        "acceptance": speculative.trace.acceptance_rate,
    }


def refusal(act) -> str:
    try:
        act()
    except ValueError as error:
        return str(error)
    return ""


def rank_one_dies() -> None:
    """In the middle of an output."""
    shard, passes = parallel.parallelize(random_model(**FOUR_HEADS)), []

    def accident(*_):
        passes.append(1)
        if dist.get_rank() == 1 and len(passes) == 4:
            os.kill(os.getpid(), signal.SIGKILL)

    shard.transformer.embed_tokens.register_forward_pre_hook(accident)
    ms.generate(shard, PROMPT, 32)


# ---------------------------------------------------------------- tests


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.nightly)])
def group(request):
    """How many ranks, and what each of them found out."""
    return request.param, parallel.launch(facts_of_a_rank, request.param, patience=60)


def test_outputs_are_those_of_one_process(group):
    _, found = group
    for facts in found:
        assert facts["differences"].keys() == KINDS.keys() and max(facts["differences"].values()) < 1e-5
        assert facts["outputs"]["sharded"] == facts["outputs"]["whole"]
    out = found[0]["outputs"]["whole"]
    assert out["speculative"] == out["greedy"] == out["n-grams"] == out["medusa"] != out["sampled"]
    assert 0 < out["acceptance"] < 1  # some drafts were accepted and some rejected


def test_every_rank_holds_its_part_of_the_memory(group):
    ranks, found = group
    embedding, norms = 64 * 32, 5 * 32  # whole on every rank; a tied head is split all the same
    for facts in found:
        whole, part = facts["cache bytes"]
        assert (
            whole == 2 * 2 * 2 * 10 * 4 * 8 * 8 and part == whole / ranks
        )  # k, v · layers · B · T · heads · width · 8
        for kind, head in (("llama", 0), ("tied", embedding / ranks)):
            whole, part = facts["sizes"][kind]
            assert part == (whole - embedding - norms) / ranks + embedding + norms + head


def test_ranks_refuse_what_would_diverge_or_does_not_fit(group):
    for facts in group[1]:
        assert "seed" in facts["refusals"]["without a seed"]
        assert "num_kv_heads=3" in facts["refusals"]["three heads"]


def test_fitting_ranks():
    assert parallel.fitting_ranks(ms.load("micro", device="cpu").config) == [1, 2]
    assert parallel.fitting_ranks(random_model(**FOUR_HEADS).config) == [1, 2, 4]


@pytest.mark.nightly
def test_a_rank_that_dies_ends_the_run_with_a_message():
    """Noticed by its death, not by its silence."""
    with pytest.raises(RuntimeError, match="rank 1 of 2 died.*SIGKILL"):
        parallel.launch(rank_one_dies, 2, patience=60)


@pytest.mark.nightly
def test_the_script_of_the_docs_generates_what_one_process_does(tmp_path):
    docs = (ROOT / "docs/package.md").read_text(encoding="utf-8")
    script = docs.partition("```python\n# torchrun")[2].partition("```")[0].partition("\n")[2]
    (tmp_path / "ranks.py").write_text(script + "print(out.tokens, flush=True)\n", encoding="utf-8")
    command = "-m torch.distributed.run --standalone --nproc-per-node 2".split()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *command, tmp_path / "ranks.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    target, draft = (ms.load(name, device="cpu") for name in ("micro", "micro-draft"))
    alone = ms.speculate(target, "Once upon a time", ms.drafters.Model(draft), 4, seed=0)
    assert done.stdout.replace("\n", "") == 2 * str(alone.tokens)  # two processes write to one pipe
