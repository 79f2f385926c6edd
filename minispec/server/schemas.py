"""OpenAI's forms: what a body may ask for, and how answers and errors look.

A body is checked (by pydantic) before any work is done for it; ranges that SamplingParams checks are left to it. A
field that we do not know, or cannot honour, is refused in words: a client that asked for `tools` and silently got none
would have to find out by itself. `null` means that a field was not given, as in OpenAI's own API.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from reprlib import repr as shortened
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from ..output import TokenLogprob
from ..sampling import SamplingParams


class ApiError(Exception):
    """What a client is told instead of an answer."""

    def __init__(self, status: int, message: str, code: str | None = None, param: str | None = None, headers=None):
        super().__init__(message)
        self.status, self.message, self.code, self.param, self.headers = status, message, code, param, headers

    def body(self) -> dict:
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


# ---- fields that are more than a number or a text ------------------------------------------------------------------


def only(harmless) -> AfterValidator:
    """A field that we know but do not have: the value that asks for nothing is fine."""

    def check(value):
        if value != harmless:
            raise ValueError("this server does not have it: leave it out")
        return value

    return AfterValidator(check)


def one_prompt(value):
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (str, list)):
        value = value[0]  # a batch of one
    if isinstance(value, list) and any(isinstance(item, (str, list)) for item in value):
        raise ValueError("a request has one prompt here: send one request for each")
    if not isinstance(value, str) and not (isinstance(value, list) and all(type(item) is int for item in value)):
        raise ValueError("give text, or a list of token ids")
    return value


def joined(content):
    """Parts, as clients write them that could send pictures, too, are one text."""
    if not isinstance(content, list):
        return content
    parts = [part if isinstance(part, dict) and part.keys() == {"type", "text"} else {} for part in content]
    if not all(part.get("type") == "text" and isinstance(part["text"], str) for part in parts):
        raise ValueError('give content as text, or as parts {"type": "text", "text": "…"}')
    return "".join(part["text"] for part in parts)


def schema_of(value) -> dict | None:
    """The JSON schema that a response_format asks the output to follow; None: any text will do."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind in ("text", "json_object"):
        return None if kind == "text" else {"type": "object"}
    form = value.get("json_schema") if kind == "json_schema" else None
    if not isinstance(form, dict) or not isinstance(form.get("schema"), dict):
        raise ValueError(
            'give {"type": "text"}, {"type": "json_object"}, or {"type": "json_schema", "json_schema": {"schema": {…}}}'
        )
    return form["schema"]


Count = Annotated[int, Field(ge=1)]
TokenId = Annotated[int, Field(ge=0)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Logprobs = Annotated[int, Field(ge=0, le=20)]  # of OpenAI's chat API, and of vLLM
# At most four, as in OpenAI's API, and short ones, since every token is compared with every stop string.
Stop = Annotated[str, Field(min_length=1, max_length=256)]
one_or_more = BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop)
Stops = Annotated[list[Stop], one_or_more, Field(min_length=1, max_length=4)]
Biases = Annotated[  # JSON has no keys but text
    dict[Annotated[str, Field(pattern="^[0-9]+$")], Annotated[float, Field(ge=-100, le=100)]],
    AfterValidator(lambda biases: {int(token): bias for token, bias in biases.items()}),
]


# ---- one body ------------------------------------------------------------------------------------------------------


class Form(BaseModel):
    """Values are taken as they are: "1" is no number, and nothing is left out in silence."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def without_null(cls, body: Any) -> Any:
        return {key: value for key, value in body.items() if value is not None} if isinstance(body, dict) else body


class StreamOptions(Form):
    include_usage: bool = False  # at the end of a stream, too
    continuous_usage_stats: bool = False  # and in each of its chunks


class Message(Form):
    role: Literal["system", "user", "assistant"]
    content: Annotated[str, BeforeValidator(joined)]


class Ask(Form):
    """What both kinds of request may ask for."""

    model: str
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    response_format: Annotated[Any, BeforeValidator(schema_of)] = None
    user: str | None = None
    n: Annotated[int, only(1)] = 1  # what clients send although they do not want it
    # Fields of SamplingParams; beyond OpenAI's API, under vLLM's names.
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: Stops = []
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: Biases = {}
    top_k: Annotated[int, Field(ge=-1), AfterValidator(lambda k: max(k, 0))] = 0
    min_p: float = 0.0
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=64)] = []
    repetition_penalty: float = 1.0

    def params(self, prompt_tokens: int, longest: int) -> SamplingParams:
        """How to sample after a prompt of so many tokens, on a server where `longest` fit."""
        room = longest - prompt_tokens
        most = self.max_completion_tokens or self.max_tokens or self.default_tokens or max(1, room)
        if most > room:
            asked = f"a prompt of {prompt_tokens} tokens and max_tokens={most} exceed the {longest} that fit here"
            raise ApiError(400, f"{asked}: shorten the prompt or ask for fewer", "context_length_exceeded", self.given)
        same = {name: getattr(self, name) for name in SAMPLING}
        renamed = dict(min_new_tokens=self.min_tokens, json_schema=self.response_format, logprobs=self.top)
        try:
            return SamplingParams(max_new_tokens=most, **same, **renamed)
        except ValueError as error:
            named = str(error).partition("=")[0]
            raise ApiError(400, str(error), "invalid_value", named if named in SAMPLING else None) from None


SAMPLING = Ask.model_fields.keys() & SamplingParams.__dataclass_fields__.keys()


class Completion(Ask):
    chat: ClassVar = False
    given: ClassVar = "prompt"
    default_tokens: ClassVar = 16  # OpenAI's
    prompt: Annotated[Any, BeforeValidator(one_prompt)]
    logprobs: Logprobs | None = None  # whether, and how many beside the emitted one
    echo: Annotated[bool, only(False)] = False
    best_of: Annotated[int, only(1)] = 1
    suffix: Annotated[str, only("")] = ""

    @property
    def top(self) -> int | None:
        return self.logprobs


class Chat(Ask):
    chat: ClassVar = True
    given: ClassVar = "messages"
    default_tokens: ClassVar = None  # as many as fit
    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000)]
    logprobs: bool = False
    top_logprobs: Logprobs = 0

    @property
    def prompt(self) -> list[dict]:
        return [message.model_dump() for message in self.messages]

    @property
    def top(self) -> int | None:
        return self.top_logprobs if self.logprobs else None


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
    form = Chat if chat else Completion
    try:
        ask = form.model_validate(body)
    except ValidationError as errors:
        error = errors.errors()[0]
        name, *below = map(str, error["loc"])
        if error["type"] == "extra_forbidden" and not below:
            unknown = f"{shortened(name)} is no field that this server knows; they are {', '.join(form.model_fields)}"
            raise ApiError(400, unknown, "unknown_field", name[:100]) from None
        if error["type"] == "missing" and not below:
            raise ApiError(400, f"{name} is missing: give it", "missing_field", name) from None
        at, said = ".".join([name, *below])[:100], error["msg"].removeprefix("Value error, ")
        raise ApiError(400, f"{at}={shortened(error['input'])}: {said}", "invalid_value", name) from None
    if chat and ask.top_logprobs and not ask.logprobs:
        raise ApiError(400, "top_logprobs come with logprobs: give logprobs=true, too", "invalid_value", "top_logprobs")
    return ask


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


def last_chunk(ask: Ask, head: dict, used: dict) -> dict:
    """After the last part, if the client asked for it: what it all came to."""
    return head | {"object": kind(ask), "choices": [], "usage": used}


class LogprobsWriter:
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
