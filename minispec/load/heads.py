"""Trained heads on disk: what Medusa, EAGLE, DFlash and MTP share.

Heads are small modules that take the target's hidden states and borrow its embedding and its LM head. So a folder
holds their own weights alone, model.safetensors or model.safetensors.gz (int8 with scales, see quantize.py), and a
config.json that names the target.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file
from torch import nn

from .folder import pack, read_json, read_tensors
from .handle import Model as Handle
from .registry import HUB_ID, KNOWN, locate
from .write import in_place_of, write_whole

SIZES = ("hidden_size", "vocab_size")  # of the target, which its heads must share


def save_heads(module: nn.Module, folder: str | Path, settings: dict, bits: int | None = 8) -> None:
    """Write a module's own weights, and its settings: a dict of plain values, at least those of `heads_for`."""
    folder = Path(folder)
    with in_place_of(folder / "model.safetensors") as file:
        save_file(pack(module.state_dict(), bits), file, metadata={"format": "pt"})
    write_whole(folder / "config.json", json.dumps(settings, indent=1) + "\n")


def heads_for(target: Handle, kind: str) -> dict:
    """The settings that all heads have: what they are and which target they fit."""
    return {"kind": kind, "target": target.name} | {key: getattr(target.config, key) for key in SIZES}


def heads_folder(source: str | Path | None) -> Path | None:
    """Where heads are: a folder, a hub id ("owner/name", fetched when it is not there yet); None: those that ship."""
    if source is None or Path(source).is_dir() or not HUB_ID.fullmatch(str(source)):
        return source if source is None else Path(source)
    return locate(str(source), heads=True)


def is_public(folder: Path | None) -> bool:
    """Whether heads are stored as others store them: our config.json says which kind they are."""
    return folder is not None and (folder / "config.json").is_file() and "kind" not in read_json(folder / "config.json")


def find_heads(target: Handle, kind: str, folder: str | Path | None = None) -> tuple[Path, dict]:
    """The folder of a target's heads (None: those that ship with minispec) and their settings, checked."""
    name = f"{target.name}-{kind}"
    if folder is None and name not in KNOWN:
        have = [known.removesuffix(f"-{kind}") for known in KNOWN if known.endswith(f"-{kind}")]
        train = f"train some with `python -m recipes {kind}` and give their folder"
        shipped = f"they do for {', '.join(have) or 'none yet'}"
        raise ValueError(f"no {kind} heads ship for target={target.name!r} ({shipped}): {train}")
    folder = locate(name) if folder is None else Path(folder)
    if not (folder / "config.json").is_file():
        raise ValueError(f"folder={str(folder)!r} has no config.json: give a folder of `python -m recipes {kind}`")
    settings = read_json(folder / "config.json")
    if settings.get("kind") != kind:
        raise ValueError(f"folder={str(folder)!r} holds {settings.get('kind')!r}, not {kind} heads")
    if any(settings.get(key) != getattr(target.config, key) for key in SIZES):
        made = f"the heads in {folder} were made for {settings.get('target')!r}"
        raise ValueError(f"{made} and do not fit target={target.name!r}: width or vocabulary differ")
    return folder, settings


def fill(module: nn.Module, folder: Path) -> None:
    """Load stored weights into a module that has exactly these, in its own device and precision."""
    tensors = read_tensors(folder)
    expected = module.state_dict()
    if wrong := sorted(expected.keys() ^ tensors.keys()):
        raise ValueError(f"{folder} and its config.json do not belong together: {wrong[0]!r} is only in one of them")
    for key, blank in expected.items():
        if tensors[key].shape != blank.shape:
            raise ValueError(f"{folder}: {key} has shape {tuple(tensors[key].shape)}, not {tuple(blank.shape)}")
        blank.copy_(tensors[key])
    module.requires_grad_(False).eval()
