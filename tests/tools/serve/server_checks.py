"""A real server on a loopback port, and checks of it that test_server.py runs."""

import asyncio
import http.client
import json
import socket
import threading
import time
from contextlib import contextmanager, suppress
from functools import cache
from random import Random

import pytest
import torch

import minispec as ms
from minispec.serving.engine import Engine
from minispec_tools.bench.client import Endpoint

pytest.importorskip("starlette", reason='the extra "serve" is not installed')
pytest.importorskip("uvicorn", reason='the extra "serve" is not installed')

from minispec_tools.serve.app import make_app
from minispec_tools.serve.process import address, listen, make_server

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
PATIENCE = 60  # seconds until a test gives up


@cache
def target() -> ms.Model:
    """micro in float64, where batching changes no token; with a chat template."""
    model = ms.load("micro", dtype=torch.float64)
    return ms.Model("micro", model.transformer, model.tokenizer, model.end_tokens, TEMPLATE)


@cache
def expected(prompt: str, tokens: int) -> ms.Output:
    return ms.generate(target(), prompt, tokens)


def until(true, what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
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

    def post(self, body, path: str = "/v1/completions", **headers) -> tuple[int, dict]:
        status, _, said = self.request("POST", path, body, headers)
        return status, json.loads(said)

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


def ask(prompt="Once upon a time", max_tokens: int = 12, **fields) -> dict:
    return {"model": "micro", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0} | fields


def assert_error(answer: tuple[int, dict], status: int) -> dict:
    """OpenAI's form."""
    assert answer[0] == status, answer
    assert answer[1].keys() == {"error"} and answer[1]["error"].keys() == {"message", "type", "param", "code"}
    assert answer[1]["error"]["message"] and "Traceback" not in answer[1]["error"]["message"]
    return answer[1]["error"]


# ---- checks --------------------------------------------------------------------------------------------------------


def check_answers() -> None:
    """Text, reason and usage of a completion are those of `generate`, as our own client reads them."""
    with running() as server:
        right = expected("Once upon a time", 12)
        answer = asyncio.run(Endpoint(server.url).complete(ask()))
        assert (answer.text, answer.finish, answer.tokens, answer.prompt_tokens) == (right.text, "length", 12, 4)
        assert len(answer.arrivals) > 6, "it was not streamed"


def check_processors() -> None:
    """What depends on the prefix, as OpenAI spells it: the answers are those of `generate`, with and without drafts."""
    banned = expected("Once upon a time", 12).tokens[0]
    asked = dict(presence_penalty=1.5, frequency_penalty=0.5, logit_bias={str(banned): -100}, repetition_penalty=1.2)
    right = ms.generate(target(), "Once upon a time", 12, **asked | {"logit_bias": {banned: -100.0}})
    assert banned not in right.tokens
    for drafter in (None, ms.drafters.NGram()):
        with running(drafter=drafter) as server:
            status, body = server.post(ask(**asked, user="a", n=1, response_format={"type": "text"}))
            assert (status, body["choices"][0]["text"]) == (200, right.text)
            assert assert_error(server.post(ask(logit_bias={"2048": 1})), 400)["param"] == "logit_bias"


def check_first_part() -> None:
    """The first token is with the client after one step, while the second step has not begun."""
    with running() as server:
        server.gate.close()
        client = server.connect(ask(stream=True))
        server.gate.let_through(1)
        content = b""
        while b"data: " not in content:
            content += client.recv(1000)
        assert server.gate.steps == 1
        client.close()


def check_vanished_client() -> None:
    """A client goes away in mid-stream: one step later its blocks are free, without a further one."""
    with running() as server:
        server.gate.close()
        client = server.connect(ask(max_tokens=200, stream=True))
        server.gate.let_through(3)
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        assert server.engine.pool.num_used > 0
        server.gate.wait()  # or it would take the abort out of its inbox before anybody has seen it there
        client.close()
        until(lambda: server.service.inbox.qsize() == 1, "the server has noticed")
        server.gate.let_through(1)
        until(lambda: server.engine.pool.num_used == 0, "its blocks are free")
        assert server.gate.steps == 4
        server.assert_all_free()


def check_vanished_before_the_first_token() -> None:
    """The same without a stream, and for a request that still waits in the queue."""
    with running(max_num_seqs=1) as server:
        server.gate.close()
        clients = [server.connect(ask(max_tokens=200)), server.connect(ask(max_tokens=200, stream=True))]
        server.gate.wait()
        inbox, jobs = server.service.inbox, server.engine.sequences
        until(lambda: inbox.qsize() + len(jobs) == 2, "both are there")
        known = inbox.qsize()  # the second may have come while the engine was on its way to the gate
        for client in clients:
            client.close()
        until(lambda: inbox.qsize() == known + 2, "the server has noticed")
        server.gate.let_through(1)
        until(lambda: server.engine.pool.num_used == 0 and not server.engine.sequences, "their blocks are free")
        assert server.gate.steps == 1
        server.assert_all_free()


def check_full_queue() -> None:
    """One runs, one waits, the third is told to come again; the first two get their answers."""
    with running(max_num_seqs=1, max_waiting=1) as server:
        server.gate.close()
        two = [server.later(ask()), server.later(ask())]
        until(lambda: len(server.service.open) == 2, "both are there")
        status, headers, said = server.request("POST", "/v1/completions", ask())
        assert_error((status, json.loads(said)), 429)
        assert int(headers["retry-after"]) > 0
        server.gate.open()
        until(lambda: all(two), "both have answers")
        assert all(
            found[0][0] == 200 and found[0][1]["choices"][0]["text"] == expected("Once upon a time", 12).text
            for found in two
        )
        assert server.post(ask())[0] == 200
        server.assert_all_free()


def check_drain() -> None:
    """Shutting down: new requests get 503, open ones end; those that take too long are told so."""
    for seconds, status in ((PATIENCE, 200), (0, 503)):
        with running() as server:
            server.gate.close()
            found = server.later(ask())
            until(server.gate.waiting.is_set, "it runs")
            asyncio.run_coroutine_threadsafe(server.service.drain(seconds), server.service.loop)
            until(lambda server=server: server.service.draining, "it drains")
            assert_error(server.post(ask()), 503)
            assert server.request("GET", "/health")[0] == 503
            server.gate.open()
            until(lambda found=found: found, "it has an answer")
            assert found[0][0] == status
            server.assert_all_free()


def check_slow_reader() -> None:
    """A client that reads nothing holds up neither the engine nor the others, and finds all of its answer later."""
    with running() as server:
        client = server.connect(ask(max_tokens=90, stream=True, ignore_eos=True, logprobs=20))  # parts of a kilobyte
        until(lambda: server.engine.sequences, "it runs")
        for _ in range(3):
            assert server.post(ask())[0] == 200
        server.assert_all_free()  # its request has ended, too
        content = b""
        while b"[DONE]" not in content:
            content += (part := client.recv(2**16))
            assert part, "the stream ended early"
        client.close()
        assert len(content) > 2**16, "too little to fill the buffers on the way"
        lines = [line[6:] for line in content.split(b"\n") if line.startswith(b"data: {")]
        right = ms.generate(target(), "Once upon a time", 90, ignore_eos=True)
        assert "".join(json.loads(line)["choices"][0]["text"] for line in lines) == right.text


def check_one_fails() -> None:
    """An exception in one request is that request's 500; an exception in a step ends what is open, and no more."""
    with running() as server:
        verify = server.engine.runner.verify

        def broken(turns):
            if any(turn.sequence.max_new_tokens == 13 and turn.sequence.num_tokens > 6 for turn in turns):
                raise ZeroDivisionError("secret")
            verify(turns)

        server.engine.runner.verify = broken
        server.gate.close()
        good, bad = server.later(ask()), server.later(ask(max_tokens=13))
        until(lambda: len(server.service.open) == 2, "both are there")
        server.gate.open()
        until(lambda: good and bad, "both have answers")
        assert "secret" not in assert_error(bad[0], 500)["message"]
        assert good[0][1]["choices"][0]["text"] == expected("Once upon a time", 12).text
        said = server.request("POST", "/v1/completions", ask(max_tokens=13, stream=True))[2]
        *_, error, done, _ = said.split(b"\n\n")
        assert b'"internal_error"' in error and b"secret" not in error and done == b"data: [DONE]"
        server.engine.runner.verify = verify

        step = server.gate.step
        server.gate.step = lambda: 1 / 0
        assert_error(server.post(ask()), 500)
        server.gate.step = step
        assert server.post(ask())[1]["choices"][0]["text"] == expected("Once upon a time", 12).text
        server.assert_all_free()


def check_dead_engine() -> None:
    """Where the engine's thread has ended, nobody waits for it."""
    with running() as server:
        server.service.inbox.put(lambda: setattr(server.service, "stopped", True))
        until(lambda: not server.service.thread.is_alive(), "it has ended")
        assert_error(server.post(ask()), 503)
        assert server.request("GET", "/health")[0] == 503


def check_metrics() -> None:
    """What is counted is what happened."""
    draft = ms.load("micro-draft", dtype=torch.float64)
    with running(drafter=ms.drafters.Model(draft)) as server:
        prompt = "The old dog was tired. " * 8
        length = len(target().encode(prompt))
        for _ in range(3):
            assert server.post(ask(prompt, 9))[0] == 200
        server.connect(ask(prompt, 400, ignore_eos=True)).close()
        until(lambda: server.metric("request_success_total", finished_reason="abort") == 1, "the last one has ended")
        server.assert_all_free()
        cached = (length - 1) // 16 * 16
        assert cached >= 32
        assert server.metric("request_success_total", finished_reason="length") == 3
        assert server.metric("prefix_cache_hits_total") in (2 * cached, 3 * cached)  # the last may never have run
        assert server.metric("prefix_cache_queries_total") in (3 * length, 4 * length)
        assert server.metric("e2e_request_latency_seconds_count") == 3
        assert server.metric("request_time_per_output_token_seconds_count") == 3
        assert server.metric("time_to_first_token_seconds_count") in (3, 4)
        tokens = server.engine.measured.totals["emitted"]
        assert server.metric("generation_tokens_total") == tokens >= 27
        drafted, accepted = (server.metric(f"spec_decode_num_{name}_tokens_total") for name in ("draft", "accepted"))
        totals = server.engine.measured.totals
        assert (drafted, accepted) == (totals["drafted"], totals["accepted"]) and accepted > 0
        at = [server.metric("spec_decode_num_accepted_tokens_per_pos_total", position=str(i)) for i in range(4)]
        assert sum(at) == accepted and at == sorted(at, reverse=True)
        steps = server.metric("inter_token_latency_seconds_count")
        assert 3 <= steps < tokens - 3, "several tokens per step are one latency"
        for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert server.metric(gauge) == 0
        assert b"vllm:num_requests_running" in server.request("GET", "/metrics")[2]


def check_key() -> None:
    with running(api_key="sesame-ö") as server:
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer "}, {"Authorization": "sesame"}):
            assert_error(server.post(ask(), **given), 401)
            assert server.request("GET", "/v1/models", None, given)[0] == 401
            assert server.request("GET", "/metrics", None, given)[0] == 401
        right = {"Authorization": "Bearer sesame-ö".encode()}
        assert server.request("POST", "/v1/completions", ask(), right | {"Host": "serving.example"})[0] == 200
        assert server.request("GET", "/health")[0] == 200


def check_foreign_pages() -> None:
    """What a web page elsewhere can make a browser send, blindly or through a name that leads here, is refused."""
    with running() as server:
        for kind in ("text/plain", "", "application/x-www-form-urlencoded", "text/plain; application/json"):
            assert_error(server.post(ask(), **{"Content-Type": kind}), 415)
        for host in ("evil.example", "127.0.0.1.evil.example:80", "localhost.evil.example", "", "[::1].evil.example"):
            assert_error(server.post(ask(), Host=host), 403)
            assert server.request("GET", "/v1/models", None, {"Host": host})[0] == 403
        for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000", "[fe80::1]", "192.168.0.9:8000"):
            assert server.post(ask(max_tokens=1), Host=host)[0] == 200
        assert server.request("OPTIONS", "/v1/completions")[0] == 405  # a browser's question gets no permission


def check_crowd(clients: int = 24, tokens: int = 24, max_num_seqs: int = 16, seed: int = 0, **engine) -> int:
    """Many clients at once, a third of which vanish at random moments: every answer is right, and all is free after.
    Returns how many passes were launched ahead."""
    random, prompts = Random(seed), ["Once upon a time", "The old dog was tired.", "It was raining, and the children"]
    plans = [(random.choice(prompts) + " and" * random.randrange(4), random.randint(2, tokens)) for _ in range(clients)]
    leaving = random.sample(range(clients), clients // 3)
    leaves = {i: (random.randint(1, plans[i][1] - 1), random.uniform(0, 3)) for i in leaving}

    async def leave(endpoint: Endpoint, body: dict, parts: int, seconds: float) -> None:
        """Go after so many parts of the answer, or seconds, whichever comes first."""
        stream = endpoint.stream(body)

        async def read() -> None:
            for _ in range(parts):
                await anext(stream, None)

        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(read(), seconds)
        await stream.aclose()

    async def crowd(endpoint: Endpoint) -> list:
        bodies = [ask(*plan) for plan in plans]
        jobs = [
            leave(endpoint, body, *leaves[i]) if i in leaves else endpoint.complete(body)
            for i, body in enumerate(bodies)
        ]
        return await asyncio.gather(*jobs)

    with running(num_blocks=max_num_seqs + 4, max_num_seqs=max_num_seqs, **engine) as server:  # too few for all of them
        answers = asyncio.run(crowd(Endpoint(server.url)))
        server.assert_all_free()
        for i, (plan, answer) in enumerate(zip(plans, answers, strict=True)):
            if i not in leaves:
                right = expected(*plan)
                wanted = (None, right.text, len(right.tokens), right.finish_reason)
                assert (answer.error, answer.text, answer.tokens, answer.finish) == wanted
        totals = server.engine.measured
        assert totals.totals["requests"] == sum(totals.finished.values()) <= clients
        assert totals.finished["length"] + totals.finished["stop"] >= clients - len(leaves)
        assert totals.finished["abort"] > 0 and totals.totals["preemptions"] > 0
        return server.engine.runner.launched


CHECKS = {name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")}
