"""Load on an OpenAI-compatible server, ours or another, as its clients see it.

The load, its words and its figures are those of minispec_course/labs/load.py. --sweep starts servers of ours for this,
one after the other, with the same load for each: the curve of latency against load, with and without speculation. Each
has a process of its own, because the client that measures must not take the engine's time. A server is named TARGET or
TARGET:DRAFTER, such as smollm2 or smollm2:eagle. A shape (8b, toy) is a target with random weights, whose draft model
is made of its first layers (labs/pairs.py): right in what a step costs, while --epsilon chooses how much is accepted.
"""

import asyncio
import math
import time
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from random import Random

from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel

from minispec import drafters
from minispec.drafters import DRAFTERS, by_name
from minispec.load.folder import load as load_model
from minispec.load.folder import usable_device
from minispec.load.model import Model
from minispec.measure import machine, where
from minispec.serving.engine import Engine
from minispec_course.labs.load import Answer, arrivals, summary
from minispec_course.labs.pairs import STORIES

from ..cli import options
from .client import Endpoint
from .page import Headline, Section, Table, ratio, shown
from .prompts import read_texts
from .shapes import SHAPES, add_epsilon, random_pair

WITHOUT_MODEL = True
COLUMNS = (("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("tpot", "p99"), ("itl", "p99"))  # of the table
ASKED = ("burstiness", "seed", "temperature", "output_tokens", "ignore_eos", "warmup", "requests", "duration")
INPUT_TOKENS = {"8b": (64, 256), "toy": (8, 32)}  # of the prompts, unless others are asked for
RECORDED = ("k", "epsilon", "max_num_seqs", "max_num_batched_tokens")  # what a result has to be read with


# ---- servers of ours, each in a process of its own ----


def engine_for(spec: str, device: str | None, seed: int, epsilon: float, **sizes) -> Engine:
    name, _, by = spec.partition(":")
    if name in SHAPES:
        target, draft = random_pair(SHAPES[name], usable_device(device), epsilon, seed)
        target = Model(name, target.transformer, numbered(target.config.vocab_size))
        drafter = drafters.Model(draft) if by == "model" else by and by_name(by, target)
    else:
        target = load_model(name, device=device)
        drafter = by and by_name(by, target)
    return Engine(target, drafter or None, **sizes)


def numbered(vocab_size: int) -> Tokenizer:
    """A tokenizer for random weights: the text of a token is its number."""
    tokenizer = Tokenizer(WordLevel({f"{token} ": token for token in range(vocab_size)}, unk_token="0 "))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def serve_here(spec: str, parent: Connection, choices: dict) -> None:
    """The process: tell the parent where, and serve until it says stop."""
    from ..serve.app import make_app
    from ..serve.process import address, listen, make_server

    try:
        listener, engine = listen("127.0.0.1", 0), engine_for(spec, **choices)
        engine.warm_up()
    except ValueError as error:
        parent.send(error)
        return
    parent.send(address(listener))
    make_server(make_app(engine, max_waiting=10_000), drain=1.0).run([listener])


@contextmanager
def started(spec: str, args) -> Iterator[str]:
    """A server's address, for as long as it is needed."""
    from ..serve import require_extra

    require_extra()
    context = get_context("spawn")  # a GPU does not survive a fork
    ours, theirs = context.Pipe()
    choices = {name: getattr(args, name) for name in ("device", "seed", *RECORDED)}
    process = context.Process(target=serve_here, args=(spec, theirs, choices), daemon=True)
    process.start()
    theirs.close()
    try:
        said = ours.recv()
        if isinstance(said, ValueError):
            raise said
        yield said
    except EOFError:
        raise RuntimeError(f"the server of --sweep {spec} ended before it began: see above") from None
    finally:
        process.terminate()  # SIGTERM: it drains, and ends in order
        process.join()


def spec(value: str) -> str:
    """--sweep: TARGET or TARGET:DRAFTER."""
    name, colon, by = options.text(value).partition(":")
    known = ("model",) if name in SHAPES else tuple(DRAFTERS)
    if not name or (colon and by.partition(":")[0] not in (*known, "synthetic")):
        raise ArgumentTypeError(f"{value!r}: give TARGET or TARGET:DRAFTER; drafters are {', '.join(known)}")
    return value


# ---- what is sent when ---------------------------------------------------------------------------------------------


def bodies(args, model: str, count: int) -> list[dict]:
    """The requests: prompts in turn, from a file or of random tokens, and a random length for each output."""
    random = Random(f"requests {args.seed}")
    if args.input_tokens or model in SHAPES:  # which were trained on nothing
        span, below = args.input_tokens or INPUT_TOKENS[model], args.vocabulary
        prompts = [[random.randrange(3, below) for _ in range(random.randint(*span))] for _ in range(count)]
    elif args.prompts:
        prompts = [text for _, text in read_texts(args.prompts, None)]
    else:
        prompts = [text for texts in STORIES.values() for text in texts]
    low, high = args.output_tokens
    return [
        {
            "model": model,
            "prompt": prompts[i % len(prompts)],
            "max_tokens": random.randint(low, high),
            "temperature": args.temperature,
            "seed": args.seed + i,
        }
        | ({"ignore_eos": True} if args.ignore_eos else {})
        for i in range(count)
    ]


async def load(endpoint: Endpoint, requests: Sequence[dict], moments: Sequence[float]) -> tuple[list[Answer], float]:
    """Send each request at its moment; the answers, and how many seconds it all took."""
    start = time.perf_counter()

    async def one(body: dict, moment: float) -> Answer:
        await asyncio.sleep(max(0.0, start + moment - time.perf_counter()))
        return await endpoint.complete(body)

    answers = await asyncio.gather(*map(one, requests, moments))
    return answers, time.perf_counter() - start


# ---- the command ---------------------------------------------------------------------------------------------------


def run(args) -> dict:
    if args.input_tokens and args.prompts:
        raise ValueError("give --prompts or --input-tokens, not both")
    for name, span in (("input", args.input_tokens), ("output", args.output_tokens)):
        if span and span[0] > span[1]:
            raise ValueError(f"--{name}-tokens {span[0]} {span[1]}: give the smaller number first")
    targets = {name: getattr(args, f"{name}_target") for name in ("ttft", "tpot", "e2el")}
    targets = {name: most / 1000 for name, most in targets.items() if most is not None}
    servers = []
    for spec in args.sweep or ():
        with started(spec, args) as url:
            servers.append({"server": spec} | asyncio.run(measure(args, Endpoint(url, args.api_key), targets)))
    if not args.sweep:
        servers.append({"server": args.url} | asyncio.run(measure(args, Endpoint(args.url, args.api_key), targets)))
    asked = (*ASKED, *RECORDED) if args.sweep else ASKED
    in_ms = {name: 1000 * most for name, most in targets.items()}
    result = {"benchmark": "serve"} | {name: getattr(args, name) for name in asked}
    return result | {"targets_ms": in_ms, "machine": machine(), "servers": servers}


async def measure(args, endpoint: Endpoint, targets: dict[str, float]) -> dict:
    """One server under every load."""
    rows = []
    try:
        model = args.served_model_name or (await endpoint.models())[0]
    except OSError as error:
        raise ValueError(f"{endpoint.host}:{endpoint.port} does not answer ({error}): start a server there") from None
    for _ in range(2):  # all at once: the batch shrinks through every size, and what is compiled is compiled now
        await load(endpoint, bodies(args, model, args.warmup), [0.0] * args.warmup)
    for rate in args.rate:
        count = max(8, round(rate * args.duration)) if args.duration and rate < math.inf else args.requests
        before = await endpoint.drafted()
        moments = arrivals(count, rate, args.burstiness, args.seed)
        answers, seconds = await load(endpoint, bodies(args, model, count), moments)
        drafts, accepted = (now - then for now, then in zip(await endpoint.drafted(), before, strict=True))
        rows.append(
            {"rate": None if rate == math.inf else rate}
            | summary(answers, seconds, targets)
            | {"acceptance_length": 1 + accepted / drafts if drafts else None}
        )
    return {"model": model, "results": rows}


def offered(result: dict, row: dict) -> float | None:
    """Tokens per second that were asked for, from the first request to the last; None: they all came at once."""
    seconds = arrivals(row["requests"], row["rate"] or math.inf, result["burstiness"], result["seed"])[-1]
    return row["requests"] / seconds * row["tokens"] / row["completed"] if seconds and row["completed"] else None


def at(row: dict) -> str:
    return "all at once" if row["rate"] is None else f"{row['rate']:g}/s"


def section(result: dict) -> Section:
    """A line for each server and rate. The JSON has the other percentiles."""
    servers, rows, notes = result["servers"], [], []
    for server in servers:
        for row in server["results"]:
            wanted, rate = offered(result, row), row["tokens_per_second"]
            line = [server["server"], at(row), f"{row['requests_per_second']:.2f}", shown(row["goodput"])]
            line += [f"{rate:,.0f}", shown(wanted, ",.0f"), ratio(rate, wanted)]
            for name, p in COLUMNS:
                figures = row[f"{name}_ms"]
                line.append(shown(figures and figures[p], ",.1f"))
            rows.append([*line, shown(row["acceptance_length"])])
            if failed := row["requests"] - row["completed"]:
                reasons = "; ".join(row["errors"][:3])[:200]
                notes.append(f"{server['server']}, {at(row)}: {failed} of {row['requests']} requests failed: {reasons}")
    limits = [f"{name.upper()} ≤ {most:g} ms" for name, most in result["targets_ms"].items()]
    good = f" Goodput counts requests with {' and '.join(limits)}." if limits else ""
    models, (low, high) = dict.fromkeys(server["model"] for server in servers), result["output_tokens"]
    last = servers[0]["results"][-1]
    head = ["server", "requests", "completed/s", "goodput/s", "tokens/s", "offered", "tokens/s / offered"]
    head += [f"{name.upper()} {p}, ms" for name, p in COLUMNS]
    return Section(
        f"Requests over time, {', '.join(models)} on {where(result['machine'])}",
        f"Requests arrive over HTTP at a given mean rate (burstiness {result['burstiness']:g}), whether or not earlier "
        f"ones have been answered; each asks for {low} to {high} tokens. Offered are all these tokens, over the time "
        "from the first request to the last: a server that keeps up emits nearly that much, since the last answers "
        f"take a while; in one that does not, the queue grows. Latencies are those of the client.{good}",
        [Table([*head, "mean acceptance length"], rows)],
        Headline(
            f"tokens/s, {servers[0]['server']}, at {at(last)}", last["tokens_per_second"], offered(result, last), ",.0f"
        ),
        notes,
    )


def rate(value: str) -> float:
    """--rate: requests per second, or inf."""
    return math.inf if value == "inf" else options.positive(value)


def add_arguments(parser) -> None:
    add, span = partial(options.add, parser), ("LOW", "HIGH")
    add("url", options.text, "http://127.0.0.1:8000", "of the server", "URL")
    add("api-key", options.text, None, "what the server wants to see", "KEY")
    help = "start servers here instead, one after the other: TARGET or TARGET:DRAFTER, such as smollm2:eagle, or a "
    add("sweep", spec, None, f"{help}shape with random weights ({', '.join(SHAPES)}; :model)", "SERVER", nargs="+")
    options.add_device(parser)
    options.add_draft_length(parser, auto=False, default=None)
    add_epsilon(parser)
    add("max-num-seqs", options.count, 32, "requests that run at once there")
    add("max-num-batched-tokens", options.count, 512, "tokens per step there")
    add("served-model-name", options.text, None, "(default: the first that the server lists)", "NAME")
    rates = "requests per second, one load after the other; inf: all at once"
    add("rate", rate, [1.0], rates, "R", nargs="+")
    add("burstiness", options.positive, 1.0, "1: a Poisson process, less: bursts", "B")
    add("requests", options.count, 64, "per load")
    add("duration", options.positive, None, "instead: as many as arrive in so many seconds", "S")
    add("warmup", options.natural, 2, "warm-up requests, sent together, twice, before what is measured")
    add("prompts", options.text, None, 'JSON lines with "prompt" (default: beginnings of stories)', "FILE")
    add("input-tokens", options.count, None, "prompts of so many random tokens instead", span, nargs=2)
    add("vocabulary", options.count, 500, "upper limit of random token ids")
    add("output-tokens", options.count, [16, 128], "how many to generate, evenly spread", span, nargs=2)
    eos = "go on past end tokens, where the server can (ours, vLLM)"
    parser.add_argument("--ignore-eos", action="store_true", help=eos)
    options.add_temperature(parser)
    for name in ("ttft", "tpot", "e2el"):
        add(f"{name}-target", options.positive, None, f"goodput: {name.upper()} of at most MS ms", "MS")
