"""`minispec bench NAME … --json FILE`: measured here, shown as a table beside what theory says, kept as JSON.

A benchmark is a module with three functions: `add_arguments(parser)`, `run(args)`, whose dict goes to JSON with the
day, the version and the command, and `section(result)`, which says it in words and tables (page.py). `report` writes
the sections of stored results to docs/benchmarks.md.
"""

import json
import shlex
from datetime import date
from importlib import import_module

from minispec import __version__
from minispec.load.write import publish, require_writable

from ..cli import options

COMMANDS = {
    "drafters": "plain and speculative tokens per second, for every drafter and kind of prompt",
    "acceptance": "greedy tokens per target pass, for every drafter and group of prompts",
    "cpu": "a plain token and the cost of passes over M tokens on this CPU, quiet and beside a busy program",
    "batching": "tokens per second of continuous and static batching, for requests of different lengths",
    "memory": "how much of the KV cache is wasted, paged and contiguous",
    "decode": "plain decoding by CUDA graphs against the bandwidth, and transformers beside it",
    "verify": "what a pass of M tokens costs, relative to a pass of one",
    "speculate": "a whole speculative cycle as one launch, against the formula and assisted generation",
    "ahead": "drafting while the target verifies, against drafting in turn",
    "batch": "tokens per second of a server, and the batch size at which drafts stop paying",
    "serve": "load on a server, ours or another: TTFT, TPOT, ITL, end-to-end latency, goodput",
    "attention": "attention of a few new tokens over a long cache, against the read bandwidth",
    "limit": "one token from eager to the bandwidth: graph, fused kernels, skinny GEMMs, split-K, cycles",
    "slower": "one valid speculative set-up and five with a fault each, for the debugging lab of lesson 07",
    "report": "stored results as docs/benchmarks.md: measured beside predicted",
}


def add_arguments(parser) -> None:
    commands = parser.add_subparsers(title="what to measure", required=True)
    for name, help in COMMANDS.items():
        module = import_module(f"{__name__}.{name}")
        command = commands.add_parser(name, help=help, description=module.__doc__)
        if not getattr(module, "WITHOUT_MODEL", False):
            options.add_draft(command)
            options.add_device(command)
            options.add(command, "prompts", options.text, "builtin", "JSON lines", "FILE")
            options.add_tokens(command, help="how many to generate for each")
        if getattr(module, "MEASURES", True):
            options.add_seed(command)
            options.add_json(command)
        module.add_arguments(command)
        command.set_defaults(run=run, bench=module)


def run(args) -> None:
    """Every benchmark: its result is a dict, which goes to JSON, and its tables are made from that alone."""
    if not getattr(args.bench, "MEASURES", True):
        return print(args.bench.text(args.bench.run(args)))
    require_writable("json", args.json, make_folders=False)
    about = {"date": date.today().isoformat(), "minispec": __version__, "command": command_line(args.words)}
    result = about | args.bench.run(args)
    text = args.bench.section(result).text(result.get("machine"))
    publish(text, json.dumps(result, indent=1, ensure_ascii=False), args.json)


def command_line(words: list[str]) -> str:
    """What to type for the same again, without the file that it went to and without keys."""
    kept, private = [], False
    for word in words:
        if word.startswith("--"):
            private = word.split("=")[0] in ("--json", "--api-key")
        kept += [] if private else [word]
    return shlex.join(["minispec", *kept])
