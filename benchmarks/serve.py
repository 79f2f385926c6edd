"""Load on an OpenAI-compatible server, ours or another, as its clients see it.

The load, its words and its figures are those of minispec_course/labs/load.py.

--sweep starts servers of ours for this, one after the other (own_server.py), with the same load for each: the curve of
latency against load, with and without speculation.
"""

from __future__ import annotations

import asyncio
import math
import textwrap
import time
from collections.abc import Sequence
from random import Random

from minispec.cli import options
from minispec.measure import machine, place
from minispec_course.labs.load import Answer, arrivals, summary
from minispec_course.labs.prompts import STORIES, read_texts

from . import own_server
from .client import Endpoint

WITHOUT_MODEL = True
COLUMNS = [
    ("ttft", "p50", 8),
    ("ttft", "p99", 7),
    ("tpot", "p50", 8),
    ("tpot", "p99", 7),
    ("itl", "p99", 8),
    ("e2el", "p99", 9),
]  # of the table, and their widths


# ---- what is sent when ---------------------------------------------------------------------------------------------


def bodies(args, model: str, count: int) -> list[dict]:
    """The requests: prompts in turn, from a file or of random tokens, and a random length for each output."""
    random = Random(f"requests {args.seed}")
    if args.input_tokens or model in own_server.SHAPES:  # which were trained on nothing
        low, high = args.input_tokens or own_server.INPUT_TOKENS[model]
        prompts = [
            [random.randrange(3, args.vocabulary) for _ in range(random.randint(low, high))] for _ in range(count)
        ]
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
    if args.sweep:
        for spec in args.sweep:
            with own_server.started(spec, args) as url:
                servers.append({"server": spec} | asyncio.run(measure(args, url, targets)))
    else:
        servers.append({"server": args.url} | asyncio.run(measure(args, args.url, targets)))
    result = {
        "benchmark": "serve",
        "burstiness": args.burstiness,
        "seed": args.seed,
        "temperature": args.temperature,
        "output_tokens": args.output_tokens,
        "ignore_eos": args.ignore_eos,
        "warmup": args.warmup,
        "requests": args.requests,
        "duration": args.duration,
        "targets_ms": {name: 1000 * most for name, most in targets.items()},
        "machine": machine(),
        "servers": servers,
    }
    return result | ({name: getattr(args, name) for name in own_server.RECORDED} if args.sweep else {})


async def measure(args, url: str, targets: dict[str, float]) -> dict:
    """One server under every load."""
    endpoint, rows = Endpoint(url, args.api_key), []
    try:
        model = args.served_model_name or (await endpoint.models())[0]
    except OSError as error:
        raise ValueError(f"url={url!r} does not answer ({error}): start a server there") from None
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


def text(result: dict) -> str:
    """Tables for a terminal, 80 columns: one for each server, a line for each rate. JSON has the other percentiles."""
    targets = ", ".join(f"{name.upper()} ≤ {most:g} ms" for name, most in result["targets_ms"].items())
    about = f"asked from {place(result['machine'])}; latencies in ms; "
    about += f"goodput counts requests with {targets}" if targets else "no targets were given for goodput"
    lines = textwrap.wrap(about, 80)
    for server in result["servers"]:
        lines += ["", f"{server['model']} at {server['server']}" if "://" in server["server"] else server["server"]]
        lines += table(server["results"])
    return "\n".join(lines)


def table(rows: Sequence[dict]) -> list[str]:
    lines = [f"{'':<33}{'TTFT':>15}{'TPOT':>15}{'ITL':>8}{'E2EL':>9}"]
    lines.append(
        f"{'rate':>5}{'done':>7}{'req/s':>7}{'good/s':>7}{'tok/s':>7}"
        + f"{'p50':>8}{'p99':>7}" * 2
        + f"{'p99':>8}{'p99':>9}"
    )
    for row in rows:
        rate = "all" if row["rate"] is None else f"{row['rate']:g}"
        good = "–" if row["goodput"] is None else f"{row['goodput']:.2f}"
        line = f"{rate:>5}{row['completed']:>7}{row['requests_per_second']:>7.2f}{good:>7}"
        line += f"{row['tokens_per_second']:>7.0f}"
        for name, p, width in COLUMNS:
            figures = row[f"{name}_ms"]
            line += f"{figures[p]:>{width}.1f}" if figures else f"{'–':>{width}}"
        lines.append(line)
    errors = sorted({error for row in rows for error in row["errors"]})
    return [*lines, *(f"error: {error}"[:200] for error in errors[:3])]


def rate(value: str) -> float:
    """--rate: requests per second, or inf."""
    return math.inf if value == "inf" else options.positive(value)


def add_arguments(parser) -> None:
    add = parser.add_argument
    add("--url", type=options.text, default="http://127.0.0.1:8000", metavar="URL", help="(default: %(default)s)")
    add("--api-key", type=options.text, metavar="KEY", help="what the server wants to see")
    own_server.add_arguments(parser)
    add("--served-model-name", type=options.text, metavar="NAME", help="(default: the first that the server lists)")
    add(
        "--rate",
        type=rate,
        nargs="+",
        default=[1.0],
        metavar="R",
        help="requests per second, one load after the other; inf: all at once (default: 1)",
    )
    add(
        "--burstiness",
        type=options.positive,
        default=1.0,
        metavar="B",
        help="1: a Poisson process, less: bursts (default: %(default)s)",
    )
    add("--requests", type=options.count, default=64, metavar="N", help="per load (default: %(default)s)")
    add("--duration", type=options.positive, metavar="S", help="instead: as many as arrive in so many seconds")
    add(
        "--warmup",
        type=options.natural,
        default=2,
        metavar="N",
        help="sent twice before, all at once, not counted (default: %(default)s)",
    )
    add("--prompts", metavar="FILE", help='JSON lines with "prompt" (default: beginnings of stories)')
    add(
        "--input-tokens",
        type=options.count,
        nargs=2,
        metavar=("LOW", "HIGH"),
        help="prompts of so many random tokens instead",
    )
    add(
        "--vocabulary",
        type=options.count,
        default=500,
        metavar="N",
        help="random tokens are below this (default: %(default)s)",
    )
    add(
        "--output-tokens",
        type=options.count,
        nargs=2,
        default=[16, 128],
        metavar=("LOW", "HIGH"),
        help="how many to generate, evenly spread (default: 16 128)",
    )
    add("--ignore-eos", action="store_true", help="go on past end tokens, where the server can (ours, vLLM)")
    options.add_temperature(parser)
    for name in ("ttft", "tpot", "e2el"):
        add(f"--{name}-target", type=options.positive, metavar="MS", help=f"goodput: {name.upper()} of at most MS ms")
