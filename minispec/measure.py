"""Honest timing on this machine: what it reads, what it computes, and what a pass of M tokens really costs.

Four rules make a timing honest. Wait for the device before and after, because a GPU returns before it has worked. Take
the median and quartiles of several runs, because one run is an anecdote. Interleave what is to be compared, because a
machine that slows down in the middle should slow down everything alike. Keep Python's garbage collector from looking
through everything there is in the middle of a run, because whose run that would be is chance.
"""

from __future__ import annotations

import gc
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .cpu.trials import NOTICEABLE, Watch
from .generate import generate
from .linear import has_bfloat16
from .load.folder import default_dtype
from .require import require, require_counts, require_not_negative
from .trace import synchronize

if TYPE_CHECKING:
    from .load.model import Model

CURVE = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)  # tokens a pass, as `verify_curve` tries them
WATCHES: list[Watch] = []  # over what is being timed


@dataclass(frozen=True)
class Rate:
    """Something per second: the median of n runs, and the quartiles between which the middle half of them lies."""

    median: float
    low: float
    high: float
    n: int


class Timing(Rate):
    """The same of seconds."""

    @classmethod
    def of(cls, samples: Sequence[float]) -> Timing:
        quartiles = statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else [samples[0]] * 3
        return cls(quartiles[1], quartiles[0], quartiles[2], len(samples))

    def rate(self, amount: float) -> Rate:
        """`amount` of something per run, as so much per second: the slow runs are the low rates."""
        return Rate(amount / self.median, amount / self.high, amount / self.low, self.n)


@dataclass(frozen=True)
class Point:
    """One point of the verify curve: a pass of `tokens` tokens, and its time relative to a pass of one."""

    tokens: int
    time: Timing
    ratio: float


@contextmanager
def undisturbed() -> Iterator[None]:
    """Meanwhile the garbage collector looks at young objects alone. With torch loaded there are hundreds of thousands
    of old ones, with a compiler more, and to look through them takes longer than many a step that is timed here."""
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, 1_000_000)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, old)


@contextmanager
def watched(say: bool = True) -> Iterator[Watch]:
    """Also a decorator: say so if other programs kept a core busy meanwhile. Of nested ones the outermost decides."""
    WATCHES.append(watch := Watch())
    try:
        yield watch
    finally:
        WATCHES.remove(watch)
    if say and not WATCHES and (reason := warning(watch.others())):
        print(reason, file=sys.stderr)


@watched()
def interleaved_times(
    calls: Mapping,
    repeat: int = 9,
    warmup: int = 2,
    device="cpu",
    *,
    seconds: float | None = None,
    reset: Callable[[], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict:
    """Time several calls round-robin: {name: Timing}.

    Every round runs each call once, in order; `reset` runs after each call, off the clock. With a budget of `seconds`
    rounds end when it is spent, but not before three of them.
    """
    require_counts(repeat=repeat, calls=len(calls))
    require_not_negative(warmup=warmup)
    samples = {name: [] for name in calls}
    began = clock()
    for turn in range(-warmup, repeat):
        if seconds is not None and turn >= 3 and clock() - began > seconds:
            break
        for name, call in calls.items():
            synchronize(device)
            with undisturbed():
                start = clock()
                call()
                synchronize(device)
                taken = clock() - start
            if turn >= 0:
                samples[name].append(taken)
            if reset is not None:
                reset()
    return {name: Timing.of(taken) for name, taken in samples.items()}


def median_time(fn: Callable[[], object], repeat: int = 9, warmup: int = 2, device="cpu", **options) -> Timing:
    """How long `fn()` takes. `options` are those of `interleaved_times`."""
    return interleaved_times({"fn": fn}, repeat, warmup, device, **options)["fn"]


# ---- the machine ----


def machine() -> dict:
    """What a timing has to be read with; nothing that tells one machine of a kind from another."""
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),  # how many torch computes with
        "memory_bytes": _memory_bytes(),
        "cache_bytes": _cache_bytes(),  # None: unknown
        "gpus": [{"name": gpu.name, "memory_bytes": gpu.total_memory} for gpu in gpus],
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "vector_units": torch.backends.cpu.get_cpu_capability(),
        "bfloat16_units": has_bfloat16(),  # else emulated: slow
    }


def place(machine: dict) -> str:
    """What `measure.machine` found, in a line: every time is to be read with it."""
    gpu = f"{machine['gpus'][0]['name']}, " if machine["gpus"] else ""
    return f"{gpu}{machine['cpu']}, {machine['threads']} of {machine['cores']} cores, torch {machine['torch']}"


def where(machine: dict) -> str:
    """The device of `machine()` in a few words, for titles."""
    threads = f"{machine['threads']} thread{'s' * (machine['threads'] > 1)}"
    name = machine["gpus"][0]["name"] if machine["gpus"] else f"{machine['cpu']}, {threads}"
    return name.replace("(R)", "").replace("(TM)", "").removeprefix("NVIDIA ")


def _ask(*command: str) -> str:
    try:
        plain = os.environ | {"LC_ALL": "C"}  # "Model name", whatever language is spoken here
        return subprocess.run(command, capture_output=True, text=True, timeout=5, env=plain).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _cpu_name() -> str:
    if found := re.search(r"^model name\s*:\s*(\S.*)$", _ask("lscpu"), re.IGNORECASE | re.MULTILINE):
        return found[1]
    return _ask("sysctl", "-n", "machdep.cpu.brand_string").strip() or platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    known = "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {})
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else None


def _cache_bytes() -> int | None:
    """All last-level caches of the CPUs together, where Linux tells."""
    caches = {}
    for folder in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cache/index3"):
        try:
            size = (folder / "size").read_text().strip()  # "32768K"
            caches[(folder / "shared_cpu_list").read_text()] = int(size.removesuffix("K")) * 1024
        except (OSError, ValueError):
            return None
    return sum(caches.values()) or None


def read_bandwidth(device="cpu", size: int | None = None, repeat: int = 7, warmup: int = 1, **options) -> Rate:
    """Bytes/s read from memory: the better of a sum and a matrix–vector product over more bytes than caches hold."""
    if size is None and torch.device(device).type == "cuda":
        size = min(2**30, torch.cuda.get_device_properties(device).total_memory // 8)
    elif size is None:
        size = min(max(2**28, 2 * (_cache_bytes() or 0)), (_memory_bytes() or 2**32) // 8)
    width = 4096
    require(size >= 4 * width, f"at least {4 * width} bytes, and more than the caches hold", size=size)
    matrix = torch.ones(size // 4 // width, width, device=device)
    vector = torch.ones(width, device=device)
    ways = {"sum": lambda: matrix.sum(), "product": lambda: matrix @ vector}
    times = interleaved_times(ways, repeat, warmup, device, **options)
    return min(times.values(), key=lambda timing: timing.median).rate(matrix.nbytes)


def flops(device="cpu", dtype: torch.dtype | None = None, repeat: int = 7, warmup: int = 1, **options) -> Rate:
    """FLOP/s of a square matrix product, grown until it takes 10 ms: what the matrix units give when well fed."""
    dtype = default_dtype(device) if dtype is None else dtype
    generator = torch.Generator(device).manual_seed(0)  # random, not ones: what is multiplied sets a GPU's clock

    width, seconds = 128, 0.0
    while width < 8192 and seconds < 0.01:
        width *= 2
        a = torch.randn(width, width, generator=generator, device=device, dtype=dtype)
        seconds = median_time(lambda: a @ a, 1, 1, device, **options).median  # noqa: B023
    return median_time(lambda: a @ a, repeat, warmup, device, **options).rate(2 * width**3)


# ---- a model on the machine ----


def weight_bytes(model: Model) -> int:
    """Bytes of weights that one token makes the machine read.

    Of the embedding table a token reads one row, which is nothing; all of it counts only where it is the LM head too.
    """
    transformer = model.transformer
    table = transformer.embed_tokens.weight
    tied = getattr(transformer.lm_head, "weight", None) is table
    everything = [*transformer.parameters(), *transformer.buffers()]  # quantised weights may live in buffers
    return sum(tensor.nbytes for tensor in everything if tied or tensor is not table)


def plain_speed(model: Model, prompt=(0,), new_tokens: int = 32, repeat: int = 5, warmup: int = 1, **options) -> Rate:
    """Tokens/s of plain greedy decoding, the whole loop of `generate`, the prompt's pass included.

    After the default prompt of one token every pass reads exactly one token and writes exactly one.
    """
    run = lambda: generate(model, prompt, new_tokens, ignore_eos=True)  # noqa: E731 (every run generates as much)
    return median_time(run, repeat, warmup, model.device, **options).rate(new_tokens)


@torch.inference_mode()
def verify_curve(
    model: Model, tokens: Sequence[int] = CURVE, context: int | None = None, repeat: int = 9, warmup: int = 2, **options
) -> list[Point]:
    """Time of a pass of M new tokens after `context` cached ones, for every M, and its ratio to M = 1.

    This is verification without the sampler: M = k + 1 tokens in, logits at all of them out, cache rewound. The Ms take
    turns. `options` are those of `interleaved_times`.
    """
    require(1 in tokens and min(tokens) == 1, "numbers ≥ 1, and 1 among them, for the ratio", tokens=tuple(tokens))
    room = model.config.max_length - max(tokens)
    context = min(256, room) if context is None else context
    wanted = f"1 to {room} before {max(tokens)} tokens, as the model's length is {model.config.max_length}"
    require(1 <= context <= room, wanted, context=context)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (1, context + max(tokens)), generator=generator).to(model.device)
    with (model.backend.passes if model.backend else partial(passes, model))(ids, context, tokens) as (calls, rewind):
        times = interleaved_times(calls, repeat, warmup, model.device, reset=rewind, **options)
    return [Point(m, timing, timing.median / times[1].median) for m, timing in times.items()]


@contextmanager
def passes(model: Model, ids: torch.Tensor, context: int, tokens: Sequence[int]):
    """Calls that process the first M of ids [1, S] after `context` of them, for every M, and one that rewinds.

    A backend that captures passes has the same: what is timed is what the user gets."""
    cache = model.transformer.new_cache(1, ids.shape[1])
    model.transformer(ids[:, :context], cache, last_only=True)
    calls = {m: lambda new=ids[:, context : context + m]: model.transformer(new, cache) for m in tokens}
    yield calls, lambda: cache.rewind(context)


# ---- a quiet machine ----

WIDE = 0.5  # distance of the quartiles from each other, relative to the median


def warning(others: float | None, spreads: Mapping[str, float] | None = None) -> str | None:
    """Why these timings are not to be trusted; None: nothing speaks against them. `spreads`: (q₃ − q₁) / median."""
    reasons = []
    if others is not None and others > NOTICEABLE:
        reasons.append(f"other programs kept {others:.1f} cores busy meanwhile")
    if wide := [name for name, spread in (spreads or {}).items() if spread > WIDE]:
        reasons.append(f"the quartiles of {', '.join(wide)} are far apart")
    said = f"This machine is not quiet: {' and '.join(reasons)}. Run this again when it is quiet."
    return said if reasons else None
