"""Load on a server as its clients see it: when requests are sent, and what their latencies come to.

The load is open: a request is sent when its moment has come, whether or not the ones before it have been answered. A
client that waited for answers would slow down with the server, and would never see the queue that real users make.
Gaps between requests follow a gamma distribution with mean 1 / rate: burstiness 1 is a Poisson process, less comes in
bursts, more is steadier. Words as in vLLM's own benchmark, so that figures compare:

    TTFT       time to first token: from sending the request to the first part of its answer
    ITL        inter-token latency: between two parts; speculation emits several tokens in one part
    TPOT       time per output token: (E2EL − TTFT) / (tokens − 1), one figure per request
    E2EL       end-to-end latency: from sending the request to the last part
    goodput    requests per second that met all the targets that were given
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

PERCENTILES = (50, 90, 99)
LATENCIES = ("ttft", "tpot", "itl", "e2el")  # each in seconds, reported in ms


@dataclass
class Answer:
    """One request, as its client saw it. Moments in seconds."""

    sent: float
    arrivals: list[float] = field(default_factory=list)  # of each part that carries output
    text: str = ""
    prompt_tokens: int = 0
    tokens: int = 0  # of the output, as the server counts them
    finish: str | None = None
    error: str | None = None  # why there is no whole answer


def arrivals(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """The moments at which requests are sent, the first at 0. An infinite rate sends all at once."""
    random, now, moments = Random(f"arrivals {seed}"), 0.0, []
    for _ in range(count):
        moments.append(now)
        now += 0.0 if rate == math.inf else random.gammavariate(burstiness, 1 / (rate * burstiness))
    return moments


def latencies(answer: Answer) -> dict[str, float | list[float] | None]:
    """TTFT, TPOT, ITL (a list) and E2EL of one whole answer, in seconds. TPOT is None for a single token."""
    first, last = answer.arrivals[0], answer.arrivals[-1]
    return {
        "ttft": first - answer.sent,
        "tpot": (last - first) / (answer.tokens - 1) if answer.tokens > 1 else None,
        "itl": [after - before for before, after in zip(answer.arrivals, answer.arrivals[1:], strict=False)],
        "e2el": last - answer.sent,
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """Between the two nearest values, linearly."""
    values, at = sorted(values), (len(values) - 1) * percent / 100
    low = math.floor(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def meets(found: dict, targets: dict[str, float]) -> bool:
    """Whether one answer met all targets. A single token has no TPOT to miss. ITL has none: it is not one figure."""
    return all(found[name] is None or found[name] <= most for name, most in targets.items())


def summary(answers: Sequence[Answer], seconds: float, targets: dict[str, float]) -> dict:
    """The figures of one load. `targets`: seconds, by name."""
    whole = [answer for answer in answers if answer.error is None and answer.arrivals]
    found = [latencies(answer) for answer in whole]
    tokens = sum(answer.tokens for answer in whole)
    result = {
        "requests": len(answers),
        "completed": len(whole),
        "errors": sorted({answer.error for answer in answers if answer.error})[:5],
        "seconds": seconds,
        "prompt_tokens": sum(answer.prompt_tokens for answer in whole),
        "tokens": tokens,
        "requests_per_second": len(whole) / seconds,
        "tokens_per_second": tokens / seconds,
        "goodput": sum(meets(one, targets) for one in found) / seconds if targets else None,
    }
    for name in LATENCIES:
        values = [value for one in found for value in (one[name] if name == "itl" else [one[name]])]
        values = [1000 * value for value in values if value is not None]
        figures = {f"p{p}": percentile(values, p) for p in PERCENTILES} if values else None
        result[f"{name}_ms"] = figures and figures | {"mean": sum(values) / len(values)}
    return result
