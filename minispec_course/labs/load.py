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

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from minispec import theory
from minispec.drafters import Drafter
from minispec.load.model import Model
from minispec.load.registry import BENCHMARKS
from minispec.serving.engine import Engine

from . import presets
from .batching import endless
from .pairs import STORIES

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


# ---- a shift: requests arrive over time, and a real engine serves them ----------------------------------------------

REQUESTS, BLOCKS, BUDGET = 24, 64, 256  # of a load; blocks of 16 tokens; tokens per step
LONG = 160  # tokens: every fourth prompt is that long, the others are short
RATES = (2, 5, 10, 20, 40, 80)  # requests per second


@dataclass(frozen=True)
class Moment:
    """Just after a step; seconds since the first arrival."""

    time: float
    waiting: int
    running: int
    blocks: int
    batch: int  # requests that the step processed
    seconds: float  # that it took


@dataclass(frozen=True)
class Shift:
    """What one load did to one engine."""

    moments: Sequence[Moment]
    answers: Sequence[Answer]  # as a client at the engine's door would have seen them
    num_blocks: int

    @property
    def end(self) -> float:
        return max(answer.arrivals[-1] for answer in self.answers)

    def figures(self) -> dict:
        """As `minispec bench serve` counts them, and the slowest request."""
        found, each = summary(self.answers, self.end, {}), [latencies(answer) for answer in self.answers]
        for name in ("ttft", "tpot"):
            found[f"{name}_ms"]["max"] = 1000 * max(one[name] for one in each if one[name] is not None)
        return found

    @property
    def mean_batch(self) -> float:
        """Requests in the batch, on average over time, as in Little's law: a step counts by how long it took."""
        return sum(moment.batch * moment.seconds for moment in self.moments) / self.end

    @property
    def left_waiting(self) -> int:
        """Requests without a first token when the last one arrived. Many: the rate is more than the engine sustains."""
        last = max(answer.sent for answer in self.answers)
        return sum(answer.sent < last < answer.arrivals[0] for answer in self.answers)


def make_load(target: Model, count: int = REQUESTS, seed: int = 0) -> list[tuple[list[int], int]]:
    """Beginnings of stories, and how many tokens to generate after each; every fourth prompt is long."""
    random = Random(f"load {seed}")
    if target.tokenizer:
        stories = [target.encode(text) for text in STORIES["stories"]]
    else:
        stories = [[random.randrange(target.config.vocab_size) for _ in range(8)] for _ in range(8)]
    load = []
    for i in range(count):
        prompt = random.choice(stories)
        while i % 4 == 3 and len(prompt) < LONG:
            prompt = prompt + random.choice(stories)
        load.append((prompt[:LONG], random.randint(12, 28)))
    return load


def run_shift(
    target: Model, drafter: Drafter | None, rate: float, k: int, max_num_seqs=8, max_chunk=64, count=REQUESTS, seed=0
) -> Shift:
    """Serve a load at `rate` requests per second (Poisson). k = 0: without speculation."""
    load, due = make_load(target, count, seed), arrivals(count, rate, 1.0, seed)
    limits = dict(max_num_seqs=max_num_seqs, max_chunk=max_chunk, max_num_batched_tokens=BUDGET)
    engine = Engine(endless(target), drafter if k else None, BLOCKS, k=k, enable_prefix_caching=False, **limits)
    now, answers, moments, added = 0.0, {}, [], 0
    while added < count or engine.sequences:
        if not engine.sequences:
            now = max(now, due[added])
        while added < count and due[added] <= now:
            answers[engine.add(*load[added])] = Answer(due[added], prompt_tokens=len(load[added][0]))
            added += 1
        start = time.perf_counter()
        record = engine.step()
        now += (seconds := time.perf_counter() - start)
        ended = engine.take()
        for id in (batch := {row.id for row in record.rows}):
            tokens = len(ended[id].tokens if id in ended else engine.sequences[id].output)
            if tokens > answers[id].tokens:
                answers[id].arrivals.append(now)
                answers[id].tokens = tokens
        moments.append(Moment(now, record.waiting, record.running, record.used_blocks, len(batch), seconds))
    engine.shutdown()
    return Shift(moments, list(answers.values()), BLOCKS)


def recorded_servers(name: str = "serve_8b.json") -> dict[str, dict[float, dict]]:
    """What `minispec bench serve --sweep` recorded on a GPU: server → rate → its figures."""
    result = json.loads((BENCHMARKS / name).read_text(encoding="utf-8"))
    return {server["server"]: {row["rate"]: row for row in server["results"]} for server in result["servers"]}


# ---- a server on paper: the same load, and passes that take as long as the roofline says ----------------------------

WEIGHTS = presets.weights_read(presets.SHAPES["Llama-3-8B"])
READ = theory.pass_bytes(WEIGHTS) / theory.H200.bandwidth  # seconds: the weights of an 8B model, once
COMPUTE = theory.pass_flops(WEIGHTS) / theory.H200.flops  # the arithmetic of one token
DRAFT, ALPHA, PROMPT = READ / 8, 0.6, 160  # a draft step of the whole batch; acceptance; tokens of a prompt

Log = list[tuple[float, int]]  # moments, and the tokens that came


def simulated(rate: float, choose: Callable[[int], int], count: int = 600, seed: int = 0) -> list[tuple[float, Log]]:
    """When each request was sent, and when its tokens came. `choose(B)`: the draft length for a batch of B."""
    random, due = Random(f"simulated {seed}"), arrivals(count, rate, 1.0, seed)
    due = [moment * (count - 1) / rate / due[-1] for moment in due]  # the mean rate is exact
    now, running, answers = 0.0, {}, []  # running: number of a request → tokens that it still wants
    while len(answers) < count or running:
        if not running:
            now = max(now, due[len(answers)])
        k, new = choose(len(running)) if running else 0, []
        tokens = len(running) * (k + 1)
        while len(answers) < count and due[len(answers)] <= now and tokens + PROMPT <= 2 * BUDGET:
            new.append(len(answers))
            answers.append((due[len(answers)], []))
            tokens += PROMPT
        now += k * DRAFT + max(READ, tokens * COMPUTE)
        for i in running:
            accepted = next((j for j in range(k) if random.random() >= ALPHA), k)
            answers[i][1].append((now, min(running[i], accepted + 1)))
            running[i] -= answers[i][1][-1][1]
        for i in new:
            answers[i][1].append((now, 1))
            running[i] = random.randint(31, 95)
        running = {i: left for i, left in running.items() if left}
    return answers
