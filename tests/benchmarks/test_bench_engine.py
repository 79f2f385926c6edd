"""The benchmarks of the engine: how much memory holds nothing, and what continuous batching is worth."""

from __future__ import annotations

import json

import pytest

import minispec as ms
from minispec.serving.blocks import BlockPool
from minispec_course.labs import batching, memory

# ---------------------------------------------------------------- memory


def test_waste_counted_by_hand(monkeypatch):
    """One request of three prompt tokens that writes four, in blocks of four: lengths 3, 4, 5, then it is gone."""
    monkeypatch.setattr(memory, "EVERY", 1)
    paged = memory.serve(BlockPool(8, 4, False), [(3, 4)])
    assert paged["steps"] == 4 and paged["waste"] == pytest.approx((1 + 0 + 3) / (4 + 4 + 8))
    assert paged["memory_holding_tokens"] == pytest.approx(12 / (4 * 32))
    contiguous = memory.serve(memory.ContiguousPool(8, 4, 16), [(3, 4)])
    assert contiguous["waste"] == pytest.approx((13 + 12 + 11) / 48)
    assert paged["tokens_read"] == contiguous["tokens_read"] == 6 and paged["tokens_recomputed"] == 0


@pytest.mark.slow
def test_waste_on_the_mixed_workload():
    result = memory.compare(memory.workload())
    assert result["requests"] == 256 and result["block_size"] == 16
    assert result["paged"]["waste"] <= 0.04 < 0.3 < result["contiguous"]["waste"]
    assert result["paged"]["mean_running"] > 1.5 * result["contiguous"]["mean_running"]
    assert result["paged"]["steps"] < result["contiguous"]["steps"]


def test_memory_on_the_command_line(run, tmp_path):
    file = tmp_path / "memory.json"
    code, out, _ = run("bench", "memory", "--requests", 12, "--lengths", 20, 80, "--blocks", 64, "--json", file)
    result = json.loads(file.read_text(encoding="utf-8"))
    assert code == 0 and result["lengths"] == [20, 80] and result["max_length"] == 160
    for way in ("paged", "contiguous"):
        assert f"{result[way]['waste']:.1%}" in out
    assert max(map(len, out.splitlines())) <= 80
    for bad in (["--requests", 0], ["--lengths", 9, 3], ["--block-size", 0]):
        assert run("bench", "memory", *bad)[0] == 2
    with pytest.raises(ValueError, match="max_length=10"):
        memory.compare([(8, 8)], max_length=10)


# ---------------------------------------------------------------- batching


@pytest.mark.slow
def test_all_ways_write_the_same_and_continuous_takes_the_fewest_steps(tiny, tiny_draft):
    work = batching.workload([[5, 9, 2], [7], [1, 2, 3, 4]], 12, 40)
    result = batching.compare(tiny, work, batch=3, repeat=1, drafter=ms.drafters.Model(tiny_draft), k=2)
    ways = result["results"]
    assert list(ways) == ["padded", "static", "continuous", "speculative"]
    assert all(way["same_texts"] == 12 for way in ways.values())
    longest = [max(length for _, length in work[i : i + 3]) for i in range(0, 12, 3)]
    assert ways["padded"]["steps"] == ways["static"]["steps"] == sum(longest)
    assert ways["speculative"]["steps"] < ways["continuous"]["steps"] < ways["static"]["steps"]
    assert ways["static"]["over_static"]["median"] == 1
    assert result["tokens"] == sum(length for _, length in work) and result["longest"] == max(longest)
    for name in ("static", "continuous", "speculative"):
        assert sum(ways[name]["parts"].values()) == pytest.approx(1)
    assert json.loads(json.dumps(result)) == result


def test_the_workload_is_mostly_short():
    lengths = sorted(length for _, length in batching.workload([[1]], 400, 256))
    assert 24 < lengths[200] < 42 and lengths[-1] == 256 and lengths[0] >= 1


@pytest.mark.slow
def test_batching_on_the_command_line(run, tiny_folder, tmp_path):
    file, prompts = tmp_path / "batching.json", tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "The fox"}\n{"prompt": "One day"}\n', encoding="utf-8")
    code, out, _ = run(
        "bench",
        "batching",
        "--model",
        tiny_folder,
        "--requests",
        5,
        "--tokens",
        12,
        "--repeat",
        1,
        "--batch",
        2,
        "--drafter",
        "ngram",
        "--prompts",
        prompts,
        "--json",
        file,
    )
    result = json.loads(file.read_text(encoding="utf-8"))
    assert code == 0 and result["requests"] == 5 and result["drafter"] == "NGram"
    assert all(name in out for name in result["results"]) and max(map(len, out.splitlines())) <= 80
    assert run("bench", "batching", "--batch", 0)[0] == 2
