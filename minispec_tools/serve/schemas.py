"""OpenAI's forms: what a body may ask for, which pydantic checks, and how answers and errors look.

A body is checked before any work is done for it. A field that we do not know, or cannot honour, is refused in words: a
client that asked for `tools` and silently got none would have to find out by itself. `null` means that a field was not
given, as in OpenAI's own API.
"""

import json
import time
from codecs import utf_8_decode
from collections import deque
from collections.abc import Iterator
from dataclasses import fields
from reprlib import repr as shortened
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from minispec.load.model import Model
from minispec.output import TokenLogprob
from minispec.params import SamplingParams
from minispec.processors.constraint import guide_of


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


class ObjectFormat(Form):
    type: Literal["json_object"]
    definition: dict = Field({"type": "object"}, alias="schema")  # or another one, as clients of llama.cpp ask for


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
    constrain_after: Stop | None = None  # ours: vLLM sets it for a whole server, by --reasoning-parser
    # What changes nothing here, with the values for which that is true.
    user: str = ""
    metadata: dict[str, str] = {}
    store: Literal[False] = False
    service_tier: Literal["auto", "default"] = "auto"

    def sampling_params(self, prompt_tokens: int, longest: int) -> SamplingParams:
        """How to sample after a prompt of so many tokens, on a server where `longest` fit."""
        room, most = longest - prompt_tokens, self.max_completion_tokens or self.max_tokens
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
        form = self.response_format
        schema = getattr(getattr(form, "json_schema", form), "definition", None)
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
    best_of: Literal[1] = 1
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


REASONS = {"tools": "no tools are called here", "store": "nothing is stored here"}


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

    def part(self, index: int, event) -> dict:
        """What is new of one of them."""
        self.new_tokens[index] = event.tokens
        return self.choices[index].part(event)

    @property
    def usage(self) -> dict:
        new_tokens = sum(self.new_tokens)
        counts = {"prompt_tokens": self.prompt_tokens, "completion_tokens": new_tokens}
        return {"usage": counts | {"total_tokens": self.prompt_tokens + new_tokens}}


class Choice:
    """One of an answer: its text so far, and the log-probabilities of all tokens that were emitted for it.

    Joined tokens are the text, and so are joined bytes: each token is listed with the part that completes its text. Of
    a character that is split over tokens the last one has the text, and each its own bytes. What is cut off the text
    (an end token, a stop string) is missing from its tokens, too.
    """

    def __init__(self, ask: Ask, ticket, target: Model):
        self.ask, self.ticket, self.guide = ask, ticket, None if ask.num_logprobs is None else guide_of(target)
        self.begun, self.text = False, ""  # whether a part has been made, and the text of all parts
        self.waiting: deque[TokenLogprob] = deque()  # their text is not complete yet
        self.offset, self.pending = 0, b""  # where the next one begins, and bytes before it of a character not complete

    def part(self, event) -> dict:
        output, ask = event.output, self.ask
        text = output.text if output and not ask.stream else event.text
        if ask.echo and not self.begun:
            text = self.ticket.opening + text
            self.waiting.extend([TokenLogprob(self.ticket.prompt[0], None, []), *self.ticket.prompt_logprobs])
        said = {"text": text}
        if ask.chat:
            role = {} if self.begun else {"role": "assistant"}
            said = {"delta" if ask.stream else "message": role | {"content": text}}
        self.begun, self.text, logprobs = True, self.text + text, None
        if self.guide:
            self.waiting.extend(event.logprobs or [])
            listed = self._listed(ended=output is not None)
            logprobs = self._chat_logprobs(listed) if ask.chat else self._text_logprobs(listed)
        ended = {"finish_reason": output and output.finish_reason, "stop_reason": output and output.stop_reason}
        return {"index": self.ticket.index, **said, "logprobs": logprobs, **ended}

    def _listed(self, ended: bool) -> Iterator[tuple[TokenLogprob, str, list[int], int]]:
        """Tokens with their part of the text, their bytes, and where they begin."""
        while self.waiting:
            one, at = self.waiting[0], self.offset
            text, raw, pending = self._reads(one.token)
            if at + len(text) > len(self.text) and not ended:
                return
            said = self.text[at : at + len(text)]
            yield one, said, list(raw if said == text else said.encode()), at
            self.waiting.popleft()
            self.offset, self.pending = at + len(said), pending

    def _reads(self, token: int) -> tuple[str, bytes, bytes]:
        """What a token adds to the text, its bytes, and those of a character that is not complete after it."""
        raw = self.guide.decode_bytes([token])
        if self.guide.is_special_token(token):  # it has a name, which a prompt may show
            raw = raw if self.text.startswith(raw.decode(), self.offset) else b""
            return raw.decode(), raw, self.pending
        text, read = utf_8_decode(self.pending + raw, "replace")
        pending = (self.pending + raw)[read:]
        if text.startswith(" ") and not self.text.startswith(" ", self.offset):
            text = text[1:]  # some tokenizers drop the space that a text begins with
        return text, raw, pending

    def _beside(self, token: int) -> tuple[str, list[int] | None]:
        """Another token that was likely there: its text, or name, and its bytes."""
        raw = self.guide.decode_bytes([token])
        text = raw.decode(errors="replace")
        if "\ufffd" in text:
            text, _ = utf_8_decode(self.pending + raw, "replace")
        return text, None if self.guide.is_special_token(token) else list(raw)

    def _chat_logprobs(self, listed) -> dict:
        def told(text: str, raw: list[int] | None, logprob: float) -> dict:
            return {"token": text, "logprob": logprob, "bytes": raw}

        content = [
            told(text, raw, one.logprob) | {"top_logprobs": [told(*self._beside(token), p) for token, p in one.top]}
            for one, text, raw, _ in listed
        ]
        return {"content": content, "refusal": None}

    def _text_logprobs(self, listed) -> dict:
        rows = []
        for one, text, _, offset in listed:
            likely = {self._beside(token)[0]: p for token, p in reversed(one.top) if token != one.token}
            top = None if one.logprob is None else likely | {text: one.logprob}  # the emitted one is always there
            rows.append((text, one.logprob, top, offset))
        names = "tokens", "token_logprobs", "top_logprobs", "text_offset"
        return {name: [row[i] for row in rows] for i, name in enumerate(names)}


def event(data: dict) -> bytes:
    """A server-sent event."""
    return f"data: {json.dumps(data)}\n\n".encode()
