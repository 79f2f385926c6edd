"""Published DFlash drafters, read as z-lab and as speculators (for vLLM) store them, and written as speculators does.

Both have Qwen3's layers (norms on queries and keys), fc, hidden_norm and norm, and borrow the target's embedding; the
LM head is the target's as well, unless speculators reduced the vocabulary. z-lab's `target_layer_ids` count layers from
0, so that id i is the residual stream after i + 1 of them; speculators counts as we do, 0 being the embedding.
"""

from pathlib import Path

from .handle import Model
from .heads import Published, write_speculators


def read_dflash(target: Model, folder: Path, module: type):
    """A published drafter in this folder, for this target; `module` is what is filled with it, DFlashHead."""
    found = Published(folder, "dflash")
    config = found.layer_config(target)
    if not config.qk_norm:
        said = f"{found.config_file}: model_type={found.raw.get('model_type')!r}"
        raise ValueError(f"{said}: give a drafter of qwen3's layers, with norms on queries and keys")
    found.choose(target_hidden_size=config.hidden_size, sample_from_anchor=False)
    mask, layers, block = settings(found, target.config.num_layers)
    head_ids = found.draft_tokens(config.vocab_size)
    own_head = len(head_ids) != config.vocab_size
    for key in ("embed_tokens.weight", *([] if own_head else ["lm_head.weight"])):
        found.tensors.pop(key, None)  # uploads may carry the target's
    head = module(config, head_ids, layers, block, own_head, public=True).to(target.device, target.dtype)
    names = {name: name for name, _ in head.named_parameters()}
    found.fill(head, names | {"context_norm.weight": "hidden_norm.weight"})
    found.finish()
    head.blank_is(mask, target.transformer)
    return head


def evenly(depth: int, count: int) -> list[int]:
    """z-lab's choice where target_layer_ids is left out: as many as the drafter has layers, from 1 to L − 3."""
    return [depth // 2] if count == 1 else [round(1 + i * (depth - 4) / (count - 1)) for i in range(count)]


def settings(found: Published, depth: int) -> tuple[int, list[int], int]:
    """The mask token, the streams (after how many layers of the target) and the length of a block."""
    file, raw, own = found.config_file, found.raw, found.raw.get("dflash_config") or {}
    if found.speculators:
        layers = raw.get("aux_hidden_state_layer_ids") or [2, depth // 2, depth - 3]
    else:
        layers = [i + 1 for i in own.get("target_layer_ids") or evenly(depth, raw.get("num_hidden_layers", 0))]
        if depth in layers:
            last = f"{depth - 1}, the target's last layer, which z-lab takes after the final norm"
            raise ValueError(f"{file}: target_layer_ids has {last}: give a drafter of residual streams alone")
    mask = raw.get("mask_token_id", own.get("mask_token_id"))
    block = raw.get("block_size") or own.get("block_size") or (8 if found.speculators else None)
    for key, value in (("mask_token_id", mask), ("target_layer_ids", layers), ("block_size", block)):
        if value in (None, []):
            raise ValueError(f"{file} lacks {key}: not a complete DFlash configuration; fetch the drafter again")
    if not all(0 <= n <= depth for n in layers):
        raise ValueError(f"{file}: target_layer_ids={layers}: give the target it was made for, this one has {depth}")
    return mask, layers, block


def write_dflash(head, target: Model, folder: str | Path, verifier: str | None = None) -> Path:
    """Write a DFlash drafter as speculators does. `verifier` is where an engine finds the target."""
    if not head.public:
        wrong = "this DFlash drafter norms streams before fc and learned its blank, which no engine computes"
        raise ValueError(f"{wrong}: train one with `python -m recipes dflash --public`")
    tensors = dict(head.named_parameters())
    tensors["hidden_norm.weight"] = tensors.pop("context_norm.weight")
    if len(head.head_ids) < target.config.vocab_size:  # only a whole vocabulary is borrowed there
        tensors["lm_head.weight"] = head.head_rows(target.transformer)
    blocks = {"block_size": head.block, "mask_token_id": head.mask_token_id, "sample_from_anchor": False}
    layers = {"aux_hidden_state_layer_ids": list(head.hidden_layers), "speculative_tokens": head.block - 1}
    return write_speculators(folder, "dflash", head, tensors, target, verifier, **blocks, **layers)
