"""GGUF, llama.cpp's file format: read it, expand its numbers, and turn it into a Hugging Face folder.

A GGUF file is a header, a list of key/value facts (shape of the model, tokenizer, chat template), a list of tensor
names with shape, type and offset, and then the tensors' bytes. Quantised types cut a row into blocks of 32 weights that
share a scale: weight = scale · integer, plus an offset in Q4_1. Expanding them once costs seconds and loses nothing.

Only what this course needs: version 3, the "llama" architecture, a byte-level BPE tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tqdm.auto import tqdm

# What a fact may be, by the number that announces it.
SCALARS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
STRING, ARRAY = 8, 9
CONTROL, USER_DEFINED = 3, 4  # types of tokens that are matched as a whole, before the text is cut into words


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """Two weights per byte [blocks, 16] as [blocks, 32]: the low halves are the first 16, the high halves the rest."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.float32)


@dataclass(frozen=True)
class Format:
    """How a tensor type stores `weights` numbers in one block, and how to get them back as float32."""

    name: str
    weights: int
    block: np.dtype
    expand: Callable[[np.ndarray], np.ndarray]


def _scale(blocks: np.ndarray) -> np.ndarray:
    return blocks["scale"].astype(np.float32)[:, None]  # [blocks, 1]


FORMATS = {
    0: Format("F32", 1, np.dtype("<f4"), lambda b: b.astype(np.float32)),
    1: Format("F16", 1, np.dtype("<f2"), lambda b: b.astype(np.float32)),
    2: Format("Q4_0", 32, np.dtype([("scale", "<f2"), ("q", "u1", 16)]), lambda b: _scale(b) * (_nibbles(b["q"]) - 8)),
    3: Format(
        "Q4_1",
        32,
        np.dtype([("scale", "<f2"), ("offset", "<f2"), ("q", "u1", 16)]),
        lambda b: _scale(b) * _nibbles(b["q"]) + b["offset"].astype(np.float32)[:, None],
    ),
    8: Format("Q8_0", 32, np.dtype([("scale", "<f2"), ("q", "i1", 32)]), lambda b: _scale(b) * b["q"]),
}


@dataclass(frozen=True)
class Tensor:
    shape: tuple[int, ...]
    format: Format
    blocks: np.ndarray  # as stored; a view of the mapped file

    def numpy(self) -> np.ndarray:
        return self.format.expand(self.blocks).reshape(self.shape)


@dataclass(frozen=True)
class GGUF:
    facts: dict  # "llama.block_count": 30, "tokenizer.ggml.tokens": [...], ...
    tensors: dict[str, Tensor]


class _Cursor:
    """Reads one thing after another from the mapped bytes of a file."""

    def __init__(self, data: np.ndarray):
        self.data, self.at = data, 0

    def numbers(self, dtype: str | np.dtype, count: int) -> np.ndarray:
        taken = np.frombuffer(self.data, dtype, count, self.at)
        self.at += taken.nbytes
        return taken

    def number(self, dtype: str) -> int | float | bool:
        return self.numbers(dtype, 1)[0].item()

    def string(self) -> str:
        return self.numbers("u1", self.number("<u8")).tobytes().decode("utf-8")

    def value(self, kind: int):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            kind, count = self.number("<u4"), self.number("<u8")
            if kind in SCALARS:
                return self.numbers(SCALARS[kind], count).tolist()
            return [self.value(kind) for _ in range(count)]
        return self.number(SCALARS[kind])


def read(file: str | Path) -> GGUF:
    """Facts and tensors of a GGUF file. Tensors stay in the file until their `numpy()` is called."""
    try:
        cursor = _Cursor(np.memmap(file, np.uint8, mode="r"))
        magic, version = cursor.numbers("u1", 4).tobytes(), cursor.number("<u4")
        if magic != b"GGUF" or version != 3:
            raise ValueError(f"it begins with {magic!r}, version {version}; only GGUF version 3 is read")
        tensor_count, fact_count = cursor.numbers("<u8", 2).tolist()
        facts = {cursor.string(): cursor.value(cursor.number("<u4")) for _ in range(fact_count)}
        infos = []
        for _ in range(tensor_count):
            name = cursor.string()
            shape = tuple(reversed(cursor.numbers("<u8", cursor.number("<u4")).tolist()))  # GGUF: fastest axis first
            infos.append((name, shape, cursor.number("<u4"), cursor.number("<u8")))
        alignment = facts.get("general.alignment", 32)
        start = -(-cursor.at // alignment) * alignment  # the tensors begin at the next multiple
        tensors = {}
        for name, shape, kind, offset in infos:
            if kind not in FORMATS:
                known = ", ".join(f.name for f in FORMATS.values())
                raise ValueError(f"{name} has tensor type {kind}; types that are read: {known}")
            cursor.at = start + offset
            blocks = cursor.numbers(FORMATS[kind].block, int(np.prod(shape)) // FORMATS[kind].weights)
            tensors[name] = Tensor(shape, FORMATS[kind], blocks)
    except (ValueError, KeyError, OverflowError) as error:  # numpy's own ValueError: the file ends too early
        raise ValueError(f"{file} is not a whole GGUF file that minispec can read: {error}") from None
    return GGUF(facts, tensors)


# ---- from llama.cpp's names and order to Hugging Face's ----

OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hf_name(name: str) -> str:
    """blk.3.attn_q.weight → model.layers.3.self_attn.q_proj.weight"""
    if name in OUTER:
        return OUTER[name]
    match name.split("."):
        case ["blk", layer, part, "weight"] if part in INNER:
            return f"model.layers.{layer}.{INNER[part]}.weight"
    raise ValueError(f"tensor {name!r} is not part of a Llama model as minispec builds it")


def unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's reordering of the rows of q and k [heads · D, d].

    RoPE turns pairs of dimensions. Hugging Face pairs i with i + D/2; llama.cpp pairs 2i with 2i + 1 and has moved the
    rows of each head accordingly, (2, D/2) → (D/2, 2).
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def hf_tensors(gguf: GGUF) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor under its Hugging Face name, expanded to float32."""
    heads = {"attn_q": gguf.facts["llama.attention.head_count"], "attn_k": gguf.facts["llama.attention.head_count_kv"]}
    for name, tensor in gguf.tensors.items():
        weight = tensor.numpy()
        if (part := name.split(".")[-2]) in heads:
            weight = unpermute(weight, heads[part])
        yield hf_name(name), weight


def hf_config(gguf: GGUF) -> dict:
    """The model's config.json."""
    facts = gguf.facts
    if (kind := facts.get("general.architecture")) != "llama":
        raise ValueError(f"general.architecture={kind!r} is not converted; only 'llama' is")
    if "llama.rope.scaling.type" in facts:
        raise ValueError(f"llama.rope.scaling.type={facts['llama.rope.scaling.type']!r} is not converted")
    width, heads = facts["llama.embedding_length"], facts["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": gguf.tensors["token_embd.weight"].shape[0],
        "hidden_size": width,
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": facts.get("llama.attention.key_length", width // heads),
        "max_position_embeddings": facts["llama.context_length"],
        "rms_norm_eps": _float32(facts["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": _float32(facts.get("llama.rope.freq_base", 10_000.0)),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "bos_token_id": facts.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": facts.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": facts.get("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }


def _float32(x: float) -> float:
    """The short decimal that a stored float32 stands for: 9.999999747378752e-06 was written as 1e-05."""
    return float(str(np.float32(x)))


def hf_tokenizer(gguf: GGUF) -> Tokenizer:
    """A byte-level BPE tokenizer: digits one by one, then GPT-2's words, then the merges."""
    facts = gguf.facts
    kind = tuple(facts.get(f"tokenizer.ggml.{fact}", False) for fact in ("model", "pre", "add_bos_token"))
    if kind != ("gpt2", "smollm", False):
        raise ValueError(
            f"tokenizer (model, pre, add_bos_token) = {kind} is not converted; ('gpt2', 'smollm', False) is"
        )
    tokens = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind == CONTROL, normalized=False)
            for token, kind in zip(tokens, facts["tokenizer.ggml.token_type"], strict=True)
            if kind in (CONTROL, USER_DEFINED)
        ]
    )
    return tokenizer


def convert(file: str | Path, folder: str | Path, *, progress: bool = True) -> None:
    """Write a GGUF file's model into `folder` in Hugging Face's layout; in float32, so that loading is mapping."""
    gguf, folder = read(file), Path(folder)
    config, tokenizer = hf_config(gguf), hf_tokenizer(gguf)
    facts, token = gguf.facts, gguf.facts["tokenizer.ggml.tokens"]
    ids = {kind: config[f"{kind}_token_id"] for kind in ("bos", "eos", "pad")}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": facts.get("tokenizer.chat_template"),
        **{f"{kind}_token": token[i] for kind, i in ids.items() if i is not None},
    }
    generation_config = {f"{kind}_token_id": i for kind, i in ids.items() if i is not None}
    named = tqdm(hf_tensors(gguf), "expanding weights", len(gguf.tensors), unit="tensor", disable=not progress)
    tensors = {name: torch.from_numpy(weight) for name, weight in named}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    for name, content in (
        ("config.json", config),
        ("tokenizer_config.json", tokenizer_config),
        ("generation_config.json", generation_config),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
