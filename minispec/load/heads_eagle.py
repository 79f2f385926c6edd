"""Published EAGLE heads, read as their authors and as speculators (0.9.0) store them.

The layer of EAGLE-3 is called `midlayer` by its authors (SafeAILab, and SpecForge, AngelSlim and SGLang after them) and
`layers.0` by speculators, whose config.json also keeps the layer's shapes in an object of their own. Facts about names
and defaults: SafeAILab/EAGLE at 148042c. EAGLE-1 and 2 (one ordinary layer, fc over [embedding, feature]) are refused.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from .head_files import Published
from .model import Model

LAYER = {  # what our modules are called in a stored layer
    "self_attn": "self_attn",
    "mlp": "mlp",
    "mlp_norm": "post_attention_layernorm",
    "embed_norm": "input_layernorm",
    "feature_norm": "hidden_norm",
}


@dataclass(frozen=True)
class Form:
    """Where EAGLE-3 heads differ. The default is the form of heads that ship; `Form.eagle3` is the published one."""

    stream_norm: str = "plain"  # before fc: "plain" (no gain), "each" (EAGLE-3.1's fc_norm), "joint" (all at once), ""
    embed_proj: bool = True  # ours: beside attention the token has a path of its own into the stream
    norm_before_residual: bool = False  # the residual path starts from norm(g), not from g
    norm_output: bool = False  # EAGLE-3.1: what is handed to the next step is norm(f)

    @classmethod
    def eagle3(cls, **different) -> "Form":
        return cls(**{"stream_norm": "", "embed_proj": False} | different)


def published_names(head: nn.Module, first: str) -> dict[str, str]:
    """What each of our parameters is called in a file whose first layer is called `first`."""
    whole = {"stream_norms.weight": "input_norm.weight", "head": "lm_head.weight"}
    names = {}
    for ours, _ in head.named_parameters():
        part, _, rest = ours.partition(".")
        if part in LAYER:
            names[ours] = f"{first}.{LAYER[part]}.{rest}"
        elif part == "more":
            n, _, rest = rest.partition(".")
            names[ours] = f"layers.{int(n) + 1}.{rest}"
        else:
            names[ours] = whole.get(ours) or ours.replace("stream_norms", "fc_norm")
    return names


def read_eagle(target: Model, folder: Path, module: type) -> nn.Module:
    """A published head in this folder, for this target; `module` is what is filled with it, EagleHead."""
    found = Published(folder, "eagle3")
    raw, tensors, config = found.raw, found.tensors, found.layer_config(target)
    first = "layers.0" if "layers.0.self_attn.q_proj.weight" in tensors else "midlayer"
    if f"{first}.hidden_norm.weight" not in tensors and "fc.bias" in tensors:
        raise ValueError(f"{found.where} is a head of EAGLE-1 or 2: give one of EAGLE-3")
    found.choose(target_hidden_size=config.hidden_size)
    each, joint = raw.get("fc_norm") or "fc_norm.0.weight" in tensors, "input_norm.weight" in tensors
    form = Form.eagle3(
        stream_norm="each" if each else "joint" if joint or raw.get("norm_before_fc") else "",
        norm_before_residual=bool(raw.get("norm_before_residual", False)),
        norm_output=bool(raw.get("norm_output", False)),
    )
    head_ids, own_head = found.draft_tokens(config.vocab_size), "lm_head.weight" in tensors
    streams = aux_layers(raw, target.config.num_layers)
    try:
        head = module(target, head_ids, streams, config.num_layers, None, own_head, form, config)
    except ValueError as error:  # streams that this target does not have
        raise ValueError(f"{found.config_file} cannot be used: {error}") from None
    found.fill(head, published_names(head, first))
    if "embed_tokens.weight" in tensors:  # its own embedding, where it was trained with one
        own = found.take("embed_tokens.weight", *target.transformer.embed_tokens.weight.shape)
        own = own.to(target.device, head.dtype)
        if not torch.equal(own, target.transformer.embed_tokens.weight.to(head.dtype)):
            head.embed = partial(F.embedding, weight=own)
    found.finish()
    return head


def aux_layers(raw: dict, layers: int) -> list[int]:
    """After how many layers of the target the streams are taken.

    vLLM and speculators count as we do: 0 is the embedding. `eagle_config` (SpecForge, SGLang) counts layers from 0, so
    that id i is the stream after i + 1 of them.
    """
    if ids := raw.get("eagle_aux_hidden_state_layer_ids"):
        return list(ids)
    if ids := (raw.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids"):
        return [i + 1 for i in ids]
    return [2, layers // 2, layers - 3]
