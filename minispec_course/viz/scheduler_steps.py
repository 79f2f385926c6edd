"""One step of a server that speculates: what the scheduler plans, what the pass makes of it, what is given back.

Three moments are shown. *Plan*: slots for the tokens that must be processed, and lookahead slots for drafts
that do not exist yet. *Verify*: the drafts lie in their slots, and the target has judged them. *Roll back*: what was
rejected is beyond the end again, and blocks that hold nothing return to the pool.
"""

from minispec.sequence import Sequence
from minispec.serving.blocks import BlockPool
from minispec.serving.scheduler import Scheduler
from minispec.tree import Draft

from ..labs.presets import counted
from .drawing import INK, SOFT, Canvas, Drawing
from .style import GREY, KINDS

REJECTED = "#cc79a7"
COLOURS = {"kept": GREY, "processed": "#56b4e9", "accepted": KINDS["accepted"], "rejected": REJECTED}


def engine_step(prompt: int = 6, k: int = 4, accepted: int = 1, block_size: int = 4) -> Drawing:
    """Plan, verify, roll back: the blocks of one request, as a real scheduler and pool keep them."""
    pool = BlockPool(num_blocks=16, block_size=block_size, enable_prefix_caching=False)
    scheduler = Scheduler(pool, max_num_batched_tokens=64, lookahead=k)
    request = Sequence("A", [1] * prompt, max_new_tokens=prompt + 4 * k)
    scheduler.add(request)
    first = scheduler.schedule()
    first.turns[0].emit([0])  # the prompt, and a first token
    scheduler.update(first)
    held, before, plan = request.num_computed_tokens, list(pool.table("A")), scheduler.schedule()
    [row], planned = plan.turns, list(pool.table("A"))
    ahead = row.num_lookahead_tokens
    request.draft = Draft([0] * accepted + [9] * (ahead - accepted))
    row.emit([0] * (accepted + 1), accepted=accepted)
    scheduler.update(plan)
    after, kept = list(pool.table("A")), request.num_computed_tokens
    before_drafts = ["kept"] * row.start + ["processed"] * row.count
    judged = ["accepted"] * accepted + ["rejected"] * (ahead - accepted)
    moments = {  # what each slot is, the blocks that the request has, and a note
        "plan": ([*before_drafts, *["lookahead"] * ahead], planned),
        "verify": ([*before_drafts, *judged], planned),
        "roll back": (["kept"] * kept, after),
    }
    notes = (
        f"slots for 1 known and {ahead} draft tokens, after {held} cached ones",
        f"one pass over {1 + ahead} tokens fills them; {accepted} of {ahead} accepted",
        f"{kept} tokens stay in the cache, {counted(len(planned) - len(after), 'block')} back to the pool",
    )
    c, cell = Canvas(height=262), min(30, 440 / (len(planned) * block_size))
    c.text(14, 24, f"One step of the engine for one request: k = {k}, blocks of {block_size} slots", 14, bold=True)
    for y, (show, (slots, blocks)), note in zip((52, 112, 172), moments.items(), notes, strict=True):
        c.text(14, y + 14, show, 13.5, bold=True).paragraph(14, y + 31, note, 250, 12)
        for i, kind in enumerate(slots):
            colour, x = COLOURS.get(kind, SOFT), 300 + i * cell
            dash, told = "3 2" if kind == "lookahead" else "", f"position {i}: {kind}"
            c.rect(x + 1, y + 2, cell - 2, 16, None if dash else colour, colour, 1, 1, dash, title=told)
            if kind == "rejected":  # crossed out, for eyes that see no colours
                c.line(x + 2, y + 16, x + cell - 2, y + 4, "white", 2)
        for i in range(len(planned)):  # a block that was given back is dotted
            gone, left = i >= len(blocks), 300 + i * block_size * cell
            c.rect(left, y, block_size * cell, 20, None, SOFT if gone else INK, 1, 1, "2 3" if gone else "", 1.2)
        for i, block in enumerate(blocks):
            c.text(300 + i * cell * block_size, y + 35, f"block {block}", 11.5, colour=SOFT)
    key = [(COLOURS["kept"], "cached"), (COLOURS["processed"], "last emitted token"), (KINDS["accepted"], "accepted")]
    c.key(14, 250, [*key, (REJECTED, "rejected"), ("", "lookahead slot, or block returned")], 12)
    return c.drawing(
        f"One engine step. Before: {held} tokens cached in blocks {before}. Planned: {ahead} lookahead slots, blocks "
        f"{planned}. After {accepted} of {ahead} draft tokens are accepted: {kept} tokens cached, blocks {after}."
    )
