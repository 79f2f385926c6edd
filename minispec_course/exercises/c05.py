"""Fresh cases of set 05."""

from __future__ import annotations

import torch

from .fakes import VOCABULARY
from .fresh import Draw, fresh


def logits_case(draw: Draw, k: int, right: int) -> dict:
    """Logits [k + 1, V] without ties, all below zero half of the time; the first `right` draft tokens agree."""
    vocabulary = draw.whole(2, 3 + draw.size)
    shift = draw.choice([0, 10])
    rows = [draw.sample(range(vocabulary), vocabulary) for _ in range(k + 1)]
    logits = torch.tensor(rows, dtype=torch.float64) / 4 - shift
    best = logits.argmax(-1).tolist()
    drafted = [b if i < right else (b + draw.whole(1, vocabulary - 1)) % vocabulary for i, b in enumerate(best[:k])]
    for i in range(right + 1, k):  # right again, after a mistake
        drafted[i] = best[i] if draw.chance(0.6) else drafted[i]
    return dict(logits=logits, drafted=drafted)


@fresh("05.greedy_verify", "a rejection")
def _(draw):
    k = draw.whole(1, 1 + draw.size)
    return logits_case(draw, k, draw.randrange(k))


@fresh("05.greedy_verify", "all accepted: the bonus")
def _(draw):
    k = draw.whole(1, 1 + draw.size)
    return logits_case(draw, k, k)


@fresh("05.greedy_verify", "no draft", weight=0.5, count=5)
def _(draw):
    return logits_case(draw, 0, 0)


@fresh("05.rewind", "some are rejected")
def _(draw):
    k = draw.whole(1, 2 + draw.size)
    return dict(n=draw.whole(1, 9 * draw.size), k=k, accepted=draw.randrange(k))


@fresh("05.rewind", "all are accepted")
def _(draw):
    k = draw.whole(1, 2 + draw.size)
    return dict(n=draw.whole(1, 9 * draw.size), k=k, accepted=k)


def run_of(draw: Draw, k: int, count: int, wrong: float) -> dict:
    prompt = [draw.randrange(VOCABULARY) for _ in range(draw.whole(1, 1 + draw.size))]
    positions = [at for at in range(len(prompt), len(prompt) + count + k + 1) if draw.chance(wrong)]
    return dict(prompt=prompt, wrong_positions=positions, k=k, count=count)


@fresh("05.loop", "all draft tokens accepted")
def _(draw):
    return run_of(draw, draw.whole(1, 1 + draw.size), draw.whole(1, 3 + 3 * draw.size), wrong=0)


@fresh("05.loop", "rejections now and then")
def _(draw):
    return run_of(draw, draw.whole(1, 1 + draw.size), draw.whole(2, 3 + 3 * draw.size), wrong=0.3)


@fresh("05.loop", "hardly anything accepted", weight=0.5)
def _(draw):
    return run_of(draw, draw.whole(1, 4), draw.whole(2, 2 + 2 * draw.size), wrong=0.85)


@fresh("05.loop", "drafts longer than what is wanted", weight=0.5)
def _(draw):
    count = draw.whole(1, 1 + draw.size)
    return run_of(draw, count + draw.whole(0, 3), count, wrong=0.15)
