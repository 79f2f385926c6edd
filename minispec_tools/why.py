"""Why is it not faster? `minispec why` reads what a server says about itself, and names suspects with their evidence.

A suspect is judged as in lesson 07: put its number alone right and predict again. It is named if the speed-up grows by
a quarter. What spoils the measurement comes first, then what would gain most. docs/why.md has thresholds and formats.
"""

from __future__ import annotations

import http.client
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from textwrap import fill
from typing import NamedTuple
from urllib.parse import urlsplit

from minispec import theory
from minispec.load.registry import DATA
from minispec.trace import Trace

WORTH = 1.25  # a suspect is named if putting its number right would gain so much
DEAR = 0.38  # c: beyond it best_speedup(0.7, c) is below 1.25, however cheap verification
USUAL_ALPHA, USUAL_C, FREE = 0.7, 0.1, 1.0  # α, c and v put right
COLLAPSED, SLOW, FULL = 0.3, 1.5, 100  # α; v; tokens per pass, half of an H200's ridge point, where kernels slow down
FELL, ERRORS, ENOUGH = 0.7, 3, 6  # the last third of the windows over the first; standard errors; windows
# What engines call acceptance in its three definitions, and the command of each trial; metrics in the order of
# preference, where a quotient has two; words of a log that point at a suspect, and the suspects that they name.
ENGINES, METRICS, HINTS, NAMED = json.loads((DATA / "why.json").read_text(encoding="utf-8")).values()
LENGTH = r"(?:num_spec(?:ulative)?_tokens|speculative_num_steps|max_draft_len|spec-draft-n-max)\W{1,4}(\d+)"
SAMPLE = re.compile(r"^(vllm:|sglang:|trtllm_|llamacpp:)(\w+)(?:\{(.*)\})? (\d[\d.e+-]*)\s*$", re.MULTILINE)


@dataclass
class Seen:
    """What is known. None: the input does not say. Seconds; of one request where nothing else is said."""

    engine: str
    form: str
    windows: list[dict] = field(default_factory=list)  # what each line, request or cycle said, in the order of time
    hints: dict[str, str] = field(default_factory=dict)  # words of the input that point at a suspect
    passed: list[float] = field(default_factory=list)  # in how many of all drafts position i was accepted
    k: int | None = None
    length: float | None = None  # E[N]: accepted + 1 per cycle
    rate: float | None = None  # accepted / drafted
    alpha: float | None = None  # accepted / tested
    cycle: float | None = None
    per_token: float | None = None
    plain: float | None = None  # a token of plain decoding at the same load
    c: float | None = None
    v: float | None = None
    measured: float | None = None  # the speed-up
    batch: float | None = None
    hits: float | None = None  # tokens found in the prefix cache, 0 to 1
    plain_hits: float | None = None
    notes: list[str] = field(default_factory=list)  # what cannot be known, and what to add

    def total(self, name: str) -> float:
        return sum(window.get(name, 0) for window in self.windows)

    def middle(self, name: str) -> float | None:
        found = [window[name] for window in self.windows if name in window]
        return median(found) if found else None

    def settle(self) -> Seen:
        """All that follows from what was said. Options were set before, and win."""
        drafts, drafted, accepted, tested = map(self.total, ("drafts", "drafted", "accepted", "tested"))
        drafts = drafts or (drafted / self.k if self.k else 0.0)
        if not self.k and not drafts:
            raise ValueError("there is no speculation in this input: give a run that speculates, or --k, --acceptance")
        if drafts and self.alpha is self.rate is self.length is None:
            lists = [(w["passed"], w["drafts"]) for w in self.windows if {"passed", "drafts"} <= {*w}]
            for i in range(max((len(some) for some, _ in lists), default=0)):
                self.passed.append(sum(some[i] * n for some, n in lists if i < len(some)) / sum(n for _, n in lists))
            self.length, self.rate = 1 + accepted / drafts, accepted / drafted if drafted else None
            if self.passed:  # position i + 1 is tested where position i was accepted
                self.alpha = min(1.0, accepted / (tested or drafts * (1 + sum(self.passed[:-1]))))
        self.k = self.k or max(1, round(drafted / drafts))
        if self.length is None and self.alpha is None is self.rate:
            raise ValueError("there is no acceptance in this input: add --acceptance, --rate or --length")
        if self.length is None:
            self.length = 1 + self.k * self.rate if self.alpha is None else theory.expected_tokens(self.alpha, self.k)
        if not 1 <= self.length <= self.k + 1.01:
            raise ValueError(f"{self.length:.2f} tokens per cycle, but k = {self.k} allows {self.k + 1}: give --k")
        self.rate = (self.length - 1) / self.k if self.rate is None else self.rate
        if self.alpha is None:  # that of a chain which emits as much: E[N] = k · 0 + v
            self.alpha = min(1.0, theory.break_even(self.k, 0.0, self.length))
        self.times()
        return self

    def times(self) -> None:
        """c and v. Where only their sum is known, v is a roofline's and c is the rest."""
        self.batch = self.batch or self.middle("batch")
        self.cycle = self.cycle or self.middle("seconds")
        self.per_token = self.middle("per_token") or (self.cycle and self.cycle / self.length)
        self.hits, draft, verify = self.middle("hits"), self.middle("draft"), self.middle("verify")
        if self.measured is None and self.plain and self.per_token:
            self.measured = self.plain / self.per_token
        if self.cycle and draft is not None and self.c is None:
            verify = verify or self.cycle - draft
            plain = self.plain or verify / (self.v or 1)
            self.c, self.v = draft / plain / self.k, verify / plain
            said = "v, taken as 1 here, the best case: add --plain, ms per token without speculation"
            self.notes += [] if self.plain else [said]
        elif self.cycle and self.plain:
            cost = self.cycle / self.plain
            if self.c is None:
                self.v = self.costs()[1](self.k)
                self.c = max(0.0, cost - self.v) / self.k
                said = f"c and v apart: only k·c + v = {cost:.2f} is known, v = {self.v:.2f} is an H200's roofline at "
                self.notes.append(said + "this batch, c the rest; add --c, or run k = 1: a cycle is (k - 1)·c shorter")
            self.v = max(0.01, cost - self.k * self.c) if self.v is None else self.v
        elif None in (self.c, self.v):
            how = "--plain, ms per token of this load without speculation or such a log" if self.cycle else "--c, --v"
            self.notes.append(f"c, v, the speed-up: add {how} (until then c = 0.1 and an H200's v stand in)")
        self.notes += [] if self.batch else ["how full the batch was: add --batch"]

    @property
    def betas(self) -> list[float]:
        """P(position i is accepted | those before it were), and α beyond what was drafted."""
        pairs = zip([1.0, *self.passed], self.passed, strict=False)
        return [*(min(1.0, b / a) if a else 0.0 for a, b in pairs), *[self.alpha] * 16][: max(16, self.k)]

    def costs(self) -> tuple[float, Callable[[int], float]]:
        """c, and v by draft length, a straight line from 1. Unknown: the usual c, and v of an 8B model on an H200."""
        v = self.v or theory.verify_cost(theory.H200, 8e9, self.k, max(1, round(self.batch or 1)))
        return USUAL_C if self.c is None else self.c, lambda k: max(0.01, 1 + (v - 1) * k / self.k)

    def speedup(self, **right: float) -> float:
        """What the formula allows, perhaps with `tokens`, `c` or `v` put right."""
        c, line = self.costs()
        return theory.cycle_speedup(**({"tokens": self.length, "k": self.k, "c": c, "v": line(self.k)} | right))

    def gain(self, **right: float) -> float:
        return self.speedup(**right) / self.speedup()

    def best(self) -> tuple[int, float]:
        """The draft length at these costs, and its speed-up."""
        return theory.best_k(self.betas, *self.costs()), theory.best_speedup(self.betas, *self.costs())


# ---------------------------------------------------------------- suspects


class Suspect(NamedTuple):
    name: str
    evidence: str
    trial: str  # the next experiment
    gain: float | None = None  # the speed-up with its number put right, over the speed-up now
    k: int | None = None  # of the trial
    first: bool = False  # it spoils the measurement


def compiling(seen: Seen) -> Suspect | None:
    """One of the first three windows ≥ 5 medians, and the mean ≥ 1.25 medians."""
    times = [w["seconds"] for w in seen.windows if "seconds" in w]
    if len(times) >= ENOUGH and max(times[:3]) >= 5 * median(times) and mean(times) >= WORTH * median(times):
        said = f"one of the first cycles took {max(times[:3]) / median(times):.0f} times the median"
        return Suspect("a first run, with compilation", said, "again", first=True)


def all_accepted(seen: Seen) -> Suspect | None:
    """accepted / drafted ≥ 0.995 in 100 drafts of two tokens or more."""
    if seen.rate >= 0.995 and seen.k >= 2 and seen.total("drafts") >= 100:
        said = f"all of {seen.total('drafted'):.0f} draft tokens: does the target draft for itself, does the text loop?"
        return Suspect("acceptance is too good", said, "prompts", first=True)


def collapsed(seen: Seen) -> Suspect | None:
    """α < 0.3 throughout: where it was higher for a part, the fall is the suspect."""
    if seen.alpha < COLLAPSED and not falling(seen):
        gain = seen.gain(tokens=theory.expected_tokens(USUAL_ALPHA, seen.k))
        said = f"α = {seen.alpha:.2f}: a head, tokenizer or chat template of another target, or layers in wrong order?"
        return Suspect("acceptance collapsed", said, "greedy", gain)


def falling(seen: Seen) -> Suspect | None:
    """Accepted / drafted of the last third of the windows against the first, in the order of their contexts (then twice
    as long at least) or of time: less by 30 % and by three standard errors."""
    for key, name, why in (
        ("context", "acceptance falls with the context", "{:.2f} to {:.2f} in long ones: beyond the draft's window"),
        (None, "acceptance drifts", "{:.2f} at first to {:.2f} at last: other traffic, another target"),
    ):
        some = [w for w in seen.windows if w.get("drafted") and w.get(key, key is None)]
        some.sort(key=lambda w, key=key: w.get(key, 0))
        ends = some[: len(some) // 3], some[-(len(some) // 3) :]
        if len(some) >= ENOUGH and (not key or ends[1][0][key] >= 2 * ends[0][-1][key]):
            n, m = (sum(w["drafted"] for w in end) for end in ends)
            p, q = (sum(w["accepted"] for w in end) / sum(w["drafted"] for w in end) for end in ends)
            if q <= FELL * p and p - q > ERRORS * (p * (1 - p) / n + q * (1 - q) / m) ** 0.5:
                said = f"accepted / drafted falls from {why.format(p, q)}?"
                return Suspect(name, said, "prompts", seen.gain(tokens=1 + seen.k * p))


def dear_draft(seen: Seen) -> Suspect | None:
    """c > 0.38."""
    if seen.c is not None and seen.c > DEAR and (gain := seen.gain(c=USUAL_C)) >= WORTH:
        said = f"c = {seen.c:.2f}, and {USUAL_C} would allow {seen.speedup(c=USUAL_C):.2f}: its size, launches, host?"
        return Suspect("the draft is too expensive", said, "k", gain, k=1)


def slow_verify(seen: Seen) -> Suspect | None:
    """v > 1.5, measured or without times by a roofline: by the batch, from 100 tokens per pass on."""
    v, gain, tokens = seen.costs()[1](seen.k), seen.gain(v=FREE), (seen.batch or 1) * (seen.k + 1)
    said = f"v = {v:.2f}" + " by an H200's roofline" * (seen.v is None) + f" for {tokens:.0f} tokens per pass"
    if v > SLOW and gain >= WORTH and tokens >= FULL:
        return Suspect("the batch is too large", said, "batch", gain, k=min(seen.k, 3))
    if v > SLOW and gain >= WORTH:
        said += ": mixture of experts, small GPU, a kernel for one token, eager mode?"
        return Suspect("verification is not free", said, "graphs", gain)


def long_draft(seen: Seen) -> Suspect | None:
    """A shorter draft is better by a quarter."""
    k, most = seen.best()
    if 1 <= k < seen.k and (gain := most / seen.speedup()) >= WORTH:
        said = f"k = {k} would allow {most:.2f}, k = {seen.k} allows {seen.speedup():.2f}"
        said += f"; {seen.passed[-1]:.2f} of the drafts are accepted to the end" if seen.passed else ""
        return Suspect("k is too large", said, "k", gain, k=k)


def elsewhere(seen: Seen) -> Suspect | None:
    """Measured < 0.8 of what k, α, c and v allow."""
    allowed = seen.speedup()
    if seen.measured and None not in (seen.c, seen.v) and seen.measured < allowed / WORTH:
        said = f"{seen.measured:.2f} measured, {allowed:.2f} allowed by α, k, c and v: a first run, prompts, the host?"
        return Suspect("time outside of drafting and verifying", said, "again", allowed / seen.measured)


def lost_prefixes(seen: Seen) -> Suspect | None:
    """Half of the hit rate without speculation."""
    if seen.plain_hits and seen.hits is not None and seen.hits < seen.plain_hits / 2:
        said = f"{seen.hits:.0%} of the tokens are found in it, {seen.plain_hits:.0%} without speculation"
        return Suspect("the prefix cache is lost", said, "cache")


def unseen_sampling(seen: Seen) -> Suspect | None:
    """Requests that sample or have penalties, greedy drafts, and α < 0.6."""
    if (said := seen.hints.get("sampling")) and "sampled drafts" not in seen.hints and seen.alpha < 0.6:
        said += ", and drafts are greedy: token d is accepted with p(d), not with Σ min(p, q)"
        return Suspect("sampling settings that the drafter does not see", said, "sampled")


SUSPECTS = (compiling, all_accepted, collapsed, falling, dear_draft, slow_verify, long_draft, elsewhere)
SUSPECTS += (lost_prefixes, unseen_sampling)


def suspects(seen: Seen) -> list[Suspect]:
    """With the engine's command for each trial. Those that words of a log name are rows of a table."""
    found = [Suspect(**row, evidence=seen.hints[hint]) for hint, row in NAMED.items() if hint in seen.hints]
    found += [suspect for test in SUSPECTS if (suspect := test(seen))]
    for i, one in enumerate(found):
        how = ENGINES[seen.engine]["trials"][one.trial]
        found[i] = one._replace(trial=how.replace("<k>", str(one.k)).replace("<k+1>", str((one.k or 0) + 1)))
    return sorted(found, key=lambda suspect: (not suspect.first, -(suspect.gain or 0)))


# ---------------------------------------------------------------- formats: text → windows


def grab(text: str, **patterns: str) -> dict:
    """The numbers that are found, where N stands in a pattern; `passed` takes all of a list."""
    number = r"\s*(\d+(?:\.\d+)?(?:, *\d+(?:\.\d+)?)*)"
    found = {name: re.search(pattern.replace("N", number), text) for name, pattern in patterns.items()}
    lists = {name: [float(x) for x in match[1].split(",")] for name, match in found.items() if match}
    return {name: some if name == "passed" else some[0] for name, some in lists.items()}


def vllm(text: str) -> Iterator[dict]:
    """A line on the load every ten seconds, and after it one on speculation."""
    for line in re.sub(r"\n.*(?=SpecDecoding metrics)", "", text).splitlines():
        if "generation throughput" in line or "SpecDecoding metrics" in line:
            said = grab(line, flow="generation throughput: N", batch="Running: N", percent="Prefix cache hit rate: N")
            said |= grab(line, length="acceptance length: N", accepted="Accepted: N", drafted="Drafted: N")
            said |= grab(line, passed="Per-position acceptance rate: N") | {"hits": said.get("percent", 0.0) / 100}
            yield said | {"steps": said.get("drafted", 0) / max(1, len(said.get("passed", ())))}


def sglang(text: str) -> Iterator[dict]:
    """A line every 40 decode steps (decode_log_interval), and one per batch of prompts."""
    new = cached = 0.0
    for line in text.splitlines():
        if "Prefill batch" in line:
            tokens = {"new": 0, "cached": 0} | grab(line, new="#new-token: N", cached="#cached-token: N")
            new, cached = new + tokens["new"], cached + tokens["cached"]
        elif "Decode batch" in line:
            said = {"batch": 0} | grab(line, batch="#running-req: N", context="#token: N", length="accept len: N")
            said |= grab(line, rate="accept rate: N", flow=r"gen throughput \(token/s\): N")
            said |= {"steps": 40 * said["batch"], "context": said.get("context", 0) / max(1, said["batch"])}
            yield said | ({"hits": cached / (new + cached)} if new + cached else {})


def llama(text: str) -> Iterator[dict]:
    """Several lines per request. The time of drafting is in the statistics of the whole server so far."""
    tasks: dict[str, dict] = {}
    said: dict = {}
    for line in text.splitlines():
        if task := re.search(r"\| task (\d+) \|", line):
            said = tasks.setdefault(task[1], {})
            said |= grab(line, ms=r"\|\s+eval time =N ms", tokens=r"\|\s+eval time =[ \d.]+ ms /N tokens")
            said |= grab(line, prompt=r"prompt eval time =[ \d.]+ ms /N", length=r"mean (?:len|acceptance length) =N")
            said |= grab(line, accepted=r"draft acceptance.*\(N accepted", drafted="accepted /N generated")
            said |= grab(line, passed=r"(?:acc per pos|rate per position) = \(N")
        elif len(found := grab(line, n=r"#calls\(b,g,a\) =\s*\d+N", ms=r"dur\(b,g,a\) = [\d.]+,N")) == 2:
            said["draft"] = found["ms"] / max(1, found["n"]) / 1e3
    for said in tasks.values():
        if said.get("tokens") and "ms" in said:
            said |= {"steps": said["tokens"] - said.get("accepted", 0), "per_token": said["ms"] / said["tokens"] / 1e3}
            yield said | {"context": said.get("prompt", 0) + said["tokens"]}


def tensorrt(iterations: list[dict]) -> Iterator[dict]:
    """What /metrics gives as JSON: an object per iteration, and per rank with attention DP, where all but the first
    repeat its drafts. Those with prompts tell no time."""
    for one in (one for one in iterations if not one.get("attentionDpRank")):
        spec, load = one.get("specDecodingStats") or {}, one.get("inflightBatchingStats") or {}
        said = {"hits": (one.get("kvCacheStats") or {}).get("cacheHitRate", 0)}
        if load.get("numGenRequests") and not load.get("numContextRequests"):
            said |= {"seconds": one["iterLatencyMS"] / 1e3, "batch": load["numGenRequests"]}
            said |= {"draft": spec["draftOverhead"] * said["seconds"]} if spec.get("draftOverhead") else {}
        if spec.get("numDraftTokens"):
            said |= {"accepted": spec["numAcceptedTokens"], "drafted": spec["numDraftTokens"]}
            said |= {"length": spec["acceptanceLength"], "steps": spec.get("numRequestsWithDraftTokens", 0)}
        yield said


def trace(cycles: list[dict]) -> Iterator[dict]:
    """A trace of minispec, cycle by cycle. Times are 0 where nobody took them."""
    for cycle in Trace.from_json(json.dumps(cycles)).cycles:
        said = {"steps": 1, "drafted": len(cycle.drafted), "accepted": cycle.accepted, "tested": cycle.tested}
        said |= {"passed": [float(cycle.accepted > i) for i in range(len(cycle.drafted))], "context": cycle.committed}
        if cycle.verify_seconds:
            said |= {"draft": cycle.draft_seconds, "verify": cycle.verify_seconds}
            said |= {"seconds": cycle.draft_seconds + cycle.verify_seconds + cycle.sample_seconds}
        yield said


def page(text: str) -> Iterator[dict]:
    """Metrics for Prometheus: sums since the server started, over all its labels but the position in the draft."""
    sums, said = {}, {}
    for _, name, labels, value in SAMPLE.findall(text):
        at = re.search(r'position="(\d+)"', labels)
        key = f"{name}@{at[1]}" if at else name
        sums[key] = sums.get(key, 0.0) + float(value)
    for field_, names in METRICS["sums"].items():
        said |= next(({field_: sums[name]} for name in names if sums.get(name)), {})
    for own, field_, above, below in METRICS["quotients"]:
        if f"\n{own}" in f"\n{text}" and above in sums and sums.get(below):
            said[field_] = sums[above] / sums[below]
    at = {int(key.partition("@")[2]): n for key, n in sums.items() if re.search(r"accepted_tokens\w*_total@", key)}
    if said.get("steps") and at:
        said |= {"passed": [at.get(i, 0.0) / said["steps"] for i in range(max(at) + 1)], "accepted": sum(at.values())}
        said["length"] = 1 + said["accepted"] / said["steps"]  # a gauge of it, if there is one, is of the last step
    yield said


LOGS = {"SpecDecoding metrics|generation throughput: ": ("vLLM", vllm), "Decode batch": ("SGLang", sglang)}
LOGS |= {r"\| task \d+ \|": ("llama.cpp", llama)}
PAGES = {"spec_decode_draft_size": "minispec", "vllm:": "vLLM", "sglang:": "SGLang", "llamacpp:": "llama.cpp"}


def parse(text: str, name: str) -> Seen:
    """The windows in the words of Seen, whatever the engine."""
    text = re.sub(r"\x1b\[[\d;]*m", "", text)
    logs = [found for marker, found in LOGS.items() if re.search(marker, text)]
    try:
        data = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.splitlines()]
        trt = "iterLatencyMS" in data[0]
        seen = Seen("TensorRT-LLM", "iterations") if trt else Seen("minispec", "trace")
        seen.windows = [*(tensorrt if trt else trace)(data)]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        if SAMPLE.search(text):
            engine = next((engine for start, engine in PAGES.items() if start in text), "TensorRT-LLM")
            seen = Seen(engine, "metrics since the server started", [*page(text)])
        elif logs:
            seen = Seen(logs[0][0], "log", [*logs[0][1](text)])
        else:
            raise ValueError(f"{name} is neither a log, a page of metrics nor a trace that docs/why.md lists") from None
    for said in seen.windows:
        normalise(said)
    seen.hints = {hint: m[m.lastindex or 0] for hint, words in HINTS.items() if (m := re.search(words, text))}
    seen.k = int(found[1]) if (found := re.search(LENGTH, text)) else None
    return seen


def normalise(said: dict) -> None:
    """Counts from rates and lengths, and times by Little's law: sequences at once = throughput · time per token."""
    steps, length = said.pop("steps", 0), said.get("length", 0)
    if "accepted" not in said and length and steps:
        said["accepted"] = (length - 1) * steps
        said["drafted"] = said["accepted"] / said["rate"] if said.get("rate") else 0
    if said.get("drafted") and (steps or length > 1):
        said.setdefault("accepted", 0)
        exact = said["accepted"] / (length - 1) if length > 1 else 0  # but for the two digits of the length
        said["drafts"] = exact if exact and abs(steps - exact) > 0.02 * exact else steps
        length = 1 + said["accepted"] / said["drafts"]
    said |= {"per_token": said["batch"] / said["flow"]} if said.get("flow") and said.get("batch") else {}
    if "per_token" in said:
        said.setdefault("seconds", said["per_token"] * (length or 1))


def read(source: str) -> Seen:
    """A file, `-` for standard input, or the address of a server on this machine."""
    if "://" not in source:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8", errors="replace")
        return parse(text, "standard input" if source == "-" else source)
    url = urlsplit(source)
    if url.scheme != "http" or url.hostname not in ("localhost", "127.0.0.1", "::1"):
        raise ValueError(f"{source} is not http:// on this machine: pipe its page, curl -s {source} | minispec why -")
    try:
        connection = http.client.HTTPConnection(url.hostname, url.port or 80, timeout=10)
        connection.request("GET", url.path.rstrip("/") or "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace")
        if answer.status != 200:
            raise OSError(f"status {answer.status}")
    except (OSError, http.client.HTTPException) as error:
        raise ValueError(f"{source}: {error}; llama-server needs --metrics, SGLang --enable-metrics") from None
    return parse(text, source)


def diagnose(source: str | None = None, plain: str | None = None, itl: float | None = None, **given) -> Seen:
    """The input, then numbers given as options, which win. `plain`: ms per token, or what `read` takes; `itl`: ms."""
    seen = read(source) if source else Seen("minispec", "numbers")
    for name, value in (given | {"cycle": itl and itl / 1e3}).items():
        setattr(seen, name, getattr(seen, name) if value is None else value)
    try:
        seen.plain = None if plain is None else float(plain) / 1e3
    except ValueError:
        other = read(plain)
        seen.plain, seen.plain_hits = other.middle("per_token") or other.middle("seconds"), other.middle("hits")
    return seen.settle()


def facts(seen: Seen) -> dict:
    """For --json. What is not known is null, or not there."""
    own = {name: value for name, value in vars(seen).items() if name not in ("windows", "hints", "passed")}
    own |= {"alpha_by_position": seen.betas[: len(seen.passed)], "suspects": [one._asdict() for one in suspects(seen)]}
    speed = {"allowed": seen.speedup(), "best_k": seen.best()[0], "best_speedup": seen.best()[1]}
    return own if None in (seen.c, seen.v) else own | speed


def report(seen: Seen) -> str:
    """80 columns."""
    called = ENGINES[seen.engine]["called"] if seen.form in ("log", "trace", "iterations") else ("", "", "")
    rate, alpha, length = (f" <- {said}" if said else "" for said in called)
    shown = range(1, min(seen.k, 10) + 1)
    lines = [
        f"{seen.engine}, {seen.form}: k = {seen.k}" + (f", batch {seen.batch:.3g}" if seen.batch else ""),
        f"acceptance   {seen.rate:5.2f}  accepted / drafted{rate}",
        f"             {seen.alpha:5.2f}  accepted / tested: α of the formulas{alpha}",
        f"             {seen.length:5.2f}  per cycle with bonus, {seen.length - 1:.2f} without{length}",
        "by position  " + " ".join(f"{beta:5.2f}" for beta in seen.betas[: len(shown)]) + "  α" * (not seen.passed),
        "E[N] k=1,2,… " + " ".join(f"{theory.expected_tokens_by_position(seen.betas[:k]):5.2f}" for k in shown),
    ]
    if seen.cycle:
        plain = f"; plain {1e3 * seen.plain:.2f} ms" if seen.plain else ""
        lines.append(f"times        a cycle {1e3 * seen.cycle:.2f} ms, {1e3 * seen.per_token:.2f} ms per token{plain}")
    if None not in (seen.c, seen.v):
        (k, most), even = seen.best(), theory.break_even(seen.k, seen.c, seen.v)
        lines += [
            f"costs        c = {seen.c:.2f}, v = {seen.v:.2f}: a cycle is {seen.k * seen.c + seen.v:.2f} plain steps",
            f"speed-up     {seen.speedup():.2f} allowed"
            + (f", {seen.measured:.2f} measured" if seen.measured else " at most"),
            f"             k = {seen.k} " + (f"breaks even at α = {even:.2f}" if even <= 1 else "cannot pay at any α"),
            f"best k here  {k}" + (f": {most:.2f} times as fast" if k else ": do not speculate"),
        ]
    lines.append("" if (found := suspects(seen)) else "\nnothing looks wrong")
    for number, one in enumerate(found, 1):
        gain = f" (without it {one.gain:.2f} times as fast as now)" if one.gain else ""
        said = f"{number}. {one.name}: {one.evidence}{gain}"
        lines += [fill(said, 80, subsequent_indent="   "), f"   try: {one.trial}"]
    lines += [fill(f"not in the input: {note}", 80, subsequent_indent="   ") for note in seen.notes]
    return "\n".join(lines)
