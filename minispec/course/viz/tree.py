"""A token tree beside the mask that makes a tree of one pass: what every node sees, where it stands, what came of it.

The trees are those of real cycles: a Medusa drafter with so many nodes, a target that accepted a path of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from html import escape

from ...drafters.medusa import Medusa, MedusaHeads
from ...files.handle import Model
from ...generate import Output
from ...speculate import speculate
from ...trace import Cycle
from ...tree import best_tree, children, depths, expected_tokens, path_to, verify_mask
from . import light as go
from .light import make_subplots
from .panel import Panel, slider
from .presets import stops
from .style import GREY, KINDS, PALETTE, TEMPLATE

ACCEPTED, CHOSEN = KINDS["accepted"], PALETTE[1]
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32)  # of trees: more nodes cannot be read in a picture
HEIGHT = 600  # whatever the tree: what lies below the picture stays where it is
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


def tree_figure(
    cycle: Cycle, say: Callable[[int], str], last: str, node: int = 0, reach: Sequence[float] | None = None
) -> tuple[go.Figure, str]:
    """The tree and the mask of one cycle, and the same in words.

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
    names = [escape(_short(repr(word)[1:-1].replace(" ", "␣"))) for word in words]
    depth = [0, *depths(parents)]
    chosen = {place + 1 for place in path_to(parents, node - 1)} | {0}  # as places of the pass
    accepted = {place + 1 for place in cycle.path} | {0}

    figure = make_subplots(1, 2, column_widths=[0.52, 0.48], horizontal_spacing=0.12,
                           subplot_titles=("the tree", "the mask: token @position"))  # fmt: skip
    figure.update_layout(
        template=TEMPLATE, showlegend=False, height=HEIGHT, margin=dict(l=20, r=10, t=40, b=50), meta={"choose": "node"}
    )  # a click on a node, or on its line of the mask, chooses it
    figure.update_annotations(font_size=14)
    _draw_tree(figure, parents, names, depth, chosen, accepted, reach)
    _draw_mask(figure, parents, names, [cycle.committed - 1 + d for d in depth], node, chosen)
    return figure, _words(cycle, words, depth, node, parents, reach)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def _draw_tree(figure, parents, names, depth, chosen, accepted, reach) -> None:
    rows = rows_of(parents)
    for style, places in (
        (dict(color=GREY, width=1), range(1, len(rows))),
        (dict(color=ACCEPTED, width=5), accepted - {0}),
        (dict(color=CHOSEN, width=2, dash="dot"), chosen - {0}),
    ):
        x, y = [], []
        for place in places:
            above = parents[place - 1] + 1
            x += [depth[above], depth[above] + 0.5, depth[place], None]
            y += [rows[above], rows[place], rows[place], None]
        figure.add_scatter(x=x, y=y, mode="lines", line=style, hoverinfo="skip", row=1, col=1)
    shown = ["" if reach is None or not place else f"<br>accepted {reach[place - 1]:.1%} of the time"
             for place in range(len(rows))]  # fmt: skip
    paths = [" ".join(names[p + 1] for p in path_to(parents, place - 1)) or "(the last token)"
             for place in range(len(rows))]  # fmt: skip
    figure.add_scatter(
        x=depth,
        y=rows,
        mode="markers+text",
        text=[f"<b>{name}</b>" if place in accepted else name for place, name in enumerate(names)],
        textposition=[
            "middle left",
            *("top right" if node in parents else "middle right" for node in range(len(parents))),
        ],
        textfont=dict(size=12),
        customdata=list(zip(range(len(rows)), paths, shown, strict=True)),
        hovertemplate="%{customdata[1]}%{customdata[2]}<extra></extra>",
        marker=dict(
            size=[7 if reach is None or not place else 6 + 16 * reach[place - 1] ** 0.5 for place in range(len(rows))],
            color=[ACCEPTED if place in accepted else GREY for place in range(len(rows))],
            line=dict(width=[3 if place in chosen else 0 for place in range(len(rows))], color=CHOSEN),
        ),
        cliponaxis=False,
        row=1,
        col=1,
    )
    figure.update_xaxes(title="depth", range=[-0.9, max(depth) + 1.0], tickvals=list(range(max(depth) + 1)),
                        showgrid=False, zeroline=False, row=1, col=1)  # fmt: skip
    figure.update_yaxes(visible=False, autorange="reversed", row=1, col=1)


def _draw_mask(figure, parents, names, positions, node, chosen) -> None:
    """One column more than the pass has tokens: the sequence in the cache, to which every node attends."""
    size = len(names)
    seen = [[True, *row] for row in verify_mask(parents).tolist()]
    shade = [[0 if not see else 2 if row == node else 1 for see in seen[row]] for row in range(size)]
    columns = ["the sequence so far", *(f"{place}: {name}" for place, name in enumerate(names))]
    figure.add_heatmap(
        z=shade,
        zmin=0,
        zmax=2,
        colorscale=[[0, "rgba(127,140,154,.10)"], [0.5, PALETTE[0]], [1, CHOSEN]],
        showscale=False,
        xgap=1,
        ygap=1,
        customdata=[
            [(place, "attends to" if see else "does not attend to", columns[j]) for j, see in enumerate(row)]
            for place, row in enumerate(seen)
        ],
        hovertemplate="%{y} %{customdata[1]} %{customdata[2]}<extra></extra>",
        row=1,
        col=2,
    )
    step = 1 + size // 12
    figure.update_xaxes(title="seen: the text, then the pass",
                        tickvals=[0, *range(1 + step, size + 1, step)], ticktext=["text", *range(step, size, step)],
                        tickangle=0, showgrid=False, zeroline=False, row=1, col=2)  # fmt: skip
    figure.update_yaxes(
        tickvals=list(range(size)),
        ticktext=[
            f"<b>{place}: {name} @{position}</b>" if place == node else f"{place}: {name} @{position}"
            for place, (name, position) in enumerate(zip(names, positions, strict=True))
        ],
        tickfont=dict(size=10),
        autorange="reversed",
        showgrid=False,
        zeroline=False,
        row=1,
        col=2,
    )


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

    def draw(nodes: int, cycle: int, node: int) -> tuple[go.Figure, str]:
        now = whole(nodes)[min(cycle, len(whole(nodes))) - 1]
        text = tokens + run(nodes)[0].tokens
        say = lambda token: target.decode([token]) if target.tokenizer else f" {token}"  # noqa: E731
        return tree_figure(now, say, say(text[now.committed - 1]), min(node, len(now.drafted)), run(nodes)[1])

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
