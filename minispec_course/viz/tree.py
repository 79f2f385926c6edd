"""A token tree beside the mask that makes a tree of one pass: what every node sees, where it stands, what came of it.

The trees are those of real cycles: a Medusa drafter with so many nodes, a target that accepted a path of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from html import escape

from minispec.drafters.medusa import Medusa, MedusaHeads
from minispec.generate import Output
from minispec.load.handle import Model
from minispec.speculate import speculate
from minispec.trace import Cycle
from minispec.tree import best_tree, children, depths, expected_tokens, path_to, verify_mask

from .drawing import RULE, SOFT, Canvas
from .panel import Panel, slider
from .presets import stops
from .style import GREY, KINDS, PALETTE

ACCEPTED, CHOSEN = KINDS["accepted"], PALETTE[1]
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32)  # of trees: more nodes cannot be read in a picture
HEIGHT = 600  # whatever the tree: what lies below the picture stays where it is
TOP, BOTTOM, MASK = 40, 550, 490  # where tree and mask begin and end, and the mask's left edge
LONGEST = 9  # letters of a token that have room beside a node


def rows_of(parents: Sequence[int]) -> list[float]:
    """Where each node of the picture is across the depths: leaves in a row, a parent in the middle of its children."""
    below, place, free = children(parents), {}, iter(range(len(parents) + 1))

    def put(node: int) -> float:
        under = [put(child) for child in below[node]]
        place[node] = (under[0] + under[-1]) / 2 if under else float(next(free))
        return place[node]

    put(-1)
    return [place[node] for node in range(-1, len(parents))]  # the root first, as in the verify pass


def reaches(accuracies: Sequence[Sequence[float]], nodes: int) -> list[float]:
    """How often each node of the best tree is accepted, in the order of from_candidates: by depth, then by choice."""
    reach = {choice: expected_tokens(accuracies, [choice]) - 1 for choice in best_tree(accuracies, nodes)}
    return [reach[choice] for choice in sorted(reach, key=lambda choice: (len(choice), choice))]


def tree_svg(
    cycle: Cycle, say: Callable[[int], str], last: str, node: int = 0, reach: Sequence[float] | None = None
) -> tuple[str, str]:
    """The tree and the mask of one cycle, and the same in words. A node, or its line of the mask, is chosen by a click.

    `say(token)` is a token's text, `last` that of the last committed token. `node` is the one to look at: 0 is the last
    token, i the i-th node, as they stand in the pass. `reach` says how often each node is accepted on average.
    """
    parents = list(range(-1, len(cycle.drafted) - 1)) if cycle.parents is None else cycle.parents
    n, size = len(parents), len(parents) + 1
    if not 0 <= node <= n:
        raise ValueError(f"node={node}: the pass reads {size} tokens, so give a number from 0 to {n}")
    if reach is not None and len(reach) != n:
        raise ValueError(f"reach has {len(reach)} numbers for a tree of {n} nodes: give one for each")
    words = [last, *(say(token) for token in cycle.drafted)]
    names = [_short(repr(word)[1:-1].replace(" ", "␣")) for word in words]
    depth = [0, *depths(parents)]
    chosen = {place + 1 for place in path_to(parents, node - 1)} | {0}  # as places of the pass
    accepted = {place + 1 for place in cycle.path} | {0}

    canvas = Canvas(HEIGHT).text(10, 24, "the tree", 14).text(MASK - 100, 24, "the mask: token @position", 14)
    _draw_tree(canvas, parents, names, depth, chosen, accepted, reach)
    _draw_mask(canvas, parents, names, [cycle.committed - 1 + d for d in depth], node)
    said = _words(cycle, words, depth, node, parents, reach)
    return canvas.svg(said), said


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def _part(canvas: Canvas, place: int, told: str, tab: int, parts: Callable[[], object]) -> None:
    """What `parts` draws, as one part of the picture that chooses a node and says something to the pointer."""
    canvas.parts.append(f'<g data-choose=\'{{"node": {place}}}\' tabindex="{tab}"><title>{escape(told)}</title>')
    parts()
    canvas.parts.append("</g>")


def _draw_tree(canvas, parents, names, depth, chosen, accepted, reach) -> None:
    rows = rows_of(parents)
    step, tall = (MASK - 100 - 72 - 72) / max(1, max(depth)), (BOTTOM - TOP) / (max(rows) + 1)
    x, y = [72 + d * step for d in depth], [TOP + (row + 0.5) * tall for row in rows]
    for colour, thick, dash, places in (
        (RULE, 1, "", range(1, len(rows))),
        (ACCEPTED, 5, "", sorted(accepted - {0})),
        (CHOSEN, 2, "2 3", sorted(chosen - {0})),
    ):
        for place in places:
            above = parents[place - 1] + 1
            canvas.line(x[above], y[above], x[above] + step / 2, y[place], colour, thick, dash)
            canvas.line(x[above] + step / 2, y[place], x[place], y[place], colour, thick, dash)
    for place, name in enumerate(names):
        path = " ".join(names[p + 1] for p in path_to(parents, place - 1)) or "(the last token)"
        often = "" if reach is None or not place else f", accepted {reach[place - 1]:.1%} of the time"
        radius = 3.5 if reach is None or not place else 3 + 8 * reach[place - 1] ** 0.5
        at = (-10, 4, "end") if not place else (radius + 2, -6, "start") if place - 1 in parents else (11, 4, "start")

        def node(place=place, name=name, radius=radius, at=at) -> None:
            if place in chosen:
                canvas.circle(x[place], y[place], radius + 2, CHOSEN)
            canvas.circle(x[place], y[place], radius, ACCEPTED if place in accepted else GREY)
            canvas.text(x[place] + at[0], y[place] + at[1], name, 11.5, at[2], place in accepted)

        _part(canvas, place, path + often, 0, node)
    for d in range(max(depth) + 1):
        canvas.text(72 + d * step, BOTTOM + 16, str(d), 11, "middle", colour=SOFT)
    canvas.text(72 + max(depth) * step / 2, BOTTOM + 36, "depth", 13, "middle")


def _draw_mask(canvas, parents, names, positions, node) -> None:
    """One column more than the pass has tokens: the sequence in the cache, to which every node attends."""
    size = len(names)
    wide, tall = (canvas.width - 10 - MASK) / (size + 1), (BOTTOM - TOP) / size
    gap = min(1, wide / 8)

    def cells(row: int, columns: Iterable[int]) -> str:
        across, down = f"{wide - gap:.1f}", f"{tall - gap:.1f}"
        return "".join(f"M{MASK + j * wide:.1f} {TOP + row * tall:.1f}h{across}v{down}h-{across}z" for j in columns)

    for row, line in enumerate(verify_mask(parents).tolist()):
        seen = [0, *(place + 1 for place, see in enumerate(line) if see)]
        others = " ".join(f"{j - 1}: {names[j - 1]}" for j in seen[1:])

        def draw(row=row, seen=seen) -> None:
            unseen = [j for j in range(size + 1) if j not in seen]
            canvas.parts.append(f'<path d="{cells(row, unseen)}" fill="{GREY}" fill-opacity=".1"/>')
            canvas.parts.append(f'<path d="{cells(row, seen)}" fill="{CHOSEN if row == node else PALETTE[0]}"/>')
            label = f"{row}: {names[row]} @{positions[row]}"
            canvas.text(MASK - 6, TOP + (row + 0.5) * tall + 3.5, label, 10.5, "end", row == node)

        _part(canvas, row, f"{row}: {names[row]} attends to the sequence so far and {others}", -1, draw)
    step = 1 + size // 12
    ticks = [(0, "text"), *((place + 1, str(place)) for place in range(step, size, step))]
    for column, text in ticks:
        canvas.text(MASK + (column + 0.5) * wide, BOTTOM + 16, text, 10.5, "middle", colour=SOFT)
    canvas.text((MASK + canvas.width - 10) / 2, BOTTOM + 36, "seen: the text, then the pass", 13, "middle")


def _words(cycle: Cycle, words, depth, node, parents, reach) -> str:
    n = len(parents)
    said = f"A pass over {n + 1} tokens: the last one and a tree of {n}, {max(depth)} deep. "
    if reach is not None:
        said += f"On average such a tree writes {1 + sum(reach):.2f} tokens; "
    said += f"this pass wrote {cycle.accepted + 1}: "
    said += (
        f"{''.join(words[place + 1] for place in cycle.path)!r} accepted, then " if cycle.path else "none accepted, "
    )
    said += "a bonus. " if cycle.bonus else "a correction. "
    if node:
        path = [place + 1 for place in path_to(parents, node - 1)]
        above = " then ".join(repr(words[place]) for place in path)
        also = [place for place in range(1, n + 1) if depth[place] == depth[node] and place != node]
        said += (
            f"Number {node} guesses position {cycle.committed - 1 + depth[node]}, by the path {above}. It sees the "
            f"text so far and {len(path) + 1} of the {n + 1} tokens of this pass. It shares its position with "
            f"{len(also)} others."
        )
    else:
        said += (
            f"Number 0 is the last token, {words[0]!r}, at position {cycle.committed - 1}; every node attends to it."
        )
    return said


def tree_viewer(
    target: Model, prompt, heads: MedusaHeads | None = None, nodes: int = 12, new_tokens: int = 24
) -> Panel:
    """Choose how many nodes the tree has, a cycle of the run that follows, and a node to look at."""
    heads = MedusaHeads.load(target) if heads is None else heads
    tokens = target.encode(prompt) if isinstance(prompt, str) else list(prompt)

    @cache
    def run(nodes: int) -> tuple[Output, list[float]]:
        """Greedy, so that every size of tree gives the same output, in more or fewer forward passes."""
        out = speculate(target, tokens, Medusa(target, heads, nodes), k=heads.count, max_new_tokens=new_tokens)
        return out, reaches(heads.accuracy, nodes)

    def whole(nodes: int) -> list[Cycle]:
        """Cycles with all of the tree: the last ones of a text have less room."""
        return [cycle for cycle in run(nodes)[0].trace.cycles if len(cycle.drafted) == len(run(nodes)[1])]

    def draw(nodes: int, cycle: int, node: int) -> tuple[str, str]:
        now = whole(nodes)[min(cycle, len(whole(nodes))) - 1]
        text = tokens + run(nodes)[0].tokens
        say = lambda token: target.decode([token]) if target.tokenizer else f" {token}"  # noqa: E731
        return tree_svg(now, say, say(text[now.committed - 1]), min(node, len(now.drafted)), run(nodes)[1])

    budget = stops("nodes", sorted({*SIZES, nodes}), nodes)
    for size in dict(budget.options).values():
        run(size)  # now, because a run takes longer than a step of the slider may
    most = max(range(len(whole(nodes))), key=lambda i: whole(nodes)[i].accepted)  # start where there is most to see
    which = slider("pass", most + 1, 1, len(whole(nodes)))
    place = slider("look at", min(3, nodes), 0, nodes)

    def fit(size: int) -> None:
        which.max, place.max = len(whole(size)), len(run(size)[1])

    panel = Panel(draw, {"nodes": budget, "cycle": which, "node": place})
    panel.lead("nodes", fit)
    return panel
