"""Plain autoregressive decoding: one forward pass for every token. All else is compared with this."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

import torch

from .sampling import SamplingParams, TokenLogprob, argmax, pad, pick, token_logprobs, uniforms
from .trace import Trace

if TYPE_CHECKING:
    from .load.handle import Model

WAITS = 16  # tokens; a character takes at most four bytes, so one that is not whole by then never will be


@dataclass
class Output:
    """What was generated: the new tokens only, without the prompt."""

    tokens: list[int]
    text: str | None  # None for a model without a tokenizer
    prompt_tokens: int
    seconds: float  # wall clock of the whole call, prompt included, shared by the sequences of a batch
    finish_reason: str  # "length" or "stop"; from an engine also "abort" and "error"
    trace: Trace | None = None  # the cycles of a speculative run
    stop_reason: int | str | None = None  # the stop token or stop string that ended it; None: the model's end token
    error: Exception | None = None  # what an engine's request failed with; its tokens are those before that
    logprobs: list[TokenLogprob] | None = None  # one for each token, if they were asked for

    @property
    def tokens_per_second(self) -> float:
        return len(self.tokens) / self.seconds


class Writer:
    """One sequence being generated: when it ends, and its text as it becomes final. Plain and speculative decoding
    share it, so that both stop at exactly the same token."""

    def __init__(
        self, model: Model, params: SamplingParams, stream: Callable[[str], None] | None = None, processors=None
    ):
        if params.stop and model.tokenizer is None:
            raise ValueError(f"stop={params.stop!r} needs a tokenizer and {model.name} has none: use stop_token_ids")
        self.model, self.limit, self.stop, self.stream = model, params.max_new_tokens, params.stop, stream
        self.stop_tokens = frozenset(params.stop_token_ids)
        self.end_tokens = frozenset() if params.ignore_eos else model.end_tokens
        self.tokens: list[int] = []
        self.text = "" if model.tokenizer else None
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.top, self.logprobs = params.logprobs, None if params.logprobs is None else []
        self.params, self.processors = params, processors
        self.streamed = 0  # characters
        self.read = self.start = 0  # self.text is that of the first `read` tokens; its last piece began at `start`

    def note(self, logits: torch.Tensor, tokens: Sequence[int]) -> None:
        """The logits [n, V] that the next tokens were emitted from, for whoever asked for log-probabilities."""
        if self.logprobs is not None:
            logits = logits[: len(tokens)]
            if self.params.logprobs_mode == "processed_logprobs":
                if self.processors:
                    logits = self.processors(logits, [self.tokens + list(tokens[:i]) for i in range(len(tokens))])
                logits = logits if self.params.greedy else self.params.probs(logits).log()
            self.logprobs += token_logprobs(logits, tokens, self.top)

    def write(self, token: int) -> bool:
        """Append a token; True when the sequence ends with it."""
        self.tokens.append(token)
        if token in self.end_tokens:
            self.finish_reason = "stop"
        elif token in self.stop_tokens:
            self.finish_reason, self.stop_reason = "stop", token
        elif len(self.tokens) == self.limit:
            self.finish_reason = "length"
        if self.text is not None and (self.stop or self.stream):
            self._decode()
            self._hand_out()
        elif self.text is not None and self.finish_reason:
            self.text = self.model.decode(self.tokens)
        return self.finish_reason is not None

    def _decode(self) -> None:
        """Append the text of the new tokens, and cut it where a stop string appears.

        They are decoded together with those before them: what a token looks like may depend on its neighbour (a space
        before a word), or on the tokens that complete its character.
        """
        known = self.model.decode(self.tokens[self.start : self.read])
        piece = self.model.decode(self.tokens[self.start :])
        whole = not piece.endswith("\ufffd") or len(self.tokens) - self.read > WAITS
        if not (whole or self.finish_reason):
            return
        searched = max(0, len(self.text) - max(map(len, self.stop), default=1) + 1)
        self.text += piece[len(known) :]
        self.start, self.read = self.read, len(self.tokens)
        if found := [(at, s) for s in self.stop if (at := self.text.find(s, searched)) >= 0]:
            at, self.stop_reason = min(found)
            self.text, self.finish_reason = self.text[:at], "stop"

    def _hand_out(self) -> None:
        """Stream what can no longer change: not what may turn out to be the start of a stop string."""
        end = len(self.text)
        if self.finish_reason is None:
            begun = [n for s in self.stop for n in range(1, len(s)) if self.text.endswith(s[:n])]
            end -= max(begun, default=0)
        if self.stream and end > self.streamed:
            self.stream(self.text[self.streamed : end])
            self.streamed = end

    def end(self, reason: str) -> None:
        """Stop here, because somebody else says so. What is not streamed by now never will be."""
        self.finish_reason, self.stream = reason, None
        if self.text is not None:
            self.text = self.model.decode(self.tokens)

    def output(self, prompt_tokens: int, seconds: float, trace: Trace | None = None) -> Output:
        logprobs = self.logprobs and self.logprobs[: len(self.tokens)]  # of a cycle, those after its end were not kept
        ended = dict(finish_reason=self.finish_reason, stop_reason=self.stop_reason)
        return Output(self.tokens, self.text, prompt_tokens, seconds, trace=trace, logprobs=logprobs, **ended)


def prepare(model: Model, prompt, params: SamplingParams, stream=None) -> tuple[list[list[int]], bool]:
    """Prompts as lists of token ids, checked; and whether the caller gave a batch of them. One prompt is text, token
    ids (a list, or a tensor [T]) or chat messages; `encode` refuses what is none of it."""
    one = isinstance(prompt, (str, bytes)) or len(prompt) == 0 or isinstance(prompt[0], (Real, dict))
    batched = not one and getattr(prompt, "ndim", 2) > 1
    if batched and stream:
        raise ValueError("stream works for one prompt, not for a batch: make one call per prompt")
    prompts, longest = [model.encode(p) for p in (prompt if batched else [prompt])], model.config.max_length
    for ids in prompts:
        if len(ids) + params.max_new_tokens > longest:
            raise ValueError(
                f"max_new_tokens={params.max_new_tokens} after a prompt of {len(ids)} tokens exceeds the model's "
                f"length of {longest}; shorten the prompt or ask for at most {max(0, longest - len(ids))} tokens"
            )
    return prompts, batched


class Decoder:
    """Plain decoding on any device: every `next` is one forward pass and one token for each sequence, also for those
    that have ended."""

    def __init__(self, model: Model, prompts: Sequence[list[int]], params: SamplingParams, processors: Sequence):
        self.transformer, self.params = model.transformer, params
        self.generators = [params.generator(i) for i in range(len(prompts))]
        self.processors = processors  # of each sequence, or None
        self.outputs: list[list[int]] = [[] for _ in prompts]
        self.cache = self.transformer.new_cache(len(prompts), max(map(len, prompts)) + params.max_new_tokens)
        self.unread, counts = pad(list(prompts), model.device)  # [B, T]: at first the prompts, then one token each
        self.first = dict(counts=counts, last_only=True)

    def next(self, most: int) -> list[list[int]]:
        """One more token of each sequence; another decoder may return up to `most`."""
        logits = self.logits = self.transformer(self.unread, self.cache, **self.first).logits[:, -1]  # [B, V]
        if self.processors[0]:  # then all have some: a batch shares its params
            each = zip(self.processors, logits.split(1), self.outputs, strict=True)
            logits = torch.cat([process(own, [output]) for process, own, output in each])
        if self.params.greedy:  # no distribution is needed to know its only token
            tokens = torch.tensor(argmax(logits[:, None]), device=logits.device)  # [B, 1]
        else:
            tokens = pick(self.params.probs(logits)[:, None], uniforms(self.generators, 1, logits.device))
        self.unread, self.first = tokens, {}
        for output, new in zip(self.outputs, new_tokens := tokens.tolist(), strict=True):
            output += new
        return new_tokens

    def close(self) -> None:
        """Nothing to give back: the memory is this decoder's own."""


@torch.inference_mode()
def decode(model: Model, prompts: Sequence[list[int]], writers: Sequence[Writer], params: SamplingParams) -> Iterator:
    """Generate until every writer has ended, one step at a time: by the device's own decoder where it has one."""
    captured = model.backend.decoder(prompts, params) if model.backend and params.logprobs is None else None
    with closing(captured or Decoder(model, prompts, params, [w.processors for w in writers])) as decoder:
        while going := [writer for writer in writers if writer.finish_reason is None]:
            most = min(writer.limit - len(writer.tokens) for writer in going)
            for row, (writer, tokens) in enumerate(zip(writers, decoder.next(most), strict=True)):
                if writer.finish_reason is None:
                    if params.logprobs is not None:  # then the decoder keeps its logits, of one token at a time
                        writer.note(decoder.logits[row : row + 1], tokens)
                    any(writer.write(token) for token in tokens)  # up to the one that ends the sequence
            yield


def generate(
    model: Model,
    prompt,
    max_new_tokens: int | None = None,
    *,
    params: SamplingParams | None = None,
    stream: Callable[[str], None] | None = None,
    **options,
) -> Output | list[Output]:
    """Continue a prompt (text, token ids or chat messages), or a list of prompts of different lengths as one batch.

    `options` are the fields of SamplingParams: temperature, top_k, top_p, min_p, seed, stop, … The output ends
    at `max_new_tokens` (64), at the model's end token (kept in `tokens`), at a stop token, or where a `stop` string
    appears (cut from `text`). `stream` is called with each piece of text as it becomes final; a batch has no stream.
    """
    params = SamplingParams.of(params, max_new_tokens=max_new_tokens, **options)
    prompts, batched = prepare(model, prompt, params, stream)
    writers = [Writer(model, params, stream, params.processors(model, ids)) for ids in prompts]
    start = time.perf_counter()
    for _ in decode(model, prompts, writers, params):
        pass
    seconds = time.perf_counter() - start
    outputs = [writer.output(len(ids), seconds) for writer, ids in zip(writers, prompts, strict=True)]
    return outputs if batched else outputs[0]
