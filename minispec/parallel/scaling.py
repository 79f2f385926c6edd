"""Scaling on paper: what many GPUs gain, and what they tell each other for it.

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

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..theory import H200, Hardware, all_reduce_bytes, kv_bytes_per_token, parameter_count, pass_time

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


def collective_time(cluster: Cluster, ranks: int, sent: Callable[[float, int], float], values: float) -> float:
    """Seconds of a collective: log₂ steps, and what each GPU has `sent` inside its node and, a share, between them."""
    inside, nodes = min(ranks, cluster.node), math.ceil(ranks / cluster.node)
    latency = math.log2(inside) * cluster.inside_latency + math.log2(nodes) * cluster.between_latency
    return latency + sent(values, inside) / cluster.inside + sent(values / inside, nodes) / cluster.between


def gathered_bytes(values: float, ranks: int) -> float:
    """Bytes that a GPU gets from the others when all have to hear all values."""
    return (ranks - 1) / ranks * values * BF16


def communication_time(shape: Shape, ranks: int, tokens: int = 1, cluster: Cluster = H200_NODES) -> float:
    """Seconds of a pass's collectives: 2 · layers all-reduces of T·d values, and one gather of T·V.

    >>> round(communication_time(LLAMA_70B, 8) / parallel_pass_time(LLAMA_70B, 8), 2)  # of the time at one token
    0.26
    """
    reduced = collective_time(cluster, ranks, all_reduce_bytes, tokens * shape.hidden)
    return 2 * shape.layers * reduced + collective_time(cluster, ranks, gathered_bytes, tokens * shape.vocab)


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
    return alone + communication_time(shape, ranks, batch * tokens, cluster)


def gpus_to_hold(shape: Shape, cluster: Cluster = H200_NODES, spare: float = 0.1) -> int:
    """The least power of two of GPUs whose memory takes the weights in bf16, with a fraction `spare` left for the rest.

    >>> [gpus_to_hold(s) for s in (LLAMA_8B, LLAMA_70B, LLAMA_405B)]
    [1, 2, 8]
    """
    if not 0 <= spare < 1:
        raise ValueError(f"spare={spare} leaves no room for weights: give a number from 0 to less than 1")
    needed = shape.parameters * BF16 / (cluster.memory * (1 - spare))
    return 2 ** math.ceil(math.log2(max(1, needed)))
