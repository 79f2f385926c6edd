"""Fresh cases of set 17, the coding round: its other five functions. c17.py imports them."""

from __future__ import annotations

from itertools import pairwise

import torch

from .fresh import Draw, fresh

# ---- 17.ngram_proposer ----------------------------------------------------------------------------------------------


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


def training_sequence(draw: Draw, length: int, vocab: int, width: int) -> dict:
    tokens = torch.tensor([draw.whole(0, vocab - 1) for _ in range(length)], dtype=torch.int64)
    return dict(hidden=draw.decimals(length, width), tokens=tokens, embed=draw.decimals(vocab, width))


@fresh("17.shifted_eagle", "any sequence")
def _(draw):
    return training_sequence(draw, draw.whole(3, 4 + draw.size), draw.whole(3, 6), draw.whole(1, 3))


@fresh("17.shifted_eagle", "too short to train on", weight=0.5, count=4)
def _(draw):
    return training_sequence(draw, 2, draw.whole(2, 4), draw.whole(1, 3))


# ---- 17.kv_size -----------------------------------------------------------------------------------------------------


def sizes(draw: Draw, **given) -> dict:
    case = dict(
        layers=draw.whole(1, 80),
        kv_heads=draw.whole(1, 8),
        head_dim=8 * draw.whole(1, 16),
        latent=0,
        rope=0,
        bits=16,
        group=32,
        tokens=draw.whole(1, 5000),
    )
    return {**case, **given}


@fresh("17.kv_size", "grouped queries", weight=0.5)
def _(draw):
    return sizes(draw, group=draw.choice([24, 32, 64]))


@fresh("17.kv_size", "quantised")
def _(draw):
    return sizes(draw, bits=draw.choice([2, 4, 8]), group=draw.choice([24, 32, 48, 128]))


@fresh("17.kv_size", "latent attention")
def _(draw):
    return sizes(draw, latent=8 * draw.whole(2, 64), rope=8 * draw.whole(1, 8), bits=16)


@fresh("17.kv_size", "latent attention, quantised")
def _(draw):
    latent, rope = 8 * draw.whole(2, 64), 8 * draw.whole(1, 8)
    return sizes(draw, latent=latent, rope=rope, bits=draw.choice([4, 8]), group=draw.choice([24, 48, 100, 128]))


@fresh("17.kv_size", "latent attention without a part for positions", weight=0.5, count=5)
def _(draw):
    return sizes(draw, latent=8 * draw.whole(2, 64), bits=draw.choice([8, 16]))


@fresh("17.kv_size", "half bytes", weight=0.5, count=5)
def _(draw):
    """An odd number of values with 4 bits each."""
    return sizes(draw, latent=8 * draw.whole(2, 20) + 1, rope=8 * draw.whole(0, 4), bits=4, tokens=draw.whole(1, 9))


@fresh("17.kv_size", "a group larger than what a token leaves", weight=0.5, count=5)
def _(draw):
    small = dict(kv_heads=draw.whole(1, 2), head_dim=draw.whole(1, 12))
    return sizes(draw, **small, bits=draw.choice([4, 8]), group=draw.whole(49, 128))


# ---- 17.top_p -------------------------------------------------------------------------------------------------------


@fresh("17.top_p", "any distribution", weight=2)
def _(draw):
    p = draw.probs(draw.whole(3, 5 + draw.size), positive=True, distinct=True)
    return dict(p=p, limit=draw.whole(20, 95) / 100 + 0.003, start=draw.whole(1, 3))


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


@fresh("17.top_p", "more to begin with than there are tokens", weight=0.5, count=5)
def _(draw):
    p = draw.probs(draw.whole(2, 4), positive=True, distinct=True)
    return dict(p=p, limit=draw.whole(20, 95) / 100 + 0.003, start=len(p) + draw.whole(1, 3))
