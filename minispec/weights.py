"""Find, read and check weights and tokenizers; `Model` is the handle that everything else takes.

A model is a folder in Hugging Face's layout: config.json, *.safetensors (one file or shards with an index) and,
optionally, tokenizer files. transformers itself is not needed. Three additions of our own: a matrix may be stored as
int8 beside a tensor `<name>.scale` (see quantize.py), a file may be compressed (*.safetensors.gz, a tenth smaller), and
a draft's config may say `"embeddings_from": "<model>"` to borrow its target's embedding instead of shipping a copy.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save_file
from tokenizers import Tokenizer

from .model import Config, Transformer
from .quantize import dequantize, quantize


@lru_cache(maxsize=8)
def compiled_template(source: str):
    """A chat template, ready to be filled in: to compile it takes longer than to fill it in a hundred times."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # templates are code from strangers

    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(source)


class Model:
    """A transformer with its tokenizer: what `ms.load` returns."""

    def __init__(self, name: str, transformer: Transformer, tokenizer: Tokenizer | None = None,
                 end_tokens: Sequence[int] = (), chat_template: str | None = None):  # fmt: skip
        self.name, self.transformer, self.tokenizer = name, transformer, tokenizer
        self.end_tokens, self.chat_template = frozenset(end_tokens), chat_template
        self.fast = None  # on a GPU, what decodes single prompts by CUDA graphs: see fast.py

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {self.num_parameters / 1e6:.1f} M parameters, {self.dtype}, {self.device})"

    @property
    def config(self) -> Config:
        return self.transformer.config

    @property
    def device(self) -> torch.device:
        return self.transformer.device

    @property
    def dtype(self) -> torch.dtype:
        return self.transformer.dtype

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.transformer.parameters())

    def encode(self, prompt) -> list[int]:
        """Token ids of a prompt: text, chat messages, or token ids (checked and passed through)."""
        if not isinstance(prompt, str) and len(prompt) and isinstance(prompt[0], dict):
            ids = self._tokenizer().encode(self.chat(prompt), add_special_tokens=False).ids
        elif isinstance(prompt, str):
            ids = self._tokenizer().encode(prompt).ids
        else:
            ids = [int(token) for token in prompt]
        if not ids:
            raise ValueError(f"prompt={prompt!r} holds no token: give at least one")
        if bad := [token for token in ids if not 0 <= token < self.config.vocab_size]:
            raise ValueError(
                f"prompt holds token id {bad[0]}, but the vocabulary of {self.name} ends at "
                f"{self.config.vocab_size - 1}; was it encoded with another model's tokenizer?"
            )
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer().decode(list(tokens), skip_special_tokens=True)

    def chat(self, messages: Sequence[dict]) -> str:
        """The prompt text of a conversation [{"role": …, "content": …}, …], ending where the reply begins."""
        if self.chat_template is None:
            raise ValueError(f"{self.name} has no chat template: give the prompt as text instead of messages")
        end = next((t for t in map(self.tokenizer.id_to_token, sorted(self.end_tokens)) if t), "")

        def raise_exception(message):
            raise ValueError(f"the chat template of {self.name} refuses these messages: {message}")

        return compiled_template(self.chat_template).render(
            messages=list(messages), add_generation_prompt=True, bos_token=self._begin_token(), eos_token=end,
            raise_exception=raise_exception,
        )  # fmt: skip

    def _begin_token(self) -> str:
        bare, full = (self.tokenizer.encode("", add_special_tokens=flag).tokens for flag in (False, True))
        return full[0] if len(full) > len(bare) else ""

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise ValueError(f"{self.name} has no tokenizer files: give the prompt as a list of token ids")
        return self.tokenizer


def load_folder(folder: str | Path, *, name: str | None = None, device="cpu", dtype=None) -> Model:
    """Load a model from a folder in Hugging Face's layout."""
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise ValueError(f"folder={str(folder)!r} has no config.json: give a folder in Hugging Face's layout")
    raw = read_json(folder / "config.json")
    if "kind" in raw:
        raise ValueError(f"{folder} holds {raw['kind']} heads for {raw.get('target')!r}, not a model: "
                         "they are for a drafter (minispec.drafters)")  # fmt: skip
    try:
        config = Config.from_hf(raw)
    except KeyError as missing:
        raise ValueError(f"{folder / 'config.json'} lacks {missing}: not a complete model configuration") from None
    tensors = read_tensors(folder)
    if lender := raw.get("embeddings_from"):
        from .registry import locate  # only drafts that borrow from another model need to know about other models

        borrowed = read_tensors(locate(lender), only={"embed_tokens.weight"})["embed_tokens.weight"]
        tensors["embed_tokens.weight"] = borrowed
        if "lm_head.weight" not in tensors:
            tensors["lm_head.weight"] = borrowed[tensors["head_ids"]] if "head_ids" in tensors else borrowed
    transformer = build(config, tensors, where=str(folder), device=device, dtype=dtype)

    tokenizer, template = None, None
    if (folder / "tokenizer.json").is_file():
        try:
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises a bare Exception
            raise ValueError(f"{folder / 'tokenizer.json'} cannot be read ({error}); fetch it again") from None
        if (folder / "chat_template.jinja").is_file():
            template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        elif (folder / "tokenizer_config.json").is_file():
            template = read_json(folder / "tokenizer_config.json").get("chat_template")
    generation = folder / "generation_config.json"
    end = read_json(generation).get("eos_token_id") if generation.is_file() else None
    end = raw.get("eos_token_id") if end is None else end
    end = [end] if isinstance(end, int) else end or []
    return Model(name or folder.name, transformer, tokenizer, end, template)


def build(config: Config, tensors: dict, *, where: str, device="cpu", dtype=None) -> Transformer:
    """A Transformer with exactly these tensors, checked by name and shape."""
    device = torch.device(device)
    if dtype is None:  # CPUs without bf16 units are ten times slower in it, so: full precision there
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
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
    folder.mkdir(parents=True, exist_ok=True)
    tensors = model.transformer.state_dict()
    if model.config.tie_embeddings and model.config.head_vocab is None:
        del tensors["lm_head.weight"]
    if embeddings_from:
        del tensors["embed_tokens.weight"]
    packed = pack(tensors, bits)
    save_file({key if key.startswith("lm_head.weight") else f"model.{key}": value for key, value in packed.items()},
              folder / "model.safetensors", metadata={"format": "pt"})  # fmt: skip
    raw = model.config.to_hf() | {"eos_token_id": sorted(model.end_tokens)}
    if embeddings_from:
        raw["embeddings_from"] = embeddings_from
    (folder / "config.json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    if model.tokenizer is not None:
        model.tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        if model.chat_template is not None:
            template = json.dumps({"chat_template": model.chat_template}) + "\n"
            (folder / "tokenizer_config.json").write_text(template, encoding="utf-8")


def pack(tensors: dict[str, torch.Tensor], bits: int | None) -> dict[str, torch.Tensor]:
    """As they are stored: matrices in `bits` bits beside their scales (None: as they are), indices in 32."""
    packed = {}
    for key, value in tensors.items():
        value = value.detach().cpu().contiguous()
        if bits and value.ndim == 2:
            value, scale = quantize(value, bits)
            packed[f"{key}.scale"] = scale.contiguous()
        packed[key] = value.to(torch.int32) if key == "head_ids" else value
    return packed


def read_tensors(folder: Path, only: set[str] | None = None) -> dict[str, torch.Tensor]:
    """All tensors of a folder by our names ("model." stripped), int8 ones expanded."""
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
            tensors |= _read_file(file, lambda short: only is None or short.removesuffix(".scale") in only)
        except FileNotFoundError:
            raise ValueError(f"{file} is named by the index but is not there: the download is incomplete") from None
        except (SafetensorError, OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{file} is damaged ({error}): delete it and fetch the model again") from None
    for key in [key for key in tensors if key.endswith(".scale")]:
        weight = key.removesuffix(".scale")
        tensors[weight] = dequantize(tensors[weight], tensors.pop(key).float())
    if "head_ids" in tensors:
        tensors["head_ids"] = tensors["head_ids"].long()  # indices, stored small
    return tensors


def weight_files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.safetensors"), *folder.glob("*.safetensors.gz")])


def _read_file(file: Path, wanted: Callable[[str], bool]) -> dict[str, torch.Tensor]:
    if file.suffix == ".gz":
        found = {key.removeprefix("model."): value for key, value in load(gzip.decompress(file.read_bytes())).items()}
        return {key: value for key, value in found.items() if wanted(key)}
    with safe_open(file, framework="pt") as shard:
        names = {key.removeprefix("model."): key for key in shard.keys()}  # noqa: SIM118 (not a dict)
        return {short: shard.get_tensor(key) for short, key in names.items() if wanted(short)}


def read_json(file: Path) -> dict:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise ValueError(f"a {type(data).__name__}, not an object")
        return data
    except (ValueError, OSError) as error:
        raise ValueError(f"{file} is not readable JSON ({error}): delete it and fetch the model again") from None
