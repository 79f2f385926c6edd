"""Set 16, beyond one GPU: an MLP split by columns and rows, the cache of one rank, tokens that travel to experts."""

import math

import torch
from torch import Tensor

from minispec import theory

from ..exercise import Complaint, exercise
from ..fresh import Draw, fresh
from ..returned import items, number, pair, tensor, whole_numbers


# ---- 16.column_row --------------------------------------------------------------------------------------------------
def column_row(x, up, down, bias, ranks, all_reduce):
    parts = [torch.relu(x @ a) @ b for a, b in shards(up, down, ranks)]
    return all_reduce(parts) + bias


def shards(up, down, ranks):
    """What each rank holds: columns of the first matrix, the rows of the second that meet them."""
    return list(zip(up.chunk(ranks, 1), down.chunk(ranks, 0), strict=True))


class Wire:
    """all_reduce(parts), one tensor per rank: their sum, which every rank then has. It remembers what was sent."""

    def __init__(self, ranks: int):
        self.ranks, self.calls, self.sent, self.nan = ranks, 0, 0, 0

    def __call__(self, parts) -> Tensor:
        parts = [tensor(part, "every part") for part in items(parts, "what all_reduce is given", " of tensors")]
        if len(parts) != self.ranks or len({part.shape for part in parts}) != 1:
            shapes = ", ".join(str(tuple(part.shape)) for part in parts)
            raise Complaint(f"all_reduce takes one tensor per rank, {self.ranks} of one shape; it was given: {shapes}.")
        self.calls += 1
        self.sent += parts[0].numel()
        self.nan = sum(bool(part.isnan().any()) for part in parts)
        return torch.stack(parts).sum(0)


def observe_column_row(answer, x, up, down, bias, ranks):
    wire = Wire(ranks)
    return {
        "result": tensor(answer(x, up, down, bias, ranks, wire), "the result", x.shape),
        "all-reduces": wire.calls,
        "numbers that each rank sends": wire.sent,
        "ranks that use the rows with NaN": wire.nan,
    }


def decimals(*shape: int, seed: int) -> Tensor:
    """Numbers with one decimal, easy to read in a message."""
    return torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(seed)).double() / 10


def layer(tokens: int, d: int, f: int, ranks: int, seed: int) -> dict:
    shapes = dict(x=(tokens, d), up=(d, f), down=(f, d), bias=(d,))
    return {**{name: decimals(*shape, seed=seed + i) for i, (name, shape) in enumerate(shapes.items())}, "ranks": ranks}


COLUMN_ROW = exercise(
    "16.column_row",
    reference=column_row,
    observe=observe_column_row,
    cases=[
        layer(1, 1, 2, ranks=1, seed=10),
        layer(1, 2, 4, ranks=2, seed=23),
        layer(2, 2, 4, ranks=2, seed=3),
        layer(2, 4, 8, ranks=4, seed=7),
        layer(3, 6, 12, ranks=3, seed=11),
    ],
)


@COLUMN_ROW.wrong_solutions
class _:
    def sums_at_home(x, up, down, bias, ranks, all_reduce):
        """You add the parts up yourself. They are on different GPUs, so only all_reduce can sum them: call it with the
        list of parts."""
        return sum(torch.relu(x @ a) @ b for a, b in shards(up, down, ranks)) + bias

    def reduces_in_between(x, up, down, bias, ranks, all_reduce):
        """You all-reduce between the two matrices as well. You do not need that one: relu works on each entry
        separately, so a rank needs only its own columns of the hidden layer. Keep the one all-reduce at the end."""
        columns = up.chunk(ranks, 1)
        width = columns[0].shape[1]
        padded = [torch.zeros(len(x), up.shape[1]).to(x) for _ in range(ranks)]
        for r, a in enumerate(columns):
            padded[r][:, r * width : (r + 1) * width] = x @ a
        hidden = torch.relu(all_reduce(padded))
        return all_reduce([h @ b for h, b in zip(hidden.chunk(ranks, 1), down.chunk(ranks, 0), strict=True)]) + bias

    def bias_on_every_rank(x, up, down, bias, ranks, all_reduce):
        """Every rank adds the bias, and the all-reduce sums the ranks, so you have it `ranks` times. Add it once, after
        the sum."""
        return all_reduce([torch.relu(x @ a) @ b + bias for a, b in shards(up, down, ranks)])

    def activation_at_the_end(x, up, down, bias, ranks, all_reduce):
        """Your activation comes after the second matrix. It belongs between the two, where each rank can apply it to
        its own columns."""
        return torch.relu(all_reduce([x @ a @ b for a, b in shards(up, down, ranks)])) + bias

    def whole_matrices_everywhere(x, up, down, bias, ranks, all_reduce):
        """Your parts add up, but every rank uses whole matrices: it multiplies zeros by the rows of the others, or
        takes a share of the finished sum. Then each rank needs as much memory as a single GPU would. Cut both matrices,
        and let rank r use its own columns and rows only."""
        return all_reduce([(r + 1) / sum(range(ranks + 1)) * (torch.relu(x @ up) @ down) for r in range(ranks)]) + bias

    def mismatched_shards(x, up, down, bias, ranks, all_reduce):
        """Your shards do not belong together: rank r takes every `ranks`-th column of `up`, but a block of rows of
        `down`. Column j of `up` belongs with row j of `down`, so split both the same way."""
        parts = [torch.relu(x @ up[:, r::ranks]) @ b for r, b in enumerate(down.chunk(ranks, 0))]
        return all_reduce(parts) + bias


def mlp(draw: Draw, ranks: int, tokens: int) -> dict:
    """NaN in the first or the last row of `down`, or in both: it shows who uses that row, which is one rank alone."""
    d, f = ranks * draw.whole(1, 2), ranks * draw.whole(2, 3)
    shapes = dict(x=(tokens, d), up=(d, f), down=(f, d), bias=(d,))
    case = {name: draw.decimals(*shape, most=0.9) for name, shape in shapes.items()}
    case["down"][draw.choice([[], [], [0], [-1], [0, -1]]), 0] = torch.nan
    return {**case, "ranks": ranks}


fresh("16.column_row", "two ranks", lambda draw: mlp(draw, 2, draw.whole(1, 3)))
fresh("16.column_row", "more ranks", lambda draw: mlp(draw, draw.whole(3, 4), draw.whole(1, 3)))
fresh("16.column_row", "one rank", lambda draw: mlp(draw, 1, draw.whole(1, 3)), weight=0.5, count=5)


# ---- 16.kv_per_rank -------------------------------------------------------------------------------------------------
def kv_per_rank(layers, heads, kv_heads, head_dim, bits, weight_bytes, ranks, memory):
    return fit(
        theory.kv_bytes_per_token(layers, max(1, kv_heads // ranks), head_dim, bits / 8), memory - weight_bytes / ranks
    )


def fit(per_token, room):
    return per_token, max(0, math.floor(room / per_token))


def observe_kv(answer, **case):
    per_token, tokens = pair(answer(*case.values()), "the bytes of a token on one rank and the tokens that fit")
    per_token, tokens = number(per_token, "the number of bytes"), number(tokens, "the number of tokens")
    return {"bytes per token": per_token, "tokens that fit": tokens}


KV_PER_RANK = exercise(
    "16.kv_per_rank",
    reference=kv_per_rank,
    observe=observe_kv,
    cases=[
        dict(layers=2, heads=4, kv_heads=4, head_dim=8, bits=16, weight_bytes=1000, ranks=1, memory=5000),
        dict(layers=2, heads=8, kv_heads=4, head_dim=8, bits=16, weight_bytes=1000, ranks=2, memory=5000),
        dict(layers=2, heads=8, kv_heads=2, head_dim=8, bits=16, weight_bytes=1000, ranks=8, memory=5000),
        dict(layers=3, heads=8, kv_heads=8, head_dim=4, bits=8, weight_bytes=9000, ranks=4, memory=4000),
        dict(layers=2, heads=8, kv_heads=4, head_dim=8, bits=16, weight_bytes=9000, ranks=2, memory=3000),
        dict(layers=80, heads=64, kv_heads=8, head_dim=128, bits=16, weight_bytes=138e9, ranks=8, memory=80e9),
        dict(layers=80, heads=64, kv_heads=8, head_dim=128, bits=16, weight_bytes=138e9, ranks=16, memory=80e9),
    ],
)


def flawed_kv(layers, heads, kv_heads, head_dim, bits, weight_bytes, ranks, memory, *, held=None, weights=None):
    """The cache of a rank with other heads, or other weights, on it."""
    held = max(1, kv_heads // ranks) if held is None else held
    per_token = 2 * layers * held * head_dim * bits / 8
    return fit(per_token, memory - (weight_bytes / ranks if weights is None else weights))


@KV_PER_RANK.wrong_solutions
class _:
    def the_whole_cache(*case):
        """You keep all key/value heads on every rank. Heads are divided among the ranks: a rank computes its own query
        heads and keeps only the key/value heads that they need, kv_heads / ranks of them."""
        return flawed_kv(*case, held=case[2])

    def a_fraction_of_a_head(*case):
        """With more ranks than key/value heads you give each rank a fraction of a head. A head is not divided: its
        query heads are on several ranks, and each of those ranks keeps a copy. So the minimum is one head."""
        return flawed_kv(*case, held=case[2] / case[6])

    def query_heads_on_a_rank(*case):
        """You count query heads. Only keys and values are cached, and with grouped queries there are fewer of those:
        use kv_heads."""
        return flawed_kv(*case, held=max(1, case[1] // case[6]))

    def all_weights_on_a_rank(*case):
        """You put all weights on every rank. They are divided as well: subtract weight_bytes / ranks."""
        return flawed_kv(*case, weights=case[5])

    def memory_of_all_ranks(layers, heads, kv_heads, head_dim, bits, weight_bytes, ranks, memory):
        """You add up the memory of all ranks. Every token has keys and values on every rank, so all ranks fill at the
        same pace. Compute how many tokens fit on one of them."""
        per_token, _ = kv_per_rank(layers, heads, kv_heads, head_dim, bits, weight_bytes, ranks, memory)
        return fit(per_token, ranks * memory - weight_bytes)

    def only_keys(layers, heads, kv_heads, head_dim, bits, weight_bytes, ranks, memory):
        """You count one vector per head. There are two, a key and a value: multiply by 2."""
        per_token, _ = kv_per_rank(layers, heads, kv_heads, head_dim, bits, weight_bytes, ranks, memory)
        return fit(per_token / 2, memory - weight_bytes / ranks)

    def fewer_than_none_fit(layers, heads, kv_heads, head_dim, bits, weight_bytes, ranks, memory):
        """If the weights alone do not fit, your number of tokens is negative. No token fits then, so return 0."""
        per_token, _ = kv_per_rank(layers, heads, kv_heads, head_dim, bits, weight_bytes, ranks, memory)
        return per_token, math.floor((memory - weight_bytes / ranks) / per_token)


def ranks_case(draw: Draw, heads_per_rank: int = 1, ranks_per_head: int = 1, enough: bool = True) -> dict:
    """Several heads on a rank, or several ranks for a head; with room for tokens, or for not even one."""
    whole = draw.whole(1, 4)
    kv_heads, ranks = whole * heads_per_rank, whole * ranks_per_head

    def make():
        sizes = dict(layers=draw.whole(1, 8), heads=kv_heads * ranks * draw.whole(1, 2), kv_heads=kv_heads)
        more = dict(head_dim=draw.choice([4, 8, 16]), bits=draw.choice([4, 8, 16, 32]))
        memory = dict(weight_bytes=draw.whole(500, 9000), ranks=ranks, memory=draw.whole(500, 9000))
        return {**sizes, **more, **memory}

    def settled(case):
        per_token, _ = kv_per_rank(**case)
        room = (case["memory"] - case["weight_bytes"] / ranks) / per_token
        return (room > 1) == enough and 0.01 < room % 1 < 0.99

    return draw.until(make, settled)


CACHE = "16.kv_per_rank"
fresh(CACHE, "heads enough for all ranks", lambda draw: ranks_case(draw, heads_per_rank=draw.whole(1, 4)))
fresh(CACHE, "more ranks than heads", lambda draw: ranks_case(draw, ranks_per_head=draw.whole(2, 4)))
fresh(CACHE, "hardly any room", lambda draw: ranks_case(draw, draw.whole(1, 4), enough=False), weight=0.5)


# ---- 16.dispatch ----------------------------------------------------------------------------------------------------
def dispatch(chosen, experts, ranks, *, blocks=True, once=True, pairs=True):
    home = chosen // (experts // ranks) if blocks else chosen % ranks  # [n, k]
    here = [home == r for r in range(ranks)]
    sent = [(mask.any(1).nonzero() if once else mask.nonzero())[:, 0].tolist() for mask in here]
    return sent, [int(mask.sum()) if pairs else len(tokens) for mask, tokens in zip(here, sent, strict=True)]


def observe_dispatch(answer, **case):
    sent, work = pair(answer(*case.values()), "the tokens that each rank is sent and the work of each rank")
    sent = [whole_numbers(tokens, "the tokens of a rank") for tokens in items(sent, "the first result", " of lists")]
    return {"tokens sent": sent, "work": whole_numbers(work, "the work")}


def routed(draw: Draw, ranks: int, k: int) -> dict:
    experts = ranks * draw.whole(k, 4)
    chosen = [draw.sample(range(experts), k) for _ in range(draw.whole(0, 2 + draw.size))]
    return dict(chosen=torch.tensor(chosen, dtype=torch.int64).view(-1, k), experts=experts, ranks=ranks)


DISPATCH = exercise(
    "16.dispatch",
    reference=dispatch,
    observe=observe_dispatch,
    cases=[
        dict(chosen=torch.tensor([[0], [1], [1]]), experts=2, ranks=2),
        dict(chosen=torch.tensor([[0], [3], [1]]), experts=4, ranks=2),
        dict(chosen=torch.tensor([[0, 1], [1, 2]]), experts=4, ranks=2),
    ],
)


@DISPATCH.wrong_solutions
class _:
    def dealt_like_cards(*case):
        """You deal the experts out like cards, expert e to rank e % ranks. Here each rank holds a block of neighbours:
        expert e is on rank e // (experts // ranks)."""
        return dispatch(*case, blocks=False)

    def sent_for_every_expert(*case):
        """A token that has two experts on one rank is sent there twice. It travels once, and both experts use it."""
        return dispatch(*case, once=False)

    def work_counts_tokens(*case):
        """Your work counts tokens. A token that has two experts on a rank makes both of them run: count the choices."""
        return dispatch(*case, pairs=False)


fresh("16.dispatch", "one expert per token", lambda draw: routed(draw, draw.whole(1, 4), 1))
fresh("16.dispatch", "several experts per token", lambda draw: routed(draw, draw.whole(2, 4), draw.whole(2, 3)))
