"""OpenAI's forms as plain functions: what a body may ask for, and how answers and errors look.

A body is checked field by field before any work is done for it. A field that we do not know, or cannot honour, is
refused in words: a client that asked for `tools` and silently got none would have to find out by itself. `null`
means that a field was not given, as in OpenAI's own API.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from reprlib import repr as shortened

from ..output import TokenLogprob
from ..sampling import SamplingParams

MOST_LOGPROBS = 20  # of OpenAI's chat API, and of vLLM


class ApiError(Exception):
    """What a client is told instead of an answer."""

    def __init__(self, status: int, message: str, code: str | None = None, param: str | None = None, headers=None):
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


# ---- one field: a check returns the value to use, or raises ValueError("give …") -----------------------------------

STOPS, STOP_LENGTH = 4, 256  # of OpenAI's API; and characters, since every token is compared with every stop string
ROLES = ("system", "user", "assistant")


def field(fits: Callable, wanted: str, convert: Callable | None = None) -> Callable:
    def check(value):
        if not fits(value):
            raise ValueError(f"give {wanted}")
        return convert(value) if convert else value

    return check


text = field(lambda value: isinstance(value, str), "text")
flag = field(lambda value: isinstance(value, bool), "true or false")


def whole(least: int, most: int = 2**63 - 1) -> Callable:
    return field(lambda value: type(value) is int and least <= value <= most, f"a whole number from {least} to {most}")


def number(least: float, most: float = 1e308, above: bool = False) -> Callable:
    """A finite number from `least` (or `above` it) to `most`."""
    border = "" if most == 1e308 else f" and at most {most:g}"

    def fits(value) -> bool:
        return type(value) in (int, float) and least <= value <= most and not (above and value == least)

    return field(fits, f"a number {'>' if above else '≥'} {least:g}{border}", float)


def only(*harmless) -> Callable:
    """A field that we know but do not have: the values that ask for nothing are fine."""

    def check(value) -> None:
        if not any(type(value) is type(one) and value == one for one in harmless):
            raise ValueError("this server does not have it: leave it out")

    return check


def a_list(value, most: int, what: str) -> list:
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        raise ValueError(f"give a list of 1 to {most} {what}")
    return value


def stops(value) -> list[str]:
    strings = [value] if isinstance(value, str) else a_list(value, STOPS, "strings")
    if not all(isinstance(s, str) and 1 <= len(s) <= STOP_LENGTH for s in strings):
        raise ValueError(f"give strings of 1 to {STOP_LENGTH} characters")
    return strings


def token_ids(value) -> list[int]:
    return [whole(0)(token) for token in a_list(value, 64, "token ids")]


def biases(value) -> dict[int, float]:
    """{"token id": number}: JSON has no keys but text."""
    if not isinstance(value, dict) or not all(token.isdecimal() and token.isascii() for token in value):
        raise ValueError('give {"token id": number from -100 to 100}')
    return {int(token): number(-100, 100)(bias) for token, bias in value.items()}


def response_format(value) -> dict | None:
    """The JSON schema that the output has to follow; None: any text will do."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    form = value.get("json_schema") if kind == "json_schema" else None
    if not isinstance(form, dict) or not isinstance(form.get("schema"), dict):
        raise ValueError(
            'give {"type": "text"}, {"type": "json_object"}, or {"type": "json_schema", "json_schema": {"schema": {…}}}'
        )
    return form["schema"]


def prompt(value) -> str | list[int]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (str, list)):
        value = value[0]  # a batch of one
    if isinstance(value, list) and any(isinstance(item, (str, list)) for item in value):
        raise ValueError("a request has one prompt here: send one request for each")
    if not isinstance(value, str) and not (isinstance(value, list) and all(type(item) is int for item in value)):
        raise ValueError("give text, or a list of token ids")
    return value


def messages(value) -> list[dict[str, str]]:
    return [_message(item) for item in a_list(value, 10_000, "messages")]


def _message(item) -> dict[str, str]:
    if not isinstance(item, dict) or item.get("role") not in ROLES:
        raise ValueError(f'give messages {{"role": "user", "content": "…"}}; roles are {", ".join(ROLES)}')
    if extra := sorted(key for key in item if key not in ("role", "content") and item[key] is not None):
        raise ValueError(f"a message has a role and a content; this server does not know {shortened(extra[0])}")
    content = item.get("content")
    if isinstance(content, list):  # parts, as clients write them that could send pictures, too
        parts = [part if isinstance(part, dict) and part.keys() == {"type", "text"} else {} for part in content]
        if not all(part.get("type") == "text" and isinstance(part["text"], str) for part in parts):
            raise ValueError('give content as text, or as parts {"type": "text", "text": "…"}')
        content = "".join(part["text"] for part in parts)
    if not isinstance(content, str):
        raise ValueError("give content as text")
    return {"role": item["role"], "content": content}


def stream_options(value) -> dict:
    if not isinstance(value, dict) or not value.keys() <= {"include_usage", "continuous_usage_stats"}:
        raise ValueError("give include_usage or continuous_usage_stats, true or false")
    return {name: flag(given) for name, given in value.items()}


# ---- one body ------------------------------------------------------------------------------------------------------

COMMON = {
    "model": text,
    "stream": flag,
    "stream_options": stream_options,
    "max_tokens": whole(1),
    "user": text,
    "temperature": number(0),
    "top_p": number(0, 1, above=True),
    "seed": whole(-(2**63)),
    "stop": stops,
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    "logit_bias": biases,
    "response_format": response_format,
    "max_completion_tokens": whole(1),
    "n": only(1),  # what clients send although they do not want it
    # Beyond OpenAI's API, under vLLM's names.
    "top_k": whole(-1),
    "min_p": number(0, 1),
    "min_tokens": whole(0),
    "ignore_eos": flag,
    "stop_token_ids": token_ids,
    "repetition_penalty": number(0, above=True),
}
COMPLETION = COMMON | {"prompt": prompt, "logprobs": whole(0, MOST_LOGPROBS)}
COMPLETION |= {"echo": only(False), "best_of": only(1), "suffix": only("")}
CHAT = COMMON | {"messages": messages, "logprobs": flag, "top_logprobs": whole(0, MOST_LOGPROBS)}
SAMPLING = [one.name for one in fields(SamplingParams) if one.name in COMMON]


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
    known, given = CHAT if chat else COMPLETION, {}
    for name, value in body.items():
        if name not in known:
            unknown = f"{shortened(name)} is no field that this server knows; they are {', '.join(known)}"
            raise ApiError(400, unknown, "unknown_field", name[:100])
        if value is not None:
            try:
                given[name] = known[name](value)
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
    options["logprobs"] = given.get("logprobs")  # in a completion one number says whether, and how many
    if chat:
        options["logprobs"] = given.get("top_logprobs", 0) if given.get("logprobs") else None
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
        asked = f"a prompt of {prompt_tokens} tokens and max_tokens={most} exceed the {longest} tokens that fit here"
        where = "messages" if ask.chat else "prompt"
        raise ApiError(400, f"{asked}: shorten the prompt or ask for fewer", "context_length_exceeded", where)
    try:
        return SamplingParams(max_new_tokens=most, **ask.options)
    except ValueError as error:
        raise ApiError(400, str(error), "invalid_value") from None


# ---- answers -------------------------------------------------------------------------------------------------------


def usage(prompt_tokens: int, new_tokens: int) -> dict:
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": new_tokens}
    return counts | {"total_tokens": prompt_tokens + new_tokens}


def answer(ask: Ask, head: dict, text: str, finish: str | None, used=None, logprobs=None, first: bool = False) -> dict:
    """The whole answer at once or, of a stream, a part of it. `head`: id, created and model."""
    said = {"text": text}
    if ask.chat:
        role = {"role": "assistant"} if first or not ask.stream else {}
        said = {"delta" if ask.stream else "message": role | {"content": text}}
    choice = {"index": 0, **said, "logprobs": logprobs, "finish_reason": finish}
    return head | {"object": kind(ask), "choices": [choice]} | ({"usage": used} if used else {})


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
        of_tokens = [one.logprob for one in logprobs]
        return {"tokens": tokens, "token_logprobs": of_tokens, "top_logprobs": tops, "text_offset": offsets}


def kind(ask: Ask) -> str:
    return f"chat.completion{'.chunk' * ask.stream}" if ask.chat else "text_completion"


def event(data: dict) -> bytes:
    """A server-sent event."""
    return f"data: {json.dumps(data)}\n\n".encode()
