"""Whatever arrives: never a traceback, never a dead engine. Bodies by hand and by hypothesis, and broken HTTP."""

import json
import logging
import socket
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_checks import HEAD, ask, assert_error, expected, running

DEEP = b'{"model": "micro", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
CHAT = {"model": "micro", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
RAW = [b"", b"null", b"3", b"\xff\xfe", b'{"model": NaN}', DEEP, b'{"temperature": ' + b"9" * 10_000 + b"}"]
RAW += [b'{"model": "micro", "prompt": "\\ud800"}', b'{"model": "micro"} x']
USER = {"role": "user", "content": "x"}
NO_IDS = ([1.5], [True], [-1], [10**9], [10**30], [1, "a"], [USER], [None])
FORM, NONSENSE = {"type": "json_schema"}, {"schema": {"type": "nonsense"}}
FORMS = ["json", {"type": "xml"}, FORM, FORM | {"json_schema": {}}, FORM | {"json_schema": NONSENSE}]
FORMS += [{"type": "json_object", "schema": 123}, {"type": "json_object"} | NONSENSE, {"type": "text"} | NONSENSE]
FIELDS = {
    "model": (None, 3, ["micro"]),
    "prompt": (None, "", [], {}, 5, True, ["a", ""], [[1], []], ["a", 1], ["a"] * 600, "a" * 100_000, *NO_IDS),
    "max_tokens": (-1, 1.5, "5", True, 10**30, []),
    "temperature": (-0.1, "hot", True, 10**400, [1]),
    "top_p": (0, 1.01, {}),
    "top_k": (-2, 0.5),
    "min_p": (2, "a"),
    "seed": (2**63, -(2**63) - 1, 0.5, "a"),
    "stop": ("", ["a", ""], [1], ["a"] * 5, "a" * 1000, {}),
    "stop_token_ids": ([-1], "a", [1] * 100),
    "stream": (1, "yes"),
    "stream_options": (True, {"x": 1}, {"include_usage": 1}, {}, {"include_usage": None}, {"include_usage": True}),
    "n": (129, True, 0),
    "logprobs": (21, -1, True, "a"),
    "presence_penalty": (3, "a"),
    "frequency_penalty": (-2.5, True),
    "repetition_penalty": (0, 1e-40, 1e40),
    "logit_bias": ({"1": 500}, {"a": 5}, {"9" * 12: 5}, [1], {"²": 1}),
    "response_format": FORMS,
    "echo": (1, "yes"),
    "store": (True,),
    "service_tier": ("flex",),
    "metadata": ({"a": 1}, []),
    "constrain_after": ("", 5, "no response_format"),
    "min_tokens": (100, -1),
    "ignore_eos": (1,),
}
UNKNOWN = {"top_logprobs": 1, "best_of": 3, "suffix": "a", "max_completion_tokens": 0, "user": 1}
UNKNOWN |= {"tools": [], "messages": [], "": 1, "x" * 10_000: 1, "__class__": "x"}
CONTENTS = (1, None, [{"type": "image_url"}], [1], [{"type": "text", "text": 3}])
MESSAGES = [None, [], {}, "hi", [1], [{}], [[]], [{"role": "user"}], [{"content": "x"}]]
MESSAGES += [[USER | {"content": content}] for content in CONTENTS]
MESSAGES += [[USER | {"role": role}] for role in ("tool", 1, ["user"], {})]
MESSAGES += [[USER | {"tool_calls": [{}]}]]


@pytest.fixture(scope="module")
def server():
    """A traceback in a log is a bug, whatever the client was told."""
    logged, handler = [], logging.Handler(logging.ERROR)
    handler.emit = logged.append
    for name in ("uvicorn.error", "minispec_tools.serve", "asyncio"):
        logging.getLogger(name).addHandler(handler)
    with running(max_body=2**18) as server:
        yield server
        assert server.post(ask())[1]["choices"][0]["text"] == expected("Once upon a time", 12).text
        server.assert_all_free()
    for name in ("uvicorn.error", "minispec_tools.serve", "asyncio"):
        logging.getLogger(name).removeHandler(handler)
    assert [record.getMessage() for record in logged] == []


@pytest.mark.slow
def test_bodies_that_are_refused(server):
    for path in ("/v1/completions", "/v1/chat/completions"):
        for body in RAW:
            assert_error(server.post(body, path), 400)
    for messages in MESSAGES:
        error = assert_error(server.post(CHAT | {"messages": messages}, "/v1/chat/completions"), 400)
        assert error["param"] == "messages", messages


@pytest.mark.slow
def test_bad_fields(server):
    cases = [(name, value) for name, values in FIELDS.items() for value in values]
    for name, value in (*cases, *UNKNOWN.items()):
        error = assert_error(server.post(ask() | {name: value}), 400)
        assert error["type"] == "invalid_request_error", (name, value)
        assert error["param"] in (None, name[:100]) or "prompt" in error["param"], (name, value)


NAMES = [*FIELDS, "messages", "top_logprobs", "max_completion_tokens"]
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


BROKEN = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n",
    HEAD + b"Content-Length: -1\r\n\r\n",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    HEAD + b"X: " + b"y" * 200_000 + b"\r\n\r\n",
    HEAD + b"Content-Length: 100\r\n\r\n{",
]


@pytest.mark.slow
def test_broken_http(server):
    """Refused with a 4xx, or the client hangs up in the middle: the server does not care."""
    for data in BROKEN:
        with socket.create_connection(("127.0.0.1", server.port), timeout=2) as client, suppress(OSError):
            client.sendall(data)  # an OSError: it has hung up first, or waits for the rest
            client.shutdown(socket.SHUT_WR)
            answer = client.recv(100)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
        assert server.request("GET", "/health")[0] == 200
