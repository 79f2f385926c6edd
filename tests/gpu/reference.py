"""What captured work is compared with: tiny models without a backend, and how near two results are.

Captures are CUDA graphs. Without a GPU a capture just does its work, so most tests of this folder take a `device` and
hold on a CPU too. On a CPU they compute in float64; on a GPU in float32, which is what the kernels know.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from tiny_models import blurred, random_model
from torch.utils._python_dispatch import TorchDispatchMode

import minispec as ms
from minispec.model import RopeScaling

PROMPTS = ([3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3], [27, 18])
SHAPES = {
    "llama": {},
    "qwen2": dict(qkv_bias=True, tie_embeddings=True),
    "qwen3": dict(qk_norm=True),
    "biased": dict(qkv_bias=True, out_bias=True, mlp_bias=True, num_kv_heads=4),
    "stretched": dict(rope_scaling=RopeScaling(4.0, 1.0, 4.0, 32), num_kv_heads=1),
    "few words": dict(head_vocab=40),
}


def usual_dtype(device: str) -> torch.dtype:
    return torch.float64 if device == "cpu" else torch.float32


def tolerance_of(dtype: torch.dtype) -> float:
    return {torch.float64: 1e-10, torch.float32: 1e-4}.get(dtype, 0.05)


@cache
def pair(device: str = "cpu", dtype: torch.dtype = torch.float64) -> tuple[ms.Model, ms.Model]:
    """A target with end tokens, which some of the prompts come to, and a draft with noise on every weight."""
    target, draft = random_model(num_layers=3, dtype=dtype, device=device), blurred(num_layers=3)
    draft.transformer.to(device, dtype)
    return ms.Model("ends", target.transformer, None, {42, 31}), draft


def slow(model: ms.Model) -> ms.Model:
    """The same model without a backend: the reference."""
    return ms.Model("reference", model.transformer, model.tokenizer, model.end_tokens)


def endless(model: ms.Model) -> ms.Model:
    """The same model without end tokens."""
    return ms.Model("endless", model.transformer)


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """‖found − expected‖ / ‖expected‖ where both are finite, which must be at the same positions."""
    found, expected = found.double().cpu(), expected.double().cpu()
    finite = expected.isfinite()
    assert torch.equal(finite, found.isfinite())
    return float((found - expected)[finite].norm() / expected[finite].norm())


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float, what: str) -> None:
    error = distance(found, expected)
    assert error < tolerance, f"{what}: off by {error:.1e}"


class NoSync(TorchDispatchMode):
    """Raises where the host would wait for a number, or a shape depend on one: a capture could not do that."""

    FORBIDDEN = ("_local_scalar_dense", "item", "nonzero", "masked_select", "is_nonzero", "equal", "lift_fresh")

    def __init__(self, allowed: str = ""):
        super().__init__()
        self.forbidden = [name for name in self.FORBIDDEN if name != allowed]

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.__name__.split(".")[0]
        assert name not in self.forbidden, f"{function} waits for the device"
        return function(*args, **(kwargs or {}))


@contextmanager
def capturable(*tensors: torch.Tensor, allowed: str = "") -> Iterator[None]:
    """What happens inside never waits for the device, and these tensors stay where they are."""
    addresses = [tensor.data_ptr() for tensor in tensors]
    with NoSync(allowed), torch.inference_mode(False), torch.no_grad():
        yield
    assert [tensor.data_ptr() for tensor in tensors] == addresses
