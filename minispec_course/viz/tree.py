"""A token tree beside the mask that makes a tree of one pass: what every node sees, where it stands, what came of it.

The trees are those of real cycles: a Medusa drafter with so many nodes, a target that accepted a path of them.
"""

from collections.abc import Callable, Sequence
from functools import cache

from minispec.drafters.medusa import Medusa, MedusaHeads
from minispec.load.model import Model
from minispec.output import Output
from minispec.speculate import speculate
from minispec.trace import Cycle
from minispec.tree import best_tree, children, depths, expected_tokens, path_to, verify_mask

from .drawing import RULE, SOFT, Canvas, Drawing, say
from .panel import Panel, slider, stops
from .style import GREY, KINDS, PALETTE

ACCEPTED, CHOSEN = KINDS["accepted"], PALETTE[1]
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32)  # of trees: more nodes cannot be read in a picture
HEIGHT = 600  # whatever the tree: what lies below the picture stays where it is
TOP, BOTTOM, MASK = 40, 550, 490  # where tree and mask begin and end, and the mask's left edge


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
    parents: Sequence[int], names: Sequence[str], node: int, accepted=(), reach=None, first=0, height=HEIGHT, words=""
) -> str:
    """A tree and its mask. A node, or its line of the mask, is chosen by a click.

    `names` are the tokens of the pass, the last committed one first: the root; `node` is the one to look at, by
    its place in the pass: 0 is the root, i + 1 is node i. `accepted` ones are marked, `reach` says how often each node
    is accepted on average, `first` is the position of the last token.
    """
    depth, bottom = [0, *depths(parents)], height - 50
    chosen = {place + 1 for place in path_to(parents, node - 1)} | {0}  # as places of the pass
    canvas = Canvas(height, cut=386).text(10, 24, "the tree", 14).text(MASK - 96, 24, "the mask: token @position", 14)
    rows = rows_of(parents)
    step, tall = (MASK - 100 - 72 - 72) / max(1, max(depth)), (bottom - TOP) / (max(rows) + 1)
    x, y = [72 + d * step for d in depth], [TOP + (row + 0.5) * tall for row in rows]
    for colour, thick, dash, places in (
        (RULE, 1, "", range(1, len(rows))),
        (ACCEPTED, 5, "", sorted({*accepted} - {0})),
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
        at = (-10, 4, "end") if not place else (-radius, -6, "end") if place - 1 in parents else (11, 4, "start")
        with canvas.choice("node", place - 1, path + often):
            if place in chosen:
                canvas.mark(x[place], y[place], "circle", CHOSEN, radius + 2)
            canvas.mark(x[place], y[place], "circle", ACCEPTED if place in accepted else GREY, radius)
            canvas.text(x[place] + at[0], y[place] + at[1], _short(name), 11.6, at[2], place in accepted)
    for d in range(max(depth) + 1):
        canvas.text(72 + d * step, bottom + 16, str(d), 12, "middle", colour=SOFT)
    canvas.text(72 + max(depth) * step / 2, bottom + 36, "depth", 13, "middle")
    _mask(canvas, parents, names, [first + d for d in depth], node, bottom)
    return canvas.svg(words)


def _short(name: str) -> str:
    name = name if any(map(str.isalnum, name)) else f"“{name}”"  # a full stop is hard to see
    return name if len(name) <= 9 else name[:8] + "…"


def number(place: int) -> str:
    return str(place - 1) if place else "root"


def _mask(canvas: Canvas, parents, names, positions, node: int, bottom: float) -> None:
    """One column more than the pass has tokens: the sequence in the cache, to which every node attends."""
    size = len(names)
    wide, tall = (canvas.width - 10 - MASK) / (size + 1), (bottom - TOP) / size
    gap = min(1, wide / 8)
    for row, line in enumerate(verify_mask(parents).tolist()):
        seen = [0, *(place + 1 for place, see in enumerate(line) if see)]
        others = " ".join(f"{number(j - 1)}: {names[j - 1]}" for j in seen[1:])
        boxes = [(MASK + j * wide, TOP + row * tall, wide - gap, tall - gap) for j in range(size + 1)]
        title = f"{number(row)}: {names[row]} attends to the sequence so far and {others}"
        with canvas.choice("node", row - 1, title, -1):
            canvas.cells([boxes[j] for j in range(size + 1) if j not in seen], GREY, 0.1)
            canvas.cells([boxes[j] for j in seen], CHOSEN if row == node else PALETTE[0])
            label = f"{number(row)}: {_short(names[row])} @{positions[row]}"
            canvas.text(MASK - 6, TOP + (row + 0.5) * tall + 3.5, label, 11.6, "end", row == node)
    step = 1 + size // 12
    canvas.text(MASK + wide - 4, bottom + 16, "cache", 11.6, "end", colour=SOFT)
    canvas.text(MASK + wide, bottom + 16, "root", 11.6, colour=SOFT)
    for place in range(step if step == 1 else step + 1, size, step):
        canvas.text(MASK + (place + 1.5) * wide, bottom + 16, number(place), 11.6, "middle", colour=SOFT)
    canvas.text((MASK + canvas.width - 10) / 2, bottom + 36, "attends to: the cache, then the pass", 13, "middle")


def tree_and_mask(tokens: Sequence[int], parents: Sequence[int], decode: Callable, prompt: Sequence[int]) -> Drawing:
    """A draft tree after a prompt, and beside it the mask of its verify pass. The last node has its path marked."""
    parents, mask = list(parents), verify_mask(list(parents))  # [n + 1, n + 1]: the last token, then the nodes
    place = len(parents)
    names = [repr(decode([t]))[1:-1].replace(" ", "␣") for t in (prompt[-1], *tokens)]
    seen = [i for i, one in enumerate(mask[place].tolist()) if one]
    marked = ", ".join("the last token" if i == 0 else f"node {i - 1}" for i in seen)
    words = f"A tree of {len(parents)} nodes with parents {parents}, and its mask of {len(mask)} × {len(mask)}, with "
    words += f"{int(mask.sum())} filled cells. Node {place - 1} attends to {marked}, and to nothing on another branch."
    height, first = 110 + 34 * len(mask), len(prompt) - 1
    return Drawing(tree_svg(parents, names, place, first=first, height=height, words=words), words)


def _words(cycle: Cycle, words, depth, node, parents, reach) -> str:
    n = len(parents)
    said = f"A pass over {n + 1} tokens: the last one and a tree of {n}, {max(depth)} deep. "
    if reach is not None:
        said += f"On average such a tree emits {1 + sum(reach):.2f} tokens; "
    said += f"this pass emitted {cycle.accepted + 1}: "
    path = "".join(words[place + 1] for place in cycle.path)
    said += f"“{path}” accepted, then " if path else "none accepted, "
    said += "a bonus. " if cycle.bonus else "a correction. "
    if not node:
        at = cycle.committed - 1
        return f"{said}The root is the last token, “{words[0]}”, at position {at}; every node attends to it."
    above = " then ".join(f"“{words[place + 1]}”" for place in path_to(parents, node - 1))
    also = sum(d == depth[node] for d in depth) - 1
    return (
        f"{said}Node {node - 1} guesses position {cycle.committed - 1 + depth[node]}, by the path {above}. It sees the "
        f"sequence so far and {depth[node] + 1} of the {n + 1} tokens of this pass. It shares its position with "
        f"{also} others."
    )


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
        now, reach = whole(nodes)[min(cycle, len(whole(nodes))) - 1], run(nodes)[1]
        sequence = tokens + run(nodes)[0].tokens
        words = [say(target)(token) for token in (sequence[now.committed - 1], *now.drafted)]
        parents = list(range(-1, len(now.drafted) - 1)) if now.parents is None else now.parents
        node, accepted = min(node + 1, len(now.drafted)), {place + 1 for place in now.path} | {0}
        said = _words(now, words, [0, *depths(parents)], node, parents, reach)
        return tree_svg(parents, words, node, accepted, reach, now.committed - 1, words=said), said

    budget = stops("nodes", sorted({*SIZES, nodes}), nodes)
    for size in dict(budget.options).values():
        run(size)  # now, because a run takes longer than a step of the slider may
    most = max(range(len(whole(nodes))), key=lambda i: whole(nodes)[i].accepted)  # start where there is most to see
    which = slider("pass", most + 1, 1, len(whole(nodes)))
    place = slider("look at", min(2, nodes - 1), -1, nodes - 1)  # −1 is the root

    def fit(size: int) -> None:
        which.max, place.max = len(whole(size)), len(run(size)[1]) - 1

    panel = Panel(draw, {"nodes": budget, "cycle": which, "node": place})
    panel.lead("nodes", fit)
    return panel
