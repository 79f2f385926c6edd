"""At which batch size drafts stop paying: the other half of `python -m benchmarks batch`.

Full batches of 1, 2, 4 … rows, each row after the same number of tokens, the engine with drafts against the engine
without. Only steps count in which all rows write and all draft k deep. Two predictions stand beside the speed-up: the
formula with c and v as those steps had them, and the roofline, which knows nothing but α, the model's shape, the
bandwidth and the FLOP/s. Where a curve falls below 1 is its crossover.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from tqdm import tqdm

from minispec import drafters, theory
from minispec.load.handle import Model
from minispec.measure import Timing, undisturbed
from minispec.model import Config
from minispec.serving.engine import Engine
from minispec.serving.metrics import StepRecord
from minispec.trace import Trace

from .page import Headline, Section, Table, decoding, ratio, spread
from .serving import BLOCK, blocks_for
from .shapes import LAYERS, SHAPES, itemsize, pass_seconds, prompt_of


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
    while engine.jobs:
        steps.append(engine.step())
    outs = engine.take()
    full = [
        step
        for step in steps
        if step.drafted == k * len(prompts)
        and len(step.rows) == len(prompts)
        and all(row.phase != "prefill" for row in step.rows)
    ]
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
    at, draft = dict(batch=batch, context=context, size=size), replace(target, num_layers=LAYERS)
    plain, check = (pass_seconds(hardware, target, tokens=tokens, **at) for tokens in (1, k + 1))
    return theory.speedup(alpha, k, pass_seconds(hardware, draft, **at) / plain, check / plain)


def speculation(args, target: Model, draft: Model, hardware: theory.Hardware) -> dict:
    sizes, k = sorted(set(args.sizes)), args.k
    most = sizes[-1]
    prompts = [prompt_of(target.config, args.context, args.seed + row) for row in range(most)]
    blocks = blocks_for([(prompt, args.tokens) for prompt in prompts], most, spare=k)
    # A step may read what of each prompt is not shared, less than a block of it, or a token of each row and its drafts.
    options = dict(
        num_blocks=blocks,
        block_size=BLOCK,
        max_num_seqs=most,
        max_num_batched_tokens=max(args.token_budget, most * max(BLOCK, k + 1)),
        history=1,
    )
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
                lap = {
                    depth: full_batch(engine, prompts[:size], args.tokens, depth, args.temperature, seed)
                    for depth, engine in engines.items()
                }
            if turn:  # the first round only warms up
                (plain, texts, _), (deep, same, cycles) = lap[0], lap[k]
                one, cycle, drafting = mean(plain), mean(deep), mean(deep, "drafting")
                tokens = sum(step.emitted for step in deep) / len(deep)
                rounds.append(
                    (
                        size / one,
                        tokens / cycle,
                        tokens / size * one / cycle,
                        drafting / one / k,
                        (cycle - drafting) / one,
                        tokens / size,
                    )
                )
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
                "roofline_speedup": roofline(
                    hardware, target.config, target.dtype.itemsize, alpha, k, size, args.context
                ),
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


def section(result: dict) -> Section:
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
        f"the engine with k = {k} against the engine without a drafter. Predicted by the formula with α, c and v as "
        "measured in these steps, and by the roofline, which is given only α, the shapes, the bandwidth and the "
        "FLOP/s. A batch of n serves the first n prompts of a fixed list, so α differs between the lines; compare "
        "speed-ups of equal α.",
        [Table(head, lines)],
        Headline(
            f"speed-up by speculation, batch {first['batch']}", first["speedup"]["median"], first["predicted_speedup"]
        ),
        [
            f"Crossover, the batch from which on speculation does not pay: {said[0]} measured, {said[1]} by the "
            f"formula, {said[2]} by the roofline."
        ],
    )
