"""What the pictures of the course are drawn from, on tiny models: once per session."""

from functools import cache
from types import SimpleNamespace

import pytest

pytest.importorskip("plotly")


from all_panels import PANELS

import minispec as ms


@pytest.fixture(scope="session")
def micro() -> ms.Model:
    return ms.load("micro", device="cpu")


@pytest.fixture(scope="session")
def run(micro):
    """A speculative run of micro: output, and its prompt."""
    prompt = "Once upon a time"
    drafter = ms.drafters.Model(ms.load("micro-draft", device="cpu"))
    return ms.speculate(micro, prompt, drafter, k=4, max_new_tokens=24, temperature=0), prompt


@pytest.fixture(scope="session")
def panel(tiny, tiny_draft, micro, run):
    """panel("surface"): a widget of the course by its name, made once."""
    drafters = {"EAGLE": ms.drafters.Eagle(micro, tree=False), "DFlash": ms.drafters.DFlash(micro, tree=False)}
    made = SimpleNamespace(
        tiny=tiny, tiny_draft=tiny_draft, micro=micro, drafters=drafters, output=run[0], prompt=run[1]
    )
    return cache(lambda name: PANELS[name](made))
