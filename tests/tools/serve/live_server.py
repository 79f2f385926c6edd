"""A real server on a loopback port whose engine a test can stop, step by step, and look into."""

import http.client
import json
import socket
import threading
import time
from contextlib import contextmanager
from functools import cache

import pytest
import torch

import minispec as ms
from minispec.serving.engine import Engine

pytest.importorskip("starlette", reason='the extra "serve" is not installed')
pytest.importorskip("uvicorn", reason='the extra "serve" is not installed')

from minispec_tools.serve.app import make_app
from minispec_tools.serve.process import address, listen, make_server

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
PATIENCE = 60  # seconds until a test gives up
PROMPT = "Once upon a time"


@cache
def target() -> ms.Model:
    """micro in float64, where batching changes no token; with a chat template."""
    model = ms.load("micro", dtype=torch.float64)
    return ms.Model("micro", model.transformer, model.tokenizer, model.end_tokens, TEMPLATE)


@cache
def expected(prompt: str, tokens: int) -> ms.Output:
    return ms.generate(target(), prompt, tokens)


def until(condition, what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.005)


class Gate:
    """Lets an engine's steps through one by one, so that a test knows what has happened when."""

    def __init__(self, engine: Engine):
        self.permits, self.engine, self.step = threading.Semaphore(0), engine, engine.step
        self.waiting = threading.Event()  # the engine's thread is at the gate
        self.steps, self.is_open = 0, True
        engine.step = self._step

    def _step(self):
        if not self.is_open:
            self.waiting.set()
            self.permits.acquire()
            self.waiting.clear()
        record = self.step()
        self.steps += 1
        return record

    def close(self) -> None:
        self.is_open = False

    def wait(self) -> None:
        until(self.waiting.is_set, "the engine is at the gate")

    def let_through(self, steps: int = 1) -> None:
        """So many steps; returns when they are done, though the engine may still be on its way to the next."""
        for _ in range(steps):
            self.wait()
            before = self.steps
            self.waiting.clear()
            self.permits.release()
            until(lambda before=before: self.steps > before, "a step is done")

    def open(self) -> None:
        self.is_open = True
        self.permits.release()


class Running:
    """A server in a thread of this process: real HTTP, and its engine in reach."""

    def __init__(self, engine: Engine, **options):
        self.engine, self.gate = engine, Gate(engine)
        self.app = make_app(engine, **options)
        self.service = self.app.state.service
        self.listener = listen("127.0.0.1", 0)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # so that a slow reader is felt
        self.url, self.port = address(self.listener), self.listener.getsockname()[1]
        self.server = make_server(self.app)
        self.thread = threading.Thread(target=self.server.run, args=([self.listener],), daemon=True)
        self.thread.start()
        until(lambda: self.server.started, "the server has started")

    def request(self, method: str, path: str, body=None, headers=()) -> tuple[int, dict, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            content = body if isinstance(body, (bytes, type(None))) else json.dumps(body)
            connection.request(method, path, content, {"Content-Type": "application/json"} | dict(headers))
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def call(self, method: str, path: str, body=None, headers=()) -> tuple[int, dict]:
        status, _, content = self.request(method, path, body, headers)
        return status, json.loads(content)

    def post(self, body, path: str = "/v1/completions", **headers) -> tuple[int, dict]:
        return self.call("POST", path, body, headers)

    def text(self, body: dict) -> str:
        """The text of a completion that has to succeed."""
        status, answer = self.post(body)
        assert status == 200, answer
        return answer["choices"][0]["text"]

    def later(self, body) -> list:
        """The same in a thread; the answer appears in the list."""
        found: list = []
        threading.Thread(target=lambda: found.append(self.post(body)), daemon=True).start()
        return found

    def connect(self, body: dict) -> socket.socket:
        """A request on a bare socket, for clients that behave badly."""
        content = json.dumps(body).encode()
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", self.port))
        client.settimeout(PATIENCE)
        client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(content) + content)
        return client

    def metric(self, name: str, **labels) -> float:
        value = self.service.metrics.registry.get_sample_value(f"vllm:{name}", {"model_name": "micro"} | labels)
        return 0.0 if value is None else value

    def assert_all_free(self) -> None:
        until(lambda: not self.service.open, "all requests have ended")
        assert self.engine.pool.num_used == 0 and not self.engine.sequences and not self.service.tickets
        assert not self.engine.outputs
        self.engine.check_integrity()

    def close(self) -> None:
        self.gate.open()
        self.server.should_exit = True
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive() and not self.service.thread.is_alive()


@contextmanager
def running(num_blocks: int = 256, max_num_seqs: int = 8, drafter=None, fast: bool | None = None, **options):
    server = Running(Engine(target(), drafter, num_blocks, max_num_seqs=max_num_seqs, k=4, fast=fast), **options)
    try:
        yield server
    finally:
        server.close()


def ask(prompt=PROMPT, max_tokens: int = 12, **fields) -> dict:
    return {"model": "micro", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0} | fields


def assert_error(answer: tuple[int, dict], status: int) -> dict:
    """The error in an answer, which has OpenAI's form and shows no traceback."""
    assert answer[0] == status, answer
    assert answer[1].keys() == {"error"} and answer[1]["error"].keys() == {"message", "type", "param", "code"}
    assert answer[1]["error"]["message"] and "Traceback" not in answer[1]["error"]["message"]
    return answer[1]["error"]
