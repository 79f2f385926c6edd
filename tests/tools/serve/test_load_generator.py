"""`minispec bench serve`: its figures from answers that are known, and the command against a real server."""

import json
import math
import multiprocessing
from itertools import pairwise
from statistics import mean, pstdev

import pytest
from live_server import running

from minispec_course.labs.load import Answer, arrivals, latencies, meets, summary
from minispec_tools.cli import main

BURSTS = Answer(sent=10.0, arrivals=[10.5, 10.7, 11.5], tokens=6, prompt_tokens=3, finish="length")  # 1 + 2 + 3 tokens
SINGLE = Answer(sent=0.0, arrivals=[0.25], tokens=1, prompt_tokens=1, finish="stop")
LOST = Answer(sent=0.0, arrivals=[0.1], error="the answer ended early")


def test_latencies_of_a_speculative_answer():
    found = latencies(BURSTS)
    assert found["ttft"] == 0.5 and found["e2el"] == 1.5
    assert found["tpot"] == pytest.approx(1.0 / 5)  # per token …
    assert found["itl"] == pytest.approx([0.2, 0.8])  # … per part
    assert latencies(SINGLE)["tpot"] is None and latencies(SINGLE)["itl"] == []


def test_goodput_counts_requests_that_meet_all_targets():
    assert meets(latencies(BURSTS), {"ttft": 0.5, "tpot": 0.21}) and not meets(latencies(BURSTS), {"tpot": 0.19})
    assert not meets(latencies(BURSTS), {"ttft": 0.4, "tpot": 0.3}) and meets(latencies(SINGLE), {"tpot": 0.001})
    found = summary([BURSTS, SINGLE, LOST], 4.0, {"ttft": 0.3})
    assert (found["requests"], found["completed"], found["tokens"]) == (3, 2, 7)
    assert found["goodput"] == 1 / 4 and found["requests_per_second"] == 2 / 4 and found["tokens_per_second"] == 7 / 4
    assert found["errors"] == [LOST.error] and found["ttft_ms"]["mean"] == pytest.approx(375)
    assert summary([LOST], 1.0, {})["ttft_ms"] is None and summary([LOST], 1.0, {})["goodput"] is None


def test_gaps_have_the_rate_and_the_burstiness_asked_for(burstiness=0.25):
    moments = arrivals(20_000, 5.0, burstiness, seed=0)
    gaps = [after - before for before, after in pairwise(moments)]
    assert moments[0] == 0 and min(gaps) >= 0
    assert mean(gaps) == pytest.approx(1 / 5, rel=0.05)
    assert (mean(gaps) / pstdev(gaps)) ** 2 == pytest.approx(burstiness, rel=0.1)  # of a gamma distribution: its shape
    assert arrivals(5, math.inf, 1.0, 0) == [0.0] * 5
    assert arrivals(50, 5.0, burstiness, 1) != arrivals(50, 5.0, burstiness, 2)


@pytest.mark.slow
def test_the_command(capsys):
    with running(api_key="k") as server:
        load = ["serve", "--url", server.url, "--api-key", "k", "--requests", "6", "--output-tokens", "3", "5"]
        more = ["--rate", "50", "inf", "--ttft-target", "60000", "--ignore-eos", "--input-tokens", "2", "9", "--json"]
        assert main(["bench", *load, *more]) == 0
        result = json.loads(capsys.readouterr().out)
        [found] = result["servers"]
        assert [row["rate"] for row in found["results"]] == [50.0, None]
        assert (found["model"], found["server"]) == ("micro", server.url)
        for row in found["results"]:
            assert row["completed"] == row["requests"] == 6 and row["errors"] == []
            assert 6 * 3 <= row["tokens"] <= 6 * 5 and 6 * 2 <= row["prompt_tokens"] <= 6 * 9
            assert row["goodput"] == row["requests_per_second"] > 0
            assert 0 < row["ttft_ms"]["p50"] <= row["ttft_ms"]["p99"] <= row["e2el_ms"]["p99"]
        assert main(["bench", *load, "--rate", "inf"]) == 0
        assert "TTFT" in capsys.readouterr().out
        assert main(["bench", "serve", "--url", server.url]) == 2  # without the key
        assert "401" in capsys.readouterr().err


@pytest.mark.nightly
def test_a_sweep_starts_servers_and_ends_them(capsys):
    """Two of them, the second drafts; the same requests for both, and nothing of them is left."""
    load = (
        "--rate 20 inf --duration 0.5 --requests 6 --warmup 4 --max-num-seqs 4 --k 4 --output-tokens 8 12 --ignore-eos"
    )
    assert main(["bench", "serve", "--sweep", "toy", "toy:model", *load.split(), "--device", "cpu", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    plain, drafting = (server["results"] for server in result["servers"])
    assert [server["server"] for server in result["servers"]] == ["toy", "toy:model"]
    for one, other in zip(plain, drafting, strict=True):
        assert one["completed"] == one["requests"] == other["completed"] == (10 if one["rate"] else 6)
        assert (one["prompt_tokens"], one["tokens"]) == (other["prompt_tokens"], other["tokens"])
        assert one["acceptance_length"] is None and 1 < other["acceptance_length"] <= 5
    assert multiprocessing.active_children() == []
    assert main(["bench", "serve", "--sweep", "no-such-model", *load.split()]) == 2
    assert "no-such-model" in capsys.readouterr().err
    assert multiprocessing.active_children() == []
