"""Diagrams of systems: one step of the engine through blocks, and a pair of matrices cut among ranks."""

from __future__ import annotations

from minispec import theory
from minispec.serving.blocks import BlockPool
from minispec.serving.scheduler import Request, Result, Scheduler

from .drawing import INK, SOFT, Canvas, Drawing
from .panel import Panel, player
from .presets import si, stops
from .style import GREY, KINDS, PALETTE

CACHED, CERTAIN, AHEAD = PALETTE[0], KINDS["bonus"], PALETTE[5]


def engine_step(prompt: int = 6, k: int = 4, accepted: int = 1, block_size: int = 4) -> Drawing:
    """Plan, draft, verify, rewind: the blocks of one request, as a real scheduler and pool keep them."""
    if not 0 <= accepted <= k:
        raise ValueError(f"accepted={accepted}: give a number from 0 to k={k}")
    pool = BlockPool(num_blocks=16, block_size=block_size, enable_prefix_caching=False)
    scheduler = Scheduler(pool, max_num_batched_tokens=64, lookahead=k)
    request = Request("A", [1] * prompt, max_new_tokens=prompt + 4 * k)
    scheduler.add(request)
    scheduler.update(scheduler.schedule(), {"A": Result([0])})  # the prompt, and a first token
    held = request.num_computed_tokens
    before = list(pool.table("A"))
    plan = scheduler.schedule()
    ahead = plan.scheduled[0].num_lookahead_tokens
    planned = list(pool.table("A"))
    request.draft_tokens = [0] * accepted + [9] * (ahead - accepted)
    record = scheduler.update(plan, {"A": Result([0] * (accepted + 1), accepted=accepted)})
    after, kept = list(pool.table("A")), request.num_computed_tokens
    moments = [
        ("before", f"{held} tokens cached; the last emitted one is not", before, ["cached"] * held),
        (
            "1 plan",
            f"slots for 1 certain and {ahead} draft tokens",
            planned,
            ["cached"] * held + ["certain"] + ["ahead"] * ahead,
        ),
        (
            "2 verify",
            f"one pass over {record.rows[0].tokens} tokens fills them",
            planned,
            ["cached"] * (held + 1) + ["accepted"] * accepted + ["rejected"] * (ahead - accepted),
        ),
        (
            "3 rewind",
            f"{accepted} accepted: {kept} count, {len(planned) - len(after)} block(s) return",
            after,
            ["cached"] * (held + 1) + ["accepted"] * accepted + ["stale"] * (len(after) * block_size - kept),
        ),
    ]
    looks = {
        "cached": (CACHED, 0.35, ""),
        "certain": (CERTAIN, 0.0, "4 2"),
        "ahead": (AHEAD, 0.2, "2 2"),
        "accepted": (KINDS["accepted"], 0.5, ""),
        "rejected": (KINDS["corrected"], 0.4, ""),
        "stale": (KINDS["corrected"], 0.1, "1 3"),
    }
    cell, left = min(32, 420 / (len(planned) * block_size)), 300
    c = Canvas(height=340)
    c.text(14, 24, f"One step of the engine for one request: k = {k}, blocks of {block_size} slots", 14, bold=True)
    for n, (name, words, table, slots) in enumerate(moments):
        y = 50 + n * 68
        c.text(14, y + 14, name, 13.5, bold=True)
        c.paragraph(14, y + 32, words, 270, 12)
        for b, block in enumerate(table):
            x = left + b * (cell * block_size + 8)
            c.rect(x - 2, y - 2, cell * block_size + 4, 34, None, INK, round=4)
            c.text(x, y + 47, f"block {block}", 11.5, colour=SOFT)
            for i in range(block_size):
                at = b * block_size + i
                kind = slots[at] if at < len(slots) else None
                colour, shade, dash = looks[kind] if kind else (None, 0, "2 2")
                fill = colour if kind and shade else None
                c.rect(
                    x + i * cell + 1, y + 1, cell - 2, 28, fill, colour or GREY, shade, 2, dash, 1.5 if kind else 0.7
                )
    c.key(
        14,
        328,
        [
            (CACHED, "cached"),
            (AHEAD, "lookahead slot"),
            (KINDS["accepted"], "accepted"),
            (KINDS["corrected"], "rejected: overwritten later"),
            ("", "free slot"),
        ],
        12,
    )
    return c.drawing(
        f"One engine step. Before: {held} tokens cached in blocks {before}. Planned: {ahead} lookahead slots, blocks "
        f"{planned}. After {accepted} of {ahead} draft tokens are accepted: {kept} tokens cached, blocks {after}."
    )


def cut_matrices(
    ranks: int = 2, stage: int = 3, hidden: int = 8192, wide: int = 28_672, tokens: int = 1
) -> tuple[str, str]:
    """An MLP's two products on several ranks, at one of four stages: as SVG, and in words.

    The first matrix is cut by outputs (column parallel), the second by inputs (row parallel); then partial sums meet.
    """
    if ranks < 1 or not 0 <= stage <= 3:
        raise ValueError(f"ranks={ranks}, stage={stage}: give at least one rank, and a stage from 0 to 3")
    stages = ("cut the matrices", "first product, by outputs", "second product, by inputs", "all-reduce")
    c = Canvas(height=388)
    c.text(14, 24, f"{ranks} rank{'s' if ranks > 1 else ''} · {stages[stage]}", 15, bold=True)
    colours = [PALETTE[i % len(PALETTE)] for i in range(ranks)]
    top, tall = 70, 240
    part = tall / ranks
    heads = (
        ("x", 14),
        ("W₁ by outputs", 92),
        ("activations", 262),
        ("W₂ by inputs", 372),
        ("partial sums", 520),
        ("y", 690),
    )
    for words, x in heads:
        c.text(x, 54, words, 12.5, bold=True)
    c.rect(14, top, 40, tall, GREY, GREY, 0.3)
    c.text(34, top + tall + 18, "all of x", 12, "middle")
    for rank, colour in enumerate(colours):
        y = top + rank * part
        c.rect(92, y + 1, 120, part - 2, colour, colour, 0.35)
        c.text(152, y + part / 2 + 4, f"rank {rank}", 12, "middle")
        c.rect(372, y + 1, 110, part - 2, colour, colour, 0.35)
        c.text(427, y + part / 2 + 4, f"rank {rank}", 12, "middle")
        if stage >= 1:
            c.arrow(56, y + part / 2, 90, y + part / 2)
            c.rect(262, y + 1, 46, part - 2, colour, colour, 0.75)
            c.arrow(214, y + part / 2, 260, y + part / 2)
        else:
            c.rect(262, y + 1, 46, part - 2, None, dash="2 3")
        if stage >= 2:
            c.arrow(310, y + part / 2, 370, y + part / 2)
            c.arrow(484, y + part / 2, 518, y + part / 2)
        # A partial sum has the full shape: only the terms of its own inputs.
        high = max(6.0, min(part - 2, 26.0))
        filled = stage >= 2
        c.rect(
            520,
            y + (part - high) / 2,
            56,
            high,
            colour if filled else None,
            colour if filled else GREY,
            0.5,
            dash="" if filled else "2 3",
        )
        if stage == 3 and ranks > 1:
            c.arrow(578, y + part / 2, 634, top + tall / 2, colour, 2)
    if ranks > 1:
        c.circle(648, top + tall / 2, 16, KINDS["corrected"] if stage == 3 else GREY, INK, 0.6 if stage == 3 else 0.1)
        c.text(648, top + tall / 2 + 5, "+", 16, "middle", True)
    if stage == 3:
        c.arrow(666 if ranks > 1 else 578, top + tall / 2, 688, top + tall / 2)
        for i, colour in enumerate(colours):
            c.rect(690 + i * 40 / ranks, top, 40 / ranks, tall, colour, None, 0.45, 0)
        c.rect(690, top, 40, tall, None)
    else:
        c.rect(690, top, 40, tall, None, dash="2 3")
    c.text(704, top + tall + 18, "on every rank", 12, "middle")
    c.text(548, top + tall + 18, "full shape each", 12, "middle", colour=SOFT)
    c.text(285, top + tall + 18, "stay where they are", 12, "middle", colour=SOFT)
    weights = 2 * hidden * wide
    sent = theory.all_reduce_bytes(tokens * hidden, ranks)
    facts = (
        f"per rank: {si(2 * weights / ranks, 'B')} of these weights to read, and {si(sent, 'B')} to send in the "
        f"all-reduce ({tokens} token{'s' if tokens > 1 else ''}, bf16, {hidden:,} × {wide:,})"
    )
    c.text(14, 372, facts, 12, colour=SOFT)
    told = (
        "Each rank holds a part of both matrices.",
        "Each rank multiplies all of x with its columns and has some of the activations, complete.",
        "Each rank multiplies its own activations with its rows: a result of full shape, with only its terms.",
        "The partial sums are added, and every rank gets the sum: the one exchange of the pair."
        if ranks > 1
        else "One rank has every term already: nothing to exchange.",
    )
    words = f"{ranks} rank{'s' if ranks > 1 else ''}, {stages[stage]}. {told[stage]} {facts[0].upper()}{facts[1:]}."
    return c.svg(words), words


def parallel_products(ranks: int = 2) -> Drawing:
    """The pair at its end, as a picture for a page."""
    return Drawing(*cut_matrices(ranks))


def cut_products() -> Panel:
    """Cut an MLP among 1 to 8 ranks, and let its two products and the all-reduce happen stage by stage."""
    play, stage = player("stage", 3, interval=1500)
    stage.value = 3
    controls = {
        "ranks": stops("ranks", (1, 2, 4, 8), 2),
        "stage": stage,
        "play": play,
        "tokens": stops("tokens in the pass", (1, 8, 64), 1),
    }
    return Panel(cut_matrices, controls)
