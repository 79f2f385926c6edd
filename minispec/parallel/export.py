"""What engines can read: models and heads of minispec's own storage (int8 with scales, borrowed embeddings) as folders
in published layouts.

    a model       Hugging Face's layout; a draft model that scores a part of the vocabulary gets a full-size head
    Medusa        as vLLM's MedusaModel loads it, or as its authors store it (load/write_heads.py)
    EAGLE         as speculators stores EAGLE-3; the heads that ship are rewritten first (load/rewrite.py)
    DFlash        as speculators stores it, if it was trained in the published form
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from ..drafters.dflash import load_head as load_dflash
from ..drafters.eagle_head import EagleHead
from ..drafters.medusa import MedusaHeads
from ..load.fetch import SMOLLM2_REPO
from ..load.folder import load, read_json, save_folder
from ..load.handle import Model
from ..load.registry import KNOWN, locate
from ..load.write import in_place_of, write_whole
from ..load.write_heads import ARCHITECTURES, write_dflash, write_eagle, write_eagle3, write_medusa, write_zlab
from ..model import Transformer


def plain_name(name: str) -> str | None:
    """How an engine finds this model as it is; None where it could not read it."""
    if name == "smollm2":
        return SMOLLM2_REPO
    if name in KNOWN:
        return None
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return name  # a hub id
    config = read_json(folder / "config.json")
    ours = config.get("embeddings_from") or config.get("head_vocab") or "architectures" not in config
    return None if ours else str(folder.resolve())


def export_model(model: Model, folder: str | Path) -> Path:
    """Write a model in plain Hugging Face layout, float32, with what engines ask for beyond what minispec needs."""
    folder = Path(folder)
    save_folder(with_full_head(model), folder, bits=None)
    config = read_json(folder / "config.json")
    config |= {"architectures": [ARCHITECTURES[config["model_type"]]], "dtype": str(model.dtype).removeprefix("torch.")}
    write_whole(folder / "config.json", json.dumps(config, indent=1) + "\n")
    if model.tokenizer is not None:
        file = folder / "tokenizer_config.json"
        settings = read_json(file) if file.is_file() else {}
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        write_whole(file, json.dumps(settings) + "\n")
    return folder.resolve()


@torch.no_grad()
def with_full_head(model: Model) -> Model:
    """A draft model that scores v of V tokens as one that scores all: engines have no reduced heads for draft models.

    A LM head has no way to say "never". So every other token gets the mean of the v rows: its logit is the mean of the
    v logits, which is never above the largest of them. The likeliest token is the same as before. Sampled drafts may
    be one of the padding; they are then rejected, or accepted, by the usual rule.
    """
    c, old = model.config, model.transformer
    if c.head_vocab is None:
        return model
    with torch.device("meta"):
        new = Transformer(replace(c, head_vocab=None, tie_embeddings=False))
    state = old.state_dict()
    ids, rows = state.pop("head_ids"), state["lm_head.weight"]  # [v], [v, d]
    state["lm_head.weight"] = rows.mean(0).repeat(c.vocab_size, 1).index_copy_(0, ids, rows)
    new.load_state_dict(state, assign=True)
    return model.around(new.requires_grad_(False).eval())


def export_medusa(heads: MedusaHeads, target: Model, folder: str | Path) -> Path:
    """Write Medusa heads as vLLM's MedusaModel loads them.

    Block i is x + SiLU(W x + b), which is our head i + 1; one LM head serves all of them. A reduced vocabulary is
    vLLM's token_map. vLLM drafts the best token of each head, a chain; the tree stays here.
    """
    folder = Path(folder)
    if heads.head.ndim == 3 or heads.map is not None or heads.blocks > 1:
        as_stored = "vLLM reads them as their authors store them (minispec.load.write_heads.write_medusa)"
        raise ValueError(f"these Medusa heads have an LM head each, or several blocks: {as_stored}")
    d, V = target.config.hidden_size, target.config.vocab_size
    tensors = {"lm_head.weight": heads.head}
    for i, (weight, bias) in enumerate(zip(heads.weight.split(d), heads.bias.split(d), strict=True)):
        tensors |= {f"blocks.{i}.layers.0.weight": weight, f"blocks.{i}.layers.0.bias": bias}
    if heads.head_ids is not None:
        tensors["token_map"] = heads.head_ids
    with in_place_of(folder / "model.safetensors") as file:
        save_file({key: value.detach().cpu().clone() for key, value in tensors.items()}, file, {"format": "pt"})
    config = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": d,
        "vocab_size": V,
        "truncated_vocab_size": len(heads.head),
        "num_heads": heads.count,
        "num_hidden_layers": 1,
        "medusa_fc_bias": True,
        "original_lm_head": True,
        "dtype": str(heads.weight.dtype).removeprefix("torch."),
    }
    write_whole(folder / "config.json", json.dumps(config, indent=1) + "\n")
    return folder.resolve()


# ---- for the command ---------------------------------------------------------------------------------------------


def readable(name: str, role: str, export: Path | None) -> str:
    """The model as the engine will find it, written to `export` first where it has to be."""
    if plain := plain_name(name):
        return plain
    if export is None:
        own = "is stored in a way of minispec's own: add --export FOLDER to write a copy that engines can read"
        raise ValueError(f"{role}={name!r} {own}")
    return str(export_model(load(name, device="cpu"), export / role))


def kind_of_heads(name: str) -> tuple[str, str | None]:
    """Where heads are, and what of ours they are: "medusa", "eagle", …; None for somebody else's."""
    folder = locate(name) if name in KNOWN else Path(name)
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    return str(folder), config.get("kind")


def our_heads(heads: str, drafter: str, model: str, k: int, export: Path | None, engine: str) -> tuple[str, int]:
    """Heads as this engine will find them, and the draft length; somebody else's stay where they are."""
    folder, kind = kind_of_heads(heads)
    if kind is None:
        return heads, k
    if kind != drafter:
        raise ValueError(f"heads={heads!r} are for {kind}, and drafter={drafter!r}: give --drafter {kind}")
    if export is None:
        own = "are stored in a way of minispec's own: add --export FOLDER to write them as engines read them"
        raise ValueError(f"heads={heads!r} {own}")
    target = load(model, device="cpu")
    verifier = plain_name(model) or str((export / "model").resolve())
    if kind == "medusa":
        medusa = MedusaHeads.load(target, folder)
        # vLLM drafts with all of them. One LM head for all goes into its own layout, one for each into the authors'.
        write = export_medusa if medusa.map is None and medusa.blocks == 1 and medusa.head.ndim == 2 else write_medusa
        return str(write(medusa, target, export / kind)), medusa.count
    if kind == "dflash":
        trained, folder = load_dflash(target, folder), export / kind
        if engine == "sglang":
            written = write_zlab(trained, target, folder)
        else:
            written = write_dflash(trained, target, folder, verifier)
        return str(written), min(k, trained.block - 1)
    head, folder = EagleHead.load(target, folder), export / kind
    if engine == "sglang":
        return str(write_eagle3(head, target, folder)), k
    return str(write_eagle(head, target, folder, verifier, k)), k
