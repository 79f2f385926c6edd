"""Set 17, the coding round: ten functions that interviewers ask for. The first five; the others are in e17_more.py."""

from __future__ import annotations

import torch
from torch import Tensor

from .exercise import Complaint, exercise, mask_of, pair
from .show import kind

# ---- 17.ragged_sampler ----------------------------------------------------------------------------------------------


def ragged_sampler(p, q, draft, lengths, u, *, cumulative=True, ragged=True, residual=True, normal=True, bonus=True):
    rows, steps = torch.arange(len(p)), torch.arange(draft.shape[1])
    ratio = (p[:, :-1] / q).gather(2, draft[..., None])[..., 0]  # [B, k]
    ok = u < ratio
    ok &= steps < lengths[:, None] if ragged else True
    counts = (ok.cumprod(1) if cumulative else ok).sum(1)  # [B]
    at = counts if bonus else torch.where(counts == lengths, draft.shape[1], counts)
    target = p[rows, at]  # [B, V]
    rest = (target - q[rows, counts.clamp(max=draft.shape[1] - 1)]).clamp(min=0)
    rest = rest / rest.sum(-1, keepdim=True) if normal else rest
    rejected = (counts < lengths)[:, None]
    return counts, torch.where(rejected, rest, target) if residual else target


def observe_sampler(answer, **case):
    counts, following = pair(answer(*case.values()), "the accepted counts and the distributions of the next tokens")
    for value, what in ((counts, "counts"), (following, "distributions")):
        if not isinstance(value, Tensor):
            raise Complaint(f"the {what} should be a tensor; yours is {kind(value)}.")
    return {"accepted": counts.tolist(), "next token": following.double()}


def drafts(p, q, draft, lengths, u) -> dict:
    return dict(
        p=torch.tensor(p).double(),
        q=torch.tensor(q).double(),
        draft=torch.tensor(draft),
        lengths=torch.tensor(lengths),
        u=torch.tensor(u).double(),
    )


A, B, C = [0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.1, 0.1, 0.8]
SAMPLER = exercise(
    "17.ragged_sampler",
    title="a rejection sampler for drafts of different lengths",
    level="H",
    minutes=30,
    points=3,
    hints=(
        "Compute an acceptance mask [B, k] for all positions at once. What must be true of position i, and of all "
        "positions before it, for draft token i to be kept?",
        "Mask positions beyond a sequence's length with False, then a cumulative product along the draft turns every "
        "position after the first rejection into 0. Its sum is the number of accepted tokens, n. Position n of p gives "
        "the next token: the residual if n < length, p itself otherwise.",
        "A mask of accepted coins, cut at each sequence’s length; its running product sums to n. At index n take the "
        "residual where a token was rejected and p elsewhere: torch.where chooses. Clamp n before you index q, which "
        "is one position shorter than p.",
    ),
    code="minispec.verify.chain_batch",
    reference=ragged_sampler,
    observe=observe_sampler,
    cases=[
        drafts([[A, A]], [[B]], [[0]], [1], [[0.9]]),
        drafts([[A, C]], [[B]], [[1]], [1], [[0.9]]),
        drafts([[A, A, C]], [[B, B]], [[1, 0]], [2], [[0.9, 0.1]]),
        drafts([[A, C, B], [A, B, C]], [[B, A], [B, A]], [[0, 1], [0, 2]], [1, 2], [[0.3, 0.2], [0.9, 0.5]]),
    ],
)


@SAMPLER.mutant
def counts_past_a_rejection(*case):
    """You count every accepted position. After the first rejection the later draft tokens follow a token that is not in
    the output, so they are void: use a cumulative product."""
    return ragged_sampler(*case, cumulative=False)


@SAMPLER.mutant
def takes_the_padding(*case):
    """You test positions beyond a sequence's length. Drafts are ragged: position i counts only if i < lengths."""
    p, q, draft, lengths, u = case
    counts, following = ragged_sampler(p, q, draft, torch.full_like(lengths, draft.shape[1]), u)
    return counts, following


@SAMPLER.mutant
def replaces_from_p(*case):
    """After a rejection you continue with p. Then a token that q likes is too likely, because it had its chance
    already: sample from the residual, max(0, p − q), normalised."""
    return ragged_sampler(*case, residual=False)


@SAMPLER.mutant
def residual_not_normalised(*case):
    """Your residual does not sum to 1. Divide max(0, p − q) by its sum."""
    return ragged_sampler(*case, normal=False)


@SAMPLER.mutant
def bonus_from_the_last_column(*case):
    """Where all draft tokens are accepted you take the bonus from the last position of the batch. A shorter draft has
    its bonus right after its own last token, at position lengths[b]."""
    return ragged_sampler(*case, bonus=False)


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
    if not isinstance(found, (tuple, list)) or len(found) != 3 or not isinstance(found[0], dict):
        raise Complaint(f"return three things: the tables (a dict), the counts and the copies; yours is {kind(found)}.")
    tables, counts, copies = found
    return {
        "tables": sorted((name, list(table)) for name, table in tables.items()),
        "reference counts": list(counts),
        "copies": [tuple(move) for move in copies],
    }


def appends(name: str, count: int) -> list:
    return [("append", name)] * count


BLOCKS = exercise(
    "17.block_allocator",
    title="a block allocator with reference counts and copy-on-write",
    level="M",
    minutes=30,
    points=3,
    hints=(
        "Keep a reference count per block and a table and a length per request. When does an append need a new block? "
        "When may it write into the block that is there?",
        "A new block is needed when the length is a multiple of block_size. Otherwise the last block is written "
        "to, which "
        "is allowed only if its count is 1: if it is shared, take a new block, note the copy, and give one "
        "reference back.",
        "append: if length % block_size == 0: table.append(take()); elif counts[table[-1]] > 1: old, table[-1] = "
        "table[-1], take(); counts[old] -= 1; copies.append((old, table[-1])). fork: copy the table, count every "
        "block up. "
        "free: count every block down.",
    ),
    code="minispec.serving.blocks.BlockPool",
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


@BLOCKS.mutant
def writes_into_shared_blocks(*case):
    """You write into a block that two requests share, so one request changes the other's cache. If the count of the
    last block is above 1, copy it first."""
    return block_allocator(*case, copy=False)


@BLOCKS.mutant
def copies_the_whole_table(*case):
    """You copy every block of the table. Only the last one is written to; full blocks are never changed and can stay
    shared."""
    return block_allocator(*case, deep=True)


@BLOCKS.mutant
def frees_shared_blocks(*case):
    """Freeing a request releases blocks that another one still uses. Count down by one instead of setting to 0."""
    return block_allocator(*case, counted=False)


@BLOCKS.mutant
def keeps_the_old_reference(*case):
    """After a copy the old block still counts the request that left it, so it is never free again: count it down."""
    return block_allocator(*case, released=False)


@BLOCKS.mutant
def fork_without_counting(*case):
    """Your fork shares the blocks without counting them up. The first request that is freed takes them away from the
    other."""
    return block_allocator(*case, forked=False)


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
    if not isinstance(moves, (list, tuple)):
        raise Complaint(f"the moves should be a list of (from, to); yours is {kind(moves)}.")
    return {"mask": mask_of(mask, (n, case["cached"] + n)), "moves": [tuple(int(x) for x in move) for move in moves]}


TREE = exercise(
    "17.tree_mask",
    title="the attention mask of a draft tree, and the cache after it",
    level="M",
    minutes=25,
    points=3,
    hints=(
        "Which tokens come before a node in the sequence that it would belong to? Walk from the node to the root. And "
        "which slots of the cache hold the accepted nodes after the pass?",
        "A node sees the whole cache, its ancestors and itself, never its siblings. Node i is written to slot "
        "cached + i; "
        "after verification the accepted nodes have to lie one after the other, from slot cached on.",
        "Node i: what its parent sees (parents come first), plus position cached + i. Moves: (cached + node, cached + "
        "to) "
        "for to, node in enumerate(accepted) if node != to.",
    ),
    code="minispec.tree.Draft",
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


@TREE.mutant
def sees_everything_before(parents, cached, accepted):
    """Your mask is the causal one: a node sees all nodes before it, its siblings as well. Those are alternatives to it
    and never in the same sequence. Let it see its ancestors only."""
    mask, moves = tree_mask(parents, cached, accepted)
    return torch.ones_like(mask).tril(cached), moves


@TREE.mutant
def not_itself(*case):
    """Your nodes do not see themselves. A token attends to its own key, as in every causal mask."""
    return tree_mask(*case, itself=False)


@TREE.mutant
def only_the_parent(*case):
    """A node sees its parent but no further ancestors. All of them are in its sequence: take over
    what the parent sees."""
    return tree_mask(*case, grand=False)


@TREE.mutant
def forgets_the_cache(*case):
    """Your nodes do not see the cached tokens. The first `cached` columns are True for every node."""
    return tree_mask(*case, cache=False)


@TREE.mutant
def to_and_from(*case):
    """Your moves are (to, from). A move says first where a node lies, and then where it belongs."""
    mask, moves = tree_mask(*case)
    return mask, [move[::-1] for move in moves]


@TREE.mutant
def moves_that_stay(parents, cached, accepted):
    """You list nodes that lie where they belong already. Leave out the moves from a slot to itself."""
    mask, _ = tree_mask(parents, cached, accepted)
    return mask, [(cached + node, cached + to) for to, node in enumerate(accepted)]


@TREE.mutant
def moves_one_too_far(*case):
    """You leave one slot free before the accepted nodes. Node 0 already lies in slot `cached`, which is where the first
    accepted one belongs."""
    return tree_mask(*case, start=1)


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
    if not isinstance(out, Tensor) or not isinstance(steps, (list, tuple)):
        raise Complaint(f"return a tensor and a list; yours are {kind(out)} and {kind(steps)}.")
    read = [pair(step, "the maximum and the sum after a block") for step in steps]
    return {
        "output": out.double(),
        "maxima": torch.tensor([float(m) for m, _ in read]).double(),
        "sums": torch.tensor([float(total) for _, total in read]).double(),
    }


def scored(scores: list[float], values: list[list[float]], block: int) -> dict:
    return dict(scores=torch.tensor(scores).double(), values=torch.tensor(values).double(), block=block)


ONLINE = exercise(
    "17.online_softmax",
    title="attention of one query, block by block, with an online softmax",
    level="M",
    minutes=25,
    points=3,
    hints=(
        "You may keep three things between blocks: the largest score so far, the sum of the exponentials, and the "
        "weighted sum of values. What has to happen to the last two when a larger score turns up?",
        "They were computed relative to the old maximum, so multiply both by exp(old − new) before the new block is "
        "added. Divide by the sum once, at the end.",
        "With each tile the maximum may rise. Everything collected so far, the sum and the weighted values, is "
        "multiplied by exp(old maximum − new maximum) before the tile is added relative to the new one.",
    ),
    code="minispec.gpu.attention.flash_decode",
    reference=online_softmax,
    observe=observe_online,
    cases=[
        scored([0.0, 1.0], [[1.0], [2.0]], 2),
        scored([0.0, 1.0, 2.0, 0.5], [[1.0], [2.0], [3.0], [4.0]], 2),
        scored([2.0, 1.0, 0.0], [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], 1),
        scored([1000.0, 1001.0, 999.0], [[1.0], [2.0], [3.0]], 2),
    ],
)


@ONLINE.mutant
def no_rescaling(*case):
    """When a larger score turns up, what you have summed so far stays relative to the old maximum. Multiply the sum and
    the output by exp(old maximum − new maximum)."""
    return online_softmax(*case, rescale_sum=False, rescale_out=False)


@ONLINE.mutant
def rescales_only_the_sum(*case):
    """You rescale the sum but not the output. Both are relative to the maximum, so both need the factor."""
    return online_softmax(*case, rescale_out=False)


@ONLINE.mutant
def rescales_only_the_output(*case):
    """You rescale the output but not the sum. Both are relative to the maximum, so both need the factor."""
    return online_softmax(*case, rescale_sum=False)


@ONLINE.mutant
def begins_at_zero(scores, values, block):
    """Your maximum begins at 0. Where all scores are negative it is then too large, and exp(score − maximum) may
    vanish: begin at minus infinity."""
    out, steps = online_softmax(scores, values, block)
    steps = [
        (max(0.0, m), total * float(torch.exp(torch.tensor(min(0.0, m), dtype=torch.float64)))) for m, total in steps
    ]
    return (out if steps[-1][1] > 0 else out * torch.nan), steps


@ONLINE.mutant
def no_maximum(*case):
    """You do not subtract the maximum, so large scores overflow: exp(1000) is infinite."""
    return online_softmax(*case, shift=False)


@ONLINE.mutant
def averages_of_blocks(scores, values, block):
    """You average the blocks' own softmax outputs. A block with larger scores weighs more: combine them with their
    maxima and sums."""
    _, steps = online_softmax(scores, values, block)
    parts = [torch.softmax(s, 0) @ v for s, v in zip(scores.split(block), values.split(block), strict=True)]
    return torch.stack(parts).mean(0), steps


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
    if not isinstance(found, (list, tuple)):
        raise Complaint(f"return a list of (name, tokens); yours is {kind(found)}.")
    plan = [pair(entry, "a name and its tokens") for entry in found]
    return {"plan": [(name, int(tokens)) for name, tokens in plan], "tokens in all": sum(int(n) for _, n in plan)}


BUDGET = exercise(
    "17.token_budget",
    title="a scheduler with a token budget, draft tokens and chunked prefill",
    level="M",
    minutes=25,
    points=3,
    hints=(
        "A decoding request that waits costs a user a stall, a prompt that waits costs time to first token only. "
        "Who is "
        "served first? And what can be cut when the budget is short?",
        "Running requests first: each has one token for sure, then as many of its draft tokens as the budget "
        "allows once "
        "the later running requests have their one token. What is left goes to waiting prompts in order, the "
        "last one cut.",
        "A running request gets its one token and as many draft tokens as it asks for, but leaves one token for "
        "every running request after it. Waiting requests then take what is left, while there are seats, each at "
        "most its prompt.",
    ),
    code="minispec.serving.scheduler.Scheduler",
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


@BUDGET.mutant
def prompts_first(*case):
    """You schedule prompts before running requests. A long prompt then stalls every user who is reading an answer:
    serve running requests first."""
    return token_budget(*case, first="waiting")


@BUDGET.mutant
def whole_prompts_only(*case):
    """You leave a prompt out that does not fit as a whole. Chunked prefill takes the part that fits, so no token of the
    budget is wasted."""
    return token_budget(*case, chunks=False)


@BUDGET.mutant
def draft_tokens_are_free(*case):
    """You give a running request one token. Its draft tokens are verified in the same pass and need budget: 1 + k."""
    return token_budget(*case, drafts=False)


@BUDGET.mutant
def prompts_with_nothing(running, waiting, budget, max_num_seqs):
    """Your plan has prompts with 0 tokens. When the budget is used up no other request is in the step."""
    plan = token_budget(running, waiting, budget, max_num_seqs)
    return plan + [(name, 0) for name, _ in waiting[: max(0, max_num_seqs - len(running))][len(plan) - len(running) :]]


@BUDGET.mutant
def too_many_sequences(*case):
    """You admit more sequences than max_num_seqs. Running requests occupy seats too: max_num_seqs − len(running) are
    left."""
    return token_budget(*case, seats=False)


@BUDGET.mutant
def first_come_takes_all(*case):
    """Your first running requests take all their draft tokens and leave nothing for those after them. Every running
    request gets its one token before any draft token is given."""
    return token_budget(*case, least=False)
