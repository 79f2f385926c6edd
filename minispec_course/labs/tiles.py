"""How much of the bandwidth one kernel reaches, by how its work is cut: a skinny product, and attention over splits.

A GPU reads at full speed when enough bytes are under way at once. So a kernel must be cut into enough programs to give
every multiprocessor one, and each program must have enough of its own reads under way. Both sweeps try a few cuts of
the same work. On a GPU all calls run from a graph, over as many copies as it takes to find nothing in the L2 cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import torch
import torch.nn.functional as F

from minispec.gpu.attention import INTERPRETED, card, flash_decode, unavailable
from minispec.gpu.capture import Captured
from minispec.gpu.fused import two_products
from minispec.gpu.products import Tiles, shared_bytes, skinny
from minispec.load.folder import default_dtype
from minispec.measure import interleaved_times, read_bandwidth

COLD = 2**29  # bytes that all copies hold at least: ten times the L2 of an H200
TORCH = "torch"
WARPS = {16: 2, 32: 2, 64: 4, 128: 8}  # of a program, by its rows
SPLITS = (1, 2, 4, 8, 16, 32, 64)


def times_per_call(calls: dict[object, Callable[[int], object]], copies: int, device, repeat: int) -> dict:
    """{name: seconds of one call, as a dict}; each call takes the number of a copy."""
    beacon = torch.zeros(1, device=device)

    def over_all(call: Callable[[int], object]) -> Callable[[], None]:
        def work() -> None:
            for copy in range(copies):
                call(copy)

        return Captured(work, [beacon])

    times = interleaved_times({name: over_all(call) for name, call in calls.items()}, repeat, 2, device)
    return {
        name: {key: value / copies if key != "n" else value for key, value in asdict(timing).items()}
        for name, timing in times.items()
    }


def runnable(calls: dict) -> tuple[dict, dict[str, str]]:
    """The calls that this GPU can run, and why it refuses the others: too much shared memory, say."""
    fine, refused = {}, {}
    for name, call in calls.items():
        try:
            call(0)
            fine[name] = call
        except Exception as error:  # Triton's own kinds of error, which differ from version to version
            refused[str(name)] = f"{type(error).__name__}: {error}"[:200]
    return fine, refused


def candidates(rows: int, width: int, dtype: torch.dtype, shared: int) -> list[Tiles]:
    """Rows of W per program × numbers per strip, with as many strips under way, up to four, as `shared` bytes hold."""
    found = []
    for own in (16, 32, 64, 128):
        for wide in (64, 128, 256):
            fitting = [Tiles(own, wide, WARPS[own], stages) for stages in (4, 3, 2)]
            fitting = [t for t in fitting if shared_bytes(t, dtype, dtype, False, hopper=shared > 200e3) <= shared]
            if fitting and own <= rows and wide <= width:
                found.append(fitting[0])
    return found


def swept(size: int, device, unavailable: str | None, torchs: dict, rows: list[dict]) -> dict:
    """What both sweeps say: torch's own time for `size` bytes, and that of every cut."""
    interpreted = INTERPRETED and torch.device(device).type != "cuda"
    own = {"seconds": torchs, "bytes_per_second": size / torchs["median"]}
    return {"bytes": size, "interpreted": interpreted, "unavailable": unavailable, "torch": own, "results": rows}


@torch.no_grad()
def sweep_product(device, dtype: torch.dtype, shape: tuple[int, int] = (4096, 4096), repeat: int = 7) -> dict:
    """y = x Wᵀ of one token, W [N, K], by every tiling and by torch: seconds, and bytes of W per second."""
    (N, K), on_gpu = shape, torch.device(device).type == "cuda"
    size = N * K * dtype.itemsize
    copies = -(-COLD // size) if on_gpu else 1
    weights = torch.randn(copies, N, K, device=device, dtype=dtype)
    x = torch.randn(1, K, device=device, dtype=dtype)
    calls = {TORCH: lambda copy: F.linear(x, weights[copy])}
    reason = unavailable(device)
    if reason is None:
        gpu = card(torch.device(device))
        for tiles in candidates(N, K, dtype, gpu.shared):
            calls[tiles] = lambda copy, tiles=tiles: skinny(x, weights[copy], tiles=tiles)
    calls, refused = runnable(calls)
    times = times_per_call(calls, copies, device, repeat)
    rows = [
        tiles._asdict()
        | {"programs": -(-N // tiles.rows), "shared_bytes": shared_bytes(tiles, dtype, dtype, False)}
        | {"seconds": seconds, "bytes_per_second": size / seconds["median"]}
        for tiles, seconds in times.items()
        if tiles != TORCH
    ]
    multiprocessors = card(torch.device(device)).multiprocessors if on_gpu else None
    about = {"shape": [N, K], "tokens": 1, "multiprocessors": multiprocessors, "refused": refused}
    return about | swept(size, device, reason, times[TORCH], rows)


@torch.no_grad()
def sweep_splits(
    device, dtype: torch.dtype, heads: tuple[int, int, int] = (32, 8, 128), context: int = 8192, repeat: int = 7
) -> dict:
    """Attention of one token over a long context, by the number of splits: seconds, and bytes of keys and values per
    second. `heads`: of queries, of keys and values, and their width."""
    (H, Hkv, D), on_gpu = heads, torch.device(device).type == "cuda"
    size = 2 * Hkv * context * D * dtype.itemsize
    copies = -(-COLD // size) if on_gpu else 1
    k, v = torch.randn(2, copies, 1, Hkv, context, D, device=device, dtype=dtype)
    q = torch.randn(1, H, 1, D, device=device, dtype=dtype)
    lengths = torch.tensor([context - 1], device=device)  # the new token is the last one
    look = two_products(lengths, lengths[:, None], context, H // Hkv)
    calls = {TORCH: lambda copy: look(q, k[copy], v[copy])}
    reason = unavailable(device)
    if reason is None:
        for splits in SPLITS:
            calls[splits] = lambda copy, splits=splits: flash_decode(q, k[copy], v[copy], lengths, splits=splits)
    times = times_per_call(calls, copies, device, repeat)
    rows = [
        {"splits": splits, "programs": Hkv * splits, "seconds": seconds, "bytes_per_second": size / seconds["median"]}
        for splits, seconds in times.items()
        if splits != TORCH
    ]
    return {"heads": [H, Hkv, D], "context": context} | swept(size, device, reason, times[TORCH], rows)


def sweep_both(device, dtype: torch.dtype | None = None, repeat: int = 7, product=(4096, 4096), attention=None) -> dict:
    """Both sweeps and the bandwidth that they are compared with, as `python -m benchmarks limit` stores them."""
    dtype = default_dtype(torch.device(device)) if dtype is None else dtype
    return {
        "bandwidth": asdict(read_bandwidth(device)),
        "tiles": sweep_product(device, dtype, product, repeat),
        "splits": sweep_splits(device, dtype, *(attention or ((32, 8, 128), 8192)), repeat),
    }
