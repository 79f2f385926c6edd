"""`ms.load`: a model by its name, ready to run where it lives. Only on a GPU is what captures its passes imported."""

import warnings

import torch

from . import folder
from .model import Model


def load(
    name, *, device=None, dtype: torch.dtype | None = None, fast: bool | None = None, weights=None, tokenizer=None
) -> Model:
    """Load a model: a known name (see `ms.models()`), a folder, or a hub id. On the GPU when there is one.

    Or a live model of transformers, `ms.load(model, tokenizer=tokenizer)`: it stays on its device and in its precision,
    and its weights are shared, not copied.

    `fast` (by default: on a GPU) decodes single prompts by CUDA graphs; where that cannot be, a warning says why.

    `weights="int8"`, on a CPU, rounds every matrix of the layers and the LM head to int8, one scale per row: a quarter
    of the bytes per token, and another model than the float32 one, whose distributions are close to its and not the
    same. The embedding's rows stay float32. The float32 matrices are not kept.
    """
    model = folder.load(name, device=device, dtype=dtype, weights=weights, tokenizer=tokenizer)
    if fast or (fast is None and model.may_capture()):
        if model.device.type != "cuda":
            warnings.warn(
                f"fast=True needs a CUDA device and {model.name} is on {model.device}: it decodes as usual",
                stacklevel=2,
            )
        else:
            model.accelerate()
    return model
