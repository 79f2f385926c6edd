"""Published heads on disk: their tensors, checked one by one, and the shapes that their config.json names.

A folder holds config.json and weights: *.safetensors, or a pickle (pytorch_model.bin, medusa_lm_head.pt). A pickle is a
program; it is read with torch's `weights_only`, which builds tensors and plain containers and refuses everything else.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..model import Config
from .folder import read_json, read_tensors
from .handle import Model
from .hf_config import from_hf, to_hf
from .write import in_place_of, write_whole

FETCH_AGAIN = "delete it and fetch the heads again"
# What transformers leaves out of a stored transformer_layer_config, because it is the default of that class.
COMMON = dict(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, rms_norm_eps=1e-6)
LLAMA = dict(vocab_size=32_000, intermediate_size=11_008, max_position_embeddings=2048)
QWEN3 = dict(vocab_size=151_936, intermediate_size=22_016, max_position_embeddings=32_768, head_dim=128)
DEFAULTS = {"llama": COMMON | LLAMA, "qwen3": COMMON | QWEN3 | dict(num_key_value_heads=32)}
OTHER_TARGET = "give the target that these heads were made for"


class Weights:
    """The tensors of a folder, taken one by one: what is missing, misshapen or left over is refused by its name."""

    def __init__(self, folder: Path):
        pickles = sorted(file for pattern in ("*.bin", "*.pt") for file in folder.glob(pattern))
        if list(folder.glob("*.safetensors*")):
            self.file, self.tensors = folder, read_tensors(folder)
        elif len(pickles) == 1:
            self.file, self.tensors = pickles[0], read_pickle(pickles[0])
        else:
            found = f"there are {', '.join(file.name for file in pickles)}" if pickles else "there is none"
            wanted = "give a folder with one file of weights (*.safetensors, *.bin or *.pt)"
            raise ValueError(f"folder={str(folder)!r}: {wanted}; {found}")

    def __contains__(self, key: str) -> bool:
        return key in self.tensors

    def take(self, key: str, *shape: int) -> Tensor:
        """The tensor of this name, which must have this shape."""
        if key not in self.tensors:
            incomplete = f"the file is incomplete or holds other heads; {FETCH_AGAIN}, or give another folder"
            raise ValueError(f"{self.file} lacks {key!r}: {incomplete}")
        tensor = self.tensors.pop(key)
        if tuple(tensor.shape) != shape:
            fits = f"{shape} would fit config.json and the target: {OTHER_TARGET}"
            raise ValueError(f"{self.file}: {key} has shape {tuple(tensor.shape)}, but {fits}")
        return tensor

    def drop(self, *keys: str) -> None:
        """Leave out what is not needed here."""
        for key in keys:
            self.tensors.pop(key, None)

    def fill(self, module: torch.nn.Module, names: dict[str, str]) -> None:
        """Copy into a module: `names` says what each of its tensors is called in the file."""
        for ours, theirs in names.items():
            blank = module.get_parameter(ours)
            with torch.no_grad():
                blank.copy_(self.take(theirs, *blank.shape))
        module.requires_grad_(False).eval()

    def finish(self) -> None:
        """Whatever is left would be left out of the computation."""
        if self.tensors:
            wrong = "so these heads would be computed wrongly: give heads of a supported form"
            raise ValueError(f"{self.file}: {sorted(self.tensors)[0]!r} is no tensor of this architecture, {wrong}")


def read_pickle(file: Path) -> dict[str, Tensor]:
    """The tensors of a .bin or .pt file. Nothing in it is executed."""
    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        refused = f"it is damaged, or holds more than tensors ({str(error).strip().partition(chr(10))[0]})"
        remedy = f"Nothing in it was executed; {FETCH_AGAIN}, or ask their author for safetensors"
        raise ValueError(f"{file} is refused: {refused}. {remedy}") from None
    if not isinstance(tensors, dict) or not all(isinstance(x, Tensor) for x in tensors.values()):
        raise ValueError(f"{file} holds {type(tensors).__name__}, not tensors by name: ask its author for safetensors")
    return {key.removeprefix("model."): value for key, value in tensors.items()}


def config_of(folder: Path) -> dict:
    return read_json(folder / "config.json")


def head_config(file: Path, raw: dict, target: Model) -> Config:
    """The shapes of a head's layers, which must fit the target, from its config.json or transformer_layer_config."""
    raw = DEFAULTS.get(raw.get("model_type"), {}) | raw
    if "sliding_attention" in (raw.get("layer_types") or ()):
        full = "which heads here do not compute: give heads with full attention"
        raise ValueError(f"{file}: layer_types has 'sliding_attention', {full}")
    try:
        config = from_hf(raw | {"use_sliding_window": False})
    except KeyError as missing:
        raise ValueError(f"{file} lacks {missing}: not a complete configuration; {FETCH_AGAIN}") from None
    except ValueError as error:
        raise ValueError(f"{file} cannot be used: {error}") from None
    for key in ("hidden_size", "vocab_size"):
        mine, wanted = getattr(config, key), getattr(target.config, key)
        if mine != wanted:
            raise ValueError(f"{file}: {key}={mine}, but target={target.name!r} has {wanted}: {OTHER_TARGET}")
    return config


def choose(file: Path, raw: dict, wanted: dict[str, bool]) -> None:
    """Refuse settings that change the computation: `wanted` says which value is computed here."""
    for key, value in wanted.items():
        if raw.get(key, value) not in (value, None):
            raise ValueError(f"{file}: {key}={raw[key]!r} is not computed here, only {value!r}: give other heads")


def draft_tokens(weights: Weights, file: Path, draft_vocab: int, vocab: int) -> Tensor:
    """The target's tokens that a head can propose [v]. d2t holds offsets: target id − draft id."""
    everything = torch.arange(vocab)
    if "d2t" not in weights:
        if draft_vocab != vocab:
            said = f"{file} says draft_vocab_size={draft_vocab} of {vocab} tokens"
            raise ValueError(f"{weights.file} lacks 'd2t', and {said}: {FETCH_AGAIN}")
        weights.drop("t2d")
        return everything
    ids = torch.arange(draft_vocab) + weights.take("d2t", draft_vocab).long()
    if bool(((ids < 0) | (ids >= vocab)).any()) or len(ids.unique()) < draft_vocab:
        wrong = f"d2t names tokens outside the vocabulary of {vocab}, or one of them twice"
        raise ValueError(f"{weights.file}: {wrong}: {OTHER_TARGET}")
    if "t2d" in weights and not torch.equal(everything[weights.take("t2d", vocab).bool()], ids.sort().values):
        raise ValueError(f"{weights.file}: t2d and d2t name different tokens: {FETCH_AGAIN}")
    return ids


# ---- written: as speculators (0.9.0) stores heads, which vLLM reads; what EAGLE-3 and DFlash share of that layout ----

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
DRAFTERS = {"eagle3": "Eagle", "dflash": "DFlash"}  # what reads each kind


def is_speculators(file: Path, raw: dict, kind: str) -> bool:
    """Whether this config.json is in their layout. Heads of another kind are refused."""
    said = raw.get("speculators_model_type", kind)
    if said != kind:
        other = f"give it to ms.drafters.{DRAFTERS.get(said)}" if said in DRAFTERS else "no drafter here reads it"
        raise ValueError(f"{file}: speculators_model_type={said!r} is not {kind!r}: {other}")
    return "speculators_model_type" in raw


def write_speculators(
    folder: str | Path, kind: str, head, tensors: dict[str, Tensor], target: Model, verifier: str | None, **settings
) -> Path:
    """`verifier` is where an engine finds the target; `speculative_tokens` among the settings is how deep to draft."""
    layer = to_hf(head.config)
    if layer["model_type"] not in ("llama", "qwen3"):
        raise ValueError(
            f"model_type={layer['model_type']!r}: speculators has {kind} with the layers of llama and qwen3 alone; "
            "train a head with one of these"
        )
    architecture = ARCHITECTURES[to_hf(target.config)["model_type"]]
    proposal = {"proposal_type": "greedy", "speculative_tokens": settings.pop("speculative_tokens")}
    config = {
        "architectures": [{"eagle3": "Eagle3Speculator", "dflash": "DFlashSpeculator"}[kind]],
        "speculators_model_type": kind,
        "speculators_version": "0.9.0",
        "draft_vocab_size": len(head.head_ids),
        "transformer_layer_config": layer | {"tie_word_embeddings": False},
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [proposal],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": verifier or target.name, "architectures": [architecture]},
        },
    }
    return write_folder(folder, with_token_map(tensors, head.head_ids, target), config | settings | stored_as(head))


def stored_as(head) -> dict[str, str]:
    return {"dtype": str(head.dtype).removeprefix("torch.")}


def with_token_map(tensors: dict[str, Tensor], head_ids: Tensor, target: Model) -> dict[str, Tensor]:
    """Beside the tensors of a head with a reduced vocabulary, which tokens it scores: d2t holds offsets."""
    vocab, ids = target.config.vocab_size, head_ids.cpu()
    if len(ids) == vocab:
        return tensors
    chosen = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, ids, True)
    return tensors | {"d2t": ids - torch.arange(len(ids)), "t2d": chosen}


def write_folder(folder: str | Path, tensors: dict[str, Tensor], config: dict, name: str = "model") -> Path:
    folder = Path(folder)
    with in_place_of(folder / f"{name}.safetensors") as file:
        plain = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
        save_file(plain, file, metadata={"format": "pt"})
    write_whole(folder / "config.json", json.dumps(config, indent=1) + "\n")
    return folder.resolve()
