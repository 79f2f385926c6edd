"""A server's tokens per second, and the batch size at which drafts stop paying.

Serving: many requests with prompts and answers of different lengths, all there at once, every answer exactly as long as
asked. Each engine is built once and keeps its memory; rounds take turns. The floor is what one pass after another would
take at the bandwidth measured: the weights once per pass, and the cache of every sequence.

Speculation: full batches of 1, 2, 4 … sequences, each after the same number of tokens, the engine with drafts against
the engine without. Only steps count in which all sequences emit and all draft k deep. Two predictions stand beside the
speed-up: the formula with c and v as those steps had them, and the roofline, which is given nothing but α, the model's
shape, the bandwidth and the FLOP/s. Where a curve falls below 1 is its crossover.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from random import Random
from statistics import median

from tqdm import tqdm

from minispec import drafters, theory
from minispec.load.model import Model
from minispec.measure import Timing, flops, median_time, undisturbed, weight_bytes, where
from minispec.model import Config
from minispec.serving.engine import Engine
from minispec.serving.metrics import StepRecord
from minispec.trace import Trace
from minispec_course.labs.presets import attention
from minispec_course.labs.presets import seconds as pass_seconds

from ..cli import options
from . import shapes
from .page import Headline, Section, Table, decoding, ratio, shown, spread
from .shapes import LAYERS, SHAPES, itemsize, prompt_of

WITHOUT_MODEL = True
PARTS = ("serving", "speculation")
Work = Sequence[tuple[Sequence[int], int]]  # prompts, and how many tokens to write after each

# ---- serving ----

BLOCK = 16  # tokens
PLAIN, DRAFTING = "minispec", "minispec, drafting"


def workload(
    vocab_size: int, count: int, prompt_lengths: Sequence[int], output_lengths: Sequence[int], seed: int = 0
) -> list[tuple[list[int], int]]:
    """Random prompts and how much to write after each, both lengths uniform between their bounds, these included."""
    random = Random(seed)
    lengths = [(random.randint(*prompt_lengths), random.randint(*output_lengths)) for _ in range(count)]
    return [([random.randrange(vocab_size) for _ in range(prompt)], output) for prompt, output in lengths]


def blocks_for(work: Work, rows: int, spare: int = 0) -> int:
    """Enough that any `rows` of the requests fit at the same time: the largest do. `spare`: slots for drafts."""
    return sum(sorted((-(-(len(prompt) + new + spare) // BLOCK) for prompt, new in work), reverse=True)[:rows])


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
    """All requests by an engine that may have served others before, each as long as asked."""
    before = engine.metrics()["totals"]
    ids = [engine.add(prompt, new) for prompt, new in work]
    outs, after = engine.run(), engine.metrics()["totals"]
    assert [len(outs[id].tokens) for id in ids] == [new for _, new in work], "an output has another length"
    trace = Trace.of(outs[id] for id in ids)
    seconds = {part: spent - before["seconds"][part] for part, spent in after["seconds"].items()}
    return {
        "texts": [outs[id].tokens for id in ids],
        "steps": after["steps"] - before["steps"],
        "preemptions": after["preemptions"] - before["preemptions"],
        "acceptance": trace.acceptance_rate if after["drafted"] > before["drafted"] else None,
        "parts": {part: spent / sum(seconds.values()) for part, spent in seconds.items()},
    }


def serving(args, target: Model, draft: Model, hardware: theory.Hardware) -> dict:
    config, size = target.config, target.dtype.itemsize
    work = workload(config.vocab_size, args.requests, args.prompt_lengths, args.output_lengths, args.seed)
    blocks = blocks_for(work, args.max_num_seqs, spare=args.k)
    sizes = dict(num_blocks=blocks, block_size=BLOCK, max_num_seqs=args.max_num_seqs)
    options = dict(max_num_batched_tokens=args.token_budget, enable_prefix_caching=False, history=1, **sizes)
    engines = {PLAIN: Engine(target, **options)}
    if args.draft_budget:
        drafter, depth = drafters.Model(draft), dict(k=args.k, draft_budget=args.draft_budget)
        engines[DRAFTING] = Engine(target, drafter, **depth, **options)
    # Warms up: one token, two, three …, so that the batch passes through every size.
    short = [(prompt[:BLOCK], min(new, 1 + row)) for row, (prompt, new) in enumerate(work[: args.max_num_seqs])]
    for engine in engines.values():
        served(engine, short)
    last, seconds = {}, {name: [] for name in engines}
    for _, name in tqdm(list(product(range(args.repeat), engines)), leave=False, disable=None):  # on terminals only
        serve = lambda: last.update({name: served(engines[name], work)})  # noqa: B023, E731
        seconds[name].append(median_time(serve, 1, 0, target.device).median)
    for engine in engines.values():
        engine.shutdown()

    tokens = sum(new for _, new in work)
    floor = floor_seconds(hardware, weight_bytes(target), attention(config, size)[0], size, work, args.max_num_seqs)
    results, texts = {}, {name: way.pop("texts") for name, way in last.items()}
    for name, taken in seconds.items():
        results[name] = {
            "tokens_per_second": asdict(Timing.of(taken).rate(tokens)),
            "of_floor": floor / median(taken),
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
        "results": results,
    }


def serving_section(part: dict) -> Section:
    best, rows = part["floor_tokens_per_second"], []
    for name, row in part["results"].items():
        rate = row["tokens_per_second"]
        bound = [f"{best:,.0f}", ratio(rate["median"], best)]
        rows.append([name, spread(rate, 1, 0, ","), *bound, shown(row["acceptance"])])
    (low, high), (least, most) = part["prompt_lengths"], part["output_lengths"]
    first, row = next(iter(part["results"].items()))
    return Section(
        "",
        f"Serving: {part['requests']} requests of {low} to {high} tokens, {least} to {most} to generate after each, "
        f"{part['max_num_seqs']} at a time. Predicted is the bound for plain decoding: reading the weights once per "
        "pass, and the cache of every sequence.",
        [Table(["serving", "tokens/s", "predicted", "measured / predicted", "α"], rows)],
        Headline(f"tokens/s, {first}", row["tokens_per_second"]["median"], best, ",.0f"),
    )


# ---- full batches ----


def full_batch(
    engine: Engine, prompts: Sequence[Sequence[int]], new_tokens: int, k: int, temperature: float = 0.0, seed: int = 0
) -> tuple[list[StepRecord], list[list[int]], Trace]:
    """The steps in which every row writes, k deep drafts and all; the texts; and what became of all drafts.

    The prompts are read in a first go, a few at a time, and shared by the second, which so begins everywhere at once.
    """
    for prompt in prompts:
        engine.add(prompt, 1, k=0)
    engine.run()
    ids = [
        engine.add(prompt, new_tokens, temperature=temperature, seed=seed + row) for row, prompt in enumerate(prompts)
    ]
    steps = []
    while engine.sequences:
        steps.append(engine.step())
    outs = engine.take()
    rows = len(prompts)
    deep = [step for step in steps if step.drafted == k * rows and len(step.rows) == rows]
    full = [step for step in deep if all(row.phase != "prefill" for row in step.rows)]
    trace = Trace.of(outs[id] for id in ids)
    return full[1:], [outs[id].tokens for id in ids], trace  # in the first of them the draft reads the prompts


def mean(steps: Sequence[StepRecord], *parts: str) -> float:
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


def roofline(
    hardware: theory.Hardware, target: Config, size: int, alpha: float, k: int, batch: int, context: int
) -> float:
    """The speed-up that α, two shapes, bandwidth and FLOP/s promise: the target's, in numbers of `size` bytes, and that
    of its first layers."""
    at, draft = dict(bytes_per_weight=size, batch=batch, context=context), replace(target, num_layers=LAYERS)
    plain, check = (pass_seconds(hardware, target, tokens=tokens, **at) for tokens in (1, k + 1))
    return theory.speedup(alpha, k, pass_seconds(hardware, draft, **at) / plain, check / plain)


def speculation(args, target: Model, draft: Model, hardware: theory.Hardware) -> dict:
    sizes, k = sorted(set(args.sizes)), args.k
    most = sizes[-1]
    prompts = [prompt_of(target.config, args.context, args.seed + row) for row in range(most)]
    blocks = blocks_for([(prompt, args.tokens) for prompt in prompts], most, spare=k)
    # A step may read what of each prompt is not shared, less than a block of it, or a token of each row and its drafts.
    budget = max(args.token_budget, most * max(BLOCK, k + 1))
    sized = dict(num_blocks=blocks, block_size=BLOCK, max_num_seqs=most, max_num_batched_tokens=budget, history=1)
    deep = Engine(target, drafters.Model(draft), k=k, draft_budget=most * k, **sized)
    engines = {0: Engine(target, **sized), k: deep}
    rows = []
    for size in tqdm(sizes, leave=False, disable=None):
        rounds, trace = [], Trace()
        for turn in range(args.repeat + 1):
            seed = args.seed + size * turn
            with undisturbed():
                lap = {
                    depth: full_batch(engine, prompts[:size], args.tokens, depth, args.temperature, seed)
                    for depth, engine in engines.items()
                }
            if turn:  # the first round only warms up
                (plain, texts, _), (deep, same, cycles) = lap[0], lap[k]
                one, cycle, drafting = mean(plain), mean(deep), mean(deep, "drafting")
                tokens = sum(step.emitted for step in deep) / len(deep) / size  # per sequence
                costs = drafting / one / k, (cycle - drafting) / one  # c and v
                rounds.append((size / one, size * tokens / cycle, tokens * one / cycle, *costs, tokens))
                trace.cycles += cycles.cycles
        plain_rate, rate, speedup, c, v, tokens = (Timing.of(column) for column in zip(*rounds, strict=True))
        alpha = trace.acceptance_rate
        bound = roofline(hardware, target.config, target.dtype.itemsize, alpha, k, size, args.context)
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
                "roofline_speedup": bound,
                "same_texts": sum(a == b for a, b in zip(texts, same, strict=True)) if not args.temperature else None,
            }
        )
    for engine in engines.values():
        engine.shutdown()
    curves = {name: [row[f"{name}_speedup"] for row in rows] for name in ("predicted", "roofline")}
    curves = {"measured": [row["speedup"]["median"] for row in rows]} | curves
    crossed = {name: crossover(sizes, curve) for name, curve in curves.items()}
    return {"new_tokens": args.tokens, "temperature": args.temperature, "crossover": crossed, "results": rows}


def speculation_section(result: dict) -> Section:
    part, k, lines = result["speculation"], result["k"], []
    hardware = theory.Hardware("measured", result["bandwidth"]["median"], result["flops"])
    shape = SHAPES[result["shape"]], itemsize(result)
    sizes, alphas = zip(*((row["batch"], row["acceptance"]) for row in part["results"]), strict=True)
    # By today's theory: a stored result has what theory.py said on its day.
    bounds = [roofline(hardware, *shape, a, k, n, result["context"]) for n, a in zip(sizes, alphas, strict=True)]
    for row, bound in zip(part["results"], bounds, strict=True):
        gain, guess = row["speedup"]["median"], row["predicted_speedup"]
        rates = (f"{row[key]['median']:,.0f}" for key in ("plain_tokens_per_second", "tokens_per_second"))
        costs = (f"{row[key]:.2f}" for key in ("acceptance", "c", "v"))
        predicted = [f"{guess:.2f}", ratio(gain, guess), f"{bound:.2f}", ratio(gain, bound)]
        lines.append([row["batch"], *rates, *costs, spread(row["speedup"], 1), *predicted])
    first, crossed = part["results"][0], part["crossover"] | {"roofline": crossover(sizes, bounds)}
    said = [f"none up to batch {sizes[-1]}" if at is None else f"batch {at:.0f}" for at in crossed.values()]
    head = ["batch", "plain, tokens/s", "speculative, tokens/s", "α", "c", "v", "speed-up"]
    head += ["formula", "measured / formula", "roofline", "measured / roofline"]
    return Section(
        "",
        f"Speculation: full batches, every sequence after {result['context']} tokens, {decoding(part['temperature'])}, "
        f"the engine with k = {k} against the engine without a drafter. The formula uses α, c and v as "
        "measured in these steps; the roofline is given only α, the shapes, the bandwidth and the "
        "FLOP/s. A batch of n serves the first n prompts of a fixed list, so α differs between rows; compare "
        "speed-ups at equal α.",
        [Table(head, lines)],
        Headline(f"speed-up by speculation, batch {sizes[0]}", first["speedup"]["median"], first["predicted_speedup"]),
        [
            f"Crossover, the batch size at which speculation stops paying: {said[0]} measured, {said[1]} by the "
            f"formula, {said[2]} by the roofline."
        ],
    )


# ---- the command ----


def run(args) -> dict:
    check(args)
    target, draft = shapes.random_pair(SHAPES[args.shape], args.device, args.epsilon, args.seed)
    result = shapes.facts(args, "batch", target) | {"epsilon": args.epsilon, "k": args.k}
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
    if (seqs := args.max_num_seqs) > args.token_budget:
        raise ValueError(f"token_budget={args.token_budget}: give at least max_num_seqs={seqs}, a token for each")
    longest = args.prompt_lengths[1] + args.output_lengths[1]
    if args.tokens < 2 * args.k + 3:
        raise ValueError(f"tokens={args.tokens}: two cycles of k={args.k} must fit, give at least {2 * args.k + 3}")
    config = shapes.check(args, args.tokens + args.k)
    if longest > config.max_length:
        lengths = f"prompt_lengths={args.prompt_lengths}, output_lengths={args.output_lengths}"
        raise ValueError(f"{lengths}: the shape {args.shape!r} takes {config.max_length} tokens, give shorter ones")


def section(result: dict) -> Section:
    """Two parts, of which a run may have measured one alone."""
    parts = [serving_section(result["serving"])] if result["serving"] else []
    parts += [speculation_section(result)] if result["speculation"] else []
    return Section(
        f"A server, {result['shape']} on {where(result['machine'])}",
        " ".join(part.about for part in parts),
        [table for part in parts for table in part.tables],
        parts[0].headline,
        [note for part in parts for note in part.notes],
    )


def add_arguments(parser) -> None:
    add, span = partial(options.add, parser), ("LOW", "HIGH")
    shapes.add_arguments(parser, repeat=3)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure (default: both)")
    options.add_draft_length(parser, auto=False)
    shapes.add_epsilon(parser)
    add("requests", options.count, 256, "to serve")
    add("max-num-seqs", options.count, 128, "requests at a time")
    add("token-budget", options.count, 2048, "tokens per pass")
    add("prompt-lengths", options.count, (100, 1024), "of the requests", span, nargs=2)
    add("output-lengths", options.count, (100, 1024), "of their outputs", span, nargs=2)
    add("sizes", options.count, [1, 2, 4, 8, 16, 32, 64, 128], "of the full batches", "N", nargs="+")
    add("tokens", options.count, 64, "to generate in the full batches")
    options.add_temperature(parser, help="in the full batches, 0 is greedy")
    add("draft-budget", options.natural, 64, "draft tokens per step while serving, 0: none")
