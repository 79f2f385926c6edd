"""The cycle stepper: walk through a speculative run, one stage of one cycle at a time.

Everything shown comes from a real run. Tokens and verdicts are its Trace's; the lengths of both caches follow from the
Trace by the rules of speculate.py; the whole distributions, which a Trace does not keep, are computed again by one pass
of each model over the finished output. They are the same ones, because a forward pass over known tokens gives at every
position the distribution that the model had there while generating.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape

import torch
from torch import Tensor

from ...files.handle import Model
from ...generate import Output
from ...sampling import Sampling
from ...trace import Cycle, Trace
from .panel import Panel, choice, player
from .style import GREY, KINDS, PALETTE

STAGES = ("draft", "verify", "rewind")
THROWN = "discarded"
# A sign and a border for each kind, for eyes and printers that see no colour.
SIGNS = {"accepted": "✓", "corrected": "→", "bonus": "+", THROWN: "✗", "drafted": "?"}
BORDERS = {"accepted": "solid", "corrected": "double", "bonus": "dashed", THROWN: "dotted", "drafted": "solid"}
COLOURS = {**KINDS, THROWN: GREY, "drafted": GREY}
P_COLOUR, Q_COLOUR = PALETTE[0], PALETTE[5]
BOX = "border:1px solid var(--jp-border-color2);border-radius:6px;padding:8px 10px;margin-right:4px"
CHIP = "display:inline-block;white-space:pre;margin:0 2px;padding:0 5px;border-radius:5px;line-height:1.5;"
STRIPES = "background-image:repeating-linear-gradient(45deg,transparent 0 3px,rgba(255,255,255,.45) 3px 5px);"
BARS, CONTEXT = 6, 24  # tokens of a distribution that have a bar; earlier tokens that stay in sight


@dataclass(frozen=True)
class Step:
    """One stage of one cycle, as it stands when the stage is over."""

    cycle: int  # from 0
    stage: str  # one of STAGES
    target_cache: int  # tokens whose keys and values each model holds
    draft_cache: int
    written: int  # tokens put out so far
    passes: int  # of the target, so far


def steps(trace: Trace) -> list[Step]:
    """Every stage of a run of `drafters.Model`: its drafts are chains, and it has a cache of its own.

    With n tokens committed, the target enters a cycle holding n − 1. It processes the last one and k draft tokens, and
    keeps the last one and the accepted ones. The draft model processes the last one and k − 1 of its own, because what
    follows the k-th is not needed.
    """
    found, written, draft = [], 0, 0
    for i, cycle in enumerate(trace.cycles):
        if cycle.parents is not None:
            raise ValueError(f"trace: cycle {i} drafted a tree; the stepper shows chains: give a run of drafters.Model")
        n, k = cycle.committed, len(cycle.drafted)
        draft = n + k - 1 if k else draft  # no room for a draft, so none is made
        found.append(Step(i, "draft", n - 1, draft, written, i))
        found.append(Step(i, "verify", n + k, draft, written, i + 1))
        draft, written = min(draft, n + cycle.accepted), written + cycle.kept
        found.append(Step(i, "rewind", n + cycle.accepted, draft, written, i + 1))
    return found


@torch.inference_mode()
def distributions_along(
    target: Model, draft: Model, prompt, output: Output, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """p and q at every position of the output, [n, V] each, by one pass of each model over prompt and output."""
    ids = target.encode(prompt)
    if not output.tokens or len(ids) != output.prompt_tokens:
        raise ValueError(
            f"prompt has {len(ids)} tokens and the output was generated after {output.prompt_tokens}: "
            "give the prompt that this output continues"
        )
    sampling, text = Sampling(temperature), [*ids, *output.tokens]

    def along(model: Model) -> Tensor:
        read = torch.tensor([text[:-1]], device=model.device)  # [1, T]
        return sampling.probs(model.transformer(read).logits[0, len(ids) - 1 :]).cpu()  # after each of these tokens

    return along(target), along(draft)


def chips(cycle: Cycle, stage: str) -> list[tuple[int, str]]:
    """The tokens of a cycle with their kinds, as a stage knows them: drafted only, then judged, then what remains."""
    if stage == "draft":
        return [(token, "drafted") for token in cycle.drafted]
    put_out = list(zip(cycle.tokens, cycle.kinds, strict=True))
    if stage == "rewind":
        return put_out
    passed = min(cycle.accepted, cycle.kept)  # an end of the output discards what comes after it
    thrown = [(token, THROWN) for token in cycle.drafted[passed:]]
    return [*put_out[:passed], *thrown[:1], *put_out[passed:], *thrown[1:]]


def cycle_stepper_html(
    output: Output, p: Tensor, q: Tensor, step: int, place: int = 0, decode: Callable[[list[int]], str] | None = None
) -> tuple[str, str]:
    """One step as HTML, and in words. `place` chooses whose distributions are shown: those of the cycle's 1st, 2nd, …
    token, or with 0 of the one the target chose itself."""
    walk = steps(output.trace)
    if not 0 <= step < len(walk):
        raise ValueError(f"step={step!r}: this run has the steps 0 … {len(walk) - 1}")
    now = walk[step]
    cycle = output.trace.cycles[now.cycle]
    if not 0 <= place <= len(cycle.drafted) + 1:
        place = len(cycle.drafted) + 1  # a shorter cycle than the one the place was chosen in
    show = lambda token: _text(decode([token]) if decode else str(token))  # noqa: E731
    start = sum(c.kept for c in output.trace.cycles[: now.cycle])
    earlier = [chip for c in output.trace.cycles[: now.cycle] for chip in chips(c, "rewind")]
    left_out = '<span style="opacity:.6">… </span>' if len(earlier) > CONTEXT else ""
    past = "".join(_chip(show(token), kind, faint=True) for token, kind in earlier[-CONTEXT:])
    here = "".join(_chip(show(token), kind) for token, kind in chips(cycle, now.stage))
    finished = now.cycle + (now.stage == "rewind")  # a pass counts together with what it wrote
    per_pass = f"{now.written / finished:.2f}" if finished else "–"
    words = f"Cycle {now.cycle + 1} of {len(output.trace.cycles)}, {now.stage}: {_told(cycle, now, show)}"
    html = f"""<div class="minispec-cycles" style="color:var(--jp-ui-font-color1);line-height:1.9">
{_legend()}
<div role="img" aria-label="{escape(words)}" style="{BOX}">
<div>{left_out}{past}</div>
<div style="margin-top:6px"><b>cycle {now.cycle + 1} · {now.stage}</b>&ensp;{here}</div></div>
<div style="display:flex;flex-wrap:wrap;gap:12px 36px;margin-top:10px">
<div style="flex:1 1 300px">{_caches(now, cycle, show)}
<div style="margin-top:10px">generated <b>{now.written}</b> · forward passes <b>{now.passes}</b> · tokens per pass
<b>{per_pass}</b></div></div>
<div style="flex:1 1 380px">{_distributions(cycle, now.stage, start, place, p, q, show)}</div></div></div>"""
    return html, words


def cycle_stepper(target: Model, draft: Model, prompt, output: Output, temperature: float = 0.0) -> Panel:
    """Play, or step with the arrow keys, through a run of `speculate(target, prompt, drafters.Model(draft), …)`.

    `temperature` is the run's. A greedy distribution has all its mass on one token, so at temperature 0 the
    picture shows those of temperature 1: the largest bar wins.
    """
    if output.trace is None or not output.trace.cycles:
        raise ValueError("output has no cycles to step through: give what speculate returned")
    p, q = distributions_along(target, draft, prompt, output, temperature or 1.0)
    longest = max(len(cycle.drafted) for cycle in output.trace.cycles)
    decode = target.decode if target.tokenizer else None
    play, place = player("step", len(steps(output.trace)) - 1, interval=900)
    looked_at = {"the target's own": 0} | {_ordinal(i): i for i in range(1, longest + 2)}

    def draw(step: int, token: int) -> tuple[str, str]:
        return cycle_stepper_html(output, p, q, step, token, decode)

    return Panel(draw, {"step": place, "play": play, "token": choice("p and q of token", looked_at)})


# ---------------------------------------------------------------- the parts


def _text(token: str) -> str:
    """A token's text with its blanks visible."""
    return token.replace(" ", "␣").replace("\n", "⏎") or "∅"


def _chip(text: str, kind: str, faint: bool = False) -> str:
    colour, cross = COLOURS[kind], "text-decoration:line-through;" if kind == THROWN else ""
    width, strength = 3 if kind == "corrected" else 2, 8 if faint else 20
    look = f"{CHIP}border:{width}px {BORDERS[kind]} {colour};{cross}{'opacity:.75;' if faint else ''}"
    look += f"background:color-mix(in srgb, {colour} {strength}%, transparent)"
    return f'<span title="{kind}" style="{look}"><small>{SIGNS[kind]}</small> {escape(text)}</span>'


def _legend() -> str:
    kinds = "".join(_chip(kind, kind) for kind in ("accepted", "corrected", "bonus", THROWN))
    return f'<div style="margin-bottom:6px">{kinds}</div>'


def _told(cycle: Cycle, now: Step, show: Callable[[int], str]) -> str:
    name = lambda token: f"“{show(token)}”"  # noqa: E731
    gamma, accepted = len(cycle.drafted), cycle.accepted
    held = f"The target's cache holds {now.target_cache} tokens, the draft's {now.draft_cache}."
    if now.stage == "draft":
        proposed = ", ".join(map(name, cycle.drafted)) or "there is no room"
        return f"the draft model proposes {gamma} tokens: {proposed}. {held}"
    last = f"a bonus, {name(cycle.token)}" if cycle.bonus else f"the correction {name(cycle.token)}"
    if now.stage == "verify":
        said = f"one forward pass of the target over {gamma + 1} tokens accepts {accepted} of {gamma}"
        return f"{said}, and adds {last}. {held}"
    ended = " The output ended inside this cycle." if cycle.kept < accepted + 1 else ""
    return f"{gamma - accepted} rejected tokens leave the target's cache; {cycle.kept} were emitted.{ended} {held}"


def _caches(now: Step, cycle: Cycle, show: Callable[[int], str]) -> str:
    """Both caches: how many tokens from before the cycle, and after them a slot for each token the cycle processes."""
    before = cycle.committed - 1
    rows = []
    for name, held in (("target", now.target_cache), ("draft", now.draft_cache)):
        slots = "".join(
            _slot(escape(text), before + i < held)
            for i, text in enumerate(["last", *map(show, cycle.drafted)])
            if name == "target" or i < len(cycle.drafted)  # the draft never reads its own last guess
        )
        earlier = _slot(f"{min(held, before)} earlier", True)
        rows.append(
            f'<div style="display:flex;gap:6px;margin:4px 0;line-height:1.6"><span style="width:3.4em">{name}</span>'
            f'<b style="width:1.8em">{held}</b><small style="flex:1">{earlier}{slots}</small></div>'
        )
    return "<div><b>tokens in the cache</b>, old ones and this cycle's</div>" + "".join(rows)


def _slot(text: str, held: bool) -> str:
    """One slot of a cache, filled or free."""
    look = f"border:1px solid {GREY};background:color-mix(in srgb, {GREY} 35%, transparent)"
    free = f"border:1px dotted {GREY};opacity:.4"
    return f'<span style="display:inline-block;padding:0 4px;margin-right:2px;{look if held else free}">{text}</span>'


def _distributions(
    cycle: Cycle, stage: str, start: int, place: int, p: Tensor, q: Tensor, show: Callable[[int], str]
) -> str:
    """p and q at one position of the cycle: the likeliest tokens, and those that were drafted and emitted there."""
    i = cycle.accepted if place == 0 else place - 1  # counted from 0 inside the cycle
    if place == 0 and stage == "draft":
        i = 0  # nothing is judged yet: what the first draft was chosen from
    if i > cycle.accepted:
        return f"<div>{_ordinal(i + 1)} position: after a rejected token, so p and q are of no use here.</div>"
    if start + i >= len(p):
        return f"<div>{_ordinal(i + 1)} position: after the end of the output.</div>"
    guess = cycle.drafted[i] if i < len(cycle.drafted) else None
    judged = stage != "draft"
    if guess is None and not judged:
        return f"<div>{_ordinal(i + 1)} position: nothing is drafted here.</div>"
    chosen = cycle.tokens[i] if judged and i < len(cycle.tokens) else None
    p_here, q_here = p[start + i], q[start + i]
    # Before the pass p is not known; after the last draft token there is no q.
    score = q_here if not judged else p_here + q_here if guess is not None else p_here
    tokens = score.topk(BARS).indices.tolist()
    tokens += [token for token in dict.fromkeys((guess, chosen)) if token is not None and token not in tokens]
    tokens.sort(key=lambda token: -float((p_here if judged else q_here)[token]))
    if guess is None:
        title = f"{_ordinal(i + 1)} position: the bonus, after the last draft token"
    else:
        verdict = "" if not judged else ": accepted" if i < cycle.accepted else ": rejected and corrected"
        title = f"{_ordinal(i + 1)} position{verdict}"
    rows = "".join(_distribution_row(token, guess, chosen, p_here, q_here if guess is not None else None, judged, show)
                   for token in tokens)  # fmt: skip
    key = f'<span style="color:{P_COLOUR}">■</span> p, the target{"" if judged else " (not yet known)"}'
    if guess is not None:
        key += f'&ensp;<span style="color:{Q_COLOUR}">▨</span> q, the draft'
    return f"<div><b>{title}</b></div><div>{key}</div>{rows}"


def _distribution_row(token: int, guess, chosen, p: Tensor, q: Tensor | None, judged: bool, show) -> str:
    marks = ", ".join(sign for sign, marked in (("drafted", guess), ("emitted", chosen)) if marked == token)
    bars = _bar(float(p[token]), P_COLOUR, "") if judged else ""
    if q is not None:
        bars += _bar(float(q[token]), Q_COLOUR, STRIPES)
    return (
        '<div style="display:flex;align-items:center;gap:8px;line-height:1.2;margin:3px 0">'
        f'<span style="width:7em;text-align:right;white-space:pre;overflow:hidden">{escape(show(token))}</span>'
        f'<span style="flex:1">{bars}</span><span style="width:7em"><small>{marks}</small></span></div>'
    )


def _bar(share: float, colour: str, pattern: str) -> str:
    look = f"display:inline-block;height:9px;width:{80 * share:.2f}%;background-color:{colour};{pattern}"
    return (
        f'<div style="display:flex;align-items:center;gap:6px"><span style="{look}"></span>'
        f"<small>{share:.2f}</small></div>"
    )


def _ordinal(i: int) -> str:
    return f"{i}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(i % 10 if i // 10 % 10 != 1 else 0, 'th') }"
