"""The live page: speculative decoding with a real model, in the browser.

    python -m minispec_course.site.live OUT     writes OUT/live.html and what it loads, in a second

A page that is opened from a folder may fetch nothing and may load no worker, but it may load a script. So one script,
live_weights.js, holds all that the page needs as one object, LIVE: the weights as they are shipped (gzipped safetensors
in base64), the tokenizer, the text of the worker, and measured times of two machines.
"""

import base64
import json
import re
import shutil
import sys
from pathlib import Path

from minispec.load.registry import DATA

from . import sources

HERE = Path(__file__).parent / "live"
MODELS = ("micro", "micro-draft")  # the target and its draft model share one tokenizer
LONGEST = 8  # the longest draft that the page offers
WORKER = ("engine.js", "worker.js")


def build(out: Path) -> Path:
    """Write the page into a folder; what it loads lies beside it."""
    out.mkdir(parents=True, exist_ok=True)
    for file in HERE.iterdir():
        if file.name not in WORKER:
            shutil.copyfile(file, out / file.name)
    page = (HERE / "live.html").read_text(encoding="utf-8")
    # Links lead to the function that they name.
    at = re.compile(r'(href="source/[^"]*)" data-source="([^"]*)"')
    page = at.sub(lambda link: f'{link[1]}#L{sources.find(link[2])[1]}"', page)
    (out / "live.html").write_text(page, encoding="utf-8")
    (out / "live_weights.js").write_text(f"globalThis.LIVE = {json.dumps(contents())};\n", encoding="ascii")
    return out / "live.html"


def contents() -> dict:
    """What the page finds as LIVE."""
    worker = "\n".join((HERE / name).read_text(encoding="utf-8") for name in WORKER)
    weights = {"tokenizer": tokenizer(), "models": {name: model(name) for name in MODELS}}
    return {"worker": worker, "machines": machines(), "weights": weights}


def model(name: str) -> dict:
    config, weights = DATA / name / "config.json", DATA / name / "model.safetensors.gz"
    return {
        "config": json.loads(config.read_text(encoding="utf-8")),
        "data": base64.b64encode(weights.read_bytes()).decode("ascii"),
    }


def tokenizer() -> dict:
    stored = json.loads((DATA / MODELS[0] / "tokenizer.json").read_text(encoding="utf-8"))
    return {
        "vocab": stored["model"]["vocab"],
        "merges": stored["model"]["merges"],
        "end": stored["added_tokens"][0]["content"],
    }


def machines() -> list[dict]:
    """Measured times of two machines: a plain pass, one draft token, and a verify pass of k draft tokens."""
    verify, cycle, cpu, drafters = map(benchmark, ("verify", "speculate", "cpu_arm", "drafters_arm"))
    two_cores = next(one for one in cpu["settings"] if one["threads"] == 2 and not one["busy"])
    drafted = drafters["results"]["free text"]["model"]  # its draft time is in units of a plain pass: k · c
    c = drafted["draft_and_verify"][0] / drafted["drafted_per_pass"]
    gpu = machine("NVIDIA H200, 8B parameters", verify, "the first two of its layers guess")
    cores = machine("two CPU cores, 135M parameters", cpu | two_cores, "a smaller model guesses")
    gpu["draft_ms"] = 1000 * cycle["seconds"]["draft, a token"]["median"]
    cores["draft_ms"] = c * cores["target_ms"]
    return [gpu, cores]


def benchmark(name: str) -> dict:
    return json.loads((DATA / f"benchmarks/{name}.json").read_text(encoding="utf-8"))


def machine(name: str, measured: dict, guesser: str) -> dict:
    ms = {row["tokens"]: 1000 * row["seconds"]["median"] for row in measured["results"]}
    verify = {k: on_the_line(ms, k + 1) for k in range(1, LONGEST + 1)}
    under = f"one request at a time, a context of {measured['context']} tokens, {measured['dtype']}"
    return {"name": name, "under": under, "guesser": guesser, "target_ms": ms[1], "verify_ms": verify}


def on_the_line(ms: dict[int, float], tokens: int) -> float:
    """The time of a pass over so many tokens: measured, or on the line through the two nearest sizes that were."""
    (a, at_a), (b, at_b) = sorted(sorted(ms.items(), key=lambda row: abs(row[0] - tokens))[:2])
    return ms.get(tokens, at_a + (at_b - at_a) * (tokens - a) / (b - a))


if __name__ == "__main__":
    print(f"open {build(Path(sys.argv[1]))}")
