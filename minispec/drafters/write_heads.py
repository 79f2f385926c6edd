"""Write heads in the layout of speculators (0.9.0), which vLLM reads as well: EAGLE-3 and DFlash.

Only what is computed there is written. The heads that ship have parts that nobody else computes (a path of the token
around attention, norms before DFlash's fc, a learned blank), so they are refused by name.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..files.handle import Model
from ..files.hf_config import to_hf
from ..files.write import in_place_of, write_whole
from ..model import Config
from .dflash_head import DFlashHead
from .eagle_head import EagleHead
from .read_eagle import names_in

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def write_eagle(head: EagleHead, target: Model, folder: str | Path, verifier: str | None = None, k: int = 5) -> Path:
    """Write an EAGLE-3 or EAGLE-3.1 head. `verifier` is where an engine finds the target, k how deep to draft."""
    if not (isinstance(head, EagleHead) and head.form.public):
        raise ValueError("this EAGLE head has a path of the token around attention (embed_proj), or is EAGLE-1, which "
                         "speculators does not compute: train one with form=Form.eagle3()")  # fmt: skip
    names = {"fc.weight": "fc.weight", "norm.weight": "norm.weight"} | names_in(head, "layers.0")
    names |= {name: f"layers.{int(name.split('.')[1]) + 1}.{name.split('.', 2)[2]}"
              for name, _ in head.named_parameters() if name.startswith("more.")}  # fmt: skip
    names |= {f"stream_norms.{n}.weight": f"fc_norm.{n}.weight"
              for n in range(len(head.hidden_layers)) if head.form.stream_norm == "each"}  # fmt: skip
    if head.form.stream_norm == "joint":
        names["stream_norms.weight"] = "input_norm.weight"
    tensors = {theirs: head.get_parameter(ours) for ours, theirs in names.items()}
    if head.form.stream_norm == "plain":  # no gain is a gain of one
        ones = torch.ones_like(head.norm.weight)
        tensors |= {f"fc_norm.{n}.weight": ones.clone() for n in range(len(head.hidden_layers))}
    tensors["lm_head.weight"] = head.head
    # speculators stores the embedding, too, and fills in a missing one only where it finds NaN in its place.
    tensors["embed_tokens.weight"] = head.embed.keywords["weight"].to(head.dtype)
    form = head.form
    settings = {"norm_before_residual": form.norm_before_residual, "norm_before_fc": form.stream_norm == "joint",
                "fc_norm": form.stream_norm in ("plain", "each"), "norm_output": form.norm_output,
                "eagle_aux_hidden_state_layer_ids": list(head.hidden_layers)}  # fmt: skip
    return write(folder, "eagle3", settings, tensors, head.head_ids, head.config, target, verifier, k)


def write_dflash(head: DFlashHead, target: Model, folder: str | Path, verifier: str | None = None) -> Path:
    """Write a DFlash drafter. `verifier` is where an engine finds the target."""
    if not head.public:
        raise ValueError("this DFlash drafter norms streams before fc and learned its blank, which no engine computes: "
                         "train one in the published form (public=True)")  # fmt: skip
    tensors = dict(head.named_parameters())
    tensors["hidden_norm.weight"] = tensors.pop("context_norm.weight")
    settings = {"block_size": head.block, "mask_token_id": head.mask_token_id, "sample_from_anchor": False,
                "aux_hidden_state_layer_ids": list(head.hidden_layers)}  # fmt: skip
    k = head.block - 1
    return write(folder, "dflash", settings, tensors, head.head_ids, head.config, target, verifier, k)


def write(folder: str | Path, kind: str, settings: dict, tensors: dict[str, Tensor], head_ids: Tensor, config: Config,
          target: Model, verifier: str | None, k: int) -> Path:  # fmt: skip
    folder, layer = Path(folder), to_hf(config)
    if layer["model_type"] not in ("llama", "qwen3"):
        raise ValueError(f"model_type={layer['model_type']!r}: speculators has {kind} with the layers of llama and "
                         "qwen3 alone; train a head with one of these")  # fmt: skip
    vocab, ids = target.config.vocab_size, head_ids.cpu()
    if len(ids) < vocab:
        chosen = torch.zeros(vocab, dtype=torch.bool)
        chosen[ids] = True
        tensors = tensors | {"d2t": ids - torch.arange(len(ids)), "t2d": chosen}
    with in_place_of(folder / "model.safetensors") as file:
        plain = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
        save_file(plain, file, metadata={"format": "pt"})
    target_type = to_hf(target.config)["model_type"]
    proposal = {"proposal_type": "greedy", "speculative_tokens": k}
    whole = {
        "architectures": [{"eagle3": "Eagle3Speculator", "dflash": "DFlashSpeculator"}[kind]],
        "speculators_model_type": kind,
        "speculators_version": "0.9.0",
        "draft_vocab_size": len(ids),
        "transformer_layer_config": layer | {"tie_word_embeddings": False},
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [proposal],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": verifier or target.name, "architectures": [ARCHITECTURES[target_type]]},
        },
        "dtype": str(tensors["fc.weight"].dtype).removeprefix("torch."),
    } | settings
    write_whole(folder / "config.json", json.dumps(whole, indent=1) + "\n")
    return folder.resolve()
