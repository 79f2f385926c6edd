"""The command line: minispec demo | models | measure | why | serve | bench | train, and the commands of the course.

Each command is a small function. What it needs is imported inside it, so that the others start without.
"""

import json
import sys
from argparse import BooleanOptionalAction
from collections.abc import Sequence
from functools import partial

from minispec.load.write import STDOUT, publish, require_writable

from . import options
from .course import commands_of_the_course
from .failure import run_command
from .options import Parser
from .teaching import commands_for_teachers


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; cli/failure.py says which there are."""
    return run_command(parser, argv)


def parser() -> Parser:
    top = Parser(prog="minispec", description="Fast LLM inference: the course and its code.")
    top.set_defaults(run=lambda args: top.print_help())
    commands = top.add_subparsers(title="commands", metavar="COMMAND")

    def command(name: str, run, help: str, fill=None) -> Parser:
        sub = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".", fill=fill)
        sub.set_defaults(run=run)
        return sub

    sub = command("demo", demo, "watch a draft and its target write, then see what it was worth")
    options.add_model(sub)
    _add_drafter(sub, "model where the model comes with a draft, else ngram")
    options.add_heads(sub)
    options.add_device(sub)
    options.add_weights(sub)
    options.add_draft_length(sub)
    options.add_prompt(sub)
    sub.add_argument("--chat", action="store_true", help="give the prompt as a chat message, to models that chat")
    options.add_tokens(sub, 100)
    options.add_temperature(sub)
    options.add_seed(sub, help="with --temperature above 0: another seed, another story")
    options.add_json(sub)

    commands_of_the_course(command)
    commands_for_teachers(command)

    sub = command("models", models, "list the models that minispec knows by name")
    actions = sub.add_subparsers(title="actions", metavar="[ACTION]")
    get = actions.add_parser("get", help="fetch a model", description="Fetch a model.")
    get.add_argument("name", help="a name of the list, or a hub id such as Qwen/Qwen3-0.6B")
    get.add_argument("--heads", action="store_true", help="it is no model, but published heads of a drafter")
    get.set_defaults(run=get_model)

    sub = command("measure", measure, "measure this machine: bandwidth, tokens per second, the cost of longer passes")
    options.add_model(sub, help="the model to measure")
    options.add_device(sub)
    options.add_weights(sub)
    sub.add_argument("--quick", action="store_true", help="fewer points and repeats")
    options.add_json(sub)

    sub = command("why", why, "why speculation is not faster: suspects, from a server's log or metrics")
    sub.add_argument("source", nargs="?", metavar="INPUT", help="a log, metrics or a trace; -; http://127.0.0.1:PORT")
    options.add(sub, "plain", options.text, None, "this load without speculation: such an input, or ms per token", "X")
    options.add(sub, "k", options.count, None, "draft tokens per cycle", "K")
    rates = {"acceptance": "accepted / tested", "rate": "accepted / drafted", "length": "tokens per cycle"}
    for name, what in (rates | {"c": "time of a draft token, in plain steps"}).items():
        options.add(sub, name, options.number, None, what, "X")
    times = {
        "v": "time of a verify pass, in plain steps",
        "itl": "of a cycle, in ms",
        "measured": "speed-up",
        "batch": "sequences at once",
    }
    for name, what in times.items():
        options.add(sub, name, options.positive, None, what, "X")
    options.add_json(sub)

    _serve_options(command("serve", serve, "serve a model over HTTP, as OpenAI's API does, with speculation"))
    command("bench", None, "the measurements behind docs/benchmarks.md", fill=_bench_options)
    command("train", None, "train draft models and heads on what a target generates", fill=_train_options)
    return top


def _bench_options(sub: Parser) -> None:
    from ..bench import add_arguments

    add_arguments(sub)


def _train_options(sub: Parser) -> None:
    from ..train import add_arguments

    add_arguments(sub)


def _add_drafter(sub: Parser, otherwise: str) -> None:
    kinds = f"{', '.join(options.DRAFTERS)}, or synthetic:0.8 for load tests (default: {otherwise})"
    sub.add_argument("--drafter", type=options.drafter, metavar="NAME", help=kinds)
    options.add_draft(sub, help=f"the draft model of model and cascade {options.SHIPPED}")


def _serve_options(sub: Parser) -> None:
    add, count = partial(options.add, sub), options.count
    options.add_model(sub, help="the model to serve")
    _add_drafter(sub, "no speculation")
    options.add_draft_length(sub, auto=False, default=None)
    rule = "how sampled drafts are accepted; coupled: a seed repeats its output under any load (default: token)"
    sub.add_argument("--rule", choices=("token", "block", "coupled"), default="token", help=rule)
    options.add_device(sub)
    add("host", options.text, "127.0.0.1", "where to listen; by default this machine alone", "ADDRESS")
    add("port", options.port, 8000, "0: any free one", "PORT")
    add("served-model-name", options.text, None, "what clients call it (default: --model)", "NAME")
    key = "what clients must send (default: $MINISPEC_API_KEY, which no list of processes shows)"
    add("api-key", options.text, None, key, "KEY")
    add("max-num-seqs", count, 32, "requests that run at once")
    add("max-num-batched-tokens", count, 512, "tokens per step")
    add("block-size", count, 16, "tokens per block")
    add("max-body", count, 1024, "the longest body of a request, in KiB; longer ones get status 413")
    add("num-blocks", count, None, "for keys and values (default: what fits; on a CPU 512)")
    add("max-waiting", options.natural, 512, "requests that may wait to run; the next gets status 429")
    add("drain", options.positive, 10.0, "after SIGTERM or Ctrl-C, seconds for open requests to end", "S")
    warm = "compile and capture before listening what the first requests would wait for (default: yes)"
    sub.add_argument("--warm-up", action=BooleanOptionalAction, default=True, help=warm)


# ---------------------------------------------------------------- the commands


def demo(args) -> None:
    """Speculative decoding as it happens, then what it cost, beside plain decoding."""
    from minispec import load
    from minispec.drafters import by_name, shipped_draft

    from ..demo import Painter, demo, wants_colour

    require_writable("json", args.json, make_folders=False)
    target = load(args.model, device=args.device, weights=args.weights)
    name = args.drafter or ("model" if args.draft or shipped_draft(args.model) else "ngram")
    drafter = by_name(name, target, args.draft, args.heads)
    colour = wants_colour(sys.stdout)
    opening = args.prompt + "\n\n" * args.chat
    painter = None if args.json == STDOUT else Painter(target, colour, partial(print, end="", flush=True), opening)
    prompt = [{"role": "user", "content": args.prompt}] if args.chat else args.prompt
    sampling = dict(temperature=args.temperature, seed=args.seed)
    result = demo(target, drafter, prompt, args.tokens, args.k, painter=painter, **sampling)
    publish(result.text(colour), json.dumps(result.facts(), ensure_ascii=False), args.json)


def models(args) -> None:
    from minispec.load.registry import models

    print(models())


def get_model(args) -> None:
    from minispec.load.fetch import fetch
    from minispec.load.registry import HUB_ID, KNOWN, locate

    fetchable = not KNOWN[args.name].packaged if args.name in KNOWN else HUB_ID.fullmatch(args.name)
    folder = fetch(args.name, args.heads) if fetchable else locate(args.name)  # locate says where, or what would do
    if not (fetchable or args.heads or all(any(folder.glob(file)) for file in ("config.json", "*.safetensors*"))):
        raise ValueError(f"{folder} holds no model: give a folder with config.json and its weights as safetensors")
    print(folder)


def measure(args) -> None:
    from minispec import load

    from ..measure import measure

    require_writable("json", args.json, make_folders=False)
    report = measure(load(args.model, device=args.device, weights=args.weights), quick=args.quick)
    publish(report.text(), report.to_json(), args.json)


def why(args) -> None:
    from ..why import diagnose, facts, report

    require_writable("json", args.json, make_folders=False)
    given = {name: getattr(args, name) for name in ("k", "rate", "length", "batch", "c", "v", "itl", "measured")}
    seen = diagnose(args.source, args.plain, alpha=args.acceptance, **given)
    publish(report(seen), json.dumps(facts(seen), ensure_ascii=False), args.json)


def serve(args) -> None:
    from ..serve import require_extra

    require_extra()
    from ..serve.process import serve

    serve(args)
