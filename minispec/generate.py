"""Plain autoregressive decoding: one forward pass for every token. All else is compared with this."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from numbers import Real
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .output import Output, TokenLogprob, token_logprobs
from .params import SamplingParams
from .require import require
from .sampling import NOT_FINITE, best_tokens, coupled, finite, noise_of, pad, pick, uniforms
from .sequence import Sequence
from .verify import check_rule

if TYPE_CHECKING:
    from .load.model import Model


def generate(
    model: Model,
    prompt,
    max_new_tokens: int | None = None,
    *,
    rule: str = "token",
    params: SamplingParams | None = None,
    stream: Callable[[str], None] | None = None,
    **options,
) -> Output | list[Output]:
    """Continue a prompt (text, token ids or chat messages), or a list of prompts of different lengths as one batch.

    `options` are the fields of SamplingParams: temperature, top_k, top_p, min_p, seed, stop, … The output ends
    at `max_new_tokens` (64), at the model's end token (kept in `tokens`), at a stop token, or where a `stop` string
    appears (cut from `text`). `stream` is called with each piece of text as it becomes final; a batch has no stream.
    With rule="coupled" a token depends on the seed, its position and its distribution alone, and `speculate` with that
    rule and seed emits the same tokens; the other rules of `speculate` make no difference here.
    """
    check_rule(rule)
    params = SamplingParams.of(params, max_new_tokens=max_new_tokens, **options)
    sequences, batched = prepare(model, prompt, params, stream, rule=rule)
    start = time.perf_counter()
    decode(model, sequences, params)
    seconds = time.perf_counter() - start
    outputs = [sequence.result(seconds, trace=False) for sequence in sequences]
    return outputs if batched else outputs[0]


@torch.inference_mode()
def decode(model: Model, sequences: list[Sequence], params: SamplingParams) -> None:
    """Generate until every sequence has ended. Where the device has a decoder of its own, its steps are *captured*:
    what one step launches is stored as one graph, and replayed (gpu/backend.py)."""
    captured = model.backend and model.backend.decoder(sequences, params)
    if model.backend and captured is None:
        model.backend.serve(sequences)
        return
    with closing(captured or token_by_token(model, sequences)) as steps:
        for new, logits in steps:  # of each sequence the next token (or several), and what it was sampled from
            for row, sequence in enumerate(sequences):
                if not sequence.ended:
                    sequence.emit(new[row], None if logits is None else logits[row])
                    sequence.writer.flush()
            if all(sequence.ended for sequence in sequences):
                return


def token_by_token(model: Model, sequences: list[Sequence]) -> Iterator[tuple[list[list[int]], Tensor | None]]:
    """Plain decoding on any device. Sequences that have ended stay in the batch, and what they get is not used."""
    transformer, prompts = model.transformer, [sequence.tokens for sequence in sequences]
    longest = max(len(s.tokens) + s.max_new_tokens for s in sequences)
    cache = transformer.new_cache(len(sequences), longest)
    tokens, counts = pad(prompts, model.device)  # [B, T], [B]
    logits = transformer(tokens, cache, counts=counts, last_only=True).logits[:, -1]  # [B, V]
    while True:
        tokens = choose(logits, sequences)  # [B, 1]
        new = tokens.tolist()
        if [-1] in new:
            raise ValueError(NOT_FINITE)
        yield new, logits[:, None] if sequences[0].wants_logprobs else None  # [B, 1, V]
        logits = transformer(tokens, cache).logits[:, -1]


def choose(logits: Tensor, sequences: list[Sequence]) -> Tensor:
    """The next token of every sequence of a batch, which shares its parameters: logits [B, V] → [B, 1]; −1: NaN, ∞."""
    if any(sequence.needs_processing for sequence in sequences):
        each = zip(logits.split(1), sequences, strict=True)
        logits = torch.cat(
            [s.processors(own, [s.output]) if s.needs_processing and not s.ended else own for own, s in each]
        )
    sampling = sequences[0].sampling
    if sampling.greedy:  # no distribution is needed to know its only token
        return best_tokens(logits)[:, None]
    p = sampling.probs(logits)[:, None]  # [B, 1, V]
    if sequences[0].noise is not None:
        return coupled(p, noise_of(sequences, device=logits.device)[:, None])
    return pick(p, uniforms([sequence.coins for sequence in sequences], 1, logits.device))


@torch.inference_mode()
def prompt_logprobs(model: Model, tokens: list[int], top: int = 0, chunk: int = 512) -> Iterator[list[TokenLogprob]]:
    """The target's log-probabilities of a prompt's own tokens, after the first, which follows nothing: in one plain
    pass over all of it, chunk by chunk, so that others may have the device in between."""
    cache = model.transformer.new_cache(1, len(tokens))
    for start in range(0, len(tokens) - 1, chunk):
        after = tokens[start + 1 : start + 1 + chunk]
        part = torch.tensor([tokens[start : start + len(after)]], device=model.device)  # [1, n]
        logits = model.transformer(part, cache).logits[0]  # [n, V]
        if not bool(finite(logits)):
            raise ValueError(NOT_FINITE)
        yield token_logprobs(logits, after, top)


def is_one(prompt) -> bool:
    """Whether this is one prompt, and no list of prompts: text, chat messages, or token ids, as a list or a tensor."""
    if isinstance(prompt, (str, bytes)) or len(prompt) == 0:
        return True
    return isinstance(prompt[0], (Real, dict)) or getattr(prompt, "ndim", 2) == 1


def prepare(
    model: Model, prompt, params: SamplingParams, stream=None, index: int = 0, **options
) -> tuple[list[Sequence], bool]:
    """A sequence for every prompt, checked; and whether the caller gave a batch of them. One prompt is text, token ids
    (a list, or a tensor [T]) or chat messages; `encode` refuses what is none of it."""
    batched = not is_one(prompt)
    if batched and stream:
        raise ValueError("stream works for one prompt, not for a batch: make one call per prompt")
    prompts, longest = [model.encode(p) for p in (prompt if batched else [prompt])], model.config.max_length
    for ids in prompts:
        fits, most = len(ids) + params.max_new_tokens <= longest, max(0, longest - len(ids))
        wanted = f"at most {most} after a prompt of {len(ids)} tokens, as the model's length is {longest}"
        require(fits, f"{wanted}; or shorten the prompt", max_new_tokens=params.max_new_tokens)
    made = [Sequence.of(model, ids, params, index + i, stream, **options) for i, ids in enumerate(prompts)]
    return made, batched
