"""A model as judge: any OpenAI-compatible server proposes a verdict for every line of a rubric, with the words for it.

    interview.judge = Judge("http://localhost:8000/v1", "micro")        # the key, if there is one: OPENAI_API_KEY

One request for each line. They share their beginning, so a server with prefix caching processes the answer once. The
reply is JSON by a schema that lets the judge quote only sentences of the answer. Not every server enforces a schema, so
a quote that is not in the answer is discarded, and its point counts as missed.
"""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from .coding import Code
from .mock_interview import sentences
from .session import HALF, MISSED, SAID, SINKS, VERDICTS, Mark, Talk

ASK = """You mark an interview. {asked}

The candidate said:
{answer}

Line of the rubric: {line}
{task} Reply in JSON: verdict, and quote, the sentence of the candidate that shows it, word for word; empty if missed."""
TASKS = {SINKS: "Is this mistake in the answer? said or missed."}
TASK = "Is this in the answer? said, half (vague or incomplete), missed, or wrong (the contrary was said)."


@dataclass(frozen=True)
class Judge:
    url: str  # with the /v1 at its end
    model: str
    timeout: float = 120
    at_once: int = 4

    def __call__(self, item: Talk | Code, texts: Sequence[str]) -> dict[int, Mark]:
        """A mark for every line of the rubric that was not missed. ValueError if the server does not answer."""
        if not sentences(texts):
            return {}
        turns = zip(item.asks, texts, strict=False)
        answer = "\n".join(text for turn in turns for text in turn if turn[1].strip())
        with ThreadPoolExecutor(self.at_once) as pool:
            asks = [
                ASK.format(asked=item.asks[0], answer=answer, line=box.text, task=TASKS.get(box.group, TASK))
                for box in item.rubric
            ]
            marks = list(pool.map(lambda ask: self.verdict(ask, texts), asks))
        return {i: mark for i, mark in enumerate(marks) if mark.verdict != MISSED}

    def verdict(self, ask: str, texts: Sequence[str]) -> Mark:
        quotes = ["", *dict.fromkeys(sentences(texts))]
        fields = {"verdict": {"enum": list(VERDICTS)}, "quote": {"enum": quotes}}
        fields = {name: {"type": "string", **field} for name, field in fields.items()}
        schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "mark", "strict": True, "schema": schema}}
        messages = [{"role": "user", "content": ask}]
        reply = self.post({"model": self.model, "messages": messages, "temperature": 0, "response_format": form})
        try:
            said = json.loads(reply["choices"][0]["message"]["content"])
            mark = Mark(said["verdict"], " ".join(said["quote"].split()))
        except (ValueError, LookupError, TypeError, AttributeError):
            return Mark(MISSED)  # a reply that is not by the schema says nothing
        said_so = mark.quote and any(mark.quote in " ".join(text.split()) for text in texts)
        return mark if mark.verdict in VERDICTS and (said_so or mark.verdict not in (SAID, HALF)) else Mark(MISSED)

    def post(self, body: dict) -> dict:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        try:
            url = f"{self.url.rstrip('/')}/chat/completions"
            request = urllib.request.Request(url, json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request, timeout=self.timeout) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            raise ValueError(f"judge={self.url!r}: {error}: {error.read(500).decode(errors='replace')}") from None
        except (OSError, ValueError) as error:
            raise ValueError(f"judge={self.url!r}: {error}") from None
