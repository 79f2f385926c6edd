"""What to expect of a GPU: the tables of docs/gpu.md, from data sheets by theory.py, and from what was recorded.

Everything in the first is a bound: no kernel reads faster than the memory gives. The second says how near we came.
"""

import json
import re

from minispec import theory
from minispec.load.registry import BENCHMARKS
from minispec.measure import where
from minispec_course.labs import ladder, presets

from .page import Table, spread

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


def measured() -> Table:
    """What was recorded, one line per benchmark."""
    results = [json.loads((BENCHMARKS / f"{name}.json").read_text(encoding="utf-8")) for name in RECORDED]
    decode, verify, cycle, drafters = results
    launch, by_kind = decode["results"]["launch"], drafters["results"]
    sixteen = next(row for row in verify["results"] if row["tokens"] == 16)
    plain = spread(by_kind["free text"]["plain"]["tokens_per_second"], 1, 0, ",")
    ranked = [(row["speedup"]["median"], f"{name}, {kind}") for kind in by_kind for name, row in by_kind[kind].items()]
    gain, drafter = max(ranked)
    share, best = launch["fraction_of_bandwidth"], ladder.largest_read()  # of that run's bandwidth; lesson 13's
    other = f"{share * decode['bandwidth']['median'] / best:.0%} of our fastest read's {best / 1e12:.2f} TB/s"
    shares = f"{share:.0%} of the bandwidth measured in that run, {other}"
    drafts = f"a cycle of {cycle['k']} draft tokens at α = {cycle['acceptance']:.2f}"
    rows = [
        (decode, "a plain token of the 8B shape", f"{spread(launch['seconds_per_token'])} ms, {shares}"),
        (verify, "a pass over 16 tokens, in passes over one", f"{sixteen['ratio']:.2f}"),
        (cycle, drafts, f"{cycle['speedup']:.2f} times as fast as plain, predicted {cycle['predicted_speedup']:.2f}"),
        (drafters, "SmolLM2, plain, free text", f"{plain} tokens/s"),
        (drafters, f"SmolLM2, the best drafter: {drafter} prompts", f"{gain:.2f} times as fast as plain"),
    ]
    lines = [
        [f"{result['date']}, {where(result['machine'])}", f"`python -m benchmarks {result['benchmark']}`", what, value]
        for result, what, value in rows
    ]
    return Table(["date, GPU", "command", "what", "measured"], lines, range(4))


RECORDED = ("decode", "verify", "speculate", "drafters")
TABLES = {"computed": computed, "measured": measured}  # by the comments between which they stand on the page


def filled(page: str) -> str:
    """The page with both tables as they are now."""
    for name, table in TABLES.items():
        between = rf"(?s)(?<=<!-- {name} -->\n).*?(?=\n<!-- end -->)"
        page = re.sub(between, lambda _, table=table: table().markdown(), page, count=1)
    return page
