"""Read and write a model's folder: weights, configuration and tokenizer, checked by name and shape.

A model is a folder in Hugging Face's layout: config.json, *.safetensors (one file or shards with an index) and,
optionally, tokenizer files. transformers itself is not needed. Three additions of our own: a matrix may be stored as
int8 beside a tensor `<name>.scale` (see quantize.py), a file may be compressed (*.safetensors.gz, a tenth smaller), and
a draft's config may say `"embeddings_from": "<model>"` to borrow its target's embedding instead of shipping a copy.
"""

import gzip
import json
import os
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from reprlib import repr as shortened

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as read_safetensors
from safetensors.torch import save_file
from tokenizers import Tokenizer

from ..cpu import machine
from ..model import Config, Transformer
from ..require import require, whole
from .hf_config import ARCHITECTURES, from_hf, to_hf
from .model import Model
from .quantize import dequantize, quantize, to_int8
from .registry import HUB_ID, KNOWN, fetched, locate
from .write import in_place_of, write_whole

MOST_EXPANDED = 2**30  # bytes of a *.safetensors.gz: ours are a tenth of that, and a bomb has no end
HARMLESS = ("rotary_emb.inv_freq", "masked_bias", "attn.bias")


def load(name, *, device=None, dtype: torch.dtype | None = None, weights: str | None = None, tokenizer=None) -> Model:
    """`ms.load` (gpu/backend.py, which says what the arguments mean) without its CUDA graphs."""
    live = hasattr(name, "state_dict") and hasattr(name, "config")
    if not live and not isinstance(name, (str, Path)):
        raise ValueError(
            f"model of type {type(name).__name__}: give a name, a folder, a hub id or a transformers model"
        )
    device = name.device if live and device is None else usable_device(device)  # before anything is fetched
    if weights is not None:
        require_int8(weights, device, dtype)
    if live:
        model = of_transformers(name, tokenizer, device, dtype)
    else:
        model = load_folder(locate(str(name)), name=str(name), device=device, dtype=dtype)
    if weights is not None:
        to_int8(model.transformer)
    return model


def require_int8(weights: str, device: torch.device, dtype: torch.dtype | None) -> None:
    """Refuse weights that cannot be had here."""
    require(weights == "int8", "int8, or leave it out for the weights as they are", weights=weights)
    if device.type != "cpu":  # a GPU reads 16 bits per parameter
        wrong = f"is for CPUs, and this model would go to {device}: say device='cpu'"
    elif dtype not in (None, torch.float32):
        wrong = f"computes in float32: leave out dtype={dtype}"
    elif machine.compiled() is None:
        wrong = "needs numba, without which every token would expand all weights: install the extra [cpu]"
    else:
        return
    raise ValueError(f"weights='int8' {wrong}, or leave weights out")


def of_transformers(live, tokenizer, device: torch.device, dtype: torch.dtype | None) -> Model:
    """A model of transformers as ours, with the same tensors. `tokenizer`: one of transformers, or of tokenizers."""
    name = getattr(live, "name_or_path", "") or live.config.model_type
    try:
        raw = live.config.to_dict()
        config, end_tokens = from_hf(raw), as_ids(getattr(live.generation_config, "eos_token_id", None))
    except ValueError as error:
        wrong = f"this {type(live).__name__} cannot be computed here: {error}"
        raise ValueError(f"{wrong}; give a model of a supported architecture") from None
    tensors = dict(each for key, value in live.state_dict().items() for each in separate(our_name(key), value))
    dtype = live.dtype if dtype is None else as_dtype(dtype)
    transformer = build(config, tensors, where=name, device=device, dtype=dtype, whole=True)
    if isinstance(tokenizer, Tokenizer) or tokenizer is None:
        return Model(name, transformer, tokenizer, end_tokens)
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(f"tokenizer of type {type(tokenizer).__name__}: give a fast one (AutoTokenizer's default)")
    own = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())  # padding and truncation are switched on in theirs
    own.no_padding()
    own.no_truncation()
    special = special_tokens_of(tokenizer.special_tokens_map)
    return Model(name, transformer, own, end_tokens, tokenizer.chat_template, special)


def separate(key: str, value: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """transformers keeps the experts of a layer in one tensor, gate_up_proj [E, 2f, d] and down_proj [E, d, f]."""
    layer, stacked, part = key.rpartition(".experts.")
    if not stacked or part not in ("gate_up_proj", "down_proj"):
        yield key, value
        return
    for e, expert in enumerate(value):
        names = ("down_proj",) if part == "down_proj" else ("gate_proj", "up_proj")
        for name, weight in zip(names, expert.chunk(len(names)), strict=True):
            yield f"{layer}.experts.{e}.{name}.weight", weight


def usable_device(device: str | torch.device | None = None) -> torch.device:
    """None is `default_device()`; a device that is not here is refused."""
    if device is None:
        return default_device()
    kind, _, index = str(device).partition(":")
    counts = {"cpu": 1, "cuda": torch.cuda.device_count()}
    require(kind in counts and (index or "0").isdecimal(), "cpu, cuda or cuda:N", device=str(device))
    if int(index or 0) >= (there := counts[kind]):
        have = f"torch sees {there} of them, numbered from 0" if there else "torch sees none here"
        raise ValueError(f"device={str(device)!r}: {have}; give one of those, or cpu")
    return torch.device(device)


def default_device() -> torch.device:
    """Where models go if nothing else is said, and what the course measures: the GPU if there is one, else the CPU.

    The environment variable MINISPEC_DEVICE overrides that: cpu, cuda or cuda:N.
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
    fits = isinstance(found, torch.dtype) and found.is_floating_point
    require(fits, "torch.float32, torch.bfloat16, torch.float16 or torch.float64", dtype=dtype)
    return found


def load_folder(folder: str | Path, *, name: str | None = None, device="cpu", dtype=None) -> Model:
    """Load a model from a folder in Hugging Face's layout."""
    folder = Path(folder)
    raw = read_json(folder / "config.json")
    if "kind" in raw:
        raise ValueError(
            f"{folder} holds {raw['kind']} heads for {raw.get('target')!r}, no model: give them to a drafter"
        )
    try:
        config = from_hf(raw)
        end = read_json(folder / "generation_config.json", {}).get("eos_token_id")
        end_tokens = as_ids(raw.get("eos_token_id") if end is None else end)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{folder / 'config.json'} cannot be used: {error}") from None
    device, dtype = torch.device(device), default_dtype(device) if dtype is None else as_dtype(dtype)
    tensors = read_tensors(folder, device, dtype)
    if lender := raw.get("embeddings_from"):
        table = "embed_tokens.weight"
        borrowed = tensors[table] = read_tensors(lender_of(folder, lender), device, dtype, only=table)[table]
        if "lm_head.weight" not in tensors:
            tensors["lm_head.weight"] = borrowed[tensors["head_ids"]] if "head_ids" in tensors else borrowed
    transformer = build(config, tensors, where=str(folder), device=device, dtype=dtype, whole=True)
    return Model(name or folder.name, transformer, *read_tokenizer(folder, end_tokens))


def lender_of(folder: Path, name: str) -> Path:
    """The model that an embedding is borrowed from. A folder must not make us fetch whatever it names."""
    text = name if isinstance(name, str) else "no name"
    if not (text in KNOWN or Path(text).is_dir() or (HUB_ID.fullmatch(text) and fetched(text))):
        wrong = f"{folder / 'config.json'} borrows from embeddings_from={shortened(name)}, which is not here"
        raise ValueError(f"{wrong}: if you trust it, run minispec models get {shortened(name)}")
    return locate(name)


def read_tokenizer(folder: Path, end_tokens: list[int]) -> tuple:
    """Tokenizer, end tokens, chat template and the special tokens that a template may name."""
    if not (file := folder / "tokenizer.json").is_file():
        return None, end_tokens
    try:
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.no_padding()  # a stranger's may ask for any length, and tokenizers then ends the process
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises a bare Exception, or panics
        raise damaged(file, error) from None
    settings = read_json(folder / "tokenizer_config.json", {})
    template = settings.get("chat_template")  # one, or several of which one is "default"; a file of its own wins
    if isinstance(template, list):
        named = (entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default")
        template = next(named, {}).get("template")
    if (file := folder / "chat_template.jinja").is_file():
        try:
            template = file.read_text(encoding="utf-8")
        except (ValueError, OSError) as error:
            raise damaged(file, error) from None
    return tokenizer, end_tokens, template if isinstance(template, str) else None, special_tokens_of(settings)


def special_tokens_of(settings: dict) -> dict[str, str]:
    """The tokens that a template may name, of tokenizer_config.json: bos_token, eos_token and others, as text."""
    texts = {key: value.get("content") if isinstance(value, dict) else value for key, value in settings.items()}
    return {key: str(text) for key, text in texts.items() if key.endswith("_token") and isinstance(text, str)}


def as_ids(end) -> list[int]:
    """eos_token_id as a list: one token id, several, or none."""
    ids = [] if end is None else end if isinstance(end, list) else [end]
    require(all(whole(token, 0) for token in ids), "a token id, or a list of them", eos_token_id=end)
    return ids


class Weights:
    """Tensors that were found somewhere, taken one by one: what is missing, misshapen or left over is refused by its
    name. `remedy` is for those that do not fit."""

    def __init__(self, tensors: dict[str, torch.Tensor], where: str | Path, remedy: str):
        self.tensors, self.where, self.remedy = tensors, where, remedy

    def take(self, key: str, *shape: int) -> torch.Tensor:
        """The tensor of this name, which must have this shape."""
        if key not in self.tensors:
            raise ValueError(f"{self.where} lacks {key!r}: delete and fetch it again, or give one of a supported form")
        if (found := tuple(self.tensors[key].shape)) != shape:
            raise ValueError(f"{self.where}: {key} has shape {found}, and config.json says {shape}: {self.remedy}")
        return self.tensors.pop(key)

    @torch.no_grad()
    def fill(self, module: torch.nn.Module, names: dict[str, str]) -> None:
        """Copy into a module: `names` says what each of its tensors is called here."""
        blanks = module.state_dict()
        for ours, theirs in names.items():
            blanks[ours].copy_(self.take(theirs, *blanks[ours].shape))
        module.requires_grad_(False).eval()

    def finish(self) -> None:
        """Whatever is left would be left out of the computation; constants that older files carry are harmless."""
        if unknown := sorted(key for key in self.tensors if not key.endswith(HARMLESS)):
            raise ValueError(f"{self.where}: {unknown[0]!r} would not be computed here: give one of a supported form")


def of_hybrid(tensors: dict, config: Config) -> dict:
    """Qwen3.5 stores the weight of a norm less 1, and attention's gate head by head with its queries. What looks at
    images, and its MTP module, are left out."""
    ours = {}
    for key, value in tensors.items():
        if key.startswith(("visual.", "mtp.")):
            continue
        if key.endswith("norm.weight") and not key.endswith("self_attn.norm.weight"):
            value = value + 1
        elif key.endswith("self_attn.q_proj.weight") and value.ndim == 2:
            heads = value.view(-1, 2, config.head_dim, value.shape[1])  # [H, 2, D, d]
            value, ours[key.replace("q_proj", "gate")] = (part.flatten(0, 1) for part in heads.unbind(1))
        ours[key] = value
    return ours


def to_hybrid(tensors: dict, config: Config) -> dict:
    """The way back."""
    theirs = {}
    for key, value in tensors.items():
        if key.endswith("norm.weight") and not key.endswith("self_attn.norm.weight"):
            value = value - 1
        elif key.endswith("self_attn.q_proj.weight"):
            both = (x.unflatten(0, (-1, config.head_dim)) for x in (value, tensors[key.replace("q_proj", "gate")]))
            value = torch.stack([*both], 1).flatten(0, 2)
        recurrent = key.startswith("layers.") and int(key.split(".")[1]) in config.delta.layers
        if not key.endswith("self_attn.gate.weight"):
            theirs[key.replace(".self_attn.", ".linear_attn.") if recurrent else key] = value
    return theirs


def build(config: Config, tensors: dict, *, where: str, device, dtype, whole: bool = False) -> Transformer:
    """A Transformer with these tensors, checked by name and shape; with `whole` none may be left over."""
    device = torch.device(device)
    if device.type == "cpu" and dtype == torch.bfloat16:  # where there are no bf16 units torch says so at great length
        warnings.filterwarnings("ignore", message="mkldnn_matmul failed")
    if config.delta and whole:
        tensors = of_hybrid(tensors, config)
    experts = config.experts.count * (config.num_layers - len(config.experts.dense_layers)) if config.experts else 0
    if config.num_layers + experts > len(tensors):  # before blanks are made for all of them
        many = f"{config.num_layers} layers" + f" and {experts} experts" * bool(experts)
        raise ValueError(f"{where}: config.json says {many}, and there are {len(tensors)} tensors: it lacks some")
    with torch.device("meta"):
        transformer = Transformer(config)
    expected, weights = transformer.state_dict(), Weights(dict(tensors), where, "they belong to different models")
    if transformer.lm_head.weight is transformer.embed_tokens.weight:
        del expected["lm_head.weight"]
        weights.tensors.pop("lm_head.weight", None)
    ready = {key: weights.take(key, *blank.shape) for key, blank in expected.items()}
    if whole:
        weights.finish()
    ready = {key: x.to(device, dtype if x.is_floating_point() else None) for key, x in ready.items()}
    transformer.load_state_dict(ready, strict=False, assign=True)
    if config.tie_embeddings and config.head_vocab is None:
        transformer.lm_head.weight = transformer.embed_tokens.weight  # assigning broke the tie
    return transformer.requires_grad_(False).eval()


def save_folder(model: Model, folder: str | Path, *, bits: int | None = 8, embeddings_from: str | None = None) -> None:
    """Write a model as `load_folder` reads it: matrices in `bits` bits, or None: as they are, and then the folder says
    what other programs want to know. With `embeddings_from`, the embedding is left out and borrowed from that model.
    """
    folder, tensors = Path(folder), model.transformer.state_dict()
    raw = to_hf(model.config) | {"eos_token_id": sorted(model.end_tokens)}
    if bits is None:
        raw |= {"architectures": [ARCHITECTURES[raw["model_type"]]], "dtype": str(model.dtype).removeprefix("torch.")}
    if model.config.tie_embeddings and model.config.head_vocab is None:
        del tensors["lm_head.weight"]
    if embeddings_from:
        del tensors["embed_tokens.weight"]
        raw["embeddings_from"] = embeddings_from
    if model.config.delta:
        tensors = to_hybrid(tensors, model.config)
    tensors = {key if key.startswith("lm_head") else f"model.{key}": value for key, value in tensors.items()}
    write_folder(folder, pack(tensors, bits), raw)
    if model.tokenizer is not None:
        write_whole(folder / "tokenizer.json", model.tokenizer.to_str(pretty=False))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": model.chat_template}
        write_whole(folder / "tokenizer_config.json", json.dumps(settings | model.special_tokens) + "\n")


def pack(tensors: dict[str, torch.Tensor], bits: int | None) -> dict[str, torch.Tensor]:
    """As they are stored: matrices in `bits` bits beside their scales (None: as they are), indices in 32."""
    packed = {}
    for key, value in tensors.items():
        value = value.detach().cpu()
        if bits and value.ndim >= 2:  # several of one shape are quantised as one below the other
            integers, scale = quantize(value.flatten(0, -2), bits)
            value, packed[f"{key}.scale"] = integers.view(value.shape), scale
        packed[key] = value.to(torch.int32) if key.endswith("head_ids") else value
    return packed


def write_folder(folder: str | Path, tensors: dict[str, torch.Tensor], config: dict, name: str = "model") -> Path:
    """Tensors and config.json, each written whole. safetensors wants memory that no two tensors share."""
    folder = Path(folder)
    with in_place_of(folder / f"{name}.safetensors") as file:
        plain = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
        save_file(plain, file, metadata={"format": "pt"})
    write_whole(folder / "config.json", json.dumps(config, indent=1) + "\n")
    return folder.resolve()


def read_tensors(folder: Path, device="cpu", dtype=None, only: str | None = None) -> dict[str, torch.Tensor]:
    """All tensors of a folder by our names ("model." stripped), int8 ones expanded; of a plain file, `only` this one.

    Each file's are moved to this device and precision (None: as stored) before the next is read: at no time is there
    more than the model and one shard of it.
    """
    tensors = {}
    for file in weight_files(Path(folder)):
        found = _read_file(file, only)
        scales = {key: found.pop(f"{key}.scale") for key in list(found) if f"{key}.scale" in found}
        for key in list(found):  # one by one: what was read is given back at once
            value = found.pop(key)
            if key in scales:
                value = dequantize(value.flatten(0, -2), scales[key].float()).view(value.shape)
            tensors[key] = value.to(device, dtype if value.is_floating_point() else None)
            del value
    if "head_ids" in tensors:
        tensors["head_ids"] = tensors["head_ids"].long()  # indices, stored small
    return tensors


def weight_files(folder: Path) -> list[Path]:
    """The shards that an index names, or model.safetensors, or whatever safetensors there is."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
            raise damaged(index, "it has no weight_map")
        files = sorted({folder / name for name in shards.values()})
        for file in files:
            if file.parent != folder or not file.is_file():  # a path elsewhere, a pipe
                raise damaged(index, f"it names {str(file)!r}, which is no file of this folder")  # not to be deleted
        return files
    if (file := folder / "model.safetensors").is_file():  # a hub's cache may hold other files beside it
        return [file]
    if files := sorted(file for end in ("", ".gz") for file in folder.glob(f"*.safetensors{end}") if file.is_file()):
        return files
    raise ValueError(f"folder={str(folder)!r} has no *.safetensors file; other weight formats are not read")


def our_name(key: str) -> str:
    """A tensor's name in model.py: without "model.", and Mixtral's experts under the names of all others."""
    key = key.removeprefix("model.").removeprefix("language_model.")
    key = key.replace(".block_sparse_moe.", ".mlp.").replace(".linear_attn.", ".self_attn.")
    if ".experts." in key:
        for theirs, ours in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
            key = key.replace(f".{theirs}.", f".{ours}.")
    return key


def _read_file(file: Path, only: str | None) -> dict[str, torch.Tensor]:
    try:
        if file.suffix == ".gz":
            with gzip.open(file) as packed:
                data = packed.read(MOST_EXPANDED + 1)
            if len(data) > MOST_EXPANDED:
                raise OSError(f"it expands to more than {MOST_EXPANDED} bytes")
            return {our_name(key): x for key, x in read_safetensors(data).items()}
        with safe_open(file, framework="pt") as shard:
            names = {our_name(key): key for key in shard.keys()}  # noqa: SIM118 (not a dict)
            wanted = [short for short in names if only in (None, short.removesuffix(".scale"))]
            return {short: shard.get_tensor(names[short]) for short in wanted}
    except (SafetensorError, OSError, EOFError, zlib.error) as error:
        raise damaged(file, error) from None


def read_json(file: Path, default: dict | None = None) -> dict:
    """The object in a file; where there is none, the default, if there is one."""
    if not file.is_file():
        if default is not None:
            return default
        raise ValueError(f"folder={str(file.parent)!r} has no {file.name}: give a folder of a model, or of heads")
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise damaged(file, error) from None
    if not isinstance(data, dict):
        raise damaged(file, f"a {type(data).__name__}, not an object")
    return data


def damaged(file: Path, why: Exception | str) -> ValueError:
    """Where the hub's cache holds links, the file itself has to go for a new one to come."""
    return ValueError(f"{file} is missing or damaged ({why}): delete {file.resolve()}, and fetch the model again")
