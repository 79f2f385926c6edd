"""The models that minispec knows by name, and where they come from.

`load` takes one of these names, a folder in Hugging Face's layout, or a hub id such as "Qwen/Qwen3-0.6B".
"""

import re
from dataclasses import dataclass
from pathlib import Path

from .fetch import fetch, fetched

DATA = Path(__file__).parent.parent / "data"
BENCHMARKS = DATA / "benchmarks"  # results that come with the package
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


@dataclass(frozen=True)
class Entry:
    name: str
    what: str
    source: str = "in the package"
    licence: str = "Apache-2.0"
    packaged: bool = True  # inside minispec/data; otherwise fetched
    download: int | None = None  # bytes on disk once fetched

    @property
    def folder(self) -> Path | None:
        """Where it is; None: it is to be fetched."""
        return DATA / self.name if self.packaged else fetched(self.name)

    def present(self) -> bool:
        return self.folder is not None and (self.folder / "config.json").is_file()

    @property
    def size(self) -> int | None:
        """Bytes on disk: of the files that are there, or of those that would be fetched."""
        if not self.present():
            return self.download
        return sum(file.stat().st_size for file in self.folder.iterdir() if file.is_file())


KINDS = {"draft": "draft", "medusa": "Medusa heads", "eagle": "EAGLE head", "dflash": "DFlash drafter"}
KINDS |= {"dflash2": "what DFlash 2 adds to DFlash", "dspark": "what DSpark adds to DFlash"}
SHIPPED = [
    Entry("micro", "tells simple stories; the default target"),
    *(Entry(f"micro-{kind}", f"{what} for micro") for kind, what in KINDS.items()),
    Entry("micro-mtp", "MTP module for micro"),
    Entry("micro-hybrid", "tells such stories with recurrent layers, for lesson 15b"),
    Entry("smollm2", "SmolLM2-135M-Instruct, the real target", "hub, or PyPI", packaged=False, download=540_000_000),
    *(Entry(f"smollm2-{kind}", f"{what} for smollm2") for kind, what in KINDS.items()),
]
KNOWN = {entry.name: entry for entry in SHIPPED}


def locate(name: str, heads: bool = False) -> Path:
    """The folder of a model, or of `heads`: known by name, a path, or a hub id. Fetches what is not there yet."""
    if entry := KNOWN.get(name):
        if entry.packaged and not entry.present():
            incomplete = "this copy of minispec is incomplete, install it again"
            raise ValueError(f"model={name!r} is missing from {entry.folder}: {incomplete}")
        return entry.folder if entry.packaged else fetch(name, heads)
    if name and (folder := Path(name).expanduser()).is_dir():
        return folder
    if HUB_ID.fullmatch(name):
        return fetch(name, heads)
    kinds = 'nor a folder in Hugging Face\'s layout, nor a hub id ("owner/name")'
    raise ValueError(f"model={name!r} is neither a known name ({', '.join(KNOWN)}), {kinds}")


class Listing(list):
    """A list of entries that prints as a table."""

    def __repr__(self) -> str:
        rows = [("name", "what", "on disk", "licence", "source", "present")]
        for e in self:
            size = f"{e.size / 1e6:.1f} MB" if e.size else "–"
            rows.append((e.name, e.what, size, e.licence, e.source, "yes" if e.present() else "no"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        rows.insert(1, ["-" * width for width in widths])
        padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
        return "\n".join("  ".join(cells).rstrip() for cells in padded)


def models() -> Listing:
    """The models known by name: what they are, how large, under which licence, and whether they are here."""
    return Listing(KNOWN.values())
