"""Set 13, near the limit: the bytes of a pass, a kernel on the roofline, the split-K combine, and a captured graph."""

import torch

from ..exercise import Complaint, exercise, probs
from ..fakes import Device
from ..fresh import Draw, fresh
from ..returned import number, several, tensor


# ---- 13.pass_bytes --------------------------------------------------------------------------------------------------
def pass_bytes(layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, tokens, context, size, **miscounted):
    """Bytes of a pass. miscounted: what a wrong solution puts in place of one of our numbers."""
    ours = dict(times=1, projected=kv_heads, mlp=3, tables=1, kept=2, cached=kv_heads) | miscounted
    attention = 2 * hidden * heads * head_dim + 2 * hidden * ours["projected"] * head_dim
    weights = layers * (attention + ours["mlp"] * hidden * intermediate) + ours["tables"] * vocab * hidden
    return size * (weights * ours["times"] + ours["kept"] * layers * ours["cached"] * head_dim * context)


SMALL = dict(layers=2, hidden=8, intermediate=20, heads=4, kv_heads=2, head_dim=3, vocab=50)
LLAMA = dict(layers=32, hidden=4096, intermediate=14_336, heads=32, kv_heads=8, head_dim=128, vocab=128_256)


PASS_BYTES = exercise(
    "13.pass_bytes",
    reference=pass_bytes,
    cases=[
        dict(layers=1, hidden=2, intermediate=3, heads=1, kv_heads=1, head_dim=2, vocab=5, tokens=1, context=0, size=1),
        dict(**SMALL, tokens=1, context=0, size=2),
        dict(**SMALL, tokens=1, context=10, size=2),
        dict(**SMALL, tokens=5, context=10, size=2),
        dict(**LLAMA, tokens=5, context=1000, size=2),
    ],
)


@PASS_BYTES.wrong_solutions
class _:
    def weights_for_every_token(*case):
        """You count the weights once for every token of the pass. One read of a weight serves all of them, which is why
        verifying a draft is nearly free. Leave `tokens` out."""
        return pass_bytes(*case, times=case[7])

    def cache_of_the_new_tokens(*case):
        """You add the new tokens to the cache. Their keys and values are negligible: count `context` tokens only."""
        return pass_bytes(*case[:8], case[8] + case[7], case[9])

    def keys_without_values(*case):
        """You count one number per cached token, head and dimension. There are two, because attention reads the keys
        for the scores and the values for the weighted sum: multiply by 2."""
        return pass_bytes(*case, kept=1)

    def cache_of_all_heads(*case):
        """You count a cache for every query head. With grouped-query attention several query heads share one key/value
        head, and only key/value heads are stored: use kv_heads for the cache."""
        return pass_bytes(*case, cached=case[3])

    def wide_k_and_v(*case):
        """You give the matrices of k and v as many rows as that of q. They project to kv_heads · head_dim numbers only,
        so they are smaller."""
        return pass_bytes(*case, projected=case[3])

    def mlp_of_two(*case):
        """You count two matrices in the MLP. SwiGLU has three, gate, up and down, of hidden × intermediate each."""
        return pass_bytes(*case, mlp=2)

    def forgets_the_lm_head(*case):
        """You leave out the LM head. Every pass multiplies by all of its vocab × hidden parameters; in a small model it
        is the largest matrix of all."""
        return pass_bytes(*case, tables=0)

    def reads_the_embedding(*case):
        """You count the embedding table as well as the LM head. A token looks up one row of that table, which is next
        to nothing. Count vocab × hidden once, for the LM head."""
        return pass_bytes(*case, tables=2)


def model(draw: Draw, *, tokens: int = 1, cached: bool = True, shared: bool = False) -> dict:
    """A Llama and a pass of it. shared: several query heads have one key/value head."""
    kv_heads = draw.whole(1, 1 + draw.size)
    heads = kv_heads * (draw.whole(2, 4) if shared else 1)
    widths = dict(hidden=draw.whole(2, 8 * draw.size), intermediate=draw.whole(2, 20 * draw.size))
    attention = dict(heads=heads, kv_heads=kv_heads, head_dim=draw.whole(1, 4 * draw.size))
    context = draw.whole(1, 40 * draw.size) if cached else 0
    layers, vocab, size = draw.whole(1, 1 + draw.size), draw.whole(5, 100 * draw.size), draw.choice([0.5, 1, 2, 4])
    return dict(layers=layers, **widths, **attention, vocab=vocab, tokens=tokens, context=context, size=size)


fresh("13.pass_bytes", "no cache yet", lambda draw: model(draw, cached=False))
fresh("13.pass_bytes", "a cache", lambda draw: model(draw))
fresh("13.pass_bytes", "fewer key/value heads", lambda draw: model(draw, shared=True, cached=draw.chance(0.7)))


@fresh("13.pass_bytes", "several new tokens")
def _(draw):
    return model(draw, tokens=draw.whole(2, 3 + 3 * draw.size), cached=draw.chance(0.7), shared=draw.chance(0.5))


# ---- 13.roofline ----------------------------------------------------------------------------------------------------
MEMORY, COMPUTE, LATENCY = "memory", "compute", "latency"


def place(read, flops, seconds, bandwidth, peak):
    best = max(read / bandwidth, flops / peak)
    return flops / read, bound_of(read, flops, best / seconds, bandwidth, peak), best / seconds


def bound_of(read, flops, share, bandwidth, peak, least=0.5):
    if share < least:
        return LATENCY
    return MEMORY if read / bandwidth >= flops / peak else COMPUTE


def observe_place(answer, read, flops, seconds, bandwidth, peak):
    found = answer(read, flops, seconds, bandwidth, peak)
    intensity, bound, share = several(found, 3, "intensity, what bounds it, and the share")
    if bound not in (MEMORY, COMPUTE, LATENCY):
        raise Complaint(f"the second result should be {MEMORY!r}, {COMPUTE!r} or {LATENCY!r}; yours: {bound!r}.")
    return {"intensity": number(intensity, "the intensity"), "bound": bound, "share": number(share, "the share")}


ROOFLINE = exercise(
    "13.roofline",
    reference=place,
    observe=observe_place,
    cases=[
        dict(read=100, flops=100, seconds=12.5, bandwidth=10.0, peak=100.0),
        dict(read=100, flops=4000, seconds=50.0, bandwidth=10.0, peak=100.0),
        dict(read=10, flops=50, seconds=4.0, bandwidth=10.0, peak=100.0),
        dict(read=100, flops=900, seconds=16.0, bandwidth=10.0, peak=100.0),
        dict(read=33.5e6, flops=33.5e6, seconds=1e-5, bandwidth=4.2e12, peak=790e12),
        dict(read=11.5e3, flops=6e3, seconds=2e-6, bandwidth=4.2e12, peak=790e12),
        dict(read=67e6, flops=137e9, seconds=250e-6, bandwidth=4.2e12, peak=790e12),
    ],
)


@ROOFLINE.wrong_solutions
class _:
    def adds_the_times(read, flops, seconds, bandwidth, peak):
        """You add the time of reading and the time of computing. A GPU does both at once, so the least time is the
        larger of the two."""
        share = (read / bandwidth + flops / peak) / seconds
        return flops / read, bound_of(read, flops, share, bandwidth, peak), share

    def intensity_upside_down(read, flops, seconds, bandwidth, peak):
        """Your intensity is inverted. It is FLOPs per byte: how much work is done with each byte read."""
        _, bound, share = place(read, flops, seconds, bandwidth, peak)
        return read / flops, bound, share

    def share_upside_down(read, flops, seconds, bandwidth, peak):
        """Your share is inverted: it says how many times longer than necessary the kernel took. Divide the least time
        by the measured one."""
        best = max(read / bandwidth, flops / peak)
        return flops / read, bound_of(read, flops, seconds / best, bandwidth, peak), seconds / best

    def always_the_peak(read, flops, seconds, bandwidth, peak):
        """You measure every kernel against peak arithmetic. A memory-bound kernel cannot reach that and need not:
        compare with the larger of the two times."""
        share = flops / peak / seconds
        return flops / read, bound_of(read, flops, share, bandwidth, peak), share

    def never_latency(read, flops, seconds, bandwidth, peak):
        """You never answer latency. A kernel that takes more than twice the least time waits for something that the
        roofline does not model, a launch for example. Neither fewer bytes nor fewer FLOPs would help it much."""
        intensity, _, share = place(read, flops, seconds, bandwidth, peak)
        return intensity, bound_of(read, flops, share, bandwidth, peak, least=0.0), share


def kernel(draw: Draw, bound: str) -> dict:
    """A kernel that is bound by this, and clearly so. It computes something: FLOPs per second may be divided by."""

    def make():
        machine = dict(bandwidth=float(draw.whole(2, 20)), peak=float(draw.whole(20, 400)))
        read, flops = draw.whole(1, 200 * draw.size), draw.whole(1, 4000 * draw.size)
        best = max(read / machine["bandwidth"], flops / machine["peak"])
        slower = draw.whole(22, 160) if bound == LATENCY else draw.whole(10, 19)  # tenths of the least time
        return dict(read=read, flops=flops, seconds=round(best * slower / 10, 3), **machine)

    def clear(case):
        reading, computing = case["read"] / case["bandwidth"], case["flops"] / case["peak"]
        if case["seconds"] == 0 or abs(reading - computing) < 1e-3 * reading:
            return False
        _, found, share = place(**case)
        return found == bound and abs(share - 0.5) > 1e-3

    return draw.until(make, clear)


fresh("13.roofline", "bound by memory", lambda draw: kernel(draw, MEMORY))
fresh("13.roofline", "bound by arithmetic", lambda draw: kernel(draw, COMPUTE))
fresh("13.roofline", "bound by latency", lambda draw: kernel(draw, LATENCY))


@fresh("13.roofline", "exactly equal", weight=0.5, count=6)
def _(draw):
    """Reading and computing take equally long, or the share is exactly a half: in numbers that nothing rounds."""
    bandwidth, ratio, time = 2 ** draw.whole(1, 4), 2 ** draw.whole(1, 5), 2 ** draw.whole(0, 4)
    read, half = bandwidth * time, draw.chance(0.5)
    flops = read * ratio * (draw.choice([0.5, 2, 1]) if half else 1)
    best = max(time, flops / (bandwidth * ratio))
    seconds = 2 * best if half else best * draw.choice([1, 1.25, 1.5])
    return dict(
        read=read, flops=flops, seconds=float(seconds), bandwidth=float(bandwidth), peak=float(bandwidth * ratio)
    )


# ---- 13.merge_splits ------------------------------------------------------------------------------------------------
def merge_splits(m, ell, o, *, weigh_sum=True, weigh_output=True, weight=lambda m: (m - m.max()).exp(), skip=True):
    """Σ w·o / Σ w·ℓ over the splits, with a switch for each way to get it wrong."""
    there = ell > 0
    if skip:
        m, ell, o = m[there], ell[there], o[there]
    w = weight(m)
    total = ((w if weigh_sum else 1) * ell).sum()
    return ((w if weigh_output else torch.ones_like(w))[:, None] * o).sum(0) / total


def observe_merge(answer, m, ell, o):
    return tensor(answer(m, ell, o), "the result", o.shape[1:])


def states(*splits: int, dim: int = 2, seed: int = 0, height: float = 3.0, empty: int | None = None) -> dict:
    """(m, ℓ, o) of splits with so many random scores each, about `height` high; split number `empty` has none."""
    g = torch.Generator().manual_seed(seed)
    m, ell, o = [], [], []
    for i, size in enumerate(splits):
        scores = torch.randint(-20, 21, (size,), generator=g).double() / 20 * height
        values = torch.randint(-9, 10, (size, dim), generator=g).double()
        weights = (scores - scores.max()).exp()
        if i == empty:  # as our kernel leaves it: o was never written
            m, ell, o = [*m, -1e30], [*ell, 0.0], [*o, torch.full((dim,), torch.nan).double()]
        else:
            m, ell, o = [*m, float(scores.max())], [*ell, float(weights.sum())], [*o, weights @ values]
    return dict(m=probs(*m), ell=probs(*ell), o=torch.stack(o))


MERGE_SPLITS = exercise(
    "13.merge_splits",
    reference=merge_splits,
    observe=observe_merge,
    cases=[
        states(3, dim=1, seed=1),
        states(2, 2, dim=1, seed=2),
        states(4, 1, seed=3),
        states(3, 5, 2, seed=4, height=8.0),
        states(3, 2, 4, seed=5, empty=1),
        states(6, 6, 6, 6, dim=3, seed=6, height=900.0),
    ],
)


@MERGE_SPLITS.wrong_solutions
class _:
    def averages_the_splits(m, ell, o):
        """You divide every split by its own ℓ and average. A split with higher scores, or with more of them, counts for
        more: m and ℓ say how much."""
        there = ell > 0
        return (o[there] / ell[there, None]).mean(0)

    def ignores_the_maxima(m, ell, o):
        """You add up o and ℓ as they are. Each split is relative to its own maximum, so a split with low scores counts
        as much as one with high scores. Multiply both by e^(m − max m) first."""
        return merge_splits(m, ell, o, weigh_sum=False, weigh_output=False)

    def weighs_only_o(m, ell, o):
        """You weight o but not ℓ. Both are relative to the maximum of their split, so both need the same weight."""
        return merge_splits(m, ell, o, weigh_sum=False)

    def weight_upside_down(m, ell, o):
        """Your weights are inverted: e^(max m − m) is largest for the split with the lowest scores. Use e^(m − max
        m)."""
        return merge_splits(m, ell, o, weight=lambda m: (m.max() - m).exp())

    def no_common_maximum(m, ell, o):
        """You use e^m as the weight. That is right until m is a few hundred; then it overflows, and infinity divided by
        infinity is not a number. Subtract the largest m first; it cancels."""
        return merge_splits(m, ell, o, weight=torch.exp)

    def reads_the_empty_split(m, ell, o):
        """You multiply the o of an empty split by 0. It was never written, so it may hold NaN, and 0 · NaN is NaN.
        Mask the splits with ℓ = 0 before you multiply (our kernel masks the load)."""
        return merge_splits(m, ell, o, skip=False)


def splits(draw: Draw, count: int, *, most: float = 3.0, shift: float = 0.0) -> dict:
    """States of the online softmax: the highest score of a split contributes e^0, so ℓ is at least 1."""
    m = draw.quarters(count, most=most) + shift
    ell = torch.tensor([draw.whole(10, 40) / 10 for _ in range(count)]).double()
    return dict(m=m, ell=ell, o=draw.decimals(count, draw.whole(1, 1 + draw.size), most=9.0))


@fresh("13.merge_splits", "unequal maxima", weight=2)
def _(draw):
    def unequal(case):
        return len(case["m"].unique()) > 1

    return draw.until(lambda: splits(draw, draw.whole(2, 2 + draw.size)), unequal)


@fresh("13.merge_splits", "one split, or equal maxima", weight=0.5, count=6)
def _(draw):
    case = splits(draw, draw.choice([1, draw.whole(2, 2 + draw.size)]))
    return {**case, "m": torch.full_like(case["m"], float(case["m"][0]))}


@fresh("13.merge_splits", "very large and very small scores")
def _(draw):
    most, shift = draw.choice([(3.0, -2000.0), (3.0, -900.0), (3.0, 900.0), (3.0, 3000.0), (900.0, 0.0)])
    return splits(draw, draw.whole(2, 2 + draw.size), most=most, shift=shift)


@fresh("13.merge_splits", "every score far below zero", weight=0.5, count=4)
def _(draw):
    """A low maximum does not make a split empty. In steps of 8, which float32 can tell apart down there."""
    case = splits(draw, draw.whole(1, 2 + draw.size))
    return {**case, "m": 8 * case["m"].round() - 10.0 ** draw.whole(5, 8)}


@fresh("13.merge_splits", "splits without tokens")
def _(draw):
    count = draw.whole(2, 3 + draw.size)
    case = splits(draw, count, shift=draw.choice([0.0, 0.0, -900.0]))
    for i in draw.sample(range(count), draw.whole(1, count - 1)):
        case["m"][i], case["ell"][i] = -1e30, 0.0
        case["o"][i] = draw.choice([torch.nan, torch.nan, torch.inf, 7.0])  # whatever was in memory
    return case


# ---- 13.captured ----------------------------------------------------------------------------------------------------
def captured_step(gpu, count):
    last = gpu.count - 1
    gpu.write(gpu.count, gpu.next(gpu.token(last), last))
    gpu.advance()


def observe_captured(answer, text, replays):
    gpu = Device(text)
    answer(gpu, len(text))
    for _ in range(replays):
        gpu._replay()
    return {"text": tuple(gpu._text[: len(text) + replays]), "count": gpu._count, "times the host looked": gpu._looks}


CAPTURED = exercise(
    "13.captured",
    legend={"text": "the tokens of the sequence before the first replay", "replays": "how often the graph is replayed"},
    reference=captured_step,
    observe=observe_captured,
    cases=[
        dict(text=[4], replays=1),
        dict(text=[4], replays=2),
        dict(text=[1, 4, 2], replays=3),
        dict(text=[5, 5], replays=6),
    ],
)


@CAPTURED.wrong_solutions
class _:
    def uses_the_host_s_count(gpu, count):
        """You use the host's count. It is a Python number, frozen into the graph, so every replay reads the same
        position and overwrites the same one. Use gpu.count, which each replay reads again."""
        gpu.write(count, gpu.next(gpu.token(count - 1), count - 1))
        gpu.advance()

    def frozen_write(gpu, count):
        """You write to `count`. It is a Python number, frozen into the graph, so every replay overwrites the same
        position. Write to gpu.count, which each replay reads again."""
        gpu.write(count, gpu.next(gpu.token(gpu.count - 1), gpu.count - 1))
        gpu.advance()

    def frozen_read(gpu, count):
        """You read at `count` − 1, a Python number frozen into the graph, so every replay continues the same token.
        Read at gpu.count − 1, which each replay computes again."""
        gpu.write(gpu.count, gpu.next(gpu.token(count - 1), count - 1))
        gpu.advance()

    def looks_at_the_count(gpu, count):
        """You look at the count with gpu.look. During a real capture that is an error, because the host would have to
        wait for kernels that have not run; and the number you get is frozen into the graph. Use gpu.count as it is."""
        n = gpu.look(gpu.count)
        gpu.write(n, gpu.next(gpu.token(n - 1), n - 1))
        gpu.advance()

    def looks_without_need(gpu, count):
        """Your tokens are right, but the host looks at a number in the middle. During a real capture that is an error,
        because looking synchronises with the device. The host can ask for anything it needs after the replay."""
        gpu.look(gpu.count)
        captured_step(gpu, count)

    def never_advances(gpu, count):
        """You never advance the count, so every replay generates the same token at the same position. Nothing outside
        the graph will do it for you: end the step with gpu.advance()."""
        last = gpu.count - 1
        gpu.write(gpu.count, gpu.next(gpu.token(last), last))

    def advances_first(gpu, count):
        """You advance before you write. Kernels run in the order in which they were captured, and they read gpu.count
        when they run, so the token lands one position too far. Write first, then advance."""
        last = gpu.count - 1
        token = gpu.next(gpu.token(last), last)
        gpu.advance()
        gpu.write(gpu.count, token)

    def reads_the_next_position(gpu, count):
        """You take the token at gpu.count, where there is none yet. The last of n tokens is at position n − 1."""
        gpu.write(gpu.count, gpu.next(gpu.token(gpu.count), gpu.count))
        gpu.advance()

    def wrong_position_for_the_model(gpu, count):
        """You give the model the position of the new token. It processes the last token, and RoPE rotates that token's
        query and key by its own position, n − 1."""
        gpu.write(gpu.count, gpu.next(gpu.token(gpu.count - 1), gpu.count))
        gpu.advance()


def capture(draw: Draw, length: int, replays: int) -> dict:
    return dict(text=[draw.randrange(Device.VOCABULARY) for _ in range(length)], replays=replays)


@fresh("13.captured", "several replays", weight=2)
def _(draw):
    return capture(draw, draw.whole(2, 2 + 3 * draw.size), draw.whole(2, 2 + 2 * draw.size))


fresh("13.captured", "a single replay", lambda draw: capture(draw, draw.whole(1, 2 + 3 * draw.size), 1), count=6)


@fresh("13.captured", "a sequence of one token", weight=0.5, count=6)
def _(draw):
    return capture(draw, 1, draw.whole(2, 4 + 2 * draw.size))


@fresh("13.captured", "many replays", weight=0.5, count=4)
def _(draw):
    length = draw.whole(1, 20)
    return capture(draw, length, draw.whole(20, Device.ROOM - 1 - length))
