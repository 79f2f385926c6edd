"""One training loop for every trainer: AdamW, warm-up and cosine, clipped gradients, a curve on disk, resumable.

The batch of step i is a function of i (and a seed) alone. So a checkpoint needs no random state, and a run that was
interrupted gives the same weights as one that was not.
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

from minispec.load.write import in_place_of, write_whole

CHECKPOINT_EVERY = 2000  # steps


def learning_rate(step: int, steps: int, peak: float, warmup: int) -> float:
    """Linear warm-up to `peak`, then half a cosine down to zero."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def fit(
    module: nn.Module,
    loss_at: Callable[[int], Tensor],
    *,
    steps: int,
    lr: float,
    folder: str | Path,
    warmup: int = 200,
    weight_decay: float = 0.01,
    log_every: int = 50,
    stop_after: int | None = None,
) -> list[dict]:
    """Minimise loss_at(step) over the module's trainable parameters; returns the curve, also saved as curve.json.

    `stop_after` ends this call early (with a checkpoint); the schedule still runs to `steps`.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / "checkpoint.pt"
    parameters = [p for p in module.parameters() if p.requires_grad]
    cuda = parameters[0].device.type == "cuda"
    optimizer = torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.95), weight_decay=weight_decay, fused=cuda)
    start, curve = 0, []
    if checkpoint.exists():
        try:
            state = torch.load(checkpoint, map_location=parameters[0].device, weights_only=True)
        except (RuntimeError, EOFError, pickle.UnpicklingError):
            raise ValueError(f"{checkpoint} is damaged: delete it to begin anew") from None
        if state["steps"] != steps:
            begun = f"{checkpoint} belongs to a run of {state['steps']}"
            raise ValueError(f"steps={steps}, but {begun}: use another folder")
        module.load_state_dict(state["module"])
        optimizer.load_state_dict(state["optimizer"])
        start, curve = state["step"], state["curve"]
    end = min(steps, start + (stop_after or steps))
    recent: list[Tensor] = []
    with tqdm(total=steps, initial=start, desc=folder.name, unit="step", mininterval=2) as bar:
        for step in range(start, end):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, steps, lr, min(warmup, max(1, steps // 10)))
            with torch.autocast("cuda", torch.bfloat16, enabled=cuda):
                loss = loss_at(step)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            recent.append(loss.detach())
            bar.update()
            done = step + 1
            if done % log_every == 0 or done == end:
                point = {"step": done, "loss": round(float(torch.stack(recent).mean()), 4)}
                recent.clear()
                curve.append(point)
                bar.set_postfix(loss=point["loss"])
            if done % CHECKPOINT_EVERY == 0 or done == end:
                state = dict(step=done, steps=steps, module=module.state_dict(), curve=curve)
                state |= dict(optimizer=optimizer.state_dict())
                with in_place_of(checkpoint) as file:
                    torch.save(state, file)
                write_whole(folder / "curve.json", json.dumps(curve))
    return curve
