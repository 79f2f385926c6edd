"""What a caller gets: tokens, their text as it becomes final, stop strings, log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .load.model import Model
    from .params import SamplingParams
    from .trace import Trace

WAITS = 16  # tokens; a character takes at most four bytes, so one that is not whole by then never will be


class TokenLogprob(NamedTuple):
    token: int
    logprob: float
    top: list[tuple[int, float]]  # the most likely tokens at its position, (token, logprob), best first


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
    """Turns the tokens of one output into text, and says at which of them it ends. Plain and speculative decoding share
    it, so that both stop at exactly the same token."""

    def __init__(
        self, model: Model, params: SamplingParams, prompt_length: int, stream: Callable[[str], None] | None = None
    ):
        if params.stop and model.tokenizer is None:
            raise ValueError(f"stop={params.stop!r} needs a tokenizer and {model.name} has none: use stop_token_ids")
        self.model, self.params, self.stream, self.stop = model, params, stream, params.stop
        self.prompt_length = prompt_length
        self.stop_tokens = frozenset(params.stop_token_ids)
        added = model.tokenizer.get_added_tokens_decoder() if self.stop else {}
        self.stop_specials = {id: one.content for id, one in added.items() if one.special and one.content in self.stop}
        self.end_tokens = frozenset() if params.ignore_eos else model.end_tokens
        self.text = "" if model.tokenizer else None
        self.stop_reason: int | str | None = None
        self.logprobs: list[TokenLogprob] | None = None if params.logprobs is None else []
        self.pieces: list[str] = []  # of text, final and not streamed yet
        self.handed_out = 0  # characters, in pieces or streamed
        self.decoded = self.start = prompt_length  # the text is of tokens[:decoded], its last piece from `start`

    def write(self, tokens: list[int], ends: bool = False) -> bool:
        """The newest token has come; with `ends`, no more may follow. Whether it, or a stop string, ends the output. A
        token that ends it is no part of its text."""
        token, stops = tokens[-1], tokens[-1] in self.end_tokens
        if not stops and token in self.stop_tokens:
            stops, self.stop_reason = True, token
        early = len(tokens) - self.prompt_length <= self.params.min_new_tokens
        if not stops and not early and token in self.stop_specials:
            stops, self.stop_reason = True, self.stop_specials[token]
        said = tokens[:-1] if stops else tokens
        if self.text is not None and (self.stop or self.stream):
            stops |= self._decode(said, stops or ends, early)
            self._hand_out(stops or ends)
        elif stops or ends:
            self.finish(said)
        return stops

    def _decode(self, tokens: list[int], ends: bool, early: bool) -> bool:
        """Append the text of the new tokens, and cut it where a stop string appears, unless it is early for that:
        whether one does. Of several, the one that is complete first counts, then the first of the list.

        They are decoded together with those before them: what a token looks like may depend on its neighbour (a space
        before a word), or on the tokens that complete its character.
        """
        known = self.model.decode(tokens[self.start : self.decoded])
        piece = self.model.decode(tokens[self.start :])
        whole = not piece.endswith("\ufffd") or len(tokens) - self.decoded > WAITS
        if not (whole or ends):
            return False
        before = len(self.text)  # a stop string that counts is complete after that
        self.text += piece[len(known) :]
        self.start, self.decoded = self.decoded, len(tokens)
        starts = [(self.text.find(s, max(0, before - len(s) + 1)), s) for s in self.stop]
        found = [(at + len(s), at, s) for at, s in starts if at >= 0 and not early]
        if found:
            _, at, self.stop_reason = min(found, key=lambda one: one[0])  # the first of equals
            self.text = self.text[:at]
        return bool(found)

    def _hand_out(self, ends: bool) -> None:
        """Make a piece of what can no longer change: not of what may turn out to be the start of a stop string."""
        end = len(self.text)
        if not ends:
            end -= max((n for s in self.stop for n in range(1, len(s)) if self.text.endswith(s[:n])), default=0)
        if self.stream and end > self.handed_out:
            self.pieces.append(self.text[self.handed_out : end])
            self.handed_out = end

    def flush(self) -> None:
        """Stream what is final. A callback that raises has had its piece."""
        while self.pieces and self.stream:
            self.stream(self.pieces.pop(0))

    def finish(self, tokens: list[int]) -> None:
        """Decode the whole output: the sequence ends here."""
        if self.text is not None:
            self.text = self.model.decode(tokens[self.prompt_length :])

    def note(self, logits: Tensor, tokens: Sequence[int]) -> None:
        """The logits [n, V] that n more tokens are emitted from, for whoever asked for log-probabilities: these are the
        target's own, before any processor, temperature and truncation. Which drafter proposed a token does not show: a
        verify pass has the target's logits wherever it emits."""
        self.logprobs += token_logprobs(logits, tokens, self.params.logprobs)


def token_logprobs(logits: Tensor, tokens: Sequence[int], top: int) -> list[TokenLogprob]:
    """Of `tokens` [n], emitted from logits [n, V], each with the `top` most likely ones beside it."""
    log_p = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)  # [n, V]
    own = log_p.gather(-1, torch.tensor(tokens, device=log_p.device)[:, None])[:, 0].tolist()
    best = log_p.topk(min(top, log_p.shape[-1]))
    beside = [list(zip(*pair, strict=True)) for pair in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
    return [TokenLogprob(*each) for each in zip(tokens, own, beside, strict=True)]
