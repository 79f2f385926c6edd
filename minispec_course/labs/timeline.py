"""What the device did, kernel by kernel, and when the host asked for it: one token under torch's profiler.

On a GPU a kernel is a kernel (or a copy), and a launch is a call of the driver that starts one, or a graph of many. On
a CPU torch's innermost operators that do some work stand for the kernels, and each is a launch of its own. Times are
microseconds from the first of them. The profiler slows the host down, so gaps between kernels that the host launches
are longer here than they are without it; how long a token really takes is measured elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from torch.profiler import ProfilerActivity, profile

from minispec.trace import synchronize

LONGEST_NAME = 32
IDLE = re.compile(  # operators of torch that look at memory in another way, or ask for some: no work
    r"aten::(as_strided|\w*view\w*|_reshape_alias|reshape|resolve_\w+|to|_to_copy|empty\w*|resize_|result_type|"
    r"promote_types|type_as|t|transpose|permute|expand\w*|unsqueeze|squeeze|select|slice|narrow|split\w*|chunk|unbind|"
    r"unfold|unflatten|flatten|detach\w*)$"
)


class Event(NamedTuple):
    name: str
    start: float  # µs
    duration: float  # µs

    @property
    def end(self) -> float:
        return self.start + self.duration


class Timeline(NamedTuple):
    """Of one token: what ran on the device, and the calls by which the host asked for it."""

    kernels: list[Event]
    launches: list[Event]

    @property
    def span(self) -> float:
        """µs from the first kernel's start to the last one's end."""
        return max(event.end for event in self.kernels) - self.kernels[0].start if self.kernels else 0.0

    @property
    def busy(self) -> float:
        """µs in which a kernel ran."""
        return sum(event.duration for event in self.kernels)

    @property
    def gaps(self) -> list[float]:
        """µs between one kernel's end and the next one's start."""
        return [max(0.0, after.start - before.end) for before, after in pairwise(self.kernels)]

    def packed(self) -> dict:
        """For a file: names once, then "name's number, start, duration" of every event, in one line each."""
        names = list(dict.fromkeys(event.name for lane in self for event in lane))
        number = {name: i for i, name in enumerate(names)}
        lanes = (", ".join(f"{number[e.name]} {e.start:.1f} {e.duration:.1f}" for e in lane) for lane in self)
        packed = {"names": names} | dict(zip(self._fields, lanes, strict=True))
        return packed | ({"launches": None} if self.launches == self.kernels else {})  # a CPU's: the same


def unpacked(packed: Mapping) -> Timeline:
    """The Timeline that `packed` stored."""

    def lane(text: str) -> list[Event]:
        words = (event.split() for event in text.split(", ") if event)
        return [Event(packed["names"][int(name)], float(start), float(duration)) for name, start, duration in words]

    kernels = lane(packed["kernels"])
    return Timeline(kernels, kernels if packed["launches"] is None else lane(packed["launches"]))


def record(launch: Callable[[], object], device) -> Timeline:
    """The timeline of one call. Whatever is done once, compiling and recording, must have been done before."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if _on_gpu(device) else [])]
    for _ in range(2):  # the first one also starts the profiler
        synchronize(device)
        with hushed():
            seen = profile(activities=activities).__enter__()
        try:
            launch()
            synchronize(device)
        finally:
            with hushed():
                seen.__exit__(None, None, None)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
    return read(events, _on_gpu(device))


@contextmanager
def hushed() -> Iterator[None]:
    """Some versions of the profiler write a line to the terminal whenever they start or stop, whatever the settings."""
    terminal, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
        os.close(nowhere)


def read(events: list[dict], on_gpu: bool) -> Timeline:
    """The timeline in the events of a Chrome trace, which is what torch's profiler writes."""

    def those(*categories: str) -> list[Event]:
        found = [e for e in events if e.get("ph") == "X" and e.get("cat") in categories]
        # Of two that begin together the longer one is outside.
        found.sort(key=lambda e: (float(e["ts"]), -float(e["dur"])))
        return [Event(str(e["name"]), float(e["ts"]), float(e["dur"])) for e in found]

    if on_gpu:
        kernels = those("kernel", "gpu_memcpy", "gpu_memset")
        calls = those("cuda_runtime", "cuda_driver", "hip_runtime")
        launches = [e for e in calls if re.search("Launch|Memcpy|Memset", e.name)]
    else:
        operators = [event for event in those("cpu_op") if not IDLE.match(event.name)]
        kernels = [one for one, after in pairwise(operators) if after.start >= one.end] + operators[-1:]
        launches = kernels
    first = min((e.start for e in [*kernels, *launches]), default=0.0)
    lanes = ([Event(short(e.name), e.start - first, e.duration) for e in lane] for lane in (kernels, launches))
    return Timeline(*lanes)


def short(name: str) -> str:
    """A kernel's name without types and template arguments; of torch's elementwise kernels, what they compute."""
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    inner = re.search(
        r"elementwise.*?(?:CUDAFunctor(?:OnSelf)?_(\w+)|(?!gpu_)\b(\w+?)_kernel_(?:cuda|impl)|(\w+)Functor)", name
    )
    plain = re.split(r"[<(]", name)[0].split("::")[-1].strip() or name
    if inner:
        plain = next(group for group in inner.groups() if group)
    return plain[:LONGEST_NAME]


def _on_gpu(device) -> bool:
    return str(device).startswith("cuda")
