"""Capturing: a few hundred kernel launches, captured once as a CUDA graph and replayed by one call; and who may do so.

A graph replays the same shapes at the same addresses, and nothing on the way may depend on a host sync. Without CUDA
every call simply does the work; the tests live on that.

A capture is a fragile moment: a graph that is freed meanwhile, by the garbage collector or by another thread, makes it
invalid, and torch's allocator then refuses the memory that the capture was to use. So one capture runs at a time in a
process, without garbage collection; graphs that die meanwhile are freed afterwards; and what a capture that failed
leaves behind is given up, pool and stream, before it is tried once more. If that fails too, the work is done eagerly.

A model's memory on the device is lent to one call at a time (`Lease`). Another thread's call waits for it; a call from
within (a stream's callback), or by somebody for whom that callback waits, decodes eagerly instead, in memory of its
own.
"""

from __future__ import annotations

import gc
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from ..drafters.base import BESIDE


def on_the_device(function):
    """No gradients, and ordinary tensors even under inference mode: what a graph keeps outlives the call."""

    @wraps(function)
    def run(*args, **options):
        with torch.inference_mode(False), torch.no_grad():
            return function(*args, **options)

    return run


@contextmanager
def own_workspaces():
    """cuBLAS works in memory that torch allocates once for each stream, and a graph keeps its address. Somebody else
    may have that memory freed: torch.compile does, before it captures graphs of its own. So a capture takes a workspace
    in its own pool, and nobody outside finds that one."""
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


class Lane:
    """What graphs that replay one after the other share: a pool of scratch memory, since none leaves anything there
    that is needed later, and the streams, of some priority, that they are captured on."""

    def __init__(self, priority: int):
        self.alive, self.pool = WeakSet(), None  # who has a graph in the pool, which dies with the last of them
        self.streams, self.priority = {}, priority  # a stream for each device; −1 comes first


class Graphs:
    """What all graphs of this process share. One capture runs at a time, and one replay; but what works `beside` other
    work, on a stream of its own, replays while that does, and shares no memory with it."""

    def __init__(self):
        self.lock, self.capturing = threading.RLock(), False  # one warm-up and capture at a time
        self.main, self.side, self.here = Lane(0), Lane(-1), threading.local()
        self.dead: list[torch.cuda.CUDAGraph] = []  # nobody needs them: to be freed when no capture runs
        self.failed: list[torch.cuda.CUDAGraph] = []  # never to be freed: torch's allocator goes on asking them

    @property
    def lane(self) -> Lane:
        """Of what this thread launches."""
        return getattr(self.here, "lane", self.main)

    @contextmanager
    def beside(self, device: torch.device, wait: bool):
        """What is launched inside runs beside what was launched before, or with `wait` after it. What is launched
        later waits for it."""
        self.here.lane, outside = self.side, torch.cuda.current_stream(device)
        try:
            stream = self.stream(device)
            if wait:
                stream.wait_stream(outside)
            with torch.cuda.stream(stream):
                yield
            outside.wait_stream(stream)
        finally:
            self.here.lane = self.main

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        """That captures are made on. torch's own is one per process, on the device that captured first."""
        if device not in self.lane.streams:
            self.lane.streams[device] = torch.cuda.Stream(device, priority=self.lane.priority)
        return self.lane.streams[device]

    @contextmanager
    def capture(self, graph: torch.cuda.CUDAGraph, device: torch.device):
        """What is launched inside becomes the graph. torch.cuda.graph would empty the allocator's cache before each."""
        collects, self.capturing, lane = gc.isenabled(), True, self.lane
        gc.disable()
        if lane.pool is None or not lane.alive:
            lane.alive, lane.pool = WeakSet(), torch.cuda.graph_pool_handle()
        try:
            with torch.cuda.stream(self.stream(device)), own_workspaces():
                graph.capture_begin(pool=lane.pool, capture_error_mode="thread_local")
                try:
                    yield
                finally:
                    graph.capture_end()
        except BaseException:
            self.failed.append(graph)
            lane.pool = None  # the allocator counts it as in use for ever
            del lane.streams[device]
            raise
        finally:
            self.capturing = False
            self.dead.clear()
            if collects:
                gc.enable()

    def heal(self, device: torch.device, generator: torch.Generator | None) -> None:
        """After a capture that failed torch takes the generators of random numbers for still being captured, and lets
        nobody use them until a capture has succeeded: here is one."""
        graph = torch.cuda.CUDAGraph()
        if generator is not None:
            graph.register_generator_state(generator)
        with self.capture(graph, device):
            torch.zeros(1, device=device)


GRAPHS = Graphs()
BESIDE["cuda"] = GRAPHS.beside


class Event:
    """A moment in the device's work that the host can wait for; two that are `timed` are seconds apart. Without CUDA it
    has always passed. One that is `external` may be recorded inside a capture: every replay records it anew."""

    def __init__(self, device: torch.device, timed: bool = False, external: bool = False):
        self.device, cuda = device, device.type == "cuda"
        self.event = torch.cuda.Event(enable_timing=timed, external=external) if cuda else None

    def record(self) -> Event:
        self.time = time.perf_counter()
        if self.event:
            self.event.record(torch.cuda.current_stream(self.device))
        return self

    def wait(self) -> None:
        if self.event:
            self.event.synchronize()

    def __sub__(self, earlier: Event) -> float:
        return earlier.event.elapsed_time(self.event) / 1e3 if self.event else self.time - earlier.time


class Arrival:
    """Memory of the host for numbers that come from the device while that goes on."""

    def __init__(self, like: Tensor, timed: bool = False):
        self.numbers = torch.zeros(like.shape, dtype=like.dtype, pin_memory=like.device.type == "cuda")
        self.there = Event(like.device, timed)

    def begin(self, numbers: Tensor) -> Callable[[], Tensor]:
        count = len(numbers)
        self.numbers[:count].copy_(numbers, non_blocking=True)
        self.there.record()

        def wait() -> Tensor:
            self.there.wait()
            return self.numbers[:count]

        return wait


class Captured:
    """Work that fixed shapes and device memory allow to do by one launch. Without CUDA every call just does it.

    `state` are the tensors that the work reads and changes. To warm up is to work for real (kernels are compiled and
    chosen then), so they are put back afterwards; so is a generator that the work uses (training text is sampled on the
    device).
    """

    def __init__(self, work: Callable[[], object], state: Sequence[Tensor], generator: torch.Generator | None = None):
        self.work, self.state, self.generator = work, state, generator
        self.graph: torch.cuda.CUDAGraph | None = None
        self.eager = state[0].device.type != "cuda"  # it cannot be captured

    def __del__(self):
        if GRAPHS.capturing and getattr(self, "graph", None) is not None:
            GRAPHS.dead.append(self.graph)

    def __call__(self) -> None:
        self.prepare()
        if self.graph is not None:
            self.graph.replay()
        else:
            on_the_device(self.work)()

    def prepare(self) -> None:
        """Capture, unless that is done or cannot be."""
        if self.graph is None and not self.eager:
            self._prepare()

    @on_the_device
    def _prepare(self) -> None:
        device = self.state[0].device
        with GRAPHS.lock, torch.cuda.device(device):
            for _ in range(2):
                try:
                    self.warm_up(GRAPHS.stream(device))
                    self.graph = self.capture(device)
                    GRAPHS.lane.alive.add(self)
                    return
                except RuntimeError as caught:
                    error = repr(caught)  # the exception itself would keep this frame alive
                    GRAPHS.heal(device, self.generator)
            self.eager = True
            warnings.warn(f"a CUDA graph could not be captured, so this runs eagerly: {error}", stacklevel=2)

    def warm_up(self, stream: torch.cuda.Stream) -> None:
        """Work for real, and put everything back. It happens on the stream of captures, because libraries keep memory
        for each stream that they work on, and take it the first time."""
        before = [tensor.clone() for tensor in self.state]
        numbers = None if self.generator is None else self.generator.get_state()
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                self.work()
        finally:
            torch.cuda.current_stream().wait_stream(stream)
            for tensor, value in zip(self.state, before, strict=True):
                tensor.copy_(value)
            if self.generator is not None:
                self.generator.set_state(numbers)

    def capture(self, device: torch.device) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        if self.generator is not None:
            graph.register_generator_state(self.generator)
        with GRAPHS.capture(graph, device):
            self.work()
        return graph


class Captures(dict):
    """Captured work of many shapes, each from its first use on. `work` is given the shape; `state` is Captured's."""

    def __init__(self, work: Callable[..., object], *state: Tensor):
        super().__init__()
        self.work, self.state = work, state

    def of(self, *shape) -> Captured:
        if shape not in self:
            self[shape] = Captured(partial(self.work, *shape), self.state)
        return self[shape]

    def __call__(self, *shape) -> None:
        self.of(*shape)()


def sheet(*shape: int, device: torch.device) -> tuple[Tensor, Tensor, np.ndarray]:
    """Numbers that the host writes and the device reads: its memory, the host's, from which a transfer goes while the
    host works on, and the latter as NumPy sees it, quicker to write to."""
    lines = torch.zeros(shape, dtype=torch.int32, pin_memory=device.type == "cuda")
    return torch.zeros(shape, dtype=torch.int32, device=device), lines, lines.numpy()


PATIENCE = 0.5  # seconds without a sign of life after which a holder of the memory counts as asleep


class Lease:
    """Who may use a model's memory: one call at a time."""

    def __init__(self):
        self.lock, self.holder, self.signs = threading.Lock(), None, 0

    def take(self) -> bool:
        """False where waiting would be in vain: this thread has it already, or its holder does nothing."""
        while self.holder != threading.get_ident():
            signs = self.signs
            if self.lock.acquire(timeout=PATIENCE):
                self.holder = threading.get_ident()
                return True
            if signs == self.signs:
                return False
        return False

    def sign(self) -> None:
        self.signs += 1

    def give_back(self) -> None:
        self.holder = None
        self.lock.release()


def lent(leases: list[Lease], make: Callable):
    """What `make` makes of the leases, which is to give them back; None: one of them cannot be taken."""
    taken = []
    try:
        for lease in leases:
            if not lease.take():
                return None
            taken.append(lease)
        made = make(leases)
        taken = []
        return made
    finally:
        for lease in taken:
            lease.give_back()
