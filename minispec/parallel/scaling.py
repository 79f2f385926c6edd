"""Scaling on paper: what many GPUs gain, what they tell each other for it, and where speculation stops paying.

The formulas of theory.py, put together for models of known shape under these assumptions:

1. Weights, activations and cache in bf16. A GPU reads or computes as fast as its roofline allows, never both at once.
2. Tensor parallelism divides weights and FLOPs evenly. It divides keys and values up to one head a GPU; beyond that the
   heads are copied, so that 16 GPUs hold as much cache each as 8 do where there are 8 key/value heads.
3. A pass has two all-reduces a layer and gathers the logits. No communication hides behind computing.
4. A collective takes log₂(GPUs) steps of fixed latency, and sends as few bytes as a ring does, at the link's bandwidth:
   inside each node, then between the nodes. Real algorithms trade one for the other: a ring of t takes 2(t − 1) steps,
   and one-shot kernels take one step and send more. The latencies are round numbers of today's hardware; measure yours.
5. Nothing else takes time: no sampling, no launches, no waiting for requests.

Real engines stay below these numbers. What holds is the order of things: where a curve bends, and why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..theory import H200, Hardware, all_reduce_bytes, expected_tokens, kv_bytes_per_token, parameter_count, pass_time

BF16 = 2  # bytes


@dataclass(frozen=True)
class Shape:
    """What a model's cost depends on."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool = False

    @property
    def parameters(self) -> int:
        sizes = self.vocab, self.hidden, self.intermediate, self.layers
        return parameter_count(*sizes, self.heads, self.kv_heads, self.head_dim, self.tied)

    @property
    def weights(self) -> int:
        """Weights that a pass reads: all but the embedding, of which it reads one row a token."""
        return self.parameters if self.tied else self.parameters - self.vocab * self.hidden


LLAMA_1B = Shape("Llama 3.2 1B", 16, 2048, 8192, 32, 8, 64, 128_256, tied=True)
LLAMA_8B = Shape("Llama 3.1 8B", 32, 4096, 14_336, 32, 8, 128, 128_256)
LLAMA_70B = Shape("Llama 3.1 70B", 80, 8192, 28_672, 64, 8, 128, 128_256)
LLAMA_405B = Shape("Llama 3.1 405B", 126, 16_384, 53_248, 128, 8, 128, 128_256)


@dataclass(frozen=True)
class Cluster:
    """GPUs in nodes. Bandwidths in bytes/s that one GPU sends, latencies in seconds for one step of a collective."""

    name: str
    gpu: Hardware
    memory: float
    node: int
    inside: float
    inside_latency: float
    between: float
    between_latency: float


H200_NODES = Cluster("8 × H200 on NVLink 4, 400 Gb/s a GPU between nodes", H200, 141e9, 8, 450e9, 3e-6, 50e9, 6e-6)


def _groups(cluster: Cluster, ranks: int) -> tuple[int, int]:
    """How many GPUs of a node take part, and how many nodes."""
    return min(ranks, cluster.node), math.ceil(ranks / cluster.node)


def _steps(cluster: Cluster, ranks: int) -> float:
    """Seconds of pure latency in a collective."""
    inside, nodes = _groups(cluster, ranks)
    return math.log2(inside) * cluster.inside_latency + math.log2(nodes) * cluster.between_latency


def all_reduce_time(cluster: Cluster, values: float, ranks: int) -> float:
    """Seconds of an all-reduce: inside the nodes, then an n-th of the values between them.

    >>> round(all_reduce_time(H200_NODES, 8192, 8) * 1e6, 1)  # one token of a 70B model, µs: latency, and little else
    9.1
    """
    inside, nodes = _groups(cluster, ranks)
    sent_inside = all_reduce_bytes(values, inside, BF16)
    sent_between = all_reduce_bytes(values / inside, nodes, BF16)
    return _steps(cluster, ranks) + sent_inside / cluster.inside + sent_between / cluster.between


def parallel_pass_time(
    shape: Shape, ranks: int, batch: int = 1, tokens: int = 1, context: int = 0, cluster: Cluster = H200_NODES
) -> float:
    """Seconds of a pass over B·T tokens: the roofline of one GPU's share, and the collectives.

    >>> [round(parallel_pass_time(LLAMA_70B, t) * 1e3, 2) for t in (1, 8, 64)]  # ms
    [33.1, 5.6, 4.89]
    """
    if ranks < 1 or shape.heads % ranks:
        raise ValueError(f"ranks={ranks} does not divide the {shape.heads} heads of {shape.name}: give one that does")
    kv = kv_bytes_per_token(shape.layers, shape.kv_heads, shape.head_dim) / min(ranks, shape.kv_heads)
    width = shape.layers * shape.heads * shape.head_dim // ranks
    alone = pass_time(cluster.gpu, shape.weights / ranks, batch, tokens, context, BF16, kv, width)
    return alone + communication_time(shape, ranks, batch, tokens, cluster)


def communication_time(
    shape: Shape, ranks: int, batch: int = 1, tokens: int = 1, cluster: Cluster = H200_NODES
) -> float:
    """Seconds of a pass's collectives: 2 · layers all-reduces of B·T·d values, and one gather of B·T·V.

    >>> round(communication_time(LLAMA_70B, 8) / parallel_pass_time(LLAMA_70B, 8), 2)  # of the time at one token
    0.26
    """
    reduced = all_reduce_time(cluster, batch * tokens * shape.hidden, ranks)
    inside, nodes = _groups(cluster, ranks)
    logits = batch * tokens * shape.vocab * BF16
    sent = (inside - 1) / inside * logits / cluster.inside + (nodes - 1) / nodes * logits / inside / cluster.between
    return 2 * shape.layers * reduced + _steps(cluster, ranks) + sent


def parallel_speedup(
    shape: Shape, ranks: int, batch: int = 1, context: int = 0, cluster: Cluster = H200_NODES
) -> float:
    """Time of a decode pass on one GPU (were it large enough) over the time on t: below t, by what is said and copied.

    >>> [round(parallel_speedup(LLAMA_8B, t), 1) for t in (2, 8, 32)]  # a small model soon has nothing left to share
    [1.8, 3.5, 2.4]
    >>> [round(parallel_speedup(LLAMA_405B, t), 1) for t in (2, 8, 32)]
    [2.0, 7.3, 16.9]
    """
    alone = parallel_pass_time(shape, 1, batch, 1, context, cluster)
    return alone / parallel_pass_time(shape, ranks, batch, 1, context, cluster)


def gpus_to_hold(shape: Shape, cluster: Cluster = H200_NODES, spare: float = 0.1) -> int:
    """The least power of two of GPUs whose memory takes the weights in bf16, with a fraction `spare` left for the rest.

    >>> [gpus_to_hold(s) for s in (LLAMA_8B, LLAMA_70B, LLAMA_405B)]
    [1, 2, 8]
    """
    if not 0 <= spare < 1:
        raise ValueError(f"spare={spare} leaves no room for weights: give a number from 0 to less than 1")
    needed = shape.parameters * BF16 / (cluster.memory * (1 - spare))
    return 2 ** math.ceil(math.log2(max(1, needed)))


def speculation_speedup(
    shape: Shape,
    ranks: int,
    batch: int = 1,
    context: int = 0,
    alpha: float = 0.7,
    k: int = 4,
    draft: Shape = LLAMA_1B,
    cluster: Cluster = H200_NODES,
) -> float:
    """E[N] · t_target(1) / (k · t_draft(1) + t_target(k + 1)), the draft spread over the same GPUs as far as it goes.

    >>> [round(speculation_speedup(LLAMA_70B, 8, b), 2) for b in (1, 32, 64, 128, 256)]
    [2.18, 1.85, 1.27, 0.79, 0.59]
    """
    one = parallel_pass_time(shape, ranks, batch, 1, context, cluster)
    many = parallel_pass_time(shape, ranks, batch, k + 1, context, cluster)
    drafted = parallel_pass_time(draft, math.gcd(ranks, draft.heads), batch, 1, context, cluster)
    return expected_tokens(alpha, k) * one / (k * drafted + many)
