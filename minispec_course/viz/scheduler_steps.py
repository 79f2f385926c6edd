"""One step of a server that speculates: what the scheduler plans, what the pass makes of it, what is given back.

Three moments are shown. *Plan*: slots for the tokens that must be processed, and lookahead slots for drafts
that do not exist yet. *Verify*: the drafts lie in their slots, and the target has judged them. *Roll back*: what was
rejected is beyond the end again, and blocks that hold nothing return to the pool.
"""

from dataclasses import dataclass

from minispec.serving.blocks import BlockPool
from minispec.serving.scheduler import Request, Result, Scheduler

from ..labs.presets import counted
from .drawing import INK, SOFT, Canvas, Drawing
from .style import GREY, KINDS

REJECTED = "#cc79a7"
COLOURS = {"kept": GREY, "processed": "#56b4e9", "accepted": KINDS["accepted"], "rejected": REJECTED}


@dataclass(frozen=True)
class Part:
    """One request's part in a step. Counts are tokens, one slot each, unless they say blocks."""

    start: int  # in the cache before the step
    count: int  # known tokens that the pass processes
    lookahead: int  # slots reserved after them
    drafted: int
    accepted: int
    kept: int  # in the cache after the step
    blocks_planned: int
    blocks_after: int


def slots_of(part: Part, show: str) -> list[str]:
    """What each slot of the request's blocks is at that moment: kept, processed, accepted, rejected or lookahead."""
    if show == "roll back":
        return ["kept"] * part.kept
    drafts = ["lookahead"] * part.lookahead
    if show == "verify":
        rejected = part.drafted - part.accepted
        drafts = ["accepted"] * part.accepted + ["rejected"] * rejected + drafts[part.drafted :]
    return ["kept"] * part.start + ["processed"] * part.count + drafts


def strip(canvas: Canvas, part: Part, show: str, size: int, x: float, y: float, cell: float) -> None:
    """The slots of one request in its blocks; a block that was given back is dotted."""
    for i, kind in enumerate(slots_of(part, show)):
        colour = COLOURS.get(kind, KINDS["accepted"])
        dash, told = "3 2" if kind == "lookahead" else "", f"position {i}: {kind}"
        canvas.rect(x + i * cell + 1, y + 2, cell - 2, 16, None if dash else colour, colour, 1, 1, dash, title=told)
        if kind == "rejected":  # crossed out, for eyes that see no colours
            canvas.line(x + i * cell + 2, y + 16, x + (i + 1) * cell - 2, y + 4, "white", 2)
    have = part.blocks_after if show == "roll back" else part.blocks_planned
    for block in range(part.blocks_planned):
        gone, left = block >= have, x + block * size * cell
        canvas.rect(left, y, size * cell, 20, None, SOFT if gone else INK, 1, 1, "2 3" if gone else "", 1.2)


def engine_step(prompt: int = 6, k: int = 4, accepted: int = 1, block_size: int = 4) -> Drawing:
    """Plan, verify, roll back: the blocks of one request, as a real scheduler and pool keep them."""
    pool = BlockPool(num_blocks=16, block_size=block_size, enable_prefix_caching=False)
    scheduler = Scheduler(pool, max_num_batched_tokens=64, lookahead=k)
    request = Request("A", [1] * prompt, max_new_tokens=prompt + 4 * k)
    scheduler.add(request)
    scheduler.update(scheduler.schedule(), {"A": Result([0])})  # the prompt, and a first token
    held, before, plan = request.num_computed_tokens, list(pool.table("A")), scheduler.schedule()
    [row], planned = plan.scheduled, list(pool.table("A"))
    ahead = row.num_lookahead_tokens
    request.draft_tokens = [0] * accepted + [9] * (ahead - accepted)
    scheduler.update(plan, {"A": Result([0] * (accepted + 1), accepted=accepted)})
    after, kept = list(pool.table("A")), request.num_computed_tokens
    part = Part(row.start, row.count, ahead, ahead, accepted, kept, len(planned), len(after))
    told = {
        "plan": f"slots for 1 known and {ahead} draft tokens, after {held} cached ones",
        "verify": f"one pass over {1 + ahead} tokens fills them; {accepted} of {ahead} accepted",
        "roll back": f"{kept} tokens count, {counted(len(planned) - len(after), 'block')} back to the pool",
    }
    c, cell = Canvas(height=262), min(30, 440 / (len(planned) * block_size))
    c.text(14, 24, f"One step of the engine for one request: k = {k}, blocks of {block_size} slots", 14, bold=True)
    for y, (show, words) in zip((52, 112, 172), told.items(), strict=True):
        c.text(14, y + 14, show, 13.5, bold=True).paragraph(14, y + 31, words, 250, 12)
        strip(c, part, show, block_size, 300, y, cell)
        for i, block in enumerate(after if show == "roll back" else planned):
            c.text(300 + i * cell * block_size, y + 35, f"block {block}", 11.5, colour=SOFT)
    key = [(COLOURS["kept"], "cached"), (COLOURS["processed"], "last accepted token"), (KINDS["accepted"], "accepted")]
    c.key(14, 250, [*key, (REJECTED, "rejected: overwritten later"), ("", "lookahead, or given back")], 12)
    return c.drawing(
        f"One engine step. Before: {held} tokens cached in blocks {before}. Planned: {ahead} lookahead slots, blocks "
        f"{planned}. After {accepted} of {ahead} draft tokens are accepted: {kept} tokens cached, blocks {after}."
    )
