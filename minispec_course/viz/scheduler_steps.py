"""Speculation in a server, step by step: what the scheduler plans, what the pass makes of it, what is given back.

Three moments of a step are shown. *Plan*: slots for the tokens that must be processed, and lookahead slots for drafts
that do not exist yet. *Verify*: the drafts lie in their slots, and the target has judged them. *Roll back*: what was
rejected is beyond the end again, and blocks that hold nothing return to the pool.
"""

from __future__ import annotations

from collections.abc import Sequence

from minispec.drafters import Drafter
from minispec.load.handle import Model
from minispec.serving.blocks import BlockPool
from minispec.serving.scheduler import Request, Result, Scheduler

from ..labs.frames import Ask, letter
from ..labs.presets import counted
from ..labs.steps import MOMENTS, Moment, Part, example_asks, run_engines
from .drawing import INK, SOFT, Canvas, Drawing, say, text_width
from .panel import Panel, choice, player
from .style import GREY, KINDS

REJECTED = "#cc79a7"
COLOURS = {"kept": GREY, "processed": "#56b4e9", "accepted": KINDS["accepted"], "rejected": REJECTED}


# ---- the picture -----------------------------------------------------------------------------------------------------


def slots_of(part: Part, show: str) -> list[str]:
    """What each slot of the request's blocks is at that moment: kept, processed, accepted, rejected or lookahead."""
    if show == "roll back":
        return ["kept"] * part.kept
    drafts = ["lookahead"] * part.lookahead
    if show == "verify":
        rejected = len(part.drafted) - part.accepted
        drafts = ["accepted"] * part.accepted + ["rejected"] * rejected + drafts[len(part.drafted) :]
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


def scheduler_steps_svg(moment: Moment, show: str, decode=str, slots: int = 0, lines: int = 0, words: str = "") -> str:
    """One line per request in the pass: what it processes, its slots, its tokens. `show` is one of MOMENTS.

    `decode` makes a word of a token; `slots` and `lines` are how many the picture has room for.
    """
    size, record = moment.frame.block_size, moment.frame.record
    slots = max([slots, size, *(part.blocks_planned * size for part in moment.parts)])
    canvas, cell = Canvas(132 + 34 * max(lines, len(moment.parts))), min(14, 380 / slots)
    at = {"request": 14, "processes": 76, f"slots, in blocks of {size}": 160, "tokens": 172 + slots * cell}
    canvas.text(14, 24, f"step {record.step}:", 13)
    x = 74
    for name in MOMENTS:
        canvas.text(x, 24, name, 13, bold=name == show).text(x + 66, 24, "→" if name != MOMENTS[-1] else "")
        x += 86
    canvas.text(746, 24, _totals(moment, show), 12, "end")
    for name, left in at.items():
        canvas.text(left, 50, name, 12, colour=SOFT)
    for i, part in enumerate(moment.parts):
        y, ahead = 60 + 34 * i, f" + {len(part.drafted)}" if show != "plan" else f" + up to {part.lookahead}"
        canvas.text(14, y + 15, letter(part.id), 13, bold=True)
        canvas.text(76, y + 15, f"{part.count}{ahead if part.lookahead else ''}")
        strip(canvas, part, show, size, 160, y, cell)
        _tokens(canvas, part, show, decode, at["tokens"], y)
    if not moment.parts:
        canvas.text(14, 75, "No request is in this pass.")
    key = {"in the cache": COLOURS["kept"], "processed now": COLOURS["processed"], "accepted draft": KINDS["accepted"]}
    key |= {"rejected draft": REJECTED, "correction": KINDS["corrected"], "bonus, or plain token": KINDS["bonus"]}
    canvas.key(14, canvas.height - 56, [(colour, name) for name, colour in key.items()], 12)
    canvas.text(14, canvas.height - 12, "dashed: a lookahead slot; a dotted frame: a block given back", 12, colour=SOFT)
    return canvas.svg(words)


def _totals(moment: Moment, show: str) -> str:
    text = {
        "plan": f"{moment.scheduled} of {moment.budget} tokens planned",
        "verify": f"{moment.processed} tokens processed",
        "roll back": f"{sum(len(part.emitted) for part in moment.parts)} tokens emitted",
    }[show]
    waiting = " ".join(map(letter, moment.frame.waiting)) or "none"
    used = moment.frame.record.used_blocks + (show != "roll back") * sum(p.given_back for p in moment.parts)
    return f"{text} · {used} of {moment.frame.num_blocks} blocks used · waiting: {waiting}"


def _tokens(canvas: Canvas, part: Part, show: str, decode, x: float, y: float) -> None:
    if show == "plan":
        said = "" if part.phase == "prefill" else "drafts: not known yet" if part.lookahead else "no drafts"
    else:
        said = f"{counted(part.given_back, 'block')} back" if part.given_back or part.ended else ""
        said = f"done: {said}" if part.ended else said
    if show != "verify":
        canvas.text(x, y + 15, said, 12)
        return
    last = "bonus" if part.accepted == len(part.drafted) else "corrected"
    chips = [(decode(t), KINDS["accepted" if i < part.accepted else last]) for i, t in enumerate(part.emitted)]
    for word, colour in [*chips, *((decode(token), REJECTED) for token in part.drafted[part.accepted :])]:
        wide = text_width(word, 11.5) + 7
        canvas.box(x, y, wide, 20, word, colour, 0.22, 11.5, line=colour)
        if colour == REJECTED:
            canvas.line(x + 2, y + 10, x + wide - 2, y + 10, INK, 1)
        x += wide + 3


def in_words(moment: Moment, show: str) -> str:
    """The sentence under the picture."""
    record, parts = moment.frame.record, moment.parts
    said, ahead = f"Step {record.step}, {show}: ", sum(part.lookahead for part in parts)
    if show == "plan":
        fresh = sum(max(0, part.blocks_planned - part.blocks_before) for part in parts)
        said += f"{counted(moment.scheduled - ahead, 'known token')} and {counted(ahead, 'lookahead slot')} for "
        said += f"{counted(len(parts), 'request')}, {counted(fresh, 'block')} taken."
        for what, ids in (("came in", record.admitted), ("pushed out", record.preempted)):
            said += f" {' '.join(map(letter, ids))} {what}." if ids else ""
        return said
    drafted, accepted = sum(len(part.drafted) for part in parts), sum(part.accepted for part in parts)
    if show == "verify":
        said += f"{drafted} drafted, {accepted} accepted, {drafted - accepted} rejected; "
        return said + f"{counted(sum(len(part.emitted) for part in parts), 'token')} emitted by one pass."
    said += f"{counted(ahead - accepted, 'lookahead slot')} of {ahead} forgotten, "
    said += f"{counted(sum(part.given_back for part in parts), 'block')} given back."
    return said + (f" Done: {' '.join(map(letter, record.finished))}." if record.finished else "")


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
    drafted = tuple(request.draft_tokens)
    scheduler.update(plan, {"A": Result([0] * (accepted + 1), accepted=accepted)})
    after, kept = list(pool.table("A")), request.num_computed_tokens
    counts = (len(before), len(planned), len(after))
    part = Part(
        0, "verify", row.start, row.count, ahead, drafted, accepted, (0,) * (accepted + 1), kept, *counts, False
    )
    told = {
        "plan": f"slots for 1 known and {ahead} draft tokens, after {held} cached ones",
        "verify": f"one pass over {1 + ahead} tokens fills them; {accepted} of {ahead} accepted",
        "roll back": f"{kept} tokens count, {counted(part.given_back, 'block')} back to the pool",
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


# ---- the widget ------------------------------------------------------------------------------------------------------


def scheduler_steps(target: Model, drafter: Drafter, asks: Sequence[Ask] | None = None) -> Panel:
    """A few requests through engines with and without drafts; walk through plan, verify and roll back of each step.

    The little memory holds the longest sequence one and a half times. All engines run once, when the panel is made.
    """
    asks = example_asks(target) if asks is None else list(asks)
    little = -(-max(len(ask.prompt) + ask.new for ask in asks) * 3 // 8)
    engines = {
        "k = 4": dict(k=4),
        "k = 2": dict(k=2),
        "k = 4, drafts share 6 tokens": dict(k=4, draft_budget=6),
        "k = 4, little memory": dict(k=4, num_blocks=little),
        "no drafts": dict(drafter=None),
    }
    runs = run_engines(target, drafter, asks, engines)
    slots = 4 * max(part.blocks_planned for run in runs.values() for moment in run for part in moment.parts)

    def draw(step: int, engine: str) -> tuple[str, str]:
        run = runs[engine]
        at, show = divmod(min(step, 3 * len(run) - 1), 3)
        words = in_words(run[at], MOMENTS[show])
        if step >= 3 * len(run) - 1:
            words += f" All {len(asks)} were served in {len(run)} steps."
        return scheduler_steps_svg(run[at], MOMENTS[show], say(target), slots, len(asks), words), words

    last = 3 * max(map(len, runs.values())) - 1  # begin where all requests are there, and the plan has drafts
    return Panel(draw, player("moment", last, 1200, 3 * 4) | {"engine": choice("engine", list(runs))})
