"""Every widget of the course, on tiny models."""

import minispec as ms
from minispec_course import viz

PANELS = {  # name → how it is made, given the models and a run
    "control_room": lambda m: viz.control_room(m.tiny, ms.drafters.Model(m.tiny_draft), count=4),
    "cut_products": lambda m: viz.cut_products(),
    "cycle_stepper": lambda m: viz.cycle_stepper(m.micro, m.prompt, m.output),
    "diagnose": lambda m: viz.diagnose(),
    "drag_overlap": lambda m: viz.drag_overlap(),
    "drafting_steps": lambda m: viz.drafting_steps(m.micro, m.prompt, m.drafters, k=3),
    "gantt": lambda m: viz.gantt(batches=(4, 2)),
    "loop_picture": lambda m: viz.loop_picture(),
    "memory_map": lambda m: viz.memory_map(),
    "quantisation": lambda m: viz.quantisation(m.micro),
    "residual_explorer": lambda m: viz.residual_explorer(),
    "surface": lambda m: viz.surface([viz.Dot.recorded()]),
    "tree_viewer": lambda m: viz.tree_viewer(m.micro, m.prompt, nodes=6, new_tokens=10),
    "weights_stream": lambda m: viz.weights_stream(),
}
