"""Whatever arrives: never a traceback, never a dead engine. Bodies by hand and by hypothesis, and broken HTTP."""

import json
import logging
import socket
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live_server import HEAD, PROMPT, ask, assert_error, expected, running

pytestmark = pytest.mark.slow
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
USER = {"role": "user", "content": "x"}
CHAT = {"model": "micro", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}

DEEP = b'{"model": "micro", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
NO_JSON = [b"", b"null", b"3", b"\xff\xfe", b'{"model": NaN}', DEEP, b'{"temperature": ' + b"9" * 10_000 + b"}"]
NO_JSON += [b'{"model": "micro", "prompt": "\\ud800"}', b'{"model": "micro"} x']

NO_TOKENS = [1.5], [True], [-1], [10**9], [10**30], [1, "a"], [USER], [None]
FORM, NONSENSE = {"type": "json_schema"}, {"schema": {"type": "nonsense"}}
FORMS = ["json", {"type": "xml"}, FORM, FORM | {"json_schema": {}}, FORM | {"json_schema": NONSENSE}]
FORMS += [{"type": "json_object", "schema": 123}, {"type": "json_object"} | NONSENSE, {"type": "text"} | NONSENSE]
OPTIONS = True, {"x": 1}, {"include_usage": 1}, {}, {"include_usage": None}, {"include_usage": True}  # without a stream
FIELDS = {  # values that neither of the two routes takes
    "model": (None, 3, ["micro"]),
    "max_tokens": (-1, 1.5, "5", True, 600, 10**30, []),
    "temperature": (-0.1, "hot", True, 10**400, [1]),
    "top_p": (0, 1.01, {}),
    "top_k": (-2, 0.5),
    "min_p": (2, "a"),
    "seed": (2**63, -(2**63) - 1, 0.5, "a"),
    "stop": ("", ["a", ""], [1], ["a"] * 5, "a" * 1000, {}),
    "stop_token_ids": ([-1], "a", [1] * 100),
    "stream": (1, "yes"),
    "n": (129, True, 0),
    "logprobs": (21, -1, "a"),
    "presence_penalty": (3, "a"),
    "frequency_penalty": (-2.5, True),
    "repetition_penalty": (0, 1e-40, 1e40),
    "logit_bias": ({"1": 500}, {"a": 5}, {"9" * 12: 5}, {"2048": 1}, {"1": "much"}, [1], {"²": 1}),
    "response_format": FORMS,
    "echo": (1, "yes"),
    "store": (True,),
    "service_tier": ("flex",),
    "metadata": ({"a": 1}, []),
    "constrain_after": ("", 5, "no response_format"),
    "min_tokens": (100, -1),
    "ignore_eos": (1,),
    "max_completion_tokens": (0,),
    "user": (1,),
    "tools": ([{"type": "function"}],),
    "prompt_logprobs": (-1,),
    "structured_outputs": ({"regex": "[.*"},),
    "": (1,),
    "x" * 10_000: (1,),
    "__class__": ("x",),
}
PROMPTS = [None, "", [], {}, 5, True, ["a", ""], [[1], []], ["a", 1], ["a"] * 600, "a" * 100_000, *NO_TOKENS]
OF_COMPLETIONS = {"prompt": PROMPTS, "logprobs": (True,), "top_logprobs": (1,), "best_of": (3,), "suffix": ("a",)}
OF_COMPLETIONS |= {"tools": ([],), "messages": ([],)}

CONTENTS = (1, None, [{"type": "image_url"}], [1], [{"type": "text", "text": 3}])
MESSAGES = [None, [], {}, "hi", [1], [{}], [[]], [{"role": "user"}], [{"content": "x"}]]
MESSAGES += [[USER | {"content": content}] for content in CONTENTS]
MESSAGES += [[USER | {"role": role}] for role in ("tool", 1, ["user"], {})]
MESSAGES += [[USER | {"tool_calls": [{}]}], [USER | {"content": "a b " * 1000}]]
OF_CHATS = {"messages": MESSAGES, "max_tokens": (0,), "echo": (True,), "tool_choice": ("required",)}
OF_CHATS |= {"top_logprobs": (1, 21), "prompt": ("a",)}


@pytest.fixture(scope="module")
def server():
    """A traceback in a log is a bug, whatever the client was told."""
    logged, handler = [], logging.Handler(logging.ERROR)
    handler.emit = logged.append
    for name in ("uvicorn.error", "minispec_tools.serve", "asyncio"):
        logging.getLogger(name).addHandler(handler)
    with running(max_body=2**18) as server:
        yield server
        assert server.text(ask()) == expected(PROMPT, 12).text
        server.assert_all_free()
    for name in ("uvicorn.error", "minispec_tools.serve", "asyncio"):
        logging.getLogger(name).removeHandler(handler)
    assert [record.getMessage() for record in logged] == []


@pytest.mark.parametrize("path", [COMPLETIONS, CHATS])
def test_bodies_that_are_not_json_are_refused(server, path):
    for body in NO_JSON:
        assert_error(server.post(body, path), 400)


@pytest.mark.parametrize("path, good, own", [(COMPLETIONS, ask(), OF_COMPLETIONS), (CHATS, CHAT, OF_CHATS)])
def test_bad_fields_are_refused(server, path, good, own):
    """Whole, and before a stream begins."""
    for name, value in ((name, value) for table in (FIELDS, own) for name, values in table.items() for value in values):
        for body in (good | {name: value}, good | {"stream": True} | {name: value}):
            error = assert_error(server.post(body, path), 400)
            assert error["type"] == "invalid_request_error", (name, value)
            assert error["param"] in (name[:100], "prompt", "messages", None), (name, value)
    for value in OPTIONS:
        assert assert_error(server.post(good | {"stream_options": value}, path), 400)["param"] == "stream_options"


NAMES = [*FIELDS, *OF_COMPLETIONS, *OF_CHATS, "stream_options"]
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


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=10), VALUES, max_size=4), chat=st.booleans())
def test_any_value_of_any_field_gets_an_answer_or_an_error(server, fields, chat):
    """A good body in which a few fields may be anything."""
    body = (CHAT if chat else ask(max_tokens=2)) | fields
    status, headers, content = server.request("POST", CHATS if chat else COMPLETIONS, json.dumps(body).encode())
    assert status in (200, 400, 404)
    if status != 200:
        assert_error((status, json.loads(content)), status)
    elif headers["content-type"].startswith("text/event-stream"):
        assert content.endswith(b"data: [DONE]\n\n") and b'"error"' not in content
    else:
        assert json.loads(content)["choices"][0]["finish_reason"] in ("stop", "length")


BROKEN = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n",
    "a negative length": HEAD + b"Content-Length: -1\r\n\r\n",
    "a chunk without a size": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a long header": HEAD + b"X: " + b"y" * 200_000 + b"\r\n\r\n",
    "a body cut short": HEAD + b"Content-Length: 100\r\n\r\n{",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_broken_http_is_refused_and_disturbs_nobody(server, data):
    with socket.create_connection(("127.0.0.1", server.port), timeout=2) as client, suppress(OSError):
        client.sendall(data)  # an OSError: the server has hung up first, or waits for the rest
        client.shutdown(socket.SHUT_WR)
        answer = client.recv(100)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert server.request("GET", "/health")[0] == 200
