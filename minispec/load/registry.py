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
    licence: str
    source: str
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
    return fetch(name, heads)


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
