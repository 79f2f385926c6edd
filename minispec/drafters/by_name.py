"""Drafters by their names on the command line, each with what ships for its target."""

from ..load.folder import load
from ..load.handle import Model
from ..load.registry import KNOWN
from ..require import require
from .base import Drafter
from .cascade import Cascade
from .dflash import DFlash
from .eagle import Eagle
from .early_exit import EarlyExit
from .lookahead import Lookahead
from .medusa import Medusa
from .model import DraftModel
from .mtp import MTP
from .ngram import NGram
from .quantized import Quantized
from .suffix import Suffix
from .translate import same_tokens

DRAFTERS = {  # by their names on the command line
    "model": lambda target, draft: DraftModel(draft, translate=same_tokens(draft, target) is False),
    "ngram": lambda target, draft: NGram(),
    "suffix": lambda target, draft: Suffix(),
    "early-exit": lambda target, draft: EarlyExit(target),
    "quantized": lambda target, draft: Quantized(target),
    "cascade": lambda target, draft: Cascade(NGram(), draft),
    "lookahead": lambda target, draft: Lookahead(target),
    "medusa": lambda target, heads: Medusa(target, heads),  # None: heads that come with some targets
    "eagle": lambda target, heads: Eagle(target, heads),
    "dflash": lambda target, heads: DFlash(target, heads),
    "mtp": lambda target, heads: MTP(target, heads),
}
HEADED = ("medusa", "eagle", "dflash", "mtp")


def shipped_draft(model: str) -> str | None:
    """The draft that comes with a model known by name; None if there is none here."""
    entry = KNOWN.get(f"{model}-draft")
    return entry.name if entry and entry.present() else None


def name_of(drafter: Drafter) -> str:
    """The name of its class as users type it: ms.drafters.Model is DraftModel."""
    return "Model" if type(drafter) is DraftModel else type(drafter).__name__


def by_name(name: str, target: Model, draft: str | None = None, heads: str | None = None) -> Drafter:
    """A drafter by its name on the command line. `draft` is the model behind "model" and "cascade", `heads` the folder
    or hub id of trained heads."""
    require(name in DRAFTERS, f"one of {', '.join(DRAFTERS)}", drafter=name)
    if heads is not None and name not in HEADED:
        raise ValueError(f"heads={heads!r}: drafter={name!r} has none; take one of {', '.join(HEADED)}")
    if name not in ("model", "cascade"):
        return DRAFTERS[name](target, heads)
    if (draft := draft or shipped_draft(target.name)) is None:
        raise ValueError(f"drafter={name!r} needs a draft and {target.name} comes with none: name one (--draft)")
    return DRAFTERS[name](target, load(draft, device=target.device, dtype=target.dtype))
