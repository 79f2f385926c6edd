"""The long version of check_crowd, by hand: python tests/server/stress.py [CLIENTS [REQUESTS]]

CLIENTS at once (300), a third of which vanish; then REQUESTS (5000) short ones, with the process's memory as it goes.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent)]
from server_checks import ask, check_crowd, running  # noqa: E402

from benchmarks.client import Endpoint  # noqa: E402


def resident() -> float:
    """MiB of memory that this process holds (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


async def many(endpoint: Endpoint, requests: int, at_once: int = 32) -> list[float]:
    memory, every = [], max(at_once, requests // 10)
    for first in range(0, requests, every):
        left = iter(range(first, min(requests, first + every)))

        async def client(left=left) -> None:
            for i in left:
                answer = await endpoint.complete(ask("Once upon a time" + " and" * (i % 7), 2))
                assert answer.error is None, answer.error

        await asyncio.gather(*(client() for _ in range(at_once)))
        memory.append(round(resident(), 1))
        print(f"{min(requests, first + every)} requests: {memory[-1]} MiB", flush=True)
    return memory


if __name__ == "__main__":
    given = [int(number) for number in sys.argv[1:3]]
    clients, requests = given + [300, 5000][len(given) :]
    print(json.dumps(check_crowd(clients, 24, 32)), flush=True)
    with running(num_blocks=512, max_num_seqs=32) as server:
        start = time.perf_counter()
        memory = asyncio.run(many(Endpoint(server.url), requests))
        server.assert_all_free()
        print(json.dumps({"requests": requests, "seconds": time.perf_counter() - start, "MiB": memory}))
