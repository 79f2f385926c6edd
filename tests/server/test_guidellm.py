"""guidellm, a load generator that others wrote, against the server: every request answered, each with its own text.

It wants an older click than JupyterLab's tools, so it lives in an environment of its own (`pipx install guidellm`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
from server_checks import expected, running

GUIDELLM = os.environ.get("MINISPEC_GUIDELLM") or shutil.which("guidellm")
TOKENS = 12
PROMPTS = ["Once upon a time" + " and" * i for i in range(8)]


def load(url: str, folder, route: str) -> dict:
    """What guidellm reports of four clients that ask for all prompts over this route."""
    data, report = folder / "prompts.jsonl", folder / "report.json"
    data.write_text("".join(json.dumps({"prompt": p, "output_tokens_count": TOKENS}) + "\n" for p in PROMPTS))
    backend = {"kind": "openai_http", "target": url, "request_format": route, "extras": {"body": {"temperature": 0}}}
    options = {
        "backend": json.dumps(backend),
        "profile": "kind=concurrent,streams=4",
        "constraint": f"kind=max_requests,count={len(PROMPTS)}",
        "data": f"kind=json_file,path={data}",
        "output": f"kind=json,path={report}",
    }
    command = [GUIDELLM, "run", *(word for name, value in options.items() for word in (f"--{name}", value))]
    done = subprocess.run([*command, "--disable-console"], capture_output=True, text=True, timeout=240, cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    [benchmark] = json.loads(report.read_text())["benchmarks"]
    return benchmark["requests"]


@pytest.mark.slow
@pytest.mark.skipif(not GUIDELLM, reason="guidellm is not installed: pipx install guidellm, or set MINISPEC_GUIDELLM")
@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_guidellm(tmp_path, route):
    with running() as server:
        found = load(server.url.removesuffix("/v1"), tmp_path, route)
        assert len(found["successful"]) == len(PROMPTS), [each["info"]["error"] for each in found["errored"] or ()]
        assert [each["output_tokens"] for each in found["successful"]] == [TOKENS] * len(PROMPTS)
        assert all(each["time_to_first_token_ms"] > 0 for each in found["successful"])
        if route == "/v1/completions":
            asked = [json.loads(each["request_args"])["body"]["prompt"] for each in found["successful"]]
            assert sorted(asked) == sorted(PROMPTS)
            for prompt, each in zip(asked, found["successful"], strict=True):
                assert each["output"] == expected(prompt, TOKENS).text
        assert server.engine.pool.num_free == server.engine.pool.num_blocks and not server.engine.jobs
