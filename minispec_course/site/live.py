"""The live page: speculative decoding with a real model, in the browser.

    python -m minispec_course.site.live OUT     writes OUT/live.html and what it loads, in a second

A page that is opened from a folder may fetch nothing and may load no worker, but it may load a script. So one script,
live_weights.js, holds all that the page needs as one object, LIVE: the weights as they are shipped (gzipped safetensors
in base64), the tokenizer, the text of the worker, and measured times of two machines.
"""

import base64
import json
import shutil
import sys
from pathlib import Path

from minispec.load.registry import DATA

HERE = Path(__file__).parent / "live"
MODELS = ("micro", "micro-draft")  # the target and its draft model share one tokenizer
WORKER = ("engine.js", "worker.js")


def build(out: Path) -> Path:
    """Write the page into a folder; what it loads lies beside it."""
    out.mkdir(parents=True, exist_ok=True)
    for file in HERE.iterdir():
        if file.name not in WORKER:
            shutil.copyfile(file, out / file.name)
    (out / "live_weights.js").write_text(f"globalThis.LIVE = {json.dumps(contents())};\n", encoding="ascii")
    return out / "live.html"


def contents() -> dict:
    """What the page finds as LIVE."""
    worker = "\n".join((HERE / name).read_text(encoding="utf-8") for name in WORKER)
    return {"worker": worker, "weights": {"tokenizer": tokenizer(), "models": {name: model(name) for name in MODELS}}}


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


if __name__ == "__main__":
    print(f"open {build(Path(sys.argv[1]))}")
