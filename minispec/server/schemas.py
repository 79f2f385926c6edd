"""OpenAI's forms: what a body may ask for, which pydantic checks, and how answers and errors look.

A body is checked before any work is done for it. A field that we do not know, or cannot honour, is refused in words: a
client that asked for `tools` and silently got none would have to find out by itself. `null` means that a field was not
given, as in OpenAI's own API.
"""

import json
import time
from collections.abc import Callable
from dataclasses import fields
from reprlib import repr as shortened
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

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


# ---- what a body may ask for ---------------------------------------------------------------------------------------

Share = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Whole = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(ge=1)]
One = Annotated[int, Field(ge=1, le=1)]
TopLogprobs = Annotated[int, Field(ge=0, le=20)]  # of OpenAI's chat API, and of vLLM
Stop = Annotated[str, Field(min_length=1, max_length=256)]  # every token is compared with every stop string
LONGEST_SCHEMA = 2**14  # characters: compiling takes time that grows with their square, and memory
TokenKey = Annotated[int, Field(ge=0, strict=False)]  # JSON has no keys but text


class Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def null_is_not_given(cls, form):
        return {name: x for name, x in form.items() if x is not None} if isinstance(form, dict) else form


class TextPart(Form):
    type: Literal["text"]
    text: str


class Message(Form):
    role: Literal["system", "user", "assistant"]
    content: str | list[TextPart]  # parts, as clients write them that could send pictures, too


class StreamOptions(Form):
    include_usage: bool = False  # at the end of a stream, too
    continuous_usage_stats: bool = False  # and in each of its chunks


class AnyFormat(Form):
    type: Literal["text", "json_object"]


class NamedSchema(Form, extra="ignore"):  # clients add a name, a description, strict
    definition: dict = Field(alias="schema")


class SchemaFormat(Form):
    type: Literal["json_schema"]
    json_schema: NamedSchema


class Ask(Form):
    """A body that was understood: what completions and chats have in common."""

    chat: ClassVar[bool]
    source: ClassVar[str]  # the field that the prompt comes from
    model: str
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_tokens: Count | None = None  # None: as many as fit
    max_completion_tokens: Count | None = None  # its newer name
    user: str = ""
    n: One = 1  # clients send it although they do not want several
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int | None = None
    stop: Stop | Annotated[list[Stop], Field(min_length=1, max_length=4)] = ()
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: dict[TokenKey, Annotated[float, Field(ge=-100, le=100)]] = {}
    response_format: AnyFormat | SchemaFormat = Field(AnyFormat(type="text"), discriminator="type")
    # Beyond OpenAI's API, under vLLM's names.
    top_k: int = Field(0, ge=-1, lt=2**63)
    min_p: Share = 0.0
    min_tokens: Whole = 0
    ignore_eos: bool = False
    stop_token_ids: list[Whole] = Field([], max_length=64)
    repetition_penalty: float = 1.0
    constrain_after: Stop | None = None  # ours: vLLM sets it for a whole server, by --reasoning-parser

    def sampling_params(self, prompt_tokens: int, longest: int) -> SamplingParams:
        """How to sample after a prompt of so many tokens, on a server where `longest` fit."""
        room, most = longest - prompt_tokens, self.max_completion_tokens or self.max_tokens
        most = max(1, room) if most is None else most
        if most > room:
            asked = f"a prompt of {prompt_tokens} tokens and max_tokens={most} exceed the {longest} that fit here"
            raise ApiError(400, f"{asked}: shorten the prompt or ask for fewer", "context_length_exceeded", self.source)
        asked = {one.name: getattr(self, one.name) for one in fields(SamplingParams) if one.name in Ask.model_fields}
        asked |= {"max_new_tokens": most, "min_new_tokens": self.min_tokens, "top_k": max(0, self.top_k)}
        asked |= {"logprobs": self.num_logprobs, "json_schema": self.schema_of_output}
        try:
            return SamplingParams(**asked)
        except ValueError as error:
            raise ApiError(400, str(error), "invalid_value") from None

    @property
    def schema_of_output(self) -> dict | None:
        if isinstance(self.response_format, SchemaFormat):
            schema = self.response_format.json_schema.definition
            if len(json.dumps(schema)) > LONGEST_SCHEMA:
                said = f"response_format: the schema has more than {LONGEST_SCHEMA} characters: give a shorter one"
                raise ApiError(400, said, "invalid_value", "response_format")
            return schema
        return {"type": "object"} if self.response_format.type == "json_object" else None


class Completion(Ask):
    chat, source = False, "prompt"
    prompt: str | list[int] | Annotated[list[str | list[int]], Field(min_length=1, max_length=1)]  # or a batch of one
    max_tokens: Count = 16  # OpenAI's default
    logprobs: TopLogprobs | None = None  # one number says whether, and how many
    echo: Literal[False] = False
    best_of: One = 1
    suffix: Literal[""] = ""

    @property
    def text(self) -> str | list[int]:
        batch = isinstance(self.prompt, list) and self.prompt and not isinstance(self.prompt[0], int)
        return self.prompt[0] if batch else self.prompt

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs


class Chat(Ask):
    chat, source = True, "messages"
    messages: list[Message] = Field(min_length=1)
    logprobs: bool = False
    top_logprobs: TopLogprobs = 0

    @property
    def text(self) -> list[dict[str, str]]:
        return [
            {"role": m.role, "content": m.content if isinstance(m.content, str) else "".join(p.text for p in m.content)}
            for m in self.messages
        ]

    @property
    def num_logprobs(self) -> int | None:
        if self.top_logprobs and not self.logprobs:
            said = "top_logprobs come with logprobs: give logprobs=true, too"
            raise ApiError(400, said, "invalid_value", "top_logprobs")
        return self.top_logprobs if self.logprobs else None


def read(form: type[Ask], raw: bytes) -> Ask:
    """What a body asks for; ApiError names the field that is wrong and what would do."""
    try:
        return form.model_validate_json(raw)
    except ValidationError as error:
        first, *others = error.errors(include_url=False)
    if not first["loc"]:
        raise ApiError(400, f"the body is not a JSON object: {first['msg']}", "invalid_json")
    name, where = first["loc"][0][:100], ".".join(map(str, first["loc"]))[:200]
    if first["type"] == "missing":
        raise ApiError(400, f"{where} is missing: give it", "missing_field", name)
    if first["type"] == "extra_forbidden":
        known = f"; they are {', '.join(form.model_fields)}" if len(first["loc"]) == 1 else ""
        raise ApiError(400, f"{where} is no field that this server knows{known}", "unknown_field", name)
    ways = [one for one in (first, *others) if one["loc"][0] == name]  # a field may be one of several things
    said = dict.fromkeys(f"{one['msg']} (given: {shortened(one['input'])})" for one in ways)
    raise ApiError(400, f"{name}: {'; or: '.join(said)}"[:1000], "invalid_value", name)


# ---- answers -------------------------------------------------------------------------------------------------------


class Answer:
    """What an Ask gets in return, whole or part by part. `spell` says how a token alone is written."""

    def __init__(self, ask: Ask, id: str, model: str, prompt_tokens: int, spell: Callable[[int], str]):
        self.ask, self.prompt_tokens, self.spell = ask, prompt_tokens, spell
        self.begun, self.offset = False, 0  # whether a part has been made, and the characters of the output so far
        kind = f"chat.completion{'.chunk' * ask.stream}" if ask.chat else "text_completion"
        id = f"{'chatcmpl' if ask.chat else 'cmpl'}-{id}"
        self.head = {"id": id, "object": kind, "created": int(time.time()), "model": model}

    def part(self, text: str, finish: str | None, logprobs: list[TokenLogprob] | None) -> dict:
        said = {"text": text}
        if self.ask.chat:
            role = {} if self.begun else {"role": "assistant"}
            said = {"delta" if self.ask.stream else "message": role | {"content": text}}
        self.begun = True
        if logprobs is not None:
            logprobs = self._chat_logprobs(logprobs) if self.ask.chat else self._text_logprobs(logprobs)
        return self.head | {"choices": [{"index": 0, **said, "logprobs": logprobs, "finish_reason": finish}]}

    def usage(self, new_tokens: int) -> dict:
        counts = {"prompt_tokens": self.prompt_tokens, "completion_tokens": new_tokens}
        return {"usage": counts | {"total_tokens": self.prompt_tokens + new_tokens}}

    def _chat_logprobs(self, logprobs: list[TokenLogprob]) -> dict:
        def told(token: int, logprob: float) -> dict:
            text = self.spell(token)
            whole = None if "\ufffd" in text else list(text.encode())  # a part of a character has no text of its own
            return {"token": text, "logprob": logprob, "bytes": whole}

        content = [told(one.token, one.logprob) | {"top_logprobs": [told(*top) for top in one.top]} for one in logprobs]
        return {"content": content, "refusal": None}

    def _text_logprobs(self, logprobs: list[TokenLogprob]) -> dict:
        tokens, tops, offsets = [self.spell(one.token) for one in logprobs], [], []
        for one, text in zip(logprobs, tokens, strict=True):
            likely = {self.spell(token): p for token, p in reversed(one.top)}  # of two that look alike, the likelier
            tops.append(likely | {text: one.logprob})  # the emitted one is always there
            offsets.append(self.offset)
            self.offset += len(text)
        of_tokens = [one.logprob for one in logprobs]
        return {"tokens": tokens, "token_logprobs": of_tokens, "top_logprobs": tops, "text_offset": offsets}


def event(data: dict) -> bytes:
    """A server-sent event."""
    return f"data: {json.dumps(data)}\n\n".encode()
