"""Attention of a few new tokens over a long memory: how much of this machine's read bandwidth it reaches.

Decoding reads every key and value once for a handful of queries, so its time should be bytes over bandwidth. Measured
are the kernels of flash_decode, over a contiguous and over a paged cache, and torch's own attention; where kernels
cannot run, their references in torch. All take turns. On a GPU calls run from CUDA graphs, one after the other over as
many layers as it takes to find nothing in the L2.
"""

import argparse
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from minispec import theory
from minispec.cache import attention, per_query_head, visible_slots
from minispec.load.folder import default_dtype, usable_device
from minispec.measure import Timing, interleaved_times, machine, read_bandwidth, where

from ..cli import options
from .page import Headline, Section, Table, each, ratio, spread
from .shapes import several

WITHOUT_MODEL = True  # on the command line: no options about models and prompts
CASES = {"cuda": ["64x4096", "1x500", "1x4096"], "cpu": ["2x256", "1x100"]}  # rows × cached tokens of each
COLD = 2**28  # bytes that the layers of a case hold at least, several times an L2
LONG = 2e-3  # seconds that a timed run lasts about, so that starting it does not count


class Case(NamedTuple):
    batch: int
    context: int  # tokens remembered by each row
    tokens: int  # new ones

    def __str__(self) -> str:
        return f"{self.batch} × {self.context} + {self.tokens}"


class Shape(NamedTuple):
    heads: int  # of queries
    kv_heads: int  # of keys and values
    dim: int  # of each


class Memory:
    """Random keys and values of several layers, contiguous and in shuffled blocks, and queries for them."""

    def __init__(self, case: Case, shape: Shape, block_size: int, *, device, dtype, seed: int):
        (B, context, T), (heads, kv_heads, dim) = case, shape
        self.case, self.device = case, torch.device(device)
        blocks = -(-(context + T) // block_size)
        self.bytes = 2 * B * kv_heads * (context + T) * dim * dtype.itemsize  # what one layer has to read
        self.layers = min(64, -(-COLD // self.bytes)) if self.device.type == "cuda" else 1
        self.loops = max(1, round(LONG * 3e12 / (self.bytes * self.layers))) if self.device.type == "cuda" else 1
        generator = torch.Generator(device).manual_seed(seed)
        draw = partial(torch.randn, generator=generator, device=device, dtype=dtype)
        self.q = draw(self.layers, B, T, heads, dim).transpose(2, 3)  # [L, B, H, T, D]
        self.k, self.v = draw(2, self.layers, B, kv_heads, blocks * block_size, dim)  # [L, B, Hkv, S, D] each
        self.key_blocks, self.value_blocks = draw(2, self.layers, B * blocks, block_size, kv_heads, dim)
        order = torch.randperm(B * blocks, generator=generator, device=device)
        self.tables = order.reshape(B, blocks).int()
        self.lengths = torch.full((B,), context, device=device)
        slots = self.lengths[:, None] + torch.arange(T, device=device)
        seen = per_query_head(visible_slots(slots, context + T, None), heads // kv_heads)
        self.seen = None if T == 1 else seen  # one token sees all there is: then torch needs no mask

    def contiguous(self, attend: Callable, layer: int) -> Tensor:
        return attend(self.q[layer], self.k[layer], self.v[layer], self.lengths)

    def paged(self, attend: Callable, layer: int) -> Tensor:
        return attend(self.q[layer], self.key_blocks[layer], self.value_blocks[layer], self.tables, self.lengths)

    def torch(self, layer: int) -> Tensor:
        end = self.case.context + self.case.tokens
        return attention(self.q[layer], self.k[layer, :, :, :end], self.v[layer, :, :, :end], self.seen)

    def run(self, call: Callable[[int], Tensor]) -> Callable[[], None]:
        """All layers, `loops` times: on a GPU as a graph, replayed."""

        def all_layers() -> None:
            for layer in range(self.layers):
                call(layer)

        if self.device.type != "cuda":
            return all_layers
        call(0)  # compiles
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            all_layers()
        return several(graph.replay, self.loops)

    def time(self, calls: dict[str, Callable[[int], Tensor]], repeat: int) -> dict[str, Timing]:
        """Seconds of one call on one layer."""
        runs = {name: self.run(call) for name, call in calls.items()}
        times, calls = interleaved_times(runs, repeat, 2, self.device), self.layers * self.loops
        return {name: Timing(**each(asdict(timing), calls)) for name, timing in times.items()}


def compare(memory: Memory, bandwidth: float, repeat: int = 9) -> dict:
    """One case: the ways to attend, taking turns, each with what it reaches of `bandwidth` (bytes/s)."""
    from minispec.gpu import attention as flash

    references = {"contiguous": flash.flash_decode_torch, "paged": flash.flash_decode_paged_torch}
    # Triton's interpreter would do too, but takes seconds for what a GPU does in microseconds.
    kernels = flash.unavailable(memory.device) is None and not flash.INTERPRETED
    functions = {"contiguous": flash.flash_decode, "paged": flash.flash_decode_paged} if kernels else references
    calls = {name: partial(getattr(memory, name), function) for name, function in functions.items()}
    calls, results = {"torch": memory.torch} | calls, {}
    for name, timing in memory.time(calls, repeat).items():
        right = (
            memory.contiguous(references["contiguous"], 0)
            if name == "torch"
            else getattr(memory, name)(references[name], 0)
        )
        results[name] = {
            "seconds": asdict(timing),
            "bytes_per_second": asdict(timing.rate(memory.bytes)),
            "of_bandwidth": memory.bytes / timing.median / bandwidth,
            "error": float((calls[name](0) - right).abs().max()),
            "kernel": kernels and name != "torch",
        }
    return {
        **memory.case._asdict(),
        "bytes": memory.bytes,
        "layers": memory.layers,
        "results": results,
        "paged_over_contiguous": results["paged"]["seconds"]["median"] / results["contiguous"]["seconds"]["median"],
    }


def seconds_at_best(result: dict, case: dict) -> float:
    """All keys and values once, at the bandwidth."""
    shape, size = result["shape"], getattr(torch, result["dtype"]).itemsize
    per_token = theory.kv_bytes_per_token(1, shape["kv_heads"], shape["dim"], size)
    return theory.kv_bytes(case["batch"], case["context"] + case["tokens"], per_token) / result["bandwidth"]["median"]


def section(result: dict) -> Section:
    rows, across, shape = [], [], result["shape"]
    for case in result["cases"]:
        floor, title = seconds_at_best(result, case), str(Case(case["batch"], case["context"], case["tokens"]))
        digits = 1 if floor > 1e-5 else 2
        for name, row in case["results"].items():
            seconds = row["seconds"]["median"]
            bound = [f"{1e6 * floor:.{digits}f}", ratio(seconds, floor), f"{floor / seconds:.0%}"]
            rows.append([title, name, spread(row["seconds"], 1e6, digits), *bound])
        across.append(f"{case['paged_over_contiguous']:.2f} at {title}")
    first = result["cases"][0]
    floor, seconds = seconds_at_best(result, first), first["results"]["paged"]["seconds"]["median"]
    head = ["batch × cached + new", "cache", "µs", "predicted", "measured / predicted", "of the bandwidth"]
    notes = [f"Paged over contiguous, in time: {', '.join(across)}."]
    if not first["results"]["paged"]["kernel"]:
        notes.append("Our kernels cannot run here; their reference versions in torch did the work.")
    return Section(
        f"Attention over a long context on {where(result['machine'])}",
        f"A few new tokens of each sequence attend to its whole cache: {shape['heads']} query heads over "
        f"{shape['kv_heads']} key/value heads of width {shape['dim']}, blocks of {result['block_size']}. Every key and "
        "value is read once, so the prediction is their bytes divided by the bandwidth.",
        [Table(head, rows, (0, 1))],
        Headline(f"paged attention, {rows[0][0]}, µs", 1e6 * seconds, 1e6 * floor, ".0f"),
        notes,
    )


def rows_and_context(text: str) -> tuple[int, int]:
    """--cases as the command line takes them: 64x4096."""
    try:
        batch, context = map(int, text.split("x"))
        if batch >= 1 and context >= 0:
            return batch, context
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r}: give batch x cached tokens, as in 64x4096")


def add_arguments(parser) -> None:
    default = f"(default: {' '.join(CASES['cuda'])}; on a CPU {' '.join(CASES['cpu'])})"
    options.add(parser, "cases", rows_and_context, None, default, "BATCHxCACHED", nargs="+")
    options.add(parser, "new-tokens", options.count, [1, 5], "per sequence", "T", nargs="+")
    heads = "of queries, of keys and values, and their width"
    options.add(parser, "heads", options.count, [32, 8, 128], heads, ("H", "HKV", "D"), nargs=3)
    options.add(parser, "block-size", options.count, 16, "tokens per block")
    options.add_repeat(parser, 9)
    options.add_device(parser)


def run(args) -> dict:
    shape = Shape(*args.heads)
    if shape.heads % shape.kv_heads:
        raise ValueError(f"heads={args.heads}: give heads of queries in groups of one size, one for each key head")
    device = str(usable_device(args.device))
    on_gpu = device.startswith("cuda")
    dtype = default_dtype(device)
    # A GPU reads 1 GiB so fast that starting counts.
    bandwidth = read_bandwidth(device, size=2**32 if on_gpu else None)
    named = args.cases or map(rows_and_context, CASES["cuda" if on_gpu else "cpu"])
    cases = [Case(batch, context, T) for batch, context in named for T in args.new_tokens]
    results = []
    for case in tqdm(cases, leave=False, disable=None):  # on terminals only
        memory = Memory(case, shape, args.block_size, device=device, dtype=dtype, seed=args.seed)
        results.append(compare(memory, bandwidth.median, args.repeat))
        del memory  # before the next one is made: both may not fit
    return {
        "benchmark": "attention",
        "shape": shape._asdict(),
        "dtype": str(dtype).removeprefix("torch."),
        "device": device,
        "block_size": args.block_size,
        "repeat": args.repeat,
        "seed": args.seed,
        "bandwidth": asdict(bandwidth),
        "cases": results,
        "machine": machine(),
    }
