from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def small_models(monkeypatch):
    """The capstone is tried on a real model: here on the one that is always there, and quick. Nothing is remembered."""
    monkeypatch.setenv("MINISPEC_TRIAL", "micro")
    monkeypatch.setenv("MINISPEC_PROGRESS", "off")
