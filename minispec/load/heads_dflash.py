"""Published drafters of DFlash, DFlash 2 and DSpark, read as z-lab and as speculators (for vLLM) store them (DSpark's
from speculators alone).

Both have Qwen3's layers (norms on queries and keys), fc, hidden_norm and norm, and borrow the target's embedding; the
LM head is the target's as well, unless speculators reduced the vocabulary. z-lab's `target_layer_ids` count layers from
0, so that id i is the residual stream after i + 1 of them; speculators counts as we do, 0 being the embedding.
"""

from pathlib import Path

from .head_files import Published
from .model import Model


def read_dflash(target: Model, folder: Path, module: type):
    """A published drafter in this folder, for this target; `module` is what is filled with it: DFlashHead, or one with
    pair scores."""
    found = Published(folder, module.kind)
    config = found.layer_config(target)
    if not config.qk_norm:
        said = f"{found.config_file}: model_type={found.raw.get('model_type')!r}"
        raise ValueError(f"{said}: give a drafter of qwen3's layers, with norms on queries and keys")
    found.choose(target_hidden_size=config.hidden_size)
    more, names = {"dflash": plain, "dflash2": selector, "dspark": markov}[module.kind](found), NAMES[module.kind]
    mask, layers, block = settings(found, target.config.num_layers)
    head_ids = found.draft_tokens(config.vocab_size)
    own_head = len(head_ids) != config.vocab_size
    for key in ("embed_tokens.weight", *([] if own_head else ["lm_head.weight"])):
        found.tensors.pop(key, None)  # uploads may carry the target's
    head = module(config, head_ids, layers, block, own_head, True, **more).to(target.device, target.dtype)
    names = {name: names.get(name, name) for name, _ in head.named_parameters()}
    found.fill(head, names | {"context_norm.weight": "hidden_norm.weight"})
    found.finish()
    head.blank_is(mask, target.transformer)
    return head


SELECTOR = {
    f"pairs.{ours}": f"candidate_selector.{theirs}"
    for ours, theirs in (
        ("first.weight", "predecessor_codebook"),
        ("second.weight", "successor_codebook"),
        ("gate.weight", "hidden_projection.weight"),
    )
}
MARKOV = {f"pairs.{part}": f"markov_head.gate_proj.{part[5:]}" for part in ("gate.weight", "gate.bias")}
MARKOV |= {f"confidence.{part}": f"confidence_head.proj.{part}" for part in ("weight", "bias")}
MARKOV |= {"pairs.first.weight": "markov_head.markov_w1.weight", "pairs.second.weight": "markov_head.markov_w2.weight"}
NAMES = {"dflash": {}, "dflash2": SELECTOR, "dspark": MARKOV}  # ours: theirs
GATES = {"vanilla": "none", "gated": "sigmoid"}


def plain(found: Published) -> dict:
    found.choose(sample_from_anchor=False)
    return {}


def selector(found: Published) -> dict:
    """What DFlash 2 has more: a selector, and convolutions."""
    plain(found)
    raw = (found.raw.get("dflash_config") or {}) | found.raw
    keys = dict(rank="selector_rank", top="selector_top_k", taps="conv_kernel_size", group="conv_group_size")
    if lacking := [key for key in keys.values() if key not in raw]:
        raise ValueError(f"{found.config_file} lacks {lacking[0]}: not a complete DFlash 2 configuration")
    return {ours: raw[theirs] for ours, theirs in keys.items()}


def markov(found: Published) -> dict:
    """What DSpark has more: a Markov head, and a confidence head that sees its codes."""
    form = found.raw.get("markov_head_type", "vanilla")
    if not found.speculators or form not in GATES:
        said = f"markov_head_type={form!r}" if found.speculators else "a layout that is not speculators'"
        raise ValueError(f"{found.config_file}: {said}: give a DSpark drafter of speculators', vanilla or gated")
    found.choose(enable_confidence_head=True, confidence_head_with_markov=True)
    anchor = found.raw.get("sample_from_anchor", True)
    return dict(rank=found.raw.get("markov_rank", 256), gate=GATES[form], first=0 if anchor else 1)


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
