"""Read published Medusa heads (FasterDecoding/Medusa at 11af0aa).

`medusa_lm_head.pt` or `.safetensors` holds a list of heads, each a list of blocks and a LM head at its end:
`{head}.{block}.linear.weight` and `.bias`, then `{head}.{blocks}.weight` [V, d]. With several blocks the authors put
the same module into the list several times, so that all of a head's blocks are stored equal; each is read as it is.
The file decides how many heads there are: uploaded configurations say 2 where the file holds 5.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

from ..drafters.medusa_heads import MedusaHeads
from .handle import Model
from .public import Weights, config_of


def read_medusa(target: Model, folder: Path) -> MedusaHeads:
    """Published heads in this folder, for this target."""
    file, raw, weights = folder / "config.json", config_of(folder), Weights(folder)
    found = [re.fullmatch(r"(\d+)\.(\d+)\.linear\.weight", key) for key in weights.tensors]
    count = 1 + max((int(match[1]) for match in found if match), default=-1)
    blocks = 1 + max((int(match[2]) for match in found if match), default=-1)
    if not count:
        raise ValueError(
            f"{weights.file} has no '0.0.linear.weight', so it holds no Medusa heads: give a folder with "
            "medusa_lm_head.pt or medusa_lm_head.safetensors"
        )
    if (said := raw.get("medusa_num_layers", blocks)) != blocks:
        raise ValueError(
            f"{file} says medusa_num_layers={said}, and {weights.file} holds {blocks} blocks per head: "
            "correct config.json"
        )
    heads = MedusaHeads(target, count, own_head="each", blocks=blocks).requires_grad_(False)
    V, d = heads.head.shape[1:]
    with torch.no_grad():
        for k in range(count):
            for block in range(blocks):
                weight = weights.take(f"{k}.{block}.linear.weight", d, d)
                bias = weights.take(f"{k}.{block}.linear.bias", d)
                if block == 0:
                    heads.weight[k * d : (k + 1) * d], heads.bias[k * d : (k + 1) * d] = weight, bias
                else:
                    heads.more[2 * block - 2][k], heads.more[2 * block - 1][k] = weight, bias
            heads.head[k] = weights.take(f"{k}.{blocks}.weight", V, d)
    weights.finish()
    return heads.eval()
