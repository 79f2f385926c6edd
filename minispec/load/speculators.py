"""Heads as speculators (0.9.0) stores them, which vLLM reads: what EAGLE-3 and DFlash share of that layout."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from .handle import Model
from .hf_config import to_hf
from .write import in_place_of, write_whole

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
DRAFTERS = {"eagle3": "Eagle", "dflash": "DFlash"}  # what reads each kind


def is_speculators(file: Path, raw: dict, kind: str) -> bool:
    """Whether this config.json is in their layout. Heads of another kind are refused."""
    said = raw.get("speculators_model_type", kind)
    if said != kind:
        other = f"give it to ms.drafters.{DRAFTERS.get(said)}" if said in DRAFTERS else "no drafter here reads it"
        raise ValueError(f"{file}: speculators_model_type={said!r} is not {kind!r}: {other}")
    return "speculators_model_type" in raw


def write_speculators(
    folder: str | Path, kind: str, head, tensors: dict[str, Tensor], target: Model, verifier: str | None, **settings
) -> Path:
    """`verifier` is where an engine finds the target; `speculative_tokens` among the settings is how deep to draft."""
    layer = to_hf(head.config)
    if layer["model_type"] not in ("llama", "qwen3"):
        raise ValueError(
            f"model_type={layer['model_type']!r}: speculators has {kind} with the layers of llama and qwen3 alone; "
            "train a head with one of these"
        )
    architecture = ARCHITECTURES[to_hf(target.config)["model_type"]]
    proposal = {"proposal_type": "greedy", "speculative_tokens": settings.pop("speculative_tokens")}
    config = {
        "architectures": [{"eagle3": "Eagle3Speculator", "dflash": "DFlashSpeculator"}[kind]],
        "speculators_model_type": kind,
        "speculators_version": "0.9.0",
        "draft_vocab_size": len(head.head_ids),
        "transformer_layer_config": layer | {"tie_word_embeddings": False},
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [proposal],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": verifier or target.name, "architectures": [architecture]},
        },
    }
    return write_folder(folder, with_token_map(tensors, head.head_ids, target), config | settings | stored_as(head))


def stored_as(head) -> dict[str, str]:
    return {"dtype": str(head.dtype).removeprefix("torch.")}


def with_token_map(tensors: dict[str, Tensor], head_ids: Tensor, target: Model) -> dict[str, Tensor]:
    """Beside the tensors of a head with a reduced vocabulary, which tokens it scores: d2t holds offsets."""
    vocab, ids = target.config.vocab_size, head_ids.cpu()
    if len(ids) == vocab:
        return tensors
    chosen = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, ids, True)
    return tensors | {"d2t": ids - torch.arange(len(ids)), "t2d": chosen}


def write_folder(folder: str | Path, tensors: dict[str, Tensor], config: dict, name: str = "model") -> Path:
    folder = Path(folder)
    with in_place_of(folder / f"{name}.safetensors") as file:
        plain = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
        save_file(plain, file, metadata={"format": "pt"})
    write_whole(folder / "config.json", json.dumps(config, indent=1) + "\n")
    return folder.resolve()
