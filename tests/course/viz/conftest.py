"""What the pictures of the course are drawn from, on tiny models: once per session."""

import pytest

pytest.importorskip("plotly")


import minispec as ms
from minispec_course import viz


@pytest.fixture(scope="session")
def micro() -> ms.Model:
    return ms.load("micro", device="cpu")


@pytest.fixture(scope="session")
def micro_draft() -> ms.Model:
    return ms.load("micro-draft", device="cpu")


@pytest.fixture(scope="session")
def run(micro, micro_draft):
    """A speculative run of micro: output, and its prompt."""
    prompt = "Once upon a time"
    return ms.speculate(micro, prompt, ms.drafters.Model(micro_draft), k=4, max_new_tokens=24, temperature=0), prompt


@pytest.fixture(scope="session")
def panels(tiny, tiny_draft, micro, run):
    """Every widget of the course, by its name."""
    output, prompt = run
    drafter = ms.drafters.Model(tiny_draft)
    drafters = {"EAGLE": ms.drafters.Eagle(micro, tree=False), "DFlash": ms.drafters.DFlash(micro, tree=False)}
    return {
        "control_room": viz.control_room(tiny, drafter, count=4),
        "cut_products": viz.cut_products(),
        "cycle_stepper": viz.cycle_stepper(micro, prompt, output),
        "diagnose": viz.diagnose(),
        "drag_overlap": viz.drag_overlap(),
        "drafting_steps": viz.drafting_steps(micro, prompt, drafters, k=3),
        "gantt": viz.gantt(batches=(4, 2)),
        "loop_picture": viz.loop_picture(),
        "memory_map": viz.memory_map(),
        "quantisation": viz.quantisation(micro),
        "residual_explorer": viz.residual_explorer(),
        "surface": viz.surface([viz.Dot.recorded()]),
        "tree_viewer": viz.tree_viewer(micro, prompt, nodes=6, new_tokens=10),
        "weights_stream": viz.weights_stream(),
    }
