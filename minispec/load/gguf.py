"""GGUF, llama.cpp's file format, turned into a Hugging Face folder.

A GGUF file holds facts (shape of the model, tokenizer, chat template) and tensors. Quantised types cut a row into
blocks of weights that share a scale: weight = scale · integer, plus an offset in Q4_1. The `gguf` package reads all of
it; expanding the numbers once costs seconds and loses nothing. What is left to do here are names, the order of q's and
k's rows, and the tokenizer.

Only what this course needs: the "llama" architecture, a byte-level BPE tokenizer.
"""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tqdm.auto import tqdm

from ..model import Transformer
from .hf_config import from_hf

CONTROL, USER_DEFINED = 3, 4  # types of tokens that are matched as a whole, before the text is cut into words


def read(file: str | Path) -> tuple[dict, dict]:
    """A file's facts ("llama.block_count": 30, …) and its tensors, which stay in the file until they are expanded."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(file)
        facts = {name: field.contents() for name, field in reader.fields.items()}
        return facts, {tensor.name: tensor for tensor in reader.tensors}
    except (ValueError, LookupError, OverflowError, OSError) as error:
        raise ValueError(f"{file} is not a whole GGUF file that minispec can read: {error}") from None


def unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's reordering of the rows of q and k [heads · D, d].

    RoPE turns pairs of dimensions. Hugging Face pairs i with i + D/2; llama.cpp pairs 2i with 2i + 1 and has moved the
    rows of each head accordingly, (2, D/2) → (D/2, 2).
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def hf_tensors(config: dict, tensors: dict, progress: bool) -> dict[str, torch.Tensor]:
    """Every tensor under its Hugging Face name, expanded to float32."""
    from gguf import MODEL_ARCH, get_tensor_name_map
    from gguf.quants import dequantize

    with torch.device("meta"):
        wanted = [name if name.startswith("lm_head") else f"model.{name}" for name in _names(config)]
    theirs = get_tensor_name_map(MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    left, found = dict(tensors), {}
    for name in tqdm(wanted, "expanding weights", unit="tensor", disable=not progress):
        stored = left.pop(theirs.get_name(name, try_suffixes=(".weight",)), None)
        if stored is None:
            raise ValueError(f"the GGUF file lacks {name}: it is no whole Llama model")
        weight = dequantize(stored.data, stored.tensor_type).astype(np.float32)
        if (part := name.split(".")[-2]) in heads:
            weight = unpermute(weight, heads[part])
        found[name] = torch.from_numpy(np.ascontiguousarray(weight))
    if left:
        raise ValueError(f"tensor {next(iter(left))!r} is not part of a Llama model as minispec builds it")
    return found


def _names(config: dict) -> list[str]:
    tied = "lm_head.weight" if config["tie_word_embeddings"] else None
    return [name for name in Transformer(from_hf(config)).state_dict() if name != tied]


def hf_config(facts: dict, tensors: dict) -> dict:
    """The model's config.json."""
    if (kind := facts.get("general.architecture")) != "llama":
        raise ValueError(f"general.architecture={kind!r} is not converted; only 'llama' is")
    if "llama.rope.scaling.type" in facts:
        raise ValueError(f"llama.rope.scaling.type={facts['llama.rope.scaling.type']!r} is not converted")
    width, heads = facts["llama.embedding_length"], facts["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "hidden_size": width,
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": facts.get("llama.attention.key_length", width // heads),
        "max_position_embeddings": facts["llama.context_length"],
        "rms_norm_eps": _decimal(facts["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": _decimal(facts.get("llama.rope.freq_base", 10_000.0)),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in tensors,
        **{f"{kind}_token_id": facts.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("bos", "eos")},
        "pad_token_id": facts.get("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }


def _decimal(x: float) -> float:
    """The short decimal that a stored float32 stands for: 9.999999747378752e-06 was written as 1e-05."""
    return float(str(np.float32(x)))


def hf_tokenizer(facts: dict) -> Tokenizer:
    """A byte-level BPE tokenizer: digits one by one, then GPT-2's words, then the merges."""
    kind = tuple(facts.get(f"tokenizer.ggml.{fact}", False) for fact in ("model", "pre", "add_bos_token"))
    if kind != ("gpt2", "smollm", False):
        known = "('gpt2', 'smollm', False)"
        raise ValueError(f"tokenizer (model, pre, add_bos_token) = {kind} is not converted; {known} is")
    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    digits, words = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    tokenizer.decoder = decoders.ByteLevel()
    whole = [(token, kind) for token, kind in zip(tokens, kinds, strict=True) if kind in (CONTROL, USER_DEFINED)]
    tokenizer.add_tokens([AddedToken(token, special=kind == CONTROL, normalized=False) for token, kind in whole])
    return tokenizer


def convert(file: str | Path, folder: str | Path, *, progress: bool = True) -> None:
    """Write a GGUF file's model into `folder` in Hugging Face's layout; in float32, so that loading is mapping."""
    (facts, stored), folder = read(file), Path(folder)
    config, tokenizer = hf_config(facts, stored), hf_tokenizer(facts)
    ids = {kind: config[f"{kind}_token_id"] for kind in ("bos", "eos", "pad")}
    ids = {kind: token for kind, token in ids.items() if token is not None}
    files = {
        "config.json": config,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            "chat_template": facts.get("tokenizer.chat_template"),
            **{f"{kind}_token": facts["tokenizer.ggml.tokens"][token] for kind, token in ids.items()},
        },
        "generation_config.json": {f"{kind}_token_id": token for kind, token in ids.items()},
    }
    tensors = hf_tensors(config, stored, progress)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
