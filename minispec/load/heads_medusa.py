"""Published Medusa heads (FasterDecoding/Medusa at 11af0aa), read; and ours, written as vLLM's MedusaModel loads them.

`medusa_lm_head.pt` or `.safetensors` holds a list of heads, each a list of blocks and a LM head at its end:
`{head}.{block}.linear.weight` and `.bias`, then `{head}.{blocks}.weight` [V, d]. With several blocks the authors put
the same module into the list several times, so that all of a head's blocks are stored equal; each is read as it is.
The file decides how many heads there are: uploaded configurations say 2 where the file holds 5.
"""

import re
from pathlib import Path

import torch
from torch import Tensor

from .folder import write_folder
from .handle import Model
from .heads import Published


def block_names(heads, form: str = "{}.{}.linear") -> dict[str, Tensor]:
    """Every block's weight and bias by its published name, of which `form` makes the beginning."""
    d, named = heads.weight.shape[1], {}
    for k, (weight, bias) in enumerate(zip(heads.weight.split(d), heads.bias.split(d), strict=True)):
        blocks = [(weight, bias), *((W[k], b[k]) for W, b in zip(heads.more[::2], heads.more[1::2], strict=True))]
        for n, (weight, bias) in enumerate(blocks):
            named |= {f"{form.format(k, n)}.weight": weight, f"{form.format(k, n)}.bias": bias}
    return named


@torch.no_grad()
def read_medusa(target: Model, folder: Path, module: type):
    """Published heads in this folder, for this target; `module` is what is filled with them, MedusaHeads."""
    weights = Published(folder, "medusa")
    found = [match for key in weights.tensors if (match := re.fullmatch(r"(\d+)\.(\d+)\.linear\.weight", key))]
    if not found:
        raise ValueError(f"{weights.where} has no '0.0.linear.weight': give a folder with Medusa's medusa_lm_head file")
    count, blocks = (1 + max(int(match[i]) for match in found) for i in (1, 2))
    if (said := weights.raw.get("medusa_num_layers", blocks)) != blocks:
        wrong = f"{weights.config_file} says medusa_num_layers={said}, and {weights.where} holds {blocks}"
        raise ValueError(f"{wrong} blocks per head: correct config.json")
    heads = module(target, count, own_head="each", blocks=blocks).requires_grad_(False)
    last = {f"{k}.{blocks}.weight": heads.head[k] for k in range(count)}
    for name, blank in (block_names(heads) | last).items():
        blank.copy_(weights.take(name, *blank.shape))
    weights.finish()
    return heads.eval()


def write_medusa(heads, target: Model, folder: str | Path) -> Path:
    """Write Medusa heads for vLLM, with one LM head for all of them or one for each, as they have it. A reduced
    vocabulary is its token_map. vLLM drafts the best token of each head, a chain; the tree stays here."""
    tensors, shared = block_names(heads, "blocks.{}.layers.{}"), heads.head.ndim == 2 and heads.map is None
    if shared:
        tensors["lm_head.weight"] = heads.head
    else:
        rows = heads.head.expand(heads.count, *heads.head.shape[-2:])  # [K, v, d]
        if heads.map is not None:  # W₂ (1 + A)
            rows = rows + rows @ heads.map
        tensors |= {f"lm_heads.{k}.weight": rows[k] for k in range(heads.count)}
    if heads.head_ids is not None:
        tensors["token_map"] = heads.head_ids
    config = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": target.config.hidden_size,
        "vocab_size": target.config.vocab_size,
        "truncated_vocab_size": heads.head.shape[-2],
        "num_heads": heads.count,
        "num_hidden_layers": heads.blocks,
        "medusa_fc_bias": True,
        "original_lm_head": shared,
        "dtype": str(heads.weight.dtype).removeprefix("torch."),
    }
    return write_folder(folder, tensors, config)
