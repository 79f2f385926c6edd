"""What a student is shown: rows of text that the target wrote, and the target's answer at every position.

p(x) = exp(state · head[x] − log Σ exp), so one state and one number a position hold the target's whole law, and the
law on a reduced vocabulary costs only that many rows of the head. With `keep`, the answers are computed once for the
whole corpus: a few kilobytes a token, worth it when rows are seen many times. Without, each step asks the target anew.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from ..model import Transformer
from .corpus import Corpus

# Rows are sorted into buckets, so that little is padding.
WIDTHS = (128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536)


@dataclass
class Answers:
    """What the target thinks of n rows of w tokens."""

    states: Tensor  # [n, w, d] its last states, normed: what the head reads
    log_z: Tensor  # [n, w] log Σ exp of its logits
    hidden: dict[int, Tensor]  # layers → residual stream after that many layers [n, w, d]

    def __getitem__(self, rows) -> Answers:
        states = None if self.states is None else self.states[rows]
        return Answers(states, self.log_z[rows], {n: state[rows] for n, state in self.hidden.items()})


@dataclass
class Batch:
    """The rows of one step."""

    tokens: Tensor  # [n, w]
    asked: Tensor  # [n, w] bool: here a reply token is predicted
    answers: Answers


class Lessons:
    def __init__(self, target: Transformer, corpus: Corpus, hidden_layers: Sequence[int] = (), *, keep: bool = True,
                 batch_tokens: int = 16_384):  # fmt: skip
        if corpus.length.max() > WIDTHS[-1]:
            raise ValueError(f"corpus has a row of {int(corpus.length.max())} tokens: at most {WIDTHS[-1]} are learnt")
        self.target, self.hidden_layers = target, tuple(hidden_layers)
        self.buckets, self.weights, shortest = [], [], 0
        for width in WIDTHS:
            rows = corpus[(corpus.length > shortest) & (corpus.length <= width)]
            shortest = width
            if len(rows) == 0:
                continue
            tokens = torch.nn.functional.pad(rows.tokens, (0, max(0, width - rows.tokens.shape[1])))[:, :width]
            tokens = tokens.long().to(target.device)  # [n, w]
            answers = self._answer_all(tokens, max(1, batch_tokens // width)) if keep else None
            asked = rows.asked(width).to(target.device)
            self.buckets.append((tokens, asked, answers))
            self.weights.append(tokens.numel())  # so that every row is seen equally often

    @torch.no_grad()
    def answer(self, tokens: Tensor) -> Answers:
        """One pass of the target over rows [n, w]."""
        x, hidden = self.target.body(tokens, hidden_layers=self.hidden_layers)
        states = self.target.norm(x)
        return Answers(states, self.target.lm_head(states).float().logsumexp(-1), hidden)

    def _answer_all(self, tokens: Tensor, batch: int) -> Answers:
        (n, width), d, device = tokens.shape, self.target.config.hidden_size, tokens.device
        room = lambda: torch.empty(n, width, d, dtype=self.target.dtype, device=device)  # noqa: E731
        hidden = {layers: room() for layers in self.hidden_layers}
        spare = self.target.config.num_layers in hidden  # the last stream is kept anyway, and the norm is cheap
        everything = Answers(None if spare else room(), torch.empty(n, width, device=device), hidden)
        for i in tqdm(range(0, n, batch), desc=f"target reads rows of {width}", unit="batch", mininterval=2):
            part = self.answer(tokens[i : i + batch])
            everything.log_z[i : i + batch] = part.log_z
            if not spare:
                everything.states[i : i + batch] = part.states
            for layers, state in part.hidden.items():
                hidden[layers][i : i + batch] = state
        return everything

    def batch(self, step: int, seed: int, batch_tokens: int) -> Batch:
        """About `batch_tokens` tokens of rows of like length: a function of (seed, step) alone."""
        rng = random.Random(f"{seed} {step}")
        tokens, asked, answers = rng.choices(self.buckets, self.weights)[0]
        rows = torch.tensor(rng.choices(range(len(tokens)), k=max(1, batch_tokens // tokens.shape[1])))
        rows = rows.to(tokens.device)
        answers = answers[rows] if answers else self.answer(tokens[rows])
        if answers.states is None:
            answers.states = self.target.norm(answers.hidden[self.target.config.num_layers]).detach()
        return Batch(tokens[rows], asked[rows], answers)

    def law(self, states: Tensor, log_z: Tensor, head_ids: Tensor | None) -> Tensor:
        """The target's p on a draft's vocabulary, [..., draft vocabulary], for states [..., d] and log_z [...]."""
        head = self.target.lm_head.weight if head_ids is None else self.target.lm_head.weight[head_ids]
        return ((states @ head.T).float() - log_z[..., None]).exp()


def split_rows(corpus: Corpus) -> tuple[Corpus, Corpus]:
    """Rows to learn from, and every 50th held out (of a small corpus every 8th): some from each part of the corpus."""
    if len(corpus) < 2:
        raise ValueError(f"corpus has {len(corpus)} rows: give at least 2, to learn from and to measure on")
    every = min(50 if len(corpus) >= 400 else 8, len(corpus))
    held_out = torch.arange(len(corpus)) % every == every - 1
    return corpus[~held_out], corpus[held_out]


def frequent_tokens(corpus: Corpus, vocab_size: int, count: int, always: Sequence[int] = ()) -> Tensor:
    """The tokens a reduced draft vocabulary keeps: the most frequent ones of the replies, sorted by id."""
    position = torch.arange(corpus.tokens.shape[1])
    reply = (position >= corpus.prompt[:, None]) & (position < corpus.length[:, None])
    frequency = torch.bincount(corpus.tokens[reply].long(), minlength=vocab_size)
    frequency[list(always)] = frequency.max() + 1
    return frequency.topk(count).indices.sort().values
