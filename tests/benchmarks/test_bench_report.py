"""The report: its numbers are those of the results, its predictions theory's, its pictures in proportion."""

from __future__ import annotations

import copy
import json
import re
import shlex
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import acceptance as accepting
from benchmarks import attention, batch, limit, report, svg, verify
from benchmarks import drafters as racing
from benchmarks.sections import SECTIONS, drafting, load, passes, serving
from benchmarks.sections.cpu import cpu as cpu_section
from minispec import cli, theory
from minispec.measure import Rate
from minispec_course.labs import memory, pairs

ROOT = Path(__file__).resolve().parents[2]
CYCLE = json.loads((report.SHIPPED / "speculate.json").read_text(encoding="utf-8"))  # lesson 07 shows it, too
BATCHING = json.loads((report.SHIPPED / "batching.json").read_text(encoding="utf-8"))
MEMORY = json.loads((report.SHIPPED / "memory.json").read_text(encoding="utf-8"))


def spread(median: float, by: float = 0.05) -> dict:
    return {"median": median, "low": median * (1 - by), "high": median * (1 + by), "n": 3}


# ---------------------------------------------------------------- results as the benchmarks write them

FACTS = {
    key: CYCLE[key] for key in ("shape", "dtype", "context", "seed", "repeat", "weight_bytes", "bandwidth", "machine")
}
PASS = {"tokens": 40, "passes": 16, "tokens_per_pass": 2.5, "acceptance": 0.7, "drafted_per_pass": 3.9}


def a_decode() -> dict:
    rows = {"launch": 4.4e-3, "generate": 0.031, "transformers eager": 0.036}
    return {
        "benchmark": "decode",
        **FACTS,
        "new_tokens": 64,
        "skipped": {"transformers static": "OSError: no"},
        "results": {name: {"seconds_per_token": spread(t), "times_launch": t / 4.4e-3} for name, t in rows.items()},
    }


def a_verify() -> dict:
    times = {1: 4.5e-3, 5: 4.6e-3, 64: 5.9e-3}
    return {
        "benchmark": "verify",
        **FACTS,
        "flops": 100e12,
        "results": [{"tokens": m, "seconds": spread(t)} for m, t in times.items()],
    }


def a_limit() -> dict:
    steps = {"eager": 24e-3, "graph": 6e-3, "fused": 5e-3, "skinny": 4.5e-3, "split-K": 4.2e-3, "cycle": 2e-3}
    rows = {
        name: {
            "seconds_per_token": spread(t),
            "fraction_of_bandwidth": 4e-3 / t,
            "kernels_per_token": 700.0,
            "launches_per_token": 1.0,
        }
        for name, t in steps.items()
    }
    model = {
        "weights": "random",
        "weight_bytes": 15e9,
        "bytes_per_token": 16e9,
        "predicted_seconds": 4e-3,
        "steps": rows,
        "timelines": {},
        "cycle": {"k": 4, "tokens_per_cycle": 2.5, "draft": "d"},
    }
    one = {"bytes_per_second": 3e12, "programs": 256, "seconds": spread(1e-5)}
    sweep = {"bytes": 33e6, "interpreted": False, "unavailable": None, "torch": {"bytes_per_second": 2e12}}
    product = {"shape": [4096, 4096], "results": [{"rows": 16, "wide": 128, "stages": 4, **one}], **sweep}
    splits = {"context": 8192, "results": [{"splits": 16, **one}], **sweep}
    some = {key: FACTS[key] for key in ("dtype", "context", "seed", "repeat", "bandwidth", "machine")}
    return {
        "benchmark": "limit",
        "device": "cuda",
        "models_asked": ["8b"],
        "k": 4,
        "epsilon": 0.05,
        **some,
        "recorded": True,
        "models": {"8b": model},
        "tiles": product,
        "splits": splits,
    }


def an_attention() -> dict:
    ways = {"torch": 500e-6, "contiguous": 320e-6, "paged": 330e-6}
    case = {
        "batch": 64,
        "context": 4096,
        "tokens": 1,
        "paged_over_contiguous": 1.03,
        "results": {name: {"seconds": spread(t)} for name, t in ways.items()},
    }
    return {
        "benchmark": "attention",
        "shape": {"heads": 32, "kv_heads": 8, "dim": 128},
        "dtype": "bfloat16",
        "device": "cuda",
        "block_size": 16,
        "capacity": 0,
        "repeat": 9,
        "seed": 0,
        "bandwidth": CYCLE["bandwidth"],
        "cases": [case, case | {"tokens": 5}],
        "machine": CYCLE["machine"],
    }


def a_race() -> dict:
    row = PASS | {"tokens_per_second": spread(90.0), "speedup": spread(1.4), "same_text": True}
    plain = row | {"acceptance": None, "drafted_per_pass": 0.0, "tokens_per_pass": 1.0, "speedup": spread(1.0, 0.0)}
    table = {
        "plain": plain,
        "model": row | {"draft_and_verify": [0.4, 1.2]},
        "ngram": row | {"drafted_per_pass": 1.2, "speedup": spread(1.7)},
    }
    return {
        "benchmark": "drafters",
        "target": "smollm2",
        "dtype": "float32",
        "k": 4,
        "new_tokens": 64,
        "temperature": 0.0,
        "seed": 0,
        "repeat": 5,
        "prompts": {"stories": 2, "code": 2},
        "skipped": {},
        "results": {"stories": table, "code": copy.deepcopy(table)},
        "machine": BATCHING["machine"],
    }


def a_cpu() -> dict:
    def setting(threads: int, busy: bool, seconds: float) -> dict:
        quiet = {"bandwidth": spread(threads * 1e10), "flops": spread(threads * 1e10)}
        rows = [
            {"tokens": m, "seconds": spread(seconds * v), "ratio": v}
            for m, v in ((1, 1.0), (2, 1.0), (3, 1.1), (4, 1.2), (5, 1.3), (6, 1.4), (8, 1.6))
        ]
        return {"threads": threads, "busy": busy, "others": 1.0 if busy else 0.0, "results": rows} | (
            {} if busy else quiet
        )

    return {
        "benchmark": "cpu",
        "target": "smollm2",
        "dtype": "float32",
        "context": 256,
        "repeat": 25,
        "seed": 0,
        "weight_bytes": 100_000_000,
        "machine": BATCHING["machine"],
        "settings": [
            setting(1, False, 0.02),
            setting(2, False, 0.01),
            setting(1, True, 0.012),
            setting(2, True, 0.018),
        ],
    }


def an_acceptance() -> dict:
    row = PASS | {"prompts": 4, "differing": 0}
    entrants = {"model": ("Model", 4), "eagle": ("Eagle", None), "ngram:8": ("NGram", 8)}
    drafted = {"model": 3.9, "eagle": 30.0, "ngram:8": 1.5}
    return {
        "benchmark": "acceptance",
        "date": "2026-01-02",
        "note": "a | b",
        "minispec": "0.1.0",
        "target": "smollm2",
        "dtype": "float32",
        "device": "cpu",
        "new_tokens": 64,
        "batch": 8,
        "seed": 0,
        "per_group": 40,
        "prompts_from": "question.jsonl",
        "drafters": {name: {"class": kind, "k": k} for name, (kind, k) in entrants.items()},
        "prompts": {"qa": 4, "math reasoning": 4},
        "too_long": {"qa": 1, "math reasoning": 0},
        "skipped": {},
        "results": {
            name: {
                "groups": {"qa": row | {"tokens_per_pass": 2.25}, "math reasoning": row},
                "overall": row | {"drafted_per_pass": drafted[name], "differing": 1},
                "differences": [{"group": "qa", "prompt": 0, "place": 3, "gap": 0.001}],
            }
            for name in entrants
        },
        "machine": BATCHING["machine"],
    }


def a_batch() -> dict:
    rows = [
        {
            "batch": size,
            "plain_tokens_per_second": spread(200.0 * size),
            "tokens_per_second": spread(200 * size * gain),
            "speedup": spread(gain),
            "acceptance": 0.8,
            "tokens_per_cycle": 3.3,
            "c": 0.12,
            "v": v,
            "predicted_speedup": 0.0,
            "roofline_speedup": 2.4,
            "same_texts": size,
        }
        for size, gain, v in ((1, 2.2, 1.0), (8, 1.6, 1.5), (64, 0.8, 3.9))
    ]
    served = {"minispec": (9000.0, 3.0, None), "minispec, drafting": (9500.0, 3.2, 0.8), "transformers": (3e3, 1, None)}
    peer = {
        "transformers": "5.17.0",
        "attention": "sdpa",
        "cuda_graphs": [False, True],
        "compiled": False,
        "max_num_seqs": 128,
    }
    return {
        "benchmark": "batch",
        **FACTS,
        "epsilon": 0.05,
        "k": 4,
        "flops": 7.9e14,
        "serving": {
            "requests": 256,
            "prompt_lengths": [100, 1024],
            "output_lengths": [100, 1000],
            "tokens": 145_000,
            "max_num_seqs": 128,
            "token_budget": 2048,
            "draft_budget": 64,
            "floor_tokens_per_second": 14_500.0,
            "peer": peer,
            "trials": {},
            "skipped": {},
            "results": {
                name: {"tokens_per_second": spread(rate), "over_peer": spread(over), "acceptance": alpha}
                for name, (rate, over, alpha) in served.items()
            },
        },
        "speculation": {
            "new_tokens": 64,
            "temperature": 0.0,
            "results": rows,
            "crossover": {"measured": 40.0, "predicted": 60.0, "roofline": None},
        },
    }


def a_load() -> dict:
    def row(rate: float | None, tokens_per_second: float, tpot: float, length: float | None, completed: int = 40):
        figures = {"p50": tpot, "p90": 1.5 * tpot, "p99": 2 * tpot, "mean": 1.1 * tpot}
        return {
            "rate": rate,
            "requests": 40,
            "completed": completed,
            "errors": [],
            "seconds": 10.0,
            "prompt_tokens": 400,
            "tokens": 50 * completed,
            "requests_per_second": 4.0,
            "tokens_per_second": tokens_per_second,
            "goodput": 3.5,
            "acceptance_length": length,
        } | {f"{name}_ms": figures for name in ("ttft", "tpot", "itl", "e2el")}

    rates = {4.0: 200.0, 8.0: 300.0, None: 320.0}
    return {
        "benchmark": "serve",
        "burstiness": 1.0,
        "seed": 0,
        "temperature": 0.0,
        "output_tokens": [16, 84],
        "ignore_eos": True,
        "warmup": 8,
        "requests": 40,
        "duration": 5.0,
        "targets_ms": {"tpot": 50.0},
        "machine": BATCHING["machine"],
        "k": 4,
        "max_num_seqs": 32,
        "max_num_batched_tokens": 512,
        "servers": [
            {"server": "micro", "model": "micro", "results": [row(r, t, 30.0, None) for r, t in rates.items()]},
            {
                "server": "micro:model",
                "model": "micro",
                "results": [row(r, t, 20.0, 2.5, 39) for r, t in rates.items()],
            },
        ],
    }


MADE = {
    "decode": a_decode,
    "verify": a_verify,
    "memory": lambda: copy.deepcopy(MEMORY),
    "attention": an_attention,
    "cpu": a_cpu,
    "batching": lambda: copy.deepcopy(BATCHING),
    "speculate": lambda: copy.deepcopy(CYCLE),
    "acceptance": an_acceptance,
    "drafters": a_race,
    "batch": a_batch,
    "limit": a_limit,
    "serve": a_load,
}
every_benchmark = pytest.mark.parametrize("name", MADE)


@pytest.fixture
def folder(tmp_path):
    """One result of each benchmark."""
    place = tmp_path / "results"
    place.mkdir()
    for name, make in MADE.items():
        (place / f"{name}.json").write_text(json.dumps(make()), encoding="utf-8")
    return place


def tables(section) -> list[dict[str, list[str]]]:
    """First cell -> the others, of each table."""
    found = []
    for table in section.tables:
        rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]
        assert len({len(row) for row in rows}) == 1  # a table's rows are all as wide
        found.append({row[0]: row[1:] for row in rows[2:]})
    return found


def said(stats: dict, scale: float = 1.0, digits: int = 2) -> str:
    median, low, high = (f"{scale * stats[key]:.{digits}f}" for key in ("median", "low", "high"))
    return f"{median} ({low}–{high})"


# ---------------------------------------------------------------- measured and predicted


def test_every_benchmark_of_the_page_is_a_command_and_has_a_result_here():
    assert SECTIONS.keys() == MADE.keys()
    from benchmarks import COMMANDS

    assert SECTIONS.keys() <= COMMANDS.keys()


def test_decode_is_held_against_bytes_over_bandwidth():
    result = a_decode()
    config, bandwidth = pairs.SHAPES["8b"], result["bandwidth"]["median"]
    kept = theory.kv_bytes_per_token(config.num_layers, config.num_kv_heads, config.head_dim, 2)
    floor = theory.pass_bytes(result["weight_bytes"], 1, 1, result["context"], kept) / bandwidth
    section = passes.decode(result)
    [rows] = tables(section)
    for name, row in result["results"].items():
        seconds = row["seconds_per_token"]
        assert rows[name][:4] == [
            said(seconds, 1e3),
            f"{1e3 * floor:.2f}",
            f"{seconds['median'] / floor:.2f}",
            f"{floor / seconds['median']:.0%}",
        ]
    assert section.headline[1:] == ("4.40", f"{1e3 * floor:.2f}", f"{4.4e-3 / floor:.2f}")
    assert any("transformers static" in note for note in section.notes)


def test_verify_is_held_against_the_roofline_of_the_measured_machine():
    result = a_verify()
    machine = theory.Hardware("it", result["bandwidth"]["median"], result["flops"])
    weights = result["weight_bytes"] / 2
    [rows] = tables(passes.verify(result))
    ratios = {row["tokens"]: row["seconds"]["median"] / 4.5e-3 for row in result["results"]}
    predicted = {m: 1.0 if m == 1 else theory.verify_cost(machine, weights, m - 1) for m in ratios}
    assert predicted[5] == 1 < predicted[64]  # so little arithmetic that 64 tokens are no longer free
    for row in result["results"]:
        m = row["tokens"]
        assert rows[str(m)] == [
            said(row["seconds"], 1e3, 3),
            f"{ratios[m]:.3f}",
            f"{predicted[m]:.3f}",
            f"{ratios[m] / predicted[m]:.2f}",
        ]


def test_a_load_is_held_against_what_arrives():
    section = load.serve(a_load())
    [table] = section.tables
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]
    assert [row[4:7] for row in rows[:3]] == [["200", "200", "1.00"], ["300", "400", "0.75"], ["320", "–", "–"]]
    assert [row[10] for row in rows] == ["60.0"] * 3 + ["40.0"] * 3 and rows[3][-1] == "2.50"
    assert len(section.notes) == 3  # of the second server one request of each load failed
    assert section.charts.keys() == {"tpot", "ttft"}


def test_a_cycle_is_held_against_its_parts_and_the_formula():
    rows, peers = tables(passes.speculate(CYCLE))
    plain, draft, check = (
        CYCLE["seconds"][name]["median"] for name in ("plain token", "draft, a token", "verify pass")
    )
    for name, seconds in CYCLE["seconds"].items():
        if name in peers:
            assert peers[name][0] == said(seconds, 1e3, 2)
        else:
            assert rows[f"{name}, ms"][0] == said(seconds, 1e3, 3)
    assert rows["whole cycle, ms"][1] == f"{1e3 * (4 * draft + check):.3f}"
    assert rows["whole cycle, ms"][1] == f"{1e3 * CYCLE['predicted_cycle_seconds']:.3f}"
    tokens = theory.expected_tokens(CYCLE["acceptance"], 4)
    assert rows["tokens per cycle"][:2] == [f"{CYCLE['tokens_per_cycle']:.3f}", f"{tokens:.3f}"]
    formula = theory.cycle_speedup(CYCLE["tokens_per_cycle"], 4, draft / plain, check / plain)
    assert rows["speed-up"][:3] == [f"{CYCLE['speedup']:.2f}", f"{formula:.2f}", f"{CYCLE['of_predicted']:.2f}"]


def test_the_parts_of_a_cycle_are_predicted_from_their_bytes():
    predicted = passes.cycle_seconds(CYCLE)
    config, bandwidth = pairs.SHAPES["8b"], CYCLE["bandwidth"]["median"]
    for name, layers in (("plain token", config.num_layers), ("draft, a token", 2)):
        weights = (
            theory.parameter_count(
                config.vocab_size,
                config.hidden_size,
                config.intermediate_size,
                layers,
                config.num_heads,
                config.num_kv_heads,
                config.head_dim,
            )
            - config.vocab_size * config.hidden_size
        )
        kept = theory.kv_bytes_per_token(layers, config.num_kv_heads, config.head_dim, 2)
        assert predicted[name] == pytest.approx(theory.pass_bytes(weights, 2, 1, 500, kept) / bandwidth, rel=1e-12)
    assert predicted["verify pass"] == predicted["plain token"]


def test_peers_stand_beside_the_cycle():
    result = CYCLE | {"seconds": CYCLE["seconds"] | {"transformers assisted": spread(0.055)}}
    _, rows = tables(passes.speculate(result))
    times = 0.055 / (CYCLE["seconds"]["whole cycle"]["median"] / CYCLE["tokens_per_cycle"])
    assert rows == {"transformers assisted": [said(spread(0.055), 1e3), f"{times:.1f}"]}


def test_attention_is_held_against_its_keys_and_values():
    result = an_attention()
    case = result["cases"][1]
    size = 2 * 64 * (4096 + 5) * 8 * 128 * 2  # keys and values of 64 rows, 8 heads of 128, 2 bytes each
    floor = size / result["bandwidth"]["median"]
    assert passes.attention_seconds(result, case) == pytest.approx(floor, rel=1e-12)
    text = "\n".join(passes.attention(result).tables)
    seconds = case["results"]["paged"]["seconds"]
    assert (
        f"| 64 × 4096 + 5 | paged | {said(seconds, 1e6, 1)} | {1e6 * floor:.1f} | "
        f"{seconds['median'] / floor:.2f} | {floor / seconds['median']:.0%} |"
    ) in text


def test_tokens_a_pass_are_predicted_for_chains_that_are_always_k_long_only():
    section = drafting.acceptance(an_acceptance())
    by_group, overall = tables(section)
    assert by_group["model"] == ["2.25", "2.50", "2.50"] and by_group["prompts"] == ["4", "4", "8"]
    expected = theory.expected_tokens(0.7, 4)
    assert overall["model"] == ["4", "3.9", "0.700", "2.500", f"{expected:.3f}", f"{2.5 / expected:.2f}", "1"]
    assert overall["eagle"][4:6] == overall["ngram:8"][4:6] == ["–", "–"]
    assert any("1 of 8 outputs by eagle" in note for note in section.notes)
    assert any("1 prompts of qa" in note for note in section.notes)


def test_drafters_show_speeds_and_what_of_the_ceiling_they_reach():
    section = drafting.drafters(a_race())
    first, _ = tables(section)
    expected = 2.5 / (0.4 + 1.2)
    assert first["model"] == [
        said(spread(90), 1, 1),
        said(spread(1.4)),
        "0.70",
        "2.50",
        "0.40",
        "1.20",
        f"{expected:.2f}",
        f"{1.4 / expected:.2f}",
        f"{1.4 / 2.5:.0%}",
    ]
    assert first["ngram"][4:8] == ["–"] * 4 and first["plain"][2] == "–"
    assert section.headline[:2] == ("best speed-up (ngram, stories)", "1.70")
    assert "graphs" not in section.about and "graphs" in drafting.drafters(a_race() | {"recorded": True}).about
    busy = drafting.drafters(a_race() | {"busy": True})
    assert "busy" in busy.title and "busy" in busy.about and "busy" not in section.title


def test_a_cpu_is_held_against_its_own_roofline():
    """100 MB at 10 GB/s are 10 ms; 25 million weights at 10 GFLOP/s are 5 ms per token: from M = 2 on it computes."""
    section = cpu_section(a_cpu())
    plain, passes = tables(section)
    assert plain["1 thread, quiet"] == [said(spread(0.02), 1e3, 1), "10.0", "2.00", "50%"]
    assert passes["1 thread, quiet"] == ["1.00", "1.10", "1.20", "1.30", "1.40", "1.60"]
    assert passes["1 thread, quiet, predicted"] == ["1.00", "1.50", "2.00", "2.50", "3.00", "4.00"]
    assert passes["2 threads, quiet, predicted"][0] == "1.00" and "2 threads, beside a busy core" in passes
    assert any("1.50 times" in note for note in section.notes)  # 18 ms beside 12
    assert not any("not quiet" in note for note in section.notes)
    loud = a_cpu()
    loud["settings"][0]["others"] = 1.4
    assert any("1.4 cores" in note for note in cpu_section(loud).notes)


def test_memory_is_predicted_from_the_lengths_alone():
    result = memory.compare(memory.workload(60, 20, 200, 3), 256, 16, 400) | {"lengths": [20, 200], "seed": 3}
    predicted = serving.memory_predictions(result)
    work = memory.workload(60, 20, 200, 3)
    length = sum(new * (prompt + new / 2) for prompt, new in work) / sum(new for _, new in work)
    assert predicted["paged", "waste"] == pytest.approx(7.5 / (length + 7.5))
    assert predicted["contiguous", "waste"] == theory.contiguous_waste(round(length), 400)
    assert predicted["contiguous", "most_running"] == 256 * 16 // 400 == result["contiguous"]["most_running"]
    assert predicted["contiguous", "waste"] == pytest.approx(result["contiguous"]["waste"], rel=0.1)  # and it is so
    assert predicted["paged", "waste"] == pytest.approx(result["paged"]["waste"], rel=0.2)
    [rows] = tables(serving.memory_use(result))
    measured, guess = result["contiguous"]["waste"], predicted["contiguous", "waste"]
    assert rows["reserved slots that are empty"][3:] == [f"{measured:.1%}", f"{guess:.1%}", f"{measured / guess:.2f}"]


def test_batching_knows_how_long_static_batches_wait():
    idle = serving.static_idle(BATCHING)
    steps = BATCHING["results"]["static"]["steps"]
    assert idle == pytest.approx(1 - BATCHING["tokens"] / (BATCHING["batch"] * steps), rel=1e-12)
    section = serving.batching_section(BATCHING)
    [rows] = tables(section)
    for name, row in BATCHING["results"].items():
        assert rows[name][:3] == [said(row["tokens_per_second"], 1, 0), said(row["over_static"]), f"{row['steps']:,}"]
    assert rows["static"][4] == f"{idle:.1%}" and rows["continuous"][4] == "–"
    assert section.headline[2] == f"at most {1 / (1 - idle):.2f}"
    assert serving.static_idle(BATCHING | {"seed": 1}) is None  # those are not the lengths of this run
    assert tables(serving.batching_section(BATCHING | {"seed": 1}))[0]["static"][4] == "–"


def test_a_server_is_held_against_the_formula_with_its_own_c_and_v():
    result = a_batch()
    served, full = tables(serving.batch(result))
    assert served["minispec"][:3] == ["9,000 (8,550–9,450)", "14,500", f"{9000 / 14500:.2f}"]
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14_336 + 2 * 4096  # of the 8B shape; its LM head:
    parameters = {layers: 128_256 * 4096 + layers * layer + 4096 for layers in (32, 2)}

    def seconds(layers: int, batch: int, tokens: int) -> float:
        """Products are read or computed; after them attention reads a cache of 4 KiB per token and layer."""
        reads, computes = 2 * parameters[layers] / rate, 2 * parameters[layers] * batch * tokens / 7.9e14
        return max(reads, computes) + batch * result["context"] * 4096 * layers / rate

    rate = result["bandwidth"]["median"]
    for row in result["speculation"]["results"]:
        formula, batch = theory.speedup(0.8, 4, row["c"], row["v"]), row["batch"]
        measured = row["speedup"]["median"]
        cycle = 4 * seconds(2, batch, 1) + seconds(32, batch, 5)
        bound = theory.expected_tokens(0.8, 4) * seconds(32, batch, 1) / cycle
        assert full[str(batch)][5:] == [
            said(row["speedup"]),
            f"{formula:.2f}",
            f"{measured / formula:.2f}",
            f"{bound:.2f}",
            f"{measured / bound:.2f}",
        ]
    assert any("batch 40 measured" in note and "none up to batch 64" in note for note in serving.batch(result).notes)


def test_the_roofline_on_the_page_is_computed_anew():
    """A result recorded with another formula keeps what was measured; what was predicted follows theory.py."""
    result = a_batch()
    for row in result["speculation"]["results"]:
        row |= {"roofline_speedup": 9.99, "acceptance": 0.3}
    result["speculation"]["crossover"]["roofline"] = 77.0
    section = serving.batch(result)
    assert "9.99" not in str(tables(section)) and not any("77" in note for note in section.notes)


@pytest.mark.parametrize(("part", "other"), [("serving", "speculation"), ("speculation", "serving")])
def test_a_server_may_have_been_measured_in_one_respect_alone(part, other):
    result = a_batch() | {part: None}
    section = serving.batch(result)
    assert len(section.tables) == len(section.charts) == 1 and section.headline[1]
    assert cli.parser().parse_args(shlex.split(report.command(result))[1:]).parts == [other]


# ---------------------------------------------------------------- the page


def test_the_committed_page_is_what_the_committed_results_make():
    found, skipped = report.collect()
    assert not skipped
    files = report.page(found)
    for name, content in files.items():
        assert (ROOT / "docs" / name).read_bytes() == content.encode(), (
            f"{name} is old: run python -m benchmarks report"
        )
    pictures = {f"{report.IMAGES}/{file.name}" for file in (ROOT / "docs" / report.IMAGES).glob("bench_*.svg")}
    assert pictures == files.keys() - {report.PAGE}


def test_the_same_results_make_the_same_bytes(folder, tmp_path, run):
    outs = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        code, out, err = run("bench", "report", "--from", folder, "--out", tmp_path / name)
        assert (code, err) == (0, "") and "left out" not in out
        files = {file.relative_to(tmp_path / name): file.read_bytes() for file in (tmp_path / name).rglob("*.*")}
        assert (
            len(files) == len(out.splitlines()) == len(MADE) + 3
        )  # batch and serve have two pictures, and there is the page
        outs.append(files)
        for file in list(folder.iterdir())[::-1]:
            file.touch()
    assert outs[0] == outs[1]


def test_the_page_links_to_its_sections_and_shows_every_picture(folder):
    files = report.page(report.collect(folder)[0])
    page = files.pop(report.PAGE)
    headings = [line[3:] for line in page.splitlines() if line.startswith("## ")]
    assert re.findall(r"\]\(#(.*?)\)", page) == [report.anchor(heading) for heading in headings]
    assert len(headings) == len(set(headings)) == len(MADE)
    assert {path for _, path in re.findall(r"!\[(.+?)\]\((.*?)\)", page)} == files.keys()
    read = "{median:,.0f} GB/s ({low:,.0f}–{high:,.0f})".format(**{k: v / 1e9 for k, v in CYCLE["bandwidth"].items()})
    for fact in ("NVIDIA H200", "torch 2.11.0+cu130", read, "date: 2026-01-02", "rounds: 9"):
        assert fact in page
    assert page.count("- note: ") == page.count(r"- note: a \| b") == 1


def test_what_is_not_there_is_not_on_the_page(folder):
    whole = report.page(report.collect(folder)[0])
    (folder / "verify.json").unlink()
    rest = report.page(report.collect(folder)[0])
    assert whole.keys() - rest.keys() == {"images/bench_verify.svg"}
    assert "The verify pass" in whole[report.PAGE] and "The verify pass" not in rest[report.PAGE]


def test_two_results_of_one_benchmark_both_have_their_place(folder):
    (folder / "decode again.json").write_text(json.dumps(a_decode()), encoding="utf-8")
    files = report.page(report.collect(folder)[0])
    page = files[report.PAGE]
    links = re.findall(r"\]\(#(.*?)\)", page)
    assert len(links) == len(set(links)) == len(MADE) + 1
    assert {"images/bench_decode.svg", "images/bench_decode-20-again.svg"} <= files.keys()


def test_the_readme_quotes_the_results():
    """Every number of its table is in the results it is taken from, as they are rounded there."""
    readme = (report.DOCS.parent / "README.md").read_text(encoding="utf-8")
    table = readme[readme.index("## On a GPU") : readme.index("## Beyond one machine")]
    decode = json.loads((report.SHIPPED / "decode.json").read_text(encoding="utf-8"))
    plain = {name: row["seconds_per_token"]["median"] * 1e3 for name, row in decode["results"].items()}
    share = decode["results"]["launch"]["fraction_of_bandwidth"]
    rows = (
        f"bandwidth | {1e3 * decode['predicted_seconds']:.2f} | {decode['weight_bytes'] / 1e9:.0f} GB of weights at "
        f"{decode['bandwidth']['median'] / 1e9:,.0f} GB/s",
        f"decoding | {plain['launch']:.2f} | {share:.0%} of the bandwidth; transformers: "
        f"{plain['transformers eager']:.2f} eager, {plain['transformers static']:.2f} compiled",
        f"cycle | {1e3 * CYCLE['seconds_per_token']:.2f} | {CYCLE['speedup']:.2f} times as fast as plain, at α = "
        f"{CYCLE['acceptance']:.2f}, where the formula predicts {CYCLE['predicted_speedup']:.2f}; transformers, "
        f"assisted: {1e3 * CYCLE['seconds']['transformers assisted']['median']:.2f}",
    )
    for row in rows:
        assert row in table, row
    passes, served, drafted = (
        json.loads((report.SHIPPED / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("verify", "serving", "speculation")
    )
    seconds = {row["tokens"]: row["seconds"]["median"] for row in passes["results"]}
    ours, best = served["serving"]["results"]["minispec"], served["serving"]["floor_tokens_per_second"]
    best_share = ours["tokens_per_second"]["median"] / best
    gain = {row["batch"]: f"{row['speedup']['median']:.2f} times" for row in drafted["speculation"]["results"]}
    sentences = (
        f"pass over 16 tokens takes {seconds[16] / seconds[1]:.2f} times as long",
        f"{served['serving']['requests']} requests of 100 to 1,024 tokens in and out at "
        f"{ours['tokens_per_second']['median']:,.0f} tokens/s, {100 * best_share:.0f} % of the {best:,.0f} that the "
        "roofline allows",
        f"Four draft tokens per request make the engine {gain[1]} as fast with one request, {gain[32]} with 32 and "
        f"{gain[128]} with 128",
    )
    for sentence in sentences:
        assert sentence in " ".join(table.split()), sentence


BROKEN = {
    "no JSON": "{",
    "no text": b"\xff\xfe\x00",
    "no result": '{"cases": []}',
    "a list": "[1, 2]",
    "another benchmark": '{"benchmark": "juggling"}',
    "no time": json.dumps(a_verify() | {"results": [{"tokens": 1, "seconds": spread(float("nan"))}]}),
    "no numbers": json.dumps(a_verify() | {"flops": float("nan")}),
    "half a result": json.dumps({key: value for key, value in a_decode().items() if key != "results"}),
    "an empty result": json.dumps(an_attention() | {"cases": []}),
    "a strange shape": json.dumps(a_decode() | {"shape": "9b"}),
    "text for a number": json.dumps(a_decode() | {"weight_bytes": "many"}),
    "nothing per second": json.dumps(a_verify() | {"bandwidth": spread(0.0)}),
}


@pytest.mark.parametrize("why", BROKEN)
def test_files_that_are_no_results_are_named_and_left_out(why, folder, tmp_path, run):
    content = BROKEN[why]
    (folder / "odd.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    whole = report.page(report.collect(folder)[0])
    code, out, err = run("bench", "report", "--from", folder, "--out", tmp_path)
    assert (code, err) == (0, "") and "left out: odd.json: " in out
    assert "odd" not in whole[report.PAGE]
    if why == "another benchmark":
        assert "juggling" in out
    for file in folder.iterdir():
        if file.name != "odd.json":
            file.unlink()
    with pytest.raises(ValueError, match=r"no result.*odd\.json"):
        report.collect(folder)


def test_mistakes_are_named_before_anything_is_written(folder, tmp_path, run):
    code, out, err = run("bench", "report", "--from", tmp_path / "nowhere", "--out", tmp_path)
    assert (code, out) == (2, "") and "nowhere" in err
    code, out, err = run("bench", "report", "--from", folder, "--out", tmp_path / "nowhere")
    assert (code, out) == (2, "") and "nowhere" in err
    (tmp_path / "empty").mkdir()
    code, out, err = run("bench", "report", "--from", tmp_path / "empty", "--out", tmp_path)
    assert (code, out) == (2, "") and "empty" in err
    assert not (tmp_path / report.PAGE).exists() and not (tmp_path / report.IMAGES).exists()


def test_names_cannot_break_tables_or_pictures(folder):
    result = a_decode()
    odd = 'a | b\n<script>"&]'
    result["results"][odd] = result["results"].pop("generate")
    result["machine"] = result["machine"] | {"gpus": [{"name": "<b>GPU|\n</b>", "memory_bytes": 1}]}
    (folder / "decode.json").write_text(json.dumps(result), encoding="utf-8")
    section = report.collect(folder)[0]["decode"][1]
    [table] = section.tables
    assert "<script>" not in table
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
    picture = ET.fromstring(section.charts[""])
    assert odd in [text.text for text in elements(picture, "text")]


# ---------------------------------------------------------------- asking again


@every_benchmark
def test_the_command_asks_the_same_again(name):
    result = MADE[name]()
    args = vars(cli.parser().parse_args(shlex.split(report.command(result))[1:]))
    recorded = set("shape context k seed repeat epsilon temperature batch requests block_size".split())
    recorded -= {"attention": {"shape"}, "acceptance": {"k"}, "batching": {"k"}}.get(name, set())  # otherwise written
    for key in recorded & args.keys() & result.keys():
        assert args[key] == result[key], key
    assert args.get("model") == result.get("target")


@pytest.mark.slow
def test_the_command_knows_what_is_written_elsewhere_in_a_result():
    def asked(result: dict):
        return cli.parser().parse_args(shlex.split(report.command(result))[1:])

    assert asked(a_verify()).sizes == [1, 5, 64]
    assert asked(a_decode()).peers == ["eager", "static"] and asked(CYCLE).peers == ["assisted"]
    assert asked(MEMORY).lengths == [100, 1024]
    assert asked(a_limit()).models == ["8b"] and asked(a_limit()).device == "cuda"
    assert asked(an_attention()).cases == [(64, 4096)] and asked(an_attention()).new_tokens == [1, 5]
    assert asked(an_attention()).heads == [32, 8, 128]
    assert [accepting.parse(one) for one in asked(an_acceptance()).drafters] == [
        ("model", 4),
        ("eagle", None),
        ("ngram", 8),
    ]
    assert asked(an_acceptance()).prompts == "question.jsonl" and asked(an_acceptance()).per_group == 40
    assert asked(a_race()).drafters == ["model", "ngram"] and asked(a_race()).eager == bool(a_race()["machine"]["gpus"])
    assert not asked(a_race() | {"recorded": True}).eager
    assert asked(BATCHING).tokens == 256 and asked(BATCHING).drafter is None
    assert asked(BATCHING | {"drafter": "EarlyExit", "k": 3}).drafter == "early-exit"
    assert asked(BATCHING | {"drafter": "NGram", "k": 3}).k == 3
    server = asked(a_batch())
    assert server.peer_seqs is None  # one peer ran without a trial: the usual one
    tried = a_batch()
    tried["serving"]["trials"] = {f"transformers graphs, {rows} at a time": 1.0 for rows in (64, 128)}
    tried["serving"]["skipped"] = {"transformers default, 64 at a time": "OSError: no"}
    assert set(asked(tried).peers) == {"graphs", "default"} and asked(tried).peer_seqs == [64, 128]
    tried["serving"] |= {"trials": {}, "skipped": {}, "peer": None}
    assert asked(tried).peers == []
    assert (server.sizes, server.requests, server.output_lengths, server.tokens) == ([1, 8, 64], 256, [100, 1000], 64)


# ---------------------------------------------------------------- the pictures


def elements(picture: ET.Element, kind: str, colour: str | None = None) -> list[ET.Element]:
    found = list(picture.iter(f"{{http://www.w3.org/2000/svg}}{kind}"))
    return [one for one in found if colour is None or one.get("fill") == colour]


@every_benchmark
def test_pictures_are_whole_and_say_what_they_show(name):
    section = SECTIONS[name](MADE[name]())
    for chart in section.charts.values():
        picture = ET.fromstring(chart)
        width, height = float(picture.get("width")), float(picture.get("height"))
        assert width == svg.WIDTH and picture.get("viewBox") == f"0 0 {picture.get('width')} {picture.get('height')}"
        assert len(picture.find("{*}title").text) > 10 and len(picture.find("{*}desc").text) > 10
        assert picture.get("role") == "img" and picture.get("aria-labelledby") == "title about"
        assert "nan" not in chart and "http" not in chart.replace("http://www.w3.org/2000/svg", "")  # loads nothing
        for one in elements(picture, "rect"):
            x, y, w, h = (float(one.get(key)) for key in ("x", "y", "width", "height"))
            assert 0 <= x <= x + w <= width and 0 <= y <= y + h <= height
        for one in elements(picture, "text"):
            x, y, length = float(one.get("x")), float(one.get("y")), svg.ADVANCE * len(one.text)
            before = {"start": 0.0, "middle": length / 2, "end": length}[one.get("text-anchor", "start")]
            if one.get("class") != "title":
                assert x - before >= 0 and x - before + length <= width + 4 and 0 < y < height, one.text
        assert "prefers-color-scheme:dark" in chart


def test_bars_are_as_long_as_their_numbers_say():
    picture = ET.fromstring(
        svg.bars(
            "t",
            "d",
            ["a", "b"],
            [svg.Series("x", [2.0, 3.0], [1.0, 2.5], [2.5, 3.5]), svg.Series("y", [4.0, None])],
            "ms",
        )
    )
    first, second = (elements(picture, "rect", colour) for colour in svg.COLOURS[:2])
    (_, two, three), (_, four) = ([float(one.get("width")) for one in some] for some in (first, second))  # after legend
    assert three / two == pytest.approx(1.5, rel=0.01) and four / two == pytest.approx(2.0, rel=0.01)
    low, high = map(float, re.match(r"M([\d.]+) [\d.]+H([\d.]+)", elements(picture, "path")[0].get("d")).groups())
    start = float(first[1].get("x"))
    assert low - start == pytest.approx(two / 2, abs=0.2) and high - start == pytest.approx(two * 1.25, abs=0.2)


def test_stacks_follow_one_another():
    series = [svg.Series(name, [value]) for name, value in (("x", 20.0), ("y", 30.0), ("z", 50.0))]
    picture = ET.fromstring(svg.stacks("t", "d", ["a"], series, "%", "{:g}"))
    parts = [elements(picture, "rect", colour)[-1] for colour in svg.COLOURS[:3]]
    for one, after in pairwise(parts):
        assert float(one.get("x")) + float(one.get("width")) == pytest.approx(float(after.get("x")), abs=0.11)
    widths = [float(one.get("width")) for one in parts]
    assert [width / sum(widths) for width in widths] == pytest.approx([0.2, 0.3, 0.5], abs=0.001)


def test_columns_stand_on_the_axis():
    chart = svg.columns("t", "d", ["a", "b"], [svg.Series("x", [1.0, 4.0])], "n", {"one": 1})
    picture = ET.fromstring(chart)
    short, tall = elements(picture, "rect", svg.COLOURS[0])
    assert float(tall.get("height")) / float(short.get("height")) == pytest.approx(4, rel=0.01)
    feet = {round(float(one.get("y")) + float(one.get("height")), 1) for one in (short, tall)}
    [axis] = [one for one in elements(picture, "line") if one.get("class") == "axis"]
    assert feet == {float(axis.get("y1"))}
    [mark] = [one for one in elements(picture, "line") if one.get("class") == "mark"]
    assert float(mark.get("y1")) == float(short.get("y"))


@pytest.mark.parametrize("log", [False, True])
def test_lines_go_through_their_points(log):
    series = [svg.Series("measured", [1.0, 1.5, None, 3.0]), svg.Series("predicted", [1, 2, 3, 4], predicted=True)]
    picture = ET.fromstring(svg.lines("t", "d", [1, 2, 4, 8], series, ("M", "ratio"), log=log))
    solid, dashed = (
        [tuple(map(float, pair.split(","))) for pair in one.get("points").split()]
        for one in elements(picture, "polyline")
    )
    assert len(solid) == 3 and len(dashed) == 4 and "dashed" in elements(picture, "polyline")[1].get("class")
    assert [(float(c.get("cx")), float(c.get("cy"))) for c in elements(picture, "circle")] == solid
    steps = [b[0] - a[0] for a, b in pairwise(dashed)]
    assert steps == pytest.approx([steps[0]] * 3 if log else [steps[0], 2 * steps[0], 4 * steps[0]], abs=0.3)
    heights = [a[1] - b[1] for a, b in pairwise(dashed)]
    assert heights == pytest.approx([heights[0]] * 3, abs=0.2) and heights[0] > 0


@pytest.mark.parametrize("high", [1e-9, 0.03, 0.87, 1, 4.3, 5, 9.99, 100, 14_500, 3e12])
def test_ticks_are_round_and_reach_just_far_enough(high):
    scale = svg.ticks(high)
    step = scale[1]
    assert scale[0] == 0 and scale[-1] >= high * (1 - 1e-8) and scale[-2] < high
    assert 2 <= len(scale) <= 6 and f"{step:e}"[0] in "125" and step == pytest.approx(float(f"{step:.0e}"))
    assert svg.ticks(0.0) == svg.ticks(float("nan")) == [0, 1]


def test_colours_are_those_of_the_course():
    style = pytest.importorskip("minispec_course.viz.style")
    assert svg.COLOURS[: len(style.PALETTE)] == style.PALETTE and style.GREY == svg.GREY


# ---------------------------------------------------------------- what benchmarks really write


@pytest.mark.slow
def test_results_that_were_measured_here_can_be_reported(tiny_folder, draft_folder, tmp_path, run, monkeypatch):
    monkeypatch.setattr(pairs, "read_bandwidth", lambda device: Rate(1e10, 9e9, 1.1e10, 3))
    monkeypatch.setattr(attention, "read_bandwidth", lambda device, size: Rate(1e10, 9e9, 1.1e10, 3))
    monkeypatch.setattr(limit, "read_bandwidth", lambda device: Rate(1e10, 9e9, 1.1e10, 3))
    for module in (verify, batch):
        monkeypatch.setattr(module, "flops", lambda device, dtype: Rate(4e10, 4e10, 4e10, 3))
    texts = tmp_path / "texts"
    texts.write_text('{"prompt": "The fox", "category": "a"}\n{"prompt": "Why?", "category": "b"}\n', encoding="utf-8")
    models = ["--model", tiny_folder, "--draft", draft_folder, "--tokens", 8, "--prompts", texts]
    shape = ["--shape", "toy", "--context", 20, "--repeat", 1]
    options = {
        "decode": [*shape, "--tokens", 4, "--peers"],
        "verify": [*shape, "--sizes", 1, 4],
        "speculate": [*shape, "--cycles", 4, "--texts", 2, "--tokens", 4, "--peers"],
        "batch": ["--shape", "toy", "--requests", 3, "--sizes", 1, 2, "--repeat", 1, "--peers"],
        "memory": ["--requests", 20, "--lengths", 10, 50],
        "attention": ["--cases", "1x20", "--repeat", 1],
        "batching": [*models, "--requests", 4, "--batch", 2, "--repeat", 1, "--drafter", "ngram"],
        "cpu": ["--model", tiny_folder, "--context", 8, "--repeat", 1],
        "limit": ["--models", "toy", "--context", 8, "--repeat", 1, "--device", "cpu"],
        "acceptance": [*models, "--drafters", "model", "ngram:3"],
        "drafters": [*models, "--drafters", "model", "ngram", "--repeat", 1],
    }
    results = tmp_path / "results"
    results.mkdir()
    for name, some in options.items():
        code, _, err = run("bench", name, *some, "--json", results / f"{name}.json")
        assert code == 0, err
    found, skipped = report.collect(results)
    assert not skipped and found.keys() == options.keys()
    page = report.page(found)[report.PAGE]
    assert "not recorded" not in page and page.count("- date: 2") == len(options)
    for result, section in found.values():
        tables(section)
        cli.parser().parse_args(shlex.split(report.command(result))[1:])
    assert racing.PLAIN in page
