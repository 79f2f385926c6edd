"""Every drafter there is, made for a target and a smaller model of the same vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import minispec as ms

D = ms.drafters
NAMES = ("Model", "NGram", "Suffix", "EarlyExit", "Quantized", "Cascade", "Lookahead")

FACTORIES: dict[str, tuple[str, Callable[[ms.Model, ms.Model], D.Drafter]]] = {
    "model": ("Model", lambda target, draft: D.Model(draft)),
    "model, hotter": ("Model", lambda target, draft: D.Model(draft, ms.Sampling(temperature=1.6))),
    "model, greedy": ("Model", lambda target, draft: D.Model(draft, ms.Sampling(temperature=0.0))),
    "ngram": ("NGram", lambda target, draft: D.NGram()),
    "suffix": ("Suffix", lambda target, draft: D.Suffix()),
    "early exit": ("EarlyExit", lambda target, draft: D.EarlyExit(target, 1)),
    "skip the middle": ("EarlyExit", lambda target, draft: D.EarlyExit(target, skip_the_middle(target))),
    "quantized, 8 bits": ("Quantized", lambda target, draft: D.Quantized(target, bits=8)),
    "quantized, 4 bits": ("Quantized", lambda target, draft: D.Quantized(target, bits=4)),
    "cascade": ("Cascade", lambda target, draft: D.Cascade(D.NGram(), draft)),
    "cascade of models": ("Cascade", lambda target, draft: D.Cascade(D.Model(draft), D.Quantized(target, 4).draft)),
    "lookahead": ("Lookahead", lambda target, draft: D.Lookahead(target)),
}

ALL = {name: make for name, (kind, make) in FACTORIES.items() if getattr(D, kind, None) is not None}


def skip_the_middle(target: ms.Model) -> list[int]:
    """First and last layer; of a target with two, only the last."""
    last = target.config.num_layers - 1
    return [0, last] if last > 1 else [last]
