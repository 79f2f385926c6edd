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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import NamedTuple

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from minispec import theory
from minispec.gpu.capture import on_the_device
from minispec.gpu.decode import FastDecoder, FastSpeculator
from minispec.gpu.fused import FastTransformer, flash, has_kernels, two_products
from minispec.load.handle import Model
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
    counted: bool = True,
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
        row = {"seconds_per_token": seconds, "fraction_of_bandwidth": read / bandwidth / seconds["median"]}
        if counted:
            kernels, started = count_kernels(way.launch, target.device)
            row |= {"kernels_per_token": kernels / tokens, "launches_per_token": started / tokens}
        result["steps"][name] = row
    return result


def recorded() -> dict:
    """What `python -m benchmarks limit` recorded on a GPU and the package ships."""
    return json.loads((BENCHMARKS / "limit.json").read_text(encoding="utf-8"))


def table(climbed: Mapping) -> str:
    """What `climb` measured, a line per step; "saved" is what a step takes off the time of the one before it."""
    before = None
    lines = [f"{'step':<14}{'ms/token':>10}{'saved':>8}{'of the bandwidth':>18}{'kernels':>9}{'launches':>10}"]
    for name, row in climbed["steps"].items():
        counts = [row.get(key) for key in ("kernels_per_token", "launches_per_token")]
        kernels, launches = ("–" if n is None else format(n, ",.1f" if n < 1 else ",.0f") for n in counts)
        seconds, share = row["seconds_per_token"]["median"], row["fraction_of_bandwidth"]
        saved = "–" if before is None or name not in STEPS else f"{1 - seconds / before:.0%}"
        lines.append(f"{name:<14}{1e3 * seconds:>10.3f}{saved:>8}{share:>18.1%}{kernels:>9}{launches:>10}")
        before = seconds
    return "\n".join(lines)
