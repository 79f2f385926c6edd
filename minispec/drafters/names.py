"""Drafters by their names on the command line, each with what ships for its target."""

from ..load import folder, registry
from ..load.model import Model
from ..require import require
from .base import Drafter
from .cascade import Cascade
from .dflash import DFlash
from .dflash2 import DFlash2
from .dspark import DSpark
from .eagle import Eagle
from .early_exit import EarlyExit
from .lookahead import Lookahead
from .medusa import Medusa
from .model import DraftModel
from .mtp import MTP
from .ngram import NGram
from .quantized import Quantized
from .suffix import Suffix
from .synthetic import Synthetic
from .translate import same_tokens

DRAFTERS = {
    "model": lambda target, draft: DraftModel(draft, translate=same_tokens(draft, target) is False),
    "ngram": lambda target, draft: NGram(),
    "suffix": lambda target, draft: Suffix(),
    "early-exit": lambda target, draft: EarlyExit(target),
    "quantized": lambda target, draft: Quantized(target),
    "cascade": lambda target, draft: Cascade(NGram(), draft),
    "lookahead": lambda target, draft: Lookahead(target),
}
HEADED = {"medusa": Medusa, "eagle": Eagle, "dflash": DFlash, "dflash2": DFlash2, "dspark": DSpark, "mtp": MTP}
DRAFTERS |= HEADED  # called with the target and heads; None: those that come with some targets


def shipped_draft(model: str) -> str | None:
    """The draft that comes with a model known by name; None if there is none here."""
    entry = registry.KNOWN.get(f"{model}-draft")
    return entry.name if entry and entry.present() else None


def name_of(drafter: Drafter) -> str:
    """The name of its class as users type it: ms.drafters.Model is DraftModel."""
    return "Model" if type(drafter) is DraftModel else type(drafter).__name__


def by_name(name: str, target: Model, draft: str | None = None, heads: str | None = None) -> Drafter:
    """A drafter by its name on the command line. `draft` is the model behind "model" and "cascade", `heads` the folder
    or hub id of trained heads. "synthetic:0.8", for load tests, is no drafter of the list: it is not lossless."""
    kind, _, acceptance = name.partition(":")
    if kind == "synthetic":
        return Synthetic(float(acceptance or 0.8))
    require(name in DRAFTERS, f"one of {', '.join(DRAFTERS)}", drafter=name)
    if heads is not None and name not in HEADED:
        raise ValueError(f"heads={heads!r}: drafter={name!r} has none; take one of {', '.join(HEADED)}")
    if name not in ("model", "cascade"):
        return DRAFTERS[name](target, heads)
    if (draft := draft or shipped_draft(target.name)) is None:
        raise ValueError(f"drafter={name!r} needs a draft and {target.name} comes with none: name one (--draft)")
    return DRAFTERS[name](target, folder.load(draft, device=target.device, dtype=target.dtype))
