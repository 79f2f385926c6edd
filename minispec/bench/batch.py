"""A server's tokens per second, beside transformers' continuous batching; and at which batch size drafts stop paying.

Serving: many requests with prompts and answers of different lengths, all there at once, every answer exactly as long as
asked. Each server is built once and keeps its memory; rounds take turns. The floor is what one pass after another would
take at the bandwidth measured: weights once a pass, and of every row what it remembers.

Speculation: full batches of 1, 2, 4 … rows, each row after the same number of tokens, the engine with drafts against
the engine without. Only steps count in which all rows write and all draft k deep. Two predictions stand beside the
speed-up: the formula with c and v as those steps had them, and the roofline, which knows nothing but α, the model's
shape, the bandwidth and the FLOP/s. Where a curve falls below 1 is its crossover.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict
from functools import partial
from random import Random
from statistics import median

import torch
from tqdm import tqdm

from .. import drafters, theory
from ..demo import place
from ..engine import Engine
from ..measure import Timing, flops, interleaved_times, undisturbed, weight_bytes
from ..metrics import StepMetrics
from ..trace import Trace
from ..weights import Model
from . import pairs, peers
from .peers import PAGE, SERVERS, Work

WITHOUT_MODEL = True
BLOCK = 16  # tokens
PLAIN, DRAFTING, PEER = "minispec", "minispec, drafting", "transformers"
PARTS = ("serving", "speculation")
DEFAULTS = {  # by shape; the toy's take seconds on a CPU
    "8b": dict(requests=256, prompt_lengths=[100, 1024], output_lengths=[100, 1024], max_num_seqs=128,
               token_budget=2048, sizes=[1, 2, 4, 8, 16, 32, 64, 128], context=500, tokens=64),
    "toy": dict(requests=12, prompt_lengths=[10, 60], output_lengths=[10, 40], max_num_seqs=6,
                token_budget=64, sizes=[1, 2, 4], context=50, tokens=24),
}  # fmt: skip


# ---- serving ---------------------------------------------------------------------------------------------------------


def workload(
    vocab_size: int, count: int, prompt_lengths: Sequence[int], output_lengths: Sequence[int], seed: int = 0
) -> list[tuple[list[int], int]]:
    """Random prompts and how much to write after each, both lengths uniform between their bounds, these included."""
    random = Random(seed)
    lengths = [(random.randint(*prompt_lengths), random.randint(*output_lengths)) for _ in range(count)]
    return [([random.randrange(vocab_size) for _ in range(prompt)], output) for prompt, output in lengths]


def blocks_for(work: Work, rows: int, block: int = BLOCK, spare: int = 0) -> int:
    """Enough that any `rows` of the requests fit at the same time: the largest do. `spare`: slots for drafts."""
    return sum(sorted((-(-(len(prompt) + new + spare) // block) for prompt, new in work), reverse=True)[:rows])


def floor_seconds(hardware: theory.Hardware, weights: int, kept: float, size: int, work: Work, rows: int) -> float:
    """Plain decoding of all requests at best, `rows` at a time: no pass gives a row more than one token.

    `weights` and `kept` (by a token) are bytes, `size` the bytes of one weight. The prompts cost arithmetic alone: they
    ride along in passes that read the weights anyway.
    """
    longest, tokens = max(new for _, new in work), sum(new for _, new in work)
    passes = max(longest, -(-tokens // rows))
    remembered = sum(len(prompt) * new + new * (new - 1) // 2 for prompt, new in work)  # by the row, at each token
    read = passes * weights + remembered * kept
    computed = theory.pass_flops(weights / size, tokens=tokens + sum(len(prompt) for prompt, _ in work))
    return theory.roofline_time(read, computed, hardware)


def served(engine: Engine, work: Work) -> dict:
    """All requests by an engine that may have served others before."""
    before = engine.metrics()["totals"]
    ids = [engine.add(prompt, new) for prompt, new in work]
    outs, after = engine.run(), engine.metrics()["totals"]
    trace = Trace([cycle for id in ids if outs[id].trace for cycle in outs[id].trace.cycles])
    seconds = {part: spent - before["seconds"][part] for part, spent in after["seconds"].items()}
    return {
        "texts": [outs[id].tokens for id in ids],
        "steps": after["steps"] - before["steps"],
        "preemptions": after["preemptions"] - before["preemptions"],
        "acceptance": trace.acceptance_rate if after["drafted"] > before["drafted"] else None,
        "parts": {part: spent / sum(seconds.values()) for part, spent in seconds.items()},
    }


def in_turn(
    ways: dict[str, Callable[[Work], dict]], work: Work, repeat: int, device
) -> tuple[dict[str, dict], dict[str, list[float]], dict[str, str]]:
    """Each way's last result, its seconds in every round, and why the peer is missing if it broke down on the way."""
    last, seconds, broken = {}, {name: [] for name in ways}, {}

    def serve(name: str) -> None:
        last[name] = ways[name](work)
        if [len(text) for text in last[name]["texts"]] != [new for _, new in work]:
            raise RuntimeError(f"{name} did not write as many tokens as it was asked for")

    with tqdm(total=repeat * len(ways), leave=False, disable=None) as bar:  # on terminals only
        for _ in range(repeat):
            for name in [name for name in ways if name not in broken]:
                try:
                    timing = interleaved_times({name: lambda: serve(name)}, 1, 0, device)[name]  # noqa: B023
                except Exception as error:
                    if name != PEER:
                        raise
                    broken[name] = peers.reason(error)  # what has been measured of ours is not lost
                    continue
                seconds[name].append(timing.median)
                bar.update()
    for name in broken:
        last.pop(name, None), seconds.pop(name)
    return last, seconds, broken


def serving(args, target: Model, draft: Model, hardware: theory.Hardware) -> dict:
    config, size = target.config, target.dtype.itemsize
    work = workload(config.vocab_size, args.requests, args.prompt_lengths, args.output_lengths, args.seed)
    blocks = args.num_blocks or blocks_for(work, args.max_num_seqs, spare=args.k)
    options = dict(num_blocks=blocks, block_size=BLOCK, max_num_seqs=args.max_num_seqs, token_budget=args.token_budget,
                   prefix_sharing=False, history=1)  # fmt: skip
    engines = {PLAIN: Engine(target, **options)}
    if args.draft_budget:
        drafter, depth = drafters.Model(draft), dict(k=args.k, draft_budget=args.draft_budget)
        engines[DRAFTING] = Engine(target, drafter, **depth, **options)
    ways: dict[str, Callable[[Work], dict]] = {name: partial(served, engine) for name, engine in engines.items()}
    peer_rows = args.peer_seqs or [args.max_num_seqs]
    memory = args.num_blocks * BLOCK if args.num_blocks else blocks_for(work, max(peer_rows), PAGE) * PAGE
    # Warms up: one token, two, three …, so that the batch passes through every size. The peer does so in its trial.
    short = [(prompt[:BLOCK], min(new, 1 + row)) for row, (prompt, new) in enumerate(work[: args.max_num_seqs])]
    for way in ways.values():
        way(short)
    server, trials, skipped = peers.continuous_batching(args.peers, peer_rows, target, work, memory, args.token_budget)
    peer = None
    with closing(server) if server else nullcontext():
        if server:
            ways[PEER], peer = lambda some: {"texts": server.serve(some)}, server.facts()
        last, seconds, broken = in_turn(ways, work, args.repeat, target.device)
    for engine in engines.values():
        engine.shutdown()

    tokens = sum(new for _, new in work)
    kept = theory.kv_bytes_per_token(config.num_layers, config.num_kv_heads, config.head_dim, size)
    floor = floor_seconds(hardware, weight_bytes(target), kept, size, work, args.max_num_seqs)
    results, texts = {}, {name: way.pop("texts") for name, way in last.items()}
    for name, taken in seconds.items():
        ratios = [theirs / ours for ours, theirs in zip(taken, seconds.get(PEER, taken), strict=True)]
        results[name] = {
            "tokens_per_second": asdict(Timing.of(taken).rate(tokens)),
            "of_floor": floor / median(taken),
            "over_peer": asdict(Timing.of(ratios)) if PEER in seconds else None,
            "same_texts": sum(a == b for a, b in zip(texts[name], texts[PLAIN], strict=True)),
            **last[name],
        }
    return {
        "requests": len(work),
        "prompt_lengths": list(args.prompt_lengths),
        "output_lengths": list(args.output_lengths),
        "prompt_tokens": sum(len(prompt) for prompt, _ in work),
        "tokens": tokens,
        "max_num_seqs": args.max_num_seqs,
        "token_budget": args.token_budget,
        "draft_budget": args.draft_budget,
        "num_blocks": blocks,
        "block_size": BLOCK,
        "floor_seconds": floor,
        "floor_tokens_per_second": tokens / floor,
        "peer": peer,
        "trials": trials,
        "skipped": skipped | broken,
        "results": results,
    }


# ---- speculation -----------------------------------------------------------------------------------------------------


def full_batch(
    engine: Engine, prompts: Sequence[Sequence[int]], new_tokens: int, k: int, temperature: float = 0.0, seed: int = 0
) -> tuple[list[StepMetrics], list[list[int]], Trace]:
    """The steps in which every row writes, k deep drafts and all; the texts; and what became of all drafts.

    The prompts are read in a first go, a few at a time, and shared by the second, which so begins everywhere at once.
    """
    for prompt in prompts:
        engine.add(prompt, 1, k=0)
    engine.run()
    ids = [engine.add(prompt, new_tokens, temperature=temperature, seed=seed + row)
           for row, prompt in enumerate(prompts)]  # fmt: skip
    steps = []
    while engine.jobs:
        steps.append(engine.step())
    outs = engine.take()
    full = [step for step in steps if step.drafted == k * len(prompts) and len(step.rows) == len(prompts)
            and all(row.phase != "prefill" for row in step.rows)]  # fmt: skip
    trace = Trace([cycle for id in ids if outs[id].trace for cycle in outs[id].trace.cycles])
    return full[1:], [outs[id].tokens for id in ids], trace  # in the first of them the draft reads the prompts


def mean(steps: Sequence[StepMetrics], *parts: str) -> float:
    """Seconds of a step, or of some of its parts."""
    return sum(step.seconds[part] for step in steps for part in parts or step.seconds) / len(steps)


def crossover(sizes: Sequence[int], speedups: Sequence[float]) -> float | None:
    """The batch size from which on drafts do not pay: where the curve first falls below 1, straight in log₂ of the size
    between two that were measured. The smallest size if it begins below 1; None if it never is.
    """
    points = list(zip(sizes, speedups, strict=True))
    for i, (size, speedup) in enumerate(points):
        if speedup < 1:
            if i == 0:
                return float(size)
            before, above = points[i - 1]
            return before * (size / before) ** ((above - 1) / (above - speedup))
    return None


def roofline(hardware: theory.Hardware, target: Model, draft: Model, alpha: float, k: int, batch: int, context: int):
    """The speed-up that α, two shapes, bandwidth and FLOP/s promise."""

    def seconds(model: Model, tokens: int) -> float:
        config, size = model.config, model.dtype.itemsize
        kept = theory.kv_bytes_per_token(config.num_layers, config.num_kv_heads, config.head_dim, size)
        return theory.pass_time(
            hardware, weight_bytes(model) / size, batch, tokens, context, size, kept,
            config.num_layers * config.num_heads * config.head_dim,
        )  # fmt: skip

    plain = seconds(target, 1)
    return theory.speedup(alpha, k, seconds(draft, 1) / plain, seconds(target, k + 1) / plain)


def speculation(args, target: Model, draft: Model, hardware: theory.Hardware) -> dict:
    sizes, k = sorted(set(args.sizes)), args.k
    most = sizes[-1]
    prompts = [pairs.prompt_of(target.config, args.context, args.seed + row) for row in range(most)]
    blocks = blocks_for([(prompt, args.tokens) for prompt in prompts], most, spare=k)
    # A step may read what of each prompt is not shared, less than a block of it, or a token of each row and its drafts.
    options = dict(num_blocks=blocks, block_size=BLOCK, max_num_seqs=most,
                   token_budget=max(args.token_budget, most * max(BLOCK, k + 1)), history=1)  # fmt: skip
    engines = {
        0: Engine(target, **options),
        k: Engine(target, drafters.Model(draft), k=k, draft_budget=most * k, **options),
    }
    rows = []
    for size in tqdm(sizes, leave=False, disable=None):
        rounds, trace = [], Trace()
        for turn in range(args.repeat + 1):
            seed = args.seed + size * turn
            with undisturbed():
                lap = {depth: full_batch(engine, prompts[:size], args.tokens, depth, args.temperature, seed)
                       for depth, engine in engines.items()}  # fmt: skip
            if turn:  # the first round only warms up
                (plain, texts, _), (deep, same, cycles) = lap[0], lap[k]
                one, cycle, drafting = mean(plain), mean(deep), mean(deep, "drafting")
                tokens = sum(step.emitted for step in deep) / len(deep)
                rounds.append((size / one, tokens / cycle, tokens / size * one / cycle, drafting / one / k,
                               (cycle - drafting) / one, tokens / size))  # fmt: skip
                trace.cycles += cycles.cycles
        plain_rate, rate, speedup, c, v, tokens = (Timing.of(column) for column in zip(*rounds, strict=True))
        alpha = trace.acceptance_rate
        rows.append(
            {
                "batch": size,
                "plain_tokens_per_second": asdict(plain_rate),
                "tokens_per_second": asdict(rate),
                "speedup": asdict(speedup),
                "steps": [len(lap[0][0]), len(lap[k][0])],
                "acceptance": alpha,
                "tokens_per_cycle": tokens.median,
                "c": c.median,
                "v": v.median,
                "predicted_speedup": theory.speedup(alpha, k, c.median, v.median),
                "roofline_speedup": roofline(hardware, target, draft, alpha, k, size, args.context),
                "same_texts": sum(a == b for a, b in zip(texts, same, strict=True)) if not args.temperature else None,
            }
        )
    for engine in engines.values():
        engine.shutdown()
    curves = {
        "measured": [row["speedup"]["median"] for row in rows],
        "predicted": [row["predicted_speedup"] for row in rows],
        "roofline": [row["roofline_speedup"] for row in rows],
    }
    return {
        "new_tokens": args.tokens,
        "temperature": args.temperature,
        "crossover": {name: crossover(sizes, curve) for name, curve in curves.items()},
        "results": rows,
    }


# ---- the command -----------------------------------------------------------------------------------------------------


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
    for name in ("requests", "max_num_seqs", "token_budget", "k", "repeat"):
        if getattr(args, name) < 1:
            raise ValueError(f"{name}={getattr(args, name)}: give a whole number ≥ 1")
    for name in ("sizes", "peer_seqs"):
        if min(getattr(args, name) or [1]) < 1:
            raise ValueError(f"{name}={getattr(args, name)}: give numbers of requests at a time, each ≥ 1")
    for name in ("prompt_lengths", "output_lengths"):
        low, high = getattr(args, name)
        if not 1 <= low <= high:
            raise ValueError(f"{name}={[low, high]}: give the least and the greatest length, from 1 on")
    if args.token_budget < args.max_num_seqs:
        raise ValueError(f"token_budget={args.token_budget}: give at least max_num_seqs={args.max_num_seqs}, "
                         "a token for each row")  # fmt: skip
    longest = args.prompt_lengths[1] + args.output_lengths[1]
    if args.num_blocks is not None and args.num_blocks * BLOCK < longest:
        raise ValueError(f"num_blocks={args.num_blocks}: blocks of {BLOCK} tokens must hold one request at least, "
                         f"up to {longest} tokens")  # fmt: skip
    if args.tokens < 2 * args.k + 3:
        raise ValueError(f"tokens={args.tokens}: two cycles of k={args.k} must fit, give at least {2 * args.k + 3}")
    config = pairs.check(args, args.tokens + args.k)
    if longest > config.max_length:
        raise ValueError(f"prompt_lengths={args.prompt_lengths}, output_lengths={args.output_lengths}: the shape "
                         f"{args.shape!r} remembers {config.max_length} tokens, give shorter ones")  # fmt: skip


def text(result: dict) -> str:
    """The tables for a terminal, 80 columns."""
    lines = textwrap.wrap(
        f"{result['shape']} in {result['dtype']}, ε = {result['epsilon']:g}, k = {result['k']}; medians of "
        f"{result['repeat']} rounds (quartiles) on {place(result['machine'])}; "
        f"{result['bandwidth']['median'] / 1e9:,.0f} GB/s read, {result['flops'] / 1e12:,.3g} TFLOP/s", 80,
    )  # fmt: skip
    if result["serving"]:
        lines += ["", *serving_text(result["serving"])]
    if result["speculation"]:
        lines += ["", *speculation_text(result["speculation"], result["context"])]
    return "\n".join(lines)


def serving_text(result: dict) -> list[str]:
    (low, high), (least, most) = result["prompt_lengths"], result["output_lengths"]
    lines = textwrap.wrap(
        f"{result['requests']} requests of {low}–{high} tokens, {least}–{most} to write after each, "
        f"{result['tokens']:,} in all; {result['max_num_seqs']} at a time in {result['num_blocks']:,} blocks of "
        f"{result['block_size']}; plain decoding at best {result['floor_tokens_per_second']:,.0f} tokens/s", 80,
    )  # fmt: skip
    lines += ["", f"{'':<19}{'tokens/s':>25}{'of best':>9}{'× transformers':>20}{'α':>7}"]
    for name, row in result["results"].items():
        rate = "{median:,.0f} ({low:,.0f}–{high:,.0f})".format(**row["tokens_per_second"])
        ratio = pairs.spread(row["over_peer"], 1) if row["over_peer"] else "–"
        alpha = "–" if row.get("acceptance") is None else f"{row['acceptance']:.2f}"
        lines.append(f"{name:<19}{rate:>25}{row['of_floor']:>9.1%}{ratio:>20}{alpha:>7}")
    if peer := result["peer"]:
        best = f", the quickest of {len(result['trials'])}" if result["trials"] else ""
        graphs = "CUDA graphs" if any(peer["cuda_graphs"]) else "no CUDA graphs"
        lines += textwrap.wrap(
            f"transformers {peer['transformers']}: continuous batching of {peer['max_num_seqs']} at a time, "
            f"{peer['attention']} attention, {graphs}, {'' if peer['compiled'] else 'not '}compiled{best}", 80,
        )  # fmt: skip
    for name, reason in result["skipped"].items():
        lines += textwrap.wrap(f"without {name}: {reason}", 80)
    return lines


def speculation_text(result: dict, context: int) -> list[str]:
    how = f"temperature {result['temperature']:g}" if result["temperature"] else "greedy"
    lines = [f"Full batches after {context} tokens, {how}, with drafts against without", ""]
    lines += [f"{'rows':>4}{'plain/s':>10}{'drafting/s':>12}{'α':>6}{'c':>6}{'v':>6}{'speed-up':>18}{'formula':>9}"
              f"{'roofline':>9}"]  # fmt: skip
    for row in result["results"]:
        rates = [row[key]["median"] for key in ("plain_tokens_per_second", "tokens_per_second")]
        lines.append(f"{row['batch']:>4}{rates[0]:>10,.0f}{rates[1]:>12,.0f}{row['acceptance']:>6.2f}{row['c']:>6.2f}"
                     f"{row['v']:>6.2f}{pairs.spread(row['speedup'], 1):>18}{row['predicted_speedup']:>9.2f}"
                     f"{row['roofline_speedup']:>9.2f}")  # fmt: skip
    most = result["results"][-1]["batch"]
    said = {name: f"none up to {most}" if at is None else f"{at:.0f} rows" for name, at in result["crossover"].items()}
    return [*lines, "", *textwrap.wrap(f"Crossover: {said['measured']} measured, {said['predicted']} by the formula, "
                                       f"{said['roofline']} by the roofline", 80)]  # fmt: skip


def add_arguments(parser) -> None:
    standard = DEFAULTS["8b"]
    parser.add_argument("--shape", choices=pairs.SHAPES, default="8b", help="of the target (default: %(default)s)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure (default: both)"
    )
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="rounds (default: %(default)s)")
    parser.add_argument("--k", type=int, default=4, help="drafts a cycle (default: %(default)s)")
    parser.add_argument("--epsilon", type=float, default=0.05, metavar="ε", help="damping (default: %(default)s)")
    names = {
        "requests": "to serve", "max_num_seqs": "requests at a time", "token_budget": "tokens a pass, of both servers",
        "context": "tokens before, for the full batches", "tokens": "to write in the full batches",
    }  # fmt: skip
    for name, meaning in names.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, metavar="N",
                            help=f"{meaning} (default: {standard[name]})")  # fmt: skip
    for name in ("prompt_lengths", "output_lengths"):
        parser.add_argument("--" + name.replace("_", "-"), type=int, nargs=2, metavar="N",
                            help="the least and the greatest (default: {} {})".format(*standard[name]))  # fmt: skip
    sizes = " ".join(map(str, standard["sizes"]))
    parser.add_argument("--sizes", type=int, nargs="+", metavar="N",
                        help=f"rows of the full batches (default: {sizes})")  # fmt: skip
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="in the full batches (default: 0)")
    parser.add_argument("--num-blocks", type=int, metavar="N", help="of both servers (default: all at a time fit)")
    parser.add_argument("--draft-budget", type=int, default=64, metavar="N",
                        help="drafts a step while serving, 0: serve without (default: %(default)s)")  # fmt: skip
    every = list(SERVERS) if torch.cuda.is_available() else ["default"]
    parser.add_argument("--peers", nargs="*", choices=SERVERS, default=every, metavar="NAME",
                        help=f"ways to run transformers, of which the quickest counts: {', '.join(SERVERS)} "
                        f"(default: {' '.join(every)})")  # fmt: skip
    parser.add_argument("--peer-seqs", type=int, nargs="+", metavar="N",
                        help="requests at a time there (default: as here)")  # fmt: skip
