"""Models and trained heads in the layouts that other engines read.

A model is written as Hugging Face stores it, heads as speculators (0.9.0) does, which vLLM reads. docs/handover.md says
which engine takes what.
"""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from minispec.load.folder import save_folder, write_folder
from minispec.load.heads_dflash import GATES, NAMES
from minispec.load.heads_eagle import published_names
from minispec.load.hf_config import ARCHITECTURES, to_hf
from minispec.load.model import Model
from minispec.model import Transformer

MODELS = {"eagle3": "Eagle3Speculator", "dflash": "DFlashSpeculator", "dflash2": "DFlash2DraftModel"}
MODELS |= {"dspark": "DSparkSpeculator"}


def export_model(model: Model, folder: str | Path) -> Path:
    """Write a model as other engines read it: in plain Hugging Face layout, its weights as they are."""
    save_folder(with_full_head(model), folder, bits=None)
    return Path(folder).resolve()


@torch.no_grad()
def with_full_head(model: Model) -> Model:
    """A draft model that scores v of V tokens as one that scores all: engines have no reduced heads for draft models.

    A LM head has no way to say "never". So every other token gets the mean of the v rows: its logit is the mean of the
    v logits, which is never above the largest of them. The likeliest token is the same as before. Sampled drafts may
    be one of the padding; they are then rejected, or accepted, by the usual rule.
    """
    c, old = model.config, model.transformer
    if c.head_vocab is None:
        return model
    with torch.device("meta"):
        new = Transformer(replace(c, head_vocab=None, tie_embeddings=False))
    state = old.state_dict()
    ids, rows = state.pop("head_ids"), state["lm_head.weight"]  # [v], [v, d]
    state["lm_head.weight"] = rows.mean(0).repeat(c.vocab_size, 1).index_copy_(0, ids, rows)
    new.load_state_dict(state, assign=True)
    return model.around(new.requires_grad_(False).eval())


def write_eagle(head, target: Model, folder: str | Path, verifier: str | None = None, k: int = 5) -> Path:
    """Write an EAGLE-3 or EAGLE-3.1 head as speculators does. `verifier` is where an engine finds the target, k how
    deep to draft."""
    if head.form.embed_proj:  # norms without a gain are EAGLE-3.1's with gains of one
        wrong = "this EAGLE head has embed_proj, which neither vLLM nor SGLang computes"
        raise ValueError(f"{wrong}: train one with `minispec train eagle --form eagle3.1`")
    tensors = {theirs: head.get_parameter(ours) for ours, theirs in published_names(head, "layers.0").items()}
    # speculators stores the embedding, too, and fills in a missing one only where it finds NaN in its place.
    tensors |= {"embed_tokens.weight": head.embed.keywords["weight"].to(head.dtype), "lm_head.weight": head.head}
    streams = head.form.stream_norm
    if streams == "plain":  # no gain is a gain of one
        tensors |= {f"fc_norm.{n}.weight": torch.ones_like(head.norm.weight) for n in range(len(head.hidden_layers))}
    settings = {
        "fc_norm": streams in ("plain", "each"),
        "norm_before_fc": streams == "joint",
        "norm_output": head.form.norm_output,
        "norm_before_residual": head.form.norm_before_residual,
        "eagle_aux_hidden_state_layer_ids": list(head.hidden_layers),
        "speculative_tokens": k,
    }
    return write_speculators(folder, "eagle3", head, tensors, target, verifier, **settings)


def write_dflash(head, target: Model, folder: str | Path, verifier: str | None = None) -> Path:
    """Write a DFlash drafter as speculators does. `verifier` is where an engine finds the target."""
    if not head.public:
        wrong = "this DFlash drafter norms streams before fc and learned its blank, which no engine computes"
        raise ValueError(f"{wrong}: train one with `minispec train dflash --public`")
    names = NAMES[head.kind] | {"context_norm.weight": "hidden_norm.weight"}
    tensors, more = {names.get(name, name): weight for name, weight in head.named_parameters()}, {}
    if head.kind != "dflash":
        tensors, more = with_tables(head, target, tensors, names)
    if len(head.head_ids) < target.config.vocab_size:  # only a whole vocabulary is borrowed there
        tensors["lm_head.weight"] = head.head_rows(target.transformer)
    blocks = {"block_size": head.block, "mask_token_id": head.mask_token_id, "sample_from_anchor": not head.first}
    layers = {"aux_hidden_state_layer_ids": list(head.hidden_layers), "speculative_tokens": head.block - head.first}
    return write_speculators(folder, head.kind, head, tensors, target, verifier, **blocks, **layers, **more)


@torch.no_grad()
def with_tables(head, target: Model, tensors: dict[str, Tensor], names: dict[str, str]) -> tuple[dict, dict]:
    """Tensors and settings of pair scores as published: tables, of whatever ours were made of; and, for DFlash 2,
    convolutions, of which ours have none: identities."""
    embedding, v, pairs = target.transformer.embed_tokens.weight, len(head.head_ids), head.pairs
    (V, d), device = embedding.shape, target.device
    first = pairs.before(torch.arange(V, device=device), embedding)  # [V, r]
    second = pairs.after(torch.arange(v, device=device), head.head_rows(target.transformer))  # [v, r]
    tensors = {name: weight for name, weight in tensors.items() if not name.startswith("pairs.")}
    tensors |= {names["pairs.first.weight"]: first, names["pairs.second.weight"]: second}
    if head.kind == "dspark":
        form = {ours: theirs for theirs, ours in GATES.items()}[head.gate]
        return tensors, {"markov_rank": pairs.rank, "markov_head_type": form}
    if v < V:
        said = f"this DFlash 2 drafter scores {v} of {V} tokens, and engines want all"
        raise ValueError(f"{said}: train its backbone with `minispec train dflash --public --head-vocab {V}`")
    group, taps = head.own_shape["group"], head.taps or 2
    for i in range(0 if head.taps else len(head.layers)):
        for part in ("attention_conv", "mlp_conv"):
            kernel = first.new_zeros(2, taps, d)
            kernel[:, 0] = 1
            tensors[f"layers.{i}.{part}.base_kernel"] = kernel
            tensors[f"layers.{i}.{part}.kernel_projection.weight"] = first.new_zeros(2 * taps * (d // group), d)
    conv = {"conv_kernel_size": taps, "conv_group_size": group}
    return tensors, {"selector_rank": pairs.rank, "selector_top_k": head.top} | conv


def write_speculators(
    folder: str | Path, kind: str, head, tensors: dict[str, Tensor], target: Model, verifier: str | None, **settings
) -> Path:
    """`verifier` is where an engine finds the target; `speculative_tokens` among the settings is how deep to draft."""
    layer = to_hf(head.config)
    if layer["model_type"] not in ("llama", "qwen3"):
        raise ValueError(f"model_type={layer['model_type']!r}: train a {kind} head with the layers of llama or qwen3")
    architecture = ARCHITECTURES[to_hf(target.config)["model_type"]]
    proposal = {"proposal_type": "greedy", "speculative_tokens": settings.pop("speculative_tokens")}
    config = {
        "architectures": [MODELS[kind]],
        "speculators_model_type": kind,
        "speculators_version": "0.9.0",
        "draft_vocab_size": len(head.head_ids),
        "dtype": str(head.dtype).removeprefix("torch."),
        "transformer_layer_config": layer | {"tie_word_embeddings": False},
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [proposal],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": verifier or target.name, "architectures": [architecture]},
        },
    }
    vocab, ids = target.config.vocab_size, head.head_ids.cpu()
    if len(ids) < vocab:  # which tokens it scores; d2t holds offsets
        chosen = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, ids, True)
        tensors = tensors | {"d2t": ids - torch.arange(len(ids)), "t2d": chosen}
    return write_folder(folder, tensors, config | settings)
