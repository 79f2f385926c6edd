"""Fresh cases of set 17, the coding round: its first five functions. The others are in c17_more.py."""

from __future__ import annotations

import torch

from . import c17_more  # noqa: F401 (cases are looked for by the number of a set)
from .fresh import Draw, fresh

# ---- 17.ragged_sampler ----------------------------------------------------------------------------------------------


def ragged(draw: Draw, batch: int, k: int, lengths: list[int], positive: bool = True) -> dict:
    vocab = draw.whole(3, 5)
    p = torch.stack([draw.rows(k + 1, vocab, positive=positive, distinct=positive) for _ in range(batch)])
    q = torch.stack([draw.rows(k, vocab, positive=True, distinct=True) for _ in range(batch)])
    draft = torch.tensor([[draw.whole(0, vocab - 1) for _ in range(k)] for _ in range(batch)])
    u = torch.tensor([[draw.whole(0, 99) / 100 + 0.003 for _ in range(k)] for _ in range(batch)]).double()
    return dict(p=p, q=q, draft=draft, lengths=torch.tensor(lengths), u=u)


@fresh("17.ragged_sampler", "one length")
def _(draw):
    k, batch = draw.whole(1, 3), draw.whole(1, 1 + draw.size)
    return ragged(draw, batch, k, [k] * batch)


@fresh("17.ragged_sampler", "different lengths", weight=2)
def _(draw):
    k, batch = draw.whole(2, 4), draw.whole(2, 2 + draw.size)
    return ragged(draw, batch, k, [draw.whole(0, k) for _ in range(batch)])


@fresh("17.ragged_sampler", "most draft tokens are accepted", count=6)
def _(draw):
    """Where chance would reject early: long accepted runs, and bonuses of short drafts."""
    k, batch = draw.whole(2, 4), draw.whole(2, 2 + draw.size)
    case = ragged(draw, batch, k, [draw.whole(0, k) for _ in range(batch)])
    return {**case, "u": case["u"] / 10}


@fresh("17.ragged_sampler", "tokens without probability", weight=0.5, count=6)
def _(draw):
    """A random number may be exactly 0, and still a token that p cannot give is never accepted."""
    k, batch = draw.whole(1, 3), draw.whole(1, 2 + draw.size)
    case = ragged(draw, batch, k, [draw.whole(1, k) for _ in range(batch)], positive=False)
    b = draw.randrange(batch)
    p, drafted = case["p"][b, 0], case["draft"][b, 0]
    p[(drafted + 1) % len(p)] += p[drafted]
    p[drafted], case["u"][b, 0] = 0.0, 0.0
    return case


@fresh("17.ragged_sampler", "p and q are equal", weight=0.5, count=5)
def _(draw):
    k, batch = draw.whole(1, 3), draw.whole(1, 1 + draw.size)
    case = ragged(draw, batch, k, [draw.whole(0, k) for _ in range(batch)])
    return {**case, "q": case["p"][:, :-1].clone()}


# ---- 17.block_allocator ---------------------------------------------------------------------------------------------


def story(draw: Draw, steps: int, forks: float = 0.25, frees: float = 0.2) -> list:
    """Operations that make sense in their order. A name that was freed may come back; in the end all may be gone."""
    alive, gone, done = ["a"], [], [("append", "a")]
    for i in range(steps):
        name = draw.choice(alive) if alive else None
        if name is None or draw.chance(0.1):  # another request
            alive.append(gone.pop(draw.randrange(len(gone))) if gone and draw.chance(0.6) else f"n{i}")
            done.append(("append", alive[-1]))
        elif draw.chance(forks):
            alive.append(f"r{i}")
            done.append(("fork", name, f"r{i}"))
        elif draw.chance(frees):
            alive.remove(name)
            gone.append(name)
            done.append(("free", name))
        else:
            done.append(("append", name))
    return done


def pool(draw: Draw, block_size: int, operations: list) -> dict:
    """Every append takes one block at most."""
    enough = sum(action == "append" for action, *_ in operations)
    return dict(num_blocks=enough + draw.whole(0, 3), block_size=block_size, operations=operations)


@fresh("17.block_allocator", "one request", weight=0.5, count=5)
def _(draw):
    return pool(draw, draw.whole(1, 3), [("append", "a")] * draw.whole(2, 8))


@fresh("17.block_allocator", "requests that come and go", count=8)
def _(draw):
    return pool(draw, draw.whole(1, 3), story(draw, draw.whole(4, 6 + 3 * draw.size), forks=0, frees=0.3))


@fresh("17.block_allocator", "requests that fork and go", weight=2)
def _(draw):
    return pool(draw, draw.whole(2, 4), story(draw, draw.whole(5, 8 + 3 * draw.size)))


@fresh("17.block_allocator", "forks of forks", count=8)
def _(draw):
    """Blocks with three owners and more, each of which is written to in turn."""
    names, done = ["a"], [("append", "a")] * draw.whole(1, 4)
    for i in range(draw.whole(2, 2 + draw.size)):
        done.append(("fork", draw.choice(names), f"r{i}"))
        names.append(f"r{i}")
        if draw.chance(0.3):
            done.append(("append", draw.choice(names)))
    draw.shuffle(names)
    done += [("free", names.pop())] * draw.chance(0.4)
    return pool(draw, draw.whole(1, 4), done + [("append", name) for name in names])


# ---- 17.tree_mask ---------------------------------------------------------------------------------------------------


def tree(draw: Draw, most: int) -> list[int]:
    return [-1, *(draw.whole(-1, i - 1) for i in range(1, draw.whole(2, most)))]


def path_to(parents: list[int], node: int) -> list[int]:
    path = []
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    return path


@fresh("17.tree_mask", "a tree", weight=2)
def _(draw):
    parents = tree(draw, 3 + draw.size)
    return dict(parents=parents, cached=draw.whole(1, 4), accepted=path_to(parents, draw.randrange(len(parents))))


@fresh("17.tree_mask", "a deep tree, of which a part is accepted", count=8)
def _(draw):
    """Where some accepted nodes stay and others move, and an ancestor is several steps away."""
    parents = [-1, *(max(-1, i - draw.whole(1, 2)) for i in range(1, draw.whole(4, 5 + draw.size)))]
    path = path_to(parents, len(parents) - 1 - draw.whole(0, 1))
    return dict(parents=parents, cached=draw.whole(0, 4), accepted=path[: draw.whole(1, len(path))])


@fresh("17.tree_mask", "nothing is accepted", weight=0.5, count=5)
def _(draw):
    return dict(parents=tree(draw, 5), cached=draw.whole(0, 4), accepted=[])


# ---- 17.online_softmax ----------------------------------------------------------------------------------------------


@fresh("17.online_softmax", "small scores", weight=2)
def _(draw):
    n = draw.whole(2, 3 + 2 * draw.size)
    return dict(scores=draw.decimals(n), values=draw.decimals(n, draw.whole(1, 3)), block=draw.whole(1, 3))


@fresh("17.online_softmax", "large scores")
def _(draw):
    n = draw.whole(3, 4 + draw.size)
    return dict(scores=800 + draw.decimals(n), values=draw.decimals(n, 2), block=draw.whole(1, 2))


@fresh("17.online_softmax", "scores far below zero")
def _(draw):
    n = draw.whole(2, 3 + draw.size)
    return dict(
        scores=draw.decimals(n) - draw.choice([5, 900, 30_000]), values=draw.decimals(n, 2), block=draw.whole(1, 3)
    )


@fresh("17.online_softmax", "one block, or one key", weight=0.5, count=6)
def _(draw):
    n = draw.whole(1, 1 + draw.size)
    return dict(scores=draw.decimals(n), values=draw.decimals(n, draw.whole(1, 3)), block=n + draw.whole(0, 2))


# ---- 17.token_budget ------------------------------------------------------------------------------------------------


def requests(draw: Draw, names: str, least: int, most: int, fewest: int = 1) -> list:
    return [(name, draw.whole(least, most)) for name in names[: draw.whole(fewest, len(names))]]


@fresh("17.token_budget", "enough for all", weight=0.5)
def _(draw):
    running, waiting = requests(draw, "abc", 0, 3), requests(draw, "xyz", 1, 4)
    return dict(running=running, waiting=waiting, budget=40, max_num_seqs=8)


@fresh("17.token_budget", "not enough", weight=2)
def _(draw):
    running = requests(draw, "abcd", 0, 4)
    budget, seats = len(running) + draw.whole(0, 8), len(running) + draw.whole(0, 3)
    return dict(running=running, waiting=requests(draw, "xyz", 1, 9), budget=budget, max_num_seqs=seats)


@fresh("17.token_budget", "few seats", count=8)
def _(draw):
    running = requests(draw, "abcd", 0, 2)
    seats = len(running) + draw.whole(0, 2)
    return dict(running=running, waiting=requests(draw, "wxyz", 1, 4), budget=40, max_num_seqs=seats)


@fresh("17.token_budget", "nothing runs, or nothing waits", weight=0.5, count=8)
def _(draw):
    running = requests(draw, "abc", 0, 4) if draw.chance(0.5) else []
    waiting = [] if running else requests(draw, "xyz", 1, 9, fewest=0)
    budget = len(running) + draw.whole(0 if running else 1, 9)
    return dict(running=running, waiting=waiting, budget=budget, max_num_seqs=draw.whole(max(1, len(running)), 5))
