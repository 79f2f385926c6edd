"""Every number in a lesson's prose is computed on the page.

A number in a sentence has to stand in the code of some cell, or in what a cell printed; as it is, or as a percentage.
The few others are listed here: with an expression that gives them, or as GIVEN. Whole numbers up to sixteen are words.
"""

import json
import re
from pathlib import Path

import pytest

from minispec import theory
from minispec.load.registry import BENCHMARKS
from minispec_course.build.spoilers import uncovered
from minispec_course.labs.load import ALPHA, REQUESTS
from minispec_course.labs.presets import SHAPES, weights_read
from minispec_tools.bench.ahead import BESIDE, costs

LESSONS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))
NUMBER = re.compile(r"(?<![\w.,/^_{\-])(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?(?![\w/])")
NOT_PROSE = re.compile(
    r"`[^`]*`|\[[^\]]*\]\([^)]*\)|^\*Time:\*.*$|^#+ .*$|^\d+\. |^\| \d\d \| |[Ll]essons? \d+(?:(?:,| to| and) \d+)*"
    r"|,\s(?:19|20)\d\d(?=[,:;)])|arXiv:\d{4}\.\d{5}",  # a paper: "(Leviathan et al., 2023, arXiv:2211.17192)"
    re.M,
)

RESULTS = Path(__file__).resolve().parents[2] / "docs/results"
RULES = json.loads((RESULTS / "rules_arm.json").read_text(encoding="utf-8"))["results"][0]["expected"]
VOCABULARY = json.loads((RESULTS / "vocabulary_arm.json").read_text(encoding="utf-8"))
ACCEPTED = [each[name]["acceptance"] for each in VOCABULARY["results"].values() for name in ("smollm2-draft", "micro")]
INVARIANT = json.loads((RESULTS / "invariant_h200.json").read_text(encoding="utf-8"))
DRAFTERS = json.loads((BENCHMARKS / "drafters.json").read_text(encoding="utf-8"))["results"]
CASCADE = [rows["cascade"]["speedup"]["median"] for rows in DRAFTERS.values()]
ACCEPTANCE = json.loads((BENCHMARKS / "acceptance.json").read_text(encoding="utf-8"))
AHEAD = [*json.loads((BENCHMARKS / "ahead.json").read_text(encoding="utf-8"))["results"].values()]
BESIDES = [costs(rows, way) for rows in AHEAD for way in rows if way.startswith(BESIDE)]
SLOWER, GAINS = ([float(row[column].strip("%")) for row in BESIDES] for column in (2, -1))
LIMIT = json.loads((BENCHMARKS / "limit.json").read_text(encoding="utf-8"))


def ttft(file: Path, rate: float, share: str, server: str = "smollm2:eagle") -> float:
    """The time to first token that `minispec bench serve` recorded, in ms."""
    [served] = [each for each in json.loads(file.read_text(encoding="utf-8"))["servers"] if each["server"] == server]
    [result] = [result for result in served["results"] if result["rate"] == rate]
    return result["ttft_ms"][share]


def per_pass(kind: str, length: int, drafter: str = "eagle") -> float:
    return ACCEPTANCE["lengths"][kind][str(length)][drafter]["tokens_per_pass"]


COLD = RESULTS / "serve_h200_without_warm_up.json"


# What a sentence only sets: years, versions, statuses of HTTP, premises of a question, other people's tables.
GIVEN: dict[str, set[float]] = {
    "00": {50},
    "01": {20, 40, 132},
    "03": {2023, 20.4, 38.2},
    "04": {2048},
    "08": {0.7, 0.95},
    "09": {32},
    "10": {30, 85, 90},
    "11": {39},
    "11b": {95},
    "12": {0.1, 1.27, 127},
    "13": {132, 700},
    "14": {1140},
    "15": {30, 2025},
    "15b": {62, 67, 250, 1.87, 1.96, 4.99, 5.69, 6.2},
    "appendix": {40, 70, 280},
}
QUOTED: dict[str, dict[float, object]] = {
    "01": {
        4.2: theory.H200.bandwidth / 1e12,
        790: theory.H200.flops / 1e12,
        188: theory.balance_point(theory.H200),
        99: 100 * (1 - 1 / theory.balance_point(theory.H200)),
        37.6: 256 * (1 - (1 - 8 / 256) ** 5),
        7.5: weights_read(SHAPES["Llama-3-8B"]) / 1e9,
    },
    "02": {115: 2 * weights_read(SHAPES["Llama-3-8B"]) / 2**17 / 1e3, 2048: 2 * 8 * 128},
    "03": {96: 100 // 16 * 16},
    "04": {50: (100 + 20 + 40 + 40) / 4, 2008: 2048 - 40, 992: 3000 - 2008},
    "05": {103: 100 + 2 + 1, 102: 103 - 1},
    "07": {1.2: 2 * 0.1 + 1, 1.46: theory.speedup(0.5, 2, 0.1), 3.8: 1 + 0.7 * 4},
    "08": {
        31: 1 + (5 + 5) * (4 - 1),
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
    "11": {
        41: 39 + 1 + 1,
        42: 41 + 1,
        75: 100 * (64512 / 36864 - 1),  # bytes of a block of micro, with states and without
        19: 100 * 3 * 4096 / (2 * 32 * 1024),  # states of three layers over keys and values, 8B
    },
    "11b": {
        0.6: ALPHA,
        24: REQUESTS,  # of the control room
        60: 20 * 3,
        9.1: ttft(COLD, 8, "p50"),
        367: ttft(COLD, 8, "p99"),
    },
    "13": {
        1.4: 700 * 2 / 1e3,
        4.2: theory.H200.bandwidth / 1e12,
        4.9: 700 * (2 + 5) / 1e3,
        124: 132 - 8,
        135: LIMIT["models"]["smollm2"]["parameters"] / 1e6,
        512: 64 * 8,
    },
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
        0.68: 0.22 + 0.34 + 0.12,  # of the toy's q on a, b, c
    },
    "15b": {
        46: 100 * (1 - 6 / 8 * 5 / 7),
        73: 100 * max(row["hit_rate"]["median"] for rows in AHEAD for row in rows.values()),
        49: min(SLOWER),
        173: max(SLOWER),
        0.63: min(GAINS),
        0.82: max(GAINS),
    },
    "16": {4.2: theory.H200.bandwidth / 1e12},
}


def numbers(text: str) -> set[float]:
    return {float(whole.replace(",", "") + part) for whole, part in NUMBER.findall(text)}


def unexplained(cells: list[dict]) -> set[float]:
    """The numbers of the text cells that are in no code cell and in no output."""
    code = [uncovered(cell) for cell in cells if cell["cell_type"] == "code"]
    shown = ["".join(cell["source"]) for cell in code]
    steady = [cell for cell in code if "nbval-ignore-output" not in cell["metadata"].get("tags", [])]
    for output in (output for cell in steady for output in cell["outputs"]):  # what no machine changes
        data = output.get("data", {})
        texts = output.get("text", ""), data.get("text/plain", ""), data.get("text/markdown", "")
        shown += map("".join, texts)
    known = numbers("\n".join(shown))
    known |= {round(x * 100, 6) for x in known} | {round(x / 100, 6) for x in known}
    prose = "\n".join(NOT_PROSE.sub(" ", "".join(cell["source"])) for cell in cells if cell["cell_type"] == "markdown")
    return {x for x in numbers(prose) - known if x != int(x) or x > 16}


@pytest.mark.slow
def test_every_number_in_the_prose_is_computed_on_the_page():
    """If not: compute it in a cell nearby, or say above where it comes from; drop what is gone."""
    cells = {file.stem.split("_")[0]: json.loads(file.read_text(encoding="utf-8"))["cells"] for file in LESSONS}
    found = {number: unexplained(of_lesson) for number, of_lesson in cells.items()}
    listed = {number: GIVEN.get(number, set()) | set(QUOTED.get(number, ())) for number in found}
    assert found == listed
    for number, value in (pair for quoted in QUOTED.values() for pair in quoted.items()):
        digits = len(f"{number:g}".partition(".")[2])
        assert round(value, digits) == number, f"{number} in the prose, {value} computed"
