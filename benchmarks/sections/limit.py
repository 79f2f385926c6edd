"""The section on the steps from eager to the bandwidth."""

from __future__ import annotations

from minispec_course.labs import pairs
from minispec_course.labs.ladder import EAGER, GRAPH, SPLIT, STEPS

from .. import svg
from .base import NONE, Section, quartiles, ratio, table, where


def limit(result: dict) -> Section:
    tables, series, notes = [], [], []
    for name, model in result["models"].items():
        floor, rows = model["predicted_seconds"], []
        for step, row in model["steps"].items():
            seconds = row["seconds_per_token"]
            rows.append(
                [
                    step,
                    pairs.spread(seconds, digits=3),
                    f"{1e3 * floor:.3f}",
                    ratio(seconds["median"], floor),
                    f"{row['fraction_of_bandwidth']:.1%}",
                    f"{row['kernels_per_token']:.1f}",
                    f"{row['launches_per_token']:.1f}",
                ]
            )
        tables.append(
            table(
                [
                    f"{name}, {model['weights']} weights",
                    "ms per token",
                    "predicted",
                    "measured / predicted",
                    "of the bandwidth",
                    "kernels per token",
                    "launches per token",
                ],
                rows,
            )
        )
        there = [model["steps"][step] for step in STEPS if step in model["steps"]]
        low, high = quartiles([row["seconds_per_token"] for row in there], lambda t, floor=floor: 100 * floor / t)
        series.append(svg.Series(name, [100 * row["fraction_of_bandwidth"] for row in there], low, high))
        if model["cycle"]:
            notes.append(
                f"{name}: {model['cycle']['tokens_per_cycle']:.2f} tokens per cycle, k = {model['cycle']['k']}."
            )
    product, splits = result["tiles"], result["splits"]
    if product["results"]:
        rows = [
            [f"{row['rows']} × {row['wide']}", row["stages"], row["programs"], rate(row)] for row in product["results"]
        ]
        rows.append(["torch's own", NONE, NONE, rate(product["torch"])])
        shape = " × ".join(map(str, product["shape"]))
        tables.append(table([f"W {shape}, tile", "stages", "programs", "GB/s"], rows))
    if splits["results"]:
        rows = [[row["splits"], row["programs"], rate(row)] for row in splits["results"]]
        rows.append(["torch's own", NONE, rate(splits["torch"])])
        tables.append(table([f"attention over {splits['context']} tokens, splits", "programs", "GB/s"], rows))
    if not result["recorded"]:
        notes.append(
            "Made without a GPU: nothing was recorded as a graph and torch did the work of our kernels, so "
            "the steps do not differ. It shows the form of the result and no more."
        )
    if product["interpreted"]:
        notes.append("Triton's interpreter acted out the tiles and splits: their GB/s say nothing about a GPU.")
    last = next(reversed(result["models"]))
    model = result["models"][last]
    best, floor = model["steps"][SPLIT]["seconds_per_token"]["median"], model["predicted_seconds"]
    return Section(
        f"From eager to the limit on {where(result['machine'])}",
        f"One token after {result['context']} in {result['dtype']}, each step with what the one before has won: "
        f"{EAGER}, the same kernels as a {GRAPH}, one kernel between two products, products that take the small steps "
        "along, attention in splits, and a draft–verify cycle as one launch (per token that it emits; it reads the "
        "weights once for several, so it may pass 100%). Predicted is the bytes of one pass over the bandwidth. "
        "Kernels and launches are counted by torch's profiler.",
        (f"a plain token of {last}, ms", f"{1e3 * best:.3f}", f"{1e3 * floor:.3f}", ratio(best, floor)),
        tables,
        {
            "": svg.columns(
                "From eager to the limit: share of the read bandwidth",
                f"one token after {result['context']}, on {where(result['machine'])}; bars are quartiles",
                list(STEPS),
                series,
                "% of the bandwidth",
                {"the bandwidth": 100},
            )
        },
        notes,
    )


def rate(row: dict) -> str:
    return f"{row['bytes_per_second'] / 1e9:,.3g}"
