"""What HTTP costs one client, by hand: python tests/server/overhead.py [MODEL [TOKENS [ROUNDS]]]

TPOT of a bare engine and of a streaming client of a server around the same engine, in turns. Both decode the same
prompt greedily; TPOT is (last token − first token) / (tokens − 1).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from statistics import median, quantiles

sys.path[:0] = [str(Path(__file__).resolve().parent)]
from server_checks import Running  # noqa: E402

import minispec as ms  # noqa: E402
from benchmarks.client import Endpoint  # noqa: E402
from minispec_course.labs.load import latencies  # noqa: E402

PROMPT = "Once upon a time"


def bare(engine: ms.Engine, tokens: int) -> float:
    moments: list[float] = []
    for _ in engine.stream(PROMPT, tokens, ignore_eos=True):
        moments.append(time.perf_counter())
    return (moments[-1] - moments[0]) / (tokens - 1)


def served(server: Running, name: str, tokens: int) -> tuple[float, float]:
    """TPOT and TTFT."""
    body = {"model": name, "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    answer = asyncio.run(Endpoint(server.url).complete(body))
    assert answer.tokens == tokens, answer.error
    found = latencies(answer)
    return found["tpot"], found["ttft"]


if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
    tokens, rounds = [*map(int, sys.argv[2:4]), *[48, 7][len(sys.argv[2:4]) :]]
    target = ms.load(name)
    engine, server = ms.Engine(target, num_blocks=64), Running(ms.Engine(target, num_blocks=64))
    bare(engine, 8), served(server, name, 8)
    pairs = [(bare(engine, tokens), served(server, name, tokens)) for _ in range(rounds)]
    over = [there / here - 1 for here, (there, _) in pairs]
    figures = {
        "model": name,
        "tokens": tokens,
        "rounds": rounds,
        "bare TPOT ms": 1000 * median(here for here, _ in pairs),
        "served TPOT ms": 1000 * median(there for _, (there, _) in pairs),
        "served TTFT ms": 1000 * median(first for _, (_, first) in pairs),
        "overhead, median": median(over),
        "overhead, quartiles": quantiles(over, n=4)[::2],
    }
    print(json.dumps(figures))
    server.close()
