"""The models of the lessons that measure time: the pair that makes sense on the learner's device."""

from __future__ import annotations

import torch

from minispec.gpu.backend import load
from minispec.load.folder import usable_device
from minispec.load.handle import Model
from minispec.load.registry import locate
from minispec.measure import machine


def course_pair(device: str | torch.device | None = None) -> tuple[Model, Model]:
    """Target and draft model: SmolLM2 and its draft on a GPU, micro and micro-draft on a CPU.

    On a GPU micro would be all overhead; on a CPU SmolLM2 would make a lesson wait. Where SmolLM2 cannot be had, it is
    micro on the GPU too, and a line says so. None is `ms.device()`.
    """
    device, name = usable_device(device), "micro"
    if device.type == "cuda":
        try:
            locate("smollm2")  # fetches it, if need be
            name = "smollm2"
        except (ValueError, OSError) as error:
            print(f"This page uses micro on {device}, because SmolLM2 cannot be had: {error}")
    return load(name, device=device), load(f"{name}-draft", device=device)


def where(device: str | torch.device | None = None) -> str:
    """A device by its name: every time is to be read with it."""
    device, this = usable_device(device), machine()
    if device.type == "cuda":
        return this["gpus"][device.index or 0]["name"]
    return f"{this['cpu']}, {this['threads']} of {this['cores']} cores"
