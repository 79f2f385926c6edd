"""Log-probabilities of emitted tokens: how sure the target was of what it said.

They are the target's own, raw: log softmax of its logits, before temperature and truncation. Which drafter proposed a
token, or whether one did, does not show in them: a verify pass has the target's logits at every position it emits from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class TokenLogprob(NamedTuple):
    token: int
    logprob: float
    top: list[tuple[int, float]]  # the most likely tokens at its position, (token, logprob), best first


def token_logprobs(logits: Tensor, tokens: Sequence[int], top: int) -> list[TokenLogprob]:
    """Of `tokens` [n], emitted from logits [n, V], each with the `top` most likely ones beside it."""
    log_p = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)  # [n, V]
    own = log_p.gather(-1, torch.tensor(tokens, device=log_p.device)[:, None])[:, 0].tolist()
    best = log_p.topk(min(top, log_p.shape[-1]))
    beside = [list(zip(*pair, strict=True)) for pair in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
    return [TokenLogprob(*each) for each in zip(tokens, own, beside, strict=True)]


def emitting_positions(path: Sequence[int]) -> list[int]:
    """Where in a pass over [last token, draft …] the tokens of a cycle were emitted from: after the last token the
    first of them, and after each accepted node i, in slot i + 1, the next."""
    return [0, *(node + 1 for node in path)]
