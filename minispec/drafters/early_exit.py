"""Early exit, or self-speculation: the target drafts for itself with some of its layers left out.

The residual stream is taken before it is finished: after the first n layers, or after a choice of layers that skips
some on the way. The target's own final norm and head turn it into a distribution. There is no second model to find, to
train or to keep in memory, and no cheap draft either: c ≈ the share of layers that remain, plus the head.

Untrained, the last norm and head get a stream they were not trained on, and acceptance is poor (small models most of
all). The remedy is a small trained `exit` between the two: see `Adapter` and `EarlyExit.train_exit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..load.handle import Model
from ..model import Transformer, only_linears
from ..sampling import Sampling
from .model import DraftModel


class EarlyExit(DraftModel):
    """Draft with the first `layers` layers of the target, or with those named in a sequence; None: the first half.

    The draft keeps a cache of its own, although the target computes the same keys and values again when it verifies:
    a verify pass that went on from the draft's states would save that, at the price of a loop made for this drafter.
    """

    def __init__(
        self,
        target: Model,
        layers: int | Sequence[int] | None = None,
        exit: nn.Module | None = None,  # residual stream [..., d] to residual stream [..., d], before the final norm
        sampling: Sampling | None = None,
    ):
        chosen = choose_layers(target.config.num_layers, layers)
        exit = exit.to(target.device, target.dtype) if exit is not None else None
        view = View(target.transformer, chosen, exit)
        name = f"{target.name}, {len(chosen)} of {target.config.num_layers} layers"
        super().__init__(target.around(view, name), sampling)
        self.target, self.layers, self.exit = target, chosen, exit

    def train_exit(
        self, texts: Sequence[Sequence[int]], steps: int = 200, batch: int = 64, lr: float = 3e-3, seed: int = 0
    ) -> list[float]:
        """Train the exit, and nothing else, on the target's distributions over these token ids: the loss of each step.

        Soft cross-entropy −Σ p log q. Both streams are computed once, so a step costs two heads and one exit.
        """
        if self.exit is None:
            raise ValueError("exit=None leaves nothing to train: make the drafter with exit=Adapter(hidden_size)")
        whole, view, device = self.target.transformer, self.draft.transformer, self.target.device
        with torch.no_grad():
            ids = [torch.tensor([list(text)], device=device) for text in texts]
            early, late = (torch.cat([model.body(i)[0][0] for i in ids]) for model in (view, whole))  # [n, d] each
        generator = torch.Generator().manual_seed(seed)
        parameters = list(self.exit.parameters())
        optimizer = torch.optim.Adam(parameters, lr)
        losses = []
        for _ in range(steps):
            at = torch.randint(len(early), (batch,), generator=generator).to(device)
            p = whole.head(late[at]).softmax(-1)  # [batch, V]
            loss = -(p * view.head(early[at]).log_softmax(-1)).sum(-1).mean()
            optimizer.zero_grad()
            loss.backward(inputs=parameters)  # the head is the target's: it gets no gradient
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses


class View(Transformer):
    """Some layers of a model between its embedding and its head. The very same modules: nothing is copied."""

    def __init__(self, whole: Transformer, layers: Sequence[int], exit: nn.Module | None = None):
        nn.Module.__init__(self)  # not Transformer's, which would make parameters
        self.config = replace(whole.config, num_layers=len(layers))
        self.embed_tokens, self.norm, self.lm_head = whole.embed_tokens, whole.norm, whole.lm_head
        self.layers = nn.ModuleList(whole.layers[index] for index in layers)
        self.register_buffer("head_ids", whole.head_ids)
        self.exit = nn.Identity() if exit is None else exit

    @property
    def ordinary(self) -> bool:
        return only_linears(self)

    def head(self, x: Tensor) -> Tensor:
        return super().head(self.exit(x))


class Adapter(nn.Module):
    """An exit to train: x + Wx + b. It starts as nothing at all (W = 0, b = 0), which is the untrained exit."""

    def __init__(self, hidden_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        return x + F.linear(x, self.weight, self.bias)


def choose_layers(total: int, layers: int | Sequence[int] | None) -> list[int]:
    """Which of `total` layers to keep, in order, checked."""
    if layers is None:
        layers = max(1, total // 2)
    if isinstance(layers, int):
        if not 1 <= layers <= total:
            raise ValueError(f"layers={layers}: the target has {total} layers, so give a number from 1 to {total}")
        return list(range(layers))
    chosen = [int(index) for index in layers]
    if not chosen or chosen != sorted(set(chosen)) or not 0 <= chosen[0] <= chosen[-1] < total:
        raise ValueError(f"layers={chosen}: give different numbers from 0 to {total - 1}, in ascending order")
    return chosen
