"""What is downloaded of a hub repository: a model's files, or those of heads."""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
from pathlib import Path

from ..cpu.machine import home
from .hf_config import from_hf

HUB_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
)
HEAD_FILES = (
    "config.json",
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
    "medusa_lm_head.safetensors",
)
HEAD_PICKLES = ("pytorch_model.bin", "medusa_lm_head.pt")  # only where there is no safetensors
HUB_TIMEOUT = 5  # seconds for the first answer: a hub that is out of reach must not hold a lesson up


class FetchError(ValueError):
    """A model could not be brought into the cache folder; the message says why and what to do."""


def download(repo: str, folder: Path, heads: bool = False) -> dict:
    """The files of a hub repository that minispec reads, a model's after a look at its config.json."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise FetchError("HF_HUB_OFFLINE is set")
    from huggingface_hub import HfApi  # only here: importing it takes a while

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
    try:
        info = api.model_info(repo, timeout=HUB_TIMEOUT, files_metadata=True)
        there = {file.rfilename: file.size for file in info.siblings}
        wanted = chosen(there, HEAD_FILES if heads else HUB_FILES)
        weights = [name for name in wanted if name.endswith(".safetensors")]
        if heads and not weights:
            weights = chosen(there, HEAD_PICKLES)
            wanted += weights
        if not weights or "config.json" not in wanted:
            have = "a file of weights" if heads else "model*.safetensors; other weight formats are not read"
            raise FetchError(f"{repo} has no config.json with {have}")
        check_room(folder, sum(there[name] or 0 for name in wanted))
        for name in sorted(wanted, key=lambda name: name != "config.json"):  # config.json first
            api.hf_hub_download(repo, name, revision=info.sha, local_dir=folder)
            if name == "config.json" and not heads:  # refuse what cannot be computed before the weights come
                from_hf(json.loads((folder / name).read_text(encoding="utf-8")))
    except ValueError as error:  # ours: this repository cannot be used
        raise FetchError(str(error)) from None
    except Exception as error:  # theirs, of many kinds: no network, no such repository, no permission
        first_line = str(error).strip().partition("\n")[0]
        raise FetchError(f"{type(error).__name__}: {first_line}") from None
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the hub library's own notes
    for name in wanted:
        if not (folder / name).is_file() or there[name] not in (None, (folder / name).stat().st_size):
            raise FetchError(f"{name} of {repo} did not arrive whole; try again")
    return {"source": f"{api.endpoint}/{repo}", "revision": info.sha}


def chosen(names, patterns) -> list[str]:
    return [name for name in names if "/" not in name and any(fnmatch.fnmatchcase(name, p) for p in patterns)]


def check_room(folder: Path, needed: int) -> None:
    if (free := shutil.disk_usage(folder).free) < needed:
        raise FetchError(
            f"the disk of {home()} has {free / 1e6:.0f} MB free and {needed / 1e6:.0f} MB are needed: make room, or "
            "set the environment variable MINISPEC_HOME to a folder on another disk"
        )
