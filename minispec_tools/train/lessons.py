"""What a student is shown: rows of text that the target wrote, and the target's answer at every position.

p(x) = exp(state · head[x] − log Σ exp), so one state and one number a position hold all of the target's p, and p on a
reduced vocabulary costs only that many rows of the head. With `keep`, the answers are computed once for the
whole corpus: a few kilobytes a token, worth it when rows are seen many times. Without, each step asks the target anew.
Streams kept in 8 bits (`keep_bits`) take half the room.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

from minispec.load.head_files import fill
from minispec.model import Transformer

from .corpus import Corpus

# Rows are sorted into buckets, so that little is padding.
WIDTHS = (128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536)


@dataclass
class Answers:
    """What the target thinks of n rows of w tokens."""

    states: Tensor | None  # [n, w, d] its last states, normed: what the head reads; None: see the last stream
    log_z: Tensor  # [n, w] log Σ exp of its logits
    hidden: dict[int, Tensor | Float8]  # layers → residual stream after that many layers [n, w, d]

    def __getitem__(self, rows) -> Answers:
        states = None if self.states is None else self.states[rows]
        return Answers(states, self.log_z[rows], {n: state[rows] for n, state in self.hidden.items()})


@dataclass
class Batch:
    """The rows of one step."""

    tokens: Tensor  # [n, w]
    asked: Tensor  # [n, w] bool: here a reply token is predicted
    answers: Answers


class Float8:
    """Streams [n, w, d] in one byte a number, written and read as a tensor is: x ≈ scale · float8, one scale a token.

    A number is off by up to 1/16 of itself, which turns a normed stream of SmolLM2 by about 2 % of its length. Heads
    norm the streams they read, so that is all they notice.
    """

    LARGEST = torch.finfo(torch.float8_e4m3fn).max

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device):
        self.bytes = torch.empty(*shape, dtype=torch.uint8, device=device)  # not every torch can index float8
        self.scale = torch.empty(*shape[:-1], 1, dtype=dtype, device=device)

    def __setitem__(self, rows, x: Tensor) -> None:
        scale = (x.abs().amax(-1, keepdim=True) / self.LARGEST).clamp(min=torch.finfo(x.dtype).tiny)
        self.scale[rows] = scale
        self.bytes[rows] = (x / scale).to(torch.float8_e4m3fn).view(torch.uint8)

    def __getitem__(self, rows) -> Tensor:
        return self.bytes[rows].view(torch.float8_e4m3fn).to(self.scale.dtype) * self.scale[rows]


class Lessons:
    """A corpus and the target's answers to it, kept (`keep`) or given anew in every step.

    With keep_bits=8 the streams are kept as Float8, all but the last: it stands for the target's p, which errors would
    blur. With 16 everything is kept as the target computed it.
    """

    def __init__(
        self,
        target: Transformer,
        corpus: Corpus,
        hidden_layers: Sequence[int] = (),
        *,
        keep: bool = True,
        keep_bits: int = 16,
        batch_tokens: int = 16_384,
    ):
        if keep_bits not in (8, 16):
            raise ValueError(f"keep_bits={keep_bits}: give 8, or 16 to keep streams as the target computed them")
        if corpus.length.max() > WIDTHS[-1]:
            raise ValueError(f"corpus has a row of {int(corpus.length.max())} tokens: at most {WIDTHS[-1]} are learnt")
        self.target, self.hidden_layers, self.keep_bits = target, tuple(hidden_layers), keep_bits
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
        (n, width), last, device = tokens.shape, self.target.config.num_layers, tokens.device
        shape, dtype = (n, width, self.target.config.hidden_size), self.target.dtype
        small = [layers for layers in self.hidden_layers if self.keep_bits == 8 and layers != last]
        hidden = {
            layers: Float8(shape, dtype, device) if layers in small else torch.empty(shape, dtype=dtype, device=device)
            for layers in self.hidden_layers
        }
        spare = last in hidden  # the last stream is kept anyway, and the norm is cheap
        states = None if spare else torch.empty(shape, dtype=dtype, device=device)
        everything = Answers(states, torch.empty(n, width, device=device), hidden)
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

    def in_order(self, batch_tokens: int) -> Iterator[Batch]:
        """Every row once, answered now."""
        for tokens, asked, _ in self.buckets:
            rows = max(1, batch_tokens // tokens.shape[1])
            for part in zip(tokens.split(rows), asked.split(rows), strict=True):
                yield Batch(*part, self.answer(part[0]))

    def probs(self, states: Tensor, log_z: Tensor, head_ids: Tensor | None) -> Tensor:
        """The target's p on a draft's vocabulary, [..., draft vocabulary], for states [..., d] and log_z [...]."""
        head = self.target.lm_head.weight if head_ids is None else self.target.lm_head.weight[head_ids]
        return ((states @ head.T).float() - log_z[..., None]).exp()


def split_rows(corpus: Corpus) -> tuple[Corpus, Corpus]:
    """Rows to learn from, and rows to measure on: about one prompt in 50 (of fewer than 400 prompts, one in 8).

    A prompt that was learnt at another temperature would make heads look good, so rows of equal prompts stay together.
    Which prompts are held out is decided by their hashes: in a larger corpus they are the same ones, so that training
    can go on there and they are still unseen.
    """
    tokens = corpus.tokens.to(torch.int32).contiguous().numpy()
    prompts = (row[:end].tobytes() for row, end in zip(tokens, corpus.prompt.int().tolist(), strict=True))
    numbers = [int.from_bytes(hashlib.blake2b(prompt, digest_size=6).digest(), "big") for prompt in prompts]
    luck = torch.tensor(numbers, dtype=torch.float64) / 2**48  # [N] in [0, 1), equal for equal prompts
    lots = luck.unique()  # ascending
    if len(lots) < 2:
        raise ValueError(f"corpus has {len(lots)} different prompts: give at least 2, to learn from and to measure on")
    share = 1 / 50 if len(lots) >= 400 else 1 / 8
    count = min(max(1, int((lots < share).sum())), len(lots) - 1)  # both sides get a prompt, however luck would have it
    held_out = luck <= lots[count - 1]
    return corpus[~held_out], corpus[held_out]


def frequent_tokens(corpus: Corpus, vocab_size: int, count: int, always: Sequence[int] = ()) -> Tensor:
    """The tokens a reduced draft vocabulary keeps: the most frequent ones of the replies, sorted by id; all at most."""
    position = torch.arange(corpus.tokens.shape[1])
    reply = (position >= corpus.prompt[:, None]) & (position < corpus.length[:, None])
    frequency = torch.bincount(corpus.tokens[reply].long(), minlength=vocab_size)
    if len(frequency) > vocab_size:
        found = f"the corpus holds token id {len(frequency) - 1}, the target has {vocab_size} tokens"
        raise ValueError(f"{found}: another model generated it, give that one as --model")
    frequency[list(always)] = frequency.max() + 1
    return frequency.topk(min(count, vocab_size)).indices.sort().values


def go_on(head: nn.Module, folder: str | Path, shape: dict, asked: dict) -> nn.Module:
    """A stored head, to be trained further with its weights in full precision.

    `shape` says what it is, `asked` what the caller wants it to be (None: whatever it is), by the same names.
    """
    for name, value in asked.items():
        value = list(value) if isinstance(value, tuple) else value
        if value is not None and value != shape[name]:
            stored = f"start={str(folder)!r} has {name}={shape[name]}"
            raise ValueError(f"{name}={value}, but {stored}: leave {name} out, or start anew")
    fill(head.float(), Path(folder))  # again, for a target in half precision has rounded them
    return head.requires_grad_(True)
