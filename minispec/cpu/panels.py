"""Weights as the product reads them: panels of 16 rows, [N/16, K, 16], so that every step along K is one cache line.

A product of few tokens takes as long as its weights take to arrive. They arrive fastest in one unbroken stream, and a
row of W, 2 KB of it, is no stream: the next row is elsewhere by the time the processor has learned where this one goes.
The copy is made once, when a weight is first multiplied with few tokens, and made again if the weight has changed. The
original stays: prompts go through torch's product, an embedding needs its rows, and a file's pages cost nothing.
A weight in int8 (int8.py) has panels of bytes, a scale for each row, and no original. Where the processor adds up four
products of bytes at once, four steps along K lie side by side: [N/16, K/4, 16, 4].
"""

import math
import weakref

import numpy as np
import torch
from torch import Tensor

from . import machine
from .processor import has_dot_product

ROWS = 16  # of W in a panel
GROUP = 8  # tokens that the product, and the compiled pass, take at once
SHARE = 0.5  # of the memory that is free: panels that would need more are not made


def filled(K: int) -> int:
    """K with the zeros that follow it."""
    return -(-K // 4) * 4


def side_by_side(M: int) -> int:
    """P: room for M tokens, as the product reads them, [K, P]."""
    return 4 if M <= 4 else GROUP


class Panels:
    """A weight [N, K] in panels, filled up with zeros to whole panels and a K that four divides: float32, or integers
    that become numbers when they are multiplied by `scale` [N], one for each row."""

    @torch.no_grad()
    def __init__(self, weight: Tensor, scale: Tensor | None = None):
        self.N, self.K = weight.shape
        self.version, self.address = version(weight), weight.data_ptr()
        self.data = torch.zeros(-(-self.N // ROWS), filled(self.K), ROWS, dtype=weight.dtype)  # [N/16, K, 16]
        whole = self.N // ROWS
        self.data[:whole, : self.K] = weight[: whole * ROWS].view(whole, ROWS, self.K).transpose(1, 2)
        if rest := self.N - whole * ROWS:
            self.data[whole, : self.K, :rest] = weight[whole * ROWS :].T
        self.scale = None if scale is None else torch.nn.functional.pad(scale.float(), (0, -self.N % ROWS))
        if scale is not None and has_dot_product():
            self.data = self.data.unflatten(1, (-1, 4)).transpose(2, 3).contiguous()  # [N/16, K/4, 16, 4]

    @property
    def addresses(self) -> tuple[int, int]:
        """Of the panels and of their scales, as gemm.py takes them; 0: there are none, and the panels are float32."""
        return self.data.data_ptr(), 0 if self.scale is None else self.scale.data_ptr()

    def fresh(self, weight: Tensor) -> bool:
        """Whether the weight is still what was copied."""
        return version(weight) == self.version and weight.data_ptr() == self.address


def version(weight: Tensor) -> int | None:
    """How often a weight has been changed in place; tensors made in inference mode are not counted. torch has no public
    name for the counter, and without it every pass would have to compare the numbers themselves."""
    return None if weight.is_inference() else weight._version


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether our product can compute this: float32 in the memory of the CPU, and nobody asks for gradients."""
    return (
        x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and not (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad))
        and not torch.compiler.is_compiling()
    )


_known: dict[int, tuple[weakref.ref, Panels]] = {}


def panels_of(weight: Tensor) -> Panels | None:
    """The panels of a weight, made when they are first asked for; None: memory is too scarce for them."""
    if (found := _known.get(id(weight))) and found[0]() is weight and found[1].fresh(weight):
        return found[1]
    if weight.nbytes > SHARE * free_memory():
        return None
    panels, number = Panels(weight), id(weight)
    _known[number] = weakref.ref(weight, lambda _: _known.pop(number, None)), panels
    return panels


def free_memory() -> float:
    """Bytes that could be had, where Linux tells; else no limit."""
    try:
        with open("/proc/meminfo", encoding="utf-8") as file:
            return next(1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return math.inf


def pieces(K: int) -> np.ndarray:
    """Memory for up to eight tokens of K numbers as code.in_pieces writes them."""
    return np.empty(112 + 8 * filled(K), np.int32)  # code.HEAD, and [4, K/4, 8]


def multiply(x: Tensor, panels: Panels, threads: int) -> Tensor:
    """x Wᵀ for x [M, K], M ≤ 8, in float32: [M, N]. The same bits whatever M and the number of threads."""
    M, columns = len(x), torch.zeros(filled(panels.K), side_by_side(len(x)))  # [K, P]
    columns[: panels.K, :M] = x.T
    y = torch.empty(M, panels.N)
    step = max(1, len(panels.data) // (16 * threads)) if threads > 1 else len(panels.data)  # panels in a chunk
    size = np.array([M, panels.N, len(columns), step])
    shared = (np.zeros(32, np.int64), size, *panels.addresses, columns.numpy(), y.numpy())
    with machine.team.alone:
        own = [(torch.empty(GROUP * ROWS).numpy(), pieces(panels.K)) for _ in range(threads)]
        machine.team.run(machine.compiled().product, shared, own)
    return y
