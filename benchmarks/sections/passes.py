"""Sections on single passes and on a cycle: decode, verify, attention, speculate."""

from __future__ import annotations

from dataclasses import replace

import torch

from minispec import theory
from minispec_course.labs import pairs

from .. import svg
from ..speculate import CYCLE, DRAFT, PLAIN, VERIFY
from .base import Section, quartiles, ratio, table, where


def itemsize(result: dict) -> int:
    return getattr(torch, result["dtype"]).itemsize


def decode(result: dict) -> Section:
    floor = pairs.floor_seconds(result, pairs.SHAPES[result["shape"]], result["context"])
    rows, results = [], result["results"]
    for name, row in results.items():
        seconds = row["seconds_per_token"]
        rows.append(
            [
                name,
                pairs.spread(seconds),
                f"{1e3 * floor:.2f}",
                ratio(seconds["median"], floor),
                f"{floor / seconds['median']:.0%}",
                f"{row['times_launch']:.2f}",
            ]
        )
    times = [row["seconds_per_token"] for row in results.values()]
    low, high = quartiles(times, lambda t: 100 * floor / t)
    shares = svg.Series("share", [100 * floor / t["median"] for t in times], low, high)
    best = min(times, key=lambda t: t["median"])
    size = f"{result['weight_bytes'] / 1e9:.3g} GB of weights"
    return Section(
        f"Plain decoding, {result['shape']} on {where(result['machine'])}",
        f"Generating one token reads all {size} once, and the keys and values of {result['context']} "
        "tokens. Those bytes "
        "divided by the bandwidth are the least time that a token can take.",
        ("a plain token, ms", f"{1e3 * best['median']:.2f}", f"{1e3 * floor:.2f}", ratio(best["median"], floor)),
        [table(["", "ms per token", "predicted", "measured / predicted", "of the bandwidth", "× launch"], rows)],
        {
            "": svg.bars(
                "Plain decoding against the memory bandwidth",
                f"{result['shape']} shape in {result['dtype']}, {size}, on {where(result['machine'])}",
                list(results),
                [shares],
                "% of the measured read bandwidth",
                "{:.0f} %",
                {"the limit": 100},
            )
        },
        [f"without {name}: {reason}" for name, reason in result["skipped"].items()],
    )


def verify(result: dict) -> Section:
    predicted = verify_ratios(result)
    first = next(row["seconds"]["median"] for row in result["results"] if row["tokens"] == 1)
    measured = {row["tokens"]: row["seconds"]["median"] / first for row in result["results"]}
    rows = [
        [
            row["tokens"],
            pairs.spread(row["seconds"], digits=3),
            f"{measured[row['tokens']]:.3f}",
            f"{predicted[row['tokens']]:.3f}",
            ratio(measured[row["tokens"]], predicted[row["tokens"]]),
        ]
        for row in result["results"]
    ]
    low, high = quartiles([row["seconds"] for row in result["results"]], lambda t: t / first)
    sizes = list(measured)
    shown = max((m for m in sizes if m <= 16), default=sizes[0])
    series = [
        svg.Series("measured", list(measured.values()), low, high),
        svg.Series("predicted by the roofline", [predicted[m] for m in sizes], predicted=True),
    ]
    return Section(
        f"The verify pass, {result['shape']} on {where(result['machine'])}",
        f"One forward pass over M new tokens after {result['context']}. While reading the weights takes longer than "
        "multiplying with them, M tokens should take as long as one. t(M)/t(1) is the v of the speed-up formula.",
        (
            f"t({shown})/t(1)",
            f"{measured[shown]:.2f}",
            f"{predicted[shown]:.2f}",
            ratio(measured[shown], predicted[shown]),
        ),
        [table(["M", "ms", "t(M)/t(1)", "predicted", "measured / predicted"], rows)],
        {
            "": svg.lines(
                "What a forward pass over M tokens costs, relative to one token",
                f"{result['shape']} shape in {result['dtype']}, on {where(result['machine'])}; bars are quartiles",
                sizes,
                series,
                ("tokens per pass, M", "t(M) / t(1)"),
            )
        },
    )


def verify_ratios(result: dict) -> dict[int, float]:
    """M -> t(M)/t(1) by the roofline with the measured bandwidth and FLOP/s."""
    hardware = theory.Hardware("measured", result["bandwidth"]["median"], result["flops"])
    size = itemsize(result)
    times = {
        row["tokens"]: theory.pass_time(
            hardware, result["weight_bytes"] / size, tokens=row["tokens"], bytes_per_weight=size
        )
        for row in result["results"]
    }
    return {m: seconds / times[1] for m, seconds in times.items()}


def attention(result: dict) -> Section:
    rows, names = [], list(result["cases"][0]["results"])
    shares: dict[str, list[dict]] = {name: [] for name in names}
    for case in result["cases"]:
        floor = attention_seconds(result, case)
        for name, row in case["results"].items():
            seconds = row["seconds"]["median"]
            digits = 1 if floor > 1e-5 else 2
            rows.append(
                [
                    _case(case),
                    name,
                    pairs.spread(row["seconds"], 1e6, digits),
                    f"{1e6 * floor:.{digits}f}",
                    ratio(seconds, floor),
                    f"{floor / seconds:.0%}",
                ]
            )
            shares[name].append({key: 100 * floor / row["seconds"][key] for key in ("median", "low", "high")})
    series = [svg.Series(name, [one["median"] for one in of_it], *quartiles(of_it)) for name, of_it in shares.items()]
    first, shape = result["cases"][0], result["shape"]
    floor, seconds = attention_seconds(result, first), first["results"]["paged"]["seconds"]["median"]
    across = ", ".join(f"{case['paged_over_contiguous']:.2f} at {_case(case)}" for case in result["cases"])
    return Section(
        f"Attention over a long context on {where(result['machine'])}",
        f"A few new tokens of each sequence attend to its whole cache: {shape['heads']} query heads over "
        f"{shape['kv_heads']} key/value heads of width {shape['dim']}, blocks of {result['block_size']}. Every key and "
        "value is read once, so the prediction is their bytes divided by the bandwidth.",
        (f"paged attention, {_case(first)}, µs", f"{1e6 * seconds:.0f}", f"{1e6 * floor:.0f}", ratio(seconds, floor)),
        [
            table(
                ["batch × cached + new", "cache", "µs", "predicted", "measured / predicted", "of the bandwidth"],
                rows,
                (0, 1),
            )
        ],
        {
            "": svg.bars(
                "Attention against the memory bandwidth",
                f"{result['dtype']}, on {where(result['machine'])}; batch × cached tokens + new ones",
                [_case(case) for case in result["cases"]],
                series,
                "% of the measured read bandwidth",
                "{:.0f} %",
                {"the limit": 100},
            )
        },
        [f"Paged over contiguous, in time: {across}."],
    )


def attention_seconds(result: dict, case: dict) -> float:
    """All keys and values once, at the bandwidth."""
    shape = result["shape"]
    each = theory.kv_bytes_per_token(1, shape["kv_heads"], shape["dim"], itemsize(result))
    return theory.kv_bytes(case["batch"], case["context"] + case["tokens"], each) / result["bandwidth"]["median"]


def _case(case: dict) -> str:
    return f"{case['batch']} × {case['context']} + {case['tokens']}"


# ---------------------------------------------------------------- a speculative cycle


def speculate(result: dict) -> Section:
    seconds, k, alpha = result["seconds"], result["k"], result["acceptance"]
    plain, cycle, draft, check = (seconds[name]["median"] for name in (PLAIN, CYCLE, DRAFT, VERIFY))
    c, v, tokens = draft / plain, check / plain, result["tokens_per_cycle"]
    gain, formula = tokens * plain / cycle, theory.cycle_speedup(tokens, k, c, v)
    predicted = cycle_seconds(result)
    source = {
        PLAIN: "bytes / bandwidth",
        DRAFT: "bytes / bandwidth",
        VERIFY: "bytes / bandwidth, as one token",
        CYCLE: f"{k} measured draft steps and a measured pass",
    }
    rows = [
        [
            f"{name}, ms",
            pairs.spread(seconds[name], digits=3),
            f"{1e3 * predicted[name]:.3f}",
            ratio(seconds[name]["median"], predicted[name]),
            source[name],
        ]
        for name in source
    ]
    for name, value, guess, digits, how in (
        ("tokens per cycle", tokens, theory.expected_tokens(alpha, k), 3, f"E[N] with α = {alpha:.3f}"),
        ("speed-up", gain, formula, 2, f"tokens per cycle / (k·c + v), c = {c:.3f}, v = {v:.3f}"),
        ("per token, ms", 1e3 * cycle / tokens, 1e3 * plain / formula, 3, "plain token / predicted speed-up"),
    ):
        rows.append([name, f"{value:.{digits}f}", f"{guess:.{digits}f}", ratio(value, guess), how])
    tables = [table(["", "measured", "predicted", "measured / predicted", "predicted from"], rows, (0, 4))]
    if peers := {name: row for name, row in seconds.items() if name not in source}:
        tables.append(
            table(
                ["beside it, the same weights", "ms per token", "× our cycles"],
                [[name, pairs.spread(row), f"{row['median'] * tokens / cycle:.1f}"] for name, row in peers.items()],
            )
        )
    low, high = quartiles([seconds[name] for name in source], lambda t: 1e3 * t)
    series = [
        svg.Series("measured", [1e3 * seconds[name]["median"] for name in source], low, high),
        svg.Series("predicted", [1e3 * predicted[name] for name in source], predicted=True),
    ]
    how = f"temperature {result['temperature']:g}" if result["temperature"] else "greedy"
    return Section(
        f"A speculative cycle, {result['shape']} on {where(result['machine'])}",
        f"{k} draft tokens by the target's first two layers, one forward pass over {k + 1} tokens, "
        "and the verification, "
        f"all in one launch; {how}, after {result['context']} tokens. Parts and whole are timed "
        "alternately, tokens are "
        f"counted over {result['cycles']:,} cycles.",
        (f"speed-up with k = {k}", f"{gain:.2f}", f"{formula:.2f}", ratio(gain, formula)),
        tables,
        {
            "": svg.bars(
                f"A speculative cycle: {gain:.2f} times as fast as plain decoding, {formula:.2f} predicted",
                f"{result['shape']} shape in {result['dtype']}, k = {k}, {tokens:.2f} tokens per cycle, on "
                f"{where(result['machine'])}",
                list(source),
                series,
                "milliseconds",
                "{:.2f}",
            )
        },
        [f"without {name}: {reason}" for name, reason in result["skipped"].items()],
    )


def cycle_seconds(result: dict) -> dict[str, float]:
    """Each part of a cycle by its bytes, and the whole by its measured parts: t·(k·c + v)."""
    config, size = pairs.SHAPES[result["shape"]], itemsize(result)
    first = replace(config, num_layers=pairs.LAYERS)
    weights = theory.parameter_count(
        first.vocab_size,
        first.hidden_size,
        first.intermediate_size,
        first.num_layers,
        first.num_heads,
        first.num_kv_heads,
        first.head_dim,
        tied=True,  # the LM head alone: of the embedding a token reads one row
    )
    floor = pairs.floor_seconds(result, config, result["context"])
    draft = pairs.floor_seconds(result | {"weight_bytes": weights * size}, first, result["context"])
    t, drafted, check = (result["seconds"][name]["median"] for name in (PLAIN, DRAFT, VERIFY))
    whole = t / theory.cycle_speedup(1.0, result["k"], drafted / t, check / t)
    return {PLAIN: floor, DRAFT: draft, VERIFY: floor, CYCLE: whole}
