"""Capturing: a few hundred kernel launches, captured once as a CUDA graph and replayed by one call; and who may do so.

A graph replays the same shapes at the same addresses, and nothing on the way may depend on a number that the host looks
at. Without CUDA every call simply does the work; the tests live on that.

A model's memory on the device is lent to one call at a time (`Lease`). Another thread's call waits for it; a call from
within (a stream's callback), or beside a stream that nobody reads on, decodes eagerly instead, in memory of its own.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache, wraps
from weakref import WeakSet

import torch
from torch import Tensor


def on_the_device(function):
    """No gradients, and ordinary tensors even under inference mode: what a graph keeps outlives the call."""

    @wraps(function)
    def run(*args, **options):
        with torch.inference_mode(False), torch.no_grad():
            return function(*args, **options)

    return run


@lru_cache
def why_not_compile(device: torch.device | str = "cuda", dtype: torch.dtype = torch.float32) -> str | None:
    """What stands in the way of torch.compile on this device, in this dtype; None: it works. Triton needs a C compiler,
    say, and bfloat16 a GPU with units for it: without, torch only warns and runs uncompiled, unless `fullgraph`."""
    try:
        with torch.inference_mode(False), torch.no_grad():
            x = torch.ones(8, device=device, dtype=dtype)
            torch.compile(lambda x: x * 2 + 1, dynamic=False, fullgraph=True)(x)
    except Exception as error:  # whatever it is, the work can be done without
        return f"{type(error).__name__}: {str(error).strip()[:200]}"
    return None


@lru_cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """What this device's captures are captured on. torch's own stream for that is one per process, on the device that
    captured first; what another device is asked to do meanwhile would not be in the graph."""
    return torch.cuda.Stream(device)


def many_shapes():
    """One compiled function serves passes of many shapes. Where nothing is compiled, torch's compiler is not imported:
    that alone takes seconds. Its settings have no other name than this one, by which torch's own pages call them."""
    compiler = sys.modules.get("torch._dynamo")
    return compiler.config.patch(recompile_limit=64) if compiler else nullcontext()


@contextmanager
def no_collection():
    """A graph that Python's garbage collector frees while another one is being captured makes that capture invalid."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Event:
    """A moment in the device's work that the host can wait for. Without CUDA it has always passed."""

    def __init__(self, device: torch.device):
        self.device, self.event = device, torch.cuda.Event() if device.type == "cuda" else None

    def record(self) -> None:
        if self.event:
            self.event.record(torch.cuda.current_stream(self.device))

    def wait(self) -> None:
        if self.event:
            self.event.synchronize()


class Captured:
    """Work that fixed shapes and device memory allow to do by one launch. Without CUDA every call just does it.

    `state` are the tensors that the work reads and changes. To warm up is to work for real (kernels are compiled and
    chosen then), so they are put back afterwards; so is a generator
    that the work uses (training text is sampled on the device).
    """

    # Scratch memory of all graphs: one runs at a time, and none leaves anything there that is needed later.
    pool, alive = None, WeakSet()  # the pool dies with the last graph that is alive

    def __init__(self, work: Callable[[], object], state: Sequence[Tensor], generator: torch.Generator | None = None):
        self.work, self.state, self.generator = work, state, generator
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self.graph is None:
            self.prepare()
        if self.graph is not None:
            self.graph.replay()
        else:
            on_the_device(self.work)()

    @on_the_device
    def prepare(self) -> None:
        """Record, unless that is done or cannot be."""
        if self.graph is None and self.capturable():
            with torch.cuda.device(self.state[0].device):
                self._capture()

    def capturable(self) -> bool:
        return self.state[0].device.type == "cuda"

    def _capture(self) -> None:
        before = [tensor.clone() for tensor in self.state]
        numbers = None if self.generator is None else self.generator.get_state()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), many_shapes():
            for _ in range(2):
                self.work()
                for tensor, value in zip(self.state, before, strict=True):
                    tensor.copy_(value)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        if self.generator is not None:
            self.generator.set_state(numbers)
            graph.register_generator_state(self.generator)
        if not Captured.alive:
            Captured.pool = torch.cuda.graph_pool_handle()
        # Other threads may go on with their own work meanwhile.
        stream = capture_stream(self.state[0].device)
        how = dict(pool=Captured.pool, stream=stream, capture_error_mode="thread_local")
        with no_collection(), torch.cuda.graph(graph, **how):
            self.work()
        self.graph = graph
        Captured.alive.add(self)


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


@contextmanager
def giving_back(*leases: Lease):
    """Give the leases back if something goes wrong before somebody else looks after them."""
    try:
        yield
    except BaseException:
        for lease in leases:
            lease.give_back()
        raise
