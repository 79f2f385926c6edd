"""Read published DFlash drafters, as z-lab and as speculators (0.9.0) store them.

Both have Qwen3's layers (norms on queries and keys), fc, hidden_norm and norm, and borrow the target's embedding; the
LM head is the target's as well, unless speculators reduced the vocabulary. z-lab's `target_layer_ids` count layers from
0, so that id i is the residual stream after i + 1 of them; speculators counts as we do, 0 being the embedding.
"""

from __future__ import annotations

from pathlib import Path

from ..drafters.dflash_head import DFlashHead
from .handle import Model
from .public import Weights, choose, config_of, draft_tokens, head_config


def read_dflash(target: Model, folder: Path) -> DFlashHead:
    """A published drafter in this folder, for this target."""
    file, raw = folder / "config.json", config_of(folder)
    speculators = "speculators_model_type" in raw
    if speculators and (kind := raw["speculators_model_type"]) != "dflash":
        raise ValueError(
            f"{file}: speculators_model_type={kind!r} is not DFlash: give it to ms.drafters.Eagle"
            if kind == "eagle3"
            else f"{file}: speculators_model_type={kind!r} is not supported; supported are eagle3 and dflash"
        )
    config = head_config(file, raw["transformer_layer_config"] if speculators else raw, target)
    if not config.qk_norm:
        raise ValueError(
            f"{file}: model_type={raw.get('model_type')!r} has no norms on queries and keys, which DFlash "
            "has: give a drafter whose model_type is qwen3"
        )
    choose(file, raw, {"target_hidden_size": config.hidden_size, "sample_from_anchor": False})
    mask, layers, block = settings(file, raw, target.config.num_layers)
    weights = Weights(folder)
    draft_vocab = raw.get("draft_vocab_size") or config.vocab_size
    head_ids = draft_tokens(weights, file, draft_vocab, config.vocab_size)
    own_head = draft_vocab != config.vocab_size
    if not own_head:
        weights.drop("lm_head.weight")  # the target's
    weights.drop("embed_tokens.weight")  # the target's, even where an upload carries a copy
    head = DFlashHead(config, head_ids, layers, block, own_head, public=True).to(target.device, target.dtype)
    names = {name: name for name, _ in head.named_parameters()}
    names["context_norm.weight"] = "hidden_norm.weight"
    weights.fill(head, names)
    weights.finish()
    head.blank_is(mask, target.transformer)
    return head


def evenly(depth: int, count: int) -> list[int]:
    """z-lab's choice where target_layer_ids is left out: as many as the drafter has layers, from 1 to L − 3."""
    if count == 1:
        return [depth // 2]
    return [round(1 + i * (depth - 4) / (count - 1)) for i in range(count)]


def settings(file: Path, raw: dict, depth: int) -> tuple[int, list[int], int]:
    """The mask token, the streams (after how many layers of the target) and the length of a block."""
    own, speculators = raw.get("dflash_config") or {}, "speculators_model_type" in raw
    if speculators:
        layers = raw.get("aux_hidden_state_layer_ids") or [2, depth // 2, depth - 3]
    else:
        layers = [i + 1 for i in own.get("target_layer_ids") or evenly(depth, raw.get("num_hidden_layers", 0))]
        if depth in layers:
            raise ValueError(
                f"{file}: target_layer_ids has {depth - 1}, the target's last layer, whose state z-lab "
                "takes after the final norm; only residual streams are handed over here: give a drafter "
                "without it"
            )
    found = {
        "mask_token_id": raw.get("mask_token_id", own.get("mask_token_id")),
        "target_layer_ids": layers,
        "block_size": raw.get("block_size") or own.get("block_size") or (8 if speculators else None),
    }
    for key, value in found.items():
        if value in (None, []):
            raise ValueError(f"{file} lacks {key}: not a complete DFlash configuration; fetch the drafter again")
    if not all(0 <= n <= depth for n in layers):
        raise ValueError(
            f"{file}: the streams after {layers} layers are wanted and the target has {depth} layers: "
            "give the target that it was made for"
        )
    return found["mask_token_id"], layers, found["block_size"]
