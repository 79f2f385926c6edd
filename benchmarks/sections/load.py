"""The section on a server under load: latencies by the rate at which requests arrive, with and without speculation."""

from __future__ import annotations

from .. import svg
from .base import NONE, Section, ratio, table, where

LATENCIES = {"tpot": "TPOT", "ttft": "TTFT"}


def serve(result: dict) -> Section:
    servers, machine = result["servers"], where(result["machine"])
    rows = [_row(server["server"], row) for server in servers for row in server["results"]]
    first = servers[0]["results"][-1]
    low, high = result["output_tokens"]
    limits = [f"{name.upper()} ≤ {most:g} ms" for name, most in result["targets_ms"].items()]
    good = f" Goodput counts requests with {' and '.join(limits)}." if limits else ""
    notes = [
        f"{server['server']} at {row['rate'] or 'inf'}: {row['requests'] - row['completed']} of {row['requests']} "
        "requests failed"
        for server in servers
        for row in server["results"]
        if row["completed"] < row["requests"]
    ]
    return Section(
        f"Requests over time, {', '.join(dict.fromkeys(server['model'] for server in servers))} on {machine}",
        f"Requests arrive over HTTP at a given mean rate (burstiness "
        f"{result['burstiness']:g}), whether or not earlier ones have been answered; each wants {low} to {high} "
        "tokens. Offered is the rate times the mean length of these outputs: a server that keeps up "
        "emits as much, and one that does not has a queue "
        f"that grows. Latencies are those of the client.{good}",
        (
            f"tokens/s, {servers[0]['server']}, at {_rate(first)}",
            f"{first['tokens_per_second']:,.0f}",
            _offered(first),
            _over_offered(first),
        ),
        [
            table(
                [
                    "server",
                    "requests",
                    "completed/s",
                    "goodput/s",
                    "tokens/s",
                    "offered",
                    "tokens/s / offered",
                    "TTFT p50, ms",
                    "TTFT p99",
                    "TPOT p50, ms",
                    "TPOT p99",
                    "ITL p99, ms",
                    "mean acceptance length",
                ],
                rows,
            )
        ],
        {name: _chart(result, name, words, machine) for name, words in LATENCIES.items()},
        notes,
    )


def _row(name: str, row: dict) -> list[str]:
    def ms(latency: str, p: str) -> str:
        return f"{row[f'{latency}_ms'][p]:,.1f}" if row[f"{latency}_ms"] else NONE

    length, good = row["acceptance_length"], row["goodput"]
    return [
        name,
        _rate(row),
        f"{row['requests_per_second']:.2f}",
        NONE if good is None else f"{good:.2f}",
        f"{row['tokens_per_second']:,.0f}",
        _offered(row),
        _over_offered(row),
        ms("ttft", "p50"),
        ms("ttft", "p99"),
        ms("tpot", "p50"),
        ms("tpot", "p99"),
        ms("itl", "p99"),
        NONE if length is None else f"{length:.2f}",
    ]


def _rate(row: dict) -> str:
    return "all at once" if row["rate"] is None else f"{row['rate']:g}/s"


def offered(row: dict) -> float | None:
    """Tokens per second that a server emits as long as no queue grows; None: they all came at once."""
    if row["rate"] is None or not row["completed"]:
        return None
    return row["rate"] * row["tokens"] / row["completed"]


def _offered(row: dict) -> str:
    return NONE if offered(row) is None else f"{offered(row):,.0f}"


def _over_offered(row: dict) -> str:
    return ratio(row["tokens_per_second"], offered(row))


def _chart(result: dict, name: str, words: str, machine: str) -> str:
    rates = sorted({row["rate"] for server in result["servers"] for row in server["results"] if row["rate"]})
    series = []
    for server in result["servers"]:
        at = {row["rate"]: row[f"{name}_ms"] for row in server["results"]}
        series.append(svg.Series(server["server"], [at[rate]["p99"] if at.get(rate) else None for rate in rates]))
    return svg.lines(
        f"{words}, 99th percentile, by load",
        f"over HTTP, on {machine}",
        rates,
        series,
        ("requests per second", "ms"),
        log=True,
    )
