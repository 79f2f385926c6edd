"""The server as its clients meet it: answers, vanishing and slow clients, full queues, failures, limits and signals."""

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from random import Random
from threading import current_thread

import pytest
import torch
from live_server import HEAD, PATIENCE, PROMPT, ask, assert_error, expected, running, target, until

import minispec as ms
from minispec.drafters import by_name
from minispec.processors import prefix
from minispec_tools.bench.client import Endpoint
from minispec_tools.cli import main
from minispec_tools.serve import app, process

# ---------------------------------------------------------------- answers


def test_the_first_token_is_sent_before_the_second_step():
    with running() as server:
        server.gate.close()
        client = server.connect(ask(stream=True))
        server.gate.let_through(1)
        content = b""
        while b"data: " not in content:
            content += client.recv(1000)
        assert server.gate.steps == 1
        client.close()


def test_metrics_count_what_happened():
    draft = ms.load("micro-draft", dtype=torch.float64)
    with running(drafter=ms.drafters.Model(draft)) as server:
        prompt, metric = "The old dog was tired. " * 8, server.metric
        length = len(target().encode(prompt))
        for _ in range(3):
            assert server.post(ask(prompt, 9))[0] == 200
        server.connect(ask(prompt, 400, ignore_eos=True)).close()
        until(lambda: metric("request_success_total", finished_reason="abort") == 1, "the last one has ended")
        server.assert_all_free()
        cached = (length - 1) // 16 * 16
        assert cached >= 32
        assert metric("request_success_total", finished_reason="length") == 3
        assert metric("prefix_cache_hits_total") in (2 * cached, 3 * cached)  # the last may never have run
        assert metric("prefix_cache_queries_total") in (3 * length, 4 * length)
        assert metric("time_to_first_token_seconds_count") in (3, 4)
        assert metric("e2e_request_latency_seconds_count") == 3
        assert metric("request_time_per_output_token_seconds_count") == 3
        totals = server.engine.measured.totals
        assert metric("generation_tokens_total") == totals["emitted"] >= 27
        drafted, accepted = (metric(f"spec_decode_num_{name}_tokens_total") for name in ("draft", "accepted"))
        assert (drafted, accepted) == (totals["drafted"], totals["accepted"]) and accepted > 0
        at = [metric("spec_decode_num_accepted_tokens_per_pos_total", position=str(i)) for i in range(4)]
        assert sum(at) == accepted and at == sorted(at, reverse=True)
        steps = metric("inter_token_latency_seconds_count")
        assert 3 <= steps < totals["emitted"] - 3, "several tokens per step are one latency"
        for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert metric(gauge) == 0
        assert b"vllm:num_requests_running" in server.request("GET", "/metrics")[2]


# ---------------------------------------------------------------- clients that vanish, or read slowly


def test_the_blocks_of_a_client_that_vanishes_are_free_one_step_later():
    with running() as server:
        server.gate.close()
        client = server.connect(ask(max_tokens=200, stream=True))
        server.gate.let_through(3)
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        assert server.engine.pool.num_used > 0
        server.gate.wait()  # or it would take the abort out of its inbox before it can be seen there
        client.close()
        until(lambda: server.service.inbox.qsize() == 1, "the server has noticed")
        server.gate.let_through(1)
        until(lambda: server.engine.pool.num_used == 0, "its blocks are free")
        assert server.gate.steps == 4
        server.assert_all_free()


def test_clients_that_vanish_before_their_first_token_take_all_their_choices_with_them():
    """One without a stream, and one whose request still waits in the queue."""
    with running(max_num_seqs=1) as server:
        server.gate.close()
        clients = [server.connect(ask(max_tokens=200, **more)) for more in ({"n": 2}, {"stream": True})]
        server.gate.wait()
        inbox, sequences = server.service.inbox, server.engine.sequences
        until(lambda: inbox.qsize() + len(sequences) == 3, "all choices are there")
        known = inbox.qsize()  # some may have come while the engine was on its way to the gate
        for client in clients:
            client.close()
        until(lambda: inbox.qsize() == known + 3, "the server has noticed")
        server.gate.let_through(1)
        until(lambda: server.engine.pool.num_used == 0 and not sequences, "their blocks are free")
        assert server.gate.steps == 1
        server.assert_all_free()


def test_a_client_that_vanishes_while_its_prompt_is_scored(monkeypatch):
    with running() as server:
        endless = iter(lambda: until(lambda: not server.service.inbox.empty(), "there is something to do") or [], None)
        monkeypatch.setattr(app, "prompt_logprobs", lambda *_: endless)
        client = server.connect(ask(n=2, echo=True, logprobs=1))
        until(lambda: server.service.scoring, "it is scored")
        client.close()
        server.assert_all_free()


@pytest.mark.slow
def test_a_slow_reader_delays_nobody_and_gets_all_of_its_answer():
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
        right = ms.generate(target(), PROMPT, 90, ignore_eos=True)
        assert "".join(json.loads(line)["choices"][0]["text"] for line in lines) == right.text


async def leave(endpoint: Endpoint, body: dict, parts: int, seconds: float) -> None:
    """Go away after so many parts of the answer, or seconds, whichever comes first."""
    stream = endpoint.stream(body)

    async def read() -> None:
        for _ in range(parts):
            await anext(stream, None)

    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(read(), seconds)
    await stream.aclose()


def check_crowd(clients: int = 24, tokens: int = 24, max_num_seqs: int = 16, **engine) -> int:
    """Many clients at once, a third of which vanish at random moments: every answer is right, and all is free after.
    Returns how many passes were launched ahead."""
    random, prompts = Random(0), [PROMPT, "The old dog was tired.", "It was raining, and the children"]
    plans = [(random.choice(prompts) + " and" * random.randrange(4), random.randint(2, tokens)) for _ in range(clients)]
    leaving = random.sample(range(clients), clients // 3)
    leaves = {i: (random.randint(1, plans[i][1] - 1), random.uniform(0, 3)) for i in leaving}

    def client(endpoint: Endpoint, i: int):
        body = ask(*plans[i])
        return leave(endpoint, body, *leaves[i]) if i in leaves else endpoint.complete(body)

    async def crowd(endpoint: Endpoint) -> list:
        return await asyncio.gather(*(client(endpoint, i) for i in range(clients)))

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


@pytest.mark.slow
def test_a_crowd_gets_the_right_answers_while_others_leave():
    check_crowd()


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["eagle", pytest.param(None, marks=pytest.mark.nightly)])
def test_a_crowd_while_passes_are_launched_ahead(drafter):
    """As on a GPU: what was launched for a client that has gone is discarded."""
    drafter = drafter and by_name(drafter, target())
    assert check_crowd(tokens=40, max_num_seqs=8, fast=True, drafter=drafter) > 0 or not drafter


# ---------------------------------------------------------------- full queues, failures, the end


def test_a_full_queue_refuses_the_next_request():
    """It counts choices: one runs, two wait, and the next is told to come again. The first three get their answers."""
    with running(max_num_seqs=1, max_waiting=2) as server:
        assert_error(server.post(ask(n=4)), 400)  # more than can ever fit
        server.gate.close()
        open_requests = [server.later(ask(n=2)), server.later(ask())]
        until(lambda: len(server.service.open) == 3, "all choices are there")
        status, headers, content = server.request("POST", "/v1/completions", ask())
        assert_error((status, json.loads(content)), 429)
        assert int(headers["retry-after"]) > 0
        server.gate.open()
        until(lambda: all(open_requests), "both have answers")
        for [(status, answer)] in open_requests:
            assert status == 200 and {choice["text"] for choice in answer["choices"]} == {expected(PROMPT, 12).text}
        assert server.post(ask())[0] == 200
        server.assert_all_free()


def test_an_exception_in_one_request_ends_that_request_alone():
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
        assert good[0][1]["choices"][0]["text"] == expected(PROMPT, 12).text
        content = server.request("POST", "/v1/completions", ask(max_tokens=13, stream=True))[2]
        *_, error, done, _ = content.split(b"\n\n")
        assert b'"internal_error"' in error and b"secret" not in error and done == b"data: [DONE]"
        server.assert_all_free()


def test_an_exception_while_a_prompt_is_scored_ends_that_request_alone(monkeypatch):
    def broken(*_):
        raise RuntimeError("secret")
        yield

    monkeypatch.setattr(app, "prompt_logprobs", broken)
    with running() as server:
        assert "secret" not in assert_error(server.post(ask(n=2, echo=True, logprobs=1)), 500)["message"]
        assert server.text(ask()) == expected(PROMPT, 12).text
        server.assert_all_free()


def test_an_exception_in_a_step_ends_what_is_open_and_no_more():
    with running() as server:
        step, server.gate.step = server.gate.step, lambda: 1 / 0
        assert_error(server.post(ask()), 500)
        server.gate.step = step
        assert server.text(ask()) == expected(PROMPT, 12).text
        server.assert_all_free()


def test_requests_are_refused_once_the_engines_thread_has_ended():
    with running() as server:
        server.service.inbox.put(lambda: setattr(server.service, "stopped", True))
        until(lambda: not server.service.thread.is_alive(), "it has ended")
        assert_error(server.post(ask()), 503)
        assert server.request("GET", "/health")[0] == 503


@pytest.mark.parametrize("seconds, status", [(PATIENCE, 200), (0, 503)])
def test_a_draining_server_refuses_new_requests_and_ends_open_ones(seconds, status):
    """Those that take longer than the given seconds are told so."""
    with running() as server:
        server.gate.close()
        found = server.later(ask())
        server.gate.wait()
        asyncio.run_coroutine_threadsafe(server.service.drain(seconds), server.service.loop)
        until(lambda: server.service.draining, "it drains")
        assert_error(server.post(ask()), 503)
        assert server.request("GET", "/health")[0] == 503
        server.gate.open()
        until(lambda: found, "it has an answer")
        assert found[0][0] == status
        server.assert_all_free()


@pytest.mark.slow
@pytest.mark.parametrize("drain", ["60", pytest.param("0.001", marks=pytest.mark.nightly)])
def test_sigterm_ends_open_requests_and_then_the_process(drain):
    command = [sys.executable, "-m", "minispec_tools", "serve", "--port", "0", "--drain", drain]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    try:
        said = next(line for line in server.stdout if line.startswith("listening on"))
        connection = http.client.HTTPConnection(said.split()[2].split("/")[2], timeout=60)
        body = json.dumps(ask(max_tokens=300, stream=True, ignore_eos=True))
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.readline()
        server.send_signal(signal.SIGTERM)
        events = [line[6:] for line in answer.read().split(b"\n") if line.startswith(b"data: ")]
        assert events[-1] == b"[DONE]"
        last = json.loads(events[-2])
        if drain == "60":
            assert last["choices"][0]["finish_reason"] == "length"
        else:
            assert last["error"]["code"] == "unavailable"
        assert server.wait(30) == 0
    finally:
        server.kill()
        server.wait()


# ---------------------------------------------------------------- keys and limits


def test_a_server_with_a_key_answers_nobody_else():
    with running(api_key="sesame-ö") as server:
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer "}, {"Authorization": "sesame"}):
            assert_error(server.post(ask(), **given), 401)
            assert server.request("GET", "/v1/models", None, given)[0] == 401
            assert server.request("GET", "/metrics", None, given)[0] == 401
        right = {"Authorization": "Bearer sesame-ö".encode()}
        assert server.request("POST", "/v1/completions", ask(), right | {"Host": "serving.example"})[0] == 200
        assert server.request("GET", "/health")[0] == 200


def test_what_a_foreign_web_page_can_make_a_browser_send_is_refused():
    """Blindly, or through a host name of its own that leads here."""
    with running() as server:
        for kind in ("text/plain", "", "application/x-www-form-urlencoded", "text/plain; application/json"):
            assert_error(server.post(ask(), **{"Content-Type": kind}), 415)
        for host in ("evil.example", "127.0.0.1.evil.example:80", "localhost.evil.example", "", "[::1].evil.example"):
            assert_error(server.post(ask(), Host=host), 403)
            assert server.request("GET", "/v1/models", None, {"Host": host})[0] == 403
        for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000", "[fe80::1]", "192.168.0.9:8000"):
            assert server.post(ask(max_tokens=1), Host=host)[0] == 200
        assert server.request("OPTIONS", "/v1/completions")[0] == 405  # a browser's question gets no permission


@pytest.mark.slow
def test_limits_of_body_and_prompt():
    with running(num_blocks=8, max_body=2000) as server:
        assert_error(server.post(ask("x" * 2000)), 413)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        kind = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", iter([b"x" * 500] * 10), kind, encode_chunked=True)
        answer = connection.getresponse()
        assert_error((answer.status, json.loads(answer.read())), 413)
        connection.close()
        fits = 8 * 16 - 4  # blocks, less the prompt
        assert server.post(ask(max_tokens=fits, ignore_eos=True))[1]["usage"]["completion_tokens"] == fits
        assert assert_error(server.post(ask(max_tokens=fits + 1)), 400)["code"] == "context_length_exceeded"
        assert assert_error(server.post(ask([5] * 128, 1)), 400)["code"] == "context_length_exceeded"
        assert_error(server.call("POST", "/v1/completions"), 400)
        assert_error(server.call("POST", "/v1/nothing", {}), 404)
        assert_error(server.call("GET", "/v1/completions"), 405)
        server.assert_all_free()


@pytest.mark.parametrize("patience", [60, 0.2])
def test_connections_that_never_end_their_headers_block_nobody(monkeypatch, patience):
    """The oldest of too many are closed, and all of them in time."""
    monkeypatch.setattr(process, "CONNECTIONS", 8)
    monkeypatch.setattr(process, "HEADERS", patience)
    with running() as server, ExitStack() as stack:
        silent = []
        for _ in range(24):
            silent.append(stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60)))
            silent[-1].sendall(HEAD)
        for _ in range(3):
            assert server.text(ask()) == expected(PROMPT, 12).text
        for client in silent if patience < 1 else silent[:16]:
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""
        assert len(server.server.server_state.connections) <= 8


def test_a_request_that_came_before_a_crowd_of_idle_connections_is_read_first(monkeypatch):
    """All of them wait when the event loop comes round, and the request must not look idle like the others."""
    monkeypatch.setattr(process, "CONNECTIONS", 50)
    with running() as server, ExitStack() as stack:
        server.service.loop.call_soon_threadsafe(time.sleep, 1)
        client = stack.enter_context(server.connect(ask()))
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
        assert client.recv(12) == b"HTTP/1.1 200"


def test_no_expensive_work_in_the_engines_thread(monkeypatch):
    """What cannot be served is neither tokenised nor compiled; the rest of such work is done in another thread."""
    encoded, compiled = [], []

    def note(owner, name, calls):
        right = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args: calls.append(current_thread().name) or right(*args))

    note(ms.Model, "encode", encoded)
    note(prefix, "follower", compiled)
    with running() as server:
        message = [{"role": "user", "content": "x" * 300_000}]
        for body, path in (
            (ask("word " * 180_000), "/v1/completions"),
            (ask([5] * 200_000), "/v1/completions"),
            ({"model": "micro", "messages": message * 3}, "/v1/chat/completions"),
        ):
            assert assert_error(server.post(body, path), 400)["code"] == "context_length_exceeded"
        assert not encoded

        def constrained(schema: dict) -> dict:
            return ask(response_format={"type": "json_schema", "json_schema": {"schema": schema}})

        long = {"enum": [f"{n:06}" for n in range(100_000)]}
        assert assert_error(server.post(constrained(long)), 400)["param"] == "response_format"
        assert not compiled
        endless = {"$ref": "#"}  # compiles, and then breaks
        assert assert_error(server.post(constrained(endless)), 400)["param"] == "response_format"
        assert server.post(constrained({"enum": ["yes", "no"]}))[0] == 200
        assert len(compiled) == 2 and server.service.thread.name not in compiled


def test_what_the_command_refuses(monkeypatch, capsys):
    with running() as server:
        assert main(["serve", "--port", str(server.port)]) == 2
        assert str(server.port) in capsys.readouterr().err
    for words, named in ((["--api-key", ""], "empty"), (["--draft", "micro-draft"], "--drafter")):
        assert main(["serve", "--port", "0", "--model", "no-model", *words]) == 2
        assert named in capsys.readouterr().err
    monkeypatch.setattr("minispec_tools.serve.PACKAGES", ("no_such_package",))
    assert main(["serve"]) == 2
    assert "no_such_package" in capsys.readouterr().err
