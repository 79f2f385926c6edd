"""Set 17, the coding round: ten functions that interviewers ask for."""

import math
from itertools import pairwise

import torch
from torch import Tensor

from minispec.tree import path_to

from ..exercise import Complaint, exercise
from ..fresh import Draw, fresh
from ..returned import items, mask_of, number, pair, several, tensor, whole_number, whole_numbers
from ..show import kind


# ---- 17.ragged_sampler ----------------------------------------------------------------------------------------------
def ragged_sampler(p, q, draft, lengths, u, *, cumulative=True, residual=True, normal=True, bonus=True, own=True):
    rows, steps = torch.arange(len(p)), torch.arange(draft.shape[1])
    ratio = (p[:, :-1] / q).gather(2, draft[..., None])[..., 0]  # [B, k]
    ok = (u < ratio) & (steps < lengths[:, None])
    counts = (ok.cumprod(1) if cumulative else ok).sum(1)  # [B]
    at = counts if bonus else torch.where(counts == lengths, draft.shape[1], counts)
    target = p[rows, at]  # [B, V]
    rest = (target - q[rows, counts.clamp(max=draft.shape[1] - 1)]).clamp(min=0)
    rest = rest / rest.sum(-1, keepdim=True) if normal else rest
    rejected = (counts < (lengths if own else draft.shape[1]))[:, None]
    return counts, torch.where(rejected, rest, target) if residual else target


def observe_sampler(answer, **case):
    counts, following = pair(answer(*case.values()), "the accepted counts and the distributions of the next tokens")
    counts, following = whole_numbers(counts, "the counts"), tensor(following, "the distributions")
    return {"accepted": counts, "next distribution": following}


def drafts(p, q, draft, lengths, u) -> dict:
    return dict(
        p=torch.tensor(p, dtype=torch.float64),
        q=torch.tensor(q, dtype=torch.float64),
        draft=torch.tensor(draft),
        lengths=torch.tensor(lengths),
        u=torch.tensor(u, dtype=torch.float64),
    )


A, B, C = [0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.1, 0.1, 0.8]


SAMPLER = exercise(
    "17.ragged_sampler",
    reference=ragged_sampler,
    observe=observe_sampler,
    cases=[
        drafts([[A, A]], [[B]], [[0]], [1], [[0.9]]),
        drafts([[A, C]], [[B]], [[1]], [1], [[0.9]]),
        drafts([[A, A, C]], [[B, B]], [[1, 0]], [2], [[0.9, 0.1]]),
        drafts([[A, C, B]], [[B, A]], [[0, 1]], [1], [[0.3, 0.2]]),
        drafts([[A, C, B], [A, B, C]], [[B, A], [B, A]], [[0, 1], [0, 2]], [1, 2], [[0.3, 0.2], [0.9, 0.5]]),
    ],
)


@SAMPLER.wrong_solutions
class _:
    def counts_past_a_rejection(*case):
        """You count every accepted position. After the first rejection, later draft tokens follow a token that is not
        in the output, so they do not count: use a cumulative product."""
        return ragged_sampler(*case, cumulative=False)

    def replaces_from_p(*case):
        """After a rejection you continue with p. Then a token that q favours is too likely, because it has had its
        chance: sample from the residual, max(0, p − q), normalised."""
        return ragged_sampler(*case, residual=False)

    def residual_not_normalised(*case):
        """Your residual does not sum to 1. Divide max(0, p − q) by its sum."""
        return ragged_sampler(*case, normal=False)

    def bonus_from_the_last_column(*case):
        """If all draft tokens are accepted, you take the bonus from the last position of the batch. A shorter draft has
        its bonus right after its own last token, at position lengths[b]."""
        return ragged_sampler(*case, bonus=False)

    def residual_after_a_shorter_draft(*case):
        """A sequence that accepted its whole draft rejected nothing, so its next token comes from p. You subtract q
        there, which is padding when the draft is shorter than k."""
        return ragged_sampler(*case, own=False)


def ragged(draw: Draw, most: int, batch: int, least: int | None = 0, positive: bool = True, coins: float = 1) -> dict:
    """Drafts of up to `most` tokens; least None: all of one length; small coins: most draft tokens are accepted."""
    k, vocab = draw.whole(most - 2, most), draw.whole(3, 5)
    p = torch.stack([draw.rows(k + 1, vocab, positive=positive, distinct=positive) for _ in range(batch)])
    q = torch.stack([draw.rows(k, vocab, positive=True, distinct=True) for _ in range(batch)])
    draft = torch.tensor([[draw.whole(0, vocab - 1) for _ in range(k)] for _ in range(batch)])
    u = [[round((draw.whole(0, 99) / 100 + 0.003) * coins, 4) for _ in range(k)] for _ in range(batch)]
    lengths = [k if least is None else draw.whole(least, k) for _ in range(batch)]
    return dict(p=p, q=q, draft=draft, lengths=torch.tensor(lengths), u=torch.tensor(u, dtype=torch.float64))


def some(draw: Draw, least: int = 1) -> int:
    return draw.whole(least, least + draw.size)


RAGGED = "17.ragged_sampler"
fresh(RAGGED, "one length", lambda draw: ragged(draw, 3, some(draw), least=None))
fresh(RAGGED, "different lengths", lambda draw: ragged(draw, 4, some(draw, 2)), weight=2)
fresh(RAGGED, "most draft tokens are accepted", lambda draw: ragged(draw, 4, some(draw, 2), coins=0.1), count=6)


@fresh(RAGGED, "tokens without probability", weight=0.5, count=6)
def _(draw):
    """A random number may be exactly 0, and still a token that p cannot give is never accepted."""
    case = ragged(draw, 3, some(draw), least=1, positive=False)
    p, drafted = case["p"][0, 0], case["draft"][0, 0]
    p[(drafted + 1) % len(p)] += p[drafted]
    p[drafted], case["u"][0, 0] = 0.0, 0.0
    return case


@fresh(RAGGED, "p and q are equal", weight=0.5, count=5)
def _(draw):
    case = ragged(draw, 3, some(draw))
    return {**case, "q": case["p"][:, :-1].clone()}


# ---- 17.block_allocator ---------------------------------------------------------------------------------------------
def block_allocator(
    num_blocks, block_size, operations, *, copy=True, deep=False, counted=True, released=True, forked=True
):
    counts, tables, lengths, copies = [0] * num_blocks, {}, {}, []

    def take() -> int:
        block = counts.index(0)
        counts[block] = 1
        return block

    for action, name, *other in operations:
        if action == "append":
            table, used = tables.setdefault(name, []), lengths.setdefault(name, 0)
            if used % block_size == 0:
                table.append(take())
            elif copy and counts[table[-1]] > 1:
                for i in range(0 if deep else len(table) - 1, len(table)):
                    old = table[i]
                    table[i] = take()
                    counts[old] -= released
                    copies.append((old, table[i]))
            lengths[name] = used + 1
        elif action == "fork":
            tables[other[0]], lengths[other[0]] = list(tables[name]), lengths[name]
            for block in tables[name]:
                counts[block] += forked
        else:
            for block in tables.pop(name):
                counts[block] = max(0, counts[block] - 1) if counted else 0
            del lengths[name]
    return tables, counts, copies


def observe_blocks(answer, **case):
    found = answer(*case.values())
    tables, counts, copies = several(found, 3, "the tables (a dict), the counts and the copies")
    if not isinstance(tables, dict):
        raise Complaint(f"the tables should be a dict; yours is {kind(tables)}.")
    return {
        "tables": sorted((str(name), whole_numbers(table, "a table")) for name, table in tables.items()),
        "reference counts": whole_numbers(counts, "the counts"),
        "copies": [whole_numbers(move, "a copy") for move in items(copies, "the copies")],
    }


def appends(name: str, count: int) -> list:
    return [("append", name)] * count


BLOCKS = exercise(
    "17.block_allocator",
    reference=block_allocator,
    observe=observe_blocks,
    cases=[
        dict(num_blocks=4, block_size=2, operations=appends("a", 3)),
        dict(num_blocks=4, block_size=2, operations=[*appends("a", 3), ("free", "a"), *appends("b", 1)]),
        dict(num_blocks=6, block_size=2, operations=[*appends("a", 3), ("fork", "a", "b"), *appends("b", 1)]),
        dict(
            num_blocks=6,
            block_size=2,
            operations=[*appends("a", 3), ("fork", "a", "b"), *appends("b", 1), *appends("a", 1), ("free", "a")],
        ),
        dict(
            num_blocks=6,
            block_size=2,
            operations=[*appends("a", 2), ("fork", "a", "b"), ("free", "a"), *appends("c", 1), *appends("b", 1)],
        ),
    ],
)


@BLOCKS.wrong_solutions
class _:
    def writes_into_shared_blocks(*case):
        """You write into a block that two requests share, so one request changes the other's cache. If the count of the
        last block is above 1, copy it first."""
        return block_allocator(*case, copy=False)

    def copies_the_whole_table(*case):
        """You copy every block of the table. Only the last one is written to; full blocks never change and can stay
        shared."""
        return block_allocator(*case, deep=True)

    def frees_shared_blocks(*case):
        """Freeing a request releases blocks that another one still uses. Decrement the count instead of setting it to
        0."""
        return block_allocator(*case, counted=False)

    def keeps_the_old_reference(*case):
        """After a copy, the old block still counts the request that left it, so it is never free again: decrement its
        count."""
        return block_allocator(*case, released=False)


def story(draw: Draw, forks: float, frees: float) -> list:
    """Operations that make sense in their order. A name that was freed may come back; in the end all may be gone."""
    alive, gone, done = ["a"], [], [("append", "a")]
    for i in range(draw.whole(4, 7 + 3 * draw.size)):
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


def pool(draw: Draw, operations: list) -> dict:
    """Every append takes one block at most."""
    enough = sum(action == "append" for action, *_ in operations)
    return dict(num_blocks=enough + draw.whole(0, 3), block_size=draw.whole(1, 4), operations=operations)


COPIES = "17.block_allocator"
fresh(COPIES, "one request", lambda draw: pool(draw, appends("a", draw.whole(2, 8))), weight=0.5, count=5)
fresh(COPIES, "requests that come and go", lambda draw: pool(draw, story(draw, forks=0, frees=0.3)), count=8)
fresh(COPIES, "requests that fork and go", lambda draw: pool(draw, story(draw, forks=0.25, frees=0.2)), weight=2)


@fresh(COPIES, "forks of forks", count=8)
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
    return pool(draw, done + [("append", name) for name in names])


# ---- 17.tree_mask ---------------------------------------------------------------------------------------------------
def tree_mask(parents, cached, accepted, *, itself=True, grand=True, cache=True, start=0):
    n = len(parents)
    mask = torch.zeros(n, cached + n, dtype=torch.bool)
    mask[:, :cached] = cache
    for i, parent in enumerate(parents):
        if parent >= 0:
            mask[i, cached:] = mask[parent, cached:] if grand else False
            mask[i, cached + parent] = True
        mask[i, cached + i] = itself
    moves = [(cached + node, cached + i + start) for i, node in enumerate(accepted) if node != i + start]
    return mask, moves


def observe_tree(answer, **case):
    mask, moves = pair(answer(*case.values()), "the mask and the moves")
    n = len(case["parents"])
    moves = [whole_numbers(move, "a move") for move in items(moves, "the moves", " of (from, to)")]
    return {"mask": mask_of(mask, (n, case["cached"] + n)), "moves": moves}


TREE = exercise(
    "17.tree_mask",
    reference=tree_mask,
    observe=observe_tree,
    cases=[
        dict(parents=[-1], cached=1, accepted=[0]),
        dict(parents=[-1, 0, 1], cached=2, accepted=[0, 1]),
        dict(parents=[-1, -1, 0], cached=1, accepted=[1]),
        dict(parents=[-1, -1, 0, 1, 3], cached=3, accepted=[1, 3, 4]),
        dict(parents=[-1, 0, 0, 2], cached=0, accepted=[0, 2, 3]),
    ],
)


@TREE.wrong_solutions
class _:
    def sees_everything_before(parents, cached, accepted):
        """Your mask is the causal one: a node sees all nodes before it, even its siblings. Those are alternatives and
        never in the same sequence. Let it see its ancestors only."""
        mask, moves = tree_mask(parents, cached, accepted)
        return torch.ones_like(mask).tril(cached), moves

    def not_itself(*case):
        """Your nodes do not see themselves. A token attends to its own key, as in every causal mask."""
        return tree_mask(*case, itself=False)

    def only_the_parent(*case):
        """A node sees its parent but no further ancestors. All of them are in its sequence: take over what the parent
        sees."""
        return tree_mask(*case, grand=False)

    def forgets_the_cache(*case):
        """Your nodes do not see the cached tokens. The first `cached` columns are True for every node."""
        return tree_mask(*case, cache=False)

    def to_and_from(*case):
        """Your moves are (to, from). A move is (from, to): first where a node is, then where it belongs."""
        mask, moves = tree_mask(*case)
        return mask, [move[::-1] for move in moves]

    def moves_that_stay(parents, cached, accepted):
        """You list nodes that are where they belong. Leave out moves from a slot to itself."""
        mask, _ = tree_mask(parents, cached, accepted)
        return mask, [(cached + node, cached + to) for to, node in enumerate(accepted)]

    def moves_one_too_far(*case):
        """You leave one slot free before the accepted nodes. Node 0 is in slot `cached`, which is where the first
        accepted one belongs."""
        return tree_mask(*case, start=1)


def tree(draw: Draw, most: int) -> list[int]:
    return [-1, *(draw.whole(-1, i - 1) for i in range(1, draw.whole(2, most)))]


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
def online_softmax(scores, values, block, *, rescale_sum=True, rescale_out=True, shift=True):
    m, total, out, steps = -torch.inf, 0.0, torch.zeros(values.shape[1]).to(values), []
    for i in range(0, len(scores), block):
        s, v = scores[i : i + block], values[i : i + block]
        new = max(m, float(s.max())) if shift else 0.0
        scale = float(torch.exp(torch.tensor(m - new))) if shift else 1.0
        weights = torch.exp(s - new)
        total = total * (scale if rescale_sum else 1.0) + float(weights.sum())
        out = out * (scale if rescale_out else 1.0) + weights @ v
        m = new
        steps.append((m, total))
    return out / total, steps


def observe_online(answer, **case):
    out, steps = pair(answer(*case.values()), "the output and the list of (maximum, sum) after each block")
    read = [pair(step, "the maximum and the sum after a block") for step in items(steps, "the second result")]
    states = {"maxima": [number(m) for m, _ in read], "sums": [number(total) for _, total in read]}
    return {"output": tensor(out, "the output"), **states}


def scored(scores: list[float], values: list[list[float]], block: int) -> dict:
    return dict(scores=torch.tensor(scores).double(), values=torch.tensor(values).double(), block=block)


ONLINE = exercise(
    "17.online_softmax",
    reference=online_softmax,
    observe=observe_online,
    cases=[
        scored([0.0, 1.0], [[1.0], [2.0]], 2),
        scored([0.0, 1.0, 2.0, 0.5], [[1.0], [2.0], [3.0], [4.0]], 2),
        scored([2.0, 1.0, 0.0], [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], 1),
        scored([1000.0, 1001.0, 999.0], [[1.0], [2.0], [3.0]], 2),
    ],
)


@ONLINE.wrong_solutions
class _:
    def no_rescaling(*case):
        """When a larger score turns up, what you have summed so far stays relative to the old maximum. Multiply the sum
        and the output by exp(old maximum − new maximum)."""
        return online_softmax(*case, rescale_sum=False, rescale_out=False)

    def rescales_only_the_sum(*case):
        """You rescale the sum but not the output. Both are relative to the maximum, so both need the factor."""
        return online_softmax(*case, rescale_out=False)

    def rescales_only_the_output(*case):
        """You rescale the output but not the sum. Both are relative to the maximum, so both need the factor."""
        return online_softmax(*case, rescale_sum=False)

    def begins_at_zero(scores, values, block):
        """Your maximum begins at 0. If all scores are negative, it is too large, and exp(score − maximum) may
        underflow: begin at minus infinity."""
        out, steps = online_softmax(scores, values, block)
        steps = [
            (max(0.0, m), total * float(torch.exp(torch.tensor(min(0.0, m), dtype=torch.float64))))
            for m, total in steps
        ]
        return (out if steps[-1][1] > 0 else out * torch.nan), steps

    def no_maximum(*case):
        """You do not subtract the maximum, so large scores overflow: exp(1000) is infinite."""
        return online_softmax(*case, shift=False)

    def averages_of_blocks(scores, values, block):
        """You average the blocks' own softmax outputs. A block with larger scores weighs more: combine them with their
        maxima and sums."""
        _, steps = online_softmax(scores, values, block)
        parts = [torch.softmax(s, 0) @ v for s, v in zip(scores.split(block), values.split(block), strict=True)]
        return torch.stack(parts).mean(0), steps


def attended(draw: Draw, scores, blocks: tuple[int, int] = (1, 3)) -> dict:
    s = scores(some(draw, 2))
    return dict(scores=s, values=draw.decimals(len(s), draw.whole(1, 3)), block=draw.whole(*blocks))


fresh("17.online_softmax", "small scores", lambda draw: attended(draw, draw.decimals), weight=2)
fresh("17.online_softmax", "large scores", lambda draw: attended(draw, lambda n: 800 + draw.quarters(n), (1, 2)))
fresh("17.online_softmax", "one block", lambda draw: attended(draw, draw.decimals, (9, 11)), weight=0.5, count=6)
fresh("17.online_softmax", "one key", lambda draw: attended(draw, lambda n: draw.decimals(1)), weight=0.5, count=3)


@fresh("17.online_softmax", "scores far below zero")
def _(draw):
    return attended(draw, lambda n: draw.quarters(n) - draw.choice([5, 900, 30_000]))


# ---- 17.token_budget ------------------------------------------------------------------------------------------------
def token_budget(
    running, waiting, budget, max_num_seqs, *, chunks=True, drafts=True, first="running", seats=True, least=True
):
    plan, left = [], budget

    def decode():
        nonlocal left
        owed = len(running)  # every running sequence gets its one token before any draft token is given
        for name, k in running:
            owed -= 1
            spare = left - (owed if least else 0) - 1
            tokens = 1 + max(0, min(k if drafts else 0, spare))
            if left < 1:
                return
            plan.append((name, min(tokens, left)))
            left -= min(tokens, left)

    def prefill():
        nonlocal left
        room = max_num_seqs - len(running) if seats else len(waiting)
        for name, prompt in waiting[: max(0, room)]:
            tokens = min(prompt, left)
            if tokens < 1 or (not chunks and tokens < prompt):
                return
            plan.append((name, tokens))
            left -= tokens

    for step in (decode, prefill) if first == "running" else (prefill, decode):
        step()
    return plan


def observe_budget(answer, **case):
    found = answer(*case.values())
    plan = [pair(entry, "a name and its tokens") for entry in items(found, "the plan", " of (name, tokens)")]
    plan = [(name, whole_number(tokens, "every number of tokens")) for name, tokens in plan]
    return {"plan": plan, "tokens in all": sum(tokens for _, tokens in plan)}


BUDGET = exercise(
    "17.token_budget",
    reference=token_budget,
    observe=observe_budget,
    cases=[
        dict(running=[("a", 0)], waiting=[("b", 3)], budget=4, max_num_seqs=4),
        dict(running=[("a", 2)], waiting=[("b", 5)], budget=6, max_num_seqs=4),
        dict(running=[("a", 3), ("b", 3)], waiting=[], budget=5, max_num_seqs=4),
        dict(running=[("a", 1), ("b", 0)], waiting=[("c", 9), ("d", 2)], budget=8, max_num_seqs=4),
        dict(running=[("a", 0), ("b", 0)], waiting=[("c", 1), ("d", 1)], budget=9, max_num_seqs=3),
    ],
)


@BUDGET.wrong_solutions
class _:
    def prompts_first(*case):
        """You schedule prompts before running requests. A long prompt then stalls every user who is reading an answer:
        serve running requests first."""
        return token_budget(*case, first="waiting")

    def whole_prompts_only(*case):
        """You leave out a prompt that does not fit as a whole. Chunked prefill takes the part that fits, so no token of
        the budget is wasted."""
        return token_budget(*case, chunks=False)

    def draft_tokens_are_free(*case):
        """You give a running request one token. Its draft tokens are verified in the same pass and need budget: 1 +
        k."""
        return token_budget(*case, drafts=False)

    def prompts_with_nothing(running, waiting, budget, max_num_seqs):
        """Your plan has prompts with 0 tokens. When the budget is used up, no further request is in the step."""
        plan = token_budget(running, waiting, budget, max_num_seqs)
        return plan + [
            (name, 0) for name, _ in waiting[: max(0, max_num_seqs - len(running))][len(plan) - len(running) :]
        ]

    def too_many_sequences(*case):
        """You admit more sequences than max_num_seqs. Running requests occupy seats as well: max_num_seqs −
        len(running) are left."""
        return token_budget(*case, seats=False)

    def first_come_takes_all(*case):
        """Your first running requests take all their draft tokens and leave nothing for those after them. Every running
        request gets its one token before any draft token is given."""
        return token_budget(*case, least=False)


def served(draw: Draw, tokens: tuple[int, int], seats: tuple[int, int], running: str = "abcd", waiting="wxyz") -> dict:
    """Requests that ask for something; so much budget, and so many seats, beyond one for each that runs."""
    runs = [(name, draw.whole(0, 4)) for name in running[: draw.whole(1, 4)]]
    waits = [(name, draw.whole(1, 9)) for name in waiting[: draw.whole(1, 4)]]
    budget, most = len(runs) + draw.whole(*tokens), max(1, len(runs) + draw.whole(*seats))
    return dict(running=runs, waiting=waits, budget=budget, max_num_seqs=most)


STEP = "17.token_budget"
fresh(STEP, "enough for all", lambda draw: served(draw, (60, 60), (4, 8)), weight=0.5)
fresh(STEP, "not enough", lambda draw: served(draw, (0, 8), (0, 3)), weight=2)
fresh(STEP, "few seats", lambda draw: served(draw, (60, 60), (0, 2)), count=8)
fresh(STEP, "nothing waits", lambda draw: served(draw, (0, 9), (0, 3), waiting=""), weight=0.5, count=4)
fresh(STEP, "nothing runs", lambda draw: served(draw, (1, 9), (1, 5), running=""), weight=0.5, count=4)


# ---- 17.ngram_proposer ----------------------------------------------------------------------------------------------
def ngram_proposer(tokens, n, k, *, first=False, itself=False, shift=0, future=False):
    seen, drafts = {}, []  # the last n tokens → where the token after them stands
    for end in range(1, len(tokens) + 1):
        key = tuple(tokens[max(0, end - n) : end])
        if itself:
            seen[key] = end
        start = seen.get(key) if len(key) == n else None
        known = len(tokens) if future else end
        drafts.append([] if start is None else list(tokens[start - shift : min(start - shift + k, known)]))
        if len(key) == n and not (first and key in seen):
            seen[key] = end
    return drafts


def observe_lists(answer, **case):
    found = answer(*case.values())
    return {"drafts": [whole_numbers(draft, "every draft") for draft in items(found, "the result", " of lists")]}


def quick_enough(answer) -> None:
    """The last test: the time per token must not grow with the sequence. The bound is some thirty times what a table
    takes, and it is missed only by an answer that is too slow twice."""
    for length, most in ((2000, 0.08), (1000, 0.025)):
        before = answer.spent()
        drafts = answer(list(range(length)), 2, 3)  # no token comes twice, so that a search finds nothing
        if answer.spent() - before < most:
            return
        if len(drafts) != length:
            raise Complaint(f"all cases are right, but for {length} tokens you return {len(drafts)} lists.")
    raise Complaint(
        "all cases are right, but the time per token grows with the sequence: 1,000 tokens that are all different "
        f"took {answer.spent() - before:.2f} seconds. Does your function search through what came before? Remember "
        "where the last n tokens were, in a dictionary."
    )


NGRAM = exercise(
    "17.ngram_proposer",
    reference=ngram_proposer,
    observe=observe_lists,
    trial=lambda: quick_enough,
    cases=[
        dict(tokens=[1, 2, 1], n=1, k=2),
        dict(tokens=[1, 2, 3, 1, 2], n=2, k=2),
        dict(tokens=[1, 2, 1, 3, 1], n=1, k=2),
        dict(tokens=[5, 6, 7, 5, 6, 8, 5, 6], n=2, k=3),
    ],
)


@NGRAM.wrong_solutions
class _:
    def oldest_match(*case):
        """You propose what followed the first occurrence. The latest one is the better guide: let later occurrences
        overwrite earlier ones."""
        return ngram_proposer(*case, first=True)

    def finds_itself(*case):
        """You store the current n-gram before you look it up, so it finds itself, and nothing follows it. Look up
        first."""
        return ngram_proposer(*case, itself=True)

    def proposes_the_match(*case):
        """Your draft begins with the last token of the match. Propose what came after the match."""
        return ngram_proposer(*case, shift=1)

    def looks_ahead(*case):
        """Your drafts contain tokens that have not come yet. After `end` tokens only tokens[:end] are known, so a draft
        may be shorter than k."""
        return ngram_proposer(*case, future=True)


@fresh("17.ngram_proposer", "any sequence", weight=2)
def _(draw):
    tokens = [draw.whole(0, 2) for _ in range(draw.whole(4, 6 + 2 * draw.size))]
    return dict(tokens=tokens, n=draw.whole(1, 3), k=draw.whole(1, 4))


@fresh("17.ngram_proposer", "a phrase that comes back")
def _(draw):
    phrase = [draw.whole(1, 9) for _ in range(draw.whole(3, 4))]
    return dict(tokens=[*phrase, draw.whole(1, 9), *phrase, draw.whole(1, 9), *phrase[:2]], n=2, k=draw.whole(2, 4))


@fresh("17.ngram_proposer", "one token over and over", weight=0.5, count=6)
def _(draw):
    """Occurrences that overlap: the latest earlier one is a single token back."""
    return dict(tokens=[draw.whole(0, 9)] * draw.whole(2, 4 + draw.size), n=draw.whole(1, 3), k=draw.whole(1, 4))


@fresh("17.ngram_proposer", "fewer tokens than a match needs", weight=0.5, count=6)
def _(draw):
    n = draw.whole(1, 4)
    return dict(tokens=[draw.whole(0, 1) for _ in range(draw.whole(0, n))], n=n, k=draw.whole(1, 3))


@fresh("17.ngram_proposer", "different matches that look alike", weight=0.5, count=8)
def _(draw):
    """Such as 1, 12 and 11, 2, whose digits are the same; or 1, 1000 and 2, 0, which are one number in base 1000."""
    bases = draw.sample([10, 100, 1000, 1024, 32_000, 65_536, 100_000], 4)
    pairs = [*draw.choice([([1, 12], [11, 2]), ([1, 23], [12, 3])]), *([1, base] for base in bases), [2, 0]]
    return dict(tokens=[token for pair in pairs for token in (*pair, draw.whole(3, 9))], n=2, k=draw.whole(1, 3))


# ---- 17.stop_strings ------------------------------------------------------------------------------------------------
def stop_strings(pieces, stops, *, hold=True, keep=False, flush=True, within=False, longest=True):
    emitted, held = [], ""
    for piece in pieces:
        text = piece if within else held + piece
        found = [(text.find(stop), stop) for stop in stops if stop in text]
        if found:
            at, stop = min(found)
            return [*emitted, text[: at + len(stop) * keep]], True
        sizes = range(min(len(text), max(map(len, stops), default=1) - 1), 0, -1) if longest else (1,)
        tail = next((n for n in sizes if hold and any(stop.startswith(text[-n:]) for stop in stops)), 0)
        tail = min(tail, len(text))
        emitted.append(text[: len(text) - tail])
        held = text[len(text) - tail :]
    return [*emitted, held] if flush else emitted, False


def observe_stops(answer, **case):
    emitted, stopped = pair(answer(*case.values()), "the texts to emit and whether a stop string came")
    emitted = items(emitted, "the texts", " of strings")
    if not all(isinstance(text, str) for text in emitted):
        raise Complaint(f"the texts should be a list of strings; yours is {kind(emitted)}.")
    return {"emitted": list(map(str, emitted)), "stopped": bool(stopped)}


STOPS = exercise(
    "17.stop_strings",
    reference=stop_strings,
    observe=observe_stops,
    cases=[
        dict(pieces=["ab", "c"], stops=["x"]),
        dict(pieces=["ab", "STOP", "c"], stops=["STOP"]),
        dict(pieces=["abS", "TO", "Pc"], stops=["STOP"]),
        dict(pieces=["aS", "b"], stops=["STOP"]),
        dict(pieces=["aS", "T"], stops=["STOP"]),
        dict(pieces=["a<", "|e", "nd"], stops=["<|end", "|e"]),
    ],
)


@STOPS.wrong_solutions
class _:
    def only_within_a_piece(*case):
        """You look for stop strings in each piece alone, so one that is spread over two pieces is missed. Put what you
        hold in front of the next piece."""
        return stop_strings(*case, within=True, hold=False)

    def sends_the_stop_string(*case):
        """You send the stop string itself. The output ends before it."""
        return stop_strings(*case, keep=True)

    def loses_what_is_held(*case):
        """When the stream ends, what you hold back is lost. No stop string came, so send it: one more text at the
        end."""
        return stop_strings(*case, flush=False)

    def no_last_text_where_nothing_is_held(pieces, stops):
        """If no stop string comes and nothing is held at the end, one text is missing: the last one, which is then
        empty. Without a stop there is always one more text than pieces."""
        emitted, stopped = stop_strings(pieces, stops)
        return (emitted if stopped or emitted[-1] else emitted[:-1]), stopped

    def joins_the_end_to_the_last_text(pieces, stops):
        """At the end of the stream you add what is held to the text of the last piece. That text has been sent: what
        was held is one more text."""
        emitted, stopped = stop_strings(pieces, stops)
        return (emitted if stopped or len(emitted) < 2 else [*emitted[:-2], emitted[-2] + emitted[-1]]), stopped

    def first_in_the_list(pieces, stops):
        """If several stop strings are in the text, you end before the one that is first in the list. End before the one
        that comes first in the text: take the smallest position."""
        emitted, held = [], ""
        for piece in pieces:
            text = held + piece
            if found := [text.find(stop) for stop in stops if stop in text]:
                return [*emitted, text[: found[0]]], True
            emitted.append(stop_strings([text], stops)[0][0])
            held = text[len(emitted[-1]) :]
        return [*emitted, held], False


def stream(draw: Draw, stops: list[str], parts: int, filler: str = "xy") -> list[str]:
    """Pieces of a text of stop strings, of their beginnings and of other characters. A piece may be empty."""
    words = [part for stop in stops for part in (stop, stop[:-1], stop[:1])] + list(filler)
    text = "".join(draw.choice(words) for _ in range(parts))
    cuts = sorted(draw.whole(0, len(text)) for _ in range(draw.whole(1, 4)))
    return [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]


@fresh("17.stop_strings", "one stop string that comes, or nearly", weight=2)
def _(draw):
    stop = draw.choice(["ab", "aab", "abab", "</s>", "a.b", "**", "\n\n"])
    return dict(pieces=stream(draw, [stop], draw.whole(2, 3 + draw.size)), stops=[stop])


@fresh("17.stop_strings", "several stop strings", weight=2)
def _(draw):
    stops = draw.sample(["ab", "b", "aab", "abba", "ba", "cab", "abc", "xyx"], draw.whole(2, 3))
    return dict(pieces=stream(draw, stops, draw.whole(2, 3 + draw.size)), stops=stops)


@fresh("17.stop_strings", "more than one in a piece", count=6)
def _(draw):
    stops = draw.sample(["ab", "END", "##", "bye"], draw.whole(1, 2))
    text = "".join(draw.choice(["x", "yz", ""]) + draw.choice(stops) for _ in range(draw.whole(2, 3)))
    return dict(pieces=[draw.choice(["", "x", stops[0][:1]]), text, "more"], stops=stops)


@fresh("17.stop_strings", "single characters", weight=0.5, count=6)
def _(draw):
    text = "".join(draw.choice("aaab") for _ in range(draw.whole(2, 4 + draw.size)))
    return dict(pieces=list(text), stops=[draw.choice(["aab", "aaab", "abaab"])])


@fresh("17.stop_strings", "none comes", weight=0.5)
def _(draw):
    pieces = ["".join(draw.choice("xyE") for _ in range(draw.whole(0, 3))) for _ in range(draw.whole(0, 4))]
    return dict(pieces=pieces, stops=draw.choice([["END", "EOS"], ["EN"], []]))


# ---- 17.shifted_eagle -----------------------------------------------------------------------------------------------
def shifted_eagle(hidden, tokens, embed, *, token=1, label=2, swapped=False):
    n = len(tokens) - 2
    parts = [hidden[:n], embed[tokens[token : token + n]]]
    return torch.cat(parts[::-1] if swapped else parts, dim=1), tokens[label : label + n]


def observe_eagle(answer, **case):
    inputs, labels = pair(answer(*case.values()), "the inputs and the labels")
    return {"inputs": tensor(inputs, "the inputs"), "labels": whole_numbers(labels, "the labels")}


def sequence(hidden: list[list[float]], tokens: list[int], embed: list[list[float]]) -> dict:
    return dict(hidden=torch.tensor(hidden).double(), tokens=torch.tensor(tokens), embed=torch.tensor(embed).double())


EAGLE = exercise(
    "17.shifted_eagle",
    reference=shifted_eagle,
    observe=observe_eagle,
    cases=[
        sequence([[0.1], [0.2], [0.3]], [0, 1, 2], [[1.0], [2.0], [3.0]]),
        sequence([[0.1], [0.2], [0.3], [0.4]], [2, 0, 1, 0], [[1.0], [2.0], [3.0]]),
        sequence([[0.1, 0.5], [0.2, 0.6], [0.3, 0.7], [0.4, 0.8]], [1, 0, 2, 1], [[1.0, 9.0], [2.0, 8.0], [3.0, 7.0]]),
    ],
)


@EAGLE.wrong_solutions
class _:
    def unshifted_token(*case):
        """Hidden state and token come from the same position. The hidden state has seen that token, so the head learns
        nothing about what was sampled: pair hidden state i with token i + 1."""
        return shifted_eagle(*case, token=0)

    def label_is_the_input(*case):
        """Your label is the token that the head is given. It learns to copy, the loss falls to zero and nothing is ever
        accepted. The label is the token after it."""
        return shifted_eagle(*case, label=1)

    def sees_the_answer(*case):
        """You give the head token i + 2, which is its label. At inference it does not exist yet. Give it token i +
        1."""
        return shifted_eagle(*case, token=2)

    def token_before_hidden(*case):
        """Your embedding comes before the hidden state. The weights of a trained head expect the hidden state first."""
        return shifted_eagle(*case, swapped=True)


def training_sequence(draw: Draw, length: int) -> dict:
    vocab, width = draw.whole(3, 6), draw.whole(1, 3)
    tokens = torch.tensor([draw.whole(0, vocab - 1) for _ in range(length)], dtype=torch.int64)
    return dict(hidden=draw.decimals(length, width), tokens=tokens, embed=draw.decimals(vocab, width))


fresh("17.shifted_eagle", "any sequence", lambda draw: training_sequence(draw, some(draw, 3)))
fresh("17.shifted_eagle", "too short to train on", lambda draw: training_sequence(draw, 2), weight=0.5, count=4)


# ---- 17.kv_size -----------------------------------------------------------------------------------------------------
def kv_size(layers, kv_heads, head_dim, latent, rope, bits, group, tokens, *, both=2, scales=True, always=False):
    values = latent + rope if latent else both * kv_heads * head_dim  # of one token in one layer
    quantised = scales and (bits < 16 or always)
    scale_bytes = 2 * math.ceil(values / group) if quantised else 0
    return tokens * layers * (values * bits / 8 + scale_bytes)


def cache(layers=2, kv_heads=2, head_dim=8, latent=0, rope=0, bits=16, group=32, tokens=1) -> dict:
    attention = dict(layers=layers, kv_heads=kv_heads, head_dim=head_dim, latent=latent, rope=rope)
    return dict(**attention, bits=bits, group=group, tokens=tokens)


SIZE = exercise(
    "17.kv_size",
    reference=kv_size,
    observe=lambda answer, **case: float(number(answer(*case.values()), "the number of bytes")),
    cases=[
        cache(),
        cache(layers=80, kv_heads=8, head_dim=128, tokens=4096),
        cache(bits=8),
        cache(bits=4, group=24),
        cache(latent=16, rope=4),
        cache(layers=61, kv_heads=128, head_dim=128, latent=512, rope=64, bits=8, group=128, tokens=100),
    ],
)


@SIZE.wrong_solutions
class _:
    def keys_only(*case):
        """You count one vector per head. A token leaves a key and a value: multiply by 2."""
        return kv_size(*case, both=1)

    def no_scales(*case):
        """You leave out the scales. Below 16 bits every group of values has a scale of 2 bytes; at 4 bits and groups of
        32 that is an eighth more."""
        return kv_size(*case, scales=False)

    def scales_of_full_groups(layers, kv_heads, head_dim, latent, rope, bits, group, tokens):
        """You round the number of groups down. The last group may be shorter, but it also has a scale: round up."""
        values = latent + rope if latent else 2 * kv_heads * head_dim
        return tokens * layers * (values * bits / 8 + (2 * (values // group) if bits < 16 else 0))

    def scales_for_all(*case):
        """You add scales even at 16 bits. Values that are not quantised need none."""
        return kv_size(*case, always=True)

    def latent_twice(layers, kv_heads, head_dim, latent, rope, bits, group, tokens):
        """You double the latent vector. In MLA keys and values are both computed from the one vector that is cached, so
        there is no factor 2."""
        return kv_size(layers, kv_heads, head_dim, 2 * latent, 2 * rope, bits, group, tokens)

    def forgets_rope(layers, kv_heads, head_dim, latent, rope, bits, group, tokens):
        """You leave out the part of the key that carries the position. MLA caches it beside the latent: latent +
        rope."""
        return kv_size(layers, kv_heads, head_dim, latent, 0, bits, group, tokens)


def sizes(draw: Draw, **given) -> dict:
    shape = dict(layers=draw.whole(1, 80), kv_heads=draw.whole(1, 8), head_dim=8 * draw.whole(1, 16))
    return cache(**{**shape, "tokens": draw.whole(1, 5000), **given})


def latents(draw: Draw, **given) -> dict:
    shape = dict(latent=8 * draw.whole(2, 64), rope=8 * draw.whole(1, 8), bits=draw.choice([4, 8]))
    return sizes(draw, **{**shape, **given})


fresh("17.kv_size", "grouped queries", lambda draw: sizes(draw, group=draw.choice([24, 32, 64])), weight=0.5)
fresh("17.kv_size", "quantised", lambda draw: sizes(draw, bits=draw.choice([2, 4, 8]), group=draw.choice([24, 32, 48])))
fresh("17.kv_size", "latent attention", lambda draw: latents(draw, bits=16))
fresh("17.kv_size", "latent attention, quantised", lambda draw: latents(draw, group=draw.choice([24, 48, 100, 128])))
fresh("17.kv_size", "latent attention without a part for positions", lambda draw: latents(draw, rope=0), count=5)
fresh("17.kv_size", "half bytes", lambda draw: latents(draw, latent=8 * draw.whole(2, 20) + 1, bits=4), count=5)


@fresh("17.kv_size", "a group larger than what a token leaves", weight=0.5, count=5)
def _(draw):
    small = dict(kv_heads=draw.whole(1, 2), head_dim=draw.whole(1, 12))
    return sizes(draw, **small, bits=draw.choice([4, 8]), group=draw.whole(49, 128))


# ---- 17.top_p -------------------------------------------------------------------------------------------------------
def top_p(p, limit, start, topk, *, everything=False, reaches=True, normal=True):
    k = len(p) if everything else min(start, len(p))
    values, ids = topk(p, k)
    while values.sum() < limit and k < len(p):
        k = min(2 * k, len(p))
        values, ids = topk(p, k)
    before = values.cumsum(0) - values  # [k]: what is in front of each
    keep = before < limit
    if not reaches:  # the one that reaches the limit, unless it is the first
        keep &= (before + values < limit) | (before == 0)
    kept = torch.zeros_like(p)
    kept[ids[keep]] = values[keep]
    return kept / kept.sum() if normal else kept


MOST_ASKED = 50  # a vocabulary is doubled to in 17 steps


class TopK:
    """topk(p, k): the k largest probabilities, largest first, and their tokens. It counts."""

    def __init__(self):
        self.asked: list[int] = []

    def __call__(self, p: Tensor, k: int) -> tuple[Tensor, Tensor]:
        p, k = tensor(p, "the first argument of topk"), whole_number(k, "the second argument of topk")
        if not 1 <= k <= len(p):
            raise Complaint(f"you ask topk for {k} of {len(p)} tokens: ask for a whole number from 1 to {len(p)}.")
        if len(self.asked) >= MOST_ASKED:
            raise Complaint(f"you ask topk {MOST_ASKED} times. Does your loop end when you have asked for all tokens?")
        self.asked.append(k)
        order = sorted(range(len(p)), key=lambda i: (-float(p[i]), i))[:k]
        return p[order], torch.tensor(order)


def observe_top_p(answer, **case):
    topk = TopK()
    found = answer(*case.values(), topk)
    return {"distribution": tensor(found, "the truncated distribution", case["p"].shape), "asked of topk": topk.asked}


def over(probs: list[float], limit: float, start: int) -> dict:
    return dict(p=torch.tensor(probs).double(), limit=limit, start=start)


TOP_P = exercise(
    "17.top_p",
    reference=top_p,
    observe=observe_top_p,
    cases=[
        over([0.25, 0.5, 0.125, 0.125], 0.5, 2),
        over([0.25, 0.5, 0.125, 0.125], 0.7, 2),
        over([0.125, 0.125, 0.25, 0.25, 0.25], 0.8, 2),
        over([0.125] * 8, 0.6, 1),
        over([0.5, 0.25, 0.25], 1.0, 1),
    ],
)


@TOP_P.wrong_solutions
class _:
    def sorts_everything(*case):
        """You ask for the whole vocabulary. That sorts a hundred thousand tokens for the sake of a few: begin with
        `start` and double."""
        return top_p(*case, everything=True)

    def drops_the_token_that_reaches(*case):
        """You keep tokens while their sum is below the limit, so the token that reaches it is lost. It belongs to the
        set: keep a token if the sum of those before it is below the limit."""
        return top_p(*case, reaches=False)

    def not_normalised(*case):
        """The probabilities that you return do not sum to 1. Divide by the sum of those that are kept."""
        return top_p(*case, normal=False)


def truncated(draw: Draw, length: int, start: int) -> dict:
    p = draw.probs(length, positive=True, distinct=True)
    return dict(p=p, limit=draw.whole(20, 95) / 100 + 0.003, start=start)


fresh("17.top_p", "any distribution", lambda draw: truncated(draw, 2 + some(draw), draw.whole(1, 3)), weight=2)
fresh("17.top_p", "more to begin with than tokens", lambda draw: truncated(draw, draw.whole(2, 4), 5), count=5)


@fresh("17.top_p", "a sum that meets the limit exactly", count=8)
def _(draw):
    """Probabilities in sixteenths: their sums are exact, and many of them are equal."""
    while True:
        sixteenths = draw.parts(draw.whole(3, 5 + draw.size), 16)
        if min(16 - max(sixteenths), len(set(sixteenths)) - 1) > 0:
            break
    reached = sum(sorted(sixteenths, reverse=True)[: draw.whole(1, 3)])
    p = torch.tensor(sixteenths, dtype=torch.float64) / 16
    return dict(p=p, limit=reached / 16, start=draw.whole(1, 3))


@fresh("17.top_p", "all of it", weight=0.5, count=5)
def _(draw):
    """Their sum may well be just below 1, because it is rounded."""
    p = draw.until(
        lambda: draw.probs(draw.whole(3, 8), positive=True, distinct=True),
        lambda p: float(p.sort(descending=True).values.sum()) < 1,
    )
    return dict(p=p, limit=draw.choice([0.9999, 1.0, 1.0]), start=draw.whole(2, len(p)))
