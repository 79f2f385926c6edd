"""A client of OpenAI-compatible servers that notes when each part of an answer arrives. asyncio alone: whatever else a
client did between two parts would be in the figures."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from minispec_course.labs.load import Answer


class Endpoint:
    """Where a server is, and how to ask it."""

    def __init__(self, url: str, api_key: str | None = None):
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            self.tls, self.host, port = parts.scheme == "https", parts.hostname, parts.port
        except ValueError:
            self.host = port = None
        if parts.scheme not in ("http", "https") or not self.host:
            raise ValueError(f"url={url!r}: give an address such as http://127.0.0.1:8000")
        self.port, self.path = port or (443 if self.tls else 80), parts.path.rstrip("/").removesuffix("/v1")
        self.key = api_key

    async def models(self) -> list[str]:
        async with self.ask("GET", "/v1/models") as (status, parts):
            body = b"".join([part async for part in parts])
        if status != 200:
            said = f"/v1/models answers with status {status}: {body[:200]!r}"
            raise ValueError(f"{said}; is this an OpenAI-compatible server, and the key right?")
        return [model["id"] for model in json.loads(body)["data"]]

    async def drafted(self) -> tuple[float, float]:
        """Drafts that were verified so far, and draft tokens accepted: as /metrics says it here and in vLLM."""
        async with self.ask("GET", "/metrics") as (status, parts):
            lines = b"".join([part async for part in parts]).decode(errors="replace").splitlines()
        if status != 200:
            return 0.0, 0.0

        def total(name: str) -> float:
            return sum(float(line.split()[-1]) for line in lines if re.match(rf"vllm:{name}_total[ {{]", line))

        return total("spec_decode_num_drafts"), total("spec_decode_num_accepted_tokens")

    async def complete(self, body: dict) -> Answer:
        """A streamed completion. What goes wrong is noted in the answer: one lost request must not end a benchmark."""
        answer = Answer(time.perf_counter())
        try:
            async for data in self.stream(body):
                self._note(answer, data)
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            answer.error = str(error) or type(error).__name__
        if answer.error is None and answer.finish is None:
            answer.error = "the answer ended early"
        return answer

    @staticmethod
    def _note(answer: Answer, data: dict) -> None:
        if "error" in data:
            raise ValueError(data["error"]["message"])
        for choice in data["choices"]:
            answer.arrivals.append(time.perf_counter())
            answer.text += choice["text"] or ""
            answer.finish = choice["finish_reason"] or answer.finish
        if used := data.get("usage"):
            answer.prompt_tokens, answer.tokens = used["prompt_tokens"], used["completion_tokens"]

    async def stream(self, body: dict) -> AsyncIterator[dict]:
        """The server-sent events of a completion."""
        body = body | {"stream": True, "stream_options": {"include_usage": True}}
        async with self.ask("POST", "/v1/completions", body) as (status, parts):
            if status != 200:
                said = b"".join([part async for part in parts])
                raise ValueError(f"status {status}: {said[:300].decode(errors='replace')}")
            rest = b""
            async for part in parts:
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    if line.startswith(b"data:") and line.strip() != b"data: [DONE]":
                        yield json.loads(line[5:])

    @asynccontextmanager
    async def ask(self, method: str, path: str, body: dict | None = None):
        """One request on a connection of its own: its status, and the parts of its body as they arrive."""
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=self.tls or None)
        try:
            content = b"" if body is None else json.dumps(body).encode()
            headers = {
                "Host": f"{self.host}:{self.port}",
                "Connection": "close",
                "Content-Type": "application/json",
                "Content-Length": len(content),
            }
            if self.key:
                headers["Authorization"] = f"Bearer {self.key}"
            lines = [f"{method} {self.path}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
            writer.write("\r\n".join([*lines, "", ""]).encode() + content)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            yield int(head.split()[1]), _parts(reader, "transfer-encoding: chunked" in head)
        finally:
            writer.close()


async def _parts(reader: asyncio.StreamReader, chunked: bool) -> AsyncIterator[bytes]:
    """A body as it arrives, without HTTP's marks between its chunks."""
    while chunked:
        size = int((await reader.readline()).split(b";")[0], 16)
        if size == 0:
            return
        yield await reader.readexactly(size)
        await reader.readexactly(2)
    while part := await reader.read(2**16):
        yield part
