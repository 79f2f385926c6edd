"""What to expect of a GPU: the tables of docs/gpu.md, from data sheets by theory.py, and from what was recorded.

    python -m benchmarks.cards        prints both tables

Everything in the first is a bound: no kernel reads faster than the memory gives. The second says how near we came.
"""

from __future__ import annotations

import json

from minispec import theory
from minispec.load.registry import BENCHMARKS
from minispec.model import Config
from minispec_course.labs.pairs import SHAPES

LLAMA = SHAPES["8b"]
SMOLLM2 = Config(49_152, 576, 1536, 30, 9, 3, 64, 8192, tie_embeddings=True)
CONTEXT = 500  # cached tokens
CARDS = {theory.T4: 16, theory.RTX_4090: 24, theory.A100: 80, theory.H100: 80, theory.H200_SHEET: 141}  # GB of memory
K, ALPHA, C = 4, 0.7, 0.05  # an ordinary draft model


def weights(config: Config) -> int:
    """Parameters that a pass reads: an embedding of its own is only looked up."""
    return theory.parameter_count(
        config.vocab_size,
        config.hidden_size,
        config.intermediate_size,
        config.num_layers,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        tied=True,
    )


def tokens_per_second(hardware: theory.Hardware, config: Config) -> float:
    """Plain decoding of one request in 16 bits, at best."""
    kept = theory.kv_bytes_per_token(config.num_layers, config.num_kv_heads, config.head_dim)
    width = config.num_layers * config.num_heads * config.head_dim
    return 1 / theory.pass_time(hardware, weights(config), context=CONTEXT, kv_bytes=kept, attention_width=width)


def crossover(hardware: theory.Hardware) -> float:
    """The batch size at which four draft tokens stop paying, weights alone: B (k + 1) = R (E[N] − kc)."""
    return theory.free_tokens(hardware) * (theory.expected_tokens(ALPHA, K) - K * C) / (K + 1)


def computed() -> str:
    """One line per card, as Markdown."""
    lines = [
        "| card | memory | bandwidth | arithmetic | ridge point | SmolLM2, at best | Llama-3-8B, at best | k = 4 gains "
        "up to batch |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for card, memory in CARDS.items():
        name, kind, _ = card.name.split(", ")
        # Its embedding of its own has to be stored, though not read.
        stored = 2 * (weights(LLAMA) + LLAMA.vocab_size * LLAMA.hidden_size)
        llama = f"{tokens_per_second(card, LLAMA):,.0f} tokens/s" if stored < 0.95 * memory * 1e9 else "does not fit"
        lines.append(
            f"| {name} ({kind}) | {memory} GB | {card.bandwidth / 1e9:,.0f} GB/s | {card.flops / 1e12:,.0f} TFLOP/s | "
            f"{theory.balance_point(card):.0f} | {tokens_per_second(card, SMOLLM2):,.0f} tokens/s | {llama} | "
            f"{crossover(card):.0f} |"
        )
    return "\n".join(lines)


def read(name: str) -> dict:
    return json.loads((BENCHMARKS / f"{name}.json").read_text(encoding="utf-8"))


def measured() -> str:
    """What was recorded, one line per benchmark, as Markdown."""
    decode, verify, cycle, drafters = (read(name) for name in ("decode", "verify", "speculate", "drafters"))
    launch = decode["results"]["launch"]
    sixteen = next(row for row in verify["results"] if row["tokens"] == 16)
    plain = drafters["results"]["free text"]["plain"]["tokens_per_second"]
    best = max(
        (row["speedup"]["median"], kind, name)
        for kind, table in drafters["results"].items()
        for name, row in table.items()
    )
    time = launch["seconds_per_token"]
    rows = [
        (
            decode,
            "`python -m benchmarks decode`",
            "a plain token of the 8B shape",
            f"{_ms(time)} ms, {launch['fraction_of_bandwidth']:.0%} of the bandwidth measured in that run",
        ),
        (
            verify,
            "`python -m benchmarks verify`",
            "a pass over 16 tokens, in passes over one",
            f"{sixteen['ratio']:.2f}",
        ),
        (
            cycle,
            "`python -m benchmarks speculate`",
            f"a cycle of {cycle['k']} draft tokens at α = {cycle['acceptance']:.2f}",
            f"{cycle['speedup']:.2f} times as fast as plain, predicted {cycle['predicted_speedup']:.2f}",
        ),
        (
            drafters,
            "`python -m benchmarks drafters`",
            "SmolLM2, plain, free text",
            f"{plain['median']:,.0f} ({plain['low']:,.0f} to {plain['high']:,.0f}) tokens/s",
        ),
        (
            drafters,
            "`python -m benchmarks drafters`",
            f"SmolLM2, the best drafter: {best[2]}, {best[1]} prompts",
            f"{best[0]:.2f} times as fast as plain",
        ),
    ]
    lines = ["| date, card | command | what | measured |", "|---|---|---|---|"]
    for result, command, what, value in rows:
        card = result["machine"]["gpus"][0]["name"].removeprefix("NVIDIA ")
        lines.append(f"| {result['date']}, {card} | {command} | {what} | {value} |")
    return "\n".join(lines)


def _ms(timing: dict) -> str:
    return f"{1e3 * timing['median']:.2f} ({1e3 * timing['low']:.2f} to {1e3 * timing['high']:.2f})"


if __name__ == "__main__":
    print(computed(), measured(), sep="\n\n")
