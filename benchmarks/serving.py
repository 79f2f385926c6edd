"""A server's tokens per second, beside transformers' continuous batching: half of `python -m benchmarks batch`.

Many requests with prompts and answers of different lengths, all there at once, every answer exactly as long as asked.
Each server is built once and keeps its memory; rounds take turns. The floor is what one pass after another would take
at the bandwidth measured: weights once a pass, and of every row what it remembers.
"""

from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict
from functools import partial
from itertools import product
from random import Random
from statistics import median

from tqdm import tqdm

from minispec import drafters, theory
from minispec.load.handle import Model
from minispec.measure import Timing, median_time, weight_bytes
from minispec.serving.engine import Engine
from minispec.trace import Trace

from . import peers
from .page import NONE, Headline, Section, Table, ratio, shown, spread, without
from .peers import PAGE, Work
from .shapes import kv_bytes

BLOCK = 16  # tokens
PLAIN, DRAFTING, PEER = "minispec", "minispec, drafting", "transformers"


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
    trace = Trace.of(outs[id] for id in ids)
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
            raise RuntimeError(f"{name} did not generate as many tokens as it was asked for")

    for _, name in tqdm(list(product(range(repeat), ways)), leave=False, disable=None):  # on terminals only
        if name in broken:
            continue
        try:
            seconds[name].append(median_time(lambda: serve(name), 1, 0, device).median)  # noqa: B023
        except Exception as error:
            if name != PEER:
                raise
            broken[name] = peers.reason(error)  # what has been measured of ours is not lost
    for name in broken:
        last.pop(name, None), seconds.pop(name)
    return last, seconds, broken


def serving(args, target: Model, draft: Model, hardware: theory.Hardware) -> dict:
    config, size = target.config, target.dtype.itemsize
    work = workload(config.vocab_size, args.requests, args.prompt_lengths, args.output_lengths, args.seed)
    blocks = args.num_blocks or blocks_for(work, args.max_num_seqs, spare=args.k)
    sizes = dict(num_blocks=blocks, block_size=BLOCK, max_num_seqs=args.max_num_seqs)
    options = dict(max_num_batched_tokens=args.token_budget, enable_prefix_caching=False, history=1, **sizes)
    engines = {PLAIN: Engine(target, **options)}
    if args.draft_budget:
        drafter, depth = drafters.Model(draft), dict(k=args.k, draft_budget=args.draft_budget)
        engines[DRAFTING] = Engine(target, drafter, **depth, **options)
    ways: dict[str, Callable[[Work], dict]] = {name: partial(served, engine) for name, engine in engines.items()}
    memory = args.num_blocks * BLOCK if args.num_blocks else blocks_for(work, args.max_num_seqs, PAGE) * PAGE
    # Warms up: one token, two, three …, so that the batch passes through every size. The peer does so in its trial.
    short = [(prompt[:BLOCK], min(new, 1 + row)) for row, (prompt, new) in enumerate(work[: args.max_num_seqs])]
    for way in ways.values():
        way(short)
    limits = (args.max_num_seqs, memory, args.token_budget)
    server, skipped = peers.continuous_batching(args.peers, target, work, *limits)
    peer = None
    with closing(server) if server else nullcontext():
        if server:
            ways[PEER], peer = lambda some: {"texts": server.serve(some)}, server.facts()
        last, seconds, broken = in_turn(ways, work, args.repeat, target.device)
    for engine in engines.values():
        engine.shutdown()

    tokens = sum(new for _, new in work)
    floor = floor_seconds(hardware, weight_bytes(target), kv_bytes(config, size), size, work, args.max_num_seqs)
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
        "skipped": skipped | broken,
        "results": results,
    }


def section(part: dict) -> Section:
    best, rows = part["floor_tokens_per_second"], []
    for name, row in part["results"].items():
        rate = row["tokens_per_second"]
        over = spread(row["over_peer"], 1) if row["over_peer"] else NONE
        bound = [f"{best:,.0f}", ratio(rate["median"], best)]
        rows.append([name, spread(rate, 1, 0, ","), *bound, over, shown(row.get("acceptance"))])
    (low, high), (least, most), peer = part["prompt_lengths"], part["output_lengths"], part["peer"]
    notes = without(part["skipped"])
    if peer:
        notes.append(
            f"transformers {peer['transformers']}: continuous batching of {peer['max_num_seqs']} at a time, "
            f"{peer['attention']} attention, {'' if any(peer['cuda_graphs']) else 'no '}CUDA graphs, "
            f"{'' if peer['compiled'] else 'not '}compiled."
        )
    first, row = next(iter(part["results"].items()))
    return Section(
        "",
        f"Serving: {part['requests']} requests of {low} to {high} tokens, {least} to {most} to generate after each, "
        f"{part['max_num_seqs']} at a time. Predicted is plain decoding at best: the weights once per pass, and "
        "the cache of every sequence.",
        [Table(["serving", "tokens/s", "predicted", "measured / predicted", "× transformers", "α"], rows)],
        Headline(f"tokens/s, {first}", row["tokens_per_second"]["median"], best, ",.0f"),
        notes,
    )
