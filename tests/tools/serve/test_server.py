"""The server as clients meet it: bare HTTP, the `openai` package, curl, and signals."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from threading import current_thread

import pytest
from server_checks import CHECKS, HEAD, ask, assert_error, check_crowd, expected, running, target

import minispec as ms
from minispec.drafters import by_name
from minispec.processors import prefix
from minispec_tools.cli import main
from minispec_tools.serve import process

SLOW = {"crowd", "slow_reader"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CHECKS])
def test_server(name):
    CHECKS[name]()


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["eagle", pytest.param(None, marks=pytest.mark.nightly)])
def test_a_crowd_while_passes_are_launched_ahead(drafter):
    """As on a GPU: what was launched for a client that has gone counts for nobody."""
    drafter = drafter and by_name(drafter, target())
    assert check_crowd(clients=24, tokens=40, max_num_seqs=8, fast=True, drafter=drafter) > 0 or not drafter


# ---- limits, signals -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_limits_of_body_and_prompt():
    with running(num_blocks=8, max_body=2000) as server:
        assert_error(server.post(ask("x" * 2000)), 413)
        status, _, said = server.request("POST", "/v1/completions", None)
        assert_error((status, json.loads(said)), 400)
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
        assert_error(server.post({}, "/v1/nothing"), 404)
        status, _, said = server.request("GET", "/v1/completions")
        assert_error((status, json.loads(said)), 405)
        server.assert_all_free()


@pytest.mark.parametrize("patience", [60, 0.2])
def test_unfinished_headers(monkeypatch, patience):
    """Many connections that never end their headers: others are served, and the oldest are closed, or all in time."""
    monkeypatch.setattr(process, "CONNECTIONS", 8)
    monkeypatch.setattr(process, "HEADERS", patience)
    with running() as server, ExitStack() as stack:
        silent = []
        for _ in range(24):
            silent.append(stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60)))
            silent[-1].sendall(HEAD)
        for _ in range(3):
            assert server.post(ask())[1]["choices"][0]["text"] == expected("Once upon a time", 12).text
        for client in silent if patience < 1 else silent[:16]:
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""
        assert len(server.server.server_state.connections) <= 8


def test_a_request_that_came_before_a_crowd_of_idle_connections_is_read_first(monkeypatch):
    """All of them wait when the event loop comes round: none of that may look as if the request were idle, too."""
    monkeypatch.setattr(process, "CONNECTIONS", 50)
    with running() as server, ExitStack() as stack:
        server.service.loop.call_soon_threadsafe(time.sleep, 1)
        client = stack.enter_context(server.connect(ask()))
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
        assert client.recv(12) == b"HTTP/1.1 200"


def test_no_expensive_work_in_the_engine_thread(monkeypatch):
    """What could not be served is not tokenised, nor compiled; the rest of such work is done elsewhere."""
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
        form = {"type": "json_schema", "json_schema": {"schema": {"enum": [f"{n:06}" for n in range(100_000)]}}}
        assert assert_error(server.post(ask(response_format=form)), 400)["param"] == "response_format"
        assert not compiled
        form["json_schema"]["schema"] = {"$ref": "#"}  # compiles, and then breaks
        assert assert_error(server.post(ask(response_format=form)), 400)["param"] == "response_format"
        form["json_schema"]["schema"] = {"enum": ["yes", "no"]}
        assert server.post(ask(response_format=form))[0] == 200
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
    assert "no_such_package" in (said := capsys.readouterr().err) and '.[serve]"' in said


def serve(*options: str) -> tuple[subprocess.Popen, str]:
    """`minispec serve` as a process, and its address."""
    command = [sys.executable, "-m", "minispec_tools", "serve", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    said = next(line for line in process.stdout if line.startswith("listening on"))
    return process, said.split()[2]


@pytest.mark.slow
@pytest.mark.parametrize("drain", ["60", pytest.param("0.001", marks=pytest.mark.nightly)])
def test_sigterm(drain):
    """Open requests end, or are told that they cannot; the process ends well in either case."""
    process, url = serve("--drain", drain)
    try:
        connection = http.client.HTTPConnection(url.split("/")[2], timeout=60)
        body = json.dumps(ask(max_tokens=300, stream=True, ignore_eos=True))
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.readline()
        process.send_signal(signal.SIGTERM)
        events = [line[6:] for line in answer.read().split(b"\n") if line.startswith(b"data: ")]
        assert events[-1] == b"[DONE]"
        last = json.loads(events[-2])
        if drain == "60":
            assert last["choices"][0]["finish_reason"] == "length"
        else:
            assert last["error"]["code"] == "unavailable"
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
