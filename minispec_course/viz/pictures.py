"""Drawings without controls, and one that has some: caches and blocks, verdicts, drafters, a pair of matrices cut."""

from collections.abc import Mapping, Sequence

import torch

from minispec import theory
from minispec.exact import as_distribution

from ..labs.presets import counted, si
from .drawing import INK, SOFT, Canvas, Drawing, visible, wrapped
from .panel import Panel, player, stops
from .style import GREY, KINDS, PALETTE

ACCEPTED, CORRECTED = KINDS["accepted"], KINDS["corrected"]
TARGET, DRAFT = PALETTE[0], PALETTE[5]

# ---- memory ----------------------------------------------------------------------------------------------------------


def attention_grid(words: Sequence[str], weights: torch.Tensor) -> Drawing:
    """Which token attends to which in one head, [T, T]. The last row is the newest token's; the others are past."""
    side, left, top, n = 46, 120, 62, len(words)
    c = Canvas(height=top + n * side + 46)
    c.text(14, 24, "Each row is one token: how much of each value it takes", 14, bold=True)
    for i, word in enumerate(words):
        c.text(left + i * side + side / 2, top - 8, word, 12.5, "middle")
        c.text(left - 10, top + i * side + 28, word, 12.5, "end", bold=i == n - 1)
        for j in range(i + 1):
            share = float(weights[i, j])
            c.rect(left + j * side, top + i * side, side - 3, side - 3, TARGET, GREY, 0.05 + 0.75 * share)
            c.text(left + (j + 0.5) * side - 1.5, top + i * side + 27, f"{share:.2f}", 12, "middle")
    c.rect(left - 4, top + (n - 1) * side - 4, n * side + 5, side + 5, None, INK, thick=2)
    c.text(left + n * side + 12, top + (n - 1) * side + 28, "all that the newest token needs", 12.5)
    c.text(left, top + n * side + 26, "A column is a token's key and value: computed once, used in rows below", 12.5)
    return c.drawing(f"The attention of {', '.join(words)}: one row per token, with a share for every token so far.")


def cache_grid(kept: int, rejected: int, new: int) -> Drawing:
    """A cache as a grid of layers and slots at three moments: after a verify pass, rewound, and some tokens later."""
    slots, layers, side, left, tall, below = 14, 3, 30, 176, 22, 3 * 22 + 58
    c = Canvas(height=52 + 3 * below)
    c.text(14, 24, "A cache: one column per slot, one row per layer; each cell holds keys and values", 14, bold=True)
    moments = {"after the verify pass": (kept + rejected, 0), f"after rewind({kept})": (kept, 0)}
    moments[f"{new} tokens later"] = (kept + new, new)
    for top, (name, (length, overwritten)) in zip(range(62, 62 + 3 * below, below), moments.items(), strict=True):
        c.text(14, top + 14, name, 13, bold=True).text(14, top + 34, f"length {length}", 13)
        for slot in range(slots):
            kind = TARGET if slot < kept else ACCEPTED if slot < kept + overwritten else CORRECTED
            kind, shade, dash = (
                kind if slot < kept + rejected else None,
                *((0.75, "") if slot < length else (0.18, "2 2")),
            )
            x = left + slot * side
            for layer in range(layers):
                c.rect(x, top + layer * tall, side - 3, tall - 3, kind, kind or GREY, shade, 2, dash)
            c.text(x + side / 2 - 1.5, top + layers * tall + 12, str(slot), 11, "middle", colour=SOFT)
        x = left + length * side - 1.5
        c.line(x, top - 8, x, top + layers * tall + 2, INK, 2.5).arrow(x, top - 18, x, top - 5, INK, 2)
        if name.startswith("after rewind"):
            c.arrow(left + (kept + rejected) * side, top - 14, x + 5, top - 14, SOFT)
    key = [(TARGET, "accepted"), (CORRECTED, "rejected draft tokens"), (ACCEPTED, "new tokens, overwriting them")]
    c.key(14, 44 + 3 * below, [*key, ("", "past the length: ignored")], 12)
    return c.drawing(
        f"A KV cache of {slots} slots. It holds {kept + rejected} tokens after a verify pass. Rewinding by {rejected} "
        f"moves only the length, to {kept}; no cell changes. The next {new} tokens overwrite {new} of the {rejected} "
        "old cells."
    )


def block_arrows(tables: Mapping[str, tuple[Sequence[int], int]], num_blocks: int, block_size: int) -> Drawing:
    """Logical blocks of each request, above the physical ones that its table names, with an arrow for each entry.
    `tables`: its block table, and how many tokens it has."""
    size, count = block_size, num_blocks
    cell = min(26, 700 / (count * size + count))
    wide, c = cell * size, Canvas(height=296)
    c.text(14, 24, "What a user sees: their own positions, in order", 14, bold=True)
    c.text(14, 268, "What the memory holds: blocks, wherever they were free", 14, bold=True)
    where = [16 + block * (732 / count) for block in range(count)]
    for block, left in enumerate(where):
        c.rect(left, 190, wide, 34, None, dash="2 2")
        c.text(left + wide / 2, 242, f"block {block}", 12, "middle", colour=SOFT)
    between = max(10.0, (700 - sum(len(table) for table, _ in tables.values()) * wide) / max(1, len(tables)))
    x, said = 40.0, []
    for n, (name, (table, length)) in enumerate(tables.items()):
        colour = PALETTE[n % len(PALETTE)]
        c.text(x, 54, f"{name}: table {list(table)}", 13, bold=True)
        for logical, block in enumerate(table):
            for i in range(size):
                held, position = logical * size + i < length, str(logical * size + i)
                for left, top in ((x, 64), (where[block], 190)):
                    fill, words = colour if held else None, position if held and cell > 14 else ""
                    dash = "" if held else "2 2"
                    c.box(left + i * cell, top, cell, 34, words, fill, 0.3, 11.5, line=colour, dash=dash)
            c.arrow(x + wide / 2, 102, where[block] + wide / 2, 187, colour, 2)
            x += wide + 4
        x += between - 4
        said.append(f"{name} has {length} tokens in blocks {', '.join(map(str, table))}")
    free = count - len({block for table, _ in tables.values() for block in table})
    return c.drawing(f"Block tables, {count} blocks of {size} slots: {'; '.join(said)}; {free} blocks are free.")


def static_holes(lengths: Sequence[int], seats: int = 4) -> Drawing:
    """One static batch after the other: a bar per request, and seats that stay empty until the longest is done."""
    batches = [list(lengths[i : i + seats]) for i in range(0, len(lengths), seats)]
    steps, left, tall = sum(max(batch) for batch in batches), 90, 26
    scale, start, said = (746 - left) / steps, 0, []
    c = Canvas(height=102 + seats * tall)
    c.text(14, 24, f"Static batching: {len(lengths)} requests, {seats} at a time, {steps} steps", 14, bold=True)
    for i in range(seats):
        c.text(14, 76 + i * tall, f"seat {i}", 12.5)
    for number, batch in enumerate(batches):
        longest, idle = max(batch), theory.static_batch_idle(batch)
        x, colour = left + start * scale, PALETTE[number % 3]
        c.text(x, 48, f"{idle:.0%} empty" if longest * scale > 60 else f"{idle:.0%}", 12.5, bold=True)
        for i, length in enumerate(batch):
            y, words = 60 + i * tall, str(length) if length * scale > 16 else ""
            c.box(x, y, length * scale - 1, tall - 4, words, colour, 0.35, 12, line=colour)
            if length < longest:
                c.rect(x + length * scale, y, (longest - length) * scale - 1, tall - 4, None, dash="2 3")
        start += longest
        c.line(left + start * scale, 52, left + start * scale, 62 + seats * tall, INK, 1.5)
        said.append(f"{batch} takes {longest} steps and leaves {idle:.0%} empty")
    y = 68 + seats * tall
    c.arrow(left, y + 6, 746, y + 6).text(left, y + 22, "steps (one forward pass each)", 12, colour=SOFT)
    key = [(PALETTE[0], "generates a token"), ("", "empty: waiting for the longest in its batch")]
    c.key(left + 230, y + 22, key, 12)
    whole = 1 - sum(lengths) / (seats * steps)
    said = "; ".join(said)
    return c.drawing(f"Static batching with {seats} seats: {said}. In total, {whole:.0%} of them stay empty.")


# ---- launches --------------------------------------------------------------------------------------------------------


def launch_lanes(launch: float, runs: Mapping[str, tuple[int, Sequence[tuple[float, float]]]]) -> Drawing:
    """So many launches of `launch` µs by the host, and when each kernel begins and ends: who waits for whom?"""
    c, left, y, said = Canvas(height=32 + 82 * len(runs)), 60, 26, []
    scale = (742 - left) / max(spans[-1][1] for _, spans in runs.values())
    for name, (launches, spans) in runs.items():
        said.append(f"{name}: the GPU is busy {sum(b - a for a, b in spans) / spans[-1][1]:.0%} of the time")
        c.text(14, y, said[-1], 13, bold=True).text(14, y + 25, "host", 12).text(14, y + 49, "GPU", 12)
        for i in range(launches):
            c.rect(left + i * launch * scale, y + 12, launch * scale - 2, 18, GREY, None, 0.5)
        for begin, end in spans:
            c.rect(left + begin * scale, y + 36, (end - begin) * scale - 1, 18, PALETTE[0], None)
        y += 82
    c.key(left, y - 8, [(GREY, f"a launch: {launch:g} µs of the host's time"), (PALETTE[0], "a kernel")], 12)
    return c.drawing(f"{'; '.join(said)}.")


def busy_bars(models: Mapping[str, Mapping[str, float]]) -> Drawing:
    """For each model and step, which fraction of the time the memory is busy."""
    c, y = Canvas(height=20 + sum(30 + 24 * len(steps) for steps in models.values())), 26
    for (name, steps), colour in zip(models.items(), PALETTE, strict=False):
        c.text(14, y, f"{name}: memory busy, in % of the time", 13, bold=True)
        for step, busy in steps.items():
            c.text(100, y + 23, step, 12.5, "end").rect(108, y + 10, 580, 18, None, dash="2 3")
            c.rect(108, y + 10, 580 * min(busy, 1), 18, colour, None, 0.7)  # a cache may be faster than memory
            c.text(112 + 580 * min(busy, 1), y + 23, f"{100 * busy:.2g} %", 12.5, bold=True)
            y += 24
        y += 30
    told = (f"{name}: " + ", ".join(f"{step} {busy:.1%}" for step, busy in of.items()) for name, of in models.items())
    return c.drawing(f"How much of the time the memory is busy, step by step. {'; '.join(told)}.")


# ---- verdicts --------------------------------------------------------------------------------------------------------


def judge_arrows(last: str, drafted: Sequence[str], choices: Sequence[str]) -> Drawing:
    """A verify pass: tokens in, the target's choice at each position, and the draft token that each choice judges."""
    inputs, choices, step = [*map(visible, (last, *drafted))], [*map(visible, choices)], 624 / (len(drafted) + 2)
    accepted = next((i for i, (d, y) in enumerate(zip(inputs[1:], choices, strict=False)) if d != y), len(drafted))
    c = Canvas(height=278)
    c.text(14, 24, "One verify pass: the logits at a token judge the token after it", 14, bold=True)
    for y, words in ((66, "goes in"), (146, "the target"), (162, "would choose"), (232, "emitted")):
        c.text(14, y, words, 13, bold=True)
    for i, (word, chosen) in enumerate(zip(inputs, choices, strict=True)):
        x, middle, wide = 126 + i * step, 122 + (i + 0.5) * step, step - 8
        wrong = i > accepted  # a draft token after a rejected one, and a choice that nobody needs
        kind = KINDS["accepted" if i < accepted else "bonus" if accepted == len(drafted) else "corrected"]
        line, dash = INK if i == 0 else GREY if wrong else ACCEPTED, "2 2" if wrong else ""
        c.box(x, 46, wide, 32, word, line if i else None, 0.25, 13, line=line, dash=dash, thick=1.5)
        c.text(middle, 42, "last token" if i == 0 else f"d[{i - 1}]", 11.5, "middle", colour=SOFT)
        c.arrow(middle, 80, middle, 126, SOFT, dash=dash)
        line = GREY if wrong else kind
        c.box(x, 130, wide, 32, chosen, None if wrong else kind, 0.25, 13, line=line, dash=dash)
        c.text(middle, 178, f"logits[{i}]", 11.5, "middle", colour=SOFT)
        if i < len(drafted) and not wrong:  # the shift: this choice is compared with the next input
            c.arrow(middle + step * 0.32, 128, middle + step * 0.8, 82, kind, 2)
            c.text(middle + step * 0.5 + 6, 116, "✓" if i < accepted else "✗", 15, "start", True)
        if not wrong:
            c.arrow(middle, 182, middle + step, 212, SOFT)
            c.box(x + step, 216, wide, 26, chosen, kind, 0.25)
    note = "✓ equal: accepted.  ✗ different: the choice is emitted instead.  Dotted: follows a wrong token, discarded."
    c.text(14, 268, note, 12, colour=SOFT)
    end = "the bonus" if accepted == len(drafted) else "the correction"
    return c.drawing(
        f"A verify pass over {len(inputs)} tokens. The choice at each token judges the draft token after it: "
        f"{accepted} of {len(drafted)} are equal and accepted; then {end} {choices[accepted]} is emitted."
    )


def overlap(p, q) -> Drawing:
    """p and q as overlapping bars: what both have is accepted, what p has more of is added."""
    p, q = as_distribution("p", p), as_distribution("q", q)
    both, more, less = torch.minimum(p, q), (p - q).clamp(min=0), (q - p).clamp(min=0)
    low, step, unit = 236, 400 / len(p), 180 / float(torch.maximum(p, q).max())
    c = Canvas(height=276)
    c.text(14, 24, "Green and orange together are exactly p", 14, bold=True).line(44, low, 450, low)
    for i in range(len(p)):
        x, wide = 50 + i * step, step * 0.72
        shared, extra, excess = (float(part[i]) * unit for part in (both, more, less))
        c.rect(x, low - shared, wide, shared, ACCEPTED, ACCEPTED, 0.5, 0)
        c.rect(x, low - shared - extra, wide, extra, CORRECTED, CORRECTED, 0.5, 0)
        c.rect(x, low - shared - excess, wide, excess, GREY, GREY, 0.15, 0, "3 3")
        for value, said, colour in ((p[i], "p", TARGET), (q[i], "q", DRAFT)):
            y = low - float(value) * unit
            c.line(x - 6, y, x + wide + 6, y, colour, 3)
            below = value < torch.maximum(p[i], q[i])
            c.text(x + wide / 2, y + (14 if below else -5), f"{said} = {float(value):.2f}", 12, "middle")
        c.text(x + wide / 2, low + 18, f"token {i}", 12.5, "middle")
    total, rest, over = (float(part.sum()) for part in (both, more, less))
    parts = {
        ACCEPTED: (f"fits: min(p, q), {total:.2f} in total", "draft tokens that are accepted"),
        CORRECTED: (f"missing: p − q where positive, {rest:.2f}", "tokens that are added instead"),
        "": (f"too many: q − p where positive, {over:.2f}", "draft tokens that are rejected"),
    }
    for y, (colour, (head, tail)) in zip((66, 122, 178), parts.items(), strict=True):
        c.key(464, y, [(colour, head)], 12).text(482, y + 18, tail, 11.5, colour=SOFT)
    return c.drawing(
        f"Bars of p and q over {len(p)} tokens. What both have, {total:.2f} in total, is accepted. Where p is larger, "
        f"{rest:.2f} in total is added. Where q is larger, {over:.2f} in total is rejected."
    )


# ---- drafters --------------------------------------------------------------------------------------------------------


# Lesson 15b's family tree: drafters that use the target's hidden states, by branch. Each has its name and year, what a
# run of the trained module is given, what changed, and 1 where one run drafts all tokens: else each takes a run.
FAMILY = {
    "heads on the last state": (
        ("Medusa", 2024, "last state", "a head for each position", 1),
        ("Hydra", 2024, "last state, draft tokens before", "heads one after another", None),
    ),
    "one layer, token by token": (
        ("EAGLE-1", 2024, "last state, next token", "one decoder layer, run on its own output", None),
        ("EAGLE-2", 2024, "as EAGLE-1", "a tree that grows where the drafter is confident", None),
        ("EAGLE-3", 2025, "three states, next token", "trained on its own drafts", None),
        ("EAGLE-3.1", 2026, "as EAGLE-3, each normalised", "passes on a normalised feature", None),
    ),
    "the same, trained with the model": (("MTP", 2024, "last state, next token", "a norm for each half", None),),
    "a block in one run": (
        ("DFlash", 2026, "several states, blanks", "blanks are filled together", 1),
        ("DSpark", 2026, "as DFlash, then the token before", "a small head goes along the block", 1),
        ("DFlash 2", 2026, "as DFlash", "candidates, and the best path by pairs", 1),
        ("P-EAGLE", 2026, "EAGLE-3's states, blanks", "one learnt state for all blanks", 1),
    ),
}
TOLD = ("Hydra", "EAGLE-1", "P-EAGLE")  # from their papers: not in minispec


def family_tree(k: int = 4) -> Drawing:
    """A branch per line, a box per drafter: what it is given, what is new, and its runs in sequence for k tokens."""
    wide, tall, gap, place, said = 168, 104, 19, {}, []
    c = Canvas(height=40 + len(FAMILY) * (tall + 36))
    for y, (branch, members) in zip(range(18, c.height, tall + 36), FAMILY.items(), strict=False):
        c.text(14, y + 8, branch, 13, bold=True)
        for column, (name, year, given, new, runs) in enumerate(members):
            x, top, runs = 14 + column * (wide + gap), y + 18, runs or k
            place[name], colour = (x, top), ACCEPTED if runs == 1 else DRAFT
            if column and name not in ("DFlash 2", "P-EAGLE"):  # from DFlash, and from EAGLE-3, drawn above it
                c.arrow(x - gap + 2, top + tall / 2, x - 2, top + tall / 2)
            c.rect(x, top, wide, tall, colour, colour, 0.16, 6, dash="4 3" if name in TOLD else "")
            c.text(x + 10, top + 19, name, 14, bold=True)
            c.text(x + wide - 10, top + 19, str(year), 12, "end", colour=SOFT)
            lines = [(line, SOFT) for line in wrapped(f"given: {given}", wide - 16, 11.5)]
            lines += [(line, INK) for line in wrapped(f"new: {new}", wide - 16, 11.5)]
            for i, (words, ink) in enumerate(lines):
                c.text(x + 10, top + 37 + 14 * i, words, 11.5, colour=ink)
            for i in range(k):  # filled: a run
                fill, edge = (colour, colour) if i < runs else (None, GREY)
                c.rect(x + 10 + i * 14, top + tall - 15, 11, 8, fill, edge, 0.8, 2)
            taken = counted(runs, "run") + (f", {k} steps" if name == "DSpark" else "")  # of its head, token by token
            c.text(x + wide - 10, top + tall - 7, taken, 11.5, "end", bold=True)
            said.append(f"{name} ({year}): given {given}; {new}; {taken} in sequence")
    for before, after, right, dash in (("EAGLE-1", "MTP", 30, "4 3"), ("EAGLE-3", "P-EAGLE", 60, "")):
        (x1, y1), (x2, y2) = place[before], place[after]  # MTP has the same pair of inputs as EAGLE-1
        c.arrow(x1 + right, y1 + tall + 1, x2 + right, y2 - (22 if dash else 2), SOFT, 1.5, dash)
    c.key(14, c.height - 10, [(DRAFT, "runs wait for one another"), (ACCEPTED, "one run for all positions")], 12)
    told = f"A family tree of drafters, with the runs in sequence that {k} draft tokens take. "
    return c.drawing(f"{told}{'; '.join(said)}.")


# ---- a pair of matrices on several ranks -----------------------------------------------------------------------------


def cut_matrices(ranks: int = 2, step: int = 3, tokens: int = 1):
    """The two products of Llama-3-70B's MLP on several ranks, at one of four stages: as SVG, and in words.

    The first matrix is cut by outputs (column parallel), the second by inputs (row parallel); then partial sums meet.
    """
    hidden, wide = 8192, 28_672
    stage = ("cut the matrices", "first product, by columns", "second product, by rows", "all-reduce")[step]
    c, top, tall = Canvas(height=348), 70, 240
    c.text(14, 24, f"{counted(ranks, 'rank')} · {stage}", 15, bold=True)
    heads = (
        (14, "x"),
        (92, "W₁ by columns"),
        (262, "activations"),
        (372, "W₂ by rows"),
        (520, "partial sums"),
        (690, "y"),
    )
    for x, words in heads:
        c.text(x, 54, words, 12.5, bold=True)
    for x, words in ((34, "all of x"), (285, "stay where they are"), (548, "full shape each"), (704, "on every rank")):
        c.text(x, top + tall + 18, words, 12, "middle", colour=SOFT)
    c.rect(14, top, 40, tall, GREY, GREY, 0.3)
    part, middle, column, strip = tall / ranks, top + tall / 2, 120 / ranks, min(40, 64 / ranks)
    for rank in range(ranks):
        y, colour = top + rank * part, PALETTE[rank % len(PALETTE)]
        half, name = y + part / 2, f"rank {rank}" if ranks < 4 else str(rank)
        c.box(92 + rank * column + 1, top, column - 2, tall, name, colour, 0.35, 12, line=colour)
        c.box(372, y + 1, 110, part - 2, f"rank {rank}", colour, 0.35, 12, line=colour)
        fill, line, dash = (colour, colour, "") if step >= 1 else (None, GREY, "2 3")
        c.rect(262, y + 1, 46, part - 2, fill, line, 0.75, dash=dash)
        fill, line, dash = (colour, colour, "") if step >= 2 else (None, GREY, "2 3")
        c.rect(520 + rank * strip + 1, top, strip - 2, tall, fill, line, 0.5, dash=dash)  # as tall as y, some terms
        if step >= 1:
            c.arrow(56, half, 90, half).arrow(214, half, 260, half, colour, 2)
        if step >= 2:
            c.arrow(310, half, 370, half, colour, 2).arrow(484, half, 518, half, colour, 2)
        if step == 3 and ranks > 1:
            c.arrow(586, half, 634, middle, colour, 2)
    if ranks > 1:
        c.mark(648, middle, "open circle", GREY, 15)
        c.text(648, middle + 5, "+", 16, "middle", True)
    fill, dash = (GREY, "") if step == 3 else (None, "2 3")  # a sum over all ranks has the colour of none
    c.rect(690, top, 40, tall, fill, shade=0.3, dash=dash)
    if step == 3:
        c.arrow(666 if ranks > 1 else 562, middle, 688, middle)
    sent, read = theory.all_reduce_bytes(tokens * hidden, ranks), 2 * 2 * hidden * wide / ranks
    facts = f"Two matrices of {hidden:,} × {wide:,} in bf16: {si(read * ranks, 'B')} in total, {si(read, 'B')} per "
    facts += f"rank to read, and {si(sent, 'B')} per rank to send in the all-reduce ({counted(tokens, 'token')})."
    told = (
        "Each rank holds a part of both matrices.",
        "Each rank multiplies all of x by its columns and has some of the activations, complete.",
        "Each rank multiplies its own activations by its rows: a result of full shape, with only its terms.",
        "The partial sums are added, and every rank gets the sum: the one exchange of the pair."
        if ranks > 1
        else "One rank has every term: nothing to exchange.",
    )
    words = f"{counted(ranks, 'rank')}, {stage}. {told[step]} {facts}"
    return c.svg(words), words


def cut_products() -> Panel:
    """Cut an MLP among 1 to 8 ranks, and let its two products and the all-reduce happen stage by stage."""
    controls = {"ranks": stops("ranks", (1, 2, 4, 8), 2), **player("stage", 3, 1500, 3)}
    return Panel(cut_matrices, controls | {"tokens": stops("tokens in the pass", (1, 8, 64), 1)})
