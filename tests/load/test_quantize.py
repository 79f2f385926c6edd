"""Symmetric quantisation: its error bound, and the way through a stored model."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

import minispec as ms
from minispec.load.folder import save_folder
from minispec.load.quantize import dequantize, quantize


def random_weight(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Rows and stretches of rows of different size, as in real weights."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.randn(rows, 1, generator=generator).exp() * torch.randn(1, columns, generator=generator).exp()
    return torch.randn(rows, columns, generator=generator) * size


@given(
    bits=st.integers(2, 8),
    rows=st.integers(1, 6),
    groups=st.integers(1, 4),
    width=st.integers(1, 9),
    seed=st.integers(0, 10_000),
    whole=st.booleans(),
)
def test_each_weight_errs_by_at_most_half_a_step(bits, rows, groups, width, seed, whole):
    weight = random_weight(rows, groups * width, seed)
    integers, scale = quantize(weight, bits, group=None if whole else width)
    assert integers.dtype == torch.int8 and integers.shape == weight.shape
    assert scale.shape == (rows, 1 if whole else groups)
    assert integers.abs().max() <= 2 ** (bits - 1) - 1
    step = scale.repeat_interleave(weight.shape[1] // scale.shape[1], dim=1)  # [out, in]
    assert ((dequantize(integers, scale) - weight).abs() <= step / 2 * (1 + 1e-5)).all()


def test_zeros_stay_zero():
    weight = random_weight(3, 8)
    weight[1] = 0
    weight[2, :4] = 0
    for group in (None, 4):
        integers, scale = quantize(weight, 8, group)
        again = dequantize(integers, scale)
        assert (scale > 0).all() and (again[1] == 0).all()  # a scale of 0 would divide by it
        assert (again[2, :4] == 0).all()
    assert (dequantize(*quantize(torch.zeros(2, 4))) == 0).all()


@pytest.mark.parametrize("overrides", [dict(), dict(tie_embeddings=True), dict(head_vocab=9, qkv_bias=True)])
def test_a_model_stored_in_int8_loads_as_what_was_rounded(make_model, tmp_path, overrides):
    model = make_model(**overrides, dtype=torch.float32)
    save_folder(model, tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    state, again = model.transformer.state_dict(), ms.load(tmp_path, device="cpu").transformer.state_dict()
    assert again.keys() == state.keys()
    for key, value in again.items():
        file_key = key if key == "lm_head.weight" else f"model.{key}"
        if value.ndim < 2:  # norms, biases and lists of ids keep their values
            assert torch.equal(value, state[key])
        elif file_key in stored:
            assert stored[file_key].dtype == torch.int8
            assert torch.equal(value, dequantize(*quantize(state[key])))
    matrices = sum(value.numel() for key, value in stored.items() if value.dtype == torch.int8)
    size = (tmp_path / "model.safetensors").stat().st_size
    assert matrices < size < 2 * matrices  # a byte a weight, and not two
