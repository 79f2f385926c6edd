"""The benchmarks of recorded decoding at toy size: what they compare, and that the JSON holds what they print."""

from __future__ import annotations

import json

import pytest
import torch

import minispec as ms
from benchmarks import peers
from benchmarks import speculate as speculating
from benchmarks import verify as verifying
from minispec import cli
from minispec.gpu.decode import FastSpeculator
from minispec.gpu.fused import FastTransformer
from minispec.measure import Rate, weight_bytes
from minispec_course.labs import pairs

TOY = pairs.SHAPES["toy"]


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(pairs, "read_bandwidth", lambda device: Rate(1e10, 9e9, 1.1e10, 3))  # to measure takes seconds
    monkeypatch.setattr(verifying, "flops", lambda device, dtype: Rate(4e10, 4e10, 4e10, 3))

    def call(name: str, *options: object):
        file = tmp_path / f"{name}.json"
        code = cli.main(
            [
                "bench",
                name,
                "--shape",
                "toy",
                "--repeat",
                "1",
                "--context",
                "20",
                "--json",
                str(file),
                *map(str, options),
            ]
        )
        out, err = capsys.readouterr()
        assert code == 0, err
        assert max(map(len, out.splitlines())) <= 80
        return json.loads(file.read_text(encoding="utf-8")), out

    return call


# ---------------------------------------------------------------- the pair


def test_the_8b_shape_is_llama_3_s():
    with torch.device("meta"):
        model = ms.Model("8b", ms.Transformer(pairs.SHAPES["8b"]))
    assert model.num_parameters == 8_030_261_248
    assert weight_bytes(model) == 4 * (8_030_261_248 - 128_256 * 4096)  # float32, without the embedding


def test_the_draft_is_the_target_s_first_layers_and_the_rest_is_damped():
    target, draft = pairs.random_pair(TOY, "cpu", epsilon=0.05)
    tokens = torch.randint(TOY.vocab_size, (2, 24), generator=torch.Generator().manual_seed(0))
    hidden = target.transformer(tokens, hidden_layers=(2, TOY.num_layers)).hidden
    assert torch.equal(draft.transformer(tokens).logits, target.transformer.head(hidden[2]))
    change = (hidden[TOY.num_layers] - hidden[2]).norm() / hidden[2].norm()
    undamped, _ = pairs.random_pair(TOY, "cpu", epsilon=1.0)
    hidden = undamped.transformer(tokens, hidden_layers=(2, TOY.num_layers)).hidden
    assert change < 0.1 < (hidden[TOY.num_layers] - hidden[2]).norm() / hidden[2].norm()
    assert 3 < float(target.transformer(tokens).logits.std()) < 5
    shared = target.transformer.lm_head.weight.data_ptr() == draft.transformer.lm_head.weight.data_ptr()
    assert (
        shared and target.transformer.embed_tokens.weight.data_ptr() == draft.transformer.embed_tokens.weight.data_ptr()
    )


@pytest.mark.slow
def test_less_damping_less_acceptance():
    rates = []
    for epsilon in (0.05, 1.0):
        target, draft = (FastTransformer(model.transformer, 1, 256) for model in pairs.random_pair(TOY, "cpu", epsilon))
        decoder = FastSpeculator(target, draft, 4, ms.Sampling(1.0))
        trace = speculating.acceptance(decoder, [1, 2, 3], 15, 2)
        assert trace.target_passes == 30
        rates.append(trace.acceptance_rate)
    assert rates[0] > rates[1]


def test_a_recorded_pass_leaves_the_memory_as_it_was():
    quick = FastTransformer(pairs.random_pair(TOY, "cpu")[0].transformer, 1, 64)
    quick.prefill(torch.tensor([[1, 2, 3]]), torch.tensor([3]))
    pairs.several(pairs.recorded_pass(quick, 5), 20)()  # a hundred tokens would not fit
    assert quick.lengths.tolist() == [3]


# ---------------------------------------------------------------- on the command line


def test_decode(run):
    result, out = run("decode", "--tokens", 4, "--peers")
    ways = result["results"]
    assert list(ways) == ["launch", "fast.generate", "generate"] and all(name in out for name in ways)
    assert ways["launch"]["times_launch"] == pytest.approx(1)
    kept = 2 * 4 * TOY.num_layers * TOY.num_kv_heads * TOY.head_dim
    floor = (result["weight_bytes"] + 20 * kept) / result["bandwidth"]["median"]
    assert result["predicted_seconds"] == pytest.approx(floor)
    for way in ways.values():
        assert way["fraction_of_bandwidth"] == pytest.approx(floor / way["seconds_per_token"]["median"])


def test_verify(run):
    result, out = run("verify", "--sizes", 5, 2)
    assert [row["tokens"] for row in result["results"]] == [1, 2, 5]
    assert result["results"][0]["ratio"] == 1
    # 4 FLOP a byte, 0.5 needed for each token in float32: free up to eight.
    assert [row["predicted_ratio"] for row in result["results"]] == [1, 1, 1]
    assert "t(M)/t(1)" in out and result["benchmark"] == "verify"


@pytest.mark.slow
def test_speculate(run):
    result, out = run("speculate", "--k", 3, "--cycles", 5, "--texts", 2, "--tokens", 4, "--peers")
    seconds = {name: row["median"] for name, row in result["seconds"].items()}
    assert list(seconds) == ["plain token", "whole cycle", "draft, a token", "verify pass"]
    assert result["cycles"] == 10 and 1 <= result["tokens_per_cycle"] <= 4
    assert result["c"] == pytest.approx(seconds["draft, a token"] / seconds["plain token"])
    assert result["v"] == pytest.approx(seconds["verify pass"] / seconds["plain token"])
    tokens, plain, cycle = result["tokens_per_cycle"], seconds["plain token"], seconds["whole cycle"]
    assert result["speedup"] == pytest.approx(tokens * plain / cycle)
    assert result["predicted_speedup"] == pytest.approx(tokens / (3 * result["c"] + result["v"]))
    assert f"{result['speedup']:.2f}" in out


@pytest.mark.parametrize(
    "options",
    [
        ("decode", "--context", 0),
        ("decode", "--context", 2040, "--tokens", 64),
        ("verify", "--sizes", 0),
        ("speculate", "--k", 0),
        ("speculate", "--repeat", 0),
    ],
    ids=str,
)
def test_bad_arguments_are_refused(options):
    assert cli.main(["bench", options[0], "--shape", "toy", *map(str, options[1:])]) == 2


# ---------------------------------------------------------------- peers


@pytest.mark.slow
def test_peers_have_the_same_weights_and_write_as_much():
    pytest.importorskip("transformers")
    target, draft = pairs.random_pair(TOY, "cpu")
    theirs = peers.as_transformers(target)
    tokens = torch.tensor([pairs.prompt_of(TOY, 20)])
    assert torch.allclose(theirs(tokens).logits, target.transformer(tokens).logits, atol=1e-3)
    assert theirs.lm_head.weight.data_ptr() == target.transformer.lm_head.weight.data_ptr()
    for temperature in (0.0, 1.0):
        calls, skipped = peers.transformers_peers(peers.PEERS, target, draft, tokens[0].tolist(), 6, 3, temperature, 0)
        assert list(calls) == ["transformers eager", "transformers static", "transformers assisted"] and not skipped


def test_a_peer_that_cannot_be_had_is_left_out_with_the_reason(monkeypatch):
    def missing(model):
        raise ModuleNotFoundError("No module named 'transformers'")

    monkeypatch.setattr(peers, "as_transformers", missing)
    calls, skipped = peers.transformers_peers(["eager", "static"], None, None, [1], 4, 4, 0.0, 0)
    assert not calls and list(skipped) == ["transformers eager", "transformers static"]
    assert "No module named" in skipped["transformers eager"]
