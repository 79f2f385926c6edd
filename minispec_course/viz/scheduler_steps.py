"""Speculation in a server, step by step: what the scheduler plans, what the pass makes of it, what is given back.

Three moments of a step are shown. *Plan*: slots for the tokens that must be processed, and lookahead slots for drafts
that do not exist yet. *Verify*: the drafts lie in their slots, and the target has judged them. *Roll back*: what was
rejected is beyond the end again, and blocks that hold nothing return to the pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from minispec.drafters import Drafter
from minispec.load.handle import Model
from minispec.serving.engine import Engine
from minispec.serving.scheduler import Result

from .panel import Panel, choice, player
from .recorder import Ask, DryEngine, Frame, counted, endless, letter, watch
from .style import GREY, KINDS

MOMENTS = ("plan", "verify", "roll back")
SLOT, LINE = 12, 20  # width and height of a slot
REFUSED = "#cc79a7"
KEPT, READ = GREY, "#56b4e9"


@dataclass(frozen=True)
class Part:
    """One request's part in a step. Counts are tokens, one slot each, unless they say blocks."""

    id: int
    phase: str  # "prefill", "decode" or "verify"
    start: int  # in the cache before the step
    count: int  # certain tokens that the pass reads
    lookahead: int  # slots reserved after them
    drafted: tuple[int, ...]  # the tokens themselves, like `emitted`
    accepted: int
    emitted: tuple[int, ...]
    kept: int  # in the cache after the step; 0 if the request has ended
    blocks_before: int
    blocks_planned: int
    blocks_after: int
    ended: bool

    @property
    def given_back(self) -> int:
        """Blocks that the roll-back returned to the pool, or the request's end."""
        return self.blocks_planned - self.blocks_after


@dataclass(frozen=True)
class Moment:
    """A step: the books after it, and every request's part in it."""

    frame: Frame
    parts: tuple[Part, ...]
    budget: int

    @property
    def scheduled(self) -> int:
        """Tokens that the plan makes room for in the pass."""
        return sum(part.count + part.lookahead for part in self.parts)

    @property
    def read(self) -> int:
        return sum(part.count + len(part.drafted) for part in self.parts)


def record(engine: Engine | DryEngine, asks: Sequence[Ask]) -> list[Moment]:
    """Serve the requests and keep what each step planned, found and gave back.

    We listen at `update`: it is called with the plan and the verdicts, when the blocks are still those of the plan.
    """
    update, pool = engine.scheduler.update, engine.pool
    steps: list[tuple[Part, ...]] = []
    before: dict[int, int] = {}

    def blocks() -> dict[int, int]:
        return {id: len(table.blocks) for id, table in pool.tables.items()}

    def listen(plan, results):
        planned, drafted = blocks(), {row.request.id: tuple(row.request.draft_tokens) for row in plan.scheduled}
        done = update(plan, results)
        after, phases = blocks(), {row.id: row.phase for row in done.rows}
        parts = []
        for row in plan.scheduled:
            id = row.request.id
            result = results.get(id) or Result()  # none: something failed, and it is planned again
            kept = pool.tables[id].length if id in pool.tables else 0
            parts.append(
                Part(
                    id,
                    phases[id],
                    row.start,
                    row.count,
                    row.num_lookahead_tokens,
                    drafted[id],
                    result.accepted,
                    tuple(result.tokens),
                    kept,
                    before.get(id, 0),
                    planned[id],
                    after.get(id, 0),
                    id in done.finished,
                )
            )
        steps.append(tuple(parts))
        before.clear()
        before.update(after)
        return done

    engine.scheduler.update = listen
    try:
        frames = watch(engine, asks)
    finally:
        engine.scheduler.update = update
    budget = engine.scheduler.max_num_batched_tokens
    return [Moment(frame, parts, budget) for frame, parts in zip(frames, steps, strict=True)]


# ---- the picture -----------------------------------------------------------------------------------------------------


def scheduler_steps_html(moment: Moment, show: str, decode=str, slots: int | None = None, lines: int = 0) -> str:
    """One line per request in the pass: what it reads, its slots, its tokens. `show` is one of MOMENTS.

    `decode` makes a word of a token; `slots` and `lines` are how many the picture has room for.
    """
    if show not in MOMENTS:
        raise ValueError(f"show={show!r}: give one of {', '.join(MOMENTS)}")
    size = moment.frame.block_size
    slots = slots or max((part.blocks_planned * size for part in moment.parts), default=size)
    crumbs = " → ".join(f"<b><u>{name}</u></b>" if name == show else name for name in MOMENTS)
    head = (
        f'<div style="display:flex;flex-wrap:wrap;justify-content:space-between;gap:2px 24px;margin-bottom:6px">'
        f"<span>step {moment.frame.record.step}: {crumbs}</span><span>{_totals(moment, show)}</span></div>"
    )
    cell = "padding:3px 10px 3px 0;text-align:left;vertical-align:middle"
    names = ("request", "reads", f"slots, in blocks of {size}", "tokens")
    widths = ("auto", "76px", "240px", "180px")  # the second's texts differ in length, and the strips shall not jump
    rows = "".join(
        f'<th style="{cell};font-weight:500;opacity:.75;min-width:{width}">{name}</th>'
        for name, width in zip(names, widths, strict=True)
    )
    rows = f"<tr>{rows}</tr>"
    for part in moment.parts:
        texts = (
            f"<b>{letter(part.id)}</b>",
            _reads(part, show),
            _strip(part, show, size, slots),
            _tokens(part, show, decode),
        )
        rows += "<tr>" + "".join(f'<td style="{cell}">{text}</td>' for text in texts) + "</tr>"
    if not moment.parts:
        rows += f'<tr><td style="{cell}" colspan="4">No request is in this pass.</td></tr>'
    for _ in range(lines - max(1, len(moment.parts))):  # room for those that come and go, so that nothing below jumps
        rows += f'<tr aria-hidden="true"><td style="{cell}" colspan="4">&nbsp;</td></tr>'
    table = f'<table style="border-collapse:collapse;background:none;margin:0;width:100%">{rows}</table>'
    style = "line-height:1.4;color:var(--jp-ui-font-color1,inherit);overflow-x:auto;padding-right:12px"
    return f'<div style="{style}">{head}{table}{_legend()}</div>'


def _totals(moment: Moment, show: str) -> str:
    record = moment.frame.record
    if show == "plan":
        text = f"{moment.scheduled} of {moment.budget} tokens planned"
    elif show == "verify":
        text = f"{moment.read} tokens processed"
    else:
        text = f"{sum(len(part.emitted) for part in moment.parts)} tokens emitted"
    waiting = " ".join(map(letter, moment.frame.waiting)) or "none"
    used = record.used_blocks if show == "roll back" else record.used_blocks + sum(p.given_back for p in moment.parts)
    return f"{text} · {used} of {moment.frame.num_blocks} blocks used · waiting: {waiting}"


def _reads(part: Part, show: str) -> str:
    if show == "plan":
        return f"{part.count} + up to {part.lookahead}" if part.lookahead else f"{part.count}"
    return f"{part.count} + {len(part.drafted)}" if part.lookahead else f"{part.count}"


def slots_of(part: Part, show: str) -> list[str]:
    """What each slot of the request's blocks is at that moment: kept, read, accepted, refused, lookahead or empty."""
    if show == "roll back":
        return ["kept"] * part.kept
    drafts = ["lookahead"] * part.lookahead
    if show == "verify":
        refused = len(part.drafted) - part.accepted
        drafts = ["accepted"] * part.accepted + ["refused"] * refused + drafts[len(part.drafted) :]
    return ["kept"] * part.start + ["read"] * part.count + drafts


def _strip(part: Part, show: str, size: int, slots: int) -> str:
    look = {"kept": KEPT, "read": READ, "accepted": KINDS["accepted"], "refused": REFUSED}
    kinds, drawn = slots_of(part, show), []
    for i, kind in enumerate(kinds):
        x = i * SLOT
        if kind == "lookahead":
            style = f"fill:none;stroke:{KINDS['accepted']};stroke-dasharray:3 2"
            drawn.append(f'<rect x="{x + 1.5}" y="3" width="{SLOT - 3}" height="{LINE - 6}" style="{style}"/>')
            continue
        drawn.append(f'<rect x="{x + 1}" y="2" width="{SLOT - 2}" height="{LINE - 4}" fill="{look[kind]}"/>')
        if kind == "refused":  # crossed out, for eyes that see no colours
            line = f'x1="{x + 2}" y1="{LINE - 4}" x2="{x + SLOT - 2}" y2="4"'
            drawn.append(f'<line {line} style="stroke:#fff;stroke-width:2"/>')
    last = part.blocks_after if show == "roll back" else part.blocks_planned
    for block in range(part.blocks_planned):
        gone = block >= last
        line = "var(--jp-ui-font-color2,#888)" if gone else "var(--jp-ui-font-color1,#888)"
        style = f"fill:none;stroke:{line};stroke-width:{1 if gone else 1.4}" + (";stroke-dasharray:2 3" if gone else "")
        drawn.append(
            f'<rect x="{block * size * SLOT}" y="0.5" width="{size * SLOT}" height="{LINE - 1}" style="{style}"/>'
        )
    label = escape(f"Request {letter(part.id)}: {_slots_in_words(part, show, size)}")
    width = slots * SLOT + 2
    return (
        f'<svg role="img" aria-label="{label}" viewBox="-1 0 {width} {LINE}" '
        f'style="display:block;width:100%;min-width:240px;max-width:{width}px"><title>{label}</title>{"".join(drawn)}</svg>'
    )


def _slots_in_words(part: Part, show: str, size: int) -> str:
    kinds = slots_of(part, show)
    have = part.blocks_after if show == "roll back" else part.blocks_planned
    said = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
    return f"{', '.join(said) or 'nothing kept'}; {counted(have, 'block')} of {size} slots"


def _chip(text: str, colour: str, crossed: bool = False) -> str:
    style = f"border:1px solid {colour};background:color-mix(in srgb,{colour} 22%,transparent);border-radius:3px"
    style += ";padding:0 4px;margin-right:3px;white-space:pre;display:inline-block"
    style += ";text-decoration:line-through;opacity:.8" if crossed else ""
    return f'<span style="{style}">{escape(text)}</span>'


def _tokens(part: Part, show: str, decode) -> str:
    if show == "plan":
        return "" if part.phase == "prefill" else "drafts: not known yet" if part.lookahead else "no drafts"
    words = [decode(token) for token in part.drafted]
    last = "bonus" if part.accepted == len(words) else "corrected"
    emitted = "".join(
        _chip(decode(token), KINDS["accepted" if i < part.accepted else last]) for i, token in enumerate(part.emitted)
    )
    if show == "verify":
        return emitted + "".join(_chip(word, REFUSED, crossed=True) for word in words[part.accepted :])
    if part.ended:
        return f"done: {counted(part.given_back, 'block')} back"
    return f"{counted(part.given_back, 'block')} back" if part.given_back else ""


def _legend() -> str:
    def key(style: str, text: str) -> str:
        box = "display:inline-block;width:14px;height:12px;margin-right:5px;vertical-align:-1px;box-sizing:border-box"
        return f'<span style="margin-right:16px;white-space:nowrap"><span style="{box};{style}"></span>{text}</span>'

    slash = f"background:linear-gradient(135deg,{REFUSED} 42%,#fff 42%,#fff 58%,{REFUSED} 58%)"
    keys = (
        key(f"background:{KEPT}", "in the cache")
        + key(f"background:{READ}", "read now")
        + key(f"border:1px dashed {KINDS['accepted']}", "lookahead slot")
        + key(f"background:{KINDS['accepted']}", "accepted draft")
        + key(slash, "refused draft")
        + key(f"background:{KINDS['corrected']}", "correction")
        + key(f"background:{KINDS['bonus']}", "bonus, or plain token")
        + key("border:1px dashed var(--jp-ui-font-color2,#888)", "block given back")
    )
    return f'<div style="margin-top:8px;color:var(--jp-ui-font-color2,inherit)">{keys}</div>'


def in_words(moment: Moment, show: str) -> str:
    """The sentence under the picture."""
    record, parts = moment.frame.record, moment.parts
    said = f"Step {record.step}, {show}: "
    if show == "plan":
        ahead = sum(part.lookahead for part in parts)
        fresh = sum(max(0, part.blocks_planned - part.blocks_before) for part in parts)
        certain = moment.scheduled - ahead
        said += f"{counted(certain, 'certain token')} and {counted(ahead, 'lookahead slot')} for "
        said += f"{counted(len(parts), 'request')}, {counted(fresh, 'block')} taken."
        for what, ids in (("came in", record.admitted), ("pushed out", record.preempted)):
            said += f" {' '.join(map(letter, ids))} {what}." if ids else ""
        return said
    drafted, accepted = sum(len(part.drafted) for part in parts), sum(part.accepted for part in parts)
    if show == "verify":
        said += f"{drafted} drafted, {accepted} accepted, {drafted - accepted} refused; "
        return said + f"{counted(sum(len(part.emitted) for part in parts), 'token')} written in one pass."
    ahead = sum(part.lookahead for part in parts)
    said += f"{counted(ahead - accepted, 'lookahead slot')} of {ahead} forgotten, "
    said += f"{counted(sum(part.given_back for part in parts), 'block')} given back."
    return said + (f" Done: {' '.join(map(letter, record.finished))}." if record.finished else "")


# ---- the widget ------------------------------------------------------------------------------------------------------


def example_asks(target: Model) -> list[Ask]:
    """Four stories; the last one comes when the others are under way."""
    texts = ("Once upon a time", "One day, Tim and his dog", "Lily saw a big red ball.", "The old dog was tired. He")
    words = [tuple(target.encode(text)) if target.tokenizer else tuple(range(1, 9)) for text in texts]
    return [Ask(words[0], 18), Ask(words[1], 14), Ask(words[2], 10), Ask(words[3], 12, arrival=3)]


def run_engines(target: Model, drafter: Drafter, asks: Sequence[Ask], engines: Mapping[str, Mapping]):
    """The same requests through engines with these options: name → steps. An option `drafter` replaces the drafter."""
    runs = {}
    for name, options in engines.items():
        settings = dict(
            drafter=drafter, block_size=4, num_blocks=64, max_num_batched_tokens=32, enable_prefix_caching=False
        )
        runs[name] = record(Engine(endless(target), **settings | dict(options)), asks)
    return runs


def scheduler_steps(target: Model, drafter: Drafter, asks: Sequence[Ask] | None = None) -> Panel:
    """A few requests through engines with and without drafts; walk through plan, verify and roll back of each step.

    The little memory holds the longest text one and a half times. All engines run once, when the panel is made.
    """
    asks = example_asks(target) if asks is None else list(asks)
    longest = max(len(ask.prompt) + ask.new for ask in asks)
    runs = run_engines(
        target,
        drafter,
        asks,
        {
            "k = 4": dict(k=4),
            "k = 2": dict(k=2),
            "k = 4, drafts share 6 tokens": dict(k=4, draft_budget=6),
            "k = 4, little memory": dict(k=4, num_blocks=-(-longest * 3 // 8)),
            "no drafts": dict(drafter=None),
        },
    )
    size = next(iter(runs.values()))[0].frame.block_size
    slots = max(part.blocks_planned * size for run in runs.values() for moment in run for part in moment.parts)

    def word(token: int) -> str:
        return target.decode([token]) if target.tokenizer else str(token)

    def draw(moment: int, engine: str) -> tuple[str, str]:
        run = runs[engine]
        step, at = divmod(min(moment, 3 * len(run) - 1), 3)
        words = in_words(run[step], MOMENTS[at])
        if moment >= 3 * len(run) - 1:
            words += f" All {len(asks)} were served in {len(run)} steps."
        return scheduler_steps_html(run[step], MOMENTS[at], word, slots, len(asks)), words

    play, place = player("moment", 3 * max(map(len, runs.values())) - 1, interval=1200)
    place.value = 3 * 4  # all requests are there, and the fourth plan has drafts
    return Panel(draw, {"moment": place, "play": play, "engine": choice("engine", list(runs))})
