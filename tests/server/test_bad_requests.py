"""Whatever arrives: never a traceback, never a dead engine. Bodies by hand and by hypothesis, and broken HTTP."""

from __future__ import annotations

import json
import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_checks import ask, assert_error, expected, listening, running

DEEP = b'{"model": "micro", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
CHAT = {"model": "micro", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
RAW = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"3",
    b'"x"',
    b"\xff\xfe",
    b"\x00",
    b"{'a': 1}",
    b'{"model": NaN}',
    b'{"a": Infinity}',
    DEEP,
    b'{"temperature": ' + b"9" * 10_000 + b"}",
    b'{"model": "micro", "prompt": "\\ud800"}',
    b'{"\\ud800": 1}',
    b'{"model": "micro", "prompt": "a", "stop": "\\udfff"}',
    b'{"model": "micro"} x',
    "\ufeff{}".encode(),
]
FIELDS = [
    {"model": None},
    {"model": 3},
    {"model": ["micro"]},
    {"prompt": None},
    {"prompt": ""},
    {"prompt": []},
    {"prompt": {}},
    {"prompt": 5},
    {"prompt": True},
    {"prompt": ["a", "b"]},
    {"prompt": [[1], [2]]},
    {"prompt": [1.5]},
    {"prompt": [True]},
    {"prompt": [-1]},
    {"prompt": [10**9]},
    {"prompt": [10**30]},
    {"prompt": [1, "a"]},
    {"prompt": [{"role": "user", "content": "x"}]},
    {"prompt": [None]},
    {"prompt": "a" * 100_000},
    {"max_tokens": 0},
    {"max_tokens": -1},
    {"max_tokens": 1.5},
    {"max_tokens": "5"},
    {"max_tokens": True},
    {"max_tokens": 10**30},
    {"max_tokens": []},
    {"temperature": -0.1},
    {"temperature": "hot"},
    {"temperature": True},
    {"temperature": 10**400},
    {"temperature": [1]},
    {"top_p": 0},
    {"top_p": 1.01},
    {"top_p": {}},
    {"top_k": -2},
    {"top_k": 0.5},
    {"min_p": 2},
    {"min_p": "a"},
    {"seed": 2**63},
    {"seed": 0.5},
    {"seed": "a"},
    {"stop": ""},
    {"stop": []},
    {"stop": ["a", ""]},
    {"stop": [1]},
    {"stop": ["a"] * 5},
    {"stop": "a" * 1000},
    {"stop": {}},
    {"stop_token_ids": [-1]},
    {"stop_token_ids": "a"},
    {"stop_token_ids": [1] * 100},
    {"stream": 1},
    {"stream": "yes"},
    {"stream_options": True},
    {"stream_options": {"x": 1}},
    {"stream_options": {"include_usage": 1}},
    {"n": 2},
    {"n": True},
    {"n": 0},
    {"logprobs": 21},
    {"logprobs": -1},
    {"logprobs": True},
    {"top_logprobs": 1},
    {"echo": True},
    {"best_of": 3},
    {"suffix": "a"},
    {"presence_penalty": 3},
    {"presence_penalty": "a"},
    {"frequency_penalty": -2.5},
    {"frequency_penalty": True},
    {"repetition_penalty": 0},
    {"logit_bias": {"1": 500}},
    {"logit_bias": {"a": 5}},
    {"logit_bias": {"9" * 12: 5}},
    {"logit_bias": [1]},
    {"logit_bias": {"²": 1}},
    {"response_format": "json"},
    {"response_format": {"type": "xml"}},
    {"response_format": {"type": "json_schema"}},
    {"response_format": {"type": "json_schema", "json_schema": {}}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}},
    {"max_completion_tokens": 0},
    {"tools": []},
    {"messages": []},
    {"": 1},
    {"x" * 10_000: 1},
    {"__class__": "x"},
    {"min_tokens": 100},
    {"min_tokens": -1},
    {"ignore_eos": 1},
    {"user": 1},
]
MESSAGES = [
    None,
    [],
    {},
    "hi",
    [1],
    [{}],
    [[]],
    [{"role": "user"}],
    [{"content": "x"}],
    [{"role": "user", "content": 1}],
    [{"role": "user", "content": None}],
    [{"role": "tool", "content": "x"}],
    [{"role": 1, "content": "x"}],
    [{"role": ["user"], "content": "x"}],
    [{"role": "user", "content": [{"type": "image_url"}]}],
    [{"role": "user", "content": [1]}],
    [{"role": "user", "content": "x", "name": "y"}],
    [{"role": "user", "content": "x", "tool_calls": []}],
    [{"role": {}, "content": "x"}],
    [{"role": "user", "content": [{"type": "text", "text": 3}]}],
]


@pytest.fixture(scope="module")
def server():
    with running(max_body=2**18) as server, listening() as logged:
        yield server
        assert server.post(ask())[1]["choices"][0]["text"] == expected("Once upon a time", 12).text
        server.assert_all_free()
        assert [record.getMessage() for record in logged] == []


def test_there_are_enough():
    assert len(RAW) + len(FIELDS) + len(MESSAGES) >= 60


@pytest.mark.parametrize("body", RAW, ids=range(len(RAW)))
def test_no_json(server, body):
    for path in ("/v1/completions", "/v1/chat/completions"):
        assert_error(server.post(body, path), 400)


@pytest.mark.parametrize("changed", FIELDS, ids=lambda changed: repr(changed)[:30])
def test_bad_field(server, changed):
    error = assert_error(server.post(ask() | changed), 400)
    assert error["type"] == "invalid_request_error"
    assert error["param"] in (None, *(name[:100] for name in changed)) or "prompt" in error["param"]


@pytest.mark.parametrize("messages", MESSAGES, ids=lambda messages: repr(messages)[:30])
def test_bad_messages(server, messages):
    assert assert_error(server.post(CHAT | {"messages": messages}, "/v1/chat/completions"), 400)["param"] == "messages"


def test_null_means_not_given(server):
    status, body = server.post(ask() | dict.fromkeys(("stop", "seed", "n", "logprobs", "stream", "logit_bias", "user")))
    assert status == 200 and body["choices"][0]["text"] == expected("Once upon a time", 12).text


NAMES = [
    "model",
    "prompt",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stream",
    "n",
    "stream_options",
    "stop_token_ids",
    "min_tokens",
    "messages",
    "logprobs",
    "top_logprobs",
    "ignore_eos",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "max_completion_tokens",
]
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["micro", "Once", 0, 1, 5, 1.0]),
)
VALUES = st.recursive(
    LEAVES, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(max_size=8), v, max_size=3), max_leaves=8
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=10), VALUES, max_size=4), chat=st.booleans())
def test_any_fields(server, fields, chat):
    """A good body with a few fields that may be anything: an answer, or words."""
    body = (CHAT if chat else ask(max_tokens=2)) | fields
    path = "/v1/chat/completions" if chat else "/v1/completions"
    status, headers, said = server.request("POST", path, json.dumps(body).encode())
    assert status in (200, 400, 404)
    if status != 200:
        assert_error((status, json.loads(said)), status)
    elif headers["content-type"].startswith("text/event-stream"):
        assert said.endswith(b"data: [DONE]\n\n") and b'"error"' not in said
    else:
        assert json.loads(said)["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=200))
def test_any_bytes(server, raw):
    assert_error(server.post(raw), 400)


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
BROKEN = [
    b"\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n",
    b"GET\r\n\r\n",
    HEAD[:20] + b"\r\n\r\n",
    HEAD + b"Content-Length: -1\r\n\r\n",
    HEAD + b"Content-Length: x\r\n\r\n",
    HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
    HEAD + b"X: " + b"y" * 200_000 + b"\r\n\r\n",
    HEAD + b"".join(b"X-%d: y\r\n" % i for i in range(20_000)) + b"\r\n",
    b"G" * 200_000 + b"\r\n\r\n",
    HEAD + b"Content-Length: 100\r\n\r\n{",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
    HEAD,
]


@pytest.mark.parametrize("data", BROKEN, ids=range(len(BROKEN)))
def test_broken_http(server, data):
    """Refused with a 4xx, or the client hangs up in the middle: the server does not care."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=2) as client:
        try:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            answer = client.recv(100)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
        except OSError:  # it has hung up first, or waits for the rest
            pass
    assert server.request("GET", "/health")[0] == 200
