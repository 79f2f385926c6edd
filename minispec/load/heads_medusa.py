"""Published Medusa heads (FasterDecoding/Medusa at 11af0aa), read.

`medusa_lm_head.pt` or `.safetensors` holds a list of heads, each a list of blocks and a LM head at its end:
`{head}.{block}.linear.weight` and `.bias`, then `{head}.{blocks}.weight` [V, d]. With several blocks the authors put
the same module into the list several times, so that all of a head's blocks are stored equal; each is read as it is.
The file decides how many heads there are: uploaded configurations say 2 where the file holds 5.
"""

import re
from pathlib import Path

import torch
from torch import Tensor

from .head_files import Published
from .model import Model


def block_names(heads) -> dict[str, Tensor]:
    """Every block's weight and bias by its published name."""
    d, named = heads.weight.shape[1], {}
    for k, (weight, bias) in enumerate(zip(heads.weight.split(d), heads.bias.split(d), strict=True)):
        blocks = [(weight, bias), *((W[k], b[k]) for W, b in zip(heads.more[::2], heads.more[1::2], strict=True))]
        for n, (weight, bias) in enumerate(blocks):
            named |= {f"{k}.{n}.linear.weight": weight, f"{k}.{n}.linear.bias": bias}
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
