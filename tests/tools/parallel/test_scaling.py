"""Scaling on paper: the doctests, and what must hold whatever the numbers are."""

import doctest

import pytest

from minispec import theory
from minispec_tools.parallel import scaling
from minispec_tools.parallel.scaling import LLAMA_8B, LLAMA_70B, LLAMA_405B


def test_every_number_in_the_file_is_right():
    assert doctest.testmod(scaling).failed == 0


def test_shapes_have_the_sizes_of_their_names():
    sizes = [round(scaling.parameters(shape) / 1e9, 1) for shape in (scaling.LLAMA_1B, LLAMA_8B, LLAMA_70B, LLAMA_405B)]
    assert sizes == [1.2, 8.0, 70.6, 405.9]


def test_one_gpu_is_the_roofline_of_theory():
    alone = scaling.parallel_pass_time(LLAMA_8B, 1, batch=4, tokens=5)
    assert alone == theory.pass_time(theory.H200, scaling.weights_read(LLAMA_8B), 4, 5)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="ranks=64 does not divide the 32 heads"):
        scaling.parallel_pass_time(LLAMA_8B, 64)
