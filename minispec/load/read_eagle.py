"""Read published EAGLE heads, as their authors store them and as speculators does.

The tensors say which EAGLE it is, since configurations do not: fc takes [embedding, feature] in EAGLE-1 and 2, and
residual streams of the target in EAGLE-3. The layer of EAGLE-3 is called `midlayer` by its authors (SafeAILab, and
SpecForge and AngelSlim after them) and `layers.0` by speculators, whose config.json also keeps the layer's shapes in an
object of their own. Facts about names and defaults: SafeAILab/EAGLE at 148042c and 2174a79, speculators 0.9.0.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from ..drafters.eagle1 import Eagle1Head
from ..drafters.eagle_head import EagleHead, Form
from .handle import Model
from .public import Weights, choose, config_of, draft_tokens, head_config

LAYER = {  # what our modules are called in a stored layer
    "self_attn": "self_attn",
    "mlp": "mlp",
    "mlp_norm": "post_attention_layernorm",
    "embed_norm": "input_layernorm",
    "feature_norm": "hidden_norm",
}


def read_eagle(target: Model, folder: Path) -> EagleHead | Eagle1Head:
    """A published head in this folder, for this target."""
    file, raw = folder / "config.json", config_of(folder)
    if (kind := raw.get("speculators_model_type", "eagle3")) != "eagle3":
        raise ValueError(
            f"{file}: speculators_model_type={kind!r} is not an EAGLE head: give it to ms.drafters.DFlash"
            if kind == "dflash"
            else f"{file}: speculators_model_type={kind!r} is not supported; supported are eagle3 and dflash"
        )
    weights = Weights(folder)
    if "fc.weight" not in weights:
        weights.take("fc.weight")  # says what is missing
    width = weights.tensors["fc.weight"].shape[-1]
    first_eagle = "midlayer.hidden_norm.weight" not in weights and "layers.0.hidden_norm.weight" not in weights
    if first_eagle and width == 2 * target.config.hidden_size:
        return read_eagle1(target, weights, file, raw)
    return read_eagle3(target, weights, file, raw)


def names_in(module: torch.nn.Module, prefix: str) -> dict[str, str]:
    """Our names of a layer's parameters, and theirs below `prefix`."""
    ours = [name for name, _ in module.named_parameters()]
    parts = {name: name.partition(".") for name in ours}
    return {name: f"{prefix}.{LAYER[head]}.{rest}" for name, (head, _, rest) in parts.items() if head in LAYER}


def read_eagle3(target: Model, weights: Weights, file: Path, raw: dict) -> EagleHead:
    speculators = "speculators_model_type" in raw
    config = head_config(file, raw["transformer_layer_config"] if speculators else raw, target)
    choose(file, raw, {"target_hidden_size": config.hidden_size})
    form = Form.eagle3(
        stream_norm="each"
        if raw.get("fc_norm") or "fc_norm.0.weight" in weights
        else "joint"
        if raw.get("norm_before_fc") or "input_norm.weight" in weights
        else "",
        norm_before_residual=bool(raw.get("norm_before_residual", False)),
        norm_output=bool(raw.get("norm_output", False)),
    )
    head_ids = draft_tokens(weights, file, raw.get("draft_vocab_size") or config.vocab_size, config.vocab_size)
    streams = aux_layers(raw, target.config.num_layers)
    try:
        head = EagleHead(
            target, head_ids, streams, config.num_layers, own_head="lm_head.weight" in weights, form=form, config=config
        )
    except ValueError as error:  # streams that this target does not have
        raise ValueError(f"{file} cannot be used: {error}") from None
    names = {"fc.weight": "fc.weight", "norm.weight": "norm.weight"}
    names |= names_in(head, "layers.0" if "layers.0.self_attn.q_proj.weight" in weights else "midlayer")
    names |= {
        f"more.{n}.{name}": f"layers.{n + 1}.{name}"
        for n, layer in enumerate(head.more)
        for name, _ in layer.named_parameters()
    }
    if form.stream_norm == "each":
        names |= {f"stream_norms.{n}.weight": f"fc_norm.{n}.weight" for n in range(len(streams))}
    elif form.stream_norm == "joint":
        names["stream_norms.weight"] = "input_norm.weight"
    if head.own_head:
        names["head"] = "lm_head.weight"
    return finished(head, target, weights, names)


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


def read_eagle1(target: Model, weights: Weights, file: Path, raw: dict) -> Eagle1Head:
    config = head_config(file, raw, target)
    head = Eagle1Head(target, config, fc_bias=bool(raw.get("bias", True)))
    names = {name: name for name, _ in head.named_parameters() if name.startswith("fc.")}
    names |= names_in(head, "layers.0")
    names |= {
        f"more.{n}.{name}": f"layers.{n + 1}.{name}"
        for n, layer in enumerate(head.more)
        for name, _ in layer.named_parameters()
    }
    weights.drop("lm_head.weight")  # some uploads carry the target's
    return finished(head, target, weights, names)


def finished(head: torch.nn.Module, target: Model, weights: Weights, names: dict[str, str]):
    """The head with its weights, and with its own embedding where it was trained with one."""
    weights.fill(head, names)
    if "embed_tokens.weight" in weights:
        config = target.config
        own = weights.take("embed_tokens.weight", config.vocab_size, config.hidden_size).to(target.device, head.dtype)
        if not torch.equal(own, target.transformer.embed_tokens.weight.to(head.dtype)):
            head.embed = partial(F.embedding, weight=own)
    weights.drop(*(key for key in list(weights.tensors) if key.endswith("rotary_emb.inv_freq")))
    weights.finish()
    return head
