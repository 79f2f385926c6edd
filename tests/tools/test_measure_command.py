"""`minispec measure`: its report adds up, fits a terminal, and comes from a whole measurement of a tiny model."""

import json

import pytest

import minispec as ms
from minispec import measure as timing
from minispec import theory
from minispec.measure import Point, Rate, Timing
from minispec_tools.measure import Report, measure


def report(**changes) -> Report:
    ratios = {1: 1.0, 2: 1.05, 4: 1.3, 5: 1.5, 8: 2.1, 64: 16.1}
    curve = [Point(m, Timing(0.01 * r, 0.009 * r, 0.02 * r, 9), r) for m, r in ratios.items()]
    machine = {"cpu": "A Processor With A Remarkably Long Name (R) CPU @ 2.10GHz and more", "cores": 64, "threads": 32}
    machine |= {"memory_bytes": 2**35, "cache_bytes": 2**25, "gpus": [{"name": "NVIDIA H200", "memory_bytes": 2**37}]}
    machine |= {"system": "Linux x86_64", "python": "3.11.7", "torch": "2.13.0", "vector_units": "AVX2"}
    machine |= {"bfloat16_units": False}
    known = dict(machine=machine, model="tiny", parameters=135_000_000, weight_bytes=540_000_000)
    known |= dict(device="cpu", dtype="float32", context=256, curve=curve, plain=Rate(25.0, 24.0, 26.0, 5))
    known |= dict(bandwidth=Rate(2e10, 1.9e10, 2.1e10, 7), flops=Rate(1e11, 9e10, 1.1e11, 7))
    return Report(**known | changes)


def test_achieved_fraction_and_ridge_point():
    assert report().achieved == pytest.approx(540e6 * 25 / 2e10)
    assert report().free_tokens == pytest.approx(10)  # 5 FLOP per byte, four bytes per weight, two FLOPs for each
    assert report(dtype="bfloat16").free_tokens == pytest.approx(5)


GPU = dict(device="cuda:0", dtype="bfloat16", plain=Rate(812.4, 800.0, 999.9, 5))
LONG = dict(context=131_072, model="a-model-of-a-name-that-goes-on-and-on-1.7B-instruct")
HOPELESS = [Point(m, Timing(12.3 * m, 11.1 * m, 13.9 * m, 3), 1.5 * m if m > 1 else 1.0) for m in (1, 5, 64)]


@pytest.mark.parametrize(
    "changes", [{}, GPU, LONG, dict(weight_bytes=1000), dict(curve=report().curve[:1]), dict(curve=HOPELESS)]
)
def test_the_text_fits_a_terminal_and_shows_every_point(changes):
    r = report(**changes)
    text = r.text()
    assert max(map(len, text.splitlines())) <= 80 and "\x1b" not in text  # no colour codes
    bars = {int(line.split()[0]): line.count("█") for line in text.splitlines() if line.endswith("█")}
    assert list(bars) == [p.tokens for p in r.curve]
    assert list(bars.values()) == sorted(bars.values()) and min(bars.values()) >= 1
    assert ("NVIDIA H200" in text) == r.device.startswith("cuda")


def test_the_verdict_is_where_a_free_draft_breaks_even():
    assert f"{theory.break_even(4, 0.0, 1.5):.2f}" in report().text()
    assert "cannot pay" in report(curve=HOPELESS).text()


@pytest.mark.slow
def test_the_command_measures_a_model_whole(run, monkeypatch, tiny_folder, tmp_path):
    """Everything for real, on a model so small that it takes no time; only the two slow probes are shortened."""
    bandwidth, flops = timing.read_bandwidth, timing.flops
    monkeypatch.setattr(f"{measure.__module__}.read_bandwidth", lambda device, **o: bandwidth(device, size=2**20, **o))
    monkeypatch.setattr(
        f"{measure.__module__}.flops", lambda device, dtype, **o: flops(device, dtype, **o | dict(repeat=1))
    )
    code, out, _ = run("measure", "--model", tiny_folder, "--quick", "--json", tmp_path / "r.json")
    found, model = json.loads((tmp_path / "r.json").read_text()), ms.load(tiny_folder)
    assert code == 0 and max(map(len, out.splitlines())) <= 80
    assert found["model"] == tiny_folder.name and str(tiny_folder.parent) not in out + str(found)  # private
    assert (found["parameters"], found["weight_bytes"]) == (model.num_parameters, timing.weight_bytes(model))
    assert found["context"] + max(point["tokens"] for point in found["curve"]) <= model.config.max_length
    assert found["curve"][0]["ratio"] == 1 and found["plain"]["median"] > 0
    assert json.loads(run("measure", "--model", tiny_folder, "--quick", "--json")[1]).keys() == found.keys()
