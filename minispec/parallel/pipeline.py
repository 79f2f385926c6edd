"""Pipeline parallelism: every rank holds some layers, and micro-batches flow from one to the next.

A stage can only work on what the stage before it has finished. With one batch all but one stage stand idle; cut into m
micro-batches, a stage works on one while the next works on the one before. What is left idle is the bubble, a fraction
(t − 1) / (m + t − 1) of the time (theory.pipeline_bubble). Only the residual stream travels, B·T·d numbers a stage: far
less than tensor parallelism sends, so this is the cut between machines. It makes nothing faster for a single request.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from ..cache import attention, per_query_head
from ..load.folder import load
from ..model import Transformer, rope_at
from ..require import require
from .tensor import launch


def stage_layers(layers: int, rank: int, ranks: int) -> range:
    """The layers of a stage: equal shares, as far as that goes."""
    require(1 <= ranks <= layers, f"1 to {layers} stages, as many as this model has layers", ranks=ranks)
    return range(layers * rank // ranks, layers * (rank + 1) // ranks)


def run_layers(transformer: Transformer, x: Tensor, layers: range) -> Tensor:
    """The residual stream x [B, T, d] through some of the layers, each token seeing those before it."""
    T, config = x.shape[1], transformer.config
    rope = rope_at(config, torch.arange(T)[None], x.dtype)
    causal = per_query_head(torch.ones(1, T, T, dtype=torch.bool).tril(), config.num_heads // config.num_kv_heads)
    attend = partial(attention, mask=causal)
    for index in layers:
        x = transformer.layers[index](x, rope, attend)
    return x


@torch.inference_mode()
def stage(transformer: Transformer, tokens: Tensor, microbatches: int) -> Tensor | None:
    """What one rank does for tokens [B, T]: the last one gets their logits [B, T, V], the others None.

    Sending does not wait: the next micro-batch is computed while the last one is on its way.
    """
    rank, ranks, config = dist.get_rank(), dist.get_world_size(), transformer.config
    mine, logits, sent = stage_layers(config.num_layers, rank, ranks), [], []
    for batch in tokens.tensor_split(microbatches):
        if rank == 0:
            x = transformer.embed_tokens(batch)
        else:
            x = torch.empty(*batch.shape, config.hidden_size, dtype=transformer.dtype)
            dist.recv(x, rank - 1)
        x = run_layers(transformer, x, mine)
        if rank == ranks - 1:
            logits.append(transformer.head(x))
        else:
            sent.append((dist.isend(x, rank + 1), x))  # x must live until it has left
    for work, _ in sent:
        work.wait()
    return torch.cat(logits) if logits else None


def stage_of(model: str, tokens: Tensor, microbatches: int, dtype: torch.dtype | None = None) -> Tensor | None:
    return stage(load(model, device="cpu", dtype=dtype).transformer, tokens, microbatches)


def run(model: str, tokens: Tensor, ranks: int = 2, microbatches: int = 4, dtype: torch.dtype | None = None) -> Tensor:
    """The logits [B, T, V] of tokens [B, T], computed in a pipeline of fresh processes."""
    require(1 <= microbatches <= len(tokens), f"1 to {len(tokens)}, the batch size", microbatches=microbatches)
    return launch(stage_of, ranks, str(model), tokens, microbatches, dtype)[-1]
