"""Alternative text for pages that nbconvert makes of a lesson: its own template for HTML leaves it out.

jupyter nbconvert --to html --HTMLExporter.preprocessors=minispec_course.build.exported.WithWords NOTEBOOK
"""

from __future__ import annotations

import base64
from html import escape

from nbconvert.preprocessors import Preprocessor
from nbformat import NotebookNode


class WithWords(Preprocessor):
    """Every picture becomes HTML that says what it shows: the words that the notebook keeps beside it."""

    def preprocess_cell(self, cell: NotebookNode, resources: dict, index: int) -> tuple[NotebookNode, dict]:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if not ({"image/svg+xml", "image/png"} & data.keys()) or "text/html" in data:
                continue
            size = output.metadata.get("image/png", {})
            words = escape(size.get("alt") or data.get("text/plain", ""))
            if "image/svg+xml" in data:
                source = "svg+xml;base64," + base64.b64encode(data["image/svg+xml"].encode()).decode()
            else:
                source = "png;base64," + data["image/png"].replace("\n", "")
            shape = "".join(f' {side}="{size[side]}"' for side in ("width", "height") if side in size)
            style = "max-width:100%;height:auto"
            image = f'<img src="data:image/{source}" alt="{words}"{shape} style="{style}">'
            output.data = NotebookNode({"text/html": image})
        return cell, resources
