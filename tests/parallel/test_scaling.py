"""Scaling on paper: the doctests, and what must hold whatever the numbers are."""

from __future__ import annotations

import doctest

import pytest

from minispec import theory
from minispec.parallel import scaling
from minispec.parallel.scaling import H200_NODES, LLAMA_8B, LLAMA_70B, LLAMA_405B


def test_every_number_in_the_file_is_right():
    assert doctest.testmod(scaling).failed == 0


def test_shapes_have_the_sizes_of_their_names():
    sizes = [round(shape.parameters / 1e9, 1) for shape in (scaling.LLAMA_1B, LLAMA_8B, LLAMA_70B, LLAMA_405B)]
    assert sizes == [1.2, 8.0, 70.6, 405.9]


def test_one_gpu_is_the_roofline_of_theory():
    alone = scaling.parallel_pass_time(LLAMA_8B, 1, batch=4, tokens=5, context=100)
    kv = theory.kv_bytes_per_token(32, 8, 128)
    assert alone == theory.pass_time(theory.H200, LLAMA_8B.weights, 4, 5, 100, 2, kv, 32 * 32 * 128)


def test_the_cache_is_divided_up_to_one_head_a_gpu():
    """Beyond eight GPUs a long context costs each of them what it cost before."""

    def reading(ranks):
        options = dict(batch=8, cluster=H200_NODES)
        long, none = (scaling.parallel_pass_time(LLAMA_70B, ranks, context=c, **options) for c in (100_000, 0))
        return long - none

    assert reading(1) / reading(8) == pytest.approx(8)
    assert reading(16) == pytest.approx(reading(8))


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="ranks=64 does not divide the 32 heads"):
        scaling.parallel_pass_time(LLAMA_8B, 64)
    with pytest.raises(ValueError, match="spare"):
        scaling.gpus_to_hold(LLAMA_8B, spare=1.0)
