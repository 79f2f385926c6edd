"""The section on a CPU's passes."""

from __future__ import annotations

from minispec_course.labs import pairs

from .. import svg
from ..cpu import disturbed, label, predicted_seconds
from .base import Section, quartiles, ratio, table


def cpu(result: dict) -> Section:
    settings, plains, passes, series = result["settings"], [], [], []
    for setting in settings:
        predicted, rows = predicted_seconds(result, setting), setting["results"]
        one = rows[0]["seconds"]
        plains.append(
            [
                label(setting),
                pairs.spread(one, digits=1),
                f"{1e3 * predicted(1):.1f}",
                ratio(one["median"], predicted(1)),
                f"{predicted(1) / one['median']:.0%}",
            ]
        )
        passes.append([label(setting), *(f"{row['ratio']:.2f}" for row in rows[1:])])
        ends = quartiles([row["seconds"] for row in rows], lambda seconds, one=one: seconds / one["median"])
        series.append(svg.Series(label(setting), [row["ratio"] for row in rows], *ends))
        if not setting["busy"]:
            line = [predicted(row["tokens"]) / predicted(1) for row in rows]
            passes.append([f"{label(setting)}, predicted", *(f"{v:.2f}" for v in line[1:])])
            series.append(svg.Series(f"{label(setting)}, predicted", line, predicted=True))
    sizes, machine = [row["tokens"] for row in settings[0]["results"]], result["machine"]["cpu"]
    most = max(setting["threads"] for setting in settings)
    quiet, loud = (
        next(one for one in settings if one["threads"] == most and one["busy"] == busy) for busy in (False, True)
    )
    alone = next(one for one in settings if one["threads"] == 1 and one["busy"])
    share = loud["results"][0]["seconds"]["median"] / alone["results"][0]["seconds"]["median"]
    plain, floor = quiet["results"][0]["seconds"]["median"], predicted_seconds(result, quiet)(1)
    notes = disturbed(settings)
    if most > 1:
        notes.insert(
            0, f"Beside a busy core, a plain token with {most} threads takes {share:.2f} times as long as with one."
        )
    return Section(
        f"A laptop's passes, {result['target']} on {machine}",
        f"Passes over M new tokens after {result['context']}, in {result['dtype']}, quiet and while another process "
        "keeps one core busy. Predicted is the roofline with the bandwidth and the FLOP/s measured with as many "
        f"threads: {result['weight_bytes'] / 1e6:,.0f} MB of weights once per pass, or the arithmetic of M tokens. "
        "t(M)/t(1) is the v of the speed-up formula.",
        (f"a plain token, ms ({label(quiet)})", f"{1e3 * plain:.1f}", f"{1e3 * floor:.1f}", ratio(plain, floor)),
        [
            table(["", "plain token, ms", "predicted", "measured / predicted", "of the bandwidth"], plains),
            table(["t(M)/t(1)", *(f"M = {m}" for m in sizes[1:])], passes),
        ],
        {
            "": svg.lines(
                "What a forward pass over M tokens costs on a CPU, relative to one token",
                f"{result['target']} in {result['dtype']} on {machine}; bars are quartiles",
                sizes,
                series,
                ("tokens per pass, M", "t(M) / t(1)"),
            )
        },
        notes,
    )
