"""Sections on what drafts are worth: acceptance, drafters."""

from __future__ import annotations

from minispec import theory
from minispec_course.labs import pairs

from .. import svg
from ..drafters import PLAIN
from .base import NONE, Section, quartiles, ratio, table, where


def expected_tokens(row: dict, k: int | str | None) -> float | None:
    """E[N] of the measured α, for chains that are nearly always k long; None for others: the formula is not theirs."""
    if not isinstance(k, int) or row["acceptance"] is None or not 0.9 * k <= row["drafted_per_pass"] <= k:
        return None
    return theory.expected_tokens(row["acceptance"], k)


def acceptance(result: dict) -> Section:
    drafters, groups = result["results"], [*result["prompts"], "overall"]
    by_group = {name: [*row["groups"].values(), row["overall"]] for name, row in drafters.items()}
    rows, series = [], []
    for name, row in drafters.items():
        overall, k = row["overall"], result["drafters"][name]["k"]
        predicted = expected_tokens(overall, k)
        rows.append(
            [
                name,
                k or "its own",
                f"{overall['drafted_per_pass']:.1f}",
                f"{overall['acceptance']:.3f}",
                f"{overall['tokens_per_pass']:.3f}",
                NONE if predicted is None else f"{predicted:.3f}",
                ratio(overall["tokens_per_pass"], predicted),
                overall["differing"],
            ]
        )
        series.append(svg.Series(name, [one["tokens_per_pass"] for one in by_group[name]]))
    texts, source = sum(result["prompts"].values()), result.get("prompts_from", "builtin")
    best = max(drafters, key=lambda name: drafters[name]["overall"]["tokens_per_pass"])
    top = drafters[best]["overall"]
    guess = expected_tokens(top, result["drafters"][best]["k"])
    counts = [["prompts", *result["prompts"].values(), texts]]
    cells = [[name, *(f"{one['tokens_per_pass']:.2f}" for one in row)] for name, row in by_group.items()]
    notes = [
        f"{row['overall']['differing']} of {texts} outputs by {name} differ from plain decoding's; where they "
        f"diverge, the target's two logits are up to {max(d['gap'] for d in row['differences']):.2g} apart."
        for name, row in drafters.items()
        if row["differences"]
    ]
    if not notes:
        notes = ["Every output is token for token that of plain decoding."]
    notes += [f"without {name}: {reason}" for name, reason in result.get("skipped", {}).items()]
    notes += [
        f"{count} prompts of {group} are too long for the model and left out."
        for group, count in result.get("too_long", {}).items()
        if count
    ]
    return Section(
        f"Tokens per forward pass, {result['target']}",
        f"{texts} {'built-in prompts' if source == 'builtin' else f'prompts of {source}'}, {result['new_tokens']} "
        f"tokens each, greedy, {result['dtype']}. These are counts, which depend on models and prompts and not "
        "on the machine, so they have no spread. Predicted is E[N] = 1 + α + … + α^k, for drafters "
        "that always draft k tokens "
        "in a row.",
        (
            f"tokens per pass, {best}",
            f"{top['tokens_per_pass']:.2f}",
            NONE if guess is None else f"{guess:.2f}",
            ratio(top["tokens_per_pass"], guess),
        ),
        [
            table(["tokens per pass", *groups], cells + counts),
            table(
                [
                    "overall",
                    "k",
                    "drafted per pass",
                    "α",
                    "tokens per pass",
                    "predicted",
                    "measured / predicted",
                    "outputs that differ",
                ],
                rows,
            ),
        ],
        {
            "": svg.columns(
                "Tokens per forward pass of the target",
                f"{result['target']}, greedy, {texts} prompts; plain decoding emits one per pass",
                groups,
                series,
                "tokens per pass",
                {"plain decoding": 1},
            )
        },
        notes,
    )


def drafters(result: dict) -> Section:
    results, tables = result["results"], []
    for category, rows in results.items():
        lines = []
        for name, row in rows.items():
            tokens, parts, gain = row["tokens_per_pass"], row.get("draft_and_verify"), row["speedup"]["median"]
            alpha = NONE if row["acceptance"] is None else f"{row['acceptance']:.2f}"
            costs = [f"{part:.2f}" for part in parts] if parts else [NONE, NONE]
            predicted = tokens / sum(parts) if parts else None
            lines.append(
                [
                    name,
                    pairs.spread(row["tokens_per_second"], 1, 1),
                    pairs.spread(row["speedup"], 1, 2),
                    alpha,
                    f"{tokens:.2f}",
                    *costs,
                    NONE if predicted is None else f"{predicted:.2f}",
                    ratio(gain, predicted),
                    f"{gain / tokens:.0%}",
                ]
            )
        tables.append(
            table(
                [
                    category,
                    "tokens/s",
                    "speed-up",
                    "α",
                    "tokens per pass",
                    "k·c",
                    "v",
                    "predicted",
                    "measured / predicted",
                    "of the ceiling",
                ],
                lines,
            )
        )
    series = []
    for name in [name for name in next(iter(results.values())) if name != PLAIN]:
        gains = [rows[name]["speedup"] for rows in results.values()]
        series.append(svg.Series(name, [gain["median"] for gain in gains], *quartiles(gains)))
    gain, category, name = max(
        (row["speedup"]["median"], category, name) for category, rows in results.items() for name, row in rows.items()
    )
    how = f"temperature {result['temperature']:g}" if result["temperature"] else "greedy"
    other = [
        f"{name} ({category})"
        for category, rows in results.items()
        for name, row in rows.items()
        if not row["same_text"]
    ]
    notes = [f"without {name}: {reason}" for name, reason in result.get("skipped", {}).items()]
    if other and not result["temperature"]:
        notes.append(
            f"Outputs that are not token for token those of plain decoding: {', '.join(other)}. In "
            f"{result['dtype']} rounding may decide between two tokens that are almost "
            "equally likely."
        )
    names, recorded = [one.name for one in series], result.get("recorded")
    who = "Every drafter" if len(names) > 1 else f"Drafts by {names[0]}"
    return Section(
        f"{who}, {result['target']} on {where(result['machine'])}{', recorded' if recorded else ''}"
        f"{', beside a busy core' if result.get('busy') else ''}",
        f"{how.capitalize()}, k = {result['k']}, {result['new_tokens']} tokens per prompt, {result['dtype']}"
        f"{', passes and cycles recorded as CUDA graphs' if recorded else ''}; plain decoding and all drafters run "
        f"alternately{', while another process kept one core busy' if result.get('busy') else ''}. Predicted is "
        "tokens per pass / (k·c + v), with the time of drafting (k·c) and of the verify pass (v) as measured in the "
        "same cycles, in plain tokens; where a whole cycle is one launch, its parts have no times of their own. "
        "The ceiling is tokens per pass: the speed-up if drafting took no time and a longer pass no "
        "more than a short one.",
        (f"best speed-up ({name}, {category})", f"{gain:.2f}", NONE, NONE),
        tables,
        {
            "": svg.columns(
                f"How much faster than plain decoding, {'by drafter' if len(names) > 1 else f'drafts by {names[0]}'}",
                f"{result['target']}, {how}, k = {result['k']}, on {where(result['machine'])}; bars are quartiles",
                list(results),
                series,
                "speed-up",
                {"plain decoding": 1},
            )
        },
        notes,
    )
