"""`python -m benchmarks …`: what drafts, batches and blocks are worth, measured here, printed as a table and kept as JSON.

python -m benchmarks temperature --model micro --json FILE                   acceptance by the two temperatures
python -m benchmarks drafters --model smollm2 --json FILE                     every drafter's speed, beside plain decoding
python -m benchmarks acceptance --prompts FILE --json FILE                    tokens per target pass, by kind of text
python -m benchmarks rules --prompts FILE --json FILE                         token by token against block verification
python -m benchmarks budget --model smollm2 --json FILE                       one budget for all draft tokens, by batch size
python -m benchmarks cpu --model smollm2 --json FILE                          passes on a CPU, quiet and beside a busy program
python -m benchmarks batching --model micro --json FILE                       continuous against static batching
python -m benchmarks memory --json FILE                                       memory that holds nothing, paged or contiguous
python -m benchmarks decode --shape 8b --json FILE                            plain decoding against the read bandwidth
python -m benchmarks verify --shape 8b --json FILE                            the cost of passes over M tokens
python -m benchmarks speculate --shape 8b --json FILE                         a cycle as one launch, beside its prediction
python -m benchmarks batch --shape 8b --json FILE                             a server, and drafts against its batch size
python -m benchmarks serve --rate 1 2 4 --json FILE                           latency of a server under load
python -m benchmarks attention --json FILE                                    attention against the machine's read bandwidth
python -m benchmarks limit --json FILE                                        from eager to the bandwidth, step by step
python -m benchmarks slower --json FILE                                       one sound set-up and five with a fault each
python -m benchmarks report --from FOLDER --out FOLDER                        all results as a page, beside what theory says
"""

from __future__ import annotations

import json
from datetime import date

from minispec import __version__
from minispec.cli import options
from minispec.load.write import publish, require_writable

LABS = ("temperature", "batching", "memory", "slower")  # they live beside the lessons that run them
COMMANDS = {
    "temperature": "acceptance against temperature, the target's and the draft's separately",
    "drafters": "plain and speculative tokens per second, for every drafter and kind of text",
    "acceptance": "greedy tokens per target pass, for every drafter and group of prompts",
    "rules": "tokens per target pass of two lossless rules: token by token, and block verification",
    "budget": "one budget for all draft tokens against fixed draft lengths, by batch size",
    "cpu": "a plain token and the cost of passes over M tokens on this CPU, quiet and beside a busy program",
    "batching": "tokens per second of continuous and static batching, for requests of different lengths",
    "memory": "how much memory for keys and values holds nothing, paged and contiguous",
    "decode": "plain decoding by CUDA graphs against the bandwidth, and transformers beside it",
    "verify": "what a pass of M tokens costs, relative to a pass of one",
    "speculate": "a whole speculative cycle as one launch, against the formula and assisted generation",
    "batch": "tokens per second of a server beside transformers' own, and the batch size at which drafts stop paying",
    "serve": "load on a server, ours or another: TTFT, TPOT, ITL, end-to-end latency, goodput",
    "attention": "attention of a few new tokens over a long memory, against the read bandwidth",
    "limit": "one token from eager to the bandwidth: graph, fused kernels, skinny products, split-K, cycles",
    "slower": "one sound speculative set-up and five with a fault each, for the debugging lab of lesson 07",
    "report": "results as a page: measured beside predicted, with pictures",
}


def add_arguments(parser) -> None:
    from importlib import import_module

    commands = parser.add_subparsers(title="what to measure", required=True)
    for name, help in COMMANDS.items():
        module = import_module(f"minispec_course.labs.{name}" if name in LABS else f"{__name__}.{name}")
        command = commands.add_parser(name, help=help, description=module.__doc__)
        if not getattr(module, "WITHOUT_MODEL", False):
            _add_model_arguments(command)
        if getattr(module, "MEASURES", True):
            options.add_seed(command)
            options.add_json(command)
        module.add_arguments(command)
        command.set_defaults(run=run, bench=module)


def _add_model_arguments(command) -> None:
    options.add_draft(command)
    options.add_device(command)
    command.add_argument("--prompts", default="builtin", metavar="FILE", help="JSON lines (default: %(default)s)")
    options.add_tokens(command, help="how many to generate for each")


def run(args) -> None:
    """Every benchmark: its result is a dict that goes to JSON with day and version, its table is made from that."""
    require_writable("json", args.json, make_folders=False)
    result = {"date": date.today().isoformat(), "minispec": __version__} | args.bench.run(args)
    publish(args.bench.text(result), json.dumps(result, indent=1, ensure_ascii=False), args.json)
