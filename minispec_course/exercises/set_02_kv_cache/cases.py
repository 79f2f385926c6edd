"""Set 02, the KV cache: its size, the attention of one new token over it, its rewind, and what sequences of unequal
length may see."""

import torch

from minispec import theory
from minispec.cache import attention, visible_slots

from ..exercise import decimals, exercise
from ..fresh import Draw, fresh
from ..returned import tensor


# ---- 02.kv_bytes ----------------------------------------------------------------------------------------------------
def kv_gib(layers, heads, kv_heads, head_dim, bits, batch, length):
    return theory.kv_bytes(batch, length, theory.kv_bytes_per_token(layers, kv_heads, head_dim, bits / 8)) / 2**30


KV_BYTES = exercise(
    "02.kv_bytes",
    reference=kv_gib,
    cases=[
        dict(layers=32, heads=32, kv_heads=32, head_dim=128, bits=16, batch=1, length=2048),
        dict(layers=32, heads=32, kv_heads=8, head_dim=128, bits=16, batch=1, length=8192),
        dict(layers=32, heads=32, kv_heads=32, head_dim=128, bits=16, batch=16, length=4096),
        dict(layers=80, heads=64, kv_heads=8, head_dim=128, bits=8, batch=4, length=8192),
        dict(layers=30, heads=9, kv_heads=3, head_dim=64, bits=32, batch=2, length=1000),
    ],
)


@KV_BYTES.wrong_solutions
class _:
    def query_heads(layers, heads, kv_heads, head_dim, bits, batch, length):
        """You count the query heads. Only keys and values are kept, and under grouped-query attention there are fewer
        of those, because several query heads share one key/value head. Use kv_heads."""
        return kv_gib(layers, heads, heads, head_dim, bits, batch, length)

    def keys_only(layers, heads, kv_heads, head_dim, bits, batch, length):
        """You count one vector per head and token. There are two, a key and a value, so multiply by 2."""
        return kv_gib(layers, heads, kv_heads, head_dim, bits, batch, length) / 2

    def bits_for_bytes(layers, heads, kv_heads, head_dim, bits, batch, length):
        """You treat bits as bytes, so your cache is eight times too large. Divide `bits` by 8 to get bytes."""
        return kv_gib(layers, heads, kv_heads, head_dim, 8 * bits, batch, length)

    def decimal_gigabytes(layers, heads, kv_heads, head_dim, bits, batch, length):
        """You divide by 10⁹, which gives GB. A GiB is 2³⁰ bytes, 7 % more, and that difference is enough to run out of
        memory. Divide by 2**30 instead."""
        return kv_gib(layers, heads, kv_heads, head_dim, bits, batch, length) * 2**30 / 1e9

    def one_row(layers, heads, kv_heads, head_dim, bits, batch, length):
        """You compute the cache of one sequence. A batch shares the weights, but every sequence needs its own cache, so
        multiply by batch."""
        return kv_gib(layers, heads, kv_heads, head_dim, bits, 1, length)


def cache_size(draw: Draw, kv_heads: int, group: int) -> dict:
    shape = dict(layers=draw.whole(2, 90), heads=kv_heads * group, kv_heads=kv_heads, head_dim=8 * draw.whole(4, 20))
    bits, batch, length = draw.choice([8, 16, 32]), draw.whole(1, 1 + 8 * draw.size), draw.whole(300, 9000)
    return dict(**shape, bits=bits, batch=batch, length=length)


fresh("02.kv_bytes", "as many key/value heads as query heads", lambda draw: cache_size(draw, draw.whole(1, 48), 1))
fresh("02.kv_bytes", "grouped-query attention", lambda draw: cache_size(draw, draw.whole(1, 12), draw.whole(2, 8)))


# ---- 02.cached_attention --------------------------------------------------------------------------------------------
def cached_attention(q, keys, values, length):
    return attention(q[None, :, None], keys[None, :, :length], values[None, :, :length], None)[0, :, 0]


def cache_case(heads: int, kv_heads: int, head_dim: int, slots: int, length: int, seed: int) -> dict:
    """A query and a cache of which only the first `length` slots count."""
    keys, values = (decimals(kv_heads, slots, head_dim, seed=seed + i) for i in (1, 2))
    return dict(q=decimals(heads, head_dim, seed=seed), keys=keys, values=values, length=length)


CACHED_ATTENTION = exercise(
    "02.cached_attention",
    reference=cached_attention,
    cases=[
        cache_case(1, 1, 4, slots=2, length=2, seed=0),
        cache_case(1, 1, 4, slots=4, length=2, seed=3),
        cache_case(2, 1, 4, slots=3, length=3, seed=6),
        cache_case(4, 2, 4, slots=3, length=3, seed=9),
        cache_case(6, 2, 16, slots=8, length=5, seed=12),
        cache_case(6, 3, 8, slots=7, length=6, seed=15),
    ],
)


def flawed_attention(q, keys, values, length, *, scale=None, seen=None, owner=None, hidden=-torch.inf):
    """Attention of one token, with parts to exchange: scale, slots that count, each head's kv head, a hidden score."""
    H, D = q.shape
    seen = length if seen is None else seen
    owner = torch.arange(H) // (H // len(keys)) if owner is None else owner  # [H]
    scores = torch.einsum("hd,hsd->hs", q, keys[owner]) * (D**-0.5 if scale is None else scale)
    scores[:, seen:] = hidden
    return torch.einsum("hs,hsd->hd", scores.softmax(-1), values[owner])


@CACHED_ATTENTION.wrong_solutions
class _:
    def attends_to_stale_slots(q, keys, values, length):
        """You attend to slots past the length. They hold rejected draft tokens or tokens of another request, and must
        get no weight. Cut keys and values to the first `length` slots."""
        return flawed_attention(q, keys, values, length, seen=keys.shape[1])

    def hides_with_zero(q, keys, values, length):
        """You give slots past the length the score 0 (or you zero their keys). The softmax turns 0 into e⁰ = 1, a
        weight like any other. Cut these slots off, or give them the score −∞."""
        return flawed_attention(q, keys, values, length, hidden=0.0)

    def hides_after_the_softmax(q, keys, values, length):
        """You remove the slots past the length after the softmax. By then they have taken their share of the weight,
        and the rest sums to less than 1. Remove them before the softmax: cut them off, or give them the score −∞."""
        stale = torch.arange(keys.shape[1])[None, :, None] >= length
        return flawed_attention(q, keys, values.masked_fill(stale, 0.0), length, seen=keys.shape[1])

    def misses_itself(q, keys, values, length):
        """Your token does not see itself. Its own key and value are in the cache, in slot length − 1, and they count.
        Use the first `length` slots, including that one."""
        return flawed_attention(q, keys, values, length, seen=length - 1)

    def divides_by_d(q, keys, values, length):
        """You divide the scores by D. A sum of D products grows like √D, so dividing by √D keeps the scores the same
        size for every D, while dividing by D makes the softmax nearly flat."""
        return flawed_attention(q, keys, values, length, scale=1 / q.shape[-1])

    def no_scale(q, keys, values, length):
        """You leave the scores unscaled, so the softmax puts nearly all weight on one slot. Divide the scores by √D
        before the softmax."""
        return flawed_attention(q, keys, values, length, scale=1.0)

    def heads_in_turn(q, keys, values, length):
        """You assign the key/value heads in turn: query head h uses h mod Hkv. A group consists of G neighbouring query
        heads, so head h uses h // G. (repeat assigns in turn, repeat_interleave makes groups.)"""
        return flawed_attention(q, keys, values, length, owner=torch.arange(len(q)) % len(keys))

    def softmax_over_heads(q, keys, values, length):
        """Your softmax runs over the heads. Each head divides a weight of 1 among the tokens it attends to, so take the
        softmax over the slots, the last dimension."""
        H, D = q.shape
        owner = torch.arange(H) // (H // len(keys))
        scores = torch.einsum("hd,hsd->hs", q, keys[owner, :length]) / D**0.5
        return torch.einsum("hs,hsd->hd", scores.softmax(0), values[owner, :length])


def attention_case(draw: Draw, kv_heads: int, group: int, *, spare=0, most=2.0, length=0) -> dict:
    head_dim, length = 4 if most > 9 else draw.whole(2, 3 + draw.size), length or draw.whole(1, 1 + draw.size)
    keys, values = (draw.decimals(kv_heads, length + spare, head_dim, most=most) for _ in range(2))
    return dict(q=draw.decimals(kv_heads * group, head_dim, most=most), keys=keys, values=values, length=length)


fresh("02.cached_attention", "heads of their own", lambda draw: attention_case(draw, draw.whole(1, 4), 1))
fresh("02.cached_attention", "shared heads", lambda draw: attention_case(draw, draw.whole(1, 3), draw.whole(2, 4)))


@fresh("02.cached_attention", "stale slots")
def _(draw):
    case = attention_case(draw, draw.whole(1, 2), draw.whole(1, 3), spare=draw.whole(1, 4))
    for name in ("keys", "values"):
        case[name][:, case["length"] :] *= draw.choice([0, 1, 30])
    return case


@fresh("02.cached_attention", "large scores", weight=0.5)
def _(draw):
    """In whole numbers, and with √D = 2: even float32 has the scores, and so their differences, as they are."""
    case = attention_case(draw, draw.whole(1, 2), draw.whole(1, 2), most=90.0, length=draw.whole(2, 5))
    return {name: x.round() if isinstance(x, torch.Tensor) else x for name, x in case.items()}


@fresh("02.cached_attention", "float32", weight=0.5, count=5)
def _(draw):
    case = attention_case(draw, draw.whole(1, 2), draw.whole(1, 2), most=1.0, spare=1)
    return {name: x.float() if isinstance(x, torch.Tensor) else x for name, x in case.items()}


# ---- 02.rewind ------------------------------------------------------------------------------------------------------
def rewind(lengths, k, accepted):
    return lengths - (k - torch.tensor(accepted))


REWIND = exercise(
    "02.rewind",
    reference=rewind,
    cases=[
        dict(lengths=torch.tensor([7]), k=4, accepted=[1]),
        dict(lengths=torch.tensor([7]), k=4, accepted=[4]),
        dict(lengths=torch.tensor([7]), k=4, accepted=[0]),
        dict(lengths=torch.tensor([9, 6]), k=3, accepted=[2, 0]),
        dict(lengths=torch.tensor([9, 6, 12]), k=5, accepted=[5, 1, 0]),
    ],
)


@REWIND.wrong_solutions
class _:
    def takes_back_the_accepted(lengths, k, accepted):
        """You discard the accepted draft tokens and keep the rejected ones. Subtract k − accepted."""
        return lengths - torch.tensor(accepted)

    def takes_back_all(lengths, k, accepted):
        """You discard the whole draft. The accepted tokens are part of the sequence now, and their keys and values are
        right. Keep them, or the next pass has to compute them again."""
        return lengths - k

    def shortest_for_all(lengths, k, accepted):
        """You take the same number of tokens from every sequence. Each has accepted a different number, so subtract k −
        accepted[b] from lengths[b]."""
        return lengths - (k - min(accepted))

    def one_too_few(lengths, k, accepted):
        """You leave one rejected token in the cache, and every later token attends to it. The output stays fluent, but
        it is conditioned on a token that is not there. Discard k − accepted tokens."""
        return lengths - (k - torch.tensor(accepted) - 1).clamp(0)

    def counts_the_correction(lengths, k, accepted):
        """You also count the correction or the bonus token. No pass has processed that token yet, so its key and value
        are not in the cache. Discard k − accepted tokens and add nothing."""
        return lengths - (k - torch.tensor(accepted)) + 1


@fresh("02.rewind", "each sequence by its own number")
def _(draw):
    k, batch = draw.whole(1, 2 + draw.size), draw.whole(1, 1 + draw.size)
    lengths = torch.tensor([k + draw.whole(1, 9 * draw.size) for _ in range(batch)])
    return dict(lengths=lengths, k=k, accepted=[draw.whole(0, k) for _ in range(batch)])


# ---- 02.ragged ------------------------------------------------------------------------------------------------------
def visible(lengths, count):
    slots = lengths[:, None] + torch.arange(count)  # [B, T]
    return visible_slots(slots, int(lengths.max()) + count, None)


def mask_map(answer) -> str:
    """The learner's mask, sequence by sequence: what each new token sees, and what is in the slots."""
    lengths, count = torch.tensor([4, 1, 2]), 3
    wanted = (len(lengths), count, int(lengths.max()) + count)
    mask = tensor(answer(lengths.clone(), count), "the mask", wanted)
    lines = ["# seen   . not seen        p past   n new   - stale or empty"]
    for b, length in enumerate(lengths.tolist()):
        holds = "p" * length + "n" * count + "-" * (wanted[2] - length - count)
        lines += ["", f"seq {b}     {' '.join(holds)}"]
        for t in range(count):
            lines.append(f"  new {t}   {' '.join('#' if seen else '.' for seen in mask[b, t].tolist())}")
    return "\n".join(lines)


RAGGED = exercise(
    "02.ragged",
    reference=visible,
    picture=mask_map,
    cases=[
        dict(lengths=torch.tensor([2]), count=1),
        dict(lengths=torch.tensor([1]), count=2),
        dict(lengths=torch.tensor([2, 0]), count=1),
        dict(lengths=torch.tensor([1, 2]), count=2),
        dict(lengths=torch.tensor([0, 3]), count=3),
        dict(lengths=torch.tensor([4, 1, 2]), count=3),
    ],
)


def up_to(last, lengths, count):
    """The mask in which every new token sees all slots up to `last`, [B, T] or something that broadcasts to it."""
    slot = torch.arange(int(lengths.max()) + count)
    return slot <= last.expand(len(lengths), count)[..., None]


@RAGGED.wrong_solutions
class _:
    def longest_row_for_all(lengths, count):
        """You give all sequences the mask of the longest. The shorter ones then attend to slots after their own tokens,
        which hold stale data. Use the length of each sequence, lengths[b]."""
        return up_to(lengths.max() + torch.arange(count), lengths, count)

    def new_tokens_blind_to_themselves(lengths, count):
        """A new token does not see itself in your mask. Its key and value are stored before attention uses them, so it
        sees everything up to and including its own slot. Compare with <=, not <."""
        return up_to(lengths[:, None] + torch.arange(count) - 1, lengths, count)

    def sees_one_ahead(lengths, count):
        """Every new token sees one slot too many: the token it is about to predict, or a stale one. The last slot it
        may see is its own, lengths[b] + t."""
        return up_to(lengths[:, None] + torch.arange(count) + 1, lengths, count)

    def new_tokens_see_all_new(lengths, count):
        """All new tokens of a sequence see one another, even those that come later. A draft token that sees its
        successors is judged with knowledge that plain decoding would not have. Among the new tokens the mask has to be
        triangular."""
        return up_to(lengths[:, None] + count - 1, lengths, count)

    def true_means_hidden(lengths, count):
        """Your mask is inverted: it is True where a token must not look. Here, as in scaled_dot_product_attention, True
        means seen. (Some other masks in PyTorch mean the opposite.)"""
        return ~visible(lengths, count)


@fresh("02.ragged", "one sequence")
def _(draw):
    return dict(lengths=torch.tensor([draw.whole(0, 1 + draw.size)]), count=draw.whole(1, 2 + draw.size))


@fresh("02.ragged", "sequences of different lengths")
def _(draw):
    lengths = draw.until(
        lambda: [draw.whole(0, 2 + draw.size) for _ in range(draw.whole(2, 4))], lambda found: len(set(found)) > 1
    )
    return dict(lengths=torch.tensor(lengths), count=draw.whole(1, 1 + draw.size))


@fresh("02.ragged", "sequences of one length", weight=0.5, count=5)
def _(draw):
    lengths = [draw.choice([0, draw.whole(1, 4)])] * draw.whole(2, 4)
    return dict(lengths=torch.tensor(lengths), count=draw.whole(1, 1 + draw.size))
