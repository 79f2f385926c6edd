"""The application: routes, limits and errors. What it does for a request, from its first byte to its last:

    key or host (401, 403) → body (415, 413, 408) → JSON, fields and tokens (400) → a place in the queue (429, 503)
    → events → answer

Nothing of a request is evaluated: prompts are data, and chat templates come with the model alone.
"""

import asyncio
import hmac
import json
import logging
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from minispec.generate import prompt_logprobs
from minispec.processors.constraint import guide_of
from minispec.serving.engine import Engine

from . import schemas
from .schemas import Answer, ApiError, Ask
from .service import Metrics, Service, Ticket

log = logging.getLogger("minispec_tools.serve")
PATIENCE = 30  # seconds for a body to arrive
LONGEST_TOKEN = 16  # characters, on average: a text with more for each token that fits is not tokenised at all
EVENTS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
# Without a key a request must name us by an address: a web page elsewhere can let a name of its own lead here.
ADDRESS = re.compile(r"(localhost|[\d.]+|\[[\da-f:.]+\])(:\d+)?", re.IGNORECASE)
BUG = "this request failed inside the server; others go on"


def make_app(
    engine: Engine, name: str | None = None, api_key: str | None = None, max_body: int = 2**20, max_waiting: int = 512
) -> Starlette:
    """A server of one engine, which is its own from now on. `name`: what clients call the model."""
    server = Server(engine, name or engine.target.name, api_key, max_body, max_waiting)
    routes = [
        Route("/v1/completions", partial(server.complete, schemas.Completion), methods=["POST"]),
        Route("/v1/chat/completions", partial(server.complete, schemas.Chat), methods=["POST"]),
        Route("/v1/models", server.models),
        Route("/v1/models/{id:path}", server.models),
        Route("/health", server.health),
        Route("/metrics", server.metrics),
    ]
    handlers = {ApiError: refused, HTTPException: not_found, ClientDisconnect: gone, Exception: failed}
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=server.lifespan)
    app.state.service = server.service
    return app


class Server:
    """What the routes share."""

    def __init__(self, engine: Engine, name: str, api_key: str | None, max_body: int, max_waiting: int):
        if engine.target.tokenizer is None:
            raise ValueError(f"{engine.target.name} has no tokenizer, and a server speaks text: serve another model")
        self.name, self.api_key, self.max_body, self.started = name, api_key, max_body, int(time.time())
        self.counted, self.target = Metrics(name), engine.target
        with suppress(Exception):  # now: it takes a second in which no other thread runs; who needs it is told
            guide_of(self.target)
        self.service = Service(engine, self.counted, max_waiting)

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.service.start()
        yield
        await self.service.stop()

    # ---- routes ----------------------------------------------------------------------------------------------------

    async def complete(self, form: type[Ask], request: Request) -> Response:
        self.admit(request)
        self.service.require_room()  # before any work
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            said = "send Content-Type: application/json (a web page elsewhere may not, unless a browser has asked us)"
            raise ApiError(415, said, "unsupported_media_type")
        ask = schemas.read(form, await self.read_body(request))
        self.require_model(ask.model)
        tickets, answer = await asyncio.to_thread(self.prepare, ask)
        self.service.submit(tickets)
        return Reply(self.service, tickets, answer)

    def require_model(self, name: str) -> None:
        if name != self.name:
            missing = f"there is no model {name[:100]!r} here: ask for {self.name!r}"
            raise ApiError(404, missing, "model_not_found", "model")

    def prepare(self, ask: Ask) -> tuple[list[Ticket], Answer]:
        """What takes a while (a long text, a schema), in a thread that is neither the event loop's nor the engine's. A
        token outside the vocabulary, a schema that is none: the client is told before it waits."""
        longest, most, prompts = self.service.longest, self.service.most, ask.prompts
        if len(prompts) * ask.n > most:
            raise ApiError(400, f"{len(prompts)} prompts with n={ask.n} are more than the {most} choices that fit here")
        for text in prompts:
            length = sum(len(m["content"]) for m in text) if ask.chat else len(text)
            if length > longest * (LONGEST_TOKEN if ask.chat or isinstance(text, str) else 1):
                said = f"{ask.source} is too long: {longest} tokens fit here, prompt and output together"
                raise ApiError(400, said, "context_length_exceeded", ask.source)
        try:
            encoded = [self.target.encode(text) for text in prompts]
        except ValueError as error:
            raise ApiError(400, str(error)[:1000], "invalid_value", ask.source) from None
        params = ask.sampling_params(max(map(len, encoded)), longest)
        tickets, events, scored = [], asyncio.Queue(), ask.echo and params.logprobs is not None
        try:
            for text, prompt in (pair for pair in zip(prompts, encoded, strict=True) for _ in range(ask.n)):
                index, pieces = len(tickets), []
                given = dict(params=params, index=index, stream=pieces.append if ask.stream else None)
                sequence = self.service.engine.sequence(prompt, **given) if ask.max_tokens != 0 else None
                scores = prompt_logprobs(self.target, prompt, params.logprobs) if scored else None
                opening = text if isinstance(text, str) else self.target.tokenizer.decode(prompt, False)
                tickets.append(Ticket(index, opening, prompt, sequence, pieces, events, scores))
            return tickets, Answer(ask, tickets, self.name, self.target)
        except ValueError as error:
            asked = next((name for name in ("logit_bias", "json_schema") if str(error).startswith(name)), None)
            named = {"json_schema": "response_format"}.get(asked, asked)
            raise ApiError(400, str(error)[:1000], "invalid_value", named) from None

    async def models(self, request: Request) -> Response:
        """All of them, or the one that is asked for: there is one."""
        self.admit(request)
        model = {"id": self.name, "object": "model", "created": self.started, "owned_by": "minispec"}
        model |= {"root": self.name, "max_model_len": self.service.longest}
        self.require_model(request.path_params.get("id", self.name))
        return as_json(model if request.path_params else {"object": "list", "data": [model]})

    async def health(self, request: Request) -> Response:
        """For a load balancer: whether it makes sense to send requests here."""
        self.service.require_life()
        return Response()

    async def metrics(self, request: Request) -> Response:
        self.admit(request)
        return Response(self.counted.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    # ---- limits ----------------------------------------------------------------------------------------------------

    def admit(self, request: Request) -> None:
        """Keys are compared in constant time: how long a wrong one takes must not say how much of it is right."""
        given = request.headers.get("authorization", "").removeprefix("Bearer ").encode("latin-1")  # bytes, as sent
        if self.api_key is not None and not hmac.compare_digest(given, self.api_key.encode("utf-8")):
            raise ApiError(401, "the API key is missing or wrong: send Authorization: Bearer KEY", "invalid_api_key")
        if self.api_key is None and not ADDRESS.fullmatch(request.headers.get("host", "")):
            said = "without a key this server is called by its IP address or as localhost: do so, or give it --api-key"
            raise ApiError(403, said, "foreign_host")

    async def read_body(self, request: Request) -> bytes:
        """The body, unless it is too long or takes too long. What is too long is read on for a while and thrown away:
        many clients look for an answer only when they have sent everything."""

        async def read() -> None:
            nonlocal size
            async for part in request.stream():
                size += len(part)
                if size <= self.max_body:
                    parts.append(part)
                elif size > 16 * self.max_body:
                    return

        parts, size = [], 0
        try:
            await asyncio.wait_for(read(), PATIENCE)
        except TimeoutError:
            raise ApiError(408, f"the body did not arrive within {PATIENCE} s: send it faster", "timeout") from None
        if size > self.max_body:
            raise ApiError(413, f"the body is longer than {self.max_body} bytes: send less", "request_too_large")
        return b"".join(parts)


class Reply(Response):
    """The answer to a request that the engine has got, made of as many choices as there are tickets. However it ends,
    the engine is told."""

    def __init__(self, service: Service, tickets: list[Ticket], answer: Answer):
        self.service, self.tickets, self.answer, self.background = service, tickets, answer, None

    async def __call__(self, scope, receive, send) -> None:
        watch = asyncio.create_task(self.watch(receive))
        try:
            response = await self.response()
            watch.cancel()  # from here on the response itself notices
            await response(scope, receive, send)
        finally:
            watch.cancel()
            self.service.abort(self.tickets)

    async def response(self) -> Response:
        """Made of all choices, or after the first part of one: until then an error can still be a status."""
        try:
            part, ended = await self.next_part()
            if self.answer.ask.stream:
                return StreamingResponse(self.events(part, ended), headers=EVENTS)
            choices = [part, *[(await self.next_part())[0] for _ in self.tickets[1:]]]
            choices.sort(key=lambda choice: choice["index"])
            return as_json(self.answer.head | {"choices": choices} | self.answer.usage)
        except ApiError as error:
            return await refused(None, error)

    async def watch(self, receive) -> None:
        """The client goes away, so its request ends; `next_part` then says so."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.service.abort(self.tickets)

    async def next_part(self) -> tuple[dict, bool]:
        """What is new of any choice, and whether it is its last part."""
        ticket, event = await self.tickets[0].events.get()
        if event.error is not None:
            log.error("a request failed: %r", event.error)
            raise ApiError(500, BUG, "internal_error")
        if event.output and event.output.finish_reason == "abort":  # the client is gone, or all have to go
            raise ApiError(503, "the server is shutting down: ask another one", "unavailable")
        return self.answer.part(ticket.index, event), event.output is not None

    async def events(self, part: dict, ended: bool) -> AsyncIterator[bytes]:
        """Server-sent events, one for each step that emitted tokens of a choice. A client that reads too slowly holds
        up nothing but this."""
        asked, going, head = self.answer.ask.stream_options, len(self.tickets), self.answer.head
        always = asked.include_usage and asked.continuous_usage_stats
        try:
            while True:
                yield schemas.event(head | {"choices": [part]} | (self.answer.usage if always else {}))
                going -= ended
                if not going:
                    break
                part, ended = await self.next_part()
            if asked.include_usage:  # OpenAI's form of what it came to
                yield schemas.event(head | {"choices": []} | self.answer.usage)
        except ApiError as error:
            yield schemas.event(error.body())
        yield b"data: [DONE]\n\n"


# ---- errors, all in OpenAI's form ----------------------------------------------------------------------------------


def as_json(data: dict, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(data).encode(), status, headers, media_type="application/json")


async def refused(request: Request | None, error: ApiError) -> Response:
    return as_json(error.body(), error.status, error.headers)


async def not_found(request: Request, error: HTTPException) -> Response:
    said = f"{request.method} {request.url.path[:100]}: {error.detail}; there are /v1/models, /v1/completions, "
    said += "/v1/chat/completions, /health and /metrics"
    return await refused(request, ApiError(error.status_code, said, headers=error.headers))


async def failed(request: Request, error: Exception) -> Response:
    """A bug: its traceback goes to our log and not to the client."""
    return await refused(request, ApiError(500, BUG, "internal_error"))


async def gone(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=499)  # nobody reads it
