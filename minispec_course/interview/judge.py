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
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool  # its threads end with the program, even while a judge hangs

from .coding import Code
from .session import MISSED, SAID, SINKS, VERDICTS, Mark, Talk, sentences

ASK = """You mark an interview. The candidate was asked, and said:
{answer}
{task} {line}
Reply in JSON: verdict, and as quote the candidate's sentence that shows it, word for word."""
TASK = "Is this in the answer: said, half (vague or incomplete), missed, or wrong (the contrary was said)?"
MISTAKE = "Is this mistake in the answer: said or missed?"
AT_ONCE, TIMEOUT = 4, 120  # requests, and seconds


@dataclass(frozen=True)
class Judge:
    url: str  # with the /v1 at its end
    model: str

    def __call__(self, item: Talk | Code, texts: Sequence[str]) -> dict[int, Mark]:
        """A mark for every line of the rubric that was not missed. ValueError if the server does not answer."""
        quotes = list(dict.fromkeys(sentences(texts)))
        if not quotes:
            return {}
        answer = "\n".join(f"{asked}\n{text}" for asked, text in zip(item.asks, texts, strict=False) if text.strip())
        tasks = [(MISTAKE if box.group == SINKS else TASK, box.text) for box in item.rubric]
        asks = [ASK.format(answer=answer, task=task, line=line) for task, line in tasks]
        with ThreadPool(AT_ONCE) as pool:
            marks = list(pool.imap(lambda ask: self.verdict(ask, quotes), asks))
        if SINKS in {box.group for box in item.rubric} and {mark.verdict for mark in marks} == {SAID}:
            raise ValueError(f"{self.model} finds every point and every mistake in it, so it decides nothing")
        return {i: mark for i, mark in enumerate(marks) if mark.verdict != MISSED}

    def verdict(self, ask: str, quotes: Sequence[str]) -> Mark:
        """The reply to one request. One that is not by the schema, or quotes what was not said, says nothing."""
        fields = {"verdict": list(VERDICTS), "quote": ["", *quotes]}
        fields = {name: {"type": "string", "enum": values} for name, values in fields.items()}
        schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "mark", "strict": True, "schema": schema}}
        body = {"model": self.model, "messages": [{"role": "user", "content": ask}], "temperature": 0}
        reply = self.post(body | {"response_format": form})
        try:
            said = json.loads(reply["choices"][0]["message"]["content"])
            mark = Mark(said["verdict"], " ".join(said["quote"].split()))
        except (ValueError, LookupError, TypeError, AttributeError):
            return Mark(MISSED)
        return mark if mark.verdict in VERDICTS and mark.quote and mark.quote in " ".join(quotes) else Mark(MISSED)

    def post(self, body: dict) -> dict:
        key, url = os.environ.get("OPENAI_API_KEY"), f"{self.url.rstrip('/')}/chat/completions"
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        try:
            request = urllib.request.Request(url, json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
                return json.load(reply)
        except (OSError, ValueError) as error:  # an HTTPError says why in its body
            why = error.read(500).decode(errors="replace") if isinstance(error, urllib.error.HTTPError) else ""
            raise ValueError(f"judge={self.url!r}: {error} {why}".strip()) from None
