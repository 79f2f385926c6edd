"""A server's tokens per second (serving.py), and at which batch size drafts stop paying (full_batches.py)."""

from __future__ import annotations

import textwrap

import torch

from minispec import theory
from minispec.cli import options
from minispec.measure import flops, place
from minispec_course.labs import pairs

from .full_batches import speculation, speculation_text
from .peers import SERVERS
from .serving import BLOCK, serving, serving_text

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
    target, draft = pairs.random_pair(pairs.SHAPES[args.shape], args.device, args.epsilon, args.seed)
    result = pairs.facts(args, "batch", target) | {"epsilon": args.epsilon, "k": args.k}
    hardware = theory.Hardware("measured", result["bandwidth"]["median"], flops(args.device, target.dtype).median)
    result |= {"flops": hardware.flops} | dict.fromkeys(PARTS)
    for part, measure in zip(PARTS, (serving, speculation), strict=True):
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
    config = pairs.check(args, args.tokens + args.k)
    if longest > config.max_length:
        raise ValueError(
            f"prompt_lengths={args.prompt_lengths}, output_lengths={args.output_lengths}: the shape "
            f"{args.shape!r} remembers {config.max_length} tokens, give shorter ones"
        )


def text(result: dict) -> str:
    """The tables for a terminal, 80 columns."""
    lines = textwrap.wrap(
        f"{result['shape']} in {result['dtype']}, ε = {result['epsilon']:g}, k = {result['k']}; medians of "
        f"{result['repeat']} rounds (quartiles) on {place(result['machine'])}; "
        f"{result['bandwidth']['median'] / 1e9:,.0f} GB/s read, {result['flops'] / 1e12:,.3g} TFLOP/s",
        80,
    )
    if result["serving"]:
        lines += ["", *serving_text(result["serving"])]
    if result["speculation"]:
        lines += ["", *speculation_text(result["speculation"], result["context"])]
    return "\n".join(lines)


def add_arguments(parser) -> None:
    standard = DEFAULTS["8b"]
    parser.add_argument("--shape", choices=pairs.SHAPES, default="8b", help="of the target (default: %(default)s)")
    options.add_device(parser, "cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure (default: both)"
    )
    options.add_repeat(parser, 3)
    options.add_draft_length(parser, auto=False)
    parser.add_argument(
        "--epsilon", type=options.number, default=0.05, metavar="ε", help="damping (default: %(default)s)"
    )
    names = {
        "requests": "to serve",
        "max_num_seqs": "requests at a time",
        "token_budget": "tokens per pass of both servers",
        "context": "tokens before, for the full batches",
        "tokens": "to write in the full batches",
    }
    for name, meaning in names.items():
        parser.add_argument(
            "--" + name.replace("_", "-"),
            type=options.count,
            metavar="N",
            help=f"{meaning} (default: {standard[name]})",
        )
    for name in ("prompt_lengths", "output_lengths"):
        parser.add_argument(
            "--" + name.replace("_", "-"),
            type=options.count,
            nargs=2,
            metavar="N",
            help="the least and the greatest (default: {} {})".format(*standard[name]),
        )
    sizes = " ".join(map(str, standard["sizes"]))
    parser.add_argument(
        "--sizes", type=options.count, nargs="+", metavar="N", help=f"sizes of the full batches (default: {sizes})"
    )
    parser.add_argument(
        "--temperature", type=options.temperature, default=0.0, metavar="T", help="in the full batches (default: 0)"
    )
    parser.add_argument(
        "--num-blocks", type=options.count, metavar="N", help="of both servers (default: all at a time fit)"
    )
    parser.add_argument(
        "--draft-budget",
        type=options.natural,
        default=64,
        metavar="N",
        help="draft tokens per step while serving, 0: none (default: %(default)s)",
    )
    every = list(SERVERS) if torch.cuda.is_available() else ["default"]
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=SERVERS,
        default=every,
        metavar="NAME",
        help=f"ways to run transformers, of which the quickest counts: {', '.join(SERVERS)} "
        f"(default: {' '.join(every)})",
    )
    parser.add_argument(
        "--peer-seqs", type=options.count, nargs="+", metavar="N", help="requests at a time there (default: as here)"
    )
