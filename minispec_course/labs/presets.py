"""What several widgets let you choose from, models by their shape and formats of a number, and how numbers are said."""

import json

from minispec import theory
from minispec.load.hf_config import from_hf
from minispec.load.registry import DATA
from minispec.model import Config
from minispec_tools.parallel.scaling import LLAMA_1B, parameters, weights_read

from .. import counted as counted

# What a pass costs depends on shapes alone. "40M" is made to be measured: too large for most CPUs' caches, and filled
# with random weights in a second.
SHAPES = {
    "micro": from_hf(json.loads((DATA / "micro/config.json").read_text(encoding="utf-8"))),
    "40M": Config(2048, 768, 2048, 6, 12, 4, 64, 512, tie_embeddings=True),
    "smollm2": Config(49_152, 576, 1536, 30, 9, 3, 64, 8192, tie_embeddings=True),
    "Llama-3.2-1B": LLAMA_1B,
    "Llama-2-7B": Config(32_000, 4096, 11_008, 32, 32, 32, 128, 4096),
    "Llama-3-8B": Config(128_256, 4096, 14_336, 32, 32, 8, 128, 8192),
    "Llama-2-70B": Config(32_000, 8192, 28_672, 80, 64, 8, 128, 4096),
    "Llama-3-70B": Config(128_256, 8192, 28_672, 80, 64, 8, 128, 8192),
}
STORED = {"float32": 4, "bf16": 2, "int8 or FP8": 1, "int4": 0.5}  # bytes of a number
weights = parameters  # of a model: weights_read are those that one token makes the machine read
MACHINES = (theory.H200, theory.H100, theory.A100, theory.NEOVERSE_N1)


def attention(config: Config, bytes_per_weight: float = 2) -> tuple[float, int]:
    """(bytes of a token in the cache, attention_width). The cache is in 16 bits; beside float32 weights, in float32."""
    size = 4 if bytes_per_weight == 4 else 2
    kept = theory.kv_bytes_per_token(config.num_layers, config.num_kv_heads, config.head_dim, size)
    return kept, config.num_layers * config.num_heads * config.head_dim


def work(config: Config, bytes_per_weight: float = 2, batch: int = 1, tokens: int = 1, context: int = 0):
    """(FLOPs, bytes) of a whole pass."""
    kept, width = attention(config, bytes_per_weight)
    flops = theory.pass_flops(weights_read(config), batch, tokens, context, width)
    return flops, theory.pass_bytes(weights_read(config), bytes_per_weight, batch, context, kept)


def seconds(hardware: theory.Hardware, config: Config, bytes_per_weight=2.0, batch=1, tokens=1, context=0) -> float:
    """`theory.pass_time` of a model that is known by its shape."""
    shape = (bytes_per_weight, *attention(config, bytes_per_weight))
    return theory.pass_time(hardware, weights_read(config), batch, tokens, context, *shape)


def name_of(bytes_per_number: float) -> str:
    return next((name for name, size in STORED.items() if size == bytes_per_number), f"{bytes_per_number:g} bytes")


def figures(x: float) -> str:
    """Three figures, written out: 1,880 and not 1.88e+03."""
    return f"{float(f'{x:.3g}'):,.0f}" if abs(x) >= 99.95 else f"{x:.3g}"


def si(x: float, unit: str) -> str:
    """Three figures and a prefix: si(3.35e12, "B/s") is "3.35 TB/s"."""
    for prefix in ("", "k", "M", "G", "T"):
        if x < 999.5 or prefix == "T":
            return f"{x:.3g} {prefix}{unit}" if x < 999.5 else f"{x:,.0f} {prefix}{unit}"
        x /= 1000


def duration(seconds: float) -> str:
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 999.5:
            return f"{seconds * factor:.3g} {unit}"
    return f"{figures(seconds)} s"
