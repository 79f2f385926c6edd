"""What to expect of a GPU: the table of docs/gpu.md, from data sheets by theory.py.

Everything in it is a bound: no kernel reads faster than the memory gives. How near we came is in docs/benchmarks.md.
"""

import re

from minispec import theory
from minispec_course.labs import presets

from .page import Table

LLAMA, SMOLLM2 = presets.SHAPES["Llama-3-8B"], presets.SHAPES["smollm2"]
CONTEXT = 500  # cached tokens
CARDS = {theory.T4: 16, theory.RTX_4090: 24, theory.A100: 80, theory.H100: 80, theory.H200_SHEET: 141}  # GB of memory
K, ALPHA, C = 4, 0.7, 0.05  # an ordinary draft model


def tokens_per_second(card: theory.Hardware, config) -> float:
    """Plain decoding of one request in 16 bits, at best."""
    return 1 / presets.seconds(card, config, context=CONTEXT)


def crossover(card: theory.Hardware) -> float:
    """The batch size at which four draft tokens stop paying, weights alone: B (k + 1) = R (E[N] − kc)."""
    return theory.free_tokens(card) * (theory.expected_tokens(ALPHA, K) - K * C) / (K + 1)


def computed() -> Table:
    """One line per GPU."""
    head = ["GPU", "memory", "bandwidth", "arithmetic", "ridge point", "SmolLM2, at best", "Llama-3-8B, at best"]
    rows = []
    for card, memory in CARDS.items():
        name, kind, _ = card.name.split(", ")
        fits = 2 * presets.weights(LLAMA) < 0.95 * memory * 1e9
        llama = f"{tokens_per_second(card, LLAMA):,.0f} tokens/s" if fits else "does not fit"
        limits = [f"{card.bandwidth / 1e9:,.0f} GB/s", f"{card.flops / 1e12:,.0f} TFLOP/s"]
        smollm2 = f"{tokens_per_second(card, SMOLLM2):,.0f} tokens/s"
        ridge = f"{theory.balance_point(card):.0f}"
        rows.append([f"{name} ({kind})", f"{memory} GB", *limits, ridge, smollm2, llama, f"{crossover(card):.0f}"])
    return Table([*head, "k = 4 gains up to batch"], rows)


def filled(page: str) -> str:
    """The page with the table as it is now, between its two comments."""
    between = r"(?s)(?<=<!-- computed -->\n).*?(?=\n<!-- end -->)"
    return re.sub(between, lambda _: computed().markdown(), page, count=1)
