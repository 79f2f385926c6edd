"""From a command line to a server: load, listen, and end in order.

SIGTERM and Ctrl-C: new requests get status 503, open ones have `--drain` seconds to end, the rest is aborted, and then
the port is closed. A second signal does not wait for any of that.
"""

import asyncio
import ipaddress
import json
import os
import shlex
import socket

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from minispec.drafters import by_name
from minispec.load.folder import load
from minispec.serving.engine import Engine

from .app import make_app

HEADERS = 10  # seconds for a request's headers: who sends them drop by drop must not keep a connection
BACKLOG = 128  # connections that the system keeps until they are accepted
ACCEPTED = 16  # that asyncio accepts in one go: what these ask is read before more come, so none is idle by mistake
CONNECTIONS = 1024  # at most; fewer where the system grants few file descriptors, of which 64 are for everything else


def serve(args) -> None:
    key = os.environ.get("MINISPEC_API_KEY") if args.api_key is None else args.api_key
    if key == "":
        raise ValueError("the API key is empty, so it would keep nobody out: give one (--api-key), or unset it")
    if args.draft and args.drafter not in ("model", "cascade"):
        raise ValueError(f"--draft {args.draft} is for --drafter model and cascade: give one of them, or leave it out")
    listener = listen(args.host, args.port)  # before a model is loaded for nothing
    target = load(args.model, device=args.device)
    drafter = by_name(args.drafter, target, args.draft) if args.drafter else None
    limits = args.num_blocks, args.block_size, args.max_num_seqs, args.max_num_batched_tokens
    engine = Engine(target, drafter, *limits, args.k, rule=args.rule)
    print(f"{engine!r}", flush=True)
    if args.warm_up:
        print(f"warm-up: {engine.warm_up():.1f} s", flush=True)
    app = make_app(engine, args.served_model_name, key, args.max_body * 1024, args.max_waiting)
    print(f"listening on {address(listener)}/v1 (Ctrl-C ends it); for example\n", flush=True)
    print(example(f"{address(listener)}/v1", args.served_model_name or args.model, key) + "\n", flush=True)
    if key is None and not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
        print("whoever reaches this port may use it: give --api-key", flush=True)
    make_server(app, args.drain).run([listener])


def listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        remedy = "give another port, or 0 for any free one"
        raise ValueError(f"--host {host} --port {port}: {error.strerror or error}; {remedy}") from None


def address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def example(url: str, model: str, key: str | None) -> str:
    """A request that works as it is printed; a key stays out of what a terminal keeps."""
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": 32}
    lines = f"curl {url}/completions", "-H 'Content-Type: application/json'", f"-d {shlex.quote(json.dumps(body))}"
    return " \\\n  ".join([*lines, *['-H "Authorization: Bearer $MINISPEC_API_KEY"'] * (key is not None)])


def most_connections() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return CONNECTIONS
    granted = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return min(CONNECTIONS, max(1, granted - ACCEPTED - 64)) if granted > 0 else CONNECTIONS  # −1: any number


class Connection(H11Protocol):
    """uvicorn's, but where there are too many, the oldest that is between requests makes room: so connections that say
    nothing cost those who ask neither an answer nor much time."""

    since, timer = 0.0, None  # runs while headers are on their way

    def connection_made(self, transport) -> None:
        super().connection_made(transport)
        self.since = self.loop.time()
        if len(self.connections) > most_connections():
            idle = [other for other in self.connections if other.conn.their_state is h11.IDLE]
            min(idle, key=lambda other: other.since).close()  # perhaps itself
        self.data_received(b"")

    def data_received(self, data: bytes) -> None:
        if data:
            super().data_received(data)
        waits = self.conn.their_state is h11.IDLE
        if waits and self.timer is None:
            self.timer = self.loop.call_later(HEADERS, self.close)
        elif self.timer and not waits:
            self.timer = self.timer.cancel()

    def close(self) -> None:
        self.connections.discard(self)
        self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self.timer = self.timer and self.timer.cancel()


class PatientServer(uvicorn.Server):
    """uvicorn, but a signal first drains the engine's queue, while the port still answers with 503."""

    def __init__(self, config: uvicorn.Config, drain: float):
        super().__init__(config)
        self.service, self.seconds, self.leaving = config.app.state.service, drain, None

    async def startup(self, sockets: list[socket.socket]) -> None:
        await super().startup(sockets)
        sockets[0].listen(BACKLOG)  # asyncio has asked for as few as it accepts in one go

    def handle_exit(self, sig, frame) -> None:
        """Called in the main thread, between any two of its instructions."""
        if self.leaving is None:
            self.leaving = asyncio.run_coroutine_threadsafe(self.leave(), self.service.loop)
        else:
            self.should_exit = self.force_exit = True

    async def leave(self) -> None:
        await self.service.drain(self.seconds)
        self.should_exit = True


def make_server(app: Starlette, drain: float = 10.0) -> PatientServer:
    config = uvicorn.Config(
        app,
        http=Connection,
        backlog=ACCEPTED,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=2**16,  # of headers
        timeout_graceful_shutdown=5,  # for readers that are slow even then
    )
    return PatientServer(config, drain)
