"""Set 01, why decoding is slow: bandwidth from a clock, the intensity of a pass, the roofline, and how many
draft tokens a forward pass carries for free."""

import math
from statistics import median

import torch

from minispec import theory

from ..exercise import Complaint, exercise
from ..fresh import Draw, fresh
from ..returned import number, pair


# ---- 01.bandwidth ---------------------------------------------------------------------------------------------------
def bandwidth(x, seconds):
    return x.numel() * x.element_size() / median(seconds)


BANDWIDTH = exercise(
    "01.bandwidth",
    reference=bandwidth,
    cases=[
        dict(x=torch.ones(8), seconds=[2.0]),
        dict(x=torch.ones(8), seconds=[2.0, 1.0, 9.0]),
        dict(x=torch.ones(4, 5, dtype=torch.bfloat16), seconds=[0.5, 4.0, 2.0]),
        dict(x=torch.ones(6, dtype=torch.float64), seconds=[3.0, 3.5, 1.0, 8.0, 2.0]),
    ],
)


@BANDWIDTH.wrong_solutions
class _:
    def numbers_for_bytes(x, seconds):
        """You count numbers, but bandwidth is in bytes: a float32 has 4 and a bf16 has 2. Multiply by
        x.element_size()."""
        return x.numel() / median(seconds)

    def mean_of_the_seconds(x, seconds):
        """You take the mean of the seconds. One disturbed run moves the mean but not the median. Sort the seconds and
        take the one in the middle."""
        return x.numel() * x.element_size() / (sum(seconds) / len(seconds))

    def first_run(x, seconds):
        """You use only the first run, which is often the slowest because memory is being mapped and caches are cold.
        Use the median of all runs."""
        return x.numel() * x.element_size() / seconds[0]

    def seconds_per_byte(x, seconds):
        """Your quotient is upside down: it gives seconds per byte. Divide the bytes by the seconds."""
        return 1 / bandwidth(x, seconds)


@fresh("01.bandwidth", "bytes and the median")
def _(draw):
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float64, torch.int8])
    x = torch.ones(draw.whole(1, 4), draw.whole(1, 4 * draw.size), dtype=dtype)
    return dict(x=x, seconds=[draw.whole(1, 80) / 8 for _ in range(2 * draw.whole(0, 1 + draw.size) + 1)])


# ---- 01.intensity ---------------------------------------------------------------------------------------------------
def intensity(weights, bits, batch, tokens, context, kv_bytes):
    flops = theory.pass_flops(weights, batch, tokens)
    return flops / theory.pass_bytes(weights, bits / 8, batch, context, kv_bytes)


INTENSITY = exercise(
    "01.intensity",
    reference=intensity,
    cases=[
        dict(weights=1000, bits=16, batch=1, tokens=1, context=0, kv_bytes=0),
        dict(weights=1000, bits=16, batch=1, tokens=5, context=0, kv_bytes=0),
        dict(weights=1000, bits=16, batch=4, tokens=1, context=0, kv_bytes=0),
        dict(weights=1000, bits=4, batch=1, tokens=1, context=0, kv_bytes=0),
        dict(weights=1000, bits=16, batch=1, tokens=1, context=10, kv_bytes=50),
        dict(weights=1000, bits=8, batch=4, tokens=3, context=20, kv_bytes=25),
        dict(weights=8_000_000_000, bits=16, batch=32, tokens=5, context=2000, kv_bytes=131_072),
    ],
)


@INTENSITY.wrong_solutions
class _:
    def one_flop_per_weight(weights, bits, batch, tokens, context, kv_bytes):
        """You count one FLOP per parameter and token. A parameter is multiplied and the product is added: that is two,
        and peak FLOP/s in data sheets count both. Put a factor of 2 into the FLOPs."""
        return intensity(weights, bits, batch, tokens, context, kv_bytes) / 2

    def bits_as_bytes(weights, bits, batch, tokens, context, kv_bytes):
        """You treat bits as bytes, but a parameter of 16 bits takes 2 bytes. Divide `bits` by 8 before you multiply."""
        return intensity(weights, 8 * bits, batch, tokens, context, kv_bytes)

    def weights_read_for_every_row(weights, bits, batch, tokens, context, kv_bytes):
        """You read the weights once for every sequence of the batch. All sequences go through a layer together, so one
        read serves all of them. Only the KV caches are read per sequence: multiply that term by batch, not the
        weights."""
        return intensity(weights, bits, 1, tokens, context, kv_bytes)

    def forgets_the_cache(weights, bits, batch, tokens, context, kv_bytes):
        """You count only the bytes of the weights. Attention also reads the keys and values of every sequence's
        context, and with many sequences or long contexts those are more bytes than the weights. Add batch · context ·
        kv_bytes to the bytes."""
        return intensity(weights, bits, batch, tokens, 0, 0)

    def one_cache_for_all_rows(weights, bits, batch, tokens, context, kv_bytes):
        """You read one cache for the whole batch. The weights are shared by all sequences, but every sequence has a KV
        cache of its own. Multiply the bytes of the cache by batch."""
        return 2 * weights * batch * tokens / (weights * bits / 8 + context * kv_bytes)

    def cache_read_for_every_token(weights, bits, batch, tokens, context, kv_bytes):
        """You read a sequence's cache again for each of its tokens. The new tokens of a sequence attend to the same
        keys and values, so one read serves them all. A longer draft reads no more, so tokens does not belong in the
        bytes."""
        return intensity(weights, bits, batch, tokens, context * tokens, kv_bytes)

    def bytes_per_flop(weights, bits, batch, tokens, context, kv_bytes):
        """Your quotient is upside down: it gives bytes per FLOP. Intensity is FLOPs per byte, so divide the FLOPs by
        the bytes."""
        return 1 / intensity(weights, bits, batch, tokens, context, kv_bytes)


def model(draw: Draw) -> dict:
    return dict(weights=draw.whole(101, 4000) * draw.choice([1, 1, 10**6]), bits=draw.choice([4, 8, 16]))


def load(draw: Draw) -> dict:
    return dict(batch=draw.whole(1, 2 + 4 * draw.size), tokens=draw.whole(1, 2 + 2 * draw.size))


@fresh("01.intensity", "FLOPs and weights")
def _(draw):
    cache = dict(context=0, kv_bytes=draw.whole(1, 99)) if draw.chance(0.5) else dict(context=9, kv_bytes=0)
    return {**model(draw), **load(draw), **cache}


@fresh("01.intensity", "the caches")
def _(draw):
    case = {**model(draw), **load(draw)}
    context = draw.whole(1, 50 * draw.size)
    return {**case, "context": context, "kv_bytes": draw.whole(1, 9) * case["weights"] / (4 * context)}


# ---- 01.roofline ----------------------------------------------------------------------------------------------------
LIMITS = ("memory", "compute")


def roofline(bytes_read, flops, bandwidth, peak):
    seconds = theory.roofline_time(bytes_read, flops, theory.Hardware("", bandwidth, peak))
    return seconds, "memory" if bytes_read / bandwidth > flops / peak else "compute"


def observe_roofline(answer, bytes_read, flops, bandwidth, peak):
    seconds, limit = pair(answer(bytes_read, flops, bandwidth, peak), 'the seconds, and "memory" or "compute"')
    if limit not in LIMITS:
        raise Complaint('the second of your two results should be the text "memory" or "compute".')
    return {"seconds": number(seconds, "the first of your two results"), "limited by": limit}


ROOFLINE = exercise(
    "01.roofline",
    reference=roofline,
    observe=observe_roofline,
    cases=[
        dict(bytes_read=100, flops=150, bandwidth=10, peak=50),
        dict(bytes_read=100, flops=1000, bandwidth=10, peak=50),
        dict(bytes_read=100, flops=50, bandwidth=10, peak=50),
        dict(bytes_read=100, flops=80, bandwidth=40, peak=20),
        dict(bytes_read=16e9, flops=32e9, bandwidth=17e9, peak=48e9),
        dict(bytes_read=16e9, flops=16e9 * 512, bandwidth=4.2e12, peak=790e12),
    ],
)


@ROOFLINE.wrong_solutions
class _:
    def adds_both(bytes_read, flops, bandwidth, peak):
        """You add the two times, as if the machine first read and then computed. It does both at once, so only the
        longer of the two times counts, and that is what makes extra tokens free."""
        return bytes_read / bandwidth + flops / peak, roofline(bytes_read, flops, bandwidth, peak)[1]

    def who_finishes_first(bytes_read, flops, bandwidth, peak):
        """You take the shorter of the two times. A pass is over when the slower of the two is done, so take the longer
        one. (The minimum belongs to the other form of the roofline, in FLOP/s.)"""
        reading, computing = bytes_read / bandwidth, flops / peak
        return min(reading, computing), "memory" if reading < computing else "compute"

    def names_the_idle_side(bytes_read, flops, bandwidth, peak):
        """Your seconds are right, but the names are swapped. A pass is limited by what takes longer: if reading takes
        longer, the limit is "memory", and the arithmetic units wait."""
        seconds, limit = roofline(bytes_read, flops, bandwidth, peak)
        return seconds, LIMITS[1 - LIMITS.index(limit)]

    def compares_amounts(bytes_read, flops, bandwidth, peak):
        """You name the limit by comparing bytes with FLOPs. A machine does many FLOPs in the time it takes to read one
        byte, so compare the two times, not the two amounts."""
        seconds, _ = roofline(bytes_read, flops, bandwidth, peak)
        return seconds, "memory" if bytes_read > flops else "compute"

    def amounts_decide_the_time(bytes_read, flops, bandwidth, peak):
        """You compare the intensity, FLOPs per byte, with 1: more FLOPs than bytes count as compute. The threshold is
        the machine's own ratio, peak / bandwidth. Or compute both times and take the longer one."""
        return (flops / peak, "compute") if flops > bytes_read else (bytes_read / bandwidth, "memory")

    def ridge_upside_down(bytes_read, flops, bandwidth, peak):
        """You compare the intensity, FLOPs per byte, with bandwidth / peak, which is in bytes per FLOP. The ridge point
        is the inverse, peak / bandwidth."""
        below = flops / bytes_read < bandwidth / peak
        return (bytes_read / bandwidth, "memory") if below else (flops / peak, "compute")

    def exchanges_the_rates(bytes_read, flops, bandwidth, peak):
        """You divide the bytes by the peak and the FLOPs by the bandwidth. Bytes arrive at the bandwidth, in bytes/s,
        and FLOPs are done at the peak, in FLOP/s, so swap the two divisors."""
        return roofline(bytes_read, flops, peak, bandwidth)


def machine(draw: Draw) -> dict:
    return dict(bandwidth=draw.whole(5, 60), peak=draw.whole(5, 900))


def work(draw: Draw) -> dict:
    return {**dict(bytes_read=draw.whole(50, 900), flops=draw.whole(50, 9000)), **machine(draw)}


def reading_over_computing(case: dict) -> float:
    return case["bytes_read"] / case["bandwidth"] / (case["flops"] / case["peak"])


fresh("01.roofline", "limited by memory", work, where=lambda case: reading_over_computing(case) > 1.05)
fresh("01.roofline", "limited by arithmetic", work, where=lambda case: reading_over_computing(case) < 0.95)


@fresh("01.roofline", "bytes and FLOPs the other way round")
def _(draw):
    """More bytes than FLOPs and yet limited by arithmetic, or fewer and yet by memory."""

    def crossed(case):
        ratio = reading_over_computing(case)
        return abs(ratio - 1) > 0.05 and (ratio > 1) == (case["bytes_read"] < case["flops"])

    return draw.until(lambda: work(draw), crossed)


@fresh("01.roofline", "close to the ridge", weight=0.5, count=8)
def _(draw):
    return draw.until(lambda: work(draw), lambda case: 0.001 < abs(reading_over_computing(case) - 1) < 0.05)


# ---- 01.ridge -------------------------------------------------------------------------------------------------------
def free_drafts(weights, bits, batch, context, kv_bytes, bandwidth, peak):
    ridge = theory.balance_point(theory.Hardware("", bandwidth, peak))
    tokens = math.floor(ridge / intensity(weights, bits, batch, 1, context, kv_bytes))
    return max(0, tokens - 1)


RIDGE = exercise(
    "01.ridge",
    reference=free_drafts,
    cases=[
        dict(weights=1000, bits=16, batch=1, context=0, kv_bytes=0, bandwidth=10, peak=40),
        dict(weights=1000, bits=16, batch=1, context=0, kv_bytes=0, bandwidth=10, peak=45),
        dict(weights=1000, bits=16, batch=2, context=0, kv_bytes=0, bandwidth=10, peak=65),
        dict(weights=1000, bits=16, batch=8, context=0, kv_bytes=0, bandwidth=10, peak=45),
        dict(weights=1000, bits=4, batch=1, context=0, kv_bytes=0, bandwidth=10, peak=130),
        dict(weights=1000, bits=16, batch=2, context=100, kv_bytes=25, bandwidth=10, peak=45),
        dict(weights=8e9, bits=16, batch=1, context=0, kv_bytes=131_072, bandwidth=4.2e12, peak=790e12),
        dict(weights=8e9, bits=16, batch=128, context=4000, kv_bytes=131_072, bandwidth=4.2e12, peak=790e12),
    ],
)


@RIDGE.wrong_solutions
class _:
    def counts_the_last_token(weights, bits, batch, context, kv_bytes, bandwidth, peak):
        """You return the number of tokens in the pass. One of them is the last token of the output, which has to be
        processed in any case, so M tokens verify M − 1 draft tokens: subtract 1."""
        return math.floor(peak / bandwidth / intensity(weights, bits, batch, 1, context, kv_bytes))

    def forgets_the_batch(weights, bits, batch, context, kv_bytes, bandwidth, peak):
        """You count as if there were a single sequence. Every sequence of the batch adds its own draft tokens and their
        FLOPs, so a batch uses up the idle arithmetic. Pass `batch` on to the intensity."""
        return free_drafts(weights, bits, 1, context, kv_bytes, bandwidth, peak)

    def without_the_cache(weights, bits, batch, context, kv_bytes, bandwidth, peak):
        """You leave the KV cache out of the bytes. Reading it also takes time, more for longer contexts, and in that
        time more draft tokens can be verified. Pass `context` and `kv_bytes` on to the intensity."""
        return free_drafts(weights, bits, batch, 0, 0, bandwidth, peak)

    def rounds_up(weights, bits, batch, context, kv_bytes, bandwidth, peak):
        """You round up, so the last of those draft tokens lies beyond the ridge point and the pass takes longer for it.
        Round down with math.floor instead of rounding up."""
        return max(0, math.ceil(peak / bandwidth / intensity(weights, bits, batch, 1, context, kv_bytes)) - 1)

    def fewer_than_none(weights, bits, batch, context, kv_bytes, bandwidth, peak):
        """Your answer can be −1. If even one token per sequence is beyond the ridge point, no draft token is free and
        the answer is 0: use max(0, …)."""
        return math.floor(peak / bandwidth / intensity(weights, bits, batch, 1, context, kv_bytes)) - 1


def tokens_until_ridge(case: dict) -> float:
    parts = {name: case[name] for name in ("weights", "bits", "batch", "context", "kv_bytes")}
    return case["peak"] / case["bandwidth"] / intensity(tokens=1, **parts)


def ridge_case(draw: Draw, low: float, high: float, cached: bool) -> dict:
    """A case whose M* lies in this range, and is no whole number: there rounding would decide."""

    def make():
        weights = draw.whole(101, 4000)
        context = draw.whole(1, 200) if cached else 0
        kv_bytes = draw.whole(1, 9) * weights / (4 * context) if cached else draw.whole(0, 50)
        sizes = dict(weights=weights, bits=draw.choice([4, 8, 16]), batch=draw.whole(1, 1 + 2 * draw.size))
        return {**sizes, "context": context, "kv_bytes": kv_bytes, **machine(draw)}

    def fits(case):
        m = tokens_until_ridge(case)
        return low < m < high and 0.02 < m % 1 < 0.98

    return draw.until(make, fits)


fresh("01.ridge", "weights alone", lambda draw: ridge_case(draw, 2, 60, cached=False))
fresh("01.ridge", "with caches", lambda draw: ridge_case(draw, 2, 60, cached=True))
fresh("01.ridge", "nothing is free", lambda draw: ridge_case(draw, 0, 2, cached=draw.chance(0.5)))
