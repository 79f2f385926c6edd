"""Trained heads on disk: what Medusa, EAGLE, DFlash and MTP share, stored our way and as others publish them.

Heads are small modules that take the target's hidden states and borrow its embedding and its LM head. So a folder of
ours holds their own weights alone, model.safetensors or model.safetensors.gz (int8 with scales, see quantize.py), and a
config.json that names the target. Published ones come as *.safetensors, or as a pickle (pytorch_model.bin,
medusa_lm_head.pt). A pickle is a program; it is read with torch's `weights_only`, which builds tensors and plain
containers and refuses everything else. Either way a tensor that is missing, misshapen or left over is refused.
"""

import pickle
from pathlib import Path

import torch
from torch import Tensor, nn

from ..model import Config
from .folder import Weights, read_json, read_tensors
from .hf_config import from_hf
from .model import Model
from .registry import KNOWN, locate

SIZES = ("hidden_size", "vocab_size")  # of the target, which its heads must share
FETCH_AGAIN = "delete it and fetch the heads again"
# What transformers leaves out of a stored transformer_layer_config, because it is the default of that class.
COMMON = dict(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, rms_norm_eps=1e-6)
LLAMA = dict(vocab_size=32_000, intermediate_size=11_008, max_position_embeddings=2048)
QWEN3 = dict(vocab_size=151_936, intermediate_size=22_016, max_position_embeddings=32_768, head_dim=128)
DEFAULTS = {"llama": COMMON | LLAMA, "qwen3": COMMON | QWEN3 | dict(num_key_value_heads=32)}
# What reads each kind that speculators stores.
DRAFTERS = {"eagle3": "Eagle", "dflash": "DFlash", "dflash2": "DFlash2", "dspark": "DSpark"}
OTHER_TARGET = "give the target that these heads were made for"


# ---- ours ----


def find_heads(target: Model, kind: str, source: str | Path | None, public: bool = False) -> tuple[Path, dict]:
    """The folder of a target's heads and their settings, checked: a folder, a hub id ("owner/name", fetched when it is
    not there yet); None: those that ship. With `public` the heads may be of others, whose config.json has no "kind"."""
    name = f"{target.name}-{kind}"
    if source is None and name not in KNOWN:
        have = [known.removesuffix(f"-{kind}") for known in KNOWN if known.endswith(f"-{kind}")]
        missing = f"no {kind} heads ship for target={target.name!r}, only for {', '.join(have)}"
        recipe = "pairs" if kind in ("dflash2", "dspark") else kind
        raise ValueError(f"{missing}: train some with `minispec train {recipe}` and give their folder")
    folder = locate(name if source is None else str(source), heads=True)
    settings = read_json(folder / "config.json")
    if public and "kind" not in settings:
        return folder, settings
    if settings.get("kind") != kind:
        raise ValueError(f"folder={str(folder)!r} holds {settings.get('kind')!r}, not {kind} heads")
    if any(settings.get(key) != getattr(target.config, key) for key in SIZES):
        made = f"the heads in {folder} were made for {settings.get('target')!r}"
        raise ValueError(f"{made} and do not fit target={target.name!r}: width or vocabulary differ")
    return folder, settings


def fill(module: nn.Module, folder: Path, *more: Path) -> None:
    """Load stored weights into a module that has exactly these, in its own device and precision. They may be in several
    folders."""
    weights = Weights(*tensors_in(folder), OTHER_TARGET)
    for other in more:
        weights.tensors |= tensors_in(other)[0]
    weights.fill(module, {name: name for name in module.state_dict()})
    weights.finish()


# ---- published: their tensors, checked one by one, and the shapes that their config.json names ----


def tensors_in(folder: Path) -> tuple[dict[str, Tensor], Path]:
    """The tensors of a folder, from safetensors or from a pickle, and where they were found."""
    pickles = sorted(file for pattern in ("*.bin", "*.pt") for file in folder.glob(pattern))
    if list(folder.glob("*.safetensors*")):
        return read_tensors(folder), folder
    if len(pickles) == 1:
        return read_pickle(pickles[0]), pickles[0]
    found = f"folder={str(folder)!r} has {', '.join(file.name for file in pickles) or 'no weights'}"
    raise ValueError(f"{found}: give a folder with one file of weights (*.safetensors, *.bin or *.pt)")


def read_pickle(file: Path) -> dict[str, Tensor]:
    """The tensors of a .bin or .pt file. Nothing in it is executed."""
    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True)
        if not isinstance(tensors, dict) or not all(isinstance(x, Tensor) for x in tensors.values()):
            raise ValueError(f"a {type(tensors).__name__}, not tensors by name")
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        refused = f"it is damaged, or holds more than tensors ({str(error).strip().partition(chr(10))[0]})"
        remedy = f"Nothing in it was executed; {FETCH_AGAIN}, or ask their author for safetensors"
        raise ValueError(f"{file} is refused: {refused}. {remedy}") from None
    return {key.removeprefix("model."): value for key, value in tensors.items()}


class Published(Weights):
    """A folder as others publish it: its tensors, and `raw`, its config.json."""

    def __init__(self, folder: Path, kind: str):
        super().__init__(*tensors_in(folder), OTHER_TARGET)
        self.config_file, self.raw = folder / "config.json", read_json(folder / "config.json")
        said = self.raw.get("speculators_model_type")
        self.speculators = said is not None  # in their layout, which keeps the shapes of layers in an object of its own
        if self.speculators and said != kind:
            other = f"give it to ms.drafters.{DRAFTERS[said]}" if said in DRAFTERS else "no drafter here reads it"
            raise ValueError(f"{self.config_file}: speculators_model_type={said!r} is not {kind!r}: {other}")

    def layer_config(self, target: Model) -> Config:
        """The shapes of a head's layers, which must fit the target."""
        raw = self.raw["transformer_layer_config"] if self.speculators else self.raw
        raw = DEFAULTS.get(raw.get("model_type"), {}) | raw
        if "sliding_attention" in (raw.get("layer_types") or ()):
            raise ValueError(f"{self.config_file}: layer_types has 'sliding_attention': give heads with full attention")
        try:
            config = from_hf(raw | {"use_sliding_window": False})
        except ValueError as error:
            raise ValueError(f"{self.config_file} cannot be used: {error}") from None
        for key in SIZES:
            if (mine := getattr(config, key)) != (wanted := getattr(target.config, key)):
                wrong = f"{key}={mine}, but target={target.name!r} has {wanted}"
                raise ValueError(f"{self.config_file}: {wrong}: {OTHER_TARGET}")
        return config

    def choose(self, **wanted) -> None:
        """Refuse settings that change the computation: `wanted` says which value is computed here."""
        for key, value in wanted.items():
            if self.raw.get(key, value) not in (value, None):
                raise ValueError(f"{self.config_file}: {key}={self.raw[key]!r}: give heads with {value!r}")

    def draft_tokens(self, vocab: int) -> Tensor:
        """The target's tokens that a head can propose [v]. d2t holds offsets: target id − draft id."""
        everything, draft_vocab = torch.arange(vocab), self.raw.get("draft_vocab_size") or vocab
        if "d2t" not in self.tensors:
            if draft_vocab != vocab:
                said = f"draft_vocab_size={draft_vocab} of {vocab} tokens, and {self.where} lacks 'd2t'"
                raise ValueError(f"{self.config_file}: {said}: {FETCH_AGAIN}")
            self.tensors.pop("t2d", None)
            return everything
        ids = torch.arange(draft_vocab) + self.take("d2t", draft_vocab).long()
        if bool(((ids < 0) | (ids >= vocab)).any()) or len(ids.unique()) < draft_vocab:
            raise ValueError(f"{self.where}: d2t names a token outside the vocabulary, or one twice: {OTHER_TARGET}")
        if "t2d" in self.tensors and not torch.equal(everything[self.take("t2d", vocab).bool()], ids.sort().values):
            raise ValueError(f"{self.where}: t2d and d2t name different tokens: {FETCH_AGAIN}")
        return ids
