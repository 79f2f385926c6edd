"""Tests that take a `device` run on the GPU if there is one, else on the CPU."""

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
