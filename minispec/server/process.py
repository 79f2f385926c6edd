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

import uvicorn
from starlette.applications import Starlette

from ..drafters import by_name
from ..load.folder import load
from ..serving.engine import Engine
from .app import make_app

BACKLOG = 128  # connections that the system keeps until they are accepted


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
    engine = Engine(target, drafter, *limits, args.k)
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


class PatientServer(uvicorn.Server):
    """uvicorn, but a signal first drains the engine's queue, while the port still answers with 503."""

    def __init__(self, config: uvicorn.Config, drain: float):
        super().__init__(config)
        self.service, self.seconds, self.leaving = config.app.state.service, drain, None

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
        http="h11",
        backlog=BACKLOG,
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
