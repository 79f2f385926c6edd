"""What the benchmarks of random models share: their options, the facts of a run, and the bound by bytes / bandwidth.

The models themselves are made by minispec_course/labs/pairs.py: a target of some shape, whose first layers draft.
"""

from dataclasses import asdict

import torch

from minispec.gpu.graph import Captured
from minispec.gpu.weights import FastTransformer, has_kernels
from minispec.load.folder import usable_device
from minispec.load.model import Model
from minispec.measure import machine, read_bandwidth, weight_bytes
from minispec.model import Config
from minispec_course.labs.pairs import LAUNCHES, LAYERS, SHAPES, prompt_of, random_pair, several
from minispec_course.labs.presets import attention

from ..cli import options

__all__ = ["LAUNCHES", "LAYERS", "SHAPES", "prompt_of", "random_pair", "several"]


def add_arguments(parser, repeat: int = 9) -> None:
    parser.add_argument("--shape", choices=SHAPES, default="8b", help="of the target (default: %(default)s)")
    options.add(parser, "context", options.count, 500, "tokens before")
    options.add_repeat(parser, repeat)
    options.add_device(parser, "cuda" if torch.cuda.is_available() else "cpu")


def add_epsilon(parser) -> None:
    options.add(parser, "epsilon", options.number, 0.05, "what the layers after the draft's add", metavar="ε")


def check(args, most_tokens: int) -> Config:
    """The shape that was asked for, if the context and so many tokens after it fit."""
    config = SHAPES[args.shape]
    usable_device(args.device)
    if args.context > (room := config.max_length - most_tokens):
        raise ValueError(f"context={args.context}: give at most {room}, which leaves room for what follows")
    return config


def facts(args, name: str, target: Model) -> dict:
    """What every result begins with: the question, the machine, and what it can do at best."""
    return {
        "benchmark": name,
        "shape": args.shape,
        "dtype": str(target.dtype).removeprefix("torch."),
        "context": args.context,
        "lean": has_kernels(target.device, target.dtype),  # whether GEMMs take the small steps along
        "seed": args.seed,
        "repeat": args.repeat,
        "weight_bytes": weight_bytes(target),
        "bandwidth": asdict(read_bandwidth(target.device)),
        "machine": machine(),
    }


def captured_pass(transformer: FastTransformer, tokens: int, seed: int = 0) -> Captured:
    """A captured pass over so many tokens after what is cached, which it leaves as it was."""
    ids = torch.tensor([prompt_of(transformer.config, tokens, seed)], device=transformer.device)

    def work() -> None:
        transformer.step(ids)
        transformer.lengths.sub_(tokens)

    return Captured(work, [transformer.lengths])


# ---- bounds ----


def itemsize(result: dict) -> int:
    return getattr(torch, result["dtype"]).itemsize


def floor_seconds(result: dict, config: Config, context: int) -> float:
    """A pass at best: its bytes, weights and cache of the context, at the bandwidth measured."""
    kept, _ = attention(config, itemsize(result))
    return (result["weight_bytes"] + context * kept) / result["bandwidth"]["median"]
