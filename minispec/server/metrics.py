"""What Prometheus reads from /metrics, under the names that vLLM gives the same things.

TTFT    time to first token: from the request's arrival to the end of the step that emitted its first token
ITL     inter-token latency: between two steps that emitted tokens of one request; with speculation a step emits several
TPOT    time per output token: of one request, (end − first token) / (tokens − 1)
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..generate import Output
from ..serving.engine import Engine
from ..serving.metrics import StepRecord
from .ticket import Ticket

SECONDS = [digit * 10.0**power for power in range(-4, 2) for digit in (1, 2, 5)] + [100.0, 200.0]  # 0.1 ms to 200 s
GAUGES = {
    "num_requests_running": "requests in the batch",
    "num_requests_waiting": "requests that wait to be admitted",
    "kv_cache_usage_perc": "part of the blocks that requests hold, 0 to 1",
}
COUNTERS = {  # prometheus_client adds _total
    "prompt_tokens": "tokens of prompts whose request has emitted its first token",
    "generation_tokens": "tokens emitted",
    "num_preemptions": "requests that had to give their blocks back",
    "prefix_cache_queries": "tokens of admitted requests that were looked up in the prefix cache",
    "prefix_cache_hits": "those of them that were found",
    "spec_decode_num_drafts": "drafts that were verified",
    "spec_decode_num_draft_tokens": "their tokens",
    "spec_decode_num_accepted_tokens": "the tokens of them that were accepted",
}
HISTOGRAMS = {
    "time_to_first_token_seconds": "from arrival to the first token",
    "inter_token_latency_seconds": "between two steps that emitted tokens of a request",
    "request_time_per_output_token_seconds": "of a request, after its first token",
    "e2e_request_latency_seconds": "from arrival to the end",
}


class Metrics:
    """Counters of one server. The engine's thread counts, and any thread may read."""

    def __init__(self, model: str):
        self.registry, self.prefix_hits = CollectorRegistry(), 0

        def make(kind, name: str, help: str, *labels: str, **options):
            metric = kind(f"vllm:{name}", help, ["model_name", *labels], registry=self.registry, **options)
            return metric if labels else metric.labels(model)

        self.model = model
        self.of = {name: make(Gauge, name, help) for name, help in GAUGES.items()}
        self.of |= {name: make(Counter, name, help) for name, help in COUNTERS.items()}
        self.of |= {name: make(Histogram, name, help, buckets=SECONDS) for name, help in HISTOGRAMS.items()}
        accepted = "draft tokens accepted, by their position in the draft"
        self.accepted_at = make(Counter, "spec_decode_num_accepted_tokens_per_pos", accepted, "position")
        self.success = make(Counter, "request_success", "requests that have ended", "finished_reason")

    def count_tokens(self, ticket: Ticket, tokens: int, now: float) -> None:
        """A request has so many tokens now."""
        if tokens > ticket.tokens:
            if ticket.tokens:
                self.of["inter_token_latency_seconds"].observe(now - ticket.last)
            else:
                ticket.first = now
                self.of["time_to_first_token_seconds"].observe(now - ticket.arrived)
                self.of["prompt_tokens"].inc(len(ticket.prompt))
            self.of["generation_tokens"].inc(tokens - ticket.tokens)
            ticket.tokens, ticket.last = tokens, now

    def count_end(self, ticket: Ticket, output: Output, now: float) -> None:
        self.success.labels(self.model, output.finish_reason).inc()
        if output.finish_reason in ("stop", "length"):
            self.of["e2e_request_latency_seconds"].observe(now - ticket.arrived)
            if ticket.tokens > 1:
                per_token = (ticket.last - ticket.first) / (ticket.tokens - 1)
                self.of["request_time_per_output_token_seconds"].observe(per_token)

    def count_step(self, engine: Engine, record: StepRecord | None, admitted: Sequence[Ticket]) -> None:
        """The state between two steps; `record` is of the step before, if there was one since the last time."""
        self.of["num_requests_running"].set(len(engine.scheduler.running))
        self.of["num_requests_waiting"].set(len(engine.scheduler.waiting))
        self.of["kv_cache_usage_perc"].set(engine.pool.num_used / engine.pool.num_blocks)
        if record is None:
            return
        self.of["num_preemptions"].inc(len(record.preempted))
        hits, self.prefix_hits = self.prefix_hits, engine.pool.counts["prefix_tokens"]
        self.of["prefix_cache_hits"].inc(self.prefix_hits - hits)
        if engine.pool.enable_prefix_caching:
            self.of["prefix_cache_queries"].inc(sum(len(ticket.prompt) + ticket.tokens for ticket in admitted))
        for row in record.rows:
            if row.drafted:
                self.of["spec_decode_num_drafts"].inc()
                self.of["spec_decode_num_draft_tokens"].inc(row.drafted)
                self.of["spec_decode_num_accepted_tokens"].inc(row.accepted)
                for position in range(row.accepted):
                    self.accepted_at.labels(self.model, position).inc()

    def render(self) -> bytes:
        return generate_latest(self.registry)
