"""Plain decoding: one pass of the model for every token. The baseline that everything else is compared with."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING

import torch

from .sampling import Sampling, draw, generator_for
from .trace import Trace

if TYPE_CHECKING:
    from .files.handle import Model


@dataclass
class Output:
    """What a run wrote: the new tokens only, without the prompt."""

    tokens: list[int]
    text: str | None  # None for a model without a tokenizer
    prompt_tokens: int
    seconds: float  # wall clock of the whole call, prompt included, shared by the rows of a batch
    finish: str  # "length", "stop" (an end token), "stop string"; from an engine also "aborted" and "error"
    trace: Trace | None = None  # the cycles of a speculative run
    error: Exception | None = None  # what an engine's request failed with; its tokens are those before that

    @property
    def tokens_per_second(self) -> float:
        return len(self.tokens) / self.seconds


class Writer:
    """One row being written: decides when it ends, and hands out text as it becomes final.

    Shared by plain and speculative decoding, so that both stop at exactly the same token.
    """

    def __init__(self, model: Model, max_new_tokens: int, stop: str | Sequence[str], stream: Callable | None):
        self.model, self.limit, self.stream = model, max_new_tokens, stream
        self.stop = (stop,) if isinstance(stop, str) else tuple(stop)
        if self.stop and model.tokenizer is None:
            raise ValueError(f"stop={stop!r} needs a tokenizer and this model has none: leave stop empty")
        if "" in self.stop:
            raise ValueError(f"stop={self.stop!r} holds an empty string, and every text begins with one: leave it out")
        self.tokens: list[int] = []
        self.text = "" if model.tokenizer else None
        self.streamed = 0
        self.finish: str | None = None

    def write(self, token: int) -> bool:
        """Append a token; True when the row is finished with it."""
        self.tokens.append(token)
        if token in self.model.end_tokens:
            self.finish = "stop"
        elif len(self.tokens) == self.limit:
            self.finish = "length"
        if self.text is not None and (self.stop or self.stream or self.finish):
            self.text = self.model.decode(self.tokens)
            cuts = [at for s in self.stop if (at := self.text.find(s)) >= 0]
            if cuts:
                self.text, self.finish = self.text[: min(cuts)], "stop string"
            self._hand_out()
        return self.finish is not None

    def _hand_out(self) -> None:
        """Stream what can no longer change: not a half-decoded character, not the start of a stop string."""
        if self.stream is None:
            return
        end = len(self.text)
        if self.finish is None:
            end = len(self.text.rstrip("\ufffd"))
            begun = [n for s in self.stop for n in range(1, len(s)) if self.text[:end].endswith(s[:n])]
            end -= max(begun, default=0)
        if end > self.streamed:
            self.stream(self.text[self.streamed : end])
            self.streamed = end

    def end(self, reason: str) -> None:
        """Stop here, because somebody else says so. What is not streamed by now never will be."""
        self.finish, self.stream = reason, None
        if self.text is not None:
            self.text = self.model.decode(self.tokens)

    def output(self, prompt_tokens: int, seconds: float, trace: Trace | None = None) -> Output:
        return Output(self.tokens, self.text, prompt_tokens, seconds, self.finish, trace)


def prepare(model: Model, prompt, max_new_tokens: int) -> tuple[list[list[int]], bool]:
    """Prompts as lists of token ids, checked; and whether the caller gave a batch of them."""
    if not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise ValueError(f"max_new_tokens={max_new_tokens!r}: give a whole number ≥ 1")
    batched = not isinstance(prompt, str) and len(prompt) > 0 and not isinstance(prompt[0], (Integral, dict))
    batched = batched and not (hasattr(prompt, "ndim") and prompt.ndim == 1)  # a tensor of token ids is one prompt
    prompts = [model.encode(p) for p in (prompt if batched else [prompt])]
    for ids in prompts:
        if len(ids) + max_new_tokens > model.config.max_length:
            raise ValueError(
                f"max_new_tokens={max_new_tokens} after a prompt of {len(ids)} tokens exceeds the model's length of "
                f"{model.config.max_length}; shorten the prompt or ask for at most "
                f"{max(0, model.config.max_length - len(ids))} tokens"
            )
    return prompts, batched


def pad(rows: list[list[int]], device) -> tuple[torch.Tensor, torch.Tensor]:
    """Ragged rows as one tensor [B, T], padded at the end, and their lengths [B]."""
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows], dtype=torch.long, device=device)
    return tokens, torch.tensor([len(row) for row in rows], device=device)


@torch.inference_mode()
def generate(
    model: Model,
    prompt,
    max_new_tokens: int = 64,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int | None = None,
    stop: str | Sequence[str] = (),
    stream: Callable[[str], None] | None = None,
) -> Output | list[Output]:
    """Continue a prompt (text, token ids or chat messages), or a list of prompts of different lengths as one batch.

    Ends at `max_new_tokens`, at the model's end token (kept in `tokens`), or where a `stop` string appears (cut from
    `text`). `stream` is called with each piece of text as it becomes final; a batch has no stream.
    """
    sampling = Sampling(temperature, top_k, top_p, min_p)
    prompts, batched = prepare(model, prompt, max_new_tokens)
    if batched and stream:
        raise ValueError("stream works for one prompt, not for a batch: call generate once per prompt")
    if model.backend and not batched:
        return model.backend.generate(prompts[0], max_new_tokens, sampling, seed, stop, stream)
    start = time.perf_counter()
    transformer, generator = model.transformer, generator_for(model.device, seed)
    writers = [Writer(model, max_new_tokens, stop, stream) for _ in prompts]
    cache = transformer.new_cache(len(prompts), max(map(len, prompts)) + max_new_tokens)

    tokens, counts = pad(prompts, model.device)
    logits = transformer(tokens, cache, counts=counts, last_only=True).logits  # prefill: [B, 1, V]
    while True:
        new = draw(sampling.probs(logits[:, -1]), generator)  # [B]
        for writer, token in zip(writers, new.tolist(), strict=True):
            if writer.finish is None:  # rows that are done ride along until the longest is
                writer.write(token)
        if all(writer.finish for writer in writers):
            break
        logits = transformer(new[:, None], cache).logits  # decode: [B, 1, V]
    seconds = time.perf_counter() - start
    outputs = [w.output(len(p), seconds) for w, p in zip(writers, prompts, strict=True)]
    return outputs if batched else outputs[0]
