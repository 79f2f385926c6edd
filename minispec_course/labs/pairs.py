"""A target of any size with random weights, and a draft that it agrees with now and then: real passes, real rejections.

What a pass costs depends on shapes and hardly on values, so random weights time a model that nobody has to download.
What a draft is worth does depend on weights. Here every layer after the first two writes only ε of what it would into
the residual stream, and those two layers are the draft: the smaller ε, the closer its laws are to the target's.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import torch

from minispec import theory
from minispec.cli import options
from minispec.gpu.capture import Captured
from minispec.gpu.fused import FastTransformer
from minispec.load.folder import build, default_dtype, usable_device
from minispec.load.handle import Model
from minispec.measure import machine, read_bandwidth, weight_bytes
from minispec.model import Config, Transformer

SHAPES = {
    "8b": Config(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        max_length=8192,
        rope_theta=500_000.0,
    ),  # Llama-3-8B
    "toy": Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=96,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        max_length=2048,
    ),
}
SMOLLM2 = Config(
    vocab_size=49_152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    max_length=8192,
    rope_theta=100_000.0,
    tie_embeddings=True,
)
LAYERS = 2  # of the draft
LAUNCHES = 8  # in one timing, so that starting the clock and waiting for the device do not count


def random_pair(config: Config, device, epsilon: float = 0.05, seed: int = 0) -> tuple[Model, Model]:
    """Target and draft, made where they live. Logits have a standard deviation of 4, as trained models' do."""
    device = torch.device(device)
    dtype = default_dtype(device)
    generator = torch.Generator(device).manual_seed(seed)
    with torch.device("meta"):
        shapes = {name: parameter.shape for name, parameter in Transformer(config).named_parameters()}
    tensors = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            tensors[name] = torch.ones(shape, device=device, dtype=dtype)
            continue
        tensors[name] = torch.randn(shape, generator=generator, device=device, dtype=dtype)
        if name != "embed_tokens.weight":
            damped = name.startswith("layers.") and int(name.split(".")[1]) >= LAYERS
            writes = name.endswith(("o_proj.weight", "down_proj.weight"))
            scale = 4.0 if name == "lm_head.weight" else epsilon if damped and writes else 1.0
            tensors[name] *= scale / math.sqrt(shape[1])
    first = replace(config, num_layers=LAYERS)
    pair = [build(c, dict(tensors), where="a random model", device=device, dtype=dtype) for c in (config, first)]
    return Model("random target", pair[0]), Model("its first layers", pair[1])


def prompt_of(config: Config, length: int, seed: int = 0) -> list[int]:
    return torch.randint(config.vocab_size, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def recorded_pass(transformer: FastTransformer, tokens: int, seed: int = 0) -> Captured:
    """A pass over so many tokens after what is remembered, which it leaves as it was."""
    ids = torch.tensor([prompt_of(transformer.config, tokens, seed)], device=transformer.device)

    def work() -> None:
        transformer.step(ids)
        transformer.lengths.sub_(tokens)

    return Captured(work, [transformer.lengths])


def several(call, times: int = LAUNCHES):
    """One call that makes several."""

    def calls() -> None:
        for _ in range(times):
            call()

    return calls


def facts(args, name: str, target: Model) -> dict:
    """What every result begins with: the question, the machine, and what it can do at best."""
    return {
        "benchmark": name,
        "shape": args.shape,
        "dtype": str(target.dtype).removeprefix("torch."),
        "context": args.context,
        "lean": vars(args).get("lean"),  # how products were computed, where that can be chosen
        "seed": args.seed,
        "repeat": args.repeat,
        "weight_bytes": weight_bytes(target),
        "bandwidth": asdict(read_bandwidth(target.device)),
        "machine": machine(),
    }


def floor_seconds(result: dict, config: Config, context: int) -> float:
    """A pass at best: its bytes, weights and memory of the context, at the bandwidth measured."""
    size = getattr(torch, result["dtype"]).itemsize
    kept = theory.kv_bytes_per_token(config.num_layers, config.num_kv_heads, config.head_dim, size)
    return (result["weight_bytes"] + context * kept) / result["bandwidth"]["median"]


def spread(timing: dict, scale: float = 1e3, digits: int = 2, thousands: str = "") -> str:
    """The median and the quartiles. Times, in seconds, are shown in ms; rates and ratios want a scale of 1."""
    median, low, high = (f"{scale * timing[key]:{thousands}.{digits}f}" for key in ("median", "low", "high"))
    return f"{median} ({low}–{high})"


def add_arguments(parser) -> None:
    parser.add_argument("--shape", choices=SHAPES, default="8b", help="of the target (default: %(default)s)")
    parser.add_argument(
        "--context", type=options.count, default=500, metavar="N", help="tokens before (default: %(default)s)"
    )
    options.add_repeat(parser, 9)
    options.add_device(parser, "cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--compile", default="no", metavar="MODE", help="no, as lean passes need none, yes, or a mode of torch.compile"
    )
    parser.add_argument(
        "--lean",
        choices=("no", "yes"),
        default="yes",
        help="products that take the small steps along (default: %(default)s)",
    )


def fast_options(args) -> dict:
    """--compile and --lean as FastTransformer takes them. On a CPU to compile takes longer than it saves."""
    modes = {"no": False, "yes": True}
    on_gpu = torch.device(args.device).type == "cuda"
    return {"compile": on_gpu and modes.get(args.compile, args.compile), "lean": modes[args.lean]}


def check(args, most_tokens: int) -> Config:
    config = SHAPES[args.shape]
    usable_device(args.device)
    if args.context > config.max_length - most_tokens:
        raise ValueError(
            f"context={args.context}: give at most {config.max_length - most_tokens}, which leaves room "
            "for what follows"
        )
    return config
