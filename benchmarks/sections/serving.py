"""Sections on many requests at once: memory, batching, batch."""

from __future__ import annotations

from minispec import theory
from minispec_course.labs import batching, memory, pairs

from .. import full_batches, svg
from .base import NONE, Section, quartiles, ratio, table, where
from .passes import itemsize


def memory_use(result: dict) -> Section:
    predicted = memory_predictions(result)
    rows = [[name] for name, _ in memory.ROWS.values()]
    for row, (key, (_, form)) in zip(rows, memory.ROWS.items(), strict=True):
        for kind in ("paged", "contiguous"):
            measured, guess = result[kind][key], predicted.get((kind, key))
            row += [form.format(measured), NONE if guess is None else form.format(guess), ratio(measured, guess)]
    shares = {"tokens": [], "reserved, empty": [], "free": []}  # of all memory
    for kind in ("paged", "contiguous"):
        held = result[kind]["memory_holding_tokens"]
        used = held / (1 - result[kind]["waste"])
        for name, value in zip(shares, (held, used - held, 1 - used), strict=True):
            shares[name].append(100 * value)
    series = [
        svg.Series(name, values, predicted=name == "free", colour=svg.GREY if name == "free" else None)
        for name, values in shares.items()
    ]
    low, high = result["lengths"]
    waste = result["paged"]["waste"]
    return Section(
        "Memory for keys and values",
        f"{result['requests']} requests with prompts and answers of {low} to {high} tokens, in "
        f"{result['num_blocks']:,} blocks of {result['block_size']}; contiguous memory reserves "
        f"{result['max_length']:,} slots for each. Predicted from the lengths alone: about half a block per request is "
        "empty if paged, and the unused rest of the reservation if not. Waste is the share of the reserved slots.",
        (
            "reserved slots that are empty, paged",
            f"{waste:.2%}",
            f"{predicted['paged', 'waste']:.2%}",
            ratio(waste, predicted["paged", "waste"]),
        ),
        [
            table(
                ["", "paged", "predicted", "measured / predicted", "contiguous", "predicted", "measured / predicted"],
                rows,
            )
        ],
        {
            "": svg.stacks(
                "Where the memory for keys and values goes",
                f"{result['requests']} requests in the same {result['num_blocks']:,} blocks, on average over all steps",
                ["paged", "contiguous"],
                series,
                "% of the memory",
                "{:.0f} %",
            )
        },
        ["These are counts of one simulated run, so no machine is involved and there is no spread."],
    )


def memory_predictions(result: dict) -> dict[tuple[str, str], float]:
    """Waste, and how many requests fit, from the workload: a request is as long as its prompt and half its answer."""
    work = memory.workload(result["requests"], *result["lengths"], result["seed"])
    steps = sum(new for _, new in work)  # a long answer is met more often
    length = sum(new * (prompt + new / 2) for prompt, new in work) / steps
    slots = result["num_blocks"] * result["block_size"]
    return {
        ("paged", "waste"): theory.block_waste(length, result["block_size"]),
        ("contiguous", "waste"): theory.contiguous_waste(round(length), result["max_length"]),
        ("contiguous", "most_running"): slots // result["max_length"],
    }


def batching_section(result: dict) -> Section:
    idle, results = static_idle(result), result["results"]
    rows = []
    for name, row in results.items():
        waiting = 1 - result["tokens"] / (result["batch"] * row["steps"])
        guess = idle if name in (batching.PADDED, batching.STATIC) else None
        rows.append(
            [
                name,
                pairs.spread(row["tokens_per_second"], 1, 0),
                pairs.spread(row["over_static"], 1, 2),
                f"{row['steps']:,}",
                f"{waiting:.1%}",
                NONE if guess is None else f"{guess:.1%}",
                NONE if guess is None else ratio(waiting, guess),
            ]
        )
    rates = [row["tokens_per_second"] for row in results.values()]
    series = svg.Series("tokens/s", [rate["median"] for rate in rates], *quartiles(rates))
    gain = results[batching.CONTINUOUS]["over_static"]["median"]
    most = None if idle is None else 1 / (1 - idle)
    notes = []
    if most is not None:
        notes = [
            f"Were every step full and equally long, continuous batching would gain 1 / (1 − idle) = {most:.2f}. "
            "A step of a smaller batch takes less time, so idle slots cost less than that, and the last "
            "requests leave slots idle in any case."
        ]
    return Section(
        f"Continuous batching, {result['target']} on {where(result['machine'])}",
        f"{result['requests']} requests of very different lengths, {result['tokens']:,} tokens to generate, "
        f"{result['batch']} at a time. A slot of the batch is idle in a step in which it emits nothing. Predicted from "
        "the lengths: in a static batch all slots wait for the longest sequence.",
        (
            "continuous over static, tokens/s",
            f"{gain:.2f}",
            NONE if most is None else f"at most {most:.2f}",
            ratio(gain, most),
        ),
        [table(["", "tokens/s", "× static", "steps", "slots idle", "predicted", "measured / predicted"], rows)],
        {
            "": svg.bars(
                f"Continuous batching: {gain:.2f} times the tokens per second of static batches",
                f"{result['target']}, {result['requests']} requests, {result['batch']} at a time, on "
                f"{where(result['machine'])}; bars are quartiles",
                list(results),
                [series],
                "tokens per second",
                "{:,.0f}",
            )
        },
        notes,
    )


def static_idle(result: dict) -> float | None:
    """Idle share of row-steps in static batches, by the lengths; None where these cannot be drawn again."""
    work = batching.workload([()], result["requests"], result["longest"], result["seed"])
    lengths = [length for _, length in work]
    if sum(lengths) != result["tokens"]:
        return None
    some = [lengths[first : first + result["batch"]] for first in range(0, len(lengths), result["batch"])]
    steps = [max(one) * len(one) for one in some]
    return sum(theory.static_batch_idle(one) * n for one, n in zip(some, steps, strict=True)) / sum(steps)


def batch(result: dict) -> Section:
    """Two parts, of which a run may have measured one alone."""
    parts = [part for part in (_serving(result), _full_batches(result)) if part]
    return Section(
        f"A server, {result['shape']} on {where(result['machine'])}",
        " ".join(part.about for part in parts),
        parts[0].headline,
        [one for part in parts for one in part.tables],
        {name: chart for part in parts for name, chart in part.charts.items()},
        [note for part in parts for note in part.notes],
    )


def _serving(result: dict) -> Section | None:
    if not (part := result["serving"]):
        return None
    best, rows = part["floor_tokens_per_second"], []
    for name, row in part["results"].items():
        rate = row["tokens_per_second"]
        over = pairs.spread(row["over_peer"], 1) if row["over_peer"] else NONE
        alpha = NONE if row.get("acceptance") is None else f"{row['acceptance']:.2f}"
        rows.append([name, pairs.spread(rate, 1, 0, ","), f"{best:,.0f}", ratio(rate["median"], best), over, alpha])
    rates = [row["tokens_per_second"] for row in part["results"].values()]
    first, (low, high), (least, most) = next(iter(part["results"])), part["prompt_lengths"], part["output_lengths"]
    notes = [f"without {name}: {reason}" for name, reason in part["skipped"].items()]
    if peer := part["peer"]:
        notes.append(
            f"transformers {peer['transformers']}: continuous batching of {peer['max_num_seqs']} at a time, "
            f"{peer['attention']} attention, {'' if any(peer['cuda_graphs']) else 'no '}CUDA graphs, "
            f"{'' if peer['compiled'] else 'not '}compiled."
        )
    return Section(
        "",
        f"Serving: {part['requests']} requests of {low} to {high} tokens, {least} to {most} to generate after each, "
        f"{part['max_num_seqs']} at a time. Predicted is plain decoding at best: the weights once per pass, and "
        "the cache of every sequence.",
        (f"tokens/s, {first}", f"{rates[0]['median']:,.0f}", f"{best:,.0f}", ratio(rates[0]["median"], best)),
        [table(["serving", "tokens/s", "predicted", "measured / predicted", "× transformers", "α"], rows)],
        {
            "serving": svg.bars(
                "A server's tokens per second",
                f"{result['shape']} shape in {result['dtype']}, {part['requests']} requests, {part['max_num_seqs']} at a "
                f"time, on {where(result['machine'])}",
                list(part["results"]),
                [svg.Series("tokens/s", [rate["median"] for rate in rates], *quartiles(rates))],
                "tokens per second",
                "{:,.0f}",
                {"plain, at best": best},
            )
        },
        notes,
    )


def rooflines(result: dict) -> list[float]:
    """What the roofline promises each batch: α is recorded, the bandwidth and the FLOP/s are those of the run."""
    hardware = theory.Hardware("measured", result["bandwidth"]["median"], result["flops"])
    config, size = pairs.SHAPES[result["shape"]], itemsize(result)
    return [
        full_batches.roofline(hardware, config, size, row["acceptance"], result["k"], row["batch"], result["context"])
        for row in result["speculation"]["results"]
    ]


def _full_batches(result: dict) -> Section | None:
    if not (part := result["speculation"]):
        return None
    rows, k = part["results"], result["k"]
    formula = [theory.speedup(row["acceptance"], k, row["c"], row["v"]) for row in rows]
    roofline = rooflines(result)
    gains = [row["speedup"] for row in rows]
    lines = [
        [
            row["batch"],
            f"{row['plain_tokens_per_second']['median']:,.0f}",
            f"{row['tokens_per_second']['median']:,.0f}",
            f"{row['acceptance']:.2f}",
            f"{row['c']:.2f}",
            f"{row['v']:.2f}",
            pairs.spread(row["speedup"], 1),
            f"{guess:.2f}",
            ratio(row["speedup"]["median"], guess),
            f"{bound:.2f}",
            ratio(row["speedup"]["median"], bound),
        ]
        for row, guess, bound in zip(rows, formula, roofline, strict=True)
    ]
    crossed = part["crossover"] | {"roofline": full_batches.crossover([row["batch"] for row in rows], roofline)}
    said = {
        name: f"none up to batch {rows[-1]['batch']}" if at is None else f"batch {at:.0f}"
        for name, at in crossed.items()
    }
    series = [
        svg.Series("measured", [gain["median"] for gain in gains], *quartiles(gains)),
        svg.Series("formula with measured α, c, v", formula, predicted=True),
        svg.Series("roofline with measured α", roofline, predicted=True, colour=svg.COLOURS[1]),
    ]
    how = f"temperature {part['temperature']:g}" if part["temperature"] else "greedy"
    return Section(
        "",
        f"Speculation: full batches, every sequence after {result['context']} tokens, {how}, the engine with k = {k} "
        "against the engine without a drafter. Predicted by the formula with α, c and v as measured "
        "in these steps, and "
        "by the roofline, which is given only α, the shapes, the bandwidth and the FLOP/s. A batch of n serves the "
        "first n prompts of a fixed list, so α differs between the lines; compare speed-ups of equal α.",
        (
            f"speed-up by speculation, batch {rows[0]['batch']}",
            f"{gains[0]['median']:.2f}",
            f"{formula[0]:.2f}",
            ratio(gains[0]["median"], formula[0]),
        ),
        [
            table(
                [
                    "batch",
                    "plain, tokens/s",
                    "speculative, tokens/s",
                    "α",
                    "c",
                    "v",
                    "speed-up",
                    "formula",
                    "measured / formula",
                    "roofline",
                    "measured / roofline",
                ],
                lines,
            )
        ],
        {
            "": svg.lines(
                "What speculation gains as the batch grows",
                f"{result['shape']} shape in {result['dtype']}, k = {k}, {how}, on {where(result['machine'])}; bars are "
                "quartiles",
                [row["batch"] for row in rows],
                series,
                ("batch size", "speed-up"),
                {"no gain": 1},
                log=True,
            )
        },
        [
            f"Crossover, the batch from which on speculation does not pay: {said['measured']} measured, "
            f"{said['predicted']} by the "
            f"formula, {said['roofline']} by the roofline."
        ],
    )
