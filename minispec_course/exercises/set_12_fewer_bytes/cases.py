"""Set 12, fewer bytes: symmetric quantisation, the online softmax, and how much faster fewer bytes really are."""

import gc

import torch
from torch import Tensor

from minispec import theory
from minispec_course import formulas

from ..exercise import Complaint, exercise
from ..fresh import Draw, fresh
from ..returned import number, several, tensor


# ---- 12.symmetric ---------------------------------------------------------------------------------------------------
def symmetric(weight, bits, group):
    """In double precision, where the package's own computes in float32."""
    return grid(weight, group, lambda blocks: blocks.abs().amax(-1) / (2 ** (bits - 1) - 1))


def grid(weight, group, scale_of, snap=torch.round):
    """A grid for each group: integers [out, in], scales [out, in / group], and the weights they stand for."""
    blocks = weight.view(len(weight), -1, group)  # [out, groups, group]
    scale = scale_of(blocks)
    scale = torch.where(scale == 0, 1.0, scale)
    integers = snap(blocks / scale[..., None])
    return integers.view_as(weight), scale, (integers * scale[..., None]).view_as(weight)


def observe_symmetric(answer, weight, bits, group):
    names = "the integers", "the scales", "the restored weights"
    found = several(answer(weight, bits, group), 3, ", ".join(names))
    integers, scale, restored = (tensor(x, name).detach().double() for x, name in zip(found, names, strict=True))
    empty = bool((weight.view(len(weight), -1, group) == 0).all(-1).any())
    if empty and (
        not bool(torch.isfinite(torch.cat([integers.flatten(), restored.flatten()])).all()) or (scale == 0).any()
    ):
        raise Complaint(
            "your scale for a group of zeros is 0, and 0 / 0 is not a number. Any scale restores such a group, so use "
            "1."
        )
    return {"integers": integers, "scale": scale[:, None] if scale.dim() == 1 else scale, "restored": restored}


def decimals(*shape: int, seed: int) -> Tensor:
    """Numbers with two decimals, easy to read in a message."""
    return torch.randint(-200, 201, shape, generator=torch.Generator().manual_seed(seed)).double() / 100


SYMMETRIC = exercise(
    "12.symmetric",
    reference=symmetric,
    observe=observe_symmetric,
    cases=[
        dict(weight=torch.tensor([[0.5, -1.27]], dtype=torch.float64), bits=8, group=2),
        dict(weight=torch.tensor([[0.55, -1.4]], dtype=torch.float64), bits=4, group=2),
        dict(weight=torch.tensor([[0.3, -1.0], [0.05, 0.02]], dtype=torch.float64), bits=4, group=2),
        dict(weight=torch.tensor([[2.0, 0.7, -0.11, 0.03]], dtype=torch.float64), bits=4, group=2),
        dict(weight=decimals(3, 6, seed=2), bits=8, group=3),
        dict(weight=decimals(2, 8, seed=9), bits=3, group=4),
        dict(weight=torch.tensor([[0.0, 0.0, 0.4, -0.1]], dtype=torch.float64), bits=8, group=2),
    ],
)


@SYMMETRIC.wrong_solutions
class _:
    def one_scale_for_all(weight, bits, group):
        """You use one scale for the whole matrix. Its largest weight then sets the step for all others, and channels
        with small weights are rounded to almost nothing. Use one scale for each group."""
        largest = weight.abs().max() / (2 ** (bits - 1) - 1)
        return grid(weight, group, lambda blocks: largest.expand(blocks.shape[:2]))

    def groups_the_other_way(weight, bits, group):
        """Your reshape has the two numbers swapped: you make `group` groups of in / group weights. A group has `group`
        neighbouring weights, so reshape to (out, in // group, group), with the group in the last dimension."""
        return symmetric(weight, bits, weight.shape[1] // group)

    def uses_all_integers(weight, bits, group):
        """You divide by 2^(bits−1), 128 for 8 bits. The largest positive weight then needs the integer 128, but int8
        ends at 127. Symmetric means −127 … 127: divide by 2^(bits−1) − 1."""
        return grid(weight, group, lambda blocks: blocks.abs().amax(-1) / 2 ** (bits - 1))

    def cuts_off(weight, bits, group):
        """You cut off the fraction instead of rounding (as .to(torch.int8) does). The error is then up to a whole step,
        and always towards zero. Round to the nearest integer first."""
        return grid(weight, group, lambda blocks: blocks.abs().amax(-1) / (2 ** (bits - 1) - 1), torch.trunc)

    def largest_without_abs(weight, bits, group):
        """You take the largest weight, not the largest absolute value. If the weight with the largest absolute value is
        negative, the step is too small for it. Take abs() first."""
        return grid(weight, group, lambda blocks: blocks.amax(-1) / (2 ** (bits - 1) - 1))


def no_halves(weight: Tensor, bits: int, group: int) -> bool:
    """Nothing lies just between two integers, where one may round either way."""
    _, scale, _ = symmetric(weight, bits, group)
    blocks = weight.view(len(weight), -1, group) / scale[..., None]
    return bool(((blocks % 1 - 0.5).abs() > 1e-3).all())


def weights_case(draw: Draw, bits: int, *, outlier: bool = False, empty: bool = False) -> dict:
    rows, group, groups = draw.whole(1, 1 + draw.size), draw.whole(1, 2 + draw.size), draw.whole(1, 1 + draw.size // 2)

    def make():
        found = [draw.randint(-200, 200) / 100 for _ in range(rows * group * groups)]
        weight = torch.tensor(found, dtype=torch.float64).view(rows, group * groups)
        if outlier:
            weight[draw.randrange(rows), draw.randrange(group * groups)] = draw.choice([-9.0, 9.0])
        if empty:
            at = draw.randrange(groups)
            weight[draw.randrange(rows), at * group : (at + 1) * group] = 0
        return weight

    weight = draw.until(make, lambda found: no_halves(found, bits, group))
    return dict(weight=weight, bits=bits, group=group)


fresh("12.symmetric", "8 bits", lambda draw: weights_case(draw, 8))
fresh("12.symmetric", "fewer bits", lambda draw: weights_case(draw, draw.whole(2, 7)))
fresh("12.symmetric", "an outlier, of either sign", lambda draw: weights_case(draw, draw.whole(3, 8), outlier=True))
fresh("12.symmetric", "a group of zeros", lambda draw: weights_case(draw, draw.whole(3, 8), empty=True), weight=0.5)


# ---- 12.online_softmax ----------------------------------------------------------------------------------------------
MANY = 16  # tiles


class Tiles:
    """Scores [t] and values [t, D], tile by tile, once: every tile comes in the same small buffer."""

    def __init__(self, scores: Tensor, values: Tensor, size: int):
        self.scores, self.values, self.size = scores, values, size
        self.read = False

    def __iter__(self):
        if self.read:
            raise Complaint(
                "you went over the tiles a second time. Each byte of the cache may be read only once: keep m, ℓ and o."
            )
        self.read = True
        scores, values = torch.empty(self.size).double(), torch.empty(self.size, self.values.shape[1]).double()
        counts = len(self.scores) >= MANY * self.size  # with many tiles one can see whether they are all kept
        before = numbers_kept() if counts else 0
        for start in range(0, len(self.scores), self.size):
            n = min(self.size, len(self.scores) - start)
            scores[:n], values[:n] = self.scores[start : start + n], self.values[start : start + n]
            yield scores[:n], values[:n]
        if counts and numbers_kept() - before > 0.7 * (self.scores.numel() + self.values.numel()):
            raise Complaint(
                "after the last tile you still hold all the others: you collect them, and compute the softmax over all "
                "scores together. The cache may be too large for that. Keep m, ℓ and o, and discard each tile."
            )


def numbers_kept() -> int:
    """How many numbers all living tensors of this process hold."""
    return sum(x.numel() for x in gc.get_objects() if type(x) is Tensor)


def online_softmax(tiles, *, start=-torch.inf, maximum=torch.maximum, rescale=(True, True), own=False, divide=True):
    """The online softmax with a switch for each way to get it wrong."""
    m, ell, o = torch.tensor(start).double(), torch.zeros(()).double(), 0.0
    for scores, values in tiles:
        new = maximum(m, scores.max())
        f = (m - new).exp() if torch.isfinite(m) else torch.zeros(()).double()
        weights = (scores - (scores.max() if own else new)).exp()
        ell = ell * (f if rescale[0] else 1) + weights.sum()
        o = o * (f if rescale[1] else 1) + weights @ values
        m = new
    return o / ell if divide else o


def observe_softmax(answer, scores, values, tile):
    found = tensor(answer(Tiles(scores, values, tile)), "the result", values.shape[1:])
    if bool(found.isnan().any()) and bool(scores.abs().max() < 100):
        raise Complaint(
            "your result is not a number, although the scores are small. Look at the first tile: ∞ − ∞ and ∞ · 0 are "
            "not numbers. Begin with m = −∞, ℓ = 0, o = 0; then the factor e^(old − new) is 0, and e^(new − old) is ∞."
        )
    return found


def spread(count: int, dim: int, seed: int, height: float = 2.0) -> dict:
    """Scores and values with one decimal; the scores up to `height`."""
    g = torch.Generator().manual_seed(seed)
    scores = torch.randint(-20, 21, (count,), generator=g).double() / 20 * height
    return dict(scores=scores, values=torch.randint(-9, 10, (count, dim), generator=g).double())


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


ONLINE_SOFTMAX = exercise(
    "12.online_softmax",
    legend={"scores": "all scores, in order", "values": "their values", "tile": "scores per tile"},
    reference=online_softmax,
    observe=observe_softmax,
    cases=[
        dict(**spread(2, 1, seed=1), tile=2),
        dict(scores=column(1, 2)[:, 0], values=column(4, 8), tile=1),
        dict(scores=column(2, 1)[:, 0], values=column(4, 8), tile=1),
        dict(**spread(5, 2, seed=3), tile=2),
        dict(**spread(7, 2, seed=4, height=8.0), tile=3),
        dict(scores=column(900, 901, 899)[:, 0], values=column(1, 2, 6), tile=2),
        dict(**spread(24, 4, seed=5, height=30.0), tile=5),
    ],
)


@ONLINE_SOFTMAX.wrong_solutions
class _:
    def no_maximum(tiles):
        """You use e^s as it is. Scores of a few hundred overflow, and infinity divided by infinity is not a number.
        Subtract the largest score so far; it cancels, because it is in both sums."""
        return online_softmax(tiles, maximum=lambda m, s: torch.zeros(()).double())

    def output_not_rescaled(tiles):
        """You rescale ℓ, but not o. Both hold terms relative to the old maximum: multiply both by the factor."""
        return online_softmax(tiles, rescale=(True, False))

    def nothing_rescaled(tiles):
        """You never rescale, so earlier terms count too much. First multiply ℓ and o by e^(m_old − m_new)."""
        return online_softmax(tiles, rescale=(False, False))

    def maximum_of_the_tile(tiles):
        """You take the maximum of the newest tile alone. If an earlier score was larger, e^(old − new) is above 1 and
        can overflow. Keep the running maximum, the larger of the two."""
        return online_softmax(tiles, maximum=lambda m, s: s)

    def weights_by_the_tile(tiles):
        """Your tile's weights e^(s − m) use the tile's own maximum, but your sums use the running one. Use the same for
        both."""
        return online_softmax(tiles, own=True)

    def not_divided(tiles):
        """You return o, the weighted sum of the values. Divide it by ℓ, the sum of the weights, at the end."""
        return online_softmax(tiles, divide=False)

    def begins_at_zero(tiles):
        """Your m begins at 0. If all scores are far below it, every e^(s − m) is 0, and so is ℓ. Begin with −∞."""
        return online_softmax(tiles, start=0.0)

    def averages_the_tiles(tiles):
        """You take a softmax in each tile and average the results, as if all tiles had the same weight. A tile with
        high scores has more weight, and m and ℓ say how much. Keep those instead."""
        return torch.stack([scores.softmax(0) @ values for scores, values in tiles]).mean(0)

    def collects_the_tiles(tiles):
        """You collect the tiles and take the softmax at the end. There is no room for all of them: each tile overwrites
        the one before in the same buffer. Keep three small things instead: m, ℓ and o."""
        kept = list(tiles)
        scores, values = (torch.cat(parts) for parts in zip(*kept, strict=True))
        return scores.softmax(0) @ values


def scores_case(draw: Draw, count: int, tile: int, *, most: float = 4.0, shift: float = 0.0) -> dict:
    scores = draw.quarters(count, most=most) + shift
    values = torch.tensor([[float(draw.randint(-9, 9)) for _ in range(draw.dim)] for _ in range(count)]).double()
    return dict(scores=scores, values=values, tile=tile)


def dims(draw: Draw) -> Draw:
    draw.dim = draw.whole(1, 1 + draw.size)
    return draw


@fresh("12.online_softmax", "several tiles", weight=2)
def _(draw):
    tile = draw.whole(1, 1 + draw.size)
    return scores_case(dims(draw), draw.whole(tile + 1, 4 + 3 * draw.size), tile)


@fresh("12.online_softmax", "one tile", weight=0.5, count=6)
def _(draw):
    count = draw.whole(1, 2 + draw.size)
    return scores_case(dims(draw), count, count + draw.whole(0, 2))


@fresh("12.online_softmax", "very large and very small scores")
def _(draw):
    return scores_case(
        dims(draw), draw.whole(2, 6), draw.whole(1, 3), shift=draw.choice([-2000.0, -900.0, 900.0, 3000.0])
    )


@fresh("12.online_softmax", "scores far apart")
def _(draw):
    return scores_case(dims(draw), draw.whole(3, 8), draw.whole(1, 3), most=900.0)


@fresh("12.online_softmax", "many tiles in little memory", weight=0.5, count=1)
def _(draw):
    draw.dim = 1
    return scores_case(draw, 54, 3)


# ---- 12.bytes_read --------------------------------------------------------------------------------------------------
def gain(weights, bits, group, batch, context, kv_bytes, bandwidth, peak):
    before = theory.pass_bytes(weights, 2, batch, context, kv_bytes)
    after = formulas.quantized_bytes(weights, bits, group) + batch * context * kv_bytes
    return ratio(before, after, weights, batch, bandwidth, peak)


def ratio(before, after, weights, batch, bandwidth, peak):
    """Time with so many bytes per pass over time with so many; the arithmetic stays."""
    machine = theory.Hardware("", bandwidth, peak)
    times = [theory.roofline_time(read, theory.pass_flops(weights, batch), machine) for read in (before, after)]
    return times[0] / times[1]


def gain_table(answer) -> str:
    """What the learner's function says of an 8 B model on an H200: int4 and int8, by batch and context."""
    gpu = theory.H200
    lines = [
        "speed-up of decoding by the roofline, 8 B parameters on an H200, groups of 64",
        "",
        "batch  context    int8    int4",
    ]
    for batch, context in ((1, 0), (1, 4000), (32, 0), (32, 4000), (128, 0), (256, 0)):
        found = [number(answer(8e9, bits, 64, batch, context, 131_072, gpu.bandwidth, gpu.flops)) for bits in (8, 4)]
        lines.append(f"{batch:5}  {context:7}  {found[0]:6.2f}  {found[1]:6.2f}")
    return "\n".join(lines)


BYTES_READ = exercise(
    "12.bytes_read",
    reference=gain,
    picture=gain_table,
    cases=[
        dict(weights=1000, bits=8, group=100, batch=1, context=0, kv_bytes=0, bandwidth=1.0, peak=1000.0),
        dict(weights=1000, bits=4, group=10, batch=1, context=0, kv_bytes=0, bandwidth=1.0, peak=1000.0),
        dict(weights=1000, bits=4, group=100, batch=1, context=10, kv_bytes=50, bandwidth=1.0, peak=1000.0),
        dict(weights=1000, bits=4, group=100, batch=4, context=10, kv_bytes=25, bandwidth=1.0, peak=1000.0),
        dict(weights=1000, bits=4, group=100, batch=2, context=0, kv_bytes=0, bandwidth=1.0, peak=3.0),
        dict(weights=1000, bits=4, group=100, batch=8, context=0, kv_bytes=0, bandwidth=1.0, peak=4.0),
        dict(weights=8e9, bits=4, group=64, batch=32, context=4000, kv_bytes=131_072, bandwidth=4.2e12, peak=790e12),
    ],
)


@BYTES_READ.wrong_solutions
class _:
    def the_ratio_of_the_bits(weights, bits, group, batch, context, kv_bytes, bandwidth, peak):
        """You answer 16 / bits, which is how much smaller the weights get. The pass also reads scales and caches, and
        if arithmetic is the limit, fewer bytes change nothing. Compute the time of the pass before and after."""
        return 16 / bits

    def forgets_the_scales(weights, bits, group, batch, context, kv_bytes, bandwidth, peak):
        """You leave out the scales: one of 2 bytes for every group of weights, read along with them. In groups of 32
        that turns 4 bits into four and a half. Add 2 / group bytes for each weight."""
        cache = batch * context * kv_bytes
        return ratio(2 * weights + cache, weights * bits / 8 + cache, weights, batch, bandwidth, peak)

    def forgets_the_caches(weights, bits, group, batch, context, kv_bytes, bandwidth, peak):
        """You leave out the caches. They are read in every pass and did not shrink. With long contexts they are most of
        the bytes. Add batch · context · kv_bytes before and after."""
        return gain(weights, bits, group, batch, 0, 0, bandwidth, peak)

    def one_cache(weights, bits, group, batch, context, kv_bytes, bandwidth, peak):
        """You read one cache for the whole batch. Each sequence has a cache of its own: multiply by batch."""
        before = 2 * weights + context * kv_bytes
        after = formulas.quantized_bytes(weights, bits, group) + context * kv_bytes
        return ratio(before, after, weights, batch, bandwidth, peak)

    def bytes_only(weights, bits, group, batch, context, kv_bytes, bandwidth, peak):
        """You compare bytes only. In a large batch the arithmetic takes longer than the reading, and then fewer bytes
        are not faster. Compare times, each the larger of the two."""
        return gain(weights, bits, group, batch, context, kv_bytes, 1.0, 1e30)


def gain_case(draw: Draw, fits) -> dict:
    def make():
        weights, context = draw.whole(1, 40) * 1000, draw.choice([0, draw.whole(1, 400)])
        sizes = dict(weights=weights, bits=draw.choice([3, 4, 8]), group=draw.choice([16, 32, 64, 100]))
        load = dict(batch=draw.whole(1, 2 + 6 * draw.size), context=context, kv_bytes=draw.whole(1, 60))
        return {**sizes, **load, "bandwidth": float(draw.whole(1, 20)), "peak": float(draw.whole(10, 900))}

    def regime(case):
        caches = case["batch"] * case["context"] * case["kv_bytes"]
        computing = 2 * case["weights"] * case["batch"] / case["peak"]
        before = (2 * case["weights"] + caches) / case["bandwidth"]
        after = (case["weights"] * (case["bits"] / 8 + 2 / case["group"]) + caches) / case["bandwidth"]
        return computing < after, computing < before, caches > 0

    return draw.until(make, lambda case: fits(*regime(case)))


@fresh("12.bytes_read", "reading takes the time, no caches")
def _(draw):
    return gain_case(draw, lambda after, before, cached: after and not cached)


fresh(
    "12.bytes_read", "caches are read too", lambda draw: gain_case(draw, lambda after, before, cached: after and cached)
)


@fresh("12.bytes_read", "arithmetic takes over")
def _(draw):
    return gain_case(draw, lambda after, before, cached: before and not after)


@fresh("12.bytes_read", "arithmetic all the time", weight=0.5, count=6)
def _(draw):
    return gain_case(draw, lambda after, before, cached: not before)
