"""The models that minispec knows by name, and where they come from.

`load` takes one of these names, a folder in Hugging Face's layout, or a hub id such as "Qwen/Qwen3-0.6B".
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from .weights import Model, load_folder

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Entry:
    name: str
    what: str
    licence: str
    source: str

    @property
    def folder(self) -> Path:
        return DATA / self.name


KNOWN = {
    e.name: e
    for e in (
        Entry("micro", "story-telling target", "Apache-2.0", "in the package"),
        Entry("micro-draft", "its draft", "Apache-2.0", "in the package"),
    )
}


def locate(name: str) -> Path:
    """The folder of a model: known by name, or a path."""
    if name in KNOWN:
        return KNOWN[name].folder
    if Path(name).is_dir():
        return Path(name)
    raise ValueError(
        f"model={name!r} is neither a known name ({', '.join(KNOWN)}) nor a folder in Hugging Face's layout"
    )


def load(name: str | Path, *, device=None, dtype: torch.dtype | None = None) -> Model:
    """Load a model: a known name (see `ms.models()`), a folder, or a hub id. On the GPU when there is one."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return load_folder(locate(str(name)), name=str(name), device=device, dtype=dtype)
