"""Tensor parallelism: every rank holds a slice of every layer, and all of them together are the model.

A product y = x Wᵀ can be cut in two ways. By columns of the result, each rank owns some outputs:

    column-parallel   y_r = x W_rᵀ                 rows of W; x is everywhere, y is in pieces, nobody talks
    row-parallel      y = Σ_r x_r W_rᵀ             columns of W; x is in pieces, the sum is one all-reduce

Put one after the other and the pieces fit: q, k, v by columns (so each rank owns whole heads, and the keys and values
of these heads alone), o by rows; gate and up by columns, down by rows. That makes two all-reduces a layer. The LM head
is cut by its tokens, and its logits are gathered. Norms, embedding and sampling are everywhere the same.

So every rank sees the same logits and, from the same seed, draws the same numbers: `generate` and `speculate` need not
know that they run on many ranks. torch.distributed.tensor.parallel calls the two cuts ColwiseParallel and
RowwiseParallel. Here the collectives stand in the open, without DTensor's bookkeeping around them.

docs/package.md has a script for torchrun.
"""

import math
import os
import pickle
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from minispec.load.folder import default_dtype
from minispec.load.folder import load as load_model
from minispec.load.model import Model
from minispec.model import Config, Linear, Transformer

PATIENCE = 20  # seconds without an answer until a rank gives the others up

COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
ROWS = ("self_attn.o_proj", "mlp.down_proj")


# ---- the layers --------------------------------------------------------------------------------------------------


class ColumnParallel(Linear):
    """This rank's outputs: y_r = x W_rᵀ + b_r."""

    def __init__(self, whole: nn.Linear, rank: int, ranks: int):
        super().__init__(1, 1, device="meta")  # the weights are set below, not drawn
        self.weight = nn.Parameter(piece(whole.weight, 0, rank, ranks), requires_grad=False)  # [N / t, K]
        self.bias = None if whole.bias is None else nn.Parameter(piece(whole.bias, 0, rank, ranks), requires_grad=False)


class RowParallel(Linear):
    """From this rank's inputs to everybody's outputs: y = Σ_r x_r W_rᵀ + b."""

    def __init__(self, whole: nn.Linear, rank: int, ranks: int):
        super().__init__(1, 1, device="meta")
        self.weight = nn.Parameter(piece(whole.weight, 1, rank, ranks), requires_grad=False)  # [N, K / t]
        self.bias = None
        self.whole_bias = whole.bias  # added once, after the sum

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x).contiguous()
        dist.all_reduce(y)
        return y if self.whole_bias is None else y + self.whole_bias


class VocabularyParallel(ColumnParallel):
    """The LM head: this rank scores its tokens, then all hear of all."""

    def forward(self, x: Tensor) -> Tensor:
        mine = super().forward(x).contiguous()  # [B, T, V / t]
        everybody = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everybody, mine)
        return torch.cat(everybody, -1)  # [B, T, V]


def piece(whole: Tensor, dim: int, rank: int, ranks: int) -> Tensor:
    """A copy: a view would keep the whole tensor in memory."""
    return whole.detach().chunk(ranks, dim)[rank].clone(memory_format=torch.contiguous_format)


# ---- the model ---------------------------------------------------------------------------------------------------


def fitting_ranks(config: Config) -> list[int]:
    """The numbers of ranks that this model can be cut for: they divide its heads, its neurons and its vocabulary."""
    vocabulary = config.head_vocab or config.vocab_size
    parts = math.gcd(config.num_heads, config.num_kv_heads, config.intermediate_size, vocabulary)
    return [n for n in range(1, parts + 1) if parts % n == 0]


def parallelize(model: Model) -> Model:
    """This rank's share of a model, as a Model of its own; the whole one is not changed, and can be dropped.

    Give `ms.generate` and `ms.speculate` a seed where they sample, and a number as k: nothing may be left to a rank's
    own clock or dice. Heads of Medusa and EAGLE are loaded for the whole model, before: they read its LM head.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole, config = model.transformer, model.config
    if ranks not in (fit := fitting_ranks(config)):
        heads = f"num_heads={config.num_heads}, num_kv_heads={config.num_kv_heads}"
        sizes = f"intermediate_size={config.intermediate_size}, vocabulary={config.head_vocab or config.vocab_size}"
        start = f"start {' or '.join(map(str, fit))}"
        raise ValueError(f"{ranks} ranks cannot share {model.name!r} ({heads}, {sizes}): {start}")
    if config.delta or config.experts:
        raise ValueError(f"{model.name!r} has recurrent layers or experts, which are not cut up: give a dense model")
    with torch.device("meta"):
        share = Transformer(config)
    share.load_state_dict(whole.state_dict(), strict=False, assign=True)  # the same tensors; no copy
    for layer, whole_layer in zip(share.layers, whole.layers, strict=True):
        for name in COLUMNS:
            layer.set_submodule(name, ColumnParallel(whole_layer.get_submodule(name), rank, ranks))
        for name in ROWS:
            layer.set_submodule(name, RowParallel(whole_layer.get_submodule(name), rank, ranks))
    share.lm_head = VocabularyParallel(whole.lm_head, rank, ranks)
    # What is left to this rank; a cache made from it has room for this rank's heads alone.
    share.config = replace(config, num_heads=config.num_heads // ranks, num_kv_heads=config.num_kv_heads // ranks)
    share.embed_tokens.register_forward_pre_hook(agree)
    name = f"{model.name} ({rank + 1} of {ranks})"
    return model.around(share.requires_grad_(False).eval(), name)


def agree(_, inputs: tuple[Tensor]) -> None:
    """Refuse a pass for which the ranks have different tokens: they would add up pieces of different texts."""
    (tokens,) = inputs
    number = hash((*tokens.shape, *tokens.flatten().tolist())) >> 2
    extremes = torch.tensor([number, -number], device=tokens.device)
    dist.all_reduce(extremes, dist.ReduceOp.MAX)
    if int(extremes[0]) != -int(extremes[1]):
        remedy = 'a seed where they sample, and a number as k (k="auto" follows each rank\'s own clock)'
        raise ValueError(f"the ranks process different tokens: give all of them the same prompt, {remedy}")


def load(name: str | Path) -> Model:
    """This rank's share of a model. The whole one passes through the memory of the host, never through a GPU's."""
    share = parallelize(load_model(name, device="cpu", dtype=default_dtype(my_device())))
    share.transformer.to(my_device())
    return share


# ---- the ranks ---------------------------------------------------------------------------------------------------


def my_device() -> torch.device:
    if dist.get_backend() != "nccl":
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def join(rank: int, ranks: int, meet: str = "env://", backend: str | None = None, patience: float = PATIENCE) -> None:
    """Become a rank. `meet` is where the ranks find each other: by default torchrun's environment says it.

    The backend is nccl where every rank of this machine has a GPU of its own, otherwise gloo. Whoever does not answer
    for `patience` seconds is given up with an error.
    """
    if backend is None:
        gpus_for_all = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
        backend = "nccl" if gpus_for_all and dist.is_nccl_available() else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    timeout = timedelta(seconds=patience)
    dist.init_process_group(backend, init_method=meet, rank=rank, world_size=ranks, timeout=timeout)


def launch(function: Callable, ranks: int, *arguments, patience: float = PATIENCE) -> list:
    """Run function(*arguments) on so many fresh ranks, on this machine's CPU; what each of them returned, in order.

    The function must be importable, as for any spawned process. When one rank fails, the others are ended and a
    RuntimeError says which and why.
    """
    with tempfile.TemporaryDirectory() as folder:
        context = mp.start_processes(
            _be_a_rank, (ranks, folder, patience, function, arguments), ranks, join=False, start_method="spawn"
        )
        try:
            while not context.join(timeout=1, grace_period=2):
                pass
        except (mp.ProcessExitedException, mp.ProcessRaisedException) as error:
            raise RuntimeError(f"rank {error.error_index} of {ranks} died, the others were ended: {error}") from None
        return [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(ranks)]


def _be_a_rank(rank: int, ranks: int, folder: str, patience: float, function: Callable, arguments: Sequence) -> None:
    torch.set_num_threads(1)  # the ranks share the cores
    join(rank, ranks, (Path(folder) / "meet").as_uri(), "gloo", patience)
    result = function(*arguments)
    (Path(folder) / str(rank)).write_bytes(pickle.dumps(result))
    dist.destroy_process_group()
