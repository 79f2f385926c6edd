"""The models that minispec knows by name, and where they come from.

`load` takes one of these names, a folder in Hugging Face's layout, or a hub id such as "Qwen/Qwen3-0.6B".
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from .fetch import damage, fetch, folder_of

DATA = Path(__file__).parent.parent / "data"
BENCHMARKS = DATA / "benchmarks"  # results that come with the package
LONGEST_HEADER = 2**24  # bytes; a damaged file may claim any length
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


@dataclass(frozen=True)
class Entry:
    name: str
    what: str
    licence: str
    source: str
    packaged: bool = True  # inside minispec/data; otherwise fetched into the cache folder
    download: int | None = None  # bytes on disk once fetched

    @property
    def folder(self) -> Path:
        return DATA / self.name if self.packaged else folder_of(self.name)

    def present(self) -> bool:
        return (self.folder / "config.json").is_file()

    @property
    def size(self) -> int | None:
        """Bytes on disk: of the files that are there, or of those that would be fetched."""
        if not self.present():
            return self.download
        return sum(file.stat().st_size for file in self.folder.iterdir() if file.is_file())

    @property
    def parameters(self) -> int | None:
        """Parameters that are stored (what a draft borrows from its target is not); None if they cannot be counted."""
        try:
            return sum(map(_stored_parameters, weight_files(self.folder))) if self.present() else None
        except (OSError, EOFError, ValueError, zlib.error):
            return None


def weight_files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.safetensors"), *folder.glob("*.safetensors.gz")])


def _stored_parameters(file: Path) -> int:
    """Counted from the shapes in the file's header: no weight is read."""
    with (gzip.open if file.suffix == ".gz" else open)(file, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(min(length, LONGEST_HEADER)))
    weights = [key for key in header if not key.endswith(("__metadata__", ".scale", "head_ids"))]
    return sum(math.prod(header[key]["shape"]) for key in weights)


HEADS = {"medusa": "Medusa heads", "eagle": "EAGLE head", "dflash": "DFlash drafter", "mtp": "MTP module"}


def _shipped() -> list[Entry]:
    def of(target: str, *kinds: str) -> list[Entry]:
        named = [(f"{target}-{kind}", f"{HEADS.get(kind, kind)} for {target}") for kind in kinds]
        return [Entry(name, what, "Apache-2.0", "in the package") for name, what in named]

    micro = Entry("micro", "tells simple stories; the default target", "Apache-2.0", "in the package")
    real = "SmolLM2-135M-Instruct, the real target"
    smollm2 = Entry("smollm2", real, "Apache-2.0", "hub, or PyPI", packaged=False, download=540_000_000)
    kinds = ("draft", "medusa", "eagle", "dflash")
    return [micro, *of("micro", *kinds, "mtp"), smollm2, *of("smollm2", *kinds)]


KNOWN = {entry.name: entry for entry in _shipped()}


def locate(name: str, heads: bool = False) -> Path:
    """The folder of a model, or of `heads`: known by name, a path, or a hub id. Fetches what is not there yet."""
    entry = KNOWN.get(name)
    if entry is None and name and Path(name).expanduser().is_dir():
        return Path(name).expanduser()
    if entry is None and not HUB_ID.fullmatch(name):
        kinds = 'nor a folder in Hugging Face\'s layout, nor a hub id ("owner/name")'
        raise ValueError(f"model={name!r} is neither a known name ({', '.join(KNOWN)}), {kinds}")
    if entry is not None and entry.packaged:
        if not entry.present():
            incomplete = "this copy of minispec is incomplete, install it again"
            raise ValueError(f"model={name!r} is missing from {entry.folder}: {incomplete}")
        return entry.folder
    folder = folder_of(name)
    if not folder.is_dir():
        return fetch(name, heads)
    if problem := damage(folder):  # said, not silently repaired: something touched these files, or the disk is failing
        repair = f"minispec models get {name}{' --heads' * heads}"
        raise ValueError(f"model={name!r} is damaged, {folder}: {problem}. Repair it with: {repair}")
    return folder


class Listing(list):
    """A list of entries that prints as a table."""

    def __repr__(self) -> str:
        head = ("name", "what", "parameters", "on disk", "licence", "source", "present")
        rows = [head] + [
            (e.name, e.what, _short(e.parameters, "M"), _short(e.size, "MB"), e.licence, e.source, _state(e))
            for e in self
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _short(count: int | None, unit: str) -> str:
    return "–" if count is None else f"{count / 1e6:.1f} {unit}"


def _state(entry: Entry) -> str:
    if not entry.present():
        return "no"
    return "yes" if entry.packaged or damage(entry.folder) is None else "damaged"


def models() -> Listing:
    """The models known by name: what they are, how large, under which licence, and whether they are here."""
    return Listing(KNOWN.values())


def table() -> str:
    return repr(models())


models.table = table  # the package shows the function under the name `models`; `ms.models.table()` reads well
