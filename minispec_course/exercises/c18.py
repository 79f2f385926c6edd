"""Fresh cases of set 18. The last exercise is judged by whole outputs, so its cases are few and short."""

from __future__ import annotations

from functools import partial

import torch

from .e18 import flawed_loop, observe_whole, only_the_last_token, sampler, script, whole
from .fakes import VOCABULARY
from .fresh import Draw, fresh

TEMPERATURES = [0.5, 0.7, 1.0, 1.5, 2.0]


def logits_rows(draw: Draw, count: int, n: int) -> torch.Tensor:
    """Logits [count, n] with a different number for every token of a row, so that there is one best."""
    rows = [draw.sample(range(-4, 5), n) for _ in range(count)]
    return torch.tensor(rows, dtype=torch.float64) / 2


def cycle(draw: Draw, k: int, n: int, temperature: float) -> dict:
    return dict(logits=logits_rows(draw, k + 1, n), q=draw.rows(k, n), temperature=temperature)


@fresh("18.sampler", "one draft token", count=6)
def _(draw):
    return cycle(draw, 1, draw.whole(2, 3), draw.choice(TEMPERATURES))


@fresh("18.sampler", "several draft tokens", count=5)
def _(draw):
    return cycle(draw, 2 if draw.size < 5 else 3, 2 if draw.size in (1, 5) else 3, draw.choice(TEMPERATURES))


@fresh("18.sampler", "temperature 0", count=6)
def _(draw):
    return cycle(draw, draw.whole(0, 2), draw.whole(2, 3), 0.0)


@fresh("18.sampler", "no draft", weight=0.5, count=4)
def _(draw):
    return cycle(draw, 0, draw.whole(2, 4), draw.choice(TEMPERATURES))


def draft_case(draw: Draw, behind: int, temperature: float, k: int) -> dict:
    text = [draw.randrange(2) for _ in range(draw.whole(behind, 2 + draw.size))]
    return dict(text=text, held=len(text) - behind, k=k, temperature=temperature)


@fresh("18.drafter", "one token is missing", count=6)
def _(draw):
    return draft_case(draw, 1, draw.choice(TEMPERATURES), draw.whole(1, 3))


@fresh("18.drafter", "two tokens are missing", count=6)
def _(draw):
    return draft_case(draw, 2, draw.choice(TEMPERATURES), draw.whole(1, 3))


@fresh("18.drafter", "temperature 0", count=6)
def _(draw):
    return draft_case(draw, draw.whole(1, 2), 0.0, draw.whole(1, 4))


@fresh("18.drafter", "no draft", weight=0.5, count=4)
def _(draw):
    return draft_case(draw, draw.whole(1, 2), draw.choice([0.0, 1.0]), 0)


def script_case(draw: Draw, k: int, count: int, wrong: float, end_at: int | None = None) -> dict:
    prompt = [draw.randrange(VOCABULARY) for _ in range(draw.whole(1, 1 + draw.size))]
    places = [at for at in range(len(prompt), len(prompt) + count + 1) if draw.chance(wrong)]
    return script(prompt, places, k, count, end_at)


@fresh("18.loop", "rejections now and then")
def _(draw):
    return script_case(draw, draw.whole(1, 1 + draw.size), draw.whole(1, 4 + 2 * draw.size), 0.3)


@fresh("18.loop", "all draft tokens accepted")
def _(draw):
    return script_case(draw, draw.whole(1, 1 + draw.size), draw.whole(1, 4 + 2 * draw.size), 0.0)


@fresh("18.loop", "the end comes early")
def _(draw):
    count = draw.whole(2, 5 + 2 * draw.size)
    return script_case(draw, draw.whole(1, 4), count, draw.choice([0.0, 0.2]), end_at=draw.randrange(count))


@fresh("18.loop", "drafts longer than what is left", weight=0.5)
def _(draw):
    count = draw.whole(1, 1 + draw.size)
    return script_case(draw, count + draw.whole(0, 3), count, 0.1)


@fresh("18.loop", "the end stands in the prompt", weight=0.5, count=6)
def _(draw):
    """That one does not count: the output has not begun."""
    prompt = [draw.randrange(VOCABULARY) for _ in range(draw.whole(1, 4))]
    count = draw.whole(2, 6)
    end = draw.choice(prompt)
    return dict(prompt=prompt, wrong_places=[], k=draw.whole(1, 3), count=count, end=end)


def output_case(draw: Draw, k: int, count: int, temperature: float, end: int = 9) -> dict:
    prompt = [draw.randrange(3) for _ in range(draw.whole(1, 3))]
    return dict(prompt=prompt, k=k, count=count, end=end, temperature=temperature)


@fresh("18.whole", "whole outputs at a temperature", count=3)
def _(draw):
    return output_case(draw, draw.whole(1, 2), 2, draw.choice(TEMPERATURES))


@fresh("18.whole", "greedy", count=3)
def _(draw):
    return output_case(draw, draw.whole(1, 4), draw.whole(2, 3), 0.0)


def forgetful(target, draft, prompt, k, count, end, temperature, random):
    """Right, but the draft model never processes the last token of a draft that was accepted whole."""
    propose = partial(only_the_last_token, temperature=temperature, random=random)
    verify = partial(sampler, temperature=temperature, random=random)
    return flawed_loop(target, draft, propose, verify, prompt, k, count, end)


@fresh("18.whole", "the draft after one that was accepted whole", count=4)
def _(draw):
    """Its draft model's cache lacks two tokens: without them the output is right, and takes other drafts."""

    def matters(case):
        return observe_whole(whole, **case) != observe_whole(forgetful, **case)

    return draw.until(lambda: output_case(draw, draw.whole(1, 2), draw.whole(6, 9), 0.0), matters)


@fresh("18.whole", "the end comes early", count=2)
def _(draw):
    return output_case(draw, draw.whole(1, 2), 2, draw.choice(TEMPERATURES), end=draw.randrange(3))


@fresh("18.whole", "short and long drafts", count=2)
def _(draw):
    return output_case(draw, draw.whole(1, 3), 3, 1.0, end=draw.randrange(3))
