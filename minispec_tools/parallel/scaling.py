"""Scaling on paper: what many GPUs gain, and what they tell each other for it.

The formulas of theory.py, put together for models of known shape under these assumptions:

1. Nodes of eight H200. Weights and activations in bf16; contexts so short that the cache takes no time. A GPU reads or
   computes as fast as its roofline allows, never both at once.
2. Tensor parallelism divides weights and FLOPs evenly.
3. A pass has two all-reduces a layer and gathers the logits. No communication hides behind computing.
4. A collective takes log₂(GPUs) steps of fixed latency, and sends as few bytes as a ring does, at the link's bandwidth:
   inside each node, then between the nodes. Real algorithms trade one for the other: a ring of t takes 2(t − 1) steps,
   and one-shot kernels take one step and send more. The latencies are round numbers of today's hardware; measure yours.
5. Nothing else takes time: no sampling, no launches, no waiting for requests.

Real engines stay below these numbers. What holds is the order of things: where a curve bends, and why.
"""

import math
from collections.abc import Callable

from minispec.model import Config
from minispec.theory import H200, all_reduce_bytes, parameter_count, pass_time

BF16 = 2  # bytes
MEMORY = 141e9  # bytes of a GPU
NODE = 8  # GPUs
NVLINK, NVLINK_LATENCY = 450e9, 3e-6  # inside a node: bytes/s that one GPU sends, seconds for one step of a collective
NETWORK, NETWORK_LATENCY = 50e9, 6e-6  # between nodes, 400 Gb/s a GPU


LLAMA_1B = Config(128_256, 2048, 8192, 16, 32, 8, 64, 131_072, tie_embeddings=True)  # Llama 3.2
LLAMA_8B = Config(128_256, 4096, 14_336, 32, 32, 8, 128, 131_072)  # and these three: Llama 3.1
LLAMA_70B = Config(128_256, 8192, 28_672, 80, 64, 8, 128, 131_072)
LLAMA_405B = Config(128_256, 16_384, 53_248, 126, 128, 8, 128, 131_072)


def parameters(c: Config) -> int:
    """Parameters of a model of this shape, all of its tables counted."""
    return weights_read(c) + (0 if c.tie_embeddings else c.vocab_size * c.hidden_size)


def weights_read(c: Config) -> int:
    """Parameters that a pass reads: all but an embedding table of its own, of which it reads one row a token."""
    heads = c.num_layers, c.num_heads, c.num_kv_heads, c.head_dim
    return parameter_count(c.vocab_size, c.hidden_size, c.intermediate_size, *heads, tied=True)


def collective_time(ranks: int, sent: Callable[[float, int], float], values: float) -> float:
    """Seconds of a collective: log₂ steps, and what each GPU has `sent` inside its node and, a share, between them."""
    inside, nodes = min(ranks, NODE), math.ceil(ranks / NODE)
    latency = math.log2(inside) * NVLINK_LATENCY + math.log2(nodes) * NETWORK_LATENCY
    return latency + sent(values, inside) / NVLINK + sent(values / inside, nodes) / NETWORK


def gathered_bytes(values: float, ranks: int) -> float:
    """Bytes that a GPU gets from the others when all have to hear all values."""
    return (ranks - 1) / ranks * values * BF16


def communication_time(shape: Config, ranks: int, tokens: int = 1) -> float:
    """Seconds of a pass's collectives: 2 · layers all-reduces of T·d values, and one gather of T·V.

    >>> round(communication_time(LLAMA_70B, 8) / parallel_pass_time(LLAMA_70B, 8), 2)  # of the time at one token
    0.26
    """
    reduced = collective_time(ranks, all_reduce_bytes, tokens * shape.hidden_size)
    return 2 * shape.num_layers * reduced + collective_time(ranks, gathered_bytes, tokens * shape.vocab_size)


def parallel_pass_time(shape: Config, ranks: int, batch: int = 1, tokens: int = 1) -> float:
    """Seconds of a pass over B·T tokens: the roofline of one GPU's share, and the collectives.

    >>> [round(parallel_pass_time(LLAMA_70B, t) * 1e3, 2) for t in (1, 8, 64)]  # ms
    [33.1, 5.6, 4.89]
    """
    if ranks < 1 or shape.num_heads % ranks:
        raise ValueError(f"ranks={ranks} does not divide the {shape.num_heads} heads of this model: give one that does")
    share = weights_read(shape) / ranks
    return pass_time(H200, share, batch, tokens) + communication_time(shape, ranks, batch * tokens)


def gpus_to_hold(shape: Config) -> int:
    """The least power of two of GPUs whose memory takes the weights in bf16, with a tenth of it left for the rest.

    >>> [gpus_to_hold(s) for s in (LLAMA_8B, LLAMA_70B, LLAMA_405B)]
    [1, 2, 8]
    """
    return 2 ** math.ceil(math.log2(max(1, parameters(shape) * BF16 / (0.9 * MEMORY))))
