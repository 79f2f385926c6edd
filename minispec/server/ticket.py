"""One request on its way through the server, and what a step gave it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import uuid4

from ..generate import Output
from ..sampling import SamplingParams, TokenLogprob


class Event(NamedTuple):
    """What a step gave one request."""

    text: str
    tokens: int  # of its output so far
    output: Output | None  # once it has ended
    error: Exception | None = None  # why it ended, if that was nobody's wish
    logprobs: list[TokenLogprob] | None = None  # of the tokens since the event before, if they were asked for


@dataclass(eq=False)
class Ticket:
    """One request on its way through the server."""

    prompt: list[int]
    params: SamplingParams
    stream: bool
    id: str = field(default_factory=lambda: uuid4().hex)
    arrived: float = field(default_factory=time.perf_counter)
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)  # for the event loop
    pieces: list[str] = field(default_factory=list)  # of the step under way, for the engine's thread
    tokens: int = 0  # emitted up to the last step, which was …
    last: float = 0.0  # … at this moment
    first: float = 0.0  # when its first token was there
    told: int = 0  # tokens whose log-probabilities have been handed over
