"""Write heads in published layouts: EAGLE-3 and DFlash as speculators (0.9.0) stores them, which vLLM reads; EAGLE-3,
DFlash and Medusa as their authors do, of which SGLang reads the first two.

Only what is computed there is written. The EAGLE heads that ship are rewritten first (rewrite.py). The DFlash drafters
that ship cannot be: they norm each stream before fc, norm the context once more in every layer and have no norms on
queries and keys, and none of that is a change of weights.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..drafters.dflash_head import DFlashHead
from ..drafters.eagle_head import EagleHead
from ..drafters.medusa_heads import MedusaHeads, chosen_rows
from ..model import Config
from .handle import Model
from .hf_config import to_hf
from .read_eagle import names_in
from .rewrite import published_eagle
from .write import in_place_of, write_whole

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def write_eagle(head: EagleHead, target: Model, folder: str | Path, verifier: str | None = None, k: int = 5) -> Path:
    """Write an EAGLE-3 or EAGLE-3.1 head. `verifier` is where an engine finds the target, k how deep to draft."""
    if not isinstance(head, EagleHead):
        raise ValueError(
            "this is an EAGLE-1 head, which speculators does not compute: hand over the folder that it was read from"
        )
    head, form = published_eagle(head, target), head.form
    tensors = eagle_tensors(head, "layers.0")
    # speculators stores the embedding, too, and fills in a missing one only where it finds NaN in its place.
    tensors["embed_tokens.weight"] = head.embed.keywords["weight"].to(head.dtype)
    settings = {
        "norm_before_residual": form.norm_before_residual,
        "norm_before_fc": form.stream_norm == "joint",
        "fc_norm": form.stream_norm in ("plain", "each"),
        "norm_output": form.norm_output,
        "eagle_aux_hidden_state_layer_ids": list(head.hidden_layers),
    }
    return write(folder, "eagle3", settings, tensors, head.head_ids, head.config, target, verifier, k)


def eagle_tensors(head: EagleHead, layer: str) -> dict[str, Tensor]:
    """An EAGLE-3 head's tensors by their published names; its first layer is called `layer`."""
    names = {"fc.weight": "fc.weight", "norm.weight": "norm.weight"} | names_in(head, layer)
    names |= {
        name: f"layers.{int(name.split('.')[1]) + 1}.{name.split('.', 2)[2]}"
        for name, _ in head.named_parameters()
        if name.startswith("more.")
    }
    names |= {
        f"stream_norms.{n}.weight": f"fc_norm.{n}.weight"
        for n in range(len(head.hidden_layers))
        if head.form.stream_norm == "each"
    }
    if head.form.stream_norm == "joint":
        names["stream_norms.weight"] = "input_norm.weight"
    tensors = {theirs: head.get_parameter(ours) for ours, theirs in names.items()}
    if head.form.stream_norm == "plain":  # no gain is a gain of one
        ones = torch.ones_like(head.norm.weight)
        tensors |= {f"fc_norm.{n}.weight": ones.clone() for n in range(len(head.hidden_layers))}
    return tensors | {"lm_head.weight": head.head}


def write_eagle3(head: EagleHead, target: Model, folder: str | Path) -> Path:
    """Write an EAGLE-3 or EAGLE-3.1 head as its authors do (`midlayer`), which is what SGLang reads.

    SGLang leaves out tensors that it has no place for. So what it would not compute is refused here: heads that have to
    be rewritten with biases, a second layer, a residual path that starts from norm(g), and streams without a number.
    """
    if not isinstance(head, EagleHead):
        raise ValueError("this is an EAGLE-1 head: hand over the folder that it was read from")
    c, form, depth = head.config, head.form, target.config.num_layers
    reasons = {
        "has a path of the token around attention (embed_proj)": not form.public,
        "has biases or norms in its attention": c.qkv_bias or c.out_bias or c.qk_norm,
        f"has {c.num_layers} layers": c.num_layers > 1,
        "starts its residual path from norm(g)": form.norm_before_residual,
        f"reads the streams after {list(head.hidden_layers)} of {depth} layers": not all(
            1 <= n < depth for n in head.hidden_layers
        ),
    }
    if wrong := [reason for reason, true in reasons.items() if true]:
        raise ValueError(
            f"this EAGLE head {wrong[0]}, which SGLang does not compute: train one with `python -m recipes "
            f"eagle --form eagle3.1 --layers 1 --hidden-layers …`, streams from 1 to {depth - 1}, or hand "
            "it to vLLM"
        )
    settings = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": len(head.head_ids),
        "fc_norm": form.stream_norm in ("plain", "each"),
        "norm_before_fc": form.stream_norm == "joint",
        "norm_output": form.norm_output,
        "num_aux_hidden_states": len(head.hidden_layers),
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [n - 1 for n in head.hidden_layers]},
        "dtype": str(head.dtype).removeprefix("torch."),
        "tie_word_embeddings": False,
    }
    tensors = with_token_map(eagle_tensors(head, "midlayer"), head.head_ids, target)
    return write_folder(folder, tensors, to_hf(c) | settings)


def published_tensors(head: DFlashHead) -> dict[str, Tensor]:
    """A DFlash drafter's own tensors by their published names."""
    if not head.public:
        raise ValueError(
            "this DFlash drafter norms streams before fc and learned its blank, which no engine computes: "
            "train one with `python -m recipes dflash --public`"
        )
    tensors = dict(head.named_parameters())
    tensors["hidden_norm.weight"] = tensors.pop("context_norm.weight")
    return tensors


def write_zlab(head: DFlashHead, target: Model, folder: str | Path) -> Path:
    """Write a DFlash drafter as its authors (z-lab) do, which is what SGLang reads.

    There the drafter scores all tokens by the target's LM head, so that a reduced vocabulary becomes a whole one; rows
    of its own are refused. Layers are counted from 0 and named by their outputs: the embedding has no number, and the
    last layer's output is normed there.
    """
    tensors, depth = published_tensors(head), target.config.num_layers
    if head.lm_head is not None:
        raise ValueError(
            "this DFlash drafter has an LM head of its own, and z-lab's layout none: train one without --own-head"
        )
    if wrong := [n for n in head.hidden_layers if not 1 <= n < depth]:
        raise ValueError(
            f"this DFlash drafter reads the stream after {wrong[0]} of {depth} layers, which z-lab's "
            f"layout cannot name: train one with --hidden-layers from 1 to {depth - 1}"
        )
    settings = {
        "architectures": ["DFlashDraftModel"],
        "block_size": head.block,
        "num_target_layers": depth,
        "dflash_config": {"mask_token_id": head.mask_token_id, "target_layer_ids": [n - 1 for n in head.hidden_layers]},
        "dtype": str(head.dtype).removeprefix("torch."),
        "tie_word_embeddings": False,
    }
    return write_folder(folder, tensors, to_hf(head.config) | settings)


def write_dflash(head: DFlashHead, target: Model, folder: str | Path, verifier: str | None = None) -> Path:
    """Write a DFlash drafter as speculators does. `verifier` is where an engine finds the target."""
    tensors = published_tensors(head)
    if len(head.head_ids) < target.config.vocab_size:  # only a whole vocabulary is borrowed there
        tensors["lm_head.weight"] = head.head_rows(target.transformer)
    settings = {
        "block_size": head.block,
        "mask_token_id": head.mask_token_id,
        "sample_from_anchor": False,
        "aux_hidden_state_layer_ids": list(head.hidden_layers),
    }
    k = head.block - 1
    return write(folder, "dflash", settings, tensors, head.head_ids, head.config, target, verifier, k)


def write_medusa(heads: MedusaHeads, target: Model, folder: str | Path, base: str | None = None) -> Path:
    """Write Medusa heads as their authors do: every head with an LM head of its own. `base` is the target's name.

    Heads that borrow rows of the target's get all of its rows, so that tokens outside a reduced vocabulary can be
    proposed, too; logits of the others stay what they are. Rows of their own for a part of the tokens are refused,
    because this layout has no way to say that a token is not scored.
    """
    folder, (V, d) = Path(folder), target.transformer.lm_head.weight.shape
    if not heads.borrows and heads.head_ids is not None:
        raise ValueError(
            f"these Medusa heads score {len(heads.head_ids)} of {V} tokens with weights of their own, and "
            "the published layout knows none: train them with the whole vocabulary"
        )
    rows = chosen_rows(target, None).to(heads.weight.dtype) if heads.borrows else heads.head
    rows = rows.expand(heads.count, V, d)
    if heads.map is not None:  # W₂ (1 + A), an LM head for each head
        rows = rows + rows @ heads.map
    blocks = heads.blocks
    tensors = {}
    for k, (weight, bias) in enumerate(zip(heads.weight.split(d), heads.bias.split(d), strict=True)):
        tensors |= {f"{k}.0.linear.weight": weight, f"{k}.0.linear.bias": bias, f"{k}.{blocks}.weight": rows[k]}
        for n in range(1, blocks):
            more = heads.more[2 * n - 2][k], heads.more[2 * n - 1][k]
            tensors |= dict(zip((f"{k}.{n}.linear.weight", f"{k}.{n}.linear.bias"), more, strict=True))
    with in_place_of(folder / "medusa_lm_head.safetensors") as file:
        save_file({key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}, file)
    settings = {
        "medusa_num_heads": heads.count,
        "medusa_num_layers": blocks,
        "base_model_name_or_path": base or target.name,
    }
    write_whole(folder / "config.json", json.dumps(settings, indent=1) + "\n")
    return folder.resolve()


def write(
    folder: str | Path,
    kind: str,
    settings: dict,
    tensors: dict[str, Tensor],
    head_ids: Tensor,
    config: Config,
    target: Model,
    verifier: str | None,
    k: int,
) -> Path:
    layer = to_hf(config)
    if layer["model_type"] not in ("llama", "qwen3"):
        raise ValueError(
            f"model_type={layer['model_type']!r}: speculators has {kind} with the layers of llama and "
            "qwen3 alone; train a head with one of these"
        )
    tensors = with_token_map(tensors, head_ids, target)
    target_type = to_hf(target.config)["model_type"]
    proposal = {"proposal_type": "greedy", "speculative_tokens": k}
    whole = {
        "architectures": [{"eagle3": "Eagle3Speculator", "dflash": "DFlashSpeculator"}[kind]],
        "speculators_model_type": kind,
        "speculators_version": "0.9.0",
        "draft_vocab_size": len(head_ids),
        "transformer_layer_config": layer | {"tie_word_embeddings": False},
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [proposal],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": verifier or target.name, "architectures": [ARCHITECTURES[target_type]]},
        },
        "dtype": str(tensors["fc.weight"].dtype).removeprefix("torch."),
    } | settings
    return write_folder(folder, tensors, whole)


def with_token_map(tensors: dict[str, Tensor], head_ids: Tensor, target: Model) -> dict[str, Tensor]:
    """Beside the tensors of a head with a reduced vocabulary, which tokens it scores: d2t holds offsets."""
    vocab, ids = target.config.vocab_size, head_ids.cpu()
    if len(ids) == vocab:
        return tensors
    chosen = torch.zeros(vocab, dtype=torch.bool)
    chosen[ids] = True
    return tensors | {"d2t": ids - torch.arange(len(ids)), "t2d": chosen}


def write_folder(folder: str | Path, tensors: dict[str, Tensor], config: dict) -> Path:
    folder = Path(folder)
    with in_place_of(folder / "model.safetensors") as file:
        plain = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
        save_file(plain, file, metadata={"format": "pt"})
    write_whole(folder / "config.json", json.dumps(config, indent=1) + "\n")
    return folder.resolve()
