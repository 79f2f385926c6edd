"""A server's tokens per second (serving.py), and at which batch size drafts stop paying (full_batches.py)."""

from __future__ import annotations

from functools import partial

import torch

from minispec import theory
from minispec.cli import options
from minispec.measure import flops, where

from . import full_batches, serving, shapes
from .page import Section
from .peers import SERVERS
from .serving import BLOCK

WITHOUT_MODEL = True
PARTS = ("serving", "speculation")
DEFAULTS = {  # by shape; the toy's take seconds on a CPU
    "8b": dict(
        requests=256,
        prompt_lengths=[100, 1024],
        output_lengths=[100, 1024],
        max_num_seqs=128,
        token_budget=2048,
        sizes=[1, 2, 4, 8, 16, 32, 64, 128],
        context=500,
        tokens=64,
    ),
    "toy": dict(
        requests=12,
        prompt_lengths=[10, 60],
        output_lengths=[10, 40],
        max_num_seqs=6,
        token_budget=64,
        sizes=[1, 2, 4],
        context=50,
        tokens=24,
    ),
}


def run(args) -> dict:
    for name, value in DEFAULTS[args.shape].items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    check(args)
    target, draft = shapes.random_pair(shapes.SHAPES[args.shape], args.device, args.epsilon, args.seed)
    result = shapes.facts(args, "batch", target) | {"epsilon": args.epsilon, "k": args.k}
    hardware = theory.Hardware("measured", result["bandwidth"]["median"], flops(args.device, target.dtype).median)
    result |= {"flops": hardware.flops} | dict.fromkeys(PARTS)
    for part, measure in zip(PARTS, (serving.serving, full_batches.speculation), strict=True):
        if part in args.parts:
            result[part] = measure(args, target, draft, hardware)
    return result


def check(args) -> None:
    for name in ("prompt_lengths", "output_lengths"):
        low, high = getattr(args, name)
        if low > high:
            raise ValueError(f"{name}={[low, high]}: give the least and then the greatest length")
    if args.token_budget < args.max_num_seqs:
        raise ValueError(
            f"token_budget={args.token_budget}: give at least max_num_seqs={args.max_num_seqs}, "
            "a token for each request"
        )
    longest = args.prompt_lengths[1] + args.output_lengths[1]
    if args.num_blocks is not None and args.num_blocks * BLOCK < longest:
        raise ValueError(
            f"num_blocks={args.num_blocks}: blocks of {BLOCK} tokens must hold one request at least, "
            f"up to {longest} tokens"
        )
    if args.tokens < 2 * args.k + 3:
        raise ValueError(f"tokens={args.tokens}: two cycles of k={args.k} must fit, give at least {2 * args.k + 3}")
    config = shapes.check(args, args.tokens + args.k)
    if longest > config.max_length:
        raise ValueError(
            f"prompt_lengths={args.prompt_lengths}, output_lengths={args.output_lengths}: the shape "
            f"{args.shape!r} remembers {config.max_length} tokens, give shorter ones"
        )


def section(result: dict) -> Section:
    """Two parts, of which a run may have measured one alone."""
    parts = [serving.section(result["serving"])] if result["serving"] else []
    parts += [full_batches.section(result)] if result["speculation"] else []
    return Section(
        f"A server, {result['shape']} on {where(result['machine'])}",
        " ".join(part.about for part in parts),
        [table for part in parts for table in part.tables],
        parts[0].headline,
        [note for part in parts for note in part.notes],
    )


def add_arguments(parser) -> None:
    add, standard = partial(options.add, parser), {name: str(value) for name, value in DEFAULTS["8b"].items()}
    shapes.add_arguments(parser, context=None, repeat=3)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure (default: both)")
    options.add_draft_length(parser, auto=False)
    shapes.add_epsilon(parser)
    for name, meaning, count in (
        ("requests", "to serve", None),
        ("max_num_seqs", "requests at a time", None),
        ("token_budget", "tokens per pass of both servers", None),
        ("prompt_lengths", "the least and the greatest", 2),
        ("output_lengths", "the least and the greatest", 2),
        ("sizes", "of the full batches", "+"),
        ("tokens", "to generate in the full batches", None),
    ):
        default = f"{meaning} (default: {standard[name].strip('[]')})"
        add(name.replace("_", "-"), options.count, None, default, nargs=count)
    options.add_temperature(parser, help="in the full batches, 0 is greedy")
    add("num-blocks", options.count, None, "of both servers (default: all at a time fit)")
    add("draft-budget", options.natural, 64, "draft tokens per step while serving, 0: none")
    every = list(SERVERS) if torch.cuda.is_available() else ["default"]
    ways = f"ways to run transformers, of which the quickest counts: {', '.join(SERVERS)}"
    add("peers", str, every, ways, "NAME", nargs="*", choices=SERVERS)
    add("peer-seqs", options.count, None, "requests at a time there (default: as here)", nargs="+")
