"""One token on its way to the bandwidth: the same arithmetic, launched and fused in ever better ways.

    eager      torch's operators over fused weights, each launched by the host
    graph      the same kernels, captured as a CUDA graph: one launch
    fused      one kernel of ours between two of torch's products (norm + residual, RoPE + cache, SwiGLU)
    skinny     our products, which take the small steps along
    split-K    our attention, which cuts the context into splits
    cycle      k draft tokens, the verify pass and the decision, in one launch; per token that it emits

Every step keeps what the one before it has won. `cycle, eager` is the cycle's kernels launched by the host, for
comparison. Where there is no GPU nothing is captured, and where our kernels do not run torch does their work: the steps
can then be run, but they do not differ.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from minispec import theory
from minispec.gpu.decode import FastDecoder, FastSpeculator
from minispec.gpu.graph import on_the_device
from minispec.gpu.weights import FastTransformer, flash, has_kernels, two_products
from minispec.load.model import Model
from minispec.load.registry import BENCHMARKS
from minispec.measure import interleaved_times, weight_bytes
from minispec.trace import synchronize

from . import pairs

STEPS = EAGER, GRAPH, FUSED, SKINNY, SPLIT, CYCLE = ("eager", "graph", "fused", "skinny", "split-K", "cycle")
EAGER_CYCLE = "cycle, eager"
WARMUP = 2  # rounds that are not counted: kernels are compiled and graphs captured in the first
IDLE = re.compile(  # operators of torch that look at memory in another way, or ask for some: no work
    r"aten::(as_strided|\w*view\w*|_reshape_alias|reshape|resolve_\w+|to|_to_copy|empty\w*|resize_|result_type|"
    r"promote_types|type_as|t|transpose|permute|expand\w*|unsqueeze|squeeze|select|slice|narrow|split\w*|chunk|unbind|"
    r"unfold|unflatten|flatten|detach\w*)$"
)


class Way(NamedTuple):
    """One of the steps, ready to run: each call of `launch` asks the device for one token (or one cycle)."""

    decoder: FastDecoder
    launch: Callable[[], object]


class Between(FastTransformer):
    """torch's products even for few tokens, with one kernel of ours in each gap."""

    def is_lean(self, x) -> bool:
        return False


def ways(target: Model, draft: Model | None, prompt: Sequence[int], k: int, room: int) -> dict[str, Way]:
    """Every step, each with memory of its own for `room` tokens, after the prompt. The weights are shared."""
    kernels = has_kernels(target.device, target.dtype)
    split = flash if kernels else two_products

    def memory(model: Model = target, kind=FastTransformer, lean: bool = True, attend=split) -> FastTransformer:
        return kind(model.transformer, 1, room, lean=lean and kernels, attend=attend)

    plain = {
        EAGER: memory(lean=False, attend=two_products),
        GRAPH: memory(lean=False, attend=two_products),
        FUSED: memory(kind=Between, attend=two_products),
        SKINNY: memory(attend=two_products),
        SPLIT: memory(),
    }
    decoders = {name: FastDecoder(fast) for name, fast in plain.items()}
    if draft is not None:
        for name in (CYCLE, EAGER_CYCLE):
            decoders[name] = FastSpeculator(memory(), memory(draft), k)
    for decoder in decoders.values():
        decoder.start([list(prompt)])
    launch_each = (EAGER, EAGER_CYCLE)
    return {
        name: Way(decoder, on_the_device(decoder.step) if name in launch_each else decoder.captured)
        for name, decoder in decoders.items()
    }


def count_kernels(launch: Callable[[], object], device) -> tuple[int, int]:
    """How many kernels one call runs, and by how many launches, counted by torch's profiler.

    A launch is a call of the driver that starts a kernel, or a graph of many. On a CPU torch's innermost operators that
    do some work stand for the kernels, and each is a launch of its own. What is done once, compiling and capturing,
    must have been done before.
    """
    on_gpu = str(device).startswith("cuda")
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as seen:
        launch()
        synchronize(device)
    if on_gpu:
        kernels = [e for e in seen.events() if e.device_type == DeviceType.CUDA]
        launches = [e for e in seen.events() if re.match("cu(da)?(Graph)?(Launch|Mem(cpy|set))", e.name)]
        return len(kernels), len(launches)
    spans = [e.time_range for e in seen.events() if e.name.startswith("aten::") and not IDLE.match(e.name)]
    spans.sort(key=lambda span: (span.start, -span.end))  # of two that begin together the longer one is outside
    inner = sum(after.start >= span.end for span, after in pairwise(spans)) + bool(spans)
    return inner, inner


def bytes_per_token(model: Model, context: float) -> float:
    """What one token makes the machine read: the weights once, and the keys and values of the context."""
    c = model.config
    kept = theory.kv_bytes_per_token(c.num_layers, c.num_kv_heads, c.head_dim, model.dtype.itemsize)
    return weight_bytes(model) + context * kept


def climb(
    target: Model,
    draft: Model | None,
    prompt: Sequence[int],
    bandwidth: float,
    *,
    k: int = 4,
    repeat: int = 7,
    launches: int = pairs.LAUNCHES,
) -> dict:
    """Time every step in turn: seconds, launches and kernels per token, and the share of `bandwidth` [bytes/s].

    The sequences grow while they are timed, by the same tokens in every plain step; what is read is counted at the
    middle. A cycle is divided by the tokens that it emitted on average.
    """
    rounds = repeat + WARMUP
    every = ways(target, draft, prompt, k, len(prompt) + (rounds * launches + 8) * (k + 1))
    calls = {name: pairs.several(way.launch, launches) for name, way in every.items()}
    times = interleaved_times(calls, repeat, WARMUP, target.device)
    read = bytes_per_token(target, len(prompt) + rounds * launches / 2)
    result = {
        "parameters": target.num_parameters,
        "weight_bytes": weight_bytes(target),
        "bytes_per_token": read,
        "predicted_seconds": read / bandwidth,
        "steps": {},
        "cycle": None,
    }
    for name, timing in times.items():
        way, tokens = every[name], 1.0
        if isinstance(way.decoder, FastSpeculator):
            tokens = (int(way.decoder.count) - len(prompt)) / (rounds * launches)  # every launch is a cycle
            result["cycle"] = {"k": k, "tokens_per_cycle": tokens, "draft": draft.name}
        each = {key: value / (launches * tokens) for key, value in asdict(timing).items() if key != "n"}
        seconds = each | {"n": timing.n}
        kernels, started = count_kernels(way.launch, target.device)
        row = {"seconds_per_token": seconds, "fraction_of_bandwidth": read / bandwidth / seconds["median"]}
        row |= {"kernels_per_token": kernels / tokens, "launches_per_token": started / tokens}
        result["steps"][name] = row
    return result


def recorded(benchmark: str = "limit") -> dict:
    """What `minispec bench` recorded on a GPU and the package ships."""
    return json.loads((BENCHMARKS / f"{benchmark}.json").read_text(encoding="utf-8"))


def largest_read() -> float:
    """Bytes/s of the fastest large read that we recorded on that GPU: a gigabyte of keys and values, by torch."""
    return max(case["results"]["torch"]["bytes_per_second"]["median"] for case in recorded("attention")["cases"])


class OnDevice:
    """One sequence with a real model, as the lesson's step asks for it: every number is a tensor in fixed memory."""

    def __init__(self, model: Model, prompt: Sequence[int], room: int = 128):
        self.model = FastTransformer(model.transformer, 1, room, lean=False, attend=two_products)
        self.text = torch.zeros(room, dtype=torch.long, device=model.device)
        self.text[: len(prompt)] = torch.tensor(prompt)
        self.count = torch.tensor([len(prompt)], device=model.device)
        self.model.prefill(self.text[None, : len(prompt) - 1], self.count - 1)

    def token(self, position) -> Tensor:
        return self.text[torch.as_tensor(position).view(1)]

    def next(self, token, position) -> Tensor:
        self.model.lengths.copy_(torch.as_tensor(position))
        return self.model.step(token[None])[0].argmax(-1)  # [1]

    def write(self, position, token) -> None:
        self.text[torch.as_tensor(position).view(1)] = token

    def advance(self, number: int = 1) -> None:
        self.count += number
