"""OpenAI's forms as plain functions: what a body may ask for, and how answers and errors look.

A body is checked field by field before any work is done for it. A field that we do not know, or cannot honour, is
refused in words: a client that asked for `tools` and silently got none would have to find out by itself. `null`
means that a field was not given, as in OpenAI's own API.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from reprlib import repr as shortened

from ..sampling import SamplingParams, TokenLogprob
from . import fields as f

MOST_LOGPROBS = 20  # of OpenAI's chat API, and of vLLM


class ApiError(Exception):
    """What a client is told instead of an answer."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.code, self.param, self.headers = status, message, code, param, headers

    def body(self) -> dict:
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class Ask:
    """A body that was understood."""

    chat: bool
    prompt: str | list  # text, token ids, or messages: what Model.encode takes
    options: dict  # fields of SamplingParams, without max_new_tokens
    max_tokens: int | None  # None: as many as fit
    stream: bool
    usage: bool  # at the end of a stream, too
    usage_always: bool  # and in each of its chunks


# ---- one body ------------------------------------------------------------------------------------------------------

COMMON = {
    "model": f.text,
    "stream": f.flag,
    "stream_options": f.stream_options,
    "max_tokens": f.whole(1),
    "user": f.text,
    "temperature": f.number(0),
    "top_p": f.number(0, 1, above=True),
    "seed": f.whole(-(2**63)),
    "stop": f.stops,
    "presence_penalty": f.number(-2, 2),
    "frequency_penalty": f.number(-2, 2),
    "logit_bias": f.biases,
    "response_format": f.response_format,
    "max_completion_tokens": f.whole(1),
    "n": f.only(1),  # what clients send although they do not want it
    # Beyond OpenAI's API, under vLLM's names.
    "top_k": f.whole(-1),
    "min_p": f.number(0, 1),
    "min_tokens": f.whole(0),
    "ignore_eos": f.flag,
    "stop_token_ids": f.token_ids,
    "repetition_penalty": f.number(0, above=True),
}
COMPLETION = COMMON | {
    "prompt": f.prompt,
    "logprobs": f.whole(0, MOST_LOGPROBS),
    "echo": f.only(False),
    "best_of": f.only(1),
    "suffix": f.only(""),
}
CHAT = COMMON | {"messages": f.messages, "logprobs": f.flag, "top_logprobs": f.whole(0, MOST_LOGPROBS)}
# Named as in SamplingParams.
SAMPLING = (
    "temperature",
    "top_p",
    "seed",
    "stop",
    "min_p",
    "ignore_eos",
    "stop_token_ids",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
)


def parse(raw: bytes) -> dict:
    """The JSON object in a body. NaN, lone surrogates and numbers of thousands of digits are no JSON to us."""

    def refuse(name: str):
        raise ValueError(f"{name} is no number of JSON")

    try:
        body = json.loads(raw.decode("utf-8"), parse_constant=refuse)
        if b"\\u" in raw:
            json.dumps(body, ensure_ascii=False).encode("utf-8")  # "\ud800" alone is no character
    except (ValueError, RecursionError) as error:
        said = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ApiError(400, f"the body is not JSON: {said[:200]}", "invalid_json") from None
    if not isinstance(body, dict):
        raise ApiError(400, "the body is not a JSON object: give {…}", "invalid_json")
    return body


def read(chat: bool, body: dict) -> Ask:
    """What a body asks for; ApiError names the field that is wrong and what would do."""
    fields, given = CHAT if chat else COMPLETION, {}
    for name, value in body.items():
        if name not in fields:
            raise ApiError(
                400,
                f"{shortened(name)} is no field that this server knows; they are {', '.join(fields)}",
                "unknown_field",
                name[:100],
            )
        if value is not None:
            try:
                given[name] = fields[name](value)
            except ValueError as error:
                raise ApiError(400, f"{name}={shortened(value)}: {error}", "invalid_value", name) from None
    for name in ("model", "messages" if chat else "prompt"):
        if name not in given:
            raise ApiError(400, f"{name} is missing: give it", "missing_field", name)
    if given.get("top_logprobs") and not given.get("logprobs"):
        raise ApiError(400, "top_logprobs come with logprobs: give logprobs=true, too", "invalid_value", "top_logprobs")
    options = {"temperature": 1.0} | {name: given[name] for name in SAMPLING if name in given}
    options |= {"top_k": max(0, given.get("top_k", 0)), "min_new_tokens": given.get("min_tokens", 0)}
    options["json_schema"] = given.get("response_format")
    if chat:  # whether, and how many beside the emitted token; in a completion one number says both
        options["logprobs"] = given.get("top_logprobs", 0) if given.get("logprobs") else None
    else:
        options["logprobs"] = given.get("logprobs")
    asked = given.get("stream_options", {})
    return Ask(
        chat=chat,
        prompt=given["messages" if chat else "prompt"],
        options=options,
        max_tokens=given.get("max_completion_tokens", given.get("max_tokens", None if chat else 16)),  # OpenAI's 16
        stream=given.get("stream", False),
        usage=asked.get("include_usage", False),
        usage_always=asked.get("continuous_usage_stats", False),
    )


def sampling_params(ask: Ask, prompt_tokens: int, longest: int) -> SamplingParams:
    """How to sample for an Ask whose prompt has so many tokens, on a server where `longest` fit."""
    room = longest - prompt_tokens
    most = max(1, room) if ask.max_tokens is None else ask.max_tokens
    if most > room:
        raise ApiError(
            400,
            f"a prompt of {prompt_tokens} tokens and max_tokens={most} exceed the {longest} tokens "
            "that fit here: shorten the prompt or ask for fewer",
            "context_length_exceeded",
            "messages" if ask.chat else "prompt",
        )
    try:
        return SamplingParams(max_new_tokens=most, **ask.options)
    except ValueError as error:
        raise ApiError(400, str(error), "invalid_value") from None


# ---- answers -------------------------------------------------------------------------------------------------------


def usage(prompt_tokens: int, completion_tokens: int) -> dict:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def answer(ask: Ask, head: dict, text: str, finish: str, used: dict, logprobs: dict | None = None) -> dict:
    """The whole answer at once. `head`: id, created and model."""
    said = {"message": {"role": "assistant", "content": text}} if ask.chat else {"text": text}
    choice = {"index": 0, **said, "logprobs": logprobs, "finish_reason": finish}
    return head | {"object": kind(ask), "choices": [choice], "usage": used}


def chunk(
    ask: Ask,
    head: dict,
    text: str,
    finish: str | None,
    first: bool,
    used: dict | None = None,
    logprobs: dict | None = None,
) -> dict:
    """A part of a streamed answer."""
    said = {"delta": ({"role": "assistant"} if first else {}) | {"content": text}} if ask.chat else {"text": text}
    choice = {"index": 0, **said, "logprobs": logprobs, "finish_reason": finish}
    return head | {"object": kind(ask), "choices": [choice]} | ({"usage": used} if used else {})


def last_chunk(ask: Ask, head: dict, used: dict) -> dict:
    """After the last part, if the client asked for it: what it all came to."""
    return head | {"object": kind(ask), "choices": [], "usage": used}


class Logprobs:
    """Log-probabilities in OpenAI's two forms, part by part. `spell` says how a token alone is written."""

    def __init__(self, chat: bool, spell: Callable[[int], str]):
        self.chat, self.spell, self.offset = chat, spell, 0  # characters of the output so far

    def part(self, logprobs: list[TokenLogprob] | None) -> dict | None:
        if logprobs is None:
            return None
        if self.chat:
            return {"content": [self._chat(*one) for one in logprobs], "refusal": None}
        return self._text(logprobs)

    def _chat(self, token: int, logprob: float, top=None) -> dict:
        text = self.spell(token)
        whole = None if "\ufffd" in text else list(text.encode())  # a part of a character has no text of its own
        beside = {} if top is None else {"top_logprobs": [self._chat(*one) for one in top]}
        return {"token": text, "logprob": logprob, "bytes": whole} | beside

    def _text(self, logprobs: list[TokenLogprob]) -> dict:
        tokens, tops, offsets = [self.spell(one.token) for one in logprobs], [], []
        for one, text in zip(logprobs, tokens, strict=True):
            likely = {self.spell(token): p for token, p in reversed(one.top)}  # of two that look alike, the likelier
            tops.append(likely | {text: one.logprob})  # the emitted one is always there
            offsets.append(self.offset)
            self.offset += len(text)
        return {
            "tokens": tokens,
            "token_logprobs": [one.logprob for one in logprobs],
            "top_logprobs": tops,
            "text_offset": offsets,
        }


def kind(ask: Ask) -> str:
    return f"chat.completion{'.chunk' * ask.stream}" if ask.chat else "text_completion"


def event(data: dict) -> bytes:
    """A server-sent event."""
    return f"data: {json.dumps(data)}\n\n".encode()
