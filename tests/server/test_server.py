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
from server_checks import CHECKS, HEAD, TEMPLATE, ask, assert_error, check_crowd, expected, running, target

import minispec as ms
from minispec.cli import main
from minispec.drafters import by_name
from minispec.processors import prefix
from minispec.server import process

SLOW = {"crowd", "slow_reader", "response_format"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CHECKS])
def test_server(name):
    CHECKS[name]()


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["eagle", pytest.param(None, marks=pytest.mark.nightly)])
def test_a_crowd_while_passes_are_launched_ahead(drafter):
    """As on a GPU: what was launched for a client that has gone counts for nobody."""
    drafter = drafter and by_name(drafter, target())
    assert check_crowd(clients=24, tokens=40, max_num_seqs=8, fast=True, drafter=drafter) > 0 or not drafter


# ---- the openai package --------------------------------------------------------------------------------------------


@pytest.fixture
def openai():
    return pytest.importorskip("openai", reason="the openai package is not installed")


@pytest.mark.slow
def test_openai_package(openai):
    right = expected("Once upon a time", 12)
    with running() as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["micro"]
        asked = dict(model="micro", prompt="Once upon a time", max_tokens=12, temperature=0)
        assert client.completions.create(**asked).choices[0].text == right.text
        options = {"include_usage": True}
        chunks = list(client.completions.create(**asked, stream=True, stream_options=options))
        assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == right.text
        assert chunks[-1].usage.completion_tokens == 12 and not chunks[-1].choices
        again = [client.completions.create(**asked | {"temperature": 1, "seed": 5}).choices[0].text for _ in range(2)]
        assert again[0] == again[1] == ms.generate(target(), "Once upon a time", 12, temperature=1, seed=5).text


@pytest.mark.slow
def test_openai_chat(openai):
    messages = [{"role": "system", "content": "Tell stories."}, {"role": "user", "content": "Once upon"}]
    assert TEMPLATE.count("assistant:") == 1
    right = ms.generate(target(), messages, 10)
    with running() as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        asked = dict(model="micro", messages=messages, temperature=0)
        said = client.chat.completions.create(**asked, max_completion_tokens=10).choices[0]
        assert (said.message.role, said.message.content, said.finish_reason) == ("assistant", right.text, "length")
        parts = [{"role": m["role"], "content": [{"type": "text", "text": m["content"]}]} for m in messages]
        chunks = list(client.chat.completions.create(**asked | {"messages": parts}, max_tokens=10, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == right.text
        assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
        assert chunks[-1].choices[0].finish_reason == "length" and chunks[0].object == "chat.completion.chunk"
        whole = client.chat.completions.create(**asked)  # no limit: as long as it fits
        assert whole.usage.total_tokens == 512 or whole.choices[0].finish_reason == "stop"


@pytest.mark.slow
def test_openai_logprobs(openai):
    """At once and in parts: those of `generate`, with drafts."""
    messages = [{"role": "user", "content": "Once upon"}]
    said = ms.generate(target(), messages, 12, logprobs=2)
    draft = ms.drafters.Model(ms.load("micro-draft", dtype=target().dtype))
    with running(drafter=draft) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        parts = [chunk.choices[0] for chunk in client.completions.create(**ask(logprobs=3), stream=True)]
        assert len(parts) < 12  # a part may have several tokens
        offsets = [at for part in parts for at in part.logprobs.text_offset]
        tokens, text = [t for part in parts for t in part.logprobs.tokens], "".join(part.text for part in parts)
        found = [one for part in parts for one in part.logprobs.token_logprobs]
        assert found == client.completions.create(**ask(logprobs=3)).choices[0].logprobs.token_logprobs
        alone = ms.generate(target(), "Once upon a time", 12, logprobs=3).logprobs
        assert found == pytest.approx([one.logprob for one in alone])
        assert all(text[at:].startswith(token) for at, token in zip(offsets, tokens, strict=True))

        asked = dict(model="micro", messages=messages, temperature=0, max_tokens=12, logprobs=True, top_logprobs=2)
        content = client.chat.completions.create(**asked).choices[0].logprobs.content
        streamed = client.chat.completions.create(**asked, stream=True)
        assert [one for chunk in streamed for one in chunk.choices[0].logprobs.content] == content
        assert [one.logprob for one in content] == pytest.approx([one.logprob for one in said.logprobs])
        for one, its in zip(content, said.logprobs, strict=True):
            assert [top.logprob for top in one.top_logprobs] == pytest.approx([p for _, p in its.top])
            assert bytes(one.bytes).decode() == one.token == target().spell(its.token)
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(**asked | {"logprobs": False})


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
    monkeypatch.setattr("minispec.server.PACKAGES", ("no_such_package",))
    assert main(["serve"]) == 2
    assert "no_such_package" in (said := capsys.readouterr().err) and '.[serve]"' in said


def serve(*options: str) -> tuple[subprocess.Popen, str]:
    """`minispec serve` as a process, and its address."""
    command = [sys.executable, "-m", "minispec", "serve", "--port", "0", *options]
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
