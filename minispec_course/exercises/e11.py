"""Set 11, speculation in a server: lookahead slots, rolling a block table back, one draft length for a batch."""

from __future__ import annotations

from minispec import theory

from .exercise import Complaint, exercise, pair
from .show import is_number, kind, plain, show


def count(value, what):
    """A whole number that an answer returned; a Complaint if it is none."""
    value = plain(value)
    if not is_number(value) or value % 1 != 0:
        found = show(value) if is_number(value) else kind(value)
        raise Complaint(f"{what} should be a whole number; yours is {found}.")
    return int(value)


def counts(value, what):
    if not isinstance(value, (list, tuple)):
        raise Complaint(f"{what} should be a list of whole numbers; yours is {kind(value)}.")
    return [count(x, f"every element of {what}") for x in value]


def blocks_for(tokens, block_size):
    return -(-tokens // block_size)


# ---- 11.lookahead_slots ---------------------------------------------------------------------------------------------


def lookahead_slots(num_tokens, num_computed, k, max_tokens, block_size, num_blocks):
    drafts = max(0, min(k, max_tokens - num_tokens - 1))
    slots = num_tokens - num_computed + drafts
    return slots, max(0, blocks_for(num_tokens + drafts, block_size) - num_blocks)


def observe_lookahead(answer, **case):
    slots, blocks = pair(answer(*case.values()), "the slots of the pass and the blocks to allocate")
    return {"slots": count(slots, "the number of slots"), "fresh blocks": count(blocks, "the number of blocks")}


LOOKAHEAD = exercise(
    "11.lookahead_slots",
    title="Lookahead slots",
    level="M",
    minutes=20,
    points=2,
    hints=(
        "Three numbers follow from one another: how many draft tokens can be used, how many tokens the pass then "
        "processes, and how far the block table has to reach for them.",
        "A pass emits at most one token more than it drafts, so of the tokens that are left one is the target's own. "
        "The pass processes num_tokens − num_computed tokens of the sequence and the draft tokens. The last slot it "
        "fills belongs to token number num_tokens + drafts.",
        "A pass with j draft tokens emits up to j + 1, so j is at most max_tokens − num_tokens − 1, and never "
        "negative. The slots are the tokens that are not computed yet, and these draft tokens. The blocks have to "
        "cover num_tokens plus draft tokens; subtract what the table has, and stop at 0.",
    ),
    code="minispec.serving.scheduler.Request.num_tokens_with_spec",
    reference=lookahead_slots,
    observe=observe_lookahead,
    cases=[
        dict(num_tokens=3, num_computed=2, k=0, max_tokens=20, block_size=4, num_blocks=1),
        dict(num_tokens=3, num_computed=2, k=1, max_tokens=20, block_size=4, num_blocks=1),
        dict(num_tokens=3, num_computed=2, k=4, max_tokens=20, block_size=4, num_blocks=1),
        dict(num_tokens=4, num_computed=3, k=4, max_tokens=20, block_size=4, num_blocks=1),
        dict(num_tokens=9, num_computed=8, k=4, max_tokens=12, block_size=4, num_blocks=2),
        dict(num_tokens=12, num_computed=11, k=4, max_tokens=13, block_size=4, num_blocks=3),
        dict(num_tokens=12, num_computed=11, k=4, max_tokens=12, block_size=4, num_blocks=3),
        dict(num_tokens=10, num_computed=0, k=3, max_tokens=40, block_size=4, num_blocks=0),
        dict(num_tokens=6, num_computed=5, k=1, max_tokens=40, block_size=4, num_blocks=4),
        dict(num_tokens=33, num_computed=32, k=15, max_tokens=99, block_size=16, num_blocks=2),
    ],
)


def flawed_lookahead(
    num_tokens,
    num_computed,
    k,
    max_tokens,
    block_size,
    num_blocks,
    *,
    room=None,
    extra=0,
    behind=None,
    round_up=blocks_for,
    least=0,
):
    """Lookahead slots with a switch for each way to get them wrong."""
    drafts = max(0, min(k, max_tokens - num_tokens - 1 if room is None else room))
    slots = (num_tokens - num_computed if behind is None else behind) + drafts + extra
    return slots, max(least, round_up(num_computed + slots, block_size) - num_blocks)


@LOOKAHEAD.mutant
def no_slot_for_the_last_token(*case):
    """You make room for the draft tokens only. The last token of the sequence was emitted but has not been processed
    yet, so the pass runs on it too, before the draft tokens. Add one slot for it."""
    return flawed_lookahead(*case, extra=-1)


@LOOKAHEAD.mutant
def a_slot_for_the_bonus(*case):
    """You reserve a slot for the token that the pass emits. No pass has processed that token yet: its key and value are
    stored by the next pass, where it is the last token of the sequence. Take this slot off."""
    return flawed_lookahead(*case, extra=1)


@LOOKAHEAD.mutant
def drafts_beyond_the_end(*case):
    """You draft k tokens even where the sequence may not grow that far. A pass emits at most one token more than it
    drafts, so near max_tokens fewer are enough: try min(k, max_tokens − num_tokens − 1)."""
    return flawed_lookahead(*case, room=case[2])


@LOOKAHEAD.mutant
def fills_up_to_the_end(*case):
    """You draft as many tokens as the sequence may still grow. One of these tokens is always the target's own, so one
    draft token fewer can be used: max_tokens − num_tokens − 1."""
    return flawed_lookahead(*case, room=case[3] - case[0])


@LOOKAHEAD.mutant
def always_one_behind(*case):
    """You reserve 1 + draft slots, as if all tokens but the last were already in the cache. A request that was just
    admitted has its whole prompt to process: use num_tokens − num_computed."""
    return flawed_lookahead(*case, behind=1)


@LOOKAHEAD.mutant
def new_blocks_for_all(num_tokens, num_computed, k, max_tokens, block_size, num_blocks):
    """You allocate fresh blocks for all slots of the pass. The last block of the table may still have free slots. Count
    the blocks of the whole sequence with its draft, and subtract those that are there."""
    slots, _ = lookahead_slots(num_tokens, num_computed, k, max_tokens, block_size, num_blocks)
    return slots, blocks_for(slots, block_size)


@LOOKAHEAD.mutant
def rounds_up_too_far(*case):
    """Where the tokens fill their blocks exactly, you count one block too many: n // block_size + 1 is not ⌈n /
    block_size⌉. Try -(-n // block_size)."""
    return flawed_lookahead(*case, round_up=lambda tokens, size: tokens // size + 1)


@LOOKAHEAD.mutant
def fewer_than_no_blocks(*case):
    """Your number of blocks can be negative. After a pass with a longer draft the table may be longer than this pass
    needs, and then nothing has to be allocated: return 0."""
    return flawed_lookahead(*case, least=-(10**9))


# ---- 11.rollback ----------------------------------------------------------------------------------------------------


def rollback(table, refcount, block_size, length):
    return flawed_rollback(table, refcount, block_size, length)


def flawed_rollback(table, refcount, block_size, length, *, keep=None, release=lambda n: n - 1, frees=lambda n: n == 0):
    """The rollback, with parts to exchange: blocks to keep, a count when its block goes, when a block is free."""
    table, refcount, freed = list(table), list(refcount), []
    keep = blocks_for(length, block_size) if keep is None else keep
    while len(table) > keep:
        block = table.pop()
        refcount[block] = release(refcount[block])
        if frees(refcount[block]):
            freed.append(block)
    return table, refcount, freed


def observe_rollback(answer, table, refcount, block_size, length):
    found = answer(list(table), list(refcount), block_size, length)  # theirs to change
    if not isinstance(found, (list, tuple)) or len(found) != 3:
        raise Complaint(f"return three lists: the table, the counts, the freed blocks; yours returns {kind(found)}.")
    names = "table", "refcount", "freed"
    return {name: counts(part, name) for name, part in zip(names, found, strict=True)}


def rollback_map(answer) -> str:
    """Two requests that share a prefix: tables, counts and free blocks, as one of them is rolled back."""
    tables, refcount, size = {"A": [0, 1, 2, 3], "B": [0, 1, 4]}, [2, 2, 1, 1, 1, 0], 4
    lines = ["two requests share blocks 0 and 1 (blocks of 4 slots); A is rolled back", ""]
    lines += ["# kept   = discarded, in a block that stays", ""]
    lines.append("A keeps  A's block table                     count of 0–5         freed   B's blocks")
    for length in (16, 13, 9, 8, 5, 0):
        found = observe_rollback(answer, tables["A"], refcount, size, length)
        tables["A"], refcount = found["table"], found["refcount"]
        marks = ("#" * length).ljust(len(tables["A"]) * size, "=")
        blocks = [f"{block}:{marks[i * size : (i + 1) * size]}" for i, block in enumerate(tables["A"])]
        counts, freed = (" ".join(map(str, found[name])) or "-" for name in ("refcount", "freed"))
        intact = "intact" if all(refcount[block] > 0 for block in tables["B"]) else "LOST"
        lines.append(f"{length:7}  {' '.join(blocks) or '-':34}  {counts:19}  {freed:6}  {intact}")
    return "\n".join(lines)


ROLLBACK = exercise(
    "11.rollback",
    title="The way back",
    level="M",
    minutes=20,
    points=2,
    hints=(
        "Ask three questions about each block, from the end of the table: does it hold a token that is kept? If not, "
        "is it in another table too? And may it be given to another request now?",
        "Keep ⌈length / block_size⌉ blocks. Each of the others leaves this one table, so its count falls by one. A "
        "block is free only when its count is 0.",
        "Take blocks off the end of the table as long as it has more than it may keep. Each of them loses one from "
        "its count, whether it is shared or not, but only one whose count has become 0 is added to `freed`. From "
        "the end, the order comes out right by itself.",
    ),
    code="minispec.serving.blocks.BlockPool.trim",
    reference=rollback,
    observe=observe_rollback,
    picture=rollback_map,
    cases=[
        dict(table=[0], refcount=[1, 0], block_size=2, length=1),
        dict(table=[0, 1], refcount=[1, 1], block_size=2, length=2),
        dict(table=[0, 1], refcount=[1, 1], block_size=2, length=3),
        dict(table=[0, 1], refcount=[2, 2], block_size=2, length=2),
        dict(table=[2, 0, 3], refcount=[1, 0, 1, 1], block_size=4, length=3),
        dict(table=[5, 1, 4, 2], refcount=[0, 3, 1, 0, 2, 3], block_size=4, length=5),
        dict(table=[3, 6, 0], refcount=[1, 0, 0, 2, 0, 0, 1], block_size=4, length=0),
    ],
)


@ROLLBACK.mutant
def frees_what_others_read(table, refcount, block_size, length):
    """You put every block that you drop on the free list, also those that are still in other tables. The next request
    would overwrite them, and the other requests would attend to its tokens. Free a block only when its count has
    reached 0."""
    return flawed_rollback(table, refcount, block_size, length, frees=lambda n: True)


@ROLLBACK.mutant
def counts_to_zero(table, refcount, block_size, length):
    """You set the count of a dropped block to 0. The block left one table only, so lower its count by one; other tables
    may still hold it."""
    return flawed_rollback(table, refcount, block_size, length, release=lambda n: 0)


@ROLLBACK.mutant
def counts_stay(table, refcount, block_size, length):
    """You drop blocks from the table and leave their counts as they were. A block that is in no table but still has a
    count of 1 can never be allocated again. Lower the count of each dropped block by one."""
    return flawed_rollback(table, refcount, block_size, length, release=lambda n: n, frees=lambda n: n == 1)


@ROLLBACK.mutant
def freed_to_nowhere(table, refcount, block_size, length):
    """You lower the counts but report no block as free. Return the blocks whose count has reached 0, otherwise the pool
    shrinks with every rejection."""
    return flawed_rollback(table, refcount, block_size, length, frees=lambda n: False)


@ROLLBACK.mutant
def gives_away_a_partial_block(table, refcount, block_size, length):
    """You drop the last block although it is partly filled with tokens that are kept. Round up: ⌈length / block_size⌉
    blocks stay."""
    return flawed_rollback(table, refcount, block_size, length, keep=length // block_size)


@ROLLBACK.mutant
def one_block_more(table, refcount, block_size, length):
    """Where the kept tokens end with a block, you keep one block too many, which holds only rejected tokens. Keep
    ⌈length / block_size⌉ blocks; the next pass allocates what it needs."""
    return flawed_rollback(table, refcount, block_size, length, keep=length // block_size + 1)


@ROLLBACK.mutant
def nothing_goes_back(table, refcount, block_size, length):
    """You keep all blocks. Those after the kept tokens hold only rejected tokens, and other requests could use them.
    Drop every block beyond ⌈length / block_size⌉."""
    return table, refcount, []


@ROLLBACK.mutant
def from_the_front(table, refcount, block_size, length):
    """You release the blocks from the front. Release the last one first, because free blocks are reused in this order,
    and a cached prefix is useful without its end but not without its beginning."""
    table, refcount, freed = rollback(table, refcount, block_size, length)
    return table, refcount, freed[::-1]


@ROLLBACK.mutant
def throws_away_the_first(table, refcount, block_size, length):
    """You keep the end of the table and drop its beginning. Rejected tokens are at the end, and the first blocks hold
    the kept tokens: keep table[:n]."""
    table, refcount, freed = rollback(table[::-1], refcount, block_size, length)
    return table[::-1], refcount, freed


# ---- 11.batch_k -----------------------------------------------------------------------------------------------------


def speeds(alphas, longest, read, compute, draft, *, tokens=None, cycle=None):
    """Tokens a second for k = 0 … longest, with the tokens of a pass or its seconds exchanged by mutants."""
    tokens = tokens or (lambda k: sum(theory.expected_tokens(alpha, k) for alpha in alphas))
    cycle = cycle or (lambda k: k * draft + max(read, len(alphas) * (k + 1) * compute))
    return [tokens(k) / cycle(k) for k in range(longest + 1)]


def fastest(values):
    return max(range(len(values)), key=values.__getitem__)  # of equals the first


def batch_k(alphas, longest, read, compute, draft):
    return fastest(speeds(alphas, longest, read, compute, draft))


def gain_by_batch(answer) -> str:
    """What the learner's choice makes of an 8 B model on an H200 as its batch grows."""
    gpu, alpha = theory.H200, 0.8
    read, compute = theory.pass_bytes(8e9) / gpu.bandwidth, theory.pass_flops(8e9) / gpu.flops
    draft = read / 20
    lines = [f"8 B parameters in bf16 on an H200, α = {alpha}, a draft step costs 1/20 of reading the weights", ""]
    lines.append("batch   k  tokens/s (bound)  speed-up")
    for batch in (1, 8, 32, 64, 128, 256, 512):
        alphas = [alpha] * batch
        k = count(answer(list(alphas), 8, read, compute, draft), "k")
        if not 0 <= k <= 8:
            raise Complaint(f"k is between 0 and longest, which was 8; yours is {k}.")
        found = speeds(alphas, 8, read, compute, draft)
        lines.append(f"{batch:5}  {k:2}  {found[k]:16,.0f}  {found[k] / found[0]:8.2f}")
    return "\n".join(lines)


BATCH_K = exercise(
    "11.batch_k",
    title="One draft length for a batch",
    level="M",
    minutes=25,
    points=3,
    hints=(
        "What counts is tokens per second over all sequences. Write it down for one k, as the tokens of all sequences "
        "divided by the seconds of the cycle. Then there are only longest + 1 numbers to compare.",
        "Sequence i gives E[N] with its own α. The pass over B · (k + 1) tokens takes as long as the slower of reading "
        "and computing; reading does not depend on k, computing does. k steps of the draft come before it.",
        "For every k from 0 to longest, divide the sum of all sequences' expected tokens by the seconds of a cycle; "
        "the arithmetic is for B · (k + 1) tokens, and drafting for k steps. Keep the first of the largest.",
    ),
    code="minispec.drafters.adaptive.AdaptiveLength.speed",
    reference=batch_k,
    observe=lambda answer, **case: count(answer(*case.values()), "k"),
    picture=gain_by_batch,
    cases=[
        dict(alphas=[0.5], longest=1, read=10.0, compute=1.0, draft=1.0),
        dict(alphas=[0.1], longest=1, read=10.0, compute=1.0, draft=2.0),
        dict(alphas=[0.8], longest=8, read=10.0, compute=1.0, draft=0.5),
        dict(alphas=[0.8], longest=8, read=10.0, compute=4.0, draft=0.5),
        dict(alphas=[0.8], longest=8, read=9.0, compute=3.0, draft=0.25),
        dict(alphas=[0.8] * 4, longest=8, read=10.0, compute=1.0, draft=0.5),
        dict(alphas=[0.8] * 16, longest=8, read=10.0, compute=1.0, draft=0.5),
        dict(alphas=[0.95, 0.15], longest=8, read=10.0, compute=0.5, draft=1.0),
        dict(alphas=[0.9, 0.9, 0.2, 0.1], longest=8, read=20.0, compute=0.5, draft=1.0),
        dict(alphas=[0.7] * 8, longest=6, read=40.0, compute=1.0, draft=0.5),
        dict(alphas=[0.8, 0.6, 0.4], longest=8, read=10.0, compute=0.2, draft=0.5),
    ],
)


@BATCH_K.mutant
def as_if_alone(alphas, longest, read, compute, draft):
    """You compute the pass of one sequence. The pass processes k + 1 tokens of every sequence, and their arithmetic
    adds up, which is why a large batch leaves nothing for drafts. Multiply by the number of sequences."""
    return fastest(
        speeds(alphas, longest, read, compute, draft, cycle=lambda k: k * draft + max(read, (k + 1) * compute))
    )


@BATCH_K.mutant
def verification_is_free(alphas, longest, read, compute, draft):
    """You let every pass take as long as reading the weights. That holds while B · (k + 1) tokens are computed within
    that time. Beyond the ridge point every further token costs time: take the larger of the two times."""
    return fastest(speeds(alphas, longest, read, compute, draft, cycle=lambda k: k * draft + read))


@BATCH_K.mutant
def reads_then_computes(alphas, longest, read, compute, draft):
    """You add the times for reading and for computing. They overlap, and the slower one sets the time: use max, not
    +."""
    rows = len(alphas)
    return fastest(
        speeds(alphas, longest, read, compute, draft, cycle=lambda k: k * draft + read + rows * (k + 1) * compute)
    )


@BATCH_K.mutant
def k_tokens_a_row(alphas, longest, read, compute, draft):
    """You compute k tokens per sequence. The pass also processes the last token of each sequence, so there are k +
    1."""
    rows = len(alphas)
    return fastest(
        speeds(alphas, longest, read, compute, draft, cycle=lambda k: k * draft + max(read, rows * k * compute))
    )


@BATCH_K.mutant
def average_alpha(alphas, longest, read, compute, draft):
    """You average α over the sequences first. E[N] is not linear in α: one sequence that accepts everything and one
    that accepts nothing give more tokens than two average ones. Compute E[N] for each and add them up."""
    mean = sum(alphas) / len(alphas)
    return fastest(speeds(alphas, longest, read, compute, draft, tokens=lambda k: theory.expected_tokens(mean, k)))


@BATCH_K.mutant
def the_best_row_decides(alphas, longest, read, compute, draft):
    """You choose k for the sequence with the highest α. All sequences draft as many tokens as you choose, and the
    others pay for tokens that are rejected. Count the tokens of all of them."""
    best = max(alphas)
    return fastest(speeds(alphas, longest, read, compute, draft, tokens=lambda k: theory.expected_tokens(best, k)))


@BATCH_K.mutant
def drafting_costs_nothing(alphas, longest, read, compute, draft):
    """You leave out the time for drafting: k steps, one after the other, before the pass can begin. Add k · draft."""
    return batch_k(alphas, longest, read, compute, 0.0)


@BATCH_K.mutant
def a_draft_step_for_every_row(alphas, longest, read, compute, draft):
    """You charge the draft time once per sequence. The draft model drafts for all sequences together: `draft` is one
    step of the whole batch, and a draft takes k of them."""
    return batch_k(alphas, longest, read, compute, draft * len(alphas))


@BATCH_K.mutant
def always_drafts(alphas, longest, read, compute, draft):
    """You always draft. Where the batch leaves no idle arithmetic, or the drafts are poor, plain decoding is the
    fastest, so compare k = 0 as well."""
    return 1 + fastest(speeds(alphas, longest, read, compute, draft)[1:])


@BATCH_K.mutant
def most_tokens_a_pass(alphas, longest, read, compute, draft):
    """You take the k with the most tokens per pass, which is always the longest. Divide by the seconds of the cycle."""
    return longest
