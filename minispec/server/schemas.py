"""OpenAI's forms: what a body may ask for, which pydantic checks, and how answers and errors look.

A body is checked before any work is done for it. A field that we do not know, or cannot honour, is refused in words: a
client that asked for `tools` and silently got none would have to find out by itself. `null` means that a field was not
given, as in OpenAI's own API.
"""

import json
import time
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Iterator
from dataclasses import fields
from reprlib import repr as shortened
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..load.handle import Model
from ..output import TokenLogprob
from ..processors.constraint import guide_of
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
Nothing = Annotated[list, Field(max_length=0)]
TokenKey = Annotated[int, Field(ge=0, strict=False)]  # JSON has no keys but text


class Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def null_is_not_given(cls, form):
        return {name: x for name, x in form.items() if x is not None} if isinstance(form, dict) else form


class TextPart(Form, extra="ignore"):
    type: Literal["text"]
    text: str


class Message(Form, extra="ignore"):  # a name, a refusal, marks for caching
    role: Literal["system", "developer", "user", "assistant"]  # developer: OpenAI's newer name for system
    content: str | list[TextPart]  # parts, as clients write them that could send pictures, too
    tool_calls: Nothing = []


class StreamOptions(Form):
    include_usage: bool = False  # at the end of a stream, too
    continuous_usage_stats: bool = False  # and then in each of its chunks


class TextFormat(Form):
    type: Literal["text"]
    definition: ClassVar[None] = None


class ObjectFormat(Form):
    type: Literal["json_object"]
    definition: dict = Field({"type": "object"}, alias="schema")  # or another one, as clients of llama.cpp ask for


class NamedSchema(Form, extra="ignore"):  # clients add a name, a description, strict
    definition: dict = Field(alias="schema")


class SchemaFormat(Form):
    type: Literal["json_schema"]
    json_schema: NamedSchema

    @property
    def definition(self) -> dict:
        return self.json_schema.definition


class Ask(Form):
    """A body that was understood: what completions and chats have in common."""

    chat: ClassVar[bool]
    source: ClassVar[str]  # the field that the prompt comes from
    model: str
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_tokens: Count | None = None  # None: as many as fit
    max_completion_tokens: Count | None = None  # its newer name
    n: Annotated[int, Field(ge=1, le=128)] = 1
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] = ()
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: dict[TokenKey, Annotated[float, Field(ge=-100, le=100)]] = {}
    response_format: TextFormat | ObjectFormat | SchemaFormat = Field(TextFormat(type="text"), discriminator="type")
    # Beyond OpenAI's API, under vLLM's names.
    top_k: int = Field(0, ge=-1, lt=2**63)
    min_p: Share = 0.0
    min_tokens: Whole = 0
    ignore_eos: bool = False
    stop_token_ids: list[Whole] = Field([], max_length=64)
    repetition_penalty: float = 1.0
    # What changes nothing here, with the values for which that is true.
    user: str = ""
    safety_identifier: str = ""
    prompt_cache_key: str = ""
    metadata: dict[str, str] = {}
    store: Literal[False] = False
    service_tier: Literal["auto", "default"] = "auto"

    @property
    def most(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def sampling_params(self, prompt_tokens: int, longest: int) -> SamplingParams:
        """How to sample after a prompt of so many tokens, on a server where `longest` fit."""
        room, most = longest - prompt_tokens, self.most
        most = max(1, room) if most is None else most
        if most > room:
            asked = f"a prompt of {prompt_tokens} tokens and max_tokens={most} exceed the {longest} that fit here"
            raise ApiError(400, f"{asked}: shorten the prompt or ask for fewer", "context_length_exceeded", self.source)
        asked = {one.name: getattr(self, one.name) for one in fields(SamplingParams) if one.name in Ask.model_fields}
        asked |= {"max_new_tokens": max(1, most), "min_new_tokens": self.min_tokens, "top_k": max(0, self.top_k)}
        asked |= {"logprobs": self.num_logprobs, "json_schema": self.schema_of_output}
        try:
            return SamplingParams(**asked)
        except ValueError as error:
            raise ApiError(400, str(error), "invalid_value") from None

    @property
    def schema_of_output(self) -> dict | None:
        schema = self.response_format.definition
        if schema is not None and len(json.dumps(schema)) > LONGEST_SCHEMA:
            said = f"response_format: the schema has more than {LONGEST_SCHEMA} characters: give a shorter one"
            raise ApiError(400, said, "invalid_value", "response_format")
        return schema


class Completion(Ask):
    chat, source = False, "prompt"
    prompt: str | list[int] | Annotated[list[str | list[int]], Field(min_length=1)]  # or a batch of them
    max_tokens: Whole = 16  # OpenAI's default
    logprobs: TopLogprobs | None = None  # one number says whether, and how many
    echo: bool = False
    best_of: One = 1
    suffix: Literal[""] = ""

    @property
    def prompts(self) -> list[str | list[int]]:
        batch = isinstance(self.prompt, list) and self.prompt and not isinstance(self.prompt[0], int)
        return self.prompt if batch else [self.prompt]

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs


class Chat(Ask):
    chat, source = True, "messages"
    echo: ClassVar[bool] = False
    messages: list[Message] = Field(min_length=1)
    logprobs: bool = False
    top_logprobs: TopLogprobs = 0
    # What changes nothing where no tools are called.
    tools: Nothing = []
    tool_choice: Literal["none", "auto"] = "none"
    parallel_tool_calls: bool = False

    @property
    def prompts(self) -> list[list[dict[str, str]]]:
        texts = [m.content if isinstance(m.content, str) else "".join(p.text for p in m.content) for m in self.messages]
        roles = ["system" if m.role == "developer" else m.role for m in self.messages]
        return [[{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]]

    @property
    def num_logprobs(self) -> int | None:
        if self.top_logprobs and not self.logprobs:
            said = "top_logprobs come with logprobs: give logprobs=true, too"
            raise ApiError(400, said, "invalid_value", "top_logprobs")
        return self.top_logprobs if self.logprobs else None


REASONS = {name: "no tools are called here" for name in ("tools", "tool_choice")}
REASONS |= {"store": "nothing is stored here", "service_tier": "there is one tier", "best_of": "n are made, all sent"}


def read(form: type[Ask], raw: bytes) -> Ask:
    """What a body asks for; ApiError names the field that is wrong and what would do."""
    try:
        ask = form.model_validate_json(raw)
        if "stream_options" in ask.model_fields_set and not ask.stream:
            said = "stream_options come with stream: give stream=true, too, or leave them out"
            raise ApiError(400, said, "invalid_value", "stream_options")
        return ask
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
    why = f"{REASONS[name]}: " if name in REASONS else ""
    raise ApiError(400, f"{name}: {why}{'; or: '.join(said)}"[:1000], "invalid_value", name)


# ---- answers -------------------------------------------------------------------------------------------------------


class Answer:
    """What an Ask gets in return: a choice for each of its tickets, whole or part by part."""

    def __init__(self, ask: Ask, tickets: list, model: str, target: Model):
        kind = f"chat.completion{'.chunk' * ask.stream}" if ask.chat else "text_completion"
        id = f"{'chatcmpl' if ask.chat else 'cmpl'}-{tickets[0].id}"
        self.head = {"id": id, "object": kind, "created": int(time.time()), "model": model}
        self.ask, self.choices = ask, [Choice(ask, ticket, target) for ticket in tickets]
        self.prompt_tokens = sum(len(ticket.prompt) for ticket in tickets[:: ask.n])
        self.new_tokens = [0] * len(tickets)

    def choice(self, ticket, event) -> dict:
        """What is new of one of them."""
        self.new_tokens[ticket.index] = event.tokens
        return self.choices[ticket.index].part(event)

    @property
    def usage(self) -> dict:
        new_tokens = sum(self.new_tokens)
        counts = {"prompt_tokens": self.prompt_tokens, "completion_tokens": new_tokens}
        return {"usage": counts | {"total_tokens": self.prompt_tokens + new_tokens}}


class Choice:
    """One of an answer: its text so far, and the log-probabilities of the tokens in it.

    A token is listed with the part in which its text begins. What is cut off (an end token, a stop string) is not, so
    the tokens that are listed spell the text. Of a character that is split over tokens the last one has the text, and
    each has its own bytes.
    """

    def __init__(self, ask: Ask, ticket, target: Model):
        self.ask, self.ticket, self.target = ask, ticket, target
        self.begun, self.text, self.offset = False, "", 0  # of all parts, and where the next token begins in it
        self.waiting: deque[TokenLogprob] = deque()
        self.decoder = getincrementaldecoder("utf-8")("replace")
        if ask.num_logprobs is not None:
            self.special, self.guide = {*target.special_ids.values()}, guide_of(target)

    def part(self, event) -> dict:
        output, text, ask = event.output, event.text, self.ask
        if output and not ask.stream:
            text = output.text
        if ask.echo and not self.begun:
            text = self.opening + text
        said = {"text": text}
        if ask.chat:
            role = {} if self.begun else {"role": "assistant"}
            said = {"delta" if ask.stream else "message": role | {"content": text}}
        self.begun, self.text, logprobs = True, self.text + text, None
        if event.logprobs is not None:
            self.waiting.extend(event.logprobs)
        if ask.num_logprobs is not None:
            logprobs = self._chat_logprobs() if ask.chat else self._text_logprobs()
        ended = {"finish_reason": output and output.finish_reason, "stop_reason": output and output.stop_reason}
        return {"index": self.ticket.index, **said, "logprobs": logprobs, **ended}

    @property
    def opening(self) -> str:
        """The prompt as it was given, or what its tokens spell; their log-probabilities come before all others."""
        prompt = self.ask.prompts[self.ticket.index // self.ask.n]
        if self.ask.num_logprobs is not None:
            nothing = TokenLogprob(self.ticket.prompt[0], None, [])  # it follows nothing
            self.waiting.extend([nothing, *self.ticket.prompt_logprobs])
        if isinstance(prompt, str):
            return prompt
        return self.target.tokenizer.decode(prompt, skip_special_tokens=False)

    def _listed(self) -> Iterator[tuple[TokenLogprob, int]]:
        """The tokens whose text has begun by now, and where."""
        while self.waiting and self.offset < len(self.text):
            one, at = self.waiting.popleft(), self.offset
            yield one, at
            if one.token not in self.special:
                self.offset += len(self.decoder.decode(self.guide.decode_bytes([one.token])))
            elif self.text.startswith(name := self.target.spell(one.token), at):  # in a prompt
                self.offset += len(name)

    def _spell(self, token: int) -> tuple[str, list[int] | None]:
        """A token's text and its bytes; that of a part of a character where it stands. A special one has a name."""
        if token in self.special:
            return self.target.spell(token), None
        raw, state = self.guide.decode_bytes([token]), self.decoder.getstate()
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            text = self.decoder.decode(raw)
            self.decoder.setstate(state)
        return text, list(raw)

    def _chat_logprobs(self) -> dict:
        def told(token: int, logprob: float) -> dict:
            text, raw = self._spell(token)
            return {"token": text, "logprob": logprob, "bytes": raw}

        content = [
            told(one.token, one.logprob) | {"top_logprobs": [told(*top) for top in one.top]}
            for one, _ in self._listed()
        ]
        return {"content": content, "refusal": None}

    def _text_logprobs(self) -> dict:
        listed = dict(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for one, offset in self._listed():
            text, _ = self._spell(one.token)
            likely = {self._spell(token)[0]: p for token, p in reversed(one.top)}  # of two alike, the likelier
            top = None if one.logprob is None else likely | {text: one.logprob}  # the emitted one is always there
            for values, value in zip(listed.values(), (text, one.logprob, top, offset), strict=True):
                values.append(value)
        return listed


def event(data: dict) -> bytes:
    """A server-sent event."""
    return f"data: {json.dumps(data)}\n\n".encode()
