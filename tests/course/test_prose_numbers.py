"""Numbers that a lesson quotes from a stored measurement, or from a formula, are what the file or the formula says."""

import json
import re
from pathlib import Path

import pytest

from minispec import theory
from minispec.load.registry import BENCHMARKS
from minispec_course.labs.presets import SHAPES, weights_read
from minispec_tools.bench.ahead import BESIDE, costs

ROOT = Path(__file__).resolve().parents[2]
NUMBER = re.compile(r"(?<![\w.,/^_{\-])(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?(?![\w/])")


def read(file: Path) -> dict:
    return json.loads(file.read_text(encoding="utf-8"))


def result(name: str) -> dict:
    return read(ROOT / f"docs/results/{name}.json")


def ttft(share: str) -> float:
    """The time to first token, in ms, that `minispec bench serve` recorded without a warm-up, at 8 requests/s."""
    servers = result("serve_h200_without_warm_up")["servers"]
    [served] = [each for each in servers if each["server"] == "smollm2:eagle"]
    [found] = [found for found in served["results"] if found["rate"] == 8]
    return found["ttft_ms"][share]


ACCEPTANCE = read(BENCHMARKS / "acceptance.json")


def per_pass(kind: str, length: int, drafter: str = "eagle") -> float:
    return ACCEPTANCE["lengths"][kind][str(length)][drafter]["tokens_per_pass"]


INVARIANT, VOCABULARY = result("invariant_h200"), result("vocabulary_arm")
RULES = result("rules_arm")["results"][0]["expected"]
ACCEPTED = [each[name]["acceptance"] for each in VOCABULARY["results"].values() for name in ("smollm2-draft", "micro")]
CASCADE = [rows["cascade"]["speedup"]["median"] for rows in read(BENCHMARKS / "drafters.json")["results"].values()]
AHEAD = [*read(BENCHMARKS / "ahead.json")["results"].values()]
BESIDES = [costs(rows, way) for rows in AHEAD for way in rows if way.startswith(BESIDE)]
SLOWER, GAINS = ([float(row[column].strip("%")) for row in BESIDES] for column in (2, -1))
H200, LLAMA = theory.H200, SHAPES["Llama-3-8B"]

QUOTED = {  # lesson → number in its prose → where it comes from
    "01": {
        4.2: H200.bandwidth / 1e12,
        790: H200.flops / 1e12,
        188: theory.balance_point(H200),
        7.5: weights_read(LLAMA) / 1e9,
    },
    "02": {115: 2 * weights_read(LLAMA) / 2**17 / 1e3},
    "07": {1.46: theory.speedup(0.5, 2, 0.1)},
    "08": {
        0.27: min(CASCADE),
        0.59: max(CASCADE),
        4.3: per_pass("random", 1024),
        3.1: per_pass("real", 1024),
        3.5: per_pass("random", 1024, "ngram:10"),
        1.4: per_pass("real", 1024, "ngram:10"),
        2.4: per_pass("real", 2048),
        64: ACCEPTANCE["new_tokens"],
        2.8: ACCEPTANCE["along"]["eagle"][0]["tokens_per_pass"],
    },
    "11b": {9.1: ttft("p50"), 367: ttft("p99")},
    "13": {4.2: H200.bandwidth / 1e12, 135: read(BENCHMARKS / "limit.json")["models"]["smollm2"]["parameters"] / 1e6},
    "14": {
        28: INVARIANT["off"]["outputs equal to plain decoding"]["a batch"],
        19: INVARIANT["off"]["outputs equal to plain decoding"]["an engine"],
        925: INVARIANT["off"]["tokens per second"]["one prompt of 1140 tokens"],
        747: INVARIANT["on"]["tokens per second"]["one prompt of 1140 tokens"],
        32: INVARIANT["prompts"],
        128: INVARIANT["tokens"],
    },
    "15": {
        1.04: RULES["ratio"],
        0.001: RULES["error"],
        1883: VOCABULARY["shared_tokens"],
        **{round(100 * rate): 100 * rate for rate in ACCEPTED if rate > 0.16},
    },
    "15b": {
        73: 100 * max(row["hit_rate"]["median"] for rows in AHEAD for row in rows.values()),
        49: min(SLOWER),
        173: max(SLOWER),
        0.63: min(GAINS),
        0.82: max(GAINS),
    },
    "16": {4.2: H200.bandwidth / 1e12},
}


@pytest.mark.parametrize("lesson", QUOTED)
def test_a_quoted_number_is_what_was_recorded(lesson):
    [file] = (ROOT / "notebooks").glob(f"{lesson}_*.ipynb")
    prose = "\n".join("".join(cell["source"]) for cell in read(file)["cells"] if cell["cell_type"] == "markdown")
    said = {float(whole.replace(",", "") + part) for whole, part in NUMBER.findall(prose)}
    assert QUOTED[lesson].keys() - said == set(), "the lesson quotes these no more: drop them here"
    for number, value in QUOTED[lesson].items():
        digits = len(f"{number:g}".partition(".")[2])
        assert round(value, digits) == number, f"{number} in the prose, {value} recorded"
