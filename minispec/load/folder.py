"""Read and write a model's folder: weights, configuration and tokenizer, checked by name and shape.

A model is a folder in Hugging Face's layout: config.json, *.safetensors (one file or shards with an index) and,
optionally, tokenizer files. transformers itself is not needed. Three additions of our own: a matrix may be stored as
int8 beside a tensor `<name>.scale` (see quantize.py), a file may be compressed (*.safetensors.gz, a tenth smaller), and
a draft's config may say `"embeddings_from": "<model>"` to borrow its target's embedding instead of shipping a copy.
"""

from __future__ import annotations

import gzip
import json
import os
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as read_safetensors
from safetensors.torch import save_file
from tokenizers import Tokenizer

from ..cpu import machine
from ..model import Config, Transformer
from .chat import special_tokens_of, template_of
from .handle import Model
from .hf_config import from_hf, to_hf
from .quantize import dequantize, quantize, to_int8
from .registry import locate, weight_files
from .write import in_place_of, write_whole

HARMLESS = ("rotary_emb.inv_freq", "masked_bias", "attn.bias")  # constants that older files carry


def load(name: str | Path, *, device=None, dtype: torch.dtype | None = None, weights: str | None = None) -> Model:
    """Load a model: a known name (see `ms.models()`), a folder, or a hub id. On the GPU when there is one.

    `weights="int8"` is for CPUs: another model than the float32 one, with every matrix rounded to a byte per number.
    """
    device = usable_device(device)  # before anything is fetched
    require_weights(weights, device, dtype)
    model = load_folder(locate(str(name)), name=str(name), device=device, dtype=dtype)
    if weights == "int8":
        to_int8(model.transformer)
    return model


def require_weights(weights: str | None, device: torch.device, dtype: torch.dtype | None) -> None:
    """Refuse weights that cannot be had here."""
    if weights is None:
        return
    if weights != "int8":
        raise ValueError(f"weights={weights!r}: give int8, or leave it out for the weights as they are")
    if device.type != "cpu":
        raise ValueError(
            f"weights='int8' is for CPUs, and this model would go to {device}: say device='cpu', or leave "
            "weights out (a GPU reads 16 bits per parameter)"
        )
    if dtype not in (None, torch.float32):
        raise ValueError(f"weights='int8' computes in float32: leave out dtype={dtype}")
    if machine.compiled() is None:
        raise ValueError(
            "weights='int8' needs numba, without which every token would expand all weights: pip install "
            "numba, or leave weights out"
        )


def usable_device(device: str | torch.device | None = None) -> torch.device:
    """None is `default_device()`; a device that is not here is refused."""
    if device is None:
        return default_device()
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        found = None
    if found is None or found.type not in ("cpu", "cuda", "mps"):
        raise ValueError(f"device={str(device)!r}: give cpu, cuda, cuda:N or mps")
    there = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}[found.type]
    if (found.index or 0) >= there:
        have = f"torch sees {there} of them, numbered from 0" if there else "torch sees none here"
        raise ValueError(f"device={str(device)!r}: {have}; give one of those, or cpu")
    return found


def default_device() -> torch.device:
    """Where models go if nothing else is said, and what the course measures: the GPU if there is one, else the CPU.

    The environment variable MINISPEC_DEVICE overrides that: cpu, cuda, cuda:N or mps.
    """
    if asked := os.environ.get("MINISPEC_DEVICE"):
        try:
            return usable_device(asked)
        except ValueError as error:
            raise ValueError(f"the environment variable MINISPEC_DEVICE says {error}; or unset it") from None
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def default_dtype(device: str | torch.device) -> torch.dtype:
    """What a model is loaded in where `dtype=` does not say: 16 bits on a GPU, float32 elsewhere.

    bfloat16 has float32's range, so nothing overflows that did not before. NVIDIA's units compute in it from compute
    capability 8.0 on; an older GPU (a T4 is 7.5) emulates it slowly and gets float16. AMD's report 8.0 or more.
    """
    device = torch.device(device)
    if device.type != "cuda":  # a CPU without bfloat16 units is ten times slower in it
        return torch.float32
    return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16


def as_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """torch.float64, "float64" or "torch.float64"."""
    found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"dtype={dtype!r}: give torch.float32, torch.bfloat16, torch.float16 or torch.float64")
    return found


def load_folder(folder: str | Path, *, name: str | None = None, device="cpu", dtype=None) -> Model:
    """Load a model from a folder in Hugging Face's layout."""
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise ValueError(f"folder={str(folder)!r} has no config.json: give a folder in Hugging Face's layout")
    raw = read_json(folder / "config.json")
    if "kind" in raw:
        raise ValueError(
            f"{folder} holds {raw['kind']} heads for {raw.get('target')!r}, not a model: "
            "they are for a drafter (minispec.drafters)"
        )
    try:
        config = from_hf(raw)
        end_tokens = end_tokens_of(folder, raw)
    except KeyError as missing:
        raise ValueError(f"{folder / 'config.json'} lacks {missing}: not a complete model configuration") from None
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'} cannot be used: {error}") from None
    device, dtype = torch.device(device), default_dtype(device) if dtype is None else as_dtype(dtype)
    tensors = read_tensors(folder, into=(device, dtype))
    if lender := raw.get("embeddings_from"):
        borrowed = read_tensors(locate(lender), only={"embed_tokens.weight"}, into=(device, dtype))
        borrowed = borrowed["embed_tokens.weight"]
        tensors["embed_tokens.weight"] = borrowed
        if "lm_head.weight" not in tensors:
            tensors["lm_head.weight"] = borrowed[tensors["head_ids"]] if "head_ids" in tensors else borrowed
    transformer = build(config, tensors, where=str(folder), device=device, dtype=dtype, whole=True)

    tokenizer, template, special = None, None, {}
    if (folder / "tokenizer.json").is_file():
        try:
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises a bare Exception
            raise ValueError(f"{folder / 'tokenizer.json'} cannot be read ({error}); fetch it again") from None
        settings = read_json(file) if (file := folder / "tokenizer_config.json").is_file() else {}
        template, special = template_of(folder, settings), special_tokens_of(settings)
    return Model(name or folder.name, transformer, tokenizer, end_tokens, template, special)


def end_tokens_of(folder: Path, config: dict) -> list[int]:
    """generation_config.json's eos_token_id, else config.json's: one token id, several, or none."""
    generation = folder / "generation_config.json"
    end = read_json(generation).get("eos_token_id") if generation.is_file() else None
    end = config.get("eos_token_id") if end is None else end
    ids = [] if end is None else end if isinstance(end, list) else [end]
    if not all(isinstance(token, int) and token >= 0 for token in ids):
        raise ValueError(f"eos_token_id={end!r}: a token id, or a list of them, is wanted")
    return ids


def build(config: Config, tensors: dict, *, where: str, device="cpu", dtype=None, whole: bool = False) -> Transformer:
    """A Transformer with these tensors, checked by name and shape; with `whole` none may be left over."""
    device = torch.device(device)
    dtype = default_dtype(device) if dtype is None else as_dtype(dtype)
    if device.type == "cpu" and dtype == torch.bfloat16:  # where there are no bf16 units torch says so at great length
        warnings.filterwarnings("ignore", message="mkldnn_matmul failed")
    with torch.device("meta"):
        transformer = Transformer(config)
    expected = transformer.state_dict()
    if transformer.lm_head.weight is transformer.embed_tokens.weight:
        del expected["lm_head.weight"]
        tensors.pop("lm_head.weight", None)
    if missing := sorted(expected.keys() - tensors.keys()):
        raise ValueError(f"{where} lacks {len(missing)} tensors, {missing[0]!r} first: the download is incomplete")
    for key, blank in expected.items():
        if tensors[key].shape != blank.shape:
            raise ValueError(
                f"{where}: {key} has shape {tuple(tensors[key].shape)}, config.json asks for {tuple(blank.shape)}; "
                "weights and config belong to different models"
            )
    if whole and (unknown := sorted(key for key in tensors.keys() - expected.keys() if not key.endswith(HARMLESS))):
        raise ValueError(
            f"{where}: {unknown[0]!r} is no tensor of this config.json's architecture, so that the model "
            "would be computed wrongly without it: give a plain model of a supported type"
        )
    ready = {key: tensors[key].to(device, dtype if tensors[key].is_floating_point() else None) for key in expected}
    transformer.load_state_dict(ready, strict=False, assign=True)
    if config.tie_embeddings and config.head_vocab is None:
        transformer.lm_head.weight = transformer.embed_tokens.weight  # assigning broke the tie
    return transformer.requires_grad_(False).eval()


def save_folder(model: Model, folder: str | Path, *, bits: int | None = 8, embeddings_from: str | None = None) -> None:
    """Write a model as `load_folder` reads it: matrices in `bits` bits (None: as they are), the rest in float32.

    With `embeddings_from`, the embedding is left out and borrowed from that model at load.
    """
    folder = Path(folder)
    tensors = model.transformer.state_dict()
    if model.config.tie_embeddings and model.config.head_vocab is None:
        del tensors["lm_head.weight"]
    if embeddings_from:
        del tensors["embed_tokens.weight"]
    packed = pack(tensors, bits)
    packed = {key if key.startswith("lm_head.weight") else f"model.{key}": value for key, value in packed.items()}
    with in_place_of(folder / "model.safetensors") as file:
        save_file(packed, file, metadata={"format": "pt"})
    raw = to_hf(model.config) | {"eos_token_id": sorted(model.end_tokens)}
    if embeddings_from:
        raw["embeddings_from"] = embeddings_from
    write_whole(folder / "config.json", json.dumps(raw, indent=1) + "\n")
    if model.tokenizer is not None:
        write_whole(folder / "tokenizer.json", model.tokenizer.to_str(pretty=False))
        if model.chat_template is not None:
            template = json.dumps({"chat_template": model.chat_template} | model.special_tokens) + "\n"
            write_whole(folder / "tokenizer_config.json", template)


def pack(tensors: dict[str, torch.Tensor], bits: int | None) -> dict[str, torch.Tensor]:
    """As they are stored: matrices in `bits` bits beside their scales (None: as they are), indices in 32."""
    packed = {}
    for key, value in tensors.items():
        value = value.detach().cpu().contiguous()
        if bits and value.ndim >= 2:  # several of one shape are quantised as one below the other
            integers, scale = quantize(value.flatten(0, -2), bits)
            value, packed[f"{key}.scale"] = integers.view(value.shape), scale.contiguous()
        packed[key] = value.to(torch.int32) if key == "head_ids" else value
    return packed


def read_tensors(
    folder: Path, only: set[str] | None = None, into: tuple[torch.device, torch.dtype] | None = None
) -> dict[str, torch.Tensor]:
    """All tensors of a folder by our names ("model." stripped), int8 ones expanded.

    With `into`, each file's are moved to this device and precision before the next is read: at no time is there more
    than the model and one shard of it.
    """
    folder = Path(folder)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict):
            raise ValueError(f"{index} has no weight_map: delete it and fetch the model again")
        files = sorted({folder / shard for shard in shards.values()})
    else:
        files = weight_files(folder)
    if not files:
        raise ValueError(f"folder={str(folder)!r} has no *.safetensors file; other weight formats are not read")
    tensors = {}
    for file in files:
        try:
            found = _read_file(file, lambda short: only is None or short.removesuffix(".scale") in only)
        except FileNotFoundError:
            raise ValueError(f"{file} is named by the index but is not there: the download is incomplete") from None
        except (SafetensorError, OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{file} is damaged ({error}): delete it and fetch the model again") from None
        for key in [key for key in found if key.endswith(".scale")]:
            weight = key.removesuffix(".scale")
            integers = found[weight]
            found[weight] = dequantize(integers.flatten(0, -2), found.pop(key).float()).view(integers.shape)
        for key in list(found):  # one by one: what was read is given back at once
            value = found.pop(key)
            floating = into and value.is_floating_point()
            tensors[key] = value.to(into[0], into[1] if floating else None) if into else value
            del value
    if "head_ids" in tensors:
        tensors["head_ids"] = tensors["head_ids"].long()  # indices, stored small
    return tensors


def our_name(key: str) -> str:
    """A tensor's name in model.py: without "model.", and Mixtral's experts under the names of all others."""
    key = key.removeprefix("model.").replace(".block_sparse_moe.", ".mlp.")
    if ".experts." in key:
        for theirs, ours in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
            key = key.replace(f".{theirs}.", f".{ours}.")
    return key


def _read_file(file: Path, wanted: Callable[[str], bool]) -> dict[str, torch.Tensor]:
    if file.suffix == ".gz":
        found = {our_name(key): value for key, value in read_safetensors(gzip.decompress(file.read_bytes())).items()}
        return {key: value for key, value in found.items() if wanted(key)}
    with safe_open(file, framework="pt") as shard:
        names = {our_name(key): key for key in shard.keys()}  # noqa: SIM118 (not a dict)
        return {short: shard.get_tensor(key) for short, key in names.items() if wanted(short)}


def read_json(file: Path) -> dict:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise ValueError(f"a {type(data).__name__}, not an object")
        return data
    except (ValueError, OSError) as error:
        raise ValueError(f"{file} is not readable JSON ({error}): delete it and fetch the model again") from None
